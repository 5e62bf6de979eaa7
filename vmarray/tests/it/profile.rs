//! Tests of profiles as defaults of arrays: measured and declared values, and the limits of their use.

use std::sync::Arc;
use std::time::Duration;
use vmarray::prelude::*;

use crate::common::{as_any, devices};
use vmarray::device::{DeviceKind, Route, Routing};
use vmarray::host::{SimulatedDevice, SimulatedDeviceBuilder};
use vmarray::profile::{Direction, Profile};
use vmarray::{EvictionPolicy, Field, Placement, Source, VirtualArray, device::Device};

/// A device that copies one by one at 5 us each, and by kernel at 10 us a call.
fn builder() -> SimulatedDeviceBuilder {
    let us = Duration::from_micros;
    SimulatedDevice::builder(1).latency(us(1)).jitter(0.0).route(Route::Single, us(0), us(5)).route(
        Route::Kernel,
        us(10),
        us(0),
    )
}

fn simulated() -> Arc<SimulatedDevice> {
    Arc::new(builder().build())
}

fn profile(page_bytes: usize) -> Profile {
    let mut profile = Profile::new(1_000_000_000, 1_000_000_000, 1_000_000_000, page_bytes);
    profile.routing = Routing::only(Route::Kernel);
    profile
}

fn page_bytes<const N: usize>(devices: [&Arc<SimulatedDevice>; N]) -> usize {
    let array = VirtualArray::<u32>::builder(16 << 20).devices(devices.map(as_any)).build().unwrap();
    array.page_len() * 4
}

#[test]
fn without_a_profile_nothing_is_measured_and_nothing_changes() {
    let device = simulated();
    assert_eq!(page_bytes([&device]), 64 << 10);
    assert_eq!((device.submissions(), device.routing()), (0, Routing::new()));
    assert_eq!(Profile::known(device.info()), None);
}

#[test]
fn a_known_profile_gives_page_length_and_routes_until_it_is_forgotten() {
    let device = simulated();
    profile(256 << 10).remember(&device.info().identity);
    assert_eq!(page_bytes([&device]), 256 << 10);
    assert_eq!((device.submissions(), device.routing()), (0, Routing::only(Route::Kernel)));
    let stated = VirtualArray::<u32>::builder(1 << 20).devices([as_any(&device)]).page_len(100);
    assert_eq!(stated.build().unwrap().page_len(), 100);
    Profile::forget(&*device);
    assert_eq!((Profile::known(device.info()), device.routing()), (None, Routing::new()));
    assert_eq!(page_bytes([&device]), 64 << 10);
}

#[test]
fn several_devices_have_the_longest_of_their_pages() {
    let (short, long, unknown) = (simulated(), simulated(), simulated());
    profile(16 << 10).remember(&short.info().identity);
    profile(1 << 20).remember(&long.info().identity);
    assert_eq!(page_bytes([&short]), 16 << 10);
    assert_eq!(page_bytes([&short, &unknown]), 64 << 10);
    assert_eq!(page_bytes([&short, &long]), 1 << 20);
}

#[test]
fn long_pages_leave_a_small_cache_enough_of_them() {
    let device = simulated();
    profile(1 << 20).remember(&device.info().identity);
    let page_bytes = |len: usize, cache_bytes: usize| {
        let builder = VirtualArray::<u32>::builder(len).devices([as_any(&device)]).cache_bytes(cache_bytes);
        builder.build().unwrap().page_len() * 4
    };
    assert_eq!(page_bytes(16 << 20, 64 << 20), 1 << 20);
    assert_eq!(page_bytes(16 << 20, 32 << 20), 512 << 10);
    // The page length is never shorter than without a profile, and never longer than the array.
    assert_eq!(page_bytes(16 << 20, 1 << 20), 64 << 10);
    assert_eq!(page_bytes(1000, 64 << 20), 4096);
}

#[test]
fn a_table_of_the_program_itself_stays() {
    let device = simulated();
    device.set_routing(Routing::only(Route::Single));
    profile(64 << 10).remember(&device.info().identity);
    page_bytes([&device]);
    assert_eq!(device.routing(), Routing::only(Route::Single));
}

#[test]
fn sources_copy_by_the_profile_and_keep_their_own_page_length() {
    let device = simulated();
    let page_len = || {
        let source = Source::builder(vec![7_u32; 1 << 20]).devices([as_any(&device)]).build().unwrap();
        assert_eq!(source.count(.., Field::whole(), &7).unwrap(), 1 << 20);
        source.page_len()
    };
    let own = page_len();
    assert!(device.routing().is_empty());
    profile(16 << 10).remember(&device.info().identity);
    assert_eq!(page_len(), own);
    assert_eq!(device.routing(), Routing::only(Route::Kernel));
}

