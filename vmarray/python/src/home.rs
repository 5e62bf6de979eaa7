//! Pages of arrays that Python stores: functions that read and write a page, or memory of NumPy arrays.

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, Weak};

use numpy::prelude::*;
use numpy::{PyArray1, PyArrayDescr, PyUntypedArray};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use vmarray::store::Backing;

use crate::array::{Body, Bytes, Core, described, grid, off, options};
use crate::element::{self, Unit};
use crate::handle::{Handle, lock};
use crate::store::Place;

/// Approximate bytes of a page over memory.
const PAGE_BYTES: usize = 1 << 20;
/// Fewest pages of a cache over functions with long pages.
const FRAMES_MIN: usize = 4;
/// Default size of the cache.
const CACHE_BYTES: usize = 256 << 20;

/// Arrays over writing functions, which must be closed before Python ends.
static CALLED: Mutex<Vec<Weak<Handle>>> = Mutex::new(Vec::new());

/// Storage of an array's pages in the program instead of on a device: the memory of a NumPy array, or Python
/// functions that read and write a page.
#[derive(Clone)]
pub struct Home(Arc<Pages>);

struct Pages {
    page_bytes: usize,
    count: u64,
    name: String,
    is_read_only: bool,
    kind: Kind,
}

enum Kind {
    /// Functions with a page's index as argument: `read` returns the bytes of the page, `write` receives
    /// them.
    Functions { read: Py<PyAny>, write: Py<PyAny> },
    /// Items of a NumPy array, which the home keeps alive.
    Memory { bytes: Bytes, _of: Py<PyUntypedArray> },
}

impl fmt::Debug for Home {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Home")
            .field("name", &self.0.name)
            .field("pages", &self.0.count)
            .finish_non_exhaustive()
    }
}

impl Home {
    pub fn page_bytes(&self) -> usize {
        self.0.page_bytes
    }
}

/// Calls Python, and converts its exceptions.
fn called(work: impl FnOnce(Python<'_>) -> PyResult<()>) -> io::Result<()> {
    let done = Python::try_attach(|py| work(py).map_err(|error| io::Error::other(error.to_string())));
    done.unwrap_or_else(|| Err(io::Error::other("Python has ended")))
}

impl Backing for Home {
    fn page_bytes(&self) -> usize {
        self.0.page_bytes
    }

    fn pages(&self) -> u64 {
        self.0.count
    }

    fn read_page(&self, page: u64, into: &mut [u8]) -> io::Result<()> {
        match &self.0.kind {
            Kind::Functions { read, .. } => called(|py| {
                let items = read.call1(py, (page,))?.into_bound(py).cast_into::<PyUntypedArray>()?;
                // SAFETY: the array is alive, and no code writes to it, because it was made for this call.
                let items = unsafe { Bytes::of(&items)?.get() };
                if items.len() != into.len() {
                    return Err(PyValueError::new_err("the bytes of the page have the wrong length"));
                }
                py.detach(|| into.copy_from_slice(items));
                Ok(())
            }),
            Kind::Memory { bytes, .. } => {
                // SAFETY: the array is kept alive; the program that passed it as a home does not write to it
                // meanwhile.
                let all = unsafe { bytes.get() };
                let from = &all[page as usize * self.0.page_bytes..];
                let (own, rest) = into.split_at_mut(from.len().min(self.0.page_bytes));
                own.copy_from_slice(&from[..own.len()]);
                rest.fill(0);
                Ok(())
            }
        }
    }

    fn write_page(&self, page: u64, from: &[u8]) -> io::Result<()> {
        match &self.0.kind {
            Kind::Functions { write, .. } => {
                called(|py| write.call1(py, (page, PyArray1::from_slice(py, from))).map(|_| ()))
            }
            Kind::Memory { bytes, .. } => {
                let start = page as usize * self.0.page_bytes;
                // SAFETY: the array is kept alive, and is writable where this is called.
                unsafe { bytes.write(start, &from[..from.len().min(bytes.len() - start)]) };
                Ok(())
            }
        }
    }

    fn is_read_only(&self) -> bool {
        self.0.is_read_only
    }

    fn name(&self) -> String {
        self.0.name.clone()
    }
}

/// Creates an array of a shape over pages of equal length, which Python functions read and write.
/// ``read(page)`` returns a NumPy array of a page's length. ``write(page, bytes)`` receives such an array;
/// with `None` the array is read-only.
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
    let pages = Pages {
        page_bytes,
        count: count.div_ceil(page_items.max(1)) as u64,
        name,
        is_read_only: write.is_none(py),
        kind: Kind::Functions { read, write },
    };
    let unit = Unit::of(&grid.dtype());
    let mut options = options(py, given, itemsize, unit)?;
    let least = page_bytes.saturating_mul(FRAMES_MIN);
    options.cache_bytes = Some(options.cache_bytes.unwrap_or_else(|| CACHE_BYTES.max(least)));
    let len = count * itemsize / unit.bytes();
    let handle = off(py, || Handle::new(unit, len, options, &Place::Home(Home(Arc::new(pages)))))?;
    let mut called = lock(&CALLED);
    called.retain(|one| one.strong_count() > 0);
    called.push(Arc::downgrade(&handle));
    drop(called);
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
    let kind = Kind::Memory { bytes, _of: of.clone().unbind() };
    let pages = Pages { page_bytes, count, name: "memory of NumPy".into(), is_read_only, kind };
    let handle = off(py, || Handle::new(unit, len, options, &Place::Home(Home(Arc::new(pages)))))?;
    Ok(Core::new(Body::View(handle), grid(py, &descr, of.shape())?))
}

/// Closes all arrays whose pages a Python function writes. Python calls this before it ends.
#[pyfunction]
pub fn close_homes(py: Python<'_>) -> PyResult<()> {
    let called: Vec<_> = lock(&CALLED).drain(..).filter_map(|one| one.upgrade()).collect();
    off(py, || called.into_iter().try_for_each(|handle| handle.close()))
}
