//! Reductions along an axis of an array: each line of elements along the axis becomes one number.
//!
//! - A line is divided into blocks of [`BLOCK`] elements. The sum of a block is eight interleaved sums, added
//!   in pairs, and blocks are added in ascending order. The order of additions, and so a float result, never
//!   depends on the distribution of the elements or the division of the work.
//! - If lines are many but short, a work-item (GPU thread) reduces a whole line. Otherwise a work-item
//!   reduces a block, and the host combines the blocks.
//! - The kernel reads elements in place if one device has all of them, in row-major order. Otherwise the
//!   elements are copied to a device piece by piece.

use std::ops::Range;

use vmarray_kernel::launch::DomainAxis;
use vmarray_kernel::{Anywhere, At, ElementMemory, Function, KernelNumber, Own, kernel};

use super::lines_on_cards::{Extreme, RowBox};
use super::listed::ListedElements;
use super::number::PrefixSummed;
use super::prefix_scan::PIECE_BYTES;
use crate::base::error::{ErrorKind, Result};
use crate::base::memory::zeroed_vec;
use crate::ops::executor::{Operand, OperandStore, STAGED_BYTES};
use crate::ops::launch::{
    Bound, Broadcast, IndexDomainStore, KernelVariants, LaunchOptions, PlacedElements, StripedArgument,
    inside, run, values,
};
use crate::ops::view::{SignedBox, StoredBox};

/// The number of elements in a block of a line.
const BLOCK: usize = 1024;
/// From this number of lines on, a work-item reduces a whole line, because all GPU threads are used.
const LINES_MIN: usize = 1 << 16;

/// Kernel function: converts a number to another type.
#[kernel(crate = vmarray_kernel)]
pub fn converted<T: KernelNumber, S: KernelNumber>(x: T) -> S {
    x as S
}

/// Kernel function: returns 1 if the predicate `F` is true for a number, otherwise 0.
#[kernel(crate = vmarray_kernel)]
pub fn counted<T: KernelNumber, F: Function<(T,), bool>>(x: T) -> u64 {
    if F::call((x,)) { 1 } else { 0 }
}

#[kernel(crate = vmarray_kernel)]
pub fn added<S: KernelNumber>(a: S, b: S) -> S {
    a + b
}

#[kernel(crate = vmarray_kernel)]
pub fn lesser<S: KernelNumber>(a: S, b: S) -> S {
    a.min(b)
}

#[kernel(crate = vmarray_kernel)]
pub fn greater<S: KernelNumber>(a: S, b: S) -> S {
    a.max(b)
}

/// Kernel: reduces `count` elements of a line, one of several parts. Lines are along the second axis.
#[kernel(crate = vmarray_kernel)]
fn reduced<
    T: KernelNumber + ElementMemory,
    S: KernelNumber + ElementMemory,
    F: Function<(T,), S>,
    O: Function<(S, S), S>,
>(
    at: At<1>,
    inner: usize,
    parts: usize,
    each: usize,
    x: &Anywhere<T, 3>,
    out: &mut Own<S>,
) {
    let (line, i) = (at.index() / inner, at.index() % inner);
    let o = line / parts;
    let mut from = line % parts * each;
    let end = x.shape()[1].min(from + each);
    let mut all = S::ZERO;
    let mut is_begun = false;
    while from < end {
        let to = end.min(from + BLOCK);
        let mut sum = F::call((x[[o, from, i]],));
        if to - from < 8 {
            for k in from + 1..to {
                sum = O::call((sum, F::call((x[[o, k, i]],))));
            }
        } else {
            let mut sums = [S::ZERO; 8];
            sums[0] = sum;
            for j in 1..8 {
                sums[j] = F::call((x[[o, from + j, i]],));
            }
            let mut k = from + 8;
            while k + 8 <= to {
                for j in 0..8 {
                    sums[j] = O::call((sums[j], F::call((x[[o, k + j, i]],))));
                }
                k += 8;
            }
            for j in 0..7 {
                if k + j < to {
                    sums[j] = O::call((sums[j], F::call((x[[o, k + j, i]],))));
                }
            }
            for j in 0..4 {
                sums[j] = O::call((sums[j], sums[j + 4]));
            }
            sum = O::call((O::call((sums[0], sums[2])), O::call((sums[1], sums[3]))));
        }
        all = if is_begun { O::call((all, sum)) } else { sum };
        is_begun = true;
        from = to;
    }
    out.set(all);
}

/// Kernel function: returns the lesser number, or a NaN if a number is one.
#[kernel(crate = vmarray_kernel)]
pub fn lesser_or_nan<S: KernelNumber>(a: S, b: S) -> S {
    if a < b || a >= b { a.min(b) } else { a + b }
}

