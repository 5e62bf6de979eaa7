//! The contents of all pages as of one instant, while threads go on to change them: a page is saved before it
//! is changed.
//!
//! A snapshot begins by *marking* all pages, from when on no thread takes one of them to change it, and waits
//! for threads that have pages, for writers without a lock, by one barrier, and for scatters that have looked
//! at pages. After these there is a moment between the last change that the snapshot has and the first one
//! that it has not: that is its instant. From then on each page is saved once, by the thread that *takes* it:
//! one of the snapshot's, in order, or one that wants to change it. Only then is its mark taken away. The
//! protocol is in [`snapshot_marks`](crate::engine::page::SnapshotMarks).

use std::ops::Range;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use super::Pager;
use crate::base::error::{Error, Result};
use crate::base::progress::WorkHold;
use crate::engine::guards;
use crate::engine::page::state::{EXCLUSIVE, IN_FLIGHT};
use crate::engine::page::{
    Deferral, Entry, LockScope, MarkedPages, SnapshotMarks, State, park, unmark, unpark,
};

/// Saves pages of a snapshot.
pub(crate) trait PageSaver: Send + Sync {
    /// Saves what a page has, which nobody changes meanwhile.
    fn save(&self, pager: &Pager, page: u64) -> Result<()>;
}

/// How pages of a snapshot are saved, and the first error of that.
pub(crate) struct Saver {
    saver: Box<dyn PageSaver>,
    failure: Mutex<Option<Error>>,
}

impl std::fmt::Debug for Saver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Saver").field("failure", &self.failure).finish_non_exhaustive()
    }
}

type Marks = SnapshotMarks<Saver>;

/// A snapshot that is being made. Until it is dropped, pages that were not saved are not changed.
pub(crate) struct Snapshot<'a> {
    pager: &'a Pager,
    marks: Arc<Marks>,
    pages: u64,
    len: usize,
    making: Option<MutexGuard<'a, ()>>,
}

impl MarkedPages for Pager {
    type FixedCount<'a> = MutexGuard<'a, ()>;

    fn entry(&self, page: u64) -> &Entry {
        self.table.entry(page)
    }

    fn park(&self, page: u64, busy: impl Fn(State) -> bool) {
        park(self.table.entry(page), busy);
    }

    fn unpark(&self, page: u64) {
        unpark(self.table.entry(page));
    }

    fn await_release(&self, page: u64, state: State) {
        if state.any(IN_FLIGHT) {
            self.channel(page).help_while(&self.table, page, None, |_| true);
        } else {
            self.park(page, |state| state.any(EXCLUSIVE) && !state.any(IN_FLIGHT));
        }
    }

    fn note_marks(&self) {
        self.channels.iter().for_each(|channel| channel.queues.note_change());
    }

    fn quiesce_marked(&self, pages: &[&Entry]) {
        if let Some(channel) = self.channels.first() {
            channel.quiesce_unsaved(pages);
        }
    }

    fn fix_count(&self) -> (u64, MutexGuard<'_, ()>) {
        let fixed = self.extending.lock();
        (self.table.len(), fixed)
    }
}

