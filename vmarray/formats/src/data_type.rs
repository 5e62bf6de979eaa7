//! Element types of files and arrays, and conversion of their byte order.

use std::fmt;
use std::path::Path;

use vmarray::Element;
use vmarray::device::expr::Type;
use vmarray::kernel::{KernelType, Layout};

use crate::error::{Error, Result};
use crate::options::ByteOrder;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NumberKind {
    Bool,
    U8,
    U16,
    U32,
    U64,
    I8,
    I16,
    I32,
    I64,
    F16,
    Bf16,
    F32,
    F64,
    Complex64,
    Complex128,
}

impl NumberKind {
    /// The name of the Rust type, or of the type in a crate such as `half`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Bool => "bool",
            Self::U8 => "u8",
            Self::U16 => "u16",
            Self::U32 => "u32",
            Self::U64 => "u64",
            Self::I8 => "i8",
            Self::I16 => "i16",
            Self::I32 => "i32",
            Self::I64 => "i64",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::Complex64 => "Complex<f32>",
            Self::Complex128 => "Complex<f64>",
        }
    }

    pub(crate) fn bytes(self) -> usize {
        self.words() * self.word_bytes()
    }

    /// Number of words of a number; each word has a byte order.
    fn words(self) -> usize {
        if matches!(self, Self::Complex64 | Self::Complex128) { 2 } else { 1 }
    }

    fn word_bytes(self) -> usize {
        match self {
            Self::Bool | Self::U8 | Self::I8 => 1,
            Self::U16 | Self::I16 | Self::F16 | Self::Bf16 => 2,
            Self::U32 | Self::I32 | Self::F32 | Self::Complex64 => 4,
            Self::U64 | Self::I64 | Self::F64 | Self::Complex128 => 8,
        }
    }
}

/// The type of an element in a file, without padding between its parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DataType {
    Number(NumberKind, ByteOrder),
    Array(Box<Self>, usize),
    Struct(Vec<(String, Self)>),
}

impl DataType {
    /// Returns the type of an array's elements.
    ///
    /// # Errors
    /// [`Unsupported`](Error::Unsupported) for types that are not plain data.
    pub(crate) fn of<T: KernelType + Element>(path: &Path) -> Result<Self> {
        let of = Self::of_layout(&T::layout()).filter(|of| of.bytes() == Some(size_of::<T>() as u64));
        let what = "a field of the elements has no type in files; store numbers, arrays or structs";
        of.ok_or_else(|| Error::unsupported(path, what))
    }

    fn of_layout(layout: &Layout) -> Option<Self> {
        Some(match layout {
            Layout::Scalar(of) => Self::Number(number_of(*of), ByteOrder::NATIVE),
            Layout::Array(of, len) => Self::Array(Box::new(Self::of_layout(of)?), *len),
            Layout::Tuple(_) => return None,
            Layout::Struct { name, fields, .. } => {
                let mut fields: Vec<_> = fields.iter().collect();
                fields.sort_by_key(|field| field.offset);
                let mut end = 0;
                let mut parts = Vec::with_capacity(fields.len());
                for field in fields {
                    let of = Self::of_layout(&field.layout)?;
                    (field.offset == end).then_some(())?;
                    end += field.layout.bytes();
                    parts.push((field.name.to_owned(), of));
                }
                let native = |number| Some(Self::Number(number, ByteOrder::NATIVE));
                // In kernels, number types of other crates, such as `f16` of `half`, are structs. Recognise
                // them by name and fields.
                let known = match (*name, &parts[..]) {
                    ("f16", [(_, Self::Number(NumberKind::U16, _))]) => native(NumberKind::F16),
                    ("bf16", [(_, Self::Number(NumberKind::U16, _))]) => native(NumberKind::Bf16),
                    ("Complex", [(_, Self::Number(NumberKind::F32, _)), _]) => native(NumberKind::Complex64),
                    ("Complex", [(_, Self::Number(NumberKind::F64, _)), _]) => native(NumberKind::Complex128),
                    _ => None,
                };
                known.unwrap_or(Self::Struct(parts))
            }
        })
    }

