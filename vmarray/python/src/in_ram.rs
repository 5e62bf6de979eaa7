//! Arrays whose items are in plain memory of this process, where NumPy computes on them, until an operation
//! needs a device.
//!
//! An array of the library has a cache and page tables: they take longer to create than NumPy needs to
//! compute a few items, and NumPy cannot read items there in place. So arrays in RAM, and arrays of few bytes
//! on any devices, begin as [`Items`].

use std::any::Any;
use std::ops::Range;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use vmarray::access::{ExportedSlice, Registered};
use vmarray::compute::AnyColumn;
use vmarray::rows::RowTableBuilder;
use vmarray::{ErrorKind, Footprint};

use crate::element::Unit;
use crate::elements::{Asked, Bins, Code, Elements, Multiplied, Ordered, Reduced};
use crate::fault::Result;
use crate::numpy_arrays::{Items, each_block};
use crate::pool::bytes_max;
use crate::store::{self, Options, Place};

/// Maximum size of an array on any devices that begins in RAM, in bytes: 4096 items of the longest numbers.
const SMALL_BYTES_MAX: usize = 64 << 10;

/// True if an array with these options may begin in plain memory.
pub fn begins_in_ram(bytes: usize, options: &Options) -> bool {
    let most = if options.are_in_ram() { bytes_max() } else { SMALL_BYTES_MAX };
    options.are_usual() && bytes <= most.max(SMALL_BYTES_MAX)
}

/// Creates an array as [`store::build`] does. Arrays in RAM, or of few bytes, begin in plain memory.
pub fn build(unit: Unit, len: usize, options: &Options, place: &Place) -> Result<Box<dyn Elements>> {
    let bytes = len.checked_mul(unit.bytes());
    if matches!(place, Place::Memory)
        && let Some(items) = bytes.filter(|bytes| begins_in_ram(*bytes, options)).and_then(Items::zeroed)
    {
        return Ok(InRam::boxed(unit, items, options.clone()));
    }
    Ok(store::build(unit, len, options, place)?)
}

/// An array whose items are in plain memory, or, after the first operation that needs a device, in an array
/// of the library.
pub struct InRam {
    unit: Unit,
    len: usize,
    options: Options,
    /// The items; `None` after they were moved to `array`. A thread that writes to them holds the lock for
    /// reading, so that they are not moved meanwhile.
    items: RwLock<Option<Arc<Items>>>,
    array: OnceLock<Box<dyn Elements>>,
}

impl InRam {
    /// Returns an array of items, whose number of bytes is a multiple of the unit's.
    pub fn boxed(unit: Unit, items: Items, options: Options) -> Box<dyn Elements> {
        let len = items.len() / unit.bytes();
        Box::new(Self {
            unit,
            len,
            options,
            items: RwLock::new(Some(Arc::new(items))),
            array: OnceLock::new(),
        })
    }

    /// Returns a copy of an array of the library in plain memory; `None` if the system has no more memory.
    /// Blocks.
    pub fn copied(
        unit: Unit,
        of: &dyn Elements,
        options: &Options,
    ) -> vmarray::Result<Option<Box<dyn Elements>>> {
        let Some(items) = Items::zeroed(of.len() * unit.bytes()) else { return Ok(None) };
        let items = items.filled(|bytes| of.read(0, bytes))?;
        Ok(Some(Self::boxed(unit, items, options.clone())))
    }

    /// Returns the array of the library, and moves the items there at the first call. Blocks.
    fn array(&self) -> vmarray::Result<&dyn Elements> {
        if let Some(array) = self.array.get() {
            return Ok(&**array);
        }
        let mut items = self.items.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(from) = &*items {
            let array = store::build(self.unit, self.len, &self.options, &Place::Memory)?;
            from.each_block(self.unit.bytes(), 0..self.len, |at, block| array.write(at, block))?;
            let _ = self.array.set(array);
            *items = None;
        }
        drop(items);
        Ok(&**self.array.get().expect("the items were moved to the array"))
    }

