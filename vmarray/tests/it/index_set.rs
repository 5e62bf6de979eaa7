//! Tests of index sets: results, errors, and copied bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use vmarray::prelude::*;

use crate::common::as_any;
use proptest::prelude::*;
use vmarray::host::HostDevice;
use vmarray::index_set::{Combine, Dimension, PagedIndexSet, Tuples};
use vmarray::{ErrorKind, IndexSet, Result, VirtualArray};

fn set(dimensions: &[Dimension], rows: &[&[u64]]) -> IndexSet {
    IndexSet::from_rows(dimensions.iter().copied(), rows).unwrap()
}

fn kind<T: std::fmt::Debug>(result: Result<T>) -> ErrorKind {
    result.unwrap_err().kind().clone()
}

fn product(a: &IndexSet, b: &IndexSet) -> Result<IndexSet> {
    Combine::product(a, b).run()?.to_index_set()
}

fn count(a: &IndexSet, b: &IndexSet) -> Result<usize> {
    Ok(Combine::new(a, b).run()?.len())
}

/// Definition: all pairs in order, merged if they agree on the common dimensions.
fn nested_loops(a: &IndexSet, b: &IndexSet) -> Vec<Vec<u64>> {
    let common: Vec<(usize, usize)> = a
        .dimensions()
        .iter()
        .enumerate()
        .filter_map(|(at, label)| Some((at, b.dimensions().iter().position(|other| other == label)?)))
        .collect();
    let mut merged = Vec::new();
    for row in a.rows() {
        for other in b.rows() {
            if common.iter().all(|&(at_a, at_b)| row[at_a] == other[at_b]) {
                let rest = (0..b.dimensions().len()).filter(|at| common.iter().all(|(_, at_b)| at_b != at));
                merged.push(row.iter().copied().chain(rest.map(|at| other[at])).collect());
            }
        }
    }
    merged
}

fn rows(set: &IndexSet) -> Vec<Vec<u64>> {
    set.rows().map(<[u64]>::to_vec).collect()
}

/// A source of tuples that are computed on read.
struct Made {
    dimensions: &'static [Dimension],
    len: usize,
    read: fn(usize, &mut [u64]) -> Result<()>,
}

impl Made {
    const ZEROES: fn(usize, &mut [u64]) -> Result<()> = |_, into| {
        into.fill(0);
        Ok(())
    };
}

impl Tuples for Made {
    fn dimensions(&self) -> &[Dimension] {
        self.dimensions
    }

    fn len(&self) -> usize {
        self.len
    }

    fn read_tuples(&self, first: usize, into: &mut [u64]) -> Result<()> {
        (self.read)(first, into)
    }
}

#[test]
fn invalid_sets_are_refused() {
    assert_eq!(kind(IndexSet::new([3, 4, 3])), ErrorKind::DuplicateDimension { dimension: 3 });
    let ragged = IndexSet::from_rows([0, 1], [vec![1, 2], vec![1, 2, 3]]);
    assert_eq!(kind(ragged), ErrorKind::RaggedTuple { tuple: 1, expected: 2, got: 3 });
    let ragged = IndexSet::from_values([0, 1], vec![1, 2, 3]);
    assert_eq!(kind(ragged), ErrorKind::RaggedTuple { tuple: 1, expected: 2, got: 1 });
    let no_columns = IndexSet::from_values([], vec![1]);
    assert_eq!(kind(no_columns), ErrorKind::RaggedTuple { tuple: 0, expected: 0, got: 1 });
    let ragged = IndexSet::from_columns([(0, vec![1, 2]), (7, vec![1])]);
    assert_eq!(kind(ragged), ErrorKind::RaggedColumn { dimension: 7, expected: 2, got: 1 });
    let array = VirtualArray::<u64>::new(5).unwrap();
    assert_eq!(
        kind(PagedIndexSet::new([0, 1], array)),
        ErrorKind::RaggedTuple { tuple: 2, expected: 2, got: 1 }
    );
}

