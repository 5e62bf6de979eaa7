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
    ///
    /// ```
    /// use backend_api::{Commit, Device, ErrorKind};
    /// # let (device, other) = (backend_host::HostDevice::new(1000)?, backend_host::HostDevice::new(1000)?);
    /// let buffer = device.allocate(600, Commit::Lazy)?;
    /// other.release(buffer); // A name of another device's: nothing happens.
    /// assert_eq!(device.memory()?.free_bytes, 400);
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    BufferId
}
id! {
    /// Names a piece of host memory that a device can copy from and to.
    ///
    /// ```
    /// use backend_api::{Device, HostId, HostMemory, HostSpan};
    /// # let device = backend_host::HostDevice::new(1000)?;
    /// let host: HostId = device.allocate_host(4096, HostMemory::Pageable)?.id;
    /// let second_half = HostSpan::new(host, 2048);
    /// assert_eq!(second_half.host, host);
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    HostId
}
id! {
    /// Names an in-order queue of a device.
    ///
    /// ```
    /// use backend_api::{Device, QueueId};
    /// # let device = backend_host::HostDevice::new(1000)?;
    /// let queue: QueueId = device.create_queue()?;
    /// assert_eq!(device.submit(queue, &[])?.queue, queue);
    /// # Ok::<_, backend_api::Error>(())
    /// ```
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
