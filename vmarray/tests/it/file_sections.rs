//! Arrays over byte ranges of files of other programs: values, bounds, and files that change.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use vmarray::device::ErrorKind as DeviceErrorKind;
use vmarray::device::wrap::SplitMix64;
use vmarray::explain::{PlannedRoute, Work};
use vmarray::store::{FileAccess, FileSection};
use vmarray::support::private_dir;
use vmarray::{ErrorKind, NdArray, prelude::*};

use crate::common::host;
use crate::stored::of_device;

/// A file with an odd number of bytes before `len` numbers, and some bytes behind them.
struct Numbers(PathBuf);

const OFFSET: u64 = 13;

impl Numbers {
    fn new(len: u64) -> Self {
        let path = std::env::temp_dir().join(private_dir::random_name());
        let numbers: Vec<u64> = (0..len).map(|i| i * i).collect();
        let bytes = [&[1; OFFSET as usize][..], bytemuck::cast_slice(&numbers), &[2; 7]].concat();
        std::fs::write(&path, bytes).unwrap();
        Self(path)
    }

    fn open(&self, len: u64, access: FileAccess) -> vmarray::Result<VirtualArray<u64>> {
        let section = FileSection::open(&self.0, OFFSET..OFFSET + 8 * len, access)?;
        VirtualArray::builder(0).page_len(100).cache_bytes(8 * 100 * 8).build_over_file(section)
    }

    fn cut(&self, bytes: u64) {
        File::options().write(true).open(&self.0).unwrap().set_len(bytes).unwrap();
    }
}

impl Drop for Numbers {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn all_operations_work_in_place() {
    let (file, len) = (Numbers::new(10_050), 10_050_u64);
    let before = std::fs::read(&file.0).unwrap();
    for access in [FileAccess::CopyOnWrite, FileAccess::ReadWrite] {
        let array = file.open(len, access).unwrap();
        let list: Vec<usize> = (0..3000).map(|i| i * 7919 % len as usize).collect();
        assert!(array.gather(&list).unwrap().iter().zip(&list).all(|(found, i)| *found == (i * i) as u64));
        assert_eq!(array.get(10_049).unwrap(), 10_049 * 10_049);
        let mut model: Vec<u64> = (0..len).map(|i| i * i).collect();
        array.scatter(&list, &vec![5; list.len()]).unwrap();
        list.iter().for_each(|i| model[*i] = 5);
        array.fill(4000..4321, 9).unwrap();
        model[4000..4321].fill(9);
        array.set(10_049, 8).unwrap();
        model[10_049] = 8;
        assert_eq!(array.to_vec(..).unwrap(), model);
        let total: u64 = model.iter().sum();
        assert_eq!(array.sum(.., Field::whole()).unwrap(), i128::from(total));
        array.sort(..).unwrap();
        model.sort_unstable();
        assert_eq!(array.to_vec(..).unwrap(), model);
        array.sync().unwrap();
        let after = std::fs::read(&file.0).unwrap();
        if access == FileAccess::CopyOnWrite {
            assert_eq!(after, before);
        } else {
            let end = before.len() - 7;
            assert_eq!((&after[..13], &after[end..]), (&before[..13], &before[end..]));
            assert_eq!(after[13..end], *bytemuck::cast_slice::<u64, u8>(&model));
        }
    }
    let array = file.open(len, FileAccess::ReadOnly).unwrap();
    assert!(array.set(0, 1).is_err() && array.fill(.., 1).is_err() && array.sort(..).is_err());
    array.sync().unwrap();
}

#[test]
fn changes_are_written_by_the_drop() {
    let file = Numbers::new(1000);
    file.open(1000, FileAccess::ReadWrite).unwrap().set(999, 77).unwrap();
    assert_eq!(file.open(1000, FileAccess::ReadOnly).unwrap().get(999).unwrap(), 77);
}

/// Rows inside of pages, across pages, in the cache, changed there, listed twice, and from two threads.
#[test]
fn lists_of_rows_read_the_newest_values() {
    let (file, len) = (Numbers::new(20_000), 20_000_usize);
    let array = file.open(len as u64, FileAccess::ReadWrite).unwrap();
    let mut model: Vec<u64> = (0..len as u64).map(|i| i * i).collect();
    let mut random = SplitMix64::new(5);
    for (round, row_len) in [1, 2, 7, 64, 99, 100, 101, 250, 3000].into_iter().cycle().take(36).enumerate() {
        for _ in 0..3 {
            let start = random.index(len - 150);
            let values: Vec<u64> = (0..1 + random.index(150)).map(|_| random.next()).collect();
            array.write(start, &values).unwrap();
            model[start..start + values.len()].copy_from_slice(&values);
        }
        let mut starts: Vec<usize> = (0..2000).map(|_| random.index(len - row_len + 1)).collect();
        match round % 4 {
            0 => starts.sort_unstable(),
            1 => starts.truncate(3),
            2 => starts.iter_mut().for_each(|start| *start %= 150),
            _ => starts[7] = len - row_len,
        }
        let expected: Vec<u64> =
            starts.iter().flat_map(|start| model[*start..][..row_len].to_vec()).collect();
        let mut rows = vec![1; expected.len()];
        std::thread::scope(|threads| {
            // Evictions move pages between cache and file meanwhile.
            threads.spawn(|| (0..20).try_for_each(|page| array.evict(page * 1000..page * 1000 + 500)));
            array.gather_rows(&starts, row_len, &mut rows).unwrap();
        });
        assert!(rows == expected, "rows of {row_len}, round {round}");
    }
    let error = array.gather_rows(&[0, len - 1], 2, &mut [0; 4]).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::RangeOutside { start: len - 1, end: len + 1, len });
    let error = array.gather_rows(&[usize::MAX], 2, &mut [0; 2]).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::RangeOutside { .. }), "{error}");
    let error = array.gather_rows(&[0], 2, &mut [0; 3]).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::LengthMismatch { .. }), "{error}");
    array.gather_rows(&[], 2, &mut []).unwrap();
    array.gather_rows(&[usize::MAX], 0, &mut []).unwrap();
    // The same in memory.
    let memory = VirtualArray::builder(len).devices([Arc::new(host())]).page_len(100);
    let memory = memory.frames_per_channel(8).build().unwrap();
    memory.write(0, &model).unwrap();
    let mut rows = vec![0; 3 * 250];
    memory.gather_rows(&[9, 0, len - 250], 250, &mut rows).unwrap();
    assert_eq!(rows, [&model[9..259], &model[..250], &model[len - 250..]].concat());
}

