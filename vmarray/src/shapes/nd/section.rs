//! [`NdSection`]: a view of a box or a projection of an N-dimensional array.

use std::fmt;

use super::geometry::LayoutGeometry;
use super::region::NdShape;
#[cfg(doc)]
use crate::base::error::ErrorKind;
use crate::base::error::Result;
use crate::ops::sealed::{Internal, Sealed};
use crate::ops::view::{Linear, Store, StoreMut, View, ViewMut};

/// A view of a box of an array or a source (its store). If `WRITES` is true, the view can write. The view has
/// `M` of the `N` axes of the store; the other axes have a fixed index.
///
/// Positions in the view count from the start of the box. Any number of views may overlap, including writable
/// ones. Views are `Copy`, and any thread may use them. All operations of [`View`], [`ViewMut`],
/// [`NdView`](crate::nd::NdView) and [`NdViewMut`](crate::nd::NdViewMut) apply to boxes. In expressions
/// [`coordinate`](crate::nd::NdView::coordinate) is the index along an axis of the view, and
/// [`index`](crate::expr::index) the index of the element in the store.
///
/// ```
/// use vmarray::prelude::*;
/// let volume = NdArray::<u32, 3>::new([8, 8, 8])?;
/// let inner = volume.section_mut([2, 2, 2]..[6, 6, 6])?;
/// let row = inner.project_mut::<2>(0, 1)?.project_mut::<1>(0, 3)?;
/// row.write_box(.., &[1, 2, 3, 4])?;
/// assert_eq!((volume.get([3, 5, 4])?, row.store().len()), (3, 512));
/// assert_eq!(inner.sum(.., Field::whole())?, 10);
/// assert_eq!(row.position(.., Field::whole(), &4)?, Some([3]));
///
/// // Of any array or source, row by row.
/// let source = Source::new(vec![0_u64; 12])?;
/// NdSection::over_mut(&source, [3, 4])?.fill([1, 1]..[2, 3], 5)?;
/// assert_eq!(source.to_vec(4..8)?, [0, 5, 5, 0]);
/// # Ok::<(), vmarray::Error>(())
/// ```
///
/// A view without `WRITES` has no operations that write:
///
/// ```compile_fail
/// use vmarray::prelude::*;
/// let image = NdArray::<u32, 2>::new([8, 8])?;
/// image.section(..)?.set([0, 0], 1)?;
/// # Ok::<(), vmarray::Error>(())
/// ```
pub struct NdSection<'a, S: Store, const N: usize, const M: usize = N, const WRITES: bool = false> {
    store: &'a S,
    pub(super) shape: NdShape<N, M>,
}

/// An [`NdSection`] that can be written to.
///
/// ```
/// use vmarray::prelude::*;
/// let image = NdArray::<u8, 2>::new([4, 5])?;
/// let corner: NdSectionMut<'_, VirtualArray<u8>, 2> = image.section_mut([2, 3]..)?;
/// corner.fill(.., 1)?;
/// assert_eq!(image.count(.., Field::whole(), &1)?, 4);
/// # Ok::<(), vmarray::Error>(())
/// ```
pub type NdSectionMut<'a, S, const N: usize, const M: usize = N> = NdSection<'a, S, N, M, true>;

impl<'a, S: Store, const N: usize> NdSection<'a, S, N> {
    /// Creates a view, with this shape, of all elements of an array or [source](crate::Source), row by row.
    ///
    /// # Errors
    /// [`ShapeMismatch`](ErrorKind::ShapeMismatch) if the number of elements differs;
    /// [`ShapeOverflow`](ErrorKind::ShapeOverflow).
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// let source = Source::new((0..12_u32).collect::<Vec<_>>())?;
    /// let table = NdSection::over(&source, [3, 4])?;
    /// assert_eq!((table.get([1, 2])?, table.store().len()), (6, 12));
    /// assert_eq!(table.sum([0, 1]..[3, 2], Field::whole())?, 1 + 5 + 9);
    /// assert_eq!(table.project::<1>(1, 3)?.to_vec(..)?, [3, 7, 11]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn over(store: &'a S, shape: [usize; N]) -> Result<Self>
    where
        &'a S: View<'a, Store = S, Shape = Linear>,
    {
        Ok(Self::new(store, NdShape::whole(LayoutGeometry::row_major(shape, store.len())?)))
    }
}

impl<'a, S: StoreMut, const N: usize> NdSectionMut<'a, S, N> {
    /// Creates a writable view that shows all elements of a store (array or source) in this shape; see
    /// [`over`](NdSection::over).
    ///
    /// # Errors
    /// The errors of [`over`](NdSection::over).
    pub fn over_mut(store: &'a S, shape: [usize; N]) -> Result<Self>
    where
        &'a S: ViewMut<'a, Store = S, Shape = Linear>,
    {
        Ok(Self::new(store, NdShape::whole(LayoutGeometry::row_major(shape, store.len())?)))
    }
}

impl<'a, S: Store, const N: usize, const M: usize, const WRITES: bool> NdSection<'a, S, N, M, WRITES> {
    pub(super) fn new(store: &'a S, shape: NdShape<N, M>) -> Self {
        Self { store, shape }
    }

    /// Returns the array or [source](crate::Source) that stores the elements of this view.
    #[must_use]
    pub fn store(&self) -> &'a S {
        self.store
    }
}

impl<S: Store, const N: usize, const M: usize, const WRITES: bool> Sealed for NdSection<'_, S, N, M, WRITES> {}

impl<'a, S: Store, const N: usize, const M: usize, const WRITES: bool> View<'a>
    for NdSection<'a, S, N, M, WRITES>
{
    type Element = S::Element;
    type Index = [usize; M];
    type Store = S;
    type Shape = NdShape<N, M>;
    type Section = NdSection<'a, S, N, M>;

    #[inline(always)]
    fn parts(self) -> (&'a S, NdShape<N, M>) {
        (self.store, self.shape)
    }

    fn of_parts(store: &'a S, shape: NdShape<N, M>, _: Internal) -> Self::Section {
        NdSection::new(store, shape)
    }
}

impl<'a, S: StoreMut, const N: usize, const M: usize> ViewMut<'a> for NdSectionMut<'a, S, N, M> {
    type SectionMut = Self;

    fn of_parts_mut(store: &'a S, shape: NdShape<N, M>, _: Internal) -> Self {
        NdSection::new(store, shape)
    }
}

impl<S: Store, const N: usize, const M: usize, const WRITES: bool> Clone for NdSection<'_, S, N, M, WRITES> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S: Store, const N: usize, const M: usize, const WRITES: bool> Copy for NdSection<'_, S, N, M, WRITES> {}

impl<S: Store, const N: usize, const M: usize, const WRITES: bool> fmt::Debug
    for NdSection<'_, S, N, M, WRITES>
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NdSection")
            .field("shape", &self.shape)
            .field("writes", &WRITES)
            .finish_non_exhaustive()
    }
}
