//! Pages of bytes: getting hold of them, letting go, and moving many of them at once. Elements are unknown here.

mod bulk;

use std::ops::Range;
use std::sync::atomic::Ordering;

use backend_api::{Device, racy};

use crate::channel::{Channel, Load, Loaded, Patience, Purpose, Then, Victim};
use crate::error::{ErrorKind, Result};
use crate::guards::{self, Identity};
use crate::page::state::{AHEAD, DIRTY, EXCLUSIVE, HOME, IN_FLIGHT, RESIDENT, WAITED, WANTED, ZEROED};
use crate::page::{
    Access, Counter, Entry, Holder, PageTable, Refusal, State, count_hit, counter, hits, park, unpark,
};
use crate::read_ahead::{self, Ahead, Streams, Use};
use crate::stats::Stats;
use crate::trace;

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
    /// Whether the page was resident and had been used before: then it is worth opening to lock-free accesses. A page
    /// that is used once, as at random in an array far larger than its cache, never is, and costs no barrier later.
    pub(crate) fn is_used_again(&self) -> bool {
        self.before.any(RESIDENT) && !self.before.any(AHEAD)
    }
}

/// How much is fetched ahead of one stream at most, in bytes; and in pages, at least and at most, if an eighth of the
/// frames allows that. Enough to keep a bus of 64 GB/s busy for the time of a round trip.
const WINDOW_BYTES: usize = 4 << 20;
const WINDOW_PAGES: std::ops::RangeInclusive<usize> = 4..=256;

/// What came of an attempt to hold a page without contents.
#[derive(Clone, Copy, Debug)]
enum Homeless {
    /// It is absent and held exclusively.
    Claimed,
    /// It is resident, all zeroes, and held shared.
    Shared,
    /// It has contents, or its slot has the zeroes already.
    Not,
    /// It was written to.
    Dirty,
    /// Somebody is in the way.
    Busy(State),
}

/// All pages of one array.
#[derive(Debug)]
pub(crate) struct Pager<D: Device> {
    // Declared before the table, dropped before it: transfers refer to entries.
    channels: Vec<Channel<D>>,
    table: PageTable,
    page_bytes: usize,
    /// The frames that all channels may have together.
    frames: u64,
    /// The number under which hits are counted.
    counter: Counter,
    /// What the statistics were when they were last reset.
    baseline: parking_lot::Mutex<Stats>,
    read_ahead: bool,
    /// How many pages are fetched ahead of a stream at most.
    window_max: u64,
    /// Names the array to what threads remember.
    identity: Identity,
}

impl<D: Device> Pager<D> {
    pub(crate) fn new(
        channels: Vec<Channel<D>>,
        table: PageTable,
        page_bytes: usize,
        read_ahead: bool,
    ) -> Self {
        let counter = counter::acquire();
        let frames: u64 = channels.iter().map(|c| u64::from(c.frames_max())).sum();
        let window = (WINDOW_BYTES / page_bytes).clamp(*WINDOW_PAGES.start(), *WINDOW_PAGES.end());
        let pager = Self {
            frames,
            window_max: (frames / 8).min(window as u64),
            channels,
            table,
            page_bytes,
            counter,
            baseline: parking_lot::Mutex::new(Stats::default()),
            read_ahead,
            identity: Identity::new(),
        };
        pager.reset_stats();
        pager
    }

    #[inline(always)]
    pub(crate) fn table(&self) -> &PageTable {
        &self.table
    }

    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The frames that all channels may have together.
    pub(crate) fn frames(&self) -> u64 {
        self.frames
    }

    pub(crate) fn counter(&self) -> Counter {
        self.counter
    }

    pub(crate) fn channels(&self) -> &[Channel<D>] {
        &self.channels
    }

    pub(crate) fn channel(&self, page: u64) -> &Channel<D> {
        &self.channels[(page % self.channels.len() as u64) as usize]
    }

    /// Whether pages may be opened to lock-free accesses: not under an exact order, which has to see every access.
    pub(crate) fn recency(&self) -> bool {
        self.channels.first().is_none_or(Channel::recency)
    }

    /// Shares a page; its latched writers are kept out. Lock-free ones go on.
    pub(crate) fn share(&self, page: u64, holder: Holder) -> Result<Held> {
        self.acquire(page, Then::Share(holder), Fetch::Contents, Stream::Follow)
    }

