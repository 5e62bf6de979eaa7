//! Time limits of kernels on the host: a loop ends when its item (GPU thread) exceeds the launch's limit.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use backend_api::kernel::{Overtime, TimeLimit};

use crate::number::KernelInteger;
use crate::rules::IntegerRange;

thread_local! {
    /// The time limit of the launch or expression whose items this thread runs.
    static LIMIT: RefCell<Option<TimeLimit>> = const { RefCell::new(None) };
    /// Number of the item that this thread has ended early.
    static ENDED: Cell<u64> = const { Cell::new(0) };
}

/// The time from which the counters measure.
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// The payload of the panic that ends an item.
struct Ended(Overtime);

/// Enforces the time limit of an item (GPU thread) when a kernel runs on the host: counts the loop iterations
/// in one call of a kernel function. Reads the clock at every [`TimeLimit::TURNS`]-th iteration. If the item
/// has exceeded its time limit, unwinds the function by a panic.
#[derive(Debug)]
pub struct Turns {
    left: u32,
    /// The first reading of the clock, in nanoseconds from `START`, plus 1; 0 before the first reading. Each
    /// call has its own, so that a loop that calls functions also measures their time.
    since: u64,
}

impl Turns {
    /// Creates a counter for one call of a kernel function.
    #[inline(always)]
    pub const fn new() -> Self {
        Self { left: TimeLimit::TURNS, since: 0 }
    }

    /// Counts one loop iteration; unwinds the function if the item (GPU thread) has exceeded its time limit.
    #[inline(always)]
    pub fn turn(&mut self) {
        self.left -= 1;
        if self.left == 0 {
            self.left = TimeLimit::TURNS;
            self.since = read_clock(self.since);
        }
    }

    /// Counts all iterations of a `for` loop over `numbers` in advance if there are fewer than
    /// [`TimeLimit::TURNS`], and returns false. Otherwise returns true: the loop must call
    /// [`turn`](Self::turn) in each iteration.
    #[inline(always)]
    pub fn enter<T: KernelInteger, const REVERSED: bool>(
        &mut self,
        numbers: &IntegerRange<T, REVERSED>,
    ) -> bool {
        let count = numbers.distance();
        if count >= u64::from(TimeLimit::TURNS) {
            return true;
        }
        if u64::from(self.left) <= count {
            self.left = TimeLimit::TURNS;
            self.since = read_clock(self.since);
        } else {
            self.left -= count as u32;
        }
        false
    }
}

impl Default for Turns {
    fn default() -> Self {
        Self::new()
    }
}

/// A guard that records an item's number if the item unwinds.
struct Unwinding(u64);

impl Drop for Unwinding {
    fn drop(&mut self) {
        ENDED.set(self.0);
    }
}

/// Runs an item, and records its number if it unwinds. It costs nothing if the item's code cannot unwind.
#[inline(always)]
pub(crate) fn item<R>(number: u64, run: impl FnOnce() -> R) -> R {
    let unwinding = Unwinding(number);
    let result = run();
    std::mem::forget(unwinding);
    result
}

/// Reads the clock, and ends the item by a panic if its time is over. Returns the time of the item's first
/// reading: `since`, unless `since` is 0.
#[cold]
#[inline(never)]
fn read_clock(since: u64) -> u64 {
    // If panics abort the program, a panic cannot end only the loop, so ignore the time limit.
    if cfg!(panic = "abort") {
        return since;
    }
    let since = if since == 0 { START.elapsed().as_nanos() as u64 + 1 } else { since };
    let first = *START + Duration::from_nanos(since - 1);
    if let Some(overtime) = LIMIT.with_borrow(|limit| limit.as_ref().and_then(|limit| limit.overtime(first)))
    {
        resume_unwind(Box::new(Ended(overtime)));
    }
    since
}

/// Runs items with a time limit. Returns the number of the item of this thread that has exceeded it.
pub(crate) fn limited(limit: Option<&TimeLimit>, run: &mut dyn FnMut()) -> Option<u64> {
    let Some(limit) = limit else {
        run();
        return None;
    };
    let outer = LIMIT.replace(Some(limit.clone()));
    let ended = catch_unwind(AssertUnwindSafe(run));
    LIMIT.set(outer);
    match ended.map_err(<Box<dyn Any + Send>>::downcast::<Ended>) {
        Ok(()) => None,
        Err(Ok(ended)) => (ended.0 == Overtime::Own).then(|| ENDED.get()),
        Err(Err(panic)) => resume_unwind(panic),
    }
}
