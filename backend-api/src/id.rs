//! Names of things that live on a device.
//!
//! Every name is unique in the process, whatever device gave it, so that a name handed to the wrong device is
//! refused as unknown and never taken for another thing.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};

fn next() -> NonZeroU64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    NonZeroU64::MIN.saturating_add(LAST.fetch_add(1, Ordering::Relaxed))
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(NonZeroU64);

        impl $name {
            /// A name that nothing else in this process has. For backends.
            ///
            /// ```
            #[doc = concat!("use backend_api::", stringify!($name), ";")]
            #[doc = concat!("assert_ne!(", stringify!($name), "::unique(), ", stringify!($name), "::unique());")]
            /// ```
            #[must_use]
            pub fn unique() -> Self {
                Self(next())
            }
        }
    };
}

id! {
    /// Names an allocation of device memory.
    BufferId
}
id! {
    /// Names a piece of host memory that a device can copy from and to.
    HostId
}
id! {
    /// Names an in-order queue of a device.
    QueueId
}

/// A point in a queue's history: everything submitted to the queue up to and including one call.
///
/// Values rise by one with each submission to the queue. A ticket is *done* when the queue's progress has reached or
/// passed its value, so tickets need no release and can be copied, compared and forgotten freely.
///
/// ```
/// use backend_api::{QueueId, Ticket};
/// let queue = QueueId::unique();
/// assert!(Ticket { queue, value: 1 } < Ticket { queue, value: 2 });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket {
    /// The queue that the work was submitted to.
    pub queue: QueueId,
    /// The submission's number in that queue; the first is 1.
    pub value: u64,
}
