//! Loom tests of the page protocol: the atomic state, gates and hazard slots by which threads share a page.
//! Loom runs all interleavings of threads and all reorderings that the memory model allows.
//!
//! Loom has no asymmetric barrier (cheap on one thread, expensive on the other). So both barriers, `light`
//! and `heavy`, are full fences here. The substitute is valid because Linux guarantees that `membarrier` with
//! a compiler fence orders like two full fences.
//!
//! Run by `cargo xtask test-host`, or with `RUSTFLAGS="--cfg loom" cargo test -p vmarray --release --lib
//! model`.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use loom::thread;

use super::barrier;
use super::entry::{Entry, Holder, Sweep};
use super::hazard::{HazardAccess, HazardSlot, drain};
use super::quiesce::quiesce_by;
use super::seqlock::SeqLock;
use super::state::{DIRTY, EXCLUSIVE, RESIDENT, State, WAITED};

/// A page with a frame whose accesses loom checks, and the hazard slot of one thread.
pub(super) struct ModelPage {
    pub(super) entry: Entry,
    pub(super) slot: HazardSlot,
    pub(super) frame: UnsafeCell<u64>,
}

/// Returns an address for the frame, which is never dereferenced but must not be null.
fn address() -> *mut u8 {
    std::ptr::without_provenance_mut(64)
}

impl ModelPage {
    fn absent() -> Self {
        Self { entry: Entry::absent(), slot: HazardSlot::new(), frame: UnsafeCell::new(0) }
    }

    pub(super) fn resident() -> Self {
        let page = Self::absent();
        page.entry.try_claim_absent(true).unwrap();
        page.entry.install(address());
        let _ = page.entry.release_exclusive(Holder::Pin, 0);
        page
    }

    fn open_for_reads() -> Self {
        let page = Self::resident();
        page.entry.try_share(Holder::Pin, false).unwrap();
        page.entry.open_reads();
        let _ = page.entry.unshare(Holder::Pin);
        page
    }

    pub(super) fn open_for_writes() -> Self {
        let page = Self::resident();
        page.entry.try_exclusive(Holder::Pin).unwrap();
        page.entry.open_writes();
        let _ = page.entry.release_exclusive(Holder::Pin, DIRTY);
        page
    }

    fn quiesce(&self, before: State, access: HazardAccess) {
        quiesce_by(
            std::iter::once((&self.entry, before)),
            access,
            || barrier::heavy(Vec::new),
            |entry| drain(&self.slot, entry, access),
        );
    }

    /// Takes the frame from the page, which the caller holds exclusively, and writes other contents to it.
    fn reuse(&self, before: State) {
        self.quiesce(before, HazardAccess::All);
        self.frame.with_mut(|at| unsafe { *at = 7 });
        let _ = self.entry.unmap(false);
    }

    /// Reads the frame under a shared hold, after writers have ended.
    fn read_shared(&self, holder: Holder) -> u64 {
        let before = self.entry.try_share(holder, false).unwrap();
        self.quiesce(before, HazardAccess::Writes);
        let seen = self.frame.with(|at| unsafe { *at });
        let _ = self.entry.unshare(holder);
        seen
    }

    /// Reads the home slot under a hold. The frame represents the slot here.
    fn read_home(&self) {
        if self.entry.try_share_home(false).is_ok() {
            self.frame.with(|at| unsafe { *at });
            let _ = self.entry.unshare(Holder::Pin);
        }
    }

    fn read(&self) -> Option<u64> {
        self.slot.enter_read(&self.entry);
        let value = (!self.entry.read_gate().is_null()).then(|| self.frame.with(|at| unsafe { *at }));
        self.slot.leave_read();
        value
    }

    pub(super) fn write(&self, value: u64) -> bool {
        self.slot.enter_write(&self.entry);
        let open = !self.entry.write_gate().is_null();
        if open {
            self.frame.with_mut(|at| unsafe { *at = value });
        }
        self.slot.leave_write();
        open
    }
}

fn concurrently<R: 'static>(
    page: &Arc<ModelPage>,
    run: impl FnOnce(&ModelPage) -> R + 'static,
) -> thread::JoinHandle<R> {
    let page = page.clone();
    thread::spawn(move || run(&page))
}

/// Adds an element at the end. The frame has room for two, indexed by the length.
fn push(page: &ModelPage, len: &AtomicUsize, elements: &[AtomicU64; 2], value: u64) -> usize {
    loop {
        if page.entry.try_exclusive(Holder::Pin).is_ok() {
            let index = len.load(Ordering::Acquire);
            elements[index].store(value, Ordering::Relaxed);
            len.store(index + 1, Ordering::Release);
            let _ = page.entry.release_exclusive(Holder::Pin, DIRTY);
            return index;
        }
        thread::yield_now();
    }
}

