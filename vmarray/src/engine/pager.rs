//! Pages of bytes: getting hold of them, letting go, and moving many of them at once. Elements are unknown
//! here.

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
mod kept;
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

use backend_api::links::is_same;
use backend_api::{Device, tell};

use crate::base::error::{ErrorKind, Result};
use crate::base::published::Publication;
use crate::base::recording;
use crate::base::stats::{Baseline, Stats};
use crate::engine::channel::{Blocking, Channel, Driver, Load, LoadFor, Loaded};
use crate::engine::guards::{self, Identity};
use crate::engine::page::state::{
    AHEAD, EXCLUSIVE, HOME, IN_FLIGHT, RESIDENT, UNSAVED, WAITED, WRITER_PENDING,
};
use crate::engine::page::{
    Access, Deferral, Entry, HitCounter, Holder, PageTable, Refusal, State, count_hit, counter, hits, park,
    unpark,
};
use crate::engine::read_ahead::Use;
use crate::engine::redundancy::Redundancy;

pub(crate) use growth::Spare;
pub(crate) use hold::ExclusiveHold;
#[cfg(feature = "host")]
pub(crate) use kept::StoredLength;
pub(crate) use pool::SharedHomes;
#[cfg(feature = "host")]
pub(crate) use snapshot::{PageSaver, Snapshot};

/// Whether a page that is about to be held needs its contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fetch {
    Contents,
    /// It will be overwritten whole: nothing is fetched, and the frame holds anything.
    Overwrite,
}

/// Whether an access is part of a stream that read-ahead should follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    Follow,
    /// It belongs to an operation that looks ahead by itself.
    Ignore,
}

/// A page that the caller holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    /// The first byte of its frame.
    pub(crate) address: *mut u8,
    /// Its state before it was taken, which tells what lock-free accesses may be under way.
    pub(crate) before: State,
}

impl Held {
    /// Whether the page was resident and had been used before: then it is worth opening to lock-free
    /// accesses. A page that is used once, as at random in an array far larger than its cache, never is, and
    /// costs no barrier later.
    pub(crate) fn is_used_again(&self) -> bool {
        self.before.any(RESIDENT) && !self.before.any(AHEAD)
    }
}

/// How much is fetched ahead of one stream at most, in bytes; and in pages, at least and at most, if an
/// eighth of the frames allows that. Enough to keep a bus of 64 GB/s busy for the time of a round trip.
const WINDOW_BYTES: usize = 4 << 20;
const WINDOW_PAGES: std::ops::RangeInclusive<usize> = 4..=256;

/// All pages of one array.
#[derive(Debug)]
pub struct Pager {
    channels: Vec<Arc<Channel>>,
    table: Arc<PageTable>,
    /// Closed when the array is dropped; from then on nobody else has the channels or the table.
    drivers: Vec<Arc<Driver>>,
    page_bytes: usize,
    /// The frames that all channels may have together.
    frames: u64,
    /// The number under which hits are counted.
    counter: HitCounter,
    baseline: Baseline,
    read_ahead: bool,
    /// How many pages are fetched ahead of a stream at most.
    window_max: u64,
    /// Names the array to what threads remember.
    identity: Identity,
    /// How many devices there are; each is taken to have a bus of its own.
    buses: usize,
    redundancy: Redundancy,
    /// How many long copies past the cache have begun.
    bulk_copies: AtomicU64,
    init_tracker: init_tracker::InitTracker,
    /// Held by the thread that has the devices give more memory.
    extending: Mutex<()>,
    snapshots: snapshot::Snapshots,
    pool: OnceLock<Option<SharedHomes>>,
    /// Ends first when the array is dropped.
    publication: Option<Publication>,
    keeps: Keeps,
    /// From how many bytes on reads of pages without a frame may be made where the pages live.
    parts_least: AtomicUsize,
    /// What is written down of a length beside the pages.
    #[cfg(feature = "host")]
    length: KeptLength,
}

/// Which length is written down beside pages that stay.
#[cfg(feature = "host")]
#[derive(Clone, Debug, Default)]
pub(crate) enum KeptLength {
    /// None, or one that stays as it is.
    #[default]
    None,
    /// That of the array.
    Own(Arc<StoredLength>),
    /// That of something which the array is a part of, and which notes it.
    OfWhole(Arc<StoredLength>),
}

