//! Boxes of anything that is read by position.

use std::ops::Range;

use super::Segment;
use crate::base::error::Result;
use crate::shapes::nd::{Grid, GridMut, check_box, check_extent, check_position, check_range, extent};

/// A box of a [`Grid`], which is a grid itself; positions count from its start.
///
/// ```
/// # use vmarray::prelude::*;
/// use vmarray::boundary::Part;
/// use vmarray::{Grid, VirtualArray};
/// let array = VirtualArray::<u8>::new(10)?;
/// array.set(4, 1)?;
/// let part = Part::new(&array, [3]..[6])?;
/// assert_eq!((part.extents(), part.element([1])?), ([3], 1));
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Part<S, const N: usize> {
    source: S,
    start: [usize; N],
    extents: [usize; N],
}

impl<S: Grid<N>, const N: usize> Part<S, N> {
    /// A box of a grid.
    ///
    /// # Errors
    /// [`BoxOutside`](crate::ErrorKind::BoxOutside), [`BoxReversed`](crate::ErrorKind::BoxReversed).
    ///
    /// ```
    /// # use vmarray::prelude::*;
    /// use vmarray::{VirtualArray, boundary::Part};
    /// let array = VirtualArray::<u8>::new(10)?;
    /// assert!(Part::new(&array, [3]..[11]).is_err());
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn new(source: S, bounds: Range<[usize; N]>) -> Result<Self> {
        let of = check_box(&source.extents(), bounds)?;
        Ok(Self { start: of.start, extents: extent(&of), source })
    }

    fn position(&self, at: [usize; N]) -> Result<[usize; N]> {
        check_position(&self.extents, &at)?;
        Ok(std::array::from_fn(|axis| self.start[axis] + at[axis]))
    }

    /// The start of a box in the source.
    fn moved(&self, start: [usize; N], extent: [usize; N]) -> Result<[usize; N]> {
        check_extent(&self.extents, start, extent)?;
        Ok(std::array::from_fn(|axis| self.start[axis] + start[axis]))
    }
}

impl<S: Grid<N>, const N: usize> Grid<N> for Part<S, N> {
    type Element = S::Element;

    fn extents(&self) -> [usize; N] {
        self.extents
    }

    fn element(&self, at: [usize; N]) -> Result<S::Element> {
        self.source.element(self.position(at)?)
    }

    fn read_strided(
        &self,
        start: [usize; N],
        extent: [usize; N],
        strides: [usize; N],
        into: &mut [S::Element],
    ) -> Result<()> {
        self.source.read_strided(self.moved(start, extent)?, extent, strides, into)
    }

    fn read_segments(
        &self,
        segments: [&[Segment]; N],
        strides: [usize; N],
        into: &mut [S::Element],
    ) -> Result<()> {
        let mut moved = segments.map(<[Segment]>::to_vec);
        for (axis, list) in moved.iter_mut().enumerate() {
            for segment in list {
                check_range(axis, self.extents[axis], segment.start, segment.len)?;
                segment.start += self.start[axis];
            }
        }
        self.source.read_segments(std::array::from_fn(|axis| &moved[axis][..]), strides, into)
    }

    fn fetch_ahead(&self, start: [usize; N], extent: [usize; N]) -> Result<()> {
        self.source.fetch_ahead(self.moved(start, extent)?, extent)
    }
}

impl<S: GridMut<N>, const N: usize> GridMut<N> for Part<S, N> {
    fn set_element(&self, at: [usize; N], value: S::Element) -> Result<()> {
        self.source.set_element(self.position(at)?, value)
    }

    fn write_strided(
        &self,
        start: [usize; N],
        extent: [usize; N],
        strides: [usize; N],
        from: &[S::Element],
    ) -> Result<()> {
        self.source.write_strided(self.moved(start, extent)?, extent, strides, from)
    }
}
