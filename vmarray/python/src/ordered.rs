//! Python functions that depend on the order of numbers: sorts, argsorts, searches, ``unique`` and group-by.
//! Also random permutations, histograms and random bits. `_order.py` has the public interface.

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

use numpy::prelude::*;
use numpy::{PyArray1, PyArrayDescr, PyUntypedArray, dtype};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use vmarray::kernel::PrefixSummed;
use vmarray::nd::{Accumulation, NdSection};
use vmarray::order::{Groupable, Groups, Side};
use vmarray::views::{SortKey, View as _};
use vmarray::{AnyDevice, Field, VirtualArray, prelude::*};

use crate::array::{Body, Core, options};
use crate::element::{Kind, Unit};
use crate::elements::{Along, Bins, Elements, Ordered};
use crate::fault::off;
use crate::handle::Owned;
use crate::lower::{Lowering, Root};
use crate::node::{Lazy, Node, Source, View, as_row, copied};
use crate::numpy_arrays::grid;
use crate::progress::run_with_progress;
use crate::store::{MaybeOrdered, Options, Place, Typed};

impl<T> Ordered for Typed<T>
where
    T: SortKey + Groupable + PrefixSummed + MaybeOrdered,
    <T as Groupable>::Sum: MaybeOrdered,
{
    fn sort(&self, range: Range<usize>, is_descending: bool) -> vmarray::Result<()> {
        let array = &self.array;
        if is_descending { array.sort_descending(range) } else { array.sort(range) }
    }

    fn argsort(&self, range: Range<usize>) -> vmarray::Result<Box<dyn Elements>> {
        Ok(Typed::boxed((&self.array).argsort(range, Field::<T, T>::whole())?))
    }

    fn unique(&self, range: Range<usize>) -> vmarray::Result<Box<dyn Elements>> {
        Ok(Self::boxed((&self.array).unique(range)?))
    }

    fn search(
        &self,
        range: Range<usize>,
        (sorted, of): (&dyn Elements, Range<usize>),
        side: Side,
    ) -> vmarray::Result<Option<Box<dyn Elements>>> {
        let Some(sorted) = sorted.as_any().downcast_ref::<Self>() else { return Ok(None) };
        let found = sorted.array.section(of)?.search_sorted(self.array.section(range)?, side)?;
        Ok(Some(Typed::boxed(found)))
    }

    fn nth(&self, range: Range<usize>, nth: usize) -> vmarray::Result<Vec<u8>> {
        Ok(vmarray::bytemuck::bytes_of(&(&self.array).select_nth(range, nth)?).to_vec())
    }

    fn reduce_axis(
        &self,
        first: usize,
        shape: [usize; 3],
        what: Along,
        into: &dyn Elements,
    ) -> vmarray::Result<bool> {
        let Some(part) = self.box_of(first, shape)? else { return Ok(false) };
        let (into, results) = (into.as_any(), [shape[0], 1, shape[2]]);
        if what == Along::Sum {
            if let Some(into) = into.downcast_ref::<Typed<f64>>() {
                part.sum_axis(1, NdSection::over_mut(&into.array, results)?)?;
            } else if let Some(into) = into.downcast_ref::<Typed<i64>>() {
                part.sum_axis(1, NdSection::over_mut(&into.array, results)?)?;
            } else {
                return Ok(false);
            }
            return Ok(true);
        }
        if let (Along::PlaceOfLeast | Along::PlaceOfGreatest, Some(into)) =
            (what, into.downcast_ref::<Typed<u64>>())
        {
            let into = NdSection::over_mut(&into.array, results)?;
            if what == Along::PlaceOfLeast {
                part.arg_min_axis(1, into)?
            } else {
                part.arg_max_axis(1, into)?
            }
            return Ok(true);
        }
        let Some(into) = into.downcast_ref::<Self>() else { return Ok(false) };
        let into = NdSection::over_mut(&into.array, results)?;
        if what == Along::Least {
            part.min_axis_or_nan(1, into)?
        } else {
            part.max_axis_or_nan(1, into)?
        }
        Ok(true)
    }

    fn accumulate_axis(
        &self,
        first: usize,
        shape: [usize; 3],
        how: Accumulation,
        into: &dyn Elements,
    ) -> vmarray::Result<bool> {
        let Some(part) = self.box_of(first, shape)? else { return Ok(false) };
        let Some(into) = into.as_any().downcast_ref::<Self>() else { return Ok(false) };
        part.accumulate_axis(1, how, NdSection::over_mut(&into.array, shape)?)?;
        Ok(true)
    }

    fn prefix_sums(&self, row: usize) -> vmarray::Result<()> {
        NdSection::over_mut(&self.array, [self.array.len() / row, row])?.prefix_sum_axis(1)
    }

    fn grouped(&self, range: Range<usize>) -> vmarray::Result<Option<Groups<u64, AnyDevice>>> {
        let array: &dyn Any = &self.array;
        if let Some(numbers) = array.downcast_ref::<VirtualArray<u64>>() {
            return numbers.group_by(range, Field::<u64, u64>::whole()).map(Some);
        }
        let Some(numbers) = array.downcast_ref::<VirtualArray<i64>>() else { return Ok(None) };
        // Unsigned numbers in the same order.
        let keys = Field::<i64, i64>::whole().cast::<u64>() + (1 << 63);
        numbers.group_by(range, keys).map(Some)
    }

    fn by_group(
        &self,
        range: Range<usize>,
        groups: &Groups<u64, AnyDevice>,
        what: &str,
    ) -> vmarray::Result<Box<dyn Elements>> {
        let values = self.array.section(range)?;
        Ok(match what {
            "sum" => Typed::boxed(groups.sum(values)?),
            "min" => Self::boxed(groups.min(values)?),
            _ => Self::boxed(groups.max(values)?),
        })
    }
}

