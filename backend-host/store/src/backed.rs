//! [`BackedDevice`]: a device whose pages the program stores, by functions that read and write one page.

use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use backend_api::{
    BufferHandle, Commit, Device, DeviceInfo, DeviceKind, DeviceSpan, DirectReads, Error, ErrorKind,
    MemoryStatus, QueueHandle, Request, Result, Ticket, racy,
};
use parking_lot::{Mutex, RwLock};

use crate::error::{failure, is_full};
use crate::extent_allocator::{Claimed, ExtentAllocator};
use crate::ram_fallback::{RamFallback, ScratchRam};
use crate::section::{FileAccess, FileSection, shortened};
#[cfg(target_os = "linux")]
use crate::store::disk::Disk as _;
use crate::tier::{Cards, Tier, Tiered};
use backend_host::parts::{Engine, Passage, Storage, default_threads, system};

/// Approximate size of the cache of pages for partial reads, in bytes.
const RECENT_BYTES: usize = 32 << 20;
const RECENT_MAX: usize = 256;

/// A store of pages that the program implements: its methods read and write one page in each call. Examples
/// are chunks of a compressed file, objects of a server, rows of a database, and computed values.
///
/// Several threads call the methods at the same time. For each page, either one thread writes, or any number
/// of threads read. The methods may block. A method must not use the array over these pages, nor wait for a
/// thread pool whose threads use the array. If a method panics, the access to the array returns an error.
///
/// ```
/// use std::{io, sync::{Arc, Mutex}};
/// use backend_api::{Commit, Device, DeviceBuffer, HostBuffer, HostMemory, Queue, Transfer};
/// use vmarray_store::{BackedDevice, Backing};
///
/// /// A page that was never written holds its number.
/// #[derive(Debug, Default)]
/// struct Numbers {
///     written: Mutex<std::collections::HashMap<u64, Vec<u8>>>,
/// }
///
/// impl Backing for Numbers {
///     fn page_bytes(&self) -> usize {
///         64
///     }
///     fn pages(&self) -> u64 {
///         100
///     }
///     fn read_page(&self, page: u64, into: &mut [u8]) -> io::Result<()> {
///         match self.written.lock().unwrap().get(&page) {
///             Some(bytes) => into.copy_from_slice(bytes),
///             None => into.fill(page as u8),
///         }
///         Ok(())
///     }
///     fn write_page(&self, page: u64, from: &[u8]) -> io::Result<()> {
///         self.written.lock().unwrap().insert(page, from.to_vec());
///         Ok(())
///     }
/// // By default `sync` does nothing, `is_read_only` returns false, and `file_section` returns `None`.
///     fn name(&self) -> String {
///         "numbers of pages".into()
///     }
/// }
///
/// let device = Arc::new(BackedDevice::new(Numbers::default())?);
/// let (queue, pages) = (Queue::new(&device)?, DeviceBuffer::new(&device, 6400, Commit::Lazy)?);
/// let host = HostBuffer::new(&device, 64, HostMemory::Pageable)?;
/// let read = Transfer::Download { from: pages.at(64 * 7), to: host.at(0), bytes: 64 };
/// device.wait(queue.submit(&[read])?)?;
/// let mut bytes = [0; 64];
/// host.read(0, &mut bytes);
/// assert_eq!(bytes, [7; 64]);
/// # Ok::<_, backend_api::Error>(())
/// ```
pub trait Backing: fmt::Debug + Send + Sync + 'static {
    /// Length of each page in bytes. It must not change.
    fn page_bytes(&self) -> usize;

    /// Number of pages. It must not change.
    fn pages(&self) -> u64;

    /// Reads a whole page into memory of a page's length, whose contents are unspecified.
    ///
    /// # Errors
    /// The caller receives the error with the index of the page. Its kind is
    /// [`Corrupted`](ErrorKind::Corrupted) for [`InvalidData`](io::ErrorKind::InvalidData), else a failed
    /// copy or kernel.
    fn read_page(&self, page: u64, into: &mut [u8]) -> io::Result<()>;

    /// Writes a whole page. Later reads of the page return these bytes.
    ///
    /// # Errors
    /// The errors of [`read_page`](Self::read_page), and of kind [`OutOfMemory`](ErrorKind::OutOfMemory) if
    /// the storage is full. After an error the page may have its old or its new contents.
    fn write_page(&self, page: u64, from: &[u8]) -> io::Result<()>;

    /// Makes all written pages durable, if the storage supports this. The default has no effect.
    ///
    /// # Errors
    /// [`Device::sync`] returns this error.
    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    /// Returns true if the pages are read-only; the device then never writes a page. False by default.
    fn is_read_only(&self) -> bool {
        false
    }

    /// Name of the device in messages.
    fn name(&self) -> String {
        "pages of the program".into()
    }

    /// The part of a file that has all pages, one after the other, if there is one. The device then accesses
    /// any bytes of the section directly, and calls neither [`read_page`](Self::read_page) nor
    /// [`write_page`](Self::write_page). By default `None`.
    fn file_section(&self) -> Option<&FileSection> {
        None
    }
}

