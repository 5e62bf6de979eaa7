//! Parser and writer of the headers of `.npy` files, format versions 1 to 3.

use std::fmt::Write as _;
use std::fs::File;
use std::path::Path;

use super::literal::Literal;
use crate::data_type::{DataType, NumberKind};
use crate::error::{Error, Result};
use crate::files;
use crate::options::ByteOrder;

const MAGIC: &[u8; 6] = b"\x93NUMPY";
/// Maximum length in bytes of the part before the header's text: magic, version, and text length.
const PREFIX_MAX: usize = 12;
/// Maximum length of the header's text in bytes. A type of a thousand fields has some tens of KiB.
const TEXT_MAX: u64 = 1 << 20;
/// The maximum number of axes, as in NumPy.
const AXES_MAX: usize = 64;
/// Alignment of the first element in the file, in bytes.
const ALIGNMENT: usize = 64;

/// Parsed header: description of the elements of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) of: DataType,
    pub(super) is_first_fastest: bool,
    pub(super) shape: Vec<usize>,
    /// Byte offset of the first element in the file.
    pub(super) offset: u64,
}

impl Header {
    /// Reads and validates the header of a file of `file_bytes` bytes.
    pub(super) fn read(file: &File, path: &Path, file_bytes: u64) -> Result<Self> {
        let malformed = |reason: &str| Error::malformed(path, reason);
        let mut prefix = [0; PREFIX_MAX];
        // Read the longest prefix, or a shorter file whole. In version 1, the last two bytes are text.
        let prefix = &mut prefix[..PREFIX_MAX.min(usize::try_from(file_bytes).unwrap_or(PREFIX_MAX))];
        files::read_at(file, path, 0, prefix)?;
        let (start, text_bytes) = match prefix {
            [magic @ .., _, _, _, _, _, _] if magic != MAGIC => {
                return Err(malformed("the file does not begin with \\x93NUMPY"));
            }
            [.., 1, _, a, b, _, _] => (10, u64::from(u16::from_le_bytes([*a, *b]))),
            [.., 2 | 3, _, a, b, c, d] => (12, u64::from(u32::from_le_bytes([*a, *b, *c, *d]))),
            [.., version, _, _, _, _, _] => {
                return Err(Error::unsupported(
                    path,
                    format!("version {version} of the format is not supported"),
                ));
            }
            _ => return Err(malformed("the file is too short for a header")),
        };
        let offset = start + text_bytes;
        if offset > file_bytes {
            return Err(Error::LengthMismatch {
                path: path.into(),
                expected_bytes: offset,
                found_bytes: file_bytes,
            });
        }
        if text_bytes > TEXT_MAX {
            return Err(malformed(&format!(
                "its header has {text_bytes} bytes, but at most {TEXT_MAX} are supported"
            )));
        }
        let mut text = vec![0; text_bytes as usize];
        files::read_at(file, path, start, &mut text)?;
        let text = if prefix[6] == 3 {
            String::from_utf8(text).map_err(|_| malformed("its header is not UTF-8"))?
        } else {
            // The text is Latin-1, whose code points are the same in Unicode.
            text.into_iter().map(char::from).collect()
        };
        let (of, is_first_fastest, shape) = parse(&text).map_err(|fault| match fault {
            Fault::Malformed(reason) => Error::malformed(path, reason),
            Fault::Unsupported(what) => Error::unsupported(path, what),
        })?;
        Ok(Self { of, is_first_fastest, shape, offset })
    }

    /// Returns the bytes of a header for row-major elements.
    pub(super) fn bytes(of: &DataType, shape: &[usize]) -> Result<Vec<u8>, String> {
        let mut text = format!("{{'descr': {}, 'fortran_order': False, 'shape': (", described(of)?);
        for extent in shape {
            let _ = write!(text, "{extent}, ");
        }
        // Write tuples as Python does: `(3,)` and `(3, 4)`.
        text.truncate(text.trim_end_matches(if shape.len() == 1 { " " } else { ", " }).len());
        text.push_str("), }");
        let is_plain = text.is_ascii();
        let padded = |prefix: usize| (prefix + text.len() + 1).next_multiple_of(ALIGNMENT) - prefix;
        let mut bytes = MAGIC.to_vec();
        if let Some(len) = u16::try_from(padded(10)).ok().filter(|_| is_plain) {
            bytes.extend([1, 0]);
            bytes.extend(len.to_le_bytes());
        } else {
            let len = u32::try_from(padded(12)).map_err(|_| "the elements have too many fields")?;
            bytes.extend([if is_plain { 2 } else { 3 }, 0]);
            bytes.extend(len.to_le_bytes());
        }
        let end = (bytes.len() + text.len() + 1).next_multiple_of(ALIGNMENT);
        bytes.extend(text.as_bytes());
        bytes.resize(end - 1, b' ');
        bytes.push(b'\n');
        Ok(bytes)
    }
}

/// Reason why a header's text cannot be read.
#[derive(Debug)]
enum Fault {
    Malformed(String),
    Unsupported(String),
}

