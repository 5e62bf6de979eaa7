//! A device that does everything later, in the least convenient order that the contract allows.

use std::collections::{HashMap, VecDeque};
use std::ptr::NonNull;
use std::sync::Arc;
use std::task::Waker;
use std::thread::JoinHandle;

use backend_api::conformance::reference::ReferenceDevice;
use backend_api::expr::OwnedCompute;
use backend_api::{
    BufferHandle, BufferId, Commit, Compute, Device, DeviceInfo, DeviceSpan, Elements, Error, ErrorKind,
    Extents, Fill, Gather, HostAllocation, HostId, HostMemory, HostSpan, MemoryStatus, Progress, QueueHandle,
    QueueId, Result, Scatter, Search, Ticket, Timeline, Transfer,
};
use parking_lot::{Condvar, Mutex, MutexGuard};

/// Ways to break the contract that only a device with work in flight has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    None,
    OrderAfterIsIgnored,
    WorkOvertakesWork,
    BatchesOverlap,
    DeviceMemoryDoesNotWait,
    HostMemoryDoesNotWait,
    QueuesDoNotWait,
    EndsOfQueuesTakeOthersAlong,
    DoneTooEarly,
    WakersComeTooEarly,
    WorkNeedsSomebodyWhoWaits,
    WakersOfFailuresAreLost,
    SearchesShareTheirAnswer,
}

/// The reference device behind queues that a thread works off: one piece of one job of a random queue at a
/// time.
#[derive(Debug)]
pub struct Deferred {
    shared: Arc<Shared>,
    worker: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    inner: ReferenceDevice,
    /// The inner device's only queue.
    lane: QueueHandle,
    flaw: Flaw,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    buffers: HashMap<BufferId, u64>,
    hosts: HashMap<HostId, u64>,
    queues: HashMap<QueueId, Lane>,
    ended: HashMap<QueueId, u64>,
    random: u64,
    waiters: u32,
    last_answer: Option<HostSpan<'static>>,
    stop: bool,
}

#[derive(Debug)]
struct Lane {
    timeline: Arc<Timeline>,
    jobs: VecDeque<Job>,
}

#[derive(Debug)]
struct Job {
    /// 0 for a job that takes no ticket.
    value: u64,
    pieces: VecDeque<Piece>,
    outcome: Result<()>,
}

