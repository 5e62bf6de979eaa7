//! Tests of sorts of arrays, sources and sections, compared with sorted vectors.

use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, Ordering};

use vmarray::views::SortKey;
use vmarray::{Element, ErrorKind, Result, prelude::*};

use crate::common::{Numbers, Shape, devices};

/// Lengths around the sizes of blocks, warps and tiles of GPUs, and others.
const LENGTHS: [usize; 12] = [0, 1, 2, 31, 33, 383, 385, 4223, 4225, 8447, 8449, 50_000];

fn sort<'a, V>(view: V, is_descending: bool) -> Result<()>
where
    V: ViewMut<'a, Index = usize, Shape = vmarray::views::Linear, Element: SortKey>,
{
    if is_descending { view.sort_descending(..) } else { view.sort(..) }
}

/// Compares a sorted section of an array or of a source with a vector; all other elements are unchanged.
fn check<T: SortKey + Debug>(seed: u64, value: impl Fn(u64) -> T, bits: impl Fn(&T) -> u64 + Copy) {
    let mut random = Numbers::new(seed);
    let len = if random.below(2) == 0 { LENGTHS[random.below(12)] } else { random.below(20_000) };
    let before = if random.below(2) == 0 { 0 } else { random.below(2100) };
    // Test random bits, few values, one value, sorted keys, and reversed keys.
    let kind = random.below(5);
    let of = |number: u64, at: usize| match kind {
        0 => number,
        1 => ((number % 3) << 60) | (number % 2),
        2 => 77,
        3 => (at as u64) << 32 | at as u64,
        _ => ((len - at) as u64) << 32 | (len - at) as u64,
    };
    let values: Vec<T> = (0..len).map(|at| value(of(random.next(), at))).collect();
    let mut all = vec![value(9); before + len + random.below(9) + 1];
    all[before..before + len].copy_from_slice(&values);
    let is_descending = random.below(2) == 0;
    let page_len = 1 + random.below(5000);
    let found = if random.below(4) == 0 {
        let bytes = size_of::<T>() * page_len * (2 + random.below(4)) * 2;
        let source = Source::builder(all.clone()).devices(devices(1 + random.below(2))).page_len(page_len);
        let source = source.device_bytes(bytes as u64).build().unwrap();
        let section = source.section_mut(before..before + len).unwrap();
        sort(section, is_descending).unwrap();
        source.to_vec(..).unwrap()
    } else {
        let mut shape = Shape { page_len, ..Shape::any(&mut random, 1, 4) };
        if random.below(2) == 0 {
            shape.channels = vec![1];
        }
        let array = shape.build(all.len());
        array.write(0, &all).unwrap();
        let section = array.section_mut(before..before + len).unwrap();
        sort(section, is_descending).unwrap();
        array.to_vec(..).unwrap()
    };
    let sorted = &mut all[before..before + len];
    sorted.sort_by_key(bits);
    if is_descending {
        sorted.reverse();
    }
    // Compare bits, because NaNs differ from themselves.
    let is_same = found.iter().map(bits).eq(all.iter().map(bits));
    assert!(is_same, "seed {seed}: {len} elements from {before} on, kind {kind}, descending {is_descending}");
}

#[test]
fn sorted_integers_match_a_vector() {
    for seed in 0..25 {
        check(seed, |bits| bits as u8, |x| u64::from(*x));
        check(seed + 100, |bits| bits as u16, |x| u64::from(*x));
        check(seed + 200, |bits| (bits >> 32) as u32, |x| u64::from(*x));
        check(seed + 300, |bits| bits, |x| *x);
    }
}

#[test]
fn sorted_signed_integers_match_a_vector() {
    for seed in 400..425 {
        check(seed, |bits| bits as i8, |x| i64::from(*x) as u64 ^ 1 << 63);
        check(seed + 100, |bits| bits as i16, |x| i64::from(*x) as u64 ^ 1 << 63);
        check(seed + 200, |bits| (bits >> 32) as i32, |x| i64::from(*x) as u64 ^ 1 << 63);
        check(seed + 300, |bits| bits as i64, |x| *x as u64 ^ 1 << 63);
    }
}

/// Rank of a float in the total order of `f64::total_cmp`.
fn total(bits: i64) -> u64 {
    (bits ^ ((bits >> 63) as u64 >> 1) as i64) as u64 ^ 1 << 63
}

#[test]
fn sorted_floats_are_in_total_order() {
    for seed in 800..830 {
        // Every bit pattern is a key: subnormals, infinities, NaNs of both signs.
        check(
            seed,
            |bits| f32::from_bits((bits >> 32) as u32),
            |x| total(i64::from(x.to_bits() as i32) << 32),
        );
        check(seed + 100, f64::from_bits, |x| total(x.to_bits() as i64));
    }
    let special = [0.0, f64::NAN, -1.0, f64::NEG_INFINITY, -0.0, -f64::NAN, f64::MIN_POSITIVE, f64::INFINITY];
    let array = Shape { channels: vec![1], ..Shape::default() }.build(8);
    array.write(0, &special).unwrap();
    array.sort(..).unwrap();
    let mut expected = special;
    expected.sort_by(f64::total_cmp);
    let found = array.to_vec(..).unwrap();
    assert!(found.iter().zip(&expected).all(|(one, two)| one.total_cmp(two).is_eq()), "{found:?}");
}

