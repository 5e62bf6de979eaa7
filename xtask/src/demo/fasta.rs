//! FASTA files, plain or gzip.

use super::letters::{self, Code};
use anyhow::{Context, Result, bail, ensure};
use flate2::bufread::MultiGzDecoder;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

/// The first bytes of a gzip file.
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// A record: its header line, without `>`, where bytes that are not UTF-8 are replaced; and its bases.
#[derive(Debug)]
pub struct Record {
    pub name: String,
    pub codes: Vec<Code>,
}

/// Reads a file, plain or gzip: its first two bytes tell. Several gzip members one after another (bgzip) are
/// one file. Tells `progress` the number of bases in each line.
pub fn read(path: &Path, progress: impl FnMut(u64)) -> Result<Vec<Record>> {
    let open = || -> std::io::Result<_> {
        let mut input = BufReader::new(File::open(path)?);
        let is_gzip = input.fill_buf()?.starts_with(&GZIP_MAGIC);
        Ok((input, is_gzip))
    };
    let (input, is_gzip) = open().with_context(|| format!("{} cannot be opened", path.display()))?;
    if is_gzip { parse(BufReader::new(MultiGzDecoder::new(input)), progress) } else { parse(input, progress) }
}

/// Lines that begin with `;` are comments; empty lines mean nothing. Errors count lines and columns from 1.
fn parse(input: impl BufRead, mut progress: impl FnMut(u64)) -> Result<Vec<Record>> {
    let mut records: Vec<Record> = Vec::new();
    let mut lines = 0;
    for (line, text) in (1..).zip(input.split(b'\n')) {
        let text = text.with_context(|| format!("line {line} cannot be read"))?;
        lines = line;
        match text.strip_suffix(b"\r").unwrap_or(&text) {
            [b'>', name @ ..] => {
                records.push(Record { name: String::from_utf8_lossy(name).into_owned(), codes: Vec::new() });
            }
            [] | [b';', ..] => {}
            bases => {
                let Some(record) = records.last_mut() else {
                    bail!("line {line}: bases before the first header (a line that begins with >)");
                };
                for (column, &byte) in (1..).zip(bases) {
                    let Some(code) = letters::code(byte) else {
                        bail!("line {line}, column {column}: {} is no nucleotide letter", show(byte));
                    };
                    record.codes.push(code);
                }
                progress(bases.len() as u64);
            }
        }
    }
    ensure!(!records.is_empty(), "there is no record in the file ({lines} lines)");
    Ok(records)
}

