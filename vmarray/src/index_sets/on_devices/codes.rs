//! Values of some columns as one number for each tuple, on devices, and tuples sorted by it.

use std::ops::Range;
use std::sync::Arc;

use backend_api::{Device, DeviceKind};
use vmarray_kernel::{Anywhere, At, Own, kernel};

use super::super::{Tuples, count_of};
use crate::array::VirtualArray;
use crate::array::alike::scratch;
use crate::base::element::Element;
use crate::base::error::{Error, Result};
use crate::base::memory::zeroed_vec;
use crate::ops::executor::{Operand, OperandStore};
use crate::ops::launch::{Given, READ_IN_PLACE_MAX};
use crate::ops::order::{Order as _, last_not_above};
use crate::ops::sort::sort;
use crate::ops::view::ViewMut as _;

/// The tuples of a part of a set have numbers of 32 bits.
pub(super) const TUPLES_MAX: usize = u32::MAX as usize - 1;

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

/// Tuples of a part of a set, as many values each.
pub(super) struct DeviceRows<'a, D: Device> {
    values: RowValues<'a, D>,
    /// The number of the first.
    pub first: usize,
    pub width: usize,
}

enum RowValues<'a, D: Device> {
    /// Where they lie, among so many values.
    Lent(&'a dyn OperandStore, usize),
    /// Copied to the devices.
    Loaded(VirtualArray<u64, D>),
}

impl<D: Device> DeviceRows<'_, D> {
    /// All values that items may read.
    pub fn given<'g>(&'g self, to: Given<'g>) -> Given<'g> {
        match &self.values {
            RowValues::Lent(store, len) => to.all_of(Operand::new(*store, 0), *len),
            RowValues::Loaded(array) => to.all(array),
        }
    }

    /// The values of a column that items may read.
    fn column(&self, column: usize) -> Given<'_> {
        Given::default().value(self.first).value(self.width).value(column)
    }
}

/// A part of how values of some columns become a code. A column is known by its place among these.
pub(super) enum CodeStep<D: Device> {
    /// The place of a value.
    Place { key: usize, least: u64, extent: u64, scale: u64 },
    /// The rank of the code so far.
    Rank { distinct: VirtualArray<u64, D> },
    /// The rank of a value.
    RankOf { key: usize, distinct: VirtualArray<u64, D>, scale: u64 },
}

/// Tuples by the codes of some of their values: in the order of these values, and of the tuples where they
/// are equal.
pub(super) struct DeviceGroups<'a, D: Device> {
    pub rows: DeviceRows<'a, D>,
    pub steps: Vec<CodeStep<D>>,
    pub sorted: VirtualArray<u64, D>,
    pub order: VirtualArray<u32, D>,
}

/// The devices of an array, which tuples are grouped on.
pub(super) struct TupleDevices<'a, T: Element, D: Device>(pub &'a VirtualArray<T, D>);

