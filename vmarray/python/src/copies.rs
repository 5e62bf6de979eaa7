//! Copies between strided views and RAM: by ranges if items are contiguous, else by lists of item starts.

use std::ops::Range;
use std::sync::Mutex;

use pyo3::exceptions::PyIndexError;
use vmarray::bytemuck;

use crate::elements::Elements;
use crate::fault::{Fault, Result, interrupted};
use crate::geometry::{Geometry, Rows};
use crate::handle::{Handle, PIECE_BYTES, lock};

/// Runs of at least this many bytes are copied by themselves.
const RUN_BYTES: usize = 4096;
/// Items with gaps, or in another order, are copied by blocks of this many bytes, which fit in the caches
/// of a core.
const BLOCK_BYTES: usize = 512 << 10;
/// Most bytes that are read at once, gaps included, and most bytes read for each byte wanted.
const SPAN_BYTES: usize = 64 << 20;
const SPAN_TIMES: usize = 4;
/// Least bytes of a run that is read by itself; shorter runs are gathered.
const RUN_BYTES_MIN: usize = 256;
/// Maximum number of items in one list of items for a read or write.
pub const LISTED: usize = 1 << 20;

/// Copies the items of a view, in C order, to memory of the same size.
pub fn read(handle: &Handle, of: &Geometry, into: &mut [u8]) -> Result<()> {
    let (open, unit) = (handle.open()?, handle.unit.bytes());
    if of.count() == 0 {
        return Ok(());
    }
    let (len, starts) = of.runs();
    if is_whole(&starts, unit) && (len >= RUN_BYTES || starts.count() == 1) {
        let mut runs = into.chunks_exact_mut(len);
        return starts.each(|start| {
            let run = runs.next().unwrap_or_default();
            handle.in_pieces(elements(start, len, unit), |part| {
                open.read(part.start, &mut run[part.start * unit - start..part.end * unit - start])
            })
        });
    }
    let is_far = is_far(handle, of);
    let mut rest = into;
    let parts = of.blocks(block_bytes(of, is_far)).into_iter().map(|block| {
        let (part, others) = std::mem::take(&mut rest).split_at_mut(block.bytes());
        rest = others;
        (block, part)
    });
    on_threads(parts.collect(), !is_far, |(block, part), [scratch, _]| {
        read_block((&**open, unit, is_far), &block, part, scratch)
    })
}

/// True if the items of a view are spread over more memory than the cache of an array may have, and the
/// array is not in RAM. Then blocks must be long, because each block may read every page.
fn is_far(handle: &Handle, of: &Geometry) -> bool {
    let (first, end) = of.span();
    !handle.is_in_ram && end - first > SPAN_BYTES
}

fn block_bytes(of: &Geometry, is_far: bool) -> usize {
    if is_far { PIECE_BYTES.min(LISTED * of.itemsize) } else { BLOCK_BYTES }
}

/// Copies the items of a block with gaps, or in another order than the elements. `from` has an array, the
/// size of its elements, and the result of [`is_far`].
fn read_block(
    (open, unit, is_far): (&dyn Elements, usize, bool),
    of: &Geometry,
    into: &mut [u8],
    scratch: &mut Vec<u8>,
) -> vmarray::Result<()> {
    let (first, end) = around(of.span(), unit);
    if end - first <= SPAN_BYTES.min(of.bytes().saturating_mul(SPAN_TIMES)) {
        let all = of_len(scratch, end - first);
        open.read(first / unit, all)?;
        Geometry { offset: of.offset - first, ..of.clone() }.pick(all, into);
        return Ok(());
    }
    let ((len, starts), packed) = of.stored_runs();
    if !is_far && is_whole(&starts, unit) && len >= RUN_BYTES_MIN {
        let all = of_len(scratch, of.bytes());
        let mut runs = all.chunks_exact_mut(len);
        starts.each(|start| open.read(start / unit, runs.next().unwrap_or_default()))?;
        packed.pick(all, into);
        return Ok(());
    }
    let list = Listed::new(of, unit);
    list.pick(&list.gathered(open)?, into);
    Ok(())
}