impl Backing for FileSection {
    fn page_bytes(&self) -> usize {
        FileSection::page_bytes(self)
    }

    fn pages(&self) -> u64 {
        self.bytes().div_ceil(FileSection::page_bytes(self) as u64)
    }

    fn read_page(&self, page: u64, into: &mut [u8]) -> io::Result<()> {
        self.read(page * FileSection::page_bytes(self) as u64, into)
    }

    fn write_page(&self, page: u64, from: &[u8]) -> io::Result<()> {
        self.write(page * FileSection::page_bytes(self) as u64, from)
    }

    fn sync(&self) -> io::Result<()> {
        FileSection::sync(self)
    }

    fn is_read_only(&self) -> bool {
        self.access() == FileAccess::ReadOnly
    }

    fn name(&self) -> String {
        self.path().display().to_string()
    }

    fn file_section(&self) -> Option<&FileSection> {
        Some(self)
    }
}

/// A device whose memory consists of the pages of a [`Backing`]. An array over the device reads and writes
/// pages on demand. The array caches pages in RAM and, with [`with_tier`](Self::with_tier), on GPUs.
///
/// A new buffer consists of the lowest pages that no other buffer has, with their contents. After
/// [`serve_work`](Self::serve_work), new buffers are scratch memory instead.
///
/// # Cost
///
/// The device reads and writes whole pages. For partial accesses (kernels, gathers) it caches up to 32 MiB of
/// pages, or one page for each thread if that is more. Accesses to whole pages copy them at most once. If the
/// backing has a [section of a file](Backing::file_section), the device reads and writes only the requested
/// bytes, and caches none.
///
/// ```
/// # use std::io;
/// use backend_api::{Device, ErrorKind};
/// use vmarray_store::{BackedDevice, Backing};
/// /// This number of pages of zeroes.
/// #[derive(Debug)]
/// struct Zeroes(u64);
/// impl Backing for Zeroes {
///     fn page_bytes(&self) -> usize {
///         4096
///     }
///     fn pages(&self) -> u64 {
///         self.0
///     }
///     fn read_page(&self, _: u64, into: &mut [u8]) -> io::Result<()> {
///         into.fill(0);
///         Ok(())
///     }
///     fn write_page(&self, _: u64, _: &[u8]) -> io::Result<()> {
///         Ok(())
///     }
/// }
/// assert_eq!(BackedDevice::new(Zeroes(1000))?.memory()?.free_bytes, 4_096_000);
/// assert_eq!(BackedDevice::new(Zeroes(u64::MAX)).unwrap_err().kind(), ErrorKind::InvalidArgument);
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Debug)]
pub struct BackedDevice {
    engine: Engine<Tiered<RamFallback<Pages>>>,
    cards: Option<Arc<Cards>>,
    backing: Arc<dyn Backing>,
    claims: Arc<Mutex<ExtentAllocator>>,
    scratch: ScratchRam,
}

