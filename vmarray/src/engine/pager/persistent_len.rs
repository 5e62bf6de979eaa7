//! The length of a persistent array, stored in the array's files next to its pages.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::base::error::Result;
use crate::engine::page::LockScope;

/// A file's record of the length: the number of the attempt to store it, the length, and the least length
/// since the last attempt that succeeded in all files.
pub(crate) type LengthRecord = [u64; 3];

/// The length of an array, which one or several files store atomically with their pages.
pub(crate) struct PersistentLen {
    /// The state of attempts to store the length; locked during an attempt.
    state: Mutex<Attempts>,
    /// Makes all files store this record together with their pages in later commits.
    write_down: Box<dyn Fn(LengthRecord) -> Result<()> + Send + Sync>,
    /// Makes all files store all bytes that they have received.
    store: Box<dyn Fn() -> Result<()> + Send + Sync>,
    /// Allows files to reuse the space of pages.
    give_back: Box<dyn Fn(Range<u64>) + Send + Sync>,
    /// True after elements could not be stored, so that the stored length must not grow.
    is_broken: AtomicBool,
}

#[derive(Debug)]
struct Attempts {
    /// Number of the last attempt; `noted` is the length that it stored.
    attempt: u64,
    noted: u64,
    /// Greatest length all of whose elements are on the devices.
    reached: u64,
}

impl PersistentLen {
    /// Recovers the length from the records of all files. A new file has the record
    /// [`new_note`](Self::new_note).
    pub(crate) fn found(
        notes: &[LengthRecord],
        write_down: impl Fn(LengthRecord) -> Result<()> + Send + Sync + 'static,
        store: impl Fn() -> Result<()> + Send + Sync + 'static,
        give_back: impl Fn(Range<u64>) + Send + Sync + 'static,
    ) -> (Self, u64) {
        let (len, is_common) = Self::common(notes);
        // If the files' notes (numbers in each commit) differ, `u64::MAX` makes the next attempt rewrite all.
        let noted = if is_common { len } else { u64::MAX };
        let attempt = notes.iter().map(|[attempt, ..]| *attempt).max().unwrap_or_default();
        let state = Attempts { attempt, noted, reached: len };
        let (state, is_broken) = (Mutex::new(state), AtomicBool::new(false));
        let (write_down, store, give_back) = (Box::new(write_down), Box::new(store), Box::new(give_back));
        (Self { state, write_down, store, give_back, is_broken }, len)
    }

    /// Returns the length from the records of all files, and true if all records are equal. Files of version
    /// 2 store the record one after another. After a loss of power the length is the least one that all files
    /// have pages of, and that no truncation has reduced since.
    fn common(notes: &[LengthRecord]) -> (u64, bool) {
        let newest = notes.iter().copied().max().unwrap_or_default();
        if notes.iter().all(|note| *note == newest) {
            return (newest[1], true);
        }
        let shortest = notes.iter().map(|[_, len, _]| *len).min().unwrap_or_default();
        (shortest.min(newest[2]), false)
    }

    /// Returns the first record of a new file with this length.
    pub(crate) fn new_note(len: u64) -> LengthRecord {
        [0, len, len]
    }

    /// Makes all files store the bytes that they have received and a length: `len`, or a greater one from
    /// another thread. All elements below `len` must be on the devices.
    pub(crate) fn store(&self, len: Option<u64>) -> Result<()> {
        // Declared first, so that Rust ends the scope after the lock is released: devices may wake tasks,
        // which must run without the lock.
        let _scope = LockScope::begin();
        let state = &mut *self.state.lock();
        if let Some(len) = len
            && !self.is_broken.load(Ordering::Acquire)
        {
            state.reached = state.reached.max(len);
        }
        if state.reached != state.noted {
            state.attempt += 1;
            state.noted = state.reached;
            (self.write_down)([state.attempt, state.noted, state.noted])?;
        }
        (self.store)()
    }

    /// Records that the array may have been truncated to this length.
    pub(crate) fn shorten(&self, len: u64) {
        let state = &mut *self.state.lock();
        state.reached = state.reached.min(len);
    }

    /// Allows files to reuse the space of pages after the [shortened](Self::shorten) length.
    pub(crate) fn give_back(&self, pages: Range<u64>) {
        (self.give_back)(pages);
    }

    /// Permanently stops the growth of the stored length.
    pub(crate) fn give_up(&self) {
        self.is_broken.store(true, Ordering::Release);
    }
}

impl fmt::Debug for PersistentLen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PersistentLen").field("state", &self.state).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// Notes of files of version 2, of which the power failed during an attempt.
    #[test]
    fn files_agree_on_a_length_that_all_have() {
        for (notes, expected) in [
            (&[[0, 10, 10]; 3][..], (10, true)),
            (&[[3, 20, 10], [2, 10, 10]], (10, false)),
            (&[[2, 30, 30], [3, 40, 5]], (5, false)),
            (&[[4, 7, 7], [3, 9, 7], [4, 7, 7]], (7, false)),
            (&[], (0, true)),
        ] {
            assert_eq!(PersistentLen::common(notes), expected, "{notes:?}");
        }
    }

    #[test]
    fn a_broken_array_does_not_grow() {
        let last = Arc::new(Mutex::new([0; 3]));
        let noted = Arc::clone(&last);
        let write_down = move |note| {
            *noted.lock() = note;
            Ok(())
        };
        let (kept, len) = PersistentLen::found(&[[1, 5, 5], [2, 5, 5]], write_down, || Ok(()), drop);
        assert_eq!(len, 5);
        kept.store(None).unwrap();
        assert_eq!(*last.lock(), [3, 5, 5], "of all files");
        kept.give_up();
        kept.store(Some(9)).unwrap();
        assert_eq!(*last.lock(), [3, 5, 5]);
        kept.shorten(3);
        kept.store(None).unwrap();
        assert_eq!(*last.lock(), [4, 3, 3]);
    }
}
