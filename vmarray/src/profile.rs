//! How fast a device is: a short measurement, remembered.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use backend_api::{Commit, Device, DeviceBuffer, HostBuffer, HostMemory, Queue, Ticket, Transfer};

use crate::error::Result;

/// Which way data goes, as seen from the program: reading copies from the device.
///
/// ```
/// use vmarray::{Direction, Placement, VirtualArray};
/// let placement = Placement::Balanced(Direction::Read);
/// let array = VirtualArray::<u32>::builder(1 << 16).placement(placement).build()?;
/// assert_eq!(array.get(5)?, 0);
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Direction {
    /// From the device.
    Read,
    /// To the device.
    Write,
    /// Both at once, each carrying half.
    #[default]
    Both,
}

/// What was measured of a device.
///
/// The measurement copies batches of scattered pages between page-locked RAM and the device, for a fraction of a
/// second, with up to 64 MiB of each. It is made once in a process for each device, by its identity;
/// [`remember`](Self::remember) hands in what an earlier process has measured.
///
/// ```
/// use std::sync::Arc;
/// use vmarray::{Direction, Profile, host::HostDevice};
/// let device = Arc::new(HostDevice::new(64 << 20)?);
/// let profile = Profile::of(&device)?;
/// assert!(profile.bytes_per_second(Direction::Read) > 0);
/// assert!(profile.page_bytes.is_power_of_two());
/// // Measured once only.
/// assert_eq!(Profile::of(&device)?, profile);
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Profile {
    /// Bytes per second from the device.
    pub read: u64,
    /// Bytes per second to the device.
    pub write: u64,
    /// Bytes per second when both ways are used at once, added up.
    pub both: u64,
    /// The shortest of the tried pages, in bytes, whose batches are read at nearly the full bandwidth.
    pub page_bytes: usize,
}

/// What is known of devices, by identity.
static KNOWN: LazyLock<Mutex<HashMap<String, Profile>>> = LazyLock::new(Mutex::default);

fn known() -> MutexGuard<'static, HashMap<String, Profile>> {
    // Nothing panics while it is held.
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Profile {
    /// What is known of a device; measures it if that is nothing. Blocks for a fraction of a second then.
    ///
    /// # Errors
    /// [`Device`](crate::ErrorKind::Device): refused memory, failed copies.
    ///
    /// ```
    /// let device = std::sync::Arc::new(vmarray::host::HostDevice::new(64 << 20)?);
    /// assert!(vmarray::Profile::of(&device)?.write > 0);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn of<D: Device>(device: &Arc<D>) -> Result<Self> {
        let identity = &device.info().identity;
        if let Some(profile) = known().get(identity) {
            return Ok(*profile);
        }
        let start = Instant::now();
        // Two threads may measure the same device; the first to be done is believed.
        let profile = measure(device, &|| start.elapsed())?;
        Ok(*known().entry(identity.clone()).or_insert(profile))
    }

    /// Declares what is known of a device, instead of a measurement.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use vmarray::{Profile, host::HostDevice};
    /// let device = Arc::new(HostDevice::new(64 << 20)?);
    /// let other = Profile::of(&device)?;
    /// let imagined = Profile::new(3_000_000_000, 2_000_000_000, 4_000_000_000, 65_536);
    /// imagined.remember("host:another");
    /// assert_eq!(Profile::of(&device)?, other);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn remember(self, identity: &str) {
        known().insert(identity.into(), self);
    }

    /// A profile of these figures: bytes per second from and to the device and both ways at once, and the length of a
    /// page in bytes.
    ///
    /// ```
    /// use vmarray::{Direction, Profile};
    /// let profile = Profile::new(3, 2, 4, 65_536);
    /// assert_eq!(profile.bytes_per_second(Direction::Both), 4);
    /// ```
    #[must_use]
    pub fn new(read: u64, write: u64, both: u64, page_bytes: usize) -> Self {
        Self { read, write, both, page_bytes }
    }

    /// The bandwidth in a direction.
    ///
    /// ```
    /// use vmarray::{Direction, Profile};
    /// assert_eq!(Profile::new(3, 2, 4, 65_536).bytes_per_second(Direction::Write), 2);
    /// ```
    #[must_use]
    pub fn bytes_per_second(&self, direction: Direction) -> u64 {
        match direction {
            Direction::Read => self.read,
            Direction::Write => self.write,
            Direction::Both => self.both,
        }
    }
}

/// The pages that are tried, in bytes.
const PAGES: [usize; 4] = [16 << 10, 64 << 10, 256 << 10, LONGEST];
const LONGEST: usize = 1 << 20;
/// A shorter page is preferred to a longer one that is faster by less than this.
const NEARLY: f64 = 0.95;
/// How long one batch should take.
const BATCH: Duration = Duration::from_millis(5);
/// How many batches are timed; the median counts.
const ROUNDS: usize = 3;

/// What a measurement works with.
struct Scene<D: Device> {
    down: Queue<D>,
    up: Queue<D>,
    slots: DeviceBuffer<D>,
    frames: HostBuffer<D>,
    /// The bytes of one direction. Downloads use the first part of both memories, uploads the second.
    bytes: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Down,
    Up,
}