/// Two threads add elements. A third one, without a hold, must see all elements below the length.
#[test]
fn elements_below_the_length_are_initialized() {
    loom::model(|| {
        let page = Arc::new(ModelPage::resident());
        let shared = Arc::new((AtomicUsize::new(0), [AtomicU64::new(0), AtomicU64::new(0)]));
        let of_other = shared.clone();
        let other = concurrently(&page, move |page| push(page, &of_other.0, &of_other.1, 7));
        let of_reader = shared.clone();
        let reader = thread::spawn(move || {
            let len = of_reader.0.load(Ordering::Acquire);
            assert!(of_reader.1[..len].iter().all(|element| element.load(Ordering::Relaxed) != 0));
        });
        let index = push(&page, &shared.0, &shared.1, 8);
        assert_eq!(shared.1[index].load(Ordering::Relaxed), 8);
        assert_ne!(other.join().unwrap(), index);
        reader.join().unwrap();
        assert_eq!(shared.0.load(Ordering::Relaxed), 2);
    });
}

/// Loom reports an error at the first access to the frame that is not ordered after a conflicting access.
#[test]
fn a_frame_is_not_reused_under_a_lock_free_reader() {
    loom::model(|| {
        let page = Arc::new(ModelPage::open_for_reads());
        let reader = concurrently(&page, ModelPage::read);
        let before = page.entry.try_exclusive(Holder::Pin).unwrap();
        page.reuse(before);
        assert!(matches!(reader.join().unwrap(), None | Some(0)));
    });
}

/// The thread that waits for a reader may see the end of its access only through the next announcement.
#[test]
fn a_frame_is_not_reused_under_a_reader_that_changes_pages() {
    loom::model(|| {
        let page = Arc::new(ModelPage::open_for_reads());
        let other = Arc::new(Entry::absent());
        let reader = thread::spawn({
            let (page, other) = (page.clone(), other.clone());
            move || {
                let value = page.read();
                page.slot.enter_read(&*other);
                assert!(other.read_gate().is_null());
                page.slot.leave_read();
                value
            }
        });
        let before = page.entry.try_exclusive(Holder::Pin).unwrap();
        page.reuse(before);
        assert!(matches!(reader.join().unwrap(), None | Some(0)));
    });
}

#[test]
fn a_slice_is_not_lent_under_a_lock_free_writer() {
    loom::model(|| {
        let page = Arc::new(ModelPage::open_for_writes());
        let writer = concurrently(&page, |page| page.write(5));
        let seen = page.read_shared(Holder::Guard);
        let written = writer.join().unwrap();
        assert!(seen == 0 || (written && seen == 5));
    });
}

/// The second shared holder finds the gate shut by the first, and must still wait for the writer.
#[test]
fn two_sharers_both_wait_for_a_lock_free_writer() {
    let mut model = loom::model::Builder::new();
    // Two of the three threads spin, so limit preemptions: all schedules would take hours.
    model.preemption_bound = Some(2);
    model.check(|| {
        let page = Arc::new(ModelPage::open_for_writes());
        let writer = concurrently(&page, |page| page.write(5));
        let sharer = concurrently(&page, |page| page.read_shared(Holder::Pin));
        page.read_shared(Holder::Pin);
        sharer.join().unwrap();
        writer.join().unwrap();
    });
}

/// If a write-back declares a page clean, the page must equal its copy.
#[test]
fn no_write_is_lost_to_a_write_back() {
    loom::model(|| {
        let page = Arc::new(ModelPage::open_for_writes());
        let writer = concurrently(&page, |page| {
            if page.write(5) {
                return;
            }
            // Hold the page exclusively, as a write does that is not announced in a hazard slot.
            while page.entry.try_exclusive(Holder::Pin).is_err() {
                thread::yield_now();
            }
            page.frame.with_mut(|at| unsafe { *at = 5 });
            page.entry.open_writes();
            let _ = page.entry.release_exclusive(Holder::Pin, DIRTY);
        });
        let mut home = 0;
        if let Ok(before) = page.entry.try_write_back() {
            page.quiesce(before, HazardAccess::Writes);
            home = page.frame.with(|at| unsafe { *at });
            let _ = page.entry.end_write_back(true);
        }
        writer.join().unwrap();
        if !page.entry.state(Ordering::Acquire).any(DIRTY) {
            assert_eq!(home, 5);
        }
    });
}

