//! Exchange of device memory with the crate `cust` (Rust bindings to CUDA), without a copy.

mod forward;

use std::ffi::{c_int, c_void};
use std::mem::ManuallyDrop;
use std::sync::Arc;

use backend_api::{BufferHandle, DeviceSpan, Error, ErrorKind, Extents, QueueHandle, Result, Ticket};
use bytemuck::AnyBitPattern;
use cudarc::driver::sys::CUpointer_attribute_enum as Attribute;
use cust::memory::{DeviceBuffer, DevicePointer, DeviceSlice};

use crate::CudaDevice;
use crate::context::CudaContext;
use crate::driver::{ContextHandle, check, driver};
use crate::memory::DeviceMemory;
use crate::options::CudaOptions;

/// Interoperation with `cust` (feature `cust`). A program that changed memory in a stream of `cust` must
/// synchronise that stream first, because queues of a device are not ordered with other streams.
impl CudaDevice {
    /// Opens the GPU of a context of `cust`. The device uses that context.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open).
    pub fn from_cust(context: &cust::context::Context, options: &CudaOptions) -> Result<Self> {
        const OPERATION: &str = "from_cust";
        let driver = driver().map_err(|missing| missing.error(OPERATION))?;
        // SAFETY: the caller keeps the context during this call.
        let ordinal = unsafe { CudaContext::adopted(driver, ContextHandle(context.as_raw().cast())) }
            .map_err(|code| code.error_of(ErrorKind::Driver, OPERATION))?
            .ordinal();
        // `cust` uses the GPU's primary context. The device retains it as well.
        Self::open_with(ordinal.unsigned_abs(), options)
    }

