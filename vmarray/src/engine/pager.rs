//! The pager of an array: finds a page's channel (share of a device), acquires and releases pages, and moves
//! them between cache and devices. It works on bytes and does not depend on the element type.

mod bulk;
#[forbid(unsafe_code)]
mod fill;
#[forbid(unsafe_code)]
mod flush;
#[forbid(unsafe_code)]
mod growth;
mod hold;
#[forbid(unsafe_code)]
mod init_tracker;
#[cfg(feature = "host")]
#[forbid(unsafe_code)]
mod persistent_len;
#[forbid(unsafe_code)]
mod pool;
#[forbid(unsafe_code)]
mod prefetch;
#[cfg_attr(not(feature = "host"), allow(dead_code, reason = "arrays are saved to files of the host"))]
#[forbid(unsafe_code)]
mod snapshot;
#[cfg(test)]
mod tests;
#[forbid(unsafe_code)]
mod uncached;

use std::ops::Range;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;

use backend_api::Device;
use vmarray_support::links::is_same;
use vmarray_support::warn;

use crate::base::error::{ErrorKind, Result};
use crate::base::recording;
use crate::base::stats::{Baseline, Stats};
use crate::base::stats_export::Publication;
use crate::engine::channel::{Blocking, Channel, Frame, Load, LoadFor, LoadResult, WakeupDriver};
use crate::engine::guards::{self, Identity};
use crate::engine::page::state::{
    AHEAD, EXCLUSIVE, HOME, IN_FLIGHT, RESIDENT, UNSAVED, WAITED, WRITER_PENDING,
};
use crate::engine::page::{
    DeferredWakes, Entry, HazardAccess, HitCounter, Holder, PageTable, Refusal, Snapshots, State, count_hit,
    counter, hits, park, unpark,
};
use crate::engine::read_ahead::Use;
use crate::engine::redundancy::Redundancy;

pub(crate) use growth::Spare;
pub(crate) use hold::ExclusiveHold;
#[cfg(feature = "host")]
pub(crate) use persistent_len::PersistentLen;
pub(crate) use pool::SharedHomes;
#[cfg(feature = "host")]
pub(crate) use snapshot::{PageSaver, Snapshot};
pub(crate) use uncached::{PartFound, PartReads};

/// If an acquisition needs the present contents of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fetch {
    Contents,
    /// The caller overwrites the whole page, so it is not fetched, and the frame has arbitrary bytes.
    Overwrite,
}

/// If an access counts for read-ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    Follow,
    /// The access does not count, because its operation has its own prefetch.
    Ignore,
}

/// A request to acquire a page: its purpose, and the use of the page's contents.
#[derive(Clone, Copy, Debug)]
struct Acquisition {
    page: u64,
    then: LoadFor,
    fetch: Fetch,
    stream: Stream,
}

/// A page that the caller holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    /// The first byte of the page's frame.
    pub(crate) address: *mut u8,
    /// The page's state before the acquisition; it shows the lock-free accesses that may be in progress.
    pub(crate) before: State,
}

impl Held {
    /// Returns true for a resident page with earlier uses, which is worth opening to lock-free accesses. A
    /// page with a single use, as in random access to an array far larger than its cache, stays closed, so
    /// its eviction needs no barrier.
    pub(crate) fn is_used_again(&self) -> bool {
        self.before.any(RESIDENT) && !self.before.any(AHEAD)
    }
}

/// Maximum bytes of read-ahead for one stream, if this is at most an eighth of the frames. It keeps a bus of
/// 64 GB/s busy during one round trip.
const WINDOW_BYTES: usize = 4 << 20;
const WINDOW_PAGES: std::ops::RangeInclusive<usize> = 4..=256;

