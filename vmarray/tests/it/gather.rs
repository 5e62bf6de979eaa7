//! Tests of lists of indices: gathers and scatters have the results of single accesses, and copy no more than
//! necessary.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use vmarray::prelude::*;

use crate::common::{Numbers, POLICIES, Shape, moved, numbered, together};
use vmarray::device::ErrorKind as DeviceErrorKind;
use vmarray::device::wrap::{Fault, Operation};
use vmarray::host::SimulatedDevice;
use vmarray::{ErrorKind, Field, VirtualArray};
use vmarray_conformance::wrap::{Counting, Faulty};

#[test]
fn only_listed_elements_are_copied_and_no_frame_is_taken() {
    let array = numbered();
    assert_eq!(array.gather(&[159, 3, 3, 80]).unwrap(), [159, 3, 3, 80]);
    assert_eq!(moved(&array), (4 * 8, 4 * 4));
    let total = array.stats().total();
    assert_eq!((total.misses, total.submissions, array.stats().hits), (0, 1, Some(0)));
    array.reset_stats();
    array.scatter(&[1, 100, 33], &[7, 8, 9]).unwrap();
    assert_eq!(moved(&array), (3 * (8 + 4), 0));
    assert_eq!((array.stats().total().misses, array.stats().total().submissions), (0, 1));
    assert_eq!(array.gather(&[33, 1, 100, 2]).unwrap(), [9, 7, 8, 2]);
}

#[test]
fn elements_in_ram_are_copied_by_no_device() {
    let array = numbered();
    array.set(0, 5).unwrap();
    array.get(40).unwrap();
    array.reset_stats();
    assert_eq!(array.gather(&[47, 0, 15, 32]).unwrap(), [47, 5, 15, 32]);
    array.scatter(&[40, 1, 40], &[1, 2, 3]).unwrap();
    assert_eq!(moved(&array), (0, 0));
    assert_eq!((array.stats().hits, array.stats().total().submissions), (Some(6), 0));
    assert_eq!((array.get(40).unwrap(), array.get(1).unwrap()), (3, 2));
    // In this mixed list, one of three pages is not resident.
    array.reset_stats();
    assert_eq!(array.gather(&[0, 100, 40]).unwrap(), [5, 100, 3]);
    assert_eq!(moved(&array), (8, 4));
}

#[test]
fn pages_without_contents_cost_nothing_to_gather_and_their_zeroes_to_scatter() {
    let shape = Shape { page_len: 16, channels: vec![2], frames: 4, read_ahead: false, ..Shape::default() };
    let array = shape.build::<u32>(16 * 100);
    assert_eq!(array.gather(&[0, 1599, 77]).unwrap(), [0; 3]);
    assert_eq!((moved(&array), array.stats().total().submissions), ((0, 0), 0));
    array.scatter(&[5, 1599, 800], &[1, 2, 3]).unwrap();
    assert_eq!(moved(&array), (3 * 12, 0));
    let wanted: Vec<u32> = (0..1600)
        .map(|i| match i {
            5 => 1,
            1599 => 2,
            800 => 3,
            _ => 0,
        })
        .collect();
    assert_eq!(array.to_vec(..).unwrap(), wanted);
    assert_eq!(array.count(.., Field::whole(), &0).unwrap(), 1597);
}

#[test]
fn a_scatter_to_a_new_array_fills_gaps_with_few_calls() {
    let device = Arc::new(Counting::new(crate::common::host()));
    let array = Shape::one(16, 4).describe::<u32, _>(16 * 1000, vec![device]).build().unwrap();
    let indices: Vec<usize> = (0..1000).step_by(20).map(|page| 16 * page + 3).collect();
    array.scatter(&indices, &vec![7; indices.len()]).unwrap();
    // The call submits one fill and one kernel.
    assert_eq!(array.stats().total().submissions, 2);
    assert_eq!(array.find(Field::whole(), &7).unwrap(), indices);
    assert_eq!(array.get(16 * 500).unwrap(), 0);
}

