//! Host memory for the copies of an OpenCL device: pinned memory, and pageable memory of the program.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use backend_api::{Error, ErrorKind, HostMemory, Result, racy};
use opencl3::memory::{CL_MEM_ALLOC_HOST_PTR, CL_MEM_READ_WRITE, CL_MEM_SVM_FINE_GRAIN_BUFFER};
use vmarray_support::backends::PIN_ADVICE;

use memmap2::MmapMut;
use parking_lot::Mutex;

use crate::core::OpenClCore;
use crate::driver::objects::{DriverArgument, Memory};
use crate::uses::{Uses, UsingQueue};

/// The alignment of host memory that [`allocate_host`](backend_api::Device::allocate_host) promises.
const ALIGNMENT_BYTES: usize = 4096;

/// One allocation of host memory.
#[derive(Debug)]
pub(crate) struct HostPiece {
    pub address: NonNull<u8>,
    pub bytes: usize,
    /// True if kernels can access the memory while the program accesses it (fine-grained shared memory).
    pub shared: bool,
    pub uses: Uses,
    writes: Writes,
    /// Switch for wiping before the release; `None` for memory of the program, which is not wiped.
    wipes: Option<Arc<AtomicBool>>,
    backing: Backing,
}

impl Drop for HostPiece {
    fn drop(&mut self) {
        if self.wipes.as_ref().is_some_and(|wipes| wipes.load(Ordering::Acquire)) {
            // SAFETY: this piece owns the memory, which was zeroed in the beginning, and all work that
            // touches it is done.
            unsafe { racy::wipe(self.address.as_ptr(), self.bytes) };
        }
    }
}

// SAFETY: the address is only used in copies, whose validity the device checks and the contract's rules on
// races cover.
unsafe impl Send for HostPiece {}
// SAFETY: as above.
unsafe impl Sync for HostPiece {}

#[derive(Debug)]
enum Backing {
    /// This value owns no memory: the length is 0, or the memory belongs to the program.
    None,
    Mapped(Mapping),
    Shared(#[expect(dead_code, reason = "owns the memory")] Shared),
    Ours(#[expect(dead_code, reason = "owns the memory")] MmapMut),
}

/// The writes in flight to parts of pageable memory.
///
/// A driver may read pageable memory when a copy from it is *enqueued*, into its own page-locked memory
/// (NVIDIA's does): before earlier work of the same in-order queue has written to it. So the backend enqueues
/// copies from such memory only after that work is done. The device itself reads page-locked memory, in
/// order.
#[derive(Debug, Default)]
struct Writes(Mutex<WriteList>);

#[derive(Debug, Default)]
struct WriteList {
    writes: Vec<(Weak<dyn UsingQueue>, u64, Range<u64>)>,
    /// The length of the list at which the next call removes finished writes.
    tidy_at: usize,
}

impl Writes {
    fn note(&self, queue: &Arc<impl UsingQueue + 'static>, value: u64, range: Range<u64>) {
        let mut list = self.0.lock();
        if list.writes.len() >= list.tidy_at {
            list.writes
                .retain(|(queue, value, _)| queue.upgrade().is_some_and(|queue| queue.is_pending(*value)));
            list.tidy_at = (2 * list.writes.len()).max(64);
        }
        let queue = Arc::downgrade(queue);
        list.writes.push((queue, value, range));
    }

    fn await_writes_in(&self, range: Range<u64>) {
        let mut due: Vec<(Weak<dyn UsingQueue>, u64)> = Vec::new();
        for (queue, value, written) in &self.0.lock().writes {
            let overlaps = written.start < range.end && range.start < written.end;
            // Keep only the newest write of each queue, because it ends after all earlier ones.
            match due.iter_mut().find(|(known, _)| known.ptr_eq(queue)) {
                _ if !overlaps => {}
                Some((_, newest)) => *newest = (*newest).max(*value),
                None => due.push((Weak::clone(queue), *value)),
            }
        }
        for (queue, value) in due {
            if let Some(queue) = queue.upgrade() {
                queue.settle(value);
            }
        }
    }
}

/// A buffer in page-locked memory, mapped permanently.
///
/// OpenCL allocates page-locked memory in this way, and copies then use its address: all drivers allow this
/// use of a mapped buffer. Kernels use the buffer only after a successful trial.
#[derive(Debug)]
struct Mapping {
    core: Arc<OpenClCore>,
    memory: Memory,
    address: *mut u8,
    /// If kernels can access the buffer, the byte offset of the memory in it.
    kernels_from: Option<u64>,
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the owner waited for all work that touches the memory, and the program's right to it has
        // ended.
        let unmapped = unsafe { self.core.service.unmap(&self.memory, self.address) };
        if let Err(status) = unmapped.and_then(|()| self.core.service.finish()) {
            tracing::debug!(status, "the driver did not unmap a buffer");
        }
    }
}

/// Fine-grained shared memory, which the device reads and writes in place.
#[derive(Debug)]
struct Shared {
    core: Arc<OpenClCore>,
    address: *mut u8,
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(free) = self.core.context.sys().clSVMFree {
            // SAFETY: allocated from this context, and not in use any more, as for `Mapping`.
            unsafe { free(self.core.context.handle(), self.address.cast()) };
        }
    }
}

