//! The entry of one page in the page table, and every way in which its state may change.
//!
//! This file holds transitions only; waiting, transfers and the choice of victims are elsewhere. Each method
//! is one read-modify-write of the state word, plus the gates; so the table in [`state`](super::state) and
//! the methods here are the whole protocol.
//!
//! A *gate* is a word that holds the address of the page's frame while lock-free accesses are allowed, else
//! null. Gates are opened only by a holder of the page (pin, guard or `EXCLUSIVE`; the write gate only under
//! `EXCLUSIVE`), and may be shut by anybody at any time.

use super::state::{
    AHEAD, DIRTY, EXCLUSIVE, GUARD, HOME, IN_FLIGHT, PIN, READERS, RESIDENT, State, UNSAVED, USED, VERSION,
    WAITED, WRITER_PENDING, WRITERS, ZEROED,
};
use super::sync::{AtomicPtr, AtomicU64, Ordering, fence};

/// Who will let go of a page again: this library by itself, or the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    Pin,
    Guard,
}

impl Holder {
    fn unit(self) -> u64 {
        match self {
            Self::Pin => PIN,
            Self::Guard => GUARD,
        }
    }
}

/// Why a page was not to be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It has no frame.
    Absent,
    /// Somebody is in the way; the state at that moment.
    Busy(State),
}

/// What a sweep of the cache found at a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sweep {
    /// It was used since the last sweep; that has been noted down and it gets another chance.
    SecondChance,
    /// It is in use now.
    Busy,
    /// It is clean; the caller has it exclusively now. The state before.
    Claimed(State),
    /// It is dirty; the caller holds a pin for a write-back now. The state before.
    WriteBack(State),
}

/// A page table's entry: gates, state and address.
#[derive(Debug)]
#[repr(C, align(32))]
pub(crate) struct Entry {
    read_gate: AtomicPtr<u8>,
    write_gate: AtomicPtr<u8>,
    state: AtomicU64,
    /// The first byte of the page's frame. Written only by the thread that holds the page exclusively, while
    /// no lock-free access can be under way; valid while the page is resident.
    address: AtomicPtr<u8>,
}

