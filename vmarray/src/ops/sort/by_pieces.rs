//! Sorting elements that no single device has: pieces that fit into RAM, which are then merged where they
//! are.
//!
//! Two sorted neighbours are merged while they stream by if the shorter one fits into RAM. Else the first half
//! of what they come to is found by a search, brought in front of the second by a rotation, and each half
//! merged by itself: K. Dudzinski, A. Dydek, "On a stable minimum storage merging algorithm", 1981. The
//! rotation swaps blocks: D. Gries, H. Mills, "Swapping sections", 1981.

mod stream;

use std::ops::Range;

use backend_api::backends::ram::SystemMemory;

use super::{Order, SortKey, on_host};
use crate::base::error::Result;
use crate::base::memory::zeroed_vec_large;
use crate::base::scoped_threads::CORES;
use crate::ops::shift::interrupted;
use crate::ops::view::{INTERNAL, StoreMut};

/// How many bytes are sorted at once, if there is RAM; as many again are used beside them, and more if that
/// leaves half of it free.
const PIECE_BYTES: usize = if cfg!(test) { 2 << 10 } else { 1 << 30 };
/// What is tried at least.
const PIECE_BYTES_MIN: usize = if cfg!(test) { 2 << 10 } else { 1 << 20 };

/// Sorts the elements of a range of a store.
pub(super) fn sort<T: SortKey, S: StoreMut<Element = T>>(
    store: &S,
    range: &Range<usize>,
    order: Order,
) -> Result<()> {
    let free = if cfg!(test) { None } else { SystemMemory::of_linux() };
    let quarter = free.map_or(0, |free| usize::try_from(free.usable_bytes() / 4).unwrap_or(usize::MAX));
    let mut piece = range.len().min(PIECE_BYTES.max(quarter) / size_of::<T>());
    let (piece, beside) = loop {
        match zeroed_vec_large(piece).and_then(|one| Ok((one, zeroed_vec_large(piece)?))) {
            Err(_) if piece * size_of::<T>() / 2 >= PIECE_BYTES_MIN => piece /= 2,
            memory => break memory?,
        }
    };
    let mut sorting = BySorting { store, order, piece, beside };
    let len = sorting.piece.len();
    let mut starts: Vec<usize> = range.clone().step_by(len).collect();
    for start in &starts {
        sorting.sort_piece(*start..(start + len).min(range.end))?;
    }
    starts.push(range.end);
    while starts.len() > 2 {
        for at in (0..starts.len() - 2).step_by(2) {
            sorting.merge(starts[at], starts[at + 1], starts[at + 2])?;
        }
        // Those that are merged begin where every other one began.
        let last = starts.len() - 1;
        starts =
            starts.iter().enumerate().filter(|(at, _)| at % 2 == 0 || *at == last).map(|(_, s)| *s).collect();
    }
    Ok(())
}

struct BySorting<'a, T: SortKey, S> {
    store: &'a S,
    order: Order,
    piece: Vec<T>,
    beside: Vec<T>,
}

