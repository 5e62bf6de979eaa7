//! Element types of Python arrays: NumPy dtype, Rust type in the library, and type on devices.

use numpy::PyArrayDescr;
use numpy::prelude::*;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use vmarray::device::expr::Type;

/// Kind of value in an expression: bool, number, 16-bit float or plain bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A bool: a byte, 0 or 1.
    Bool,
    /// A number of this type, which is never `Type::Bool`.
    Number(Type),
    /// A 16-bit float: computed as `F32`, and rounded after each step.
    Half,
    /// Any other dtype: its items are stored and copied, but have no arithmetic.
    Bytes,
}

impl Kind {
    /// Returns the kind of a dtype.
    pub fn of(descr: &Bound<'_, PyArrayDescr>) -> Self {
        if descr.is_native_byteorder() == Some(false) {
            return Self::Bytes;
        }
        let number = match (descr.kind(), descr.itemsize()) {
            (b'b', 1) => return Self::Bool,
            (b'f', 2) => return Self::Half,
            (b'u', 1) => Type::U8,
            (b'u', 2) => Type::U16,
            (b'u', 4) => Type::U32,
            (b'u', 8) => Type::U64,
            (b'i', 1) => Type::I8,
            (b'i', 2) => Type::I16,
            (b'i', 4) => Type::I32,
            (b'i', 8) => Type::I64,
            (b'f', 4) => Type::F32,
            (b'f', 8) => Type::F64,
            _ => return Self::Bytes,
        };
        Self::Number(number)
    }

    /// Returns the type of this kind's values in device programs; `None` for plain bytes.
    pub fn value_type(self) -> Option<Type> {
        match self {
            Self::Bool => Some(Type::Bool),
            Self::Number(of) => Some(of),
            Self::Half => Some(Type::F32),
            Self::Bytes => None,
        }
    }
}

/// Returns an error for a dtype whose items refer to Python objects or have no bytes.
pub fn check(descr: &Bound<'_, PyArrayDescr>) -> PyResult<()> {
    if descr.has_object() || descr.itemsize() == 0 {
        let what = if descr.has_object() { "items refer to Python objects" } else { "items have no bytes" };
        return Err(PyTypeError::new_err(format!(
            "devices cannot store arrays of dtype {descr}: its {what}; use numbers, bool, or structures and \
             strings of a fixed length"
        )));
    }
    Ok(())
}

/// Element type of the library that stores the items of a dtype: an item consists of one or more elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    U8,
    U16,
    U32,
    U64,
    I8,
    I16,
    I32,
    I64,
    F16,
    F32,
    F64,
    C64,
    C128,
    B3,
    B6,
    B12,
    B16,
    B20,
    B24,
    B32,
    B40,
    B44,
    B48,
    B64,
}

/// Evaluates an expression in which `$T` is the type of a [`Unit`]; only this macro distinguishes types.
#[macro_export]
macro_rules! with_unit {
    ($unit:expr, $T:ident => $body:expr) => {
        $crate::with_unit!($unit, $T => $body;
            U8: u8, U16: u16, U32: u32, U64: u64, I8: i8, I16: i16, I32: i32, I64: i64,
            F16: vmarray::half::f16, F32: f32, F64: f64,
            C64: vmarray::num_complex::Complex<f32>, C128: vmarray::num_complex::Complex<f64>,
            B3: [u8; 3], B6: [u8; 6], B12: [u8; 12], B16: [u8; 16], B20: [u8; 20], B24: [u8; 24],
            B32: [u8; 32], B40: [u8; 40], B44: [u8; 44], B48: [u8; 48], B64: [u8; 64]
        )
    };
    ($unit:expr, $T:ident => $body:expr; $($Unit:ident: $Element:ty),*) => {
        match $unit {
            $($crate::element::Unit::$Unit => {
                type $T = $Element;
                $body
            })*
        }
    };
}

impl Unit {
    /// Element types of plain bytes, the longest first.
    const BYTES: [Self; 14] = [
        Self::B64,
        Self::B48,
        Self::B44,
        Self::B40,
        Self::B32,
        Self::B24,
        Self::B20,
        Self::B16,
        Self::B12,
        Self::U64,
        Self::B6,
        Self::U32,
        Self::B3,
        Self::U16,
    ];

    /// Returns the element type for items of a dtype. For items that are not numbers, this is the longest
    /// element type of plain bytes whose length divides the length of an item.
    pub fn of(descr: &Bound<'_, PyArrayDescr>) -> Self {
        match (Kind::of(descr), descr.kind(), descr.itemsize()) {
            (Kind::Bool | Kind::Number(Type::U8), ..) => Self::U8,
            (Kind::Number(Type::U16), ..) => Self::U16,
            (Kind::Number(Type::U32), ..) => Self::U32,
            (Kind::Number(Type::U64), ..) => Self::U64,
            (Kind::Number(Type::I8), ..) => Self::I8,
            (Kind::Number(Type::I16), ..) => Self::I16,
            (Kind::Number(Type::I32), ..) => Self::I32,
            (Kind::Number(Type::I64), ..) => Self::I64,
            (Kind::Number(Type::F32), ..) => Self::F32,
            (Kind::Number(Type::F64), ..) => Self::F64,
            (Kind::Half, ..) => Self::F16,
            (_, b'c', 8) if descr.is_native_byteorder() != Some(false) => Self::C64,
            (_, b'c', 16) if descr.is_native_byteorder() != Some(false) => Self::C128,
            (_, _, bytes) => {
                Self::BYTES.into_iter().find(|unit| bytes % unit.bytes() == 0).unwrap_or(Self::U8)
            }
        }
    }

    /// Length of an element in bytes.
    pub fn bytes(self) -> usize {
        with_unit!(self, T => size_of::<T>())
    }
}
