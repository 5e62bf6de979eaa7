//! A file whose contents stay, as a device.

#[cfg(test)]
mod damage;
mod disk;
#[forbid(unsafe_code)]
mod format;
mod part;
#[cfg(test)]
mod power;
#[forbid(unsafe_code)]
mod volume;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use backend_api::backends::{check_extend, check_extensible};
use backend_api::{
    BufferHandle, Commit, Device, DeviceInfo, DeviceKind, DeviceSpan, DirectReads, Error, ErrorKind,
    MemoryStatus, Result, tell,
};

use crate::engine::Engine;
use crate::free::{Claimed, Free};
use crate::host::default_threads;
use crate::medium::Medium as _;
use crate::or_ram::{OrRam, Scratch};
use crate::tier::{Cards, Tier, Tiered};
use disk::FileDisk;
use parking_lot::Mutex;
use part::{Part, Share};
use volume::{PAGE_BYTES_MAX, Volume, VolumePlan, failed};

pub use volume::StoreReport;

/// The most bytes that a file can have.
const FILE_BYTES_MAX: u64 = i64::MAX as u64;

/// A file that holds pages which outlive the program: what a [`sync`](Device::sync) has returned for is there
/// after the process was killed, or the power failed.
///
/// # What stays
///
/// A page that is written to goes to a free place of the file ([shadow pages][lorie]), and `sync` writes one
/// record that says where all pages are that have changed. Each page is then as it was at the last `sync`
/// that returned, or at a later one; none is torn, whatever the drive had stored of it, as long as it stores
/// what it says it has stored: what was written by work that was done when `sync` was called is there, and
/// work that goes on meanwhile as a whole or not at all. Pages of zeroes take no place; the file gets no
/// shorter, and places that are free are used again.
///
/// Every page has a checksum (XXH3, 64 bits), and so has each block of 4096 bytes in it. They are compared
/// when it is read: damage is an error of kind [`Corrupted`](ErrorKind::Corrupted) that names page and file,
/// and no value. Superblocks, log and map have one, too, so that a damaged file is refused, and never opened
/// as it was earlier. There is one exception. If the last program that wrote to the file did not close it, a
/// damaged end of the log looks like a commit that was not finished: the file is then as at the commit before
/// it, and [`check`](Self::check) says that it was not closed.
///
/// `sync`, opening and `check` report an error if another program has cut the file, lengthened it or put
/// another one in its place. A file that was removed while it was open is there until it is closed.
///
/// # Growth
///
/// A store has as many pages as it was made with, or, if its pages are [shared out](Self::share_out), as many
/// as its buffers need: these can be extended then. Pages that nobody has written to take no place. With its
/// pages each commit stores a [note](Self::set_note) of three numbers, such as how much of them counts.
///
/// # Cost
///
/// Between two calls of `sync` the file needs a second place for each page that changes. Memory: 16 bytes a
/// page, up to 40 while it is opened. `sync` waits for work that is under way, and for the drive once for up
/// to 16 MiB of changed pages, twice for more, and now and then, when the log is full, four times and writes
/// 16 bytes a page, of which a copy in RAM is made while work waits. Reading a part of a page that is longer
/// than 8 KiB reads the blocks that have the part, and 8 bytes for each block of the page; writing a part
/// reads and writes the page. Opening to write and closing wait for the drive once each.
/// [`wipe_on_release`](Device::wipe_on_release) wipes host memory, and no page of the file.
///
/// # Locks
///
/// One process has the file open for writing, and nobody else then; or any number have it open for reading.
///
/// [lorie]: https://doi.org/10.1145/320521.320540
///
/// ```
/// use std::sync::Arc;
/// use backend_api::{Commit, Device, DeviceBuffer, ErrorKind, Fill, Queue};
/// use backend_host::StoreDevice;
///
/// # let path = std::env::temp_dir().join(format!("vmarray-store-{}", std::process::id()));
/// # let _ = std::fs::remove_file(&path);
/// let device = Arc::new(StoreDevice::create(&path, 4096, 1000, b"eights", [0; 3])?);
/// let (queue, pages) = (Queue::new(&device)?, DeviceBuffer::new(&device, 4_096_000, Commit::Lazy)?);
/// device.wait(queue.fill(&Fill { to: pages.at(0), bytes: 9000, pattern: &[7] })?)?;
/// device.set_metadata(b"sevens")?;
/// device.set_note([9000, 0, 0])?;
/// device.sync()?;
/// // Nobody else may open it meanwhile.
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
    engine: Engine<Tiered<OrRam<Part>>>,
    cards: Option<Arc<Cards>>,
    volume: Arc<Volume>,
    scratch: Scratch,
    path: PathBuf,
    /// Which pages buffers have.
    claims: Arc<Mutex<Free>>,
    /// The share of the next buffer, if pages are shared out.
    next_share: Mutex<Option<Share>>,
}

