//! Pages of bytes: getting hold of them, letting go, and moving many of them at once. Elements are unknown here.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use backend_api::{Device, racy};

use crate::channel::{Channel, Patience, Then, Victim, quiesce};
use crate::error::{ErrorKind, Result};
use crate::guards;
use crate::page::state::{AHEAD, DIRTY, EXCLUSIVE, HOME, IN_FLIGHT};
use crate::page::{Access, Entry, Holder, PageTable, Refusal, State, count_hit, counter, hits, park, unpark};
use crate::read_ahead::{self, Streams};
use crate::stats::Stats;
use crate::trace;

/// Whether a page that is about to be held needs its contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fetch {
    Contents,
    /// It will be overwritten whole: nothing is fetched, and the frame holds anything.
    Overwrite,
}

/// A page that the caller holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    /// The first byte of its frame.
    pub(crate) address: *mut u8,
    /// Its state before it was taken, which tells what lock-free accesses may be under way.
    pub(crate) before: State,
}

/// All pages of one array.
#[derive(Debug)]
pub(crate) struct Pager<D: Device> {
    // Declared before the table, dropped before it: transfers refer to entries.
    channels: Vec<Channel<D>>,
    table: PageTable,
    page_bytes: usize,
    /// The number under which hits are counted.
    counter: u32,
    /// What the statistics were when they were last reset.
    baseline: parking_lot::Mutex<Stats>,
    read_ahead: bool,
    /// Distinguishes arrays in the threads' records of their streams.
    identity: u64,
}

impl<D: Device> Pager<D> {
    pub(crate) fn new(
        channels: Vec<Channel<D>>,
        table: PageTable,
        page_bytes: usize,
        read_ahead: bool,
    ) -> Self {
        static IDENTITIES: AtomicU64 = AtomicU64::new(1);
        let counter = counter::acquire();
        let pager = Self {
            channels,
            table,
            page_bytes,
            counter,
            baseline: parking_lot::Mutex::new(Stats::default()),
            read_ahead,
            identity: IDENTITIES.fetch_add(1, Ordering::Relaxed),
        };
        pager.reset_stats();
        pager
    }

    #[inline(always)]
    pub(crate) fn table(&self) -> &PageTable {
        &self.table
    }

