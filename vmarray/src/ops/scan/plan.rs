//! [`PrefixScan`]: the parameters of one prefix sum.

use std::ops::Range;

use crate::ops::executor::ResultStore;

/// The parameters of a prefix sum over elements of a store.
pub(crate) struct PrefixScan<'a> {
    pub store: &'a dyn ResultStore,
    /// The number of elements in a page.
    pub page_len: usize,
    pub range: Range<usize>,
    /// The number of elements in a row; a new sum begins at the start of each row. 0 without rows.
    pub row: usize,
    /// True for exclusive sums, which do not include the element itself.
    pub is_exclusive: bool,
}
