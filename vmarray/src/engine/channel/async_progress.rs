//! Processing of the page requests of tasks: a thread submits queued requests in batches, and answers them
//! when their pages arrive.
//!
//! No thread waits here, and no task must be polled again for progress. On completion the device calls the
//! [waker](super::async_wakeups) of the channel (share of a device), which answers requests whose pages have
//! arrived, and submits new ones. If little is in flight, the requesting thread submits at once. Otherwise
//! requests accumulate in the queue, so with more tasks each submission serves more of them.
//!
//! Requests are served first in, first out. If a failed write-back leaves no free frame, the first request in
//! the queue gets the error, as a thread that needs a frame would.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;

use backend_api::{QueueProgress, Ticket};

use super::async_requests::{PageRequest, RequestAnswer};
use super::combine::{Load, LoadFor};
use super::frames::Frame;
use super::places::FrameBytes;
use super::transfers::{Submission, Wakes};
use super::{Channel, NO_PAGE};
use crate::engine::combiner::{ASKED, ENDED};
use crate::engine::page::state::{EXCLUSIVE, HOME, RESIDENT, UNSAVED, USED, WAITED};
use crate::engine::page::{Asleep, DeferredWakes, HazardAccess, Holder, PageTable, park_task, wake};

/// Maximum number of submissions for tasks in flight in a channel: the bus copies one, the next waits in the
/// device, and a thread prepares a third.
pub(super) const UNDER_WAY_MAX: usize = 3;
/// Maximum bytes of one submission: longer than waking the threads of the tasks that the last one served.
const SUBMISSION_BYTES: usize = 16 << 20;
/// Maximum number of pages of one submission: the next pages arrive while one thread polls the served tasks.
const SUBMISSION_PAGES: usize = 256;
/// A submission takes at most this fraction of the frames, so that all in flight leave frames for others.
const FRAMES_SHARE: usize = 4;
/// Prefetch distance of page entries, in entries: the latency of memory.
const LOOK_AHEAD: usize = 16;

/// The state of the thread that serves the page requests of tasks in a channel.
#[derive(Debug, Default)]
pub(super) struct Serving {
    /// Unsubmitted requests, in order of arrival.
    queue: VecDeque<Arc<PageRequest>>,
    /// Registrations of the driver at held pages, whose release ends the wait for a frame.
    asleep: Vec<Asleep>,
    /// The last transfer of another thread whose end wakes the driver.
    awaited: Option<Ticket>,
    /// Number of failed write-backs when the first request found no frame.
    failures_before: Option<u64>,
}

/// The reason why no submission is possible.
enum Stuck {
    /// There are no requests, or enough are in flight.
    No,
    /// The state has changed meanwhile: check it again.
    Again,
    /// There is no free frame. The driver is woken when there may be one.
    Frames,
}

impl Channel {
    /// Queues a task's request; the answer wakes the task.
    pub(crate) fn ask(&self, table: &PageTable, request: &Arc<PageRequest>) {
        if self.tasks.requests.ask(Arc::clone(request)) {
            self.drive(table, ASKED);
        }
    }

