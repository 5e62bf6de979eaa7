//! [`StoreDevice`]: a device whose memory is a persistent file with atomic commits.

#[cfg(test)]
mod crash_tests;
#[cfg(test)]
mod damage;
pub(crate) mod disk;
#[forbid(unsafe_code)]
mod format;
#[cfg(test)]
mod groups;
mod part;
#[forbid(unsafe_code)]
mod volume;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use backend_api::{
    BufferHandle, Commit, Device, DeviceInfo, DeviceKind, DeviceSpan, DirectReads, Error, ErrorKind,
    MemoryStatus, QueueHandle, Request, Result, Ticket,
};
use vmarray_support::backends::{check_extend, check_extensible};
use vmarray_support::warn;

use crate::extent_allocator::{Claimed, ExtentAllocator};
use crate::ram_fallback::{RamFallback, ScratchRam};
use crate::tier::{Cards, Tier, Tiered};
use backend_host::parts::{Engine, Pool, Storage as _, default_threads};
use disk::FileDisk;
use parking_lot::Mutex;
use part::{PageShare, StorePart};
use volume::{
    FileError, OpenedVolume, PAGE_BYTES_MAX, Volume, VolumePlan, failed, open_together, sync_together,
};

pub use volume::StoreReport;

/// Maximum length of a file in bytes.
const FILE_BYTES_MAX: u64 = i64::MAX as u64;

/// A device whose pages persist in a file: data of a finished [`sync`](Device::sync) survives a killed
/// process and a power failure.
///
/// # Durability
///
/// The device writes a changed page to a free place of the file ([shadow pages][lorie]). Then `sync` writes
/// one record with the new places of all changed pages. After a crash each page is as at the last `sync` that
/// returned, or at a later one. No page is torn, whatever the order in which the drive stores sectors,
/// provided that the drive keeps flushed data. Writes of work that was done before the call of `sync` are
/// durable; concurrent work is durable as a whole or not at all. Pages of zeroes take no space. The file
/// never shrinks, and the store reuses free places.
///
/// Each page and each block of 4096 bytes in a page has a checksum (XXH3, 64 bits). Reads verify checksums:
/// damage is an error of kind [`Corrupted`](ErrorKind::Corrupted) that names page and file, never a wrong
/// value. Superblocks, log and map have checksums too, so the store refuses a damaged file instead of opening
/// an older state. There is one exception: if the last writer did not close the file, a damaged end of the
/// log looks like an unfinished commit. The file then opens in the state of the previous commit, and
/// [`check`](Self::check) reports that the file was not closed.
///
/// `sync`, opening and `check` report an error if another program has truncated, extended or replaced the
/// file. A file that is removed while it is open exists until it is closed.
///
/// # Several files
///
/// Stores that are [joined](Self::join) commit together: each commit stores a number and a random token in
/// every file. After a crash or damage, [`open_together`](Self::open_together) returns all of them in the
/// state of one commit, or an error. The drives store the files at the same time.
///
/// Join the stores of a `Mirrored` of `vmarray-redundancy` as well, because a mirror does not compare the
/// contents of its devices. A file that is older than the other mirrors, such as a restored copy, is then an
/// error that names the file. To repair it, copy the file of another mirror over it while all are closed.
///
/// # Growth
///
/// The creator of a store sets its number of pages. If the pages are [shared out](Self::share_out) among
/// buffers, the store grows with its buffers, which are extensible. Pages that were never written take no
/// space. Each commit stores the pages with a [note](Self::set_note) of three numbers, such as the valid
/// length.
///
/// # Cost
///
/// Between two calls of `sync` each changed page needs a second place in the file. RAM: 16 bytes for each
/// page, and up to 40 while the store is opened. `sync` waits for work in progress. It waits for the drive
/// once for up to 16 MiB of changed pages, and twice for more. If the log is full, it waits four times and
/// writes 16 bytes for each page; work pauses while it copies these bytes in RAM.
///
/// If a page is longer than 8 KiB, a partial read reads the blocks that contain the bytes, and 8 bytes for
/// each block of the page. A partial write reads and writes the whole page. Opening for writing and closing
/// wait for the drive once each. [`wipe_on_release`](Device::wipe_on_release) wipes host memory, but no page
/// of the file.
///
/// # Locks
///
/// Either one process has the file open for writing, or any number have it open for reading.
///
/// [lorie]: https://doi.org/10.1145/320521.320540
///
/// ```
/// use std::sync::Arc;
/// use backend_api::{Commit, Device, DeviceBuffer, ErrorKind, Fill, Queue};
/// use vmarray_store::StoreDevice;
///
/// # let path = std::env::temp_dir().join(format!("vmarray-store-{}", std::process::id()));
/// # let _ = std::fs::remove_file(&path);
/// let device = Arc::new(StoreDevice::create(&path, 4096, 1000, b"eights", [0; 3])?);
/// let (queue, pages) = (Queue::new(&device)?, DeviceBuffer::new(&device, 4_096_000, Commit::Lazy)?);
/// device.wait(queue.submit(&Fill { to: pages.at(0), bytes: 9000, pattern: &[7] })?)?;
/// device.set_metadata(b"sevens")?;
/// device.set_note([9000, 0, 0])?;
/// device.sync()?;
/// // A second open fails while the file is open.
/// assert_eq!(StoreDevice::open(&path).unwrap_err().kind(), ErrorKind::InUse);
/// drop((pages, queue, device));
///
/// let device = StoreDevice::open_read_only(&path)?;
/// assert_eq!((device.metadata(), device.page_bytes(), device.pages()), (b"sevens".to_vec(), 4096, 1000));
/// assert!(device.has_contents(2) && !device.has_contents(3) && device.is_read_only());
/// assert_eq!(device.note(), [9000, 0, 0]);
/// drop(device);
/// assert_eq!(StoreDevice::check(&path)?.stored_pages, 3);
/// # std::fs::remove_file(&path).unwrap();
/// # Ok::<_, backend_api::Error>(())
/// ```
pub struct StoreDevice {
    engine: Engine<Tiered<RamFallback<StorePart>>>,
    cards: Option<Arc<Cards>>,
    volume: Arc<Volume>,
    /// The stores that commit together, in the same order for each of them.
    group: Arc<[Member]>,
    scratch: ScratchRam,
    path: PathBuf,
    /// Allocator of the pages that buffers own.
    claims: Arc<Mutex<ExtentAllocator>>,
    /// Share that the next buffer gets, if the pages are shared out.
    next_share: Mutex<Option<PageShare>>,
}

