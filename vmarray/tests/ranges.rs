//! In which order range operations go through their pages, what they fetch ahead, and what takes part in them.

mod common;

use bytemuck::{Pod, Zeroable};
use common::{Shape, devices};
use vmarray::{ErrorKind, Placement, VirtualArray, field};

/// An array whose cache is one page long, with its page numbers in it.
fn one_frame(pages: usize) -> VirtualArray<u32> {
    let array: VirtualArray<u32> =
        Shape { frames: 1, channels: vec![1], read_ahead: false, ..Shape::default() }.build(pages * 8);
    array.for_each_mut(.., |i, x| *x = i as u32).unwrap();
    array
}

fn is_resident(array: &VirtualArray<u32>, page: usize) -> bool {
    array.reset_stats();
    assert_eq!(array.get(page * 8).unwrap(), page as u32 * 8);
    array.stats().total().misses == 0
}

#[test]
fn copies_between_arrays_go_forwards_wherever_they_go() {
    let source = one_frame(10);
    for start in [0, 16, 32] {
        let target = one_frame(10);
        target.copy_from(start, &source, 8..48).unwrap();
        let copied: Vec<u32> = (8..48).collect();
        assert_eq!(target.to_vec(start..start + 40).unwrap(), copied);
        assert!(is_resident(&source, 5), "the last page read is the last one of the range");
    }
}

#[test]
fn copies_within_an_array_are_as_through_a_buffer() {
    for (start, from) in
        [(0, 0..80), (3, 0..70), (0, 5..80), (8, 7..40), (41, 1..38), (1, 40..80), (17, 16..17)]
    {
        let array = one_frame(10);
        let mut model: Vec<u32> = (0..80).collect();
        model.copy_within(from.clone(), start);
        array.copy_from(start, &array, from).unwrap();
        assert_eq!(array.to_vec(..).unwrap(), model);
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
        assert_eq!(array.to_vec(..).unwrap(), (0..160).collect::<Vec<_>>());
        let total = array.stats().total();
        assert_eq!((total.misses, total.prefetches), (20, 0), "{frames} frames");
    }
    let array: VirtualArray<u32> =
        Shape { frames: 8, channels: vec![1], read_ahead: false, ..Shape::default() }.build(160);
    array.for_each_mut(.., |i, x| *x = i as u32).unwrap();
    array.evict(..).unwrap();
    array.reset_stats();
    array.to_vec(..).unwrap();
    assert!(array.stats().total().prefetches > 0, "eight frames are enough");
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
fn fields_of_packed_elements_are_found() {
    #[derive(Clone, Copy, Pod, Zeroable)]
    #[repr(C, packed)]
    struct Record {
        tag: u8,
        key: u64,
        weight: f32,
    }
    let array: VirtualArray<Record> = Shape { channels: vec![2, 1], ..Shape::default() }.build(1000);
    array
        .for_each_mut(.., |i, x| *x = Record { tag: i as u8, key: 0x0101 + i as u64, weight: -1.5 })
        .unwrap();
    assert_eq!(array.find(field!(Record, key), &0x0103).unwrap(), [2]);
    assert_eq!(array.find(field!(Record, tag), &7).unwrap(), [7, 263, 519, 775]);
    assert_eq!(array.count(.., field!(Record, weight), &-1.5).unwrap(), 1000);
}
