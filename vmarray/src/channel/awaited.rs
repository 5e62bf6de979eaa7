//! Loads that futures wait for.
//!
//! A future must not block, and a call for each page would cost microseconds. So the loads of futures that are polled
//! one after another are queued; each has itself polled once more, and when the turn of the first one comes the others
//! have had theirs: then all are submitted in one call, or as soon as a batch is full. One waker for the whole batch is
//! left with the device.
//!
//! No future holds a page or a frame while it waits: a loaded page belongs to the cache. So a future that is dropped,
//! or never polled again, keeps nobody from anything. Only half of the frames are filled for futures at a time; others
//! wait in a line, so that a page which came is still there when its future is polled.

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::task::{Wake, Waker};

use backend_api::{Device, Progress, Ticket};
use parking_lot::{Mutex, MutexGuard};

use super::combine::{BATCH_BYTES, Load, Then};
use super::frames::Frame;
use super::reminder::remind;
use super::{Channel, NO_PAGE};
use crate::error::{ErrorKind, Result};
use crate::guards;
use crate::page::{Asleep, PageTable, unpark, wake};

/// How many pages may be on their way for futures, and who waits for that to become fewer.
///
/// Between two polls no task has a place: loads and transfers have them, which end by themselves, and call others.
/// Whoever was called may never be polled again. So when nothing is under way any more, and not all who wait were
/// called, there is a second look a moment later: if nobody has come in, twice as many are called, and so on.
#[derive(Debug)]
pub(crate) struct Admission {
    places: usize,
    line: Mutex<Line>,
}

#[derive(Debug, Default)]
struct Line {
    /// How many more may come in.
    free: usize,
    /// How many of those inside are loads that wait to be submitted.
    open: usize,
    /// By number: who came first is called first.
    waiting: BTreeMap<u64, Waker>,
    next: u64,
    /// How many came in so far, and had when a second look was asked for.
    entries: u64,
    entries_before: u64,
    /// How many were called last.
    called: usize,
    /// Whether there will be a second look.
    is_reminded: bool,
}

impl Line {
    fn is_idle(&self, places: usize) -> bool {
        debug_assert!(self.free + self.open <= places, "more leave than came in");
        self.free + self.open == places
    }
}

impl Admission {
    pub(super) fn new(frames: u32) -> Arc<Self> {
        let places = (frames as usize / 2).max(1);
        Arc::new(Self { places, line: Mutex::new(Line { free: places, ..Line::default() }) })
    }

    /// Lets one in, or puts it in the line: to its old place if it was called and somebody else was faster. `known` is
    /// its number, if it was there before. Its number, and whether it is in: then somebody has to
    /// [leave](Self::leave) for it; else the caller has the open batch submitted.
    pub(crate) fn enter(&self, known: Option<u64>, waker: &Waker) -> (u64, bool) {
        let mut line = self.line.lock();
        let number = known.unwrap_or_else(|| {
            line.next += 1;
            line.next
        });
        let is_in = line.free > 0 && (line.waiting.is_empty() || known.is_some());
        let old = if is_in {
            line.free -= 1;
            line.entries += 1;
            line.waiting.remove(&number)
        } else {
            line.waiting.insert(number, waker.clone())
        };
        drop(line);
        drop(old);
        (number, is_in)
    }

    /// Ends the stay of some, and calls others.
    pub(crate) fn leave(self: &Arc<Self>, count: usize) {
        let mut line = self.line.lock();
        line.free += count;
        let count = if line.is_idle(self.places) { line.free } else { count };
        self.call(line, count);
    }

    /// Ends the stay of one who is woken to come back, and so needs nobody in its stead.
    pub(crate) fn step_out(self: &Arc<Self>) {
        let mut line = self.line.lock();
        line.free += 1;
        self.call(line, 0);
    }

    /// One of those inside is a load now that waits to be submitted. Whether that has to be at once.
    fn queued(&self) -> bool {
        let mut line = self.line.lock();
        line.open += 1;
        !line.waiting.is_empty() && !line.is_reminded && line.is_idle(self.places)
    }

    /// So many of those are about to be submitted.
    fn submitted(&self, loads: usize) {
        self.line.lock().open -= loads;
    }

