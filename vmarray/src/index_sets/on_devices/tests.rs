//! Joins on devices compared with joins on the host, and their cost.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use backend_api::wrap::{Fault, Operation, SplitMix64};
use backend_api::{Device, ErrorKind as DeviceErrorKind};
use proptest::prelude::*;
use vmarray_conformance::wrap::{Counting, Faulty};

use super::super::merge::Merge;
use super::super::tests::{nested_loops, sets, sorted};
use super::super::{Combine, Dimension, IndexSet, PagedIndexSet, Tuples};
use super::combine;
use crate::host::HostDevice;
use crate::ops::sort::tests::InterpretedGpu;
use crate::prelude::*;
use crate::{AnyDevice, Discovery, ErrorKind};

/// Host RAM, or the devices that the environment variable `VMARRAY_TEST_DEVICES` names, in turn.
fn devices(count: usize) -> Vec<Arc<AnyDevice>> {
    static NAMED: OnceLock<Vec<Arc<AnyDevice>>> = OnceLock::new();
    let named = NAMED.get_or_init(|| match std::env::var("VMARRAY_TEST_DEVICES") {
        Ok(filters) => {
            let named = Discovery::new().select(&filters).unwrap().allow_duplicates(true);
            named.separate(true).open().unwrap()
        }
        Err(_) => Vec::new(),
    });
    let host = || Arc::new(AnyDevice::from(HostDevice::new(1 << 30).unwrap()));
    (0..count).map(|number| named.get(number % named.len().max(1)).map_or_else(host, Arc::clone)).collect()
}

fn paged<D: Device>(set: &IndexSet, devices: &[Arc<D>], page_len: usize) -> PagedIndexSet<D> {
    PagedIndexSet::from_index_set(set, |array| array.devices(devices.iter().cloned()).page_len(page_len))
        .unwrap()
}

/// Returns the values of a join on the devices of the first set.
fn on_devices<D: Device, B: Tuples>(
    a: &PagedIndexSet<D>,
    b: &B,
    memory_bytes: Option<usize>,
) -> crate::Result<IndexSet> {
    let merge = Merge::on_common(a.dimensions(), b.dimensions())?;
    combine(a, b, &merge, memory_bytes, a.array())?.to_index_set(..)
}

/// Creates a set whose values are below a bound each.
fn random<const N: usize>(
    random: &mut SplitMix64,
    dimensions: [Dimension; N],
    tuples: usize,
    value: impl Fn(u64, usize) -> u64,
) -> IndexSet {
    let values = (0..N * tuples).map(|at| value(random.next(), at)).collect();
    IndexSet::from_values(dimensions, values).unwrap()
}

/// Compares groups by some columns, in rotated order, and sums of the first column with a map's.
fn grouped_as_in_maps<D: Device>(set: &IndexSet, paged: &PagedIndexSet<D>) {
    let (dimensions, width) = (set.dimensions(), set.dimensions().len());
    for count in [0, 1, width.min(2), width] {
        let by: Vec<Dimension> = dimensions.iter().rev().take(count).copied().collect();
        let mut expected = BTreeMap::<Vec<u64>, Vec<u64>>::new();
        for (number, row) in set.rows().enumerate() {
            let key = row.iter().rev().take(count).copied().collect();
            expected.entry(key).or_default().push(number as u64);
        }
        let found = paged.group_by(by.iter().copied()).unwrap();
        let (tuples, groups) = (found.tuples(), found.by_number());
        assert_eq!(
            (tuples.dimensions(), tuples.len(), groups.len()),
            (&by[..], expected.len(), expected.len())
        );
        let keys: Vec<u64> = expected.keys().flatten().copied().collect();
        assert_eq!(tuples.to_index_set(..).unwrap().values(), keys);
        let order: Vec<u64> = expected.values().flatten().copied().collect();
        assert_eq!(groups.order().unwrap().to_vec(..).unwrap(), order);
        let first = |number: &u64| set.values()[*number as usize * width];
        let sum = |numbers: &Vec<u64>| numbers.iter().map(first).fold(0_u64, u64::wrapping_add);
        let sums: Vec<u64> = expected.values().map(sum).collect();
        let column = paged.column(dimensions[0]).unwrap();
        assert_eq!(groups.sum(&column).unwrap().to_vec(..).unwrap(), sums);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(backend_api::wrap::random_cases(64)))]

    #[test]
    fn devices_combine_as_nested_loops_do(
        (a, b) in sets(),
        channels in 1_usize..4,
        page_len in 1_usize..80,
        memory_bytes in 0_usize..4000,
    ) {
        let devices = devices(channels);
        grouped_as_in_maps(&a, &paged(&a, &devices, page_len));
        let Ok(merge) = Merge::on_common(a.dimensions(), b.dimensions()) else { return Ok(()) };
        let expected = nested_loops(&a, &b, &merge);
        let (of_a, of_b) = (paged(&a, &devices, page_len), paged(&b, &devices, 64));
        let found = on_devices(&of_a, &of_b, None).unwrap();
        prop_assert_eq!(found.values(), &expected);
        prop_assert_eq!(found.dimensions(), &merge.dimensions);
        // The second set is copied to these devices.
        let found = on_devices(&of_a, &b, None).unwrap();
        prop_assert_eq!(found.values(), &expected);
        let parts = on_devices(&of_a, &of_b, Some(memory_bytes)).unwrap();
        prop_assert_eq!(sorted(parts.values(), merge.width()), sorted(&expected, merge.width()));
    }
}