/// Sorts keys with values that hold their old positions, and compares both with a stable sort.
fn check_with<K: SortKey + Ord + Debug, V: Element + PartialEq + Debug>(
    seed: u64,
    key: impl Fn(u64) -> K,
    value: impl Fn(usize) -> V,
) {
    let mut random = Numbers::new(seed);
    let len = if random.below(2) == 0 { LENGTHS[random.below(12)] } else { random.below(20_000) };
    let chosen = devices(1 + random.below(5));
    // In half of the cases a key and its value are in the same channel.
    let (page_len, rows) = (1 + random.below(5000), random.below(3));
    let (before, values_page_len) = if random.below(2) == 0 {
        (rows * chosen.len() * page_len, page_len)
    } else {
        (rows * random.below(900), 1 + random.below(5000))
    };
    let after = random.below(9);
    let mask = [u64::MAX, 3 << 61 | 1, 0][random.below(3)];
    let keys: Vec<K> = (0..len).map(|_| key(random.next() << 16 & mask)).collect();
    let values: Vec<V> = (0..len).map(&value).collect();
    let array = VirtualArray::<K>::builder(before + len + 1).devices(chosen.clone()).page_len(page_len);
    let array = array.build().unwrap();
    let beside = VirtualArray::<V>::builder(len + after).devices(chosen).page_len(values_page_len);
    let beside = beside.build().unwrap();
    array.write(before, &keys).unwrap();
    beside.write(0, &values).unwrap();
    array.sort_with(before..before + len, beside.section_mut(..len).unwrap()).unwrap();
    let mut both: Vec<(K, usize)> = keys.into_iter().zip(0..).collect();
    both.sort_by_key(|(key, _)| *key);
    let (keys, values): (Vec<K>, Vec<V>) = both.into_iter().map(|(key, at)| (key, value(at))).unzip();
    assert!(array.to_vec(before..before + len).unwrap() == keys, "seed {seed}: {len} keys");
    assert!(beside.to_vec(..len).unwrap() == values, "seed {seed}: {len} values");
    assert!(array.section(..before).unwrap().to_vec(..).unwrap().iter().all(|key| *key == K::zeroed()));
}

#[test]
fn values_go_with_their_keys_and_equal_ones_stay_in_their_order() {
    for seed in 0..12 {
        check_with(seed, |bits| (bits >> 56) as u8, |at| at as u32);
        check_with(seed + 20, |bits| (bits >> 48) as i16, |at| at as u32);
        check_with(seed + 40, |bits| (bits >> 32) as u32, |at| at as u32);
        check_with(seed + 60, |bits| bits as i64, |at| at as u32);
        check_with(seed + 80, |bits| (bits >> 56) as i8, |at| at as u64);
        check_with(seed + 100, |bits| (bits >> 48) as u16, |at| at as f64);
        check_with(seed + 120, |bits| (bits >> 32) as i32, |at| at as u64);
        check_with(seed + 140, |bits| bits, |at| at as u64);
        check_with(seed + 160, |bits| bits, |at| [at as u16; 5]);
    }
}

#[test]
fn values_must_be_as_many_as_keys_and_none_of_these() -> Result<()> {
    let array = Shape { channels: vec![1], ..Shape::default() }.build::<u32>(10);
    let short = array.sort_with(..5, array.section_mut(6..)?).unwrap_err();
    assert!(matches!(short.kind(), ErrorKind::LengthMismatch { .. }), "{short}");
    let same = array.sort_with(..5, array.section_mut(4..9)?).unwrap_err();
    assert!(matches!(same.kind(), ErrorKind::KernelOverlap { .. }), "{same}");
    // Other elements of the same array are not sorted.
    array.write(0, &[3, 2, 1, 0, 9, 30, 20, 10, 0, 7])?;
    array.sort_with(..4, array.section_mut(5..9)?)?;
    assert_eq!(array.to_vec(..)?, [0, 1, 2, 3, 9, 0, 10, 20, 30, 7]);
    Ok(())
}

#[test]
fn cached_elements_are_sorted_and_unwritten_ones_are_zero() -> Result<()> {
    let array = Shape { page_len: 100, channels: vec![1], ..Shape::default() }.build::<i32>(10_000);
    for index in (0..3000).step_by(7) {
        array.set(index, 1 - index as i32)?;
    }
    let mut expected = array.to_vec(..)?;
    expected.sort_unstable();
    array.sort(..)?;
    assert_eq!(array.to_vec(..)?, expected);
    // The cache has no elements from before the sort.
    assert_eq!((array.get(0)?, array.get(9_999)?), (expected[0], 1));
    Ok(())
}

#[test]
fn a_sort_within_a_guard_is_refused_and_others_wait_for_it() -> Result<()> {
    let array = Shape { page_len: 64, channels: vec![1], ..Shape::default() }.build::<u32>(6400);
    let values: Vec<u32> = (0..6400).rev().collect();
    array.write(0, &values)?;
    let guard = array.page(3)?;
    let refused = array.sort(..).map_err(|error| error.kind().clone());
    assert!(matches!(refused, Err(ErrorKind::WouldDeadlock { .. })), "{refused:?}");
    drop(guard);
    assert_eq!(array.to_vec(..)?, values, "nothing was changed");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Run readers meanwhile, one of them with guards.
        for reader in 0..3 {
            let (array, is_over) = (&array, &is_over);
            scope.spawn(move || {
                let mut random = Numbers::new(reader);
                while !is_over.load(Ordering::Relaxed) {
                    let index = random.below(6400);
                    if reader == 0 {
                        let page = array.page(index / 64).unwrap();
                        assert!(page.iter().all(|value| *value < 6400));
                    } else {
                        assert!(array.get(index).unwrap() < 6400);
                    }
                }
            });
        }
        let sorted = (0..5).try_for_each(|_| array.sort_descending(..).and_then(|()| array.sort(..)));
        is_over.store(true, Ordering::Relaxed);
        sorted
    })?;
    assert!(array.to_vec(..)?.into_iter().eq(0..6400));
    Ok(())
}
