//! The Rust class behind each Python array: a view of stored elements or a pending expression, with NumPy's
//! shape.

use std::path::PathBuf;
use std::sync::Arc;

use numpy::npyffi::{self, PY_ARRAY_API};
use numpy::prelude::*;
use numpy::{PyArray1, PyArrayDescr, PyReadonlyArray1, PyUntypedArray};
use pyo3::exceptions::{PyIndexError, PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyInt, PyList, PySlice, PyString, PyTuple};
use vmarray::bytemuck;

use crate::copies::{self, LISTED, Listed};
use crate::device::{self, Device};
use crate::element::{self, Kind, Unit};
use crate::elements::{Asked, Reduced};
use crate::export::ExportedItems;
use crate::fault::{Result, interrupted, off, raised};
use crate::geometry::Geometry;
use crate::in_ram::{InRam, begins_in_ram};
use crate::lower::Lowering;
use crate::node::{self, Lazy, Node, Source, View};
use crate::numpy_arrays::{
    Bytes, Items, array_over, described, geometry, grid, grid_like, is_dense, offset, sole_owner,
};
use crate::operations::Operation;
use crate::pool;
use crate::results::new_array;
use crate::rows::{RowOptions, Rows};
use crate::store::{Options, Place};

#[derive(Clone)]
pub enum Body {
    View(Arc<Source>),
    Lazy(Arc<Lazy>),
}

/// An array of any shape: a view of elements of a `VirtualArray`, or a pending expression.
///
/// Implementation of the class ``vmarray.Array``; programs do not use it directly.
#[pyclass(frozen, module = "vmarray._core")]
pub struct Core {
    pub body: Body,
    /// A NumPy array with this array's shape, strides and dtype, but without memory, which NumPy can index.
    /// For a selection it is created when the items are counted.
    grid: PyOnceLock<Py<PyUntypedArray>>,
    pub descr: Py<PyArrayDescr>,
    /// True if the array is a view of an expression with its axes in another order, or reversed.
    is_arranged: bool,
}

/// Reads the options of an array from Python's keyword arguments.
pub fn options(py: Python<'_>, given: &Bound<'_, PyDict>, itemsize: usize, unit: Unit) -> PyResult<Options> {
    let get = |name: &str| given.get_item(name).map(|value| value.filter(|value| !value.is_none()));
    let number = |name: &str| get(name)?.map(|value| value.extract::<usize>()).transpose();
    let per_item = itemsize / unit.bytes();
    Ok(Options {
        devices: device::chosen(py, get("devices")?)?,
        cache_bytes: number("cache_bytes")?,
        page_bytes: number("page_len")?.map(|items| items.saturating_mul(itemsize)),
        max_len: number("max_len")?.map(|items| items.saturating_mul(per_item)),
        checksums: get("checksums")?.map(|value| value.is_truthy()).transpose()?.unwrap_or(false),
    })
}

/// True if an index of a key selects a view: it is an integer, a slice, an ellipsis or a new axis.
fn is_basic(one: &Bound<'_, PyAny>) -> bool {
    one.is_none()
        || one.is(one.py().Ellipsis())
        || one.is_exact_instance_of::<PySlice>()
        || one.is_exact_instance_of::<PyInt>()
}

/// Least number of bytes of a row of a file for which one read is faster than a list of elements.
const ROW_BYTES_MIN: usize = 32;

/// Returns an error if an item starts outside of the array that a view shows.
fn check_places(view: &View, starts: &[i64]) -> Result<()> {
    let end = view.handle.open()?.len() * view.handle.unit.bytes();
    let is_inside =
        |start: &i64| usize::try_from(*start).is_ok_and(|start| start + view.geometry.itemsize <= end);
    match starts.iter().position(|start| !is_inside(start)) {
        None => Ok(()),
        Some(number) => {
            let text = format!("element {number} of the list is outside of the array, which has {end} bytes");
            Err(PyIndexError::new_err(text).into())
        }
    }
}

/// Creates an array of zeroes: in device memory, or in the new file `path`, with a text in its description.
#[pyfunction]
pub fn create(
    py: Python<'_>,
    shape: Vec<usize>,
    dtype: &Bound<'_, PyAny>,
    path: Option<(PathBuf, String)>,
    given: &Bound<'_, PyDict>,
) -> PyResult<Core> {
    let grid = described(py, &shape, dtype)?;
    let (descr, geometry) = (grid.dtype(), geometry(&grid));
    let unit = Unit::of(&descr);
    let options = options(py, given, geometry.itemsize, unit)?;
    let place = path.map_or(Place::Memory, |(path, text)| Place::Create(vec![path], text));
    let len = geometry.bytes() / unit.bytes();
    let handle = off(py, || Source::new(unit, len, options, &place))?;
    Ok(Core::new(Body::View(handle), grid))
}

/// Creates an array of the items of a NumPy array, with the options of an array, as `Core.made` does.
#[pyfunction]
pub fn made_of(
    py: Python<'_>,
    items: &Bound<'_, PyUntypedArray>,
    given: &Bound<'_, PyDict>,
) -> PyResult<Core> {
    let descr = items.dtype();
    made(py, items, options(py, given, descr.itemsize(), Unit::of(&descr))?)
}

