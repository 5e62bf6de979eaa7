//! Row tables: rows by lists of ids in the memory of a GPU, on streams of the program.

use std::mem::ManuallyDrop;
use std::sync::Arc;

use pyo3::prelude::*;
use vmarray::rows::{Bags, IdBuffer, OutOfRange, RowBuffer, RowFormat, RowHome, RowTable, StreamId};

use crate::device::Device;
use crate::fault::{off, raised};
use crate::geometry::Geometry;
use crate::handle::{Export, Handle};

/// A table of rows; the implementation of ``vmarray.RowTable``.
#[pyclass(frozen, module = "vmarray._core")]
pub struct Rows {
    /// Present until the drop.
    table: ManuallyDrop<RowTable<'static>>,
    /// Keeps the array of the table, and other code away from it.
    loan: ManuallyDrop<Arc<Export>>,
}

impl Drop for Rows {
    fn drop(&mut self) {
        // SAFETY: both are dropped once, and not used again. The table borrows the array of the loan, so it
        // goes first. In a forked process neither exists, and both leak.
        unsafe {
            if self.loan.is_own() {
                ManuallyDrop::drop(&mut self.table);
            }
            ManuallyDrop::drop(&mut self.loan);
        }
    }
}

/// Numbers in the memory of the GPU: their address, how many, and the bytes of each.
type Ids = (u64, usize, usize);

fn ids_of((address, count, bytes): Ids) -> IdBuffer {
    IdBuffer { address, count, bytes }
}

/// Returns the format with this name; the empty name stands for elements of `bytes` bytes without a format.
fn format_of(py: Python<'_>, name: &str, bytes: usize) -> PyResult<RowFormat> {
    Ok(match name {
        "" => RowFormat::Raw(bytes),
        "f32" => RowFormat::F32,
        "f16" => RowFormat::F16,
        "bf16" => RowFormat::Bf16,
        "e4m3" => RowFormat::E4m3,
        "e5m2" => RowFormat::E5m2,
        "i8" => RowFormat::I8,
        _ => {
            let text = format!("unknown format {name:?}; use f32, f16, bf16, e4m3, e5m2 or i8");
            return Err(raised(py, "InvalidError", &text));
        }
    })
}

impl Rows {
    /// Makes a table of a contiguous array, whose first axis has the rows. Blocks.
    pub fn new(
        py: Python<'_>,
        handle: &Arc<Handle>,
        geometry: &Geometry,
        device: &Device,
        (format, is_zeroed, cache_bytes): &(String, bool, u64),
        scales: Vec<f32>,
    ) -> PyResult<Self> {
        let [rows, ref rest @ ..] = geometry.shape[..] else {
            return Err(raised(py, "InvalidError", "a table needs an axis of rows; the array has no axes"));
        };
        let (row_bytes, unit) = (rest.iter().product::<usize>() * geometry.itemsize, handle.unit.bytes());
        let is_whole = geometry.offset == 0 && geometry.in_a_row(geometry.itemsize);
        if !is_whole || rows * row_bytes == 0 {
            let text = "a table shows a whole array, in the order of its memory; copy the array first";
            return Err(raised(py, "InvalidError", text));
        }
        let format = format_of(py, format, geometry.itemsize)?;
        let out_of_range = if *is_zeroed { OutOfRange::Zeros } else { OutOfRange::Error };
        let device = Arc::clone(device.device());
        let (loan, table) = off(py, || {
            handle.alone(|elements| {
                let table = elements.rows(row_bytes / unit)?;
                let table = table.format(format).scales(scales).out_of_range(out_of_range);
                let table = table.cache_bytes(*cache_bytes).build(&device)?;
                // SAFETY: the table borrows the array in a box that the loan keeps, and is dropped before it.
                Ok(unsafe { std::mem::transmute::<RowTable<'_>, RowTable<'static>>(table) })
            })
        })?;
        Ok(Self { table: ManuallyDrop::new(table), loan: ManuallyDrop::new(loan) })
    }
}

#[pymethods]
impl Rows {
    #[getter]
    fn home(&self) -> &'static str {
        match self.table.home() {
            RowHome::Gpu => "gpu",
            RowHome::Ram => "ram",
            _ => "storage",
        }
    }

    /// Returns the numbers of reads, of hits, and of rows for which the cache has room.
    fn cache_stats(&self, py: Python<'_>) -> PyResult<(u64, u64, u64)> {
        let stats = off(py, || Ok(self.table.cache_stats()?))?;
        Ok((stats.reads, stats.hits, stats.cached_rows))
    }

    fn check(&self) -> PyResult<()> {
        Ok(self.table.check().map_err(crate::fault::Fault::from)?)
    }

    /// Enqueues a gather. `out` has an address and a format.
    fn gather(&self, py: Python<'_>, out: (u64, &str, usize), ids: Ids, stream: u64) -> PyResult<()> {
        let out = RowBuffer { address: out.0, format: format_of(py, out.1, out.2)? };
        // SAFETY: the caller of the Python method ensures that the memory lives and is not used meanwhile.
        Ok(unsafe { self.table.gather_into(out, ids_of(ids), StreamId(stream)) }
            .map_err(crate::fault::Fault::from)?)
    }

    fn scatter(&self, py: Python<'_>, values: (u64, &str, usize), ids: Ids, stream: u64) -> PyResult<()> {
        let values = RowBuffer { address: values.0, format: format_of(py, values.1, values.2)? };
        // SAFETY: as in `gather`.
        Ok(unsafe { self.table.scatter_from(values, ids_of(ids), StreamId(stream)) }
            .map_err(crate::fault::Fault::from)?)
    }

    /// Enqueues a sum over bags. `bags` are their offsets, their number, and the address of weights.
    fn sum(
        &self,
        py: Python<'_>,
        out: (u64, &str, usize),
        ids: Ids,
        bags: (Ids, usize, Option<u64>),
        stream: u64,
    ) -> PyResult<()> {
        let out = RowBuffer { address: out.0, format: format_of(py, out.1, out.2)? };
        let bags = Bags { offsets: ids_of(bags.0), count: bags.1, weights: bags.2 };
        // SAFETY: as in `gather`.
        Ok(unsafe { self.table.sum_into(out, ids_of(ids), bags, StreamId(stream)) }
            .map_err(crate::fault::Fault::from)?)
    }
}
