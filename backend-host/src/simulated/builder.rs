//! Builder of simulated devices: their memory, speed, failures and seed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use backend_api::wrap::Fault;
use backend_api::{DeviceInfo, DeviceKind, Route};
use parking_lot::Mutex;
use vmarray_support::Timeline;

use super::routes::{RouteCost, Routes};
use super::schedule::{Schedule, SimulationSettings};
use super::{SimulatedDevice, SimulatedFabric};
use crate::handle_table::HandleTable;
use crate::ram::Capacity;

/// Builder of a [`SimulatedDevice`]: memory, speed, failures.
///
/// ```
/// use std::{sync::Arc, task::Waker, time::Duration};
/// use backend_api::wrap::{Fault, Operation};
/// use backend_api::{
///     Commit, Device, DeviceBuffer, ErrorKind, Fill, HostMemory, QueueProgress, Queue, Request, Route,
/// };
/// use backend_host::SimulatedDevice;
/// let us = Duration::from_micros;
/// // A submission takes 10 to 20 us, each copy 2 us more, and 1 GB takes a second.
/// let slow = SimulatedDevice::builder(7).bytes(1000).latency(us(10)).jitter(1.0).bandwidth(1_000_000_000);
/// let device = Arc::new(slow.clone().route(Route::Single, us(0), us(2)).build());
/// assert_eq!(device.info().name, "simulation 7");
/// let (queue, memory) = (Queue::new(&device)?, DeviceBuffer::new(&device, 1000, Commit::Lazy)?);
/// device.wait(queue.submit(&Fill { to: memory.at(0), bytes: 1000, pattern: &[0] })?)?;
/// assert!((11..=21).contains(&device.now().as_micros()));
///
/// // Each direction has its own bandwidth, and a loop of polls ends.
/// let links = slow.upload_bandwidth(2).download_bandwidth(3).device_bandwidth(4);
/// let device = links.poll_step(us(50)).pinned_max_bytes(0).build();
/// let (queue, error) = (device.create_queue()?, device.allocate_host(1, HostMemory::Pinned).unwrap_err());
/// assert_eq!(error.kind(), ErrorKind::PinRefused);
/// let ticket = device.submit(&queue, &Request::Copies(&[], None))?;
/// while device.poll(ticket)? == QueueProgress::Pending {}
/// assert_eq!(device.now(), us(50), "one poll was enough");
///
/// // The second submission is refused, and a waker does not advance the time.
/// let refused = Fault::new(Operation::Submit, ErrorKind::Driver).on_call(2);
/// let device = SimulatedDevice::builder(1).fault(refused).manual_wakes(true).trace(true).build();
/// let queue = device.create_queue()?;
/// let submit = || device.submit(&queue, &Request::Copies(&[], None));
/// device.wake(submit()?, Waker::noop().clone());
/// assert!(submit().is_err() && submit().is_ok());
/// device.run();
/// assert_eq!(device.trace().len(), 2);
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct SimulatedDeviceBuilder {
    bytes: u64,
    pinned_max_bytes: u64,
    manual_wakes: bool,
    routes: Vec<RouteCost>,
    fabric: Option<SimulatedFabric>,
    settings: SimulationSettings,
}

impl SimulatedDevice {
    /// Returns a builder with default settings: delays and reordering that follow from `seed`, and no
    /// failures.
    pub fn builder(seed: u64) -> SimulatedDeviceBuilder {
        SimulatedDeviceBuilder::new(seed)
    }
}

