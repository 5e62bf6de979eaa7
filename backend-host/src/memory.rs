//! Memory of this process from the operating system: aligned mappings, huge pages, page-locking.

use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use backend_api::racy;
use memmap2::{MmapOptions, MmapRaw};
use vmarray_support::backends::ram::SystemMemory;

/// Size of a huge page on x86-64, and on AArch64 with 4 KiB pages; elsewhere only an alignment.
pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;
/// The alignment of host memory that [`allocate_host`](backend_api::Device::allocate_host) promises.
pub(crate) const ALIGNMENT_BYTES: usize = 4096;

/// Zeroed memory from the system, aligned to 4 KiB, or to 2 MiB if it is at least that long. The system
/// commits pages on first access.
///
/// The type returns addresses and never references, because other threads access the same bytes.
#[derive(Debug)]
pub(crate) struct Map {
    /// `None` for zero bytes, because the system refuses an empty map.
    map: Option<MmapRaw>,
    /// Byte offset of the aligned part in the map.
    shift: usize,
    bytes: usize,
}

impl Map {
    /// Maps `bytes` bytes of zeroed memory. Requests huge pages if `huge_pages` is true.
    pub fn new(bytes: usize, huge_pages: bool) -> io::Result<Self> {
        Self::with(bytes, huge_pages, &mut MmapOptions::new())
    }

    /// Reserves addresses for `bytes` bytes that the process may never use. A system with strict overcommit
    /// does not count them. [`use_up_to`](Self::use_up_to) requests huge pages later.
    pub fn reserved(bytes: usize) -> io::Result<Self> {
        Self::with(bytes, false, MmapOptions::new().no_reserve_swap())
    }

    /// Requests huge pages for the first `bytes` bytes, which the device uses. The first access to a huge
    /// page clears the whole page, so the map requests none for unused bytes.
    pub fn use_up_to(&self, bytes: usize) {
        self.ask_for_huge_pages(bytes / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES);
    }

    fn with(bytes: usize, huge_pages: bool, options: &mut MmapOptions) -> io::Result<Self> {
        if bytes == 0 {
            return Ok(Self { map: None, shift: 0, bytes });
        }
        // A map is aligned to small pages only, so map more, to start at a huge page. This costs no memory.
        let slack = if bytes >= HUGE_PAGE_BYTES { HUGE_PAGE_BYTES } else { 0 };
        let length = bytes.checked_add(slack).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        let map = MmapRaw::from(options.len(length).map_anon()?);
        let shift = if slack > 0 { map.as_mut_ptr().align_offset(HUGE_PAGE_BYTES) } else { 0 };
        assert!(shift <= slack, "the map has no aligned address within its first huge page");
        let map = Self { map: Some(map), shift, bytes };
        if huge_pages && slack > 0 {
            map.ask_for_huge_pages(bytes);
        }
        Ok(map)
    }

    #[cfg(all(target_os = "linux", not(miri)))]
    fn ask_for_huge_pages(&self, bytes: usize) {
        if let Some(map) = self.map.as_ref().filter(|_| bytes > 0)
            && let Err(error) = map.advise_range(memmap2::Advice::HugePage, self.shift, bytes)
        {
            // The memory works without huge pages, but is slower.
            tracing::debug!(%error, bytes, "the system gives no huge pages to an allocation");
        }
    }

    #[cfg(any(not(target_os = "linux"), miri))]
    #[expect(clippy::unused_self, reason = "the function for Linux uses `self`")]
    fn ask_for_huge_pages(&self, _bytes: usize) {}

    /// Address of the first byte of the map. Valid for reads and writes while the map lives.
    pub fn address(&self) -> NonNull<u8> {
        let none = NonNull::<Page>::dangling().cast();
        let Some(map) = &self.map else { return none };
        // SAFETY: `shift` is at most the slack by which the map exceeds `bytes`.
        let first = unsafe { map.as_mut_ptr().add(self.shift) };
        NonNull::new(first).unwrap_or(none)
    }