impl BackedDevice {
    /// Creates a device over these pages.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) if the page length is 0, or if all pages together
    /// exceed `i64::MAX` bytes.
    pub fn new(backing: impl Backing) -> Result<Self> {
        let (page_bytes, pages) = (backing.page_bytes(), backing.pages());
        let bytes = pages.checked_mul(page_bytes as u64).filter(|bytes| i64::try_from(*bytes).is_ok());
        let Some(bytes) = bytes.filter(|_| page_bytes > 0) else {
            let detail = format!("{pages} pages of {page_bytes} bytes are empty, or exceed 2^63 - 1 bytes");
            return Err(Error::new(ErrorKind::InvalidArgument, "new").with_detail(detail));
        };
        let (name, backing): (_, Arc<dyn Backing>) = (backing.name(), Arc::new(backing));
        let identity = format!("backed:{name}:{:p}", Arc::as_ptr(&backing).cast::<()>());
        let info = DeviceInfo::new("host", &name, DeviceKind::File, &identity).with_total_bytes(bytes);
        let engine = Engine::new(info, default_threads(), u64::MAX);
        Ok(Self {
            scratch: ScratchRam::new(engine.wiping()),
            engine,
            cards: None,
            backing,
            claims: Arc::new(Mutex::new(ExtentAllocator::except([]))),
        })
    }

    /// Caches pages on the GPUs of a tier, and allocates the GPU memory now. The tier does not use a GPU with
    /// too little memory; [`Tier::status`] reports the reason.
    ///
    /// ```
    /// # use std::{io, sync::Arc};
    /// use backend_host::HostDevice;
    /// use vmarray_store::{BackedDevice, Backing, Tier};
    /// # #[derive(Debug)]
    /// # struct Nothing;
    /// # impl Backing for Nothing {
    /// #     fn page_bytes(&self) -> usize { 4096 }
    /// #     fn pages(&self) -> u64 { 1000 }
    /// #     fn read_page(&self, _: u64, into: &mut [u8]) -> io::Result<()> { Ok(into.fill(0)) }
    /// #     fn write_page(&self, _: u64, _: &[u8]) -> io::Result<()> { Ok(()) }
    /// # }
    /// let tier = Tier::new([Arc::new(HostDevice::new(1 << 20)?)]).bytes(256 << 10);
    /// let device = BackedDevice::new(Nothing)?.with_tier(&tier);
    /// assert_eq!(tier.status().capacity_bytes, 256 << 10);
    /// # drop(device);
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    #[must_use]
    pub fn with_tier(mut self, tier: &Tier) -> Self {
        self.cards = Some(tier.open_for_store(self.backing.page_bytes()));
        self
    }

    /// From this call on, new buffers are scratch memory in RAM for temporary data, at most 1 GiB in all.
    /// Call this method after the buffers for all pages are allocated.
    ///
    /// ```
    /// # use std::{io, sync::Arc};
    /// # use vmarray_store::{BackedDevice, Backing};
    /// use backend_api::{Commit, Device};
    /// # #[derive(Debug)]
    /// # struct Nothing;
    /// # impl Backing for Nothing {
    /// #     fn page_bytes(&self) -> usize { 4096 }
    /// #     fn pages(&self) -> u64 { 1000 }
    /// #     fn read_page(&self, _: u64, into: &mut [u8]) -> io::Result<()> { Ok(into.fill(0)) }
    /// #     fn write_page(&self, _: u64, _: &[u8]) -> io::Result<()> { Ok(()) }
    /// # }
    /// let device = BackedDevice::new(Nothing)?;
    /// let pages = device.allocate(4096, Commit::Lazy)?;
    /// device.serve_work();
    /// assert_eq!(device.memory()?.total_bytes, 1 << 30);
    /// device.release(pages);
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    pub fn serve_work(&self) {
        self.scratch.lend();
    }

