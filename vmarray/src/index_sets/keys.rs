//! Join keys: a tuple's values in the common dimensions, encoded as one number.

use std::ops::Range;

use parking_lot::Mutex;

use super::source::TupleBlock;
use crate::base::error::Result;
use crate::engine::shared_work;

/// A hash function of values. Its quality affects only the speed; the result should vary in all bits.
pub(super) trait KeyHash: Send + Sync {
    fn mix(hash: u64, value: u64) -> u64;
}

/// A hash function that multiplies to 128 bits and folds the halves, as wyhash does for each word.
#[derive(Clone, Copy, Debug)]
pub(super) struct FoldedMultiply;

impl KeyHash for FoldedMultiply {
    #[inline(always)]
    fn mix(hash: u64, value: u64) -> u64 {
        // An odd multiplier with well mixed bits. Without the exclusive or (golden ratio), 0 would map to 0.
        const MULTIPLIER: u128 = 0xA076_1D64_78BD_642F;
        let product = u128::from(hash ^ value ^ 0x9E37_79B9_7F4A_7C15) * MULTIPLIER;
        product as u64 ^ (product >> 64) as u64
    }
}

/// A key for the hash table: the code of a tuple's common values, and the hash that selects its slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeyCode {
    pub(super) code: u64,
    pub(super) hash: u64,
}

/// One column of an exact code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    least: u64,
    /// The difference between the largest and the least value.
    extent: u64,
    /// The factor by which the value, minus the least value, enters the code.
    scale: u64,
}

/// The encoding of a tuple's common values as one number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Coder {
    /// The row-major index in the box that the values of the second set span, if the box has at most 2^64
    /// positions. Two codes are equal if and only if the values are equal. Tuples outside match none.
    Exact(Vec<Span>),
    /// A hash. For equal hashes the join must compare the values of the tuples.
    Hashed,
}

impl Coder {
    /// Chooses an encoding for the second set's tuples.
    pub(super) fn of(block: &TupleBlock<'_>, keys: &[usize], threads: usize) -> Result<Self> {
        const AT_ONCE: usize = 1 << 16;
        // Determine the least and the largest value of each column.
        let parts = (0..block.len()).step_by(AT_ONCE).map(|at| at..(at + AT_ONCE).min(block.len()));
        let bounds = Mutex::new(vec![(u64::MAX, u64::MIN); keys.len()]);
        let work = |found: &mut Vec<(u64, u64)>, part: Range<usize>| {
            found.clear();
            found.resize(keys.len(), (u64::MAX, u64::MIN));
            for row in part.map(|number| block.row(number)) {
                for ((least, most), &at) in found.iter_mut().zip(keys) {
                    (*least, *most) = (row[at].min(*least), row[at].max(*most));
                }
            }
            for (all, part) in bounds.lock().iter_mut().zip(found) {
                *all = (all.0.min(part.0), all.1.max(part.1));
            }
            Ok(())
        };
        shared_work::for_each_with(threads, parts, Vec::new, work)?;
        Ok(Self::of_bounds(&bounds.into_inner()))
    }

    /// Chooses an encoding, from the least and the largest value of each column.
    pub(super) fn of_bounds(bounds: &[(u64, u64)]) -> Self {
        let mut places = 1_u128;
        let mut spans = Vec::with_capacity(bounds.len());
        for &(least, most) in bounds {
            let extent = most.saturating_sub(least);
            // In a column with one value the distance is always 0, so an overflow of the scale does no harm.
            spans.push(Span { least, extent, scale: places as u64 });
            places = places.saturating_mul(u128::from(extent) + 1);
            if places > 1 << 64 {
                return Self::Hashed;
            }
        }
        Self::Exact(spans)
    }

    pub(super) fn is_exact(&self) -> bool {
        matches!(self, Self::Exact(_))
    }

    /// Returns the hash of an exact code.
    #[inline(always)]
    pub(super) fn hash_of<H: KeyHash>(&self, code: u64) -> u64 {
        if self.is_exact() { H::mix(0, code) } else { code }
    }

    /// Calls `visit` with the number and the code of each tuple of a range that may match any.
    #[inline(always)]
    pub(super) fn for_each<H: KeyHash>(
        &self,
        block: &TupleBlock<'_>,
        keys: &[usize],
        tuples: Range<usize>,
        mut visit: impl FnMut(usize, KeyCode),
    ) {
        let width = block.width();
        let rows = block.values()[tuples.start * width..tuples.end * width].chunks_exact(width);
        let mut exact = |number, code: Option<u64>| {
            if let Some(code) = code {
                visit(number, KeyCode { code, hash: H::mix(0, code) });
            }
        };
        match (self, keys) {
            // All arms compute the same codes. The arms for one and two columns are faster, without an inner
            // loop.
            (Self::Exact(spans), &[at]) => {
                let span = spans[0];
                rows.zip(tuples).for_each(|(row, number)| exact(number, span.place(row[at])));
            }
            (Self::Exact(spans), &[at, at_2]) => {
                let (span, span_2) = (spans[0], spans[1]);
                rows.zip(tuples).for_each(|(row, number)| {
                    let places = span.place(row[at]).zip(span_2.place(row[at_2]));
                    exact(number, places.map(|(place, place_2)| place.wrapping_add(place_2)));
                });
            }
            (Self::Exact(spans), _) => rows.zip(tuples).for_each(|(row, number)| {
                let places = spans.iter().zip(keys).map(|(span, &at)| span.place(row[at]));
                exact(number, places.sum());
            }),
            (Self::Hashed, _) => rows.zip(tuples).for_each(|(row, number)| {
                let code = keys.iter().fold(0, |hash, &at| H::mix(hash, row[at]));
                visit(number, KeyCode { code, hash: code });
            }),
        }
    }
}

impl Span {
    /// Returns the value's part of the code, or `None` outside of the box.
    #[inline(always)]
    fn place(self, value: u64) -> Option<u64> {
        let above = value.wrapping_sub(self.least);
        (above <= self.extent).then(|| above.wrapping_mul(self.scale))
    }
}
