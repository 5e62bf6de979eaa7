//! A competitor of the array: CUDA managed memory, which the driver migrates between the host and a GPU.

use super::elements::Payload;
use super::setup::Setup;
use anyhow::Result;
use cudarc::driver::{CudaContext, result, sys};
use std::marker::PhantomData;
use std::sync::Arc;
use vmarray::device::Device;

/// Elements in CUDA managed memory, which migrates between the first GPU and RAM.
pub struct ManagedMemory<T> {
    context: Arc<CudaContext>,
    pointer: sys::CUdeviceptr,
    len: usize,
    marker: PhantomData<T>,
}

// SAFETY: the memory may be read by any thread; nothing writes to it after `new`.
unsafe impl<T: Sync> Sync for ManagedMemory<T> {}

impl<T: Payload> ManagedMemory<T> {
    /// Allocates about `bytes` bytes, on the first GPU. Returns `None` if no device of `setup` is a CUDA GPU,
    /// or if the GPU has no managed memory.
    pub fn new(setup: &Setup, bytes: usize) -> Result<Option<Self>> {
        // SAFETY: checks whether the driver's library can be loaded.
        let present = unsafe { sys::is_culib_present() };
        if !present || setup.devices.iter().all(|device| device.info().backend != "cuda") {
            return Ok(None);
        }
        let context = CudaContext::new(0)?;
        let supported = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS;
        if context.attribute(supported)? == 0 {
            return Ok(None);
        }
        let len = bytes / size_of::<T>();
        let attach = sys::CUmemAttach_flags::CU_MEM_ATTACH_GLOBAL;
        // SAFETY: the context is current on this thread since its creation; the memory is written to
        // before it is read.
        let pointer = unsafe { result::malloc_managed(len * size_of::<T>(), attach)? };
        let memory = Self { context, pointer, len, marker: PhantomData };
        // SAFETY: managed memory is memory of the host, too; it has this length, is aligned to pages, and
        // belongs to this value alone.
        let elements = unsafe { std::slice::from_raw_parts_mut(pointer as *mut T, len) };
        elements.iter_mut().enumerate().for_each(|(index, element)| *element = T::of(index));
        memory.forget()?;
        Ok(Some(memory))
    }

    /// Moves all data to the GPU, so that no page is in RAM.
    pub fn forget(&self) -> Result<()> {
        self.context.bind_to_thread()?;
        let location = sys::CUmemLocation {
            type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
            id: self.context.ordinal() as i32,
        };
        // SAFETY: the range is that of the allocation; the null stream belongs to the context, which is
        // current.
        unsafe {
            result::mem_prefetch_async(
                self.pointer,
                self.len * size_of::<T>(),
                location,
                std::ptr::null_mut(),
            )?;
        }
        Ok(self.context.synchronize()?)
    }

    /// Returns the elements. A page that is not in RAM migrates from the GPU at its first use.
    pub fn slice(&self) -> &[T] {
        // SAFETY: as in `new`; no code writes to it any more.
        unsafe { std::slice::from_raw_parts(self.pointer as *const T, self.len) }
    }
}

impl<T> Drop for ManagedMemory<T> {
    fn drop(&mut self) {
        // If the context cannot be bound, it has been destroyed before, and its memory is already free.
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: this is the only owner, and all slices of it were dropped.
            let _ = unsafe { result::free_sync(self.pointer) };
        }
    }
}
