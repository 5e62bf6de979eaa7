//! Reads a FASTA file into memory in the layout of the genome store: all records one after another, each
//! starting at a whole word.

use crate::letters::{self, Code};
use crate::pack::BASES;
use anyhow::{Context, Result, ensure};
use std::ops::Range;
use std::path::Path;

/// A genome: all records of a FASTA file, in the order of the file. Takes a byte of RAM for each base.
#[derive(Debug)]
pub struct Genome {
    /// Header of the first record.
    pub name: String,
    /// For each record, the range of its bases in `codes`. The start of a range is a multiple of the number
    /// of bases in a word.
    pub records: Vec<Range<usize>>,
    /// The codes of all bases, record by record. Gap codes fill the last word of a record.
    pub codes: Vec<Code>,
}

impl Genome {
    /// Reads a FASTA file, plain or compressed with gzip. Calls `progress` repeatedly, with the number of
    /// bases read since the last call.
    pub fn read(path: &Path, mut progress: impl FnMut(u64)) -> Result<Self> {
        let cannot = || format!("{} cannot be read", path.display());
        let mut genome = Self { name: String::new(), records: Vec::new(), codes: Vec::new() };
        let mut reader = needletail::parse_fastx_file(path).with_context(cannot)?;
        while let Some(record) = reader.next() {
            let record = record.with_context(cannot)?;
            if genome.records.is_empty() {
                genome.name = String::from_utf8_lossy(record.id()).into_owned();
            }
            let (start, letters) = (genome.codes.len(), record.seq());
            for (number, &letter) in (1..).zip(letters.iter()) {
                let line = record.start_line_number();
                let code = letters::code(letter).with_context(|| {
                    let letter = letter.escape_ascii();
                    format!("letter {number} of the record at line {line}, `{letter}`, is not a nucleotide")
                })?;
                genome.codes.push(code);
            }
            genome.records.push(start..genome.codes.len());
            genome.codes.resize(genome.codes.len().next_multiple_of(BASES), 0);
            progress(letters.len() as u64);
        }
        let records = genome.records.len();
        ensure!(genome.bases() > 0, "the {records} records of {} have no bases", path.display());
        Ok(genome)
    }

    /// Number of bases.
    pub fn bases(&self) -> usize {
        self.records.iter().map(ExactSizeIterator::len).sum()
    }

    /// Number of words that one strain (a copy of the genome with mutations) takes.
    pub fn words(&self) -> usize {
        self.codes.len() / BASES
    }

    /// Returns the index of the record that contains the base at index `place` of `codes`. The padding after
    /// a record belongs to the record. If several records begin at `place`, returns the last record.
    pub fn record_at(&self, place: usize) -> usize {
        self.records.partition_point(|record| record.start <= place).saturating_sub(1)
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use std::io::Write;
    use std::path::PathBuf;

    /// A file that is removed at the end of the test.
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

    fn read(name: &str, text: &[u8]) -> Result<Genome> {
        Genome::read(&TestFile::new(name, text).0, |_| ())
    }

    #[test]
    fn records_begin_on_whole_words() {
        let text = b">a b\r\nACGTAC\r\nGTA\r\n>\n\n>c\nacgtuURy\n>d\nN.";
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(text).unwrap();
        for text in [text, &*encoder.finish().unwrap()] {
            let genome = read("layout", text).unwrap();
            assert_eq!(genome.records, [0..9, 16..16, 16..24, 24..26]);
            assert_eq!((genome.name.as_str(), genome.bases(), genome.words()), ("a b", 19, 4));
            assert_eq!([0, 15, 16, 23, 24, 31].map(|place| genome.record_at(place)), [0, 0, 2, 2, 3, 3]);
            let letters = genome.codes.iter().map(|code| letters::letter(*code)).collect();
            assert_eq!(String::from_utf8(letters).unwrap(), "ACGTACGTA-------ACGTTTRYN-------");
        }
    }

    #[test]
    fn a_file_without_a_genome_is_an_error() {
        for text in [&b""[..], b"\n\n", b">a\n\n>b\n\n", b"ACGT\n", &[0x1f, 0x8b, 8, 0, 1, 2, 3]] {
            assert!(read("none", text).is_err(), "{text:?}");
        }
        let error = read("wrong", b">a\nAC\n>b\nAC\nACXT\n").unwrap_err().to_string();
        assert_eq!(error, "letter 5 of the record at line 3, `X`, is not a nucleotide");
        assert!(Genome::read(Path::new("no such file"), |_| ()).is_err());
    }

    #[test]
    fn the_default_genome_matches_its_readme() {
        let path = crate::root().join("xtask/demo/data/NC_008253.fna.gz");
        let Genome { name, records, codes } = Genome::read(&path, |_| ()).unwrap();
        assert_eq!(name, "gi|110640213|ref|NC_008253.1| Escherichia coli 536, complete genome");
        let counts = [1, 2, 4, 8].map(|code| codes.iter().filter(|found| **found == code).count());
        assert_eq!(counts, [1_222_723, 1_251_581, 1_243_439, 1_221_177]);
        assert_eq!((records.len(), records[0].clone()), (1, 0..counts.iter().sum()));
    }
}
