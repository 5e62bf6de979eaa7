//! A device whose work takes time on a clock that only it knows.

use std::collections::HashMap;
use std::task::Waker;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use crate::{
    BufferHandle, BufferId, Compute, Device, ErrorKind, Fill, Gather, HostAllocation, HostId, Progress,
    QueueHandle, QueueId, Result, Route, Scatter, Search, Ticket, Transfer,
};

use crate::forward;

/// What shares the device's ways of copying.
///
/// ```
/// use std::time::Duration;
/// use backend_api::{Device, wrap::{Delayed, Engines, Speed}};
/// # use {backend_api::{Commit, DeviceBuffer, Fill, Queue}, backend_host::HostDevice, std::sync::Arc};
/// # fn f(engines: Engines) -> backend_api::Result<Duration> {
/// let speed = Speed { internal_bytes_per_second: 1_000_000_000, engines, ..Speed::INSTANT };
/// # let device = Arc::new(Delayed::new(HostDevice::new(1 << 20)?, speed));
/// # let memory = DeviceBuffer::new(&device, 2000, Commit::Lazy)?;
/// # let fill = |at| Fill { to: memory.at(at), bytes: 1000, pattern: &[0] };
/// # let (one, other) = (Queue::new(&device)?, Queue::new(&device)?);
/// # let tickets = [one.fill(&fill(0))?, other.fill(&fill(1000))?];
/// # device.wait(tickets[0])?;
/// # device.wait(tickets[1])?;
/// # Ok(device.now()) }
/// # let two_fills_of_1000_bytes = f;
/// assert_eq!(two_fills_of_1000_bytes(Engines::PerQueue)?, Duration::from_nanos(1000));
/// assert_eq!(two_fills_of_1000_bytes(Engines::PerDirection)?, Duration::from_nanos(2000));
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engines {
    /// Every queue has all the bandwidth for itself.
    PerQueue,
    /// All queues share one engine for uploads, one for downloads, and one for copies within the device and
    /// kernels, as on most cards: work of one direction waits its turn, work of different directions
    /// overlaps. Work that needs several engines begins when all of them are free, and gives each back when
    /// its own part is done.
    PerDirection,
}

/// How long work takes.
///
/// A call takes its [`latency`](Self::latency), the [`piece_latency`](Self::piece_latency) of each of its
/// pieces, and its bytes divided by the bandwidth. A fill and a search move the bytes that they write and
/// look at within the device; a gather moves its values from the device, a scatter to it.
///
/// ```
/// use std::time::Duration;
/// use backend_api::wrap::Speed;
/// let speed = Speed { upload_bytes_per_second: 1_000_000_000, ..Speed::INSTANT };
/// assert_eq!(speed.latency, Duration::ZERO);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Speed {
    /// What each call takes on the device, before its bytes begin to move.
    pub latency: Duration,
    /// What each piece of a batch takes on top of that.
    pub piece_latency: Duration,
    /// How long the calling thread is busy with each submission.
    pub call: Duration,
    /// How long the calling thread is busy with each poll. More than nothing, or a program that polls in a
    /// loop never sees the clock move.
    pub poll: Duration,
    /// Bytes per second to the device; 0 for no limit.
    pub upload_bytes_per_second: u64,
    /// Bytes per second from the device; 0 for no limit.
    pub download_bytes_per_second: u64,
    /// Bytes per second within the device; 0 for no limit.
    pub internal_bytes_per_second: u64,
    /// What is shared between queues.
    pub engines: Engines,
}

impl Speed {
    /// Everything takes no time, but for a nanosecond a poll.
    pub const INSTANT: Self = Self {
        latency: Duration::ZERO,
        piece_latency: Duration::ZERO,
        call: Duration::ZERO,
        poll: Duration::from_nanos(1),
        upload_bytes_per_second: 0,
        download_bytes_per_second: 0,
        internal_bytes_per_second: 0,
        engines: Engines::PerQueue,
    };

    /// Roughly a card behind a PCIe 4.0 slot.
    pub const CARD: Self = Self {
        latency: Duration::from_micros(8),
        piece_latency: Duration::from_nanos(500),
        call: Duration::from_micros(2),
        poll: Duration::from_nanos(100),
        upload_bytes_per_second: 24_000_000_000,
        download_bytes_per_second: 24_000_000_000,
        internal_bytes_per_second: 500_000_000_000,
        engines: Engines::PerDirection,
    };

