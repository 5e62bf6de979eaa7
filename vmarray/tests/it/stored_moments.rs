//! Tests of arrays in several files, one of which was replaced by an older copy. Opening them returns an
//! error that names a file, or the state of one commit.

use std::sync::Arc;

use vmarray::device::wrap::SplitMix64;
use vmarray::device::{
    Commit, Device, DeviceBuffer, Error as DeviceError, ErrorKind as DeviceErrorKind, Fill, HostBuffer,
    HostMemory, Queue, Transfer,
};
use vmarray::host::HostDevice;
use vmarray::redundancy::Mirrored;
use vmarray::store::{StoreDevice, StoreFile, Tier};
use vmarray::{AnyDevice, Builder, RaggedArray, VirtualArray, prelude::*};

use crate::stored::{Files, of_device};

/// Copies of the files at one time, with the elements that the last `sync` stored.
struct Moment {
    files: Files,
    elements: Vec<u64>,
}

fn builder(tier: Option<&Tier>) -> Builder<u64, AnyDevice> {
    let builder = VirtualArray::<u64>::builder(0).page_len(16).cache_bytes(1 << 10);
    match tier {
        Some(tier) => builder.tier(tier),
        None => builder,
    }
}

/// Changes elements and the length, stores them, and copies the files.
fn advance(array: &mut VirtualArray<u64>, files: &Files, random: &mut SplitMix64) -> Moment {
    for _ in 0..3 {
        let at = random.index(array.len());
        array.set(at, array.get(at).unwrap() + 1_000_000).unwrap();
    }
    if random.index(3) == 0 {
        array.truncate(array.len() - 1 - random.index(20)).unwrap();
    }
    for _ in 0..random.index(40) {
        array.push(array.len() as u64).unwrap();
    }
    array.sync().unwrap();
    Moment { files: files.copies(), elements: array.to_vec(..).unwrap() }
}

/// The moments of an array in `count` files: after calls of `sync`, in the middle with the array closed and
/// opened again, and at last closed or killed.
fn history(count: usize, is_closed: bool, tier: Option<&Tier>, random: &mut SplitMix64) -> Vec<Moment> {
    let files = Files::new(count);
    let mut array = builder(tier).create(&files.0).unwrap();
    array.extend_from_slice(&(0..400).collect::<Vec<u64>>()).unwrap();
    let mut moments = Vec::new();
    for turn in 0..6 {
        if turn == 3 {
            drop(array);
            let elements = moments.last().map(|moment: &Moment| moment.elements.clone()).unwrap();
            moments.push(Moment { files: files.copies(), elements });
            array = builder(tier).open(&files.0).unwrap();
        }
        moments.push(advance(&mut array, &files, random));
    }
    drop(array);
    if is_closed {
        let elements = moments.last().map(|moment| moment.elements.clone()).unwrap();
        moments.push(Moment { files, elements });
    }
    moments
}

/// Files of a moment, of which one is of another moment, closed or killed, before and after reopening, older
/// and newer, with a tier and without.
#[test]
fn files_of_several_moments_do_not_open() {
    let card = || Arc::new(HostDevice::new(64 << 10).unwrap());
    let (mut refused, mut whole) = (0, 0);
    for count in 2..=4 {
        for is_closed in [true, false] {
            let mut random = SplitMix64::new(count as u64);
            let tier = (count == 3).then(|| Tier::new([card()]));
            let moments = history(count, is_closed, tier.as_ref(), &mut random);
            let last = moments.len() - 1;
            for base in [last, last - 1, 2, 3] {
                for (odd, other) in (0..count).flat_map(|odd| (0..=last).map(move |other| (odd, other))) {
                    let mixed = moments[base].files.copies();
                    std::fs::copy(&moments[other].files.0[odd], &mixed.0[odd]).unwrap();
                    let context = format!("{count} files of {base}, file {odd} of {other}");
                    match builder(tier.as_ref()).open_read_only(&mixed.0) {
                        Ok(array) => {
                            let found = array.to_vec(..).unwrap();
                            let is_known = moments.iter().any(|moment| moment.elements == found);
                            assert!(is_known, "{context}: a mixture");
                            assert_eq!(moments[base].elements, moments[other].elements, "{context}");
                            whole += 1;
                        }
                        Err(error) => {
                            assert_eq!(of_device(&error), Some(DeviceErrorKind::Corrupted), "{context}");
                            let name =
                                |file: usize| mixed.0[file].file_name().unwrap().to_str().unwrap().to_owned();
                            let is_named = |file| error.to_string().contains(&name(file));
                            // With two files it is unknown which one was replaced.
                            assert!(is_named(odd) || count == 2 && is_named(1 - odd), "{context}: {error}");
                            refused += 1;
                        }
                    }
                }
            }
        }
    }
    println!("{refused} refused, {whole} of one moment");
    assert!(refused > 300 && whole > 50);
}

