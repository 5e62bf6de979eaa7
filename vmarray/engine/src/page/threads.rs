//! The hazard slots of all threads of the process: registration, and scans for running lock-free accesses.
//!
//! Each thread has its slot in thread-local memory, so it writes the slot without a lookup. Other threads
//! find the slot through a list. A thread takes the list's lock only to register, deregister or scan.

use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence, fence};

use parking_lot::RwLock;

use super::barrier;
use super::entry::Entry;
use super::hazard::{self, HazardAccess, HazardSlot};

/// Number of concurrent arrays that have a hit counter of their own.
const COUNTERS: usize = 64;
/// Number of the counter for arrays that do not count hits, on code paths common to all arrays.
const UNCOUNTED: u32 = COUNTERS as u32;
/// Number of lanes of a hit counter. An access increments the lane of its element's position, so that
/// consecutive accesses do not wait for each other's increments in the store buffer.
const LANES: usize = 8;

/// Threshold of a registered thread: for it, a gate is open unless its address is null.
const REGISTERED: usize = 1;
/// Threshold of an unregistered thread, or without an asymmetric barrier: all gates seem shut.
const UNREGISTERED: usize = usize::MAX;

/// The thread-local data for lock-free accesses. The alignment prevents false sharing.
#[repr(C, align(128))]
struct Local {
    slot: HazardSlot,
    /// A gate is open for this thread if its address is not below this value. So one comparison tests the
    /// gate and the registration.
    threshold: Cell<usize>,
    /// Padding, so that counters and slot have different offsets in a memory page: processors compare only
    /// the low bits of addresses to find a load that depends on a store.
    apart: [u64; 13],
    /// Number of hits for each hit counter; only the owning thread writes them.
    hits: [[AtomicU64; LANES]; COUNTERS + 1],
}

thread_local! {
    static LOCAL: Local = const {
        Local {
            slot: HazardSlot::new(),
            threshold: Cell::new(UNREGISTERED),
            apart: [0; 13],
            hits: [const { [const { AtomicU64::new(0) }; LANES] }; COUNTERS + 1],
        }
    };
    static LEASE: Lease = Lease::new();
}

/// The list of registered threads. The address of a thread's data is in the list only while the thread lives.
struct Registry {
    locals: Vec<(barrier::Thread, *const Local)>,
    /// The hits that ended threads have counted.
    past_hits: [u64; COUNTERS],
}

// SAFETY: other threads only use atomics of the memory behind the pointers, under the lock of the registry. A
// thread removes its pointer under the same lock before its memory is freed.
unsafe impl Send for Registry {}
// SAFETY: as above.
unsafe impl Sync for Registry {}

static REGISTRY: RwLock<Registry> = RwLock::new(Registry { locals: Vec::new(), past_hits: [0; COUNTERS] });

/// The registration of a thread; its destructor runs when the thread ends.
struct Lease(());

impl Lease {
    fn new() -> Self {
        enlist();
        Self(())
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // Destructors of thread-local values that run later may still use arrays. They take the slow path,
        // which registers the thread again.
        LOCAL.with(|local| local.threshold.set(UNREGISTERED));
        delist();
    }
}

fn enlist() {
    let thread = barrier::this_thread();
    LOCAL.with(|local| REGISTRY.write().locals.push((thread, ptr::from_ref(local))));
    // A thread that shuts a gate (forbids lock-free access) scans all hazard slots (the pages that threads
    // access) after its full fence. Either the scan finds this slot, or this thread sees the gate shut.
    fence(Ordering::SeqCst);
}

fn delist() {
    LOCAL.with(|local| {
        let mut registry = REGISTRY.write();
        registry.locals.retain(|(_, known)| !ptr::eq(*known, local));
        for (past, hits) in registry.past_hits.iter_mut().zip(&local.hits) {
            *past += hits.iter().map(|lane| lane.swap(0, Ordering::Relaxed)).sum::<u64>();
        }
    });
}

/// Returns the calling thread's data, instead of running a closure on it: the compiler would not inline such
/// a long closure, and would pass elements through memory.
#[inline(always)]
fn local<'a>() -> &'a Local {
    // SAFETY: the memory exists while the thread runs code, and is not dropped; the reference stays in
    // functions of this module, and so in the thread.
    unsafe { &*LOCAL.with(ptr::from_ref) }
}

