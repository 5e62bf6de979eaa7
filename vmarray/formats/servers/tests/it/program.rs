//! Random programs, compared with a model.

use std::collections::HashMap;

use vmarray::device::wrap::SplitMix64;
use vmarray::{NdArray, prelude::*};
use vmarray_formats::FileOptions;
use vmarray_formats::zarr::{self, Compression, Encoding, Location, Zarr};
use vmarray_formats_servers::{Fault, Request, each};

use crate::common::{Pair, pair, read};

/// Changes a store and a model at random, and compares the model with the reads of a second client.
fn run(seed: u64, at: &Location, other: &Location) {
    let mut random = SplitMix64::new(seed);
    let mut shape = [1 + random.index(20), 1 + random.index(20)];
    let chunk = [3 + random.index(10), 3 + random.index(10)];
    let mut encoding = Encoding::new().chunk(chunk).fill_value(pair(9)).compression(match random.index(3) {
        0 => Compression::None,
        1 => Compression::Gzip { level: 1 },
        _ => Compression::Zstd { level: 1 },
    });
    if random.index(2) == 0 {
        encoding = encoding.shard(chunk.map(|extent| 2 * extent));
    }
    let mut model = vec![pair(9); shape[0] * shape[1]];
    let first = NdArray::<Pair, 2>::new(shape).unwrap();
    first.fill(.., pair(9)).unwrap();
    zarr::write(at.clone(), &first, encoding, FileOptions::new()).unwrap();
    let open = || Zarr::<Pair>::open(at.clone()).unwrap();
    let build =
        || -> NdArray<Pair, 2> { open().into_array(|elements| elements.cache_bytes(16 << 10)).unwrap() };
    let mut array = build();
    for step in 0..12 {
        let start = shape.map(|extent| random.index(extent));
        let end = [0, 1].map(|axis| start[axis] + 1 + random.index(shape[axis] - start[axis]));
        let value = pair(random.index(1000) as u32);
        let mut fill = |rows: std::ops::Range<usize>| {
            for row in rows {
                model[row * shape[1]..][start[1]..end[1]].fill(value);
            }
        };
        match random.index(6) {
            0 | 1 => {
                array.fill(start..end, value).unwrap();
                fill(start[0]..end[0]);
            }
            2 => {
                drop(array);
                let part = NdArray::<Pair, 2>::new([end[0] - start[0], end[1] - start[1]]).unwrap();
                part.fill(.., value).unwrap();
                open().write_box(start..end, &part, FileOptions::new()).unwrap();
                fill(start[0]..end[0]);
                array = build();
            }
            3 => {
                drop(array);
                let rows = NdArray::<Pair, 2>::new([1 + random.index(5), shape[1]]).unwrap();
                rows.fill(.., value).unwrap();
                open().append(&rows, FileOptions::new()).unwrap();
                shape[0] += rows.shape()[0];
                model.resize(shape[0] * shape[1], value);
                array = build();
            }
            4 => {
                array.elements().sync().unwrap();
                assert_eq!(read::<Pair>(other.clone()), model, "seed {seed} step {step}");
            }
            _ => {
                array.elements().sync().unwrap();
                let store = Zarr::<Pair>::open(other.clone()).unwrap();
                let read: NdArray<Pair, 2> = store.into_read_only_array(|elements| elements).unwrap();
                assert_eq!(read.to_vec(..).unwrap(), model, "seed {seed} step {step}");
            }
        }
        assert_eq!(
            array.get(start).unwrap(),
            model[start[0] * shape[1] + start[1]],
            "seed {seed} step {step}"
        );
    }
}

/// Seeds of the programs, from the environment: `cargo xtask formats` sets it.
fn seeds() -> std::ops::Range<u64> {
    let seeds = std::env::var("VMARRAY_FORMATS_PROGRAMS").ok().and_then(|seeds| seeds.parse().ok());
    0..seeds.unwrap_or(4)
}

#[test]
fn a_store_on_a_server_is_an_array() {
    each(|bucket| {
        for seed in seeds() {
            let prefix = format!("a/{seed}");
            run(seed, &bucket.at(&prefix), &bucket.at_with(&prefix, bucket.server.keys()));
        }
    });
}

/// A retry hides each transient failure.
#[test]
fn retries_hide_passing_failures() {
    each(|bucket| {
        for seed in seeds() {
            let (mut random, mut in_a_row) = (SplitMix64::new(seed), HashMap::new());
            let proxy = bucket.proxy(move |request| {
                let failures: &mut usize = in_a_row.entry(request.path.clone()).or_default();
                let fault = (*failures < 4).then(|| transient(request, &mut random)).flatten();
                *failures = if fault.is_some() { *failures + 1 } else { 0 };
                fault
            });
            let prefix = format!("a/{seed}");
            run(seed, &bucket.at_by(&proxy, &prefix, 10), &bucket.at(&prefix));
            let failed = proxy.take_seen().iter().filter(|request| request.fault.is_some()).count();
            assert!(failed > 10, "{failed} requests failed");
        }
    });
}

/// Faults after which `object_store` repeats a request.
fn transient(request: &Request, random: &mut SplitMix64) -> Option<Fault> {
    let is_get = request.method == "GET" && !request.path.contains('?');
    match random.index(12) {
        0 => Some(Fault::Status(503)),
        1 => Some(Fault::Status(500)),
        2 => Some(Fault::Status(429)),
        3 if request.method != "POST" => Some(Fault::Lost),
        4 if request.method != "POST" => Some(Fault::Unanswered),
        5 if is_get => Some(Fault::Cut),
        _ => None,
    }
}
