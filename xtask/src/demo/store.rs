//! The genome store: many strains of a genome in one array of words, filled, read and searched by all
//! threads.

use super::genome::Genome;
use super::letters::Code;
use super::motif::{Forward, Motif, Placement};
use super::pack::{self, BASES};
use super::strain;
use super::words::Words;
use crate::random::Random;
use anyhow::{Result, ensure};
use indicatif::ProgressBar;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use vmarray::{AnyDevice, Ragged, VirtualArray};

/// Places that are streamed from the file, or read from the store, at a time.
///
/// Half a page or so: a page at the edge of two pieces is then still in the cache when its second part is
/// written.
pub const PIECE: usize = 1 << 16;
/// The longest subsequence that is looked up, in bases.
pub const LOOKUP_MAX: u64 = 2000;
/// The shortest one, unless its record ends before.
pub const LOOKUP_MIN: u64 = 20;

/// Over a sequence, eight bases a step, the last step filled up with gaps: what a reader remembers of what it
/// read, to be compared with the file later. Sequences of one length that differ in one step differ in their
/// hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hash(u64);

impl Hash {
    /// Of no bases.
    pub const EMPTY: Self = Self(0xcbf2_9ce4_8422_2325);

    /// Of these bases and up to eight more, packed. Only the last step of a sequence has fewer than eight.
    #[inline]
    #[must_use]
    pub fn and(self, word: u32) -> Self {
        Self((self.0 ^ u64::from(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29))
    }

    /// Of these bases and more, as codes: all but the last such piece of a sequence are multiples of eight.
    #[must_use]
    pub fn and_codes(self, codes: &[Code]) -> Self {
        codes.chunks(BASES).fold(self, |hash, codes| hash.and(pack::word(codes)))
    }
}

/// A subsequence that was read from the store.
#[derive(Clone, Copy, Debug)]
pub struct Lookup {
    /// Of which strain.
    pub strain: u64,
    /// The place of its first base.
    pub place: u64,
    /// Its bases.
    pub bases: u64,
    /// What was read.
    pub hash: Hash,
}

/// Where a motif was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hit {
    /// In which strain.
    pub strain: u64,
    /// The place of its first base in the store's order.
    pub place: u64,
    /// Whether it stands on the strand that is in the file.
    pub strand: Forward,
}

/// A genome's strains, one after another, in a ragged array.
pub struct Store<'a, W> {
    /// The words of each record of each strain: row `s * records + r` is record `r` of strain `s`.
    pub rows: &'a Ragged<W>,
    /// What one strain looks like.
    pub genome: &'a Genome,
    /// Number of strains, strain 0 being the file itself.
    pub strains: u64,
    /// Threads that work on it.
    pub threads: usize,
}

/// Gives each record of each strain its row of words. Where rows begin is kept on these devices, too.
pub fn rows<W: Words>(
    words: W,
    genome: &Genome,
    strains: u64,
    devices: &[Arc<AnyDevice>],
) -> Result<Ragged<W>> {
    let lengths =
        (0..strains).flat_map(|_| genome.records.iter().map(|record| pack::words_for(record.bases) as usize));
    let offsets = VirtualArray::builder(0).devices(devices.iter().cloned());
    Ok(Ragged::new(words, lengths, offsets)?)
}