    fn moving(&self, direction: usize, bytes: u64) -> Duration {
        let rates =
            [self.upload_bytes_per_second, self.download_bytes_per_second, self.internal_bytes_per_second];
        let rate = rates[direction];
        if rate == 0 {
            return Duration::ZERO;
        }
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(rate);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

const UPLOAD: usize = 0;
const DOWNLOAD: usize = 1;
const INTERNAL: usize = 2;

/// When the work of a ticket began and ended, in virtual time since the device was made.
///
/// ```
/// use std::time::Duration;
/// use backend_api::{Device, wrap::{Delayed, Span, Speed}};
/// let speed = Speed { latency: Duration::from_micros(10), ..Speed::INSTANT };
/// let device = Delayed::new(backend_host::HostDevice::new(1 << 20)?, speed);
/// let queue = device.create_queue()?;
/// let (_first, second) = (device.submit(&queue, &[])?, device.submit(&queue, &[])?);
/// let expected = Span { start: Duration::from_micros(10), end: Duration::from_micros(20) };
/// assert_eq!(device.span(second), Some(expected));
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// When its turn came.
    pub start: Duration,
    /// When all of it was done.
    pub end: Duration,
}

impl Span {
    /// Whether both were under way at some moment.
    ///
    /// ```
    /// use std::time::Duration;
    /// use backend_api::wrap::Span;
    /// let span = |start, end| Span { start: Duration::from_secs(start), end: Duration::from_secs(end) };
    /// assert!(span(0, 3).overlaps(&span(2, 4)));
    /// assert!(!span(0, 3).overlaps(&span(3, 4)));
    /// ```
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        self.start < other.end && other.start < self.end
    }

    /// How long it took.
    ///
    /// ```
    /// use std::time::Duration;
    /// use backend_api::wrap::Span;
    /// let span = Span { start: Duration::from_secs(2), end: Duration::from_secs(5) };
    /// assert_eq!(span.duration(), Duration::from_secs(3));
    /// ```
    #[must_use]
    pub fn duration(&self) -> Duration {
        self.end - self.start
    }
}

/// Gives the work of a device a virtual duration.
///
/// The inner device really does the work, at whatever time. A ticket is done when the virtual clock has come
/// to the end of its [`Span`]. Nobody ever sleeps for it: [`wait`](Device::wait) puts the clock forward to
/// the ticket's end, if it is not there yet, and so do the calls that give memory or queues back, for the
/// work that they wait for. Calls and polls put it forward by what [`Speed`] says. So a test can assert, to
/// the nanosecond, how long a program would have taken and what of its work overlapped.
///
/// There is one clock, that of the host. With several threads it is the clock of the one that has waited
/// furthest: spans never become too short by that, but depend on how the threads happened to run.
///
/// # Wakers
/// [`wake`](Device::wake) counts as waiting: it puts the clock forward, and the waker is woken when the inner
/// device is done. A program that has many futures in flight would so see one after the other. With
/// [`hold_wakers`](Self::hold_wakers), wakers stay until the clock comes to them, and the test's executor
/// calls [`advance_to_next`](Self::advance_to_next) when it has nothing else to do.
///
/// # Polls
/// A poll at or after the end of a span waits for the inner device, so that the answer depends on the virtual
/// clock alone. If the inner device is lost, that is told at once, whatever the clock says.
///
/// ```
/// # use std::{sync::Arc, time::Duration};
/// use backend_api::{Commit, Device, DeviceBuffer, Fill, Queue, wrap::{Delayed, Speed}};
/// let speed = Speed { internal_bytes_per_second: 1_000_000_000, ..Speed::INSTANT };
/// let device = Arc::new(Delayed::new(backend_host::HostDevice::new(1 << 20)?, speed));
/// let (one, other) = (Queue::new(&device)?, Queue::new(&device)?);
/// let memory = DeviceBuffer::new(&device, 10_000, Commit::Lazy)?;
/// let fill = |at| Fill { to: memory.at(at), bytes: 5000, pattern: &[1] };
/// let tickets = [one.fill(&fill(0))?, other.fill(&fill(5000))?];
/// device.wait(tickets[0])?;
/// device.wait(tickets[1])?;
/// // 5000 bytes at a byte a nanosecond, twice, side by side.
/// assert_eq!(device.now(), Duration::from_nanos(5000));
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Debug)]
pub struct Delayed<D> {
    inner: D,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    speed: Speed,
    now: Duration,
    queues: HashMap<QueueId, Lane>,
    /// When each of the shared engines is free.
    engines: [Duration; 3],
    /// When the last work ends that touches a piece of memory.
    buffers: HashMap<BufferId, Duration>,
    hosts: HashMap<HostId, Duration>,
    hold_wakers: bool,
    held: Vec<(Duration, Ticket, Waker)>,
}

