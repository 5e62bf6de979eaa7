//! Compares a field of the elements in a block of private memory with a value, for searches.
//!
//! The code is safe; the compiler vectorises its loops. The matches of contiguous fields of 1, 2, 4 and 8
//! bytes are counted with one counter for each lane of a vector register. Only if the count is not zero, the
//! block is searched element by element.

use super::waves::list_matches;

/// Number of elements whose matches are counted before any of them is listed.
const PART: usize = 64;

/// A field of elements, and the value to compare the field with.
#[derive(Debug)]
pub(super) struct Matcher {
    stride: usize,
    field_offset: usize,
    value: Box<[u8]>,
    wide: bool,
}

impl Matcher {
    /// Creates a matcher for `value` in the field at byte `field_offset` of elements of `stride` bytes.
    pub fn new(stride: usize, field_offset: usize, value: &[u8]) -> Self {
        debug_assert!(field_offset + value.len() <= stride, "the field extends beyond its element");
        Self { stride, field_offset, value: value.into(), wide: has_wide_vectors() }
    }

    /// Distance from one element to the next, in bytes.
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// Offset of the field in an element, in bytes.
    pub fn field_offset(&self) -> usize {
        self.field_offset
    }

    /// The value that is searched for, as bytes.
    pub fn value(&self) -> &[u8] {
        &self.value
    }

    /// Counts the matches among the elements whose bytes `block` contains completely.
    pub fn count(&self, block: &[u8]) -> u64 {
        if self.wide { self.count_wide(block) } else { self.count_here(block) }
    }

    #[cfg(target_arch = "x86_64")]
    fn count_wide(&self, block: &[u8]) -> u64 {
        #[target_feature(enable = "avx2")]
        fn count_avx2(matcher: &Matcher, block: &[u8]) -> u64 {
            matcher.count_here(block)
        }
        // SAFETY: `wide` is only set if the processor has AVX2.
        unsafe { count_avx2(self, block) }
    }

    /// Other processors have these vector instructions in their baseline.
    #[cfg(not(target_arch = "x86_64"))]
    fn count_wide(&self, block: &[u8]) -> u64 {
        self.count_here(block)
    }

    #[inline(always)]
    fn count_here(&self, block: &[u8]) -> u64 {
        macro_rules! by_length {
            ($($bytes:literal: $word:tt),*) => {
                match self.value.len() {
                    $($bytes => {
                        let value = <$word>::from_ne_bytes(self.value[..].try_into().expect("the value has this length"));
                        if self.stride == $bytes {
                            let (fields, _) = block.as_chunks::<$bytes>();
                            count_dense!($word, fields, value)
                        } else {
                            self.count_strided::<$bytes>(block, |field| <$word>::from_ne_bytes(field) == value)
                        }
                    })*
                    _ => self.fields(block).filter(|field| **field == *self.value).count() as u64,
                }
            };
        }
        /// Counts matches in integers of the field's width, which gives the most lanes; adds them up before
        /// an overflow.
        macro_rules! count_dense {
            (u8, $fields:ident, $value:ident) => {{
                // Use 64 counters of one byte each: the compiler vectorises these, but not a loop with a
                // single such counter.
                const LANES: usize = 64;
                let (rows, rest) = $fields.as_chunks::<LANES>();
                let mut matches = rest.iter().filter(|field| field[0] == $value).count() as u64;
                for rows in rows.chunks(255) {
                    let mut lanes = [0_u8; LANES];
                    for row in rows {
                        for (lane, field) in lanes.iter_mut().zip(row) {
                            *lane += u8::from(field[0] == $value);
                        }
                    }
                    matches += lanes.iter().map(|&lane| u64::from(lane)).sum::<u64>();
                }
                matches
            }};
            (u128, $fields:ident, $value:ident) => {{
                let halves = |number: u128| [number as u64, (number >> 64) as u64];
                let value = halves($value);
                let equal = |field: &[u8; 16]| {
                    let field = halves(u128::from_ne_bytes(*field));
                    // Combine by bit operations, because `&&` would compile to a branch.
                    u64::from((field[0] ^ value[0]) | (field[1] ^ value[1]) == 0)
                };
                $fields.iter().map(equal).sum::<u64>()
            }};
            ($word:ident, $fields:ident, $value:ident) => {
                $fields
                    .chunks(<$word>::MAX as usize)
                    .map(|fields| {
                        let equal = |field: &[u8; _]| <$word>::from(<$word>::from_ne_bytes(*field) == $value);
                        fields.iter().map(equal).sum::<$word>() as u64
                    })
                    .sum::<u64>()
            };
        }
        by_length!(1: u8, 2: u16, 4: u32, 8: u64, 16: u128)
    }

