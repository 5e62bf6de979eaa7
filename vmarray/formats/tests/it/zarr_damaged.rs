//! Tests that damaged and malicious stores cause typed errors.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use serde_json::{Value, json};
use vmarray::device::wrap::random_cases;
use vmarray::prelude::*;
use vmarray_formats::zarr::{self, Compression, Encoding, Zarr};
use vmarray_formats::{Error, FileOptions};

use crate::common::{Folder, array, rows, values};
use crate::zarr::compressions;

/// A store of a hundred numbers.
fn store(folder: &Folder, encoding: Encoding<u32>) -> PathBuf {
    let path = folder.file("a.zarr");
    let elements = array::<u32>(100, 16);
    elements.write(0, &values(100, 3)).unwrap();
    zarr::write(&path, &elements, encoding, FileOptions::new()).unwrap();
    path
}

fn load(path: &Path) -> Result<(), Error> {
    Zarr::open(path)?.read(&array::<u32>(100, 16), FileOptions::new().threads(2))
}

fn change(path: &Path, change: impl FnOnce(&mut Value)) {
    let path = path.join("zarr.json");
    let mut metadata = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    change(&mut metadata);
    fs::write(path, serde_json::to_vec(&metadata).unwrap()).unwrap();
}

#[test]
fn each_fault_has_its_error() {
    let error = |change_it: &dyn Fn(&mut Value)| {
        let folder = Folder::new();
        let path = store(&folder, Encoding::new().chunk([10]).shard([20]));
        change(&path, |metadata| change_it(metadata));
        load(&path).unwrap_err()
    };
    type Change = fn(&mut Value);
    let unsupported: [Change; 9] = [
        |of| of["zarr_format"] = json!(2),
        |of| of["storage_transformers"] = json!(["x"]),
        |of| of["chunk_grid"]["name"] = json!("rectilinear"),
        |of| of["chunk_grid"]["configuration"]["chunk_shape"] = json!([1_u64 << 60]),
        |of| of["codecs"][0]["name"] = json!("vlen-utf8"),
        |of| of["codecs"][0]["configuration"]["codecs"][1]["name"] = json!("lzma"),
        |of| of["codecs"][0]["configuration"]["index_codecs"] = json!(["bytes", {"name": "zstd"}]),
        |of| of["codecs"] = json!([{"name": "transpose", "configuration": {"order": [0]}}, of["codecs"][0]]),
        // Nest shards in shards many levels deep.
        |of| {
            for _ in 0..10 {
                let inner = of["codecs"].clone();
                of["codecs"][0]["configuration"]["chunk_shape"] = json!([20]);
                of["codecs"][0]["configuration"]["codecs"] = inner;
            }
        },
    ];
    for (number, change) in unsupported.iter().enumerate() {
        let error = error(change);
        assert!(matches!(error, Error::Unsupported { .. }), "{number}: {error}");
    }
    let malformed: [Change; 8] = [
        |of| of["node_type"] = json!("group"),
        |of| of["shape"] = json!([-1]),
        |of| of["shape"] = json!(vec![1; 1000]),
        |of| of["shape"] = json!([u64::MAX]),
        |of| of["chunk_grid"]["configuration"]["chunk_shape"] = json!([0]),
        |of| of["chunk_grid"]["configuration"]["chunk_shape"] = json!([10, 10]),
        |of| of["codecs"] = json!([]),
        |of| of["codecs"][0]["configuration"]["chunk_shape"] = json!([7]),
    ];
    for (number, change) in malformed.iter().enumerate() {
        let error = error(change);
        assert!(matches!(error, Error::Malformed { .. }), "{number}: {error}");
    }
    assert!(matches!(error(&|of| of["data_type"] = json!("float32")), Error::ElementMismatch { .. }));
    assert!(matches!(error(&|of| of["data_type"] = json!("string")), Error::ElementMismatch { .. }));
    assert!(matches!(error(&|of| of["fill_value"] = json!("much")), Error::Zarr { .. }));
    assert!(matches!(error(&|of| of["shape"] = json!([99])), Error::ShapeMismatch { .. }));

    let folder = Folder::new();
    let path = store(&folder, Encoding::new());
    fs::write(path.join("zarr.json"), b"{").unwrap();
    assert!(matches!(load(&path), Err(Error::Malformed { .. })));
    fs::write(path.join("zarr.json"), vec![b' '; 2 << 20]).unwrap();
    assert!(matches!(load(&path), Err(Error::Malformed { .. })));
    fs::write(path.join("zarr.json"), vec![b'['; 1 << 19]).unwrap();
    assert!(matches!(load(&path), Err(Error::Malformed { .. })));
    assert!(matches!(load(&folder.file("none")), Err(Error::Malformed { .. })));
}

