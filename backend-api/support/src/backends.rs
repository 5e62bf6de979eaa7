//! Parts of devices that several backends use: tables of buffers by id, byte counts, wakers, identities.

pub mod copies;
pub mod ram;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;

use crate::IdMap;
use backend_api::{
    BufferHandle, BufferId, Error, ErrorKind, Extents, HostAllocation, HostId, Request, Result,
};

/// The table of a device's allocations: maps ids to buffers (`B`) and host allocations (`H`) with lengths.
#[derive(Debug)]
pub struct MemoryTable<B, H> {
    buffers: IdMap<BufferId, (u64, Arc<B>)>,
    hosts: IdMap<HostId, (u64, Arc<H>)>,
}

impl<B, H> Default for MemoryTable<B, H> {
    fn default() -> Self {
        Self { buffers: IdMap::default(), hosts: IdMap::default() }
    }
}

impl<B, H> MemoryTable<B, H> {
    /// Adds a buffer of `bytes` bytes. Returns its new handle.
    pub fn add_buffer(&mut self, bytes: u64, buffer: Arc<B>) -> BufferHandle {
        let handle = BufferHandle::unique();
        self.buffers.insert(handle.id(), (bytes, buffer));
        handle
    }

    /// Adds a host allocation to the table.
    pub fn add_host(&mut self, handle: &HostAllocation, piece: Arc<H>) {
        self.hosts.insert(handle.id(), (handle.bytes() as u64, piece));
    }

    /// Replaces a buffer by its extended version of `bytes` bytes. Later look-ups return the new version.
    ///
    /// # Errors
    /// [`UnknownHandle`](ErrorKind::UnknownHandle) if the buffer is not in the table.
    pub fn extend_buffer(&mut self, handle: &BufferHandle, bytes: u64, buffer: Arc<B>) -> Result<()> {
        self.buffer("extend", handle.id())?;
        self.buffers.insert(handle.id(), (bytes, buffer));
        Ok(())
    }

    /// Removes a buffer, so that no later request can use it. Returns the buffer, if it was in the table.
    pub fn remove_buffer(&mut self, handle: &BufferHandle) -> Option<Arc<B>> {
        self.buffers.remove(&handle.id()).map(|(_, buffer)| buffer)
    }

    /// Removes a host allocation. Returns the allocation, if it was in the table.
    pub fn remove_host(&mut self, handle: &HostAllocation) -> Option<Arc<H>> {
        self.hosts.remove(&handle.id()).map(|(_, piece)| piece)
    }

    /// Returns the buffer with this id.
    ///
    /// # Errors
    /// [`UnknownHandle`](ErrorKind::UnknownHandle) if the buffer is not in the table.
    pub fn buffer(&self, operation: &'static str, id: BufferId) -> Result<&Arc<B>> {
        let unknown = || {
            Error::new(ErrorKind::UnknownHandle, operation)
                .with_detail("the buffer is released, or belongs to another device")
        };
        self.buffers.get(&id).map(|(_, buffer)| buffer).ok_or_else(unknown)
    }

    /// Returns the host allocation with this id.
    ///
    /// # Errors
    /// [`UnknownHandle`](ErrorKind::UnknownHandle) in `operation` if the allocation is not in the table.
    pub fn host(&self, operation: &'static str, id: HostId) -> Result<&Arc<H>> {
        let unknown = || {
            Error::new(ErrorKind::UnknownHandle, operation)
                .with_detail("the host memory is released, or belongs to another device")
        };
        self.hosts.get(&id).map(|(_, piece)| piece).ok_or_else(unknown)
    }

    /// Returns all buffers and all host allocations of the table.
    pub fn all(self) -> (impl Iterator<Item = Arc<B>>, impl Iterator<Item = Arc<H>>) {
        let buffers = self.buffers.into_values().map(|(_, buffer)| buffer);
        (buffers, self.hosts.into_values().map(|(_, piece)| piece))
    }
}

impl<B, H> Extents for MemoryTable<B, H> {
    fn device_bytes(&self, buffer: BufferId) -> Option<u64> {
        self.buffers.get(&buffer).map(|(bytes, _)| *bytes)
    }

    fn host_bytes(&self, host: HostId) -> Option<u64> {
        self.hosts.get(&host).map(|(bytes, _)| *bytes)
    }
}

/// Checks the arguments of an allocation of `bytes` bytes that can grow to `most` bytes.
///
/// # Errors
/// [`InvalidArgument`](ErrorKind::InvalidArgument) if `most` is less than `bytes`.
pub fn check_extensible(bytes: u64, most: u64) -> Result<()> {
    if bytes <= most {
        return Ok(());
    }
    Err(Error::new(ErrorKind::InvalidArgument, "allocate_extensible")
        .with_bytes(bytes)
        .with_detail(format!("the initial length exceeds the limit of {most} bytes")))
}