#[derive(Debug, Default)]
struct Lane {
    /// When the next submission may start at the earliest.
    free: Duration,
    /// Of ticket 1, 2, …
    spans: Vec<Span>,
}

impl State {
    fn span(&self, ticket: Ticket) -> Option<Span> {
        let index = usize::try_from(ticket.value.checked_sub(1)?).ok()?;
        self.queues.get(&ticket.queue)?.spans.get(index).copied()
    }

    /// Gives the next submission of a queue its span. `moves` says how many bytes go in each direction.
    fn schedule(&mut self, queue: QueueId, pieces: u64, moves: [u64; 3]) -> Span {
        let speed = self.speed;
        self.now = self.now.saturating_add(speed.call);
        let lane = self.queues.entry(queue).or_default();
        let mut start = lane.free.max(self.now);
        if speed.engines == Engines::PerDirection {
            let waits = moves.iter().zip(self.engines).filter(|(bytes, _)| **bytes > 0);
            start = waits.fold(start, |start, (_, free)| start.max(free));
        }
        let pieces = speed.piece_latency.saturating_mul(u32::try_from(pieces).unwrap_or(u32::MAX));
        let mut end = start.saturating_add(speed.latency).saturating_add(pieces);
        for (direction, bytes) in moves.into_iter().enumerate() {
            if bytes > 0 {
                end = end.saturating_add(speed.moving(direction, bytes));
                self.engines[direction] = end;
            }
        }
        let span = Span { start, end };
        lane.free = end;
        lane.spans.push(span);
        span
    }

    fn touch(&mut self, until: Duration, buffers: &[BufferId], hosts: &[HostId]) {
        for buffer in buffers {
            let end = self.buffers.entry(*buffer).or_default();
            *end = until.max(*end);
        }
        for host in hosts {
            let end = self.hosts.entry(*host).or_default();
            *end = until.max(*end);
        }
    }
}

impl<D: Device> Delayed<D> {
    /// A device whose clock stands at nought.
    ///
    /// ```
    /// use std::time::Duration;
    /// use backend_api::wrap::{Delayed, Speed};
    /// let device = Delayed::new(backend_host::HostDevice::new(1 << 20)?, Speed::CARD);
    /// assert_eq!(device.now(), Duration::ZERO);
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    #[must_use]
    pub fn new(inner: D, speed: Speed) -> Self {
        let state = State {
            speed,
            now: Duration::ZERO,
            queues: HashMap::new(),
            engines: [Duration::ZERO; 3],
            buffers: HashMap::new(),
            hosts: HashMap::new(),
            hold_wakers: false,
            held: Vec::new(),
        };
        Self { inner, state: Mutex::new(state) }
    }

    /// The device that does the work.
    ///
    /// ```
    /// use backend_api::wrap::{Delayed, Speed};
    /// let device = Delayed::new(backend_host::HostDevice::builder().bytes(1000).threads(2).build()?, Speed::CARD);
    /// assert_eq!(device.inner().threads(), 2);
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    #[must_use]
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// The virtual time since the device was made.
    ///
    /// ```
    /// use std::time::Duration;
    /// use backend_api::{Device, wrap::{Delayed, Speed}};
    /// let speed = Speed { latency: Duration::from_micros(10), ..Speed::INSTANT };
    /// let device = Delayed::new(backend_host::HostDevice::new(1 << 20)?, speed);
    /// let ticket = device.submit(&device.create_queue()?, &[])?;
    /// assert_eq!(device.now(), Duration::ZERO);
    /// device.wait(ticket)?;
    /// assert_eq!(device.now(), Duration::from_micros(10));
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    #[must_use]
    pub fn now(&self) -> Duration {
        self.state.lock().now
    }

