//! Tests of multipart uploads.

use vmarray::{VirtualArray, prelude::*};
use vmarray_formats::zarr::{self, Zarr};
use vmarray_formats::{Error, FileOptions};
use vmarray_formats_servers::{Bucket, Fault, Proxy, Request, each};

use crate::common::plain;

const LEN: usize = 17 << 20;
/// A chunk ends with its crc32c.
const CRC_BYTES: usize = 4;

/// Selects the requests that fail.
type Which = fn(&Request) -> bool;

fn write(bucket: &Bucket, proxy: &Proxy, prefix: &str, array: &VirtualArray<u8>) -> Result<(), Error> {
    zarr::write(bucket.at_by(proxy, prefix, 3), array, plain([LEN]), FileOptions::new())
}

fn is_part(request: &Request, number: usize) -> bool {
    request.method == "PUT" && request.path.contains(&format!("partNumber={number}&"))
}

fn is_end(request: &Request, method: &str) -> bool {
    request.method == method && request.path.contains("?uploadId=")
}

fn count(seen: &[Request], is: impl Fn(&Request) -> bool) -> usize {
    seen.iter().filter(|request| is(request)).count()
}

/// One test, because a server may count uploads of all buckets.
#[test]
fn long_objects_go_in_parts_and_are_whole_or_not_there() {
    each(|bucket| {
        let array = VirtualArray::<u8>::new(LEN).unwrap();
        array.transform(.., Field::whole().set(vmarray::expr::index().cast::<u8>())).unwrap();
        let proxy = bucket.proxy(|_| None);
        write(bucket, &proxy, "long", &array).unwrap();
        let seen = proxy.take_seen();
        let parts = |seen: &[Request]| [1, 2, 3, 4].map(|number| count(seen, |of| is_part(of, number)));
        assert_eq!(parts(&seen), [1, 1, 1, 0]);
        assert_eq!(count(&seen, |of| is_end(of, "POST")), 1);
        assert_eq!((bucket.size("long/c/0"), bucket.uploads()), ((LEN + CRC_BYTES) as u64, 0));
        let again = VirtualArray::<u8>::new(LEN).unwrap();
        Zarr::open(bucket.at("long")).unwrap().read(&again, FileOptions::new()).unwrap();
        assert!(again.to_vec(..).unwrap() == array.to_vec(..).unwrap());

        // The client sends only this part again.
        let mut lost = false;
        proxy.decide(move |request| {
            let is_first = is_part(request, 2) && !std::mem::replace(&mut lost, true);
            is_first.then_some(Fault::Lost)
        });
        write(bucket, &proxy, "again", &array).unwrap();
        assert_eq!(parts(&proxy.take_seen()), [1, 2, 1, 0]);
        bucket.clear();

        // After any permanent failure, no unfinished upload remains.
        let begins = |request: &Request| request.method == "POST" && request.path.contains("?uploads");
        let failures: [(Fault, Which); 5] = [
            (Fault::Status(500), begins),
            (Fault::Status(503), |request| is_part(request, 2)),
            (Fault::Lost, |request| is_part(request, 1)),
            (Fault::Status(500), |request| is_end(request, "POST")),
            (Fault::Lost, |request| is_end(request, "POST")),
        ];
        for (number, (fault, is)) in failures.into_iter().enumerate() {
            proxy.decide(move |request| is(request).then_some(fault));
            let failed = write(bucket, &proxy, "failed", &array).unwrap_err();
            assert!(matches!(failed, Error::Zarr { .. }), "{number}: {failed}");
            let seen = proxy.take_seen();
            assert_eq!(count(&seen, |of| is_end(of, "DELETE")), usize::from(number > 0), "{number}");
            assert_eq!((bucket.uploads(), bucket.names()), (0, Vec::new()), "{number}");
        }
        // The server has created the object, but the client received no response; the object is removed too.
        proxy.decide(|request| is_end(request, "POST").then_some(Fault::Unanswered));
        write(bucket, &proxy, "failed", &array).unwrap_err();
        assert_eq!((bucket.uploads(), bucket.names()), (0, Vec::new()));

        // A page of an array is one object; its elements stay in the array until a write succeeds.
        proxy.decide(|_| None);
        write(bucket, &proxy, "home", &array).unwrap();
        let home = Zarr::<u8>::open(bucket.at_by(&proxy, "home", 1)).unwrap();
        let home: vmarray::NdArray<u8, 1> = home.into_array(|elements| elements).unwrap();
        home.set([LEN - 1], 77).unwrap();
        proxy.decide(|request| is_part(request, 3).then_some(Fault::Status(503)));
        home.elements().sync().unwrap_err();
        assert_eq!(bucket.uploads(), 0);
        let last = || {
            let last = VirtualArray::<u8>::new(1).unwrap();
            let store = Zarr::<u8>::open(bucket.at("home")).unwrap();
            store.read_box([LEN - 1]..[LEN], &last, FileOptions::new()).unwrap();
            last.get(0).unwrap()
        };
        assert_eq!((home.get([LEN - 1]).unwrap(), last()), (77, 255));
        proxy.decide(|_| None);
        home.elements().sync().unwrap();
        assert_eq!(last(), 77);
    });
}