impl Pager {
    /// Begins a snapshot of the moment at which this returns, after waiting for all threads that are changing
    /// pages.
    ///
    /// # Errors
    /// [`WouldDeadlock`](crate::ErrorKind::WouldDeadlock) for a thread that holds guards, and for one that
    /// runs the program's function for another snapshot, if it would have to wait for that one, or for a
    /// thread that may wait for that one.
    pub(crate) fn snapshot(&self) -> Result<Snapshot<'_>> {
        self.expect_no_guards()?;
        let begun = self.snapshots.begin(self.identity.may_wait_for_snapshot());
        let (marks, making) = begun.ok_or_else(|| self.would_deadlock())?;
        let mut snapshot = Snapshot { pager: self, marks, pages: 0, len: 0, making: Some(making) };
        let (pages, fixed) = snapshot.marks.mark_all(self);
        snapshot.pages = pages;
        // A thread that adds an element has its page, or waits for memory: neither is possible now.
        snapshot.len = self.table.lengths().len();
        drop(fixed);
        Ok(snapshot)
    }

    /// Waits until a page may be changed that a snapshot has yet to save: saves it, unless another thread is
    /// about to. The caller holds no page, but maybe guards of the program.
    pub(super) fn await_saved(&self, page: u64) {
        let Some(marks) = self.snapshots.await_instant(self, page, guards::held()) else { return };
        self.channel(page).counters.waits.add(1);
        if !self.save_if_free(&marks, page) {
            marks.await_unmarked(self, page);
        }
    }

    /// As [`await_saved`](Self::await_saved), for a task, which saves nothing: asks for the page to be saved
    /// soon. The snapshot to wait for; `None` if the task looks again at once.
    pub(crate) fn want_saved(&self, page: u64) -> Option<Arc<Marks>> {
        let marks = self.snapshots.current()?;
        if guards::held() && marks.pass(self, page) {
            return None;
        }
        // The snapshot's threads may wait for the function that polls the task.
        if self.identity.is_inside_snapshot() && self.save_if_free(&marks, page) {
            return None;
        }
        marks.want(page);
        Some(marks)
    }

    /// Saves a page and lets it be changed, unless another thread saves it: false then. After a failure it
    /// may be changed, too, since there will be no snapshot.
    fn save_if_free(&self, marks: &Marks, page: u64) -> bool {
        // Devices may wake tasks, which run when nothing is locked.
        let _scope = LockScope::begin();
        marks.save_if_free(self, page, |saver| {
            if let Err(error) = saver.saver.save(self, page) {
                saver.failure.lock().get_or_insert(error);
            }
        })
    }
}

impl Snapshot<'_> {
    /// Number of elements at the instant.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Has pages saved from now on, by all threads that want to change them.
    pub(crate) fn save_by(&self, saver: Box<dyn PageSaver>) {
        self.marks.save_by(Saver { saver, failure: Mutex::default() }, self.pages);
    }

    /// Hold of the snapshot, for the program's function that is called while it is made.
    pub(crate) fn hold(&self) -> WorkHold {
        WorkHold::Snapshot { array: self.pager.identity.number() }
    }

    /// Saves what tasks wait for, then takes those of some pages that no thread has taken, as ranges.
    ///
    /// # Errors
    /// The failure of another thread to save a page.
    pub(crate) fn take(&self, pages: Range<u64>) -> Result<Vec<TakenPages<'_>>> {
        for page in self.marks.take_wanted() {
            self.pager.save_if_free(&self.marks, page);
        }
        let failure = self.marks.with_saver(|saver| saver.failure.lock().clone()).flatten();
        if let Some(failure) = failure {
            return Err(failure);
        }
        let runs = self.marks.take(pages).into_iter();
        Ok(runs.map(|pages| TakenPages { pager: self.pager, pages }).collect())
    }

    /// Ends it when all pages are taken: waits until others have saved what they have taken.
    ///
    /// # Errors
    /// The failure of another thread to save a page.
    pub(crate) fn finish(self) -> Result<()> {
        // Those of others: none of the snapshot's own threads is at work any more.
        let saver = self.marks.stop_saving();
        saver.and_then(|saver| saver.failure.into_inner()).map_or(Ok(()), Err)
    }
}

/// Pages that the calling thread has taken. When it is dropped they may be changed, also after an error: a
/// thread that waits for them may be one that the snapshot waits for.
pub(crate) struct TakenPages<'a> {
    pager: &'a Pager,
    pages: Range<u64>,
}

impl TakenPages<'_> {
    pub(crate) fn pages(&self) -> Range<u64> {
        self.pages.clone()
    }
}

impl Drop for TakenPages<'_> {
    fn drop(&mut self) {
        self.pages.clone().for_each(|page| unmark(self.pager, page));
    }
}

impl Drop for Snapshot<'_> {
    fn drop(&mut self) {
        // Wakers of tasks run when the next snapshot can begin.
        let _deferral = Deferral::begin();
        // All that may be marked, also if a device has panicked.
        self.pager.snapshots.end(&self.marks, self.pager, self.pager.table.len());
        self.making = None;
    }
}
