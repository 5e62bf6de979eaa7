//! The storage layout of N-dimensional arrays: maps a position to an element index, by rows or by tiles.

use std::ops::Range;

use super::shape::{self, PositionBox, Positions};
use crate::base::error::{ErrorKind, Result};

/// The order in which an N-dimensional array stores its elements: row-major, or tile by tile.
///
/// ```
/// use vmarray::{nd::NdLayout, prelude::*};
/// let rows = NdArray::<u8, 2>::builder([100, 100]).layout(NdLayout::RowMajor).build()?;
/// let tiles = NdArray::<u8, 2>::builder([100, 100]).layout(NdLayout::Tiled([50, 50])).build()?;
/// assert_eq!((rows.index_of([0, 50])?, tiles.index_of([0, 50])?), (50, 2500));
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NdLayout<const N: usize> {
    /// Row-major: the last axis varies fastest. A page holds as many elements as fit.
    RowMajor,
    /// Each page stores one tile of these extents, in row-major order; the tiles follow one another in
    /// row-major order. Tiles at the far edges are stored whole, with hidden padding.
    ///
    /// With this layout a box is on few pages, such as a block of an image, or a window around an element.
    Tiled([usize; N]),
}

/// A storage layout with its shape: computes the positions of elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LayoutGeometry<const N: usize> {
    pub(crate) shape: [usize; N],
    /// The distance in storage of neighbours along each axis: in the whole array or, if tiled, in a tile.
    pub(crate) strides: [usize; N],
    pub(crate) tiling: Option<Tiling<N>>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Tiling<const N: usize> {
    pub(crate) tile: [usize; N],
    /// Binary logarithms of the tile's extents, if all are powers of two.
    shifts: Option<[u32; N]>,
    /// Number of tiles along each axis.
    pub(crate) counts: [usize; N],
    /// The distance between neighbouring tiles along each axis, as a number of tiles.
    pub(crate) tile_strides: [usize; N],
    pub(crate) len: usize,
}

impl<const N: usize> LayoutGeometry<N> {
    /// Checks a shape and a layout. Returns the geometry and the number of stored elements.
    pub(crate) fn new(shape: [usize; N], layout: NdLayout<N>) -> Result<(Self, usize)> {
        const { assert!(N > 0, "an array must have at least one axis") };
        let len = shape::element_count(&shape)?;
        let NdLayout::Tiled(tile) = layout else {
            return Ok((Self { shape, strides: shape::strides(&shape), tiling: None }, len));
        };
        if let Some(axis) = tile.iter().position(|extent| *extent == 0) {
            return Err(ErrorKind::EmptyTile { axis }.into());
        }
        let tile_len = shape::element_count(&tile)?;
        let counts: [usize; N] = std::array::from_fn(|axis| shape[axis].div_ceil(tile[axis]));
        let tiles = shape::element_count(&counts)?;
        let stored = tiles.checked_mul(tile_len).filter(|stored| *stored <= isize::MAX as usize);
        let stored = stored.ok_or(ErrorKind::ShapeOverflow { shape: shape.to_vec() })?;
        let shifts =
            tile.iter().all(|extent| extent.is_power_of_two()).then(|| tile.map(usize::trailing_zeros));
        let tile_strides = shape::strides(&counts);
        let tiling = Tiling { tile, shifts, counts, tile_strides, len: tile_len };
        Ok((Self { shape, strides: shape::strides(&tile), tiling: Some(tiling) }, stored))
    }

    /// Returns the row-major geometry of a store with `got` elements.
    pub(crate) fn row_major(shape: [usize; N], got: usize) -> Result<Self> {
        let (geometry, expected) = Self::new(shape, NdLayout::RowMajor)?;
        if expected != got {
            return Err(ErrorKind::ShapeMismatch { shape: shape.to_vec(), expected, got }.into());
        }
        Ok(geometry)
    }

    /// Returns the number of stored elements, including padding.
    pub(crate) fn stored_len(&self) -> usize {
        self.tiling
            .map_or_else(|| shape::volume(&self.shape), |tiling| shape::volume(&tiling.counts) * tiling.len)
    }

    pub(crate) fn layout(&self) -> NdLayout<N> {
        self.tiling.map_or(NdLayout::RowMajor, |tiling| NdLayout::Tiled(tiling.tile))
    }

    /// Returns the index in storage of the element at a position, which must be inside of the shape.
    #[inline(always)]
    pub(crate) fn index_of(&self, at: &[usize; N]) -> usize {
        let mut index = 0;
        match &self.tiling {
            None => index = shape::dot(at, &self.strides),
            Some(tiling) => {
                let mut number = 0;
                match &tiling.shifts {
                    Some(shifts) => {
                        for axis in 0..N {
                            number += (at[axis] >> shifts[axis]) * tiling.tile_strides[axis];
                            index += (at[axis] & ((1 << shifts[axis]) - 1)) * self.strides[axis];
                        }
                    }
                    None => {
                        for (axis, at) in at.iter().enumerate() {
                            number += at / tiling.tile[axis] * tiling.tile_strides[axis];
                            index += at % tiling.tile[axis] * self.strides[axis];
                        }
                    }
                }
                index += number * tiling.len;
            }
        }
        index
    }