/// Returns true if memory of `now` bytes must grow to hold `bytes` bytes. `most` is the maximum length.
///
/// # Errors
/// [`TooLarge`](ErrorKind::TooLarge) if `bytes` exceeds both `most` and `now`.
pub fn check_extend(now: u64, bytes: u64, most: u64) -> Result<bool> {
    if bytes > most.max(now) {
        return Err(Error::new(ErrorKind::TooLarge, "extend").with_bytes(bytes).with_available_bytes(most));
    }
    Ok(bytes > now)
}

/// A counter of the allocated bytes of a device.
#[derive(Debug, Default)]
pub struct Account(AtomicU64);

/// A number of bytes that an [`Account`] counts as allocated, until this object is dropped.
#[derive(Debug)]
pub struct AccountShare {
    account: Arc<Account>,
    bytes: u64,
}

impl Account {
    /// Returns the number of allocated bytes.
    #[must_use]
    pub fn taken_bytes(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Counts `bytes` more bytes as allocated, until the caller drops the returned [`AccountShare`].
    ///
    /// `most` is the device's capacity in bytes. `available` must return the number of free bytes, given the
    /// number of allocated bytes.
    ///
    /// # Errors
    /// [`TooLarge`](ErrorKind::TooLarge) for more than `most` bytes, [`OutOfMemory`](ErrorKind::OutOfMemory)
    /// for more bytes than are available; both with the numbers of bytes.
    pub fn take(
        self: &Arc<Self>,
        bytes: u64,
        most: u64,
        available: impl Fn(u64) -> u64,
    ) -> Result<AccountShare> {
        let refused =
            |kind, available| Error::new(kind, "allocate").with_bytes(bytes).with_available_bytes(available);
        if bytes > most {
            return Err(refused(ErrorKind::TooLarge, most));
        }
        let take = |taken: u64| taken.checked_add(bytes).filter(|_| bytes <= available(taken));
        self.0
            .try_update(Ordering::AcqRel, Ordering::Acquire, take)
            .map_err(|taken| refused(ErrorKind::OutOfMemory, available(taken)))?;
        Ok(AccountShare { account: Arc::clone(self), bytes })
    }
}

impl Drop for AccountShare {
    fn drop(&mut self) {
        self.account.0.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

/// The direction of a copy of elements by index: a gather (to the host) or a scatter (to the device).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexedDirection {
    /// Copies from the device to the host.
    Gather,
    /// Copies from the host to the device.
    Scatter,
}

impl IndexedDirection {
    /// Returns the direction of a gather or a scatter request.
    #[must_use]
    pub fn of(request: &Request<'_>) -> Self {
        if matches!(request, Request::Scatter(_)) { Self::Scatter } else { Self::Gather }
    }

    /// Name of the operation, for errors.
    #[must_use]
    pub fn operation(self) -> &'static str {
        match self {
            Self::Gather => "gather",
            Self::Scatter => "scatter",
        }
    }
}

/// Advice for errors if the driver refuses to page-lock memory. It does not mention the system's limit of
/// locked memory, because that limit applies only to pages that the process itself locks.
pub const PIN_ADVICE: &str = "request less, release pinned memory, or use HostMemory::Pageable";

/// Calls all wakers, and logs panics. The caller must hold no lock, because wakers can run any code.
pub fn wake_all(due: impl IntoIterator<Item = Waker>) {
    for waker in due {
        if catch_unwind(AssertUnwindSafe(|| waker.wake())).is_err() {
            tracing::error!("a waker panicked");
        }
    }
}

/// Returns a GPU's identity, which is the same in all backends, and its other names (aliases).
///
/// The identity is the PCI address, else the UUID, else `otherwise`. The alias is the UUID, if it is not the
/// identity.
#[must_use]
pub fn identity(pci: Option<&str>, uuid: Option<&[u8; 16]>, otherwise: String) -> (String, Vec<String>) {
    let pci = pci.map(|address| format!("pci:{address}"));
    let mut names = pci.into_iter().chain(uuid.map(backend_api::uuid_text));
    (names.next().unwrap_or(otherwise), names.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_is_named_by_its_address_before_all_else() {
        let (pci, uuid) = (Some("0000:01:00.0"), Some(&[0x11; 16]));
        let uuid_name = backend_api::uuid_text(&[0x11; 16]);
        let other = || "cuda:0".to_owned();
        assert_eq!(identity(pci, uuid, other()), ("pci:0000:01:00.0".into(), vec![uuid_name.clone()]));
        assert_eq!(identity(None, uuid, other()), (uuid_name, Vec::new()));
        assert_eq!(identity(None, None, other()), (other(), Vec::new()));
    }
}
