//! Tests of the loss of devices: exactly their pages are lost, or none with mirrors.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use vmarray::device::wrap::SplitMix64;
use vmarray::device::{Device, ErrorKind as DeviceErrorKind};
use vmarray::home::ReplicaState;
use vmarray::host::SimulatedDevice;
use vmarray::kernel::Own;
use vmarray::{AnyDevice, ErrorKind, Placement, Source, prelude::*};
use vmarray_conformance::wrap::Faulty;

use crate::common::{devices, hosts};

type Card = Arc<Faulty<SimulatedDevice>>;

fn card(seed: u64) -> Card {
    let latency = Duration::from_micros(seed % 40);
    Arc::new(Faulty::new(SimulatedDevice::builder(seed).bytes(1 << 20).latency(latency).build()))
}

fn any(card: &Card) -> Arc<AnyDevice> {
    Arc::new(AnyDevice::Own(Arc::clone(card) as Arc<dyn Device>))
}

fn cards(count: u64) -> Vec<Card> {
    (1..=count).map(card).collect()
}

#[vmarray::kernel]
fn add(by: u32, x: &mut Own<u32>) {
    x.set(x.get() + by);
}

#[test]
fn a_lost_device_takes_its_pages_and_no_others() {
    for count in 1..=5 {
        let cards = cards(count);
        let shares: Vec<u32> = (0..count).map(|at| 1 + at as u32 * 2 % 3).collect();
        let array = VirtualArray::<u32>::builder(10_000)
            .devices(cards.iter().map(any))
            .placement(Placement::Ratios(shares))
            .page_len(100)
            .frames_per_channel(4)
            .build()
            .unwrap();
        let values: Vec<u32> = (0..10_000).collect();
        array.write(0, &values).unwrap();
        array.evict(..).unwrap();
        // Two pages are in frames, and the second one is newer there than at home.
        for page in [0, 1] {
            assert_eq!(array.get(page * 100).unwrap(), values[page * 100]);
        }
        array.set(100, 7).unwrap();
        let lost = cards[0].info().to_string();
        cards[0].lose();
        let homes = array.homes();
        let is_lost: Vec<bool> =
            homes.iter().map(|home| home.replicas[0].state == ReplicaState::Lost).collect();
        assert!(
            homes.iter().zip(&is_lost).all(|(home, is_lost)| is_lost == &(home.replicas[0].device == lost))
        );
        let in_frame = |page: usize| page < 2;
        let gone = |page: usize| is_lost[page % homes.len()] && !in_frame(page);
        let counted: u64 = homes.iter().map(|home| home.lost_pages).sum();
        assert_eq!(counted, (0..100).filter(|page| gone(*page)).count() as u64, "{count} devices");
        for page in 0..100 {
            let expected = if page == 1 { 7 } else { values[page * 100] };
            match array.get(page * 100) {
                Ok(value) => assert!(value == expected && !gone(page), "page {page}"),
                Err(error) => {
                    let cause = error.device_error().expect("a device's error");
                    assert_eq!((cause.kind(), cause.device()), (DeviceErrorKind::Lost, &*lost));
                    assert!(gone(page), "page {page}");
                }
            }
            // Also check each page on the devices.
            let range = page * 100..page * 100 + 100;
            if !is_lost[page % homes.len()] {
                assert_eq!(array.count(range.clone(), Field::whole(), &expected).unwrap(), 1);
                array.fill(range.clone(), 5).unwrap();
                add::run((1, array.section_mut(range.clone()).unwrap())).unwrap();
                assert_eq!(array.to_vec(range).unwrap(), [6; 100]);
            } else if gone(page) {
                assert!(array.count(range, Field::whole(), &expected).is_err());
            }
        }
    }
}

