//! Columns to sums, extremes and counts.

use backend_api::by_type;
use backend_api::expr::{Number, Partial, Type};

use super::columns::{Column, wide};

/// Floats are added up in so many sums at once, lane by lane; these are added up in pairs at the end.
const LANES: usize = 16;

/// The sum of what a thread has seen.
#[derive(Debug, Default)]
pub(super) struct Sum {
    count: u64,
    integers: i128,
    floats: [f64; LANES],
}

/// A column in which only some places count.
#[derive(Clone, Copy)]
pub(super) struct Filtered<'a> {
    pub of: Type,
    pub values: &'a Column,
    pub filter: Option<&'a Column>,
    pub lanes: usize,
}

impl Filtered<'_> {
    fn count(&self) -> u64 {
        self.filter.map_or(self.lanes as u64, |filter| count_true(filter.of(self.lanes)))
    }
}

/// How many bytes are 1; the others are 0.
pub(super) fn count_true(mask: &[u8]) -> u64 {
    wide!(count_here(mask: &[u8]) -> u64)
}

#[inline(always)]
fn count_here(mask: &[u8]) -> u64 {
    let (words, rest) = mask.as_chunks::<8>();
    let mut sum = rest.iter().map(|&one| u64::from(one)).sum();
    // Eight sums in the bytes of a word; none reaches 256.
    for words in words.chunks(255) {
        let bytes = words.iter().fold(0_u64, |sum, word| sum.wrapping_add(u64::from_ne_bytes(*word)));
        sum += bytes.to_ne_bytes().into_iter().map(u64::from).sum::<u64>();
    }
    sum
}

#[inline(always)]
fn add_floats<T: Number + bytemuck::Pod>(sums: &mut [f64; LANES], column: Filtered<'_>) {
    let values = column.values.of::<T>(column.lanes);
    let (rows, rest) = values.as_chunks::<LANES>();
    if let Some(filter) = column.filter {
        let (masks, masks_rest) = filter.of::<u8>(column.lanes).as_chunks::<LANES>();
        let keep = |value: &T, mask: &u8| if *mask != 0 { value.to_f64() } else { 0.0 };
        for (row, mask) in rows.iter().zip(masks) {
            for ((sum, value), mask) in sums.iter_mut().zip(row).zip(mask) {
                *sum += keep(value, mask);
            }
        }
        for ((sum, value), mask) in sums.iter_mut().zip(rest).zip(masks_rest) {
            *sum += keep(value, mask);
        }
    } else {
        for row in rows {
            for (sum, value) in sums.iter_mut().zip(row) {
                *sum += value.to_f64();
            }
        }
        for (sum, value) in sums.iter_mut().zip(rest) {
            *sum += value.to_f64();
        }
    }
}

/// Adds integers as two halves, so that 64 bits suffice for the sums of a block.
#[inline(always)]
fn sum_of_integers<T: bytemuck::Pod>(column: Filtered<'_>, halves: impl Fn(T) -> (u64, i64)) -> i128 {
    let values = column.values.of::<T>(column.lanes);
    let (mut low, mut high) = (0_u64, 0_i64);
    if let Some(filter) = column.filter {
        for (value, mask) in values.iter().zip(filter.of::<u8>(column.lanes)) {
            let (l, h) = halves(*value);
            let keep = 0_u64.wrapping_sub(u64::from(*mask));
            low += l & keep;
            high += h & keep as i64;
        }
    } else {
        for value in values {
            let (l, h) = halves(*value);
            low += l;
            high += h;
        }
    }
    (i128::from(high) << 32) + i128::from(low)
}

#[inline(always)]
fn add_here(sum: &mut Sum, column: Filtered<'_>) {
    sum.count += column.count();
    sum.integers += match column.of {
        Type::F32 => return add_floats::<f32>(&mut sum.floats, column),
        Type::F64 => return add_floats::<f64>(&mut sum.floats, column),
        Type::Bool | Type::U8 => sum_of_integers(column, |x: u8| (x.into(), 0)),
        Type::U16 => sum_of_integers(column, |x: u16| (x.into(), 0)),
        Type::U32 => sum_of_integers(column, |x: u32| (x.into(), 0)),
        Type::U64 => sum_of_integers(column, |x: u64| (x & 0xFFFF_FFFF, (x >> 32) as i64)),
        // Of signed numbers the low half is that of a number moved up by 2^31.
        Type::I8 => sum_of_integers(column, |x: i8| ((i64::from(x) + 128) as u64, 0)) - 128 * offset(column),
        Type::I16 => {
            sum_of_integers(column, |x: i16| ((i64::from(x) + 32768) as u64, 0)) - 32768 * offset(column)
        }
        Type::I32 => {
            sum_of_integers(column, |x: i32| ((i64::from(x) + (1 << 31)) as u64, 0))
                - (1 << 31) * offset(column)
        }
        Type::I64 => sum_of_integers(column, |x: i64| (x as u64 & 0xFFFF_FFFF, x >> 32)),
    };
}

