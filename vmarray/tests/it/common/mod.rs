//! What the tests of arrays share.

#![allow(dead_code, reason = "each test file uses its part")]

pub mod asked;
pub mod boxes;
pub mod counted;
pub mod executor;
pub mod parts;

use std::sync::{Arc, OnceLock};

use vmarray::device::Device;
use vmarray::host::HostDevice;
use vmarray::{AnyDevice, Builder, Discovery, Element, EvictionPolicy, Placement, VirtualArray};

pub const POLICIES: [EvictionPolicy; 3] =
    [EvictionPolicy::Clock, EvictionPolicy::Lru, EvictionPolicy::TwoQueue];

pub fn host() -> HostDevice {
    HostDevice::builder().bytes(1 << 30).threads(2).build().expect("host RAM is always there")
}

/// Devices to test on: host RAM, or what the environment variable `VMARRAY_TEST_DEVICES` names, in turn.
pub fn devices(count: usize) -> Vec<Arc<AnyDevice>> {
    static NAMED: OnceLock<Vec<Arc<AnyDevice>>> = OnceLock::new();
    let named = NAMED.get_or_init(|| match std::env::var("VMARRAY_TEST_DEVICES") {
        Ok(wishes) => {
            let discovery =
                Discovery::new().select(&wishes).expect("wishes for devices").allow_duplicates(true);
            discovery.open().expect("the devices that VMARRAY_TEST_DEVICES names")
        }
        Err(_) => Vec::new(),
    });
    let device = |i: usize| match named.len() {
        0 => Arc::new(AnyDevice::from(host())),
        len => named[i % len].clone(),
    };
    (0..count).map(device).collect()
}

/// How an array is cut up and cached.
#[derive(Clone, Debug)]
pub struct Shape {
    pub page_len: usize,
    pub channels: Vec<u32>,
    pub frames: usize,
    pub policy: EvictionPolicy,
    pub read_ahead: bool,
}

impl Default for Shape {
    fn default() -> Self {
        Self { page_len: 8, channels: vec![2], frames: 2, policy: EvictionPolicy::Clock, read_ahead: true }
    }
}

impl Shape {
    pub fn describe<T: Element, D: Device>(&self, len: usize, devices: Vec<Arc<D>>) -> Builder<T, D> {
        VirtualArray::<T>::builder(len)
            .devices(devices)
            .page_len(self.page_len)
            .placement(Placement::Ratios(self.channels.clone()))
            .frames_per_channel(self.frames)
            .eviction(self.policy)
            .read_ahead(self.read_ahead)
    }

    pub fn build<T: Element>(&self, len: usize) -> VirtualArray<T> {
        self.describe(len, devices(self.channels.len())).build().expect("a small array")
    }
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
}
