//! Tests that damaged and malicious `.npy` files cause typed errors.

use std::fs;

use proptest::prelude::*;
use vmarray::device::wrap::random_cases;
use vmarray_formats::npy::NpyFile;
use vmarray_formats::{Error, FileOptions};

use crate::common::{Folder, array};
use crate::npy::file_of;

#[test]
fn each_fault_has_its_error() {
    let folder = Folder::new();
    let path = folder.file("a.npy");
    let error = |contents: &[u8]| {
        fs::write(&path, contents).unwrap();
        NpyFile::open(&path).unwrap_err()
    };
    for contents in [&b""[..], b"\x93NUMPY\x01\0", b"\x93NUMPZ\x01\0\x02\0{}", b"PK\x03\x04 an archive"] {
        assert!(matches!(error(contents), Error::Malformed { .. }), "{contents:?}");
    }
    assert!(matches!(error(b"\x93NUMPY\x04\0\x02\0\0\0{}"), Error::Unsupported { .. }));
    // Test headers that are longer than the file.
    for contents in [&b"\x93NUMPY\x01\0\xff\xff{}  "[..], b"\x93NUMPY\x03\0\xff\xff\xff\xff{}  "] {
        assert!(matches!(error(contents), Error::LengthMismatch { .. }), "{contents:?}");
    }
    assert!(matches!(error(b"\x93NUMPY\x03\0\x02\0\0\0\xff\xff"), Error::Malformed { .. }));

    let of_header = |header: &str, contents: &[u8]| {
        file_of(&path, header, contents);
        NpyFile::open(&path).unwrap_err()
    };
    let described = |shape: &str| format!("{{'descr': '<u4', 'fortran_order': False, 'shape': {shape}}}");
    for shape in [
        "(4294967296, 4294967296)",
        "(18446744073709551615,)",
        "(99999999999999999999,)",
        "(-1,)",
        "(1.5,)",
        "('a',)",
        "3",
        "None",
    ] {
        assert!(matches!(of_header(&described(shape), &[0; 16]), Error::Malformed { .. }), "{shape}");
    }
    let deep = format!("({})", "1, ".repeat(10_000));
    assert!(matches!(of_header(&described(&deep), &[0; 16]), Error::Malformed { .. }));
    match of_header(&described("(1000000000000,)"), &[0; 16]) {
        Error::LengthMismatch { expected_bytes, .. } => assert!(expected_bytes > 4_000_000_000_000),
        other => panic!("{other}"),
    }
    for header in [
        "{'descr': '<u4', 'fortran_order': False}",
        "{'descr': '<u4', 'fortran_order': 0, 'shape': ()}",
        "{'descr': '<u4', 'fortran_order': False, 'shape': (), 'more': 1}",
        "{'descr': 4, 'fortran_order': False, 'shape': ()}",
        "__import__('os').system('true')",
        "",
    ] {
        assert!(matches!(of_header(header, &[]), Error::Malformed { .. }), "{header}");
    }
    for code in ["|O", "<U7", "<M8[ns]", "<f16"] {
        let header = format!("{{'descr': '{code}', 'fortran_order': False, 'shape': ()}}");
        let error = of_header(&header, &[0; 64]);
        assert!(matches!(error, Error::Unsupported { .. }) && error.to_string().contains(code), "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: random_cases(1500), failure_persistence: None, ..ProptestConfig::default() })]

    /// A file with any change is either read or refused, without a panic, and without an allocation beyond
    /// the file's length.
    #[test]
    fn mutated_headers_end_in_typed_errors(
        which in 0_usize..3,
        changes in prop::collection::vec((any::<prop::sample::Index>(), 0..4, any::<u8>()), 1..6),
    ) {
        let folder = Folder::new();
        let path = folder.file("a.npy");
        let header = [
            "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 5), }",
            "{'descr': [('x', '>u2'), ('v', '<f8', (2, 2)), ('n', [('a', '|i1')])], 'fortran_order': True, 'shape': (4,)}",
            "{'shape': (), 'fortran_order': False, 'descr': '<c16'}",
        ][which];
        file_of(&path, header, &[1; 200]);
        let mut contents = fs::read(&path).unwrap();
        for (at, kind, byte) in changes {
            let at = at.index(contents.len().min(header.len() + 10));
            match kind {
                0 => contents[at] = byte,
                1 => contents.insert(at, byte),
                2 => drop(contents.remove(at)),
                // Use characters that have a meaning in a header.
                _ => contents[at] = b"0123456789'\"()[]{},: <>|=TF\\xuUSV"[usize::from(byte) % 33],
            }
        }
        fs::write(&path, contents).unwrap();
        if let Ok(file) = NpyFile::open(&path) {
            // The file has as many elements as its shape.
            let elements = file.shape().iter().product::<usize>();
            let has_bytes = !file.type_name().contains("; 0]") && file.type_name() != "{}";
            prop_assert!(elements <= 200 || !has_bytes);
            let read = file.read(&array::<f32>(15, 4), FileOptions::new());
            let is_it = file.type_name() == "f32" && file.shape() == [15];
            prop_assert!(is_it == read.is_ok());
        }
    }
}
