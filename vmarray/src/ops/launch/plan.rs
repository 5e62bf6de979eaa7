//! A launch: what devices are given for each run of elements, and what they report.

use std::ops::Range;

use backend_api::expr::Geometry;
use backend_api::kernel::{KernelFacts, Op, Report};
use backend_api::{Device, Elements, HostSpan, Launch, Queue, Ticket, View};
use parking_lot::{Mutex, RwLock};
use vmarray_kernel::{ParameterInfo, ParameterKind, ScalarSource};

use super::arguments::{AppendTo, Bound};
use super::kernel::PreparedKernel;
use super::options::Options;
use super::reduce::Reduction;
use super::spread::{DealtArgument, DeviceCopies, FromZero, Inside, Room, SpreadArgument, copy_around};
use crate::base::error::{ErrorKind, Result, expect_len};
use crate::engine::pager::Pager;
use crate::ops::executor::{Change, Examination, Operand, OperandStore, Run, STAGED_BYTES};

/// What a launch is for, beside what the kernel changes.
pub(super) enum Wanted<'r> {
    Nothing,
    /// What items return.
    Reduced(&'r mut Reduction),
    /// What the device that has the first element says of the kernel; which is not run.
    Facts(&'r mut Option<KernelFacts>),
}

/// Runs a kernel for each element of its results. Arguments come in the order of its parameters, but for
/// places.
pub(super) fn run(
    kernel: &PreparedKernel,
    arguments: Vec<Bound<'_>>,
    options: &Options,
    wanted: Wanted<'_>,
) -> Result<()> {
    let parameters = &kernel.lowered.parameters;
    let mut values = vec![Vec::new(); parameters.len()];
    // With an element for each item; read by many items, and which elements of stores these are.
    let (mut columns, mut spread, mut elsewhere) = (Vec::new(), Vec::new(), Vec::new());
    let (mut appended, mut all) = (Vec::new(), Vec::new());
    let is_given = |of: &ParameterInfo| !matches!(of.kind, ParameterKind::At(_) | ParameterKind::Group(_));
    let numbered = parameters.iter().enumerate().filter(|(_, parameter)| is_given(parameter));
    for ((number, ParameterInfo { name, .. }), argument) in numbered.zip(arguments) {
        match argument {
            Bound::Values(of) => values[number] = of,
            Bound::Own(operand, len) => columns.push(OwnArgument { number, name, operand, len }),
            Bound::All(operand, len) => {
                elsewhere.push(OwnArgument { number, name, operand, len });
                all.push((number, operand, len));
            }
            Bound::Shared(operand, len) => {
                elsewhere.push(OwnArgument { number, name, operand, len });
                spread.push(SpreadArgument {
                    number,
                    of: Box::new(Inside { operand, len }),
                    halo: None,
                    len,
                });
            }
            Bound::Append(to, most, stride) => {
                spread.push(SpreadArgument { number, of: Box::new(FromZero), halo: None, len: 1 });
                appended.push((spread.len(), to));
                spread.push(SpreadArgument { number, of: Box::new(Room(stride)), halo: None, len: most });
            }
            Bound::Around(of, halo, (operand, len)) => {
                elsewhere.push(OwnArgument { number, name, operand, len });
                spread.push(SpreadArgument { number, of, halo: Some(halo), len });
            }
        }
    }
    let has_result = |arguments: &[OwnArgument<'_>]| {
        arguments.iter().position(|argument| argument.operand.target.is_some())
    };
    let refused = |reason: &str| {
        let kernel = kernel.lowered.name.into();
        Err(ErrorKind::KernelRefused { kernel, reason: reason.into() }.into())
    };
    // The first result says where the work is done, and comes first; the first argument, if there is none.
    let first = has_result(&columns);
    if first.is_none()
        && has_result(&elsewhere).is_none()
        && appended.is_empty()
        && matches!(wanted, Wanted::Nothing)
    {
        return refused(
            "it has no result: take a `&mut Own<T>`, `&Shared<T>` or `&Append<T>`, or reduce what items return",
        );
    }
    if let Some(first) = first {
        columns[..=first].rotate_right(1);
    }
    let Some((&OwnArgument { operand: Operand { store, start, target }, len, .. }, others)) =
        columns.split_first()
    else {
        return refused("it runs for no elements: take an `&Own<T>` or a `&mut Own<T>`");
    };
    others.iter().try_for_each(|other| expect_len(other.name, len, other.len))?;
    apart(kernel, &columns, &elsewhere)?;
    if len == 0 {
        return Ok(());
    }
    let mut dealt = Vec::new();
    for (number, operand, len) in all {
        match DealtArgument::new(number, &operand, len, store) {
            Some(argument) => dealt.push(argument),
            None => {
                let of = Box::new(Inside { operand, len });
                spread.push(SpreadArgument { number, of, halo: None, len });
            }
        }
    }
    let view = |(number, parameter): (usize, &usize)| {
        if let Some(at) = dealt.iter().position(|argument| argument.number == *parameter) {
            return Some(ViewPlace::Dealt(at));
        }
        let column = columns.iter().position(|column| column.number == *parameter);
        // Of what is appended there are two: the counter, and elements.
        let before = kernel.lowered.views[..number].iter().filter(|other| *other == parameter).count();
        if *parameter == parameters.len() {
            return Some(ViewPlace::Returned(before));
        }
        let own = spread.iter().enumerate().filter(|(_, argument)| argument.number == *parameter);
        column.map(ViewPlace::Column).or_else(|| own.map(|own| ViewPlace::Spread(own.0)).nth(before))
    };
    let scalar = |source: &ScalarSource| match *source {
        ScalarSource::Value { parameter, position } => values[parameter][position],
        ScalarSource::Origin => start as u64,
        // As it is for each part.
        ScalarSource::First { .. } => 0,
        ScalarSource::Length { parameter } => {
            let own = spread.iter().find(|argument| argument.number == parameter);
            let dealt = dealt.iter().find(|argument| argument.number == parameter);
            let own = own.map(|argument| argument.len).or(dealt.map(|argument| argument.len));
            own.unwrap_or(len) as u64
        }
    };
    let devices = if spread.is_empty() { Vec::new() } else { store.devices() };
    if devices.len() > 1 && has_result(&elsewhere).is_some() {
        return refused("its `Shared` elements would be on several devices: run it over elements of one");
    }
    let several = devices.len() > 1;
    let copies = devices
        .into_iter()
        .map(|(device, counters)| DeviceCopies::new(device, counters, &spread, len, several));
    let found = Mutex::default();
    let (reduction, mut facts) = match wanted {
        Wanted::Nothing => (None, None),
        Wanted::Reduced(reduction) => {
            reduction.start = start;
            (Some(&*reduction), None)
        }
        Wanted::Facts(facts) => (None, Some(facts)),
    };
    let launching = Launching {
        kernel,
        views: kernel.lowered.views.iter().enumerate().filter_map(view).collect(),
        params: kernel.lowered.scalars.iter().map(scalar).collect(),
        table: kernel.lowered.table_bytes(|parameter| &values[parameter]),
        start,
        devices: RwLock::new(copies.collect::<Result<_>>()?),
        spread,
        dealt,
        options,
        reduction,
        facts: facts.is_some().then_some(&found),
        reported: Mutex::default(),
    };
    let others: Vec<_> = others.iter().map(|other| other.operand).collect();
    let range = start..start + len;
    if let Some(facts) = &mut facts {
        launching.examine(store, &others, &(start..start + 1))?;
        **facts = *found.lock();
        return Ok(());
    }
    match target {
        Some(target) => target.change(&others, &range, &launching),
        None => launching.examine(store, &others, &range),
    }
    .and_then(|()| launching.reduction_outcome(&range, target.is_some()))
    .map_err(|error| error.counted_from(start))?;
    for argument in elsewhere.iter().filter(|argument| argument.operand.target.is_some()) {
        launching.write_back(argument)?;
    }
    for (elements, to) in &mut appended {
        launching.append(*elements, &mut **to)?;
    }
    launching.result()
}

/// An argument that is a range of a store: with an element for each item, as a rule.
struct OwnArgument<'a> {
    /// The number of its parameter.
    number: usize,
    name: &'static str,
    operand: Operand<'a>,
    len: usize,
}

