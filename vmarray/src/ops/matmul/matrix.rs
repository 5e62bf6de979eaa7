//! Factors of matrix products: matrices with any strides that the product reads tile by tile.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::base::element::Element;
use crate::base::error::{ErrorKind, Result};
use crate::base::memory::zeroed_vec;
use crate::ops::executor::{Operand, OperandStore};
use crate::ops::view::{INTERNAL, Linear, Shape, Store, View};

/// The most indices in a list of elements to gather.
const LISTED: usize = 1 << 18;

/// A factor of a [matrix product](super::MatMul): a view with two axes, or elements with two strides.
///
/// ```
/// use vmarray::matrix::{MatMul, Matrix};
/// use vmarray::prelude::*;
/// let (a, product) = (NdArray::<i32, 2>::new([3, 2])?, NdArray::<i32, 2>::new([2, 2])?);
/// a.write_box(.., &[1, 2, 3, 4, 5, 6])?;
/// let a = Matrix::from(&a);
/// assert_eq!((a.extents(), a.clone().transposed().extents()), ([3, 2], [2, 3]));
/// product.assign_matmul(a.clone().transposed(), a)?;
/// assert_eq!(product.to_vec(..)?, [35, 44, 44, 56]);
///
/// // Every second element, as a column.
/// let array = VirtualArray::<i32>::new(6)?;
/// array.write(0, &[1, 0, 2, 0, 3, 0])?;
/// let (row, column) =
///     (Matrix::strided(&array, [1, 3], 0, [0, 2])?, Matrix::strided(&array, [3, 1], 0, [2, 0])?);
/// let square = NdArray::<i32, 2>::new([1, 1])?;
/// square.assign_matmul(row, column)?;
/// assert_eq!(square.get([0, 0])?, 14);
/// # Ok::<(), vmarray::Error>(())
/// ```
pub struct Matrix<'a, T> {
    of: Arc<dyn ReadTile<T> + 'a>,
    is_transposed: bool,
}

impl<'a, T: Element> Matrix<'a, T> {
    /// Creates a matrix of `extents` (rows, columns) from elements of a view. The element in row `i` and
    /// column `j` has the index `start + i * strides[0] + j * strides[1]`.
    ///
    /// # Errors
    /// [`RangeOutside`](ErrorKind::RangeOutside) if an element is outside of the view.
    pub fn strided<V>(view: V, extents: [usize; 2], start: usize, strides: [isize; 2]) -> Result<Self>
    where
        V: View<'a, Element = T, Shape = Linear, Index = usize> + 'a,
    {
        let (store, shape) = view.parts();
        let (mut first, mut last) = (start as i128, start as i128);
        for (extent, stride) in extents.iter().zip(strides) {
            let far = extent.saturating_sub(1) as i128 * stride as i128;
            if far < 0 { first += far } else { last += far }
        }
        let is_empty = extents.contains(&0);
        if !is_empty && (first < 0 || last >= shape.len as i128) {
            let [start, end] = [first, last + 1].map(|at| usize::try_from(at).unwrap_or(usize::MAX));
            return Err(ErrorKind::RangeOutside { start, end, len: shape.len }.into());
        }
        let range = if is_empty { 0..0 } else { first as usize..last as usize + 1 };
        let of = StridedMatrix { store, extents, origin: shape.start, start, strides, range };
        Ok(Self { of: Arc::new(of), is_transposed: false })
    }

    /// Returns the transposed matrix, without a copy.
    #[must_use]
    pub fn transposed(mut self) -> Self {
        self.is_transposed = !self.is_transposed;
        self
    }

    /// The number of rows and the number of columns.
    #[must_use]
    pub fn extents(&self) -> [usize; 2] {
        let [rows, columns] = self.of.extents();
        if self.is_transposed { [columns, rows] } else { [rows, columns] }
    }

    /// Returns true if tiles are read column by column, false if row by row.
    pub(super) fn is_by_columns(&self) -> bool {
        self.of.is_by_columns() != self.is_transposed
    }

    pub(super) fn read(&self, rows: Range<usize>, columns: Range<usize>, into: &mut [T]) -> Result<()> {
        let (rows, columns) = if self.is_transposed { (columns, rows) } else { (rows, columns) };
        self.of.read(rows, columns, into)
    }

    /// Returns the storage location of the elements, if they are at regular distances.
    pub(super) fn places(&self) -> Option<MatrixPlaces<'_>> {
        let mut places = self.of.places()?;
        if self.is_transposed {
            places.strides.reverse();
        }
        Some(places)
    }

    /// Returns true if elements of the matrix may be in a range of a store.
    pub(super) fn touches(&self, store: &dyn OperandStore, range: &Range<usize>) -> bool {
        let (own, of) = self.of.range();
        std::ptr::addr_eq(own, store) && of.start < range.end && range.start < of.end
    }
}

impl<T> Clone for Matrix<'_, T> {
    fn clone(&self) -> Self {
        Self { of: Arc::clone(&self.of), ..*self }
    }
}

impl<T: Element> fmt::Debug for Matrix<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Matrix").field("extents", &self.extents()).finish_non_exhaustive()
    }
}

impl<'a, V: View<'a, Index = [usize; 2]> + 'a> From<V> for Matrix<'a, V::Element> {
    fn from(view: V) -> Self {
        let (store, shape) = view.parts();
        Self { of: Arc::new(BoxMatrix { store, shape }), is_transposed: false }
    }
}

/// Storage location of a matrix: the index of its first element, and the distances along both axes.
pub(super) struct MatrixPlaces<'a> {
    pub operand: Operand<'a>,
    pub strides: [usize; 2],
    /// The range of storage indices that contains all elements of the matrix.
    pub range: Range<usize>,
}

