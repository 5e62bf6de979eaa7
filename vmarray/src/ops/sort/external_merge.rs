//! Merge sort for elements that no single device can hold. Pieces are sorted in RAM, then merged in place.
//!
//! Two adjacent sorted pieces without values are merged in a stream if the shorter piece fits into RAM.
//! Pieces with values are merged in RAM if both fit. Otherwise the merge is divided into two halves. A search
//! finds the elements of the first half, a rotation moves them to the front, and each half is merged
//! separately: K. Dudzinski, A. Dydek, "On a stable minimum storage merging algorithm", 1981. The rotation
//! swaps blocks: D. Gries, H. Mills, "Swapping sections", 1981.

mod rows;
mod stream;
mod through_file;

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use bytemuck::cast_slice_mut;
use vmarray_support::backends::ram::SystemMemory;

use self::rows::{PieceMemory, RowSorting, SomeRows};
use super::keys::{KeyOrder, SortKey};
use super::on_host;
use crate::base::error::Result;
use crate::base::progress::in_steps;
use crate::base::scoped_threads::{CORES, each};
use crate::base::scratch_pool::ScratchVec;
use crate::ops::executor::{Operand, OperandStore};
use crate::ops::view::{INTERNAL, StoreMut};

/// The bytes of a piece that is sorted in RAM, in addition to scratch memory of the same size. A piece is
/// longer if half of the free RAM then remains.
const PIECE_BYTES: usize = if cfg!(test) { 2 << 10 } else { 1 << 30 };
/// The least bytes of a piece. If memory does not suffice for it, the sort returns an error.
const PIECE_BYTES_MIN: usize = if cfg!(test) { 2 << 10 } else { 1 << 20 };

/// Returns the bytes of a piece of a store that is sorted in RAM, in addition to scratch memory of the same
/// size.
pub(crate) fn bytes_in_ram(of: &dyn OperandStore) -> usize {
    if of.is_in_files() {
        return through_file::BYTES / 2;
    }
    let free = if cfg!(test) { None } else { SystemMemory::of_linux() };
    let quarter = free.map_or(0, |free| usize::try_from(free.usable_bytes() / 4).unwrap_or(usize::MAX));
    PIECE_BYTES.max(quarter)
}

/// Sorts the elements of a range of a store, and permutes optional values in the same way.
pub(super) fn sort<T: SortKey, S: StoreMut<Element = T>>(
    store: &S,
    range: &Range<usize>,
    values: Option<Operand<'_>>,
    order: KeyOrder,
) -> Result<()> {
    if is_in_order(store, range, order)? {
        return Ok(());
    }
    let stride = values.map_or(0, |values| values.stride());
    let of_each = size_of::<T>() + stride;
    let target = store.as_target(INTERNAL);
    let (piece, beside) = RowSorting::<T, S>::piece_through_file(range.len(), stride);
    if target.is_in_files() && range.len() > piece {
        let (piece, beside) = (PieceMemory::new(piece, stride)?, PieceMemory::new(beside, stride)?);
        let done = in_steps(2 * (range.len() * of_each) as u64, |steps| {
            let mut sorting = RowSorting { store, first: range.start, values, order, steps, piece, beside };
            sorting.sort_through_file(range)
        });
        if done? {
            return Ok(());
        }
    }
    // The permutation of values has 32-bit indices. Pieces with values can therefore not be longer.
    let most = if stride == 0 { usize::MAX } else { u32::MAX as usize };
    let mut piece = range.len().min((bytes_in_ram(target) / of_each).clamp(2, most));
    let (piece, beside) = loop {
        match PieceMemory::new(piece, stride).and_then(|one| Ok((one, PieceMemory::new(piece, stride)?))) {
            Err(_) if piece * of_each / 2 >= PIECE_BYTES_MIN => piece /= 2,
            memory => break memory?,
        }
    };
    let len = piece.keys.len();
    let rounds = 1 + range.len().div_ceil(len).next_power_of_two().ilog2() as usize;
    in_steps((range.len() * of_each * rounds) as u64, |steps| {
        let mut sorting = RowSorting { store, first: range.start, values, order, steps, piece, beside };
        let mut starts: Vec<usize> = range.clone().step_by(len).collect();
        for start in &starts {
            sorting.sort_piece(*start..(start + len).min(range.end))?;
        }
        starts.push(range.end);
        while starts.len() > 2 {
            for at in (0..starts.len() - 2).step_by(2) {
                sorting.merge(starts[at], starts[at + 1], starts[at + 2])?;
            }
            // Each merge has joined two adjacent sorted runs, so only every other start remains.
            let last = starts.len() - 1;
            let is_kept = |at: usize| at.is_multiple_of(2) || at == last;
            starts = (0..=last).filter(|at| is_kept(*at)).map(|at| starts[at]).collect();
        }
        Ok(())
    })
}

