//! Copies of memory that other threads or devices may access at the same time.
//!
//! An ordinary load or store that races with another thread's store is undefined behaviour, for any use of
//! the bytes. The copies of this module behave like one relaxed atomic access per byte: a race yields bytes
//! of unspecified value, and no undefined behaviour. They do not order other accesses; use fences for that.
//!
//! Use [`copy`] if both ranges may race. Use [`read`] and [`write()`] if only one range may race and the
//! other is private to the caller. They access the private range without atomics, so this range may belong to
//! a `&[u8]`. (Under Stacked Borrows, code must not make an atomic reference from a pointer that came from a
//! `&[u8]`, not even for loads.) All of them are equally fast.
//!
//! On x86-64 and AArch64, copies are unaligned moves in inline assembly. On x86-64, long copies use the
//! string move (`rep movsb`), which runs at the speed of `memcpy`. On other processors, under Miri, and under
//! `--cfg portable_copy` (for sanitizers, which do not see into assembly), copies are loops over atomic
//! bytes. Atomic words would be faster, but atomic accesses of different sizes must not race with each other.
//!
//! ```
//! use backend_api::racy;
//! let (mut from, mut to, mut own) = ([1_u8, 2, 3], [0_u8; 4], [0_u8; 2]);
//! // SAFETY: all ranges are inside of their arrays, which are distinct.
//! unsafe {
//!     racy::copy(from.as_mut_ptr(), to.as_mut_ptr(), 3);
//!     racy::read(to.as_mut_ptr().add(1), &mut own);
//!     racy::write(to.as_mut_ptr().add(2), &[7, 8]);
//!     racy::fill(from.as_mut_ptr(), 9, 2);
//! }
//! assert_eq!((from, to, own), ([9, 9, 3], [1, 2, 7, 8], [2, 3]));
//! // SAFETY: the array has this length, and only this thread uses it.
//! unsafe { racy::wipe(to.as_mut_ptr(), to.len()) };
//! assert_eq!(to, [0; 4]);
//! ```

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// Selects between code with inline assembly and code with atomics.
macro_rules! in_assembly {
    ({ $($yes:tt)* } else { $($no:tt)* }) => {
        #[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(any(portable_copy, miri))))]
        { $($yes)* }
        #[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(any(portable_copy, miri)))))]
        { $($no)* }
    };
}

/// Copies `bytes` bytes from `from` to `to`. Other threads may access both ranges at the same time.
///
/// Takes as long as `memcpy` on x86-64, up to twice as long on AArch64, and about a nanosecond per byte
/// elsewhere.
///
/// # Safety
/// `from` must be readable and `to` writable for `bytes` bytes, and the two ranges must not overlap. During
/// the copy, other threads may read and write both ranges by the functions of this module, or by atomic
/// accesses of single bytes. Atomic accesses of whole words are allowed if [`IN_ASSEMBLY`] is true. Devices
/// may access both ranges as well. No reference to a range that is being written may be in use. `from` must
/// not come from a shared reference to plain data: use [`write()`] for that.
#[inline]
pub unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: guaranteed by the caller.
    unsafe { copy_by::<Shared, Shared>(from, to, bytes) }
}

/// Copies from memory that other threads may access at the same time to the whole private buffer `into`.
///
/// # Safety
/// The requirements of [`copy`] for the `into.len()` bytes from `from` on. Devices must not access `into`
/// during the copy.
#[inline]
pub unsafe fn read(from: *const u8, into: &mut [u8]) {
    // SAFETY: guaranteed by the caller; the exclusive borrow keeps other code away from `into`.
    unsafe { copy_by::<Shared, Private>(from, into.as_mut_ptr(), into.len()) }
}

/// Copies the whole private buffer `from` to memory that other threads may access at the same time.
///
/// # Safety
/// The requirements of [`copy`] for the `from.len()` bytes from `to` on. Devices must not write to `from`
/// during the copy.
#[inline]
pub unsafe fn write(to: *mut u8, from: &[u8]) {
    // SAFETY: guaranteed by the caller; the borrow keeps other code from writing to `from`.
    unsafe { copy_by::<Private, Shared>(from.as_ptr(), to, from.len()) }
}

