//! Owners of OpenCL objects: drop releases the OpenCL object, and logs errors of the driver.

use std::ffi::{CString, c_char, c_void};
use std::ptr;

use opencl3::error_codes::CL_SUCCESS;
use opencl3::event::CL_EVENT_COMMAND_EXECUTION_STATUS;
use opencl3::memory::{CL_MAP_READ, CL_MAP_WRITE};
use opencl3::program::{CL_PROGRAM_BINARIES, CL_PROGRAM_BINARY_SIZES, CL_PROGRAM_BUILD_LOG};
use opencl3::types::{
    CL_BLOCKING, CL_NON_BLOCKING, cl_command_queue, cl_context, cl_context_properties, cl_device_id,
    cl_event, cl_int, cl_kernel, cl_mem, cl_mem_flags, cl_platform_id, cl_program,
};

use crate::driver::{CreateBufferNv, EventCallback, Sys};

/// Constant that `opencl3` lacks: the property that names the platform of a context.
const CL_CONTEXT_PLATFORM: cl_context_properties = 0x1084;

/// Flag of the extension `cl_nv_create_buffer`: the buffer is in page-locked host memory.
const CL_MEM_LOCATION_HOST_NV: u64 = 1 << 0;
const CL_MEM_PINNED_NV: u64 = 1 << 1;

/// Result of a driver call, with its error code.
pub(crate) type Status<T> = Result<T, cl_int>;

pub(crate) fn check(status: cl_int) -> Status<()> {
    if status == CL_SUCCESS { Ok(()) } else { Err(status) }
}

/// Returns a handle if the driver reports success and the handle is not null.
fn object(handle: *mut c_void, status: cl_int) -> Status<*mut c_void> {
    check(status)?;
    // A driver that reports success with a null handle has a bug, so return an error.
    if handle.is_null() { Err(opencl3::error_codes::CL_INVALID_VALUE) } else { Ok(handle) }
}

/// Returns a driver's text without its padding. Calls `ask` twice: for the length, and for the text.
pub(crate) fn text(ask: impl Fn(usize, *mut c_void, *mut usize) -> cl_int) -> Status<String> {
    let mut bytes = 0;
    check(ask(0, ptr::null_mut(), &mut bytes))?;
    let mut text = vec![0_u8; bytes];
    check(ask(bytes, text.as_mut_ptr().cast(), &mut bytes))?;
    let end = text.iter().position(|&byte| byte == 0).unwrap_or(text.len());
    Ok(String::from_utf8_lossy(&text[..end]).trim().to_owned())
}

macro_rules! owner {
    ($(#[$doc:meta])* $name:ident($handle:ty) released by $release:ident) => {
        $(#[$doc])*
        pub(crate) struct $name {
            sys: &'static Sys,
            handle: $handle,
        }

        // SAFETY: any thread may use OpenCL objects (kernels: while no other thread sets arguments, which
        // `Kernel` ensures by requiring `&mut self`).
        unsafe impl Send for $name {}
        // SAFETY: as above.
        unsafe impl Sync for $name {}

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{}({:p})", stringify!($name), self.handle)
            }
        }

        impl $name {
            /// Returns the driver's handle, for driver calls that this type does not wrap.
            #[allow(dead_code, reason = "the macro uses it for some types only")]
            pub fn handle(&self) -> $handle {
                self.handle
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                // SAFETY: the handle is valid and this owner holds one reference to it.
                let status = unsafe { (self.sys.$release)(self.handle) };
                if status != CL_SUCCESS {
                    tracing::debug!(status, object = stringify!($name), "the driver did not release an object");
                }
            }
        }
    };
}

owner! {
    /// A context of one device.
    Context(cl_context) released by clReleaseContext
}
owner! {
    /// An in-order command queue.
    CommandQueue(cl_command_queue) released by clReleaseCommandQueue
}
owner! {
    /// A buffer. The driver keeps it alive after its release until commands that use it are done.
    Memory(cl_mem) released by clReleaseMemObject
}
owner! {
    /// An event, which shows the completion of one command.
    Event(cl_event) released by clReleaseEvent
}
owner! {
    /// A built program.
    Program(cl_program) released by clReleaseProgram
}
owner! {
    /// A kernel object with its arguments.
    Kernel(cl_kernel) released by clReleaseKernel
}

