//! Partition of a sort in RAM: several threads distribute the rows to buckets by the highest differing bits.

use bytemuck::{Pod, Zeroable};
use parking_lot::Mutex;

use super::count;
use super::rows::{Columns, KeyRow};
use super::sorting::{CACHED_BYTES, Sorting};
use super::survey::BitWindow;
use crate::base::memory::prefetch_write;
use crate::base::{nontemporal_copy, scoped_threads};
use crate::ops::sort::keys::KeyBits;

/// The most bits in a digit. Each value of a digit has a cache line in a buffer, which must fit into the
/// caches.
const BITS_MAX: u32 = count::SMALL_BITS;
/// The least bits in a digit, because threads need enough buckets to share.
const BITS_MIN: u32 = 8;
/// Size in bytes of a cache line, which is moved at a time.
const LINE: usize = 64;

/// The most bits that index a [table](BucketTable), which must fit into the L1 cache.
const TABLE_BITS: u32 = 11;
/// Number of sampled keys for each bucket.
const SAMPLED: usize = 16;

/// A cache line of rows.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct BufferLine([u8; LINE]);

/// The division of rows into buckets, of which most fit into the caches.
pub(super) enum Bucketing {
    /// A bucket for each value of these bits.
    Digit(BitWindow),
    Table(BucketTable),
}

/// Digits of different lengths, for unevenly distributed keys. A frequent value of the window's bits has
/// several buckets, divided by the next lower bits. A rare value shares a bucket with its neighbours.
pub(super) struct BucketTable {
    window: BitWindow,
    /// For each value of the window's bits, its first bucket in the high bits. The lowest eight bits are the
    /// shift that selects among its buckets.
    entries: Vec<u32>,
    /// For each bucket, a mask of the bits in which its keys may differ.
    below: Vec<u64>,
}

impl BucketTable {
    /// Creates a table from sampled keys, with about `each` samples in a bucket. `None` if there are too
    /// many.
    fn new(samples: &[u64], each: usize, window: BitWindow) -> Option<Self> {
        let window = window.highest(TABLE_BITS);
        let mut counts = vec![0; 1 << window.bits];
        samples.iter().for_each(|key| counts[window.value(*key)] += 1);
        let mut below: Vec<u64> = Vec::new();
        let (mut shared, mut first) = (usize::MAX, 0);
        let entry = |(value, count): (usize, usize)| {
            // Choose `bits` so that a bucket gets between `each * 3 / 4` and `each * 3 / 2` keys.
            let bits = (4 * count / (3 * each)).max(1).ilog2().min(window.shift);
            if bits > 0 {
                let (start, shift) = (below.len(), window.shift - bits);
                below.resize(start + (1 << bits), (1 << shift) - 1);
                shared = usize::MAX;
                return (start as u32) << 8 | shift;
            }
            if shared.saturating_add(count) > each {
                (shared, first) = (0, value);
                below.push(0);
            }
            shared += count;
            let differ = u64::MAX.checked_shr((first ^ value).leading_zeros()).unwrap_or(0);
            let last = below.len() - 1;
            below[last] = window.below() | differ << window.shift;
            (last as u32) << 8 | (u64::BITS - 1)
        };
        let entries: Vec<_> = (0..).zip(counts).map(entry).collect();
        (below.len() <= 1 << BITS_MAX).then_some(Self { window, entries, below })
    }

    /// Returns a function that maps a key to its bucket.
    #[inline(always)]
    fn bucket(&self) -> impl Fn(u64) -> usize + Copy + Sync {
        let (entries, window, below) = (&*self.entries, self.window, self.window.below());
        move |key| {
            let entry = entries[window.value(key)];
            // The low byte of an entry is a shift below 64, so `entry % u64::BITS` is this shift.
            (entry >> 8) as usize + ((key & below) >> (entry % u64::BITS)) as usize
        }
    }
}

impl Bucketing {
    fn len(&self) -> usize {
        match self {
            Self::Digit(digit) => 1 << digit.bits,
            Self::Table(table) => table.below.len(),
        }
    }

