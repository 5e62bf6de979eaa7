//! How many loads of futures may be under way in a channel, and the line of tasks that wait for their turn.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Wake, Waker};

use parking_lot::{Mutex, MutexGuard};

use super::reminder::remind;
use crate::page::wake;

/// How many pages may be on their way for futures, and who waits for that to become fewer.
///
/// Between two polls no task has a place: loads and transfers have them, which end by themselves, and call others.
/// Whoever was called may never be polled again. So when nothing is under way any more, and not all who wait were
/// called, there is a second look a moment later: if nobody has come in, twice as many are called, and so on.
#[derive(Debug)]
pub(crate) struct Admission {
    places: usize,
    line: Mutex<Line>,
    /// How many of those inside are loads that wait to be submitted. Written under the lock of the open batch.
    open: AtomicUsize,
    /// How many stand in the line. Written under the lock of the line.
    waiting: AtomicUsize,
}

#[derive(Debug, Default)]
struct Line {
    /// How many more may come in.
    free: usize,
    /// By number: who came first is called first.
    waiting: BTreeMap<u64, Waker>,
    next: u64,
    /// How many came in so far, and had when a second look was asked for.
    entries: u64,
    entries_before: u64,
    /// How many were called last.
    called: usize,
    /// Whether there will be a second look.
    is_reminded: bool,
}

impl Admission {
    pub(super) fn new(frames: u32) -> Arc<Self> {
        let places = (frames as usize / 2).max(1);
        let line = Mutex::new(Line { free: places, ..Line::default() });
        Arc::new(Self { places, line, open: AtomicUsize::new(0), waiting: AtomicUsize::new(0) })
    }

    /// Whether all who are inside are loads that wait to be submitted.
    fn is_idle(&self, line: &Line) -> bool {
        let open = self.open.load(Ordering::Relaxed);
        debug_assert!(line.free + open <= self.places, "more leave than came in");
        line.free + open == self.places
    }

    /// Lets one in, or puts it in the line: to its old place if it was called and somebody else was faster. `known` is
    /// its number, if it was there before. Its number, and whether it is in: then somebody has to
    /// [leave](Self::leave) for it; else the caller has the open batch submitted.
    pub(crate) fn enter(&self, known: Option<u64>, waker: &Waker) -> (u64, bool) {
        let mut line = self.line.lock();
        let number = known.unwrap_or_else(|| {
            line.next += 1;
            line.next
        });
        let is_in = line.free > 0 && (line.waiting.is_empty() || known.is_some());
        let old = if is_in {
            line.free -= 1;
            line.entries += 1;
            if line.waiting.is_empty() { None } else { line.waiting.remove(&number) }
        } else {
            line.waiting.insert(number, waker.clone())
        };
        self.note_waiting(&line);
        drop(line);
        drop(old);
        (number, is_in)
    }

    /// How many may be inside.
    pub(super) fn places(&self) -> usize {
        self.places
    }

    /// Whether some stand in the line; a guess.
    pub(super) fn has_line(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Lets in as many as there are places for, of so many, unless others stand in the line. Somebody has to
    /// [leave](Self::leave) for each of them.
    pub(super) fn enter_together(&self, count: usize) -> usize {
        let mut line = self.line.lock();
        let count = if line.waiting.is_empty() { count.min(line.free) } else { 0 };
        line.free -= count;
        line.entries += count as u64;
        count
    }

    /// Ends the stay of some, and calls others.
    pub(crate) fn leave(self: &Arc<Self>, count: usize) {
        let mut line = self.line.lock();
        line.free += count;
        let count = if self.is_idle(&line) { line.free } else { count };
        self.call(line, count);
    }

    /// Ends the stay of one who is woken to come back, and so needs nobody in its stead.
    pub(crate) fn step_out(self: &Arc<Self>) {
        let mut line = self.line.lock();
        line.free += 1;
        self.call(line, 0);
    }

    /// One of those inside is a load now that waits to be submitted. Whether that has to be at once. The caller has the
    /// lock of the open batch.
    pub(super) fn queued(&self) -> bool {
        self.open.store(self.open.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        // Whoever comes to the line later has the open batch submitted, which takes the caller's lock.
        if self.waiting.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let line = self.line.lock();
        !line.waiting.is_empty() && !line.is_reminded && self.is_idle(&line)
    }

    /// So many of those are about to be submitted. The caller has the lock of the open batch.
    pub(super) fn submitted(&self, loads: usize) {
        self.open.store(self.open.load(Ordering::Relaxed) - loads, Ordering::Relaxed);
    }

    /// Has the first ones of the line try to come in, and sees to a second look if that may be in vain.
    fn call(self: &Arc<Self>, mut line: MutexGuard<'_, Line>, count: usize) {
        if count > 0 {
            line.called = count;
        }
        let called = count.min(line.waiting.len());
        let called: Vec<Waker> =
            (0..called).filter_map(|_| line.waiting.pop_first()).map(|(_, waker)| waker).collect();
        self.note_waiting(&line);
        let is_doubtful = !line.waiting.is_empty() && !line.is_reminded && self.is_idle(&line);
        if is_doubtful {
            (line.is_reminded, line.entries_before) = (true, line.entries);
        }
        drop(line);
        called.into_iter().for_each(wake);
        if is_doubtful {
            remind(Arc::clone(self).into());
        }
    }

    /// Leaves the line. If it was called meanwhile, the next one is.
    pub(crate) fn give_up(self: &Arc<Self>, number: u64) {
        let mut line = self.line.lock();
        let gone = line.waiting.remove(&number);
        self.note_waiting(&line);
        if gone.is_none() && line.free > 0 {
            self.call(line, 1);
        } else {
            // Before the waker goes, which is foreign code.
            drop(line);
        }
    }

    fn note_waiting(&self, line: &Line) {
        self.waiting.store(line.waiting.len(), Ordering::Relaxed);
    }
}

/// The second look.
impl Wake for Admission {
    fn wake(self: Arc<Self>) {
        let mut line = self.line.lock();
        line.is_reminded = false;
        if self.is_idle(&line) {
            let nobody_came = line.entries == line.entries_before;
            let more = if nobody_came { line.called.saturating_mul(2).max(1) } else { 0 };
            self.call(line, more);
        }
    }
}

/// Wakes a task that waits for a frame when a transfer is done, which has its place until then.
pub(super) struct FrameNews {
    pub(super) admission: Arc<Admission>,
    pub(super) waker: Waker,
}

impl Wake for FrameNews {
    fn wake(self: Arc<Self>) {
        wake(self.waker.clone());
        self.admission.step_out();
    }
}