#[test]
fn impossible_mirrors_are_refused() {
    let builder = || VirtualArray::<u32>::builder(1000).placement(Placement::Mirrored);
    let refused = |error: vmarray::Error| matches!(error.kind(), ErrorKind::MirrorRefused { .. });
    assert!(refused(builder().devices(hosts::<1>()).build().unwrap_err()));
    let array = builder().devices(hosts::<2>()).build().unwrap();
    assert!(refused(array.rebuild(hosts::<1>()[0].clone()).unwrap_err()), "nothing is lost");
    let plain = VirtualArray::<u32>::builder(1000).devices(hosts::<2>()).build().unwrap();
    assert!(refused(plain.rebuild(hosts::<1>()[0].clone()).unwrap_err()));
    let source = Source::builder(vec![0_u32; 1000]).devices(hosts::<2>()).placement(Placement::Mirrored);
    assert!(refused(source.build().unwrap_err()));
    // Each device stores two shares.
    let full = VirtualArray::<u32>::builder((1 << 20) / 4 * 2).devices(cards(3).iter().map(any));
    let full = full.page_len(1024).placement(Placement::Mirrored).build().unwrap_err();
    assert!(matches!(full.kind(), ErrorKind::DoesNotFit { .. }), "{full}");
}

#[test]
fn device_side_work_outlives_each_device() {
    for (count, lost) in [(2, 0), (2, 1), (3, 1), (5, 4)] {
        let cards = cards(count);
        let array = VirtualArray::<u32>::builder(20_000)
            .devices(cards.iter().map(any))
            .placement(Placement::Mirrored)
            .page_len(128)
            .frames_per_channel(4)
            .build()
            .unwrap();
        let mut expected: Vec<u32> = (0..20_000).collect();
        array.write(0, &expected).unwrap();
        for turn in 0..4 {
            if turn == 1 {
                cards[lost].lose();
            }
            if turn == 3 {
                array.rebuild(any(&card(100))).unwrap();
                cards[(lost + 1) % cards.len()].lose();
            }
            array.fill(turn * 1000..turn * 1000 + 777, 9).unwrap();
            expected[turn * 1000..turn * 1000 + 777].fill(9);
            add::run((3, array.section_mut(..).unwrap())).unwrap();
            expected.iter_mut().for_each(|value| *value += 3);
            let indices: Vec<usize> = (0..300).map(|at| at * 61 % 20_000).collect();
            array.scatter(&indices, &vec![turn as u32; 300]).unwrap();
            indices.iter().for_each(|&index| expected[index] = turn as u32);
            let sum: u64 = expected.iter().map(|value| u64::from(*value)).sum();
            assert_eq!(
                array.sum(.., Field::whole()).unwrap(),
                i128::from(sum),
                "{count} devices, turn {turn}"
            );
            let found = array.find(Field::whole(), &9).unwrap();
            let is_nine = |index: &usize| expected[*index] == 9;
            assert_eq!(found, (0..expected.len()).filter(is_nine).collect::<Vec<_>>());
            assert_eq!(array.max(.., Field::whole()).unwrap(), expected.iter().max().copied());
            assert_eq!(array.gather(&indices).unwrap(), [turn as u32; 300]);
            assert!(array.to_vec(..).unwrap() == expected, "{count} devices, turn {turn}");
        }
        assert!(array.homes().iter().all(|home| home.lost_pages == 0));
    }
}

#[test]
fn mirrors_count_the_losses_of_two_devices() {
    let cards = cards(4);
    let array = VirtualArray::<u32>::builder(4_000)
        .devices(cards.iter().map(any))
        .placement(Placement::Mirrored)
        .page_len(100)
        .frames_per_channel(2)
        .build()
        .unwrap();
    let values: Vec<u32> = (0..4_000).collect();
    array.write(0, &values[..3_000]).unwrap();
    array.evict(..).unwrap();
    let lost = |array: &VirtualArray<u32, AnyDevice>| -> Vec<u64> {
        array.homes().iter().map(|home| home.lost_pages).collect()
    };
    cards[1].lose();
    assert_eq!(lost(&array), [0; 4]);
    assert_eq!(array.homes()[1].replicas[0].state, ReplicaState::Lost);
    assert!(array.to_vec(..3_000).unwrap() == values[..3_000]);
    array.evict(..).unwrap();
    assert_eq!(array.get(100).unwrap(), 100);
    cards[2].lose();
    // Devices 1 and 2 stored pages 1, 5, ..., 29; one of them is in a frame.
    assert_eq!(lost(&array), [0, 7, 0, 0]);
    for page in 0..30 {
        let read = array.get(page * 100 + 7);
        if page % 4 != 1 || page == 1 {
            assert_eq!(read.unwrap(), page as u32 * 100 + 7);
        } else {
            let error = read.unwrap_err();
            assert_eq!(error.device_error().unwrap().kind(), DeviceErrorKind::Lost, "{error}");
        }
    }
    // Pages without contents still read as zeroes after the loss, and pages on other devices accept writes.
    assert_eq!(array.get(3_300).unwrap(), 0);
    array.fill(0..100, 5).unwrap();
    assert_eq!(array.sum(0..100, Field::whole()).unwrap(), 500);
}

