use super::*;
use backend_api::ErrorKind;
use backend_api::wrap::Fault;
use backend_host::{HostDevice, SimulatedDevice, SimulatedDeviceBuilder};
use std::time::Instant;
use vmarray_conformance::wrap::Counting;

const fn us(microseconds: u64) -> Duration {
    Duration::from_micros(microseconds)
}

const fn ns(nanoseconds: u64) -> Duration {
    Duration::from_nanos(nanoseconds)
}

/// Copies are really made, so fast devices take long to simulate.
fn simulated(megabytes_per_second: u64) -> SimulatedDeviceBuilder {
    SimulatedDevice::builder(1)
        .bytes(256 << 20)
        .latency(us(1))
        .jitter(0.0)
        .bandwidth(megabytes_per_second * 1_000_000)
        .poll_step(ns(100))
}

/// Measures in virtual time, so that the figures are exact. Also returns the virtual time of the measurement.
fn measured(builder: SimulatedDeviceBuilder) -> (Profile, Duration) {
    let device = Arc::new(builder.build());
    let profile = measure(&(Arc::clone(&device) as _), &|| device.now()).unwrap();
    assert!(device.routing().is_empty(), "the device is as it was");
    (profile, device.now())
}

fn near(found: u64, made: f64) -> bool {
    (found as f64 / made - 1.0).abs() < 0.05
}

#[test]
fn a_simulated_device_is_as_fast_as_it_was_made() {
    let builder = simulated(4000).upload_bandwidth(2_000_000_000);
    let (profile, took) = measured(builder);
    assert!(near(profile.read, 4e9) && near(profile.write, 2e9), "{profile:?}");
    // The download ends when half of the upload is done, so the speed of both directions is 4 GB/s.
    assert!(near(profile.both, 4e9), "{profile:?}");
    assert!(profile.routing.is_empty() && took < Duration::from_secs(1), "{took:?}");
    // A copy within the device counts the bytes that it reads and writes. A copy in host memory takes no
    // virtual time, so its speed is unknown.
    assert!(near(profile.device_memory, 8e9) && profile.host_memory == 0, "{profile:?}");
    assert!(near(profile.search, 4e9), "{profile:?}");
    assert!(near(profile.call.as_nanos() as u64, 1000.0), "{profile:?}");
}

#[test]
fn slow_and_fast_devices_take_less_than_a_second() {
    for megabytes_per_second in [200, 1000, 6000] {
        let (_, took) = measured(
            simulated(megabytes_per_second)
                .route(Route::Single, us(1), us(2))
                .route(Route::Batch, us(3), ns(400))
                .route(Route::Kernel, us(8), ns(20)),
        );
        assert!(took < Duration::from_secs(1), "{megabytes_per_second} MB/s took {took:?}");
    }
}

#[test]
fn the_shortest_page_that_is_nearly_as_fast_as_longer_ones_is_found() {
    // A page takes its bytes at 2 GB/s plus a constant time: at most 10 % of its total.
    let page = |latency, per_copy| {
        measured(simulated(2000).latency(latency).route(Route::Single, ns(0), per_copy)).0.page_bytes
    };
    assert_eq!(page(us(1), ns(0)), 16 << 10);
    assert_eq!(page(us(1), ns(2400)), 64 << 10);
    // A single copy takes 38 us for 64 KiB and 136 us for 256 KiB.
    assert_eq!(page(us(1), us(4)), 64 << 10);
    // With this latency, a copy takes 4.04 ms or 4.14 ms, so long pages cost little.
    assert_eq!(page(us(4000), us(5)), 64 << 10);
    assert_eq!(page(us(4000), us(60)), 256 << 10);
    assert_eq!(page(us(4000), us(360)), 1 << 20);
}

#[test]
fn a_page_keeps_a_fast_bus_busy_while_the_array_works_on_it() {
    let page = |megabytes_per_second| measured(simulated(megabytes_per_second)).0.page_bytes;
    assert_eq!(page(16_000), 16 << 10);
    assert_eq!(page(17_000), 64 << 10);
}