impl Context {
    pub fn new(sys: &'static Sys, platform: cl_platform_id, device: cl_device_id) -> Status<Self> {
        let properties: [cl_context_properties; 3] =
            [CL_CONTEXT_PLATFORM, platform as cl_context_properties, 0];
        let mut status = CL_SUCCESS;
        // SAFETY: the property list ends with 0; `device` is a device of `platform`.
        let handle = unsafe {
            (sys.clCreateContext)(properties.as_ptr(), 1, &device, None, ptr::null_mut(), &mut status)
        };
        Ok(Self { sys, handle: object(handle, status)? })
    }

    pub fn sys(&self) -> &'static Sys {
        self.sys
    }

    pub fn queue(&self, device: cl_device_id) -> Status<CommandQueue> {
        let mut status = CL_SUCCESS;
        // The function is deprecated since OpenCL 2.0, but all drivers have it, and 1.2 lacks its successor.
        // SAFETY: the device belongs to the context.
        let handle = unsafe { (self.sys.clCreateCommandQueue)(self.handle, device, 0, &mut status) };
        Ok(CommandQueue { sys: self.sys, handle: object(handle, status)? })
    }

    /// Creates an OpenCL buffer of `bytes` > 0 bytes, without a host pointer.
    pub fn buffer(&self, flags: cl_mem_flags, bytes: usize) -> Status<Memory> {
        let mut status = CL_SUCCESS;
        // SAFETY: none of the flags in use makes the driver read the host pointer.
        let handle =
            unsafe { (self.sys.clCreateBuffer)(self.handle, flags, bytes, ptr::null_mut(), &mut status) };
        Ok(Memory { sys: self.sys, handle: object(handle, status)? })
    }

    /// Creates a buffer of `bytes` > 0 bytes in page-locked host memory; for NVIDIA's driver only.
    pub fn host_buffer_nv(
        &self,
        platform: cl_platform_id,
        flags: cl_mem_flags,
        bytes: usize,
    ) -> Status<Memory> {
        const ABSENT: cl_int = opencl3::error_codes::DLOPEN_FUNCTION_NOT_AVAILABLE;
        let find = self.sys.clGetExtensionFunctionAddressForPlatform.ok_or(ABSENT)?;
        // SAFETY: the name ends with a zero byte.
        let function = unsafe { find(platform, c"clCreateBufferNV".as_ptr()) };
        if function.is_null() {
            return Err(ABSENT);
        }
        // SAFETY: the driver returned this address for a function of this name, whose signature the
        // extension states.
        let create = unsafe { std::mem::transmute::<*mut c_void, CreateBufferNv>(function) };
        let mut status = CL_SUCCESS;
        let place = CL_MEM_LOCATION_HOST_NV | CL_MEM_PINNED_NV;
        // SAFETY: none of the flags in use makes the driver read the host pointer.
        let handle = unsafe { create(self.handle, flags, place, bytes, ptr::null_mut(), &mut status) };
        Ok(Memory { sys: self.sys, handle: object(handle, status)? })
    }

    /// Creates an unbuilt program from source texts.
    pub fn program_from_source(&self, sources: &[&str]) -> Status<Program> {
        let pointers: Vec<*const c_char> = sources.iter().map(|s| s.as_ptr().cast()).collect();
        let lengths: Vec<usize> = sources.iter().map(|s| s.len()).collect();
        let (create, mut status) = (self.sys.clCreateProgramWithSource, CL_SUCCESS);
        let (count, pointers, lengths) = (sources.len() as u32, pointers.as_ptr(), lengths.as_ptr());
        // SAFETY: both lists have `count` entries, and each pointer has the bytes of its length.
        let handle = unsafe { create(self.handle, count, pointers, lengths, &mut status) };
        Ok(Program { sys: self.sys, handle: object(handle, status)? })
    }

    /// Creates an unbuilt program from the result of [`Program::binary`].
    pub fn program_from_binary(&self, device: cl_device_id, binary: &[u8]) -> Status<Program> {
        let (create, mut binary_status, mut status) =
            (self.sys.clCreateProgramWithBinary, CL_SUCCESS, CL_SUCCESS);
        let (length, start) = (&binary.len(), &binary.as_ptr());
        // SAFETY: the lists contain one device, one length, and one binary of this length.
        let handle =
            unsafe { create(self.handle, 1, &device, length, start, &mut binary_status, &mut status) };
        let program = Program { sys: self.sys, handle: object(handle, status)? };
        check(binary_status)?;
        Ok(program)
    }
}

