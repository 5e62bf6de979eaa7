//! Tests of sorts by keys, distinct elements, groups, searches and joins, compared with vectors.

use std::collections::BTreeMap;
use std::sync::Arc;

use vmarray::order::{Descending, KeyMatches, MatchKind, Side};
use vmarray::store::FileDevice;
use vmarray::{ErrorKind, Result, prelude::*};

use crate::common::{Numbers, devices};

/// Elements of several channels; some lengths are page boundaries.
fn random(seed: u64, most: u64) -> (Vec<u32>, Numbers) {
    let mut numbers = Numbers::new(seed);
    let len = [0, 1, 2, 255, 256, 257, 5000][numbers.below(7)];
    ((0..len).map(|_| (numbers.next() >> 16) as u32 % most as u32).collect(), numbers)
}

fn array<T: Element>(values: &[T], numbers: &mut Numbers) -> VirtualArray<T> {
    let builder = VirtualArray::<T>::builder(values.len() + 3).devices(devices(1 + numbers.below(2)));
    let array = builder.page_len(1 + numbers.below(600)).build().unwrap();
    array.write(2, values).unwrap();
    array
}

fn own() -> Field<u32, u32> {
    Field::whole()
}

#[test]
fn indices_by_keys_match_a_stable_sort() -> Result<()> {
    for seed in 0..12 {
        let (values, mut numbers) = random(seed, 50);
        let array = array(&values, &mut numbers);
        let of = array.section_mut(2..2 + values.len())?;
        let mut expected: Vec<u64> = (0..values.len() as u64).collect();
        expected.sort_by_key(|at| (values[*at as usize] % 7, u32::MAX - values[*at as usize] / 9));
        let keys = || (own() % 7, Descending(own() / 9));
        assert_eq!(of.argsort(.., keys())?.to_vec(..)?, expected, "seed {seed}");
        let sorted: Vec<u32> = expected.iter().map(|at| values[*at as usize]).collect();
        assert_eq!(of.take(&of.argsort(.., keys())?)?.to_vec(..)?, sorted);
        of.sort_by_key(.., keys())?;
        assert_eq!(of.to_vec(..)?, sorted);
        assert_eq!((array.get(0)?, array.get(values.len() + 2)?), (0, 0));
    }
    Ok(())
}

#[test]
fn elements_of_all_lengths_are_taken() -> Result<()> {
    let mut numbers = Numbers::new(1);
    let list: Vec<u32> = (0..700).map(|_| numbers.below(300) as u32).collect();
    let indices = array(&list, &mut numbers);
    let indices = indices.section(2..702)?;
    fn check<'a, const N: usize>(
        indices: impl View<'a, Element = u32, Index = usize, Shape = vmarray::views::Linear>,
        list: &[u32],
        numbers: &mut Numbers,
    ) -> Result<()> {
        let values: Vec<[u8; N]> = (0..300).map(|_| std::array::from_fn(|_| numbers.next() as u8)).collect();
        let from = array(&values, numbers);
        let expected: Vec<[u8; N]> = list.iter().map(|at| values[*at as usize]).collect();
        assert!(from.section(2..302)?.take(indices)?.to_vec(..)? == expected, "{N} bytes");
        let error = from.section(2..200)?.take(indices).unwrap_err();
        let first = list.iter().position(|at| *at >= 198);
        assert!(
            matches!(*error.kind(), ErrorKind::ListedIndexOutside { position, len: 198, .. }
            if list[position] >= 198 && first.is_some()),
            "{error}"
        );
        Ok(())
    }
    check::<1>(indices, &list, &mut numbers)?;
    check::<6>(indices, &list, &mut numbers)?;
    check::<12>(indices, &list, &mut numbers)?;
    check::<40>(indices, &list, &mut numbers)?;
    check::<129>(indices, &list, &mut numbers)?;
    check::<1000>(indices, &list, &mut numbers)
}