#[test]
fn long_lists_are_cut_into_stages_of_bounded_length() {
    let device = Arc::new(Counting::new(crate::common::host()));
    let array = Shape::one(4, 4).describe::<[u64; 512], _>(400, vec![device.clone()]).build().unwrap();
    array.fill(.., [7; 512]).unwrap();
    array.reset_stats();
    let indices: Vec<usize> = (0..4000).map(|k| k * 7 % 400).collect();
    assert!(array.gather(&indices).unwrap().iter().all(|element| *element == [7; 512]));
    // The values have 16 MB. A stage takes 2.5 MB, or less with several threads.
    let submissions = array.stats().total().submissions;
    assert!((7..=28).contains(&submissions), "{submissions}");
    array.scatter(&indices[..400], &vec![[9; 512]; 400]).unwrap();
    assert_eq!(array.count(.., Field::whole(), &[9; 512]).unwrap(), 400);
}

#[test]
fn the_last_of_equal_indices_wins_over_segments_of_several_threads() {
    for (channels, elements) in [(vec![1], 29_989), (vec![2, 1], 29_989), (vec![2], 997)] {
        let shape = Shape { page_len: 16, channels, frames: 8, read_ahead: false, ..Shape::default() };
        let array = shape.build::<[u64; 5]>(30_000);
        // The values have 12 MB. Every element repeats in each later segment, in some rounds many times.
        let len = 300_000;
        let indices: Vec<usize> = (0..len).map(|k| k * 7919 % elements).collect();
        let values: Vec<[u64; 5]> = (0..len as u64).map(|k| [k; 5]).collect();
        let mut model = vec![[0; 5]; array.len()];
        indices.iter().zip(&values).for_each(|(&index, &value)| model[index] = value);
        for resident in [false, true] {
            array.fill(.., [0; 5]).unwrap();
            array.evict(..).unwrap();
            if resident {
                (0..1000).step_by(50).for_each(|i| assert_eq!(array.get(i).unwrap(), [0; 5]));
            }
            array.scatter(&indices, &values).unwrap();
            assert_eq!(array.to_vec(..).unwrap(), model);
            let gathered = array.gather(&indices).unwrap();
            assert!(indices.iter().zip(gathered).all(|(&index, value)| value == model[index]));
        }
        // An index out of bounds prevents all writes.
        let mut outside = indices.clone();
        outside[200_000] = 30_000;
        let error = array.scatter(&outside, &vec![[9; 5]; len]).unwrap_err();
        let expected = ErrorKind::ListedIndexOutside { position: 200_000, index: 30_000, len: 30_000 };
        assert_eq!(*error.kind(), expected);
        assert_eq!(*array.gather(&outside).unwrap_err().kind(), expected);
        assert_eq!(array.to_vec(..).unwrap(), model);
    }
}

#[test]
fn stages_are_used_again_and_again() {
    let array = Shape::one(4, 4).build::<[u64; 512]>(4000);
    // The gather needs 16 stages, each time in a new thread.
    let indices: Vec<usize> = (0..8000).map(|k| k * 7 % 4000).collect();
    let values: Vec<[u64; 512]> = (0..8000).map(|k| [k; 512]).collect();
    array.scatter(&indices, &values).unwrap();
    let gathered = array.gather(&indices).unwrap();
    assert!(gathered.iter().enumerate().all(|(k, value)| *value == [4000 + k as u64 % 4000; 512]));
}

#[test]
fn iterators_take_lists_of_any_length() {
    let shape = Shape { page_len: 64, channels: vec![2], frames: 8, read_ahead: false, ..Shape::default() };
    let array = shape.build::<[u64; 128]>(10_000);
    let element = |i: usize| [i as u64; 128];
    assert_eq!(array.scatter_iter((0..10_000).map(|i| (i, element(i)))).unwrap(), 10_000);
    // The indices fill more than one chunk.
    let indices = || (0..70_000).map(|k| k * 31 % 10_000);
    let mut gathered = array.gather_iter(indices());
    for i in indices().take(5) {
        assert_eq!(gathered.next().unwrap().unwrap(), element(i));
    }
    let mut expected = indices().skip(5);
    while let Some((indices, values)) = gathered.next_chunk().unwrap() {
        assert_eq!(indices.len(), values.len());
        for (&i, value) in indices.iter().zip(values) {
            assert_eq!(Some(i), expected.next());
            assert_eq!(*value, element(i));
        }
    }
    assert_eq!(expected.next(), None);
    assert!(gathered.next().is_none());
    assert_eq!(array.gather_iter([]).count(), 0);
}

