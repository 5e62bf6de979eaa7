//! Sort in RAM: radix sort of keys, or of keys with values. With values, the sort is stable.
//!
//! 1. A first scan of the keys finds the bits that differ, and whether the keys are already in order. Keys
//!    without values and with few differing bits are counted, and written from the counts.
//! 2. All threads distribute the rows (keys with their values) to buckets by the highest differing bits,
//!    through a buffer of one cache line for each bucket. If a sample shows that these buckets would be
//!    uneven, the number of bits differs from bucket to bucket.
//! 3. One thread sorts a bucket in the processor's caches: first by as many bits as make most keys different,
//!    then by insertion of the rows that are still out of order. If most rows of a bucket have the same key,
//!    only the other rows are sorted.
//!
//! If the sort is cancelled or panics, no row is lost.

mod cached;
mod count;
mod deal;
#[forbid(unsafe_code)]
mod home;
mod rows;
mod sorting;
mod survey;

use bytemuck::Pod;
use parking_lot::Mutex;

use self::rows::{Columns, KeyRow};
use self::sorting::{CACHED_BYTES, Sorting};
use self::survey::{BitWindow, InOrder};
use super::keys::{KeyBits, KeyOrder};
use crate::base::error::{ErrorKind, Result};
use crate::base::memory::zeroed_vec;
use crate::base::progress::Steps;
use crate::base::racy_slice::HomeSlice;
use crate::base::scoped_threads;
use crate::base::scratch_pool::ScratchVec;

/// After this number of bytes, each thread checks if the program has cancelled the sort.
const STOPPED_BYTES: usize = if cfg!(test) { 1 << 10 } else { 16 << 20 };
/// The least number of rows for a second thread.
const TOGETHER: usize = if cfg!(test) { 500 } else { 1 << 17 };

/// Sorts keys in RAM, with scratch memory of the same length. Allocates another 512 KiB for each thread.
///
/// # Errors
/// [`NoMemory`](crate::ErrorKind::NoMemory): the keys are unchanged.
/// [`Cancelled`](crate::ErrorKind::Cancelled): the keys are in an unspecified order.
pub(crate) fn sort<K: KeyBits>(
    keys: &mut [K],
    beside: &mut [K],
    order: KeyOrder,
    threads: usize,
    steps: &Steps,
) -> Result<()> {
    // The vector of values takes no memory, because its elements are of type `()`.
    let mut values = vec![(); keys.len()];
    let columns = Columns { keys: keys.into(), values: values.as_mut_slice().into() };
    let beside = Some(bytemuck::cast_slice_mut(beside));
    SortWork { order, threads, steps, beside, begin_write: &mut || {} }.sort(columns)
}

/// Sorts keys in RAM, and permutes values in the same way. The sort is stable. Values have 0, 4 or 8 bytes.
///
/// Allocates as much memory as keys and values have, and 512 KiB for each thread, unless the keys are in
/// order.
///
/// # Errors
/// The errors of [`sort`].
///
/// # Panics
/// If the number of values differs from the number of keys.
pub(crate) fn sort_pairs<K: KeyBits, V: Pod + Send + Sync>(
    keys: &mut [K],
    values: &mut [V],
    order: KeyOrder,
    threads: usize,
    steps: &Steps,
) -> Result<()> {
    sort_at_home(keys.into(), values.into(), order, threads, steps, &mut || {})
}

/// Like [`sort_pairs`], for keys in a source's memory. Calls `begin_write` before the first write.
pub(super) fn sort_at_home<K: KeyBits, V: Pod + Send + Sync>(
    keys: HomeSlice<'_, K>,
    values: HomeSlice<'_, V>,
    order: KeyOrder,
    threads: usize,
    steps: &Steps,
    begin_write: &mut dyn FnMut(),
) -> Result<()> {
    assert_eq!(keys.len(), values.len(), "the numbers of keys and of values differ");
    SortWork { order, threads, steps, beside: None, begin_write }.sort(Columns { keys, values })
}

struct SortWork<'a> {
    order: KeyOrder,
    threads: usize,
    steps: &'a Steps,
    /// Scratch memory for all rows; if there is none, the sort allocates it.
    beside: Option<&'a mut [u8]>,
    begin_write: &'a mut dyn FnMut(),
}

