//! Tests of the number of copied bytes: operations copy no more than necessary.

use crate::common::{POLICIES, Shape, moved, numbered};
use vmarray::prelude::*;
use vmarray::{EvictionPolicy, Field, VirtualArray};
use vmarray_conformance::wrap::Counting;

const PAGE: u64 = 64;

/// 10 pages of 16 `u32` in one channel of 4 frames.
fn array() -> VirtualArray<u32> {
    Shape::one(16, 4).build(160)
}

/// All elements are 1, and the cache is empty.
fn written(array: VirtualArray<u32>) -> VirtualArray<u32> {
    array.fill(.., 1).unwrap();
    array.evict(..).unwrap();
    array.reset_stats();
    array
}

#[test]
fn a_new_array_is_read_without_copies() {
    let array = array();
    assert_eq!(array.to_vec(..).unwrap(), [0; 160]);
    assert_eq!(array.stats().total().misses, 0);
    assert!(array.iter().all(|x| x.unwrap() == 0));
    assert_eq!(moved(&array), (0, 0));
    assert_eq!(array.stats().total().write_backs, 0);
}

#[test]
fn overwriting_whole_pages_fetches_nothing() {
    let array = array();
    array.write(0, &[1; 160]).unwrap();
    array.flush(..).unwrap();
    array.evict(..).unwrap();
    array.reset_stats();
    array.write(0, &[2; 160]).unwrap();
    assert_eq!(moved(&array).1, 0);
    array.evict(..).unwrap();
    array.reset_stats();
    // The write covers two whole pages, and two parts of pages; only the latter are fetched.
    array.write(10, &[3; 40]).unwrap();
    assert_eq!(moved(&array).1, 2 * PAGE);
    assert_eq!(array.to_vec(9..51).unwrap()[..], [&[2][..], &[3; 40], &[2]].concat());
}

#[test]
fn hits_copy_nothing_and_misses_one_page() {
    let array = written(Shape { counts_hits: true, ..Shape::one(16, 4) }.build(160));
    for _ in 0..100 {
        assert_eq!(array.get(5).unwrap(), 1);
    }
    let stats = array.stats();
    assert_eq!((stats.hits, stats.total().misses), (Some(99), 1));
    assert_eq!(moved(&array), (0, PAGE));
}

#[test]
fn clean_pages_leave_without_copies() {
    for policy in POLICIES {
        let shape = Shape {
            page_len: 16,
            channels: vec![1],
            frames: 2,
            policy,
            read_ahead: false,
            ..Shape::default()
        };
        let array = written(shape.build(160));
        for i in (0..160).step_by(16) {
            assert_eq!(array.get(i).unwrap(), 1);
        }
        assert_eq!(moved(&array), (0, 10 * PAGE), "{policy:?}");
        assert_eq!(array.stats().total().evictions, 8, "{policy:?}");
    }
}

#[test]
fn a_page_is_written_back_once_however_often_it_is_written() {
    let array = array();
    for n in 0..50 {
        array.set(3, n).unwrap();
        array.set(19, n).unwrap();
    }
    array.flush(..).unwrap();
    array.flush(..).unwrap();
    assert_eq!(moved(&array), (2 * PAGE, 0));
    array.get(3).unwrap();
    array.flush(..).unwrap();
    assert_eq!(moved(&array), (2 * PAGE, 0));
}

#[test]
fn discarded_pages_are_neither_written_back_nor_fetched() {
    let array = written(array());
    array.set(0, 9).unwrap();
    assert_eq!(moved(&array), (0, PAGE));
    array.discard(..).unwrap();
    assert_eq!(array.to_vec(..).unwrap(), [0; 160]);
    array.flush(..).unwrap();
    assert_eq!(moved(&array), (0, PAGE));
    // Pages that the write covers are not fetched either.
    array.section_mut(16..48).unwrap().write(0, &[3; 32]).unwrap();
    array.flush(..).unwrap();
    assert_eq!(moved(&array), (2 * PAGE, PAGE));
}

#[test]
fn filling_absent_pages_copies_nothing() {
    let array = array();
    array.fill(.., 7).unwrap();
    assert_eq!(moved(&array), (0, 0));
    assert_eq!(array.get(100).unwrap(), 7);
    assert_eq!(moved(&array), (0, PAGE));
}

#[test]
fn uncached_access_moves_one_element() {
    let array = array();
    array.set_uncached(33, 5).unwrap();
    assert_eq!(array.get_uncached(33).unwrap(), 5);
    assert_eq!(array.get_uncached(34).unwrap(), 0);
    assert_eq!(moved(&array), (4, 8));
    assert_eq!(array.get_uncached(150).unwrap(), 0);
    assert_eq!(moved(&array), (4, 8), "a page without contents");
    // The accesses are coherent with the cache in both directions.
    array.set(33, 6).unwrap();
    assert_eq!(array.get_uncached(33).unwrap(), 6);
    array.set_uncached(33, 7).unwrap();
    assert_eq!(array.get(33).unwrap(), 7);
}

