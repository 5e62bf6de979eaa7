//! Links between simulated devices.

use std::sync::Arc;
use std::time::Duration;

use backend_api::{DeviceInfo, Reach, Timeline};
use parking_lot::Mutex;

use super::schedule::Schedule;
use crate::peers::Peers;
use crate::ram::Ram;

/// What simulated devices [reach](backend_api::Device::reaches) each other by: those that were built with
/// [`SimulatedDeviceBuilder::fabric`](super::SimulatedDeviceBuilder::fabric) of the same one or its clones.
///
/// Each device keeps a time of its own. What is copied over a link takes the time of the device that copies:
/// a latency more, and the link's bandwidth in the place of the device's. An order after another device's
/// ticket lets that device's time pass up to then.
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
/// // From now on bytes that pass between the two are wrong, and nobody says so.
/// fabric.break_link(one.info(), other.info());
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct SimulatedFabric {
    pub(super) reach: Reach,
    pub(super) bandwidth: u64,
    pub(super) latency: Duration,
    pub(super) members: Arc<Members>,
    /// Pairs of identities.
    broken: Arc<Mutex<Vec<[String; 2]>>>,
}

/// The devices of a fabric.
pub(super) type Members = Peers<Ram, Timeline, Mutex<Schedule>>;

impl SimulatedFabric {
    /// Links by which devices can do this with each other's memory. Each has a bandwidth of so many bytes per
    /// second, and adds to the latency of what passes it.
    #[must_use]
    pub fn new(reach: Reach, bytes_per_second: u64, latency: Duration) -> Self {
        let (members, broken) = (Arc::default(), Arc::default());
        Self { reach, bandwidth: bytes_per_second, latency, members, broken }
    }

    /// From now on what copies bring over the link of these two, in either direction, is wrong, without an
    /// error.
    pub fn break_link(&self, one: &DeviceInfo, other: &DeviceInfo) {
        self.broken.lock().push([one.identity.clone(), other.identity.clone()]);
    }

    /// Whether their link is broken.
    pub(super) fn is_broken(&self, one: &DeviceInfo, other: &DeviceInfo) -> bool {
        let pairs = self.broken.lock();
        pairs.iter().any(|pair| pair.contains(&one.identity) && pair.contains(&other.identity))
    }
}