/// The pager of one array: its page table and its channels (shares of devices).
#[derive(Debug)]
pub struct Pager {
    channels: Vec<Arc<Channel>>,
    table: Arc<PageTable>,
    /// The wakers that devices call. The array's drop closes them; then the channels and the table have no
    /// other owner.
    drivers: Vec<Arc<WakeupDriver>>,
    page_bytes: usize,
    /// Number of frames of all channels together, at most.
    frames: u64,
    counter: HitCounter,
    baseline: Baseline,
    read_ahead: bool,
    /// Greatest number of pages of read-ahead for one stream.
    window_max: u64,
    /// The array's number, by which thread-local lists name it.
    identity: Identity,
    /// Number of devices. The pager assumes that each device has a bus of its own.
    buses: usize,
    redundancy: Redundancy,
    /// Number of long uncached copies so far.
    bulk_copies: AtomicU64,
    init_tracker: init_tracker::InitTracker,
    /// The lock of the thread that extends the devices' memory.
    extending: Mutex<()>,
    snapshots: Snapshots<snapshot::Saver>,
    pool: OnceLock<Option<SharedHomes>>,
    /// The publication of the statistics. The first field, to end before the other parts drop.
    publication: Option<Publication>,
    keeps: Keeps,
    /// Minimum bytes of a read of an absent page directly from its home slot.
    parts_least: AtomicUsize,
    /// The length that the array's files store next to the pages.
    #[cfg(feature = "host")]
    length: KeptLength,
}

/// The kind of length that files store next to persistent pages.
#[cfg(feature = "host")]
#[derive(Clone, Debug, Default)]
pub(crate) enum KeptLength {
    /// Files store no length, or a fixed one.
    #[default]
    None,
    /// Files store the length of the array.
    Own(Arc<PersistentLen>),
    /// Files store the length of a larger structure, such as rows, which contains the array and updates it.
    OfWhole(Arc<PersistentLen>),
}

/// The contents that outlive the array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keeps {
    /// The contents are lost when the array is dropped.
    Nothing,
    /// The contents stay in files when the array is dropped.
    All,
    /// The contents stay as they are, because the array is read-only.
    AsFound,
}

impl Pager {
    pub(crate) fn new(
        channels: Vec<Channel>,
        table: PageTable,
        page_bytes: usize,
        read_ahead: bool,
        counts_hits: bool,
    ) -> Self {
        let counter = counter::acquire(counts_hits);
        let frames: u64 = channels.iter().map(|c| u64::from(c.frames_max())).sum();
        let is_new = |(at, channel): &(usize, &Channel)| {
            channels[..*at].iter().all(|other| !Arc::ptr_eq(other.device(), channel.device()))
        };
        let buses = channels.iter().enumerate().filter(is_new).count().max(1);
        let window = (WINDOW_BYTES / page_bytes).clamp(*WINDOW_PAGES.start(), *WINDOW_PAGES.end());
        let channels: Vec<_> = channels.into_iter().map(Arc::new).collect();
        let table = Arc::new(table);
        let pager = Self {
            drivers: channels.iter().map(|channel| WakeupDriver::new(channel, &table)).collect(),
            frames,
            window_max: (frames / 8).min(window as u64),
            channels,
            table,
            page_bytes,
            counter,
            baseline: Baseline::default(),
            read_ahead,
            identity: Identity::unique(),
            buses,
            redundancy: Redundancy::default(),
            bulk_copies: AtomicU64::new(0),
            init_tracker: init_tracker::InitTracker::default(),
            extending: Mutex::default(),
            snapshots: Snapshots::default(),
            pool: OnceLock::new(),
            publication: None,
            keeps: Keeps::Nothing,
            parts_least: AtomicUsize::new(usize::MAX),
            #[cfg(feature = "host")]
            length: KeptLength::None,
        };
        if pager.channels.iter().all(|channel| channel.loads_directly()) {
            pager.read_parts();
        }
        pager.reset_stats();
        pager
    }

    #[inline(always)]
    pub(crate) fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    pub(crate) fn table(&self) -> &PageTable {
        &self.table
    }

