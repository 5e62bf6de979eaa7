//! Tests of snapshots of one instant while threads write: a snapshot that contains an effect also contains
//! its cause.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::executor::block_on;
use vmarray::device::ErrorKind as DeviceErrorKind;
use vmarray::device::wrap::{Fault, Operation, SplitMix64};
use vmarray::file::SaveOptions;
use vmarray::host::SimulatedDevice;
use vmarray::progress::Progress;
use vmarray::store::FileDevice;
use vmarray::{AnyDevice, ErrorKind, NdArray, RaggedArray, VirtualArray, prelude::*};
use vmarray_conformance::wrap::Faulty;

use crate::common::host;
use crate::stored::Files;

const POINT_IN_TIME: SaveOptions = SaveOptions::new().point_in_time(true);
const THREADS: usize = 4;
/// Number of counters of a thread, in their order.
const CHAIN: usize = 6;

fn goes_on(_: Progress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn devices(kind: u64) -> Vec<Arc<AnyDevice>> {
    let simulated = |seed| Arc::new(AnyDevice::from(SimulatedDevice::builder(seed).build()));
    let file = || {
        let file = FileDevice::builder(std::env::temp_dir()).create_temporary(16 << 20).unwrap();
        Arc::new(AnyDevice::from(file))
    };
    let ram = || Arc::new(AnyDevice::from(host()));
    match kind % 5 {
        0 => vec![ram()],
        1 => vec![simulated(kind), simulated(kind + 1)],
        2 => vec![file()],
        3 => vec![ram(), file(), simulated(kind)],
        _ => vec![ram(), ram()],
    }
}

/// Writes a number to an element, by one of several methods.
fn write(array: &VirtualArray<u64>, way: usize, at: usize, value: u64) {
    match way {
        0 | 1 => array.set(at, value).unwrap(),
        2 => _ = array.replace(at, value).unwrap(),
        3 => array.set_uncached(at, value).unwrap(),
        4 => array.write(at, &[value]).unwrap(),
        5 => array.page_mut(array.page_of(at)).unwrap()[at % array.page_len()] = value,
        6 => array.scatter(&[at], &[value]).unwrap(),
        7 => block_on(array.set_async(at, value)).unwrap(),
        8 => {
            let whole = Field::<u64, u64>::whole();
            array.transform(at..at + 1, whole.set(value)).unwrap();
        }
        9 => array.fill(at..at + 1, value).unwrap(),
        _ => _ = array.update(at, |_| value).unwrap(),
    }
}

/// Each thread increments its counters in order. In a snapshot a later counter is never above an earlier one,
/// and below it by at most the one step in progress.
#[test]
fn no_effect_is_saved_without_its_cause() {
    for seed in 0..15 {
        let mut random = SplitMix64::new(seed);
        let (pages, page_len) = (20 + random.index(40), 8 << random.index(4));
        let builder = VirtualArray::<u64>::builder(pages * page_len + random.index(page_len));
        let array = builder.devices(devices(seed)).page_len(page_len).cache_bytes(8 << 10).build().unwrap();
        // Each thread has every fourth element of random pages.
        let places: Vec<Vec<usize>> = (0..THREADS)
            .map(|thread| {
                let place =
                    |_| random.index(pages) * page_len + THREADS * random.index(page_len / 8) + thread;
                let mut places: Vec<usize> = (0..CHAIN).map(place).collect();
                let mut seen = std::collections::HashSet::new();
                places.retain(|place| seen.insert(*place));
                places
            })
            .collect();
        let (array, places, is_over) = (&array, &places, &AtomicBool::new(false));
        let files = Files::new(1);
        std::thread::scope(|scope| {
            for (thread, places) in places.iter().enumerate() {
                let mut random = SplitMix64::new(seed * 10 + thread as u64);
                scope.spawn(move || {
                    for step in 1.. {
                        places.iter().for_each(|at| write(array, random.index(11), *at, step));
                        if is_over.load(Ordering::Relaxed) {
                            break;
                        }
                    }
                });
            }
            for _ in 0..8 {
                array.save_with(&files.0[0], POINT_IN_TIME, goes_on).unwrap();
                let saved = VirtualArray::<u64>::open(&files.0[0]).unwrap();
                assert_eq!(saved.len(), array.len());
                let saved = saved.to_vec(..).unwrap();
                for places in places {
                    let steps: Vec<u64> = places.iter().map(|at| saved[*at]).collect();
                    assert!(steps.is_sorted_by(|a, b| a >= b), "seed {seed}: {steps:?}");
                    assert!(steps[0] - steps[steps.len() - 1] <= 1, "seed {seed}: {steps:?}");
                }
            }
            is_over.store(true, Ordering::Relaxed);
        });
    }
}

/// Devices change long ranges one after the other, and a thread changes two pages under guards: in a snapshot
/// these are equal.
#[test]
fn long_changes_and_pairs_of_guards_are_of_one_instant() {
    for seed in 0..5 {
        let builder = VirtualArray::<u64>::builder(64 * 40).devices(devices(seed)).page_len(64);
        let array = &builder.cache_bytes(6 << 10).build().unwrap();
        let (is_over, files) = (&AtomicBool::new(false), Files::new(1));
        std::thread::scope(|scope| {
            let changes: [fn(&VirtualArray<u64>, u64); 3] = [
                |array, step| {
                    let whole = Field::<u64, u64>::whole();
                    array.transform(0..700, whole.set(whole + 1)).unwrap();
                    array.fill(700..1000, step).unwrap();
                    array.write(1000, &[step; 280]).unwrap();
                },
                |array, step| {
                    let (mut one, mut other) = (array.page_mut(30).unwrap(), array.page_mut(35).unwrap());
                    one.fill(step);
                    other.fill(step);
                },
                |array, step| {
                    let indices: Vec<usize> = (0..300).map(|i| 1280 + i).collect();
                    array.scatter(&indices, &[step; 300]).unwrap();
                    array.set(1600, step).unwrap();
                },
            ];
            for change in changes {
                scope.spawn(move || {
                    for step in 1.. {
                        change(array, step);
                        if is_over.load(Ordering::Relaxed) {
                            break;
                        }
                    }
                });
            }
            for _ in 0..10 {
                array.save_with(&files.0[0], POINT_IN_TIME, goes_on).unwrap();
                let saved = VirtualArray::<u64>::open(&files.0[0]).unwrap().to_vec(..).unwrap();
                let bounds = |range: std::ops::Range<usize>| {
                    let range = &saved[range];
                    (*range.iter().min().unwrap(), *range.iter().max().unwrap())
                };
                for (first, then) in [(0..700, 700..1000), (700..1000, 1000..1280), (1280..1580, 1600..1601)]
                {
                    let ((least, most), (least_then, most_then)) = (bounds(first), bounds(then));
                    assert!(least >= most_then && most <= least_then + 1, "seed {seed}");
                }
                let pair = bounds(30 * 64..31 * 64);
                assert_eq!((pair.0, bounds(35 * 64..36 * 64)), (pair.1, pair), "seed {seed}");
            }
            is_over.store(true, Ordering::Relaxed);
        });
    }
}

/// The length is from the same instant: all elements below it are in the file.
#[test]
fn the_length_is_of_the_same_instant() {
    for seed in 0..backend_api::wrap::random_cases(6).into() {
        let builder =
            VirtualArray::<u64>::builder(THREADS).max_len(1 << 20).devices([devices(seed)[0].clone()]);
        let array = &builder.page_len(16).cache_bytes(4 << 10).build().unwrap();
        let (is_over, files) = (&AtomicBool::new(false), Files::new(1));
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                scope.spawn(move || {
                    for count in 1..100_000_u64 {
                        array.push((thread as u64) << 32 | count).unwrap();
                        array.set(thread, count).unwrap();
                        if is_over.load(Ordering::Relaxed) {
                            break;
                        }
                    }
                });
            }
            for _ in 0..10 {
                array.save_with(&files.0[0], POINT_IN_TIME, goes_on).unwrap();
                let saved = VirtualArray::<u64>::open(&files.0[0]).unwrap().to_vec(..).unwrap();
                let mut counts = [0; THREADS];
                for value in &saved[THREADS..] {
                    let (thread, count) = ((value >> 32) as usize, value & 0xffff_ffff);
                    assert_eq!(count, counts[thread] + 1, "seed {seed}");
                    counts[thread] = count;
                }
                for (at_save, pushed) in saved[..THREADS].iter().zip(counts) {
                    assert!(
                        *at_save <= pushed && pushed <= at_save + 1,
                        "seed {seed}: {at_save} of {pushed}"
                    );
                }
            }
            is_over.store(true, Ordering::Relaxed);
        });
    }
}

