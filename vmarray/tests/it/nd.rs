//! Tests of N-dimensional arrays: page visits, tiles, index sets, misuse. `views` tests their results.

use vmarray::prelude::*;

use crate::common::boxes::{build, image, position, positions, visits};
use crate::common::{Numbers, devices, together};
use vmarray::nd::{NdLayout, Tiles};
use vmarray::{ErrorKind, Field, IndexSet, NdArray, access::MapMode, index_set::PagedIndexSet};

#[test]
fn a_box_visits_each_of_its_pages_once() {
    // Test with a single frame as well.
    for frames in [1, 64] {
        let tiled = image(Some([8, 8]), frames);
        tiled.to_vec([4, 4]..[20, 12]).unwrap();
        assert_eq!(visits(&tiled), (6, 6), "{frames} frames");
        let rows = image(None, frames);
        rows.to_vec([4, 4]..[20, 12]).unwrap();
        assert_eq!(visits(&rows), (16, 16), "{frames} frames");
    }
    let flat = build([64, 8], NdLayout::RowMajor, 64, 1);
    flat.fill(.., 1).unwrap();
    flat.elements().evict(..).unwrap();
    flat.elements().reset_stats();
    // A page has eight rows; the box covers a part of each.
    flat.to_vec([2, 1]..[30, 7]).unwrap();
    assert_eq!(flat.elements().stats().total().bytes_from_device, 4 * 256);
}

#[test]
fn overwritten_pages_are_not_fetched() {
    let tiled = image(Some([8, 8]), 64);
    tiled.write_box([8, 8]..[24, 24], &[1; 256]).unwrap();
    assert_eq!(visits(&tiled), (4, 0));
    // The box covers one more column of half tiles: these are fetched, the others are not.
    tiled.write_box([24, 24]..[40, 36], &[2; 192]).unwrap();
    assert_eq!(visits(&tiled), (4, 2));
    assert_eq!(
        tiled.to_vec([39, 34]..[41, 37]).unwrap(),
        [2, 2, 39 * 64 + 36, 40 * 64 + 34, 40 * 64 + 35, 40 * 64 + 36]
    );
    // At the edge, a write of all elements of a tile counts as a write of the whole tile.
    let odd = NdArray::<u32, 2>::builder([12, 12]).devices(devices(1)).tile([8, 8]).build().unwrap();
    odd.fill(.., 7).unwrap();
    odd.elements().evict(..).unwrap();
    odd.elements().reset_stats();
    odd.write_box([8, 8]..[12, 12], &[9; 16]).unwrap();
    assert_eq!(odd.elements().stats().total().bytes_from_device, 0);
    assert_eq!(odd.count(.., Field::whole(), &7).unwrap(), 128);
    assert_eq!(odd.count(.., Field::whole(), &0).unwrap(), 0);
}

#[test]
fn boxes_are_fetched_ahead_in_batches() {
    let tiled = image(Some([8, 8]), 64);
    tiled.to_vec([0, 0]..[16, 64]).unwrap();
    let total = tiled.elements().stats().total();
    assert_eq!((total.prefetches + total.misses, total.bytes_from_device), (16, 16 * 256));
    assert!(total.submissions <= 4, "{total:?}");
    tiled.elements().evict(..).unwrap();
    tiled.elements().reset_stats();
    tiled.prefetch([8, 8]..[24, 24]).unwrap();
    assert_eq!(tiled.elements().stats().total().prefetches, 4);
}

#[test]
fn tiles_of_any_extent_cover_an_array_once() {
    for image in [image(Some([8, 8]), 8), image(None, 8)] {
        for tiles in [image.tiles(), Tiles::new([64, 64], [10, 7]).unwrap()] {
            let count = tiles.len();
            let mut seen = 0;
            image
                .for_each_tile(tiles.clone(), MapMode::ReadWrite, |of, values| {
                    let expected = positions(&of).into_iter().map(|[y, x]| (64 * y + x) as u32);
                    assert!(values.iter().copied().eq(expected));
                    values.iter_mut().for_each(|value| *value += 10_000);
                    seen += 1;
                })
                .unwrap();
            assert_eq!(seen, count);
            image
                .for_each_tile(tiles, MapMode::Write, |of, values| {
                    assert!(values.iter().all(|value| *value == 0));
                    positions(&of).into_iter().zip(values).for_each(|([y, x], value)| {
                        *value = (64 * y + x) as u32;
                    });
                })
                .unwrap();
        }
    }
}

