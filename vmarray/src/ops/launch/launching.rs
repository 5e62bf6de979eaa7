//! State of one launch over arrays, sources: submits the kernel for each run (contiguous elements on a
//! device), and collects the outcome.

use std::ops::Range;

use backend_api::expr::Geometry;
use backend_api::kernel::{KernelFacts, Report};
use backend_api::{Device, Elements, HostSpan, Launch, LaunchView, Request, Ticket};
use parking_lot::{Mutex, RwLock};
use vmarray_kernel::ScalarSource;

use super::arguments::AppendTo;
use super::broadcast::{BroadcastArgument, DeviceCopies, StripedArgument, copy_around, of_box};
use super::plan::LaunchPlan;
use super::reduce::Reduction;
use super::reordered::Reordered;
use super::tiles::Band;
use crate::base::error::{ErrorKind, Result};
use crate::engine::pager::Pager;
use crate::ops::executor::{
    Change, Examination, Operand, OperandStore, ResultStore, Run, STAGED_BYTES, WorkQueue,
};
use crate::ops::view::StoredBox;

/// An argument with one element for each work-item.
pub(super) struct LaunchColumn<'a> {
    /// Index of the kernel parameter that the elements belong to.
    pub number: usize,
    pub operand: Operand<'a>,
    /// The same elements, reordered to the storage order of the first operand, if their order differs.
    pub reordered: Option<Reordered<'a>>,
}

/// An argument whose elements any work-item may change.
pub(super) struct SharedResult<'a> {
    /// Index of the result among the arguments that are copied to devices.
    pub elements: usize,
    pub target: &'a dyn ResultStore,
    pub range: Range<usize>,
}

/// Results that devices write to copies of the arguments, and that the launch copies back afterwards.
pub(super) struct CopiedResults<'a> {
    pub shared: Vec<SharedResult<'a>>,
    pub appended: Vec<AppendArgument<'a>>,
}

pub(super) struct AppendArgument<'a> {
    /// Index of the appended elements among the copied arguments. Their counter has the preceding index.
    pub elements: usize,
    /// Index of the kernel parameter that the argument belongs to.
    pub number: usize,
    pub name: &'static str,
    pub to: Box<dyn AppendTo + 'a>,
    pub most: usize,
    /// True if the appended elements must be in the order of work-items (GPU threads). The device then stores
    /// the work-item's index in front of each element.
    pub is_ordered: bool,
}

/// The location of the elements of a kernel's view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ViewPlace {
    /// The column of each run with this index.
    Column(usize),
    /// The copy on the device of the argument with this index.
    Broadcast(usize),
    /// The home slots of the argument with this index, which is read in place.
    Striped(usize),
    /// Memory for the scalar with this index in the return values.
    Returned(usize),
    /// Scratch memory for results in the order of tiles: the copied argument with this index.
    Tiles(usize),
}

/// A launch: its plan, the location of its arguments, and the state of its execution.
pub(super) struct Launching<'a> {
    pub plan: LaunchPlan<'a>,
    /// The location of the elements of each view of the kernel: a column, a copy, or home slots (places of
    /// pages in device memory).
    pub views: Vec<ViewPlace>,
    /// Positions in storage of the elements that belong to the work-items (GPU threads).
    pub domain: StoredBox,
    pub spread: Vec<BroadcastArgument<'a>>,
    pub striped: Vec<StripedArgument<'a>>,
    pub reduction: Option<&'a Reduction>,
    /// Properties of the compiled kernel, if the caller requests only these instead of a launch.
    pub facts: Option<Mutex<Option<KernelFacts>>>,
    /// The copies of arguments in the memory of each device.
    pub devices: RwLock<Vec<DeviceCopies<'a>>>,
    /// The merged report of the work-items (GPU threads) that have run so far, and the index of a failed one.
    pub reported: Mutex<(Report, u64)>,
    /// The band (rows of tiles) that is processed at present, if work-groups are tiles.
    pub band: Option<Band>,
}

