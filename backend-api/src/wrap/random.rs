//! A small seeded generator, so that tests and random choices can be repeated.

/// SplitMix64 by Steele, Lea and Flood: every seed gives a good sequence, and the same one each time.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// From one state to the next.
    pub const STEP: u64 = 0x9E37_79B9_7F4A_7C15;
    /// What makes a number of a state: by how much it is shifted over itself, and what it is multiplied by
    /// then. A shift by 31 comes last.
    pub const MIXERS: [(u64, u64); 2] = [(30, 0xBF58_476D_1CE4_E5B9), (27, 0x94D0_49BB_1331_11EB)];

    #[must_use]
    #[inline]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    #[allow(clippy::should_implement_trait, reason = "it never ends")]
    #[inline]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(Self::STEP);
        let mixed = Self::MIXERS.iter().fold(self.0, |z, (shift, by)| (z ^ (z >> shift)).wrapping_mul(*by));
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`; 0 if there is none. The bias is far below what a test could notice.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// As [`below`](Self::below), for the index of one of `len` things.
    #[inline]
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// One of some things, of which there is at least one.
    pub fn pick<T: Copy>(&mut self, things: &[T]) -> T {
        things[self.index(things.len())]
    }

    pub fn fill(&mut self, bytes: &mut [u8]) {
        for piece in bytes.chunks_mut(8) {
            piece.copy_from_slice(&self.next().to_le_bytes()[..piece.len()]);
        }
    }
}
