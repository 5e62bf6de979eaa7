//! Loom tests of snapshots while threads change pages; [`model`](super::model) tests single pages.

use loom::sync::Arc;
use loom::sync::atomic::Ordering;
use loom::thread;

use super::barrier;
use super::entry::{Entry, Holder, Refusal};
use super::hazard::{HazardAccess, drain};
use super::model::ModelPage;
use super::snapshot_marks::{MarkedPages, SnapshotMarks, Snapshots, unmark};
use super::state::{DIRTY, EXCLUSIVE, State, UNSAVED, WAITED};
use super::sync::{Condvar, Mutex};

/// The parking lot of one page, at which threads sleep.
#[derive(Default)]
struct Lot {
    lock: Mutex<()>,
    woken: Condvar,
}

/// Some pages and their snapshots. Loom reports a deadlock if a thread sleeps forever.
struct ModelArray {
    pages: Vec<(ModelPage, Lot)>,
    snapshots: Snapshots<()>,
}

impl MarkedPages for ModelArray {
    type FixedCount<'a> = ();

    fn entry(&self, page: u64) -> &Entry {
        &self.pages[page as usize].0.entry
    }

    fn park(&self, page: u64, busy: impl Fn(State) -> bool) {
        let (entry, lot) = (self.entry(page), &self.pages[page as usize].1);
        if entry.ask_to_wake(&busy) {
            let mut lock = lot.lock.lock();
            let state = entry.state(Ordering::Acquire);
            if state.any(WAITED) && busy(state) {
                lot.woken.wait(&mut lock);
            }
        }
    }

    fn unpark(&self, page: u64) {
        let lot = &self.pages[page as usize].1;
        drop(lot.lock.lock());
        lot.woken.notify_all();
    }

    fn await_release(&self, page: u64, _: State) {
        self.park(page, |state| state.any(EXCLUSIVE));
    }

    fn note_marks(&self) {}

    fn quiesce_marked(&self, pages: &[&Entry]) {
        for entry in pages {
            entry.shut_writes();
            barrier::heavy(Vec::new);
            self.pages.iter().for_each(|(page, _)| drain(&page.slot, *entry, HazardAccess::Writes));
            entry.quiet_unsaved();
        }
    }

    fn fix_count(&self) -> (u64, ()) {
        (self.pages.len() as u64, ())
    }
}

impl ModelArray {
    fn new(pages: impl IntoIterator<Item = ModelPage>) -> Arc<Self> {
        let pages = pages.into_iter().map(|page| (page, Lot::default())).collect();
        Arc::new(Self { pages, snapshots: Snapshots::default() })
    }

    /// Makes a snapshot on the calling thread alone: returns the value of each page, unless another thread
    /// has saved the page.
    fn snapshot(&self) -> Vec<Option<u64>> {
        let (marks, making) = self.snapshots.begin(true).unwrap();
        let (count, ()) = marks.mark_all(self);
        marks.save_by((), count);
        let mut saved = vec![None; count as usize];
        for page in marks.take(0..count).into_iter().flatten() {
            saved[page as usize] = Some(self.value(page));
            unmark(self, page);
        }
        self.snapshots.end(&marks, self, count);
        drop(making);
        saved
    }

    fn value(&self, page: u64) -> u64 {
        self.pages[page as usize].0.frame.with(|at| unsafe { *at })
    }

    /// Waits for a page as a thread does that wants to change it.
    fn await_page(&self, page: u64, state: State, holds_guards: bool) {
        if !state.any(UNSAVED) {
            return self.park(page, |state| state.is_held_against(true));
        }
        let Some(marks) = self.snapshots.await_instant(self, page, holds_guards) else { return };
        if !marks.save_if_free(self, page, |()| _ = self.value(page)) {
            marks.await_unmarked(self, page);
        }
    }

