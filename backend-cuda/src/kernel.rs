//! The kernels: checked in as PTX text, which the driver turns into the card's code at the first use.

pub(crate) mod compute;
pub(crate) mod fill;
pub(crate) mod indexed;
pub(crate) mod search;

use std::ffi::{CStr, c_void};
use std::sync::{Arc, OnceLock};

use crate::context::Context;
use crate::core::Work;
use crate::driver::{Function, Module, Outcome, check};
use crate::memory::DeviceMemory;

/// Threads of a block, in all kernels.
pub(crate) const THREADS: u32 = 256;

/// The text of a kernel file, as C string.
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
#[derive(Debug, Default)]
pub(crate) struct Kernels {
    copy: OnceLock<Copying>,
    indexed: OnceLock<Indexed>,
    search: OnceLock<Searching>,
    pub(crate) programs: compute::Programs,
}

/// Kernels that move and write bytes.
#[derive(Debug)]
pub(crate) struct Copying {
    pub(crate) few: Function,
    pub(crate) list: Function,
    pub(crate) fill: Function,
    _code: Code,
}

/// Kernels that collect and distribute elements, for pieces of 1, 2, 4, 8 and 16 bytes.
#[derive(Debug)]
pub(crate) struct Indexed {
    pub(crate) gather: [Function; 5],
    pub(crate) scatter: [Function; 5],
    _code: Code,
}

/// Kernels that search; the arrays are for words of 1, 2, 4, 8 and (if packed) 16 bytes.
#[derive(Debug)]
pub(crate) struct Searching {
    pub(crate) packed: [Function; 5],
    pub(crate) spread: [Function; 4],
    pub(crate) list: [Function; 4],
    pub(crate) scan: Function,
    /// How many blocks of a counting kernel the card runs at once.
    pub(crate) blocks: u32,
    _code: Code,
}

/// Code in a context; unloaded on drop, at which no kernel of it may run.
#[derive(Debug)]
struct Code {
    context: Arc<Context>,
    module: Module,
}

impl Code {
    /// Has the driver translate a text. The context is current.
    fn load(context: &Arc<Context>, text: &str) -> Outcome<Self> {
        debug_assert!(text.ends_with('\0'), "a C string");
        let mut module = Module::NULL;
        // SAFETY: writes one handle; the text ends with a NUL, as `ptx` and `compute` see to.
        check(unsafe { (context.driver.table.module_load_data)(&raw mut module, text.as_ptr().cast()) })?;
        Ok(Self { context: Arc::clone(context), module })
    }

    fn function(&self, name: &CStr) -> Outcome<Function> {
        let mut function = Function::NULL;
        // SAFETY: writes one handle; the module is loaded and the name a C string.
        check(unsafe {
            (self.context.driver.table.module_get_function)(&raw mut function, self.module, name.as_ptr())
        })?;
        Ok(function)
    }

    fn functions<const N: usize>(&self, names: [&CStr; N]) -> Outcome<[Function; N]> {
        let mut functions = [Function::NULL; N];
        for (function, name) in functions.iter_mut().zip(names) {
            *function = self.function(name)?;
        }
        Ok(functions)
    }

    /// How many blocks of `function` a multiprocessor runs at once.
    fn occupancy(&self, function: Function) -> u32 {
        let mut blocks = 0;
        // SAFETY: writes one integer; the function is of this module.
        let asked = check(unsafe {
            (self.context.driver.table.occupancy)(&raw mut blocks, function, THREADS as i32, 0)
        });
        if asked.is_ok() { blocks.unsigned_abs().max(1) } else { 4 }
    }
}

impl Drop for Code {
    fn drop(&mut self) {
        let Ok(_current) = self.context.enter() else { return };
        // SAFETY: the module is loaded, and the device has seen to it that none of its kernels runs.
        if let Err(code) = check(unsafe { (self.context.driver.table.module_unload)(self.module) }) {
            tracing::debug!(?code, "kernels were not unloaded: the device is lost");
        }
    }
}

/// What `cell` holds; if nothing, what `load` gives. Two threads at once both load, and one throws its own
/// away.
fn once<T>(cell: &OnceLock<T>, load: impl FnOnce() -> Outcome<T>) -> Outcome<&T> {
    if let Some(found) = cell.get() {
        return Ok(found);
    }
    let loaded = load()?;
    Ok(cell.get_or_init(|| loaded))
}

impl Kernels {
    /// The context is current, here and below.
    pub(crate) fn copying(&self, context: &Arc<Context>) -> Outcome<&Copying> {
        once(&self.copy, || {
            let code = Code::load(context, COPY)?;
            Ok(Copying {
                few: code.function(c"copy_few")?,
                list: code.function(c"copy_list")?,
                fill: code.function(c"fill")?,
                _code: code,
            })
        })
    }

    pub(crate) fn indexed(&self, context: &Arc<Context>) -> Outcome<&Indexed> {
        once(&self.indexed, || {
            let code = Code::load(context, GATHER)?;
            Ok(Indexed {
                gather: code.functions([c"gather_1", c"gather_2", c"gather_4", c"gather_8", c"gather_16"])?,
                scatter: code.functions([
                    c"scatter_1",
                    c"scatter_2",
                    c"scatter_4",
                    c"scatter_8",
                    c"scatter_16",
                ])?,
                _code: code,
            })
        })
    }

