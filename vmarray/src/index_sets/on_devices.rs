//! Joins on the devices that have the tuples. Keys of the second set are sorted with the numbers of their
//! tuples, each key of the first set is searched there, the prefix sums of what was found say where results
//! begin, and each value of a result is written by an item of its own. No step but sums of blocks of 1024
//! counts goes through the host.
//!
//! The common values become one number, as on the host: their place in a box. Where that has too many
//! places, values, or the numbers made so far, are replaced by their ranks among those of the second set.

#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::Arc;

use backend_api::Device;
use vmarray_kernel::{Anywhere, At, Own, kernel};

use super::cut::SetCut;
use super::merge::Merge;
use super::{PagedIndexSet, Tuples, count_of};
use crate::array::VirtualArray;
use crate::array::alike::scratch;
use crate::base::element::Element;
use crate::base::error::{ErrorKind, Result};
use crate::base::memory::zeroed_vec;
use crate::ops::executor::{Operand, OperandStore};
use crate::ops::launch::{Given, READ_IN_PLACE_MAX};
use crate::ops::order::{Order as _, last_not_above};
use crate::ops::sort::sort;
use crate::ops::view::{INTERNAL, Store as _, ViewMut as _};

/// Dimensions of a second set, at most: a bit says of each whether it is of results.
const WIDTH_MAX: usize = u64::BITS as usize;
/// Dimensions of a first set, at most, so that results have places of 32 bits.
const A_WIDTH_MAX: usize = 1 << 16;
/// The tuples of a part of a set have numbers of 32 bits.
const TUPLES_MAX: usize = u32::MAX as usize - 1;
/// Results that are written at a time: what each is of takes four bytes.
const RESULTS_AT_ONCE: usize = if cfg!(test) { 20_000 } else { 1 << 25 };

/// The values of a column and their complements, the least of which say what the column spans.
#[kernel(crate = vmarray_kernel)]
fn bounds(
    at: At<1>,
    first: usize,
    width: usize,
    column: usize,
    rows: &Anywhere<u64>,
    _own: &Own<u64>,
) -> (u64, u64) {
    let value = rows[(first + at.index()) * width + column];
    (value, !value)
}

/// Goes on with a code by the place of a value, if there is one so far and the value has one.
#[kernel(crate = vmarray_kernel)]
fn coded(
    at: At<1>,
    first: usize,
    width: usize,
    column: usize,
    least: u64,
    extent: u64,
    scale: u64,
    rows: &Anywhere<u64>,
    codes: &mut Own<u64>,
) {
    let above = rows[(first + at.index()) * width + column] - least;
    let code = codes.get();
    codes.set(if code != !0_u64 && above <= extent { code + above * scale } else { !0_u64 });
}

/// The place of a number among different ones, if it is one of them.
#[kernel(crate = vmarray_kernel)]
fn ranked(distinct: &Anywhere<u64>, codes: &mut Own<u64>) {
    let code = codes.get();
    let place = last_not_above(distinct, distinct.len(), code);
    codes.set(if distinct[place] == code { place as u64 } else { !0_u64 });
}

/// Goes on with a code by a rank.
#[kernel(crate = vmarray_kernel)]
fn joined(scale: u64, ranks: &Own<u64>, codes: &mut Own<u64>) {
    let (rank, code) = (ranks.get(), codes.get());
    codes.set(if rank != !0_u64 && code != !0_u64 { code + rank * scale } else { !0_u64 });
}

#[kernel(crate = vmarray_kernel)]
fn numbered(at: At<1>, out: &mut Own<u32>) {
    out.set(at.index() as u32);
}

/// Where the sorted codes begin that equal one, and in the place of this how many they are. Their end is
/// sought in steps that become longer, as most are few.
#[kernel(crate = vmarray_kernel)]
fn found(sorted: &Anywhere<u64>, firsts: &mut Own<u32>, codes: &mut Own<u64>) {
    let code = codes.get();
    let (mut start, mut end) = (0_usize, sorted.len());
    while start < end {
        let middle = start + (end - start) / 2;
        if sorted[middle] < code {
            start = middle + 1;
        } else {
            end = middle;
        }
    }
    let first = start;
    end = sorted.len();
    let mut step = 1_usize;
    while start < end {
        let place = if step < end - start { start + step - 1 } else { end - 1 };
        if sorted[place] == code {
            start = place + 1;
            step *= 2;
        } else {
            end = place;
            step = (end - start) / 2 + 1;
        }
    }
    firsts.set(first as u32);
    codes.set((start - first) as u64);
}

