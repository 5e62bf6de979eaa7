//! Loads that futures wait for.
//!
//! A future must not block, and a call for each page would cost microseconds. So the loads of futures that are polled
//! one after another are queued; the first has itself polled once more, and when its turn comes the others have had
//! theirs: then all are submitted in one call, or as soon as a batch is full. One waker for the whole batch is left
//! with the device.
//!
//! Where a thread's futures found nearly all of their pages absent lately, also the [looks](super::looks) at pages wait
//! until then.
//!
//! The first may be one that is not polled any more. So have others themselves polled, ever fewer, and there is a
//! [second look](super::reminder::remind) a moment later.
//!
//! No future holds a page or a frame while it waits: a loaded page belongs to the cache. So a future that is dropped,
//! or never polled again, keeps nobody from anything. Only half of the frames are filled for futures at a time; others
//! [wait in a line](Admission), so that a page which came is still there when its future is polled.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::task::Waker;

use backend_api::{Device, Progress};
use parking_lot::Mutex;

use super::admission::{Admission, FrameNews};
use super::batch::{Batch, Bytes, Fate, Place};
use super::combine::{BATCH_BYTES, Load, Then};
use super::frames::Frame;
use super::{Channel, NO_PAGE};
use crate::error::{ErrorKind, Result};
use crate::guards;
use crate::page::{Asleep, PageTable, wake};

/// The batch that is being put together. Its lock is taken before those of the line and of a batch.
pub(super) type Open = Mutex<Awaited>;

#[derive(Debug)]
pub(super) struct Awaited {
    admission: Arc<Admission>,
    batch: Arc<Batch>,
    loads: Vec<Load>,
    /// The places of those whose pages are to be looked at; only where there are no loads yet.
    unseen: Vec<usize>,
    /// Of those who wait, by place.
    wakers: Vec<Option<Waker>>,
    places: Vec<Place>,
}

/// A batch that nothing is added to any more: of loads, or of looks.
pub(super) struct Closed {
    pub(super) batch: Arc<Batch>,
    pub(super) loads: Vec<Load>,
    /// Places whose pages are to be looked at; there, the offset of the element stands for its address.
    pub(super) unseen: Vec<usize>,
    pub(super) places: Vec<Place>,
}

impl Awaited {
    pub(super) fn new(admission: &Arc<Admission>) -> Self {
        Self {
            admission: Arc::clone(admission),
            batch: Batch::new(admission),
            loads: Vec::new(),
            unseen: Vec::new(),
            wakers: Vec::new(),
            places: Vec::new(),
        }
    }

    /// One more who waits for the batch. Its place.
    fn add(&mut self, place: Place, waker: &Waker) -> usize {
        self.wakers.push(Some(waker.clone()));
        self.places.push(place);
        self.wakers.len() - 1
    }

    /// How many pages it is about.
    fn len(&self) -> usize {
        self.loads.len() + self.unseen.len()
    }

    /// Takes the batch out.
    fn close(&mut self) -> Option<Closed> {
        if self.len() == 0 {
            return None;
        }
        let (most, unseen, waiting) = (self.loads.len(), self.unseen.len(), self.wakers.len());
        let batch = mem::replace(&mut self.batch, Batch::new(&self.admission));
        let loads = mem::replace(&mut self.loads, Vec::with_capacity(most));
        let unseen = mem::replace(&mut self.unseen, Vec::with_capacity(unseen));
        let wakers = mem::replace(&mut self.wakers, Vec::with_capacity(waiting));
        let places = mem::replace(&mut self.places, Vec::with_capacity(waiting));
        self.admission.submitted(loads.len());
        batch.close(wakers);
        Some(Closed { batch, loads, unseen, places })
    }

    /// Those who wait for a batch, if it is the one that is being put together.
    pub(super) fn waiting_for(&self, batch: &Arc<Batch>) -> Option<Vec<Waker>> {
        Arc::ptr_eq(&self.batch, batch).then(|| self.wakers.iter().flatten().cloned().collect())
    }
}

/// Which of those who wait for a batch have themselves polled once more: the first, and ever fewer of the others.
fn looks_after(place: usize) -> bool {
    place == 0 || place.is_power_of_two()
}

/// What a task can do for a frame.
#[derive(Debug)]
pub(crate) enum FrameWait {
    /// Try again at once.
    No,
    /// It is woken when it is worth trying.
    Woken,
    /// The same, by a transfer that has taken over its place among those who were [admitted](Admission::enter).
    Transfer,
    /// The same, as long as this lives.
    Asleep(Asleep),
}

impl<D: Device> Channel<D> {
    pub(crate) fn admission(&self) -> &Arc<Admission> {
        &self.admission
    }

