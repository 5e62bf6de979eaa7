//! The kernels, checked in as PTX text, which the driver translates to the GPU's code at the first use.

pub(crate) mod compute;
pub(crate) mod fill;
pub(crate) mod indexed;
pub(crate) mod launch;
pub(crate) mod search;
#[forbid(unsafe_code)]
mod text;

use std::ffi::c_void;
use std::sync::{Arc, OnceLock};

use crate::context::CudaContext;
use crate::core::CudaSubmission;
use crate::driver::objects::{Module, Stream};
use crate::driver::{DriverResult, Function, StatusCode};
use crate::memory::DeviceMemory;

/// The text of a kernel file, as a C string.
macro_rules! ptx {
    ($name:literal) => {
        concat!(include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/kernels/", $name, ".ptx")), "\0")
    };
}
use ptx;

const COPY: &str = ptx!("copy");
const GATHER: &str = ptx!("gather");
const SEARCH: &str = ptx!("search");

/// The loaded kernels of a device, file by file.
#[derive(Debug)]
pub(crate) struct ModuleKernels {
    copy: OnceLock<Copying>,
    indexed: OnceLock<IndexedKernels>,
    search: OnceLock<Searching>,
    pub(crate) programs: compute::TranslatedProgramCache,
    pub(crate) launches: launch::TranslatedKernelCache,
}

/// Kernels that move and write bytes.
#[derive(Debug)]
pub(crate) struct Copying {
    pub(crate) few: Function,
    pub(crate) list: Function,
    pub(crate) fill: Function,
    _module: Module,
}

/// Kernels that collect and distribute elements, for pieces of 1, 2, 4, 8 and 16 bytes.
#[derive(Debug)]
pub(crate) struct IndexedKernels {
    pub(crate) gather: [Function; 5],
    pub(crate) scatter: [Function; 5],
    _module: Module,
}

/// The kernel that scans the counts of a search.
#[derive(Debug)]
struct Searching {
    scan: Function,
    _module: Module,
}

/// Returns the contents of `cell`; if it is empty, initialises it by `load`. If two threads load at once,
/// one result is dropped.
fn once<T>(cell: &OnceLock<T>, load: impl FnOnce() -> DriverResult<T>) -> DriverResult<&T> {
    if let Some(found) = cell.get() {
        return Ok(found);
    }
    let loaded = load()?;
    Ok(cell.get_or_init(|| loaded))
}

impl ModuleKernels {
    /// Creates the kernels for a GPU of this compute capability; none is loaded yet.
    pub(crate) fn new(compute_capability: (u32, u32)) -> Self {
        Self {
            copy: OnceLock::new(),
            indexed: OnceLock::new(),
            search: OnceLock::new(),
            programs: compute::TranslatedProgramCache::default(),
            launches: launch::TranslatedKernelCache::new(compute_capability),
        }
    }

    /// The context is current, here and below.
    pub(crate) fn copying(&self, context: &Arc<CudaContext>) -> DriverResult<&Copying> {
        once(&self.copy, || {
            let module = Module::load(context, COPY)?;
            let [few, list, fill] = ["copy_few", "copy_list", "fill"].map(|name| module.function(name));
            Ok(Copying { few: few?, list: list?, fill: fill?, _module: module })
        })
    }

    pub(crate) fn indexed(&self, context: &Arc<CudaContext>) -> DriverResult<&IndexedKernels> {
        once(&self.indexed, || {
            let module = Module::load(context, GATHER)?;
            let (gather, scatter) = (module.family("gather")?, module.family("scatter")?);
            Ok(IndexedKernels { gather, scatter, _module: module })
        })
    }

    pub(crate) fn scan(&self, context: &Arc<CudaContext>) -> DriverResult<Function> {
        let load = || {
            let module = Module::load(context, SEARCH)?;
            Ok(Searching { scan: module.function("search_scan")?, _module: module })
        };
        once(&self.search, load).map(|search| search.scan)
    }
}

/// The most bytes of a queue for its items' private memory, unless one block needs more.
const SLABS_BYTES: u64 = 1 << 30;

/// Returns the address of a kernel's argument.
pub(crate) fn argument<T>(value: &T) -> *mut c_void {
    std::ptr::from_ref(value).cast_mut().cast()
}

/// The offsets of the parts of a queue's scratch memory.
pub(crate) mod scratch {
    /// The search's state: four numbers of 64 bits.
    pub(crate) const STATE: u64 = 0;
    pub(crate) const STATE_BYTES: u64 = 64;
    /// The failures of launches.
    pub(crate) const LAUNCH: u64 = STATE + STATE_BYTES;
    /// The value of a search.
    pub(crate) const VALUE: u64 = LAUNCH + 64;
    /// A pattern, stretched to a multiple of 16 bytes; or the tables of a launch.
    pub(crate) const PATTERN: u64 = VALUE + 4096;
    /// The number of matches of each chunk, 32 bits each.
    pub(crate) const COUNTS: u64 = PATTERN + 16 * 4096;
    /// The chunks with matches, and the places of their matches in the answer, 64 bits each.
    pub(crate) const HITS: u64 = COUNTS + 4 * CHUNKS_MAX;
    /// The totals of a histogram, 64 bits each.
    pub(crate) const BINS: u64 = HITS + 16 * CHUNKS_MAX;
    pub(crate) const BYTES: u64 = BINS + 8 * backend_api::Compute::BINS_MAX as u64;
    pub(crate) const CHUNKS_MAX: u64 = 96 << 10;
    /// The driver allocates memory in steps of 2 MiB.
    const _: () = assert!(BYTES <= 2 << 20);
    const _: () = assert!(COUNTS - PATTERN >= backend_api::kernel::Body::TABLE_BYTES_MAX);
}

impl CudaSubmission<'_> {
    pub(crate) fn stream(&self) -> &Stream {
        &self.queue.stream
    }

    /// The address of this queue's scratch memory on the GPU; it holds data of earlier work of this queue.
    pub(crate) fn scratch(&mut self) -> DriverResult<u64> {
        if let Some(scratch) = &self.order.scratch {
            return Ok(scratch.address);
        }
        let scratch = DeviceMemory::new(self.context(), scratch::BYTES)?;
        (self.order.search_ready, self.order.launch_ready) = (false, false);
        Ok(self.order.scratch.insert(scratch).address)
    }

    /// Returns at least `bytes` bytes on the GPU for data on its way to or from pageable memory.
    pub(crate) fn bounce(&mut self, bytes: u64) -> DriverResult<u64> {
        if let Some(bounce) = &self.order.bounce
            && bounce.bytes() >= bytes
        {
            return Ok(bounce.address);
        }
        // Wait, because work in flight may still use the old memory.
        self.queue.drain()?;
        self.order.bounce = None;
        let bounce = DeviceMemory::new(self.context(), bytes)?;
        Ok(self.order.bounce.insert(bounce).address)
    }

    /// Allocates private memory of `of_block` bytes for each of `blocks` blocks. Returns its address and
    /// the number of blocks. The number is lower if the memory would be too large or the GPU is full.
    pub(crate) fn slabs(&mut self, of_block: u64, blocks: u64) -> DriverResult<(u64, u64)> {
        if of_block == 0 {
            return Ok((0, blocks));
        }
        let mut blocks = blocks.clamp(1, (SLABS_BYTES / of_block).max(1));
        let found =
            self.order.slabs.as_ref().map_or((0, 0), |slabs| (slabs.address, slabs.bytes() / of_block));
        // Do not request a refused length again if the existing memory suffices for one block.
        if found.1 >= blocks || (found.1 > 0 && blocks * of_block <= self.order.slabs_wanted) {
            return Ok((found.0, blocks.min(found.1)));
        }
        // Wait, because work in flight may still use the old memory.
        self.queue.drain()?;
        self.order.slabs = None;
        self.order.slabs_wanted = blocks * of_block;
        loop {
            match DeviceMemory::new(self.context(), blocks * of_block) {
                Err(StatusCode::OUT_OF_MEMORY) if blocks > 1 => blocks /= 2,
                made => return Ok((self.order.slabs.insert(made?).address, blocks)),
            }
        }
    }

    /// Copies bytes to device memory, in the order of the queue. At most
    /// [`STAGING_BYTES`](crate::staging::STAGING_BYTES).
    pub(crate) fn send(&mut self, bytes: &[u8], to: u64) -> DriverResult {
        let loan = self.lend(bytes.len())?;
        // SAFETY: the loan has this length, and no work in flight uses it.
        unsafe { loan.host.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        // SAFETY: the loan lasts until the submission is done; the caller passes an address with room.
        unsafe { self.stream().upload(to, loan.host.expose_provenance() as u64, bytes.len() as u64) }
    }
}

/// Translates a text by NVIDIA's assembler, which `VMARRAY_PTXAS` names: the driver does so with the same
/// code, but only on a machine with a GPU.
#[cfg(test)]
fn assemble(target: &str, text: &str) {
    use std::io::Write;
    use std::process::{Command, Stdio};

    let ptxas = std::env::var_os("VMARRAY_PTXAS").expect("VMARRAY_PTXAS names the assembler");
    let mut child = Command::new(&ptxas)
        .args([&format!("-arch={target}"), "-o", "/dev/null", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the assembler starts");
    let text = text.trim_end_matches('\0');
    let written = child.stdin.take().unwrap().write_all(text.as_bytes());
    let output = child.wait_with_output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words}\n{text}");
    written.expect("the assembler reads all of its input");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_texts_are_complete_and_hold_every_kernel() {
        for (text, kernels) in [(COPY, 3), (GATHER, 10), (SEARCH, 1)] {
            assert!(text.ends_with("}\n\n\0") || text.ends_with("}\n\0"), "the text is cut off");
            assert_eq!(text.matches(".visible .entry ").count(), kernels);
            assert!(text.contains(".target sm_50"));
        }
    }

    #[test]
    fn scratch_parts_are_aligned() {
        for start in [scratch::VALUE, scratch::PATTERN, scratch::COUNTS, scratch::HITS, scratch::BINS] {
            assert_eq!(start % 16, 0);
        }
    }
}
