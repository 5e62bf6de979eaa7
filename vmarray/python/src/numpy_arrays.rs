//! Access to the memory of NumPy arrays, memory of items that NumPy shows in place, and NumPy arrays without
//! memory that only describe shapes.

use std::ops::Range;
use std::sync::Arc;

use numpy::npyffi::{self, PY_ARRAY_API, npy_intp};
use numpy::prelude::*;
use numpy::{PyArrayDescr, PyUntypedArray};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::{ffi, intern};
use vmarray::device::racy;

use crate::element;
use crate::geometry::Geometry;
use crate::pool::{BYTES_MIN, Piece};

/// Bytes of memory of an array without items.
const EMPTY_BYTES: usize = 512;
/// Bytes of a block that is copied twice, which fit in the caches of a core.
const BLOCK_BYTES: usize = 256 << 10;

/// Unused address of NumPy arrays that only describe a shape. No code reads or writes there: the package
/// calls only operations that return views of these arrays, and programs never get them.
const NOWHERE: usize = 1 << 46;

/// Pointer to the bytes of a NumPy array, for copies without Python's lock. The caller keeps the array alive.
pub struct Bytes {
    start: *const u8,
    len: usize,
}

// SAFETY: a `Bytes` is an address of plain bytes; the caller of `get` and `get_mut` vouches for their
// lifetime.
unsafe impl Send for Bytes {}
// SAFETY: as above.
unsafe impl Sync for Bytes {}

impl Bytes {
    /// Returns the bytes of a contiguous array.
    pub fn of(array: &Bound<'_, PyUntypedArray>) -> PyResult<Self> {
        if !array.is_c_contiguous() {
            return Err(PyValueError::new_err("the array is not contiguous"));
        }
        let len = array.len() * array.dtype().itemsize();
        // SAFETY: the array is alive.
        let start = unsafe { (*array.as_array_ptr()).fields.data };
        Ok(Self { start: start.cast(), len })
    }

    /// Returns the bytes as a slice.
    ///
    /// # Safety
    /// The array outlives the slice, and no thread writes to the array meanwhile.
    pub unsafe fn get<'a>(&self) -> &'a [u8] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: a NumPy array has `len` initialised bytes at its start; the caller vouches for the rest.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Copies `from` to the array's bytes from `start` on. The program must not use the array during the
    /// call, because the call does not hold Python's global interpreter lock.
    ///
    /// # Safety
    /// The array is alive and writable.
    pub unsafe fn write(&self, start: usize, from: &[u8]) {
        assert!(start.checked_add(from.len()).is_some_and(|end| end <= self.len));
        // SAFETY: the array has `start + from.len()` bytes, and the caller holds the only reference to them.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), self.start.cast_mut().add(start), from.len()) }
    }

    /// Returns the bytes as a mutable slice.
    ///
    /// # Safety
    /// The array outlives the slice, and no other code reads or writes the array meanwhile.
    pub unsafe fn get_mut<'a>(&self) -> &'a mut [u8] {
        if self.len == 0 {
            return &mut [];
        }
        // SAFETY: as in `get`; the memory of new arrays was zeroed or filled before.
        unsafe { std::slice::from_raw_parts_mut(self.start.cast_mut(), self.len) }
    }
}

/// Returns a NumPy array of this shape at an unused address, whose items no code accesses. NumPy indexes this
/// array, and the package reads shape and strides from the result.
pub fn grid<'py>(
    py: Python<'py>,
    descr: &Bound<'py, PyArrayDescr>,
    shape: &[usize],
) -> PyResult<Bound<'py, PyUntypedArray>> {
    // SAFETY: no code touches the memory, because only views are made of the array.
    unsafe { array_at(py, descr, shape, NOWHERE as *mut u8) }
}

