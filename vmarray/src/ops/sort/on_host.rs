//! Sorting in RAM.
//!
//! Keys are first dealt out by their most significant digit, by all threads at once; what has one digit is
//! then sorted by a thread, from its least significant digit on, while it is in the processor's caches. A
//! digit that all keys have in common costs nothing but being seen.

use std::slice::IterMut;

use parking_lot::Mutex;

use super::{KeyBits, Order};
use crate::base::error::Result;
use crate::base::scoped_threads;

const DIGITS: usize = 256;
/// What has fewer keys is compared.
const FEW: usize = 128;
/// So many bytes of keys are sorted from the least significant digit on.
const CACHED_BYTES: usize = if cfg!(test) { 4 << 10 } else { 512 << 10 };

type Counts = [usize; DIGITS];

fn digit<B: KeyBits>(order: Order, bits: B, place: usize) -> usize {
    (order.key(bits) >> (8 * place)) as usize % DIGITS
}

/// Sorts keys by all of their digits, with as much memory beside them.
pub(super) fn sort<B: KeyBits>(keys: &mut [B], beside: &mut [B], order: Order, threads: usize) {
    Sorting { order, threads }.sort(keys, beside, false, B::BYTES);
}

/// The numbers of keys in the order of these, and of those that are equal in ascending order.
pub(super) fn order_of<B: KeyBits>(keys: &[B], order: Order, _threads: usize) -> Result<Vec<u32>> {
    let mut numbers: Vec<u32> = (0..keys.len() as u32).collect();
    numbers.sort_by_key(|number| order.key(keys[*number as usize]));
    Ok(numbers)
}

#[derive(Clone, Copy)]
struct Sorting {
    order: Order,
    threads: usize,
}

/// Keys that are alike in all digits but so many, and the memory beside them.
struct Bucket<'a, B> {
    keys: &'a mut [B],
    beside: &'a mut [B],
}

impl Sorting {
    /// Sorts keys by their lowest digits; they are in the memory beside them afterwards, if so wanted.
    fn sort<B: KeyBits>(self, keys: &mut [B], beside: &mut [B], moves: bool, digits: usize) {
        if keys.len() <= FEW || digits == 0 {
            if digits > 0 {
                keys.sort_unstable_by_key(|bits| self.order.key(*bits));
            }
            if moves {
                beside.copy_from_slice(keys);
            }
        } else if size_of_val(keys) <= CACHED_BYTES || digits == 1 && self.threads == 1 {
            self.by_least(keys, beside, moves, digits);
        } else {
            self.by_most(keys, beside, moves, digits);
        }
    }

    /// From the least significant digit on.
    fn by_least<B: KeyBits>(self, keys: &mut [B], beside: &mut [B], moves: bool, digits: usize) {
        let mut counts = [[0; DIGITS]; 8];
        for bits in &*keys {
            let key = self.order.key(*bits);
            for (place, counts) in counts[..digits].iter_mut().enumerate() {
                counts[(key >> (8 * place)) as usize % DIGITS] += 1_usize;
            }
        }
        let (mut from, mut to, mut has_moved) = (keys, beside, false);
        for (place, counts) in counts[..digits].iter().enumerate() {
            if counts[digit(self.order, from[0], place)] == from.len() {
                continue;
            }
            let mut next = starts(counts);
            for bits in &*from {
                let next = &mut next[digit(self.order, *bits, place)];
                to[*next] = *bits;
                *next += 1;
            }
            (from, to, has_moved) = (to, from, !has_moved);
        }
        if has_moved != moves {
            to.copy_from_slice(from);
        }
    }

