//! Shifted views for kernels and joins: the operand of an element is its neighbour at a fixed distance.

use std::ops::Range;

use super::box_shape::BoxShape;
use super::kernel_arguments::Everywhere;
use super::modes::Boundary;
use super::view::BoundaryView;
use crate::base::error::Result;
use crate::ops::join::{Column, ColumnElements};
use crate::ops::launch::Broadcast;
use crate::ops::sealed::{Internal, Sealed};
use crate::ops::view::SignedBox;
use crate::ops::view::{INTERNAL, Shape, Store, View};
use crate::shapes::nd::position_outside;

/// A view whose value at each position is the element at a fixed distance in another view; the result of
/// [`BoundaryView::shifted`].
///
/// ```
/// use vmarray::{boundary::Clamp, prelude::*};
/// let heights = VirtualArray::<f32>::new(4)?;
/// heights.write(0, &[1.0, 4.0, 2.0, 2.0])?;
/// let joined = heights.join((heights.bounded(Clamp).shifted([1]),))?;
/// let ((here, next), height) = (joined.rows(), Field::<f32, f32>::whole());
/// // Where it goes up.
/// assert_eq!(joined.count_where(.., next.get(height).gt(here.get(height)))?, 1);
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Shifted<V, const N: usize> {
    of: V,
    by: [isize; N],
}

impl<'a, V, const N: usize, R, W> BoundaryView<V, N, R, W>
where
    V: View<'a, Shape: BoxShape<N>>,
    R: Boundary<V::Element, N>,
{
    /// Returns a view that is shifted by a distance: its value at a position is the element `by` further
    /// along each axis. For expressions, [join](crate::views::Join::join) it to a view of the same shape; the
    /// host then reads the shifted elements, some MiB at a time. A [kernel](Self::window) reads neighbours in
    /// place.
    ///
    /// ```
    /// use vmarray::boundary::Mirror;
    /// use vmarray::prelude::*;
    ///
    /// let image = NdArray::<i32, 2>::new([3, 5])?;
    /// image.write_box([1, 0]..[2, 5], &[1, 4, 2, 7, 3])?;
    /// let around = image.bounded(Mirror);
    /// let joined = image.join((around.shifted([0, -1]), around.shifted([0, 1])))?;
    /// let (own, left, right) = joined.rows();
    /// let value = Field::<i32, i32>::whole();
    /// let is_peak = own.get(value).gt(left.get(value)) & own.get(value).gt(right.get(value));
    /// assert_eq!((&joined).find_where(.., is_peak, 9)?.indices, [[1, 1], [1, 3]]);
    ///
    /// let second = NdArray::<i32, 2>::new([3, 5])?;
    /// let joined = second.join((&image, around.shifted([0, -1]), around.shifted([0, 1])))?;
    /// let (out, own, left, right) = joined.rows();
    /// joined.transform(.., out.set(value, left.get(value) + right.get(value) - own.get(value) * 2))?;
    /// assert_eq!(second.to_vec([1, 0]..[2, 5])?, [6, -5, 7, -9, 8]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn shifted(self, by: [isize; N]) -> Shifted<Self, N> {
        Shifted { of: self, by }
    }
}

impl<V, const N: usize> Sealed for Shifted<V, N> {}

impl<'a, V, const N: usize, R, W> Column<'a> for Shifted<BoundaryView<V, N, R, W>, N>
where
    V: View<'a, Shape: BoxShape<N>> + 'a,
    R: Boundary<V::Element, N> + Copy + Sync + 'a,
    W: Copy + Sync + 'a,
{
    type Element = V::Element;

    fn listed(self, _: Internal) -> ColumnElements<'a> {
        let (store, shape) = self.of.source().parts();
        let of = Box::new(At { of: Everywhere::new(self.of), by: self.by });
        let (extents, stored) = (shape.axes(), shape.stored());
        ColumnElements { extents, store: store.as_operand(INTERNAL), stored, is_moved: true, of }
    }
}

/// The elements of a view at a fixed distance, as an operand.
struct At<S, const N: usize> {
    of: S,
    by: [isize; N],
}

impl<S: Broadcast, const N: usize> Broadcast for At<S, N> {
    fn stride(&self) -> usize {
        self.of.stride()
    }

    fn shown(&self, positions: &[Range<isize>]) -> SignedBox {
        positions.to_vec()
    }

    fn read_bytes(&self, of: &[Range<isize>], into: &mut [u8]) -> Result<()> {
        let mut moved = of.to_vec();
        for (axis, (positions, by)) in moved.iter_mut().zip(self.by).enumerate() {
            let (Some(start), Some(end)) = (positions.start.checked_add(by), positions.end.checked_add(by))
            else {
                let at = positions.start as i128 + by as i128;
                return Err(position_outside(axis, at, positions.len()));
            };
            *positions = start..end;
        }
        self.of.read_bytes(&moved, into)
    }
}
