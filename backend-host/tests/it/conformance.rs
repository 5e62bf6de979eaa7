//! Every device of this crate against the contract.

use std::sync::Arc;
use std::time::Duration;

use backend_host::{FileDevice, HostDevice, SimulatedDevice};

const BYTES: u64 = 256 << 20;

fn host(threads: usize) -> Arc<HostDevice> {
    Arc::new(HostDevice::builder().bytes(BYTES).threads(threads).build().unwrap())
}

fn file(threads: usize) -> Arc<FileDevice> {
    let folder = env!("CARGO_TARGET_TMPDIR");
    Arc::new(FileDevice::builder(folder).threads(threads).create_temporary(64 << 20).unwrap())
}

fn simulated(seed: u64) -> Arc<SimulatedDevice> {
    Arc::new(SimulatedDevice::builder(seed).bytes(BYTES).build())
}

mod ram_and_one_thread {
    use super::*;
    backend_api::conformance_tests!(host(1));
}

mod ram_and_four_threads {
    use super::*;
    backend_api::conformance_tests!(host(4));
}

mod file_and_one_thread {
    use super::*;
    backend_api::conformance_tests!(file(1));
}

mod file_and_four_threads {
    use super::*;
    backend_api::conformance_tests!(file(4));
}

mod simulation_1 {
    use super::*;
    backend_api::conformance_tests!(simulated(1));
}

mod simulation_2 {
    use super::*;
    backend_api::conformance_tests!(simulated(2));
}

mod simulation_that_is_slow {
    use super::*;
    backend_api::conformance_tests!(Arc::new(
        SimulatedDevice::builder(3)
            .bytes(BYTES)
            .bandwidth(1_000_000)
            .jitter(100.0)
            .poll_step(Duration::from_millis(1))
            .build()
    ));
}

mod simulation_without_latency {
    use super::*;
    backend_api::conformance_tests!(Arc::new(
        SimulatedDevice::builder(4).bytes(BYTES).latency(Duration::ZERO).bandwidth(u64::MAX).build()
    ));
}