/// True if an array of `bytes` bytes with these options begins in plain memory, because its devices are RAM.
#[pyfunction]
pub fn begins_on_host(py: Python<'_>, bytes: usize, given: &Bound<'_, PyDict>) -> PyResult<bool> {
    let options = options(py, given, 1, Unit::U8)?;
    Ok(options.are_in_ram() && begins_in_ram(bytes, &options))
}

fn made(py: Python<'_>, items: &Bound<'_, PyUntypedArray>, options: Options) -> PyResult<Core> {
    let descr = items.dtype();
    element::check(&descr)?;
    let (unit, bytes) = (Unit::of(&descr), items.len() * descr.itemsize());
    if begins_in_ram(bytes, &options) {
        let owner = if is_dense(items) { sole_owner(items) } else { None };
        let (owner, grid) = match owner {
            Some(owner) => (owner, grid_like(py, items)?),
            None => {
                let copy = items.call_method1(intern!(py, "copy"), ("C",))?.cast_into::<PyUntypedArray>()?;
                (copy, grid(py, &descr, items.shape())?)
            }
        };
        // SAFETY: the array owns the memory, whose items have no gaps. The caller gives the array up.
        let items = unsafe { Items::of_numpy(&owner, bytes) };
        let is_on_cards = options.are_cards();
        let source = Source::of(unit, InRam::boxed(unit, items, options.clone()), options, is_on_cards);
        return Ok(Core::new(Body::View(source), grid));
    }
    let items = items.call_method1(intern!(py, "copy"), ("C",))?.cast_into::<PyUntypedArray>()?;
    let bytes = Bytes::of(&items)?;
    let source = off(py, || {
        let source = Source::new(unit, bytes.len() / unit.bytes(), options, &Place::Memory)?;
        // SAFETY: as in `write`.
        source.open()?.write(0, unsafe { bytes.get() })?;
        Ok(source)
    })?;
    Ok(Core::new(Body::View(source), grid(py, &descr, items.shape())?))
}

/// Returns element type, shape and annotation of the array in a file, in words.
#[pyfunction]
pub fn described_file(py: Python<'_>, path: PathBuf) -> PyResult<(String, String, String)> {
    off(py, || {
        let (element, shape) = vmarray::file::description(&path)?;
        Ok((element, shape, vmarray::file::annotation(&path)?))
    })
}

/// Opens the array of a file; the array has one axis if no shape is given.
#[pyfunction]
pub fn open(
    py: Python<'_>,
    path: PathBuf,
    dtype: &Bound<'_, PyAny>,
    shape: Option<Vec<usize>>,
    is_read_only: bool,
    given: &Bound<'_, PyDict>,
) -> PyResult<Core> {
    let descr = PyArrayDescr::new(py, dtype)?;
    element::check(&descr)?;
    let unit = Unit::of(&descr);
    let options = options(py, given, descr.itemsize(), unit)?;
    let handle = off(py, || Source::new(unit, 0, options, &Place::Open(vec![path], is_read_only)))?;
    let bytes = handle.open()?.len() * unit.bytes();
    let items = bytes / descr.itemsize();
    let shape = shape.unwrap_or_else(|| vec![items]);
    let wanted = shape.iter().try_fold(1_usize, |product, extent| product.checked_mul(*extent));
    if wanted != Some(items) {
        return Err(PyValueError::new_err(format!(
            "cannot reshape array of size {items} into shape {shape:?}"
        )));
    }
    Ok(Core::new(Body::View(handle), grid(py, &descr, &shape)?))
}

impl Core {
    pub fn new(body: Body, grid: Bound<'_, PyUntypedArray>) -> Self {
        let (py, descr) = (grid.py(), grid.dtype().unbind());
        let known = PyOnceLock::new();
        let _ = known.set(py, grid.unbind());
        Self { body, grid: known, descr, is_arranged: false }
    }

