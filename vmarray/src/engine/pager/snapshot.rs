//! Snapshots: contents of all pages as of one instant during concurrent writes, by copy before write.
//!
//! A snapshot first *marks* all pages ([`UNSAVED`]); a marked page accepts no new writer. It then waits for
//! present holders of pages, for lock-free writers (by one barrier), and for scatters that have checked
//! pages. Once all have finished, the snapshot's instant lies between the last write included and the first
//! excluded. From then on one thread *takes* and saves each page: a snapshot thread, in order, or a thread
//! that wants to write the page. Saving clears the mark.
//!
//! Threads that hold guards of the program must not wait for a snapshot that may wait for these guards.
//! During marking, such a thread clears the mark of a page and continues; the snapshot marks that page again.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex, RwLock};

use super::Pager;
use crate::base::error::{Error, Result};
use crate::engine::guards;
use crate::engine::page::state::{EXCLUSIVE, IN_FLIGHT, UNSAVED, WRITERS};
use crate::engine::page::{LockScope, park, unpark};

/// Receiver of a snapshot's pages.
pub(crate) trait PageSaver: Send + Sync {
    /// Saves the contents of a page, which stay unchanged during the call.
    fn save(&self, pager: &Pager, page: u64) -> Result<()>;
}

/// Snapshots of an array, one at a time.
#[derive(Debug, Default)]
pub(super) struct Snapshots {
    /// Held by the thread that makes a snapshot.
    making: Mutex<()>,
    current: Mutex<Option<Arc<Shared>>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Marking: threads that hold guards may still write pages.
    Marking,
    /// Instant reached: no thread writes, and saving has not begun.
    Instant,
    Saving,
    Over,
}

/// State shared by the snapshot's threads and by threads that need its pages.
struct Shared {
    phase: Mutex<Phase>,
    changed: Condvar,
    /// Pages whose mark was cleared by threads with guards.
    passed: Mutex<Vec<u64>>,
    /// One bit per page, set once a thread has taken the page for saving.
    taken: RwLock<Vec<AtomicU64>>,
    /// Pages requested by tasks, which save nothing themselves.
    wanted: Mutex<Vec<u64>>,
    has_wanted: AtomicBool,
    saver: RwLock<Option<Box<dyn PageSaver>>>,
    failure: Mutex<Option<Error>>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("phase", &self.phase).finish_non_exhaustive()
    }
}

/// Snapshot in progress. Until its drop, unsaved pages accept no writes.
pub(crate) struct Snapshot<'a> {
    pager: &'a Pager,
    shared: Arc<Shared>,
    pages: u64,
    len: usize,
    _alone: parking_lot::MutexGuard<'a, ()>,
}

impl Pager {
    /// Begins a snapshot as of the return of this call, after a wait for all present writers.
    ///
    /// # Errors
    /// [`WouldDeadlock`](crate::ErrorKind::WouldDeadlock) if the calling thread holds guards.
    pub(crate) fn snapshot(&self) -> Result<Snapshot<'_>> {
        self.expect_no_guards()?;
        let alone = self.snapshots.making.lock();
        let shared = Arc::new(Shared {
            phase: Mutex::new(Phase::Marking),
            changed: Condvar::new(),
            passed: Mutex::default(),
            taken: RwLock::default(),
            wanted: Mutex::default(),
            has_wanted: AtomicBool::new(false),
            saver: RwLock::new(None),
            failure: Mutex::default(),
        });
        // First of all: a thread that sees a mark also sees the snapshot or its end.
        *self.snapshots.current.lock() = Some(Arc::clone(&shared));
        let mut snapshot = Snapshot { pager: self, shared, pages: 0, len: 0, _alone: alone };
        snapshot.mark_all();
        Ok(snapshot)
    }

    /// Waits until an unsaved page accepts writes; saves it unless another thread does. The caller holds no
    /// page, but may hold guards of the program.
    pub(super) fn await_saved(&self, page: u64) {
        let entry = self.table.entry(page);
        let Some(shared) = self.snapshots.current.lock().clone() else {
            // Another thread is about to clear the page's mark.
            return std::thread::yield_now();
        };
        if guards::held() && self.let_pass(&shared, page) {
            return;
        }
        let mut phase = shared.phase.lock();
        while matches!(*phase, Phase::Marking | Phase::Instant) {
            shared.changed.wait(&mut phase);
        }
        drop(phase);
        self.channel(page).counters.waits.add(1);
        if !shared.save_if_free(self, page) {
            park(entry, |state| state.any(UNSAVED));
        }
    }

    /// [`await_saved`](Self::await_saved) for a task, which saves nothing: requests an early save of the
    /// page. True if the task should check again at once.
    pub(crate) fn want_saved(&self, page: u64) -> bool {
        let Some(shared) = self.snapshots.current.lock().clone() else { return true };
        if guards::held() && self.let_pass(&shared, page) {
            return true;
        }
        shared.wanted.lock().push(page);
        shared.has_wanted.store(true, Ordering::Release);
        false
    }

    /// Clears a page's mark for a thread that holds guards, unless the instant is reached.
    fn let_pass(&self, shared: &Shared, page: u64) -> bool {
        let phase = shared.phase.lock();
        let passes = *phase == Phase::Marking;
        if passes {
            shared.passed.lock().push(page);
            self.unmark(page);
        }
        passes
    }

    fn unmark(&self, page: u64) {
        let entry = self.table.entry(page);
        if entry.end_saving() {
            unpark(entry);
        }
    }
}