    /// Makes the system provide RAM for a part of the map now, so a lack of memory is an error instead of a
    /// crash at the first access.
    pub fn populate(&self, part: Range<usize>) -> io::Result<()> {
        assert!(part.end <= self.bytes, "{part:?} is outside of {} bytes", self.bytes);
        // Skip the first, partial page, because other data may already use it.
        let part = part.start.next_multiple_of(ALIGNMENT_BYTES).min(part.end)..part.end;
        let Some(_map) = self.map.as_ref().filter(|_| !part.is_empty()) else { return Ok(()) };
        #[cfg(all(target_os = "linux", not(miri)))]
        match _map.advise_range(memmap2::Advice::PopulateWrite, self.shift + part.start, part.len()) {
            // Ignore this error: Linux before 5.14 does not know the advice.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
            result => return result,
        }
        for offset in part.step_by(ALIGNMENT_BYTES) {
            // SAFETY: inside the map. The part is unused, so it already contains zeroes.
            unsafe { racy::fill(self.address().as_ptr().add(offset), 0, 1) };
        }
        Ok(())
    }
}

/// Switch for the wiping of released memory, with a counter of wiped bytes.
#[derive(Debug, Default)]
pub struct Wiping {
    is_on: AtomicBool,
    bytes: AtomicU64,
}

impl Wiping {
    /// Enables wiping of released memory. Wiping cannot be disabled again.
    pub fn start(&self) {
        self.is_on.store(true, Ordering::Release);
    }

    /// Returns true if wiping of released memory is enabled.
    pub fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Acquire)
    }

    /// Number of bytes wiped since the device was created.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Adds to the number of wiped bytes.
    pub fn count(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Overwrites `bytes` bytes at `address` with zeroes if wiping is enabled.
    ///
    /// # Safety
    /// The requirements of [`racy::wipe`].
    pub unsafe fn wipe(&self, address: *mut u8, bytes: usize) {
        if self.is_on() {
            // SAFETY: the caller has the same obligations.
            unsafe { racy::wipe(address, bytes) };
            self.count(bytes as u64);
        }
    }
}

/// Small intermediate buffer of a kernel. The drop always wipes the buffer, because that is cheap.
#[derive(Clone, Debug, Default)]
pub struct Passage<T: bytemuck::Zeroable + Copy>(pub Vec<T>);

impl<T: bytemuck::Zeroable + Copy> Drop for Passage<T> {
    fn drop(&mut self) {
        // SAFETY: the elements are initialised, and this is their only owner. All-zero elements are valid.
        unsafe { racy::wipe(self.0.as_mut_ptr().cast(), size_of_val(&*self.0)) };
    }
}

/// Type with the alignment of host memory, for the dangling address of empty memory.
#[repr(align(4096))]
struct Page;

pub(crate) use lock::LockedMemory;

#[cfg(all(unix, not(miri)))]
mod lock {
    use std::collections::BTreeMap;
    use std::io;
    use std::ops::Range;
    use std::ptr::NonNull;

    use parking_lot::Mutex;

    /// The pages that this crate has page-locked.
    ///
    /// The system does not count locks: one `munlock` undoes all `mlock` calls of a page. Imported ranges may
    /// share their first and last pages.
    static LOCKED: Mutex<LockCounts> = Mutex::new(LockCounts::new());

    /// The number of locks of each page. Adding or removing a lock takes time only for the runs of pages that
    /// it overlaps, independent of the number of locks.
    #[derive(Debug)]
    pub(super) struct LockCounts {
        /// Disjoint runs of pages by their first page: the end of each run, and the locks of each page.
        runs: BTreeMap<usize, (usize, usize)>,
        pages: usize,
    }

    impl LockCounts {
        pub const fn new() -> Self {
            Self { runs: BTreeMap::new(), pages: 0 }
        }

        /// Divides the run that contains page `at`, so a run begins at this page.
        fn cut(&mut self, at: usize) {
            if let Some((&start, &(end, count))) = self.runs.range(..at).next_back()
                && at < end
            {
                self.runs.insert(start, (at, count));
                self.runs.insert(at, (end, count));
            }
        }

        /// Returns the runs in a range of pages. Runs that overlap an end of the range are divided there.
        fn runs_in(&mut self, pages: &Range<usize>) -> Vec<Range<usize>> {
            self.cut(pages.start);
            self.cut(pages.end);
            self.runs.range(pages.clone()).map(|(start, (end, _))| *start..*end).collect()
        }

        /// Counts one more lock for each page of this range of page numbers.
        pub fn add(&mut self, pages: Range<usize>) {
            let mut at = pages.start;
            for run in self.runs_in(&pages).into_iter().chain(std::iter::once(pages.end..pages.end)) {
                if at < run.start {
                    self.runs.insert(at, (run.start, 1));
                    self.pages += run.start - at;
                }
                if !run.is_empty()
                    && let Some((_, count)) = self.runs.get_mut(&run.start)
                {
                    *count += 1;
                }
                at = run.end;
            }
        }

