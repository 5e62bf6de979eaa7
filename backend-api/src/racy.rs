//! Copies between memory that other threads or devices may touch at the same time.
//!
//! An ordinary load or store that races with another thread's store is undefined behaviour, whatever is done with the
//! bytes afterwards. These copies behave as one relaxed atomic access per byte (or per larger piece): a race gives
//! bytes of unspecified value and nothing worse. They order nothing; fences do that.
//!
//! [`read`] and [`write()`] are for the usual case that one side is private to the caller; only the other side may
//! race. [`copy`] is for two sides that may both. The difference matters for pointers, not for speed: a reference to an
//! atomic is one to mutable memory, and under Stacked Borrows must not be made from a pointer that came from a `&[u8]`,
//! not even to load (Tree Borrows allows it). The private side is therefore accessed plainly.
//!
//! On x86-64 copies are moves of any alignment in inline assembly, long ones the processor's own string move, which
//! runs at the speed of `memcpy`; elsewhere, and under `--cfg portable_copy` (sanitizers do not see into assembly), it
//! is a loop over relaxed atomics.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Copies `bytes` bytes, tolerating races on both sides.
///
/// Costs what `memcpy` costs on x86-64, up to twice that elsewhere.
///
/// ```
/// let mut from = [1_u8, 2, 3];
/// let mut to = [0_u8; 3];
/// // SAFETY: both arrays are three bytes long and distinct.
/// unsafe { backend_api::racy::copy(from.as_mut_ptr(), to.as_mut_ptr(), 3) };
/// assert_eq!(to, from);
/// ```
///
/// # Safety
/// `from` must be readable and `to` writable for `bytes` bytes, and the two ranges must not overlap. Other threads may
/// read and write both ranges meanwhile, if they do so by atomic accesses or by the functions of this module, or are
/// devices; no reference to a range that is being written may be in use. `from` must not come from a shared reference
/// to plain data: that is what [`write()`] is for.
#[inline]
pub unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: passed on.
    unsafe { copy_by::<Shared, Shared>(from, to, bytes) }
}

/// Copies racing memory into a private buffer, whole.
///
/// ```
/// let (mut from, mut into) = ([1_u8, 2, 3], [0_u8; 2]);
/// // SAFETY: two bytes from the second on are inside of the array.
/// unsafe { backend_api::racy::read(from.as_mut_ptr().add(1), &mut into) };
/// assert_eq!(into, [2, 3]);
/// ```
///
/// # Safety
/// As [`copy`] for the range of `into`'s length from `from` on. Devices must not touch `into` meanwhile.
#[inline]
pub unsafe fn read(from: *const u8, into: &mut [u8]) {
    // SAFETY: passed on; nobody else reaches what is borrowed exclusively.
    unsafe { copy_by::<Shared, Private>(from, into.as_mut_ptr(), into.len()) }
}

/// Copies a private buffer, whole, into racing memory.
///
/// ```
/// let mut to = [0_u8; 3];
/// // SAFETY: two bytes from the second on are inside of the array.
/// unsafe { backend_api::racy::write(to.as_mut_ptr().add(1), &[7, 8]) };
/// assert_eq!(to, [0, 7, 8]);
/// ```
///
/// # Safety
/// As [`copy`] for the range of `from`'s length from `to` on. Devices must not write to `from` meanwhile.
#[inline]
pub unsafe fn write(to: *mut u8, from: &[u8]) {
    // SAFETY: passed on; nobody writes to what is borrowed.
    unsafe { copy_by::<Private, Shared>(from.as_ptr(), to, from.len()) }
}

/// # Safety
/// As [`copy`], except that nobody else writes to a private source, or touches a private target.
#[inline]
unsafe fn copy_by<From: Side, To: Side>(from: *const u8, to: *mut u8, bytes: usize) {
    #[cfg(all(target_arch = "x86_64", not(any(portable_copy, miri))))]
    // SAFETY: passed on.
    unsafe {
        x86_64::copy(from, to, bytes);
    }
    #[cfg(not(all(target_arch = "x86_64", not(any(portable_copy, miri)))))]
    // SAFETY: passed on.
    unsafe {
        copy_words::<From, To>(from, to, bytes);
    }
}