    /// Puts the clock forward, as if the program had computed for so long; wakes the wakers whose time has
    /// come.
    ///
    /// ```
    /// use std::time::Duration;
    /// use backend_api::{Device, Progress, wrap::{Delayed, Speed}};
    /// let speed = Speed { latency: Duration::from_micros(10), ..Speed::INSTANT };
    /// let device = Delayed::new(backend_host::HostDevice::new(1 << 20)?, speed);
    /// let ticket = device.submit(&device.create_queue()?, &[])?;
    /// device.advance(Duration::from_micros(9));
    /// assert_eq!(device.poll(ticket)?, Progress::Pending);
    /// device.advance(Duration::from_micros(1));
    /// assert_eq!(device.poll(ticket)?, Progress::Done);
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    pub fn advance(&self, by: Duration) {
        let state = self.state.lock();
        let to = state.now.saturating_add(by);
        self.put_forward(state, to);
    }

    /// Puts the clock forward to the first end for which a waker is held, and wakes the wakers whose time has
    /// come. Gives the new time, or none if no waker is held.
    ///
    /// ```
    /// use std::task::Waker;
    /// use std::time::Duration;
    /// use backend_api::{Device, wrap::{Delayed, Speed}};
    /// let speed = Speed { latency: Duration::from_micros(10), ..Speed::INSTANT };
    /// let device = Delayed::new(backend_host::HostDevice::new(1 << 20)?, speed);
    /// device.hold_wakers(true);
    /// let ticket = device.submit(&device.create_queue()?, &[])?;
    /// device.wake(ticket, Waker::noop().clone());
    /// assert_eq!(device.advance_to_next(), Some(Duration::from_micros(10)));
    /// assert_eq!(device.advance_to_next(), None);
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    pub fn advance_to_next(&self) -> Option<Duration> {
        let state = self.state.lock();
        let next = state.held.iter().map(|(end, ..)| *end).min()?;
        self.put_forward(state, next);
        Some(self.now())
    }

    /// Whether wakers are held until the clock has come to them. See [above](Self#wakers).
    ///
    /// ```
    /// use std::task::Waker;
    /// use std::time::Duration;
    /// use backend_api::{Device, wrap::{Delayed, Speed}};
    /// let speed = Speed { latency: Duration::from_micros(10), ..Speed::INSTANT };
    /// let device = Delayed::new(backend_host::HostDevice::new(1 << 20)?, speed);
    /// let queue = device.create_queue()?;
    /// device.wake(device.submit(&queue, &[])?, Waker::noop().clone());
    /// assert_eq!(device.now(), Duration::from_micros(10), "waking counts as waiting");
    /// device.hold_wakers(true);
    /// device.wake(device.submit(&queue, &[])?, Waker::noop().clone());
    /// assert_eq!(device.now(), Duration::from_micros(10));
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    pub fn hold_wakers(&self, hold: bool) {
        self.state.lock().hold_wakers = hold;
    }

    /// When the work of a ticket begins and ends; none for a ticket that was never given. Tickets of ended
    /// queues are remembered.
    ///
    /// ```
    /// use std::time::Duration;
    /// use backend_api::{Device, wrap::{Delayed, Speed}};
    /// let speed = Speed { latency: Duration::from_micros(10), ..Speed::INSTANT };
    /// let device = Delayed::new(backend_host::HostDevice::new(1 << 20)?, speed);
    /// device.advance(Duration::from_micros(5));
    /// let ticket = device.submit(&device.create_queue()?, &[])?;
    /// let span = device.span(ticket).unwrap();
    /// assert_eq!((span.start, span.end), (Duration::from_micros(5), Duration::from_micros(15)));
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    #[must_use]
    pub fn span(&self, ticket: Ticket) -> Option<Span> {
        self.state.lock().span(ticket)
    }