    #[inline(always)]
    fn count_strided<const N: usize>(&self, block: &[u8], equal: impl Fn([u8; N]) -> bool) -> u64 {
        let mut matches = 0;
        for element in block.chunks_exact(self.stride) {
            if let Some(field) = element.get(self.field_offset..).and_then(|tail| tail.first_chunk::<N>()) {
                matches += u64::from(equal(*field));
            }
        }
        matches
    }

    fn fields<'a>(&'a self, block: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        let range = self.field_offset..self.field_offset + self.value.len();
        block.chunks_exact(self.stride).map(move |element| &element[range.clone()])
    }

    /// Lists the indices of matches in `block` in ascending order; `first` is the index of the block's first
    /// element. May overwrite the last entry of `into` with an arbitrary value.
    ///
    /// The method processes contiguous fields in parts, and counts the matches of a part first, because
    /// counting is faster than listing, and most parts have no match.
    pub fn list(&self, block: &[u8], first: u64, mut into: &mut [u64]) {
        if self.stride > self.value.len() {
            return self.list_part(block, first, into);
        }
        for (number, part) in (0..).zip(block.chunks(PART * self.stride)) {
            if into.len() < 2 {
                break;
            }
            let matches = self.count(part) as usize;
            if matches > 0 {
                self.list_part(part, first + number * PART as u64, into);
                let used = matches.min(into.len() - 1);
                into = &mut into[used..];
            }
        }
    }

    /// Compares one element after the other.
    fn list_part(&self, block: &[u8], first: u64, into: &mut [u64]) {
        macro_rules! by_length {
            ($($bytes:literal: $word:ty),*) => {
                match self.value.len() {
                    $($bytes => {
                        let value = <$word>::from_ne_bytes(self.value[..].try_into().expect("the value has this length"));
                        let fields = self.fields(block).filter_map(|field| field.first_chunk::<$bytes>());
                        list_matches(first, fields.map(|field| <$word>::from_ne_bytes(*field) == value), into);
                    })*
                    _ => list_matches(first, self.fields(block).map(|field| *field == *self.value), into),
                }
            };
        }
        by_length!(1: u8, 2: u16, 4: u32, 8: u64);
    }
}

#[cfg(target_arch = "x86_64")]
fn has_wide_vectors() -> bool {
    std::arch::is_x86_feature_detected!("avx2")
}

#[cfg(not(target_arch = "x86_64"))]
fn has_wide_vectors() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks with few distinct bytes, so matches are frequent, in all lengths around multiples of a row.
    #[test]
    fn counts_and_lists_as_a_naive_loop_does() {
        let mut seed = 1_u64;
        let bytes: Vec<u8> = std::iter::repeat_with(|| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 60) as u8 / 8
        })
        .take(20_000)
        .collect();
        for (stride, field_offset, length) in [
            (1, 0, 1),
            (2, 0, 2),
            (4, 0, 4),
            (8, 0, 8),
            (16, 0, 16),
            (3, 0, 3),
            (2, 1, 1),
            (44, 40, 4),
            (44, 3, 8),
            (7, 1, 2),
            (24, 8, 16),
            (16, 15, 1),
            (5, 0, 5),
            (100, 20, 33),
        ] {
            let value = &bytes[100..100 + length];
            for elements in [0, 1, 7, 8, 9, 15, 16, 31, 32, 63, 64, 65, 127, 129, 190] {
                let block = &bytes[..elements * stride];
                let naive: Vec<u64> = (0..elements)
                    .filter(|i| block[i * stride + field_offset..][..length] == *value)
                    .map(|i| i as u64 + 1000)
                    .collect();
                for wide in [false, has_wide_vectors()] {
                    let matcher = Matcher { wide, ..Matcher::new(stride, field_offset, value) };
                    assert_eq!(matcher.count(block), naive.len() as u64, "{matcher:?} {elements}");
                    for wanted in [0, 1, naive.len()] {
                        let mut listed = vec![0; wanted.min(naive.len()) + 1];
                        matcher.list(block, 1000, &mut listed);
                        assert_eq!(listed[..listed.len() - 1], naive[..wanted.min(naive.len())]);
                    }
                }
            }
        }
    }

    #[test]
    fn lanes_do_not_overflow() {
        let matcher = Matcher::new(1, 0, &[7]);
        assert_eq!(matcher.count(&[7; 100_000]), 100_000);
        let matcher = Matcher::new(2, 0, &[7; 2]);
        assert_eq!(matcher.count(&vec![7; 10_000_000]), 5_000_000);
    }
}
