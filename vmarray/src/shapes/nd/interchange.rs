//! Boxes in and out of the views of the `ndarray` crate.

use ndarray::{Array, ArrayView, ArrayViewMut, Dimension, IntoDimension, ShapeBuilder};

use super::shape::{self, Bounds};
use super::{NdView, NdViewMut};
use crate::base::error::{ErrorKind, Result};
use crate::base::memory::zeroed_vec;

/// What an `ndarray` array of a box is indexed by.
pub(super) type Dim<const M: usize> = <[usize; M] as IntoDimension>::Dim;

/// The box at a start that has the shape of an `ndarray` view.
fn box_like<'a, const N: usize, const M: usize>(
    view: impl NdView<'a, N, M>,
    start: [usize; M],
    shape: &[usize],
) -> Result<Bounds<M>> {
    let rank = ErrorKind::RankMismatch { expected: M, got: shape.len() };
    shape::check_extent(&view.shape(), start, shape.try_into().map_err(|_| rank)?)
}

/// Copies the box at a start into a view of its shape.
pub(super) fn read<'a, V: NdView<'a, N, M>, E: Dimension, const N: usize, const M: usize>(
    view: V,
    start: [usize; M],
    mut into: ArrayViewMut<'_, V::Element, E>,
) -> Result<()> {
    let of = box_like(view, start, into.shape())?;
    if let Some(slice) = into.as_slice_mut() {
        return view.read_box(of, slice);
    }
    let values = view.to_vec(of)?;
    into.iter_mut().zip(values).for_each(|(to, value)| *to = value);
    Ok(())
}

/// Copies a view to the box of its shape at a start.
pub(super) fn write<'a, V: NdViewMut<'a, N, M>, E: Dimension, const N: usize, const M: usize>(
    view: V,
    start: [usize; M],
    from: &ArrayView<'_, V::Element, E>,
) -> Result<()> {
    let of = box_like(view, start, from.shape())?;
    match from.as_slice() {
        Some(slice) => view.write_box(of, slice),
        None => {
            let mut values = zeroed_vec(from.len())?;
            values.iter_mut().zip(from).for_each(|(to, value)| *to = *value);
            view.write_box(of, &values)
        }
    }
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