/// Creates a NumPy array over memory that the array does not own.
///
/// # Safety
/// `start` has initialised items for `shape`, and they outlive every use of the array.
unsafe fn array_at<'py>(
    py: Python<'py>,
    descr: &Bound<'py, PyArrayDescr>,
    shape: &[usize],
    start: *mut u8,
) -> PyResult<Bound<'py, PyUntypedArray>> {
    let mut dims: Vec<npy_intp> = shape.iter().map(|extent| *extent as npy_intp).collect();
    // SAFETY: the number of dimensions equals the shape's length; NumPy checks number and size, and takes
    // over the reference to the dtype. The caller vouches for the memory.
    unsafe {
        let array = PY_ARRAY_API.PyArray_NewFromDescr(
            py,
            npyffi::get_type_object(py, npyffi::NpyTypes::PyArray_Type),
            descr.clone().into_dtype_ptr(),
            dims.len() as i32,
            dims.as_mut_ptr(),
            std::ptr::null_mut(),
            start.cast(),
            npyffi::NPY_ARRAY_WRITEABLE,
            std::ptr::null_mut(),
        );
        Ok(Bound::from_owned_ptr_or_err(py, array)?.cast_into_unchecked())
    }
}

/// Creates a NumPy array with the shape, strides and dtype of another one, over memory that `base` owns.
///
/// # Safety
/// The items at `start` are initialised, and `base` keeps them alive.
unsafe fn shown_at<'py>(
    py: Python<'py>,
    of: &Bound<'py, PyUntypedArray>,
    start: *mut u8,
    base: &Bound<'py, PyAny>,
    is_writable: bool,
) -> PyResult<Bound<'py, PyUntypedArray>> {
    let flags = if is_writable { npyffi::NPY_ARRAY_WRITEABLE } else { 0 };
    // SAFETY: `of` has as many extents and strides as axes. NumPy copies both, and takes over a reference to
    // the dtype, and another one to the base. The caller vouches for the memory.
    unsafe {
        let fields = &(*of.as_array_ptr()).fields;
        let array = PY_ARRAY_API.PyArray_NewFromDescr(
            py,
            npyffi::get_type_object(py, npyffi::NpyTypes::PyArray_Type),
            of.dtype().into_dtype_ptr(),
            fields.nd,
            fields.dimensions,
            fields.strides,
            start.cast(),
            flags,
            std::ptr::null_mut(),
        );
        let array = Bound::from_owned_ptr_or_err(py, array)?.cast_into_unchecked::<PyUntypedArray>();
        if PY_ARRAY_API.PyArray_SetBaseObject(py, array.as_array_ptr(), base.clone().into_ptr()) < 0 {
            return Err(PyErr::fetch(py));
        }
        Ok(array)
    }
}

/// Returns a NumPy array without memory, as [`grid`] does, with the strides of another array as well, whose
/// first item is the first of the memory.
pub fn grid_like<'py>(
    py: Python<'py>,
    of: &Bound<'py, PyUntypedArray>,
) -> PyResult<Bound<'py, PyUntypedArray>> {
    // SAFETY: no code touches the memory, because only views are made of the array.
    unsafe { shown_at(py, of, NOWHERE as *mut u8, &py.None().into_bound(py), true) }
}

/// True if the items of an array have no gaps, and the first item is the first one in memory.
pub fn is_dense(array: &Bound<'_, PyUntypedArray>) -> bool {
    let mut axes: Vec<_> =
        array.shape().iter().zip(array.strides()).filter(|(extent, _)| **extent != 1).collect();
    axes.sort_by_key(|(_, stride)| **stride);
    let mut next = array.dtype().itemsize() as isize;
    array.len() == 0
        || axes.into_iter().all(|(extent, stride)| {
            let is_next = *stride == next;
            next *= *extent as isize;
            is_next
        })
}

/// Returns the offset of the first item, in bytes, that an array of [`grid`], or a view of such an array,
/// describes.
pub fn offset(grid: &Bound<'_, PyUntypedArray>) -> usize {
    // SAFETY: the array is alive; its address is compared, never read.
    let start = unsafe { (*grid.as_array_ptr()).fields.data } as usize;
    start.wrapping_sub(NOWHERE)
}

/// Returns the offset, shape and strides that an array of [`grid`], or a view of such an array, describes.
pub fn geometry(grid: &Bound<'_, PyUntypedArray>) -> Geometry {
    Geometry {
        offset: offset(grid),
        shape: grid.shape().to_vec(),
        strides: grid.strides().to_vec(),
        itemsize: grid.dtype().itemsize(),
    }
}