    pub(crate) fn weak_table(&self) -> Weak<PageTable> {
        Arc::downgrade(&self.table)
    }

    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Returns the maximum number of frames of all channels together.
    pub(crate) fn frames(&self) -> u64 {
        self.frames
    }

    pub(crate) fn counter(&self) -> HitCounter {
        self.counter
    }

    pub(crate) fn channels(&self) -> &[Arc<Channel>] {
        &self.channels
    }

    /// Returns true if at least some pages have their home on a GPU.
    pub(crate) fn has_gpu(&self) -> bool {
        self.channels.iter().any(|channel| channel.device().info().kind.is_gpu())
    }

    /// Returns true if both arrays distribute pages over channels of the same devices in the same order.
    pub(crate) fn is_striped_like(&self, other: &Self) -> bool {
        let (own, others) = (self.channels(), other.channels());
        own.len() == others.len()
            && own.iter().zip(others).all(|(one, two)| Arc::ptr_eq(one.device(), two.device()))
    }

    /// Returns this pager with a redundancy layer, whose wrapped devices the channels use.
    pub(crate) fn with_redundancy(mut self, redundancy: Redundancy) -> Self {
        self.redundancy = redundancy;
        self
    }

    pub(crate) fn redundancy(&self) -> &Redundancy {
        &self.redundancy
    }

    /// Registers the publication of statistics, which queries the channels until the array is dropped.
    pub(crate) fn publish(&mut self, publication: Publication) {
        self.publication = Some(publication);
    }

    /// Makes the contents outlive the array. A read-only array also rejects writes.
    #[cfg(feature = "host")]
    pub(crate) fn keep(&mut self, is_read_only: bool, length: KeptLength) {
        self.keeps = if is_read_only { Keeps::AsFound } else { Keeps::All };
        self.length = length;
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.keeps == Keeps::AsFound
    }

    fn keeps_contents(&self) -> bool {
        self.keeps != Keeps::Nothing
    }

    /// Records that the array was truncated to this number of elements, if its length is stored.
    pub(crate) fn shorten(&self, len: usize) {
        #[cfg(feature = "host")]
        if let KeptLength::Own(kept) = &self.length {
            kept.shorten(len as u64);
        }
        #[cfg(not(feature = "host"))]
        let _ = len;
    }

    /// Allows files to reuse the space of pages after the end of the array.
    pub(crate) fn give_back(&self, pages: Range<u64>) {
        #[cfg(feature = "host")]
        if let KeptLength::Own(kept) = &self.length {
            kept.give_back(pages);
        }
        #[cfg(not(feature = "host"))]
        let _ = pages;
    }

    /// Returns an error if the array is read-only.
    pub(crate) fn expect_writable(&self) -> Result<()> {
        if self.is_read_only() {
            return Err(backend_api::Error::new(backend_api::ErrorKind::ReadOnly, "write").into());
        }
        Ok(())
    }

    /// Makes all earlier writes durable, together with the present length, on devices with stable storage.
    pub(crate) fn sync(&self) -> Result<()> {
        if self.is_read_only() {
            return Ok(());
        }
        let len = self.table.lengths().len() as u64;
        let settled = self.settle_all();
        // Store all other pages even if one page fails.
        let stored = self.store_with(settled.is_ok().then_some(len));
        settled.and(stored)
    }

    /// Makes devices store all bytes that they have received, and the length if it is the array's own.
    fn store_with(&self, len: Option<u64>) -> Result<()> {
        #[cfg(feature = "host")]
        if let KeptLength::Own(kept) = &self.length {
            return kept.store(len);
        }
        let _ = len;
        store(&self.devices())
    }

    /// Writes the dirty pages of the whole array back.
    pub(crate) fn settle_all(&self) -> Result<()> {
        self.settle(&(0..self.table.len()))
    }

