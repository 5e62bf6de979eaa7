//! Exports an array's items to other packages without a copy: by DLPack, or by an address; and releases
//! structures of Arrow.

use std::ffi::{CStr, c_void};
use std::sync::Arc;

use numpy::PyArrayDescr;
use numpy::prelude::*;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use vmarray::device::AddressSpace;

use crate::fault::{off, raised};
use crate::geometry::Geometry;
use crate::handle::{Export, Handle};

/// The C types of DLPack's header `dlpack.h`, version 1.
mod dlpack {
    use std::ffi::c_void;

    pub const CPU: i32 = 1;
    pub const CUDA: i32 = 2;
    pub const READ_ONLY: u64 = 1;

    #[repr(C)]
    pub struct Tensor {
        pub data: *mut c_void,
        pub device: [i32; 2],
        pub axes: i32,
        pub code: u8,
        pub bits: u8,
        pub lanes: u16,
        pub shape: *mut i64,
        pub strides: *mut i64,
        pub byte_offset: u64,
    }

    /// DLPack's C structure of an exported tensor, before version 1.
    #[repr(C)]
    pub struct Managed {
        pub tensor: Tensor,
        pub context: *mut c_void,
        pub delete: Option<unsafe extern "C" fn(*mut Self)>,
    }

    #[repr(C)]
    pub struct Versioned {
        pub version: [u32; 2],
        pub context: *mut c_void,
        pub delete: Option<unsafe extern "C" fn(*mut Self)>,
        pub flags: u64,
        pub tensor: Tensor,
    }
}

/// Exported items in the memory of one device. Only the package that imports them may use them.
///
/// Implementation of the class ``vmarray.DeviceMemory``; programs do not use it directly.
#[pyclass(frozen, module = "vmarray._core")]
pub struct ExportedItems {
    loan: Arc<Export>,
    space: AddressSpace,
    /// Address of the first item.
    address: u64,
    geometry: Geometry,
    descr: Py<PyArrayDescr>,
    is_read_only: bool,
}

/// Data that a consumer of DLPack holds until it calls the deleter.
struct Given<M> {
    managed: M,
    _loan: Arc<Export>,
    shape: Vec<i64>,
    strides: Vec<i64>,
}

/// A version of DLPack's tensor structure: before version 1, or from it on.
trait ManagedTensor: Sized {
    const NAME: &'static CStr;
    fn new(tensor: dlpack::Tensor, is_read_only: bool) -> Self;
    fn tensor(&mut self) -> &mut dlpack::Tensor;
    fn context(&mut self) -> &mut *mut c_void;
}

impl ManagedTensor for dlpack::Managed {
    const NAME: &'static CStr = c"dltensor";

    fn new(tensor: dlpack::Tensor, _: bool) -> Self {
        Self { tensor, context: std::ptr::null_mut(), delete: Some(delete::<Self>) }
    }

    fn tensor(&mut self) -> &mut dlpack::Tensor {
        &mut self.tensor
    }

    fn context(&mut self) -> &mut *mut c_void {
        &mut self.context
    }
}

impl ManagedTensor for dlpack::Versioned {
    const NAME: &'static CStr = c"dltensor_versioned";

    fn new(tensor: dlpack::Tensor, is_read_only: bool) -> Self {
        let flags = if is_read_only { dlpack::READ_ONLY } else { 0 };
        let (version, context) = ([1, 0], std::ptr::null_mut());
        Self { version, context, delete: Some(delete::<Self>), flags, tensor }
    }

    fn tensor(&mut self) -> &mut dlpack::Tensor {
        &mut self.tensor
    }

    fn context(&mut self) -> &mut *mut c_void {
        &mut self.context
    }
}

/// DLPack's deleter: frees the data when the consumer no longer needs the tensor.
///
/// # Safety
/// `managed` comes from a [`capsule`], and this is its last use.
unsafe extern "C" fn delete<M: ManagedTensor>(managed: *mut M) {
    // SAFETY: the context is the address of the struct that `managed` is a field of.
    drop(unsafe { Box::from_raw((*(*managed).context()).cast::<Given<M>>()) });
}

/// Destructor of a capsule: frees the data if no consumer took the tensor.
///
/// # Safety
/// Python calls it when a [`capsule`] is freed.
unsafe extern "C" fn end<M: ManagedTensor>(capsule: *mut ffi::PyObject) {
    // SAFETY: the pointer is a capsule's. A consumer renames the capsule that it takes.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, M::NAME.as_ptr()) == 1 {
            delete(ffi::PyCapsule_GetPointer(capsule, M::NAME.as_ptr()).cast::<M>());
        }
    }
}

