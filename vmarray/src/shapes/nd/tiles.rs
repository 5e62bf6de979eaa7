//! Iteration over an N-dimensional array tile by tile, in order or in parallel. Closures get copies of tiles.

use std::iter::FusedIterator;

use backend_api::Device;

use super::geometry::unravel;
use super::shape::{self, PositionBox};
use super::{NdArray, NdLayout, NdView as _, NdViewMut as _};
use crate::array::map::MapMode;
use crate::base::element::Element;
use crate::base::error::{ErrorKind, Result};
use crate::base::memory::zeroed_vec;
#[cfg(feature = "rayon")]
use crate::base::scoped_threads::works_alone;
use crate::ops::view::View as _;

const LOOKAHEAD_PAGES: usize = 8;

/// An iterator over the boxes that divide a shape, in row-major order. Boxes at far edges may be smaller.
///
/// ```
/// use vmarray::{nd::Tiles, prelude::*};
/// let image = NdArray::<u8, 2>::builder([5, 6]).tile([4, 4]).build()?;
/// let boxes: Vec<_> = image.tiles().collect();
/// assert_eq!(boxes, [[0, 0]..[4, 4], [0, 4]..[4, 6], [4, 0]..[5, 4], [4, 4]..[5, 6]]);
/// let others = Tiles::new([100, 100], [64, 64])?;
/// assert_eq!((others.len(), others.number(1), others.number(4)), (4, Some([0, 64]..[64, 100]), None));
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Tiles<const N: usize> {
    shape: [usize; N],
    extent: [usize; N],
    counts: [usize; N],
    next: usize,
    end: usize,
}

impl<const N: usize> Tiles<N> {
    /// Divides a shape into boxes of the given extent, in elements per axis.
    ///
    /// # Errors
    /// [`EmptyTile`](ErrorKind::EmptyTile), [`ShapeOverflow`](ErrorKind::ShapeOverflow).
    pub fn new(shape: [usize; N], extent: [usize; N]) -> Result<Self> {
        if let Some(axis) = extent.iter().position(|extent| *extent == 0) {
            return Err(ErrorKind::EmptyTile { axis }.into());
        }
        shape::element_count(&shape)?;
        let counts = std::array::from_fn(|axis| shape[axis].div_ceil(extent[axis]));
        Ok(Self { shape, extent, counts, next: 0, end: shape::volume(&counts) })
    }

    /// Returns the box with a number in row-major order; `None` after the last box. The result does not
    /// depend on the iterator's position.
    #[must_use]
    pub fn number(&self, number: usize) -> Option<PositionBox<N>> {
        let at = unravel(&self.counts, number)?;
        let start: [usize; N] = std::array::from_fn(|axis| at[axis] * self.extent[axis]);
        let end =
            std::array::from_fn(|axis| start[axis].saturating_add(self.extent[axis]).min(self.shape[axis]));
        Some(start..end)
    }

    /// Calls `work` for the remaining boxes in parallel, on rayon's threads; each thread has a buffer. `work`
    /// also gets the next box of its thread, for a prefetch. A thread that [must](works_alone) works alone.
    #[cfg(feature = "rayon")]
    pub(crate) fn par_each<T: Send>(
        &self,
        buffer: impl Fn() -> Result<Vec<T>> + Send + Sync,
        work: impl Fn(&mut [T], PositionBox<N>, Option<PositionBox<N>>) -> Result<()> + Send + Sync,
    ) -> Result<()> {
        use rayon::prelude::*;

        let work = |buffer: &mut Result<Vec<T>>, number| {
            let buffer = buffer.as_mut().map_err(|error| error.clone())?;
            let Some(of) = self.number(number) else { return Ok(()) };
            work(buffer, of, self.number(number + 1))
        };
        let mut numbers = self.next..self.end;
        if works_alone() {
            let mut buffer = buffer();
            return numbers.try_for_each(|number| work(&mut buffer, number));
        }
        numbers.into_par_iter().try_for_each_init(buffer, work)
    }

    /// Returns the extents of the first box, which is the largest.
    pub(crate) fn largest(&self) -> [usize; N] {
        std::array::from_fn(|axis| self.extent[axis].min(self.shape[axis]))
    }
}

impl<const N: usize> Iterator for Tiles<N> {
    type Item = PositionBox<N>;

    fn next(&mut self) -> Option<PositionBox<N>> {
        if self.next == self.end {
            return None;
        }
        self.next += 1;
        self.number(self.next - 1)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.end - self.next, Some(self.end - self.next))
    }
}

impl<const N: usize> ExactSizeIterator for Tiles<N> {}

impl<const N: usize> FusedIterator for Tiles<N> {}

impl<T: Element, const N: usize, D: Device> NdArray<T, N, D> {
    /// Returns boxes that cover the array, to process it box by box. They are the tiles of a tiled array, or
    /// sets of whole rows, about a page each.
    #[must_use]
    pub fn tiles(&self) -> Tiles<N> {
        let shape = self.geometry.shape;
        let extent = match self.layout() {
            NdLayout::Tiled(extent) => extent,
            NdLayout::RowMajor => {
                let mut room = self.elements.page_len();
                let mut extent = [1; N];
                for axis in (0..N).rev() {
                    extent[axis] = room.clamp(1, shape[axis].max(1));
                    room /= extent[axis];
                }
                extent
            }
        };
        let counts = std::array::from_fn(|axis| shape[axis].div_ceil(extent[axis]));
        Tiles { shape, extent, counts, next: 0, end: shape::volume(&counts) }
    }

