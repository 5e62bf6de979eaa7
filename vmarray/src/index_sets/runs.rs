//! The hash table of a join: groups the second set's tuples by key, and finds the matching group of each
//! tuple of the first set.
//!
//! Both sets are first partitioned by hash, so that each table fits into a core's cache (Boncz, Manegold and
//! Kersten, "Database architecture optimized for the new bottleneck: memory access", VLDB 1999; Balkesen,
//! Teubner, Alonso and Özsu, "Main-memory hash joins on multi-core CPUs: tuning to the underlying hardware",
//! ICDE 2013). The join moves only keys and tuple numbers. The matching tuples are contiguous, so one address
//! locates them all. Results are then written in the first set's order, as in Manegold, Boncz, Nes and
//! Kersten, "Cache-conscious radix-decluster projections", VLDB 2004.

use std::sync::atomic::Ordering;

use super::keys::{Coder, KeyHash};
use super::merge::Merge;
use super::partition::{Fanout, PartitionEntry, Partitions};
use super::source::TupleBlock;
use crate::base::element::as_atomics;
use crate::base::error::{ErrorKind, Result};
use crate::base::memory::{prefetch_slice, prefetch_write, zeroed_vec};
use crate::base::scratch_pool::ScratchVec;
use crate::engine::shared_work;

/// Prefetch distance of random accesses to memory, in tuples.
pub(super) const AHEAD: usize = 16;

/// The tuples of the second set, or of a block of it, grouped by key.
#[derive(Debug)]
pub(super) struct KeyIndex {
    coder: Coder,
    fanout: Fanout,
    /// The hash table of each partition.
    tables: Vec<Table>,
    /// The columns that go into results, tuple after tuple. Tuples are in the order of their keys, and within
    /// a key in their original order.
    rest: ScratchVec<u64>,
}

/// A hash table of the keys of one partition, with open addressing.
#[derive(Debug, Default)]
struct Table {
    /// The slots: a key's number plus one, or 0 if the slot is empty.
    slots: Vec<u32>,
    keys: Vec<Key>,
}

#[derive(Clone, Copy, Debug)]
struct Key {
    code: u64,
    /// The first tuple with this key, whose values are compared.
    example: u32,
    /// The position of the first tuple with this key, and their number.
    start: u32,
    len: u32,
}

/// Consecutive tuples of the grouped second set: start and number. All bits are zero for no tuples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TupleRun {
    pub(super) start: usize,
    pub(super) len: usize,
}

/// For each tuple of the first set, or of a strip of it, the run of matching tuples.
#[derive(Debug)]
pub(super) struct TupleRuns(ScratchVec<u64>);

