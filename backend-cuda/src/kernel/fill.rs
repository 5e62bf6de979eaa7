//! Fills of device memory: by the driver's memset if it supports the pattern, else by a kernel.

use crate::driver::DriverResult;
use crate::driver::objects::Unit;
use crate::kernel::modules::FixedKernel;
use crate::kernel::{argument, scratch};
use crate::submission::CudaSubmission;

/// Number of blocks of a fill for each multiprocessor.
const BLOCKS_PER_MULTIPROCESSOR: u64 = 8;

/// Writes `pattern` repeatedly to `bytes` bytes at `to`.
pub(crate) fn run(work: &mut CudaSubmission<'_>, to: u64, bytes: u64, pattern: &[u8]) -> DriverResult {
    if bytes == 0 {
        return Ok(());
    }
    if let Some(unit) = unit(pattern, to, bytes) {
        // SAFETY: the range was checked, and is a whole number of aligned units.
        return unsafe { work.stream().set(to, bytes, unit) };
    }
    let stretched = stretch(pattern, to, bytes);
    let address = work.scratch()? + scratch::PATTERN;
    work.send(&stretched, address)?;
    let function = work.core.kernels.fixed(work.context(), FixedKernel::Fill)?;
    let period = (stretched.len() / 16) as u32;
    let blocks =
        (bytes / 4096 + 1).min(u64::from(work.core.card.multiprocessors) * BLOCKS_PER_MULTIPROCESSOR);
    let mut arguments = [argument(&to), argument(&bytes), argument(&address), argument(&period)];
    // SAFETY: the kernel's parameters are (u64, u64, u64, u32); the target was checked, and the pattern is
    // in scratch memory, which only later work of this queue changes.
    unsafe { work.stream().launch(function, blocks, &mut arguments) }
}

/// Returns the shortest unit (1, 2 or 4 bytes) that repeats to the pattern, if memset can write it there.
fn unit(pattern: &[u8], to: u64, bytes: u64) -> Option<Unit> {
    let repeats =
        |n: usize| pattern.len().is_multiple_of(n) && pattern.chunks(n).all(|chunk| chunk == &pattern[..n]);
    let fits = |n: u64| to.is_multiple_of(n) && bytes.is_multiple_of(n);
    if repeats(1) {
        return Some(Unit::One(pattern[0]));
    }
    if repeats(2) && fits(2) {
        return Some(Unit::Two(u16::from_ne_bytes(pattern[..2].try_into().ok()?)));
    }
    if repeats(4) && fits(4) {
        return Some(Unit::Four(u32::from_ne_bytes(pattern[..4].try_into().ok()?)));
    }
    None
}

/// Repeats the pattern to a multiple of 16 bytes. It begins with the bytes for the first multiple of 16 at
/// or after `to`, or for the end of the range if that is earlier.
fn stretch(pattern: &[u8], to: u64, bytes: u64) -> Vec<u8> {
    let head = (to.wrapping_neg() & 15).min(bytes) as usize;
    let mut length = pattern.len();
    while !length.is_multiple_of(16) {
        length *= 2;
    }
    pattern.iter().copied().cycle().skip(head % pattern.len()).take(length).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memset_is_taken_where_it_can_do_it() {
        assert_eq!(unit(&[0; 100], 3, 7), Some(Unit::One(0)));
        assert_eq!(unit(&[1, 2], 2, 8), Some(Unit::Two(u16::from_ne_bytes([1, 2]))));
        assert_eq!(unit(&[1, 2, 1, 2], 4, 8), Some(Unit::Two(u16::from_ne_bytes([1, 2]))));
        assert_eq!(unit(&[1, 2], 1, 8), None);
        assert_eq!(unit(&[1, 2, 3, 4], 4, 8), Some(Unit::Four(u32::from_ne_bytes([1, 2, 3, 4]))));
        assert_eq!(unit(&[1, 2, 3, 4], 4, 9), None);
        assert_eq!(unit(&[1, 2, 3], 0, 9), None);
    }

    /// Returns the bytes that the kernel writes, computed in Rust.
    fn kernel(to: u64, bytes: u64, pattern: &[u8]) -> Vec<u8> {
        let period = pattern.len() as u64 / 16;
        let head = (to.wrapping_neg() & 15).min(bytes);
        let vectors = (bytes - head) / 16;
        let mut written = Vec::new();
        for i in 0..head {
            written.push(pattern[(period * 16 - head + i) as usize]);
        }
        for i in 0..vectors {
            let start = (i % period * 16) as usize;
            written.extend(&pattern[start..start + 16]);
        }
        for i in 0..bytes - head - vectors * 16 {
            written.push(pattern[(vectors % period * 16 + i) as usize]);
        }
        written
    }

    #[test]
    fn a_stretched_pattern_begins_where_the_kernel_expects() {
        for length in [1, 3, 5, 16, 44, 100, 4096, 4095] {
            let pattern: Vec<u8> = (0..length).map(|i| (i * 7 + i / 256 + 1) as u8).collect();
            for (to, bytes) in [(0, 1), (1, 3), (5, 200), (16, 99), (31, 10_000), (15, 70_000)] {
                let expected: Vec<u8> = pattern.iter().copied().cycle().take(bytes as usize).collect();
                assert_eq!(
                    kernel(to, bytes, &stretch(&pattern, to, bytes)),
                    expected,
                    "{length} {to} {bytes}"
                );
            }
        }
    }
}
