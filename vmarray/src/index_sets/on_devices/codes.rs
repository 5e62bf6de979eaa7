//! Join and group keys on devices: encodes column values of each tuple as one number, and sorts the numbers.

use std::ops::Range;
use std::sync::Arc;

use backend_api::{Device, DeviceKind};
use vmarray_kernel::{Anywhere, At, KernelType, Own, kernel};

use super::super::{Tuples, count_of};
use crate::array::VirtualArray;
use crate::array::empty_like::scratch;
use crate::base::element::Element;
use crate::base::error::{Error, Result};
use crate::base::memory::zeroed_vec;
use crate::ops::executor::{Operand, OperandStore};
use crate::ops::launch::{KernelArguments, READ_IN_PLACE_MAX};
use crate::ops::order::{Order as _, last_not_above};
use crate::ops::sort::sort;
use crate::ops::view::ViewMut as _;

/// Maximum number of tuples of a part, because tuple numbers have 32 bits.
pub(super) const TUPLES_MAX: usize = u32::MAX as usize - 1;

/// The position of tuples in an array of values, tuple after tuple.
#[derive(Clone, Copy, KernelType)]
#[kernel_type(crate = vmarray_kernel)]
pub(super) struct TupleRows {
    /// The index of the part's first tuple in the set.
    pub first: usize,
    /// Number of values of a tuple.
    pub width: usize,
}

/// The encoding of a column's value: its distance from the column's least value, times a scale.
#[derive(Clone, Copy, KernelType)]
#[kernel_type(crate = vmarray_kernel)]
pub(super) struct ValueCode {
    least: u64,
    /// The greatest distance from the least value.
    extent: u64,
    scale: u64,
}

/// Returns a value of a tuple.
#[kernel(crate = vmarray_kernel)]
pub(super) fn tuple_value(rows: &Anywhere<u64>, of: TupleRows, tuple: usize, column: usize) -> u64 {
    rows[(of.first + tuple) * of.width + column]
}

/// Returns a value of a column, and its bitwise complement. Their minima over all tuples are the bounds.
#[kernel(crate = vmarray_kernel)]
fn bounds(at: At<1>, of: TupleRows, column: usize, rows: &Anywhere<u64>, _own: &Own<u64>) -> (u64, u64) {
    let value = tuple_value(rows, of, at.index(), column);
    (value, !value)
}

/// Adds a value's part to the code of its tuple, if the value is within the bounds. Otherwise marks the tuple
/// as one that matches no other.
#[kernel(crate = vmarray_kernel)]
fn coded(at: At<1>, of: TupleRows, column: usize, by: ValueCode, rows: &Anywhere<u64>, codes: &mut Own<u64>) {
    let above = tuple_value(rows, of, at.index(), column) - by.least;
    let code = codes.get();
    codes.set(if code != !0_u64 && above <= by.extent { code + above * by.scale } else { !0_u64 });
}

/// Replaces a code by its rank among the distinct codes. If the code is not among them, marks the tuple as
/// one that matches no other.
#[kernel(crate = vmarray_kernel)]
fn ranked(distinct: &Anywhere<u64>, codes: &mut Own<u64>) {
    let code = codes.get();
    let place = last_not_above(distinct, distinct.len(), code);
    codes.set(if distinct[place] == code { place as u64 } else { !0_u64 });
}

/// Adds a rank's part to the code of its tuple.
#[kernel(crate = vmarray_kernel)]
fn joined(scale: u64, ranks: &Own<u64>, codes: &mut Own<u64>) {
    let (rank, code) = (ranks.get(), codes.get());
    codes.set(if rank != !0_u64 && code != !0_u64 { code + rank * scale } else { !0_u64 });
}

#[kernel(crate = vmarray_kernel)]
fn numbered(at: At<1>, out: &mut Own<u32>) {
    out.set(at.index() as u32);
}

/// The tuples of a part of a set on devices, tuple after tuple.
pub(super) struct DeviceRows<'a, D: Device> {
    values: RowValues<'a, D>,
    pub places: TupleRows,
}

enum RowValues<'a, D: Device> {
    /// The array that stores the set, and its number of values.
    InPlace(&'a dyn OperandStore, usize),
    /// A copy of the tuples on the devices.
    Loaded(VirtualArray<u64, D>),
}

impl<D: Device> DeviceRows<'_, D> {
    /// Adds the array of all values to the arguments of a kernel, whose GPU threads may read any of them.
    pub fn given<'g>(&'g self, to: KernelArguments<'g>) -> KernelArguments<'g> {
        match &self.values {
            RowValues::InPlace(store, len) => to.all_of(Operand::new(*store, 0), *len),
            RowValues::Loaded(array) => to.all(array),
        }
    }

    /// Adds the values of one column to the arguments of a kernel.
    fn column(&self, column: usize) -> KernelArguments<'_> {
        KernelArguments::default().value(self.places).value(column)
    }
}

/// One step of the encoding of tuples. `key` is the position of a column among the encoded columns.
pub(super) enum CodeStep<D: Device> {
    /// Encodes a value by its distance from the least value.
    Place { key: usize, by: ValueCode },
    /// Replaces the code so far by its rank among the distinct codes.
    Rank { distinct: VirtualArray<u64, D> },
    /// Encodes a value by its rank among the distinct values.
    RankOf { key: usize, distinct: VirtualArray<u64, D>, scale: u64 },
}

