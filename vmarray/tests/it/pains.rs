//! Tests of common complaints about other libraries that no other test covers.

use std::sync::Arc;
use vmarray::prelude::*;

use crate::common::as_any;
use vmarray::host::HostDevice;
use vmarray::{Field, VirtualArray, device::Device};

#[test]
fn a_device_without_room_for_more_serves_all_operations() {
    const LEN: usize = 1 << 18;
    let device = Arc::new(HostDevice::new(4 * LEN as u64).unwrap());
    let array =
        VirtualArray::<u32>::builder(LEN).devices([as_any(&device)]).page_len(256).cache_bytes(64 << 10);
    let array = array.build().unwrap();
    assert_eq!(device.memory().unwrap().usable_bytes, 0);
    let value = Field::<u32, u32>::whole;
    // Test operations on ranges that are longer than the cache.
    array.write(0, &(0..LEN as u32).collect::<Vec<_>>()).unwrap();
    array.transform(.., value().set(value() + 1)).unwrap();
    assert_eq!(array.count_where(.., value().gt(LEN as u32 / 2)).unwrap(), LEN / 2);
    assert_eq!(array.sum(.., value()).unwrap(), (LEN as i128 + 1) * LEN as i128 / 2);
    let places: Vec<usize> = (0..LEN).step_by(7).rev().collect();
    assert!(array.gather(&places).unwrap().iter().zip(&places).all(|(value, at)| *value as usize == at + 1));
    array.scatter(&places, &vec![0; places.len()]).unwrap();
    assert_eq!(array.find(value(), &0).unwrap().len(), places.len());
    (0..LEN).step_by(1001).try_for_each(|at| array.update(at, |value| value + 1).map(drop)).unwrap();
    assert_eq!(array.to_vec(..).unwrap().len(), LEN);
    array.flush(..).unwrap();
}

#[test]
fn a_large_cache_is_taken_as_it_is_used() {
    let device = Arc::new(HostDevice::new(128 << 20).unwrap());
    let array = VirtualArray::<u64>::builder(16 << 20)
        .devices([as_any(&device)])
        .cache_bytes(96 << 20)
        .build()
        .unwrap();
    let new = array.footprint();
    assert!(new.cache_bytes <= 16 << 20 && new.staging_bytes == 0, "{new:?}");
    assert_eq!(new.cache_max_bytes, 96 << 20);
    (0..array.len()).step_by(array.page_len()).try_for_each(|at| array.set(at, 1)).unwrap();
    let used = array.footprint();
    assert!(used.cache_bytes <= 96 << 20, "{used:?}");
}

#[test]
fn the_tests_that_the_documentation_names_exist() {
    let files = [
        ("discovery", include_str!("discovery.rs")),
        ("endless_kernels", include_str!("endless_kernels.rs")),
        ("errors", include_str!("errors.rs")),
        ("mixed", include_str!("mixed.rs")),
        ("pains", include_str!("pains.rs")),
        ("schedules", include_str!("schedules.rs")),
        ("sources", include_str!("sources.rs")),
        ("threads", include_str!("threads.rs")),
        ("traffic", include_str!("traffic.rs")),
    ];
    let rows = include_str!("../../docs/troubles.md").lines().filter(|line| line.starts_with("| ")).skip(1);
    let named: Vec<&str> = rows.map(|row| row.trim_end_matches(" |").rsplit(" | ").next().unwrap()).collect();
    assert_eq!(named.len(), 11);
    for name in named {
        let (file, test) = name.trim_matches('`').split_once("::").unwrap();
        let (_, text) = files.iter().find(|(known, _)| *known == file).unwrap_or_else(|| panic!("{name}"));
        assert!(text.contains(&format!("#[test]\nfn {test}() {{")), "{name}");
    }
}
