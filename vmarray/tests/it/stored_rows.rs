//! Tests of rows and index sets in files and in snapshots.

use std::ops::ControlFlow;

use vmarray::device::ErrorKind as DeviceErrorKind;
use vmarray::file::SaveOptions;
use vmarray::index_set::{PagedIndexSet, Tuples};
use vmarray::{ErrorKind, IndexSet, NdArray, Placement, RaggedArray, VirtualArray, prelude::*};

use crate::common::{Numbers, host};
use crate::stored::{Files, of_device};

fn rows(random: &mut Numbers, count: usize) -> Vec<Vec<u32>> {
    (0..count).map(|_| (0..random.below(12)).map(|_| random.next() as u32).collect()).collect()
}

/// Rows are pushed, changed, synced, and reopened: they equal a vector of vectors. Copies of the files of two
/// syncs are refused or open as of the earlier one.
#[test]
fn rows_in_files_are_a_vector_of_vectors() {
    for seed in 0..backend_api::wrap::random_cases(25).into() {
        let mut random = Numbers::new(seed);
        let files = Files::new(1 + random.below(3));
        let page_len = 1 + random.below(30);
        let builder =
            || RaggedArray::<u32>::builder().elements(|e| e.page_len(page_len).cache_bytes(1 << 12));
        let ratios = Placement::Ratios((1..=files.0.len() as u32).collect());
        let made = builder().elements(|elements| elements.placement(ratios)).create(&files.0).unwrap();
        let mut vec: Vec<Vec<u32>> = Vec::new();
        assert_eq!((made.len(), made.to_vecs().unwrap()), (0, vec.clone()));
        let mut writer = made.into_writer();
        let mut synced = (files.copies(), 0);
        for number in 0..25 {
            match random.below(6) {
                0..3 => {
                    let count = 1 + random.below(40);
                    let new = rows(&mut random, count);
                    if random.below(2) == 0 {
                        for row in &new {
                            writer.push(row).unwrap();
                        }
                    } else {
                        let lengths: Vec<usize> = new.iter().map(Vec::len).collect();
                        writer.push_joined(&new.concat(), &lengths).unwrap();
                    }
                    vec.extend(new);
                }
                3 => {
                    writer.sync().unwrap();
                    // One file is from the previous sync, the others are from this one: they open as of the
                    // previous one, or not at all.
                    let copies = files.copies();
                    let older = random.below(files.0.len());
                    let mut mixed = copies.0.clone();
                    mixed[older].clone_from(&synced.0.0[older]);
                    match builder().open_read_only(&mixed) {
                        Ok(found) => {
                            let expected = &vec[..synced.1];
                            assert_eq!(found.to_vecs().unwrap(), expected, "seed {seed}, step {number}");
                        }
                        Err(error) => {
                            assert!(files.0.len() > 1, "seed {seed}, step {number}: {error}");
                            assert_eq!(of_device(&error), Some(DeviceErrorKind::Corrupted));
                        }
                    }
                    let found = builder().open(&copies.0).unwrap();
                    assert_eq!(found.to_vecs().unwrap(), vec, "seed {seed}, step {number}");
                    drop(found);
                    synced = (files.copies(), vec.len());
                }
                4 => {
                    let array = writer.freeze().unwrap();
                    assert_eq!(array.to_vecs().unwrap(), vec, "seed {seed}, step {number}");
                    if let Some(row) = vec.iter().position(|row| row.len() > 1) {
                        array.row(row).unwrap().set(1, 77).unwrap();
                        vec[row][1] = 77;
                    }
                    if random.below(2) == 0 {
                        array.sync().unwrap();
                    }
                    drop(array);
                    let array = builder().open(&files.0).unwrap();
                    assert_eq!(array.to_vecs().unwrap(), vec, "seed {seed}, step {number}");
                    writer = array.into_writer();
                    writer.sync().unwrap();
                    synced = (files.copies(), vec.len());
                }
                _ => {
                    // The writer is dropped without a freeze, so rows pushed since the sync may be lost.
                    writer.sync().unwrap();
                    let kept = vec.len();
                    writer.push(&[1, 2, 3]).unwrap();
                    drop(writer);
                    let array = builder().open(&files.0).unwrap();
                    assert_eq!(array.to_vecs().unwrap(), vec[..kept], "seed {seed}, step {number}");
                    writer = array.into_writer();
                    synced = (files.copies(), kept);
                }
            }
        }
    }
}

