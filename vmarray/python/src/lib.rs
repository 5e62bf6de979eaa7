//! The Rust extension module of the Python package `vmarray`; `python/vmarray` has the public interface.
//!
//! Strided views (`geometry`, `copies`) show arrays of any element type as bytes (`element`, `elements`,
//! `store`, `handle`); arrays of few bytes begin in RAM (`small`). Lazy expressions (`node`) are made of
//! `operations` and lowered to programs by `lower`. `ordered` sorts, searches, groups, bins and reduces
//! numbers along axes; `product` multiplies matrices. `progress` reports the progress of long operations and
//! handles Ctrl-C. `results` reuses memory of NumPy results. `forked` reads files in forked processes. `home`
//! stores pages in Zarr stores and Python's memory; `over` creates arrays of such pages, and of files.
//! `export` is DLPack, `rows` tables of rows for GPUs, `sets` index sets. `array` and `device` are the Python
//! classes.
//!
//! `python/vmarray` has the array class, list keys (`_indexing`), NumPy's functions (`_functions`,
//! `_shapes`, `_order`, `_products`, `random`), kernels from syntax trees (`_kernel`), file formats
//! (`_files`, `_mapped`), chunks of Dask (`dask`), DLPack (`_export`), index sets (`_sets`) and rows
//! (`_ragged`).

mod array;
mod copies;
mod device;
mod element;
mod elements;
mod export;
mod fault;
mod fork;
mod forked;
mod geometry;
mod handle;
mod home;
mod in_ram;
mod lower;
mod node;
mod numpy_arrays;
mod operations;
mod ordered;
mod over;
mod pool;
mod product;
mod progress;
mod results;
mod rows;
mod sets;
mod store;

use pyo3::prelude::*;

/// The Python module `vmarray._core`, which Python code of the package imports.
#[pymodule]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<array::Core>()?;
    module.add_class::<device::Device>()?;
    module.add_class::<export::ExportedItems>()?;
    module.add_class::<rows::Rows>()?;
    module.add_function(wrap_pyfunction!(export::arrow_releases, module)?)?;
    module.add_class::<sets::Set>()?;
    module.add_class::<sets::Parts>()?;
    module.add_function(wrap_pyfunction!(array::create, module)?)?;
    module.add_function(wrap_pyfunction!(array::open, module)?)?;
    module.add_function(wrap_pyfunction!(array::described_file, module)?)?;
    module.add_function(wrap_pyfunction!(array::apply, module)?)?;
    module.add_function(wrap_pyfunction!(over::create_over, module)?)?;
    module.add_function(wrap_pyfunction!(over::over_memory, module)?)?;
    module.add_function(wrap_pyfunction!(over::over_file, module)?)?;
    module.add_function(wrap_pyfunction!(over::close_homes, module)?)?;
    module.add_function(wrap_pyfunction!(device::devices, module)?)?;
    module.add_class::<pool::Piece>()?;
    module.add_class::<numpy_arrays::Shown>()?;
    module.add_function(wrap_pyfunction!(pool::pooled, module)?)?;
    module.add_function(wrap_pyfunction!(array::made_of, module)?)?;
    module.add_function(wrap_pyfunction!(array::begins_on_host, module)?)?;
    module.add_function(wrap_pyfunction!(pool::release_memory, module)?)?;
    module.add_function(wrap_pyfunction!(pool::forked, module)?)?;
    module.add_function(wrap_pyfunction!(fork::started, module)?)?;
    module.add_function(wrap_pyfunction!(product::multiply, module)?)?;
    ordered::register(module)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))
}
