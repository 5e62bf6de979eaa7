//! Random numbers for kernels: counter-based generators, which need no state between calls.

use vmarray_macros::kernel;

/// Returns four random 32-bit numbers for a counter and a key: Philox 4x32-10 of Salmon, Moraes, Dror and
/// Shaw, "Parallel random numbers: as easy as 1, 2, 3" (2011). The same counter and key give the same numbers
/// on every device and on the host. Use the key for the seed. Use one word of the counter for the index of
/// the item (GPU thread), and another word to number the item's draws.
///
/// ```
/// use vmarray_kernel::random::philox;
/// use vmarray_kernel::{At, Own, kernel, run_on_host};
///
/// #[kernel(crate = vmarray_kernel)]
/// fn dice(at: At<1>, seed: u32, out: &mut Own<u32>) {
///     out.set(1 + philox([at.index() as u32, 0, 0, 0], [seed, 0])[0] % 6);
/// }
/// let mut rolls = [0; 5];
/// run_on_host::<dice>(0..5, ((), 7, &mut rolls))?;
/// assert_eq!(rolls[3], 1 + philox([3, 0, 0, 0], [7, 0])[0] % 6);
/// # Ok::<_, vmarray_kernel::OutOfBounds>(())
/// ```
#[kernel(crate = crate)]
#[inline]
pub fn philox(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let (mut c, mut k) = (counter, key);
    for _ in 0..10 {
        let (first, second) = (c[0] as u64 * 0xd251_1f53, c[2] as u64 * 0xcd9e_8d57);
        c = [
            (second >> 32) as u32 ^ c[1] ^ k[0],
            second as u32,
            (first >> 32) as u32 ^ c[3] ^ k[1],
            first as u32,
        ];
        k = [k[0] + 0x9e37_79b9, k[1] + 0xbb67_ae85];
    }
    c
}

/// Converts 32 random bits to a float in `[0, 1)`, with 24 random bits.
///
/// ```
/// use vmarray_kernel::random::unit_f32;
/// assert_eq!((unit_f32(0), unit_f32(1 << 31)), (0.0, 0.5));
/// assert!(unit_f32(u32::MAX) < 1.0);
/// ```
#[kernel(crate = crate)]
#[inline]
pub fn unit_f32(bits: u32) -> f32 {
    (bits >> 8) as f32 * (1.0 / 16_777_216.0)
}

/// Converts 64 random bits to a float in `[0, 1)`, with 53 random bits.
///
/// ```
/// use vmarray_kernel::random::unit_f64;
/// assert_eq!((unit_f64(0), unit_f64(1 << 63)), (0.0, 0.5));
/// assert!(unit_f64(u64::MAX) < 1.0);
/// ```
#[kernel(crate = crate)]
#[inline]
pub fn unit_f64(bits: u64) -> f64 {
    (bits >> 11) as f64 * (1.0 / 9_007_199_254_740_992.0)
}

#[cfg(test)]
mod tests {
    use super::philox;

    /// Known answers from the authors' publication.
    #[test]
    fn numbers_match_philox() {
        let answers = [
            ([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
            ([u32::MAX; 4], [u32::MAX; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
            (
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0],
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
            ),
        ];
        for (counter, key, numbers) in answers {
            assert_eq!(philox(counter, key), numbers);
        }
    }
}