impl StoreDevice {
    /// Makes a new file for `pages` pages of `page_bytes` bytes, all zeroes, for this user alone. `metadata`,
    /// of at most some 3900 bytes, and the [note](Self::set_note) are for whoever opens it again.
    ///
    /// # Errors
    /// [`AlreadyExists`](ErrorKind::AlreadyExists) if there is anything at that path; it is left as it is.
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for pages of no bytes, or metadata that is too long.
    /// [`OutOfMemory`](ErrorKind::OutOfMemory) if RAM or disk have no room; [`System`](ErrorKind::System) for
    /// everything else. No file is left behind then.
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
            return Err(invalid(
                "pages of no bytes or of more than a GiB, or more bytes than a file can have",
            ));
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
            // The first error is the one to tell.
            let _ = std::fs::remove_file(path);
        });
        volume.map_err(|error| named(error, path))
    }

    /// Writes what a file of any version that is read has to a new file of the newest version: pages, words
    /// and note. Each file of an array is converted by itself, and the new files are opened together. No
    /// program may have the file open for writing meanwhile. The command `vmarray-monitor --convert` calls
    /// this.
    ///
    /// # Errors
    /// As [`open`](Self::open), also for a page that is damaged, and [`create`](Self::create). No new file is
    /// left behind then.
    ///
    /// ```
    /// use backend_host::StoreDevice;
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
        let target = Self::make(OPERATION, to, pages, source.metadata(), source.note())?;
        let copied = source.copy_to(OPERATION, &target).map_err(|error| named(error, from));
        copied.and_then(|()| target.close().map_err(|error| named(error, to))).inspect_err(|_| {
            // The first error is the one to tell.
            let _ = std::fs::remove_file(to);
        })
    }

    /// Keeps a path from being opened as a store while another file takes its place. Of one without a file
    /// nothing is kept.
    ///
    /// # Errors
    /// [`InUse`](ErrorKind::InUse) if a store at that path is open, in this process or another.
    ///
    /// ```
    /// use backend_api::ErrorKind;
    /// use backend_host::StoreDevice;
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

    /// Opens a file that exists, for this process alone.
    ///
    /// # Errors
    /// [`InUse`](ErrorKind::InUse) if another process, or another device of this one, has it open;
    /// [`WrongFormat`](ErrorKind::WrongFormat) if it is something else, or of a later version;
    /// [`Corrupted`](ErrorKind::Corrupted) if it was damaged; [`System`](ErrorKind::System) for everything
    /// else.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_for(path.as_ref(), false)
    }

    /// Opens a file that exists, for reading: others may do so at the same time. Work that writes is refused
    /// with [`ReadOnly`](ErrorKind::ReadOnly).
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_read_only(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_for(path.as_ref(), true)
    }

    fn open_for(path: &Path, is_read_only: bool) -> Result<Self> {
        let disk = FileDisk::open(path, is_read_only).map_err(|cause| refused("open", path, &cause))?;
        let volume = Volume::open(Box::new(disk), is_read_only).map_err(|error| named(error, path))?;
        Ok(Self::new(path, volume))
    }

    /// Reads all of a file, which nobody may have open for writing, and tells what is wrong with it. Changes
    /// nothing. Takes as long as reading takes.
    ///
    /// # Errors
    /// As [`open`](Self::open), if the file cannot be read at all.
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
        let engine = Engine::new(info, default_threads(), u64::MAX, None);
        engine.pass_through(Arc::clone(&volume.gate));
        Self {
            scratch: Scratch::new(engine.wiping()),
            engine,
            cards: None,
            volume: Arc::new(volume),
            path,
            claims: Arc::new(Mutex::new(Free::around([]))),
            next_share: Mutex::default(),
        }
    }

    /// Caches its pages on cards, whose memory is taken now; of one that has none
    /// [`Tier::status`] says why. What stays, and when, is as without.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use backend_host::{HostDevice, StoreDevice, Tier};
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

    /// Where the file is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What was said of it when it was made, or [since](Self::set_metadata).
    #[must_use]
    pub fn metadata(&self) -> Vec<u8> {
        self.volume.metadata()
    }

    /// Says something else of it, from the next [`sync`](Device::sync) on.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) if it is too long, [`ReadOnly`](ErrorKind::ReadOnly).
    pub fn set_metadata(&self, metadata: &[u8]) -> Result<()> {
        self.engine.named(self.volume.set_metadata(metadata))
    }

    /// The numbers of its user that were stored with the last commit, or
    /// [noted since](Self::set_note).
    #[must_use]
    pub fn note(&self) -> [u64; 3] {
        self.volume.note()
    }

    /// Has the next commit, and later ones, store other numbers together with the pages: those who find the
    /// numbers find all that was written by work which was done when they were noted. Costs nothing, unlike
    /// [other words](Self::set_metadata), for which the map is written.
    ///
    /// # Errors
    /// [`ReadOnly`](ErrorKind::ReadOnly).
    pub fn set_note(&self, note: [u64; 3]) -> Result<()> {
        self.engine.named(self.volume.set_note(note))
    }

    /// Shares all pages out among buffers, which are as long as they are wanted, and can be
    /// [extended](Device::extend): the next buffers get one share each, in order. For a store of which nobody
    /// has a buffer, and each time it is opened by as many shares.
    ///
    /// # Panics
    /// If there are no shares.
    ///
    /// ```
    /// use backend_api::{Commit, Device};
    /// use backend_host::StoreDevice;
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
        assert!(shares > 0, "somebody has to have the pages");
        *self.next_share.lock() = Some(Share { number: 0, shares });
    }

    /// Has all pages of a [share](Self::share_out) be zeroes but the first ones, so many of them: of what was
    /// written and does not count nothing is found again. Does nothing to a store that is for reading alone.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use backend_api::{Commit, DeviceBuffer, Fill, Device, Queue};
    /// use backend_host::StoreDevice;
    /// # let path = std::env::temp_dir().join(format!("vmarray-cleared-{}", std::process::id()));
    /// let device = Arc::new(StoreDevice::create(&path, 4096, 0, b"", [0; 3])?);
    /// device.share_out(1);
    /// let (queue, pages) = (Queue::new(&device)?, DeviceBuffer::new(&device, 8192, Commit::Lazy)?);
    /// device.wait(queue.fill(&Fill { to: pages.at(0), bytes: 8192, pattern: &[7] })?)?;
    /// device.clear_share(0, 1);
    /// assert!(device.has_contents(0) && !device.has_contents(1));
    /// # drop((pages, queue));
    /// # std::fs::remove_file(&path).unwrap();
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    pub fn clear_share(&self, share: u64, kept_pages: u64) {
        let shares = self.next_share.lock().map_or(1, |next| next.shares);
        if !self.is_read_only() {
            let share = Share { number: share, shares };
            let others = share.pages_from(kept_pages, self.pages());
            others.filter(|page| self.has_contents(*page)).for_each(|page| self.volume.clear(page));
        }
    }

    /// Has a page be zeroes, which take no place: the one that it had is used again, at once if no
    /// [`sync`](Device::sync) has stored it. Does nothing to a page that has no contents.
    pub fn clear(&self, page: u64) {
        if self.has_contents(page) && !self.is_read_only() {
            self.volume.clear(page);
        }
    }

    /// Which page of a store belongs to one of so many [shares](Self::share_out): they have 64 pages in turn.
    ///
    /// ```
    /// use backend_host::StoreDevice;
    /// // The second page of the second share of two, and its 65th one.
    /// assert_eq!([1, 64].map(|page| StoreDevice::shared_page(2, 1, page)), [65, 192]);
    /// ```
    #[must_use]
    pub fn shared_page(shares: u64, share: u64, page: u64) -> u64 {
        Share { number: share, shares }.page(page)
    }

    /// The length of a page, in bytes.
    #[must_use]
    pub fn page_bytes(&self) -> usize {
        self.volume.page_bytes()
    }

    /// How many pages it has.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.volume.pages()
    }

    /// Whether it was opened for reading alone.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.volume.is_read_only()
    }

    /// From now on memory of the device is RAM, for work of a while, up to a GiB of it: all pages that are to
    /// stay have a buffer.
    ///
    /// ```
    /// use backend_api::{Commit, Device, ErrorKind};
    /// use backend_host::StoreDevice;
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

    /// Memory of the device as it is meant at the moment, which may become `most` bytes.
    fn memory_of(&self, bytes: u64, most: u64, commit: Commit) -> Result<OrRam<Part>> {
        if self.scratch.is_lent() {
            return Ok(OrRam::Ram(self.scratch.take(bytes, commit)?));
        }
        let next = &mut *self.next_share.lock();
        let Some(share) = *next else {
            let claimed = Claimed::take(&self.claims, self.pages(), self.page_bytes(), bytes)?;
            return Ok(OrRam::Own(Part::together(&self.volume, claimed, bytes)));
        };
        if share.number == share.shares {
            let error = Error::new(ErrorKind::OutOfMemory, "allocate").with_bytes(bytes);
            return Err(error.with_detail("each share of the store has its buffer"));
        }
        let part = Part::share(&self.volume, share, bytes, most)?;
        *next = Some(Share { number: share.number + 1, ..share });
        Ok(OrRam::Own(part))
    }

    fn add(&self, memory: OrRam<Part>) -> BufferHandle {
        let cards = match memory {
            OrRam::Own(_) => self.cards.as_ref(),
            OrRam::Ram(_) => None,
        };
        self.engine.add_buffer(Arc::new(Tiered::new(memory, cards, self.engine.wiping())))
    }

    fn is_shared_out(&self) -> bool {
        self.next_share.lock().is_some() && !self.scratch.is_lent()
    }

    /// Whether there is a page that has anything but zeroes.
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
        // What was written is there all the same unless the power fails; to say otherwise would be too late.
        if let Err(error) = self.volume.close() {
            tell::warn(format!("{}: not all of it is stored: {error}", self.path.display()));
        }
    }
}

