//! [`Request`]: any request that a program can submit to a queue.

use crate::wrap::Operation;
use crate::{
    Compute, DeviceInfo, Error, ErrorKind, Extents, Fill, Gather, Launch, Result, Route, Scatter, Search,
    Transfer,
};

/// A request to a queue, for [`Device::submit`](crate::Device::submit).
/// [`Queue::submit`](crate::Queue::submit) also accepts the content of each variant directly.
///
/// A later version may have further kinds. If the `match` of a device ends with an arm that returns
/// [`unsupported`](Self::unsupported), the device compiles with these kinds, too.
///
/// ```
/// use backend_api::{Commit, Device, ErrorKind, Fill, Queue, Request};
/// # use std::sync::Arc;
/// let device = Arc::new(backend_host::HostDevice::new(1 << 20)?);
/// let (queue, memory) = (Queue::new(&device)?, device.allocate(8, Commit::Lazy)?);
/// let fill = Fill { to: memory.at(0), bytes: 8, pattern: &[1] };
/// let request = Request::Fill(&fill);
/// assert_eq!(request.operation(), "fill");
/// device.submit(queue.handle(), &request)?;
/// queue.submit(&fill)?; // The same.
///
/// // A device that supports only copies and fills refuses all other requests with this error:
/// assert_eq!(request.unsupported(device.info()).kind(), ErrorKind::Unsupported);
/// # struct Nothing;
/// # impl backend_api::Extents for Nothing {
/// #     fn device_bytes(&self, _: backend_api::BufferId) -> Option<u64> { None }
/// #     fn host_bytes(&self, _: backend_api::HostId) -> Option<u64> { None }
/// # }
/// // `Nothing` is a device without memory, so the buffer is unknown.
/// assert_eq!(request.check(&Nothing).unwrap_err().kind(), ErrorKind::UnknownHandle);
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub enum Request<'a> {
    /// A list of copies, and the route (copy method) by which the device executes them. Every device supports
    /// this kind of request.
    ///
    /// - The copies of one request may run in any order and at the same time. If one copy writes bytes that
    ///   another copy of the request reads or writes, these bytes are unspecified.
    /// - A [`Transfer::Internal`] may have its source or target in another device that this device
    ///   [reaches](crate::Device::reaches).
    /// - If the list is empty, the [`Ticket`](crate::Ticket) is done when all earlier work of the queue is.
    /// - Without a route, the device chooses by its [table](crate::Device::set_routing). The device also
    ///   chooses if it does not have the route, or if the route cannot execute a copy.
    Copies(&'a [Transfer<'a>], Option<Route>),
    /// A fill: writes copies of a pattern to device memory. Every device supports this kind of request. The
    /// device copies the pattern before the call returns. An empty or overlong pattern is an invalid
    /// argument.
    Fill(&'a Fill<'a>),
    /// A search for elements that contain a value. The device copies the value before the call returns. An
    /// empty value, a value that is too long, or a field outside of its element is an invalid argument. A
    /// device that supports compute requests can execute the search by [`Search::as_compute`].
    Search(&'a Search<'a>),
    /// A gather: copies elements by index to the host.
    ///
    /// The device checks each index when it uses the index, and reads no byte outside of the elements. After
    /// an index out of bounds, `wait` and `poll` return [`KernelFailed`](ErrorKind::KernelFailed).
    Gather(&'a Gather<'a>),
    /// A scatter: copies elements by index to the device.
    ///
    /// The device checks each index when it uses the index, and writes no byte outside of the elements. After
    /// an index out of bounds, `wait` and `poll` return [`KernelFailed`](ErrorKind::KernelFailed).
    Scatter(&'a Scatter<'a>),
    /// A compute request: evaluates a program for each element, and reduces or stores its values. If the
    /// device does not support a type, such as `f64`, the call fails with
    /// [`Unsupported`](ErrorKind::Unsupported).
    Compute(&'a Compute<'a>),
    /// The launch of a kernel. Failures of items (GPU threads) are no failures of the launch: the
    /// [report](crate::kernel::Report) counts them. If the device does not support a type, an operation or a
    /// view, the call fails with [`Unsupported`](ErrorKind::Unsupported).
    Launch(&'a Launch<'a>),
}

impl Request<'_> {
    /// Returns the name of this kind of request, for error messages.
    #[must_use]
    pub fn operation(&self) -> &'static str {
        Operation::of(self).name()
    }

    /// Returns the error with which a device refuses a kind of request that it does not support.
    #[must_use]
    pub fn unsupported(&self, device: &DeviceInfo) -> Error {
        Error::new(ErrorKind::Unsupported, self.operation())
            .with_detail("this device does not support this kind of request")
            .with_advice("copy the data to RAM and do the work there, or use another device")
            .on(device)
    }
}

impl<'a> From<&Request<'a>> for Request<'a> {
    fn from(request: &Request<'a>) -> Self {
        *request
    }
}

impl<'a> From<&'a [Transfer<'a>]> for Request<'a> {
    fn from(transfers: &'a [Transfer<'a>]) -> Self {
        Self::Copies(transfers, None)
    }
}

impl<'a, const N: usize> From<&'a [Transfer<'a>; N]> for Request<'a> {
    fn from(transfers: &'a [Transfer<'a>; N]) -> Self {
        Self::Copies(transfers, None)
    }
}

impl<'a> From<&'a Vec<Transfer<'a>>> for Request<'a> {
    fn from(transfers: &'a Vec<Transfer<'a>>) -> Self {
        Self::Copies(transfers, None)
    }
}

/// Defines the checks and conversions for all kinds of requests except copies.
macro_rules! kinds {
    ($($Kind:ident $check:ident,)*) => {
        impl Request<'_> {
            /// Checks the arguments of the request, and that its ranges are inside of the device's memory.
            ///
            /// # Errors
            /// The errors of the `check_…` method of [`Extents`] for this kind of request.
            pub fn check<E: Extents + ?Sized>(&self, memory: &E) -> Result<()> {
                match self {
                    Self::Copies(transfers, _) => {
                        transfers.iter().try_for_each(|transfer| memory.check_transfer(transfer))
                    }
                    $(Self::$Kind(content) => memory.$check(content),)*
                }
            }
        }

        impl Operation {
            /// Returns the fault-injection operation of a kind of request.
            #[doc(hidden)]
            #[must_use]
            pub fn of(request: &Request<'_>) -> Self {
                match request {
                    Request::Copies(..) => Self::Submit,
                    $(Request::$Kind(_) => Self::$Kind,)*
                }
            }
        }

        $(impl<'a> From<&'a $Kind<'a>> for Request<'a> {
            fn from(content: &'a $Kind<'a>) -> Self {
                Self::$Kind(content)
            }
        })*
    };
}

kinds! {
    Fill check_fill,
    Search check_search,
    Gather check_gather,
    Scatter check_scatter,
    Compute check_compute,
    Launch check_launch,
}