/// Devices of several kinds mirror each other's pages: host RAM, or the devices in `VMARRAY_TEST_DEVICES`, in
/// turn.
#[test]
fn devices_of_several_kinds_keep_each_other() {
    let kinds = devices(4);
    for lost in 0..kinds.len() {
        let own = |device: &Arc<AnyDevice>| AnyDevice::Own(Arc::clone(device) as Arc<dyn Device>);
        let cards: Vec<_> = kinds.iter().map(|device| Arc::new(Faulty::new(own(device)))).collect();
        let array = VirtualArray::<u32>::builder(30_000)
            .devices(cards.clone())
            .placement(Placement::Mirrored)
            .page_len(512)
            .frames_per_channel(4)
            .build()
            .unwrap();
        let mut expected: Vec<u32> = (0..30_000).collect();
        array.write(0, &expected).unwrap();
        for turn in 0..3_u32 {
            if turn == 1 {
                cards[lost].lose();
            }
            if turn == 2 {
                array.rebuild(Arc::new(Faulty::new(own(&hosts::<1>()[0])))).unwrap();
                cards[(lost + 1) % cards.len()].lose();
            }
            array.fill(1_000..2_500, turn).unwrap();
            expected[1_000..2_500].fill(turn);
            add::run((7, array.section_mut(..).unwrap())).unwrap();
            expected.iter_mut().for_each(|value| *value += 7);
            assert!(array.to_vec(..).unwrap() == expected, "device {lost}, turn {turn}");
            let sum: i128 = expected.iter().map(|value| i128::from(*value)).sum();
            assert_eq!(array.sum(.., Field::whole()).unwrap(), sum, "device {lost}, turn {turn}");
        }
    }
}

/// Threads check every value that they read while each device in turn is lost and rebuilt.
#[test]
fn nothing_is_lost_or_wrong_while_devices_are_lost_and_rebuilt() {
    const THREADS: usize = 3;
    for count in 2..=4 {
        let mut cards = cards(count);
        let array = VirtualArray::<u32>::builder(9_000)
            .devices(cards.iter().map(any))
            .placement(Placement::Mirrored)
            .page_len(64)
            .frames_per_channel(5)
            .build()
            .unwrap();
        let (is_over, operations) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..THREADS)
                .map(|number| {
                    let (array, is_over, operations) = (&array, &is_over, &operations);
                    scope.spawn(move || {
                        let mut random = SplitMix64::new(number as u64);
                        let mut own = vec![0; array.len() / THREADS];
                        while !is_over.load(Ordering::Relaxed) {
                            let place = random.index(own.len());
                            let index = place * THREADS + number;
                            match random.below(8) {
                                0..3 => {
                                    own[place] += 1;
                                    array.set(index, own[place]).unwrap();
                                }
                                3 => array.flush(index..(index + 500).min(array.len())).unwrap(),
                                4 => {
                                    let places: Vec<usize> =
                                        (0..20).map(|_| random.index(own.len())).collect();
                                    let indices: Vec<_> =
                                        places.iter().map(|place| place * THREADS + number).collect();
                                    let values = array.gather(&indices).unwrap();
                                    assert!(
                                        places.iter().zip(values).all(|(place, value)| own[*place] == value)
                                    );
                                }
                                _ => assert_eq!(array.get(index).unwrap(), own[place], "element {index}"),
                            }
                            operations.fetch_add(1, Ordering::Relaxed);
                        }
                        for (place, value) in own.iter().enumerate() {
                            assert_eq!(array.get(place * THREADS + number).unwrap(), *value);
                        }
                    })
                })
                .collect();
            let is_broken = || workers.iter().any(|worker| worker.is_finished());
            for turn in 0..10 {
                let until =
                    operations.load(Ordering::Relaxed) + u64::from(backend_api::wrap::random_cases(2000));
                while operations.load(Ordering::Relaxed) < until && !is_broken() {
                    std::thread::yield_now();
                }
                let at = turn % cards.len();
                cards[at].lose();
                cards[at] = card(50 + turn as u64);
                array.rebuild(any(&cards[at])).unwrap();
            }
            is_over.store(true, Ordering::Relaxed);
            workers.into_iter().for_each(|worker| worker.join().unwrap());
        });
        let homes = array.homes();
        let mut replicas = homes.iter().flat_map(|home| &home.replicas);
        assert!(replicas.all(|replica| replica.state == ReplicaState::Current), "{homes:?}");
    }
}