    /// Serves requests whose pages have arrived, and submits others. A thread that already does so continues.
    pub(super) fn drive(&self, table: &PageTable, why: usize) {
        // Call wakers only after this function, because they are program code that may need locks held here.
        let _deferral = DeferredWakes::begin();
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

    /// Serves requests that wait for frames, because a frame may be free now.
    pub(super) fn wake_driver(&self) {
        if self.tasks.is_short_of_frames.load(Ordering::SeqCst)
            && let Some(driver) = self.tasks.driver.get()
        {
            driver.wake_by_ref();
        }
    }

    /// Finishes completed transfers for which tasks wait.
    fn end_submissions(&self, table: &PageTable) {
        let driven = |submission: &mut Submission| submission.is_driven.then_some(submission.ticket);
        let tickets = self.lock().work.submissions().filter_map(driven).collect();
        let done = self.ask_which_are_done(tickets);
        self.end_done(table, done);
    }

    /// Submits the next requests, if fewer submissions are in flight than the limit.
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
        // Take the frames before any page, because a thread that waits for a frame must hold no page.
        let absent = self.look(table, &requests);
        let mut frames = Vec::new();
        let failure = self.take_frames(table, absent, &mut frames).err();
        let has_frames = !frames.is_empty();
        if has_frames && let Some(error) = &failure {
            // This call continues with the frames that it has got. Keep the error for the next flush, or for
            // a thread that needs a frame.
            self.keep_unreported(error);
        }
        let left = self.submit_requests(table, requests, frames);
        let is_short = left.len();
        // Put the remaining requests back at the front of the queue, in their order.
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

    /// Returns the approximate number of absent pages among the requested ones.
    fn look(&self, table: &PageTable, requests: &[Arc<PageRequest>]) -> usize {
        requests.iter().take(LOOK_AHEAD).for_each(|request| table.prefetch(request.page));
        let mut absent = 0;
        let mut last = NO_PAGE;
        for (at, request) in requests.iter().enumerate() {
            if let Some(later) = requests.get(at + LOOK_AHEAD) {
                table.prefetch(later.page);
            }
            let state = table.entry(request.page).state(Ordering::Relaxed);
            // Compare with the last page only, because requests for one page are usually consecutive.
            absent += usize::from(!state.any(RESIDENT | EXCLUSIVE) && request.page != last);
            last = request.page;
        }
        absent
    }

    /// Claims the pages of requests while frames last, and submits their loads. Answers requests that need no
    /// load. Returns the requests without a frame.
    fn submit_requests(
        &self,
        table: &PageTable,
        requests: Vec<Arc<PageRequest>>,
        mut frames: Vec<Frame>,
    ) -> Vec<Arc<PageRequest>> {
        // Reverse the list, because frames are popped from the end.
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
                // Another transfer holds the page, possibly a load of this submission. Join that transfer.
                asked.push(request);
                continue;
            }
            let Some(&frame) = frames.last() else {
                left.push(request);
                continue;
            };
            // Only a request to read may load the page while other threads read its home slot.
            let Ok(before) = entry.claim_to_load(!request.is_write()) else {
                wakes.add_waker(&request, request.answer(RequestAnswer::Busy));
                continue;
            };
            frames.pop();
            request.is_first.store(true, Ordering::Relaxed);
            // Wake a thread that waits for the page, so that it can help with the load.
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
            |request: &Arc<PageRequest>| loads.binary_search_by_key(&request.page, |load| load.page).is_ok();
        let (ours, others): (Vec<_>, Vec<_>) = asked.into_iter().partition(is_ours);
        self.join_fetches(table, others, &mut wakes);
        if !loads.is_empty() {
            self.counters.misses.add(loads.len() as u64);
            self.tasks.requests.begin();
            match self.submit_loads(table, loads, ours) {
                Ok(ticket) => {
                    self.wake_driver_after(ticket);
                    // The device is copying now, so use the time to free frames.
                    self.make_room(table);
                }
                // The failed loads have sent the error to the requesters, or have queued the requests again.
                Err(_) => self.tasks.requests.end(),
            }
        }
        self.wake(table, wakes);
        self.put_back_all(&frames);
        left
    }