impl<T: SortKey, S: StoreMut<Element = T>> BySorting<'_, T, S> {
    fn key(&self, element: T) -> u64 {
        self.order.key::<T::KeyBits>(bytemuck::cast(element))
    }

    fn key_at(&self, place: usize) -> Result<u64> {
        Ok(self.key(self.store.get_at(place, INTERNAL)?))
    }

    fn read(&self, place: usize, into: &mut [T]) -> Result<()> {
        self.store.read_at(place, into, INTERNAL)
    }

    fn write(&self, place: usize, from: &[T]) -> Result<()> {
        self.store.write_at(place, from, INTERNAL)
    }

    fn sort_piece(&mut self, range: Range<usize>) -> Result<()> {
        let (mut piece, mut beside) = (std::mem::take(&mut self.piece), std::mem::take(&mut self.beside));
        let (keys, others) = (&mut piece[..range.len()], &mut beside[..range.len()]);
        let done = self.read(range.start, keys).and_then(|()| {
            let bits: &mut [T::KeyBits] = bytemuck::cast_slice_mut(keys);
            on_host::sort(bits, bytemuck::cast_slice_mut(others), self.order, *CORES)?;
            self.write_all(range.start, keys)
        });
        (self.piece, self.beside) = (piece, beside);
        done
    }

    /// Writes elements that are nowhere else: once more, if that fails.
    fn write_all(&self, place: usize, elements: &[T]) -> Result<()> {
        let Err(error) = self.write(place, elements) else { return Ok(()) };
        match self.write(place, elements) {
            Ok(()) => Err(error),
            Err(_) => Err(interrupted(error, 0..0, place..place + elements.len())),
        }
    }

    /// Merges two sorted neighbours.
    fn merge(&mut self, start: usize, middle: usize, end: usize) -> Result<()> {
        if start == middle || middle == end || self.key_at(middle - 1)? <= self.key_at(middle)? {
            return Ok(());
        }
        if (middle - start).min(end - middle) <= self.piece.len() {
            return stream::merge(self, start, middle, end);
        }
        let half = (end - start) / 2;
        // How many elements of the first are among that many.
        let (mut least, mut most) = (half.saturating_sub(end - middle), half.min(middle - start));
        while least < most {
            let taken = least.midpoint(most);
            if self.key_at(start + taken)? <= self.key_at(middle + half - taken - 1)? {
                least = taken + 1;
            } else {
                most = taken;
            }
        }
        let (first, second) = (start + least, middle + half - least);
        self.rotate(first, middle, second)?;
        self.merge(start, first, start + half)?;
        self.merge(start + half, second, end)
    }

    /// Has two neighbours change places.
    fn rotate(&mut self, mut start: usize, mut middle: usize, end: usize) -> Result<()> {
        while start < middle && middle < end {
            let (first, second) = (middle - start, end - middle);
            let swapped = first.min(second);
            self.swap(start, middle, swapped)?;
            start += swapped;
            if swapped == first {
                middle += swapped;
            }
        }
        Ok(())
    }

    /// Swaps so many elements.
    fn swap(&mut self, one: usize, two: usize, len: usize) -> Result<()> {
        let (mut piece, mut beside) = (std::mem::take(&mut self.piece), std::mem::take(&mut self.beside));
        let done = (0..len).step_by(piece.len()).try_for_each(|at| {
            let here = piece.len().min(len - at);
            let (of_one, of_two) = (&mut piece[..here], &mut beside[..here]);
            self.read(one + at, of_one)?;
            self.read(two + at, of_two)?;
            self.write_all(one + at, of_two)?;
            self.write_all(two + at, of_one)
        });
        (self.piece, self.beside) = (piece, beside);
        done
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use backend_api::wrap::SplitMix64;

    use crate::prelude::*;

    #[test]
    fn what_is_longer_than_the_ram_for_it_is_merged_in_place() {
        let mut random = SplitMix64::new(3);
        for round in 0..60 {
            // Up to 20 pieces of 512 elements.
            let len = random.index(10_000);
            let device = || Arc::new(crate::host::HostDevice::new(1 << 20).unwrap());
            let array = VirtualArray::<u32>::builder(len + 9).devices([device(), device()]).page_len(33);
            let array = array.build().unwrap();
            let most = [2, 300, u32::MAX][round % 3];
            let mut values: Vec<u32> = (0..len).map(|_| random.next() as u32 % most).collect();
            match round % 5 {
                3 => values.sort_unstable(),
                4 => values.sort_unstable_by(|one, two| two.cmp(one)),
                _ => {}
            }
            array.write(5, &values).unwrap();
            array.sort(5..len + 5).unwrap();
            values.sort_unstable();
            assert_eq!(array.to_vec(5..len + 5).unwrap(), values);
            assert_eq!(array.to_vec(len + 5..).unwrap(), [0; 4]);
        }
    }
}