    pub(crate) fn searching(&self, context: &Arc<Context>, multiprocessors: u32) -> Outcome<&Searching> {
        once(&self.search, || {
            let code = Code::load(context, SEARCH)?;
            let packed = code.functions([
                c"search_count_packed_1",
                c"search_count_packed_2",
                c"search_count_packed_4",
                c"search_count_packed_8",
                c"search_count_packed_16",
            ])?;
            let spread = code.functions([
                c"search_count_spread_1",
                c"search_count_spread_2",
                c"search_count_spread_4",
                c"search_count_spread_8",
            ])?;
            Ok(Searching {
                packed,
                spread,
                list: code.functions([
                    c"search_list_1",
                    c"search_list_2",
                    c"search_list_4",
                    c"search_list_8",
                ])?,
                scan: code.function(c"search_scan")?,
                blocks: multiprocessors.saturating_mul(code.occupancy(packed[2])),
                _code: code,
            })
        })
    }
}

/// A kernel's argument, by address.
pub(crate) fn argument<T>(value: &T) -> *mut c_void {
    std::ptr::from_ref(value).cast_mut().cast()
}

/// Where the parts of a queue's scratch memory begin.
pub(crate) mod scratch {
    /// The search's state: four numbers of 64 bits.
    pub(crate) const STATE: u64 = 0;
    pub(crate) const STATE_BYTES: u64 = 64;
    /// The value that is searched.
    pub(crate) const VALUE: u64 = STATE + STATE_BYTES;
    /// A pattern, stretched to a multiple of 16 bytes.
    pub(crate) const PATTERN: u64 = VALUE + 4096;
    /// The number of matches of each chunk, 32 bits each.
    pub(crate) const COUNTS: u64 = PATTERN + 16 * 4096;
    /// The chunks that have matches, and where those go, 64 bits each.
    pub(crate) const HITS: u64 = COUNTS + 4 * CHUNKS_MAX;
    /// The totals of a histogram, 64 bits each.
    pub(crate) const BINS: u64 = HITS + 16 * CHUNKS_MAX;
    pub(crate) const BYTES: u64 = BINS + 8 * backend_api::Compute::BINS_MAX as u64;
    pub(crate) const CHUNKS_MAX: u64 = 96 << 10;
    /// The driver gives memory in pieces of 2 MiB.
    const _: () = assert!(BYTES <= 2 << 20);
}

impl Work<'_> {
    /// Starts a kernel.
    ///
    /// # Safety
    /// The arguments must be those that the kernel declares, and all addresses among them good for what it
    /// does until the submission is done.
    pub(crate) unsafe fn launch(
        &self,
        function: Function,
        blocks: u64,
        arguments: &mut [*mut c_void],
    ) -> Outcome {
        let blocks = blocks.clamp(1, i32::MAX as u64) as u32;
        let launch = self.context().driver.table.launch_kernel;
        // SAFETY: the function and the stream are alive; the rest is passed on.
        check(unsafe {
            launch(
                function,
                blocks,
                1,
                1,
                THREADS,
                1,
                1,
                0,
                self.queue.stream,
                arguments.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        })
    }

    /// The address of this queue's scratch memory on the card; what is there is from former work of this
    /// queue.
    pub(crate) fn scratch(&mut self) -> Outcome<u64> {
        if let Some(scratch) = &self.order.scratch {
            return Ok(scratch.address);
        }
        let scratch = DeviceMemory::new(self.context(), scratch::BYTES)?;
        self.order.search_ready = false;
        Ok(self.order.scratch.insert(scratch).address)
    }

    /// At least `bytes` bytes on the card for data on its way to or from pageable memory.
    pub(crate) fn bounce(&mut self, bytes: u64) -> Outcome<u64> {
        if let Some(bounce) = &self.order.bounce
            && bounce.bytes >= bytes
        {
            return Ok(bounce.address);
        }
        // Work in flight may still use what is there.
        self.queue.drain()?;
        self.order.bounce = None;
        let bounce = DeviceMemory::new(self.context(), bytes)?;
        Ok(self.order.bounce.insert(bounce).address)
    }

    /// Puts bytes into device memory, in the order of the queue. At most
    /// [`STAGING_BYTES`](crate::staging::STAGING_BYTES).
    pub(crate) fn send(&mut self, bytes: &[u8], to: u64) -> Outcome {
        let loan = self.lend(bytes.len())?;
        // SAFETY: as many bytes were lent, and nothing is in flight on them.
        unsafe { loan.host.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        let copy = self.context().driver.table.memcpy_htod_async;
        // SAFETY: the loan lasts until the submission is done; the caller gives an address with room.
        check(unsafe { copy(to, loan.host.cast(), bytes.len(), self.queue.stream) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_texts_are_complete_and_hold_every_kernel() {
        for (text, kernels) in [(COPY, 3), (GATHER, 10), (SEARCH, 14)] {
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
