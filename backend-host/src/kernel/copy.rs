//! Copies on the processor: host to device, device to host, and within device memory.

use std::sync::Arc;

use backend_api::Result;

use super::{PART_BYTES, each_part};
use crate::handle_table::MemoryPlace;
use crate::host_memory::HostMemoryPiece;
use crate::storage::{ReadRange, Storage};
use crate::worker::Crew;

const OPERATION: &str = "submit";

/// Length in bytes from which several threads share a copy. Half of such a copy takes longer than the wake-up
/// of a thread and the wait for it.
const SHARED_FROM_BYTES: u64 = 4 << 20;

/// A checked copy, with references to its memory.
#[derive(Debug)]
pub(crate) enum CheckedCopy<M> {
    Upload { from: MemoryPlace<HostMemoryPiece>, to: MemoryPlace<M>, bytes: u64 },
    Download { from: MemoryPlace<M>, to: MemoryPlace<HostMemoryPiece>, bytes: u64 },
    Internal { from: MemoryPlace<M>, to: MemoryPlace<M>, bytes: u64 },
}

impl<M: Storage> CheckedCopy<M> {
    /// Number of bytes that the copy moves.
    pub fn bytes(&self) -> u64 {
        match *self {
            Self::Upload { bytes, .. } | Self::Download { bytes, .. } | Self::Internal { bytes, .. } => bytes,
        }
    }

    /// Returns the start of the range in device memory, and the memory's unit of writes. A unit that is
    /// written in part must be read first.
    fn units(&self) -> (u64, u64) {
        let (Self::Upload { to: place, .. }
        | Self::Download { from: place, .. }
        | Self::Internal { to: place, .. }) = self;
        (place.offset, place.memory.unit_bytes().max(1))
    }

    /// Starts readahead of the source in device memory.
    fn announce(&self) {
        if let Self::Download { from, bytes, .. } = self {
            from.memory.announce(from.offset, *bytes as usize);
        }
    }

    /// Returns true if one call for this copy and adjacent reads is faster than single calls.
    fn reads_together(&self) -> bool {
        matches!(self, Self::Download { from, .. } if from.memory.reads_together())
    }

    /// Copies `bytes` bytes, starting `skip` bytes after the start of the copy.
    pub fn run(&self, skip: u64, bytes: usize) -> Result<()> {
        debug_assert!(skip + bytes as u64 <= self.bytes(), "the part extends beyond the copy");
        match self {
            // SAFETY: the range was checked to be inside both pieces of memory, which the places keep alive;
            // host memory and device memory never overlap.
            Self::Upload { from, to, .. } => unsafe {
                to.memory.write(OPERATION, to.offset + skip, from.memory.at(from.offset + skip), bytes)
            },
            // SAFETY: as above.
            Self::Download { from, to, .. } => unsafe {
                from.memory.read(OPERATION, from.offset + skip, to.memory.at(to.offset + skip), bytes)
            },
            // SAFETY: as above; source and target were checked not to overlap.
            Self::Internal { from, to, .. } => unsafe {
                to.memory.copy_from(OPERATION, to.offset + skip, &from.memory, from.offset + skip, bytes)
            },
        }
    }
}

/// Runs pieces of copies in order. If it is faster, reads of the same memory are combined in one call.
fn run_pieces<M: Storage>(mut pieces: &[(&CheckedCopy<M>, u64, usize)]) -> Result<()> {
    while let [(first, skip, bytes), rest @ ..] = pieces {
        let CheckedCopy::Download { from, .. } = first else {
            first.run(*skip, *bytes)?;
            pieces = rest;
            continue;
        };
        let reads_it = |(one, ..): &&(&CheckedCopy<M>, u64, usize)| match one {
            CheckedCopy::Download { from: other, .. } => Arc::ptr_eq(&from.memory, &other.memory),
            _ => false,
        };
        let count = if from.memory.reads_together() { pieces.iter().take_while(reads_it).count() } else { 1 };
        if count == 1 {
            first.run(*skip, *bytes)?;
        } else {
            let wanted = pieces[..count].iter().filter_map(|(one, skip, bytes)| match one {
                CheckedCopy::Download { from, to, .. } => {
                    let to = to.memory.at(to.offset + skip);
                    Some(ReadRange { offset: from.offset + skip, to, bytes: *bytes })
                }
                _ => None,
            });
            // SAFETY: as in `CheckedCopy::run`.
            unsafe { from.memory.read_all(OPERATION, &wanted.collect::<Vec<_>>()) }?;
        }
        pieces = &pieces[count..];
    }
    Ok(())
}

