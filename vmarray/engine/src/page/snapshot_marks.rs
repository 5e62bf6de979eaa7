//! Synchronization between a snapshot of an array and the threads that change the array's pages meanwhile:
//!
//! 1. The snapshot *marks* all pages ([`UNSAVED`]). From then on no thread acquires a marked page to change
//!    it.
//! 2. A thread with guards must not wait for the snapshot, which may wait for these guards. So this thread
//!    *passes*: it removes the page's mark, and the snapshot marks the page again.
//! 3. The *instant* of the snapshot comes when all pages are marked and no thread holds one exclusively.
//! 4. After the instant, one thread *takes* each page, saves it, and removes its mark.
//!
//! Successive snapshots of an array use the same bit of a page, so a mark alone does not say which snapshot
//! has set it. A thread therefore waits for one snapshot, through its [`SnapshotMarks`].
//! [`await_unmarked`](SnapshotMarks::await_unmarked) returns at the latest when this snapshot ends, even if a
//! later one has marked the page again. Otherwise a thread with guards could deadlock: it would wait for the
//! later snapshot, which would wait for the thread's guards. A loom test (`snapshot_model`) checks this.

use std::ops::Range;

use super::entry::Entry;
use super::state::{EXCLUSIVE, State, UNSAVED, WRITERS};
use super::sync::{Arc, AtomicBool, AtomicU64, Condvar, Mutex, MutexGuard, Ordering, RwLock};

/// The operations that a snapshot needs on the pages of an array: access to entries, sleep, and barriers.
pub trait MarkedPages {
    /// While a value of this type lives, no thread adds a page.
    type FixedCount<'a>
    where
        Self: 'a;

    fn entry(&self, page: u64) -> &Entry;

    /// Sleeps while `busy` is true for the page's state; may return early.
    fn park(&self, page: u64, busy: impl Fn(State) -> bool);

    /// Wakes threads and tasks that sleep at a page.
    fn unpark(&self, page: u64);

    /// Waits until the exclusive hold in this state ends; may return early.
    fn await_release(&self, page: u64, state: State);

    /// Notes that pages were marked: threads that have checked pages they do not hold check again.
    fn note_marks(&self);

    /// Waits for the end of lock-free writes to marked pages, after shutting their gates.
    fn quiesce_marked(&self, pages: &[&Entry]);

    /// Returns the number of pages; no thread adds a page while the second part of the result lives.
    fn fix_count(&self) -> (u64, Self::FixedCount<'_>);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The snapshot is marking pages. Threads that hold guards may still change pages.
    Marking,
    /// No thread changes a page; threads cannot save pages yet.
    Instant,
    Saving,
    Over,
}

#[derive(Debug)]
struct Marking {
    phase: Phase,
    /// Pages whose marks were removed by threads with guards.
    passed: Vec<u64>,
}

#[derive(Debug)]
struct Saving<S> {
    saver: S,
    /// A bit for each page that a thread is saving or has saved.
    taken: Vec<AtomicU64>,
}

/// The state of one snapshot: its phase, the marks of unsaved pages, and the saver `S` that writes pages to
/// the destination.
#[derive(Debug)]
pub struct SnapshotMarks<S> {
    marking: Mutex<Marking>,
    changed: Condvar,
    /// True after the end of the snapshot; threads that sleep at a page check it.
    is_over: AtomicBool,
    /// `None` outside of the phase `Saving`.
    saving: RwLock<Option<Saving<S>>>,
    /// Pages for which tasks wait; tasks do not save pages themselves.
    wanted: Mutex<Vec<u64>>,
}

/// The snapshots of an array, one at a time.
#[derive(Debug)]
pub struct Snapshots<S> {
    /// The thread that creates the snapshot holds this lock.
    making: Mutex<()>,
    current: Mutex<Option<Arc<SnapshotMarks<S>>>>,
}

impl<S> Default for Snapshots<S> {
    fn default() -> Self {
        Self { making: Mutex::new(()), current: Mutex::new(None) }
    }
}

impl<S> Snapshots<S> {
    /// Begins a snapshot. If another one runs, waits for its end, or returns `None` if `may_wait` is false.
    #[inline]
    pub fn begin(&self, may_wait: bool) -> Option<(Arc<SnapshotMarks<S>>, MutexGuard<'_, ()>)> {
        let making = if may_wait { self.making.lock() } else { self.making.try_lock()? };
        let marks = Arc::new(SnapshotMarks::new());
        // Publish the snapshot before its first mark, so that a thread that finds a marked (still unsaved)
        // page also finds the snapshot.
        *self.current.lock() = Some(Arc::clone(&marks));
        Some((marks, making))
    }

