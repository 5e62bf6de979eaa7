//! Boxes worked on by expressions, against a vector in row-major order.

use crate::common::boxes::{assert_padding_is_zero, is_inside, positions, random_array, random_box};
use crate::common::{Numbers, devices};
use proptest::prelude::*;
use vmarray::prelude::*;
use vmarray::{ErrorKind, Field, NdArray};

fn run<const N: usize>(seed: u64) {
    let mut random = Numbers::new(seed);
    let array = random_array::<u32, N>(&mut random, [40, 12, 7, 5], 6);
    let (shape, layout) = (array.shape(), array.layout());
    let all = positions(&([0; N]..shape));
    let mut model: Vec<_> = all.into_iter().map(|at| (at, random.below(9) as u32)).collect();
    let values: Vec<u32> = model.iter().map(|(_, value)| *value).collect();
    array.write_box(.., &values).unwrap();
    let value = Field::<u32, u32>::whole();
    for _ in 0..4 {
        let of = random_box(&mut random, shape);
        let inside: Vec<_> = model.iter().filter(|(at, _)| is_inside(&of, at)).copied().collect();
        let least = random.below(10) as u32;
        let large: Vec<_> = inside.iter().filter(|(_, v)| *v >= least).map(|(at, _)| *at).collect();
        assert_eq!(array.count_where(of.clone(), value.ge(least)).unwrap(), large.len());
        for limit in [0, 1, 1 + random.below(large.len() + 2), usize::MAX] {
            let found = array.find_where(of.clone(), value.ge(least), limit).unwrap();
            assert_eq!(found.indices, large[..limit.min(large.len())], "{shape:?} {layout:?} {of:?}");
            assert_eq!(found.total, large.len());
        }
        assert_eq!(array.position_first(of.clone(), value.ge(least)).unwrap(), large.first().copied());
        assert_eq!(array.any(of.clone(), value.ge(least)).unwrap(), !large.is_empty());
        assert_eq!(array.all(of.clone(), value.ge(least)).unwrap(), large.len() == inside.len());
        let selected = array.select_where(of.clone(), value.ge(least)).unwrap();
        let known: Vec<_> = inside.iter().filter(|(_, v)| *v >= least).copied().collect();
        assert_eq!(selected.map(Result::unwrap).collect::<Vec<_>>(), known);
        let sum: i128 = inside.iter().map(|(_, v)| i128::from(*v)).sum();
        assert_eq!(array.sum(of.clone(), value).unwrap(), sum);
        let sum: i128 = inside.iter().filter(|(_, v)| v % 2 == 1).map(|(_, v)| i128::from(*v)).sum();
        assert_eq!(array.sum(of.clone(), value.only_where((value % 2).eq(1))).unwrap(), sum);
        let (min, max) = (inside.iter().map(|(_, v)| *v).min(), inside.iter().map(|(_, v)| *v).max());
        assert_eq!(array.min_max(of.clone(), value).unwrap(), min.zip(max));
        assert_eq!(
            (array.min(of.clone(), value).unwrap(), array.max(of.clone(), value).unwrap()),
            (min, max)
        );
        for (found, known) in [
            (array.arg_min(of.clone(), value).unwrap(), min),
            (array.arg_max(of.clone(), value).unwrap(), max),
        ] {
            assert_eq!(found.map(|(_, value)| value), known);
            assert!(found.is_none_or(|(at, v)| is_inside(&of, &at) && array.get(at).unwrap() == v));
        }
        let counts: Vec<u64> =
            (0..9).map(|bin| inside.iter().filter(|(_, v)| *v == bin).count() as u64).collect();
        assert_eq!(array.histogram(of.clone(), value, 9).unwrap(), counts);
        let axis = random.below(N);
        let along = array.coordinate(axis).unwrap().cast::<u32>();
        array.transform(of.clone(), value.set((value + along) % 9)).unwrap();
        array.assign_where(of.clone(), value.eq(4), value.set(0)).unwrap();
        for (at, v) in model.iter_mut().filter(|(at, _)| is_inside(&of, at)) {
            *v = (*v + at[axis] as u32) % 9;
            *v = if *v == 4 { 0 } else { *v };
        }
        let values: Vec<u32> = model.iter().map(|(_, value)| *value).collect();
        assert_eq!(array.to_vec(..).unwrap(), values, "{shape:?} {layout:?} {of:?}");
        assert_padding_is_zero(&array);
    }
}

/// Most devices translate each kind of box and operation anew, which takes a while.
fn cases() -> u32 {
    if std::env::var_os("VMARRAY_TEST_DEVICES").is_some() { 1 } else { 24 }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    #[test]
    fn boxes_are_as_vectors(seed in any::<u64>()) {
        run::<1>(seed);
        run::<2>(seed);
        run::<3>(seed);
        run::<4>(seed);
    }
}

#[test]
fn misuse_is_an_error() {
    let image = NdArray::<u32, 2>::builder([4, 5]).devices(devices(1)).build().unwrap();
    let error = image.coordinate(2).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::NoSuchAxis { axis: 2, axes: 2 });
    let value = Field::<u32, u32>::whole();
    let error = image.sum([0, 0]..[4, 6], value).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::BoxOutside { axis: 1, end: 6, .. }));
    assert!(image.transform([2, 0]..[1, 1], value.set(1)).is_err());
    assert_eq!(image.min_max([2, 2]..[2, 5], value).unwrap(), None);
    assert!(
        !image.any([2, 2]..[2, 5], value.ge(0)).unwrap() && image.all([2, 2]..[2, 5], value.ne(0)).unwrap()
    );
    let error = image.any([0, 0]..[5, 5], value.ge(0)).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::BoxOutside { axis: 0, end: 5, .. }));
    assert!(image.select_where([2, 0]..[1, 1], value.ge(0)).is_err());
    assert!(image.find_where([0, 6].., value.ge(0), 1).is_err());
    let long = (0..300).fold(value * 1, |sum, i| sum * value + i);
    for error in [
        image.select_where(.., long.clone().gt(0)).unwrap_err(),
        image.find_where(.., long.clone().gt(0), 1).unwrap_err(),
        image.all(.., long.gt(0)).unwrap_err(),
    ] {
        assert!(matches!(error.kind(), ErrorKind::ExpressionTooLong { .. }), "{error}");
    }
    image.transform([2, 2]..[2, 5], value.set(1)).unwrap();
    assert_eq!(image.count_where(.., value.eq(0)).unwrap(), 20);
}

#[test]
fn what_is_found_first_is_not_searched_further() {
    // Rows of tiles; a match in the first one, and many in the last.
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
    // Indices and elements came back, no pages.
    let total = array.elements().stats().total();
    assert_eq!(total.misses + total.prefetches, 0);
    assert!(total.bytes_from_device < 64 * 64 * 4, "{total:?}");
}