/// Files in another order are the same array. A file of another array, or of a copy that went on alone, is
/// refused.
#[test]
fn files_of_other_arrays_are_refused() {
    let mut random = SplitMix64::new(7);
    let moments = history(3, true, None, &mut random);
    let last = moments.last().unwrap();
    let [a, b, c] = [0, 1, 2].map(|file| last.files.0[file].clone());
    let array = builder(None).open([&c, &a, &b]).unwrap();
    assert_eq!(array.to_vec(..).unwrap(), last.elements);
    drop(array);
    let copies = last.files.copies();
    for files in [&last.files, &copies] {
        // Call `sync` equally often for the files and for their copies.
        let mut array = builder(None).open(&files.0).unwrap();
        advance(&mut array, files, &mut random);
    }
    let error = builder(None).open([&a, &copies.0[1], &c]).unwrap_err();
    assert_eq!(of_device(&error), Some(DeviceErrorKind::Corrupted));
    assert!(error.to_string().contains(copies.0[1].to_str().unwrap()), "{error}");
    let others = history(3, true, None, &mut random);
    let error = builder(None).open([&a, &others.last().unwrap().files.0[1], &c]).unwrap_err();
    assert!(error.to_string().contains("place in the array"), "{error}");
    assert!(builder(None).open([&a, &b, &c]).is_ok());
}

/// Rows in two files, one of them older.
#[test]
fn rows_of_two_moments_do_not_open() {
    let files = Files::new(2);
    let rows = || RaggedArray::<u32>::builder().elements(|elements| elements.page_len(16));
    let writer = rows().create(&files.0).unwrap().into_writer();
    let push = |count: u32| (0..count).for_each(|i| assert!(writer.push(&[i; 7]).is_ok()));
    push(20);
    writer.sync().unwrap();
    let before = files.copies();
    push(1);
    writer.sync().unwrap();
    let after = files.copies();
    for mixed in [[&before.0[0], &after.0[1]], [&after.0[0], &before.0[1]]] {
        let error = rows().open(mixed).unwrap_err();
        assert_eq!(of_device(&error), Some(DeviceErrorKind::Corrupted), "{error}");
    }
    assert_eq!(rows().open(&after.0).unwrap().to_vecs().unwrap().len(), 21);
}

const MIRROR_PAGES: u64 = 12;
const MIRROR_PAGE_BYTES: usize = 4096;
const MIRROR_BYTES: u64 = MIRROR_PAGES * MIRROR_PAGE_BYTES as u64;

/// Opens the files of joined stores.
fn open_stores(files: &Files, is_read_only: bool) -> Result<Vec<Arc<StoreDevice>>, DeviceError> {
    let files: Result<Vec<_>, _> = files.0.iter().map(|path| StoreFile::read(path, is_read_only)).collect();
    Ok(StoreDevice::open_together(files?)?.into_iter().map(Arc::new).collect())
}

/// All bytes of a store.
fn bytes_of(store: &Arc<StoreDevice>) -> Vec<u8> {
    let queue = Queue::new(store).unwrap();
    let pages = DeviceBuffer::new(store, MIRROR_BYTES, Commit::Lazy).unwrap();
    let host = HostBuffer::new(store, MIRROR_BYTES as usize, HostMemory::Pageable).unwrap();
    let download = Transfer::Download { from: pages.at(0), to: host.at(0), bytes: MIRROR_BYTES };
    store.wait(queue.submit(&[download]).unwrap()).unwrap();
    let mut found = vec![0; MIRROR_BYTES as usize];
    host.read(0, &mut found);
    found
}

