//! `group_by` in RAM for few distinct keys: a hash table maps keys to short codes, so no sort is needed.
//!
//! A reduction adds each value to the total of its key's code. The order of the elements is computed only if
//! the caller requests it, or for sums of floats, whose rounding depends on the order.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use vmarray_kernel::Function;

use super::in_ram::{self, PART};
use crate::base::error::Result;
use crate::base::progress::in_steps;
use crate::base::scoped_threads::CORES;
use crate::base::scratch_pool::ScratchVec;
use crate::engine::shared_work::{for_each, for_each_with};
use crate::ops::sort::{KeyBits, KeyOrder, SortKey, sort_pairs_in_ram};

/// The greatest number of distinct keys. A table of this size stays in a core's cache.
const KEYS_MAX: usize = if cfg!(test) { 64 } else { 4096 };
/// The least average number of elements for each distinct key.
const ELEMENTS_MIN: usize = if cfg!(test) { 2 } else { 64 };
const SLOTS: usize = 4 * KEYS_MAX;

/// The code of each element's key.
#[derive(Debug)]
pub(super) struct KeyCodes {
    codes: ScratchVec<u16>,
    counts: Vec<u64>,
    of_groups: Vec<u16>,
}

/// The codes that a thread has seen, as a hash table with open addressing.
struct KnownCodes {
    /// Keys, each with its code plus one. A zero marks an empty slot.
    slots: Vec<(u64, u16)>,
    counts: Vec<u64>,
}

impl KnownCodes {
    fn new() -> Self {
        Self { slots: vec![(0, 0); SLOTS], counts: vec![0; KEYS_MAX] }
    }

    /// Returns the code of a key. If the key is new, calls `make` to assign one.
    #[inline(always)]
    fn code(&mut self, key: u64, make: impl FnOnce() -> Option<u16>) -> Option<u16> {
        let mut at = (key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - SLOTS.ilog2())) as usize;
        loop {
            let (known, next) = self.slots[at];
            if next == 0 {
                let code = make()?;
                self.slots[at] = (key, code + 1);
                return Some(code);
            }
            if known == key {
                return Some(next - 1);
            }
            at = (at + 1) % SLOTS;
        }
    }
}

impl KeyCodes {
    /// Assigns codes to keys, and sorts the distinct keys. Returns `None` if they are too many.
    pub(super) fn of<B: KeyBits>(keys: &[B], order: impl Fn(B) -> u64) -> Result<Option<(Self, Vec<B>)>> {
        let most = KEYS_MAX.min(keys.len() / ELEMENTS_MIN);
        // Test a sample first, which usually suffices to detect too many distinct keys.
        let mut sample: Vec<B> = keys.iter().step_by((keys.len() / (4 * KEYS_MAX)).max(1)).copied().collect();
        sample.sort_unstable();
        sample.dedup();
        if sample.len() > most {
            return Ok(None);
        }
        let all = Mutex::new(HashMap::<u64, u16>::new());
        let make = |key: u64| {
            let mut all = all.lock();
            let next = all.len();
            let code = *all.entry(key).or_insert(next as u16);
            (usize::from(code) < most).then_some(code)
        };
        let (too_many, counts) = (AtomicBool::new(false), Mutex::new(vec![0_u64; KEYS_MAX]));
        let mut codes = ScratchVec::<u16>::unspecified(keys.len())?;
        let parts = codes.chunks_mut(PART).zip(keys.chunks(PART));
        for_each_with(*CORES, parts, KnownCodes::new, |known, (codes, keys): (&mut [u16], &[B])| {
            if too_many.load(Ordering::Relaxed) {
                return Ok(());
            }
            for (to, key) in codes.iter_mut().zip(keys) {
                let key = key.wide();
                let Some(code) = known.code(key, || make(key)) else {
                    too_many.store(true, Ordering::Relaxed);
                    return Ok(());
                };
                *to = code;
                known.counts[usize::from(code)] += 1;
            }
            let mut counts = counts.lock();
            counts.iter_mut().zip(&mut known.counts).for_each(|(all, own)| *all += std::mem::take(own));
            Ok(())
        })?;
        if too_many.into_inner() {
            return Ok(None);
        }
        let mut found: Vec<(B, u16)> =
            all.into_inner().into_iter().map(|(key, code)| (B::narrow(key), code)).collect();
        found.sort_unstable_by_key(|(key, _)| order(*key));
        let (distinct, of_groups) = found.into_iter().unzip();
        Ok(Some((Self { codes, counts: counts.into_inner(), of_groups }, distinct)))
    }

    /// Returns the start of each group in the order of the groups, and the end of the last group.
    pub(super) fn starts(&self) -> impl Iterator<Item = u64> {
        let mut end = 0;
        let ends = self.of_groups.iter().map(move |code| {
            end += self.counts[usize::from(*code)];
            end
        });
        std::iter::once(0).chain(ends)
    }