/// Target for the event of a command, if the caller needs the event.
pub(crate) type EventPlace<'a> = Option<&'a mut Option<Event>>;

impl CommandQueue {
    /// Calls `enqueue` with a pointer for the event's handle, or null.
    fn enqueue(&self, place: EventPlace<'_>, enqueue: impl FnOnce(*mut cl_event) -> cl_int) -> Status<()> {
        let Some(place) = place else { return check(enqueue(ptr::null_mut())) };
        let mut handle: cl_event = ptr::null_mut();
        check(enqueue(&mut handle))?;
        *place = Some(Event { sys: self.sys, handle: object(handle, CL_SUCCESS)? });
        Ok(())
    }

    pub fn flush(&self) -> Status<()> {
        // SAFETY: the queue is valid.
        check(unsafe { (self.sys.clFlush)(self.handle) })
    }

    pub fn finish(&self) -> Status<()> {
        // SAFETY: the queue is valid.
        check(unsafe { (self.sys.clFinish)(self.handle) })
    }

    /// Enqueues a fill of the first `bytes` bytes of a buffer with zeroes.
    ///
    /// # Safety
    /// The buffer has at least this length.
    pub unsafe fn clear(&self, memory: &Memory, bytes: usize) -> Status<()> {
        let (fill, zero, none, event) = (self.sys.clEnqueueFillBuffer, 0_u8, ptr::null(), ptr::null_mut());
        let pattern = (&raw const zero).cast();
        // SAFETY: the caller guarantees the range; the driver has copied the pattern when it returns.
        check(unsafe { fill(self.handle, memory.handle, pattern, 1, 0, bytes, 0, none, event) })
    }

    /// Enqueues a copy of `bytes` bytes from the buffer `from`, starting at `offset`, to host memory.
    ///
    /// # Safety
    /// The range is inside of the buffer. `to` is writable for `bytes` bytes until the command is done.
    pub unsafe fn read(
        &self,
        from: &Memory,
        offset: u64,
        to: *mut u8,
        bytes: usize,
        place: EventPlace<'_>,
    ) -> Status<()> {
        let (read, to, mode, none) = (self.sys.clEnqueueReadBuffer, to.cast(), CL_NON_BLOCKING, ptr::null());
        self.enqueue(place, |event| {
            // SAFETY: guaranteed by the caller.
            unsafe { read(self.handle, from.handle, mode, offset as usize, bytes, to, 0, none, event) }
        })
    }

    /// Enqueues a copy of `bytes` bytes from host memory to the buffer `to`, starting at `offset`.
    ///
    /// # Safety
    /// The range is inside of the buffer. `from` is readable for `bytes` bytes until the command is done.
    pub unsafe fn write(
        &self,
        from: *const u8,
        to: &Memory,
        offset: u64,
        bytes: usize,
        place: EventPlace<'_>,
    ) -> Status<()> {
        let write = self.sys.clEnqueueWriteBuffer;
        let (from, mode, none) = (from.cast(), CL_NON_BLOCKING, ptr::null());
        self.enqueue(place, |event| {
            // SAFETY: guaranteed by the caller.
            unsafe { write(self.handle, to.handle, mode, offset as usize, bytes, from, 0, none, event) }
        })
    }

    /// Enqueues a copy from byte `first` of `from` to byte `offset` of `to`. The driver returns an error if a
    /// range is outside of its buffer.
    pub fn copy(
        &self,
        (from, first): (&Memory, u64),
        (to, offset): (&Memory, u64),
        bytes: usize,
        place: EventPlace<'_>,
    ) -> Status<()> {
        let (copy, none) = (self.sys.clEnqueueCopyBuffer, ptr::null());
        let (from, to, first, offset) = (from.handle, to.handle, first as usize, offset as usize);
        self.enqueue(place, |event| {
            // SAFETY: queue and buffers are valid and of one context.
            unsafe { copy(self.handle, from, to, first, offset, bytes, 0, none, event) }
        })
    }