    /// Shares a page whose bytes stay as they are until it is let go.
    pub(crate) fn share_steady(&self, page: u64, holder: Holder, stream: Stream) -> Result<Held> {
        let held = self.acquire(page, Then::Share(holder), Fetch::Contents, stream)?;
        self.channel(page).quiesce(self.table.entry(page), held.before, Access::Writes);
        Ok(held)
    }

    /// Takes a page for the calling thread; lock-free accesses may go on.
    pub(crate) fn latch(&self, page: u64, holder: Holder, fetch: Fetch) -> Result<Held> {
        self.acquire(page, Then::Exclusive(holder), fetch, Stream::Follow)
    }

    /// Takes a page for the calling thread so that nobody else reads or writes its bytes.
    pub(crate) fn take(&self, page: u64, holder: Holder, fetch: Fetch, stream: Stream) -> Result<Held> {
        let held = self.acquire(page, Then::Exclusive(holder), fetch, stream)?;
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

    fn acquire(&self, page: u64, then: Then, fetch: Fetch, stream: Stream) -> Result<Held> {
        let mut wants = false;
        let result = self.acquire_or_want(page, then, fetch, stream, &mut wants);
        let entry = self.table.entry(page);
        // Those who wait behind this thread must not wait for ever.
        if wants && result.is_err() && entry.give_up() {
            unpark(entry);
        }
        result
    }

    fn acquire_or_want(
        &self,
        page: u64,
        then: Then,
        fetch: Fetch,
        stream: Stream,
        wants: &mut bool,
    ) -> Result<Held> {
        let entry = self.table.entry(page);
        let channel = self.channel(page);
        let exclusive = matches!(then, Then::Exclusive(_));
        loop {
            let attempt = match then {
                Then::Share(holder) => match entry.try_share(holder, false) {
                    // Behind somebody who wants it: whoever holds guards must not queue up.
                    Err(Refusal::Busy(s)) if s.any(WANTED) && !s.any(EXCLUSIVE) && guards::held() => {
                        entry.try_share(holder, true)
                    }
                    attempt => attempt,
                },
                Then::Exclusive(holder) => entry.try_exclusive(holder),
                Then::Release => unreachable!("prefetches do not hold pages"),
            };
            match attempt {
                Ok(before) => {
                    if before.any(WAITED)
                        && matches!(then, Then::Share(Holder::Guard) | Then::Exclusive(Holder::Guard))
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
                        *wants = true;
                        entry.want();
                    }
                    self.await_page(page, state, exclusive)?;
                }
                Err(Refusal::Absent) => {
                    if let Some(held) = self.load(page, then, fetch, stream, false)? {
                        return Ok(held);
                    }
                }
            }
        }
    }

    /// Gets an absent page its frame and its contents, fetched `alone` or with others. `None` if somebody else was
    /// faster.
    fn load(&self, page: u64, then: Then, fetch: Fetch, stream: Stream, alone: bool) -> Result<Option<Held>> {
        let entry = self.table.entry(page);
        let channel = self.channel(page);
        // The frame first, holding nothing: whoever waits for a frame keeps nobody from anything.
        let Some(frame) = channel.take_frame(&self.table, Patience::Wait)? else { return Ok(None) };
        // Readers of the home slot may stay while the page is only shared: it cannot be written back before they are
        // gone.
        let exclusive = matches!(then, Then::Exclusive(_));
        let home = match entry.try_claim_absent(!exclusive) {
            Ok(before) => before,
            Err(refusal) => {
                channel.put_back(frame);
                if let Refusal::Busy(state) = refusal
                    && !state.any(RESIDENT)
                {
                    self.await_page(page, state, exclusive)?;
                }
                return Ok(None);
            }
        };
        channel.counters.misses.add(1);
        let held = Held { address: frame.address, before: State(0) };
        if home.has(HOME) && fetch == Fetch::Contents {
            let load = Load { page, frame, then, id: channel.load_id() };
            if alone {
                channel.request_alone(&self.table, load);
            } else {
                channel.request(&self.table, [load]);
            }
            if stream == Stream::Follow {
                self.follow(page, Use::Missed);
            }
            channel.counters.waits.add(1);
            if channel.await_load(&self.table, &load, home)? == Loaded::NotWithOthers {
                return self.load(page, then, fetch, Stream::Ignore, true);
            }
            if let Then::Exclusive(holder) = then
                && entry.hold_exclusive(holder)
            {
                unpark(entry);
            }
            return Ok(Some(held));
        }
        if fetch == Fetch::Contents {
            // SAFETY: the frame is `page_bytes` long, and this thread's alone until the page is released.
            unsafe { racy::fill(frame.address, 0, self.page_bytes) };
        }
        entry.install(frame.address);
        channel.adopt(page, frame);
        let wake = match then {
            Then::Share(holder) => entry.downgrade(holder),
            Then::Exclusive(holder) => entry.hold_exclusive(holder),
            Then::Release => unreachable!("prefetches do not come here"),
        };
        if wake {
            unpark(entry);
        }
        Ok(Some(held))
    }