impl<T: Element, D: Device> TupleDevices<'_, T, D> {
    /// An array of the devices that is worked with.
    pub fn scratch<U: Element>(&self, len: usize) -> Result<VirtualArray<U, D>> {
        let devices: Vec<_> = self.0.pager().channels().iter().map(|channel| channel.device()).collect();
        scratch(&devices, len)
    }

    /// The array that a set lies in, if that is read where it lies: if both are on one device.
    pub fn lent<'s, S: Tuples + ?Sized>(&self, set: &'s S) -> Option<&'s dyn OperandStore> {
        let store = set.in_array()?;
        let (own, channels) = (self.0.pager().channels(), store.pager()?.channels());
        let device = own.first()?.device();
        // What files have is worked on in RAM.
        let is_file = device.info().kind == DeviceKind::File;
        let mut all = own.iter().chain(channels);
        let is_there = all.all(|channel| Arc::ptr_eq(channel.device(), device));
        (is_there && !is_file && channels.len() <= READ_IN_PLACE_MAX).then_some(store)
    }

    /// A part of a set, copied to the devices unless it is read where it lies.
    pub fn rows<'s, S: Tuples + ?Sized>(
        &self,
        set: &'s S,
        tuples: &Range<usize>,
    ) -> Result<DeviceRows<'s, D>> {
        /// Values that are copied at a time.
        const VALUES: usize = 1 << 20;
        let width = set.dimensions().len();
        if let Some(store) = self.lent(set) {
            let values = RowValues::Lent(store, set.len() * width);
            return Ok(DeviceRows { values, first: tuples.start, width });
        }
        let array = self.scratch::<u64>(count_of(tuples.len(), width)?)?;
        if let Some(values) = set.in_memory() {
            array.write(0, &values[tuples.start * width..tuples.end * width])?;
            return Ok(DeviceRows { values: RowValues::Loaded(array), first: 0, width });
        }
        let at_once = (VALUES / width.max(1)).min(tuples.len()).max(1);
        let mut values = zeroed_vec(at_once * width)?;
        for first in tuples.clone().step_by(at_once) {
            let here = &mut values[..at_once.min(tuples.end - first) * width];
            set.read_tuples(first, here)?;
            array.write((first - tuples.start) * width, here)?;
        }
        Ok(DeviceRows { values: RowValues::Loaded(array), first: 0, width })
    }

    /// Sorts tuples of a part of a set by some of their columns, the first of which counts most.
    pub fn group<'s, S: Tuples + ?Sized>(
        &self,
        set: &'s S,
        tuples: &Range<usize>,
        keys: &[usize],
    ) -> Result<DeviceGroups<'s, D>> {
        let rows = self.rows(set, tuples)?;
        let (sorted, order) = (self.scratch::<u64>(tuples.len())?, self.scratch::<u32>(tuples.len())?);
        let (mut steps, mut places) = (Vec::new(), 1_u128);
        for (key, column) in keys.iter().enumerate().rev() {
            let found = rows.given(rows.column(*column)).own(&sorted).least::<bounds>()?;
            let [Some(least), Some(complement)] = found[..] else { continue };
            let extent = (!complement).saturating_sub(least);
            let fits = |places: u128| places * (u128::from(extent) + 1) <= u128::from(u64::MAX);
            let mut take = |step: CodeStep<D>| {
                self.code(&rows, keys, std::slice::from_ref(&step), &sorted)?;
                steps.push(step);
                Ok::<_, Error>(())
            };
            if !fits(places) && places > 1 {
                let distinct = sorted.unique(..)?;
                places = distinct.len() as u128;
                take(CodeStep::Rank { distinct })?;
            }
            let scale = places as u64;
            if fits(places) {
                take(CodeStep::Place { key, least, extent, scale })?;
                places *= u128::from(extent) + 1;
            } else {
                let distinct = self.values(&rows, *column, tuples.len())?.unique(..)?;
                places *= distinct.len() as u128;
                take(CodeStep::RankOf { key, distinct, scale })?;
            }
        }
        Given::default().result(&order).run::<numbered>()?;
        sort(&sorted, &(0..tuples.len()), Some(Operand::changed(&order, 0)), false)?;
        Ok(DeviceGroups { rows, steps, sorted, order })
    }

    /// The values of a column.
    fn values(&self, rows: &DeviceRows<'_, D>, column: usize, len: usize) -> Result<VirtualArray<u64, D>> {
        let values = self.scratch::<u64>(len)?;
        self.write_column(rows, column, &values)?;
        Ok(values)
    }

    /// Writes the values of a column to zeroes.
    pub fn write_column(
        &self,
        rows: &DeviceRows<'_, D>,
        column: usize,
        to: &VirtualArray<u64, D>,
    ) -> Result<()> {
        let given = rows.column(column).value(0_u64).value(u64::MAX).value(1_u64);
        rows.given(given).result(to).run::<coded>()
    }

    /// Goes on with the codes of tuples, by columns with these places in them.
    pub fn code(
        &self,
        rows: &DeviceRows<'_, D>,
        keys: &[usize],
        steps: &[CodeStep<D>],
        codes: &VirtualArray<u64, D>,
    ) -> Result<()> {
        for step in steps {
            match step {
                CodeStep::Place { key, least, extent, scale } => {
                    let given = rows.column(keys[*key]).value(*least).value(*extent).value(*scale);
                    rows.given(given).result(codes).run::<coded>()?;
                }
                CodeStep::Rank { distinct } => {
                    Given::default().all(distinct).result(codes).run::<ranked>()?;
                }
                CodeStep::RankOf { key, distinct, scale } => {
                    let ranks = self.values(rows, keys[*key], codes.len())?;
                    Given::default().all(distinct).result(&ranks).run::<ranked>()?;
                    Given::default().value(*scale).own(&ranks).result(codes).run::<joined>()?;
                }
            }
        }
        Ok(())
    }
}
