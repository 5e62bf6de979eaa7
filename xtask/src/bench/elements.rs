//! Element types of the measured arrays. Each element's contents encode its index, so reads can be verified.

use anyhow::{Result, ensure};
use bytemuck::{Pod, Zeroable};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand_distr::{Distribution, Zipf};
use vmarray::Element;

/// An element type whose value can be computed from its index, so that reads can be checked.
pub trait Payload: Element {
    /// The size of an element, as text for names of workloads.
    const SIZE: &'static str;

    /// Returns the element for an index.
    fn of(index: usize) -> Self;

    /// Returns the number that [`of`](Self::of) has stored, which depends on the index.
    fn key(&self) -> u32;

    /// Returns a number that depends on all bytes of the element.
    #[inline(always)]
    fn digest(&self) -> u64 {
        let bytes = bytemuck::bytes_of(self);
        match align_of::<Self>() {
            8 => bytemuck::cast_slice(bytes).iter().fold(0, |sum: u64, word| sum.wrapping_add(*word)),
            4 => bytemuck::cast_slice(bytes).iter().fold(0, |sum, word: &u32| sum + u64::from(*word)),
            _ => bytes.iter().fold(0, |sum, byte| sum + u64::from(*byte)),
        }
    }

    /// Returns true if this element equals the element for an index.
    fn belongs_to(&self, index: usize) -> bool {
        self.key() == index as u32
    }

    /// Returns an error if this element differs from the element for an index.
    #[inline(always)]
    fn check(&self, index: usize) -> Result<()> {
        ensure!(self.belongs_to(index), "element {index} does not have the value for its index");
        Ok(())
    }
}

/// An element of 44 bytes, like a particle or a row of a table.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Record {
    /// Index of the record in its array.
    pub id: u32,
    /// Padding.
    pub rest: [u32; 9],
    /// A copy of `id` at the end of the record, for searches.
    pub last: u32,
}

/// An element of 4 KiB.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Block {
    words: [u64; 512],
}

macro_rules! words {
    ($($word:ty: $name:literal),*) => {$(
        impl Payload for $word {
            const SIZE: &'static str = $name;

            #[inline(always)]
            fn of(index: usize) -> Self {
                index as Self
            }

            #[inline(always)]
            fn key(&self) -> u32 {
                *self as u32
            }

            #[inline(always)]
            fn belongs_to(&self, index: usize) -> bool {
                *self == index as Self
            }
        }
    )*};
}

words!(u8: "1B", u32: "4B", u64: "8B");

impl Payload for Record {
    const SIZE: &'static str = "44B";

    #[inline(always)]
    fn of(index: usize) -> Self {
        let id = index as u32;
        Self { id, rest: [id; 9], last: id }
    }

    #[inline(always)]
    fn key(&self) -> u32 {
        self.id
    }
}

impl Payload for Block {
    const SIZE: &'static str = "4KiB";

    #[inline(always)]
    fn of(index: usize) -> Self {
        Self { words: [index as u64; 512] }
    }

    #[inline(always)]
    fn key(&self) -> u32 {
        self.words[0] as u32
    }
}

/// Generates random indices below `count` by Zipf's law: the index of rank `k` occurs in proportion to `1 /
/// k^exponent`. The ranks are scattered, so that frequent indices are not neighbours.
pub fn zipf(count: usize, exponent: f64, seed: u64) -> Result<impl Iterator<Item = usize>> {
    let ranks = Zipf::new(count as f64, exponent)?.sample_iter(SmallRng::seed_from_u64(seed));
    Ok(ranks.map(move |rank| (rank as u64 - 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) as usize % count))
}
