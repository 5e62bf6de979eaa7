//! Distinct elements of a view (`unique`), and groups of elements with equal keys (`group_by`).

use std::sync::OnceLock;

use backend_api::Device;
use bytemuck::{cast_slice, cast_slice_mut};
use vmarray_kernel::{Anywhere, At, ElementMemory, Function, KernelNumber, Own, kernel};

use super::by_blocks;
use super::in_ram::{self, EqualRuns};
use super::key_codes::KeyCodes;
use super::keys::{KeyOrdering, SingleKey, evaluated};
use super::searches::last_not_above;
use super::section::section;
use super::take::take;
use crate::array::VirtualArray;
use crate::array::empty_like::array_like;
use crate::base::element::{Element, Field};
use crate::base::error::{Result, expect_len};
use crate::base::progress::in_steps;
use crate::base::scoped_threads::CORES;
use crate::base::scratch_pool::ScratchVec;
use crate::ops::executor::{OperandStore as _, ResultStore};
use crate::ops::expr::index;
use crate::ops::launch::KernelArguments;
use crate::ops::query::QueryMut as _;
use crate::ops::scan::{Scan as _, added, converted, greater, lesser};
use crate::ops::sort::{
    KeyOrder, LookBack, Sort as _, SortKey, bytes_in_ram, is_unsupported, look_back, sort_in_ram,
    sort_pairs_in_ram,
};
use crate::ops::view::{INTERNAL, Linear, Section, Store, View, ViewMut as _};

/// The number of elements that one work-item reduces.
const PIECE: u64 = 256;

/// Kernel: computes the number of pieces of each group.
#[kernel(crate = vmarray_kernel)]
fn pieces(at: At<1>, piece: u64, starts: &Anywhere<u64>, out: &mut Own<u64>) {
    let group = at.index();
    let mut count = 0_u64;
    if group + 1 < starts.len() {
        count = (starts[group + 1] - starts[group] + piece - 1) / piece;
    }
    out.set(count);
}

/// Kernel: reduces one piece of a group, in ascending order of the elements.
#[kernel(crate = vmarray_kernel)]
fn reduced<
    T: KernelNumber + ElementMemory,
    R: KernelNumber + ElementMemory,
    F: Function<(T,), R>,
    O: Function<(R, R), R>,
>(
    at: At<1>,
    piece: u64,
    starts: &Anywhere<u64>,
    firsts: &Anywhere<u64>,
    values: &Anywhere<T>,
    out: &mut Own<R>,
) {
    let number = at.index() as u64;
    let group = last_not_above(firsts, firsts.len() - 1, number);
    let from = starts[group] + (number - firsts[group]) * piece;
    let last = starts[group + 1];
    let to = if from + piece < last { from + piece } else { last };
    let mut all = F::call((values[from as usize],));
    for k in from + 1..to {
        all = O::call((all, F::call((values[k as usize],))));
    }
    out.set(all);
}

#[kernel(crate = vmarray_kernel)]
fn differences(at: At<1>, starts: &Anywhere<u64>, out: &mut Own<u64>) {
    out.set(starts[at.index() + 1] - starts[at.index()]);
}

/// Copies an array to the first GPU among its devices. Returns `None` unless the array is striped over
/// several devices and fits into that GPU's memory.
fn gathered<T: Element, D: Device>(array: &VirtualArray<T, D>) -> Result<Option<VirtualArray<T, D>>> {
    let first = array.devices().first().map(|(device, _)| *device);
    let is_dealt = array.pager().channels().len() > 1;
    let Some(device) = first.filter(|device| is_dealt && device.info().kind.is_gpu()) else {
        return Ok(None);
    };
    let gathered = match array_like::<T, D>(&[device], array.page_len(), array.len(), usize::MAX) {
        Err(error) if error.device_error().is_some_and(is_unsupported) => return Ok(None),
        gathered => gathered?,
    };
    gathered.copy_from(0, array)?;
    Ok(Some(gathered))
}

