//! Queue of a CUDA device: a stream, the numbers of its submissions, and the wakers that wait for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Waker;
use std::time::{Duration, Instant};

use backend_api::{QueueId, Result, Ticket};
use parking_lot::Mutex;
use vmarray_support::backends::wake_all;

use crate::completion::QueueEvents;
use crate::context::CudaContext;
use crate::driver::objects::{Event, Stream};
use crate::driver::{DriverResult, StatusCode};
use crate::memory::{DeviceMemory, VisitingQueue};
use crate::staging::StagingRing;

/// A queue of a device. The last thread that uses the queue drops it, and the drop destroys its stream.
#[derive(Debug)]
pub(crate) struct CudaQueue {
    pub(crate) id: QueueId,
    pub(crate) context: Arc<CudaContext>,
    pub(crate) stream: Stream,
    /// Locked during a submission, which orders the tickets.
    pub(crate) order: Mutex<SubmissionOrder>,
    pub(crate) submitted: AtomicU64,
    /// The newest value that was done when the device was lost; no later value becomes done. `u64::MAX`
    /// before.
    frozen: AtomicU64,
    events: QueueEvents,
    pub(crate) staging: Mutex<StagingRing>,
    /// Number of unread reports and of recorded failures. If it is 0, all completed values have succeeded.
    pub(crate) attention: AtomicU64,
    waiters: Mutex<Vec<(u64, Waker)>>,
    /// True if the watcher thread polls the queue.
    pub(crate) is_watched: AtomicBool,
}

impl VisitingQueue for CudaQueue {
    fn await_work(&self) -> DriverResult {
        if self.is_reached(self.newest()) { Ok(()) } else { self.drain_for_sure() }
    }
}

/// The part of a queue's state that submissions use, under one lock.
#[derive(Debug, Default)]
pub(crate) struct SubmissionOrder {
    /// True after the queue was released: a thread that still refers to it submits no more work.
    pub(crate) ended: bool,
    /// Scratch memory for kernels of this queue, which run one after the other.
    pub(crate) scratch: Option<DeviceMemory>,
    /// True if the search's state in the scratch memory was zeroed.
    pub(crate) search_ready: bool,
    /// True if the launches' state in the scratch memory was zeroed.
    pub(crate) launch_ready: bool,
    /// Device memory for pageable data that kernels must access.
    pub(crate) bounce: Option<DeviceMemory>,
    /// Device memory for temporary data of cuBLAS, whose products of this queue run one after the other.
    pub(crate) workspace: Option<DeviceMemory>,
    /// Device memory for private heaps of work-items, and the most of it that was requested so far.
    pub(crate) slabs: Option<DeviceMemory>,
    pub(crate) slabs_wanted: u64,
    /// Events after launches of the copy kernel whose lists are reused within a submission.
    pub(crate) list_events: Vec<Event>,
}

impl CudaQueue {
    pub(crate) fn new(id: QueueId, context: &Arc<CudaContext>) -> DriverResult<Self> {
        let stream = Stream::new(context)?;
        Ok(Self {
            id,
            context: Arc::clone(context),
            stream,
            order: Mutex::default(),
            submitted: AtomicU64::new(0),
            frozen: AtomicU64::new(u64::MAX),
            events: QueueEvents::new(context),
            staging: Mutex::default(),
            attention: AtomicU64::new(0),
            waiters: Mutex::default(),
            is_watched: AtomicBool::new(false),
        })
    }

    pub(crate) fn newest(&self) -> u64 {
        self.submitted.load(Ordering::Acquire)
    }

    pub(crate) fn ticket(&self, value: u64) -> Ticket {
        Ticket { queue: self.id, value }
    }

    /// Returns the ticket value of a completed submission: the newest one, or any value from `wanted` on.
    pub(crate) fn reached(&self, wanted: u64) -> DriverResult<u64> {
        let frozen = self.frozen.load(Ordering::Acquire);
        if frozen != u64::MAX {
            return Ok(frozen);
        }
        self.events.reached(wanted)
    }

    /// Returns true if the submission with a ticket value is done; false if the driver returns an error.
    pub(crate) fn is_reached(&self, value: u64) -> bool {
        self.reached(value).is_ok_and(|reached| reached >= value)
    }

