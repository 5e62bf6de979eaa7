//! Memory of the program that is imported into a device.

use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

use backend_api::{Device, HostAllocation, HostMemory, HostSpan, Result};

/// A device's import of memory that the program owns. The drop ends the import.
#[derive(Debug)]
pub(crate) struct RegisteredMemory {
    device: Arc<dyn Device>,
    /// Present until the drop.
    host: ManuallyDrop<HostAllocation>,
}

impl RegisteredMemory {
    /// Imports the memory.
    ///
    /// # Safety
    /// The memory stays allocated until this is dropped, also if it never is. The caller keeps the rules
    /// of [`import_host`](Device::import_host) for work that names it.
    pub(crate) unsafe fn new(
        device: &Arc<dyn Device>,
        start: NonNull<u8>,
        bytes: usize,
        kind: HostMemory,
    ) -> Result<Self> {
        // SAFETY: guaranteed by the caller.
        let host = ManuallyDrop::new(unsafe { device.import_host(start, bytes, kind)? });
        Ok(Self { device: Arc::clone(device), host })
    }

    pub(crate) fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// Returns the device's place of the byte at an offset.
    pub(crate) fn at(&self, offset: u64) -> HostSpan<'_> {
        self.host.at(offset)
    }
}

impl Drop for RegisteredMemory {
    fn drop(&mut self) {
        // SAFETY: the field is not used again.
        self.device.release_host(unsafe { ManuallyDrop::take(&mut self.host) });
    }
}

/// Memory of the program that one operation uses exclusively.
#[derive(Debug)]
pub(crate) struct ExclusiveMemory<'a> {
    start: NonNull<u8>,
    len: usize,
    lent: PhantomData<&'a mut [u8]>,
}

impl ExclusiveMemory<'_> {
    /// Creates a value for exclusive access to the `len` bytes from `start` on.
    ///
    /// # Safety
    /// The bytes are writable, and no other code accesses them as long as the value exists.
    pub unsafe fn new(start: NonNull<u8>, len: usize) -> Self {
        Self { start, len, lent: PhantomData }
    }

    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub fn len(&self) -> usize {
        self.len
    }
}