/// Threads push rows while others sync: the file has the earlier rows, each complete.
#[test]
fn threads_push_rows_and_sync() {
    let files = Files::new(1);
    let writer = RaggedArray::<u64>::create(&files.0[0]).unwrap().into_writer();
    // Users of the file hold this lock, because a copy made meanwhile would mix several moments.
    let uses = std::sync::RwLock::new(());
    crate::common::together(4, |thread| {
        for number in 0..400_usize {
            let used = uses.read().unwrap();
            let row = writer.push(&vec![(thread << 32 | number) as u64; number % 7]).unwrap();
            if number % 50 == 49 {
                writer.sync().unwrap();
                drop(used);
                let quiet = uses.write().unwrap();
                let copies = files.copies();
                drop(quiet);
                let found = RaggedArray::<u64>::open(&copies.0[0]).unwrap();
                assert!(found.len() > row, "{} of {row}", found.len());
                for row in found.rows() {
                    let row = row.unwrap().to_vec(..).unwrap();
                    assert!(row.iter().all(|value| *value == row[0]), "{row:?}");
                    assert!(row.is_empty() || row.len() == row[0] as u32 as usize % 7, "{row:?}");
                }
            }
        }
    });
    assert_eq!(writer.freeze().unwrap().len(), 1600);
}