#[test]
fn find_writes_back_dirty_pages_and_fetches_indices_only() {
    let array = written(array());
    array.set(20, 8).unwrap();
    array.set(150, 8).unwrap();
    assert_eq!(moved(&array), (0, 2 * PAGE));
    assert_eq!(array.find(Field::whole(), &8).unwrap(), [20, 150]);
    assert_eq!(moved(&array), (2 * PAGE, 2 * PAGE + 16 + 2 * 8));
    array.reset_stats();
    assert_eq!(array.find(Field::whole(), &8).unwrap(), [20, 150]);
    assert_eq!(moved(&array), (0, 16 + 2 * 8), "nothing is dirty any more");
}

#[test]
fn prefetched_pages_are_hits() {
    let array = written(array());
    array.prefetch(0..32).unwrap();
    assert_eq!(array.get(0).unwrap() + array.get(16).unwrap(), 2);
    let total = array.stats().total();
    assert_eq!((total.prefetches, total.misses, total.bytes_from_device), (2, 0, 2 * PAGE));
}

#[test]
fn sequential_reads_are_fetched_ahead_and_once() {
    let shape = Shape { page_len: 16, channels: vec![2], frames: 64, ..Shape::default() };
    let array = shape.build::<u32>(16 * 100);
    array.fill(.., 1).unwrap();
    assert!((0..array.len()).all(|i| array.get(i).unwrap() == 1));
    let total = array.stats().total();
    assert_eq!(total.bytes_from_device, 100 * PAGE);
    assert!(total.misses <= 3, "{total:?}");
    assert_eq!(total.misses + total.prefetches, 100);
}

#[test]
fn strided_reads_are_fetched_ahead_both_ways() {
    let shape = Shape { page_len: 16, channels: vec![2], frames: 64, ..Shape::default() };
    for stride in [3_i64, -1, -2] {
        let array = shape.build::<u32>(16 * 300);
        array.fill(.., 1).unwrap();
        array.reset_stats();
        let first = if stride > 0 { 0 } else { 299 };
        let pages = std::iter::successors(Some(first), |page| Some(page + stride));
        let pages: Vec<i64> = pages.take_while(|page| (0..300).contains(page)).collect();
        assert!(pages.iter().all(|page| array.get(*page as usize * 16).unwrap() == 1));
        let total = array.stats().total();
        assert!(total.misses <= 4, "{stride}: {total:?}");
        assert_eq!(total.misses + total.prefetches, pages.len() as u64);
        assert_eq!(total.bytes_from_device, pages.len() as u64 * PAGE);
    }
}

#[test]
fn read_ahead_takes_half_of_the_frames_and_is_used() {
    let shape = Shape { page_len: 16, channels: vec![1], frames: 16, ..Shape::default() };
    let array = shape.build::<u32>(16 * 1000);
    array.fill(.., 1).unwrap();
    array.reset_stats();
    // Four interleaved streams; each alone would have a window of two pages.
    for page in 0..200 {
        for stream in 0..4 {
            assert_eq!(array.get((stream * 250 + page) * 16).unwrap(), 1);
        }
    }
    let total = array.stats().total();
    assert_eq!(total.prefetches_unused, 0);
    // Three of the streams end at the start of another; their read-ahead counts too.
    assert!((800 * PAGE..=812 * PAGE).contains(&total.bytes_from_device), "{total:?}");
    assert!(total.prefetches > 400, "{total:?}");
}

#[test]
fn pages_that_are_used_once_cost_no_barriers() {
    let array = Shape::one(16, 8).build::<u32>(16 * 100);
    array.fill(.., 1).unwrap();
    array.reset_stats();
    for i in 0..300 {
        array.get(i * 7919 % 100 * 16).unwrap();
    }
    let total = array.stats().total();
    assert!(total.evictions > 200);
    assert_eq!(total.barriers, 0);
    // Repeated use opens the pages, so an eviction must close several pages at a time.
    for i in 0..300 {
        (0..3).for_each(|_| assert_eq!(array.get(i * 7919 % 100 * 16).unwrap(), 1));
    }
    let total = array.stats().total();
    assert!(total.barriers > 0 && total.barriers <= total.evictions);
}