#[test]
fn tiles_in_parallel_are_the_same() {
    let image = image(Some([8, 8]), 16);
    image
        .par_for_each_tile(image.tiles(), MapMode::ReadWrite, |_, values| {
            values.iter_mut().for_each(|value| *value *= 2);
        })
        .unwrap();
    assert_eq!(image.to_vec(..).unwrap(), (0..64 * 64).map(|i| 2 * i).collect::<Vec<u32>>());
}

#[test]
fn tiles_in_place_are_pages() {
    let array = NdArray::<u32, 3>::builder([5, 5, 5]).devices(devices(1)).tile([2, 2, 4]).build().unwrap();
    for at in positions(&([0; 3]..[3, 3, 2])) {
        let mut tile = array.tile_mut(at).unwrap();
        let of = tile.bounds();
        for [z, y] in positions(&([0, 0]..[of.end[0] - of.start[0], of.end[1] - of.start[1]])) {
            for (x, value) in (of.start[2]..).zip(tile.row_mut([z, y])) {
                *value = ((of.start[0] + z) * 25 + (of.start[1] + y) * 5 + x) as u32;
            }
        }
    }
    assert_eq!(array.to_vec(..).unwrap(), (0..125).collect::<Vec<u32>>());
    assert_eq!(array.tile([1, 0, 1]).unwrap().row([1, 1]), [3 * 25 + 5 + 4]);
    assert_eq!(*image(None, 4).tile([0, 0]).unwrap_err().kind(), ErrorKind::NotTiled);
    let outside = array.tile([0, 3, 0]).unwrap_err();
    assert_eq!(*outside.kind(), ErrorKind::PositionOutside { axis: 1, index: 3, extent: 3 });
}

#[test]
fn misuse_is_an_error_that_names_the_values() {
    let image = image(None, 4);
    let kind = |result: vmarray::Result<()>| result.unwrap_err().kind().clone();
    assert_eq!(
        kind(image.read_box([0, 0]..[1, 65], &mut [])),
        ErrorKind::BoxOutside { axis: 1, start: 0, end: 65, extent: 64 }
    );
    assert_eq!(
        kind(image.write_box([0, 0]..[2, 2], &[1, 2, 3])),
        ErrorKind::LengthMismatch { of: "the slice of the box", expected: 4, got: 3 }
    );
    let elements = VirtualArray::from(image);
    let mismatch = NdArray::from_elements(elements, [3, 5]).unwrap_err();
    assert_eq!(*mismatch.kind(), ErrorKind::ShapeMismatch { shape: vec![3, 5], expected: 15, got: 64 * 64 });
}

#[cfg(feature = "ndarray")]
#[test]
fn views_of_any_strides_are_filled_and_stored() {
    let image = image(Some([8, 8]), 8);
    let expected = ndarray::Array2::from_shape_fn((10, 12), |(y, x)| ((y + 3) * 64 + x + 5) as u32);
    assert_eq!(image.to_ndarray([3, 5]..[13, 17]).unwrap(), expected);
    let mut backwards = ndarray::Array2::<u32>::zeros((12, 10));
    let mut view = backwards.view_mut().reversed_axes();
    view.invert_axis(ndarray::Axis(0));
    image.read_view([3, 5], view.view_mut()).unwrap();
    assert_eq!(view, expected);
    let every_other = ndarray::Array2::from_shape_fn((20, 36), |(y, x)| (100 * y + x) as u32);
    let thin = every_other.slice(ndarray::s![..;2, ..;3]);
    image.write_view([3, 5], thin).unwrap();
    assert_eq!(image.to_ndarray([3, 5]..[13, 17]).unwrap(), thin);
    let error = image.read_view([0, 0], ndarray::Array1::zeros(4).view_mut()).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::RankMismatch { expected: 2, got: 1 });
}

