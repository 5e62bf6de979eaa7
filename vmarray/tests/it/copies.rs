//! Tests of copies between arrays: their routes, and the copied values.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use vmarray::device::wrap::{Fault, Operation};
use vmarray::device::{self, Reach};
use vmarray::host::{SimulatedDevice, SimulatedFabric};
use vmarray::prelude::*;
use vmarray::{ErrorKind, Placement};
use vmarray_conformance::wrap::{Counting, Faulty};

use crate::common::{Numbers, Shape, as_any, changed_ranges, host, together};
use crate::peers::{Devices, numbers, warm};

/// Length of a short copy, which goes through the host.
const SHORT: usize = (64 << 10) / size_of::<u32>();

/// Writes parts of an array and of its model; some pages are written back, some stay dirty in the cache.
fn write_some(random: &mut Numbers, array: &VirtualArray<u32>, model: &mut [u32]) {
    for _ in 0..random.below(4) {
        let part = random.range(array.len());
        let values: Vec<u32> = part.clone().map(|_| random.next() as u32).collect();
        array.write(part.start, &values).unwrap();
        model[part].copy_from_slice(&values);
        match random.below(4) {
            0 => array.flush(..).unwrap(),
            1 => array.evict(..).unwrap(),
            _ => {}
        }
    }
    // Make pages at random places dirty.
    for _ in 0..random.below(20) {
        let (index, value) = (random.below(array.len()), random.next() as u32);
        array.set(index, value).unwrap();
        model[index] = value;
    }
    let gone = random.range(array.len() / 4);
    array.discard(gone.clone()).unwrap();
    model[gone].fill(0);
}

/// Random distinct devices, with a number of channels for each.
fn places(random: &mut Numbers, among: usize) -> (Vec<usize>, Vec<u32>) {
    let mut on: Vec<usize> = (0..among).filter(|_| random.below(2) == 0).collect();
    if on.is_empty() {
        on.push(random.below(among));
    }
    let by = random.below(on.len());
    on.rotate_left(by);
    let shares = on.iter().map(|_| 1 + random.below(3) as u32).collect();
    (on, shares)
}

/// A range within `len` elements that is usually long.
fn long_range(random: &mut Numbers, len: usize) -> Range<usize> {
    let range = random.range(len);
    if random.below(3) == 0 { 0..len } else { range }
}

#[test]
fn any_part_is_copied_to_anywhere() {
    let all = [
        Devices::host(5),
        Devices::simulated(5, Reach::Maps),
        Devices::simulated(5, Reach::Copies),
        Devices::simulated(5, Reach::No),
    ];
    let mut past_host = [0; 4];
    for seed in 0..48 {
        let (number, mut random) = (seed % all.len(), Numbers::new(seed as u64));
        let devices = &all[number];
        let mut array = |page_len: usize| {
            let ((on, channels), len) = (places(&mut random, 5), SHORT + random.below(8 * SHORT));
            let shape = Shape { page_len, channels, frames: 1 + random.below(40), ..Shape::default() };
            (devices.build::<u32>(&shape, &on, len), vec![0; len])
        };
        let ((from, mut from_model), (to, mut to_model)) = (array(200 + 13 * seed), array(3000 - 50 * seed));
        write_some(&mut random, &to, &mut to_model);
        for _ in 0..3 {
            write_some(&mut random, &from, &mut from_model);
            let part = long_range(&mut random, from.len().min(to.len()));
            let start = random.below(to.len() - part.len() + 1);
            to.copy_from(start, from.section(part.clone()).unwrap()).unwrap();
            to_model[start..start + part.len()].copy_from_slice(&from_model[part]);
            assert!(to.to_vec(..).unwrap() == to_model, "seed {seed}");
            assert!(from.to_vec(..).unwrap() == from_model, "seed {seed}");
            // Copy within one array; source and target may overlap.
            let part = random.range(from.len());
            let start = random.below(from.len() - part.len() + 1);
            from.section_mut(start..).unwrap().copy_from(0, from.section(part.clone()).unwrap()).unwrap();
            from_model.copy_within(part, start);
            assert!(from.to_vec(..).unwrap() == from_model, "seed {seed}");
        }
        past_host[number] += from.stats().total().bytes_past_host;
    }
    assert!(past_host[..3].iter().all(|bytes| *bytes > 2_000_000), "{past_host:?}");
}

