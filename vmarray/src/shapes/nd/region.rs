//! [`NdShape`]: the shape of a view that shows a box of an N-dimensional array.

use std::borrow::Cow;
use std::ops::{Range, RangeBounds};

use vmarray_kernel::launch::DomainAxis;

use super::copy;
use super::geometry::{LayoutGeometry, merged};
use super::pieces::{Segment, segments_of};
use super::shape::{self, PositionBox};
use crate::base::error::Result;
use crate::base::memory::zeroed_vec;
use crate::ops::expr::{Expr, index};
use crate::ops::sealed::{Internal, Sealed};
use crate::ops::view::StoredBox;
use crate::ops::view::{INTERNAL, LoweredRegion, Shape, Store, StoreMut};

/// The [`Shape`] of a view that shows a box of an array or [source](crate::Source). The view has `M` of the
/// `N` axes; the other axes have a fixed index.
///
/// ```
/// use vmarray::{nd::NdShape, prelude::*};
/// // Planes of volumes: two axes of three.
/// fn area<'a>(plane: impl View<'a, Index = [usize; 2], Shape = NdShape<3, 2>>) -> usize {
///     plane.len()
/// }
/// let volume = NdArray::<u8, 3>::new([4, 5, 6])?;
/// assert_eq!(area(volume.project::<2>(0, 1)?), 30);
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct NdShape<const N: usize, const M: usize = N> {
    pub(crate) geometry: LayoutGeometry<N>,
    start: [usize; N],
    pub(crate) extents: [usize; M],
    /// The axes of the store that the view shows, ascending.
    axes: [usize; M],
}

impl<const N: usize> NdShape<N> {
    pub(super) fn whole(geometry: LayoutGeometry<N>) -> Self {
        Self { geometry, start: [0; N], extents: geometry.shape, axes: std::array::from_fn(|axis| axis) }
    }
}

impl NdShape<1> {
    /// Returns the shape of a range of a store with one axis. Only for reads, because it does not contain the
    /// end of the store.
    pub(crate) fn line(range: Range<usize>) -> Self {
        let geometry = LayoutGeometry { shape: [range.end], strides: [1], tiling: None };
        Self { geometry, start: [range.start], extents: [range.len()], axes: [0] }
    }
}

impl<const N: usize, const M: usize> NdShape<N, M> {
    /// Returns the position in the store for a position of the view.
    #[inline(always)]
    fn position(&self, at: &[usize; M]) -> [usize; N] {
        let mut position = self.start;
        for axis in 0..M {
            position[self.axes[axis]] += at[axis];
        }
        position
    }

    /// Returns the box of the store for a box of the view.
    fn bounds(&self, of: &PositionBox<M>) -> PositionBox<N> {
        let start = self.position(&of.start);
        let mut end = start.map(|at| at + 1);
        for axis in 0..M {
            end[self.axes[axis]] = start[self.axes[axis]] + (of.end[axis] - of.start[axis]);
        }
        start..end
    }

    /// Assigns values of the view's axes to the store's axes; `others` returns the values of the other axes.
    fn spread<S>(&self, of: [S; M], others: impl FnMut(usize) -> S) -> [S; N] {
        let mut spread = std::array::from_fn(others);
        for (axis, one) in of.into_iter().enumerate() {
            spread[self.axes[axis]] = one;
        }
        spread
    }

    /// Reads the elements that combine one segment per axis into memory with these strides. The segments must
    /// ascend, and be inside of the view.
    pub(crate) fn read_segments<S: Store>(
        &self,
        store: &S,
        of: [&[Segment]; M],
        strides: [usize; M],
        into: &mut [S::Element],
    ) -> Result<()> {
        let moved: [Vec<Segment>; M] = std::array::from_fn(|axis| {
            let first = self.start_of(axis);
            of[axis].iter().map(|segment| Segment { start: first + segment.start, ..*segment }).collect()
        });
        let fixed = self.start.map(|start| [Segment { start, len: 1, place: 0 }]);
        let segments = self.spread(moved.each_ref().map(Vec::as_slice), |axis| &fixed[axis][..]);
        copy::read(store, &self.geometry, segments, self.spread(strides, |_| 0), into)
    }

