//! Futures of sections: what they fetch and write back, and how long they live. What they do is in `model`.

use crate::common::Shape;
use crate::common::executor::{all, block_on};
use vmarray::VirtualArray;
use vmarray::prelude::*;

/// Pages of 16 `u32`, half of them in the cache.
fn array() -> VirtualArray<u32> {
    let array = Shape::one(16, 32).build(64 * 16);
    array.write(0, &(0..1024).collect::<Vec<u32>>()).unwrap();
    array.evict(..).unwrap();
    array.reset_stats();
    array
}

#[test]
fn only_the_pages_of_the_section_are_fetched_and_written_back() {
    let array = array();
    let section = array.section_mut(20..100).unwrap();
    block_on(section.prefetch_async(..)).unwrap();
    assert_eq!(array.stats().total().bytes_from_device, 6 * 64);
    all((0..80).map(|at| section.set_async(at, 1))).into_iter().for_each(|set| set.unwrap());
    array.set(200, 1).unwrap();
    array.reset_stats();
    block_on(section.flush_async(12..44)).unwrap();
    let total = array.stats().total();
    assert_eq!((total.write_backs, total.bytes_to_device), (2, 2 * 64), "elements 32 to 63 of the array");
}

#[test]
fn futures_outlive_their_section() {
    let array = array();
    let (coming, page) = {
        let section = array.section(100..200).unwrap();
        (section.get_async(5), section.page_async(1))
    };
    assert_eq!(block_on(coming).unwrap(), 105);
    assert_eq!(block_on(page).unwrap()[0], 112);
}
