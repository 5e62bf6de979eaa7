//! Tests of joins of boxes with arrays and shifted views, compared with loops over positions.

use std::sync::Arc;

use vmarray::boundary::{Boundary, Checked, Circular, Clamp, Constant, Mirror, Zero};
use vmarray::nd::NdLayout;
use vmarray::{AnyDevice, ErrorKind, Result, prelude::*};

use crate::common::boxes::{assert_padding_is_zero, is_inside, number, positions, random_box};
use crate::common::{Numbers, devices, moved_by, uneven_devices};

const VALUE: Field<i64, i64> = Field::<i64, i64>::whole();
const SHORT: Field<i32, i32> = Field::<i32, i32>::whole();

fn built<T: Element, const N: usize>(
    random: &mut Numbers,
    shape: [usize; N],
    values: &[T],
    on: Vec<Arc<AnyDevice>>,
) -> NdArray<T, N> {
    let layout = match random.below(2) {
        0 => NdLayout::RowMajor,
        _ => NdLayout::Tiled(std::array::from_fn(|_| 1 + random.below(4))),
    };
    let page_len = 1 + random.below(30);
    let builder = NdArray::builder(shape).devices(on).layout(layout);
    let array = builder.elements(|all| all.page_len(page_len)).build().unwrap();
    array.write_box(.., values).unwrap();
    array
}

/// Joins a box with another array of its shape, and with a shifted view in a boundary mode.
fn check(seed: u64, mode: impl Boundary<i32, 2> + Copy + Sync) {
    let mut random = Numbers::new(seed);
    let shape: [usize; 2] = std::array::from_fn(|_| 1 + random.below(12));
    let of = if random.below(2) == 0 { random_box(&mut random, shape) } else { [0; 2]..shape };
    let extent: [usize; 2] = std::array::from_fn(|axis| of.end[axis] - of.start[axis]);
    let old: Vec<i64> = (0..shape[0] * shape[1]).map(|_| random.next() as i64 % 1000).collect();
    let beside: Vec<i32> = (0..extent[0] * extent[1]).map(|_| random.next() as i32 % 100).collect();
    let (on, _) = uneven_devices(&mut random);
    let elsewhere = if random.below(2) == 0 { on.clone() } else { uneven_devices(&mut random).0 };
    let out = built(&mut random, shape, &old, on);
    let other = built(&mut random, extent, &beside, elsewhere);
    let by: [isize; 2] = std::array::from_fn(|_| random.below(7) as isize - 3);
    let bounded = other.bounded(mode);
    let part = out.section_mut(of.clone()).unwrap();
    let joined = part.join((&other, bounded.shifted(by))).unwrap();
    let (own, same, moved) = joined.rows();
    let value = same.get(SHORT).cast::<i64>() * 1000 + moved.get(SHORT).cast::<i64>();
    let shown = |at: [usize; 2]| -> i64 {
        i64::from(bounded.get(std::array::from_fn(|axis| at[axis] as isize + by[axis])).unwrap())
    };
    let truth = |at: [usize; 2]| i64::from(beside[number(extent, at)]) * 1000 + shown(at);
    // First run queries of parts, and then an update of elements that meet a condition.
    let asked = random_box(&mut random, extent);
    let all: Vec<i64> = positions(&asked).into_iter().map(truth).collect();
    assert_eq!(
        (&joined).sum(asked.clone(), value.clone()).unwrap(),
        all.iter().map(|x| i128::from(*x)).sum()
    );
    let found = (&joined).find_where(asked.clone(), value.clone().lt(0), 1000).unwrap().indices;
    let mut negative = positions(&asked);
    negative.retain(|at| truth(*at) < 0);
    assert_eq!(found, negative, "seed {seed}");
    let is_odd = (own.get(VALUE) & 1).eq(1);
    joined.assign_where(asked.clone(), is_odd, own.set(VALUE, value)).unwrap();
    for at in positions(&([0; 2]..shape)) {
        let within: [usize; 2] = std::array::from_fn(|axis| at[axis].wrapping_sub(of.start[axis]));
        let old = old[number(shape, at)];
        let is_changed = is_inside(&of, &at) && is_inside(&asked, &within) && old & 1 == 1;
        let new = if is_changed { truth(within) } else { old };
        assert_eq!(
            out.get(at).unwrap(),
            new,
            "seed {seed}: {at:?} of {of:?} by {by:?} in {:?}",
            out.layout()
        );
    }
    assert_padding_is_zero(&out);
}

