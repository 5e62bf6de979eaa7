//! Execution of kernels on the host, as Rust functions that rustc has compiled.

use crate::bounds_report::{self, OutOfBounds};
use crate::error::Error;
use crate::host::{Kernel, PRIVATE_HEAP_BYTES};
use crate::interpret::interpret;
use crate::lower::{LaunchVariant, LoweredKernel, lower_for, numbered};
use crate::source::{Item, LaunchArguments};
use crate::turns;
use crate::views::{ParameterInfo, ParameterKind};
use backend_api::kernel::{HostForm, HostItems, Report};
use std::ops::Range;

/// Number of loop iterations for which the interpreter searches the loop that exceeded the time limit.
const SEARCHED_TURNS: u64 = 1 << 20;

/// Number of items whose elements the host form loads at a time.
const BLOCK_ITEMS: usize = 512;

/// Runs a kernel on the calling thread, once for each item (simulated GPU thread) of `items` in turn.
/// `sources` has one argument for each kernel parameter. The slice for an [`Own`](crate::Own) parameter must
/// have one element for each item. Kernels with groups (thread blocks) are [interpreted](crate::interpret).
///
/// # Errors
/// [`OutOfBounds`] if the kernel accessed elements out of bounds. The function has run all items
/// nevertheless.
///
/// # Panics
/// If a slice has too few elements, or a kernel with groups cannot be lowered.
///
/// ```
/// use vmarray_kernel::{kernel, At, Own, run_on_host};
///
/// #[kernel(crate = vmarray_kernel)]
/// fn number(at: At<1>, out: &mut Own<u64>) {
///     out.set(at.index() as u64);
/// }
/// let mut out = [0; 2];
/// run_on_host::<number>(5..7, ((), &mut out))?;
/// assert_eq!(out, [5, 6]);
/// # Ok::<_, vmarray_kernel::OutOfBounds>(())
/// ```
pub fn run_on_host<K: Kernel>(items: Range<usize>, sources: K::Sources<'_>) -> Result<(), OutOfBounds> {
    if K::group_len().is_some() {
        let report = interpret::<K>(items, sources).unwrap_or_else(|error| panic!("{error}"));
        let outside = OutOfBounds { count: report.failures, index: report.detail };
        return if report.failures == 0 { Ok(()) } else { Err(outside) };
    }
    let mut bound = K::bound(sources);
    bounds_report::take();
    for (number, index) in items.enumerate() {
        bounds_report::begin(PRIVATE_HEAP_BYTES);
        K::run_item(&mut bound, Item { number, index });
    }
    bounds_report::take().map_or(Ok(()), Err)
}

/// Runs a kernel without groups as a Rust function, on devices that compute on the CPU. Pass `host_form` to
/// `backend_api::kernel::VerifiedKernel::with_host`. The device then calls the kernel function for each item
/// (GPU thread), instead of interpreting its [lowered](crate::lower) code.
///
/// ```
/// use backend_api::kernel::HostForm;
/// use vmarray_kernel::{host_form, kernel, lower, Own};
///
/// #[kernel(crate = vmarray_kernel)]
/// fn double(out: &mut Own<u32>) {
///     out.set(out.get() * 2);
/// }
/// let kernel = backend_api::kernel::VerifiedKernel::new(lower::<double>()?.body)?;
/// let kernel = kernel.with_host(host_form::<double>);
/// assert!(kernel.host().is_some());
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
pub fn host_form<K: Kernel>(items: &HostItems<'_>) -> Report {
    run_form::<K>(items, 1, false)
}

/// Runs a kernel like [`host_form`], and also stores the value that each item (GPU thread) returns, like the
/// lowered code of [`lower_returning`](crate::lower_returning).
///
/// ```
/// use backend_api::kernel::HostForm;
/// use vmarray_kernel::{At, host_form_returning, kernel, lower_returning};
///
/// #[kernel(crate = vmarray_kernel)]
/// fn index(at: At<1>) -> u64 {
///     at.index() as u64
/// }
/// let kernel = backend_api::kernel::VerifiedKernel::new(lower_returning::<index>()?.body)?;
/// assert!(kernel.with_host(host_form_returning::<index>).host().is_some());
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
pub fn host_form_returning<K: Kernel>(items: &HostItems<'_>) -> Report {
    run_form::<K>(items, 1, true)
}

