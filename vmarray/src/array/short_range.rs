//! Lock-free reads of short ranges within one page.
//!
//! To hold a page, a thread runs two locked instructions, which the processor completes before it starts
//! later ones. Each read of a short row would then wait for memory instead of overlapping with the next rows.
//! So a short range is read like an element: the thread announces the page in its hazard slot (hazard
//! pointer), without a locked instruction. The read is consistent if no thread wrote to the page meanwhile,
//! [latched or lock-free](crate::engine::page::Entry::read_undisturbed). Otherwise the thread holds the page
//! and reads again.

use std::cell::Cell;

use backend_api::{Device, racy};
use bytemuck::cast_slice;

use crate::array::VirtualArray;
use crate::array::element_place::ElementRange;
use crate::array::range::parts;
use crate::base::element::Element;
use crate::base::error::Result;
use crate::engine::page::state::DIRTY;

/// Ranges up to this size are read without a lock. A thread that reads a longer one holds the page, so that
/// waiting threads sleep instead of spinning.
const MOST_BYTES: usize = 4096;

impl<T: Element, D: Device> VirtualArray<T, D> {
    /// Returns the place of a short range; `None` if it is long, empty, in several pages, or out of bounds.
    #[inline(always)]
    fn short_place(&self, start: usize, count: usize) -> Option<ElementRange<'_, T>> {
        let most = const { MOST_BYTES / size_of::<T>() };
        // For an empty range, `behind_first` is the greatest number, so this returns as well.
        let behind_first = count.wrapping_sub(1);
        if behind_first >= most {
            return None;
        }
        // If the sum overflows, `last` is less than `start`. The offset of `last` in its page is then less
        // than `behind_first`, so the subtraction below returns `None`.
        let last = start.wrapping_add(behind_first);
        let place = match self.quick_place(last) {
            Some(found) => found,
            None if self.is_quick || last >= self.len() => return None,
            None => {
                let (page, at) = self.locate(last);
                self.place(page as u64, at)
            }
        };
        place.with_those_before(behind_first)
    }

    /// Reads a short range without a lock; returns true on success.
    #[inline(always)]
    pub(crate) fn read_short(&self, start: usize, into: &mut [T]) -> bool {
        if !racy::IN_ASSEMBLY {
            return false;
        }
        let Some(range) = self.short_place(start, into.len()) else { return false };
        match self.is_quick {
            true => range.read_lock_free::<false>(self.counter, into),
            false => range.read_lock_free::<true>(self.counter, into),
        }
    }

    /// Reads as [`read_short`](Self::read_short), but also for a thread that is not registered yet.
    #[cold]
    pub(crate) fn read_short_fenced(&self, start: usize, into: &mut [T]) -> bool {
        if !racy::IN_ASSEMBLY {
            return false;
        }
        self.short_place(start, into.len()).is_some_and(|range| range.read_fenced(self.counter, into))
    }

    /// Returns true, at random, if a thread that holds a page for a short range should open it to lock-free
    /// reads. Opening costs writers of ranges of the page some microseconds each time, so it pays only with
    /// many more reads.
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

    /// Writes elements that no other thread may access before the return, because it could see a part of an
    /// element. Threads may write different elements of one page at the same time.
    #[inline]
    pub(crate) fn write_unseen(&self, start: usize, from: &[T]) -> Result<()> {
        if let Some(range) = self.short_place(start, from.len()) {
            let is_done = match self.is_quick {
                true => range.write_lock_free::<false>(self.counter, from),
                false => range.write_lock_free::<true>(self.counter, from),
            };
            if is_done {
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
            let (from, at) = (&from[part.of_range], part.within.start);
            let range = self.range_place(part.page as u64, at, from.len());
            if range.write_fenced(self.counter, from)
                || self.pager.write_part(part.page as u64, at * size_of::<T>(), cast_slice(from))?
            {
                continue;
            }
            self.latched(part.page, |held| {
                held.write(&range, from);
                self.pager.entry(part.page as u64).open_writes();
                DIRTY
            })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use backend_host::HostDevice;

    use super::*;
    use crate::array::testing::host;
    use crate::engine::page::state::{READERS, WRITERS};
    use crate::ops::view::{View as _, ViewMut as _};

    /// An array with pages of 16 elements.
    fn array(len: usize) -> VirtualArray<u64, HostDevice> {
        VirtualArray::<u64>::builder(len).page_len(16).devices([Arc::new(host())]).build().unwrap()
    }

    fn is_open(array: &VirtualArray<u64, HostDevice>, bits: u64) -> bool {
        array.pager.entry(0).state(Ordering::Acquire).any(bits)
    }

    #[test]
    fn a_page_is_opened_by_many_short_reads_and_shut_by_a_write() {
        let array = array(40);
        array.write(0, &[1; 40]).unwrap();
        for round in 1..4 {
            for start in (0..10_000).map(|turn| turn % 12) {
                let mut read = [0; 4];
                array.read(start, &mut read).unwrap();
                assert_eq!(read, [round; 4]);
            }
            assert_eq!(is_open(&array, READERS), racy::IN_ASSEMBLY);
            array.write(0, &[round + 1; 16]).unwrap();
            assert!(!is_open(&array, READERS));
        }
    }

    #[test]
    fn short_reads_end_where_the_array_does() {
        let array = array(20);
        array.write(0, &(0..20).collect::<Vec<_>>()).unwrap();
        let mut read = [0; 3];
        for _ in 0..2000 {
            array.read(14, &mut read).unwrap();
            assert_eq!(read, [14, 15, 16]);
            array.read(17, &mut read).unwrap();
            assert_eq!(read, [17, 18, 19]);
            array.read(20, &mut []).unwrap();
            for start in [18, 20, usize::MAX - 2, usize::MAX - 1, usize::MAX] {
                assert!(array.read(start, &mut read).is_err(), "{start}");
            }
        }
    }

    /// Elements are set in order, repeatedly: at any moment, elements up to the last set one exceed later
    /// ones by one.
    #[test]
    fn elements_of_a_short_read_are_of_one_moment() {
        let (array, is_over) = (array(16), AtomicBool::new(false));
        let rounds = if cfg!(miri) { 3 } else { 3000 };
        std::thread::scope(|threads| {
            for _ in 0..2 {
                threads.spawn(|| {
                    let mut before = [0; 8];
                    while !is_over.load(Ordering::Relaxed) {
                        let mut read = [0; 8];
                        array.read(3, &mut read).unwrap();
                        assert!(read.is_sorted_by(|a, b| a >= b) && read[0] - read[7] <= 1, "{read:?}");
                        assert!(read >= before, "{before:?} {read:?}");
                        before = read;
                    }
                });
            }
            for round in 1..rounds {
                if round % 3 == 0 {
                    array.write(3, &[round; 8]).unwrap();
                } else {
                    (3..11).for_each(|index| array.set(index, round).unwrap());
                }
                // Let a reader open the page from time to time.
                if round % 100 == 0 {
                    let mut read = [0; 8];
                    (0..500).for_each(|_| array.read(3, &mut read).unwrap());
                }
            }
            is_over.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn writes_without_a_read_are_stored() {
        let array = array(200);
        std::thread::scope(|threads| {
            for thread in 0..4 {
                let array = &array;
                threads.spawn(move || {
                    for start in (thread * 5..200).step_by(20) {
                        array.write_unseen(start, &[start as u64; 5]).unwrap();
                        if start % 3 == 0 {
                            array.flush(..).unwrap();
                        }
                    }
                });
            }
        });
        array.write_unseen(0, &[]).unwrap();
        assert!(
            array.write_unseen(198, &[0; 3]).is_err() && array.write_unseen(usize::MAX, &[0; 3]).is_err()
        );
        let expected: Vec<u64> = (0..200).map(|at| at / 5 * 5).collect();
        assert_eq!(array.to_vec(..).unwrap(), expected);
        array.write_unseen(0, &[7]).unwrap();
        array.write_unseen(1, &[7]).unwrap();
        assert!(is_open(&array, WRITERS));
        array.evict(..).unwrap();
        assert_eq!(array.to_vec(..3).unwrap(), [7, 7, 0]);
    }
}
