//! An allocator for NumPy (NEP 49): while the package lets NumPy compute, NumPy takes the memory of results and
//! of intermediate results from the pool of `results.rs`, and returns it there.

use std::ffi::{CStr, c_char, c_void};
use std::ptr;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple};

use crate::results::{BYTES_MIN, Piece, bytes_max};

/// NumPy's C structure of an allocator.
#[repr(C)]
struct Allocator {
    context: *mut c_void,
    malloc: unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void,
    calloc: unsafe extern "C" fn(*mut c_void, usize, usize) -> *mut c_void,
    realloc: unsafe extern "C" fn(*mut c_void, *mut c_void, usize) -> *mut c_void,
    free: unsafe extern "C" fn(*mut c_void, *mut c_void, usize),
}

/// NumPy's C structure `PyDataMem_Handler`, version 1.
#[repr(C)]
struct Handler {
    name: [c_char; 127],
    version: u8,
    allocator: Allocator,
}

// SAFETY: no code writes to the handler, and its functions may run on any thread.
unsafe impl Sync for Handler {}

static HANDLER: Handler = Handler {
    name: {
        let (mut name, text) = ([0; 127], b"vmarray");
        let mut at = 0;
        while at < text.len() {
            name[at] = text[at] as c_char;
            at += 1;
        }
        name
    },
    version: 1,
    allocator: Allocator { context: ptr::null_mut(), malloc, calloc, realloc, free },
};
/// NumPy's name for capsules with a handler.
const CAPSULE: &CStr = c"mem_handler";
/// Place of `PyDataMem_SetHandler` in the table of NumPy's C functions.
const SET_HANDLER: usize = 304;

/// What precedes the memory of each allocation; 64 bytes, so that the memory is aligned as the piece is.
#[repr(C, align(64))]
struct Header {
    bytes: usize,
    /// The memory of the pool with the allocation; null if the allocation is of the C library.
    piece: *mut Piece,
}

/// Returns memory behind a header; null if there is none.
fn allocated(bytes: usize, is_zeroed: bool) -> *mut c_void {
    let Some(all) = bytes.checked_add(size_of::<Header>()) else { return ptr::null_mut() };
    let (start, piece) = if (BYTES_MIN..=bytes_max()).contains(&bytes) {
        let piece = if is_zeroed { Piece::zeroed(all) } else { Piece::new(all) };
        let Some(mut piece) = piece else { return ptr::null_mut() };
        (piece.start(), Box::into_raw(Box::new(piece)))
    } else {
        let mut start = ptr::null_mut();
        // SAFETY: the alignment is a power of two, and `start` is valid for a write.
        if unsafe { libc::posix_memalign(&raw mut start, align_of::<Header>(), all) } != 0 {
            return ptr::null_mut();
        }
        if is_zeroed {
            // SAFETY: the memory has this length.
            unsafe { start.cast::<u8>().write_bytes(0, all) };
        }
        (start.cast(), ptr::null_mut())
    };
    let header = start.cast::<Header>();
    // SAFETY: the memory is new, aligned, and begins with room for a header.
    unsafe {
        header.write(Header { bytes, piece });
        header.add(1).cast()
    }
}

extern "C" fn malloc(_: *mut c_void, bytes: usize) -> *mut c_void {
    allocated(bytes, false)
}

extern "C" fn calloc(_: *mut c_void, count: usize, bytes: usize) -> *mut c_void {
    count.checked_mul(bytes).map_or(ptr::null_mut(), |bytes| allocated(bytes, true))
}

/// # Safety
/// `old` is null, or an allocation of this allocator that the caller no longer uses.
unsafe extern "C" fn realloc(context: *mut c_void, old: *mut c_void, bytes: usize) -> *mut c_void {
    let new = allocated(bytes, false);
    if !old.is_null() && !new.is_null() {
        // SAFETY: the allocations are apart, and each has at least so many bytes behind its header.
        unsafe {
            let before = (*old.cast::<Header>().sub(1)).bytes;
            ptr::copy_nonoverlapping(old.cast::<u8>(), new.cast::<u8>(), before.min(bytes));
            free(context, old, before);
        }
    }
    new
}

/// # Safety
/// As for `realloc`.
unsafe extern "C" fn free(_: *mut c_void, old: *mut c_void, _: usize) {
    if old.is_null() {
        return;
    }
    // SAFETY: the header of an allocation precedes it; the piece was leaked by `allocated`, for this call.
    unsafe {
        let header = old.cast::<Header>().sub(1);
        let piece = (*header).piece;
        if piece.is_null() { libc::free(header.cast()) } else { drop(Box::from_raw(piece)) }
    }
}

type SetHandler = unsafe extern "C" fn(*mut ffi::PyObject) -> *mut ffi::PyObject;

/// Returns NumPy's function that sets the allocator of this context, and a capsule with the package's allocator.
fn setter(py: Python<'_>) -> PyResult<(SetHandler, &Py<PyAny>)> {
    static API: PyOnceLock<(SetHandler, Py<PyAny>)> = PyOnceLock::new();
    let api = API.get_or_try_init(py, || {
        let capsule = py.import("numpy._core._multiarray_umath")?.getattr("_ARRAY_API")?;
        // SAFETY: NumPy's table has this function from version 1.22 on, and the package needs a later one.
        unsafe {
            let table = ffi::PyCapsule_GetPointer(capsule.as_ptr(), ptr::null());
            if table.is_null() {
                return Err(PyErr::fetch(py));
            }
            let set = *table.cast::<*const c_void>().add(SET_HANDLER);
            let handler = (&raw const HANDLER).cast_mut().cast();
            let capsule = ffi::PyCapsule_New(handler, CAPSULE.as_ptr(), None);
            let capsule = Bound::from_owned_ptr_or_err(py, capsule)?.unbind();
            Ok((std::mem::transmute::<*const c_void, SetHandler>(set), capsule))
        }
    })?;
    Ok((api.0, &api.1))
}

/// Calls a function. Arrays of NumPy that it creates take their memory from the pool for results.
#[pyfunction]
#[pyo3(signature = (work, *args, **given))]
pub fn pooled<'py>(
    work: &Bound<'py, PyAny>,
    args: &Bound<'py, PyTuple>,
    given: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = work.py();
    let (set, own) = setter(py)?;
    // SAFETY: the argument is a capsule with a handler that lives as long as the process.
    let before = unsafe { Bound::from_owned_ptr_or_err(py, set(own.as_ptr()))? };
    let outcome = work.call(args, given);
    // SAFETY: NumPy returned this handler above.
    let after = unsafe { Bound::from_owned_ptr_or_err(py, set(before.as_ptr())) };
    outcome.and_then(|found| after.map(|_| found))
}