#[test]
fn boxes_and_rows_are_saved_as_of_one_instant() {
    let files = Files::new(2);
    let image = NdArray::<u64, 2>::builder([40, 50]).tile([8, 8]).build().unwrap();
    let rows = RaggedArray::<u64>::builder().elements(|elements| elements.page_len(8));
    let rows = rows.from_rows([vec![0; 50], vec![0; 3], vec![0; 70]]).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for step in 1.. {
                image.set([0, 0], step).unwrap();
                image.set([39, 49], step).unwrap();
                rows.row(0).unwrap().set(3, step).unwrap();
                rows.row(2).unwrap().set(69, step).unwrap();
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        for _ in 0..10 {
            image.save_with(&files.0[0], POINT_IN_TIME, goes_on).unwrap();
            rows.save_with(&files.0[1], POINT_IN_TIME, goes_on).unwrap();
            let saved = NdArray::<u64, 2>::builder([0, 0]).open([&files.0[0]]).unwrap();
            let (first, last) = (saved.get([0, 0]).unwrap(), saved.get([39, 49]).unwrap());
            assert!(last <= first && first <= last + 1);
            let saved = RaggedArray::<u64>::open(&files.0[1]).unwrap().to_vecs().unwrap();
            assert_eq!(saved.iter().map(Vec::len).collect::<Vec<_>>(), [50, 3, 70]);
            assert!(saved[2][69] <= saved[0][3] && saved[0][3] <= saved[2][69] + 1);
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

/// A cancelled or failed save leaves the old file, and an array that accepts writes.
#[test]
fn a_snapshot_that_fails_leaves_the_array_as_it_was() {
    let files = Files::new(1);
    let path = &files.0[0];
    let device = Arc::new(Faulty::new(host()));
    let builder = VirtualArray::<u64>::builder(1 << 20).devices([device.clone()]).page_len(1 << 10);
    let array = builder.cache_bytes(64 << 10).build().unwrap();
    array.fill(.., 7).unwrap();
    array.save(path).unwrap();
    for round in 0..6 {
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                // Repeat work that a failing device has refused, after its recovery.
                for at in (0..array.len()).step_by(777) {
                    while array.set(at, round).is_err() {
                        std::thread::yield_now();
                    }
                }
            });
            let outcome = match round % 3 {
                0 => array.save_with(path, POINT_IN_TIME, |_| ControlFlow::Break(())),
                1 => array.save_with(path.join("nowhere"), POINT_IN_TIME, goes_on),
                _ => {
                    device.inject(
                        Fault::new(Operation::Submit, DeviceErrorKind::CopyFailed).on_call(3 + round),
                    );
                    array.save_with(path, POINT_IN_TIME, goes_on)
                }
            };
            device.clear();
            assert!(outcome.is_err() || round % 3 == 2);
            writer.join().unwrap();
        });
        assert_eq!(array.get(777 * 5).unwrap(), round);
        let saved = VirtualArray::<u64>::open(path).unwrap();
        assert_eq!((saved.len(), saved.get(1).unwrap()), (1 << 20, 7));
    }
    // The callback runs without locks, so it may access the array.
    array
        .save_with(path, POINT_IN_TIME, |_| {
            array.fill(.., 9).unwrap();
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(VirtualArray::<u64>::open(path).unwrap().get(1).unwrap(), 7);
    let guard = array.page_mut(2).unwrap();
    let error = array.save_with(path, POINT_IN_TIME, goes_on).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::WouldDeadlock { page: 2 });
    drop(guard);
}
