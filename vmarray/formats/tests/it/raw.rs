//! Tests of raw files, compared with vectors.

use std::fs;
use std::ops::Range;

use proptest::prelude::*;
use vmarray::prelude::*;
use vmarray_formats::{ByteOrder, Error, FileOptions, raw};

use crate::common::{Body, Folder, array, bytes, values};
use crate::npy::options;

proptest! {
    #![proptest_config(ProptestConfig { cases: 30, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn elements_come_back_from_a_part_of_a_file(
        len in 0_usize..2000,
        start in 0_usize..100,
        how in (1_usize..3000, 1_usize..5, any::<bool>()),
    ) {
        let folder = Folder::new();
        let path = folder.file("a.raw");
        let from = array::<Body>(len, 13);
        let wanted = values::<Body>(len, 3);
        from.write(0, &wanted).unwrap();
        raw::write(&path, &from, options(how)).unwrap();
        let contents = fs::read(&path).unwrap();
        prop_assert_eq!(contents.len(), len * size_of::<Body>());
        fs::write(&path, [&vec![7; start], &contents[..], &[8; 5]].concat()).unwrap();
        let to = array::<Body>(len, 50);
        let range = start as u64..(start + contents.len()) as u64;
        raw::read(&path, range, &to, options(how)).unwrap();
        let read = to.to_vec(..).unwrap();
        prop_assert_eq!(bytes(&read), bytes(&wanted));
    }
}

#[test]
fn numbers_are_in_the_order_that_is_asked_for() {
    let folder = Folder::new();
    let path = folder.file("a.raw");
    let elements = array::<u32>(2, 1);
    elements.write(0, &[0x0102_0304, 5]).unwrap();
    for (order, wanted) in
        [(ByteOrder::Big, [1, 2, 3, 4, 0, 0, 0, 5]), (ByteOrder::Little, [4, 3, 2, 1, 5, 0, 0, 0])]
    {
        raw::write(&path, &elements, FileOptions::new().byte_order(order)).unwrap();
        assert_eq!(fs::read(&path).unwrap(), wanted);
    }
}

#[test]
fn a_range_has_as_many_bytes_as_the_view() {
    let folder = Folder::new();
    let path = folder.file("a.raw");
    fs::write(&path, [1; 40]).unwrap();
    let elements = array::<u32>(10, 4);
    raw::read(&path, .., &elements, FileOptions::new()).unwrap();
    raw::read(&path, ..=39, &elements, FileOptions::new()).unwrap();
    let mut lengths = Vec::new();
    for range in [1..40, 0..39, 0..41, 40..80, u64::MAX - 1..u64::MAX, Range { start: 20, end: 10 }] {
        match raw::read(&path, range.clone(), &elements, FileOptions::new()) {
            Err(Error::LengthMismatch { expected_bytes, found_bytes, .. }) => {
                lengths.push((expected_bytes, found_bytes));
            }
            other => panic!("{range:?}: {other:?}"),
        }
    }
    assert_eq!(lengths, [(40, 39), (40, 39), (41, 40), (80, 40), (u64::MAX, 40), (40, 0)]);
    assert!(matches!(
        raw::read(folder.file("b"), .., &elements, FileOptions::new()),
        Err(Error::File { .. })
    ));
}
