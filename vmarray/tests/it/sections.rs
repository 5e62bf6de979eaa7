//! Tests of sections of arrays: copied bytes, threads, and traits. `model` and `views` test their results.

use std::sync::Arc;
use vmarray::prelude::*;

use crate::common::executor::{all, block_on};
use crate::common::{KEY, Pair, Shape, VALUE, moved, moved_by};
use vmarray::expr::{Expr, index};
use vmarray::views::{Section, SectionMut, SharedSection};
use vmarray::{ErrorKind, Field, VirtualArray};

/// Pages of 16 pairs: 128 bytes.
const PAGE: u64 = 128;

/// 10 pages of pairs in one channel of 8 frames, written back, with an empty cache.
fn array() -> VirtualArray<Pair> {
    let array = Shape::one(16, 8).build(160);
    array.write(0, &(0..160).map(|i| [i % 8, i]).collect::<Vec<Pair>>()).unwrap();
    array.evict(..).unwrap();
    array.reset_stats();
    array
}

#[test]
fn only_pages_of_the_section_are_fetched_and_written_back() {
    let array = array();
    for i in [0, 40, 100] {
        array.set(i, [9, 9]).unwrap();
    }
    assert_eq!(moved(&array), (0, 3 * PAGE));
    let section = array.section(33..50).unwrap();
    assert_eq!(section.count(.., KEY, &9).unwrap(), 1);
    assert_eq!(moved(&array), (PAGE, 3 * PAGE + 16));
    // At the second time all pages are cached.
    assert_eq!(section.count(.., KEY, &1).unwrap(), 3);
    assert_eq!(moved(&array), (PAGE, 3 * PAGE + 2 * 16));
    // An overlapping section needs one more page.
    assert_eq!(array.section(45..101).unwrap().count(.., KEY, &9).unwrap(), 1);
    assert_eq!(moved(&array), (2 * PAGE, 3 * PAGE + 3 * 16));
    // Written-back pages stay in the cache, and a read of a section fetches only the section's pages.
    array.reset_stats();
    assert_eq!(section.get(7).unwrap(), [9, 9]);
    assert_eq!(moved(&array), (0, 0));
    assert_eq!(array.section(60..70).unwrap().to_vec(..).unwrap().len(), 10);
    assert_eq!(moved(&array), (0, 2 * PAGE));
}

#[test]
fn dropping_a_view_keeps_cached_pages() {
    let array = Arc::new(array());
    for _ in 0..2 {
        let section = SharedSection::new(&array, 20..40).unwrap();
        assert_eq!(section.to_vec(..).unwrap()[3], [7, 23]);
        assert_eq!(moved(&array), (0, 2 * PAGE));
    }
}

