//! Tests of expressions on boxes, compared with a vector in row-major order.

use crate::common::boxes::{assert_padding_is_zero, is_inside, positions, random_array, random_box};
use crate::common::{Numbers, devices};
use proptest::prelude::*;
use vmarray::prelude::*;
use vmarray::{ErrorKind, Field, NdArray};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn coordinates_count_from_the_corner_of_their_view(seed in any::<u64>()) {
        let mut random = Numbers::new(seed);
        let array = random_array::<u32, 3>(&mut random, [40, 12, 7, 5], 6);
        let of = random_box(&mut random, array.shape());
        let view = array.section_mut(of.clone()).unwrap();
        let (axis, value) = (random.below(3), Field::<u32, u32>::whole());
        array.transform(.., value.set(array.coordinate(axis).unwrap().cast::<u32>())).unwrap();
        view.transform(.., value.set(value + view.coordinate(axis).unwrap().cast::<u32>())).unwrap();
        let of_view = |at: &[usize; 3]| if is_inside(&of, at) { at[axis] - of.start[axis] } else { 0 };
        let known = positions(&([0; 3]..array.shape())).into_iter().map(|at| (at[axis] + of_view(&at)) as u32);
        prop_assert_eq!(array.to_vec(..).unwrap(), known.collect::<Vec<_>>());
        assert_padding_is_zero(&array);
    }
}

#[test]
fn misuse_is_an_error() {
    let image = NdArray::<u32, 2>::builder([4, 5]).devices(devices(1)).build().unwrap();
    let error = image.coordinate(2).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::NoSuchAxis { axis: 2, axes: 2 });
    let value = Field::<u32, u32>::whole();
    assert!(image.transform([2, 0]..[1, 1], value.set(1)).is_err());
    assert!(image.select_where([2, 0]..[1, 1], value.ge(0)).is_err());
    let long = (0..300).fold(value * 1, |sum, i| sum * value + i);
    for error in [
        image.select_where(.., long.clone().gt(0)).unwrap_err(),
        image.find_where(.., long.clone().gt(0), 1).unwrap_err(),
        image.all(.., long.gt(0)).unwrap_err(),
    ] {
        assert!(matches!(error.kind(), ErrorKind::ExpressionTooLong { .. }), "{error}");
    }
}

#[test]
fn the_first_match_ends_the_search() {
    // The matches are in rows of tiles: one in the first row, many in the last.
    let array = NdArray::<u32, 2>::builder([64, 64]).devices(devices(1)).tile([8, 8]).build().unwrap();
    array.set([5, 60], 1).unwrap();
    array.set([6, 1], 1).unwrap();
    array.fill([56, 0]..[64, 64], 1).unwrap();
    array.elements().evict(..).unwrap();
    array.elements().reset_stats();
    let value = Field::<u32, u32>::whole();
    assert_eq!(array.position_first(.., value.eq(1)).unwrap(), Some([5, 60]));
    assert_eq!(array.find_where(.., value.eq(1), 2).unwrap().indices, [[5, 60], [6, 1]]);
    let mut selected = array.select_where(.., value.eq(1)).unwrap();
    assert_eq!(selected.next().unwrap().unwrap(), ([5, 60], 1));
    assert_eq!(selected.count(), 1 + 8 * 64);
    // Only indices and elements were copied back, no pages.
    let total = array.elements().stats().total();
    assert_eq!(total.misses + total.prefetches, 0);
    assert!(total.bytes_from_device < 64 * 64 * 4, "{total:?}");
}