/// Loads a word of 1, 2, 4 or 8 bytes by one relaxed atomic load.
///
/// # Safety
/// `bytes` must be 1, 2, 4 or 8. `at` must be readable for `bytes` bytes, and aligned to `bytes`. During the
/// load, other threads may write to the word only by [`change`] and [`store`], with the same length.
#[inline]
#[must_use]
pub unsafe fn load(at: *const u8, bytes: u32) -> u64 {
    // SAFETY: guaranteed by the caller.
    unsafe {
        match bytes {
            1 => (*at.cast::<AtomicU8>()).load(Ordering::Relaxed).into(),
            2 => (*at.cast::<AtomicU16>()).load(Ordering::Relaxed).into(),
            4 => (*at.cast::<AtomicU32>()).load(Ordering::Relaxed).into(),
            _ => (*at.cast::<AtomicU64>()).load(Ordering::Relaxed),
        }
    }
}

/// Stores a word of 1, 2, 4 or 8 bytes by one relaxed atomic store.
///
/// # Safety
/// `bytes` must be 1, 2, 4 or 8. `at` must be writable for `bytes` bytes, and aligned to `bytes`. During the
/// store, other threads may access the word only by this function, [`load`] and [`change`], with the same
/// length.
#[inline]
pub unsafe fn store(at: *mut u8, bytes: u32, word: u64) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        match bytes {
            1 => (*at.cast::<AtomicU8>()).store(word as u8, Ordering::Relaxed),
            2 => (*at.cast::<AtomicU16>()).store(word as u16, Ordering::Relaxed),
            4 => (*at.cast::<AtomicU32>()).store(word as u32, Ordering::Relaxed),
            _ => (*at.cast::<AtomicU64>()).store(word, Ordering::Relaxed),
        }
    }
}

/// Changes a word of 4 or 8 bytes by one relaxed atomic step, and returns the old word. The function may call
/// `change` more than once.
///
/// # Safety
/// `bytes` must be 4 or 8. `at` must be readable and writable for `bytes` bytes, and aligned to `bytes`.
/// Other threads may access the word meanwhile only by this function, [`load`] and [`store`], with the same
/// length.
#[inline]
pub unsafe fn change(at: *mut u8, bytes: u32, mut change: impl FnMut(u64) -> u64) -> u64 {
    let relaxed = Ordering::Relaxed;
    if bytes == 4 {
        // SAFETY: guaranteed by the caller.
        let word = unsafe { &*at.cast::<AtomicU32>() };
        let new = |old: u32| Some(change(old.into()) as u32);
        return word.fetch_update(relaxed, relaxed, new).unwrap_or_else(|old| old).into();
    }
    // SAFETY: guaranteed by the caller.
    let word = unsafe { &*at.cast::<AtomicU64>() };
    word.fetch_update(relaxed, relaxed, |old| Some(change(old))).unwrap_or_else(|old| old)
}

/// # Safety
/// The requirements of [`copy`]; and no other code writes to a private source, or accesses a private target.
#[inline]
unsafe fn copy_by<From: Side, To: Side>(from: *const u8, to: *mut u8, bytes: usize) {
    in_assembly! {{
        // SAFETY: guaranteed by the caller.
        unsafe { assembly::copy(from, to, bytes) }
    } else {
        // SAFETY: guaranteed by the caller.
        unsafe { copy_bytes::<From, To>(from, to, bytes) }
    }}
}

/// The kind of access to the source or target of a portable copy: atomic, or plain.
trait Side {
    /// # Safety
    /// `at` is readable, by the rules of the type that implements this trait.
    unsafe fn load(at: *const u8) -> u8;
    /// # Safety
    /// `at` is writable, by the rules of the type that implements this trait.
    unsafe fn store(at: *mut u8, byte: u8);
}

/// Atomic accesses, for memory that other code may read and write at the same time.
enum Shared {}

/// Plain accesses, for memory to which no other code writes, and which no other code reads if it is a target.
enum Private {}