    /// Has the first ones of the line try to come in, and sees to a second look if that may be in vain.
    fn call(self: &Arc<Self>, mut line: MutexGuard<'_, Line>, count: usize) {
        if count > 0 {
            line.called = count;
        }
        let called = count.min(line.waiting.len());
        let called: Vec<Waker> =
            (0..called).filter_map(|_| line.waiting.pop_first()).map(|(_, waker)| waker).collect();
        let is_doubtful = !line.waiting.is_empty() && !line.is_reminded && line.is_idle(self.places);
        if is_doubtful {
            (line.is_reminded, line.entries_before) = (true, line.entries);
        }
        drop(line);
        called.into_iter().for_each(wake);
        if is_doubtful {
            remind(Arc::clone(self).into());
        }
    }

    /// Leaves the line. If it was called meanwhile, the next one is.
    pub(crate) fn give_up(self: &Arc<Self>, number: u64) {
        let mut line = self.line.lock();
        let gone = line.waiting.remove(&number);
        if gone.is_none() && line.free > 0 {
            self.call(line, 1);
        }
    }
}

/// The second look.
impl Wake for Admission {
    fn wake(self: Arc<Self>) {
        let mut line = self.line.lock();
        line.is_reminded = false;
        if line.is_idle(self.places) {
            let nobody_came = line.entries == line.entries_before;
            let more = if nobody_came { line.called.saturating_mul(2).max(1) } else { 0 };
            self.call(line, more);
        }
    }
}

/// Wakes a task that waits for a frame when a transfer is done, which has its place until then.
struct FrameNews {
    admission: Arc<Admission>,
    waker: Waker,
}

impl Wake for FrameNews {
    fn wake(self: Arc<Self>) {
        wake(self.waker.clone());
        self.admission.step_out();
    }
}

/// Loads of futures that are submitted together.
#[derive(Debug)]
pub(crate) struct Batch {
    state: Mutex<BatchState>,
    /// Set when the device is done with it.
    is_done: AtomicBool,
    /// Whether its pages were handed over to the cache.
    is_finished: AtomicBool,
    admission: Arc<Admission>,
}

#[derive(Debug, Default)]
struct BatchState {
    loads: usize,
    wakers: Vec<Option<Waker>>,
    submitted: Option<backend_api::Result<Ticket>>,
}

/// How far a batch has come.
#[derive(Debug)]
pub(crate) enum Reached {
    Queued,
    Submitted,
    Done { ticket: Ticket, loads: usize },
    Refused { error: backend_api::Error, loads: usize },
}

impl Batch {
    fn new(admission: &Arc<Admission>) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            is_done: AtomicBool::new(false),
            is_finished: AtomicBool::new(false),
            admission: Arc::clone(admission),
        })
    }

    /// How far it has come. If it is not done, the waker of a place will be woken when it is.
    pub(crate) fn poll(&self, place: usize, waker: &Waker) -> Reached {
        let mut state = self.state.lock();
        let loads = state.loads;
        match &state.submitted {
            Some(Err(error)) => return Reached::Refused { error: error.clone(), loads },
            Some(Ok(ticket)) if self.is_done.load(Ordering::Acquire) => {
                return Reached::Done { ticket: *ticket, loads };
            }
            _ => {}
        }
        let known = &mut state.wakers[place];
        let old = if known.as_ref().is_some_and(|known| known.will_wake(waker)) {
            None
        } else {
            known.replace(waker.clone())
        };
        let is_queued = state.submitted.is_none();
        drop(state);
        drop(old);
        if is_queued { Reached::Queued } else { Reached::Submitted }
    }

    /// Nobody waits at this place any more. Tells whether it was not submitted yet.
    pub(crate) fn leave(&self, place: usize) -> bool {
        let mut state = self.state.lock();
        let gone = state.wakers.get_mut(place).and_then(Option::take);
        let is_queued = state.submitted.is_none();
        drop(state);
        drop(gone);
        is_queued
    }

    fn add(&self, waker: &Waker) -> usize {
        let mut state = self.state.lock();
        state.wakers.push(Some(waker.clone()));
        state.wakers.len() - 1
    }

    fn end(&self) {
        let mut state = self.state.lock();
        // Under the lock: whoever looks either leaves a waker before, or sees this.
        self.is_done.store(true, Ordering::Release);
        let (wakers, loads) = (mem::take(&mut state.wakers), state.loads);
        drop(state);
        // First those whose pages have come.
        wakers.into_iter().flatten().for_each(wake);
        self.admission.leave(loads);
    }
}

impl Wake for Batch {
    fn wake(self: Arc<Self>) {
        self.end();
    }
}