/// How one side of a portable copy is accessed.
trait Side {
    /// # Safety
    /// `at` is readable by the rules of the side.
    unsafe fn load_byte(at: *const u8) -> u8;
    /// # Safety
    /// As [`load_byte`](Self::load_byte), and aligned.
    unsafe fn load_word(at: *const u64) -> u64;
    /// # Safety
    /// `at` is writable by the rules of the side.
    unsafe fn store_byte(at: *mut u8, byte: u8);
    /// # Safety
    /// As [`store_byte`](Self::store_byte), and aligned.
    unsafe fn store_word(at: *mut u64, word: u64);
}

/// Others may read and write: atomic accesses.
enum Shared {}

/// Nobody else writes, and if it is written to, nobody else reads: plain accesses.
enum Private {}

#[rustfmt::skip]
impl Side for Shared {
    #[inline(always)]
    unsafe fn load_byte(at: *const u8) -> u8 {
        // SAFETY: vouched for by the caller; so in the other three.
        unsafe { (*at.cast::<AtomicU8>()).load(Ordering::Relaxed) }
    }
    #[inline(always)]
    unsafe fn load_word(at: *const u64) -> u64 {
        // SAFETY: as above.
        unsafe { (*at.cast::<AtomicU64>()).load(Ordering::Relaxed) }
    }
    #[inline(always)]
    unsafe fn store_byte(at: *mut u8, byte: u8) {
        // SAFETY: as above.
        unsafe { (*at.cast::<AtomicU8>()).store(byte, Ordering::Relaxed) }
    }
    #[inline(always)]
    unsafe fn store_word(at: *mut u64, word: u64) {
        // SAFETY: as above.
        unsafe { (*at.cast::<AtomicU64>()).store(word, Ordering::Relaxed) }
    }
}

#[rustfmt::skip]
impl Side for Private {
    #[inline(always)]
    unsafe fn load_byte(at: *const u8) -> u8 {
        // SAFETY: vouched for by the caller; so in the other three.
        unsafe { *at }
    }
    #[inline(always)]
    unsafe fn load_word(at: *const u64) -> u64 {
        // SAFETY: as above.
        unsafe { *at }
    }
    #[inline(always)]
    unsafe fn store_byte(at: *mut u8, byte: u8) {
        // SAFETY: as above.
        unsafe { *at = byte }
    }
    #[inline(always)]
    unsafe fn store_word(at: *mut u64, word: u64) {
        // SAFETY: as above.
        unsafe { *at = word }
    }
}

/// Copies in inline assembly, which may do what some sequence of relaxed atomic byte accesses could do.
#[cfg(all(target_arch = "x86_64", not(any(portable_copy, miri))))]
mod x86_64 {
    use std::arch::asm;

    /// From here on the string move is the fastest; its start costs some 30 cycles.
    const STRING_MOVE_BYTES: usize = 256;

    /// Moves one piece through a register.
    macro_rules! piece {
        ($class:ident, $move:literal, $register:literal, $from:expr, $to:expr) => {
            asm!(
                concat!($move, " ", $register, ", [{from}]"),
                concat!($move, " [{to}], ", $register),
                from = in(reg) $from,
                to = in(reg) $to,
                piece = out($class) _,
                options(nostack, preserves_flags)
            )
        };
    }

    /// # Safety
    /// As [`super::copy`].
    #[inline]
    pub(super) unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
        /// Moves the first and the last piece of a width, which may overlap.
        macro_rules! both_ends {
            ($size:literal, $class:ident, $move:literal, $register:literal) => {{
                // SAFETY: the caller vouches for both ranges, which are at least this wide.
                unsafe {
                    piece!($class, $move, $register, from, to);
                    piece!($class, $move, $register, from.add(bytes - $size), to.add(bytes - $size));
                }
            }};
        }
        match bytes {
            0 => {}
            1 => both_ends!(1, reg_byte, "mov", "{piece}"),
            2..4 => both_ends!(2, reg, "mov", "{piece:x}"),
            4..8 => both_ends!(4, reg, "mov", "{piece:e}"),
            8..16 => both_ends!(8, reg, "mov", "{piece}"),
            16..STRING_MOVE_BYTES => {
                let mut done = 0;
                while bytes - done > 16 {
                    // SAFETY: vouched for by the caller; `done + 16` is inside.
                    unsafe { piece!(xmm_reg, "movdqu", "{piece}", from.add(done), to.add(done)) };
                    done += 16;
                }
                // SAFETY: as above; there are at least 16 bytes.
                unsafe { piece!(xmm_reg, "movdqu", "{piece}", from.add(bytes - 16), to.add(bytes - 16)) };
            }
            // SAFETY: vouched for by the caller. The direction flag is clear by the ABI.
            _ => unsafe {
                asm!(
                    "rep movsb",
                    inout("rcx") bytes => _,
                    inout("rsi") from => _,
                    inout("rdi") to => _,
                    options(nostack, preserves_flags)
                );
            },
        }
    }
}