    /// Returns a mask of the bits in which keys of the same bucket may differ.
    pub fn below(&self, bucket: usize) -> u64 {
        match self {
            Self::Digit(digit) => digit.below(),
            Self::Table(table) => table.below[bucket],
        }
    }
}

impl<const IS_FLOAT: bool> Sorting<'_, IS_FLOAT> {
    /// Chooses buckets for keys that differ in the bits `differ`. All rows together have `bytes` bytes.
    pub(super) fn buckets<K: KeyBits>(self, keys: &[K], differ: u64, bytes: usize) -> Bucketing {
        let (window, buckets) = (BitWindow::of(differ), (bytes / (CACHED_BYTES / 4)).max(1));
        let digit = window.highest(buckets.ilog2().clamp(BITS_MIN, BITS_MAX));
        if digit.bits == window.bits {
            // Each bucket has equal keys. A table might put all keys into one bucket, again and again.
            return Bucketing::Digit(digit);
        }
        let most = SAMPLED << digit.bits;
        // Sample one key at a random position in each part, because keys may be periodic.
        let parts = keys.chunks(keys.len().div_ceil(most)).zip(0_u64..);
        let any = |(part, number): (&[K], u64)| {
            let place = number.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(32) as usize % part.len();
            self.key(part[place])
        };
        let mut samples: Vec<u64> = parts.map(any).collect();
        samples.sort_unstable();
        let each = samples.len() >> digit.bits;
        // Leave out frequent keys, because no division into buckets separates equal keys.
        let all = samples.len();
        let runs = samples.chunk_by(|one, two| one == two).filter(|run| run.len() <= each / 2);
        let samples = runs.collect::<Vec<_>>().concat();
        let of_digit = samples.chunk_by(|one, two| digit.value(*one) == digit.value(*two));
        // Count the sampled keys in buckets that do not fit into the caches.
        let too_many: usize =
            of_digit.map(<[u64]>::len).filter(|count| count * bytes > all * CACHED_BYTES).sum();
        if too_many * 20 < all {
            return Bucketing::Digit(digit);
        }
        BucketTable::new(&samples, each, window).map_or(Bucketing::Digit(digit), Bucketing::Table)
    }

    /// Returns a function that maps a key to its bucket. Its type depends only on the key type.
    fn of_digit<K: KeyBits>(self, digit: BitWindow) -> impl Fn(&K) -> usize + Copy + Sync {
        move |key| digit.value(self.key(*key))
    }

    /// Returns a function that maps a key to its bucket by a table, like `of_digit`.
    fn of_table<K: KeyBits>(self, table: &BucketTable) -> impl Fn(&K) -> usize + Copy + Sync {
        let bucket = table.bucket();
        move |key| bucket(self.key(*key))
    }

    /// Moves columns to rows in the order of buckets. Returns the end of each bucket.
    pub(super) fn deal<K: KeyBits, V: Pod + Send + Sync>(
        self,
        columns: &Columns<'_, K, V>,
        rows: &mut [KeyRow<K, V>],
        buckets: &Bucketing,
        threads: usize,
    ) -> Vec<usize> {
        match buckets {
            Bucketing::Digit(digit) => {
                let bucket = self.of_digit(*digit);
                deal_by::<{ count::TURNS }, _, _>(columns, rows, buckets.len(), bucket, threads)
            }
            Bucketing::Table(table) => {
                let bucket = self.of_table(table);
                // Use fewer count tables, because the table of buckets also occupies the L1 cache.
                deal_by::<2, _, _>(columns, rows, buckets.len(), bucket, threads)
            }
        }
    }
}

