//! Tests of reductions along an axis, compared with loops over positions.

use std::sync::Arc;

use vmarray::nd::NdLayout;
use vmarray::{AnyDevice, ErrorKind, Result, prelude::*};

use crate::common::boxes::{number, positions, random_box};
use crate::common::{Numbers, devices, moved_by, uneven_devices};

#[vmarray::kernel]
fn is_odd(x: i32) -> bool {
    x % 2 != 0
}

#[vmarray::kernel]
fn is_below_a_half(x: f32) -> bool {
    x < 0.5
}

fn built<T: Element, const N: usize>(
    random: &mut Numbers,
    shape: [usize; N],
    on: Vec<Arc<AnyDevice>>,
) -> NdArray<T, N> {
    let layout = match random.below(3) {
        0 => NdLayout::Tiled(std::array::from_fn(|_| 1 + random.below(5))),
        _ => NdLayout::RowMajor,
    };
    let page_len = 1 + random.below(40);
    NdArray::builder(shape).devices(on).layout(layout).elements(|all| all.page_len(page_len)).build().unwrap()
}

/// Reduces each line along an axis of a box, row by row.
fn natively<R, const N: usize>(
    values: &[i32],
    shape: [usize; N],
    of: &std::ops::Range<[usize; N]>,
    axis: usize,
    reduce: impl Fn(&[i32]) -> R,
) -> Vec<R> {
    let mut first = of.clone();
    first.end[axis] = first.start[axis] + 1;
    let line = |at: [usize; N]| -> Vec<i32> {
        let along = |index| {
            let mut at = at;
            at[axis] = index;
            values[number(shape, at)]
        };
        (of.start[axis]..of.end[axis]).map(along).collect()
    };
    positions(&first).into_iter().map(|at| reduce(&line(at))).collect()
}

/// Compares the reductions of a box of an array with loops. Results have one axis less, or an index along it.
fn check<const N: usize, const K: usize>(seed: u64, shape: impl Fn(&mut Numbers) -> [usize; N]) {
    let mut random = Numbers::new(seed);
    let shape = shape(&mut random);
    let (on, _) = uneven_devices(&mut random);
    let array = built::<i32, N>(&mut random, shape, on.clone());
    let values: Vec<i32> = (0..shape.iter().product()).map(|_| random.next() as i32).collect();
    array.write_box(.., &values).unwrap();
    let of = if random.below(2) == 0 { random_box(&mut random, shape) } else { [0; N]..shape };
    let part = array.section(of.clone()).unwrap();
    let axis = random.below(N);
    let mut kept: [usize; N] = std::array::from_fn(|axis| of.end[axis] - of.start[axis]);
    kept[axis] = 1;
    let less: [usize; K] = std::array::from_fn(|at| kept[at + usize::from(at >= axis)]);
    let elsewhere = if random.below(2) == 0 { on } else { uneven_devices(&mut random).0 };
    let sums = built::<i64, K>(&mut random, less, elsewhere.clone());
    part.sum_axis(axis, &sums).unwrap();
    let sum = |line: &[i32]| line.iter().map(|value| i64::from(*value)).sum::<i64>();
    let context = || format!("seed {seed}: {of:?} of {shape:?} along {axis}");
    assert_eq!(sums.to_vec(..).unwrap(), natively(&values, shape, &of, axis, sum), "{}", context());
    let counts = built::<u64, N>(&mut random, kept, elsewhere.clone());
    part.count_axis::<is_odd>(axis, &counts).unwrap();
    let odd = |line: &[i32]| line.iter().filter(|value| **value % 2 != 0).count() as u64;
    assert_eq!(counts.to_vec(..).unwrap(), natively(&values, shape, &of, axis, odd), "{}", context());
    let extremes = built::<i32, N>(&mut random, kept, elsewhere);
    let (least, greatest) = (part.min_axis(axis, &extremes), extremes.to_vec(..).unwrap());
    if kept.contains(&0) || part.shape()[axis] > 0 {
        least.unwrap();
        let truth = natively(&values, shape, &of, axis, |line| *line.iter().min().unwrap());
        assert_eq!(extremes.to_vec(..).unwrap(), truth, "{}", context());
        part.max_axis(axis, &extremes).unwrap();
        let truth = natively(&values, shape, &of, axis, |line| *line.iter().max().unwrap());
        assert_eq!(extremes.to_vec(..).unwrap(), truth, "{}", context());
    } else {
        let outside = ErrorKind::PositionOutside { axis, index: 0, extent: 0 };
        assert_eq!((least.unwrap_err().kind(), extremes.to_vec(..).unwrap()), (&outside, greatest));
    }
}

#[test]
fn reductions_along_axes_match_loops() {
    for seed in 0..15 {
        check::<2, 1>(seed, |random| std::array::from_fn(|_| 1 + random.below(40)));
        check::<3, 2>(seed + 100, |random| std::array::from_fn(|_| 1 + random.below(9)));
        check::<4, 3>(seed + 200, |random| std::array::from_fn(|_| 1 + random.below(6)));
    }
}

#[test]
fn lines_of_many_blocks_are_put_together() {
    for seed in 0..8 {
        check::<2, 1>(seed, |random| {
            let (short, long) = (1 + random.below(5), 900 + random.below(3000));
            if random.below(2) == 0 { [short, long] } else { [long, short] }
        });
    }
}