    /// Waits, for a while, until a busy page may be free; helps with what it is busy with.
    fn await_page(&self, page: u64, state: State, exclusive: bool) -> Result<()> {
        let entry = self.table.entry(page);
        let channel = self.channel(page);
        if state.any(IN_FLIGHT) {
            channel.help(&self.table, page);
            return Ok(());
        }
        // Asked again whenever somebody becomes the page's guard: they wake who sleeps.
        let forbidden = |s: State| s.guards() > 0 && !self.identity.may_wait_for(page);
        if forbidden(state) {
            return Err(ErrorKind::WouldDeadlock { page }.into());
        }
        channel.counters.waits.add(1);
        park(entry, |s| {
            let busy =
                s.any(EXCLUSIVE) || !s.has_room() || if exclusive { s.shared() } else { s.any(WANTED) };
            busy && !s.any(IN_FLIGHT) && !forbidden(s)
        });
        Ok(())
    }

    /// Notes the first use of a page that was read ahead.
    pub(crate) fn advance(&self, page: u64) {
        self.channel(page).fewer_ahead(1);
        self.follow(page, Use::FetchedAhead);
    }

    /// Tells the read-ahead of a use, and starts to fetch what it expects next.
    fn follow(&self, page: u64, usage: Use) {
        if !self.read_ahead {
            return;
        }
        let array =
            Streams { array: self.identity.number(), pages: self.table.len(), window_max: self.window_max };
        let Some(ahead) = read_ahead::advance(array, page, usage) else { return };
        let fetched = self.fetch_ahead(ahead);
        if fetched < ahead.count {
            read_ahead::retract(array, page, ahead.count - fetched);
        }
    }

    /// Starts to fetch pages of a stream as far as there is room; returns how many of them, counted from the first,
    /// will be there.
    fn fetch_ahead(&self, ahead: Ahead) -> u64 {
        let count = self.channels.len() as u64;
        let mut fetched = ahead.count;
        for (index, channel) in (0..).zip(&self.channels) {
            let pages = ahead.pages().filter(|page| page % count == index);
            let left_out = match channel.ahead_room(&self.table) {
                0 => pages.clone().next(),
                room => self.prefetch_in(channel, pages, room).unwrap_or_else(|error| {
                    trace::read_ahead_failed(&error);
                    Some(ahead.first)
                }),
            };
            if let Some(page) = left_out {
                fetched = fetched.min(page.abs_diff(ahead.first) / ahead.stride.unsigned_abs().max(1));
            }
        }
        fetched
    }

    /// Starts to fetch the pages of a range that are neither resident nor empty, as far as there are frames to be
    /// had without waiting; then returns the first page that was left out, or the end.
    pub(crate) fn prefetch(&self, pages: Range<u64>) -> Result<u64> {
        let mut reached = pages.end;
        let mut outcome = Ok(());
        for (index, channel) in (0..).zip(&self.channels) {
            // More than half of the frames would push out what was just fetched.
            let most = (channel.frames_max() as usize / 2).max(1);
            match self.prefetch_in(channel, self.of_channel(index, &pages), most) {
                Ok(None) => {}
                Ok(Some(left_out)) => reached = reached.min(left_out),
                Err(error) => {
                    reached = pages.start;
                    outcome = outcome.and(Err(error));
                }
            }
        }
        outcome.map(|()| reached)
    }

