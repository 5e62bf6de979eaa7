//! Frames: page-sized places in host memory, and how a thread gets hold of one.

use std::sync::atomic::{Ordering, fence};

use backend_api::{contended, racy};
use parking_lot::MutexGuard;

use super::transfers::Wakes;
use super::victims::USED_PATIENCE;
use super::write_back::WriteBackFor;
use super::{Channel, FrameTable, HostPlace, NO_PAGE, Shard};
use crate::base::error::Result;
use crate::engine::guards;
use crate::engine::page::{Deferral, Entry, PageTable, unpark};

/// How much host memory is taken at once while a cache grows towards its limit; page-locking is slow.
const CHUNK_BYTES: usize = 16 << 20;
/// The same at first, of an array that may never be asked for any.
const FIRST_CHUNK_BYTES: usize = 256 << 10;
/// At least so many frames are made at a time, if they are not more than that.
const FRAMES_LEAST: u64 = 2;

/// How many pages the policy may not know of before somebody tells it.
const NEWCOMERS: usize = 256;

/// Caches of so many frames and more are searched ahead of need.
const AHEAD_FRAMES: u32 = 256;

/// What a search has brought.
struct FoundFrame {
    /// One of the frames, for the caller.
    frame: Option<Frame>,
    /// Whether write-backs could be begun.
    started: Result<()>,
    /// Whether the search was broken off and is worth going on with.
    unfinished: bool,
}

/// A page-sized place in host memory. The thread that has one that is not in the free list owns it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    pub(crate) index: u32,
    pub(crate) address: *mut u8,
    pub(crate) host: HostPlace,
}

// SAFETY: a frame is a name and an address; who may touch the bytes is decided by the page protocol.
unsafe impl Send for Frame {}

/// Whether a frame is worth waiting for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blocking {
    Wait,
    Try,
}

impl Channel {
    /// Takes one more chunk of host memory for frames.
    pub(super) fn grow(&self) -> Result<()> {
        let have = {
            let mut shard = self.lock();
            let have = shard.frames.list.len() as u32;
            if shard.frames.growing || shard.frames.full || have >= self.layout.frames_max {
                return Ok(());
            }
            shard.frames.growing = true;
            have
        };
        // No more than there are pages, which may become more: twice as many at a time as there were then.
        let pages = self.slot_bytes() / self.layout.page_bytes.max(1) as u64;
        let most = pages.saturating_sub(u64::from(have)).max(u64::from(have)).max(FRAMES_LEAST) as usize;
        let chunk_bytes = if have > 0 || self.is_ahead { CHUNK_BYTES } else { FIRST_CHUNK_BYTES };
        let frames = (chunk_bytes / self.layout.frame_stride).min(most);
        let frames = frames.clamp(1, (self.layout.frames_max - have) as usize);
        let chunk = self.pinned.make(frames * self.layout.frame_stride);
        let mut shard = self.lock();
        shard.frames.growing = false;
        let result = match chunk {
            Ok((chunk, memory)) => {
                self.pinned.set_kind(memory);
                let first = shard.frames.list.len();
                for i in 0..frames {
                    let index = shard.frames.list.len() as u32;
                    // SAFETY: the chunk is `frames * frame_stride` bytes long.
                    let address = unsafe { chunk.address().as_ptr().add(i * self.layout.frame_stride) };
                    // SAFETY: the shard owns the chunk as long as the channel lives; frames are the channel's
                    // own.
                    let host = unsafe { chunk.at((i * self.layout.frame_stride) as u64).detach() };
                    shard.frames.list.push(Frame { index, address, host });
                    shard.frames.pages.push(NO_PAGE);
                }
                self.free_all(&shard.frames.list[first..]);
                shard.frames.chunks.push(chunk);
                Ok(())
            }
            // Less than was asked for still works, unless page-locked memory is required; nothing at all does
            // not.
            Err(error) if have > 0 && self.fall_back => {
                shard.frames.full = true;
                self.guards.max.store(super::guards::most(have), Ordering::Relaxed);
                crate::base::trace::cache_is_small(u64::from(have) * self.layout.frame_stride as u64, &error);
                Ok(())
            }
            Err(error) => Err(error),
        };
        self.events.advance();
        drop(shard);
        self.announce();
        result
    }

