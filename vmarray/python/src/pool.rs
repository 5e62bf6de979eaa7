//! Pool of memory for NumPy arrays that hold results, and for items of arrays in RAM. The memory returns to
//! the pool when such an array is freed. Reuse saves the system from finding and zeroing pages, which takes
//! longer than the copy of the items.
//!
//! The pool is bounded. The next call that takes or returns memory frees all memory that was unused for a
//! minute. Linux may reclaim unused memory earlier when RAM is short (`MADV_FREE`). If gathers of item lists
//! use the same memory repeatedly, it is registered with the GPUs, which then write there directly.
//!
//! A forked process inherits registered memory and shares its pages with its parent until either process
//! writes to them. Then the GPUs may continue to access the pages of the other process. Therefore no process
//! reuses memory that was registered before a fork.

use std::ffi::{CStr, c_char, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{LazyLock, Mutex, TryLockError};
use std::time::{Duration, Instant};

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple};
use vmarray::access::Registered;
use vmarray::support::backends::ram::SystemMemory;

use crate::fork::process;

/// Minimum size of pooled memory, in bytes; the allocator itself reuses shorter memory.
pub const BYTES_MIN: usize = 256 << 10;
/// Alignment of the first item, in bytes.
const ALIGN: usize = 64;
/// Size of large pages of the system, in bytes, and alignment of memory of twice this size or more.
const LARGE_PAGE: usize = 2 << 20;
/// Size from which unused memory is offered to the system, in bytes. The offer of shorter memory costs more
/// than it saves.
const OFFERED_MIN: usize = 8 << 20;
/// Lengths of pooled memory are multiples of this number of bytes.
const STEP: usize = 64 << 10;
/// Time after which unused memory of the pool is freed.
const UNUSED_MAX: Duration = Duration::from_secs(60);
/// Number of uses before memory is registered with the GPUs, which takes as long as some copies.
const USES_MIN: u32 = 2;
/// Minimum size of registered memory, in bytes. Shorter memory may share pages with other memory, and a page
/// cannot be registered twice. Allocators map memory of this size or more separately.
const REGISTERED_MIN: usize = 32 << 20;

/// Maximum number of bytes that the pool holds.
static BYTES_MAX: LazyLock<usize> = LazyLock::new(|| {
    SystemMemory::of_linux().map_or(0, |memory| (memory.total_bytes / 16).min(1 << 30) as usize)
});

/// Returns the maximum number of bytes that the pool holds, and of one piece of it.
pub fn bytes_max() -> usize {
    *BYTES_MAX
}

static KEPT: Mutex<Pool> = Mutex::new(Pool { pieces: Vec::new(), bytes: 0 });
/// True after the system has refused to page-lock more memory.
static IS_PIN_REFUSED: AtomicBool = AtomicBool::new(false);

/// Number of processes that this one has forked.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// The pool: unused pieces of memory, the most recently used last.
struct Pool {
    pieces: Vec<(Memory, Instant)>,
    bytes: usize,
}

impl Pool {
    /// Takes the shortest piece of at least `bytes` bytes, if it is at most half longer.
    fn take(&mut self, bytes: usize) -> Option<Memory> {
        let fits =
            |memory: &Memory| memory.is_usable() && (bytes..=bytes + bytes / 2).contains(&memory.len());
        let fitting = self.pieces.iter().enumerate().rev().filter(|(_, (memory, _))| fits(memory));
        let (at, _) = fitting.min_by_key(|(_, (memory, _))| memory.len())?;
        let (memory, _) = self.pieces.remove(at);
        self.bytes -= memory.len();
        Some(memory)
    }

    /// Removes the pieces to free: the oldest ones until at most `bytes_max` bytes are left, and each piece
    /// that was unused for too long.
    fn excess(&mut self, bytes_max: usize) -> Vec<(Memory, Instant)> {
        let (mut gone, mut bytes) = (0, self.bytes);
        for (memory, since) in &self.pieces {
            if bytes <= bytes_max && since.elapsed() < UNUSED_MAX {
                break;
            }
            bytes -= memory.len();
            gone += 1;
        }
        self.bytes = bytes;
        self.pieces.drain(..gone).collect()
    }
}

/// Runs `work` on the pool, and drops the pieces that it returns after the lock is released. Returns `None`
/// if another thread had the lock when the process was forked.
fn with_pool<R>(work: impl FnOnce(&mut Pool) -> (R, Vec<(Memory, Instant)>)) -> Option<R> {
    let (result, gone) = match KEPT.try_lock() {
        Ok(mut pool) => work(&mut pool),
        Err(TryLockError::Poisoned(pool)) => work(&mut pool.into_inner()),
        Err(TryLockError::WouldBlock) => return None,
    };
    drop(gone);
    Some(result)
}