    /// Starts to fetch so many pages of one channel at most; returns the first one that was left out.
    fn prefetch_in(
        &self,
        channel: &Channel<D>,
        pages: impl Iterator<Item = u64>,
        most: usize,
    ) -> Result<Option<u64>> {
        let is_absent = |page: &u64| {
            let state = self.table.entry(*page).state(Ordering::Relaxed);
            !state.any(EXCLUSIVE | RESIDENT) && state.has(HOME)
        };
        let mut wanted: Vec<u64> = pages.filter(is_absent).take(most + 1).collect();
        let mut left_out = if wanted.len() > most { wanted.pop() } else { None };
        if wanted.is_empty() {
            return Ok(left_out);
        }
        let frames = channel.take_frames(&self.table, wanted.len())?;
        left_out = wanted.get(frames.len()).copied().or(left_out);
        let mut loads = Vec::with_capacity(frames.len());
        let mut unused = Vec::new();
        let mut frames = frames.into_iter();
        for page in wanted {
            let entry = self.table.entry(page);
            // What could not be claimed is somebody else's matter; its frame serves the next page.
            let Some(frame) = unused.pop().or_else(|| frames.next()) else { break };
            match entry.try_claim_absent(true) {
                Ok(before) if before.has(HOME) => {
                    loads.push(Load { page, frame, then: Then::Release, id: channel.load_id() });
                    continue;
                }
                // It lost its contents between the two looks: there is nothing to fetch.
                Ok(_) => {
                    if entry.vacate(false) {
                        unpark(entry);
                    }
                }
                Err(_) => {}
            }
            unused.push(frame);
        }
        unused.extend(frames);
        channel.put_back_all(&unused);
        channel.counters.prefetches.add(loads.len() as u64);
        channel.more_ahead(loads.len());
        channel.request(&self.table, loads);
        Ok(left_out)
    }

    /// The pages of a range that are homed in a channel.
    fn of_channel(&self, index: u64, pages: &Range<u64>) -> impl Iterator<Item = u64> + use<D> {
        let count = self.channels.len() as u64;
        let first = pages.start + (index + count - pages.start % count) % count;
        (first..pages.end).step_by(count as usize)
    }

    /// Writes the dirty pages of a range back and waits until that is done.
    ///
    /// On an error the pages concerned are still dirty, and the others are written back all the same.
    pub(crate) fn flush(&self, pages: &Range<u64>) -> Result<()> {
        const BATCH: usize = 256;
        let mut first_error = Ok(());
        let mut keep = |result: Result<()>| {
            if first_error.is_ok() {
                first_error = result;
            }
        };
        // All channels work at once: each gets its batches before anybody waits.
        let mut tickets = Vec::new();
        for channel in &self.channels {
            let mut batch: Vec<Victim> = Vec::new();
            let mut submit = |batch: &mut Vec<Victim>, keep: &mut dyn FnMut(Result<()>)| {
                match channel.write_back(&self.table, batch, Purpose::Flush) {
                    Ok(ticket) => tickets.extend(ticket.map(|ticket| (channel, ticket))),
                    Err(error) => keep(Err(error)),
                }
                batch.clear();
            };
            for page in channel.resident_pages(&self.table, pages, true) {
                loop {
                    match self.table.entry(page).try_write_back() {
                        Ok(before) => {
                            // Looked up now that it is pinned: the page may have moved since it was listed.
                            let frame = channel.frame_at(self.table.entry(page).address());
                            batch.push(Victim { page, frame, before });
                            break;
                        }
                        Err(Refusal::Absent) => break,
                        Err(Refusal::Busy(state)) => {
                            // Whoever has the page may wait for those of the batch.
                            submit(&mut batch, &mut keep);
                            if let Err(error) = self.await_page(page, state, false) {
                                keep(Err(error));
                                break;
                            }
                        }
                    }
                }
                if batch.len() == BATCH {
                    submit(&mut batch, &mut keep);
                }
            }
            submit(&mut batch, &mut keep);
        }
        for (channel, ticket) in tickets {
            keep(channel.finish(&self.table, ticket));
        }
        // Also what failed before, in the course of evictions, and was told to nobody.
        for channel in &self.channels {
            if let Some(error) = channel.take_write_error() {
                keep(Err(error.into()));
            }
        }
        first_error
    }