#[derive(Debug, Clone)]
enum Piece {
    After(Arc<Timeline>, u64),
    Copy(Transfer<'static>),
    Fill {
        to: DeviceSpan<'static>,
        bytes: u64,
        pattern: Vec<u8>,
    },
    Search {
        elements: Elements<'static>,
        field_offset: u64,
        value: Vec<u8>,
        limit: u64,
        count_all: bool,
        answer: HostSpan<'static>,
    },
    Gather(Gather<'static>),
    Scatter(Scatter<'static>),
    Compute(OwnedCompute),
}

impl Piece {
    fn touches(&self, buffer: Option<BufferId>, host: Option<HostId>) -> bool {
        let (buffers, hosts) = match self {
            Self::After(..) => return false,
            Self::Compute(compute) => {
                return compute.with(|compute| {
                    let mut sources = compute.sources.iter().map(|source| source.start.buffer());
                    buffer.is_some_and(|b| sources.any(|known| known == b))
                        || host.is_some_and(|h| compute.answer().is_some_and(|answer| answer.host() == h))
                });
            }
            Self::Copy(Transfer::Upload { from, to, .. }) => ([to.buffer(); 2], Some([from.host(); 2])),
            Self::Copy(Transfer::Download { from, to, .. }) => ([from.buffer(); 2], Some([to.host(); 2])),
            Self::Copy(Transfer::Internal { from, to, .. }) => ([from.buffer(), to.buffer()], None),
            Self::Fill { to, .. } => ([to.buffer(); 2], None),
            Self::Search { elements, answer, .. } => ([elements.start.buffer(); 2], Some([answer.host(); 2])),
            Self::Gather(g) => ([g.elements.start.buffer(); 2], Some([g.indices.host(), g.values.host()])),
            Self::Scatter(s) => ([s.elements.start.buffer(); 2], Some([s.indices.host(), s.values.host()])),
        };
        buffer.is_some_and(|b| buffers.contains(&b))
            || host.zip(hosts).is_some_and(|(h, hosts)| hosts.contains(&h))
    }
}

impl State {
    fn below(&mut self, bound: usize) -> usize {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) as usize % bound
    }

    fn in_flight(&self, buffer: Option<BufferId>, host: Option<HostId>) -> bool {
        let mut pieces = self.queues.values().flat_map(|lane| &lane.jobs).flat_map(|job| &job.pieces);
        pieces.any(|piece| piece.touches(buffer, host))
    }
}

impl Extents for State {
    fn device_bytes(&self, buffer: BufferId) -> Option<u64> {
        self.buffers.get(&buffer).copied()
    }
    fn host_bytes(&self, host: HostId) -> Option<u64> {
        self.hosts.get(&host).copied()
    }
}

impl Shared {
    fn work(&self) {
        let mut state = self.state.lock();
        loop {
            let idle = self.flaw == Flaw::WorkNeedsSomebodyWhoWaits && state.waiters == 0 && !state.stop;
            if !idle && self.step(&mut state) {
                self.changed.notify_all();
                // Others get the lock between steps.
                MutexGuard::unlocked(&mut state, std::thread::yield_now);
                continue;
            }
            if state.stop {
                return;
            }
            self.changed.wait(&mut state);
        }
    }

    /// One piece of one job; false if there is none that may run.
    fn step(&self, state: &mut State) -> bool {
        let ready: Vec<QueueId> = state
            .queues
            .iter()
            .filter(|(_, lane)| match lane.jobs.front().and_then(|job| job.pieces.front()) {
                Some(Piece::After(timeline, value)) => {
                    timeline.poll(*value).map_or(true, |progress| progress == Progress::Done)
                }
                _ => !lane.jobs.is_empty(),
            })
            .map(|(id, _)| *id)
            .collect();
        if ready.is_empty() {
            return false;
        }
        let id = ready[state.below(ready.len())];
        let chance = state.below(4) == 0;
        let lane = state.queues.get_mut(&id).expect("a queue that is ready");
        if self.flaw == Flaw::WorkOvertakesWork
            && chance
            && lane.jobs.iter().filter(|job| job.value > 0).count() > 1
        {
            // What is in the last job takes the place of what is in the first; their numbers stay.
            let last = lane.jobs.len() - 1;
            let pieces = std::mem::take(&mut lane.jobs[last].pieces);
            lane.jobs[last].pieces = std::mem::replace(&mut lane.jobs[0].pieces, pieces);
        }
        if self.flaw == Flaw::BatchesOverlap && chance && lane.jobs.len() > 1 && lane.jobs[0].pieces.len() > 1
        {
            // The last piece goes over to the next job.
            let piece = lane.jobs[0].pieces.pop_back().expect("more than one");
            lane.jobs[1].pieces.push_back(piece);
        }
        let lane = state.queues.get_mut(&id).expect("a queue that is ready");
        let timeline = Arc::clone(&lane.timeline);
        let job = lane.jobs.front_mut().expect("a job");
        let piece = job.pieces.pop_front();
        let outcome = piece.map_or(Ok(()), |piece| self.run(&piece, &mut state.last_answer));
        let lane = state.queues.get_mut(&id).expect("a queue that is ready");
        let job = lane.jobs.front_mut().expect("a job");
        if outcome.is_err() {
            job.outcome = outcome;
        }
        if job.pieces.is_empty() {
            let job = lane.jobs.pop_front().expect("a job");
            if job.value > 0 {
                timeline.complete(job.value, job.outcome);
            }
        }
        true
    }

    fn run(&self, piece: &Piece, last_answer: &mut Option<HostSpan<'static>>) -> Result<()> {
        let ticket = match piece {
            Piece::After(..) => return Ok(()),
            Piece::Copy(transfer) => self.inner.submit(&self.lane, &[*transfer]),
            Piece::Fill { to, bytes, pattern } => {
                self.inner.fill(&self.lane, &Fill { to: *to, bytes: *bytes, pattern })
            }
            Piece::Search { elements, field_offset, value, limit, count_all, answer } => {
                let mut search = Search {
                    elements: *elements,
                    field_offset: *field_offset,
                    value,
                    limit: *limit,
                    count_all: *count_all,
                    answer: *answer,
                };
                if self.flaw == Flaw::SearchesShareTheirAnswer
                    && let Some(last) = last_answer.replace(*answer)
                    && last.host() == answer.host()
                {
                    // What was meant for this search goes to the one before, too.
                    search.answer = last;
                    drop(self.inner.search(&self.lane, &search));
                    search.answer = *answer;
                }
                self.inner.search(&self.lane, &search)
            }
            Piece::Gather(gather) => self.inner.gather(&self.lane, gather),
            Piece::Scatter(scatter) => self.inner.scatter(&self.lane, scatter),
            Piece::Compute(compute) => compute.with(|compute| self.inner.compute(&self.lane, compute)),
        };
        match ticket {
            Ok(ticket) => self.inner.wait(ticket),
            // The memory is gone, which a sound device makes impossible; a flawed one does nothing and says
            // nothing.
            Err(_) => Ok(()),
        }
    }
}

impl Deferred {
    pub fn new(total_bytes: u64) -> Self {
        Self::with_flaw(total_bytes, Flaw::None)
    }

    pub fn with_flaw(total_bytes: u64, flaw: Flaw) -> Self {
        let inner = ReferenceDevice::new(total_bytes);
        let lane = inner.create_queue().expect("a queue");
        let state = Mutex::new(State { random: 42, ..State::default() });
        let shared = Arc::new(Shared { inner, lane, flaw, state, changed: Condvar::new() });
        let worker = Some(std::thread::spawn({
            let shared = Arc::clone(&shared);
            move || shared.work()
        }));
        Self { shared, worker }
    }

    fn push(
        &self,
        queue: &QueueHandle,
        check: impl FnOnce(&State) -> Result<()>,
        pieces: impl IntoIterator<Item = Piece>,
    ) -> Result<Ticket> {
        let mut state = self.shared.state.lock();
        if !state.queues.contains_key(&queue.id()) {
            return Err(Error::new(ErrorKind::UnknownHandle, "submit"));
        }
        check(&state)?;
        let mut pieces: VecDeque<Piece> = pieces.into_iter().collect();
        for i in (1..pieces.len()).rev() {
            let j = state.below(i + 1);
            pieces.swap(i, j);
        }
        let lane = state.queues.get_mut(&queue.id()).expect("a known queue");
        let ticket = lane.timeline.begin()?;
        lane.jobs.push_back(Job { value: ticket.value, pieces, outcome: Ok(()) });
        if self.shared.flaw == Flaw::DoneTooEarly {
            lane.timeline.complete(ticket.value, Ok(()));
        }
        self.shared.changed.notify_all();
        Ok(ticket)
    }

    fn block_while(&self, mut condition: impl FnMut(&mut State) -> bool) {
        let mut state = self.shared.state.lock();
        state.waiters += 1;
        self.shared.changed.notify_all();
        while condition(&mut state) {
            self.shared.changed.wait(&mut state);
        }
        state.waiters -= 1;
    }

    fn ask<T>(&self, ticket: Ticket, live: impl FnOnce(&Timeline) -> Result<T>, ended: T) -> Result<T> {
        let state = self.shared.state.lock();
        if let Some(lane) = state.queues.get(&ticket.queue) {
            let timeline = Arc::clone(&lane.timeline);
            drop(state);
            return live(&timeline);
        }
        match state.ended.get(&ticket.queue) {
            Some(newest) if ticket.value <= *newest => Ok(ended),
            _ => Err(Error::new(ErrorKind::UnknownHandle, "poll")),
        }
    }
}

impl Drop for Deferred {
    fn drop(&mut self) {
        self.shared.state.lock().stop = true;
        self.shared.changed.notify_all();
        if let Some(worker) = self.worker.take() {
            worker.join().expect("the worker does not panic");
        }
    }
}

/// What pieces keep of a request. They are done before what it names is given back, but for flaws, which do
/// nothing with memory that is gone: the inner device does not know it any more.
mod keep {
    use super::*;

    pub fn device(at: DeviceSpan<'_>) -> DeviceSpan<'static> {
        // SAFETY: the pieces are done before the memory is given back.
        unsafe { at.detach() }
    }

    pub fn host(at: HostSpan<'_>) -> HostSpan<'static> {
        // SAFETY: as above.
        unsafe { at.detach() }
    }

    pub fn elements(of: &Elements<'_>) -> Elements<'static> {
        Elements { start: device(of.start), count: of.count, stride: of.stride }
    }

    pub fn transfer(transfer: &Transfer<'_>) -> Transfer<'static> {
        match *transfer {
            Transfer::Upload { from, to, bytes } => {
                Transfer::Upload { from: host(from), to: device(to), bytes }
            }
            Transfer::Download { from, to, bytes } => {
                Transfer::Download { from: device(from), to: host(to), bytes }
            }
            Transfer::Internal { from, to, bytes } => {
                Transfer::Internal { from: device(from), to: device(to), bytes }
            }
        }
    }
}

// SAFETY: the inner device does the work, on ranges that were checked; tickets are done after it. Releasing
// waits until no piece names the memory. Where a flaw has it otherwise, the inner device refuses what is
// gone.
unsafe impl Device for Deferred {
    fn info(&self) -> &DeviceInfo {
        self.shared.inner.info()
    }

    fn memory(&self) -> Result<MemoryStatus> {
        self.shared.inner.memory()
    }

    fn create_queue(&self) -> Result<QueueHandle> {
        let queue = QueueHandle::unique();
        let lane = Lane { timeline: Arc::new(Timeline::new(queue.id())), jobs: VecDeque::new() };
        self.shared.state.lock().queues.insert(queue.id(), lane);
        Ok(queue)
    }

    fn release_queue(&self, queue: QueueHandle) {
        let queue = queue.id();
        if self.shared.flaw != Flaw::QueuesDoNotWait {
            self.block_while(|state| state.queues.get(&queue).is_some_and(|lane| !lane.jobs.is_empty()));
        }
        let mut state = self.shared.state.lock();
        if let Some(lane) = state.queues.remove(&queue) {
            state.ended.insert(queue, lane.timeline.newest().value);
            lane.timeline.complete(lane.timeline.newest().value, Ok(()));
        }
        if self.shared.flaw == Flaw::EndsOfQueuesTakeOthersAlong {
            state.queues.values_mut().flat_map(|lane| &mut lane.jobs).for_each(|job| job.pieces.clear());
        }
    }

    fn allocate(&self, bytes: u64, commit: Commit) -> Result<BufferHandle> {
        let buffer = self.shared.inner.allocate(bytes, commit)?;
        self.shared.state.lock().buffers.insert(buffer.id(), bytes);
        Ok(buffer)
    }

    fn release(&self, buffer: BufferHandle) {
        if self.shared.flaw != Flaw::DeviceMemoryDoesNotWait {
            self.block_while(|state| state.in_flight(Some(buffer.id()), None));
        }
        self.shared.state.lock().buffers.remove(&buffer.id());
        self.shared.inner.release(buffer);
    }

    fn allocate_host(&self, bytes: usize, kind: HostMemory) -> Result<HostAllocation> {
        let allocation = self.shared.inner.allocate_host(bytes, kind)?;
        self.shared.state.lock().hosts.insert(allocation.id(), bytes as u64);
        Ok(allocation)
    }

    unsafe fn import_host(
        &self,
        address: NonNull<u8>,
        bytes: usize,
        kind: HostMemory,
    ) -> Result<HostAllocation> {
        // SAFETY: passed on; `release_host` waits for what is in flight before it tells the inner device.
        let host = unsafe { self.shared.inner.import_host(address, bytes, kind)? };
        self.shared.state.lock().hosts.insert(host.id(), bytes as u64);
        Ok(host)
    }

    fn release_host(&self, host: HostAllocation) {
        if self.shared.flaw != Flaw::HostMemoryDoesNotWait {
            self.block_while(|state| state.in_flight(None, Some(host.id())));
        }
        self.shared.state.lock().hosts.remove(&host.id());
        self.shared.inner.release_host(host);
    }

    fn submit(&self, queue: &QueueHandle, transfers: &[Transfer<'_>]) -> Result<Ticket> {
        let check = |state: &State| transfers.iter().try_for_each(|transfer| state.check_transfer(transfer));
        self.push(queue, check, transfers.iter().map(|transfer| Piece::Copy(keep::transfer(transfer))))
    }

    fn fill(&self, queue: &QueueHandle, fill: &Fill<'_>) -> Result<Ticket> {
        let piece =
            Piece::Fill { to: keep::device(fill.to), bytes: fill.bytes, pattern: fill.pattern.to_vec() };
        self.push(queue, |state| state.check_fill(fill), [piece])
    }

    fn search(&self, queue: &QueueHandle, search: &Search<'_>) -> Result<Ticket> {
        let piece = Piece::Search {
            elements: keep::elements(&search.elements),
            field_offset: search.field_offset,
            value: search.value.to_vec(),
            limit: search.limit,
            count_all: search.count_all,
            answer: keep::host(search.answer),
        };
        self.push(queue, |state| state.check_search(search), [piece])
    }

    fn gather(&self, queue: &QueueHandle, gather: &Gather<'_>) -> Result<Ticket> {
        let piece = Piece::Gather(Gather {
            elements: keep::elements(&gather.elements),
            indices: keep::host(gather.indices),
            count: gather.count,
            values: keep::host(gather.values),
        });
        self.push(queue, |state| state.check_gather(gather), [piece])
    }

    fn scatter(&self, queue: &QueueHandle, scatter: &Scatter<'_>) -> Result<Ticket> {
        let piece = Piece::Scatter(Scatter {
            elements: keep::elements(&scatter.elements),
            indices: keep::host(scatter.indices),
            count: scatter.count,
            values: keep::host(scatter.values),
        });
        self.push(queue, |state| state.check_scatter(scatter), [piece])
    }

    fn compute(&self, queue: &QueueHandle, compute: &Compute<'_>) -> Result<Ticket> {
        // SAFETY: as in `keep`.
        let piece = Piece::Compute(unsafe { OwnedCompute::new(compute) });
        self.push(queue, |state| state.check_compute(compute), [piece])
    }

    fn poll(&self, ticket: Ticket) -> Result<Progress> {
        self.ask(ticket, |timeline| timeline.poll(ticket.value), Progress::Done)
    }

    fn wait(&self, ticket: Ticket) -> Result<()> {
        if self.shared.flaw == Flaw::WorkNeedsSomebodyWhoWaits {
            let pending = |state: &mut State| {
                let lane = state.queues.get(&ticket.queue);
                lane.is_some_and(|lane| matches!(lane.timeline.poll(ticket.value), Ok(Progress::Pending)))
            };
            self.block_while(pending);
        }
        self.ask(ticket, |timeline| timeline.wait(ticket.value), ())
    }

    fn wake(&self, ticket: Ticket, waker: Waker) {
        let flaw = self.shared.flaw;
        let failed = matches!(self.poll(ticket), Err(error) if error.kind() == ErrorKind::KernelFailed);
        if flaw == Flaw::WakersOfFailuresAreLost && failed {
            return;
        }
        let lane = self.shared.state.lock().queues.get(&ticket.queue).map(|lane| Arc::clone(&lane.timeline));
        match lane {
            Some(timeline) if flaw != Flaw::WakersComeTooEarly => timeline.wake(ticket.value, waker),
            _ => waker.wake(),
        }
    }

    fn order_after(&self, queue: &QueueHandle, ticket: Ticket) -> Result<()> {
        match self.poll(ticket) {
            Err(error) if error.kind() == ErrorKind::UnknownHandle => return Err(error),
            _ => {}
        }
        let mut state = self.shared.state.lock();
        let before = state.queues.get(&ticket.queue).map(|lane| Arc::clone(&lane.timeline));
        let Some(lane) = state.queues.get_mut(&queue.id()) else {
            return Err(Error::new(ErrorKind::UnknownHandle, "order_after"));
        };
        if let Some(before) = before
            && self.shared.flaw != Flaw::OrderAfterIsIgnored
        {
            let pieces = [Piece::After(before, ticket.value)].into();
            lane.jobs.push_back(Job { value: 0, pieces, outcome: Ok(()) });
            self.shared.changed.notify_all();
        }
        Ok(())
    }
}
