//! Tests of contention between threads: no deadlock, no starvation, no wasted work.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use vmarray::prelude::*;

use crate::common::{Shape, together};
use vmarray::device::ErrorKind as DeviceErrorKind;
use vmarray::device::wrap::{Fault, Operation};
use vmarray::{ErrorKind, Field};
use vmarray_conformance::wrap::{Counting, Faulty};

/// While one thread flushes and waits for a guard, the guard's thread can use all other pages.
#[test]
fn a_flush_that_waits_for_a_guard_holds_nothing() {
    let array = Shape { page_len: 4, channels: vec![1], frames: 8, ..Shape::default() }.build::<u32>(40);
    for round in 0..50 {
        array.fill(.., round).unwrap();
        (0..8).for_each(|i| array.set(4 * i, round).unwrap());
        let (taken, flushing) = mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut guard = array.page_mut(1).unwrap();
                guard[0] = round;
                taken.send(()).unwrap();
                // The other thread flushes this page while this thread holds a guard of it.
                for _ in 0..200 {
                    array.write(0, &[round; 4]).unwrap();
                    array.write(8, &[round; 4]).unwrap();
                    std::thread::yield_now();
                }
            });
            flushing.recv().unwrap();
            array.flush(..).unwrap();
        });
    }
}

/// A thread takes a guard on a page while another guard's thread already waits for it: that thread gets an
/// error.
#[test]
fn a_page_that_becomes_guarded_is_not_waited_for_for_ever() {
    let array =
        Shape { page_len: 1 << 16, channels: vec![1], frames: 8, ..Shape::default() }.build::<u32>(8 << 16);
    for _ in 0..60 {
        array.discard(..).unwrap();
        together(2, |thread| {
            let Ok(_first) = array.page_mut(2 * thread) else { return };
            if let Err(error) = array.page_mut(2 - 2 * thread) {
                let kind = error.kind();
                assert!(matches!(kind, ErrorKind::WouldDeadlock { .. } | ErrorKind::TooManyGuards { .. }));
            }
        });
    }
}

/// A stream of overlapping readers does not starve a writer.
#[test]
fn a_writer_is_not_starved_by_readers() {
    let array = Shape { page_len: 4096, channels: vec![1], frames: 4, ..Shape::default() }.build::<u32>(4096);
    let (done, reads) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut into = vec![0; 4096];
                while !done.load(Ordering::Relaxed) {
                    array.read(0, &mut into).unwrap();
                    reads.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        while reads.load(Ordering::Relaxed) < 100 {
            std::thread::yield_now();
        }
        for n in 0..50 {
            array.set(7, n).unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
}

/// Growth of the cache fails, and the arrays admit more guards than they have frames.
#[test]
fn guards_are_served_after_the_cache_failed_to_grow() {
    let device = Arc::new(Faulty::new(crate::common::host()));
    device.inject(Fault::new(Operation::AllocateHost, DeviceErrorKind::OutOfMemory).from_call(2));
    let page_len = 16 << 20;
    let shape = Shape { page_len, channels: vec![1], frames: 4, ..Shape::default() };
    let array = shape.describe::<u8, _>(6 * page_len, vec![device]).build().unwrap();
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let array = &array;
            scope.spawn(move || {
                for page in 0..3 {
                    drop(array.page((page + thread) % 6).unwrap());
                    array.get_uncached(5).unwrap();
                }
            });
        }
        for i in 0..6 {
            array.to_vec(i * page_len..i * page_len + 10).unwrap();
        }
    });
}

/// A miss on a cache full of dirty pages writes back a batch, not the cache.
#[test]
fn a_miss_on_a_dirty_cache_writes_back_one_batch() {
    for policy in crate::common::POLICIES {
        let shape = Shape {
            page_len: 4,
            channels: vec![1],
            frames: 1024,
            policy,
            read_ahead: false,
            ..Shape::default()
        };
        let array = shape.build::<u32>(4 * 4096);
        (0..1024).for_each(|page| array.set(4 * page, 1).unwrap());
        array.reset_stats();
        array.set(4 * 2000, 1).unwrap();
        let total = array.stats().total();
        assert!(total.write_backs <= 128 && total.submissions <= 2, "{policy:?}: {total:?}");
    }
}

/// Pages that were read but never written get their zeroes on the device in long runs, once, and are not
/// fetched for that later.
#[test]
fn a_search_over_pages_without_contents_costs_few_submissions() {
    let device = Arc::new(Counting::new(crate::common::host()));
    let shape = Shape { page_len: 16, channels: vec![1], frames: 512, ..Shape::default() };
    let array = shape.describe::<u32, _>(16 * 1024, vec![device]).build().unwrap();
    (0..512).for_each(|page| assert_eq!(array.get(16 * page).unwrap(), 0));
    array.reset_stats();
    assert_eq!(array.count(.., Field::whole(), &0).unwrap(), array.len());
    assert_eq!(array.count(.., Field::whole(), &0).unwrap(), array.len());
    let total = array.stats().total();
    assert!(total.submissions <= 8, "{total:?}");
    assert_eq!((total.write_backs, total.bytes_to_device), (0, 0));
    array.reset_stats();
    assert_eq!(array.get(16 * 1000).unwrap(), 0);
    assert_eq!(array.stats().total().bytes_from_device, 0);
}

/// Range reads fetch exactly the needed pages.
#[test]
fn short_range_reads_fetch_nothing_beside_them() {
    let shape = Shape { page_len: 4, channels: vec![1], frames: 256, ..Shape::default() };
    let array = shape.build::<u32>(4 * 4096);
    array.fill(.., 1).unwrap();
    let mut pages = 0;
    for k in 0..100_u64 {
        let first = (k * 7919 % 500) as usize * 8;
        array.to_vec(4 * first..4 * (first + 8)).unwrap();
        pages += 8;
    }
    let total = array.stats().total();
    assert!(total.misses + total.prefetches <= pages, "{total:?}");
}

/// Every kind of work on a device is counted as a submission.
#[test]
fn all_submissions_are_counted() {
    let array = Shape { page_len: 4, channels: vec![1], frames: 4, ..Shape::default() }.build::<u32>(4);
    let mut last = 0;
    let mut step = |what: &str| {
        let now = array.stats().total().submissions;
        assert!(now > last, "{what}");
        last = now;
    };
    array.set_uncached(1, 1).unwrap();
    step("uncached write");
    array.get_uncached(1).unwrap();
    step("uncached read");
    array.fill(.., 2).unwrap();
    step("fill");
    array.find(Field::whole(), &2).unwrap();
    step("find");
    assert_eq!(array.compare_exchange(0, 5, 6).unwrap(), Err(2));
    step("load");
    let before = array.stats().total().submissions;
    array.flush(..).unwrap();
    assert_eq!(array.stats().total().submissions, before, "a comparison that failed wrote nothing");
}
