//! Tests of joins, compared with nested loops: colliding hashes, and pieces of all lengths.

use proptest::prelude::*;

use super::engine::{JoinEngine, JoinLimits};
use super::keys::{Coder, FoldedMultiply, KeyHash};
use super::merge::Merge;
use super::{Dimension, IndexSet};

/// All keys collide.
struct Constant;
/// Keys collide in the table and in the partition, but not all.
struct TwoBits;
/// Keys collide in the table only: its low bits are the same for all.
struct HighBits;
/// Zero is a fixed point, and equal values cancel each other out.
struct Xor;

impl KeyHash for Constant {
    fn mix(_: u64, _: u64) -> u64 {
        0
    }
}

impl KeyHash for TwoBits {
    fn mix(hash: u64, value: u64) -> u64 {
        (hash ^ value) << 63 | (hash ^ value) >> 1 & 1
    }
}

impl KeyHash for HighBits {
    fn mix(hash: u64, value: u64) -> u64 {
        FoldedMultiply::mix(hash, value) << 32
    }
}

impl KeyHash for Xor {
    fn mix(hash: u64, value: u64) -> u64 {
        hash ^ value
    }
}

/// The results of an engine.
fn results<H: KeyHash>(a: &IndexSet, b: &IndexSet, merge: &Merge, limits: JoinLimits) -> Vec<u64> {
    let engine = JoinEngine::<_, _, H>::new(a, b, merge.clone(), limits).unwrap();
    let mut values = Vec::new();
    let mut walk = None;
    for number in 0..engine.pieces() {
        let piece = engine.piece(number, &mut walk).unwrap();
        let mut part = vec![0; piece.len() * merge.width()];
        piece.emit(0, &mut part);
        values.extend(part);
    }
    assert_eq!(values.len(), engine.len() * merge.width());
    values
}

/// The results of nested loops.
pub(super) fn nested_loops(a: &IndexSet, b: &IndexSet, merge: &Merge) -> Vec<u64> {
    let mut values = Vec::new();
    for a in a.rows() {
        for b in b.rows() {
            if merge.a_keys.iter().zip(&merge.b_keys).all(|(&at_a, &at_b)| a[at_a] == b[at_b]) {
                values.extend(a);
                values.extend(merge.b_rest.iter().map(|&at| b[at]));
            }
        }
    }
    values
}

pub(super) fn sorted(values: &[u64], width: usize) -> Vec<&[u64]> {
    let mut rows: Vec<&[u64]> = values.chunks_exact(width).collect();
    rows.sort_unstable();
    rows
}

pub(super) fn sets() -> impl Strategy<Value = (IndexSet, IndexSet)> {
    // Few different values, with the extremes: the boxes of keys have all sizes, also more than 2^64.
    let few = prop::sample::select(vec![0, 1, 2, u64::MAX / 2, u64::MAX - 1, u64::MAX]);
    let near = 1_000_u64..1_003;
    let value = prop_oneof![few, near];
    let labels = || {
        (Just(vec![0, 1, 2, 3, 4, 5, 6, 7]).prop_shuffle(), 1_usize..7)
            .prop_map(|(labels, width)| labels[..width].to_vec())
    };
    let set = move |labels: Vec<Dimension>| {
        let width = labels.len();
        prop::collection::vec(prop::collection::vec(value.clone(), width), 0..50)
            .prop_map(move |rows| IndexSet::from_rows(labels.clone(), rows).unwrap())
    };
    (labels().prop_flat_map(set.clone()), labels().prop_flat_map(set))
}

