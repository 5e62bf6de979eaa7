//! A pool of large vectors for intermediate results. A later call reuses their memory, because the system
//! takes long to find and zero new pages.
//!
//! Without the pool, a join or a sort spends a quarter of its time in such page faults. The pool marks unused
//! memory as free (`MADV_FREE`), so Linux reclaims it only if memory is short. Other systems lack such a
//! call, so the pool is not used there.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::LazyLock;

use bytemuck::Pod;
use parking_lot::Mutex;
use vmarray_support::backends::ram::SystemMemory;

use super::memory::{free_until_written, zeroed_vec_large};
use crate::base::error::{ErrorKind, Result};

/// The least size of a pooled vector, because allocators cache shorter memory themselves.
const BYTES_MIN: usize = 4 << 20;
/// The greatest size of the pool: an eighth of the RAM that the process may use.
static BYTES_MAX: LazyLock<usize> = LazyLock::new(|| {
    SystemMemory::of_linux().map_or(0, |memory| usize::try_from(memory.total_bytes / 8).unwrap_or(usize::MAX))
});

static KEPT: Mutex<KeptVectors> = Mutex::new(KeptVectors { vectors: Vec::new(), bytes: 0 });

/// Unused vectors, in the order in which they were returned.
struct KeptVectors {
    vectors: Vec<Vec<u64>>,
    bytes: usize,
}

impl KeptVectors {
    /// Takes the shortest vector of at least `len` numbers, unless it is much longer.
    fn take(&mut self, len: usize) -> Option<Vec<u64>> {
        let fits = |vector: &Vec<u64>| (len..=len.saturating_add(len / 2)).contains(&vector.capacity());
        let fitting = self.vectors.iter().enumerate().filter(|(_, vector)| fits(vector));
        let (at, _) = fitting.min_by_key(|(_, vector)| vector.capacity())?;
        let vector = self.vectors.remove(at);
        self.bytes -= bytes_of(&vector);
        Some(vector)
    }

    /// Adds a vector. Returns the oldest vectors beyond the limit, which the caller frees without a lock.
    fn keep(&mut self, vector: Vec<u64>, bytes_max: usize) -> Vec<Vec<u64>> {
        self.bytes += bytes_of(&vector);
        self.vectors.push(vector);
        let mut gone = 0;
        while self.bytes > bytes_max {
            self.bytes -= bytes_of(&self.vectors[gone]);
            gone += 1;
        }
        self.vectors.drain(..gone).collect()
    }
}

fn bytes_of(vector: &Vec<u64>) -> usize {
    vector.capacity() * size_of::<u64>()
}

/// Returns a vector of `len` unspecified numbers, to be overwritten, with up to 1.5 times the capacity.
pub(crate) fn unspecified_vec(len: usize) -> Result<Vec<u64>> {
    taken(len).map_or_else(|| zeroed_vec_large(len), Ok)
}

/// Takes a vector of this length from the pool.
fn taken(len: usize) -> Option<Vec<u64>> {
    /// Number of `u64` in the system's smallest page.
    const PAGE: usize = 4096 / size_of::<u64>();
    if len.saturating_mul(size_of::<u64>()) < BYTES_MIN {
        return None;
    }
    let mut vector = KEPT.lock().take(len)?;
    vector.resize(len, 0);
    // The pool has marked this memory as free (`MADV_FREE`). The system may replace a page by zeroes until
    // the first write to the page, so write to each page.
    vector.iter_mut().step_by(PAGE).for_each(|number| *number = 0);
    vector.last_mut().into_iter().for_each(|number| *number = 0);
    Some(vector)
}

/// Returns the memory of a vector to the pool, if it is long enough.
pub(crate) fn keep(mut vector: Vec<u64>) {
    if bytes_of(&vector) < BYTES_MIN || bytes_of(&vector) > *BYTES_MAX {
        return;
    }
    // `taken` writes to each page before the next user reads from it.
    if free_until_written(&mut vector) {
        let gone = KEPT.lock().keep(vector, *BYTES_MAX);
        drop(gone);
    }
}