    /// Returns the NumPy array that describes the shape. For a selection, blocks until the items are counted.
    fn grid<'py>(&self, py: Python<'py>) -> PyResult<&Bound<'py, PyUntypedArray>> {
        let made = self.grid.get_or_try_init(py, || {
            let Body::Lazy(lazy) = &self.body else { unreachable!("only expressions have no grid") };
            let len = off(py, || lazy.len())?;
            PyResult::Ok(grid(py, self.descr.bind(py), &[len])?.unbind())
        })?;
        Ok(made.bind(py))
    }

    pub fn kind(&self, py: Python<'_>) -> Kind {
        Kind::of(self.descr.bind(py))
    }

    /// Returns a view of the items; computes a pending expression first. Blocks.
    pub fn view(&self, py: Python<'_>) -> PyResult<View> {
        let (geometry, kind) = (geometry(self.grid(py)?), self.kind(py));
        Ok(View { handle: self.source(py)?, geometry, kind })
    }

    /// True if no two indices show the same item.
    fn is_writable(&self, py: Python<'_>) -> PyResult<bool> {
        // SAFETY: the array is alive.
        let flags = unsafe { (*self.grid(py)?.as_array_ptr()).fields.flags };
        Ok(flags & npyffi::NPY_ARRAY_WRITEABLE != 0)
    }

    /// Returns a view as [`view`](Self::view) does, or an error if the items are read-only.
    pub fn writable(&self, py: Python<'_>) -> PyResult<View> {
        if !self.is_writable(py)? {
            return Err(PyValueError::new_err(
                "assignment destination is read-only: several indices show the same item; use a copy",
            ));
        }
        self.view(py)
    }

    /// Returns the array as an operand of an expression. Does not compute a pending array.
    pub fn node(&self, py: Python<'_>) -> PyResult<Arc<Node>> {
        Ok(Arc::new(match &self.body {
            Body::Lazy(lazy) if !self.is_arranged => Node::Lazy(Arc::clone(lazy)),
            _ => Node::View(self.view(py)?),
        }))
    }

    /// Returns the array that stores the items; computes a pending expression first. Blocks.
    fn source(&self, py: Python<'_>) -> PyResult<Arc<Source>> {
        Ok(match &self.body {
            Body::View(handle) => Arc::clone(handle),
            Body::Lazy(lazy) => off(py, || lazy.view())?.handle,
        })
    }

    /// Another view of the same items.
    fn viewed(&self, py: Python<'_>, grid: Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(Self::new(Body::View(self.source(py)?), grid.cast_into::<PyUntypedArray>()?))
    }

    /// Returns the number at one index for each axis as a NumPy scalar; `None` if an index is out of bounds,
    /// or if the items are no numbers.
    fn number<'py>(&self, py: Python<'py>, indices: &[isize]) -> PyResult<Option<Bound<'py, PyAny>>> {
        let (grid, descr) = (self.grid(py)?, self.descr.bind(py));
        let mut start = offset(grid) as isize;
        for ((&index, &extent), &stride) in indices.iter().zip(grid.shape()).zip(grid.strides()) {
            let place = if index < 0 { index + extent as isize } else { index };
            if !(0..extent as isize).contains(&place) {
                return Ok(None);
            }
            start += place * stride;
        }
        let (mut item, start, itemsize) = ([0_u64; 2], start as usize, descr.itemsize());
        let source = self.source(py)?;
        let unit = source.unit.bytes();
        if !b"biufc".contains(&descr.kind())
            || itemsize > size_of_val(&item)
            || !start.is_multiple_of(unit)
            || !itemsize.is_multiple_of(unit)
        {
            return Ok(None);
        }
        let bytes = &mut bytemuck::bytes_of_mut(&mut item)[..itemsize];
        off(py, || Ok(source.open()?.read(start / unit, bytes)?))?;
        // SAFETY: `item` has the bytes of an item of the dtype, and NumPy copies them.
        unsafe {
            let (start, none) = (item.as_mut_ptr().cast(), std::ptr::null_mut());
            let scalar = PY_ARRAY_API.PyArray_Scalar(py, start, descr.as_dtype_ptr(), none);
            Bound::from_owned_ptr_or_err(py, scalar).map(Some)
        }
    }

    /// Options for arrays that are computed from this one.
    fn options_of_results(&self, py: Python<'_>) -> PyResult<Options> {
        match &self.body {
            Body::View(handle) => Ok(handle.options.clone()),
            Body::Lazy(lazy) => off(py, || Ok(lazy.options().unwrap_or_default())),
        }
    }

    /// Reduces the values of the array on its devices; does not copy a selection for that.
    fn asked(&self, py: Python<'_>, asked: Asked) -> PyResult<Reduced> {
        let (node, shape) = match &self.body {
            Body::Lazy(lazy) => match off(py, || lazy.parts_of_selection())? {
                Some((value, mask, of)) => {
                    return off(py, || Lowering::new(&of, None).ask(&value, Some(&mask), asked));
                }
                None => (self.node(py)?, self.shape_of(py)?),
            },
            Body::View(_) => (self.node(py)?, self.shape_of(py)?),
        };
        off(py, || Lowering::new(&shape, None).ask(&node, None, asked))
    }

    pub fn shape_of(&self, py: Python<'_>) -> PyResult<Vec<usize>> {
        Ok(self.grid(py)?.shape().to_vec())
    }
}