/// Lists one number for each run of equal sorted elements, in an array with space for `more` numbers. Returns
/// `None` unless everything fits into the memory of one GPU.
fn listed_runs<T: SortKey, U: Element, D: Device>(
    sorted: &VirtualArray<T, D>,
    more: usize,
    list: impl Fn(u64) -> LookBack,
) -> Result<Option<VirtualArray<U, D>>> {
    let (gathered, range) = (gathered(sorted)?, 0..sorted.len());
    let from = gathered.as_ref().unwrap_or(sorted);
    let Some(runs) = look_back(from, &range, None, list(0))? else { return Ok(None) };
    let listed = from.array_like::<U>(runs as usize + more, INTERNAL)?;
    let room = Some((&listed as &dyn ResultStore, listed.len()));
    if look_back(from, &range, room, list(listed.len() as u64))?.is_none() {
        return Ok(None);
    }
    if gathered.is_none() {
        return Ok(Some(listed));
    }
    let stored = sorted.array_like::<U>(listed.len(), INTERNAL)?;
    stored.copy_from(0, &listed)?;
    Ok(Some(stored))
}

/// Returns the start of each run of equal sorted elements, and the end of the last run.
fn run_starts<T: SortKey, D: Device>(sorted: &VirtualArray<T, D>) -> Result<VirtualArray<u64, D>> {
    if sorted.is_empty() {
        return sorted.array_like(1, INTERNAL);
    }
    if let Some(starts) = listed_runs(sorted, 1, |room| LookBack::ListStarts { room })? {
        return Ok(starts);
    }
    let starts = by_blocks::listed(sorted, 1, |start, _| start as u64)?;
    starts.set(starts.len() - 1, sorted.len() as u64)?;
    Ok(starts)
}

pub(super) fn unique<T: SortKey, S: Store<Element = T>>(
    of: Section<'_, S>,
) -> Result<VirtualArray<T, S::Device>> {
    if in_ram::is_better(of.store().as_operand(INTERNAL), size_of::<T>() * of.len()) {
        return unique_in_ram(of);
    }
    let sorted = of.store().array_like::<T>(of.len(), INTERNAL)?;
    sorted.copy_from(0, of)?;
    sorted.sort(..)?;
    if let Some(distinct) = listed_runs(&sorted, 0, |room| LookBack::ListDistinct { room })? {
        return Ok(distinct);
    }
    by_blocks::listed(&sorted, 0, |_, element| element)
}

fn unique_in_ram<T: SortKey, S: Store<Element = T>>(
    of: Section<'_, S>,
) -> Result<VirtualArray<T, S::Device>> {
    let (mut elements, mut beside) =
        (ScratchVec::<T>::unspecified(of.len())?, ScratchVec::<T>::unspecified(of.len())?);
    of.read(0, &mut elements)?;
    let keys: &mut [T::KeyBits] = cast_slice_mut(&mut elements);
    let (order, bytes) = (KeyOrder::of::<T>(false), size_of_val(keys) as u64);
    in_steps(bytes, |steps| {
        steps.report(bytes)?;
        sort_in_ram(keys, cast_slice_mut(&mut beside), order, *CORES, steps)
    })?;
    let runs = EqualRuns::of(keys)?;
    let distinct: &mut [T::KeyBits] = &mut cast_slice_mut(&mut beside)[..runs.len()];
    runs.write(distinct, |at| keys[at])?;
    let out = of.store().array_like::<T>(distinct.len(), INTERNAL)?;
    out.write_range(0, cast_slice(distinct))?;
    Ok(out)
}

/// Types of numbers that [`Groups`] can reduce, for example by [`sum`](Groups::sum).
///
/// ```
/// use vmarray::prelude::*;
/// use vmarray::order::Groupable;
/// fn first_sum<T: Groupable>(keys: &Source<u8>, values: &Source<T>) -> vmarray::Result<T::Sum> {
///     keys.group_by(.., Field::<u8, u8>::whole())?.sum(values)?.get(0)
/// }
/// let (keys, values) = (Source::new(vec![2, 1, 1])?, Source::new(vec![9_u8, 250, 10])?);
/// assert_eq!(first_sum(&keys, &values)?, 260);
/// # Ok::<(), vmarray::Error>(())
/// ```
pub trait Groupable: SortKey {
    /// The type of a sum: `u64`, `i64` or `f64`.
    type Sum: SortKey;
}

macro_rules! groupable {
    ($($Sum:ty: $($T:ty)*;)*) => { $($(
        impl Groupable for $T {
            type Sum = $Sum;
        }
    )*)* };
}
groupable! {
    u64: u8 u16 u32 u64;
    i64: i8 i16 i32 i64;
    f64: f32 f64;
}

