//! Runs and groups of sorted arrays that pass through RAM block by block, for arrays in files, and for
//! devices without a kernel for it.

use backend_api::Device;
use vmarray_kernel::Function;

use super::in_ram::PART;
use crate::array::VirtualArray;
use crate::base::element::Element;
use crate::base::error::Result;
use crate::base::memory::zeroed_vec;
use crate::base::scoped_threads::CORES;
use crate::engine::shared_work::for_each;
use crate::ops::sort::SortKey;
use crate::ops::view::{INTERNAL, Store as _};

/// Calls `found` with the index and the element that begin each run of equal elements in part `part`.
fn runs_of_part<T: SortKey, D: Device>(
    sorted: &VirtualArray<T, D>,
    part: usize,
    mut found: impl FnMut(usize, T),
) -> Result<()> {
    let (start, end) = (part * PART, sorted.len().min((part + 1) * PART));
    // Also read the element before the part.
    let first = start.saturating_sub(1);
    let mut read = zeroed_vec::<T>(end - first)?;
    sorted.read_range(first, &mut read)?;
    if start == 0 {
        found(0, read[0]);
    }
    let elements: &[T::KeyBits] = bytemuck::cast_slice(&read);
    for (at, pair) in elements.windows(2).enumerate() {
        if pair[0] != pair[1] {
            found(first + at + 1, read[at + 1]);
        }
    }
    Ok(())
}

/// Returns an array with the result of `of` for the start of each run of equal elements, given its index and
/// element, and then `more` zeroes.
pub(super) fn listed<T: SortKey, U: Element, D: Device>(
    sorted: &VirtualArray<T, D>,
    more: usize,
    of: impl Fn(usize, T) -> U + Sync,
) -> Result<VirtualArray<U, D>> {
    let mut begun = vec![0; sorted.len().div_ceil(PART)];
    for_each(*CORES, begun.iter_mut().enumerate(), |(part, begun): (_, &mut usize)| {
        runs_of_part(sorted, part, |_, _| *begun += 1)
    })?;
    let out = sorted.array_like::<U>(begun.iter().sum::<usize>() + more, INTERNAL)?;
    let starts = begun.iter().scan(0, |next, begun| {
        let start = *next;
        *next += begun;
        Some(start)
    });
    for_each(*CORES, starts.enumerate(), |(part, start)| {
        let mut results = Vec::with_capacity(begun[part]);
        runs_of_part(sorted, part, |at, element| results.push(of(at, element)))?;
        out.write_range(start, &results)
    })?;
    Ok(out)
}

/// Reads an array from its start on.
struct Reader<'a, T: Element, D: Device> {
    of: &'a VirtualArray<T, D>,
    /// The index of the first element behind the block.
    next: usize,
    block: Vec<T>,
    /// The number of elements of the block that were returned.
    at: usize,
}

impl<'a, T: Element, D: Device> Reader<'a, T, D> {
    fn new(of: &'a VirtualArray<T, D>) -> Self {
        Self { of, next: 0, block: Vec::new(), at: 0 }
    }

    fn next(&mut self) -> Result<T> {
        if self.at == self.block.len() {
            self.block = zeroed_vec(PART.min(self.of.len() - self.next))?;
            self.of.read_range(self.next, &mut self.block)?;
            (self.next, self.at) = (self.next + self.block.len(), 0);
        }
        self.at += 1;
        Ok(self.block[self.at - 1])
    }
}

/// Writes an array from its start on.
struct Writer<'a, T: Element, D: Device> {
    to: &'a VirtualArray<T, D>,
    next: usize,
    block: Vec<T>,
}

impl<'a, T: Element, D: Device> Writer<'a, T, D> {
    fn new(to: &'a VirtualArray<T, D>) -> Self {
        Self { to, next: 0, block: Vec::with_capacity(PART.min(to.len())) }
    }

    fn push(&mut self, element: T) -> Result<()> {
        self.block.push(element);
        if self.block.len() == self.block.capacity() { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<()> {
        self.to.write_range(self.next, &self.block)?;
        self.next += self.block.len();
        self.block.clear();
        Ok(())
    }
}

/// Reduces pieces of `piece` values of each group, in ascending order. Returns the results, and the index of
/// each group's first result, followed by their number.
pub(super) fn reduced<T, R, F, O, D>(
    piece: u64,
    values: &VirtualArray<T, D>,
    starts: &VirtualArray<u64, D>,
) -> Result<(VirtualArray<R, D>, VirtualArray<u64, D>)>
where
    T: SortKey,
    R: SortKey,
    F: Function<(T,), R>,
    O: Function<(R, R), R>,
    D: Device,
{
    let firsts = starts.array_like::<u64>(starts.len(), INTERNAL)?;
    let (mut read, mut write) = (Reader::new(starts), Writer::new(&firsts));
    let (mut start, mut count) = (read.next()?, 0);
    write.push(count)?;
    for _ in 1..starts.len() {
        let end = read.next()?;
        count += (end - start).div_ceil(piece);
        write.push(count)?;
        start = end;
    }
    write.flush()?;
    let out = starts.array_like::<R>(count as usize, INTERNAL)?;
    let (mut starts, mut values, mut write) = (Reader::new(starts), Reader::new(values), Writer::new(&out));
    let mut start = starts.next()?;
    while write.next + write.block.len() < out.len() {
        let end = starts.next()?;
        while start < end {
            let piece_end = end.min(start + piece);
            let mut all = F::call((values.next()?,));
            for _ in start + 1..piece_end {
                all = O::call((all, F::call((values.next()?,))));
            }
            write.push(all)?;
            start = piece_end;
        }
    }
    write.flush()?;
    Ok((out, firsts))
}
