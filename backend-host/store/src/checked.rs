//! Device memory with a checksum for each page, which is verified when the page is read.

use std::ops::Range;

use backend_api::{Error, ErrorKind, Result, racy};
use parking_lot::RwLock;
use twox_hash::XxHash3_64;

use backend_host::parts::{Passage, Storage};

/// Length of a page with a checksum, in bytes.
const PAGE_BYTES: u64 = 16 << 10;
/// Number of adjacent pages that share a lock and are read and written together.
const GROUP_PAGES: u64 = 16;
const GROUPS: u64 = 64;

/// Memory below, and the checksums of its pages if they are enabled.
///
/// A page gets its checksum with the first write. The lock of a group lets one thread write, or several read,
/// so bytes and checksums always match.
#[derive(Debug)]
pub(crate) struct ChecksummedMemory<M> {
    below: M,
    sums: Option<Sums>,
}

#[derive(Debug)]
struct Sums {
    /// XXH3 checksums (64 bits) of the pages, by group; 0 if a checksum is unknown.
    groups: Box<[RwLock<Vec<u64>>]>,
    /// End in bytes of memory that never grows. A page that ends there counts as whole.
    end: Option<u64>,
}

/// The part of a byte range that is in one group of pages.
struct Piece {
    group: u64,
    bytes: Range<u64>,
    /// The pages that contain the requested bytes, as a byte range.
    pages: Range<u64>,
}

fn checksum(page: u64, bytes: &[u8]) -> u64 {
    // 0 marks an unknown checksum, so replace 0 by 1. The page number is the seed: the check then also
    // detects a page that was stored as another page.
    XxHash3_64::oneshot_with_seed(page, bytes).max(1)
}

impl<M: Storage> ChecksummedMemory<M> {
    /// Creates memory over `below`. If `has_sums` is true, reads verify each page by a checksum. If
    /// `may_grow` is true, a partial last page has no checksum.
    pub fn new(below: M, has_sums: bool, may_grow: bool) -> Self {
        let end = Some(below.bytes()).filter(|_| !may_grow);
        let groups = || (0..GROUPS).map(|_| RwLock::default()).collect();
        Self { sums: has_sums.then(|| Sums { groups: groups(), end }), below }
    }

    /// Returns the memory whose pages the checksums verify.
    pub fn below(&self) -> &M {
        &self.below
    }

    /// Index of a page's checksum in its group.
    fn at(page: u64) -> usize {
        (page / GROUP_PAGES / GROUPS * GROUP_PAGES + page % GROUP_PAGES) as usize
    }

    fn pieces(&self, offset: u64, bytes: usize, mut work: impl FnMut(Piece) -> Result<()>) -> Result<()> {
        const GROUP_BYTES: u64 = GROUP_PAGES * PAGE_BYTES;
        let (mut at, end, length) = (offset, offset + bytes as u64, self.below.bytes());
        while at < end {
            let group = at / GROUP_BYTES;
            let next = ((group + 1) * GROUP_BYTES).min(end);
            let pages = at / PAGE_BYTES * PAGE_BYTES..next.next_multiple_of(PAGE_BYTES).min(length);
            work(Piece { group: group % GROUPS, bytes: at..next, pages })?;
            at = next;
        }
        Ok(())
    }

    /// Reads whole pages of one group, and verifies known checksums. The caller has locked the group.
    fn load(&self, operation: &'static str, sums: &[u64], pages: Range<u64>, into: &mut [u8]) -> Result<()> {
        // SAFETY: the buffer has this length and belongs to this thread; the pages are inside the memory.
        unsafe { self.below.read(operation, pages.start, into.as_mut_ptr(), into.len()) }?;
        for (page, bytes) in (pages.start / PAGE_BYTES..).zip(into.chunks(PAGE_BYTES as usize)) {
            let sum = sums.get(Self::at(page)).copied().unwrap_or(0);
            if sum != 0 && sum != checksum(page, bytes) {
                let offset = page * PAGE_BYTES;
                let detail =
                    format!("page {page} of {PAGE_BYTES} bytes differs from the data that was written");
                return Err(Error::new(ErrorKind::Corrupted, operation)
                    .with_offset(offset)
                    .with_detail(detail)
                    .with_advice("write the whole page again, or restore it from a copy"));
            }
        }
        Ok(())
    }
}