impl<T: MaybeOrdered> Typed<T> {
    /// Returns the elements from `first` on as a box of three axes; `None` if the array's length or the box's
    /// place is no multiple of a row.
    fn box_of(
        &self,
        first: usize,
        [outer, along, inner]: [usize; 3],
    ) -> vmarray::Result<Option<NdSection<'_, VirtualArray<T>, 3, 3>>> {
        let len = self.array.len();
        let (row, of) = match outer {
            1 => (inner, [1, len / inner, inner]),
            _ => (along * inner, [len / (along * inner), along, inner]),
        };
        if !first.is_multiple_of(row) || !len.is_multiple_of(row) {
            return Ok(None);
        }
        let start = if outer == 1 { [0, first / row, 0] } else { [first / row, 0, 0] };
        let end = [start[0] + outer, start[1] + along, inner];
        NdSection::over(&self.array, of)?.section(start..end).map(Some)
    }
}

/// Returns the items as contiguous elements, one item in each; `None` if their dtype is no element type.
/// Computes a pending expression. Copies items that are not contiguous, or are parts of elements.
fn row(py: Python<'_>, of: &Core) -> PyResult<Option<(View, Range<usize>)>> {
    let (node, shape, unit) = (of.node(py)?, of.shape_of(py)?, Unit::of(of.descr.bind(py)));
    let view = off(py, || {
        let view = as_row(&node, &shape)?;
        let is_of_another = view.kind != Kind::Bytes && view.handle.unit != unit;
        if is_of_another { copied(&view, &shape) } else { Ok(view) }
    })?;
    Ok(elements(&view, unit).map(|range| (view, range)))
}

/// Returns the range of elements of type `unit` that equals a view's items; `None` if there is none.
fn elements(view: &View, unit: Unit) -> Option<Range<usize>> {
    let is_so = view.handle.unit == unit && view.geometry.itemsize == unit.bytes();
    Root::of(view).filter(|_| is_so)?;
    let first = view.geometry.offset / unit.bytes();
    Some(first..first + view.geometry.count())
}

/// Creates a Python array of elements that the devices of another array have computed.
fn made(
    py: Python<'_>,
    elements: Box<dyn Elements>,
    descr: &Bound<'_, PyArrayDescr>,
    beside: &View,
) -> PyResult<Core> {
    let len = elements.len();
    let (options, is_on_cards) = (beside.handle.options.clone(), beside.handle.is_on_cards);
    let handle = Source::of(Unit::of(descr), elements, options, is_on_cards);
    Ok(Core::new(Body::View(handle), grid(py, descr, &[len])?))
}

/// Runs `ask` on items that have an order; returns `None` if they have none.
fn asked<T: Send>(
    py: Python<'_>,
    of: &Core,
    ask: impl FnOnce(&dyn Ordered, Range<usize>) -> vmarray::Result<T> + Send,
) -> PyResult<Option<(T, View)>> {
    if of.kind(py) == Kind::Bool || of.kind(py) == Kind::Bytes {
        return Ok(None);
    }
    let Some((view, range)) = row(py, of)? else { return Ok(None) };
    let answer = run_with_progress(py, view.geometry.bytes(), || {
        let open = view.handle.open()?;
        open.ordered().map(|ordered| Ok(ask(ordered, range)?)).transpose()
    })?;
    Ok(answer.map(|answer| (answer, view)))
}

