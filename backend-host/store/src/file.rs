//! [`FileDevice`]: a device whose memory is a file, without persistent contents.

mod extent;
mod open_file;
mod space;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use backend_api::{
    BufferHandle, BufferId, Commit, Device, DeviceInfo, DeviceKind, DeviceSpan, DirectReads, MemoryStatus,
    QueueHandle, Request, Result, Ticket,
};
use vmarray_support::backends::check_extensible;

use crate::checked::ChecksummedMemory;
use crate::tier::{self, Cards, Tier, Tiered};
use backend_host::parts::{Engine, default_threads};
use extent::Extent;
use open_file::OpenFile;
#[cfg(target_os = "linux")]
pub(crate) use open_file::announce;
use space::FileSpace;

/// Minimum number of threads of a device with a tier, because threads mostly wait for GPUs.
const TIERED_THREADS_LEAST: usize = 16;

/// A device whose memory is a file: slow and large.
///
/// The device creates its own file, and never opens an existing file, so it cannot overwrite data. The file
/// has the length of the device. The creation reserves the blocks of the file, so the creation fails at once
/// if the disk is full.
///
/// # Contents do not persist
///
/// As on other devices, the contents of an array are lost when the array is dropped. A file with a name
/// remains after its device is dropped, until the user removes it. But the file does not record the array's
/// length, nor the pages that were written. So no device can open the file again, and
/// [`create`](Self::create) refuses its path with [`AlreadyExists`](backend_api::ErrorKind::AlreadyExists).
/// For persistent arrays use [`StoreDevice`](crate::StoreDevice). To work in place on an existing file, map
/// the file to memory, and use `Source` of `vmarray` (feature `memmap2`).
///
/// # Permissions
///
/// On Unix only the user can access the file (mode 0600). Elsewhere it has the permissions of its folder.
/// After the drop, elements remain in the file, or on the disk until the system reuses the blocks, unless the
/// program calls [`wipe_on_release`](Device::wipe_on_release).
///
/// # Why not a memory map
///
/// The device uses positioned system calls, directly from and to host memory. With a memory map, a full disk,
/// a faulty disk, or a process that truncates the file kills this process with a signal in the middle of a
/// copy. Reserved blocks prevent only the first case. A system call reports all three cases, and they become
/// errors of the affected tickets. System calls and memory maps both use the kernel's page cache. With system
/// calls, the copy of a page costs about a microsecond more.
///
/// ```
/// use std::sync::Arc;
/// use backend_api::{Commit, Device, DeviceBuffer, Fill, Queue};
/// use vmarray_store::FileDevice;
///
/// # let path = std::env::temp_dir().join(format!("vmarray-file-{}", std::process::id()));
/// let device = Arc::new(FileDevice::create(&path, 1000)?);
/// let (queue, first) = (Queue::new(&device)?, DeviceBuffer::new(&device, 400, Commit::Lazy)?);
/// device.wait(queue.submit(&Fill { to: first.at(0), bytes: 400, pattern: &[7] })?)?;
/// device.sync()?;
/// assert_eq!(std::fs::read(device.path()).unwrap()[..400], [7; 400]);
/// let second = DeviceBuffer::new(&device, 100, Commit::Lazy)?;
/// drop(first);
/// // A buffer that is too long for the gap continues behind it.
/// let third = DeviceBuffer::new(&device, 900, Commit::Lazy)?;
/// assert_eq!(device.file_ranges(second.id())?, [400..500]);
/// assert_eq!(device.file_ranges(third.id())?, [0..400, 500..1000]);
/// assert!(device.threads() >= 1 && FileDevice::builder(&path).create(1).is_err());
/// # std::fs::remove_file(&path).unwrap();
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Debug)]
pub struct FileDevice {
    engine: Engine<Tiered<ChecksummedMemory<Extent>>>,
    file: Arc<OpenFile>,
    space: Arc<FileSpace>,
    cards: Option<Arc<Cards>>,
    has_checksums: bool,
}

/// Builder of a [`FileDevice`]: its path and its settings.
///
/// ```
/// use backend_api::{Device, ErrorKind, HostMemory};
/// use vmarray_store::FileDevice;
/// let device = FileDevice::builder(std::env::temp_dir()).name("scratch").threads(16).pinned_max_bytes(0);
/// let device = device.create_temporary(1 << 20)?;
/// assert_eq!((&*device.info().name, device.threads()), ("scratch", 16));
/// assert_eq!(device.allocate_host(4096, HostMemory::Pinned).unwrap_err().kind(), ErrorKind::PinRefused);
/// let path = device.path().to_owned();
/// drop(device);
/// assert!(!path.exists());
/// # let path = std::env::temp_dir().join(format!("vmarray-create-{}", std::process::id()));
/// FileDevice::builder(&path).create(1 << 16)?;
/// // `create` never overwrites a file.
/// assert_eq!(FileDevice::builder(&path).create(10).unwrap_err().kind(), ErrorKind::AlreadyExists);
/// # std::fs::remove_file(&path).unwrap();
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct FileDeviceBuilder {
    path: PathBuf,
    name: Option<String>,
    threads: Option<usize>,
    pinned_max_bytes: u64,
    tier: Option<Tier>,
    has_checksums: bool,
}

