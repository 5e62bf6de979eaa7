//! [`BoundaryView`]: a view with a boundary mode, which reads and writes windows beyond the edges.

use std::ops::Range;

use super::box_shape::BoxShape;
use super::modes::{Boundary, BoundaryPlace, Checked, WriteBoundary};
use super::window::{Axis, complete, is_within, left_of};
#[cfg(doc)]
use crate::base::error::ErrorKind;
use crate::base::error::{Result, expect_len};
use crate::base::memory::zeroed_vec;
use crate::ops::launch::Windowed;
use crate::ops::view::{INTERNAL, Shape, View, ViewMut};
use crate::shapes::nd::{element_count, position_outside, strides};

/// A view of `N`-dimensional elements with signed positions, which may be outside of the view. One boundary
/// mode defines the results of reads outside, another one the results of writes.
///
/// The method [`bounded`](crate::boundary::Bounded::bounded) of an array or a section creates it. Writes
/// outside are errors ([`Checked`]) unless [`with_writes`](Self::with_writes) sets another mode. The view is
/// `Copy`, and any thread may use it.
///
/// ```
/// use vmarray::prelude::*;
/// use vmarray::boundary::{Circular, Constant, Ignored};
/// let image = NdArray::<u8, 2>::new([3, 4])?;
/// image.set([2, 3], 9)?;
/// let torus = image.bounded(Circular);
/// assert_eq!(torus.get([-1, 7])?, 9);
/// torus.prefetch_window([-1, -1], [2, 2])?;
/// assert_eq!(torus.to_vec([-1, -1], [2, 2])?, [9, 0, 0, 0]);
/// // The same elements in another way, at the same time.
/// let framed = image.bounded(Constant(1)).with_writes(Ignored);
/// framed.set([-1, 7], 5)?;
/// assert_eq!((framed.get([-1, 7])?, torus.get([-1, 7])?), (1, 9));
/// framed.write_window([-1, 1], [2, 2], &[1, 2, 3, 4])?;
/// assert_eq!(image.to_vec(..[1, 4])?, [0, 3, 4, 0]);
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct BoundaryView<V, const N: usize, R, W = Checked> {
    view: V,
    read: R,
    write: W,
}

impl<V: Copy, const N: usize, R, W> BoundaryView<V, N, R, W> {
    pub(super) fn source(&self) -> V {
        self.view
    }

    pub(super) fn mode(&self) -> &R {
        &self.read
    }
}

