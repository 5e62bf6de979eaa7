//! The conformance suite on every device of this crate.

use std::sync::Arc;
use std::time::Duration;

use backend_api::Device;
use vmarray_conformance::{Limits, Outcome, check_drop, run_peers};
use vmarray_redundancy::Checksummed;

use backend_host::{HostDevice, SimulatedDevice, SimulatedDeviceBuilder};

const BYTES: u64 = 256 << 20;

fn host(threads: usize) -> Arc<HostDevice> {
    Arc::new(HostDevice::builder().bytes(BYTES).threads(threads).build().unwrap())
}

fn checksummed<D: Device>(inner: Arc<D>, unit_bytes: usize) -> Arc<Checksummed<D>> {
    // SAFETY: the checks use the handles of a device with that device alone.
    Arc::new(unsafe { Checksummed::new(inner, unit_bytes) })
}

fn simulated(builder: SimulatedDeviceBuilder) -> Arc<SimulatedDevice> {
    Arc::new(builder.bytes(BYTES).build())
}

macro_rules! suite {
    ($name:ident, $device:expr) => {
        mod $name {
            use super::*;
            vmarray_conformance::conformance_tests!($device);
        }
    };
}
suite!(ram_and_one_thread, host(1));
suite!(ram_and_four_threads, host(4));
suite!(ram_with_checksums, checksummed(host(4), 1000));
suite!(simulation_1, simulated(SimulatedDevice::builder(1)));
suite!(simulation_2, simulated(SimulatedDevice::builder(2)));
suite!(
    simulation_that_is_slow,
    simulated(
        SimulatedDevice::builder(3).bandwidth(1_000_000).jitter(100.0).poll_step(Duration::from_millis(1))
    )
);
suite!(
    simulation_without_latency,
    simulated(SimulatedDevice::builder(4).latency(Duration::ZERO).bandwidth(u64::MAX))
);

#[test]
fn drops_wait_for_no_waker() {
    for threads in [1, 4] {
        assert_eq!(check_drop(host(threads)), Outcome::Passed);
        assert_eq!(check_drop(checksummed(host(threads), 1000)), Outcome::Passed);
    }
    let simulated = check_drop(simulated(SimulatedDevice::builder(1)));
    assert!(matches!(simulated, Outcome::Skipped(_)), "{simulated:?}");
}

#[test]
fn devices_in_host_memory_reach_each_other() {
    for threads in [1, 4] {
        let report = run_peers(&host(threads), &host(2), &Limits::default());
        report.assert_passed();
        let skipped = report.outcomes().filter(|(_, outcome)| matches!(outcome, Outcome::Skipped(_)));
        assert_eq!(skipped.count(), 1, "only the check of devices that do not reach each other: {report}");
    }
    let (one, other) = (checksummed(host(2), 96), checksummed(host(1), 1000));
    run_peers(&one, &other, &Limits::default()).assert_passed();
}
