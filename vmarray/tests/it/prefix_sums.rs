//! Tests of prefix sums of arrays, sources and sections, compared with loops over vectors.

use std::fmt::Debug;
use std::sync::Arc;

use vmarray::kernel::PrefixSummed;
use vmarray::store::FileDevice;
use vmarray::{AnyDevice, ErrorKind, Result, prelude::*};

use crate::common::{Numbers, Shape, as_any, devices};

/// Prefix sums as a loop, and the total.
fn natively<T: Copy>(values: &[T], is_exclusive: bool, zero: T, add: impl Fn(T, T) -> T) -> (Vec<T>, T) {
    let mut sum = zero;
    let next = |value: &T| {
        let before = sum;
        sum = add(sum, *value);
        if is_exclusive { before } else { sum }
    };
    let sums = values.iter().map(next).collect();
    (sums, sum)
}

fn in_place<'a, V>(view: V, is_exclusive: bool) -> Result<V::Element>
where
    V: ViewMut<'a, Index = usize, Shape = vmarray::views::Linear, Element: PrefixSummed>,
{
    if is_exclusive { view.exclusive_prefix_sum(..) } else { view.prefix_sum(..) }
}

/// Compares a section of an array or of a source with the loop.
fn check<T: PrefixSummed + Debug>(seed: u64, zero: T, add: impl Fn(T, T) -> T, value: impl Fn(u64) -> T) {
    let mut random = Numbers::new(seed);
    let len = [0, 1, 31, 33, 1023, 1024, 1025, 4096, random.below(3000), random.below(12_000)];
    let len = len[random.below(10)];
    let before = if random.below(2) == 0 { 0 } else { random.below(2100) };
    let values: Vec<T> = (0..len).map(|_| value(random.next())).collect();
    let mut all = vec![value(9); before + len + random.below(9) + 1];
    all[before..before + len].copy_from_slice(&values);
    let is_exclusive = random.below(2) == 0;
    let (sums, sum) = natively(&values, is_exclusive, zero, add);
    // Test pages that consist of whole blocks, which devices need, and other pages.
    let page_len = if random.below(4) == 0 { 1 + random.below(2500) } else { 1024 * (1 + random.below(3)) };
    let found = if random.below(3) == 0 {
        let bytes = size_of::<T>() * page_len * (2 + random.below(4)) * 2;
        let source = Source::builder(all.clone()).devices(devices(1 + random.below(2))).page_len(page_len);
        let source = source.device_bytes(bytes as u64).build().unwrap();
        let section = source.section_mut(before..before + len).unwrap();
        assert_eq!(in_place(section, is_exclusive).unwrap(), sum, "seed {seed}");
        source.to_vec(..).unwrap()
    } else {
        let shape = Shape { page_len, ..Shape::any(&mut random, 1, 4) };
        let array = shape.build(all.len());
        array.write(0, &all).unwrap();
        let section = array.section_mut(before..before + len).unwrap();
        assert_eq!(in_place(section, is_exclusive).unwrap(), sum, "seed {seed}");
        array.to_vec(..).unwrap()
    };
    all[before..before + len].copy_from_slice(&sums);
    assert!(found == all, "seed {seed}: {len} elements from {before} on, pages of {page_len}");
}

#[test]
fn prefix_sums_of_short_integers_match_a_loop() {
    for seed in 0..25 {
        check(seed, 0, u8::wrapping_add, |bits| bits as u8);
        check(seed + 100, 0, i16::wrapping_add, |bits| bits as i16);
    }
}

#[test]
fn prefix_sums_of_integers_match_a_loop() {
    for seed in 0..25 {
        check(seed + 200, 0, u32::wrapping_add, |bits| bits as u32);
        check(seed + 300, 0, i64::wrapping_add, |bits| bits as i64);
    }
}

#[test]
fn prefix_sums_of_floats_match_a_loop_without_rounding() {
    for seed in 0..25 {
        check(seed + 400, 0.0, |a: f32, b| a + b, |bits| (bits % 500) as f32);
        check(seed + 500, 0.0, |a: f64, b| a + b, |bits| (bits % 5000) as f64 - 2500.0);
    }
}

#[test]
fn sums_of_floats_are_as_close_as_documented_and_the_same_wherever_elements_lie() -> Result<()> {
    let mut random = Numbers::new(7);
    let values: Vec<f32> = (0..50_000).map(|_| random.next() as u32 as f32 / 4e9 - 0.3).collect();
    let mut all: Vec<Vec<f32>> = Vec::new();
    for (page_len, channels) in [(1024, vec![1]), (2048, vec![1, 3]), (1000, vec![2]), (3072, vec![1; 5])] {
        let array = Shape { page_len, channels, ..Shape::default() }.build(values.len());
        array.write(0, &values)?;
        array.prefix_sum(..)?;
        all.push(array.to_vec(..)?);
    }
    for other in &all[1..] {
        assert!(other.iter().map(|sum| sum.to_bits()).eq(all[0].iter().map(|sum| sum.to_bits())));
    }
    let (mut exact, mut before, mut in_block) = (0.0_f64, 0.0_f64, 0.0_f64);
    for (i, (value, sum)) in values.iter().zip(&all[0]).enumerate() {
        if i % 1024 == 0 {
            (before, in_block) = (before + in_block, 0.0);
        }
        exact += f64::from(*value);
        in_block += f64::from(value.abs());
        let allowed = (12.0 * in_block + 2.0 * before) * f64::from(f32::EPSILON) / 2.0;
        assert!((f64::from(*sum) - exact).abs() <= allowed, "element {i}: {sum} for {exact}");
    }
    Ok(())
}

