//! Tests of arrays and rows in damaged files: each access returns an error or the right elements.

use std::path::Path;

use vmarray::device::ErrorKind as DeviceErrorKind;
use vmarray::device::wrap::SplitMix64;
use vmarray::{RaggedArray, prelude::*};

use crate::stored::{Files, of_device};

/// Returns the number of cases of a test: 25, 100 in nightly runs, or `VMARRAY_DAMAGED_FILES`.
fn cases() -> u64 {
    std::env::var("VMARRAY_DAMAGED_FILES")
        .ok()
        .and_then(|cases| cases.parse().ok())
        .unwrap_or(u64::from(backend_api::wrap::random_cases(100)))
}

/// Damages one place of a file: a flipped bit, zeroes, a cut, or two blocks that are swapped.
fn damage(path: &Path, random: &mut SplitMix64) -> String {
    const BLOCK_BYTES: usize = 4096;
    let mut bytes = std::fs::read(path).unwrap();
    let used: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at] != 0).collect();
    let at = used[random.index(used.len())];
    let blocks = [at, used[random.index(used.len())]].map(|at| at / BLOCK_BYTES * BLOCK_BYTES);
    let end = (at + 1 + random.index(5000)).min(bytes.len());
    let words = match random.index(6) {
        0..=2 => {
            bytes[at] ^= 1 << random.index(8);
            format!("flip at {at}")
        }
        3 => {
            bytes[at..end].fill(0);
            format!("zeroes in {at}..{end}")
        }
        4 => {
            bytes.truncate(at);
            format!("cut at {at}")
        }
        _ => {
            let [one, other] = blocks.map(|at| bytes[at..(at + BLOCK_BYTES).min(bytes.len())].to_vec());
            let count = one.len().min(other.len());
            bytes[blocks[0]..][..count].copy_from_slice(&other[..count]);
            bytes[blocks[1]..][..count].copy_from_slice(&one[..count]);
            format!("blocks at {blocks:?}")
        }
    };
    std::fs::write(path, bytes).unwrap();
    words
}

/// Errors of damaged files name the file.
fn expect_damage(error: &vmarray::Error, files: &Files, context: &str) {
    let kind = of_device(error);
    assert!(
        matches!(kind, Some(DeviceErrorKind::Corrupted | DeviceErrorKind::WrongFormat)),
        "{context}: {error}"
    );
    let names = files.0.iter().map(|path| path.file_name().unwrap().to_str().unwrap());
    assert!(names.into_iter().any(|name| error.to_string().contains(name)), "{context}: {error}");
}

/// A growing array in one file or two, closed or killed, after 1 to 12 calls of `sync`: the opened array has
/// the length and the elements of one of them, and keeps the element that the test pushes next.
#[test]
fn growing_arrays_open_as_they_were_or_not_at_all() {
    let (mut right, mut refused, mut older) = (0, 0, 0);
    for case in 0..cases() {
        let mut random = SplitMix64::new(case);
        let (files, is_closed) = (Files::new(1 + random.index(2)), random.index(3) > 0);
        let page_len = [3, 64, 1500][random.index(3)];
        let array = VirtualArray::<u64>::builder(0).page_len(page_len).create(&files.0).unwrap();
        let mut lengths = vec![0];
        for _ in 0..1 + random.index(12) {
            for _ in 0..random.index(4 * page_len.min(40)) {
                let at = array.len() as u64;
                array.push(at | 1 << 60).unwrap();
            }
            array.sync().unwrap();
            lengths.push(array.len());
        }
        let files = if is_closed {
            drop(array);
            files
        } else {
            // The copies are the files that a killed process leaves.
            files.copies()
        };
        let damaged = random.index(files.0.len());
        let context = format!("case {case}: {}", damage(&files.0[damaged], &mut random));
        let builder = || VirtualArray::<u64>::builder(0);
        let opened = match builder().open_read_only(&files.0) {
            Ok(array) => array,
            Err(error) => {
                expect_damage(&error, &files, &context);
                refused += 1;
                continue;
            }
        };
        let len = opened.len();
        if Some(&len) == lengths.last() {
            right += 1;
        } else {
            assert!(!is_closed && lengths.contains(&len), "{context}: {len} of {lengths:?}");
            older += 1;
        }
        for i in 0..len {
            match opened.get(i) {
                Ok(value) => assert_eq!(value, i as u64 | 1 << 60, "{context}"),
                Err(error) => expect_damage(&error, &files, &context),
            }
        }
        drop(opened);
        let array = builder().open(&files.0).unwrap();
        assert_eq!(array.len(), len, "{context}");
        // The page of the new element may be damaged.
        let Ok(at) = array.push(7) else { continue };
        array.sync().unwrap();
        drop(array);
        let array = builder().open(&files.0).unwrap();
        assert_eq!((array.len(), array.get(at).unwrap()), (len + 1, 7), "{context}");
    }
    println!("{right} as they were, {refused} refused, {older} older");
    assert!(right > 0 && refused > 0);
}

/// Rows in a file that was closed.
#[test]
fn rows_open_as_they_were_or_not_at_all() {
    let (mut right, mut refused) = (0, 0);
    for case in 0..cases() / 2 {
        let mut random = SplitMix64::new(1 << 32 | case);
        let files = Files::new(1);
        let writer = RaggedArray::<u32>::create(&files.0[0]).unwrap().into_writer();
        let mut rows: Vec<Vec<u32>> = Vec::new();
        for _ in 0..1 + random.index(8) {
            for _ in 0..random.index(20) {
                let row: Vec<u32> =
                    (0..random.index(50)).map(|i| rows.len() as u32 * 100 + i as u32).collect();
                writer.push(&row).unwrap();
                rows.push(row);
            }
            writer.sync().unwrap();
        }
        drop(writer);
        let context = format!("case {case}: {}", damage(&files.0[0], &mut random));
        let found = RaggedArray::<u32>::open(&files.0[0]).and_then(|rows| rows.to_vecs());
        match found {
            Ok(found) => {
                assert_eq!(found, rows, "{context}");
                right += 1;
            }
            Err(error) => {
                expect_damage(&error, &files, &context);
                refused += 1;
            }
        }
    }
    println!("{right} as they were, {refused} refused");
    assert!(right > 0 && refused > 0);
}
