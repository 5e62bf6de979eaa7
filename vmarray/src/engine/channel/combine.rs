//! Combined submissions: page loads and reads that several threads request at the same time become one
//! submission to the device.
//!
//! A driver call takes microseconds, and a driver serialises the calls into one context. So threads that miss
//! at the same time share calls. A thread queues its load under the lock of its channel (share of a device).
//! If no thread is submitting, this thread becomes the combiner: it submits all queued loads as one batch,
//! and later loads as the next batch. A single thread submits each load at once, as its own batch.
//!
//! A thread with a queued load polls until the combiner has submitted the load, so this thread can take over
//! as combiner. A combiner stops when another thread can take over.
//!
//! A device queue needs some microseconds for each submission, and these times add up. Therefore at most
//! `DEPTH` submissions are in flight. At this limit a thread waits for one of them, and then submits the
//! loads that other threads queued meanwhile.
//!
//! The idea is that of flat combining (D. Hendler, I. Incze, N. Shavit, M. Tzafrir, "Flat combining and the
//! synchronization-parallelism tradeoff", 2010).

use std::hint;
use std::mem;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use backend_api::{Ticket, Transfer};
use parking_lot::MutexGuard;

use super::async_requests::PageRequest;
use super::coalesce::{CopyWay, coalesce};
use super::frames::Frame;
use super::transfers::{FetchUnderWay, Submission, Wakes};
use super::waiting::spin_while;
use super::{Channel, DevicePlace, HostPlace, Shard, WorkUnderWay};
use crate::base::error::Result;
use crate::base::recording;
use crate::engine::page::state::{EXCLUSIVE, IN_FLIGHT, RESIDENT};
use crate::engine::page::{DeferredWakes, Holder, PageTable, State};

/// Maximum bytes of one submission, unless a page is longer, so that the first page need not wait long for
/// the last. Requests of tasks use this limit.
pub(super) const BATCH_BYTES: usize = 2 << 20;
/// Maximum bytes of one submission of threads whose cache has room for many batches. The bus then idles less
/// often.
const LONG_BATCH_BYTES: usize = 4 << 20;
const LONG_BATCHES: usize = 32;
/// Maximum number of submissions in flight. With one, the device would be idle between submissions.
const DEPTH: usize = 2;
/// Number of checks of a queued load before the waiting thread yields.
const LOOKS: u32 = 100;

/// The state of a page after its load, as the requester needs it; the thread that finishes the load sets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoadFor {
    Share(Holder),
    /// The requesting thread holds the page exclusively, as a pin. A guard must [count
    /// itself](crate::engine::page::Entry::hold_exclusive).
    Exclusive(Holder),
    /// No thread holds the page, because it was prefetched.
    Release,
    /// No thread holds the page: the requesting tasks are [served](super::async_requests). Evicted next.
    Leave,
}

/// A load of an absent page that the requester has claimed, into a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) page: u64,
    pub(crate) frame: Frame,
    pub(crate) then: LoadFor,
    /// The id of the load, by which the requester gets the result.
    pub(crate) id: u64,
}

/// A read of bytes of a home slot into pinned memory.
#[derive(Debug)]
pub(super) struct Read {
    copy: Transfer<'static>,
    /// The result of the read, and true if it was submitted alone.
    pub(super) outcome: OnceLock<(backend_api::Result<()>, bool)>,
}

/// The contents of one submission.
struct Batch {
    loads: Vec<Load>,
    reads: Vec<Arc<Read>>,
    /// Requests of tasks for pages of the loads.
    requests: Vec<Arc<PageRequest>>,
}

/// The result of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoadResult {
    Yes,
    /// The load failed in a batch, perhaps because of another load. Retry it alone.
    NotWithOthers,
}

