//! Tests of range operations: the order of their pages, read-ahead, and the pages that bypass the cache.

use std::collections::HashSet;
use std::sync::Arc;

use crate::common::{Shape, devices, together};
use vmarray::prelude::*;
use vmarray::{ErrorKind, Placement, VirtualArray, views::SharedSection};

/// An array with a cache of one page, filled with the numbers of its pages.
fn one_frame(pages: usize) -> VirtualArray<u32> {
    let array: VirtualArray<u32> =
        Shape { frames: 1, channels: vec![1], read_ahead: false, ..Shape::default() }.build(pages * 8);
    array.for_each_mut(.., |i, x| *x = i as u32).unwrap();
    array
}

#[test]
fn copies_between_arrays_are_whole_wherever_they_go() {
    let source = one_frame(10);
    for start in [0, 16, 32] {
        let target = one_frame(10);
        target.copy_from(start, source.section(8..48).unwrap()).unwrap();
        let copied: Vec<u32> = (8..48).collect();
        assert_eq!(target.to_vec(start..start + 40).unwrap(), copied);
    }
}

#[test]
fn caches_too_small_for_it_are_not_read_ahead() {
    for frames in 1..8 {
        let shape = Shape { frames, channels: vec![1], read_ahead: false, ..Shape::default() };
        let array: VirtualArray<u32> = shape.build(160);
        array.for_each_mut(.., |i, x| *x = i as u32).unwrap();
        array.evict(..).unwrap();
        array.reset_stats();
        assert_eq!(array.to_vec(..24).unwrap(), (0..24).collect::<Vec<_>>());
        let total = array.stats().total();
        assert_eq!((total.misses, total.prefetches), (3, 0), "{frames} frames");
    }
    let array: VirtualArray<u32> =
        Shape { frames: 8, channels: vec![1], read_ahead: false, ..Shape::default() }.build(160);
    array.for_each_mut(.., |i, x| *x = i as u32).unwrap();
    array.evict(..).unwrap();
    array.reset_stats();
    array.to_vec(..24).unwrap();
    assert!(array.stats().total().prefetches > 0, "eight frames are enough");
}

/// 40 pages of 8 elements, each its own index, in two channels of 4 frames; the cache is empty.
fn far_larger_than_its_cache() -> VirtualArray<u32> {
    let array: VirtualArray<u32> =
        Shape { frames: 4, channels: vec![2], read_ahead: false, ..Shape::default() }.build(320);
    array.for_each_mut(.., |i, x| *x = i as u32).unwrap();
    array.evict(..).unwrap();
    array.reset_stats();
    array
}

const PAGE_BYTES: u64 = 32;

#[test]
fn long_reads_bypass_the_cache_and_see_its_changes() {
    let array = far_larger_than_its_cache();
    array.set(100, 7).unwrap();
    array.get(200).unwrap();
    array.reset_stats();
    let mut expected: Vec<u32> = (0..320).collect();
    expected[100] = 7;
    assert_eq!(array.to_vec(3..317).unwrap(), expected[3..317]);
    let total = array.stats().total();
    assert_eq!((total.misses, total.prefetches, total.evictions), (0, 0, 0));
    // The read copies all pages except the two pages in the cache. One of these is newer than its home.
    // Adjacent slots form one copy.
    assert_eq!((total.bypasses, total.bytes_from_device), (38, 38 * PAGE_BYTES));
    assert_eq!(total.bytes_to_device, 0);
    assert!(total.submissions <= 4, "{total:?}");
    assert_eq!(array.get(100).unwrap(), 7);
    assert_eq!(array.stats().total().misses, 0, "what was resident still is");
}

#[test]
fn long_writes_go_home_and_keep_resident_pages_coherent() {
    let array = far_larger_than_its_cache();
    array.set(100, 7).unwrap();
    array.get(200).unwrap();
    array.reset_stats();
    let values: Vec<u32> = (1000..1300).collect();
    array.write(10, &values).unwrap();
    let total = array.stats().total();
    // The write copies 36 whole pages, two of them in the cache, and parts of one page at each end.
    assert_eq!((total.bypasses, total.bytes_to_device), (34, 34 * PAGE_BYTES));
    assert_eq!((total.misses, total.bytes_from_device), (2, 2 * PAGE_BYTES));
    assert_eq!((array.get(100).unwrap(), array.get(200).unwrap()), (1090, 1190));
    let mut expected: Vec<u32> = (0..320).collect();
    expected[10..310].copy_from_slice(&values);
    assert_eq!(array.to_vec(..).unwrap(), expected);
    array.evict(..).unwrap();
    assert_eq!(array.to_vec(..).unwrap(), expected);
    assert_eq!(array.find(Field::whole(), &1234).unwrap(), [244]);
}

