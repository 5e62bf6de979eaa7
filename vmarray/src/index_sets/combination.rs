//! [`Combination`]: the counted results of a join of index sets (lists of tuples with labelled columns).
//! Writes these tuples to RAM, to separate columns, to sets of limited length, or to arrays.

use std::fmt;
use std::ops::Range;

use backend_api::Device;

use super::chunks::CombinationChunks;
use super::columns::{self, IndexSetColumns, to_columns};
use super::engine::{JoinEngine, JoinLimits, StripPiece};
use super::keys::FoldedMultiply;
use super::merge::Merge;
use super::{Dimension, IndexSet, PagedIndexSet, Tuples, count_of};
use crate::array::VirtualArray;
use crate::array::builder::Builder;
use crate::base::element::Element;
#[cfg(doc)]
use crate::base::error::ErrorKind;
use crate::base::error::Result;
use crate::base::memory::zeroed_vec;
use crate::engine::shared_work;
use crate::ops::view::{INTERNAL, Linear, Store as _, ViewMut as _};
use crate::setup::any::AnyDevice;

/// The result of a join of two index sets. Its tuples are counted but not yet written.
///
/// The number of tuples gives the length of a target array, so the results can be larger than RAM.
///
/// ```
/// use vmarray::{prelude::*, IndexSet};
/// use vmarray::index_set::{Combine, Tuples};
/// let a = IndexSet::from_rows([0, 1], [[0, 0], [0, 1], [1, 0]])?;
/// let b = IndexSet::from_rows([0, 2], [[0, 2], [1, 3]])?;
/// let merged = Combine::new(&a, &b).run()?;
/// assert!(merged.len() == 3 && !merged.is_empty() && merged.dimensions() == [0, 1, 2]);
/// let array = VirtualArray::<u64>::new(merged.len() * merged.dimensions().len())?;
/// merged.write_to(&array, 0)?;
/// assert_eq!(array.to_vec(..)?, [0, 0, 2, 0, 1, 2, 1, 0, 3]);
/// assert_eq!(merged.to_index_set()?.values(), array.to_vec(..)?);
/// let lengths = merged.chunks(2).map(|chunk| chunk.map(|set| set.len()));
/// assert_eq!(lengths.collect::<Result<Vec<_>, _>>()?, [2, 1]);
/// assert_eq!(merged.to_paged(|array| array.page_len(64))?.len(), 3);
/// # Ok::<(), vmarray::Error>(())
/// ```
pub struct Combination<'a, A: ?Sized, B: ?Sized> {
    engine: JoinEngine<'a, A, B, FoldedMultiply>,
    threads: usize,
}

impl<A: Tuples + ?Sized, B: Tuples + ?Sized> fmt::Debug for Combination<'_, A, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Combination")
            .field("dimensions", &self.dimensions())
            .field("len", &self.len())
            .field("pieces", &self.engine.pieces())
            .finish_non_exhaustive()
    }
}

impl<'a, A: Tuples + ?Sized, B: Tuples + ?Sized> Combination<'a, A, B> {
    pub(super) fn find(a: &'a A, b: &'a B, merge: Merge, limits: JoinLimits) -> Result<Self> {
        Ok(Self { engine: JoinEngine::new(a, b, merge, limits)?, threads: limits.threads })
    }

    /// Returns the number of result tuples.
    #[must_use]
    pub fn len(&self) -> usize {
        self.engine.len()
    }

    /// Returns true if there are no results.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the dimensions of a result tuple: all dimensions of the first set, then the dimensions that
    /// only the second set has.
    #[must_use]
    pub fn dimensions(&self) -> &[Dimension] {
        &self.engine.merge().dimensions
    }

    fn width(&self) -> usize {
        self.engine.merge().width()
    }

    /// Returns all results in RAM. All threads write to one allocation.
    ///
    /// # Errors
    /// [`NoMemory`](ErrorKind::NoMemory), [`TooLong`](ErrorKind::TooLong). If the inputs exceed the memory
    /// bound, the call reads them again, and can also return errors of reads and
    /// [`InputChanged`](ErrorKind::InputChanged).
    pub fn to_index_set(&self) -> Result<IndexSet> {
        CombinationChunks::new(&self.engine, usize::MAX, self.threads).chunk()
    }

    /// Returns all results in columns, without an intermediate index set. All threads write to the columns.
    ///
    /// ```
    /// use vmarray::{IndexSet, index_set::Combine};
    /// let a = IndexSet::from_rows([0, 1], [[0, 7], [1, 8]])?;
    /// let b = IndexSet::from_columns([(1, [8, 7]), (2, [5, 4])])?;
    /// let columns = Combine::new(&a, &b).run()?.to_columns()?;
    /// assert_eq!(columns.column(2)?, [4, 5]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`to_index_set`](Self::to_index_set).
    pub fn to_columns(&self) -> Result<IndexSetColumns> {
        let mut columns = IndexSetColumns::unspecified(self.dimensions().to_vec(), self.len())?;
        let (mut rest, mut walk) = (columns.slices(), None);
        for number in 0..self.engine.pieces() {
            let len = self.engine.len_of(number);
            let own = rest.iter_mut().filter_map(|rest| rest.split_off_mut(..len)).collect();
            if len > 0 {
                write_columns(&*self.engine.piece(number, &mut walk)?, own, self.threads)?;
            }
        }
        Ok(columns)
    }