    /// Takes their frames from the pages of a range. What is dirty is written back first.
    ///
    /// Pages that others use meanwhile may be resident again, or still, when the call returns.
    pub(crate) fn evict(&self, pages: &Range<u64>) -> Result<()> {
        self.flush(pages)?;
        for channel in &self.channels {
            for page in channel.resident_pages(&self.table, pages, false) {
                self.drop_frame(page, false)?;
            }
        }
        Ok(())
    }

    /// Declares the contents of whole pages void: they read as zeroes, and nothing is written back for them.
    pub(crate) fn discard(&self, pages: Range<u64>) -> Result<()> {
        for page in pages {
            self.drop_frame(page, true)?;
        }
        Ok(())
    }

    /// Takes the frame, if any, from a page that is clean or may be forgotten.
    fn drop_frame(&self, page: u64, forget: bool) -> Result<()> {
        let entry = self.table.entry(page);
        let channel = self.channel(page);
        loop {
            match entry.try_exclusive(Holder::Pin) {
                Ok(before) => {
                    if before.any(DIRTY) && !forget {
                        // Written to since the flush: its new contents are as good a reason to keep it as any.
                        self.release(page, Holder::Pin, 0);
                        return Ok(());
                    }
                    channel.quiesce(entry, before, Access::All);
                    channel.fewer_ahead(usize::from(before.any(AHEAD)));
                    let frame = channel.disown(entry.address(), page);
                    if entry.vacate(forget) {
                        unpark(entry);
                    }
                    channel.put_back(frame);
                    return Ok(());
                }
                Err(Refusal::Absent) if !forget => return Ok(()),
                Err(Refusal::Absent) => {
                    if entry.try_claim_absent(false).is_ok() {
                        if entry.vacate(true) {
                            unpark(entry);
                        }
                        return Ok(());
                    }
                    let state = entry.state(Ordering::Acquire);
                    if state.any(EXCLUSIVE) || state.shared() {
                        self.await_page(page, state, true)?;
                    }
                }
                Err(Refusal::Busy(state)) => self.await_page(page, state, true)?,
            }
        }
    }

    /// Reads bytes of a page without giving it a frame.
    pub(crate) fn read_uncached(&self, page: u64, offset: usize, into: &mut [u8]) -> Result<()> {
        let entry = self.table.entry(page);
        loop {
            match entry.try_share(Holder::Pin, guards::held()) {
                Ok(before) => {
                    count_hit(self.counter);
                    self.channel(page).fewer_ahead(usize::from(before.any(AHEAD)));
                    self.channel(page).quiesce(entry, before, Access::Writes);
                    // SAFETY: the page is shared, so it stays resident and nobody writes; the range is inside of it.
                    unsafe { racy::read(entry.address().add(offset), into) };
                    self.unshare(page, Holder::Pin);
                    return Ok(());
                }
                Err(Refusal::Busy(state)) => self.await_page(page, state, false)?,
                Err(Refusal::Absent) => match entry.try_share_home() {
                    Ok(has_home) => {
                        let result = if has_home {
                            self.channel(page).read_home(&self.table, page, offset, into)
                        } else {
                            into.fill(0);
                            Ok(())
                        };
                        self.unshare(page, Holder::Pin);
                        return result;
                    }
                    Err(Refusal::Busy(state)) if !state.has(RESIDENT) => {
                        self.await_page(page, state, false)?;
                    }
                    Err(_) => {}
                },
            }
        }
    }