/// The tuples of a part, grouped by equal values in some columns. Tuples are in the order of these values,
/// and then in their original order.
pub(super) struct DeviceGroups<'a, D: Device> {
    pub rows: DeviceRows<'a, D>,
    pub steps: Vec<CodeStep<D>>,
    pub sorted: VirtualArray<u64, D>,
    pub order: VirtualArray<u32, D>,
}

/// The devices of an array, on which joins and groups run.
pub(super) struct TupleDevices<'a, T: Element, D: Device>(pub &'a VirtualArray<T, D>);

impl<T: Element, D: Device> TupleDevices<'_, T, D> {
    /// Creates a temporary array of `len` elements on the devices.
    pub fn scratch<U: Element>(&self, len: usize) -> Result<VirtualArray<U, D>> {
        let devices: Vec<_> = self.0.pager().channels().iter().map(|channel| channel.device()).collect();
        scratch(&devices, len)
    }

    /// Returns the array that stores `set` if the devices of this value can read that array in place.
    pub fn in_place<'s, S: Tuples + ?Sized>(&self, set: &'s S) -> Option<&'s dyn OperandStore> {
        let store = set.in_array()?;
        let (own, channels) = (self.0.pager().channels(), store.pager()?.channels());
        let device = own.first()?.device();
        // The devices cannot read a set in a file in place, because file devices compute in host RAM.
        let is_file = device.info().kind == DeviceKind::File;
        let mut all = own.iter().chain(channels);
        let is_there = all.all(|channel| Arc::ptr_eq(channel.device(), device));
        (is_there && !is_file && channels.len() <= READ_IN_PLACE_MAX).then_some(store)
    }

    /// Returns the tuples with the numbers `tuples` on the devices: in place if possible, otherwise a copy.
    pub fn rows<'s, S: Tuples + ?Sized>(
        &self,
        set: &'s S,
        tuples: &Range<usize>,
    ) -> Result<DeviceRows<'s, D>> {
        /// Number of values that one copy transfers.
        const VALUES: usize = 1 << 20;
        let width = set.dimensions().len();
        if let Some(store) = self.in_place(set) {
            let values = RowValues::InPlace(store, set.len() * width);
            return Ok(DeviceRows { values, places: TupleRows { first: tuples.start, width } });
        }
        let places = TupleRows { first: 0, width };
        let array = self.scratch::<u64>(count_of(tuples.len(), width)?)?;
        if let Some(values) = set.in_memory() {
            array.write(0, &values[tuples.start * width..tuples.end * width])?;
            return Ok(DeviceRows { values: RowValues::Loaded(array), places });
        }
        let at_once = (VALUES / width.max(1)).min(tuples.len()).max(1);
        let mut values = zeroed_vec(at_once * width)?;
        for first in tuples.clone().step_by(at_once) {
            let here = &mut values[..at_once.min(tuples.end - first) * width];
            set.read_tuples(first, here)?;
            array.write((first - tuples.start) * width, here)?;
        }
        Ok(DeviceRows { values: RowValues::Loaded(array), places })
    }

    /// Sorts the tuples with the numbers `tuples` by the columns `keys`, the most significant column first.
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
                take(CodeStep::Place { key, by: ValueCode { least, extent, scale } })?;
                places *= u128::from(extent) + 1;
            } else {
                let distinct = self.values(&rows, *column, tuples.len())?.unique(..)?;
                places *= distinct.len() as u128;
                take(CodeStep::RankOf { key, distinct, scale })?;
            }
        }
        KernelArguments::default().result(&order).run::<numbered>()?;
        sort(&sorted, &(0..tuples.len()), Some(Operand::changed(&order, 0)), false)?;
        Ok(DeviceGroups { rows, steps, sorted, order })
    }

    /// Returns the values of one column.
    fn values(&self, rows: &DeviceRows<'_, D>, column: usize, len: usize) -> Result<VirtualArray<u64, D>> {
        let values = self.scratch::<u64>(len)?;
        self.write_column(rows, column, &values)?;
        Ok(values)
    }

    /// Writes the values of a column to the array `to`, whose elements must be zero.
    pub fn write_column(
        &self,
        rows: &DeviceRows<'_, D>,
        column: usize,
        to: &VirtualArray<u64, D>,
    ) -> Result<()> {
        let given = rows.column(column).value(ValueCode { least: 0, extent: u64::MAX, scale: 1 });
        rows.given(given).result(to).run::<coded>()
    }

    /// Computes each tuple's code (one number for the columns `keys`) in `codes`, by these `steps`.
    pub fn code(
        &self,
        rows: &DeviceRows<'_, D>,
        keys: &[usize],
        steps: &[CodeStep<D>],
        codes: &VirtualArray<u64, D>,
    ) -> Result<()> {
        for step in steps {
            match step {
                CodeStep::Place { key, by } => {
                    let given = rows.column(keys[*key]).value(*by);
                    rows.given(given).result(codes).run::<coded>()?;
                }
                CodeStep::Rank { distinct } => {
                    KernelArguments::default().all(distinct).result(codes).run::<ranked>()?;
                }
                CodeStep::RankOf { key, distinct, scale } => {
                    let ranks = self.values(rows, keys[*key], codes.len())?;
                    KernelArguments::default().all(distinct).result(&ranks).run::<ranked>()?;
                    KernelArguments::default().value(*scale).own(&ranks).result(codes).run::<joined>()?;
                }
            }
        }
        Ok(())
    }
}