/// Chunks that decompress to much more than the length of a chunk.
#[test]
fn bombs_are_refused() {
    let write_over = |compression, contents: &[u8]| {
        let folder = Folder::new();
        let encoding = Encoding::new().chunk([100]).compression(compression).checksums(false);
        let path = store(&folder, encoding);
        fs::write(path.join("c/0"), contents).unwrap();
        load(&path).unwrap_err()
    };
    let zeroes = vec![0; 100 << 20];
    let zstd = Compression::Zstd { level: 1 };
    let error = write_over(zstd, &::zstd::bulk::compress(&zeroes, 1).unwrap());
    assert!(matches!(error, Error::Corrupted { .. }), "{error}");
    // The frame has a length field of 2^60 bytes.
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0xe0];
    frame.extend((1_u64 << 60).to_le_bytes());
    assert!(matches!(write_over(zstd, &frame), Error::Corrupted { .. }));
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&zeroes).unwrap();
    let error = write_over(Compression::Gzip { level: 1 }, &gzip.finish().unwrap());
    assert!(error.to_string().contains("limit of 400 bytes"), "{error}");
    let mut blosc = vec![2, 1, 0, 4];
    blosc.extend(u32::MAX.to_le_bytes());
    blosc.extend([0; 100]);
    let by = zarr::Blosc::Lz4;
    let error = write_over(Compression::Blosc { by, level: 1 }, &blosc);
    assert!(error.to_string().contains("limit of 400 bytes"), "{error}");
}

/// Removes the checksum codec, so that it does not hide changes in the indices of shards.
fn without_checksum(path: &Path) {
    change(path, |of| {
        let index = json!([{"name": "bytes", "configuration": {"endian": "little"}}]);
        of["codecs"][0]["configuration"]["index_codecs"] = index;
    });
    for file in fs::read_dir(path.join("c")).unwrap() {
        let file = file.unwrap().path();
        let mut contents = fs::read(&file).unwrap();
        contents.truncate(contents.len() - 4);
        fs::write(file, contents).unwrap();
    }
}

#[test]
fn indices_of_shards_that_point_elsewhere_are_refused() {
    for (offset, len) in [(u64::MAX - 3, 8), (0, 1 << 62), (1 << 62, 1), (1000, 8), (3, u64::MAX)] {
        let folder = Folder::new();
        // Read a whole shard, and then a part of a shard.
        let path = store(&folder, Encoding::new().chunk([10]).shard([50]));
        without_checksum(&path);
        load(&path).unwrap();
        for shard in ["c/0", "c/1"] {
            let mut contents = fs::read(path.join(shard)).unwrap();
            let index = contents.len() - 5 * 16;
            contents[index..index + 8].copy_from_slice(&u64::to_le_bytes(offset));
            contents[index + 8..index + 16].copy_from_slice(&u64::to_le_bytes(len));
            fs::write(path.join(shard), contents).unwrap();
        }
        let error = load(&path).unwrap_err();
        assert!(matches!(error, Error::Corrupted { .. }), "{offset}, {len}: {error}");
        let part = array::<u32>(7, 4);
        let error = Zarr::open(&path).unwrap().read_box([2]..[9], &part, FileOptions::new()).unwrap_err();
        assert!(matches!(error, Error::Corrupted { .. }), "{offset}, {len}: {error}");
    }
}

