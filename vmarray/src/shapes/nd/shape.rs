//! Arithmetic of N-dimensional shapes: lengths, strides, boxes, and their checks.

use std::ops::{Bound, Range, RangeBounds};

use crate::base::error::{self, ErrorKind, Result};

/// A half-open box of positions, from the first to one past the last along each axis.
pub(crate) type PositionBox<const N: usize> = Range<[usize; N]>;

/// Returns the number of elements of a shape. The product of all extents that are not zero must fit, so that
/// strides fit as well.
pub(crate) fn element_count<const N: usize>(shape: &[usize; N]) -> Result<usize> {
    let product = shape.iter().filter(|extent| **extent > 0).try_fold(1_usize, |n, &e| n.checked_mul(e));
    match product {
        Some(product) if product <= isize::MAX as usize => Ok(if shape.contains(&0) { 0 } else { product }),
        _ => Err(ErrorKind::ShapeOverflow { shape: shape.to_vec() }.into()),
    }
}

/// Returns the distance between neighbours along each axis, in row-major order. The shape must be checked.
pub(crate) fn strides<const N: usize>(shape: &[usize; N]) -> [usize; N] {
    let mut strides = [1; N];
    for axis in (1..N).rev() {
        strides[axis - 1] = strides[axis] * shape[axis].max(1);
    }
    strides
}

pub(crate) fn extent<const N: usize>(of: &PositionBox<N>) -> [usize; N] {
    std::array::from_fn(|axis| of.end[axis] - of.start[axis])
}

/// Returns the number of elements of a box with this extent, which is inside of a shape.
pub(crate) fn volume<const N: usize>(extent: &[usize; N]) -> usize {
    extent.iter().product()
}

/// Returns the distance in memory of a position from the first one, for these strides.
#[inline(always)]
pub(crate) fn dot<const N: usize>(at: &[usize; N], strides: &[usize; N]) -> usize {
    at.iter().zip(strides).map(|(at, stride)| at * stride).sum()
}

pub(crate) fn is_void<const N: usize>(of: &PositionBox<N>) -> bool {
    (0..N).any(|axis| of.start[axis] >= of.end[axis])
}

/// Returns the intersection of two boxes, which may be empty.
pub(crate) fn intersection<const N: usize>(a: &PositionBox<N>, b: &PositionBox<N>) -> PositionBox<N> {
    let start = std::array::from_fn(|axis| a.start[axis].max(b.start[axis]));
    start..std::array::from_fn(|axis| a.end[axis].min(b.end[axis]).max(start[axis]))
}

#[inline(always)]
pub(crate) fn check_position<const N: usize>(shape: &[usize; N], at: &[usize; N]) -> Result<()> {
    for axis in 0..N {
        if at[axis] >= shape[axis] {
            return Err(position_outside(axis, at[axis] as i128, shape[axis]));
        }
    }
    Ok(())
}

/// Returns the error of [`check_position`]. A separate function, so that the check costs callers one
/// comparison per axis.
#[cold]
#[inline(never)]
pub(crate) fn position_outside(axis: usize, index: i128, extent: usize) -> crate::Error {
    ErrorKind::PositionOutside { axis, index, extent }.into()
}

/// Converts any kind of range of positions to a box, and checks that the box is inside of a shape.
pub(crate) fn check_box<const N: usize>(
    shape: &[usize; N],
    bounds: impl RangeBounds<[usize; N]>,
) -> Result<PositionBox<N>> {
    let start = match bounds.start_bound() {
        Bound::Included(start) => *start,
        Bound::Excluded(start) => start.map(|at| at.saturating_add(1)),
        Bound::Unbounded => [0; N],
    };
    let end = match bounds.end_bound() {
        // An inclusive end that overflows is outside of every shape.
        Bound::Included(end) => end.map(|at| at.saturating_add(1)),
        Bound::Excluded(end) => *end,
        Bound::Unbounded => *shape,
    };
    for axis in 0..N {
        let (start, end, extent) = (start[axis], end[axis], shape[axis]);
        if end > extent {
            return Err(ErrorKind::BoxOutside { axis, start, end, extent }.into());
        }
        if start > end {
            return Err(ErrorKind::BoxReversed { axis, start, end }.into());
        }
    }
    Ok(start..end)
}