/// Runs `access` on the page's frame if lock-free reads are allowed. Returns `None` if the caller must hold
/// the page instead. `access` must neither panic nor use other pages.
///
/// If `COUNTS` is true, a success counts a hit of the element at `place`, which doubles the time.
#[inline(always)]
pub fn read_lock_free<const COUNTS: bool, R>(
    entry: &Entry,
    counter: HitCounter,
    place: usize,
    access: impl FnOnce(*const u8) -> Option<R>,
) -> Option<R> {
    let local = local();
    local.slot.enter_read(entry);
    let frame = entry.read_gate();
    if frame.addr() < local.threshold.get() {
        local.slot.leave_read();
        return None;
    }
    let result = access(frame);
    compiler_fence(Ordering::SeqCst);
    local.slot.leave_read();
    if COUNTS && result.is_some() {
        local.count_hit(counter, place);
    }
    result
}

/// Runs a write as [`read_lock_free`] runs a read. `access` is atomic, or takes the element's sequence lock.
#[inline(always)]
pub fn write_lock_free<const COUNTS: bool, R>(
    entry: &Entry,
    counter: HitCounter,
    place: usize,
    access: impl FnOnce(*mut u8) -> R,
) -> Option<R> {
    let local = local();
    local.slot.enter_write(entry);
    let frame = entry.write_gate();
    if frame.addr() < local.threshold.get() {
        local.slot.leave_write();
        return None;
    }
    let result = access(frame);
    compiler_fence(Ordering::SeqCst);
    local.slot.leave_write();
    if COUNTS {
        local.count_hit(counter, place);
    }
    Some(result)
}

