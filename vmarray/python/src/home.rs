//! Storage of an array's pages in Python: functions that read and write a page, or a NumPy array.

use std::fmt;
use std::io;
use std::sync::Arc;

use numpy::{PyArray1, PyUntypedArray};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use vmarray::store::Backing;

use crate::numpy_arrays::Bytes;

/// Storage of an array's pages in the program instead of on a device: the memory of a NumPy array, or Python
/// functions that read and write a page.
#[derive(Clone)]
pub struct Home {
    pub page_bytes: usize,
    pub count: u64,
    pub name: String,
    pub is_read_only: bool,
    pub kind: Arc<PageKind>,
}

pub enum PageKind {
    /// Python functions whose argument is a page's index: `read` returns the page's bytes, `write` receives
    /// them.
    Functions { read: Py<PyAny>, write: Py<PyAny> },
    /// Items of a NumPy array, which this value keeps alive.
    Memory { bytes: Bytes, _of: Py<PyUntypedArray> },
}

impl fmt::Debug for Home {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Home").field("name", &self.name).field("pages", &self.count).finish_non_exhaustive()
    }
}

/// Calls Python, and converts an exception to an error of the library.
fn called(work: impl FnOnce(Python<'_>) -> PyResult<()>) -> io::Result<()> {
    let done = Python::try_attach(|py| work(py).map_err(|error| io::Error::other(error.to_string())));
    done.unwrap_or_else(|| Err(io::Error::other("Python has ended")))
}

impl Backing for Home {
    fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    fn pages(&self) -> u64 {
        self.count
    }

    fn read_page(&self, page: u64, into: &mut [u8]) -> io::Result<()> {
        match &*self.kind {
            PageKind::Functions { read, .. } => called(|py| {
                let items = read.call1(py, (page,))?.into_bound(py).cast_into::<PyUntypedArray>()?;
                // SAFETY: the array is alive, and no code writes to it, because it was made for this call.
                let items = unsafe { Bytes::of(&items)?.get() };
                if items.len() != into.len() {
                    return Err(PyValueError::new_err("`read` returned a page of another length"));
                }
                py.detach(|| into.copy_from_slice(items));
                Ok(())
            }),
            PageKind::Memory { bytes, .. } => {
                // SAFETY: the array is kept alive; the program that passed it as a home does not write to it
                // meanwhile.
                let all = unsafe { bytes.get() };
                let from = &all[page as usize * self.page_bytes..];
                let (own, rest) = into.split_at_mut(from.len().min(self.page_bytes));
                own.copy_from_slice(&from[..own.len()]);
                rest.fill(0);
                Ok(())
            }
        }
    }

    fn write_page(&self, page: u64, from: &[u8]) -> io::Result<()> {
        match &*self.kind {
            PageKind::Functions { write, .. } => {
                called(|py| write.call1(py, (page, PyArray1::from_slice(py, from))).map(|_| ()))
            }
            PageKind::Memory { bytes, .. } => {
                let start = page as usize * self.page_bytes;
                // SAFETY: the array is kept alive, and is writable where this is called.
                unsafe { bytes.write(start, &from[..from.len().min(bytes.len() - start)]) };
                Ok(())
            }
        }
    }

    fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}