impl<'a, V, const N: usize, R, W> BoundaryView<V, N, R, W>
where
    V: View<'a, Shape: BoxShape<N>>,
    R: Boundary<V::Element, N>,
{
    #[inline(always)]
    fn extents(&self) -> [usize; N] {
        self.view.parts().1.extents()
    }

    /// Returns a kernel argument through which the GPU thread of an element reads the elements around it, up
    /// to `halo` in each direction.
    ///
    /// ```
    /// use vmarray::{boundary::Circular, kernel::{At, Own, Window}, prelude::*};
    ///
    /// #[vmarray::kernel]
    /// fn before(at: At<1>, of: &Window<u8, 1>, out: &mut Own<u8>) {
    ///     out.set(of[at.plus(-1)]);
    /// }
    /// let ring = Source::new(vec![1_u8, 2, 3])?;
    /// let mut turned = VirtualArray::<u8>::new(3)?;
    /// before::run((ring.bounded(Circular).window(1), &mut turned))?;
    /// assert_eq!(turned.to_vec(..)?, [3, 1, 2]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn window(self, halo: V::Index) -> Windowed<Self, V::Index> {
        Windowed { of: self, halo }
    }

    /// Returns the same view with another mode for writes.
    pub fn with_writes<B: WriteBoundary>(self, mode: B) -> BoundaryView<V, N, R, B> {
        BoundaryView { view: self.view, read: self.read, write: mode }
    }

    /// Reads the element at a position, which may be outside of the view.
    ///
    /// # Errors
    /// [`PositionOutside`](ErrorKind::PositionOutside) if the mode defines no value at the position, and
    /// errors of the array or source.
    #[inline]
    pub fn get(&self, at: [isize; N]) -> Result<V::Element> {
        let extents = self.extents();
        let mut position = [0; N];
        let mut value = None;
        for axis in 0..N {
            match self.read.place(axis, at[axis], extents[axis]) {
                BoundaryPlace::At(index) => position[axis] = index,
                BoundaryPlace::Value(outside) => {
                    value.get_or_insert(outside);
                }
                BoundaryPlace::Outside => {
                    return Err(position_outside(axis, at[axis] as i128, extents[axis]));
                }
            }
        }
        match value {
            Some(value) => Ok(value),
            None => self.view.get(V::Shape::index(position)),
        }
    }

    /// Checks that the length of a slice is that of a window, and that the window's indices do not overflow.
    fn check_window(&self, origin: [isize; N], extent: [usize; N], len: usize) -> Result<()> {
        expect_len("the window's slice", element_count(&extent)?, len)?;
        for axis in 0..N {
            // The window's last index must fit into `isize`, like all indices; the index after it may not
            // fit.
            let more = extent[axis].saturating_sub(1);
            if origin[axis].checked_add_unsigned(more).is_none() {
                let last = origin[axis] as i128 + more as i128;
                return Err(position_outside(axis, last, self.extents()[axis]));
            }
        }
        Ok(())
    }

    /// Returns a box as a range of the view's own indices.
    fn region(&self, start: [usize; N], extent: [usize; N]) -> Range<<V::Shape as Shape>::Index> {
        let end = std::array::from_fn(|axis| start[axis] + extent[axis]);
        V::Shape::index(start)..V::Shape::index(end)
    }

    fn is_inside(&self, origin: [isize; N], extent: [usize; N]) -> bool {
        let extents = self.extents();
        (0..N).all(|axis| is_within(origin[axis], extent[axis], extents[axis]))
    }

    /// Copies a window into a slice, in row-major order. The window begins at `origin` and has the given
    /// extent; any part of it may be outside of the view.
    ///
    /// The call reads each page once, even if the window repeats the page's elements. A window that is
    /// entirely inside costs as much as a read of a box.
    ///
    /// # Errors
    /// [`PositionOutside`](ErrorKind::PositionOutside) if the mode defines no value at some position, before
    /// anything is read; [`LengthMismatch`](ErrorKind::LengthMismatch) if the slice's length differs from the
    /// window's; and errors of the array or source.
    ///
    /// ```
    /// use vmarray::{boundary::Symmetric, prelude::*};
    /// let image = NdArray::<u8, 2>::new([2, 2])?;
    /// image.write_box(.., &[1, 2, 3, 4])?;
    /// let mut window = [0; 3 * 3];
    /// image.bounded(Symmetric).read_window([-1, -1], [3, 3], &mut window)?;
    /// assert_eq!(window, [1, 1, 2, 1, 1, 2, 3, 3, 4]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn read_window(&self, origin: [isize; N], extent: [usize; N], into: &mut [V::Element]) -> Result<()> {
        self.check_window(origin, extent, into.len())?;
        if into.is_empty() {
            return Ok(());
        }
        if self.is_inside(origin, extent) {
            let (store, shape) = self.view.parts();
            return shape.copy_out(
                store,
                &self.region(origin.map(isize::cast_unsigned), extent),
                into,
                INTERNAL,
            );
        }
        let extents = self.extents();
        let mut axes = Vec::with_capacity(N);
        for axis in 0..N {
            axes.push(Axis::new(&self.read, axis, origin[axis], extent[axis], extents[axis])?);
        }
        let Ok(axes) = <[Axis<V::Element>; N]>::try_from(axes) else {
            unreachable!("the loop has pushed one mode for each axis")
        };
        let (store, shape) = self.view.parts();
        let segments = axes.each_ref().map(|axis| &axis.read[..]);
        shape.read_parts(store, segments, strides(&extent), into, INTERNAL)?;
        complete(&axes, &extent, into);
        Ok(())
    }

    /// Starts a prefetch of the part of a window (`extent` elements at `origin`) inside of the view, and
    /// returns without waiting, as [`NdArray::prefetch`](crate::views::View::prefetch) does.
    ///
    /// # Errors
    /// The errors of [`NdArray::prefetch`](crate::views::View::prefetch).
    pub fn prefetch_window(&self, origin: [isize; N], extent: [usize; N]) -> Result<()> {
        let extents = self.extents();
        let start: [usize; N] =
            std::array::from_fn(|axis| origin[axis].max(0).cast_unsigned().min(extents[axis]));
        let inside = std::array::from_fn(|axis| {
            let end = origin[axis].saturating_add_unsigned(extent[axis]).max(0).cast_unsigned();
            end.min(extents[axis]).saturating_sub(start[axis])
        });
        self.view.prefetch(self.region(start, inside))
    }

    /// Copies the window (box) of `extent` elements at `origin` into a new vector, in row-major order; see
    /// [`read_window`](Self::read_window).
    ///
    /// # Errors
    /// The errors of [`read_window`](Self::read_window), and [`NoMemory`](ErrorKind::NoMemory).
    pub fn to_vec(&self, origin: [isize; N], extent: [usize; N]) -> Result<Vec<V::Element>> {
        let mut values = zeroed_vec(element_count(&extent)?)?;
        self.read_window(origin, extent, &mut values)?;
        Ok(values)
    }
}