impl FileDeviceBuilder {
    /// Sets the device's name, which appears in messages; by default the name of the file.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Sets the maximum number of worker threads, at least one, which is also the queue depth of the drive.
    /// The default is the number of processors for this program; with a [tier](Self::tier) the default is at
    /// least 16, because threads wait for the tier's GPUs. Drives are faster with a deep queue.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = Some(threads.max(1));
        self
    }

    /// Makes the device verify each read by checksums (XXH3, 64 bits); off by default. If the drive returns
    /// other bytes than the device wrote, the read fails with an error of kind
    /// [`Corrupted`](backend_api::ErrorKind::Corrupted) that names the page and the device. Other pages
    /// remain usable. A write of the whole damaged page repairs it.
    ///
    /// Checksums take 8 bytes of RAM for each 16 KiB. The device reads whole pages, and reads a page before
    /// it writes a part of it.
    ///
    /// ```
    /// # use std::{io::{Seek, Write}, sync::Arc};
    /// # use backend_api::{Commit, Device, DeviceBuffer, ErrorKind, Fill};
    /// # use backend_api::{HostBuffer, HostMemory, Queue, Transfer};
    /// # use vmarray_store::FileDevice;
    /// # let path = std::env::temp_dir().join(format!("vmarray-checksums-{}", std::process::id()));
    /// let device = Arc::new(FileDevice::builder(&path).checksums(true).create(1 << 20)?);
    /// let (queue, memory) = (Queue::new(&device)?, DeviceBuffer::new(&device, 1 << 20, Commit::Lazy)?);
    /// let host = HostBuffer::new(&device, 4096, HostMemory::Pageable)?;
    /// device.wait(queue.submit(&Fill { to: memory.at(0), bytes: 1 << 20, pattern: &[7] })?)?;
    /// // A bit flips on the drive.
    /// let mut file = std::fs::File::options().write(true).open(&path).unwrap();
    /// file.seek(std::io::SeekFrom::Start(100_000)).unwrap();
    /// file.write_all(&[6]).unwrap();
    /// let read = Transfer::Download { from: memory.at(99_000), to: host.at(0), bytes: 10 };
    /// let error = device.wait(queue.submit(&[read])?).unwrap_err();
    /// assert_eq!((error.kind(), error.offset()), (ErrorKind::Corrupted, Some(6 * (16 << 10))));
    /// # std::fs::remove_file(&path).unwrap();
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    pub fn checksums(mut self, are_kept: bool) -> Self {
        self.has_checksums = are_kept;
        self
    }

    /// Caches pages of the file on the GPUs of a tier. The creation of the device allocates the GPU memory.
    /// The tier does not use a GPU with too little memory; [`Tier::status`] reports the reason.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// use backend_host::HostDevice;
    /// use vmarray_store::{FileDevice, Tier};
    /// let tier = Tier::new([Arc::new(HostDevice::new(1 << 20)?)]).bytes(512 << 10);
    /// let file = FileDevice::builder(std::env::temp_dir()).tier(&tier).create_temporary(8 << 20)?;
    /// assert_eq!(tier.status().capacity_bytes, 512 << 10);
    /// # drop(file);
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    pub fn tier(mut self, tier: &Tier) -> Self {
        self.tier = Some(tier.clone());
        self
    }

    /// Sets the maximum of page-locked host memory that the device allocates, in bytes; no limit by default.
    pub fn pinned_max_bytes(mut self, bytes: u64) -> Self {
        self.pinned_max_bytes = bytes;
        self
    }

    /// Creates a file of `bytes` bytes, and the device. The file remains after the device is dropped, until
    /// the user removes it.
    ///
    /// # Errors
    /// [`AlreadyExists`](backend_api::ErrorKind::AlreadyExists) if the path exists, even as a link or as the
    /// file of another device; the file stays unchanged. [`OutOfMemory`](backend_api::ErrorKind::OutOfMemory)
    /// if the disk or a quota is full; the call then removes the file.
    /// [`System`](backend_api::ErrorKind::System) for all other failures.
    pub fn create(self, bytes: u64) -> Result<FileDevice> {
        let file = OpenFile::create(&self.path, bytes)?;
        Ok(self.with(file))
    }

    /// Creates a temporary file of `bytes` bytes in the folder that was given to the builder, and the device.
    /// The file disappears when the device is dropped and, on Unix, also when the program ends or crashes.
    ///
    /// # Errors
    /// [`OutOfMemory`](backend_api::ErrorKind::OutOfMemory) and [`System`](backend_api::ErrorKind::System),
    /// in the cases of [`create`](Self::create).
    pub fn create_temporary(self, bytes: u64) -> Result<FileDevice> {
        let file = OpenFile::create_temporary(&self.path, bytes)?;
        Ok(self.with(file))
    }

    fn with(self, file: OpenFile) -> FileDevice {
        let path = file.path();
        let name = self.name.unwrap_or_else(|| {
            path.file_name().map_or_else(|| "file".to_owned(), |name| name.to_string_lossy().into_owned())
        });
        let identity = format!("file:{}", path.display());
        let info = DeviceInfo::new("host", &name, DeviceKind::File, &identity).with_total_bytes(file.bytes());
        let cards = self.tier.as_ref().map(Tier::open);
        let threads = self.threads.unwrap_or_else(|| {
            let least = if cards.is_some() { TIERED_THREADS_LEAST } else { 1 };
            default_threads().max(least)
        });
        FileDevice {
            space: FileSpace::new(file.bytes()),
            file: Arc::new(file),
            engine: Engine::new(info, threads, self.pinned_max_bytes),
            cards,
            has_checksums: self.has_checksums,
        }
    }
}

