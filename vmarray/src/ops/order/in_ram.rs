//! `unique` and `group_by` in RAM, for arrays without GPUs. The results have the same bits as the results of
//! devices.

use std::ops::Range;

use backend_api::Device;
use vmarray_kernel::Function;

use crate::array::VirtualArray;
use crate::base::error::Result;
use crate::base::memory::zeroed_vec;
use crate::base::scoped_threads::CORES;
use crate::base::scratch_pool::ScratchVec;
use crate::engine::shared_work::for_each;
use crate::ops::executor::OperandStore;
use crate::ops::sort::{SortKey, bytes_in_ram};

/// The number of elements that a thread processes at a time.
pub(super) const PART: usize = if cfg!(test) { 100 } else { 64 << 10 };

/// Returns true if an operation that needs this number of bytes is faster in RAM than on the store's devices.
pub(super) fn is_better(of: &dyn OperandStore, bytes: usize) -> bool {
    !of.devices().iter().any(|(device, _)| device.info().kind.is_gpu()) && bytes <= bytes_in_ram(of)
}

pub(super) struct EqualRuns<'a, B> {
    sorted: &'a [B],
    /// The number of runs that begin in each part.
    begun: Vec<usize>,
}

impl<'a, B: Copy + PartialEq + Sync> EqualRuns<'a, B> {
    pub(super) fn of(sorted: &'a [B]) -> Result<Self> {
        let mut begun = vec![0; sorted.len().div_ceil(PART)];
        for_each(*CORES, begun.iter_mut().zip((0..).step_by(PART)), |(begun, start): (_, usize)| {
            let part = &sorted[start.saturating_sub(1)..sorted.len().min(start + PART)];
            *begun = usize::from(start == 0) + part.windows(2).filter(|pair| pair[0] != pair[1]).count();
            Ok(())
        })?;
        Ok(Self { sorted, begun })
    }

    pub(super) fn len(&self) -> usize {
        self.begun.iter().sum()
    }

    /// Calls `of` for the start of each run, and writes its results.
    pub(super) fn write<R: Copy + Send>(&self, into: &mut [R], of: impl Fn(usize) -> R + Sync) -> Result<()> {
        let mut rest = into;
        let parts = self.begun.iter().zip((0..).step_by(PART)).map(|(begun, start)| {
            let (own, others) = std::mem::take(&mut rest).split_at_mut(*begun);
            rest = others;
            (own, start)
        });
        for_each(*CORES, parts, |(own, start): (&mut [R], usize)| {
            let mut next = 0;
            for at in start..self.sorted.len().min(start + PART) {
                // Store unconditionally, to avoid a branch. If this element does not begin a run of equal
                // elements, the first element of the next run overwrites the value.
                let Some(to) = own.get_mut(next) else { break };
                let is_begin = at == 0 || self.sorted[at] != self.sorted[at - 1];
                *to = if is_begin { of(at) } else { *to };
                next += usize::from(is_begin);
            }
            Ok(())
        })
    }
}

/// Returns the numbers from 0 to `len - 1`.
pub(super) fn positions(len: usize) -> Result<ScratchVec<u32>> {
    let mut positions = ScratchVec::<u32>::unspecified(len)?;
    for_each(*CORES, positions.chunks_mut(PART).zip((0..).step_by(PART)), |(positions, first)| {
        positions.iter_mut().zip(first..).for_each(|(position, number)| *position = number);
        Ok(())
    })?;
    Ok(positions)
}

/// Copies 32-bit numbers to an array of 64-bit numbers.
pub(super) fn write_wide<D: Device>(numbers: &[u32], to: &VirtualArray<u64, D>) -> Result<()> {
    for_each(*CORES, numbers.chunks(PART).zip((0..).step_by(PART)), |(numbers, start)| {
        let wide: Vec<u64> = numbers.iter().map(|number| u64::from(*number)).collect();
        to.write_range(start, &wide)
    })
}

/// Reduces groups in the same order as the kernels do: the elements of each piece, and then the results of
/// the pieces in the same way.
pub(super) fn reduced<T, R, F, O>(piece: usize, values: &[T], order: &[u32], starts: &[u64]) -> Result<Vec<R>>
where
    T: SortKey,
    R: SortKey,
    F: Function<(T,), R>,
    O: Function<(R, R), R>,
{
    fn all<R, O: Function<(R, R), R>>(values: impl Iterator<Item = R>) -> Option<R> {
        values.reduce(|all, value| O::call((all, value)))
    }
    let mut pieces = GroupPieces::of(piece, starts.iter().map(|start| *start as usize).collect());
    let value = |at: &u32| F::call((values[*at as usize],));
    let mut found = pieces.reduce(order, |part| all::<R, O>(part.iter().map(value)))?;
    while found.len() + 1 > starts.len() {
        pieces = GroupPieces::of(piece, pieces.firsts);
        found = pieces.reduce(&found, |values| all::<R, O>(values.iter().copied()))?;
    }
    Ok(found)
}

struct GroupPieces {
    piece: usize,
    /// The start of each group, and the end of the last group.
    starts: Vec<usize>,
    /// The index of each group's first piece, and the number of pieces.
    firsts: Vec<usize>,
}

impl GroupPieces {
    fn of(piece: usize, starts: Vec<usize>) -> Self {
        let mut firsts = vec![0; starts.len()];
        for group in 1..starts.len() {
            firsts[group] = firsts[group - 1] + (starts[group] - starts[group - 1]).div_ceil(piece);
        }
        Self { piece, starts, firsts }
    }

    /// Computes one result for each piece of elements.
    fn reduce<E: Sync, R: SortKey>(
        &self,
        elements: &[E],
        reduce: impl Fn(&[E]) -> Option<R> + Sync,
    ) -> Result<Vec<R>> {
        let count = self.firsts[self.firsts.len() - 1];
        let mut results = zeroed_vec::<R>(count)?;
        let at_once = (PART * count / elements.len().max(1)).max(1);
        for_each(*CORES, results.chunks_mut(at_once).zip((0..).step_by(at_once)), |(results, first)| {
            let mut group = self.firsts.partition_point(|start| *start <= first) - 1;
            for (result, number) in results.iter_mut().zip(first..) {
                *result = reduce(&elements[self.piece_of(&mut group, number)])
                    .expect("a piece has at least one element");
            }
            Ok(())
        })?;
        Ok(results)
    }

    /// Returns the elements of piece `number`, which belongs to `group` or a later group.
    fn piece_of(&self, group: &mut usize, number: usize) -> Range<usize> {
        while self.firsts[*group + 1] <= number {
            *group += 1;
        }
        let start = self.starts[*group] + (number - self.firsts[*group]) * self.piece;
        start..self.starts[*group + 1].min(start + self.piece)
    }
}
