//! Requests of any kind, for devices and wrappers that treat all kinds alike.

use crate::{
    Compute, Device, Extents, Fill, Gather, Launch, QueueHandle, Result, Route, Scatter, Search, Ticket,
    Transfer,
};

/// A request to a queue, of any kind. [`requests!`](crate::requests) implements all submitting methods of
/// [`Device`](crate::Device) by one expression that takes a `Request`.
///
/// ```
/// use backend_api::{BufferHandle, Device, Fill, Request};
/// let device = backend_host::HostDevice::new(1 << 20)?;
/// let (queue, memory) = (device.create_queue()?, BufferHandle::unique());
/// let request = Request::Fill(&Fill { to: memory.at(0), bytes: 8, pattern: &[1] });
/// assert_eq!(request.operation(), "fill");
/// # struct Nothing;
/// # impl backend_api::Extents for Nothing {
/// #     fn device_bytes(&self, _: backend_api::BufferId) -> Option<u64> { None }
/// #     fn host_bytes(&self, _: backend_api::HostId) -> Option<u64> { None }
/// # }
/// assert_eq!(request.check(&Nothing).unwrap_err().detail(), "the buffer is released, or belongs to another device");
/// assert_eq!(request.start(&device, &queue).unwrap_err().operation(), "fill");
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub enum Request<'a> {
    /// Copies: [`Device::submit`], or [`Device::submit_by`] if a route is given.
    Copies(&'a [Transfer<'a>], Option<Route>),
    /// [`Device::fill`].
    Fill(&'a Fill<'a>),
    /// [`Device::search`].
    Search(&'a Search<'a>),
    /// [`Device::gather`].
    Gather(&'a Gather<'a>),
    /// [`Device::scatter`].
    Scatter(&'a Scatter<'a>),
    /// [`Device::compute`].
    Compute(&'a Compute<'a>),
    /// [`Device::launch`].
    Launch(&'a Launch<'a>),
}

impl Request<'_> {
    /// Name of the method, for errors.
    #[must_use]
    pub fn operation(&self) -> &'static str {
        match self {
            Self::Copies(..) => "submit",
            Self::Fill(_) => "fill",
            Self::Search(_) => "search",
            Self::Gather(_) => "gather",
            Self::Scatter(_) => "scatter",
            Self::Compute(_) => "compute",
            Self::Launch(_) => "launch",
        }
    }

    /// Checks the request against a device's memory.
    ///
    /// # Errors
    /// The errors of the `check_…` method of [`Extents`] for this kind of request.
    pub fn check<E: Extents + ?Sized>(&self, memory: &E) -> Result<()> {
        match self {
            Self::Copies(transfers, _) => transfers.iter().try_for_each(|copy| memory.check_transfer(copy)),
            Self::Fill(fill) => memory.check_fill(fill),
            Self::Search(search) => memory.check_search(search),
            Self::Gather(gather) => memory.check_gather(gather),
            Self::Scatter(scatter) => memory.check_scatter(scatter),
            Self::Compute(compute) => memory.check_compute(compute),
            Self::Launch(launch) => memory.check_launch(launch),
        }
    }

    /// Submits the request to a device.
    ///
    /// # Errors
    /// The errors of the method of [`Device`] for this kind of request.
    pub fn start<D: Device + ?Sized>(&self, device: &D, queue: &QueueHandle) -> Result<Ticket> {
        match self {
            Self::Copies(transfers, None) => device.submit(queue, transfers),
            Self::Copies(transfers, Some(route)) => device.submit_by(*route, queue, transfers),
            Self::Fill(fill) => device.fill(queue, fill),
            Self::Search(search) => device.search(queue, search),
            Self::Gather(gather) => device.gather(queue, gather),
            Self::Scatter(scatter) => device.scatter(queue, scatter),
            Self::Compute(compute) => device.compute(queue, compute),
            Self::Launch(launch) => device.launch(queue, launch),
        }
    }
}

/// Implements the methods of [`Device`](crate::Device) that submit work, all of them by one expression:
/// `submit`, `submit_by`, `fill`, `search`, `gather`, `scatter`, `compute` and `launch`.
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// /// Counts submissions.
/// #[derive(Debug)]
/// struct Counted<D> {
///     inner: D,
///     submissions: AtomicU64,
/// }
///
/// // SAFETY: all is passed on as it is, so the inner device keeps the contract.
/// unsafe impl<D: backend_api::Device> backend_api::Device for Counted<D> {
///     backend_api::requests! { self, queue, request => {
///         self.submissions.fetch_add(1, Ordering::Relaxed);
///         request.start(&self.inner, queue)
///     } }
///     backend_api::forward! { self => self.inner;
///         info memory create_queue release_queue allocate release allocate_host import_host release_host
///         poll wait wake order_after
///     }
/// }
/// ```
#[macro_export]
macro_rules! requests {
    ($self:ident, $queue:ident, $request:ident => $start:expr) => {
        fn submit(
            &$self,
            $queue: &$crate::QueueHandle,
            transfers: &[$crate::Transfer<'_>],
        ) -> $crate::Result<$crate::Ticket> {
            let $request = $crate::Request::Copies(transfers, None);
            $start
        }

        fn submit_by(
            &$self,
            route: $crate::Route,
            $queue: &$crate::QueueHandle,
            transfers: &[$crate::Transfer<'_>],
        ) -> $crate::Result<$crate::Ticket> {
            let $request = $crate::Request::Copies(transfers, Some(route));
            $start
        }

        $crate::requests! { @$self, $queue, $request => $start;
            fill: Fill, search: Search, gather: Gather, scatter: Scatter, compute: Compute,
            launch: Launch
        }
    };
    (
        @$self:ident, $queue:ident, $request:ident => $start:expr;
        $method:ident: $Kind:ident $(, $rest:ident: $Rest:ident)*
    ) => {
        fn $method(
            &$self,
            $queue: &$crate::QueueHandle,
            asked: &$crate::$Kind<'_>,
        ) -> $crate::Result<$crate::Ticket> {
            let $request = $crate::Request::$Kind(asked);
            $start
        }

        $($crate::requests! { @$self, $queue, $request => $start; $rest: $Rest })*
    };
}
