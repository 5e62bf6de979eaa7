//! Wrappers keep the contract and do what they are for.
#![cfg(feature = "conformance")]

mod support;

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

#[path = "wrappers/counting.rs"]
mod counting;
#[path = "wrappers/delayed.rs"]
mod delayed;
#[path = "wrappers/faulty.rs"]
mod faulty;
