//! Page transfers in flight between cache frames and home slots (in device memory): waits and completion.
//!
//! One thread waits in the driver for a transfer. Other threads that need one of its pages sleep, because the
//! driver would serialise their calls. The thread that finishes the transfer then wakes these threads.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;

use backend_api::{QueueProgress, Ticket};
use parking_lot::MutexGuard;

use super::async_requests::{PageRequest, RequestAnswer};
use super::combine::{Load, LoadFor, Read};
use super::frames::Frame;
use super::waiting::spin_while;
use super::{Channel, NO_PAGE, Shard, WorkUnderWay};
use crate::base::error::Result;
use crate::base::memory::prefetch;
use crate::engine::combiner::ASKED;
use crate::engine::page::state::{AHEAD, DIRTY, IN_FLIGHT, USED, WAITED};
use crate::engine::page::{PageTable, State, sleep, unpark, wake};

/// Prefetch distance of page entries, in loads.
const LOOK_AHEAD: usize = 8;

/// At most this fraction of the frames is reserved for long reads.
const LONG_READS_SHARE: usize = 4;

/// Page size in bytes up to which the waiting thread probably reads the whole page.
const READ_BYTES: usize = 4096;

/// A submission of copies, and the state of waits for it.
#[derive(Debug)]
pub(super) struct Submission {
    pub(super) ticket: Ticket,
    /// True if a thread waits in the driver for the ticket.
    pub(super) is_watched: bool,
    /// True if its completion wakes the channel's [driver](super::async_wakeups).
    pub(super) is_driven: bool,
}

impl Submission {
    pub(super) fn new(ticket: Ticket, is_driven: bool) -> Self {
        Self { ticket, is_watched: false, is_driven }
    }
}

/// A fetch in flight: pages in transfer from their home slots to frames.
#[derive(Debug)]
pub(super) struct FetchUnderWay {
    pub(super) submission: Submission,
    pub(super) loads: Vec<Load>,
    pub(super) reads: Vec<Arc<Read>>,
    /// Requests of tasks for pages of this fetch.
    pub(super) requests: Vec<Arc<PageRequest>>,
    /// True if the fetch has completed, and a thread is serving its requests.
    pub(super) is_ending: bool,
}

/// A write-back in flight: pages in transfer from their frames to home slots.
#[derive(Debug)]
pub(super) struct WriteBack {
    pub(super) submission: Submission,
    pub(super) pages: Vec<u64>,
    /// True if an eviction waits for the frames.
    pub(super) evicting: bool,
}

/// A load that failed.
#[derive(Debug)]
pub(super) struct FailedLoad {
    pub(super) id: u64,
    pub(super) error: backend_api::Error,
    /// True if the load was submitted alone.
    pub(super) was_alone: bool,
}

impl FetchUnderWay {
    pub(super) fn load_of(&self, page: u64) -> Option<Load> {
        self.loads.iter().find(|load| load.page == page).copied()
    }

    pub(super) fn has(&self, read: &Arc<Read>) -> bool {
        self.reads.iter().any(|known| Arc::ptr_eq(known, read))
    }
}

/// Wake-ups to do after the lock of the shard is released.
#[derive(Debug, Default)]
pub(super) struct Wakes {
    /// Pages for which threads sleep.
    pages: Vec<u64>,
    /// Wakers of answered tasks, each with the thread that probably polls the task.
    tasks: Vec<(usize, Waker)>,
    /// True if the driver must examine the requests of tasks again.
    is_driver: bool,
}

impl Wakes {
    pub(super) fn add(&mut self, page: u64, is_waited_for: bool) {
        if is_waited_for {
            self.pages.push(page);
        }
    }

    pub(super) fn add_waker(&mut self, request: &PageRequest, waker: Option<Waker>) {
        self.tasks.extend(waker.map(|waker| (request.thread, waker)));
    }
}

/// Results of the requests of a fetch, before its pages become visible to other threads.
#[derive(Debug, Default)]
struct Served {
    /// True if the calling thread has served the requests, so it ends the fetch.
    is_ours: bool,
    /// Pages that requests have written to, in ascending order, with the answers to these requests.
    written: Vec<u64>,
    answers: Vec<(Arc<PageRequest>, RequestAnswer)>,
    /// Requests for frames, and the number of reserved frames.
    reserve: Vec<Arc<PageRequest>>,
    kept: usize,
}

