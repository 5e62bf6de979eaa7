//! Non-temporal copies, for memory that is not read soon.

/// The total bytes of a copy from which its end evicts its beginning from the processor's caches.
const WORTH_IT_FROM: usize = 64 << 20;

/// The bytes of one non-temporal store.
#[cfg(all(target_arch = "x86_64", not(any(portable_copy, miri))))]
const LINE: usize = 64;

/// Returns true if non-temporal copies are better for parts of a copy of `bytes` bytes in total. To memory
/// outside of the caches they are about twice as fast as normal copies. To cached memory they are about a
/// third slower.
#[inline]
pub fn is_worth_it(bytes: usize) -> bool {
    bytes >= WORTH_IT_FROM
}

/// Copies from one slice to another of the same length, as [`copy_raw`].
#[inline]
pub fn copy(from: &[u8], to: &mut [u8]) {
    assert_eq!(from.len(), to.len());
    // SAFETY: both have the same length, and are borrowed separately.
    unsafe { copy_raw(from.as_ptr(), to.as_mut_ptr(), to.len()) };
}

/// Copies bytes without loading their new places into the processor's caches, if it can: a plain copy
/// reads each line that it is about to overwrite. Worth it for some hundred bytes and more, if the total
/// copy is longer than the caches.
///
/// # Safety
/// `bytes` bytes can be read and written; they do not overlap.
pub unsafe fn copy_raw(from: *const u8, to: *mut u8, bytes: usize) {
    #[cfg(all(target_arch = "x86_64", not(any(portable_copy, miri))))]
    {
        let head = to.align_offset(LINE).min(bytes);
        let lines = (bytes - head) / LINE;
        let tail = head + lines * LINE;
        // SAFETY: guaranteed by the caller. `head` ends at the first whole line of the target, if there is
        // one. The fence makes all stores visible before later ones, like ordinary stores.
        unsafe {
            from.copy_to_nonoverlapping(to, head);
            (head..tail).step_by(LINE).for_each(|at| stream_line(from.add(at), to.add(at)));
            fence();
            from.add(tail).copy_to_nonoverlapping(to.add(tail), bytes - tail);
        }
    }
    #[cfg(not(all(target_arch = "x86_64", not(any(portable_copy, miri)))))]
    // SAFETY: guaranteed by the caller.
    unsafe {
        from.copy_to_nonoverlapping(to, bytes);
    }
}

/// Copies bytes without the caches if they are a whole line of the target's, else plainly. A [`fence`]
/// must follow.
#[inline(always)]
pub fn copy_line(from: &[u8], to: &mut [u8]) {
    #[cfg(all(target_arch = "x86_64", not(any(portable_copy, miri))))]
    if from.len() == LINE && to.len() == LINE && to.as_ptr().addr().is_multiple_of(LINE) {
        // SAFETY: both sides have the length of a line, and the target is aligned to lines.
        return unsafe { stream_line(from.as_ptr(), to.as_mut_ptr()) };
    }
    to.copy_from_slice(from);
}

/// # Safety
/// A line can be read and written; the target's line is whole. They do not overlap.
#[cfg(all(target_arch = "x86_64", not(any(portable_copy, miri))))]
#[inline(always)]
unsafe fn stream_line(from: *const u8, to: *mut u8) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
    let (source, target) = (from.cast::<__m128i>(), to.cast::<__m128i>());
    // SAFETY: guaranteed by the caller; every x86-64 has these instructions.
    unsafe {
        let line: [__m128i; 4] = std::array::from_fn(|part| _mm_loadu_si128(source.add(part)));
        line.iter().enumerate().for_each(|(part, word)| _mm_stream_si128(target.add(part), *word));
    }
}

/// Makes copies by lines visible before later writes.
#[inline]
pub fn fence() {
    #[cfg(all(target_arch = "x86_64", not(any(portable_copy, miri))))]
    // SAFETY: every x86-64 has this instruction.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_to_their_places_and_no_others_change() {
        let from: Vec<u8> = (0..1000).map(|byte| byte as u8).collect();
        for start in [0, 1, 15, 63, 64] {
            for bytes in [0, 1, 63, 64, 65, 127, 200, 700] {
                let mut to = vec![255; 1000];
                // SAFETY: both have at least this length.
                unsafe { copy_raw(from.as_ptr().add(3), to.as_mut_ptr().add(start), bytes) };
                let mut expected = vec![255; 1000];
                expected[start..start + bytes].copy_from_slice(&from[3..3 + bytes]);
                assert_eq!(to, expected, "{start} {bytes}");
                to.fill(255);
                copy_line(&from[3..3 + bytes], &mut to[start..start + bytes]);
                fence();
                assert_eq!(to, expected, "{start} {bytes}, a line");
            }
        }
    }
}