    /// Returns the indices of the elements, group by group, in ascending order.
    pub(super) fn positions(&self) -> Result<ScratchVec<u32>> {
        let mut group_of = vec![0; self.counts.len()];
        (0..).zip(&self.of_groups).for_each(|(group, code)| group_of[usize::from(*code)] = group);
        let mut groups = ScratchVec::<u16>::unspecified(self.codes.len())?;
        let parts = groups.chunks_mut(PART).zip(self.codes.chunks(PART));
        for_each(*CORES, parts, |(groups, codes): (&mut [u16], &[u16])| {
            groups.iter_mut().zip(codes).for_each(|(group, code)| *group = group_of[usize::from(*code)]);
            Ok(())
        })?;
        let mut positions = in_ram::positions(groups.len())?;
        let order = KeyOrder::of::<u16>(false);
        in_steps(0, |steps| sort_pairs_in_ram(&mut groups, &mut positions, order, *CORES, steps))?;
        Ok(positions)
    }

    /// Reduces the values of each group, in an unspecified order.
    pub(super) fn reduced<T, R, F, O>(&self, values: &[T]) -> Result<Vec<R>>
    where
        T: SortKey,
        R: SortKey,
        F: Function<(T,), R>,
        O: Function<(R, R), R>,
    {
        let add = |all: &mut Option<R>, value: R| *all = Some(all.map_or(value, |all| O::call((all, value))));
        let of_all = Mutex::new(vec![None::<R>; self.of_groups.len()]);
        let parts = self.codes.chunks(PART).zip(values.chunks(PART));
        for_each_with(
            *CORES,
            parts,
            || vec![None::<R>; self.of_groups.len()],
            |of_thread, (codes, values): (&[u16], &[T])| {
                for (code, value) in codes.iter().zip(values) {
                    add(&mut of_thread[usize::from(*code)], F::call((*value,)));
                }
                let mut of_all = of_all.lock();
                for (all, own) in of_all.iter_mut().zip(of_thread) {
                    own.take().into_iter().for_each(|own| add(all, own));
                }
                Ok(())
            },
        )?;
        let of_all = of_all.into_inner();
        Ok(self
            .of_groups
            .iter()
            .map(|code| of_all[usize::from(*code)].expect("a group has at least one element"))
            .collect())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use backend_api::wrap::SplitMix64;

    use crate::order::Descending;
    use crate::prelude::*;

    #[test]
    fn groups_of_few_keys_match_a_map() {
        let mut random = SplitMix64::new(16);
        for round in 0..36 {
            // Some rounds have more keys than the maximum number of codes, and some have fewer.
            let (len, most) = (random.index(3000), [1, 7, 64, 65, 300, 1 << 40][round % 6]);
            let keys: Vec<i64> = (0..len).map(|_| (random.next() % most) as i64 - 3).collect();
            let values: Vec<i32> = (0..len).map(|_| random.next() as i32).collect();
            let mut groups = BTreeMap::<i64, Vec<usize>>::new();
            for (at, key) in keys.iter().enumerate() {
                groups.entry(*key).or_default().push(at);
            }
            let (keys, floats) = (Source::new(keys).unwrap(), values.iter().map(|value| *value as f32 / 7.0));
            let floats: Vec<f32> = floats.collect();
            let found = match round % 2 {
                0 => keys.group_by(.., Field::<i64, i64>::whole()),
                _ => keys.group_by(.., Descending(Field::<i64, i64>::whole())),
            };
            let (found, mut expected) = (found.unwrap(), groups.into_iter().collect::<Vec<_>>());
            if round % 2 == 1 {
                expected.reverse();
            }
            let of_each =
                |of: &dyn Fn(&[usize]) -> i64| expected.iter().map(|(_, at)| of(at)).collect::<Vec<_>>();
            let key_of: Vec<i64> = expected.iter().map(|(key, _)| *key).collect();
            assert!(found.keys().to_vec(..).unwrap() == key_of, "round {round}");
            let counts = found.counts().unwrap().to_vec(..).unwrap();
            assert!(
                counts.iter().map(|count| *count as i64).eq(of_each(&|at| at.len() as i64)),
                "round {round}"
            );
            let (of_values, of_floats) =
                (Source::new(values.clone()).unwrap(), Source::new(floats.clone()).unwrap());
            let sums = found.sum(&of_values).unwrap().to_vec(..).unwrap();
            assert!(sums == of_each(&|at| at.iter().map(|at| i64::from(values[*at])).sum()), "round {round}");
            let least = found.min(&of_values).unwrap().to_vec(..).unwrap();
            let expected_least = of_each(&|at| at.iter().map(|at| i64::from(values[*at])).min().unwrap());
            assert!(least.into_iter().map(i64::from).eq(expected_least), "round {round}");
            // The device adds up to 256 elements one after the other.
            let float_sums = found.sum(&of_floats).unwrap().to_vec(..).unwrap();
            for ((_, at), sum) in expected.iter().zip(float_sums).filter(|((_, at), _)| at.len() <= 256) {
                assert_eq!(sum, at.iter().map(|at| f64::from(floats[*at])).sum::<f64>(), "round {round}");
            }
            let order: Vec<u64> =
                expected.iter().flat_map(|(_, at)| at.iter().map(|at| *at as u64)).collect();
            assert!(found.order().unwrap().to_vec(..).unwrap() == order, "round {round}");
        }
    }
}