#[test]
fn invalid_combinations_are_refused() {
    let (a, b) = (set(&[0, 1], &[&[1, 2]]), set(&[2], &[&[3]]));
    assert_eq!(kind(a.combine(&b)), ErrorKind::NoCommonDimension);
    assert_eq!(rows(&product(&a, &b).unwrap()), [[1, 2, 3]]);
    assert_eq!(kind(product(&a, &set(&[5, 1], &[]))), ErrorKind::CommonDimension { dimension: 1 });
    assert_eq!(kind(a.project([1, 4])), ErrorKind::UnknownDimension { dimension: 4 });
    assert_eq!(kind(a.project([1, 1])), ErrorKind::DuplicateDimension { dimension: 1 });
    assert_eq!(kind(a.column(9).map(|_| ())), ErrorKind::UnknownDimension { dimension: 9 });
    assert_eq!(
        kind(a.relabel([1])),
        ErrorKind::LengthMismatch { of: "the list of labels", expected: 2, got: 1 }
    );
}

#[test]
fn sets_of_no_dimensions_are_numbers_of_tuples() {
    let three = IndexSet::from_rows([], [[]; 3]).unwrap();
    assert_eq!((three.len(), three.dimensions().len(), three.rows().count()), (3, 0, 3));
    assert_eq!((three.rows().nth(2), three.rows().nth(3)), (Some(&[][..]), None));
    let a = set(&[4], &[&[1], &[2]]);
    assert_eq!(kind(a.combine(&three)), ErrorKind::NoCommonDimension);
    assert_eq!(kind(three.combine(&three)), ErrorKind::NoCommonDimension);
    assert_eq!(rows(&product(&three, &a).unwrap()), [[1], [2], [1], [2], [1], [2]]);
    assert_eq!(rows(&product(&a, &three).unwrap()), [[1], [1], [1], [2], [2], [2]]);
    let nine = product(&three, &three).unwrap();
    assert_eq!((nine.len(), nine.dimensions().len()), (9, 0));
    let nine = Combine::product(&three, &three).run().unwrap();
    assert_eq!(nine.chunks(4).map(|chunk| chunk.unwrap().len()).collect::<Vec<_>>(), [4, 4, 1]);
    nine.write_to(&VirtualArray::<u64>::new(0).unwrap(), 0).unwrap();
    assert_eq!(a.project([]).unwrap().len(), 2);
    let mut sorted = three.clone();
    sorted.sort().unwrap();
    sorted.dedup();
    assert_eq!(sorted.len(), 1);
    assert!(IndexSet::default().is_empty());
}

#[test]
fn numbers_of_results_that_overflow_are_refused() {
    let many = |len| Made { dimensions: &[], len, read: |_, _| Ok(()) };
    let (a, b) = (many(1 << 32), many(1 << 31));
    assert_eq!(Combine::product(&a, &b).run().unwrap().len(), 1 << 63);
    let too_many = Combine::product(&a, &a).run();
    assert!(matches!(kind(too_many), ErrorKind::TooLong { .. }));
    // The number of results can be computed, but memory cannot hold them.
    let one = set(&[0], &[&[7]]);
    let results = Combine::product(&b, &one).memory_bytes(1).run().unwrap();
    assert_eq!(results.len(), 1 << 31);
    let long = many(1 << 61);
    let results = Combine::product(&long, &one).run();
    assert!(matches!(kind(results.unwrap().to_index_set()), ErrorKind::TooLong { .. }));
}

#[test]
fn results_that_do_not_fit_into_memory_are_refused() {
    // All tuples have the same key: 2^44 results of two values each.
    let all = IndexSet::from_columns([(0, vec![9; 1 << 22]), (1, vec![1; 1 << 22])]).unwrap();
    let other = all.clone().relabel([0, 2]).unwrap();
    let results = Combine::new(&all, &other).run().unwrap();
    assert_eq!(results.len(), 1 << 44);
    assert_eq!(kind(results.to_index_set()), ErrorKind::NoMemory { bytes: 3 << 47 });
    // Single chunks can be computed nevertheless.
    let first = results.chunks(1000).next().unwrap().unwrap();
    assert!(first.len() == 1000 && first.rows().all(|row| row == [9, 1, 1]));
}

