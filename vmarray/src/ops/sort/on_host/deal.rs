//! Rows dealt out by a digit, by several threads.

use bytemuck::{Pod, Zeroable};
use parking_lot::Mutex;

use super::rows::{Columns, KeyRow};
use super::survey::BitWindow;
use super::{CACHED_BYTES, Sorting, count};
use crate::base::memory::prefetch_write;
use crate::base::scoped_threads;
use crate::ops::sort::KeyBits;

/// Bits of a digit. Each of its values has a line of a buffer, which are to be in the caches of a core.
const BITS_MAX: u32 = count::SMALL_BITS;
/// What spreads rows well enough over threads.
const BITS_MIN: u32 = 8;
/// Bytes of rows that are moved at once.
const LINE: usize = 64;

/// The digit by which so many bytes of rows become such as are sorted in the caches.
pub(super) fn digit(window: BitWindow, bytes: usize) -> BitWindow {
    let buckets = (bytes / (CACHED_BYTES / 4)).max(1);
    window.highest(buckets.ilog2().clamp(BITS_MIN, BITS_MAX))
}

impl<const IS_FLOAT: bool> Sorting<'_, IS_FLOAT> {
    /// Moves columns to rows, in the order of a digit. Returns where those of each value end.
    pub(super) fn deal<K: KeyBits, V: Pod + Send + Sync>(
        self,
        columns: &Columns<'_, K, V>,
        rows: &mut [KeyRow<K, V>],
        digit: BitWindow,
        threads: usize,
    ) -> Vec<usize> {
        let values = 1 << digit.bits;
        let part = columns.len().div_ceil(threads);
        let (keys, all_values) = (columns.keys.as_slice(), columns.values.as_slice());
        let parts: Vec<_> = keys.chunks(part).zip(all_values.chunks(part)).collect();
        let counts: Vec<Mutex<Vec<usize>>> = parts.iter().map(|_| Mutex::new(Vec::new())).collect();
        scoped_threads::each(threads, parts.len(), |number| {
            let mut found = vec![0; values];
            count::in_turns(parts[number].0, digit, move |key| self.key(*key), &mut found);
            *counts[number].lock() = found;
        });
        let counts: Vec<Vec<usize>> = counts.into_iter().map(Mutex::into_inner).collect();
        // Where each part's rows go: those of a digit of one part behind those of the part before.
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
            self.deal_part(keys, values, &mut places[number].lock(), digit);
        });
        ends
    }

    #[inline(never)]
    fn deal_part<K: KeyBits, V: Pod>(
        self,
        keys: &[K],
        values: &[V],
        places: &mut [&mut [KeyRow<K, V>]],
        digit: BitWindow,
    ) {
        let line =
            const { if size_of::<KeyRow<K, V>>() < LINE / 4 { LINE / size_of::<KeyRow<K, V>>() } else { 4 } };
        let mut buffer = vec![KeyRow::<K, V>::zeroed(); places.len() * line];
        let mut filled = [0_u8; 1 << BITS_MAX];
        for (key, value) in keys.iter().zip(values) {
            let at = digit.value(self.key(*key)) % (1 << BITS_MAX);
            let fill = usize::from(filled[at]);
            buffer[at * line + fill] = KeyRow::new(*key, *value);
            if fill + 1 < line {
                filled[at] = fill as u8 + 1;
            } else {
                filled[at] = 0;
                let (own, others) = std::mem::take(&mut places[at]).split_at_mut(line);
                own.copy_from_slice(&buffer[at * line..][..line]);
                if let Some(next) = others.get(line - 1) {
                    prefetch_write(next);
                }
                places[at] = others;
            }
        }
        for ((place, lines), fill) in places.iter_mut().zip(buffer.chunks(line)).zip(filled) {
            place.copy_from_slice(&lines[..fill.into()]);
        }
    }
}
