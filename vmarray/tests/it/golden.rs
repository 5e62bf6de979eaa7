//! Tests that small files of each kind from earlier versions of the library open with their contents.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use vmarray::index_set::PagedIndexSet;
use vmarray::nd::NdLayout;
use vmarray::store::StoreDevice;
use vmarray::{IndexSet, RaggedArray, VirtualArray, prelude::*};

use crate::stored::Files;

/// The current version of files; `tests/golden/README.md` describes the steps when it rises.
const VERSION: &str = "v3";
/// All readable versions.
const VERSIONS: [&str; 2] = ["v2", VERSION];
const LINE_BYTES: usize = 32;

fn path_of(version: &str, name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("golden/{version}-{name}.txt"))
}

/// A file as text, without its zeroes.
fn to_text(bytes: &[u8]) -> String {
    let mut text = String::new();
    for (offset, line) in (0..).step_by(LINE_BYTES).zip(bytes.chunks(LINE_BYTES)) {
        if line.iter().any(|byte| *byte != 0) {
            let digits = line.iter().fold(String::new(), |digits, byte| format!("{digits}{byte:02x}"));
            writeln!(text, "{offset:08x}: {digits}").unwrap();
        }
    }
    writeln!(text, "length: {}", bytes.len()).unwrap();
    text
}

fn of_text(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for line in text.lines() {
        let (name, value) = line.split_once(": ").unwrap();
        if name == "length" {
            bytes.resize(value.parse().unwrap(), 0);
            continue;
        }
        bytes.resize(usize::from_str_radix(name, 16).unwrap(), 0);
        let digits = |at: usize| u8::from_str_radix(&value[at..at + 2], 16).unwrap();
        bytes.extend((0..value.len()).step_by(2).map(digits));
    }
    bytes
}

/// Files made from texts, at temporary paths.
fn files(version: &str, names: &[&str]) -> Files {
    let files = Files::new(names.len());
    for (path, name) in files.0.iter().zip(names) {
        let text = std::fs::read_to_string(path_of(version, name)).unwrap();
        std::fs::write(path, of_text(&text)).unwrap();
        let report = StoreDevice::check(path).unwrap();
        assert!(report.damaged_pages.is_empty() && report.damaged_superblocks == 0, "{name}: {report:?}");
    }
    files
}

fn squares(len: u64) -> Vec<u64> {
    (0..len).map(|i| i * i).collect()
}

/// Writes the files of this version.
#[test]
#[ignore = "writes files of a new version, once"]
fn golden_files_are_made() {
    let keep = |files: &Files, names: &[&str]| {
        for (path, name) in files.0.iter().zip(names) {
            std::fs::write(path_of(VERSION, name), to_text(&std::fs::read(path).unwrap())).unwrap();
        }
    };
    for names in [&["array"][..], &["two-files-0", "two-files-1"]] {
        let made = Files::new(names.len());
        let builder = || VirtualArray::<u64>::builder(0).page_len(8);
        let mut array = builder().create(&made.0).unwrap();
        array.extend_from_slice(&squares(30)).unwrap();
        array.sync().unwrap();
        array.extend_from_slice(&[7; 20]).unwrap();
        array.sync().unwrap();
        array.truncate(20).unwrap();
        drop(array);
        let array = builder().open(&made.0).unwrap();
        for i in 20..40 {
            array.push(i * i).unwrap();
        }
        drop(array);
        keep(&made, names);
    }
    // These files have block checksums.
    let made = Files::new(1);
    let array = VirtualArray::<u64>::builder(3000).page_len(1024).create(&made.0).unwrap();
    [5, 2500].iter().for_each(|i| array.set(*i, *i as u64).unwrap());
    drop(array);
    keep(&made, &["blocks"]);
    let made = Files::new(1);
    let image = NdArray::<u16, 2>::builder([5, 7]).tile([4, 4]).create(&made.0).unwrap();
    (0..35).for_each(|i| image.set([i / 7, i % 7], i as u16).unwrap());
    drop(image);
    keep(&made, &["boxes"]);
    let made = Files::new(1);
    let rows = RaggedArray::<u16>::builder().elements(|elements| elements.page_len(32));
    let writer = rows.create(&made.0).unwrap().into_writer();
    for row in [&[1, 2, 3][..], &[], &[4; 40]] {
        writer.push(row).unwrap();
        writer.sync().unwrap();
    }
    drop(writer.freeze().unwrap());
    keep(&made, &["rows"]);
    let made = Files::new(1);
    let array = VirtualArray::<u64>::builder(40).page_len(8).build().unwrap();
    array.write(0, &squares(40)).unwrap();
    array.save(&made.0[0]).unwrap();
    keep(&made, &["snapshot"]);
    let made = Files::new(1);
    let tuples = IndexSet::from_rows([7, 0], [[1, 5], [2, 6]]).unwrap();
    PagedIndexSet::from_index_set(&tuples, |array| array.page_len(8)).unwrap().save(&made.0[0]).unwrap();
    keep(&made, &["tuples"]);
}