/// Returns the number of bytes of a copy for a part that already has `filled` bytes. The piece begins at byte
/// `at`, with `left` bytes left. It fills the part, and extends to the end of its last unit.
fn next_piece(at: u64, left: u64, filled: usize, unit_bytes: u64) -> usize {
    let end = (at + (PART_BYTES - filled) as u64).next_multiple_of(unit_bytes);
    (end - at).min(left) as usize
}

/// Copies of one submission.
#[derive(Debug)]
pub(crate) enum Copies<M> {
    /// A single copy, the common case of a page cache.
    One(CheckedCopy<M>),
    Many(Vec<CheckedCopy<M>>),
}

impl<M: Storage> Copies<M> {
    /// Returns the copies of the request as a slice.
    pub fn as_slice(&self) -> &[CheckedCopy<M>] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Many(many) => many,
        }
    }

    /// Number of bytes that the copies move.
    pub fn bytes(&self) -> u64 {
        // Saturate: each length is at most that of an allocation, but the sum of many lengths may overflow.
        self.as_slice().iter().map(CheckedCopy::bytes).fold(0, u64::saturating_add)
    }

    /// Runs the copies on the threads of `crew`.
    pub fn run(&self, crew: Crew<'_>) -> Result<()> {
        let moves = self.as_slice();
        if crew.width() == 1 || self.bytes() < SHARED_FROM_BYTES {
            if let [first, _, ..] = moves
                && first.reads_together()
            {
                let pieces: Vec<_> = moves.iter().map(|one| (one, 0, one.bytes() as usize)).collect();
                return run_pieces(&pieces);
            }
            if let [_, others @ ..] = moves {
                others.iter().for_each(CheckedCopy::announce);
            }
            return moves.iter().try_for_each(|one| one.run(0, one.bytes() as usize));
        }
        // Divide long copies and combine short copies into parts of about the same length, one per thread.
        let mut pieces = Vec::with_capacity(moves.len());
        let mut starts = vec![0];
        let mut filled = 0;
        for one in moves {
            let (mut skip, (offset, unit_bytes)) = (0, one.units());
            while skip < one.bytes() {
                let bytes = next_piece(offset + skip, one.bytes() - skip, filled, unit_bytes);
                pieces.push((one, skip, bytes));
                skip += bytes as u64;
                filled += bytes;
                if filled >= PART_BYTES {
                    starts.push(pieces.len());
                    filled = 0;
                }
            }
        }
        if filled > 0 {
            starts.push(pieces.len());
        }
        each_part(crew, starts.len() - 1, &|part| run_pieces(&pieces[starts[part]..starts[part + 1]]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use backend_api::wrap::SplitMix64;

    /// A split page of a store would be written twice, with a read in between.
    #[test]
    fn no_unit_is_cut() {
        let mut random = SplitMix64::new(1);
        for unit_bytes in [1, 4096, 44_000, 512 << 10, 1 << 20, 3 << 20] {
            for _ in 0..100 {
                let (start, mut left) = (random.below(8 << 20), 1 + random.below(8 << 20));
                let (mut at, mut filled) = (start, random.index(PART_BYTES));
                while left > 0 {
                    let bytes = next_piece(at, left, filled, unit_bytes);
                    at += bytes as u64;
                    left -= bytes as u64;
                    assert!(left == 0 || at.is_multiple_of(unit_bytes), "{start} {at} {unit_bytes}");
                    assert!(left == 0 || filled + bytes >= PART_BYTES, "a part has room");
                    assert!(((filled + bytes) as u64) < PART_BYTES as u64 + unit_bytes, "a part is too long");
                    filled = if filled + bytes >= PART_BYTES { 0 } else { filled + bytes };
                }
            }
        }
    }
}