/// Creates sets of some thousand tuples: of uniform and of skewed keys, of unique keys, of equal keys, and
/// of keys without partners.
fn large(kind: usize, random_numbers: &mut SplitMix64) -> (IndexSet, IndexSet) {
    let mut set = |dimensions, seed: u64| {
        random(random_numbers, dimensions, 3000, |bits, at| match kind {
            0 => bits % 40,
            1 => (bits % 64) * (bits >> 32 & bits >> 40 & 15) / 8 + (at as u64 / 500),
            2 => (at as u64 / 4 * 7919) % 3001,
            3 if at % 4 < 3 => 7,
            4 => bits << 1 | seed,
            _ => bits,
        })
    };
    let (a, b) = (set([0, 2, 1, 9], 0), set([2, 5, 0, 4], 1));
    let few = |set: &IndexSet| IndexSet::from_rows(set.dimensions().to_vec(), set.rows().take(200)).unwrap();
    if kind == 3 { (few(&a), few(&b)) } else { (a, b) }
}

#[test]
fn cards_combine_as_the_host_does() {
    let mut numbers = SplitMix64::new(5);
    for kind in 0..5 {
        let (a, b) = large(kind, &mut numbers);
        let expected = a.combine(&b).unwrap();
        assert_eq!(expected.is_empty(), kind == 4, "kind {kind}");
        for channels in [1, 3] {
            let card = Arc::new(InterpretedGpu::new());
            let cards = vec![card; channels];
            let (of_a, of_b) = (paged(&a, &cards, 96), paged(&b, &cards, 1000));
            grouped_as_in_maps(&a, &of_a);
            assert!(of_a.combine(&of_b).unwrap().to_index_set(..).unwrap() == expected, "kind {kind}");
            assert!(of_a.combine(&b).unwrap().to_index_set(..).unwrap() == expected, "kind {kind}");
            let elsewhere = paged(&b, &devices(1), 500);
            assert!(of_a.combine(&elsewhere).unwrap().to_index_set(..).unwrap() == expected, "kind {kind}");
        }
        let hosts = devices(3);
        let (of_a, of_b) = (paged(&a, &hosts, 96), paged(&b, &hosts, 96));
        assert!(on_devices(&of_a, &of_b, None).unwrap() == expected, "kind {kind}");
        // The second set is used whole, with strips of the first one.
        let bound = Some(2 * (24 + 8 * 4) * b.len());
        assert!(on_devices(&of_a, &of_b, bound).unwrap() == expected, "kind {kind}");
    }
}