/// A store of a group of joined stores.
#[derive(Clone)]
struct Member {
    volume: Arc<Volume>,
    path: PathBuf,
}

impl std::ops::Deref for Member {
    type Target = Volume;

    fn deref(&self) -> &Volume {
        &self.volume
    }
}

/// A store file that is locked and whose contents were read: the input of
/// [`open_together`](StoreDevice::open_together). Reading does not change the file.
///
/// ```
/// use vmarray_store::{StoreDevice, StoreFile};
/// # let path = std::env::temp_dir().join(format!("vmarray-store-file-{}", std::process::id()));
/// drop(StoreDevice::create(&path, 4096, 10, b"ten pages", [0; 3])?);
/// let file = StoreFile::read(&path, false)?;
/// assert_eq!((file.metadata(), file.page_bytes()), (&b"ten pages"[..], 4096));
/// # drop(file);
/// # std::fs::remove_file(&path).unwrap();
/// # Ok::<_, backend_api::Error>(())
/// ```
pub struct StoreFile {
    opened: OpenedVolume,
    path: PathBuf,
    is_read_only: bool,
}

impl StoreFile {
    /// Locks and reads an existing store file.
    ///
    /// # Errors
    /// The errors of [`StoreDevice::open`].
    pub fn read(path: impl AsRef<Path>, is_read_only: bool) -> Result<Self> {
        let path = path.as_ref();
        let disk = FileDisk::open(path, is_read_only).map_err(|cause| refused("open", path, &cause))?;
        let opened = OpenedVolume::read(Box::new(disk), is_read_only).map_err(|error| named(error, path))?;
        Ok(Self { opened, path: path.to_owned(), is_read_only })
    }

    /// Path of the store's file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Metadata that the program stored when it created the store.
    #[must_use]
    pub fn metadata(&self) -> &[u8] {
        self.opened.metadata()
    }

    /// Length of a page in bytes.
    #[must_use]
    pub fn page_bytes(&self) -> usize {
        self.opened.page_bytes()
    }
}

impl fmt::Debug for StoreFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreFile").field("path", &self.path).finish_non_exhaustive()
    }
}