    /// Returns the same type in another byte order.
    pub(crate) fn in_order(self, order: ByteOrder) -> Self {
        match self {
            Self::Number(number, _) => Self::Number(number, order),
            Self::Array(of, len) => Self::Array(Box::new(of.in_order(order)), len),
            Self::Struct(fields) => {
                Self::Struct(fields.into_iter().map(|(name, of)| (name, of.in_order(order))).collect())
            }
        }
    }

    /// Size of the type in bytes; `None` on overflow.
    pub(crate) fn bytes(&self) -> Option<u64> {
        match self {
            Self::Number(number, _) => Some(number.bytes() as u64),
            Self::Array(of, len) => of.bytes()?.checked_mul(*len as u64),
            Self::Struct(fields) => {
                fields.iter().try_fold(0_u64, |sum, (_, of)| sum.checked_add(of.bytes()?))
            }
        }
    }

    /// Returns true if an array of `elements` can hold file elements of this type. Ignores byte orders; a
    /// `bool` matches a byte.
    pub(crate) fn fits(&self, elements: &Self) -> bool {
        match (self, elements) {
            (Self::Number(NumberKind::Bool, _), Self::Number(NumberKind::U8, _)) => true,
            (Self::Number(a, _), Self::Number(b, _)) => a == b,
            (Self::Array(a, m), Self::Array(b, n)) => m == n && a.fits(b),
            (Self::Struct(a), Self::Struct(b)) => {
                a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.0 == b.0 && a.1.fits(&b.1))
            }
            _ => false,
        }
    }

    /// Returns the type without arrays around it, and their lengths, the outermost first.
    pub(crate) fn without_arrays(&self) -> (&Self, Vec<usize>) {
        let (mut of, mut lengths) = (self, Vec::new());
        while let Self::Array(inner, len) = of {
            lengths.push(*len);
            of = inner;
        }
        (of, lengths)
    }

    /// Returns nested arrays of the type; the outermost length is first.
    pub(crate) fn in_arrays(self, lengths: &[usize]) -> Self {
        lengths.iter().rev().fold(self, |of, len| Self::Array(Box::new(of), *len))
    }

    /// Appends the words that are not in this machine's byte order, as offset and length in bytes.
    fn add_swapped(&self, offset: usize, words: &mut Vec<(usize, usize)>) {
        match self {
            Self::Number(number, order) => {
                let len = number.word_bytes();
                if *order != ByteOrder::NATIVE && len > 1 {
                    words.extend((0..number.words()).map(|word| (offset + word * len, len)));
                }
            }
            Self::Array(_, 0) => {}
            Self::Array(of, len) => {
                let bytes = of.bytes().unwrap_or(0) as usize;
                let before = words.len();
                of.add_swapped(offset, words);
                // If the first entry needs no byte swap (a byte), no other entry of the array needs one.
                if words.len() > before {
                    (1..*len).for_each(|i| of.add_swapped(offset + i * bytes, words));
                }
            }
            Self::Struct(fields) => {
                let mut offset = offset;
                for (_, of) in fields {
                    of.add_swapped(offset, words);
                    offset += of.bytes().unwrap_or(0) as usize;
                }
            }
        }
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number, _) => f.write_str(number.name()),
            Self::Array(of, len) => write!(f, "[{of}; {len}]"),
            Self::Struct(fields) => {
                for (i, (name, of)) in fields.iter().enumerate() {
                    write!(f, "{}{name}: {of}", if i == 0 { "{" } else { ", " })?;
                }
                f.write_str("}")
            }
        }
    }
}

fn number_of(of: Type) -> NumberKind {
    match of {
        Type::Bool => NumberKind::Bool,
        Type::U8 => NumberKind::U8,
        Type::U16 => NumberKind::U16,
        Type::U32 => NumberKind::U32,
        Type::U64 => NumberKind::U64,
        Type::I8 => NumberKind::I8,
        Type::I16 => NumberKind::I16,
        Type::I32 => NumberKind::I32,
        Type::I64 => NumberKind::I64,
        Type::F32 => NumberKind::F32,
        Type::F64 => NumberKind::F64,
    }
}

