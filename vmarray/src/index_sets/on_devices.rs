//! Joins and grouping (by equal values) of index sets on the devices that store the tuples, by sorting and
//! binary search:
//!
//! 1. The devices sort the keys of the second set together with the indices of their tuples.
//! 2. A binary search finds the matching tuples of each tuple of the first set.
//! 3. Prefix sums of the counts of matches give the start of each tuple's results. Only the sums of blocks
//!    of 1024 counts go through the host.
//! 4. A kernel writes the results, by one GPU thread for each value.
//!
//! A key is one number, as in RAM. It combines the tuple's values of the common dimensions like a row-major
//! index combines positions. If the key could exceed 64 bits, ranks of the values in the second set first
//! replace the values.

mod codes;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::Arc;

use backend_api::Device;
use vmarray_kernel::{Anywhere, At, KernelType, Own, Rows, kernel};

use self::codes::{DeviceGroups, DeviceRows, TUPLES_MAX, TupleDevices, TupleRows, tuple_value};
use super::cut::SetCut;
use super::merge::Merge;
use super::{Dimension, PagedIndexSet, Tuples, count_of};
use crate::array::VirtualArray;
use crate::base::element::Element;
use crate::base::error::{ErrorKind, Result};
use crate::ops::launch::KernelArguments;
use crate::ops::order::{Groups, find_partners, last_not_above};
use crate::ops::view::{INTERNAL, Store as _, ViewMut as _};

/// Maximum number of dimensions of a second set, because one bit each marks the dimensions of results.
const WIDTH_MAX: usize = u64::BITS as usize;
/// Maximum number of dimensions of a first set, so that positions of result values fit into 32 bits.
const A_WIDTH_MAX: usize = 1 << 16;
/// Number of results that a launch writes; the tuple numbers of each result take eight bytes.
const RESULTS_AT_ONCE: usize = if cfg!(test) { 20_000 } else { 1 << 24 };

/// Computes, for each result, the tuple of the first set and the tuple of the second set. The first is the
/// last tuple whose results do not begin after this result.
#[kernel(crate = vmarray_kernel)]
fn paired(
    at: At<1>,
    first: usize,
    begins: &Anywhere<u64>,
    firsts: &Anywhere<u32>,
    order: &Anywhere<u32>,
    out: &mut Own<[u32; 2]>,
) {
    let result = first + at.index();
    let left = last_not_above(begins, begins.len(), result as u64);
    let partner = firsts[left] as usize + (result - begins[left] as usize);
    out.set([left as u32, order[partner]]);
}

/// For each result, the tuples of both sets; and the columns of the results.
#[derive(Clone, Copy, KernelType)]
#[kernel_type(crate = vmarray_kernel)]
struct JoinedRows {
    a: TupleRows,
    b: TupleRows,
    /// Number of values of a result.
    width: u32,
    /// The columns of the second set that are in the results, one bit for each.
    b_rest: u64,
}

/// Writes one value of a result, from the tuple of the first or of the second set. Computes its position in
/// 32 bits, which GPUs divide faster than 64.
#[kernel(crate = vmarray_kernel)]
fn written(
    at: At<1>,
    rows: JoinedRows,
    a: &Anywhere<u64>,
    b: &Anywhere<u64>,
    pairs: &Anywhere<[u32; 2]>,
    out: &mut Own<u64>,
) {
    let item = at.index() as u32;
    let result = item / rows.width;
    let column = item - result * rows.width;
    let pair = pairs[result as usize];
    if column < rows.a.width as u32 {
        out.set(tuple_value(a, rows.a, pair[0] as usize, column as usize));
    } else {
        let mut rest = rows.b_rest;
        for _ in rows.a.width as u32..column {
            rest &= rest - 1;
        }
        out.set(tuple_value(b, rows.b, pair[1] as usize, rest.trailing_zeros() as usize));
    }
}

/// Writes one value of the common columns of all groups.
#[kernel(crate = vmarray_kernel)]
fn of_groups(
    at: At<1>,
    of: TupleRows,
    columns: &Anywhere<u32>,
    rows: &Anywhere<u64>,
    groups: &Rows<u64>,
    out: &mut Own<u64>,
) {
    let group = at.index() / columns.len();
    let column = columns[at.index() - group * columns.len()] as usize;
    out.set(tuple_value(rows, of, groups[[group, 0]] as usize, column));
}

