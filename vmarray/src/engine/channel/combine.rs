//! Loads and reads of many threads in one submission.
//!
//! A driver's call costs microseconds, and calls into one context take turns; so threads that miss at the
//! same time share calls. A load is queued under the lock of the shard. If nobody submits at that moment the
//! thread becomes the combiner: it submits all that is queued as one batch, and what was queued meanwhile as
//! the next one.
//! With a single thread each load is a batch of its own at once: nothing ever waits for others to come.
//!
//! A thread whose load is queued looks after it until it is submitted, so another thread can always take
//! over: the combiner goes on only as long as nobody else could.
//!
//! A queue takes some microseconds for each submission, however short, so that many short ones would pile up
//! there and not here. Hence no more than a few are under way while some thread waits for one of them; it
//! submits what has been queued when that is done.
//!
//! The idea is that of flat combining (D. Hendler, I. Incze, N. Shavit, M. Tzafrir, "Flat combining and the
//! synchronization-parallelism tradeoff", 2010).

use std::hint;
use std::mem;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use backend_api::{Ticket, Transfer};
use parking_lot::MutexGuard;

use super::coalesce::{CopyWay, coalesce};
use super::frames::Frame;
use super::requests::Request;
use super::transfers::{FetchUnderWay, Submission, Wakes};
use super::waiting::spin_while;
use super::{Channel, DevicePlace, HostPlace, Shard, WorkUnderWay};
use crate::base::error::Result;
use crate::base::recording;
use crate::engine::page::state::{EXCLUSIVE, IN_FLIGHT, RESIDENT};
use crate::engine::page::{Deferral, Holder, PageTable, State};

/// How much one submission fetches at most, in bytes, unless a page is longer: what comes first is not to
/// wait long for what comes last. Futures have such batches.
pub(super) const BATCH_BYTES: usize = 2 << 20;
/// The same for threads whose cache has room for many batches of that length: the longer the batches, the
/// less of the bus is lost between them.
const LONG_BATCH_BYTES: usize = 4 << 20;
const LONG_BATCHES: usize = 32;
/// How many submissions are under way before others are held back. One is not enough: the device would be
/// idle between the end of one and the next.
const DEPTH: usize = 2;
/// How often a thread looks whether its load was submitted before it gives its time slice away.
const LOOKS: u32 = 100;

/// What a loaded page is turned into for the thread that asked for it, whichever thread finishes the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoadFor {
    Share(Holder),
    /// The thread that asked for it has it exclusively, as a pin; a guard has to [count
    /// itself](crate::engine::page::Entry::hold_exclusive).
    Exclusive(Holder),
    /// Nobody holds it: a prefetch.
    Release,
    /// Nobody holds it: those tasks that asked for it have been [served](super::requests), so it is the next
    /// to go.
    Leave,
}

/// An absent page, claimed, and the frame that it is to be loaded into.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) page: u64,
    pub(crate) frame: Frame,
    pub(crate) then: LoadFor,
    /// Names it, so that the thread that asked for it finds out what came of it.
    pub(crate) id: u64,
}

/// Bytes of a home slot on their way to pinned memory.
#[derive(Debug)]
pub(super) struct Read {
    copy: Transfer<'static>,
    /// What came of it, and whether it was submitted without others.
    pub(super) outcome: OnceLock<(backend_api::Result<()>, bool)>,
}

/// What is submitted in one call.
struct Batch {
    loads: Vec<Load>,
    reads: Vec<Arc<Read>>,
    /// Of tasks, for pages of the loads.
    requests: Vec<Arc<Request>>,
}

/// What came of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loaded {
    Yes,
    /// It failed together with others: one of them may be to blame. To be tried again, alone.
    NotWithOthers,
}