impl Side for Shared {
    #[inline(always)]
    unsafe fn load(at: *const u8) -> u8 {
        // SAFETY: the caller guarantees it; likewise in the other functions.
        unsafe { (*at.cast::<AtomicU8>()).load(Ordering::Relaxed) }
    }
    #[inline(always)]
    unsafe fn store(at: *mut u8, byte: u8) {
        // SAFETY: as above.
        unsafe { (*at.cast::<AtomicU8>()).store(byte, Ordering::Relaxed) }
    }
}

impl Side for Private {
    #[inline(always)]
    unsafe fn load(at: *const u8) -> u8 {
        // SAFETY: as above.
        unsafe { *at }
    }
    #[inline(always)]
    unsafe fn store(at: *mut u8, byte: u8) {
        // SAFETY: as above.
        unsafe { *at = byte }
    }
}

/// True if [`copy`] is inline assembly. A copy of several words then accesses each aligned word by one
/// relaxed atomic access, so other threads may access the words atomically.
#[doc(hidden)]
pub const IN_ASSEMBLY: bool =
    cfg!(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(any(portable_copy, miri))));

/// Copies in inline assembly. Each copy behaves like a sequence of relaxed atomic byte accesses.
#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(any(portable_copy, miri))))]
mod assembly {
    use std::arch::asm;

    /// Number of bytes from which the string move (`rep movsb`) is fastest; its start costs about 30 cycles.
    #[cfg(target_arch = "x86_64")]
    const STRING_MOVE_BYTES: usize = 256;

    /// Moves one piece of memory through a register.
    macro_rules! through {
        ($class:ident, $load:literal, $store:literal, $from:expr, $to:expr) => {
            asm!(
                concat!($load, ", [{from}]"),
                $store,
                from = in(reg) $from,
                to = in(reg) $to,
                piece = out($class) _,
                options(nostack, preserves_flags)
            )
        };
    }

    /// Moves a piece of the given length in bytes through a register.
    #[cfg(target_arch = "x86_64")]
    #[rustfmt::skip]
    macro_rules! piece {
        (1, $from:expr, $to:expr) => { through!(reg_byte, "mov {piece}", "mov [{to}], {piece}", $from, $to) };
        (2, $from:expr, $to:expr) => { through!(reg, "mov {piece:x}", "mov [{to}], {piece:x}", $from, $to) };
        (4, $from:expr, $to:expr) => { through!(reg, "mov {piece:e}", "mov [{to}], {piece:e}", $from, $to) };
        (8, $from:expr, $to:expr) => { through!(reg, "mov {piece}", "mov [{to}], {piece}", $from, $to) };
        (16, $from:expr, $to:expr) => {
            through!(xmm_reg, "movdqu {piece}", "movdqu [{to}], {piece}", $from, $to)
        };
    }

    /// Moves a piece of the given length in bytes through a register.
    #[cfg(target_arch = "aarch64")]
    #[rustfmt::skip]
    macro_rules! piece {
        (1, $from:expr, $to:expr) => { through!(reg, "ldrb {piece:w}", "strb {piece:w}, [{to}]", $from, $to) };
        (2, $from:expr, $to:expr) => { through!(reg, "ldrh {piece:w}", "strh {piece:w}, [{to}]", $from, $to) };
        (4, $from:expr, $to:expr) => { through!(reg, "ldr {piece:w}", "str {piece:w}, [{to}]", $from, $to) };
        (8, $from:expr, $to:expr) => { through!(reg, "ldr {piece:x}", "str {piece:x}, [{to}]", $from, $to) };
        (16, $from:expr, $to:expr) => { through!(vreg, "ldr {piece:q}", "str {piece:q}, [{to}]", $from, $to) };
    }