#[test]
fn an_iterator_of_the_program_that_panics_leaves_no_indices_without_values() {
    let array = numbered();
    let mut asked = 0;
    // The indices fill more than two chunks; a panic interrupts the second.
    let mut gathered = array.gather_iter((0..10_000_000).map(|k| {
        asked += 1;
        assert!(asked != 3_000_000, "interrupted");
        k % 160
    }));
    let first = gathered.next_chunk().unwrap().unwrap().0.len();
    assert!(first < 3_000_000 && 3_000_000 < 2 * first);
    let next = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| gathered.next()));
    assert!(next.is_err());
    // The indices that the iterator yielded before the panic are lost.
    let (indices, values) = gathered.next_chunk().unwrap().unwrap();
    assert_eq!(indices[0], 3_000_000 % 160);
    assert!(indices.iter().zip(values).all(|(&i, &value)| value == array.get(i).unwrap()));
}

#[test]
fn errors_name_place_and_index_and_come_before_anything_is_written() {
    let array = numbered();
    let error = array.gather(&[3, 159, 160, 500]).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::ListedIndexOutside { position: 2, index: 160, len: 160 });
    let text = "index 160 at position 2 of the list is outside of an array of 160 elements; ";
    assert!(error.to_string().starts_with(text), "{error}");
    let mut values = [9; 2];
    assert!(array.gather_into(&[1, usize::MAX], &mut values).is_err());
    assert_eq!(values, [9; 2]);
    assert!(Shape::default().build::<u32>(0).gather(&[0]).is_err());
    let error = array.gather_into(&[1], &mut values).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::LengthMismatch { of: "the slice of values", expected: 1, got: 2 });
    assert!(array.scatter(&[0, 1, 160], &[7; 3]).is_err());
    assert!(array.scatter(&[0, 1], &[7; 3]).is_err());
    assert_eq!((moved(&array), array.stats().hits), ((0, 0), Some(0)));
    assert_eq!(array.gather(&[0, 1]).unwrap(), [0, 1]);
    // Several threads check a long list; the error is that of the first invalid entry. The error of a
    // sequence has the position in the whole sequence.
    let mut long = vec![0; 5_000_000];
    (long[4_200_000], long[1_100_001], long[1_100_002]) = (500, 161, 162);
    let error = array.gather(&long).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::ListedIndexOutside { position: 1_100_001, index: 161, len: 160 });
    let mut gathered = array.gather_iter((0..6_000_000).map(|k| if k == 5_500_000 { 160 } else { 3 }));
    let error = gathered.by_ref().find_map(Result::err).unwrap();
    assert_eq!(*error.kind(), ErrorKind::ListedIndexOutside { position: 5_500_000, index: 160, len: 160 });
    assert!(gathered.next().is_none());
    let error = array.scatter_iter((0..6_000_000).map(|k| (k % 161, 0))).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::ListedIndexOutside { position: 160, index: 160, len: 160 });
}

/// Threads write and read their own elements, of pages that all threads share, by every method: no write is
/// lost.
#[test]
fn writes_of_threads_are_seen_at_once_and_not_lost() {
    const THREADS: usize = 4;
    for (seed, policy) in (0..12).zip(POLICIES.into_iter().cycle()) {
        let frames = 1 + seed as usize % 4;
        let shape =
            Shape { page_len: 6, channels: vec![1 + seed as u32 % 2], frames, policy, ..Shape::default() };
        let array = shape.build::<[u32; 3]>(240);
        together(THREADS, |thread| own_elements(&array, thread, THREADS, seed * 10 + thread as u64));
    }
}

