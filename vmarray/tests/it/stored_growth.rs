//! Tests of growing and shrinking arrays in files: synced elements and lengths persist.

use std::sync::atomic::{AtomicUsize, Ordering};

use vmarray::device::ErrorKind as DeviceErrorKind;
use vmarray::{ErrorKind, Placement, VirtualArray, prelude::*};

use crate::common::{Numbers, together};
use crate::growth::{MOST, step};
use crate::stored::{Files, of_device};

fn is_limit(error: &vmarray::Error) -> bool {
    matches!(error.kind(), ErrorKind::LengthLimit { .. })
}

/// Random programs that change the length in every way: the array equals the vector, also after reopening,
/// and copies of the files after a sync have its state.
#[test]
fn an_array_in_files_that_grows_is_a_vector() {
    for seed in 0..backend_api::wrap::random_cases(40).into() {
        let mut random = Numbers::new(seed);
        let files = Files::new(1 + random.below(3));
        let (first, page_len) = (random.below(50), 1 + random.below(40));
        let cache = 1 << (8 + random.below(6));
        let builder = |len| VirtualArray::<[u16; 3]>::builder(len).page_len(page_len).cache_bytes(cache);
        let ratios = Placement::Ratios((1..=files.0.len() as u32).collect());
        let placement = if random.below(2) == 0 { Placement::Equal } else { ratios };
        let mut array = builder(first).placement(placement).create(&files.0).unwrap();
        let mut vec = vec![[0; 3]; first];
        // Copies of the files at the last sync, with the vector at that time.
        let mut synced = (files.copies(), vec.clone());
        for number in 0..60 {
            match random.below(10) {
                0 => {
                    array.sync().unwrap();
                    synced = (files.copies(), vec.clone());
                }
                1 => {
                    drop(array);
                    array = builder(0).open(&files.0).unwrap();
                    assert_eq!(array.to_vec(..).unwrap(), vec, "seed {seed}, step {number}");
                }
                2 => {
                    let (copies, vec) = &synced;
                    let array = builder(0).open_read_only(&copies.0).unwrap();
                    assert_eq!((array.len(), array.max_len()), (vec.len(), vec.len()), "seed {seed}");
                    assert_eq!(array.to_vec(..).unwrap(), *vec, "seed {seed}, step {number}");
                }
                _ => step(&mut array, &mut vec, &mut random).unwrap(),
            }
            assert_eq!(array.len(), vec.len(), "seed {seed}, step {number}");
            let seven = Field::<[u16; 3], [u16; 3]>::whole().nth::<2>();
            let expected = vec.iter().filter(|value| value[2] == 7).count();
            assert_eq!(array.count(.., seven, &7).unwrap(), expected, "seed {seed}, step {number}");
        }
        assert!(array.capacity() >= vec.len() && array.max_len() > MOST);
    }
}

/// Threads push and sync at the same time: after a sync, the file has all earlier pushes of its thread.
#[test]
fn threads_push_and_sync() {
    let files = Files::new(2);
    let array = VirtualArray::<u64>::builder(0).page_len(64).cache_bytes(16 << 10).create(&files.0).unwrap();
    // Number of durable elements of each thread.
    let synced: Vec<AtomicUsize> = (0..4).map(|_| AtomicUsize::new(0)).collect();
    together(4, |thread| {
        for number in 0..1500 {
            array.push((thread << 32 | number) as u64).unwrap();
            if number % 100 == 99 {
                array.sync().unwrap();
                synced[thread].store(number + 1, Ordering::SeqCst);
            }
        }
    });
    let copies = files.copies();
    let copy = VirtualArray::<u64>::builder(0).open_read_only(&copies.0).unwrap();
    let found = copy.to_vec(..).unwrap();
    for (thread, synced) in synced.iter().enumerate() {
        let own = found.iter().filter(|value| **value >> 32 == thread as u64).map(|value| *value as u32);
        let own: Vec<u32> = own.collect();
        assert!(own.len() >= synced.load(Ordering::SeqCst));
        assert!(own.iter().copied().eq(0..own.len() as u32), "in order, none missing");
    }
    assert_eq!(found.len(), 6000);
}

