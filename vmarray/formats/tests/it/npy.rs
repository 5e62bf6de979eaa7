//! Tests of `.npy` files, compared with vectors.

use std::fmt::Debug;
use std::fs;
use std::path::Path;

use proptest::prelude::*;
use vmarray::kernel::KernelType;
use vmarray::nd::{NdLayout, NdSection};
use vmarray::{Element, prelude::*};
use vmarray_formats::npy::{self, NpyFile};
use vmarray_formats::{ByteOrder, Error, FileOptions, FileViewMut};

use crate::common::{Body, Folder, array, bytes, nd_array, rows, values};

pub fn options<'a>((piece_bytes, threads, is_big): (usize, usize, bool)) -> FileOptions<'a> {
    let order = if is_big { ByteOrder::Big } else { ByteOrder::Little };
    FileOptions::new().piece_bytes(piece_bytes).threads(threads).byte_order(order)
}

/// A file of a header and bytes.
pub fn file_of(path: &Path, header: &str, contents: &[u8]) {
    let mut file = b"\x93NUMPY\x01\0".to_vec();
    file.extend(u16::try_from(header.len()).unwrap().to_le_bytes());
    file.extend(header.as_bytes());
    file.extend(contents);
    fs::write(path, file).unwrap();
}

/// Reads a file into a view.
fn load<V>(path: &Path, view: V) -> vmarray_formats::Result<()>
where
    V: FileViewMut<Element: KernelType>,
{
    NpyFile::open(path)?.read(view, FileOptions::new().piece_bytes(100).threads(3))
}

