//! [`Tuples`]: the input of a join. Tuples are in RAM, in an array, or come from a type of the program.

use std::ops::Range;

use super::{Dimension, IndexSet};
use crate::base::error::Result;
use crate::base::scratch_pool::ScratchVec;
use crate::engine::shared_work;
use crate::ops::executor::OperandStore;

/// A source of tuples for a join: an [`IndexSet`], a [`PagedIndexSet`](super::PagedIndexSet), or a type of
/// the program. Several threads may read from it at the same time.
///
/// While an operation uses the tuples, their labels and their number must not change. Otherwise results may
/// be wrong or a call may panic, but the behaviour is not undefined.
///
/// ```
/// use vmarray::{IndexSet, Result};
/// use vmarray::index_set::{Combine, Dimension, Tuples};
/// /// The first square numbers, as many as this.
/// struct Squares(usize);
///
/// impl Tuples for Squares {
///     fn dimensions(&self) -> &[Dimension] {
///         &[0]
///     }
///     fn len(&self) -> usize {
///         self.0
///     }
///     fn read_tuples(&self, first: usize, into: &mut [u64]) -> Result<()> {
///         into.iter_mut().zip(first as u64..).for_each(|(value, i)| *value = i * i);
///         Ok(())
///     }
/// }
///
/// let set = IndexSet::from_rows([0], [[3], [4], [9]])?;
/// assert_eq!((set.in_memory(), Squares(9).in_memory()), (Some(&[3, 4, 9][..]), None));
/// let squares = Combine::new(&set, &Squares(100)).run()?.to_index_set()?;
/// assert_eq!(squares.values(), [4, 9]);
/// # Ok::<(), vmarray::Error>(())
/// ```
#[allow(clippy::len_without_is_empty, reason = "no caller uses it")]
pub trait Tuples: Sync {
    /// Returns the labels of the columns, which must be distinct. Otherwise operations return
    /// [`DuplicateDimension`](crate::ErrorKind::DuplicateDimension).
    fn dimensions(&self) -> &[Dimension];

    /// Returns the number of tuples.
    fn len(&self) -> usize;

    /// Copies consecutive tuples into a slice until it is full, beginning at tuple `first`.
    ///
    /// # Errors
    /// Errors of the source, which the operation that reads it returns.
    fn read_tuples(&self, first: usize, into: &mut [u64]) -> Result<()>;

    /// Returns all values, tuple after tuple, if they are in RAM. Operations then read them without a copy.
    fn in_memory(&self) -> Option<&[u64]> {
        None
    }

    /// Returns the array that stores the values, tuple after tuple, if there is one.
    #[doc(hidden)]
    fn in_array(&self) -> Option<&dyn OperandStore> {
        None
    }
}

impl Tuples for IndexSet {
    fn dimensions(&self) -> &[Dimension] {
        self.dimensions()
    }

    fn len(&self) -> usize {
        self.len()
    }

    fn read_tuples(&self, first: usize, into: &mut [u64]) -> Result<()> {
        into.copy_from_slice(&self.values()[first * self.width()..][..into.len()]);
        Ok(())
    }

    fn in_memory(&self) -> Option<&[u64]> {
        Some(self.values())
    }
}

/// Some tuples in RAM, borrowed or owned. For tuples without dimensions, only their number.
#[derive(Debug)]
pub(super) struct TupleBlock<'a> {
    values: BlockValues<'a>,
    width: usize,
    len: usize,
}

#[derive(Debug)]
enum BlockValues<'a> {
    Lent(&'a [u64]),
    Owned(ScratchVec<u64>),
}

impl<'a> TupleBlock<'a> {
    /// Borrows the tuples of a source if they are in RAM. Otherwise loads them, with several threads.
    pub(super) fn load<S: Tuples + ?Sized>(
        source: &'a S,
        tuples: Range<usize>,
        threads: usize,
    ) -> Result<Self> {
        /// Number of values that a thread reads at a time.
        const VALUES: usize = 128 << 10;
        let (width, len) = (source.dimensions().len(), tuples.len());
        if let Some(values) = source.in_memory() {
            let values = BlockValues::Lent(&values[tuples.start * width..tuples.end * width]);
            return Ok(Self { values, width, len });
        }
        let mut values = ScratchVec::unspecified(super::count_of(len, width)?)?;
        if let Some(at_once) = VALUES.checked_div(width) {
            let at_once = at_once.max(1);
            let parts = values.chunks_mut(at_once * width).zip((tuples.start..).step_by(at_once));
            shared_work::for_each(threads, parts, |(into, first)| source.read_tuples(first, into))?;
        }
        Ok(Self { values: BlockValues::Owned(values), width, len })
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn width(&self) -> usize {
        self.width
    }

    pub(super) fn values(&self) -> &[u64] {
        match &self.values {
            BlockValues::Lent(values) => values,
            BlockValues::Owned(values) => values,
        }
    }

    #[inline(always)]
    pub(super) fn row(&self, number: usize) -> &[u64] {
        &self.values()[number * self.width..][..self.width]
    }

    /// Frees the memory. No code may read a tuple afterwards.
    pub(super) fn forget(&mut self) {
        self.values = BlockValues::Lent(&[]);
    }

    pub(super) fn is_owned(&self) -> bool {
        matches!(self.values, BlockValues::Owned(_))
    }
}