/// The tuple of the first set that each result is of: the last one whose results do not begin behind it.
#[kernel(crate = vmarray_kernel)]
fn lefts(at: At<1>, first: usize, begins: &Anywhere<u64>, out: &mut Own<u32>) {
    out.set(last_not_above(begins, begins.len(), (first + at.index()) as u64) as u32);
}

/// A value of a result, each of which has so many: those of a tuple of the first set, and of one of the second
/// set those whose bits are set. Its place is found in 32 bits, since cards divide them in a tenth of the time.
#[kernel(crate = vmarray_kernel)]
fn written(
    at: At<1>,
    first: usize,
    width: u32,
    a_first: usize,
    a_width: u32,
    b_first: usize,
    b_width: usize,
    b_rest: u64,
    a: &Anywhere<u64>,
    b: &Anywhere<u64>,
    lefts: &Anywhere<u32>,
    begins: &Anywhere<u64>,
    firsts: &Anywhere<u32>,
    order: &Anywhere<u32>,
    out: &mut Own<u64>,
) {
    let item = at.index() as u32;
    let result = item / width;
    let column = item - result * width;
    let left = lefts[result as usize] as usize;
    if column < a_width {
        out.set(a[(a_first + left) * a_width as usize + column as usize]);
    } else {
        let mut rest = b_rest;
        for _ in a_width..column {
            rest &= rest - 1;
        }
        let partner = firsts[left] as usize + (first + result as usize - begins[left] as usize);
        let right = order[partner] as usize;
        out.set(b[(b_first + right) * b_width + rest.trailing_zeros() as usize]);
    }
}

/// Whether it is worth an attempt: whether a device is a card.
pub(super) fn is_better<T: Element, D: Device>(merge: &Merge, like: &VirtualArray<T, D>) -> bool {
    let mut channels = like.pager().channels().iter();
    channels.any(|channel| channel.device().info().kind.is_gpu()) && can_combine(merge)
}

fn can_combine(merge: &Merge) -> bool {
    (1..=A_WIDTH_MAX).contains(&merge.a_width) && (1..=WIDTH_MAX).contains(&merge.b_width)
}

/// The results in an array on the devices of one that there is, whose pages are as long. About so many bytes
/// of these devices are used beside it.
pub(super) fn combine<A: Tuples + ?Sized, B: Tuples + ?Sized, T: Element, D: Device>(
    a: &A,
    b: &B,
    merge: &Merge,
    memory_bytes: Option<usize>,
    like: &VirtualArray<T, D>,
) -> Result<PagedIndexSet<D>> {
    let join = Join::new(a, b, merge, memory_bytes, like);
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
    let array = like.alike::<u64>(count_of(len, merge.width())?, INTERNAL)?;
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

/// Two sets, parts of which are combined on devices.
struct Join<'a, A: ?Sized, B: ?Sized, T: Element, D: Device> {
    a: &'a A,
    b: &'a B,
    merge: &'a Merge,
    like: &'a VirtualArray<T, D>,
    strips: SetCut,
    blocks: SetCut,
}

/// Tuples of a part of a set.
enum DeviceRows<'a, D: Device> {
    /// Where they lie, among so many values: the number of the first.
    Lent { store: &'a dyn OperandStore, values: usize, first: usize },
    /// Copied to the devices.
    Loaded(VirtualArray<u64, D>),
}

impl<D: Device> DeviceRows<'_, D> {
    /// All values that items may read.
    fn given<'g>(&'g self, to: Given<'g>) -> Given<'g> {
        match self {
            Self::Lent { store, values, .. } => to.all_of(Operand::new(*store, 0), *values),
            Self::Loaded(array) => to.all(array),
        }
    }

    fn first(&self) -> usize {
        match self {
            Self::Lent { first, .. } => *first,
            Self::Loaded(_) => 0,
        }
    }
}

/// A part of how common values become a code.
enum CodeStep<D: Device> {
    /// The place of a common value, by its number.
    Place { key: usize, least: u64, extent: u64, scale: u64 },
    /// The rank of the code so far.
    Rank { distinct: VirtualArray<u64, D> },
    /// The rank of a common value.
    RankOf { key: usize, distinct: VirtualArray<u64, D>, scale: u64 },
}

/// Tuples of the second set, by their codes.
struct DeviceGroups<'a, D: Device> {
    rows: DeviceRows<'a, D>,
    steps: Vec<CodeStep<D>>,
    sorted: VirtualArray<u64, D>,
    order: VirtualArray<u32, D>,
}

/// What the tuples of a part of the first set meet.
struct DeviceMatches<'a, D: Device> {
    rows: DeviceRows<'a, D>,
    /// Of each the place of the first partner among the sorted ones, and the number of its first result.
    firsts: VirtualArray<u32, D>,
    begins: VirtualArray<u64, D>,
    total: usize,
}

