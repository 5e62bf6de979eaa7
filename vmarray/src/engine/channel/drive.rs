//! Requests of tasks on their way: looked at together, submitted together, served when their pages have come.
//!
//! Nobody waits here, and nobody has to come back. What ends is noticed by the [driver](super::driver), which
//! the device wakes; it serves those whose pages have come, and submits what was asked for meanwhile. The
//! thread that asks while little is under way submits at once; else requests pile up, so that the more tasks
//! ask, the longer the submissions are. Tasks that are not polled any more therefore keep nobody from
//! anything.
//!
//! What tasks ask for comes first in, first out. Where there is no frame, the first in the queue is told of a
//! write-back that fails, as a thread would be that needs a frame.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;

use backend_api::{Progress, Ticket};

use super::combine::{Load, LoadFor};
use super::frames::Frame;
use super::requests::{Request, RequestAnswer};
use super::transfers::{Submission, Wakes};
use super::{Channel, NO_PAGE};
use crate::engine::combiner::{ASKED, ENDED};
use crate::engine::page::state::{EXCLUSIVE, HOME, RESIDENT, UNSAVED, USED, WAITED};
use crate::engine::page::{Access, Asleep, Deferral, Holder, PageTable, park_task, wake};

/// How many submissions for tasks are under way in a channel: while one is copied, the next is there already,
/// and the one after that is put together.
pub(super) const UNDER_WAY_MAX: usize = 3;
/// How much one of them fetches at most, in bytes: long enough that to wake the threads of tasks that were
/// served takes less time than the next one.
const SUBMISSION_BYTES: usize = 16 << 20;
/// The same in pages: while one thread polls those that were served last, the next ones are to come.
const SUBMISSION_PAGES: usize = 256;
/// The part of the frames that one submission takes at most, so that all of them leave some for others.
const FRAMES_SHARE: usize = 4;
/// So many pages ahead of the one that is looked at, an entry is asked for: the time that memory takes, in
/// looks.
const LOOK_AHEAD: usize = 16;

/// What is known of the requests of a channel to the thread that serves them.
#[derive(Debug, Default)]
pub(super) struct Serving {
    /// In the order in which they came.
    queue: VecDeque<Arc<Request>>,
    /// What ends the wait for a frame: pages that are to be let go.
    asleep: Vec<Asleep>,
    /// The transfer that the driver was to be woken for last, of those that others have submitted.
    awaited: Option<Ticket>,
    /// How many write-backs had failed when the first in the queue found no frame.
    failures_before: Option<u64>,
}

/// Why nothing can be submitted now.
enum Stuck {
    /// There are no requests, or enough is under way.
    No,
    /// Something has changed meanwhile.
    Again,
    /// The driver is woken when there may be a frame.
    Frames,
}

impl Channel {
    /// Leaves a request of a task, which is woken when it is answered.
    pub(crate) fn ask(&self, table: &PageTable, request: &Arc<Request>) {
        if self.tasks.requests.ask(Arc::clone(request)) {
            self.drive(table, ASKED);
        }
    }

    /// Serves requests whose pages have come, and submits others, unless another thread is at it.
    pub(super) fn drive(&self, table: &PageTable, why: usize) {
        // Wakers are the program's code, and may be in need of what is held here.
        let _deferral = Deferral::begin();
        self.tasks.requests.serve(why, |serving, news| {
            if news & ENDED != 0 {
                self.end_submissions(table);
            }
            serving.asleep.clear();
            self.tasks.is_short_of_frames.store(false, Ordering::SeqCst);
            self.tasks.are_all_kept.store(false, Ordering::SeqCst);
            loop {
                serving.queue.extend(self.tasks.requests.take());
                match self.submit_next(table, serving) {
                    Stuck::Again => {}
                    Stuck::No => break,
                    Stuck::Frames => {
                        self.tasks.is_short_of_frames.store(true, Ordering::SeqCst);
                        break;
                    }
                }
            }
        });
    }

    /// Has somebody serve requests that wait for frames, since there may be some now.
    pub(super) fn tell_driver(&self) {
        if self.tasks.is_short_of_frames.load(Ordering::SeqCst)
            && let Some(driver) = self.tasks.driver.get()
        {
            driver.wake_by_ref();
        }
    }

    /// Hands over what is done of all that tasks wait for.
    fn end_submissions(&self, table: &PageTable) {
        let driven = |submission: &mut Submission| submission.is_driven.then_some(submission.ticket);
        let tickets = self.lock().work.submissions().filter_map(driven).collect();
        let done = self.ask_which_are_done(tickets);
        self.end_done(table, done);
    }

