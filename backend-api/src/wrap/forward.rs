//! Methods that a device passes on to another one.

/// Writes the named methods of [`Device`](crate::Device) so that another device carries them out. For
/// wrappers.
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use backend_api::{Device, QueueHandle, Result, Ticket, Transfer};
///
/// /// Counts copies.
/// #[derive(Debug)]
/// struct Counted<D> {
///     inner: D,
///     copies: AtomicU64,
/// }
///
/// // SAFETY: all is passed on as it is, so the inner device keeps the contract.
/// unsafe impl<D: Device> Device for Counted<D> {
///     fn submit(&self, queue: &QueueHandle, transfers: &[Transfer<'_>]) -> Result<Ticket> {
///         self.copies.fetch_add(transfers.len() as u64, Ordering::Relaxed);
///         self.inner.submit(queue, transfers)
///     }
///     backend_api::forward! { self => self.inner;
///         info memory create_queue release_queue allocate release allocate_host import_host release_host
///         wipe_on_release fill search gather scatter compute prepare poll wait wake order_after
///     }
/// }
/// # let device = Counted { inner: backend_host::HostDevice::new(1 << 20)?, copies: AtomicU64::new(0) };
/// let ticket = device.submit(&device.create_queue()?, &[])?;
/// device.wait(ticket)?;
/// # Ok::<_, backend_api::Error>(())
/// ```
#[macro_export]
macro_rules! forward {
    ($self:ident => $to:expr; $($method:ident)*) => {
        $($crate::forward! { @$method $self => $to })*
    };
    (@info $self:ident => $to:expr) => {
        fn info(&$self) -> &$crate::DeviceInfo {
            $to.info()
        }
    };
    (@memory $self:ident => $to:expr) => {
        fn memory(&$self) -> $crate::Result<$crate::MemoryStatus> {
            $to.memory()
        }
    };
    (@create_queue $self:ident => $to:expr) => {
        fn create_queue(&$self) -> $crate::Result<$crate::QueueHandle> {
            $to.create_queue()
        }
    };
    (@release_queue $self:ident => $to:expr) => {
        fn release_queue(&$self, queue: $crate::QueueHandle) {
            $to.release_queue(queue);
        }
    };
    (@allocate $self:ident => $to:expr) => {
        fn allocate(&$self, bytes: u64, commit: $crate::Commit) -> $crate::Result<$crate::BufferHandle> {
            $to.allocate(bytes, commit)
        }
    };
    (@release $self:ident => $to:expr) => {
        fn release(&$self, buffer: $crate::BufferHandle) {
            $to.release(buffer);
        }
    };
    (@allocate_host $self:ident => $to:expr) => {
        fn allocate_host(
            &$self,
            bytes: usize,
            kind: $crate::HostMemory,
        ) -> $crate::Result<$crate::HostAllocation> {
            $to.allocate_host(bytes, kind)
        }
    };
    (@import_host $self:ident => $to:expr) => {
        unsafe fn import_host(
            &$self,
            address: ::std::ptr::NonNull<u8>,
            bytes: usize,
            kind: $crate::HostMemory,
        ) -> $crate::Result<$crate::HostAllocation> {
            // SAFETY: the caller's promise is passed on.
            unsafe { $to.import_host(address, bytes, kind) }
        }
    };
    (@release_host $self:ident => $to:expr) => {
        fn release_host(&$self, host: $crate::HostAllocation) {
            $to.release_host(host);
        }
    };
    (@submit $self:ident => $to:expr) => {
        fn submit(
            &$self,
            queue: &$crate::QueueHandle,
            transfers: &[$crate::Transfer<'_>],
        ) -> $crate::Result<$crate::Ticket> {
            $to.submit(queue, transfers)
        }
    };
    (@routes $self:ident => $to:expr) => {
        fn routes(&$self) -> &[$crate::Route] {
            $to.routes()
        }
    };
    (@submit_by $self:ident => $to:expr) => {
        fn submit_by(
            &$self,
            route: $crate::Route,
            queue: &$crate::QueueHandle,
            transfers: &[$crate::Transfer<'_>],
        ) -> $crate::Result<$crate::Ticket> {
            $to.submit_by(route, queue, transfers)
        }
    };
    (@set_routing $self:ident => $to:expr) => {
        fn set_routing(&$self, routing: $crate::Routing) {
            $to.set_routing(routing);
        }
    };
    (@routing $self:ident => $to:expr) => {
        fn routing(&$self) -> $crate::Routing {
            $to.routing()
        }
    };
    (@wipe_on_release $self:ident => $to:expr) => {
        fn wipe_on_release(&$self) -> $crate::Result<()> {
            $to.wipe_on_release()
        }
    };
    (@fill $self:ident => $to:expr) => {
        fn fill(
            &$self,
            queue: &$crate::QueueHandle,
            fill: &$crate::Fill<'_>,
        ) -> $crate::Result<$crate::Ticket> {
            $to.fill(queue, fill)
        }
    };
    (@search $self:ident => $to:expr) => {
        fn search(
            &$self,
            queue: &$crate::QueueHandle,
            search: &$crate::Search<'_>,
        ) -> $crate::Result<$crate::Ticket> {
            $to.search(queue, search)
        }
    };
    (@gather $self:ident => $to:expr) => {
        fn gather(
            &$self,
            queue: &$crate::QueueHandle,
            gather: &$crate::Gather<'_>,
        ) -> $crate::Result<$crate::Ticket> {
            $to.gather(queue, gather)
        }
    };
    (@scatter $self:ident => $to:expr) => {
        fn scatter(
            &$self,
            queue: &$crate::QueueHandle,
            scatter: &$crate::Scatter<'_>,
        ) -> $crate::Result<$crate::Ticket> {
            $to.scatter(queue, scatter)
        }
    };
    (@compute $self:ident => $to:expr) => {
        fn compute(
            &$self,
            queue: &$crate::QueueHandle,
            compute: &$crate::Compute<'_>,
        ) -> $crate::Result<$crate::Ticket> {
            $to.compute(queue, compute)
        }
    };
    (@prepare $self:ident => $to:expr) => {
        fn prepare(&$self, compute: &$crate::Compute<'_>) -> $crate::Result<()> {
            $to.prepare(compute)
        }
    };
    (@poll $self:ident => $to:expr) => {
        fn poll(&$self, ticket: $crate::Ticket) -> $crate::Result<$crate::Progress> {
            $to.poll(ticket)
        }
    };
    (@wait $self:ident => $to:expr) => {
        fn wait(&$self, ticket: $crate::Ticket) -> $crate::Result<()> {
            $to.wait(ticket)
        }
    };
    (@wake $self:ident => $to:expr) => {
        fn wake(&$self, ticket: $crate::Ticket, waker: ::std::task::Waker) {
            $to.wake(ticket, waker);
        }
    };
    (@order_after $self:ident => $to:expr) => {
        fn order_after(&$self, queue: &$crate::QueueHandle, ticket: $crate::Ticket) -> $crate::Result<()> {
            $to.order_after(queue, ticket)
        }
    };
}
