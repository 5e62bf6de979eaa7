//! Tests with flipped bytes in chunks: reads return the error `Corrupted`, never a wrong value.

use std::fs;
use std::path::{Path, PathBuf};

use vmarray::device::ErrorKind as DeviceErrorKind;
use vmarray::device::wrap::{SplitMix64, has_all_cases};
use vmarray::{ErrorKind, NdArray, prelude::*};
use vmarray_formats::zarr::{self, Blosc, Compression, Encoding, Location, Zarr};
use vmarray_formats::{Error, FileOptions};

use crate::common::{Folder, array, rows};

const COMPRESSIONS: [Compression; 4] = [
    Compression::None,
    Compression::Zstd { level: 1 },
    Compression::Gzip { level: 1 },
    Compression::Blosc { by: Blosc::Lz4, level: 5 },
];
/// Elements of the small stores, of a chunk and of a shard.
const LEN: usize = 60;
const CHUNK: usize = 10;
const SHARD: usize = 30;

fn elements() -> Vec<u32> {
    (0..LEN as u32).map(|number| number / 3 * 1000).collect()
}

/// The file of each chunk.
fn files(store: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(store.join("c")).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    files
}

/// Reads one box by a view: its elements, or the chunk that is damaged.
fn by_view(store: &Path, start: usize, end: usize) -> Result<Vec<u32>, String> {
    let part = array::<u32>(end - start, 16);
    match Zarr::open(store).unwrap().read_box([start]..[end], &part, FileOptions::new().threads(1)) {
        Ok(()) => Ok(part.to_vec(..).unwrap()),
        Err(Error::Corrupted { path, chunk, .. }) if path == store => Err(chunk),
        Err(other) => panic!("{other}"),
    }
}

/// Reads one element of each page of an array whose home is the store; returns how many reads failed.
fn by_home(store: &Path, is_written: bool, chunk: &str) -> usize {
    let open = Zarr::<u32>::open(store).unwrap();
    let settings = |elements: vmarray::Builder<u32, vmarray::AnyDevice>| elements.read_ahead(false);
    let home: NdArray<u32, 1> = if is_written {
        open.into_array(settings).unwrap()
    } else {
        open.into_read_only_array(settings).unwrap()
    };
    let mut failed = 0;
    for at in (3..LEN).step_by(CHUNK) {
        match home.get([at]) {
            Ok(value) => assert_eq!(value, elements()[at]),
            Err(error) => {
                let ErrorKind::Device(device) = error.kind() else { panic!("{error}") };
                assert_eq!(device.kind(), DeviceErrorKind::Corrupted, "{error}");
                let text = error.to_string();
                assert!(text.contains(chunk) && text.contains(store.to_str().unwrap()), "{text}");
                failed += 1;
            }
        }
    }
    failed
}

/// Flips, one after the other, every fifth byte of every chunk of small stores; in nightly runs every byte.
#[test]
fn every_flipped_byte_is_found() {
    let step = if has_all_cases() { 1 } else { 5 };
    let (mut flips, mut homes) = (0, 0);
    for (number, compression) in COMPRESSIONS.into_iter().enumerate() {
        for is_sharded in [false, true] {
            let (folder, mut random) = (Folder::new(), SplitMix64::new(number as u64));
            let store = folder.file("a.zarr");
            let from = array::<u32>(LEN, 16);
            from.write(0, &elements()).unwrap();
            let encoding = Encoding::new().chunk([CHUNK]).compression(compression);
            let encoding = if is_sharded { encoding.shard([SHARD]) } else { encoding };
            zarr::write(&store, &from, encoding, FileOptions::new()).unwrap();
            let stored = if is_sharded { SHARD } else { CHUNK };
            for (chunk, file) in files(&store).iter().enumerate() {
                let (key, own) = (format!("c/{chunk}"), chunk * stored..(chunk + 1) * stored);
                let whole = fs::read(file).unwrap();
                for at in (chunk % step..whole.len()).step_by(step) {
                    let mut bytes = whole.clone();
                    bytes[at] ^= 1 << random.below(8);
                    fs::write(file, bytes).unwrap();
                    assert_eq!(by_view(&store, 0, LEN), Err(key.clone()), "{compression:?}, byte {at}");
                    let mut found = 0;
                    for start in own.clone().step_by(CHUNK) {
                        match by_view(&store, start + 2, start + 5) {
                            Ok(values) => assert_eq!(values, elements()[start + 2..start + 5]),
                            Err(chunk) => found += usize::from(chunk == key),
                        }
                    }
                    assert!(found >= 1, "{compression:?}, byte {at}");
                    if flips % 15 == 0 {
                        assert!(by_home(&store, true, &key) >= 1 && by_home(&store, false, &key) >= 1);
                        homes += 2;
                    }
                    flips += 1;
                }
                fs::write(file, whole).unwrap();
            }
            assert_eq!(by_view(&store, 0, LEN), Ok(elements()));
        }
    }
    assert!(flips * step > 1500 && homes * step > 200, "{flips} flips, {homes} homes");
}

