//! FASTA files, plain or gzip, read as a stream: memory does not grow with the file, a record or a line.

use super::letters::{self, Code};
use flate2::bufread::MultiGzDecoder;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

/// The longest header line taken, in bytes.
const HEADER_MAX: usize = 1 << 16;
/// The first bytes of a gzip file.
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// Why a FASTA file could not be read. Lines count from 1.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file could not be opened.
    #[error("{} cannot be opened", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The file could not be read on, or its gzip stream is damaged or cut off.
    #[error("line {line} cannot be read")]
    Read {
        /// The line that was being read.
        line: u64,
        /// The system's or the decompressor's reason.
        source: io::Error,
    },
    /// A byte that is no nucleotide letter of IUPAC.
    #[error("line {line}, column {column}: {} is no nucleotide letter", show(*byte))]
    Letter {
        /// The line.
        line: u64,
        /// The byte in the line, from 1.
        column: u64,
        /// What is there.
        byte: u8,
    },
    /// Bases come before any header.
    #[error("line {line}: bases before the first header (a line that begins with >)")]
    NoHeader {
        /// The line.
        line: u64,
    },
    /// A header that is not ended by a line end within reason.
    #[error("line {line}: the header is longer than {HEADER_MAX} bytes")]
    LongHeader {
        /// The line.
        line: u64,
    },
    /// There is no record in the file.
    #[error("there is no record in the file ({line} lines)")]
    Empty {
        /// How many lines there are.
        line: u64,
    },
}

fn show(byte: u8) -> String {
    if byte.is_ascii_graphic() { format!("`{}`", byte as char) } else { format!("byte 0x{byte:02x}") }
}

/// What comes next in a file.
#[derive(Debug, PartialEq, Eq)]
pub enum Item<'a> {
    /// A new record, with its header line, without `>` and line end; bytes that are not UTF-8 are replaced.
    Record(&'a str),
    /// More bases of the record: never empty, at most as many as the input buffers.
    Bases(&'a [Code]),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    LineStart,
    Header,
    Comment,
    Bases,
}

/// Reads items one after another. Lines that begin with `;` are comments; empty lines mean nothing.
pub struct Reader<R> {
    input: R,
    place: Place,
    line: u64,
    column: u64,
    /// A carriage return has been read; only a line end may follow.
    after_return: bool,
    has_record: bool,
    ended: bool,
    header: Vec<u8>,
    name: String,
    codes: Vec<Code>,
}

/// Opens a file, plain or gzip: the first two bytes tell. Several gzip members one after another (bgzip) are
/// one file.
pub fn open(path: &Path) -> Result<Reader<Box<dyn BufRead>>, Error> {
    let failed = |source| Error::Open { path: path.to_path_buf(), source };
    let mut input = BufReader::with_capacity(1 << 17, File::open(path).map_err(failed)?);
    let is_gzip = input.fill_buf().map_err(failed)?.starts_with(&GZIP_MAGIC);
    Ok(Reader::new(match is_gzip {
        true => Box::new(BufReader::with_capacity(1 << 17, MultiGzDecoder::new(input))),
        false => Box::new(input),
    }))
}

impl<R: BufRead> Reader<R> {
    /// Reads plain FASTA from `input`.
    pub fn new(input: R) -> Self {
        Self {
            input,
            place: Place::LineStart,
            line: 1,
            column: 1,
            after_return: false,
            has_record: false,
            ended: false,
            header: Vec::new(),
            name: String::new(),
            codes: Vec::new(),
        }
    }

    /// The next item; `None` at the end. After an error, or the end, there is nothing more.
    pub fn next(&mut self) -> Result<Option<Item<'_>>, Error> {
        match self.advance() {
            Ok(Some(Found::Record)) => Ok(Some(Item::Record(&self.name))),
            Ok(Some(Found::Bases)) => Ok(Some(Item::Bases(&self.codes))),
            Ok(None) => Ok(None),
            Err(error) => {
                self.ended = true;
                Err(error)
            }
        }
    }

    fn advance(&mut self) -> Result<Option<Found>, Error> {
        self.codes.clear();
        while !self.ended {
            let line = self.line;
            let buffer = loop {
                match self.input.fill_buf() {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    other => break other.map_err(|source| Error::Read { line, source })?,
                }
            };
            if buffer.is_empty() {
                self.ended = true;
                if self.place == Place::Header {
                    return Ok(Some(self.end_header()));
                }
                if !self.has_record {
                    return Err(Error::Empty { line: line - u64::from(self.column == 1) });
                }
                break;
            }
            // The buffer is borrowed from `input`: take it out of `self` for the scan by splitting the
            // fields.
            let mut scan = Scan {
                place: &mut self.place,
                line: &mut self.line,
                column: &mut self.column,
                after_return: &mut self.after_return,
                has_record: self.has_record,
                header: &mut self.header,
                codes: &mut self.codes,
            };
            let (used, found) = scan.run(buffer)?;
            self.input.consume(used);
            match found {
                Some(Found::Record) => return Ok(Some(self.end_header())),
                Some(Found::Bases) => return Ok(Some(Found::Bases)),
                None => {}
            }
        }
        Ok(None)
    }

    fn end_header(&mut self) -> Found {
        if self.header.last() == Some(&b'\r') {
            self.header.pop();
        }
        self.name = String::from_utf8_lossy(&self.header).into_owned();
        self.header.clear();
        self.place = Place::LineStart;
        self.has_record = true;
        Found::Record
    }
}

