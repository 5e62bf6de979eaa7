//! Pinned and pageable host memory: the source and target of a device's copies.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use backend_api::{Error, ErrorKind, HostMemory, Result};

use crate::error;
use crate::memory::{LockedMemory, Map, Wiping, system_memory};

#[derive(Debug)]
pub(crate) struct HostMemoryPiece {
    address: NonNull<u8>,
    bytes: usize,
    kind: HostMemory,
    /// Switch for wiping; `None` for memory of the program, which the device does not wipe.
    wiping: Option<Arc<Wiping>>,
    // Drop order: unlock the memory, then unmap it.
    _pin: Option<Pin>,
    _map: Option<Map>,
}

impl Drop for HostMemoryPiece {
    fn drop(&mut self) {
        if let Some(wiping) = &self.wiping {
            // SAFETY: the memory belongs to this device, and was zeroed at its creation. No work is in flight
            // on it, because such work would also own this piece.
            unsafe { wiping.wipe(self.at(0), self.bytes) };
        }
    }
}

// SAFETY: an address and its owners, all of which any thread may use and drop. Accesses through the address
// have their own obligations.
unsafe impl Send for HostMemoryPiece {}
// SAFETY: as above.
unsafe impl Sync for HostMemoryPiece {}

impl HostMemoryPiece {
    /// Address of the first byte of the host memory.
    pub fn address(&self) -> NonNull<u8> {
        self.address
    }

    /// Address of byte `offset` of the host memory.
    #[inline]
    pub fn at(&self, offset: u64) -> *mut u8 {
        // This cast is exact, because the offset was checked to be inside of existing memory.
        self.address.as_ptr().wrapping_add(offset as usize)
    }

    /// Length of the host memory in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Kind of the host memory: page-locked or pageable.
    pub fn kind(&self) -> HostMemory {
        self.kind
    }
}

/// Limit and amount of page-locked memory of a device.
#[derive(Debug)]
pub(crate) struct Pinning {
    max_bytes: u64,
    used_bytes: AtomicU64,
    wiping: Arc<Wiping>,
}

