//! Loads of futures that are submitted together: how far they have come, and who waits for them.
//!
//! What concerns all of them is done once: the device gets one waker, one future hands all pages over to the cache, and
//! what came of them is then there for the others to read without a lock.

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

/// It is being put together.
const QUEUED: u8 = 0;
/// It belongs to the device, or is about to; or its pages are looked at.
const SUBMITTED: u8 = 1;
/// The device is done with it.
const DONE: u8 = 2;

/// Loads that are submitted together.
#[derive(Debug)]
pub(crate) struct Batch {
    stage: AtomicU8,
    /// Of those who wait, by place; listed beside the loads before it is submitted.
    wakers: Mutex<Vec<Option<Waker>>>,
    /// What is known once it is submitted.
    plan: OnceLock<Plan>,
    ticket: OnceLock<Ticket>,
    /// Set when its pages were handed over to the cache, or will not come.
    outcome: OnceLock<Result<()>>,
    admission: Arc<Admission>,
    /// Whether it will be looked at again.
    is_reminded: AtomicBool,
}

#[derive(Debug)]
struct Plan {
    loads: usize,
    places: Vec<Place>,
}

/// One who waits for a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) page: u64,
    pub(crate) element: Bytes,
    pub(crate) fate: Fate,
}

/// What a batch does for one who waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It loads the page on their behalf.
    Loads,
    /// It loads the page on behalf of somebody else.
    Shares,
    /// Nothing: they have to look for themselves.
    Nothing,
}

/// The bytes that a future is going to read; none if it does not tell. A hint to the processor, and to nobody else.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bytes {
    pub(crate) address: usize,
    pub(crate) len: usize,
}

/// How far a batch has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reached {
    Queued,
    Submitted,
    Done,
    /// It does [nothing](Fate::Nothing) for this place.
    Without,
}

impl Batch {
    pub(super) fn new(admission: &Arc<Admission>) -> Arc<Self> {
        Arc::new(Self {
            stage: AtomicU8::new(QUEUED),
            wakers: Mutex::default(),
            plan: OnceLock::new(),
            ticket: OnceLock::new(),
            outcome: OnceLock::new(),
            admission: Arc::clone(admission),
            is_reminded: AtomicBool::new(false),
        })
    }

    /// How far it has come. If it is submitted and not done, the waker of a place will be woken when it is, or when it
    /// turns out to do nothing for the place.
    pub(crate) fn poll(&self, place: usize, waker: &Waker) -> Reached {
        match self.stage.load(Ordering::Acquire) {
            QUEUED => return Reached::Queued,
            DONE => return self.done_for(place),
            _ => {}
        }
        let mut wakers = self.wakers.lock();
        if self.stage.load(Ordering::Relaxed) == DONE {
            return self.done_for(place);
        }
        if self.fate(place) == Some(Fate::Nothing) {
            return Reached::Without;
        }
        let known = &mut wakers[place];
        let is_known = known.as_ref().is_some_and(|known| known.will_wake(waker));
        let old = if is_known { None } else { known.replace(waker.clone()) };
        drop(wakers);
        drop(old);
        Reached::Submitted
    }

    fn done_for(&self, place: usize) -> Reached {
        if self.fate(place) == Some(Fate::Nothing) { Reached::Without } else { Reached::Done }
    }

    /// What it does for a place, once that is known.
    pub(crate) fn fate(&self, place: usize) -> Option<Fate> {
        Some(self.plan.get()?.places.get(place)?.fate)
    }

    /// What came of it, if somebody has handed its pages over.
    pub(crate) fn outcome(&self) -> Option<&Result<()>> {
        self.outcome.get()
    }

    /// How many loads it consists of.
    pub(crate) fn loads(&self) -> usize {
        self.plan.get().map_or(0, |plan| plan.loads)
    }