    /// Writes bytes of a page without giving it a frame.
    pub(crate) fn write_uncached(&self, page: u64, offset: usize, bytes: &[u8]) -> Result<()> {
        let entry = self.table.entry(page);
        loop {
            match entry.try_exclusive(Holder::Pin) {
                Ok(before) => {
                    count_hit(self.counter);
                    self.channel(page).fewer_ahead(usize::from(before.any(AHEAD)));
                    self.channel(page).quiesce(entry, before, Access::All);
                    // SAFETY: the page is this thread's alone; the range is inside of it.
                    unsafe { racy::write(entry.address().add(offset), bytes) };
                    self.release(page, Holder::Pin, DIRTY);
                    return Ok(());
                }
                Err(Refusal::Busy(state)) => self.await_page(page, state, true)?,
                Err(Refusal::Absent) => match entry.try_claim_absent(false) {
                    Ok(before) => {
                        let channel = self.channel(page);
                        let slot = page / self.channels.len() as u64;
                        entry.home_is_unknown();
                        let is_ready = before.any(HOME | ZEROED);
                        let prepared =
                            if is_ready { Ok(()) } else { channel.fill_slots(slot..slot + 1, &[0]) };
                        let result = prepared.and_then(|()| channel.write_home(page, offset, bytes));
                        // Without a home, nobody looks at what the slot holds now.
                        self.release(page, Holder::Pin, if result.is_ok() { HOME } else { 0 });
                        return result;
                    }
                    Err(Refusal::Busy(state)) if !state.has(RESIDENT) => {
                        self.await_page(page, state, true)?;
                    }
                    Err(_) => {}
                },
            }
        }
    }

    /// Fills whole pages with a pattern whose length divides a page's. Resident pages are filled in their frames,
    /// others on their device.
    ///
    /// What a device fails to fill, which leaves it unspecified, is filled in frames after all. On an error of that the
    /// pages hold anything.
    pub(crate) fn fill_pages(&self, pages: Range<u64>, pattern: &[u8]) -> Result<()> {
        for (index, channel) in (0..).zip(&self.channels) {
            // Claimed and absent, in neighbouring slots.
            let mut run = Vec::new();
            for page in self.of_channel(index, &pages) {
                if run.len() == self.run_pages() {
                    self.fill_somewhere(channel, &mut run, pattern)?;
                }
                if self.table.entry(page).try_claim_absent(false).is_ok() {
                    run.push(page);
                    continue;
                }
                // To wait while holding claims could wait for ever.
                self.fill_somewhere(channel, &mut run, pattern)?;
                self.fill_in_frame(page, pattern)?;
            }
            self.fill_somewhere(channel, &mut run, pattern)?;
        }
        Ok(())
    }

    /// How many pages are held at once while their slots are filled.
    fn run_pages(&self) -> usize {
        const RUN_BYTES: usize = 64 << 20;
        (RUN_BYTES / self.page_bytes).max(1)
    }

    /// The home slots of pages that follow one another in their channel.
    fn slots_of(&self, first: u64, last: u64) -> Range<u64> {
        let count = self.channels.len() as u64;
        first / count..last / count + 1
    }

    /// Fills claimed pages on their device and releases them; if that fails, fills them in frames.
    fn fill_somewhere(&self, channel: &Channel<D>, run: &mut Vec<u64>, pattern: &[u8]) -> Result<()> {
        let pages = std::mem::take(run);
        let (Some(first), Some(last)) = (pages.first(), pages.last()) else { return Ok(()) };
        pages.iter().for_each(|page| self.table.entry(*page).home_is_unknown());
        let filled = channel.fill_slots(self.slots_of(*first, *last), pattern).is_ok();
        pages.iter().for_each(|page| self.release(*page, Holder::Pin, if filled { HOME } else { 0 }));
        if filled { Ok(()) } else { pages.into_iter().try_for_each(|page| self.fill_in_frame(page, pattern)) }
    }

    fn fill_in_frame(&self, page: u64, pattern: &[u8]) -> Result<()> {
        let held = self.take(page, Holder::Pin, Fetch::Overwrite, Stream::Ignore)?;
        // SAFETY: the page is this thread's alone.
        let frame = unsafe { std::slice::from_raw_parts_mut(held.address, self.page_bytes) };
        repeat(frame, pattern);
        self.release(page, Holder::Pin, DIRTY);
        Ok(())
    }

