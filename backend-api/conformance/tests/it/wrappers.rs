//! Tests of the wrappers: they pass the conformance suite, and have their documented effects.

/// All wrappers in their default state, around a device that defers all work.
mod conformance {
    use std::sync::Arc;

    use vmarray_conformance::wrap::{Counting, Faulty};

    use backend_host::SimulatedDevice;

    vmarray_conformance::conformance_tests!(Arc::new(Counting::new(Faulty::new(
        SimulatedDevice::builder(1).bytes(64 << 20).build()
    ))));
}

mod counting;
mod faulty;