#[inline(always)]
fn offset(column: Filtered<'_>) -> i128 {
    column.count().into()
}

impl Sum {
    pub fn add(&mut self, column: Filtered<'_>) {
        let sum = self;
        wide!(add_here(sum: &mut Sum, column: Filtered<'_>));
    }

    pub fn partial(self, of: Type) -> Partial {
        if of.is_float() {
            let mut sums = self.floats;
            let mut half = LANES / 2;
            while half > 0 {
                for lane in 0..half {
                    sums[lane] += sums[lane + half];
                }
                half /= 2;
            }
            Partial::of_floats(self.count, sums[0])
        } else {
            Partial::of_integers(self.count, self.integers)
        }
    }
}

/// The extremes of what a thread has seen.
#[derive(Debug, Default)]
pub(super) struct Extremes {
    count: u64,
    least: (u64, u64),
    greatest: (u64, u64),
}

/// The keys of a block, and which places count: no NaN does.
#[inline(always)]
fn keys_here(column: Filtered<'_>, keys: &mut [u64], counting: &mut [u8]) {
    match column.filter {
        Some(filter) => counting.copy_from_slice(filter.of(column.lanes)),
        None => counting.fill(1),
    }
    by_type!(column.of, T => {
        let places = keys.iter_mut().zip(counting.iter_mut());
        for ((key, counts), value) in places.zip(column.values.of::<T>(column.lanes)) {
            *key = T::NUMBER_TYPE.key(value.to_value());
            *counts &= u8::from(!value.is_nan());
        }
    });
}

fn keys(column: Filtered<'_>, keys: &mut [u64], counting: &mut [u8]) {
    wide!(keys_here(column: Filtered<'_>, keys: &mut [u64], counting: &mut [u8]));
}

#[inline(always)]
fn extreme_here(keys: &[u64], counting: &[u8], flip: u64) -> u64 {
    let mut lanes = [u64::MAX; LANES];
    let (rows, rest) = keys.as_chunks::<LANES>();
    let (masks, masks_rest) = counting.as_chunks::<LANES>();
    let keep = |key: u64, mask: u8| if mask != 0 { key ^ flip } else { u64::MAX };
    for (row, mask) in rows.iter().zip(masks) {
        for ((lane, key), mask) in lanes.iter_mut().zip(row).zip(mask) {
            *lane = (*lane).min(keep(*key, *mask));
        }
    }
    for ((lane, key), mask) in lanes.iter_mut().zip(rest).zip(masks_rest) {
        *lane = (*lane).min(keep(*key, *mask));
    }
    lanes.into_iter().fold(u64::MAX, u64::min) ^ flip
}

/// The least of the keys that count; with all bits of `flip` set, the greatest.
fn extreme(keys: &[u64], counting: &[u8], flip: u64) -> u64 {
    wide!(extreme_here(keys: &[u64], counting: &[u8], flip: u64) -> u64)
}

impl Extremes {
    /// Takes in a block whose first element has the number `first`. The two slices are room to work in.
    pub fn add(
        &mut self,
        column: Filtered<'_>,
        first: u64,
        (least, greatest): (bool, bool),
        all_keys: &mut [u64],
        counting: &mut [u8],
    ) {
        keys(column, all_keys, counting);
        let count = count_true(counting);
        if count == 0 {
            return;
        }
        let fresh = self.count == 0;
        self.count += count;
        let place = |key: u64| {
            let mut places = all_keys.iter().zip(counting.iter());
            first + places.position(|(known, counts)| *known == key && *counts != 0).unwrap_or(0) as u64
        };
        if least {
            let key = extreme(all_keys, counting, 0);
            if fresh || key < self.least.0 {
                self.least = (key, place(key));
            }
        }
        if greatest {
            let key = extreme(all_keys, counting, u64::MAX);
            if fresh || key > self.greatest.0 {
                self.greatest = (key, place(key));
            }
        }
    }

    /// What is not wanted is said to be the highest numbers: whoever looks at it all the same finds out.
    pub fn partial(self, (least, greatest): (bool, bool)) -> Partial {
        let least = if least { self.least } else { (u64::MAX, u64::MAX) };
        let greatest = if greatest { self.greatest } else { (u64::MAX, u64::MAX) };
        Partial::of_extremes(self.count, least, greatest)
    }
}
