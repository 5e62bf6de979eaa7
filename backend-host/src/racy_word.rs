//! Racing reads of single words: [`racy::copy`](backend_api::racy::copy) for 1 to 8 bytes.
//!
//! As in `racy::copy`, each read behaves like one relaxed atomic read per byte, so a race gives unspecified
//! bytes and no undefined behaviour. On x86-64 a read is a move in inline assembly, of any alignment.
//! Elsewhere, and with `--cfg portable_copy`, this module calls `racy::copy`.

/// Selects code for x86-64, with moves in assembly, or for other processors.
macro_rules! x86_64_moves {
    ({ $($yes:tt)* } else { $($no:tt)* }) => {
        #[cfg(all(target_arch = "x86_64", not(any(portable_copy, miri))))]
        { $($yes)* }
        #[cfg(not(all(target_arch = "x86_64", not(any(portable_copy, miri)))))]
        { $($no)* }
    };
}

/// A number that one access reads.
pub(crate) trait Word: Copy + PartialEq {
    /// Returns the number with these bytes.
    fn from_bytes(bytes: &[u8]) -> Option<Self>;

    /// Reads the number.
    ///
    /// # Safety
    /// The bytes must be readable. They need no alignment, and other threads may write to them as
    /// [`backend_api::racy`] describes.
    unsafe fn load(from: *const u8) -> Self;
}

macro_rules! word {
    ($word:ty, $x86_64_move:literal) => {
        impl Word for $word {
            #[inline]
            fn from_bytes(bytes: &[u8]) -> Option<Self> {
                bytes.try_into().ok().map(Self::from_ne_bytes)
            }

            #[inline(always)]
            unsafe fn load(from: *const u8) -> Self {
                x86_64_moves! {{
                    let word: u64;
                    // SAFETY: the caller guarantees the bytes; assembly may do the same as relaxed atomic
                    // accesses to each byte.
                    unsafe {
                        std::arch::asm!(
                            $x86_64_move,
                            word = out(reg) word,
                            from = in(reg) from,
                            options(nostack, preserves_flags, readonly)
                        );
                    }
                    word as $word
                } else {
                    let mut bytes = [0; size_of::<$word>()];
                    // SAFETY: the caller guarantees the source; the target is local.
                    unsafe { backend_api::racy::copy(from, bytes.as_mut_ptr(), bytes.len()) };
                    Self::from_ne_bytes(bytes)
                }}
            }
        }
    };
}
word!(u8, "movzx {word:e}, byte ptr [{from}]");
word!(u16, "movzx {word:e}, word ptr [{from}]");
word!(u32, "mov {word:e}, dword ptr [{from}]");
word!(u64, "mov {word}, qword ptr [{from}]");

#[cfg(all(target_arch = "x86_64", not(any(portable_copy, miri))))]
pub(crate) use vector::Wide;

#[cfg(not(all(target_arch = "x86_64", not(any(portable_copy, miri)))))]
pub(crate) type Wide = u128;

#[cfg(not(all(target_arch = "x86_64", not(any(portable_copy, miri)))))]
word!(u128, "");

#[cfg(all(target_arch = "x86_64", not(any(portable_copy, miri))))]
mod vector {
    use std::arch::x86_64::{__m128i, _mm_cmpeq_epi8, _mm_movemask_epi8, _mm_set_epi64x};

    /// Sixteen bytes, compared by one instruction of the x86-64 baseline.
    #[derive(Clone, Copy, Debug)]
    pub(crate) struct Wide(__m128i);

    impl PartialEq for Wide {
        #[inline(always)]
        fn eq(&self, other: &Self) -> bool {
            // SAFETY: every x86-64 processor has these instructions.
            unsafe { _mm_movemask_epi8(_mm_cmpeq_epi8(self.0, other.0)) == 0xFFFF }
        }
    }

    impl super::Word for Wide {
        #[inline]
        fn from_bytes(bytes: &[u8]) -> Option<Self> {
            let number = u128::from_le_bytes(bytes.try_into().ok()?);
            // SAFETY: as above.
            Some(Self(unsafe { _mm_set_epi64x((number >> 64) as i64, number as i64) }))
        }

        #[inline(always)]
        unsafe fn load(from: *const u8) -> Self {
            let word: __m128i;
            // SAFETY: the caller guarantees the bytes; assembly may do the same as relaxed atomic accesses to
            // each byte.
            unsafe {
                std::arch::asm!(
                    "movdqu {word}, xmmword ptr [{from}]",
                    word = out(xmm_reg) word,
                    from = in(reg) from,
                    options(nostack, preserves_flags, readonly)
                );
            }
            Self(word)
        }
    }
}

/// Copies racing memory into a private buffer by moves that overlap with later instructions. The string move
/// of [`read`](backend_api::racy::read) would block later instructions until it ends.
///
/// # Safety
/// As for [`read`](backend_api::racy::read).
#[inline]
pub(crate) unsafe fn load_all(from: *const u8, into: &mut [u8]) {
    x86_64_moves! {{
        let (pieces, rest) = into.as_chunks_mut::<64>();
        let mut from = from;
        for piece in pieces {
            // SAFETY: the caller guarantees the source, the target is local, both of 64 bytes; assembly may
            // do the same as relaxed atomic accesses to each byte.
            unsafe {
                std::arch::asm!(
                    "movdqu {a}, xmmword ptr [{from}]",
                    "movdqu {b}, xmmword ptr [{from} + 16]",
                    "movdqu {c}, xmmword ptr [{from} + 32]",
                    "movdqu {d}, xmmword ptr [{from} + 48]",
                    "movdqu xmmword ptr [{to}], {a}",
                    "movdqu xmmword ptr [{to} + 16], {b}",
                    "movdqu xmmword ptr [{to} + 32], {c}",
                    "movdqu xmmword ptr [{to} + 48], {d}",
                    a = out(xmm_reg) _,
                    b = out(xmm_reg) _,
                    c = out(xmm_reg) _,
                    d = out(xmm_reg) _,
                    from = in(reg) from,
                    to = in(reg) piece.as_mut_ptr(),
                    options(nostack, preserves_flags)
                );
            }
            from = from.wrapping_add(64);
        }
        // SAFETY: the caller has the same obligations for the rest.
        unsafe { backend_api::racy::read(from, rest) };
    } else {
        // SAFETY: the caller has the same obligations.
        unsafe { backend_api::racy::read(from, into) };
    }}
}

/// Prefetches a cache line. Any address is allowed, because the memory is not read.
#[inline]
pub(crate) fn prefetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint; it never faults.
    unsafe {
        std::arch::x86_64::_mm_prefetch(address.cast(), std::arch::x86_64::_MM_HINT_T0);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_at_every_alignment() {
        fn check<W: Word + std::fmt::Debug>(bytes: &[u8]) {
            for start in 0..9 {
                let field = &bytes[start..start + size_of::<W>()];
                // SAFETY: the field is as long as the word.
                assert_eq!(Some(unsafe { W::load(field.as_ptr()) }), W::from_bytes(field));
                assert_eq!(W::from_bytes(&bytes[..size_of::<W>() + 1]), None);
            }
        }
        let bytes: Vec<u8> = (0..40_u8).map(|i| i.wrapping_mul(37).wrapping_add(200)).collect();
        check::<u8>(&bytes);
        check::<u16>(&bytes);
        check::<u32>(&bytes);
        check::<u64>(&bytes);
        check::<Wide>(&bytes);
    }
}
