//! Prefix sums over the elements of an array or source (program memory), by kernel launches or on the host.

use std::ops::Range;

use backend_api::kernel::HostForm;
use vmarray_kernel::{
    Anywhere, Append, At, ElementMemory, Function, Group, Kernel, KernelNumber, KernelScalar, KernelType,
    Own, kernel,
};

use super::block::{BLOCK, BlockSums, block_sums_on_host, since_start, written_on_host};
use super::listed::ListedElements;
use super::number::PrefixSummed;
use super::on_cards::scan_on_cards;
use super::plan::PrefixScan;
use super::tree::{Carried, SumTreeNode};
use crate::base::error::Result;
use crate::base::memory::zeroed_vec;
use crate::ops::executor::Operand;
use crate::ops::launch::{
    Appended, Bound, Inside, KernelVariants, LaunchOptions, PlacedElements, run, values,
};

/// The least number of elements for which the native GPU kernels are used.
const ON_CARDS_MIN: usize = if cfg!(test) { 2 } else { 4 << 10 };
/// The size in bytes of a piece that the host scans at a time.
pub(crate) const PIECE_BYTES: usize = 4 << 20;

/// The rows of a scan; a new sum begins at each row.
#[derive(Clone, Copy, KernelType)]
#[kernel_type(crate = vmarray_kernel)]
struct ScannedRows {
    /// Number of elements before the first work-item.
    before: usize,
    /// Number of elements in a row.
    len: usize,
}

/// Kernel function: returns an element's offset in its row, from the offset of the block's first element. A
/// block divides by the row length only once, because a division takes a GPU as long as all other operations.
#[kernel(crate = vmarray_kernel)]
fn within_row<const HAS_ROWS: usize>(first: usize, within: usize, row: usize) -> usize {
    let mut distance = first + within;
    if HAS_ROWS == 1 {
        if row < BLOCK {
            distance = (distance as u32 % row as u32) as usize;
        } else if distance >= row {
            distance -= row;
        }
    }
    distance
}

/// Kernel function: returns the offset in its row of a block's first element.
#[kernel(crate = vmarray_kernel)]
fn first_in_row<const HAS_ROWS: usize>(first: usize, row: usize) -> usize {
    let mut distance = first;
    if HAS_ROWS == 1 {
        distance = first % row;
    }
    distance
}

/// Kernel function: returns the prefix sum over 32 lanes, from the start of the lane's row on.
#[kernel(crate = vmarray_kernel)]
fn scanned<T: KernelNumber>(x: T, lane: usize, distance: usize) -> T {
    let mut sum = x;
    for step in 0..5 {
        let below = 1_usize << step;
        let other = lanes::shuffle(sum, ((lane + 32 - below) % 32) as u32);
        if lane >= below && distance >= below {
            sum = other + sum;
        }
    }
    sum
}

/// Kernel: computes the sum of each block, from the start of its last element's row on. Returns the number of
/// the block and the bits of the sum.
#[kernel(crate = vmarray_kernel, group = BLOCK)]
fn block_sums<T: KernelNumber + ElementMemory, B: Function<(T,), u64>, const HAS_ROWS: usize>(
    at: At<1>,
    rows: ScannedRows,
    of_lanes: &Group<T, 32>,
    x: &Own<T>,
    sums: &Append<[u64; 2]>,
) {
    let (i, index, row) = (at.in_group(), at.index(), rows.len);
    let lane = i % 32;
    let first = first_in_row::<HAS_ROWS>(index - i + rows.before, row);
    let sum = scanned(x.get(), lane, within_row::<HAS_ROWS>(first, i, row));
    if lane == 31 {
        of_lanes.set(i / 32, sum);
    }
    barrier();
    let last = within_row::<HAS_ROWS>(first, 32 * lane + 31, row);
    let whole = lanes::shuffle(scanned(of_lanes[lane], lane, last / 32), 31);
    if i == 0 {
        sums.push([(index / BLOCK) as u64, B::call((whole,))]);
    }
}