proptest! {
    #[test]
    fn all_hashes_match_nested_loops((a, b) in sets(), threads in 1_usize..4) {
        let Ok(merge) = Merge::on_common(a.dimensions(), b.dimensions()) else { return Ok(()) };
        let limits = JoinLimits { threads, memory_bytes: usize::MAX };
        let expected = nested_loops(&a, &b, &merge);
        prop_assert_eq!(&results::<FoldedMultiply>(&a, &b, &merge, limits), &expected);
        prop_assert_eq!(&results::<Constant>(&a, &b, &merge, limits), &expected);
        prop_assert_eq!(&results::<TwoBits>(&a, &b, &merge, limits), &expected);
        prop_assert_eq!(&results::<HighBits>(&a, &b, &merge, limits), &expected);
        prop_assert_eq!(&results::<Xor>(&a, &b, &merge, limits), &expected);
    }

    #[test]
    fn pieces_yield_the_same_results((a, b) in sets(), memory_bytes in 0_usize..8000) {
        let Ok(merge) = Merge::on_common(a.dimensions(), b.dimensions()) else { return Ok(()) };
        let limits = JoinLimits { threads: 1, memory_bytes };
        let (expected, width) = (nested_loops(&a, &b, &merge), merge.width());
        let found = results::<FoldedMultiply>(&a, &b, &merge, limits);
        prop_assert_eq!(sorted(&found, width), sorted(&expected, width));
        // The limit allows two strips but one block, so the order is that of nested loops.
        let limits = JoinLimits { threads: 1, memory_bytes: 2 * 200 * b.len().max(1) };
        prop_assert_eq!(results::<FoldedMultiply>(&a, &b, &merge, limits), expected);
    }

    #[test]
    fn exact_codes_are_equal_only_if_the_values_are(
        rows in prop::collection::vec((any::<u64>(), 0_u64..3, 0_u64..3), 1..50),
        is_narrow: bool,
    ) {
        let narrow = |(wide, a, b): (u64, u64, u64)| if is_narrow { [a, b] } else { [wide, a] };
        let rows: Vec<[u64; 2]> = rows.into_iter().map(narrow).collect();
        let set = IndexSet::from_rows([0, 1], &rows).unwrap();
        let block = super::source::TupleBlock::load(&set, 0..set.len(), 1).unwrap();
        let coder = Coder::of(&block, &[0, 1], 1).unwrap();
        let mut codes = Vec::new();
        coder.for_each::<Constant>(&block, &[0, 1], 0..set.len(), |_, key| codes.push(key.code));
        prop_assert_eq!(codes.len(), rows.len());
        for (row, code) in rows.iter().zip(&codes) {
            for (other, other_code) in rows.iter().zip(&codes) {
                prop_assert!(!coder.is_exact() || (row == other) == (code == other_code));
            }
        }
    }
}

#[test]
fn codes_are_exact_up_to_the_last_place_of_a_box() {
    let all = (0, u64::MAX);
    assert!(Coder::of_bounds(&[all]).is_exact());
    assert!(Coder::of_bounds(&[(5, 5), all, (0, 0)]).is_exact());
    assert!(Coder::of_bounds(&[(0, (1 << 32) - 1), (7, 6 + (1 << 32))]).is_exact());
    assert!(!Coder::of_bounds(&[all, (0, 1)]).is_exact());
    assert!(!Coder::of_bounds(&[(0, (1 << 32) - 1), (7, 7 + (1 << 32))]).is_exact());
    assert!(!Coder::of_bounds(&vec![(0, 1); 65]).is_exact());
    assert!(Coder::of_bounds(&vec![(0, 1); 64]).is_exact());
}

/// Cases that a join fails if it combines values bit by bit: zero on one side, another value on the other
/// side, and equal hashes.
#[test]
fn zero_is_a_value_like_others_if_hashes_collide() {
    let a = IndexSet::from_rows([0, 1, 2], [[0, 5, 10], [7, 0, 11]]).unwrap();
    let b = IndexSet::from_rows([0, 1, 3], [[7, 5, 12], [0, 0, 13], [7, 0, 14]]).unwrap();
    let merge = Merge::on_common(a.dimensions(), b.dimensions()).unwrap();
    let limits = JoinLimits { threads: 1, memory_bytes: usize::MAX };
    assert_eq!(results::<Constant>(&a, &b, &merge, limits), [7, 0, 11, 14]);
    assert_eq!(results::<Xor>(&a, &b, &merge, limits), [7, 0, 11, 14]);
    // Make the box of key values so large that the codes are hashes.
    let wide = |set: IndexSet, rows: [[u64; 3]; 2]| {
        rows.iter().fold(set, |mut set, row| {
            set.push(row).unwrap();
            set
        })
    };
    let b = wide(b, [[u64::MAX, u64::MAX, 1], [u64::MAX, 0, 2]]);
    let a = wide(a, [[0, u64::MAX, 3], [u64::MAX, 0, 4]]);
    assert_eq!(results::<Constant>(&a, &b, &merge, limits), [7, 0, 11, 14, u64::MAX, 0, 4, 2]);
    assert_eq!(results::<Xor>(&a, &b, &merge, limits), [7, 0, 11, 14, u64::MAX, 0, 4, 2]);
}

#[test]
fn the_merge_of_dimensions_keeps_their_order() {
    let merge = Merge::on_common(&[9, 2, 5], &[5, 1, 9, 0]).unwrap();
    assert_eq!(merge.dimensions, [9, 2, 5, 1, 0]);
    assert_eq!((merge.a_keys, merge.b_keys, merge.b_rest), (vec![0, 2], vec![2, 0], vec![1, 3]));
}