/// Returns true if the elements are already in order. Stops soon after the first two elements out of order.
fn is_in_order<T: SortKey, S: StoreMut<Element = T>>(
    store: &S,
    range: &Range<usize>,
    order: KeyOrder,
) -> Result<bool> {
    /// The number of elements in the first read, and in the longest read.
    const FIRST: usize = 4 << 10;
    const MOST: usize = 512 << 10;
    /// Number of elements that a thread compares at a time.
    const PART: usize = 32 << 10;
    let key = |element: &T| order.key::<T::KeyBits>(bytemuck::cast(*element));
    let mut read = ScratchVec::<T>::unspecified(range.len().min(MOST + 1))?;
    let (mut start, mut at_once) = (range.start, FIRST);
    while start + 1 < range.end {
        // Read one element more than the part, to compare the part's last element with the next part's first.
        let read = &mut read[..(range.end - start).min(at_once + 1)];
        store.read_at(start, read, INTERNAL)?;
        let (read, are_sorted) = (&*read, AtomicBool::new(true));
        each(*CORES, read.len().div_ceil(PART), |number| {
            let part = &read[number * PART..read.len().min((number + 1) * PART + 1)];
            if !part.is_sorted_by(|one, two| key(one) <= key(two)) {
                are_sorted.store(false, Ordering::Relaxed);
            }
        });
        if !are_sorted.into_inner() {
            return Ok(false);
        }
        (start, at_once) = (start + at_once, MOST.min(4 * at_once));
    }
    Ok(true)
}

impl<T: SortKey, S: StoreMut<Element = T>> RowSorting<'_, T, S> {
    fn sort_piece(&mut self, range: Range<usize>) -> Result<()> {
        self.report(range.len())?;
        self.with_memory(range.len(), |this, mut rows, beside| {
            this.read(range.start, &mut rows)?;
            let sorted = this.sorted(rows, beside)?;
            this.write_all(range.start, &sorted)
        })
    }

    /// Sorts rows in RAM. The sort is stable if the rows have values.
    fn sorted<'r>(&self, rows: SomeRows<'r, T>, beside: SomeRows<'r, T>) -> Result<SomeRows<'r, T>> {
        let keys: &mut [T::KeyBits] = cast_slice_mut(&mut *rows.keys);
        let (order, steps) = (self.order, self.steps);
        match self.stride() {
            0 => on_host::sort(keys, cast_slice_mut(beside.keys), order, *CORES, steps)?,
            4 => {
                on_host::sort_pairs(keys, cast_slice_mut::<_, u32>(&mut *rows.values), order, *CORES, steps)?;
            }
            8 => {
                on_host::sort_pairs(keys, cast_slice_mut::<_, u64>(&mut *rows.values), order, *CORES, steps)?;
            }
            stride => {
                let mut numbers = ScratchVec::<u32>::unspecified(keys.len())?;
                (0..).zip(&mut *numbers).for_each(|(number, to)| *to = number);
                on_host::sort_pairs(keys, &mut numbers, order, *CORES, steps)?;
                permute(rows.values, beside.values, stride, &numbers);
                return Ok(SomeRows { keys: rows.keys, values: beside.values });
            }
        }
        Ok(rows)
    }

    /// Merges two neighbouring sorted ranges in place.
    fn merge(&mut self, start: usize, middle: usize, end: usize) -> Result<()> {
        if start == middle || middle == end || self.key_at(middle - 1)? <= self.key_at(middle)? {
            return Ok(());
        }
        if self.values.is_none() && (middle - start).min(end - middle) <= self.piece.keys.len() {
            return stream::merge(self, start, middle, end);
        }
        if end - start <= self.piece.keys.len() {
            return self.merge_in_ram(start, middle, end);
        }
        let half = (end - start) / 2;
        // Search for the number of elements of the first range that belong to the first half of the result.
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

    fn merge_in_ram(&mut self, start: usize, middle: usize, end: usize) -> Result<()> {
        self.report(end - start)?;
        let stride = self.stride();
        self.with_memory(end - start, |this, mut both, merged| {
            this.read(start, &mut both)?;
            let (mut one, mut two) = (0, middle - start);
            let ends = (two, end - start);
            for (number, to) in merged.keys.iter_mut().enumerate() {
                let is_second =
                    one == ends.0 || two < ends.1 && this.key(both.keys[two]) < this.key(both.keys[one]);
                let from = if is_second { &mut two } else { &mut one };
                *to = both.keys[*from];
                let value = &both.values[*from * stride..][..stride];
                merged.values[number * stride..][..stride].copy_from_slice(value);
                *from += 1;
            }
            this.write_all(start, &merged)
        })
    }

    /// Exchanges two neighbouring ranges, which may differ in length.
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

    /// Swaps the `len` elements from `one` on with the `len` elements from `two` on.
    fn swap(&mut self, one: usize, two: usize, len: usize) -> Result<()> {
        let at_once = self.piece.keys.len();
        (0..len).step_by(at_once).try_for_each(|at| {
            let (one, two) = (one + at, two + at);
            self.with_memory(at_once.min(len - at), |this, mut of_one, mut of_two| {
                this.report(0)?;
                this.read(one, &mut of_one)?;
                this.read(two, &mut of_two)?;
                let swapped = this.write(one, &of_two).and_then(|()| this.write(two, &of_one));
                // If the swap fails, write both ranges back from the buffers, so that no element is lost.
                let Err(error) = swapped else { return Ok(()) };
                let back = [(one, &of_one), (two, &of_two)].map(|(at, rows)| this.write_all(at, rows));
                back.into_iter().collect::<Result<()>>().and(Err(error))
            })
        })
    }
}

