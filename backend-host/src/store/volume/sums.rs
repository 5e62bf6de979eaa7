//! Checksums of pages, and of their blocks.

use std::ops::Range;

use super::super::format::{BLOCK_BYTES, BlockSums, Superblock, checksum};

/// How the pages of a store are checked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sums {
    id: u64,
    has_checksums: bool,
    /// Of pages of more than one block.
    pub blocks: Option<BlockSums>,
}

impl Sums {
    pub fn of(superblock: &Superblock, place_bytes: u64) -> Self {
        let Superblock { id, has_checksums, .. } = *superblock;
        Self { id, has_checksums, blocks: BlockSums::of(superblock, place_bytes) }
    }

    /// Whether pages have checksums at all.
    pub fn are_kept(&self) -> bool {
        self.has_checksums
    }

    /// The checksum of a page. Those of its blocks, if it has any, are appended to `blocks`.
    pub fn of_page(&self, page: u64, bytes: &[u8], blocks: &mut Vec<u8>) -> u64 {
        if !self.has_checksums {
            return 0;
        }
        let Some(sums) = &self.blocks else { return self.with(page, bytes) };
        let start = blocks.len();
        sums.of_page(self.id, bytes, blocks);
        self.with(page, &blocks[start..])
    }

    /// The checksum of a page that has these checksums of blocks.
    pub fn with(&self, page: u64, blocks: &[u8]) -> u64 {
        // A page at the place of another one is wrong, too.
        checksum(self.id.wrapping_add(page), blocks)
    }

    /// Whether blocks from number `first` on have the checksums that are in `sums`, those of their page.
    pub fn fit(&self, sums: &[u8], first: usize, blocks: &[u8]) -> bool {
        let sums = sums.chunks_exact(8).skip(first);
        blocks.chunks(BLOCK_BYTES).zip(sums).all(|(block, sum)| checksum(self.id, block).to_le_bytes() == sum)
    }

    /// Of a range of a page the blocks that have all of it, in bytes, if it is sooner read with the
    /// checksums of the page than the page is.
    pub fn blocks_of(&self, range: &Range<usize>, page_bytes: usize) -> Option<(Range<usize>, &BlockSums)> {
        let sums = self.blocks.as_ref()?;
        let start = range.start / BLOCK_BYTES * BLOCK_BYTES;
        let end = range.end.next_multiple_of(BLOCK_BYTES).min(page_bytes);
        (end - start + sums.bytes() <= page_bytes / 2).then_some((start..end, sums))
    }
}
