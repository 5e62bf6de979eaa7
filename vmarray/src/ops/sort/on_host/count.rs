//! Counting sort of keys without values, for keys with few differing bits or few distinct values.

use parking_lot::Mutex;

use super::survey::BitWindow;
use crate::base::racy_slice::HomeSlice;
use crate::base::scoped_threads;
use crate::ops::sort::keys::KeyBits;

/// The most bits whose values have a table of counts.
pub(super) const BITS_MAX: u32 = 16;
/// The most bits for which several tables of counts fit into the L1 cache.
pub(super) const SMALL_BITS: u32 = 11;

/// Returns the number of keys for each value of the window's bits.
pub(super) fn of<T: Sync>(
    items: &[T],
    window: BitWindow,
    threads: usize,
    key: impl Fn(&T) -> u64 + Copy + Sync,
) -> Vec<usize> {
    let values = 1 << window.bits;
    let sums = Mutex::new(vec![0; values]);
    let part = items.len().div_ceil(threads).max(1);
    let parts = Mutex::new(items.chunks(part));
    scoped_threads::together(threads, || {
        loop {
            let Some(part) = parts.lock().next() else { break };
            let mut counts = vec![0; values];
            let (small, large) = part.split_at(if window.bits <= SMALL_BITS { part.len() } else { 0 });
            in_turns::<TURNS, _>(small, |item| window.value(key(item)), &mut counts);
            large.iter().for_each(|item| counts[window.value(key(item))] += 1);
            sums.lock().iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
    });
    sums.into_inner()
}

/// Adds the number of items with each value to `sums`. Alternates between several tables, because an
/// increment would otherwise wait for the increment of an equal neighbour.
#[inline(never)]
pub(super) fn in_turns<const TURNS: usize, T>(items: &[T], value: impl Fn(&T) -> usize, sums: &mut [usize]) {
    let mut counts = [[0_u32; 1 << SMALL_BITS]; TURNS];
    for items in items.chunks(u32::MAX as usize) {
        let (groups, last) = items.as_chunks::<TURNS>();
        for group in groups {
            for (item, counts) in group.iter().zip(&mut counts) {
                counts[value(item) % (1 << SMALL_BITS)] += 1;
            }
        }
        last.iter().for_each(|item| counts[0][value(item) % (1 << SMALL_BITS)] += 1);
        for (value, sum) in sums.iter_mut().enumerate() {
            *sum +=
                counts.iter_mut().map(|counts| std::mem::take(&mut counts[value]) as usize).sum::<usize>();
        }
    }
}

/// The most distinct values in the hash table.
const VALUES_MAX: usize = 300;
/// The most distinct values in the sample. All keys then have at most about [`VALUES_MAX`] values.
pub(super) const FIRST_VALUES_MAX: usize = 270;
/// The number of slots, so that the table is at most a third full.
const SLOTS: usize = 1 << SLOT_BITS;
const SLOT_BITS: u32 = 10;
pub(super) const TURNS: usize = 4;

/// A hash table of values, with the number of keys that have each value.
struct ValueCounts {
    slots: [ValueSlot; SLOTS],
    values: usize,
}

#[derive(Clone, Copy)]
struct ValueSlot {
    key: u64,
    is_used: bool,
    /// Partial counts, used alternately because an increment waits for an equal neighbour's.
    counts: [usize; TURNS],
}

impl ValueCounts {
    fn new() -> Self {
        Self { slots: [ValueSlot { key: 0, is_used: false, counts: [0; TURNS] }; SLOTS], values: 0 }
    }

    /// Returns the slot of a value; `None` if the table has too many values.
    #[inline(always)]
    fn slot(&mut self, key: u64) -> Option<&mut ValueSlot> {
        let mut at = (key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (u64::BITS - SLOT_BITS)) as usize;
        while self.slots[at].key != key || !self.slots[at].is_used {
            if !self.slots[at].is_used {
                if self.values == VALUES_MAX {
                    return None;
                }
                self.values += 1;
                (self.slots[at].key, self.slots[at].is_used) = (key, true);
                break;
            }
            at = (at + 1) % SLOTS;
        }
        Some(&mut self.slots[at])
    }

    /// Counts keys. Returns `None` if they have too many distinct values.
    fn add<T>(&mut self, items: &[T], key: impl Fn(&T) -> u64 + Copy) -> Option<()> {
        const BLOCK: usize = 4096;
        for block in items.chunks(BLOCK) {
            let two = if self.values == 2 { self.add_two(block, key) } else { None };
            two.or_else(|| self.add_any(block, key))?;
        }
        Some(())
    }

    /// Counts keys if all of them have one of the first two values. Otherwise returns `None`.
    fn add_two<T>(&mut self, items: &[T], key: impl Fn(&T) -> u64) -> Option<()> {
        let mut slots = self.slots.iter_mut().filter(|slot| slot.is_used);
        let (one, two) = (slots.next()?, slots.next()?);
        let ones = count_of_two(items, one.key, two.key, key)?;
        one.counts[0] += ones;
        two.counts[0] += items.len() - ones;
        Some(())
    }

    #[inline(never)]
    fn add_any<T>(&mut self, items: &[T], key: impl Fn(&T) -> u64) -> Option<()> {
        let (groups, last) = items.as_chunks::<TURNS>();
        for group in groups {
            for (turn, item) in group.iter().enumerate() {
                self.slot(key(item))?.counts[turn] += 1;
            }
        }
        last.iter().try_for_each(|item| self.slot(key(item)).map(|slot| slot.counts[0] += 1))
    }

    /// Returns all values, and the number of keys with each.
    fn counted(&self) -> impl Iterator<Item = (u64, usize)> {
        let used = self.slots.iter().filter(|slot| slot.is_used);
        used.map(|slot| (slot.key, slot.counts.iter().sum()))
    }

    fn merge(&mut self, other: &Self) -> Option<()> {
        other.counted().try_for_each(|(key, count)| self.slot(key).map(|slot| slot.counts[0] += count))
    }
}

/// Returns the number of keys with the first of two values; `None` if a key has another value.
#[inline(never)]
fn count_of_two<T>(items: &[T], one: u64, two: u64, key: impl Fn(&T) -> u64) -> Option<usize> {
    let (mut ones, mut twos) = (0, 0);
    for item in items {
        let key = key(item);
        ones += usize::from(key == one);
        twos += usize::from(key == two);
    }
    (ones + twos == items.len()).then_some(ones)
}

/// Returns the distinct values of keys in order, and the number of keys with each value. Returns `None` if a
/// sample has more than `most` distinct values, or if all keys have too many.
pub(super) fn values<T: Sync>(
    items: &[T],
    most: usize,
    threads: usize,
    key: impl Fn(&T) -> u64 + Copy + Sync,
) -> Option<Vec<(u64, usize)>> {
    /// Number of keys in the sample, which are evenly spread.
    const FIRST: usize = 1024;
    /// Number of keys that a thread counts at a time.
    const PART: usize = 64 << 10;
    if items.len() < 2 * FIRST {
        return None;
    }
    let mut first = ValueCounts::new();
    let some: Vec<u64> = items.iter().step_by(items.len() / FIRST).map(key).collect();
    first.add(&some, u64::clone)?;
    if first.values > most {
        return None;
    }
    let parts = Mutex::new(items.chunks(PART));
    let all = Mutex::new(Some(ValueCounts::new()));
    scoped_threads::together(threads, || {
        let mut own = ValueCounts::new();
        loop {
            let Some(part) = parts.lock().next().filter(|_| all.lock().is_some()) else { break };
            if own.add(part, key).is_none() {
                *all.lock() = None;
            }
        }
        let mut all = all.lock();
        if all.as_mut().is_some_and(|all| all.merge(&own).is_none()) {
            *all = None;
        }
    });
    let mut values: Vec<(u64, usize)> = all.into_inner()?.counted().collect();
    values.sort_unstable();
    Some(values)
}

/// Writes each key as often as it was counted.
pub(super) fn write<K: KeyBits>(
    keys: HomeSlice<'_, K>,
    counted: impl Iterator<Item = (K, usize)>,
    threads: usize,
) {
    /// Number of keys that a thread writes at a time.
    const PART: usize = 256 << 10;
    // Divide the result into parts, and find the runs of equal keys that each part consists of.
    let (mut parts, mut runs, mut rest, mut len) = (Vec::new(), Vec::new(), keys, 0);
    for (key, count) in counted {
        let mut left = count;
        while left > 0 {
            let here = left.min(PART - len);
            runs.push((here, key));
            (left, len) = (left - here, len + here);
            if len == PART {
                let (own, others) = rest.split_at(len);
                parts.push((own, std::mem::take(&mut runs)));
                (rest, len) = (others, 0);
            }
        }
    }
    parts.push((rest, runs));
    let threads = threads.min(parts.len());
    let parts = Mutex::new(parts);
    scoped_threads::together(threads, || {
        loop {
            let Some((mut keys, runs)) = parts.lock().pop() else { break };
            for (count, key) in runs {
                let (mut own, others) = keys.split_at(count);
                own.fill(key);
                keys = others;
            }
        }
    });
}