/// An array moves among GPUs, each with none to all of its channels, while threads use it.
#[test]
fn nothing_is_lost_while_an_array_moves() {
    use Placement::{Mirrored, Ratios};
    let cards: Vec<_> = cards(5).iter().map(any).collect();
    let mut random = SplitMix64::new(1);
    for (placement, is_movable) in [(Ratios(vec![1, 3]), true), (Ratios(vec![5]), true), (Mirrored, false)] {
        let first = if placement == Ratios(vec![5]) { 1 } else { 2 };
        let array = VirtualArray::<u64>::builder(12_000)
            .devices(cards[..first].to_vec())
            .placement(placement.clone())
            .movable(is_movable)
            .page_len(100)
            .frames_per_channel(4)
            .build()
            .unwrap();
        let (is_over, array) = (&AtomicBool::new(false), &array);
        std::thread::scope(|scope| {
            for thread in 0..3 {
                scope.spawn(move || {
                    let (mine, mut random) =
                        (thread * 4000..thread * 4000 + 4000, SplitMix64::new(thread as u64));
                    let mut expected = vec![0; 4000];
                    let mut rounds = 0;
                    while !is_over.load(Ordering::Relaxed) || rounds < 20 {
                        rounds += 1;
                        let at = random.index(4000);
                        let len = (4000 - at).min(1 + random.index(700));
                        let range = mine.start + at..mine.start + at + len;
                        let value = random.next();
                        match random.below(4) {
                            0 => {
                                array.fill(range, value).unwrap();
                                expected[at..at + len].fill(value);
                            }
                            1 => {
                                array.set(range.start, value).unwrap();
                                expected[at] = value;
                                array.flush(range).unwrap();
                            }
                            2 => {
                                let whole = Field::<u64, u64>::whole();
                                array.transform(range, whole.set(whole ^ value)).unwrap();
                                expected[at..at + len].iter_mut().for_each(|one| *one ^= value);
                            }
                            _ => assert!(array.to_vec(range).unwrap() == expected[at..at + len]),
                        }
                    }
                    assert!(array.to_vec(mine).unwrap() == expected);
                });
            }
            for _ in 0..12 {
                let from = random.index(3);
                let to = from + 2 + random.index(2);
                array.rebalance(cards[from..to].iter().cloned()).unwrap();
                let names: Vec<_> = cards[from..to].iter().map(|card| card.info().to_string()).collect();
                for home in array.homes() {
                    assert_eq!(home.lost_pages, 0);
                    assert!(home.replicas.iter().all(|one| names.contains(&one.device)), "{home:?}");
                    assert!(home.replicas.iter().all(|one| one.state == ReplicaState::Current), "{home:?}");
                }
            }
            is_over.store(true, Ordering::Relaxed);
        });
        for card in &cards {
            let memory = card.memory().unwrap();
            let has_pages = array
                .homes()
                .iter()
                .any(|home| home.replicas.iter().any(|replica| replica.device == card.info().to_string()));
            assert_eq!(memory.free_bytes < memory.total_bytes, has_pages, "{placement:?}");
        }
    }
}

