//! Wrappers keep the contract and do what they are for.

/// All wrappers, with nothing asked of them, around a device that does everything later.
mod conformance {
    use std::sync::Arc;

    use backend_api::wrap::{Counting, Delayed, Faulty, Speed};

    use crate::support::deferred::Deferred;

    backend_api::conformance_tests!(Arc::new(Counting::new(Faulty::new(Delayed::new(
        Deferred::new(64 << 20),
        Speed::CARD
    )))));
}

mod counting;
mod delayed;
mod faulty;
