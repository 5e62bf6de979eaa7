//! Owners of CUDA driver objects (streams, events, modules): drop destroys the object, and logs errors.
//!
//! For all calls except creation and drop, the caller must first make the context current: see
//! [`CudaContext::enter`].

use std::ffi::{CString, c_int, c_void};
use std::ptr::{null_mut, with_exposed_provenance, with_exposed_provenance_mut};
use std::sync::Arc;

use cudarc::driver::sys::{self, CUfunction_attribute_enum as Attribute};

use super::{
    ContextHandle, DriverResult, EventHandle, Function, ModuleHandle, StatusCode, StreamHandle, check,
};
use crate::context::CudaContext;

/// The number of threads of a block, in all kernels.
pub(crate) const THREADS: u32 = 256;

macro_rules! owner {
    ($(#[$doc:meta])* $name:ident($handle:ident) destroyed by $destroy:ident) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub(crate) struct $name {
            context: Arc<CudaContext>,
            handle: $handle,
        }

        impl Drop for $name {
            fn drop(&mut self) {
                let destroyed = self.context.enter().and_then(|_current| {
                    // SAFETY: the handle is alive, and this was its only owner.
                    check(unsafe { (self.context.driver.table.$destroy)(self.handle) })
                });
                if let Err(code) = destroyed {
                    tracing::debug!(?code, object = stringify!($name), "cannot destroy it on a lost device");
                }
            }
        }
    };
}
owner! {
    /// A non-blocking stream: it does not synchronise with the default stream.
    Stream(StreamHandle) destroyed by stream_destroy
}
owner! {
    /// An event without timing.
    Event(EventHandle) destroyed by event_destroy
}
owner! {
    /// A module of loaded kernels. None of its kernels may run when it is dropped.
    Module(ModuleHandle) destroyed by module_unload
}

/// The repeated unit of the driver's memset: 1, 2 or 4 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    One(u8),
    Two(u16),
    Four(u32),
}

impl Event {
    pub fn new(context: &Arc<CudaContext>) -> DriverResult<Self> {
        let mut handle = EventHandle::NULL;
        let flags = sys::CUevent_flags_enum::CU_EVENT_DISABLE_TIMING as u32;
        let _current = context.enter()?;
        // SAFETY: writes one handle.
        check(unsafe { (context.driver.table.event_create)(&raw mut handle, flags) })?;
        Ok(Self { context: Arc::clone(context), handle })
    }

    /// Records the event after all earlier work of the stream.
    pub fn record(&self, stream: &Stream) -> DriverResult {
        // SAFETY: both handles are alive.
        check(unsafe { (self.context.driver.table.event_record)(self.handle, stream.handle) })
    }

    /// Returns true if the GPU has completed all work before the event.
    pub fn query(&self) -> DriverResult<bool> {
        // SAFETY: the handle is alive, here and below.
        match check(unsafe { (self.context.driver.table.event_query)(self.handle) }) {
            Ok(()) => Ok(true),
            Err(StatusCode::NOT_READY) => Ok(false),
            Err(code) => Err(code),
        }
    }

    /// Blocks until the GPU has completed all work before the event.
    pub fn synchronize(&self) -> DriverResult {
        // SAFETY: as above.
        check(unsafe { (self.context.driver.table.event_synchronize)(self.handle) })
    }
}

impl Stream {
    pub fn new(context: &Arc<CudaContext>) -> DriverResult<Self> {
        let _current = context.enter()?;
        Ok(Self { context: Arc::clone(context), handle: context.make_stream()? })
    }

    /// Returns `Ok` if the GPU has completed all work of the stream, otherwise the driver's code.
    pub fn query(&self) -> DriverResult {
        // SAFETY: the handle is alive, here and below.
        check(unsafe { (self.context.driver.table.stream_query)(self.handle) })
    }

    /// Blocks until the GPU has completed all work of the stream.
    pub fn synchronize(&self) -> DriverResult {
        // SAFETY: as above.
        check(unsafe { (self.context.driver.table.stream_synchronize)(self.handle) })
    }

    /// Makes later work of the stream wait for `event`. The event may be destroyed before the wait ends.
    pub fn wait_for(&self, event: &Event) -> DriverResult {
        // SAFETY: both handles are alive.
        check(unsafe { (self.context.driver.table.stream_wait_event)(self.handle, event.handle, 0) })
    }