#[test]
fn impossible_moves_are_refused() {
    let cards: Vec<_> = cards(3).iter().map(any).collect();
    let build = |placement, movable| {
        let builder = VirtualArray::<u64>::builder(1000).devices(cards.clone()).page_len(100);
        builder.placement(placement).movable(movable).build()
    };
    let is_refused = |error: vmarray::Error| matches!(error.kind(), ErrorKind::MoveRefused { .. });
    assert!(is_refused(build(Placement::Equal, false).unwrap().rebalance(cards.clone()).unwrap_err()));
    assert!(is_refused(build(Placement::Equal, true).unwrap().rebalance([]).unwrap_err()));
    let alone = [cards[0].clone(), cards[0].clone()];
    assert!(is_refused(build(Placement::Mirrored, false).unwrap().rebalance(alone).unwrap_err()));
    let lost = card(8);
    let pair = [any(&lost), cards[0].clone()];
    let builder = VirtualArray::<u64>::builder(1000).devices(pair).page_len(100);
    let degraded = builder.placement(Placement::Mirrored).build().unwrap();
    lost.lose();
    degraded.flush(..).unwrap();
    degraded.fill(.., 1).unwrap();
    assert!(is_refused(degraded.rebalance(cards.clone()).unwrap_err()));
    // A device without room leaves the array unchanged.
    let array = build(Placement::Equal, true).unwrap();
    array.fill(.., 7).unwrap();
    let small = SimulatedDevice::builder(9).bytes(1000).build();
    let small = Arc::new(AnyDevice::Own(Arc::new(small) as Arc<dyn Device>));
    assert!(matches!(array.rebalance([small]).unwrap_err().kind(), ErrorKind::Device(_)));
    assert_eq!(array.count(.., Field::whole(), &7).unwrap(), 1000);
    assert_eq!(array.homes().iter().filter(|home| home.replicas.len() == 1).count(), 3);
}

/// On all available devices: contents move there and back, directly between devices with access to each
/// other, and a mirror's lost device is replaced.
#[test]
fn arrays_move_among_the_devices_under_test() {
    const LEN: usize = 3_000_000;
    let named = devices(2);
    let expected: Vec<u32> = (0..LEN as u32).map(|at| at.wrapping_mul(2_654_435_761)).collect();
    let build = |devices: Vec<_>, placement| {
        let builder = VirtualArray::<u32>::builder(LEN).devices(devices).page_len(4096).movable(true);
        let array = builder.placement(placement).frames_per_channel(16).build().unwrap();
        array.write(0, &expected).unwrap();
        array
    };
    let array = build(vec![named[0].clone(), named[0].clone()], Placement::Equal);
    for to in [&named[1..], &named[..], &named[..1]] {
        array.rebalance(to.iter().cloned()).unwrap();
        assert!(array.to_vec(..).unwrap() == expected);
        array.evict(..).unwrap();
    }
    let own = |device: &Arc<AnyDevice>| Arc::new(Faulty::new(AnyDevice::Own(device.clone())));
    let cards: Vec<_> = named.iter().map(own).collect();
    let any = |card: &Arc<Faulty<AnyDevice>>| Arc::new(AnyDevice::Own(Arc::clone(card) as Arc<dyn Device>));
    let mirrored = build(cards.iter().map(any).collect(), Placement::Mirrored);
    mirrored.evict(..).unwrap();
    cards[1].lose();
    add::run((3, mirrored.section_mut(..).unwrap())).unwrap();
    mirrored.rebuild(any(&own(&named[1]))).unwrap();
    cards[0].lose();
    assert!(mirrored.to_vec(..).unwrap().iter().zip(&expected).all(|(is, was)| *is == was.wrapping_add(3)));
}