    /// Phase 1 of a miss: gets a frame that nobody uses. `None` only to a caller that does not block.
    pub(crate) fn take_frame(&self, table: &PageTable, blocking: Blocking) -> Result<Option<Frame>> {
        // Searches that were broken off, so that others get the lock, are gone on with for two turns of a
        // clock's hand.
        let mut goes_on = 2 + self.layout.frames_max / (USED_PATIENCE as u32 / 2);
        loop {
            if let Some(frame) = self.supply.free.pop() {
                return Ok(Some(frame));
            }
            // Nothing is held: a device may run wakers when it is asked. It need not be asked by all at once.
            let deferral = Deferral::begin();
            if let Some(_asking) = self.supply.asking.try_lock() {
                self.reap(table);
            }
            drop(deferral);
            // One thread searches, for all: each would find the same pages in the way.
            let search = contended::lock(&self.supply.search);
            if !self.supply.free.is_empty() {
                continue;
            }
            let shard = self.lock();
            if !shard.frames.full
                && !shard.frames.growing
                && (shard.frames.list.len() as u32) < self.layout.frames_max
            {
                drop(shard);
                drop(search);
                self.grow()?;
                continue;
            }
            let FoundFrame { frame, started, unfinished } = self.free_some(table, search, shard, blocking);
            if frame.is_some() {
                // The next flush tells of a failure.
                return Ok(frame);
            }
            if let Err(error) = started {
                self.lock().work.write_error = None;
                return Err(error);
            }
            if unfinished && goes_on > 0 {
                goes_on -= 1;
                continue;
            }
            if blocking == Blocking::Try {
                return Ok(None);
            }
            self.await_frame(table)?;
        }
    }

    /// One search for pages that give up their frames, or go home for that.
    fn free_some(
        &self,
        table: &PageTable,
        search: MutexGuard<'_, ()>,
        mut shard: MutexGuard<'_, Shard>,
        blocking: Blocking,
    ) -> FoundFrame {
        let victims = self.choose_victims(&mut shard, table, blocking);
        drop(shard);
        let mut wakes = Wakes::default();
        let frame = self.free_clean(table, &victims.clean, &mut wakes);
        // Wakers are the program's code, and may need a frame themselves.
        drop(search);
        self.wake(table, wakes);
        if victims.clean.len() > 1 {
            self.announce();
        }
        let started = self.write_back(table, &victims.dirty, WriteBackFor::Evict).map(drop);
        FoundFrame { frame, started, unfinished: victims.unfinished }
    }

    /// Frees frames for the thread that comes next if there are none, while the calling thread has to wait
    /// for a transfer anyway. Only where a search is done for many frames, and pages had to go before: what
    /// fits into the cache stays, and a cache grows before it gives up pages.
    pub(crate) fn make_room(&self, table: &PageTable) {
        if !self.supply.free.is_empty()
            || self.layout.frames_max < AHEAD_FRAMES
            || self.counters.evictions.get() == 0
        {
            return;
        }
        let Some(search) = self.supply.search.try_lock() else { return };
        let shard = self.lock();
        let frames = shard.frames.list.len() as u64;
        let may_grow = !shard.frames.full && frames < u64::from(self.layout.frames_max);
        if may_grow || self.slot_bytes() / self.layout.page_bytes as u64 <= frames {
            return;
        }
        // The next flush tells of a failure.
        if let Some(frame) = self.free_some(table, search, shard, Blocking::Try).frame {
            self.put_back(frame);
        }
    }

