//! The asymmetric barrier and the list of threads, on real threads and the system's own barrier: what loom
//! takes for granted in `model`.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;

use super::barrier;
use super::hazard::Access;
use super::quiesce::quiesce_by;
use super::threads::{barrier_all, counter, drain_all, read_fenced, read_lock_free};
use super::{Entry, Holder};

/// Lets two threads begin a round at the same moment, as near as that can be had without a system call.
fn meet(arrived: &AtomicUsize, round: usize) {
    arrived.fetch_add(1, Ordering::SeqCst);
    let mut turns = 0;
    while arrived.load(Ordering::SeqCst) < 2 * (round + 1) {
        turns += 1;
        barrier::relax(turns);
    }
}

/// Store buffering: each thread stores, passes its side of the barrier, and loads what the other one stored.
/// At least one sees the other's store.
#[test]
fn one_of_two_threads_sees_the_others_store() {
    if !barrier::asymmetric() {
        return; // Then there are two full fences, and nothing to be shown.
    }
    const ROUNDS: usize = 20_000;
    let (x, y, arrived) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    let light = || -> Vec<usize> {
        let side = |round| {
            meet(&arrived, round);
            x.store(round + 1, Ordering::Relaxed);
            barrier::light();
            y.load(Ordering::Relaxed)
        };
        (0..ROUNDS).map(side).collect()
    };
    let heavy = || -> Vec<usize> {
        let side = |round| {
            meet(&arrived, round);
            y.store(round + 1, Ordering::Relaxed);
            barrier::heavy(Vec::new);
            x.load(Ordering::Relaxed)
        };
        (0..ROUNDS).map(side).collect()
    };
    let (light, heavy) = thread::scope(|threads| {
        let light = threads.spawn(light);
        (heavy(), light.join().unwrap())
    });
    for (round, seen) in light.into_iter().zip(heavy).enumerate() {
        let now = round + 1;
        assert!(seen.0 == now || seen.1 == now, "round {now}: neither saw the other's store: {seen:?}");
    }
}

/// Threads read a page without a lock, and end after some reads, so that others register in their place; one
/// thread takes the page from them again and again. Nobody reads while that thread has it.
#[test]
fn frames_are_not_reused_under_threads_that_come_and_go() {
    const VALUE: u64 = 7;
    const READERS: usize = 4;
    let frame = [const { AtomicU64::new(VALUE) }; 2];
    let entry = Entry::new();
    entry.try_claim_absent(true).unwrap();
    entry.install(frame.as_ptr().cast_mut().cast());
    entry.open_reads();
    let _ = entry.release_exclusive(Holder::Pin, 0);
    let number = counter::acquire(true);
    let (is_over, reads) = (AtomicBool::new(false), AtomicUsize::new(0));
    let access = |at: *const u8| {
        // SAFETY: the page's frame is the two words above.
        let words = unsafe { &*at.cast::<[AtomicU64; 2]>() };
        Some([words[0].load(Ordering::Relaxed), words[1].load(Ordering::Relaxed)])
    };
    let reader = &|| {
        for _ in 0..200 {
            let words = read_lock_free::<true, _>(&entry, number, 0, access)
                .or_else(|| read_fenced(&entry, number, access));
            if let Some(words) = words {
                assert_eq!(words, [VALUE; 2], "read while another thread had the page");
                reads.fetch_add(1, Ordering::Relaxed);
            }
        }
    };
    thread::scope(|threads| {
        for _ in 0..READERS {
            threads.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    thread::scope(|generation| _ = generation.spawn(reader));
                }
            });
        }
        let mut taken = 0;
        while taken < 300 || reads.load(Ordering::Relaxed) < 100 {
            let before = entry.try_exclusive(Holder::Pin).unwrap();
            let pages = std::iter::once((&entry, before));
            quiesce_by(pages, Access::All, barrier_all, |entry| drain_all(entry, Access::All));
            for written in [0, VALUE] {
                frame.iter().for_each(|word| word.store(written, Ordering::Relaxed));
            }
            entry.open_reads();
            let _ = entry.release_exclusive(Holder::Pin, 0);
            taken += 1;
            thread::yield_now();
        }
        is_over.store(true, Ordering::Relaxed);
    });
    counter::release(number);
}