impl<W: Words> Store<'_, W> {
    fn words(&self) -> &W {
        self.rows.items()
    }

    /// Streams the file once and writes it as every strain. Progress counts words.
    pub fn load(&self, path: &Path, progress: &ProgressBar) -> Result<()> {
        let mut packed = Vec::with_capacity(PIECE / BASES);
        self.genome.stream(path, PIECE, |place, codes| {
            packed.clear();
            packed.extend(codes.chunks_exact(BASES).map(pack::word));
            let index = place / BASES as u64;
            self.on_all_threads(self.strains, |strains, _| {
                let mut words = Vec::with_capacity(packed.len());
                while let Some(number) = strains.next() {
                    words.clone_from(&packed);
                    strain::change_words(number, index, &mut words);
                    self.words().write(self.genome.words * number + index, &words)?;
                    progress.inc(words.len() as u64);
                }
                Ok(())
            })
            .map(|_: Vec<()>| ())
        })
    }

    /// Reads `count` random subsequences; three of four begin in the `hot` words of the array.
    pub fn look_up(
        &self,
        count: u64,
        hot: &Range<u64>,
        seed: u64,
        progress: &ProgressBar,
    ) -> Result<Vec<Lookup>> {
        let batch = 256;
        let found = self.on_all_threads(count.div_ceil(batch), |batches, _| {
            let mut lookups = Vec::new();
            let mut words = Vec::new();
            while let Some(number) = batches.next() {
                // A batch draws from its own seed, so the lookups do not depend on which thread takes it.
                let mut random = Random::new(seed.wrapping_add(number));
                let len = batch.min(count - number * batch);
                for _ in 0..len {
                    lookups.push(self.look_up_one(&mut random, hot, &mut words)?);
                }
                progress.inc(len);
            }
            Ok(lookups)
        })?;
        Ok(found.into_iter().flatten().collect())
    }

    fn look_up_one(&self, random: &mut Random, hot: &Range<u64>, words: &mut Vec<u32>) -> Result<Lookup> {
        let (strain, number, place) = loop {
            let word = match random.below(4) {
                0 => random.below(self.words().len()),
                _ => hot.start + random.below(hot.end - hot.start),
            };
            let place = word % self.genome.words * BASES as u64 + random.below(BASES as u64);
            let number = self.genome.record_at(place);
            let record = self.genome.records[number];
            if place < record.start + record.bases {
                break (word / self.genome.words, number, place);
            }
        };
        let record = self.genome.records[number];
        let wanted = LOOKUP_MIN + random.below(LOOKUP_MAX - LOOKUP_MIN + 1);
        let bases = wanted.min(record.start + record.bases - place);
        let row = strain * self.genome.records.len() as u64 + number as u64;
        let hash = self.hash(row, place - record.start, bases, Hash::EMPTY, words)?;
        Ok(Lookup { strain, place, bases, hash })
    }

    /// Reads whole records, all of every strain, in order of the store. Answers a hash for each, strain by
    /// strain.
    pub fn read_records(&self, progress: &ProgressBar) -> Result<Vec<Hash>> {
        let records = self.genome.records.len() as u64;
        let found = self.on_all_threads(self.strains * records, |numbers, _| {
            let mut hashes = Vec::new();
            let mut words = Vec::new();
            while let Some(number) = numbers.next() {
                let end = self.genome.records[(number % records) as usize].bases;
                let (mut at, mut hash) = (0, Hash::EMPTY);
                while at < end {
                    let bases = (end - at).min(PIECE as u64);
                    hash = self.hash(number, at, bases, hash, &mut words)?;
                    at += bases;
                    progress.inc(pack::words_for(bases));
                }
                hashes.push((number, hash));
            }
            Ok(hashes)
        })?;
        let mut hashes: Vec<(u64, Hash)> = found.into_iter().flatten().collect();
        hashes.sort_unstable_by_key(|(number, _)| *number);
        Ok(hashes.into_iter().map(|(_, hash)| hash).collect())
    }

    /// Reads bases of a row, from the base `at` on, and carries `hash` on over them.
    fn hash(&self, row: u64, at: u64, bases: u64, hash: Hash, words: &mut Vec<u32>) -> Result<Hash> {
        let (first, skip) = (at / BASES as u64, (at % BASES as u64) as usize);
        words.resize(pack::words_for(skip as u64 + bases) as usize, 0);
        let first = usize::try_from(first)?;
        let row = self.rows.row(usize::try_from(row)?)?.range();
        ensure!(first + words.len() <= row.len(), "the bases lie in their row");
        self.words().read((row.start + first) as u64, words)?;
        Ok(pack::realigned(words, skip, bases as usize).fold(hash, Hash::and))
    }

    /// Searches a motif on the devices: all hits, sorted, and how many candidates had to be looked at.
    pub fn search(&self, motif: &Motif, progress: &ProgressBar) -> Result<(Vec<Hit>, u64)> {
        let mut candidates = 0;
        let mut hits = Vec::new();
        for placement in motif.placements() {
            let found = self.words().find(placement.words[placement.seed].1)?;
            candidates += found.len() as u64;
            let more = self.on_all_threads(found.len() as u64, |numbers, _| {
                let mut hits = Vec::new();
                while let Some(number) = numbers.next() {
                    hits.extend(self.candidate(motif, &placement, found[number as usize])?);
                }
                Ok(hits)
            })?;
            hits.extend(more.into_iter().flatten());
            progress.inc(1);
        }
        hits.sort_unstable();
        Ok((hits, candidates))
    }

    /// Whether the motif lies so around a word of the array, all in one record. Reads one word after another,
    /// past the cache, until one is wrong: mostly that is the first.
    fn candidate(&self, motif: &Motif, placement: &Placement, word: u64) -> Result<Option<Hit>> {
        let (strain, within) = (word / self.genome.words, word % self.genome.words);
        let Some(first) = within.checked_sub(placement.seed as u64) else {
            return Ok(None);
        };
        let place = first * BASES as u64 + placement.skip;
        let record = self.genome.records[self.genome.record_at(place)];
        if place + motif.len() as u64 > record.start + record.bases {
            return Ok(None);
        }
        let start = self.genome.words * strain + first;
        for (index, (mask, value)) in (start..).zip(&placement.words) {
            if index != word && self.words().read_uncached(index)? & mask != *value {
                return Ok(None);
            }
        }
        Ok(Some(Hit { strain, place, strand: placement.strand }))
    }

    /// Runs `work` on every thread; the threads share the numbers below `count`. Answers what they answer.
    pub fn on_all_threads<R: Send>(
        &self,
        count: u64,
        work: impl Fn(&mut Numbers, usize) -> Result<R> + Sync,
    ) -> Result<Vec<R>> {
        on_threads(self.threads, count, work)
    }
}

/// Numbers below a bound, each handed out once among all threads.
pub struct Numbers<'a> {
    next: &'a AtomicU64,
    count: u64,
}

impl Numbers<'_> {
    /// The next number; `None` when all are taken.
    pub fn next(&mut self) -> Option<u64> {
        let number = self.next.fetch_add(1, Relaxed);
        (number < self.count).then_some(number)
    }
}

/// Runs `work` on `threads` threads, which share the numbers below `count`. The first error is the answer, if
/// any.
pub fn on_threads<R: Send>(
    threads: usize,
    count: u64,
    work: impl Fn(&mut Numbers, usize) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let next = AtomicU64::new(0);
    let (next, work) = (&next, &work);
    std::thread::scope(|scope| {
        let start = |thread| scope.spawn(move || work(&mut Numbers { next, count }, thread));
        let workers: Vec<_> = (0..threads.max(1)).map(start).collect();
        workers
            .into_iter()
            .map(|worker| worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}
