//! Matrix products of strided views. `_products.py` has the public interface.

use pyo3::prelude::*;
use vmarray::matrix::{MatMul as _, MatMulElement, Matrix};
use vmarray::nd::NdSection;
use vmarray::prelude::*;

use crate::array::Core;
use crate::element::Unit;
use crate::elements::{Elements, Multiplied, Strided};
use crate::fault::interrupted;
use crate::geometry::Geometry;
use crate::node::View;
use crate::progress::run_with_progress;
use crate::store::{MaybeOrdered, Typed};

impl<T: MatMulElement + MaybeOrdered> Multiplied for Typed<T> {
    fn assign_product(
        &self,
        number: usize,
        a: (&dyn Elements, Strided),
        b: (&dyn Elements, Strided),
    ) -> vmarray::Result<bool> {
        let extents = [a.1.extents[0], b.1.extents[1]];
        let (Some(a), Some(b)) = (matrix::<T>(a), matrix::<T>(b)) else { return Ok(false) };
        let shape = [self.array.len() / extents.iter().product::<usize>().max(1), extents[0], extents[1]];
        NdSection::over_mut(&self.array, shape)?.project_mut::<2>(0, number)?.assign_matmul(a?, b?)?;
        Ok(true)
    }
}

/// Returns a matrix as a view of an array; `None` if the array has another element type.
fn matrix<T: MaybeOrdered>(
    (of, Strided { extents, start, strides }): (&dyn Elements, Strided),
) -> Option<vmarray::Result<Matrix<'_, T>>> {
    let of = of.as_any().downcast_ref::<Typed<T>>()?;
    Some(Matrix::strided(&of.array, extents, start, strides))
}

/// Returns the matrices in the last two axes of a view, one for each index of the other axes; `None` if an
/// item is not one element of type `unit`.
fn matrices(view: &View, unit: Unit) -> Option<(Vec<Strided>, &View)> {
    let Geometry { shape, strides, itemsize, .. } = &view.geometry;
    let bytes = unit.bytes();
    let is_whole = view.geometry.offset.is_multiple_of(bytes)
        && strides.iter().all(|stride| stride.unsigned_abs().is_multiple_of(bytes));
    let outer = shape.len().checked_sub(2)?;
    if !is_whole || view.handle.unit != unit || *itemsize != bytes {
        return None;
    }
    let (extents, of_matrix) = ([shape[outer], shape[outer + 1]], [strides[outer], strides[outer + 1]]);
    let starts = Geometry {
        shape: shape[..outer].to_vec(),
        strides: strides[..outer].to_vec(),
        ..view.geometry.clone()
    };
    let mut all = Vec::with_capacity(starts.count());
    let Ok::<(), ()>(()) = starts.each(|start| {
        let strides = of_matrix.map(|stride| stride / bytes as isize);
        all.push(Strided { extents, start: start / bytes, strides });
        Ok(())
    }) else {
        unreachable!("nothing fails")
    };
    Some((all, view))
}

/// Writes the products of two stacks of matrices to a new contiguous array, whose shape is that of the
/// products. Returns `False` if items are of different types, or are parts of elements.
#[pyfunction]
pub fn multiply(py: Python<'_>, a: &Core, b: &Core, into: &Core) -> PyResult<bool> {
    let (a, b, to) = (a.view(py)?, b.view(py)?, into.view(py)?);
    let unit = Unit::of(into.descr.bind(py));
    let (Some((of_a, a)), Some((of_b, b))) = (matrices(&a, unit), matrices(&b, unit)) else {
        return Ok(false);
    };
    let bytes = a.geometry.bytes() + b.geometry.bytes() + to.geometry.bytes();
    run_with_progress(py, bytes, || {
        let (open, open_a, open_b) = (to.handle.open()?, a.handle.open()?, b.handle.open()?);
        let Some(multiplied) = open.multiplied() else { return Ok(false) };
        for (number, (one, other)) in of_a.into_iter().zip(of_b).enumerate() {
            if !multiplied.assign_product(number, (&**open_a, one), (&**open_b, other))? {
                return Ok(false);
            }
            interrupted()?;
        }
        Ok(true)
    })
}
