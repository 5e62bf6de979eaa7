//! Sections of arrays: bytes moved, and what they are. What they do is in `model` and `views`.

use crate::common::Shape;
use vmarray::prelude::*;
use vmarray::{Field, Section, SectionMut, SharedSection, VirtualArray};

const PAGE: u64 = 64;

/// 10 pages of 16 `u32` in one channel of 4 frames, written and not cached.
fn array() -> VirtualArray<u32> {
    let array = Shape::one(16, 4).build(160);
    array.write(0, &[1; 160]).unwrap();
    array.evict(..).unwrap();
    array.reset_stats();
    array
}

fn moved(array: &VirtualArray<u32>) -> (u64, u64) {
    let total = array.stats().total();
    (total.bytes_to_device, total.bytes_from_device)
}

#[test]
fn a_device_operation_writes_back_the_dirty_pages_of_its_section_only() {
    let array = array();
    for i in [0, 40, 100] {
        array.set(i, 5).unwrap();
    }
    assert_eq!(moved(&array), (0, 3 * PAGE));
    let section = array.section(33..50).unwrap();
    assert_eq!(section.count(.., Field::whole(), &5).unwrap(), 1);
    assert_eq!(moved(&array), (PAGE, 3 * PAGE + 16));
    // Again: all is there.
    assert_eq!(section.count(.., Field::whole(), &1).unwrap(), 16);
    assert_eq!(moved(&array), (PAGE, 3 * PAGE + 2 * 16));
    // An overlapping section needs one more page.
    assert_eq!(array.section(45..101).unwrap().count(.., Field::whole(), &5).unwrap(), 1);
    assert_eq!(moved(&array), (2 * PAGE, 3 * PAGE + 3 * 16));
    // What was written back stays in the cache.
    array.reset_stats();
    assert_eq!(section.get(7).unwrap(), 5);
    assert_eq!(moved(&array), (0, 0));
}

#[test]
fn reading_a_section_fetches_its_pages_only() {
    let array = array();
    assert_eq!(array.section(20..40).unwrap().to_vec(..).unwrap(), [1; 20]);
    assert_eq!(moved(&array), (0, 2 * PAGE));
    assert_eq!(array.section(30..48).unwrap().to_vec(..).unwrap(), [1; 18]);
    assert_eq!(moved(&array), (0, 2 * PAGE), "all of it is there");
}

#[test]
fn dropping_a_view_keeps_what_is_cached() {
    let array = std::sync::Arc::new(array());
    let section = SharedSection::new(&array, 20..40).unwrap();
    assert_eq!(section.to_vec(..).unwrap(), [1; 20]);
    drop(section);
    assert_eq!(SharedSection::new(&array, 20..40).unwrap().to_vec(..).unwrap(), [1; 20]);
    assert_eq!(moved(&array), (0, 2 * PAGE));
}

#[test]
fn a_discarded_section_is_neither_fetched_nor_written_back() {
    let array = array();
    let section = array.section_mut(16..48).unwrap();
    section.set(0, 9).unwrap();
    assert_eq!(moved(&array), (0, PAGE));
    section.discard(..).unwrap();
    section.write(0, &[3; 32]).unwrap();
    assert_eq!(moved(&array), (0, PAGE));
    section.flush(..).unwrap();
    assert_eq!(moved(&array), (2 * PAGE, PAGE));
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