/// If the version is unchanged, a reader of a huge element must not see half of an exclusive holder's write.
#[test]
fn a_validated_read_is_not_torn() {
    loom::model(|| {
        let page = Arc::new(ModelPage::open_for_reads());
        let words = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let writer = thread::spawn({
            let (page, words) = (page.clone(), words.clone());
            move || {
                page.entry.try_exclusive(Holder::Pin).unwrap();
                loom::sync::atomic::fence(Ordering::Release);
                words.iter().for_each(|word| word.store(1, Ordering::Relaxed));
                let _ = page.entry.release_exclusive(Holder::Pin, DIRTY);
            }
        });
        page.slot.enter_read(&page.entry);
        let words = || [words[0].load(Ordering::Relaxed), words[1].load(Ordering::Relaxed)];
        let seen = page.entry.read_validated(words);
        page.slot.leave_read();
        assert!(seen.is_none_or(|seen| seen[0] == seen[1]), "{seen:?}");
        writer.join().unwrap();
    });
}

/// A validated reader of several elements must see one moment, although another thread took the page
/// exclusively and opened it to lock-free writes, one of which followed.
#[test]
fn elements_read_undisturbed_are_of_one_moment() {
    loom::model(|| {
        let page = Arc::new(ModelPage::open_for_reads());
        let words = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let writer = thread::spawn({
            let (page, words) = (page.clone(), words.clone());
            move || {
                page.entry.try_exclusive(Holder::Pin).unwrap();
                words[0].store(1, Ordering::Release);
                page.entry.open_writes();
                let _ = page.entry.release_exclusive(Holder::Pin, DIRTY);
                assert!(!page.entry.write_gate().is_null());
                words[1].store(1, Ordering::Release);
            }
        });
        page.slot.enter_read(&page.entry);
        let words = || [words[0].load(Ordering::Relaxed), words[1].load(Ordering::Relaxed)];
        let seen = page.entry.read_undisturbed(words);
        page.slot.leave_read();
        assert!(seen.is_none_or(|seen| seen == [0, 0]), "{seen:?}");
        writer.join().unwrap();
    });
}

/// An element of two words, and its sequence lock.
struct ModelElement {
    lock: SeqLock,
    words: [AtomicU64; 2],
}

impl ModelElement {
    fn new() -> Arc<Self> {
        Arc::new(Self { lock: SeqLock::new(), words: [AtomicU64::new(0), AtomicU64::new(0)] })
    }

    fn write(&self, value: u64) {
        self.lock.write(|| self.words.iter().for_each(|word| word.store(value, Ordering::Relaxed)));
    }

    fn words(&self) -> [u64; 2] {
        [0, 1].map(|at: usize| self.words[at].load(Ordering::Relaxed))
    }
}

/// With two writers, a read that the sequence lock validates must not see half of a write. (Slots, gates and
/// holds keep the page in its frame; other models check this.)
#[test]
fn an_element_read_by_its_lock_is_not_torn() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let element = ModelElement::new();
        let writers = [1, 2].map(|value| {
            let element = element.clone();
            thread::spawn(move || element.write(value))
        });
        if let Some(seen) = element.lock.try_read(|| element.words()) {
            assert_eq!(seen[0], seen[1]);
        }
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        let last = element.lock.try_read(|| element.words()).expect("no thread writes any more");
        assert!(last[0] == last[1] && last[0] > 0, "{last:?}");
    });
}

/// The holder of a sequence lock must see earlier holders' effects, and publish its own.
#[test]
fn an_elements_lock_publishes_earlier_writes() {
    loom::model(|| {
        let element = ModelElement::new();
        let other = Arc::new(AtomicU64::new(0));
        let writer = thread::spawn({
            let (element, other) = (element.clone(), other.clone());
            move || {
                other.store(7, Ordering::Relaxed);
                element.write(1);
            }
        });
        if element.lock.try_read(|| element.words()) == Some([1, 1]) {
            assert_eq!(other.load(Ordering::Relaxed), 7);
        }
        let seen = element.lock.lock_if(|| element.words(), |_| false);
        assert!(seen[0] == seen[1] && (seen[0] == 0 || other.load(Ordering::Relaxed) == 7), "{seen:?}");
        writer.join().unwrap();
    });
}

/// A reader that briefly excludes writers must leave no trace, and hide no write.
#[test]
fn a_read_under_an_elements_lock_hides_no_write() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let element = ModelElement::new();
        let writer = thread::spawn({
            let element = element.clone();
            move || element.write(1)
        });
        let reader = thread::spawn({
            let element = element.clone();
            move || element.lock.lock_if(|| element.words(), |_| false)
        });
        for seen in [element.lock.try_read(|| element.words()), Some(reader.join().unwrap())] {
            assert!(seen.is_none_or(|seen| seen[0] == seen[1]), "{seen:?}");
        }
        writer.join().unwrap();
        assert_eq!(element.lock.read(|| element.words()), [1, 1]);
    });
}