/// Operations on every n-th element, which only the calling thread uses.
pub fn own_elements(array: &VirtualArray<[u32; 3]>, thread: usize, threads: usize, seed: u64) {
    let mut numbers = Numbers::new(seed);
    let own = array.len() / threads;
    let mut model = vec![[0_u32; 3]; own];
    let index = |k: usize| k * threads + thread;
    for n in 0..300_u32 {
        let ks: Vec<usize> = (0..numbers.below(20)).map(|_| numbers.below(own)).collect();
        let indices: Vec<usize> = ks.iter().map(|&k| index(k)).collect();
        match numbers.below(9) {
            0..3 => {
                let values: Vec<[u32; 3]> = (0..ks.len() as u32).map(|i| [1000 * n + i; 3]).collect();
                array.scatter(&indices, &values).unwrap();
                ks.iter().zip(values).for_each(|(&k, value)| model[k] = value);
            }
            3..5 => {
                let wanted: Vec<[u32; 3]> = ks.iter().map(|&k| model[k]).collect();
                assert_eq!(array.gather(&indices).unwrap(), wanted);
            }
            5 => {
                for &k in &ks {
                    model[k] = [n; 3];
                    array.set(index(k), model[k]).unwrap();
                }
            }
            6 => {
                for &k in &ks {
                    model[k] = [n; 3];
                    array.set_uncached(index(k), model[k]).unwrap();
                    assert_eq!(array.get(index(k)).unwrap(), model[k]);
                }
            }
            7 => {
                for &k in &ks {
                    model[k] = [n + 1; 3];
                    let page_len = array.page_len();
                    array.page_mut(index(k) / page_len).unwrap()[index(k) % page_len] = model[k];
                    assert_eq!(array.get_uncached(index(k)).unwrap(), model[k]);
                }
            }
            _ => {
                let start = numbers.below(array.len());
                array.evict(start..array.len()).unwrap();
                array.prefetch(..start).unwrap();
            }
        }
    }
    let all: Vec<usize> = (0..own).map(index).collect();
    assert_eq!(array.gather(&all).unwrap(), model);
    assert!(all.iter().zip(&model).all(|(&i, wanted)| array.get(i).unwrap() == *wanted));
}

type FaultyHost = Faulty<vmarray::host::HostDevice>;

/// Two devices with injected failures; 40 pages of 4 `u32`, all 5, and an empty cache.
fn faulty() -> ([Arc<FaultyHost>; 2], VirtualArray<u32>) {
    let devices = [(); 2].map(|()| Arc::new(Faulty::new(crate::common::host())));
    let shape = Shape { page_len: 4, channels: vec![1, 1], frames: 2, read_ahead: false, ..Shape::default() };
    let array = shape.describe::<u32, _>(160, devices.to_vec()).build().unwrap();
    array.fill(.., 5).unwrap();
    (devices, array)
}

/// Lists of several threads, with each element many times, while pages come and go.
#[test]
fn of_equal_indices_the_last_wins_also_after_a_failed_scatter() {
    let faults = [(1, false), (4, true), (2, true), (3, false), (5, true)];
    for (call, later) in faults.into_iter().take(backend_api::wrap::random_cases(5) as usize) {
        let devices = [(); 2].map(|()| Arc::new(Faulty::new(crate::common::host())));
        let shape =
            Shape { page_len: 16, channels: vec![1, 1], frames: 40, read_ahead: false, ..Shape::default() };
        let array = shape.describe::<[u64; 5], _>(2000, devices.to_vec()).build().unwrap();
        let len = 300_000;
        let indices: Vec<usize> = (0..len).map(|k| k * 7919 % 1999).collect();
        let values: Vec<[u64; 5]> = (1..=len as u64).map(|k| [k; 5]).collect();
        let mut model = vec![[0; 5]; array.len()];
        indices.iter().zip(&values).for_each(|(&index, &value)| model[index] = value);
        let fault = Fault::new(Operation::Scatter, DeviceErrorKind::KernelFailed).on_call(call);
        devices[1].inject(if later { fault.reported_later() } else { fault });
        let writing = AtomicBool::new(true);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut numbers = Numbers::new(call);
                while writing.load(Ordering::Relaxed) {
                    array.get(numbers.below(2000)).unwrap();
                    let start = numbers.below(1900);
                    array.evict(start..start + 100).unwrap();
                }
            });
            array.scatter(&indices, &values).unwrap();
            writing.store(false, Ordering::Relaxed);
        });
        assert_eq!(array.to_vec(..).unwrap(), model, "{call}");
        assert_eq!(devices[1].injected(), 1);
    }
}

