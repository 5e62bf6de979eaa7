//! Tests of arrays that grow and shrink during use.

use std::io::{ErrorKind as IoErrorKind, Read, Seek, SeekFrom, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use vmarray::device::wrap::{Fault, Operation};
use vmarray::device::{Device, ErrorKind as DeviceErrorKind};
use vmarray::host::{HostDevice, SimulatedDevice};
use vmarray::store::FileDevice;
use vmarray::views::SharedSection;
use vmarray::{AnyDevice, Error, ErrorKind, Placement, Source, VirtualArray, prelude::*};
use vmarray_conformance::wrap::Faulty;

use crate::common::{Numbers, Shape, as_any, changed_ranges, devices, hosts, moved_by, together};

/// Maximal length of the arrays here.
pub const MOST: usize = 3000;

fn growing<T: Element>(shape: &Shape, len: usize) -> VirtualArray<T> {
    shape.describe(len, shape.devices()).max_len(MOST).build().unwrap()
}

fn element(number: u64) -> [u16; 3] {
    [number as u16, (number >> 16) as u16, 7]
}

fn full(error: &Error) -> bool {
    error.device_error().is_some_and(|error| error.kind() == DeviceErrorKind::OutOfMemory)
}

/// Does a random operation, which may change the length, on an array and on a vector.
pub fn step(
    array: &mut VirtualArray<[u16; 3]>,
    vec: &mut Vec<[u16; 3]>,
    random: &mut Numbers,
) -> vmarray::Result<()> {
    let room = MOST - vec.len();
    let values: Vec<_> = (0..random.below(300)).map(|_| element(random.next())).collect();
    let values = &values[..values.len().min(room)];
    match random.below(16) {
        0..3 if room > 0 => {
            let value = element(random.next());
            assert_eq!(array.push(value)?, vec.len());
            vec.push(value);
        }
        3 => {
            array.extend_from_slice(values)?;
            vec.extend_from_slice(values);
        }
        4 => {
            array.try_extend(values.iter().copied())?;
            vec.extend_from_slice(values);
        }
        5 | 6 => {
            let at = random.below(vec.len() + 1);
            array.insert(at, values)?;
            vec.splice(at..at, values.iter().copied());
        }
        7 => {
            let range = random.range(vec.len());
            array.remove(range.clone())?;
            vec.drain(range);
        }
        8 => {
            let at = random.below(vec.len() + 1);
            let end = (at + random.below(20)).min(vec.len());
            array.remove(at..end)?;
            vec.drain(at..end);
        }
        9 => assert_eq!(array.pop()?, vec.pop()),
        10 => {
            let len = random.below(MOST.min(2 * vec.len() + 10));
            let value = element(random.next());
            array.resize(len, value)?;
            vec.resize(len, value);
        }
        11 => {
            array.append(&Source::new(values.to_vec())?)?;
            vec.extend_from_slice(values);
        }
        12 => {
            // Create another array over the same devices, so that devices of both can access each other.
            array.reserve(random.below(room + 1))?;
            array.flush(..)?;
        }
        13 => {
            let (range, value) = (random.range(vec.len()), element(random.next()));
            array.fill(range.clone(), value)?;
            vec[range].fill(value);
        }
        14 => {
            let range = random.range(vec.len());
            let values = &vec![element(random.next()); range.len()][..];
            array.write(range.start, values)?;
            vec[range].copy_from_slice(values);
        }
        _ => array.evict(..)?,
    }
    Ok(())
}

#[test]
fn an_array_that_grows_is_a_vector() {
    for seed in 0..backend_api::wrap::random_cases(60).into() {
        let mut random = Numbers::new(seed);
        let shape = Shape::any(&mut random, 40, 3);
        let first = random.below(50);
        let mut array = growing::<[u16; 3]>(&shape, first);
        let mut vec = vec![[0; 3]; first];
        for number in 0..80 {
            step(&mut array, &mut vec, &mut random).unwrap();
            assert_eq!(array.len(), vec.len(), "seed {seed}, step {number}, {shape:?}");
            assert!(array.capacity() >= vec.len() && array.capacity() <= array.max_len());
            let at = random.below(vec.len() + 2);
            assert_eq!(array.get(at).ok(), vec.get(at).copied(), "seed {seed}, step {number}");
            if number % 8 == 7 {
                assert_eq!(array.to_vec(..).unwrap(), vec, "seed {seed}, step {number}, {shape:?}");
                // Devices see the elements of the last page too.
                let seven = Field::<[u16; 3], [u16; 3]>::whole().nth::<2>();
                let expected = vec.iter().filter(|value| value[2] == 7).count();
                assert_eq!(array.count(.., seven, &7).unwrap(), expected, "seed {seed}, {shape:?}");
            }
        }
    }
}

#[test]
fn long_tails_are_moved_by_the_devices() {
    const LEN: usize = 2 << 20;
    let values: Vec<u32> = (0..LEN as u32).collect();
    for (devices, is_movable) in [(1, false), (2, false), (1, true)] {
        let devices = hosts::<2>().into_iter().take(devices);
        let builder = VirtualArray::<u32>::builder(0).devices(devices).max_len(2 * LEN);
        let mut array = builder.page_len(1000).cache_bytes(1 << 20).movable(is_movable).build().unwrap();
        array.extend_from_slice(&values).unwrap();
        let mut vec = values.clone();
        let moved = |array: &VirtualArray<u32>| array.stats().total().bytes_past_host;
        for (at, count) in [(100, 3), (1_000_001, 77_777), (5, 600_000), (0, 2_000)] {
            let before = moved(&array);
            let inserted = vec![at as u32; count];
            array.insert(at, &inserted).unwrap();
            vec.splice(at..at, inserted.iter().copied());
            assert!(array.to_vec(..).unwrap() == vec, "{at} {count}");
            let bytes = (4 * (vec.len() - at - count)) as u64;
            // With mirrors, data goes through the host.
            let least = if is_movable { 0 } else { bytes / 2 };
            assert!(moved(&array) - before >= least, "{} of {bytes}", moved(&array) - before);
            assert_eq!(array.stats().total().failed_write_backs, 0);
        }
        for (at, count) in [(5, 600_000), (100, 3), (0, 2_000), (1_000_001, 77_777)] {
            let before = moved(&array);
            array.remove(at..at + count).unwrap();
            vec.drain(at..at + count);
            assert!(array.to_vec(..).unwrap() == vec, "{at} {count}");
            let bytes = (4 * (vec.len() - at)) as u64;
            let least = if is_movable { 0 } else { bytes / 2 };
            assert!(moved(&array) - before >= least, "{} of {bytes}", moved(&array) - before);
        }
    }
}

#[test]
fn cards_without_links_move_pages_that_stay_on_them() {
    let cards = [1, 2].map(|seed| Arc::new(SimulatedDevice::builder(seed).build()));
    let builder = VirtualArray::<u32>::builder(0).devices(cards).max_len(1 << 20).page_len(1024);
    let mut array = builder.frames_per_channel(8).build().unwrap();
    let mut vec: Vec<u32> = (0..400_000).collect();
    array.extend_from_slice(&vec).unwrap();
    for (count, by_devices) in [(100 * 2048, true), (100 * 2048 + 1024, false)] {
        let before = array.stats().total().bytes_past_host;
        array.insert(7, &vec![9; count]).unwrap();
        vec.splice(7..7, vec![9; count]);
        assert!(array.to_vec(..).unwrap() == vec);
        assert_eq!(array.stats().total().bytes_past_host > before, by_devices);
    }
}

#[test]
fn threads_push_while_others_read() {
    const EACH: usize = 700;
    for seed in 0..8 {
        let mut random = Numbers::new(seed);
        let shape = Shape::any(&mut random, 60, 3);
        let array = growing::<[u64; 3]>(&shape, 0);
        let value = |thread: usize, number: usize| {
            let word = (thread * EACH + number) as u64;
            [word, !word, word]
        };
        let left = AtomicUsize::new(4);
        together(7, |thread| {
            let mut random = Numbers::new(seed * 10 + thread as u64);
            if thread < 4 {
                let mut before = None;
                for number in 0..EACH {
                    let index = array.push(value(thread, number)).unwrap();
                    assert!(before < Some(index), "indices of a thread ascend");
                    before = Some(index);
                    assert_eq!(array.get(index).unwrap(), value(thread, number));
                }
                left.fetch_sub(1, Ordering::AcqRel);
                return;
            }
            while left.load(Ordering::Acquire) > 0 {
                let len = array.len();
                if len == 0 {
                    continue;
                }
                let index = if thread == 4 { len - 1 } else { random.below(len) };
                let [one, two, three] = array.get(index).unwrap();
                assert!(one == !two && one == three && one < 4 * EACH as u64, "{index} of {len}");
                if thread == 6 {
                    let tail = array.to_vec(len.saturating_sub(50)..len).unwrap();
                    assert!(tail.iter().all(|[one, two, _]| *one == !*two), "seed {seed}");
                    array.evict(..).unwrap();
                }
            }
        });
        let mut words: Vec<u64> = array.to_vec(..).unwrap().iter().map(|value| value[0]).collect();
        let of_thread = |thread: u64| {
            let own = words.iter().filter(move |word| **word / EACH as u64 == thread);
            own.is_sorted()
        };
        assert!((0..4).all(of_thread), "each thread's are in order");
        words.sort_unstable();
        assert_eq!(words, (0..4 * EACH as u64).collect::<Vec<_>>(), "all are there once");
    }
}

/// Writes of all elements overwrite whole pages without a fetch, except the last page, which may grow.
#[test]
fn elements_pushed_during_an_overwrite_stay() {
    for (seed, page_len) in [(0, 16), (1, 64), (2, 50)] {
        let shape = Shape { page_len, frames: 2, channels: vec![2], simulated: seed, ..Shape::default() };
        let array = growing::<u32>(&shape, 0);
        for round in 0..100 {
            let overwritten = AtomicUsize::new(0);
            together(3, |thread| match thread {
                0 => {
                    let all = array.section(..).unwrap();
                    overwritten.store(all.len(), Ordering::Relaxed);
                    match round % 4 {
                        0 => array.fill(..all.len(), 0).unwrap(),
                        1 => array.write(0, &vec![0; all.len()]).unwrap(),
                        2 => array.discard(..all.len()).unwrap(),
                        _ => {
                            let element = Field::<u32, u32>::whole();
                            array.transform(..all.len(), element.set(element * 0)).unwrap();
                        }
                    }
                }
                _ => (0..10).for_each(|_| _ = array.push(round + 1).unwrap()),
            });
            let (first, len) = (overwritten.into_inner(), array.len());
            assert_eq!(array.to_vec(first..).unwrap(), vec![round + 1; len - first], "round {round}");
        }
        assert_eq!(array.len(), 2000);
    }
}

#[test]
fn nothing_is_copied_to_make_room() {
    let array = growing::<u32>(&Shape { page_len: 16, frames: 1, ..Shape::default() }, 100);
    array.fill(.., 7).unwrap();
    array.evict(..).unwrap();
    let moved = moved_by(&array, || {
        for room in [1, 100, 1000, MOST - 100] {
            array.reserve(room).unwrap();
            assert!(array.capacity() >= 100 + room);
        }
    });
    assert_eq!((moved, array.capacity(), array.len()), ((0, 0), MOST, 100));
    assert_eq!(array.to_vec(..).unwrap(), [7; 100]);
    let error = array.reserve(MOST - 99).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::LengthLimit { asked: MOST + 1, max_len: MOST });
    assert!(error.to_string().contains("Builder::max_len"), "{error}");
    assert!(array.reserve(usize::MAX).is_err());
}

