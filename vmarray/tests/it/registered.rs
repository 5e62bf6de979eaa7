//! Tests of lists of indices and values in memory that is registered with the devices: copies go directly
//! between this memory and the device, in any state of the cache.

use std::sync::Arc;
use vmarray::prelude::*;

use crate::common::{Numbers, Shape, as_any, host, moved, numbered, together};
use vmarray::device::ErrorKind as DeviceErrorKind;
use vmarray::host::{HostDevice, SimulatedDevice};
use vmarray::{ErrorKind, VirtualArray, access::Registered};

/// Registers values; none if the device cannot, because OpenCL has no call for it.
fn registered<T: Element>(array: &VirtualArray<T>, values: Vec<T>) -> Option<Registered<T>> {
    match array.register(values) {
        Err(error)
            if error.device_error().map(|error| error.kind()) == Some(DeviceErrorKind::Unsupported) =>
        {
            None
        }
        registered => Some(registered.unwrap()),
    }
}

/// Puts random pages of an array into each state: in a frame, dirty, only at home, and empty.
fn stir<T: Element>(array: &VirtualArray<T>, model: &mut [T], random: &mut Numbers, of: fn(u64) -> T) {
    for page in 0..array.page_count() {
        let range = array.page_range(page);
        match random.below(4) {
            0 => {}
            1 => {
                for index in range.clone() {
                    model[index] = of(random.next());
                }
                array.write(range.start, &model[range.clone()]).unwrap();
                array.evict(range).unwrap();
            }
            2 => drop(array.get(range.start).unwrap()),
            _ => {
                let index = range.start + random.below(range.len());
                model[index] = of(random.next());
                array.set(index, model[index]).unwrap();
            }
        }
    }
}

fn lists_are_moved<T: Element + PartialEq + std::fmt::Debug>(of: fn(u64) -> T) {
    for seed in 0..12 {
        let mut random = Numbers::new(seed);
        let shape = Shape::any(&mut random, 40, 6);
        let array = shape.build::<T>(700);
        let mut model = vec![T::zeroed(); array.len()];
        let Some(mut values) = registered(&array, vec![of(9); 900]) else { return };
        for _ in 0..4 {
            stir(&array, &mut model, &mut random, of);
            let len = random.below(800);
            let first = random.below(values.len() - len);
            let indices: Vec<usize> = (0..len).map(|_| random.below(array.len())).collect();
            let (before, after) = (values[..first].to_vec(), values[first + len..].to_vec());
            array.gather_into(&indices, &mut values[first..first + len]).unwrap();
            for (&index, value) in indices.iter().zip(&values[first..]) {
                assert_eq!(*value, model[index], "element {index}, seed {seed}, {shape:?}");
            }
            assert!(values[..first] == before[..] && values[first + len..] == after[..], "nothing else");

            values[first..first + len].fill_with(|| of(random.next()));
            let sent = values[first..first + len].to_vec();
            array.scatter(&indices, &values[first..first + len]).unwrap();
            indices.iter().zip(&sent).for_each(|(&index, &value)| model[index] = value);
            assert_eq!(values[first..first + len], sent[..], "values are only read");
            assert_eq!(array.to_vec(..).unwrap(), model, "seed {seed}, {shape:?}");
        }
    }
}

#[test]
fn lists_of_bytes_are_moved_in_place() {
    lists_are_moved(|x| x as u8);
}

#[test]
fn lists_of_odd_elements_are_moved_in_place() {
    lists_are_moved(|x| [x as u8, 7, (x >> 8) as u8]);
}

#[test]
fn lists_of_words_are_moved_in_place() {
    lists_are_moved(|x| x);
}

#[test]
fn lists_of_rows_are_moved_in_place() {
    lists_are_moved(|x| [x; 64]);
}