    /// Writes a box of elements, from memory with these strides.
    pub(crate) fn write<S: StoreMut>(
        &self,
        store: &S,
        of: &PositionBox<M>,
        strides: [usize; M],
        from: &[S::Element],
    ) -> Result<()> {
        copy::write(store, &self.geometry, &self.bounds(of), self.spread(strides, |_| 0), from)
    }

    /// Returns the start of the view along one of the view's axes.
    fn start_of(&self, axis: usize) -> usize {
        self.start[self.axes[axis]]
    }

    /// Returns the view with a fixed index along one axis, which it no longer has.
    pub(super) fn project<const K: usize>(&self, axis: usize, index: usize) -> Result<NdShape<N, K>> {
        const { assert!(K > 0 && K + 1 == M, "a projection must have one axis less than its view") };
        shape::check_axis(axis, M)?;
        if index >= self.extents[axis] {
            return Err(shape::position_outside(axis, index as i128, self.extents[axis]));
        }
        let mut start = self.start;
        start[self.axes[axis]] += index;
        let from = |at: usize| if at < axis { at } else { at + 1 };
        Ok(NdShape {
            geometry: self.geometry,
            start,
            extents: std::array::from_fn(|at| self.extents[from(at)]),
            axes: std::array::from_fn(|at| self.axes[from(at)]),
        })
    }

    /// Returns an expression for the index of an element along an axis of the view.
    pub(super) fn coordinate<T>(&self, axis: usize) -> Expr<T, u64> {
        let of_store = coordinate(&self.geometry, self.axes[axis]);
        match self.start_of(axis) {
            0 => of_store,
            start => of_store - start as u64,
        }
    }

    /// Returns the condition that an element of the store is in a box; `None` if all elements are.
    fn inside<T>(&self, of: &PositionBox<N>) -> Option<Expr<T, bool>> {
        let geometry = &self.geometry;
        let stored = |axis: usize| match &geometry.tiling {
            Some(tiling) => tiling.counts[axis] * tiling.tile[axis],
            None => geometry.shape[axis],
        };
        (0..N)
            .filter(|&axis| of.start[axis] > 0 || of.end[axis] < stored(axis))
            .map(|axis| {
                let (start, len) = (of.start[axis] as u64, (of.end[axis] - of.start[axis]) as u64);
                // For a coordinate before the start, the difference overflows to a large number, so it is not
                // below the length.
                (coordinate(geometry, axis) - start).lt(len)
            })
            .reduce(|all, one| all & one)
    }

    /// Returns the first axis of the store along which a box has several indices, and the tile's extent along
    /// this axis, if a later axis divides the box into tiles. The box's elements are then not stored in
    /// row-major order.
    fn axis_out_of_order(&self, of: &PositionBox<N>) -> Option<(usize, usize)> {
        let tile = self.geometry.tiling.filter(|_| !shape::is_void(of))?.tile;
        let axis = (0..N).find(|&axis| of.end[axis] - of.start[axis] > 1)?;
        let is_cut = |axis: usize| of.start[axis] / tile[axis] != (of.end[axis] - 1) / tile[axis];
        (axis + 1..N).any(is_cut).then_some((axis, tile[axis]))
    }
}

/// Returns an expression for a quotient, without a division by 1.
fn divided<T>(value: Expr<T, u64>, by: usize) -> Expr<T, u64> {
    if by == 1 { value } else { value / by as u64 }
}

