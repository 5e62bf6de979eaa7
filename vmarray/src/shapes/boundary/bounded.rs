//! The trait of views that can have a boundary mode.

use super::box_shape::BoxShape;
use super::modes::Boundary;
use super::view::BoundaryView;
use crate::ops::view::View;

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