/// Refuses results that are something else, too: items would read or write what others write.
fn apart(kernel: &PreparedKernel, columns: &[OwnArgument<'_>], elsewhere: &[OwnArgument<'_>]) -> Result<()> {
    let is_same = |one: &OwnArgument<'_>, two: &OwnArgument<'_>| {
        std::ptr::addr_eq(one.operand.store, two.operand.store)
            && one.operand.start < two.operand.start + two.len
            && two.operand.start < one.operand.start + one.len
    };
    let all = || columns.iter().chain(elsewhere);
    for one in all().filter(|argument| argument.operand.target.is_some()) {
        let mut others = all().filter(|other| other.number != one.number);
        if let Some(other) = others.find(|other| is_same(one, other)) {
            let (kernel, result, argument) = (kernel.lowered.name.into(), one.name.into(), other.name.into());
            return Err(ErrorKind::KernelOverlap { kernel, result, argument }.into());
        }
    }
    Ok(())
}

/// Where the elements of a view are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ViewPlace {
    /// In a column of each run.
    Column(usize),
    /// Copied to the device.
    Spread(usize),
    /// In home slots on the device.
    Dealt(usize),
    /// In memory for a scalar of what items return.
    Returned(usize),
}

/// A kernel with all that does not differ from run to run.
struct Launching<'a> {
    kernel: &'a PreparedKernel,
    /// For each view of the kernel.
    views: Vec<ViewPlace>,
    params: Vec<u64>,
    table: Vec<u8>,
    /// The place of the first item in the store.
    start: usize,
    spread: Vec<SpreadArgument<'a>>,
    dealt: Vec<DealtArgument<'a>>,
    options: &'a Options,
    reduction: Option<&'a Reduction>,
    facts: Option<&'a Mutex<Option<KernelFacts>>>,
    /// What devices have of those.
    devices: RwLock<Vec<DeviceCopies<'a>>>,
    /// What was reported, and the place of the item that is named.
    reported: Mutex<(Report, u64)>,
}