impl Shared {
    /// Makes the calling thread the saver of a page after the instant; false if the page has one.
    fn take(&self, page: u64) -> bool {
        let (word, bit) = ((page / 64) as usize, 1 << (page % 64));
        let taken = self.taken.read();
        taken.get(word).is_some_and(|word| word.fetch_or(bit, Ordering::AcqRel) & bit == 0)
    }

    /// Saves a page and admits writers; false if another thread saves it. A failure also admits writers,
    /// since it ends the snapshot.
    fn save_if_free(&self, pager: &Pager, page: u64) -> bool {
        // Devices may wake tasks, which run without any lock held.
        let _scope = LockScope::begin();
        // During this hold the snapshot continues and the page keeps its mark.
        let saver = self.saver.read();
        let Some(saver) = &*saver else { return true };
        if !self.take(page) {
            return false;
        }
        if let Err(error) = saver.save(pager, page) {
            self.failure.lock().get_or_insert(error);
        }
        pager.unmark(page);
        true
    }

    fn turn_to(&self, phase: Phase) {
        *self.phase.lock() = phase;
        self.changed.notify_all();
    }
}

impl Snapshot<'_> {
    /// Marks all pages and waits for the end of all writes.
    fn mark_all(&mut self) {
        let (pager, mut fresh) = (self.pager, Vec::new());
        let mut range = 0..pager.table.len();
        loop {
            self.pages = self.pages.max(range.end);
            self.mark(range.clone().chain(fresh.iter().copied()));
            let _alone = pager.extending.lock();
            let mut phase = self.shared.phase.lock();
            range = self.pages..pager.table.len();
            fresh = std::mem::take(&mut *self.shared.passed.lock());
            if range.is_empty() && fresh.is_empty() {
                // A thread that appends an element holds its page or waits for memory; neither is possible
                // here.
                self.len = pager.table.lengths().len();
                *phase = Phase::Instant;
                break;
            }
        }
        let words = self.pages.div_ceil(64) as usize;
        *self.shared.taken.write() = (0..words).map(|_| AtomicU64::new(0)).collect();
    }

    /// Marks pages and waits for the end of writes to them.
    fn mark(&self, pages: impl Iterator<Item = u64> + Clone) {
        let pager = self.pager;
        let entries = || pages.clone().map(|page| (page, pager.table.entry(page)));
        for (_, entry) in entries() {
            if entry.begin_saving() {
                unpark(entry);
            }
        }
        // Scatters check their target pages again.
        pager.channels.iter().for_each(|channel| channel.queues.note_change());
        for (page, entry) in entries() {
            loop {
                let state = entry.state(Ordering::Acquire);
                if !state.any(EXCLUSIVE) {
                    break;
                }
                if state.any(IN_FLIGHT) {
                    pager.channel(page).help_while(&pager.table, page, None, |_| true);
                } else {
                    park(entry, |state| state.any(EXCLUSIVE) && !state.any(IN_FLIGHT));
                }
            }
        }
        // Opening a write gate requires holding the page, which from here on requires clearing its mark
        // first.
        let open = entries().map(|(_, entry)| entry);
        let open: Vec<_> = open.filter(|entry| entry.state(Ordering::Acquire).any(WRITERS)).collect();
        if let Some(channel) = pager.channels.first() {
            channel.quiesce_unsaved(&open);
        }
    }

    /// Number of elements at the instant.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Starts saving: from here on each writer saves its page first.
    pub(crate) fn save_by(&self, saver: Box<dyn PageSaver>) {
        *self.shared.saver.write() = Some(saver);
        self.shared.turn_to(Phase::Saving);
    }

    /// Saves the pages requested by tasks, then takes the untaken ones of some pages, as ranges.
    ///
    /// # Errors
    /// The failure of another thread to save a page.
    pub(crate) fn take(&self, pages: Range<u64>) -> Result<Vec<Range<u64>>> {
        if self.shared.has_wanted.swap(false, Ordering::Acquire) {
            for page in std::mem::take(&mut *self.shared.wanted.lock()) {
                self.shared.save_if_free(self.pager, page);
            }
        }
        if let Some(error) = self.shared.failure.lock().clone() {
            return Err(error);
        }
        let mut runs: Vec<Range<u64>> = Vec::new();
        for page in pages.filter(|page| self.shared.take(*page)) {
            match runs.last_mut() {
                Some(run) if run.end == page => run.end += 1,
                _ => runs.push(page..page + 1),
            }
        }
        Ok(runs)
    }

    /// Admits writers to pages that were taken and read.
    pub(crate) fn let_change(&self, pages: Range<u64>) {
        pages.for_each(|page| self.pager.unmark(page));
    }

    /// Ends the snapshot once all pages are taken: waits until the other threads have saved theirs.
    ///
    /// # Errors
    /// The failure of another thread to save a page.
    pub(crate) fn finish(self) -> Result<()> {
        // Pages of other threads: all of the snapshot's own threads have finished.
        *self.shared.saver.write() = None;
        let failure = self.shared.failure.lock().take();
        failure.map_or(Ok(()), Err)
    }
}

impl Drop for Snapshot<'_> {
    fn drop(&mut self) {
        // Waits for threads that save pages, and admits no new ones.
        *self.shared.saver.write() = None;
        *self.pager.snapshots.current.lock() = None;
        self.shared.turn_to(Phase::Over);
        (0..self.pages).for_each(|page| self.pager.unmark(page));
    }
}