impl SortWork<'_> {
    fn sort<K: KeyBits, V: Pod + Send + Sync>(self, columns: Columns<'_, K, V>) -> Result<()> {
        let Columns { keys, values } = columns;
        let (count, keys, values) = (keys.len(), keys.cast(), values.cast());
        self.sort_bytes(count, (keys, size_of::<K>()), (values, size_of::<V>()))
    }

    /// Selects the sort for the sizes of keys and values. It has no type parameters, so this crate compiles
    /// the sort once for each size, and dependent crates do not compile it.
    fn sort_bytes(
        self,
        count: usize,
        (keys, key_bytes): (HomeSlice<'_, u8>, usize),
        (values, value_bytes): (HomeSlice<'_, u8>, usize),
    ) -> Result<()> {
        macro_rules! by_width {
            ($($bytes:literal: $K:ty),*) => {
                match key_bytes {
                    $($bytes => match value_bytes {
                        0 => self.run::<$K, ()>(Columns { keys: keys.cast(), values: HomeSlice::empty(count) }),
                        4 => self.run::<$K, u32>(Columns { keys: keys.cast(), values: values.cast() }),
                        8 => self.run::<$K, u64>(Columns { keys: keys.cast(), values: values.cast() }),
                        _ => unreachable!("sorted values have 0, 4 or 8 bytes"),
                    },)*
                    _ => unreachable!("keys have 1, 2, 4 or 8 bytes"),
                }
            };
        }
        by_width!(1: u8, 2: u16, 4: u32, 8: u64)
    }

    fn run<K: KeyBits, V: Pod + Send + Sync>(self, columns: Columns<'_, K, V>) -> Result<()> {
        let Self { order, steps, .. } = self;
        if order.flip_negative == 0 {
            Sorting::<false> { order, steps }.run(columns, self)
        } else {
            Sorting::<true> { order, steps }.run(columns, self)
        }
    }
}

/// The form of the rows before the sort. Afterwards they are in columns.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RowsPlace {
    Columns,
    Rows,
}

/// The rows of one bucket, and their final location.
struct Bucket<'a, K, V> {
    columns: Columns<'a, K, V>,
    rows: &'a mut [KeyRow<K, V>],
    /// Bits in which the keys of the bucket may differ.
    bits: u64,
}

/// Buckets that are not sorted yet, the largest one last. If the sort is cancelled or a thread panics, a drop
/// writes the remaining rows unsorted to their final location.
struct UnsortedBuckets<'a, K: KeyBits, V: Pod + Send + Sync>(Mutex<Vec<Bucket<'a, K, V>>>);

impl<'a, K: KeyBits, V: Pod + Send + Sync> UnsortedBuckets<'a, K, V> {
    fn next(&self, is_wanted: impl FnOnce(&mut Bucket<'a, K, V>) -> bool) -> Option<Bucket<'a, K, V>> {
        self.0.lock().pop_if(is_wanted)
    }
}

impl<K: KeyBits, V: Pod + Send + Sync> Drop for UnsortedBuckets<'_, K, V> {
    fn drop(&mut self) {
        for Bucket { columns, rows, .. } in self.0.get_mut() {
            columns.store(rows, 1);
        }
    }
}

type Scratch<K, V> = Vec<KeyRow<K, V>>;

impl<const IS_FLOAT: bool> Sorting<'_, IS_FLOAT> {
    fn run<K: KeyBits, V: Pod + Send + Sync>(
        self,
        mut columns: Columns<'_, K, V>,
        SortWork { threads, beside, begin_write, .. }: SortWork<'_>,
    ) -> Result<()> {
        let threads = if columns.len() < TOGETHER { 1 } else { threads.max(1) };
        // Check the order before allocating memory, because sorted keys need none.
        let keys = columns.keys.as_slice();
        match InOrder::of(keys, !KeyRow::<K, V>::IS_KEY, threads, self.compared_of_key()) {
            InOrder::Ascending => return Ok(()),
            InOrder::Descending => {
                begin_write();
                columns.reverse(threads);
                return Ok(());
            }
            InOrder::Neither => {}
        }
        let mut scratch;
        let beside = match beside {
            Some(bytes) => bytemuck::cast_slice_mut(bytes),
            None => {
                scratch = ScratchVec::unspecified(columns.len())?;
                &mut scratch[..]
            }
        };
        let len = columns.len().min(CACHED_BYTES / size_of::<KeyRow<K, V>>());
        let mut scratches = Vec::with_capacity(threads);
        for _ in 0..threads {
            scratches.push(zeroed_vec(len)?);
        }
        let all = u64::MAX >> (u64::BITS - 8 * K::BYTES as u32);
        begin_write();
        self.sort_unordered(columns, beside, RowsPlace::Columns, all, &mut scratches);
        if self.steps.is_cancelled() { Err(ErrorKind::Cancelled.into()) } else { Ok(()) }
    }

