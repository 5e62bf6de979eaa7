//! Access to the memory of NumPy arrays, and NumPy arrays without memory that only describe shapes.

use numpy::npyffi::{self, PY_ARRAY_API, npy_intp};
use numpy::prelude::*;
use numpy::{PyArrayDescr, PyUntypedArray};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::element;
use crate::geometry::Geometry;

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
pub unsafe fn array_at<'py>(
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
pub unsafe fn shown_at<'py>(
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