/// Sorts the items in place; `false` if devices do not support their dtype, or they are not contiguous.
#[pyfunction]
fn sort(py: Python<'_>, of: &Core, is_descending: bool) -> PyResult<bool> {
    let view = of.writable(py)?;
    let range = elements(&view, Unit::of(of.descr.bind(py))).filter(|_| view.kind != Kind::Bytes);
    let Some(range) = range else { return Ok(false) };
    run_with_progress(py, view.geometry.bytes(), || {
        let open = view.handle.open()?;
        let Some(ordered) = open.ordered() else { return Ok(false) };
        view.handle.settle(None)?;
        ordered.sort(range, is_descending)?;
        Ok(true)
    })
}

/// Returns the indices that sort the items, as ``uint64``; `None` if devices do not support their dtype.
#[pyfunction]
fn argsort(py: Python<'_>, of: &Core) -> PyResult<Option<Core>> {
    let answer = asked(py, of, |ordered, range| ordered.argsort(range))?;
    answer.map(|(places, view)| made(py, places, &dtype::<u64>(py), &view)).transpose()
}

/// The distinct items, sorted; `None` if devices do not support their dtype.
#[pyfunction]
fn unique(py: Python<'_>, of: &Core) -> PyResult<Option<Core>> {
    let answer = asked(py, of, |ordered, range| ordered.unique(range))?;
    answer.map(|(items, view)| made(py, items, of.descr.bind(py), &view)).transpose()
}

/// Returns the indices at which to insert items into sorted ones of the same dtype, as ``uint64``; `None` if
/// devices do not support it.
#[pyfunction]
fn search(py: Python<'_>, of: &Core, sorted: &Core, is_right: bool) -> PyResult<Option<Core>> {
    let Some((others, of_others)) = row(py, sorted)? else { return Ok(None) };
    let side = if is_right { Side::Right } else { Side::Left };
    let open = others.handle.open()?;
    let answer = asked(py, of, |ordered, range| ordered.search(range, (&**open, of_others), side))?;
    let Some((Some(places), view)) = answer else { return Ok(None) };
    Ok(Some(made(py, places, &dtype::<u64>(py), &view)?))
}

/// Returns the items that a sort would move to these indices; `None` if devices do not support their dtype.
#[pyfunction]
fn nth<'py>(py: Python<'py>, of: &Core, places: Vec<usize>) -> PyResult<Option<Bound<'py, PyUntypedArray>>> {
    let answer = asked(py, of, |ordered, range| {
        places.iter().map(|place| ordered.nth(range.clone(), *place)).collect::<vmarray::Result<Vec<_>>>()
    })?;
    let Some((items, _)) = answer else { return Ok(None) };
    let bytes = PyArray1::from_slice(py, &items.concat());
    Ok(Some(bytes.call_method1("view", (of.descr.bind(py),))?.cast_into()?))
}

/// Computes sums along an axis, as ``float64`` or ``int64``, or minima or maxima, or their places, as
/// ``uint64``; a NaN is extreme. Returns `None` if devices do not support such items. Also returns `None` if
/// the array is only in RAM, which interprets kernels, unless `is_anywhere`.
#[pyfunction]
fn reduce_axis(
    py: Python<'_>,
    of: &Core,
    axis: usize,
    what: &str,
    is_anywhere: bool,
) -> PyResult<Option<Core>> {
    let (kind, mut shape) = (of.kind(py), of.shape_of(py)?);
    if axis >= shape.len() || !matches!(kind, Kind::Bool | Kind::Number(_)) || shape.contains(&0) {
        return Ok(None);
    }
    if !is_anywhere && !of.view(py)?.handle.is_on_cards {
        return Ok(None);
    }
    let Some((view, range)) = row(py, of)? else { return Ok(None) };
    let three = [shape[..axis].iter().product(), shape[axis], shape[axis + 1..].iter().product()];
    shape.remove(axis);
    let own = of.descr.bind(py).clone();
    let (along, unit, descr) = match what {
        "float_sum" => (Along::Sum, Unit::F64, dtype::<f64>(py)),
        "int_sum" => (Along::Sum, Unit::I64, dtype::<i64>(py)),
        "min" => (Along::Least, view.handle.unit, own),
        "argmin" => (Along::PlaceOfLeast, Unit::U64, dtype::<u64>(py)),
        "argmax" => (Along::PlaceOfGreatest, Unit::U64, dtype::<u64>(py)),
        _ => (Along::Greatest, view.handle.unit, own),
    };
    let made = off(py, || {
        let options = view.handle.options.clone();
        let made = Source::new(unit, three[0] * three[2], options, &Place::Memory)?;
        let (open, into) = (view.handle.open()?, made.open()?);
        let Some(ordered) = open.ordered() else { return Ok(None) };
        Ok(ordered.reduce_axis(range.start, three, along, &**into)?.then_some(made))
    })?;
    made.map(|made| Ok(Core::new(Body::View(made), grid(py, &descr, &shape)?))).transpose()
}

