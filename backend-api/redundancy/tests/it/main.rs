//! Tests of the devices of this crate: they pass the conformance suite, and have their documented effects.
//! All are one program.

/// A device that verifies checksums, around one that defers all work. No piece of work is exactly one unit
/// long.
mod checksummed_conformance {
    use backend_host::SimulatedDevice;

    use super::checksummed::checksummed;

    vmarray_conformance::conformance_tests!(checksummed(std::sync::Arc::new(
        SimulatedDevice::builder(1).bytes(64 << 20).build()
    )));
}

/// A mirror of two devices.
mod mirrored_conformance {
    use std::sync::Arc;

    use backend_api::Device;
    use vmarray_redundancy::Mirrored;

    use backend_host::{HostDevice, SimulatedDevice};

    vmarray_conformance::conformance_tests!(Arc::new(
        Mirrored::new([
            Arc::new(SimulatedDevice::builder(1).bytes(64 << 20).build()) as Arc<dyn Device>,
            Arc::new(HostDevice::new(64 << 20).unwrap()),
        ])
        .unwrap()
    ));
}

/// A device that can be moved, after a move.
mod moved_conformance {
    use std::sync::Arc;

    use backend_api::Device;
    use vmarray_redundancy::Mirrored;

    use backend_host::{HostDevice, SimulatedDevice};

    fn moved() -> Arc<Mirrored> {
        let old: Arc<dyn Device> = Arc::new(HostDevice::new(64 << 20).unwrap());
        let mirror = Mirrored::new([old.clone()]).unwrap();
        mirror.replace(&old, Arc::new(SimulatedDevice::builder(1).bytes(64 << 20).build())).unwrap();
        Arc::new(mirror)
    }

    vmarray_conformance::conformance_tests!(moved());
}

mod checksummed;
mod mirrored;