#[test]
fn empty_sets_and_products_are_combined_on_devices() {
    let card = [Arc::new(InterpretedGpu::new())];
    let (none, some) =
        (IndexSet::new([0, 1]).unwrap(), IndexSet::from_rows([1, 2], [[3, 4], [3, 5]]).unwrap());
    for (a, b) in [(&none, &some), (&some, &none), (&none, &none)] {
        let merged = paged(a, &card, 64).combine(&paged(b, &card, 64)).unwrap();
        assert_eq!(merged.to_index_set(..).unwrap(), a.combine(b).unwrap());
    }
    let other = IndexSet::from_rows([7], [[1], [2]]).unwrap();
    let (of_some, of_other) = (paged(&some, &card, 64), paged(&other, &card, 64));
    let pairs = Combine::product(&of_some, &of_other).run_on_devices_of(of_some.array()).unwrap();
    assert_eq!(pairs.to_index_set(..).unwrap().values(), [3, 4, 1, 3, 4, 2, 3, 5, 1, 3, 5, 2]);
    assert_eq!(of_some.group_by([1, 1]).unwrap_err().kind(), &ErrorKind::DuplicateDimension { dimension: 1 });
    assert_eq!(of_some.column(7).unwrap_err().kind(), &ErrorKind::UnknownDimension { dimension: 7 });
    let refused = of_some.combine(&of_other).unwrap_err();
    assert_eq!(*refused.kind(), ErrorKind::NoCommonDimension);
}

#[test]
fn nothing_of_sets_on_a_card_goes_through_the_host() {
    let mut numbers = SplitMix64::new(6);
    let set =
        |numbers: &mut SplitMix64, dimensions| random(numbers, dimensions, 10_000, |bits, _| bits % 128);
    let (a, b) = (set(&mut numbers, [0, 1, 2, 3]), set(&mut numbers, [0, 2, 5, 6]));
    let card = Arc::new(Counting::new(InterpretedGpu::new()));
    let cards = [Arc::clone(&card)];
    let (of_a, of_b) = (paged(&a, &cards, 8192), paged(&b, &cards, 8192));
    of_a.array().flush(..).unwrap();
    of_b.array().flush(..).unwrap();
    card.reset();
    let merged = of_a.combine(&of_b).unwrap();
    let work = card.counts().work;
    let bytes = work.upload_bytes + work.download_bytes;
    // Only digit counts and reports of launches pass through the host.
    assert!(bytes * 8 < 8 * of_a.array().len() as u64, "{bytes} bytes through the host");
    // If results are written at once, the number of device calls does not depend on the number of tuples.
    let counts = (work.launches, work.computes, work.submits, work.fills, work.waits);
    assert!(counts.0 <= 15 && counts.4 <= 38, "launches, reductions, copies, fills and waits: {counts:?}");
    assert!(merged.to_index_set(..).unwrap() == a.combine(&b).unwrap());
}

#[test]
fn failures_of_a_card_are_reported_and_lose_nothing() {
    let mut numbers = SplitMix64::new(7);
    let (a, b) = large(0, &mut numbers);
    let expected = a.combine(&b).unwrap();
    let (mut failed, mut done) = (0, 0);
    let rounds = backend_api::wrap::random_cases(200) as usize;
    for round in 0..rounds {
        let card = Arc::new(Faulty::new(InterpretedGpu::new()));
        let cards = vec![Arc::clone(&card); 1 + round % 2];
        let (of_a, of_b) = (paged(&a, &cards, 4096), paged(&b, &cards, 4096));
        of_a.array().flush(..).unwrap();
        of_b.array().flush(..).unwrap();
        let operation =
            [Operation::Launch, Operation::Submit, Operation::Fill, Operation::Allocate][numbers.index(4)];
        let fault = Fault::new(operation, DeviceErrorKind::CopyFailed).on_call(1 + numbers.next() % 20);
        card.inject(if round % 3 == 0 { fault } else { fault.reported_later() });
        let outcome = of_a.combine(&of_b);
        card.clear();
        match outcome {
            Ok(merged) => {
                done += 1;
                assert!(merged.to_index_set(..).unwrap() == expected, "round {round}");
            }
            Err(error) => {
                failed += 1;
                assert!(error.device_error().is_some(), "round {round}: {error}");
            }
        }
        assert!(of_a.to_index_set(..).unwrap() == a && of_b.to_index_set(..).unwrap() == b, "round {round}");
        assert!(of_a.combine(&of_b).unwrap().to_index_set(..).unwrap() == expected, "round {round}");
    }
    assert!(failed > rounds / 4 && done > rounds / 20, "{failed} failed, {done} done");
}
