//! A launch: what devices are given for each run of elements, and what they report.

use backend_api::expr::Geometry;
use backend_api::kernel::Report;
use backend_api::{Device, HostSpan, Launch, Queue, Ticket, View};
use parking_lot::Mutex;
use vmarray_kernel::{ParameterInfo, ParameterKind, ScalarSource};

use super::arguments::Bound;
use super::kernel::PreparedKernel;
use crate::base::error::{ErrorKind, Result, expect_len};
use crate::ops::executor::{Change, Operand, Run};

/// Runs a kernel for each element of its results. Arguments come in the order of its parameters, but for
/// places.
pub(super) fn run(kernel: &PreparedKernel, arguments: Vec<Bound<'_>>) -> Result<()> {
    let parameters = &kernel.lowered.parameters;
    let is_given = |parameter: &&ParameterInfo| !matches!(parameter.kind, ParameterKind::At(_));
    let mut values = vec![Vec::new(); parameters.len()];
    let mut columns: Vec<OwnArgument<'_>> = Vec::new();
    let numbered = parameters.iter().enumerate().filter(|(_, parameter)| is_given(parameter));
    for ((number, parameter), argument) in numbered.zip(arguments) {
        match argument {
            Bound::Values(of) => values[number] = of,
            Bound::Own(operand, len) => {
                columns.push(OwnArgument { number, name: parameter.name, operand, len })
            }
        }
    }
    // The first result says where the work is done, and comes first.
    let Some(first) = columns.iter().position(|column| column.operand.target.is_some()) else {
        let reason = "it has no result: take a `&mut Own<T>`".into();
        let kernel = kernel.lowered.name.into();
        return Err(ErrorKind::KernelRefused { kernel, reason }.into());
    };
    columns[..=first].rotate_right(1);
    let Some((&OwnArgument { operand: Operand { start, target: Some(target), .. }, len, .. }, others)) =
        columns.split_first()
    else {
        unreachable!("there is a result");
    };
    others.iter().try_for_each(|other| expect_len(other.name, len, other.len))?;
    apart(kernel, &columns)?;
    if len == 0 {
        return Ok(());
    }
    let column_of = |parameter: &usize| columns.iter().position(|column| column.number == *parameter);
    let launching = Launching {
        kernel,
        columns: kernel.lowered.views.iter().filter_map(column_of).collect(),
        params: kernel
            .lowered
            .scalars
            .iter()
            .map(|source| match *source {
                ScalarSource::Value { parameter, position } => values[parameter][position],
                ScalarSource::Origin => start as u64,
                ScalarSource::Length { .. } => len as u64,
            })
            .collect(),
        table: kernel.lowered.table_bytes(|parameter| &values[parameter]),
        reported: Mutex::default(),
    };
    let others: Vec<_> = others.iter().map(|other| other.operand).collect();
    target.change(&others, &(start..start + len), &launching).map_err(|error| error.counted_from(start))?;
    launching.into_result(start)
}

/// An argument with an element for each item.
struct OwnArgument<'a> {
    /// The number of its parameter.
    number: usize,
    name: &'static str,
    operand: Operand<'a>,
    len: usize,
}

/// Refuses results that are something else, too: items would read or write what others write.
fn apart(kernel: &PreparedKernel, columns: &[OwnArgument<'_>]) -> Result<()> {
    let is_same = |one: &OwnArgument<'_>, two: &OwnArgument<'_>| {
        std::ptr::addr_eq(one.operand.store, two.operand.store)
            && one.operand.start < two.operand.start + two.len
            && two.operand.start < one.operand.start + one.len
    };
    for (at, one) in columns.iter().enumerate().filter(|(_, column)| column.operand.target.is_some()) {
        let mut others = columns.iter().enumerate().filter(|(other, _)| *other != at);
        if let Some((_, other)) = others.find(|(_, other)| is_same(one, other)) {
            let (kernel, result, argument) = (kernel.lowered.name.into(), one.name.into(), other.name.into());
            return Err(ErrorKind::KernelOverlap { kernel, result, argument }.into());
        }
    }
    Ok(())
}

/// A kernel with all that does not differ from run to run.
struct Launching<'a> {
    kernel: &'a PreparedKernel,
    /// For each view of the kernel the number of the column.
    columns: Vec<usize>,
    params: Vec<u64>,
    table: Vec<u8>,
    /// What was reported, and the place of the item that is named.
    reported: Mutex<(Report, u64)>,
}

impl Launching<'_> {
    /// Has something done with the launch of a run.
    fn with<R>(
        &self,
        run: Run<'_>,
        report: Option<HostSpan<'_>>,
        work: impl FnOnce(&Launch<'_>) -> backend_api::Result<R>,
    ) -> backend_api::Result<R> {
        let Some(report) = report else { unreachable!("launches have reports") };
        let views: Vec<_> = self.columns.iter().map(|column| View::Run(run.columns[*column])).collect();
        work(&Launch {
            views: &views,
            params: &self.params,
            table: &self.table,
            ..Launch::new(&self.kernel.kernel, run.count() as u64, run.geometry, report)
        })
    }

    /// What became of all items, of which the first has a place.
    fn into_result(self, start: usize) -> Result<()> {
        let (report, place) = self.reported.into_inner();
        if report.failures == 0 {
            return Ok(());
        }
        Err(ErrorKind::KernelOutside {
            kernel: self.kernel.lowered.name.into(),
            place: self
                .kernel
                .lowered
                .place_of(report.site)
                .map(|place| place.to_string())
                .unwrap_or_default(),
            index: report.detail,
            item: place as usize - start,
            items: report.failures,
        }
        .into())
    }
}

impl Change for Launching<'_> {
    fn overwrites(&self, element_bytes: usize) -> bool {
        self.columns
            .iter()
            .position(|column| *column == 0)
            .is_some_and(|view| self.kernel.overwrites(view, element_bytes))
    }

    fn is_for_some_devices(&self) -> bool {
        true
    }

    fn report_bytes(&self) -> usize {
        Report::BYTES as usize
    }

    fn prepare(&self, device: &dyn Device, run: Run<'_>, report: Option<HostSpan<'_>>) {
        let _ = self.with(run, report, |launch| device.prepare_launches(&[*launch]));
    }

    fn submit(
        &self,
        queue: &Queue<dyn Device>,
        run: Run<'_>,
        report: Option<HostSpan<'_>>,
    ) -> backend_api::Result<Ticket> {
        self.with(run, report, |launch| queue.launch(launch))
    }

    fn take_report(&self, geometry: Geometry, report: &[u64]) {
        let Ok(words) = report.try_into() else { return };
        let new = Report::from_words(words);
        let mut reported = self.reported.lock();
        let (old, place) = *reported;
        let place = if old.failures == 0 { geometry.index(new.item) } else { place };
        *reported = (old.and(new), place);
    }
}