/// Zeroes that were never written and truncated elements take no space, and read as zeroes later.
#[test]
fn truncated_rows_do_not_come_back() {
    let files = Files::new(1);
    let path = &files.0[0];
    let mut array = VirtualArray::<u64>::create(path, 0).unwrap();
    array.reserve(1 << 30).unwrap();
    array.sync().unwrap();
    let room = std::fs::metadata(path).unwrap().len();
    assert!(room < 8 << 20, "{room} bytes for nothing");
    array.extend_from_slice(&vec![7; 100_000]).unwrap();
    array.sync().unwrap();
    array.truncate(10).unwrap();
    array.sync().unwrap();
    array.resize(1000, 1).unwrap();
    drop(array);
    let mut array = VirtualArray::<u64>::open(path).unwrap();
    assert_eq!(array.sum(.., Field::whole()).unwrap(), 10 * 7 + 990);
    // These elements were written back but never synced, so the file does not have them.
    array.extend_from_slice(&vec![9; 50_000]).unwrap();
    array.flush(..).unwrap();
    let copies = files.copies();
    let copy = VirtualArray::<u64>::open(&copies.0[0]).unwrap();
    assert_eq!((copy.len(), copy.sum(.., Field::whole()).unwrap()), (1000, 10 * 7 + 990));
    assert_eq!(copy.push(5).unwrap(), 1000);
    assert_eq!(copy.to_vec(998..).unwrap(), [1, 1, 5]);
}

/// The limit of growth holds while the array is open, and is not in the file.
#[test]
fn the_greatest_length_is_none_of_the_file() {
    let files = Files::new(1);
    let builder = |most| VirtualArray::<u32>::builder(100).max_len(most);
    let mut array = builder(200).create(&files.0).unwrap();
    assert_eq!((array.len(), array.max_len(), array.page_len()), (100, 200, 256));
    array.resize(200, 7).unwrap();
    assert!(is_limit(&array.push(1).unwrap_err()) && is_limit(&array.insert(0, &[1]).unwrap_err()));
    drop(array);
    let array = builder(201).open(&files.0).unwrap();
    assert_eq!(array.push(8).unwrap(), 200);
    assert!(is_limit(&array.push(1).unwrap_err()));
    drop(array);
    assert_eq!(VirtualArray::<u32>::open(&files.0[0]).unwrap().push(9).unwrap(), 201);

    // An array that is opened for reading has the length of the last sync, and keeps it.
    let array = VirtualArray::<u32>::open(&files.0[0]).unwrap();
    array.push(10).unwrap();
    let copies = files.copies();
    let mut copy = builder(1000).open_read_only(&copies.0).unwrap();
    assert_eq!((copy.len(), copy.get(201).unwrap()), (202, 9));
    let refusals = [
        copy.push(1).map(drop),
        copy.reserve(1),
        copy.extend_from_slice(&[1]),
        copy.insert(0, &[1]),
        copy.remove(0..1),
        copy.truncate(1),
        copy.pop().map(drop),
        copy.resize(300, 1),
    ];
    for (at, refusal) in refusals.into_iter().enumerate() {
        assert_eq!(of_device(&refusal.unwrap_err()), Some(DeviceErrorKind::ReadOnly), "{at}");
    }
    assert_eq!((copy.len(), copy.get(201).unwrap()), (202, 9));
    // The length of an array with a fixed shape cannot change.
    let boxes = Files::new(1);
    let image = NdArray::<u32, 2>::builder([10, 10]).create(&boxes.0).unwrap();
    assert!(is_limit(&image.elements().push(1).unwrap_err()));
}