    /// Enqueues a launch of a kernel, with `groups` work-groups of `group` work-items each.
    ///
    /// # Safety
    /// The kernel, with its arguments, only accesses memory of its arguments.
    pub unsafe fn launch(&self, kernel: &Kernel, groups: usize, group: usize) -> Status<()> {
        let (launch, items, start, none) =
            (self.sys.clEnqueueNDRangeKernel, groups * group, ptr::null(), ptr::null());
        let event = ptr::null_mut();
        // SAFETY: each list has one number, for the one dimension. The caller guarantees the accesses of the
        // kernel.
        check(unsafe { launch(self.handle, kernel.handle, 1, start, &items, &group, 0, none, event) })
    }

    /// Enqueues a marker, and returns its event. The event completes after all commands enqueued so far.
    pub fn marker(&self) -> Status<Event> {
        let mut event = None;
        self.enqueue(Some(&mut event), |event| {
            // SAFETY: an empty wait list is null.
            unsafe { (self.sys.clEnqueueMarkerWithWaitList)(self.handle, 0, ptr::null(), event) }
        })?;
        event.ok_or(opencl3::error_codes::CL_INVALID_EVENT)
    }

    /// Makes later commands of the queue wait for `event`.
    pub fn barrier(&self, event: &Event) -> Status<()> {
        // SAFETY: one valid event.
        check(unsafe {
            (self.sys.clEnqueueBarrierWithWaitList)(self.handle, 1, &event.handle, ptr::null_mut())
        })
    }

    /// Maps the whole buffer, `bytes` bytes, into host memory until [`unmap`](Self::unmap); blocks.
    pub fn map(&self, memory: &Memory, bytes: usize) -> Status<*mut u8> {
        let (map, flags, mut status) = (self.sys.clEnqueueMapBuffer, CL_MAP_READ | CL_MAP_WRITE, CL_SUCCESS);
        let (mode, none, event) = (CL_BLOCKING, ptr::null(), ptr::null_mut());
        // SAFETY: the buffer is `bytes` long; no wait list; no event.
        let address =
            unsafe { map(self.handle, memory.handle, mode, flags, 0, bytes, 0, none, event, &mut status) };
        object(address, status).map(|address| address.cast())
    }

    /// Unmaps a buffer from host memory.
    ///
    /// # Safety
    /// No code uses the result of [`map`](Self::map) any more.
    pub unsafe fn unmap(&self, memory: &Memory, address: *mut u8) -> Status<()> {
        let (unmap, none, event) = (self.sys.clEnqueueUnmapMemObject, ptr::null(), ptr::null_mut());
        // SAFETY: guaranteed by the caller.
        check(unsafe { unmap(self.handle, memory.handle, address.cast(), 0, none, event) })
    }
}

impl Event {
    /// Status of the event's command: positive while pending, 0 when done, negative after a failure.
    pub fn status(&self) -> Status<cl_int> {
        let (ask, which) = (self.sys.clGetEventInfo, CL_EVENT_COMMAND_EXECUTION_STATUS);
        let mut value: cl_int = 0;
        let (room, to) = (size_of::<cl_int>(), (&raw mut value).cast());
        // SAFETY: this information is one `cl_int`.
        check(unsafe { ask(self.handle, which, room, to, ptr::null_mut()) })?;
        Ok(value)
    }

    pub fn wait(&self) -> Status<()> {
        // SAFETY: one valid event.
        check(unsafe { (self.sys.clWaitForEvents)(1, &self.handle) })
    }

    /// Registers `callback`, which the driver calls once with `data` when the command is done or has
    /// failed.
    ///
    /// # Safety
    /// The driver may call `callback` from any thread, at any time from now on, and `data` must be valid
    /// then.
    pub unsafe fn on_completion(&self, callback: EventCallback, data: *mut c_void) -> Status<()> {
        // SAFETY: guaranteed by the caller.
        check(unsafe {
            (self.sys.clSetEventCallback)(self.handle, opencl3::event::CL_COMPLETE, Some(callback), data)
        })
    }
}

impl Program {
    pub fn build(&self, device: cl_device_id, options: &str) -> Status<()> {
        let options = CString::new(options).map_err(|_| opencl3::error_codes::CL_INVALID_BUILD_OPTIONS)?;
        // SAFETY: one device; the options end with a zero byte.
        check(unsafe {
            (self.sys.clBuildProgram)(self.handle, 1, &device, options.as_ptr(), None, ptr::null_mut())
        })
    }

    /// Returns the compiler's output from the build; may be empty.
    pub fn build_log(&self, device: cl_device_id) -> String {
        let ask = self.sys.clGetProgramBuildInfo;
        // SAFETY: the driver writes at most as many bytes as the buffer has room for, and one number.
        text(|room, to, written| unsafe { ask(self.handle, device, CL_PROGRAM_BUILD_LOG, room, to, written) })
            .unwrap_or_default()
    }

