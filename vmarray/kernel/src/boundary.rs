//! Boundary modes, such as clamping, for kernels that read an array by index ([`Anywhere`](crate::Anywhere)).
//! Each function maps an index beyond the ends of an axis to the index of the element to read instead.
//!
//! ```
//! use vmarray_kernel::{Anywhere, At, Own, boundary, kernel, run_on_host};
//!
//! #[kernel(crate = vmarray_kernel)]
//! fn far(at: At<1>, by: isize, x: &Anywhere<u8>, out: &mut Own<[u8; 4]>) {
//!     let (i, n) = (at.index() as isize + by, x.len());
//!     out.set([
//!         x[boundary::clamp(i, n)],
//!         x[boundary::circular(i, n)],
//!         x[boundary::mirror(i, n)],
//!         x[boundary::symmetric(i, n)],
//!     ]);
//! }
//! let mut out = [[0; 4]; 3];
//! run_on_host::<far>(0..3, ((), -7, &[1, 2, 3], &mut out))?;
//! assert_eq!(out, [[1, 3, 2, 1], [1, 1, 3, 1], [1, 2, 2, 2]]);
//! # Ok::<_, vmarray_kernel::OutOfBounds>(())
//! ```
//!
//! If the axis has no elements, the index is out of bounds.

use vmarray_macros::kernel;

/// Clamps `index` to the axis: returns the nearest element's index, as in `a a | a b c | c c`.
#[kernel(crate = crate)]
pub fn clamp(index: isize, extent: usize) -> usize {
    index.min(extent as isize - 1).max(0) as usize
}

/// Continues the axis periodically: returns `index` modulo `extent`, as in `b c | a b c | a b`.
#[kernel(crate = crate)]
pub fn circular(index: isize, extent: usize) -> usize {
    index.rem_euclid(extent as isize) as usize
}

/// Mirrors an index at the edge elements without repeating them, as in `c b | a b c | b a`.
#[kernel(crate = crate)]
pub fn mirror(index: isize, extent: usize) -> usize {
    let period = (2 * (extent as isize - 1)).max(1);
    let at = index.rem_euclid(period);
    at.min(period - at) as usize
}

/// Mirrors an index at the edges of the axis, so that edge elements are repeated, as in `b a | a b c | c b`.
#[kernel(crate = crate)]
pub fn symmetric(index: isize, extent: usize) -> usize {
    let period = 2 * extent as isize;
    let at = index.rem_euclid(period);
    at.min(period - 1 - at) as usize
}