    /// Allocates the lowest pages that no buffer has, for at least `bytes` bytes.
    fn claim(&self, bytes: u64) -> Result<Pages> {
        let (page_bytes, pages) = (self.backing.page_bytes(), self.backing.pages());
        let claimed = Claimed::take(&self.claims, pages, page_bytes, bytes)?;
        let recent = (RECENT_BYTES / page_bytes).clamp(self.engine.threads(), RECENT_MAX);
        let recent = (0..recent).map(|_| RwLock::default()).collect();
        Ok(Pages { backing: Arc::clone(&self.backing), page_bytes, bytes, claimed, recent })
    }
}

impl DirectReads for BackedDevice {
    fn read_directly(&self, from: DeviceSpan<'_>, into: &mut [u8]) -> Result<()> {
        self.engine.read_directly(from, into)
    }

    fn read_all_directly(&self, reads: &mut [(DeviceSpan<'_>, &mut [u8])]) -> Result<()> {
        self.engine.read_all_directly(reads)
    }

    /// A byte of a file; with a tier, and in other storage, a whole page.
    fn unit_bytes(&self) -> usize {
        let is_exact = self.cards.is_none() && self.backing.file_section().is_some();
        if is_exact { 1 } else { self.backing.page_bytes() }
    }
}

// SAFETY: `Engine` meets the contract: it checks names and looks up memory before it queues work; work keeps
// its memory alive, and a release waits for the work.
unsafe impl Device for BackedDevice {
    fn memory(&self) -> Result<MemoryStatus> {
        let (total, free) = if self.scratch.is_lent() {
            self.scratch.status()
        } else {
            let (page_bytes, pages) = (self.backing.page_bytes() as u64, self.backing.pages());
            (pages * page_bytes, (pages - self.claims.lock().taken()) * page_bytes)
        };
        Ok(MemoryStatus::new(total, free, free))
    }

    /// Allocates the lowest pages that no buffer has, with their contents, or RAM after
    /// [`serve_work`](BackedDevice::serve_work).
    fn allocate(&self, bytes: u64, commit: Commit) -> Result<BufferHandle> {
        let (memory, cards) = if self.scratch.is_lent() {
            (self.scratch.take(bytes, commit).map(RamFallback::Ram), None)
        } else {
            (self.claim(bytes).map(RamFallback::Own), self.cards.as_ref())
        };
        let memory = Tiered::new(self.engine.named(memory)?, cards, self.engine.wiping());
        Ok(self.engine.add_buffer(Arc::new(memory)))
    }

    fn sync(&self) -> Result<()> {
        let failed = |cause: io::Error| {
            let is_damage = cause.kind() == io::ErrorKind::InvalidData;
            system(if is_damage { ErrorKind::Corrupted } else { ErrorKind::System }, "sync", &cause)
        };
        self.engine.named(caught(|| self.backing.sync()).map_err(failed))
    }

    fn wipe_on_release(&self) -> Result<()> {
        self.cards.iter().try_for_each(|cards| cards.wipe_on_release())?;
        self.engine.wipe_on_release()
    }

    fn direct_reads(&self) -> Option<&dyn DirectReads> {
        Some(self)
    }

    backend_api::forward! { self => self.engine;
        info create_queue release_queue release allocate_host import_host release_host
        poll wait wake order_after
    }

    fn submit(&self, queue: &QueueHandle, request: &Request<'_>) -> Result<Ticket> {
        self.engine.start(queue, request)
    }
}

/// Calls a function of the program, and converts a panic to an error.
fn caught(work: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    // Assert unwind safety, because the program is responsible for the state of its own type after a panic.
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err(io::Error::other("`Backing` panicked; see the message of the panic")))
}

/// Consecutive pages of one buffer.
#[derive(Debug)]
struct Pages {
    backing: Arc<dyn Backing>,
    page_bytes: usize,
    bytes: u64,
    claimed: Claimed,
    /// Cache of recently used pages, by a hash of their number. A thread that writes a page locks its entry
    /// for writing.
    recent: Box<[RwLock<Recent>]>,
}

/// A page that was read or written recently.
#[derive(Debug, Default)]
struct Recent {
    page: Option<u64>,
    bytes: Passage<u8>,
}

/// The part of a byte range that is in one page.
#[derive(Clone, Debug)]
struct Piece {
    page: u64,
    /// Range of bytes in the page.
    part: std::ops::Range<usize>,
    /// Number of bytes of the range before this part.
    done: usize,
}

impl Pages {
    fn pieces(&self, offset: u64, bytes: usize, mut work: impl FnMut(Piece) -> Result<()>) -> Result<()> {
        let mut done = 0;
        while done < bytes {
            let at = offset + done as u64;
            let start = (at % self.page_bytes as u64) as usize;
            let part = start..self.page_bytes.min(start + (bytes - done));
            let length = part.len();
            work(Piece { page: self.claimed.first() + at / self.page_bytes as u64, part, done })?;
            done += length;
        }
        Ok(())
    }