/// The groups of elements with equal keys, in ascending order of the keys. Created by
/// [`group_by`](super::Order::group_by).
///
/// Groups consist of element indices, so they also apply to other views of the same length, such as the
/// columns of a table. Each reduction gathers the values in the order of the groups, and reduces pieces of
/// 256 elements in ascending order of the indices. Float results are therefore the same on all devices.
/// Integer sums have the types `u64` and `i64`, and wrap on overflow; float sums have the type `f64`.
///
/// ```
/// use vmarray::prelude::*;
/// let (cities, sales) = (VirtualArray::<u16>::new(5)?, Source::new(vec![1.5_f32, 2.0, 4.0, -1.0, 0.5])?);
/// cities.write(0, &[7, 3, 7, 3, 9])?;
/// let groups = cities.group_by(.., Field::<u16, u16>::whole())?;
/// assert!(groups.len() == 3 && !groups.is_empty());
/// assert_eq!(groups.keys().to_vec(..)?, [3, 7, 9]);
/// assert_eq!(groups.counts()?.to_vec(..)?, [2, 2, 1]);
/// assert_eq!(groups.sum(&sales)?.to_vec(..)?, [1.0, 5.5, 0.5]);
/// assert_eq!(groups.min(&sales)?.to_vec(..)?, [-1.0, 1.5, 0.5]);
/// assert_eq!(groups.max(&sales)?.to_vec(..)?, [2.0, 4.0, 0.5]);
/// // The elements of a group.
/// let (order, starts) = (groups.order()?, groups.starts());
/// assert_eq!(order.to_vec(starts.get(1)? as usize..starts.get(2)? as usize)?, [0, 2]);
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Debug)]
pub struct Groups<K: SortKey, D: Device> {
    keys: VirtualArray<K, D>,
    starts: VirtualArray<u64, D>,
    order: GroupOrder<D>,
}

/// The indices of all elements, group by group.
#[derive(Debug)]
enum GroupOrder<D: Device> {
    OnDevices(VirtualArray<u64, D>),
    /// The indices in RAM, and the array to which the first call of `order` copies them.
    InRam(OrderInRam, OnceLock<VirtualArray<u64, D>>),
}

/// The indices of elements in RAM, group by group. They are computed from codes when first needed.
#[derive(Debug)]
struct OrderInRam {
    codes: Option<KeyCodes>,
    positions: OnceLock<ScratchVec<u32>>,
    len: usize,
}

impl OrderInRam {
    fn positions(&self) -> Result<&[u32]> {
        match (self.positions.get(), &self.codes) {
            (None, Some(codes)) => {
                let positions = codes.positions()?;
                Ok(self.positions.get_or_init(|| positions))
            }
            (positions, _) => Ok(positions.map_or(&[], |positions| positions)),
        }
    }
}

pub(super) fn group_by<S: Store, K: SingleKey<S::Element>>(
    of: Section<'_, S>,
    key: &K,
) -> Result<Groups<K::Key, S::Device>> {
    let (expr, is_descending) = key.key();
    let store = of.store().as_operand(INTERNAL);
    if of.len() <= u32::MAX as usize && in_ram::is_better(store, (size_of::<K::Key>() + 4) * of.len()) {
        let like = of.store().array_like::<K::Key>(0, INTERNAL)?;
        let mut keys = ScratchVec::<K::Key>::unspecified(of.len())?;
        if expr.is_element() {
            of.read(0, cast_slice_mut(&mut keys))?;
        } else {
            evaluated(of, expr)?.read(0, &mut keys)?;
        }
        return group_in_ram(keys, &like, is_descending);
    }
    let keys = evaluated(of, expr)?;
    let mut ordered = KeyOrdering::new(of)?;
    let sorted = ordered.by_keys(keys, is_descending)?;
    let starts = run_starts(&sorted)?;
    let keys = if sorted.is_in_files() {
        by_blocks::listed(&sorted, 0, |_, key| key)?
    } else {
        take(section(&sorted, ..)?, section(&starts, ..starts.len() - 1)?)?
    };
    Ok(Groups { keys, starts, order: GroupOrder::OnDevices(ordered.into_wide()?) })
}