    /// Returns an iterator over all results in sets of `tuples` tuples (0 counts as 1); the last set may be
    /// shorter. Only one set is in memory at a time.
    pub fn chunks(&self, tuples: usize) -> CombinationChunks<'_, 'a, A, B> {
        CombinationChunks::new(&self.engine, tuples.max(1), self.threads)
    }

    /// Writes all results to an array, tuple after tuple, beginning at element `start`. The call does not
    /// fetch pages that it overwrites entirely. Each thread needs memory for two pages of results.
    ///
    /// # Errors
    /// [`RangeOutside`](ErrorKind::RangeOutside) if the array is too short; errors of
    /// [`to_index_set`](Self::to_index_set) and [`ViewMut::write`](crate::views::ViewMut::write). After an
    /// error the contents of the elements are unspecified.
    pub fn write_to<D: Device>(&self, array: &VirtualArray<u64, D>, start: usize) -> Result<()> {
        let width = self.width();
        let count = count_of(self.len(), width)?;
        Linear::whole(array.len()).places_at(start, count)?;
        let mut walk = None;
        let mut at = start;
        for number in 0..self.engine.pieces() {
            let values = self.engine.len_of(number) * width;
            if values > 0 {
                let piece = self.engine.piece(number, &mut walk)?;
                write_piece(&piece, width, self.threads, array, at..at + values)?;
            }
            at += values;
        }
        Ok(())
    }

    /// Writes all results to a new array, and returns it as an index set. The closure `describe` gets the
    /// array's builder, and may set its devices and its cache.
    ///
    /// # Errors
    /// The errors of [`Builder::build`] and [`write_to`](Self::write_to).
    pub fn to_paged<D: Device>(
        &self,
        describe: impl FnOnce(Builder<u64, AnyDevice>) -> Builder<u64, D>,
    ) -> Result<PagedIndexSet<D>> {
        let array = describe(VirtualArray::builder(count_of(self.len(), self.width())?)).build()?;
        self.in_array(array)
    }

    /// Writes all results to a new array on the devices of an existing array.
    pub(super) fn to_alike<T: Element, D: Device>(
        &self,
        like: &VirtualArray<T, D>,
    ) -> Result<PagedIndexSet<D>> {
        self.in_array(like.array_like(count_of(self.len(), self.width())?, INTERNAL)?)
    }

    /// Writes all results to an array that has exactly their length.
    fn in_array<D: Device>(&self, array: VirtualArray<u64, D>) -> Result<PagedIndexSet<D>> {
        self.write_to(&array, 0)?;
        Ok(PagedIndexSet::assemble(self.dimensions().to_vec(), array, self.len()))
    }
}

/// Writes all results of a piece of the join to columns, in parts that fit into the caches of a core.
fn write_columns(piece: &StripPiece<'_>, columns: Vec<&mut [u64]>, threads: usize) -> Result<()> {
    /// The number of values that a thread writes at a time.
    const VALUES: usize = 64 << 10;
    let width = columns.len();
    let parts = columns::parts(columns, VALUES.checked_div(width).unwrap_or(1).max(1));
    shared_work::for_each_with(threads, parts, Vec::new, |rows: &mut Vec<u64>, (first, mut columns)| {
        rows.resize(columns.first().map_or(0, |column| column.len()) * width, 0);
        piece.emit(first, rows);
        to_columns(rows, &mut columns);
        Ok(())
    })
}

/// Writes all results of a piece of the join to a range of elements; each thread writes a page at a time.
fn write_piece<D: Device>(
    piece: &StripPiece<'_>,
    width: usize,
    threads: usize,
    array: &VirtualArray<u64, D>,
    range: Range<usize>,
) -> Result<()> {
    let pages = array.page_of(range.start)..array.page_of(range.end - 1) + 1;
    shared_work::for_each_with(threads, pages, Vec::new, |buffer: &mut Vec<u64>, page| {
        let page = array.page_range(page);
        let part = page.start.max(range.start)..page.end.min(range.end);
        // The tuples that overlap this page. The first tuple may begin on the previous page.
        let (from, to) = (part.start - range.start, part.end - range.start);
        let tuples = from / width..to.div_ceil(width);
        if buffer.len() < tuples.len() * width {
            *buffer = zeroed_vec(tuples.len() * width)?;
        }
        let values = &mut buffer[..tuples.len() * width];
        piece.emit(tuples.start, values);
        array.write(part.start, &values[from - tuples.start * width..][..part.len()])
    })
}