    /// Writes each key as often as it was counted.
    fn write<K: KeyBits>(
        self,
        keys: HomeSlice<'_, K>,
        values: impl IntoIterator<Item = (u64, usize)>,
        threads: usize,
    ) {
        count::write(keys, values.into_iter().map(|(key, count)| (self.order.bits(key), count)), threads);
    }

    /// Sorts rows that differ only in some bits. Each thread has one scratch memory.
    fn sort<K: KeyBits, V: Pod + Send + Sync>(
        self,
        Bucket { mut columns, rows, bits }: Bucket<'_, K, V>,
        scratches: &mut [Scratch<K, V>],
    ) {
        let threads = scratches.len();
        match InOrder::of(&*rows, !KeyRow::<K, V>::IS_KEY, threads, move |row| row.compared(self)) {
            InOrder::Neither => {
                if let [beside] = scratches
                    && let Some(most) = self.majority(rows)
                    && self.beside_majority(&mut columns, rows, most, beside)
                {
                    return;
                }
                self.sort_unordered(columns, rows, RowsPlace::Rows, bits, scratches);
            }
            in_order => {
                columns.store(rows, threads);
                if in_order == InOrder::Descending {
                    columns.reverse(threads);
                }
            }
        }
    }

    fn sort_unordered<K: KeyBits, V: Pod + Send + Sync>(
        self,
        mut columns: Columns<'_, K, V>,
        rows: &mut [KeyRow<K, V>],
        place: RowsPlace,
        bits: u64,
        scratches: &mut [Scratch<K, V>],
    ) {
        let (len, threads) = (columns.len(), scratches.len());
        // Calls a function with the slice that contains the keys at present.
        macro_rules! of_keys {
            ($function:expr $(, $arguments:expr)*) => {
                match place {
                    RowsPlace::Columns => {
                        $function(columns.keys.as_slice(), $($arguments,)* threads, self.number_of_key())
                    }
                    RowsPlace::Rows => $function(rows, $($arguments,)* threads, move |row| row.key(self)),
                }
            };
        }
        if KeyRow::<K, V>::IS_KEY
            && let Some(values) = of_keys!(count::values, 2)
        {
            return self.write(columns.keys, values, threads);
        }
        let first = match place {
            RowsPlace::Columns => self.key(columns.keys.as_slice()[0]),
            RowsPlace::Rows => rows[0].key(self),
        };
        let differ = of_keys!(survey::differing, bits);
        let window = BitWindow::of(differ);
        if KeyRow::<K, V>::IS_KEY && window.bits <= count::BITS_MAX && len >= 4 << window.bits {
            let counts = of_keys!(count::of, window);
            let values = (0..).map(|value| first & !differ | value << window.shift);
            self.write(columns.keys, values.zip(counts), threads);
        } else if KeyRow::<K, V>::IS_KEY
            && let Some(values) = of_keys!(count::values, count::FIRST_VALUES_MAX)
        {
            self.write(columns.keys, values, threads);
        } else if threads == 1 && size_of_val(rows) <= CACHED_BYTES {
            if place == RowsPlace::Columns {
                columns.load(rows);
            }
            let beside = &mut scratches[0][..len];
            columns.store(self.cached(rows, beside, differ)[0], 1);
        } else {
            if place == RowsPlace::Rows {
                columns.store(rows, threads);
            }
            self.by_highest(columns, rows, differ, scratches);
        }
    }

