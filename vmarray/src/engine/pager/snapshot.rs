//! Snapshots: save the contents of all pages at one instant, while threads write.
//!
//! 1. The snapshot *marks* all pages. From then on no thread takes a marked page to change it.
//! 2. It waits for threads that hold pages, for lock-free writers (by one barrier), and for scatters (writes
//!    by index) that checked the marks before. Then the *instant* has come: the snapshot contains all earlier
//!    changes and no later one.
//! 3. Each page is saved once, before it changes: by a thread of the snapshot, or by a thread that wants to
//!    change the page. This thread then removes the mark.
//!
//! The protocol is in [`snapshot_marks`](crate::engine::page::SnapshotMarks).

use std::ops::Range;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use super::Pager;
use crate::base::error::{Error, Result};
use crate::base::progress::WorkHold;
use crate::engine::guards;
use crate::engine::page::state::{EXCLUSIVE, IN_FLIGHT};
use crate::engine::page::{
    DeferredWakes, Entry, LockScope, MarkedPages, SnapshotMarks, State, park, unmark, unpark,
};

/// Writes pages of a snapshot to its destination, such as a file.
pub(crate) trait PageSaver: Send + Sync {
    /// Saves the contents of a page; no thread changes them meanwhile.
    fn save(&self, pager: &Pager, page: u64) -> Result<()>;
}

/// The saver of a snapshot, and its first error.
pub(crate) struct Saver {
    saver: Box<dyn PageSaver>,
    failure: Mutex<Option<Error>>,
}

impl std::fmt::Debug for Saver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Saver").field("failure", &self.failure).finish_non_exhaustive()
    }
}

/// A page that a thread is saving. If a panic drops it, the snapshot fails, as it would lack the page.
struct UnsavedPage<'a>(&'a Saver);

impl Drop for UnsavedPage<'_> {
    fn drop(&mut self) {
        let error = backend_api::Error::new(backend_api::ErrorKind::System, "save");
        let error = error.with_detail("a writing thread panicked while it saved a page for the snapshot");
        self.0.failure.lock().get_or_insert_with(|| error.into());
    }
}

type Marks = SnapshotMarks<Saver>;

/// A snapshot in progress. Until its drop, no thread changes a page that is not saved.
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
    /// Begins a snapshot of the moment at which this call returns. First waits for threads that change pages.
    ///
    /// # Errors
    /// [`WouldDeadlock`](crate::ErrorKind::WouldDeadlock) for a thread that holds guards. Also for a thread
    /// that runs the program's function for another snapshot, if it would have to wait for that snapshot, or
    /// for a thread that may wait for it.
    pub(crate) fn snapshot(&self) -> Result<Snapshot<'_>> {
        self.expect_no_guards()?;
        let begun = self.snapshots.begin(self.identity.may_wait_for_snapshot());
        let (marks, making) = begun.ok_or_else(|| self.would_deadlock())?;
        let mut snapshot = Snapshot { pager: self, marks, pages: 0, len: 0, making: Some(making) };
        let (pages, fixed) = snapshot.marks.mark_all(self);
        snapshot.pages = pages;
        // To add an element, a thread holds the element's page, or reserves memory. Both are impossible while
        // all pages are marked and this thread holds the lock, so the length is fixed.
        snapshot.len = self.table.lengths().len();
        drop(fixed);
        Ok(snapshot)
    }

    /// Waits until a page with a snapshot's mark may change. Saves the page, unless another thread does. The
    /// caller holds no page, but possibly guards of the program.
    pub(super) fn await_saved(&self, page: u64) {
        let Some(marks) = self.snapshots.await_instant(self, page, guards::held()) else { return };
        self.channel(page).counters.waits.add(1);
        if !self.save_if_free(&marks, page) {
            marks.await_unmarked(self, page);
        }
    }

    /// Requests an early save of a page for a task, because tasks do not save pages. Returns the snapshot for
    /// which the task must wait; `None` if the task checks again at once.
    pub(crate) fn want_saved(&self, page: u64) -> Option<Arc<Marks>> {
        let marks = self.snapshots.current()?;
        if guards::held() && marks.pass(self, page) {
            return None;
        }
        // Save the page here if possible: the snapshot may wait for the function that polls this task.
        if self.identity.is_inside_snapshot() && self.save_if_free(&marks, page) {
            return None;
        }
        marks.want(page);
        Some(marks)
    }

    /// Saves a page and removes its mark; returns false if another thread saves it. Removes the mark also
    /// after a failure, because the snapshot then fails.
    fn save_if_free(&self, marks: &Marks, page: u64) -> bool {
        // The scope defers wakers, which devices may call, until all locks are released.
        let _scope = LockScope::begin();
        marks.save_if_free(self, page, |saver| {
            let unsaved = UnsavedPage(saver);
            let saved = saver.saver.save(self, page);
            std::mem::forget(unsaved);
            if let Err(error) = saved {
                saver.failure.lock().get_or_insert(error);
            }
        })
    }
}

impl Snapshot<'_> {
    /// Returns the number of elements at the instant of the snapshot.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Makes every thread that wants to change a page save the page first, by `saver`.
    pub(crate) fn save_by(&self, saver: Box<dyn PageSaver>) {
        self.marks.save_by(Saver { saver, failure: Mutex::default() }, self.pages);
    }

    /// Returns the record that the snapshot is running, for program functions that are called meanwhile.
    pub(crate) fn hold(&self) -> WorkHold {
        WorkHold::Snapshot { array: self.pager.identity.number() }
    }

    /// Saves pages for which tasks wait. Then takes the pages of a range that no thread has taken, and
    /// returns them as ranges.
    ///
    /// # Errors
    /// The error of another thread that saved a page.
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

    /// Ends the snapshot, after all pages are taken: waits for threads that are saving pages.
    ///
    /// # Errors
    /// The error of another thread that saved a page.
    pub(crate) fn finish(self) -> Result<()> {
        // The snapshot's own threads have saved their pages without an error. So this error is from a thread
        // that saved a page before it changed the page.
        let saver = self.marks.stop_saving();
        saver.and_then(|saver| saver.failure.into_inner()).map_or(Ok(()), Err)
    }
}

/// Pages that the calling thread has taken for saving. The drop removes their marks, also after an error,
/// because the snapshot may wait for a thread that waits for these pages.
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
        // Call wakers of tasks after this function: a woken task may begin the next snapshot.
        let _deferral = DeferredWakes::begin();
        // Visit all pages that may be marked, even after a panic of a device.
        self.pager.snapshots.end(&self.marks, self.pager, self.pager.table.len());
        self.making = None;
    }
}