    /// Runs a closure for each box of `tiles`, in order. The closure gets the box and a copy of its elements
    /// in row-major order.
    ///
    /// The call prefetches the next boxes, and holds no lock while the closure runs. `mode` determines if the
    /// call reads the elements before the closure, and if it writes them back afterwards. If the call does
    /// not read the elements, the copy is zero at first.
    ///
    /// # Errors
    /// [`BoxOutside`](ErrorKind::BoxOutside), before the closure runs, if the boxes belong to a larger
    /// shape; and the errors of [`read_box`](crate::nd::NdView::read_box) and
    /// [`write_box`](crate::nd::NdViewMut::write_box).
    ///
    /// ```
    /// use vmarray::{access::MapMode, prelude::*};
    /// let image = NdArray::<u32, 2>::builder([100, 100]).tiled().build()?;
    /// image.for_each_tile(image.tiles(), MapMode::Write, |_, tile| tile.fill(2))?;
    /// let mut sum = 0;
    /// image.for_each_tile(image.tiles(), MapMode::Read, |_, tile| sum += tile.iter().sum::<u32>())?;
    /// assert_eq!(sum, 20_000);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn for_each_tile(
        &self,
        tiles: Tiles<N>,
        mode: MapMode,
        mut run: impl FnMut(PositionBox<N>, &mut [T]),
    ) -> Result<()> {
        self.check_tiles(&tiles)?;
        let mut buffer = zeroed_vec(shape::volume(&tiles.largest()))?;
        let mut ahead = tiles.clone();
        let mut depth = 0;
        for (number, of) in tiles.enumerate() {
            if mode.reads() {
                if number == 0 {
                    depth = self.lookahead(&of);
                    ahead.next();
                }
                while number + depth >= ahead.next
                    && let Some(next) = ahead.next()
                {
                    self.fetch_quietly(next);
                }
            }
            self.map_tile(of, mode, &mut buffer, &mut run)?;
        }
        Ok(())
    }

    /// Checks that boxes belong to a shape that is not larger than the array, before any is processed.
    fn check_tiles(&self, tiles: &Tiles<N>) -> Result<()> {
        if tiles.next < tiles.end {
            shape::check_box(&self.geometry.shape, [0; N]..tiles.shape)?;
        }
        Ok(())
    }

    /// Returns the number of boxes to prefetch.
    fn lookahead(&self, of: &PositionBox<N>) -> usize {
        let pages: usize = self.geometry.pages(of, self.elements.page_len()).map(|pages| pages.len()).sum();
        let frames = usize::try_from(self.elements.pager().frames()).unwrap_or(usize::MAX);
        (LOOKAHEAD_PAGES.min(frames / 4) / pages.max(1)).max(usize::from(pages <= frames / 4))
    }

    /// Runs a function on a copy of a box in a buffer for the largest box. `mode` determines if the box is
    /// read before and written afterwards.
    fn map_tile(
        &self,
        of: PositionBox<N>,
        mode: MapMode,
        buffer: &mut [T],
        run: impl FnOnce(PositionBox<N>, &mut [T]),
    ) -> Result<()> {
        let values = &mut buffer[..shape::volume(&shape::extent(&of))];
        if mode.reads() {
            self.read_box(of.clone(), values)?;
        } else {
            values.fill(T::zeroed());
        }
        run(of.clone(), values);
        if mode.writes() { self.write_box(of, values) } else { Ok(()) }
    }

    fn fetch_quietly(&self, of: PositionBox<N>) {
        if let Err(error) = self.prefetch(of) {
            crate::base::trace::read_ahead_failed(&error);
        }
    }

    /// Runs a closure for each box as [`for_each_tile`](Self::for_each_tile) does, but in parallel on rayon's
    /// threads and in any order. Each thread has one copy, and prefetches its next box. A thread that [must
    /// work alone](crate::access::must_work_alone) processes all boxes itself.
    ///
    /// # Errors
    /// The errors of [`for_each_tile`](Self::for_each_tile). The first error soon ends the call.
    ///
    /// ```
    /// use vmarray::{access::MapMode, prelude::*};
    /// let image = NdArray::<u32, 2>::builder([100, 100]).tiled().build()?;
    /// image.par_for_each_tile(image.tiles(), MapMode::ReadWrite, |of, tile| {
    ///     tile.iter_mut().for_each(|pixel| *pixel += of.start[0] as u32 + 1);
    /// })?;
    /// assert_eq!(image.get([99, 99])?, 1);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    #[cfg(feature = "rayon")]
    pub fn par_for_each_tile(
        &self,
        tiles: Tiles<N>,
        mode: MapMode,
        run: impl Fn(PositionBox<N>, &mut [T]) + Send + Sync,
    ) -> Result<()> {
        self.check_tiles(&tiles)?;
        let room = shape::volume(&tiles.largest());
        tiles.par_each(
            || zeroed_vec(room),
            |buffer, of, next| {
                if mode.reads()
                    && let Some(next) = next
                    && self.lookahead(&next) > 0
                {
                    self.fetch_quietly(next);
                }
                self.map_tile(of, mode, buffer, &run)
            },
        )
    }
}