enum Words {
    Plain(Vec<u64>),
    /// Memory that is registered with the GPUs, which write to it directly.
    Registered(Registered<u64>),
}

/// A piece of memory, initialised with unspecified contents.
struct Memory {
    /// None only during the drop.
    words: Option<Words>,
    align: usize,
    uses: u32,
    process: u32,
    /// Value of `FORKS` when the piece was made or registered.
    forks: u32,
}

impl Memory {
    /// True if this process may write results to the memory.
    fn is_usable(&self) -> bool {
        let is_shared =
            matches!(self.words, Some(Words::Registered(_))) && self.forks != FORKS.load(Ordering::Relaxed);
        self.process == process() && !is_shared
    }

    /// Returns memory for at least `bytes` bytes, from the pool or new.
    fn of(bytes: usize) -> Option<Self> {
        match with_pool(|pool| (pool.take(bytes), pool.excess(*BYTES_MAX))).flatten() {
            Some(mut kept) => {
                kept.uses += 1;
                Some(kept)
            }
            None => Self::new(bytes),
        }
    }

    /// Allocates memory of lazily zeroed pages; `None` if the system has no more.
    fn new(bytes: usize) -> Option<Self> {
        let align = if bytes < 2 * LARGE_PAGE { ALIGN } else { LARGE_PAGE };
        let bytes = bytes.checked_next_multiple_of(STEP)?.checked_add(align)?;
        let words = vmarray::bytemuck::allocation::try_zeroed_vec::<u64>(bytes / size_of::<u64>()).ok()?;
        advise(&words, Advice::LargePages);
        let forks = FORKS.load(Ordering::Relaxed);
        Some(Self { words: Some(Words::Plain(words)), align, uses: 0, process: process(), forks })
    }

    fn words(&self) -> &[u64] {
        match &self.words {
            Some(Words::Plain(words)) => words,
            Some(Words::Registered(words)) => words,
            None => &[],
        }
    }

    /// The number of bytes for items.
    fn len(&self) -> usize {
        size_of_val(self.words()) - self.align
    }

    /// Address of the first item.
    fn start(&mut self) -> *mut u8 {
        let align = self.align;
        let start: *mut u64 = match &mut self.words {
            Some(Words::Plain(words)) => words.as_mut_ptr(),
            Some(Words::Registered(words)) => words.as_mut_ptr(),
            None => return std::ptr::null_mut(),
        };
        start.cast::<u8>().map_addr(|address| address.next_multiple_of(align))
    }

    /// Registers the memory with GPUs, which then write to it directly, if it is used often. Blocks.
    fn registered(mut self, register: impl FnOnce(Vec<u64>) -> Option<Registered<u64>>) -> Option<Self> {
        let is_wanted = self.uses >= USES_MIN && self.len() >= REGISTERED_MIN;
        if !is_wanted || IS_PIN_REFUSED.load(Ordering::Relaxed) {
            return Some(self);
        }
        self.forks = FORKS.load(Ordering::Relaxed);
        self.words = match self.words.take() {
            Some(Words::Plain(words)) => {
                let bytes = size_of_val(&words[..]) - self.align;
                let Some(words) = register(words) else {
                    IS_PIN_REFUSED.store(true, Ordering::Relaxed);
                    return Self::new(bytes);
                };
                // A driver may exclude registered memory from forked processes. Undo this, because forked
                // processes read results too.
                advise(&words, Advice::Fork);
                Some(Words::Registered(words))
            }
            registered => registered,
        };
        Some(self)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.process != process() {
            // Leak the memory in a forked process, which must not call the GPU's driver.
            std::mem::forget(self.words.take());
        }
    }
}

/// Advice to the system about memory (`madvise`).
enum Advice {
    LargePages,
    Fork,
    /// The memory is unused: the system may take its pages until the next write to them.
    Free,
}