/// The documented order of additions.
fn in_blocks(line: &[f32]) -> f32 {
    let blocks = line.chunks(1024).map(|block| match block.len() {
        0..8 => block[1..].iter().fold(block[0], |sum, value| sum + value),
        _ => {
            let eighth =
                |j: usize| block[j..].iter().step_by(8).skip(1).fold(block[j], |sum, value| sum + value);
            let sums: [f32; 8] = std::array::from_fn(eighth);
            let pairs: [f32; 4] = std::array::from_fn(|j| sums[j] + sums[j + 4]);
            (pairs[0] + pairs[2]) + (pairs[1] + pairs[3])
        }
    });
    blocks.reduce(|sum, block| sum + block).unwrap_or(0.0)
}

#[test]
fn floats_are_added_in_the_same_order_wherever_they_lie() -> Result<()> {
    let mut random = Numbers::new(3);
    for shape in [[7, 3000], [2500, 5], [40, 31]] {
        let values: Vec<f32> =
            (0..shape[0] * shape[1]).map(|_| random.next() as u32 as f32 / 4e9 - 0.2).collect();
        for (axis, count, stride) in [(0, shape[1], shape[1]), (1, shape[0], 1)] {
            let first = |line: usize| if axis == 0 { line } else { line * shape[1] };
            let line = |line: usize| -> Vec<f32> {
                (0..shape[axis]).map(|k| values[first(line) + k * stride]).collect()
            };
            let truth: Vec<u32> = (0..count).map(|number| in_blocks(&line(number)).to_bits()).collect();
            for (layout, channels) in
                [(NdLayout::RowMajor, 1), (NdLayout::RowMajor, 2), (NdLayout::Tiled([4, 9]), 1)]
            {
                let on = devices(channels);
                let array = NdArray::<f32, 2>::builder(shape).devices(on.clone()).layout(layout).build()?;
                array.write_box(.., &values)?;
                for device in [on, devices(1)] {
                    let sums = VirtualArray::<f32>::builder(count).devices(device).build()?;
                    array.sum_axis(axis, &sums)?;
                    let bits: Vec<u32> = sums.to_vec(..)?.into_iter().map(f32::to_bits).collect();
                    assert_eq!(bits, truth, "{shape:?} along {axis}");
                    let counts = VirtualArray::<u64>::builder(count).devices(devices(1)).build()?;
                    array.count_axis::<is_below_a_half>(axis, &counts)?;
                    let below =
                        (0..count).map(|number| line(number).iter().filter(|x| **x < 0.5).count() as u64);
                    assert_eq!(counts.to_vec(..)?, below.collect::<Vec<_>>());
                }
            }
        }
    }
    Ok(())
}

#[test]
fn nans_do_not_count_beside_numbers() -> Result<()> {
    let table = NdArray::<f64, 2>::new([3, 2])?;
    table.write_box(.., &[f64::NAN, f64::NAN, 2.0, f64::NAN, f64::NEG_INFINITY, f64::NAN])?;
    let least = VirtualArray::<f64>::new(2)?;
    table.min_axis(0, &least)?;
    let found = least.to_vec(..)?;
    assert!(found[0] == f64::NEG_INFINITY && found[1].is_nan(), "{found:?}");
    Ok(())
}

#[test]
fn elements_of_one_device_in_rows_do_not_leave_it() -> Result<()> {
    let on = devices(1);
    let image = NdArray::<u32, 2>::builder([3000, 70]).devices(on.clone()).build()?;
    image.fill(.., 1)?;
    image.elements().evict(..)?;
    for (axis, count, len) in [(0, 70, 3000), (1, 3000, 70)] {
        let sums = VirtualArray::<u64>::builder(count).devices(on.clone()).build()?;
        let (to, from) = moved_by(image.elements(), || image.sum_axis(axis, &sums).unwrap());
        assert_eq!(sums.to_vec(..)?, vec![len; count]);
        // Only results of blocks are copied.
        assert!((to, from) <= (0, 8 * 3 * 70), "axis {axis}: {to} and {from} bytes");
    }
    Ok(())
}

#[test]
fn planes_of_volumes_and_parts_of_the_same_array() -> Result<()> {
    let volume = NdArray::<u32, 3>::new([3, 4, 5])?;
    volume.write_box(.., &(0..60).collect::<Vec<u32>>())?;
    let sums = VirtualArray::<u32>::new(4)?;
    volume.project::<2>(0, 2)?.sum_axis(1, &sums)?;
    assert_eq!(sums.to_vec(..)?, [210, 235, 260, 285]);
    // The sum of the previous rows becomes the last row.
    let table = NdArray::<u32, 2>::new([4, 3])?;
    table.write_box(.., &(0..12).collect::<Vec<u32>>())?;
    table.section([0, 0]..[3, 3])?.sum_axis(0, table.section_mut([3, 0]..)?)?;
    assert_eq!(table.to_vec([3, 0]..)?, [9, 12, 15]);
    Ok(())
}

#[test]
fn what_does_not_fit_is_refused() -> Result<()> {
    let table = NdArray::<u8, 2>::new([2, 3])?;
    let three = VirtualArray::<u8>::new(3)?;
    three.fill(.., 9)?;
    assert_eq!(table.sum_axis(2, &three).unwrap_err().kind(), &ErrorKind::NoSuchAxis { axis: 2, axes: 2 });
    let error = table.sum_axis(1, &three).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::KernelShape { expected, .. } if expected == &[2]), "{error}");
    let nothing = NdArray::<u8, 2>::new([0, 3])?;
    assert!(nothing.max_axis(0, &three).is_err());
    assert_eq!(three.to_vec(..)?, [9; 3]);
    nothing.sum_axis(0, &three)?;
    assert_eq!(three.to_vec(..)?, [0; 3]);
    Ok(())
}
