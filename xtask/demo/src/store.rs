//! The demo's genome store: many strains (mutated copies) of a genome in one array of words. All threads of
//! the current rayon pool fill, read and search it.

use crate::genome::Genome;
use crate::letters::Code;
use crate::motif::{Forward, Motif, Placement};
use crate::pack::{self, BASES};
use crate::strain;
use anyhow::Result;
use indicatif::ProgressBar;
use rayon::prelude::*;
use std::ops::Range;
use std::sync::Arc;
use vmarray::device::wrap::SplitMix64;
use vmarray::prelude::*;
use vmarray::{AnyDevice, RaggedArray};

/// The number of words that a thread writes or reads at a time.
const PIECE: usize = 1 << 13;
/// The number of look-ups that a thread takes at a time.
const BATCH: usize = 256;
/// Maximum length of a looked-up subsequence, in bases.
pub const LOOKUP_MAX: usize = 2000;
/// Minimum length of a looked-up subsequence, unless its record is shorter.
pub const LOOKUP_MIN: usize = 20;

/// A hash of a base sequence. The demo compares the hashes of read sequences with hashes from the file. Each
/// step hashes a word of eight bases; gap codes fill the last word. Sequences of equal length that differ in
/// only one word have different hashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hash(u64);

impl Hash {
    /// The hash of an empty sequence.
    pub const EMPTY: Self = Self(0xcbf2_9ce4_8422_2325);

    /// Appends up to eight bases, packed in `word`, to the sequence, and returns the new hash. Only the last
    /// word of a sequence has fewer than eight bases.
    #[inline]
    #[must_use]
    pub fn and(self, word: u32) -> Self {
        Self((self.0 ^ u64::from(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29))
    }

    /// Returns the hash of a whole sequence.
    #[must_use]
    pub fn of(codes: &[Code]) -> Self {
        pack::words(codes).fold(Self::EMPTY, Self::and)
    }
}

/// A subsequence that was read from the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lookup {
    /// The index of the strain (mutated copy of the genome).
    pub strain: usize,
    /// Index of the subsequence's first base in the codes of the strain.
    pub place: usize,
    /// The number of bases.
    pub bases: usize,
    /// The hash of the bases that were read.
    pub hash: Hash,
}

/// A hit of a search: a position in the store at which the motif begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hit {
    /// The index of the strain (mutated copy of the genome).
    pub strain: usize,
    /// Index of the hit's first base in the codes of the strain.
    pub place: usize,
    /// True if the motif itself begins here, false if its reverse complement does.
    pub strand: Forward,
}

/// A genome store: the strains of a genome (mutated copies), one after another, in a ragged array.
pub struct Store<'a> {
    /// The words of each record of each strain: row `s * records + r` is record `r` of strain `s`.
    pub rows: &'a RaggedArray<u32>,
    /// The genome, which is strain 0.
    pub genome: &'a Genome,
    /// The number of strains (mutated copies of the genome); strain 0 is the genome itself.
    pub strains: usize,
}

/// Creates a ragged array over `words`, with a row for each record of each of the `strains` strains. The
/// array of row offsets is on the devices of `words`.
pub fn rows(
    words: VirtualArray<u32>,
    genome: &Genome,
    strains: usize,
    devices: &[Arc<AnyDevice>],
) -> Result<RaggedArray<u32>> {
    let lengths = (0..strains).flat_map(|_| genome.records.iter().map(|record| record.len().div_ceil(BASES)));
    let offsets = VirtualArray::builder(0).devices(devices.iter().cloned());
    Ok(RaggedArray::new(words, lengths, offsets)?)
}

/// Returns the words (of eight bases) of all records of a strain (mutated copy of the genome).
pub fn words_of(genome: &Genome, strain: usize) -> Vec<u32> {
    pack::words(&strain::codes(&genome.codes, strain, 0..genome.codes.len())).collect()
}