/// Returns an expression for the index of an element of a store along one of its axes.
fn coordinate<T, const N: usize>(geometry: &LayoutGeometry<N>, axis: usize) -> Expr<T, u64> {
    let stride = geometry.strides[axis];
    let Some(tiling) = &geometry.tiling else {
        let rows = divided(index(), stride);
        return if axis == 0 { rows } else { rows % geometry.shape[axis] as u64 };
    };
    let (tile, counts) = (tiling.tile[axis] as u64, tiling.counts[axis] as u64);
    let within = divided(index() % tiling.len as u64, stride) % tile;
    let tiles = divided(index() / tiling.len as u64, tiling.tile_strides[axis]);
    (if axis == 0 { tiles } else { tiles % counts }) * tile + within
}

/// Divides a box at an index along an axis. An index outside counts as the nearest end.
fn cut<const M: usize>(of: &PositionBox<M>, axis: usize, at: usize) -> (PositionBox<M>, PositionBox<M>) {
    let at = at.clamp(of.start[axis], of.end[axis]);
    let (mut before, mut after) = (of.clone(), of.clone());
    (before.end[axis], after.start[axis]) = (at, at);
    (before, after)
}

impl<const N: usize, const M: usize> Sealed for NdShape<N, M> {}

impl<const N: usize, const M: usize> Shape for NdShape<N, M> {
    type Index = [usize; M];
    type Copied = NdShape<M>;

    fn copied(&self) -> NdShape<M> {
        let (shape, strides) = (self.extents, shape::strides(&self.extents));
        NdShape::whole(LayoutGeometry { shape, strides, tiling: None })
    }

    fn count(&self) -> usize {
        shape::volume(&self.extents)
    }

    fn checked(&self, bounds: impl RangeBounds<[usize; M]>) -> Result<PositionBox<M>> {
        shape::check_box(&self.extents, bounds)
    }

    fn cut(&self, of: &PositionBox<M>) -> Self {
        Self { start: self.position(&of.start), extents: shape::extent(of), ..*self }
    }

    #[inline(always)]
    fn place(&self, at: [usize; M]) -> Result<usize> {
        shape::check_position(&self.extents, &at)?;
        Ok(self.geometry.index_of(&self.position(&at)))
    }

    fn index_at(&self, place: usize) -> Option<[usize; M]> {
        let position = self.geometry.position_of(place)?;
        let mut rest = position;
        let mut at = [0; M];
        for axis in 0..M {
            at[axis] = position[self.axes[axis]].checked_sub(self.start_of(axis))?;
            rest[self.axes[axis]] = self.start_of(axis);
        }
        (rest == self.start && (0..M).all(|axis| at[axis] < self.extents[axis])).then_some(at)
    }

    fn axes(&self) -> Vec<usize> {
        self.extents.to_vec()
    }

    fn index_of(at: &[usize]) -> [usize; M] {
        std::array::from_fn(|axis| at[axis])
    }

    fn stored(&self) -> Option<StoredBox> {
        if N != M {
            return None;
        }
        let axis = |axis: usize| {
            let (tiles, tile) = match &self.geometry.tiling {
                Some(tiling) => (tiling.counts[axis], tiling.tile[axis]),
                None => (self.geometry.shape[axis], 1),
            };
            DomainAxis { start: self.start[axis], extent: self.extents[axis], tiles, tile }
        };
        match N {
            // With one axis, all tiles are contiguous, so the box is a range.
            1 => Some(StoredBox::range_of(self.start[0], self.extents[0])),
            _ => Some(StoredBox { axes: (0..N).map(axis).collect() }),
        }
    }

    fn origin(&self) -> usize {
        0
    }

    fn runs(&self, of: &PositionBox<M>) -> impl Iterator<Item = Range<usize>> {
        merged(self.geometry.ranges(&self.bounds(of)))
    }

    fn lowered<T>(&self, of: &PositionBox<M>) -> LoweredRegion<T> {
        let of = self.bounds(of);
        let mut runs = merged(self.geometry.ranges(&of));
        let (range, inside) = match (runs.next(), runs.next()) {
            (None, _) => (0..0, None),
            (Some(only), None) => (only, None),
            (Some(first), Some(_)) => {
                let last = self.geometry.index_of(&of.end.map(|end| end - 1));
                (first.start..last + 1, self.inside(&of))
            }
        };
        LoweredRegion { range, inside, origin: 0 }
    }

