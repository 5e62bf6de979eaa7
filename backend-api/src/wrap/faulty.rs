//! A device that fails when it is told to.

use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::Arc;
use std::task::{Wake, Waker};

use parking_lot::Mutex;

use crate::{
    BufferHandle, Commit, Compute, Device, Error, ErrorKind, Fill, Gather, HostAllocation, HostMemory,
    MemoryStatus, Progress, QueueHandle, QueueId, Result, Route, Scatter, Search, Ticket, Transfer,
};

use super::random::SplitMix64;
use crate::forward;

/// The calls of a [`Device`] that can be made to fail.
///
/// ```
/// use backend_api::{Device, ErrorKind, wrap::{Fault, Faulty, Operation}};
/// let device = Faulty::new(backend_host::HostDevice::new(1 << 20)?);
/// device.inject(Fault::new(Operation::CreateQueue, ErrorKind::System));
/// assert_eq!(device.create_queue().unwrap_err().kind(), ErrorKind::System);
/// assert!(device.memory().is_ok(), "other operations go on");
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// [`Device::memory`]
    Memory,
    /// [`Device::create_queue`]
    CreateQueue,
    /// [`Device::allocate`]
    Allocate,
    /// [`Device::allocate_host`]
    AllocateHost,
    /// [`Device::import_host`]
    ImportHost,
    /// [`Device::submit`] and [`Device::submit_by`]
    Submit,
    /// [`Device::fill`]
    Fill,
    /// [`Device::search`]
    Search,
    /// [`Device::gather`]
    Gather,
    /// [`Device::scatter`]
    Scatter,
    /// [`Device::compute`]
    Compute,
    /// [`Device::prepare`]
    Prepare,
    /// [`Device::order_after`]
    OrderAfter,
}

impl Operation {
    /// The method's name.
    ///
    /// ```
    /// use backend_api::wrap::Operation;
    /// assert_eq!(Operation::AllocateHost.name(), "allocate_host");
    /// ```
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::CreateQueue => "create_queue",
            Self::Allocate => "allocate",
            Self::AllocateHost => "allocate_host",
            Self::ImportHost => "import_host",
            Self::Submit => "submit",
            Self::Fill => "fill",
            Self::Search => "search",
            Self::Gather => "gather",
            Self::Scatter => "scatter",
            Self::Compute => "compute",
            Self::Prepare => "prepare",
            Self::OrderAfter => "order_after",
        }
    }

    fn gives_a_ticket(self) -> bool {
        matches!(
            self,
            Self::Submit | Self::Fill | Self::Search | Self::Gather | Self::Scatter | Self::Compute
        )
    }
}

/// A rule by which calls fail.
///
/// Without further words, every call of the operation is refused at once.
///
/// ```
/// use backend_api::{ErrorKind, wrap::{Fault, Operation}};
/// // The third batch of copies gives a ticket, and the ticket fails.
/// let third = Fault::new(Operation::Submit, ErrorKind::CopyFailed).on_call(3).reported_later();
/// // One allocation in ten finds the memory full; which ones is decided by the seed.
/// let full = Fault::new(Operation::Allocate, ErrorKind::OutOfMemory).with_chance(0.1, 42);
/// // The hundredth call of whatever kind finds the device gone, and so does every call after it.
/// let gone = Fault::anywhere(ErrorKind::Lost).on_call(100);
/// # use backend_api::{Commit, Device, wrap::Faulty};
/// # let device = Faulty::new(backend_host::HostDevice::new(1 << 20)?);
/// # [third, full, gone].map(|fault| device.inject(fault));
/// # let refused = (0..100).filter(|_| device.allocate(1, Commit::Lazy).is_err()).count();
/// # assert!((2..50).contains(&refused) && device.is_lost());
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Fault {
    operation: Option<Operation>,
    queue: Option<QueueId>,
    kind: ErrorKind,
    when: When,
    later: bool,
    /// How many calls that the rule is about were made so far.
    seen: u64,
}

#[derive(Clone, Debug)]
enum When {
    Always,
    On(u64),
    From(u64),
    Every(u64),
    Chance { below: u64, random: SplitMix64 },
}

