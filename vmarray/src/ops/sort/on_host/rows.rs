//! Keys and values of a sort in RAM: columns (separate slices) of the caller, packed rows in the sort.

use bytemuck::{Pod, Zeroable};
use parking_lot::Mutex;

use super::sorting::Sorting;
use crate::base::racy_slice::HomeSlice;
use crate::base::scoped_threads;
use crate::ops::sort::keys::KeyBits;

/// A key and its value, which may have no bytes. The struct is packed, because rows must have no padding.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, packed)]
pub(super) struct KeyRow<K, V> {
    key: K,
    value: V,
}

impl<K: KeyBits, V: Pod> KeyRow<K, V> {
    /// True if rows have no value. The compiler then omits the code for values, because this is a constant.
    pub const IS_KEY: bool = size_of::<V>() == 0;

    #[inline(always)]
    pub fn new(key: K, value: V) -> Self {
        Self { key, value }
    }

    #[inline(always)]
    pub fn key<const IS_FLOAT: bool>(self, sorting: Sorting<'_, IS_FLOAT>) -> u64 {
        sorting.key(self.key)
    }

    #[inline(always)]
    pub fn compared<const IS_FLOAT: bool>(self, sorting: Sorting<'_, IS_FLOAT>) -> K {
        sorting.compared(self.key)
    }
}

/// Keys and their values, in separate slices.
pub(super) struct Columns<'a, K, V> {
    pub keys: HomeSlice<'a, K>,
    pub values: HomeSlice<'a, V>,
}

impl<'a, K: KeyBits, V: Pod + Send + Sync> Columns<'a, K, V> {
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    pub fn reborrow(&mut self) -> Columns<'_, K, V> {
        Columns { keys: self.keys.reborrow(), values: self.values.reborrow() }
    }

    pub fn split_at(self, at: usize) -> (Self, Self) {
        let (keys, other_keys) = self.keys.split_at(at);
        let (values, other_values) = self.values.split_at(at);
        (Self { keys, values }, Self { keys: other_keys, values: other_values })
    }

    pub fn reverse(&mut self, threads: usize) {
        self.keys.reverse(threads);
        if !KeyRow::<K, V>::IS_KEY {
            self.values.reverse(threads);
        }
    }

    /// Copies the keys and values of all columns to rows.
    pub fn load(&self, rows: &mut [KeyRow<K, V>]) {
        for ((row, key), value) in rows.iter_mut().zip(self.keys.as_slice()).zip(self.values.as_slice()) {
            *row = KeyRow::new(*key, *value);
        }
    }

    /// Copies the keys and values of all rows back to the columns, with at most `threads` threads.
    pub fn store(&mut self, rows: &[KeyRow<K, V>], threads: usize) {
        /// Number of rows that a thread copies at a time.
        const AT_ONCE: usize = 64 << 10;
        let parts =
            self.keys.chunks_mut(AT_ONCE).zip(self.values.chunks_mut(AT_ONCE)).zip(rows.chunks(AT_ONCE));
        let threads = threads.min(parts.len());
        let parts = Mutex::new(parts);
        scoped_threads::together(threads, || {
            loop {
                let Some(((mut keys, mut values), rows)) = parts.lock().next() else { break };
                if KeyRow::<K, V>::IS_KEY {
                    keys.write_bytes(bytemuck::cast_slice(rows));
                } else {
                    keys.write(rows, |row| row.key);
                    values.write(rows, |row| row.value);
                }
            }
        });
    }
}
