//! Matrix products in RAM, computed by the crate `gemm`.

/// A matrix whose elements are in a slice, at fixed distances.
#[derive(Clone, Copy, Debug)]
pub struct MatrixSlice<'a, T> {
    /// The slice. Its first element is the matrix's first element.
    pub items: &'a [T],
    /// Number of rows and of columns.
    pub extents: [usize; 2],
    /// Distance from a row to the next, and from a column to the next, in elements of the slice.
    pub strides: [usize; 2],
}

impl<T> MatrixSlice<'_, T> {
    /// Returns true if the extents and strides reach only elements of the slice.
    fn is_inside(&self) -> bool {
        let last = |axis: usize| self.extents[axis].checked_sub(1)?.checked_mul(self.strides[axis]);
        let end = || last(0)?.checked_add(last(1)?);
        self.extents.contains(&0) || end().is_some_and(|end| end < self.items.len())
    }
}

/// Computes `into += a * b` on the calling thread. `into` has the elements of the result, row by row. `T` is
/// `f32`, `f64`, or a complex number of these; `one` is the number 1 of this type.
///
/// # Panics
/// If the extents do not match, if extents and strides reach beyond a slice, or if `T` is another type.
pub fn add_product<T: Copy + 'static>(into: &mut [T], a: MatrixSlice<'_, T>, b: MatrixSlice<'_, T>, one: T) {
    let ([m, k], [depth, n]) = (a.extents, b.extents);
    assert!(
        k == depth && Some(into.len()) == m.checked_mul(n),
        "`into` must have m * n elements, for `a` of m x k and `b` of k x n"
    );
    assert!(a.is_inside() && b.is_inside(), "the extents and strides of a matrix reach beyond its slice");
    let [a_strides, b_strides] = [a.strides, b.strides].map(|of| of.map(usize::cast_signed));
    // SAFETY: the strides reach only elements of the slices, which was asserted. No other slice overlaps
    // `into`, because it is a mutable reference.
    unsafe {
        ::gemm::gemm(
            m,
            n,
            k,
            into.as_mut_ptr(),
            1,
            n.cast_signed(),
            true,
            a.items.as_ptr(),
            a_strides[1],
            a_strides[0],
            b.items.as_ptr(),
            b_strides[1],
            b_strides[0],
            one,
            one,
            false,
            false,
            false,
            ::gemm::Parallelism::None,
        );
    }
}
