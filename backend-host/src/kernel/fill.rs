//! Fills of device memory on the processor, with a repeated pattern.

use backend_api::Result;

use super::{PART_BYTES, each_part};
use crate::handle_table::MemoryPlace;
use crate::storage::Storage;
use crate::worker::Crew;

/// Bytes of one write, from a block of repeated patterns that stays in the cache.
const BLOCK_BYTES: usize = 16 << 10;

/// A checked fill, with references to its memory.
#[derive(Debug)]
pub(crate) struct FillJob<M> {
    /// Location in device memory at which the fill starts.
    pub to: MemoryPlace<M>,
    /// Number of bytes that the fill writes.
    pub bytes: u64,
    /// Bytes that the fill repeats.
    pub pattern: Box<[u8]>,
}

impl<M: Storage> FillJob<M> {
    /// Runs the fill on the threads of `crew`.
    pub fn run(&self, crew: Crew<'_>) -> Result<()> {
        // A block contains whole patterns only, so consecutive blocks continue the pattern. A block has at
        // least one pattern, because patterns have at most 4096 bytes.
        let block_bytes = BLOCK_BYTES.max(self.to.memory.unit_bytes() as usize);
        let repeats =
            (block_bytes / self.pattern.len()).min(self.bytes.div_ceil(self.pattern.len() as u64) as usize);
        let block = self.pattern.repeat(repeats);
        if block.is_empty() {
            return Ok(());
        }
        let part_bytes = ((PART_BYTES / block.len()).max(1) * block.len()) as u64;
        each_part(crew, self.bytes.div_ceil(part_bytes) as usize, &|part| {
            let mut at = part as u64 * part_bytes;
            let end = (at + part_bytes).min(self.bytes);
            while at < end {
                let bytes = (block.len() as u64).min(end - at) as usize;
                // SAFETY: `at + bytes` is at most the length of the fill, which was checked to be inside the
                // memory.
                unsafe { self.to.memory.store("fill", self.to.offset + at, &block[..bytes]) }?;
                at += bytes as u64;
            }
            Ok(())
        })
    }
}
