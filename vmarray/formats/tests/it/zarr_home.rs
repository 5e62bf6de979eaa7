//! Tests of arrays that are stored in Zarr stores, in folders and in objects.

use std::path::Path;

use vmarray::bytemuck::{Pod, Zeroable};
use vmarray::device::ErrorKind as DeviceErrorKind;
use vmarray::device::wrap::SplitMix64;
use vmarray::kernel::KernelType;
use vmarray::{ErrorKind, NdArray, prelude::*};
use vmarray_formats::zarr::{self, Compression, Encoding, Location, Zarr};
use vmarray_formats::{Error, FileOptions};

use crate::common::Folder;

#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable, KernelType)]
#[bytemuck(crate = "vmarray::bytemuck")]
#[repr(C)]
struct Pair {
    a: u32,
    b: [u16; 2],
}

/// A new location for a store: a folder, or objects.
fn place(folder: &Path, number: u64) -> Location {
    #[cfg(feature = "object_store")]
    if number % 2 == 1 {
        use vmarray_formats::object_store::memory::InMemory;
        return Location::objects(std::sync::Arc::new(InMemory::new()), "a/store.zarr");
    }
    folder.join(format!("{number}.zarr")).into()
}

fn pair(value: u32) -> Pair {
    Pair { a: value, b: [value as u16; 2] }
}

/// After each `sync` the store has all changes of a random program to an array over it, and the next array
/// over it shows them.
#[test]
fn a_store_is_an_array() {
    let folder = Folder::new();
    for seed in 0..vmarray::device::wrap::random_cases(16).into() {
        let mut random = SplitMix64::new(seed);
        let at = place(folder.path(), seed);
        let shape = [1 + random.index(60), 1 + random.index(60)];
        let chunk = [1 + random.index(20), 1 + random.index(20)];
        let encoding = Encoding::new().chunk(chunk).fill_value(pair(9)).compression(match random.index(3) {
            0 => Compression::None,
            1 => Compression::Gzip { level: 1 },
            _ => Compression::Zstd { level: 1 },
        });
        let encoding =
            if random.index(2) == 0 { encoding } else { encoding.shard(chunk.map(|extent| 2 * extent)) };
        let mut model = vec![pair(9); shape[0] * shape[1]];
        let first = NdArray::<Pair, 2>::new(shape).unwrap();
        first.fill(.., pair(9)).unwrap();
        zarr::write(at.clone(), &first, encoding, FileOptions::new()).unwrap();
        assert!(matches!(
            zarr::write(at.clone(), &first, Encoding::new(), FileOptions::new()),
            Err(Error::Exists { .. })
        ));
        let open = || Zarr::<Pair>::open(at.clone()).unwrap();
        let build =
            || -> NdArray<Pair, 2> { open().into_array(|elements| elements.cache_bytes(16 << 10)).unwrap() };
        let mut array = build();
        for step in 0..30 {
            let start = shape.map(|extent| random.index(extent));
            let end = [0, 1].map(|axis| start[axis] + 1 + random.index(shape[axis] - start[axis]));
            let value = pair(random.index(1000) as u32);
            match random.index(5) {
                0 => {
                    array.set(start, value).unwrap();
                    model[start[0] * shape[1] + start[1]] = value;
                }
                1 | 2 => {
                    array.fill(start..end, value).unwrap();
                    for row in start[0]..end[0] {
                        model[row * shape[1]..][start[1]..end[1]].fill(value);
                    }
                }
                3 => {
                    array.elements().sync().unwrap();
                    let again = NdArray::<Pair, 2>::new(shape).unwrap();
                    open().read(&again, FileOptions::new()).unwrap();
                    assert_eq!(again.to_vec(..).unwrap(), model, "seed {seed} step {step}");
                }
                _ => {
                    drop(array);
                    let read: NdArray<Pair, 2> = open().into_read_only_array(|elements| elements).unwrap();
                    assert_eq!(read.to_vec(..).unwrap(), model, "seed {seed} step {step}");
                    array = build();
                }
            }
            assert_eq!(array.get(start).unwrap(), model[start[0] * shape[1] + start[1]]);
        }
        // Elements beyond the edges must be the fill value, not zero, for programs that extend the store.
        drop(array);
        let (rows, mut store) = (NdArray::<Pair, 2>::new([1, shape[1]]).unwrap(), open());
        store.append(&rows, FileOptions::new()).unwrap();
        let last = NdArray::<Pair, 2>::new([shape[0] + 1, shape[1]]).unwrap();
        store.read(&last, FileOptions::new()).unwrap();
        assert_eq!(last.to_vec(..[shape[0], shape[1]]).unwrap(), model, "seed {seed}");
    }
}