impl Fault {
    /// Calls of `operation` fail with `kind`. [`ErrorKind::Lost`] takes the whole device away, for good.
    ///
    /// ```
    /// use backend_api::{Device, ErrorKind, wrap::{Fault, Faulty, Operation}};
    /// let device = Faulty::new(backend_host::HostDevice::new(1 << 20)?);
    /// let queue = device.create_queue()?;
    /// device.inject(Fault::new(Operation::Submit, ErrorKind::Driver));
    /// assert_eq!(device.submit(&queue, &[]).unwrap_err().kind(), ErrorKind::Driver);
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    #[must_use]
    pub fn new(operation: Operation, kind: ErrorKind) -> Self {
        Self { operation: Some(operation), ..Self::anywhere(kind) }
    }

    /// Calls of every operation fail with `kind`, and are counted together.
    ///
    /// ```
    /// use backend_api::{Device, ErrorKind, wrap::{Fault, Faulty}};
    /// let device = Faulty::new(backend_host::HostDevice::new(1 << 20)?);
    /// device.inject(Fault::anywhere(ErrorKind::Lost).on_call(2));
    /// assert!(device.memory().is_ok());
    /// assert!(device.create_queue().is_err());
    /// assert!(device.is_lost());
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    #[must_use]
    pub fn anywhere(kind: ErrorKind) -> Self {
        Self { operation: None, queue: None, kind, when: When::Always, later: false, seen: 0 }
    }

    /// Only calls for this queue count and fail.
    ///
    /// ```
    /// use backend_api::{Device, ErrorKind, wrap::{Fault, Faulty, Operation}};
    /// let device = Faulty::new(backend_host::HostDevice::new(1 << 20)?);
    /// let (sick, sound) = (device.create_queue()?, device.create_queue()?);
    /// device.inject(Fault::new(Operation::Submit, ErrorKind::Driver).in_queue(sick.id()));
    /// assert!(device.submit(&sick, &[]).is_err());
    /// assert!(device.submit(&sound, &[]).is_ok());
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    #[must_use]
    pub fn in_queue(mut self, queue: QueueId) -> Self {
        self.queue = Some(queue);
        self
    }

    /// Only the `n`-th call fails, from 1 on, counted from when the rule was [injected](Faulty::inject).
    ///
    /// ```
    /// use backend_api::{Device, ErrorKind, wrap::{Fault, Faulty, Operation}};
    /// let device = Faulty::new(backend_host::HostDevice::new(1 << 20)?);
    /// let queue = device.create_queue()?;
    /// device.inject(Fault::new(Operation::Submit, ErrorKind::Driver).on_call(2));
    /// let outcomes: Vec<bool> = (0..4).map(|_| device.submit(&queue, &[]).is_ok()).collect();
    /// assert_eq!(outcomes, [true, false, true, true]);
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    #[must_use]
    pub fn on_call(mut self, n: u64) -> Self {
        self.when = When::On(n);
        self
    }

    /// The `n`-th call fails, and every one after it.
    ///
    /// ```
    /// use backend_api::{Device, ErrorKind, wrap::{Fault, Faulty, Operation}};
    /// let device = Faulty::new(backend_host::HostDevice::new(1 << 20)?);
    /// let queue = device.create_queue()?;
    /// device.inject(Fault::new(Operation::Submit, ErrorKind::Driver).from_call(3));
    /// let outcomes: Vec<bool> = (0..4).map(|_| device.submit(&queue, &[]).is_ok()).collect();
    /// assert_eq!(outcomes, [true, true, false, false]);
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    #[must_use]
    pub fn from_call(mut self, n: u64) -> Self {
        self.when = When::From(n);
        self
    }

    /// Every `n`-th call fails; 0 counts as 1.
    ///
    /// ```
    /// use backend_api::{Device, ErrorKind, wrap::{Fault, Faulty, Operation}};
    /// let device = Faulty::new(backend_host::HostDevice::new(1 << 20)?);
    /// let queue = device.create_queue()?;
    /// device.inject(Fault::new(Operation::Submit, ErrorKind::Driver).every(2));
    /// let outcomes: Vec<bool> = (0..4).map(|_| device.submit(&queue, &[]).is_ok()).collect();
    /// assert_eq!(outcomes, [true, false, true, false]);
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    #[must_use]
    pub fn every(mut self, n: u64) -> Self {
        self.when = When::Every(n.max(1));
        self
    }

