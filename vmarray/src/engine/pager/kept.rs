//! Durable length of a persistent array, stored beside its pages.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::base::error::Result;
use crate::engine::page::LockScope;

/// Length record of one file: number of the attempt to store it, the length, and the least length since the
/// last attempt that succeeded in all files.
pub(crate) type Note = [u64; 3];

/// Length stored in one or several files. Each file stores it atomically with its pages, one file after
/// another. After a loss of power the files may have notes of different attempts. The length is then the
/// least one that all files have pages of and that no truncation has cut since.
pub(crate) struct StoredLength {
    /// Held during an attempt.
    state: Mutex<Attempts>,
    /// Makes files store this note with their pages from now on.
    write_down: Box<dyn Fn(Note) -> Result<()> + Send + Sync>,
    /// Makes all files store their received bytes.
    store: Box<dyn Fn() -> Result<()> + Send + Sync>,
    /// Lets files reuse the places of pages.
    give_back: Box<dyn Fn(Range<u64>) + Send + Sync>,
    /// True after a final failure to store elements.
    is_broken: AtomicBool,
}

#[derive(Debug)]
struct Attempts {
    /// Number of the last attempt; `noted` is its length.
    attempt: u64,
    noted: u64,
    /// Greatest length with all elements on the devices.
    reached: u64,
    /// The least length since an attempt succeeded.
    least: u64,
    /// Least length in the last note.
    told: u64,
}

impl StoredLength {
    /// Recovers the length from the notes of all files. A new file has the note [`new_note`](Self::new_note).
    pub(crate) fn found(
        notes: &[Note],
        write_down: impl Fn(Note) -> Result<()> + Send + Sync + 'static,
        store: impl Fn() -> Result<()> + Send + Sync + 'static,
        give_back: impl Fn(Range<u64>) + Send + Sync + 'static,
    ) -> (Self, u64) {
        let newest = notes.iter().copied().max().unwrap_or_default();
        let are_same = notes.iter().all(|note| *note == newest);
        let shortest = notes.iter().map(|[_, len, _]| *len).min().unwrap_or_default();
        let [attempt, noted, least] = newest;
        let len = if are_same { noted } else { shortest.min(least) };
        // If attempts stored different notes, the next attempt makes them equal.
        let noted = if are_same { noted } else { u64::MAX };
        let state = Attempts { attempt, noted, reached: len, least: len, told: len };
        let (state, is_broken) = (Mutex::new(state), AtomicBool::new(false));
        let (write_down, store, give_back) = (Box::new(write_down), Box::new(store), Box::new(give_back));
        (Self { state, write_down, store, give_back, is_broken }, len)
    }

    /// First note of a new file with this length.
    pub(crate) fn new_note(len: u64) -> Note {
        [0, len, len]
    }

    /// Makes all files store their received bytes and a length: `len`, or a greater one from another thread.
    /// All elements below `len` must be on the devices.
    pub(crate) fn store(&self, len: Option<u64>) -> Result<()> {
        // Declared first, so that it is dropped last: devices may wake tasks, which then run without the
        // lock.
        let _scope = LockScope::begin();
        let state = &mut *self.state.lock();
        if let Some(len) = len
            && !self.is_broken.load(Ordering::Acquire)
        {
            state.reached = state.reached.max(len);
        }
        if state.reached != state.noted || state.least < state.told {
            state.attempt += 1;
            (state.noted, state.told) = (state.reached, state.least);
            (self.write_down)([state.attempt, state.noted, state.least])?;
        }
        (self.store)()?;
        (state.least, state.told) = (state.noted, state.noted);
        Ok(())
    }

    /// Records a possible truncation to this length.
    pub(crate) fn shorten(&self, len: u64) {
        let state = &mut *self.state.lock();
        state.reached = state.reached.min(len);
        state.least = state.least.min(len);
    }

    /// Lets files reuse the places of pages behind the [shortened](Self::shorten) length.
    pub(crate) fn give_back(&self, pages: Range<u64>) {
        (self.give_back)(pages);
    }

