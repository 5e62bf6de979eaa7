//! Memory of this process: aligned maps, huge pages, page-locking.

use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use backend_api::backends::ram::SystemMemory;
use backend_api::racy;
use memmap2::{MmapOptions, MmapRaw};

/// The huge page of x86-64, and of AArch64 with 4 KiB pages. Elsewhere it is a fine alignment and nothing
/// more.
pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;
/// What the contract promises for host memory.
pub(crate) const ALIGNMENT_BYTES: usize = 4096;

/// Zeroed memory straight from the system: at a multiple of 4 KiB, of 2 MiB if it is as long as that. Pages
/// appear when they are touched first.
///
/// Only addresses come out of it, never references: other threads and the program reach the same bytes.
#[derive(Debug)]
pub(crate) struct Map {
    /// `None` for no bytes at all, which the system refuses to map.
    map: Option<MmapRaw>,
    /// Where the aligned part begins.
    shift: usize,
    bytes: usize,
}

impl Map {
    /// Maps `bytes` bytes; asks for huge pages if told so, which the system may ignore.
    pub fn new(bytes: usize, huge_pages: bool) -> io::Result<Self> {
        Self::with(bytes, huge_pages, &mut MmapOptions::new())
    }

    /// As [`new`](Self::new), of addresses that memory may never be wanted for: a system that counts what it
    /// has promised does not count them. Huge pages are [asked for](Self::use_up_to) when they are.
    pub fn reserved(bytes: usize) -> io::Result<Self> {
        Self::with(bytes, false, MmapOptions::new().no_reserve_swap())
    }

    /// Asks for huge pages under the first so many bytes: for no more than are used, since the first touch of
    /// such a page clears all of it.
    pub fn use_up_to(&self, bytes: usize) {
        self.ask_for_huge_pages(bytes / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES);
    }

    fn with(bytes: usize, huge_pages: bool, options: &mut MmapOptions) -> io::Result<Self> {
        if bytes == 0 {
            return Ok(Self { map: None, shift: 0, bytes });
        }
        // A map begins at some small page. Room for moving on to the next huge one costs addresses, not
        // memory.
        let slack = if bytes >= HUGE_PAGE_BYTES { HUGE_PAGE_BYTES } else { 0 };
        let length = bytes.checked_add(slack).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        let map = MmapRaw::from(options.len(length).map_anon()?);
        let shift = if slack > 0 { map.as_mut_ptr().align_offset(HUGE_PAGE_BYTES) } else { 0 };
        assert!(shift <= slack, "a byte pointer can be aligned within one huge page");
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
            // A kernel without huge pages: slower, not wrong.
            tracing::debug!(%error, bytes, "no huge pages");
        }
    }

    #[cfg(any(not(target_os = "linux"), miri))]
    #[expect(clippy::unused_self, reason = "the twin for Linux uses it")]
    fn ask_for_huge_pages(&self, _bytes: usize) {}

    /// The first byte. Valid for reads and writes of the whole length while the map lives.
    pub fn address(&self) -> NonNull<u8> {
        let none = NonNull::<Page>::dangling().cast();
        let Some(map) = &self.map else { return none };
        // SAFETY: `shift` is at most the slack that the map is longer than `bytes`.
        let first = unsafe { map.as_mut_ptr().add(self.shift) };
        NonNull::new(first).unwrap_or(none)
    }

    /// Makes every page of a part exist that nobody has used yet, so that lack of memory shows now.
    pub fn populate(&self, part: Range<usize>) -> io::Result<()> {
        assert!(part.end <= self.bytes, "{part:?} is outside of {} bytes", self.bytes);
        // The page in which it begins may be in use.
        let part = part.start.next_multiple_of(ALIGNMENT_BYTES).min(part.end)..part.end;
        let Some(_map) = self.map.as_ref().filter(|_| !part.is_empty()) else { return Ok(()) };
        #[cfg(all(target_os = "linux", not(miri)))]
        match _map.advise_range(memmap2::Advice::PopulateWrite, self.shift + part.start, part.len()) {
            // Linux before 5.14 does not know the advice.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
            result => return result,
        }
        for offset in part.step_by(ALIGNMENT_BYTES) {
            // SAFETY: inside of the map. The part is new, so zero is what is there already.
            unsafe { racy::fill(self.address().as_ptr().add(offset), 0, 1) };
        }
        Ok(())
    }
}

/// Whether a device wipes its memory before it gives it back, and how much it has.
#[derive(Debug, Default)]
pub(crate) struct Wiping {
    is_on: AtomicBool,
    bytes: AtomicU64,
}

impl Wiping {
    /// For good.
    pub fn start(&self) {
        self.is_on.store(true, Ordering::Release);
    }

    pub fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Acquire)
    }

    /// How many bytes were wiped so far.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Notes that so many bytes were wiped.
    pub fn count(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Wipes memory, if that is wanted.
    ///
    /// # Safety
    /// As [`racy::wipe`].
    pub unsafe fn wipe(&self, address: *mut u8, bytes: usize) {
        if self.is_on() {
            // SAFETY: passed on.
            unsafe { racy::wipe(address, bytes) };
            self.count(bytes as u64);
        }
    }
}

/// Bytes through which elements pass while a kernel works: wiped in the end in any case, as there are few.
#[derive(Clone, Debug, Default)]
pub(crate) struct Passage<T: bytemuck::Zeroable + Copy>(pub Vec<T>);

