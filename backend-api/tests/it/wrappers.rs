//! Wrappers keep the contract and do what they are for.

/// All wrappers, with nothing asked of them, around a device that does everything later.
mod conformance {
    use std::sync::Arc;

    use backend_api::wrap::{Counting, Faulty};

    use backend_host::SimulatedDevice;

    backend_api::conformance_tests!(Arc::new(Counting::new(Faulty::new(
        SimulatedDevice::builder(1).bytes(64 << 20).build()
    ))));
}

/// A mirror of two devices.
mod mirrored_conformance {
    use std::sync::Arc;

    use backend_api::Device;
    use backend_api::wrap::Mirrored;

    use backend_host::{HostDevice, SimulatedDevice};

    backend_api::conformance_tests!(Arc::new(
        Mirrored::new([
            Arc::new(SimulatedDevice::builder(1).bytes(64 << 20).build()) as Arc<dyn Device>,
            Arc::new(HostDevice::new(64 << 20).unwrap()),
        ])
        .unwrap()
    ));
}

/// Each device of a group of three.
mod parity_conformance {
    use std::sync::Arc;

    use backend_api::Device;
    use backend_api::wrap::{ParityGroup, ParityMember};

    use backend_host::{HostDevice, SimulatedDevice};

    pub(super) fn member(at: usize) -> Arc<ParityMember> {
        let group = ParityGroup::new([
            Arc::new(SimulatedDevice::builder(1).bytes(128 << 20).build()) as Arc<dyn Device>,
            Arc::new(HostDevice::new(128 << 20).unwrap()),
            Arc::new(SimulatedDevice::builder(2).bytes(128 << 20).build()),
        ]);
        group.unwrap().members()[at].clone()
    }

    backend_api::conformance_tests!(member(0));

    mod on_the_host {
        backend_api::conformance_tests!(super::member(1));
    }
}

mod counting;
mod faulty;
mod mirrored;
mod parity;
