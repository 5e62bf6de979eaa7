//! Elements of the sizes that are measured, which know by their contents where they belong.

use bytemuck::{Pod, Zeroable};
use vmarray::Element;

use crate::random::Random;

/// An element made from its index.
pub trait Payload: Element {
    /// Its size, as in names of workloads.
    const SIZE: &'static str;

    /// The element of an index.
    fn of(index: usize) -> Self;

    /// What [`of`](Self::of) has put there.
    fn key(&self) -> u32;

    /// Whether this is the element of an index.
    fn belongs_to(&self, index: usize) -> bool {
        self.key() == index as u32
    }
}

/// A record of 44 bytes, as a particle or a row of a table may have.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Record {
    /// The index.
    pub id: u32,
    /// Anything.
    pub rest: [u32; 9],
    /// The index once more, for searches.
    pub last: u32,
}

/// A block of 4 KiB.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Block {
    words: [u64; 512],
}

impl Payload for u32 {
    const SIZE: &'static str = "4B";

    fn of(index: usize) -> Self {
        index as Self
    }

    #[inline(always)]
    fn key(&self) -> u32 {
        *self
    }
}

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

/// Ranks from 0 on, where rank `k` comes in proportion to `1 / (k + 1)^exponent`.
///
/// Source: W. Hörmann, G. Derflinger, "Rejection-inversion to generate variates from monotone discrete
/// distributions", 1996.
pub struct Zipf {
    count: f64,
    exponent: f64,
    first: f64,
    last: f64,
    shortcut: f64,
}

impl Zipf {
    /// Over `count` ranks, at least 1. The exponent is positive and not 1.
    pub fn new(count: usize, exponent: f64) -> Self {
        let mut zipf = Self { count: count as f64, exponent, first: 0.0, last: 0.0, shortcut: 0.0 };
        zipf.first = zipf.integral(1.5) - 1.0;
        zipf.last = zipf.integral(zipf.count + 0.5);
        zipf.shortcut = 2.0 - zipf.inverse(zipf.integral(2.5) - 2.0_f64.powf(-exponent));
        zipf
    }

    /// The next rank.
    pub fn next(&self, random: &mut Random) -> usize {
        loop {
            let at = self.last + random.unit() * (self.first - self.last);
            let x = self.inverse(at);
            let rank = x.round().clamp(1.0, self.count);
            if rank - x <= self.shortcut || at >= self.integral(rank + 0.5) - rank.powf(-self.exponent) {
                return rank as usize - 1;
            }
        }
    }

    fn integral(&self, x: f64) -> f64 {
        (x.powf(1.0 - self.exponent) - 1.0) / (1.0 - self.exponent)
    }

    fn inverse(&self, y: f64) -> f64 {
        (1.0 + y * (1.0 - self.exponent)).powf(1.0 / (1.0 - self.exponent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_know_where_they_belong() {
        assert!(u32::of(7).belongs_to(7) && Record::of(7).belongs_to(7) && Block::of(7).belongs_to(7));
        assert!(!Record::of(7).belongs_to(8));
        assert_eq!((size_of::<Record>(), size_of::<Block>()), (44, 4096));
    }

    #[test]
    fn ranks_come_as_often_as_they_should() {
        for exponent in [0.8, 0.99, 1.2] {
            let (zipf, mut random) = (Zipf::new(1000, exponent), Random::new(1));
            let mut seen = vec![0_u32; 1000];
            let draws = 200_000;
            for _ in 0..draws {
                seen[zipf.next(&mut random)] += 1;
            }
            let sum: f64 = (1..=1000).map(|k| f64::from(k).powf(-exponent)).sum();
            for rank in [0, 1, 2, 9] {
                let expected = f64::from(draws) * f64::from(rank as u32 + 1).powf(-exponent) / sum;
                let found = f64::from(seen[rank]);
                assert!(
                    (found - expected).abs() < 6.0 * expected.sqrt(),
                    "{exponent} {rank}: {found} {expected}"
                );
            }
        }
    }

    #[test]
    fn random_numbers_stay_below_their_bound() {
        let mut random = Random::new(3);
        assert!((0..1000).all(|_| random.index(7) < 7));
        assert!((0..1000).all(|_| (0.0..1.0).contains(&random.unit())));
    }
}