    /// Enqueues a copy of `bytes` bytes from host memory at `from` to GPU memory at `to`.
    ///
    /// # Safety
    /// Both ranges must stay allocated until the copy is done.
    pub unsafe fn upload(&self, to: u64, from: u64, bytes: u64) -> DriverResult {
        let from: *const c_void = with_exposed_provenance(from as usize);
        // SAFETY: guaranteed by the caller, here and below.
        check(unsafe { (self.context.driver.table.memcpy_htod_async)(to, from, bytes as usize, self.handle) })
    }

    /// Enqueues a copy of `bytes` bytes from GPU memory at `from` to host memory at `to`.
    ///
    /// # Safety
    /// The requirements of [`upload`](Self::upload).
    pub unsafe fn download(&self, to: u64, from: u64, bytes: u64) -> DriverResult {
        let to: *mut c_void = with_exposed_provenance_mut(to as usize);
        // SAFETY: as above.
        check(unsafe { (self.context.driver.table.memcpy_dtoh_async)(to, from, bytes as usize, self.handle) })
    }

    /// Enqueues a copy of `bytes` bytes within GPU memory.
    ///
    /// # Safety
    /// The requirements of [`upload`](Self::upload).
    pub unsafe fn copy(&self, to: u64, from: u64, bytes: u64) -> DriverResult {
        // SAFETY: as above.
        check(unsafe { (self.context.driver.table.memcpy_dtod_async)(to, from, bytes as usize, self.handle) })
    }

    /// Enqueues a copy between contexts; `to` and `from` are each the context and address of one side.
    ///
    /// # Safety
    /// The requirements of [`upload`](Self::upload); the stream's context has peer access to both contexts.
    pub unsafe fn copy_between(
        &self,
        to: (ContextHandle, u64),
        from: (ContextHandle, u64),
        bytes: u64,
    ) -> DriverResult {
        let copy = self.context.driver.table.memcpy_peer_async;
        // SAFETY: as above.
        check(unsafe { copy(to.1, to.0, from.1, from.0, bytes as usize, self.handle) })
    }

    /// Enqueues a write of `bytes` zero bytes to GPU memory at `to`.
    ///
    /// # Safety
    /// The requirements of [`upload`](Self::upload).
    pub unsafe fn clear(&self, to: u64, bytes: u64) -> DriverResult {
        // SAFETY: guaranteed by the caller.
        unsafe { self.set(to, bytes, Unit::One(0)) }
    }

    /// Fills `bytes` bytes of GPU memory at `to` with a repeated `unit` of 1, 2 or 4 bytes, in the stream's
    /// order. `to` and `bytes` must be multiples of the unit's length.
    ///
    /// # Safety
    /// The requirements of [`upload`](Self::upload).
    pub unsafe fn set(&self, to: u64, bytes: u64, unit: Unit) -> DriverResult {
        let (table, bytes) = (&self.context.driver.table, bytes as usize);
        // SAFETY: as above.
        check(unsafe {
            match unit {
                Unit::One(value) => (table.memset_d8_async)(to, value, bytes, self.handle),
                Unit::Two(value) => (table.memset_d16_async)(to, value, bytes / 2, self.handle),
                Unit::Four(value) => (table.memset_d32_async)(to, value, bytes / 4, self.handle),
            }
        })
    }

    /// Enqueues a launch of `function` with `blocks` blocks of [`THREADS`] threads each.
    ///
    /// # Safety
    /// The arguments must match the declaration of the kernel. All addresses among them must be valid for the
    /// kernel's accesses until the launch is done.
    pub unsafe fn launch(
        &self,
        function: Function,
        blocks: u64,
        arguments: &mut [*mut c_void],
    ) -> DriverResult {
        // SAFETY: guaranteed by the caller.
        unsafe { self.launch_of(function, blocks, (THREADS, 0), arguments) }
    }

    /// Enqueues a launch of `function` with `blocks` blocks. Each block has `threads` threads, at most the
    /// number that the kernel declares, and `shared_bytes` bytes of dynamic shared memory.
    ///
    /// # Safety
    /// The requirements of [`launch`](Self::launch).
    pub unsafe fn launch_of(
        &self,
        function: Function,
        blocks: u64,
        (threads, shared_bytes): (u32, u32),
        arguments: &mut [*mut c_void],
    ) -> DriverResult {
        let (context, stream) = (&self.context, self.handle);
        // SAFETY: the stream is alive; the caller guarantees the rest.
        unsafe { launch_on(context, stream, function, blocks, (threads, shared_bytes), arguments) }
    }