impl Channel {
    pub(super) fn wake(&self, table: &PageTable, mut wakes: Wakes) {
        for page in wakes.pages {
            unpark(table.entry(page));
        }
        if wakes.is_driver {
            // Serve requests before calling wakers, because wakers may block.
            self.drive(table, ASKED);
        }
        // Sort the wakers by thread. While a sleeping thread wakes up for its first task, the loop also makes
        // its other tasks ready.
        wakes.tasks.sort_by_key(|(thread, _)| *thread);
        wakes.tasks.into_iter().for_each(|(_, waker)| wake(waker));
    }

    /// Waits for a ticket and finishes all its transfers, unless another thread has done so.
    ///
    /// # Errors
    /// The error of the ticket.
    pub(crate) fn finish(&self, table: &PageTable, ticket: Ticket) -> Result<()> {
        self.finish_and_read(table, ticket, None)
    }

    /// Finishes a ticket as [`finish`](Self::finish), for a thread that reads the frame `next` afterwards. If
    /// the page is short, prefetches it into the processor's cache meanwhile.
    fn finish_and_read(&self, table: &PageTable, ticket: Ticket, next: Option<Frame>) -> Result<()> {
        let outcome = self.wait_for_pages(ticket);
        if let Some(frame) = next
            && self.layout.page_bytes <= READ_BYTES
        {
            prefetch(frame.address().addr(), self.layout.page_bytes);
        }
        let mut wakes = Wakes::default();
        let mut shard = self.serve_and_complete(table, ticket, &outcome, &mut wakes);
        let others = shard.work.fetches_beside(ticket);
        if !others.is_empty() {
            // Poll without the lock, because a device may run wakers when polled.
            drop(shard);
            self.wake(table, std::mem::take(&mut wakes));
            for (other, outcome) in self.ask_which_are_done(others) {
                drop(self.serve_and_complete(table, other, &outcome, &mut wakes));
            }
            shard = self.lock();
        }
        // Submit queued loads first, to keep the device busy. Keep the lock, so that no other thread takes
        // them.
        self.combine_now(table, shard);
        self.wake(table, wakes);
        self.announce();
        outcome.map_err(Into::into)
    }

    /// Finishes completed write-backs, which may free frames, without waiting. Call it without the lock.
    pub(super) fn reap(&self, table: &PageTable) {
        let tickets = self.lock().work.write_backs.iter().map(|work| work.submission.ticket).collect();
        let done = self.ask_which_are_done(tickets);
        self.end_done(table, done);
    }

    /// Finishes all completed transfers, without waiting. The caller does not hold the lock.
    pub(crate) fn reap_all(&self, table: &PageTable) {
        let tickets = self.lock().work.submissions().map(|submission| submission.ticket).collect();
        let done = self.ask_which_are_done(tickets);
        self.end_done(table, done);
    }

    /// Finishes the given completed transfers. The caller does not hold the lock.
    pub(super) fn end_done(&self, table: &PageTable, done: Vec<(Ticket, backend_api::Result<()>)>) {
        if done.is_empty() {
            return;
        }
        let mut wakes = Wakes::default();
        for (ticket, outcome) in done {
            drop(self.serve_and_complete(table, ticket, &outcome, &mut wakes));
        }
        self.combine_now(table, self.lock());
        self.wake(table, wakes);
        self.announce();
    }

    /// Polls tickets, in the order of their submission, and returns the completed ones with their results.
    /// The caller does not hold the lock.
    pub(super) fn ask_which_are_done(&self, tickets: Vec<Ticket>) -> Vec<(Ticket, backend_api::Result<()>)> {
        let mut done = Vec::new();
        let mut pending = Vec::new();
        for ticket in tickets {
            // Work in a queue ends in order, so later tickets of this queue are pending too.
            if pending.contains(&ticket.queue) {
                continue;
            }
            match self.device.poll(ticket) {
                Ok(QueueProgress::Pending) => pending.push(ticket.queue),
                outcome => {
                    self.queues.note_done(ticket);
                    done.push((ticket, outcome.map(drop).map_err(|error| self.name_page(error))));
                }
            }
        }
        done
    }

