//! Elements of boxes that meet a condition, in row-major order.

use std::collections::VecDeque;
use std::iter::FusedIterator;
use std::ops::RangeBounds;

use backend_api::Device;

use super::NdArray;
use super::shape::{Bounds, is_void};
use crate::base::element::Element;
use crate::base::error::Result;
use crate::ops::compute::{Searched, batch_len};
use crate::ops::expr::{Expr, IntoExpr};

/// What a search of a box found.
///
/// ```
/// use vmarray::{Field, NdArray};
/// let image = NdArray::<u8, 2>::new([30, 40])?;
/// image.fill([10, 10]..[20, 20], 5)?;
/// let found = image.find_where(.., Field::whole().eq(5), 2)?;
/// assert_eq!((found.positions, found.total), (vec![[10, 10], [10, 11]], 100));
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct NdFound<const N: usize> {
    /// The positions of the first matches in row-major order; as many as were asked for at most.
    pub positions: Vec<[usize; N]>,
    /// How many matches there are in all.
    pub total: usize,
}

/// Searches of boxes by [expressions](crate::expr). In a tiled array, where neighbours of a row lie in
/// different tiles, the first matches in row-major order may take several operations on the devices: a row of tiles is
/// searched again, by halves, until few enough matches are left to be put in order.
impl<T: Element, const N: usize, D: Device> NdArray<T, N, D> {
    /// The positions of the first `limit` elements of a box that meet a condition, in row-major order; and how many
    /// there are in all. As [`VirtualArray::find_where`](crate::VirtualArray::find_where).
    ///
    /// # Errors
    /// As [`count_where`](Self::count_where), and [`NoMemory`](crate::ErrorKind::NoMemory) for more positions than fit
    /// into RAM.
    ///
    /// ```
    /// use vmarray::{Field, NdArray};
    /// let image = NdArray::<f32, 2>::builder([30, 40]).tile([8, 8]).build()?;
    /// image.set([3, 30], 0.5)?;
    /// image.set([9, 2], 0.5)?;
    /// let bright = Field::whole().gt(0.25);
    /// assert_eq!(image.find_where(.., &bright, usize::MAX)?.positions, [[3, 30], [9, 2]]);
    /// let found = image.find_where([2, 2].., bright, 1)?;
    /// assert_eq!((found.positions, found.total), (vec![[3, 30]], 2));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn find_where(
        &self,
        bounds: impl RangeBounds<[usize; N]>,
        condition: impl IntoExpr<T, bool>,
        limit: usize,
    ) -> Result<NdFound<N>> {
        let of = self.checked_box(bounds)?;
        let condition = condition.into_expr();
        let within = self.within(&of)?;
        let found = self.elements.find_where(within.range.clone(), within.and(condition.clone()), limit)?;
        let total = found.total;
        if found.indices.len() < total && self.axis_out_of_order(&of).is_some() {
            return Ok(NdFound { positions: InOrder::new(self, of, condition).first(limit)?, total });
        }
        Ok(NdFound { positions: self.positions_in_order(&found.indices), total })
    }

    /// The position of the first element of a box, in row-major order, that meets a condition. Stops soon after it is
    /// found.
    ///
    /// # Errors
    /// As [`count_where`](Self::count_where).
    ///
    /// ```
    /// use vmarray::{Field, NdArray};
    /// let image = NdArray::<u8, 2>::builder([30, 40]).tile([8, 8]).build()?;
    /// image.set([7, 1], 5)?;
    /// image.set([6, 39], 5)?;
    /// assert_eq!(image.position_first(.., Field::whole().ne(0))?, Some([6, 39]));
    /// assert_eq!(image.position_first([8, 0].., Field::whole().ne(0))?, None);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn position_first(
        &self,
        bounds: impl RangeBounds<[usize; N]>,
        condition: impl IntoExpr<T, bool>,
    ) -> Result<Option<[usize; N]>> {
        let of = self.checked_box(bounds)?;
        Ok(InOrder::new(self, of, condition.into_expr()).first(1)?.first().copied())
    }

    /// Whether any element of a box meets a condition. Stops soon after one is found.
    ///
    /// # Errors
    /// As [`count_where`](Self::count_where).
    ///
    /// ```
    /// use vmarray::{Field, NdArray};
    /// let image = NdArray::<u8, 2>::builder([30, 40]).tile([8, 8]).build()?;
    /// image.set([6, 39], 5)?;
    /// assert!(image.any([6, 0]..[7, 40], Field::whole().ne(0))?);
    /// assert!(!image.any([0, 0]..[30, 39], Field::whole().ne(0))?);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn any(
        &self,
        bounds: impl RangeBounds<[usize; N]>,
        condition: impl IntoExpr<T, bool>,
    ) -> Result<bool> {
        let within = self.within(&self.checked_box(bounds)?)?;
        self.elements.any(within.range.clone(), within.and(condition.into_expr()))
    }

    /// Whether all elements of a box meet a condition. Stops soon after one is found that does not.
    ///
    /// # Errors
    /// As [`count_where`](Self::count_where).
    ///
    /// ```
    /// use vmarray::{Field, NdArray};
    /// let image = NdArray::<u8, 2>::builder([30, 40]).tile([8, 8]).build()?;
    /// image.fill([10, 10]..[20, 20], 5)?;
    /// assert!(image.all([12, 13]..[20, 20], Field::whole().eq(5))?);
    /// assert!(!image.all(.., Field::whole().eq(5))?);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn all(
        &self,
        bounds: impl RangeBounds<[usize; N]>,
        condition: impl IntoExpr<T, bool>,
    ) -> Result<bool> {
        self.any(bounds, !condition.into_expr()).map(|any| !any)
    }

    /// The elements of a box that meet a condition, with their positions, in row-major order. As
    /// [`VirtualArray::select_where`](crate::VirtualArray::select_where): they are found and collected on the devices,
    /// some thousands at a time, in bounded memory.
    ///
    /// # Errors
    /// As [`count_where`](Self::count_where). The iterator gives an error of a device once and ends.
    ///
    /// ```
    /// use vmarray::{Field, NdArray};
    /// let image = NdArray::<u8, 2>::builder([30, 40]).tile([8, 8]).build()?;
    /// image.set([9, 2], 7)?;
    /// image.set([9, 30], 8)?;
    /// image.set([3, 30], 9)?;
    /// let found = image.select_where([0, 0]..[30, 35], Field::whole().gt(0))?;
    /// assert_eq!(found.collect::<Result<Vec<_>, _>>()?, [([3, 30], 9), ([9, 2], 7), ([9, 30], 8)]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn select_where(
        &self,
        bounds: impl RangeBounds<[usize; N]>,
        condition: impl IntoExpr<T, bool>,
    ) -> Result<NdSelected<'_, T, N, D>> {
        self.select_by(bounds, condition.into_expr(), batch_len::<T>())
    }

    fn select_by(
        &self,
        bounds: impl RangeBounds<[usize; N]>,
        condition: Expr<T, bool>,
        batch: usize,
    ) -> Result<NdSelected<'_, T, N, D>> {
        let of = self.checked_box(bounds)?;
        // Says now what is wrong with the condition.
        self.within(&of)?.and(condition.clone()).lowered()?;
        Ok(NdSelected { search: InOrder::new(self, of, condition), batch, found: VecDeque::new() })
    }

    /// The positions of elements, sorted.
    fn positions_in_order(&self, indices: &[usize]) -> Vec<[usize; N]> {
        let mut positions: Vec<_> = indices.iter().filter_map(|at| self.position_of(*at)).collect();
        if self.geometry.tiling.is_some() {
            positions.sort_unstable();
        }
        positions
    }

    /// If the elements of a box, which has some, are not stored in row-major order: the first axis along which there
    /// are several, and the extent of a tile along that. All elements of lower tiles along this axis are stored, and
    /// come in row-major order, before those of higher ones.
    fn axis_out_of_order(&self, of: &Bounds<N>) -> Option<(usize, usize)> {
        let tile = self.geometry.tiling?.tile;
        let axis = (0..N).find(|&axis| of.end[axis] - of.start[axis] > 1)?;
        let is_cut = |axis: usize| of.start[axis] / tile[axis] != (of.end[axis] - 1) / tile[axis];
        (axis + 1..N).any(is_cut).then_some((axis, tile[axis]))
    }
}