#[test]
fn a_key_that_half_of_the_tuples_have() {
    let key = |i: u64| if i.is_multiple_of(2) { u64::MAX } else { i };
    let a = IndexSet::from_columns([(0, (0..100_000).map(key).collect::<Vec<_>>())]).unwrap();
    let b = IndexSet::from_columns([(0, vec![u64::MAX, 1, 0]), (1, vec![7, 8, 9])]).unwrap();
    assert_eq!(count(&a, &a).unwrap(), 50_000 * 50_000 + 50_000);
    for threads in [1, 3] {
        let merged = Combine::new(&a, &b).threads(threads).run().unwrap().to_index_set().unwrap();
        assert_eq!(merged.len(), 50_001);
        assert!(merged.rows().take(3).eq([[u64::MAX, 7], [1, 8], [u64::MAX, 7]]));
        let other = Combine::new(&b, &a).threads(threads).run().unwrap().to_index_set().unwrap();
        assert!(other.rows().take(50_000).all(|row| row == [u64::MAX, 7]));
        assert_eq!(other.rows().nth(50_000), Some(&[1, 8][..]));
    }
}

#[test]
fn no_matches_yield_nothing() {
    let a = IndexSet::from_columns([(0, (0..100_000).collect::<Vec<_>>())]).unwrap();
    let b =
        IndexSet::from_columns([(0, (100_000..200_000).collect::<Vec<_>>()), (1, vec![0; 100_000])]).unwrap();
    let results = Combine::new(&a, &b).run().unwrap();
    assert!(results.is_empty() && results.to_index_set().unwrap().is_empty());
    assert!(results.chunks(10).next().is_none());
    assert_eq!(results.to_paged(|array| array).unwrap().len(), 0);
    // The values are within the span of the other set's values, but none is equal.
    let odd = IndexSet::from_columns([(0, (0..100_000).map(|i| 2 * i + 1).collect::<Vec<_>>())]).unwrap();
    let even = IndexSet::from_columns([(0, (0..100_000).map(|i| 2 * i).collect::<Vec<_>>())]).unwrap();
    assert_eq!(count(&odd, &even).unwrap(), 0);
    assert_eq!(count(&odd, &IndexSet::new([0]).unwrap()).unwrap(), 0);
    assert_eq!(count(&IndexSet::new([0]).unwrap(), &odd).unwrap(), 0);
}

#[test]
fn thousands_of_dimensions() {
    const WIDTH: u32 = 3000;
    let row = |seed: u64| (0..u64::from(WIDTH)).map(move |i| i.wrapping_mul(seed)).collect::<Vec<u64>>();
    let a = IndexSet::from_rows(0..WIDTH, [row(1), row(2), row(3)]).unwrap();
    // All dimensions except the last are common, in reverse order.
    let mut last = row(2);
    last[WIDTH as usize - 1] = 5;
    last.reverse();
    let labels = |i| if i == WIDTH - 1 { WIDTH } else { i };
    let b = IndexSet::from_rows((0..WIDTH).rev().map(labels), [last]).unwrap();
    let merged = a.combine(&b).unwrap();
    assert_eq!(merged.dimensions(), (0..=WIDTH).collect::<Vec<_>>());
    let expected: Vec<u64> = row(2).into_iter().chain([5]).collect();
    assert!(merged.rows().eq([expected]));
}

#[test]
fn sorting_and_removing_duplicates() {
    for width in [1, 2, 8, 9, 20] {
        let mut numbers = crate::common::Numbers::new(width);
        let mut model: Vec<Vec<u64>> =
            (0..300).map(|_| (0..width).map(|_| numbers.next() % 2).collect()).collect();
        let mut set = IndexSet::from_rows(0..width as u32, &model).unwrap();
        set.dedup();
        model.dedup();
        assert_eq!(rows(&set), model);
        set.sort().unwrap();
        model.sort();
        assert_eq!(rows(&set), model);
        set.dedup();
        model.dedup();
        assert_eq!(rows(&set), model);
        assert_eq!(set.values().len(), set.len() * width as usize);
    }
}