    /// Returns the position of the element at an index in storage; `None` for padding and after the end.
    pub(crate) fn position_of(&self, index: usize) -> Option<[usize; N]> {
        let at = match &self.tiling {
            None => unravel(&self.shape, index)?,
            Some(tiling) => {
                let start = tiling.start_of(unravel(&tiling.counts, index / tiling.len)?);
                let within = unravel(&tiling.tile, index % tiling.len)?;
                std::array::from_fn(|axis| start[axis] + within[axis])
            }
        };
        (0..N).all(|axis| at[axis] < self.shape[axis]).then_some(at)
    }

    /// Returns the elements of a box as ascending ranges of indices in storage. Adjacent ones are not merged.
    pub(crate) fn ranges(&self, of: &PositionBox<N>) -> impl Iterator<Item = Range<usize>> + Clone + use<N> {
        let shape = self.shape;
        let geometry = *self;
        let plain = self.tiling.is_none().then(|| BoxRuns::new(&shape, of));
        let tiles = self.tiling.map(|tiling| {
            let of = of.clone();
            tiling.touched(&of).flat_map(move |at| {
                let part = geometry.part_of_tile(&tiling, at, &of);
                let first = tiling.number_of(&at) * tiling.len;
                BoxRuns::new(&tiling.tile, &part).map(move |run| first + run.start..first + run.end)
            })
        });
        plain.into_iter().flatten().chain(tiles.into_iter().flatten())
    }

    /// Returns the part of a box in a tile, as positions within the tile.
    fn part_of_tile(&self, tiling: &Tiling<N>, at: [usize; N], of: &PositionBox<N>) -> PositionBox<N> {
        let start = tiling.start_of(at);
        let part = shape::intersection(&tiling.positions_of(at), of);
        std::array::from_fn(|axis| part.start[axis] - start[axis])..std::array::from_fn(|axis| {
            part.end[axis] - start[axis]
        })
    }

    /// Returns the pages that store elements of a box, as ascending, disjoint ranges that are not empty.
    pub(crate) fn pages(
        &self,
        of: &PositionBox<N>,
        page_len: usize,
    ) -> impl Iterator<Item = Range<usize>> + Clone + use<N> {
        let plain = self.tiling.is_none().then(|| {
            let mut done = 0;
            BoxRuns::new(&self.shape, of).filter_map(move |run| {
                let pages = (run.start / page_len).max(done)..run.end.div_ceil(page_len);
                done = pages.end;
                (!pages.is_empty()).then_some(pages)
            })
        });
        let tiles = self.tiling.map(|tiling| BoxRuns::new(&tiling.counts, &tiling.touched_box(of)));
        plain.into_iter().flatten().chain(tiles.into_iter().flatten())
    }
}

impl<const N: usize> Tiling<N> {
    /// Returns the positions of the tiles that contain elements of a box, as a box of tiles.
    fn touched_box(&self, of: &PositionBox<N>) -> PositionBox<N> {
        if shape::is_void(of) {
            return [0; N]..[0; N];
        }
        std::array::from_fn(|axis| of.start[axis] / self.tile[axis])..std::array::from_fn(|axis| {
            of.end[axis].div_ceil(self.tile[axis])
        })
    }

    /// Returns the positions of the tiles that contain elements of a box, in order of storage.
    pub(crate) fn touched(&self, of: &PositionBox<N>) -> Positions<N> {
        Positions::new(self.touched_box(of))
    }

    /// Returns the index of a tile, which is the index of its page.
    pub(crate) fn number_of(&self, at: &[usize; N]) -> usize {
        shape::dot(at, &self.tile_strides)
    }

    pub(crate) fn start_of(&self, at: [usize; N]) -> [usize; N] {
        std::array::from_fn(|axis| at[axis] * self.tile[axis])
    }

    /// Returns the box of positions of a tile, including padding.
    pub(crate) fn positions_of(&self, at: [usize; N]) -> PositionBox<N> {
        let start = self.start_of(at);
        start..std::array::from_fn(|axis| start[axis].saturating_add(self.tile[axis]))
    }
}

/// Returns the position of an element, from its index in row-major order.
pub(crate) fn unravel<const N: usize>(shape: &[usize; N], index: usize) -> Option<[usize; N]> {
    let mut rest = index;
    let mut at = [0; N];
    for axis in (0..N).rev() {
        at[axis] = rest.checked_rem(shape[axis])?;
        rest /= shape[axis];
    }
    (rest == 0).then_some(at)
}