    /// Returns the devices of the channels, each once.
    fn devices(&self) -> Vec<Arc<dyn Device>> {
        let mut devices: Vec<Arc<dyn Device>> = Vec::new();
        for channel in &self.channels {
            if devices.iter().all(|device| !is_same(device, channel.device())) {
                devices.push(Arc::clone(channel.device()));
            }
        }
        devices
    }

    /// Returns the number of a channel's pages that have contents only in their home slots.
    pub(crate) fn lost_pages(&self, channel: u64) -> u64 {
        // Finish completed transfers first: a page fetched before the device was lost then counts as cached.
        self.channels[channel as usize].reap_all(&self.table);
        let pages = self.table.len();
        let of_channel = (channel..pages).step_by(self.channels.len());
        let states = of_channel.map(|page| self.table.entry(page).state(Ordering::Acquire));
        states.filter(|state| state.any(HOME) && !state.any(RESIDENT)).count() as u64
    }

    pub(crate) fn channel(&self, page: u64) -> &Channel {
        &self.channels[self.channel_number(page)]
    }

    /// Returns the number of the channel that stores a page.
    pub(super) fn channel_number(&self, page: u64) -> usize {
        (page % self.channels.len() as u64) as usize
    }

    /// Returns true if pages may be opened to lock-free accesses. An exact eviction policy must see every
    /// access, so it forbids them.
    pub(crate) fn recency(&self) -> bool {
        self.channels.first().is_none_or(|channel| channel.recency())
    }

    /// Holds a page shared. Other threads cannot take it exclusively, but lock-free writers continue.
    pub(crate) fn share(&self, page: u64, holder: Holder) -> Result<Held> {
        self.acquire(page, LoadFor::Share(holder), Fetch::Contents, Stream::Follow)
    }

    /// Holds a page shared, and waits for lock-free writers, so its bytes stay unchanged until the release.
    pub(crate) fn share_steady(&self, page: u64, holder: Holder, stream: Stream) -> Result<Held> {
        let held = self.acquire(page, LoadFor::Share(holder), Fetch::Contents, stream)?;
        self.channel(page).quiesce(self.table.entry(page), held.before, HazardAccess::Writes);
        Ok(held)
    }

    /// Holds a page exclusively, but lock-free accesses may continue.
    pub(crate) fn latch(&self, page: u64, holder: Holder, fetch: Fetch) -> Result<Held> {
        self.acquire(page, LoadFor::Exclusive(holder), fetch, Stream::Follow)
    }

    /// Holds a page exclusively: no other thread reads or writes its bytes.
    pub(crate) fn take(&self, page: u64, holder: Holder, fetch: Fetch, stream: Stream) -> Result<Held> {
        let held = self.acquire(page, LoadFor::Exclusive(holder), fetch, stream)?;
        self.channel(page).quiesce(self.table.entry(page), held.before, HazardAccess::All);
        Ok(held)
    }

    pub(crate) fn unshare(&self, page: u64, holder: Holder) {
        let entry = self.table.entry(page);
        if entry.unshare(holder) {
            unpark(entry);
        }
    }

    /// Ends an exclusive hold, and adds bits to the page's state.
    pub(crate) fn release(&self, page: u64, holder: Holder, add: u64) {
        let entry = self.table.entry(page);
        if entry.release_exclusive(holder, add) {
            unpark(entry);
        }
    }

    fn acquire(&self, page: u64, then: LoadFor, fetch: Fetch, stream: Stream) -> Result<Held> {
        self.wanting(page, |wants| {
            let held = self.acquire_or_want(Acquisition { page, then, fetch, stream }, wants)?;
            // Acquiring the page cleared this thread's mark `WRITER_PENDING`. A mark set now is another
            // thread's.
            *wants = false;
            Ok(held)
        })
    }

    /// Runs a function that may mark a page as wanted. Afterwards either the caller holds the page, or the
    /// mark is removed and the threads that waited behind it continue.
    fn wanting<R>(&self, page: u64, run: impl FnOnce(&mut bool) -> Result<R>) -> Result<R> {
        let mut wants = false;
        let result = run(&mut wants);
        let entry = self.table.entry(page);
        if wants && entry.give_up() {
            unpark(entry);
        }
        result
    }