/// Creates groups from keys in RAM. The resulting arrays are on the devices of another array.
fn group_in_ram<K: SortKey, D: Device>(
    mut keys: ScratchVec<K>,
    like: &VirtualArray<K, D>,
    is_descending: bool,
) -> Result<Groups<K, D>> {
    let (len, order) = (keys.len(), KeyOrder::of::<K>(is_descending));
    let elements: &mut [K::KeyBits] = cast_slice_mut(&mut keys);
    let groups = |distinct: &[K::KeyBits], starts: &[u64], codes, positions: Option<ScratchVec<u32>>| {
        let positions = positions.map_or_else(OnceLock::new, OnceLock::from);
        let groups = Groups {
            keys: like.array_like(distinct.len(), INTERNAL)?,
            starts: like.array_like(starts.len(), INTERNAL)?,
            order: GroupOrder::InRam(OrderInRam { codes, positions, len }, OnceLock::new()),
        };
        groups.keys.write_range(0, cast_slice(distinct))?;
        groups.starts.write_range(0, starts)?;
        Ok(groups)
    };
    if let Some((codes, distinct)) = KeyCodes::of(elements, |key| order.key(key))? {
        let starts: Vec<u64> = codes.starts().collect();
        return groups(&distinct, &starts, Some(codes), None);
    }
    let mut positions = in_ram::positions(len)?;
    let bytes = size_of_val(elements) as u64;
    in_steps(bytes, |steps| {
        steps.report(bytes)?;
        sort_pairs_in_ram(elements, &mut positions, order, *CORES, steps)
    })?;
    let runs = EqualRuns::of(elements)?;
    let mut distinct = ScratchVec::<K::KeyBits>::unspecified(runs.len())?;
    let mut starts = ScratchVec::<u64>::unspecified(runs.len() + 1)?;
    runs.write(&mut distinct, |at| elements[at])?;
    runs.write(&mut starts[..runs.len()], |at| at as u64)?;
    starts[runs.len()] = len as u64;
    groups(&distinct, &starts, None, Some(positions))
}

impl<D: Device> Groups<u64, D> {
    /// Creates groups from sorted codes, and from the numbers of the elements with these codes. The keys are
    /// the numbers of the groups.
    pub(crate) fn numbered(sorted: &VirtualArray<u64, D>, order: &VirtualArray<u32, D>) -> Result<Self> {
        let starts = run_starts(sorted)?;
        let keys = sorted.array_like::<u64>(starts.len() - 1, INTERNAL)?;
        keys.transform(.., Field::<u64, u64>::whole().set(index()))?;
        let order = evaluated(Section::from(order), Field::<u32, u32>::whole().cast::<u64>())?;
        Ok(Self { keys, starts, order: GroupOrder::OnDevices(order) })
    }
}

impl<K: SortKey, D: Device> Groups<K, D> {
    /// The number of groups.
    #[must_use]
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Returns true if there is no group.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The key of each group.
    #[must_use]
    pub fn keys(&self) -> &VirtualArray<K, D> {
        &self.keys
    }

    /// The start of each group in [`order`](Self::order), followed by the end of the last group.
    #[must_use]
    pub fn starts(&self) -> &VirtualArray<u64, D> {
        &self.starts
    }

    /// The indices of the elements, group by group, in ascending order within a group. Without a GPU, the
    /// library keeps them in RAM, 4 bytes each, until the first call of this method.
    ///
    /// # Errors
    /// The errors of devices, and of [building arrays](crate::Builder::build).
    pub fn order(&self) -> Result<&VirtualArray<u64, D>> {
        match &self.order {
            GroupOrder::OnDevices(order) => Ok(order),
            GroupOrder::InRam(in_ram, made) => match made.get() {
                Some(order) => Ok(order),
                None => {
                    let positions = in_ram.positions()?;
                    let order = self.keys.array_like(positions.len(), INTERNAL)?;
                    in_ram::write_wide(positions, &order)?;
                    Ok(made.get_or_init(|| order))
                }
            },
        }
    }

    fn elements(&self) -> usize {
        match &self.order {
            GroupOrder::OnDevices(order) => order.len(),
            GroupOrder::InRam(order, _) => order.len,
        }
    }

    /// The number of elements of each group.
    ///
    /// # Errors
    /// The errors of devices, and of [building arrays](crate::Builder::build).
    pub fn counts(&self) -> Result<VirtualArray<u64, D>> {
        let out = self.keys.array_like::<u64>(self.len(), INTERNAL)?;
        if !self.is_empty() {
            KernelArguments::default().all(&self.starts).result(&out).run::<differences>()?;
        }
        Ok(out)
    }

