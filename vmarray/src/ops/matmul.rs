//! Matrix products of operands that may be larger than the memory of a device, or than RAM.
//!
//! [`tiles`] divides the result into tiles that fit into RAM, reads panels of both factors, and multiplies
//! them. If one GPU stores both factors and the result, [`on_device`] multiplies them in place, by a library
//! of the GPU's vendor if the device has one, else by a kernel.
//!
//! In RAM the crate `gemm` multiplies floats and complex numbers. It was faster than `matrixmultiply` 0.3.11
//! in all measurements of both, has kernels for AVX-512, and needs no compiler for C.

#[forbid(unsafe_code)]
mod element;
#[forbid(unsafe_code)]
mod matrix;
#[forbid(unsafe_code)]
mod on_device;
#[cfg(test)]
mod tests;
#[forbid(unsafe_code)]
mod tiles;

pub use element::{FactorTile, MatMulElement};
pub use matrix::Matrix;
pub use on_device::MatMulRoute;

use crate::base::error::{ErrorKind, Result};
use crate::ops::view::{INTERNAL, Shape, Store as _, ViewMut};

/// Matrix products of every [`ViewMut`] with two axes: arrays, boxes, and sections of arrays.
///
/// ```
/// use vmarray::matrix::{MatMul, MatMulElement, Matrix};
/// use vmarray::prelude::*;
///
/// fn squared<'a, T: MatMulElement>(
///     a: Matrix<'_, T>,
///     into: impl MatMul<'a, Element = T>,
/// ) -> vmarray::Result<()> {
///     into.assign_matmul(a.clone(), a)
/// }
/// let (a, product) = (NdArray::<f64, 2>::new([2, 2])?, NdArray::<f64, 2>::new([2, 2])?);
/// a.write_box(.., &[1.0, 2.0, 3.0, 4.0])?;
/// squared(Matrix::from(&a), &product)?;
/// assert_eq!(product.to_vec(..)?, [7.0, 10.0, 15.0, 22.0]);
/// # Ok::<(), vmarray::Error>(())
/// ```
pub trait MatMul<'a>: ViewMut<'a, Index = [usize; 2], Element: MatMulElement> {
    /// Writes the product of matrix `a` (`m` rows, `k` columns) and matrix `b` (`k` rows, `n` columns) to the
    /// view (`m` rows, `n` columns). The factors are views with two axes, or any [`Matrix`].
    ///
    /// Integers wrap. Floats of 32 and 64 bits and complex numbers are added in an unspecified order. Floats
    /// of 16 bits are added as `f32`, and rounded once.
    ///
    /// The call uses at most 256 MiB of RAM: a tile of the result of at most 128 MiB, and a panel (narrow
    /// tile) of each factor. It reads `a` once for each column strip of tiles, and `b` once for each row
    /// strip. It chooses the tile size with the fewest bytes read. If the result fits into one tile, it reads
    /// each factor once. It writes each element of the result once.
    ///
    /// [`with_progress`](crate::progress::with_progress) reports each panel, and can cancel the call.
    ///
    /// If one GPU stores both factors and the result, of `f32` or `f64`, and the result is a range of rows in
    /// row-major order, then the GPU multiplies the matrices in place, and nothing passes through RAM. An
    /// NVIDIA GPU calls cuBLAS if the machine has version 12 or 13, and if the lines of the factors are
    /// contiguous along an axis; sums of `f32` use no TF32. [`explain_matmul`](Self::explain_matmul) reports
    /// the route.
    ///
    /// # Errors
    /// [`KernelShape`](ErrorKind::KernelShape) if the extents do not match,
    /// [`KernelOverlap`](ErrorKind::KernelOverlap) if the result is in the same range of a store as a factor,
    /// [`NoMemory`](ErrorKind::NoMemory), and errors of reading and writing elements. After an error of a
    /// device, the view may have some elements of the product.
    fn assign_matmul<'f>(
        self,
        a: impl Into<Matrix<'f, Self::Element>>,
        b: impl Into<Matrix<'f, Self::Element>>,
    ) -> Result<()> {
        let (a, b) = (a.into(), b.into());
        let (store, shape) = self.parts();
        let [m, n] = checked_extents(&shape, &a, &b)?;
        if m == 0 || n == 0 {
            return Ok(());
        }
        let all = [0, 0]..[m, n];
        for (name, factor) in [("a", &a), ("b", &b)] {
            if shape.runs(&all).any(|run| factor.touches(store.as_operand(INTERNAL), &run)) {
                return Err(ErrorKind::KernelOverlap {
                    kernel: "matmul".into(),
                    place: String::new(),
                    result: "product".into(),
                    argument: name.into(),
                }
                .into());
            }
        }
        if on_device::multiply(self, &a, &b)? { Ok(()) } else { tiles::multiply(self, &a, &b) }
    }

    /// Returns the route of a product by [`assign_matmul`](Self::assign_matmul), without computing it. The
    /// call may load the vendor's library or compile the kernel, which takes some tenths of a second.
    ///
    /// ```
    /// use vmarray::matrix::{MatMul, MatMulRoute};
    /// use vmarray::prelude::*;
    /// let a = NdArray::<i32, 2>::new([30, 30])?;
    /// let product = NdArray::<i32, 2>::new([30, 30])?;
    /// assert_eq!(product.explain_matmul(&a, &a)?, MatMulRoute::Ram); // GPUs multiply only floats.
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`KernelShape`](ErrorKind::KernelShape) if the extents do not match, and errors of devices.
    fn explain_matmul<'f>(
        self,
        a: impl Into<Matrix<'f, Self::Element>>,
        b: impl Into<Matrix<'f, Self::Element>>,
    ) -> Result<MatMulRoute> {
        let (a, b) = (a.into(), b.into());
        checked_extents(&self.parts().1, &a, &b)?;
        on_device::route(self, &a, &b)
    }
}

/// Checks that the extents of factors and result match. Returns the numbers of rows and columns.
fn checked_extents<T: MatMulElement>(
    shape: &impl Shape<Index = [usize; 2]>,
    a: &Matrix<'_, T>,
    b: &Matrix<'_, T>,
) -> Result<[usize; 2]> {
    let axes = shape.axes();
    let ([m, k], [depth, n]) = (a.extents(), b.extents());
    if axes[0] == m && depth == k && axes[1] == n {
        return Ok([m, n]);
    }
    let (argument, of) = if axes[0] == m { ("b", b) } else { ("a", a) };
    let expected = if axes[0] == m { vec![k, axes[1]] } else { vec![axes[0], k] };
    let (kernel, got) = ("matmul".into(), of.extents().to_vec());
    let argument = argument.into();
    Err(ErrorKind::KernelShape { kernel, place: String::new(), argument, expected, got }.into())
}

impl<'a, V: ViewMut<'a, Index = [usize; 2], Element: MatMulElement>> MatMul<'a> for V {}