impl Channel {
    pub(crate) fn load_id(&self) -> u64 {
        self.loads.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Loads absent pages with contents that the caller has claimed, together with loads of other threads.
    /// Returns before they complete. After a failure the claims end, the frames are freed, and
    /// [`await_load`](Self::await_load) returns the error to requesters.
    pub(crate) fn request(&self, table: &PageTable, loads: impl IntoIterator<Item = Load>) {
        let mut shard = self.lock();
        shard.work.queued.extend(loads);
        self.combine_now(table, shard);
    }

    /// Reads bytes of home slots, together with fetches of other threads, and blocks. The caller protects the
    /// slots from changes.
    ///
    /// # Errors
    /// The error of the copy, after a submission of this copy alone.
    pub(super) fn read_with_others(
        &self,
        table: &PageTable,
        from: DevicePlace,
        to: HostPlace,
        bytes: u64,
    ) -> backend_api::Result<()> {
        let copy = Transfer::Download { from, to, bytes };
        let read = Arc::new(Read { copy, outcome: OnceLock::new() });
        let mut shard = self.lock();
        shard.work.queued_reads.push(Arc::clone(&read));
        self.combine_now(table, shard);
        let mut turns = 0_u32;
        let (outcome, was_alone) = loop {
            if let Some(outcome) = read.outcome.get() {
                break outcome.clone();
            }
            let mut shard = self.lock();
            let found = shard.work.fetches.iter_mut().find(|fetch| fetch.has(&read));
            match found {
                Some(fetch) if !fetch.submission.is_watched => {
                    fetch.submission.is_watched = true;
                    let ticket = fetch.submission.ticket;
                    self.note_combiner(&shard);
                    drop(shard);
                    // Ignore an error here, because each read of the submission reports it.
                    let _ = self.finish(table, ticket);
                }
                Some(_) => {
                    drop(shard);
                    if !spin_while(|| read.outcome.get().is_none()) {
                        let key = self.events.prepare();
                        if read.outcome.get().is_none() {
                            self.events.wait(key);
                        }
                    }
                }
                None => {
                    drop(shard);
                    self.combine_or_look_on(table, &mut turns);
                }
            }
        };
        match outcome {
            Err(_) if !was_alone => {
                // Another copy of the submission may have caused the error, so submit this copy alone.
                let again = self.queues.read(&mut self.queues.begin_loads(), |queue| queue.submit(&[copy]));
                again.and_then(|ticket| self.wait_for_pages(ticket))
            }
            outcome => outcome,
        }
    }

    /// Makes the calling thread the combiner, unless another thread is or soon will be.
    pub(super) fn combine_now(&self, table: &PageTable, mut shard: MutexGuard<'_, Shard>) {
        if shard.work.may_combine() {
            let batch = self.become_combiner(&mut shard);
            drop(shard);
            self.combine(table, batch);
        } else {
            self.note_combiner(&shard);
        }
    }

    /// Makes the calling thread the combiner if there is none. Returns true if it did.
    pub(crate) fn combine_if_needed(&self, table: &PageTable) -> bool {
        if !self.loads.may_combine.load(Ordering::Relaxed) {
            return false;
        }
        // If another thread has the lock, this thread checks again later. If no thread waits for a load, the
        // thread that ends the current submission submits the load.
        let Some(shard) = self.shard.try_lock() else { return false };
        let combines = shard.work.may_combine();
        self.combine_now(table, shard);
        combines
    }

    /// Checks once if the calling thread, whose load or read is queued, should become the combiner.
    fn combine_or_look_on(&self, table: &PageTable, turns: &mut u32) {
        if !self.combine_if_needed(table) {
            *turns += 1;
            if *turns < LOOKS { hint::spin_loop() } else { std::thread::yield_now() }
        }
    }

    /// Records if a thread may become the combiner, for checks without the lock.
    pub(super) fn note_combiner(&self, shard: &Shard) {
        self.loads.may_combine.store(shard.work.may_combine(), Ordering::Relaxed);
    }

    fn become_combiner(&self, shard: &mut Shard) -> Batch {
        shard.work.has_combiner = true;
        self.loads.may_combine.store(false, Ordering::Relaxed);
        self.next_batch(shard)
    }

    /// Returns the next batch. Loads for which threads wait precede prefetches.
    fn next_batch(&self, shard: &mut Shard) -> Batch {
        let cache_bytes = self.layout.frames_max as usize * self.layout.frame_stride;
        let bytes = (cache_bytes / LONG_BATCHES).clamp(BATCH_BYTES, LONG_BATCH_BYTES);
        let most = (bytes / self.layout.page_bytes).max(1);
        let reads = mem::take(&mut shard.work.queued_reads);
        if shard.work.queued.len() <= most {
            return Batch { loads: mem::take(&mut shard.work.queued), reads, requests: Vec::new() };
        }
        // Submit prefetches (`Release`) last. The sort is stable, so other loads keep their order.
        shard.work.queued.sort_by_key(|load| load.then == LoadFor::Release);
        let rest = shard.work.queued.split_off(most);
        Batch { loads: mem::replace(&mut shard.work.queued, rest), reads, requests: Vec::new() }
    }

    /// Submits a batch, and then queued loads while no other thread can.
    fn combine(&self, table: &PageTable, batch: Batch) {
        let mut next = Some(batch);
        while let Some(batch) = next {
            (_, next) = self.submit_batch(table, batch, |shard| {
                shard.work.has_combiner = false;
                // A waiting thread submits its own load, so the combiner continues only if no thread waits.
                let are_unwatched = shard.work.queued_reads.is_empty()
                    && shard.work.queued.iter().all(|load| load.then == LoadFor::Release);
                if shard.work.may_combine() && are_unwatched {
                    return Some(self.become_combiner(shard));
                }
                self.note_combiner(shard);
                None
            });
        }
    }

    /// Phases 4 and 5 of a miss: submits a batch and records it; then runs `then` under the same lock.
    fn submit_batch<R>(
        &self,
        table: &PageTable,
        Batch { mut loads, reads, requests }: Batch,
        then: impl FnOnce(&mut Shard) -> R,
    ) -> (backend_api::Result<Ticket>, R) {
        let bytes = self.layout.page_bytes as u64;
        loads.sort_unstable_by_key(|load| load.page);
        let pages = loads.iter().map(|load| (self.home(load.page), load.frame.host));
        let mut copies = coalesce(pages, bytes, CopyWay::Fetch);
        copies.extend(reads.iter().map(|read| read.copy));
        // Call wakers only after the loads are recorded: a waker that blocks could wait forever for a load
        // that is not recorded.
        let deferral = DeferredWakes::begin();
        let submitted = self.queues.read(&mut self.queues.begin_loads(), |queue| queue.submit(&copies));
        let mut wakes = Wakes::default();
        let mut shard = self.lock();
        match &submitted {
            &Ok(ticket) => {
                self.counters.bytes_from_device.add(bytes * loads.len() as u64);
                let copied = || copies.iter().map(Transfer::bytes).sum();
                recording::sized(ticket, loads.len() + reads.len(), copied);
                // Wake the threads that sleep for these pages: one of them must finish the transfer. They
                // find the transfer only after it is recorded below, because this thread holds the lock.
                for load in &loads {
                    let entry = table.entry(load.page);
                    wakes.add(load.page, entry.mark_in_flight());
                }
                let submission = Submission::new(ticket, !requests.is_empty());
                shard.work.fetches.push(FetchUnderWay {
                    submission,
                    loads,
                    reads,
                    requests,
                    is_ending: false,
                });
            }
            Err(error) => self.fail_fetch(&mut shard, table, (loads, reads, requests), error, &mut wakes),
        }
        let result = then(&mut shard);
        drop(shard);
        drop(deferral);
        self.wake(table, wakes);
        self.announce();
        (submitted, result)
    }

    /// Submits loads and requests of tasks as one separate batch, which succeeds or fails alone; records it.
    pub(crate) fn submit_loads(
        &self,
        table: &PageTable,
        loads: Vec<Load>,
        requests: Vec<Arc<PageRequest>>,
    ) -> backend_api::Result<Ticket> {
        self.submit_batch(table, Batch { loads, reads: Vec::new(), requests }, |_| ()).0
    }

    /// Waits until a load of the calling thread is finished, and returns its result. `claimed` is the page's
    /// state after its claim.
    ///
    /// # Errors
    /// The error of the load, after a submission of this load alone.
    pub(crate) fn await_load(&self, table: &PageTable, load: &Load, claimed: State) -> Result<LoadResult> {
        let entry = table.entry(load.page);
        let is_shared = matches!(load.then, LoadFor::Share(_));
        // The claim (exclusive right to load the page) ends when a shared load ends or any load fails, and
        // the version changes. A successful exclusive load keeps the claim; the page only becomes resident.
        let is_pending = |state: State| {
            state.version() == claimed.version()
                && state.any(EXCLUSIVE)
                && (is_shared || !state.any(RESIDENT))
        };
        let mut turns = 0_u32;
        loop {
            let state = entry.state(Ordering::Acquire);
            if !is_pending(state) {
                break;
            }
            if state.any(IN_FLIGHT) {
                self.help_while(table, load.page, Some(load.frame), is_pending);
            } else {
                self.combine_or_look_on(table, &mut turns);
            }
        }
        if self.loads.unreported_errors.load(Ordering::Acquire) == 0 {
            return Ok(LoadResult::Yes);
        }
        let mut shard = self.lock();
        let Some(at) = shard.work.failed_loads.iter().position(|failed| failed.id == load.id) else {
            return Ok(LoadResult::Yes);
        };
        let failed = shard.work.failed_loads.swap_remove(at);
        self.loads.unreported_errors.fetch_sub(1, Ordering::Relaxed);
        if failed.was_alone { Err(failed.error.into()) } else { Ok(LoadResult::NotWithOthers) }
    }
}

impl WorkUnderWay {
    /// Returns true if there are loads to submit, and no thread submits them or soon will.
    fn may_combine(&self) -> bool {
        let is_idle = self.queued.is_empty() && self.queued_reads.is_empty();
        let is_full =
            self.fetches.len() >= DEPTH && self.fetches.iter().any(|fetch| fetch.submission.is_watched);
        !(self.has_combiner || is_idle || is_full)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::array::testing::{host, one_channel};
    use crate::engine::channel::Blocking;
    use crate::prelude::*;

    #[test]
    fn a_combiner_submits_queued_loads_that_no_thread_awaits() {
        let array = one_channel::<u32, _>(&Arc::new(host()), (2, 16), 2).build().unwrap();
        array.write(0, &[7; 32]).unwrap();
        array.evict(..).unwrap();
        let (channel, table) = (&array.pager().channels()[0], array.pager().table());
        for (page, then, left) in [(0, LoadFor::Release, 0), (1, LoadFor::Share(Holder::Pin), 1)] {
            let claimed = table.entry(page).try_claim_absent(true).unwrap();
            let frame = channel.take_frame(table, Blocking::Try).unwrap().unwrap();
            let load = Load { page, frame, then, id: channel.load_id() };
            let mut shard = channel.lock();
            let batch = channel.become_combiner(&mut shard);
            shard.work.queued.push(load);
            drop(shard);
            channel.combine(table, batch);
            assert_eq!(channel.lock().work.queued.len(), left);
            assert_eq!(channel.await_load(table, &load, claimed).unwrap(), LoadResult::Yes);
            assert_eq!(table.entry(page).state(Ordering::Acquire).shared(), left > 0);
        }
        array.pager().unshare(1, Holder::Pin);
        assert_eq!([0, 16].map(|index| array.get(index).unwrap()), [7; 2]);
    }
}