    /// Phase 6 of a miss, or 5 of an eviction: finishes a completed ticket. First serves requests of tasks
    /// without the lock, which it then takes and returns.
    fn serve_and_complete(
        &self,
        table: &PageTable,
        ticket: Ticket,
        outcome: &backend_api::Result<()>,
        wakes: &mut Wakes,
    ) -> MutexGuard<'_, Shard> {
        let mut shard = self.lock();
        let mut served = Served::default();
        if outcome.is_ok()
            && let Some((loads, requests)) = shard.work.begin_to_serve(ticket)
        {
            served.kept = shard.frames.reserved.count();
            drop(shard);
            served.is_ours = true;
            self.serve_all(table, &loads, requests, &mut served, wakes);
            shard = self.lock();
        }
        self.complete(&mut shard, table, (ticket, outcome.as_ref().err()), served, wakes);
        shard
    }

    /// Serves requests for pages that have arrived, before other threads see the pages.
    fn serve_all(
        &self,
        table: &PageTable,
        loads: &[Load],
        requests: Vec<Arc<PageRequest>>,
        served: &mut Served,
        wakes: &mut Wakes,
    ) {
        let find = |request: &PageRequest| frame_of(loads, request.page);
        let touch = |request: &PageRequest| {
            let (offset, len) = request.bytes();
            if let Some(frame) = find(request) {
                prefetch(frame.address().addr() + offset, len);
            }
        };
        let (requests, refused): (Vec<_>, Vec<_>) = requests.into_iter().partition(|request| {
            // Refuse a write while threads read the page's home slot (in device memory): the write makes the
            // page dirty, and the write-back to this slot would overlap with the reads.
            !request.is_write()
                || request.is_waiting() && !table.entry(request.page).state(Ordering::Acquire).shared()
        });
        for request in refused {
            wakes.add_waker(&request, request.answer(RequestAnswer::Busy));
        }
        let written = requests.iter().filter(|request| request.is_write()).map(|request| request.page);
        served.written.extend(written);
        served.written.sort_unstable();
        requests.iter().take(LOOK_AHEAD).for_each(|request| touch(request));
        for (at, request) in requests.iter().enumerate() {
            if let Some(later) = requests.get(at + LOOK_AHEAD) {
                touch(later);
            }
            let Some(frame) = find(request) else { continue };
            let leaves_room =
                served.kept + served.reserve.len() < self.layout.frames_max as usize / LONG_READS_SHARE;
            if request.is_for_guard() || request.is_long_read() && leaves_room {
                served.reserve.push(Arc::clone(request));
                continue;
            }
            // The page's bytes are in the frame. No other thread sees them before the end of the fetch, which
            // this thread executes.
            let frame = self.frame_bytes(&frame);
            if served.written.binary_search(&request.page).is_err() {
                wakes.add_waker(request, request.serve(frame));
            } else if request.is_waiting() {
                // Answer after the end of the fetch: the woken task may query a device next, which must find
                // the page in the cache.
                served.answers.push((Arc::clone(request), request.read_or_write(frame)));
            }
        }
    }

    fn complete(
        &self,
        shard: &mut Shard,
        table: &PageTable,
        (ticket, error): (Ticket, Option<&backend_api::Error>),
        mut served: Served,
        wakes: &mut Wakes,
    ) {
        if let Some(at) = shard.work.fetches.iter().position(|work| work.submission.ticket == ticket) {
            if shard.work.fetches[at].is_ending && !served.is_ours {
                // Another thread has removed the fetch and ends it.
                return;
            }
            let FetchUnderWay { submission, loads, reads, requests, .. } = shard.work.fetches.remove(at);
            match error {
                Some(error) => self.fail_fetch(shard, table, (loads, reads, requests), error, wakes),
                None => {
                    // Also serve requests that arrived during the load.
                    self.serve_all(table, &loads, requests, &mut served, wakes);
                    self.end_loads(shard, table, &loads, served, wakes);
                    for read in reads {
                        let _ = read.outcome.set((Ok(()), true));
                    }
                }
            }
            if submission.is_driven {
                self.tasks.requests.end();
                wakes.is_driver = true;
            }
        } else if let Some(at) =
            shard.work.write_backs.iter().position(|work| work.submission.ticket == ticket)
        {
            let work = shard.work.write_backs.remove(at);
            self.end_write_back(shard, table, work, error, wakes);
        }
        // Advance the event count last: a thread that prepared its wait before must see this change.
        self.events.advance();
    }

    fn end_loads(
        &self,
        shard: &mut Shard,
        table: &PageTable,
        loads: &[Load],
        served: Served,
        wakes: &mut Wakes,
    ) {
        for request in served.reserve {
            // Reserve the frame before another thread can evict the page. `add` undoes this if no task waits.
            if let Some(frame) = frame_of(loads, request.page) {
                wakes.add_waker(&request, shard.frames.reserved.add(frame.index, &request));
            }
        }
        let written = |page: u64| {
            let is_written = served.written.binary_search(&page).is_ok();
            if is_written { DIRTY } else { 0 }
        };
        for (at, load) in loads.iter().enumerate() {
            if let Some(later) = loads.get(at + LOOK_AHEAD) {
                table.prefetch(later.page);
            }
            let entry = table.entry(load.page);
            // Insert the page into the eviction policy first, because the thread that claimed the page
            // continues once the page is resident.
            shard.frames.policy_insert(load.page, load.frame.index);
            let address = load.frame.address();
            let is_waited_for = match load.then {
                LoadFor::Share(holder) => {
                    entry.install(address);
                    entry.downgrade(holder)
                }
                // Wake the thread that took the page exclusively, because it may sleep until now.
                LoadFor::Exclusive(_) => {
                    entry.install(address);
                    entry.state(Ordering::Acquire).any(WAITED)
                }
                // Prefetched: `USED` protects the page from eviction for one CLOCK revolution.
                LoadFor::Release => entry.install_and_release(address, AHEAD | USED),
                LoadFor::Leave => entry.install_and_release(address, written(load.page)),
            };
            wakes.add(load.page, is_waited_for);
        }
        for (request, answer) in served.answers {
            wakes.add_waker(&request, request.answer(answer));
        }
    }

    /// Releases the claims and frames of failed loads, and keeps the error for their requesters.
    pub(super) fn fail_fetch(
        &self,
        shard: &mut Shard,
        table: &PageTable,
        (loads, reads, requests): (Vec<Load>, Vec<Arc<Read>>, Vec<Arc<PageRequest>>),
        error: &backend_api::Error,
        wakes: &mut Wakes,
    ) {
        let was_alone = loads.len() + reads.len() == 1;
        for read in reads {
            let _ = read.outcome.set((Err(error.clone()), was_alone));
        }
        for load in loads {
            match load.then {
                LoadFor::Share(_) | LoadFor::Exclusive(_) => {
                    shard.work.failed_loads.push(FailedLoad { id: load.id, error: error.clone(), was_alone });
                    // Count the failure first: the thread that waits for the load then reads the count.
                    self.loads.unreported_errors.fetch_add(1, Ordering::Release);
                }
                LoadFor::Release => self.fewer_ahead(1),
                LoadFor::Leave => {}
            }
            shard.frames.pages[load.frame.index as usize] = NO_PAGE;
            self.free_all(&[load.frame]);
            wakes.add(load.page, table.entry(load.page).unmap(false));
        }
        for request in requests {
            if was_alone {
                wakes.add_waker(&request, request.answer(RequestAnswer::Failed(error.clone().into())));
            } else {
                // Another request of the submission may have caused the error, so try this one again alone.
                request.is_alone.store(true, Ordering::Relaxed);
                let _ = self.tasks.requests.ask(request);
                wakes.is_driver = true;
            }
        }
        self.events.advance();
    }

    fn end_write_back(
        &self,
        shard: &mut Shard,
        table: &PageTable,
        work: WriteBack,
        error: Option<&backend_api::Error>,
        wakes: &mut Wakes,
    ) {
        let count = work.pages.len() as u64;
        match error {
            None => self.counters.write_backs.add(count),
            Some(error) => {
                self.counters.failed_write_backs.add(count);
                shard.work.write_error.get_or_insert_with(|| error.clone());
            }
        }
        for page in &work.pages {
            wakes.add(*page, table.entry(*page).end_write_back(error.is_none()));
        }
        if work.evicting && error.is_none() {
            shard.frames.cleaned.extend(work.pages);
        }
    }

    /// Waits for the transfer of a page while a condition on the page's state holds. The requester of the
    /// transfer gets the result. The calling thread will read the frame `next`.
    pub(crate) fn help_while(
        &self,
        table: &PageTable,
        page: u64,
        next: Option<Frame>,
        holds: impl Fn(State) -> bool,
    ) {
        let mut shard = self.lock();
        let found = shard.work.transfer_of(page);
        match found {
            Some(&mut Submission { ticket, ref mut is_watched, .. }) if !*is_watched => {
                *is_watched = true;
                self.note_combiner(&shard);
                drop(shard);
                // Ignore an error here, because the fetch keeps it for the requester.
                let _ = self.finish_and_read(table, ticket, next);
            }
            Some(_) => {
                drop(shard);
                let entry = table.entry(page);
                let is_busy = |state: State| state.any(IN_FLIGHT) && holds(state);
                if !spin_while(|| is_busy(entry.state(Ordering::Acquire))) {
                    self.sleep_in_flight(table, page, is_busy);
                }
            }
            // Either the owner of the transfer has not recorded it yet, or another thread has just finished
            // it. So check again.
            None => {
                drop(shard);
                std::thread::yield_now();
            }
        }
    }

    /// Sleeps until another thread, which waits in the driver for the transfer of a page, has finished it.
    /// Returns at once if there is no such thread.
    ///
    /// The caller holds the lock under which transfers start and end. Meanwhile the page's earlier transfer
    /// may have ended, and another one may be in flight that no thread waits for. The start of a transfer
    /// wakes sleeping threads, so a thread that sleeps while a page is in flight has checked here.
    pub(super) fn sleep_in_flight(&self, table: &PageTable, page: u64, is_busy: impl Fn(State) -> bool) {
        let entry = table.entry(page);
        let mut shard = self.lock();
        let is_awaited = shard.work.transfer_of(page).is_some_and(|submission| submission.is_watched);
        let sleeps = is_awaited && entry.ask_to_wake(&is_busy);
        drop(shard);
        if sleeps {
            sleep(entry, is_busy);
        }
    }
}