    /// Submits the next requests, if there is room.
    fn submit_next(&self, table: &PageTable, serving: &mut Serving) -> Stuck {
        let most = (SUBMISSION_BYTES / self.layout.page_bytes)
            .min(SUBMISSION_PAGES)
            .min(self.layout.frames_max as usize / FRAMES_SHARE)
            .max(1);
        let mut requests = Vec::new();
        while self.tasks.requests.has_room()
            && requests.len() < most
            && let Some(next) = serving.queue.front()
        {
            if !next.is_waiting() {
                serving.queue.pop_front();
                continue;
            }
            let is_alone = next.is_alone.load(Ordering::Relaxed);
            if is_alone && !requests.is_empty() {
                break;
            }
            requests.extend(serving.queue.pop_front());
            if is_alone {
                break;
            }
        }
        if requests.is_empty() {
            return Stuck::No;
        }
        // Frames first, holding nothing.
        let absent = self.look(table, &requests);
        let mut frames = Vec::new();
        let failure = self.take_frames(table, absent, &mut frames).err();
        let has_frames = !frames.is_empty();
        if has_frames && let Some(error) = &failure {
            // Nobody needs that frame just now: the next flush tells, or who finds none.
            self.keep_untold(error);
        }
        let left = self.submit_requests(table, requests, frames);
        let is_short = left.len();
        // In their order, before all others.
        left.into_iter().rev().for_each(|request| serving.queue.push_front(request));
        if has_frames {
            serving.failures_before = None;
        }
        if is_short == 0 || has_frames {
            return Stuck::Again;
        }
        if let Some(error) = failure {
            self.fail_first(serving, error);
            return Stuck::Again;
        }
        self.await_frames(table, serving)
    }

    /// How many of some pages are absent, as far as that can be seen.
    fn look(&self, table: &PageTable, requests: &[Arc<Request>]) -> usize {
        requests.iter().take(LOOK_AHEAD).for_each(|request| table.prefetch(request.page));
        let mut absent = 0;
        let mut last = NO_PAGE;
        for (at, request) in requests.iter().enumerate() {
            if let Some(later) = requests.get(at + LOOK_AHEAD) {
                table.prefetch(later.page);
            }
            let state = table.entry(request.page).state(Ordering::Relaxed);
            // Many who ask for one page do so one after another, as a rule.
            absent += usize::from(!state.any(RESIDENT | EXCLUSIVE) && request.page != last);
            last = request.page;
        }
        absent
    }

    /// Claims the pages of requests, as far as there are frames, and submits their loads. Answers what needs
    /// none. The requests that are left without a frame.
    fn submit_requests(
        &self,
        table: &PageTable,
        requests: Vec<Arc<Request>>,
        mut frames: Vec<Frame>,
    ) -> Vec<Arc<Request>> {
        // Taken from the end.
        frames.reverse();
        let mut wakes = Wakes::default();
        let (mut loads, mut asked, mut left) = (Vec::new(), Vec::new(), Vec::new());
        for request in requests {
            let entry = table.entry(request.page);
            let state = entry.state(Ordering::Acquire);
            if state.any(RESIDENT) {
                wakes.add_waker(&request, self.serve_resident(table, &request));
                continue;
            }
            if state.any(EXCLUSIVE) && request.is_write() && state.any(UNSAVED) {
                wakes.add_waker(&request, request.answer(RequestAnswer::Busy));
                continue;
            }
            if state.any(EXCLUSIVE) {
                // On its way, maybe as a load of this submission.
                asked.push(request);
                continue;
            }
            let Some(&frame) = frames.last() else {
                left.push(request);
                continue;
            };
            // What will be written to must not be in the way of threads that read the home slot.
            let Ok(before) = entry.claim_to_load(!request.is_write()) else {
                wakes.add_waker(&request, request.answer(RequestAnswer::Busy));
                continue;
            };
            frames.pop();
            request.is_first.store(true, Ordering::Relaxed);
            // The thread that is blocked by the load can help then.
            wakes.add(request.page, before.any(WAITED));
            if before.any(HOME) {
                loads.push(Load { page: request.page, frame, then: LoadFor::Leave, id: 0 });
                asked.push(request);
            } else {
                self.counters.misses.add(1);
                self.install_new(entry, request.page, frame, true);
                wakes.add_waker(&request, self.serve_held(table, &request, 0));
            }
        }
        loads.sort_unstable_by_key(|load| load.page);
        let is_ours =
            |request: &Arc<Request>| loads.binary_search_by_key(&request.page, |load| load.page).is_ok();
        let (ours, others): (Vec<_>, Vec<_>) = asked.into_iter().partition(is_ours);
        self.join_fetches(table, others, &mut wakes);
        if !loads.is_empty() {
            self.counters.misses.add(loads.len() as u64);
            self.tasks.requests.begin();
            match self.submit_loads(table, loads, ours) {
                Ok(ticket) => {
                    self.wake_driver_after(ticket);
                    // While the device copies.
                    self.make_room(table);
                }
                // Threads that asked were told, or are in the inbox again.
                Err(_) => self.tasks.requests.end(),
            }
        }
        self.wake(table, wakes);
        self.put_back_all(&frames);
        left
    }