impl StoreDevice {
    /// Creates a store file for `pages` pages of `page_bytes` bytes, all zeroes, accessible to this user
    /// alone. Programs that open the file later can read `metadata` (at most some 3900 bytes), and the
    /// [note](Self::set_note).
    ///
    /// # Errors
    /// [`AlreadyExists`](ErrorKind::AlreadyExists) if the path exists; the file stays unchanged.
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) if the page length is 0, or the metadata is too long.
    /// [`OutOfMemory`](ErrorKind::OutOfMemory) if RAM or disk are full; [`System`](ErrorKind::System) for all
    /// other failures. After an error the call leaves no file.
    pub fn create(
        path: impl AsRef<Path>,
        page_bytes: usize,
        pages: u64,
        metadata: &[u8],
        note: [u64; 3],
    ) -> Result<Self> {
        const OPERATION: &str = "create";
        let path = path.as_ref();
        let invalid = |detail| Error::new(ErrorKind::InvalidArgument, OPERATION).with_detail(detail);
        let fits = (pages as u128) * (page_bytes as u128) <= u128::from(FILE_BYTES_MAX);
        if page_bytes == 0 || page_bytes as u64 > PAGE_BYTES_MAX || !fits {
            return Err(invalid("pages must have 1 byte to 1 GiB, and fit into a file"));
        }
        let metadata = metadata.to_vec();
        Ok(Self::new(path, Self::make(OPERATION, path, (page_bytes, pages), metadata, note)?))
    }

    fn make(
        operation: &'static str,
        path: &Path,
        (page_bytes, pages): (usize, u64),
        metadata: Vec<u8>,
        note: [u64; 3],
    ) -> Result<Volume> {
        let disk = FileDisk::create(path).map_err(|cause| refused(operation, path, &cause))?;
        let id = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), path);
        let plan = VolumePlan { page_bytes, pages, has_checksums: true, metadata, note, id };
        let volume = Volume::create(Box::new(disk), plan).inspect_err(|_| {
            // Ignore a failed removal: the first error is more useful.
            let _ = std::fs::remove_file(path);
        });
        volume.map_err(|error| named(error, path))
    }

    /// Copies pages, metadata and note of a store file of any readable format version to a new file of the
    /// newest version. If an array has several files, convert each file, and then open the new files
    /// together. During the call no program may have the file open for writing. The command `vmarray-monitor
    /// --convert` calls this function.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open), also for a damaged page, and [`create`](Self::create). After an
    /// error the call leaves no new file.
    ///
    /// ```
    /// use vmarray_store::StoreDevice;
    /// # let name = |n| std::env::temp_dir().join(format!("vmarray-convert-{n}-{}", std::process::id()));
    /// # let (old, new) = (name("old"), name("new"));
    /// drop(StoreDevice::create(&old, 4096, 10, b"ten pages", [7; 3])?);
    /// StoreDevice::convert(&old, &new)?;
    /// assert_eq!(StoreDevice::open(&new)?.metadata(), b"ten pages");
    /// # std::fs::remove_file(&old).unwrap();
    /// # std::fs::remove_file(&new).unwrap();
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    pub fn convert(from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        const OPERATION: &str = "convert";
        let (from, to) = (from.as_ref(), to.as_ref());
        let disk = FileDisk::open(from, true).map_err(|cause| refused(OPERATION, from, &cause))?;
        let source = Volume::open(Box::new(disk), true).map_err(|error| named(error, from))?;
        let pages = (source.page_bytes(), source.pages());
        // Keep the commit number and token, which must be the same in all files of an array.
        let commit = source.commit_id();
        let target = Self::make(OPERATION, to, pages, source.metadata(), source.note())?;
        let copied = source.copy_to(OPERATION, &target).map_err(|error| named(error, from));
        copied.and_then(|()| target.close_at(commit).map_err(|error| named(error, to))).inspect_err(|_| {
            // Ignore a failed removal: the first error is more useful.
            let _ = std::fs::remove_file(to);
        })
    }

    /// Locks a path: until the lock is dropped, no program can open the file at the path as a store. Use the
    /// lock while the program replaces the file. If there is no file at the path, the call locks nothing.
    ///
    /// # Errors
    /// [`InUse`](ErrorKind::InUse) if a store at that path is open, in this process or another.
    ///
    /// ```
    /// use backend_api::ErrorKind;
    /// use vmarray_store::StoreDevice;
    /// # let path = std::env::temp_dir().join(format!("vmarray-lock-path-{}", std::process::id()));
    /// let store = StoreDevice::create(&path, 4096, 10, b"", [0; 3])?;
    /// assert_eq!(StoreDevice::lock_path(&path).unwrap_err().kind(), ErrorKind::InUse);
    /// drop(store);
    /// let lock = StoreDevice::lock_path(&path)?;
    /// assert_eq!(StoreDevice::open(&path).unwrap_err().kind(), ErrorKind::InUse);
    /// # drop(lock);
    /// # std::fs::remove_file(&path).unwrap();
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    pub fn lock_path(path: impl AsRef<Path>) -> Result<PathLock> {
        let path = path.as_ref();
        FileDisk::lock(path).map(PathLock).map_err(|cause| refused("save", path, &cause))
    }

    /// Opens an existing store file for exclusive use.
    ///
    /// # Errors
    /// [`InUse`](ErrorKind::InUse) if another process, or another device of this process, has the file open;
    /// [`WrongFormat`](ErrorKind::WrongFormat) if the file is not a store, or has a later version;
    /// [`Corrupted`](ErrorKind::Corrupted) if the file is damaged; [`System`](ErrorKind::System) for all
    /// other failures.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_for(path.as_ref(), false)
    }

    /// Opens an existing store file for reading, together with other readers. The device refuses work that
    /// writes, with [`ReadOnly`](ErrorKind::ReadOnly).
    ///
    /// # Errors
    /// The errors of [`open`](Self::open).
    pub fn open_read_only(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_for(path.as_ref(), true)
    }

    fn open_for(path: &Path, is_read_only: bool) -> Result<Self> {
        let mut stores = Self::open_together(vec![StoreFile::read(path, is_read_only)?])?;
        Ok(stores.remove(0))
    }

    /// Opens files that were [joined](Self::join), in the state of the last commit that all files have, and
    /// joins the files again. Returns the devices in the order of the files. If a file of the group is opened
    /// alone for writing, it may not match the other files afterwards. Files that were converted from version
    /// 2 are assumed to match each other until the first commit.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open). [`Corrupted`](ErrorKind::Corrupted), with the name of the file, if
    /// a file is older or newer than the other files, for example a restored copy.
    ///
    /// # Panics
    /// If some files are read-only, and other files are not.
    ///
    /// ```
    /// use backend_api::{Device, ErrorKind};
    /// use vmarray_store::{StoreDevice, StoreFile};
    /// # let name = |n| std::env::temp_dir().join(format!("vmarray-together-{n}-{}", std::process::id()));
    /// # let paths = [name("a"), name("b"), name("c")];
    /// let create = |path| StoreDevice::create(path, 4096, 10, b"", [0; 3]);
    /// let mut stores = [create(&paths[0])?, create(&paths[1])?];
    /// StoreDevice::join(&mut stores);
    /// stores[0].set_note([7; 3])?;
    /// stores[1].sync()?;
    /// drop(stores);
    /// std::fs::copy(&paths[1], &paths[2]).unwrap();
    ///
    /// let open = || StoreDevice::open_together(
    ///     paths[..2].iter().map(|path| StoreFile::read(path, false)).collect::<Result<_, _>>()?,
    /// );
    /// let stores = open()?;
    /// assert_eq!(stores[1].note(), [7; 3]);
    /// stores[1].set_note([8; 3])?;
    /// drop(stores);
    /// // An older copy takes the place of the second file.
    /// std::fs::rename(&paths[2], &paths[1]).unwrap();
    /// assert_eq!(open().unwrap_err().kind(), ErrorKind::Corrupted);
    /// # paths[..2].iter().for_each(|path| std::fs::remove_file(path).unwrap());
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    pub fn open_together(files: Vec<StoreFile>) -> Result<Vec<Self>> {
        let is_read_only = files.first().is_some_and(|file| file.is_read_only);
        assert!(
            files.iter().all(|file| file.is_read_only == is_read_only),
            "some files are read-only, others are not; open all in one mode"
        );
        let (opened, paths): (Vec<_>, Vec<_>) =
            files.into_iter().map(|StoreFile { opened, path, .. }| (opened, path)).unzip();
        let volumes =
            open_together(opened, is_read_only).map_err(|(file, error)| named(error, &paths[file]))?;
        let mut stores: Vec<_> =
            paths.iter().zip(volumes).map(|(path, volume)| Self::new(path, volume)).collect();
        Self::join(&mut stores);
        Ok(stores)
    }

    /// Joins stores, so that they commit together. [`sync`](Device::sync) of one store, or the drop of one,
    /// then stores the changes of all joined stores as one commit, with one [note](Self::set_note). The files
    /// stay locked until all of these stores are dropped. Call this function before the first commit, with
    /// new stores or with stores that were [opened together](Self::open_together).
    ///
    /// ```
    /// use std::sync::Arc;
    /// use backend_api::{Commit, Device, DeviceBuffer, Fill, Queue};
    /// use vmarray_store::{StoreDevice, StoreFile};
    /// # let path = |n| std::env::temp_dir().join(format!("vmarray-joined-{n}-{}", std::process::id()));
    /// let paths = [path(0), path(1)];
    /// let create = |path| StoreDevice::create(path, 4096, 1, b"", [0; 3]);
    /// let mut stores = [create(&paths[0])?, create(&paths[1])?];
    /// StoreDevice::join(&mut stores);
    /// let stores = stores.map(Arc::new);
    /// for store in &stores {
    ///     let (queue, page) = (Queue::new(store)?, DeviceBuffer::new(store, 4096, Commit::Lazy)?);
    ///     store.wait(queue.submit(&Fill { to: page.at(0), bytes: 4096, pattern: &[7] })?)?;
    /// }
    /// stores[0].sync()?; // stores the pages of both
    /// drop(stores);
    /// let files = paths.iter().map(|path| StoreFile::read(path, false)).collect::<Result<_, _>>()?;
    /// assert!(StoreDevice::open_together(files)?.iter().all(|store| store.has_contents(0)));
    /// # paths.iter().for_each(|path| std::fs::remove_file(path).unwrap());
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    pub fn join(stores: &mut [Self]) {
        let member = |store: &Self| Member { volume: Arc::clone(&store.volume), path: store.path.clone() };
        let group: Arc<[Member]> = stores.iter().map(member).collect();
        stores.iter_mut().for_each(|store| store.group = Arc::clone(&group));
    }

    fn of_file(&self, (file, error): FileError) -> Error {
        named(error, &self.group[file].path)
    }

    /// Reads a whole store file and reports its damage, without a change to the file. No program may have the
    /// file open for writing meanwhile. Blocks until the whole file is read.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open), if the file cannot be opened as a store.
    pub fn check(path: impl AsRef<Path>) -> Result<StoreReport> {
        let path = path.as_ref();
        let disk = FileDisk::open(path, true).map_err(|cause| refused("check", path, &cause))?;
        Volume::check(Box::new(disk)).map_err(|error| named(error, path))
    }

    fn new(path: &Path, volume: Volume) -> Self {
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let name =
            path.file_name().map_or_else(|| "store".to_owned(), |name| name.to_string_lossy().into_owned());
        let identity = format!("store:{}", path.display());
        let bytes = volume.pages() * volume.page_bytes() as u64;
        let info = DeviceInfo::new("host", &name, DeviceKind::File, &identity).with_total_bytes(bytes);
        let engine = Engine::with_pool(info, Pool::shared(default_threads()), u64::MAX);
        engine.pass_through(Arc::clone(&volume.gate));
        let volume = Arc::new(volume);
        let group = Arc::new([Member { volume: Arc::clone(&volume), path: path.clone() }]);
        Self {
            scratch: ScratchRam::new(engine.wiping()),
            engine,
            cards: None,
            volume,
            group,
            path,
            claims: Arc::new(Mutex::new(ExtentAllocator::except([]))),
            next_share: Mutex::default(),
        }
    }

    /// Caches pages on the GPUs of a tier, and allocates the GPU memory now. The tier does not use a GPU with
    /// too little memory; [`Tier::status`] reports the reason. Durability is the same as without a tier.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use backend_host::HostDevice;
    /// use vmarray_store::{StoreDevice, Tier};
    /// # let path = std::env::temp_dir().join(format!("vmarray-store-tier-{}", std::process::id()));
    /// let tier = Tier::new([Arc::new(HostDevice::new(1 << 20)?)]).bytes(256 << 10);
    /// let store = StoreDevice::create(&path, 4096, 1000, b"", [0; 3])?.with_tier(&tier);
    /// assert_eq!(tier.status().capacity_bytes, 256 << 10);
    /// # std::fs::remove_file(&path).unwrap();
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    #[must_use]
    pub fn with_tier(mut self, tier: &Tier) -> Self {
        self.cards = Some(tier.open_for_store(self.page_bytes()));
        self
    }

    /// Path of the store's file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Metadata that the program stored at the creation, or [set later](Self::set_metadata).
    #[must_use]
    pub fn metadata(&self) -> Vec<u8> {
        self.volume.metadata()
    }

    /// Replaces the metadata. The next [`sync`](Device::sync) makes the new metadata durable.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) if the metadata is too long,
    /// [`ReadOnly`](ErrorKind::ReadOnly).
    pub fn set_metadata(&self, metadata: &[u8]) -> Result<()> {
        self.engine.named(self.volume.set_metadata(metadata))
    }

    /// Returns the note: three numbers that the last commit stored, or that the program [set
    /// later](Self::set_note).
    #[must_use]
    pub fn note(&self) -> [u64; 3] {
        self.volume.note()
    }

    /// Sets the note: three numbers that the next commit, and later commits, store together with the pages. A
    /// program that reads the numbers also finds all writes of work that was done before this call. The call
    /// adds no cost to the commit, unlike [`set_metadata`](Self::set_metadata), after which the commit writes
    /// the map of all pages. [Joined](Self::join) stores have one note.
    ///
    /// # Errors
    /// [`ReadOnly`](ErrorKind::ReadOnly).
    pub fn set_note(&self, note: [u64; 3]) -> Result<()> {
        self.engine.named(self.group.iter().try_for_each(|member| member.set_note(note)))
    }

    /// Divides the pages into `shares` shares, one for each of the next `shares` buffers, in the order of
    /// allocation. These buffers can have any length, and can be [extended](Device::extend). Call this method
    /// before the first buffer is allocated, and with the same number each time the store is opened.
    ///
    /// # Panics
    /// If `shares` is 0.
    ///
    /// ```
    /// use backend_api::{Commit, Device};
    /// use vmarray_store::StoreDevice;
    /// # let path = std::env::temp_dir().join(format!("vmarray-shared-{}", std::process::id()));
    /// let device = StoreDevice::create(&path, 4096, 0, b"", [0; 3])?;
    /// device.share_out(2);
    /// let one = device.allocate(4096, Commit::Lazy)?;
    /// let other = device.allocate_extensible(0, 1 << 30, Commit::Lazy)?;
    /// device.extend(&other, 8192, Commit::Lazy)?;
    /// assert_eq!((device.pages(), device.has_contents(65)), (66, false));
    /// device.release(one);
    /// device.release(other);
    /// # std::fs::remove_file(&path).unwrap();
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    pub fn share_out(&self, shares: u64) {
        assert!(shares > 0, "the number of shares is 0; pass at least 1");
        *self.next_share.lock() = Some(PageShare { number: 0, shares });
    }

    /// Zeroes all pages of a [share](Self::share_out) (the pages of one buffer) after the first `kept_pages`
    /// pages. So a buffer that is extended later does not show old contents. Has no effect on a read-only
    /// store.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use backend_api::{Commit, DeviceBuffer, Fill, Device, Queue};
    /// use vmarray_store::StoreDevice;
    /// # let path = std::env::temp_dir().join(format!("vmarray-cleared-{}", std::process::id()));
    /// let device = Arc::new(StoreDevice::create(&path, 4096, 0, b"", [0; 3])?);
    /// device.share_out(1);
    /// let (queue, pages) = (Queue::new(&device)?, DeviceBuffer::new(&device, 8192, Commit::Lazy)?);
    /// device.wait(queue.submit(&Fill { to: pages.at(0), bytes: 8192, pattern: &[7] })?)?;
    /// device.clear_share(0, 1);
    /// assert!(device.has_contents(0) && !device.has_contents(1));
    /// # drop((pages, queue));
    /// # std::fs::remove_file(&path).unwrap();
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    pub fn clear_share(&self, share: u64, kept_pages: u64) {
        let shares = self.next_share.lock().map_or(1, |next| next.shares);
        if !self.is_read_only() {
            let share = PageShare { number: share, shares };
            let others = share.pages_from(kept_pages, self.pages());
            others.filter(|page| self.has_contents(*page)).for_each(|page| self.volume.clear(page));
        }
    }

    /// Zeroes a page, and frees the page's part of the file: at once if no [`sync`](Device::sync) has stored
    /// the page, else with the next `sync`. Has no effect on a page of zeroes.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use backend_api::{Commit, Device, DeviceBuffer, Fill, Queue};
    /// use vmarray_store::StoreDevice;
    /// # let path = std::env::temp_dir().join(format!("vmarray-page-cleared-{}", std::process::id()));
    /// let device = Arc::new(StoreDevice::create(&path, 4096, 2, b"", [0; 3])?);
    /// let (queue, pages) = (Queue::new(&device)?, DeviceBuffer::new(&device, 8192, Commit::Lazy)?);
    /// device.wait(queue.submit(&Fill { to: pages.at(0), bytes: 8192, pattern: &[7] })?)?;
    /// device.clear(1);
    /// assert!(device.has_contents(0) && !device.has_contents(1));
    /// # drop((pages, queue));
    /// # std::fs::remove_file(&path).unwrap();
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    pub fn clear(&self, page: u64) {
        if self.has_contents(page) && !self.is_read_only() {
            self.volume.clear(page);
        }
    }

    /// Converts page number `page` of share `share` to the page number in the store, if the store has
    /// `shares` [shares](Self::share_out) (sets of pages, one for each buffer). 64 consecutive pages of the
    /// store go to each share in turn.
    ///
    /// ```
    /// use vmarray_store::StoreDevice;
    /// // The second page of the second share of two, and its 65th one.
    /// assert_eq!([1, 64].map(|page| StoreDevice::shared_page(2, 1, page)), [65, 192]);
    /// ```
    #[must_use]
    pub fn shared_page(shares: u64, share: u64, page: u64) -> u64 {
        PageShare { number: share, shares }.page(page)
    }

    /// Length of a page in bytes.
    #[must_use]
    pub fn page_bytes(&self) -> usize {
        self.volume.page_bytes()
    }

    /// Number of pages of the store.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.volume.pages()
    }

    /// Returns true if the store was opened for reading only.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.volume.is_read_only()
    }

    /// From this call on, new buffers are scratch memory in RAM for temporary data, at most 1 GiB in all.
    /// Call this method after the buffers for all persistent pages are allocated.
    ///
    /// ```
    /// use backend_api::{Commit, Device, ErrorKind};
    /// use vmarray_store::StoreDevice;
    /// # let path = std::env::temp_dir().join(format!("vmarray-work-{}", std::process::id()));
    /// let device = StoreDevice::create(&path, 1000, 10, b"", [0; 3])?;
    /// let pages = device.allocate(10_000, Commit::Lazy)?;
    /// assert_eq!(device.allocate(1, Commit::Lazy).unwrap_err().kind(), ErrorKind::OutOfMemory);
    /// device.serve_work();
    /// device.release(device.allocate(1, Commit::Lazy)?);
    /// device.release(pages);
    /// # std::fs::remove_file(&path).unwrap();
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    pub fn serve_work(&self) {
        self.scratch.lend();
    }

    /// Allocates memory of the kind that the device serves now, extensible to `most` bytes.
    fn memory_of(&self, bytes: u64, most: u64, commit: Commit) -> Result<RamFallback<StorePart>> {
        if self.scratch.is_lent() {
            return Ok(RamFallback::Ram(self.scratch.take(bytes, commit)?));
        }
        let next = &mut *self.next_share.lock();
        let Some(share) = *next else {
            let claimed = Claimed::take(&self.claims, self.pages(), self.page_bytes(), bytes)?;
            return Ok(RamFallback::Own(StorePart::together(&self.volume, claimed, bytes)));
        };
        if share.number == share.shares {
            let error = Error::new(ErrorKind::OutOfMemory, "allocate").with_bytes(bytes);
            return Err(error.with_detail("each share of the store already has a buffer"));
        }
        let part = StorePart::share(&self.volume, share, bytes, most)?;
        *next = Some(PageShare { number: share.number + 1, ..share });
        Ok(RamFallback::Own(part))
    }

    fn add(&self, memory: RamFallback<StorePart>) -> BufferHandle {
        let cards = match memory {
            RamFallback::Own(_) => self.cards.as_ref(),
            RamFallback::Ram(_) => None,
        };
        self.engine.add_buffer(Arc::new(Tiered::new(memory, cards, self.engine.wiping())))
    }

    fn is_shared_out(&self) -> bool {
        self.next_share.lock().is_some() && !self.scratch.is_lent()
    }

    /// Returns true if the page exists and has nonzero contents.
    #[must_use]
    pub fn has_contents(&self, page: u64) -> bool {
        self.volume.has_contents(page)
    }
}

