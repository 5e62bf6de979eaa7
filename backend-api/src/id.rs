//! Ids of a device's objects.
//!
//! Every id is unique in the process, across all devices. A device can therefore refuse an object of another
//! device. Ids are for tables, messages and [`Ticket`]s. Access to an object needs its handle
//! ([`handle`](crate::handle)), which has one owner.

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
            /// Creates an id that is unique in the process.
            pub(crate) fn unique() -> Self {
                Self(next())
            }
        }
    };
}

id! {
    /// Id of a buffer, an allocation of device memory. The owner of the memory holds the
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
    /// Id of host memory that a device can copy from and to. The owner of the memory holds the
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
    /// Id of an in-order queue of a device. The owner of the queue holds the
    /// [`QueueHandle`](crate::QueueHandle).
    ///
    /// ```
    /// use backend_api::{Device, QueueId, Request};
    /// # let device = backend_host::HostDevice::new(1000)?;
    /// let queue = device.create_queue()?;
    /// let name: QueueId = queue.id();
    /// assert_eq!(device.submit(&queue, &Request::Copies(&[], None))?.queue, name);
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    QueueId
}

/// A position in the sequence of a queue's submissions. It stands for all work of the queue up to and
/// including one submission.
///
/// The value rises by one with each submission to the queue. A ticket is *done* when all of that work is
/// done. Programs may copy, compare and drop tickets freely; tickets need no release.
///
/// ```
/// use backend_api::{QueueHandle, Ticket};
/// let queue = QueueHandle::unique().id();
/// assert!(Ticket { queue, value: 1 } < Ticket { queue, value: 2 });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket {
    /// Id of the queue that the work was submitted to.
    pub queue: QueueId,
    /// Number of the submission in that queue, counted from 1.
    pub value: u64,
}