    /// Takes over memory of `cust`, without a copy. The program then uses and releases it like memory of
    /// [`allocate`].
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) if the memory belongs to another GPU or context; or
    /// the driver's error. After an error the memory is freed.
    ///
    /// [`allocate`]: backend_api::Device::allocate
    pub fn import_cust<T: cust::memory::DeviceCopy>(&self, buffer: DeviceBuffer<T>) -> Result<BufferHandle> {
        let (address, bytes) = self.extent("import_cust", &buffer)?;
        // From here on this crate owns the memory, and frees it by the same driver call as `cust`.
        let _buffer = ManuallyDrop::new(buffer);
        Ok(self.core.memory.add_device(DeviceMemory::given(&self.core.context, address, bytes)))
    }

    /// Passes memory of the device to `cust`, without a copy. Blocks until submitted work that accesses the
    /// memory is done. When the program drops the result, the context must be current, as for all memory of
    /// `cust`.
    ///
    /// # Errors
    /// [`UnknownHandle`](ErrorKind::UnknownHandle); [`Lost`](ErrorKind::Lost);
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) if the length in bytes is not a multiple of an
    /// element's length, or if the memory can be extended. After an error the device still owns the memory,
    /// and the error contains its handle.
    pub fn export_cust<T: cust::memory::DeviceCopy + AnyBitPattern>(
        &self,
        buffer: BufferHandle,
    ) -> std::result::Result<DeviceBuffer<T>, (Error, BufferHandle)> {
        self.try_export(&buffer).map_err(|error| (error, buffer))
    }

    /// Exports as [`export_cust`](Self::export_cust) does; after a success the handle is unknown.
    fn try_export<T: cust::memory::DeviceCopy + AnyBitPattern>(
        &self,
        buffer: &BufferHandle,
    ) -> Result<DeviceBuffer<T>> {
        const OPERATION: &str = "export_cust";
        self.core.check_lost(OPERATION)?;
        let unknown = || {
            let error = Error::new(ErrorKind::UnknownHandle, OPERATION);
            self.core.here(error.with_detail("the buffer is released, or belongs to another device"))
        };
        let bytes = self.core.memory.lookup().device_bytes(buffer.id()).ok_or_else(unknown)?;
        let each = size_of::<T>() as u64;
        if each == 0 || !bytes.is_multiple_of(each) {
            let detail = format!("{bytes} bytes are not a multiple of the element size of {each} bytes");
            let error =
                Error::new(ErrorKind::InvalidArgument, OPERATION).with_bytes(bytes).with_detail(detail);
            return Err(self.core.here(error));
        }
        let is_extensible = |memory: Arc<DeviceMemory>| memory.reserved().is_some();
        if self.core.memory.device(buffer.id()).is_some_and(is_extensible) {
            let detail = "memory that can be extended cannot be exported, because `cust` cannot free it";
            return Err(self
                .core
                .here(Error::new(ErrorKind::InvalidArgument, OPERATION).with_detail(detail)));
        }
        let memory = self.core.memory.remove_device(buffer.id()).ok_or_else(unknown)?;
        self.core.block_all();
        memory.await_visitors();
        let pointer = DevicePointer::from_raw(memory.give());
        // SAFETY: the memory came from the driver, which aligns it to 256 bytes, has this length, and has
        // no other owner now; any bytes are a value of the type.
        Ok(unsafe { DeviceBuffer::from_raw_parts(pointer, (bytes / each) as usize) })
    }

    /// Enqueues a copy of all of `from`, which is memory of `cust`, to device memory at `to`.
    ///
    /// # Errors
    /// The errors of [`submit`](backend_api::Device::submit), and
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for memory of another GPU or context.
    ///
    /// # Safety
    /// Until the submission is done, `from` must stay allocated, and no code may write to it.
    pub unsafe fn copy_from_cust<T: cust::memory::DeviceCopy>(
        &self,
        queue: &QueueHandle,
        from: &DeviceSlice<T>,
        to: DeviceSpan<'_>,
    ) -> Result<Ticket> {
        // SAFETY: guaranteed by the caller.
        unsafe { self.copy_cust(queue, from, to, false) }
    }

    /// Enqueues a copy of device memory, which starts at `from`, to all of `to`, which is memory of `cust`.
    ///
    /// # Errors
    /// The errors of [`copy_from_cust`](Self::copy_from_cust).
    ///
    /// # Safety
    /// Until the copy is done, `to` must stay allocated, and no other code may read or write it. The bytes
    /// must be values of `T`.
    pub unsafe fn copy_to_cust<T: cust::memory::DeviceCopy>(
        &self,
        queue: &QueueHandle,
        from: DeviceSpan<'_>,
        to: &mut DeviceSlice<T>,
    ) -> Result<Ticket> {
        // SAFETY: guaranteed by the caller.
        unsafe { self.copy_cust(queue, to, from, true) }
    }

    /// # Safety
    /// The requirements of [`copy_from_cust`](Self::copy_from_cust) and
    /// [`copy_to_cust`](Self::copy_to_cust).
    unsafe fn copy_cust<T: cust::memory::DeviceCopy>(
        &self,
        queue: &QueueHandle,
        theirs: &DeviceSlice<T>,
        ours: DeviceSpan<'_>,
        is_export: bool,
    ) -> Result<Ticket> {
        const OPERATION: &str = "submit";
        let (address, bytes) = self.extent(OPERATION, theirs)?;
        let names = self.core.memory.lookup();
        names.check_device(OPERATION, ours, bytes).map_err(|error| self.core.here(error))?;
        let ours = names.device_address(ours);
        let (to, from) = if is_export { (address, ours) } else { (ours, address) };
        self.core.enqueue(OPERATION, queue.id(), |work| {
            if bytes == 0 {
                return Ok(());
            }
            // SAFETY: this device's range was checked, and `names` keeps it until the work is submitted;
            // the caller guarantees the other.
            unsafe { work.stream().copy(to, from, bytes) }
        })
    }

    /// Returns the address and the bytes of memory of `cust`; an error if it belongs to another context.
    fn extent<T: cust::memory::DeviceCopy>(
        &self,
        operation: &'static str,
        slice: &DeviceSlice<T>,
    ) -> Result<(u64, u64)> {
        let bytes = (slice.len() * size_of::<T>()) as u64;
        if bytes == 0 {
            return Ok((0, 0));
        }
        let address = slice.as_device_ptr().as_raw();
        let core = &self.core;
        let _current = core.enter(operation)?;
        let ask = core.context.driver.table.pointer_get_attribute;
        let mut context = ContextHandle::NULL;
        let mut ordinal: c_int = -1;
        let room = [(&raw mut context).cast::<c_void>(), (&raw mut ordinal).cast()];
        // SAFETY: each call writes a value of a type that its pointer has room for.
        unsafe {
            check(ask(room[0], Attribute::CU_POINTER_ATTRIBUTE_CONTEXT as c_int, address)).and_then(|()| {
                check(ask(room[1], Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL as c_int, address))
            })
        }
        .map_err(|code| core.error(operation, code))?;
        // Memory of the driver's pools belongs to no context, so the driver reports a null context for it.
        let is_ours = context == core.context.handle() || context == ContextHandle::NULL;
        if !is_ours || ordinal != core.context.ordinal() {
            let error = Error::new(ErrorKind::InvalidArgument, operation)
                .with_bytes(bytes)
                .with_detail("the memory belongs to another context; open a device for that context");
            return Err(core.here(error));
        }
        Ok((address, bytes))
    }
}
