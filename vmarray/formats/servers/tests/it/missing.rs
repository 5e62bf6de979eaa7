//! Tests with missing buckets, unknown keys and removed stores.

use vmarray::{NdArray, prelude::*};
use vmarray_formats::zarr::{self, Zarr};
use vmarray_formats::{Error, FileOptions};
use vmarray_formats_servers::{Keys, each};

use crate::common::{places, plain};

#[test]
fn a_bucket_that_is_not_there() {
    each(|bucket| {
        bucket.remove();
        let opened = Zarr::<u32>::open(bucket.at("x")).unwrap_err();
        assert!(matches!(opened, Error::Malformed { .. }), "{opened}");
        let written =
            zarr::write(bucket.at("x"), &places([4, 4]), plain([2, 2]), FileOptions::new()).unwrap_err();
        assert!(matches!(written, Error::Zarr { .. }), "{written}");
        assert!(written.to_string().contains(&bucket.name), "{written}");
    });
}

#[test]
fn keys_that_are_not_known() {
    each(|bucket| {
        zarr::write(bucket.at("x"), &places([4, 4]), plain([2, 2]), FileOptions::new()).unwrap();
        let Keys { id, secret } = bucket.server.keys();
        for wrong in [Keys { id: id.clone(), secret: "wrong".into() }, Keys { id: "nobody".into(), secret }] {
            let at = |prefix| bucket.at_with(prefix, wrong.clone());
            let opened = Zarr::<u32>::open(at("x")).unwrap_err();
            assert!(matches!(opened, Error::Zarr { .. }), "{opened}");
            let written =
                zarr::write(at("y"), &places([4, 4]), plain([2, 2]), FileOptions::new()).unwrap_err();
            assert!(matches!(written, Error::Zarr { .. }), "{written}");
        }
        assert!(bucket.names().iter().all(|name| name.starts_with("x/")));
    });
}

/// A removed store does not read as fill values.
#[test]
fn a_store_that_is_removed_under_an_array() {
    each(|bucket| {
        for is_bucket in [false, true] {
            // The final write-back of the array may create chunks again, but no store.
            let prefix = if is_bucket { "x" } else { "y" };
            zarr::write(bucket.at(prefix), &places([8, 8]), plain([4, 4]), FileOptions::new()).unwrap();
            let open = || Zarr::<u32>::open(bucket.at(prefix)).unwrap();
            let array: NdArray<u32, 2> = open().into_array(|elements| elements.read_ahead(false)).unwrap();
            let store = open();
            assert_eq!(array.get([0, 1]).unwrap(), 1);
            if is_bucket {
                bucket.remove();
            } else {
                bucket.clear();
            }
            assert_eq!(array.get([0, 1]).unwrap(), 1);
            let error = array.get([7, 7]).unwrap_err();
            if !is_bucket {
                assert!(error.to_string().contains("was removed"), "{error}");
            }
            array.set([0, 0], 5).unwrap();
            array.elements().sync().unwrap_err();
            assert_eq!(array.get([0, 0]).unwrap(), 5);
            store.read(&places([8, 8]), FileOptions::new()).unwrap_err();
        }
    });
}

/// Missing chunks have fill values if the store exists.
#[test]
fn chunks_that_are_not_there() {
    each(|bucket| {
        zarr::write(bucket.at("x"), &places([8, 8]), plain([4, 4]).fill_value(9), FileOptions::new())
            .unwrap();
        bucket.delete("x/c/1/1");
        let array: NdArray<u32, 2> =
            Zarr::open(bucket.at("x")).unwrap().into_array(|elements| elements).unwrap();
        assert_eq!((array.get([7, 7]).unwrap(), array.get([0, 7]).unwrap()), (9, 7));
    });
}