impl Store<'_> {
    fn words(&self) -> &VirtualArray<u32> {
        self.rows.items()
    }

    /// Reads `count` random subsequences. Three quarters of the subsequences begin in the range `hot` of
    /// words. The result does not depend on the number of threads.
    pub fn look_up(
        &self,
        count: usize,
        hot: &Range<usize>,
        seed: u64,
        progress: &ProgressBar,
    ) -> Result<Vec<Lookup>> {
        let batch = |words: &mut Vec<u32>, number: usize| -> Result<Vec<Lookup>> {
            let mut random = SplitMix64::new(seed.wrapping_add(number as u64));
            let len = BATCH.min(count - number * BATCH);
            progress.inc(len as u64);
            (0..len).map(|_| self.look_up_one(&mut random, hot, words)).collect()
        };
        let batches = (0..count.div_ceil(BATCH)).into_par_iter().map_init(Vec::new, batch);
        Ok(batches.collect::<Result<Vec<_>>>()?.concat())
    }

    fn look_up_one(
        &self,
        random: &mut SplitMix64,
        hot: &Range<usize>,
        words: &mut Vec<u32>,
    ) -> Result<Lookup> {
        let (strain, number, place) = loop {
            let word = match random.below(4) {
                0 => random.index(self.words().len()),
                _ => hot.start + random.index(hot.len()),
            };
            let place = word % self.genome.words() * BASES + random.index(BASES);
            let number = self.genome.record_at(place);
            if self.genome.records[number].contains(&place) {
                break (word / self.genome.words(), number, place);
            }
        };
        let record = &self.genome.records[number];
        let bases = (LOOKUP_MIN + random.index(LOOKUP_MAX - LOOKUP_MIN + 1)).min(record.end - place);
        let row = strain * self.genome.records.len() + number;
        let hash = self.hash(row, place - record.start, bases, Hash::EMPTY, words)?;
        Ok(Lookup { strain, place, bases, hash })
    }

    /// Reads all records of all strains. Returns the hash of each record, in the order of the store. The
    /// progress bar counts words.
    pub fn read_records(&self, progress: &ProgressBar) -> Result<Vec<Hash>> {
        let records = &self.genome.records;
        let one = |words: &mut Vec<u32>, row: usize| {
            let len = records[row % records.len()].len();
            (0..len).step_by(PIECE * BASES).try_fold(Hash::EMPTY, |hash, at| {
                let bases = (len - at).min(PIECE * BASES);
                progress.inc(bases.div_ceil(BASES) as u64);
                self.hash(row, at, bases, hash, words)
            })
        };
        (0..self.strains * records.len()).into_par_iter().map_init(Vec::new, one).collect()
    }

    /// Reads bases of a row, from the base `at` on, and adds them to `hash`.
    fn hash(&self, row: usize, at: usize, bases: usize, hash: Hash, words: &mut Vec<u32>) -> Result<Hash> {
        let (first, skip) = (at / BASES, at % BASES);
        words.resize((skip + bases).div_ceil(BASES), 0);
        self.rows.row(row)?.read(first, words)?;
        Ok(pack::realigned(words, skip, bases).fold(hash, Hash::and))
    }

    /// Searches for a motif on the devices. Returns all hits, sorted, and the number of candidates that the
    /// host checked.
    pub fn search(&self, motif: &Motif, progress: &ProgressBar) -> Result<(Vec<Hit>, usize)> {
        let (mut hits, mut candidates) = (Vec::new(), 0);
        for placement in motif.placements() {
            let found = self.words().find(Field::whole(), &placement.words[placement.seed].1)?;
            candidates += found.len();
            let looked_at = found.into_par_iter().map(|word| self.candidate(motif, &placement, word));
            hits.extend(looked_at.filter_map(Result::transpose).collect::<Result<Vec<Hit>>>()?);
            progress.inc(1);
        }
        hits.sort_unstable();
        Ok((hits, candidates))
    }

    /// Checks a candidate: returns the hit if the motif is at this placement around a word, all in one
    /// record. Reads one word after another, without the cache, until one differs: mostly the first.
    fn candidate(&self, motif: &Motif, placement: &Placement, word: usize) -> Result<Option<Hit>> {
        let (strain, within) = (word / self.genome.words(), word % self.genome.words());
        let Some(first) = within.checked_sub(placement.seed) else {
            return Ok(None);
        };
        let place = first * BASES + placement.skip;
        if place + motif.len() > self.genome.records[self.genome.record_at(place)].end {
            return Ok(None);
        }
        for (index, (mask, value)) in (word - placement.seed..).zip(&placement.words) {
            if index != word && self.words().get_uncached(index)? & mask != *value {
                return Ok(None);
            }
        }
        Ok(Some(Hit { strain, place, strand: placement.strand }))
    }
}
