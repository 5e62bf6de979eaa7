//! Trace of a simulated device: a record of each submission, for tests to inspect.

use std::time::Duration;

use backend_api::{ErrorKind, Ticket};

/// Record of a submission that has finished or failed.
///
/// ```
/// use backend_api::{Commit, Device, Fill, Request};
/// use backend_host::SimulatedDevice;
/// let device = SimulatedDevice::builder(1).trace(true).build();
/// # let (queue, buffer) = (device.create_queue()?, device.allocate(100, Commit::Lazy)?);
/// let fill = Fill { to: buffer.at(0), bytes: 100, pattern: &[1] };
/// device.wait(device.submit(&queue, &Request::Fill(&fill))?)?;
/// let fill = &device.trace()[0];
/// assert_eq!((fill.operation, fill.device_bytes, &fill.failure), ("fill", 100, &None));
/// assert!(fill.submitted <= fill.started && fill.started < fill.finished);
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SimulatedOperation {
    /// Name of the method of `Device` that submitted the work, such as `submit` or `search`.
    pub operation: &'static str,
    /// Ticket of the submission.
    pub ticket: Ticket,
    /// Number of copies in the submission; 0 for kernels.
    pub copies: usize,
    /// Number of bytes copied from host to device.
    pub upload_bytes: u64,
    /// Number of bytes copied from device to host.
    pub download_bytes: u64,
    /// Number of bytes that a kernel, or a copy within the device, reads or writes.
    pub device_bytes: u64,
    /// Number of bytes copied over links from or to other devices.
    pub link_bytes: u64,
    /// Virtual time of the submission.
    pub submitted: Duration,
    /// Virtual time at which the work starts, not before the end of the previous work in the queue.
    pub started: Duration,
    /// Virtual time at which the work ends and its effects happen.
    pub finished: Duration,
    /// Kind of the failure, if the submission failed.
    pub failure: Option<ErrorKind>,
}