#[test]
fn writes_to_padding_are_dropped_with_the_guard() {
    for tile in [[4, 3, 5], [2, 2, 2], [8, 1, 3]] {
        let shape = [7, 5, 6];
        let array = build::<u16, 3>(shape, NdLayout::Tiled(tile), 1, 2);
        let counts: [usize; 3] = std::array::from_fn(|axis| shape[axis].div_ceil(tile[axis]));
        for at in positions(&([0; 3]..counts)) {
            array.tile_mut(at).unwrap().fill(9);
        }
        assert_eq!(array.to_vec(..).unwrap(), [9; 7 * 5 * 6]);
        assert_eq!(array.count(.., Field::whole(), &9).unwrap(), 7 * 5 * 6);
        assert_eq!(array.count(.., Field::whole(), &0).unwrap(), 0);
        // A guard without changes writes nothing.
        array.elements().flush(..).unwrap();
        array.elements().reset_stats();
        let last = counts.map(|count| count - 1);
        assert_eq!(array.tile_mut(last).unwrap()[0], 9);
        array.elements().flush(..).unwrap();
        assert_eq!(array.elements().stats().total().bytes_to_device, 0);
    }
}

#[test]
fn tiles_of_a_larger_shape_are_refused_before_anything_is_done() {
    let array = NdArray::<u8, 2>::builder([8, 8]).devices(devices(1)).build().unwrap();
    for tiles in [
        Tiles::new([8, 9], [8, 8]).unwrap(),
        Tiles::new([1 << 40, 1 << 20], [1 << 40, 2]).unwrap(),
        Tiles::new([isize::MAX as usize, 1], [isize::MAX as usize, 1]).unwrap(),
    ] {
        for mode in [MapMode::Read, MapMode::Write, MapMode::ReadWrite, MapMode::Scratch] {
            let error = array.for_each_tile(tiles.clone(), mode, |_, _| panic!("nothing fits")).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::BoxOutside { .. }), "{error}");
            {
                let tiles = tiles.clone();
                let error = array.par_for_each_tile(tiles, mode, |_, _| panic!("nothing fits")).unwrap_err();
                assert!(matches!(error.kind(), ErrorKind::BoxOutside { .. }), "{error}");
            }
        }
    }
    // An empty set of tiles has no tile out of bounds.
    array.for_each_tile(Tiles::new([0, 99], [1, 1]).unwrap(), MapMode::Read, |_, _| {}).unwrap();
}

#[test]
fn boxes_under_guards_of_the_same_thread_are_errors_and_not_deadlocks() {
    for layout in [NdLayout::Tiled([4, 4]), NdLayout::RowMajor] {
        let array = build::<u16, 2>([16, 16], layout, 16, 4);
        array.fill(.., 3).unwrap();
        let is_refused = |what: &str, result: vmarray::Result<()>| {
            let error = result.expect_err(what);
            assert!(matches!(error.kind(), ErrorKind::WouldDeadlock { .. }), "{what}: {error}");
        };
        {
            let mut mine = array.elements().page_mut(5).unwrap();
            mine[0] = 3;
            is_refused("to_vec", array.to_vec(..).map(drop));
            is_refused("fill", array.fill(.., 4));
            is_refused("write_box", array.write_box(.., &[5; 256]));
            is_refused(
                "bounded",
                array.bounded(vmarray::boundary::Mirror).to_vec([-3, -3], [22, 22]).map(drop),
            );
            is_refused("find", array.find(Field::whole(), &3).map(drop));
            array.prefetch(..).unwrap();
        }
        {
            let mine = array.elements().page(5).unwrap();
            let before = mine[0];
            assert_eq!(array.to_vec(..).unwrap().len(), 256);
            is_refused("fill", array.fill([0, 0]..[16, 15], 7));
            assert_eq!(mine[0], before);
        }
        array.fill(.., 8).unwrap();
        assert_eq!(array.to_vec(..).unwrap(), [8; 256]);
    }
}

