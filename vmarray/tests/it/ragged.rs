//! Tests of ragged arrays, compared with vectors of vectors.

use std::sync::Arc;
use vmarray::prelude::*;

use crate::common::{Numbers, Shape, as_any, devices, host, hosts, together, uneven_devices};
use proptest::prelude::*;
use vmarray::device::ErrorKind as DeviceErrorKind;
use vmarray::device::wrap::{Fault, Operation};
use vmarray::host::HostDevice;
use vmarray::ragged::{Ragged, RaggedBuilder, RaggedWriter};
use vmarray::{AnyDevice, ErrorKind, Placement, RaggedArray, VirtualArray, access::MapMode};
use vmarray_conformance::wrap::Faulty;

fn builder(page_len: usize, frames: usize) -> RaggedBuilder<u32, AnyDevice> {
    builder_on((devices(1), Placement::Equal), page_len, frames)
}

fn builder_on(
    (devices, placement): (Vec<Arc<AnyDevice>>, Placement),
    page_len: usize,
    frames: usize,
) -> RaggedBuilder<u32, AnyDevice> {
    let offsets = placement.clone();
    RaggedArray::builder()
        .devices(devices)
        .elements(|elements| elements.placement(placement).page_len(page_len).frames_per_channel(frames))
        .offsets(|all| all.placement(offsets).page_len(page_len).frames_per_channel(frames))
}

fn rows() -> impl Strategy<Value = Vec<Vec<u32>>> {
    prop::collection::vec(prop::collection::vec(any::<u32>(), 0..30), 0..40)
}

proptest! {
    #[test]
    fn rows_are_as_vectors(rows in rows(), page_len in 1_usize..40, frames in 1_usize..9, seed in any::<u64>()) {
        let mut random = Numbers::new(seed);
        let array = builder_on(uneven_devices(&mut random), page_len, frames).from_rows(&rows).unwrap();
        prop_assert_eq!(array.len(), rows.len());
        prop_assert_eq!(array.to_vecs().unwrap(), rows.clone());
        for _ in 0..30 {
            let row = random.below(rows.len() + 2);
            let Some(model) = rows.get(row) else {
                let error = array.row(row).unwrap_err();
                prop_assert_eq!(error.kind(), &ErrorKind::RowOutside { row, rows: rows.len() });
                continue;
            };
            let view = array.row(row).unwrap();
            prop_assert_eq!(view.len(), model.len());
            let at = random.below(model.len() + 2);
            prop_assert_eq!(view.get(at).ok(), model.get(at).copied());
            let (a, b) = (random.below(model.len() + 2), random.below(model.len() + 2));
            let part = view.to_vec(a..b).ok();
            prop_assert_eq!(part.as_deref(), model.get(a..b));
            if let Ok(part) = view.section(a..b) {
                let all = part.iter().collect::<Result<Vec<_>, _>>().unwrap();
                prop_assert_eq!(&all[..], &model[a..b]);
                prop_assert!(part.get(b - a).is_err());
            }
        }
        let items = array.items().to_vec(..array.item_total()).unwrap();
        prop_assert_eq!(items, rows.concat());
        let skipped: Vec<_> = array.rows().step_by(3).map(|row| row.unwrap().to_vec(..).unwrap()).collect();
        prop_assert_eq!(skipped, rows.iter().step_by(3).cloned().collect::<Vec<_>>());
        let mut item = 0;
        for (number, row) in rows.iter().enumerate() {
            for _ in row {
                prop_assert_eq!(array.row_of(item).unwrap(), number);
                item += 1;
            }
        }
        prop_assert!(array.row_of(item).is_err());
    }

    #[test]
    fn rows_of_rows_of_rows_are_as_vectors(
        volumes in prop::collection::vec(prop::collection::vec(rows(), 0..4), 0..4),
    ) {
        let rows: Vec<Vec<u32>> = volumes.iter().flatten().flatten().cloned().collect();
        let offsets = || VirtualArray::<u64>::builder(0).devices(devices(1)).page_len(4);
        let leaves = builder(16, 4).from_rows(&rows).unwrap();
        let pages = Ragged::new(leaves, volumes.iter().flatten().map(Vec::len), offsets()).unwrap();
        let books = Ragged::new(pages, volumes.iter().map(Vec::len), offsets()).unwrap();
        let mut copy = Vec::new();
        for book in &books {
            let mut pages = Vec::new();
            for page in book.unwrap().rows() {
                let lines = page.unwrap().rows().map(|line| line?.to_vec(..));
                pages.push(lines.collect::<Result<Vec<_>, _>>().unwrap());
            }
            copy.push(pages);
        }
        prop_assert_eq!(&copy, &volumes);
        for (b, book) in volumes.iter().enumerate() {
            for (p, page) in book.iter().enumerate() {
                let view = books.row(b).unwrap().row(p).unwrap();
                prop_assert_eq!(view.rows().len(), page.len());
                let missing = view.row(page.len()).unwrap_err();
                prop_assert_eq!(missing.kind(), &ErrorKind::RowOutside { row: page.len(), rows: page.len() });
                if let Some(line) = page.last() {
                    prop_assert_eq!(&view.row(page.len() - 1).unwrap().to_vec(..).unwrap(), line);
                }
            }
        }
    }
}