#[test]
fn an_array_that_outgrows_its_devices_errors_and_keeps_its_elements() {
    const PAGE: usize = 4 << 10;
    let path = std::env::temp_dir();
    let devices: [Vec<Arc<AnyDevice>>; 4] = [
        vec![as_any(&Arc::new(HostDevice::new(1 << 20).unwrap()))],
        vec![as_any(&Arc::new(FileDevice::builder(&path).create_temporary(1 << 20).unwrap()))],
        vec![as_any(&Arc::new(SimulatedDevice::builder(3).bytes(1 << 20).build()))],
        [1 << 20, 300 << 10].map(|bytes| as_any(&Arc::new(HostDevice::new(bytes).unwrap()))).into(),
    ];
    for devices in devices {
        let least = devices.iter().map(|device| device.info().total_bytes).min().unwrap();
        let (count, free) = (devices.len(), |of: &[Arc<AnyDevice>]| of[0].memory().unwrap().free_bytes);
        let builder = VirtualArray::<u64>::builder(0).devices(devices.clone()).max_len(usize::MAX);
        let mut array = builder.page_len(PAGE / 8).cache_bytes(1 << 15).build().unwrap();
        let error = loop {
            match array.push(array.len() as u64) {
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        assert!(full(&error), "{error}");
        // The array grows up to the last page for which all devices have room.
        let pages = least as usize / PAGE * count;
        let more = usize::from(count > 1);
        assert!((pages..=pages + more).contains(&(array.len() * 8 / PAGE)), "{} elements", array.len());
        assert_eq!(array.len(), array.capacity());
        let len = array.len();
        assert!(full(&array.insert(0, &[7]).unwrap_err()));
        assert!(full(&array.extend_from_slice(&[7; 10]).unwrap_err()));
        assert!(full(&array.resize(len + 1, 7).unwrap_err()));
        assert_eq!(array.to_vec(..).unwrap(), (0..len as u64).collect::<Vec<_>>());
        // The array reuses freed space, but no space of other users.
        array.truncate(10).unwrap();
        array.resize(len, 8).unwrap();
        assert_eq!((array.get(9).unwrap(), array.get(10).unwrap(), array.get(len - 1).unwrap()), (9, 8, 8));
        drop(array);
        assert_eq!(free(&devices), devices[0].info().total_bytes);
    }
}

#[test]
fn an_array_leaves_unneeded_memory_to_others() {
    let device = Arc::new(HostDevice::new(1 << 20).unwrap());
    let build = |len| {
        VirtualArray::<u8>::builder(len).devices([device.clone()]).page_len(4096).max_len(1 << 20).build()
    };
    let [one, two] = [build(400 << 10).unwrap(), build(400 << 10).unwrap()];
    // The free space is less than half, but not zero.
    one.push(7).unwrap();
    assert!(one.capacity() > 400 << 10 && two.reserve(1).is_ok());
    assert_eq!(one.get(400 << 10).unwrap(), 7);
}

#[test]
fn a_device_that_refuses_to_grow_leaves_the_array_as_it_is() {
    let card = Arc::new(Faulty::new(HostDevice::new(64 << 20).unwrap()));
    let devices = [as_any(&Arc::new(HostDevice::new(64 << 20).unwrap())), as_any(&card)];
    let builder = VirtualArray::<u32>::builder(10).devices(devices).page_len(1024).max_len(8 << 20);
    let mut array = builder.frames_per_channel(2).build().unwrap();
    let mut vec = vec![0; 10];
    for kind in [DeviceErrorKind::OutOfMemory, DeviceErrorKind::Driver, DeviceErrorKind::System] {
        card.inject(Fault::new(Operation::Extend, kind));
        let room = array.capacity();
        array.resize(room, 3).unwrap();
        vec.resize(room, 3);
        let failed = |result: vmarray::Result<()>| {
            let cause = result.unwrap_err();
            assert_eq!(cause.device_error().expect("a device's error").kind(), kind);
        };
        failed(array.push(7).map(drop));
        failed(array.reserve(1));
        failed(array.insert(3, &[1, 2]));
        failed(array.append(&Source::new(vec![1; 100]).unwrap()));
        failed(array.try_extend(0..5));
        failed(array.resize(room + 1, 0));
        assert!(array.to_vec(..).unwrap() == vec && array.capacity() == room);
        card.clear();
        array.push(7).unwrap();
        vec.push(7);
        assert!(array.to_vec(..).unwrap() == vec && array.capacity() > room);
    }
    card.inject(Fault::new(Operation::AllocateExtensible, DeviceErrorKind::Unsupported));
    let refused =
        VirtualArray::<u32>::builder(10).devices([as_any(&card)]).max_len(1 << 20).build().unwrap_err();
    assert_eq!(refused.device_error().unwrap().kind(), DeviceErrorKind::Unsupported);
    assert!(VirtualArray::<u32>::builder(10).devices([as_any(&card)]).build().is_ok(), "none is needed");
}

/// If a copy fails, each unlisted element keeps its place, or all have moved.
#[test]
fn a_tail_whose_move_fails_is_moved_back_or_reported() {
    for seed in 0..backend_api::wrap::random_cases(60).into() {
        let mut random = Numbers::new(seed);
        let card = Arc::new(Faulty::new(SimulatedDevice::builder(seed).build()));
        let devices = [as_any(&Arc::new(SimulatedDevice::builder(seed + 100).build())), as_any(&card)];
        let builder = VirtualArray::<u32>::builder(0).devices(devices).page_len(1 << 10).max_len(1 << 20);
        let mut array = builder.frames_per_channel(3).build().unwrap();
        let vec: Vec<u32> = (0..300_000).collect();
        array.extend_from_slice(&vec).unwrap();
        array.evict(..).unwrap();
        let fault = Fault::new(Operation::Submit, DeviceErrorKind::CopyFailed);
        let fault = fault.on_call(1 + random.next() % 40);
        card.inject(if seed % 2 == 0 { fault } else { fault.reported_later() });
        let (at, count) = (random.below(1000), [5, 3000, 50_000, 100 << 10][random.below(4)]);
        let is_insertion = seed % 3 > 0;
        let mut after = vec.clone();
        let outcome = if is_insertion {
            after.splice(at..at, vec![7; count]);
            array.insert(at, &vec![7; count])
        } else {
            after.drain(at..at + count);
            array.remove(at..at + count)
        };
        card.clear();
        let expected = match &outcome {
            Ok(()) => after,
            Err(error) if is_insertion => {
                assert_eq!(array.len(), vec.len(), "one failure alone can be made good: {error}");
                vec
            }
            Err(error) => {
                let (written, _) = changed_ranges(error);
                assert_eq!(array.len(), vec.len());
                let mut mixed = vec;
                for range in written {
                    mixed[range.clone()].copy_from_slice(&after[range]);
                }
                mixed
            }
        };
        let mut found = array.to_vec(..).unwrap();
        if let Err(error) = &outcome {
            for range in changed_ranges(error).1 {
                found[range.clone()].copy_from_slice(&expected[range]);
            }
        }
        assert!(found == expected, "seed {seed}: {at} {count} {outcome:?}");
    }
}

#[test]
fn views_keep_the_length_that_they_began_with() {
    let array = Arc::new(growing::<u32>(&Shape::one(8, 8), 20));
    array.write(0, &(0..20).collect::<Vec<_>>()).unwrap();
    let (all, tail) = (array.section(..).unwrap(), array.section(12..).unwrap());
    let shared = SharedSection::new(&array, ..).unwrap();
    let rows = NdSection::over(&*array, [4, 5]).unwrap();
    let mut iter = array.iter();
    assert_eq!(iter.next().unwrap().unwrap(), 0);
    let last = array.page(2).unwrap();
    assert_eq!(last.range(), 16..20);
    drop(iter);
    std::thread::scope(|scope| {
        let pushed = scope.spawn(|| array.push(20).unwrap());
        // The last page is locked, so the other thread cannot append to it in either order.
        assert_eq!((&*last, array.len()), (&[16, 17, 18, 19][..], 20));
        drop(last);
        assert_eq!(pushed.join().unwrap(), 20);
    });
    for value in 21..40 {
        array.push(value).unwrap();
    }
    assert_eq!((all.len(), tail.len(), shared.len()), (20, 8, 20));
    assert_eq!(tail.to_vec(..).unwrap(), (12..20).collect::<Vec<_>>());
    assert!(all.get(20).is_err() && all.to_vec(..21).is_err());
    assert_eq!(all.count_where(.., Field::<u32, u32>::whole().ge(15)).unwrap(), 5);
    assert_eq!(rows.to_vec([3, 0]..[4, 5]).unwrap(), [15, 16, 17, 18, 19]);
    assert_eq!((array.len(), array.section(..).unwrap().len(), array.iter().count()), (40, 40, 40));
    assert_eq!(array.page(2).unwrap().range(), 16..24);
}

#[test]
fn a_thread_that_holds_the_last_page_does_not_wait_for_itself() {
    let mut array = growing::<u32>(&Shape::one(8, 8), 4);
    for is_last in [true, false] {
        let page = array.page(0).unwrap();
        let pushed = array.push(7);
        assert_eq!(pushed.is_err(), is_last, "{pushed:?}");
        if let Err(error) = pushed {
            assert_eq!(*error.kind(), ErrorKind::WouldDeadlock { page: 0 });
        }
        drop(page);
        array.resize(8, 1).unwrap();
    }
    assert_eq!(array.to_vec(..).unwrap(), [0, 0, 0, 0, 1, 1, 1, 1, 7][..8].to_vec());
}

#[test]
fn truncated_elements_come_back_as_zero() {
    let mut array = VirtualArray::<u32>::builder(100)
        .devices(devices(2))
        .page_len(8)
        .frames_per_channel(1)
        .build()
        .unwrap();
    array.fill(.., 7).unwrap();
    array.truncate(20).unwrap();
    assert_eq!((array.page_count(), array.get(20).is_err(), array.max_len()), (3, true, 100));
    array.resize(60, 1).unwrap();
    assert_eq!(array.push(2).unwrap(), 60);
    let expected: Vec<u32> = [vec![7; 20], vec![1; 40], vec![2]].concat();
    assert_eq!(array.to_vec(..).unwrap(), expected);
    // The array can regain its old length, but not more.
    array.resize(100, 3).unwrap();
    assert!(matches!(array.push(4).unwrap_err().kind(), ErrorKind::LengthLimit { asked: 101, max_len: 100 }));
    array.truncate(0).unwrap();
    assert!(array.is_empty() && array.pop().unwrap().is_none());
    let (to, from) = moved_by(&array, || array.evict(..).unwrap());
    assert_eq!((to, from), (0, 0), "what is not there is not written back");
}

#[test]
fn mirrors_and_moved_arrays_grow() {
    let card = |seed| Arc::new(Faulty::new(SimulatedDevice::builder(seed).bytes(4 << 20).build()));
    let cards = [1, 2].map(card);
    let builder = VirtualArray::<u32>::builder(0).devices(cards.iter().map(as_any)).page_len(64);
    let mut array =
        builder.placement(Placement::Mirrored).max_len(100_000).frames_per_channel(2).build().unwrap();
    array.try_extend(0..10_000).unwrap();
    cards[0].lose();
    for value in 10_000..20_000 {
        array.push(value).unwrap();
    }
    assert_eq!(array.to_vec(..).unwrap(), (0..20_000).collect::<Vec<_>>());
    array.rebuild(as_any(&card(3))).unwrap();
    array.try_extend(20_000..40_000).unwrap();
    array.evict(..).unwrap();
    cards[1].lose();
    array.push(40_000).unwrap();
    assert_eq!(array.to_vec(..).unwrap(), (0..=40_000).collect::<Vec<_>>());

    let builder = VirtualArray::<u32>::builder(10).devices(hosts::<1>()).page_len(64).max_len(100_000);
    let array = builder.movable(true).frames_per_channel(2).build().unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let pusher = scope.spawn(|| {
            let mut value = 10;
            while !stop.load(Ordering::Acquire) || value < 5000 {
                assert_eq!(array.push(value).unwrap(), value as usize);
                value += 1;
                if value == 90_000 {
                    break;
                }
            }
            value
        });
        array.rebalance(hosts::<1>()).unwrap();
        stop.store(true, Ordering::Release);
        let end = pusher.join().unwrap();
        let expected: Vec<u32> = (0..end).map(|value| if value < 10 { 0 } else { value }).collect();
        assert_eq!(array.to_vec(..).unwrap(), expected);
    });
}