    /// Stops the growth of the stored length for good.
    pub(crate) fn give_up(&self) {
        self.is_broken.store(true, Ordering::Release);
    }
}

impl fmt::Debug for StoredLength {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoredLength").field("state", &self.state).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::base::error::ErrorKind;
    use backend_api::wrap::SplitMix64;

    /// Files that record and store lengths, one after another.
    #[derive(Debug, Default)]
    struct Files {
        /// Per file: the stored note and the recorded one.
        notes: Vec<(Note, Note)>,
        /// Numbers of the elements stored in each file.
        stored: Vec<Vec<u64>>,
        now: Vec<u64>,
        /// Number of file operations before the power, or one file, fails.
        until: usize,
    }

    impl Files {
        fn new(count: usize, len: u64) -> Arc<Mutex<Self>> {
            let notes = vec![(StoredLength::new_note(len), [0; 3]); count];
            let now: Vec<u64> = (0..len).collect();
            Arc::new(Mutex::new(Self { notes, stored: vec![now.clone(); count], now, until: count }))
        }

        fn store(&mut self) -> Result<()> {
            for ((stored, noted), elements) in self.notes.iter_mut().zip(&mut self.stored).take(self.until) {
                *stored = *noted;
                elements.clone_from(&self.now);
            }
            if self.until < self.notes.len() { Err(ErrorKind::Cancelled.into()) } else { Ok(()) }
        }
    }

    fn open(files: &Arc<Mutex<Files>>) -> (StoredLength, u64) {
        files.lock().notes.iter_mut().for_each(|(stored, noted)| *noted = *stored);
        let notes: Vec<Note> = files.lock().notes.iter().map(|(stored, _)| *stored).collect();
        let (one, other) = (Arc::clone(files), Arc::clone(files));
        let write_down = move |note| {
            one.lock().notes.iter_mut().for_each(|(_, noted)| *noted = note);
            Ok(())
        };
        StoredLength::found(&notes, write_down, move || other.lock().store(), drop)
    }

    /// After any part of an attempt, the length is at most the elements in all files, and at least the
    /// durable length unless it was truncated.
    #[test]
    fn files_agree_on_a_length_that_all_have() {
        for seed in 0..2000 {
            let mut random = SplitMix64::new(seed);
            let count = 1 + random.index(3);
            let files = Files::new(count, 10);
            let (mut kept, mut least) = (open(&files).0, 10);
            let mut next = 1000;
            for _ in 0..40 {
                match random.index(6) {
                    0 => {
                        let now = &mut files.lock().now;
                        now.truncate(random.index(now.len() + 1));
                        least = least.min(now.len() as u64);
                        kept.shorten(now.len() as u64);
                    }
                    1..4 => {
                        files.lock().now.extend(next..next + 3);
                        next += 3;
                    }
                    _ => {
                        let len = files.lock().now.len() as u64;
                        files.lock().until = random.index(2 * count);
                        if kept.store(Some(len)).is_ok() {
                            least = len;
                        } else if random.index(2) == 0 {
                            let (opened, len) = open(&files);
                            kept = opened;
                            assert!(len >= least, "seed {seed}: {len} of {least}");
                            let files = &mut *files.lock();
                            let first = files.stored[0].get(..len as usize);
                            let is_same = |file: &Vec<u64>| file.get(..len as usize) == first;
                            assert!(
                                first.is_some() && files.stored.iter().all(is_same),
                                "seed {seed}: {len}"
                            );
                            files.now = first.unwrap_or_default().to_vec();
                            least = len;
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_broken_gets_no_longer() {
        let files = Files::new(1, 5);
        let (kept, _) = open(&files);
        kept.give_up();
        kept.store(Some(9)).unwrap();
        assert_eq!(files.lock().notes[0].0[1], 5);
        kept.shorten(3);
        kept.store(None).unwrap();
        assert_eq!(files.lock().notes[0].0[1], 3);
    }
}