    fn list<'l>(&self, indices: &'l [[usize; M]]) -> Result<(Range<usize>, Cow<'l, [usize]>)> {
        let mut places = zeroed_vec(indices.len())?;
        for (place, at) in places.iter_mut().zip(indices) {
            *place = self.place(*at)?;
        }
        Ok((0..self.geometry.stored_len(), Cow::Owned(places)))
    }

    fn touched<S: Store>(&self, store: &S, of: &PositionBox<M>) -> impl Iterator<Item = Range<usize>> {
        let (page_len, len) = (store.page_elements(), self.geometry.stored_len());
        let places = move |pages: Range<usize>| pages.start * page_len..(pages.end * page_len).min(len);
        merged(self.geometry.pages(&self.bounds(of), page_len).map(places))
    }

    fn slabs(&self, of: &PositionBox<M>) -> impl Iterator<Item = PositionBox<M>> {
        let cut_at = self.axis_out_of_order(&self.bounds(of)).and_then(|(axis, tile)| {
            Some((self.axes.iter().position(|own| *own == axis)?, self.start[axis], tile))
        });
        let mut rest = Some(of.clone());
        std::iter::from_fn(move || {
            let of = rest.take()?;
            let Some((axis, start, tile)) = cut_at else { return Some(of) };
            let end = (start + of.start[axis]) / tile * tile + tile - start;
            let (slab, after) = cut(&of, axis, end);
            rest = (!shape::is_void(&after)).then_some(after);
            Some(slab)
        })
    }

    fn halves(&self, of: &PositionBox<M>) -> Option<[PositionBox<M>; 2]> {
        let axis = (0..M).find(|&axis| of.end[axis] - of.start[axis] > 1)?;
        Some(cut(of, axis, of.start[axis].midpoint(of.end[axis])).into())
    }

    fn is_in_order(&self, of: &PositionBox<M>) -> bool {
        self.axis_out_of_order(&self.bounds(of)).is_none()
    }

    fn rest(&self, of: PositionBox<M>, found: &mut Vec<usize>) -> Vec<(PositionBox<M>, usize)> {
        let Some(&last) = found.last() else { return Vec::new() };
        let Some((axis, tile)) = self.axis_out_of_order(&self.bounds(&of)) else {
            return vec![(of, last + 1)];
        };
        // The search stopped within the last match's row of tiles. Discard the row's matches: search it
        // again.
        let along = |place: usize| self.geometry.position_of(place).map_or(0, |at| at[axis]);
        let start = along(last) / tile * tile;
        found.truncate(found.partition_point(|place| along(*place) < start));
        let Some(own) = self.axes.iter().position(|one| *one == axis) else { return Vec::new() };
        let in_view = |index: usize| index.saturating_sub(self.start[axis]);
        let (_, rest) = cut(&of, own, in_view(start));
        if !found.is_empty() {
            return vec![(rest, 0)];
        }
        let (row, after) = cut(&rest, own, in_view(start + tile));
        let middle = row.start[own] + (row.end[own] - row.start[own]).div_ceil(2);
        let (first, second) = cut(&row, own, middle);
        vec![(after, 0), (second, 0), (first, 0)]
    }

    fn copy_out<S: Store>(
        &self,
        store: &S,
        of: &PositionBox<M>,
        into: &mut [S::Element],
        _: Internal,
    ) -> Result<()> {
        shape::expect_len(of, into.len())?;
        let of = self.bounds(of);
        let (segments, strides) = (segments_of(&of), shape::strides(&shape::extent(&of)));
        copy::read(store, &self.geometry, segments.each_ref().map(std::slice::from_ref), strides, into)
    }

    fn fill<S: StoreMut>(
        &self,
        store: &S,
        of: &PositionBox<M>,
        value: S::Element,
        _: Internal,
    ) -> Result<()> {
        let mut runs = self.runs(of);
        match (runs.next(), runs.next(), store.as_array()) {
            (_, Some(_), Some(array)) => copy::fill(array, &self.geometry, &self.bounds(of), value),
            (first, second, _) => first
                .into_iter()
                .chain(second)
                .chain(runs)
                .try_for_each(|run| store.fill_range(&run, value, INTERNAL)),
        }
    }

    fn fetch<S: Store>(&self, store: &S, of: &PositionBox<M>, _: Internal) -> Result<()> {
        let Some(array) = store.as_array() else {
            return self.runs(of).try_for_each(|run| store.fetch(&run, INTERNAL));
        };
        for pages in self.geometry.pages(&self.bounds(of), array.page_len()) {
            let (start, end) = (pages.start as u64, pages.end as u64);
            if array.pager().prefetch(start..end)? < end {
                // All frames are in use, so end the prefetch.
                break;
            }
        }
        Ok(())
    }
}