/// Writable copies; opening converts files of earlier versions.
fn writable(version: &str, names: &[&str]) -> Files {
    let old = files(version, names);
    if version == VERSION {
        return old;
    }
    let new = Files::new(names.len());
    for (old, new) in old.0.iter().zip(&new.0) {
        let error = StoreDevice::open(old).unwrap_err();
        assert_eq!(error.kind(), vmarray::device::ErrorKind::WrongFormat);
        assert!(error.to_string().contains("--convert"), "{error}");
        StoreDevice::convert(old, new).unwrap();
        let report = StoreDevice::check(new).unwrap();
        assert!(report.is_closed && report.version == 3, "{report:?}");
    }
    new
}

#[test]
fn files_of_all_versions_are_opened() {
    for version in VERSIONS {
        for names in [&["array"][..], &["two-files-0", "two-files-1"], &["snapshot"]] {
            let old = files(version, names);
            let array = VirtualArray::<u64>::builder(0).open_read_only(&old.0).unwrap();
            assert_eq!(array.to_vec(..).unwrap(), squares(40), "{version} {names:?}");
            let files = writable(version, names);
            for goes_on in [false, true] {
                let array = VirtualArray::<u64>::builder(0).open(&files.0).unwrap();
                let mut expected = squares(40);
                expected.resize(40 + usize::from(goes_on), 9);
                assert_eq!(array.to_vec(..).unwrap(), expected, "{names:?}");
                assert_eq!(array.page_len(), 8);
                array.push(9).unwrap();
            }
        }
        if version != "v2" {
            let files = writable(version, &["blocks"]);
            let array = VirtualArray::<u64>::builder(0).open(&files.0).unwrap();
            let (mut part, mut expected) = (vec![0; 600], vec![0; 600]);
            array.read(2200, &mut part).unwrap();
            expected[300] = 2500;
            assert_eq!((array.len(), array.get(5).unwrap(), part), (3000, 5, expected));
        }
        let boxes = writable(version, &["boxes"]);
        let image = NdArray::<u16, 2>::builder([0, 0]).open(&boxes.0).unwrap();
        assert_eq!((image.shape(), image.layout()), ([5, 7], NdLayout::Tiled([4, 4])));
        assert!((0..35).all(|i| image.get([i / 7, i % 7]).unwrap() == i as u16));
        let rows = writable(version, &["rows"]);
        let rows = RaggedArray::<u16>::open(&rows.0[0]).unwrap();
        assert_eq!(rows.to_vecs().unwrap(), [vec![1, 2, 3], vec![], vec![4; 40]]);
        // Open the snapshot for reading only, which never writes.
        let tuples = files(version, &["tuples"]);
        let set = IndexSet::load(&tuples.0[0]).unwrap();
        assert_eq!((set.dimensions(), set.values()), (&[7, 0][..], &[1, 5, 2, 6][..]));
    }
}
