//! Short programs in which threads access the same pages by every method. They are for Miri, an interpreter
//! that checks every memory access (`cargo xtask miri`), and find few errors in a native run.

use std::fmt::Debug;
use std::sync::Arc;
use vmarray::prelude::*;

use crate::common::{Numbers, together};
use vmarray::host::HostDevice;
use vmarray::{AnyDevice, Element, Field, NdArray, Placement, Source, VirtualArray, access::MapMode};

const TURNS: usize = if cfg!(miri) { 6 } else { 500 };
const PAGE_LEN: usize = 3;
const LEN: usize = 4 * PAGE_LEN;

fn device() -> Arc<AnyDevice> {
    Arc::new(HostDevice::builder().bytes(1 << 20).threads(1).build().unwrap().into())
}

fn array<T: Element>(page_len: usize) -> VirtualArray<T> {
    VirtualArray::builder(4 * page_len)
        .devices([device()])
        .placement(Placement::Ratios(vec![1]))
        .page_len(page_len)
        .frames_per_channel(2)
        .build()
        .unwrap()
}

/// An element with equal bytes, so that a torn value is visible.
fn even<T: Element>(byte: u8) -> T {
    let mut value = T::zeroed();
    bytemuck::bytes_of_mut(&mut value).fill(byte);
    value
}

fn assert_even<T: Element + Debug>(value: &T) {
    let bytes = bytemuck::bytes_of(value);
    assert!(bytes.iter().all(|byte| *byte == bytes[0]), "{value:?} is torn");
}

/// One access to one element.
fn access<T: Element + Debug + PartialEq>(array: &VirtualArray<T>, numbers: &mut Numbers) {
    let (at, other, value) =
        (numbers.below(array.len()), numbers.below(array.len()), even(numbers.below(256) as u8));
    match numbers.below(9) {
        0 => array.set(at, value).unwrap(),
        1 => assert_even(&array.replace(at, value).unwrap()),
        2 => assert_even(&array.update(at, |old| if old == value { T::zeroed() } else { value }).unwrap()),
        3 => match array.compare_exchange(at, value, T::zeroed()).unwrap() {
            Ok(old) => assert_eq!(old, value),
            Err(old) => assert_even(&old),
        },
        4 => array.swap(at, other).unwrap(),
        5 => array.set_uncached(at, value).unwrap(),
        6 => assert_even(&array.get_uncached(at).unwrap()),
        _ => assert_even(&array.get(at).unwrap()),
    }
}

fn race<T: Element + Debug + PartialEq>() {
    // Test both kinds of pages: the length is a power of two, or it is not.
    for page_len in if cfg!(miri) { [4].as_slice() } else { &[4, PAGE_LEN] } {
        let array = array::<T>(*page_len);
        together(3, |thread| {
            let mut numbers = Numbers::new(thread as u64 + 1);
            (0..TURNS).for_each(|_| access(&array, &mut numbers));
        });
    }
}

#[test]
fn accesses_to_bytes_race() {
    race::<u8>();
    race::<[u8; 3]>();
}

#[test]
fn accesses_to_words_race() {
    race::<u16>();
    race::<u32>();
    race::<u64>();
}

#[test]
fn accesses_to_several_words_race() {
    race::<[u32; 3]>();
    race::<[u64; 3]>();
}

fn ranges_race<T: Element + Debug + PartialEq>() {
    let array = array::<T>(PAGE_LEN);
    together(3, |thread| {
        let mut numbers = Numbers::new(thread as u64 + 1);
        for _ in 0..TURNS {
            if thread < 2 {
                access(&array, &mut numbers);
                continue;
            }
            let (start, page, value) = (numbers.below(LEN), numbers.below(4), even(7));
            let end = start + numbers.below(LEN - start + 1);
            match numbers.below(12) {
                0 => array.to_vec(start..end).unwrap().iter().for_each(assert_even),
                1 => array.write(start, &vec![value; end - start]).unwrap(),
                2 => array.fill(start..end, value).unwrap(),
                3 => array.map_mut(start..end, MapMode::ReadWrite, |slice| slice.fill(value)).unwrap(),
                4 => array.page(page).unwrap().iter().for_each(assert_even),
                5 => array.page_mut(page).unwrap().fill(value),
                6 => array.iter().take(LEN).for_each(|element| assert_even(&element.unwrap())),
                7 => array.copy_from(start, array.section(0..end - start).unwrap()).unwrap(),
                8 => array.flush(start..end).unwrap(),
                9 => array.evict(start..end).unwrap(),
                10 => array.discard(start..end).unwrap(),
                _ => array.prefetch(start..end).unwrap(),
            }
        }
    });
}

#[test]
fn ranges_and_slices_of_words_race_with_accesses_to_elements() {
    ranges_race::<u32>();
}

#[test]
fn ranges_and_slices_of_several_words_race_with_accesses_to_elements() {
    ranges_race::<[u8; 3]>();
}

#[test]
fn devices_work_on_the_programs_changes() {
    let array = array::<u32>(PAGE_LEN);
    array.write(0, &(0..LEN as u32).collect::<Vec<_>>()).unwrap();
    assert_eq!(array.find(Field::whole(), &5).unwrap(), [5]);
    assert_eq!(array.gather(&[7, 1, 7]).unwrap(), [7, 1, 7]);
    array.scatter(&[2, 9], &[20, 90]).unwrap();
    let value = Field::<u32, u32>::whole();
    array.transform(.., value.set(value + 1)).unwrap();
    assert_eq!(array.sum(.., value).unwrap(), 66 + 18 + 81 + LEN as i128);
    assert_eq!(array.get(9).unwrap(), 91);
}

#[test]
fn boxes_and_sources_are_worked_on() {
    let boxes = NdArray::<u32, 2, _>::from_elements(array(PAGE_LEN), [3, 4]).unwrap();
    boxes.fill([1, 1]..[3, 3], 6).unwrap();
    assert_eq!(boxes.to_vec([0, 0]..[3, 2]).unwrap(), [0, 0, 0, 6, 0, 6]);
    let mut home: Vec<u16> = (0..100).collect();
    let source = Source::builder(&mut home[..]).devices([device()]).page_len(16).build().unwrap();
    source.fill(20..60, 7).unwrap();
    source.set(30, 8).unwrap();
    assert_eq!(source.count(.., Field::whole(), &7).unwrap(), 40);
    drop(source);
    assert_eq!(home[58..62], [7, 7, 60, 61]);
}