    /// Returns the driver's handle of the stream, for driver calls that this type does not wrap.
    pub fn raw(&self) -> StreamHandle {
        self.handle
    }
}

/// Enqueues a launch of `function` to any stream, with `blocks` blocks; see [`Stream::launch_of`].
///
/// # Safety
/// The stream is alive, and the requirements of [`Stream::launch_of`].
pub(crate) unsafe fn launch_on(
    context: &CudaContext,
    stream: StreamHandle,
    function: Function,
    blocks: u64,
    (threads, shared_bytes): (u32, u32),
    arguments: &mut [*mut c_void],
) -> DriverResult {
    let blocks = blocks.clamp(1, i32::MAX as u64) as u32;
    let (launch, one, none) = (context.driver.table.launch_kernel, 1, null_mut());
    let arguments = arguments.as_mut_ptr();
    // SAFETY: the function is alive; the caller guarantees the rest.
    check(unsafe {
        launch(function, blocks, one, one, threads, one, one, shared_bytes, stream, arguments, none)
    })
}

impl Module {
    /// Loads a module from PTX text, which the driver compiles. The text must end with a NUL character.
    pub fn load(context: &Arc<CudaContext>, text: &str) -> DriverResult<Self> {
        assert!(text.ends_with('\0'), "the PTX text does not end with a NUL, so it is no C string");
        let mut handle = ModuleHandle::NULL;
        // SAFETY: writes one handle; the text is a C string.
        check(unsafe { (context.driver.table.module_load_data)(&raw mut handle, text.as_ptr().cast()) })?;
        Ok(Self { context: Arc::clone(context), handle })
    }

    pub fn function(&self, name: &str) -> DriverResult<Function> {
        let (mut function, name) = (Function::NULL, CString::new(name).unwrap_or_default());
        let find = self.context.driver.table.module_get_function;
        // SAFETY: writes one handle; the module is loaded and the name a C string.
        check(unsafe { find(&raw mut function, self.handle, name.as_ptr()) })?;
        Ok(function)
    }

    /// Returns the attribute `which` of `function`, a function of this module.
    pub fn attribute(&self, function: Function, which: Attribute) -> DriverResult<u32> {
        let mut value = 0;
        let ask = self.context.driver.table.function_get_attribute;
        // SAFETY: writes one integer; the function is alive.
        check(unsafe { ask(&raw mut value, which as i32, function) })?;
        Ok(value.unsigned_abs())
    }

    /// Allows launches of `function`, a function of this module, to request up to `bytes` bytes of dynamic
    /// shared memory for each block.
    pub fn allow_shared(&self, function: Function, bytes: u32) -> DriverResult {
        let (set, most) = (self.context.driver.table.function_set_attribute, c_int::try_from(bytes));
        let which = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES as c_int;
        // SAFETY: the function is alive.
        check(unsafe { set(function, which, most.unwrap_or(c_int::MAX)) })
    }

    /// Returns the number of blocks of `threads` threads of `function`, a kernel of this module, that a
    /// multiprocessor runs at once. If the driver reports an error, the result is 4.
    pub fn occupancy(&self, function: Function, threads: u32) -> u32 {
        let mut blocks = 0;
        let ask = self.context.driver.table.occupancy;
        // SAFETY: writes one integer; the function is alive.
        let asked = check(unsafe { ask(&raw mut blocks, function, threads as i32, 0) });
        if asked.is_ok() { blocks.unsigned_abs().max(1) } else { 4 }
    }
}

/// A kernel, alone in its module, so the driver compiles no other kernel at its first use.
#[derive(Debug)]
pub struct LoadedKernel {
    pub function: Function,
    module: Module,
}

impl LoadedKernel {
    /// Loads the kernel `name` from a PTX text that ends with a NUL character. The context must be current.
    pub fn load(context: &Arc<CudaContext>, text: &str, name: &str) -> DriverResult<Self> {
        let module = Module::load(context, text)?;
        Ok(Self { function: module.function(name)?, module })
    }

    /// Returns the number of blocks of [`THREADS`] threads that a multiprocessor runs concurrently.
    pub fn blocks(&self) -> u32 {
        self.module.occupancy(self.function, THREADS)
    }

    /// Allows launches that request up to `bytes` bytes of dynamic shared memory for each block.
    pub fn allow_shared(&self, bytes: u32) -> DriverResult {
        self.module.allow_shared(self.function, bytes)
    }
}