#[test]
fn damaged_chunks_are_named_and_others_go_on() {
    let folder = Folder::new();
    let path = folder.path().join("damaged.zarr");
    let array = NdArray::<u32, 2>::new([40, 40]).unwrap();
    array.fill(.., 7).unwrap();
    let encoding = Encoding::new().chunk([10, 10]).compression(Compression::Zstd { level: 1 });
    zarr::write(&path, &array, encoding, FileOptions::new()).unwrap();
    std::fs::write(path.join("c/1/2"), b"this is no chunk").unwrap();
    std::fs::remove_file(path.join("c/3/3")).unwrap();
    let array: NdArray<u32, 2> = Zarr::open(&path).unwrap().into_array(|elements| elements).unwrap();
    let error = array.get([10, 20]).unwrap_err();
    let kind = |error: &vmarray::Error| match error.kind() {
        ErrorKind::Device(error) => Some(error.kind()),
        _ => None,
    };
    assert_eq!(kind(&error), Some(DeviceErrorKind::Corrupted), "{error}");
    assert!(error.to_string().contains("c/1/2") && error.to_string().contains("damaged.zarr"), "{error}");
    // A missing chunk has the fill value.
    assert_eq!((array.get([0, 0]).unwrap(), array.get([39, 39]).unwrap()), (7, 0));
    // A write of the whole chunk repairs it.
    array.fill([10, 20]..[20, 30], 8).unwrap();
    array.elements().sync().unwrap();
    drop(array);
    let array: NdArray<u32, 2> = Zarr::open(&path).unwrap().into_array(|elements| elements).unwrap();
    assert_eq!(array.sum(.., Field::whole()).unwrap(), 7 * 1400 + 8 * 100);
}

/// A removed store neither reads as fill values nor accepts writes.
#[test]
fn stores_that_are_removed_under_an_array() {
    let folder = Folder::new();
    let path = folder.path().join("removed.zarr");
    let array = NdArray::<Pair, 2>::new([8, 8]).unwrap();
    zarr::write(&path, &array, Encoding::new().chunk([4, 4]), FileOptions::new()).unwrap();
    let array: NdArray<Pair, 2> =
        Zarr::open(&path).unwrap().into_array(|elements| elements.read_ahead(false)).unwrap();
    array.set([0, 0], pair(5)).unwrap();
    std::fs::remove_dir_all(&path).unwrap();
    let error = array.get([7, 7]).unwrap_err();
    assert!(error.to_string().contains("was removed"), "{error}");
    array.elements().sync().unwrap_err();
    assert_eq!(array.get([0, 0]).unwrap(), pair(5));
}

#[test]
fn stores_that_do_not_suit_are_refused() {
    let folder = Folder::new();
    let path = folder.path().join("bytes.zarr");
    zarr::write(&path, &NdArray::<u8, 1>::new([10]).unwrap(), Encoding::new(), FileOptions::new()).unwrap();
    let open = || Zarr::<u8>::open(&path).unwrap();
    assert!(matches!(open().into_array::<2>(|elements| elements), Err(Error::RankMismatch { .. })));
    let array = open().into_read_only_array::<1>(|elements| elements).unwrap();
    assert!(array.set([0], 1).is_err() && array.get([9]).unwrap() == 0);
}

/// Interrupted writes leave no objects, and no client could open them meanwhile.
#[cfg(feature = "object_store")]
#[test]
fn objects_are_whole_or_not_there() {
    use std::ops::ControlFlow;
    use vmarray_formats::object_store::{ObjectStoreExt as _, memory::InMemory, path::Path};

    let objects = std::sync::Arc::new(InMemory::new());
    let at = Location::objects(objects.clone(), "x");
    let array = NdArray::<u32, 2>::new([40, 40]).unwrap();
    array.fill(.., 7).unwrap();
    let mut could_open = false;
    let ended = zarr::write(
        at.clone(),
        &array,
        Encoding::new().chunk([10, 10]),
        FileOptions::new().threads(1).progress(|progress| {
            could_open |= Zarr::<u32>::open(at.clone()).is_ok();
            if progress.share() > 0.5 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        }),
    );
    assert!(matches!(ended, Err(Error::Cancelled { .. })) && !could_open);
    // A long object is uploaded in parts.
    zarr::write(at.clone(), &NdArray::<u8, 1>::new([20 << 20]).unwrap(), long(), FileOptions::new()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let head = runtime.block_on(objects.head(&Path::from("x/c/0"))).unwrap();
    assert_eq!(head.size, 20 << 20);
    // A store can be opened inside a runtime, too.
    runtime.block_on(async { assert_eq!(Zarr::<u8>::open(at).unwrap().shape(), [20 << 20]) });

    fn long() -> Encoding<u8> {
        Encoding::new().chunk([20 << 20]).fill_value(1).compression(Compression::None).checksums(false)
    }
}
