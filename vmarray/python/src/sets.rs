//! Python classes of index sets (sets of tuples of integers) and of their joins.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex};

use numpy::prelude::*;
use numpy::{PyArray1, PyArray2, PyArrayDescr, PyReadonlyArray1, PyReadonlyArray2};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use vmarray::index_set::{Combine, Dimension};

use crate::array::{Body, Core, options};
use crate::element::Unit;
use crate::fault::{Result, off};
use crate::handle::lock;
use crate::node::Source;
use crate::numpy_arrays::grid;
use crate::store::{Place, Typed};

/// An immutable set of tuples.
///
/// Implementation of the class ``vmarray.IndexSet``; programs do not use it directly.
#[pyclass(frozen, module = "vmarray._core")]
pub struct Set(Arc<vmarray::IndexSet>);

/// Iterator over the results of a join in parts, which a thread of the library computes.
#[pyclass(frozen, module = "vmarray._core")]
pub struct Parts(Mutex<Receiver<vmarray::Result<vmarray::IndexSet>>>);

/// Prepares the join of two sets by their common columns, or their product (all pairs).
fn combine<'a>(
    one: &'a vmarray::IndexSet,
    other: &'a vmarray::IndexSet,
    is_product: bool,
) -> Combine<'a, vmarray::IndexSet, vmarray::IndexSet> {
    if is_product { Combine::product(one, other) } else { Combine::new(one, other) }
}

#[pymethods]
impl Set {
    /// Creates a set from columns of equal length.
    #[staticmethod]
    fn from_columns(
        py: Python<'_>,
        dimensions: Vec<Dimension>,
        columns: Vec<PyReadonlyArray1<'_, u64>>,
    ) -> PyResult<Self> {
        let columns =
            columns.iter().map(|column| Ok(column.as_slice()?)).collect::<PyResult<Vec<&[u64]>>>()?;
        let made = off(py, || Ok(vmarray::IndexSet::from_columns(dimensions.into_iter().zip(columns))?))?;
        Ok(Self(Arc::new(made)))
    }

    /// Creates a set from the rows of a contiguous array; each row is a tuple.
    #[staticmethod]
    fn from_rows(
        py: Python<'_>,
        dimensions: Vec<Dimension>,
        rows: PyReadonlyArray2<'_, u64>,
    ) -> PyResult<Self> {
        let values = rows.as_slice()?;
        let made = off(py, || Ok(vmarray::IndexSet::from_values(dimensions, values.to_vec())?))?;
        Ok(Self(Arc::new(made)))
    }

    #[staticmethod]
    fn load(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        Ok(Self(Arc::new(off(py, || Ok(vmarray::IndexSet::load(&path)?))?)))
    }

    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        off(py, || Ok(self.0.save(&path)?))
    }

    #[getter]
    fn dimensions<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.0.dimensions())
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    fn __eq__(&self, other: &Self) -> bool {
        self.0 == other.0
    }

    /// Returns a range of the tuples as the rows of a NumPy array; the range must be inside the set.
    fn rows<'py>(&self, py: Python<'py>, start: usize, end: usize) -> PyResult<Bound<'py, PyArray2<u64>>> {
        let (width, end) = (self.0.dimensions().len(), end.min(self.0.len()));
        let values = self.0.values()[start.min(end) * width..end * width].to_vec();
        PyArray1::from_vec(py, values).reshape([end - start.min(end), width])
    }

    /// The columns, in the order of the dimensions.
    fn columns<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyArray1<u64>>>> {
        let columns = off(py, || Ok(self.0.to_columns()?.into_vecs()))?;
        Ok(columns.into_iter().map(|column| PyArray1::from_vec(py, column)).collect())
    }

    fn project(&self, py: Python<'_>, dimensions: Vec<Dimension>) -> PyResult<Self> {
        Ok(Self(Arc::new(off(py, || Ok(self.0.project(dimensions)?))?)))
    }

    fn relabel(&self, py: Python<'_>, dimensions: Vec<Dimension>) -> PyResult<Self> {
        Ok(Self(Arc::new(off(py, || Ok(vmarray::IndexSet::clone(&self.0).relabel(dimensions)?))?)))
    }

    /// Returns a set of the tuples in ascending order; without duplicates if `is_unique`.
    fn sorted(&self, py: Python<'_>, is_unique: bool) -> PyResult<Self> {
        let made = off(py, || {
            let mut sorted = vmarray::IndexSet::clone(&self.0);
            sorted.sort()?;
            if is_unique {
                sorted.dedup();
            }
            Ok(sorted)
        })?;
        Ok(Self(Arc::new(made)))
    }

    fn combine(&self, py: Python<'_>, other: &Self, is_product: bool) -> PyResult<Self> {
        Ok(Self(Arc::new(off(py, || Ok(combine(&self.0, &other.0, is_product).run()?.to_index_set()?))?)))
    }

    /// Returns the number of results of the join or product with another set.
    fn count(&self, py: Python<'_>, other: &Self, is_product: bool) -> PyResult<usize> {
        off(py, || Ok(combine(&self.0, &other.0, is_product).run()?.len()))
    }

    /// Returns an iterator over the results of the join or product, in sets of at most `tuples` tuples.
    fn combine_in_parts(&self, other: &Self, is_product: bool, tuples: usize) -> PyResult<Parts> {
        let (one, other) = (Arc::clone(&self.0), Arc::clone(&other.0));
        let (sender, receiver) = sync_channel(0);
        let work = move || {
            let all = match combine(&one, &other, is_product).run() {
                Ok(all) => all,
                Err(error) => {
                    let _ = sender.send(Err(error));
                    return;
                }
            };
            for part in all.chunks(tuples) {
                // Stop if the receiver is dropped, because then the caller needs no more parts.
                if sender.send(part).is_err() {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("vmarray-combine".into()).spawn(work)?;
        Ok(Parts(Mutex::new(receiver)))
    }

    /// Stores the results of the join or product as the rows of a new array of the library.
    fn combine_to_array(
        &self,
        py: Python<'_>,
        other: &Self,
        is_product: bool,
        given: &Bound<'_, PyDict>,
    ) -> PyResult<(Vec<Dimension>, Core)> {
        let descr = PyArrayDescr::new(py, "u8")?;
        let options = options(py, given, size_of::<u64>(), Unit::U64)?;
        let (dimensions, len, handle) = off(py, || -> Result<_> {
            let all = combine(&self.0, &other.0, is_product).run()?;
            let values = all.len().saturating_mul(all.dimensions().len());
            let handle = Source::new(Unit::U64, values, options, &Place::Memory)?;
            if let Some(typed) = handle.open()?.as_any().downcast_ref::<Typed<u64>>() {
                all.write_to(&typed.array, 0)?;
            }
            Ok((all.dimensions().to_vec(), all.len(), handle))
        })?;
        let shape = [len, dimensions.len()];
        Ok((dimensions, Core::new(Body::View(handle), grid(py, &descr, &shape)?)))
    }
}

#[pymethods]
impl Parts {
    fn __iter__(of: PyRef<'_, Self>) -> PyRef<'_, Self> {
        of
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Set>> {
        match py.detach(|| lock(&self.0).recv()) {
            Ok(part) => Ok(Some(Set(Arc::new(off(py, || Ok(part?))?)))),
            Err(_) => Ok(None),
        }
    }
}