impl Entry {
    /// Of an absent page; what zeroed memory is, which tables are made of.
    #[cfg(test)]
    pub(crate) fn new() -> Self {
        Self {
            read_gate: AtomicPtr::new(std::ptr::null_mut()),
            write_gate: AtomicPtr::new(std::ptr::null_mut()),
            state: AtomicU64::new(0),
            address: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    #[inline]
    pub(crate) fn state(&self, order: Ordering) -> State {
        State(self.state.load(order))
    }

    /// Reads an element of the page, by accesses that may race with a latched writer; `None` if one was at
    /// work.
    #[inline(always)]
    pub(crate) fn read_validated<R>(&self, read: impl FnOnce() -> R) -> Option<R> {
        let before = self.state(Ordering::Acquire);
        let value = read();
        fence(Ordering::Acquire);
        before.validates(self.state(Ordering::Relaxed)).then_some(value)
    }

    /// Reads several elements of the page, by accesses that may race with writers; `None` if one may have
    /// been at work. Latched writers are found out about as in [`read_validated`](Self::read_validated);
    /// those without a lock leave no trace, so nothing is read of a page that is open to them. To open it a
    /// thread has to have it exclusively, which who sees anything that they wrote sees as well.
    #[inline(always)]
    pub(crate) fn read_undisturbed<R>(&self, read: impl FnOnce() -> R) -> Option<R> {
        let before = self.state(Ordering::Acquire);
        if before.any(WRITERS | EXCLUSIVE) {
            return None;
        }
        let value = read();
        fence(Ordering::Acquire);
        before.validates(self.state(Ordering::Relaxed)).then_some(value)
    }

    #[inline]
    pub(crate) fn address(&self) -> *mut u8 {
        self.address.load(Ordering::Relaxed)
    }

    /// The frame, if lock-free reads are allowed, else null. Looked at under a hazard slot.
    #[inline(always)]
    pub(crate) fn read_gate(&self) -> *mut u8 {
        self.read_gate.load(Ordering::Acquire)
    }

    /// The frame, if lock-free writes are allowed, else null. Looked at under a hazard slot.
    #[inline(always)]
    pub(crate) fn write_gate(&self) -> *mut u8 {
        self.write_gate.load(Ordering::Acquire)
    }

    /// Applies `change` until it is either applied undisturbed or refused.
    fn transition<E>(&self, mut change: impl FnMut(State) -> Result<u64, E>) -> Result<State, E> {
        let mut state = self.state.load(Ordering::Relaxed);
        loop {
            let next = change(State(state))?;
            debug_assert!(State(next).is_coherent(), "{:?} becomes {:?}", State(state), State(next));
            match self.state.compare_exchange_weak(state, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Ok(State(state)),
                Err(seen) => state = seen,
            }
        }
    }

    fn change(&self, mut change: impl FnMut(State) -> u64) -> State {
        match self.transition(|s| Ok::<_, std::convert::Infallible>(change(s))) {
            Ok(before) => before,
        }
    }

    /// Shares a resident page: no latched write happens meanwhile. If the returned earlier state has
    /// `WRITERS`, lock-free writes may go on until [`shut_writes`](Self::shut_writes), a barrier and a look
    /// at the hazard slots; if it has `WAITED` and the holder is a guard, sleepers are to be woken, since
    /// they may not be allowed to wait for guards.
    ///
    /// Sharers queue up behind somebody who wants the page exclusively, unless they are `barging`: threads
    /// that hold guards must not wait for somebody who might wait for them.
    pub(crate) fn try_share(&self, holder: Holder, barging: bool) -> Result<State, Refusal> {
        self.transition(|s| match s {
            s if s.any(EXCLUSIVE) || !s.has_room() => Err(Refusal::Busy(s)),
            s if !s.has(RESIDENT) => Err(Refusal::Absent),
            s if s.any(WRITER_PENDING) && !barging => Err(Refusal::Busy(s)),
            s => {
                let next = (s.0 | USED) & !AHEAD;
                Ok((if holder == Holder::Guard { next & !WAITED } else { next }) + holder.unit())
            }
        })
    }

    /// Keeps an absent page's home slot from being written to. `Ok` tells whether the slot has contents.
    /// Queues up as [`try_share`](Self::try_share) does.
    pub(crate) fn try_share_home(&self, barging: bool) -> Result<bool, Refusal> {
        self.transition(|s| match s {
            s if s.any(EXCLUSIVE | RESIDENT) || !s.has_room() => Err(Refusal::Busy(s)),
            s if s.any(WRITER_PENDING) && !barging => Err(Refusal::Busy(s)),
            s => Ok(s.0 + PIN),
        })
        .map(|s| s.has(HOME))
    }

    /// Ends a share. Tells whether sleepers are to be woken.
    #[must_use]
    pub(crate) fn unshare(&self, holder: Holder) -> bool {
        let unit = holder.unit();
        let last = |s: State| !State(s.0 - unit).shared();
        // The last to go wakes threads that want the page exclusively; one who made room, threads that want
        // to share.
        let wakes = |s: State| last(s) || !s.has_room();
        let before = self.change(|s| {
            let next = s.0 - unit;
            if wakes(s) { next & !WAITED } else { next }
        });
        before.any(WAITED) && wakes(before)
    }

    /// Takes a resident page for one thread alone: no other holder, no latched write. What its earlier state,
    /// which is returned, has of `READERS` and `WRITERS` may go on until the gates are shut and drained. As
    /// for [`try_share`](Self::try_share), a guard wakes sleepers. Refused as long as a snapshot has not
    /// saved the page.
    #[inline]
    pub(crate) fn try_exclusive(&self, holder: Holder) -> Result<State, Refusal> {
        self.transition(|s| match s {
            s if s.any(EXCLUSIVE | UNSAVED) || s.shared() => Err(Refusal::Busy(s)),
            s if !s.has(RESIDENT) => Err(Refusal::Absent),
            s => {
                let next = (s.0 | USED | EXCLUSIVE) & !(AHEAD | WRITER_PENDING);
                Ok(if holder == Holder::Guard { (next & !WAITED) + GUARD } else { next })
            }
        })
    }

    /// Takes an absent page for one thread or transfer alone. The state before, which tells what the home
    /// slot holds.
    ///
    /// `readers_stay` allows it while others read the home slot: right for loading what will be shared at
    /// first, wrong for writing to the slot, and for loading what will be written to and may then be written
    /// back. So it is while a snapshot has not saved the page.
    pub(crate) fn try_claim_absent(&self, readers_stay: bool) -> Result<State, Refusal> {
        let may_stay = |s: State| readers_stay || !(s.shared() || s.any(UNSAVED));
        self.transition(|s| match s {
            s if s.any(EXCLUSIVE | RESIDENT) || !may_stay(s) => Err(Refusal::Busy(s)),
            // The thread that has it loaded becomes one more of threads that share it.
            s if !s.has_room() => Err(Refusal::Busy(s)),
            s => Ok(s.0 | EXCLUSIVE),
        })
    }

    /// Takes an absent page without contents for one thread that writes zeroes to its home slot, which
    /// changes nothing that a snapshot could see.
    pub(crate) fn try_claim_to_zero(&self) -> Result<State, Refusal> {
        self.transition(|s| match s {
            s if s.any(EXCLUSIVE | RESIDENT | HOME) || s.shared() => Err(Refusal::Busy(s)),
            s => Ok(s.0 | EXCLUSIVE),
        })
    }

    /// Takes an absent page for one thread to load it; `readers_stay` as for
    /// [`try_claim_absent`](Self::try_claim_absent). If the slot has contents the page is at once
    /// [marked](Self::mark_in_flight) as subject of a transfer. The state before; if that has
    /// [`WAITED`] and the slot contents, sleepers are to be woken.
    pub(crate) fn claim_to_load(&self, readers_stay: bool) -> Result<State, Refusal> {
        self.transition(|s| match s {
            s if s.any(EXCLUSIVE | RESIDENT) || !s.has_room() => Err(Refusal::Busy(s)),
            s if !readers_stay && (s.shared() || s.any(UNSAVED)) => Err(Refusal::Busy(s)),
            s if s.has(HOME) => Ok((s.0 | EXCLUSIVE | IN_FLIGHT) & !WAITED),
            s => Ok(s.0 | EXCLUSIVE),
        })
    }

    /// Marks a page that the caller holds as subject of a transfer that others can find and finish. Tells
    /// whether sleepers are to be woken, to help.
    #[must_use]
    pub(crate) fn mark_in_flight(&self) -> bool {
        let now = self.state(Ordering::Relaxed);
        if now.has(IN_FLIGHT) && !now.any(WAITED) {
            // As it has been for threads that look already.
            return false;
        }
        self.change(|s| (s.0 | IN_FLIGHT) & !WAITED).any(WAITED)
    }

    /// Gives an absent page, held exclusively, its frame. Still exclusive afterwards.
    pub(crate) fn install(&self, address: *mut u8) {
        self.address.store(address, Ordering::Relaxed);
        self.change(|s| (s.0 | RESIDENT) & !(IN_FLIGHT | WRITER_PENDING));
    }

    /// Gives an absent page, held exclusively, its frame, and ends the hold: [`install`](Self::install) and
    /// [`release_exclusive`](Self::release_exclusive) of a pin in one.
    #[must_use]
    pub(crate) fn install_and_release(&self, address: *mut u8, add: u64) -> bool {
        self.address.store(address, Ordering::Relaxed);
        self.change(|s| {
            debug_assert!(s.has(EXCLUSIVE) && !s.any(RESIDENT), "{s:?}");
            (s.0 & !(EXCLUSIVE | WAITED | IN_FLIGHT | WRITER_PENDING) | RESIDENT | add).wrapping_add(VERSION)
        })
        .any(WAITED)
    }

    /// Hands an exclusive hold over to a guard, or does nothing. Tells whether sleepers are to be woken.
    #[must_use]
    pub(crate) fn hold_exclusive(&self, holder: Holder) -> bool {
        holder == Holder::Guard && self.change(|s| (s.0 & !WAITED) + GUARD).any(WAITED)
    }

    /// Declares a page dirty that the caller holds exclusively.
    pub(crate) fn mark_dirty(&self) {
        self.change(|s| s.0 | DIRTY);
    }

    /// Notes that the home slot of a page that the caller holds has zeroes.
    pub(crate) fn home_is_zeroed(&self) {
        self.change(|s| s.0 | ZEROED);
    }

    /// Notes that the home slot of a page that the caller holds exclusively may have anything, before it is
    /// written to.
    pub(crate) fn home_is_unknown(&self) {
        self.change(|s| s.0 & !ZEROED);
    }

    /// Asks sharers to wait. The thread that does so goes on trying until the page is theirs, or [gives
    /// up](Self::give_up). Without effect while a snapshot has to read the page.
    pub(crate) fn set_writer_pending(&self) {
        self.change(|s| if s.any(UNSAVED) { s.0 } else { s.0 | WRITER_PENDING });
    }

    /// Has nobody take the page any more to change it; the thread that has it goes on. Nobody is in the way
    /// of those that read it. Tells whether sleepers are to be woken, who wait for something else now.
    #[must_use]
    pub(crate) fn begin_saving(&self) -> bool {
        self.change(|s| (s.0 | UNSAVED) & !(WRITER_PENDING | WAITED)).any(WAITED)
    }

    /// Lets threads change the page again. Tells whether sleepers are to be woken.
    #[must_use]
    pub(crate) fn end_saving(&self) -> bool {
        self.change(|s| s.0 & !(UNSAVED | WAITED)).any(WAITED)
    }

    /// Lets sharers in again. Others who want the page ask anew when they are woken. Tells whether sleepers
    /// are to be woken.
    #[must_use]
    pub(crate) fn give_up(&self) -> bool {
        self.change(|s| s.0 & !(WRITER_PENDING | WAITED)).any(WAITED)
    }

    /// Ends an exclusive hold and adds bits (`DIRTY`, `HOME`, `AHEAD`, …). Tells whether sleepers are to be
    /// woken.
    #[must_use]
    #[inline]
    pub(crate) fn release_exclusive(&self, holder: Holder, add: u64) -> bool {
        self.change(|s| {
            debug_assert!(s.has(EXCLUSIVE), "{s:?}");
            let guard = if holder == Holder::Guard { GUARD } else { 0 };
            ((s.0 & !(EXCLUSIVE | WAITED | IN_FLIGHT) | add) - guard).wrapping_add(VERSION)
        })
        .any(WAITED)
    }

    /// Says what the home slot of a page has that nobody has used: contents (`HOME`), or zeroes (`ZEROED`).
    pub(crate) fn begin_with(&self, home: u64) {
        debug_assert!(home == HOME || home == ZEROED, "{home:x}");
        self.change(|s| s.0 | home);
    }

    /// Ends an exclusive hold of an absent page whose home slot was written to. Tells whether sleepers are to
    /// be woken.
    #[must_use]
    #[inline]
    pub(crate) fn release_written(&self) -> bool {
        self.change(|s| {
            debug_assert!(s.has(EXCLUSIVE) && !s.any(RESIDENT), "{s:?}");
            (s.0 & !(EXCLUSIVE | WAITED | IN_FLIGHT | ZEROED) | HOME).wrapping_add(VERSION)
        })
        .any(WAITED)
    }

    /// Turns an exclusive hold into a shared one. Tells whether sleepers are to be woken.
    #[must_use]
    pub(crate) fn downgrade(&self, holder: Holder) -> bool {
        self.change(|s| {
            ((s.0 & !(EXCLUSIVE | WAITED | IN_FLIGHT)) | USED).wrapping_add(holder.unit() + VERSION)
        })
        .any(WAITED)
    }

    /// Takes the frame from a page that is held exclusively and has no lock-free access under way, and
    /// releases it. `forget` also declares the home slot empty. Tells whether sleepers are to be woken.
    #[must_use]
    pub(crate) fn unmap(&self, forget: bool) -> bool {
        self.lose_frame(EXCLUSIVE | if forget { HOME | ZEROED } else { 0 })
    }

    /// As [`unmap`](Self::unmap), but the caller goes on to hold the page, which is absent now.
    #[must_use]
    pub(crate) fn unmap_and_keep(&self) -> bool {
        self.lose_frame(0)
    }

    fn lose_frame(&self, clear: u64) -> bool {
        let of_frames = RESIDENT | USED | READERS | WRITERS | DIRTY | IN_FLIGHT | AHEAD;
        let clear = clear | of_frames | WAITED | WRITER_PENDING;
        self.change(|s| {
            debug_assert!(s.has(EXCLUSIVE) && !s.any(READERS | WRITERS), "{s:?}");
            (s.0 & !clear).wrapping_add(VERSION)
        })
        .any(WAITED)
    }

    /// Whether it was used since the last sweep, or use of it was [forgotten](Self::forget_use).
    pub(crate) fn is_used(&self) -> bool {
        self.seems_used(self.state(Ordering::Relaxed))
    }

    /// The same, by a state of it.
    fn seems_used(&self, state: State) -> bool {
        state.any(USED) || !self.read_gate.load(Ordering::Relaxed).is_null()
    }

    /// Has the next sweep take it for unused, unless there are lock-free accesses.
    pub(crate) fn forget_use(&self) {
        self.change(|s| s.0 & !USED);
    }

    /// Opens the page to lock-free reads. The caller holds it.
    pub(crate) fn open_reads(&self) {
        self.change(|s| s.0 | READERS);
        self.read_gate.store(self.address(), Ordering::Release);
    }

    /// Opens the page to lock-free reads and writes, and declares it dirty. The caller holds it exclusively.
    pub(crate) fn open_writes(&self) {
        self.change(|s| s.0 | READERS | WRITERS | DIRTY);
        self.read_gate.store(self.address(), Ordering::Release);
        self.write_gate.store(self.address(), Ordering::Release);
    }

    /// Lets no further lock-free write begin, once a barrier was issued.
    pub(crate) fn shut_writes(&self) {
        self.write_gate.store(std::ptr::null_mut(), Ordering::SeqCst);
    }

    /// Lets no further lock-free access begin, once a barrier was issued.
    pub(crate) fn shut(&self) {
        self.shut_writes();
        self.read_gate.store(std::ptr::null_mut(), Ordering::SeqCst);
    }

    /// Notes that the holder has shut gates and seen to it that nobody is inside: `WRITERS`, or both bits.
    pub(crate) fn quiet(&self, bits: u64) {
        debug_assert!(bits & !(READERS | WRITERS) == 0);
        self.change(|s| s.0 & !bits);
    }

    /// Notes that a snapshot has shut the write gate of a page that nobody may change, and seen to it that
    /// nobody is inside. Where a thread with guards has taken the mark away it may have opened the gate
    /// again, so that this is for the next look at the page.
    pub(crate) fn quiet_unsaved(&self) {
        self.change(|s| if s.any(UNSAVED) { s.0 & !WRITERS } else { s.0 });
    }

    /// One step of the search for victims. `recency` says whether use counts (not so for an exact order),
    /// `write_back` whether dirty pages are wanted, too.
    pub(crate) fn sweep(&self, recency: bool, write_back: bool) -> Sweep {
        let mut found = Sweep::Busy;
        let _ = self.transition(|s| {
            found = Sweep::Busy;
            if !s.has(RESIDENT) || s.any(EXCLUSIVE | IN_FLIGHT) || s.shared() {
                return Err(());
            }
            if recency && self.seems_used(s) {
                found = Sweep::SecondChance;
                return Ok(s.0 & !USED);
            }
            if s.has(DIRTY) && !write_back {
                return Err(());
            }
            if s.has(DIRTY) {
                found = Sweep::WriteBack(s);
                return Ok(((s.0 | IN_FLIGHT) & !ZEROED) + PIN);
            }
            found = Sweep::Claimed(s);
            Ok(s.0 | EXCLUSIVE)
        });
        if found == Sweep::SecondChance {
            self.shut();
        }
        found
    }

    /// Begins the write-back of a dirty page that nobody writes to; else refuses. As in
    /// [`sweep`](Self::sweep).
    pub(crate) fn try_write_back(&self) -> Result<State, Refusal> {
        self.transition(|s| match s {
            s if !s.has(RESIDENT | DIRTY) && !s.has(EXCLUSIVE) => Err(Refusal::Absent),
            s if s.any(EXCLUSIVE | IN_FLIGHT) || !s.has_room() => Err(Refusal::Busy(s)),
            s => Ok(((s.0 | IN_FLIGHT) & !ZEROED) + PIN),
        })
    }

    /// Begins the write-back of a page that the caller holds exclusively, quiet, and goes on to hold. The
    /// state before.
    pub(crate) fn write_back_held(&self) -> State {
        self.change(|s| {
            debug_assert!(s.has(EXCLUSIVE | RESIDENT) && !s.any(WRITERS | IN_FLIGHT), "{s:?}");
            ((s.0 | IN_FLIGHT) & !ZEROED) + PIN
        })
    }

    /// Ends a write-back. On success frame and home slot are equal. Tells whether sleepers are to be woken.
    #[must_use]
    pub(crate) fn end_write_back(&self, success: bool) -> bool {
        self.change(|s| {
            let next = (s.0 & !(IN_FLIGHT | WAITED)) - PIN;
            if success { (next & !DIRTY) | HOME } else { next }
        })
        .any(WAITED)
    }

    /// Asks to be woken if `busy` still holds of the state. False: it does not; look again.
    pub(crate) fn ask_to_wake(&self, busy: impl Fn(State) -> bool) -> bool {
        self.transition(|s| if busy(s) { Ok(s.0 | WAITED) } else { Err(()) }).is_ok()
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