#[test]
fn long_copies_go_past_the_host_and_fetch_and_zero_nothing() {
    const LEN: usize = 8 * SHORT;
    let values = numbers(LEN);
    for devices in
        [Devices::host(3), Devices::simulated(3, Reach::Maps), Devices::simulated(3, Reach::Copies)]
    {
        warm(&devices, &[0, 1, 2]);
        // Every page moves to another device, also with different page boundaries.
        for (page_len, start) in [(1024, 0), (700, 333)] {
            let from = devices.array(&[0, 1, 2], 1024, &values);
            let shape = Shape { page_len, channels: vec![1; 3], ..Shape::default() };
            let to: VirtualArray<u32> = devices.build(&shape, &[1, 2, 0], LEN + start);
            from.reset_stats();
            devices.through_host();
            to.copy_from(start, &from).unwrap();
            assert_eq!(devices.through_host(), (0, 0));
            let (own, other) = (to.stats().total(), from.stats().total());
            assert_eq!(other.bytes_past_host, 4 * LEN as u64);
            for stats in [own, other] {
                let through = (stats.bytes_to_device, stats.bytes_from_device, stats.bytes_through_host);
                assert_eq!(through, (0, 0, 0));
            }
            assert!(to.to_vec(start..).unwrap() == values);
            assert!(to.to_vec(..start).unwrap().iter().all(|value| *value == 0));
        }
        let (short, to) = (devices.array(&[0], 100, &values[..SHORT - 1]), devices.array(&[1], 100, &values));
        to.copy_from(5, &short).unwrap();
        assert_eq!(short.stats().total().bytes_past_host, 0);
    }
}

#[test]
fn overwritten_pages_are_not_zeroed_and_adjacent_pages_form_one_copy() {
    let device = Arc::new(Counting::new(host()));
    let shape = Shape { page_len: 1000, channels: vec![2], ..Shape::default() };
    let array = || shape.describe::<u32, _>(100_000, vec![device.clone()]).build().unwrap();
    let (from, to) = (array(), array());
    from.write(0, &numbers(100_000)).unwrap();
    from.flush(..).unwrap();
    device.reset();
    to.copy_from(0, &from).unwrap();
    let work = device.reset().work;
    assert_eq!((work.fills, work.internals, work.internal_bytes), (0, 2, 400_000), "one for each channel");
    assert!(to.to_vec(..).unwrap() == numbers(100_000));
    // All other elements of the first and the last page stay zero.
    let part = array();
    device.reset();
    part.copy_from(1500, from.section(..80_000).unwrap()).unwrap();
    assert_eq!(device.reset().work.fill_bytes, 2 * 4000);
    let expected = [&[0; 1500][..], &numbers(80_000), &[0; 18_500]].concat();
    assert!(part.to_vec(..).unwrap() == expected);
    // An assignment that covers all elements does not zero them first either.
    let filled = array();
    device.reset();
    filled.transform(.., Field::whole().set(7)).unwrap();
    assert_eq!(device.reset().work.fills, 0);
    assert!(filled.to_vec(..).unwrap().iter().all(|value| *value == 7));
}

#[test]
fn mirrors_and_sources_are_copied_as_before() {
    let devices = Devices::host(3);
    let values = numbers(3 * SHORT);
    let Devices::Host(all) = &devices else { unreachable!() };
    let shape = Shape { page_len: 500, channels: vec![1; 3], ..Shape::default() };
    let builder = shape.describe::<u32, _>(values.len(), all.clone()).placement(Placement::Mirrored);
    let (kept, plain) = (builder.build().unwrap(), devices.array(&[1], 700, &values));
    kept.copy_from(0, &plain).unwrap();
    let half = values.len() / 2;
    kept.copy_from(0, kept.section(half..).unwrap()).unwrap();
    let back = devices.array(&[2], 600, &vec![0_u32; values.len()]);
    back.copy_from(0, &kept).unwrap();
    let expected = [&values[half..], &values[half..]].concat();
    assert!(back.to_vec(..).unwrap() == expected);
    let stats = [kept.stats(), plain.stats()];
    assert!(stats.iter().all(|stats| stats.total().bytes_past_host == 0));
    let to = devices.array(&[0, 1], 500, &vec![0_u32; values.len()]);
    to.copy_from(0, &Source::new(values.clone()).unwrap()).unwrap();
    assert!(to.to_vec(..).unwrap() == values);
}

