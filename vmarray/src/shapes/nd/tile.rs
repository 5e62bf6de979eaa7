//! Tiles in place: the pages of a tiled array.

use std::fmt;
use std::ops::{Deref, DerefMut};

use backend_api::Device;

use super::NdArray;
use super::geometry::Tiling;
use super::shape::{self, Bounds};
use crate::array::page_guard::{PageMut, PageRef};
use crate::base::element::Element;
use crate::base::error::{ErrorKind, Result};
use crate::ops::view::{PagedView as _, PagedViewMut as _};
use crate::setup::any::AnyDevice;

impl<T: Element, const N: usize, D: Device> NdArray<T, N, D> {
    fn tiling(&self) -> Result<&Tiling<N>> {
        self.geometry.tiling.as_ref().ok_or_else(|| ErrorKind::NotTiled.into())
    }

    /// The page and the positions of a tile, given its place among the tiles.
    fn page_of_tile(&self, at: [usize; N]) -> Result<(usize, Bounds<N>)> {
        let tiling = self.tiling()?;
        shape::check_position(&tiling.counts, &at)?;
        let of = shape::intersection(&tiling.positions_of(at), &([0; N]..self.geometry.shape));
        Ok((tiling.number_of(&at), of))
    }

    /// Lends a tile of a tiled array in place. `[1, 2]` is the third tile of the second row of tiles. As
    /// [`VirtualArray::page`](crate::PagedView::page).
    ///
    /// # Errors
    /// [`NotTiled`](ErrorKind::NotTiled); [`PositionOutside`](ErrorKind::PositionOutside), with tiles as
    /// index and extent; and what [`VirtualArray::page`](crate::PagedView::page) reports.
    ///
    /// ```
    /// # use vmarray::prelude::*;
    /// let image = vmarray::NdArray::<u8, 2>::builder([100, 100]).tile([16, 16]).build()?;
    /// image.set([17, 33], 5)?;
    /// let tile = image.tile([1, 2])?;
    /// assert_eq!(tile[16 + 1], 5);
    /// assert_eq!(tile.bounds(), [16, 32]..[32, 48]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn tile(&self, at: [usize; N]) -> Result<TileRef<'_, T, N, D>> {
        let (page, bounds) = self.page_of_tile(at)?;
        Ok(TileRef { page: self.elements.page(page)?, bounds, strides: self.geometry.strides })
    }

    /// Lends a tile of a tiled array in place, mutably. As
    /// [`VirtualArray::page_mut`](crate::PagedViewMut::page_mut).
    ///
    /// # Errors
    /// As [`tile`](Self::tile).
    ///
    /// ```
    /// # use vmarray::prelude::*;
    /// let image = vmarray::NdArray::<u8, 2>::builder([100, 100]).tile([16, 16]).build()?;
    /// image.tile_mut([0, 0])?.row_mut([3]).fill(1);
    /// assert_eq!((image.get([3, 15])?, image.get([3, 16])?), (1, 0));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn tile_mut(&self, at: [usize; N]) -> Result<TileMut<'_, T, N, D>> {
        let (page, bounds) = self.page_of_tile(at)?;
        Ok(TileMut { page: self.elements.page_mut(page)?, bounds, strides: self.geometry.strides })
    }
}

/// A tile in place, shared: the places of its page, row-major, padding included. A [`PageRef`] in all else.
///
/// ```
/// # use vmarray::prelude::*;
/// let image = vmarray::NdArray::<u8, 2>::builder([10, 10]).tile([8, 8]).build()?;
/// let corner = image.tile([1, 1])?;
/// assert_eq!((corner.len(), corner.bounds()), (64, [8, 8]..[10, 10]));
/// # Ok::<(), vmarray::Error>(())
/// ```
pub struct TileRef<'a, T: Element, const N: usize, D: Device = AnyDevice> {
    page: PageRef<'a, T, D>,
    bounds: Bounds<N>,
    strides: [usize; N],
}

/// A tile in place, exclusively: the places of its page, row-major, padding included. What is written to
/// padding is zeroed when this is dropped. A [`PageMut`] in all else.
///
/// ```
/// # use vmarray::prelude::*;
/// use vmarray::Field;
/// let image = vmarray::NdArray::<u8, 2>::builder([10, 10]).tile([8, 8]).build()?;
/// image.tile_mut([1, 1])?.fill(1);
/// assert_eq!(image.get([9, 9])?, 1);
/// assert_eq!(image.count(.., Field::whole(), &1)?, 4);
/// # Ok::<(), vmarray::Error>(())
/// ```
pub struct TileMut<'a, T: Element, const N: usize, D: Device = AnyDevice> {
    page: PageMut<'a, T, D>,
    bounds: Bounds<N>,
    strides: [usize; N],
}

