//! Fast path for reductions and searches of elements that are one 4-byte number each: processes them in
//! place, in vector registers. Other computations first copy fields to buffers (`machine`).

use std::arch::asm;
use std::arch::x86_64::*;

use backend_api::expr::{Number, Type};
use backend_api::kernel::{Op, Reg};
use backend_api::{Compute, Result};

use super::columns::OPERATION;
use super::interval::Interval;
use super::reduce::{LANES, Sum, ThreadExtremes};
use crate::handle_table::MemoryPlace;
use crate::kernel::waves::{WaveMatches, WavePart};
use crate::racy_word::Word;
use crate::storage::Storage;

/// Numbers in a block, which stays in the first-level cache for a second pass.
const BLOCK: usize = 4096;
/// Numbers in a vector register.
const WIDTH: usize = 8;

/// Contiguous numbers in addressable memory, on a processor with AVX2.
#[derive(Clone, Copy, Debug)]
pub(super) struct Numbers {
    of: Type,
    start: *const u8,
}

// SAFETY: any thread may read memory at the address, as `racy` describes.
unsafe impl Sync for Numbers {}

/// Reads eight numbers, with the effect of relaxed atomic accesses to each byte.
///
/// # Safety
/// They must be readable; other threads may write to them as [`backend_api::racy`] describes.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn load(from: *const u8) -> __m256i {
    let numbers: __m256i;
    // SAFETY: the caller guarantees the bytes.
    unsafe {
        asm!(
            "vmovdqu {numbers}, ymmword ptr [{from}]",
            numbers = out(ymm_reg) numbers,
            from = in(reg) from,
            options(nostack, preserves_flags, readonly)
        );
    }
    numbers
}

impl Numbers {
    /// Returns the numbers that the operation `value` loads from an operand. Returns `None` if the vector
    /// code of this module does not support their type, their stride or the processor.
    pub fn new<M: Storage>(compute: &Compute<'_>, sources: &[MemoryPlace<M>], value: Reg) -> Option<Self> {
        let Op::Load { view, offset: 0, of, .. } = compute.program.ops()[value.at()] else { return None };
        let (source, of) = (usize::from(view), of.value());
        let place = &sources[source];
        let has_shape =
            matches!(of, Type::F32 | Type::U32 | Type::I32) && compute.sources[source].stride == 4;
        let has_vectors = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("popcnt");
        let address = place.memory.address().filter(|_| has_shape && has_vectors)?;
        Some(Self { of, start: address.wrapping_add(place.offset as usize) })
    }

    fn at(self, number: u64) -> *const u8 {
        self.start.wrapping_add(number as usize * 4)
    }

    /// Returns the sum of `count` numbers, starting at index `first`. Adds floats in the same order as the
    /// module `machine`, so both results have the same bits.
    ///
    /// # Safety
    /// At least `first + count` numbers must exist.
    pub unsafe fn sum(self, first: u64, count: u64) -> Sum {
        // SAFETY: `Numbers` exists only if the processor has these vectors; the caller guarantees the memory.
        unsafe {
            match self.of {
                Type::F32 => self.sum_of_floats(first, count),
                _ => self.sum_of_integers(first, count),
            }
        }
    }

    #[target_feature(enable = "avx2")]
    unsafe fn sum_of_floats(self, first: u64, count: u64) -> Sum {
        let mut sums = [_mm256_setzero_pd(); LANES / 4];
        let rows = count / LANES as u64;
        for row in 0..rows {
            for half in 0..2 {
                // SAFETY: the caller guarantees that these numbers exist.
                let floats = unsafe { load(self.at(first + row * LANES as u64 + half * WIDTH as u64)) };
                let floats = _mm256_castsi256_ps(floats);
                let (low, high) = (_mm256_castps256_ps128(floats), _mm256_extractf128_ps::<1>(floats));
                let at = half as usize * 2;
                sums[at] = _mm256_add_pd(sums[at], _mm256_cvtps_pd(low));
                sums[at + 1] = _mm256_add_pd(sums[at + 1], _mm256_cvtps_pd(high));
            }
        }
        let mut floats: [f64; LANES] = bytemuck::cast(sums);
        for (sum, number) in floats.iter_mut().zip(first + rows * LANES as u64..first + count) {
            // SAFETY: as above.
            *sum += f64::from(f32::from_bits(unsafe { u32::load(self.at(number)) }));
        }
        Sum { count, integers: 0, floats }
    }