/// Kernel function: returns the greater number, or a NaN if a number is one.
#[kernel(crate = vmarray_kernel)]
pub fn greater_or_nan<S: KernelNumber>(a: S, b: S) -> S {
    if a < b || a >= b { a.max(b) } else { a + b }
}

#[kernel(crate = vmarray_kernel)]
fn copied<S: ElementMemory>(x: &Own<S>, out: &mut Own<S>) {
    out.set(x.get());
}

/// The operation of [`accumulate_axis`](crate::nd::NdView::accumulate_axis).
///
/// ```
/// use vmarray::nd::Accumulation;
/// use vmarray::prelude::*;
/// let table = NdArray::<f32, 2>::new([2, 2])?;
/// table.write_box(.., &[2.0, 3.0, 0.5, 4.0])?;
/// table.accumulate_axis(1, Accumulation::Product, &table)?;
/// assert_eq!(table.to_vec(..)?, [2.0, 6.0, 0.5, 2.0]);
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accumulation {
    /// Each result is the sum of the elements up to it.
    Sum,
    /// Each result is the product of the elements up to it.
    Product,
}

/// A function that reads a box of elements, row by row.
pub(crate) type ReadBox<'a, T> = dyn Fn(&[Range<usize>]) -> Result<Vec<T>> + 'a;

/// The elements of a view as lines along the axis to reduce.
pub(crate) struct Lines<'a, T> {
    /// Name of the operation, for error messages.
    pub name: &'static str,
    pub store: &'a dyn OperandStore,
    /// Storage positions of the view's elements; `None` if the view has other axes than the stored array.
    pub stored: Option<StoredBox>,
    pub extents: Vec<usize>,
    pub axis: usize,
    pub read: &'a ReadBox<'a, T>,
}

