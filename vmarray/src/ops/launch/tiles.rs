//! Geometry of launches whose work-groups are tiles of a result. A launch processes one band: some whole rows
//! of tiles.

use std::ops::Range;

use vmarray_kernel::Layout;
use vmarray_kernel::launch::DomainAxis;

use crate::ops::executor::{ResultStore, STAGED_BYTES};
use crate::ops::view::StoredBox;

/// The tiles of a multidimensional result, each of which one group of work-items computes.
pub(super) struct TiledGroups {
    /// Number of work-items (GPU threads) in a work-group along each axis.
    pub tile: Vec<usize>,
    /// Number of elements of a result along each axis.
    pub extents: Vec<usize>,
    /// True if the rows of a result are contiguous in storage, so that launches can process bands (rows of
    /// tiles).
    pub has_bands: bool,
}

/// A result whose tiles groups compute.
pub(super) struct TiledResult<'a> {
    /// Index of the kernel parameter that the result belongs to.
    pub number: usize,
    pub target: &'a dyn ResultStore,
    pub stored: StoredBox,
    pub layout: Layout,
    /// Index of this result's scratch memory among the arguments that are copied to devices.
    pub memory: usize,
}

/// A band of tiles, which one launch processes: some rows of tiles, whole along all other axes.
pub(super) struct Band {
    /// Range of rows of work-items (GPU threads) in the band (rows of tiles).
    pub rows: Range<usize>,
    /// The range of work-items (GPU threads) along each axis.
    pub axes: Vec<DomainAxis>,
    /// Storage positions of the elements of the first result.
    pub stored: StoredBox,
}

impl Band {
    /// Returns the storage index of the element of a work-item (GPU thread). A work-item beyond the edge has
    /// no element; the result is then the index of the nearest element.
    pub fn place(&self, item: usize) -> usize {
        let len: usize = self.axes.iter().map(|axis| axis.tile).product();
        let (mut tile, mut within, mut position) = (item / len, item % len, vec![0; self.axes.len()]);
        for (axis, of) in self.axes.iter().enumerate().rev() {
            let first = if axis == 0 { self.rows.start } else { 0 };
            let at = first + tile % of.tiles * of.tile + within % of.tile;
            position[axis] = at.min(of.extent - 1);
            (tile, within) = (tile / of.tiles, within / of.tile);
        }
        self.stored.place(|axis, _| position[axis])
    }
}

impl TiledGroups {
    pub fn new(of: &StoredBox, tile: &[usize]) -> Self {
        let extents = of.axes.iter().map(|axis| axis.extent).collect();
        Self { tile: tile.to_vec(), extents, has_bands: !of.is_tiled() }
    }

    /// Number of work-items (GPU threads) in a work-group.
    pub fn len(&self) -> usize {
        self.tile.iter().product()
    }

    pub fn tiles(&self, axis: usize) -> usize {
        self.extents[axis].div_ceil(self.tile[axis])
    }

    /// Returns the number of work-items (GPU threads), including the padding of tiles at the edges.
    pub fn all_items(&self) -> usize {
        (0..self.tile.len()).map(|axis| self.tiles(axis)).product::<usize>() * self.len()
    }

    /// Returns the maximum number of work-items (GPU threads) in a band (rows of tiles) of `results`.
    pub fn most_items(&self, results: &[TiledResult<'_>]) -> usize {
        self.items(self.band_tiles(results))
    }

    pub fn items(&self, rows_of_tiles: usize) -> usize {
        let beside: usize = (1..self.tile.len()).map(|axis| self.tiles(axis)).product();
        rows_of_tiles * beside * self.len()
    }

    /// Returns the number of rows of tiles in a band (the part of the results that one launch computes). A
    /// band fits into the cache of a large GPU, unless the storage order requires one band for all rows.
    pub fn band_tiles(&self, results: &[TiledResult<'_>]) -> usize {
        let is_tiled = results.iter().any(|result| result.stored.is_tiled());
        if !self.has_bands || is_tiled {
            return self.tiles(0);
        }
        let longest = results.iter().map(|result| result.target.stride()).max().unwrap_or(1).max(1);
        (STAGED_BYTES / longest / self.items(1).max(1)).clamp(1, self.tiles(0).max(1))
    }

    pub fn band(&self, first: usize, count: usize, stored: &StoredBox) -> Band {
        let row = first * self.tile[0];
        let rows = row..self.extents[0].min(row + count * self.tile[0]);
        let axis = |axis: usize| {
            let (extent, tile) = (self.extents[axis], self.tile[axis]);
            let (start, tiles) = if axis == 0 {
                // On the first axis, kernels count positions from the result's first row, not from the first
                // row of the band (rows of tiles).
                (0_usize.wrapping_sub(row), rows.len().div_ceil(tile))
            } else {
                (0, self.tiles(axis))
            };
            DomainAxis { start, extent, tiles, tile }
        };
        let axes = (0..self.tile.len()).map(axis).collect();
        Band { axes, rows, stored: stored.clone() }
    }
}
