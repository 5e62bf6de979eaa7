//! NumPy arrays for results, in memory of the pool.

use numpy::prelude::*;
use numpy::{PyArrayDescr, PyUntypedArray};
use pyo3::exceptions::PyMemoryError;
use pyo3::prelude::*;

use crate::fault::off;
use crate::node::View;
use crate::numpy_arrays::{array_of_piece, zeroes};
use crate::pool::{BYTES_MIN, Piece, bytes_max};

/// Creates a NumPy array for results, with unspecified but initialised contents. If a list of indices selects
/// the items, `listed` is the array that contains the items: its GPUs may write to the result directly.
pub fn new_array<'py>(
    py: Python<'py>,
    shape: &[usize],
    descr: &Bound<'py, PyArrayDescr>,
    listed: Option<&View>,
) -> PyResult<Bound<'py, PyUntypedArray>> {
    let bytes = shape.iter().try_fold(descr.itemsize(), |bytes, extent| bytes.checked_mul(*extent));
    let Some(bytes) = bytes.filter(|bytes| (BYTES_MIN..=bytes_max()).contains(bytes)) else {
        return zeroes(py, descr, shape);
    };
    let piece = off(py, || {
        let beside = listed.filter(|listed| listed.handle.is_on_cards);
        Ok(match beside {
            Some(beside) => Piece::registered(bytes, |words| beside.handle.open().ok()?.register(words).ok()),
            None => Piece::new(bytes),
        })
    })?;
    let piece = piece.ok_or_else(|| PyMemoryError::new_err("there is not enough RAM for the result"))?;
    array_of_piece(py, descr, shape, piece)
}