    pub(crate) fn counter(&self) -> u32 {
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

    /// Shares a page; its latched writers are kept out. Lock-free ones only after [`steady`](Self::steady).
    pub(crate) fn share(&self, page: u64, holder: Holder) -> Result<Held> {
        self.acquire(page, Then::Share(holder), Fetch::Contents)
    }

    /// Shares a page whose bytes stay as they are until it is let go.
    pub(crate) fn share_steady(&self, page: u64, holder: Holder) -> Result<Held> {
        let held = self.share(page, holder)?;
        quiesce(self.table.entry(page), held.before, Access::Writes);
        Ok(held)
    }

    /// Takes a page for the calling thread; lock-free accesses may go on.
    pub(crate) fn latch(&self, page: u64, holder: Holder, fetch: Fetch) -> Result<Held> {
        self.acquire(page, Then::Exclusive(holder), fetch)
    }

    /// Takes a page for the calling thread so that nobody else reads or writes its bytes.
    pub(crate) fn take(&self, page: u64, holder: Holder, fetch: Fetch) -> Result<Held> {
        let held = self.latch(page, holder, fetch)?;
        quiesce(self.table.entry(page), held.before, Access::All);
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

    fn acquire(&self, page: u64, then: Then, fetch: Fetch) -> Result<Held> {
        let entry = self.table.entry(page);
        let channel = self.channel(page);
        let exclusive = matches!(then, Then::Exclusive(_));
        loop {
            let attempt = match then {
                Then::Share(holder) => entry.try_share(holder),
                Then::Exclusive(holder) => entry.try_exclusive(holder),
                Then::Release => unreachable!("prefetches do not hold pages"),
            };
            match attempt {
                Ok(before) => {
                    count_hit(self.counter);
                    if !channel.recency() {
                        channel.touched(page);
                    }
                    if before.any(AHEAD) {
                        self.advance(page);
                    }
                    return Ok(Held { address: entry.address(), before });
                }
                Err(Refusal::Busy(state)) => self.await_page(page, state, exclusive)?,
                Err(Refusal::Absent) => {
                    if let Some(held) = self.load(page, then, fetch)? {
                        return Ok(held);
                    }
                }
            }
        }
    }

    /// Gets an absent page its frame and its contents. `None` if somebody else was faster.
    fn load(&self, page: u64, then: Then, fetch: Fetch) -> Result<Option<Held>> {
        let entry = self.table.entry(page);
        let channel = self.channel(page);
        // The frame first, holding nothing: whoever waits for a frame keeps nobody from anything.
        let (Then::Share(holder) | Then::Exclusive(holder)) = then else { return Ok(None) };
        let Some(frame) = channel.take_frame(&self.table, Patience::Wait(holder))? else { return Ok(None) };
        let Ok(has_home) = entry.try_claim_absent(true) else {
            channel.put_back(frame);
            return Ok(None);
        };
        channel.counters.misses.add(1);
        let held = Held { address: frame.address, before: State(0) };
        if has_home && fetch == Fetch::Contents {
            let ticket = channel.start_loads(&self.table, &[(page, frame, then)])?;
            self.advance(page);
            channel.counters.waits.add(1);
            channel.finish(&self.table, ticket)?;
            return Ok(Some(held));
        }
        if fetch == Fetch::Contents {
            // SAFETY: the frame is `page_bytes` long, and this thread's alone until the page is released.
            unsafe { racy::fill(frame.address, 0, self.page_bytes) };
        }
        entry.install(frame.address);
        channel.adopt(page, frame);
        match then {
            Then::Share(holder) => {
                if entry.downgrade(holder) {
                    unpark(entry);
                }
            }
            Then::Exclusive(holder) => entry.hold_exclusive(holder),
            Then::Release => unreachable!("prefetches do not come here"),
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
        if state.guards() > 0 && !guards::may_wait_for(entry) {
            return Err(ErrorKind::WouldDeadlock { page }.into());
        }
        channel.counters.waits.add(1);
        park(entry, |s| {
            !s.any(IN_FLIGHT) && (s.any(EXCLUSIVE) || !s.has_room() || (exclusive && s.shared()))
        });
        Ok(())
    }

    /// Tells the read-ahead of a miss, or of the first use of a page that was read ahead.
    fn advance(&self, page: u64) {
        if !self.read_ahead {
            return;
        }
        let frames: u64 = self.channels.iter().map(|c| u64::from(c.frames_max())).sum();
        if let Some(ahead) =
            read_ahead::advance(Streams { array: self.identity, pages: self.table.len(), frames }, page)
            && let Err(error) = self.prefetch(ahead)
        {
            trace::read_ahead_failed(&error);
        }
    }

    /// Starts to fetch the pages of a range that are neither resident nor empty, as far as there are frames to be
    /// had without waiting; then returns.
    pub(crate) fn prefetch(&self, pages: Range<u64>) -> Result<()> {
        let count = self.channels.len() as u64;
        for (index, channel) in (0..).zip(&self.channels) {
            let mut loads = Vec::new();
            let first = pages.start + (index + count - pages.start % count) % count;
            let mut result = Ok(());
            // More than half of the frames would push out what was just fetched.
            let most = (channel.frames_max() as usize / 2).max(1);
            for page in (first..pages.end).step_by(count as usize) {
                let entry = self.table.entry(page);
                let state = entry.state(Ordering::Relaxed);
                if state.any(EXCLUSIVE) || state.has(crate::page::state::RESIDENT) || !state.has(HOME) {
                    continue;
                }
                if loads.len() >= most {
                    break;
                }
                match channel.take_frame(&self.table, Patience::Try) {
                    Ok(Some(frame)) => match entry.try_claim_absent(true) {
                        // It lost its contents between the two looks: there is nothing to fetch.
                        Ok(false) => {
                            channel.put_back(frame);
                            if entry.vacate(false) {
                                unpark(entry);
                            }
                        }
                        Ok(true) => loads.push((page, frame, Then::Release)),
                        Err(_) => channel.put_back(frame),
                    },
                    Ok(None) => break,
                    Err(error) => {
                        result = Err(error);
                        break;
                    }
                }
            }
            if !loads.is_empty() {
                channel.counters.prefetches.add(loads.len() as u64);
                channel.start_loads(&self.table, &loads)?;
            }
            result?;
        }
        Ok(())
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
            let mut batch = Vec::new();
            for page in channel.resident_pages(&self.table, pages, true) {
                if let Some(before) = self.claim_dirty(page, &mut keep) {
                    // Looked up now that it is pinned: the page may have moved since it was listed.
                    let frame = channel.frame_at(self.table.entry(page).address());
                    batch.push(Victim { page, frame, before });
                }
                if batch.len() == BATCH {
                    keep(
                        channel
                            .write_back(&self.table, &batch)
                            .map(|t| tickets.extend(t.map(|t| (channel, t)))),
                    );
                    batch.clear();
                }
            }
            keep(channel.write_back(&self.table, &batch).map(|t| tickets.extend(t.map(|t| (channel, t)))));
        }
        for (channel, ticket) in tickets {
            keep(channel.finish(&self.table, ticket));
        }
        first_error
    }

    /// Claims a dirty page for write-back, waiting for whoever writes to it.
    fn claim_dirty(&self, page: u64, keep: &mut impl FnMut(Result<()>)) -> Option<State> {
        let entry = self.table.entry(page);
        loop {
            match entry.try_write_back() {
                Ok(before) => return Some(before),
                Err(Refusal::Absent) => return None,
                Err(Refusal::Busy(state)) => {
                    if let Err(error) = self.await_page(page, state, false) {
                        keep(Err(error));
                        return None;
                    }
                }
            }
        }
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
                    quiesce(entry, before, Access::All);
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
            match entry.try_share(Holder::Pin) {
                Ok(before) => {
                    count_hit(self.counter);
                    quiesce(entry, before, Access::Writes);
                    // SAFETY: the page is shared, so it stays resident and nobody writes; the range is inside of it.
                    unsafe { racy::copy(entry.address().add(offset), into.as_mut_ptr(), into.len()) };
                    self.unshare(page, Holder::Pin);
                    return Ok(());
                }
                Err(Refusal::Busy(state)) => self.await_page(page, state, false)?,
                Err(Refusal::Absent) => match entry.try_share_home() {
                    Ok(has_home) => {
                        let result = if has_home {
                            self.channel(page).read_home(page, offset, into)
                        } else {
                            into.fill(0);
                            Ok(())
                        };
                        self.unshare(page, Holder::Pin);
                        return result;
                    }
                    Err(Refusal::Busy(state)) if !state.has(crate::page::state::RESIDENT) => {
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
                    quiesce(entry, before, Access::All);
                    // SAFETY: the page is this thread's alone; the range is inside of it.
                    unsafe { racy::copy(bytes.as_ptr(), entry.address().add(offset), bytes.len()) };
                    self.release(page, Holder::Pin, DIRTY);
                    return Ok(());
                }
                Err(Refusal::Busy(state)) => self.await_page(page, state, true)?,
                Err(Refusal::Absent) => match entry.try_claim_absent(false) {
                    Ok(has_home) => {
                        let channel = self.channel(page);
                        let slot = page / self.channels.len() as u64;
                        let prepared =
                            if has_home { Ok(()) } else { channel.fill_slots(slot..slot + 1, &[0]) };
                        let result = prepared.and_then(|()| channel.write_home(page, offset, bytes));
                        // Without a home, nobody looks at what the slot holds now.
                        self.release(page, Holder::Pin, if result.is_ok() { HOME } else { 0 });
                        return result;
                    }
                    Err(Refusal::Busy(state)) if !state.has(crate::page::state::RESIDENT) => {
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
        let count = self.channels.len() as u64;
        for (index, channel) in (0..).zip(&self.channels) {
            let first = pages.start + (index + count - pages.start % count) % count;
            // Claimed and absent, in neighbouring slots.
            let mut run: Range<u64> = 0..0;
            for page in (first..pages.end).step_by(count as usize) {
                let slot = page / count;
                if self.claim_absent_now(page) {
                    if run.end == slot && !run.is_empty() {
                        run.end += 1;
                    } else {
                        let done = std::mem::replace(&mut run, slot..slot + 1);
                        if self.fill_run(channel, done.clone(), pattern).is_err() {
                            // In frames then, but to wait for them while holding a claim could wait for ever.
                            self.release(page, Holder::Pin, 0);
                            run = 0..0;
                            done.map(|slot| channel.page_of_slot(slot))
                                .chain([page])
                                .try_for_each(|page| self.fill_in_frame(page, pattern))?;
                        }
                    }
                    continue;
                }
                // To wait while holding claims could wait for ever.
                self.fill_somewhere(channel, std::mem::take(&mut run), pattern)?;
                self.fill_in_frame(page, pattern)?;
            }
            self.fill_somewhere(channel, run, pattern)?;
        }
        Ok(())
    }

    fn claim_absent_now(&self, page: u64) -> bool {
        self.table.entry(page).try_claim_absent(false).is_ok()
    }

    fn fill_run(&self, channel: &Channel<D>, run: Range<u64>, pattern: &[u8]) -> Result<()> {
        if run.is_empty() {
            return Ok(());
        }
        let result = channel.fill_slots(run.clone(), pattern);
        for slot in run {
            self.release(channel.page_of_slot(slot), Holder::Pin, if result.is_ok() { HOME } else { 0 });
        }
        result
    }

    fn fill_in_frame(&self, page: u64, pattern: &[u8]) -> Result<()> {
        let held = self.take(page, Holder::Pin, Fetch::Overwrite)?;
        // SAFETY: the page is this thread's alone.
        let frame = unsafe { std::slice::from_raw_parts_mut(held.address, self.page_bytes) };
        repeat(frame, pattern);
        self.release(page, Holder::Pin, DIRTY);
        Ok(())
    }

    /// Fills claimed pages on their device, else in frames.
    fn fill_somewhere(&self, channel: &Channel<D>, run: Range<u64>, pattern: &[u8]) -> Result<()> {
        if self.fill_run(channel, run.clone(), pattern).is_ok() {
            return Ok(());
        }
        run.map(|slot| channel.page_of_slot(slot)).try_for_each(|page| self.fill_in_frame(page, pattern))
    }

    /// Brings the home slots of a range of pages up to date, and writes zeroes to those that never had contents, so
    /// that a device can work on all of them.
    pub(crate) fn settle(&self, pages: &Range<u64>) -> Result<()> {
        self.flush(pages)?;
        let count = self.channels.len() as u64;
        for (index, channel) in (0..).zip(&self.channels) {
            let first = pages.start + (index + count - pages.start % count) % count;
            let mut run: Range<u64> = 0..0;
            for page in (first..pages.end).step_by(count as usize) {
                let slot = page / count;
                let entry = self.table.entry(page);
                let state = entry.state(Ordering::Acquire);
                // A page without a home but with a frame is dirty by now or reads as zeroes; if somebody holds it, they
                // are about to write, which may come after.
                if state.has(HOME) {
                    continue;
                }
                if self.claim_homeless(page) {
                    if run.end == slot && !run.is_empty() {
                        run.end += 1;
                    } else {
                        let done = std::mem::replace(&mut run, slot..slot + 1);
                        if let Err(error) = self.zero_run(channel, done) {
                            self.release(page, Holder::Pin, 0);
                            return Err(error);
                        }
                    }
                } else {
                    self.zero_run(channel, std::mem::take(&mut run))?;
                    self.settle_busy(page)?;
                }
            }
            self.zero_run(channel, run)?;
        }
        Ok(())
    }

    fn zero_run(&self, channel: &Channel<D>, run: Range<u64>) -> Result<()> {
        self.fill_run(channel, run, &[0])
    }

    /// Takes a page without a home, so that zeroes can be written to its slot.
    fn claim_homeless(&self, page: u64) -> bool {
        match self.table.entry(page).try_claim_absent(false) {
            Ok(false) => true,
            Ok(true) => {
                self.release(page, Holder::Pin, 0);
                false
            }
            Err(_) => false,
        }
    }

    /// Sees to it that a page which others hold, or which is resident and clean but homeless, gets its home.
    fn settle_busy(&self, page: u64) -> Result<()> {
        let entry = self.table.entry(page);
        loop {
            let state = entry.state(Ordering::Acquire);
            if state.has(HOME) {
                return Ok(());
            }
            match entry.try_exclusive(Holder::Pin) {
                Ok(_) => {
                    // Clean and homeless: all zeroes. Declared dirty, it is written like any other.
                    self.release(page, Holder::Pin, DIRTY);
                    return self.flush(&(page..page + 1));
                }
                Err(Refusal::Absent) if self.claim_homeless(page) => {
                    let slot = page / self.channels.len() as u64;
                    return self.zero_run(self.channel(page), slot..slot + 1);
                }
                Err(Refusal::Absent) => {}
                Err(Refusal::Busy(state)) => self.await_page(page, state, true)?,
            }
        }
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
