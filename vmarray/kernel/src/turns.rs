//! Loops of kernels on the host, which end when an item has run longer than its launch allows.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Instant;

use backend_api::kernel::{Overtime, TimeLimit};

use crate::number::Integer;
use crate::rules::Numbers;

thread_local! {
    /// The limit of the launch whose items this thread runs.
    static LIMIT: RefCell<Option<TimeLimit>> = const { RefCell::new(None) };
    /// The item that runs.
    static ITEM: Cell<u64> = const { Cell::new(0) };
    /// The first reading of the clock, and its item.
    static SINCE: Cell<Option<(u64, Instant)>> = const { Cell::new(None) };
}

/// The payload of the unwinding that ends an item.
struct Ended(Overtime);

/// Counts the back edges of the loops of one call of a kernel function, and reads the clock at every
/// [`TimeLimit::TURNS`]-th. If the item has to end, `turn` unwinds the function.
#[derive(Debug)]
pub struct Turns {
    left: u32,
}

impl Turns {
    /// Creates a counter for a call, with no back edge counted.
    #[inline(always)]
    pub const fn new() -> Self {
        Self { left: TimeLimit::TURNS }
    }

    /// Counts one back edge.
    #[inline(always)]
    pub fn turn(&mut self) {
        self.left -= 1;
        if self.left == 0 {
            self.left = TimeLimit::TURNS;
            read_clock();
        }
    }

    /// Counts the back edges of a loop over numbers in advance. Returns whether each of them has to be
    /// counted by itself.
    #[inline(always)]
    pub fn enter<T: Integer, const REVERSED: bool>(&mut self, numbers: &Numbers<T, REVERSED>) -> bool {
        let count = numbers.distance();
        if count >= u64::from(TimeLimit::TURNS) {
            return true;
        }
        if u64::from(self.left) <= count {
            self.left = TimeLimit::TURNS;
            read_clock();
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

/// Begins an item.
#[inline(always)]
pub(crate) fn begin(item: u64) {
    ITEM.set(item);
}

/// Ends the item if its time is over.
#[cold]
#[inline(never)]
fn read_clock() {
    // A program that aborts at panics cannot leave the item.
    if cfg!(panic = "unwind")
        && let Some(overtime) = overtime()
    {
        resume_unwind(Box::new(Ended(overtime)));
    }
}

fn overtime() -> Option<Overtime> {
    LIMIT.with_borrow(|limit| {
        let (limit, item) = (limit.as_ref()?, ITEM.get());
        let known = SINCE.get().filter(|(of, _)| *of == item);
        let (_, since) = known.unwrap_or_else(|| (item, Instant::now()));
        SINCE.set(Some((item, since)));
        limit.overtime(since)
    })
}

/// Runs items with a time limit. Returns the item that has exceeded it, if this thread ran it.
pub(crate) fn limited(limit: Option<&TimeLimit>, run: &mut dyn FnMut()) -> Option<u64> {
    let Some(limit) = limit else {
        run();
        return None;
    };
    let outer = LIMIT.replace(Some(limit.clone()));
    SINCE.set(None);
    let ended = catch_unwind(AssertUnwindSafe(run));
    LIMIT.set(outer);
    match ended.map_err(<Box<dyn Any + Send>>::downcast::<Ended>) {
        Ok(()) => None,
        Err(Ok(ended)) => (ended.0 == Overtime::Own).then(|| ITEM.get()),
        Err(Err(panic)) => resume_unwind(panic),
    }
}