    /// Adds requests to the loads of pages already in transfer.
    fn join_fetches(&self, table: &PageTable, requests: Vec<Arc<PageRequest>>, wakes: &mut Wakes) {
        if requests.is_empty() {
            return;
        }
        let mut shard = self.lock();
        let (mut busy, mut tickets) = (Vec::new(), Vec::new());
        for request in requests {
            match shard.work.fetches.iter_mut().find_map(|fetch| Some((fetch.load_of(request.page)?, fetch)))
            {
                // A write may join this load only if the load ends without a holder, and no snapshot still
                // has to save the page. A later snapshot waits for the load, because the load holds the page.
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

    /// Serves a request for a page in a frame, like [`PageRequest::serve`].
    fn serve(&self, request: &Arc<PageRequest>, frame: FrameBytes<'_>) -> Option<Waker> {
        if !request.is_for_guard() {
            return request.serve(frame);
        }
        let mut shard = self.lock();
        let number = shard.frames.frame_at(frame.address()).index;
        shard.frames.reserved.add(number, request)
    }

    /// Serves a request for a cached page, unless another thread's hold prevents it.
    fn serve_resident(&self, table: &PageTable, request: &Arc<PageRequest>) -> Option<Waker> {
        let entry = table.entry(request.page);
        let held = match request.is_write() {
            true => entry.try_exclusive(Holder::Pin),
            false => entry.try_share(Holder::Pin, false),
        };
        let Ok(before) = held else { return request.answer(RequestAnswer::Busy) };
        self.quiesce(
            entry,
            before,
            if request.is_write() { HazardAccess::All } else { HazardAccess::Writes },
        );
        if request.is_write() {
            return self.serve_held(table, request, USED);
        }
        // This thread holds the page shared, and the page's gates are shut (no lock-free access). So the page
        // stays resident, without writers.
        let waker = self.serve(request, self.held_bytes(entry));
        if !self.recency() {
            self.touched(request.page);
        }
        if entry.unshare(Holder::Pin) {
            crate::engine::page::unpark(entry);
        }
        waker
    }

    /// Serves a request for a page that the caller holds exclusively, with shut gates, and releases the page.
    fn serve_held(&self, table: &PageTable, request: &Arc<PageRequest>, add: u64) -> Option<Waker> {
        let entry = table.entry(request.page);
        if request.is_write() && request.is_waiting() {
            // Mark the page dirty before the answer, because the woken task may look for dirty pages next.
            entry.mark_dirty();
        }
        let waker = self.serve(request, self.held_bytes(entry));
        if entry.release_exclusive(Holder::Pin, add) {
            crate::engine::page::unpark(entry);
        }
        waker
    }

    /// Answers the first request with the error because of which there is no free frame.
    fn fail_first(&self, serving: &mut Serving, error: crate::Error) {
        // The request reports this error, so the next flush must not report it again.
        self.lock().work.write_error = None;
        serving.failures_before = None;
        while let Some(first) = serving.queue.pop_front() {
            if let Some(waker) = first.answer(RequestAnswer::Failed(error.clone())) {
                return wake(waker);
            }
        }
        self.keep_unreported(&error);
    }

    /// Stores a failed write-back's error, which no thread has received.
    fn keep_unreported(&self, error: &crate::Error) {
        if let Some(error) = error.device_error() {
            self.lock().work.write_error.get_or_insert_with(|| error.clone());
        }
    }

    /// Finds an event that may free a frame, and makes it wake the driver.
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
            if serving.awaited != Some(ticket)
                && matches!(self.device.poll(ticket), Ok(QueueProgress::Pending))
            {
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
        // From here on, a thread that frees a frame serves requests. Check for frames that were freed before.
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
        if !self.sleep_on_pages(table, pages, serving) {
            return Stuck::Again;
        }
        // Guards hold all frames, so requests could wait forever. Wake the tasks, so that they get errors.
        if are_all_kept {
            self.tasks.are_all_kept.store(true, Ordering::SeqCst);
            serving.queue.iter().filter_map(|request| request.nudge()).for_each(wake);
        }
        Stuck::Frames
    }

    /// Registers the driver at pages that threads hold. Returns false if one of the pages is free now.
    fn sleep_on_pages(&self, table: &PageTable, pages: Vec<u64>, serving: &mut Serving) -> bool {
        let Some(driver) = self.tasks.driver.get() else { return true };
        for page in pages {
            let entry = table.entry(page);
            if entry.state(Ordering::Acquire).guards() > 0 {
                continue;
            }
            match park_task(entry, driver, |s| s.any(EXCLUSIVE) || s.shared()) {
                Some(asleep) => serving.asleep.push(asleep),
                // A page in a reserved frame is not in use by a thread, so ignore it.
                None if self.lock().frames.is_reserved_at(entry.address()) => {}
                None => return false,
            }
        }
        true
    }

    /// Finishes a completed transfer, and returns its result; `None` if another thread is about to finish it.
    fn end_oldest(&self, table: &PageTable, ticket: Ticket) -> Option<backend_api::Result<()>> {
        let done = self.ask_which_are_done(vec![ticket]).pop()?;
        let outcome = done.1.clone();
        self.end_done(table, vec![done]);
        Some(outcome)
    }

    /// Returns true if guards or reservations seem to keep all frames, so no request can get one.
    pub(crate) fn are_all_kept(&self) -> bool {
        self.tasks.are_all_kept.load(Ordering::SeqCst)
    }
}

impl Channel {
    /// Makes the driver finish another thread's transfer when it completes.
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

    fn wake_driver_after(&self, ticket: Ticket) {
        if let Some(driver) = self.tasks.driver.get() {
            self.device.wake(ticket, driver.clone());
        }
    }
}