/// Keeps a path from being opened: [`StoreDevice::lock_path`].
#[derive(Debug)]
#[must_use]
pub struct PathLock(#[expect(dead_code, reason = "holds the lock")] Option<FileDisk>);

/// An error of opening the file.
fn refused(operation: &'static str, path: &Path, cause: &io::Error) -> Error {
    let error = match cause.kind() {
        io::ErrorKind::AlreadyExists => Error::new(ErrorKind::AlreadyExists, operation),
        io::ErrorKind::WouldBlock => Error::new(ErrorKind::InUse, operation),
        _ => return named(failed(operation, cause), path),
    };
    error.with_detail(path.display().to_string())
}

/// The same error, with the file that it is about.
fn named(error: Error, path: &Path) -> Error {
    let detail = format!("{}: {}", path.display(), error.detail());
    error.with_detail(detail)
}

impl DirectReads for StoreDevice {
    fn read_directly(&self, from: DeviceSpan<'_>, into: &mut [u8]) -> Result<()> {
        self.engine.read_directly(from, into)
    }

    /// A block with a checksum of its own. Pages of a tier are read whole.
    fn unit_bytes(&self) -> usize {
        if self.cards.is_some() { self.page_bytes() } else { self.volume.unit_bytes() }
    }
}

// SAFETY: `Engine` has what the contract asks for: names are checked and memory is found before work is
// queued; work keeps what it touches alive, and releasing waits for it.
unsafe impl Device for StoreDevice {
    fn memory(&self) -> Result<MemoryStatus> {
        let (total, free) = if self.next_share.lock().is_some() {
            // Places are taken when pages are written.
            (FILE_BYTES_MAX, FILE_BYTES_MAX - self.pages() * self.page_bytes() as u64)
        } else if self.scratch.is_lent() {
            self.scratch.status()
        } else {
            let (page_bytes, claims) = (self.page_bytes() as u64, self.claims.lock());
            (self.pages() * page_bytes, (self.pages() - claims.taken()) * page_bytes)
        };
        Ok(MemoryStatus::new(total, free, free))
    }

    /// Pages of the store, the lowest that no buffer has, with what is in them; or its next
    /// [share](StoreDevice::share_out); or memory in RAM, if it is [for work](StoreDevice::serve_work).
    fn allocate(&self, bytes: u64, commit: Commit) -> Result<BufferHandle> {
        self.engine.named(self.memory_of(bytes, bytes, commit)).map(|memory| self.add(memory))
    }

    /// The next [share](StoreDevice::share_out) of the store.
    fn allocate_extensible(&self, bytes: u64, most: u64, commit: Commit) -> Result<BufferHandle> {
        const OPERATION: &str = "allocate_extensible";
        self.engine.named(check_extensible(bytes, most))?;
        if !self.is_shared_out() {
            let error = Error::new(ErrorKind::Unsupported, OPERATION).with_bytes(bytes);
            return self.engine.named(Err(error.with_detail("pages of the store are not shared out")));
        }
        self.engine.named(self.memory_of(bytes, most, commit)).map(|memory| self.add(memory))
    }

    fn extend(&self, buffer: &BufferHandle, bytes: u64, _commit: Commit) -> Result<()> {
        self.engine.extend(buffer, |memory| match memory.below() {
            OrRam::Own(part) => part.extend(bytes),
            OrRam::Ram(ram) => check_extend(ram.bytes(), bytes, ram.bytes()).map(drop),
        })
    }

    fn sync(&self) -> Result<()> {
        self.engine.named(self.volume.sync().map_err(|error| named(error, &self.path)))
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