/// Writes pages of a mirror of these stores, commits, and returns all bytes.
fn write_mirrored(stores: &[Arc<StoreDevice>], random: &mut SplitMix64) -> Vec<u8> {
    let devices = stores.iter().map(|store| Arc::clone(store) as Arc<dyn Device>);
    let mirror = Arc::new(Mirrored::new(devices).unwrap());
    let queue = Queue::new(&mirror).unwrap();
    let pages = DeviceBuffer::new(&mirror, MIRROR_BYTES, Commit::Lazy).unwrap();
    for _ in 0..3 {
        let to = pages.at(random.below(MIRROR_PAGES) * MIRROR_PAGE_BYTES as u64);
        let pattern = &random.next().to_ne_bytes();
        mirror.wait(queue.submit(&Fill { to, bytes: MIRROR_PAGE_BYTES as u64, pattern }).unwrap()).unwrap();
    }
    mirror.sync().unwrap();
    drop((queue, pages, mirror));
    bytes_of(&stores[0])
}

/// The moments of mirrors in `count` files: after calls of `sync`, in the middle with the files closed and
/// opened again, and at last closed or killed.
fn mirror_history(count: usize, is_closed: bool, random: &mut SplitMix64) -> Vec<(Files, Vec<u8>)> {
    let files = Files::new(count);
    let create = |path| StoreDevice::create(path, MIRROR_PAGE_BYTES, MIRROR_PAGES, b"mirror", [0; 3]);
    let mut stores = files.0.iter().map(create).collect::<Result<Vec<_>, _>>().unwrap();
    StoreDevice::join(&mut stores);
    let mut stores: Vec<_> = stores.into_iter().map(Arc::new).collect();
    let mut moments = Vec::new();
    for turn in 0..4 {
        if turn == 2 {
            drop(stores);
            stores = open_stores(&files, false).unwrap();
        }
        let bytes = write_mirrored(&stores, random);
        moments.push((files.copies(), bytes));
    }
    drop(stores);
    if is_closed {
        let bytes = moments.last().unwrap().1.clone();
        moments.push((files, bytes));
    }
    moments
}

/// Mirrors in joined stores, of which one is of another moment: an error that names its file, or equal
/// mirrors of one moment. A copy of another mirror repairs the stale one.
#[test]
fn mirrors_of_two_moments_do_not_open() {
    let (mut refused, mut whole) = (0, 0);
    for (count, is_closed) in [(2, true), (2, false), (3, true), (3, false)] {
        let mut random = SplitMix64::new(count as u64);
        let moments = mirror_history(count, is_closed, &mut random);
        let kinds = moments.len();
        for case in 0..kinds * kinds * count {
            let (base, other, odd) = (case % kinds, case / kinds % kinds, case / kinds / kinds);
            let mixed = moments[base].0.copies();
            std::fs::copy(&moments[other].0.0[odd], &mixed.0[odd]).unwrap();
            let context = format!("{count} mirrors of {base}, mirror {odd} of {other}");
            match open_stores(&mixed, false) {
                Ok(stores) => {
                    let found = bytes_of(&stores[0]);
                    assert!(stores.iter().all(|store| bytes_of(store) == found), "{context}: a mixture");
                    assert!(moments.iter().any(|(_, bytes)| *bytes == found), "{context}");
                    whole += 1;
                }
                Err(error) => {
                    assert_eq!(error.kind(), DeviceErrorKind::Corrupted, "{context}");
                    let name = |file: usize| mixed.0[file].file_name().unwrap().to_str().unwrap().to_owned();
                    let is_named = |file| error.to_string().contains(&name(file));
                    assert!(is_named(odd) || count == 2 && is_named(1 - odd), "{context}: {error}");
                    std::fs::copy(&mixed.0[(odd + 1) % count], &mixed.0[odd]).unwrap();
                    let stores = open_stores(&mixed, false).unwrap();
                    let is_base = |store| bytes_of(store) == moments[base].1;
                    assert!(stores.iter().all(is_base), "{context}: repaired");
                    let bytes = write_mirrored(&stores, &mut random);
                    drop(stores);
                    let stores = open_stores(&mixed, true).unwrap();
                    assert!(stores.iter().all(|store| bytes_of(store) == bytes), "{context}: repaired");
                    refused += 1;
                }
            }
        }
    }
    println!("{refused} refused, {whole} of one moment");
    assert!(refused > 100 && whole > 30);
}