/// No thread may open a page during another thread's exclusive hold.
#[test]
fn an_exclusive_page_stays_shut() {
    loom::model(|| {
        let page = Arc::new(ModelPage::resident());
        let opener = concurrently(&page, |page| {
            if page.entry.try_share(Holder::Pin, false).is_ok() {
                page.entry.open_reads();
                let _ = page.entry.unshare(Holder::Pin);
            }
            page.read()
        });
        if let Ok(before) = page.entry.try_exclusive(Holder::Pin) {
            page.quiesce(before, HazardAccess::All);
            page.frame.with_mut(|at| unsafe { *at = 9 });
            let _ = page.entry.release_exclusive(Holder::Pin, DIRTY);
        }
        opener.join().unwrap();
    });
}

/// One of two threads that claim an absent page must get it; a thread that requested a wake-up must be woken.
#[test]
fn one_of_two_threads_loads_a_page_and_both_wake() {
    loom::model(|| {
        let entry = Arc::new(Entry::absent());
        let claims = Arc::new(AtomicU64::new(0));
        let load = |entry: &Entry, claims: &AtomicU64| {
            if entry.try_claim_absent(true).is_err() {
                let busy = |s: State| s.any(EXCLUSIVE);
                return (entry.ask_to_wake(busy), false);
            }
            claims.fetch_add(1, Ordering::Relaxed);
            entry.install(address());
            (false, entry.release_exclusive(Holder::Pin, 0))
        };
        let other = thread::spawn({
            let (entry, claims) = (entry.clone(), claims.clone());
            move || load(&entry, &claims)
        });
        let (asked, woke) = load(&entry, &claims);
        let (other_asked, other_woke) = other.join().unwrap();
        assert_eq!(claims.load(Ordering::Relaxed), 1);
        assert!(entry.state(Ordering::Acquire).has(RESIDENT));
        assert!(!asked || other_woke, "a sleeping thread was not woken");
        assert!(!other_asked || woke, "a sleeping thread was not woken");
    });
}

/// No thread may write to a home slot during a read of it: neither directly, nor by loading the page, writing
/// to it and writing it back. The frame represents the slot here.
#[test]
fn a_home_slot_is_not_written_under_its_reader() {
    loom::model(|| {
        let page = Arc::new(ModelPage::absent());
        let reader = concurrently(&page, ModelPage::read_home);
        if page.entry.try_claim_absent(false).is_ok() {
            page.entry.install(address());
            let _ = page.entry.release_exclusive(Holder::Pin, DIRTY);
            if page.entry.try_write_back().is_ok() {
                page.frame.with_mut(|at| unsafe { *at = 3 });
                let _ = page.entry.end_write_back(true);
            }
        }
        reader.join().unwrap();
    });
}

/// As the test before, for a page that one thread loads for shared use while another reads its home, and that
/// is written afterwards.
#[test]
fn a_page_loaded_beside_a_reader_of_its_home_is_not_written() {
    loom::model(|| {
        let page = Arc::new(ModelPage::absent());
        let reader = concurrently(&page, ModelPage::read_home);
        page.entry.try_claim_absent(true).unwrap();
        page.entry.install(address());
        let _ = page.entry.downgrade(Holder::Pin);
        let _ = page.entry.unshare(Holder::Pin);
        if page.entry.try_exclusive(Holder::Pin).is_ok() {
            page.frame.with_mut(|at| unsafe { *at = 3 });
            let _ = page.entry.release_exclusive(Holder::Pin, DIRTY);
        }
        reader.join().unwrap();
    });
}

/// A sleeping thread must be woken when its page becomes guarded, as it may be forbidden to wait for a guard.
#[test]
fn a_new_guard_wakes_sleepers() {
    loom::model(|| {
        let page = Arc::new(ModelPage::resident());
        page.entry.try_share(Holder::Pin, false).unwrap();
        let guard =
            concurrently(&page, |page| page.entry.try_share(Holder::Guard, false).unwrap().any(WAITED));
        let asked = page.entry.ask_to_wake(|s| s.shared() && s.guards() == 0);
        let woken = guard.join().unwrap();
        assert!(!asked || woken, "a sleeping thread was not woken");
    });
}

/// A sweep may shut gates at any time; this must cost only speed.
#[test]
fn a_sweep_takes_no_page_in_use() {
    loom::model(|| {
        let page = Arc::new(ModelPage::open_for_reads());
        let reader = concurrently(&page, ModelPage::read);
        for _ in 0..2 {
            if let Sweep::Claimed(before) = page.entry.sweep(true, false) {
                page.reuse(before);
            }
        }
        assert!(matches!(reader.join().unwrap(), None | Some(0)));
    });
}