    /// What a future of this place is going to look at, if the batch is for it.
    pub(crate) fn place(&self, place: usize) -> Option<&Place> {
        self.plan.get()?.places.get(place).filter(|place| place.fate != Fate::Nothing)
    }

    /// The device's number for it, once it has got it.
    pub(super) fn ticket(&self) -> Option<Ticket> {
        self.ticket.get().copied()
    }

    /// Nothing is added any more. The caller has the lock under which it was put together, and [plans](Self::plan) it
    /// next.
    pub(super) fn close(&self, wakers: Vec<Option<Waker>>) {
        *self.wakers.lock() = wakers;
        self.stage.store(SUBMITTED, Ordering::Release);
    }

    /// What is going to be submitted, so that it is known for whom that does nothing. They are still to be
    /// [woken](Self::wake_others).
    pub(super) fn plan(&self, loads: usize, places: Vec<Place>) {
        let _ = self.plan.set(Plan { loads, places });
    }

    /// Wakes those for whom it does nothing.
    pub(super) fn wake_others(&self) {
        let Some(plan) = self.plan.get() else { return };
        let is_nothing = |place: &Place| place.fate == Fate::Nothing;
        if !plan.places.iter().any(is_nothing) {
            return;
        }
        let mut wakers = self.wakers.lock();
        // If it is done, there are none left.
        let others = plan.places.iter().zip(wakers.iter_mut()).filter(|(place, _)| is_nothing(place));
        let others: Vec<Waker> = others.filter_map(|(_, waker)| waker.take()).collect();
        drop(wakers);
        others.into_iter().for_each(wake);
    }

    /// The device has it, and will [wake](Wake) it.
    pub(super) fn accepted(&self, ticket: Ticket) {
        let _ = self.ticket.set(ticket);
    }

    /// The device has refused it.
    pub(super) fn refused(&self, error: backend_api::Error) {
        let _ = self.outcome.set(Err(error));
        self.end();
    }

    /// Notes what came of it, now that its pages were handed over to the cache.
    pub(super) fn finished(&self, outcome: Result<()>) {
        let _ = self.outcome.set(outcome);
    }

    /// Whoever waited at a place does not any more. Tells whether the batch was not submitted yet, and then does
    /// nothing.
    pub(super) fn leave(&self, place: usize) -> bool {
        if self.stage.load(Ordering::Acquire) == QUEUED {
            return true;
        }
        let mut wakers = self.wakers.lock();
        let gone = wakers.get_mut(place).and_then(Option::take);
        drop(wakers);
        drop(gone);
        false
    }

    fn end(&self) {
        let mut waiting = self.wakers.lock();
        // Under the lock: whoever looks either leaves a waker before, or sees this.
        self.stage.store(DONE, Ordering::Release);
        let wakers = mem::take(&mut *waiting);
        drop(waiting);
        // First those whose pages have come.
        wakers.into_iter().flatten().for_each(wake);
        self.admission.leave(self.loads());
    }

    /// Asks for a second look, unless there will be one.
    pub(super) fn remind(self: &Arc<Self>, open: &Arc<Open>) {
        if !self.is_reminded.load(Ordering::Relaxed) && !self.is_reminded.swap(true, Ordering::AcqRel) {
            remind(Arc::new(SecondLook { batch: Arc::clone(self), open: Arc::clone(open) }).into());
        }
    }
}

/// The device is done with it.
impl Wake for Batch {
    fn wake(self: Arc<Self>) {
        self.end();
    }
}

/// Has a batch submitted that nobody may have looked after.
struct SecondLook {
    batch: Arc<Batch>,
    open: Arc<Open>,
}

impl Wake for SecondLook {
    fn wake(self: Arc<Self>) {
        let open = self.open.lock();
        // Under the lock: whoever comes to the batch later asks for a look of their own.
        self.batch.is_reminded.store(false, Ordering::Relaxed);
        let waiting = open.waiting_for(&self.batch);
        drop(open);
        waiting.into_iter().flatten().for_each(wake);
    }
}