        /// Counts one lock less for each page of this range. Returns the pages that have no lock any more.
        pub fn end(&mut self, pages: &Range<usize>) -> Vec<Range<usize>> {
            let mut free: Vec<Range<usize>> = Vec::new();
            for run in self.runs_in(pages) {
                let Some((_, count)) = self.runs.get_mut(&run.start) else { continue };
                *count -= 1;
                if *count > 0 {
                    continue;
                }
                self.runs.remove(&run.start);
                self.pages -= run.len();
                match free.last_mut() {
                    Some(last) if last.end == run.start => last.end = run.end,
                    _ => free.push(run),
                }
            }
            free
        }
    }

    /// Page-locked memory, unlocked on drop.
    #[derive(Debug)]
    pub(crate) struct LockedMemory(Range<usize>);

    /// Length in bytes from which the lock also allocates all pages at once.
    #[cfg(target_os = "linux")]
    const POPULATE_FROM_BYTES: usize = 1 << 20;

    /// Locks shorter memory without allocating it. Each page stays in RAM from its first use on; many
    /// small caches cost only their used pages. Returns false if the system cannot do so.
    ///
    /// # Safety
    /// As [`LockedMemory::new`].
    #[cfg(target_os = "linux")]
    unsafe fn lock_on_use(address: NonNull<u8>, bytes: usize) -> bool {
        let lock = || {
            // SAFETY: the caller guarantees the memory; the lock does not change its contents.
            unsafe { libc::syscall(libc::SYS_mlock2, address.as_ptr(), bytes, libc::MLOCK_ONFAULT) }
        };
        bytes < POPULATE_FROM_BYTES && lock() == 0
    }

    /// Always returns false, because this system locks whole ranges only.
    #[cfg(not(target_os = "linux"))]
    unsafe fn lock_on_use(_address: NonNull<u8>, _bytes: usize) -> bool {
        false
    }

    impl LockedMemory {
        /// Page-locks the `bytes` bytes that start at `address`.
        ///
        /// # Safety
        /// The bytes must be mapped, and stay mapped until the lock is dropped.
        pub unsafe fn new(address: NonNull<u8>, bytes: usize) -> io::Result<Self> {
            if bytes == 0 {
                return Ok(Self(0..0));
            }
            let size = page_bytes();
            let first = address.addr().get() / size;
            let pages = first..(address.addr().get() + bytes).div_ceil(size);
            let mut locked = LOCKED.lock();
            // SAFETY: the caller guarantees the memory; the lock does not change its contents.
            let is_locked =
                unsafe { lock_on_use(address, bytes) || libc::mlock(address.as_ptr().cast(), bytes) == 0 };
            if !is_locked {
                return Err(io::Error::last_os_error());
            }
            locked.add(pages.clone());
            Ok(Self(pages))
        }

        /// Number of bytes that this process may still page-lock; `None` without a limit.
        pub fn available_bytes() -> Option<u64> {
            let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            // SAFETY: `limit` has room for the result.
            let known = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) } == 0;
            if !known || limit.rlim_cur == libc::RLIM_INFINITY {
                return None;
            }
            let pages = LOCKED.lock().pages;
            #[allow(clippy::unnecessary_cast, reason = "the type differs between systems")]
            Some((limit.rlim_cur as u64).saturating_sub((pages * page_bytes()) as u64))
        }
    }

    impl Drop for LockedMemory {
        fn drop(&mut self) {
            let mut locked = LOCKED.lock();
            let size = page_bytes();
            for free in locked.end(&self.0) {
                // SAFETY: the pages are mapped, as the creator of the lock guarantees, and no other lock of
                // this crate covers them.
                unsafe {
                    libc::munlock(std::ptr::without_provenance((free.start) * size), free.len() * size)
                };
            }
        }
    }

    fn page_bytes() -> usize {
        // SAFETY: a query without preconditions.
        let answer = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        usize::try_from(answer).ok().filter(|size| size.is_power_of_two()).unwrap_or(4096)
    }
}

#[cfg(any(not(unix), miri))]
mod lock {
    use std::io;
    use std::ptr::NonNull;