    /// # Safety
    /// The requirements of [`super::copy`].
    #[inline]
    pub(super) unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
        /// Moves the first and the last `$size` bytes of a range; the two pieces may overlap.
        macro_rules! both_ends {
            ($size:tt) => {{
                // SAFETY: the caller guarantees both ranges, which have at least `$size` bytes.
                unsafe {
                    piece!($size, from, to);
                    piece!($size, from.add(bytes - $size), to.add(bytes - $size));
                }
            }};
        }
        match bytes {
            0 => {}
            1 => both_ends!(1),
            2..4 => both_ends!(2),
            4..8 => both_ends!(4),
            8..16 => both_ends!(8),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: guaranteed by the caller.
            16..STRING_MOVE_BYTES => unsafe { pieces(from, to, bytes) },
            // SAFETY: the caller guarantees both ranges. The direction flag is clear by the ABI.
            #[cfg(target_arch = "x86_64")]
            _ => unsafe {
                asm!(
                    "rep movsb",
                    inout("rcx") bytes => _,
                    inout("rsi") from => _,
                    inout("rdi") to => _,
                    options(nostack, preserves_flags)
                );
            },
            // SAFETY: guaranteed by the caller.
            #[cfg(target_arch = "aarch64")]
            _ => unsafe { pieces(from, to, bytes) },
        }
    }

    /// # Safety
    /// The requirements of [`super::copy`], of at least 16 bytes.
    #[inline(always)]
    unsafe fn pieces(from: *const u8, to: *mut u8, bytes: usize) {
        let mut done = 0;
        while bytes - done > 16 {
            // SAFETY: the caller guarantees both ranges; `done + 16` is inside.
            unsafe { piece!(16, from.add(done), to.add(done)) };
            done += 16;
        }
        // SAFETY: as above; there are at least 16 bytes.
        unsafe { piece!(16, from.add(bytes - 16), to.add(bytes - 16)) };
    }

    /// # Safety
    /// The requirements of [`super::fill`].
    #[inline]
    #[cfg(target_arch = "x86_64")]
    pub(super) unsafe fn fill(to: *mut u8, byte: u8, bytes: usize) {
        // SAFETY: the caller guarantees the range. The direction flag is clear by the ABI.
        unsafe {
            asm!(
                "rep stosb",
                inout("rcx") bytes => _,
                in("al") byte,
                inout("rdi") to => _,
                options(nostack, preserves_flags)
            );
        }
    }

    /// # Safety
    /// The requirements of [`super::fill`].
    #[inline]
    #[cfg(target_arch = "aarch64")]
    pub(super) unsafe fn fill(to: *mut u8, byte: u8, bytes: usize) {
        let word = u64::from_ne_bytes([byte; 8]);
        let words = bytes / 16 * 16;
        for at in (0..words).step_by(16) {
            // SAFETY: the caller guarantees the range; `at + 16` is inside.
            unsafe {
                asm!(
                    "stp {word}, {word}, [{to}]",
                    word = in(reg) word,
                    to = in(reg) to.add(at),
                    options(nostack, preserves_flags)
                );
            }
        }
        for at in words..bytes {
            // SAFETY: as above.
            unsafe {
                asm!(
                    "strb {word:w}, [{to}]",
                    word = in(reg) word,
                    to = in(reg) to.add(at),
                    options(nostack, preserves_flags)
                );
            }
        }
    }
}

/// The portable copy, byte by byte.
///
/// # Safety
/// The requirements of [`copy_by`].
#[cfg_attr(not(any(portable_copy, miri)), allow(dead_code, reason = "most machines copy in assembly"))]
unsafe fn copy_bytes<From: Side, To: Side>(from: *const u8, to: *mut u8, bytes: usize) {
    for i in 0..bytes {
        // SAFETY: `i` is within the ranges that the caller guarantees.
        unsafe { To::store(to.add(i), From::load(from.add(i))) };
    }
}

/// Writes `byte` to each of the `bytes` bytes from `to` on. Other threads may access them at the same time.
///
/// # Safety
/// The requirements of [`copy`] for the range `to`.
#[inline]
pub unsafe fn fill(to: *mut u8, byte: u8, bytes: usize) {
    in_assembly! {{
        // SAFETY: guaranteed by the caller.
        unsafe { assembly::fill(to, byte, bytes) }
    } else {
        for i in 0..bytes {
            // SAFETY: `i < bytes`.
            unsafe { Shared::store(to.add(i), byte) };
        }
    }}
}