impl Local {
    #[inline(always)]
    fn count_hit(&self, counter: HitCounter, place: usize) {
        // SAFETY: counters are at most `UNCOUNTED`; see `HitCounter`.
        let hits = &unsafe { self.hits.get_unchecked(counter.0 as usize) }[place % LANES];
        hits.store(hits.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
}

/// Counts a hit outside of the lock-free functions. Registers the thread, so that [`hits`] finds its count.
#[inline]
pub fn count_hit(counter: HitCounter) {
    let _ = LEASE.try_with(|_| LOCAL.with(|local| local.count_hit(counter, 0)));
}

/// Slow form of [`read_lock_free`], if that failed: registers the thread, and issues a full fence.
#[cold]
pub fn read_fenced<R>(
    entry: &Entry,
    counter: HitCounter,
    access: impl FnOnce(*const u8) -> Option<R>,
) -> Option<R> {
    fenced(counter, |slot| {
        slot.enter_read(entry);
        fence(Ordering::SeqCst);
        let frame = entry.read_gate();
        let result = if frame.is_null() { None } else { access(frame) };
        slot.leave_read();
        result
    })
}

/// Slow form of [`write_lock_free`], if that failed: registers the thread, and issues a full fence.
#[cold]
pub fn write_fenced<R>(entry: &Entry, counter: HitCounter, access: impl FnOnce(*mut u8) -> R) -> Option<R> {
    fenced(counter, |slot| {
        slot.enter_write(entry);
        fence(Ordering::SeqCst);
        let frame = entry.write_gate();
        let result = (!frame.is_null()).then(|| access(frame));
        slot.leave_write();
        result
    })
}

fn fenced<R>(counter: HitCounter, run: impl FnOnce(&HazardSlot) -> Option<R>) -> Option<R> {
    // A registered thread has already tried the quick access and found the gate shut (no lock-free access).
    if LOCAL.with(|local| local.threshold.get() == REGISTERED) {
        return None;
    }
    let leased = LEASE.try_with(|_| ()).is_ok();
    if !leased {
        // The thread is ending, so it registers for this access only.
        enlist();
    } else if barrier::asymmetric() {
        LOCAL.with(|local| local.threshold.set(REGISTERED));
    }
    let result = LOCAL.with(|local| run(&local.slot).inspect(|_| local.count_hit(counter, 0)));
    if !leased {
        delist();
    }
    result
}

/// Calls `barrier::heavy`, unless no other thread can have an access in progress.
pub fn barrier_all() {
    fence(Ordering::SeqCst);
    let is_other = |known: *const Local| LOCAL.with(|local| !ptr::eq(known, local));
    if REGISTRY.read().locals.iter().any(|(_, known)| is_other(*known)) {
        barrier::heavy(|| REGISTRY.read().locals.iter().map(|(thread, _)| *thread).collect());
    }
}

/// Waits until no thread announces an access of this kind to the page. The caller has shut the entry's gates
/// (no new lock-free access), and then called [`barrier_all`].
pub fn drain_all(entry: &Entry, access: HazardAccess) {
    for (_, local) in &REGISTRY.read().locals {
        // SAFETY: the pointer is in the list, so its thread lives and cannot end before the lock is released.
        // The thread never waits for that lock while its slot names a page.
        hazard::drain(unsafe { &(**local).slot }, entry, access);
    }
}

/// Returns the hits that all threads have counted for an array; `None` if the array does not count hits.
pub fn hits(counter: HitCounter) -> Option<u64> {
    if !counter.counts() {
        return None;
    }
    let number = counter.0 as usize;
    let registry = REGISTRY.read();
    let now: u64 = registry
        .locals
        .iter()
        // SAFETY: as in `drain_all`.
        .flat_map(|(_, local)| unsafe { &(&(**local).hits)[number] })
        .map(|lane| lane.load(Ordering::Relaxed))
        .sum();
    Some(registry.past_hits[number].wrapping_add(now))
}

/// The number of an array's hit counter, at most `UNCOUNTED`. Only `counter::acquire` creates one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HitCounter(u32);

impl HitCounter {
    /// Returns true if the array counts its hits.
    #[inline]
    pub fn counts(self) -> bool {
        self.0 != UNCOUNTED
    }
}

/// Assignment of the limited number of hit counters to arrays.
pub mod counter {
    use super::{COUNTERS, HitCounter, UNCOUNTED};
    use parking_lot::Mutex;

    static NUMBERS: Mutex<(Vec<u32>, u32)> = Mutex::new((Vec::new(), 0));

    /// Returns an unused counter, or a shared one if all are in use; no counter if `counts` is false.
    #[inline]
    pub fn acquire(counts: bool) -> HitCounter {
        if !counts {
            return HitCounter(UNCOUNTED);
        }
        let mut numbers = NUMBERS.lock();
        if let Some(number) = numbers.0.pop() {
            return HitCounter(number);
        }
        let number = numbers.1.min(COUNTERS as u32 - 1);
        numbers.1 = number + 1;
        HitCounter(number)
    }

    /// Releases the number of a counter, so that a later array can use it.
    #[inline]
    pub fn release(HitCounter(number): HitCounter) {
        if (number as usize) < COUNTERS - 1 {
            NUMBERS.lock().0.push(number);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::entry::Holder;
    use super::*;

    #[test]
    fn accesses_are_announced_while_they_last() {
        let mut frame = [0_u8; 8];
        let entry = Entry::absent();
        entry.try_claim_absent(true).unwrap();
        entry.install(frame.as_mut_ptr());
        entry.open_writes();
        let _ = entry.release_exclusive(Holder::Pin, 0);
        // Returns true or false twice: a hazard slot announces a write, or any access, of the page.
        let announced = || {
            let registry = REGISTRY.read();
            [HazardAccess::Writes, HazardAccess::All].map(|access| {
                // SAFETY: as in `drain_all`.
                let names = |(_, local): &(_, *const Local)| unsafe { &(**local).slot }.names(&entry, access);
                registry.locals.iter().any(names)
            })
        };
        let number = counter::acquire(true);
        let read = read_fenced(&entry, number, |_| Some(announced()));
        assert_eq!((read, announced()), (Some([false, true]), [false; 2]));
        // Test lock-free accesses after the registration. They need an asymmetric barrier of the system.
        let read = || read_lock_free::<true, _>(&entry, number, 0, |_| Some(announced()));
        let write = || write_lock_free::<true, _>(&entry, number, 0, |_| announced());
        if barrier::asymmetric() {
            assert_eq!((read(), announced()), (Some([false, true]), [false; 2]));
            assert_eq!((write(), announced()), (Some([true; 2]), [false; 2]));
            entry.shut();
        }
        assert_eq!((read(), write(), announced()), (None, None, [false; 2]));
        let written = std::thread::scope(|scope| {
            entry.open_writes();
            scope.spawn(|| write_fenced(&entry, number, |_| announced())).join().unwrap()
        });
        assert_eq!((written, announced()), (Some([true; 2]), [false; 2]));
        counter::release(number);
    }
}