    /// Has requests for pages that are on their way already served with them.
    fn join_fetches(&self, table: &PageTable, requests: Vec<Arc<Request>>, wakes: &mut Wakes) {
        if requests.is_empty() {
            return;
        }
        let mut shard = self.lock();
        let (mut busy, mut tickets) = (Vec::new(), Vec::new());
        for request in requests {
            match shard.work.fetches.iter_mut().find_map(|fetch| Some((fetch.load_of(request.page)?, fetch)))
            {
                // A thread that has the page for itself next is to find it as it was, and so is a snapshot.
                // The load has the page: a snapshot that comes later waits for that.
                Some((load, fetch))
                    if !request.is_write()
                        || load.then == LoadFor::Leave
                            && !table.entry(request.page).state(Ordering::Acquire).any(UNSAVED) =>
                {
                    fetch.requests.push(request);
                    if !std::mem::replace(&mut fetch.submission.is_driven, true) {
                        self.tasks.requests.begin();
                        tickets.push(fetch.submission.ticket);
                    }
                }
                _ => busy.push(request),
            }
        }
        drop(shard);
        tickets.into_iter().for_each(|ticket| self.wake_driver_after(ticket));
        for request in busy {
            wakes.add_waker(&request, request.answer(RequestAnswer::Busy));
        }
    }

    /// Serves a request for a page in a frame.
    ///
    /// # Safety
    /// As [`Request::serve`].
    unsafe fn serve(&self, request: &Arc<Request>, frame: *mut u8) -> Option<Waker> {
        if !request.is_for_guard() {
            // SAFETY: passed on.
            return unsafe { request.serve(frame) };
        }
        let mut shard = self.lock();
        let number = shard.frames.frame_at(frame).index;
        shard.frames.reserved.add(number, request)
    }

    /// Serves a request for a page that is in the cache, if nobody is in the way.
    fn serve_resident(&self, table: &PageTable, request: &Arc<Request>) -> Option<Waker> {
        let entry = table.entry(request.page);
        let held = match request.is_write() {
            true => entry.try_exclusive(Holder::Pin),
            false => entry.try_share(Holder::Pin, false),
        };
        let Ok(before) = held else { return request.answer(RequestAnswer::Busy) };
        self.quiesce(entry, before, if request.is_write() { Access::All } else { Access::Writes });
        if request.is_write() {
            return self.serve_held(table, request, USED);
        }
        // SAFETY: the page is shared and quiet: it stays resident, and nobody writes.
        let waker = unsafe { self.serve(request, entry.address()) };
        if !self.recency() {
            self.touched(request.page);
        }
        if entry.unshare(Holder::Pin) {
            crate::engine::page::unpark(entry);
        }
        waker
    }

    /// Serves a request for a page that the caller has exclusively and quiet, in a frame, and lets it go.
    fn serve_held(&self, table: &PageTable, request: &Arc<Request>, add: u64) -> Option<Waker> {
        let entry = table.entry(request.page);
        if request.is_write() && request.is_waiting() {
            // First: who is told that it was written may look for dirty pages next.
            entry.mark_dirty();
        }
        // SAFETY: the page is held exclusively and quiet.
        let waker = unsafe { self.serve(request, entry.address()) };
        if entry.release_exclusive(Holder::Pin, add) {
            crate::engine::page::unpark(entry);
        }
        waker
    }

    /// Tells the first in the queue why there is no frame for it.
    fn fail_first(&self, serving: &mut Serving, error: crate::Error) {
        // Told to the thread that needs the frame.
        self.lock().work.write_error = None;
        serving.failures_before = None;
        while let Some(first) = serving.queue.pop_front() {
            if let Some(waker) = first.answer(RequestAnswer::Failed(error.clone())) {
                return wake(waker);
            }
        }
        self.keep_untold(&error);
    }