/// Type with the alignment of host memory, for the address of empty memory.
#[repr(align(4096))]
struct Page;

impl HostPiece {
    fn new(address: NonNull<u8>, bytes: usize, wipes: Option<&Arc<AtomicBool>>, backing: Backing) -> Self {
        let shared = matches!(backing, Backing::Shared(_));
        let (uses, writes, wipes) = (Uses::default(), Writes::default(), wipes.map(Arc::clone));
        Self { address, bytes, shared, uses, writes, wipes, backing }
    }

    /// Allocates `bytes` bytes of zeroed host memory, which is pageable or page-locked by `kind`.
    pub fn allocate(core: &Arc<OpenClCore>, bytes: usize, kind: HostMemory) -> Result<Self> {
        if bytes == 0 {
            return Ok(Self::new(NonNull::<Page>::dangling().cast(), 0, None, Backing::None));
        }
        match kind {
            HostMemory::Pageable => Self::heap(core, bytes),
            HostMemory::Pinned if core.traits.shares_fine_grained => match Self::shared(core, bytes) {
                Some(piece) => Ok(piece),
                None => Self::mapped(core, bytes),
            },
            HostMemory::Pinned => Self::mapped(core, bytes),
            _ => Err(Error::new(ErrorKind::Unsupported, "allocate_host")),
        }
    }

    /// Registers memory of the program, without owning it.
    pub fn imported(address: NonNull<u8>, bytes: usize) -> Self {
        Self::new(address, bytes, None, Backing::None)
    }

    fn heap(core: &OpenClCore, bytes: usize) -> Result<Self> {
        let full = |detail: &str| {
            let error = Error::new(ErrorKind::OutOfMemory, "allocate_host").with_bytes(bytes as u64);
            error.with_detail(detail).on(&core.info)
        };
        let mut map = MmapMut::map_anon(bytes).map_err(|error| full(&error.to_string()))?;
        let address = NonNull::new(map.as_mut_ptr()).ok_or_else(|| full("the memory map has no address"))?;
        Ok(Self::new(address, bytes, Some(&core.wipes), Backing::Ours(map)))
    }

    /// Returns the length of an allocation that has room to align `bytes` bytes.
    fn padded(core: &OpenClCore, bytes: usize) -> Result<usize> {
        let refused = || {
            Error::new(ErrorKind::PinRefused, "allocate_host")
                .with_bytes(bytes as u64)
                .with_available_bytes(core.info.largest_allocation_bytes)
                .with_detail("the request exceeds the largest allocation of the driver")
                .with_advice(PIN_ADVICE)
                .on(&core.info)
        };
        bytes.checked_add(ALIGNMENT_BYTES).filter(|&b| b <= isize::MAX as usize).ok_or_else(refused)
    }