    /// Returns true if a ticket value is done after its stream was found empty. With 16 polling threads, the
    /// driver (580, an H200) reported events as pending for up to 1.5 ms after it had reported their stream
    /// as empty.
    pub(crate) fn is_reached_soon(&self, value: u64) -> bool {
        const PATIENCE: Duration = Duration::from_secs(2);
        let start = Instant::now();
        while !self.is_reached(value) {
            if start.elapsed() > PATIENCE {
                return false;
            }
            std::thread::yield_now();
        }
        true
    }

    /// Like [`is_reached`](Self::is_reached), for callers that poll repeatedly: also returns `false` while
    /// another thread polls.
    pub(crate) fn seems_reached(&self, value: u64) -> bool {
        let frozen = self.frozen.load(Ordering::Acquire);
        if frozen != u64::MAX {
            return frozen >= value;
        }
        self.events.glimpse(value).is_ok_and(|reached| reached >= value)
    }

    /// Records an event for the submission with a ticket value. The context must be current.
    pub(crate) fn record(&self, value: u64) -> DriverResult {
        self.events.record(&self.stream, value)
    }

    /// Makes later work of `stream` wait for a submission, by its ticket value. The context must be current.
    pub(crate) fn order_before(&self, stream: &Stream, value: u64) -> DriverResult {
        self.events.order(stream, value)
    }

    /// Returns the result of a completed submission, by its ticket value.
    pub(crate) fn outcome(&self, value: u64) -> Result<()> {
        if self.attention.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        let mut staging = self.staging.lock();
        staging.settle(value, &self.attention);
        staging.failure(value).map_or(Ok(()), Err)
    }

    /// Returns `Ok` if all work of the stream is done, otherwise the driver's code.
    pub(crate) fn query(&self) -> DriverResult {
        let _current = self.context.enter()?;
        self.stream.query()
    }

    /// Blocks until the stream is empty.
    pub(crate) fn drain(&self) -> DriverResult {
        let _current = self.context.enter()?;
        self.stream.synchronize()
    }

    /// Blocks until the stream is empty, and retries for long if the driver is short of memory, because no
    /// work may be in flight afterwards.
    pub(crate) fn drain_for_sure(&self) -> DriverResult {
        const PATIENCE: Duration = Duration::from_secs(10);
        let start = Instant::now();
        loop {
            match self.drain() {
                Err(StatusCode::OUT_OF_MEMORY) if start.elapsed() < PATIENCE => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                answer => return answer,
            }
        }
    }

    /// Stops the progress of the queue after the loss of the device.
    pub(crate) fn freeze(&self) {
        let reached = self.events.reached(u64::MAX).unwrap_or_else(|_| self.events.reached(0).unwrap_or(0));
        let reached = reached.min(self.newest());
        let _ = self.frozen.compare_exchange(u64::MAX, reached, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Adds a waker, unless `is_settled`, called under the lock, returns that it would be too late.
    pub(crate) fn add_waiter(&self, value: u64, waker: Waker, is_settled: impl FnOnce() -> bool) {
        let mut waiters = self.waiters.lock();
        if is_settled() {
            drop(waiters);
            waker.wake();
        } else {
            waiters.push((value, waker));
        }
    }

    /// Calls the wakers of completed values. The calling thread must hold no lock.
    pub(crate) fn deliver(&self, reached: u64) {
        let mut due = Vec::new();
        self.take_due(reached, &mut due);
        wake_all(due);
    }

    /// Moves the wakers of completed values to `due`. Returns true if other wakers are left.
    pub(crate) fn take_due(&self, reached: u64, due: &mut Vec<Waker>) -> bool {
        let mut waiters = self.waiters.lock();
        due.extend(waiters.extract_if(.., |(value, _)| *value <= reached).map(|(_, waker)| waker));
        !waiters.is_empty()
    }

    /// The lowest ticket value for which a waker waits.
    pub(crate) fn awaited(&self) -> Option<u64> {
        self.waiters.lock().iter().map(|(value, _)| *value).min()
    }
}
