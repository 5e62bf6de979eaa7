//! Sets of index tuples with a dimension label for each column, and the natural join of two sets.

#[forbid(unsafe_code)]
mod chunks;
#[forbid(unsafe_code)]
mod columns;
#[forbid(unsafe_code)]
mod combination;
#[forbid(unsafe_code)]
mod combine;
#[forbid(unsafe_code)]
mod cut;
#[forbid(unsafe_code)]
mod edit;
#[forbid(unsafe_code)]
mod emit;
#[forbid(unsafe_code)]
mod engine;
#[forbid(unsafe_code)]
mod keys;
#[forbid(unsafe_code)]
mod merge;
#[forbid(unsafe_code)]
mod on_devices;
#[forbid(unsafe_code)]
mod paged;
#[forbid(unsafe_code)]
mod partition;
#[forbid(unsafe_code)]
mod runs;
#[forbid(unsafe_code)]
mod source;
#[cfg(feature = "host")]
#[forbid(unsafe_code)]
mod stored;
#[forbid(unsafe_code)]
mod tuple_groups;

#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::iter::FusedIterator;

pub use chunks::CombinationChunks;
pub use columns::IndexSetColumns;
pub use combination::Combination;
pub use combine::Combine;
pub use paged::PagedIndexSet;
pub use source::Tuples;
pub use tuple_groups::TupleGroups;

use crate::base::error::{ErrorKind, Result};
use crate::base::scratch_pool;

/// The label of an index set's column: the number of the dimension that the column's values index.
///
/// ```
/// use vmarray::{index_set::Dimension, IndexSet};
/// const TIME: Dimension = 7;
/// let set = IndexSet::from_rows([TIME], [[10], [20]])?;
/// assert_eq!(set.dimensions(), [TIME]);
/// # Ok::<(), vmarray::Error>(())
/// ```
pub type Dimension = u32;

/// A list of tuples of `u64` values, all of one width, with a dimension label for each column.
///
/// The set keeps the order of the tuples, and duplicates. Labels are distinct numbers in any order. One
/// vector stores the values, tuple after tuple. A set without dimensions contains empty tuples, so it stores
/// only their number.
///
/// Two sets are equal (`==`) if they have the same columns and the same tuples in the same order.
///
/// [`combine`](Self::combine) computes the natural join of two sets in RAM. [`Combine`] can also limit the
/// memory, return the results in chunks, or write them to an array larger than RAM.
///
/// ```
/// use vmarray::{ErrorKind, IndexSet};
/// let mut set = IndexSet::new([7, 0])?;
/// set.push(&[1, 0])?;
/// assert!(set.push(&[3]).is_err() && IndexSet::new([3, 3]).is_err());
/// set.push(&[2, u64::MAX])?;
/// assert!(set.len() == 2 && !set.is_empty() && set.dimensions() == [7, 0]);
/// assert_eq!(set.rows().nth(1), Some(&[2, u64::MAX][..]));
/// assert!(set.column(0)?.eq([0, u64::MAX]));
///
/// let other = IndexSet::from_rows([0, 3], [[0, 8], [u64::MAX, 9], [0, 8]])?;
/// let mut merged = set.combine(&other)?;
/// assert_eq!(merged.dimensions(), [7, 0, 3]);
/// assert!(merged.rows().eq([[1, 0, 8], [1, 0, 8], [2, u64::MAX, 9]]));
/// merged.dedup();
/// let mut pairs = merged.project([3, 7])?.relabel([0, 1])?;
/// assert_eq!(pairs.values(), [8, 1, 9, 2]);
/// pairs.push(&[8, 0])?;
/// pairs.sort()?;
/// assert_eq!(pairs, IndexSet::from_values([0, 1], vec![8, 0, 8, 1, 9, 2])?);
/// assert_eq!(pairs, IndexSet::from_columns([(0, [8, 8, 9]), (1, [0, 1, 2])])?);
///
/// let error = IndexSet::from_rows([0, 1], [vec![5, 6], vec![7]]).unwrap_err();
/// assert_eq!(*error.kind(), ErrorKind::RaggedTuple { tuple: 1, expected: 2, got: 1 });
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IndexSet {
    dimensions: Vec<Dimension>,
    values: Vec<u64>,
    /// The number of tuples, stored because the values do not determine it if the set has no dimensions.
    len: usize,
}

