//! Constants: literals, and what operations leave as it is.

use backend_api::expr::{Binary, Number as _, Type};

/// The bits of a number's text.
pub fn literal(of: Type, text: &str) -> Option<u64> {
    match of {
        Type::F32 => text.parse::<f32>().ok().map(|number| number.to_value()),
        Type::F64 => text.parse::<f64>().ok().map(|number| number.to_value()),
        _ => text.parse::<i128>().ok().map(|number| number as u64 & of.mask()),
    }
}

/// Whether an operand changes nothing: zero for sums and the like, one for products.
pub fn is_neutral(op: Binary, of: Type, right: u64) -> bool {
    let neutral = match op {
        Binary::Add | Binary::Sub | Binary::Or | Binary::Xor | Binary::Shl | Binary::Shr => 0,
        Binary::Mul | Binary::Div => 1,
        Binary::And => of.mask(),
        _ => return false,
    };
    !of.is_float() && right == neutral
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_are_read_as_rustc_reads_them() {
        assert_eq!(literal(Type::I8, "-1"), Some(255));
        assert_eq!(literal(Type::U64, "18446744073709551615"), Some(u64::MAX));
        // Rounded once, to the float that is asked for.
        assert_eq!(literal(Type::F32, "0.1"), Some(0.1_f32.to_bits().into()));
        assert_eq!(literal(Type::F32, "16777217"), Some(16_777_217_f32.to_bits().into()));
        assert_eq!(literal(Type::U8, "x"), None);
    }
}