#[test]
fn exact_lru_evicts_the_least_recently_used_page() {
    let shape = Shape { policy: EvictionPolicy::Lru, ..Shape::one(1, 3) };
    let array = shape.build::<u32>(10);
    array.fill(.., 1).unwrap();
    for i in [0, 1, 2, 0, 1, 3, 0, 1] {
        array.get(i).unwrap();
    }
    // Page 3 evicted page 2; the others stayed.
    assert_eq!(array.stats().total().misses, 4);
    array.get(2).unwrap();
    array.get(0).unwrap();
    array.get(1).unwrap();
    assert_eq!(array.stats().total().misses, 5);
}

#[test]
fn small_caches_make_progress() {
    let shape = Shape { page_len: 4, channels: vec![1], frames: 1, ..Shape::default() };
    let array = shape.build::<u32>(400);
    for i in 0..400 {
        array.set(i, i as u32).unwrap();
    }
    assert!((0..400).rev().all(|i| array.get(i).unwrap() == i as u32));
}

#[test]
fn write_backs_go_in_batches() {
    let device = std::sync::Arc::new(Counting::new(crate::common::host()));
    let shape = Shape { page_len: 16, channels: vec![1], frames: 256, ..Shape::default() };
    let array = shape.describe::<u32, _>(16 * 4096, vec![device]).build().unwrap();
    for i in (0..array.len()).step_by(16) {
        array.set(i, 1).unwrap();
    }
    array.flush(..).unwrap();
    let total = array.stats().total();
    assert_eq!(total.write_backs, 4096);
    assert!(total.submissions * 16 <= 4096, "{total:?}");
}

#[test]
fn pages_only_read_by_a_cursor_are_not_written_back() {
    let array = written(array());
    let mut cursor = array.cursor_mut();
    assert_eq!((0..160).map(|i| cursor.get(i).unwrap()).sum::<u32>(), 160);
    assert_eq!(cursor.set(0, 5).and_then(|()| cursor.get(0)).unwrap(), 5);
    // Read the element first, then write to it.
    assert_eq!((cursor.get(33).unwrap(), cursor.get(47).unwrap()), (1, 1));
    cursor.set(35, 6).unwrap();
    cursor.set(34, 7).unwrap();
    assert!(cursor.get(160).is_err() && cursor.set(160, 1).is_err());
    drop(cursor);
    array.evict(..).unwrap();
    assert_eq!(moved(&array).0, 2 * PAGE);
    assert_eq!((array.get(0).unwrap(), array.to_vec(32..36).unwrap()), (5, vec![1, 1, 7, 6]));
}

#[test]
fn iterators_pass_over_pages_without_fetching_them() {
    let array = numbered();
    let fetched = |run: &dyn Fn()| {
        array.evict(..).unwrap();
        array.reset_stats();
        run();
        moved(&array).1 / PAGE
    };
    let firsts = [0, 64, 128];
    assert_eq!(fetched(&|| assert!(array.pages().step_by(4).map(|page| page.unwrap()[0]).eq(firsts))), 3);
    let lasts = [9, 6, 3, 0];
    let backwards = || array.pages_mut().rev().step_by(3).map(|page| page.unwrap().page());
    assert_eq!(fetched(&|| assert!(backwards().eq(lasts))), 4);
    assert_eq!(fetched(&|| assert_eq!(array.iter().nth(100).unwrap().unwrap(), 100)), 1);
    assert_eq!(fetched(&|| assert_eq!(array.iter().nth_back(100).unwrap().unwrap(), 59)), 1);
    assert_eq!(fetched(&|| assert_eq!(array.iter().last().unwrap().unwrap(), 159)), 1);
    assert_eq!(fetched(&|| assert_eq!(array.iter().count(), 160)), 0);
    assert_eq!(fetched(&|| assert!(array.iter().nth(160).is_none())), 0);
    assert_eq!(fetched(&|| assert!(array.section(5..).unwrap().iter().nth(usize::MAX).is_none())), 0);
    for (start, end, step) in [(0, 160, 1), (3, 150, 5), (15, 17, 2), (7, 160, 40), (20, 20, 3)] {
        let expected: Vec<u32> = (start..end).step_by(step).collect();
        let found = array.section(start as usize..end as usize).unwrap().iter().step_by(step);
        assert_eq!(found.collect::<Result<Vec<_>, _>>().unwrap(), expected);
        // Continue after single elements were taken from the iterator.
        let mut left = array.section(start as usize..end as usize).unwrap().iter();
        let taken: Vec<u32> = left.by_ref().take(3).map(|x| x.unwrap()).collect();
        let rest = left.skip(step).map(|x| x.unwrap());
        assert!(taken.into_iter().chain(rest).eq((start..end).take(3).chain((start..end).skip(3 + step))));
    }
}