#[test]
fn ranks_match_a_sorted_vector() -> Result<()> {
    for seed in 20..30 {
        let (values, mut numbers) = random(seed, [3, 1 << 31][seed as usize % 2]);
        let floats: Vec<f32> = values.iter().map(|bits| f32::from_bits(bits.rotate_left(3))).collect();
        let array = array(&floats, &mut numbers);
        let of = array.section(2..2 + values.len())?;
        let mut sorted = floats.clone();
        sorted.sort_by(f32::total_cmp);
        assert_eq!(of.is_sorted(..)?, floats.is_sorted_by(|a, b| a.total_cmp(b).is_le()), "seed {seed}");
        let bits = |all: &[f32]| all.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        let greatest: Vec<f32> = sorted.iter().rev().take(10).copied().collect();
        assert_eq!(bits(&of.top_k(.., 10)?), bits(&greatest));
        if let Some(last) = values.len().checked_sub(1) {
            let nth = numbers.below(values.len());
            assert_eq!(of.select_nth(.., nth)?.to_bits(), sorted[nth].to_bits());
            assert_eq!(of.quantiles(.., &[1.0])?[0].to_bits(), sorted[last].to_bits());
        }
        assert!(matches!(
            of.select_nth(.., values.len()).unwrap_err().kind(),
            ErrorKind::IndexOutside { .. }
        ));
        for share in [f64::NAN, -0.1, 1.5, -f64::INFINITY, 1.0 + f64::EPSILON] {
            let refused = of.quantiles(.., &[0.0, share, f64::NAN]).unwrap_err();
            let expected = ErrorKind::ShareOutside { position: 1, share: share.to_string() };
            assert_eq!(*refused.kind(), expected);
        }
        assert!(of.quantiles(.., &[])?.is_empty());
        sorted.dedup_by_key(|x| x.to_bits());
        assert_eq!(bits(&of.unique(..)?.to_vec(..)?), bits(&sorted));
    }
    Ok(())
}

#[test]
fn searches_and_merges_match_vectors() -> Result<()> {
    for seed in 40..50 {
        let ((mut one, mut numbers), (mut two, _)) = (random(seed, 300), random(seed + 100, 300));
        one.sort_unstable();
        let (first, wanted) = (array(&one, &mut numbers), array(&two, &mut numbers));
        let first = first.section(2..2 + one.len())?;
        let left = first.search_sorted(wanted.section(2..2 + two.len())?, Side::Left)?.to_vec(..)?;
        let right = first.search_sorted(wanted.section(2..2 + two.len())?, Side::Right)?.to_vec(..)?;
        for (at, value) in two.iter().enumerate() {
            assert_eq!(left[at] as usize, one.partition_point(|x| x < value));
            assert_eq!(right[at] as usize, one.partition_point(|x| x <= value));
        }
        let middle = one.get(one.len() / 2).copied().unwrap_or(0);
        assert_eq!(first.partition_point(.., |x| x < middle)?, one.partition_point(|x| *x < middle));
        two.sort_unstable();
        let second = array(&two, &mut numbers);
        let merged = first.merged(second.section(2..2 + two.len())?)?.to_vec(..)?;
        one.extend(two);
        one.sort_unstable();
        assert_eq!(merged, one, "seed {seed}");
    }
    Ok(())
}

#[test]
fn groups_match_a_map() -> Result<()> {
    for seed in 60..70 {
        // Test groups of one value, of many, and a group that takes several levels.
        let (values, mut numbers) = random(seed, [2, 40, 1 << 20][seed as usize % 3]);
        let weights: Vec<i32> = (0..values.len()).map(|_| numbers.next() as i32 >> 4).collect();
        let (keys, column) = (array(&values, &mut numbers), Source::new(weights.clone())?);
        let groups = keys.section(2..2 + values.len())?.group_by(.., own())?;
        let mut map = BTreeMap::<u32, Vec<i32>>::new();
        values.iter().zip(&weights).for_each(|(key, weight)| map.entry(*key).or_default().push(*weight));
        assert_eq!(groups.len(), map.len());
        assert_eq!(groups.keys().to_vec(..)?, map.keys().copied().collect::<Vec<_>>());
        let of = |by: fn(&Vec<i32>) -> i64| map.values().map(by).collect::<Vec<_>>();
        let counts: Vec<i64> = groups.counts()?.to_vec(..)?.into_iter().map(|count| count as i64).collect();
        assert_eq!(counts, of(|all| all.len() as i64));
        assert_eq!(groups.sum(&column)?.to_vec(..)?, of(|all| all.iter().map(|x| i64::from(*x)).sum()));
        let wide = |found: Vec<i32>| found.into_iter().map(i64::from).collect::<Vec<_>>();
        assert_eq!(
            wide(groups.min(&column)?.to_vec(..)?),
            of(|all| all.iter().min().map_or(0, |x| (*x).into()))
        );
        assert_eq!(
            wide(groups.max(&column)?.to_vec(..)?),
            of(|all| all.iter().max().map_or(0, |x| (*x).into()))
        );
        let short = Source::new(vec![0_i32; values.len() + 1])?;
        assert!(matches!(groups.sum(&short).unwrap_err().kind(), ErrorKind::LengthMismatch { .. }));
    }
    Ok(())
}

