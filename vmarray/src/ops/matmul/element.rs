//! Element types of matrix products, and the products of their tiles in RAM.

use std::borrow::Cow;

use vmarray_support::gemm::{MatrixSlice, add_product};

use crate::base::element::Element;

/// Element types that have [matrix products](super::MatMul): integers, `f32`, `f64`, and with the features
/// `half` and `num-complex` also `half::f16`, `Complex<f32>` and `Complex<f64>`.
///
/// ```
/// use vmarray::matrix::{MatMul, MatMulElement};
/// use vmarray::prelude::*;
///
/// fn dot<T: MatMulElement>(a: &NdArray<T, 2>, b: &NdArray<T, 2>) -> vmarray::Result<Vec<T>> {
///     let product = NdArray::<T, 2>::new([a.shape()[0], b.shape()[1]])?;
///     product.assign_matmul(a, b)?;
///     product.to_vec(..)
/// }
/// let (row, column) = (NdArray::<u8, 2>::new([1, 3])?, NdArray::<u8, 2>::new([3, 1])?);
/// row.fill(.., 10)?;
/// column.fill(.., 9)?;
/// assert_eq!(dot(&row, &column)?, [14]); // 270, modulo 256
/// # Ok::<(), vmarray::Error>(())
/// ```
pub trait MatMulElement: Element {
    /// The type in which products of elements are summed.
    #[doc(hidden)]
    type Sum: Element;

    /// Converts elements to the type of their sums.
    #[doc(hidden)]
    fn widened(of: &[Self]) -> Cow<'_, [Self::Sum]>;

    /// Rounds sums to elements.
    #[doc(hidden)]
    fn rounded(of: &[Self::Sum]) -> Cow<'_, [Self]>;

    /// Adds the product of two tiles to rows of sums, which are contiguous.
    #[doc(hidden)]
    fn add_product(into: &mut [Self::Sum], a: FactorTile<'_, Self::Sum>, b: FactorTile<'_, Self::Sum>);

    /// True if the library has a GPU kernel for products of this type.
    #[doc(hidden)]
    const HAS_KERNEL: bool = false;
}

/// A tile of a factor of a matrix product, in RAM.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct FactorTile<'t, T> {
    pub(super) items: &'t [T],
    /// The number of rows and the number of columns.
    pub(super) extents: [usize; 2],
    /// The distance of neighbours along each axis, in elements; it is 1 along one axis.
    pub(super) strides: [usize; 2],
}

impl<'t, T: Copy> FactorTile<'t, T> {
    fn at(&self, row: usize, column: usize) -> T {
        self.items[row * self.strides[0] + column * self.strides[1]]
    }

    pub(super) fn rows(self, start: usize, count: usize) -> Self {
        let first = (start * self.strides[0]).min(self.items.len());
        Self { items: &self.items[first..], extents: [count, self.extents[1]], ..self }
    }

    pub(super) fn transposed(self) -> Self {
        let ([rows, columns], [row, column]) = (self.extents, self.strides);
        Self { extents: [columns, rows], strides: [column, row], ..self }
    }
}

/// Adds the product of two tiles by the crate `gemm`, which supports the element type.
fn add_by_gemm<T: Element>(into: &mut [T], a: FactorTile<'_, T>, b: FactorTile<'_, T>, one: T) {
    let [a, b] = [a, b].map(|FactorTile { items, extents, strides }| MatrixSlice { items, extents, strides });
    add_product(into, a, b, one);
}

/// The number of rows of `b` that are processed at a time, because they fit into the processor's caches.
const DEPTH: usize = 64;
/// The bytes of a result row that are processed at a time, because they fit into the processor's caches.
const ROW_BYTES: usize = 4096;

fn add_by_loops<T: Element>(
    into: &mut [T],
    a: FactorTile<'_, T>,
    b: FactorTile<'_, T>,
    add: impl Fn(T, T, T) -> T,
) {
    let ([_, k], [_, n]) = (a.extents, b.extents);
    if b.strides[1] != 1 {
        // Iterate over columns of `b` in the inner loop, because each column is contiguous.
        for (row, sums) in into.chunks_exact_mut(n).enumerate() {
            for (column, sum) in sums.iter_mut().enumerate() {
                let of_column = &b.items[column * b.strides[1]..][..k];
                *sum = of_column.iter().enumerate().fold(*sum, |sum, (at, y)| add(sum, a.at(row, at), *y));
            }
        }
        return;
    }
    for first in (0..k).step_by(DEPTH) {
        for start in (0..n).step_by(ROW_BYTES / size_of::<T>()) {
            let end = n.min(start + ROW_BYTES / size_of::<T>());
            for (row, sums) in into.chunks_exact_mut(n).enumerate() {
                for at in first..k.min(first + DEPTH) {
                    let (x, of_row) = (a.at(row, at), &b.items[at * b.strides[0]..]);
                    for (sum, y) in sums[start..end].iter_mut().zip(&of_row[start..end]) {
                        *sum = add(*sum, x, *y);
                    }
                }
            }
        }
    }
}

/// Implements the trait for types whose sums have the type of the elements.
macro_rules! same_sums {
    () => {
        type Sum = Self;

        fn widened(of: &[Self]) -> Cow<'_, [Self]> {
            Cow::Borrowed(of)
        }

        fn rounded(of: &[Self]) -> Cow<'_, [Self]> {
            Cow::Borrowed(of)
        }
    };
}

macro_rules! integers {
    ($($T:ty)*) => { $(
        impl MatMulElement for $T {
            same_sums!();

            fn add_product(into: &mut [Self], a: FactorTile<'_, Self>, b: FactorTile<'_, Self>) {
                add_by_loops(into, a, b, |sum, x, y| sum.wrapping_add(x.wrapping_mul(y)));
            }
        }
    )* };
}
integers!(u8 u16 u32 u64 i8 i16 i32 i64);

macro_rules! floats {
    ($($T:ty)*) => { $(
        impl MatMulElement for $T {
            same_sums!();
            const HAS_KERNEL: bool = true;

            fn add_product(into: &mut [Self], a: FactorTile<'_, Self>, b: FactorTile<'_, Self>) {
                add_by_gemm(into, a, b, 1.0);
            }
        }
    )* };
}
floats!(f32 f64);

#[cfg(feature = "num-complex")]
macro_rules! complex {
    ($($T:ty)*) => { $(
        impl MatMulElement for num_complex::Complex<$T> {
            same_sums!();

            fn add_product(into: &mut [Self], a: FactorTile<'_, Self>, b: FactorTile<'_, Self>) {
                add_by_gemm(into, a, b, Self::new(1.0, 0.0));
            }
        }
    )* };
}
#[cfg(feature = "num-complex")]
complex!(f32 f64);

#[cfg(feature = "half")]
impl MatMulElement for half::f16 {
    type Sum = f32;

    fn widened(of: &[Self]) -> Cow<'_, [f32]> {
        of.iter().map(|of| of.to_f32()).collect()
    }

    fn rounded(of: &[f32]) -> Cow<'_, [Self]> {
        of.iter().map(|of| Self::from_f32(*of)).collect()
    }

    fn add_product(into: &mut [f32], a: FactorTile<'_, f32>, b: FactorTile<'_, f32>) {
        add_by_gemm(into, a, b, 1.0);
    }
}
