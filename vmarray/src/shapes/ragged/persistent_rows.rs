//! The number of rows of a ragged array in files, which each commit stores.

use std::sync::Arc;

use vmarray_support::warn;

use crate::base::error::Result;
use crate::engine::pager::{Pager, PersistentLen};

/// The number of rows of a ragged array, which its files store.
#[derive(Debug)]
pub(super) struct RowsKept {
    pub kept: Arc<PersistentLen>,
    /// The number of rows to store when this value is dropped.
    pub rows: usize,
    pub is_read_only: bool,
}

impl RowsKept {
    /// Sets the number of rows that the files must keep.
    pub fn of(mut self, rows: usize) -> Self {
        self.rows = rows;
        self
    }

    /// Stops storing the number of rows, because the program keeps only the array of elements.
    pub fn leave(self) {
        self.kept.give_up();
    }

    /// Makes the first `rows` rows durable. `parts` are the pagers of elements and of row offsets.
    pub fn sync(&self, rows: usize, parts: [&Pager; 2]) -> Result<()> {
        if self.is_read_only {
            return Ok(());
        }
        // Store all pages that can be stored, even if one cannot.
        let settled = parts.into_iter().map(Pager::settle_all).fold(Ok(()), Result::and);
        let stored = self.kept.store(settled.is_ok().then_some(rows as u64));
        settled.and(stored)
    }
}

impl Drop for RowsKept {
    /// Stores the number of rows. Elements and offsets have recorded before if they could be stored.
    fn drop(&mut self) {
        if self.is_read_only {
            return;
        }
        if let Err(error) = self.kept.store(Some(self.rows as u64)) {
            warn::warn(format!(
                "a ragged array was dropped, but not all of its rows could be stored: {error}"
            ));
        }
    }
}
