//! Settings of a simulated device.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use backend_api::{DeviceInfo, DeviceKind};
use parking_lot::Mutex;

use super::SimulatedDevice;
use super::schedule::{Fault, Schedule, Settings};
use crate::host_memory::Pinning;
use crate::ram::Capacity;
use crate::registry::Registry;

/// How a [`SimulatedDevice`] is to be.
///
/// ```
/// use backend_api::{Device, ErrorKind, Queue};
/// use backend_host::SimulatedDevice;
/// let device = std::sync::Arc::new(SimulatedDevice::builder(1).fail_at(1).build());
/// let queue = Queue::new(&device)?;
/// device.wait(queue.submit(&[])?)?;
/// let failed = queue.submit(&[])?;
/// assert_eq!(device.wait(failed).unwrap_err().kind(), ErrorKind::CopyFailed);
/// device.wait(queue.submit(&[])?)?;
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct SimulatedDeviceBuilder {
    bytes: u64,
    pinned_max_bytes: u64,
    manual_wakes: bool,
    settings: Settings,
}

impl SimulatedDeviceBuilder {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            bytes: 1 << 30,
            pinned_max_bytes: u64::MAX,
            manual_wakes: false,
            settings: Settings::new(seed),
        }
    }

    /// How much memory the device has; 1 GiB by default, which takes RAM only where it is touched.
    pub fn bytes(mut self, bytes: u64) -> Self {
        self.bytes = bytes;
        self
    }

    /// How much host memory it page-locks at most. No limit is the default.
    pub fn pinned_max_bytes(mut self, bytes: u64) -> Self {
        self.pinned_max_bytes = bytes;
        self
    }

    /// What a submission costs, however short it is; 10 microseconds by default.
    pub fn latency(mut self, latency: Duration) -> Self {
        self.settings.latency_ns = nanoseconds(latency);
        self
    }

    /// By what part of itself a latency can be longer, by chance; 4 by default: between one and five latencies.
    pub fn jitter(mut self, jitter: f64) -> Self {
        self.settings.jitter = jitter.max(0.0);
        self
    }

    /// Bytes per second of each link and of kernels; 10 GB/s by default.
    pub fn bandwidth(self, bytes_per_second: u64) -> Self {
        self.upload_bandwidth(bytes_per_second)
            .download_bandwidth(bytes_per_second)
            .device_bandwidth(bytes_per_second)
    }

    /// Bytes per second from host to device.
    pub fn upload_bandwidth(mut self, bytes_per_second: u64) -> Self {
        self.settings.upload_bandwidth = bytes_per_second;
        self
    }

    /// Bytes per second from device to host.
    pub fn download_bandwidth(mut self, bytes_per_second: u64) -> Self {
        self.settings.download_bandwidth = bytes_per_second;
        self
    }

    /// Bytes per second that kernels and copies within the device read or write.
    pub fn device_bandwidth(mut self, bytes_per_second: u64) -> Self {
        self.settings.device_bandwidth = bytes_per_second;
        self
    }

    /// How much time passes with each poll of a ticket that is pending; 1 microsecond by default, and never nothing.
    pub fn poll_step(mut self, step: Duration) -> Self {
        self.settings.poll_step_ns = nanoseconds(step).max(1);
        self
    }

    /// With `true`, time stands still while a waker is registered, and it is woken when time has passed by other
    /// calls: right for tests that call [`advance`](SimulatedDevice::advance). With `false`, the default, registering
    /// a waker lets time pass until it is woken: right for programs that would otherwise sleep for ever.
    pub fn manual_wakes(mut self, manual: bool) -> Self {
        self.manual_wakes = manual;
        self
    }

    /// Whether to keep a [trace](SimulatedDevice::trace). It grows with each submission.
    pub fn trace(mut self, trace: bool) -> Self {
        self.settings.trace = trace;
        self
    }

    /// Has a submission fail when its time has come; the first is number 0. Can be called several times, as can its
    /// sisters.
    pub fn fail_at(mut self, submission: u64) -> Self {
        self.settings.faults.insert(submission, Fault::Fail);
        self
    }

    /// Has a submission refused at once, with [`ErrorKind::Driver`](backend_api::ErrorKind::Driver).
    pub fn refuse_at(mut self, submission: u64) -> Self {
        self.settings.faults.insert(submission, Fault::Refuse);
        self
    }

    /// Has the device lost when the time of a submission has come.
    pub fn lose_at(mut self, submission: u64) -> Self {
        self.settings.faults.insert(submission, Fault::Lose);
        self
    }

    /// Has each submission fail with this probability.
    pub fn fail_rate(mut self, probability: f64) -> Self {
        self.settings.fail_rate = probability;
        self
    }

    /// Has each submission refused with this probability.
    pub fn refuse_rate(mut self, probability: f64) -> Self {
        self.settings.refuse_rate = probability;
        self
    }

    /// Has each submission lose the device with this probability.
    pub fn lose_rate(mut self, probability: f64) -> Self {
        self.settings.lose_rate = probability;
        self
    }

    /// The device.
    #[must_use]
    pub fn build(self) -> SimulatedDevice {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let identity = format!("simulated:{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let name = format!("simulation {}", self.settings.seed);
        let mut info =
            DeviceInfo::new("host", &name, DeviceKind::Simulated, &identity).with_total_bytes(self.bytes);
        info.copy_engines = 2;
        let info = Arc::new(info);
        SimulatedDevice {
            names: Registry::new(),
            capacity: Capacity::new(self.bytes),
            pinning: Pinning::new(self.pinned_max_bytes),
            schedule: Mutex::new(Schedule::new(self.settings, Arc::clone(&info))),
            manual_wakes: self.manual_wakes,
            info,
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