/// A vector in pooled memory, which its drop returns to the pool.
pub(crate) struct ScratchVec<T> {
    words: Vec<u64>,
    len: usize,
    of: PhantomData<T>,
}

impl<T> Default for ScratchVec<T> {
    fn default() -> Self {
        Self { words: Vec::new(), len: 0, of: PhantomData }
    }
}

impl<T> fmt::Debug for ScratchVec<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScratchVec").field("len", &self.len).finish_non_exhaustive()
    }
}

impl<T: Pod> ScratchVec<T> {
    /// Returns `len` unspecified elements, which the caller overwrites.
    pub(crate) fn unspecified(len: usize) -> Result<Self> {
        const { assert!(align_of::<T>() <= align_of::<u64>()) };
        let bytes = len.saturating_mul(size_of::<T>());
        if bytes > isize::MAX as usize {
            return Err(ErrorKind::NoMemory { bytes }.into());
        }
        let words = unspecified_vec(bytes.div_ceil(size_of::<u64>()))?;
        Ok(Self { words, len, of: PhantomData })
    }

    pub(crate) fn zeroed(len: usize) -> Result<Self> {
        let bytes = len.saturating_mul(size_of::<T>());
        match taken(bytes.div_ceil(size_of::<u64>())) {
            Some(mut words) => {
                words.fill(0);
                Ok(Self { words, len, of: PhantomData })
            }
            // The pool has no suitable vector, so `unspecified` allocates new memory, which is zeroed.
            None => Self::unspecified(len),
        }
    }
}

impl<T: Pod> Deref for ScratchVec<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        bytemuck::cast_slice(&bytemuck::cast_slice::<u64, u8>(&self.words)[..self.len * size_of::<T>()])
    }
}

impl<T: Pod> DerefMut for ScratchVec<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [T] {
        let bytes = bytemuck::cast_slice_mut::<u64, u8>(&mut self.words);
        bytemuck::cast_slice_mut(&mut bytes[..self.len * size_of::<T>()])
    }
}

impl<T> Drop for ScratchVec<T> {
    fn drop(&mut self) {
        keep(std::mem::take(&mut self.words));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_that_is_long_enough_is_taken_and_the_oldest_go() {
        let mut kept = KeptVectors { vectors: Vec::new(), bytes: 0 };
        for len in [100, 300, 200] {
            assert!(kept.keep(vec![len as u64; len], 4800).is_empty());
        }
        assert_eq!(kept.take(400), None);
        assert_eq!(kept.take(60), None, "it would waste more than half of it");
        assert_eq!(kept.take(150).unwrap(), vec![200; 200]);
        let gone = kept.keep(vec![9; 210], 2000);
        assert_eq!(gone, [vec![100; 100], vec![300; 300]]);
        assert_eq!((kept.bytes, kept.vectors.len()), (1680, 1));
    }

    #[test]
    fn elements_are_in_memory_of_any_contents_or_zeroed() {
        const LEN: usize = 700_001;
        for round in 0..4 {
            let mut some = ScratchVec::<[u8; 12]>::unspecified(LEN).unwrap();
            assert_eq!(some.len(), LEN);
            some.fill([round; 12]);
            assert!(some.iter().all(|element| *element == [round; 12]));
            let zeroed = ScratchVec::<[u32; 3]>::zeroed(LEN).unwrap();
            assert!(zeroed.len() == LEN && zeroed.iter().all(|element| *element == [0; 3]));
        }
        assert!(
            ScratchVec::<u64>::unspecified(usize::MAX).is_err()
                && ScratchVec::<u64>::zeroed(1 << 60).is_err()
        );
        assert!(ScratchVec::<u16>::unspecified(0).unwrap().is_empty());
    }
}