enum Found {
    Record,
    Bases,
}

/// The state of a reader without its input.
struct Scan<'a> {
    place: &'a mut Place,
    line: &'a mut u64,
    column: &'a mut u64,
    after_return: &'a mut bool,
    has_record: bool,
    header: &'a mut Vec<u8>,
    codes: &'a mut Vec<Code>,
}

impl Scan<'_> {
    /// Scans until the buffer ends or an item is whole: how many bytes were used, and what was found.
    fn run(&mut self, buffer: &[u8]) -> Result<(usize, Option<Found>), Error> {
        let mut at = 0;
        while at < buffer.len() {
            let byte = buffer[at];
            match *self.place {
                Place::LineStart if byte == b'>' => {
                    if !self.codes.is_empty() {
                        return Ok((at, Some(Found::Bases))); // The header is taken up in the next call.
                    }
                    *self.place = Place::Header;
                    at += 1;
                }
                Place::LineStart if byte == b';' => *self.place = Place::Comment,
                Place::LineStart => *self.place = Place::Bases,
                Place::Header | Place::Comment => {
                    let rest = &buffer[at..];
                    let end = rest.iter().position(|byte| *byte == b'\n');
                    let text = &rest[..end.unwrap_or(rest.len())];
                    if *self.place == Place::Header {
                        if self.header.len() + text.len() > HEADER_MAX {
                            return Err(Error::LongHeader { line: *self.line });
                        }
                        self.header.extend_from_slice(text);
                    }
                    at += text.len();
                    if end.is_some() {
                        at += 1;
                        let is_header = *self.place == Place::Header;
                        self.next_line();
                        if is_header {
                            return Ok((at, Some(Found::Record)));
                        }
                    }
                }
                Place::Bases => {
                    at += 1;
                    if byte == b'\n' {
                        *self.after_return = false;
                        self.next_line();
                    } else if *self.after_return {
                        return Err(self.letter(b'\r', 1));
                    } else if let Some(code) = letters::code(byte) {
                        if !self.has_record {
                            return Err(Error::NoHeader { line: *self.line });
                        }
                        self.codes.push(code);
                        *self.column += 1;
                    } else if byte == b'\r' {
                        *self.after_return = true;
                        *self.column += 1;
                    } else {
                        return Err(self.letter(byte, 0));
                    }
                }
            }
        }
        Ok((at, (!self.codes.is_empty()).then_some(Found::Bases)))
    }

    fn next_line(&mut self) {
        *self.place = Place::LineStart;
        *self.line += 1;
        *self.column = 1;
    }

    fn letter(&self, byte: u8, back: u64) -> Error {
        Error::Letter { line: *self.line, column: *self.column - back, byte }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Cursor, Write};

    type Records = Vec<(String, String)>;

    fn collect<R: BufRead>(mut reader: Reader<R>) -> Result<Records, Error> {
        let mut records: Records = Vec::new();
        while let Some(item) = reader.next()? {
            match item {
                Item::Record(name) => records.push((name.to_string(), String::new())),
                Item::Bases(codes) => {
                    assert!(!codes.is_empty());
                    let last = records.last_mut().expect("bases follow a record");
                    last.1.extend(codes.iter().map(|code| letters::letter(*code) as char));
                }
            }
        }
        assert!(matches!(reader.next(), Ok(None)));
        Ok(records)
    }

    /// Reads with input buffers of every small size; all have to agree.
    fn read(text: &[u8]) -> Result<Records, String> {
        let whole = collect(Reader::new(Cursor::new(text))).map_err(|error| error.to_string());
        for capacity in 1..8 {
            let pieces = collect(Reader::new(BufReader::with_capacity(capacity, text)))
                .map_err(|error| error.to_string());
            assert_eq!(pieces, whole, "buffer of {capacity}");
        }
        whole
    }

    fn records(list: &[(&str, &str)]) -> Result<Records, String> {
        Ok(list.iter().map(|(name, bases)| (name.to_string(), bases.to_string())).collect())
    }

    #[test]
    fn many_records_in_all_layouts() {
        assert_eq!(read(b">a\nACGT\nAC\n>b c\nTT\n"), records(&[("a", "ACGTAC"), ("b c", "TT")]));
        assert_eq!(read(b">a\r\nACGT\r\nAC\r\n"), records(&[("a", "ACGTAC")]));
        assert_eq!(read(b">a\nACGT"), records(&[("a", "ACGT")]));
        assert_eq!(read(b">a\nACGT\r"), records(&[("a", "ACGT")]));
        assert_eq!(read(b"\n\n>a\n\nAC\n\nGT\n\n"), records(&[("a", "ACGT")]));
        assert_eq!(read(b";note\n>a\n;note > x\nAC\n"), records(&[("a", "AC")]));
    }

    #[test]
    fn letters_of_both_cases_and_all_codes() {
        assert_eq!(read(b">a\nacgtuU\nRYSWKMbdhvN-.\n"), records(&[("a", "ACGTTTRYSWKMBDHVN--")]));
    }

    #[test]
    fn empty_records_and_names() {
        assert_eq!(
            read(b">a\n>b\n\n>c\nA\n>\n>d"),
            records(&[("a", ""), ("b", ""), ("c", "A"), ("", ""), ("d", "")])
        );
        assert_eq!(read(b">"), records(&[("", "")]));
    }

    #[test]
    fn malformed_input_names_the_place() {
        for (text, message) in [
            (&b""[..], "there is no record in the file (0 lines)"),
            (b"\n\n", "there is no record in the file (2 lines)"),
            (b"ACGT\n", "line 1: bases before the first header (a line that begins with >)"),
            (b"\n\nAC", "line 3: bases before the first header (a line that begins with >)"),
            (b">a\nAC\nACXT\n", "line 3, column 3: `X` is no nucleotide letter"),
            (b">a\nAC GT\n", "line 2, column 3: byte 0x20 is no nucleotide letter"),
            (b">a\r\nAC\rGT\n", "line 2, column 3: byte 0x0d is no nucleotide letter"),
            (b">a\nAC>b\n", "line 2, column 3: `>` is no nucleotide letter"),
            (b">a\nA\x00\n", "line 2, column 2: byte 0x00 is no nucleotide letter"),
            (b">a\n\xef\xbb\xbfA\n", "line 2, column 1: byte 0xef is no nucleotide letter"),
        ] {
            assert_eq!(read(text), Err(message.to_string()), "{:?}", String::from_utf8_lossy(text));
        }
    }

    #[test]
    fn endless_header_is_refused() {
        let mut text = vec![b'>'];
        text.extend(std::iter::repeat_n(b'x', HEADER_MAX));
        assert_eq!(collect(Reader::new(&text[..])).unwrap().len(), 1);
        text.push(b'x');
        assert!(matches!(collect(Reader::new(&text[..])), Err(Error::LongHeader { line: 1 })));
    }

    #[test]
    fn bases_of_one_long_line_come_in_pieces() {
        let mut text = b">a\n".to_vec();
        text.extend(std::iter::repeat_n(b'A', 100_000));
        let mut reader = Reader::new(BufReader::with_capacity(1000, &text[..]));
        let (mut sum, mut most) = (0, 0);
        while let Some(item) = reader.next().unwrap() {
            if let Item::Bases(codes) = item {
                sum += codes.len();
                most = most.max(codes.len());
            }
        }
        assert_eq!(sum, 100_000);
        assert!(most <= 1000);
    }

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    fn read_file(name: &str, bytes: &[u8]) -> Result<Records, Error> {
        let path = std::env::temp_dir().join(format!("vmarray-fasta-{}-{name}", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        let result = open(&path).and_then(collect);
        std::fs::remove_file(&path).unwrap();
        result
    }

    #[test]
    fn compressed_and_plain_files_are_told_apart() {
        let text = b">a\nACGT\n>b\nGG\n";
        let wanted = records(&[("a", "ACGT"), ("b", "GG")]).unwrap();
        assert_eq!(read_file("plain", text).unwrap(), wanted);
        assert_eq!(read_file("gzip", &gzip(text)).unwrap(), wanted);
        let members = [gzip(&text[..5]), gzip(&text[5..])].concat();
        assert_eq!(read_file("members", &members).unwrap(), wanted);
    }

    #[test]
    fn damaged_files_are_errors() {
        let mut long = b">a\n".to_vec();
        long.extend((0..10_000_u32).map(|i| b"ACGT"[(i.wrapping_mul(2_654_435_761) >> 30) as usize]));
        let whole = gzip(&long);
        assert!(matches!(read_file("cut", &whole[..whole.len() / 2]), Err(Error::Read { .. })));
        let mut flipped = whole.clone();
        let last = flipped.len() - 6;
        flipped[last] ^= 1;
        assert!(matches!(read_file("checksum", &flipped), Err(Error::Read { .. })));
        assert!(matches!(read_file("empty", b""), Err(Error::Empty { line: 0 })));
        assert!(matches!(open(Path::new("no such file")), Err(Error::Open { .. })));
    }

    #[test]
    fn default_genome_is_what_its_readme_says() {
        let mut reader = open(&crate::demo::default_genome()).unwrap();
        let (mut names, mut counts) = (Vec::new(), [0_u64; 16]);
        while let Some(item) = reader.next().unwrap() {
            match item {
                Item::Record(name) => names.push(name.to_string()),
                Item::Bases(codes) => codes.iter().for_each(|code| counts[usize::from(*code)] += 1),
            }
        }
        assert_eq!(names, ["gi|110640213|ref|NC_008253.1| Escherichia coli 536, complete genome"]);
        let [a, c, g, t] = [1, 2, 4, 8].map(|code| counts[code]);
        assert_eq!([a, c, g, t], [1_222_723, 1_251_581, 1_243_439, 1_221_177]);
        assert_eq!(counts.iter().sum::<u64>(), a + c + g + t);
    }
}
