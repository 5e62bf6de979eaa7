//! Non-temporal copies in RAM: the stores bypass the processor's caches, for long copies not read soon.

use backend_api::racy;

/// The least bytes of a whole copy for non-temporal stores. The end of a longer plain copy evicts its
/// beginning from the processor's caches.
const WORTH_IT_FROM: usize = 64 << 20;

#[cfg(all(target_arch = "x86_64", not(any(portable_copy, miri))))]
const LINE: usize = 64;

/// Returns true if a copy of `bytes` bytes in total should use non-temporal stores. They are about twice as
/// fast as normal copies to uncached memory, and about a third slower to cached memory.
#[inline]
pub fn is_worth_it(bytes: usize) -> bool {
    bytes >= WORTH_IT_FROM
}

/// Copies bytes by non-temporal stores if the processor has them. A plain copy first loads each cache line
/// that it overwrites. Useful for some hundred bytes and more, if the whole copy is longer than the caches.
/// Other threads may access both places meanwhile, as in [`racy::copy`].
///
/// # Safety
/// The requirements of [`racy::copy`].
pub unsafe fn copy_racy(from: *const u8, to: *mut u8, bytes: usize) {
    #[cfg(all(target_arch = "x86_64", not(any(portable_copy, miri))))]
    {
        let head = to.align_offset(LINE).min(bytes);
        let lines = (bytes - head) / LINE;
        let tail = head + lines * LINE;
        // SAFETY: guaranteed by the caller. `head` ends at the first whole line of the target, if there is
        // one. The fence makes all stores visible before later ones, like ordinary stores.
        unsafe {
            racy::copy(from, to, head);
            (head..tail).step_by(LINE).for_each(|at| stream_line(from.add(at), to.add(at)));
            fence();
            racy::copy(from.add(tail), to.add(tail), bytes - tail);
        }
    }
    #[cfg(not(all(target_arch = "x86_64", not(any(portable_copy, miri)))))]
    // SAFETY: guaranteed by the caller.
    unsafe {
        racy::copy(from, to, bytes);
    }
}

/// Non-temporal copies of single cache lines. The drop of this value orders them before the thread's later
/// writes, such as the release of a lock.
#[derive(Debug, Default)]
pub struct LineCopies(());

impl LineCopies {
    /// Copies bytes by non-temporal stores if `to` is one whole cache line, otherwise by a plain copy.
    #[inline(always)]
    pub fn copy(&mut self, from: &[u8], to: &mut [u8]) {
        #[cfg(all(target_arch = "x86_64", not(any(portable_copy, miri))))]
        if from.len() == LINE && to.len() == LINE && to.as_ptr().addr().is_multiple_of(LINE) {
            // SAFETY: both sides have the length of a line, and the target is aligned to lines.
            return unsafe { stream_line(from.as_ptr(), to.as_mut_ptr()) };
        }
        to.copy_from_slice(from);
    }
}

impl Drop for LineCopies {
    fn drop(&mut self) {
        fence();
    }
}

/// # Safety
/// The requirements of [`racy::copy`] for a line; the target is aligned to lines.
#[cfg(all(target_arch = "x86_64", not(any(portable_copy, miri))))]
#[inline(always)]
unsafe fn stream_line(from: *const u8, to: *mut u8) {
    // SAFETY: guaranteed by the caller; every x86-64 has these instructions.
    unsafe {
        std::arch::asm!(
            "movdqu {a}, [{from}]",
            "movdqu {b}, [{from} + 16]",
            "movdqu {c}, [{from} + 32]",
            "movdqu {d}, [{from} + 48]",
            "movntdq [{to}], {a}",
            "movntdq [{to} + 16], {b}",
            "movntdq [{to} + 32], {c}",
            "movntdq [{to} + 48], {d}",
            from = in(reg) from,
            to = in(reg) to,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            options(nostack, preserves_flags)
        );
    }
}

/// Makes copies by lines visible before later writes.
fn fence() {
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
        let mut from: Vec<u8> = (0..1000).map(|byte| byte as u8).collect();
        for start in [0, 1, 15, 63, 64] {
            for bytes in [0, 1, 63, 64, 65, 127, 200, 700] {
                let mut to = vec![255; 1000];
                // SAFETY: both have at least this length.
                unsafe { copy_racy(from.as_mut_ptr().add(3), to.as_mut_ptr().add(start), bytes) };
                let mut expected = vec![255; 1000];
                expected[start..start + bytes].copy_from_slice(&from[3..3 + bytes]);
                assert_eq!(to, expected, "{start} {bytes}");
                to.fill(255);
                LineCopies::default().copy(&from[3..3 + bytes], &mut to[start..start + bytes]);
                assert_eq!(to, expected, "{start} {bytes}, a line");
            }
        }
    }
}
