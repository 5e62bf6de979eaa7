//! Where the records of a FASTA file lie in the store, and the file as a stream of places.

use super::fasta::{self, Item};
use super::letters::Code;
use super::pack::{self, BASES};
use anyhow::{Result, bail};
use std::path::Path;

/// A record: where its first base is stored within a strain, and how many bases it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The place of its first base: a multiple of the bases in a word.
    pub start: u64,
    /// Number of bases.
    pub bases: u64,
}

/// The records of a file, empty ones included, in its order. Takes 16 bytes a record.
#[derive(Debug)]
pub struct Genome {
    /// The first record's header.
    pub name: String,
    /// All records.
    pub records: Vec<Record>,
    /// Number of bases.
    pub bases: u64,
    /// Words that one strain takes.
    pub words: u64,
}

impl Genome {
    /// Reads the whole file once and keeps its layout, no bases. `progress` is told the number of new bases.
    pub fn index(path: &Path, progress: impl Fn(u64)) -> Result<Self> {
        let mut reader = fasta::open(path)?;
        let mut genome = Self { name: String::new(), records: Vec::new(), bases: 0, words: 0 };
        while let Some(item) = reader.next()? {
            match item {
                Item::Record(name) => {
                    if genome.records.is_empty() {
                        genome.name = name.to_string();
                    }
                    genome.end_record();
                    genome.records.push(Record { start: genome.words * BASES as u64, bases: 0 });
                }
                Item::Bases(codes) => {
                    if let Some(record) = genome.records.last_mut() {
                        record.bases += codes.len() as u64;
                    }
                    genome.bases += codes.len() as u64;
                    progress(codes.len() as u64);
                }
            }
        }
        genome.end_record();
        if genome.bases == 0 {
            bail!("the {} records of {} have no bases", genome.records.len(), path.display());
        }
        Ok(genome)
    }

    fn end_record(&mut self) {
        if let Some(record) = self.records.last() {
            self.words = (record.start / BASES as u64) + pack::words_for(record.bases);
        }
    }

    /// The number of the record that a place belongs to, its filling included; of those that begin there, the
    /// last one.
    pub fn record_at(&self, place: u64) -> usize {
        self.records.partition_point(|record| record.start <= place).saturating_sub(1)
    }

    /// Streams the file as it is stored: pieces of at most `piece` places, a multiple of eight, with the
    /// place of the first.
    ///
    /// Fails where the file is no longer the one that was indexed.
    pub fn stream(
        &self,
        path: &Path,
        piece: usize,
        mut take: impl FnMut(u64, &[Code]) -> Result<()>,
    ) -> Result<()> {
        let piece = piece.next_multiple_of(BASES);
        let mut reader = fasta::open(path)?;
        let (mut place, mut codes, mut record, mut bases) = (0, Vec::with_capacity(piece), 0, 0);
        let changed = || anyhow::anyhow!("{} has changed while it was being read", path.display());
        loop {
            let mut more = match reader.next()? {
                Some(Item::Bases(more)) => {
                    bases += more.len() as u64;
                    more
                }
                end_or_record => {
                    if record > 0 && self.records.get(record - 1).map(|record| record.bases) != Some(bases) {
                        return Err(changed());
                    }
                    codes.resize(codes.len().next_multiple_of(BASES), 0);
                    record += 1;
                    bases = 0;
                    if end_or_record.is_none() {
                        break;
                    }
                    &[]
                }
            };
            loop {
                let (now, later) = more.split_at(more.len().min(piece - codes.len()));
                codes.extend_from_slice(now);
                more = later;
                if codes.len() < piece {
                    break;
                }
                take(place, &codes)?;
                place += codes.len() as u64;
                codes.clear();
            }
        }
        if record != self.records.len() + 1 {
            return Err(changed());
        }
        if codes.is_empty() { Ok(()) } else { take(place, &codes) }
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
        let genome = Genome::index(&file.0, |_| ()).unwrap();
        let record = |start, bases| Record { start, bases };
        assert_eq!(genome.records, [record(0, 9), record(16, 0), record(16, 8), record(24, 1)]);
        assert_eq!((genome.name.as_str(), genome.bases, genome.words), ("a b", 18, 4));
        assert_eq!([0, 15, 16, 23, 24, 31].map(|place| genome.record_at(place)), [0, 0, 2, 2, 3, 3]);
    }

    #[test]
    fn the_stream_has_every_base_in_its_place() {
        let text = b">a\nACGTACGTA\n>b\nCCCCC\nCCC\n>c\n\n>d\nGGT\n";
        let file = TestFile::new("stream", text);
        let genome = Genome::index(&file.0, |_| ()).unwrap();
        for piece in [1, 8, 16, 24, 1000] {
            let mut all = Vec::new();
            genome
                .stream(&file.0, piece, |place, codes| {
                    assert_eq!(place, all.len() as u64);
                    assert!(codes.len() % BASES == 0 && codes.len() <= piece.next_multiple_of(BASES));
                    all.extend(codes.iter().map(|code| letters::letter(*code)));
                    Ok(())
                })
                .unwrap();
            assert_eq!(String::from_utf8(all).unwrap(), "ACGTACGTA-------CCCCCCCCGGT-----", "piece {piece}");
        }
    }

    #[test]
    fn files_without_bases_or_changed_files_are_errors() {
        let empty = TestFile::new("none", b">a\n>b\n");
        assert!(Genome::index(&empty.0, |_| ()).is_err());
        let file = TestFile::new("changes", b">a\nACGT\n");
        let genome = Genome::index(&file.0, |_| ()).unwrap();
        for text in [&b">a\nACGTA\n"[..], b">a\nACGT\n>b\n", b">a\nACG\n"] {
            std::fs::write(&file.0, text).unwrap();
            assert!(genome.stream(&file.0, 8, |_, _| Ok(())).is_err());
        }
    }
}