pub(crate) fn check_axis(axis: usize, axes: usize) -> Result<()> {
    if axis < axes { Ok(()) } else { Err(ErrorKind::NoSuchAxis { axis, axes }.into()) }
}

pub(crate) fn expect_len<const N: usize>(of: &PositionBox<N>, got: usize) -> Result<()> {
    error::expect_len("the slice of the box", volume(&extent(of)), got)
}

/// Checks that a box with this start and extent is inside of a shape, and returns the box.
#[cfg(feature = "ndarray")]
pub(crate) fn check_extent<const N: usize>(
    shape: &[usize; N],
    start: [usize; N],
    extent: [usize; N],
) -> Result<PositionBox<N>> {
    check_box(shape, start..std::array::from_fn(|axis| start[axis].saturating_add(extent[axis])))
}

/// Iterates over the positions of a box; the last axis varies fastest.
#[derive(Clone, Debug)]
pub(crate) struct Positions<const N: usize> {
    of: PositionBox<N>,
    next: Option<[usize; N]>,
}

impl<const N: usize> Positions<N> {
    pub(crate) fn new(of: PositionBox<N>) -> Self {
        let next = (!is_void(&of)).then_some(of.start);
        Self { of, next }
    }
}

impl<const N: usize> Iterator for Positions<N> {
    type Item = [usize; N];

    #[inline]
    fn next(&mut self) -> Option<[usize; N]> {
        let now = self.next?;
        let mut then = now;
        self.next = None;
        for axis in (0..N).rev() {
            then[axis] += 1;
            if then[axis] < self.of.end[axis] {
                self.next = Some(then);
                break;
            }
            then[axis] = self.of.start[axis];
        }
        Some(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_that_overflow_are_refused() {
        assert_eq!(element_count(&[3, 4]).unwrap(), 12);
        assert_eq!(element_count(&[usize::MAX / 2, 0]).unwrap(), 0);
        for shape in [[usize::MAX, 2], [1 << 40, 1 << 23], [usize::MAX, 1]] {
            let error = element_count(&shape).unwrap_err();
            assert_eq!(*error.kind(), ErrorKind::ShapeOverflow { shape: shape.to_vec() });
        }
        assert!(element_count(&[usize::MAX, usize::MAX, 0]).is_err());
    }

    #[test]
    fn all_kinds_of_ranges_are_boxes() {
        let shape = [4, 5];
        assert_eq!(check_box(&shape, ..).unwrap(), [0, 0]..[4, 5]);
        assert_eq!(check_box(&shape, [1, 2]..).unwrap(), [1, 2]..[4, 5]);
        assert_eq!(check_box(&shape, ..=[2, 2]).unwrap(), [0, 0]..[3, 3]);
        assert_eq!(check_box(&shape, [4, 5]..[4, 5]).unwrap(), [4, 5]..[4, 5]);
        let outside = check_box(&shape, ..[4, 6]).unwrap_err();
        assert_eq!(*outside.kind(), ErrorKind::BoxOutside { axis: 1, start: 0, end: 6, extent: 5 });
        let reversed = check_box(&shape, [2, 0]..[1, 1]).unwrap_err();
        assert_eq!(*reversed.kind(), ErrorKind::BoxReversed { axis: 0, start: 2, end: 1 });
        assert!(check_box(&shape, ..=[usize::MAX, 0]).is_err());
    }

    #[test]
    fn positions_are_counted_in_row_major_order() {
        let all: Vec<_> = Positions::new([1, 2]..[3, 4]).collect();
        assert_eq!(all, [[1, 2], [1, 3], [2, 2], [2, 3]]);
        assert_eq!(Positions::new([1, 2]..[1, 4]).count(), 0);
    }
}