impl Launching<'_> {
    /// Runs the kernel over all work-items (GPU threads). If device memory for appended elements was too
    /// small, runs the kernel again.
    pub fn run(&mut self, columns: &[LaunchColumn<'_>], results: &CopiedResults<'_>) -> Result<()> {
        let (range, Operand { store, target, .. }) = (self.domain.range(), columns[0].operand);
        let others = columns[1..].iter().map(|column| match &column.reordered {
            Some(reordered) => Operand::new(reordered, range.start),
            None => column.operand,
        });
        let others: Vec<_> = others.collect();
        if self.facts.is_some() {
            return self.examine(store, &others, &(range.start..range.start + 1));
        }
        loop {
            match target {
                Some(target) => target.change(&others, &range, &*self),
                None => self.examine(store, &others, &range),
            }
            .and_then(|()| self.reduction_outcome(&range, target.is_some()))
            .map_err(|error| self.in_time().err().unwrap_or_else(|| error.counted_from(range.start)))?;
            self.in_time()?;
            if !self.has_more_room(&results.appended)? {
                return Ok(());
            }
            self.begin_anew(results);
        }
    }

    /// Calls a function with the device request that launches the kernel on a run. Work-items write return
    /// values to the given memory.
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
        let copied = |number: usize| {
            let stride = self.spread[number].of.stride() as u64;
            let copied = copies.and_then(|copies| copies.elements(number, stride));
            copied.unwrap_or_else(|| unreachable!("an earlier step has copied the argument"))
        };
        let count = run.count() as u64;
        let mut params = self.plan.params_of(run.geometry, count);
        let mut views = Vec::with_capacity(self.views.len());
        for place in &self.views {
            views.push(match place {
                ViewPlace::Striped(number) => self.striped[*number].view(),
                ViewPlace::Column(column) => LaunchView::Run(run.columns[*column]),
                ViewPlace::Returned(scalar) => LaunchView::Run(returned[*scalar]),
                ViewPlace::Tiles(number) => {
                    let Elements { start, stride, .. } = copied(*number).0;
                    LaunchView::Run(Elements {
                        start: start.plus(run.geometry.first * stride),
                        count,
                        stride,
                    })
                }
                ViewPlace::Broadcast(number) => {
                    let (elements, positions) = copied(*number);
                    self.set_positions(self.spread[*number].number, positions, &mut params);
                    LaunchView::Run(elements)
                }
            });
        }
        work(&self.plan.launch(&views, &params, (run.geometry, count), report))
    }

    /// Sets the scalars that describe the copied elements of a parameter.
    fn set_positions(&self, of: usize, positions: &[Range<isize>], params: &mut [u64]) {
        for (source, param) in self.plan.kernel.lowered.scalars.iter().zip(params) {
            match *source {
                ScalarSource::Stencil { parameter, part } if parameter == of => {
                    *param = of_box(positions, part);
                }
                _ => {}
            }
        }
    }

    /// Runs a kernel that changes no elements of its range. If windows must be copied, runs it part by part.
    fn examine(&self, store: &dyn OperandStore, others: &[Operand<'_>], range: &Range<usize>) -> Result<()> {
        let at_once = STAGED_BYTES.checked_div(self.part_stride()).map_or(range.len(), |most| most.max(1));
        let at_once = at_once.next_multiple_of(self.group_len());
        for start in range.clone().step_by(at_once) {
            let part = start..range.end.min(start + at_once);
            self.begin_part(&part)?;
            let others: Vec<_> = others.iter().map(|other| other.further(start - range.start)).collect();
            store.examine(&others, &part, &Examination(self))?;
        }
        Ok(())
    }

    /// Copies results from device copies back to their arrays, and returns the outcome of the launch.
    pub fn finish(&self, results: &mut CopiedResults<'_>) -> Result<()> {
        for SharedResult { elements, target, range } in &results.shared {
            self.write_back(*elements, *target, range)?;
        }
        for argument in &mut results.appended {
            self.append(argument)?;
        }
        self.result()
    }

    /// Writes the elements of a shared argument back to their store.
    fn write_back(&self, number: usize, target: &dyn ResultStore, range: &Range<usize>) -> Result<()> {
        for device in &*self.devices.read() {
            if !device.put(number, target, range)? {
                let bytes = device.download(number, range.len() * target.stride())?;
                target.write_bytes(range.start, &bytes)?;
            }
        }
        Ok(())
    }

    /// Returns the number of elements that work-items appended on a device, or would with more memory.
    fn asked(device: &DeviceCopies<'_>, argument: &AppendArgument<'_>) -> Result<u64> {
        let mut count = [0; 8];
        count.copy_from_slice(&device.download(argument.elements - 1, 8)?);
        Ok(u64::from_ne_bytes(count))
    }

    /// Enlarges the device memory of each argument whose appended elements did not fit. Returns true if there
    /// was such an argument; the caller must then repeat the launch.
    pub fn has_more_room(&mut self, appended: &[AppendArgument<'_>]) -> Result<bool> {
        let mut has_more = false;
        for argument in appended {
            let devices = self.devices.get_mut();
            let asked = devices.iter().map(|device| Self::asked(device, argument));
            let asked = asked.collect::<Result<Vec<u64>>>()?;
            let all = asked.iter().copied().fold(0, u64::saturating_add);
            let &AppendArgument { elements, name, most, .. } = argument;
            if all > most as u64 {
                let kernel = self.plan.kernel.lowered.name.into();
                return Err(
                    ErrorKind::KernelAppend { kernel, argument: name.into(), asked: all, most }.into()
                );
            }
            let longest = asked.into_iter().max().unwrap_or(0) as usize;
            if longest > self.spread[elements].len() {
                self.spread[elements].extents = vec![longest];
                has_more = true;
            }
        }
        Ok(has_more)
    }

    /// Resets the state before the launch is repeated.
    fn begin_anew(&mut self, results: &CopiedResults<'_>) {
        for device in self.devices.get_mut() {
            results.shared.iter().for_each(|shared| device.forget(shared.elements));
            for AppendArgument { elements, .. } in &results.appended {
                device.forget(elements - 1);
                device.forget(*elements);
            }
        }
        *self.reported.get_mut() = Default::default();
        if let Some(reduction) = self.reduction {
            reduction.begin_anew();
        }
    }

    /// Appends the elements from all devices to their target.
    fn append(&self, argument: &mut AppendArgument<'_>) -> Result<()> {
        let stride = self.spread[argument.elements].of.stride();
        let mut of_all = Vec::new();
        for device in &*self.devices.read() {
            let bytes = Self::asked(device, argument)? as usize * stride;
            let elements = device.download(argument.elements, bytes)?;
            if argument.is_ordered {
                of_all.extend(elements);
            } else {
                argument.to.append(&elements);
            }
        }
        if argument.is_ordered {
            argument.to.append_in_order(&of_all);
        }
        Ok(())
    }

    /// Returns the outcome of all work-items, as reported by the devices.
    fn result(&self) -> Result<()> {
        let (report, place) = *self.reported.lock();
        let item = (place as usize).wrapping_sub(self.domain.range().start);
        self.plan.kernel.outcome(report, item, self.plan.options)
    }

    /// Returns an error if a work-item (GPU thread) exceeded the time limit. Other work-items may then not
    /// have run.
    pub fn in_time(&self) -> Result<()> {
        let is_late = self.reported.lock().0.loop_over_time().is_some();
        if is_late { self.result() } else { Ok(()) }
    }

    /// Returns the outcome of submissions before the last one, for which the caller has not waited.
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

    fn note(&self, geometry: Geometry, new: Report) {
        let mut reported = self.reported.lock();
        let (old, place) = *reported;
        let index = geometry.index(new.item);
        let new_place = self.band.as_ref().map_or(index, |band| band.place(index as usize) as u64);
        let is_first = old.failures == 0 || old.loop_over_time().is_none() && new.loop_over_time().is_some();
        let place = if is_first { new_place } else { place };
        *reported = (old.and(new), place);
    }
}

impl Change for Launching<'_> {
    fn overwrites(&self, element_bytes: usize) -> bool {
        self.views
            .iter()
            .position(|place| *place == ViewPlace::Column(0))
            // Do not count elements as overwritten if the launch limits loop iterations (`budget`) or has
            // native code: a work-item (GPU thread) may then leave its element unwritten.
            .filter(|_| self.plan.options.budget.is_none() && self.plan.kernel.kernel.code().is_none())
            .is_some_and(|view| self.plan.kernel.overwrites(view, element_bytes))
    }

    fn is_for_some_devices(&self) -> bool {
        true
    }

    fn group_len(&self) -> usize {
        self.plan.groups.map_or(1, |groups| groups.len)
    }

    fn part_stride(&self) -> usize {
        let windows = self.spread.iter().filter(|argument| argument.halo.is_some());
        windows.map(|argument| argument.of.stride()).max().unwrap_or(0)
    }

    fn begin_part(&self, part: &Range<usize>) -> Result<()> {
        copy_around(&mut self.devices.write(), &self.spread, &self.domain.around(part))
    }

    fn striped(&self) -> Vec<(&Pager, Range<u64>)> {
        self.striped.iter().map(|argument| (argument.pager, argument.pages())).collect()
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
            let _ =
                self.with(device, run, report, returned, |launch| device.prepare(&[Request::Launch(launch)]));
        };
        match self.reduction {
            Some(reduction) => reduction.prepare(device, run, report, prepare),
            None => prepare(run, &[]),
        }
    }

    fn submit(
        &self,
        queue: WorkQueue<'_>,
        run: Run<'_>,
        report: Option<HostSpan<'_>>,
    ) -> backend_api::Result<Ticket> {
        let Some(report) = report else { unreachable!("every launch has a report") };
        if let Some(facts) = &self.facts {
            let device = queue.device();
            let found_facts = self.with(&**device, run, report, &[], |launch| device.kernel_facts(launch))?;
            *facts.lock() = Some(found_facts);
            return queue.submit(&[]);
        }
        if self.in_time().is_err() {
            let detail = "another run of the launch has exceeded the time limit";
            return Err(
                backend_api::Error::new(backend_api::ErrorKind::KernelFailed, "launch").with_detail(detail)
            );
        }
        let launch = |run: Run<'_>, report: HostSpan<'_>, returned: &[Elements<'_>]| {
            self.with(&**queue.device(), run, report, returned, |launch| queue.submit(launch))
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