/// The first `len` bytes of memory that is used again.
fn of_len(scratch: &mut Vec<u8>, len: usize) -> &mut [u8] {
    if scratch.len() < len {
        scratch.resize(len, 0);
    }
    &mut scratch[..len]
}

/// Runs `work` on the parts of a copy, on all cores if there are several parts and `is_parallel` is true.
/// Each thread passes its own memory to `work`.
fn on_threads<P: Send>(
    parts: Vec<P>,
    is_parallel: bool,
    work: impl Fn(P, &mut [Vec<u8>; 2]) -> vmarray::Result<()> + Sync,
) -> Result<()> {
    let most = std::thread::available_parallelism().map_or(1, usize::from).min(parts.len() / 2);
    let parts = Mutex::new(parts.into_iter());
    let drain = |is_main: bool| -> Result<()> {
        let mut scratch = <[Vec<u8>; 2]>::default();
        while let Some(part) = { lock(&parts).next() } {
            let done = work(part, &mut scratch).map_err(Fault::from);
            let done = done.and_then(|()| if is_main { interrupted() } else { Ok(()) });
            if done.is_err() {
                // The other threads end after their present parts.
                lock(&parts).by_ref().for_each(drop);
                return done;
            }
        }
        Ok(())
    };
    if most <= 1 || !is_parallel {
        return drain(true);
    }
    std::thread::scope(|scope| {
        let threads: Vec<_> = (1..most).map(|_| scope.spawn(|| drain(false))).collect();
        let own = drain(true);
        threads.into_iter().try_for_each(|thread| thread.join().expect("copies do not panic"))?;
        own
    })
}

/// Copies memory to the items of a view, in C order. If an item is only a part of an element, first reads the
/// whole element and then writes it.
pub fn write(handle: &Handle, to: &Geometry, from: &[u8]) -> Result<()> {
    let (open, unit) = (handle.open()?, handle.unit.bytes());
    if to.count() == 0 {
        return Ok(());
    }
    let (len, starts) = to.runs();
    if is_whole(&starts, unit) && (len >= RUN_BYTES || starts.count() == 1) {
        let mut runs = from.chunks_exact(len);
        return starts.each(|start| {
            let run = runs.next().unwrap_or_default();
            handle.in_pieces(elements(start, len, unit), |part| {
                open.write(part.start, &run[part.start * unit - start..part.end * unit - start])
            })
        });
    }
    if is_long(to)
        && let Some([one, other]) = to.halves()
    {
        let (of_one, of_other) = from.split_at(one.bytes());
        write(handle, &one, of_one)?;
        interrupted()?;
        return write(handle, &other, of_other);
    }
    let list = Listed::new(to, unit);
    if is_whole(to, unit) {
        return Ok(open.scatter(&list.units, from)?);
    }
    list.write(&**open, from)
}

/// Sets all items of a view to one value, given by its bytes.
pub fn fill(handle: &Handle, to: &Geometry, item: &[u8]) -> Result<()> {
    let (open, unit) = (handle.open()?, handle.unit.bytes());
    if to.count() > 0 && unit == to.itemsize && to.offset.is_multiple_of(unit) && to.in_a_row(unit) {
        let first = to.offset / unit;
        return handle.in_pieces(first..first + to.count(), |part| open.fill(part, item));
    }
    if is_long(to)
        && let Some([one, other]) = to.halves()
    {
        fill(handle, &one, item)?;
        interrupted()?;
        return fill(handle, &other, item);
    }
    write(handle, to, &item.repeat(to.count()))
}

