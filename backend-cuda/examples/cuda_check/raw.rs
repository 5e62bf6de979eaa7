//! The driver called directly, as the yardstick.

use std::ffi::c_void;
use std::ptr::null_mut;

use cudarc::driver::sys;

/// A stream, some memory on the card and some pinned memory, in a device's context.
pub struct Raw {
    pub stream: sys::CUstream,
    pub device: sys::CUdeviceptr,
    pub host: *mut c_void,
    pub counter: *mut u64,
    event: sys::CUevent,
    bytes: usize,
}

fn check(result: sys::CUresult) {
    assert_eq!(result, sys::CUresult::CUDA_SUCCESS);
}

impl Raw {
    /// `bytes` bytes of each kind. The context must be alive.
    pub fn new(context: *mut c_void, bytes: usize) -> Self {
        let (mut stream, mut device, mut host) = (null_mut(), 0, null_mut());
        let (mut event, mut counter) = (null_mut(), null_mut());
        // SAFETY: plain driver calls, which write their results.
        unsafe {
            check(sys::cuCtxSetCurrent(context.cast()));
            check(sys::cuStreamCreate(&raw mut stream, 1));
            check(sys::cuMemAlloc_v2(&raw mut device, bytes));
            check(sys::cuMemHostAlloc(&raw mut host, bytes, 3));
            check(sys::cuMemHostAlloc(&raw mut counter, 4096, 3));
            check(sys::cuEventCreate(&raw mut event, 2));
            counter.cast::<u64>().write_volatile(0);
        }
        Self { stream, device, host, counter: counter.cast(), event, bytes }
    }

    pub fn download(&self, bytes: usize) {
        self.copy(false, 0, bytes);
    }

    pub fn upload(&self, bytes: usize) {
        self.copy(true, 0, bytes);
    }

    /// Copies between the same places of both memories.
    pub fn copy(&self, is_upload: bool, offset: usize, bytes: usize) {
        assert!(offset + bytes <= self.bytes);
        let device = self.device + offset as u64;
        // SAFETY: within the allocations, here and below.
        let host = unsafe { self.host.byte_add(offset) };
        check(if is_upload {
            // SAFETY: as above.
            unsafe { sys::cuMemcpyHtoDAsync_v2(device, host, bytes, self.stream) }
        } else {
            // SAFETY: as above.
            unsafe { sys::cuMemcpyDtoHAsync_v2(host, device, bytes, self.stream) }
        });
    }

    pub fn synchronize(&self) {
        // SAFETY: the stream is alive.
        check(unsafe { sys::cuStreamSynchronize(self.stream) });
    }

    /// Records an event and asks for it until it is done.
    pub fn event(&self) {
        // SAFETY: both handles are alive.
        unsafe {
            check(sys::cuEventRecord(self.event, self.stream));
            while sys::cuEventQuery(self.event) != sys::CUresult::CUDA_SUCCESS {}
        }
    }

    /// Has the stream write a number and looks until it is there.
    pub fn counter(&self, value: u64) {
        // SAFETY: the counter is mapped at its own address.
        unsafe {
            check(sys::cuStreamWriteValue64_v2(self.stream, self.counter as u64, value, 0));
            while self.counter.read_volatile() < value {
                std::hint::spin_loop();
            }
        }
    }

    pub fn record_only(&self) {
        // SAFETY: both handles are alive.
        check(unsafe { sys::cuEventRecord(self.event, self.stream) });
    }

    pub fn write_only(&self, value: u64) {
        // SAFETY: the counter is mapped at its own address.
        check(unsafe { sys::cuStreamWriteValue64_v2(self.stream, self.counter as u64, value, 0) });
    }

    pub fn current(&self) -> sys::CUcontext {
        let mut context = null_mut();
        // SAFETY: writes one handle.
        check(unsafe { sys::cuCtxGetCurrent(&raw mut context) });
        context
    }

    pub fn set_current(&self, context: sys::CUcontext) {
        // SAFETY: the context is alive.
        check(unsafe { sys::cuCtxSetCurrent(context) });
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // SAFETY: each was made above.
        unsafe {
            sys::cuStreamSynchronize(self.stream);
            sys::cuStreamDestroy_v2(self.stream);
            sys::cuMemFree_v2(self.device);
            sys::cuMemFreeHost(self.host);
            sys::cuMemFreeHost(self.counter.cast());
            sys::cuEventDestroy_v2(self.event);
        }
    }
}

