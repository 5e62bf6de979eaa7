//! Formats of the elements of rows, and kernel functions that convert them.

use vmarray_kernel::kernel;

/// The number format of a row's elements.
///
/// Conversions go through `f32`, with the scale of the row as a factor. They round to the nearest number, and
/// halfway cases to the even one.
///
/// ```
/// use vmarray::rows::RowFormat;
/// assert_eq!((RowFormat::E4m3.bytes(), RowFormat::Bf16.bytes(), RowFormat::Raw(12).bytes()), (1, 2, 12));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RowFormat {
    /// Elements of this number of bytes, which are copied unchanged.
    Raw(usize),
    /// IEEE 754 numbers of 32 bits.
    F32,
    /// IEEE 754 numbers of 16 bits.
    F16,
    /// The upper half of an `f32`.
    Bf16,
    /// Eight bits with a mantissa of 3 bits and without infinities, as `float8_e4m3fn` of PyTorch.
    E4m3,
    /// Eight bits with a mantissa of 2 bits: the upper half of an [`F16`](Self::F16), as `float8_e5m2` of
    /// PyTorch.
    E5m2,
    /// Signed integers of 8 bits, usually with a scale for each row.
    I8,
}

impl RowFormat {
    /// Returns the number of bytes of an element.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::Raw(bytes) => bytes,
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::E4m3 | Self::E5m2 | Self::I8 => 1,
        }
    }

    /// Returns true if rows can be converted to the format.
    ///
    /// ```
    /// use vmarray::rows::RowFormat;
    /// assert!(RowFormat::Bf16.is_result() && !RowFormat::E4m3.is_result());
    /// ```
    #[must_use]
    pub const fn is_result(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::Bf16)
    }

    /// Returns the number of the format in kernels.
    pub(super) const fn code(self) -> u32 {
        match self {
            Self::Raw(_) => RAW,
            Self::F32 => F32,
            Self::F16 => F16,
            Self::Bf16 => BF16,
            Self::E4m3 => E4M3,
            Self::E5m2 => E5M2,
            Self::I8 => I8,
        }
    }
}

pub(super) const RAW: u32 = 0;
const F32: u32 = 1;
const F16: u32 = 2;
const BF16: u32 = 3;
const E4M3: u32 = 4;
const E5M2: u32 = 5;
const I8: u32 = 6;

/// Bits of 2 to the power of 112 and 120: the differences between the exponents of `f32`, and of `F16` and
/// `E4m3`.
const SCALE_F16: u32 = (127 + 112) << 23;
const SCALE_E4M3: u32 = (127 + 120) << 23;
const INFINITY: u32 = 0xff << 23;
const NAN: u32 = 0x7fc0_0000;

/// Kernel function: the `f32` with the bits of an `F16`.
#[kernel(crate = vmarray_kernel)]
fn of_half(bits: u32) -> f32 {
    let mut magnitude = (f32::from_bits((bits & 0x7fff) << 13) * f32::from_bits(SCALE_F16)).to_bits();
    if bits & 0x7c00 == 0x7c00 {
        magnitude = INFINITY | (bits & 0x3ff) << 13;
    }
    f32::from_bits(magnitude | (bits & 0x8000) << 16)
}

/// Kernel function: the number with these bits in a format, which is not raw.
#[kernel(crate = vmarray_kernel)]
pub(super) fn decoded(bits: u32, format: u32) -> f32 {
    let mut number = f32::from_bits(bits);
    if format == F16 {
        number = of_half(bits);
    }
    if format == BF16 {
        number = f32::from_bits(bits << 16);
    }
    if format == E5M2 {
        number = of_half(bits << 8);
    }
    if format == I8 {
        number = ((bits << 24) as i32 >> 24) as f32;
    }
    if format == E4M3 {
        let mut magnitude = (f32::from_bits((bits & 0x7f) << 20) * f32::from_bits(SCALE_E4M3)).to_bits();
        if bits & 0x7f == 0x7f {
            magnitude = NAN;
        }
        number = f32::from_bits(magnitude | (bits & 0x80) << 24);
    }
    number
}

/// Kernel function: the bits of a number in the format `F16` or `Bf16`.
#[kernel(crate = vmarray_kernel)]
pub(super) fn half_of(number: f32, format: u32) -> u32 {
    let bits = number.to_bits();
    let (sign, magnitude) = (bits >> 16 & 0x8000, bits & 0x7fff_ffff);
    // Adding half of the last place, and less if the number is even, carries if the result rounds up.
    let mut half = magnitude + 0x7fff + (magnitude >> 16 & 1) >> 16;
    if magnitude > INFINITY {
        half = 0x7fc0;
    }
    if format == F16 {
        half = magnitude - (112 << 23) + 0xfff + (magnitude >> 13 & 1) >> 13;
        if magnitude < (113 << 23) {
            // The sum has the last place of the smallest half, so the addition rounds to it.
            half = (f32::from_bits(magnitude) + 0.5).to_bits() - (126 << 23);
        }
        if magnitude >= (143 << 23) {
            half = 0x7c00;
        }
        if magnitude > INFINITY {
            half = 0x7e00;
        }
    }
    sign | half
}

/// Kernel function: the element `j` of four elements in `N` words: four bytes, four halves or four words.
#[kernel(crate = vmarray_kernel)]
pub(super) fn element_of<const N: usize>(words: [u32; N], j: usize, format: u32) -> f32 {
    let mut bits = words[j % N];
    if N == 1 {
        bits = words[0] >> (8 * j as u32) & 0xff;
    }
    if N == 2 {
        bits = words[j / 2 % N] >> (16 * (j as u32 % 2)) & 0xffff;
    }
    decoded(bits, format)
}

/// Kernel function: four numbers in `M` words, as two or four words of elements.
#[kernel(crate = vmarray_kernel)]
pub(super) fn encoded<const M: usize>(numbers: [f32; 4], format: u32) -> [u32; M] {
    let mut words = [0; M];
    for j in 0..4 {
        if M == 4 {
            words[j % M] = numbers[j].to_bits();
        } else {
            words[j / 2 % M] |= half_of(numbers[j], format) << (16 * (j as u32 % 2));
        }
    }
    words
}