#[test]
fn long_lists_are_moved_by_several_threads_in_place() {
    for channels in [vec![1], vec![2, 1]] {
        let shape = Shape { page_len: 64, channels, frames: 20, read_ahead: false, ..Shape::default() };
        let array = shape.build::<[u64; 4]>(100_000);
        let mut model: Vec<[u64; 4]> = (0..100_000).map(|x| [x; 4]).collect();
        array.write(0, &model).unwrap();
        array.evict(..).unwrap();
        (0..30).for_each(|i| array.set(i * 3000, [1; 4]).unwrap());
        (0..30).for_each(|i| model[i * 3000] = [1; 4]);
        let mut random = Numbers::new(5);
        let indices: Vec<usize> = (0..200_000).map(|_| random.below(100_000)).collect();
        let Some(mut values) = registered(&array, vec![[0; 4]; indices.len()]) else { return };
        array.gather_into(&indices, &mut values).unwrap();
        assert!(indices.iter().zip(values.iter()).all(|(&index, value)| *value == model[index]));
        // The devices read this list directly.
        values.fill([0; 4]);
        array.set(indices[7], [2; 4]).unwrap();
        model[indices[7]] = [2; 4];
        let indices = array.register(indices).unwrap();
        array.gather_into(&indices, &mut values).unwrap();
        assert!(indices.iter().zip(values.iter()).all(|(&index, value)| *value == model[index]));
        values.iter_mut().enumerate().for_each(|(k, value)| *value = [k as u64; 4]);
        array.scatter(&indices, &values).unwrap();
        indices.iter().zip(values.iter()).for_each(|(&index, &value)| model[index] = value);
        assert!(array.to_vec(..).unwrap() == model, "the last of equal indices wins");
    }
}

/// The same bytes as unregistered lists, but one list with skipped entries instead of two copies of the
/// values.
#[test]
fn the_same_bytes_cross_the_bus() {
    let array = numbered();
    let Some(mut values) = registered(&array, vec![0; 4]) else { return };
    array.gather_into(&[159, 3, 3, 80], &mut values).unwrap();
    assert_eq!(values[..], [159, 3, 3, 80]);
    assert_eq!(moved(&array), (4 * 8, 4 * 4));
    assert_eq!(array.stats().total().submissions, 1);
}

#[test]
fn arrays_on_other_devices_do_not_mind() {
    let (here, there) = (numbered(), numbered());
    let Some(mut values) = registered(&here, vec![0; 3]) else { return };
    there.gather_into(&[1, 2, 3], &mut values).unwrap();
    assert_eq!(values.into_vec(), [1, 2, 3]);
    let Some(values) = registered(&here, Vec::new()) else { return };
    here.scatter(&[], &values).unwrap();
}

#[test]
fn memory_is_forgotten_when_it_is_dropped_or_given_back() {
    let array = numbered();
    for _ in 0..3 {
        let Some(mut values) = registered(&array, vec![0; 160]) else { return };
        array.gather_into(&[5; 160], &mut values).unwrap();
        let mut plain = values.into_vec();
        array.gather_into(&[7; 160], &mut plain).unwrap();
        assert!(plain.iter().all(|value| *value == 7));
        drop(registered(&array, plain));
    }
}

#[test]
fn memory_that_cannot_be_locked_is_refused_and_goes_on_as_it_was() {
    let device = HostDevice::builder().bytes(1 << 20).pinned_max_bytes(4096).build().unwrap();
    let array = Shape::one(16, 1).describe::<u32, _>(160, vec![Arc::new(device)]);
    let array = array.host_memory(vmarray::device::HostMemory::Pageable).build().unwrap();
    let error = array.register(vec![0; 1 << 16]).unwrap_err();
    let kind = error.device_error().map(|error| error.kind());
    assert_eq!(kind, Some(DeviceErrorKind::PinRefused), "{error}");
}

#[test]
fn a_failing_device_leaves_no_values_behind_as_if_they_were_right() {
    let device = Arc::new(SimulatedDevice::builder(3).build());
    let array = Shape::one(16, 2).describe::<u32, _>(160, vec![as_any(&device)]).build().unwrap();
    array.write(0, &(0..160).collect::<Vec<u32>>()).unwrap();
    array.evict(..).unwrap();
    let Some(mut values) = registered(&array, vec![0; 8]) else { return };
    device.lose();
    let error = array.gather_into(&[1, 20, 40, 60, 80, 100, 120, 140], &mut values).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Device(_)), "{error}");
}

/// The list sees concurrent writes completely, or not at all.
#[test]
fn elements_that_others_write_meanwhile_are_whole() {
    let shape = Shape { page_len: 8, channels: vec![1], frames: 4, ..Shape::default() };
    let array = shape.describe::<[u64; 8], _>(200, vec![Arc::new(host())]).build().unwrap();
    array.fill(.., [0; 8]).unwrap();
    together(3, |thread| {
        let mut random = Numbers::new(thread as u64);
        if thread == 0 {
            let Some(mut values) = registered(&array, vec![[0; 8]; 300]) else { return };
            for _ in 0..200 {
                let indices: Vec<usize> = (0..300).map(|_| random.below(200)).collect();
                array.gather_into(&indices, &mut values).unwrap();
                assert!(values.iter().all(|value| value.iter().all(|word| *word == value[0])), "torn");
            }
        } else {
            for round in 0..3000 {
                array.set(random.below(200), [round; 8]).unwrap();
            }
        }
    });
}