/// Creates the Python capsule that passes a DLPack tensor to a consumer.
fn capsule<'py, M: ManagedTensor>(
    py: Python<'py>,
    tensor: dlpack::Tensor,
    is_read_only: bool,
    loan: &Arc<Export>,
    axes: (Vec<i64>, Vec<i64>),
) -> PyResult<Bound<'py, PyAny>> {
    let (shape, strides) = axes;
    let managed = M::new(tensor, is_read_only);
    let given = Box::into_raw(Box::new(Given { managed, _loan: Arc::clone(loan), shape, strides }));
    // SAFETY: the struct was allocated just now. The stores write addresses of its own fields, which do not
    // move.
    unsafe {
        *(*given).managed.context() = given.cast();
        (*given).managed.tensor().shape = (*given).shape.as_mut_ptr();
        (*given).managed.tensor().strides = (*given).strides.as_mut_ptr();
        let managed = &raw mut (*given).managed;
        let made = ffi::PyCapsule_New(managed.cast(), M::NAME.as_ptr(), Some(end::<M>));
        if made.is_null() {
            delete(managed);
        }
        Bound::from_owned_ptr_or_err(py, made)
    }
}

impl ExportedItems {
    /// Writes cached pages back to the device, and exports the items of an array in place. Blocks.
    pub fn new(
        py: Python<'_>,
        handle: &Arc<Handle>,
        geometry: Geometry,
        descr: Py<PyArrayDescr>,
        is_read_only: bool,
    ) -> PyResult<Self> {
        if geometry.count() == 0 {
            return Err(raised(py, "InvalidError", "an array without items has no memory"));
        }
        let ((first, end), unit) = (geometry.span(), handle.unit.bytes());
        let range = first / unit..end.div_ceil(unit);
        let (loan, run) = off(py, || handle.export(range.clone()))?;
        if run.len < range.len() {
            let text = "the items lie on several devices, page by page, in no one piece of memory; take one with \
                        `devices=` when the array is made, or export items of one page at a time: \
                        `array.memory()[\"page_bytes\"]` is the length of pages";
            py.detach(|| drop(loan));
            return Err(raised(py, "InvalidError", text));
        }
        let address = run.address + (geometry.offset - range.start * unit) as u64;
        Ok(Self { loan, space: run.space, address, geometry, descr, is_read_only })
    }

    fn dlpack_device(&self) -> PyResult<[i32; 2]> {
        match self.space {
            AddressSpace::Host => Ok([dlpack::CPU, 0]),
            AddressSpace::Cuda { ordinal } => Ok([dlpack::CUDA, ordinal as i32]),
            _ => Err(PyBufferError::new_err("DLPack does not support the device")),
        }
    }
}

#[pymethods]
impl ExportedItems {
    /// Returns DLPack's type and number of the device that stores the items.
    #[getter]
    fn device<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.dlpack_device()?)
    }

    #[getter]
    fn address(&self) -> u64 {
        self.address
    }

    #[getter]
    fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.geometry.shape)
    }

    #[getter]
    fn strides<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.geometry.strides)
    }

    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> Bound<'py, PyArrayDescr> {
        self.descr.bind(py).clone()
    }

    /// Returns the items as a DLPack capsule, in the version-1 structure if `is_versioned`.
    fn capsule<'py>(&self, py: Python<'py>, is_versioned: bool) -> PyResult<Bound<'py, PyAny>> {
        let (descr, itemsize) = (self.descr.bind(py), self.geometry.itemsize);
        let code = match descr.kind() {
            b'i' => 0,
            b'u' => 1,
            b'f' => 2,
            b'c' => 5,
            b'b' => 6,
            _ => 255,
        };
        if code == 255 || descr.is_native_byteorder() == Some(false) {
            return Err(PyBufferError::new_err(format!("DLPack does not support items of dtype {descr}")));
        }
        if self.is_read_only && !is_versioned {
            return Err(PyBufferError::new_err(
                "several indices show the same item, so the array is read-only, which DLPack before version 1 \
                 does not support; copy the array",
            ));
        }
        if self.geometry.strides.iter().any(|stride| stride % itemsize as isize != 0) {
            return Err(PyBufferError::new_err(
                "DLPack needs strides that are multiples of the item size; \
                    copy the array",
            ));
        }
        let shape = self.geometry.shape.iter().map(|extent| *extent as i64).collect::<Vec<_>>();
        let strides = self.geometry.strides.iter().map(|stride| *stride as i64 / itemsize as i64).collect();
        let tensor = dlpack::Tensor {
            data: self.address as *mut c_void,
            device: self.dlpack_device()?,
            axes: shape.len() as i32,
            code,
            bits: (8 * itemsize) as u8,
            lanes: 1,
            shape: std::ptr::null_mut(),
            strides: std::ptr::null_mut(),
            byte_offset: 0,
        };
        let axes = (shape, strides);
        match is_versioned {
            true => capsule::<dlpack::Versioned>(py, tensor, self.is_read_only, &self.loan, axes),
            false => capsule::<dlpack::Managed>(py, tensor, self.is_read_only, &self.loan, axes),
        }
    }
}

