//! Kernels on the host.

use crate::interpret::Argument;
use crate::outside::{self, Outside};
use crate::slots::Define;
use crate::views::{Item, ParameterInfo};
use std::ops::Range;

/// A kernel function that can be launched, as a type. `#[kernel]` implements it for functions that take
/// [`At`](crate::At), [`Own`](crate::Own) or [`Anywhere`](crate::Anywhere).
///
/// ```
/// use vmarray_kernel::{kernel, Kernel, Own, run_on_host};
///
/// #[kernel(crate = vmarray_kernel)]
/// fn scale(by: f32, out: &mut Own<f32>) {
///     out.set(out.get() * by);
/// }
///
/// fn doubled<K>(mut values: [f32; 2]) -> [f32; 2]
/// where
///     K: for<'s> Kernel<Sources<'s> = (f32, &'s mut [f32])>,
/// {
///     run_on_host::<K>(0..2, (2.0, &mut values)).expect("it reads nothing outside");
///     values
/// }
/// assert_eq!(doubled::<scale>([1.0, 2.5]), [2.0, 5.0]);
/// assert_eq!(scale::parameters()[0].name, "by");
/// ```
pub trait Kernel: Define {
    /// What the host takes the parameters from, in their order: nothing for [`At`](crate::At), values for
    /// values, slices of all items that run for [`Own`](crate::Own), of all elements for
    /// [`Anywhere`](crate::Anywhere).
    type Sources<'s>;

    /// The parameters.
    fn parameters() -> Vec<ParameterInfo>;

    /// Runs one item.
    #[doc(hidden)]
    fn run_item(sources: &mut Self::Sources<'_>, item: Item);

    /// What a launch is given.
    #[doc(hidden)]
    fn arguments(sources: Self::Sources<'_>) -> Vec<Argument<'_>>;
}

/// Runs a kernel for the items of a range, one after the other, on this thread. The slices of
/// [`Own`](crate::Own) parameters have an element for each item of the range.
///
/// # Errors
/// What was accessed outside of arrays. All items have run.
///
/// # Panics
/// If a slice has too few elements.
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
/// # Ok::<_, vmarray_kernel::Outside>(())
/// ```
pub fn run_on_host<K: Kernel>(items: Range<usize>, sources: K::Sources<'_>) -> Result<(), Outside> {
    let mut sources = sources;
    outside::take();
    for (number, index) in items.enumerate() {
        K::run_item(&mut sources, Item { number, index });
    }
    outside::take().map_or(Ok(()), Err)
}
