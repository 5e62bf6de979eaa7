//! [`RowSorting`]: reads keys and values into RAM piece by piece, sorts or merges them, and writes them back.

use std::ops::Range;

use crate::base::error::{Result, interrupted};
use crate::base::progress::Steps;
use crate::base::scratch_pool::ScratchVec;
use crate::ops::executor::Operand;
use crate::ops::sealed::INTERNAL;
use crate::ops::sort::keys::{KeyOrder, SortKey};
use crate::ops::view::StoreMut;

/// Memory for a piece: keys, and their values as bytes.
pub(super) struct PieceMemory<T> {
    pub keys: ScratchVec<T>,
    pub values: ScratchVec<u8>,
}

impl<T> Default for PieceMemory<T> {
    fn default() -> Self {
        Self { keys: ScratchVec::default(), values: ScratchVec::default() }
    }
}

impl<T: SortKey> PieceMemory<T> {
    pub fn new(len: usize, stride: usize) -> Result<Self> {
        Ok(Self { keys: ScratchVec::unspecified(len)?, values: ScratchVec::unspecified(len * stride)? })
    }

    pub fn first(&mut self, len: usize, stride: usize) -> SomeRows<'_, T> {
        SomeRows { keys: &mut self.keys[..len], values: &mut self.values[..len * stride] }
    }
}

/// Keys in RAM, and their values as bytes.
pub(super) struct SomeRows<'a, T> {
    pub keys: &'a mut [T],
    pub values: &'a mut [u8],
}

impl<T> SomeRows<'_, T> {
    pub fn part(&mut self, of: Range<usize>) -> SomeRows<'_, T> {
        let stride = self.values.len().checked_div(self.keys.len()).unwrap_or(0);
        SomeRows { values: &mut self.values[of.start * stride..of.end * stride], keys: &mut self.keys[of] }
    }
}

/// A sort of keys and values that are read from stores piece by piece.
pub(super) struct RowSorting<'a, T: SortKey, S> {
    pub store: &'a S,
    /// Index in `store` of the first key to sort. The first element of `values` belongs to this key.
    pub first: usize,
    pub values: Option<Operand<'a>>,
    pub order: KeyOrder,
    pub steps: &'a Steps,
    pub piece: PieceMemory<T>,
    pub beside: PieceMemory<T>,
}

impl<T: SortKey, S: StoreMut<Element = T>> RowSorting<'_, T, S> {
    pub fn key(&self, element: T) -> u64 {
        self.order.key::<T::KeyBits>(bytemuck::cast(element))
    }

    pub fn key_at(&self, place: usize) -> Result<u64> {
        Ok(self.key(self.store.get_at(place, INTERNAL)?))
    }

    pub fn stride(&self) -> usize {
        self.values.map_or(0, |values| values.stride())
    }

    /// Reports to the program that the sort is about to move `len` elements.
    pub fn report(&self, len: usize) -> Result<()> {
        self.steps.report((len * (size_of::<T>() + self.stride())) as u64)
    }

    pub fn read(&self, place: usize, into: &mut SomeRows<'_, T>) -> Result<()> {
        self.store.read_at(place, into.keys, INTERNAL)?;
        let Some(values) = self.values else { return Ok(()) };
        let first = place - self.first;
        values.read_bytes(first..first + into.keys.len(), into.values)
    }

    pub fn write(&self, place: usize, from: &SomeRows<'_, T>) -> Result<()> {
        self.store.write_at(place, from.keys, INTERNAL)?;
        match self.values.and_then(|values| Some((values.target?, values.start))) {
            Some((target, start)) => target.write_bytes(start + place - self.first, from.values),
            None => Ok(()),
        }
    }

    /// Writes `rows`, which exist only in RAM, to their array from `place` on. If the write fails, tries
    /// again, because otherwise rows are lost. Returns an error even if the second write succeeds.
    pub fn write_all(&self, place: usize, rows: &SomeRows<'_, T>) -> Result<()> {
        let Err(error) = self.write(place, rows) else { return Ok(()) };
        match self.write(place, rows) {
            Ok(()) => Err(error),
            Err(_) => Err(interrupted(error, 0..0, place..place + rows.keys.len())),
        }
    }

    pub fn read_keys(&self, place: usize, into: &mut [T]) -> Result<()> {
        self.store.read_at(place, into, INTERNAL)
    }

    /// Writes the keys `from` as [`write_all`](Self::write_all) writes rows, for a sort without values.
    pub fn write_keys(&self, place: usize, from: &mut [T]) -> Result<()> {
        self.write_all(place, &SomeRows { keys: from, values: &mut [] })
    }

    /// Calls `work` with memory for `len` rows, and scratch memory.
    pub(super) fn with_memory<R>(
        &mut self,
        len: usize,
        work: impl FnOnce(&Self, SomeRows<'_, T>, SomeRows<'_, T>) -> Result<R>,
    ) -> Result<R> {
        let (mut piece, mut beside) = (std::mem::take(&mut self.piece), std::mem::take(&mut self.beside));
        let stride = self.stride();
        let len_beside = len.min(beside.keys.len());
        let done = work(self, piece.first(len, stride), beside.first(len_beside, stride));
        (self.piece, self.beside) = (piece, beside);
        done
    }
}