#[test]
fn explain_predicts_the_reads_of_a_list() {
    let file = Numbers::new(20_000);
    let array = file.open(20_000, FileAccess::ReadOnly).unwrap();
    array.get(10_000).unwrap();
    // Two elements of a page, both in one read with the gap between them, and one of another page.
    let list = [7_020, 15_050, 7_005];
    let plan = array.explain(.., Work::Gather(&list)).unwrap();
    assert_eq!((plan.route, plan.pages, plan.bytes_to_device()), (PlannedRoute::Merged, 2, 0));
    array.reset_stats();
    array.gather(&list).unwrap();
    let stats = array.stats().total();
    assert_eq!((stats.bytes_from_device, plan.bytes_from_device()), (16 * 8 + 8, 16 * 8 + 8));
    assert_eq!(stats.misses, 2);
}

#[test]
fn a_shape_without_elements_needs_no_bytes_of_the_file() {
    let file = Numbers::new(10);
    for range in [0..0, 13..93] {
        let section = FileSection::open(&file.0, range, FileAccess::ReadOnly).unwrap();
        let array = NdArray::<u64, 2>::builder([0, 3]).build_over_file(section).unwrap();
        assert_eq!((array.shape(), array.elements().len()), ([0, 3], 0));
        array.sync().unwrap();
    }
}

/// A short file is an error of the call that needs the missing bytes, and never grows again by a write.
#[test]
fn a_file_that_is_cut_while_open_is_an_error() {
    for access in [FileAccess::ReadOnly, FileAccess::ReadWrite, FileAccess::CopyOnWrite] {
        let file = Numbers::new(10_000);
        let array = file.open(10_000, access).unwrap();
        file.cut(OFFSET + 8 * 5000);
        assert_eq!(array.get(4999).unwrap(), 4999 * 4999);
        let corrupted =
            |error: vmarray::Error| assert_eq!(of_device(&error), Some(DeviceErrorKind::Corrupted));
        corrupted(array.get(5000).unwrap_err());
        corrupted(array.to_vec(4000..6000).unwrap_err());
        corrupted(array.gather(&[1, 9000]).unwrap_err());
        corrupted(array.gather_rows(&[9000, 1], 50, &mut [0; 100]).unwrap_err());
        corrupted(array.sum(.., Field::whole()).map(drop).unwrap_err());
        if access == FileAccess::ReadWrite {
            let written = array.fill(.., 1).and_then(|()| array.sync());
            corrupted(written.unwrap_err());
            drop(array);
            assert_eq!(std::fs::metadata(&file.0).unwrap().len(), OFFSET + 8 * 5000);
        }
    }
}

#[test]
fn wrong_ranges_lengths_and_locks_are_refused() {
    let file = Numbers::new(100);
    let kind = |error: &vmarray::Error| of_device(error);
    assert_eq!(kind(&file.open(102, FileAccess::ReadOnly).unwrap_err()), Some(DeviceErrorKind::WrongFormat));
    let section = || FileSection::open(&file.0, OFFSET.., FileAccess::ReadOnly).unwrap();
    // Seven bytes remain behind the last number.
    let error = VirtualArray::<u64>::builder(0).build_over_file(section()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::FileMismatch { what: "length", .. }), "{error}");
    assert_eq!(VirtualArray::<u64>::builder(100).build_over_file(section()).unwrap().get(99).unwrap(), 9801);
    let error = VirtualArray::<u64>::builder(101).build_over_file(section()).unwrap_err();
    assert!(error.to_string().contains("807 bytes") && error.to_string().contains("808 bytes"), "{error}");
    for (one, other, fits) in [
        (FileAccess::ReadOnly, FileAccess::CopyOnWrite, true),
        (FileAccess::ReadOnly, FileAccess::ReadWrite, false),
        (FileAccess::ReadWrite, FileAccess::ReadOnly, false),
        (FileAccess::ReadWrite, FileAccess::ReadWrite, false),
    ] {
        let open = file.open(100, one).unwrap();
        let second = file.open(100, other);
        assert_eq!(second.is_ok(), fits, "{one:?} {other:?}");
        second.map_or_else(|error| assert_eq!(kind(&error), Some(DeviceErrorKind::InUse)), drop);
        drop(open);
    }
    let folder = FileSection::open(std::env::temp_dir(), .., FileAccess::ReadOnly).unwrap_err();
    let none = FileSection::open(file.0.with_extension("none"), .., FileAccess::ReadOnly).unwrap_err();
    assert!(folder.to_string().contains("regular file") && none.to_string().contains("that exists"));
}