/// Copies a view to another view of the same shape and item size. The two must not overlap.
pub fn copy(to: (&Handle, &Geometry), from: (&Handle, &Geometry)) -> Result<()> {
    let (unit, is_whole_range) =
        (to.0.unit.bytes(), |of: &Geometry, unit: usize| is_whole(of, unit) && of.in_a_row(of.itemsize));
    if from.0.unit == to.0.unit && is_whole_range(to.1, unit) && is_whole_range(from.1, unit) {
        let (target, source) = (to.0.open()?, from.0.open()?);
        let range = elements(to.1.offset, to.1.bytes(), unit);
        let first = from.1.offset / unit;
        return to.0.in_pieces(range.clone(), |part| {
            let start = first + part.start - range.start;
            target.copy_from(part.start, &**source, start..start + part.len()).map(|_| ())
        });
    }
    if is_whole_range(to.1, unit) && from.1.count() > 0 {
        let (target, source, is_far) = (to.0.open()?, from.0.open()?, is_far(from.0, from.1));
        let mut start = to.1.offset;
        let parts = from.1.blocks(block_bytes(from.1, is_far)).into_iter().map(|block| {
            start += block.bytes();
            (start - block.bytes(), block)
        });
        let from = (&**source, from.0.unit.bytes(), is_far);
        return on_threads(parts.collect(), !is_far, |(start, block), [scratch, items]| {
            let items = of_len(items, block.bytes());
            read_block(from, &block, items, scratch)?;
            target.write(start / unit, items)
        });
    }
    if from.1.bytes() > PIECE_BYTES
        && let (Some([a, b]), Some([c, d])) = (to.1.halves(), from.1.halves())
    {
        copy((to.0, &a), (from.0, &c))?;
        return copy((to.0, &b), (from.0, &d));
    }
    let mut items = vec![0; from.1.bytes()];
    read(from.0, from.1, &mut items)?;
    interrupted()?;
    write(to.0, to.1, &items)
}

/// True if items are too many, or too long, for one list.
fn is_long(of: &Geometry) -> bool {
    of.count() > LISTED || of.bytes() > PIECE_BYTES
}

/// True if all items begin and end at element boundaries.
fn is_whole(of: &Geometry, unit: usize) -> bool {
    let each = |stride: &isize| stride.unsigned_abs().is_multiple_of(unit);
    of.offset.is_multiple_of(unit) && of.itemsize.is_multiple_of(unit) && of.strides.iter().all(each)
}

/// Returns the range of elements that contain `len` bytes from `start` on.
fn elements(start: usize, len: usize, unit: usize) -> Range<usize> {
    start / unit..(start + len) / unit
}

/// The range of bytes, extended to element boundaries.
fn around((first, end): (usize, usize), unit: usize) -> (usize, usize) {
    (first / unit * unit, end.next_multiple_of(unit))
}

/// Returns an error if a row index is outside of `-extent..extent`. Negative indices count from the end.
pub fn check_rows(indices: &[i64], extent: usize) -> Result<()> {
    let extent = extent as i64;
    match indices.iter().find(|index| !(-extent..extent).contains(*index)) {
        None => Ok(()),
        Some(index) => {
            let text = format!("index {index} is out of bounds for axis 0 with size {extent}");
            Err(PyIndexError::new_err(text).into())
        }
    }
}

/// Calls `work` for batches of the rows at `indices`, in an array of `len` elements. The arguments are the
/// indices of all elements in the batch, and the number of elements in earlier batches.
pub fn each_row(
    indices: &[i64],
    rows: &Rows,
    len: usize,
    mut work: impl FnMut(&[usize], usize) -> Result<()>,
) -> Result<()> {
    let is_all = rows.extent == len && (rows.first, rows.step, rows.elements) == (0, 1, 1);
    let (at_once, mut elements) = ((LISTED / rows.elements).max(1), Vec::new());
    for (part, number) in indices.chunks(at_once).zip(0..) {
        // Test only the maximum index, found without branches. Negative indices become large numbers.
        let is_plain = part.iter().fold(0, |max, index| max.max(*index as u64)) < rows.extent as u64;
        if is_plain && is_all {
            work(bytemuck::cast_slice(part), number * at_once)?;
        } else {
            check_rows(part, rows.extent)?;
            elements.clear();
            for index in part {
                let row = if *index < 0 { index + rows.extent as i64 } else { *index };
                let start = (rows.first as i64 + row * rows.step as i64) as usize;
                elements.extend(start..start + rows.elements);
            }
            work(&elements, number * at_once * rows.elements)?;
        }
        interrupted()?;
    }
    Ok(())
}

