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

mod counting;
mod faulty;