#[test]
fn an_array_copies_by_the_routes_of_the_profile() {
    let time = |is_known: bool| {
        let device = simulated();
        if is_known {
            profile(4096).remember(&device.info().identity);
        }
        let array = VirtualArray::<u32>::builder(1 << 18)
            .devices([as_any(&device)])
            .page_len(1024)
            .frames_per_channel(64)
            .eviction(EvictionPolicy::Lru)
            .build()
            .unwrap();
        // Write every other page: the rest has no contents and is not fetched, so no two copies are adjacent.
        let pages = || (0..64).step_by(2);
        for page in pages() {
            array.write(page * 1024, &[page as u32; 1024]).unwrap();
        }
        array.evict(..).unwrap();
        let start = device.now();
        array.prefetch(0..64 * 1024).unwrap();
        assert!(pages().all(|page| array.get(page * 1024 + 1).unwrap() as usize == page));
        device.now() - start
    };
    let (own, routed) = (time(false), time(true));
    assert!(routed < own, "{routed:?} by the profile, {own:?} without it");
}

#[test]
fn placements_by_bandwidth_measure_first_and_have_the_page_that_suits() {
    let device = Arc::new(SimulatedDevice::builder(1).bytes(64 << 20).build());
    let array = VirtualArray::<u8>::builder(8 << 20)
        .devices([as_any(&device)])
        .placement(Placement::Balanced(Direction::Read))
        .build()
        .unwrap();
    let profile = Profile::known(device.info()).expect("it was measured");
    assert_eq!(array.page_len(), profile.page_bytes);
    let submissions = device.submissions();
    assert_eq!(Profile::of(&device).unwrap(), profile);
    assert_eq!(device.submissions(), submissions, "not a second time");
}

/// On all available devices: every figure is measured, and contents stay correct with the profile.
#[test]
fn devices_under_test_can_be_profiled() {
    for device in devices(2) {
        let is_card = matches!(device.info().kind, DeviceKind::DiscreteGpu | DeviceKind::IntegratedGpu);
        let before = device.memory().unwrap().free_bytes;
        let profile = Profile::of(&device).unwrap();
        assert!(profile.read > 0 && profile.write > 0 && profile.both > 0, "{profile}");
        assert!(profile.page_bytes.is_power_of_two() && profile.page_bytes >= 16 << 10, "{profile}");
        assert!(is_card || device.memory().unwrap().free_bytes == before, "memory is given back");
        let builder = VirtualArray::<u64>::builder(1 << 20).devices([as_any(&device)]).cache_bytes(1 << 20);
        let array = builder.build().unwrap();
        let values: Vec<u64> = (0..1 << 20).map(|i| i * i).collect();
        array.write(0, &values).unwrap();
        array.evict(..).unwrap();
        let mut read = vec![0; values.len()];
        array.read(0, &mut read).unwrap();
        assert!(read == values);
        Profile::forget(&*device);
    }
}

/// Different devices: their shares of pages take about the same time, by their own clocks.
#[test]
fn work_on_devices_is_divided_by_their_own_speed() {
    let bandwidths = [80_000_000_000, 30_000_000_000, 10_000_000_000, 1_000_000];
    let rig: Vec<_> = (1..)
        .zip(bandwidths)
        .map(|(seed, bandwidth)| {
            let builder = SimulatedDevice::builder(seed).jitter(0.0).latency(Duration::from_nanos(10));
            let device = Arc::new(builder.device_bandwidth(bandwidth).trace(true).build());
            // The buses of both devices are equal.
            let mut profile = profile(4096);
            profile.search = bandwidth;
            profile.remember(&device.info().identity);
            device
        })
        .collect();
    let array = VirtualArray::<u32>::builder(4 << 20)
        .devices(rig.iter().map(as_any))
        .placement(Placement::Bandwidth(Direction::OnDevice))
        .build()
        .unwrap();
    array.fill(.., 7).unwrap();
    array.evict(..).unwrap();
    let before: Vec<_> = rig.iter().map(|device| device.trace().len()).collect();
    assert_eq!(array.sum(.., Field::whole()).unwrap(), 7 * (4 << 20));
    // Work of several channels is in progress at the same time.
    let busy = |(device, before): (&Arc<SimulatedDevice>, usize)| {
        let work = &device.trace()[before..];
        let span =
            work.iter().map(|work| work.finished).max().zip(work.iter().map(|work| work.started).min());
        span.map_or(Duration::ZERO, |(end, start)| end - start)
    };
    let busy: Vec<Duration> = rig.iter().zip(before).map(busy).collect();
    let longest = busy.iter().max().unwrap();
    assert!(busy[..3].iter().all(|busy| *busy >= longest.mul_f64(0.9)), "{busy:?}");
    assert_eq!(busy[3], Duration::ZERO, "it is too slow to have a share");
}
