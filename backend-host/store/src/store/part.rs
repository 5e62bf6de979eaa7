//! Part of a store: the pages that one device owns exclusively, accessed as device memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use backend_api::{Result, racy};
use vmarray_support::backends::check_extend;

use super::volume::{GROUP_PAGES, Volume};
use crate::extent_allocator::Claimed;
use backend_host::parts::Storage;

/// Pages of a store that one buffer owns exclusively.
#[derive(Debug)]
pub(super) struct StorePart {
    volume: Arc<Volume>,
    pages: Pages,
    bytes: AtomicU64,
    most: u64,
}

#[derive(Debug)]
enum Pages {
    /// Consecutive pages of the store.
    Together(Claimed),
    /// Pages of one share, which alternate with those of other shares.
    Share(PageShare),
}

/// Share of the pages of a store, which one buffer owns. Groups of 64 consecutive pages of the store go to
/// the shares in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PageShare {
    pub number: u64,
    pub shares: u64,
}

impl PageShare {
    /// Converts a page number in this share (the pages of one buffer) to the page number in the store.
    pub fn page(self, page: u64) -> u64 {
        let (turn, at) = (page / GROUP_PAGES, page % GROUP_PAGES);
        let group = turn.saturating_mul(self.shares).saturating_add(self.number);
        group.saturating_mul(GROUP_PAGES).saturating_add(at)
    }

    /// Number of pages that the store needs so that this share (the pages of one buffer) has `pages` pages.
    pub fn pages_of_store(self, pages: u64) -> u64 {
        pages.checked_sub(1).map_or(0, |last| self.page(last).saturating_add(1))
    }

    /// Iterates over this share (the pages of one buffer) from its page `first` on. Yields page numbers in
    /// the store, which has `pages_of_store` pages.
    pub fn pages_from(self, first: u64, pages_of_store: u64) -> impl Iterator<Item = u64> {
        (first..).map(move |page| self.page(page)).take_while(move |page| *page < pages_of_store)
    }
}

impl StorePart {
    pub fn together(volume: &Arc<Volume>, claimed: Claimed, bytes: u64) -> Self {
        let (volume, pages) = (Arc::clone(volume), Pages::Together(claimed));
        Self { volume, pages, bytes: AtomicU64::new(bytes), most: bytes }
    }

    /// Creates device memory from the first `bytes` bytes of a share of a store's pages, extensible to `most`
    /// bytes.
    pub fn share(volume: &Arc<Volume>, share: PageShare, bytes: u64, most: u64) -> Result<Self> {
        let part =
            Self { volume: Arc::clone(volume), pages: Pages::Share(share), bytes: AtomicU64::new(0), most };
        part.lengthen("allocate", bytes)?;
        Ok(part)
    }

    /// Extends the memory to `bytes` bytes. New pages have the contents that the store already has for these
    /// pages, or zeroes.
    pub fn extend(&self, bytes: u64) -> Result<()> {
        if check_extend(self.bytes.load(Ordering::Acquire), bytes, self.most)? {
            self.lengthen("extend", bytes)?;
        }
        Ok(())
    }

    fn lengthen(&self, operation: &'static str, bytes: u64) -> Result<()> {
        if let Pages::Share(share) = &self.pages {
            let pages = share.pages_of_store(bytes.div_ceil(self.volume.page_bytes() as u64));
            self.volume.lengthen(operation, pages)?;
            self.bytes.fetch_max(bytes, Ordering::AcqRel);
        }
        Ok(())
    }

    /// Calls `work` for each piece of a byte range that is contiguous in the store: with its offset in the
    /// store, the number of bytes before it, and its length.
    fn pieces(
        &self,
        offset: u64,
        bytes: usize,
        mut work: impl FnMut(u64, usize, usize) -> Result<()>,
    ) -> Result<()> {
        let page_bytes = self.volume.page_bytes() as u64;
        let share = match &self.pages {
            Pages::Together(claimed) => return work(claimed.first() * page_bytes + offset, 0, bytes),
            Pages::Share(share) => share,
        };
        let group_bytes = GROUP_PAGES * page_bytes;
        let mut done = 0;
        while done < bytes {
            let at = offset + done as u64;
            let piece = (group_bytes - at % group_bytes).min((bytes - done) as u64) as usize;
            work(share.page(at / page_bytes) * page_bytes + at % page_bytes, done, piece)?;
            done += piece;
        }
        Ok(())
    }
}

impl Storage for StorePart {
    const BLOCK_BYTES: usize = 256 << 10;
    /// Never read single fields, because pages are read whole.
    const SPARSE_STRIDE_BYTES: usize = usize::MAX;

    fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Acquire)
    }

    fn unit_bytes(&self) -> u64 {
        self.volume.page_bytes() as u64
    }

    fn address(&self) -> Option<*mut u8> {
        None
    }

    unsafe fn read(&self, operation: &'static str, offset: u64, to: *mut u8, bytes: usize) -> Result<()> {
        self.pieces(offset, bytes, |place, before, bytes| {
            self.volume.read(operation, place, bytes, |done, part| {
                // SAFETY: the caller guarantees the target, and this is a part of it.
                unsafe { racy::write(to.wrapping_add(before + done), part) };
            })
        })
    }

    unsafe fn read_into(&self, operation: &'static str, offset: u64, into: &mut [u8]) -> Result<()> {
        self.pieces(offset, into.len(), |place, before, bytes| {
            self.volume.read_into(operation, place, &mut into[before..before + bytes])
        })
    }

    unsafe fn write(
        &self,
        operation: &'static str,
        offset: u64,
        from: *const u8,
        bytes: usize,
    ) -> Result<()> {
        self.pieces(offset, bytes, |place, before, bytes| {
            self.volume.write(operation, place, bytes, |done, part| {
                let from = from.wrapping_add(before + done);
                // SAFETY: the caller guarantees the source, and this is a part of it.
                unsafe { racy::copy(from, part.as_mut_ptr(), part.len()) };
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each page of a store belongs to one share, and pages of a share keep their order.
    #[test]
    fn shares_have_all_pages_once() {
        for shares in [1, 2, 9] {
            let share = |number| PageShare { number, shares };
            let mut pages: Vec<u64> =
                (0..shares).flat_map(|number| share(number).pages_from(0, 3000)).collect();
            for number in 0..shares {
                let own: Vec<u64> = share(number).pages_from(0, 3000).collect();
                assert!(own.is_sorted());
                for (at, page) in (0..).zip(&own) {
                    assert_eq!(
                        (share(number).page(at), share(number).pages_of_store(at + 1)),
                        (*page, page + 1)
                    );
                }
                assert!(share(number).pages_from(5, 3000).eq(own[5..].iter().copied()));
            }
            pages.sort_unstable();
            assert!(pages.into_iter().eq(0..3000));
        }
        assert_eq!(PageShare { number: 1, shares: 3 }.pages_of_store(0), 0);
    }
}