/// What is to become of contents when the array is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keeps {
    /// They are gone.
    Nothing,
    /// They stay.
    All,
    /// They stay as they are: nothing is written.
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
            drivers: channels.iter().map(|channel| Driver::new(channel, &table)).collect(),
            frames,
            window_max: (frames / 8).min(window as u64),
            channels,
            table,
            page_bytes,
            counter,
            baseline: Baseline::default(),
            read_ahead,
            identity: Identity::new(),
            buses,
            redundancy: Redundancy::default(),
            bulk_copies: AtomicU64::new(0),
            init_tracker: init_tracker::InitTracker::default(),
            extending: Mutex::default(),
            snapshots: snapshot::Snapshots::default(),
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

    /// The table, for those that do not keep it.
    pub(crate) fn weak_table(&self) -> Weak<PageTable> {
        Arc::downgrade(&self.table)
    }

    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The frames that all channels may have together.
    pub(crate) fn frames(&self) -> u64 {
        self.frames
    }

    pub(crate) fn counter(&self) -> HitCounter {
        self.counter
    }

    pub(crate) fn channels(&self) -> &[Arc<Channel>] {
        &self.channels
    }

    /// Whether pages are homed on a GPU, all of them or some.
    pub(crate) fn has_gpu(&self) -> bool {
        self.channels.iter().any(|channel| channel.device().info().kind.is_gpu())
    }

    /// Whether pages of both are dealt out to channels of the same devices, in the same order.
    pub(crate) fn is_dealt_like(&self, other: &Self) -> bool {
        let (own, others) = (self.channels(), other.channels());
        own.len() == others.len()
            && own.iter().zip(others).all(|(one, two)| Arc::ptr_eq(one.device(), two.device()))
    }

    /// The same with channels whose devices are of this.
    pub(crate) fn with_redundancy(mut self, redundancy: Redundancy) -> Self {
        self.redundancy = redundancy;
        self
    }

    pub(crate) fn redundancy(&self) -> &Redundancy {
        &self.redundancy
    }

    /// Notes that statistics are published, by what asks the channels until this is dropped.
    pub(crate) fn publish(&mut self, publication: Publication) {
        self.publication = Some(publication);
    }

    /// Has contents outlive the array; of one that is for reading alone, nothing can be written to them.
    #[cfg(feature = "host")]
    pub(crate) fn keep(&mut self, is_read_only: bool, length: KeptLength) {
        self.keeps = if is_read_only { Keeps::AsFound } else { Keeps::All };
        self.length = length;
    }

    /// Whether contents stay as they are.
    pub(crate) fn is_read_only(&self) -> bool {
        self.keeps == Keeps::AsFound
    }

    /// Whether contents outlive the array.
    fn keeps_contents(&self) -> bool {
        self.keeps != Keeps::Nothing
    }

    /// Notes that elements behind so many were given up, for those that write the length down.
    pub(crate) fn shorten(&self, len: usize) {
        #[cfg(feature = "host")]
        if let KeptLength::Own(kept) = &self.length {
            kept.shorten(len as u64);
        }
        #[cfg(not(feature = "host"))]
        let _ = len;
    }

    /// Has files use the places of pages again that are behind the length.
    pub(crate) fn give_back(&self, pages: Range<u64>) {
        #[cfg(feature = "host")]
        if let KeptLength::Own(kept) = &self.length {
            kept.give_back(pages);
        }
        #[cfg(not(feature = "host"))]
        let _ = pages;
    }

    /// Refuses whoever wants to write where nothing is to be written.
    pub(crate) fn expect_writable(&self) -> Result<()> {
        if self.is_read_only() {
            return Err(backend_api::Error::new(backend_api::ErrorKind::ReadOnly, "write").into());
        }
        Ok(())
    }

    /// Has all contents stay that were written before, on devices that can keep them, and with them the
    /// length that there was then.
    pub(crate) fn sync(&self) -> Result<()> {
        if self.is_read_only() {
            return Ok(());
        }
        let len = self.table.lengths().len() as u64;
        let settled = self.settle_all();
        // What can be stored is, also if a page cannot.
        let stored = self.store_with(settled.is_ok().then_some(len));
        settled.and(stored)
    }

    /// Has devices store what they were given, and this length with it, if it is one of their own.
    fn store_with(&self, len: Option<u64>) -> Result<()> {
        #[cfg(feature = "host")]
        if let KeptLength::Own(kept) = &self.length {
            return kept.store(len);
        }
        let _ = len;
        store(&self.devices())
    }

    /// Has the home slots of all pages be as the pages are.
    pub(crate) fn settle_all(&self) -> Result<()> {
        self.settle(&(0..self.table.len()))
    }

    /// The devices of the channels, each once.
    fn devices(&self) -> Vec<Arc<dyn Device>> {
        let mut devices: Vec<Arc<dyn Device>> = Vec::new();
        for channel in &self.channels {
            if devices.iter().all(|device| !is_same(device, channel.device())) {
                devices.push(Arc::clone(channel.device()));
            }
        }
        devices
    }

    /// How many pages of a channel have contents in their slots and in no frame.
    pub(crate) fn lost_pages(&self, channel: u64) -> u64 {
        // What was fetched before the device was lost is in its frame from now on.
        self.channels[channel as usize].reap_all(&self.table);
        let pages = self.table.len();
        let of_channel = (channel..pages).step_by(self.channels.len());
        let states = of_channel.map(|page| self.table.entry(page).state(Ordering::Acquire));
        states.filter(|state| state.any(HOME) && !state.any(RESIDENT)).count() as u64
    }

    pub(crate) fn channel(&self, page: u64) -> &Channel {
        &self.channels[(page % self.channels.len() as u64) as usize]
    }

    /// Whether pages may be opened to lock-free accesses: not under an exact order, which has to see every
    /// access.
    pub(crate) fn recency(&self) -> bool {
        self.channels.first().is_none_or(|channel| channel.recency())
    }

    /// Shares a page; its latched writers are kept out. Lock-free ones go on.
    pub(crate) fn share(&self, page: u64, holder: Holder) -> Result<Held> {
        self.acquire(page, LoadFor::Share(holder), Fetch::Contents, Stream::Follow)
    }

    /// Shares a page whose bytes stay as they are until it is let go.
    pub(crate) fn share_steady(&self, page: u64, holder: Holder, stream: Stream) -> Result<Held> {
        let held = self.acquire(page, LoadFor::Share(holder), Fetch::Contents, stream)?;
        self.channel(page).quiesce(self.table.entry(page), held.before, Access::Writes);
        Ok(held)
    }

    /// Takes a page for the calling thread; lock-free accesses may go on.
    pub(crate) fn latch(&self, page: u64, holder: Holder, fetch: Fetch) -> Result<Held> {
        self.acquire(page, LoadFor::Exclusive(holder), fetch, Stream::Follow)
    }

    /// Takes a page for the calling thread so that nobody else reads or writes its bytes.
    pub(crate) fn take(&self, page: u64, holder: Holder, fetch: Fetch, stream: Stream) -> Result<Held> {
        let held = self.acquire(page, LoadFor::Exclusive(holder), fetch, stream)?;
        self.channel(page).quiesce(self.table.entry(page), held.before, Access::All);
        Ok(held)
    }

    /// Ends a share.
    pub(crate) fn unshare(&self, page: u64, holder: Holder) {
        let entry = self.table.entry(page);
        if entry.unshare(holder) {
            unpark(entry);
        }
    }

    /// Ends an exclusive hold, adding bits to the state.
    pub(crate) fn release(&self, page: u64, holder: Holder, add: u64) {
        let entry = self.table.entry(page);
        if entry.release_exclusive(holder, add) {
            unpark(entry);
        }
    }

    fn acquire(&self, page: u64, then: LoadFor, fetch: Fetch, stream: Stream) -> Result<Held> {
        self.wanting(page, |wants| {
            let held = self.acquire_or_want(page, then, fetch, stream, wants)?;
            // To get the page takes the mark away: if there is one, it is somebody else's.
            *wants = false;
            Ok(held)
        })
    }

    /// Runs what may mark a page as wanted. Afterwards it is held, or threads that wait behind the mark go
    /// on.
    fn wanting<R>(&self, page: u64, run: impl FnOnce(&mut bool) -> Result<R>) -> Result<R> {
        let mut wants = false;
        let result = run(&mut wants);
        let entry = self.table.entry(page);
        if wants && entry.give_up() {
            unpark(entry);
        }
        result
    }

    /// As [`await_page`](Self::await_page), for a page that the caller wants exclusively: new sharers wait
    /// behind it.
    fn await_wanted(&self, page: u64, state: State, wants: &mut bool) -> Result<()> {
        if !state.any(UNSAVED) {
            *wants = true;
            self.table.entry(page).set_writer_pending();
        }
        self.await_page(page, state, true)
    }

    fn acquire_or_want(
        &self,
        page: u64,
        then: LoadFor,
        fetch: Fetch,
        stream: Stream,
        wants: &mut bool,
    ) -> Result<Held> {
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
                LoadFor::Release | LoadFor::Leave => unreachable!("prefetches do not hold pages"),
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
                    if let Some(held) = self.load(page, then, fetch, stream, false, wants)? {
                        return Ok(held);
                    }
                }
            }
        }
    }

    /// All phases of a [miss](crate::engine::channel): gets an absent page its frame and its contents,
    /// fetched `alone` or with others. `None` if another thread was faster.
    fn load(
        &self,
        page: u64,
        then: LoadFor,
        fetch: Fetch,
        stream: Stream,
        alone: bool,
        wants: &mut bool,
    ) -> Result<Option<Held>> {
        let entry = self.table.entry(page);
        let channel = self.channel(page);
        // The frame first, holding nothing: the thread that waits for a frame keeps nobody from anything, not
        // by a mark either.
        let mut frame = None;
        if *wants {
            frame = channel.take_frame(&self.table, Blocking::Try)?;
            if frame.is_none() {
                *wants = false;
                if entry.give_up() {
                    unpark(entry);
                }
            }
        }
        if frame.is_none() {
            frame = channel.take_frame(&self.table, Blocking::Wait)?;
        }
        let Some(frame) = frame else { return Ok(None) };
        // Readers of the home slot may stay while the page is only shared: it cannot be written back before
        // they are gone.
        let exclusive = matches!(then, LoadFor::Exclusive(_));
        let home = match entry.try_claim_absent(!exclusive) {
            Ok(before) => before,
            Err(refusal) => {
                channel.put_back(frame);
                match refusal {
                    Refusal::Busy(state) if state.any(RESIDENT) => {}
                    Refusal::Busy(state) if exclusive => self.await_wanted(page, state, wants)?,
                    Refusal::Busy(state) => self.await_page(page, state, false)?,
                    Refusal::Absent => {}
                }
                return Ok(None);
            }
        };
        channel.counters.misses.add(1);
        let _spent = recording::spent("miss");
        let held = Held { address: frame.address, before: State(0) };
        let has_contents = home.has(HOME) && fetch == Fetch::Contents;
        let mut deferral = None;
        if has_contents && channel.loads_directly() {
            // Whom this thread wakes may wait for the page, until it is let go of.
            deferral = Some(Deferral::begin());
            let load = channel.begin_direct_load(entry, frame);
            if stream == Stream::Follow {
                self.follow(page, Use::Missed);
            }
            channel.make_room(&self.table);
            load.finish(page)?;
        } else if has_contents {
            let load = Load { page, frame, then, id: channel.load_id() };
            if alone {
                // Told below.
                let _ = channel.submit_loads(&self.table, vec![load], Vec::new());
            } else {
                channel.request(&self.table, [load]);
            }
            if stream == Stream::Follow {
                self.follow(page, Use::Missed);
            }
            channel.make_room(&self.table);
            channel.counters.waits.add(1);
            if channel.await_load(&self.table, &load, home)? == Loaded::NotWithOthers {
                return self.load(page, then, fetch, Stream::Ignore, true, wants);
            }
            if let LoadFor::Exclusive(holder) = then
                && entry.hold_exclusive(holder)
            {
                unpark(entry);
            }
            return Ok(Some(held));
        }
        if !has_contents {
            channel.install_new(entry, page, frame, fetch == Fetch::Contents);
        }
        let wake = match then {
            LoadFor::Share(holder) => entry.downgrade(holder),
            LoadFor::Exclusive(holder) => entry.hold_exclusive(holder),
            LoadFor::Release | LoadFor::Leave => unreachable!("prefetches do not come here"),
        };
        if wake {
            unpark(entry);
        }
        drop(deferral);
        Ok(Some(held))
    }

    /// Waits, for a while, until a busy page may be free; helps with what it is busy with.
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

    /// Whether the calling thread may wait for a page in this state.
    pub(crate) fn check_wait(&self, page: u64, state: State) -> Result<()> {
        if self.may_wait(page, state) { Ok(()) } else { Err(ErrorKind::WouldDeadlock { page }.into()) }
    }

    fn may_wait(&self, page: u64, state: State) -> bool {
        state.guards() == 0 || self.identity.may_wait_for(page)
    }

    /// Whether to wait goes on. Asked again whenever somebody becomes the page's guard: they wake who sleeps.
    pub(crate) fn is_worth_a_wait(&self, page: u64, s: State, exclusive: bool) -> bool {
        let is_in_the_way = if exclusive { s.shared() || s.any(UNSAVED) } else { s.any(WRITER_PENDING) };
        let is_busy = s.any(EXCLUSIVE) || !s.has_room() || is_in_the_way;
        is_busy && !s.any(IN_FLIGHT) && self.may_wait(page, s)
    }

    pub(crate) fn stats(&self) -> Stats {
        self.baseline.since(|| self.raw_stats())
    }

    pub(crate) fn reset_stats(&self) {
        self.baseline.reset(|| self.raw_stats());
    }

    /// As [`stats`](Self::stats), whatever was reset.
    pub(crate) fn raw_stats(&self) -> Stats {
        Stats {
            hits: hits(self.counter),
            channels: self.channels.iter().map(|channel| channel.counters.snapshot()).collect(),
        }
    }

    /// The entry of a page, for the list of guards.
    pub(crate) fn entry(&self, page: u64) -> &Entry {
        self.table.entry(page)
    }
}