    /// Runs `work` on the items with the bytes of `range`, unless the items were moved to an array.
    fn in_place<R>(
        &self,
        range: Range<usize>,
        work: impl FnOnce(&Items, Range<usize>) -> R,
    ) -> vmarray::Result<Option<R>> {
        if self.array.get().is_some() {
            return Ok(None);
        }
        let items = self.items.read().unwrap_or_else(PoisonError::into_inner);
        let Some(items) = &*items else { return Ok(None) };
        let (start, end, len) = (range.start, range.end, self.len);
        if start > end || end > len {
            return Err(ErrorKind::RangeOutside { start, end, len }.into());
        }
        Ok(Some(work(items, start * self.unit.bytes()..end * self.unit.bytes())))
    }
}

impl Elements for InRam {
    fn len(&self) -> usize {
        self.array.get().map_or(self.len, |array| array.len())
    }

    fn items(&self) -> Option<Arc<Items>> {
        self.items.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn write_in_place(&self, work: &mut dyn FnMut(&Arc<Items>)) -> bool {
        let items = self.items.read().unwrap_or_else(PoisonError::into_inner);
        items.as_ref().map(work).is_some()
    }

    fn read(&self, start: usize, into: &mut [u8]) -> vmarray::Result<()> {
        let range = start..start + into.len() / self.unit.bytes();
        match self.in_place(range, |items, bytes| items.read(bytes.start, into))? {
            Some(()) => Ok(()),
            None => self.array()?.read(start, into),
        }
    }

    fn write(&self, start: usize, from: &[u8]) -> vmarray::Result<()> {
        let range = start..start + from.len() / self.unit.bytes();
        match self.in_place(range, |items, bytes| items.write(bytes.start, from))? {
            Some(()) => Ok(()),
            None => self.array()?.write(start, from),
        }
    }

    fn gather(&self, list: &[usize], into: &mut [u8]) -> vmarray::Result<()> {
        let (end, unit) = (list.iter().max().map_or(0, |last| last + 1), self.unit.bytes());
        let copied = self.in_place(0..end, |items, _| {
            list.iter().zip(into.chunks_mut(unit)).for_each(|(index, item)| items.read(index * unit, item));
        })?;
        copied.map_or_else(|| self.array()?.gather(list, into), Ok)
    }

    fn scatter(&self, list: &[usize], from: &[u8]) -> vmarray::Result<()> {
        let (end, unit) = (list.iter().max().map_or(0, |last| last + 1), self.unit.bytes());
        let copied = self.in_place(0..end, |items, _| {
            list.iter().zip(from.chunks(unit)).for_each(|(index, item)| items.write(index * unit, item));
        })?;
        copied.map_or_else(|| self.array()?.scatter(list, from), Ok)
    }

    fn fill(&self, range: Range<usize>, value: &[u8]) -> vmarray::Result<()> {
        let filled = self.in_place(range.clone(), |items, bytes| {
            // Copy the values block by block, as a block stays in the cache.
            let block = value.repeat((4096 / value.len()).max(1));
            bytes.clone().step_by(block.len()).for_each(|start| {
                items.write(start, &block[..block.len().min(bytes.end - start)]);
            });
        })?;
        filled.map_or_else(|| self.array()?.fill(range, value), Ok)
    }

    fn push(&self, from: &[u8]) -> vmarray::Result<()> {
        self.array()?.push(from)
    }

    fn copy_from(&self, start: usize, from: &dyn Elements, range: Range<usize>) -> vmarray::Result<bool> {
        let (unit, source) = (self.unit.bytes(), from.items());
        let read = |first: usize, block: &mut [u8]| match &source {
            Some(source) => {
                source.read(first * unit, block);
                Ok(())
            }
            None => from.read(first, block),
        };
        let copied = self.in_place(start..start + range.len(), |items, to| {
            each_block(unit, range.clone(), read, |at, block| {
                items.write(to.start + at * unit, block);
                Ok(())
            })
        })?;
        match copied {
            Some(outcome) => outcome.map(|()| true),
            None => self.array()?.copy_from(start, from, range),
        }
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

    fn rows(&mut self, range: Range<usize>, row_len: usize) -> vmarray::Result<RowTableBuilder<'_>> {
        self.array()?;
        self.array.get_mut().expect("the call above creates the array").rows(range, row_len)
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
        self.array.get().map_or(self.len.max(1), |array| array.page_len())
    }

    fn max_len(&self) -> usize {
        self.array.get().map_or(self.len, |array| array.max_len())
    }

    fn as_any(&self) -> &dyn Any {
        self.array().map_or(self, |array| array.as_any())
    }
}