impl<'a, A: Tuples + ?Sized, B: Tuples + ?Sized, T: Element, D: Device> Join<'a, A, B, T, D> {
    fn new(
        a: &'a A,
        b: &'a B,
        merge: &'a Merge,
        memory_bytes: Option<usize>,
        like: &'a VirtualArray<T, D>,
    ) -> Self {
        /// Codes, the first partners and the first results.
        const STRIP_BYTES: usize = 8 + 4 + 8;
        /// Codes and numbers, and both once more to be sorted.
        const BLOCK_BYTES: usize = 2 * (8 + 4);
        /// Where sets are elsewhere, their parts leave room for others.
        const MEMORY_BYTES: usize = 1 << 30;
        let all = TUPLES_MAX;
        let mut join =
            Self { a, b, merge, like, strips: SetCut::of(a.len(), all), blocks: SetCut::of(b.len(), all) };
        let loaded = |is_lent: bool, width: usize| if is_lent { 0 } else { 8 * width };
        let (a_lent, b_lent) = (join.lent(a).is_some(), join.lent(b).is_some());
        let strip_bytes = STRIP_BYTES + loaded(a_lent, merge.a_width);
        let block_bytes = BLOCK_BYTES + loaded(b_lent, merge.b_width);
        let default_bytes = if a_lent && b_lent { usize::MAX } else { MEMORY_BYTES };
        let half = memory_bytes.unwrap_or(default_bytes) / 2;
        join.strips = SetCut::of(a.len(), (half / strip_bytes).min(all));
        join.blocks = SetCut::of(b.len(), (half / block_bytes).min(all));
        join
    }

    /// An array of the devices that is worked with.
    fn scratch<U: Element>(&self, len: usize) -> Result<VirtualArray<U, D>> {
        let devices: Vec<_> = self.like.pager().channels().iter().map(|channel| channel.device()).collect();
        scratch(&devices, len)
    }