/// Returns a function like [`host_form`] for a result with `axes` axes; 0 means the number of axes of the
/// kernel's [`At`](crate::At). Returns `None` for more than four axes. If `returns` is true, returns a
/// function like [`host_form_returning`], which stores returned values.
pub fn host_form_of<K: Kernel>(axes: usize, returns: bool) -> Option<HostForm> {
    fn of<K: Kernel, const N: usize>(returns: bool) -> HostForm {
        if returns { |items| run_form::<K>(items, N, true) } else { |items| run_form::<K>(items, N, false) }
    }
    let own = || K::parameters().iter().find_map(ParameterInfo::axes);
    Some(match if axes == 0 { own().unwrap_or(1) } else { axes } {
        1 => of::<K, 1>(returns),
        2 => of::<K, 2>(returns),
        3 => of::<K, 3>(returns),
        4 => of::<K, 4>(returns),
        _ => return None,
    })
}

/// Runs a kernel for any number of axes: one function, compiled only once for each kernel.
#[inline(never)]
fn run_form<K: Kernel>(items: &HostItems<'_>, axes: usize, returns: bool) -> Report {
    let mut given = LaunchArguments::new(items, axes, returns);
    let mut is_item = given.is_item(axes);
    let mut bound = K::given(&mut given);
    let mut report = Report::default();
    let form = || LaunchVariant { axes, returns, ..LaunchVariant::default() };
    bounds_report::take();
    let late = turns::limited(items.time_limit(), &mut || {
        for (run, first) in items.runs() {
            for start in run.clone().step_by(BLOCK_ITEMS) {
                let block = start..run.end.min(start + BLOCK_ITEMS as u64);
                K::begin(&mut bound, &block);
                let index = (first + (start - run.start)) as usize;
                for (number, index) in (block.start as usize..block.end as usize).zip(index..) {
                    if is_item.as_mut().is_some_and(|is_item| !is_item(index)) {
                        continue;
                    }
                    bounds_report::begin(items.private_heap_bytes());
                    turns::item(number as u64, || K::run_item(&mut bound, Item { number, index }));
                    if bounds_report::take().is_some() {
                        let first = (report.failures == 0).then(form);
                        let failed = failed(lower_for::<K>, items, number as u64, first, items.budget());
                        report = report.and(failed);
                    }
                }
                K::end(&mut bound);
            }
        }
    });
    bounds_report::take();
    let late = late.map(|item| failed(lower_for::<K>, items, item, Some(form()), Some(SEARCHED_TURNS)));
    late.map_or(report, |late| report.and(Report::time_over(late.site, late.item)))
}

/// Returns the report of failed items before their elements are stored. It contains the first failed item,
/// with the operation in its lowered code.
#[cold]
fn failed(
    lower: fn(&LaunchVariant) -> Result<LoweredKernel, Error>,
    items: &HostItems<'_>,
    item: u64,
    first: Option<LaunchVariant>,
    budget: Option<u64>,
) -> Report {
    let here = Report { failures: 1, site: 0, detail: 0, item };
    let lowered = first.and_then(|mut form| {
        let like = lower(&form).ok()?;
        let is_ordered =
            |view: usize, parameter: usize| match like.parameters.get(parameter).map(|of| &of.kind) {
                Some(ParameterKind::Append(of)) => {
                    items.view(view).stride() == numbered(of.clone()).bytes() as u64
                }
                _ => false,
            };
        let views = like.views.iter().enumerate().filter(|(view, parameter)| is_ordered(*view, **parameter));
        form.ordered = views.map(|(_, parameter)| *parameter).collect();
        lower(&form.of_launch(&like.scalars, &|number| items.param(number))).ok()
    });
    let kernel = lowered.and_then(|lowered| backend_api::kernel::VerifiedKernel::new(lowered.body).ok());
    kernel
        .map(|kernel| items.report_within(&kernel, item, budget))
        .filter(|report| report.failures > 0)
        .unwrap_or(here)
}