    /// Waits as [`await_page`](Self::await_page) for an exclusive hold; new sharers wait behind the caller.
    fn await_wanted(&self, page: u64, state: State, wants: &mut bool) -> Result<()> {
        if !state.any(UNSAVED) {
            *wants = true;
            self.table.entry(page).set_writer_pending();
        }
        self.await_page(page, state, true)
    }

    fn acquire_or_want(&self, wanted: Acquisition, wants: &mut bool) -> Result<Held> {
        let Acquisition { page, then, stream, .. } = wanted;
        let entry = self.table.entry(page);
        let channel = self.channel(page);
        let exclusive = matches!(then, LoadFor::Exclusive(_));
        if exclusive {
            self.expect_writable()?;
        }
        loop {
            let attempt = match then {
                LoadFor::Share(holder) => try_share(entry, holder),
                LoadFor::Exclusive(holder) => entry.try_exclusive(holder),
                LoadFor::Release | LoadFor::Leave => unreachable!("prefetches never hold pages"),
            };
            match attempt {
                Ok(before) => {
                    if before.any(WAITED)
                        && matches!(then, LoadFor::Share(Holder::Guard) | LoadFor::Exclusive(Holder::Guard))
                    {
                        unpark(entry);
                    }
                    count_hit(self.counter);
                    if !channel.recency() {
                        channel.touched(page);
                    }
                    if before.any(AHEAD) {
                        channel.fewer_ahead(1);
                        if stream == Stream::Follow {
                            self.follow(page, Use::FetchedAhead);
                        }
                    }
                    return Ok(Held { address: entry.address(), before });
                }
                Err(Refusal::Busy(state)) => {
                    if exclusive {
                        self.await_wanted(page, state, wants)?;
                    } else {
                        self.await_page(page, state, false)?;
                    }
                }
                Err(Refusal::Absent) => {
                    if let Some(held) = self.load(wanted, false, wants)? {
                        return Ok(held);
                    }
                }
            }
        }
    }

    /// All phases of a [miss](crate::engine::channel): gives an absent page a frame and its contents, fetched
    /// `alone` or in a batch. Returns `None` if another thread was faster.
    fn load(&self, wanted: Acquisition, alone: bool, wants: &mut bool) -> Result<Option<Held>> {
        let Acquisition { page, then, fetch, stream } = wanted;
        let (entry, channel) = (self.table.entry(page), self.channel(page));
        // Take the frame first, before this thread holds the page or marks it as wanted. So a thread that
        // waits for a frame blocks no other thread.
        let Some(frame) = self.take_frame(page, wants)? else { return Ok(None) };
        let Some(home) = self.claim_absent(page, then, frame, wants)? else { return Ok(None) };
        channel.counters.misses.add(1);
        let _spent = recording::spent("miss");
        let mut deferral = None;
        if !home.has(HOME) || fetch == Fetch::Overwrite {
            channel.install_new(entry, page, frame, fetch == Fetch::Contents);
        } else if channel.loads_directly() {
            // Defer wake-ups, because a woken thread may wait for this page until its release.
            deferral = Some(DeferredWakes::begin());
            let load = channel.begin_direct_load(entry, frame);
            if stream == Stream::Follow {
                self.follow(page, Use::Missed);
            }
            channel.make_room(&self.table);
            load.finish(page)?;
        } else {
            return self.load_by_copy(wanted, (frame, home), alone, wants);
        }
        let wake = match then {
            LoadFor::Share(holder) => entry.downgrade(holder),
            LoadFor::Exclusive(holder) => entry.hold_exclusive(holder),
            LoadFor::Release | LoadFor::Leave => unreachable!("prefetches never wait for a page"),
        };
        if wake {
            unpark(entry);
        }
        drop(deferral);
        Ok(Some(Held { address: frame.address(), before: State(0) }))
    }