#[test]
fn snapshots_of_rows_are_loaded_on_any_devices() {
    let files = Files::new(1);
    let path = &files.0[0];
    for seed in 0..10 {
        let mut random = Numbers::new(seed);
        let vec = rows(&mut random, 300);
        let words = RaggedArray::<u32>::builder().elements(|e| e.page_len(1 + seed as usize * 3));
        let array = words.from_rows(&vec).unwrap();
        array.save(path).unwrap();
        // A cancelled save leaves the old file.
        let mut reports = Vec::new();
        let stopped = array.save_with(path, SaveOptions::new(), |progress| {
            reports.push((progress.done_bytes, progress.all_bytes));
            if reports.len() < 2 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        assert_eq!(*stopped.unwrap_err().kind(), ErrorKind::Cancelled);
        let bytes = 4 * array.item_total() as u64 + 8 * 301;
        assert_eq!(reports, [(8 * 301, bytes), (bytes, bytes)]);
        let device = std::sync::Arc::new(host());
        let loaded = RaggedArray::<u32>::builder().devices([device]).load(path).unwrap();
        assert_eq!(loaded.to_vecs().unwrap(), vec, "seed {seed}");
        assert_eq!(RaggedArray::<u32>::open(path).unwrap().to_vecs().unwrap(), vec, "seed {seed}");
    }
    // The same applies to an array in files: a cancelled save leaves the old file.
    let opened = RaggedArray::<u32>::open(path).unwrap();
    let copy = Files::new(1);
    opened.save(&copy.0[0]).unwrap();
    let copied = RaggedArray::<u32>::builder().load(&copy.0[0]).unwrap();
    assert_eq!(copied.to_vecs().unwrap(), opened.to_vecs().unwrap());
    drop(opened);
    // The same applies to an empty array.
    RaggedArray::<u32>::builder().writer().unwrap().freeze().unwrap().save(path).unwrap();
    assert_eq!(RaggedArray::<u32>::builder().load(path).unwrap().len(), 0);
}

#[test]
fn index_sets_are_loaded_as_they_were_saved() {
    let files = Files::new(1);
    let path = &files.0[0];
    for seed in 0..20 {
        let mut random = Numbers::new(seed);
        let width = seed as usize % 4;
        let dimensions: Vec<u32> = (0..width as u32).map(|at| at * 7 + random.below(7) as u32).collect();
        let mut set = IndexSet::new(dimensions).unwrap();
        for _ in 0..random.below(500) {
            let tuple: Vec<u64> = (0..width).map(|_| random.next()).collect();
            set.push(&tuple).unwrap();
        }
        let page_len = 1 + random.below(70);
        let paged = PagedIndexSet::from_index_set(&set, |array| array.page_len(page_len)).unwrap();
        for is_paged in [false, true] {
            if is_paged {
                paged.save(path).unwrap()
            } else {
                set.save(path).unwrap()
            }
            assert_eq!(IndexSet::load(path).unwrap(), set, "seed {seed}");
            let loaded = PagedIndexSet::load(path, |array| array.page_len(page_len)).unwrap();
            assert_eq!((loaded.dimensions(), loaded.len()), (set.dimensions(), set.len()));
            let opened = PagedIndexSet::open(path, |array| array).unwrap();
            for paged in [&loaded, &opened] {
                assert_eq!(paged.to_index_set(..).unwrap(), set, "seed {seed}");
            }
            drop(opened);
            if !set.values().is_empty() {
                assert!(set.save_with(path, |_| ControlFlow::Break(())).is_err());
                assert_eq!(IndexSet::load(path).unwrap(), set, "what was there stays");
            }
        }
    }
}

/// Each kind of file is refused as each other kind, with both kinds in the error.
#[test]
fn files_of_another_kind_are_refused() {
    let files = Files::new(4);
    let [linear, boxes, rows, tuples] = &files.0[..] else { unreachable!() };
    drop(VirtualArray::<u64>::create(linear, 10).unwrap());
    drop(NdArray::<u64, 2>::builder([3, 4]).create([boxes]).unwrap());
    drop(RaggedArray::<u64>::create(rows).unwrap());
    IndexSet::from_rows([1, 2], [[3, 4]]).unwrap().save(tuples).unwrap();
    let kinds =
        [(linear, "linear"), (boxes, "3 x 4"), (rows, "rows"), (tuples, "1 tuples of dimensions 1 2")];
    let asked = ["linear", "2 dimensions", "rows", "tuples of dimensions"];
    for (path, kind) in kinds {
        let refused = [
            VirtualArray::<u64>::open(path).map(drop),
            NdArray::<u64, 2>::builder([0, 0]).load(path).map(drop),
            RaggedArray::<u64>::open(path).map(drop),
            PagedIndexSet::open(path, |array| array).map(drop),
        ];
        let also = [
            VirtualArray::<u64>::builder(0).load(path).map(drop),
            NdArray::<u64, 2>::builder([0, 0]).open([path]).map(drop),
            RaggedArray::<u64>::builder().load(path).map(drop),
            IndexSet::load(path).map(drop),
        ];
        for ((one, other), asked) in refused.into_iter().zip(also).zip(asked) {
            let is_same = kind.contains(asked) || (asked == "2 dimensions" && kind == "3 x 4");
            for outcome in [one, other] {
                let Err(error) = outcome else {
                    assert!(is_same, "{kind} as {asked}");
                    continue;
                };
                assert!(!is_same, "{kind} as {asked}: {error}");
                let text = error.to_string();
                assert!(text.contains(&format!("`{kind}`")) && text.contains(asked), "{text}");
            }
        }
    }
    let other = RaggedArray::<u32>::open(rows).unwrap_err().to_string();
    assert!(other.contains("`u64`") && other.contains("`u32`"), "{other}");
    // Only one process may write to the files. A new array does not overwrite existing files.
    let open = RaggedArray::<u64>::open(rows).unwrap();
    for refused in [RaggedArray::<u64>::open(rows), RaggedArray::<u64>::builder().load(rows)] {
        assert_eq!(of_device(&refused.unwrap_err()), Some(DeviceErrorKind::InUse));
    }
    let refused = RaggedArray::<u64>::create(rows).unwrap_err();
    assert_eq!(of_device(&refused), Some(DeviceErrorKind::AlreadyExists));
    drop(open);
    drop(RaggedArray::<u64>::open(rows).unwrap());
}

/// Elements whose rows are missing, and rows on other devices, which cannot be synced.
#[test]
fn elements_go_on_without_their_rows() {
    let files = Files::new(1);
    let writer = RaggedArray::<u32>::create(&files.0[0]).unwrap().into_writer();
    writer.push(&[1, 2]).unwrap();
    writer.sync().unwrap();
    writer.push(&[3]).unwrap();
    let items = writer.freeze().unwrap().into_items();
    items.set(0, 7).unwrap();
    items.sync().unwrap();
    drop(items);
    assert_eq!(RaggedArray::<u32>::open(&files.0[0]).unwrap().to_vecs().unwrap()[0], [7, 2]);
    let rows = RaggedArray::<u32>::builder().from_rows([[1]]).unwrap();
    assert_eq!(of_device(&rows.sync().unwrap_err()), Some(DeviceErrorKind::Unsupported));
}

/// Functions with default settings, and functions without progress, do the same as the long forms.
#[test]
fn short_forms_do_the_same_as_the_long_ones() {
    let files = Files::new(1);
    let path = &files.0[0];
    let remove = || std::fs::remove_file(path).unwrap();
    let cancel = |_| ControlFlow::Break(());

    VirtualArray::<u64>::create(path, 9).unwrap().set(8, 7).unwrap();
    assert_eq!(VirtualArray::<u64>::open(path).unwrap().get(8).unwrap(), 7);
    let array = VirtualArray::<u64>::open_read_only(path).unwrap();
    assert!(array.push(9).is_err() && array.len() == 9);
    drop(array);
    assert_eq!(VirtualArray::<u64>::load(path).unwrap().to_vec(7..).unwrap(), [0, 7]);
    remove();

    let image = NdArray::<u16, 2>::create(path, [3, 4]).unwrap();
    image.set([2, 3], 7).unwrap();
    image.sync().unwrap();
    drop(image);
    assert_eq!(NdArray::<u16, 2>::open(path).unwrap().shape(), [3, 4]);
    let image = NdArray::<u16, 2>::open_read_only(path).unwrap();
    assert!(image.set([1, 1], 1).is_err() && image.get([2, 3]).unwrap() == 7);
    drop(image);
    let image = NdArray::<u16, 2>::load(path).unwrap();
    let mut bytes = 0;
    image.save(path).unwrap();
    let loaded = NdArray::<u16, 2>::builder([0, 0]).load_with(path, |progress| {
        bytes = progress.done_bytes;
        ControlFlow::Continue(())
    });
    assert_eq!((loaded.unwrap().get([2, 3]).unwrap(), bytes), (7, 24));
    remove();
    assert!(image.save_with(path, SaveOptions::new(), cancel).is_err() && !path.exists());

    let writer = RaggedArray::<u8>::create(path).unwrap().into_writer();
    writer.push(b"many").unwrap();
    writer.sync().unwrap();
    drop(writer);
    let writer = RaggedArray::<u8>::open(path).unwrap().into_writer();
    writer.push(b"words").unwrap();
    let written = writer.freeze().unwrap();
    written.sync().unwrap();
    drop(written);
    assert_eq!(
        RaggedArray::<u8>::open_read_only(path).unwrap().row(1).unwrap().to_vec(..).unwrap(),
        b"words"
    );
    assert_eq!(RaggedArray::<u8>::load(path).unwrap().len(), 2);
    assert!(RaggedArray::<u8>::builder().load_with(path, cancel).is_err());
    remove();

    let set = IndexSet::from_rows([7, 0], [[1, 5], [2, 6]]).unwrap();
    assert!(set.save_with(path, cancel).is_err() && !path.exists());
    set.save(path).unwrap();
    assert_eq!(IndexSet::load(path).unwrap(), set);
    let error = VirtualArray::<u64>::open(path).unwrap_err().to_string();
    assert!(error.contains("2 tuples of dimensions 7 0") && error.contains("linear"), "{error}");
    let cancelled = PagedIndexSet::load_with(path, |array| array, cancel).unwrap_err();
    assert_eq!(*cancelled.kind(), ErrorKind::Cancelled);
    let paged = PagedIndexSet::open(path, |array| array.cache_bytes(1 << 20)).unwrap();
    paged.array().set(3, 8).unwrap();
    paged.array().sync().unwrap();
    drop(paged);
    let paged = PagedIndexSet::load(path, |array| array).unwrap();
    remove();
    assert!(paged.save_with(path, cancel).is_err() && !path.exists());
    paged.save(path).unwrap();
    assert_eq!(IndexSet::load(path).unwrap().values(), [1, 5, 2, 8]);
}