impl IndexSet {
    /// Creates a set without tuples.
    ///
    /// # Errors
    /// [`DuplicateDimension`](ErrorKind::DuplicateDimension) if a label occurs twice.
    pub fn new(dimensions: impl IntoIterator<Item = Dimension>) -> Result<Self> {
        Ok(Self { dimensions: distinct(dimensions)?, values: Vec::new(), len: 0 })
    }

    /// Creates a set of the given tuples (rows), in their order.
    ///
    /// # Errors
    /// [`DuplicateDimension`](ErrorKind::DuplicateDimension); [`RaggedTuple`](ErrorKind::RaggedTuple) if a
    /// tuple's number of values differs from the number of dimensions; [`NoMemory`](ErrorKind::NoMemory).
    pub fn from_rows<R: AsRef<[u64]>>(
        dimensions: impl IntoIterator<Item = Dimension>,
        rows: impl IntoIterator<Item = R>,
    ) -> Result<Self> {
        let mut set = Self::new(dimensions)?;
        rows.into_iter().try_for_each(|row| set.push(row.as_ref()))?;
        Ok(set)
    }

    /// Creates a set from a vector of values, tuple after tuple, without a copy.
    ///
    /// # Errors
    /// [`DuplicateDimension`](ErrorKind::DuplicateDimension); [`RaggedTuple`](ErrorKind::RaggedTuple) if
    /// the last tuple is incomplete, or if there are values but no dimensions.
    pub fn from_values(dimensions: impl IntoIterator<Item = Dimension>, values: Vec<u64>) -> Result<Self> {
        let dimensions = distinct(dimensions)?;
        let len = whole_tuples(values.len(), dimensions.len())?;
        Ok(Self { dimensions, values, len })
    }

    /// Creates a set from parts that the caller has checked.
    pub(crate) fn assemble(dimensions: Vec<Dimension>, values: Vec<u64>, len: usize) -> Self {
        debug_assert_eq!(values.len(), len * dimensions.len());
        Self { dimensions, values, len }
    }

    /// Appends one tuple.
    ///
    /// # Errors
    /// [`RaggedTuple`](ErrorKind::RaggedTuple); [`NoMemory`](ErrorKind::NoMemory). The set is then
    /// unchanged.
    pub fn push(&mut self, tuple: &[u64]) -> Result<()> {
        let (expected, got) = (self.width(), tuple.len());
        if got != expected {
            return Err(ErrorKind::RaggedTuple { tuple: self.len, expected, got }.into());
        }
        let len = count_of(self.len.saturating_add(1), 1)?;
        let no_memory = |_| ErrorKind::NoMemory { bytes: size_of_val(tuple) };
        self.values.try_reserve(got).map_err(no_memory)?;
        self.values.extend_from_slice(tuple);
        self.len = len;
        Ok(())
    }

    /// Returns the number of tuples, including duplicates.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the set has no tuples.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn width(&self) -> usize {
        self.dimensions.len()
    }

    /// Returns the labels of the columns, in the order of a tuple's values.
    #[must_use]
    pub fn dimensions(&self) -> &[Dimension] {
        &self.dimensions
    }

    /// Returns all values as one slice, tuple after tuple.
    #[must_use]
    pub fn values(&self) -> &[u64] {
        &self.values
    }

    /// Iterates over the tuples as slices, in order. `rows().nth(index)` returns a tuple in constant time.
    #[must_use]
    pub fn rows(&self) -> IndexSetRows<'_> {
        IndexSetRows { values: &self.values, width: self.width(), len: self.len }
    }

    /// Iterates over the values of one dimension, in the order of the tuples.
    /// [`to_columns`](Self::to_columns) copies all columns, on all threads.
    ///
    /// # Errors
    /// [`UnknownDimension`](ErrorKind::UnknownDimension) if no column has this label.
    pub fn column(&self, dimension: Dimension) -> Result<impl ExactSizeIterator<Item = u64> + '_> {
        let at = self.position(dimension)?;
        Ok(self.rows().map(move |row| row[at]))
    }

    fn position(&self, dimension: Dimension) -> Result<usize> {
        let unknown = || ErrorKind::UnknownDimension { dimension }.into();
        self.dimensions.iter().position(|&label| label == dimension).ok_or_else(unknown)
    }
}