/// Kernel: writes the prefix sums of each block, plus the carry into the block.
#[kernel(crate = vmarray_kernel, group = BLOCK)]
fn written<T: KernelNumber + ElementMemory, const HAS_ROWS: usize>(
    at: At<1>,
    rows: ScannedRows,
    is_exclusive: bool,
    carried: &Anywhere<T>,
    of_lanes: &Group<T, 32>,
    x: &mut Own<T>,
) {
    let (i, index, row) = (at.in_group(), at.index(), rows.len);
    let first = first_in_row::<HAS_ROWS>(index - i + rows.before, row);
    let (lane, distance) = (i % 32, within_row::<HAS_ROWS>(first, i, row));
    let sum = scanned(x.get(), lane, distance);
    if lane == 31 {
        of_lanes.set(i / 32, sum);
    }
    barrier();
    let last = within_row::<HAS_ROWS>(first, 32 * lane + 31, row);
    let all = scanned(of_lanes[lane], lane, last / 32);
    let of_others = lanes::shuffle(all, ((i / 32 + 31) % 32) as u32);
    let left = lanes::shuffle(sum, ((lane + 31) % 32) as u32);
    // Add three sums: of earlier work-items (GPU threads) in this warp (32 threads), of earlier warps, of
    // earlier blocks.
    let mut value = sum;
    let mut is_begun = true;
    if is_exclusive {
        is_begun = lane > 0 && distance > 0;
        value = if is_begun { left } else { T::ZERO };
    }
    if i >= 32 && distance > lane {
        value = if is_begun { of_others + value } else { of_others };
        is_begun = true;
    }
    if distance > i {
        let carried = carried[index / BLOCK];
        value = if is_begun { carried + value } else { carried };
    }
    x.set(value);
}