    /// Takes a frame for a page; returns `None` if there was none. If the caller has marked the page as
    /// wanted, this removes the mark before it waits for a frame.
    fn take_frame(&self, page: u64, wants: &mut bool) -> Result<Option<Frame>> {
        let (entry, channel) = (self.table.entry(page), self.channel(page));
        if *wants {
            if let Some(frame) = channel.take_frame(&self.table, Blocking::Try)? {
                return Ok(Some(frame));
            }
            *wants = false;
            if entry.give_up() {
                unpark(entry);
            }
        }
        channel.take_frame(&self.table, Blocking::Wait)
    }

    /// Claims an absent page, and returns its state before. If another thread claimed the page first, frees
    /// the frame, waits for the page if it is neither resident nor absent, and returns `None`.
    fn claim_absent(
        &self,
        page: u64,
        then: LoadFor,
        frame: Frame,
        wants: &mut bool,
    ) -> Result<Option<State>> {
        // A shared load may start while other threads read the home slot (in device memory): a later
        // write-back waits for these reads. An exclusive load may not, because its owner writes.
        let exclusive = matches!(then, LoadFor::Exclusive(_));
        let refusal = match self.table.entry(page).try_claim_absent(!exclusive) {
            Ok(before) => return Ok(Some(before)),
            Err(refusal) => refusal,
        };
        self.channel(page).put_back(frame);
        match refusal {
            Refusal::Busy(state) if state.any(RESIDENT) => {}
            Refusal::Busy(state) if exclusive => self.await_wanted(page, state, wants)?,
            Refusal::Busy(state) => self.await_page(page, state, false)?,
            Refusal::Absent => {}
        }
        Ok(None)
    }

    /// Fetches a claimed page by a copy, and waits. If the copy of its batch failed, fetches the page alone.
    fn load_by_copy(
        &self,
        wanted: Acquisition,
        (frame, home): (Frame, State),
        alone: bool,
        wants: &mut bool,
    ) -> Result<Option<Held>> {
        let Acquisition { page, then, stream, .. } = wanted;
        let channel = self.channel(page);
        let load = Load { page, frame, then, id: channel.load_id() };
        if alone {
            // Ignore an error here, because `await_load` below reports it.
            let _ = channel.submit_loads(&self.table, vec![load], Vec::new());
        } else {
            channel.request(&self.table, [load]);
        }
        if stream == Stream::Follow {
            self.follow(page, Use::Missed);
        }
        channel.make_room(&self.table);
        channel.counters.waits.add(1);
        if channel.await_load(&self.table, &load, home)? == LoadResult::NotWithOthers {
            return self.load(Acquisition { stream: Stream::Ignore, ..wanted }, true, wants);
        }
        let entry = self.table.entry(page);
        if let LoadFor::Exclusive(holder) = then
            && entry.hold_exclusive(holder)
        {
            unpark(entry);
        }
        Ok(Some(Held { address: frame.address(), before: State(0) }))
    }

    /// Waits, for a limited time, until a page may be free. Helps with a transfer that occupies it.
    pub(crate) fn await_page(&self, page: u64, state: State, exclusive: bool) -> Result<()> {
        if exclusive && state.any(UNSAVED) {
            self.await_saved(page);
            return Ok(());
        }
        let entry = self.table.entry(page);
        let channel = self.channel(page);
        if state.any(IN_FLIGHT) {
            channel.counters.waits.add(1);
            channel.help_while(&self.table, page, None, |_| true);
            return Ok(());
        }
        self.check_wait(page, state)?;
        channel.counters.waits.add(1);
        park(entry, |s| self.is_worth_a_wait(page, s, exclusive));
        Ok(())
    }