#[test]
fn a_failed_gather_is_reported_and_can_be_repeated() {
    for later in [false, true] {
        let (devices, array) = faulty();
        let fault = || Fault::new(Operation::Gather, DeviceErrorKind::KernelFailed).on_call(1);
        // Either device may get the list.
        devices.iter().for_each(|of| of.inject(if later { fault().reported_later() } else { fault() }));
        let indices: Vec<usize> = (0..160).collect();
        let error = array.gather(&indices).unwrap_err();
        assert_eq!(error.device_error().unwrap().kind(), DeviceErrorKind::KernelFailed);
        // The next list may go to the other device, so do not check the result.
        let _ = array.gather(&indices);
        assert_eq!(array.gather(&indices).unwrap(), [5; 160]);
    }
}

#[test]
fn a_lost_device_takes_only_its_own_elements() {
    let (devices, array) = faulty();
    array.set(0, 6).unwrap();
    devices[0].lose();
    assert!(array.gather(&[4, 8]).is_err());
    assert!(array.scatter(&[4, 8], &[1, 2]).is_err());
    // Elements on the other device and in RAM are still available.
    assert_eq!(array.gather(&[12, 0, 5]).unwrap(), [5, 6, 5]);
    array.scatter(&[12, 0, 13], &[7, 8, 9]).unwrap();
    assert_eq!(array.gather(&[13, 0, 12]).unwrap(), [9, 8, 7]);
}

#[test]
fn a_device_lost_in_the_middle_of_a_list_is_reported() {
    for lost_at in 3..40 {
        let loss = Fault::anywhere(DeviceErrorKind::Lost).on_call(lost_at + 1).reported_later();
        let device = Arc::new(SimulatedDevice::builder(lost_at).bytes(64 << 20).fault(loss).build());
        let shape =
            Shape { page_len: 8, channels: vec![2], frames: 4, read_ahead: false, ..Shape::default() };
        let Ok(array) = shape.describe::<[u64; 512], _>(2000, vec![device.clone()]).build() else { continue };
        let indices: Vec<usize> = (0..2000).map(|k| k * 7 % 2000).collect();
        let values: Vec<[u64; 512]> = indices.iter().map(|&i| [i as u64; 512]).collect();
        match array.scatter(&indices, &values) {
            Ok(()) => {}
            Err(error) => {
                assert_eq!(error.device_error().unwrap().kind(), DeviceErrorKind::Lost);
                continue;
            }
        }
        match array.gather(&indices) {
            Ok(gathered) => assert_eq!(gathered, values),
            Err(error) => assert_eq!(error.device_error().unwrap().kind(), DeviceErrorKind::Lost),
        }
    }
}

/// Gathers see all writes, although loads, write-backs and kernels of other threads fail meanwhile.
#[test]
fn failing_write_backs_of_others_do_not_show() {
    for seed in 0..backend_api::wrap::random_cases(40).into() {
        let fails = Fault::anywhere(DeviceErrorKind::CopyFailed).with_chance(0.05, seed).reported_later();
        let refused = Fault::anywhere(DeviceErrorKind::Driver).with_chance(0.02, !seed);
        let device = SimulatedDevice::builder(seed).bytes(1 << 20).fault(fails).fault(refused).build();
        let Ok(array) = Shape::one(3, 2).describe::<u64, _>(60, vec![Arc::new(device)]).build() else {
            continue;
        };
        together(3, |thread| {
            let mut numbers = Numbers::new(seed * 3 + thread as u64);
            let mut model = [0; 20];
            for n in 1..150 {
                let k = numbers.below(20);
                if array.set(3 * k + thread, n).is_ok() {
                    model[k] = n;
                }
                let ks: Vec<usize> = (0..10).map(|_| numbers.below(20)).collect();
                let indices: Vec<usize> = ks.iter().map(|k| 3 * k + thread).collect();
                if let Ok(values) = array.gather(&indices) {
                    let known: Vec<u64> = ks.iter().map(|&k| model[k]).collect();
                    assert_eq!(values, known, "seed {seed}");
                }
            }
        });
    }
}
