//! What a simulated device has done.

use std::time::Duration;

use backend_api::{ErrorKind, Ticket};

/// One submission that was carried out, or was to be.
///
/// ```
/// use backend_api::{Commit, Device, Fill};
/// use backend_host::SimulatedDevice;
/// let device = SimulatedDevice::builder(1).trace(true).build();
/// # let (queue, buffer) = (device.create_queue()?, device.allocate(100, Commit::Lazy)?);
/// device.wait(device.fill(&queue, &Fill { to: buffer.at(0), bytes: 100, pattern: &[1] })?)?;
/// let fill = &device.trace()[0];
/// assert_eq!((fill.operation, fill.device_bytes, &fill.failure), ("fill", 100, &None));
/// assert!(fill.submitted <= fill.started && fill.started < fill.finished);
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SimulatedOperation {
    /// The method of the contract that submitted it.
    pub operation: &'static str,
    /// Its ticket.
    pub ticket: Ticket,
    /// How many copies it holds; 0 for kernels.
    pub copies: usize,
    /// Bytes from host to device.
    pub upload_bytes: u64,
    /// Bytes from device to host.
    pub download_bytes: u64,
    /// Bytes that a kernel or a copy within the device reads or writes.
    pub device_bytes: u64,
    /// Bytes that copies bring from or to other devices.
    pub link_bytes: u64,
    /// When it was submitted.
    pub submitted: Duration,
    /// When the device turned to it: not before the work before it in its queue was done.
    pub started: Duration,
    /// When it was done and its effects came.
    pub finished: Duration,
    /// How it failed, if it did.
    pub failure: Option<ErrorKind>,
}