/// Replaces each item of a new array by the sum up to itself along the last axis. Returns `false` if devices
/// cannot sum such items, or if the array is only in RAM and `is_anywhere` is false.
#[pyfunction]
fn prefix_sums(py: Python<'_>, of: &Core, is_anywhere: bool) -> PyResult<bool> {
    let (view, row) = (of.writable(py)?, of.shape_of(py)?.last().copied().unwrap_or(0));
    if !matches!(view.kind, Kind::Number(_)) || row == 0 || !(is_anywhere || view.handle.is_on_cards) {
        return Ok(false);
    }
    off(py, || {
        let open = view.handle.open()?;
        let is_whole = view.geometry.in_a_row(view.geometry.itemsize) && view.geometry.count() == open.len();
        let Some(ordered) = open.ordered().filter(|_| is_whole) else { return Ok(false) };
        view.handle.settle(None)?;
        ordered.prefix_sums(row)?;
        Ok(true)
    })
}

/// Writes cumulative sums or products along an axis to a new array, in the order of the items. Returns
/// `false` if devices cannot compute them, or if the array is only in RAM and `is_anywhere` is false.
#[pyfunction]
fn accumulate(
    py: Python<'_>,
    into: &Core,
    of: &Core,
    axis: usize,
    is_product: bool,
    is_anywhere: bool,
) -> PyResult<bool> {
    let (to, shape) = (into.writable(py)?, of.shape_of(py)?);
    let three = [shape[..axis].iter().product(), shape[axis], shape[axis + 1..].iter().product()];
    if !matches!(to.kind, Kind::Number(_)) || !(is_anywhere || to.handle.is_on_cards) {
        return Ok(false);
    }
    let Some((view, range)) = row(py, of)? else { return Ok(false) };
    off(py, || {
        let (open, to_open) = (view.handle.open()?, to.handle.open()?);
        let is_whole = to.geometry.in_a_row(to.geometry.itemsize) && to.geometry.count() == to_open.len();
        let Some(ordered) = open.ordered().filter(|_| is_whole) else { return Ok(false) };
        to.handle.settle(None)?;
        let how = if is_product { Accumulation::Product } else { Accumulation::Sum };
        Ok(ordered.accumulate_axis(range.start, three, how, &**to_open)?)
    })
}

/// Copies the items at the indices in an array of ``uint64``; `None` if items have several elements each.
#[pyfunction]
fn take(py: Python<'_>, of: &Core, places: &Core) -> PyResult<Option<Core>> {
    let (Some((view, range)), Some((list, listed))) = (row(py, of)?, row(py, places)?) else {
        return Ok(None);
    };
    let items = off(py, || {
        let (open, list) = (view.handle.open()?, list.handle.open()?);
        if listed != (0..list.len()) {
            return Ok(None);
        }
        Ok(open.take(range, &**list)?)
    })?;
    items.map(|items| made(py, items, of.descr.bind(py), &view)).transpose()
}

/// Shuffles the items; the seed determines the order. Returns `false` if they are not contiguous, or have
/// several elements each.
#[pyfunction]
fn shuffle(py: Python<'_>, of: &Core, seed: u64) -> PyResult<bool> {
    let view = of.writable(py)?;
    let Some(range) = elements(&view, view.handle.unit) else { return Ok(false) };
    off(py, || {
        view.handle.settle(None)?;
        view.handle.open()?.shuffle(range, seed)?;
        Ok(true)
    })
}

/// Counts the items in each of several equal bins, whose edges are computed in ``precision``.
#[pyfunction]
fn histogram(
    py: Python<'_>,
    of: &Core,
    count: usize,
    limits: (f64, f64),
    step: f64,
    precision: &str,
) -> PyResult<Vec<u64>> {
    let (node, shape) = (of.node(py)?, of.shape_of(py)?);
    let bins = Bins::new(count, limits, step, precision);
    off(py, || Lowering::new(&shape, None).histogram(&node.settled(true)?, bins))
}