/// Returns a NumPy array that has a shape and a dtype, but no memory. If the dtype is itself an array, its
/// axes follow the axes of the shape.
pub fn described<'py>(
    py: Python<'py>,
    shape: &[usize],
    dtype: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyUntypedArray>> {
    let descr = PyArrayDescr::new(py, dtype)?;
    element::check(&descr)?;
    let grid = grid(py, &descr, shape)?;
    element::check(&grid.dtype())?;
    Ok(grid)
}

/// Returns the NumPy array that owns the memory of `items`, if no other code can use that memory.
pub fn sole_owner<'py>(items: &Bound<'py, PyUntypedArray>) -> Option<Bound<'py, PyUntypedArray>> {
    // SAFETY: the array is alive.
    let fields = |of: &Bound<'_, PyUntypedArray>| unsafe {
        let fields = &(*of.as_array_ptr()).fields;
        (fields.flags & npyffi::NPY_ARRAY_OWNDATA != 0, fields.data)
    };
    let (mut owner, first) = (items.clone(), fields(items).1);
    while !fields(&owner).0 {
        let base = owner.getattr(intern!(items.py(), "base")).ok()?.cast_into::<PyUntypedArray>().ok()?;
        // SAFETY: the array is alive. It has two references: of the array of which it is the base, and of
        // this function.
        if unsafe { ffi::Py_REFCNT(base.as_ptr()) } != 2 {
            return None;
        }
        owner = base;
    }
    (fields(&owner).1 == first).then_some(owner)
}

/// Returns a NumPy array that shows items in place, with the shape and strides of a grid.
pub fn array_over<'py>(
    py: Python<'py>,
    grid: &Bound<'py, PyUntypedArray>,
    items: Arc<Items>,
    is_writable: bool,
) -> PyResult<Bound<'py, PyUntypedArray>> {
    let start = items.start().wrapping_add(offset(grid));
    let base = Bound::new(py, Shown(items))?.into_any();
    // SAFETY: the grid describes items of the array, and `base` keeps their memory alive.
    unsafe { shown_at(py, grid, start, &base, is_writable) }
}

/// Copies a range of elements of `unit` bytes block by block, in whole elements: `read` fills a block from an
/// element on, and `work` gets the block with the number of its first element in the range.
pub fn each_block(
    unit: usize,
    range: Range<usize>,
    mut read: impl FnMut(usize, &mut [u8]) -> vmarray::Result<()>,
    mut work: impl FnMut(usize, &[u8]) -> vmarray::Result<()>,
) -> vmarray::Result<()> {
    let most = (BLOCK_BYTES / unit).max(1);
    let mut block = vec![0; most.min(range.len()) * unit];
    for first in range.clone().step_by(most) {
        let block = &mut block[..most.min(range.end - first) * unit];
        read(first, block)?;
        work(first - range.start, block)?;
    }
    Ok(())
}

/// Plain memory with the items of an array. Threads may read and write it at the same time; then, as with
/// NumPy's arrays, items of unspecified value result.
pub struct Items {
    start: *mut u8,
    len: usize,
    _owner: Owner,
}

/// Owner of the memory, which frees it.
#[expect(dead_code, reason = "the owner is kept for its drop alone")]
enum Owner {
    Words(Vec<u64>),
    Pooled(Piece),
    Numpy(Py<PyUntypedArray>),
}

// SAFETY: the memory belongs to `Items`, is initialised, and has no thread of its own. All accesses of the
// package are racing copies; NumPy's loops run on it as on any memory that Python's threads share.
unsafe impl Send for Items {}
// SAFETY: as above.
unsafe impl Sync for Items {}

impl Items {
    /// Returns memory of zeroes; `None` if the system has no more.
    pub fn zeroed(len: usize) -> Option<Self> {
        if len < BYTES_MIN {
            // NumPy may read an item of an array that has none, as its own arrays have memory for one.
            let mut words = vec![0_u64; len.max(EMPTY_BYTES).div_ceil(size_of::<u64>())];
            return Some(Self { start: words.as_mut_ptr().cast(), len, _owner: Owner::Words(words) });
        }
        let mut piece = Piece::zeroed(len)?;
        Some(Self { start: piece.start(), len, _owner: Owner::Pooled(piece) })
    }