    /// Ends the current snapshot of `count` pages: waits for threads that save pages, and removes the
    /// remaining marks (of unsaved pages). Returns the saver, if there was one.
    #[inline]
    pub fn end(&self, marks: &SnapshotMarks<S>, pages: &impl MarkedPages, count: u64) -> Option<S> {
        let saver = marks.stop_saving();
        *self.current.lock() = None;
        marks.is_over.store(true, Ordering::Release);
        marks.turn_to(Phase::Over);
        (0..count).for_each(|page| unmark(pages, page));
        saver
    }

    /// Returns the marks of the running snapshot, if there is one.
    #[inline]
    pub fn current(&self) -> Option<Arc<SnapshotMarks<S>>> {
        self.current.lock().clone()
    }

    /// Waits until a marked (unsaved) page can be saved. The calling thread wants to change the page, and
    /// holds no other pages except by guards (`holds_guards`). Returns the marks of the snapshot that saves
    /// the page, or `None` if the thread must check the page again.
    pub fn await_instant(
        &self,
        pages: &impl MarkedPages,
        page: u64,
        holds_guards: bool,
    ) -> Option<Arc<SnapshotMarks<S>>> {
        let Some(marks) = self.current() else {
            // The snapshot that marked the page (to save it) is ending and removes the mark, so check again.
            yield_now();
            return None;
        };
        if holds_guards && marks.pass(pages, page) {
            return None;
        }
        let mut marking = marks.marking.lock();
        // In the phase `Marking`, `pass` succeeds for a thread with guards. So only threads without guards
        // wait here for the end of `Marking`.
        while matches!(marking.phase, Phase::Marking | Phase::Instant) {
            marks.changed.wait(&mut marking);
        }
        drop(marking);
        Some(marks)
    }
}

impl<S> SnapshotMarks<S> {
    fn new() -> Self {
        Self {
            marking: Mutex::new(Marking { phase: Phase::Marking, passed: Vec::new() }),
            changed: Condvar::default(),
            is_over: AtomicBool::new(false),
            saving: RwLock::default(),
            wanted: Mutex::default(),
        }
    }

    /// Marks all pages as unsaved, and waits until no thread changes any: the instant of the snapshot.
    /// Returns the number of pages; no thread adds a page while the second part of the result lives.
    pub fn mark_all<'a, P: MarkedPages>(&self, pages: &'a P) -> (u64, P::FixedCount<'a>) {
        let (mut marked, mut passed) = (0, Vec::new());
        let mut count = pages.fix_count().0;
        loop {
            self.mark(pages, (marked..count).chain(passed.iter().copied()));
            marked = count;
            let (now, fixed) = pages.fix_count();
            let mut marking = self.marking.lock();
            count = now;
            passed = std::mem::take(&mut marking.passed);
            if count == marked && passed.is_empty() {
                marking.phase = Phase::Instant;
                return (count, fixed);
            }
        }
    }

    /// Marks the pages with these numbers, and waits until no thread changes them.
    fn mark(&self, pages: &impl MarkedPages, numbers: impl Iterator<Item = u64> + Clone) {
        let entries = || numbers.clone().map(|page| (page, pages.entry(page)));
        for (page, entry) in entries() {
            if entry.begin_saving() {
                pages.unpark(page);
            }
        }
        pages.note_marks();
        for (page, entry) in entries() {
            loop {
                let state = entry.state(Ordering::Acquire);
                if !state.any(EXCLUSIVE) {
                    break;
                }
                pages.await_release(page, state);
            }
        }
        // Wait for earlier lock-free writes, on pages with an open write gate. No other gate opens now: only
        // a holder of a page opens its gate, and no thread takes a marked page (if unmarked by `pass`, the
        // page is marked again).
        let open = entries().map(|(_, entry)| entry);
        let open: Vec<_> = open.filter(|entry| entry.state(Ordering::Acquire).any(WRITERS)).collect();
        pages.quiesce_marked(&open);
    }