    /// Gets as many frames as can be had without waiting, up to a number, in the order in which they come.
    ///
    /// # Errors
    /// As [`take_frame`](Self::take_frame); frames that were to be had before are there all the same.
    pub(crate) fn take_frames(&self, table: &PageTable, most: usize, taken: &mut Vec<Frame>) -> Result<()> {
        taken.reserve(most);
        while taken.len() < most
            && let Some(frame) = self.take_frame(table, Blocking::Try)?
        {
            taken.push(frame);
        }
        Ok(())
    }

    /// Waits for whatever may bring a frame: a transfer, a guard's end, or another thread's next step.
    fn await_frame(&self, table: &PageTable) -> Result<()> {
        let key = self.events.prepare();
        if !self.supply.free.is_empty() {
            return Ok(());
        }
        let mut shard = self.lock();
        if let Some((ticket, is_write_back)) = shard.work.oldest_transfer() {
            self.counters.waits.add(1);
            if !shard.work.watch(ticket) {
                // The thread that waits for it tells.
                drop(shard);
                self.await_events(key);
                return Ok(());
            }
            drop(shard);
            let outcome = self.finish(table, ticket);
            if is_write_back && outcome.is_err() {
                // Told to the thread that needs the frame.
                self.lock().work.write_error = None;
                return outcome;
            }
            return Ok(());
        }
        // Guards that were admitted and have no frame yet do not count: they may be the ones who wait here.
        let all_guarded = |shard: &Shard| !shard.frames.pages.is_empty() && shard.frames.are_all_kept(table);
        if all_guarded(&shard) {
            let has_reads = shard.frames.reserved.count() > 0;
            if has_reads {
                drop(shard);
                if self.serve_long_reads(table) {
                    return Ok(());
                }
                shard = self.lock();
            }
            if guards::held_or_expected() {
                let frames = shard.frames.list.len() as u32;
                return Err(self.too_many_guards(frames));
            }
            self.counters.waits.add(1);
            drop(shard);
            let _waiting = self.guards.wait();
            let key = self.events.prepare();
            if self.supply.free.is_empty() && all_guarded(&self.lock()) {
                self.await_events(key);
            }
            return Ok(());
        }
        if shard.frames.growing {
            drop(shard);
            self.await_events(key);
            return Ok(());
        }
        drop(shard);
        // Another thread is between two steps of taking or releasing a page.
        std::thread::yield_now();
        Ok(())
    }

    /// Gives back a frame that no page has.
    pub(crate) fn put_back(&self, frame: Frame) {
        self.put_back_all(&[frame]);
    }

    /// Gives back frames that no page has.
    pub(crate) fn put_back_all(&self, frames: &[Frame]) {
        if frames.is_empty() {
            return;
        }
        self.free_all(frames);
        self.events.advance();
        self.announce();
    }

    /// Adds to the frames that no page has. To be announced.
    pub(super) fn free_all(&self, frames: &[Frame]) {
        for frame in frames {
            let freed = self.supply.free.push(*frame);
            debug_assert!(freed.is_ok(), "more frames than there are");
        }
    }

    /// Phase 3 of a miss of a page without contents, which the caller has claimed: gives it its frame, with
    /// zeroes unless it is to be overwritten whole. Still the caller's afterwards.
    pub(crate) fn install_new(&self, entry: &Entry, page: u64, frame: Frame, zeroes: bool) {
        if zeroes {
            // SAFETY: the frame is a page long, and this thread's alone until the page is released.
            unsafe { racy::fill(frame.address, 0, self.layout.page_bytes) };
        }
        self.install(entry, page, frame);
    }

    /// Begins phase 3 of a miss of a page with contents, which the caller has claimed, where a thread reads
    /// them by itself.
    pub(crate) fn begin_direct_load<'a>(&'a self, entry: &'a Entry, frame: Frame) -> UnfinishedLoad<'a> {
        UnfinishedLoad { channel: self, entry, frame }
    }