/// Gives the system advice about all whole pages in `words`: pages of 4 KiB, or large pages, which the advice
/// must not split.
fn advise(words: &[u64], advice: Advice) {
    #[cfg(target_os = "linux")]
    {
        let (page, advice) = match advice {
            Advice::LargePages => (LARGE_PAGE, libc::MADV_HUGEPAGE),
            Advice::Free => (LARGE_PAGE, libc::MADV_FREE),
            Advice::Fork => (4096, libc::MADV_DOFORK),
        };
        let (start, end) = (words.as_ptr().addr(), words.as_ptr_range().end.addr());
        let (first, end) = match advice {
            // Fork advice covers all pages that overlap `words`; other advice only pages within `words`.
            libc::MADV_DOFORK => (start / page * page, end.next_multiple_of(page)),
            _ => (start.next_multiple_of(page), end / page * page),
        };
        if first < end {
            let start = words.as_ptr().with_addr(first).cast_mut().cast();
            // SAFETY: the memory is borrowed. Only advice that changes no contents covers bytes next to it on
            // the same pages. Contents are unspecified after `MADV_FREE`: each user of a piece writes to it
            // before it reads. Other advice keeps the contents.
            unsafe { libc::madvise(start, end - first, advice) };
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (words, advice);
}

/// Memory of the pool in use: the ``base`` of a NumPy result, or the items of an array in RAM. When it is
/// dropped, the memory returns to the pool for later results.
#[pyclass(frozen, module = "vmarray._core")]
pub struct Piece(Option<Memory>);

impl Piece {
    /// Takes memory for at least `bytes` bytes from the pool, or new memory, with unspecified contents.
    pub fn new(bytes: usize) -> Option<Self> {
        Memory::of(bytes).map(|memory| Self(Some(memory)))
    }

    /// Takes memory as [`new`](Self::new) does, and registers it with GPUs by a function if it is used often.
    pub fn registered(
        bytes: usize,
        register: impl FnOnce(Vec<u64>) -> Option<Registered<u64>>,
    ) -> Option<Self> {
        Memory::of(bytes)?.registered(register).map(|memory| Self(Some(memory)))
    }

    /// Allocates memory of zeroes, which the system provides at the first access.
    pub fn zeroed(bytes: usize) -> Option<Self> {
        Memory::new(bytes).map(|memory| Self(Some(memory)))
    }

    /// Address of the first byte.
    pub fn start(&mut self) -> *mut u8 {
        self.0.as_mut().map_or(std::ptr::null_mut(), Memory::start)
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        let Some(memory) = self.0.take() else { return };
        if !memory.is_usable() {
            return;
        }
        if let Some(Words::Plain(words)) = &memory.words
            && memory.len() >= OFFERED_MIN
        {
            advise(words, Advice::Free);
        }
        with_pool(|pool| {
            pool.bytes += memory.len();
            pool.pieces.push((memory, Instant::now()));
            ((), pool.excess(*BYTES_MAX))
        });
    }
}

/// Returns the number of unused bytes in the memory pool for NumPy results.
pub fn kept_bytes() -> usize {
    with_pool(|pool| (pool.bytes, Vec::new())).unwrap_or(0)
}

/// Records that this process forks, so that the child reuses no memory that is registered with GPUs.
#[pyfunction]
pub fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Frees the unused memory of the pool for NumPy results, and returns the number of freed bytes.
#[pyfunction]
pub fn release_memory(py: Python<'_>) -> usize {
    py.detach(|| with_pool(|pool| (pool.bytes, pool.excess(0))).unwrap_or(0))
}

// An allocator for NumPy (NEP 49): while the package lets NumPy compute, NumPy takes the memory of results
// and of intermediate results from the pool.

/// NumPy's C structure of an allocator.
#[repr(C)]
struct Allocator {
    context: *mut c_void,
    malloc: unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void,
    calloc: unsafe extern "C" fn(*mut c_void, usize, usize) -> *mut c_void,
    realloc: unsafe extern "C" fn(*mut c_void, *mut c_void, usize) -> *mut c_void,
    free: unsafe extern "C" fn(*mut c_void, *mut c_void, usize),
}

/// NumPy's C structure `PyDataMem_Handler`, version 1.
#[repr(C)]
struct Handler {
    name: [c_char; 127],
    version: u8,
    allocator: Allocator,
}

// SAFETY: no code writes to the handler, and its functions may run on any thread.
unsafe impl Sync for Handler {}

static HANDLER: Handler = Handler {
    name: {
        let (mut name, text) = ([0; 127], b"vmarray");
        let mut at = 0;
        while at < text.len() {
            name[at] = text[at] as c_char;
            at += 1;
        }
        name
    },
    version: 1,
    allocator: Allocator { context: ptr::null_mut(), malloc, calloc, realloc, free },
};
/// NumPy's name for capsules with a handler.
const CAPSULE: &CStr = c"mem_handler";
/// Place of `PyDataMem_SetHandler` in the table of NumPy's C functions.
const SET_HANDLER: usize = 304;

/// What precedes the memory of each allocation; 64 bytes, so that the memory is aligned as the piece is.
#[repr(C, align(64))]
struct Header {
    bytes: usize,
    /// The memory of the pool with the allocation; null if the allocation is of the C library.
    piece: *mut Piece,
}

/// Returns memory behind a header; null if there is none.
fn allocated(bytes: usize, is_zeroed: bool) -> *mut c_void {
    let Some(all) = bytes.checked_add(size_of::<Header>()) else { return ptr::null_mut() };
    let (start, piece) = if (BYTES_MIN..=bytes_max()).contains(&bytes) {
        let piece = if is_zeroed { Piece::zeroed(all) } else { Piece::new(all) };
        let Some(mut piece) = piece else { return ptr::null_mut() };
        (piece.start(), Box::into_raw(Box::new(piece)))
    } else {
        let mut start = ptr::null_mut();
        // SAFETY: the alignment is a power of two, and `start` is valid for a write.
        if unsafe { libc::posix_memalign(&raw mut start, align_of::<Header>(), all) } != 0 {
            return ptr::null_mut();
        }
        if is_zeroed {
            // SAFETY: the memory has this length.
            unsafe { start.cast::<u8>().write_bytes(0, all) };
        }
        (start.cast(), ptr::null_mut())
    };
    let header = start.cast::<Header>();
    // SAFETY: the memory is new, aligned, and begins with room for a header.
    unsafe {
        header.write(Header { bytes, piece });
        header.add(1).cast()
    }
}

extern "C" fn malloc(_: *mut c_void, bytes: usize) -> *mut c_void {
    allocated(bytes, false)
}

extern "C" fn calloc(_: *mut c_void, count: usize, bytes: usize) -> *mut c_void {
    count.checked_mul(bytes).map_or(ptr::null_mut(), |bytes| allocated(bytes, true))
}

/// # Safety
/// `old` is null, or an allocation of this allocator that the caller no longer uses.
unsafe extern "C" fn realloc(context: *mut c_void, old: *mut c_void, bytes: usize) -> *mut c_void {
    let new = allocated(bytes, false);
    if !old.is_null() && !new.is_null() {
        // SAFETY: the allocations are apart, and each has at least the copied bytes behind its header.
        unsafe {
            let before = (*old.cast::<Header>().sub(1)).bytes;
            ptr::copy_nonoverlapping(old.cast::<u8>(), new.cast::<u8>(), before.min(bytes));
            free(context, old, before);
        }
    }
    new
}

/// # Safety
/// As for `realloc`.
unsafe extern "C" fn free(_: *mut c_void, old: *mut c_void, _: usize) {
    if old.is_null() {
        return;
    }
    // SAFETY: the header of an allocation precedes it; the piece was leaked by `allocated`, for this call.
    unsafe {
        let header = old.cast::<Header>().sub(1);
        let piece = (*header).piece;
        if piece.is_null() { libc::free(header.cast()) } else { drop(Box::from_raw(piece)) }
    }
}

type SetHandler = unsafe extern "C" fn(*mut ffi::PyObject) -> *mut ffi::PyObject;

/// Returns NumPy's function that sets the allocator of this context, and a capsule with the package's one.
fn setter(py: Python<'_>) -> PyResult<(SetHandler, &Py<PyAny>)> {
    static API: PyOnceLock<(SetHandler, Py<PyAny>)> = PyOnceLock::new();
    let api = API.get_or_try_init(py, || {
        let capsule = py.import("numpy._core._multiarray_umath")?.getattr("_ARRAY_API")?;
        // SAFETY: NumPy's table has this function from version 1.22 on, and the package needs a later one.
        unsafe {
            let table = ffi::PyCapsule_GetPointer(capsule.as_ptr(), ptr::null());
            if table.is_null() {
                return Err(PyErr::fetch(py));
            }
            let set = *table.cast::<*const c_void>().add(SET_HANDLER);
            let handler = (&raw const HANDLER).cast_mut().cast();
            let capsule = ffi::PyCapsule_New(handler, CAPSULE.as_ptr(), None);
            let capsule = Bound::from_owned_ptr_or_err(py, capsule)?.unbind();
            Ok((std::mem::transmute::<*const c_void, SetHandler>(set), capsule))
        }
    })?;
    Ok((api.0, &api.1))
}

/// Calls a function. Arrays of NumPy that it creates take their memory from the pool for results.
#[pyfunction]
#[pyo3(signature = (work, *args, **given))]
pub fn pooled<'py>(
    work: &Bound<'py, PyAny>,
    args: &Bound<'py, PyTuple>,
    given: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = work.py();
    let (set, own) = setter(py)?;
    // SAFETY: the argument is a capsule with a handler that lives as long as the process.
    let before = unsafe { Bound::from_owned_ptr_or_err(py, set(own.as_ptr()))? };
    let outcome = work.call(args, given);
    // SAFETY: NumPy returned this handler above.
    let after = unsafe { Bound::from_owned_ptr_or_err(py, set(before.as_ptr())) };
    outcome.and_then(|found| after.map(|_| found))
}
