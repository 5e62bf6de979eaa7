//! State that all parts of a CUDA device share: context, memory and queues; handles the loss of the device.

use std::cell::Cell;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use backend_api::{Error, QueueId, Result, Route, Routing, Ticket};
use parking_lot::RwLock;
use vmarray_support::Queues;

use crate::context::{CudaContext, Entered};
use crate::cublas::Cublas;
use crate::discovery::Card;
use crate::driver::StatusCode;
use crate::error::lost;
use crate::handle_table::CudaMemory;
use crate::kernel::modules::ModuleKernels;
use crate::queue::CudaQueue;
use crate::wakers::CompletionThread;

/// The time for which a waiter polls before it yields its time slices: small copies take 7 to 30 µs.
const SPIN: Duration = Duration::from_micros(30);
/// The time for which a waiter yields before it sleeps between polls. Longer waits are for many megabytes.
const YIELD: Duration = Duration::from_millis(2);
/// Reciprocal of the part of the elapsed time that a waiter sleeps between polls, which bounds its delay.
const PAUSE_PART: u32 = 128;
const PAUSE_MIN: Duration = Duration::from_micros(10);
const PAUSE_MAX: Duration = Duration::from_millis(1);
/// The number of pauses between two checks of the driver's health.
const EXAMINE_PAUSES: u32 = 32;
/// The number of polls between two readings of the clock.
const LOOKS: u32 = 32;
/// The number of a thread's pending polls between two checks of the driver's health.
const EXAMINE_ANSWERS: u32 = 256;

#[derive(Debug)]
pub(crate) struct CudaCore {
    pub(crate) card: Card,
    pub(crate) headroom_bytes: u64,
    /// The route for all copies, if the options force one.
    pub(crate) route: Option<Route>,
    /// The measured routes for the GPU.
    pub(crate) routing: RwLock<Routing>,
    pub(crate) context: Arc<CudaContext>,
    pub(crate) memory: CudaMemory,
    pub(crate) queues: Queues<CudaQueue>,
    pub(crate) kernels: ModuleKernels,
    pub(crate) cublas: Cublas,
    pub(crate) watch: Arc<CompletionThread>,
    lost: OnceLock<StatusCode>,
}

impl CudaCore {
    pub(crate) fn new(card: Card, context: CudaContext, headroom_bytes: u64, route: Option<Route>) -> Self {
        let context = Arc::new(context);
        let kernels = ModuleKernels::new(card.compute_capability);
        Self {
            card,
            headroom_bytes,
            route,
            routing: RwLock::default(),
            memory: CudaMemory::default(),
            queues: Queues::default(),
            kernels,
            cublas: Cublas::default(),
            watch: Arc::default(),
            lost: OnceLock::new(),
            context,
        }
    }

    /// Returns a device error for a driver's code. A fatal code makes the device lost.
    pub(crate) fn error(&self, operation: &'static str, code: StatusCode) -> Error {
        if code.is_fatal() {
            self.lose(code);
        }
        code.error(operation).on(&self.card.info)
    }

    /// Adds this device to an error.
    pub(crate) fn here(&self, error: Error) -> Error {
        error.on(&self.card.info)
    }

    /// The error for a queue that has ended.
    pub(crate) fn unknown_queue(&self, operation: &'static str) -> Error {
        self.here(Queues::<CudaQueue>::unknown(operation))
    }

    pub(crate) fn enter(&self, operation: &'static str) -> Result<Entered<'_>> {
        self.check_lost(operation)?;
        self.context.enter().map_err(|code| self.error(operation, code))
    }

    pub(crate) fn lost(&self) -> Option<StatusCode> {
        self.lost.get().copied()
    }

    pub(crate) fn check_lost(&self, operation: &'static str) -> Result<()> {
        self.lost().map_or(Ok(()), |code| Err(lost(code, &self.card.info, operation)))
    }

    /// Marks the device as lost: all work ends, and waiting threads notice it at their next poll. The
    /// watcher runs the wakers, since the caller may hold locks.
    pub(crate) fn lose(&self, code: StatusCode) {
        if self.lost.set(code).is_err() {
            return;
        }
        tracing::warn!(device = %self.card.info, ?code, "device lost");
        for queue in self.queues.live() {
            queue.freeze();
        }
    }

    pub(crate) fn queue(&self, operation: &'static str, id: QueueId) -> Result<Arc<CudaQueue>> {
        self.queues.get(operation, id).map_err(|error| self.here(error))
    }

    /// Returns the queue of an issued ticket; `None` if the ticket is done because its queue has ended.
    pub(crate) fn queue_of(&self, operation: &'static str, ticket: Ticket) -> Result<Option<Arc<CudaQueue>>> {
        self.queues.of(operation, ticket, CudaQueue::newest).map_err(|error| self.here(error))
    }

    /// Queries the driver if a queue without progress has failed.
    pub(crate) fn examine(&self, queue: &CudaQueue) {
        let newest = queue.newest();
        match queue.query() {
            // These codes do not prove that the work failed, so the work continues.
            Err(StatusCode::NOT_READY | StatusCode::OUT_OF_MEMORY) => {}
            Err(code) => self.lose(code),
            // The stream is empty, so all events must be complete. If one event is not, the device is lost.
            Ok(()) if queue.is_reached_soon(newest) => {}
            Ok(()) => self.lose(StatusCode::UNKNOWN),
        }
    }

    /// Counts a pending poll, and checks the driver's health from time to time.
    pub(crate) fn was_pending(&self, queue: &CudaQueue) {
        thread_local! {
            static ANSWERS: Cell<u32> = const { Cell::new(0) };
        }
        ANSWERS.set(ANSWERS.get().wrapping_add(1));
        if ANSWERS.get().is_multiple_of(EXAMINE_ANSWERS) {
            self.examine(queue);
        }
    }

    /// Returns true if the wait for a ticket value is over: the value is done, or the device is lost.
    pub(crate) fn is_settled(&self, queue: &CudaQueue, value: u64) -> bool {
        queue.is_reached(value) || self.lost().is_some()
    }

    /// Like [`is_settled`](Self::is_settled), but cheaper and sometimes late, for polling callers.
    fn seems_settled(&self, queue: &CudaQueue, value: u64) -> bool {
        queue.seems_reached(value) || self.lost().is_some()
    }

    /// Blocks until a ticket value is done or the device is lost: first spins, then yields, then sleeps.
    ///
    /// The calling thread polls itself, without the watcher or another waiter. So it may hold locks, and may
    /// be a waker that the watcher runs.
    pub(crate) fn block(&self, queue: &CudaQueue, value: u64) {
        let start = Instant::now();
        loop {
            for _ in 0..LOOKS {
                if self.seems_settled(queue, value) {
                    return;
                }
                std::hint::spin_loop();
            }
            let waited = start.elapsed();
            if waited > YIELD {
                break;
            }
            if waited > SPIN {
                std::thread::yield_now();
            }
        }
        let mut pauses = 0_u32;
        while !self.is_settled(queue, value) {
            if pauses.is_multiple_of(EXAMINE_PAUSES) {
                self.examine(queue);
            }
            pauses = pauses.wrapping_add(1);
            std::thread::sleep((start.elapsed() / PAUSE_PART).clamp(PAUSE_MIN, PAUSE_MAX));
        }
    }

    /// Blocks until all submissions so far are done or the device is lost.
    pub(crate) fn block_all(&self) {
        for queue in self.queues.live() {
            self.block(&queue, queue.newest());
        }
    }
}