impl PrefixScan<'_> {
    /// Computes the prefix sums, and writes them to the elements.
    pub fn run<T: PrefixSummed>(&self) -> Result<()> {
        let Range { start, end } = self.range;
        if end - start >= ON_CARDS_MIN && scan_on_cards::<T>(self)? {
            return Ok(());
        }
        let mut carried = Carried::<T>::before((start / BLOCK) as u64);
        // The host scans up to the first block boundary, because kernels process whole blocks.
        let head = start..start.next_multiple_of(BLOCK).min(end);
        let rest = head.end..end;
        if !self.page_len.is_multiple_of(BLOCK) || rest.is_empty() {
            return self.through_host(&self.range, &mut carried);
        }
        let sums = self.block_sums::<T>(&rest, head.len())?;
        self.through_host(&head, &mut carried)?;
        let mut before = Vec::with_capacity(sums.len());
        for (number, sum) in (1..).zip(sums) {
            before.push(T::rounded(&carried.sum()));
            carried.pass(self.node(sum, head.len() + number * BLOCK, BLOCK));
        }
        self.write(&rest, head.len(), &before)
    }

    /// Returns the tree node of a block with `len` elements, which ends at offset `end` of the scanned range.
    fn node<T: PrefixSummed>(&self, sum: T, end: usize, len: usize) -> SumTreeNode<T> {
        SumTreeNode { sum: sum.as_sum(), begins: end > 0 && since_start(end - 1, 0, self.row) < len }
    }

    /// Computes the sum of each block by a launch.
    fn block_sums<T: PrefixSummed>(&self, of: &Range<usize>, before: usize) -> Result<Vec<T>> {
        let count = of.len().div_ceil(BLOCK);
        let (mut totals, mut sums) = (Vec::<[u64; 2]>::with_capacity(count), zeroed_vec::<T>(count)?);
        let x = PlacedElements::of(Operand::new(self.store, of.start), of.len());
        let appended =
            Bound::Append(Box::new(Appended::to(&mut totals, count)), count, size_of::<[u64; 2]>(), false);
        let rows = values(ScannedRows { before, len: self.row });
        let arguments = vec![rows, Bound::Elements(x), appended];
        match self.row {
            0 => launch::<block_sums<T, T::ToBits, 0>>(block_sums_on_host::<T>, arguments)?,
            _ => launch::<block_sums<T, T::ToBits, 1>>(block_sums_on_host::<T>, arguments)?,
        }
        for [number, bits] in totals {
            sums[number as usize] = <T as KernelScalar>::from_value(bits);
        }
        Ok(sums)
    }

    /// Writes the prefix sums of blocks by a launch, given the carry into each block.
    fn write<T: PrefixSummed>(&self, of: &Range<usize>, before: usize, carried: &[T]) -> Result<()> {
        let listed = ListedElements(bytemuck::cast_slice(carried), size_of::<T>());
        let all = PlacedElements {
            operand: Operand::new(&listed, 0),
            extents: vec![carried.len()],
            stored: None,
            of: Box::new(Inside { operand: Operand::new(&listed, 0), len: carried.len() }),
        };
        let x = PlacedElements::of(Operand::changed(self.store, of.start), of.len());
        let (rows, is_exclusive) = (ScannedRows { before, len: self.row }, values(self.is_exclusive));
        let arguments = vec![values(rows), is_exclusive, Bound::Elements(all), Bound::Elements(x)];
        match self.row {
            0 => launch::<written<T, 0>>(written_on_host::<T>, arguments),
            _ => launch::<written<T, 1>>(written_on_host::<T>, arguments),
        }
    }

    fn through_host<T: PrefixSummed>(&self, of: &Range<usize>, carried: &mut Carried<T>) -> Result<()> {
        let at_once = (PIECE_BYTES / size_of::<T>()).next_multiple_of(BLOCK);
        let mut elements: Vec<T> = zeroed_vec(at_once.min(of.len()))?;
        let mut block = BlockSums::new();
        let mut start = of.start;
        while start < of.end {
            let end = of.end.min((start + 1).next_multiple_of(at_once));
            let piece = &mut elements[..end - start];
            self.store.read_bytes(start..end, bytemuck::cast_slice_mut(piece))?;
            let mut rest = &mut *piece;
            while !rest.is_empty() {
                let place = start + (end - start - rest.len());
                let len = (BLOCK - place % BLOCK).min(rest.len());
                let (own, others) = rest.split_at_mut(len);
                let (skip, first) = (place % BLOCK, place - self.range.start);
                let sum = block.scan(own, skip, first, self.row);
                let before = T::rounded(&carried.sum());
                block.write(own, (skip, first, self.row), self.is_exclusive, before);
                carried.pass(self.node(sum, first + len, len));
                rest = others;
            }
            self.store.write_bytes(start, bytemuck::cast_slice(piece))?;
            start = end;
        }
        Ok(())
    }
}

/// Writes the prefix sums of several lines. `lines` has one element of every line after the other. `sums`
/// contains the carries, and receives the totals.
pub(crate) fn scan_lines<T: PrefixSummed>(lines: &mut [T], sums: &mut [T::Sum], is_exclusive: bool) {
    for elements in lines.chunks_exact_mut(sums.len()) {
        for (element, sum) in elements.iter_mut().zip(&mut *sums) {
            let before = is_exclusive.then(|| T::rounded(sum));
            *sum = T::added(sum, &element.as_sum());
            *element = before.unwrap_or_else(|| T::rounded(sum));
        }
    }
}

/// Launches a kernel that has a compiled host form.
fn launch<K: Kernel>(form: HostForm, arguments: Vec<Bound<'_>>) -> Result<()> {
    let mut kernels = KernelVariants::of::<K>()?;
    kernels.host = Some(form);
    run(&kernels, arguments, &LaunchOptions::OF_LIBRARY)
}