/// Returns the frame of a page, from loads sorted by page.
fn frame_of(loads: &[Load], page: u64) -> Option<Frame> {
    let at = loads.binary_search_by_key(&page, |load| load.page).ok()?;
    Some(loads[at].frame)
}

impl WorkUnderWay {
    /// Takes the requests of a completed fetch, unless another thread serves them.
    fn begin_to_serve(&mut self, ticket: Ticket) -> Option<(Vec<Load>, Vec<Arc<PageRequest>>)> {
        let fetch = self.fetches.iter_mut().find(|fetch| fetch.submission.ticket == ticket)?;
        if fetch.is_ending || fetch.requests.is_empty() {
            return None;
        }
        fetch.is_ending = true;
        Some((fetch.loads.clone(), std::mem::take(&mut fetch.requests)))
    }

    /// Returns other fetches that may have completed too, and for which no thread waits.
    fn fetches_beside(&self, ticket: Ticket) -> Vec<Ticket> {
        let is_free = |fetch: &&FetchUnderWay| !fetch.submission.is_watched && !fetch.is_ending;
        let may_be_done = |other: &Ticket| other.queue != ticket.queue || other.value < ticket.value;
        self.fetches.iter().filter(is_free).map(|fetch| fetch.submission.ticket).filter(may_be_done).collect()
    }