    fn mapped(core: &Arc<OpenClCore>, bytes: usize) -> Result<Self> {
        let padded = Self::padded(core, bytes)?;
        let refused = |status| {
            let error = core.fail("allocate_host", ErrorKind::PinRefused, status);
            if error.kind() == ErrorKind::Lost {
                return error;
            }
            Error::new(ErrorKind::PinRefused, "allocate_host")
                .with_bytes(bytes as u64)
                .with_driver(i64::from(status), crate::error::name(status))
                .with_advice(PIN_ADVICE)
                .on(&core.info)
        };
        let map = |memory: Memory| core.service.map(&memory, padded).map(|start| (memory, start));
        let in_place = || {
            let memory = core.context.host_buffer_nv(core.handles.platform, CL_MEM_READ_WRITE, padded);
            memory.and_then(map).ok()
        };
        // If the driver refuses buffers that kernels can access, use memory that only copies can access.
        let (memory, start, for_kernels) = match core.host_buffers_nv.then(in_place).flatten() {
            Some((memory, start)) => (memory, start, true),
            None => {
                let memory = core.context.buffer(CL_MEM_READ_WRITE | CL_MEM_ALLOC_HOST_PTR, padded);
                let (memory, start) = memory.and_then(map).map_err(refused)?;
                (memory, start, false)
            }
        };
        let kernels_from = for_kernels.then(|| start.align_offset(ALIGNMENT_BYTES) as u64);
        let mapping = Mapping { core: Arc::clone(core), memory, address: start, kernels_from };
        Ok(Self::aligned(core, start, bytes, Backing::Mapped(mapping)))
    }

    fn shared(core: &Arc<OpenClCore>, bytes: usize) -> Option<Self> {
        let allocate = core.context.sys().clSVMAlloc?;
        core.context.sys().clSVMFree?;
        core.context.sys().clSetKernelArgSVMPointer?;
        let padded = Self::padded(core, bytes).ok()?;
        let flags = CL_MEM_READ_WRITE | CL_MEM_SVM_FINE_GRAIN_BUFFER;
        // SAFETY: plain allocation; alignment 0 is the device's usual one.
        let start = unsafe { allocate(core.context.handle(), flags, padded, 0) }.cast::<u8>();
        if start.is_null() {
            return None;
        }
        let backing = Backing::Shared(Shared { core: Arc::clone(core), address: start });
        Some(Self::aligned(core, start, bytes, backing))
    }

    /// Returns the first aligned `bytes` bytes of the memory at `start`, zeroed. The memory is long enough.
    fn aligned(core: &OpenClCore, start: *mut u8, bytes: usize, backing: Backing) -> Self {
        let shift = start.align_offset(ALIGNMENT_BYTES);
        // SAFETY: the memory is a page longer than `bytes`, so aligning stays inside; no other code has it
        // so far.
        let address = unsafe {
            let address = start.add(shift);
            racy::fill(address, 0, bytes);
            NonNull::new_unchecked(address)
        };
        Self::new(address, bytes, Some(&core.wipes), backing)
    }

    /// Returns the memory as an argument for kernels, and its offset in the argument. `None` if only copies
    /// can access the memory.
    pub fn for_kernels(&self) -> Option<(DriverArgument<'_>, u64)> {
        match &self.backing {
            Backing::Shared(_) => Some((DriverArgument::Shared(self.at(0).cast()), 0)),
            Backing::Mapped(mapping) => {
                mapping.kernels_from.map(|from| (DriverArgument::Buffer(&mapping.memory), from))
            }
            _ => None,
        }
    }

    /// Returns true if this crate allocated the memory; false for memory of the program.
    pub fn is_ours(&self) -> bool {
        self.wipes.is_some()
    }

    fn is_pageable(&self) -> bool {
        matches!(self.backing, Backing::None | Backing::Ours(_))
    }

    /// Records that the submission `value` to `queue` will write to this range, if the memory is pageable.
    /// Call this method before the submission.
    pub fn will_be_written(&self, queue: &Arc<impl UsingQueue + 'static>, value: u64, at: u64, bytes: u64) {
        if self.is_pageable() && bytes > 0 {
            self.writes.note(queue, value, at..at + bytes);
        }
    }

    /// Blocks while earlier work writes to the `bytes` bytes at `at`, if the memory is pageable. Call this
    /// method before a copy from the range is enqueued. Runs no waker.
    pub fn await_writes(&self, at: u64, bytes: u64) {
        if self.is_pageable() && bytes > 0 {
            self.writes.await_writes_in(at..at + bytes);
        }
    }

    /// Returns the address of the byte at `offset`, which must not be beyond the end of the memory.
    pub fn at(&self, offset: u64) -> *mut u8 {
        debug_assert!(offset <= self.bytes as u64);
        // SAFETY: inside of the memory, as the device has checked.
        unsafe { self.address.as_ptr().add(offset as usize) }
    }
}