#[test]
fn rows_are_visited_from_both_ends() {
    let set = IndexSet::from_values([0, 1], (0..10).collect()).unwrap();
    assert!(set.rows().rev().map(|row| row[0]).eq([8, 6, 4, 2, 0]));
    let mut rows = set.rows();
    assert_eq!(rows.nth(1), Some(&[2, 3][..]));
    assert_eq!((rows.len(), rows.next_back()), (3, Some(&[8, 9][..])));
    assert_eq!((rows.nth(7), rows.next(), rows.next_back()), (None, None, None));
    assert_eq!(set.into_iter().count(), 5);
}

#[test]
fn results_are_the_same_with_any_number_of_threads() {
    let mut numbers = crate::common::Numbers::new(7);
    let mut random = |labels: [Dimension; 3], most: u64| {
        let values = (0..3 * 100_000).map(|_| numbers.next() % most).collect();
        IndexSet::from_values(labels, values).unwrap()
    };
    let (a, b) = (random([0, 1, 2], 300), random([5, 2, 0], 300));
    let expected = Combine::new(&a, &b).threads(1).run().unwrap().to_index_set().unwrap();
    assert!(expected.len() > 50_000);
    for threads in [2, 5] {
        let results = Combine::new(&a, &b).threads(threads).run().unwrap();
        assert!(results.to_index_set().unwrap() == expected);
        let chunks: Vec<u64> = results.chunks(9_999).flat_map(|chunk| Vec::from(chunk.unwrap())).collect();
        assert!(chunks == expected.values());
    }
}

/// Results in an array: every page is written once, and none is fetched.
#[test]
fn whole_pages_of_results_are_written_once() {
    const PAGE_LEN: usize = 64;
    let a = IndexSet::from_columns([(0, vec![1; 100]), (1, (0..100).collect())]).unwrap();
    let b = IndexSet::from_columns([(2, (0..64).collect()), (0, vec![1; 64])]).unwrap();
    let results = Combine::new(&a, &b).threads(3).run().unwrap();
    let device = Arc::new(HostDevice::new(1 << 20).unwrap());
    let paged = results
        .to_paged(|array| {
            array.devices([as_any(&device)]).page_len(PAGE_LEN).frames_per_channel(8).read_ahead(false)
        })
        .unwrap();
    let pages = (100 * 64 * 3 / PAGE_LEN) as u64;
    paged.array().flush(..).unwrap();
    let stats = paged.array().stats().total();
    assert_eq!((stats.bytes_from_device, stats.write_backs), (0, pages));
    assert_eq!(paged.to_index_set(..).unwrap(), a.combine(&b).unwrap());
    assert_eq!(rows(&paged.to_index_set(6399..).unwrap()), [[1, 99, 63]]);
}

/// A source that counts how many values are read.
struct Counting<'a>(&'a IndexSet, AtomicUsize);

impl Tuples for Counting<'_> {
    fn dimensions(&self) -> &[Dimension] {
        self.0.dimensions()
    }
    fn len(&self) -> usize {
        self.0.len()
    }
    fn read_tuples(&self, first: usize, into: &mut [u64]) -> Result<()> {
        self.1.fetch_add(into.len(), Ordering::Relaxed);
        self.0.read_tuples(first, into)
    }
}

#[test]
fn sources_are_read_as_often_as_the_memory_demands() {
    let a = IndexSet::from_values([0, 1], (0..40_000).collect()).unwrap();
    let b = IndexSet::from_values([0, 2], (0..40_000).collect()).unwrap();
    let expected = a.combine(&b).unwrap();
    assert_eq!(expected.len(), 20_000);
    // A single piece is read once. Several pieces are read twice, to count and to write: the first source for
    // each block of the second. Four of the ten pieces of the last source have no results to write.
    let bounds = [(usize::MAX, 1, 1), (4_320_000, 1, 1), (2_160_000, 2 + 2, 2), (1 << 20, 5 + 3, 2)];
    for (memory_bytes, a_reads, b_reads) in bounds {
        let (a, b) = (Counting(&a, AtomicUsize::new(0)), Counting(&b, AtomicUsize::new(0)));
        let results = Combine::new(&a, &b).memory_bytes(memory_bytes).run().unwrap();
        let mut found = results.to_index_set().unwrap();
        found.sort().unwrap();
        assert_eq!(found, expected);
        let reads = |source: &Counting<'_>| source.1.load(Ordering::Relaxed) as f64 / 40_000.0;
        assert_eq!((reads(&a), reads(&b)), (f64::from(a_reads), f64::from(b_reads)));
    }
}