/// The part of a box before an index along an axis, and the part from there on.
fn cut<const N: usize>(of: &Bounds<N>, axis: usize, at: usize) -> (Bounds<N>, Bounds<N>) {
    let at = at.clamp(of.start[axis], of.end[axis]);
    let (mut before, mut after) = (of.clone(), of.clone());
    (before.end[axis], after.start[axis]) = (at, at);
    (before, after)
}

/// A search whose matches come in row-major order, some at a time.
#[derive(Debug)]
struct InOrder<'a, T: Element, const N: usize, D: Device> {
    array: &'a NdArray<T, N, D>,
    condition: Expr<T, bool>,
    /// What was not searched yet, the last one first: boxes with elements, and from which of these on. All matches of
    /// one come before those of the others that are to be searched later.
    rest: Vec<(Bounds<N>, usize)>,
}

impl<'a, T: Element, const N: usize, D: Device> InOrder<'a, T, N, D> {
    fn new(array: &'a NdArray<T, N, D>, of: Bounds<N>, condition: Expr<T, bool>) -> Self {
        let mut search = Self { array, condition, rest: Vec::new() };
        search.push(of);
        search
    }

    fn push(&mut self, of: Bounds<N>) {
        if !is_void(&of) {
            self.rest.push((of, 0));
        }
    }

