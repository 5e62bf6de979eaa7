//! What all parts of a device share: its context, memory and queues, and what becomes of them when it is
//! lost.

use std::cell::Cell;
use std::sync::{Arc, OnceLock};
use std::task::Waker;
use std::time::{Duration, Instant};

use backend_api::{Error, QueueId, Queues, Result, Route, Routing, Ticket, contended};
use parking_lot::RwLock;

use crate::context::{Context, Entered};
use crate::discovery::Card;
use crate::driver::{Code, Outcome};
use crate::error::lost;
use crate::kernel::Kernels;
use crate::names::Memory;
use crate::queue::{Order, Queue};
use crate::staging::{Lent, Loan};
use crate::wakers::Watch;

/// How long a waiter looks again and again before it gives its time slices away: small copies take 7 to 30
/// µs.
const SPIN: Duration = Duration::from_micros(30);
/// How long it does so before it sleeps between its looks. Who waits longer than that waits for many
/// megabytes.
const YIELD: Duration = Duration::from_millis(2);
/// The part of the time waited so far that a waiter sleeps until its next look, so that it is never late by
/// much more.
const PAUSE_PART: u32 = 128;
const PAUSE_MIN: Duration = Duration::from_micros(10);
const PAUSE_MAX: Duration = Duration::from_millis(1);
/// In every so many of these pauses the driver is asked whether it is well.
const EXAMINE_PAUSES: u32 = 32;
/// How many looks lie between two looks at the clock.
const LOOKS: u32 = 32;
/// In every so many pending answers of a thread the driver is asked whether it is well.
const EXAMINE_ANSWERS: u32 = 256;

#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) card: Card,
    pub(crate) headroom_bytes: u64,
    /// One route for all copies.
    pub(crate) route: Option<Route>,
    /// What was measured on the card.
    pub(crate) routing: RwLock<Routing>,
    pub(crate) context: Arc<Context>,
    pub(crate) memory: Memory,
    pub(crate) queues: Queues<Queue>,
    pub(crate) kernels: Kernels,
    pub(crate) watch: Arc<Watch>,
    lost: OnceLock<Code>,
}

impl Core {
    pub(crate) fn new(card: Card, context: Context, headroom_bytes: u64, route: Option<Route>) -> Self {
        let context = Arc::new(context);
        let kernels = Kernels::new(card.compute_capability);
        Self {
            card,
            headroom_bytes,
            route,
            routing: RwLock::default(),
            memory: Memory::default(),
            queues: Queues::default(),
            kernels,
            watch: Arc::default(),
            lost: OnceLock::new(),
            context,
        }
    }

    /// An error of the device for a driver's code; after a fatal one the device counts as lost.
    pub(crate) fn error(&self, operation: &'static str, code: Code) -> Error {
        if code.is_fatal() {
            self.lose(code);
        }
        code.error(operation).on(&self.card.info)
    }

    /// The same error, said of this device.
    pub(crate) fn here(&self, error: Error) -> Error {
        error.on(&self.card.info)
    }

    /// What a queue that has ended is refused with.
    pub(crate) fn unknown_queue(&self, operation: &'static str) -> Error {
        self.here(Queues::<Queue>::unknown(operation))
    }

