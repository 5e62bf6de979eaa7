//! Frames, the page-sized cache buffers in host RAM: their allocation, and the search for a free frame.

use std::sync::atomic::{Ordering, fence};

use parking_lot::MutexGuard;
use vmarray_support::contended;

use super::places::{self, FrameAddress, FrameBytes};
use super::transfers::Wakes;
use super::victims::USED_PATIENCE;
use super::write_back::WriteBackFor;
use super::{Channel, FrameTable, HostPlace, NO_PAGE, Shard};
use crate::base::error::Result;
use crate::engine::guards;
use crate::engine::page::{DeferredWakes, Entry, PageTable, unpark};

/// Bytes of host memory that a growing cache allocates at once, because page-locking is slow.
const CHUNK_BYTES: usize = 16 << 20;
/// Bytes of the first allocation, because an array may never need more.
const FIRST_CHUNK_BYTES: usize = 256 << 10;
/// Minimum number of frames that are allocated at once, within that size.
const FRAMES_LEAST: u64 = 2;

/// Number of unreported pages at which a thread reports them to the policy.
const NEWCOMERS: usize = 256;

/// Minimum number of frames of a cache that frees frames ahead of need.
const AHEAD_FRAMES: u32 = 256;

/// The result of one search for a free frame.
struct FoundFrame {
    frame: Option<Frame>,
    /// The error of the write-backs that the search tried to start, if any.
    started: Result<()>,
    /// True if the search was interrupted, and should be resumed.
    unfinished: bool,
}

/// A page-sized buffer in host memory. A thread that has a frame which is not in the free list owns it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    pub(crate) index: u32,
    address: FrameAddress,
    pub(crate) host: HostPlace,
    /// True until its first use, because new memory is zeroed. A new page then needs no zeroes, and no memory
    /// for elements that no thread uses.
    is_zeroed: bool,
}

impl Frame {
    pub(crate) fn address(&self) -> *mut u8 {
        self.address.get()
    }
}

/// If a request for a frame may block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blocking {
    Wait,
    Try,
}

