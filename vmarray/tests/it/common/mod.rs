//! Helpers of the tests of arrays.

#![allow(dead_code, reason = "each test file uses its part")]

pub mod boxes;
pub mod counted;
pub mod executor;
#[path = "../../../../backend-api/conformance/examples/own_device/device.rs"]
pub mod own_device;

use std::any::Any;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock, Weak};

use vmarray::device::Device;
use vmarray::host::{HostDevice, SimulatedDevice};
use vmarray::prelude::*;
use vmarray::store::FileDevice;
use vmarray::{AnyDevice, Builder, Discovery, Error, ErrorKind, EvictionPolicy, Placement};

use own_device::PageDevice;

pub const POLICIES: [EvictionPolicy; 3] =
    [EvictionPolicy::Clock, EvictionPolicy::Lru, EvictionPolicy::TwoQueue];

/// An element of two fields.
pub type Pair = [u32; 2];

pub const KEY: Field<Pair, u32> = Field::<Pair, Pair>::whole().nth::<0>();
pub const VALUE: Field<Pair, u32> = Field::<Pair, Pair>::whole().nth::<1>();

/// Length of the files of file devices.
const FILE_BYTES: u64 = 1 << 20;

pub fn host() -> HostDevice {
    HostDevice::builder().bytes(1 << 30).threads(2).build().expect("host RAM is always there")
}

/// Devices of host RAM, independent of the environment.
pub fn hosts<const N: usize>() -> [Arc<AnyDevice>; N] {
    std::array::from_fn(|_| Arc::new(host().into()))
}

/// Devices to test on: host RAM, or the devices in the environment variable `VMARRAY_TEST_DEVICES`, in turn.
/// The devices of `pages` only store pages, so arrays compute in RAM.
pub fn devices(count: usize) -> Vec<Arc<AnyDevice>> {
    devices_of(count, 0)
}

/// As [`devices`], but a set bit of `simulated` replaces host RAM by a simulation, which delays and reorders
/// work. Higher bits select files.
fn devices_of(count: usize, simulated: u64) -> Vec<Arc<AnyDevice>> {
    static NAMED: OnceLock<Vec<Arc<AnyDevice>>> = OnceLock::new();
    let named = NAMED.get_or_init(|| match std::env::var("VMARRAY_TEST_DEVICES") {
        Ok(filters) if filters == "pages" => {
            (0..4).map(|_| as_any(&Arc::new(PageDevice::new(1 << 30)))).collect()
        }
        Ok(filters) => {
            let discovery =
                Discovery::new().select(&filters).expect("filters of devices").allow_duplicates(true);
            // Open private devices, because tests lose them, count their work and fill their memory.
            discovery.separate(true).open().expect("the devices that VMARRAY_TEST_DEVICES names")
        }
        Err(_) => Vec::new(),
    });
    let is_file = |i: usize| simulated >> (32 + 2 * i) & 3 == 3 || simulated >> 56 & 7 == 7;
    let device = |i: usize| match named.len() {
        0 if is_file(i) => {
            let file = FileDevice::builder(std::env::temp_dir()).threads(2).create_temporary(FILE_BYTES);
            Arc::new(AnyDevice::from(file.expect("a file in the temporary folder")))
        }
        0 if simulated >> i & 1 != 0 => {
            Arc::new(AnyDevice::from(SimulatedDevice::builder(simulated + i as u64).build()))
        }
        0 => Arc::new(AnyDevice::from(host())),
        len => named[i % len].clone(),
    };
    (0..count).map(device).collect()
}

/// One to five devices, about half of them simulations, and uneven shares of pages, some of them zero.
pub fn uneven_devices(random: &mut Numbers) -> (Vec<Arc<AnyDevice>>, Placement) {
    let shape = Shape::any(random, 1, 1);
    (shape.devices(), Placement::Ratios(shape.channels))
}

/// A device as the common type of the tests, so that arrays and sources are compiled once. Repeated
/// calls return the same device while it is in use.
pub fn as_any<D: Device>(device: &Arc<D>) -> Arc<AnyDevice> {
    static KNOWN: Mutex<BTreeMap<usize, Weak<AnyDevice>>> = Mutex::new(BTreeMap::new());
    let dynamic: Arc<dyn Any + Send + Sync> = device.clone();
    if let Ok(device) = dynamic.downcast::<AnyDevice>() {
        return device;
    }
    let mut known = KNOWN.lock().unwrap();
    let known = known.entry(Arc::as_ptr(device).addr()).or_default();
    known.upgrade().unwrap_or_else(|| {
        let any = Arc::new(AnyDevice::from(Arc::clone(device) as Arc<dyn Device>));
        *known = Arc::downgrade(&any);
        any
    })
}

