//! Sort of one bucket of rows that fits into the caches of a core, by one thread.

use bytemuck::Pod;

use super::rows::{Columns, KeyRow};
use super::sorting::{FEW, Sorting};
use super::survey::{BitWindow, difference};
use crate::ops::sort::keys::KeyBits;

/// Maximum number of bits in a digit.
const BITS_MAX: u32 = 10;
const VALUES: usize = 1 << BITS_MAX;
/// Maximum number of digits in a sort.
const DIGITS_MAX: usize = 3;
/// The number of sorted bits, in addition to the binary logarithm of the number of rows. Most rows then
/// differ.
const MORE_BITS: u32 = 3;
/// The most rows with equal sorted bits that are sorted by insertion.
const FEW_ALIKE: usize = 24;

impl<const IS_FLOAT: bool> Sorting<'_, IS_FLOAT> {
    /// Sorts rows that differ only in the bits `differ`. Returns the memory that contains the sorted rows,
    /// and the other memory.
    pub(super) fn cached<'a, K: KeyBits, V: Pod>(
        self,
        rows: &'a mut [KeyRow<K, V>],
        beside: &'a mut [KeyRow<K, V>],
        differ: u64,
    ) -> [&'a mut [KeyRow<K, V>]; 2] {
        if rows.len() <= FEW {
            self.compare(rows);
            return [rows, beside];
        }
        let bits = (rows.len().ilog2() + MORE_BITS).min(BITS_MAX * DIGITS_MAX as u32);
        let window = BitWindow::of(differ).highest(bits);
        let [rows, beside] = self.by_lowest(rows, beside, window);
        if differ & window.below() > 0 {
            self.mend(rows, beside, window);
        }
        [rows, beside]
    }

    /// Returns the key of at least half of a sample of the rows, if there is one.
    pub(super) fn majority<K: KeyBits, V: Pod>(self, rows: &[KeyRow<K, V>]) -> Option<u64> {
        const LOOKED_AT: usize = 32;
        let step = rows.len() / LOOKED_AT;
        if step < LOOKED_AT {
            return None;
        }
        let mut keys: [u64; LOOKED_AT] = std::array::from_fn(|number| rows[number * step].key(self));
        keys.sort_unstable();
        // If a key makes up at least half of the sorted sample, the middle of the sample is this key.
        let middle = keys[LOOKED_AT / 2];
        (keys.iter().filter(|key| **key == middle).count() >= LOOKED_AT / 2).then_some(middle)
    }

    /// Sorts rows of which most have the same key: sorts only the other rows, in scratch memory, and writes
    /// all rows to columns. Returns false if the other rows do not fit. The rows are then reordered, but rows
    /// with equal keys keep their order.
    pub(super) fn beside_majority<K: KeyBits, V: Pod + Send + Sync>(
        self,
        columns: &mut Columns<'_, K, V>,
        rows: &mut [KeyRow<K, V>],
        most: u64,
        beside: &mut [KeyRow<K, V>],
    ) -> bool {
        let (mut kept, mut others) = (0, 0);
        for at in 0..rows.len() {
            if others == beside.len() {
                rows[kept..at].copy_from_slice(beside);
                return false;
            }
            let row = rows[at];
            let is_kept = row.key(self) == most;
            (rows[kept], beside[others]) = (row, row);
            (kept, others) = (kept + usize::from(is_kept), others + usize::from(!is_kept));
        }
        let (equal, free) = rows.split_at_mut(kept);
        let differ = difference(&beside[..others], most, |row| row.key(self));
        let [sorted, _] = self.cached(&mut beside[..others], free, differ);
        let (below, above) = sorted.split_at(sorted.partition_point(|row| row.key(self) < most));
        let mut rest = columns.reborrow();
        for part in [below, equal, above] {
            let (mut own, others) = rest.split_at(part.len());
            own.store(part, 1);
            rest = others;
        }
        true
    }

    fn compare<K: KeyBits, V: Pod>(self, rows: &mut [KeyRow<K, V>]) {
        if KeyRow::<K, V>::IS_KEY {
            rows.sort_unstable_by_key(|row| row.key(self));
        } else {
            rows.sort_by_key(|row| row.key(self));
        }
    }

    /// Sorts rows by the bits of a window, from the lowest digit to the highest. Returns the memory that
    /// contains the sorted rows, and the other memory.
    fn by_lowest<'a, K: KeyBits, V: Pod>(
        self,
        rows: &'a mut [KeyRow<K, V>],
        beside: &'a mut [KeyRow<K, V>],
        window: BitWindow,
    ) -> [&'a mut [KeyRow<K, V>]; 2] {
        match window.bits.div_ceil(BITS_MAX) {
            1 => self.by_digits::<K, V, 1>(rows, beside, window),
            2 => self.by_digits::<K, V, 2>(rows, beside, window),
            _ => self.by_digits::<K, V, DIGITS_MAX>(rows, beside, window),
        }
    }

    #[inline(never)]
    fn by_digits<'a, K: KeyBits, V: Pod, const DIGITS: usize>(
        self,
        rows: &'a mut [KeyRow<K, V>],
        beside: &'a mut [KeyRow<K, V>],
        window: BitWindow,
    ) -> [&'a mut [KeyRow<K, V>]; 2] {
        let bits = window.bits.div_ceil(DIGITS as u32);
        let mut counts = [[0_u32; VALUES]; DIGITS];
        let value = |key: u64| (key & ((1 << bits) - 1)) as usize % VALUES;
        for row in &*rows {
            let mut key = row.key(self) >> window.shift;
            for counts in &mut counts {
                counts[value(key)] += 1;
                key >>= bits;
            }
        }
        let (first, len) = (rows[0].key(self), rows.len() as u32);
        let (mut from, mut to) = (rows, beside);
        for (number, counts) in counts.iter_mut().enumerate() {
            let shift = window.shift + number as u32 * bits;
            // Skip this pass if the digit is equal in all rows.
            if counts[value(first >> shift)] == len {
                continue;
            }
            let mut sum = 0;
            for count in &mut counts[..1 << bits] {
                (*count, sum) = (sum, sum + *count);
            }
            for row in &*from {
                let next = &mut counts[value(row.key(self) >> shift)];
                to[*next as usize] = *row;
                *next += 1;
            }
            (from, to) = (to, from);
        }
        [from, to]
    }

    /// Sorts rows by the bits below a window, after they are sorted by the window.
    #[inline(never)]
    fn mend<K: KeyBits, V: Pod>(
        self,
        rows: &mut [KeyRow<K, V>],
        beside: &mut [KeyRow<K, V>],
        window: BitWindow,
    ) {
        let (mut at, mut last) = (1, rows[0].key(self));
        while at < rows.len() {
            let key = rows[at].key(self);
            if key >= last {
                (at, last) = (at + 1, key);
                continue;
            }
            // Find the adjacent rows that the sort by window (range of key bits) considered equal: their bits
            // from `window.shift` up equal the bits of this key.
            let is_alike = |other: &&KeyRow<K, V>| other.key(self) >> window.shift == key >> window.shift;
            let start = at - rows[..at].iter().rev().take_while(is_alike).count();
            let end = at + rows[at..].iter().take_while(is_alike).count();
            let alike = &mut rows[start..end];
            if alike.len() <= FEW_ALIKE {
                self.insert(alike);
            } else {
                let differ = difference(alike, key, |row| row.key(self));
                let place = alike.as_ptr();
                let [sorted, other] = self.cached(alike, &mut beside[start..end], differ);
                if sorted.as_ptr() != place {
                    other.copy_from_slice(sorted);
                }
            }
            (at, last) = (end, rows[end - 1].key(self));
        }
    }

    fn insert<K: KeyBits, V: Pod>(self, rows: &mut [KeyRow<K, V>]) {
        for end in 1..rows.len() {
            let row = rows[end];
            let mut at = end;
            while at > 0 && rows[at - 1].key(self) > row.key(self) {
                rows[at] = rows[at - 1];
                at -= 1;
            }
            rows[at] = row;
        }
    }
}
