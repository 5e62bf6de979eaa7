//! Traits of views that can have a boundary mode.

use std::ops::Range;

use super::modes::Boundary;
use super::view::BoundaryView;
use crate::base::error::Result;
use crate::ops::sealed::Internal;
use crate::ops::view::{INTERNAL, Linear, Shape, Store, StoreMut, View};
use crate::shapes::nd::{NdShape, Segment};

/// A shape of views that can have a boundary mode: a box, or a range as a box of one axis. The trait is
/// sealed.
///
/// ```
/// use vmarray::prelude::*;
/// use vmarray::boundary::{Bounded, BoxShape, Zero};
/// // An array or a source of one axis, or a part of one.
/// fn before<'a>(view: impl View<'a, Element = u8, Shape: BoxShape<1>>) -> vmarray::Result<u8> {
///     view.bounded(Zero).get([-1])
/// }
/// assert_eq!(before(VirtualArray::<u8>::new(6)?.section(2..)?)?, 0);
/// # Ok::<(), vmarray::Error>(())
/// ```
pub trait BoxShape<const M: usize>: Shape {
    #[doc(hidden)]
    fn extents(&self) -> [usize; M];

    #[doc(hidden)]
    fn index(at: [usize; M]) -> Self::Index;

    /// Copies out the combinations of one segment per axis, to places of memory of these strides.
    #[doc(hidden)]
    fn read_parts<S: Store>(
        &self,
        store: &S,
        of: [&[Segment]; M],
        strides: [usize; M],
        into: &mut [S::Element],
        _: Internal,
    ) -> Result<()>;

    /// Copies a region in, from memory of these strides.
    #[doc(hidden)]
    fn write_part<S: StoreMut>(
        &self,
        store: &S,
        of: &Range<[usize; M]>,
        strides: [usize; M],
        from: &[S::Element],
        _: Internal,
    ) -> Result<()>;
}

impl<const N: usize, const M: usize> BoxShape<M> for NdShape<N, M> {
    #[inline(always)]
    fn extents(&self) -> [usize; M] {
        self.extents
    }

    #[inline(always)]
    fn index(at: [usize; M]) -> [usize; M] {
        at
    }

    fn read_parts<S: Store>(
        &self,
        store: &S,
        of: [&[Segment]; M],
        strides: [usize; M],
        into: &mut [S::Element],
        _: Internal,
    ) -> Result<()> {
        self.read_segments(store, of, strides, into)
    }

    fn write_part<S: StoreMut>(
        &self,
        store: &S,
        of: &Range<[usize; M]>,
        strides: [usize; M],
        from: &[S::Element],
        _: Internal,
    ) -> Result<()> {
        self.write(store, of, strides, from)
    }
}

impl BoxShape<1> for Linear {
    #[inline(always)]
    fn extents(&self) -> [usize; 1] {
        [self.len]
    }

    #[inline(always)]
    fn index([at]: [usize; 1]) -> usize {
        at
    }

    fn read_parts<S: Store>(
        &self,
        store: &S,
        of: [&[Segment]; 1],
        strides: [usize; 1],
        into: &mut [S::Element],
        _: Internal,
    ) -> Result<()> {
        NdShape::line(self.range()).read_segments(store, of, strides, into)
    }

    fn write_part<S: StoreMut>(
        &self,
        store: &S,
        of: &Range<[usize; 1]>,
        _: [usize; 1],
        from: &[S::Element],
        _: Internal,
    ) -> Result<()> {
        let ([start], [end]) = (of.start, of.end);
        store.write_at(self.start + start, &from[..end - start], INTERNAL)
    }
}

/// A view that can have a boundary mode: views of arrays and sources with any number of dimensions.
///
/// ```
/// use vmarray::{boundary::Zero, prelude::*};
/// let image = NdArray::<u8, 2>::new([4, 4])?;
/// image.fill(.., 7)?;
/// assert_eq!(image.section([2, 2]..)?.bounded(Zero).to_vec([1, 1], [2, 2])?, [7, 0, 0, 0]);
/// # Ok::<(), vmarray::Error>(())
/// ```
pub trait Bounded<'a, const N: usize>: View<'a, Shape: BoxShape<N>> {
    /// Returns a view whose mode gives the values of reads outside. See [`boundary`](crate::boundary).
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// use vmarray::boundary::{Circular, Clamp, Ignored};
    /// let image = NdArray::<u8, 2>::new([4, 4])?;
    /// image.set([3, 0], 1)?;
    /// assert_eq!(image.bounded(Clamp).get([9, -5])?, 1);
    /// let brush = image.section_mut([1, 1]..)?.bounded(Clamp).with_writes(Ignored);
    /// brush.write_window([-1, -1], [2, 2], &[1, 2, 3, 4])?;
    /// assert_eq!((image.get([0, 0])?, image.get([1, 1])?), (0, 4));
    ///
    /// let source = Source::new(vec![1_u8, 2, 3, 4, 5, 6])?;
    /// assert_eq!(source.section(2..4)?.bounded(Circular).to_vec([-1], [4])?, [4, 3, 4, 3]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    fn bounded<R: Boundary<Self::Element, N>>(self, mode: R) -> BoundaryView<Self, N, R> {
        BoundaryView::new(self, mode)
    }
}

impl<'a, const N: usize, V: View<'a, Shape: BoxShape<N>>> Bounded<'a, N> for V {}
