//! Every device of this crate against the contract.

use std::sync::Arc;
use std::time::Duration;

use backend_host::{FileDevice, HostDevice, SimulatedDevice, SimulatedDeviceBuilder};

const BYTES: u64 = 256 << 20;

fn host(threads: usize) -> Arc<HostDevice> {
    Arc::new(HostDevice::builder().bytes(BYTES).threads(threads).build().unwrap())
}

fn file(threads: usize) -> Arc<FileDevice> {
    let folder = env!("CARGO_TARGET_TMPDIR");
    Arc::new(FileDevice::builder(folder).threads(threads).create_temporary(64 << 20).unwrap())
}

fn simulated(builder: SimulatedDeviceBuilder) -> Arc<SimulatedDevice> {
    Arc::new(builder.bytes(BYTES).build())
}

macro_rules! suite {
    ($name:ident, $device:expr) => {
        mod $name {
            use super::*;
            backend_api::conformance_tests!($device);
        }
    };
}
suite!(ram_and_one_thread, host(1));
suite!(ram_and_four_threads, host(4));
suite!(file_and_one_thread, file(1));
suite!(file_and_four_threads, file(4));
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
