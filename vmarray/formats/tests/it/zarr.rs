//! Tests of Zarr stores, compared with vectors.

use std::fmt::Debug;
use std::fs;
use std::ops::Range;

use proptest::prelude::*;
use vmarray::kernel::KernelType;
use vmarray::nd::NdLayout;
use vmarray::{Element, ErrorKind, prelude::*};
use vmarray_formats::zarr::{self, Blosc, Compression, Encoding, Zarr};
use vmarray_formats::{Error, FileOptions};

use crate::common::{Body, Folder, array, bytes, nd_array, rows, values};
use crate::npy::options;

pub fn compressions() -> impl Strategy<Value = Compression> {
    prop_oneof![
        Just(Compression::None),
        (1..5).prop_map(|level| Compression::Zstd { level }),
        (0_u32..4).prop_map(|level| Compression::Gzip { level }),
        (
            0_u8..6,
            prop::sample::select(vec![Blosc::BloscLz, Blosc::Lz4, Blosc::Lz4Hc, Blosc::Zlib, Blosc::Zstd])
        )
            .prop_map(|(level, by)| Compression::Blosc { by, level }),
    ]
}

/// Writes elements, reads them into an array of other pages, and appends.
fn there_and_back<T: Element + KernelType + Debug + PartialEq>(
    [len, more]: [usize; 2],
    (chunk, shard): (usize, Option<usize>),
    compression: Compression,
    fill_value: T,
    how: (usize, usize, bool),
) {
    let folder = Folder::new();
    let path = folder.file("a.zarr");
    let from = array::<T>(len + more, 16);
    let mut wanted = values::<T>(len + more, 7);
    // Some chunks have nothing but the fill value.
    wanted[len / 3..2 * len / 3].fill(fill_value);
    from.write(0, &wanted).unwrap();
    let mut encoding = Encoding::new().chunk([chunk]).compression(compression).fill_value(fill_value);
    if let Some(times) = shard {
        encoding = encoding.shard([chunk * times]);
    }
    zarr::write(&path, from.section(..len).unwrap(), encoding, options(how)).unwrap();
    let mut store = Zarr::<T>::open(&path).unwrap();
    assert_eq!((store.shape(), store.chunk()), (&[len][..], &[chunk * shard.unwrap_or(1)][..]));
    let to = array::<T>(len, 50);
    store.read(&to, options(how)).unwrap();
    assert_eq!(bytes(&to.to_vec(..).unwrap()), bytes(&wanted[..len]));

    store.append(from.section(len..).unwrap(), options(how)).unwrap();
    let to = array::<T>(len + more, 50);
    for store in [store, Zarr::open(&path).unwrap()] {
        assert_eq!(store.extents::<1>().unwrap(), [len + more]);
        store.read(&to, options(how)).unwrap();
        assert_eq!(bytes(&to.to_vec(..).unwrap()), bytes(&wanted));
    }
    assert_eq!(folder.names(), ["a.zarr"]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn elements_of_all_types_come_back(
        lengths in [0_usize..300, 0_usize..100],
        chunks in (1_usize..100, prop::option::of(1_usize..4)),
        compression in compressions(),
        how in (1_usize..5000, 1_usize..5, any::<bool>()),
        of in 0..5,
    ) {
        match of {
            0 => there_and_back::<u8>(lengths, chunks, compression, 3, how),
            1 => there_and_back::<i16>(lengths, chunks, compression, -5, how),
            2 => there_and_back::<f64>(lengths, chunks, compression, f64::NEG_INFINITY, how),
            3 => there_and_back::<[[u32; 2]; 3]>(lengths, chunks, compression, [[6; 2]; 3], how),
            _ => there_and_back::<Body>(lengths, chunks, compression, Body::ZERO, how),
        }
    }

    #[test]
    fn boxes_come_back_in_chunks_and_shards(
        shape in [0_usize..12, 1_usize..12, 0_usize..12],
        more in 0_usize..6,
        tile in prop::option::of([1_usize..5, 1_usize..5, 1_usize..5]),
        chunk in prop::option::of([1_usize..5, 1_usize..5, 1_usize..5]),
        times in prop::option::of([1_usize..4, 1_usize..4, 1_usize..4]),
        compression in compressions(),
        how in (1_usize..2000, 1_usize..5, any::<bool>()),
    ) {
        let folder = Folder::new();
        let path = folder.file("a.zarr");
        let layout = tile.map_or(NdLayout::RowMajor, NdLayout::Tiled);
        let whole = [shape[0] + more, shape[1], shape[2]];
        let (from, to) = (nd_array::<u16, 3>(whole, layout), nd_array::<u16, 3>(whole, layout));
        let wanted = values::<u16>(from.len(), 5);
        from.write_box(.., &wanted).unwrap();
        let mut encoding = Encoding::new().compression(compression);
        if let Some(chunk) = chunk {
            encoding = encoding.chunk(chunk);
            if let Some(times) = times {
                encoding = encoding.shard([0, 1, 2].map(|axis| chunk[axis] * times[axis]));
            }
        }
        zarr::write(&path, from.section(..shape).unwrap(), encoding, options(how)).unwrap();
        let mut store = Zarr::open(&path).unwrap();
        store.append(from.section([shape[0], 0, 0]..).unwrap(), options(how)).unwrap();
        store.read(&to, options(how)).unwrap();
        prop_assert_eq!(&to.to_vec(..).unwrap(), &wanted);

        // Read one box of the array, and write another one.
        let corner = |axis: usize, half: usize| whole[axis] * half / 2;
        let [low, middle] = [0, 1].map(|half| [corner(0, half), corner(1, half), corner(2, half)]);
        let middle = [middle[0], low[1] + whole[1].div_ceil(2), middle[2]];
        store.read_box(low..middle, to.section_mut(low..middle).unwrap(), options(how)).unwrap();
        to.fill(middle.., 7).unwrap();
        store.write_box(middle..whole, to.section(middle..).unwrap(), options(how)).unwrap();
        let again = nd_array::<u16, 3>(whole, layout);
        Zarr::open(&path).unwrap().read(&again, options(how)).unwrap();
        prop_assert_eq!(again.to_vec(..).unwrap(), to.to_vec(..).unwrap());
    }

    #[test]
    fn rows_come_back(
        lengths in prop::collection::vec(0_usize..20, 0..25),
        // Each chunk of each field is a file.
        chunk in 10_usize..40,
        compression in compressions(),
        how in (1_usize..2000, 1_usize..5, any::<bool>()),
    ) {
        let folder = Folder::new();
        let path = folder.file("a.zarr");
        let lists: Vec<Vec<Body>> = lengths.iter().map(|len| values(*len, *len as u64)).collect();
        let from = rows::<Body>().from_rows(&lists).unwrap();
        let mut done = Vec::new();
        let report = |progress: vmarray_formats::FileProgress| {
            done.push(progress.done_bytes);
            assert!(progress.done_bytes <= progress.total_bytes);
            std::ops::ControlFlow::Continue(())
        };
        let encoding = Encoding::new().chunk([chunk]).compression(compression);
        zarr::write_ragged(&path, &from, encoding, options(how).progress(report)).unwrap();
        let all = 8 * (lists.len() + 1) + size_of::<Body>() * lengths.iter().sum::<usize>();
        prop_assert!(done.is_sorted() && done.last() == Some(&(all as u64)));
        let again = zarr::read_ragged(&path, rows::<Body>(), options(how)).unwrap();
        let again = again.to_vecs().unwrap();
        prop_assert_eq!(again.len(), lists.len());
        for (again, row) in again.iter().zip(&lists) {
            prop_assert_eq!(bytes(again), bytes(row));
        }
    }
}

#[test]
fn tiles_are_chunks() {
    let folder = Folder::new();
    let path = folder.file("a.zarr");
    let tiled = nd_array::<u8, 2>([10, 10], NdLayout::Tiled([4, 8]));
    tiled.set([9, 9], 1).unwrap();
    zarr::write(&path, &tiled, Encoding::new(), FileOptions::new()).unwrap();
    assert_eq!(Zarr::<u8>::open(&path).unwrap().chunk(), [4, 8]);
    // The store has no files for chunks that consist of the fill value.
    assert!(path.join("c/2/1").exists() && !path.join("c/0").exists());
    let metadata = fs::read_to_string(path.join("zarr.json")).unwrap();
    assert!(metadata.contains("\"dim_1\"") && metadata.contains("\"zstd\""), "{metadata}");
    // The chunks are whole pages of about 1 MiB.
    let long = array::<u8>(3_000_000, 10_000);
    zarr::write(folder.file("b"), &long, Encoding::new(), FileOptions::new()).unwrap();
    assert_eq!(Zarr::<u8>::open(folder.file("b")).unwrap().chunk(), [1_040_000]);
}

#[test]
fn fields_are_arrays_in_groups() {
    let folder = Folder::new();
    let path = folder.file("a.zarr");
    let bodies = array::<Body>(10, 4);
    bodies.write(0, &values(10, 1)).unwrap();
    zarr::write(&path, &bodies, Encoding::new(), FileOptions::new()).unwrap();
    let of = nd_array::<i16, 3>([10, 2, 2], NdLayout::RowMajor);
    Zarr::open(path.join("spin/of")).unwrap().read(&of, FileOptions::new()).unwrap();
    assert_eq!(of.get([3, 1, 0]).unwrap(), bodies.get(3).unwrap().spin.of[1][0]);
    for group in ["zarr.json", "spin/zarr.json"] {
        assert!(fs::read_to_string(path.join(group)).unwrap().contains("\"group\""));
    }
    let wrong = |error: Error| match error {
        Error::ElementMismatch { expected, found, .. } => (expected, found),
        other => panic!("{other}"),
    };
    assert_eq!(wrong(Zarr::<u32>::open(path.join("mass")).unwrap_err()), ("u32".into(), "f32".into()));
    let error = Zarr::<[f32; 4]>::open(path.join("at")).unwrap_err();
    assert_eq!(wrong(error), ("[f32; 4]".into(), "[f32; 3]".into()));
    // A group is not an array of numbers, and a store without a field is not a store of structs.
    assert!(matches!(Zarr::<u32>::open(&path), Err(Error::Malformed { .. })));
    fs::remove_dir_all(path.join("spin/id")).unwrap();
    assert!(matches!(Zarr::<Body>::open(&path), Err(Error::Malformed { .. })));
}

#[test]
fn truth_is_read_and_not_written() {
    let folder = Folder::new();
    let path = folder.file("a.zarr");
    let bytes = array::<u8>(10, 4);
    bytes.fill(3..5, 1).unwrap();
    zarr::write(&path, &bytes, Encoding::new(), FileOptions::new()).unwrap();
    let metadata = fs::read_to_string(path.join("zarr.json")).unwrap();
    let metadata = metadata.replace("uint8", "bool").replace("\"fill_value\": 0", "\"fill_value\": false");
    fs::write(path.join("zarr.json"), metadata).unwrap();
    let mut store = Zarr::<u8>::open(&path).unwrap();
    let again = array::<u8>(10, 4);
    store.read(&again, FileOptions::new()).unwrap();
    assert_eq!(again.to_vec(..).unwrap(), bytes.to_vec(..).unwrap());
    assert!(matches!(store.append(&bytes, FileOptions::new()), Err(Error::Unsupported { .. })));
    assert!(Zarr::<i8>::open(&path).is_err());
}

#[test]
fn nothing_is_written_that_cannot_be_read_again() {
    let folder = Folder::new();
    let path = folder.file("a.zarr");
    let elements = array::<u32>(100, 16);
    let write = |encoding| zarr::write(&path, &elements, encoding, FileOptions::new()).unwrap_err();
    for (encoding, text) in [
        (Encoding::new().chunk([4, 4]), "2 extents, but the array has 1 axes"),
        (Encoding::new().chunk([0]), "an extent of 0 along axis 0"),
        (Encoding::new().chunk([10]).shard([25]), "multiples"),
        (Encoding::new().chunk([1 << 40]), "exceed the limit"),
        (Encoding::new().axis_names(["x", "y"]), "2 names for 1 axes"),
        (Encoding::new().compression(Compression::Zstd { level: 40 }), "no level 40"),
        (Encoding::new().compression(Compression::Gzip { level: 40 }), "40"),
        (Encoding::new().compression(Compression::Blosc { by: Blosc::Lz4, level: 40 }), "no level 40"),
    ] {
        let error = write(encoding).to_string();
        assert!(error.contains(text), "{error}");
    }
    let pairs = array::<[u32; 2]>(10, 4);
    let uneven = zarr::write(&path, &pairs, Encoding::new().fill_value([1, 2]), FileOptions::new());
    assert!(uneven.unwrap_err().to_string().contains("one fill value"));
    let ended = zarr::write(
        &path,
        &elements,
        Encoding::new().chunk([10]),
        FileOptions::new().progress(|_| std::ops::ControlFlow::Break(())),
    );
    assert!(matches!(ended, Err(Error::Cancelled { .. })));
    assert!(folder.names().is_empty(), "{:?}", folder.names());
    // A folder is not replaced.
    zarr::write(&path, &elements, Encoding::new(), FileOptions::new()).unwrap();
    assert!(matches!(write(Encoding::new()), Error::Exists { .. }));
    let mut store = Zarr::<u32>::open(&path).unwrap();
    assert!(matches!(store.read(&array::<u32>(99, 4), FileOptions::new()), Err(Error::ShapeMismatch { .. })));
    type Is = fn(&ErrorKind) -> bool;
    let boxes: [(_, Is); 2] = [
        ([90]..[101], |kind| matches!(kind, ErrorKind::BoxOutside { end: 101, extent: 100, .. })),
        (Range { start: [9], end: [8] }, |kind| matches!(kind, ErrorKind::BoxReversed { .. })),
    ];
    for (bounds, is_it) in boxes {
        for done in [
            store.read_box(bounds.clone(), &elements, FileOptions::new()),
            store.write_box(bounds.clone(), &elements, FileOptions::new()),
        ] {
            assert!(matches!(done, Err(Error::Array(error)) if is_it(error.kind())), "{bounds:?}");
        }
    }
    let mismatch = store.read_box([0]..[99], &elements, FileOptions::new());
    assert!(matches!(mismatch, Err(Error::ShapeMismatch { .. })));
    let ranks = store.write_box([0, 0]..[9, 9], &elements, FileOptions::new());
    assert!(matches!(ranks, Err(Error::RankMismatch { .. })));
    let table = nd_array::<u32, 2>([5, 5], NdLayout::RowMajor);
    assert!(matches!(store.append(&table, FileOptions::new()), Err(Error::ShapeMismatch { .. })));
}

#[test]
fn existing_rows_stay_if_appending_ends_early() {
    let folder = Folder::new();
    let path = folder.file("a.zarr");
    let elements = array::<u32>(100, 16);
    elements.write(0, &values(100, 3)).unwrap();
    zarr::write(&path, elements.section(..55).unwrap(), Encoding::new().chunk([10]), FileOptions::new())
        .unwrap();
    let mut store = Zarr::<u32>::open(&path).unwrap();
    let stop = FileOptions::new().threads(1).progress(|_| std::ops::ControlFlow::Break(()));
    let more = || elements.section(55..).unwrap();
    assert!(matches!(store.append(more(), stop), Err(Error::Cancelled { .. })));
    let read = |len| {
        let to = array::<u32>(len, 16);
        Zarr::open(&path).unwrap().read(&to, FileOptions::new()).unwrap();
        assert_eq!(to.to_vec(..).unwrap(), elements.to_vec(..len).unwrap());
    };
    read(55);
    store.append(more(), FileOptions::new()).unwrap();
    read(100);
}

/// Stores as zarr-python writes them in version 2: chunks in both orders, with both byte orders and
/// separators, raw and compressed.
#[test]
fn stores_of_version_2_are_read_and_overwritten_in_place() {
    let folder = Folder::new();
    let number = |row: usize, column: usize| (100 * row + column) as u16;
    for (case, (order, little, separator, gzip)) in
        [("C", true, ".", false), ("F", false, "/", true), ("C", false, ".", true), ("F", true, ".", false)]
            .into_iter()
            .enumerate()
    {
        let path = folder.file(&format!("{case}.zarr"));
        fs::create_dir(&path).unwrap();
        let compressor = if gzip { r#"{"id": "gzip", "level": 1}"# } else { "null" };
        let (dtype, null) = (if little { "<u2" } else { ">u2" }, "null");
        let description = format!(
            r#"{{"zarr_format": 2, "shape": [5, 4], "chunks": [3, 2], "dtype": "{dtype}", "order": "{order}",
            "fill_value": 7, "filters": {null}, "compressor": {compressor}, "dimension_separator": "{separator}"}}"#
        );
        fs::write(path.join(".zarray"), description).unwrap();
        // The chunk at rows from 3 and columns from 2 is missing, and has the fill value.
        for (row, column) in [(0, 0), (0, 1), (1, 0)] {
            let (mut chunk, by_column) = (Vec::new(), order == "F");
            for place in 0..6 {
                let (r, c) = if by_column { (place % 3, place / 3) } else { (place / 2, place % 2) };
                let value = number(3 * row + r, 2 * column + c);
                chunk.extend(if little { value.to_le_bytes() } else { value.to_be_bytes() });
            }
            if gzip {
                let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
                std::io::Write::write_all(&mut encoder, &chunk).unwrap();
                chunk = encoder.finish().unwrap();
            }
            let file = path.join(format!("{row}{separator}{column}"));
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, chunk).unwrap();
        }
        let mut store = Zarr::<u16>::open(&path).unwrap();
        assert_eq!((store.shape(), store.chunk()), (&[5, 4][..], &[3, 2][..]));
        let wanted = |row: usize, column: usize| if row > 2 && column > 1 { 7 } else { number(row, column) };
        let mut all: Vec<u16> = (0..20).map(|at| wanted(at / 4, at % 4)).collect();
        let read = |store: &Zarr<u16>| {
            let to = nd_array::<u16, 2>([5, 4], NdLayout::RowMajor);
            store.read(&to, FileOptions::new()).unwrap();
            to.to_vec(..).unwrap()
        };
        assert_eq!(read(&store), all, "case {case}");
        let ones = nd_array::<u16, 2>([1, 4], NdLayout::RowMajor);
        ones.fill(.., 1).unwrap();
        store.write_box([4, 0]..[5, 4], &ones, FileOptions::new()).unwrap();
        all[16..].fill(1);
        assert_eq!(read(&Zarr::open(&path).unwrap()), all, "case {case}");
        let refused = store.append(&ones, FileOptions::new()).unwrap_err();
        assert!(refused.to_string().contains("version 2"), "{refused}");
        assert!(matches!(Zarr::<u32>::open(&path), Err(Error::ElementMismatch { .. })));
        fs::write(path.join(".zarray"), "{}").unwrap();
        assert!(matches!(Zarr::<u16>::open(&path), Err(Error::Malformed { .. })));
    }
}
