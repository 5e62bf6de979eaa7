//! Creates arrays whose pages Python or another program stores: functions that read and write a page, a NumPy
//! array, or a file.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, Weak};

use numpy::prelude::*;
use numpy::{PyArrayDescr, PyUntypedArray};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use vmarray::store::FileAccess;

use crate::array::{Body, Core, options};
use crate::element::{self, Unit};
use crate::fault::off;
use crate::fork::is_forked;
use crate::handle::lock;
use crate::home::{Home, PageKind};
use crate::node::Source;
use crate::numpy_arrays::{Bytes, described, grid};
use crate::store::{Options, Place};

/// Approximate size of a page, in bytes, if a NumPy array stores the pages.
const PAGE_BYTES: usize = 1 << 20;
/// Minimum number of cached pages if functions read and write long pages.
const FRAMES_MIN: usize = 4;
/// Default size of the cache, in bytes.
const CACHE_BYTES: usize = 256 << 20;

/// Arrays whose pages Python functions or files store; they must be closed before Python ends.
static CALLED: Mutex<Vec<Weak<Source>>> = Mutex::new(Vec::new());

/// Creates an array over pages of `page_items` items, which the Python `functions` read and write.
/// ``read(page)`` returns a NumPy array of a page's length. ``write(page, bytes)`` receives such an array; if
/// `write` is `None`, the array is read-only.
#[pyfunction]
pub fn create_over(
    shape: Vec<usize>,
    dtype: &Bound<'_, PyAny>,
    page_items: usize,
    functions: (Py<PyAny>, Py<PyAny>),
    name: String,
    given: &Bound<'_, PyDict>,
) -> PyResult<Core> {
    let py = dtype.py();
    let grid = described(py, &shape, dtype)?;
    let (itemsize, count) = (grid.dtype().itemsize(), grid.len());
    let (page_bytes, (read, write)) = (page_items * itemsize, functions);
    let home = Home {
        page_bytes,
        count: count.div_ceil(page_items.max(1)) as u64,
        name,
        is_read_only: write.is_none(py),
        kind: Arc::new(PageKind::Functions { read, write }),
    };
    let unit = Unit::of(&grid.dtype());
    let mut options = options(py, given, itemsize, unit)?;
    let least = page_bytes.saturating_mul(FRAMES_MIN);
    options.cache_bytes = Some(options.cache_bytes.unwrap_or_else(|| CACHE_BYTES.max(least)));
    let len = count * itemsize / unit.bytes();
    let handle = registered(py, unit, len, options, &Place::Home(home))?;
    Ok(Core::new(Body::View(handle), grid))
}

/// Creates an array that `close_homes` closes.
fn registered(
    py: Python<'_>,
    unit: Unit,
    len: usize,
    options: Options,
    place: &Place,
) -> PyResult<Arc<Source>> {
    let handle = off(py, || Source::new(unit, len, options, place))?;
    let mut called = lock(&CALLED);
    called.retain(|one| one.strong_count() > 0);
    called.push(Arc::downgrade(&handle));
    Ok(handle)
}

/// Creates an array over bytes of files, each with its first byte and its number of bytes. `mode` is one of
/// NumPy's modes of memory maps of existing files; for several files, `"r"`.
#[pyfunction]
pub fn over_file(
    files: Vec<(PathBuf, u64, u64)>,
    shape: Vec<usize>,
    dtype: &Bound<'_, PyAny>,
    mode: &str,
    given: &Bound<'_, PyDict>,
) -> PyResult<Core> {
    let py = dtype.py();
    let grid = described(py, &shape, dtype)?;
    let (itemsize, unit) = (grid.dtype().itemsize(), Unit::of(&grid.dtype()));
    let bytes = grid.len() * itemsize;
    let access = match mode {
        "r" => FileAccess::ReadOnly,
        "r+" => FileAccess::ReadWrite,
        "c" => FileAccess::CopyOnWrite,
        _ => return Err(PyValueError::new_err(format!("mode must be 'r', 'r+' or 'c', not {mode:?}"))),
    };
    let options = match options(py, given, itemsize, unit) {
        // A forked process cannot use devices, but reads the file.
        Err(_) if is_forked() => Options::default(),
        options => options?,
    };
    let file = |(path, offset, bytes): (PathBuf, u64, u64)| (path, offset..offset.saturating_add(bytes));
    let place = Place::Files(files.into_iter().map(file).collect(), access);
    let handle = registered(py, unit, bytes / unit.bytes(), options, &place)?;
    if access == FileAccess::ReadOnly {
        grid.getattr("flags")?.setattr("writeable", false)?;
    }
    Ok(Core::new(Body::View(handle), grid))
}

/// Creates an array whose pages are stored in the memory of a contiguous NumPy array.
#[pyfunction]
pub fn over_memory(
    py: Python<'_>,
    of: &Bound<'_, PyUntypedArray>,
    is_read_only: bool,
    given: &Bound<'_, PyDict>,
) -> PyResult<Core> {
    let (bytes, descr): (Bytes, Bound<'_, PyArrayDescr>) = (Bytes::of(of)?, of.dtype());
    element::check(&descr)?;
    let unit = Unit::of(&descr);
    let options = options(py, given, descr.itemsize(), unit)?;
    let wanted = options.page_bytes.unwrap_or(PAGE_BYTES);
    let page_bytes = (wanted / unit.bytes()).max(1) * unit.bytes();
    let (count, len) = (bytes.len().div_ceil(page_bytes) as u64, bytes.len() / unit.bytes());
    let kind = Arc::new(PageKind::Memory { bytes, _of: of.clone().unbind() });
    let home = Home { page_bytes, count, name: "memory of NumPy".into(), is_read_only, kind };
    let handle = off(py, || Source::new(unit, len, options, &Place::Home(home)))?;
    Ok(Core::new(Body::View(handle), grid(py, &descr, of.shape())?))
}

/// Closes all arrays whose pages a Python function or a file stores. Python calls this at exit.
#[pyfunction]
pub fn close_homes(py: Python<'_>) -> PyResult<()> {
    let called: Vec<_> = lock(&CALLED).drain(..).filter_map(|one| one.upgrade()).collect();
    // A forked process has the arrays of its parent, and must not write their pages.
    off(py, || {
        // Close all arrays before the first error is reported.
        let closed: Vec<_> =
            called.iter().filter(|handle| handle.is_own()).map(|handle| handle.close()).collect();
        closed.into_iter().collect()
    })
}