impl<M: Storage> Storage for ChecksummedMemory<M> {
    const BLOCK_BYTES: usize = M::BLOCK_BYTES;
    const SPARSE_STRIDE_BYTES: usize = M::SPARSE_STRIDE_BYTES;

    fn bytes(&self) -> u64 {
        self.below.bytes()
    }

    fn unit_bytes(&self) -> u64 {
        if self.sums.is_some() { PAGE_BYTES } else { self.below.unit_bytes() }
    }

    fn address(&self) -> Option<*mut u8> {
        self.below.address().filter(|_| self.sums.is_none())
    }

    fn announce(&self, offset: u64, bytes: usize) {
        self.below.announce(offset, bytes);
    }

    unsafe fn read(&self, operation: &'static str, offset: u64, to: *mut u8, bytes: usize) -> Result<()> {
        let Some(Sums { groups, .. }) = &self.sums else {
            // SAFETY: the caller has the same obligations.
            return unsafe { self.below.read(operation, offset, to, bytes) };
        };
        let mut buffer = Passage(Vec::new());
        self.pieces(offset, bytes, |Piece { group, bytes, pages }| {
            let sums = groups[group as usize].read();
            buffer.0.resize((pages.end - pages.start) as usize, 0);
            self.load(operation, &sums, pages.clone(), &mut buffer.0)?;
            let part = (bytes.start - pages.start) as usize..(bytes.end - pages.start) as usize;
            // SAFETY: the caller guarantees the target, and this is a part of it.
            unsafe { racy::write(to.wrapping_add((bytes.start - offset) as usize), &buffer.0[part]) };
            Ok(())
        })
    }

    unsafe fn write(
        &self,
        operation: &'static str,
        offset: u64,
        from: *const u8,
        bytes: usize,
    ) -> Result<()> {
        let Some(Sums { groups, end }) = &self.sums else {
            // SAFETY: the caller has the same obligations.
            return unsafe { self.below.write(operation, offset, from, bytes) };
        };
        let mut buffer = Passage(Vec::new());
        self.pieces(offset, bytes, |Piece { group, bytes, pages }| {
            let mut sums = groups[group as usize].write();
            buffer.0.resize((pages.end - pages.start) as usize, 0);
            let page = PAGE_BYTES as usize;
            let part = (bytes.start - pages.start) as usize..(bytes.end - pages.start) as usize;
            let last = (buffer.0.len() - 1) / page * page;
            // First read the pages that the write covers only in part.
            if part.start > 0 {
                let end = page.min(buffer.0.len());
                self.load(operation, &sums, pages.start..pages.start + end as u64, &mut buffer.0[..end])?;
            }
            if part.end < buffer.0.len() && (last > 0 || part.start == 0) {
                self.load(operation, &sums, pages.start + last as u64..pages.end, &mut buffer.0[last..])?;
            }
            // SAFETY: the caller guarantees the source, and this is a part of it.
            unsafe {
                racy::read(from.wrapping_add((bytes.start - offset) as usize), &mut buffer.0[part.clone()])
            };
            let first = pages.start / PAGE_BYTES;
            let most = Self::at(first) + buffer.0.len().div_ceil(page);
            if sums.len() < most {
                sums.resize(most, 0);
            }
            let own = &mut sums[Self::at(first)..most];
            // Mark the checksums as unknown, because after a failed write the contents are unknown.
            own.fill(0);
            // SAFETY: the range is inside the memory.
            unsafe { self.below.store(operation, bytes.start, &buffer.0[part]) }?;
            for ((page, bytes), sum) in (first..).zip(buffer.0.chunks(page)).zip(own) {
                let is_whole = bytes.len() as u64 == PAGE_BYTES || Some(pages.end) == *end;
                *sum = if is_whole { checksum(page, bytes) } else { 0 };
            }
            Ok(())
        })
    }
}