    /// The first matches.
    fn first(&mut self, limit: usize) -> Result<Vec<[usize; N]>> {
        let mut positions = Vec::new();
        while positions.len() < limit {
            let indices = self.next(limit - positions.len())?;
            if indices.is_empty() {
                break;
            }
            positions.extend(self.array.positions_in_order(&indices));
        }
        Ok(positions)
    }

    /// Matches that come before all others in row-major order, as indices in order of storage: `limit` at most, none if
    /// there are no more.
    fn next(&mut self, limit: usize) -> Result<Vec<usize>> {
        while let Some((of, from)) = self.rest.pop() {
            let within = self.array.within(&of)?;
            let range = within.range.start.max(from)..within.range.end;
            let condition = within.and(self.condition.clone());
            let mut found = self.array.elements.first_where(range, condition, limit)?;
            match (found.last(), self.array.axis_out_of_order(&of)) {
                (None, _) => continue,
                (Some(_), _) if found.len() < limit => return Ok(found),
                (Some(last), None) => self.rest.push((of, last + 1)),
                (Some(last), Some((axis, tile))) => {
                    // There may be more. Those in the tiles before that of the last one are all there.
                    let along = |index: usize| self.array.position_of(index).map_or(0, |at| at[axis]);
                    let start = along(*last) / tile * tile;
                    let complete = found.partition_point(|index| along(*index) < start);
                    found.truncate(complete);
                    let (_, rest) = cut(&of, axis, start);
                    if complete > 0 {
                        self.push(rest);
                    } else {
                        let (row, after) = cut(&rest, axis, start + tile);
                        let middle = row.start[axis] + (row.end[axis] - row.start[axis]).div_ceil(2);
                        let (first, second) = cut(&row, axis, middle);
                        [after, second, first].into_iter().for_each(|part| self.push(part));
                        continue;
                    }
                }
            }
            return Ok(found);
        }
        Ok(Vec::new())
    }
}

/// Elements of a box that meet a condition; see [`NdArray::select_where`].
///
/// ```
/// use vmarray::{Field, NdArray};
/// let image = NdArray::<u8, 2>::new([300, 400])?;
/// image.fill([100, 0]..[200, 400], 1)?;
/// assert_eq!(image.select_where(.., Field::whole().eq(1))?.count(), 40_000);
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Debug)]
pub struct NdSelected<'a, T: Element, const N: usize, D: Device> {
    search: InOrder<'a, T, N, D>,
    batch: usize,
    found: VecDeque<([usize; N], T)>,
}

impl<T: Element, const N: usize, D: Device> NdSelected<'_, T, N, D> {
    fn fetch(&mut self) -> Result<()> {
        let indices = self.search.next(self.batch)?;
        let array = self.search.array;
        let values = array.elements.collect_elements(&indices)?;
        let positions = indices.iter().filter_map(|at| array.position_of(*at));
        let mut found: Vec<_> = positions.zip(values).collect();
        found.sort_unstable_by_key(|(at, _)| *at);
        self.found = found.into();
        Ok(())
    }
}

impl<T: Element, const N: usize, D: Device> Iterator for NdSelected<'_, T, N, D> {
    type Item = Result<([usize; N], T)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.found.is_empty()
            && let Err(error) = self.fetch()
        {
            self.search.rest.clear();
            return Some(Err(error));
        }
        self.found.pop_front().map(Ok)
    }
}

impl<T: Element, const N: usize, D: Device> FusedIterator for NdSelected<'_, T, N, D> {}

#[cfg(all(test, feature = "host"))]
mod tests {
    use std::sync::Arc;

    use backend_host::HostDevice;
    use proptest::prelude::*;

    use super::super::{NdLayout, Positions};
    use super::*;
    use crate::base::element::Field;

    proptest! {
        /// As many as fit into a batch come at a time, and all of them in the order of nested loops.
        #[test]
        fn elements_come_in_row_major_order_whatever_the_batch(
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
            let mut selected = array.select_by(of.clone(), condition.clone(), batch).unwrap();
            let mut found = Vec::new();
            while let Some(one) = selected.next() {
                found.push(one.unwrap());
                prop_assert!(selected.found.len() < batch);
            }
            prop_assert_eq!(&found, &known);
            prop_assert!(selected.next().is_none());
            let positions = array.find_where(of, condition, batch).unwrap().positions;
            let known: Vec<_> = known.iter().take(batch).map(|(at, _)| *at).collect();
            prop_assert_eq!(positions, known);
        }
    }
}
