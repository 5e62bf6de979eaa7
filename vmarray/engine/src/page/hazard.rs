//! Hazard slots: a thread announces the page that it accesses, by a plain store without a locked instruction.
//!
//! Each thread has one [`HazardSlot`]. For the few nanoseconds of a lock-free access it holds the address of
//! the page's entry. The access then checks the entry's gate (a word that allows lock-free access) and
//! continues only if the gate is open. A thread that wants to evict or lock the page first shuts the gate,
//! then issues a barrier on all cores ([`barrier::heavy`]), then waits until no slot names the page. Either
//! the access sees the shut gate and backs off, or the thread that shut the gate sees the slot.
//!
//! These are hazard pointers (M. Michael, "Hazard Pointers: Safe Memory Reclamation for Lock-Free Objects",
//! 2004) with Linux's asymmetric fence `membarrier`.

use super::barrier;
use super::entry::Entry;
use super::sync::{AtomicUsize, Ordering};

/// The kind of lock-free accesses that must end before a thread continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HazardAccess {
    /// Lock-free writes only.
    Writes,
    /// Lock-free reads and writes.
    All,
}

/// The memory in which a thread announces the page that it accesses.
#[derive(Debug)]
pub struct HazardSlot {
    reading: AtomicUsize,
    writing: AtomicUsize,
}

impl HazardSlot {
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self { reading: AtomicUsize::new(0), writing: AtomicUsize::new(0) }
    }

    #[cfg(loom)]
    pub fn new() -> Self {
        Self { reading: AtomicUsize::new(0), writing: AtomicUsize::new(0) }
    }

    /// Announces a read of a page. The caller then checks the entry's read gate (open for lock-free reads),
    /// reads, and calls [`leave_read`](Self::leave_read).
    ///
    /// The store is a release, like that of `leave_read`. A thread that waits for the end of one access may
    /// see only the next announcement. The release ensures that this thread then also sees the effects of the
    /// first access.
    #[inline(always)]
    pub fn enter_read(&self, entry: *const Entry) {
        self.reading.store(entry.addr(), Ordering::Release);
        barrier::light();
    }

    /// Ends the announcement of a read.
    #[inline(always)]
    pub fn leave_read(&self) {
        self.reading.store(0, Ordering::Release);
    }

    /// Announces a write to a page. The caller then checks the entry's write gate (open for lock-free
    /// writes), writes, and calls [`leave_write`](Self::leave_write). The store is a release, as in
    /// [`enter_read`](Self::enter_read).
    #[inline(always)]
    pub fn enter_write(&self, entry: *const Entry) {
        self.writing.store(entry.addr(), Ordering::Release);
        barrier::light();
    }

    /// Ends the announcement of a write.
    #[inline(always)]
    pub fn leave_write(&self) {
        self.writing.store(0, Ordering::Release);
    }

    /// Returns true if the slot announces such an access to the entry. If not, acquires the effects of the
    /// thread's last one.
    pub(super) fn names(&self, entry: *const Entry, access: HazardAccess) -> bool {
        self.writing.load(Ordering::Acquire) == entry.addr()
            || (access == HazardAccess::All && self.reading.load(Ordering::Acquire) == entry.addr())
    }
}

/// Waits until `slot` announces no access of the kind `access` to the page. The caller has shut the entry's
/// gates, so no new lock-free access begins, and has then called [`barrier::heavy`].
pub fn drain(slot: &HazardSlot, entry: *const Entry, access: HazardAccess) {
    let mut turns = 0;
    while slot.names(entry, access) {
        turns += 1;
        barrier::relax(turns);
    }
}