    /// For how long a queue has had work under way, up to the end of all that it was given.
    ///
    /// ```
    /// use std::time::Duration;
    /// use backend_api::{Device, wrap::{Delayed, Speed}};
    /// let speed = Speed { latency: Duration::from_micros(10), ..Speed::INSTANT };
    /// let device = Delayed::new(backend_host::HostDevice::new(1 << 20)?, speed);
    /// let queue = device.create_queue()?;
    /// device.submit(&queue, &[])?;
    /// device.advance(Duration::from_secs(1));
    /// device.submit(&queue, &[])?;
    /// assert_eq!(device.busy(queue.id()), Duration::from_micros(20));
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    #[must_use]
    pub fn busy(&self, queue: QueueId) -> Duration {
        let state = self.state.lock();
        state.queues.get(&queue).map_or(Duration::ZERO, |lane| lane.spans.iter().map(Span::duration).sum())
    }

    fn put_forward(&self, mut state: MutexGuard<'_, State>, to: Duration) {
        state.now = state.now.max(to);
        let now = state.now;
        let (due, held) = std::mem::take(&mut state.held).into_iter().partition(|(end, ..)| *end <= now);
        state.held = held;
        drop(state);
        let due: Vec<(Duration, Ticket, Waker)> = due;
        for (_, ticket, waker) in due {
            self.inner.wake(ticket, waker);
        }
    }

    /// Passes copies on and gives them their span.
    fn copy(
        &self,
        queue: QueueId,
        transfers: &[Transfer<'_>],
        really: impl FnOnce(&D) -> Result<Ticket>,
    ) -> Result<Ticket> {
        let mut moves = [0_u64; 3];
        let (mut buffers, mut hosts) = (Vec::new(), Vec::new());
        for transfer in transfers {
            let direction = match *transfer {
                Transfer::Upload { from, to, .. } => {
                    hosts.push(from.host());
                    buffers.push(to.buffer());
                    UPLOAD
                }
                Transfer::Download { from, to, .. } => {
                    buffers.push(from.buffer());
                    hosts.push(to.host());
                    DOWNLOAD
                }
                Transfer::Internal { from, to, .. } => {
                    buffers.extend([from.buffer(), to.buffer()]);
                    INTERNAL
                }
            };
            // What overflows is refused by the device.
            moves[direction] = moves[direction].saturating_add(transfer.bytes());
        }
        self.start(queue, really, transfers.len() as u64, moves, &buffers, &hosts)
    }

    /// Passes a submission on and gives it its span.
    fn start(
        &self,
        queue: QueueId,
        really: impl FnOnce(&D) -> Result<Ticket>,
        pieces: u64,
        moves: [u64; 3],
        buffers: &[BufferId],
        hosts: &[HostId],
    ) -> Result<Ticket> {
        // The lock is held, so that tickets and spans come in the same order.
        let mut state = self.state.lock();
        let ticket = really(&self.inner)?;
        let span = state.schedule(queue, pieces, moves);
        state.touch(span.end, buffers, hosts);
        let now = state.now;
        self.put_forward(state, now);
        Ok(ticket)
    }
}

// SAFETY: every call goes on to the inner device as it is; work is reported done only when that device says
// so and its time has come.
unsafe impl<D: Device> Device for Delayed<D> {
    forward! {
        self => self.inner;
        info memory create_queue allocate allocate_host import_host prepare routes routing set_routing wipe_on_release
    }

    fn release_queue(&self, queue: QueueHandle) {
        let id = queue.id();
        self.inner.release_queue(queue);
        let state = self.state.lock();
        let end = state.queues.get(&id).and_then(|lane| lane.spans.last()).map_or(state.now, |span| span.end);
        self.put_forward(state, end);
    }

    fn release(&self, buffer: BufferHandle) {
        let id = buffer.id();
        self.inner.release(buffer);
        let mut state = self.state.lock();
        let end = state.buffers.remove(&id).unwrap_or_default();
        self.put_forward(state, end);
    }

    fn release_host(&self, host: HostAllocation) {
        let id = host.id();
        self.inner.release_host(host);
        let mut state = self.state.lock();
        let end = state.hosts.remove(&id).unwrap_or_default();
        self.put_forward(state, end);
    }