/// Overwrites memory with zeroes before its release; the compiler does not remove these writes. The function
/// does not write bytes that are zero already, because a write would make the system allocate pages that the
/// program never touched.
///
/// # Safety
/// The `bytes` bytes from `address` on are initialised and writable, and neither other threads nor work in
/// flight access them.
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
    use std::cell::UnsafeCell;

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

    /// Copies `bytes` bytes by each of the functions.
    ///
    /// # Safety
    /// The requirements of [`copy`].
    unsafe fn copy_in_way(way: usize, from: *mut u8, to: *mut u8, bytes: usize) {
        // SAFETY: guaranteed by the caller; this test alone uses both ranges.
        unsafe {
            let private_from = || std::slice::from_raw_parts(from, bytes);
            match way {
                0 => copy(from, to, bytes),
                1 => read(from, std::slice::from_raw_parts_mut(to, bytes)),
                2 => write(to, private_from()),
                3 => copy_bytes::<Shared, Shared>(from, to, bytes),
                4 => copy_bytes::<Shared, Private>(from, to, bytes),
                _ => copy_bytes::<Private, Shared>(private_from().as_ptr(), to, bytes),
            }
        }
    }

    /// Places of a side relative to an aligned place, and lengths. An interpreter has time for a few.
    const PLACES: std::ops::Range<usize> = if cfg!(miri) { 7..9 } else { 0..9 };
    const LENGTHS: std::ops::Range<usize> = if cfg!(miri) { 15..18 } else { 0..140 };
    const ROOM: usize = if cfg!(miri) { 64 } else { 700 };
    const LONG: &[usize] = if cfg!(miri) { &[] } else { &[255, 256, 257, 600] };

    #[test]
    fn every_alignment_and_length_is_copied_and_nothing_else() {
        let mut from: Vec<u8> = (0..ROOM).map(|i| (i * 7 + 3) as u8).collect();
        for (a, b) in PLACES.flat_map(|a| PLACES.map(move |b| (a, b))) {
            for bytes in LENGTHS.chain(LONG.iter().copied()) {
                for way in 0..6 {
                    let mut to = vec![0xEE_u8; ROOM];
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
        for (start, bytes) in PLACES.flat_map(|s| LENGTHS.map(move |n| (s, n))) {
            let mut to = vec![0xEE_u8; ROOM];
            // SAFETY: the vector is longer than offset plus length.
            unsafe { fill(to.as_mut_ptr().add(start), 5, bytes) };
            assert!(to[start..start + bytes].iter().all(|&x| x == 5));
            assert!(to[..start].iter().chain(&to[start + bytes..]).all(|&x| x == 0xEE));
        }
    }

    /// The test needs an interpreter or a sanitizer to find errors.
    #[test]
    fn copies_that_race_may_be_of_any_alignment_and_length() {
        #[repr(align(8))]
        struct Aligned([u8; 64]);
        struct Racing(UnsafeCell<Aligned>);
        // SAFETY: the threads below access it by the functions of this module only.
        unsafe impl Sync for Racing {}
        let [racing, other] = [(); 2].map(|()| Racing(UnsafeCell::new(Aligned([0; 64]))));
        std::thread::scope(|threads| {
            for skew in 0..3_usize {
                let (racing, other) = (&racing, &other);
                threads.spawn(move || {
                    let (at, mut own) = (racing.0.get().cast::<u8>(), Aligned([skew as u8; 64]));
                    let own = &mut own.0;
                    for from in 0..4 {
                        // SAFETY: `from + skew + 40` is inside of both sides, and the two shared ones are
                        // distinct.
                        unsafe {
                            write(at.add(from), &own[skew..skew + 40]);
                            read(at.add(from + skew), &mut own[skew..skew + 40]);
                            copy(at.add(from), other.0.get().cast::<u8>().add(skew), 40);
                            fill(at.add(from + skew), 7, 40);
                        }
                    }
                });
            }
        });
    }
}
