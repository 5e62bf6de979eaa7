//! Memory of the program that is registered with a device: page-locked, for direct copies.

use std::collections::BTreeMap;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use backend_api::{Device, HostAllocation, HostMemory, HostSpan, Result};
use parking_lot::RwLock;

use super::element::Element;
use super::racy_slice::{ExclusiveMemory, RacySlice};
use super::scratch_pool::ScratchVec;

/// The registration of the program's memory with a device. Its drop ends the registration.
#[derive(Debug)]
pub(crate) struct RegisteredMemory {
    device: Arc<dyn Device>,
    /// Always present before the drop.
    host: ManuallyDrop<HostAllocation>,
}

impl RegisteredMemory {
    /// Registers the memory with the device.
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

    /// Returns the device's handle of the byte at an offset of the memory.
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

/// The kind of registration for vectors. Miri locks no pages.
const VECTOR_KIND: HostMemory = if cfg!(miri) { HostMemory::Pageable } else { HostMemory::Pinned };

/// The registered vectors of the process, by the start of their memory.
static KNOWN: RwLock<BTreeMap<usize, Arc<RegisteredRange>>> = RwLock::new(BTreeMap::new());

/// The memory of a registered vector, with its handles on some devices.
#[derive(Debug)]
pub(crate) struct RegisteredRange {
    start: usize,
    bytes: usize,
    imports: Vec<RegisteredMemory>,
}

impl RegisteredRange {
    /// Returns the registered memory that contains the bytes at an address, if any. The caller must borrow
    /// the values while it uses the result.
    pub(crate) fn find(address: usize, bytes: usize) -> Option<Arc<Self>> {
        let known = KNOWN.read();
        let (_, range) = known.range(..=address).next_back()?;
        let end = (address - range.start).checked_add(bytes)?;
        (end <= range.bytes).then(|| Arc::clone(range))
    }

    fn import(&self, device: &Arc<dyn Device>) -> Option<&RegisteredMemory> {
        self.imports.iter().find(|import| Arc::ptr_eq(import.device(), device))
    }

    pub(crate) fn is_known_to(&self, device: &Arc<dyn Device>) -> bool {
        self.import(device).is_some()
    }

    /// Returns the handle of an address on a device; `None` if the memory is not registered with the device.
    pub(crate) fn span(&self, device: &Arc<dyn Device>, address: usize) -> Option<HostSpan<'_>> {
        Some(self.import(device)?.at((address - self.start) as u64))
    }
}

/// A vector that is registered with devices. The registration ends before the vector is freed or returned.
#[derive(Debug)]
pub(crate) struct RegisteredVec<T> {
    // Declared first, so that Rust drops the registration before the values.
    registration: Option<VectorRegistration>,
    values: Vec<T>,
}

/// An entry in the list of registered vectors, which its drop removes.
#[derive(Debug)]
struct VectorRegistration {
    start: usize,
}

impl Drop for VectorRegistration {
    fn drop(&mut self) {
        // No call uses the memory now, because a call borrows the vector.
        KNOWN.write().remove(&self.start);
    }
}

impl<T: Element> RegisteredVec<T> {
    /// Registers a vector with each of the devices once.
    pub(crate) fn new<'a>(
        mut values: Vec<T>,
        devices: impl Iterator<Item = &'a Arc<dyn Device>>,
    ) -> Result<Self> {
        let bytes = size_of_val(&values[..]);
        if bytes == 0 {
            return Ok(Self { registration: None, values });
        }
        // Expose the address; a gather does the same with its destination. Rust's aliasing rules then treat
        // writes by devices through this address as writes through the gather's reference.
        let start = values.as_mut_ptr().expose_provenance();
        let address = NonNull::new(std::ptr::with_exposed_provenance_mut(start))
            .expect("the address of a vector is never null");
        let mut imports: Vec<RegisteredMemory> = Vec::new();
        for device in devices {
            if imports.iter().any(|import| Arc::ptr_eq(import.device(), device)) {
                continue;
            }
            // SAFETY: this type owns the vector, does not change its length, and frees it after the devices
            // have released it. Work on it belongs to calls that borrow it, mutably if the work writes.
            imports.push(unsafe { RegisteredMemory::new(device, address, bytes, VECTOR_KIND)? });
        }
        KNOWN.write().insert(start, Arc::new(RegisteredRange { start, bytes, imports }));
        Ok(Self { registration: Some(VectorRegistration { start }), values })
    }

    /// Ends the registration.
    pub(crate) fn into_vec(self) -> Vec<T> {
        let Self { registration, values } = self;
        drop(registration);
        values
    }
}

