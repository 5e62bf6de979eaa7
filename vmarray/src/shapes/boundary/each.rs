//! Stencils over many boxes: runs a closure on the window around each box, in order or in parallel.

use std::ops::Range;

use super::box_shape::BoxShape;
use super::modes::Boundary;
use super::view::BoundaryView;
use crate::base::error::Result;
use crate::base::memory::zeroed_vec;
use crate::ops::view::View;
use crate::shapes::nd::{Tiles, element_count, volume};

impl<'a, V, const N: usize, R, W> BoundaryView<V, N, R, W>
where
    V: View<'a, Shape: BoxShape<N>>,
    R: Boundary<V::Element, N>,
{
    /// Runs a closure for each box of `tiles`, in order. The closure gets the box and the elements of its
    /// window, in row-major order. The window is the box, enlarged by `halo` elements at both ends of each
    /// axis. The call prefetches the next window.
    ///
    /// # Errors
    /// [`ShapeOverflow`](crate::ErrorKind::ShapeOverflow), [`NoMemory`](crate::ErrorKind::NoMemory), and the
    /// errors of [`read_window`](Self::read_window).
    ///
    /// ```
    /// use vmarray::{boundary::Circular, prelude::*};
    /// let ring = NdArray::<u32, 1>::new([100])?;
    /// ring.set([0], 6)?;
    /// let sums = NdArray::<u32, 1>::new([100])?;
    /// ring.bounded(Circular).for_each_window(ring.tiles(), [1], |of, window| {
    ///     let next: Vec<u32> = window.windows(3).map(|three| three.iter().sum()).collect();
    ///     sums.write_box(of, &next)
    /// })?;
    /// assert_eq!((sums.get([99])?, sums.get([1])?, sums.get([2])?), (6, 6, 0));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn for_each_window(
        &self,
        tiles: Tiles<N>,
        halo: [usize; N],
        mut run: impl FnMut(Range<[usize; N]>, &mut [V::Element]) -> Result<()>,
    ) -> Result<()> {
        let mut buffer = self.window_buffer(&tiles, halo)?;
        let mut next = tiles.clone();
        next.next();
        for of in tiles {
            let window = self.window_of(&of, halo, &mut buffer)?;
            if let Some(next) = next.next() {
                self.fetch(&next, halo);
            }
            run(of, window)?;
        }
        Ok(())
    }

    /// Runs a closure for each box as [`for_each_window`](Self::for_each_window) does, but in parallel on
    /// rayon's threads and in any order. Each thread has memory for one window, and prefetches the next.
    ///
    /// # Errors
    /// The errors of [`for_each_window`](Self::for_each_window). The first error soon ends the call.
    ///
    /// ```
    /// use vmarray::{boundary::Clamp, prelude::*};
    /// let image = NdArray::<f32, 2>::builder([100, 100]).tiled().build()?;
    /// let result = NdArray::<f32, 2>::builder([100, 100]).tiled().build()?;
    /// image.fill(.., 2.0)?;
    /// image.bounded(Clamp).par_for_each_window(image.tiles(), [1, 0], |of, window| {
    ///     let columns = of.end[1] - of.start[1];
    ///     let means = window.iter().zip(&window[2 * columns..]).map(|(a, b)| (a + b) / 2.0);
    ///     result.write_box(of, &means.collect::<Vec<_>>())
    /// })?;
    /// assert_eq!(result.get([0, 99])?, 2.0);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    #[cfg(feature = "rayon")]
    pub fn par_for_each_window(
        &self,
        tiles: Tiles<N>,
        halo: [usize; N],
        run: impl Fn(Range<[usize; N]>, &mut [V::Element]) -> Result<()> + Send + Sync,
    ) -> Result<()>
    where
        R: Sync,
        W: Sync,
    {
        tiles.par_each(
            || self.window_buffer(&tiles, halo),
            |buffer, of, next| {
                let window = self.window_of(&of, halo, buffer)?;
                if let Some(next) = next {
                    self.fetch(&next, halo);
                }
                run(of, window)
            },
        )
    }

    /// Returns a buffer for the largest window.
    fn window_buffer(&self, tiles: &Tiles<N>, halo: [usize; N]) -> Result<Vec<V::Element>> {
        zeroed_vec(element_count(&grown(tiles.largest(), halo))?)
    }

    /// Reads the window of a box into the beginning of a buffer.
    fn window_of<'b>(
        &self,
        of: &Range<[usize; N]>,
        halo: [usize; N],
        buffer: &'b mut [V::Element],
    ) -> Result<&'b mut [V::Element]> {
        let (origin, extent) = window_around(of, halo);
        let window = &mut buffer[..volume(&extent)];
        self.read_window(origin, extent, window)?;
        Ok(window)
    }

    /// Starts a prefetch of the window of a box.
    fn fetch(&self, of: &Range<[usize; N]>, halo: [usize; N]) {
        let (origin, extent) = window_around(of, halo);
        if let Err(error) = self.prefetch_window(origin, extent) {
            crate::base::trace::read_ahead_failed(&error);
        }
    }
}

/// Returns the origin and the extent of a box's window. A buffer has its length, so neither overflows.
fn window_around<const N: usize>(of: &Range<[usize; N]>, halo: [usize; N]) -> ([isize; N], [usize; N]) {
    let origin = std::array::from_fn(|axis| of.start[axis].cast_signed() - halo[axis].cast_signed());
    (origin, grown(std::array::from_fn(|axis| of.end[axis] - of.start[axis]), halo))
}

/// Returns an extent, enlarged by a halo on both sides.
fn grown<const N: usize>(extent: [usize; N], halo: [usize; N]) -> [usize; N] {
    std::array::from_fn(|axis| extent[axis].saturating_add(halo[axis].saturating_mul(2)))
}
