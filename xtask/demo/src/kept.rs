//! Persistent genome store: a file that later runs of the demo open again. It holds genomes, each followed by
//! all its strains (mutated copies).
//!
//! The file stores each genome as a header row, then a row of words for each record of each strain. The demo
//! syncs (commits) the file only after the last row of a genome. After an interrupted run, the file therefore
//! has only complete genomes.

use crate::genome::Genome;
use crate::letters::Code;
use crate::pack::BASES;
use crate::store;
use anyhow::{Context, Result, bail, ensure};
use indicatif::ProgressBar;
use rayon::prelude::*;
use std::path::Path;
use vmarray::prelude::*;
use vmarray::{RaggedArray, VirtualArray};

/// The number of strains that `add` writes at a time.
const STRAINS: usize = 8;

/// A persistent genome store in a file.
pub struct KeptStore {
    rows: RaggedArray<u32>,
    /// The genomes of the store.
    pub genomes: Vec<KeptGenome>,
}

/// Header of a stored genome: its name, its size and its position in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptGenome {
    pub name: String,
    pub strains: usize,
    /// The number of bases of each record.
    records: Vec<usize>,
    /// The index of the row with the genome's first record.
    first: usize,
}

impl KeptGenome {
    fn of(genome: &Genome, strains: usize, first: usize) -> Self {
        let records = genome.records.iter().map(ExactSizeIterator::len).collect();
        Self { name: genome.name.clone(), strains, records, first }
    }

    fn to_words(&self) -> Result<Vec<u32>> {
        let numbers = [self.strains, self.records.len()].into_iter().chain(self.records.iter().copied());
        let mut words = numbers.map(u32::try_from).collect::<Result<Vec<_>, _>>().context("too long")?;
        words.extend(self.name.bytes().map(u32::from));
        Ok(words)
    }

    fn of_words(words: &[u32], first: usize) -> Option<Self> {
        let [strains, records, rest @ ..] = words else { return None };
        let (records, name) = rest.split_at_checked(*records as usize)?;
        let name = name.iter().map(|byte| u8::try_from(*byte).ok()).collect::<Option<Vec<u8>>>()?;
        let records = records.iter().map(|bases| *bases as usize).collect();
        Some(Self { name: String::from_utf8(name).ok()?, strains: *strains as usize, records, first })
    }
}

impl KeptStore {
    /// Opens the genome store in the file `path`; creates the store if the file does not exist.
    pub fn open(path: &Path) -> Result<Self> {
        let rows = match path.exists() {
            true => RaggedArray::open(path),
            false => RaggedArray::create(path),
        };
        let rows = rows.with_context(|| format!("the store of an earlier run, {}", path.display()))?;
        let (mut genomes, mut row) = (Vec::new(), 0);
        while row < rows.len() {
            let genome = KeptGenome::of_words(&rows.row(row)?.to_vec(..)?, row + 1);
            let genome = genome
                .with_context(|| format!("{} has another version's format; remove it", path.display()))?;
            row += 1 + genome.strains * genome.records.len();
            genomes.push(genome);
        }
        ensure!(row == rows.len(), "{} lacks rows; remove it", path.display());
        Ok(Self { rows, genomes })
    }

    /// The number of rows with bases; each genome also has a header row.
    pub fn row_count(&self) -> usize {
        self.rows.len() - self.genomes.len()
    }

    /// The number of words in all rows.
    pub fn words(&self) -> usize {
        self.rows.item_total()
    }

    /// Reads the genome with this number from its strain (copy) 0, which has no mutations.
    pub fn genome(&self, number: usize) -> Result<Genome> {
        let kept = &self.genomes[number];
        let mut genome = Genome { name: kept.name.clone(), records: Vec::new(), codes: Vec::new() };
        for (row, bases) in (kept.first..).zip(&kept.records) {
            let words = self.rows.row(row)?.to_vec(..)?;
            let start = genome.codes.len();
            genome.records.push(start..start + bases);
            let code = |word: u32, at: usize| (word >> (4 * at) & 15) as Code;
            genome.codes.extend(words.iter().flat_map(|word| (0..BASES).map(move |at| code(*word, at))));
        }
        Ok(genome)
    }