/// The C types of Arrow's C data interface, as far as a release needs them.
mod arrow {
    use std::ffi::c_void;

    pub type Release<T> = Option<unsafe extern "C" fn(*mut T)>;

    #[repr(C)]
    pub struct Schema {
        pub texts: [*const c_void; 3],
        pub flags: i64,
        pub n_children: i64,
        pub children: *mut *mut Schema,
        pub dictionary: *mut Schema,
        pub release: Release<Schema>,
        pub private: *mut c_void,
    }

    #[repr(C)]
    pub struct Chunk {
        pub numbers: [i64; 4],
        pub n_children: i64,
        pub buffers: *mut c_void,
        pub children: *mut *mut Chunk,
        pub dictionary: *mut Chunk,
        pub release: Release<Chunk>,
        pub private: *mut c_void,
    }

    #[repr(C)]
    pub struct Stream {
        pub functions: [*const c_void; 3],
        pub release: Release<Stream>,
        pub private: *mut c_void,
    }
}

/// Drops the Python object of an exported structure. A consumer may call this while an exception is pending.
///
/// # Safety
/// `object` is null, or an owned reference.
unsafe fn drop_object(object: *mut c_void) {
    // Leak the object if Python has ended.
    let _ = Python::try_attach(|py| {
        // SAFETY: the caller passes an owned reference.
        drop(unsafe { Bound::from_owned_ptr_or_opt(py, object.cast()) });
    });
}

macro_rules! release {
    ($name:ident, $T:ty, $children:expr) => {
        /// Releases a structure of Arrow and its children, as the interface requires.
        ///
        /// # Safety
        /// `of` is a structure that `_arrow.py` has filled, and that no code has released.
        unsafe extern "C" fn $name(of: *mut $T) {
            // SAFETY: the consumer calls this once, with a valid structure that it owns.
            let of = unsafe { &mut *of };
            let children: &[*mut $T] = $children(of);
            for child in children {
                // SAFETY: `_arrow.py` has filled all children; a consumer may have released some of them.
                if let Some(release) = unsafe { (**child).release } {
                    // SAFETY: as for the structure itself.
                    unsafe { release(*child) };
                }
            }
            of.release = None;
            // SAFETY: `private` is a reference that `_arrow.py` has taken for this structure.
            unsafe { drop_object(std::mem::replace(&mut of.private, std::ptr::null_mut())) };
        }
    };
}

/// Returns the children of a structure.
fn children<'a, T>(start: *mut *mut T, count: i64) -> &'a [*mut T] {
    match usize::try_from(count) {
        // SAFETY: `_arrow.py` has made a list of this length, which lives until the release drops its object.
        Ok(count) if count > 0 => unsafe { std::slice::from_raw_parts(start, count) },
        _ => &[],
    }
}
release!(release_schema, arrow::Schema, |of: &arrow::Schema| children(of.children, of.n_children));
release!(release_chunk, arrow::Chunk, |of: &arrow::Chunk| children(of.children, of.n_children));
release!(release_stream, arrow::Stream, |_: &arrow::Stream| &[]);

/// Releases the stream of a capsule that no consumer has taken.
///
/// # Safety
/// `capsule` is a capsule of `_arrow.py`.
unsafe extern "C" fn end_capsule(capsule: *mut ffi::PyObject) {
    // SAFETY: the capsule is alive during its destructor, and has a stream under this name, which lives as
    // long as the object of the capsule's context.
    unsafe {
        let stream =
            ffi::PyCapsule_GetPointer(capsule, c"arrow_array_stream".as_ptr()).cast::<arrow::Stream>();
        if stream.is_null() {
            ffi::PyErr_Clear();
        } else if let Some(release) = (*stream).release {
            release(stream);
        }
        // The object that keeps the stream alive.
        ffi::Py_DecRef(ffi::PyCapsule_GetContext(capsule).cast());
    }
}

/// Returns the addresses of functions in C that release a schema, a chunk and a stream of Arrow, and that end
/// a capsule. Functions in Python cannot replace them, because a consumer may have an exception pending.
#[pyfunction]
pub fn arrow_releases() -> (usize, usize, usize, usize) {
    (
        release_schema as *const () as usize,
        release_chunk as *const () as usize,
        release_stream as *const () as usize,
        end_capsule as *const () as usize,
    )
}
