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

/// A device of a group of three: intact, lost itself, or with another device lost.
mod parity_conformance {
    use std::sync::Arc;

    use backend_api::Device;
    use vmarray_conformance::Limits;
    use vmarray_conformance::wrap::Faulty;
    use vmarray_redundancy::{ParityGroup, ParityMember};

    use backend_host::{HostDevice, SimulatedDevice};

    fn member(at: usize, lost: Option<usize>) -> Arc<ParityMember> {
        const BYTES: u64 = 128 << 20;
        let one = Arc::new(Faulty::new(SimulatedDevice::builder(1).bytes(BYTES).build()));
        let two = Arc::new(Faulty::new(HostDevice::new(BYTES).unwrap()));
        let three = Arc::new(Faulty::new(SimulatedDevice::builder(2).bytes(BYTES).build()));
        let devices: [Arc<dyn Device>; 3] = [one.clone(), two.clone(), three.clone()];
        let group = ParityGroup::new(devices).unwrap();
        match lost {
            Some(0) => one.lose(),
            Some(1) => two.lose(),
            Some(_) => three.lose(),
            None => {}
        }
        group.members()[at].clone()
    }

    vmarray_conformance::conformance_tests!(member(0, None));

    mod on_the_host {
        vmarray_conformance::conformance_tests!(super::member(1, None));
    }

    mod lost {
        vmarray_conformance::conformance_tests!(
            super::member(0, Some(0)),
            super::Limits::default().with_seed(1)
        );
    }

    mod beside_a_lost_one {
        vmarray_conformance::conformance_tests!(
            super::member(1, Some(2)),
            super::Limits::default().with_seed(2)
        );
    }
}

mod checksummed;
mod mirrored;
mod parity;
mod several;