/// A matrix that a product reads tile by tile.
trait ReadTile<T>: Send + Sync {
    fn extents(&self) -> [usize; 2];

    /// Returns true if tiles are read column by column, false if row by row.
    fn is_by_columns(&self) -> bool {
        false
    }

    fn read(&self, rows: Range<usize>, columns: Range<usize>, into: &mut [T]) -> Result<()>;

    fn places(&self) -> Option<MatrixPlaces<'_>>;

    /// Returns the store, and a range of it that contains all elements.
    fn range(&self) -> (&dyn OperandStore, Range<usize>);
}

struct BoxMatrix<'a, S, H> {
    store: &'a S,
    shape: H,
}

impl<S: Store, H: Shape<Index = [usize; 2]>> ReadTile<S::Element> for BoxMatrix<'_, S, H> {
    fn extents(&self) -> [usize; 2] {
        let axes = self.shape.axes();
        [axes[0], axes[1]]
    }

    fn read(&self, rows: Range<usize>, columns: Range<usize>, into: &mut [S::Element]) -> Result<()> {
        let of = [rows.start, columns.start]..[rows.end, columns.end];
        self.shape.copy_out(self.store, &of, into, INTERNAL)
    }

    fn places(&self) -> Option<MatrixPlaces<'_>> {
        let extents = self.extents();
        let operand = |range: &Range<usize>| Operand::new(self.store.as_operand(INTERNAL), range.start);
        if let Some(range) = rows_in_order(&self.shape) {
            return Some(MatrixPlaces { operand: operand(&range), strides: [extents[1], 1], range });
        }
        let stored = self.shape.stored().filter(|stored| !stored.is_tiled())?;
        let range = stored.range();
        Some(MatrixPlaces { operand: operand(&range), strides: [stored.stride(0), 1], range })
    }

    fn range(&self) -> (&dyn OperandStore, Range<usize>) {
        let [rows, columns] = self.extents();
        let whole = [0, 0]..[rows, columns];
        let all = self.shape.runs(&whole).reduce(|all, run| all.start.min(run.start)..all.end.max(run.end));
        (self.store.as_operand(INTERNAL), all.unwrap_or(0..0))
    }
}

/// Returns the storage range of a box's elements, if they are contiguous and in row-major order.
pub(super) fn rows_in_order<H: Shape<Index = [usize; 2]>>(shape: &H) -> Option<Range<usize>> {
    let axes = shape.axes();
    let all = [0, 0]..[axes[0], axes[1]];
    let mut runs = shape.runs(&all);
    let (first, second) = (runs.next()?, runs.next());
    (second.is_none() && shape.is_in_order(&all)).then_some(first)
}

struct StridedMatrix<'a, S> {
    store: &'a S,
    extents: [usize; 2],
    /// The storage index of the view's first element.
    origin: usize,
    /// The index in the view of the matrix's first element.
    start: usize,
    strides: [isize; 2],
    /// The range of view indices that contains all elements.
    range: Range<usize>,
}

impl<S> StridedMatrix<'_, S> {
    fn place(&self, row: usize, column: usize) -> usize {
        let [along_rows, along_columns] = self.strides;
        let at = self.start as isize + row as isize * along_rows + column as isize * along_columns;
        self.origin + at as usize
    }
}

impl<S: Store> ReadTile<S::Element> for StridedMatrix<'_, S> {
    fn extents(&self) -> [usize; 2] {
        self.extents
    }

    fn is_by_columns(&self) -> bool {
        self.strides[0] == 1 && self.strides[1] != 1
    }

    fn read(&self, rows: Range<usize>, columns: Range<usize>, into: &mut [S::Element]) -> Result<()> {
        let (lines, within) = if self.is_by_columns() { (&columns, &rows) } else { (&rows, &columns) };
        let [line_stride, stride] =
            if self.is_by_columns() { [self.strides[1], self.strides[0]] } else { self.strides };
        if lines.is_empty() || within.is_empty() {
            return Ok(());
        }
        let first = self.place(rows.start, columns.start);
        if stride == 1 && (line_stride == within.len() as isize || lines.len() == 1) {
            return self.store.read_at(first, into, INTERNAL);
        }
        let line_at = |line: usize| (first as isize + line as isize * line_stride) as usize;
        if stride == 1 {
            let mut parts = into.chunks_exact_mut(within.len()).enumerate();
            return parts.try_for_each(|(line, part)| self.store.read_at(line_at(line), part, INTERNAL));
        }
        let all = self.origin + self.range.start..self.origin + self.range.end;
        let at_once = (LISTED / within.len()).max(1);
        let mut places = zeroed_vec(at_once.min(lines.len()) * within.len())?;
        for (number, part) in into.chunks_mut(at_once * within.len()).enumerate() {
            let places = &mut places[..part.len()];
            for (at, place) in places.iter_mut().enumerate() {
                let line = line_at(number * at_once + at / within.len());
                *place = (line as isize + (at % within.len()) as isize * stride) as usize - all.start;
            }
            self.store.gather_within(all.clone(), places, part, INTERNAL)?;
        }
        Ok(())
    }

    fn places(&self) -> Option<MatrixPlaces<'_>> {
        let strides = self.strides.map(|stride| usize::try_from(stride).ok());
        let [Some(row), Some(column)] = strides else { return None };
        let first = self.origin + self.start;
        let range = self.origin + self.range.start..self.origin + self.range.end;
        let operand = Operand::new(self.store.as_operand(INTERNAL), first);
        Some(MatrixPlaces { operand, strides: [row, column], range })
    }

    fn range(&self) -> (&dyn OperandStore, Range<usize>) {
        let Range { start, end } = self.range;
        (self.store.as_operand(INTERNAL), self.origin + start..self.origin + end)
    }
}