impl<T: PrefixSummed> Lines<'_, T> {
    /// Applies function `F` to each element, combines the results along the axis by function `O`, and writes
    /// them to `into`. If the axis has no elements, returns an error if `is_partial` is set (the operation
    /// needs an element). Otherwise writes zeros.
    pub fn reduce<S, F, O>(&self, into: Bound<'_>, is_partial: bool) -> Result<()>
    where
        S: PrefixSummed,
        F: Function<(T,), S>,
        O: Function<(S, S), S>,
    {
        let Bound::Elements(into) = into else { unreachable!("results are always elements of a view") };
        let into = self.checked_into(into)?;
        let count: usize = into.extents.iter().product();
        let len = self.extents[self.axis];
        if count == 0 {
            return Ok(());
        }
        if is_partial && len == 0 {
            return Err(ErrorKind::PositionOutside { axis: self.axis, index: 0, extent: 0 }.into());
        }
        let inner = self.extents[self.axis + 1..].iter().product();
        if let Some(stored) = self.in_three_axes() {
            let lines = || PlacedElements {
                operand: Operand::new(self.store, stored.range().start),
                extents: stored.axes.iter().map(|axis| axis.extent).collect(),
                stored: Some(stored.clone()),
                of: Box::new(Nowhere(size_of::<T>())),
            };
            let is_enough = count >= LINES_MIN || len <= BLOCK;
            // Read in place only if the kernel writes to another array or program memory, because the kernel
            // must not read its own results.
            let is_apart = into.extents.len() == 1 && !std::ptr::addr_eq(into.operand.store, self.store);
            if is_enough && is_apart && self.can_be_read(&stored, into.operand.store) {
                return launch::<T, S, F, O>([inner, 1, len], lines(), Bound::Elements(into));
            }
            let parts = len.div_ceil(BLOCK);
            let bytes = count.saturating_mul(parts).saturating_mul(size_of::<S>());
            let all_bytes = self.extents.iter().product::<usize>().saturating_mul(size_of::<T>());
            let is_small = bytes <= STAGED_BYTES.max(all_bytes / 4);
            if is_small && parts > 0 && self.can_be_read(&stored, self.store) {
                let partial = self.partial::<S, F, O>(lines(), inner, parts, count)?;
                let mut all = zeroed_vec(count)?;
                put_together::<S, O>(&partial, parts, true, &mut all, inner);
                return write(&all, into);
            }
        }
        let all = self.by_pieces::<S, F, O>(count)?;
        write(&all, into)
    }

    /// Writes an extreme of each line, or its index, if a GPU stores the elements and the results in rows.
    /// Otherwise returns false.
    pub fn extreme_on_card(&self, of: Extreme, into: Bound<'_>) -> Result<bool> {
        let Bound::Elements(into) = into else { unreachable!("results are always elements of a view") };
        let into = self.checked_into(into)?;
        let (Some(of_lines), Some(target)) = (self.in_rows(), into.operand.target) else { return Ok(false) };
        let is_apart = into.extents.len() == 1 && !std::ptr::addr_eq(into.operand.store, self.store);
        if !is_apart || self.extents.contains(&0) {
            return Ok(false);
        }
        of_lines.extremes::<T>(of, (target, into.operand.start))
    }

    /// Writes the index of the first extreme of each line. The host compares the elements piece by piece.
    pub fn first_extremes(&self, is_least: bool, into: Bound<'_>) -> Result<()> {
        let Bound::Elements(into) = into else { unreachable!("results are always elements of a view") };
        let into = self.checked_into(into)?;
        let [before, along, after] = around(&self.extents, self.axis);
        if before * after > 0 && along == 0 {
            return Err(ErrorKind::PositionOutside { axis: self.axis, index: 0, extent: 0 }.into());
        }
        let mut found = zeroed_vec::<u64>(before * after)?;
        let mut best = zeroed_vec::<T>(before * after)?;
        let row_len = self.extents[1..].iter().product::<usize>().max(1);
        let at_once = (PIECE_BYTES / size_of::<T>() / row_len).max(1);
        for first in (0..self.extents[0]).step_by(at_once) {
            let mut of: Vec<Range<usize>> = self.extents.iter().map(|extent| 0..*extent).collect();
            of[0] = first..self.extents[0].min(first + at_once);
            for (number, value) in (first * row_len..).zip((self.read)(&of)?) {
                let line = number / (along * after) * after + number % after;
                let (k, so_far) = (number / after % along, best[line]);
                let is_more = if is_least { value < so_far } else { value > so_far };
                let is_nan = |value: T| value.partial_cmp(&value).is_none();
                if k == 0 || !is_nan(so_far) && (is_more || is_nan(value)) {
                    (best[line], found[line]) = (value, k as u64);
                }
            }
        }
        write(&found, into)
    }

    /// Writes cumulative sums or products along each line, if a GPU stores the elements and the results in
    /// rows. Otherwise returns false.
    pub fn accumulate_on_card(&self, how: Accumulation, into: Bound<'_>) -> Result<bool> {
        let Bound::Elements(into) = into else { unreachable!("results are always elements of a view") };
        let stored = into.stored.as_ref().filter(|stored| !stored.is_part() && !stored.is_tiled());
        let (Some(of_lines), Some(target), Some(stored)) = (self.in_rows(), into.operand.target, stored)
        else {
            return Ok(false);
        };
        let start = stored.range().start;
        if self.extents.contains(&0) || std::ptr::addr_eq(into.operand.store, self.store) {
            return Ok(false);
        }
        of_lines.accumulations::<T>(how == Accumulation::Product, (target, start))
    }

    /// Returns the elements as a box of three axes, if they are stored in rows without others between them.
    fn in_rows(&self) -> Option<RowBox<'_>> {
        let stored = self.stored.as_ref().filter(|stored| !stored.is_tiled())?;
        let mut longer = stored.axes.iter().skip_while(|axis| axis.extent == 1).skip(1);
        if !longer.all(|axis| axis.start == 0 && axis.extent == axis.tiles) {
            return None;
        }
        let [before, along, after] = around(&self.extents, self.axis);
        Some(RowBox { from: Operand::new(self.store, stored.range().start), before, along, after })
    }

    /// Reduces each block of each line. The results are in the order of blocks: first the first block of all
    /// lines, then the second block of all lines.
    fn partial<S, F, O>(
        &self,
        lines: PlacedElements<'_>,
        inner: usize,
        parts: usize,
        count: usize,
    ) -> Result<Vec<S>>
    where
        S: PrefixSummed,
        F: Function<(T,), S>,
        O: Function<(S, S), S>,
    {
        let results = IndexDomainStore::with_results(self.store, count * parts, size_of::<S>())?;
        let out = PlacedElements::of(Operand::changed(&results, 0), count * parts);
        launch::<T, S, F, O>([inner, parts, BLOCK], lines, Bound::Elements(out))?;
        let mut partial = zeroed_vec(count * parts)?;
        results.read_bytes(0..partial.len(), bytemuck::cast_slice_mut(&mut partial))?;
        Ok(partial)
    }

    /// Copies the elements to a device piece by piece, and reduces them there.
    fn by_pieces<S, F, O>(&self, count: usize) -> Result<Vec<S>>
    where
        S: PrefixSummed,
        F: Function<(T,), S>,
        O: Function<(S, S), S>,
    {
        let (axis, extents) = (self.axis, &self.extents);
        let mut all = zeroed_vec::<S>(count)?;
        let mut piece = extents.clone();
        piece[axis] = extents[axis].min(BLOCK);
        let most = STAGED_BYTES / size_of::<T>();
        for other in (0..piece.len()).filter(|other| *other != axis) {
            let beside = piece.iter().product::<usize>() / piece[other];
            piece[other] = piece[other].min((most / beside.max(1)).max(1));
        }
        // Use as many whole blocks of the axis as fit into the piece.
        let line = piece.iter().product::<usize>() / piece[axis].max(1);
        let blocks = (most / line.max(1) / BLOCK).max(1);
        piece[axis] = extents[axis].min(blocks * BLOCK);
        if extents.contains(&0) {
            return Ok(all);
        }
        let starts: Vec<usize> = extents.iter().zip(&piece).map(|(all, each)| all.div_ceil(*each)).collect();
        // Iterate fastest over the axis, so that blocks of a line come in ascending order.
        let mut order: Vec<usize> = (0..extents.len()).filter(|other| *other != axis).collect();
        order.push(axis);
        for number in 0..starts.iter().product() {
            let (mut rest, mut of) = (number, vec![0..0; extents.len()]);
            for &axis in order.iter().rev() {
                let start = rest % starts[axis] * piece[axis];
                of[axis] = start..extents[axis].min(start + piece[axis]);
                rest /= starts[axis];
            }
            let values = (self.read)(&of)?;
            let lens: Vec<usize> = of.iter().map(Range::len).collect();
            let [before, len, behind] = around(&lens, axis);
            let listed = ListedElements(bytemuck::cast_slice(&values), size_of::<T>());
            let extents = vec![before, len, behind];
            let of_values = Listing { bytes: listed.0, stride: listed.1, extents: extents.clone() };
            let operand = Operand::new(&listed, 0);
            let lines = PlacedElements { operand, extents, stored: None, of: Box::new(of_values) };
            let parts = len.div_ceil(BLOCK);
            let partial = self.partial::<S, F, O>(lines, behind, parts, before * behind)?;
            // Find the positions of this piece's results among all results.
            let mut own = zeroed_vec(before * behind)?;
            let is_first = of[axis].start == 0;
            let places = numbers(&without(&of, axis), &without(&self.extents, axis));
            own.iter_mut().zip(&places).for_each(|(own, place)| *own = all[*place]);
            put_together::<S, O>(&partial, parts, is_first, &mut own, behind);
            own.into_iter().zip(places).for_each(|(own, place)| all[place] = own);
        }
        Ok(all)
    }

    /// Checks the shape of the result: without the axis, or with length 1 along it. Returns the result as a
    /// range if its elements are contiguous.
    fn checked_into<'b>(&self, mut into: PlacedElements<'b>) -> Result<PlacedElements<'b>> {
        let (mut kept, expected) = (self.extents.clone(), without(&self.extents, self.axis));
        kept[self.axis] = 1;
        let is_kept = into.extents == kept;
        if !is_kept && into.extents != expected {
            let (kernel, place, argument) = (self.name.into(), String::new(), "into".into());
            return Err(
                ErrorKind::KernelShape { kernel, place, argument, expected, got: into.extents }.into()
            );
        }
        if let Some(stored) = into.stored.take_if(|stored| !stored.is_part() && !stored.is_tiled()) {
            let (start, len) = (stored.range().start, stored.range().len());
            into.extents = vec![len];
            into.stored = Some(StoredBox::range_of(start, len));
        }
        Ok(into)
    }

    /// Returns the storage positions of the elements as a box of three axes: before the axis, along it, and
    /// after it. `None` if they are not stored in rows.
    fn in_three_axes(&self) -> Option<StoredBox> {
        let stored = self.stored.as_ref().filter(|stored| !stored.is_tiled())?;
        let merged = |axes: &[DomainAxis]| -> Option<DomainAxis> {
            let none = DomainAxis { start: 0, extent: 1, tiles: 1, tile: 1 };
            axes.iter().try_fold(none, |all, axis| {
                let is_whole = axis.start == 0 && axis.extent == axis.tiles;
                (is_whole || all.extent == 1).then(|| DomainAxis {
                    start: all.start * axis.tiles + axis.start,
                    extent: all.extent * axis.extent,
                    tiles: all.tiles * axis.tiles,
                    tile: 1,
                })
            })
        };
        let (before, behind) = stored.axes.split_at(self.axis);
        let axes = vec![merged(before)?, behind[0], merged(&behind[1..])?];
        Some(StoredBox { axes })
    }

    /// Returns true if work-items on the devices of a store can read the elements in place.
    fn can_be_read(&self, stored: &StoredBox, by: &dyn OperandStore) -> bool {
        let operand = Operand::new(self.store, stored.range().start);
        StripedArgument::new(0, &operand, stored, Vec::new(), by).is_some()
    }
}