#[test]
fn tuples_that_change_between_the_two_readings_are_noticed() {
    let a = IndexSet::from_values([0], (0..1000).collect()).unwrap();
    let paged = PagedIndexSet::from_index_set(&a, |array| array).unwrap();
    let results = Combine::new(&paged, &a).memory_bytes(4000).run().unwrap();
    assert_eq!(results.len(), 1000);
    paged.array().fill(.., 5000).unwrap();
    assert!(matches!(kind(results.to_index_set()), ErrorKind::InputChanged { got: 0, .. }));
    let mut chunks = results.chunks(10);
    assert!(chunks.next().unwrap().is_err() && chunks.next().is_none());
}

#[test]
fn a_thread_that_holds_guards_works_alone() {
    let a = IndexSet::from_values([0], (0..100_000).collect()).unwrap();
    let paged =
        PagedIndexSet::from_index_set(&a, |array| array.page_len(1000).frames_per_channel(100)).unwrap();
    let other = VirtualArray::<u64>::builder(a.len()).page_len(1000).frames_per_channel(100).build().unwrap();
    // `elsewhere` comes later in the lock order than both sets. So a wait for their pages would be an error,
    // but the call does not wait.
    let elsewhere = VirtualArray::<u64>::new(10).unwrap();
    let guard = elsewhere.page_mut(0).unwrap();
    for _ in 0..10 {
        let results = Combine::new(&paged, &a).threads(2).run().unwrap();
        results.write_to(&other, 0).unwrap();
    }
    drop(guard);
    let guard = paged.array().page_mut(70).unwrap();
    for _ in 0..10 {
        let error = kind(Combine::new(&paged, &a).threads(2).run());
        assert!(matches!(error, ErrorKind::WouldDeadlock { page: 70 }), "{error:?}");
    }
    drop(guard);
    assert_eq!(Combine::new(&paged, &a).threads(2).run().unwrap().len(), 100_000);
}

#[test]
fn more_pieces_than_can_be_counted_are_refused() {
    let endless = Made { dimensions: &[0], len: 1 << 40, read: Made::ZEROES };
    let error = kind(Combine::new(&endless, &endless).memory_bytes(0).run());
    assert!(matches!(error, ErrorKind::TooLong { .. }), "{error:?}");
}

#[test]
fn a_source_with_a_label_twice_is_refused() {
    let double = Made { dimensions: &[0, 0], len: 1, read: Made::ZEROES };
    let (a, twice) = (set(&[0], &[&[0]]), ErrorKind::DuplicateDimension { dimension: 0 });
    assert_eq!(kind(Combine::new(&double, &a).run()), twice);
    assert_eq!(kind(Combine::new(&a, &double).run()), twice);
    assert_eq!(kind(Combine::product(&set(&[1], &[&[0]]), &double).run()), twice);
    let line = NdArray::<u8, 1>::new([3]).unwrap();
    assert_eq!(kind(line.gather_set(&double, [0])), twice);
    assert_eq!(kind(line.scatter_set(&double, [0], &[1])), twice);
}

#[test]
fn errors_of_a_source_and_of_the_target_are_passed_on() {
    let broken = Made {
        dimensions: &[0],
        len: 1 << 20,
        read: |first, _| if first > 0 { Err(ErrorKind::NoDevices.into()) } else { Ok(()) },
    };
    let a = set(&[0], &[&[0]]);
    assert_eq!(kind(Combine::new(&broken, &a).threads(3).run()), ErrorKind::NoDevices);
    assert_eq!(kind(Combine::new(&a, &broken).threads(1).run()), ErrorKind::NoDevices);
    let array = VirtualArray::<u64>::new(1).unwrap();
    let results = Combine::new(&a, &a).run().unwrap();
    assert_eq!(kind(results.write_to(&array, 1)), ErrorKind::RangeOutside { start: 1, end: 2, len: 1 });
    assert_eq!(
        kind(results.write_to(&array, usize::MAX)),
        ErrorKind::RangeOutside { start: usize::MAX, end: usize::MAX, len: 1 }
    );
}