fn show(byte: u8) -> String {
    if byte.is_ascii_graphic() { format!("`{}`", byte as char) } else { format!("byte 0x{byte:02x}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    type Records = Vec<(String, String)>;
    type Layout = (&'static [u8], &'static [(&'static str, &'static str)]);

    fn in_letters(records: Vec<Record>) -> Records {
        let letters =
            |codes: Vec<Code>| codes.into_iter().map(|code| letters::letter(code) as char).collect();
        records.into_iter().map(|record| (record.name, letters(record.codes))).collect()
    }

    #[test]
    fn records_in_all_layouts() {
        let layouts: [Layout; 9] = [
            (b">a\nACGT\nAC\n>b c\nTT\n", &[("a", "ACGTAC"), ("b c", "TT")]),
            (b">a\r\nACGT\r\nAC\r\n", &[("a", "ACGTAC")]),
            (b">a\nACGT", &[("a", "ACGT")]),
            (b">a\nACGT\r", &[("a", "ACGT")]),
            (b"\n\n>a\n\nAC\n\nGT\n\n", &[("a", "ACGT")]),
            (b";note\n>a\n;note > x\nAC\n", &[("a", "AC")]),
            (b">a\nacgtuU\nRYSWKMbdhvN-.\n", &[("a", "ACGTTTRYSWKMBDHVN--")]),
            (b">a\n>b\n\n>c\nA\n>\n>d", &[("a", ""), ("b", ""), ("c", "A"), ("", ""), ("d", "")]),
            (b">", &[("", "")]),
        ];
        for (text, wanted) in layouts {
            let wanted: Records =
                wanted.iter().map(|(name, bases)| (name.to_string(), bases.to_string())).collect();
            assert_eq!(in_letters(parse(text, |_| ()).unwrap()), wanted);
        }
    }

    #[test]
    fn malformed_input_names_the_place() {
        let texts: [(&[u8], &str); 10] = [
            (b"", "there is no record in the file (0 lines)"),
            (b"\n\n", "there is no record in the file (2 lines)"),
            (b"ACGT\n", "line 1: bases before the first header (a line that begins with >)"),
            (b"\n\nAC", "line 3: bases before the first header (a line that begins with >)"),
            (b">a\nAC\nACXT\n", "line 3, column 3: `X` is no nucleotide letter"),
            (b">a\nAC GT\n", "line 2, column 3: byte 0x20 is no nucleotide letter"),
            (b">a\r\nAC\rGT\n", "line 2, column 3: byte 0x0d is no nucleotide letter"),
            (b">a\nAC>b\n", "line 2, column 3: `>` is no nucleotide letter"),
            (b">a\nA\x00\n", "line 2, column 2: byte 0x00 is no nucleotide letter"),
            (b">a\n\xef\xbb\xbfA\n", "line 2, column 1: byte 0xef is no nucleotide letter"),
        ];
        for (text, message) in texts {
            assert_eq!(parse(text, |_| ()).unwrap_err().to_string(), message);
        }
    }

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    fn read_file(name: &str, bytes: &[u8]) -> Result<Vec<Record>> {
        let path = std::env::temp_dir().join(format!("vmarray-fasta-{}-{name}", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        let result = read(&path, |_| ());
        std::fs::remove_file(&path).unwrap();
        result
    }

    #[test]
    fn compressed_and_plain_files_are_told_apart() {
        let text = b">a\nACGT\n>b\nGG\n";
        let members = [gzip(&text[..5]), gzip(&text[5..])].concat();
        for (name, bytes) in [("plain", text.to_vec()), ("gzip", gzip(text)), ("members", members)] {
            let wanted = in_letters(parse(&text[..], |_| ()).unwrap());
            assert_eq!(in_letters(read_file(name, &bytes).unwrap()), wanted, "{name}");
        }
    }

    #[test]
    fn damaged_files_are_errors() {
        let mut long = b">a\n".to_vec();
        long.extend((0..10_000_u32).map(|i| b"ACGT"[(i.wrapping_mul(2_654_435_761) >> 30) as usize]));
        let whole = gzip(&long);
        let mut flipped = whole.clone();
        flipped[whole.len() - 6] ^= 1;
        for (name, bytes) in [("cut", &whole[..whole.len() / 2]), ("checksum", &flipped)] {
            assert!(read_file(name, bytes).unwrap_err().to_string().ends_with("cannot be read"), "{name}");
        }
        assert!(read_file("empty", b"").unwrap_err().to_string().contains("no record"));
        assert!(
            read(Path::new("no such file"), |_| ()).unwrap_err().to_string().contains("cannot be opened")
        );
    }

    #[test]
    fn the_default_genome_is_what_its_readme_says() {
        let records = read(&crate::project::root().join("xtask/data/NC_008253.fna.gz"), |_| ()).unwrap();
        let [Record { name, codes }] = &records[..] else { panic!("{} records", records.len()) };
        assert_eq!(name, "gi|110640213|ref|NC_008253.1| Escherichia coli 536, complete genome");
        let counts = [1, 2, 4, 8].map(|code| codes.iter().filter(|found| **found == code).count());
        assert_eq!(counts, [1_222_723, 1_251_581, 1_243_439, 1_221_177]);
        assert_eq!(codes.len(), counts.iter().sum::<usize>());
    }
}