    /// Brings the home slots of a range of pages up to date, and writes zeroes to those of pages without contents, so
    /// that a device can work on all of them. The latter stay pages without contents: nothing is fetched for them
    /// later.
    pub(crate) fn settle(&self, pages: &Range<u64>) -> Result<()> {
        self.flush(pages)?;
        let count = self.channels.len() as u64;
        for (index, channel) in (0..).zip(&self.channels) {
            // Held, in neighbouring slots.
            let mut run: Vec<(u64, Homeless)> = Vec::new();
            for page in self.of_channel(index, pages) {
                while !self.table.entry(page).state(Ordering::Acquire).any(HOME | ZEROED) {
                    let follows = run.last().is_none_or(|(last, _)| last + count == page);
                    if !follows || run.len() == self.run_pages() {
                        self.zero(channel, &mut run)?;
                    }
                    match self.hold_homeless(page) {
                        Homeless::Not => break,
                        Homeless::Dirty => {
                            self.zero(channel, &mut run)?;
                            self.flush(&(page..page + 1))?;
                        }
                        Homeless::Busy(state) => {
                            // Whoever has the page may wait for those of the run.
                            self.zero(channel, &mut run)?;
                            self.await_page(page, state, false)?;
                        }
                        held => {
                            run.push((page, held));
                            break;
                        }
                    }
                }
            }
            self.zero(channel, &mut run)?;
        }
        Ok(())
    }

    /// Holds a page without contents, absent or resident, so that zeroes can be written to its slot.
    fn hold_homeless(&self, page: u64) -> Homeless {
        let entry = self.table.entry(page);
        match entry.try_claim_absent(false) {
            Ok(before) if before.any(HOME | ZEROED) => {
                self.release(page, Holder::Pin, 0);
                Homeless::Not
            }
            Ok(_) => Homeless::Claimed,
            Err(Refusal::Busy(state)) if state.any(RESIDENT) => match entry.try_share(Holder::Pin, true) {
                Ok(before) if !before.any(HOME | ZEROED | DIRTY) => Homeless::Shared,
                Ok(before) => {
                    self.unshare(page, Holder::Pin);
                    if before.any(HOME | ZEROED) { Homeless::Not } else { Homeless::Dirty }
                }
                Err(Refusal::Busy(state)) => Homeless::Busy(state),
                Err(Refusal::Absent) => Homeless::Busy(entry.state(Ordering::Acquire)),
            },
            Err(Refusal::Busy(state)) => Homeless::Busy(state),
            Err(Refusal::Absent) => Homeless::Busy(entry.state(Ordering::Acquire)),
        }
    }

    /// Writes zeroes to the slots of held pages, and lets them go.
    fn zero(&self, channel: &Channel<D>, run: &mut Vec<(u64, Homeless)>) -> Result<()> {
        let pages = std::mem::take(run);
        let (Some((first, _)), Some((last, _))) = (pages.first(), pages.last()) else { return Ok(()) };
        let result = channel.fill_slots(self.slots_of(*first, *last), &[0]);
        for (page, held) in pages {
            if result.is_ok() {
                self.table.entry(page).home_is_zeroed();
            }
            match held {
                Homeless::Shared => self.unshare(page, Holder::Pin),
                _ => self.release(page, Holder::Pin, 0),
            }
        }
        result
    }

    pub(crate) fn stats(&self) -> Stats {
        let baseline = self.baseline.lock();
        let mut stats = self.raw_stats();
        stats.hits = stats.hits.wrapping_sub(baseline.hits);
        for (now, before) in stats.channels.iter_mut().zip(&baseline.channels) {
            *now = *now - *before;
        }
        stats
    }

    pub(crate) fn reset_stats(&self) {
        let mut baseline = self.baseline.lock();
        *baseline = self.raw_stats();
    }

    fn raw_stats(&self) -> Stats {
        Stats {
            hits: hits(self.counter),
            channels: self.channels.iter().map(|channel| channel.counters.snapshot()).collect(),
        }
    }

    pub(crate) fn admit_guard(&self, page: u64) -> Result<()> {
        self.channel(page).admit_guard()
    }

    pub(crate) fn dismiss_guard(&self, page: u64) {
        self.channel(page).dismiss_guard();
    }

    /// The entry of a page, for the list of guards.
    pub(crate) fn entry(&self, page: u64) -> &Entry {
        self.table.entry(page)
    }
}

impl<D: Device> Drop for Pager<D> {
    fn drop(&mut self) {
        counter::release(self.counter);
    }
}

/// Writes a pattern again and again.
fn repeat(into: &mut [u8], pattern: &[u8]) {
    let first = pattern.len().min(into.len());
    into[..first].copy_from_slice(&pattern[..first]);
    let mut done = first;
    while done < into.len() {
        let more = done.min(into.len() - done);
        into.copy_within(..more, done);
        done += more;
    }
}
