//! A file as a device.

mod extent;
mod open_file;
mod space;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use backend_api::backends::check_extensible;
use backend_api::{
    BufferHandle, BufferId, Commit, Device, DeviceInfo, DeviceKind, DeviceSpan, DirectReads, MemoryStatus,
    Result,
};

use crate::checked::Checked;
use crate::engine::Engine;
use crate::host::default_threads;
use crate::tier::{self, Cards, Tier, Tiered};
use extent::Extent;
use open_file::OpenFile;
#[cfg(target_os = "linux")]
pub(crate) use open_file::announce;
use space::Space;

/// So many hits of a tier are under way at a time: their threads wait for cards, and not for processors.
const TIERED_THREADS_LEAST: usize = 16;

/// A file that stands in for a card: slow and large.
///
/// The file is always a new one, of this device alone: what exists is never opened, and so never overwritten.
/// It is as long as the device is large, and its blocks are reserved when it is created, so a full disk shows
/// then.
///
/// # Contents do not stay
///
/// As on every device, the contents of an array live as long as the array. A file that was given a name is
/// still there when its device is dropped, until somebody removes it; but nothing in it says which array it
/// was, which of its pages were ever written to and which were only cached, so there is no way to open it
/// again as a device, and [`create`](Self::create) refuses its path with
/// [`AlreadyExists`](backend_api::ErrorKind::AlreadyExists). What is to outlive the program is written by the
/// program to a file of its own. Contents of a file that exists are worked on where they are by a source over
/// its memory map (`Source` of `vmarray`, feature `memmap2`).
///
/// # Who can read it
///
/// On Unix the file is made for its user alone (mode 0600). Elsewhere it has the permissions that the folder
/// gives. What elements were in it stays in the file, or on the disk until the system uses its blocks for
/// something else, unless [`wipe_on_release`](Device::wipe_on_release) was asked for.
///
/// # Why not a memory map
///
/// The file is read and written with positioned system calls, straight from and to host memory, and not
/// mapped. With a map, a disk that is full or fails, or another process that cuts the file short, ends this
/// process with a signal in the middle of a copy; reserving blocks ahead prevents only the first of these. A
/// system call reports all of them, and they become errors of the tickets concerned. The kernel's page cache
/// is the same in both cases, and page-sized copies cost about a microsecond more.
///
/// ```
/// use std::sync::Arc;
/// use backend_api::{Commit, Device, DeviceBuffer, Fill, Queue};
/// use backend_host::FileDevice;
///
/// # let path = std::env::temp_dir().join(format!("vmarray-file-{}", std::process::id()));
/// let device = Arc::new(FileDevice::create(&path, 1000)?);
/// let (queue, first) = (Queue::new(&device)?, DeviceBuffer::new(&device, 400, Commit::Lazy)?);
/// device.wait(queue.fill(&Fill { to: first.at(0), bytes: 400, pattern: &[7] })?)?;
/// device.sync()?;
/// assert_eq!(std::fs::read(device.path()).unwrap()[..400], [7; 400]);
/// let second = DeviceBuffer::new(&device, 100, Commit::Lazy)?;
/// drop(first);
/// // What does not fit into the gap in one piece goes behind, as far as there is room.
/// let third = DeviceBuffer::new(&device, 900, Commit::Lazy)?;
/// assert_eq!(device.file_ranges(second.id())?, [400..500]);
/// assert_eq!(device.file_ranges(third.id())?, [0..400, 500..1000]);
/// assert!(device.threads() >= 1 && FileDevice::builder(&path).create(1).is_err());
/// # std::fs::remove_file(&path).unwrap();
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Debug)]
pub struct FileDevice {
    engine: Engine<Tiered<Checked<Extent>>>,
    file: Arc<OpenFile>,
    space: Arc<Space>,
    cards: Option<Arc<Cards>>,
    has_checksums: bool,
}

