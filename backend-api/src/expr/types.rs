//! The types of values in expressions and kernels.

use std::fmt;

/// The type of a value in expressions and kernels.
///
/// Interfaces pass a value as 64 bits: the bits of an integer or float, padded with zeros; 0 or 1 for a bool.
///
/// ```
/// use backend_api::expr::Type;
/// assert_eq!((Type::I16.bytes(), Type::I16.mask(), Type::Bool.mask()), (2, 0xFFFF, 1));
/// assert_eq!((Type::U8.to_string(), Type::Bool.to_string()), ("u8".into(), "bool".into()));
/// assert!(Type::I16.is_signed() && Type::I16.is_integer() && Type::F32.is_float() && !Type::F32.is_signed());
/// let key = |x: f32| Type::F32.key(x.to_bits().into());
/// assert!(key(-2.0) < key(-1.0) && key(-1.0) < key(0.0) && key(-0.0) == key(0.0) && key(0.0) < key(1e-40));
/// assert_eq!(Type::F32.from_key(key(-2.0)), (-2_f32).to_bits().into());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Type {
    /// A truth value. Memory cannot hold values of this type.
    Bool,
    /// Unsigned integer, 8 bits.
    U8,
    /// Unsigned integer, 16 bits.
    U16,
    /// Unsigned integer, 32 bits.
    U32,
    /// Unsigned integer, 64 bits.
    U64,
    /// Signed integer, 8 bits.
    I8,
    /// Signed integer, 16 bits.
    I16,
    /// Signed integer, 32 bits.
    I32,
    /// Signed integer, 64 bits.
    I64,
    /// IEEE 754 float, 32 bits.
    F32,
    /// IEEE 754 float, 64 bits.
    F64,
}

impl Type {
    /// All types of numbers: all types except [`Bool`](Self::Bool).
    pub const NUMBERS: [Self; 10] = {
        use Type::{F32, F64, I8, I16, I32, I64, U8, U16, U32, U64};
        [U8, U16, U32, U64, I8, I16, I32, I64, F32, F64]
    };

    /// Returns the size of a value in memory, in bytes.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        match self {
            Self::Bool | Self::U8 | Self::I8 => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
        }
    }

    /// Returns true for `F32` and `F64`.
    #[must_use]
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F64)
    }

    /// Returns true for a signed integer.
    #[must_use]
    pub const fn is_signed(self) -> bool {
        matches!(self, Self::I8 | Self::I16 | Self::I32 | Self::I64)
    }

    /// Returns true for an integer, signed or not.
    #[must_use]
    pub const fn is_integer(self) -> bool {
        !self.is_float() && !matches!(self, Self::Bool)
    }

    /// Returns the mask of the low bits that a value of this type uses.
    #[must_use]
    pub const fn mask(self) -> u64 {
        match self {
            Self::Bool => 1,
            _ => u64::MAX >> (64 - 8 * self.bytes()),
        }
    }

    /// Maps a value's bits to its *key*, an unsigned integer, such that keys have the order of the values.
    /// Both zeros have one key. The key of a NaN is unspecified.
    #[must_use]
    pub const fn key(self, bits: u64) -> u64 {
        let top = 1 << (8 * self.bytes() - 1);
        if self.is_signed() {
            bits ^ top
        } else if !self.is_float() {
            bits
        } else if bits & !top == 0 {
            top
        } else if bits & top != 0 {
            !bits & self.mask()
        } else {
            bits | top
        }
    }

    /// Returns the bits of the value with this [key](Self::key); for a zero, the bits of +0.
    #[must_use]
    pub const fn from_key(self, key: u64) -> u64 {
        let top = 1 << (8 * self.bytes() - 1);
        if self.is_signed() {
            key ^ top
        } else if !self.is_float() {
            key
        } else if key & top != 0 {
            key & !top
        } else {
            !key & self.mask()
        }
    }
}

impl fmt::Display for Type {
    /// Writes Rust's name of the type.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format!("{self:?}").to_lowercase())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "too long for an interpreter")]
    fn keys_order_values_and_lead_back() {
        let floats = [f64::NEG_INFINITY, -1e300, -1.0, -5e-324, 0.0, 5e-324, 2.5, f64::INFINITY];
        let keys: Vec<u64> = floats.iter().map(|x| Type::F64.key(x.to_bits())).collect();
        assert!(keys.is_sorted_by(|a, b| a < b));
        for (key, float) in keys.iter().zip(floats) {
            assert_eq!(Type::F64.from_key(*key), float.to_bits());
        }
        assert_eq!(Type::F64.key((-0.0_f64).to_bits()), Type::F64.key(0));
        for x in i16::MIN..i16::MAX {
            let key = |x: i16| Type::I16.key(u64::from(x as u16));
            assert!(key(x) < key(x + 1));
            assert_eq!(Type::I16.from_key(key(x)), u64::from(x as u16));
        }
    }
}