    fn submit(&self, queue: &QueueHandle, transfers: &[Transfer<'_>]) -> Result<Ticket> {
        self.copy(queue.id(), transfers, |inner| inner.submit(queue, transfers))
    }

    fn submit_by(&self, route: Route, queue: &QueueHandle, transfers: &[Transfer<'_>]) -> Result<Ticket> {
        self.copy(queue.id(), transfers, |inner| inner.submit_by(route, queue, transfers))
    }

    fn fill(&self, queue: &QueueHandle, fill: &Fill<'_>) -> Result<Ticket> {
        let moves = [0, 0, fill.bytes];
        self.start(queue.id(), |inner| inner.fill(queue, fill), 1, moves, &[fill.to.buffer()], &[])
    }

    fn search(&self, queue: &QueueHandle, search: &Search<'_>) -> Result<Ticket> {
        let moves = [0, 0, search.elements.count.saturating_mul(search.elements.stride)];
        let (buffer, host) = (search.elements.start.buffer(), search.answer.host());
        self.start(queue.id(), |inner| inner.search(queue, search), 1, moves, &[buffer], &[host])
    }

    fn gather(&self, queue: &QueueHandle, gather: &Gather<'_>) -> Result<Ticket> {
        let moves = [0, gather.count.saturating_mul(gather.elements.stride), 0];
        let hosts = [gather.indices.host(), gather.values.host()];
        self.start(
            queue.id(),
            |inner| inner.gather(queue, gather),
            1,
            moves,
            &[gather.elements.start.buffer()],
            &hosts,
        )
    }

    fn scatter(&self, queue: &QueueHandle, scatter: &Scatter<'_>) -> Result<Ticket> {
        let moves = [scatter.count.saturating_mul(scatter.elements.stride), 0, 0];
        let hosts = [scatter.indices.host(), scatter.values.host()];
        self.start(
            queue.id(),
            |inner| inner.scatter(queue, scatter),
            1,
            moves,
            &[scatter.elements.start.buffer()],
            &hosts,
        )
    }

    fn compute(&self, queue: &QueueHandle, compute: &Compute<'_>) -> Result<Ticket> {
        let moves = [0, 0, compute.bytes()];
        let buffers: Vec<BufferId> = compute.sources.iter().map(|source| source.start.buffer()).collect();
        let hosts: Vec<HostId> = compute.answer().map(|answer| answer.host()).into_iter().collect();
        self.start(queue.id(), |inner| inner.compute(queue, compute), 1, moves, &buffers, &hosts)
    }

    fn poll(&self, ticket: Ticket) -> Result<Progress> {
        let state = self.state.lock();
        let Some(span) = state.span(ticket) else {
            drop(state);
            return self.inner.poll(ticket);
        };
        let to = state.now.saturating_add(state.speed.poll);
        let pending = span.end > to;
        self.put_forward(state, to);
        if !pending {
            return self.inner.wait(ticket).map(|()| Progress::Done);
        }
        match self.inner.poll(ticket) {
            Err(error) if error.kind() == ErrorKind::Lost => Err(error),
            _ => Ok(Progress::Pending),
        }
    }

    fn wait(&self, ticket: Ticket) -> Result<()> {
        let outcome = self.inner.wait(ticket);
        if matches!(&outcome, Err(error) if error.kind() == ErrorKind::Lost) {
            return outcome;
        }
        let state = self.state.lock();
        if let Some(span) = state.span(ticket) {
            self.put_forward(state, span.end);
        }
        outcome
    }

    fn wake(&self, ticket: Ticket, waker: Waker) {
        let mut state = self.state.lock();
        let end = state.span(ticket).map_or(state.now, |span| span.end);
        if state.hold_wakers && end > state.now {
            state.held.push((end, ticket, waker));
            return;
        }
        self.put_forward(state, end);
        self.inner.wake(ticket, waker);
    }

    fn order_after(&self, queue: &QueueHandle, ticket: Ticket) -> Result<()> {
        let mut state = self.state.lock();
        self.inner.order_after(queue, ticket)?;
        let end = state.span(ticket).map_or(Duration::ZERO, |span| span.end);
        let lane = state.queues.entry(queue.id()).or_default();
        lane.free = lane.free.max(end);
        Ok(())
    }
}