/// Writes elements and reads them into an array of other pages.
fn there_and_back<T: Element + KernelType + Debug>(len: usize, pages: [usize; 2], how: (usize, usize, bool)) {
    let folder = Folder::new();
    let path = folder.file("a.npy");
    let (from, to) = (array::<T>(len, pages[0]), array::<T>(len, pages[1]));
    let wanted = values::<T>(len, len as u64);
    from.write(0, &wanted).unwrap();
    npy::write(&path, &from, options(how)).unwrap();
    let file = NpyFile::open(&path).unwrap();
    assert_eq!(file.shape()[0], len);
    file.read(&to, options(how)).unwrap();
    assert_eq!(bytes(&to.to_vec(..).unwrap()), bytes(&wanted));
    assert_eq!(folder.names(), ["a.npy"]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn elements_of_all_types_come_back(
        len in 0_usize..3000,
        pages in [1_usize..300, 1_usize..300],
        how in (1_usize..5000, 1_usize..5, any::<bool>()),
        of in 0..5,
    ) {
        match of {
            0 => there_and_back::<u8>(len, pages, how),
            1 => there_and_back::<i16>(len, pages, how),
            2 => there_and_back::<f64>(len, pages, how),
            3 => there_and_back::<[[u32; 2]; 3]>(len / 4, pages, how),
            _ => there_and_back::<Body>(len / 8, pages, how),
        }
    }

    #[test]
    fn boxes_come_back_from_both_orders(
        shape in [0_usize..12, 0_usize..12, 0_usize..12],
        tile in prop::option::of([1_usize..5, 1_usize..5, 1_usize..5]),
        how in (1_usize..2000, 1_usize..5, any::<bool>()),
    ) {
        let folder = Folder::new();
        let path = folder.file("a.npy");
        let layout = tile.map_or(NdLayout::RowMajor, NdLayout::Tiled);
        let (from, to) = (nd_array::<u16, 3>(shape, layout), nd_array::<u16, 3>(shape, layout));
        let wanted = values::<u16>(from.len(), 5);
        from.write_box(.., &wanted).unwrap();
        npy::write(&path, &from, options(how)).unwrap();
        let file = NpyFile::open(&path).unwrap();
        prop_assert_eq!(file.extents::<3>().unwrap(), shape);
        file.read(&to, options(how)).unwrap();
        prop_assert_eq!(&to.to_vec(..).unwrap(), &wanted);

        // Write the same elements with the first axis fastest.
        let [a, b, c] = shape;
        let order = if how.2 { '>' } else { '<' };
        let mut contents = Vec::new();
        for k in 0..c {
            for j in 0..b {
                for i in 0..a {
                    let value = wanted[(i * b + j) * c + k];
                    contents.extend(if how.2 { value.to_be_bytes() } else { value.to_le_bytes() });
                }
            }
        }
        let header = format!("{{'descr': '{order}u2', 'fortran_order': True, 'shape': ({a}, {b}, {c})}}");
        file_of(&path, &header, &contents);
        to.fill(.., 0).unwrap();
        NpyFile::open(&path).unwrap().read(&to, options(how)).unwrap();
        prop_assert_eq!(to.to_vec(..).unwrap(), wanted);
    }
}

#[test]
fn every_view_is_written_and_read() {
    let folder = Folder::new();
    let path = folder.file("a.npy");
    let wanted = values::<u32>(60, 1);
    let whole = array::<u32>(100, 7);
    whole.write(20, &wanted).unwrap();
    let written = |view: &dyn Fn()| {
        view();
        fs::read(&path).unwrap()
    };
    let write = || npy::write(&path, whole.section(20..80).unwrap(), FileOptions::new()).unwrap();
    let expected = written(&write);
    // Test other kinds of views: a source, a row, and an owned section.
    let source = Source::new(wanted.clone()).unwrap();
    assert_eq!(written(&|| npy::write(&path, &source, FileOptions::new()).unwrap()), expected);
    let written_rows = rows::<u32>().from_rows([&[][..], &wanted, &[1]]).unwrap();
    assert_eq!(
        written(&|| npy::write(&path, written_rows.row(1).unwrap(), FileOptions::new()).unwrap()),
        expected
    );
    let source = Source::new(vec![0_u32; 60]).unwrap();
    load(&path, &source).unwrap();
    assert_eq!(source.to_vec(..).unwrap(), wanted);
    written_rows.items().fill(.., 0).unwrap();
    load(&path, written_rows.row(1).unwrap()).unwrap();
    assert_eq!(written_rows.items().to_vec(..60).unwrap(), wanted);
    whole.fill(.., 9).unwrap();
    load(&path, whole.section_mut(40..).unwrap()).unwrap();
    assert_eq!((whole.to_vec(40..).unwrap(), whole.get(39).unwrap()), (wanted.clone(), 9));

    // Test boxes: a part of an array of three axes with one index fixed, and a part of a vector.
    let volume = nd_array::<u32, 3>([5, 20, 30], NdLayout::Tiled([2, 4, 8]));
    let part = volume.section_mut([2, 3, 10]..[3, 9, 20]).unwrap().project_mut::<2>(0, 0).unwrap();
    let table: NdSection<'_, _, 2> = NdSection::over(&source, [6, 10]).unwrap();
    let of_table = written(&|| npy::write(&path, table, FileOptions::new()).unwrap());
    load(&path, part).unwrap();
    assert_eq!(volume.to_vec([2, 3, 10]..[3, 9, 20]).unwrap(), wanted);
    assert_eq!(written(&|| npy::write(&path, part, FileOptions::new()).unwrap()), of_table);
    assert_eq!(volume.count_where(.., Field::whole().ne(0)).unwrap(), 60);
}

#[test]
fn mismatches_are_refused_and_name_both_sides() {
    let folder = Folder::new();
    let path = folder.file("a.npy");
    npy::write(&path, &array::<Body>(10, 4), FileOptions::new()).unwrap();
    let file = NpyFile::open(&path).unwrap();
    let body = "{at: [f32; 3], mass: f32, spin: {of: [[i16; 2]; 2], id: u64}}";
    assert_eq!(file.type_name(), body);
    match file.read(&array::<u32>(10, 4), FileOptions::new()) {
        Err(Error::ElementMismatch { expected, found, .. }) => {
            assert_eq!((&*expected, &*found), ("u32", body))
        }
        other => panic!("{other:?}"),
    }
    match file.read(&array::<Body>(9, 4), FileOptions::new()) {
        Err(Error::ShapeMismatch { expected, found, .. }) => {
            assert_eq!((expected, found), (vec![9], vec![10]))
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(file.extents::<2>(), Err(Error::RankMismatch { expected: 2, found: 1, .. })));

    // Elements that are arrays are an axis of the file, which has to have their length.
    npy::write(&path, &array::<[u8; 3]>(10, 4), FileOptions::new()).unwrap();
    let file = NpyFile::open(&path).unwrap();
    assert_eq!((file.shape(), file.type_name()), (&[10, 3][..], "u8".into()));
    match file.read(&array::<[u8; 4]>(10, 4), FileOptions::new()) {
        Err(Error::ElementMismatch { expected, found, .. }) => {
            assert_eq!((&*expected, &*found), ("[u8; 4]", "[u8; 3]"));
        }
        other => panic!("{other:?}"),
    }
    file.read(&nd_array::<u8, 2>([10, 3], NdLayout::RowMajor), FileOptions::new()).unwrap();
    assert!(matches!(file.read(&array::<u8>(30, 4), FileOptions::new()), Err(Error::ShapeMismatch { .. })));
    file_of(&path, "{'descr': '|u1', 'fortran_order': True, 'shape': (10, 3)}", &[0; 30]);
    let turned =
        NpyFile::open(&path).unwrap().read(&array::<[u8; 3]>(10, 4), FileOptions::new()).unwrap_err();
    assert!(turned.to_string().contains("Fortran order"), "{turned}");

    // NumPy's bools and byte strings are read as bytes.
    file_of(&path, "{'descr': '|b1', 'fortran_order': False, 'shape': (3,)}", &[1, 0, 1]);
    let bytes = array::<u8>(3, 4);
    load(&path, &bytes).unwrap();
    assert_eq!(bytes.to_vec(..).unwrap(), [1, 0, 1]);
    file_of(&path, "{'descr': '|S3', 'fortran_order': True, 'shape': (2,)}", b"abcde\0");
    let texts = array::<[u8; 3]>(2, 4);
    load(&path, &texts).unwrap();
    assert_eq!(texts.to_vec(..).unwrap(), [*b"abc", *b"de\0"]);
}

#[test]
fn a_file_has_its_name_when_it_is_whole() {
    let folder = Folder::new();
    let path = folder.file("a.npy");
    let elements = array::<u32>(10_000, 64);
    npy::write(&path, &elements, FileOptions::new()).unwrap();
    let before = fs::read(&path).unwrap();
    elements.fill(.., 7).unwrap();
    let mut names = Vec::new();
    let ended = npy::write(
        &path,
        &elements,
        FileOptions::new().piece_bytes(4000).threads(1).progress(|progress| {
            names = folder.names();
            if progress.done_bytes == 7680 {
                std::ops::ControlFlow::Break(())
            } else {
                std::ops::ControlFlow::Continue(())
            }
        }),
    );
    assert!(matches!(ended, Err(Error::Cancelled { done_bytes: 7680, total_bytes: 40_000 })));
    assert!(names.len() == 2 && names[0].ends_with(".unfinished"), "{names:?}");
    assert_eq!((folder.names(), fs::read(&path).unwrap()), (vec!["a.npy".into()], before));
    // After a panic in the program, no file is left either.
    let panics = std::panic::AssertUnwindSafe(|| {
        let _ = npy::write(&path, &elements, FileOptions::new().progress(|_| panic!("on purpose")));
    });
    assert!(std::panic::catch_unwind(panics).is_err());
    assert_eq!(folder.names(), ["a.npy"]);
    npy::write(&path, &elements, FileOptions::new()).unwrap();
    let again = array::<u32>(10_000, 100);
    load(&path, &again).unwrap();
    assert_eq!(again.count(.., Field::whole(), &7).unwrap(), 10_000);

    for bad in [folder.file("none/a.npy"), "/".into(), folder.path().to_path_buf()] {
        assert!(
            matches!(npy::write(&bad, &elements, FileOptions::new()), Err(Error::File { .. })),
            "{bad:?}"
        );
    }
    assert_eq!(folder.names(), ["a.npy"]);
}

#[test]
fn a_device_that_fails_ends_the_work() {
    use std::sync::Arc;
    use vmarray::{VirtualArray, host::HostDevice};
    use vmarray_conformance::wrap::Faulty;
    let folder = Folder::new();
    let path = folder.file("a.npy");
    let device = Arc::new(Faulty::new(HostDevice::new(1 << 20).unwrap()));
    let elements = VirtualArray::<u32>::builder(100_000)
        .devices([Arc::clone(&device)])
        .page_len(256)
        .cache_bytes(16 << 10)
        .build()
        .unwrap();
    elements.fill(.., 3).unwrap();
    elements.flush(..).unwrap();
    device.lose();
    assert!(matches!(npy::write(&path, &elements, FileOptions::new()), Err(Error::Array(_))));
    assert!(folder.names().is_empty());
}