    /// The array that a set lies in, if that is read where it lies: if both are on one device.
    fn lent<'s, S: Tuples + ?Sized>(&self, set: &'s S) -> Option<&'s dyn OperandStore> {
        let store = set.in_array()?;
        let (own, channels) = (self.like.pager().channels(), store.pager()?.channels());
        let device = own.first()?.device();
        let mut all = own.iter().chain(channels);
        let is_there = all.all(|channel| Arc::ptr_eq(channel.device(), device));
        (is_there && channels.len() <= READ_IN_PLACE_MAX).then_some(store)
    }

    /// A part of a set, copied to the devices unless it is read where it lies.
    fn rows<'s, S: Tuples + ?Sized>(&self, set: &'s S, tuples: &Range<usize>) -> Result<DeviceRows<'s, D>> {
        /// Values that are copied at a time.
        const VALUES: usize = 1 << 20;
        let width = set.dimensions().len();
        if let Some(store) = self.lent(set) {
            return Ok(DeviceRows::Lent { store, values: set.len() * width, first: tuples.start });
        }
        let array = self.scratch::<u64>(count_of(tuples.len(), width)?)?;
        if let Some(values) = set.in_memory() {
            array.write(0, &values[tuples.start * width..tuples.end * width])?;
            return Ok(DeviceRows::Loaded(array));
        }
        let at_once = (VALUES / width).max(1).min(tuples.len());
        let mut values = zeroed_vec(at_once * width)?;
        for first in tuples.clone().step_by(at_once) {
            let here = &mut values[..at_once.min(tuples.end - first) * width];
            set.read_tuples(first, here)?;
            array.write((first - tuples.start) * width, here)?;
        }
        Ok(DeviceRows::Loaded(array))
    }

    /// Finds what each part of the first set meets of each part of the second one, in order.
    fn for_each(
        &self,
        mut work: impl FnMut(Arc<DeviceGroups<'a, D>>, DeviceMatches<'a, D>) -> Result<()>,
    ) -> Result<()> {
        if self.strips.parts() == 0 {
            return Ok(());
        }
        for block in (0..self.blocks.parts()).map(|number| self.blocks.part(number)) {
            let groups = Arc::new(self.group(&block)?);
            for strip in (0..self.strips.parts()).map(|number| self.strips.part(number)) {
                let matches = self.find(&groups, &strip)?;
                work(Arc::clone(&groups), matches)?;
            }
        }
        Ok(())
    }

    fn group(&self, tuples: &Range<usize>) -> Result<DeviceGroups<'a, D>> {
        let rows = self.rows(self.b, tuples)?;
        let (sorted, order) = (self.scratch::<u64>(tuples.len())?, self.scratch::<u32>(tuples.len())?);
        let (mut steps, mut places) = (Vec::new(), 1_u128);
        for (key, column) in self.merge.b_keys.iter().enumerate() {
            let (width, first) = (self.merge.b_width, rows.first());
            let given = rows.given(Given::default().value(first).value(width).value(*column));
            let found = given.own(&sorted).least::<bounds>()?;
            let (least, most) = match found[..] {
                [Some(least), Some(complement)] => (least, !complement),
                _ => continue,
            };
            let extent = most.saturating_sub(least);
            let fits = |places: u128| places * (u128::from(extent) + 1) <= u128::from(u64::MAX);
            let mut take = |step: CodeStep<D>| {
                self.code(&rows, &self.merge.b_keys, width, std::slice::from_ref(&step), &sorted)?;
                steps.push(step);
                Ok::<_, crate::Error>(())
            };
            if !fits(places) {
                let distinct = sorted.unique(..)?;
                places = distinct.len() as u128;
                take(CodeStep::Rank { distinct })?;
            }
            let scale = places as u64;
            if fits(places) {
                take(CodeStep::Place { key, least, extent, scale })?;
                places *= u128::from(extent) + 1;
            } else {
                let values = self.values(&rows, width, *column, tuples.len())?;
                let distinct = values.unique(..)?;
                places *= distinct.len() as u128;
                take(CodeStep::RankOf { key, distinct, scale })?;
            }
        }
        Given::default().result(&order).run::<numbered>()?;
        sort(&sorted, &(0..tuples.len()), Some(Operand::changed(&order, 0)), false)?;
        Ok(DeviceGroups { rows, steps, sorted, order })
    }

    /// The values of a column.
    fn values(
        &self,
        rows: &DeviceRows<'_, D>,
        width: usize,
        column: usize,
        len: usize,
    ) -> Result<VirtualArray<u64, D>> {
        let values = self.scratch::<u64>(len)?;
        let given = Given::default().value(rows.first()).value(width).value(column);
        let given = given.value(0_u64).value(u64::MAX).value(1_u64);
        rows.given(given).result(&values).run::<coded>()?;
        Ok(values)
    }

    /// Goes on with the codes of tuples.
    fn code(
        &self,
        rows: &DeviceRows<'_, D>,
        keys: &[usize],
        width: usize,
        steps: &[CodeStep<D>],
        codes: &VirtualArray<u64, D>,
    ) -> Result<()> {
        for step in steps {
            match step {
                CodeStep::Place { key, least, extent, scale } => {
                    let given = Given::default().value(rows.first()).value(width).value(keys[*key]);
                    let given = given.value(*least).value(*extent).value(*scale);
                    rows.given(given).result(codes).run::<coded>()?;
                }
                CodeStep::Rank { distinct } => {
                    Given::default().all(distinct).result(codes).run::<ranked>()?;
                }
                CodeStep::RankOf { key, distinct, scale } => {
                    let ranks = self.values(rows, width, keys[*key], codes.len())?;
                    Given::default().all(distinct).result(&ranks).run::<ranked>()?;
                    Given::default().value(*scale).own(&ranks).result(codes).run::<joined>()?;
                }
            }
        }
        Ok(())
    }

    fn find(&self, groups: &DeviceGroups<'_, D>, tuples: &Range<usize>) -> Result<DeviceMatches<'a, D>> {
        let rows = self.rows(self.a, tuples)?;
        let (begins, firsts) = (self.scratch::<u64>(tuples.len())?, self.scratch::<u32>(tuples.len())?);
        self.code(&rows, &self.merge.a_keys, self.merge.a_width, &groups.steps, &begins)?;
        Given::default().all(&groups.sorted).result(&firsts).result(&begins).run::<found>()?;
        let total = begins.exclusive_prefix_sum(..)? as usize;
        Ok(DeviceMatches { rows, firsts, begins, total })
    }

    /// Writes the results of a part, of which the first one has this number.
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
        let of_results = self.scratch::<u32>(at_once)?;
        let rest = merge.b_rest.iter().fold(0_u64, |bits, column| bits | 1 << column);
        for first in (0..*total).step_by(at_once) {
            let here = at_once.min(total - first);
            let given = Given::default().value(first).all(begins);
            given.result_in(&of_results, 0..here).run::<lefts>()?;
            let given = Given::default().value(first).value(width as u32);
            let given = given.value(rows.first()).value(merge.a_width as u32);
            let given = given.value(groups.rows.first()).value(merge.b_width).value(rest);
            let given = groups.rows.given(rows.given(given)).all(&of_results).all(begins).all(firsts);
            let start = (first_of_all + first) * width;
            given.all(&groups.order).result_in(to, start..start + here * width).run::<written>()?;
        }
        Ok(())
    }
}