/// Reads the rows at `indices`, each with its own read.
pub fn read_rows(
    open: &dyn Elements,
    indices: &[i64],
    rows: &Rows,
    unit: usize,
    into: &mut [u8],
) -> Result<()> {
    let row_bytes = rows.elements * unit;
    let mut starts = Vec::new();
    for (part, into) in indices.chunks(LISTED).zip(into.chunks_mut(LISTED * row_bytes)) {
        check_rows(part, rows.extent)?;
        starts.clear();
        starts.extend(part.iter().map(|index| {
            let row = if *index < 0 { index + rows.extent as i64 } else { *index };
            (rows.first as i64 + row * rows.step as i64) as usize
        }));
        open.read_rows(&starts, row_bytes, into)?;
        interrupted()?;
    }
    Ok(())
}

/// A list of a view's items, and of the library's elements that contain them.
pub struct Listed {
    units: Vec<usize>,
    /// Start of each item within the bytes of the listed elements.
    places: Vec<usize>,
    unit: usize,
    itemsize: usize,
}

impl Listed {
    fn new(of: &Geometry, unit: usize) -> Self {
        let mut list = Self { units: Vec::new(), places: Vec::new(), unit, itemsize: of.itemsize };
        let Ok::<(), ()>(()) = of.each(|start| {
            list.add(start);
            Ok(())
        }) else {
            unreachable!("nothing fails")
        };
        list
    }

    /// Lists the items that begin at these byte offsets; an element has `unit` bytes.
    pub fn of(starts: &[i64], itemsize: usize, unit: usize) -> Self {
        let mut list = Self { units: Vec::new(), places: Vec::new(), unit, itemsize };
        list.units.reserve(starts.len());
        starts.iter().for_each(|start| list.add(*start as usize));
        list
    }

    fn add(&mut self, start: usize) {
        let (first, end) = around((start, start + self.itemsize), self.unit);
        self.places.push(self.units.len() * self.unit + start - first);
        self.units.extend(first / self.unit..end / self.unit);
    }

    /// True if each item consists of whole listed elements, in order.
    fn is_exact(&self) -> bool {
        self.units.len() * self.unit == self.places.len() * self.itemsize
    }

    fn gathered(&self, open: &dyn Elements) -> vmarray::Result<Vec<u8>> {
        let mut elements = vec![0; self.units.len() * self.unit];
        open.gather(&self.units, &mut elements)?;
        Ok(elements)
    }

    fn pick(&self, elements: &[u8], into: &mut [u8]) {
        for (place, item) in self.places.iter().zip(into.chunks_exact_mut(self.itemsize)) {
            item.copy_from_slice(&elements[*place..place + self.itemsize]);
        }
    }

    fn put(&self, elements: &mut [u8], from: &[u8]) {
        for (place, item) in self.places.iter().zip(from.chunks_exact(self.itemsize)) {
            elements[*place..place + self.itemsize].copy_from_slice(item);
        }
    }

    /// Copies the listed items to memory of the same size.
    pub fn read(&self, open: &dyn Elements, into: &mut [u8]) -> Result<()> {
        if self.is_exact() {
            return Ok(open.gather(&self.units, into)?);
        }
        self.pick(&self.gathered(open)?, into);
        Ok(())
    }

    /// Copies memory to the listed items. If an item is listed several times, the last value stays.
    pub fn write(self, open: &dyn Elements, from: &[u8]) -> Result<()> {
        if self.is_exact() {
            return Ok(open.scatter(&self.units, from)?);
        }
        let list = self.merged();
        let mut elements = list.gathered(open)?;
        list.put(&mut elements, from);
        Ok(open.scatter(&list.units, &elements)?)
    }

    /// Lists each element once, in ascending order, so that several items of an element are written together.
    /// The elements of an item stay contiguous.
    fn merged(mut self) -> Self {
        let unit = self.unit;
        let starts = self.places.iter().map(|place| (self.units[place / unit], place % unit));
        let starts: Vec<(usize, usize)> = starts.collect();
        self.units.sort_unstable();
        self.units.dedup();
        for (place, (first, offset)) in self.places.iter_mut().zip(starts) {
            *place = self.units.partition_point(|known| *known < first) * unit + offset;
        }
        self
    }
}
