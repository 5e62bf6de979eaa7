//! Measured bandwidth of direct copies between two devices.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use backend_api::{Commit, Device, DeviceBuffer, Queue, Reach, Transfer};
use parking_lot::Mutex;

use super::Profile;
use crate::base::error::Result;
use crate::engine::links::reach;

/// Bytes of one copy. For a device with little memory, 1/16 of its free memory.
const COPY_BYTES: u64 = 64 << 20;
/// Number of copies in a submission, so that the time of the call is negligible.
const COPIES: usize = 4;
/// Number of timed submissions after a warm-up; the fastest one counts.
const ROUNDS: usize = 3;

/// Measured bandwidths of links, by the identities of both devices.
static KNOWN: LazyLock<Mutex<HashMap<[String; 2], u64>>> = LazyLock::new(Mutex::default);

impl Profile {
    /// Measures the bytes per second of direct copies from one device to another. Returns 0 if `from` cannot
    /// [access](Device::reaches) the memory of `to`, or if the link between them transfers wrong bytes.
    ///
    /// The first call blocks for some milliseconds, and needs 64 MiB of memory on each device during this
    /// time. The process remembers the result. Other work on the devices distorts the measurement.
    ///
    /// # Errors
    /// [`Device`](crate::ErrorKind::Device) if a device cannot allocate memory, or if a copy fails.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use vmarray::{host::{HostDevice, SimulatedDevice}, profile::Profile, AnyDevice};
    /// let ram = |_| Arc::new(AnyDevice::from(HostDevice::new(4 << 20).unwrap()));
    /// let [one, other] = [0, 1].map(ram);
    /// assert!(Profile::link(&one, &other)? > 0);
    /// let far: Arc<AnyDevice> = Arc::new(SimulatedDevice::builder(1).build().into());
    /// assert_eq!(Profile::link(&one, &far)?, 0);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn link<D: Device>(from: &Arc<D>, to: &Arc<D>) -> Result<u64> {
        let key = [from.info().identity.clone(), to.info().identity.clone()];
        let known = KNOWN.lock().get(&key).copied();
        if let Some(known) = known {
            return Ok(known);
        }
        let start = Instant::now();
        let (from, to): (Arc<dyn Device>, Arc<dyn Device>) = (from.clone(), to.clone());
        let measured = measure(&from, &to, &|| start.elapsed())?;
        Ok(*KNOWN.lock().entry(key).or_insert(measured))
    }
}

fn measure(from: &Arc<dyn Device>, to: &Arc<dyn Device>, clock: &dyn Fn() -> Duration) -> Result<u64> {
    if reach(from, to) == Reach::No {
        return Ok(0);
    }
    let usable = from.memory()?.usable_bytes.min(to.memory()?.usable_bytes);
    let bytes = (usable / 16).min(COPY_BYTES);
    let (queue, own) = (Queue::new(from)?, DeviceBuffer::new(from, bytes, Commit::Lazy)?);
    let other = DeviceBuffer::new(to, bytes, Commit::Lazy)?;
    let copies = [Transfer::Internal { from: own.at(0), to: other.at(0), bytes }; COPIES];
    let mut best = Duration::MAX;
    for round in 0..=ROUNDS {
        let start = clock();
        from.wait(queue.submit(&copies)?)?;
        if round > 0 {
            best = best.min(clock().saturating_sub(start));
        }
    }
    // A clock that did not advance, as in simulations, gives no speed.
    let seconds = best.as_secs_f64();
    Ok(if seconds > 0.0 { ((bytes * COPIES as u64) as f64 / seconds) as u64 } else { 0 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use backend_host::{SimulatedDevice, SimulatedFabric};

    #[test]
    fn a_link_is_as_fast_as_it_was_made() {
        let fabric = SimulatedFabric::new(Reach::Copies, 3_000_000_000, Duration::from_micros(5));
        let device = |seed| {
            let builder = SimulatedDevice::builder(seed).bytes(64 << 20).jitter(0.0).fabric(&fabric);
            Arc::new(builder.build())
        };
        let [from, to, broken] = [1, 2, 3].map(device);
        fabric.break_link(from.info(), broken.info());
        let measured = |to: &Arc<SimulatedDevice>| {
            let (one, other): (Arc<dyn Device>, Arc<dyn Device>) = (from.clone(), to.clone());
            measure(&one, &other, &|| from.now()).unwrap()
        };
        let speed = measured(&to);
        assert!((speed as f64 / 3e9 - 1.0).abs() < 0.05, "{speed}");
        assert_eq!(measured(&broken), 0);
    }
}