/// The batch that is being put together.
#[derive(Debug)]
pub(super) struct Awaited {
    admission: Arc<Admission>,
    batch: Arc<Batch>,
    loads: Vec<Load>,
}

impl Awaited {
    pub(super) fn new(admission: &Arc<Admission>) -> Self {
        Self { admission: Arc::clone(admission), batch: Batch::new(admission), loads: Vec::new() }
    }

    /// Takes the batch out.
    fn close(&mut self) -> Option<(Arc<Batch>, Vec<Load>)> {
        if self.loads.is_empty() {
            return None;
        }
        let batch = mem::replace(&mut self.batch, Batch::new(&self.admission));
        let loads = mem::take(&mut self.loads);
        self.admission.submitted(loads.len());
        Some((batch, loads))
    }
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

    /// Queues the load of an absent page, with contents, that the caller has claimed, for a task that was
    /// [admitted](Admission::enter). With `alone` it is submitted at once, by itself.
    pub(crate) fn load_for_task(
        &self,
        table: &PageTable,
        (page, frame): (u64, Frame),
        alone: bool,
        waker: &Waker,
    ) -> (Arc<Batch>, usize) {
        let load = Load { page, frame, then: Then::Leave, id: self.load_id() };
        let most = (BATCH_BYTES / self.page_bytes).max(1);
        let entry = table.entry(page);
        let (batch, place, full, is_waited_for) = {
            let mut awaited = self.awaited.lock();
            let mut own = if alone { Some(Awaited::new(&self.admission)) } else { None };
            let to = own.as_mut().unwrap_or(&mut awaited);
            to.loads.push(load);
            to.batch.state.lock().loads += 1;
            let (batch, place) = (Arc::clone(&to.batch), to.batch.add(waker));
            let is_urgent = self.admission.queued();
            let full = if alone || is_urgent || to.loads.len() >= most { to.close() } else { None };
            // Whoever is blocked by it can submit it from now on: under the lock, or it might be done before.
            (batch, place, full, entry.mark_in_flight())
        };
        if is_waited_for {
            unpark(entry);
        }
        match full {
            Some((batch, loads)) => self.submit_for_tasks(table, &batch, loads),
            // Until the first one is polled again, others may add to the batch. Each of them looks after it, since any
            // may never be polled again.
            None => wake(waker.clone()),
        }
        (batch, place)
    }

    /// Submits what futures have queued; false if that is nothing.
    pub(crate) fn submit_awaited(&self, table: &PageTable) -> bool {
        let closed = self.awaited.lock().close();
        let Some((batch, loads)) = closed else { return false };
        self.submit_for_tasks(table, &batch, loads);
        true
    }

    fn submit_for_tasks(&self, table: &PageTable, batch: &Arc<Batch>, loads: Vec<Load>) {
        let submitted = self.submit_loads(table, loads);
        batch.state.lock().submitted = Some(submitted.clone());
        match submitted {
            Ok(ticket) => self.device.wake(ticket, Arc::clone(batch).into()),
            Err(_) => batch.end(),
        }
    }

    /// Hands the pages of a batch that is done over to the cache, unless that was done before.
    ///
    /// # Errors
    /// That of the batch.
    pub(crate) fn finish_batch(
        &self,
        table: &PageTable,
        batch: &Batch,
        ticket: Ticket,
    ) -> backend_api::Result<()> {
        if !batch.is_finished.load(Ordering::Acquire) {
            // Does not wait: the device is done. Nor does it do harm if another task does it, too.
            let _ = self.finish(table, ticket);
            batch.is_finished.store(true, Ordering::Release);
        }
        self.device.poll(ticket).map(drop)
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
            let awaited = self.awaited.lock();
            if awaited.loads.iter().any(|load| load.page == page) {
                let joined = (Arc::clone(&awaited.batch), awaited.batch.add(waker));
                drop(awaited);
                wake(waker.clone());
                return (Some(joined), true);
            }
        }
        let found = self.shard.lock().transfer_of(page).map(|(ticket, _)| ticket);
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
            let shard = self.shard.lock();
            if !shard.free.is_empty() {
                return Ok(FrameWait::No);
            }
            shard.oldest_transfer()
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
                self.shard.lock().write_error = None;
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
        let shard = self.shard.lock();
        let is_guarded =
            |page: &u64| *page != NO_PAGE && table.entry(*page).state(Ordering::Acquire).guards() > 0;
        shard.free.is_empty() && !shard.frames.is_empty() && shard.pages.iter().all(is_guarded)
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