    fn recent(&self, page: u64) -> &RwLock<Recent> {
        // Fibonacci hashing spreads pages at regular distances over the cache entries.
        let hash = page.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        &self.recent[(hash % self.recent.len() as u64) as usize]
    }

    /// The file that has all pages, and the offset of a byte of this memory in its section.
    fn in_section(&self, offset: u64) -> Option<(&FileSection, u64)> {
        let section = self.backing.file_section()?;
        Some((section, self.claimed.first() * self.page_bytes as u64 + offset))
    }

    /// Reads a whole page. The caller has locked the page's cache entry.
    fn load(&self, operation: &'static str, page: u64, into: &mut [u8]) -> Result<()> {
        let read = caught(|| self.backing.read_page(page, into));
        read.map_err(|cause| self.failed(operation, "read", page * self.page_bytes as u64, &cause))
    }

    /// Writes the bytes of a cache entry to a page. On success the entry caches that page.
    fn store(&self, operation: &'static str, group: &mut Recent, page: u64) -> Result<()> {
        let written = caught(|| self.backing.write_page(page, &group.bytes.0));
        group.page = written.is_ok().then_some(page);
        if self.page_bytes > RECENT_BYTES / self.recent.len() {
            *group = Recent::default();
        }
        written.map_err(|cause| self.failed(operation, "write", page * self.page_bytes as u64, &cause))
    }

    /// Returns the error of a failed access to the byte `at` of the backing.
    #[cold]
    fn failed(&self, operation: &'static str, what: &str, at: u64, cause: &io::Error) -> Error {
        let kind = match cause.kind() {
            io::ErrorKind::InvalidData => ErrorKind::Corrupted,
            io::ErrorKind::OutOfMemory => ErrorKind::OutOfMemory,
            _ if is_full(cause) => ErrorKind::OutOfMemory,
            _ => failure(operation).kind(),
        };
        let error = system(kind, operation, cause);
        let file = self.backing.file_section().map(|section| section.path_at(at).display().to_string());
        let (name, page) = (file.unwrap_or_else(|| self.backing.name()), at / self.page_bytes as u64);
        let detail = format!("cannot {what} page {page} of {name}: {}", error.detail());
        let error = error.with_offset(page * self.page_bytes as u64).with_detail(detail);
        if is_full(cause) { error.with_advice("free space in this storage, and try again") } else { error }
    }
}

impl Storage for Pages {
    /// Longer than for RAM, because a partial access costs a copy, and sometimes the read of a whole page.
    const BLOCK_BYTES: usize = 256 << 10;
    /// Never read single fields, because pages are read whole.
    const SPARSE_STRIDE_BYTES: usize = usize::MAX;

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn unit_bytes(&self) -> u64 {
        if self.backing.file_section().is_some() { 1 } else { self.page_bytes as u64 }
    }

    fn announce(&self, offset: u64, bytes: usize) {
        #[cfg(target_os = "linux")]
        if let Some((section, at)) = self.in_section(offset)
            && let Some((disk, at)) = section.in_file(at, bytes)
        {
            disk.announce(at, bytes);
        }
        #[cfg(not(target_os = "linux"))]
        let _ = (offset, bytes);
    }