fn measure<D: Device>(device: &Arc<D>, clock: &dyn Fn() -> Duration) -> Result<Profile> {
    let usable = device.memory()?.usable_bytes;
    let most = (usable / 4).min(32 << 20) as usize;
    // A device too small for that is measured with what there is.
    let trial = Scene::new(device, most.min(2 * LONGEST))?;
    let speed = trial.speed(&[Way::Up, Way::Down], LONGEST, clock)? / 2;
    drop(trial);
    let enough = (u128::from(speed) * BATCH.as_nanos() / 1_000_000_000) as usize;
    let scene = Scene::new(device, enough.clamp(most.min(2 * LONGEST), most))?;
    // The memory that the driver has only promised so far is there after this.
    scene.run(&[Way::Up], LONGEST)?;
    let mut reads = Vec::new();
    for page_bytes in PAGES {
        reads.push((page_bytes, scene.speed(&[Way::Down], page_bytes, clock)?));
    }
    let read = reads.iter().map(|(_, speed)| *speed).max().unwrap_or(0);
    let enough = |speed: u64| speed as f64 >= NEARLY * read as f64;
    let page_bytes = reads.iter().find(|(_, speed)| enough(*speed)).map_or(LONGEST, |(bytes, _)| *bytes);
    Ok(Profile {
        read,
        write: scene.speed(&[Way::Up], page_bytes, clock)?,
        both: scene.speed(&[Way::Up, Way::Down], page_bytes, clock)?,
        page_bytes,
    })
}

impl<D: Device> Scene<D> {
    fn new(device: &Arc<D>, bytes: usize) -> Result<Self> {
        // Whole pages of any of the lengths, if there is room for one.
        let bytes = match bytes {
            0 => 1,
            few if few < LONGEST => few,
            many => many - many % LONGEST,
        };
        let frames = HostBuffer::new(device, 2 * bytes, HostMemory::Pinned)
            .or_else(|_| HostBuffer::new(device, 2 * bytes, HostMemory::Pageable))?;
        Ok(Self {
            down: Queue::new(device)?,
            up: Queue::new(device)?,
            slots: DeviceBuffer::new(device, 2 * bytes as u64, Commit::Lazy)?,
            frames,
            bytes,
        })
    }

    /// Copies all bytes, in pages, each of the ways at the same time as the other.
    fn run(&self, ways: &[Way], page_bytes: usize) -> Result<()> {
        let mut tickets: Vec<Ticket> = Vec::new();
        for way in ways {
            let queue = if *way == Way::Down { &self.down } else { &self.up };
            tickets.push(queue.submit(&self.batch(*way, page_bytes))?);
        }
        for ticket in tickets {
            self.down.device().wait(ticket)?;
        }
        Ok(())
    }

    /// Bytes per second.
    fn speed(&self, ways: &[Way], page_bytes: usize, clock: &dyn Fn() -> Duration) -> Result<u64> {
        self.run(ways, page_bytes)?;
        let mut times = [Duration::ZERO; ROUNDS];
        for time in &mut times {
            let start = clock();
            self.run(ways, page_bytes)?;
            *time = clock().saturating_sub(start);
        }
        times.sort_unstable();
        let bytes = (self.bytes * ways.len()) as u128;
        Ok((bytes * 1_000_000_000 / times[ROUNDS / 2].as_nanos().max(1)) as u64)
    }

    /// Copies between slots and frames in different orders, so that no two of them can be merged.
    fn batch(&self, way: Way, page_bytes: usize) -> Vec<Transfer> {
        let page_bytes = page_bytes.min(self.bytes);
        let pages = self.bytes / page_bytes;
        let first = if way == Way::Down { 0 } else { self.bytes };
        let at = |page: usize| (first + page * page_bytes) as u64;
        (0..pages)
            .map(|slot| {
                let frame = pages - 1 - slot;
                let (home, host, bytes) =
                    (self.slots.at(at(slot)), self.frames.at(at(frame)), page_bytes as u64);
                match way {
                    Way::Down => Transfer::Download { from: home, to: host, bytes },
                    Way::Up => Transfer::Upload { from: host, to: home, bytes },
                }
            })
            .collect()
    }
}

#[cfg(all(test, feature = "host"))]
mod tests {
    use super::*;
    use backend_host::SimulatedDevice;

    /// Virtual time, so that the figures are exact.
    #[test]
    fn a_simulated_device_is_as_fast_as_it_was_made() {
        let device = SimulatedDevice::builder(1)
            .bytes(256 << 20)
            .latency(Duration::from_micros(1))
            .jitter(0.0)
            .download_bandwidth(4_000_000_000)
            .upload_bandwidth(2_000_000_000)
            .poll_step(Duration::from_nanos(100))
            .build();
        let device = Arc::new(device);
        let profile = measure(&device, &|| device.now()).unwrap();
        let near = |found: u64, made: f64| (found as f64 / made - 1.0).abs() < 0.05;
        assert!(near(profile.read, 4e9) && near(profile.write, 2e9), "{profile:?}");
        // The way down is done when the way up is half done.
        assert!(near(profile.both, 4e9), "{profile:?}");
    }

    #[test]
    fn a_device_smaller_than_the_measurement_is_measured_all_the_same() {
        let device = Arc::new(backend_host::HostDevice::new(100_000).unwrap());
        let start = Instant::now();
        assert!(measure(&device, &|| start.elapsed()).unwrap().read > 0);
    }
}