impl<T> Deref for RegisteredVec<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.values
    }
}

impl<T> DerefMut for RegisteredVec<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.values
    }
}

/// Scratch memory that threads access by racy copies, and that can be registered with devices.
pub(crate) struct RegisteredScratch {
    // Declared first, so that Rust ends the registrations before it frees the memory.
    imports: Vec<RegisteredMemory>,
    start: NonNull<u8>,
    bytes: usize,
    /// The memory, which this type accesses by its address only.
    _memory: ScratchVec<u64>,
}

impl RegisteredScratch {
    /// Returns memory of `bytes` bytes with unspecified contents.
    pub(crate) fn new(bytes: usize) -> crate::base::error::Result<Self> {
        let mut memory = ScratchVec::<u64>::unspecified(bytes.div_ceil(size_of::<u64>()))?;
        let (start, bytes) = (NonNull::from(&mut *memory).cast(), memory.len() * size_of::<u64>());
        Ok(Self { imports: Vec::new(), start, bytes, _memory: memory })
    }

    /// Registers the memory with one more device, page-locked if possible.
    pub(crate) fn register(&mut self, device: &Arc<dyn Device>) -> Result<()> {
        // SAFETY: the memory has this length, and this type frees it after the imports. Threads access it by
        // racy copies.
        let import = |kind| unsafe { RegisteredMemory::new(device, self.start, self.bytes, kind) };
        let import = import(HostMemory::Pinned).or_else(|_| import(HostMemory::Pageable))?;
        self.imports.push(import);
        Ok(())
    }

    /// Returns the memory, and its registrations in their order.
    pub(crate) fn parts(&mut self) -> (RacySlice<'_, u8>, &[RegisteredMemory]) {
        // SAFETY: the memory has this length, and is borrowed exclusively.
        let memory = unsafe { ExclusiveMemory::new(self.start, self.bytes) };
        (memory.into(), &self.imports)
    }
}

#[cfg(test)]
mod tests {
    use backend_api::{Commit, DeviceBuffer, Queue, Transfer};
    use backend_host::HostDevice;

    use super::*;

    fn device() -> (Arc<dyn Device>, Queue<dyn Device>, DeviceBuffer<dyn Device>) {
        let device: Arc<dyn Device> =
            Arc::new(HostDevice::builder().bytes(1 << 20).threads(1).build().unwrap());
        let buffer = DeviceBuffer::new(&device, 64, Commit::Lazy).unwrap();
        (Arc::clone(&device), Queue::new(&device).unwrap(), buffer)
    }

    #[test]
    fn devices_access_a_registered_vector_until_its_end() {
        let (device, queue, buffer) = device();
        let mut values = RegisteredVec::new(vec![1_u32, 2, 3, 4], std::iter::repeat_n(&device, 2)).unwrap();
        values[1] = 7;
        let start = values.as_ptr().addr();
        let range = RegisteredRange::find(start + 4, 12).unwrap();
        assert!(RegisteredRange::find(start + 4, 13).is_none());
        assert!(RegisteredRange::find(start + 4, usize::MAX).is_none());
        let at = |address| range.span(&device, address).unwrap();
        let up = Transfer::Upload { from: at(start + 4), to: buffer.at(0), bytes: 12 };
        let down = Transfer::Download { from: buffer.at(0), to: at(start), bytes: 12 };
        queue.submit(&[up]).unwrap();
        device.wait(queue.submit(&[down]).unwrap()).unwrap();
        drop(range);
        assert_eq!(values[..], [7, 3, 4, 4]);
        assert_eq!(values.into_vec(), [7, 3, 4, 4]);
        assert!(RegisteredRange::find(start, 1).is_none());
        assert!(RegisteredVec::new(Vec::<u8>::new(), [&device].into_iter()).unwrap().is_empty());
    }

    #[test]
    fn threads_and_devices_access_scratch_memory() {
        let (device, queue, buffer) = device();
        let mut scratch = RegisteredScratch::new(60).unwrap();
        scratch.register(&device).unwrap();
        let (memory, imports) = scratch.parts();
        assert_eq!((memory.len(), imports.len()), (64, 1));
        memory.write(0, &[1, 2, 3]);
        let up = Transfer::Upload { from: imports[0].at(1), to: buffer.at(0), bytes: 2 };
        let down = Transfer::Download { from: buffer.at(0), to: imports[0].at(62), bytes: 2 };
        queue.submit(&[up]).unwrap();
        device.wait(queue.submit(&[down]).unwrap()).unwrap();
        let mut read = [0; 2];
        scratch.parts().0.read(62, &mut read);
        assert_eq!(read, [2, 3]);
    }
}