impl fmt::Debug for StoreDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("StoreDevice");
        debug.field("path", &self.path).field("pages", &self.pages()).field("page_bytes", &self.page_bytes());
        debug.finish_non_exhaustive()
    }
}

impl Drop for StoreDevice {
    fn drop(&mut self) {
        // Commit, because only then pages survive a power failure. A drop cannot return an error, so warn.
        if self.volume.is_read_only() || self.volume.is_removed() {
            return;
        }
        let stored = sync_together(&self.group).map_err(|error| self.of_file(error));
        if let Err(error) = stored.and_then(|()| self.volume.mark_closed()) {
            warn::warn(format!("{}: some changed pages could not be stored: {error}", self.path.display()));
        }
    }
}

/// A lock that prevents programs from opening a path as a store: see [`StoreDevice::lock_path`]. The drop
/// unlocks the path.
///
/// ```
/// use vmarray_store::{PathLock, StoreDevice};
/// let path = std::env::temp_dir().join(format!("vmarray-no-store-{}", std::process::id()));
/// let _lock: PathLock = StoreDevice::lock_path(&path)?;
/// assert!(!path.exists(), "a lock creates no file");
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Debug)]
#[must_use]
pub struct PathLock(#[expect(dead_code, reason = "holds the lock")] Option<FileDisk>);

/// Returns the error of a failed open.
pub(crate) fn refused(operation: &'static str, path: &Path, cause: &io::Error) -> Error {
    let error = match cause.kind() {
        io::ErrorKind::AlreadyExists => Error::new(ErrorKind::AlreadyExists, operation),
        io::ErrorKind::WouldBlock => Error::new(ErrorKind::InUse, operation),
        _ => return named(failed(operation, cause), path),
    };
    error.with_detail(path.display().to_string())
}

/// Adds the path of the file to an error.
fn named(error: Error, path: &Path) -> Error {
    let detail = format!("{}: {}", path.display(), error.detail());
    error.with_detail(detail)
}

impl DirectReads for StoreDevice {
    fn read_directly(&self, from: DeviceSpan<'_>, into: &mut [u8]) -> Result<()> {
        self.engine.read_directly(from, into)
    }

    fn read_all_directly(&self, reads: &mut [(DeviceSpan<'_>, &mut [u8])]) -> Result<()> {
        self.engine.read_all_directly(reads)
    }

    /// Length of a block with its own checksum; with a tier, length of a whole page.
    fn unit_bytes(&self) -> usize {
        if self.cards.is_some() { self.page_bytes() } else { self.volume.unit_bytes() }
    }
}

// SAFETY: `Engine` meets the contract: it checks names and looks up memory before it queues work; work keeps
// its memory alive, and a release waits for the work.
unsafe impl Device for StoreDevice {
    fn memory(&self) -> Result<MemoryStatus> {
        let (total, free) = if self.next_share.lock().is_some() {
            // Pages that were never written take no space in the file, so the limit is the maximum size of a
            // file.
            (FILE_BYTES_MAX, FILE_BYTES_MAX - self.pages() * self.page_bytes() as u64)
        } else if self.scratch.is_lent() {
            self.scratch.status()
        } else {
            let (page_bytes, claims) = (self.page_bytes() as u64, self.claims.lock());
            (self.pages() * page_bytes, (self.pages() - claims.taken()) * page_bytes)
        };
        Ok(MemoryStatus::new(total, free, free))
    }

    /// Allocates the lowest pages without a buffer, with their contents. If pages are shared out, allocates
    /// the next [share](StoreDevice::share_out); after [`serve_work`](StoreDevice::serve_work), RAM.
    fn allocate(&self, bytes: u64, commit: Commit) -> Result<BufferHandle> {
        self.engine.named(self.memory_of(bytes, bytes, commit)).map(|memory| self.add(memory))
    }

    /// Allocates the next [share](StoreDevice::share_out) of the store.
    fn allocate_extensible(&self, bytes: u64, most: u64, commit: Commit) -> Result<BufferHandle> {
        const OPERATION: &str = "allocate_extensible";
        self.engine.named(check_extensible(bytes, most))?;
        if !self.is_shared_out() {
            let error = Error::new(ErrorKind::Unsupported, OPERATION).with_bytes(bytes);
            let detail = "the store is not divided into shares; call `share_out` first";
            return self.engine.named(Err(error.with_detail(detail)));
        }
        self.engine.named(self.memory_of(bytes, most, commit)).map(|memory| self.add(memory))
    }

    fn extend(&self, buffer: &BufferHandle, bytes: u64, _commit: Commit) -> Result<()> {
        self.engine.extend(buffer, |memory| match memory.below() {
            RamFallback::Own(part) => part.extend(bytes),
            RamFallback::Ram(ram) => check_extend(ram.bytes(), bytes, ram.bytes()).map(drop),
        })
    }

    fn sync(&self) -> Result<()> {
        self.engine.named(sync_together(&self.group).map_err(|error| self.of_file(error)))
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