    /// Each call fails with this probability. The same seed and the same calls give the same failures.
    ///
    /// ```
    /// use backend_api::{Device, ErrorKind, wrap::{Fault, Faulty, Operation}};
    /// # let outcomes = |seed| -> backend_api::Result<Vec<bool>> {
    /// let device = Faulty::new(backend_host::HostDevice::new(1 << 20)?);
    /// # let queue = device.create_queue()?;
    /// device.inject(Fault::new(Operation::Submit, ErrorKind::Driver).with_chance(0.5, seed));
    /// # Ok((0..100).map(|_| device.submit(&queue, &[]).is_ok()).collect())
    /// # };
    /// assert_eq!(outcomes(1)?, outcomes(1)?);
    /// assert_ne!(outcomes(1)?, outcomes(2)?);
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    #[must_use]
    pub fn with_chance(mut self, probability: f64, seed: u64) -> Self {
        let below = (probability.clamp(0.0, 1.0) * (u64::MAX as f64)) as u64;
        self.when = When::Chance { below, random: SplitMix64::new(seed) };
        self
    }

    /// The call gives a ticket, and the ticket fails. Of a batch of copies the first half is then carried
    /// out, of other work nothing. Calls that give no ticket are refused as before. What is not carried out
    /// is not checked either: a request that the inner device would have refused gives a ticket, too.
    ///
    /// ```
    /// use backend_api::{Device, ErrorKind, wrap::{Fault, Faulty, Operation}};
    /// let device = Faulty::new(backend_host::HostDevice::new(1 << 20)?);
    /// let queue = device.create_queue()?;
    /// device.inject(Fault::new(Operation::Submit, ErrorKind::CopyFailed).reported_later());
    /// let ticket = device.submit(&queue, &[])?;
    /// assert_eq!(device.wait(ticket).unwrap_err().kind(), ErrorKind::CopyFailed);
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    #[must_use]
    pub fn reported_later(mut self) -> Self {
        self.later = true;
        self
    }

    /// Counts a call; whether it fails.
    fn strikes(&mut self, operation: Operation, queue: Option<QueueId>) -> bool {
        if self.operation.is_some_and(|own| own != operation) || (self.queue.is_some() && self.queue != queue)
        {
            return false;
        }
        self.seen += 1;
        match &mut self.when {
            When::Always => true,
            When::On(n) => self.seen == *n,
            When::From(n) => self.seen >= *n,
            When::Every(n) => self.seen.is_multiple_of(*n),
            When::Chance { below, random } => random.next() < *below || *below == u64::MAX,
        }
    }
}

/// Makes calls of a device fail by [rules](Fault), or takes the whole device away.
///
/// A failure looks as the contract says: one that is refused leaves no trace; one that is reported later
/// belongs to its own ticket alone; a lost device fails every call at once and its pending tickets with
/// [`ErrorKind::Lost`], while memory can still be given back. What was in flight at the loss goes on in the
/// inner device, so that giving memory back still waits for it. A thread that is blocked in
/// [`wait`](Device::wait) at the loss returns when the inner device has finished.
///
/// Rules are asked in the order in which they were injected, each counts every call that it is about, and the
/// first that strikes decides. Can be called from any thread; costs one lock a call.
///
/// ```
/// # use std::sync::Arc;
/// use backend_api::{Device, ErrorKind, Queue, wrap::{Fault, Faulty, Operation}};
/// let device = Arc::new(Faulty::new(backend_host::HostDevice::new(1 << 20)?));
/// let queue = Queue::new(&device)?;
/// device.inject(Fault::new(Operation::Submit, ErrorKind::CopyFailed).on_call(2).reported_later());
/// let tickets = [queue.submit(&[])?, queue.submit(&[])?, queue.submit(&[])?];
/// assert!(device.wait(tickets[0]).is_ok());
/// assert_eq!(device.wait(tickets[1]).unwrap_err().kind(), ErrorKind::CopyFailed);
/// assert!(device.wait(tickets[2]).is_ok());
/// assert_eq!(device.injected(), 1);
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Debug)]
pub struct Faulty<D> {
    inner: D,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    faults: Vec<Fault>,
    injected: u64,
    /// Newest ticket of each queue.
    newest: HashMap<QueueId, u64>,
    failed: HashMap<Ticket, Error>,
    lost: Option<Loss>,
    wakers: Vec<Arc<Once>>,
}

#[derive(Debug)]
struct Loss {
    error: Error,
    /// The last ticket of each queue that was done in time.
    done: HashMap<QueueId, u64>,
}

/// A waker that wakes once, whoever calls it first.
#[derive(Debug)]
struct Once(Mutex<Option<Waker>>);