/// The portable copy: words where both sides are aligned alike, bytes elsewhere.
///
/// # Safety
/// As [`copy_by`].
#[inline]
#[cfg_attr(all(target_arch = "x86_64", not(any(portable_copy, miri))), allow(dead_code))]
unsafe fn copy_words<From: Side, To: Side>(from: *const u8, to: *mut u8, bytes: usize) {
    const WORD: usize = size_of::<u64>();
    let mut done = 0;
    if (from.addr() ^ to.addr()).is_multiple_of(WORD) {
        let head = from.align_offset(WORD).min(bytes);
        // SAFETY: `head <= bytes`.
        unsafe { copy_bytes::<From, To>(from, to, 0..head) };
        done = head;
        while bytes - done >= WORD {
            // SAFETY: both addresses are multiples of 8 after `head` bytes, and 8 bytes are left.
            unsafe { To::store_word(to.add(done).cast(), From::load_word(from.add(done).cast())) };
            done += WORD;
        }
    }
    // SAFETY: `done <= bytes`.
    unsafe { copy_bytes::<From, To>(from, to, done..bytes) }
}

/// # Safety
/// As [`copy_by`], for the bytes of the range.
#[inline]
#[cfg_attr(all(target_arch = "x86_64", not(any(portable_copy, miri))), allow(dead_code))]
unsafe fn copy_bytes<From: Side, To: Side>(from: *const u8, to: *mut u8, range: std::ops::Range<usize>) {
    for i in range {
        // SAFETY: `i` is within the ranges that the caller vouches for; bytes are always aligned.
        unsafe { To::store_byte(to.add(i), From::load_byte(from.add(i))) };
    }
}

/// Writes `byte` to `bytes` bytes, tolerating races.
///
/// ```
/// let mut to = [7_u8; 3];
/// // SAFETY: the array is three bytes long.
/// unsafe { backend_api::racy::fill(to.as_mut_ptr(), 0, 3) };
/// assert_eq!(to, [0; 3]);
/// ```
///
/// # Safety
/// As [`copy`], for the one range.
#[inline]
pub unsafe fn fill(to: *mut u8, byte: u8, bytes: usize) {
    #[cfg(all(target_arch = "x86_64", not(any(portable_copy, miri))))]
    // SAFETY: as in `copy`.
    unsafe {
        std::arch::asm!(
            "rep stosb",
            inout("rcx") bytes => _,
            in("al") byte,
            inout("rdi") to => _,
            options(nostack, preserves_flags)
        );
    }
    #[cfg(not(all(target_arch = "x86_64", not(any(portable_copy, miri)))))]
    {
        const WORD: usize = size_of::<u64>();
        let word = u64::from_ne_bytes([byte; WORD]);
        let head = to.align_offset(WORD).min(bytes);
        let tail = head + (bytes - head) / WORD * WORD;
        for i in (0..head).chain(tail..bytes) {
            // SAFETY: `i < bytes`.
            unsafe { (*to.add(i).cast::<AtomicU8>()).store(byte, Ordering::Relaxed) };
        }
        for i in (head..tail).step_by(WORD) {
            // SAFETY: aligned after `head` bytes; eight bytes are left before `tail`.
            unsafe { (*to.add(i).cast::<AtomicU64>()).store(word, Ordering::Relaxed) };
        }
    }
}

