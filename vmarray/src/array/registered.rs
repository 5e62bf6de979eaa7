//! Memory of the program registered with devices for direct copies.

use std::collections::BTreeMap;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use backend_api::{Device, HostMemory, HostSpan};
use parking_lot::RwLock;

use crate::array::VirtualArray;
use crate::base::element::Element;
use crate::base::error::Result;
use crate::base::registered_memory::RegisteredMemory;

/// All registered memory of the process, by its start address.
static KNOWN: RwLock<BTreeMap<usize, Arc<RegisteredRange>>> = RwLock::new(BTreeMap::new());

/// A piece of memory, with its handles on some devices.
#[derive(Debug)]
pub(crate) struct RegisteredRange {
    start: usize,
    bytes: usize,
    imports: Vec<RegisteredMemory>,
}

/// A vector that the devices of an array access directly: page-locked in place.
///
/// For values in such memory, the device executes [`gather_into`](crate::views::View::gather_into) and
/// [`scatter`](crate::views::ViewMut::scatter) on uncached elements without a copy by the processor. If the
/// list of a gather is registered too, and the array exceeds twice its cache, the devices also read the list:
/// dirty pages are written back before that, and the processor only checks bounds. If an array has several
/// devices that do not [reach](backend_api::Device::reaches) each other, its copies go through the processor
/// as without registration. The type dereferences to a slice; calls may use parts of the slice.
///
/// Registering takes about a tenth of a second for each GB, so register once and reuse the memory.
/// Page-locked memory cannot be swapped out, and systems limit it.
///
/// ```
/// use vmarray::prelude::*;
///
/// let table = VirtualArray::<[f32; 128]>::new(100_000)?;
/// let mut batch = table.register(vec![[0.0; 128]; 1024])?;
/// let wanted: Vec<usize> = (0..1024).map(|i| i * 97).collect();
/// table.gather_into(&wanted, &mut batch)?;
/// batch[0][0] = 1.0;
/// table.scatter(&wanted, &batch)?;
/// assert_eq!(table.get(0)?[0], 1.0);
/// # Ok::<(), vmarray::Error>(())
/// ```
pub struct Registered<T: Element> {
    values: ManuallyDrop<Vec<T>>,
}

impl<T: Element, D: Device> VirtualArray<T, D> {
    /// Registers a vector with the devices of this array, for use as values or indices of calls. The
    /// registration is valid for all arrays on these devices.
    ///
    /// Blocks while the system locks the memory. The call does not copy the values.
    ///
    /// # Errors
    /// [`PinRefused`](backend_api::ErrorKind::PinRefused) if the system locks no more memory;
    /// [`Unsupported`](backend_api::ErrorKind::Unsupported) if a device cannot register memory.
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// let array = VirtualArray::<u64>::new(1000)?;
    /// let mut values = array.register(vec![1; 3])?;
    /// array.gather_into(&[5, 6, 7], &mut values)?;
    /// assert_eq!(values[..], [0; 3]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn register<U: Element>(&self, mut values: Vec<U>) -> Result<Registered<U>> {
        let bytes = size_of_val(&values[..]);
        // Expose the address like that of a gather's destination, so that device writes count as writes
        // through the reference passed to the gather.
        let start = values.as_mut_ptr().expose_provenance();
        let mut imports: Vec<RegisteredMemory> = Vec::new();
        if bytes > 0 {
            into_huge_pages(start, bytes);
            for channel in self.pager().channels() {
                let device = channel.device();
                if imports.iter().any(|import| Arc::ptr_eq(import.device(), device)) {
                    continue;
                }
                let address = NonNull::new(std::ptr::with_exposed_provenance_mut(start))
                    .expect("the address of a vector is never null");
                // SAFETY: the vector does not move until `Registered` returns it, after the devices have
                // released it. Work on it belongs to calls that borrow it, mutably if the work writes.
                imports.push(unsafe { RegisteredMemory::new(device, address, bytes, HostMemory::Pinned)? });
            }
            KNOWN.write().insert(start, Arc::new(RegisteredRange { start, bytes, imports }));
        }
        Ok(Registered { values: ManuallyDrop::new(values) })
    }
}

/// Asks the system to merge a vector's memory into huge pages before locking: a GPU then maps 2 MiB by one
/// table entry instead of 512. Advice only, at the cost of one copy of the bytes.
fn into_huge_pages(start: usize, bytes: usize) {
    #[cfg(target_os = "linux")]
    {
        const HUGE: usize = 2 << 20;
        /// From `linux/mman.h` since 6.1; `libc` defines it for glibc only. Older systems refuse it.
        const MADV_COLLAPSE: libc::c_int = 25;
        let (first, end) = (start.next_multiple_of(HUGE), (start + bytes) / HUGE * HUGE);
        if first < end {
            let memory = std::ptr::with_exposed_provenance_mut(first);
            // SAFETY: the range is in the vector's memory. The call changes its physical pages, and neither
            // addresses nor contents.
            unsafe { libc::madvise(memory, end - first, MADV_COLLAPSE) };
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (start, bytes);
}

impl<T: Element> Registered<T> {
    /// Releases the registration and returns the vector.
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// let array = VirtualArray::<u64>::new(100)?;
    /// assert_eq!(array.register(vec![1, 2, 3])?.into_vec(), [1, 2, 3]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    #[must_use]
    pub fn into_vec(self) -> Vec<T> {
        let mut this = ManuallyDrop::new(self);
        this.forget();
        // SAFETY: neither the field nor `self` is used again.
        unsafe { ManuallyDrop::take(&mut this.values) }
    }

    fn forget(&mut self) {
        // No call uses the memory now, because calls borrow `self`.
        KNOWN.write().remove(&self.values.as_ptr().addr());
    }
}

impl<T: Element> Drop for Registered<T> {
    fn drop(&mut self) {
        self.forget();
        // SAFETY: the field is not used again.
        unsafe { ManuallyDrop::drop(&mut self.values) };
    }
}

impl<T: Element> Deref for Registered<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.values
    }
}

impl<T: Element> DerefMut for Registered<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.values
    }
}

impl<T: Element> fmt::Debug for Registered<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registered").field("len", &self.values.len()).finish_non_exhaustive()
    }
}

/// The registered memory of values, if any.
pub(crate) fn find(address: *const u8, bytes: usize) -> Option<Arc<RegisteredRange>> {
    let known = KNOWN.read();
    let (_, range) = known.range(..=address.addr()).next_back()?;
    let offset = address.addr() - range.start;
    (offset + bytes <= range.bytes).then(|| Arc::clone(range))
}

impl RegisteredRange {
    fn import(&self, device: &Arc<dyn Device>) -> Option<&RegisteredMemory> {
        self.imports.iter().find(|import| Arc::ptr_eq(import.device(), device))
    }

    pub(crate) fn is_known_to(&self, device: &Arc<dyn Device>) -> bool {
        self.import(device).is_some()
    }

    /// The place of an address on a device; `None` if the device does not know it.
    pub(crate) fn span(&self, device: &Arc<dyn Device>, address: usize) -> Option<HostSpan<'_>> {
        Some(self.import(device)?.at((address - self.start) as u64))
    }
}