impl From<String> for Fault {
    fn from(reason: String) -> Self {
        Self::Malformed(reason)
    }
}

impl From<&str> for Fault {
    fn from(reason: &str) -> Self {
        Self::Malformed(reason.into())
    }
}

fn parse(text: &str) -> Result<(DataType, bool, Vec<usize>), Fault> {
    let Literal::Named(values) = Literal::parse(text)? else {
        return Err("its header is not a dictionary".into());
    };
    let (mut of, mut is_first_fastest, mut shape) = (None, None, None);
    for (name, value) in values {
        match (name.as_str(), value) {
            ("descr", value) => of = Some(type_of(&value)?),
            ("fortran_order", Literal::Bool(value)) => is_first_fastest = Some(value),
            ("shape", Literal::Several(extents)) => shape = Some(extents_of(&extents)?),
            (name, _) => {
                return Err(format!(
                    "its header has the unknown key `{name}`, or a value of a wrong type for it"
                )
                .into());
            }
        }
    }
    match (of, is_first_fastest, shape) {
        (Some(of), Some(is_first_fastest), Some(shape)) => Ok((of, is_first_fastest, shape)),
        _ => Err("its header lacks `descr`, `fortran_order` or `shape`".into()),
    }
}

fn extents_of(extents: &[Literal]) -> Result<Vec<usize>, Fault> {
    if extents.len() > AXES_MAX {
        return Err(
            format!("its shape has {} axes, but at most {AXES_MAX} are supported", extents.len()).into()
        );
    }
    let extent = |extent: &Literal| match extent {
        Literal::Number(extent) => usize::try_from(*extent).ok(),
        _ => None,
    };
    extents
        .iter()
        .map(|of| extent(of).ok_or_else(|| "its shape has an extent that is not a number".into()))
        .collect()
}

/// Parses the type in a `descr`, or in one of its fields.
fn type_of(value: &Literal) -> Result<DataType, Fault> {
    match value {
        Literal::Text(code) => number_of(code),
        Literal::Several(fields) => {
            let mut parts = Vec::with_capacity(fields.len());
            for field in fields {
                let Literal::Several(parts_of_field) = field else {
                    return Err("a field of its elements is not a tuple".into());
                };
                let (name, of, shape) = match &parts_of_field[..] {
                    [name, of] => (name, of, Vec::new()),
                    [name, of, Literal::Several(shape)] => (name, of, extents_of(shape)?),
                    [name, of, Literal::Number(len)] => (name, of, extents_of(&[Literal::Number(*len)])?),
                    _ => {
                        return Err("a field of its elements is not a name, a type and a shape".into());
                    }
                };
                let name = match name {
                    Literal::Text(name) => name,
                    // Instead of a name, NumPy permits a pair of a title and a name.
                    Literal::Several(names) => match &names[..] {
                        [_, Literal::Text(name)] => name,
                        _ => return Err("a field of its elements has no name".into()),
                    },
                    _ => return Err("a field of its elements has no name".into()),
                };
                parts.push((name.clone(), type_of(of)?.in_arrays(&shape)));
            }
            Ok(DataType::Struct(parts))
        }
        _ => Err("the type of its elements is neither a string nor a list".into()),
    }
}

fn number_of(code: &str) -> Result<DataType, Fault> {
    let unsupported = || {
        Fault::Unsupported(format!(
            "elements of NumPy's type {code:?} are not supported; convert them by `astype` to numbers"
        ))
    };
    let (order, rest) = match code.as_bytes().first() {
        Some(b'<') => (ByteOrder::Little, &code[1..]),
        Some(b'>') => (ByteOrder::Big, &code[1..]),
        Some(b'|' | b'=') => (ByteOrder::NATIVE, &code[1..]),
        _ => (ByteOrder::NATIVE, code),
    };
    let number = match rest {
        "b1" | "?" => NumberKind::Bool,
        "u1" => NumberKind::U8,
        "u2" => NumberKind::U16,
        "u4" => NumberKind::U32,
        "u8" => NumberKind::U64,
        "i1" => NumberKind::I8,
        "i2" => NumberKind::I16,
        "i4" => NumberKind::I32,
        "i8" => NumberKind::I64,
        "f2" => NumberKind::F16,
        "f4" => NumberKind::F32,
        "f8" => NumberKind::F64,
        "c8" => NumberKind::Complex64,
        "c16" => NumberKind::Complex128,
        // The remaining supported types are byte strings and void (raw bytes).
        _ => match (rest.as_bytes().first(), rest.get(1..).map(str::parse::<usize>)) {
            (Some(b'S' | b'a' | b'V'), Some(Ok(len))) => {
                return Ok(DataType::Number(NumberKind::U8, ByteOrder::NATIVE).in_arrays(&[len]));
            }
            _ => return Err(unsupported()),
        },
    };
    let order = if number.bytes() == 1 { ByteOrder::NATIVE } else { order };
    Ok(DataType::Number(number, order))
}