    /// Returns an error if the calling thread could deadlock by a wait for a page in this state.
    pub(crate) fn check_wait(&self, page: u64, state: State) -> Result<()> {
        if self.may_wait(page, state) { Ok(()) } else { Err(ErrorKind::WouldDeadlock { page }.into()) }
    }

    fn may_wait(&self, page: u64, state: State) -> bool {
        (state.guards() == 0 || self.identity.may_wait_for(page)) && !self.identity.is_held_by_work(page)
    }

    /// Returns true while the thread should wait for the page. A new guard of the page wakes the sleeping
    /// threads, which check this again.
    pub(crate) fn is_worth_a_wait(&self, page: u64, s: State, exclusive: bool) -> bool {
        s.is_held_against(exclusive) && self.may_wait(page, s)
    }

    pub(crate) fn stats(&self) -> Stats {
        self.baseline.since(|| self.raw_stats())
    }

    pub(crate) fn reset_stats(&self) {
        self.baseline.reset(|| self.raw_stats());
    }

    /// Returns the counters since the creation of the array, without regard to resets.
    pub(crate) fn raw_stats(&self) -> Stats {
        let channels = self.channels.iter().map(|channel| channel.counters.snapshot()).collect();
        Stats::new(hits(self.counter), channels)
    }

    /// Returns the entry of a page, for the list of guards.
    pub(crate) fn entry(&self, page: u64) -> &Entry {
        self.table.entry(page)
    }
}

/// Makes devices store all bytes that they have received.
fn store<D: Device + ?Sized>(devices: &[Arc<D>]) -> Result<()> {
    let each = |device: &Arc<D>| -> Result<()> { Ok(device.sync()?) };
    let [first, others @ ..] = devices else { return Ok(()) };
    // Synchronise all devices at the same time, because drives work in parallel.
    std::thread::scope(|scope| {
        let others: Vec<_> = others.iter().map(|device| scope.spawn(move || each(device))).collect();
        let outcome = each(first);
        let outcomes =
            others.into_iter().map(|other| other.join().unwrap_or_else(|panic| resume_unwind(panic)));
        outcomes.fold(outcome, Result::and)
    })
}

/// Holds a resident page shared. The thread waits behind another one that wants the page exclusively, unless
/// it holds guards, because it must not wait then.
pub(crate) fn try_share(entry: &Entry, holder: Holder) -> Result<State, Refusal> {
    match entry.try_share(holder, false) {
        Err(Refusal::Busy(s)) if s.any(WRITER_PENDING) && !s.any(EXCLUSIVE) && guards::held() => {
            entry.try_share(holder, true)
        }
        attempt => attempt,
    }
}

impl Pager {
    /// Stores all pages of an array at its drop. Logs an error, and then returns false.
    fn stays(&self) -> bool {
        // A leaked guard never ends, so do not wait for it. All other holds end by themselves.
        let is_held = |page| {
            let state = self.table.entry(page).state(Ordering::Acquire);
            state.any(EXCLUSIVE) && state.guards() > 0
        };
        if (0..self.table.len()).any(is_held) {
            warn::warn(
                "an array was dropped while a page guard still exists, so its last changes are not \
                        stored"
                    .into(),
            );
            return false;
        }
        let synced = self.sync();
        if let Err(error) = &synced {
            warn::warn(format!("an array was dropped, but not all of its pages could be stored: {error}"));
        }
        synced.is_ok()
    }
}

impl Drop for Pager {
    fn drop(&mut self) {
        // End the publication of statistics first, so that its thread no longer queries the channels (shares
        // of devices).
        self.publication = None;
        if self.keeps == Keeps::All && !self.stays() {
            #[cfg(feature = "host")]
            if let KeptLength::OfWhole(kept) = &self.length {
                kept.give_up();
            }
        }
        self.drivers.iter().for_each(|driver| driver.close());
        // Drop the channels (shares of devices) before the page table, because transfers refer to the table's
        // entries.
        self.channels.clear();
        counter::release(self.counter);
    }
}