pub(super) fn column<D: Device>(set: &PagedIndexSet<D>, column: usize) -> Result<VirtualArray<u64, D>> {
    let (devices, array) = (TupleDevices(set.array()), set.array().array_like::<u64>(set.len(), INTERNAL)?);
    devices.write_column(&devices.rows(set, &(0..set.len()))?, column, &array)?;
    Ok(array)
}

pub(super) fn group_by<D: Device>(
    set: &PagedIndexSet<D>,
    dimensions: Vec<Dimension>,
    keys: &[usize],
) -> Result<(PagedIndexSet<D>, Groups<u64, D>)> {
    if set.len() > TUPLES_MAX {
        return Err(ErrorKind::TooLong { elements: set.len() as u64, element_bytes: 8 }.into());
    }
    let devices = TupleDevices(set.array());
    let DeviceGroups { rows, sorted, order, .. } = devices.group(set, &(0..set.len()), keys)?;
    let groups = Groups::numbered(&sorted, &order)?;
    drop((sorted, order));
    let columns = devices.scratch::<u32>(keys.len())?;
    columns.write(0, &keys.iter().map(|column| *column as u32).collect::<Vec<_>>())?;
    let array = set.array().array_like::<u64>(groups.len() * keys.len(), INTERNAL)?;
    let given = rows.given(KernelArguments::default().value(rows.places).all(&columns));
    let given = given.all(groups.starts()).all(groups.order()?);
    given.result(&array).run::<of_groups>()?;
    Ok((PagedIndexSet::assemble(dimensions, array, groups.len()), groups))
}

/// Returns true if the devices should group or join, because one of them is a GPU.
pub(super) fn is_better<T: Element, D: Device>(merge: &Merge, like: &VirtualArray<T, D>) -> bool {
    like.pager().has_gpu() && can_combine(merge)
}

fn can_combine(merge: &Merge) -> bool {
    (1..=A_WIDTH_MAX).contains(&merge.a_width) && (1..=WIDTH_MAX).contains(&merge.b_width)
}

/// Writes the results of a join to an array on the devices of `like`, with its page length. The join needs
/// about `memory_bytes` more on these devices.
pub(super) fn combine<A: Tuples + ?Sized, B: Tuples + ?Sized, T: Element, D: Device>(
    a: &A,
    b: &B,
    merge: &Merge,
    memory_bytes: Option<usize>,
    like: &VirtualArray<T, D>,
) -> Result<PagedIndexSet<D>> {
    let join = DeviceJoin::new(a, b, merge, memory_bytes, like);
    let too_long = || ErrorKind::TooLong { elements: u64::MAX, element_bytes: 8 * merge.width() };
    let (mut totals, mut len, mut kept) = (Vec::new(), 0_usize, None);
    join.for_each(|grouped, found| {
        totals.push(found.total);
        len = len.checked_add(found.total).ok_or_else(too_long)?;
        if join.strips.parts() * join.blocks.parts() == 1 {
            kept = Some((grouped, found));
        }
        Ok(())
    })?;
    let array = like.array_like::<u64>(count_of(len, merge.width())?, INTERNAL)?;
    let (mut first, mut expected) = (0, totals.into_iter());
    let mut write = |grouped: Arc<DeviceGroups<'_, D>>, found: DeviceMatches<'_, D>| {
        let (expected, got) = (expected.next().unwrap_or(0), found.total);
        if got != expected {
            return Err(ErrorKind::InputChanged { expected, got }.into());
        }
        join.write(&grouped, &found, &array, first)?;
        first += got;
        Ok(())
    };
    match kept {
        Some((grouped, found)) => write(grouped, found)?,
        None => join.for_each(write)?,
    }
    Ok(PagedIndexSet::assemble(merge.dimensions.clone(), array, len))
}

/// A join of two sets on devices, part by part.
struct DeviceJoin<'a, A: ?Sized, B: ?Sized, T: Element, D: Device> {
    a: &'a A,
    b: &'a B,
    merge: &'a Merge,
    devices: TupleDevices<'a, T, D>,
    strips: SetCut,
    blocks: SetCut,
}

/// The matching tuples of each tuple in a part of the first set.
struct DeviceMatches<'a, D: Device> {
    rows: DeviceRows<'a, D>,
    /// For each tuple, the position of the first matching tuple among the sorted ones, and the number of the
    /// tuple's first result.
    firsts: VirtualArray<u32, D>,
    begins: VirtualArray<u64, D>,
    total: usize,
}