#[test]
fn groups_and_the_form_of_the_host_give_the_same_bits() -> Result<()> {
    // A file has no addresses, so its groups are interpreted.
    let folder = std::env::temp_dir();
    let file = FileDevice::builder(&folder).create_temporary(1 << 20)?;
    let devices: [Arc<AnyDevice>; 2] = [as_any(&Arc::new(file)), devices(1)[0].clone()];
    let mut random = Numbers::new(11);
    for extents in [[1, 5000], [7, 700], [40, 33]] {
        let values: Vec<f32> = (0..extents[0] * extents[1]).map(|_| random.next() as f32 / 3e9).collect();
        for is_exclusive in [false, true] {
            let mut found = devices.iter().map(|device| -> Result<Vec<u32>> {
                let array = NdArray::<f32, 2>::builder(extents).devices([device.clone()]);
                let array = array.elements(|all| all.page_len(1024)).build()?;
                array.write_box(.., &values)?;
                match is_exclusive {
                    true => array.exclusive_prefix_sum_axis(1)?,
                    false => array.prefix_sum_axis(1)?,
                }
                Ok(array.to_vec(..)?.into_iter().map(f32::to_bits).collect())
            });
            let (Some(one), Some(other)) = (found.next(), found.next()) else { panic!("two devices") };
            assert_eq!(one?, other?, "{extents:?}");
        }
    }
    Ok(())
}

#[test]
fn compensated_sums_keep_the_rounding_errors() -> Result<()> {
    // A loop that adds the values one by one would lose all but the first.
    let array = Shape { page_len: 1024, ..Shape::default() }.build::<f64>(64 * 1024);
    array.fill(.., 2.0_f64.powi(-54))?;
    array.set(0, 1.0)?;
    let sum = array.prefix_sum(..)?;
    assert!(sum >= 1.0 + (64.0 * 1024.0 - 1024.0) * 2.0_f64.powi(-54), "{sum:e}");
    array.fill(.., f64::MAX)?;
    assert_eq!(array.exclusive_prefix_sum(..)?, f64::INFINITY);
    assert_eq!(array.to_vec(..3)?, [0.0, f64::MAX, f64::INFINITY]);
    assert_eq!(array.get(64 * 1024 - 1)?, f64::INFINITY);
    Ok(())
}

#[test]
fn lines_of_boxes_begin_anew() -> Result<()> {
    for seed in 0..backend_api::wrap::random_cases(60).into() {
        let mut random = Numbers::new(seed);
        let longest = [4, 40, 900][random.below(3)];
        let extents: [usize; 3] = [random.below(5), 1 + random.below(7), 1 + random.below(longest)];
        // Test sums over rows in pages of whole blocks, over rows in other pages, and over tiles.
        let channels = 1 + random.below(5);
        let builder = NdArray::<i64, 3>::builder(extents).devices(devices(channels));
        let array = match random.below(4) {
            0 => builder.tiled().build()?,
            1 => builder.elements(|all| all.page_len(1 + random.below(300))).build()?,
            _ => builder.elements(|all| all.page_len(1024 * (1 + random.below(2)))).build()?,
        };
        let mut values: Vec<i64> =
            (0..extents.iter().product()).map(|_| random.next() as i64 % 1000).collect();
        array.write_box(.., &values)?;
        // Start of the summed box: the whole array, or a random part of it.
        let first = if random.below(2) == 0 { [0; 3] } else { extents.map(|extent| random.below(extent)) };
        let (axis, is_exclusive) = ([0, 1, 2, 2][random.below(4)], random.below(2) == 0);
        let part = array.section_mut(first..)?;
        match is_exclusive {
            true => part.exclusive_prefix_sum_axis(axis)?,
            false => part.prefix_sum_axis(axis)?,
        }
        let stride: usize = extents[axis + 1..].iter().product();
        for place in 0..values.len() {
            let at = [place / (extents[1] * extents[2]), place / extents[2] % extents[1], place % extents[2]];
            // Use the first element of a line, because the line is replaced as a whole.
            if (0..3).all(|axis| at[axis] >= first[axis]) && at[axis] == first[axis] {
                let line: Vec<i64> =
                    (0..extents[axis] - first[axis]).map(|i| values[place + i * stride]).collect();
                let (sums, _) = natively(&line, is_exclusive, 0, i64::wrapping_add);
                sums.iter().enumerate().for_each(|(i, sum)| values[place + i * stride] = *sum);
            }
        }
        assert_eq!(array.to_vec(..)?, values, "seed {seed}: {extents:?} from {first:?} along {axis}");
    }
    let array = NdArray::<u8, 2>::new([2, 2])?;
    assert!(matches!(
        array.prefix_sum_axis(2).unwrap_err().kind(),
        ErrorKind::NoSuchAxis { axis: 2, axes: 2 }
    ));
    Ok(())
}

#[test]
fn ranges_that_are_not_there_are_refused() -> Result<()> {
    let array = Shape::default().build::<u32>(10);
    array.fill(.., 3)?;
    assert!(matches!(array.prefix_sum(5..11).unwrap_err().kind(), ErrorKind::RangeOutside { .. }));
    assert_eq!((array.prefix_sum(4..4)?, array.to_vec(..)?), (0, vec![3; 10]));
    Ok(())
}