#[test]
fn the_routes_that_are_better_than_the_devices_own_are_found_where_they_are() {
    // A call of one copy uses the device's single route. A batch of n pieces costs 1 + 2n us, a kernel 21 us,
    // and each 4 KiB of data 2 us.
    let (profile, _) =
        measured(simulated(2000).route(Route::Single, us(1), us(2)).route(Route::Kernel, us(21), ns(0)));
    let down = |pieces: usize, bytes: u64| profile.routing.download(pieces, pieces as u64 * bytes);
    let up = |pieces: usize, bytes: u64| profile.routing.upload(pieces, pieces as u64 * bytes);
    for (pieces, bytes) in [(2, 4096), (8, 4096), (8, 16 << 10), (32, 64 << 10), (2, 1 << 20)] {
        assert_eq!((down(pieces, bytes), up(pieces, bytes)), (None, None), "{pieces} of {bytes}");
    }
    // Calls of 100000 pieces exceed the measured ones, and get the route of the longest.
    for (pieces, bytes) in [(16, 4096), (512, 4096), (64, 16 << 10), (100_000, 16 << 10), (100_000, 4096)] {
        let kernel = Some(Route::Kernel);
        assert_eq!((down(pieces, bytes), up(pieces, bytes)), (kernel, kernel), "{pieces} of {bytes}");
    }
    // The pages are measured by these routes: singly, 128 of 16 KiB would take a quarter longer than 2 of 1
    // MiB.
    assert_eq!(profile.page_bytes, 16 << 10);
}

#[test]
fn a_device_that_chooses_well_is_left_alone() {
    let (profile, _) = measured(
        simulated(2000).route(Route::Kernel, us(3), ns(0)).route(Route::Batch, us(3), ns(10)).route(
            Route::Single,
            us(3),
            us(1),
        ),
    );
    assert!(profile.routing.is_empty(), "{profile:?}");
    // The profile ignores a gain of a few per cent.
    let (profile, _) =
        measured(simulated(2000).route(Route::Single, us(1), ns(0)).route(Route::Batch, ns(400), ns(0)));
    assert!(profile.routing.is_empty(), "{profile:?}");
}

#[test]
fn a_device_with_one_route_is_not_asked_for_others() {
    let device = Arc::new(Counting::new(simulated(2000).build()));
    let profile = measure(&(Arc::clone(&device) as _), &|| device.inner().now()).unwrap();
    let plain = device.counts().work.submits;
    let device = Arc::new(Counting::new(simulated(2000).route(Route::Batch, ns(0), ns(0)).build()));
    assert_eq!(measure(&(Arc::clone(&device) as _), &|| device.inner().now()).unwrap(), profile);
    assert_eq!(device.counts().work.submits, plain);
    assert_eq!((device.counts().held_bytes, device.counts().host_held_bytes), (0, 0));
}

#[test]
fn a_device_that_fails_is_an_error_and_keeps_its_table() {
    let device = simulated(2000).route(Route::Single, ns(0), us(1)).route(Route::Kernel, us(1), ns(0));
    for submission in [0, 20, 100, 300] {
        let fault = Fault::anywhere(ErrorKind::CopyFailed).on_call(submission + 1).reported_later();
        let device = Arc::new(device.clone().fault(fault).build());
        device.set_routing(Routing::only(Route::Kernel));
        assert!(measure(&(Arc::clone(&device) as _), &|| device.now()).is_err(), "submission {submission}");
        assert_eq!(device.routing(), Routing::only(Route::Kernel));
    }
}

#[test]
fn a_device_smaller_than_the_measurement_is_measured_all_the_same() {
    for bytes in [0, 100, 100_000, 5 << 20] {
        let device = Arc::new(HostDevice::new(bytes).unwrap());
        let start = Instant::now();
        let measured = measure(&(Arc::clone(&device) as _), &|| start.elapsed());
        assert!(bytes < 8 || measured.unwrap().read > 0, "{bytes} bytes");
    }
}