    /// Takes a page as a guard, and writes to it.
    fn guard(&self, page: u64, value: u64, holds_guards: bool) {
        let model = &self.pages[page as usize].0;
        loop {
            match model.entry.try_exclusive(Holder::Guard) {
                Ok(before) => {
                    if before.any(WAITED) {
                        self.unpark(page);
                    }
                    return model.frame.with_mut(|at| unsafe { *at = value });
                }
                Err(Refusal::Busy(state)) => self.await_page(page, state, holds_guards),
                Err(Refusal::Absent) => unreachable!("pages of this model are never evicted"),
            }
        }
    }

    fn end_guard(&self, page: u64) {
        if self.entry(page).release_exclusive(Holder::Guard, DIRTY) {
            self.unpark(page);
        }
    }

    /// Holds a page shared for a moment, as a copy or a write-back does.
    fn share(&self, page: u64) {
        if self.entry(page).try_share(Holder::Pin, false).is_ok() && self.entry(page).unshare(Holder::Pin) {
            self.unpark(page);
        }
    }

    /// Writes to the first page as a thread with guards does, and opens the page to lock-free writes. Returns
    /// true if the write preceded the instant of the snapshot.
    fn pass_and_write(&self, marks: &SnapshotMarks<()>, value: u64) -> bool {
        let page = &self.pages[0].0;
        if page.write(value) {
            return true;
        }
        while page.entry.try_exclusive(Holder::Pin).is_err() {
            if !marks.pass(self, 0) {
                return false;
            }
        }
        page.frame.with_mut(|at| unsafe { *at = value });
        page.entry.open_writes();
        if page.entry.release_exclusive(Holder::Pin, DIRTY) {
            self.unpark(0);
        }
        true
    }
}

fn model(preemptions: usize, run: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(run);
}

/// Runs a test on two pages; a thread takes guards of both, one after the other.
fn with_pairs(run: impl FnOnce(&ModelArray)) {
    let array = ModelArray::new([ModelPage::resident(), ModelPage::resident()]);
    let pairs = thread::spawn({
        let array = array.clone();
        move || {
            array.guard(0, 1, false);
            array.guard(1, 1, true);
            array.end_guard(1);
            array.end_guard(0);
        }
    });
    run(&array);
    pairs.join().unwrap();
}

/// A thread with a guard wants a second page during two successive snapshots, and the second snapshot waits
/// for this guard. The thread must not sleep on a mark of the second snapshot.
#[test]
fn snapshots_in_a_row_do_not_wait_for_a_thread_that_waits_for_them() {
    model(2, || {
        with_pairs(|array| {
            for saved in [array.snapshot(), array.snapshot()] {
                // Threads write both elements of the pair together, so a snapshot must contain both or none.
                if let [Some(one), Some(other)] = saved[..] {
                    assert_eq!(one, other);
                }
            }
        });
    });
}

/// The second page is shared when the thread with a guard checks it, and marked when it goes to sleep.
#[test]
fn a_page_that_is_marked_meanwhile_is_looked_at_again() {
    model(2, || {
        with_pairs(|array| {
            array.share(1);
            array.snapshot();
        });
    });
}

/// No thread may change a page while a snapshot saves it, and the snapshot must contain all earlier writes.
/// This must hold even if a thread with guards removes the page's mark and opens the page to writes while the
/// snapshot marks pages.
#[test]
fn no_thread_writes_to_a_page_that_a_snapshot_saves() {
    for is_open in [false, true] {
        model(3, move || {
            let page = if is_open { ModelPage::open_for_writes() } else { ModelPage::resident() };
            let array = ModelArray::new([page]);
            let (marks, making) = array.snapshots.begin(true).unwrap();
            let writer = thread::spawn({
                let (array, marks) = (array.clone(), marks.clone());
                move || [1, 2].into_iter().filter(|value| array.pass_and_write(&marks, *value)).count() as u64
            });
            marks.mark_all(&*array);
            let saved = array.value(0);
            assert_eq!(
                saved,
                writer.join().unwrap(),
                "the snapshot must have all earlier writes and no later writes"
            );
            drop(making);
        });
    }
}