#[pymethods]
impl Core {
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.grid(py)?.shape())
    }

    #[getter]
    fn strides<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.grid(py)?.strides())
    }

    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> Bound<'py, PyArrayDescr> {
        self.descr.bind(py).clone()
    }

    /// NumPy's flags of the view. If the program sets `writeable` to false, the view becomes read-only.
    #[getter]
    fn flags<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.grid(py)?.getattr("flags")
    }

    /// True if two views show a common byte; with `bounds`, if the ranges of their bytes overlap.
    fn shares(&self, py: Python<'_>, other: &Self, bounds: bool, limit: &Bound<'_, PyAny>) -> PyResult<bool> {
        let is_same = match (&self.body, &other.body) {
            (Body::Lazy(one), Body::Lazy(other)) => Arc::ptr_eq(one, other),
            _ => false,
        };
        if !is_same && (self.is_pending(py) || other.is_pending(py)) {
            return Ok(false);
        }
        if !Arc::ptr_eq(&self.view(py)?.handle, &other.view(py)?.handle) {
            return Ok(false);
        }
        let name = if bounds { "may_share_memory" } else { "shares_memory" };
        py.import("numpy")?.call_method1(name, (self.grid(py)?, other.grid(py)?, limit))?.extract()
    }

    /// Offset of the first item, in bytes.
    #[getter]
    fn offset(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(geometry(self.grid(py)?).offset)
    }

    /// True if the array is an expression that is not yet computed.
    #[getter]
    fn is_pending(&self, py: Python<'_>) -> bool {
        match &self.body {
            Body::View(_) => false,
            Body::Lazy(lazy) => py.detach(|| lazy.is_pending()),
        }
    }

    /// True if the number of items is known.
    #[getter]
    fn is_counted(&self, py: Python<'_>) -> bool {
        self.grid.get(py).is_some()
    }

    /// Returns a view by basic indexing as in NumPy: by integers, slices, ellipses, new axes and names of
    /// fields.
    fn basic(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<Self> {
        // Reject keys for which NumPy copies items, such as an array of one integer: `grid` has no memory.
        let makes_a_view = match key.cast_exact::<PyTuple>() {
            Ok(key) => key.iter().all(|one| is_basic(&one)) && key.iter().any(|one| one.is(py.Ellipsis())),
            Err(_) => match key.cast_exact::<PyList>() {
                Ok(names) => names.iter().all(|one| one.is_exact_instance_of::<PyString>()),
                Err(_) => key.is_exact_instance_of::<PyString>(),
            },
        };
        if !makes_a_view {
            return Err(PyTypeError::new_err("the key does not select a view"));
        }
        self.viewed(py, self.grid(py)?.get_item(key)?)
    }

    /// Returns a view or a number by basic indexing as in NumPy; `None` for any other key, and for items that
    /// are no numbers.
    fn pick<'py>(&self, py: Python<'py>, key: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let ndim = self.grid(py)?.ndim();
        if let Ok(index) = key.cast_exact::<PyInt>()
            && ndim == 1
        {
            return index.extract().map_or(Ok(None), |index| self.number(py, &[index]));
        }
        let key = match key.cast_exact::<PyTuple>() {
            Ok(key) => key.clone(),
            Err(_) => PyTuple::new(py, [key])?,
        };
        if !key.iter().all(|one| is_basic(&one)) {
            return Ok(None);
        }
        let has_ellipsis = key.iter().any(|one| one.is(py.Ellipsis()));
        let key = if has_ellipsis {
            key
        } else if key.len() == ndim && key.iter().all(|one| one.is_exact_instance_of::<PyInt>()) {
            let indices = key.iter().map(|index| index.extract()).collect::<PyResult<Vec<_>>>();
            return indices.map_or(Ok(None), |indices| self.number(py, &indices));
        } else {
            key.add(PyTuple::new(py, [py.Ellipsis()])?)?.cast_into()?
        };
        let grid = self.grid(py)?.get_item(key)?;
        if grid.cast::<PyUntypedArray>().is_ok_and(|grid| !has_ellipsis && grid.ndim() == 0) {
            return Ok(None);
        }
        Ok(Some(Bound::new(py, self.viewed(py, grid)?)?.into_any()))
    }

    /// True if the array is stored in RAM alone; false for a pending expression.
    #[getter]
    fn is_in_ram(&self, py: Python<'_>) -> PyResult<bool> {
        match &self.body {
            Body::View(source) => Ok(source.is_in_ram),
            Body::Lazy(lazy) => off(py, || Ok(!lazy.is_pending() && lazy.view()?.handle.is_in_ram)),
        }
    }

    /// Shows the items in place as a read-only NumPy array, if they are in plain memory and the devices of
    /// the array are RAM. Otherwise copies them as `read` does, if there are at most `limit` items. Returns
    /// `None` for other arrays, and for items that are not counted yet.
    fn shown<'py>(&self, py: Python<'py>, limit: usize) -> PyResult<Option<Bound<'py, PyUntypedArray>>> {
        let Some(grid) = self.grid.get(py) else { return Ok(None) };
        let is_few = grid.bind(py).len() <= limit;
        if !is_few && !self.is_in_ram(py)? {
            return Ok(None);
        }
        let source = self.source(py)?;
        match off(py, || source.items())? {
            Some(items) => array_over(py, grid.bind(py), items, false).map(Some),
            None if is_few => self.read(py).map(Some),
            None => Ok(None),
        }
    }

    /// Calls a function with a NumPy array of the items in place, which it may change. Returns `false`, and
    /// does not call the function, unless the items are in plain memory.
    fn change_in_place(&self, py: Python<'_>, work: &Bound<'_, PyAny>) -> PyResult<bool> {
        let (view, grid, work) = (self.writable(py)?, self.grid(py)?.clone().unbind(), work.clone().unbind());
        // Take the lock of the items without Python's lock: a thread that has Python's lock may wait for it.
        off(py, || {
            view.handle.settle(None)?;
            view.handle.items()?;
            let mut outcome = Ok(());
            let is_in_place = view.handle.open()?.write_in_place(&mut |items| {
                outcome = Python::attach(|py| {
                    let items = array_over(py, grid.bind(py), Arc::clone(items), true)?;
                    work.call1(py, (items,)).map(|_| ())
                });
            });
            Ok(outcome.map(|()| is_in_place))
        })?
    }

    /// Creates an array of the items of a NumPy array, on the devices of this array. Takes over the memory of
    /// a NumPy array that owns it, so no other code may use that array afterwards.
    fn made(&self, py: Python<'_>, items: &Bound<'_, PyUntypedArray>) -> PyResult<Self> {
        made(py, items, self.options_of_results(py)?)
    }

    /// Returns the view that an attribute of NumPy's arrays returns, such as `T` or `real`.
    fn by_attribute(&self, py: Python<'_>, name: &str) -> PyResult<Self> {
        if !["real", "imag"].contains(&name) || self.descr.bind(py).kind() != b'c' {
            return Err(PyTypeError::new_err(format!(
                "the array has no view `{name}`: only arrays of complex numbers have `real` and `imag`"
            )));
        }
        self.viewed(py, self.grid(py)?.getattr(name)?)
    }

    /// Returns the view that a method of NumPy's arrays returns, such as `transpose`.
    fn by_method(&self, py: Python<'_>, name: &str, arguments: &Bound<'_, PyTuple>) -> PyResult<Self> {
        if !["transpose", "swapaxes", "squeeze", "diagonal", "view"].contains(&name) {
            return Err(PyTypeError::new_err(format!("`{name}` is not a method that returns a view")));
        }
        self.viewed(py, self.grid(py)?.call_method1(name, arguments)?)
    }

    /// Returns a view with the axes in the order of `axes`, each reversed if `flips` is true for it. A
    /// pending expression stays pending.
    fn arranged(&self, py: Python<'_>, axes: Vec<usize>, flips: Vec<bool>) -> PyResult<Self> {
        let (none, back) = (PySlice::full(py), PySlice::new(py, isize::MAX, isize::MIN, -1));
        let key = PyTuple::new(py, flips.iter().map(|flip| if *flip { &back } else { &none }))?;
        let grid = self.grid(py)?.call_method1(intern!(py, "transpose"), (axes,))?.get_item(key)?;
        match &self.body {
            Body::Lazy(lazy) if lazy.node().is_some() => {
                let grid = grid.cast_into::<PyUntypedArray>()?;
                let whole = Geometry::contiguous(grid.shape(), grid.dtype().itemsize());
                let is_arranged = geometry(&grid) != whole || !lazy.has_shape(grid.shape());
                Ok(Self { is_arranged, ..Self::new(Body::Lazy(Arc::clone(lazy)), grid) })
            }
            _ => self.viewed(py, grid),
        }
    }

    /// Returns a view with another shape; `None` if that needs a copy.
    fn reshaped(&self, py: Python<'_>, shape: &Bound<'_, PyAny>) -> PyResult<Option<Self>> {
        let (of, given) = (self.grid(py)?, PyDict::new(py));
        given.set_item(intern!(py, "copy"), false)?;
        if let Ok(grid) = of.call_method(intern!(py, "reshape"), (shape,), Some(&given)) {
            return self.viewed(py, grid).map(Some);
        }
        // Reshape a template that can have any shape, so that NumPy raises its error for a shape with another
        // number of items.
        let numpy = py.import("numpy")?;
        let item = numpy.call_method1("zeros", ((),))?;
        let template = numpy.getattr("broadcast_to")?.call1((item, of.getattr("shape")?))?;
        template.call_method1("reshape", (shape,)).map(|_| None)
    }

    /// A view, broadcast to a shape.
    fn broadcast(&self, py: Python<'_>, shape: &Bound<'_, PyAny>) -> PyResult<Self> {
        let grid = py.import("numpy")?.call_method1("broadcast_to", (self.grid(py)?, shape))?;
        self.viewed(py, grid)
    }

    /// A copy in a new array of the library.
    fn copied(&self, py: Python<'_>) -> PyResult<Self> {
        let (view, shape) = (self.view(py)?, self.shape_of(py)?);
        let made = off(py, || node::copied(&view, &shape))?;
        Ok(Self::new(Body::View(made.handle), grid(py, self.descr.bind(py), &shape)?))
    }

    /// Copies the items to a new NumPy array.
    fn read<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyUntypedArray>> {
        let view = self.view(py)?;
        let array = new_array(py, &view.geometry.shape, self.descr.bind(py), None)?;
        let bytes = Bytes::of(&array)?;
        off(py, || {
            // SAFETY: the array is new and only this function has a reference.
            copies::read(&view.handle, &view.geometry, unsafe { bytes.get_mut() })
        })?;
        Ok(array)
    }

    /// Reads into a contiguous array of the same shape and dtype, which no other thread uses meanwhile.
    fn read_into(&self, py: Python<'_>, into: &Bound<'_, PyUntypedArray>) -> PyResult<()> {
        let (view, bytes) = (self.view(py)?, Bytes::of(into)?);
        if bytes.len() != view.geometry.bytes() {
            return Err(PyValueError::new_err("the target has another length than the view"));
        }
        off(py, || {
            // SAFETY: the caller's reference keeps the array alive, and the program does not use it
            // meanwhile, as for every NumPy array used without Python's lock.
            copies::read(&view.handle, &view.geometry, unsafe { bytes.get_mut() })
        })
    }

    /// Overwrites the items with a contiguous NumPy array of the same shape and dtype.
    fn write(&self, py: Python<'_>, from: &Bound<'_, PyUntypedArray>) -> PyResult<()> {
        let (view, bytes) = (self.writable(py)?, Bytes::of(from)?);
        if bytes.len() != view.geometry.bytes() {
            return Err(PyValueError::new_err("the source has another length than the view"));
        }
        off(py, || {
            view.handle.settle(None)?;
            // SAFETY: the caller's reference keeps the array alive, and the program does not write to it
            // meanwhile, as for every NumPy array read without Python's lock.
            copies::write(&view.handle, &view.geometry, unsafe { bytes.get() })
        })
    }

    /// Writes the item of a zero-dimensional array to all items.
    fn fill(&self, py: Python<'_>, item: &Bound<'_, PyUntypedArray>) -> PyResult<()> {
        let (view, bytes) = (self.writable(py)?, Bytes::of(item)?);
        // SAFETY: the array is alive, and Python's lock is held while its item is copied.
        let item = unsafe { bytes.get() }.to_vec();
        if item.len() != view.geometry.itemsize {
            return Err(PyValueError::new_err("the value has another length than an item of the array"));
        }
        off(py, || {
            view.handle.settle(None)?;
            copies::fill(&view.handle, &view.geometry, &item)
        })
    }

    /// Copies the items that begin at these byte offsets to a new NumPy array.
    fn gather<'py>(
        &self,
        py: Python<'py>,
        starts: PyReadonlyArray1<'py, i64>,
    ) -> PyResult<Bound<'py, PyUntypedArray>> {
        let (view, starts) = (self.view(py)?, starts.as_slice()?);
        let array = new_array(py, &[starts.len()], self.descr.bind(py), Some(&view))?;
        let bytes = Bytes::of(&array)?;
        off(py, || {
            check_places(&view, starts)?;
            // SAFETY: the array is new and only this function has a reference.
            let parts = unsafe { bytes.get_mut() }.chunks_mut(LISTED * view.geometry.itemsize);
            for (part, starts) in parts.zip(starts.chunks(LISTED)) {
                let list = Listed::of(starts, view.geometry.itemsize, view.handle.unit.bytes());
                list.read(&**view.handle.open()?, part)?;
                interrupted()?;
            }
            Ok(())
        })?;
        Ok(array)
    }

    /// Copies the rows at these indices of the first axis into a NumPy array; negative indices count from the
    /// end. Returns `None` if a row is not a run of whole elements.
    fn gather_rows<'py>(
        &self,
        py: Python<'py>,
        indices: PyReadonlyArray1<'py, i64>,
    ) -> PyResult<Option<Bound<'py, PyUntypedArray>>> {
        let (view, indices) = (self.view(py)?, indices.as_slice()?);
        let unit = view.handle.unit.bytes();
        let Some(rows) = view.geometry.rows(unit) else { return Ok(None) };
        let shape: Vec<_> =
            [indices.len()].into_iter().chain(view.geometry.shape[1..].iter().copied()).collect();
        let array = new_array(py, &shape, self.descr.bind(py), Some(&view))?;
        let bytes = Bytes::of(&array)?;
        off(py, || {
            let open = view.handle.open()?;
            // SAFETY: the array is new and only this function has a reference.
            let into = unsafe { bytes.get_mut() };
            if view.handle.reads_rows && rows.elements * unit >= ROW_BYTES_MIN {
                return copies::read_rows(&**open, indices, &rows, unit, into);
            }
            copies::each_row(indices, &rows, open.len(), |list, at| {
                Ok(open.gather(list, &mut into[at * unit..(at + list.len()) * unit])?)
            })
        })?;
        Ok(Some(array))
    }

    /// Writes the rows at these indices of the first axis; if an index occurs several times, the last row
    /// stays. Returns `false` if a row is not a run of whole elements.
    fn scatter_rows(
        &self,
        py: Python<'_>,
        indices: PyReadonlyArray1<'_, i64>,
        from: &Bound<'_, PyUntypedArray>,
    ) -> PyResult<bool> {
        let (view, bytes, indices) = (self.writable(py)?, Bytes::of(from)?, indices.as_slice()?);
        let unit = view.handle.unit.bytes();
        let Some(rows) = view.geometry.rows(unit) else { return Ok(false) };
        if bytes.len() != indices.len() * rows.elements * unit {
            return Err(PyValueError::new_err(
                "the source has another length than the rows that the indices select",
            ));
        }
        off(py, || {
            copies::check_rows(indices, rows.extent)?;
            view.handle.settle(None)?;
            let open = view.handle.open()?;
            // SAFETY: as in `write`.
            let from = unsafe { bytes.get() };
            copies::each_row(indices, &rows, open.len(), |list, at| {
                Ok(open.scatter(list, &from[at * unit..(at + list.len()) * unit])?)
            })
        })?;
        Ok(true)
    }

    /// Writes the items that begin at these byte offsets. If an item is listed several times, the last value
    /// stays.
    fn scatter(
        &self,
        py: Python<'_>,
        starts: PyReadonlyArray1<'_, i64>,
        from: &Bound<'_, PyUntypedArray>,
    ) -> PyResult<()> {
        let (view, bytes, starts) = (self.writable(py)?, Bytes::of(from)?, starts.as_slice()?);
        if bytes.len() != starts.len() * view.geometry.itemsize {
            let (found, expected) = (bytes.len(), starts.len() * view.geometry.itemsize);
            let text = format!("the values have {found} bytes, but the selected elements have {expected}");
            return Err(PyValueError::new_err(text));
        }
        off(py, || {
            check_places(&view, starts)?;
            view.handle.settle(None)?;
            // SAFETY: as in `write`.
            let parts = unsafe { bytes.get() }.chunks(LISTED * view.geometry.itemsize);
            for (part, starts) in parts.zip(starts.chunks(LISTED)) {
                let list = Listed::of(starts, view.geometry.itemsize, view.handle.unit.bytes());
                list.write(&**view.handle.open()?, part)?;
                interrupted()?;
            }
            Ok(())
        })
    }

    /// Returns the items at which a mask of the same shape is true; they are counted and copied when needed.
    fn select(&self, py: Python<'_>, mask: &Self) -> PyResult<Self> {
        let (value, mask, of) = (self.node(py)?, mask.node(py)?, self.shape_of(py)?);
        let descr = self.descr.bind(py);
        let (unit, itemsize) = (Unit::of(descr), descr.itemsize());
        let lazy = off(py, || {
            let is_small = !value.size().with(mask.size()).is_too_large();
            Ok(Lazy::selection(value.settled(is_small)?, mask.settled(is_small)?, of, unit, itemsize))
        })?;
        Ok(Self {
            body: Body::Lazy(lazy),
            grid: PyOnceLock::new(),
            descr: descr.clone().unbind(),
            is_arranged: false,
        })
    }

    /// Overwrites the items with a view or an expression of the same shape. With `is_consumed`, the caller
    /// does not use the expression afterwards.
    fn assign(&self, py: Python<'_>, from: &Self, is_consumed: bool) -> PyResult<()> {
        let (view, node) = (self.writable(py)?, from.node(py)?);
        off(py, || {
            let inner = node.settled(true)?;
            let unwanted = match &*node {
                Node::Lazy(lazy) if is_consumed => Some(&**lazy),
                _ => None,
            };
            view.handle.settle(unwanted)?;
            node::assign(&view, &inner)
        })
    }

    /// Reduces the items. Minimum, maximum and first true item return an index and a value, or `None` if
    /// there is none. From values of ``uint64``, 2**63 is subtracted.
    fn reduce<'py>(&self, py: Python<'py>, what: &str) -> PyResult<Bound<'py, PyAny>> {
        let asked = match what {
            "count" => Asked::Count,
            "first" => Asked::First,
            "first_nan" => Asked::FirstNan,
            "int_sum" => Asked::IntSum,
            "float_sum" => Asked::FloatSum,
            "int_min" => Asked::IntExtreme { is_least: true },
            "int_max" => Asked::IntExtreme { is_least: false },
            "float_min" => Asked::FloatExtreme { is_least: true },
            "float_max" => Asked::FloatExtreme { is_least: false },
            _ => return Err(PyValueError::new_err(format!("{what} is not a reduction"))),
        };
        Ok(match self.asked(py, asked)? {
            Reduced::Int(value) => value.into_pyobject(py)?.into_any(),
            Reduced::Float(value) => value.into_pyobject(py)?.into_any(),
            Reduced::IntAt(at) => at.into_pyobject(py)?.into_any(),
            Reduced::FloatAt(at) => at.into_pyobject(py)?.into_any(),
        })
    }

    /// Returns the indices of the first `limit` items that are true, in order.
    fn find<'py>(&self, py: Python<'py>, limit: usize) -> PyResult<Bound<'py, PyArray1<i64>>> {
        let (node, shape) = (self.node(py)?, self.shape_of(py)?);
        let found = off(py, || {
            let node = node.settled(true)?;
            Lowering::new(&shape, None).find(&node, 0..shape.iter().product(), limit)
        })?;
        Ok(PyArray1::from_slice(py, bytemuck::cast_slice(&found)))
    }

    /// Appends items to the stored array, which this array must show as a whole, along its only axis.
    fn append(&self, py: Python<'_>, from: &Bound<'_, PyUntypedArray>) -> PyResult<Self> {
        let (view, bytes) = (self.view(py)?, Bytes::of(from)?);
        let len = off(py, || {
            view.handle.settle(None)?;
            let open = view.handle.open()?;
            if view.geometry.offset != 0 || view.geometry.bytes() != open.len() * view.handle.unit.bytes() {
                let text = "only an array that shows all of its elements can grow; append to the whole array";
                return Err(Python::attach(|py| raised(py, "InvalidError", text)).into());
            }
            // SAFETY: as in `write`.
            open.push(unsafe { bytes.get() })?;
            Ok(open.len() * view.handle.unit.bytes() / view.geometry.itemsize)
        })?;
        Ok(Self::new(Body::View(view.handle), grid(py, self.descr.bind(py), &[len])?))
    }

    /// Writes dirty pages from the cache to the devices.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        let view = self.view(py)?;
        off(py, || Ok(view.handle.open()?.flush()?))
    }

    /// Makes the contents of files durable.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        let view = self.view(py)?;
        off(py, || Ok(view.handle.open()?.sync()?))
    }

    /// Exports the items in place to another package, after pending expressions that read them are computed.
    fn export(&self, py: Python<'_>) -> PyResult<ExportedItems> {
        let (view, is_read_only) = (self.view(py)?, !self.is_writable(py)?);
        off(py, || view.handle.settle(None))?;
        ExportedItems::new(py, &view.handle, view.geometry, self.descr.clone_ref(py), is_read_only)
    }

    /// Makes a table of the array's rows for lists in the memory of a GPU.
    fn rows(&self, py: Python<'_>, device: &Device, options: RowOptions, scales: Vec<f32>) -> PyResult<Rows> {
        let view = self.view(py)?;
        off(py, || view.handle.settle(None))?;
        Rows::new(py, &view.handle, &view.geometry, device, &options, scales)
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let view = self.view(py)?;
        off(py, || view.handle.close())
    }

    #[getter]
    fn is_closed(&self) -> bool {
        matches!(&self.body, Body::View(handle) if handle.is_closed())
    }

    /// True if the array is on GPUs, or will be there when it is computed.
    #[getter]
    fn is_on_cards(&self, py: Python<'_>) -> PyResult<bool> {
        match &self.body {
            Body::View(handle) => Ok(handle.is_on_cards),
            Body::Lazy(lazy) => off(py, || Ok(lazy.options().is_some_and(|options| options.are_cards()))),
        }
    }

    /// Computes a pending expression now.
    fn compute(&self, py: Python<'_>) -> PyResult<()> {
        self.view(py).map(|_| ())
    }

    /// Returns the memory that the store of the array uses, in bytes, and the lengths of its pages.
    fn memory<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let view = self.view(py)?;
        let open = view.handle.open()?;
        let report = PyDict::new(py);
        if off(py, || Ok(open.items().is_some()))? {
            report.set_item("device_bytes", open.len() * view.handle.unit.bytes())?;
            for name in ["cache_bytes", "cache_max_bytes", "staging_bytes", "table_bytes"] {
                report.set_item(name, 0)?;
            }
            report.set_item("is_pinned", false)?;
        } else {
            let footprint = off(py, || Ok(open.footprint()?))?;
            report.set_item("device_bytes", footprint.device_bytes)?;
            report.set_item("cache_bytes", footprint.cache_bytes)?;
            report.set_item("cache_max_bytes", footprint.cache_max_bytes)?;
            report.set_item("staging_bytes", footprint.staging_bytes)?;
            report.set_item("table_bytes", footprint.table_bytes)?;
            report.set_item("is_pinned", footprint.is_pinned)?;
        }
        report.set_item("kept_for_results_bytes", pool::kept_bytes())?;
        report.set_item("page_bytes", open.page_len() * view.handle.unit.bytes())?;
        report.set_item("max_bytes", open.max_len() * view.handle.unit.bytes())?;
        Ok(report)
    }

    /// Devices on which results of expressions with the array are stored.
    #[getter]
    fn devices(&self, py: Python<'_>) -> PyResult<Vec<Device>> {
        Ok(self.options_of_results(py)?.devices.into_iter().map(Device::of).collect())
    }
}