impl TupleRuns {
    #[inline(always)]
    pub(super) fn get(&self, tuple: usize) -> TupleRun {
        TupleRun::of_bits(self.0[tuple])
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

impl TupleRun {
    #[inline(always)]
    fn of_bits(bits: u64) -> Self {
        Self { start: (bits >> 32) as usize, len: bits as u32 as usize }
    }
}

impl Key {
    fn run_bits(&self) -> u64 {
        u64::from(self.start) << 32 | u64::from(self.len)
    }
}

impl KeyIndex {
    pub(super) const TUPLES_MAX: usize = u32::MAX as usize - 1;

    /// Groups the tuples of a block by key.
    pub(super) fn build<H: KeyHash>(block: &TupleBlock<'_>, merge: &Merge, threads: usize) -> Result<Self> {
        let coder = Coder::of(block, &merge.b_keys, threads)?;
        let fanout = Fanout::for_tuples(block.len());
        let partitions = Partitions::of::<H>(block, &merge.b_keys, &coder, fanout, threads)?;
        let width = merge.b_rest.len();
        let mut rest = ScratchVec::<u64>::unspecified(super::count_of(block.len(), width)?)?;
        let mut tables: Vec<Table> = (0..fanout.partitions()).map(|_| Table::default()).collect();
        let mut left = &mut *rest;
        let mut base = 0;
        let items: Vec<_> = tables
            .iter_mut()
            .enumerate()
            .map(|(number, table)| {
                let len = partitions.len_of(number);
                let (rest, others) = std::mem::take(&mut left).split_at_mut(len * width);
                left = others;
                base += len;
                (number, table, (base - len) as u32, rest)
            })
            .collect();
        shared_work::for_each_with(threads, items, Vec::new, |key_of, (number, table, base, rest)| {
            let entries = || partitions.partition(number).flatten();
            let same = |a: u32, b: u32| {
                coder.is_exact() || {
                    let (a, b) = (block.row(a as usize), block.row(b as usize));
                    merge.b_keys.iter().all(|&at| a[at] == b[at])
                }
            };
            table.group::<H>(&coder, entries(), same, key_of)?;
            table.assign_places(base);
            table.copy_rest(entries(), block, &merge.b_rest, key_of, rest);
            Ok(())
        })?;
        Ok(Self { coder, fanout, tables, rest })
    }

    pub(super) fn rest(&self) -> &[u64] {
        &self.rest
    }

    /// Frees the tables. The caller must not look up matches afterwards.
    pub(super) fn forget_keys(&mut self) {
        self.tables = Vec::new();
    }

    /// Returns true if equal codes mean equal values, so look-ups need not compare tuples.
    pub(super) fn is_exact(&self) -> bool {
        self.coder.is_exact()
    }

    /// Finds the run of matching tuples for each tuple of `a`. `b` is the block from which the index was
    /// built, which is needed unless the index is exact.
    pub(super) fn runs<H: KeyHash>(
        &self,
        a: &TupleBlock<'_>,
        b: &TupleBlock<'_>,
        merge: &Merge,
        threads: usize,
    ) -> Result<TupleRuns> {
        let partitions = Partitions::of::<H>(a, &merge.a_keys, &self.coder, self.fanout, threads)?;
        let mut runs = ScratchVec::zeroed(a.len())?;
        // Threads write the runs (matching tuples of each tuple) concurrently, in any order.
        let to = as_atomics(&mut runs);
        shared_work::for_each(threads, self.tables.iter().enumerate(), |(number, table)| {
            let entries = partitions.partition(number).flatten();
            let mut ahead = entries.clone().skip(AHEAD);
            for entry in entries {
                if let Some(entry) = ahead.next() {
                    prefetch_write(&to[entry.tuple as usize]);
                }
                let same = |example: u32| {
                    self.is_exact() || {
                        let (a, b) = (a.row(entry.tuple as usize), b.row(example as usize));
                        merge.a_keys.iter().zip(&merge.b_keys).all(|(&at_a, &at_b)| a[at_a] == b[at_b])
                    }
                };
                let hash = self.coder.hash_of::<H>(entry.code);
                if let Some(key) = table.find(entry.code, hash, same) {
                    to[entry.tuple as usize].store(key.run_bits(), Ordering::Relaxed);
                }
            }
            Ok(())
        })?;
        Ok(TupleRuns(runs))
    }
}

impl Table {
    /// Returns the slot that contains a key's number, or the empty slot at which to insert the key.
    #[inline(always)]
    fn slot(&self, code: u64, hash: u64, same: impl Fn(u32) -> bool) -> usize {
        let mask = self.slots.len() - 1;
        let mut at = hash as usize & mask;
        loop {
            match self.slots[at] {
                0 => return at,
                number => {
                    let key = &self.keys[number as usize - 1];
                    if key.code == code && same(key.example) {
                        return at;
                    }
                }
            }
            at = (at + 1) & mask;
        }
    }

    #[inline(always)]
    fn find(&self, code: u64, hash: u64, same: impl Fn(u32) -> bool) -> Option<&Key> {
        if self.keys.is_empty() {
            return None;
        }
        let number = self.slots[self.slot(code, hash, same)];
        Some(&self.keys[number.checked_sub(1)? as usize])
    }

    /// Inserts the keys of entries, counts the tuples of each key, and records each entry's key in `key_of`.
    fn group<'e, H: KeyHash>(
        &mut self,
        coder: &Coder,
        entries: impl Iterator<Item = &'e PartitionEntry>,
        same: impl Fn(u32, u32) -> bool,
        key_of: &mut Vec<u32>,
    ) -> Result<()> {
        key_of.clear();
        for entry in entries {
            if self.keys.len() * 2 >= self.slots.len() {
                self.grow::<H>(coder)?;
            }
            let tuple = entry.tuple as u32;
            let hash = coder.hash_of::<H>(entry.code);
            let at = self.slot(entry.code, hash, |example| same(example, tuple));
            if self.slots[at] == 0 {
                reserve(&mut self.keys)?;
                self.keys.push(Key { code: entry.code, example: tuple, start: 0, len: 0 });
                self.slots[at] = self.keys.len() as u32;
            }
            let number = self.slots[at] - 1;
            self.keys[number as usize].len += 1;
            reserve(key_of)?;
            key_of.push(number);
        }
        Ok(())
    }

    /// Assigns each key the position of its first tuple, beginning at `start`.
    fn assign_places(&mut self, mut start: u32) {
        for key in &mut self.keys {
            key.start = start;
            start += key.len;
        }
    }

    /// Copies the result columns of tuples to the positions of their keys; `rest` begins at the first.
    fn copy_rest<'e>(
        &mut self,
        entries: impl Iterator<Item = &'e PartitionEntry> + Clone,
        block: &TupleBlock<'_>,
        columns: &[usize],
        key_of: &[u32],
        rest: &mut [u64],
    ) {
        let Some(base) = self.keys.first().map(|key| key.start).filter(|_| !columns.is_empty()) else {
            return;
        };
        let width = columns.len();
        // During this loop, `start` advances to the end of each key's tuples; it is reset afterwards.
        let rows = block.values();
        let row_of = |entry: &PartitionEntry| &rows[entry.tuple as usize * block.width()..][..block.width()];
        let mut ahead = entries.clone().skip(AHEAD);
        for (entry, &number) in entries.zip(key_of) {
            if let Some(entry) = ahead.next() {
                prefetch_slice(row_of(entry));
            }
            let key = &mut self.keys[number as usize];
            let to = &mut rest[(key.start - base) as usize * width..][..width];
            key.start += 1;
            let row = row_of(entry);
            to.iter_mut().zip(columns).for_each(|(to, &at)| *to = row[at]);
        }
        self.keys.iter_mut().for_each(|key| key.start -= key.len);
    }

    fn grow<H: KeyHash>(&mut self, coder: &Coder) -> Result<()> {
        const SLOTS_MIN: usize = 16;
        let slots = (self.slots.len() * 2).max(SLOTS_MIN);
        self.slots = zeroed_vec(slots)?;
        for (number, key) in self.keys.iter().enumerate() {
            let mut at = coder.hash_of::<H>(key.code) as usize & (slots - 1);
            while self.slots[at] != 0 {
                at = (at + 1) & (slots - 1);
            }
            self.slots[at] = number as u32 + 1;
        }
        Ok(())
    }
}

#[inline(always)]
fn reserve<T>(items: &mut Vec<T>) -> Result<()> {
    #[cold]
    fn double<T>(items: &mut Vec<T>) -> Result<()> {
        let bytes = (items.len() + 1).saturating_mul(size_of::<T>());
        items.try_reserve(1).map_err(|_| ErrorKind::NoMemory { bytes }.into())
    }
    if items.len() == items.capacity() { double(items) } else { Ok(()) }
}
