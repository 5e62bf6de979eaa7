//! Conversions of 16-bit floats, binary16 and bfloat16.

/// Converts the bits of a half-precision float to the `f32` of the same value.
///
/// ```
/// use backend_api::kernel::f16_to_f32;
/// assert_eq!([0x3C00, 0xC000, 0x0001, 0xFC00].map(f16_to_f32), [1.0, -2.0, 2_f32.powi(-24), f32::NEG_INFINITY]);
/// ```
#[must_use]
#[inline]
pub const fn f16_to_f32(bits: u16) -> f32 {
    let sign = (bits as u32 & 0x8000) << 16;
    let (exponent, fraction) = (bits as u32 >> 10 & 0x1F, bits as u32 & 0x3FF);
    match (exponent, fraction) {
        (0x1F, _) => f32::from_bits(sign | 0x7F80_0000 | fraction << 13),
        // A subnormal number is a multiple of 2^-24, which `f32` represents exactly.
        (0, _) => f32::from_bits(sign | (fraction as f32 * (1.0 / 16_777_216.0)).to_bits()),
        _ => f32::from_bits(sign | (exponent + 112) << 23 | fraction << 13),
    }
}

/// Converts an `f32` to the bits of the nearest half-precision float; ties go to the even value.
///
/// ```
/// use backend_api::kernel::f32_to_f16;
/// assert_eq!([1.0, -2.0, 65_519.9, 65_520.0, 1e-9].map(f32_to_f16), [0x3C00, 0xC000, 0x7BFF, 0x7C00, 0]);
/// ```
#[must_use]
#[inline]
pub const fn f32_to_f16(value: f32) -> u16 {
    let bits = value.to_bits();
    let (sign, magnitude) = ((bits >> 16 & 0x8000) as u16, bits & 0x7FFF_FFFF);
    if magnitude > 0x7F80_0000 {
        return sign | 0x7E00;
    }
    // Floats from 65520 on round to infinity, because the largest finite half-precision number is 65504. The
    // next limit is 2^-14, the smallest normal number.
    if magnitude >= 0x477F_F000 {
        return sign | 0x7C00;
    }
    if magnitude < 0x3880_0000 {
        // Results below 2^-14 are multiples of 2^-24. Adding 0.5 makes the CPU round to a multiple.
        let rounded = f32::from_bits(magnitude) + 0.5;
        return sign | (rounded.to_bits() - 0x3F00_0000) as u16;
    }
    let even = magnitude >> 13 & 1;
    sign | ((magnitude + 0xFFF + even - (112 << 23)) >> 13) as u16
}

/// Converts the bits of a bfloat16 to the `f32` of the same value.
///
/// ```
/// use backend_api::kernel::bf16_to_f32;
/// assert_eq!([0x3F80, 0xC000, 0x4049].map(bf16_to_f32), [1.0, -2.0, 3.140625]);
/// ```
#[must_use]
#[inline]
pub const fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits((bits as u32) << 16)
}

/// Converts an `f32` to the bits of the nearest bfloat16; ties go to the even value.
///
/// ```
/// use backend_api::kernel::f32_to_bf16;
/// assert_eq!([1.0, 1.00390625, 1.01171875, f32::MAX].map(f32_to_bf16), [0x3F80, 0x3F80, 0x3F82, 0x7F80]);
/// ```
#[must_use]
#[inline]
pub const fn f32_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    if bits & 0x7FFF_FFFF > 0x7F80_0000 {
        return (bits >> 16) as u16 | 0x40;
    }
    ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bfloat_comes_back_and_the_middles_go_to_the_even_one() {
        for bits in 0..=u16::MAX {
            let float = bf16_to_f32(bits);
            if float.is_nan() {
                assert!(bf16_to_f32(f32_to_bf16(float)).is_nan());
                continue;
            }
            assert_eq!(f32_to_bf16(float), bits);
            if bits & 0x7FFF < 0x7F80 {
                let middle = float.to_bits() + 0x8000;
                assert_eq!(f32_to_bf16(f32::from_bits(middle)), bits + (bits & 1));
                assert_eq!(f32_to_bf16(f32::from_bits(middle + 1)), bits + 1);
                assert_eq!(f32_to_bf16(f32::from_bits(middle - 1)), bits);
            }
        }
    }

    #[test]
    fn every_half_comes_back_and_the_middles_go_to_the_even_one() {
        for bits in 0..=u16::MAX {
            let float = f16_to_f32(bits);
            if float.is_nan() {
                assert!(f16_to_f32(f32_to_f16(float)).is_nan());
                continue;
            }
            assert_eq!(f32_to_f16(float), bits);
            let next = f16_to_f32(bits + 1);
            if bits & 0x7FFF < 0x7BFF {
                let middle = (float + next) / 2.0;
                assert_eq!(f32_to_f16(middle), bits + (bits & 1), "between {float} and {next}");
                assert_eq!(f32_to_f16(middle.next_up()), bits + u16::from(!middle.is_sign_negative()));
                assert_eq!(f32_to_f16(middle.next_down()), bits + u16::from(middle.is_sign_negative()));
            }
        }
    }
}