impl<'a, A: Tuples + ?Sized, B: Tuples + ?Sized, T: Element, D: Device> DeviceJoin<'a, A, B, T, D> {
    fn new(
        a: &'a A,
        b: &'a B,
        merge: &'a Merge,
        memory_bytes: Option<usize>,
        like: &'a VirtualArray<T, D>,
    ) -> Self {
        /// Bytes per tuple of the first set: its code, the first match, and the first result.
        const STRIP_BYTES: usize = 8 + 4 + 8;
        /// Bytes per tuple of the second set: its code and number, twice for the sort.
        const BLOCK_BYTES: usize = 2 * (8 + 4);
        /// Memory limit for sets that must be copied to the devices, in bytes.
        const MEMORY_BYTES: usize = 1 << 30;
        let (all, devices) = (TUPLES_MAX, TupleDevices(like));
        let loaded = |is_lent: bool, width: usize| if is_lent { 0 } else { 8 * width };
        let (is_a_in_place, is_b_in_place) = (devices.in_place(a).is_some(), devices.in_place(b).is_some());
        let strip_bytes = STRIP_BYTES + loaded(is_a_in_place, merge.a_width);
        let block_bytes = BLOCK_BYTES + loaded(is_b_in_place, merge.b_width);
        let default_bytes = if is_a_in_place && is_b_in_place { usize::MAX } else { MEMORY_BYTES };
        let half = memory_bytes.unwrap_or(default_bytes) / 2;
        let strips = SetCut::of(a.len(), (half / strip_bytes).min(all));
        let blocks = SetCut::of(b.len(), (half / block_bytes).min(all));
        Self { a, b, merge, devices, strips, blocks }
    }

    /// Finds the matching tuples of each part of the first set in each part of the second one, in order.
    fn for_each(
        &self,
        mut work: impl FnMut(Arc<DeviceGroups<'a, D>>, DeviceMatches<'a, D>) -> Result<()>,
    ) -> Result<()> {
        if self.strips.parts() == 0 {
            return Ok(());
        }
        for block in (0..self.blocks.parts()).map(|number| self.blocks.part(number)) {
            let groups = Arc::new(self.devices.group(self.b, &block, &self.merge.b_keys)?);
            for strip in (0..self.strips.parts()).map(|number| self.strips.part(number)) {
                let matches = self.find(&groups, &strip)?;
                work(Arc::clone(&groups), matches)?;
            }
        }
        Ok(())
    }

    fn find(&self, groups: &DeviceGroups<'_, D>, tuples: &Range<usize>) -> Result<DeviceMatches<'a, D>> {
        let (devices, len) = (&self.devices, tuples.len());
        let rows = devices.rows(self.a, tuples)?;
        let (codes, begins) = (devices.scratch::<u64>(len)?, devices.scratch::<u64>(len)?);
        let firsts = devices.scratch::<u32>(len)?;
        devices.code(&rows, &self.merge.a_keys, &groups.steps, &codes)?;
        let total = find_partners(&groups.sorted, &codes, (u64::MAX, 0), (&firsts, &begins))?;
        Ok(DeviceMatches { rows, firsts, begins, total })
    }

    /// Writes the results of a part, which begin at the given result number.
    fn write(
        &self,
        groups: &DeviceGroups<'_, D>,
        matches: &DeviceMatches<'_, D>,
        to: &VirtualArray<u64, D>,
        first_of_all: usize,
    ) -> Result<()> {
        let (merge, width) = (self.merge, self.merge.width());
        let DeviceMatches { rows, firsts, begins, total } = matches;
        let at_once = RESULTS_AT_ONCE.min(u32::MAX as usize / width).min((*total).max(1));
        let pairs = self.devices.scratch::<[u32; 2]>(at_once)?;
        let b_rest = merge.b_rest.iter().fold(0_u64, |bits, column| bits | 1 << column);
        let joined = JoinedRows { a: rows.places, b: groups.rows.places, width: width as u32, b_rest };
        for first in (0..*total).step_by(at_once) {
            let here = at_once.min(total - first);
            let given = KernelArguments::default().value(first).all(begins).all(firsts).all(&groups.order);
            given.result_in(&pairs, 0..here).run::<paired>()?;
            let given = groups.rows.given(rows.given(KernelArguments::default().value(joined))).all(&pairs);
            let start = (first_of_all + first) * width;
            given.result_in(to, start..start + here * width).run::<written>()?;
        }
        Ok(())
    }
}