#[derive(Debug)]
struct Pin {
    pinning: Arc<Pinning>,
    bytes: u64,
    _locked: LockedMemory,
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.pinning.used_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Pinning {
    /// Creates a counter of page-locked bytes with the limit `max_bytes`; the system's limit applies too.
    pub fn new(max_bytes: u64) -> Arc<Self> {
        Arc::new(Self { max_bytes, used_bytes: AtomicU64::new(0), wiping: Arc::default() })
    }

    /// Returns the switch for wiping of released memory, with its counter of wiped bytes.
    pub fn wiping(&self) -> &Arc<Wiping> {
        &self.wiping
    }

    /// Allocates zeroed host memory.
    pub fn allocate(self: &Arc<Self>, bytes: usize, kind: HostMemory) -> Result<HostMemoryPiece> {
        const OPERATION: &str = "allocate_host";
        let refuse = |available: u64| {
            let refusal = match kind {
                HostMemory::Pinned => ErrorKind::PinRefused,
                _ => ErrorKind::OutOfMemory,
            };
            Error::new(refusal, OPERATION).with_bytes(bytes as u64).with_available_bytes(available)
        };
        // Check the free RAM: the system returns any number of addresses, and kills the program when it uses
        // them. Small requests do not justify the query.
        const ASK_FROM_BYTES: usize = 16 << 20;
        if bytes >= ASK_FROM_BYTES
            && let Ok(system) = system_memory()
            && bytes as u64 > system.usable_bytes()
        {
            return Err(refuse(system.usable_bytes())
                .with_detail("the request exceeds the free RAM")
                .with_advice("request less, or end programs that use RAM"));
        }
        let map = Map::new(bytes, true).map_err(|cause| {
            error::system(ErrorKind::OutOfMemory, OPERATION, &cause).with_bytes(bytes as u64)
        })?;
        let address = map.address();
        let pin = match kind {
            // SAFETY: the map is `bytes` long and is dropped after the pin.
            HostMemory::Pinned => Some(unsafe { self.pin(OPERATION, address, bytes) }?),
            HostMemory::Pageable => None,
            _ => return Err(Error::new(ErrorKind::Unsupported, OPERATION)),
        };
        let wiping = Some(Arc::clone(&self.wiping));
        Ok(HostMemoryPiece { address, bytes, kind, wiping, _pin: pin, _map: Some(map) })
    }

    /// Registers memory of the program as host memory for copies.
    ///
    /// # Safety
    /// The requirements of [`import_host`](backend_api::Device::import_host), until the result is dropped.
    pub unsafe fn import(
        self: &Arc<Self>,
        address: NonNull<u8>,
        bytes: usize,
        kind: HostMemory,
    ) -> Result<HostMemoryPiece> {
        const OPERATION: &str = "import_host";
        if address.addr().get().checked_add(bytes).is_none_or(|end| end > isize::MAX as usize) {
            return Err(Error::new(ErrorKind::InvalidArgument, OPERATION)
                .with_bytes(bytes as u64)
                .with_detail("the range ends outside of the address space"));
        }
        let pin = match kind {
            // SAFETY: the caller keeps the memory as long as the piece lives, and the pin is part of the
            // piece.
            HostMemory::Pinned => Some(unsafe { self.pin(OPERATION, address, bytes) }?),
            HostMemory::Pageable => None,
            _ => return Err(Error::new(ErrorKind::Unsupported, OPERATION)),
        };
        Ok(HostMemoryPiece { address, bytes, kind, wiping: None, _pin: pin, _map: None })
    }

    /// # Safety
    /// The memory must stay mapped until the pin is dropped.
    unsafe fn pin(
        self: &Arc<Self>,
        operation: &'static str,
        address: NonNull<u8>,
        bytes: usize,
    ) -> Result<Pin> {
        let wanted = bytes as u64;
        let refused = |error: Error| error.with_bytes(wanted);
        self.used_bytes
            .try_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                used.checked_add(wanted).filter(|&sum| sum <= self.max_bytes)
            })
            .map_err(|used| {
                refused(Error::new(ErrorKind::PinRefused, operation))
                    .with_available_bytes(self.max_bytes - used)
                    .with_detail("the device's limit of page-locked memory is reached")
                    .with_advice(
                        "raise `pinned_max_bytes` of the device, request less, or use HostMemory::Pageable",
                    )
            })?;
        // SAFETY: the caller has the same obligations.
        match unsafe { LockedMemory::new(address, bytes) } {
            Ok(locked) => Ok(Pin { pinning: Arc::clone(self), bytes: wanted, _locked: locked }),
            Err(cause) => {
                self.used_bytes.fetch_sub(wanted, Ordering::Relaxed);
                let mut error = refused(error::system(ErrorKind::PinRefused, operation, &cause));
                if cause.kind() == io::ErrorKind::Unsupported {
                    error = error
                        .with_advice("use HostMemory::Pageable: this system does not support page-locking");
                }
                Err(match LockedMemory::available_bytes() {
                    Some(available) => error.with_available_bytes(available),
                    None => error,
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(unix)]
    fn pinned_memory_is_limited_and_reusable_after_release() {
        let pinning = Pinning::new(10_000);
        let first = pinning.allocate(6_000, HostMemory::Pinned).unwrap();
        let error = pinning.allocate(6_000, HostMemory::Pinned).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PinRefused);
        assert_eq!((error.bytes(), error.available_bytes()), (Some(6_000), Some(4_000)));
        // The error text must not suggest to raise the limit of the system.
        let text = error.to_string();
        assert!(text.contains("; raise `pinned_max_bytes`") && !text.contains("ulimit"), "{text}");
        assert_eq!(pinning.allocate(6_000, HostMemory::Pageable).unwrap().kind(), HostMemory::Pageable);
        drop(first);
        assert_eq!(pinning.allocate(10_000, HostMemory::Pinned).unwrap().bytes(), 10_000);
    }

    #[test]
    fn more_than_there_is_is_refused_with_figures() {
        let pinning = Pinning::new(u64::MAX);
        let system = system_memory().unwrap();
        let bytes = system.total_bytes as usize;
        for (kind, refusal) in
            [(HostMemory::Pinned, ErrorKind::PinRefused), (HostMemory::Pageable, ErrorKind::OutOfMemory)]
        {
            let error = pinning.allocate(bytes, kind).unwrap_err();
            assert_eq!(error.kind(), refusal);
            assert!(!error.to_string().contains("ulimit"), "{error}");
            assert!(error.available_bytes().unwrap() < error.bytes().unwrap());
            assert!(pinning.allocate(usize::MAX / 2, kind).is_err());
        }
        assert_eq!(pinning.used_bytes.load(Ordering::Relaxed), 0);
    }

    #[test]
    #[cfg(unix)]
    fn memory_is_wiped_from_when_it_is_asked_for() {
        for kind in [HostMemory::Pageable, HostMemory::Pinned] {
            let pinning = Pinning::new(u64::MAX);
            drop(pinning.allocate(5_000, kind).unwrap());
            let had_before = pinning.allocate(5_000, kind).unwrap();
            pinning.wiping().start();
            drop((had_before, pinning.allocate(1_000, kind).unwrap()));
            assert_eq!(pinning.wiping().bytes(), 6_000);
            let mut own = [1_u8; 4096];
            // SAFETY: the array outlives the piece.
            drop(unsafe { pinning.import(NonNull::from(&mut own).cast(), 4096, HostMemory::Pageable) });
            assert_eq!((own, pinning.wiping().bytes()), ([1; 4096], 6_000));
        }
    }

    #[test]
    fn an_import_beyond_the_address_space_is_invalid() {
        let pinning = Pinning::new(u64::MAX);
        // SAFETY: the call refuses this range, and reads and writes nothing.
        let error =
            unsafe { pinning.import(NonNull::dangling(), usize::MAX, HostMemory::Pageable) }.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
}
