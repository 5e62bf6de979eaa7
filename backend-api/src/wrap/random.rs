//! A small random number generator with a seed, for tests and choices that must be repeatable.

/// Returns true if the environment variable `VMARRAY_ALL_CASES` is set, as in `cargo xtask nightly`.
#[doc(hidden)]
#[must_use]
pub fn has_all_cases() -> bool {
    std::env::var_os("VMARRAY_ALL_CASES").is_some()
}

/// Returns the number of random cases that a test runs: `all` in nightly runs, and a quarter of it otherwise.
#[doc(hidden)]
#[must_use]
pub fn random_cases(all: u32) -> u32 {
    if has_all_cases() { all } else { all.div_ceil(4) }
}

/// The random number generator SplitMix64 of Steele, Lea and Flood. Any seed is suitable.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// The number that each step adds to the generator's state.
    pub const STEP: u64 = 0x9E37_79B9_7F4A_7C15;
    /// Constants of the function that mixes the state `z` into a random number. For each pair `(shift,
    /// factor)`: `z = (z ^ (z >> shift)) * factor`. At the end: `z ^ (z >> 31)`.
    pub const MIXERS: [(u64, u64); 2] = [(30, 0xBF58_476D_1CE4_E5B9), (27, 0x94D0_49BB_1331_11EB)];

    #[must_use]
    #[inline]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    #[allow(clippy::should_implement_trait, reason = "the sequence never ends")]
    #[inline]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(Self::STEP);
        let mixed = Self::MIXERS.iter().fold(self.0, |z, (shift, by)| (z ^ (z >> shift)).wrapping_mul(*by));
        mixed ^ (mixed >> 31)
    }

    /// Returns a random number below `bound`, or 0 if `bound` is 0. The numbers are not exactly uniform, but
    /// the deviation is far too small for a test to notice.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns a random index below `len`, the length of a list; 0 if the list is empty.
    #[inline]
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// Returns a random element of a list. Panics if the list is empty.
    pub fn pick<T: Copy>(&mut self, things: &[T]) -> T {
        things[self.index(things.len())]
    }

    pub fn fill(&mut self, bytes: &mut [u8]) {
        for piece in bytes.chunks_mut(8) {
            piece.copy_from_slice(&self.next().to_le_bytes()[..piece.len()]);
        }
    }
}