    /// By the most significant digit, and what has one digit by itself.
    fn by_most<B: KeyBits>(self, keys: &mut [B], beside: &mut [B], moves: bool, digits: usize) {
        let place = digits - 1;
        let parts: Vec<&[B]> = keys.chunks(keys.len().div_ceil(self.threads)).collect();
        let counts: Vec<Mutex<Counts>> = parts.iter().map(|_| Mutex::new([0; DIGITS])).collect();
        scoped_threads::each(self.threads, parts.len(), |number| {
            let mut found = [0; DIGITS];
            parts[number].iter().for_each(|bits| found[digit(self.order, *bits, place)] += 1);
            *counts[number].lock() = found;
        });
        let counts: Vec<Counts> = counts.into_iter().map(Mutex::into_inner).collect();
        let mut sums = [0; DIGITS];
        counts.iter().for_each(|of| sums.iter_mut().zip(of).for_each(|(sum, count)| *sum += count));
        if sums.contains(&keys.len()) {
            return self.sort(keys, beside, moves, digits - 1);
        }
        // Where each part's keys go: those of a digit of one part behind those of the part before.
        let mut places: Vec<Vec<IterMut<'_, B>>> = parts.iter().map(|_| Vec::with_capacity(DIGITS)).collect();
        let mut rest = &mut *beside;
        for digit in 0..DIGITS {
            for (counts, places) in counts.iter().zip(&mut places) {
                let (own, others) = rest.split_at_mut(counts[digit]);
                places.push(own.iter_mut());
                rest = others;
            }
        }
        let places: Vec<_> = places.into_iter().map(Mutex::new).collect();
        scoped_threads::each(self.threads, parts.len(), |number| {
            let mut places = places[number].lock();
            for bits in parts[number] {
                if let Some(place) = places[digit(self.order, *bits, place)].next() {
                    *place = *bits;
                }
            }
        });
        drop(places);
        // Keys are in `beside` now.
        let (mut buckets, mut rest) = (Vec::new(), (beside, keys));
        let len = rest.0.len();
        for count in sums {
            let ((keys, later), (beside, after)) = (rest.0.split_at_mut(count), rest.1.split_at_mut(count));
            rest = (later, after);
            match count {
                0 => {}
                // What has a large part of all keys would keep one thread busy while others are idle.
                _ if self.threads > 1 && count * 2 > len / self.threads => {
                    self.sort(keys, beside, !moves, digits - 1);
                }
                _ => buckets.push(Bucket { keys, beside }),
            }
        }
        buckets.sort_unstable_by_key(|bucket| bucket.keys.len());
        let (alone, buckets) = (Self { threads: 1, ..self }, Mutex::new(buckets));
        scoped_threads::together(self.threads, || {
            loop {
                let Some(Bucket { keys, beside }) = buckets.lock().pop() else { break };
                alone.sort(keys, beside, !moves, digits - 1);
            }
        });
    }
}

/// Where the keys of each digit begin.
fn starts(counts: &Counts) -> Counts {
    let mut sum = 0;
    counts.map(|count| {
        sum += count;
        sum - count
    })
}

#[cfg(test)]
mod tests {
    use backend_api::wrap::SplitMix64;

    use super::*;

    fn check<B: KeyBits + std::fmt::Debug + PartialEq>(mut keys: Vec<B>, order: Order, threads: usize) {
        let mut expected = keys.clone();
        expected.sort_by_key(|bits| order.key(*bits));
        let mut beside = keys.clone();
        sort(&mut keys, &mut beside, order, threads);
        assert!(keys == expected, "{} keys of {} bytes, {threads} threads", keys.len(), B::BYTES);
    }

    #[test]
    fn keys_of_all_lengths_and_kinds_are_sorted() {
        let mut random = SplitMix64::new(7);
        let orders = [(0, 0), (u64::MAX, 0), (1 << 63, 0), (1 << 63, u64::MAX >> 1)];
        for round in 0..200 {
            let len = random.index([3, 200, 3000, 20_000][round % 4]);
            let (flip, flip_negative) = orders[random.index(4)];
            // All bits, few values, one value, and such as are alike in high digits.
            let mask = [u64::MAX, 3 << 40 | 1, 0, 0xFFFF][random.index(4)];
            let keys: Vec<u64> = (0..len).map(|_| random.next() & mask).collect();
            let threads = 1 + random.index(4);
            let narrow = |bytes: usize| Order::new(flip, flip_negative, bytes);
            check(keys.clone(), narrow(8), threads);
            check(keys.iter().map(|key| (*key >> 32) as u32).collect(), narrow(4), threads);
            check(keys.iter().map(|key| (*key >> 48) as u16).collect(), narrow(2), threads);
            check(keys.iter().map(|key| (*key >> 56) as u8).collect(), narrow(1), threads);
        }
    }
}