/// Has devices store what they were given.
pub(crate) fn store<D: Device + ?Sized>(devices: &[Arc<D>]) -> Result<()> {
    let each = |device: &Arc<D>| -> Result<()> { Ok(device.sync()?) };
    let [first, others @ ..] = devices else { return Ok(()) };
    // Drives do so at the same time.
    std::thread::scope(|scope| {
        let others: Vec<_> = others.iter().map(|device| scope.spawn(move || each(device))).collect();
        let outcome = each(first);
        let outcomes =
            others.into_iter().map(|other| other.join().unwrap_or_else(|panic| resume_unwind(panic)));
        outcomes.fold(outcome, Result::and)
    })
}

/// Shares a resident page. Behind somebody who wants it for itself the thread waits, unless it holds guards:
/// it must not queue up then.
pub(crate) fn try_share(entry: &Entry, holder: Holder) -> Result<State, Refusal> {
    match entry.try_share(holder, false) {
        Err(Refusal::Busy(s)) if s.any(WRITER_PENDING) && !s.any(EXCLUSIVE) && guards::held() => {
            entry.try_share(holder, true)
        }
        attempt => attempt,
    }
}

impl Pager {
    /// Stores all of an array that is dropped: whether that is done; else somebody is told.
    fn stays(&self) -> bool {
        // A guard that was forgotten would be waited for without end. What has pages otherwise, such as loads
        // ahead of need, ends by itself.
        let is_held = |page| {
            let state = self.table.entry(page).state(Ordering::Acquire);
            state.any(EXCLUSIVE) && state.guards() > 0
        };
        if (0..self.table.len()).any(is_held) {
            tell::warn("an array is dropped of which a page is held for ever: no more is stored".into());
            return false;
        }
        let synced = self.sync();
        if let Err(error) = &synced {
            tell::warn(format!("an array is dropped of which not all is stored: {error}"));
        }
        synced.is_ok()
    }
}

impl Drop for Pager {
    fn drop(&mut self) {
        // Before anything else: from now on nobody asks the channels.
        self.publication = None;
        if self.keeps == Keeps::All && !self.stays() {
            #[cfg(feature = "host")]
            if let KeptLength::OfWhole(kept) = &self.length {
                kept.give_up();
            }
        }
        self.drivers.iter().for_each(|driver| driver.close());
        // Transfers refer to entries.
        self.channels.clear();
        counter::release(self.counter);
    }
}