/// Pages, channels and cache of an array.
#[derive(Clone, Debug)]
pub struct Shape {
    pub page_len: usize,
    pub channels: Vec<u32>,
    pub frames: usize,
    pub policy: EvictionPolicy,
    pub read_ahead: bool,
    pub counts_hits: bool,
    pub checksums: bool,
    /// Bits of devices that are simulations, and of devices that are files.
    pub simulated: u64,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            page_len: 8,
            channels: vec![2],
            frames: 2,
            policy: EvictionPolicy::Clock,
            read_ahead: true,
            counts_hits: false,
            checksums: false,
            simulated: 0,
        }
    }
}

impl Shape {
    /// One channel without read-ahead.
    pub fn one(page_len: usize, frames: usize) -> Self {
        Self { page_len, channels: vec![1], frames, read_ahead: false, ..Self::default() }
    }

    /// Pages of up to `longest` elements, a random choice of `channels`, and up to `frames` frames for each.
    pub fn random(random: &mut Numbers, longest: usize, channels: &[&[u32]], frames: usize) -> Self {
        Self {
            page_len: 1 + random.below(longest),
            channels: channels[random.below(channels.len())].to_vec(),
            frames: 1 + random.below(frames),
            policy: POLICIES[random.below(3)],
            read_ahead: random.below(2) == 0,
            counts_hits: random.below(2) == 0,
            checksums: false,
            simulated: 0,
        }
    }

    /// Pages of up to `longest` elements on one to five devices with uneven shares, some of them zero. About
    /// half of the devices are simulations. Up to `frames` frames for each channel; one array in four has
    /// checksums.
    pub fn any(random: &mut Numbers, longest: usize, frames: usize) -> Self {
        let mut shares: Vec<u32> =
            (0..1 + random.below(5)).map(|_| [0, 1, 1, 2, 3][random.below(5)]).collect();
        let sure = random.below(shares.len());
        shares[sure] = shares[sure].max(1);
        let simulated = random.next();
        let checksums = simulated >> 44 & 3 == 3;
        Self { simulated, checksums, ..Self::random(random, longest, &[&shares], frames) }
    }

    pub fn describe<T: Element, D: Device>(&self, len: usize, devices: Vec<Arc<D>>) -> Builder<T, AnyDevice> {
        VirtualArray::<T>::builder(len)
            .devices(devices.iter().map(as_any))
            .page_len(self.page_len)
            .placement(Placement::Ratios(self.channels.clone()))
            .frames_per_channel(self.frames)
            .eviction(self.policy)
            .read_ahead(self.read_ahead)
            .count_hits(self.counts_hits)
            .checksums(self.checksums)
    }

    pub fn build<T: Element>(&self, len: usize) -> VirtualArray<T> {
        self.describe(len, self.devices()).build().expect("a small array")
    }

    pub fn devices(&self) -> Vec<Arc<AnyDevice>> {
        devices_of(self.channels.len(), self.simulated)
    }
}

/// Runs the closure on several threads, with their numbers.
pub fn together(threads: usize, run: impl Fn(usize) + Sync) {
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let run = &run;
            scope.spawn(move || run(thread));
        }
    });
}

/// Bytes copied to and from the devices since the statistics were reset.
pub fn moved<T: Element>(array: &VirtualArray<T>) -> (u64, u64) {
    let total = array.stats().total();
    (total.bytes_to_device, total.bytes_from_device)
}

/// Bytes copied by an operation.
pub fn moved_by<T: Element, R>(array: &VirtualArray<T>, run: impl FnOnce() -> R) -> (u64, u64) {
    let (to, from) = moved(array);
    run();
    let after = moved(array);
    (after.0 - to, after.1 - from)
}

/// 10 pages of 16 `u32` in one channel of 4 frames, each element its own index, and an empty cache.
pub fn numbered() -> VirtualArray<u32> {
    let array = Shape { counts_hits: true, ..Shape::one(16, 4) }.build(160);
    array.write(0, &(0..160).collect::<Vec<u32>>()).unwrap();
    array.evict(..).unwrap();
    array.reset_stats();
    array
}

/// A small deterministic source of numbers.
pub struct Numbers(u64);

impl Numbers {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    /// A range within `len` elements.
    pub fn range(&mut self, len: usize) -> Range<usize> {
        let (a, b) = (self.below(len + 1), self.below(len + 1));
        a.min(b)..a.max(b)
    }
}

/// Elements that the error of a failed operation reports: finished ranges, and unspecified ranges.
pub fn changed_ranges(error: &Error) -> (Vec<Range<usize>>, Vec<Range<usize>>) {
    match error.kind() {
        ErrorKind::Interrupted { written, unspecified, .. } => (written.clone(), unspecified.clone()),
        _ => (Vec::new(), Vec::new()),
    }
}
