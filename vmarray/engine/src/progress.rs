//! Progress: a long operation reports its processed bytes to a callback of the program, which may cancel it.

use std::cell::{Cell, RefCell};
use std::ops::{ControlFlow, Range};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};

use crate::error::{ErrorKind, Result};

/// The progress of a long operation: saving or loading an array, or a [sort](with_progress).
///
/// ```
/// use std::ops::ControlFlow;
/// use vmarray::{file::SaveOptions, prelude::*, progress::Progress};
/// # let path = std::env::temp_dir().join(format!("vmarray-progress-{}", std::process::id()));
/// let array = VirtualArray::<u32>::builder(10_000_000).build()?;
/// let said = array.save_with(&path, SaveOptions::new(), |Progress { done_bytes, all_bytes, .. }| {
///     if done_bytes * 2 < all_bytes { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
/// });
/// assert_eq!(*said.unwrap_err().kind(), vmarray::ErrorKind::Cancelled);
/// assert!(!path.exists());
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// Number of bytes processed so far. A byte that the operation moves several times counts each time.
    pub done_bytes: u64,
    /// Number of bytes to process in all. Work that turns out to be unnecessary counts as processed.
    pub all_bytes: u64,
}

/// A page or an array that an operation holds while it reports progress to the program. The thread that runs
/// the program's progress function must not wait for this page or array, because the operation continues only
/// after the function returns.
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkHold {
    /// Pages of an array, which the operation holds exclusively.
    Pages { array: u64, pages: Range<u64> },
    /// A snapshot of an array, which the operation is making.
    Snapshot { array: u64 },
}

#[derive(Default)]
struct Holds {
    /// Holds of operations that the thread has begun.
    own: Vec<WorkHold>,
    /// Holds of operations for which the thread runs the program's progress function.
    inherited: Vec<WorkHold>,
}

thread_local! {
    static HOLDS: RefCell<Holds> = RefCell::default();
}

/// Records that an operation of the calling thread holds a page or an array, until this value is dropped.
#[doc(hidden)]
#[derive(Debug)]
pub struct HoldNote(WorkHold);

impl HoldNote {
    pub fn new(hold: WorkHold) -> Self {
        HOLDS.with_borrow_mut(|holds| holds.own.push(hold.clone()));
        Self(hold)
    }
}

impl Drop for HoldNote {
    fn drop(&mut self) {
        let _ = HOLDS.try_with(|holds| {
            let own = &mut holds.borrow_mut().own;
            if let Some(at) = own.iter().rposition(|hold| *hold == self.0) {
                own.remove(at);
            }
        });
    }
}

/// Lives while a thread runs the program's progress function for an operation.
struct InsideProgress(Holds);

impl InsideProgress {
    fn enter(inherited: Vec<WorkHold>) -> Self {
        Self(HOLDS.replace(Holds { own: Vec::new(), inherited }))
    }
}

impl Drop for InsideProgress {
    fn drop(&mut self) {
        let _ = HOLDS.try_with(|holds| holds.swap(&RefCell::new(std::mem::take(&mut self.0))));
    }
}

/// Returns true if the calling thread runs a progress function of the program, and the operation that reports
/// to this function has a hold (of a page or array) for which `is_kind` is true.
#[doc(hidden)]
#[inline]
pub fn inherits(is_kind: impl Fn(&WorkHold) -> bool) -> bool {
    HOLDS.try_with(|holds| holds.borrow().inherited.iter().any(is_kind)).unwrap_or(false)
}

/// The program's progress function, which one thread at a time calls.
type Teller<'a> = Mutex<&'a mut (dyn FnMut(Progress) -> ControlFlow<()> + Send)>;

thread_local! {
    /// The program's progress function for this thread. The real lifetime is shorter than `'static`.
    static TELLER: Cell<Option<&'static Teller<'static>>> = const { Cell::new(None) };
}

/// Restores the previous progress function on drop.
struct Before(Option<&'static Teller<'static>>);

impl Drop for Before {
    fn drop(&mut self) {
        TELLER.set(self.0);
    }
}

