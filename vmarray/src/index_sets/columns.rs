//! Conversion between index sets (stored tuple by tuple) and columns, on all threads.

use super::{Dimension, IndexSet, count_of, distinct};
use crate::base::error::{ErrorKind, Result};
use crate::base::scoped_threads::CORES;
use crate::base::scratch_pool::{self, unspecified_vec};
use crate::engine::shared_work;

/// Number of tuples of a block. A block fits into the first-level cache of a core while a thread converts it.
const BLOCK: usize = 256;
/// The number of tuples that a thread converts at a time.
const AT_ONCE: usize = 16 << 10;
/// Minimum number of tuples for which a second thread helps.
const TOGETHER: usize = 64 << 10;

fn threads_for(len: usize) -> usize {
    if len < TOGETHER { 1 } else { *CORES }
}

/// The columns of an [`IndexSet`], each in a separate vector.
///
/// [`to_columns`](IndexSet::to_columns) creates them from a set;
/// [`Combination::to_columns`](super::Combination::to_columns) writes results to columns without an
/// intermediate set.
///
/// ```
/// use vmarray::IndexSet;
/// let columns = IndexSet::from_rows([7, 0], [[1, 2], [3, 4]])?.to_columns()?;
/// assert!(columns.len() == 2 && !columns.is_empty() && columns.dimensions() == [7, 0]);
/// assert_eq!(columns.column(0)?, [2, 4]);
/// assert_eq!(IndexSet::from_columns(columns.iter())?.values(), [1, 2, 3, 4]);
/// assert_eq!(columns.into_vecs(), [[1, 3], [2, 4]]);
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IndexSetColumns {
    dimensions: Vec<Dimension>,
    columns: Vec<Vec<u64>>,
    len: usize,
}

impl IndexSetColumns {
    /// Creates columns with unspecified values, which the caller overwrites.
    pub(super) fn unspecified(dimensions: Vec<Dimension>, len: usize) -> Result<Self> {
        let columns = dimensions.iter().map(|_| unspecified_vec(len)).collect::<Result<_>>()?;
        Ok(Self { dimensions, columns, len })
    }

    /// The labels of the columns.
    #[must_use]
    pub fn dimensions(&self) -> &[Dimension] {
        &self.dimensions
    }

    /// The number of tuples.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the set has no tuples.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the values of one dimension, in the order of the tuples.
    ///
    /// # Errors
    /// [`UnknownDimension`](ErrorKind::UnknownDimension) if no column has this label.
    pub fn column(&self, dimension: Dimension) -> Result<&[u64]> {
        let found = self.iter().find(|(label, _)| *label == dimension);
        found.map(|(_, column)| column).ok_or_else(|| ErrorKind::UnknownDimension { dimension }.into())
    }

    /// Iterates over the columns, as pairs of a dimension and its values.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (Dimension, &[u64])> {
        self.dimensions.iter().copied().zip(self.columns.iter().map(Vec::as_slice))
    }

    /// Returns the columns as vectors, without a copy.
    #[must_use]
    pub fn into_vecs(mut self) -> Vec<Vec<u64>> {
        std::mem::take(&mut self.columns)
    }

    pub(super) fn slices(&mut self) -> Vec<&mut [u64]> {
        self.columns.iter_mut().map(Vec::as_mut_slice).collect()
    }
}

/// Returns the memory of long columns to the pool of scratch memory.
impl Drop for IndexSetColumns {
    fn drop(&mut self) {
        self.columns.drain(..).for_each(scratch_pool::keep);
    }
}

/// Divides columns into parts of `tuples` tuples. Each item is the index of the part's first tuple, and the
/// part of each column.
pub(super) fn parts(
    columns: Vec<&mut [u64]>,
    tuples: usize,
) -> impl Iterator<Item = (usize, Vec<&mut [u64]>)> {
    let starts = (0..columns.first().map_or(0, |column| column.len())).step_by(tuples);
    let mut columns: Vec<_> = columns.into_iter().map(|column| column.chunks_mut(tuples)).collect();
    starts.map(move |start| (start, columns.iter_mut().filter_map(Iterator::next).collect()))
}

/// Copies tuples to columns.
pub(super) fn to_columns(rows: &[u64], columns: &mut [&mut [u64]]) {
    let width = columns.len();
    for (number, rows) in rows.chunks(BLOCK * width).enumerate() {
        for (at, column) in columns.iter_mut().enumerate() {
            let to = &mut column[number * BLOCK..][..rows.len() / width];
            to.iter_mut().zip(rows[at..].iter().step_by(width)).for_each(|(to, from)| *to = *from);
        }
    }
}

impl IndexSet {
    /// Creates a set from columns: the first values of all columns become the first tuple. All threads copy.
    ///
    /// # Errors
    /// [`DuplicateDimension`](ErrorKind::DuplicateDimension); [`RaggedColumn`](ErrorKind::RaggedColumn) if a
    /// column is not as long as the first one; [`NoMemory`](ErrorKind::NoMemory).
    pub fn from_columns<C: AsRef<[u64]>>(columns: impl IntoIterator<Item = (Dimension, C)>) -> Result<Self> {
        let (labels, columns): (Vec<Dimension>, Vec<C>) = columns.into_iter().unzip();
        let dimensions = distinct(labels)?;
        let columns: Vec<&[u64]> = columns.iter().map(AsRef::as_ref).collect();
        let (width, len) = (dimensions.len(), columns.first().map_or(0, |column| column.len()));
        if let Some(at) = columns.iter().position(|column| column.len() != len) {
            let (dimension, got) = (dimensions[at], columns[at].len());
            return Err(ErrorKind::RaggedColumn { dimension, expected: len, got }.into());
        }
        let mut values = unspecified_vec(count_of(len, width)?)?;
        if width > 0 {
            let parts = values.chunks_mut(AT_ONCE * width).zip((0..).step_by(AT_ONCE));
            shared_work::for_each(threads_for(len), parts, |(rows, start)| {
                for (rows, start) in rows.chunks_mut(BLOCK * width).zip((start..).step_by(BLOCK)) {
                    for (at, column) in columns.iter().enumerate() {
                        let to = rows[at..].iter_mut().step_by(width);
                        to.zip(&column[start..]).for_each(|(to, from)| *to = *from);
                    }
                }
                Ok(())
            })?;
        }
        Ok(Self::assemble(dimensions, values, len))
    }

    /// Returns the columns, each in a separate vector. All threads copy the values.
    ///
    /// ```
    /// use vmarray::IndexSet;
    /// let set = IndexSet::from_columns([(3, [10, 20]), (1, [7, 8])])?;
    /// let columns = set.to_columns()?;
    /// assert_eq!(columns.column(1)?, [7, 8]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`NoMemory`](ErrorKind::NoMemory).
    pub fn to_columns(&self) -> Result<IndexSetColumns> {
        let mut columns = IndexSetColumns::unspecified(self.dimensions().to_vec(), self.len())?;
        let (width, threads) = (self.dimensions().len(), threads_for(self.len()));
        shared_work::for_each(threads, parts(columns.slices(), AT_ONCE), |(start, mut columns)| {
            let tuples = columns.first().map_or(0, |column| column.len());
            to_columns(&self.values()[start * width..][..tuples * width], &mut columns);
            Ok(())
        })?;
        Ok(columns)
    }
}
