//! What runs on the devices, by position.

use std::ops::{Range, RangeBounds};

use backend_api::Device;
use bytemuck::NoUninit;

use super::{NdArray, NdLayout, position_outside};
use crate::base::element::{Element, Field};
use crate::base::error::{ErrorKind, Result};
use crate::base::memory::zeroed_vec;
use crate::index_set::{Dimension, Tuples, distinct};

/// Ranges with fewer elements than this between them are searched as one.
const GAP_MAX: usize = 1 << 16;
/// Such ranges make up one of at most this length, since all that is found between them takes memory, too.
const JOINED_MAX: usize = 1 << 22;
/// How many tuples of an index set are looked at together.
const CHUNK: usize = 4096;

impl<T: Element, const N: usize, D: Device> NdArray<T, N, D> {
    /// The positions of all elements whose field has this value, in row-major order. As
    /// [`VirtualArray::find`](crate::VirtualArray::find).
    ///
    /// # Errors
    /// As [`VirtualArray::find`](crate::VirtualArray::find).
    ///
    /// ```
    /// use vmarray::{Field, NdArray};
    /// let image = NdArray::<u8, 2>::builder([50, 50]).tile([8, 8]).build()?;
    /// image.set([3, 40], 1)?;
    /// image.set([20, 5], 1)?;
    /// assert_eq!(image.find(Field::whole(), &1)?, [[3, 40], [20, 5]]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn find<F: NoUninit>(&self, field: Field<T, F>, value: &F) -> Result<Vec<[usize; N]>> {
        self.find_in(.., field, value)
    }

    /// As [`find`](Self::find), within a box.
    ///
    /// What lies between the rows of a box is searched as well where it is short, and left out of the result.
    ///
    /// # Errors
    /// As [`find`](Self::find); [`BoxOutside`](crate::ErrorKind::BoxOutside),
    /// [`BoxReversed`](crate::ErrorKind::BoxReversed).
    ///
    /// ```
    /// use vmarray::{Field, NdArray};
    /// let image = NdArray::<u8, 2>::new([50, 50])?;
    /// image.fill([0, 10]..[50, 12], 1)?;
    /// assert_eq!(image.find_in([7, 0]..[9, 11], Field::whole(), &1)?, [[7, 10], [8, 10]]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn find_in<F: NoUninit>(
        &self,
        bounds: impl RangeBounds<[usize; N]>,
        field: Field<T, F>,
        value: &F,
    ) -> Result<Vec<[usize; N]>> {
        let of = self.checked_box(bounds)?;
        let is_inside =
            |at: &[usize; N]| (0..N).all(|axis| (of.start[axis]..of.end[axis]).contains(&at[axis]));
        let mut positions = Vec::new();
        let mut ranges = self.geometry.ranges(&of).peekable();
        while let Some(mut range) = ranges.next() {
            let joins = |next: &Range<usize>, range: &Range<usize>| match next.start - range.end {
                0 => true,
                gap => gap <= GAP_MAX && next.end - range.start <= JOINED_MAX,
            };
            while let Some(next) = ranges.next_if(|next| joins(next, &range)) {
                range.end = next.end;
            }
            let found = self.elements.find_first(range, field, value, usize::MAX)?;
            let inside = found.indices.into_iter().filter_map(|index| self.position_of(index));
            positions.extend(inside.filter(is_inside));
        }
        if self.layout() != NdLayout::RowMajor {
            positions.sort_unstable();
        }
        Ok(positions)
    }

    /// How many elements of a box have a field of this value. As
    /// [`VirtualArray::count`](crate::VirtualArray::count).
    ///
    /// All of an array is one search; of a box, each of its [`element_ranges`](Self::element_ranges) is one.
    ///
    /// # Errors
    /// As [`find_in`](Self::find_in).
    ///
    /// ```
    /// use vmarray::{Field, NdArray};
    /// let image = NdArray::<u8, 2>::builder([50, 50]).tile([8, 8]).build()?;
    /// image.fill([10, 10]..[20, 20], 1)?;
    /// assert_eq!(image.count(.., Field::whole(), &1)?, 100);
    /// assert_eq!(image.count(.., Field::whole(), &0)?, 2400);
    /// assert_eq!(image.count([15, 0]..[16, 50], Field::whole(), &1)?, 10);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn count<F: NoUninit>(
        &self,
        bounds: impl RangeBounds<[usize; N]>,
        field: Field<T, F>,
        value: &F,
    ) -> Result<usize> {
        let of = self.checked_box(bounds)?;
        if of == ([0; N]..self.shape()) {
            let is_zero = bytemuck::bytes_of(value).iter().all(|byte| *byte == 0);
            let padding = if is_zero { self.elements.len() - self.len() } else { 0 };
            return Ok(self.elements.count(.., field, value)?.saturating_sub(padding));
        }
        self.element_ranges(of)?.try_fold(0, |sum, range| Ok(sum + self.elements.count(range, field, value)?))
    }

    /// Reads the elements at many positions, in the order of the list. As
    /// [`VirtualArray::gather`](crate::VirtualArray::gather): the devices collect what is not resident.
    ///
    /// # Errors
    /// [`PositionOutside`](ErrorKind::PositionOutside), before anything is read, and what
    /// [`VirtualArray::gather`](crate::VirtualArray::gather) reports.
    ///
    /// ```
    /// let image = vmarray::NdArray::<u8, 2>::new([50, 50])?;
    /// image.set([3, 40], 1)?;
    /// assert_eq!(image.gather(&[[3, 40], [0, 0], [3, 40]])?, [1, 0, 1]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn gather(&self, positions: &[[usize; N]]) -> Result<Vec<T>> {
        self.elements.gather(&self.indices_of(positions)?)
    }

    /// Writes elements at many positions; of those that are named several times, the last. As
    /// [`VirtualArray::scatter`](crate::VirtualArray::scatter): the devices distribute what is not resident.
    ///
    /// # Errors
    /// [`PositionOutside`](ErrorKind::PositionOutside) and [`LengthMismatch`](ErrorKind::LengthMismatch), before
    /// anything is written, and what [`VirtualArray::scatter`](crate::VirtualArray::scatter) reports.
    ///
    /// ```
    /// let image = vmarray::NdArray::<u8, 2>::new([50, 50])?;
    /// image.scatter(&[[3, 40], [0, 0]], &[7, 8])?;
    /// assert_eq!(image.get([3, 40])?, 7);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn scatter(&self, positions: &[[usize; N]], values: &[T]) -> Result<()> {
        if positions.len() != values.len() {
            let (expected, got) = (positions.len(), values.len());
            return Err(ErrorKind::LengthMismatch { of: "the slice of values", expected, got }.into());
        }
        self.elements.scatter(&self.indices_of(positions)?, values)
    }

    /// Reads the elements that the tuples of an index set name, in the order of the tuples. `axes` are the labels of
    /// the columns that have the indices along each axis; other columns are not looked at. The set may be one of pages,
    /// which is read a part at a time; eight bytes a tuple are kept.
    ///
    /// # Errors
    /// [`UnknownDimension`](ErrorKind::UnknownDimension), [`DuplicateDimension`](ErrorKind::DuplicateDimension) if the
    /// set has a label twice, what reading the tuples reports, and as
    /// [`gather`](Self::gather).
    ///
    /// ```
    /// use vmarray::{IndexSet, NdArray};
    /// let image = NdArray::<u8, 2>::new([50, 60])?;
    /// image.set([3, 40], 1)?;
    /// // Columns first, and a third dimension that the image does not have.
    /// let set = IndexSet::from_rows([1, 0, 7], [[40, 3, 0], [0, 0, 1], [40, 3, 2]])?;
    /// assert_eq!(image.gather_set(&set, [0, 1])?, [1, 0, 1]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn gather_set<S: Tuples + ?Sized>(&self, set: &S, axes: [Dimension; N]) -> Result<Vec<T>> {
        self.elements.gather(&self.indices_in(set, axes)?)
    }

    /// Writes the elements that the tuples of an index set name; as [`gather_set`](Self::gather_set), the other way
    /// about. Of those that are named several times, the last counts.
    ///
    /// # Errors
    /// [`UnknownDimension`](ErrorKind::UnknownDimension), [`DuplicateDimension`](ErrorKind::DuplicateDimension) if the
    /// set has a label twice, what reading the tuples reports, and as
    /// [`scatter`](Self::scatter).
    ///
    /// ```
    /// use vmarray::{IndexSet, NdArray};
    /// let image = NdArray::<u8, 2>::new([50, 60])?;
    /// let set = IndexSet::from_rows([0, 1], [[3, 40], [0, 0]])?;
    /// image.scatter_set(&set, [0, 1], &[7, 8])?;
    /// assert_eq!(image.get([3, 40])?, 7);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn scatter_set<S: Tuples + ?Sized>(&self, set: &S, axes: [Dimension; N], values: &[T]) -> Result<()> {
        if set.len() != values.len() {
            let (expected, got) = (set.len(), values.len());
            return Err(ErrorKind::LengthMismatch { of: "the slice of values", expected, got }.into());
        }
        self.elements.scatter(&self.indices_in(set, axes)?, values)
    }

    /// The storage indices that the tuples of an index set name, all of which are checked.
    fn indices_in<S: Tuples + ?Sized>(&self, set: &S, axes: [Dimension; N]) -> Result<Vec<usize>> {
        let dimensions = set.dimensions();
        distinct(dimensions.iter().copied())?;
        let mut columns = [0; N];
        for (column, dimension) in columns.iter_mut().zip(axes) {
            let unknown = ErrorKind::UnknownDimension { dimension };
            *column = dimensions.iter().position(|known| *known == dimension).ok_or(unknown)?;
        }
        let (shape, width) = (self.shape(), dimensions.len());
        let mut indices = zeroed_vec(set.len())?;
        let mut tuples = zeroed_vec::<u64>(set.len().min(CHUNK).saturating_mul(width))?;
        for (first, chunk) in (0..).step_by(CHUNK).zip(indices.chunks_mut(CHUNK)) {
            let tuples = &mut tuples[..chunk.len() * width];
            set.read_tuples(first, tuples)?;
            for (index, tuple) in chunk.iter_mut().zip(tuples.chunks_exact(width)) {
                let mut at = [0; N];
                for axis in 0..N {
                    let value = tuple[columns[axis]];
                    let inside = usize::try_from(value).ok().filter(|value| *value < shape[axis]);
                    at[axis] = inside.ok_or_else(|| position_outside(axis, value.into(), shape[axis]))?;
                }
                *index = self.geometry.index_of(&at);
            }
        }
        Ok(indices)
    }

    /// The storage indices of positions, all of which are checked.
    fn indices_of(&self, positions: &[[usize; N]]) -> Result<Vec<usize>> {
        let mut indices = zeroed_vec(positions.len())?;
        for (index, at) in indices.iter_mut().zip(positions) {
            *index = self.index_of(*at)?;
        }
        Ok(indices)
    }
}