/// Runs `work` on the calling thread, and reports the progress of each sort that `work` calls. The sort calls
/// `progress` before its first step and after every few GiB or less, from any thread, but one call at a time.
/// Sorts in RAM also report within a step. Sorts are `Sort::sort`, `Sort::sort_with`, and the sorting methods
/// of `Order` and `OrderMut`. If `work` calls several sorts, each counts from 0. Matrix products in RAM
/// report their steps likewise.
///
/// `progress` must not access the elements that the operation sorts: an access to an array returns
/// [`WouldDeadlock`](ErrorKind::WouldDeadlock), and an access to a source may block forever. `progress` runs
/// without helper threads (see `must_work_alone`).
///
/// If `progress` breaks, the sort ends with [`Cancelled`](ErrorKind::Cancelled) as soon as the work in flight
/// is done. The elements are then in an unspecified order. No element is lost, and each value is still next
/// to its key.
///
/// ```
/// use std::ops::ControlFlow;
/// use vmarray::{prelude::*, progress::with_progress};
///
/// let array = VirtualArray::<u32>::new(3)?;
/// array.write(0, &[3, 1, 2])?;
/// let mut percent = 0;
/// let sorted = with_progress(
///     |progress| {
///         percent = 100 * progress.done_bytes / progress.all_bytes;
///         ControlFlow::Continue(())
///     },
///     || array.sort(..),
/// );
/// sorted?;
/// assert_eq!((percent, array.to_vec(..)?), (100, vec![1, 2, 3]));
///
/// array.set(0, 4)?;
/// let stopped = with_progress(|_| ControlFlow::Break(()), || array.sort(..));
/// assert_eq!(*stopped.unwrap_err().kind(), vmarray::ErrorKind::Cancelled);
/// # Ok::<(), vmarray::Error>(())
/// ```
pub fn with_progress<R>(
    mut progress: impl FnMut(Progress) -> ControlFlow<()> + Send,
    work: impl FnOnce() -> R,
) -> R {
    let teller: Teller<'_> = Mutex::new(&mut progress);
    // SAFETY: `Before` removes the reference before `teller` and `progress` are dropped, also if `work`
    // panics. Other code gets it by `in_steps` alone, on this thread, while `work` runs, and for no longer
    // than that.
    let teller = unsafe { std::mem::transmute::<&Teller<'_>, &'static Teller<'static>>(&teller) };
    let _before = Before(TELLER.replace(Some(teller)));
    work()
}

/// Runs `work`, which reports its progress on `all_bytes` bytes to the callback of [`with_progress`].
///
/// # Errors
/// The errors of `work`.
#[doc(hidden)]
pub fn in_steps<R, E>(
    all_bytes: u64,
    work: impl FnOnce(&Steps) -> std::result::Result<R, E>,
) -> std::result::Result<R, E> {
    let holds = HOLDS.with_borrow(|holds| holds.own.iter().chain(&holds.inherited).cloned().collect());
    let steps = Steps {
        teller: TELLER.get(),
        holds: RwLock::new(holds),
        done_bytes: AtomicU64::new(0),
        all_bytes,
        is_cancelled: AtomicBool::new(false),
    };
    let done = work(&steps)?;
    if steps.done_bytes.load(Ordering::Relaxed) < all_bytes {
        // The operation is done, so ignore a cancellation.
        let _ = steps.report(all_bytes);
    }
    Ok(done)
}

/// Runs `work` as [`in_steps`] does, but `work` reports to the callback `progress`.
///
/// # Errors
/// The errors of `work`.
#[doc(hidden)]
pub fn in_reported_steps<R>(
    all_bytes: usize,
    progress: impl FnMut(Progress) -> ControlFlow<()> + Send,
    work: impl FnOnce(&Steps) -> Result<R>,
) -> Result<R> {
    with_progress(progress, || in_steps(all_bytes as u64, work))
}

/// The progress of one operation, which reports its steps through this value.
#[doc(hidden)]
pub struct Steps {
    teller: Option<&'static Teller<'static>>,
    /// The holds of the operation, for each of its threads that calls the program.
    holds: RwLock<Vec<WorkHold>>,
    done_bytes: AtomicU64,
    all_bytes: u64,
    is_cancelled: AtomicBool,
}

impl Steps {
    /// Reports that the operation has processed `bytes` more bytes.
    ///
    /// # Errors
    /// [`Cancelled`](ErrorKind::Cancelled) if the program's function breaks, now or in an earlier report.
    pub fn report(&self, bytes: u64) -> Result<()> {
        let Some(teller) = self.teller else { return Ok(()) };
        let mut progress = teller.lock();
        if self.is_cancelled() {
            return Err(ErrorKind::Cancelled.into());
        }
        let done_bytes = self.done_bytes.load(Ordering::Relaxed).saturating_add(bytes).min(self.all_bytes);
        self.done_bytes.store(done_bytes, Ordering::Relaxed);
        // Operations that the callback itself starts must not report progress.
        let _before = Before(TELLER.replace(None));
        let _inside = InsideProgress::enter(self.holds.read().clone());
        if progress(Progress { done_bytes, all_bytes: self.all_bytes }).is_break() {
            self.is_cancelled.store(true, Ordering::Relaxed);
            return Err(ErrorKind::Cancelled.into());
        }
        Ok(())
    }

    /// Records another page or array that the operation holds until it ends.
    #[inline]
    pub fn add_hold(&self, hold: WorkHold) {
        self.holds.write().push(hold);
    }

    #[inline]
    pub fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Relaxed)
    }
}