impl Channel {
    /// Allocates one more chunk of host memory for frames.
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
        // Never allocate more frames than pages. If the array may grow, double the frames each time.
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
                    let offset = i * self.layout.frame_stride;
                    let address = FrameAddress::in_chunk(&chunk, offset);
                    let host = places::host_place(&chunk, offset);
                    shard.frames.list.push(Frame { index, address, host, is_zeroed: false });
                    shard.frames.pages.push(NO_PAGE);
                }
                for frame in &shard.frames.list[first..] {
                    self.supply.free.push(Frame { is_zeroed: true, ..*frame });
                }
                shard.frames.chunks.push(chunk);
                Ok(())
            }
            // Unless page-locked memory is required, a smaller cache suffices, if it has any frames.
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

    /// Phase 1 of a miss: takes a free frame. Returns `None` only if the caller does not block.
    pub(crate) fn take_frame(&self, table: &PageTable, blocking: Blocking) -> Result<Option<Frame>> {
        // The search for a frame releases the lock from time to time. Resume the search, for at most two
        // CLOCK revolutions in all.
        let mut goes_on = 2 + self.layout.frames_max / (USED_PATIENCE as u32 / 2);
        loop {
            if let Some(frame) = self.supply.free.pop() {
                return Ok(Some(frame));
            }
            // Poll the device without the lock, because a device may run wakers. One thread polls at a time.
            let deferral = DeferredWakes::begin();
            if let Some(_asking) = self.supply.asking.try_lock() {
                self.reap(table);
            }
            drop(deferral);
            // Let one thread search at a time, because several would examine the same pages.
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
                // Ignore a failed write-back, because the next flush reports it.
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

    /// Searches once for pages to evict, or to write back before eviction.
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
        // Call wakers after the search, because they are code of the program and may need a frame themselves.
        drop(search);
        self.wake(table, wakes);
        if victims.clean.len() > 1 {
            self.announce();
        }
        let started = self.write_back(table, &victims.dirty, WriteBackFor::Evict).map(drop);
        FoundFrame { frame, started, unfinished: victims.unfinished }
    }

    /// Frees frames for the next thread if none are free, while the calling thread waits for a transfer
    /// anyway. Does so only in large caches that have evicted before: pages that fit stay, and a cache grows
    /// before it evicts.
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
        // Ignore a failed write-back, because the next flush reports it.
        if let Some(frame) = self.free_some(table, search, shard, Blocking::Try).frame {
            self.put_back(frame);
        }
    }

    /// Takes up to `most` frames in their order, without waiting.
    ///
    /// # Errors
    /// The errors of [`take_frame`](Self::take_frame). Frames taken before the error are in `taken`.
    pub(crate) fn take_frames(&self, table: &PageTable, most: usize, taken: &mut Vec<Frame>) -> Result<()> {
        taken.reserve(most);
        while taken.len() < most
            && let Some(frame) = self.take_frame(table, Blocking::Try)?
        {
            taken.push(frame);
        }
        Ok(())
    }

    /// Waits for an event that may free a frame: a transfer, the end of a guard, or another thread's step.
    fn await_frame(&self, table: &PageTable) -> Result<()> {
        let key = self.events.prepare();
        if !self.supply.free.is_empty() {
            return Ok(());
        }
        let mut shard = self.lock();
        if let Some((ticket, is_write_back)) = shard.work.oldest_transfer() {
            self.counters.waits.add(1);
            if !shard.work.watch(ticket) {
                // Another thread finishes this transfer and reports its error, so only wait here.
                drop(shard);
                self.await_events(key);
                return Ok(());
            }
            drop(shard);
            let outcome = self.finish(table, ticket);
            if is_write_back && outcome.is_err() {
                // The thread that needs the frame gets this error, so the next flush must not report it.
                self.lock().work.write_error = None;
                return outcome;
            }
            return Ok(());
        }
        // Count only guards with a frame: a guard without one may belong to a thread that waits here.
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
            if guards::must_not_await_guards() {
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
        // Another thread is between two steps of taking or releasing a page, so let it run.
        std::thread::yield_now();
        Ok(())
    }

    /// Frees a frame that has no page.
    pub(crate) fn put_back(&self, frame: Frame) {
        self.put_back_all(&[frame]);
    }

    /// Frees frames that have no pages.
    pub(crate) fn put_back_all(&self, frames: &[Frame]) {
        if frames.is_empty() {
            return;
        }
        self.free_all(frames);
        self.events.advance();
        self.announce();
    }

    /// Adds used frames to the free list. The caller wakes waiting threads.
    pub(super) fn free_all(&self, frames: &[Frame]) {
        frames.iter().for_each(|frame| self.supply.free.push(Frame { is_zeroed: false, ..*frame }));
        let most = self.layout.frames_max as usize;
        debug_assert!(self.supply.free.len() <= most, "more free frames than the channel has");
    }

    /// Phase 3 of a miss of a page without contents, which the caller has claimed: gives the page its frame,
    /// with zeroes if `zeroes`. The caller still holds the page afterwards.
    pub(crate) fn install_new(&self, entry: &Entry, page: u64, frame: Frame, zeroes: bool) {
        if zeroes && !frame.is_zeroed {
            self.frame_bytes(&frame).fill_with_zeroes();
        }
        self.install(entry, page, frame);
    }

    /// Starts phase 3 of a miss of a page with contents, which the caller has claimed: the calling thread
    /// reads the page directly.
    pub(crate) fn begin_direct_load<'a>(&'a self, entry: &'a Entry, frame: Frame) -> UnfinishedLoad<'a> {
        UnfinishedLoad { channel: self, entry, frame }
    }

    fn install(&self, entry: &Entry, page: u64, frame: Frame) {
        entry.install(frame.address());
        self.policy_insert(page, frame);
    }

    /// Reports to the eviction policy that the frame now has this page.
    pub(crate) fn policy_insert(&self, page: u64, frame: Frame) {
        self.newcomers.push((page, frame.index));
        // Report some new pages to the eviction policy now, so that no later thread has to report many at
        // once.
        if self.newcomers.len() > NEWCOMERS
            && let Some(mut shard) = self.shard.try_lock()
        {
            self.update_policy(&mut shard);
        }
        // Requests of tasks may have found no frame to take or to wait for. Now they can wait for the
        // eviction of this page, so serve them.
        fence(Ordering::SeqCst);
        self.wake_driver();
    }

    /// Removes a page's frame from the policy; the caller holds the page exclusively. The caller unmaps the
    /// page afterwards, because it may get another frame right after, and then [frees the
    /// frame](Self::put_back), because the entry names it until then.
    pub(crate) fn policy_remove(&self, address: *mut u8, page: u64) -> Frame {
        self.lock().frames.policy_remove(address, page)
    }

    /// Returns the bytes of a frame that the calling thread owns.
    pub(super) fn frame_bytes(&self, frame: &Frame) -> FrameBytes<'_> {
        FrameBytes::of(frame.address, self.layout.page_bytes)
    }

    /// Returns the bytes of a resident page that the calling thread holds.
    pub(super) fn held_bytes<'a>(&self, entry: &'a Entry) -> FrameBytes<'a> {
        FrameBytes::held(entry, self.layout.page_bytes)
    }

    /// Returns the frame whose address a page's entry contains; the caller holds the page.
    pub(crate) fn frame_at(&self, address: *mut u8) -> Frame {
        self.lock().frames.frame_at(address)
    }
}

/// A direct read of a page into its frame. The drop ends the claim, also after a panic of a device.
pub(crate) struct UnfinishedLoad<'a> {
    channel: &'a Channel,
    entry: &'a Entry,
    frame: Frame,
}

impl UnfinishedLoad<'_> {
    /// Reads the page's home slot into its frame. The caller still holds the page afterwards.
    ///
    /// # Errors
    /// Errors of the device. The claim then ends, and the frame is freed.
    pub(crate) fn finish(self, page: u64) -> Result<()> {
        let Self { channel, entry, frame } = self;
        channel.note_load();
        let read = |bytes: &mut [u8]| channel.read_home_directly(page, 0, bytes);
        let Some(read) = channel.frame_bytes(&frame).with_bytes(read) else {
            unreachable!("a device with direct reads supports them until its drop")
        };
        read?;
        std::mem::forget(self);
        channel.install(entry, page, frame);
        Ok(())
    }
}

impl Drop for UnfinishedLoad<'_> {
    fn drop(&mut self) {
        // The load failed before the page got this frame, so release the page and the frame separately.
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

    /// Returns the frame whose address a page's entry contains.
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

    /// Removes the frame at an address from its page; the caller holds the page exclusively.
    pub(super) fn policy_remove(&mut self, address: *mut u8, page: u64) -> Frame {
        let frame = self.frame_at(address);
        self.evictor.removed(frame.index);
        self.frame_of.remove(&page);
        self.pages[frame.index as usize] = NO_PAGE;
        frame
    }
}