fn sets() -> impl Strategy<Value = (IndexSet, IndexSet)> {
    let value = prop::sample::select(vec![0, 1, 2, 3, 1 << 40, u64::MAX]);
    let set = move |labels: Vec<Dimension>| {
        let row = prop::collection::vec(value.clone(), labels.len());
        prop::collection::vec(row, 0..60)
            .prop_map(move |rows| IndexSet::from_rows(labels.iter().copied(), rows).unwrap())
    };
    let labels = || {
        (Just(vec![0, 1, 2, 3, 1_000_000, u32::MAX]).prop_shuffle(), 0_usize..6)
            .prop_map(|(l, w)| l[..w].to_vec())
    };
    (labels().prop_flat_map(set.clone()), labels().prop_flat_map(set))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: backend_api::wrap::random_cases(200), ..ProptestConfig::default() })]

    /// All sources, bounds and outputs agree with the definition.
    #[test]
    fn everything_agrees_with_nested_loops(
        (a, b) in sets(),
        threads in 1_usize..4,
        memory_bytes in prop_oneof![Just(usize::MAX), 0_usize..20_000],
        page_len in 1_usize..20,
        start in 0_usize..5,
        chunk in 1_usize..40,
        is_paged: [bool; 2],
    ) {
        let page = |set: &IndexSet| {
            PagedIndexSet::from_index_set(set, |array| array.page_len(page_len).frames_per_channel(6)).unwrap()
        };
        let (paged_a, paged_b) = (page(&a), page(&b));
        // Without dimensions a paged set has only the array's length.
        let source = |is_paged, set, paged| -> &dyn Tuples { if is_paged { paged } else { set } };
        let sources: (&dyn Tuples, &dyn Tuples) =
            (source(is_paged[0], &a, &paged_a), source(is_paged[1], &b, &paged_b));
        let has_common = a.dimensions().iter().any(|label| b.dimensions().contains(label));
        let describe = if has_common { Combine::new } else { Combine::product };
        let results = describe(sources.0, sources.1).threads(threads).memory_bytes(memory_bytes).run().unwrap();
        let mut expected = nested_loops(&a, &b);
        prop_assert_eq!(results.len(), expected.len());

        let set = results.to_index_set().unwrap();
        prop_assert_eq!(set.dimensions(), results.dimensions());
        let mut found = rows(&set);
        if memory_bytes == usize::MAX {
            prop_assert_eq!(&found, &expected);
        }
        if has_common {
            let merged = a.combine(&b).unwrap();
            prop_assert_eq!(rows(&merged), expected.clone());
            // In the other order, the result has the same tuples, with columns and order of the other set.
            let mut turned = rows(&b.combine(&a).unwrap().project(merged.dimensions().iter().copied()).unwrap());
            prop_assert_eq!(rows(&b.combine(&a).unwrap()), nested_loops(&b, &a));
            turned.sort();
            let mut merged = rows(&merged);
            merged.sort();
            prop_assert_eq!(turned, merged);
        }
        found.sort();
        expected.sort();
        prop_assert_eq!(&found, &expected);

        let chunks: Vec<IndexSet> = results.chunks(chunk).map(Result::unwrap).collect();
        prop_assert_eq!(chunks.len(), set.len().div_ceil(chunk));
        prop_assert_eq!(chunks.iter().flat_map(rows).collect::<Vec<_>>(), rows(&set));

        let array = VirtualArray::<u64>::builder(start + set.values().len() + 3)
            .page_len(page_len)
            .frames_per_channel(6)
            .build()
            .unwrap();
        array.fill(.., 77).unwrap();
        results.write_to(&array, start).unwrap();
        let end = start + set.values().len();
        prop_assert_eq!(array.to_vec(..start).unwrap(), vec![77; start]);
        prop_assert_eq!(array.to_vec(start..end).unwrap(), set.values());
        prop_assert_eq!(array.to_vec(end..).unwrap(), [77; 3]);
    }
}
