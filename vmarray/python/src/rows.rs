//! Row tables: rows by lists of ids in the memory of a GPU, on streams of the program.

use std::sync::Arc;

use pyo3::prelude::*;
use vmarray::device::{AddressSpace, Device as _};
use vmarray::rows::{
    Bags, IdBuffer, OutOfRange, RowBuffer, RowFormat, RowHome, RowTable, RowTableBuilder, StreamId,
};

use crate::device::Device;
use crate::fault::{off, raised};
use crate::geometry::Geometry;
use crate::handle::{Handle, Owned};

/// A table of rows; the implementation of ``vmarray.RowTable``.
#[pyclass(frozen, module = "vmarray._core")]
pub struct Rows {
    /// The table, and then the owner of the memory that it borrows: an export or an object of Python.
    held: Owned<(RowTable<'static>, Box<dyn Send + Sync>)>,
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

/// Options of a table: the format of the rows, true for zeros in place of errors, and the bytes of a cache.
pub type RowOptions = (String, bool, u64);

impl Rows {
    /// Makes a table of a contiguous array, whose first axis has the rows. Blocks.
    pub fn new(
        py: Python<'_>,
        handle: &Arc<Handle>,
        geometry: &Geometry,
        device: &Device,
        options: &RowOptions,
        scales: Vec<f32>,
    ) -> PyResult<Self> {
        let [rows, ref rest @ ..] = geometry.shape[..] else {
            return Err(raised(py, "InvalidError", "a table needs an axis of rows; the array has no axes"));
        };
        let (row_bytes, unit) = (rest.iter().product::<usize>() * geometry.itemsize, handle.unit.bytes());
        let is_contiguous = geometry.in_a_row(geometry.itemsize) && geometry.offset.is_multiple_of(unit);
        if !is_contiguous || rows * row_bytes == 0 {
            let text =
                "the rows of a table follow one another in the memory of an array; copy the array first";
            return Err(raised(py, "InvalidError", text));
        }
        let built = built(py, device, options, geometry.itemsize, scales)?;
        let first = geometry.offset / unit;
        let range = first..first + rows * row_bytes / unit;
        let (loan, table) =
            off(py, || handle.alone(|elements| built(elements.rows(range, row_bytes / unit)?)))?;
        Ok(Self { held: Owned::new(Box::new((table, Box::new(loan)))) })
    }
}

/// Returns a function that builds a table with these options.
fn built(
    py: Python<'_>,
    device: &Device,
    (format, is_zeroed, cache_bytes): &RowOptions,
    itemsize: usize,
    scales: Vec<f32>,
) -> PyResult<impl FnOnce(RowTableBuilder<'_>) -> vmarray::Result<RowTable<'static>> + Send> {
    let format = format_of(py, format, itemsize)?;
    let out_of_range = if *is_zeroed { OutOfRange::Zeros } else { OutOfRange::Error };
    let (device, cache_bytes) = (Arc::clone(device.device()), *cache_bytes);
    Ok(move |builder: RowTableBuilder<'_>| {
        let builder = builder.format(format).scales(scales).out_of_range(out_of_range);
        let table = builder.cache_bytes(cache_bytes).build(&device)?;
        // SAFETY: `Rows` drops the table before the owner of the borrowed memory.
        Ok(unsafe { std::mem::transmute::<RowTable<'_>, RowTable<'static>>(table) })
    })
}

#[pymethods]
impl Rows {
    #[getter]
    fn home(&self) -> &'static str {
        match self.held.0.home() {
            RowHome::Gpu => "gpu",
            RowHome::Ram => "ram",
            _ => "storage",
        }
    }

    /// Makes a table over `rows` rows of `row_bytes` bytes from an address on, in RAM or in memory of the
    /// GPU, which `owner` keeps allocated.
    #[staticmethod]
    fn over(
        owner: Py<PyAny>,
        place: (u64, bool, usize, usize, usize),
        device: &Device,
        options: RowOptions,
        scales: Vec<f32>,
        py: Python<'_>,
    ) -> PyResult<Self> {
        let (address, is_in_ram, rows, row_bytes, itemsize) = place;
        let own = device.device().addresses().filter(|_| !is_in_ram);
        let space = own.map_or(AddressSpace::Host, |addresses| addresses.space());
        let built = built(py, device, &options, itemsize, scales)?;
        // SAFETY: the Python class passes memory of this length, which the owner keeps; the program does not
        // write it during calls.
        let table =
            off(py, || Ok(built(unsafe { RowTableBuilder::over(space, address, rows, row_bytes) })?))?;
        Ok(Self { held: Owned::new(Box::new((table, Box::new(owner)))) })
    }

    /// Returns the numbers of reads, of hits, and of rows for which the cache has room.
    fn cache_stats(&self, py: Python<'_>) -> PyResult<(u64, u64, u64)> {
        let stats = off(py, || Ok(self.held.0.cache_stats()?))?;
        Ok((stats.reads, stats.hits, stats.cached_rows))
    }

    fn check(&self) -> PyResult<()> {
        Ok(self.held.0.check().map_err(crate::fault::Fault::from)?)
    }

    /// Enqueues a gather. `out` has an address and a format.
    fn gather(&self, py: Python<'_>, out: (u64, &str, usize), ids: Ids, stream: u64) -> PyResult<()> {
        let out = RowBuffer { address: out.0, format: format_of(py, out.1, out.2)? };
        // SAFETY: the caller of the Python method ensures that the memory lives and is not used meanwhile.
        off(py, || Ok(unsafe { self.held.0.gather_into(out, ids_of(ids), StreamId(stream)) }?))
    }

    /// Starts to bring rows closer: of ids on the GPU, or of a list.
    fn prefetch(&self, py: Python<'_>, ids: Option<Ids>, stream: u64, listed: Vec<u64>) -> PyResult<()> {
        self.held.0.prefetch_rows(&listed);
        let Some(ids) = ids else { return Ok(()) };
        // SAFETY: as in `gather`.
        off(py, || Ok(unsafe { self.held.0.prefetch(ids_of(ids), StreamId(stream)) }?))
    }

    fn scatter(&self, py: Python<'_>, values: (u64, &str, usize), ids: Ids, stream: u64) -> PyResult<()> {
        let values = RowBuffer { address: values.0, format: format_of(py, values.1, values.2)? };
        // SAFETY: as in `gather`.
        off(py, || Ok(unsafe { self.held.0.scatter_from(values, ids_of(ids), StreamId(stream)) }?))
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
        off(py, || Ok(unsafe { self.held.0.sum_into(out, ids_of(ids), bags, StreamId(stream)) }?))
    }
}
