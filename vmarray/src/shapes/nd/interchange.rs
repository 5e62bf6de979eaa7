//! Copies of boxes to and from arrays of the `ndarray` crate.

use backend_api::Device;
use ndarray::{Array, ArrayView, ArrayViewMut, Dimension, IntoDimension, ShapeBuilder};

use super::shape::{self, PositionBox};
use super::{NdArray, NdShape};
#[cfg(doc)]
use super::{NdView, NdViewMut};
use crate::base::element::Element;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::memory::zeroed_vec;
use crate::ops::view::{INTERNAL, Shape as _, Store, StoreMut, View as _};

/// The index type of an `ndarray` array with the axes of a box.
pub(super) type Dim<const M: usize> = <[usize; M] as IntoDimension>::Dim;

/// Returns the box that begins at `start` and has the shape of an `ndarray` view.
fn box_like<const N: usize, const M: usize>(
    view: &NdShape<N, M>,
    start: [usize; M],
    shape: &[usize],
) -> Result<PositionBox<M>> {
    let rank = ErrorKind::RankMismatch { expected: M, got: shape.len() };
    shape::check_extent(&view.extents, start, shape.try_into().map_err(|_| rank)?)
}

/// Copies the box that begins at `start` into an `ndarray` view of its shape.
pub(super) fn read<S: Store, E: Dimension, const N: usize, const M: usize>(
    (store, view): (&S, NdShape<N, M>),
    start: [usize; M],
    mut into: ArrayViewMut<'_, S::Element, E>,
) -> Result<()> {
    let of = box_like(&view, start, into.shape())?;
    if let Some(slice) = into.as_slice_mut() {
        return view.copy_out(store, &of, slice, INTERNAL);
    }
    let mut values = zeroed_vec(into.len())?;
    view.copy_out(store, &of, &mut values, INTERNAL)?;
    into.iter_mut().zip(values).for_each(|(to, value)| *to = value);
    Ok(())
}

/// Copies an `ndarray` view to the box of its shape that begins at `start`.
pub(super) fn write<S: StoreMut, E: Dimension, const N: usize, const M: usize>(
    (store, view): (&S, NdShape<N, M>),
    start: [usize; M],
    from: &ArrayView<'_, S::Element, E>,
) -> Result<()> {
    let of = box_like(&view, start, from.shape())?;
    let strides = shape::strides(&shape::extent(&of));
    match from.as_slice() {
        Some(slice) => view.write(store, &of, strides, slice),
        None => {
            let mut values = zeroed_vec(from.len())?;
            values.iter_mut().zip(from).for_each(|(to, value)| *to = *value);
            view.write(store, &of, strides, &values)
        }
    }
}

/// Converts the values of a box in row-major order to an `ndarray` array.
pub(super) fn array<T, const M: usize>(of: &PositionBox<M>, values: Vec<T>) -> Result<Array<T, Dim<M>>>
where
    [usize; M]: IntoDimension,
{
    let (extent, got) = (shape::extent(of), values.len());
    Array::from_shape_vec(extent.into_dimension().set_f(false), values).map_err(|_| {
        ErrorKind::LengthMismatch { of: "the box", expected: shape::volume(&extent), got }.into()
    })
}

/// Copies an `ndarray` array with any strides, row by row, to an array on the [devices of the
/// machine](crate::devices). An array whose number of axes is known only at run time (`ArrayD`) must have `N`
/// axes.
///
/// # Errors
/// [`RankMismatch`](ErrorKind::RankMismatch), and as [`NdArray::new`] and
/// [`write_view`](NdViewMut::write_view).
///
/// ```
/// use vmarray::prelude::*;
/// let matrix = ndarray::array![[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]];
/// let array = NdArray::<f64, 2>::try_from(matrix.t().to_owned())?;
/// assert_eq!((array.shape(), array.get([2, 1])?), ([3, 2], 6.0));
/// let error = NdArray::<f64, 3>::try_from(matrix).unwrap_err();
/// assert!(error.to_string().starts_with("2 axes given, but the operation needs 3"));
/// # Ok::<(), vmarray::Error>(())
/// ```
impl<T: Element, E: Dimension, const N: usize> TryFrom<Array<T, E>> for NdArray<T, N> {
    type Error = Error;

    fn try_from(from: Array<T, E>) -> Result<Self> {
        let rank = ErrorKind::RankMismatch { expected: N, got: from.ndim() };
        let array = Self::new(from.shape().try_into().map_err(|_| rank)?)?;
        write(array.parts(), [0; N], &from.view())?;
        Ok(array)
    }
}

/// Copies all elements to RAM, in row-major order. For up to six axes, as in `ndarray`.
///
/// # Errors
/// The errors of [`to_ndarray`](NdView::to_ndarray).
///
/// ```
/// use vmarray::prelude::*;
/// let image = NdArray::<u8, 2>::builder([2, 3]).tiled().build()?;
/// image.set([1, 2], 7)?;
/// let copy: ndarray::Array2<u8> = (&image).try_into()?;
/// assert_eq!(copy, ndarray::array![[0, 0, 0], [0, 0, 7]]);
/// # Ok::<(), vmarray::Error>(())
/// ```
impl<T: Element, D: Device, const N: usize> TryFrom<&NdArray<T, N, D>> for Array<T, Dim<N>>
where
    [usize; N]: IntoDimension,
{
    type Error = Error;

    fn try_from(from: &NdArray<T, N, D>) -> Result<Self> {
        let values = from.to_vec(..)?;
        array(&([0; N]..from.geometry.shape), values)
    }
}
