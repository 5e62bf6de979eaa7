//! [`BoxShape`]: the shapes of views that can have a boundary mode, ranges and boxes.

use std::ops::Range;

use crate::base::error::Result;
use crate::ops::sealed::Internal;
use crate::ops::view::{INTERNAL, Linear, Shape, Store, StoreMut};
use crate::shapes::nd::{NdShape, Segment};

/// A view's shape that can have a boundary mode: a box, or a range (a box with one axis). The trait is
/// sealed.
///
/// ```
/// use vmarray::prelude::*;
/// use vmarray::boundary::{Bounded, BoxShape, Zero};
/// // An array or a source of one axis, or a part of one.
/// fn before<'a>(view: impl View<'a, Element = u8, Shape: BoxShape<1>>) -> vmarray::Result<u8> {
///     view.bounded(Zero).get([-1])
/// }
/// assert_eq!(before(VirtualArray::<u8>::new(6)?.section(2..)?)?, 0);
/// # Ok::<(), vmarray::Error>(())
/// ```
pub trait BoxShape<const M: usize>: Shape {
    #[doc(hidden)]
    fn extents(&self) -> [usize; M];

    #[doc(hidden)]
    fn index(at: [usize; M]) -> Self::Index;

    /// Reads the elements that combine one segment per axis into memory with these strides.
    #[doc(hidden)]
    fn read_parts<S: Store>(
        &self,
        store: &S,
        of: [&[Segment]; M],
        strides: [usize; M],
        into: &mut [S::Element],
        _: Internal,
    ) -> Result<()>;

    /// Writes a box of elements, from memory with these strides.
    #[doc(hidden)]
    fn write_part<S: StoreMut>(
        &self,
        store: &S,
        of: &Range<[usize; M]>,
        strides: [usize; M],
        from: &[S::Element],
        _: Internal,
    ) -> Result<()>;
}

impl<const N: usize, const M: usize> BoxShape<M> for NdShape<N, M> {
    #[inline(always)]
    fn extents(&self) -> [usize; M] {
        self.extents
    }

    #[inline(always)]
    fn index(at: [usize; M]) -> [usize; M] {
        at
    }

    fn read_parts<S: Store>(
        &self,
        store: &S,
        of: [&[Segment]; M],
        strides: [usize; M],
        into: &mut [S::Element],
        _: Internal,
    ) -> Result<()> {
        self.read_segments(store, of, strides, into)
    }

    fn write_part<S: StoreMut>(
        &self,
        store: &S,
        of: &Range<[usize; M]>,
        strides: [usize; M],
        from: &[S::Element],
        _: Internal,
    ) -> Result<()> {
        self.write(store, of, strides, from)
    }
}

impl BoxShape<1> for Linear {
    #[inline(always)]
    fn extents(&self) -> [usize; 1] {
        [self.len]
    }

    #[inline(always)]
    fn index([at]: [usize; 1]) -> usize {
        at
    }

    fn read_parts<S: Store>(
        &self,
        store: &S,
        of: [&[Segment]; 1],
        strides: [usize; 1],
        into: &mut [S::Element],
        _: Internal,
    ) -> Result<()> {
        NdShape::line(self.range()).read_segments(store, of, strides, into)
    }

    fn write_part<S: StoreMut>(
        &self,
        store: &S,
        of: &Range<[usize; 1]>,
        _: [usize; 1],
        from: &[S::Element],
        _: Internal,
    ) -> Result<()> {
        let ([start], [end]) = (of.start, of.end);
        store.write_at(self.start + start, &from[..end - start], INTERNAL)
    }
}