/// Converts a set to the vector of its values, tuple after tuple, without a copy.
impl From<IndexSet> for Vec<u64> {
    fn from(mut set: IndexSet) -> Self {
        std::mem::take(&mut set.values)
    }
}

/// Returns the memory of a long set to the pool of scratch memory.
impl Drop for IndexSet {
    fn drop(&mut self) {
        scratch_pool::keep(std::mem::take(&mut self.values));
    }
}

impl<'a> IntoIterator for &'a IndexSet {
    type Item = &'a [u64];
    type IntoIter = IndexSetRows<'a>;

    fn into_iter(self) -> IndexSetRows<'a> {
        self.rows()
    }
}

/// A double-ended iterator over the tuples of an [`IndexSet`], as slices.
///
/// ```
/// let set = vmarray::IndexSet::from_rows([0], [[1], [2], [3]])?;
/// let mut rows = set.rows();
/// assert_eq!(rows.next_back(), Some(&[3][..]));
/// assert_eq!(rows.len(), 2);
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct IndexSetRows<'a> {
    values: &'a [u64],
    width: usize,
    len: usize,
}

impl<'a> Iterator for IndexSetRows<'a> {
    type Item = &'a [u64];

    #[inline]
    fn next(&mut self) -> Option<&'a [u64]> {
        self.len = self.len.checked_sub(1)?;
        let (row, rest) = self.values.split_at(self.width);
        self.values = rest;
        Some(row)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.len, Some(self.len))
    }

    fn nth(&mut self, n: usize) -> Option<&'a [u64]> {
        let skipped = n.min(self.len);
        self.len -= skipped;
        self.values = &self.values[skipped * self.width..];
        self.next()
    }
}

impl DoubleEndedIterator for IndexSetRows<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.len = self.len.checked_sub(1)?;
        let (rest, row) = self.values.split_at(self.len * self.width);
        self.values = rest;
        Some(row)
    }
}

impl ExactSizeIterator for IndexSetRows<'_> {}
impl FusedIterator for IndexSetRows<'_> {}

/// Collects labels; returns an error if a label occurs twice.
pub(crate) fn distinct(dimensions: impl IntoIterator<Item = Dimension>) -> Result<Vec<Dimension>> {
    let dimensions: Vec<Dimension> = dimensions.into_iter().collect();
    let mut seen = HashSet::with_capacity(dimensions.len());
    match dimensions.iter().find(|&&dimension| !seen.insert(dimension)) {
        Some(&dimension) => Err(ErrorKind::DuplicateDimension { dimension }.into()),
        None => Ok(dimensions),
    }
}

/// Returns the number of tuples of `width` values in `values` values; an error if one is incomplete.
fn whole_tuples(values: usize, width: usize) -> Result<usize> {
    let (tuple, got) = (values.checked_div(width).unwrap_or(0), values.checked_rem(width).unwrap_or(values));
    if got > 0 { Err(ErrorKind::RaggedTuple { tuple, expected: width, got }.into()) } else { Ok(tuple) }
}

/// Returns the number of values of `len` tuples.
fn count_of(len: usize, width: usize) -> Result<usize> {
    let too_long = || ErrorKind::TooLong { elements: len as u64, element_bytes: width.saturating_mul(8) };
    let values = len.checked_mul(width).filter(|&values| values <= isize::MAX as usize / 8 || width == 0);
    values.filter(|_| len < usize::MAX).ok_or_else(|| too_long().into())
}