    /// Notes the failure of a write-back that nobody was told of.
    fn keep_untold(&self, error: &crate::Error) {
        if let Some(error) = error.device_error() {
            self.lock().work.write_error.get_or_insert_with(|| error.clone());
        }
    }

    /// Finds something to wait for that may bring a frame.
    fn await_frames(&self, table: &PageTable, serving: &mut Serving) -> Stuck {
        let failures = self.counters.failed_write_backs.get();
        if serving.failures_before.is_some_and(|before| before < failures) {
            let error = self.lock().work.write_error.take();
            serving.failures_before = Some(failures);
            if let Some(error) = error {
                self.fail_first(serving, error.into());
                return Stuck::Again;
            }
        }
        serving.failures_before.get_or_insert(failures);
        let oldest = self.lock().work.oldest_transfer();
        if let Some((ticket, is_write_back)) = oldest {
            if serving.awaited != Some(ticket) && matches!(self.device.poll(ticket), Ok(Progress::Pending)) {
                serving.awaited = Some(ticket);
                self.wake_driver_after(ticket);
                return Stuck::Frames;
            }
            return match self.end_oldest(table, ticket) {
                None => Stuck::Frames,
                Some(Err(error)) if is_write_back => {
                    self.fail_first(serving, error.into());
                    Stuck::Again
                }
                Some(_) => Stuck::Again,
            };
        }
        if self.serve_long_reads(table) {
            return Stuck::Again;
        }
        // From here on who frees a frame tells the driver.
        self.tasks.is_short_of_frames.store(true, Ordering::SeqCst);
        std::sync::atomic::fence(Ordering::SeqCst);
        if !self.supply.free.is_empty() {
            return Stuck::Again;
        }
        let shard = self.lock();
        if shard.work.oldest_transfer().is_some() {
            return Stuck::Again;
        }
        if shard.frames.growing {
            return Stuck::Frames;
        }
        let are_all_kept = shard.frames.are_all_kept(table);
        let pages: Vec<u64> = match are_all_kept {
            true => Vec::new(),
            false => shard.frames.pages.iter().copied().filter(|page| *page != NO_PAGE).collect(),
        };
        drop(shard);
        if let Some(driver) = self.tasks.driver.get() {
            for page in pages {
                let entry = table.entry(page);
                if entry.state(Ordering::Acquire).guards() > 0 {
                    continue;
                }
                match park_task(entry, driver, |s| s.any(EXCLUSIVE) || s.shared()) {
                    Some(asleep) => serving.asleep.push(asleep),
                    // One that is reserved is not busy, and does not count.
                    None if self.lock().frames.is_reserved_at(entry.address()) => {}
                    None => return Stuck::Again,
                }
            }
        }
        // Threads that hold all frames may be the very ones who wait, which each task finds out for itself.
        if are_all_kept {
            self.tasks.are_all_kept.store(true, Ordering::SeqCst);
            serving.queue.iter().filter_map(|request| request.nudge()).for_each(wake);
        }
        Stuck::Frames
    }

    /// Hands over what a transfer has brought that is done; what came of it. `None`: another thread is about
    /// to.
    fn end_oldest(&self, table: &PageTable, ticket: Ticket) -> Option<backend_api::Result<()>> {
        let done = self.ask_which_are_done(vec![ticket]).pop()?;
        let outcome = done.1.clone();
        self.end_done(table, vec![done]);
        Some(outcome)
    }

    /// Whether all frames are guarded or reserved, as far as is known, so that no request gets one.
    pub(crate) fn are_all_kept(&self) -> bool {
        self.tasks.are_all_kept.load(Ordering::SeqCst)
    }
}

impl Channel {
    /// Has the driver end a transfer that others have submitted.
    pub(super) fn drive_when_done(&self, ticket: Ticket) {
        let mut shard = self.lock();
        let is_fetch = shard.work.fetches.iter().any(|work| work.submission.ticket == ticket);
        let submission = shard.work.submissions().find(|submission| submission.ticket == ticket);
        let is_new = submission.is_some_and(|submission| !std::mem::replace(&mut submission.is_driven, true));
        if is_new && is_fetch {
            self.tasks.requests.begin();
        }
        drop(shard);
        if is_new {
            self.wake_driver_after(ticket);
        }
    }

    /// Has the driver woken when a transfer is done.
    fn wake_driver_after(&self, ticket: Ticket) {
        if let Some(driver) = self.tasks.driver.get() {
            self.device.wake(ticket, driver.clone());
        }
    }
}