/// Returns the numbers of elements along the axes before an axis, along it, and along the axes after it.
fn around(extents: &[usize], axis: usize) -> [usize; 3] {
    [extents[..axis].iter().product(), extents[axis], extents[axis + 1..].iter().product()]
}

/// Returns the row-major indices of all positions in a box.
fn numbers(of: &[Range<usize>], extents: &[usize]) -> Vec<usize> {
    of.iter().zip(extents).fold(vec![0], |numbers, (axis, extent)| {
        let next = |number: usize| axis.clone().map(move |at| number * extent + at);
        numbers.into_iter().flat_map(next).collect()
    })
}

/// Returns a list without the entry of one axis.
fn without<A: Clone>(axes: &[A], axis: usize) -> Vec<A> {
    let mut axes = axes.to_vec();
    axes.remove(axis);
    axes
}

/// Combines the results of blocks with the result of earlier blocks in the same line. The first ones have
/// none.
fn put_together<S: PrefixSummed, O: Function<(S, S), S>>(
    partial: &[S],
    parts: usize,
    is_first: bool,
    all: &mut [S],
    inner: usize,
) {
    for (all, partial) in all.chunks_exact_mut(inner).zip(partial.chunks_exact(parts * inner)) {
        for (number, block) in partial.chunks_exact(inner).enumerate() {
            for (all, own) in all.iter_mut().zip(block) {
                *all = if is_first && number == 0 { *own } else { O::call((*all, *own)) };
            }
        }
    }
}