    /// Returns the index of a stored genome that equals `genome` and has `strains` strains, if found.
    pub fn find(&self, genome: &Genome, strains: usize) -> Result<Option<usize>> {
        for (number, kept) in self.genomes.iter().enumerate() {
            let is_alike = *kept == KeptGenome::of(genome, strains, kept.first);
            if is_alike && self.genome(number)?.codes == genome.codes {
                return Ok(Some(number));
            }
        }
        Ok(None)
    }

    /// Adds a genome with `strains` strains (mutated copies) to the store. The progress bar counts words.
    pub fn add(self, genome: &Genome, strains: usize, progress: &ProgressBar) -> Result<Self> {
        let Self { rows, mut genomes } = self;
        let kept = KeptGenome::of(genome, strains, rows.len() + 1);
        let writer = rows.into_writer();
        writer.push(&kept.to_words()?)?;
        let lengths: Vec<usize> = kept.records.iter().map(|bases| bases.div_ceil(BASES)).collect();
        for first in (0..strains).step_by(STRAINS) {
            let some = first..(first + STRAINS).min(strains);
            let made: Vec<Vec<u32>> =
                some.into_par_iter().map(|strain| store::words_of(genome, strain)).collect();
            for words in made {
                writer.push_joined(&words, &lengths)?;
                progress.inc(words.len() as u64);
            }
        }
        writer.sync()?;
        genomes.push(kept);
        Ok(Self { rows: writer.freeze()?, genomes })
    }

    /// Copies all strains (mutated copies) of the genome `number` to the array `words`.
    pub fn copy_to(&self, number: usize, words: &VirtualArray<u32>) -> Result<()> {
        let kept = &self.genomes[number];
        if kept.strains * kept.records.len() == 0 {
            bail!("the genome has no records");
        }
        let start = self.rows.row(kept.first)?.range().start;
        Ok(words.copy_from(0, self.rows.items().section(start..start + words.len())?)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::genome::tests::TestFile;

    #[test]
    fn genomes_are_there_again() {
        let file = TestFile::new("kept", b"");
        std::fs::remove_file(&file.0).unwrap();
        let progress = ProgressBar::hidden();
        let mut genomes = Vec::new();
        for (name, text) in [("one", &b">a\nACGTACGTAC\n>b\n\n>c\nNNAC\n"[..]), ("two", b">x\nGATTACA\n")] {
            let fasta = TestFile::new(name, text);
            let (genome, strains) = (Genome::read(&fasta.0, |_| ()).unwrap(), 3 + genomes.len() * 10);
            let kept = KeptStore::open(&file.0).unwrap();
            assert_eq!((kept.genomes.len(), kept.find(&genome, strains).unwrap()), (genomes.len(), None));
            drop(kept.add(&genome, strains, &progress).unwrap());
            genomes.push((genome, strains));
            let kept = KeptStore::open(&file.0).unwrap();
            for (number, (genome, strains)) in genomes.iter().enumerate() {
                assert_eq!(kept.find(genome, *strains).unwrap(), Some(number));
                assert_eq!(kept.find(genome, strains + 1).unwrap(), None);
                let found = kept.genome(number).unwrap();
                assert_eq!((&found.name, &found.records), (&genome.name, &genome.records));
                assert_eq!(found.codes, genome.codes);
                let words = VirtualArray::<u32>::new(genome.words() * strains).unwrap();
                kept.copy_to(number, &words).unwrap();
                let expected: Vec<u32> =
                    (0..*strains).flat_map(|strain| store::words_of(genome, strain)).collect();
                assert_eq!(words.to_vec(..).unwrap(), expected);
            }
        }
    }
}
