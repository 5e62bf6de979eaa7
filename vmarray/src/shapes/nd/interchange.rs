//! Boxes in and out of the views of the `ndarray` crate.

use ndarray::{Array, ArrayView, ArrayViewMut, Dimension, IntoDimension, ShapeBuilder};

use super::copy::{self, BoxPlaces, FromPlaces};
use super::region::NdShape;
use super::shape::{self, Bounds};
use crate::base::error::{ErrorKind, Result};
use crate::ops::view::{Store, StoreMut};

/// What an `ndarray` array of a box is indexed by.
pub(super) type Dim<const M: usize> = <[usize; M] as IntoDimension>::Dim;

/// The box of a shape at a start that has a view's shape.
fn box_like<const N: usize>(all: &[usize; N], start: [usize; N], shape: &[usize]) -> Result<Bounds<N>> {
    let rank = ErrorKind::RankMismatch { expected: N, got: shape.len() };
    let extent: [usize; N] = shape.try_into().map_err(|_| rank)?;
    shape::check_extent(all, start, extent)
}

/// Copies the box at a start into a view of its shape.
pub(super) fn read<S: Store, E: Dimension, const N: usize, const M: usize>(
    store: &S,
    view: &NdShape<N, M>,
    start: [usize; M],
    mut into: ArrayViewMut<'_, S::Element, E>,
) -> Result<()> {
    let of = view.bounds(&box_like(&view.extents, start, into.shape())?);
    let strides = view.spread(std::array::from_fn(|axis| into.strides()[axis]), |_| 0);
    // SAFETY: the view has the box's shape, and is borrowed exclusively while the copy runs.
    let to = unsafe { BoxPlaces::from_raw(into.as_mut_ptr(), strides) };
    copy::read(store, &view.geometry, &of, to)
}

/// Copies a view to the box of its shape at a start.
pub(super) fn write<S: StoreMut, E: Dimension, const N: usize, const M: usize>(
    store: &S,
    view: &NdShape<N, M>,
    start: [usize; M],
    from: &ArrayView<'_, S::Element, E>,
) -> Result<()> {
    let of = view.bounds(&box_like(&view.extents, start, from.shape())?);
    let strides = view.spread(std::array::from_fn(|axis| from.strides()[axis]), |_| 0);
    // SAFETY: the view has the box's shape, and is borrowed while the copy runs.
    let source = unsafe { FromPlaces::from_raw(from.as_ptr(), strides) };
    copy::write(store, &view.geometry, &of, source)
}

/// Values of a box in row-major order, as an array.
pub(super) fn array<T, const M: usize>(of: &Bounds<M>, values: Vec<T>) -> Result<Array<T, Dim<M>>>
where
    [usize; M]: IntoDimension,
{
    let (extent, got) = (shape::extent(of), values.len());
    Array::from_shape_vec(extent.into_dimension().set_f(false), values).map_err(|_| {
        ErrorKind::LengthMismatch { of: "the box", expected: shape::volume(&extent), got }.into()
    })
}