    pub(super) fn submissions(&mut self) -> impl Iterator<Item = &mut Submission> {
        let fetches = self.fetches.iter_mut().map(|work| &mut work.submission);
        fetches.chain(self.write_backs.iter_mut().map(|work| &mut work.submission))
    }

    pub(super) fn transfer_of(&mut self, page: u64) -> Option<&mut Submission> {
        if let Some(work) = self.fetches.iter_mut().find(|work| work.load_of(page).is_some()) {
            return Some(&mut work.submission);
        }
        self.write_backs.iter_mut().find(|work| work.pages.contains(&page)).map(|work| &mut work.submission)
    }

    /// Returns the transfer that will probably free a frame first, and true if it is a write-back.
    pub(super) fn oldest_transfer(&self) -> Option<(Ticket, bool)> {
        let write = self.write_backs.first().map(|work| (work.submission.ticket, true));
        write.or_else(|| self.fetches.first().map(|work| (work.submission.ticket, false)))
    }

    /// Makes the calling thread the one that waits for a ticket in the driver. Returns false if there is one
    /// already, which [announces](Channel::announce) the end.
    pub(super) fn watch(&mut self, ticket: Ticket) -> bool {
        let known = self.submissions().find(|submission| submission.ticket == ticket);
        known.is_none_or(|submission| !std::mem::replace(&mut submission.is_watched, true))
    }
}