#[test]
fn a_device_lost_during_a_copy_is_reported_and_loses_nothing_else() {
    const LEN: usize = 4 * SHORT;
    let numbers = numbers(LEN);
    for later in [false, true] {
        let fabric = SimulatedFabric::new(Reach::Maps, 1_000_000_000, Duration::from_micros(5));
        let device = |seed| Arc::new(SimulatedDevice::builder(seed).bytes(64 << 20).fabric(&fabric).build());
        let all: Vec<_> = (0..3).map(device).collect();
        let shape =
            |channels: &[u32], page_len| Shape { page_len, channels: channels.to_vec(), ..Shape::default() };
        let from = shape(&[1], 900).describe::<u32, _>(LEN, vec![all[2].clone()]).build().unwrap();
        let to = shape(&[1, 1], 1000).describe::<u32, _>(LEN, all[..2].to_vec()).build().unwrap();
        from.write(0, &numbers).unwrap();
        to.fill(.., 7).unwrap();
        // This copy probes the links.
        to.copy_from(0, from.section(..SHORT).unwrap()).unwrap();
        to.fill(.., 7).unwrap();
        to.evict(..).unwrap();
        let fault = Fault::new(Operation::Submit, device::ErrorKind::Lost).from_call(1);
        all[1].inject(if later { fault.reported_later() } else { fault });
        let error = to.section_mut(100..).unwrap().copy_from(400, from.section(500..).unwrap()).unwrap_err();
        assert!(error.device_error().is_some(), "{error}");
        let (written, unspecified) = changed_ranges(&error);
        assert!(!unspecified.is_empty() || !later, "{error}");
        // On the remaining device, elements listed as written are written, and unlisted ones are unchanged.
        let mentioned = |list: &[Range<usize>], index: usize| {
            index >= 100 && list.iter().any(|range| range.contains(&(index - 100)))
        };
        for index in (0..LEN).filter(|index| index / 1000 % 2 == 0) {
            let value = to.get(index).unwrap();
            if mentioned(&written, index) {
                assert_eq!(value, numbers[index], "{index}");
            } else if !mentioned(&unspecified, index) {
                assert_eq!(value, 7, "{index}");
            }
        }
        assert!(from.to_vec(..).unwrap() == numbers);
    }
    // The source's device is lost before the copy begins.
    let devices = Devices::simulated(2, Reach::Maps);
    let Devices::Simulated(all, _) = &devices else { unreachable!() };
    let (to, from) = (devices.array(&[0], 64, &[7_u32; LEN]), devices.array(&[1], 100, &numbers));
    warm(&devices, &[0, 1]);
    all[1].inner().lose();
    let error = to.copy_from(10, from.section(..LEN - 20).unwrap()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Device(_) | ErrorKind::Interrupted { .. }), "{error}");
    assert_eq!((to.to_vec(..10).unwrap(), to.to_vec(LEN - 10..).unwrap()), (vec![7; 10], vec![7; 10]));
}

#[test]
fn copies_refused_by_devices_are_made_by_the_host() {
    const LEN: usize = 4 * SHORT;
    for kind in [device::ErrorKind::OutOfMemory, device::ErrorKind::Unsupported] {
        let all = [(); 2].map(|()| Arc::new(Faulty::new(host())));
        let shape = |page_len| Shape { page_len, channels: vec![1, 1], frames: 9, ..Shape::default() };
        let array = |page_len| shape(page_len).describe::<u32, _>(LEN, all.iter().map(as_any).collect());
        let (from, to) = (array(900).build().unwrap(), array(1000).build().unwrap());
        from.write(0, &numbers(LEN)).unwrap();
        from.flush(..).unwrap();
        to.fill(.., 7).unwrap();
        // This copy probes the links.
        to.copy_from(0, from.section(..SHORT).unwrap()).unwrap();
        let past_host = from.stats().total().bytes_past_host;
        all[1].inject(Fault::new(Operation::Submit, kind).on_call(1));
        to.copy_from(5, from.section(..LEN - 10).unwrap()).unwrap();
        assert!(to.to_vec(5..LEN - 5).unwrap() == numbers(LEN)[..LEN - 10]);
        assert!(from.stats().total().bytes_past_host - past_host < 4 * (LEN - 10) as u64);
    }
}

#[test]
fn copies_in_both_directions_go_on_beside_each_other_and_beside_writers() {
    const LEN: usize = 2 * SHORT;
    for devices in [Devices::host(3), Devices::simulated(3, Reach::Copies)] {
        let arrays = [(&[0, 1, 2], 700), (&[1, 2, 0], 1000)].map(|(on, page_len)| {
            let shape = Shape { page_len, channels: vec![1, 2, 1], frames: 5, ..Shape::default() };
            devices.build::<u32>(&shape, on, LEN)
        });
        // Each element differs from its index by a multiple of the length, on every route.
        let first: Vec<u32> = (0..LEN as u32).collect();
        arrays.iter().for_each(|array| array.write(0, &first).unwrap());
        together(4, |thread| {
            let mut random = Numbers::new(thread as u64);
            for round in 0..15 {
                let (to, from) = (&arrays[(thread + round) % 2], &arrays[(thread + round + 1) % 2]);
                let start = random.below(LEN - SHORT);
                if thread < 2 {
                    to.copy_from(start, from.section(start..).unwrap()).unwrap();
                } else {
                    let index = |at: usize| (start + at) as u32;
                    let values: Vec<u32> = (0..SHORT).map(|at| index(at) + (round * LEN) as u32).collect();
                    to.write(start, &values).unwrap();
                    from.evict(..start).unwrap();
                }
            }
        });
        for array in &arrays {
            let values = array.to_vec(..).unwrap();
            assert!(values.iter().enumerate().all(|(index, value)| *value as usize % LEN == index));
        }
        assert!(arrays.iter().map(|array| array.stats().total().bytes_past_host).sum::<u64>() > 0);
    }
}