#[test]
fn elements_of_any_size_are_pushed() {
    fn check<T: Element + PartialEq>(value: impl Fn(u8) -> T + Sync) {
        let array = growing::<T>(&Shape { page_len: 3, frames: 2, ..Shape::default() }, 0);
        together(2, |thread| {
            for number in 0..20 {
                let value = value(thread as u8 * 20 + number);
                let index = array.push(value).unwrap();
                assert!(array.get(index).unwrap() == value);
            }
        });
        assert_eq!(array.len(), 40);
    }
    check(|byte| byte);
    check(|byte| [byte; 3]);
    check(|byte| [u64::from(byte); 40]);
    check(|byte| [byte; 20_000]);
}

#[test]
fn a_stream_of_bytes_is_a_file() {
    for seed in 0..20 {
        let mut random = Numbers::new(seed);
        let shape = Shape::any(&mut random, 50, 2);
        let mut array = growing::<u8>(&shape, 0);
        let (mut stream, mut file) = (array.byte_stream(), std::io::Cursor::new(Vec::<u8>::new()));
        for _ in 0..100 {
            let bytes: Vec<u8> = (0..random.below(100)).map(|_| random.next() as u8).collect();
            match random.below(4) {
                0 if file.position() as usize + bytes.len() <= MOST => {
                    stream.write_all(&bytes).unwrap();
                    file.write_all(&bytes).unwrap();
                }
                1 => {
                    let (mut one, mut two) = (bytes.clone(), bytes);
                    assert_eq!(stream.read(&mut one).unwrap(), file.read(&mut two).unwrap());
                    assert_eq!(one, two);
                }
                _ => {
                    let by = random.below(200) as i64 - 100;
                    let to = [
                        SeekFrom::Start(random.below(MOST) as u64),
                        SeekFrom::Current(by),
                        SeekFrom::End(by),
                    ];
                    let to = to[random.below(3)];
                    assert_eq!(stream.seek(to).ok(), file.seek(to).ok(), "{to:?}");
                }
            }
            assert_eq!(stream.position(), file.position());
        }
        assert_eq!(array.to_vec(..).unwrap(), file.into_inner(), "seed {seed}");
        let end = array.len();
        let mut stream = array.byte_stream();
        stream.seek(SeekFrom::End(0)).unwrap();
        let error = stream.write(&[1; MOST + 1]).unwrap_err();
        assert_eq!((error.kind(), stream.position()), (IoErrorKind::StorageFull, end as u64));
        let inner = error.get_ref().and_then(|error| error.downcast_ref::<Error>()).expect("the array's");
        assert!(matches!(inner.kind(), ErrorKind::LengthLimit { .. }));
        assert_eq!(array.len(), end);
    }
}

#[test]
fn slow_devices_keep_pushing_threads_apart_from_each_other_only_by_the_last_page() {
    let card = SimulatedDevice::builder(1).latency(Duration::from_micros(50)).build();
    let builder = VirtualArray::<u64>::builder(0).devices([as_any(&Arc::new(card))]).page_len(4);
    let array = builder.max_len(2000).frames_per_channel(1).build().unwrap();
    // The cache has one page, from which the other threads evict the last page again and again.
    together(4, |thread| {
        for number in 0..100 {
            let index = array.push(thread as u64 * 1000 + number).unwrap();
            assert_eq!(array.get(index / 2).unwrap() % 1000 / 100, 0);
        }
    });
    assert_eq!(array.len(), 400);
}
