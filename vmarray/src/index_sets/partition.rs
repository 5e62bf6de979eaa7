//! Partitioning of a join's tuples by the hash of their key: matching tuples come into the same partition,
//! and a partition fits into a processor's cache.

use std::ops::Range;

use bytemuck::{Pod, Zeroable};

use super::keys::{Coder, KeyHash};
use super::source::TupleBlock;
use crate::base::error::Result;
use crate::base::memory::zeroed_vec;
use crate::base::scratch_pool::ScratchVec;
use crate::engine::shared_work;

/// A tuple's code and number, which a partition contains instead of the tuple's values.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(super) struct PartitionEntry {
    pub(super) code: u64,
    pub(super) tuple: u64,
}

/// The number of partitions: a power of two. The upper bits of a hash are the number of its partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fanout {
    bits: u32,
}

impl Fanout {
    /// Tuples per partition. A hash table of this size takes 256 KiB to 1 MiB, which fits into the
    /// second-level cache of a core.
    const TUPLES: usize = 16 << 10;
    /// Maximum number of partitions, as a power of two. With more, each write would use another cache line
    /// and miss the TLB.
    const BITS_MAX: u32 = 11;

    pub(super) fn for_tuples(tuples: usize) -> Self {
        let partitions = tuples.div_ceil(Self::TUPLES).max(1);
        Self { bits: partitions.next_power_of_two().ilog2().min(Self::BITS_MAX) }
    }

    pub(super) fn partitions(self) -> usize {
        1 << self.bits
    }

    #[inline(always)]
    pub(super) fn partition(self, hash: u64) -> usize {
        // Two shifts, because Rust does not define a shift by all 64 bits.
        (hash >> 1 >> (63 - self.bits)) as usize
    }
}

/// Entries of tuples in the order of their partitions, and within a partition in the order of their tuples.
#[derive(Debug)]
pub(super) struct Partitions {
    /// Each segment has the entries of one part of the tuples, so that threads write to separate memory.
    segments: Vec<PartitionSegment>,
}

#[derive(Debug, Default)]
struct PartitionSegment {
    entries: ScratchVec<PartitionEntry>,
    /// The index of the first entry of each partition, and the end of the last.
    starts: Vec<u32>,
}

impl Partitions {
    /// Partitions the tuples that may match others. Reads the tuples twice: once to count, once to write.
    pub(super) fn of<H: KeyHash>(
        block: &TupleBlock<'_>,
        keys: &[usize],
        coder: &Coder,
        fanout: Fanout,
        threads: usize,
    ) -> Result<Self> {
        /// Number of tuples of a segment, whose entries fit into the caches of the second and third level.
        const SHARE: usize = 256 << 10;
        const SHARE_MIN: usize = 8 << 10;
        let share = block.len().div_ceil(threads.max(1)).clamp(SHARE_MIN, SHARE);
        let shares = (0..block.len()).step_by(share).map(|at| at..(at + share).min(block.len()));
        let mut segments: Vec<PartitionSegment> =
            shares.clone().map(|_| PartitionSegment::default()).collect();
        let items = segments.iter_mut().zip(shares);
        shared_work::for_each(threads, items, |(segment, tuples)| {
            *segment = PartitionSegment::of::<H>(block, keys, coder, fanout, tuples)?;
            Ok(())
        })?;
        Ok(Self { segments })
    }

    /// Returns the entries of a partition, as one slice for each segment.
    pub(super) fn partition(&self, number: usize) -> impl Iterator<Item = &[PartitionEntry]> + Clone {
        self.segments.iter().map(move |segment| {
            &segment.entries[segment.starts[number] as usize..segment.starts[number + 1] as usize]
        })
    }

    pub(super) fn len_of(&self, number: usize) -> usize {
        self.partition(number).map(<[PartitionEntry]>::len).sum()
    }
}

impl PartitionSegment {
    fn of<H: KeyHash>(
        block: &TupleBlock<'_>,
        keys: &[usize],
        coder: &Coder,
        fanout: Fanout,
        tuples: Range<usize>,
    ) -> Result<Self> {
        let mut starts = zeroed_vec::<u32>(fanout.partitions() + 1)?;
        coder.for_each::<H>(block, keys, tuples.clone(), |_, key| {
            starts[fanout.partition(key.hash) + 1] += 1;
        });
        for partition in 0..fanout.partitions() {
            starts[partition + 1] += starts[partition];
        }
        let mut entries = ScratchVec::<PartitionEntry>::unspecified(starts[fanout.partitions()] as usize)?;
        let to = &mut *entries;
        let mut next = starts.clone();
        coder.for_each::<H>(block, keys, tuples, |tuple, key| {
            let next = &mut next[fanout.partition(key.hash)];
            to[*next as usize] = PartitionEntry { code: key.code, tuple: tuple as u64 };
            *next += 1;
        });
        Ok(Self { entries, starts })
    }
}