#[test]
fn boxes_are_joined_to_others_and_to_shifted_boxes() {
    for seed in 0..backend_api::wrap::random_cases(40).into() {
        check(seed, Mirror);
        check(seed + 100, Circular);
        check(seed + 200, (Clamp, Constant(-7)));
        check(seed + 300, Zero);
    }
}

#[test]
fn arrays_sources_and_sections_are_joined_to_shifted_views() -> Result<()> {
    for seed in 0..backend_api::wrap::random_cases(40).into() {
        let mut random = Numbers::new(seed);
        let (len, start) = (1 + random.below(200), random.below(20));
        let values: Vec<i64> = (0..len).map(|_| random.next() as i64 >> 20).collect();
        let source = Source::new(values.clone())?;
        let (devices, placement) = uneven_devices(&mut random);
        let out = VirtualArray::<i64>::builder(len + start + 3).devices(devices).placement(placement);
        let out = out.page_len(1 + random.below(30)).build()?;
        let part = out.section_mut(start..start + len)?;
        let ring = source.bounded(Circular);
        let joined = part.join((&source, ring.shifted([-1]), ring.shifted([1])))?;
        let (sum, own, left, right) = joined.rows();
        let second = left.get(VALUE) + right.get(VALUE) - own.get(VALUE) * 2;
        joined.transform(.., sum.set(VALUE, second))?;
        let at = |i: usize| values[i % len];
        let truth: Vec<i64> = (0..len).map(|i| at(i + len - 1) + at(i + 1) - 2 * at(i)).collect();
        assert_eq!(part.to_vec(..)?, truth, "seed {seed}");
        assert_eq!((out.get(start + len)?, out.count(..start, VALUE, &0)?), (0, start));
    }
    Ok(())
}

#[test]
fn boxes_that_are_stored_alike_are_worked_on_where_they_lie() -> Result<()> {
    let on = devices(1);
    let build = || NdArray::<i64, 2>::builder([64, 64]).devices(on.clone()).tiled().build();
    let (a, b) = (build()?, build()?);
    b.fill(.., 3)?;
    b.elements().evict(..)?;
    let joined = a.join((&b,))?;
    let (x, y) = joined.rows();
    let moved = moved_by(b.elements(), || {
        joined.transform([1, 1].., x.set(VALUE, x.get(VALUE) + y.get(VALUE))).unwrap();
    });
    assert_eq!((moved, a.sum(.., VALUE)?), ((0, 0), 3 * 63 * 63));
    Ok(())
}

#[test]
fn invalid_joins_are_refused() -> Result<()> {
    let (a, b) = (NdArray::<i64, 2>::new([4, 6])?, NdArray::<i64, 2>::new([6, 4])?);
    let error = a.join((&b,)).map(drop).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::KernelShape { got, .. } if got == &[6, 4]), "{error}");
    let volume = NdArray::<i64, 3>::new([2, 4, 6])?;
    let error = volume.project::<2>(0, 1)?.join((&a,)).map(drop).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::RankMismatch { expected: 3, got: 2 });
    // The join also works with a plane of another array.
    volume.fill([1, 0, 0].., 5)?;
    let joined = a.join((volume.project::<2>(0, 1)?,))?;
    assert_eq!((&joined).sum(.., joined.rows().1.get(VALUE))?, 5 * 24);
    // The update is refused, because it would read its own target with an offset.
    let around = a.bounded(Mirror);
    let joined = a.join((around.shifted([0, 1]),))?;
    let (own, right) = joined.rows();
    let error = joined.transform(.., own.set(VALUE, right.get(VALUE))).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::KernelOverlap { .. }), "{error}");
    let checked = b.bounded(Checked);
    let joined = b.join((checked.shifted([0, 1]),))?;
    let error = (&joined).sum(.., joined.rows().1.get(VALUE)).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::PositionOutside { axis: 1, index: 4, extent: 4 });
    Ok(())
}
