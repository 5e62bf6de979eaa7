//! Small arrays: RAM holds the elements until an operation needs a device.
//!
//! An array of the library has a cache and page tables, which take longer to create than NumPy needs to
//! compute a few items.

use std::any::Any;
use std::ops::Range;
use std::sync::{OnceLock, PoisonError, RwLock, RwLockWriteGuard};

use vmarray::access::{ExportedSlice, Registered};
use vmarray::compute::AnyColumn;
use vmarray::rows::RowTableBuilder;
use vmarray::{ErrorKind, Footprint};

use crate::element::Unit;
use crate::elements::{Asked, Bins, Code, Elements, Multiplied, Ordered, Reduced};
use crate::fault::Result;
use crate::store::{self, Options, Place};

/// Maximum size of an array that begins in RAM, in bytes: 4096 items of the longest numbers.
const BYTES_MAX: usize = 64 << 10;

/// Creates an array as [`store::build`] does. Arrays of few bytes in device memory begin in RAM.
pub fn build(unit: Unit, len: usize, options: &Options, place: &Place) -> Result<Box<dyn Elements>> {
    let is_small = len.checked_mul(unit.bytes()).is_some_and(|bytes| bytes <= BYTES_MAX);
    if matches!(place, Place::Memory) && is_small && options.are_usual() {
        return Ok(Box::new(Small::new(unit, len, options.clone())));
    }
    Ok(store::build(unit, len, options, place)?)
}

/// An array that is in RAM, or, after the first operation that needs a device, in an array of the library.
struct Small {
    unit: Unit,
    len: usize,
    options: Options,
    /// The elements; `None` after they were moved to `array`.
    items: RwLock<Option<Vec<u8>>>,
    array: OnceLock<Box<dyn Elements>>,
}

impl Small {
    /// Creates an array of zeroes.
    fn new(unit: Unit, len: usize, options: Options) -> Self {
        let items = RwLock::new(Some(vec![0; len * unit.bytes()]));
        Self { unit, len, options, items, array: OnceLock::new() }
    }

    /// Returns the array of the library, and moves the elements there at the first call. Blocks.
    fn array(&self) -> vmarray::Result<&dyn Elements> {
        if let Some(array) = self.array.get() {
            return Ok(&**array);
        }
        let mut items = self.locked();
        if let Some(bytes) = &*items {
            let array = store::build(self.unit, self.len, &self.options, &Place::Memory)?;
            array.write(0, bytes)?;
            let _ = self.array.set(array);
            *items = None;
        }
        drop(items);
        Ok(&**self.array.get().expect("the elements were moved to the array"))
    }

    fn locked(&self) -> RwLockWriteGuard<'_, Option<Vec<u8>>> {
        self.items.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `work` on the bytes of `range`, if the elements are in RAM.
    fn read_in_ram<R>(
        &self,
        range: Range<usize>,
        work: impl FnOnce(&[u8]) -> R,
    ) -> vmarray::Result<Option<R>> {
        if self.array.get().is_some() {
            return Ok(None);
        }
        let items = self.items.read().unwrap_or_else(PoisonError::into_inner);
        let Some(items) = &*items else { return Ok(None) };
        Ok(Some(work(&items[self.checked(range)?])))
    }

    /// Runs `work` as [`read_in_ram`](Self::read_in_ram) does; `work` may write to the bytes.
    fn write_in_ram(&self, range: Range<usize>, work: impl FnOnce(&mut [u8])) -> vmarray::Result<Option<()>> {
        if self.array.get().is_some() {
            return Ok(None);
        }
        let mut items = self.locked();
        let Some(items) = &mut *items else { return Ok(None) };
        work(&mut items[self.checked(range)?]);
        Ok(Some(()))
    }

    /// Returns the range of bytes of a range of elements; an error if the range exceeds the array.
    fn checked(&self, range: Range<usize>) -> vmarray::Result<Range<usize>> {
        let (start, end, len) = (range.start, range.end, self.len);
        if start > end || end > len {
            return Err(ErrorKind::RangeOutside { start, end, len }.into());
        }
        Ok(start * self.unit.bytes()..end * self.unit.bytes())
    }
}

/// Copies the elements at the indices in `list` between two sequences of bytes by `copy`.
fn listed(list: &[usize], unit: usize, mut copy: impl FnMut(Range<usize>, Range<usize>)) {
    for (number, index) in list.iter().enumerate() {
        copy(index * unit..(index + 1) * unit, number * unit..(number + 1) * unit);
    }
}

impl Elements for Small {
    fn len(&self) -> usize {
        self.array.get().map_or(self.len, |array| array.len())
    }

    fn read(&self, start: usize, into: &mut [u8]) -> vmarray::Result<()> {
        let range = start..start + into.len() / self.unit.bytes();
        match self.read_in_ram(range, |items| into.copy_from_slice(items))? {
            Some(()) => Ok(()),
            None => self.array()?.read(start, into),
        }
    }