    fn address(&self) -> Option<*mut u8> {
        None
    }

    unsafe fn read(&self, operation: &'static str, offset: u64, to: *mut u8, bytes: usize) -> Result<()> {
        if let Some((section, at)) = self.in_section(offset) {
            let read = match section.in_file(at, bytes) {
                // SAFETY: the caller guarantees the target.
                Some((disk, place)) => unsafe { disk.read_racy(place, to, bytes) }.map_err(shortened),
                None => {
                    let mut part = Passage(vec![0; bytes]);
                    // SAFETY: the caller guarantees the target.
                    section.read(at, &mut part.0).map(|()| unsafe { racy::write(to, &part.0) })
                }
            };
            return read.map_err(|cause| self.failed(operation, "read", at, &cause));
        }
        self.pieces(offset, bytes, |Piece { page, part, done }| {
            // SAFETY: the caller guarantees the target, and this is a part of it.
            let give = |from: &[u8]| unsafe { racy::write(to.wrapping_add(done), &from[part.clone()]) };
            let group = self.recent(page).read();
            if group.page == Some(page) {
                give(&group.bytes.0);
                return Ok(());
            }
            if part.len() == self.page_bytes {
                // The target is a buffer of the array's page cache, which keeps the whole page, so do not
                // cache it here.
                let mut whole = Passage(vec![0; self.page_bytes]);
                self.load(operation, page, &mut whole.0)?;
                give(&whole.0);
                return Ok(());
            }
            drop(group);
            let group = &mut *self.recent(page).write();
            if group.page != Some(page) {
                group.page = None;
                group.bytes.0.resize(self.page_bytes, 0);
                self.load(operation, page, &mut group.bytes.0)?;
                group.page = Some(page);
            }
            give(&group.bytes.0);
            Ok(())
        })
    }

    unsafe fn read_into(&self, operation: &'static str, offset: u64, into: &mut [u8]) -> Result<()> {
        if let Some((section, at)) = self.in_section(offset) {
            let read = section.read(at, into);
            return read.map_err(|cause| self.failed(operation, "read", at, &cause));
        }
        self.pieces(offset, into.len(), |Piece { page, part, done }| {
            let into = &mut into[done..done + part.len()];
            let group = self.recent(page).read();
            if part.len() == self.page_bytes && group.page != Some(page) {
                return self.load(operation, page, into);
            }
            drop(group);
            let offset = (page - self.claimed.first()) * self.page_bytes as u64 + part.start as u64;
            // SAFETY: the range is part of the caller's range; `into` is memory of the program, not of a
            // device.
            unsafe { self.read(operation, offset, into.as_mut_ptr(), into.len()) }
        })
    }

    unsafe fn write(
        &self,
        operation: &'static str,
        offset: u64,
        from: *const u8,
        bytes: usize,
    ) -> Result<()> {
        if self.backing.is_read_only() {
            return Err(Error::new(ErrorKind::ReadOnly, operation));
        }
        if let Some((section, at)) = self.in_section(offset) {
            let mut part = Passage(vec![0; bytes]);
            // SAFETY: the caller guarantees the source.
            unsafe { racy::copy(from, part.0.as_mut_ptr(), bytes) };
            let written = section.write(at, &part.0);
            return written.map_err(|cause| self.failed(operation, "write", at, &cause));
        }
        self.pieces(offset, bytes, |Piece { page, part, done }| {
            let group = &mut *self.recent(page).write();
            let is_there = group.page.take() == Some(page);
            group.bytes.0.resize(self.page_bytes, 0);
            if !is_there && part.len() < self.page_bytes {
                self.load(operation, page, &mut group.bytes.0)?;
            }
            let into = &mut group.bytes.0[part];
            // SAFETY: the caller guarantees the source, and this is a part of it.
            unsafe { racy::copy(from.wrapping_add(done), into.as_mut_ptr(), into.len()) };
            self.store(operation, group, page)
        })
    }
}