/// Operand of an array operation: an array or a number.
#[derive(FromPyObject)]
pub enum Operand<'py> {
    Core(PyRef<'py, Core>),
    /// One number, already of the type that the operation needs.
    Item(Bound<'py, PyUntypedArray>),
}

/// Creates a pending expression: the operation `name`, for each item of `shape`. Converts operands to
/// `dtypes`; the result has the dtype `gives`. Returns `None` if the devices do not support the operation.
#[pyfunction]
pub fn apply(
    py: Python<'_>,
    name: &str,
    operands: Vec<Operand<'_>>,
    dtypes: Vec<Bound<'_, PyArrayDescr>>,
    gives: &Bound<'_, PyArrayDescr>,
    shape: Vec<usize>,
) -> PyResult<Option<Core>> {
    let (Some(operation), kind) = (Operation::named(name), Kind::of(gives)) else { return Ok(None) };
    let kinds: Vec<Kind> = dtypes.iter().map(Kind::of).collect();
    let is_computed = |kind: &Kind| *kind != Kind::Bytes;
    if kinds.len() != operands.len()
        || !kinds.last().is_some_and(|kind| operation.takes(*kind))
        || !kinds.iter().chain([&kind]).all(is_computed)
    {
        return Ok(None);
    }
    let mut nodes = Vec::new();
    for (operand, kind) in operands.iter().zip(&kinds) {
        let node = match operand {
            Operand::Core(core) => core.node(py)?,
            Operand::Item(item) => {
                // SAFETY: the array is alive, and Python's lock is held while its item is copied.
                let bytes = unsafe { Bytes::of(item)?.get() }.to_vec();
                Arc::new(Node::Literal { kind: Kind::of(&item.dtype()), bytes })
            }
        };
        // Leave conversions to 16-bit floats to NumPy, which rounds 64-bit floats only once, and has special
        // rules for integers.
        let from = node.kind();
        if from == Kind::Bytes || (*kind == Kind::Half && from != *kind && from != Kind::Bool) {
            return Ok(None);
        }
        nodes.push(node);
    }
    let (unit, itemsize) = (Unit::of(gives), gives.itemsize());
    let lazy = off(py, || {
        let size = nodes.iter().fold(node::Size::default(), |size, node| size.with(node.size()));
        let is_small = !size.is_too_large();
        let settled = nodes.iter().zip(&kinds).map(|(node, kind)| Ok((node.settled(is_small)?, *kind)));
        let operands = settled.collect::<Result<Vec<_>>>()?;
        let node = Arc::new(Node::Apply { operation, operands, kind });
        Ok(Lazy::new(node, shape.clone(), unit, itemsize))
    })?;
    let grid = grid(py, gives, &shape)?;
    Ok(Some(Core::new(Body::Lazy(lazy), grid)))
}
