//! Reductions of columns (one value per element) in computations on the processor: sums, extremes, counts.

use backend_api::by_type;
use backend_api::expr::{Number, Partial, Type};

use super::columns::{ValueColumn, wide};
use crate::kernel::marked::{PLACES, SPARE};

/// Number of partial sums of floats, one for each lane. They are added in pairs at the end.
pub(super) const LANES: usize = 16;

/// Sum over the elements that one thread processes.
#[derive(Debug, Default)]
pub(super) struct Sum {
    pub count: u64,
    pub integers: i128,
    pub floats: [f64; LANES],
}

#[derive(Clone, Copy)]
pub(super) struct FilteredColumn<'a> {
    pub of: Type,
    pub values: &'a ValueColumn,
    pub filter: Option<&'a ValueColumn>,
    pub lanes: usize,
}

impl FilteredColumn<'_> {
    fn count(&self) -> u64 {
        self.filter.map_or(self.lanes as u64, |filter| count_true(filter.of(self.lanes)))
    }
}

/// Counts the bytes of a mask that are 1; all other bytes are 0.
pub(super) fn count_true(mask: &[u8]) -> u64 {
    wide!(count_here(mask: &[u8]) -> u64)
}

#[inline(always)]
fn count_here(mask: &[u8]) -> u64 {
    let (words, rest) = mask.as_chunks::<8>();
    let mut sum = rest.iter().map(|&one| u64::from(one)).sum();
    // Each byte is 0 or 1. A word sums its eight bytes separately: 255 additions overflow no byte.
    for words in words.chunks(255) {
        let bytes = words.iter().fold(0_u64, |sum, word| sum.wrapping_add(u64::from_ne_bytes(*word)));
        sum += bytes.to_ne_bytes().into_iter().map(u64::from).sum::<u64>();
    }
    sum
}

/// Returns the value if `mask` is 1, and 0 if it is 0, without a branch, which would prevent vectorisation.
#[inline(always)]
fn value_or_zero<T: Number>(value: T, mask: u8) -> f64 {
    f64::from_bits(value.to_f64().to_bits() & 0_u64.wrapping_sub(mask.into()))
}

