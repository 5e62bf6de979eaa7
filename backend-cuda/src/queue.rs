//! A queue: a stream, the numbers of its tickets, and who waits for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Waker;
use std::time::{Duration, Instant};

use backend_api::backends::wake_all;
use backend_api::{QueueId, Result, Ticket};
use parking_lot::Mutex;

use crate::completion::Events;
use crate::context::Context;
use crate::driver::objects::{Event, Stream};
use crate::driver::{Code, Outcome};
use crate::memory::DeviceMemory;
use crate::staging::Staging;

/// A queue of a device. Its stream is destroyed with it, when the last thread that uses it lets go.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) id: QueueId,
    pub(crate) context: Arc<Context>,
    pub(crate) stream: Stream,
    /// Held while work is submitted, which gives the order of the tickets.
    pub(crate) order: Mutex<Order>,
    pub(crate) submitted: AtomicU64,
    /// What was done when the device was lost; nothing is done after that. `u64::MAX` before.
    frozen: AtomicU64,
    events: Events,
    pub(crate) staging: Mutex<Staging>,
    /// Reports to be read, plus failures that are remembered. While it is 0, what is reached has succeeded.
    pub(crate) attention: AtomicU64,
    waiters: Mutex<Vec<(u64, Waker)>>,
    /// Whether the watcher knows of it.
    pub(crate) is_watched: AtomicBool,
}

/// What only the submitting side of a queue uses.
#[derive(Debug, Default)]
pub(crate) struct Order {
    /// Set when the queue is released: a thread that still has it submits nothing more.
    pub(crate) ended: bool,
    /// Device memory for kernels of this queue, which run one after the other.
    pub(crate) scratch: Option<DeviceMemory>,
    /// Whether the search's state in the scratch memory was set to zero.
    pub(crate) search_ready: bool,
    /// Whether the state of launches there was set to zero.
    pub(crate) launch_ready: bool,
    /// Device memory in which pageable data is put where kernels reach it.
    pub(crate) bounce: Option<DeviceMemory>,
    /// Device memory that items of kernels take for themselves, and the most of it that was wanted so far.
    pub(crate) slabs: Option<DeviceMemory>,
    pub(crate) slabs_wanted: u64,
    /// After launches of the copy kernel whose lists are used again within a submission.
    pub(crate) list_events: Vec<Event>,
}

impl Queue {
    pub(crate) fn new(id: QueueId, context: &Arc<Context>) -> Outcome<Self> {
        let stream = Stream::new(context)?;
        Ok(Self {
            id,
            context: Arc::clone(context),
            stream,
            order: Mutex::default(),
            submitted: AtomicU64::new(0),
            frozen: AtomicU64::new(u64::MAX),
            events: Events::new(context),
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

    /// The newest value that is done, at least if it is below `wanted`.
    pub(crate) fn reached(&self, wanted: u64) -> Outcome<u64> {
        let frozen = self.frozen.load(Ordering::Acquire);
        if frozen != u64::MAX {
            return Ok(frozen);
        }
        self.events.reached(wanted)
    }

    /// Whether a value is done; `false` where the driver says nothing good.
    pub(crate) fn is_reached(&self, value: u64) -> bool {
        self.reached(value).is_ok_and(|reached| reached >= value)
    }

    /// Whether a value is done whose stream was found empty. With 16 threads at it, the driver (580, an H200)
    /// called events pending for up to 1.5 ms after it had called their stream empty.
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

    /// The same for those who ask again and again: `false` also while another thread is asking.
    pub(crate) fn seems_reached(&self, value: u64) -> bool {
        let frozen = self.frozen.load(Ordering::Acquire);
        if frozen != u64::MAX {
            return frozen >= value;
        }
        self.events.glimpse(value).is_ok_and(|reached| reached >= value)
    }

    /// Announces a value after all work submitted so far. The context is current.
    pub(crate) fn record(&self, value: u64) -> Outcome {
        self.events.record(&self.stream, value)
    }

    /// Lets later work of `stream` wait for a value. The context is current.
    pub(crate) fn order_before(&self, stream: &Stream, value: u64) -> Outcome {
        self.events.order(stream, value)
    }

    /// Whether a value that was reached has failed.
    pub(crate) fn outcome(&self, value: u64) -> Result<()> {
        if self.attention.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        let mut staging = self.staging.lock();
        staging.settle(value, &self.attention);
        staging.failure(value).map_or(Ok(()), Err)
    }

    /// Whether the stream has run empty, or what the driver complains about.
    pub(crate) fn query(&self) -> Outcome {
        let _current = self.context.enter()?;
        self.stream.query()
    }

    /// Blocks until the stream has run empty.
    pub(crate) fn drain(&self) -> Outcome {
        let _current = self.context.enter()?;
        self.stream.synchronize()
    }

    /// The same where nothing may be in flight afterwards: a driver that is short of memory is asked again,
    /// for long.
    pub(crate) fn drain_for_sure(&self) -> Outcome {
        const PATIENCE: Duration = Duration::from_secs(10);
        let start = Instant::now();
        loop {
            match self.drain() {
                Err(Code::OUT_OF_MEMORY) if start.elapsed() < PATIENCE => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                answer => return answer,
            }
        }
    }

    /// From now on nothing more gets done.
    pub(crate) fn freeze(&self) {
        let reached = self.events.reached(u64::MAX).unwrap_or_else(|_| self.events.reached(0).unwrap_or(0));
        let reached = reached.min(self.newest());
        let _ = self.frozen.compare_exchange(u64::MAX, reached, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Remembers a waker, unless `is_settled` says, under the lock that delivery takes, that it is too late
    /// for that.
    pub(crate) fn add_waiter(&self, value: u64, waker: Waker, is_settled: impl FnOnce() -> bool) {
        let mut waiters = self.waiters.lock();
        if is_settled() {
            drop(waiters);
            waker.wake();
        } else {
            waiters.push((value, waker));
        }
    }

    /// Wakes those whose value is reached. No lock may be held. Returns how many were woken, and whether
    /// there are others.
    pub(crate) fn deliver(&self, reached: u64) -> (usize, bool) {
        let mut waiters = self.waiters.lock();
        let due: Vec<Waker> =
            waiters.extract_if(.., |(value, _)| *value <= reached).map(|(_, waker)| waker).collect();
        let others = !waiters.is_empty();
        drop(waiters);
        let woken = due.len();
        wake_all(due);
        (woken, others)
    }

    /// The lowest value that somebody waits for.
    pub(crate) fn awaited(&self) -> Option<u64> {
        self.waiters.lock().iter().map(|(value, _)| *value).min()
    }
}
