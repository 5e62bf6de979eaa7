//! What backends share, and nobody else needs.

pub mod copies;
pub mod ram;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Wake, Waker};

use crate::{
    BufferHandle, BufferId, Error, ErrorKind, Extents, HostAllocation, HostId, Names, Request, Result,
};

/// The memory of a device by name: what buffers and pieces of host memory are, and how long.
#[derive(Debug)]
pub struct Memory<B, H> {
    buffers: Names<BufferId, (u64, Arc<B>)>,
    hosts: Names<HostId, (u64, Arc<H>)>,
}

impl<B, H> Default for Memory<B, H> {
    fn default() -> Self {
        Self { buffers: Names::default(), hosts: Names::default() }
    }
}

impl<B, H> Memory<B, H> {
    /// Names a buffer of so many bytes.
    pub fn add_buffer(&mut self, bytes: u64, buffer: Arc<B>) -> BufferHandle {
        let handle = BufferHandle::unique();
        self.buffers.insert(handle.id(), (bytes, buffer));
        handle
    }

    /// Enters a piece of host memory.
    pub fn add_host(&mut self, handle: &HostAllocation, piece: Arc<H>) {
        self.hosts.insert(handle.id(), (handle.bytes() as u64, piece));
    }

    /// Makes a buffer longer, which is what is given from now on.
    ///
    /// # Errors
    /// [`UnknownHandle`](ErrorKind::UnknownHandle).
    pub fn extend_buffer(&mut self, handle: &BufferHandle, bytes: u64, buffer: Arc<B>) -> Result<()> {
        self.buffer("extend", handle.id())?;
        self.buffers.insert(handle.id(), (bytes, buffer));
        Ok(())
    }

    /// Forgets a buffer: no further work can touch it.
    pub fn remove_buffer(&mut self, handle: &BufferHandle) -> Option<Arc<B>> {
        self.buffers.remove(&handle.id()).map(|(_, buffer)| buffer)
    }

    /// Forgets a piece of host memory.
    pub fn remove_host(&mut self, handle: &HostAllocation) -> Option<Arc<H>> {
        self.hosts.remove(&handle.id()).map(|(_, piece)| piece)
    }

    /// A buffer.
    ///
    /// # Errors
    /// [`UnknownHandle`](ErrorKind::UnknownHandle).
    pub fn buffer(&self, operation: &'static str, id: BufferId) -> Result<&Arc<B>> {
        let unknown = || Error::new(ErrorKind::UnknownHandle, operation).with_detail("unknown buffer");
        self.buffers.get(&id).map(|(_, buffer)| buffer).ok_or_else(unknown)
    }

    /// A piece of host memory.
    ///
    /// # Errors
    /// [`UnknownHandle`](ErrorKind::UnknownHandle).
    pub fn host(&self, operation: &'static str, id: HostId) -> Result<&Arc<H>> {
        let unknown = || Error::new(ErrorKind::UnknownHandle, operation).with_detail("unknown host memory");
        self.hosts.get(&id).map(|(_, piece)| piece).ok_or_else(unknown)
    }

    /// All memory.
    pub fn all(self) -> (impl Iterator<Item = Arc<B>>, impl Iterator<Item = Arc<H>>) {
        let buffers = self.buffers.into_values().map(|(_, buffer)| buffer);
        (buffers, self.hosts.into_values().map(|(_, piece)| piece))
    }
}

impl<B, H> Extents for Memory<B, H> {
    fn device_bytes(&self, buffer: BufferId) -> Option<u64> {
        self.buffers.get(&buffer).map(|(bytes, _)| *bytes)
    }

    fn host_bytes(&self, host: HostId) -> Option<u64> {
        self.hosts.get(&host).map(|(bytes, _)| *bytes)
    }
}

/// Whether memory of so many bytes can be one that grows to so many.
///
/// # Errors
/// [`InvalidArgument`](ErrorKind::InvalidArgument) for less.
pub fn check_extensible(bytes: u64, most: u64) -> Result<()> {
    if bytes <= most {
        return Ok(());
    }
    Err(Error::new(ErrorKind::InvalidArgument, "allocate_extensible")
        .with_bytes(bytes)
        .with_detail(format!("it may grow to {most} bytes, and is longer")))
}