    /// Queues the load of an absent page, with contents, that the caller has
    /// [claimed](crate::page::Entry::claim_to_load), for a task that was [admitted](Admission::enter). With `alone` it
    /// is submitted at once, by itself. The task is going to read so many bytes at an offset within the page.
    pub(crate) fn load_for_task(
        &self,
        table: &PageTable,
        (page, frame): (u64, Frame),
        (offset, len): (usize, usize),
        alone: bool,
        waker: &Waker,
    ) -> (Arc<Batch>, usize) {
        let load = Load { page, frame, then: Then::Leave, id: 0 };
        let element = Bytes { address: frame.address.addr() + offset, len };
        let mut awaited = self.awaited.lock();
        let mut own = if alone { Some(Awaited::new(&self.admission)) } else { None };
        let to = own.as_mut().unwrap_or(&mut awaited);
        // Looks run code of others, which must not meet a load that is claimed and that nobody can submit.
        let looks = if to.unseen.is_empty() { None } else { to.close() };
        to.loads.push(load);
        let (batch, place) =
            (Arc::clone(&to.batch), to.add(Place { page, element, fate: Fate::Loads }, waker));
        let is_urgent = self.admission.queued();
        let full = if alone || is_urgent || to.len() >= self.batch_pages() { to.close() } else { None };
        drop(awaited);
        self.submit_or_look_after(table, full, &batch, place, waker);
        if let Some(looks) = looks {
            self.submit_for_tasks(table, looks);
        }
        (batch, place)
    }

    /// Queues a look at a page, and its load if it is absent, for a task that knows nothing of it. `None` if loads are
    /// queued, or other tasks stand in a line for them.
    ///
    /// The entries of an array far larger than its cache lie in memory. One after the other they are waited for; when
    /// the looks of many tasks come together, they arrive meanwhile (as in S. Chen, A. Ailamaki, P. Gibbons, T. Mowry,
    /// "Improving hash join performance through prefetching", 2004).
    pub(crate) fn look_for_task(
        &self,
        table: &PageTable,
        page: u64,
        (offset, len): (usize, usize),
        waker: &Waker,
    ) -> Option<(Arc<Batch>, usize)> {
        if self.admission.has_line() {
            return None;
        }
        let mut awaited = self.awaited.lock();
        if !awaited.loads.is_empty() {
            return None;
        }
        let element = Bytes { address: offset, len };
        let place = awaited.add(Place { page, element, fate: Fate::Nothing }, waker);
        awaited.unseen.push(place);
        let batch = Arc::clone(&awaited.batch);
        let most = self.batch_pages().min(self.admission.places());
        let full = if awaited.len() >= most { awaited.close() } else { None };
        drop(awaited);
        self.submit_or_look_after(table, full, &batch, place, waker);
        Some((batch, place))
    }

    /// How many pages a batch has at most.
    fn batch_pages(&self) -> usize {
        (BATCH_BYTES / self.page_bytes).max(1)
    }

    /// Submits a batch that is full; else sees to it that some of those who wait for it are polled again.
    fn submit_or_look_after(
        &self,
        table: &PageTable,
        full: Option<Closed>,
        batch: &Arc<Batch>,
        place: usize,
        waker: &Waker,
    ) {
        match full {
            Some(closed) => self.submit_for_tasks(table, closed),
            // Until it is polled again, others may add to the batch.
            None if looks_after(place) => wake(waker.clone()),
            None => batch.remind(&self.awaited),
        }
    }

    /// Submits what futures have queued; false if that is nothing.
    pub(crate) fn submit_awaited(&self, table: &PageTable) -> bool {
        let closed = self.awaited.lock().close();
        let Some(closed) = closed else { return false };
        self.submit_for_tasks(table, closed);
        true
    }

    fn submit_for_tasks(&self, table: &PageTable, mut closed: Closed) {
        // From here on no code of others runs until the loads are on record: it might wait for one of them.
        let looks = self.look_together(table, &mut closed);
        let Closed { batch, loads, places, .. } = closed;
        batch.plan(loads.len(), places);
        if !loads.is_empty() {
            self.counters.misses.add(loads.len() as u64);
            match self.submit_loads(table, loads) {
                Ok(ticket) => {
                    batch.accepted(ticket);
                    self.device.wake(ticket, Arc::clone(&batch).into());
                }
                Err(error) => batch.refused(error),
            }
        }
        if let Some(looks) = looks {
            self.end_looks(table, looks);
            batch.wake_others();
        }
    }

    /// What came of a batch that is done. Whoever asks first hands its pages over to the cache.
    ///
    /// # Errors
    /// That of the batch.
    pub(crate) fn finish_batch(&self, table: &PageTable, batch: &Batch) -> backend_api::Result<()> {
        if let Some(outcome) = batch.outcome() {
            return outcome.clone();
        }
        let Some(ticket) = batch.ticket() else { return Ok(()) };
        // Does not wait: the device is done. Nor does it do harm if another task does it, too.
        let _ = self.finish(table, ticket);
        let outcome = self.device.poll(ticket).map(drop);
        batch.finished(outcome.clone());
        outcome
    }

    /// The task that waited at a place of a batch does not any more.
    pub(crate) fn leave_batch(&self, table: &PageTable, batch: &Batch, place: usize) {
        if batch.leave(place) {
            // It may be this task that the others rely on.
            self.submit_awaited(table);
            batch.leave(place);
        }
    }