/// A truncated file causes an error on open, or on a read of the missing part; the rest is readable.
#[test]
fn a_file_that_was_cut_is_an_error() {
    let files = Files::new(1);
    let mut array = VirtualArray::<u64>::builder(0).page_len(512).create(&files.0).unwrap();
    array.extend_from_slice(&(0..1 << 16).map(|i| i | 1 << 50).collect::<Vec<u64>>()).unwrap();
    drop(array);
    let length = std::fs::metadata(&files.0[0]).unwrap().len();
    let mut kinds = Vec::new();
    for part in (0..16).rev() {
        let copies = files.copies();
        let file = std::fs::OpenOptions::new().write(true).open(&copies.0[0]).unwrap();
        file.set_len(length * part / 16).unwrap();
        let read = VirtualArray::<u64>::open(&copies.0[0]).and_then(|array| {
            assert_eq!(array.len(), 1 << 16);
            array.push(1)?;
            array.to_vec(..)
        });
        match read {
            Ok(found) => assert!(found[..1 << 16].iter().copied().eq((0..1 << 16).map(|i| i | 1 << 50))),
            Err(error) => kinds.push(of_device(&error).expect("a device says so")),
        }
    }
    assert!(kinds.len() > 5 && kinds.contains(&DeviceErrorKind::Corrupted), "{kinds:?}");
    let allowed = [DeviceErrorKind::Corrupted, DeviceErrorKind::WrongFormat];
    assert!(kinds.iter().all(|kind| allowed.contains(kind)), "{kinds:?}");
}

/// A full disk, simulated by a limit of the process: stored elements are readable, and pushed ones are stored
/// when there is space again.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_loses_nothing() {
    const CHILD: &str = "VMARRAY_TEST_FULL_DISK";
    let name = "stored_growth::a_full_disk_loses_nothing";
    if std::env::var_os(CHILD).is_none() {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        let status = child.args([name, "--exact", "--nocapture"]).env(CHILD, "1").status().unwrap();
        assert!(status.success(), "{status}");
        return;
    }
    let limit = |bytes: u64| {
        let mut limits = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the process belongs to this test; the limits are local memory.
        unsafe {
            libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
            assert_eq!(libc::getrlimit(libc::RLIMIT_FSIZE, &mut limits), 0);
            limits.rlim_cur = bytes.min(limits.rlim_max);
            assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &limits), 0);
        }
    };
    let files = Files::new(1);
    let array =
        VirtualArray::<u64>::builder(0).page_len(512).cache_bytes(256 << 10).create(&files.0).unwrap();
    for i in 0..100_000 {
        array.push(i).unwrap();
    }
    array.sync().unwrap();
    limit(std::fs::metadata(&files.0[0]).unwrap().len());
    // Push until no more page can be written back.
    let mut pushed = 100_000;
    let error = loop {
        match array.push(pushed) {
            Ok(index) => assert_eq!(index as u64, pushed),
            Err(error) => break error,
        }
        pushed += 1;
        assert!(pushed < 10_000_000, "there is no end of the disk");
    };
    assert!(error.device_error().is_some() && array.sync().is_err(), "{error}");
    // No frame is free, so reads of uncached pages bypass the cache.
    assert_eq!((array.len() as u64, array.get_uncached(77).unwrap()), (pushed, 77));
    assert_eq!(array.get(pushed as usize - 1).unwrap(), pushed - 1);
    limit(u64::MAX);
    let copies = files.copies();
    let copy = VirtualArray::<u64>::builder(0).open_read_only(&copies.0).unwrap();
    assert!(copy.to_vec(..).unwrap().into_iter().eq(0..copy.len() as u64) && copy.len() >= 100_000);
    assert_eq!(array.push(pushed).unwrap() as u64, pushed);
    array.sync().unwrap();
    drop(array);
    let array = VirtualArray::<u64>::open(&files.0[0]).unwrap();
    assert!(array.to_vec(..).unwrap().into_iter().eq(0..=pushed));
}