    fn write(&self, start: usize, from: &[u8]) -> vmarray::Result<()> {
        let range = start..start + from.len() / self.unit.bytes();
        match self.write_in_ram(range, |items| items.copy_from_slice(from))? {
            Some(()) => Ok(()),
            None => self.array()?.write(start, from),
        }
    }

    fn gather(&self, list: &[usize], into: &mut [u8]) -> vmarray::Result<()> {
        let end = list.iter().max().map_or(0, |last| last + 1);
        let copied = self.read_in_ram(0..end, |items| {
            listed(list, self.unit.bytes(), |from, to| into[to].copy_from_slice(&items[from]));
        })?;
        copied.map_or_else(|| self.array()?.gather(list, into), Ok)
    }

    fn scatter(&self, list: &[usize], from: &[u8]) -> vmarray::Result<()> {
        let end = list.iter().max().map_or(0, |last| last + 1);
        let copied = self.write_in_ram(0..end, |items| {
            listed(list, self.unit.bytes(), |to, of| items[to].copy_from_slice(&from[of]));
        })?;
        copied.map_or_else(|| self.array()?.scatter(list, from), Ok)
    }

    fn fill(&self, range: Range<usize>, value: &[u8]) -> vmarray::Result<()> {
        let filled = self.write_in_ram(range.clone(), |items| {
            items.chunks_exact_mut(value.len()).for_each(|item| item.copy_from_slice(value));
        })?;
        filled.map_or_else(|| self.array()?.fill(range, value), Ok)
    }

    fn push(&self, from: &[u8]) -> vmarray::Result<()> {
        self.array()?.push(from)
    }

    fn in_ram(&self, range: Range<usize>) -> Option<Vec<u8>> {
        self.read_in_ram(range, <[u8]>::to_vec).ok().flatten()
    }

    fn copy_from(&self, start: usize, from: &dyn Elements, range: Range<usize>) -> vmarray::Result<bool> {
        if self.array.get().is_some() {
            return self.array()?.copy_from(start, from, range);
        }
        let mut items = vec![0; range.len() * self.unit.bytes()];
        from.read(range.start, &mut items)?;
        self.write(start, &items).map(|()| true)
    }

    fn column(&self, range: Range<usize>) -> vmarray::Result<AnyColumn<'_>> {
        self.array()?.column(range)
    }

    fn change<'a>(
        &'a self,
        range: Range<usize>,
        others: &[AnyColumn<'a>],
        code: &Code,
        offset: usize,
    ) -> vmarray::Result<()> {
        self.array()?.change(range, others, code, offset)
    }

    fn ask<'a>(
        &'a self,
        range: Range<usize>,
        others: &[AnyColumn<'a>],
        code: &Code,
        asked: Asked,
    ) -> vmarray::Result<Reduced> {
        self.array()?.ask(range, others, code, asked)
    }

    fn find<'a>(
        &'a self,
        range: Range<usize>,
        others: &[AnyColumn<'a>],
        code: &Code,
        limit: usize,
    ) -> vmarray::Result<Vec<usize>> {
        self.array()?.find(range, others, code, limit)
    }

    fn histogram<'a>(
        &'a self,
        range: Range<usize>,
        others: &[AnyColumn<'a>],
        code: &Code,
        bins: Bins,
    ) -> vmarray::Result<Vec<u64>> {
        self.array()?.histogram(range, others, code, bins)
    }

    // After `None`, NumPy computes, so an array that no device can store is not an error here.

    fn multiplied(&self) -> Option<&dyn Multiplied> {
        self.array().ok()?.multiplied()
    }

    fn ordered(&self) -> Option<&dyn Ordered> {
        self.array().ok()?.ordered()
    }

    fn take(&self, range: Range<usize>, list: &dyn Elements) -> vmarray::Result<Option<Box<dyn Elements>>> {
        self.array()?.take(range, list)
    }

    fn shuffle(&self, range: Range<usize>, seed: u64) -> vmarray::Result<()> {
        self.array()?.shuffle(range, seed)
    }

    fn export(&mut self, range: Range<usize>) -> vmarray::Result<ExportedSlice> {
        self.array()?;
        self.array.get_mut().expect("the call above creates the array").export(range)
    }

    fn rows(&mut self, row_len: usize) -> vmarray::Result<RowTableBuilder<'_>> {
        self.array()?;
        self.array.get_mut().expect("the call above creates the array").rows(row_len)
    }

    fn register(&self, words: Vec<u64>) -> vmarray::Result<Registered<u64>> {
        self.array()?.register(words)
    }

    fn flush(&self) -> vmarray::Result<()> {
        self.array.get().map_or(Ok(()), |array| array.flush())
    }

    fn sync(&self) -> vmarray::Result<()> {
        self.array()?.sync()
    }

    fn footprint(&self) -> vmarray::Result<Footprint> {
        self.array()?.footprint()
    }

    fn page_len(&self) -> usize {
        self.array().map_or(self.len, |array| array.page_len())
    }

    fn max_len(&self) -> usize {
        self.array().map_or(self.len, |array| array.max_len())
    }

    fn as_any(&self) -> &dyn Any {
        self.array().map_or(self, |array| array.as_any())
    }
}
