//! Division of an index set's tuples into parts of equal length, which threads process in parallel.

use std::ops::Range;

/// A division of a number of tuples into parts of equal length.
#[derive(Clone, Copy, Debug)]
pub(super) struct SetCut {
    len: usize,
    step: usize,
}

impl SetCut {
    /// Divides `len` tuples into at least one part, each of at most `most` tuples.
    pub(super) fn of(len: usize, most: usize) -> Self {
        // Make the parts equally long, without more parts than the maximum length `most` requires.
        Self { len, step: len.div_ceil(len.div_ceil(most.max(1)).max(1)).max(1) }
    }

    pub(super) fn parts(self) -> usize {
        self.len.div_ceil(self.step)
    }

    pub(super) fn part(self, number: usize) -> Range<usize> {
        let start = number * self.step;
        start..self.len.min(start.saturating_add(self.step))
    }
}
