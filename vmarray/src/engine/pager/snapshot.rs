//! The contents of all pages as of one instant, while threads go on to change them: a page is saved before it
//! is changed.
//!
//! A snapshot begins by *marking* all pages ([`UNSAVED`]), from when on nobody takes one of them to change
//! it, and waits for those that have pages, for writers without a lock, by one barrier, and for scatters that
//! have looked at pages. When nobody is left there is a moment between the last change that the snapshot has
//! and the first one that it has not: that is its instant. From then on each page is saved once, by whoever
//! *takes* it: the threads of the snapshot, in order, or a thread that wants to change it. Only then is its
//! mark taken away.
//!
//! Threads that hold guards of the program must not wait for a snapshot that might wait for these. As long as
//! it marks pages they take the mark of a page away and go on; it marks that page again.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex, RwLock};

use super::Pager;
use crate::base::error::{Error, Result};
use crate::engine::guards;
use crate::engine::page::state::{EXCLUSIVE, IN_FLIGHT, UNSAVED, WRITERS};
use crate::engine::page::{LockScope, park, unpark};

/// Saves pages of a snapshot.
pub(crate) trait PageSaver: Send + Sync {
    /// Saves what a page has, which nobody changes meanwhile.
    fn save(&self, pager: &Pager, page: u64) -> Result<()>;
}

/// The snapshots of an array: one at a time.
#[derive(Debug, Default)]
pub(super) struct Snapshots {
    /// Held by the thread that makes one.
    making: Mutex<()>,
    current: Mutex<Option<Arc<Shared>>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Threads that hold guards may still change pages.
    Marking,
    /// Nobody changes anything; pages cannot be saved as yet.
    Instant,
    Saving,
    Over,
}

/// What a snapshot's own threads and those in its way share.
struct Shared {
    phase: Mutex<Phase>,
    changed: Condvar,
    /// Pages that threads with guards have taken the mark from.
    passed: Mutex<Vec<u64>>,
    /// A bit for each page that somebody saves, or has saved.
    taken: RwLock<Vec<AtomicU64>>,
    /// Pages that tasks wait for, which save nothing themselves.
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

/// A snapshot that is being made. Until it is dropped, pages that were not saved are not changed.
pub(crate) struct Snapshot<'a> {
    pager: &'a Pager,
    shared: Arc<Shared>,
    pages: u64,
    len: usize,
    _alone: parking_lot::MutexGuard<'a, ()>,
}

impl Pager {
    /// Begins a snapshot of the moment at which this returns, after waiting for all who are changing pages.
    ///
    /// # Errors
    /// [`WouldDeadlock`](crate::ErrorKind::WouldDeadlock) for a thread that holds guards.
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
        // First: whoever finds a mark finds the snapshot, or that it is over.
        *self.snapshots.current.lock() = Some(Arc::clone(&shared));
        let mut snapshot = Snapshot { pager: self, shared, pages: 0, len: 0, _alone: alone };
        snapshot.mark_all();
        Ok(snapshot)
    }

    /// Waits until a page may be changed that a snapshot has yet to save: saves it, unless somebody else is
    /// about to. The caller holds no page, but maybe guards of the program.
    pub(super) fn await_saved(&self, page: u64) {
        let entry = self.table.entry(page);
        let Some(shared) = self.snapshots.current.lock().clone() else {
            // The page is about to lose its mark.
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

    /// As [`await_saved`](Self::await_saved), for a task, which saves nothing: asks for the page to be saved
    /// soon. Whether to look again at once.
    pub(crate) fn want_saved(&self, page: u64) -> bool {
        let Some(shared) = self.snapshots.current.lock().clone() else { return true };
        if guards::held() && self.let_pass(&shared, page) {
            return true;
        }
        shared.wanted.lock().push(page);
        shared.has_wanted.store(true, Ordering::Release);
        false
    }

    /// Takes a page's mark away for a thread that holds guards, unless the instant has come.
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
    /// Makes the calling thread the one that saves a page; false if there is one. The instant has come.
    fn take(&self, page: u64) -> bool {
        let (word, bit) = ((page / 64) as usize, 1 << (page % 64));
        let taken = self.taken.read();
        taken.get(word).is_some_and(|word| word.fetch_or(bit, Ordering::AcqRel) & bit == 0)
    }

    /// Saves a page and lets it be changed, unless another thread saves it: false then. After a failure it
    /// may be changed, too, since there will be no snapshot.
    fn save_if_free(&self, pager: &Pager, page: u64) -> bool {
        // Devices may wake tasks, which run when nothing is locked.
        let _scope = LockScope::begin();
        // As long as it is held the snapshot is not over, and has the page's mark.
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
    /// Marks all pages, and waits until nobody changes any.
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
                // Whoever adds an element has its page, or waits for memory: neither is possible now.
                self.len = pager.table.lengths().len();
                *phase = Phase::Instant;
                break;
            }
        }
        let words = self.pages.div_ceil(64) as usize;
        *self.shared.taken.write() = (0..words).map(|_| AtomicU64::new(0)).collect();
    }

    /// Marks pages and waits until nobody changes them.
    fn mark(&self, pages: impl Iterator<Item = u64> + Clone) {
        let pager = self.pager;
        let entries = || pages.clone().map(|page| (page, pager.table.entry(page)));
        for (_, entry) in entries() {
            if entry.begin_saving() {
                unpark(entry);
            }
        }
        // Scatters look again at the pages that they write to.
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
        // To open a write gate takes having the page, which only those have from here on who have taken its
        // mark away.
        let open = entries().map(|(_, entry)| entry);
        let open: Vec<_> = open.filter(|entry| entry.state(Ordering::Acquire).any(WRITERS)).collect();
        if let Some(channel) = pager.channels.first() {
            channel.quiesce_unsaved(&open);
        }
    }

    /// How many elements there were.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Has pages saved from now on, by all who want to change them.
    pub(crate) fn save_by(&self, saver: Box<dyn PageSaver>) {
        *self.shared.saver.write() = Some(saver);
        self.shared.turn_to(Phase::Saving);
    }

    /// Saves what tasks wait for, then takes those of some pages that nobody has taken, as ranges.
    ///
    /// # Errors
    /// What another thread could not save.
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

    /// Lets pages be changed that were taken and read.
    pub(crate) fn let_change(&self, pages: Range<u64>) {
        pages.for_each(|page| self.pager.unmark(page));
    }

    /// Ends it when all pages are taken: waits until others have saved what they have taken.
    ///
    /// # Errors
    /// What another thread could not save.
    pub(crate) fn finish(self) -> Result<()> {
        // Those of others: none of the snapshot's own threads is at work any more.
        *self.shared.saver.write() = None;
        let failure = self.shared.failure.lock().take();
        failure.map_or(Ok(()), Err)
    }
}

impl Drop for Snapshot<'_> {
    fn drop(&mut self) {
        // Waits for those who save pages, and lets nobody begin.
        *self.shared.saver.write() = None;
        *self.pager.snapshots.current.lock() = None;
        self.shared.turn_to(Phase::Over);
        (0..self.pages).for_each(|page| self.pager.unmark(page));
    }
}