    /// For a task that needs a page which is in flight: a batch to wait for, or whether it is woken. If neither, it
    /// tries again at once.
    pub(crate) fn poll_transfer(
        &self,
        table: &PageTable,
        page: u64,
        waker: &Waker,
    ) -> (Option<(Arc<Batch>, usize)>, bool) {
        {
            let mut awaited = self.awaited.lock();
            if let Some(load) = awaited.loads.iter().find(|load| load.page == page) {
                let element = Bytes { address: load.frame.address.addr(), len: 0 };
                let place = awaited.add(Place { page, element, fate: Fate::Shares }, waker);
                let batch = Arc::clone(&awaited.batch);
                drop(awaited);
                if looks_after(place) {
                    wake(waker.clone());
                } else {
                    batch.remind(&self.awaited);
                }
                return (Some((batch, place)), true);
            }
        }
        let found = self.lock().transfer_of(page).map(|(ticket, _)| ticket);
        let Some(ticket) = found else {
            // Its owner is about to put it on record, or somebody finished it just now.
            wake(waker.clone());
            return (None, true);
        };
        if matches!(self.device.poll(ticket), Ok(Progress::Pending)) {
            self.device.wake(ticket, waker.clone());
            return (None, true);
        }
        // Told to whoever asked for it.
        let _ = self.finish(table, ticket);
        (None, false)
    }

    /// For a task that needs a page whose load is queued by threads: submits that, if none of them does.
    pub(crate) fn push_on(&self, table: &PageTable) {
        self.lead_if_needed(table);
    }

    /// For a task that was [admitted](Admission::enter) and got no frame: what can be waited for, as threads do.
    ///
    /// # Errors
    /// A failed write-back; [`TooManyGuards`](ErrorKind::TooManyGuards) if all frames are guarded, and the calling
    /// thread holds guards.
    pub(crate) fn poll_frame(&self, table: &PageTable, waker: &Waker) -> Result<FrameWait> {
        let oldest = {
            if !self.free.is_empty() {
                return Ok(FrameWait::No);
            }
            self.lock().oldest_transfer()
        };
        if let Some((ticket, is_write_back)) = oldest {
            if matches!(self.device.poll(ticket), Ok(Progress::Pending)) {
                let news = FrameNews { admission: Arc::clone(&self.admission), waker: waker.clone() };
                self.device.wake(ticket, Arc::new(news).into());
                return Ok(FrameWait::Transfer);
            }
            let outcome = self.finish(table, ticket);
            if is_write_back && outcome.is_err() {
                // Told to whoever needs the frame.
                self.lock().write_error = None;
                outcome?;
            }
            return Ok(FrameWait::No);
        }
        if self.submit_awaited(table) {
            return Ok(FrameWait::No);
        }
        if self.all_frames_guarded(table) {
            if guards::held() {
                let frames = u64::from(self.frames_max);
                return Err(ErrorKind::TooManyGuards { channel: self.index, frames }.into());
            }
            return Ok(self.sleep_as_task(waker, || self.all_frames_guarded(table)));
        }
        // A thread is between two steps of taking or releasing a page.
        wake(waker.clone());
        Ok(FrameWait::Woken)
    }

    fn all_frames_guarded(&self, table: &PageTable) -> bool {
        let shard = self.lock();
        let is_guarded =
            |page: &u64| *page != NO_PAGE && table.entry(*page).state(Ordering::Acquire).guards() > 0;
        self.free.is_empty() && !shard.frames.is_empty() && shard.pages.iter().all(is_guarded)
    }

    /// Counts a guard, if there may be one more; else what a task can do.
    ///
    /// # Errors
    /// [`TooManyGuards`](ErrorKind::TooManyGuards) if the calling thread holds guards.
    pub(crate) fn poll_guard(&self, waker: &Waker) -> Result<Option<FrameWait>> {
        if self.try_admit_guard() {
            return Ok(None);
        }
        let frames = self.guards_max.load(Ordering::Relaxed);
        if guards::held() {
            return Err(ErrorKind::TooManyGuards { channel: self.index, frames: u64::from(frames) }.into());
        }
        Ok(Some(self.sleep_as_task(waker, || self.guards.load(Ordering::SeqCst) >= frames)))
    }

    /// Until [`announce`](Self::announce), if something still holds.
    fn sleep_as_task(&self, waker: &Waker, holds: impl Fn() -> bool) -> FrameWait {
        let asleep = Asleep::at(self.task_key(), waker);
        // Either this look sees the change, or whoever made it sees the sleeper.
        fence(Ordering::SeqCst);
        if holds() { FrameWait::Asleep(asleep) } else { FrameWait::No }
    }

    /// Under which tasks sleep that wait for [`announce`](Self::announce).
    pub(super) fn task_key(&self) -> usize {
        std::ptr::from_ref(&self.freed).addr()
    }
}
