//! How long something is that outlives the program, written down beside its pages.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::base::error::Result;
use crate::engine::page::LockScope;

/// What is written down of a length in each file: the number of the attempt to store it, the length, and the
/// least one that there was since an attempt succeeded in all files.
pub(crate) type Note = [u64; 3];

/// A length in one file or in several. Each file stores it together with its pages, at one moment; files do so
/// one after the other. So after a loss of power they may have notes of different attempts, and then as much
/// is there as all of them have pages of, and none gave up meanwhile.
pub(crate) struct Kept {
    /// Held while an attempt lasts.
    state: Mutex<State>,
    /// Has files store a note with their pages from now on.
    write_down: Box<dyn Fn(Note) -> Result<()> + Send + Sync>,
    /// Whether something of it could not be stored for good.
    is_broken: AtomicBool,
}

#[derive(Debug)]
struct State {
    /// The attempt that was made last, and what was noted for it.
    attempt: u64,
    noted: u64,
    /// The greatest length whose elements are all on the devices.
    reached: u64,
    /// The least length since an attempt succeeded.
    least: u64,
    /// As small a length is told of by what is noted.
    told: u64,
}

impl Kept {
    /// What the files have whose notes these are, and how long it is; of new ones, a note of
    /// [`new`](Self::new_note).
    pub(crate) fn found(
        notes: &[Note],
        write_down: impl Fn(Note) -> Result<()> + Send + Sync + 'static,
    ) -> (Self, u64) {
        let newest = notes.iter().copied().max().unwrap_or_default();
        let are_same = notes.iter().all(|note| *note == newest);
        let shortest = notes.iter().map(|[_, len, _]| *len).min().unwrap_or_default();
        let [attempt, noted, least] = newest;
        let len = if are_same { noted } else { shortest.min(least) };
        // Of several attempts the next one is to make one.
        let noted = if are_same { noted } else { u64::MAX };
        let state = State { attempt, noted, reached: len, least: len, told: len };
        let is_broken = AtomicBool::new(false);
        (Self { state: Mutex::new(state), write_down: Box::new(write_down), is_broken }, len)
    }

    /// What is noted of something that is new, and so long.
    pub(crate) fn new_note(len: u64) -> Note {
        [0, len, len]
    }

    /// Stores pages by `store`, and with them the length `len`, if elements below that are on the devices:
    /// that, or a greater one that another thread has come with.
    pub(crate) fn store(&self, len: Option<u64>, store: impl FnOnce() -> Result<()>) -> Result<()> {
        // Declared first, dropped last: devices may wake tasks, which run without the lock then.
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
        store()?;
        (state.least, state.told) = (state.noted, state.noted);
        Ok(())
    }

    /// Notes that what comes behind so many was given up, or may be.
    pub(crate) fn shorten(&self, len: u64) {
        let state = &mut *self.state.lock();
        state.reached = state.reached.min(len);
        state.least = state.least.min(len);
    }

    /// No more is stored of what it is about: it gets no longer.
    pub(crate) fn give_up(&self) {
        self.is_broken.store(true, Ordering::Release);
    }
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kept").field("state", &self.state).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::base::error::ErrorKind;
    use backend_api::wrap::SplitMix64;

    /// Files that note and store lengths, one after the other; some fail, or the power does.
    type Files = Arc<Mutex<Vec<(Note, Note)>>>;

    fn open(files: &Files) -> (Kept, u64) {
        let notes: Vec<Note> = files.lock().iter().map(|(stored, _)| *stored).collect();
        files.lock().iter_mut().for_each(|(stored, next)| *next = *stored);
        let own = Arc::clone(files);
        Kept::found(&notes, move |note| {
            own.lock().iter_mut().for_each(|(_, next)| *next = note);
            Ok(())
        })
    }

    /// Whatever of a store of several files was done, no more is there afterwards than all have, and no less
    /// than was stored for good, unless it was given up.
    #[test]
    fn files_agree_on_a_length_that_all_have() {
        for seed in 0..2000 {
            let mut random = SplitMix64::new(seed);
            let count = 1 + random.index(3);
            let files: Files = Arc::new(Mutex::new(vec![(Kept::new_note(10), [0; 3]); count]));
            let (mut kept, mut len) = open(&files);
            // By file, which elements are as they were made last, by number; and those of the moment.
            let mut stored: Vec<Vec<u64>> = vec![(0..len).collect(); count];
            let mut now: Vec<u64> = (0..len).collect();
            let (mut next, mut least) = (1000, len);
            for _ in 0..40 {
                match random.index(6) {
                    0 => {
                        len = random.index(len as usize + 1) as u64;
                        now.truncate(len as usize);
                        least = least.min(len);
                        kept.shorten(len);
                    }
                    1..4 => {
                        now.extend(next..next + 3);
                        (next, len) = (next + 3, len + 3);
                    }
                    _ => {
                        // How many files come to it before the power, or one, fails.
                        let (until, fails) = (random.index(2 * count), random.index(2) == 0);
                        let outcome = kept.store(Some(len), || {
                            let mut files = files.lock();
                            for (file, (stored_note, noted)) in files.iter_mut().enumerate() {
                                if file < until {
                                    *stored_note = *noted;
                                    stored[file].clone_from(&now);
                                }
                            }
                            if until < count { Err(ErrorKind::Cancelled.into()) } else { Ok(()) }
                        });
                        if outcome.is_ok() {
                            least = len;
                        } else if !fails {
                            (kept, len) = open(&files);
                            assert!(len >= least, "seed {seed}: {len} of {least}");
                            let all = |at: &u64| {
                                stored
                                    .iter()
                                    .all(|file| file.get(*at as usize) == stored[0].get(*at as usize))
                            };
                            assert!((0..len).all(|at| all(&at)), "seed {seed}: not all have {len}");
                            now = stored[0][..len as usize].to_vec();
                            least = len;
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_broken_gets_no_longer() {
        let files: Files = Arc::new(Mutex::new(vec![(Kept::new_note(5), [0; 3])]));
        let (kept, _) = open(&files);
        kept.give_up();
        kept.store(Some(9), || Ok(())).unwrap();
        assert_eq!(files.lock()[0].1[1], 5);
        kept.shorten(3);
        kept.store(None, || Ok(())).unwrap();
        assert_eq!(files.lock()[0].1[1], 3);
    }
}