    /// Removes a page's mark (still to save) for a thread that holds guards, if the instant of the snapshot
    /// has not come. Otherwise returns false.
    pub fn pass(&self, pages: &impl MarkedPages, page: u64) -> bool {
        let mut marking = self.marking.lock();
        if marking.phase != Phase::Marking {
            return false;
        }
        marking.passed.push(page);
        let is_waited_for = pages.entry(page).end_saving();
        // Run wakers without the lock, because they are code of the program.
        drop(marking);
        if is_waited_for {
            pages.unpark(page);
        }
        true
    }

    /// Begins the phase `Saving`: all threads that want to change one of `count` pages save it first.
    pub fn save_by(&self, saver: S, count: u64) {
        let words = count.div_ceil(64) as usize;
        let taken = (0..words).map(|_| AtomicU64::new(0)).collect();
        *self.saving.write() = Some(Saving { saver, taken });
        self.turn_to(Phase::Saving);
    }

    /// Saves a marked (unsaved) page by `save` and removes its mark. Returns false if another thread is
    /// saving the page, and true also if the snapshot is over.
    #[inline]
    pub fn save_if_free(&self, pages: &impl MarkedPages, page: u64, save: impl FnOnce(&S)) -> bool {
        // While this thread holds the lock `saving`, this snapshot cannot end. So the page's mark (still to
        // save) is from this snapshot, not from a later one.
        let saving = self.saving.read();
        let Some(saving) = &*saving else { return true };
        if !saving.take(page) {
            return false;
        }
        save(&saving.saver);
        unmark(pages, page);
        true
    }

    /// Takes the pages of a range that no other thread has taken for saving, and returns them as ranges.
    #[inline]
    pub fn take(&self, pages: Range<u64>) -> Vec<Range<u64>> {
        let mut runs: Vec<Range<u64>> = Vec::new();
        let saving = self.saving.read();
        let Some(saving) = &*saving else { return runs };
        for page in pages.filter(|page| saving.take(*page)) {
            match runs.last_mut() {
                Some(run) if run.end == page => run.end += 1,
                _ => runs.push(page..page + 1),
            }
        }
        runs
    }

    /// Calls `look` with the saver; returns `None` outside of the phase `Saving`.
    pub fn with_saver<R>(&self, look: impl FnOnce(&S) -> R) -> Option<R> {
        self.saving.read().as_ref().map(|saving| look(&saving.saver))
    }

    /// Waits for threads that save pages, and prevents further saves. Returns the saver, if there was one.
    #[inline]
    pub fn stop_saving(&self) -> Option<S> {
        self.saving.write().take().map(|saving| saving.saver)
    }

    /// Returns true if this snapshot has marked the page with this state, to save it. The order of the two
    /// loads matters: a thread that sees a later snapshot's mark also sees this snapshot's end.
    #[inline]
    pub fn has_marked(&self, state: State) -> bool {
        state.any(UNSAVED) && !self.is_over.load(Ordering::Acquire)
    }

    /// Waits until another thread has saved a page and removed this snapshot's mark; may return early.
    #[inline]
    pub fn await_unmarked(&self, pages: &impl MarkedPages, page: u64) {
        pages.park(page, |state| self.has_marked(state));
    }

    /// Requests that the snapshot's threads save a page early.
    #[inline]
    pub fn want(&self, page: u64) {
        self.wanted.lock().push(page);
    }

    /// Returns the pages for which threads have requested an early save since the last call.
    #[inline]
    pub fn take_wanted(&self) -> Vec<u64> {
        std::mem::take(&mut self.wanted.lock())
    }

    fn turn_to(&self, phase: Phase) {
        self.marking.lock().phase = phase;
        self.changed.notify_all();
    }
}

impl<S> Saving<S> {
    /// Makes the calling thread the one that saves a page; returns false if another thread does.
    fn take(&self, page: u64) -> bool {
        let (word, bit) = ((page / 64) as usize, 1 << (page % 64));
        self.taken.get(word).is_some_and(|word| word.fetch_or(bit, Ordering::AcqRel) & bit == 0)
    }
}

/// Removes a page's mark (still to save). The caller has taken the page for saving, or prevents its snapshot
/// from continuing.
#[inline]
pub fn unmark(pages: &impl MarkedPages, page: u64) {
    if pages.entry(page).end_saving() {
        pages.unpark(page);
    }
}

fn yield_now() {
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(not(loom))]
    std::thread::yield_now();
}
