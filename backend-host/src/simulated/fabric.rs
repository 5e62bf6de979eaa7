//! Links between simulated devices, over which they access each other's memory.

use std::sync::Arc;
use std::time::Duration;

use backend_api::{DeviceInfo, Reach};
use parking_lot::Mutex;
use vmarray_support::Timeline;

use super::schedule::Schedule;
use crate::peers::Peers;
use crate::ram::Ram;

/// Links over which simulated devices [access](backend_api::Device::reaches) each other's memory. A fabric
/// links all devices that are built with it or with a clone of it: see
/// [`SimulatedDeviceBuilder::fabric`](super::SimulatedDeviceBuilder::fabric).
///
/// Each device has its own virtual time. A copy over a link takes time of the copying device: the link's
/// latency is added, and the link's bandwidth replaces the device's. If a queue is ordered after another
/// device's ticket, the time of the queue's device advances to the end of the ticket.
///
/// ```
/// use std::{sync::Arc, time::Duration};
/// use backend_api::{Commit, Device, DeviceBuffer, Fill, Queue, Reach, Transfer};
/// use backend_host::{SimulatedDevice, SimulatedFabric};
/// let fabric = SimulatedFabric::new(Reach::Copies, 1_000_000_000, Duration::from_micros(3));
/// let device = |seed| {
///     let settings = SimulatedDevice::builder(seed).latency(Duration::from_micros(10)).jitter(0.0);
///     Arc::new(settings.fabric(&fabric).build())
/// };
/// let (one, other) = (device(1), device(2));
/// assert_eq!(one.reaches(other.info()), Reach::Copies);
/// let (from, to) = (DeviceBuffer::new(&one, 2000, Commit::Lazy)?, DeviceBuffer::new(&other, 2000, Commit::Lazy)?);
/// let copy = Transfer::Internal { from: from.at(0), to: to.at(0), bytes: 2000 };
/// one.wait(Queue::new(&one)?.submit(&[copy])?)?;
/// assert_eq!((one.now(), other.now()), (Duration::from_micros(15), Duration::ZERO));
/// // From now on copies between the two transfer wrong bytes, without an error.
/// fabric.break_link(one.info(), other.info());
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct SimulatedFabric {
    pub(super) reach: Reach,
    pub(super) bandwidth: u64,
    pub(super) latency: Duration,
    pub(super) members: Arc<FabricDevices>,
    /// Pairs of identities of devices whose link is broken.
    broken: Arc<Mutex<Vec<[String; 2]>>>,
}

pub(super) type FabricDevices = Peers<Ram, Timeline, Mutex<Schedule>>;

impl SimulatedFabric {
    /// Creates links with this kind of access to other devices' memory. Each link has a bandwidth in bytes
    /// per second, and adds `latency` to copies.
    #[must_use]
    pub fn new(reach: Reach, bytes_per_second: u64, latency: Duration) -> Self {
        let (members, broken) = (Arc::default(), Arc::default());
        Self { reach, bandwidth: bytes_per_second, latency, members, broken }
    }

    /// Breaks the link of two devices: later copies over it, in both directions, transfer wrong bytes without
    /// an error.
    pub fn break_link(&self, one: &DeviceInfo, other: &DeviceInfo) {
        self.broken.lock().push([one.identity.clone(), other.identity.clone()]);
    }

    /// Returns true if the link of two devices is broken.
    pub(super) fn is_broken(&self, one: &DeviceInfo, other: &DeviceInfo) -> bool {
        let pairs = self.broken.lock();
        pairs.iter().any(|pair| pair.contains(&one.identity) && pair.contains(&other.identity))
    }
}