#[cfg(all(test, feature = "host"))]
mod tests {
    use std::sync::Arc;

    use backend_host::HostDevice;
    use proptest::prelude::*;

    use super::super::{NdLayout, Positions};
    use crate::prelude::*;

    proptest! {
        /// For any size of batches, the batches must contain all elements in row-major order.
        #[test]
        fn elements_come_in_row_major_order_for_any_batch(
            shape in [1_usize..9, 1_usize..9, 1_usize..9],
            tile in proptest::option::of([1_usize..6, 1_usize..6, 1_usize..6]),
            ends in [0_usize..9, 0_usize..9, 0_usize..9],
            batch in 1_usize..40,
            least in 0_u32..5,
            seed in any::<u32>(),
        ) {
            let array = NdArray::<u32, 3, _>::builder(shape)
                .devices([Arc::new(HostDevice::new(1 << 20).unwrap())])
                .layout(tile.map_or(NdLayout::RowMajor, NdLayout::Tiled))
                .elements(|elements| elements.page_len(16))
                .build()
                .unwrap();
            let count = shape.iter().product::<usize>() as u32;
            let values: Vec<u32> = (0..count).map(|i| (i ^ seed).wrapping_mul(0x9E37_79B9) >> 29).collect();
            array.write_box(.., &values).unwrap();
            let start: [usize; 3] = std::array::from_fn(|axis| ends[axis].min(shape[axis]) / 2);
            let of = start..std::array::from_fn(|axis| start[axis].max(shape[axis].saturating_sub(ends[axis] / 3)));
            let known: Vec<([usize; 3], u32)> = Positions::new(of.clone())
                .map(|at| (at, array.get(at).unwrap()))
                .filter(|(_, value)| *value >= least)
                .collect();
            let condition = Field::<u32, u32>::whole().ge(least);
            let mut selected = array.select_where(of.clone(), condition.clone()).unwrap().by(batch);
            let mut found = Vec::new();
            while let Some(one) = selected.next() {
                found.push(one.unwrap());
                prop_assert!(selected.kept() < batch);
            }
            prop_assert_eq!(&found, &known);
            prop_assert!(selected.next().is_none());
            let equal: Vec<[usize; 3]> =
                Positions::new(of.clone()).filter(|at| array.get(*at).unwrap() == least).collect();
            prop_assert_eq!(array.count(of.clone(), Field::whole(), &least).unwrap(), equal.len());
            prop_assert_eq!(array.position(of.clone(), Field::whole(), &least).unwrap(), equal.first().copied());
            prop_assert_eq!(array.section(of.clone()).unwrap().find(Field::whole(), &least).unwrap().len(), equal.len());
            let first = array.find_first(of.clone(), Field::whole(), &least, batch).unwrap();
            prop_assert_eq!(&first.indices[..], &equal[..equal.len().min(batch)]);
            prop_assert_eq!(first.total, equal.len());
            let positions = array.find_where(of, condition, batch).unwrap().indices;
            let known: Vec<_> = known.iter().take(batch).map(|(at, _)| *at).collect();
            prop_assert_eq!(positions, known);
        }
    }
}
