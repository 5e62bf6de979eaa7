//! Tests of arrays whose elements stay in `.npy` and safetensors files.

use std::fs;

use vmarray::NdArray;
use vmarray::prelude::*;
use vmarray::store::FileAccess;
use vmarray_formats::npy::{self, NpyFile};
use vmarray_formats::safetensors::SafeTensors;
use vmarray_formats::{ByteOrder, Error, FileOptions};

use crate::common::Folder;
use crate::npy::file_of;

const READ: FileAccess = FileAccess::ReadOnly;

#[test]
fn npy_files_are_used_in_place_or_refused() {
    let folder = Folder::new();
    let path = folder.file("a.npy");
    let own = NdArray::<i32, 2>::new([5, 4]).unwrap();
    own.set([4, 1], -7).unwrap();
    npy::write(&path, &own, FileOptions::new()).unwrap();
    let open = || NpyFile::open(&path).unwrap();
    let array: NdArray<i32, 2> = open().into_array(FileAccess::CopyOnWrite, |array| array).unwrap();
    array.transform(.., Field::whole().set(3)).unwrap();
    assert_eq!((array.sum(.., Field::whole()).unwrap(), array.get([4, 1]).unwrap()), (60, 3));
    let rows: NdArray<[i32; 4], 1> = open().into_array(READ, |array| array).unwrap();
    assert_eq!(rows.get([4]).unwrap(), [0, -7, 0, 0]);
    assert!(rows.set([4], [0; 4]).is_err());
    drop(rows);
    let wrong = open().into_array::<u32, 2>(READ, |array| array).unwrap_err();
    assert!(matches!(wrong, Error::ElementMismatch { .. }), "{wrong}");
    let wrong = open().into_array::<[i32; 5], 1>(READ, |array| array).unwrap_err();
    assert!(matches!(wrong, Error::ElementMismatch { .. }), "{wrong}");
    let wrong = open().into_array::<i32, 1>(READ, |array| array).unwrap_err();
    assert!(matches!(wrong, Error::RankMismatch { expected: 1, found: 2, .. }), "{wrong}");
    npy::write(&path, &own, FileOptions::new().byte_order(ByteOrder::Big)).unwrap();
    let wrong = open().into_array::<i32, 2>(READ, |array| array).unwrap_err();
    assert!(matches!(wrong, Error::Unsupported { .. }), "{wrong}");
    file_of(&path, "{'descr': '<u4', 'fortran_order': True, 'shape': (2, 2)}", &[0; 16]);
    let wrong = open().into_array::<u32, 2>(READ, |array| array).unwrap_err();
    assert!(matches!(wrong, Error::Unsupported { .. }), "{wrong}");
}

fn written(path: &std::path::Path, header: &str, bytes: usize) {
    let length = (header.len() as u64).to_le_bytes();
    fs::write(path, [&length, header.as_bytes(), &vec![1; bytes]].concat()).unwrap();
}

#[test]
fn hostile_safetensors_are_refused() {
    let folder = Folder::new();
    let path = folder.file("a.safetensors");
    let fine = r#"{"dtype":"U16","shape":[2,1],"data_offsets":[0,4]}"#;
    written(&path, &format!(r#"{{"__metadata__":{{"a":"b"}},"a":{fine}}}"#), 4);
    let file = SafeTensors::open(&path).unwrap();
    let array: NdArray<u16, 2> = file.array("a", READ, |array| array).unwrap();
    assert_eq!(array.get([1, 0]).unwrap(), 0x0101);
    assert!(matches!(file.array::<u16, 2>("b", READ, |array| array), Err(Error::Malformed { .. })));
    assert!(matches!(file.array::<i16, 2>("a", READ, |array| array), Err(Error::ElementMismatch { .. })));
    let huge = u64::MAX;
    for tensor in [
        r#"{"dtype":"U16","shape":[3],"data_offsets":[0,4]}"#.into(),
        r#"{"dtype":"U16","shape":[-2],"data_offsets":[0,4]}"#.into(),
        r#"{"dtype":"U16","shape":[2.0],"data_offsets":[0,4]}"#.into(),
        r#"{"dtype":"U16","shape":[2],"data_offsets":[4,0]}"#.into(),
        r#"{"dtype":"U16","shape":[2],"data_offsets":[1,5]}"#.into(),
        r#"{"dtype":"U16","shape":[2],"data_offsets":[0]}"#.into(),
        r#"{"dtype":7,"shape":[2],"data_offsets":[0,4]}"#.into(),
        r#"{"shape":[2],"data_offsets":[0,4]}"#.into(),
        format!(r#"{{"dtype":"U64","shape":[{huge},{huge}],"data_offsets":[0,4]}}"#),
        "[]".into(),
        "null".into(),
    ] {
        written(&path, &format!(r#"{{"a":{tensor}}}"#), 4);
        let error = SafeTensors::open(&path).unwrap_err();
        assert!(matches!(error, Error::Malformed { .. }), "{tensor}: {error}");
    }
    for header in [
        "[]".into(),
        "{".into(),
        "\u{0}".into(),
        format!(r#"{{"a":{fine},"a":{fine}}}"#),
        format!(r#"{{"a":{fine},"b":{fine}}}"#),
        format!(r#"{{"__metadata__":3,"a":{fine}}}"#),
        "[".repeat(100_000),
    ] {
        written(&path, &header, 4);
        assert!(matches!(SafeTensors::open(&path), Err(Error::Malformed { .. })), "{header:.60}");
    }
    for bytes in [0, 3, 5] {
        written(&path, &format!(r#"{{"a":{fine}}}"#), bytes);
        assert!(matches!(SafeTensors::open(&path), Err(Error::LengthMismatch { .. })), "{bytes}");
    }
    for contents in [&b""[..], &[0; 7], &[255; 16], &[9, 0, 0, 0, 0, 0, 0, 0, b'{', b'}']] {
        fs::write(&path, contents).unwrap();
        assert!(matches!(SafeTensors::open(&path), Err(Error::Malformed { .. })), "{contents:?}");
    }
    written(&path, r#"{"a":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}}"#, 1);
    assert!(matches!(SafeTensors::open(&path), Err(Error::Unsupported { .. })));
}