/// Whether memory is to be extended to so many bytes, of as many as it may have.
///
/// # Errors
/// [`TooLarge`](ErrorKind::TooLarge).
pub fn check_extend(now: u64, bytes: u64, most: u64) -> Result<bool> {
    if bytes > most.max(now) {
        return Err(Error::new(ErrorKind::TooLarge, "extend").with_bytes(bytes).with_available_bytes(most));
    }
    Ok(bytes > now)
}

/// How much of a device's memory was given out.
#[derive(Debug, Default)]
pub struct Account(AtomicU64);

/// A part of an account; given back on drop.
#[derive(Debug)]
pub struct Share {
    account: Arc<Account>,
    bytes: u64,
}

impl Account {
    /// How many bytes are taken.
    #[must_use]
    pub fn taken_bytes(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Takes `bytes` bytes if they are not more than there can ever be, `most`, nor than what `available`
    /// says beside so many that are taken already.
    ///
    /// # Errors
    /// [`TooLarge`](ErrorKind::TooLarge), [`OutOfMemory`](ErrorKind::OutOfMemory), with figures.
    pub fn take(self: &Arc<Self>, bytes: u64, most: u64, available: impl Fn(u64) -> u64) -> Result<Share> {
        let refused =
            |kind, available| Error::new(kind, "allocate").with_bytes(bytes).with_available_bytes(available);
        if bytes > most {
            return Err(refused(ErrorKind::TooLarge, most));
        }
        let take = |taken: u64| taken.checked_add(bytes).filter(|_| bytes <= available(taken));
        self.0
            .try_update(Ordering::AcqRel, Ordering::Acquire, take)
            .map_err(|taken| refused(ErrorKind::OutOfMemory, available(taken)))?;
        Ok(Share { account: Arc::clone(self), bytes })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.account.0.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

/// Which way elements go that are named by index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the device.
    Gather,
    /// To the device.
    Scatter,
}

impl Direction {
    /// That of a request to gather or to scatter.
    #[must_use]
    pub fn of(request: &Request<'_>) -> Self {
        if matches!(request, Request::Scatter(_)) { Self::Scatter } else { Self::Gather }
    }

    /// The operation that errors name.
    #[must_use]
    pub fn operation(self) -> &'static str {
        match self {
            Self::Gather => "gather",
            Self::Scatter => "scatter",
        }
    }
}

/// What to do where page-locked memory is refused. It is the driver that page-locks, not this process: the
/// system's limit for that does not count.
pub const PIN_ADVICE: &str = "ask for less, release pinned memory, or use HostMemory::Pageable";

/// Wakes all, each even if the waker of another one panics. They are foreign code: not to be called under a
/// lock.
pub fn wake_all(due: impl IntoIterator<Item = Waker>) {
    for waker in due {
        if catch_unwind(AssertUnwindSafe(|| waker.wake())).is_err() {
            tracing::error!("a waker panicked");
        }
    }
}

/// A waker that calls a function each time that it is woken.
pub fn waker(call: impl Fn() + Send + Sync + 'static) -> Waker {
    struct Call<F>(F);
    impl<F: Fn() + Send + Sync> Wake for Call<F> {
        fn wake(self: Arc<Self>) {
            (self.0)();
        }
    }
    Arc::new(Call(call)).into()
}

/// The first of the names that one card has in all backends, and the others: its address on the bus, its
/// UUID; where it has neither, what else it is called.
#[must_use]
pub fn identity(pci: Option<&str>, uuid: Option<&[u8; 16]>, otherwise: String) -> (String, Vec<String>) {
    let pci = pci.map(|address| format!("pci:{address}"));
    let mut names = pci.into_iter().chain(uuid.map(crate::uuid_text));
    (names.next().unwrap_or(otherwise), names.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_is_named_by_its_address_before_all_else() {
        let (pci, uuid) = (Some("0000:01:00.0"), Some(&[0x11; 16]));
        let uuid_name = crate::uuid_text(&[0x11; 16]);
        let other = || "cuda:0".to_owned();
        assert_eq!(identity(pci, uuid, other()), ("pci:0000:01:00.0".into(), vec![uuid_name.clone()]));
        assert_eq!(identity(None, uuid, other()), (uuid_name, Vec::new()));
        assert_eq!(identity(None, None, other()), (other(), Vec::new()));
    }
}
