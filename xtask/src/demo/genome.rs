//! A FASTA file as it is stored: all records one after another, each from a whole word on.

use super::fasta;
use super::letters::Code;
use super::pack::BASES;
use anyhow::{Result, ensure};
use std::ops::Range;
use std::path::Path;

/// The records of a file, empty ones included, in its order. Takes a byte a base.
#[derive(Debug)]
pub struct Genome {
    /// The first record's header.
    pub name: String,
    /// The places of each record's bases. The first is a multiple of the bases in a word.
    pub records: Vec<Range<usize>>,
    /// The base at each place; a gap where a record's last word is filled up.
    pub codes: Vec<Code>,
}

impl Genome {
    /// Reads a file. `progress` is told the number of new bases.
    pub fn read(path: &Path, progress: impl FnMut(u64)) -> Result<Self> {
        let mut genome = Self { name: String::new(), records: Vec::new(), codes: Vec::new() };
        for (number, record) in fasta::read(path, progress)?.into_iter().enumerate() {
            if number == 0 {
                genome.name = record.name;
            }
            let start = genome.codes.len();
            genome.records.push(start..start + record.codes.len());
            genome.codes.extend(record.codes);
            genome.codes.resize(genome.codes.len().next_multiple_of(BASES), 0);
        }
        let records = genome.records.len();
        ensure!(genome.bases() > 0, "the {records} records of {} have no bases", path.display());
        Ok(genome)
    }

    /// Number of bases.
    pub fn bases(&self) -> usize {
        self.records.iter().map(ExactSizeIterator::len).sum()
    }

    /// Number of words that one strain takes.
    pub fn words(&self) -> usize {
        self.codes.len() / BASES
    }

    /// The number of the record that a place belongs to, its filling included; of those that begin there, the
    /// last one.
    pub fn record_at(&self, place: usize) -> usize {
        self.records.partition_point(|record| record.start <= place).saturating_sub(1)
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::demo::letters;
    use std::path::PathBuf;

    /// A file that is removed when the test ends.
    pub struct TestFile(pub PathBuf);

    impl TestFile {
        pub fn new(name: &str, text: &[u8]) -> Self {
            let path = std::env::temp_dir().join(format!("vmarray-genome-{}-{name}", std::process::id()));
            std::fs::write(&path, text).unwrap();
            Self(path)
        }
    }

    impl Drop for TestFile {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    #[test]
    fn records_begin_on_whole_words() {
        let file = TestFile::new("layout", b">a b\nACGTACGTA\n>\n>c\nACGTACGT\n>d\nN\n");
        let genome = Genome::read(&file.0, |_| ()).unwrap();
        assert_eq!(genome.records, [0..9, 16..16, 16..24, 24..25]);
        assert_eq!((genome.name.as_str(), genome.bases(), genome.words()), ("a b", 18, 4));
        assert_eq!([0, 15, 16, 23, 24, 31].map(|place| genome.record_at(place)), [0, 0, 2, 2, 3, 3]);
        let letters = genome.codes.iter().map(|code| letters::letter(*code)).collect();
        assert_eq!(String::from_utf8(letters).unwrap(), "ACGTACGTA-------ACGTACGTN-------");
    }

    #[test]
    fn files_without_bases_are_errors() {
        let empty = TestFile::new("none", b">a\n>b\n");
        assert!(Genome::read(&empty.0, |_| ()).is_err());
    }
}