impl FileDevice {
    /// Creates a device on a new file of `bytes` bytes: [`FileDeviceBuilder::create`] with the default
    /// settings.
    ///
    /// # Errors
    /// The errors of [`FileDeviceBuilder::create`].
    pub fn create(path: impl AsRef<Path>, bytes: u64) -> Result<Self> {
        Self::builder(path).create(bytes)
    }

    /// Returns a builder for the file `path` or, for a temporary file, the folder `path`.
    pub fn builder(path: impl AsRef<Path>) -> FileDeviceBuilder {
        FileDeviceBuilder {
            path: path.as_ref().to_owned(),
            name: None,
            threads: None,
            pinned_max_bytes: u64::MAX,
            tier: None,
            has_checksums: false,
        }
    }

    /// Maximum number of worker threads.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.engine.threads()
    }

    /// Returns the path of the file; the former path if a temporary file no longer has a name.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Returns the byte ranges of the file that store a buffer: one range, or several if the free space was
    /// fragmented at the allocation.
    ///
    /// # Errors
    /// [`UnknownHandle`](backend_api::ErrorKind::UnknownHandle).
    pub fn file_ranges(&self, buffer: BufferId) -> Result<Vec<Range<u64>>> {
        Ok(self.engine.buffer("file_ranges", buffer)?.below().below().file_ranges())
    }

    fn add(&self, bytes: u64, most: u64) -> Result<BufferHandle> {
        let place = self.engine.named(self.space.take(bytes))?;
        let wiping = self.engine.wiping();
        let extent = Extent::new(&self.file, place, most, wiping);
        let checked = ChecksummedMemory::new(extent, self.has_checksums, most > bytes);
        Ok(self.engine.add_buffer(Arc::new(Tiered::new(checked, self.cards.as_ref(), wiping))))
    }
}

impl DirectReads for FileDevice {
    fn read_directly(&self, from: DeviceSpan<'_>, into: &mut [u8]) -> Result<()> {
        self.engine.read_directly(from, into)
    }

    fn read_all_directly(&self, reads: &mut [(DeviceSpan<'_>, &mut [u8])]) -> Result<()> {
        self.engine.read_all_directly(reads)
    }

    /// Length of a page of the tier or of a page with a checksum, because they are read whole.
    fn unit_bytes(&self) -> usize {
        if self.cards.is_some() || self.has_checksums { tier::PAGE_BYTES } else { 1 }
    }
}

// SAFETY: `Engine` meets the contract: it checks names and looks up memory before it queues work; work keeps
// its memory alive, and a release waits for the work.
unsafe impl Device for FileDevice {
    fn memory(&self) -> Result<MemoryStatus> {
        let free = self.space.free_bytes();
        Ok(MemoryStatus::new(self.file.bytes(), free, free))
    }

    fn allocate(&self, bytes: u64, _commit: Commit) -> Result<BufferHandle> {
        // Ignore `commit`, because the file reserved its blocks at creation.
        self.add(bytes, bytes)
    }

    fn allocate_extensible(&self, bytes: u64, most: u64, _commit: Commit) -> Result<BufferHandle> {
        self.engine.named(check_extensible(bytes, most))?;
        self.add(bytes, most)
    }

    fn extend(&self, buffer: &BufferHandle, bytes: u64, _commit: Commit) -> Result<()> {
        self.engine.extend(buffer, |memory| memory.below().below().extend(&self.space, bytes))
    }

    /// Has no effect, because no program can open the file later; see "Contents do not persist".
    fn sync(&self) -> Result<()> {
        self.engine.named(self.file.sync())
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