/// The ranges of a box in a row-major shape: each is as long as possible, except that the last range of one
/// slab may touch the first of the next.
#[derive(Clone, Debug)]
pub(crate) struct BoxRuns<const N: usize> {
    strides: [usize; N],
    /// The position at which each range begins.
    starts: Positions<N>,
    len: usize,
}

impl<const N: usize> BoxRuns<N> {
    pub(crate) fn new(shape: &[usize; N], of: &PositionBox<N>) -> Self {
        let strides = shape::strides(shape);
        let axis = run_axis(shape, of);
        let mut starts = of.clone();
        let mut len = 0;
        if !shape::is_void(of) {
            len = (of.end[axis] - of.start[axis]) * strides[axis];
            for axis in axis..N {
                starts.end[axis] = starts.start[axis] + 1;
            }
        }
        Self { strides, starts: Positions::new(starts), len }
    }
}

/// Returns the first axis from which on a box covers a row-major shape without gaps.
fn run_axis<const N: usize>(shape: &[usize; N], of: &PositionBox<N>) -> usize {
    let mut axis = N - 1;
    while axis > 0 && of.start[axis] == 0 && of.end[axis] == shape[axis] {
        axis -= 1;
    }
    axis
}

impl<const N: usize> Iterator for BoxRuns<N> {
    type Item = Range<usize>;

    fn next(&mut self) -> Option<Range<usize>> {
        let at = self.starts.next()?;
        let start = shape::dot(&at, &self.strides);
        Some(start..start + self.len)
    }
}

/// Merges adjacent ranges.
pub(super) fn merged(ranges: impl Iterator<Item = Range<usize>>) -> impl Iterator<Item = Range<usize>> {
    let mut ranges = ranges.peekable();
    std::iter::from_fn(move || {
        let mut range = ranges.next()?;
        while let Some(next) = ranges.next_if(|next| next.start == range.end) {
            range.end = next.end;
        }
        Some(range)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers<const N: usize>(geometry: &LayoutGeometry<N>, of: &PositionBox<N>) -> Vec<usize> {
        geometry.ranges(of).flatten().collect()
    }

    #[test]
    fn every_position_has_its_own_place_and_back() {
        for layout in [NdLayout::RowMajor, NdLayout::Tiled([2, 3, 2]), NdLayout::Tiled([4, 1, 2])] {
            let (geometry, stored) = LayoutGeometry::new([5, 4, 3], layout).unwrap();
            let mut seen = vec![false; stored];
            for at in Positions::new([0; 3]..[5, 4, 3]) {
                let index = geometry.index_of(&at);
                assert!(!std::mem::replace(&mut seen[index], true));
                assert_eq!(geometry.position_of(index), Some(at));
            }
            let padding = (0..stored + 9).filter(|index| geometry.position_of(*index).is_none());
            assert_eq!(padding.count(), stored + 9 - 60);
        }
    }

    #[test]
    fn ranges_are_the_elements_of_the_box_ascending() {
        for layout in [NdLayout::RowMajor, NdLayout::Tiled([2, 2, 2]), NdLayout::Tiled([1, 3, 5])] {
            let (geometry, _) = LayoutGeometry::new([3, 4, 5], layout).unwrap();
            for of in [[0; 3]..[3, 4, 5], [1, 1, 1]..[3, 3, 4], [1, 0, 0]..[2, 4, 5], [1, 2, 3]..[1, 4, 4]] {
                let mut expected: Vec<_> =
                    Positions::new(of.clone()).map(|at| geometry.index_of(&at)).collect();
                expected.sort_unstable();
                assert_eq!(numbers(&geometry, &of), expected, "{layout:?} {of:?}");
            }
        }
    }

    #[test]
    fn pages_match_the_ranges() {
        for (layout, page_len) in
            [(NdLayout::RowMajor, 7), (NdLayout::RowMajor, 64), (NdLayout::Tiled([2, 2, 2]), 8)]
        {
            let (geometry, _) = LayoutGeometry::new([3, 4, 5], layout).unwrap();
            for of in [[0; 3]..[3, 4, 5], [1, 1, 1]..[3, 3, 4], [0, 0, 4]..[3, 4, 5], [2; 3]..[2; 3]] {
                let mut expected: Vec<_> = numbers(&geometry, &of).iter().map(|i| i / page_len).collect();
                expected.dedup();
                let pages: Vec<_> = geometry.pages(&of, page_len).flatten().collect();
                assert_eq!(pages, expected, "{layout:?} {of:?}");
            }
        }
    }

    #[test]
    fn tiles_without_extent_or_beyond_all_bounds_are_refused() {
        let error = LayoutGeometry::new([4, 4], NdLayout::Tiled([2, 0])).unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::EmptyTile { axis: 1 });
        assert!(LayoutGeometry::new([1 << 31, 1 << 31], NdLayout::Tiled([usize::MAX / 2, 4])).is_err());
        assert!(LayoutGeometry::new([3, 1 << 61], NdLayout::Tiled([1 << 2, 1])).is_err());
    }
}