/// Damage of some bytes, cuts and longer files, of chunks of a usual length.
#[test]
fn damage_of_long_chunks_is_found() {
    let folder = Folder::new();
    let from = NdArray::<f32, 2>::new([300, 3000]).unwrap();
    let values: Vec<f32> = (0..900_000).map(|number| (number % 4096) as f32).collect();
    from.elements().write(0, &values).unwrap();
    let mut random = SplitMix64::new(5);
    for (name, encoding) in [
        ("plain", Encoding::new()),
        ("shards", Encoding::new().chunk([50, 500]).shard([100, 1500])),
        ("raw", Encoding::new().chunk([100, 1000]).compression(Compression::None)),
    ] {
        let store = folder.file(name);
        zarr::write(&store, &from, encoding, FileOptions::new()).unwrap();
        let row = fs::read_dir(store.join("c")).unwrap().next().unwrap().unwrap().path();
        let files: Vec<PathBuf> = fs::read_dir(row).unwrap().map(|file| file.unwrap().path()).collect();
        for _ in 0..20 {
            let file = &files[random.index(files.len())];
            let whole = fs::read(file).unwrap();
            let mut bytes = whole.clone();
            let at = random.index(whole.len());
            match random.below(4) {
                0 => bytes.truncate(at),
                1 => bytes.insert(at, 0),
                2 => bytes[at..].iter_mut().take(512).for_each(|byte| *byte ^= 0x55),
                _ => bytes[at] ^= 1 << random.below(8),
            }
            fs::write(file, bytes).unwrap();
            let to = NdArray::<f32, 2>::new([300, 3000]).unwrap();
            let error = Zarr::open(&store).unwrap().read(&to, FileOptions::new()).unwrap_err();
            let key = file.strip_prefix(&store).unwrap().to_str().unwrap().replace('\\', "/");
            assert!(matches!(&error, Error::Corrupted { chunk, .. } if *chunk == key), "{name}: {error}");
            fs::write(file, whole).unwrap();
        }
    }
}

/// A part of a damaged chunk cannot be replaced; the whole of it can.
#[test]
fn damaged_chunks_are_not_written_in_part() {
    let folder = Folder::new();
    let store = folder.file("a.zarr");
    let from = array::<u32>(LEN, 16);
    zarr::write(&store, &from, Encoding::new().chunk([CHUNK]).fill_value(1), FileOptions::new()).unwrap();
    let file = store.join("c/2");
    let mut bytes = fs::read(&file).unwrap();
    bytes[6] ^= 0x10;
    fs::write(&file, bytes).unwrap();
    let mut open = Zarr::<u32>::open(&store).unwrap();
    let part = open.write_box([22]..[25], from.section(..3).unwrap(), FileOptions::new()).unwrap_err();
    assert!(matches!(part, Error::Corrupted { .. }), "{part}");
    open.write_box([20]..[30], from.section(..10).unwrap(), FileOptions::new()).unwrap();
    assert_eq!(by_view(&store, 0, LEN), Ok(vec![0; LEN]));
}

/// Fields of structs and rows of different lengths have checksums as well; objects too.
#[test]
fn checksums_are_in_every_store() {
    let folder = Folder::new();
    let words = rows::<u8>().from_rows(["so", "", "many", "words"]).unwrap();
    for (name, are_written) in [("with", true), ("without", false)] {
        let store = folder.file(name);
        let encoding = || Encoding::new().checksums(are_written);
        zarr::write_ragged(&store, &words, encoding(), FileOptions::new()).unwrap();
        for node in ["offsets", "items"] {
            let described = fs::read_to_string(store.join(node).join("zarr.json")).unwrap();
            assert_eq!(described.contains("crc32c"), are_written, "{name}/{node}");
        }
    }
    let file = folder.file("with").join("items/c/0");
    let mut bytes = fs::read(&file).unwrap();
    bytes[3] ^= 2;
    fs::write(&file, bytes).unwrap();
    let read = zarr::read_ragged(Location::from(folder.file("with")), rows::<u8>(), FileOptions::new());
    assert!(matches!(read, Err(Error::Corrupted { chunk, .. }) if chunk == "items/c/0"));
}