    #[target_feature(enable = "avx2")]
    unsafe fn sum_of_integers(self, first: u64, count: u64) -> Sum {
        let is_signed = self.of == Type::I32;
        // A sum of 64 bits cannot overflow, because no memory is long enough for that many numbers.
        let mut sums = [_mm256_setzero_si256(); 4];
        let rows = count / LANES as u64;
        for row in 0..rows {
            for half in 0..2 {
                // SAFETY: the caller guarantees that these numbers exist.
                let numbers = unsafe { load(self.at(first + row * LANES as u64 + half * WIDTH as u64)) };
                let (low, high) = (_mm256_castsi256_si128(numbers), _mm256_extracti128_si256::<1>(numbers));
                let wide = |four: __m128i| {
                    if is_signed { _mm256_cvtepi32_epi64(four) } else { _mm256_cvtepu32_epi64(four) }
                };
                let at = half as usize * 2;
                sums[at] = _mm256_add_epi64(sums[at], wide(low));
                sums[at + 1] = _mm256_add_epi64(sums[at + 1], wide(high));
            }
        }
        let sums: [i64; 16] = bytemuck::cast(sums);
        let sum = |number: i64| if is_signed { i128::from(number) } else { i128::from(number as u64) };
        let mut integers = sums.into_iter().map(sum).sum::<i128>();
        for number in first + rows * LANES as u64..first + count {
            // SAFETY: as above.
            let bits = unsafe { u32::load(self.at(number)) };
            integers += if is_signed { i128::from(bits as i32) } else { i128::from(bits) };
        }
        Sum { count, integers, floats: [0.0; LANES] }
    }

    /// Updates the minimum and maximum (if `wanted`) in `extremes` with `count` numbers from `first` on.
    ///
    /// # Safety
    /// The requirements of [`sum`](Self::sum).
    pub unsafe fn extremes(
        self,
        first: u64,
        count: u64,
        wanted: (bool, bool),
        extremes: &mut ThreadExtremes,
    ) {
        let end = first + count;
        for first in (first..end).step_by(BLOCK) {
            let count = (end - first).min(BLOCK as u64);
            // SAFETY: as in `sum`.
            unsafe {
                match self.of {
                    Type::F32 => self.extremes_of::<f32>(first, count, wanted, extremes),
                    Type::U32 => self.extremes_of::<u32>(first, count, wanted, extremes),
                    _ => self.extremes_of::<i32>(first, count, wanted, extremes),
                }
            }
        }
    }

    #[target_feature(enable = "avx2")]
    unsafe fn extremes_of<T: Lane>(
        self,
        first: u64,
        count: u64,
        wanted: (bool, bool),
        extremes: &mut ThreadExtremes,
    ) {
        // SAFETY: this function and its callees are compiled for AVX2.
        let (highest, lowest) = unsafe { (T::splat(T::HIGHEST), T::splat(T::LOWEST)) };
        let (mut least, mut most) = ([highest; 2], [lowest; 2]);
        let mut nans = _mm256_setzero_si256();
        let rows = count / LANES as u64;
        for row in 0..rows {
            for half in 0..2 {
                // SAFETY: the caller guarantees that these numbers exist.
                unsafe {
                    let numbers = load(self.at(first + row * LANES as u64 + half as u64 * WIDTH as u64));
                    least[half] = T::lower(numbers, least[half]);
                    most[half] = T::higher(numbers, most[half]);
                    nans = _mm256_add_epi32(nans, T::nan(numbers));
                }
            }
        }
        let mut nans = -bytemuck::cast::<_, [i32; WIDTH]>(nans).into_iter().sum::<i32>();
        let less = |a: T, b: T| if b < a { b } else { a };
        let more = |a: T, b: T| if b > a { b } else { a };
        let mut ends = (
            bytemuck::cast::<_, [T; LANES]>(least).into_iter().fold(T::HIGHEST, less),
            bytemuck::cast::<_, [T; LANES]>(most).into_iter().fold(T::LOWEST, more),
        );
        // SAFETY: as above.
        let one = |number| T::from_bits(unsafe { u32::load(self.at(number)) });
        for number in first + rows * LANES as u64..first + count {
            let value = one(number);
            ends = (less(ends.0, value), more(ends.1, value));
            nans += i32::from(value.is_nan());
        }
        extremes.take(count - nans as u64, wanted, ends, |end: T| {
            (first..first + count).find(|number| one(*number) == end).unwrap_or(first)
        });
    }