/// Page-locks memory of the program.
pub fn register(start: *mut c_void, bytes: usize) {
    // SAFETY: the caller's range.
    check(unsafe { sys::cuMemHostRegister_v2(start, bytes, 3) });
}

/// Unlocks it.
pub fn unregister(start: *mut c_void) {
    // SAFETY: the caller's range.
    check(unsafe { sys::cuMemHostUnregister(start) });
}

/// Pinned memory of the driver.
pub fn host_alloc(bytes: usize) -> *mut c_void {
    let mut host = null_mut();
    // SAFETY: writes one address.
    check(unsafe { sys::cuMemHostAlloc(&raw mut host, bytes, 3) });
    host
}

/// Gives it back.
pub fn host_free(start: *mut c_void) {
    // SAFETY: from `host_alloc`.
    check(unsafe { sys::cuMemFreeHost(start) });
}

/// Kernels on a large piece of device memory.
pub struct Kernels {
    stream: sys::CUstream,
    modules: [sys::CUmodule; 2],
    pub memory: sys::CUdeviceptr,
    /// For the state and the counts of the search's kernels, and the yardstick's result.
    pub scratch: sys::CUdeviceptr,
}

const SCRATCH_BYTES: usize = 64 << 20;

impl Kernels {
    /// The yardstick's kernels and the search's, and `bytes` bytes of zeroes. The context must be alive.
    pub fn new(context: *mut c_void, bytes: usize) -> Self {
        let texts = [
            concat!(include_str!("../../kernels/yardstick.ptx"), "\0"),
            concat!(include_str!("../../kernels/search.ptx"), "\0"),
        ];
        let mut stream = null_mut();
        let (mut memory, mut scratch) = (0, 0);
        // SAFETY: plain driver calls, which write their results; the texts end with a NUL.
        unsafe {
            check(sys::cuCtxSetCurrent(context.cast()));
            check(sys::cuStreamCreate(&raw mut stream, 1));
            check(sys::cuMemAlloc_v2(&raw mut memory, bytes));
            check(sys::cuMemAlloc_v2(&raw mut scratch, SCRATCH_BYTES));
            check(sys::cuMemsetD8Async(memory, 0, bytes, stream));
            let modules = texts.map(|text| {
                let mut module = null_mut();
                check(sys::cuModuleLoadData(&raw mut module, text.as_ptr().cast()));
                module
            });
            Self { stream, modules, memory, scratch }
        }
    }

    pub fn function(&self, name: &std::ffi::CStr) -> sys::CUfunction {
        let mut function = null_mut();
        let found = self.modules.iter().any(|module| {
            // SAFETY: the module is loaded and the name a C string.
            let result = unsafe { sys::cuModuleGetFunction(&raw mut function, *module, name.as_ptr()) };
            result == sys::CUresult::CUDA_SUCCESS
        });
        assert!(found, "no kernel {name:?}");
        function
    }

    /// Clears the start of the scratch memory, runs a kernel, and waits.
    ///
    /// # Safety
    /// The arguments must be those of the kernel, and its addresses within the two memories.
    pub unsafe fn run(&self, function: sys::CUfunction, blocks: u32, arguments: &mut [*mut c_void]) {
        // SAFETY: the scratch memory is longer; the rest is the caller's.
        unsafe {
            check(sys::cuMemsetD8Async(self.scratch, 0, 64, self.stream));
            let (one, none) = (1, null_mut());
            let arguments = arguments.as_mut_ptr();
            check(sys::cuLaunchKernel(
                function,
                blocks,
                one,
                one,
                256,
                one,
                one,
                0,
                self.stream,
                arguments,
                none,
            ));
            check(sys::cuStreamSynchronize(self.stream));
        }
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        // SAFETY: each was made above, and nothing is in flight.
        unsafe {
            for module in self.modules {
                sys::cuModuleUnload(module);
            }
            sys::cuMemFree_v2(self.memory);
            sys::cuMemFree_v2(self.scratch);
            sys::cuStreamDestroy_v2(self.stream);
        }
    }
}
