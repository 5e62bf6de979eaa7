//! Boundary modes on views.

use super::modes::Boundary;
use super::view::BoundaryView;
use crate::ops::view::View;
use crate::shapes::nd::Grid;

/// Views of arrays of one and of several dimensions, which can be given a boundary mode.
///
/// ```
/// use vmarray::boundary::Zero;
/// use vmarray::prelude::*;
///
/// let image = NdArray::<u8, 2>::new([4, 4])?;
/// image.fill(.., 7)?;
/// assert_eq!(image.section([2, 2]..)?.bounded(Zero).to_vec([1, 1], [2, 2])?, [7, 0, 0, 0]);
/// # Ok::<(), vmarray::Error>(())
/// ```
pub trait Bounded<'a, const N: usize>: View<'a> + Grid<N, Element = <Self as View<'a>>::Element> {
    /// A view that says what is read outside. See [`boundary`](crate::boundary).
    ///
    /// ```
    /// use vmarray::boundary::{Circular, Clamp, Ignored};
    /// use vmarray::prelude::*;
    ///
    /// let image = NdArray::<u8, 2>::new([4, 4])?;
    /// image.set([3, 0], 1)?;
    /// assert_eq!(image.bounded(Clamp).get([9, -5])?, 1);
    /// let brush = image.section_mut([1, 1]..)?.bounded(Clamp).with_writes(Ignored);
    /// brush.write_window([-1, -1], [2, 2], &[1, 2, 3, 4])?;
    /// assert_eq!((image.get([0, 0])?, image.get([1, 1])?), (0, 4));
    ///
    /// let array = VirtualArray::<u8>::new(6)?;
    /// array.write(0, &[1, 2, 3, 4, 5, 6])?;
    /// assert_eq!(array.section(2..4)?.bounded(Circular).to_vec([-1], [4])?, [4, 3, 4, 3]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    fn bounded<R: Boundary<<Self as View<'a>>::Element, N>>(self, mode: R) -> BoundaryView<Self, N, R> {
        BoundaryView::new(self, mode)
    }
}

impl<'a, const N: usize, V: View<'a> + Grid<N, Element = <V as View<'a>>::Element>> Bounded<'a, N> for V {}