    /// Takes over the memory of an array of NumPy.
    ///
    /// # Safety
    /// The array owns `len` initialised, writable bytes from its first item on, and no other code uses it.
    pub unsafe fn of_numpy(array: &Bound<'_, PyUntypedArray>, len: usize) -> Self {
        // SAFETY: the array is alive.
        let start = unsafe { (*array.as_array_ptr()).fields.data };
        Self { start: start.cast(), len, _owner: Owner::Numpy(array.clone().unbind()) }
    }

    /// Address of the first byte.
    pub fn start(&self) -> *mut u8 {
        self.start
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Fills new memory by a function.
    pub fn filled<E>(self, fill: impl FnOnce(&mut [u8]) -> Result<(), E>) -> Result<Self, E> {
        // SAFETY: `self` is the only reference to the memory.
        fill(unsafe { std::slice::from_raw_parts_mut(self.start, self.len) })?;
        Ok(self)
    }

    /// Passes copies of a range of elements of `unit` bytes to `work`, as [`each_block`] does.
    pub fn each_block(
        &self,
        unit: usize,
        range: Range<usize>,
        work: impl FnMut(usize, &[u8]) -> vmarray::Result<()>,
    ) -> vmarray::Result<()> {
        let read = |first: usize, block: &mut [u8]| {
            self.read(first * unit, block);
            Ok(())
        };
        each_block(unit, range, read, work)
    }

    pub fn read(&self, start: usize, into: &mut [u8]) {
        assert!(start.checked_add(into.len()).is_some_and(|end| end <= self.len));
        // SAFETY: the range is within the memory, and `into` is apart from it.
        unsafe { racy::read(self.start.add(start), into) };
    }

    pub fn write(&self, start: usize, from: &[u8]) {
        assert!(start.checked_add(from.len()).is_some_and(|end| end <= self.len));
        // SAFETY: as in `read`.
        unsafe { racy::write(self.start.add(start), from) };
    }
}

/// The base of arrays of NumPy that show items in place: keeps the memory alive.
#[pyclass(frozen, module = "vmarray._core")]
pub struct Shown(#[expect(dead_code, reason = "kept for its drop alone")] pub Arc<Items>);

/// Returns a NumPy array of zeroes.
pub fn zeroes<'py>(
    py: Python<'py>,
    descr: &Bound<'py, PyArrayDescr>,
    shape: &[usize],
) -> PyResult<Bound<'py, PyUntypedArray>> {
    let mut dims: Vec<npy_intp> = shape.iter().map(|extent| *extent as npy_intp).collect();
    // SAFETY: `dims` has as many extents as the array has axes. NumPy takes over the dtype's reference.
    unsafe {
        let (count, descr) = (dims.len() as i32, descr.clone().into_dtype_ptr());
        let array = PY_ARRAY_API.PyArray_Zeros(py, count, dims.as_mut_ptr(), descr, 0);
        Ok(Bound::from_owned_ptr_or_err(py, array)?.cast_into_unchecked())
    }
}

/// Returns a NumPy array in memory of the pool, which has room for all items.
pub fn array_of_piece<'py>(
    py: Python<'py>,
    descr: &Bound<'py, PyArrayDescr>,
    shape: &[usize],
    mut piece: Piece,
) -> PyResult<Bound<'py, PyUntypedArray>> {
    let start = piece.start();
    let piece = Bound::new(py, piece)?;
    // SAFETY: the items of all dimensions fit in the piece. The piece is the array's base, so it lives as
    // long as the array. NumPy takes over the reference to it.
    unsafe {
        let array = array_at(py, descr, shape, start)?;
        if PY_ARRAY_API.PyArray_SetBaseObject(py, array.as_array_ptr(), piece.into_ptr()) < 0 {
            return Err(PyErr::fetch(py));
        }
        Ok(array)
    }
}