impl Wake for Once {
    fn wake(self: Arc<Self>) {
        let waker = self.0.lock().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// How a call goes on.
enum Verdict {
    Goes,
    FailsLater(Error),
}

impl<D: Device> Faulty<D> {
    /// A device without a fault so far.
    ///
    /// ```
    /// use backend_api::{Device, wrap::Faulty};
    /// let device = Faulty::new(backend_host::HostDevice::new(1 << 20)?);
    /// assert!(device.create_queue().is_ok());
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    #[must_use]
    pub fn new(inner: D) -> Self {
        Self { inner, state: Mutex::default() }
    }

    /// The device within.
    ///
    /// ```
    /// use backend_api::{Device, wrap::Faulty};
    /// let device = Faulty::new(backend_host::HostDevice::new(1 << 20)?);
    /// device.lose();
    /// assert!(device.memory().is_err());
    /// assert_eq!(device.inner().memory()?.free_bytes, 1 << 20);
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    #[must_use]
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// Adds a rule.
    ///
    /// ```
    /// use backend_api::{Commit, Device, ErrorKind, wrap::{Fault, Faulty, Operation}};
    /// let device = Faulty::new(backend_host::HostDevice::new(1 << 20)?);
    /// device.inject(Fault::new(Operation::Allocate, ErrorKind::OutOfMemory).on_call(1));
    /// let error = device.allocate(100, Commit::Lazy).unwrap_err();
    /// assert_eq!((error.kind(), error.bytes()), (ErrorKind::OutOfMemory, Some(100)));
    /// assert!(device.allocate(100, Commit::Lazy).is_ok());
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    pub fn inject(&self, fault: Fault) {
        self.state.lock().faults.push(fault);
    }

    /// Takes all rules away. What has failed stays failed, and a lost device stays lost.
    ///
    /// ```
    /// use backend_api::{Device, ErrorKind, wrap::{Fault, Faulty, Operation}};
    /// let device = Faulty::new(backend_host::HostDevice::new(1 << 20)?);
    /// device.inject(Fault::new(Operation::CreateQueue, ErrorKind::System));
    /// assert!(device.create_queue().is_err());
    /// device.clear();
    /// assert!(device.create_queue().is_ok());
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    pub fn clear(&self) {
        self.state.lock().faults.clear();
    }

    /// How many calls were made to fail by rules; calls of a device that is lost already are not counted.
    ///
    /// ```
    /// use backend_api::{Device, ErrorKind, wrap::{Fault, Faulty, Operation}};
    /// let device = Faulty::new(backend_host::HostDevice::new(1 << 20)?);
    /// device.inject(Fault::new(Operation::CreateQueue, ErrorKind::System).every(2));
    /// let refused = (0..10).filter(|_| device.create_queue().is_err()).count();
    /// assert_eq!((refused, device.injected()), (5, 5));
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    #[must_use]
    pub fn injected(&self) -> u64 {
        self.state.lock().injected
    }

    /// Whether the device is lost.
    ///
    /// ```
    /// use backend_api::{Device, ErrorKind, wrap::{Fault, Faulty}};
    /// let device = Faulty::new(backend_host::HostDevice::new(1 << 20)?);
    /// device.inject(Fault::anywhere(ErrorKind::Lost));
    /// assert!(!device.is_lost());
    /// assert!(device.create_queue().is_err());
    /// assert!(device.is_lost());
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.state.lock().lost.is_some()
    }

    /// Takes the device away, for good, at this moment.
    ///
    /// ```
    /// use backend_api::{Device, ErrorKind, wrap::Faulty};
    /// let device = Faulty::new(backend_host::HostDevice::new(1 << 20)?);
    /// device.lose();
    /// assert_eq!(device.create_queue().unwrap_err().kind(), ErrorKind::Lost);
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    pub fn lose(&self) {
        self.lose_and_wake(self.state.lock(), "lose");
    }

    /// Notes what is done and what is not, and wakes everybody.
    fn lose_and_wake(&self, mut state: parking_lot::MutexGuard<'_, State>, operation: &'static str) {
        if state.lost.is_some() {
            return;
        }
        let done =
            state.newest.iter().map(|(&queue, &newest)| (queue, self.last_done(queue, newest))).collect();
        let error = Error::new(ErrorKind::Lost, operation).with_detail("injected").on(self.inner.info());
        state.lost = Some(Loss { error, done });
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        for waker in wakers {
            waker.wake();
        }
    }

    /// The last of the tickets 1 to `newest` that is not pending.
    fn last_done(&self, queue: QueueId, newest: u64) -> u64 {
        let (mut done, mut pending) = (0, newest + 1);
        while pending - done > 1 {
            let value = done + (pending - done) / 2;
            match self.inner.poll(Ticket { queue, value }) {
                Ok(Progress::Pending) => pending = value,
                _ => done = value,
            }
        }
        done
    }

    /// Counts a call and says whether it goes, is refused, or fails later. May lose the device.
    fn judge(&self, operation: Operation, queue: Option<QueueId>, bytes: Option<u64>) -> Result<Verdict> {
        let mut state = self.state.lock();
        if let Some(loss) = &state.lost {
            return Err(loss.error.clone());
        }
        let struck: Vec<bool> =
            state.faults.iter_mut().map(|fault| fault.strikes(operation, queue)).collect();
        let Some(first) = struck.into_iter().position(|strikes| strikes) else { return Ok(Verdict::Goes) };
        state.injected += 1;
        let (kind, later) = (state.faults[first].kind, state.faults[first].later);
        let mut error = Error::new(kind, operation.name()).with_detail("injected").on(self.inner.info());
        if let Some(bytes) = bytes {
            error = error.with_bytes(bytes).with_available_bytes(0);
        }
        if later && operation.gives_a_ticket() {
            return Ok(Verdict::FailsLater(error));
        }
        if kind == ErrorKind::Lost {
            self.lose_and_wake(state, operation.name());
        }
        Err(error)
    }

    /// Passes a submission on, or `instead` of it something that gives a ticket but not all of its effects.
    fn start(
        &self,
        operation: Operation,
        queue: &QueueHandle,
        really: impl FnOnce(&D) -> Result<Ticket>,
        instead: &[Transfer<'_>],
    ) -> Result<Ticket> {
        match self.judge(operation, Some(queue.id()), None)? {
            Verdict::Goes => {
                let ticket = really(&self.inner)?;
                self.note(ticket, None);
                Ok(ticket)
            }
            Verdict::FailsLater(error) => {
                let ticket = self.inner.submit(queue, instead)?;
                self.note(ticket, Some(error));
                Ok(ticket)
            }
        }
    }

    fn note(&self, ticket: Ticket, failure: Option<Error>) {
        let mut state = self.state.lock();
        let newest = state.newest.entry(ticket.queue).or_default();
        *newest = ticket.value.max(*newest);
        let Some(error) = failure else { return };
        if error.kind() == ErrorKind::Lost {
            let operation = error.operation();
            self.lose_and_wake(state, operation);
            // The ticket itself was in flight when the device went.
            if let Some(loss) = &mut self.state.lock().lost {
                let done = loss.done.entry(ticket.queue).or_default();
                *done = (*done).min(ticket.value - 1);
            }
            return;
        }
        state.failed.insert(ticket, error);
    }

    /// What the inner device says of a ticket, unless the ticket failed or was in flight at the loss.
    fn ask<T>(&self, ticket: Ticket, answer: Result<T>, is_done: impl FnOnce(&T) -> bool) -> Result<T> {
        if matches!(&answer, Err(error) if error.kind() == ErrorKind::UnknownHandle) {
            return answer;
        }
        let state = self.state.lock();
        if let Some(loss) = &state.lost
            && state.newest.contains_key(&ticket.queue)
            && ticket.value > loss.done.get(&ticket.queue).copied().unwrap_or(0)
        {
            return Err(loss.error.clone());
        }
        match state.failed.get(&ticket) {
            Some(error) if answer.as_ref().map_or(true, is_done) => Err(error.clone()),
            _ => answer,
        }
    }

    fn is_in_flight_at_the_loss(&self, ticket: Ticket) -> bool {
        let state = self.state.lock();
        state
            .lost
            .as_ref()
            .is_some_and(|loss| ticket.value > loss.done.get(&ticket.queue).copied().unwrap_or(0))
    }

    fn grant<T>(
        &self,
        operation: Operation,
        bytes: Option<u64>,
        really: impl FnOnce(&D) -> Result<T>,
    ) -> Result<T> {
        self.judge(operation, None, bytes)?;
        really(&self.inner)
    }
}

// SAFETY: what is passed on goes to the inner device as it is, but for copies that are to fail, of which some
// go. A ticket is answered with an error only when the inner device has done what it was given for it.
unsafe impl<D: Device> Device for Faulty<D> {
    forward! { self => self.inner; info release release_host routes routing set_routing wipe_on_release }

    fn memory(&self) -> Result<MemoryStatus> {
        self.grant(Operation::Memory, None, D::memory)
    }

    fn create_queue(&self) -> Result<QueueHandle> {
        self.grant(Operation::CreateQueue, None, D::create_queue)
    }

    fn release_queue(&self, queue: QueueHandle) {
        let id = queue.id();
        self.inner.release_queue(queue);
        let mut state = self.state.lock();
        state.newest.remove(&id);
        state.failed.retain(|ticket, _| ticket.queue != id);
    }

    fn allocate(&self, bytes: u64, commit: Commit) -> Result<BufferHandle> {
        self.grant(Operation::Allocate, Some(bytes), |inner| inner.allocate(bytes, commit))
    }

    fn allocate_host(&self, bytes: usize, kind: HostMemory) -> Result<HostAllocation> {
        self.grant(Operation::AllocateHost, Some(bytes as u64), |inner| inner.allocate_host(bytes, kind))
    }

    unsafe fn import_host(
        &self,
        address: NonNull<u8>,
        bytes: usize,
        kind: HostMemory,
    ) -> Result<HostAllocation> {
        self.grant(Operation::ImportHost, Some(bytes as u64), |inner| {
            // SAFETY: the caller's promise is passed on.
            unsafe { inner.import_host(address, bytes, kind) }
        })
    }

    fn submit(&self, queue: &QueueHandle, transfers: &[Transfer<'_>]) -> Result<Ticket> {
        let half = &transfers[..transfers.len() / 2];
        self.start(Operation::Submit, queue, |inner| inner.submit(queue, transfers), half)
    }

    fn submit_by(&self, route: Route, queue: &QueueHandle, transfers: &[Transfer<'_>]) -> Result<Ticket> {
        let half = &transfers[..transfers.len() / 2];
        self.start(Operation::Submit, queue, |inner| inner.submit_by(route, queue, transfers), half)
    }

    fn fill(&self, queue: &QueueHandle, fill: &Fill<'_>) -> Result<Ticket> {
        self.start(Operation::Fill, queue, |inner| inner.fill(queue, fill), &[])
    }

    fn search(&self, queue: &QueueHandle, search: &Search<'_>) -> Result<Ticket> {
        self.start(Operation::Search, queue, |inner| inner.search(queue, search), &[])
    }

    fn gather(&self, queue: &QueueHandle, gather: &Gather<'_>) -> Result<Ticket> {
        self.start(Operation::Gather, queue, |inner| inner.gather(queue, gather), &[])
    }

    fn scatter(&self, queue: &QueueHandle, scatter: &Scatter<'_>) -> Result<Ticket> {
        self.start(Operation::Scatter, queue, |inner| inner.scatter(queue, scatter), &[])
    }

    fn compute(&self, queue: &QueueHandle, compute: &Compute<'_>) -> Result<Ticket> {
        self.start(Operation::Compute, queue, |inner| inner.compute(queue, compute), &[])
    }

    fn prepare(&self, compute: &Compute<'_>) -> Result<()> {
        self.grant(Operation::Prepare, None, |inner| inner.prepare(compute))
    }

    fn poll(&self, ticket: Ticket) -> Result<Progress> {
        let answer = self.ask(ticket, self.inner.poll(ticket), |progress| *progress == Progress::Done);
        if matches!(&answer, Err(error) if error.kind() == ErrorKind::Lost) {
            // A lost device does nothing more; the inner one, which is none, may be at the work still.
            let _ = self.inner.wait(ticket);
        }
        answer
    }

    fn wait(&self, ticket: Ticket) -> Result<()> {
        self.ask(ticket, self.inner.wait(ticket), |()| true)
    }

    fn wake(&self, ticket: Ticket, waker: Waker) {
        let once = Arc::new(Once(Mutex::new(Some(waker))));
        let mut state = self.state.lock();
        if state.lost.is_none() {
            // Those that have come are forgotten from time to time.
            if state.wakers.len() == state.wakers.capacity() {
                state.wakers.retain(|once| once.0.lock().is_some());
            }
            state.wakers.push(Arc::clone(&once));
        }
        drop(state);
        if self.is_in_flight_at_the_loss(ticket) {
            once.wake();
        } else {
            self.inner.wake(ticket, once.into());
        }
    }

    fn order_after(&self, queue: &QueueHandle, ticket: Ticket) -> Result<()> {
        self.judge(Operation::OrderAfter, Some(queue.id()), None)?;
        self.inner.order_after(queue, ticket)
    }
}
