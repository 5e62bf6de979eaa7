//! Tests of the conformance suite itself: a correct synchronous device passes it, and devices with a flaw
//! fail. `vmarray-backend-host` tests correct asynchronous devices.

/// Defines an enum of flaws, each with the checks that find it.
macro_rules! flaws {
    ($(#[$doc:meta])* $($Name:ident: $($check:ident)+;)*) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Flaw {
            None,
            $($Name,)*
        }

        impl Flaw {
            pub const FOUND_BY: &[(Self, &str)] = &[$($((Self::$Name, stringify!($check)),)+)*];
        }
    };
}
use flaws;

mod flawed;
mod late;
mod mutations;
mod peers;
mod runs;

mod synchronous {
    use std::sync::Arc;

    use vmarray_conformance::reference::ReferenceDevice;

    vmarray_conformance::conformance_tests!(Arc::new(ReferenceDevice::new(64 << 20)));
}