/// Copies values of `stride` bytes in the order of `numbers`: the value number `numbers[0]` comes first.
fn permute(from: &[u8], to: &mut [u8], stride: usize, numbers: &[u32]) {
    for (to, number) in to.chunks_exact_mut(stride).zip(numbers) {
        to.copy_from_slice(&from[*number as usize * stride..][..stride]);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use backend_api::Device;
    use backend_api::wrap::{Fault, Operation, SplitMix64};
    use vmarray_conformance::wrap::Faulty;
    use vmarray_store::FileDevice;

    use super::*;
    use crate::AnyDevice;
    use crate::host::HostDevice;
    use crate::prelude::*;

    #[test]
    fn elements_longer_than_their_ram_are_sorted() {
        let mut random = SplitMix64::new(3);
        for round in 0..60 {
            // The array has up to 20 pieces of 512 elements.
            let len = random.index(10_000);
            let device = || match round % 2 {
                0 => Arc::new(AnyDevice::from(in_ram())),
                _ => Arc::new(AnyDevice::from(in_a_file())),
            };
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

    /// Repeats some work on keys and values. Each time, `in_a_row` consecutive calls fail, from a later call
    /// on, until the failures are behind the work. No row may be lost. Returns the number of failures of the
    /// work.
    fn failing<D: Device>(
        of: impl Fn() -> D,
        rows: &[(u32, u64)],
        in_a_row: u64,
        work: impl Fn(&VirtualArray<u32, Faulty<D>>, &VirtualArray<u64, Faulty<D>>) -> Result<()>,
        check: impl Fn(&[(u32, u64)]) -> bool,
    ) -> usize {
        let (unsorted, numbers): (Vec<u32>, Vec<u64>) = rows.iter().copied().unzip();
        let (mut call, mut failures) = (1, 0);
        loop {
            let device = Arc::new(Faulty::new(of()));
            let keys = VirtualArray::<u32>::builder(rows.len()).devices([Arc::clone(&device)]).page_len(33);
            let values = VirtualArray::<u64>::builder(rows.len()).devices([Arc::clone(&device)]).page_len(40);
            let keys = keys.cache_bytes(800).build().unwrap();
            let values = values.cache_bytes(1600).build().unwrap();
            keys.write(0, &unsorted).unwrap();
            values.write(0, &numbers).unwrap();
            for later in 0..in_a_row {
                let fault = Fault::new(Operation::Submit, crate::device::ErrorKind::CopyFailed);
                device.inject(fault.on_call(call + later));
            }
            let done = work(&keys, &values);
            device.clear();
            let found = keys.to_vec(..).unwrap().into_iter().zip(values.to_vec(..).unwrap());
            let mut found: Vec<(u32, u64)> = found.collect();
            if done.is_ok() {
                assert!(check(&found), "call {call}");
            }
            if device.injected() == 0 {
                done.unwrap();
                return failures;
            }
            failures += usize::from(done.is_err());
            found.sort_unstable_by_key(|row| row.1);
            assert!(found == rows, "call {call}: {done:?}");
            call += 1 + call / 20;
        }
    }

    fn in_ram() -> HostDevice {
        HostDevice::new(1 << 20).unwrap()
    }

    fn in_a_file() -> FileDevice {
        FileDevice::builder(std::env::temp_dir()).create_temporary(1 << 20).unwrap()
    }

    fn random_rows(len: u64) -> Vec<(u32, u64)> {
        let mut random = SplitMix64::new(5);
        (0..len).map(|at| (random.next() as u32 % 100, at)).collect()
    }

    #[test]
    fn a_sort_that_fails_loses_nothing() {
        let sort = |keys: &VirtualArray<u32, _>, values: &VirtualArray<u64, _>| keys.sort_with(.., values);
        // The sort is stable for equal keys, too.
        let failures = failing(in_ram, &random_rows(1500), 1, sort, |rows| rows.is_sorted());
        assert!(failures > 20, "{failures}");
        let sort = |keys: &VirtualArray<u32, _>, values: &VirtualArray<u64, _>| keys.sort_with(.., values);
        let failures = failing(in_a_file, &random_rows(3000), 1, sort, |rows| rows.is_sorted());
        assert!(failures > 20, "{failures}");
    }

    #[test]
    fn elements_that_change_places_are_not_lost_even_if_a_copy_fails_twice() {
        let rows = random_rows(600);
        let swap = |keys: &VirtualArray<u32, _>, values: &VirtualArray<u64, _>| {
            let memory = || PieceMemory::new(70, 8);
            let values = Some(Operand::changed(values, 0));
            let (order, piece, beside) = (KeyOrder::of::<u32>(false), memory()?, memory()?);
            in_steps(0, |steps| {
                RowSorting { store: keys, first: 0, values, order, steps, piece, beside }.swap(20, 320, 250)
            })
        };
        let expected: Vec<_> =
            [&rows[..20], &rows[320..570], &rows[270..320], &rows[20..270], &rows[570..]].concat();
        let failures = failing(in_ram, &rows, 2, swap, |found| found == expected);
        assert!(failures > 5, "{failures}");
    }

    #[test]
    fn values_of_any_length_go_with_their_keys() {
        let mut random = SplitMix64::new(4);
        for round in 0..80 {
            let len = random.index(6000);
            let device = || match round % 2 {
                0 => Arc::new(AnyDevice::from(in_ram())),
                _ => Arc::new(AnyDevice::from(in_a_file())),
            };
            let keys = VirtualArray::<i16>::builder(len).devices([device(), device()]).page_len(33);
            let values = VirtualArray::<[u8; 7]>::builder(len + 2).devices([device()]).page_len(40);
            let (keys, values) = (keys.build().unwrap(), values.build().unwrap());
            let most = [2, 300, 1 << 16][round % 3];
            let unsorted: Vec<i16> = (0..len).map(|_| (random.next() % most) as i16).collect();
            keys.write(0, &unsorted).unwrap();
            let number = |at: usize| {
                let [a, b, ..] = (at as u16).to_le_bytes();
                [a, 1, 2, 3, 4, 5, b]
            };
            values.write(1, &(0..len).map(number).collect::<Vec<_>>()).unwrap();
            keys.sort_with(.., values.section_mut(1..=len).unwrap()).unwrap();
            let mut expected: Vec<(i16, usize)> = unsorted.into_iter().zip(0..).collect();
            expected.sort_by_key(|(key, _)| *key);
            let (sorted, numbers): (Vec<i16>, Vec<_>) =
                expected.into_iter().map(|(key, at)| (key, number(at))).unzip();
            assert_eq!(keys.to_vec(..).unwrap(), sorted);
            assert_eq!(values.to_vec(1..=len).unwrap(), numbers);
            assert_eq!((values.get(0).unwrap(), values.get(len + 1).unwrap()), ([0; 7], [0; 7]));
        }
    }

    #[test]
    fn values_of_which_few_fit_into_ram_are_sorted() {
        let mut random = SplitMix64::new(6);
        for len in [2, 9, 100, 700] {
            let keys = VirtualArray::<u16>::builder(len).devices([Arc::new(in_a_file())]).build().unwrap();
            let values = VirtualArray::<[u8; 600]>::builder(len).devices([Arc::new(in_a_file())]).page_len(1);
            let values = values.build().unwrap();
            let unsorted: Vec<u16> = (0..len).map(|_| random.next() as u16).collect();
            keys.write(0, &unsorted).unwrap();
            let value = |key: &u16| [(*key % 251) as u8; 600];
            values.write(0, &unsorted.iter().map(value).collect::<Vec<_>>()).unwrap();
            keys.sort_with(.., &values).unwrap();
            let sorted = keys.to_vec(..).unwrap();
            assert!(sorted.is_sorted());
            assert!(values.to_vec(..).unwrap().iter().eq(&sorted.iter().map(value).collect::<Vec<_>>()));
        }
    }
}