#[inline(always)]
fn add_floats<T: Number + bytemuck::Pod>(into: &mut [f64; LANES], column: FilteredColumn<'_>) {
    // Add to local variables, which stay in registers, instead of the memory of `into`.
    let mut sums = *into;
    let values = column.values.of::<T>(column.lanes);
    let (rows, rest) = values.as_chunks::<LANES>();
    if let Some(filter) = column.filter {
        let (masks, masks_rest) = filter.of::<u8>(column.lanes).as_chunks::<LANES>();
        for (row, mask) in rows.iter().zip(masks) {
            for ((sum, value), mask) in sums.iter_mut().zip(row).zip(mask) {
                *sum += value_or_zero(*value, *mask);
            }
        }
        for ((sum, value), mask) in sums.iter_mut().zip(rest).zip(masks_rest) {
            *sum += value_or_zero(*value, *mask);
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
    *into = sums;
}

/// Adds integers as an upper and a lower half, because 64 bits then suffice for the sums of a block.
#[inline(always)]
fn sum_of_integers<T: bytemuck::Pod>(column: FilteredColumn<'_>, halves: impl Fn(T) -> (u64, i64)) -> i128 {
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
fn add_here(sum: &mut Sum, column: FilteredColumn<'_>) {
    sum.count += column.count();
    sum.integers += match column.of {
        Type::F32 => return add_floats::<f32>(&mut sum.floats, column),
        Type::F64 => return add_floats::<f64>(&mut sum.floats, column),
        Type::Bool | Type::U8 => sum_of_integers(column, |x: u8| (x.into(), 0)),
        Type::U16 => sum_of_integers(column, |x: u16| (x.into(), 0)),
        Type::U32 => sum_of_integers(column, |x: u32| (x.into(), 0)),
        Type::U64 => sum_of_integers(column, |x: u64| (x & 0xFFFF_FFFF, (x >> 32) as i64)),
        // For a signed type, add an offset to each number to make it unsigned, and subtract all offsets at
        // the end.
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
fn offset(column: FilteredColumn<'_>) -> i128 {
    column.count().into()
}

impl Sum {
    pub fn add(&mut self, column: FilteredColumn<'_>) {
        let sum = self;
        wide!(add_here(sum: &mut Sum, column: FilteredColumn<'_>));
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

/// Lists the indices of the bytes that are 1, eight at a time without a branch for each. Ends if fewer than
/// [`SPARE`] entries of the list are left.
#[inline(always)]
fn list_here(mask: &[u8], first: u64, into: &mut [u64]) {
    /// Multiplier that moves the lowest bits of eight bytes next to each other, into the top byte.
    const TO_BITS: u64 = 0x0102_0408_1020_4080;
    const TO_SUM: u64 = 0x0101_0101_0101_0101;
    let (words, rest) = mask.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let (mut next, mut number) = (0, first);
    for word in words.iter().chain([&last]) {
        let word = u64::from_le_bytes(*word);
        if word != 0 {
            let Some(places) = into[next..].first_chunk_mut::<SPARE>() else { return };
            for (place, at) in places.iter_mut().zip(PLACES[(word.wrapping_mul(TO_BITS) >> 56) as usize]) {
                *place = number + u64::from(at);
            }
            next += (word.wrapping_mul(TO_SUM) >> 56) as usize;
        }
        number += 8;
    }
}

/// Calls `list_here`, compiled for the widest vectors of the processor.
pub(super) fn list_true(mask: &[u8], first: u64, into: &mut [u64]) {
    wide!(list_here(mask: &[u8], first: u64, into: &mut [u64]));
}

/// Histogram of numbers. Adjacent numbers are often equal, so they are counted in different banks: an
/// increment then need not wait for the previous one.
pub(super) struct NumberCounts {
    bins: usize,
    banks: [Vec<u64>; 4],
}

impl NumberCounts {
    pub fn new(bins: usize) -> Self {
        Self { bins, banks: std::array::from_fn(|_| vec![0; bins]) }
    }

    /// Histogram: counts numbers whose `filter` is 1. Ignores numbers that are not below the number of bins.
    pub fn add(&mut self, values: &[u32], filter: Option<&[u8]>) {
        let banks = self.banks.each_mut().map(|bank| &mut bank[..self.bins]);
        match filter {
            None => count_each(banks, values.iter().map(|value| (*value, 1))),
            Some(filter) => count_each(banks, values.iter().copied().zip(filter.iter().copied())),
        }
    }

    pub fn add_to(&self, total: &mut [u64]) {
        for bank in &self.banks {
            total[..self.bins].iter_mut().zip(bank).for_each(|(sum, more)| *sum += more);
        }
    }
}

#[inline(always)]
fn count_each([a, b, c, d]: [&mut [u64]; 4], mut values: impl ExactSizeIterator<Item = (u32, u8)>) {
    let count = |bank: &mut [u64], (value, once): (u32, u8)| {
        if let Some(count) = bank.get_mut(value as usize) {
            *count += u64::from(once);
        }
    };
    while values.len() >= 4 {
        for bank in [&mut *a, &mut *b, &mut *c, &mut *d] {
            values.next().into_iter().for_each(|one| count(bank, one));
        }
    }
    values.for_each(|one| count(a, one));
}

/// Minimum and maximum over the elements that one thread processes.
#[derive(Debug, Default)]
pub(super) struct ThreadExtremes {
    count: u64,
    least: (u64, u64),
    greatest: (u64, u64),
}

/// Returns the highest or lowest number of a type, without NaNs.
fn end_of<T: Number>(is_highest: bool) -> T {
    let of = T::NUMBER_TYPE;
    let bits = match (of, is_highest) {
        (Type::F32, true) => u64::from(f32::INFINITY.to_bits()),
        (Type::F32, false) => u64::from(f32::NEG_INFINITY.to_bits()),
        (Type::F64, true) => f64::INFINITY.to_bits(),
        (Type::F64, false) => f64::NEG_INFINITY.to_bits(),
        (_, true) => of.from_key(u64::MAX >> (64 - 8 * of.bytes())),
        (_, false) => of.from_key(0),
    };
    T::from_value(bits)
}

/// Minimum or maximum of the selected numbers, in parallel lanes. Skips NaNs, whose comparisons are false.
#[inline(always)]
fn end_here<T: Number + bytemuck::Pod, const N: usize, const GREATEST: bool>(
    values: &[T],
    filter: Option<&[u8]>,
) -> T {
    let better = |a: T, b: T| if if GREATEST { b > a } else { b < a } { b } else { a };
    let nothing = end_of::<T>(!GREATEST);
    let mut lanes = [nothing; N];
    let (rows, rest) = values.as_chunks::<N>();
    if let Some(filter) = filter {
        let (masks, masks_rest) = filter.as_chunks::<N>();
        let keep = |value: T, mask: u8| if mask != 0 { value } else { nothing };
        for (row, mask) in rows.iter().zip(masks) {
            for ((lane, value), mask) in lanes.iter_mut().zip(row).zip(mask) {
                *lane = better(*lane, keep(*value, *mask));
            }
        }
        for ((lane, value), mask) in lanes.iter_mut().zip(rest).zip(masks_rest) {
            *lane = better(*lane, keep(*value, *mask));
        }
    } else {
        for row in rows {
            for (lane, value) in lanes.iter_mut().zip(row) {
                *lane = better(*lane, *value);
            }
        }
        for (lane, value) in lanes.iter_mut().zip(rest) {
            *lane = better(*lane, *value);
        }
    }
    lanes.into_iter().fold(nothing, better)
}

/// Counts the selected numbers that are not NaN.
#[inline(always)]
fn counting<T: Number + bytemuck::Pod>(values: &[T], filter: Option<&[u8]>) -> u64 {
    match filter {
        None if !T::NUMBER_TYPE.is_float() => values.len() as u64,
        None => values.iter().map(|value| u32::from(!value.is_nan())).sum::<u32>().into(),
        Some(filter) => {
            let counts =
                values.iter().zip(filter).map(|(value, one)| u32::from(*one) & u32::from(!value.is_nan()));
            counts.sum::<u32>().into()
        }
    }
}

/// Updates the minimum and maximum with a block of numbers.
#[inline(always)]
fn extremes_here(
    extremes: &mut ThreadExtremes,
    column: FilteredColumn<'_>,
    first: u64,
    wanted: (bool, bool),
) {
    let filter = column.filter.map(|filter| filter.of::<u8>(column.lanes));
    by_type!(column.of, T => {
        let values = column.values.of::<T>(column.lanes);
        let ends = match size_of::<T>() {
            1 | 2 => (end_here::<T, 32, false>(values, filter), end_here::<T, 32, true>(values, filter)),
            _ => (end_here::<T, 16, false>(values, filter), end_here::<T, 16, true>(values, filter)),
        };
        extremes.take(counting(values, filter), wanted, ends, |end: T| {
            let counts = |at: &usize| values[*at] == end && filter.is_none_or(|filter| filter[*at] != 0);
            first + (0..values.len()).find(counts).unwrap_or(0) as u64
        });
    });
}

impl ThreadExtremes {
    /// Updates the minimum and the maximum (if `wanted`) with a block of values from the index `first` on.
    pub fn add(&mut self, column: FilteredColumn<'_>, first: u64, wanted: (bool, bool)) {
        let extremes = self;
        wide!(extremes_here(
            extremes: &mut ThreadExtremes, column: FilteredColumn<'_>, first: u64, wanted: (bool, bool)
        ));
    }

    /// Updates the minimum and the maximum (if `wanted`) with `ends`, the least and the greatest of `count`
    /// numbers. `place` returns the index of a number among them.
    #[inline(always)]
    pub fn take<T: Number>(
        &mut self,
        count: u64,
        wanted: (bool, bool),
        ends: (T, T),
        place: impl Fn(T) -> u64,
    ) {
        if count == 0 {
            return;
        }
        let (fresh, key) = (self.count == 0, |end: T| T::NUMBER_TYPE.key(end.to_value()));
        self.count += count;
        if wanted.0 && (fresh || key(ends.0) < self.least.0) {
            self.least = (key(ends.0), place(ends.0));
        }
        if wanted.1 && (fresh || key(ends.1) > self.greatest.0) {
            self.greatest = (key(ends.1), place(ends.1));
        }
    }

    /// Returns the result of this thread's part. A value that was not requested has all bits set.
    pub fn partial(self, (least, greatest): (bool, bool)) -> Partial {
        let least = if least { self.least } else { (u64::MAX, u64::MAX) };
        let greatest = if greatest { self.greatest } else { (u64::MAX, u64::MAX) };
        Partial::of_extremes(self.count, least, greatest)
    }
}