/// How a [`FileDevice`] is to be, and which file it uses.
///
/// ```
/// use backend_api::{Device, ErrorKind, HostMemory};
/// use backend_host::FileDevice;
/// let device = FileDevice::builder(std::env::temp_dir()).name("scratch").threads(16).pinned_max_bytes(0);
/// let device = device.create_temporary(1 << 20)?;
/// assert_eq!((&*device.info().name, device.threads()), ("scratch", 16));
/// assert_eq!(device.allocate_host(4096, HostMemory::Pinned).unwrap_err().kind(), ErrorKind::PinRefused);
/// let path = device.path().to_owned();
/// drop(device);
/// assert!(!path.exists());
/// # let path = std::env::temp_dir().join(format!("vmarray-create-{}", std::process::id()));
/// FileDevice::builder(&path).create(1 << 16)?;
/// // What is there already is never overwritten.
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
    /// What the device is called in messages; the name of the file by default.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// How many worker threads there are at most, and so how many requests the drive sees at once; at least
    /// one. The default is the number of processors that this program may use, and 16 at least with a
    /// [tier](Self::tier), whose cards they wait for. Drives like more.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = Some(threads.max(1));
        self
    }

    /// Whether pages are compared with checksums (XXH3, 64 bits) when they are read, off by default: what the
    /// drive gives back other than it got it is an error of kind
    /// [`Corrupted`](backend_api::ErrorKind::Corrupted) that names page and device then, and no value; other
    /// pages go on, and to write all of the page anew mends it.
    ///
    /// Checksums are in RAM, 8 bytes for each 16 KiB. Such pages are read whole, and those that are written
    /// in part are read first.
    ///
    /// ```
    /// # use std::{io::{Seek, Write}, sync::Arc};
    /// # use backend_api::{Commit, Device, DeviceBuffer, ErrorKind, Fill};
    /// # use backend_api::{HostBuffer, HostMemory, Queue, Transfer};
    /// # use backend_host::FileDevice;
    /// # let path = std::env::temp_dir().join(format!("vmarray-checksums-{}", std::process::id()));
    /// let device = Arc::new(FileDevice::builder(&path).checksums(true).create(1 << 20)?);
    /// let (queue, memory) = (Queue::new(&device)?, DeviceBuffer::new(&device, 1 << 20, Commit::Lazy)?);
    /// let host = HostBuffer::new(&device, 4096, HostMemory::Pageable)?;
    /// device.wait(queue.fill(&Fill { to: memory.at(0), bytes: 1 << 20, pattern: &[7] })?)?;
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

    /// Caches pages of the file on cards, whose memory is taken when the device is made; of one that has none
    /// [`Tier::status`] says why.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// use backend_host::{FileDevice, HostDevice, Tier};
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

    /// How much host memory the device page-locks at most. No limit is the default.
    pub fn pinned_max_bytes(mut self, bytes: u64) -> Self {
        self.pinned_max_bytes = bytes;
        self
    }

    /// Makes a new file of `bytes` bytes, which stays when the device is dropped, until somebody removes it.
    ///
    /// # Errors
    /// [`AlreadyExists`](backend_api::ErrorKind::AlreadyExists) if there is anything at that path, a link or
    /// the file of another device or process among it; it is left as it is.
    /// [`OutOfMemory`](backend_api::ErrorKind::OutOfMemory) if the disk or a quota has no room; then no file
    /// is left behind. [`System`](backend_api::ErrorKind::System) for everything else.
    pub fn create(self, bytes: u64) -> Result<FileDevice> {
        let file = OpenFile::create(&self.path, bytes)?;
        Ok(self.with(file))
    }

    /// Makes a file of `bytes` bytes in the folder that was given as the path. It is gone when the device is
    /// dropped and, on Unix, when the program ends in whatever way.
    ///
    /// # Errors
    /// [`OutOfMemory`](backend_api::ErrorKind::OutOfMemory) and [`System`](backend_api::ErrorKind::System) as
    /// [`create`](Self::create).
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
            space: Space::new(file.bytes()),
            file: Arc::new(file),
            engine: Engine::new(info, threads, self.pinned_max_bytes, None),
            cards,
            has_checksums: self.has_checksums,
        }
    }
}

impl FileDevice {
    /// Makes a new file of `bytes` bytes: [`FileDeviceBuilder::create`] with the default settings.
    ///
    /// # Errors
    /// As there.
    pub fn create(path: impl AsRef<Path>, bytes: u64) -> Result<Self> {
        Self::builder(path).create(bytes)
    }

    /// A device of one's own making, on the file (or, for a temporary one, in the folder) `path`.
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

    /// How many worker threads it has at most.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.engine.threads()
    }

    /// Where the file is. A temporary file may have no name any more.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Where in the file a buffer is: one range, unless the free space was in pieces when it was allocated.
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
        let checked = Checked::new(extent, self.has_checksums, most > bytes);
        Ok(self.engine.add_buffer(Arc::new(Tiered::new(checked, self.cards.as_ref(), wiping))))
    }
}

impl DirectReads for FileDevice {
    fn read_directly(&self, from: DeviceSpan<'_>, into: &mut [u8]) -> Result<()> {
        self.engine.read_directly(from, into)
    }

    /// Pages of a tier, and those that have checksums, are read whole.
    fn unit_bytes(&self) -> usize {
        if self.cards.is_some() || self.has_checksums { tier::PAGE_BYTES } else { 1 }
    }
}

// SAFETY: `Engine` has what the contract asks for: names are checked and memory is found before work is
// queued; work keeps what it touches alive, and releasing waits for it.
unsafe impl Device for FileDevice {
    fn memory(&self) -> Result<MemoryStatus> {
        let free = self.space.free_bytes();
        Ok(MemoryStatus::new(self.file.bytes(), free, free))
    }

    fn allocate(&self, bytes: u64, _commit: Commit) -> Result<BufferHandle> {
        // All blocks of the file were reserved when it was made: there is nothing left to prove.
        self.add(bytes, bytes)
    }

    fn allocate_extensible(&self, bytes: u64, most: u64, _commit: Commit) -> Result<BufferHandle> {
        self.engine.named(check_extensible(bytes, most))?;
        self.add(bytes, most)
    }

    fn extend(&self, buffer: &BufferHandle, bytes: u64, _commit: Commit) -> Result<()> {
        self.engine.extend(buffer, |memory| memory.below().below().extend(&self.space, bytes))
    }

    /// What stays is of use to the program alone: see "Contents do not stay".
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

    backend_api::requests! { self, queue, request => self.engine.start(queue, &request) }
}
