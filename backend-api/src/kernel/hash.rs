//! A hash function with the same result in every process. Backends use it in names of files on disk.

use std::hash::Hasher;

/// A hasher with 128 bits of state in two halves. Each half multiplies and rotates for every input word.
#[derive(Clone, Copy, Debug)]
pub(super) struct StableHasher(u64, u64);

impl StableHasher {
    pub fn new() -> Self {
        Self(0x243F_6A88_85A3_08D3, 0x1319_8A2E_0370_7344)
    }

    /// Returns the 128-bit hash of the data so far.
    pub fn finish_both(&self) -> u128 {
        let mix = |mut word: u64| {
            word ^= word >> 32;
            word = word.wrapping_mul(0xD6E8_FEB8_6659_FD93);
            word ^= word >> 32;
            word.wrapping_mul(0xD6E8_FEB8_6659_FD93)
        };
        u128::from(mix(self.0)) << 64 | u128::from(mix(self.1 ^ self.0.rotate_left(17)))
    }
}

impl Hasher for StableHasher {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
        self.write_u64(bytes.len() as u64);
    }

    fn write_u8(&mut self, number: u8) {
        self.write_u64(number.into());
    }

    fn write_u16(&mut self, number: u16) {
        self.write_u64(number.into());
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0 ^ number).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
        self.1 = (self.1.rotate_left(23) ^ number).wrapping_mul(0xC2B2_AE3D_27D4_EB4F);
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    fn write_isize(&mut self, number: isize) {
        self.write_u64(number as u64);
    }

    fn finish(&self) -> u64 {
        self.finish_both() as u64
    }
}