    /// Finds the numbers of a part of a search that are in an interval. Stops early if the search no longer
    /// needs the part's result.
    ///
    /// # Safety
    /// The numbers of the part must exist.
    pub unsafe fn find(
        self,
        interval: &Interval,
        part: &WavePart<'_>,
        count_all: bool,
        found: &mut WaveMatches,
    ) -> Result<()> {
        let is_listed = part.room > 0;
        if is_listed {
            found.marked.start(OPERATION, part.first, part.end - part.first)?;
        }
        for first in (part.first..part.end).step_by(BLOCK) {
            let count = (part.end - first).min(BLOCK as u64) as usize;
            // SAFETY: the caller guarantees the memory.
            let bits = unsafe { self.within(first, count, interval) };
            found.matches += bits.matches;
            if is_listed {
                found.marked.extend(&bits.words[..count.div_ceil(64)]);
            }
            if !part.is_needed() || (!count_all && found.matches >= part.room) {
                break;
            }
        }
        Ok(())
    }

    /// Compares up to [`BLOCK`] numbers, starting at number `first`, with an interval.
    ///
    /// # Safety
    /// The requirements of [`sum`](Self::sum).
    unsafe fn within(self, first: u64, count: usize, interval: &Interval) -> Bits {
        // SAFETY: as in `sum`.
        unsafe {
            match self.of {
                Type::F32 => self.within_of::<f32>(first, count, interval),
                Type::U32 => self.within_of::<u32>(first, count, interval),
                _ => self.within_of::<i32>(first, count, interval),
            }
        }
    }

    #[target_feature(enable = "avx2,popcnt")]
    unsafe fn within_of<T: Lane>(self, first: u64, count: usize, interval: &Interval) -> Bits {
        let [least, greatest] = interval.bounds(self.of).map(|bits| T::from_bits(bits as u32));
        // SAFETY: this function is compiled for AVX2.
        let (low, high) = unsafe { (T::splat(least), T::splat(greatest)) };
        let flip = if interval.is_negated { u64::MAX } else { 0 };
        let mut bits = Bits { words: [0; BLOCK / 64], matches: 0 };
        for (word, number) in bits.words.iter_mut().zip((first..).step_by(64)).take(count / 64) {
            for byte in 0..8 {
                // SAFETY: the caller guarantees that these numbers exist.
                let inside = unsafe {
                    let numbers = load(self.at(number + byte * WIDTH as u64));
                    _mm256_and_si256(T::at_least(numbers, low), T::at_most(numbers, high))
                };
                let inside = _mm256_movemask_ps(_mm256_castsi256_ps(inside));
                *word |= (inside as u64) << (byte * 8);
            }
            *word ^= flip;
            bits.matches += u64::from(word.count_ones());
        }
        for number in count / 64 * 64..count {
            // SAFETY: as above.
            let value = T::from_bits(unsafe { u32::load(self.at(first + number as u64)) });
            let is_match = (value >= least && value <= greatest) != interval.is_negated;
            bits.words[number / 64] |= u64::from(is_match) << (number % 64);
            bits.matches += u64::from(is_match);
        }
        bits
    }
}

/// Bit set of the matches in a block of numbers.
struct Bits {
    words: [u64; BLOCK / 64],
    matches: u64,
}