/// More threads than stages: a thread without a stage waits. No page is fetched twice or through frames.
#[test]
fn long_reads_of_many_threads_wait_for_their_turn() {
    let array = far_larger_than_its_cache();
    let expected: Vec<u32> = (0..320).collect();
    together(24, |_| assert_eq!(array.to_vec(..).unwrap(), expected));
    let total = array.stats().total();
    assert_eq!((total.misses, total.evictions), (0, 0));
    assert_eq!((total.bypasses, total.bytes_from_device), (24 * 40, 24 * 40 * PAGE_BYTES));
}

#[test]
fn long_writes_of_many_threads_are_atomic_by_page() {
    let array = far_larger_than_its_cache();
    together(24, |thread| array.write(0, &[1000 + thread as u32; 320]).unwrap());
    for values in array.to_vec(..).unwrap().chunks(8) {
        assert!(values[0] >= 1000 && values.iter().all(|value| *value == values[0]), "{values:?}");
    }
}

#[test]
fn long_ranges_wait_for_pages_that_others_hold() {
    let array = far_larger_than_its_cache();
    let barrier = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut page = array.page_mut(20).unwrap();
            barrier.wait();
            // The reader runs before or after this write, and never sees half of it.
            page.fill(5);
        });
        barrier.wait();
        let seen = array.to_vec(..).unwrap();
        assert_eq!(seen[160..168], [5; 8]);
        assert_eq!(seen[..160], (0..160).collect::<Vec<u32>>());
    });
}

#[test]
fn readers_and_writers_of_long_ranges_meet_page_by_page() {
    let array = far_larger_than_its_cache();
    array.write(0, &[0; 320]).unwrap();
    together(4, |thread| {
        for round in 0..300 {
            if thread < 2 {
                array.write(0, &[round * 2 + thread as u32 + 1; 320]).unwrap();
                array.set((round as usize * 37) % 320, 0).unwrap();
                continue;
            }
            for page in array.to_vec(..).unwrap().chunks(8) {
                let others: HashSet<_> = page.iter().filter(|x| **x != 0).collect();
                assert!(others.len() <= 1, "{page:?}");
            }
        }
    });
}

#[test]
fn ratios_of_any_size_make_an_array_or_a_typed_error() {
    let build = |ratios: Vec<u32>, pages: usize| {
        let shape = Shape { page_len: 4, ..Shape::default() };
        let describe = shape.describe::<u32, _>(pages * 4, devices(ratios.len()));
        describe.placement(Placement::Ratios(ratios)).build()
    };
    let channels = |ratios: Vec<u32>, pages| build(ratios, pages).unwrap().stats().channels.len();
    assert_eq!(channels(vec![u32::MAX], 10), 1);
    assert_eq!(channels(vec![3_000_000, 2_000_000], 10), 5);
    assert_eq!(channels(vec![3, 2], 4), 4, "no channel is without a page");
    let error = build(vec![u32::MAX, 1], 10).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::TooManyChannels { channels: 1 << 32, most: 1 << 16 });
}

#[test]
fn vectors_and_slices_become_arrays() {
    for len in [0, 1, 100_000] {
        let values: Vec<[i32; 1000]> = (0..len / 1000).map(|i| [i as i32; 1000]).collect();
        let rows = VirtualArray::try_from(&values[..]).unwrap();
        assert_eq!((rows.len(), rows.to_vec(..).unwrap()), (values.len(), values));
        let values: Vec<u64> = (0..len).collect();
        let array: VirtualArray<u64> = values.clone().try_into().unwrap();
        assert_eq!(array.to_vec(..).unwrap(), values);
        assert_eq!((&array).into_iter().map(Result::unwrap).collect::<Vec<_>>(), values);
        let shared = SharedSection::new(&Arc::new(array), ..).unwrap();
        assert_eq!((&shared).into_iter().map(Result::unwrap).collect::<Vec<_>>(), values);
    }
}

#[test]
fn a_log_line_has_the_event_and_no_more() {
    let array = one_frame(10);
    array.flush(..).unwrap();
    array.reset_stats();
    assert_eq!(array.stats().to_string(), "0 misses");
    array.get(0).unwrap();
    let text = array.stats().to_string();
    assert!(
        text.starts_with("1 misses, 1 evictions, ") && text.contains("32 bytes from the device"),
        "{text}"
    );
    assert!(!text.contains("hits (") && !text.contains(" 0 "), "{text}");
    let text = array.footprint().to_string();
    assert!(text.starts_with("320 bytes on devices; RAM: cache 64 bytes of 64 bytes"), "{text}");
}