#[test]
fn offsets_that_make_no_rows_are_refused() {
    let folder = Folder::new();
    let written = rows::<u32>().from_rows([[1, 2], [3, 4], [5, 6]]).unwrap();
    let load = |name: &str, offsets: &[u64]| {
        let path = folder.file(name);
        zarr::write_ragged(&path, &written, Encoding::new(), FileOptions::new()).unwrap();
        fs::remove_dir_all(path.join("offsets")).unwrap();
        let elements = array::<u64>(offsets.len(), 4);
        elements.write(0, offsets).unwrap();
        zarr::write(path.join("offsets"), &elements, Encoding::new().chunk([2]), FileOptions::new()).unwrap();
        zarr::read_ragged(&path, rows::<u32>(), FileOptions::new())
    };
    let other = load("right", &[0, 0, 6]).unwrap();
    assert_eq!(other.to_vecs().unwrap(), [vec![], vec![1, 2, 3, 4, 5, 6]]);
    let wrong: [&[u64]; 6] = [&[], &[1, 6], &[0, 4, 2, 6], &[0, 4], &[0, 7], &[0, 1 << 60, 6]];
    for (number, offsets) in wrong.iter().enumerate() {
        let error = load(&number.to_string(), offsets).unwrap_err();
        assert!(matches!(error, Error::Malformed { .. }), "{offsets:?}: {error}");
    }
}

/// A value somewhere in a description.
fn any_value<'v>(of: &'v mut Value, which: &mut usize) -> Option<&'v mut Value> {
    if *which == 0 {
        return Some(of);
    }
    *which -= 1;
    match of {
        Value::Array(values) => values.iter_mut().find_map(|value| any_value(value, which)),
        Value::Object(values) => values.values_mut().find_map(|value| any_value(value, which)),
        _ => None,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: random_cases(200), failure_persistence: None, ..ProptestConfig::default() })]

    /// A store with any change is either read or refused, without a panic, and without an allocation beyond
    /// the length of a chunk.
    #[test]
    fn mutated_stores_end_in_typed_errors(
        compression in compressions(),
        is_sharded in any::<bool>(),
        has_no_checksum in any::<bool>(),
        has_chunk_checksums in any::<bool>(),
        values in prop::collection::vec((0_usize..45, 0_usize..18), 0..3),
        changes in prop::collection::vec((any::<prop::sample::Index>(), 0..3, any::<u8>()), 0..5),
        is_chunk in any::<bool>(),
    ) {
        let folder = Folder::new();
        let mut encoding =
            Encoding::new().chunk([10]).compression(compression).checksums(has_chunk_checksums);
        if is_sharded {
            encoding = encoding.shard([50]);
        }
        let path = store(&folder, encoding);
        if is_sharded && has_no_checksum {
            without_checksum(&path);
        }
        for (mut which, value) in values {
            let others = [
                json!(0), json!(-1), json!(1), json!(3), json!(u64::MAX), json!(1_u64 << 40), json!(1e300),
                json!("bytes"), json!("x"), json!(null), json!([]), json!({}), json!(true), json!([1, 2, 3]),
                json!("zstd"), json!("sharding_indexed"), json!([{"name": "crc32c"}]), json!("big"),
            ];
            change(&path, |metadata| {
                if let Some(place) = any_value(metadata, &mut which) {
                    *place = others[value].clone();
                }
            });
        }
        let changed = if is_chunk { path.join("c/1") } else { path.join("zarr.json") };
        if let Ok(mut contents) = fs::read(&changed) {
            for (at, kind, byte) in changes {
                if contents.is_empty() {
                    break;
                }
                let at = at.index(contents.len());
                match kind {
                    0 => contents[at] = byte,
                    1 => contents.truncate(at),
                    _ => contents.insert(at, byte),
                }
            }
            fs::write(&changed, contents).unwrap();
        }
        let _ = load(&path);
        if let Ok(mut store) = Zarr::<u32>::open(&path) {
            let _ = store.append(&array::<u32>(7, 4), FileOptions::new());
        }
    }
}
