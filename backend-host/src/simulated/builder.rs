//! Settings of a simulated device.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use backend_api::{DeviceInfo, DeviceKind, Route};
use parking_lot::Mutex;

use super::SimulatedDevice;
use super::routes::{RouteCost, Routes};
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
    routes: Vec<RouteCost>,
    settings: Settings,
}

impl SimulatedDeviceBuilder {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            bytes: 1 << 30,
            pinned_max_bytes: u64::MAX,
            manual_wakes: false,
            routes: Vec::new(),
            settings: Settings::new(seed),
        }
    }

    /// How much memory the device has; 1 GiB by default, which takes RAM only where it is touched.
    ///
    /// ```
    /// use backend_api::Device;
    /// use backend_host::SimulatedDevice;
    /// let device = SimulatedDevice::builder(1).bytes(1000).build();
    /// assert_eq!(device.memory()?.free_bytes, 1000);
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    pub fn bytes(mut self, bytes: u64) -> Self {
        self.bytes = bytes;
        self
    }

    /// How much host memory it page-locks at most. No limit is the default.
    ///
    /// ```
    /// use backend_api::{Device, ErrorKind, HostMemory};
    /// use backend_host::SimulatedDevice;
    /// let device = SimulatedDevice::builder(1).pinned_max_bytes(0).build();
    /// let error = device.allocate_host(4096, HostMemory::Pinned).unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::PinRefused);
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    pub fn pinned_max_bytes(mut self, bytes: u64) -> Self {
        self.pinned_max_bytes = bytes;
        self
    }

    /// What a submission costs, however short it is; 10 microseconds by default.
    ///
    /// ```
    /// use std::time::Duration;
    /// use backend_api::Device;
    /// use backend_host::SimulatedDevice;
    /// let device = SimulatedDevice::builder(1).latency(Duration::from_micros(10)).jitter(0.0).build();
    /// device.wait(device.submit(&device.create_queue()?, &[])?)?;
    /// assert_eq!(device.now(), Duration::from_micros(10));
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    pub fn latency(mut self, latency: Duration) -> Self {
        self.settings.latency_ns = nanoseconds(latency);
        self
    }

    /// By what part of itself a latency can be longer, by chance; 4 by default: between one and five
    /// latencies.
    ///
    /// ```
    /// use std::time::Duration;
    /// use backend_api::Device;
    /// use backend_host::SimulatedDevice;
    /// let device = SimulatedDevice::builder(1).latency(Duration::from_micros(10)).jitter(1.0).build();
    /// device.wait(device.submit(&device.create_queue()?, &[])?)?;
    /// assert!((10..=20).contains(&device.now().as_micros()));
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    pub fn jitter(mut self, jitter: f64) -> Self {
        self.settings.jitter = jitter.max(0.0);
        self
    }

    /// Bytes per second of each link and of kernels; 10 GB/s by default.
    ///
    /// ```
    /// use std::{sync::Arc, time::Duration};
    /// use backend_api::{Commit, Device, DeviceBuffer, HostBuffer, HostMemory, Queue, Transfer};
    /// use backend_host::SimulatedDevice;
    /// let builder = SimulatedDevice::builder(1).latency(Duration::ZERO);
    /// let device = Arc::new(builder.bandwidth(1_000_000_000).build());
    /// # let (queue, memory) = (Queue::new(&device)?, DeviceBuffer::new(&device, 2000, Commit::Lazy)?);
    /// # let host = HostBuffer::new(&device, 1000, HostMemory::Pageable)?;
    /// let copy = Transfer::Upload { from: host.at(0), to: memory.at(0), bytes: 1000 };
    /// device.wait(queue.submit(&[copy])?)?;
    /// assert_eq!(device.now(), Duration::from_micros(1));
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    pub fn bandwidth(self, bytes_per_second: u64) -> Self {
        self.upload_bandwidth(bytes_per_second)
            .download_bandwidth(bytes_per_second)
            .device_bandwidth(bytes_per_second)
    }

    /// Bytes per second from host to device.
    ///
    /// ```
    /// use std::{sync::Arc, time::Duration};
    /// use backend_api::{Commit, Device, DeviceBuffer, HostBuffer, HostMemory, Queue, Transfer};
    /// use backend_host::SimulatedDevice;
    /// let builder = SimulatedDevice::builder(1).latency(Duration::ZERO);
    /// let device = Arc::new(builder.upload_bandwidth(1_000_000_000).build());
    /// # let (queue, memory) = (Queue::new(&device)?, DeviceBuffer::new(&device, 2000, Commit::Lazy)?);
    /// # let host = HostBuffer::new(&device, 1000, HostMemory::Pageable)?;
    /// let copy = Transfer::Upload { from: host.at(0), to: memory.at(0), bytes: 1000 };
    /// device.wait(queue.submit(&[copy])?)?;
    /// assert_eq!(device.now(), Duration::from_micros(1));
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    pub fn upload_bandwidth(mut self, bytes_per_second: u64) -> Self {
        self.settings.upload_bandwidth = bytes_per_second;
        self
    }

    /// Bytes per second from device to host.
    ///
    /// ```
    /// use std::{sync::Arc, time::Duration};
    /// use backend_api::{Commit, Device, DeviceBuffer, HostBuffer, HostMemory, Queue, Transfer};
    /// use backend_host::SimulatedDevice;
    /// let builder = SimulatedDevice::builder(1).latency(Duration::ZERO);
    /// let device = Arc::new(builder.download_bandwidth(1_000_000_000).build());
    /// # let (queue, memory) = (Queue::new(&device)?, DeviceBuffer::new(&device, 2000, Commit::Lazy)?);
    /// # let host = HostBuffer::new(&device, 1000, HostMemory::Pageable)?;
    /// let copy = Transfer::Download { from: memory.at(0), to: host.at(0), bytes: 1000 };
    /// device.wait(queue.submit(&[copy])?)?;
    /// assert_eq!(device.now(), Duration::from_micros(1));
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    pub fn download_bandwidth(mut self, bytes_per_second: u64) -> Self {
        self.settings.download_bandwidth = bytes_per_second;
        self
    }

    /// Bytes per second that kernels and copies within the device read or write.
    ///
    /// ```
    /// use std::{sync::Arc, time::Duration};
    /// use backend_api::{Commit, Device, DeviceBuffer, Fill, Queue};
    /// use backend_host::SimulatedDevice;
    /// let builder = SimulatedDevice::builder(1).latency(Duration::ZERO);
    /// let device = Arc::new(builder.device_bandwidth(1_000_000_000).build());
    /// # let (queue, memory) = (Queue::new(&device)?, DeviceBuffer::new(&device, 1000, Commit::Lazy)?);
    /// device.wait(queue.fill(&Fill { to: memory.at(0), bytes: 1000, pattern: &[0] })?)?;
    /// assert_eq!(device.now(), Duration::from_micros(1));
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    pub fn device_bandwidth(mut self, bytes_per_second: u64) -> Self {
        self.settings.device_bandwidth = bytes_per_second;
        self
    }

    /// Gives the device a route for copies, with what a submission by it costs beside its latency and its
    /// bytes, and what each of its copies costs. Can be called several times. By itself the device takes the
    /// first one it was given; without any, copies cost nothing else.
    ///
    /// ```
    /// use std::{sync::Arc, time::Duration};
    /// use backend_api::{Device, Route};
    /// use backend_host::SimulatedDevice;
    /// let us = Duration::from_micros;
    /// let builder = SimulatedDevice::builder(1).latency(us(10)).jitter(0.0);
    /// let device = builder.route(Route::Single, us(1), us(2)).route(Route::Kernel, us(5), us(0)).build();
    /// let queue = device.create_queue()?;
    /// device.wait(device.submit(&queue, &[])?)?;
    /// assert_eq!(device.now(), us(11));
    /// device.wait(device.submit_by(Route::Kernel, &queue, &[])?)?;
    /// assert_eq!(device.now(), us(26));
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    pub fn route(mut self, route: Route, per_submission: Duration, per_copy: Duration) -> Self {
        self.routes.push(RouteCost {
            route,
            submission_ns: nanoseconds(per_submission),
            copy_ns: nanoseconds(per_copy),
        });
        self
    }

    /// How much time passes with each poll of a ticket that is pending; 1 microsecond by default, and never
    /// nothing.
    ///
    /// ```
    /// use std::time::Duration;
    /// use backend_api::{Device, Progress};
    /// use backend_host::SimulatedDevice;
    /// let device = SimulatedDevice::builder(1).poll_step(Duration::from_millis(1)).build();
    /// let ticket = device.submit(&device.create_queue()?, &[])?;
    /// while device.poll(ticket)? == Progress::Pending {}
    /// assert_eq!(device.now(), Duration::from_millis(1), "one poll was enough");
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    pub fn poll_step(mut self, step: Duration) -> Self {
        self.settings.poll_step_ns = nanoseconds(step).max(1);
        self
    }

    /// With `true`, time stands still while a waker is registered, and it is woken when time has passed by
    /// other calls: right for tests that call [`advance`](SimulatedDevice::advance). With `false`, the
    /// default, registering a waker lets time pass until it is woken: right for programs that would otherwise
    /// sleep for ever.
    ///
    /// ```
    /// use std::{task::Waker, time::Duration};
    /// use backend_api::Device;
    /// use backend_host::SimulatedDevice;
    /// let now_after_wake = |manual| -> backend_api::Result<Duration> {
    ///     let device = SimulatedDevice::builder(1).manual_wakes(manual).build();
    ///     device.wake(device.submit(&device.create_queue()?, &[])?, Waker::noop().clone());
    ///     Ok(device.now())
    /// };
    /// assert_eq!(now_after_wake(true)?, Duration::ZERO);
    /// assert!(now_after_wake(false)? > Duration::ZERO);
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    pub fn manual_wakes(mut self, manual: bool) -> Self {
        self.manual_wakes = manual;
        self
    }

    /// Whether to keep a [trace](SimulatedDevice::trace). It grows with each submission.
    ///
    /// ```
    /// use backend_api::Device;
    /// use backend_host::SimulatedDevice;
    /// let device = SimulatedDevice::builder(1).trace(true).build();
    /// device.submit(&device.create_queue()?, &[])?;
    /// device.run();
    /// assert_eq!(device.trace().len(), 1);
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    pub fn trace(mut self, trace: bool) -> Self {
        self.settings.trace = trace;
        self
    }

    /// Has a submission fail when its time has come; the first is number 0. Can be called several times, as
    /// can its sisters.
    ///
    /// ```
    /// use backend_api::Device;
    /// use backend_host::SimulatedDevice;
    /// let device = SimulatedDevice::builder(1).fail_at(0).fail_at(2).build();
    /// let queue = device.create_queue()?;
    /// let outcomes: Vec<bool> = (0..4)
    ///     .map(|_| device.submit(&queue, &[]).and_then(|ticket| device.wait(ticket)).is_ok())
    ///     .collect();
    /// assert_eq!(outcomes, [false, true, false, true]);
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    pub fn fail_at(mut self, submission: u64) -> Self {
        self.settings.faults.insert(submission, Fault::Fail);
        self
    }

    /// Has a submission refused at once, with [`ErrorKind::Driver`](backend_api::ErrorKind::Driver).
    ///
    /// ```
    /// use backend_api::{Device, ErrorKind};
    /// use backend_host::SimulatedDevice;
    /// let device = SimulatedDevice::builder(1).refuse_at(0).build();
    /// let queue = device.create_queue()?;
    /// assert_eq!(device.submit(&queue, &[]).unwrap_err().kind(), ErrorKind::Driver);
    /// assert!(device.submit(&queue, &[]).is_ok());
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    pub fn refuse_at(mut self, submission: u64) -> Self {
        self.settings.faults.insert(submission, Fault::Refuse);
        self
    }

    /// Has the device lost when the time of a submission has come.
    ///
    /// ```
    /// use backend_api::{Device, ErrorKind};
    /// use backend_host::SimulatedDevice;
    /// let device = SimulatedDevice::builder(1).lose_at(0).build();
    /// let queue = device.create_queue()?;
    /// let ticket = device.submit(&queue, &[])?;
    /// assert_eq!(device.wait(ticket).unwrap_err().kind(), ErrorKind::Lost);
    /// assert!(device.create_queue().is_err(), "it is gone for good");
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    pub fn lose_at(mut self, submission: u64) -> Self {
        self.settings.faults.insert(submission, Fault::Lose);
        self
    }

    /// Has each submission fail with this probability.
    ///
    /// ```
    /// use backend_api::Device;
    /// use backend_host::SimulatedDevice;
    /// let device = SimulatedDevice::builder(1).fail_rate(0.5).build();
    /// let queue = device.create_queue()?;
    /// let failed = (0..100)
    ///     .filter(|_| device.submit(&queue, &[]).and_then(|ticket| device.wait(ticket)).is_err())
    ///     .count();
    /// assert!((20..80).contains(&failed));
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    pub fn fail_rate(mut self, probability: f64) -> Self {
        self.settings.fail_rate = probability;
        self
    }

    /// Has each submission refused with this probability.
    ///
    /// ```
    /// use backend_api::{Device, ErrorKind};
    /// use backend_host::SimulatedDevice;
    /// let device = SimulatedDevice::builder(1).refuse_rate(1.0).build();
    /// let queue = device.create_queue()?;
    /// assert_eq!(device.submit(&queue, &[]).unwrap_err().kind(), ErrorKind::Driver);
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    pub fn refuse_rate(mut self, probability: f64) -> Self {
        self.settings.refuse_rate = probability;
        self
    }

    /// Has each submission lose the device with this probability.
    ///
    /// ```
    /// use backend_api::{Device, ErrorKind};
    /// use backend_host::SimulatedDevice;
    /// let device = SimulatedDevice::builder(1).lose_rate(1.0).build();
    /// let queue = device.create_queue()?;
    /// let ticket = device.submit(&queue, &[])?;
    /// assert_eq!(device.wait(ticket).unwrap_err().kind(), ErrorKind::Lost);
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    pub fn lose_rate(mut self, probability: f64) -> Self {
        self.settings.lose_rate = probability;
        self
    }

    /// The device.
    ///
    /// ```
    /// use backend_api::{Device, DeviceKind};
    /// use backend_host::SimulatedDevice;
    /// let device = SimulatedDevice::builder(7).build();
    /// assert_eq!(device.info().kind, DeviceKind::Simulated);
    /// assert_eq!(device.info().name, "simulation 7");
    /// ```
    #[must_use]
    pub fn build(self) -> SimulatedDevice {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let identity = format!("simulated:{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let name = format!("simulation {}", self.settings.seed);
        let mut info =
            DeviceInfo::new("host", &name, DeviceKind::Simulated, &identity).with_total_bytes(self.bytes);
        info.copy_engines = 2;
        let info = Arc::new(info);
        let pinning = Pinning::new(self.pinned_max_bytes);
        SimulatedDevice {
            names: Registry::new(),
            capacity: Capacity::new(self.bytes, pinning.wiping()),
            pinning,
            schedule: Mutex::new(Schedule::new(self.settings, Arc::clone(&info))),
            manual_wakes: self.manual_wakes,
            routes: Routes::new(self.routes),
            info,
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