impl Channel {
    /// A name for a load.
    pub(crate) fn load_id(&self) -> u64 {
        self.loads.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Has absent pages, with contents, loaded that the caller has claimed: together with those of other
    /// threads, soon. Returns before they are. If that fails, the claims are gone, the frames given back, and
    /// threads that asked are told by [`await_load`](Self::await_load).
    pub(crate) fn request(&self, table: &PageTable, loads: impl IntoIterator<Item = Load>) {
        let mut shard = self.lock();
        shard.work.queued.extend(loads);
        self.combine_now(table, shard);
    }

    /// Reads bytes of home slots, which the caller keeps from changing, together with what others fetch.
    /// Blocks.
    ///
    /// # Errors
    /// The failure of the copy, when it was submitted alone.
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
                    // Told by the read.
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
                // One of the others may be to blame.
                let again = self.queues.read(&mut self.queues.begin_loads(), |queue| queue.submit(&[copy]));
                again.and_then(|ticket| self.wait_for_pages(ticket))
            }
            outcome => outcome,
        }
    }

    /// Makes the thread the combiner, unless another one is or soon will be.
    pub(super) fn combine_now(&self, table: &PageTable, mut shard: MutexGuard<'_, Shard>) {
        if shard.work.may_combine() {
            let batch = self.become_combiner(&mut shard);
            drop(shard);
            self.combine(table, batch);
        } else {
            self.note_combiner(&shard);
        }
    }

    /// Makes the thread the combiner if nobody is. Whether it was.
    pub(crate) fn combine_if_needed(&self, table: &PageTable) -> bool {
        if !self.loads.may_combine.load(Ordering::Relaxed) {
            return false;
        }
        // If it is taken, this one looks again. What nobody looks after is led by the thread that makes room
        // for it.
        let Some(shard) = self.shard.try_lock() else { return false };
        let combines = shard.work.may_combine();
        self.combine_now(table, shard);
        combines
    }

    /// One look of a thread whose load or read is queued: for as long as others are in the driver.
    fn combine_or_look_on(&self, table: &PageTable, turns: &mut u32) {
        if !self.combine_if_needed(table) {
            *turns += 1;
            if *turns < LOOKS { hint::spin_loop() } else { std::thread::yield_now() }
        }
    }

    /// Notes whether a thread may become the combiner, for threads that look without the lock.
    pub(super) fn note_combiner(&self, shard: &Shard) {
        self.loads.may_combine.store(shard.work.may_combine(), Ordering::Relaxed);
    }

    fn become_combiner(&self, shard: &mut Shard) -> Batch {
        shard.work.has_combiner = true;
        self.loads.may_combine.store(false, Ordering::Relaxed);
        self.next_batch(shard)
    }

    /// What is to be submitted next: what threads wait for before what is fetched ahead.
    fn next_batch(&self, shard: &mut Shard) -> Batch {
        let cache_bytes = self.layout.frames_max as usize * self.layout.frame_stride;
        let bytes = (cache_bytes / LONG_BATCHES).clamp(BATCH_BYTES, LONG_BATCH_BYTES);
        let most = (bytes / self.layout.page_bytes).max(1);
        let reads = mem::take(&mut shard.work.queued_reads);
        if shard.work.queued.len() <= most {
            return Batch { loads: mem::take(&mut shard.work.queued), reads, requests: Vec::new() };
        }
        // Stable: what was asked for first comes first.
        shard.work.queued.sort_by_key(|load| load.then == LoadFor::Release);
        let rest = shard.work.queued.split_off(most);
        Batch { loads: mem::replace(&mut shard.work.queued, rest), reads, requests: Vec::new() }
    }

    /// Submits a batch, and what was queued meanwhile unless somebody else can.
    fn combine(&self, table: &PageTable, batch: Batch) {
        let mut next = Some(batch);
        while let Some(batch) = next {
            (_, next) = self.submit_batch(table, batch, |shard| {
                shard.work.has_combiner = false;
                // A thread that waits for a load looks after it; after loads that nobody waits for, the
                // combiner does.
                let nobody_waits = shard.work.queued_reads.is_empty()
                    && shard.work.queued.iter().all(|load| load.then == LoadFor::Release);
                if shard.work.may_combine() && nobody_waits {
                    return Some(self.become_combiner(shard));
                }
                self.note_combiner(shard);
                None
            });
        }
    }

    /// Phases 4 and 5 of a miss: submits a batch and puts it on record; then runs `then` under the same lock.
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
        // Until the loads are on record: a waker that blocks would wait for them in vain.
        let deferral = Deferral::begin();
        let submitted = self.queues.read(&mut self.queues.begin_loads(), |queue| queue.submit(&copies));
        let mut wakes = Wakes::default();
        let mut shard = self.lock();
        match &submitted {
            &Ok(ticket) => {
                self.counters.bytes_from_device.add(bytes * loads.len() as u64);
                let copied = || copies.iter().map(Transfer::bytes).sum();
                recording::sized(ticket, loads.len() + reads.len(), copied);
                // Under the lock, so that nobody finishes the transfer before: the thread that sleeps for one
                // of the pages is to help now.
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

    /// Submits loads as a batch of their own, which succeeds or fails alone, with what tasks ask of them, and
    /// puts them on record.
    pub(crate) fn submit_loads(
        &self,
        table: &PageTable,
        loads: Vec<Load>,
        requests: Vec<Arc<Request>>,
    ) -> backend_api::Result<Ticket> {
        self.submit_batch(table, Batch { loads, reads: Vec::new(), requests }, |_| ()).0
    }

    /// Waits until a load that the calling thread asked for is finished, and tells what came of it. `claimed`
    /// is the state of the page when it was claimed.
    ///
    /// # Errors
    /// The failure of a load that was submitted alone.
    pub(crate) fn await_load(&self, table: &PageTable, load: &Load, claimed: State) -> Result<Loaded> {
        let entry = table.entry(load.page);
        let is_shared = matches!(load.then, LoadFor::Share(_));
        // To share and to fail ends the claim, which changes the version; else the frame is all that comes.
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
        if self.loads.untold_failures.load(Ordering::Acquire) == 0 {
            return Ok(Loaded::Yes);
        }
        let mut shard = self.lock();
        let Some(at) = shard.work.failed_loads.iter().position(|failed| failed.id == load.id) else {
            return Ok(Loaded::Yes);
        };
        let failed = shard.work.failed_loads.swap_remove(at);
        self.loads.untold_failures.fetch_sub(1, Ordering::Relaxed);
        if failed.was_alone { Err(failed.error.into()) } else { Ok(Loaded::NotWithOthers) }
    }
}

impl WorkUnderWay {
    /// Whether there is something to submit, and nobody does, or soon will.
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
    fn who_has_submitted_goes_on_with_what_nobody_waits_for() {
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
            assert_eq!(channel.await_load(table, &load, claimed).unwrap(), Loaded::Yes);
            assert_eq!(table.entry(page).state(Ordering::Acquire).shared(), left > 0);
        }
        array.pager().unshare(1, Holder::Pin);
        assert_eq!([0, 16].map(|index| array.get(index).unwrap()), [7; 2]);
    }
}
