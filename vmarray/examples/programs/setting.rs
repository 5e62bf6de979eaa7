//! Helpers that all example programs use: they choose the devices, and create arrays and random data.

use std::sync::Arc;
use vmarray::{AnyDevice, RaggedArray, Result, prelude::*};

/// Returns the start of each row of a ragged array, and the end of the last row, given the rows' lengths.
pub fn starts_of(lengths: impl IntoIterator<Item = u64>) -> Vec<u64> {
    let mut starts = vec![0];
    for len in lengths {
        starts.push(starts[starts.len() - 1] + len);
    }
    starts
}

/// The devices of a program, and a generator of random numbers with a seed.
pub struct Setting {
    devices: Vec<Arc<AnyDevice>>,
    state: u64,
}

impl Setting {
    pub fn new(devices: &[Arc<AnyDevice>], seed: u64) -> Self {
        Self { devices: devices.to_vec(), state: seed }
    }

    /// Returns the next random number (SplitMix, by Steele, Lea and Flood).
    pub fn number(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.state ^ self.state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.number() % limit as u64) as usize
    }

    /// Returns a random number from -1 to 1.
    pub fn real(&mut self) -> f32 {
        self.below(1 << 20) as f32 / (1 << 19) as f32 - 1.0
    }

    /// Creates an array of these elements in pages of random length, striped over all devices.
    pub fn array<T: Element>(&mut self, values: &[T]) -> Result<VirtualArray<T>> {
        self.on(self.devices.clone(), values)
    }

    /// Creates an array on one device. Kernels need it if a work-item (GPU thread) may write any element.
    pub fn array_on_one<T: Element>(&mut self, values: &[T]) -> Result<VirtualArray<T>> {
        self.on(self.devices[..1].to_vec(), values)
    }

    fn on<T: Element>(&mut self, devices: Vec<Arc<AnyDevice>>, values: &[T]) -> Result<VirtualArray<T>> {
        let page_len = if values.len() < 10_000 { 256 << self.below(4) } else { 1 << 16 };
        let array = VirtualArray::builder(values.len()).devices(devices).page_len(page_len).build()?;
        array.write(0, values)?;
        Ok(array)
    }

    /// Creates a two-dimensional array from `values`, row by row. It is stored in tiles or in rows, at
    /// random.
    pub fn image<T: Element>(&mut self, shape: [usize; 2], values: &[T]) -> Result<NdArray<T, 2>> {
        let builder = NdArray::builder(shape).devices(self.devices.clone());
        let builder = match self.below(2) {
            0 => builder.tile([4 << self.below(3), 8 << self.below(3)]),
            _ => builder.elements(|elements| elements.page_len(256)),
        };
        let array = builder.build()?;
        array.write_box(.., values)?;
        Ok(array)
    }

    /// Creates a ragged array of these rows.
    pub fn ragged<T: Element>(&mut self, rows: &[Vec<T>]) -> Result<RaggedArray<T>> {
        RaggedArray::builder().devices(self.devices.clone()).from_rows(rows)
    }

    /// Creates a source: devices then process the vector `values` in place, in pages of random length.
    pub fn source<T: Element>(&mut self, values: Vec<T>) -> Result<Source<T>> {
        Source::builder(values).devices(self.devices.clone()).page_len(64 << self.below(4)).build()
    }
}