    pub(crate) fn enter(&self, operation: &'static str) -> Result<Entered<'_>> {
        self.check_lost(operation)?;
        self.context.enter().map_err(|code| self.error(operation, code))
    }

    pub(crate) fn lost(&self) -> Option<Code> {
        self.lost.get().copied()
    }

    pub(crate) fn check_lost(&self, operation: &'static str) -> Result<()> {
        self.lost().map_or(Ok(()), |code| Err(lost(code, &self.card.info, operation)))
    }

    /// Declares the device lost: nothing is pending any more, and threads that wait notice at the next look.
    /// Wakers are left to the watcher, since the caller may hold locks.
    pub(crate) fn lose(&self, code: Code) {
        if self.lost.set(code).is_err() {
            return;
        }
        tracing::warn!(device = %self.card.info, ?code, "device lost");
        for queue in self.queues.live() {
            queue.freeze();
        }
    }

    pub(crate) fn queue(&self, operation: &'static str, id: QueueId) -> Result<Arc<Queue>> {
        self.queues.get(operation, id).map_err(|error| self.here(error))
    }

    /// The queue of a ticket that was given; `None` if the ticket is done because its queue has ended.
    pub(crate) fn queue_of(&self, operation: &'static str, ticket: Ticket) -> Result<Option<Arc<Queue>>> {
        self.queues.of(operation, ticket, Queue::newest).map_err(|error| self.here(error))
    }

    /// Asks the driver whether a queue that does not get on is well.
    pub(crate) fn examine(&self, queue: &Queue) {
        let newest = queue.newest();
        match queue.query() {
            // A shortage says nothing of the work, which goes on.
            Err(Code::NOT_READY | Code::OUT_OF_MEMORY) => {}
            Err(code) => self.lose(code),
            // All work up to `newest` and its marks were in the stream before it was found empty.
            Ok(()) if queue.is_reached_soon(newest) => {}
            Ok(()) => self.lose(Code::UNKNOWN),
        }
    }

    /// After a pending answer: has the driver asked now and then.
    pub(crate) fn was_pending(&self, queue: &Queue) {
        thread_local! {
            static ANSWERS: Cell<u32> = const { Cell::new(0) };
        }
        ANSWERS.set(ANSWERS.get().wrapping_add(1));
        if ANSWERS.get().is_multiple_of(EXAMINE_ANSWERS) {
            self.examine(queue);
        }
    }

    /// Whether there is nothing more to wait for.
    fn is_settled(&self, queue: &Queue, value: u64) -> bool {
        queue.is_reached(value) || self.lost().is_some()
    }

    /// The same for those who ask again and again.
    fn seems_settled(&self, queue: &Queue, value: u64) -> bool {
        queue.seems_reached(value) || self.lost().is_some()
    }

    /// Has `waker` woken once a value is done or the device is lost.
    pub(crate) fn wake(self: &Arc<Self>, queue: &Arc<Queue>, value: u64, waker: Waker) {
        let mut is_waiting = true;
        queue.add_waiter(value, waker, || {
            is_waiting = !self.is_settled(queue, value);
            !is_waiting
        });
        if is_waiting && let Err(error) = self.watch.add(self, queue) {
            // Nobody else will look: block here, which is late but never wrong.
            tracing::warn!(%error, "no thread for wakers");
            while !self.is_settled(queue, value) {
                std::thread::yield_now();
                self.was_pending(queue);
            }
            queue.deliver(value);
        }
    }

    /// Blocks until a value is done or the device is lost: spins, yields, sleeps.
    ///
    /// The caller looks for itself, without the watcher or another waiter, so it may hold locks, and may be a
    /// waker that the watcher runs.
    pub(crate) fn block(&self, queue: &Queue, value: u64) {
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

    /// Blocks until everything submitted so far is done or the device is lost.
    pub(crate) fn block_all(&self) {
        for queue in self.queues.live() {
            self.block(&queue, queue.newest());
        }
    }

    /// Submits work to a queue as one ticket. If anything fails, waits until nothing of it is in flight.
    pub(crate) fn enqueue(
        self: &Arc<Self>,
        operation: &'static str,
        id: QueueId,
        work: impl FnOnce(&mut Work<'_>) -> Outcome,
    ) -> Result<Ticket> {
        let queue = self.queue(operation, id)?;
        let _current = self.enter(operation)?;
        let mut order = contended::lock(&queue.order);
        if order.ended {
            return Err(self.unknown_queue(operation));
        }
        let value = queue.newest() + 1;
        // Before the lock is released and the context left, also where the program's own code panics.
        let unfinished = Unfinished { core: self, queue: &queue, value };
        let mut submission = Work { core: self, queue: &queue, order: &mut order, value };
        let submitted = work(&mut submission).and_then(|()| queue.record(value));
        submitted.map_err(|code| self.error(operation, code))?;
        std::mem::forget(unfinished);
        queue.submitted.store(value, std::sync::atomic::Ordering::Release);
        Ok(queue.ticket(value))
    }
}

/// A submission that is not recorded: when it is dropped, it waits until nothing of it is in flight.
struct Unfinished<'a> {
    core: &'a Arc<Core>,
    queue: &'a Arc<Queue>,
    value: u64,
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        // Code of the program that panicked may have left another context.
        let drained = self.core.context.enter_again().and_then(|()| self.queue.drain_for_sure());
        if let Err(code) = drained {
            self.core.lose(code);
        }
        self.queue.staging.lock().abandon(self.value, &self.queue.attention);
    }
}

/// One submission under way. The context is current.
#[derive(Debug)]
pub(crate) struct Work<'a> {
    pub(crate) core: &'a Arc<Core>,
    pub(crate) queue: &'a Arc<Queue>,
    pub(crate) order: &'a mut Order,
    value: u64,
}

impl Work<'_> {
    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.core.context
    }

    /// Pinned memory until the submission is done; at most [`STAGING_BYTES`](crate::staging::STAGING_BYTES).
    pub(crate) fn lend(&mut self, bytes: usize) -> Outcome<Loan> {
        loop {
            let reached = self.queue.reached(u64::MAX)?;
            let lent = self.queue.staging.lock().lend(
                self.context(),
                self.core.card.info.numa_node,
                bytes,
                self.value,
                reached,
                &self.queue.attention,
            )?;
            match lent {
                Lent::Piece(loan) => return Ok(loan),
                Lent::After(value) if value < self.value => {
                    self.core.block(self.queue, value);
                    if let Some(code) = self.core.lost() {
                        return Err(code);
                    }
                }
                Lent::After(_) => {
                    // All of it is lent to this very submission.
                    self.queue.drain()?;
                    self.queue.staging.lock().settle(self.value, &self.queue.attention);
                }
            }
        }
    }

    /// A piece of pinned memory with two zeroes, which an indexed kernel overwrites to make the ticket fail.
    pub(crate) fn report(&mut self, operation: &'static str, first: u64) -> Outcome<u64> {
        let loan = self.lend(16)?;
        // SAFETY: 16 bytes were lent, and nothing is in flight on them.
        unsafe { loan.host.write_bytes(0, 16) };
        self.queue.staging.lock().expect_report(operation, first, &self.queue.attention);
        Ok(loan.mapped)
    }
}
