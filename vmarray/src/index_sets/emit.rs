//! Output of a join: writes the result tuples, beginning at any given result number.

use super::runs::{AHEAD, TupleRun, TupleRuns};
use super::source::TupleBlock;
use crate::base::error::{ErrorKind, Result};
use crate::base::memory::{prefetch_slice, zeroed_vec};
use crate::engine::shared_work;

/// Number of tuples of the first set for which [`Matches`] stores one count of results.
const STEP: usize = 1024;

/// For each tuple of the first set, the matching tuples of the second set.
#[derive(Debug)]
pub(super) enum Matches {
    /// Each tuple of the first set matches all tuples of the second set.
    All { each: usize, total: usize },
    /// Each tuple of the first set matches a run of consecutive tuples of the grouped second set.
    Each {
        runs: TupleRuns,
        /// Before each [`STEP`] tuples of the first set, the number of results so far.
        before: Vec<usize>,
        total: usize,
    },
}

impl Matches {
    pub(super) fn all(a: usize, b: usize) -> Result<Self> {
        let too_long = || ErrorKind::TooLong { elements: u64::MAX, element_bytes: 8 };
        Ok(Self::All { each: b, total: a.checked_mul(b).ok_or_else(too_long)? })
    }

    /// Computes the prefix sums of the runs' lengths, which are the numbers of results.
    pub(super) fn each(runs: TupleRuns, threads: usize) -> Result<Self> {
        let mut before = zeroed_vec(runs.len().div_ceil(STEP))?;
        /// Number of sums that a thread computes at a time.
        const AT_ONCE: usize = 64;
        let sums = before.chunks_mut(AT_ONCE).zip((0..).step_by(AT_ONCE));
        shared_work::for_each(threads, sums, |(sums, first)| {
            for (number, sum) in sums.iter_mut().enumerate() {
                let start = (first + number) * STEP;
                *sum = (start..runs.len().min(start + STEP)).map(|tuple| runs.get(tuple).len).sum();
            }
            Ok(())
        })?;
        let mut total = 0_usize;
        for sum in &mut before {
            let next =
                total.checked_add(*sum).ok_or(ErrorKind::TooLong { elements: u64::MAX, element_bytes: 8 })?;
            *sum = total;
            total = next;
        }
        Ok(Self::Each { runs, before, total })
    }

    pub(super) fn total(&self) -> usize {
        match self {
            Self::All { total, .. } | Self::Each { total, .. } => *total,
        }
    }

    #[inline(always)]
    fn run(&self, tuple: usize) -> TupleRun {
        match self {
            Self::All { each, .. } => TupleRun { start: 0, len: *each },
            Self::Each { runs, .. } => runs.get(tuple),
        }
    }

    /// Returns the tuple of the first set of a result, and the result's number within this tuple's run.
    fn locate(&self, result: usize) -> (usize, usize) {
        match self {
            Self::All { each, .. } => (result / each, result % each),
            Self::Each { runs, before, .. } => {
                let step = before.partition_point(|&sum| sum <= result) - 1;
                let mut skip = result - before[step];
                let mut tuple = step * STEP;
                while skip >= runs.get(tuple).len {
                    skip -= runs.get(tuple).len;
                    tuple += 1;
                }
                (tuple, skip)
            }
        }
    }

    /// Writes results until `into` is full, beginning at result number `first`. A result has the values of a
    /// tuple of `a`, followed by the `rest_width` values in `rest` of a matching tuple.
    pub(super) fn emit(
        &self,
        a: &TupleBlock<'_>,
        rest: &[u64],
        rest_width: usize,
        first: usize,
        into: &mut [u64],
    ) {
        macro_rules! by_width {
            ($($A:literal: $($R:literal)+,)+) => {
                match (a.width(), rest_width) {
                    $($(($A, $R) => self.emit_fixed::<$A, $R>(a, rest, first, into),)+)+
                    _ => self.emit_any(a, rest, rest_width, first, into),
                }
            };
        }
        if into.is_empty() {
            return;
        }
        by_width!(1: 1 2 3 4, 2: 1 2 3 4, 3: 1 2 3 4, 4: 1 2 3 4, 5: 1 2 3 4, 6: 1 2 3 4,);
    }

    #[inline(always)]
    fn emit_fixed<const A: usize, const R: usize>(
        &self,
        a: &TupleBlock<'_>,
        rest: &[u64],
        first: usize,
        into: &mut [u64],
    ) {
        let (rows, rests) = (a.values().as_chunks::<A>().0, rest.as_chunks::<R>().0);
        let mut results = into.chunks_exact_mut(A + R);
        self.for_each_run(first, results.len(), |tuple, run| {
            if tuple + AHEAD < a.len() {
                let ahead = self.run(tuple + AHEAD);
                prefetch_slice(&rests[ahead.start..ahead.start + ahead.len.min(1)]);
            }
            let row = rows[tuple];
            // `results` must be the second operand of `zip`: at its end, `zip` takes one more item from the
            // first operand and drops it.
            for (rest, result) in rests[run.start..run.start + run.len].iter().zip(results.by_ref()) {
                result[..A].copy_from_slice(&row);
                result[A..].copy_from_slice(rest);
            }
        });
    }

    fn emit_any(&self, a: &TupleBlock<'_>, rest: &[u64], rest_width: usize, first: usize, into: &mut [u64]) {
        let width = a.width();
        let mut results = into.chunks_exact_mut(width + rest_width);
        self.for_each_run(first, results.len(), |tuple, run| {
            let row = a.row(tuple);
            for (result, partner) in results.by_ref().take(run.len).zip(run.start..) {
                result[..width].copy_from_slice(row);
                result[width..].copy_from_slice(&rest[partner * rest_width..][..rest_width]);
            }
        });
    }

    /// Calls `visit` with each tuple of the first set that has one of `count` results, and with the part of
    /// its run for these results.
    #[inline(always)]
    fn for_each_run(&self, first: usize, count: usize, mut visit: impl FnMut(usize, TupleRun)) {
        let (mut tuple, mut skip) = self.locate(first);
        let mut left = count;
        while left > 0 {
            let run = self.run(tuple);
            let len = (run.len - skip).min(left);
            if len > 0 {
                visit(tuple, TupleRun { start: run.start + skip, len });
            }
            left -= len;
            skip = 0;
            tuple += 1;
        }
    }
}