    /// Distributes rows to buckets by the highest differing bits, and then sorts each bucket.
    fn by_highest<K: KeyBits, V: Pod + Send + Sync>(
        self,
        mut columns: Columns<'_, K, V>,
        rows: &mut [KeyRow<K, V>],
        differ: u64,
        scratches: &mut [Scratch<K, V>],
    ) {
        let (len, threads) = (columns.len(), scratches.len());
        let dealt = self.buckets(columns.keys.as_slice(), differ, size_of_val(rows));
        let ends = self.deal(&columns, rows, &dealt, threads);
        if (0..ends.len()).all(|bucket| differ & dealt.below(bucket) == 0) {
            return columns.store(rows, threads);
        }
        let (mut buckets, mut rest, mut start) = (Vec::new(), (columns, rows), 0);
        for (number, end) in ends.into_iter().enumerate() {
            let (columns, others) = rest.0.split_at(end - start);
            let (rows, later) = rest.1.split_at_mut(end - start);
            rest = (others, later);
            if end > start {
                buckets.push(Bucket { columns, rows, bits: differ & dealt.below(number) });
            }
            start = end;
        }
        buckets.sort_by_key(|bucket| bucket.rows.len());
        let buckets = UnsortedBuckets(Mutex::new(buckets));
        // A bucket is large if other threads would be idle while one thread sorts it.
        let is_large = |bucket: &mut Bucket<'_, K, V>| {
            let count = bucket.rows.len();
            threads > 1 && count * 2 > len / threads && count >= TOGETHER
        };
        while let Some(bucket) = buckets.next(is_large) {
            self.sort(bucket, scratches);
        }
        let scratches = Mutex::new(scratches.iter_mut());
        scoped_threads::together(threads, || {
            let Some(scratch) = scratches.lock().next() else { return };
            let (own, mut bytes) = (std::slice::from_mut(scratch), 0);
            loop {
                // Report progress while this thread owns no bucket: the program's progress function may
                // panic, and a bucket of this thread would stay unsorted.
                if bytes >= STOPPED_BYTES && self.steps.report(0).is_err() {
                    break;
                }
                bytes %= STOPPED_BYTES;
                let Some(bucket) = buckets.next(|_| true) else { break };
                bytes += size_of_val(&*bucket.rows);
                self.sort(bucket, own);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use backend_api::wrap::SplitMix64;
    use proptest::prelude::*;

    use std::ops::ControlFlow;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::base::progress::in_steps;
    use crate::ops::sort::SortKey;
    use crate::progress::with_progress;

    /// Sorts keys, and keys with their indices as values of 8 and 4 bytes.
    fn check<K: KeyBits>(keys: &[K], order: KeyOrder, threads: usize) {
        let about = || format!("{} keys of {} bytes, {order:?}, {threads} threads", keys.len(), K::BYTES);
        let mut expected: Vec<(K, u64)> = keys.iter().copied().zip(0..).collect();
        expected.sort_by_key(|(key, _)| order.key(*key));
        let (sorted, numbers): (Vec<K>, Vec<u64>) = expected.into_iter().unzip();
        let (mut found, mut beside) = (keys.to_vec(), keys.to_vec());
        in_steps(0, |steps| sort(&mut found, &mut beside, order, threads, steps)).unwrap();
        assert!(found == sorted, "{}", about());
        let (mut found, mut values) = (keys.to_vec(), (0..keys.len() as u64).collect::<Vec<_>>());
        in_steps(0, |steps| sort_pairs(&mut found, &mut values, order, threads, steps)).unwrap();
        assert!(found == sorted && values == numbers, "{} with values", about());
        let (mut found, mut values) = (keys.to_vec(), (0..keys.len() as u32).collect::<Vec<_>>());
        in_steps(0, |steps| sort_pairs(&mut found, &mut values, order, threads, steps)).unwrap();
        let values = values.into_iter().map(u64::from);
        assert!(found == sorted && values.eq(numbers), "{} with short values", about());
    }

    /// Random bits; a type of keys takes the highest ones.
    fn bits(kind: usize, len: usize, random: &mut SplitMix64) -> Vec<u64> {
        let few: Vec<u64> = (0..1 + random.index(400)).map(|_| random.next()).collect();
        let (one, shift) = (random.next(), random.index(64));
        let value = |random: &mut SplitMix64, number: usize| match kind {
            0 => random.next(),
            1 => random.next() & 0x8100_0300_8001_0003,
            2 => few[random.index(few.len())],
            3 => few[random.index(2) % few.len()],
            // Most keys have equal highest bits.
            4 => random.next() >> (random.next() % 64),
            5 => one ^ (random.next() >> 52 << shift),
            // Keys almost in order, and in order.
            6 if random.index(100) == 0 => random.next(),
            6 | 7 => (number as u64) << 50,
            8 => (len as u64 / 3 - number as u64 / 3) << 52,
            // Few values among others, each of them many times; and one value that most keys have.
            9 if random.index(3) > 0 => few[random.index(few.len()).min(random.index(few.len()))],
            10 if random.index(20) > 0 => one,
            9 | 10 => random.next(),
            // Two bits differ, and most keys are equal.
            11 => (random.index(100).saturating_sub(80).div_ceil(7) as u64 % 4) << 62,
            _ => one,
        };
        (0..len).map(|number| value(random, number)).collect()
    }

    #[test]
    fn keys_of_all_lengths_and_kinds_are_sorted() {
        let mut random = SplitMix64::new(7);
        const SIGN: u64 = 1 << 63;
        let orders = [(0, 0), (u64::MAX, 0), (SIGN, 0), (SIGN, !SIGN), (!SIGN, !SIGN)];
        for round in 0..backend_api::wrap::random_cases(480) as usize {
            let len = random.index([3, 200, 3000, 20_000][round % 4]);
            let bits = bits(round % 13, len, &mut random);
            let (flip, flip_negative) = orders[random.index(5)];
            let order = |bytes: usize| KeyOrder::new(flip, flip_negative, bytes);
            let threads = 1 + random.index(4);
            check(&bits, order(8), threads);
            check(&bits.iter().map(|bits| (*bits >> 32) as u32).collect::<Vec<_>>(), order(4), threads);
            check(&bits.iter().map(|bits| (*bits >> 48) as u16).collect::<Vec<_>>(), order(2), threads);
            check(&bits.iter().map(|bits| (*bits >> 56) as u8).collect::<Vec<_>>(), order(1), threads);
        }
    }

    #[test]
    fn what_is_in_order_is_not_written_to() {
        let mut random = SplitMix64::new(5);
        let order = KeyOrder::of::<f64>(false);
        let ascending: Vec<u64> = (0..5000_u32).map(|number| f64::from(number / 2).to_bits()).collect();
        let descending: Vec<u64> = (0..5000_u32).rev().map(|number| f64::from(number).to_bits()).collect();
        let alike = vec![7; 5000];
        for (keys, is_written) in [(ascending, false), (alike, false), (descending, true)] {
            let mut found = keys.clone();
            let mut values: Vec<u32> = (0..5000).map(|_| random.next() as u32).collect();
            let (mut expected, mut writes): (Vec<_>, _) = (keys.into_iter().zip(values.clone()).collect(), 0);
            let columns = (found.as_mut_slice().into(), values.as_mut_slice().into());
            let sorted =
                in_steps(0, |steps| sort_at_home(columns.0, columns.1, order, 3, steps, &mut || writes += 1));
            sorted.unwrap();
            expected.sort_by_key(|(key, _)| order.key(*key));
            assert!(found.into_iter().zip(values).eq(expected) && writes == usize::from(is_written));
        }
    }

    #[test]
    fn a_sort_that_is_stopped_or_panics_between_buckets_loses_nothing() {
        let mut random = SplitMix64::new(3);
        let (keys, order) = ((0..20_000).map(|_| random.next()).collect::<Vec<_>>(), KeyOrder::new(0, 0, 8));
        let mut expected = keys.clone();
        expected.sort_unstable();
        for (threads, panics) in [(1, false), (3, false), (1, true), (3, true)] {
            let (mut sorted, mut beside, mut asked) = (keys.clone(), keys.clone(), 0);
            let stop = |_| {
                asked += 1;
                assert!(asked < 5 || !panics, "as a test");
                if asked < 5 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            };
            let stopped = catch_unwind(AssertUnwindSafe(|| {
                with_progress(stop, || {
                    in_steps(9, |steps| sort(&mut sorted, &mut beside, order, threads, steps))
                })
            }));
            match stopped {
                Ok(stopped) => assert_eq!(*stopped.unwrap_err().kind(), ErrorKind::Cancelled),
                Err(_) => assert!(panics),
            }
            assert!(asked == 5 || panics);
            assert!(threads > 1 && panics || !sorted.is_sorted());
            sorted.sort_unstable();
            assert!(sorted == expected, "{threads} threads, {panics}");
        }
    }

    /// Compares as the number type does.
    fn check_numbers<T: SortKey>(mut numbers: Vec<T>, compare: impl Fn(&T, &T) -> std::cmp::Ordering) {
        for is_descending in [false, true] {
            let mut beside = numbers.clone();
            let keys: &mut [T::KeyBits] = bytemuck::cast_slice_mut(&mut numbers);
            let (order, beside) = (KeyOrder::of::<T>(is_descending), bytemuck::cast_slice_mut(&mut beside));
            in_steps(0, |steps| sort(keys, beside, order, 2, steps)).unwrap();
            assert!(numbers.is_sorted_by(|one, two| match compare(one, two) {
                std::cmp::Ordering::Equal => true,
                order => order.is_gt() == is_descending,
            }));
        }
    }

    proptest! {
        #[test]
        fn numbers_are_in_their_order(bits in prop::collection::vec(any::<u64>(), 0..3000), zeros in 0_usize..9) {
            let special = [0.0, -0.0, f64::NAN, -f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::MIN_POSITIVE];
            let bits: Vec<u64> = bits.into_iter().chain(special.into_iter().cycle().take(zeros).map(f64::to_bits)).collect();
            check_numbers(bits.iter().map(|bits| f64::from_bits(*bits)).collect(), f64::total_cmp);
            check_numbers(bits.iter().map(|bits| f32::from_bits(*bits as u32)).collect(), f32::total_cmp);
            check_numbers(bits.iter().map(|bits| *bits as i64).collect(), i64::cmp);
            check_numbers(bits.iter().map(|bits| *bits as i16).collect(), i16::cmp);
        }
    }
}