#[test]
fn boxes_that_share_pages_are_written_by_threads_at_once() {
    for layout in [NdLayout::RowMajor, NdLayout::Tiled([5, 3])] {
        let array = build::<u32, 2>([24, 31], layout, 17, 3);
        // Each thread writes every fourth column, so that all threads use each page.
        together(4, |thread| {
            for column in (thread..31).step_by(4) {
                let view = array.project_mut::<1>(1, column).unwrap();
                let values: Vec<u32> = (0..24).map(|row| row * 31 + column as u32).collect();
                view.write_box(.., &values).unwrap();
                assert_eq!(view.to_vec(..).unwrap(), values);
            }
        });
        assert_eq!(array.to_vec(..).unwrap(), (0..24 * 31).collect::<Vec<u32>>());
    }
}

#[test]
fn index_sets_in_ram_and_in_pages_name_elements() {
    for layout in [NdLayout::RowMajor, NdLayout::Tiled([4, 3, 2])] {
        let array = NdArray::<u32, 3>::builder([9, 8, 7]).devices(devices(1)).layout(layout).build().unwrap();
        array.write_box(.., &(0..9 * 8 * 7).collect::<Vec<u32>>()).unwrap();
        let mut random = Numbers::new(5);
        // The tuples have a dimension (3) that belongs to no axis, and are more than one batch.
        let rows: Vec<[u64; 4]> =
            (0..10_000).map(|_| [7, 9, u64::MAX as usize, 8].map(|end| random.below(end) as u64)).collect();
        let set = IndexSet::from_rows([5, 2, 3, 9], &rows).unwrap();
        let paged = PagedIndexSet::from_index_set(&set, |array| array.page_len(100)).unwrap();
        let expected: Vec<u32> = rows.iter().map(|r| ((r[1] * 8 + r[3]) * 7 + r[0]) as u32).collect();
        assert_eq!(array.gather_set(&set, [2, 9, 5]).unwrap(), expected);
        assert_eq!(array.gather_set(&paged, [2, 9, 5]).unwrap(), expected);
        // For repeated elements, the last value wins.
        array.scatter_set(&paged, [2, 9, 5], &(0..10_000).collect::<Vec<u32>>()).unwrap();
        for (at, expected) in expected.iter().enumerate() {
            let last = (0..10_000)
                .rev()
                .find(|other| rows[*other][..2] == rows[at][..2] && rows[*other][3] == rows[at][3]);
            let at = position(*expected as usize, [9, 8, 7]);
            assert_eq!(array.get(at).unwrap() as usize, last.unwrap());
        }
        let error = array.gather_set(&set, [2, 9, 4]).unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::UnknownDimension { dimension: 4 });
        let far = IndexSet::from_rows([0, 1, 2], [[0, u64::MAX, 0]]).unwrap();
        let error = array.gather_set(&far, [0, 1, 2]).unwrap_err();
        let index = i128::from(u64::MAX);
        assert_eq!(*error.kind(), ErrorKind::PositionOutside { axis: 1, index, extent: 8 });
        let error = array.scatter_set(&set, [2, 9, 5], &[1]).unwrap_err();
        assert_eq!(
            *error.kind(),
            ErrorKind::LengthMismatch { of: "the slice of values", expected: 10_000, got: 1 }
        );
        assert!(array.gather_set(&IndexSet::new([2, 9, 5]).unwrap(), [2, 9, 5]).unwrap().is_empty());
    }
}

#[cfg(feature = "ndarray")]
#[test]
fn arrays_of_ndarray_are_taken_and_given() {
    let values = ndarray::Array3::from_shape_fn((5, 6, 7), |(x, y, z)| (100 * x + 10 * y + z) as u32);
    // Test reversed strides, and a number of axes that is known only at run time.
    let mut turned = values.clone().reversed_axes();
    turned.invert_axis(ndarray::Axis(1));
    for from in [values.into_dyn(), turned.into_dyn(), ndarray::ArrayD::zeros(vec![3, 0, 2])] {
        let array = NdArray::<u32, 3>::try_from(from.clone()).unwrap();
        let back: ndarray::Array3<u32> = (&array).try_into().unwrap();
        assert_eq!(back.into_dyn(), from);
        let error = NdArray::<u32, 2>::try_from(from).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::RankMismatch { expected: 2, got: 3 }));
    }
}