/// A type of numbers of which a vector register has eight. Comparisons set all bits or none; with a NaN none.
///
/// # Safety
/// For all functions on registers: the processor must have AVX2.
trait Lane: Number + bytemuck::Pod {
    const HIGHEST: Self;
    const LOWEST: Self;

    fn from_bits(bits: u32) -> Self;
    unsafe fn splat(self) -> __m256i;
    /// Minimum of each lane; the second operand if one is a NaN.
    unsafe fn lower(a: __m256i, b: __m256i) -> __m256i;
    /// Maximum of each lane; the second operand if one is a NaN.
    unsafe fn higher(a: __m256i, b: __m256i) -> __m256i;
    unsafe fn at_least(a: __m256i, b: __m256i) -> __m256i;
    unsafe fn at_most(a: __m256i, b: __m256i) -> __m256i;
    /// Mask of the lanes that are NaNs.
    unsafe fn nan(of: __m256i) -> __m256i;
}

impl Lane for f32 {
    const HIGHEST: Self = Self::INFINITY;
    const LOWEST: Self = Self::NEG_INFINITY;

    fn from_bits(bits: u32) -> Self {
        Self::from_bits(bits)
    }
    #[inline(always)]
    unsafe fn splat(self) -> __m256i {
        // SAFETY: the caller guarantees that the processor has AVX2, here and in the other methods.
        unsafe { _mm256_castps_si256(_mm256_set1_ps(self)) }
    }
    #[inline(always)]
    unsafe fn lower(a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_castps_si256(_mm256_min_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b))) }
    }
    #[inline(always)]
    unsafe fn higher(a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_castps_si256(_mm256_max_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b))) }
    }
    #[inline(always)]
    unsafe fn at_least(a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe {
            let (a, b) = (_mm256_castsi256_ps(a), _mm256_castsi256_ps(b));
            _mm256_castps_si256(_mm256_cmp_ps::<_CMP_GE_OQ>(a, b))
        }
    }
    #[inline(always)]
    unsafe fn at_most(a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe {
            let (a, b) = (_mm256_castsi256_ps(a), _mm256_castsi256_ps(b));
            _mm256_castps_si256(_mm256_cmp_ps::<_CMP_LE_OQ>(a, b))
        }
    }
    #[inline(always)]
    unsafe fn nan(of: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe {
            let of = _mm256_castsi256_ps(of);
            _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(of, of))
        }
    }
}

macro_rules! integer {
    ($T:ty, $least:ident, $greatest:ident) => {
        impl Lane for $T {
            const HIGHEST: Self = <$T>::MAX;
            const LOWEST: Self = <$T>::MIN;

            fn from_bits(bits: u32) -> Self {
                bits as $T
            }
            #[inline(always)]
            unsafe fn splat(self) -> __m256i {
                // SAFETY: the caller guarantees that the processor has AVX2, here and in the other methods.
                unsafe { _mm256_set1_epi32(self as i32) }
            }
            #[inline(always)]
            unsafe fn lower(a: __m256i, b: __m256i) -> __m256i {
                // SAFETY: as above.
                unsafe { $least(a, b) }
            }
            #[inline(always)]
            unsafe fn higher(a: __m256i, b: __m256i) -> __m256i {
                // SAFETY: as above.
                unsafe { $greatest(a, b) }
            }
            #[inline(always)]
            unsafe fn at_least(a: __m256i, b: __m256i) -> __m256i {
                // SAFETY: as above.
                unsafe { _mm256_cmpeq_epi32($greatest(a, b), a) }
            }
            #[inline(always)]
            unsafe fn at_most(a: __m256i, b: __m256i) -> __m256i {
                // SAFETY: as above.
                unsafe { _mm256_cmpeq_epi32($least(a, b), a) }
            }
            #[inline(always)]
            unsafe fn nan(_: __m256i) -> __m256i {
                // SAFETY: as above.
                unsafe { _mm256_setzero_si256() }
            }
        }
    };
}
integer!(u32, _mm256_min_epu32, _mm256_max_epu32);
integer!(i32, _mm256_min_epi32, _mm256_max_epi32);