/// Returns a type as the text of a `descr`.
fn described(of: &DataType) -> Result<String, String> {
    match of {
        DataType::Number(number, order) => {
            let code = match number {
                NumberKind::Bool => "b1",
                NumberKind::U8 => "u1",
                NumberKind::U16 => "u2",
                NumberKind::U32 => "u4",
                NumberKind::U64 => "u8",
                NumberKind::I8 => "i1",
                NumberKind::I16 => "i2",
                NumberKind::I32 => "i4",
                NumberKind::I64 => "i8",
                NumberKind::F16 => "f2",
                NumberKind::F32 => "f4",
                NumberKind::F64 => "f8",
                NumberKind::Complex64 => "c8",
                NumberKind::Complex128 => "c16",
                NumberKind::Bf16 => return Err("NumPy has no type for bf16; write f32 instead".into()),
            };
            let order = match order {
                _ if number.bytes() == 1 => '|',
                ByteOrder::Little => '<',
                ByteOrder::Big => '>',
            };
            Ok(format!("'{order}{code}'"))
        }
        DataType::Array(..) => {
            Err("NumPy has no type for this array outside of a field; write its numbers along another axis"
                .into())
        }
        DataType::Struct(fields) => {
            let mut text = String::from("[");
            for (name, of) in fields {
                let (of, lengths) = of.without_arrays();
                let _ = write!(text, "('{name}', {}", described(of)?);
                if !lengths.is_empty() {
                    let lengths: Vec<String> = lengths.iter().map(|len| format!("{len},")).collect();
                    let _ = write!(text, ", ({})", lengths.join(" "));
                }
                text.push_str("), ");
            }
            text.truncate(text.trim_end_matches(", ").len());
            text.push(']');
            Ok(text)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(number: NumberKind, order: ByteOrder) -> DataType {
        DataType::Number(number, order)
    }

    #[test]
    fn headers_match_numpys() {
        let bytes = Header::bytes(&number(NumberKind::F32, ByteOrder::Little), &[3, 4]).unwrap();
        assert_eq!(bytes.len(), 128);
        let text = b"\x93NUMPY\x01\0v\0{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }   ";
        assert!(bytes.starts_with(text) && bytes.ends_with(b" \n"));
        for (shape, text) in [(&[][..], "()"), (&[3], "(3,)"), (&[2, 0, 1], "(2, 0, 1)")] {
            let bytes = Header::bytes(&number(NumberKind::U8, ByteOrder::Big), shape).unwrap();
            let text = format!("{{'descr': '|u1', 'fortran_order': False, 'shape': {text}, }}");
            assert!(bytes[10..].starts_with(text.as_bytes()));
        }
        assert!(described(&number(NumberKind::Bf16, ByteOrder::Big)).is_err());
    }

    #[test]
    fn long_and_foreign_names_need_later_versions() {
        let of = number(NumberKind::U8, ByteOrder::NATIVE);
        let many: Vec<_> = (0..5000).map(|i| (format!("field{i}"), of.clone())).collect();
        let long = Header::bytes(&DataType::Struct(many), &[1]).unwrap();
        assert_eq!((long[6], long.len() % ALIGNMENT), (2, 0));
        let foreign = DataType::Struct(vec![("größe".into(), of)]);
        let bytes = Header::bytes(&foreign, &[1]).unwrap();
        assert_eq!((bytes[6], bytes.len() % ALIGNMENT), (3, 0));
    }

    #[test]
    fn types_and_their_numpy_names() {
        let fields = DataType::Struct(vec![
            ("x".into(), number(NumberKind::F64, ByteOrder::Big)),
            ("v".into(), number(NumberKind::I16, ByteOrder::Little).in_arrays(&[3, 2])),
            (
                "in".into(),
                DataType::Struct(vec![("c".into(), number(NumberKind::Complex64, ByteOrder::Little))]),
            ),
        ]);
        let text = "[('x', '>f8'), ('v', '<i2', (3, 2,)), ('in', [('c', '<c8')])]";
        assert_eq!(described(&fields), Ok(text.to_owned()));
        assert_eq!(type_of(&Literal::parse(text).unwrap()).unwrap(), fields);
        let titled = Literal::parse("[(('title', 'x'), 'S5'), ('y', '|V2', 4)]").unwrap();
        assert_eq!(type_of(&titled).unwrap().to_string(), "{x: [u8; 5], y: [[u8; 2]; 4]}");
        for code in ["|O", "<U4", "<M8[ns]", "<f16", "", "<", "é4", "Sé", "<u3", "S99999999999999999999"] {
            assert!(matches!(number_of(code), Err(Fault::Unsupported(_))), "{code}");
        }
        for text in ["1", "[1]", "[('a',)]", "[('a', '<f4', 'b')]", "[(1, '<f4')]", "[('a', '<f4', (-1,))]"] {
            assert!(
                Literal::parse(text).map_err(Fault::from).and_then(|value| type_of(&value)).is_err(),
                "{text}"
            );
        }
    }
}