impl Launching<'_> {
    /// Has something done with the launch of a run, whose items return to some memory.
    fn with<R>(
        &self,
        device: &dyn Device,
        run: Run<'_>,
        report: HostSpan<'_>,
        returned: &[Elements<'_>],
        work: impl FnOnce(&Launch<'_>) -> backend_api::Result<R>,
    ) -> backend_api::Result<R> {
        let devices = self.devices.read();
        let copies = devices.iter().find(|copies| copies.is_on(device));
        let (mut params, mut views) = (self.params.clone(), Vec::with_capacity(self.views.len()));
        for place in &self.views {
            views.push(match place {
                ViewPlace::Dealt(number) => self.dealt[*number].view(),
                ViewPlace::Column(column) => View::Run(run.columns[*column]),
                ViewPlace::Returned(scalar) => View::Run(returned[*scalar]),
                ViewPlace::Spread(number) => {
                    let argument = &self.spread[*number];
                    let stride = argument.of.stride() as u64;
                    let copied = copies.and_then(|copies| copies.elements(*number, stride));
                    let Some((elements, first)) = copied else { unreachable!("it was copied before") };
                    let source = ScalarSource::First { parameter: argument.number };
                    let of_first = self.kernel.lowered.scalars.iter().position(|scalar| *scalar == source);
                    of_first.into_iter().for_each(|number| params[number] = first as u64);
                    View::Run(elements)
                }
            });
        }
        work(&Launch {
            views: &views,
            params: &params,
            table: &self.table,
            arena_bytes: self.options.arena_bytes,
            budget: self.options.budget,
            ..Launch::new(&self.kernel.kernel, run.count() as u64, run.geometry, report)
        })
    }

    /// Runs it for elements that it does not change, some at a time if windows are copied for them.
    fn examine(&self, store: &dyn OperandStore, others: &[Operand<'_>], range: &Range<usize>) -> Result<()> {
        let at_once = STAGED_BYTES.checked_div(self.part_stride()).map_or(range.len(), |most| most.max(1));
        for start in range.clone().step_by(at_once) {
            let part = start..range.end.min(start + at_once);
            self.begin_part(&part)?;
            let others: Vec<_> = others.iter().map(|other| other.further(start - range.start)).collect();
            store.examine(&others, &part, &Examination(self))?;
        }
        Ok(())
    }

    /// Writes elements that any item has changed where they belong.
    fn write_back(&self, argument: &OwnArgument<'_>) -> Result<()> {
        let number = self.spread.iter().position(|spread| spread.number == argument.number);
        let (Some(number), Some(target)) = (number, argument.operand.target) else { return Ok(()) };
        for device in &*self.devices.read() {
            let bytes = device.download(number, argument.len * argument.operand.stride())?;
            target.write_bytes(argument.operand.start, &bytes)?;
        }
        Ok(())
    }

    /// Appends what items have, whose counter is the argument before.
    fn append(&self, elements: usize, to: &mut dyn AppendTo) -> Result<()> {
        for device in &*self.devices.read() {
            let mut count = [0; 8];
            count.copy_from_slice(&device.download(elements - 1, 8)?);
            let room = &self.spread[elements];
            let count = u64::from_ne_bytes(count).min(room.len as u64) as usize;
            to.append(&device.download(elements, count * room.of.stride())?);
        }
        Ok(())
    }

    /// The window that an operation reads.
    fn window_read_at(&self, site: u32) -> Option<usize> {
        let Op::Load { view, .. } = self.kernel.kernel.body().operation(site)? else { return None };
        let ViewPlace::Spread(number) = self.views[usize::from(*view)] else { return None };
        self.spread[number].halo.map(|_| number)
    }

    /// A report with the index that the kernel has seen: in windows that is not the number of the element.
    fn located(&self, report: Report) -> Report {
        let Some(window) = self.window_read_at(report.site) else { return report };
        let devices = self.devices.read();
        // All devices have the same part.
        let copied = devices.first().and_then(|device| device.elements(window, 1));
        let first = copied.map_or(0, |(_, first)| first);
        Report { detail: report.detail.wrapping_add(first as u64), ..report }
    }

    /// What became of all items.
    fn result(&self) -> Result<()> {
        let (report, place) = *self.reported.lock();
        let item = (place as usize).wrapping_sub(self.start);
        let outcome = self.kernel.outcome(report, item, self.options);
        outcome.map_err(|mut error| {
            if self.window_read_at(report.site).is_some()
                && let ErrorKind::KernelOutside { index, .. } = &mut error
            {
                *index = report.detail.cast_signed().into();
            }
            error.into()
        })
    }

    /// What has become of work that was submitted before that which was waited for.
    fn reduction_outcome(&self, range: &Range<usize>, has_result: bool) -> Result<()> {
        let Some(Err(cause)) = self.reduction.map(Reduction::outcome) else { return Ok(()) };
        Err(match has_result {
            true => {
                let (written, unspecified) = (Vec::new(), vec![range.clone()]);
                ErrorKind::Interrupted { written, unspecified, cause }
            }
            false => ErrorKind::Device(cause),
        }
        .into())
    }

    fn note(&self, geometry: Geometry, report: Report) {
        let new = self.located(report);
        let mut reported = self.reported.lock();
        let (old, place) = *reported;
        let place = if old.failures == 0 { geometry.index(new.item) } else { place };
        *reported = (old.and(new), place);
    }
}

impl Change for Launching<'_> {
    fn overwrites(&self, element_bytes: usize) -> bool {
        self.views
            .iter()
            .position(|place| *place == ViewPlace::Column(0))
            .is_some_and(|view| self.kernel.overwrites(view, element_bytes))
    }

    fn is_for_some_devices(&self) -> bool {
        true
    }

    fn part_stride(&self) -> usize {
        let windows = self.spread.iter().filter(|argument| argument.halo.is_some());
        windows.map(|argument| argument.of.stride()).max().unwrap_or(0)
    }

    fn begin_part(&self, part: &Range<usize>) -> Result<()> {
        let items = part.start - self.start..part.end - self.start;
        copy_around(&mut self.devices.write(), &self.spread, &items)
    }

    fn dealt(&self) -> Vec<(&Pager, Range<u64>)> {
        self.dealt.iter().map(|argument| (argument.pager, argument.pages())).collect()
    }

    fn report_bytes(&self, count: usize) -> usize {
        self.reduction.map_or(Report::BYTES as usize, |reduction| reduction.report_bytes(count))
    }

    fn is_rounded(&self) -> bool {
        self.reduction.is_some_and(Reduction::is_rounded)
    }

    fn prepare(&self, device: &dyn Device, run: Run<'_>, report: Option<HostSpan<'_>>) {
        let Some(report) = report else { return };
        let prepare = |run: Run<'_>, returned: &[Elements<'_>]| {
            let _ = self.with(device, run, report, returned, |launch| device.prepare_launches(&[*launch]));
        };
        match self.reduction {
            Some(reduction) => reduction.prepare(device, run, report, prepare),
            None => prepare(run, &[]),
        }
    }

    fn submit(
        &self,
        queue: &Queue<dyn Device>,
        run: Run<'_>,
        report: Option<HostSpan<'_>>,
    ) -> backend_api::Result<Ticket> {
        let Some(report) = report else { unreachable!("launches have reports") };
        if let Some(facts) = self.facts {
            let device = queue.device();
            let told = self.with(&**device, run, report, &[], |launch| device.kernel_facts(launch))?;
            *facts.lock() = Some(told);
            return queue.submit(&[]);
        }
        let launch = |run: Run<'_>, report: HostSpan<'_>, returned: &[Elements<'_>]| {
            self.with(&**queue.device(), run, report, returned, |launch| queue.launch(launch))
        };
        match self.reduction {
            Some(reduction) => reduction.submit(queue, run, report, launch),
            None => launch(run, report, &[]),
        }
    }

    fn take_report(&self, geometry: Geometry, report: &[u64]) {
        if self.facts.is_some() {
            return;
        }
        match self.reduction {
            Some(reduction) => {
                let pieces = reduction.take(geometry, report);
                pieces.into_iter().for_each(|(geometry, report)| self.note(geometry, report));
            }
            None => {
                if let Ok(words) = report.try_into() {
                    self.note(geometry, Report::from_words(words));
                }
            }
        }
    }
}