#[test]
fn joins_have_the_pairs_of_nested_loops_in_their_order() -> Result<()> {
    for seed in 80..92 {
        let ((mut one, mut numbers), (mut two, _)) = (random(seed, 60), random(seed + 100, 60));
        one.truncate(300);
        two.truncate(257);
        let (left, right) = (array(&one, &mut numbers), Source::new(two.clone())?);
        let left = left.section(2..2 + one.len())?;
        let (mut inner, mut outer, mut semi, mut anti) = (vec![], vec![], vec![], vec![]);
        for (at, key) in one.iter().enumerate() {
            let pairs = two.iter().enumerate().filter(|(_, other)| **other + 1 == *key);
            let pairs: Vec<(u64, u64)> = pairs.map(|(other, _)| (at as u64, other as u64)).collect();
            if pairs.is_empty() {
                anti.push(at as u64);
                outer.push((at as u64, KeyMatches::NONE));
            } else {
                semi.push(at as u64);
            }
            inner.extend(&pairs);
            outer.extend(&pairs);
        }
        for (kind, expected) in [(MatchKind::Inner, &inner), (MatchKind::Left, &outer)] {
            let found = left.matches(&right, own(), own() + 1, kind)?;
            let pairs: Vec<_> = found.left.to_vec(..)?.into_iter().zip(found.right.to_vec(..)?).collect();
            assert_eq!((found.left.len(), &pairs), (found.right.len(), expected), "seed {seed}, {kind:?}");
        }
        for (kind, expected) in [(MatchKind::Semi, &semi), (MatchKind::Anti, &anti)] {
            let found = left.matches(&right, own(), own() + 1, kind)?;
            assert_eq!((&found.left.to_vec(..)?, found.right.len()), (expected, 0), "seed {seed}, {kind:?}");
        }
    }
    Ok(())
}

#[test]
fn shuffles_and_samples_have_each_element_once() -> Result<()> {
    let mut numbers = Numbers::new(5);
    let values: Vec<u32> = (0..3000).collect();
    let array = array(&values, &mut numbers);
    let of = array.section_mut(2..3002)?;
    of.shuffle(.., 7)?;
    let shuffled = of.to_vec(..)?;
    assert!(shuffled.iter().zip(&values).filter(|(one, two)| one == two).count() < 30);
    of.sort(..)?;
    assert_eq!(of.to_vec(..)?, values);
    of.shuffle(.., 7)?;
    assert_eq!(of.to_vec(..)?, shuffled);
    let mut some = of.sample(.., 500, 1)?;
    some.sort_unstable();
    some.dedup();
    assert_eq!(some.len(), 500);
    assert_eq!(of.sample(.., 3000, 2)?.len(), 3000);
    assert!(of.sample(.., 3001, 2).is_err());
    Ok(())
}

#[test]
fn arrays_in_files_are_ordered_in_ram() -> Result<()> {
    let file = FileDevice::builder(std::env::temp_dir()).create_temporary(8192)?;
    let array = VirtualArray::<u32>::builder(1000).devices([Arc::new(file)]).page_len(100).build()?;
    array.transform(.., own().set(vmarray::expr::index().cast::<u32>() * 7 % 1000))?;
    let order = array.argsort(.., own())?;
    assert_eq!(array.take(&order)?.to_vec(..)?, (0..1000).collect::<Vec<_>>());
    array.sort_by_key(.., Descending(own()))?;
    assert_eq!(array.to_vec(..3)?, [999, 998, 997]);
    Ok(())
}
