//! Tests with requests that fail permanently.

use vmarray::{NdArray, VirtualArray, prelude::*};
use vmarray_formats::zarr::{self, Zarr};
use vmarray_formats::{Error, FileOptions};
use vmarray_formats_servers::{Fault, Request, each};

use crate::common::{Pair, pair, places, plain, read};

const FAULTS: [Fault; 7] = [
    Fault::Status(503),
    Fault::Status(500),
    Fault::Status(429),
    Fault::Status(403),
    Fault::Lost,
    Fault::Unanswered,
    Fault::Cut,
];

fn is_chunk(request: &Request, method: &str, name: &str) -> bool {
    request.method == method && request.path.ends_with(name)
}

/// After any failed request no client sees a partial store, and a new one can be written in its place.
#[test]
fn a_store_is_whole_or_not_there() {
    each(|bucket| {
        for (number, fault) in FAULTS.into_iter().enumerate() {
            for name in ["/c/0/1", "/zarr.json"] {
                let prefix = format!("x/{number}{}", &name[1..2]);
                let proxy = bucket.proxy(move |request| is_chunk(request, "PUT", name).then_some(fault));
                let write = || {
                    let at = bucket.at_by(&proxy, &prefix, 2);
                    zarr::write(at, &places([8, 8]), plain([4, 4]), FileOptions::new())
                };
                let failed = write().unwrap_err();
                assert!(matches!(failed, Error::Zarr { .. }), "{fault:?}: {failed}");
                proxy.decide(|_| None);
                match Zarr::<u32>::open(bucket.at(&prefix)) {
                    Err(_) => write().unwrap(),
                    // The server has stored the last object, but the client received no response.
                    Ok(_) => assert!(matches!(fault, Fault::Unanswered | Fault::Cut) && name == "/zarr.json"),
                }
                assert_eq!(read::<u32>(bucket.at(&prefix)), (0..64).collect::<Vec<_>>());
            }
        }
    });
}

/// A chunk that cannot be read is an error; other chunks are readable, and this one later.
#[test]
fn chunks_that_cannot_be_read() {
    each(|bucket| {
        zarr::write(bucket.at("x"), &places([8, 8]), plain([4, 4]), FileOptions::new()).unwrap();
        for fault in FAULTS.into_iter().chain([Fault::Short]) {
            let proxy = bucket.proxy(move |request| is_chunk(request, "GET", "/c/1/1").then_some(fault));
            let store = Zarr::<u32>::open(bucket.at_by(&proxy, "x", 2)).unwrap();
            let whole = places([8, 8]);
            let failed = store.read(&whole, FileOptions::new()).unwrap_err();
            assert!(matches!(failed, Error::Zarr { .. } | Error::Corrupted { .. }), "{fault:?}: {failed}");
            let array: NdArray<u32, 2> = store.into_array(|elements| elements.read_ahead(false)).unwrap();
            let failed = array.get([7, 7]).unwrap_err();
            assert!(failed.to_string().contains("page 3"), "{fault:?}: {failed}");
            assert_eq!(array.get([3, 3]).unwrap(), 27, "{fault:?}");
            proxy.decide(|_| None);
            assert_eq!(array.get([7, 7]).unwrap(), 63, "{fault:?}");
        }
    });
}

/// Elements that cannot be written stay in the array, and are written later.
#[test]
fn chunks_that_cannot_be_written() {
    each(|bucket| {
        zarr::write(bucket.at("x"), &places([8, 8]), plain([4, 4]), FileOptions::new()).unwrap();
        for (number, fault) in FAULTS.into_iter().enumerate() {
            let value = 100 + number as u32;
            let proxy = bucket.proxy(move |request| is_chunk(request, "PUT", "/c/1/1").then_some(fault));
            let store = Zarr::<u32>::open(bucket.at_by(&proxy, "x", 2)).unwrap();
            let array: NdArray<u32, 2> = store.into_array(|elements| elements).unwrap();
            array.fill([3, 3]..[5, 5], value).unwrap();
            array.elements().sync().unwrap_err();
            assert_eq!((array.get([3, 3]).unwrap(), array.get([4, 4]).unwrap()), (value, value), "{fault:?}");
            array.set([7, 7], value).unwrap();
            proxy.decide(|_| None);
            array.elements().sync().unwrap();
            let stored = read::<u32>(bucket.at("x"));
            assert_eq!([stored[27], stored[36], stored[63]], [value; 3], "{fault:?}");
        }
    });
}

/// All fields have the old length, or all have the new one.
#[test]
fn an_append_that_fails_changes_no_shape() {
    each(|bucket| {
        let pairs = VirtualArray::<Pair>::new(10).unwrap();
        pairs.fill(.., pair(1)).unwrap();
        for (number, fault) in FAULTS.into_iter().enumerate() {
            let prefix = format!("x/{number}");
            zarr::write(bucket.at(&prefix), &pairs, plain([4]), FileOptions::new()).unwrap();
            // The first attempt and two retries fail; the requests that clean up succeed.
            let mut failures = 0;
            let proxy = bucket.proxy(move |request| {
                let fails = is_chunk(request, "PUT", "/b/zarr.json") && failures < 3;
                failures += usize::from(fails);
                fails.then_some(fault)
            });
            let mut store = Zarr::<Pair>::open(bucket.at_by(&proxy, &prefix, 2)).unwrap();
            let failed = store.append(&pairs, FileOptions::new());
            assert!(matches!(failed, Err(Error::Zarr { .. })), "{fault:?}");
            assert_eq!(store.shape(), [10]);
            assert_eq!(Zarr::<Pair>::open(bucket.at(&prefix)).unwrap().shape(), [10], "{fault:?}");
            proxy.decide(|_| None);
            store.append(&pairs, FileOptions::new()).unwrap();
            let again = VirtualArray::<Pair>::new(20).unwrap();
            Zarr::<Pair>::open(bucket.at(&prefix)).unwrap().read(&again, FileOptions::new()).unwrap();
            assert_eq!(again.to_vec(..).unwrap(), [pair(1); 20], "{fault:?}");
        }
    });
}

/// The report of a write lists written elements, even if no element can be read afterwards.
#[test]
fn an_append_reads_nothing_when_it_is_done() {
    each(|bucket| {
        zarr::write(bucket.at("x"), &places([4, 4]), plain([4, 4]), FileOptions::new()).unwrap();
        let proxy = bucket.proxy(|_| None);
        let mut store = Zarr::<u32>::open(bucket.at_by(&proxy, "x", 0)).unwrap();
        proxy.decide(|request| (request.method != "PUT").then_some(Fault::Lost));
        store.append(&places([4, 4]), FileOptions::new()).unwrap();
        assert_eq!(store.shape(), [8, 4]);
        let both: Vec<u32> = (0..16).chain(0..16).collect();
        assert_eq!(read::<u32>(bucket.at("x")), both);
        // Read through the extended store as well.
        proxy.decide(|_| None);
        let array = places([8, 4]);
        store.read(&array, FileOptions::new()).unwrap();
        assert_eq!(array.to_vec(..).unwrap(), both);
    });
}
