//! [`Tile`]: guards that pin one page of a tiled array in the cache and show it as a box.

use std::fmt;
use std::ops::{Deref, DerefMut};

use backend_api::Device;

use super::NdArray;
use super::geometry::Tiling;
use super::shape::{self, PositionBox};
use crate::array::page_guard::{PageMut, PageRef};
use crate::base::element::Element;
use crate::base::error::{ErrorKind, Result};
use crate::ops::paged::{PagedView as _, PagedViewMut as _};
use crate::setup::any::AnyDevice;

impl<T: Element, const N: usize, D: Device> NdArray<T, N, D> {
    fn tiling(&self) -> Result<&Tiling<N>> {
        self.geometry.tiling.as_ref().ok_or_else(|| ErrorKind::NotTiled.into())
    }

    /// Returns the page of a tile and the box of its positions; `at` is the tile's position in tiles.
    fn page_of_tile(&self, at: [usize; N]) -> Result<(usize, PositionBox<N>)> {
        let tiling = self.tiling()?;
        shape::check_position(&tiling.counts, &at)?;
        let of = shape::intersection(&tiling.positions_of(at), &([0; N]..self.geometry.shape));
        Ok((tiling.number_of(&at), of))
    }

    /// Borrows a tile of a tiled array in the cache. `at` is the tile's position, in tiles: `[1, 2]` is the
    /// third tile of the second row of tiles. The result is a guard, like that of
    /// [`VirtualArray::page`](crate::views::PagedView::page).
    ///
    /// # Errors
    /// [`NotTiled`](ErrorKind::NotTiled); [`PositionOutside`](ErrorKind::PositionOutside), whose index and
    /// extent count tiles; and errors of [`VirtualArray::page`](crate::views::PagedView::page).
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// let image = vmarray::NdArray::<u8, 2>::builder([100, 100]).tile([16, 16]).build()?;
    /// image.set([17, 33], 5)?;
    /// let tile = image.tile([1, 2])?;
    /// assert_eq!(tile[16 + 1], 5);
    /// assert_eq!(tile.bounds(), [16, 32]..[32, 48]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn tile(&self, at: [usize; N]) -> Result<TileRef<'_, T, N, D>> {
        let (page, bounds) = self.page_of_tile(at)?;
        Ok(Tile { page: self.elements.page(page)?, bounds, strides: self.geometry.strides })
    }

    /// Borrows a tile of a tiled array in the cache, mutably; `at` is the tile's position, in tiles. The
    /// result is a guard, like that of [`VirtualArray::page_mut`](crate::views::PagedViewMut::page_mut).
    ///
    /// # Errors
    /// The errors of [`tile`](Self::tile).
    pub fn tile_mut(&self, at: [usize; N]) -> Result<TileMut<'_, T, N, D>> {
        let (page, bounds) = self.page_of_tile(at)?;
        Ok(Tile { page: self.elements.page_mut(page)?, bounds, strides: self.geometry.strides })
    }
}

/// A guard of a tile (a page of a tiled array) in the cache: a [`PageRef`] or [`PageMut`] that dereferences
/// to all elements of the page in row-major order, including padding. The drop of a mutable guard sets the
/// padding to zero.
///
/// ```
/// use vmarray::{nd::Tile, prelude::*};
/// let image = NdArray::<u8, 2>::builder([10, 10]).tile([8, 8]).build()?;
/// image.tile_mut([1, 1])?.row_mut([0]).copy_from_slice(&[1, 2]);
/// assert_eq!((image.get([8, 9])?, image.count(.., Field::whole(), &0)?), (2, 98));
/// let corner: Tile<_, 2> = image.tile([1, 1])?;
/// assert_eq!((corner.len(), corner.bounds(), corner.row([0])), (64, [8, 8]..[10, 10], &[1, 2][..]));
/// # Ok::<(), vmarray::Error>(())
/// ```
pub struct Tile<P: TilePage, const N: usize> {
    page: P,
    bounds: PositionBox<N>,
    strides: [usize; N],
}

/// A [`Tile`] with shared access to its elements.
///
/// ```
/// use vmarray::prelude::*;
/// let image = vmarray::NdArray::<u8, 2>::builder([10, 10]).tile([8, 8]).build()?;
/// let corner: vmarray::nd::TileRef<'_, u8, 2> = image.tile([1, 1])?;
/// assert_eq!(corner[..], [0; 64]);
/// # Ok::<(), vmarray::Error>(())
/// ```
pub type TileRef<'a, T, const N: usize, D = AnyDevice> = Tile<PageRef<'a, T, D>, N>;