fn deal_by<const TURNS: usize, K: KeyBits, V: Pod + Send + Sync>(
    columns: &Columns<'_, K, V>,
    rows: &mut [KeyRow<K, V>],
    values: usize,
    bucket: impl Fn(&K) -> usize + Copy + Sync,
    threads: usize,
) -> Vec<usize> {
    let (keys, all_values) = (columns.keys.as_slice(), columns.values.as_slice());
    let passes_caches = nontemporal_copy::is_worth_it(size_of_val(rows));
    let part = columns.len().div_ceil(threads);
    let parts: Vec<_> = keys.chunks(part).zip(all_values.chunks(part)).collect();
    let counts: Vec<Mutex<Vec<usize>>> = parts.iter().map(|_| Mutex::new(Vec::new())).collect();
    scoped_threads::each(threads, parts.len(), |number| {
        let mut found = vec![0; values];
        count::in_turns::<TURNS, _>(parts[number].0, bucket, &mut found);
        *counts[number].lock() = found;
    });
    let counts: Vec<Vec<usize>> = counts.into_iter().map(Mutex::into_inner).collect();
    // Compute the slices of each bucket to which each part copies its rows. Within a bucket, the slices are
    // in the order of the parts.
    let mut places: Vec<Vec<&mut [KeyRow<K, V>]>> =
        parts.iter().map(|_| Vec::with_capacity(values)).collect();
    let (mut ends, mut end, mut rest) = (Vec::with_capacity(values), 0, rows);
    for value in 0..values {
        for (counts, places) in counts.iter().zip(&mut places) {
            let (own, others) = rest.split_at_mut(counts[value]);
            places.push(own);
            rest = others;
            end += counts[value];
        }
        ends.push(end);
    }
    let places: Vec<_> = places.into_iter().map(Mutex::new).collect();
    scoped_threads::each(threads, parts.len(), |number| {
        let (keys, values) = parts[number];
        deal_part(keys, values, &mut places[number].lock(), bucket, passes_caches);
    });
    ends
}

#[inline(never)]
fn deal_part<K: KeyBits, V: Pod>(
    keys: &[K],
    values: &[V],
    places: &mut [&mut [KeyRow<K, V>]],
    bucket: impl Fn(&K) -> usize,
    passes_caches: bool,
) {
    let size = size_of::<KeyRow<K, V>>();
    let line = if size < LINE / 4 { LINE / size } else { 4 };
    let mut memory = vec![BufferLine::zeroed(); (places.len() * line * size).div_ceil(LINE)];
    let memory = &mut bytemuck::cast_slice_mut::<_, u8>(&mut memory)[..places.len() * line * size];
    let buffer: &mut [KeyRow<K, V>] = bytemuck::cast_slice_mut(memory);
    // Copy rows up to the first cache line boundary of a bucket singly, so that all further copies are whole
    // lines.
    let mut skipped = [0_u8; 1 << BITS_MAX];
    if LINE.is_multiple_of(size) {
        for (skipped, place) in skipped.iter_mut().zip(&*places) {
            *skipped = (place.as_ptr().addr() % LINE / size) as u8;
        }
    }
    let mut filled = skipped;
    let mut lines = nontemporal_copy::LineCopies::default();
    for (key, value) in keys.iter().zip(values) {
        let at = bucket(key) % (1 << BITS_MAX);
        let fill = usize::from(filled[at]);
        buffer[at * line + fill] = KeyRow::new(*key, *value);
        if fill + 1 < line {
            filled[at] = fill as u8 + 1;
        } else {
            filled[at] = 0;
            let skip = usize::from(std::mem::take(&mut skipped[at]));
            let from = &buffer[at * line + skip..][..line - skip];
            let (own, others) = std::mem::take(&mut places[at]).split_at_mut(from.len());
            if passes_caches {
                lines.copy(bytemuck::cast_slice(from), bytemuck::cast_slice_mut(own));
            } else {
                own.copy_from_slice(from);
                if let Some(next) = others.get(line - 1) {
                    prefetch_write(next);
                }
            }
            places[at] = others;
        }
    }
    drop(lines);
    for (at, place) in places.iter_mut().enumerate() {
        place.copy_from_slice(&buffer[at * line..][usize::from(skipped[at])..usize::from(filled[at])]);
    }
}