impl<'a, V, const N: usize, R, W> BoundaryView<V, N, R, W>
where
    V: ViewMut<'a, Shape: BoxShape<N>>,
    R: Boundary<V::Element, N>,
    W: WriteBoundary,
{
    /// Writes an element. If the position is outside of the view and the mode for writes is
    /// [`Ignored`](super::Ignored), the call does nothing.
    ///
    /// # Errors
    /// [`PositionOutside`](ErrorKind::PositionOutside) if that mode is [`Checked`]; errors of the array or
    /// source.
    #[inline]
    pub fn set(&self, at: [isize; N], value: V::Element) -> Result<()> {
        let extents = self.extents();
        for axis in 0..N {
            if !self.write.contains(at[axis], extents[axis]) {
                return if W::IGNORES {
                    Ok(())
                } else {
                    Err(position_outside(axis, at[axis] as i128, extents[axis]))
                };
            }
        }
        self.view.set(V::Shape::index(at.map(isize::cast_unsigned)), value)
    }

    /// Copies a slice, in row-major order, to the window that begins at `origin` and has the given extent. If
    /// parts of the window are outside of the view, the mode for writes decides: the call ignores the
    /// elements of these parts, or fails before it writes any element.
    ///
    /// # Errors
    /// [`PositionOutside`](ErrorKind::PositionOutside), [`LengthMismatch`](ErrorKind::LengthMismatch), and
    /// errors of the array or source.
    pub fn write_window(&self, origin: [isize; N], extent: [usize; N], from: &[V::Element]) -> Result<()> {
        self.check_window(origin, extent, from.len())?;
        if from.is_empty() {
            return Ok(());
        }
        let strides = strides(&extent);
        let extents = self.extents();
        let (mut start, mut inside, mut first) = ([0; N], [0; N], 0);
        for axis in 0..N {
            let left_out = left_of(origin[axis]).min(extent[axis]);
            start[axis] = origin[axis].max(0).cast_unsigned();
            let end = start[axis] + (extent[axis] - left_out);
            inside[axis] = end.min(extents[axis]).saturating_sub(start[axis]);
            first += left_out * strides[axis];
            if inside[axis] < extent[axis] && !W::IGNORES {
                let outside =
                    if left_out > 0 { origin[axis] } else { extents[axis].max(start[axis]).cast_signed() };
                return Err(position_outside(axis, outside as i128, extents[axis]));
            }
        }
        if inside.contains(&0) {
            return Ok(());
        }
        let (store, shape) = self.view.parts();
        let of = start..std::array::from_fn(|axis| start[axis] + inside[axis]);
        shape.write_part(store, &of, strides, &from[first..], INTERNAL)
    }
}

/// Views that can have a boundary mode: views of arrays and [sources](crate::Source), with any dimensions.
///
/// ```
/// use vmarray::{boundary::Zero, prelude::*};
/// let image = NdArray::<u8, 2>::new([4, 4])?;
/// image.fill(.., 7)?;
/// assert_eq!(image.section([2, 2]..)?.bounded(Zero).to_vec([1, 1], [2, 2])?, [7, 0, 0, 0]);
/// # Ok::<(), vmarray::Error>(())
/// ```
pub trait Bounded<'a, const N: usize>: View<'a, Shape: BoxShape<N>> {
    /// Returns a view with a boundary mode, which gives the values of reads outside. See
    /// [`boundary`](crate::boundary).
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
        BoundaryView { view: self, read: mode, write: Checked }
    }
}

impl<'a, const N: usize, V: View<'a, Shape: BoxShape<N>>> Bounded<'a, N> for V {}
