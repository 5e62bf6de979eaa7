//! Names of a device's objects.
//!
//! Every name is unique in the process, across all devices. So a device refuses an object of another
//! device as unknown, and never takes it for its own. Names serve tables, tickets and messages. Access to
//! an object needs its handle ([`handle`](crate::handle)), which has one owner.

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
            /// Creates a name that is unique in the process.
            pub(crate) fn unique() -> Self {
                Self(next())
            }
        }
    };
}

id! {
    /// The name of an allocation of device memory. Its owner holds the
    /// [`BufferHandle`](crate::BufferHandle).
    ///
    /// ```
    /// use backend_api::{BufferId, Commit, Device};
    /// # let device = backend_host::HostDevice::new(1000)?;
    /// let buffer = device.allocate(600, Commit::Lazy)?;
    /// let name: BufferId = buffer.id();
    /// assert_eq!(buffer.at(100).buffer(), name);
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    BufferId
}
id! {
    /// The name of host memory that a device can copy from and to. Its owner holds the
    /// [`HostAllocation`](crate::HostAllocation).
    ///
    /// ```
    /// use backend_api::{Device, HostId, HostMemory};
    /// # let device = backend_host::HostDevice::new(1000)?;
    /// let host = device.allocate_host(4096, HostMemory::Pageable)?;
    /// let name: HostId = host.id();
    /// assert_eq!(host.at(2048).host(), name);
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    HostId
}
id! {
    /// The name of an in-order queue of a device. Its owner holds the [`QueueHandle`](crate::QueueHandle).
    ///
    /// ```
    /// use backend_api::{Device, QueueId};
    /// # let device = backend_host::HostDevice::new(1000)?;
    /// let queue = device.create_queue()?;
    /// let name: QueueId = queue.id();
    /// assert_eq!(device.submit(&queue, &[])?.queue, name);
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    QueueId
}

/// A point in a queue's history: everything submitted to the queue up to and including one call.
///
/// Values rise by one with each submission to the queue. A ticket is *done* when the queue's progress has
/// reached or passed its value. So tickets need no release: programs may copy, compare and drop them
/// freely.
///
/// ```
/// use backend_api::{QueueHandle, Ticket};
/// let queue = QueueHandle::unique().id();
/// assert!(Ticket { queue, value: 1 } < Ticket { queue, value: 2 });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket {
    /// The queue that the work was submitted to.
    pub queue: QueueId,
    /// The submission's number in that queue; the first is 1.
    pub value: u64,
}