macro_rules! common {
    ($Tile:ident) => {
        impl<T: Element, const N: usize, D: Device> $Tile<'_, T, N, D> {
            /// The positions of the tile in the array; without padding.
            ///
            /// ```
            /// # use vmarray::prelude::*;
            /// let image = vmarray::NdArray::<u8, 2>::builder([10, 10]).tile([8, 8]).build()?;
            /// assert_eq!(image.tile([0, 1])?.bounds(), [0, 8]..[8, 10]);
            /// assert_eq!(image.tile_mut([1, 0])?.bounds(), [8, 0]..[10, 8]);
            /// # Ok::<(), vmarray::Error>(())
            /// ```
            #[must_use]
            pub fn bounds(&self) -> Bounds<N> {
                self.bounds.clone()
            }

            /// The places of a row: `at` are its positions within the tile on all axes but the last.
            fn places<const M: usize>(&self, at: [usize; M]) -> std::ops::Range<usize> {
                const { assert!(M + 1 == N, "a row has a position on all axes but the last") };
                for (axis, at) in at.iter().enumerate() {
                    let extent = self.bounds.end[axis] - self.bounds.start[axis];
                    assert!(*at < extent, "row {at} of axis {axis} is outside of a tile of {extent}");
                }
                let start: usize = at.iter().zip(&self.strides).map(|(at, stride)| at * stride).sum();
                start..start + self.bounds.end[N - 1] - self.bounds.start[N - 1]
            }

            /// A row of the tile, without padding, by its positions within the tile on all axes but the last.
            /// `M` is `N - 1`.
            ///
            /// # Panics
            /// If a position is outside of the tile.
            ///
            /// ```
            /// # use vmarray::prelude::*;
            /// let volume = vmarray::NdArray::<u8, 3>::builder([8, 8, 6]).tile([4, 4, 4]).build()?;
            /// assert_eq!(volume.tile([0, 0, 1])?.row([3, 3]).len(), 2);
            /// assert_eq!(volume.tile_mut([0, 0, 0])?.row([3, 3]).len(), 4);
            /// # Ok::<(), vmarray::Error>(())
            /// ```
            #[must_use]
            pub fn row<const M: usize>(&self, at: [usize; M]) -> &[T] {
                &self.page[self.places(at)]
            }
        }

        impl<T: Element, const N: usize, D: Device> Deref for $Tile<'_, T, N, D> {
            type Target = [T];

            fn deref(&self) -> &[T] {
                &self.page
            }
        }

        impl<T: Element + fmt::Debug, const N: usize, D: Device> fmt::Debug for $Tile<'_, T, N, D> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($Tile))
                    .field("bounds", &self.bounds)
                    .field("page", &self.page)
                    .finish()
            }
        }
    };
}

common!(TileRef);
common!(TileMut);

impl<T: Element, const N: usize, D: Device> TileMut<'_, T, N, D> {
    /// A row of the tile, without padding, mutably. As [`row`](Self::row).
    ///
    /// # Panics
    /// If a position is outside of the tile.
    ///
    /// ```
    /// # use vmarray::prelude::*;
    /// let image = vmarray::NdArray::<u8, 2>::builder([10, 10]).tile([8, 8]).build()?;
    /// image.tile_mut([1, 1])?.row_mut([0]).copy_from_slice(&[1, 2]);
    /// assert_eq!(image.get([8, 9])?, 2);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    #[must_use]
    pub fn row_mut<const M: usize>(&mut self, at: [usize; M]) -> &mut [T] {
        let places = self.places(at);
        &mut self.page[places]
    }
}

impl<T: Element, const N: usize, D: Device> Drop for TileMut<'_, T, N, D> {
    fn drop(&mut self) {
        let (extent, strides) = (shape::extent(&self.bounds), self.strides);
        if !self.page.is_written() || shape::volume(&extent) == self.page.len() {
            return;
        }
        // The tile's own extent, padding included, is what the strides say.
        let len = self.page.len();
        let whole = |axis: usize| if axis == 0 { len } else { strides[axis - 1] } / strides[axis];
        for (row, places) in self.page.chunks_exact_mut(whole(N - 1)).enumerate() {
            let first = row * whole(N - 1);
            let is_inside = (0..N - 1).all(|axis| first / strides[axis] % whole(axis) < extent[axis]);
            places[if is_inside { extent[N - 1] } else { 0 }..].fill(T::zeroed());
        }
    }
}

impl<T: Element, const N: usize, D: Device> DerefMut for TileMut<'_, T, N, D> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.page
    }
}
