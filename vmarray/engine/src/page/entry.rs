//! The page table's entry of one page, and all transitions of its atomic state word.
//!
//! Each method is a single read-modify-write of the state word, and may open or shut the gates. So the table
//! in [`state`](super::state) and the methods here define the whole protocol. Other modules wait and copy
//! pages.
//!
//! A *gate* is a word that holds the address of the page's frame while lock-free accesses are allowed, else
//! null. Only a holder of the page (pin, guard or `EXCLUSIVE`) opens a gate, and only with `EXCLUSIVE` the
//! write gate. Any thread may shut a gate at any time.

use super::state::{
    AHEAD, DIRTY, EXCLUSIVE, GUARD, HOME, IN_FLIGHT, PIN, READERS, RESIDENT, State, UNSAVED, USED, VERSION,
    WAITED, WRITER_PENDING, WRITERS, ZEROED,
};
use super::sync::{AtomicPtr, AtomicU64, Ordering, fence};

/// The kind of a page hold: a pin of this library, or a guard of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
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

/// The reason why a thread could not acquire a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The page has no frame.
    Absent,
    /// Another thread's hold prevents the transition. The value is the state at that moment.
    Busy(State),
}

/// The result of one step of the search for pages to evict, at one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sweep {
    /// The page was used since the last sweep. The used bit is now cleared; the page stays.
    SecondChance,
    /// The page is in use now.
    Busy,
    /// The page is clean, and the caller now holds it exclusively. The value is the previous state.
    Claimed(State),
    /// The page is dirty, and the caller now holds a pin for a write-back. The value is the previous state.
    WriteBack(State),
}

/// The page table's entry of one page: the gates (for lock-free access), the state word, and the frame's
/// address.
#[derive(Debug)]
#[repr(C, align(32))]
pub struct Entry {
    read_gate: AtomicPtr<u8>,
    write_gate: AtomicPtr<u8>,
    state: AtomicU64,
    /// The first byte of the page's frame; valid while the page is resident. Only the exclusive holder writes
    /// this address, when no lock-free access can be running.
    address: AtomicPtr<u8>,
}