/// Overwrites memory with zeroes before it is given back, in a way that the compiler does not leave out. What is zero
/// already is only read, so that memory which was never touched does not come into being here.
///
/// ```
/// use backend_api::racy;
/// let mut secret = *b"a secret";
/// // SAFETY: the array is this long, and nobody else has it.
/// unsafe { racy::wipe(secret.as_mut_ptr(), secret.len()) };
/// assert_eq!(secret, [0; 8]);
/// ```
///
/// # Safety
/// The `bytes` bytes from `address` on are initialised, writable, and nobody else's: no work in flight touches them.
pub unsafe fn wipe(address: *mut u8, bytes: usize) {
    const PART: usize = 4096;
    for start in (0..bytes).step_by(PART) {
        let length = PART.min(bytes - start);
        // SAFETY: the part is inside of the memory, which is the caller's alone.
        unsafe {
            let part = address.add(start);
            if std::slice::from_raw_parts(part, length).iter().fold(0, |all, byte| all | byte) != 0 {
                fill(part, 0, length);
            }
        }
    }
    std::hint::black_box(address);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_it_is_wiped_and_nothing_else() {
        for bytes in [0_usize, 1, 7, 4095, 4096, 4097, 10_000] {
            for written in [0..bytes, bytes.saturating_sub(1)..bytes, 0..bytes.min(1), 0..0] {
                let mut memory = vec![0_u8; bytes + 10];
                memory[5..][written].fill(0xA5);
                memory[..5].fill(1);
                memory[5 + bytes..].fill(1);
                // SAFETY: five bytes are left on both sides.
                unsafe { wipe(memory.as_mut_ptr().add(5), bytes) };
                assert!(memory[5..][..bytes].iter().all(|&byte| byte == 0));
                assert!(memory[..5].iter().chain(&memory[5 + bytes..]).all(|&byte| byte == 1));
            }
        }
    }

    /// Every way in which `bytes` bytes can be copied.
    ///
    /// # Safety
    /// As [`copy`].
    unsafe fn copy_in_way(way: usize, from: *mut u8, to: *mut u8, bytes: usize) {
        // SAFETY: passed on; the caller of this test has both ranges for itself.
        unsafe {
            let private_from = || std::slice::from_raw_parts(from, bytes);
            match way {
                0 => copy(from, to, bytes),
                1 => read(from, std::slice::from_raw_parts_mut(to, bytes)),
                2 => write(to, private_from()),
                3 => copy_words::<Shared, Shared>(from, to, bytes),
                4 => copy_words::<Shared, Private>(from, to, bytes),
                _ => copy_words::<Private, Shared>(private_from().as_ptr(), to, bytes),
            }
        }
    }

    #[test]
    fn every_alignment_and_length_is_copied_and_nothing_else() {
        let mut from: Vec<u8> = (0..1000_u32).map(|i| (i * 7 + 3) as u8).collect();
        for (a, b) in (0..9).flat_map(|a| (0..9).map(move |b| (a, b))) {
            for bytes in (0..40).chain([255, 256, 257, 600]) {
                for way in 0..6 {
                    let mut to = vec![0xEE_u8; 1000];
                    // SAFETY: both vectors are longer than offset plus length.
                    unsafe {
                        copy_in_way(way, from.as_mut_ptr().add(a), to.as_mut_ptr().add(b), bytes);
                    }
                    assert_eq!(to[b..b + bytes], from[a..a + bytes], "way {way}");
                    assert!(to[..b].iter().chain(&to[b + bytes..]).all(|&x| x == 0xEE), "way {way}");
                }
            }
        }
    }

    #[test]
    fn every_alignment_and_length_is_filled_and_nothing_else() {
        for (start, bytes) in (0..9).flat_map(|s| (0..40).map(move |n| (s, n))) {
            let mut to = vec![0xEE_u8; 64];
            // SAFETY: the vector is longer than offset plus length.
            unsafe { fill(to.as_mut_ptr().add(start), 5, bytes) };
            assert!(to[start..start + bytes].iter().all(|&x| x == 5));
            assert!(to[..start].iter().chain(&to[start + bytes..]).all(|&x| x == 0xEE));
        }
    }
}