    /// Page-locked memory, which cannot exist on this system.
    #[derive(Debug)]
    pub(crate) enum LockedMemory {}

    impl LockedMemory {
        /// Always fails, because this system does not support page-locking.
        ///
        /// # Safety
        /// No requirements on this system; see the version for Unix.
        pub unsafe fn new(_address: NonNull<u8>, _bytes: usize) -> io::Result<Self> {
            Err(io::ErrorKind::Unsupported.into())
        }

        /// Always returns `None`, because this system does not report a limit of page-locked memory.
        pub fn available_bytes() -> Option<u64> {
            None
        }
    }
}

/// Maximum age of a reading of the system's free memory. A new reading takes 50 us or more on Linux, which
/// exceeds the creation of a small array. In this time programs can use only a small part of the reserve in
/// `usable_bytes`.
const READING_AGE_MAX: Duration = Duration::from_millis(10);

/// Returns the size of the RAM and its available part, read at most [`READING_AGE_MAX`] ago.
pub(crate) fn system_memory() -> io::Result<SystemMemory> {
    static LAST: Mutex<Option<(Instant, SystemMemory)>> = Mutex::new(None);
    // Do not block here: another thread may hold the lock, and a forked process lacks that thread.
    let Ok(mut last) = LAST.try_lock() else { return read_system_memory() };
    match *last {
        Some((at, memory)) if at.elapsed() < READING_AGE_MAX => Ok(memory),
        _ => {
            let memory = read_system_memory()?;
            *last = Some((Instant::now(), memory));
            Ok(memory)
        }
    }
}

/// Reads the size of the RAM and its available part.
#[cfg(target_os = "linux")]
fn read_system_memory() -> io::Result<SystemMemory> {
    let unknown = || io::Error::other("/proc/meminfo lacks MemTotal or MemAvailable");
    SystemMemory::of_linux().ok_or_else(unknown)
}

/// Reads the size of the RAM and its available part.
#[cfg(not(target_os = "linux"))]
fn read_system_memory() -> io::Result<SystemMemory> {
    let mut system = sysinfo::System::new().map_err(io::Error::other)?;
    system.refresh_memory();
    match system.total_memory() {
        0 => Err(io::Error::other("the size of the memory is unknown")),
        total_bytes => Ok(SystemMemory { total_bytes, available_bytes: system.available_memory() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_are_aligned_and_zeroed() {
        for (bytes, alignment) in [(0, 4096), (1, 4096), (5000, 4096), (3 << 20, HUGE_PAGE_BYTES)] {
            let map = Map::new(bytes, true).unwrap();
            assert_eq!(map.address().addr().get() % alignment, 0);
            map.populate(0..bytes).unwrap();
            let mut copy = vec![7_u8; bytes];
            // SAFETY: the map is as long as the vector.
            unsafe { racy::copy(map.address().as_ptr(), copy.as_mut_ptr(), bytes) };
            assert!(copy.iter().all(|&byte| byte == 0));
        }
    }

    #[test]
    fn more_than_the_address_space_is_an_error() {
        assert!(Map::new(usize::MAX, true).is_err());
        assert!(Map::new(usize::MAX / 2, true).is_err());
    }

    #[test]
    #[cfg(all(unix, not(miri)))]
    fn pages_are_unlocked_with_their_last_lock() {
        let mut random = backend_api::wrap::SplitMix64::new(1);
        for _ in 0..200 {
            let (mut counts, mut locks) = (lock::LockCounts::new(), Vec::new());
            let mut naive = [0_u32; 30];
            for _ in 0..60 {
                if locks.is_empty() || random.below(3) > 0 {
                    let start = random.index(29);
                    let pages = start..start + random.index(30 - start);
                    counts.add(pages.clone());
                    naive[pages.clone()].iter_mut().for_each(|count| *count += 1);
                    locks.push(pages);
                    continue;
                }
                let pages = locks.swap_remove(random.index(locks.len()));
                let free: Vec<usize> = counts.end(&pages).into_iter().flatten().collect();
                naive[pages.clone()].iter_mut().for_each(|count| *count -= 1);
                let expected: Vec<usize> = pages.filter(|page| naive[*page] == 0).collect();
                assert_eq!(free, expected);
            }
            locks.iter().for_each(|pages| _ = counts.end(pages));
            assert!(format!("{counts:?}").contains("pages: 0"), "{counts:?}");
        }
    }
}
