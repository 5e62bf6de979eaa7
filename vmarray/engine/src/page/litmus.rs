//! Tests of the asymmetric barrier and of the thread list, with real threads and the real system call. The
//! loom tests in `model` assume that both work.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;

use super::barrier;
use super::hazard::HazardAccess;
use super::quiesce::quiesce_by;
use super::threads::{
    barrier_all, count_hit, counter, drain_all, read_fenced, read_lock_free, write_fenced, write_lock_free,
};
use super::{Entry, Holder};

/// Store buffering test: each thread stores, passes its side of the barrier, and loads the other thread's
/// store. At least one thread must see the other's store. The quick thread never waits, so its store is in
/// progress when the slow one looks. A round begins when the quick thread has advanced since the last round.
///
/// The test does not cover the compiler's fence, because no compiler reorders atomic accesses yet.
#[test]
fn one_of_two_threads_sees_the_others_store() {
    if !barrier::asymmetric() {
        return; // Two full fences leave nothing to test.
    }
    const ROUNDS: usize = 300;
    let (x, y) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let number = counter::acquire(true);
    // For each round, the first step in which this thread saw the other thread's store.
    let quick = || -> Vec<usize> {
        let (mut step, mut first) = (0, Vec::with_capacity(ROUNDS));
        // Register the thread, because unregistered threads get no barrier.
        count_hit(number);
        while first.len() < ROUNDS {
            step += 1;
            x.store(step, Ordering::Relaxed);
            barrier::light();
            first.resize(y.load(Ordering::Relaxed), step);
        }
        first
    };
    // For each round, the other thread's step that this thread saw after its own barrier.
    let slow = || -> Vec<usize> {
        let (mut step, mut last) = (0, Vec::new());
        for round in 1..=ROUNDS {
            let mut turns = 0;
            while x.load(Ordering::Relaxed) == step {
                turns += 1;
                barrier::relax(turns);
            }
            y.store(round, Ordering::Relaxed);
            barrier_all();
            step = x.load(Ordering::Relaxed);
            last.push(step);
        }
        last
    };
    let (first, last) = thread::scope(|threads| {
        let quick = threads.spawn(quick);
        let last = slow();
        (quick.join().unwrap(), last)
    });
    counter::release(number);
    for (round, (first, last)) in first.into_iter().zip(last).enumerate() {
        assert!(
            first <= last + 1,
            "round {round}: neither thread saw the other thread's store: {first}, {last}"
        );
    }
}

/// Threads read and write a page without a lock, and end after some accesses; new threads replace them. One
/// thread repeatedly takes the page exclusively. Meanwhile no other thread may access it.
#[test]
fn frames_are_not_reused_under_threads_that_come_and_go() {
    const VALUE: u64 = 7;
    let frame = [const { AtomicU64::new(VALUE) }; 2];
    let entry = Entry::absent();
    entry.try_claim_absent(true).unwrap();
    entry.install(frame.as_ptr().cast_mut().cast());
    entry.open_writes();
    let _ = entry.release_exclusive(Holder::Pin, 0);
    let number = counter::acquire(true);
    let (is_over, accesses) = (AtomicBool::new(false), AtomicUsize::new(0));
    // SAFETY: the page's frame is the two words above.
    let words = |at: *const u8| unsafe { &*at.cast::<[AtomicU64; 2]>() };
    // Keep the page for a while, so that a wrong protocol would let another thread run in between.
    let dwell = || (0..200).for_each(|_| std::hint::spin_loop());
    let read = |at: *const u8| {
        let first = words(at)[0].load(Ordering::Relaxed);
        dwell();
        Some([first, words(at)[1].load(Ordering::Relaxed)])
    };
    let write = |at: *mut u8| {
        dwell();
        words(at)[0].store(VALUE, Ordering::Relaxed);
    };
    let reader = &|| {
        let seen = read_lock_free::<true, _>(&entry, number, 0, read);
        let seen = seen.or_else(|| read_fenced(&entry, number, read));
        seen.map(|words| {
            assert_eq!(words, [VALUE; 2], "a thread read the page while another thread held it exclusively")
        })
    };
    let writer = &|| {
        let written = write_lock_free::<true, _>(&entry, number, 0, write);
        written.or_else(|| write_fenced(&entry, number, write))
    };
    let accesses_of: [&(dyn Fn() -> Option<()> + Sync); 2] = [reader, writer];
    thread::scope(|scope| {
        for access in [accesses_of; 2].into_iter().flatten() {
            let (is_over, accesses) = (&is_over, &accesses);
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    let some = move || {
                        let done = (0..200).filter_map(|_| access()).count();
                        accesses.fetch_add(done, Ordering::Relaxed);
                    };
                    thread::scope(|generation| _ = generation.spawn(some));
                }
            });
        }
        let mut taken = 0;
        while taken < 300 || accesses.load(Ordering::Relaxed) < 100 {
            let before = entry.try_exclusive(Holder::Pin).unwrap();
            let pages = std::iter::once((&entry, before));
            quiesce_by(pages, HazardAccess::All, barrier_all, |entry| drain_all(entry, HazardAccess::All));
            frame.iter().for_each(|word| word.store(0, Ordering::Relaxed));
            dwell();
            let now = frame.each_ref().map(|word| word.load(Ordering::Relaxed));
            frame.iter().for_each(|word| word.store(VALUE, Ordering::Relaxed));
            entry.open_writes();
            let _ = entry.release_exclusive(Holder::Pin, 0);
            if now != [0; 2] {
                is_over.store(true, Ordering::Relaxed);
            }
            assert_eq!(now, [0; 2], "a thread wrote to the page while another thread held it exclusively");
            taken += 1;
            thread::yield_now();
        }
        is_over.store(true, Ordering::Relaxed);
    });
    counter::release(number);
}
