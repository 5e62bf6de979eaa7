//! Two sound devices pass the suite: one that does everything at once, and one that does everything later.
//! Unsound ones do not.

mod flawed;
mod mutations;
mod runs;

mod synchronous {
    use std::sync::Arc;

    use backend_api::conformance::reference::ReferenceDevice;

    backend_api::conformance_tests!(Arc::new(ReferenceDevice::new(64 << 20)));
}

mod deferred {
    use std::sync::Arc;

    use crate::support::deferred::Deferred;

    backend_api::conformance_tests!(Arc::new(Deferred::new(64 << 20)));
}