impl SimulatedDeviceBuilder {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            bytes: 1 << 30,
            pinned_max_bytes: u64::MAX,
            manual_wakes: false,
            routes: Vec::new(),
            fabric: None,
            settings: SimulationSettings::new(seed),
        }
    }

    /// Sets the size of the device memory in bytes; 1 GiB by default. The memory takes RAM when first used.
    pub fn bytes(mut self, bytes: u64) -> Self {
        self.bytes = bytes;
        self
    }

    /// Sets the maximum of page-locked host memory in bytes; no limit by default.
    pub fn pinned_max_bytes(mut self, bytes: u64) -> Self {
        self.pinned_max_bytes = bytes;
        self
    }

    /// Sets the minimum latency of a submission; 10 microseconds by default.
    pub fn latency(mut self, latency: Duration) -> Self {
        self.settings.latency_ns = nanoseconds(latency);
        self
    }

    /// Sets the random part of a submission's latency, as a multiple of [`latency`](Self::latency). With the
    /// default, 4, a submission takes between one and five latencies.
    ///
    /// # Panics
    /// If `jitter` is negative, infinite or NaN.
    pub fn jitter(mut self, jitter: f64) -> Self {
        assert!(
            jitter.is_finite() && jitter >= 0.0,
            "the jitter {jitter} is invalid; use a finite number of at least 0"
        );
        self.settings.jitter = jitter;
        self
    }

    /// Sets the bandwidth of each link and of kernels in bytes per second; 10 GB/s by default.
    pub fn bandwidth(self, bytes_per_second: u64) -> Self {
        self.upload_bandwidth(bytes_per_second)
            .download_bandwidth(bytes_per_second)
            .device_bandwidth(bytes_per_second)
    }

    /// Sets the bandwidth from host to device in bytes per second.
    pub fn upload_bandwidth(mut self, bytes_per_second: u64) -> Self {
        self.settings.upload_bandwidth = bytes_per_second;
        self
    }

    /// Sets the bandwidth from device to host in bytes per second.
    pub fn download_bandwidth(mut self, bytes_per_second: u64) -> Self {
        self.settings.download_bandwidth = bytes_per_second;
        self
    }

    /// Sets the bandwidth of kernels and of copies within the device, in bytes per second.
    pub fn device_bandwidth(mut self, bytes_per_second: u64) -> Self {
        self.settings.device_bandwidth = bytes_per_second;
        self
    }

    /// Links the device to all devices of a fabric. By default a device cannot access other devices' memory.
    ///
    /// ```
    /// use backend_api::{Device, Reach};
    /// use backend_host::{SimulatedDevice, SimulatedFabric};
    /// let fabric = SimulatedFabric::new(Reach::Maps, 1_000_000_000, std::time::Duration::ZERO);
    /// let [one, other] = [1, 2].map(|seed| SimulatedDevice::builder(seed).fabric(&fabric).build());
    /// assert_eq!(one.reaches(other.info()), Reach::Maps);
    /// ```
    pub fn fabric(mut self, fabric: &SimulatedFabric) -> Self {
        self.settings.link_bandwidth = fabric.bandwidth;
        self.fabric = Some(fabric.clone());
        self
    }

    /// Adds a route for copies. A submission that uses the route takes `per_submission` in addition to its
    /// latency and the time of its bytes, and `per_copy` for each of its copies. Several calls add several
    /// routes. The device chooses the first route by default; without routes, copies take no additional time.
    pub fn route(mut self, route: Route, per_submission: Duration, per_copy: Duration) -> Self {
        self.routes.push(RouteCost {
            route,
            submission_ns: nanoseconds(per_submission),
            copy_ns: nanoseconds(per_copy),
        });
        self
    }

    /// Sets the virtual time that passes at each poll of pending work; 1 microsecond by default, at least
    /// 1 ns.
    pub fn poll_step(mut self, step: Duration) -> Self {
        self.settings.poll_step_ns = nanoseconds(step).max(1);
        self
    }

    /// Selects when a registered waker runs. With `true`, the waker runs when other calls advance the time,
    /// for tests that call [`advance`](SimulatedDevice::advance). With `false`, the default, the registration
    /// of a waker advances the time until its ticket is done. Otherwise programs that only wait for wakers
    /// would sleep for ever.
    pub fn manual_wakes(mut self, manual: bool) -> Self {
        self.manual_wakes = manual;
        self
    }

    /// Enables the [trace](SimulatedDevice::trace) if `trace` is true. The trace grows with each submission.
    pub fn trace(mut self, trace: bool) -> Self {
        self.settings.trace = trace;
        self
    }

    /// Adds a rule that makes submissions fail. The rule counts and affects submissions only, no other calls.
    /// Several calls add several rules.
    ///
    /// A failed submission does a part of its work, and writes garbage to some of the rest of its target.
    /// This holds for each kind of failure: the device refuses the submission, the submission fails at its
    /// end ([`reported_later`](Fault::reported_later)), or the device is lost.
    pub fn fault(mut self, fault: Fault) -> Self {
        self.settings.plan.add(fault);
        self
    }

    /// Builds the device.
    #[must_use]
    pub fn build(self) -> SimulatedDevice {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let identity = format!("simulated:{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let name = format!("simulation {}", self.settings.seed);
        let mut info =
            DeviceInfo::new("host", &name, DeviceKind::Simulated, &identity).with_total_bytes(self.bytes);
        (info.copy_engines, info.forward_progress) = (2, true);
        let newest = |timeline: &Timeline| timeline.newest().value;
        let registry = Arc::new(HandleTable::new(info, self.pinned_max_bytes, newest));
        let schedule = Arc::new(Mutex::new(Schedule::new(self.settings, Arc::clone(registry.info()))));
        self.fabric.iter().for_each(|fabric| fabric.members.add(&registry, &schedule));
        SimulatedDevice {
            capacity: Capacity::new(self.bytes, registry.wiping()),
            schedule,
            extending: Mutex::default(),
            fabric: self.fabric,
            manual_wakes: self.manual_wakes,
            routes: Routes::new(self.routes),
            registry,
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
