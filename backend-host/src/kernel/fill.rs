//! Fill: one pattern again and again.

use backend_api::Result;

use super::{PART_BYTES, each_part};
use crate::medium::Medium;
use crate::registry::Place;
use crate::worker::Crew;

/// So much is written at a time, from a block that holds the pattern many times and stays in the cache.
const BLOCK_BYTES: usize = 16 << 10;

/// A fill, checked.
#[derive(Debug)]
pub(crate) struct FillJob<M> {
    /// Where the first copy of the pattern goes.
    pub to: Place<M>,
    /// How many bytes are written.
    pub bytes: u64,
    /// What is written.
    pub pattern: Box<[u8]>,
}

impl<M: Medium> FillJob<M> {
    /// Carries it out.
    pub fn run(&self, crew: Crew<'_>) -> Result<()> {
        // At least one pattern: patterns have at most 4096 bytes. Whole patterns only, so that blocks follow
        // each other without a seam.
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
                // SAFETY: `at + bytes` is at most the length of the fill, which was checked to be inside of
                // the memory.
                unsafe { self.to.memory.store("fill", self.to.offset + at, &block[..bytes]) }?;
                at += bytes as u64;
            }
            Ok(())
        })
    }
}
