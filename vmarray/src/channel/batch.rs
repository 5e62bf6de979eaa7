//! Loads of futures that are submitted together: how far they have come, and who waits for them.
//!
//! What concerns all of them is done once: the device gets one waker, one future hands all pages over to the cache, and
//! what came of them is then there for the others to read without a lock.
//!
//! Of many futures the device wakes a few, and the first of those that is polled wakes the rest: on the thread that
//! polls them, where that costs a fraction of what it does from the device's thread. Any of the few may be one that is
//! not polled any more; so there is a [second look](remind) a moment later.

use std::mem;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Wake, Waker};

use backend_api::{Result, Ticket};
use parking_lot::Mutex;

use super::admission::Admission;
use super::awaited::Open;
use super::reminder::remind;
use crate::page::wake;

/// How many of those who wait the device wakes itself.
const FIRST_WOKEN: usize = 4;

/// It is being put together. Those who wait are listed beside the loads.
const QUEUED: u8 = 0;
/// It belongs to the device, or is about to.
const SUBMITTED: u8 = 1;
/// The device is done with it.
const DONE: u8 = 2;

/// Loads that are submitted together.
#[derive(Debug)]
pub(crate) struct Batch {
    stage: AtomicU8,
    state: Mutex<State>,
    /// What is known once it is submitted.
    plan: OnceLock<Plan>,
    ticket: OnceLock<Ticket>,
    /// Set when its pages were handed over to the cache, or will not come.
    outcome: OnceLock<Result<()>>,
    admission: Arc<Admission>,
    /// Whether it will be looked at again.
    is_reminded: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    /// By place.
    wakers: Vec<Option<Waker>>,
}

#[derive(Debug)]
struct Plan {
    loads: usize,
    /// Where the elements will be, by place.
    elements: Vec<Bytes>,
}

/// The bytes that a future is going to read; none if it does not tell.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bytes {
    pub(crate) address: *const u8,
    pub(crate) len: usize,
}

// SAFETY: nothing but hints to the processor come of it.
unsafe impl Send for Bytes {}
// SAFETY: as above.
unsafe impl Sync for Bytes {}

/// How far a batch has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reached {
    Queued,
    Submitted,
    Done,
}

impl Batch {
    pub(super) fn new(admission: &Arc<Admission>) -> Arc<Self> {
        Arc::new(Self {
            stage: AtomicU8::new(QUEUED),
            state: Mutex::default(),
            plan: OnceLock::new(),
            ticket: OnceLock::new(),
            outcome: OnceLock::new(),
            admission: Arc::clone(admission),
            is_reminded: AtomicBool::new(false),
        })
    }

    /// How far it has come. If it is submitted and not done, the waker of a place will be woken when it is.
    pub(crate) fn poll(&self, place: usize, waker: &Waker) -> Reached {
        match self.stage.load(Ordering::Acquire) {
            QUEUED => return Reached::Queued,
            DONE => return Reached::Done,
            _ => {}
        }
        let mut state = self.state.lock();
        if self.stage.load(Ordering::Relaxed) == DONE {
            return Reached::Done;
        }
        let known = &mut state.wakers[place];
        let is_known = known.as_ref().is_some_and(|known| known.will_wake(waker));
        let old = if is_known { None } else { known.replace(waker.clone()) };
        drop(state);
        drop(old);
        Reached::Submitted
    }

    /// What came of it, if somebody has handed its pages over.
    pub(crate) fn outcome(&self) -> Option<&Result<()>> {
        self.outcome.get()
    }

    /// How many loads it consists of.
    pub(crate) fn loads(&self) -> usize {
        self.plan.get().map_or(0, |plan| plan.loads)
    }

    /// Where a future of this place will find its element.
    pub(crate) fn element(&self, place: usize) -> Option<Bytes> {
        self.plan.get()?.elements.get(place).copied()
    }

    /// The device's number for it, once it has got it.
    pub(super) fn ticket(&self) -> Option<Ticket> {
        self.ticket.get().copied()
    }

    /// Nothing is added any more. The caller has the lock under which it was put together.
    pub(super) fn close(&self, loads: usize, elements: Vec<Bytes>, wakers: Vec<Option<Waker>>) {
        let _ = self.plan.set(Plan { loads, elements });
        self.state.lock().wakers = wakers;
        self.stage.store(SUBMITTED, Ordering::Release);
    }

    /// The device has it, and will [wake](Wake) it.
    pub(super) fn accepted(&self, ticket: Ticket) {
        let _ = self.ticket.set(ticket);
    }

    /// The device has refused it.
    pub(super) fn refused(&self, error: backend_api::Error) {
        let _ = self.outcome.set(Err(error));
        self.end(usize::MAX);
    }

    /// Notes what came of it, now that its pages were handed over to the cache, and wakes those who wait.
    pub(super) fn finished(&self, outcome: Result<()>) {
        if self.outcome.set(outcome).is_ok() {
            self.wake_all();
        }
    }

    /// Whoever waited at a place does not any more. Tells whether the batch was not submitted yet, and then does
    /// nothing.
    pub(super) fn leave(&self, place: usize) -> bool {
        if self.stage.load(Ordering::Acquire) == QUEUED {
            return true;
        }
        if self.outcome.get().is_some() {
            return false;
        }
        let mut state = self.state.lock();
        let gone = state.wakers.get_mut(place).and_then(Option::take);
        // It may be this one that the others rely on.
        let others = if self.stage.load(Ordering::Relaxed) == DONE {
            mem::take(&mut state.wakers)
        } else {
            Vec::new()
        };
        drop(state);
        drop(gone);
        others.into_iter().flatten().for_each(wake);
        false
    }

    /// The device is done: wakes so many.
    fn end(&self, most: usize) {
        let mut state = self.state.lock();
        // Under the lock: whoever looks either leaves a waker before, or sees this.
        self.stage.store(DONE, Ordering::Release);
        let woken: Vec<Waker> = state.wakers.iter_mut().filter_map(Option::take).take(most).collect();
        drop(state);
        // First those whose pages have come.
        woken.into_iter().for_each(wake);
        self.admission.leave(self.loads());
    }

    fn wake_all(&self) {
        let wakers = mem::take(&mut self.state.lock().wakers);
        wakers.into_iter().flatten().for_each(wake);
    }

    /// Asks for a second look, unless there will be one.
    pub(super) fn remind(self: &Arc<Self>, open: Option<&Arc<Open>>) {
        if !self.is_reminded.swap(true, Ordering::AcqRel) {
            remind(Arc::new(SecondLook { batch: Arc::clone(self), open: open.cloned() }).into());
        }
    }
}

/// The device is done with it.
impl Wake for Batch {
    fn wake(self: Arc<Self>) {
        self.end(FIRST_WOKEN);
        if self.state.lock().wakers.iter().any(Option::is_some) {
            self.remind(None);
        }
    }
}

/// What is done for a batch that nobody may have looked after.
struct SecondLook {
    batch: Arc<Batch>,
    /// Where it is put together, if it still was when the look was asked for.
    open: Option<Arc<Open>>,
}

impl Wake for SecondLook {
    fn wake(self: Arc<Self>) {
        // Whoever finds that there is no second look coming asks for one; whoever did not is seen here.
        self.batch.is_reminded.swap(false, Ordering::AcqRel);
        let waiting = self.open.as_ref().and_then(|open| open.lock().waiting_for(&self.batch));
        match waiting {
            Some(wakers) => wakers.into_iter().for_each(wake),
            None if self.batch.stage.load(Ordering::Acquire) == DONE => self.batch.wake_all(),
            None => {}
        }
    }
}
