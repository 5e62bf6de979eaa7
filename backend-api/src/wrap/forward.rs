//! The macro that forwards methods of a wrapper to its inner device.

/// For wrappers: implements the named methods of [`Device`](crate::Device) by calls of another device.
///
/// A provided method that a wrapper neither names nor implements keeps its default, which often reports that
/// the device does not support it. If a wrapper must process all reads, it must not name `direct_reads`. If
/// it must process all accesses, it must not name `addresses`.
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use backend_api::{Device, QueueHandle, Request, Result, Ticket};
///
/// /// Counts submissions.
/// #[derive(Debug)]
/// struct Counted<D> {
///     inner: D,
///     submissions: AtomicU64,
/// }
///
/// // SAFETY: all is passed on as it is, so the inner device keeps the contract.
/// unsafe impl<D: Device> Device for Counted<D> {
///     fn submit(&self, queue: &QueueHandle, request: &Request<'_>) -> Result<Ticket> {
///         self.submissions.fetch_add(1, Ordering::Relaxed);
///         self.inner.submit(queue, request)
///     }
///     backend_api::forward! { self => self.inner;
///         info memory create_queue release_queue allocate allocate_extensible extend release
///         allocate_host import_host release_host wipe_on_release sync
///         prepare kernel_facts poll wait wake reaches order_after
///     }
/// }
/// # let device = Counted { inner: backend_host::HostDevice::new(1 << 20)?, submissions: AtomicU64::new(0) };
/// let ticket = device.submit(&device.create_queue()?, &Request::Copies(&[], None))?;
/// device.wait(ticket)?;
/// # Ok::<_, backend_api::Error>(())
/// ```
#[macro_export]
macro_rules! forward {
    ($self:ident => $to:expr; $($method:ident)*) => {
        $($crate::forward! { @$method $self => $to })*
    };
    (@info $self:ident => $to:expr) => {
        $crate::forward! { @ $self => $to; info() -> &$crate::DeviceInfo }
    };
    (@memory $self:ident => $to:expr) => {
        $crate::forward! { @ $self => $to; memory() -> $crate::Result<$crate::MemoryStatus> }
    };
    (@create_queue $self:ident => $to:expr) => {
        $crate::forward! { @ $self => $to; create_queue() -> $crate::Result<$crate::QueueHandle> }
    };
    (@release_queue $self:ident => $to:expr) => {
        $crate::forward! { @ $self => $to; release_queue(queue: $crate::QueueHandle) }
    };
    (@allocate $self:ident => $to:expr) => {
        $crate::forward! { @ $self => $to;
            allocate(bytes: u64, commit: $crate::Commit) -> $crate::Result<$crate::BufferHandle>
        }
    };
    (@allocate_extensible $self:ident => $to:expr) => {
        $crate::forward! { @ $self => $to;
            allocate_extensible(bytes: u64, most: u64, commit: $crate::Commit)
                -> $crate::Result<$crate::BufferHandle>
        }
    };
    (@extend $self:ident => $to:expr) => {
        $crate::forward! { @ $self => $to;
            extend(buffer: &$crate::BufferHandle, bytes: u64, commit: $crate::Commit) -> $crate::Result<()>
        }
    };
    (@release $self:ident => $to:expr) => {
        $crate::forward! { @ $self => $to; release(buffer: $crate::BufferHandle) }
    };
    (@allocate_host $self:ident => $to:expr) => {
        $crate::forward! { @ $self => $to;
            allocate_host(bytes: usize, kind: $crate::HostMemory) -> $crate::Result<$crate::HostAllocation>
        }
    };
    (@release_host $self:ident => $to:expr) => {
        $crate::forward! { @ $self => $to; release_host(host: $crate::HostAllocation) }
    };
    (@submit $self:ident => $to:expr) => {
        $crate::forward! { @ $self => $to;
            submit(queue: &$crate::QueueHandle, request: &$crate::Request<'_>)
                -> $crate::Result<$crate::Ticket>
        }
    };
    (@routes $self:ident => $to:expr) => {
        $crate::forward! { @ $self => $to; routes() -> &[$crate::Route] }
    };
    (@set_routing $self:ident => $to:expr) => {
        $crate::forward! { @ $self => $to; set_routing(routing: $crate::Routing) }
    };
    (@routing $self:ident => $to:expr) => {
        $crate::forward! { @ $self => $to; routing() -> $crate::Routing }
    };
    (@wipe_on_release $self:ident => $to:expr) => {
        $crate::forward! { @ $self => $to; wipe_on_release() -> $crate::Result<()> }
    };
    (@sync $self:ident => $to:expr) => {
        $crate::forward! { @ $self => $to; sync() -> $crate::Result<()> }
    };
    (@direct_reads $self:ident => $to:expr) => {
        $crate::forward! { @ $self => $to; direct_reads() -> ::std::option::Option<&dyn $crate::DirectReads> }
    };
    (@stream_launcher $self:ident => $to:expr) => {
        $crate::forward! { @ $self => $to; stream_launcher() -> ::std::option::Option<&dyn $crate::StreamLauncher> }
    };
    (@addresses $self:ident => $to:expr) => {
        $crate::forward! { @ $self => $to; addresses() -> ::std::option::Option<&dyn $crate::Addresses> }
    };
    (@prepare $self:ident => $to:expr) => {
        $crate::forward! { @ $self => $to;
            prepare(requests: &[$crate::Request<'_>]) -> $crate::Result<()>
        }
    };
    (@kernel_facts $self:ident => $to:expr) => {
        $crate::forward! { @ $self => $to;
            kernel_facts(launch: &$crate::Launch<'_>) -> $crate::Result<$crate::kernel::KernelFacts>
        }
    };
    (@poll $self:ident => $to:expr) => {
        $crate::forward! {
            @ $self => $to; poll(ticket: $crate::Ticket) -> $crate::Result<$crate::QueueProgress>
        }
    };
    (@wait $self:ident => $to:expr) => {
        $crate::forward! { @ $self => $to; wait(ticket: $crate::Ticket) -> $crate::Result<()> }
    };
    (@wake $self:ident => $to:expr) => {
        $crate::forward! { @ $self => $to; wake(ticket: $crate::Ticket, waker: ::std::task::Waker) }
    };
    (@reaches $self:ident => $to:expr) => {
        $crate::forward! { @ $self => $to; reaches(other: &$crate::DeviceInfo) -> $crate::Reach }
    };
    (@order_after $self:ident => $to:expr) => {
        $crate::forward! { @ $self => $to;
            order_after(queue: &$crate::QueueHandle, ticket: $crate::Ticket) -> $crate::Result<()>
        }
    };
    (@import_host $self:ident => $to:expr) => {
        unsafe fn import_host(
            &$self,
            address: ::std::ptr::NonNull<u8>,
            bytes: usize,
            kind: $crate::HostMemory,
        ) -> $crate::Result<$crate::HostAllocation> {
            // SAFETY: guaranteed by the caller.
            unsafe { $to.import_host(address, bytes, kind) }
        }
    };
    (@ $self:ident => $to:expr; $method:ident($($name:ident: $Type:ty),*) $(-> $Result:ty)?) => {
        fn $method(&$self $(, $name: $Type)*) $(-> $Result)? {
            $to.$method($($name),*)
        }
    };
}