#[test]
fn threads_push_rows_that_stay_whole() {
    // Test with enough capacity, and with constant growth.
    for capacity in [(4000, 200_000), (0, 0)] {
        let writer = builder(64, 64).capacity(capacity.0, capacity.1).writer().unwrap();
        let pushed: Vec<Vec<(usize, u32, usize)>> = std::thread::scope(|threads| {
            let threads: Vec<_> = (0..4_u32)
                .map(|thread| {
                    let writer = &writer;
                    threads.spawn(move || {
                        let mut random = Numbers::new(u64::from(thread));
                        let mut mine = Vec::new();
                        for round in 0..250_u32 {
                            let (value, len) = (thread * 1000 + round, random.below(60));
                            if round % 5 == 0 {
                                let joined = vec![value; 3 * len];
                                let rows = writer.push_joined(&joined, &[len, 0, 2 * len]).unwrap();
                                mine.extend(rows.zip([len, 0, 2 * len]).map(|(row, len)| (row, value, len)));
                            } else {
                                mine.push((writer.push(&vec![value; len]).unwrap(), value, len));
                            }
                        }
                        mine
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let count = writer.len();
        let array = writer.freeze().unwrap();
        assert_eq!(array.len(), count);
        let mut seen = vec![false; count];
        for (row, value, len) in pushed.iter().flatten() {
            assert!(!std::mem::replace(&mut seen[*row], true));
            assert_eq!(array.row(*row).unwrap().to_vec(..).unwrap(), vec![*value; *len]);
        }
        assert!(seen.into_iter().all(|seen| seen));
        // The rows of each thread are in the order of its pushes.
        assert!(pushed.iter().all(|mine| mine.is_sorted_by_key(|(row, ..)| *row)));
    }
}

#[test]
fn rows_of_known_lengths_are_written_by_threads() {
    let lengths = (0..500).map(|row| row * 7 % 33);
    let array = builder(64, 32).with_lengths(lengths.clone()).unwrap();
    together(4, |thread| {
        for number in (thread..500).step_by(4) {
            let row = array.row(number).unwrap();
            row.write(0, &vec![number as u32; row.len()]).unwrap();
        }
    });
    let expected: Vec<Vec<u32>> = lengths.enumerate().map(|(row, len)| vec![row as u32; len]).collect();
    assert_eq!(array.to_vecs().unwrap(), expected);
    array
        .row(3)
        .unwrap()
        .map_mut(.., MapMode::ReadWrite, |row| row.iter_mut().for_each(|x| *x += 1))
        .unwrap();
    assert_eq!(array.row(3).unwrap().to_vec(..).unwrap(), vec![4; 21]);
    assert_eq!(array.row(4).unwrap().to_vec(..).unwrap(), vec![4; 28]);
}

#[test]
fn a_row_costs_its_own_pages_and_one_of_offsets() {
    let array = builder(64, 8).with_lengths(std::iter::repeat_n(64, 1000)).unwrap();
    array.items().fill(.., 5).unwrap();
    array.items().evict(..).unwrap();
    array.offsets().evict(..).unwrap();
    array.items().reset_stats();
    array.offsets().reset_stats();
    assert_eq!(array.row(500).unwrap().to_vec(..).unwrap(), [5; 64]);
    assert_eq!(array.items().stats().total().bytes_from_device, 256);
    assert_eq!(array.offsets().stats().total().misses, 1);
}

#[test]
fn misuse_is_an_error_that_names_the_values() {
    let writer = builder(64, 8).writer().unwrap();
    let error = writer.push_joined(&[1, 2, 3], &[1, 1]).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::LengthMismatch { of: "the slice of all rows", expected: 2, got: 3 });
    assert!(writer.push_joined(&[1], &[usize::MAX, 2]).is_err());
    assert_eq!(writer.len(), 0);
    let rows = writer.freeze().unwrap();
    assert_eq!((rows.len(), rows.rows().count()), (0, 0));
    assert!(rows.row_of(0).is_err());
    let elements = VirtualArray::<u32>::new(3).unwrap();
    let error = Ragged::new(elements, [2, 2], VirtualArray::builder(0)).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::LengthMismatch { of: "the view of the items", expected: 4, got: 3 });
    assert!(RaggedArray::<u32>::builder().with_lengths([usize::MAX, 1]).is_err());
}

/// A writer on a device with injected failures.
fn faulty() -> (Arc<Faulty<HostDevice>>, RaggedWriter<u32>) {
    let device = Arc::new(Faulty::new(host()));
    let builder = RaggedArray::<u32>::builder()
        .devices([as_any(&device)])
        .elements(|elements| elements.page_len(16).frames_per_channel(1));
    (device, builder.capacity(200, 2000).writer().unwrap())
}

#[test]
fn a_writer_that_failed_does_not_freeze() {
    let (device, writer) = faulty();
    let mut failed = None;
    device.inject(Fault::new(Operation::Submit, DeviceErrorKind::CopyFailed));
    for row in 0..100 {
        if writer.push(&[row; 10]).is_err() {
            failed = Some(row as usize);
            break;
        }
    }
    device.clear();
    let failed = failed.expect("copies fail");
    writer.push(&[1]).unwrap();
    assert_eq!(writer.first_incomplete(), Some(failed));
    let error = writer.freeze().unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::RowIncomplete { row: failed });
}

#[test]
fn rows_before_a_failure_can_be_kept() {
    let (device, writer) = faulty();
    let pushed: Vec<_> = (0..10).map(|row| vec![row; 10]).collect();
    assert!(pushed.iter().all(|row| writer.push(row).is_ok()));
    device.inject(Fault::new(Operation::Submit, DeviceErrorKind::CopyFailed));
    assert!((0..100).any(|_| writer.push_joined(&[7; 30], &[10, 0, 20]).is_err()));
    device.clear();
    let first = writer.first_incomplete().unwrap();
    writer.push(&[1]).unwrap();
    let array = writer.freeze_complete();
    assert_eq!((array.len(), (first - 10) % 3), (first, 0));
    assert_eq!(array.item_total(), 100 + (first - 10) * 10);
    let rows = array.to_vecs().unwrap();
    assert_eq!(rows[..10], pushed);
    assert!(rows[10..].chunks(3).all(|three| *three == [vec![7; 10], vec![], vec![7; 20]]));
    assert_eq!(array.row_of(array.item_total() - 1).unwrap(), first - 1);
}

#[test]
fn a_writer_on_full_devices_continues_with_rows_that_fit() {
    let device = Arc::new(HostDevice::builder().bytes(64 << 10).threads(1).build().unwrap());
    let writer = RaggedArray::<u32>::builder()
        .devices([as_any(&device)])
        .elements(|elements| elements.page_len(64).frames_per_channel(8))
        .offsets(|offsets| offsets.page_len(64).frames_per_channel(8))
        .writer()
        .unwrap();
    let mut rows = Vec::new();
    let error = loop {
        let row = vec![rows.len() as u32; 100];
        match writer.push(&row) {
            Ok(number) => assert_eq!(number, rows.len()),
            Err(error) => break error,
        }
        rows.push(row);
    };
    let is_full = |error: &vmarray::device::Error| error.kind() == DeviceErrorKind::OutOfMemory;
    assert!(error.device_error().is_some_and(is_full), "{error}");
    // Elements and offsets share the memory, and each may use the spare part of the other.
    assert!(rows.len() * 400 > 40 << 10, "{}", rows.len());
    // The row that did not fit had no effect; a shorter one gets its number.
    assert_eq!(writer.len(), rows.len());
    assert_eq!(writer.push(&[]).unwrap(), rows.len());
    rows.push(Vec::new());
    assert_eq!(writer.freeze().unwrap().to_vecs().unwrap(), rows);
}

#[test]
fn rows_are_added_to_an_array_in_place() {
    for seed in 0..10 {
        let mut random = Numbers::new(seed);
        let shape = Shape::any(&mut random, 20, 2);
        let devices = shape.devices();
        let builder = RaggedArray::<u32>::builder().devices(devices);
        let builder = builder.elements(|elements| elements.page_len(shape.page_len).frames_per_channel(2));
        let builder = builder.offsets(|offsets| offsets.page_len(8).frames_per_channel(2));
        let mut rows: Vec<Vec<u32>> = Vec::new();
        let mut writer = builder.writer().unwrap();
        for round in 0..4 {
            let new: Vec<Vec<u32>> = (0..random.below(100)).map(|_| vec![round; random.below(30)]).collect();
            for (number, row) in (rows.len()..).zip(&new) {
                assert_eq!(writer.push(row).unwrap(), number);
            }
            rows.extend(new);
            let array = writer.freeze().unwrap();
            assert_eq!(array.to_vecs().unwrap(), rows, "seed {seed}, round {round}");
            assert_eq!(array.items().count(..array.item_total(), Field::whole(), &round).unwrap(), {
                rows.iter().flatten().filter(|value| **value == round).count()
            });
            writer = array.into_writer();
        }
    }
    // Without memory for the array, the call returns an error.
    let array = RaggedArray::<u32>::builder().devices(hosts::<1>()).with_lengths([3, 4]).unwrap();
    let writer = array.into_writer();
    assert!(matches!(writer.push(&[1]).unwrap_err().kind(), ErrorKind::LengthLimit { .. }));
    assert_eq!(writer.freeze().unwrap().len(), 2);
}

#[test]
fn devices_whose_memory_cannot_grow_have_longer_arrays_built() {
    let card = Arc::new(Faulty::new(HostDevice::builder().bytes(64 << 10).threads(1).build().unwrap()));
    card.inject(Fault::new(Operation::AllocateExtensible, DeviceErrorKind::Unsupported));
    let builder = RaggedArray::<u32>::builder().devices([as_any(&card)]);
    let writer = builder.elements(|elements| elements.page_len(64).frames_per_channel(8)).writer().unwrap();
    let mut rows = 0;
    let error = loop {
        match writer.push(&[rows; 100]) {
            Ok(_) => rows += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error.kind(), ErrorKind::NoRoomToGrow { .. }), "{error}");
    // During growth there are two copies, so at most half of the memory is in use, and not much less.
    assert!((20 << 10..33 << 10).contains(&(rows * 400)), "{rows}");
    let array = writer.freeze().unwrap();
    assert!((0..rows).all(|row| array.row(row as usize).unwrap().to_vec(..).unwrap() == [row; 100]));
}

#[test]
fn a_writer_whose_capacity_was_stated_fills_its_devices() {
    let device = Arc::new(HostDevice::builder().bytes(64 << 10).threads(1).build().unwrap());
    let builder = RaggedArray::<u32>::builder().devices([as_any(&device)]);
    // Later settings do not discard the settings of the offsets.
    let builder = builder.offsets(|offsets| offsets.page_len(64)).elements(|elements| elements.page_len(64));
    let writer = builder.capacity(150, 15_000).writer().unwrap();
    for row in 0..150 {
        writer.push(&[row; 100]).unwrap();
    }
    assert_eq!(writer.freeze().unwrap().item_total(), 15_000, "60 KB of 64 KiB");
}

#[test]
fn settings_of_the_offsets_outlive_the_choice_of_devices() {
    let device = Arc::new(HostDevice::new(1 << 20).unwrap());
    let builder = RaggedArray::<u32>::builder().offsets(|offsets| offsets.page_len(0));
    let error = builder.devices([as_any(&device)]).writer().unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::ZeroPageLength);
}