fn launch<T, S, F, O>(of: [usize; 3], lines: PlacedElements<'_>, out: Bound<'_>) -> Result<()>
where
    T: PrefixSummed,
    S: PrefixSummed,
    F: Function<(T,), S>,
    O: Function<(S, S), S>,
{
    let [inner, parts, each] = of.map(values);
    let arguments = vec![inner, parts, each, Bound::Elements(lines), out];
    run(&KernelVariants::of::<reduced<T, S, F, O>>()?, arguments, &LaunchOptions::USUAL)
}

/// Writes all results, which are in host memory row by row.
fn write<S: PrefixSummed>(all: &[S], into: PlacedElements<'_>) -> Result<()> {
    let (bytes, stride) = (bytemuck::cast_slice(all), size_of::<S>());
    let (listed, extents) = (ListedElements(bytes, stride), into.extents.clone());
    let of = Box::new(Listing { bytes, stride, extents: extents.clone() });
    let stored = (extents.len() == 1).then(|| StoredBox::range_of(0, all.len()));
    let from = PlacedElements { operand: Operand::new(&listed, 0), extents, stored, of };
    let arguments = vec![Bound::Elements(from), Bound::Elements(into)];
    run(&KernelVariants::of::<copied<S>>()?, arguments, &LaunchOptions::OF_LIBRARY)
}

/// A launch argument whose elements are in host memory, row by row.
struct Listing<'a> {
    bytes: &'a [u8],
    stride: usize,
    extents: Vec<usize>,
}

impl Broadcast for Listing<'_> {
    fn stride(&self) -> usize {
        self.stride
    }

    fn shown(&self, positions: &[Range<isize>]) -> SignedBox {
        inside(positions, &self.extents)
    }

    fn read_bytes(&self, of: &[Range<isize>], into: &mut [u8]) -> Result<()> {
        let of: Vec<Range<usize>> = of.iter().map(|axis| axis.start as usize..axis.end as usize).collect();
        let Some((last, others)) = of.split_last() else { return Ok(()) };
        let row = last.len() * self.stride;
        let starts = numbers(others, &self.extents);
        for (start, into) in starts.into_iter().zip(into.chunks_exact_mut(row.max(1))) {
            let first = (start * self.extents[others.len()] + last.start) * self.stride;
            into.copy_from_slice(&self.bytes[first..first + row]);
        }
        Ok(())
    }
}

/// A placeholder for elements that are read in place, with their size in bytes.
struct Nowhere(usize);

impl Broadcast for Nowhere {
    fn stride(&self) -> usize {
        self.0
    }

    fn shown(&self, positions: &[Range<isize>]) -> SignedBox {
        positions.to_vec()
    }

    fn read_bytes(&self, _: &[Range<isize>], _: &mut [u8]) -> Result<()> {
        unreachable!("these arguments are read in place, without a copy")
    }
}