    fn install(&self, entry: &Entry, page: u64, frame: Frame) {
        entry.install(frame.address);
        self.policy_insert(page, frame);
    }

    /// Puts a frame under the eviction policy: it now holds this page.
    pub(crate) fn policy_insert(&self, page: u64, frame: Frame) {
        let told = self.newcomers.push((page, frame.index));
        debug_assert!(told.is_ok(), "a frame has one page");
        // So that nobody has to tell of all at once.
        if self.newcomers.len() > NEWCOMERS
            && let Some(mut shard) = self.shard.try_lock()
        {
            self.tell_policy(&mut shard);
        }
        // The driver may have found no frame while this one was in the caller's hands; now it can wait for
        // its page.
        fence(Ordering::SeqCst);
        self.tell_driver();
    }

    /// Takes the frame of a page that the caller holds exclusively out of the policy. Once the page is
    /// unmapped the caller [puts it back](Self::put_back): not before, since the entry still names it; and it
    /// is taken out before that, since the page may get another frame the moment it is unmapped.
    pub(crate) fn policy_remove(&self, address: *mut u8, page: u64) -> Frame {
        self.lock().frames.policy_remove(address, page)
    }

    /// The frame at an address that a page's entry names, while the caller holds the page.
    pub(crate) fn frame_at(&self, address: *mut u8) -> Frame {
        self.lock().frames.frame_at(address)
    }
}

/// A page that a thread reads into its frame by itself. Dropped, also if a device of the program's own
/// panics, it ends the claim.
pub(crate) struct UnfinishedLoad<'a> {
    channel: &'a Channel,
    entry: &'a Entry,
    frame: Frame,
}

impl UnfinishedLoad<'_> {
    /// Gives the page its frame, with what it has at home. Still the caller's afterwards.
    ///
    /// # Errors
    /// What the device reports; then the claim is gone, and the frame given back.
    pub(crate) fn finish(self, page: u64) -> Result<()> {
        let Self { channel, entry, frame } = self;
        channel.note_load();
        // SAFETY: the frame is a page long, of initialised bytes, and this thread's alone until the page is
        // released.
        let bytes = unsafe { std::slice::from_raw_parts_mut(frame.address, channel.layout.page_bytes) };
        let Some(read) = channel.read_home_directly(page, 0, bytes) else {
            unreachable!("a device that has direct reads has them as long as it lives")
        };
        read?;
        std::mem::forget(self);
        channel.install(entry, page, frame);
        Ok(())
    }
}

impl Drop for UnfinishedLoad<'_> {
    fn drop(&mut self) {
        // The entry never named the frame.
        if self.entry.unmap(false) {
            unpark(self.entry);
        }
        self.channel.put_back(self.frame);
    }
}

impl FrameTable {
    pub(super) fn policy_insert(&mut self, page: u64, frame: u32) {
        self.pages[frame as usize] = page;
        self.evictor.inserted(frame, page);
        if self.evictor.wants_touches() {
            self.frame_of.insert(page, frame);
        }
    }

    /// The frame at an address that an entry names.
    pub(super) fn frame_at(&self, address: *mut u8) -> Frame {
        let mut first = 0;
        for chunk in &self.chunks {
            let offset = address.addr().wrapping_sub(chunk.address().addr().get());
            if offset < chunk.bytes() {
                return self.list[first + offset / self.stride];
            }
            first += chunk.bytes() / self.stride;
        }
        unreachable!("entries name frames of their own channel only")
    }

    /// Takes the frame at an address away from its page, which the caller has for itself.
    pub(super) fn policy_remove(&mut self, address: *mut u8, page: u64) -> Frame {
        let frame = self.frame_at(address);
        self.evictor.removed(frame.index);
        self.frame_of.remove(&page);
        self.pages[frame.index as usize] = NO_PAGE;
        frame
    }
}