/// Conversion between the byte order of a file and of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Swaps {
    Nothing,
    /// The element consists of words of this length in bytes.
    Words(usize),
    /// Offset and length in bytes of each word that has a byte order, and the length of an element.
    Some(Vec<(usize, usize)>, usize),
}

impl Swaps {
    /// Returns the conversion for elements of a type whose size equals that of an element in memory.
    pub(crate) fn of(of: &DataType) -> Self {
        let bytes = of.bytes().unwrap_or(0) as usize;
        let mut words = Vec::new();
        of.add_swapped(0, &mut words);
        match words.first() {
            None => Self::Nothing,
            Some(&(_, len)) if words.len() * len == bytes && words.iter().all(|word| word.1 == len) => {
                Self::Words(len)
            }
            Some(_) => Self::Some(words, bytes),
        }
    }

    pub(crate) fn apply(&self, bytes: &mut [u8]) {
        match self {
            Self::Nothing => {}
            Self::Words(2) => swap_all::<2>(bytes),
            Self::Words(4) => swap_all::<4>(bytes),
            Self::Words(len) => bytes.chunks_exact_mut(*len).for_each(<[u8]>::reverse),
            Self::Some(words, element_bytes) => {
                for element in bytes.chunks_exact_mut(*element_bytes) {
                    words.iter().for_each(|(offset, len)| element[*offset..][..*len].reverse());
                }
            }
        }
    }
}

fn swap_all<const N: usize>(bytes: &mut [u8]) {
    bytes.as_chunks_mut::<N>().0.iter_mut().for_each(|word| word.reverse());
}

#[cfg(test)]
mod tests {
    use super::*;

    const OTHER: ByteOrder = match ByteOrder::NATIVE {
        ByteOrder::Little => ByteOrder::Big,
        ByteOrder::Big => ByteOrder::Little,
    };

    #[test]
    fn words_of_every_length_are_swapped_where_they_are() {
        let of = |number| DataType::Number(number, OTHER);
        let mut bytes = [1, 2, 3, 4, 5, 6, 7, 8];
        for (number, swapped) in [
            (NumberKind::U8, [1, 2, 3, 4, 5, 6, 7, 8]),
            (NumberKind::I16, [2, 1, 4, 3, 6, 5, 8, 7]),
            (NumberKind::Complex64, [4, 3, 2, 1, 8, 7, 6, 5]),
            (NumberKind::F64, [8, 7, 6, 5, 4, 3, 2, 1]),
        ] {
            Swaps::of(&of(number)).apply(&mut bytes);
            assert_eq!(bytes, swapped);
            Swaps::of(&of(number)).apply(&mut bytes);
        }
        let mixed = DataType::Struct(vec![
            ("a".into(), of(NumberKind::U16).in_arrays(&[1])),
            ("b".into(), DataType::Number(NumberKind::U16, ByteOrder::NATIVE)),
            ("c".into(), of(NumberKind::U32)),
        ]);
        let swaps = Swaps::of(&mixed);
        assert_eq!(swaps, Swaps::Some(vec![(0, 2), (4, 4)], 8));
        swaps.apply(&mut bytes);
        assert_eq!(bytes, [2, 1, 3, 4, 8, 7, 6, 5]);
        assert_eq!(mixed.to_string(), "{a: [u16; 1], b: u16, c: u32}");
        assert_eq!(Swaps::of(&mixed.in_order(ByteOrder::NATIVE)), Swaps::Nothing);
    }

    #[test]
    fn a_type_of_too_many_bytes_has_no_size() {
        let huge = DataType::Number(NumberKind::U64, OTHER).in_arrays(&[usize::MAX, 2]);
        assert_eq!(huge.bytes(), None);
        assert_eq!(huge.without_arrays().1, [usize::MAX, 2]);
        // Arrays of bytes are not visited byte by byte.
        assert_eq!(
            Swaps::of(&DataType::Number(NumberKind::U8, OTHER).in_arrays(&[usize::MAX])),
            Swaps::Nothing
        );
    }
}