    /// Returns the built program as a binary that its driver can load again.
    pub fn binary(&self) -> Status<Vec<u8>> {
        let (ask, none) = (self.sys.clGetProgramInfo, ptr::null_mut());
        let mut bytes = 0_usize;
        let (room, to) = (size_of::<usize>(), (&raw mut bytes).cast());
        // SAFETY: the context has one device, so this information is one `usize`.
        check(unsafe { ask(self.handle, CL_PROGRAM_BINARY_SIZES, room, to, none) })?;
        let mut binary = vec![0_u8; bytes];
        let mut pointer = binary.as_mut_ptr();
        let (room, to) = (size_of::<*mut u8>(), (&raw mut pointer).cast());
        // SAFETY: the list contains one pointer, to as many bytes as the driver reported for the binary.
        check(unsafe { ask(self.handle, CL_PROGRAM_BINARIES, room, to, none) })?;
        Ok(binary)
    }

    pub fn kernel(&self, name: &str) -> Status<Kernel> {
        let name = CString::new(name).map_err(|_| opencl3::error_codes::CL_INVALID_KERNEL_NAME)?;
        let mut status = CL_SUCCESS;
        // SAFETY: the program is valid and the name ends with a zero byte.
        let handle = unsafe { (self.sys.clCreateKernel)(self.handle, name.as_ptr(), &mut status) };
        Ok(Kernel { sys: self.sys, handle: object(handle, status)? })
    }
}

#[derive(Clone, Copy)]
pub(crate) enum DriverArgument<'a> {
    Buffer(&'a Memory),
    U32(u32),
    U64(u64),
    Vector([u32; 4]),
    /// An address in fine-grained shared memory.
    Shared(*const c_void),
}

impl Kernel {
    /// Sets all arguments of the kernel. The driver checks their number and types only in part.
    pub fn set(&mut self, arguments: &[DriverArgument<'_>]) -> Status<()> {
        let set = |index: usize, value: *const c_void, bytes: usize| {
            // SAFETY: `value` points to `bytes` bytes, which the driver copies before it returns. `&mut
            // self` excludes other threads.
            check(unsafe { (self.sys.clSetKernelArg)(self.handle, index as u32, bytes, value) })
        };
        for (index, argument) in arguments.iter().enumerate() {
            match argument {
                DriverArgument::Buffer(memory) => {
                    set(index, (&raw const memory.handle).cast(), size_of::<cl_mem>())?
                }
                DriverArgument::U32(value) => set(index, ptr::from_ref(value).cast(), 4)?,
                DriverArgument::U64(value) => set(index, ptr::from_ref(value).cast(), 8)?,
                DriverArgument::Vector(value) => set(index, value.as_ptr().cast(), 16)?,
                DriverArgument::Shared(address) => {
                    let function = self
                        .sys
                        .clSetKernelArgSVMPointer
                        .ok_or(opencl3::error_codes::DLOPEN_FUNCTION_NOT_AVAILABLE)?;
                    // SAFETY: `clSVMAlloc` returned the address for this context.
                    check(unsafe { function(self.handle, index as u32, *address) })?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use opencl3::memory::CL_MEM_READ_WRITE;

    use super::*;
    use crate::driver::sys;

    #[test]
    fn a_buffer_is_cleared_up_to_a_length() {
        for found in crate::devices() {
            let context = Context::new(sys().unwrap(), found.handles.platform, found.handles.device).unwrap();
            let queue = context.queue(found.handles.device).unwrap();
            let (buffer, mut bytes) = (context.buffer(CL_MEM_READ_WRITE, 5001).unwrap(), [7_u8; 5001]);
            // SAFETY: the buffer and the array have this length, and the array outlives the copies.
            unsafe {
                queue.write(bytes.as_ptr(), &buffer, 0, bytes.len(), None).unwrap();
                queue.clear(&buffer, 5000).unwrap();
                queue.read(&buffer, 0, bytes.as_mut_ptr(), bytes.len(), None).unwrap();
            }
            queue.finish().unwrap();
            assert!(bytes[..5000].iter().all(|&byte| byte == 0));
            assert_eq!(bytes[5000], 7);
        }
    }
}
