//! The packed atomic state of one page: a 64-bit word of flags and counts. The *home slot* is the page's
//! place in device memory. An open *gate* allows lock-free accesses to the page's frame (cache buffer).
//!
//! | bits | name | meaning |
//! |---|---|---|
//! | 0 | `RESIDENT` | the page has a frame; the entry's address is valid |
//! | 1 | `USED` | recently used through a latch. A sweep of the cache clears this bit and shuts the gates |
//! | 2 | `READERS` | the read gate may be open, lock-free reads may be under way |
//! | 3 | `WRITERS` | the write gate may be open, lock-free writes may be under way. Implies `DIRTY` |
//! | 4 | `DIRTY` | the frame is newer than the home slot |
//! | 5 | `EXCLUSIVE` | one thread, or one transfer, holds the page exclusively |
//! | 6 | `IN_FLIGHT` | a transfer of the page's channel loads it (with `EXCLUSIVE`) or writes it back (with a pin) |
//! | 7 | `WAITED` | a thread sleeps until the page is released |
//! | 8 | `HOME` | the home slot has contents; without it the page reads as zeroes and is never fetched |
//! | 9 | `AHEAD` | loaded ahead of need and not used yet |
//! | 10 | `WRITER_PENDING` | a thread waits for an exclusive hold; new shared holds wait for its end |
//! | 11..21 | pins | number of holds that the library ends itself: copies, write-back |
//! | 21..31 | guards | number of holds that the program ends. With `EXCLUSIVE`, the only hold is a guard |
//! | 31 | `ZEROED` | the home slot contains zeroes, but the page has no contents yet (no `HOME`) |
//! | 32 | `UNSAVED` | a snapshot must still save the page; until then no thread takes the page to change it |
//! | 33..64 | version | changes with each exclusive release, so that a reader detects a concurrent write. It misses the write only after exactly 2^31 releases |
//!
//! A thread that holds a pin or a guard without `EXCLUSIVE` shares the page: the page stays resident, and no
//! thread writes to it through a latch. `EXCLUSIVE` excludes all other holders. If a page has pins, a thread
//! can take it exclusively only to load it; the pins of an absent page are readers of its home slot.
//!
//! A thread sets `READERS` and `WRITERS` *before* it opens a gate. Only a holder clears them, after it has
//! shut the gate, issued a barrier and checked all hazard slots. So a thread that finds one of them clear
//! need not wait for lock-free accesses.

use std::fmt;

pub const RESIDENT: u64 = 1 << 0;
pub const USED: u64 = 1 << 1;
pub const READERS: u64 = 1 << 2;
pub const WRITERS: u64 = 1 << 3;
pub const DIRTY: u64 = 1 << 4;
pub const EXCLUSIVE: u64 = 1 << 5;
pub const IN_FLIGHT: u64 = 1 << 6;
pub const WAITED: u64 = 1 << 7;
pub const HOME: u64 = 1 << 8;
pub const AHEAD: u64 = 1 << 9;
pub const WRITER_PENDING: u64 = 1 << 10;
pub const ZEROED: u64 = 1 << 31;
pub const UNSAVED: u64 = 1 << 32;

const COUNT_BITS: u32 = 10;
pub(super) const COUNT_MAX: u64 = (1 << COUNT_BITS) - 1;
const PIN_SHIFT: u32 = 11;
const GUARD_SHIFT: u32 = PIN_SHIFT + COUNT_BITS;
const VERSION_SHIFT: u32 = 33;

/// One pin in the state word: added when a thread pins the page, subtracted when it unpins.
pub const PIN: u64 = 1 << PIN_SHIFT;
/// One guard in the state word: added when the program gets a guard of the page, subtracted at its drop.
pub const GUARD: u64 = 1 << GUARD_SHIFT;
/// One step of the version in the state word.
pub const VERSION: u64 = 1 << VERSION_SHIFT;

/// The bits by which a reader of a huge element detects a concurrent writer: exclusive hold and version.
const VALIDATED: u64 = EXCLUSIVE | !(VERSION - 1);

/// A value of a page's atomic state word.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct State(pub u64);

impl State {
    #[inline]
    pub fn has(self, bits: u64) -> bool {
        self.0 & bits == bits
    }

    #[inline]
    pub fn any(self, bits: u64) -> bool {
        self.0 & bits != 0
    }

    #[inline]
    pub fn pins(self) -> u64 {
        (self.0 >> PIN_SHIFT) & COUNT_MAX
    }

    #[inline]
    pub fn guards(self) -> u64 {
        (self.0 >> GUARD_SHIFT) & COUNT_MAX
    }

    /// Returns true if a thread holds the page for shared use.
    #[inline]
    pub fn shared(self) -> bool {
        self.any((COUNT_MAX << PIN_SHIFT) | (COUNT_MAX << GUARD_SHIFT))
    }

    /// Returns true if the state word can count one more holder.
    #[inline]
    pub fn has_room(self) -> bool {
        self.pins() < COUNT_MAX && self.guards() < COUNT_MAX
    }

    /// Returns true if a thread that wants the page (exclusively or shared) must sleep until its release.
    /// Returns false if the thread can help with a transfer, or ask the snapshot that marked the page.
    #[inline]
    pub fn is_held_against(self, exclusive: bool) -> bool {
        let is_in_the_way = if exclusive { self.shared() } else { self.any(WRITER_PENDING) };
        (self.any(EXCLUSIVE) || !self.has_room() || is_in_the_way)
            && !self.any(IN_FLIGHT)
            && !(exclusive && self.any(UNSAVED))
    }

    /// Returns the version, which changes with each release of an exclusive hold.
    #[inline]
    pub fn version(self) -> u64 {
        self.0 >> VERSION_SHIFT
    }

    /// Returns true if the state is consistent. A dirty page has a frame, a page with possible lock-free
    /// writers is dirty, and a transfer holds the page exclusively or by a pin. So at most one of home slot
    /// (in device memory) and frame is newer, and neither changes during a transfer.
    #[inline]
    pub fn is_coherent(self) -> bool {
        (!self.any(DIRTY) || self.any(RESIDENT))
            && (!self.any(WRITERS) || self.any(DIRTY))
            && (!self.any(IN_FLIGHT) || self.any(EXCLUSIVE) || self.pins() > 0)
            && !self.has(HOME | ZEROED)
    }

    /// Returns true if no thread held the page exclusively at any time between this state and `later`.
    #[inline]
    pub fn validates(self, later: State) -> bool {
        !self.any(EXCLUSIVE) && (self.0 ^ later.0) & VALIDATED == 0
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [&str; 11] = [
            "resident",
            "used",
            "readers",
            "writers",
            "dirty",
            "exclusive",
            "in-flight",
            "waited",
            "home",
            "ahead",
            "writer-pending",
        ];
        f.write_str("State(")?;
        for (bit, name) in NAMES.iter().enumerate().filter(|(bit, _)| self.any(1 << bit)) {
            write!(f, "{}{name}", if self.0 & ((1 << bit) - 1) == 0 { "" } else { "|" })?;
        }
        let unsaved = if self.any(UNSAVED) { "|unsaved" } else { "" };
        write!(
            f,
            "{unsaved} pins={} guards={} version={})",
            self.pins(),
            self.guards(),
            self.0 >> VERSION_SHIFT
        )
    }
}