impl<T: bytemuck::Zeroable + Copy> Drop for Passage<T> {
    fn drop(&mut self) {
        // SAFETY: the elements are initialised, and this is their only owner. Zeroes are such elements, too.
        unsafe { racy::wipe(self.0.as_mut_ptr().cast(), size_of_val(&*self.0)) };
    }
}

/// Aligned as host memory is, so that the address of no memory is, too.
#[repr(align(4096))]
struct Page;

pub(crate) use lock::Locked;

#[cfg(all(unix, not(miri)))]
mod lock {
    use std::io;
    use std::ops::Range;
    use std::ptr::NonNull;

    use parking_lot::Mutex;

    /// What is locked by this crate, as ranges of page numbers.
    ///
    /// The system does not count: one `munlock` undoes all `mlock`s of a page, and pieces that a program
    /// imports may share their first and last pages.
    static LOCKED: Mutex<Vec<Range<usize>>> = Mutex::new(Vec::new());

    /// Memory that the system keeps in RAM; let go of on drop.
    #[derive(Debug)]
    pub(crate) struct Locked(Range<usize>);

    impl Locked {
        /// Locks the pages that hold `bytes` bytes from `address` on.
        ///
        /// # Safety
        /// The bytes must be mapped, and stay so until the lock is dropped.
        pub unsafe fn new(address: NonNull<u8>, bytes: usize) -> io::Result<Self> {
            if bytes == 0 {
                return Ok(Self(0..0));
            }
            let size = page_bytes();
            let first = address.addr().get() / size;
            let pages = first..(address.addr().get() + bytes).div_ceil(size);
            let mut locked = LOCKED.lock();
            // SAFETY: the caller vouches for the memory; locking does not change it.
            if unsafe { libc::mlock(address.as_ptr().cast(), bytes) } != 0 {
                return Err(io::Error::last_os_error());
            }
            locked.push(pages.clone());
            Ok(Self(pages))
        }

        /// How much more the system lets this process lock, if there is a limit.
        pub fn available_bytes() -> Option<u64> {
            let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            // SAFETY: `limit` is a place for the answer.
            let known = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) } == 0;
            if !known || limit.rlim_cur == libc::RLIM_INFINITY {
                return None;
            }
            let locked = LOCKED.lock();
            let pages: usize = locked.iter().map(ExactSizeIterator::len).sum();
            #[allow(clippy::unnecessary_cast, reason = "the type differs between systems")]
            Some((limit.rlim_cur as u64).saturating_sub((pages * page_bytes()) as u64))
        }
    }

    impl Drop for Locked {
        fn drop(&mut self) {
            let mut locked = LOCKED.lock();
            if let Some(position) = locked.iter().position(|range| *range == self.0) {
                locked.swap_remove(position);
            }
            let size = page_bytes();
            for free in uncovered(self.0.clone(), &locked) {
                // SAFETY: the pages are mapped (the maker of the lock vouched for it), and nobody else has
                // them locked through this crate.
                unsafe {
                    libc::munlock(std::ptr::without_provenance((free.start) * size), free.len() * size)
                };
            }
        }
    }

    /// The parts of `range` that none of `others` covers.
    pub(super) fn uncovered(range: Range<usize>, others: &[Range<usize>]) -> Vec<Range<usize>> {
        let mut left = vec![range];
        for other in others {
            left = left
                .into_iter()
                .flat_map(|part| {
                    let before = part.start..part.end.min(other.start);
                    let after = part.start.max(other.end)..part.end;
                    [before, after]
                })
                .filter(|part| !part.is_empty())
                .collect();
        }
        left
    }

    fn page_bytes() -> usize {
        // SAFETY: a plain question.
        let answer = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        usize::try_from(answer).ok().filter(|size| size.is_power_of_two()).unwrap_or(4096)
    }
}

/// Systems without page-locking; and Miri, which knows none.
#[cfg(any(not(unix), miri))]
mod lock {
    use std::io;
    use std::ptr::NonNull;

    /// Memory that the system keeps in RAM: not to be had here.
    #[derive(Debug)]
    pub(crate) enum Locked {}

    impl Locked {
        /// Always refused.
        ///
        /// # Safety
        /// None needed; the twin for Unix has duties.
        pub unsafe fn new(_address: NonNull<u8>, _bytes: usize) -> io::Result<Self> {
            Err(io::ErrorKind::Unsupported.into())
        }

        /// Unknown.
        pub fn available_bytes() -> Option<u64> {
            None
        }
    }
}

/// Asks the system how much RAM there is.
#[cfg(target_os = "linux")]
pub(crate) fn system_memory() -> io::Result<SystemMemory> {
    let unknown = || io::Error::other("/proc/meminfo says nothing of MemTotal and MemAvailable");
    SystemMemory::of_linux().ok_or_else(unknown)
}

/// Asks the system how much RAM there is.
#[cfg(not(target_os = "linux"))]
pub(crate) fn system_memory() -> io::Result<SystemMemory> {
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
    fn only_what_nobody_else_holds_is_unlocked() {
        use lock::uncovered;
        assert_eq!(uncovered(0..10, &[]), [0..10]);
        assert!(uncovered(0..10, &[0..10]).is_empty());
        assert_eq!(uncovered(0..10, &[3..5, 9..20]), [0..3, 5..9]);
        assert!(uncovered(4..6, &[5..6, 4..5]).is_empty());
    }
}
