//! Short ranges of a page that is open to accesses without a lock.
//!
//! A hold of a page and its end are two locked instructions, which the processor finishes before it begins
//! anything behind them: to read a row of some elements it would wait for memory each time, where it could
//! have asked for the next rows meanwhile. So a short range is read as an element is, under a hazard slot. It
//! is as it was at one moment if nobody wrote to the page meanwhile, neither [latched nor without a
//! lock](Entry::read_undisturbed); else the page is held.

use std::cell::Cell;

use backend_api::{Device, racy};
use bytemuck::{cast_slice, cast_slice_mut};

use crate::array::VirtualArray;
use crate::array::range::parts;
use crate::base::element::Element;
use crate::base::error::Result;
use crate::engine::page::state::DIRTY;
use crate::engine::page::{Entry, read_fenced, read_lock_free, write_fenced, write_lock_free};

/// Longer ranges are copied while the page is held: threads that want it sleep then, and do not spin.
const MOST_BYTES: usize = 4096;

impl<T: Element, D: Device> VirtualArray<T, D> {
    /// Entry of the page of a short range, and its place there; `None` of ranges that are long, empty, not in
    /// one page, or outside.
    #[inline(always)]
    fn short_place(&self, start: usize, count: usize) -> Option<(&Entry, usize)> {
        let most = const { MOST_BYTES / size_of::<T>() };
        // An empty range is long, too.
        let behind_first = count.wrapping_sub(1);
        if behind_first >= most {
            return None;
        }
        // The sum may have wrapped: then it is less than what was added, and its place in its page as well.
        let last = start.wrapping_add(behind_first);
        let (entry, at) = match self.locate_quickly(last) {
            Some(found) => found,
            None if self.is_quick || last >= self.len() => return None,
            None => {
                let (page, at) = self.locate(last);
                (self.pager.entry(page as u64), at)
            }
        };
        Some((entry, at.checked_sub(behind_first)?))
    }

    /// Reads a short range without a lock; whether that could be done.
    #[inline(always)]
    pub(crate) fn read_short(&self, start: usize, into: &mut [T]) -> bool {
        // Single elements may be written to as words meanwhile, which accesses to bytes must not race with.
        if !racy::IN_ASSEMBLY {
            return false;
        }
        let Some((entry, at)) = self.short_place(start, into.len()) else { return false };
        // SAFETY: the frame is one of pages of `T`, and the range is within its page. Others access it
        // atomically while the gate is open.
        let read = |frame: *const u8| unsafe { read_undisturbed(entry, frame.cast::<T>().add(at), into) };
        match self.is_quick {
            true => read_lock_free::<false, _>(entry, self.counter, at, read),
            false => read_lock_free::<true, _>(entry, self.counter, at, read),
        }
        .is_some()
    }

    /// As [`read_short`](Self::read_short), if the thread has to do more for it.
    #[cold]
    pub(crate) fn read_short_fenced(&self, start: usize, into: &mut [T]) -> bool {
        if !racy::IN_ASSEMBLY {
            return false;
        }
        let Some((entry, at)) = self.short_place(start, into.len()) else { return false };
        // SAFETY: as above.
        let read = |frame: *const u8| unsafe { read_undisturbed(entry, frame.cast::<T>().add(at), into) };
        read_fenced(entry, self.counter, read).is_some()
    }

    /// Whether the thread that holds a page for a short range is to open it to reads without a lock: by
    /// chance. It costs those that write to ranges of the page some microseconds each time, and so is worth
    /// it only where many more read.
    pub(crate) fn opens_for_short(&self, count: usize) -> bool {
        thread_local! {
            static RANDOM: Cell<u32> = const { Cell::new(0) };
        }
        if !racy::IN_ASSEMBLY || !self.recency || count > MOST_BYTES / size_of::<T>() {
            return false;
        }
        let next = |random: u32| random.wrapping_mul(0x0019_660D).wrapping_add(0x3C6E_F35F);
        RANDOM.with(|random| random.replace(next(random.get()))) >> 25 == 0
    }

    /// Writes elements that nobody else reads or writes before this is done: others could see some of them
    /// without the rest. Threads that write different elements of one page do so at once.
    #[inline]
    pub(crate) fn write_unseen(&self, start: usize, from: &[T]) -> Result<()> {
        if let Some((entry, at)) = self.short_place(start, from.len()) {
            // SAFETY: the frame is one of pages of `T`, and the range is within its page. To other elements
            // of the page others may write meanwhile, and the caller vouches that to these nobody does.
            let write =
                |frame: *mut u8| unsafe { racy::write(frame.cast::<T>().add(at).cast(), cast_slice(from)) };
            let done = match self.is_quick {
                true => write_lock_free::<false, _>(entry, self.counter, at, write),
                false => write_lock_free::<true, _>(entry, self.counter, at, write),
            };
            if done.is_some() {
                return Ok(());
            }
        }
        self.write_unseen_slowly(start, from)
    }

    #[cold]
    #[inline(never)]
    fn write_unseen_slowly(&self, start: usize, from: &[T]) -> Result<()> {
        if from.len() > MOST_BYTES / size_of::<T>() || !self.recency {
            return self.write_range(start, from);
        }
        let range = self.range_at(start, from.len())?;
        for part in parts(range, self.page_len) {
            let bytes = cast_slice(&from[part.of_range]);
            let at = part.within.start;
            // SAFETY: as in `write_unseen`.
            let write = |frame: *mut u8| unsafe { racy::write(frame.cast::<T>().add(at).cast(), bytes) };
            let entry = self.pager.entry(part.page as u64);
            if write_fenced(entry, self.counter, write).is_some()
                || self.pager.write_part(part.page as u64, at * size_of::<T>(), bytes)?
            {
                continue;
            }
            self.latched(part.page, |held| {
                write(held.address);
                entry.open_writes();
                DIRTY
            })?;
        }
        Ok(())
    }
}

/// Reads elements in a frame; `None` if anybody wrote to the page meanwhile.
///
/// # Safety
/// The elements are in the frame of the entry's page, and reached under a hazard slot through an open gate.
#[inline(always)]
unsafe fn read_undisturbed<T: Element>(entry: &Entry, from: *const T, into: &mut [T]) -> Option<()> {
    // SAFETY: vouched for by the caller; what a racing write makes of them is not used.
    entry.read_undisturbed(|| unsafe { racy::read(from.cast(), cast_slice_mut(into)) })
}