/// Creates an expression of 64 random bits for each item of a shape. Before it is computed, the program may
/// combine it only with numbers and with other such expressions.
#[pyfunction]
fn random(py: Python<'_>, shape: Vec<usize>, start: u64, given: &Bound<'_, PyDict>) -> PyResult<Core> {
    let options: Options = options(py, given, 8, Unit::U64)?;
    let lazy = Lazy::new(Arc::new(Node::Random { start, options }), shape.clone(), Unit::U64, 8);
    Ok(Core::new(Body::Lazy(lazy), grid(py, &dtype::<u64>(py), &shape)?))
}

/// Items grouped by equal numbers; Python's `Groups` uses it.
#[pyclass(frozen, module = "vmarray._core")]
struct Grouped {
    groups: Owned<Groups<u64, AnyDevice>>,
    beside: View,
}

/// Groups items by equal 64-bit numbers; `None` unless they are ``uint64`` or ``int64``.
#[pyfunction]
fn grouped(py: Python<'_>, of: &Core) -> PyResult<Option<Grouped>> {
    let answer = asked(py, of, |ordered, range| ordered.grouped(range))?;
    let Some((Some(groups), beside)) = answer else { return Ok(None) };
    Ok(Some(Grouped { groups: Owned::new(Box::new(groups)), beside }))
}

impl Grouped {
    fn copied(&self, py: Python<'_>, of: &VirtualArray<u64>) -> PyResult<Core> {
        let (descr, options) = (dtype::<u64>(py), self.beside.handle.options.clone());
        let handle = off(py, || {
            let handle = Source::new(Unit::U64, of.len(), options, &Place::Memory)?;
            let open = handle.open()?;
            if let Some(to) = open.as_any().downcast_ref::<Typed<u64>>() {
                (&to.array).copy_from(0, of)?;
            }
            Ok(handle)
        })?;
        Ok(Core::new(Body::View(handle), grid(py, &descr, &[of.len()])?))
    }
}

#[pymethods]
impl Grouped {
    /// Returns the indices of the items, group by group; within a group they ascend.
    fn order(&self, py: Python<'_>) -> PyResult<Core> {
        self.beside.handle.open()?;
        let order = run_with_progress(py, self.beside.geometry.bytes(), || Ok(self.groups.order()?))?;
        self.copied(py, order)
    }

    /// Returns the number of each group's key.
    fn keys(&self, py: Python<'_>) -> PyResult<Core> {
        self.beside.handle.open()?;
        self.copied(py, self.groups.keys())
    }

    /// Returns the start of each group in `order`, followed by the end of the last group.
    fn starts(&self, py: Python<'_>) -> PyResult<Core> {
        self.beside.handle.open()?;
        self.copied(py, self.groups.starts())
    }

    /// Computes the sum, minimum or maximum of each group, of values that correspond to the items; `None` if
    /// the values are not numbers. Sums have 64 bits.
    fn reduced(&self, py: Python<'_>, values: &Core, what: &str) -> PyResult<Option<Core>> {
        let answer = asked(py, values, |ordered, range| ordered.by_group(range, &self.groups, what))?;
        let Some((items, view)) = answer else { return Ok(None) };
        let own = values.descr.bind(py);
        let descr = match (what, own.kind()) {
            ("sum", b'u') => dtype::<u64>(py),
            ("sum", b'i') => dtype::<i64>(py),
            ("sum", _) => dtype::<f64>(py),
            _ => own.clone(),
        };
        made(py, items, &descr, &view).map(Some)
    }
}

/// Adds this file's functions and classes to the Python module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Grouped>()?;
    module.add_function(wrap_pyfunction!(sort, module)?)?;
    module.add_function(wrap_pyfunction!(argsort, module)?)?;
    module.add_function(wrap_pyfunction!(unique, module)?)?;
    module.add_function(wrap_pyfunction!(search, module)?)?;
    module.add_function(wrap_pyfunction!(nth, module)?)?;
    module.add_function(wrap_pyfunction!(reduce_axis, module)?)?;
    module.add_function(wrap_pyfunction!(prefix_sums, module)?)?;
    module.add_function(wrap_pyfunction!(accumulate, module)?)?;
    module.add_function(wrap_pyfunction!(take, module)?)?;
    module.add_function(wrap_pyfunction!(shuffle, module)?)?;
    module.add_function(wrap_pyfunction!(histogram, module)?)?;
    module.add_function(wrap_pyfunction!(random, module)?)?;
    module.add_function(wrap_pyfunction!(grouped, module)?)
}