    /// Returns the sum of the values of each group. The view of values must have the length of the grouped
    /// view.
    ///
    /// # Errors
    /// [`LengthMismatch`](crate::ErrorKind::LengthMismatch); errors of devices, and of [building
    /// arrays](crate::Builder::build).
    pub fn sum<'v, V>(&self, values: V) -> Result<VirtualArray<<V::Element as Groupable>::Sum, D>>
    where
        V: View<'v, Shape = Linear, Element: Groupable>,
    {
        self.reduced::<V, _, converted<V::Element, Summed<'v, V>>, added<Summed<'v, V>>>(values)
    }

    /// Returns the least value of each group. NaNs are ignored unless the group has no other values.
    ///
    /// # Errors
    /// The errors of [`sum`](Self::sum).
    pub fn min<'v, V>(&self, values: V) -> Result<VirtualArray<V::Element, D>>
    where
        V: View<'v, Shape = Linear, Element: Groupable>,
    {
        self.reduced::<V, _, converted<V::Element, V::Element>, lesser<V::Element>>(values)
    }

    /// Returns the greatest value of each group. NaNs are ignored as in [`min`](Self::min).
    ///
    /// # Errors
    /// The errors of [`sum`](Self::sum).
    pub fn max<'v, V>(&self, values: V) -> Result<VirtualArray<V::Element, D>>
    where
        V: View<'v, Shape = Linear, Element: Groupable>,
    {
        self.reduced::<V, _, converted<V::Element, V::Element>, greater<V::Element>>(values)
    }

    fn reduced<'v, V, R, F, O>(&self, values: V) -> Result<VirtualArray<R, D>>
    where
        V: View<'v, Shape = Linear, Element: Groupable>,
        R: SortKey,
        F: Function<(V::Element,), R>,
        O: Function<(R, R), R>,
    {
        expect_len("the values", self.elements(), values.len())?;
        if self.is_empty() {
            return self.keys.array_like(0, INTERNAL);
        }
        let values = section(values, ..)?;
        if let GroupOrder::InRam(order, _) = &self.order
            && size_of::<V::Element>() * values.len() <= bytes_in_ram(values.store().as_operand(INTERNAL))
        {
            let mut read = ScratchVec::<V::Element>::unspecified(values.len())?;
            values.read(0, &mut read)?;
            // Only integers can be reduced by codes (numbers of keys): float sums depend on the sorted order.
            let found = match order.codes.as_ref().filter(|_| R::FLIP_NEGATIVE == 0) {
                Some(codes) => codes.reduced::<_, R, F, O>(&read)?,
                None => {
                    let starts = self.starts.to_vec(..)?;
                    in_ram::reduced::<_, R, F, O>(PIECE as usize, &read, order.positions()?, &starts)?
                }
            };
            let out = self.keys.array_like(self.len(), INTERNAL)?;
            out.write_range(0, &found)?;
            return Ok(out);
        }
        let values = take(values, section(self.order()?, ..)?)?;
        let (mut out, mut starts) = self.level::<_, R, F, O>(&values, &self.starts)?;
        while out.len() > self.len() {
            (out, starts) = self.level::<R, R, converted<R, R>, O>(&out, &starts)?;
        }
        Ok(out)
    }

    /// Reduces pieces of groups to one value each. Returns the values, and each group's first index.
    fn level<T: SortKey, R: SortKey, F: Function<(T,), R>, O: Function<(R, R), R>>(
        &self,
        values: &VirtualArray<T, D>,
        starts: &VirtualArray<u64, D>,
    ) -> Result<(VirtualArray<R, D>, VirtualArray<u64, D>)> {
        if values.is_in_files() {
            return by_blocks::reduced::<_, R, F, O, D>(PIECE, values, starts);
        }
        let firsts = starts.array_like::<u64>(starts.len(), INTERNAL)?;
        KernelArguments::default().value(PIECE).all(starts).result(&firsts).run::<pieces>()?;
        let count = firsts.exclusive_prefix_sum(..)? as usize;
        let out = starts.array_like::<R>(count, INTERNAL)?;
        let given = KernelArguments::default().value(PIECE).all(starts).all(&firsts).all(values);
        given.result(&out).run::<reduced<T, R, F, O>>()?;
        Ok((out, firsts))
    }
}

/// The type of the sums of a view's elements.
type Summed<'v, V> = <<V as View<'v>>::Element as Groupable>::Sum;