/// A [`Tile`] with exclusive access to its elements.
///
/// ```
/// use vmarray::prelude::*;
/// let image = vmarray::NdArray::<u8, 2>::builder([10, 10]).tile([8, 8]).build()?;
/// let mut corner: vmarray::nd::TileMut<'_, u8, 2> = image.tile_mut([1, 1])?;
/// corner.fill(1);
/// drop(corner);
/// assert_eq!(image.get([9, 9])?, 1);
/// assert_eq!(image.count(.., Field::whole(), &1)?, 4);
/// # Ok::<(), vmarray::Error>(())
/// ```
pub type TileMut<'a, T, const N: usize, D = AnyDevice> = Tile<PageMut<'a, T, D>, N>;

/// The guard of the page that stores a tile: [`PageRef`] or [`PageMut`].
pub trait TilePage: Deref<Target = [Self::Element]> {
    type Element: Element;

    /// Zeroes the padding of a tile, if the guard can write.
    fn zero_padding<const N: usize>(&mut self, _extent: [usize; N], _strides: [usize; N]) {}
}

impl<T: Element, D: Device> TilePage for PageRef<'_, T, D> {
    type Element = T;
}

impl<T: Element, D: Device> TilePage for PageMut<'_, T, D> {
    type Element = T;

    fn zero_padding<const N: usize>(&mut self, extent: [usize; N], strides: [usize; N]) {
        let len = self.len();
        if !self.is_written() || shape::volume(&extent) == len {
            return;
        }
        // The tile's extents including padding, which the strides determine.
        let whole = |axis: usize| if axis == 0 { len } else { strides[axis - 1] } / strides[axis];
        for (row, places) in self.chunks_exact_mut(whole(N - 1)).enumerate() {
            let first = row * whole(N - 1);
            let is_inside = (0..N - 1).all(|axis| first / strides[axis] % whole(axis) < extent[axis]);
            places[if is_inside { extent[N - 1] } else { 0 }..].fill(T::zeroed());
        }
    }
}

impl<P: TilePage, const N: usize> Tile<P, N> {
    /// Returns the box of positions that the tile covers in the array, without padding.
    #[must_use]
    pub fn bounds(&self) -> PositionBox<N> {
        self.bounds.clone()
    }

    /// Returns the range of a row in the page; `at` is its position in the tile on all axes but the last.
    fn places<const M: usize>(&self, at: [usize; M]) -> std::ops::Range<usize> {
        const { assert!(M + 1 == N, "a row's position must have an index for each axis but the last") };
        for (axis, at) in at.iter().enumerate() {
            let extent = self.bounds.end[axis] - self.bounds.start[axis];
            assert!(*at < extent, "index {at} is outside of the tile's {extent} on axis {axis}");
        }
        let start: usize = at.iter().zip(&self.strides).map(|(at, stride)| at * stride).sum();
        start..start + self.bounds.end[N - 1] - self.bounds.start[N - 1]
    }

    /// Returns one row of the tile as a slice, without padding. `at` is the row's position within the tile
    /// along all axes but the last; `M` is `N - 1`.
    ///
    /// # Panics
    /// If `at` is outside of the tile.
    #[must_use]
    pub fn row<const M: usize>(&self, at: [usize; M]) -> &[P::Element] {
        &self.page[self.places(at)]
    }

    /// Returns one row of the tile as a mutable slice; see [`row`](Self::row).
    ///
    /// # Panics
    /// If `at` is outside of the tile.
    #[must_use]
    pub fn row_mut<const M: usize>(&mut self, at: [usize; M]) -> &mut [P::Element]
    where
        P: DerefMut,
    {
        let places = self.places(at);
        &mut self.page[places]
    }
}

impl<P: TilePage, const N: usize> Deref for Tile<P, N> {
    type Target = [P::Element];

    fn deref(&self) -> &[P::Element] {
        &self.page
    }
}

impl<P: TilePage + DerefMut, const N: usize> DerefMut for Tile<P, N> {
    fn deref_mut(&mut self) -> &mut [P::Element] {
        &mut self.page
    }
}

impl<P: TilePage, const N: usize> Drop for Tile<P, N> {
    fn drop(&mut self) {
        self.page.zero_padding(shape::extent(&self.bounds), self.strides);
    }
}

impl<P: TilePage + fmt::Debug, const N: usize> fmt::Debug for Tile<P, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tile").field("bounds", &self.bounds).field("page", &self.page).finish()
    }
}