impl Entry {
    /// Returns the entry of an absent page. It equals zeroed memory, which new page tables consist of.
    #[cfg(test)]
    pub fn absent() -> Self {
        Self {
            read_gate: AtomicPtr::new(std::ptr::null_mut()),
            write_gate: AtomicPtr::new(std::ptr::null_mut()),
            state: AtomicU64::new(0),
            address: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    #[inline]
    pub fn state(&self, order: Ordering) -> State {
        State(self.state.load(order))
    }

    /// Calls `read` to read an element of the page. Its accesses may race with a writer that holds the page.
    /// Returns `None` if such a writer was active.
    #[inline(always)]
    pub fn read_validated<R>(&self, read: impl FnOnce() -> R) -> Option<R> {
        let before = self.state(Ordering::Acquire);
        let value = read();
        fence(Ordering::Acquire);
        before.validates(self.state(Ordering::Relaxed)).then_some(value)
    }

    /// Reads several elements of the page by accesses that may race with writers. Returns `None` if a writer
    /// may have been active. Writers that hold the page are detected as in
    /// [`read_validated`](Self::read_validated). Lock-free writers leave no trace, so this method refuses
    /// pages whose write gate is open (lock-free writes allowed). Opening the gate requires an exclusive
    /// hold, which is visible to a thread that sees any of the writes.
    #[inline(always)]
    pub fn read_undisturbed<R>(&self, read: impl FnOnce() -> R) -> Option<R> {
        let before = self.state(Ordering::Acquire);
        if before.any(WRITERS | EXCLUSIVE) {
            return None;
        }
        let value = read();
        fence(Ordering::Acquire);
        before.validates(self.state(Ordering::Relaxed)).then_some(value)
    }

    #[inline]
    pub fn address(&self) -> *mut u8 {
        self.address.load(Ordering::Relaxed)
    }

    /// Returns the page's frame if lock-free reads are allowed, otherwise null. The caller must have
    /// announced the page in its hazard slot (the page that it accesses).
    #[inline(always)]
    pub fn read_gate(&self) -> *mut u8 {
        self.read_gate.load(Ordering::Acquire)
    }

    /// Returns the page's frame if lock-free writes are allowed, otherwise null. The caller must have
    /// announced the page in its hazard slot (the page that it accesses).
    #[inline(always)]
    pub fn write_gate(&self) -> *mut u8 {
        self.write_gate.load(Ordering::Acquire)
    }

    /// Applies `change` to the state by compare-and-swap. Repeats until a success or an error of `change`.
    fn transition<E>(&self, mut change: impl FnMut(State) -> Result<u64, E>) -> Result<State, E> {
        let mut state = self.state.load(Ordering::Relaxed);
        loop {
            let next = change(State(state))?;
            debug_assert!(State(next).is_coherent(), "{:?} may not become {:?}", State(state), State(next));
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

    /// Takes a resident page for shared use, which excludes exclusive holders. If the returned earlier state
    /// has `WRITERS`, lock-free writes may continue until [`shut_writes`](Self::shut_writes), a barrier and a
    /// check of announced accesses. If the earlier state has `WAITED` and the new holder is a guard, the
    /// caller must wake the sleeping threads, because a thread may be forbidden to wait for guards.
    ///
    /// A thread that wants the page exclusively has precedence, unless `barging` is set. Threads with guards
    /// set `barging`, because they must not wait for a thread that could wait for their guards.
    #[inline]
    pub fn try_share(&self, holder: Holder, barging: bool) -> Result<State, Refusal> {
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

    /// Takes an absent page for shared use, which protects its home slot (in device memory) from writes. `Ok`
    /// is true if the slot has contents. `barging` is as in [`try_share`](Self::try_share).
    #[inline]
    pub fn try_share_home(&self, barging: bool) -> Result<bool, Refusal> {
        self.transition(|s| match s {
            s if s.any(EXCLUSIVE | RESIDENT) || !s.has_room() => Err(Refusal::Busy(s)),
            s if s.any(WRITER_PENDING) && !barging => Err(Refusal::Busy(s)),
            s => Ok(s.0 + PIN),
        })
        .map(|s| s.has(HOME))
    }

    /// Ends a hold that shares the page. Returns true if the caller must wake sleeping threads.
    #[must_use]
    #[inline]
    pub fn unshare(&self, holder: Holder) -> bool {
        let unit = holder.unit();
        let last = |s: State| !State(s.0 - unit).shared();
        // The last shared holder wakes threads that want the page exclusively. A holder that lowers a full
        // count wakes threads that want to share.
        let wakes = |s: State| last(s) || !s.has_room();
        let before = self.change(|s| {
            let next = s.0 - unit;
            if wakes(s) { next & !WAITED } else { next }
        });
        before.any(WAITED) && wakes(before)
    }

    /// Takes a resident page exclusively, if no other thread holds it. Lock-free accesses may continue, as
    /// `READERS` and `WRITERS` in the returned earlier state show, until the caller shuts the gates and waits
    /// for these accesses. If `holder` is a guard, the caller must wake threads as after
    /// [`try_share`](Self::try_share). Refused while a snapshot must still save the page.
    #[inline]
    pub fn try_exclusive(&self, holder: Holder) -> Result<State, Refusal> {
        self.transition(|s| match s {
            s if s.any(EXCLUSIVE | UNSAVED) || s.shared() => Err(Refusal::Busy(s)),
            s if !s.has(RESIDENT) => Err(Refusal::Absent),
            s => {
                let next = (s.0 | USED | EXCLUSIVE) & !(AHEAD | WRITER_PENDING);
                Ok(if holder == Holder::Guard { (next & !WAITED) + GUARD } else { next })
            }
        })
    }

    /// Takes an absent page exclusively for one thread or transfer. Returns the previous state, which shows
    /// if the home slot (in device memory) has contents.
    ///
    /// `readers_stay` allows this while other threads read the home slot, or while a snapshot must still save
    /// the page. It is correct for loading a page that will be shared first. It is wrong for writing to the
    /// slot, and for loading a page that will be written.
    #[inline]
    pub fn try_claim_absent(&self, readers_stay: bool) -> Result<State, Refusal> {
        let may_stay = |s: State| readers_stay || !(s.shared() || s.any(UNSAVED));
        self.transition(|s| match s {
            s if s.any(EXCLUSIVE | RESIDENT) || !may_stay(s) => Err(Refusal::Busy(s)),
            // The loading thread becomes a shared holder, so the count must have room for one more.
            s if !s.has_room() => Err(Refusal::Busy(s)),
            s => Ok(s.0 | EXCLUSIVE),
        })
    }

    /// Takes an absent page without contents exclusively, for a thread that writes zeroes to its home slot
    /// (in device memory). Ignores a snapshot's mark (page to save): the page reads as zeroes all the time.
    #[inline]
    pub fn try_claim_to_zero(&self) -> Result<State, Refusal> {
        self.transition(|s| match s {
            s if s.any(EXCLUSIVE | RESIDENT | HOME) || s.shared() => Err(Refusal::Busy(s)),
            s => Ok(s.0 | EXCLUSIVE),
        })
    }

    /// Takes an absent page for the one thread that loads it; `readers_stay` as for
    /// [`try_claim_absent`](Self::try_claim_absent). If the home slot (in device memory) has contents, the
    /// page is [marked](Self::mark_in_flight) as in flight in the same step. Returns the previous state. If
    /// this state has [`WAITED`] and the slot has contents, the caller must wake sleeping threads.
    #[inline]
    pub fn claim_to_load(&self, readers_stay: bool) -> Result<State, Refusal> {
        self.transition(|s| match s {
            s if s.any(EXCLUSIVE | RESIDENT) || !s.has_room() => Err(Refusal::Busy(s)),
            s if !readers_stay && (s.shared() || s.any(UNSAVED)) => Err(Refusal::Busy(s)),
            s if s.has(HOME) => Ok((s.0 | EXCLUSIVE | IN_FLIGHT) & !WAITED),
            s => Ok(s.0 | EXCLUSIVE),
        })
    }

    /// Marks a page as in flight; the caller holds the page. Other threads can find and finish its transfer.
    /// Returns true if the caller must wake sleeping threads, which then help.
    #[must_use]
    #[inline]
    pub fn mark_in_flight(&self) -> bool {
        let now = self.state(Ordering::Relaxed);
        if now.has(IN_FLIGHT) && !now.any(WAITED) {
            // The page is marked already and no thread waits, so the state need not change.
            return false;
        }
        self.change(|s| (s.0 | IN_FLIGHT) & !WAITED).any(WAITED)
    }

    /// Assigns a frame to an absent page, which the caller holds exclusively before and after the call.
    #[inline]
    pub fn install(&self, address: *mut u8) {
        self.address.store(address, Ordering::Relaxed);
        self.change(|s| (s.0 | RESIDENT) & !(IN_FLIGHT | WRITER_PENDING));
    }

    /// Assigns a frame to an absent page that the caller holds exclusively, and ends the hold:
    /// [`install`](Self::install), then [`release_exclusive`](Self::release_exclusive) of a pin with `add`.
    #[must_use]
    #[inline]
    pub fn install_and_release(&self, address: *mut u8, add: u64) -> bool {
        self.address.store(address, Ordering::Relaxed);
        self.change(|s| {
            debug_assert!(s.has(EXCLUSIVE) && !s.any(RESIDENT), "{s:?}");
            (s.0 & !(EXCLUSIVE | WAITED | IN_FLIGHT | WRITER_PENDING) | RESIDENT | add).wrapping_add(VERSION)
        })
        .any(WAITED)
    }

    /// Also counts an exclusive hold as a guard if `holder` is one; does nothing for a pin. Returns true if
    /// the caller must wake sleeping threads.
    #[must_use]
    #[inline]
    pub fn hold_exclusive(&self, holder: Holder) -> bool {
        holder == Holder::Guard && self.change(|s| (s.0 & !WAITED) + GUARD).any(WAITED)
    }

    /// Marks a page as dirty. The caller holds the page exclusively.
    #[inline]
    pub fn mark_dirty(&self) {
        self.change(|s| s.0 | DIRTY);
    }

    /// Records that the home slot of a page (in device memory) contains zeroes. The caller holds the page.
    #[inline]
    pub fn home_is_zeroed(&self) {
        self.change(|s| s.0 | ZEROED);
    }

    /// Records that the home slot of a page (in device memory) may no longer contain zeroes. The caller holds
    /// the page exclusively, and calls this before a write to the slot, because a failed write may change it.
    #[inline]
    pub fn home_is_unknown(&self) {
        self.change(|s| s.0 & !ZEROED);
    }

    /// Makes new shared holders wait, because the calling thread wants the page exclusively. The thread then
    /// retries or [gives up](Self::give_up). No effect while a snapshot must read the page.
    #[inline]
    pub fn set_writer_pending(&self) {
        self.change(|s| if s.any(UNSAVED) { s.0 } else { s.0 | WRITER_PENDING });
    }

    /// Marks the page as still to be saved by a snapshot: from now on no thread takes the page to change it.
    /// The present holder continues, and readers are not affected. Returns true if the caller must wake
    /// sleeping threads, because their condition has changed.
    #[must_use]
    #[inline]
    pub fn begin_saving(&self) -> bool {
        self.change(|s| (s.0 | UNSAVED) & !(WRITER_PENDING | WAITED)).any(WAITED)
    }

    /// Removes a snapshot's mark (page still to save), so that threads may change the page again. Returns
    /// true if the caller must wake sleeping threads.
    #[must_use]
    #[inline]
    pub fn end_saving(&self) -> bool {
        self.change(|s| s.0 & !(UNSAVED | WAITED)).any(WAITED)
    }

    /// Stops wanting the page exclusively: new shared holders are allowed again. Other threads that want the
    /// page exclusively call [`set_writer_pending`](Self::set_writer_pending) again when they wake. Returns
    /// true if the caller must wake sleeping threads.
    #[must_use]
    #[inline]
    pub fn give_up(&self) -> bool {
        self.change(|s| s.0 & !(WRITER_PENDING | WAITED)).any(WAITED)
    }

    /// Ends an exclusive hold and sets the bits `add` (`DIRTY`, `HOME`, `AHEAD`, …). Returns true if the
    /// caller must wake sleeping threads.
    #[must_use]
    #[inline]
    pub fn release_exclusive(&self, holder: Holder, add: u64) -> bool {
        self.change(|s| {
            debug_assert!(s.has(EXCLUSIVE), "{s:?}");
            let guard = if holder == Holder::Guard { GUARD } else { 0 };
            ((s.0 & !(EXCLUSIVE | WAITED | IN_FLIGHT) | add) - guard).wrapping_add(VERSION)
        })
        .any(WAITED)
    }

    /// Sets the first state of an unused page: `home` is `HOME` (contents in device memory) or `ZEROED`.
    #[inline]
    pub fn begin_with(&self, home: u64) {
        debug_assert!(home == HOME || home == ZEROED, "{home:x}");
        self.change(|s| s.0 | home);
    }

    /// Ends an exclusive hold of an absent page after a write to its home slot (in device memory). Returns
    /// true if the caller must wake sleeping threads.
    #[must_use]
    #[inline]
    pub fn release_written(&self) -> bool {
        self.change(|s| {
            debug_assert!(s.has(EXCLUSIVE) && !s.any(RESIDENT), "{s:?}");
            (s.0 & !(EXCLUSIVE | WAITED | IN_FLIGHT | ZEROED) | HOME).wrapping_add(VERSION)
        })
        .any(WAITED)
    }

    /// Turns an exclusive hold into a shared one of `holder`. Returns true if the caller must wake sleepers.
    #[must_use]
    #[inline]
    pub fn downgrade(&self, holder: Holder) -> bool {
        self.change(|s| {
            ((s.0 & !(EXCLUSIVE | WAITED | IN_FLIGHT)) | USED).wrapping_add(holder.unit() + VERSION)
        })
        .any(WAITED)
    }

    /// Takes the frame from a page and releases the page, which the caller holds exclusively, with shut gates
    /// (no lock-free access). `forget` also declares the home slot (in device memory) empty. Returns true if
    /// the caller must wake sleeping threads.
    #[must_use]
    #[inline]
    pub fn unmap(&self, forget: bool) -> bool {
        self.lose_frame(EXCLUSIVE | if forget { HOME | ZEROED } else { 0 })
    }

    /// Takes the frame from a page as [`unmap`](Self::unmap) does, but the caller still holds the absent
    /// page.
    #[must_use]
    #[inline]
    pub fn unmap_and_keep(&self) -> bool {
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

    /// Returns true if the page was used since the last sweep (search for pages to evict), unless the use was
    /// [forgotten](Self::forget_use).
    #[inline]
    pub fn is_used(&self) -> bool {
        self.seems_used(self.state(Ordering::Relaxed))
    }

    /// Returns true if a page with this state was used since the last sweep.
    fn seems_used(&self, state: State) -> bool {
        state.any(USED) || !self.read_gate.load(Ordering::Relaxed).is_null()
    }

    /// Marks the page as unused for the next search for pages to evict, unless lock-free access is open.
    #[inline]
    pub fn forget_use(&self) {
        self.change(|s| s.0 & !USED);
    }

    /// Opens the page to lock-free reads. The caller must hold the page.
    #[inline]
    pub fn open_reads(&self) {
        self.change(|s| s.0 | READERS);
        self.read_gate.store(self.address(), Ordering::Release);
    }

    /// Opens the exclusively held page to lock-free reads and writes, and marks the page as dirty.
    #[inline]
    pub fn open_writes(&self) {
        self.change(|s| s.0 | READERS | WRITERS | DIRTY);
        self.read_gate.store(self.address(), Ordering::Release);
        self.write_gate.store(self.address(), Ordering::Release);
    }

    /// Shuts the write gate: no lock-free write begins after a barrier.
    #[inline]
    pub fn shut_writes(&self) {
        self.write_gate.store(std::ptr::null_mut(), Ordering::SeqCst);
    }

    /// Shuts both gates: no lock-free access begins after a barrier.
    #[inline]
    pub fn shut(&self) {
        self.shut_writes();
        self.read_gate.store(std::ptr::null_mut(), Ordering::SeqCst);
    }

    /// Records that the holder has shut gates (no new lock-free access), and that all accesses through them
    /// have ended. `bits` is `WRITERS`, or `READERS` and `WRITERS`.
    #[inline]
    pub fn quiet(&self, bits: u64) {
        debug_assert!(bits & !(READERS | WRITERS) == 0);
        self.change(|s| s.0 & !bits);
    }

    /// Records that a snapshot has shut the write gate of a marked (unsaved) page, and that lock-free writes
    /// have ended. A thread with guards may have removed the mark and opened the gate again; the next check
    /// of the page handles this.
    #[inline]
    pub fn quiet_unsaved(&self) {
        self.change(|s| if s.any(UNSAVED) { s.0 & !WRITERS } else { s.0 });
    }

    /// One step of the search for pages to evict: takes the page, or not. If `recency` is true, a page used
    /// since the last step stays, and loses its used bit. Dirty pages stay unless `write_back` is true.
    pub fn sweep(&self, recency: bool, write_back: bool) -> Sweep {
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

    /// Pins a dirty page for its write-back. Refuses a page that is clean, in flight or held exclusively.
    #[inline]
    pub fn try_write_back(&self) -> Result<State, Refusal> {
        self.transition(|s| match s {
            s if !s.has(RESIDENT | DIRTY) && !s.has(EXCLUSIVE) => Err(Refusal::Absent),
            s if s.any(EXCLUSIVE | IN_FLIGHT) || !s.has_room() => Err(Refusal::Busy(s)),
            s => Ok(((s.0 | IN_FLIGHT) & !ZEROED) + PIN),
        })
    }

    /// Starts the write-back of a page that the caller holds exclusively, with shut gates (no lock-free
    /// access), and continues to hold. Returns the previous state.
    #[inline]
    pub fn write_back_held(&self) -> State {
        self.change(|s| {
            debug_assert!(s.has(EXCLUSIVE | RESIDENT) && !s.any(WRITERS | IN_FLIGHT), "{s:?}");
            ((s.0 | IN_FLIGHT) & !ZEROED) + PIN
        })
    }

    /// Ends a write-back. After a success, the frame equals the home slot (in device memory). Returns true if
    /// the caller must wake sleeping threads.
    #[must_use]
    #[inline]
    pub fn end_write_back(&self, success: bool) -> bool {
        self.change(|s| {
            let next = (s.0 & !(IN_FLIGHT | WAITED)) - PIN;
            if success { (next & !DIRTY) | HOME } else { next }
        })
        .any(WAITED)
    }

    /// Requests a wake-up if `busy` still holds for the page's state. Otherwise returns false, and the caller
    /// checks the page again.
    #[inline]
    pub fn ask_to_wake(&self, busy: impl Fn(State) -> bool) -> bool {
        self.transition(|s| if busy(s) { Ok(s.0 | WAITED) } else { Err(()) }).is_ok()
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
