//! Checksums of a volume's pages, and of the blocks of 4096 bytes in a page.

use std::ops::Range;

use super::super::format::{BLOCK_BYTES, BlockChecksums, Superblock, checksum};

/// Checksums of the pages of a store.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sums {
    id: u64,
    has_checksums: bool,
    /// Layout of the block checksums, if pages have more than one block.
    pub blocks: Option<BlockChecksums>,
}

impl Sums {
    pub fn of(superblock: &Superblock, place_bytes: u64) -> Self {
        let Superblock { id, has_checksums, .. } = *superblock;
        Self { id, has_checksums, blocks: BlockChecksums::of(superblock, place_bytes) }
    }

    /// Returns true if pages have checksums.
    pub fn are_kept(&self) -> bool {
        self.has_checksums
    }

    /// Returns a page's checksum (0 if off). If the page has several blocks, appends their sums to `blocks`.
    pub fn of_page(&self, page: u64, bytes: &[u8], blocks: &mut Vec<u8>) -> u64 {
        if !self.has_checksums {
            return 0;
        }
        let Some(sums) = &self.blocks else { return self.with(page, bytes) };
        let start = blocks.len();
        sums.of_page(self.id, bytes, blocks);
        self.with(page, &blocks[start..])
    }

    /// Computes a page's checksum from `blocks`: its blocks' checksums, or its bytes if it has one block.
    pub fn with(&self, page: u64, blocks: &[u8]) -> u64 {
        // Include the page number in the seed: the check then also detects a page that was stored as another
        // page.
        checksum(self.id.wrapping_add(page), blocks)
    }

    /// Returns true if the bytes in `blocks`, which start at block `first` of the page, match the page's
    /// block checksums in `sums`.
    pub fn fit(&self, sums: &[u8], first: usize, blocks: &[u8]) -> bool {
        let sums = sums.chunks_exact(8).skip(first);
        blocks.chunks(BLOCK_BYTES).zip(sums).all(|(block, sum)| checksum(self.id, block).to_le_bytes() == sum)
    }

    /// Returns the byte range of the blocks that cover a range of a page. Returns `None` without block
    /// checksums, or if it is faster to read the whole page than these blocks and their checksums.
    pub fn blocks_of(
        &self,
        range: &Range<usize>,
        page_bytes: usize,
    ) -> Option<(Range<usize>, &BlockChecksums)> {
        let sums = self.blocks.as_ref()?;
        let start = range.start / BLOCK_BYTES * BLOCK_BYTES;
        let end = range.end.next_multiple_of(BLOCK_BYTES).min(page_bytes);
        (end - start + sums.bytes() <= page_bytes / 2).then_some((start..end, sums))
    }
}