#[test]
fn views_are_small_copies_for_any_thread() {
    fn is_shared<V: Copy + Send + Sync>() {}
    is_shared::<Section<'static, VirtualArray<u32>>>();
    is_shared::<SectionMut<'static, VirtualArray<u32>>>();
    fn is_owned<V: Clone + Send + Sync + 'static>() {}
    is_owned::<SharedSection<VirtualArray<u32>>>();
    assert_eq!(size_of::<SectionMut<'_, VirtualArray<u32>>>(), 24);
}

#[test]
fn tasks_fetch_and_write_back_the_pages_of_the_section_alone() {
    let array = array();
    let section = array.section_mut(20..64).unwrap();
    block_on(section.prefetch_async(..)).unwrap();
    assert_eq!(array.stats().total().bytes_from_device, 3 * PAGE);
    all((0..44).map(|at| section.set_async(at, [1; 2]))).into_iter().for_each(|set| set.unwrap());
    array.set(150, [1; 2]).unwrap();
    array.reset_stats();
    block_on(section.flush_async(12..44)).unwrap();
    let total = array.stats().total();
    assert_eq!((total.write_backs, total.bytes_to_device), (2, 2 * PAGE), "elements 32 to 63 of the array");
}

#[test]
fn futures_outlive_their_section() {
    let array = array();
    let (coming, page) = {
        let section = array.section(100..150).unwrap();
        (section.get_async(5), section.page_async(1))
    };
    assert_eq!(block_on(coming).unwrap(), [1, 105]);
    assert_eq!(block_on(page).unwrap()[0], [0, 112]);
}

#[test]
fn asking_again_moves_the_answer_alone() {
    let array = array();
    // The section is in three pages, the second of them dirty.
    array.set(40, [7, 7]).unwrap();
    array.set(100, [7, 7]).unwrap();
    let section = array.section(20..60).unwrap();
    let condition = || KEY.eq(7) & index().ge(12);
    let first = moved_by(&array, || assert_eq!(section.count_where(.., condition()).unwrap(), 4));
    assert_eq!(first, (PAGE, 16), "one page, and an answer of two words");
    for _ in 0..3 {
        assert_eq!(moved_by(&array, || section.count_where(.., condition()).unwrap()), (0, 16));
        assert_eq!(moved_by(&array, || section.histogram(.., KEY, 8).unwrap()), (0, 8 * 8));
        let found = moved_by(&array, || assert_eq!(section.find_where(.., condition(), 3).unwrap().total, 4));
        assert_eq!(found.0, 0);
        assert!((16 + 3 * 8..=PAGE).contains(&found.1), "{found:?}");
        let sum = moved_by(&array, || section.sum(.., VALUE).unwrap());
        assert!(sum.0 == 0 && (8..=PAGE).contains(&sum.1), "{sum:?}");
        let extreme = moved_by(&array, || section.arg_max(.., VALUE).unwrap());
        assert!(extreme.0 == 0 && (8..=PAGE).contains(&extreme.1), "{extreme:?}");
        let selected = moved_by(&array, || section.select_where(.., condition()).unwrap().count());
        assert!(selected.0 == 0 && selected.1 >= 4 * 8, "{selected:?}");
    }
}

#[test]
fn gathers_and_scatters_move_indices_and_elements_alone() {
    let array = array();
    let section = array.section_mut(20..90).unwrap();
    let list = [65, 3, 40, 3];
    for _ in 0..2 {
        let bytes = moved_by(&array, || {
            let truth = list.map(|i| [(i as u32 + 20) % 8, i as u32 + 20]);
            assert_eq!(section.gather(&list).unwrap(), truth);
        });
        assert_eq!(bytes, (4 * 8, 4 * 8));
    }
    let bytes = moved_by(&array, || section.scatter(&list, &[[1; 2], [2; 2], [3; 2], [4; 2]]).unwrap());
    assert_eq!(bytes, (3 * (8 + 8), 0), "of two values for one element the last one");
    assert_eq!(array.gather(&[85, 23, 60]).unwrap(), [[1; 2], [4; 2], [3; 2]]);
}

#[test]
fn two_instructions_more_can_be_too_many() {
    let array = Shape::default().build::<u64>(64);
    // Each term has an index, a constant and a product: 255 instructions.
    let mut long: Expr<u64, u64> = index();
    for i in 0..127 {
        long = long * (1_000 + i);
    }
    assert!(array.sum(.., &long).is_ok() && array.section(..9).unwrap().sum(.., &long).is_ok());
    let error = array.section(9..).unwrap().sum(.., &long).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::ExpressionTooLong { most: 256 });
}

#[test]
fn threads_compute_on_their_sections() {
    let array = Arc::new(Shape::default().build::<u64>(400));
    let parts: Vec<_> = (0..4).map(|i| SharedSection::new(&array, i * 100..i * 100 + 100).unwrap()).collect();
    let threads = parts.into_iter().map(|part| {
        std::thread::spawn(move || {
            part.transform(.., Field::whole().set(index())).unwrap();
            assert_eq!(part.sum(.., Field::whole()).unwrap(), 4950);
            part.scatter(&[99, 0], &[7, 8]).unwrap();
            assert_eq!(part.gather(&[0, 98, 99]).unwrap(), [8, 98, 7]);
        })
    });
    threads.collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(array.sum(.., Field::whole()).unwrap(), 4 * (4950 - 99 + 7 + 8));
}
