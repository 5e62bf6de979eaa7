//! Loads of many threads in one submission.
//!
//! A driver's call costs microseconds, and calls into one context take turns; so threads that miss at the same time
//! share calls. A load is queued under the lock of the shard. If nobody submits at that moment the thread leads:
//! it submits all that is queued as one batch, and what was queued meanwhile as the next one. With a single thread
//! each load is a batch of its own at once: nothing ever waits for others to come.
//!
//! A thread whose load is queued looks after it until it is submitted, so leadership can be handed on: a leader goes on
//! only as long as nobody else could.
//!
//! The idea is that of flat combining (D. Hendler, I. Incze, N. Shavit, M. Tzafrir, "Flat combining and the
//! synchronization-parallelism tradeoff", 2010).

use std::hint;
use std::mem;
use std::sync::atomic::Ordering;

use backend_api::Device;

use super::frames::Frame;
use super::pieces::{Way, pieces};
use super::transfers::{Fetch, Wakes};
use super::{Channel, Shard};
use crate::error::Result;
use crate::page::state::{EXCLUSIVE, IN_FLIGHT, RESIDENT};
use crate::page::{Holder, PageTable, State};

/// How much one submission fetches at most, in bytes, unless a page is longer: what comes first is not to wait long for
/// what comes last.
const BATCH_BYTES: usize = 2 << 20;
/// How often a thread looks whether its load was submitted before it gives its time slice away.
const LOOKS: u32 = 100;

/// What a loaded page is turned into for the thread that asked for it, whoever finishes the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    Share(Holder),
    /// Whoever asked for it has it exclusively, as a pin; a guard has to [count
    /// itself](crate::page::Entry::hold_exclusive).
    Exclusive(Holder),
    /// Nobody holds it: a prefetch.
    Release,
}

/// An absent page, claimed, and the frame that it is to be loaded into.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) page: u64,
    pub(crate) frame: Frame,
    pub(crate) then: Then,
    /// Names it, so that whoever asked for it finds out what came of it.
    pub(crate) id: u64,
}

/// What came of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loaded {
    Yes,
    /// It failed together with others: one of them may be to blame. To be tried again, alone.
    NotWithOthers,
}

impl<D: Device> Channel<D> {
    /// A name for a load.
    pub(crate) fn load_id(&self) -> u64 {
        self.next_load.fetch_add(1, Ordering::Relaxed)
    }

    /// Has absent pages, with contents, loaded that the caller has claimed: together with those of other threads, soon.
    /// Returns before they are. If that fails, the claims are gone, the frames given back, and those who asked are told
    /// by [`await_load`](Self::await_load).
    pub(crate) fn request(&self, table: &PageTable, loads: impl IntoIterator<Item = Load>) {
        let mut shard = self.shard.lock();
        shard.queued.extend(loads);
        if !shard.is_led && !shard.queued.is_empty() {
            let batch = self.begin_to_lead(&mut shard);
            drop(shard);
            self.lead(table, batch);
        }
    }

    /// As [`request`](Self::request), for one load, which is to succeed or fail alone.
    pub(crate) fn request_alone(&self, table: &PageTable, load: Load) {
        self.submit_loads(table, vec![load], |_| ());
    }

    /// Whether this thread has led, because nobody else did.
    fn lead_if_needed(&self, table: &PageTable) -> bool {
        if self.is_led.load(Ordering::Relaxed) {
            return false;
        }
        let mut shard = self.shard.lock();
        if shard.is_led || shard.queued.is_empty() {
            return false;
        }
        let batch = self.begin_to_lead(&mut shard);
        drop(shard);
        self.lead(table, batch);
        true
    }

    fn begin_to_lead(&self, shard: &mut Shard<D>) -> Vec<Load> {
        shard.is_led = true;
        self.is_led.store(true, Ordering::Relaxed);
        self.next_batch(shard)
    }

    /// What is to be submitted next: pages that threads wait for before those fetched ahead.
    fn next_batch(&self, shard: &mut Shard<D>) -> Vec<Load> {
        let most = (BATCH_BYTES / self.page_bytes).max(1);
        if shard.queued.len() <= most {
            return mem::take(&mut shard.queued);
        }
        // Stable: what was asked for first comes first.
        shard.queued.sort_by_key(|load| load.then == Then::Release);
        let rest = shard.queued.split_off(most);
        mem::replace(&mut shard.queued, rest)
    }

    /// Submits a batch, and what was queued meanwhile unless somebody else can.
    fn lead(&self, table: &PageTable, mut batch: Vec<Load>) {
        while !batch.is_empty() {
            batch = self.submit_loads(table, batch, |shard| {
                // Whoever waits for a load looks after it; after those that nobody waits for, the leader does.
                if shard.queued.iter().all(|load| load.then == Then::Release) {
                    let next = self.next_batch(shard);
                    shard.is_led = !next.is_empty();
                    self.is_led.store(shard.is_led, Ordering::Relaxed);
                    next
                } else {
                    shard.is_led = false;
                    self.is_led.store(false, Ordering::Relaxed);
                    Vec::new()
                }
            });
        }
    }

    /// Submits loads as one batch and puts them on record; then runs `then` under the same lock.
    fn submit_loads<R>(
        &self,
        table: &PageTable,
        mut loads: Vec<Load>,
        then: impl FnOnce(&mut Shard<D>) -> R,
    ) -> R {
        let bytes = self.page_bytes as u64;
        loads.sort_unstable_by_key(|load| load.page);
        let pages = loads.iter().map(|load| (self.home(load.page), load.frame.host));
        let submitted = self.fetches.submit(&pieces(pages, bytes, Way::Fetch));
        let mut wakes = Wakes::default();
        let mut shard = self.shard.lock();
        match submitted {
            Ok(ticket) => {
                self.counters.submissions.add(1);
                self.counters.bytes_from_device.add(bytes * loads.len() as u64);
                // Under the lock, so that nobody finishes the transfer before: whoever sleeps for one of the pages is
                // to help now.
                for load in &loads {
                    let entry = table.entry(load.page);
                    wakes.add(load.page, entry.mark_in_flight());
                }
                shard.fetches.push(Fetch { ticket, loads, is_watched: false });
            }
            Err(error) => self.fail_loads(&mut shard, table, loads, &error, &mut wakes),
        }
        let result = then(&mut shard);
        drop(shard);
        self.wake(table, wakes);
        result
    }

    /// Waits until a load that the calling thread asked for is finished, and tells what came of it. `claimed` is the
    /// state of the page when it was claimed.
    ///
    /// # Errors
    /// The failure of a load that was submitted alone.
    pub(crate) fn await_load(&self, table: &PageTable, load: &Load, claimed: State) -> Result<Loaded> {
        let entry = table.entry(load.page);
        let is_shared = matches!(load.then, Then::Share(_));
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
                self.help_while(table, load.page, is_pending);
            } else if !self.lead_if_needed(table) {
                // For as long as another thread is in the driver.
                turns += 1;
                if turns < LOOKS { hint::spin_loop() } else { std::thread::yield_now() }
            }
        }
        if self.untold_failures.load(Ordering::Acquire) == 0 {
            return Ok(Loaded::Yes);
        }
        let mut shard = self.shard.lock();
        let Some(at) = shard.failed_loads.iter().position(|failed| failed.id == load.id) else {
            return Ok(Loaded::Yes);
        };
        let failed = shard.failed_loads.swap_remove(at);
        self.untold_failures.fetch_sub(1, Ordering::Relaxed);
        if failed.was_alone { Err(failed.error.into()) } else { Ok(Loaded::NotWithOthers) }
    }
}
