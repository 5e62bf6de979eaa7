//! Boxes worked on by expressions, on the devices.

use std::ops::{Range, RangeBounds};

use backend_api::Device;
use backend_api::expr::Number;

use super::NdArray;
use super::geometry::Geometry;
use super::shape::Bounds;
use crate::base::element::Element;
use crate::base::error::{ErrorKind, Result};
use crate::ops::expr::{Expr, Filtered, IntoAssignments, IntoExpr, IntoFiltered, Scalar, Summed, index};

/// What a box is to an operation on elements in order of storage.
pub(super) struct Within<T> {
    /// From the box's first element to its last.
    pub(super) range: Range<usize>,
    /// Which of these the box has, unless it has all.
    condition: Option<Expr<T, bool>>,
}

impl<T> Within<T> {
    pub(super) fn and(&self, condition: Expr<T, bool>) -> Expr<T, bool> {
        match &self.condition {
            Some(inside) => inside & condition,
            None => condition,
        }
    }

    fn only<F: Scalar>(&self, what: impl IntoFiltered<T, F>) -> Filtered<T, F> {
        match &self.condition {
            Some(inside) => what.into_filtered().within(inside),
            None => what.into_filtered(),
        }
    }
}

/// Division by what may be one.
fn divided<T>(value: Expr<T, u64>, by: usize) -> Expr<T, u64> {
    if by == 1 { value } else { value / by as u64 }
}

/// The index along an axis of the element that an expression is about.
fn coordinate<T, const N: usize>(geometry: &Geometry<N>, axis: usize) -> Expr<T, u64> {
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

/// Operations by [expressions](crate::expr) on boxes. Each is one operation on the devices, over all that is stored
/// from the first element of the box to its last; where the box has not all of that, its elements are told by their
/// coordinates.
impl<T: Element, const N: usize, D: Device> NdArray<T, N, D> {
    /// The index of each element along an axis, for expressions on this array and others of its shape and layout.
    ///
    /// # Errors
    /// [`NoSuchAxis`](ErrorKind::NoSuchAxis).
    ///
    /// ```
    /// use vmarray::{Field, NdArray};
    /// let image = NdArray::<u64, 2>::builder([30, 40]).tile([8, 8]).build()?;
    /// let (y, x) = (image.coordinate(0)?, image.coordinate(1)?);
    /// image.transform(.., Field::whole().set(y * 100 + x))?;
    /// assert_eq!(image.get([12, 34])?, 1234);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn coordinate(&self, axis: usize) -> Result<Expr<T, u64>> {
        if axis >= N {
            return Err(ErrorKind::NoSuchAxis { axis, axes: N }.into());
        }
        Ok(coordinate(&self.geometry, axis))
    }

    /// What a box that lies in the shape is to operations on elements.
    pub(super) fn within(&self, of: &Bounds<N>) -> Result<Within<T>> {
        let mut ranges = self.element_ranges(of.clone())?;
        let Some(first) = ranges.next() else { return Ok(Within { range: 0..0, condition: None }) };
        if ranges.next().is_none() {
            return Ok(Within { range: first, condition: None });
        }
        let last = self.geometry.index_of(&of.end.map(|end| end - 1));
        Ok(Within { range: first.start..last + 1, condition: self.condition(of) })
    }

    /// What tells the elements of a box from others between them.
    fn condition(&self, of: &Bounds<N>) -> Option<Expr<T, bool>> {
        let stored = |axis: usize| match &self.geometry.tiling {
            Some(tiling) => tiling.counts[axis] * tiling.tile[axis],
            None => self.geometry.shape[axis],
        };
        (0..N)
            .filter(|&axis| of.start[axis] > 0 || of.end[axis] < stored(axis))
            .map(|axis| {
                let (start, len) = (of.start[axis] as u64, (of.end[axis] - of.start[axis]) as u64);
                // Of what is before the start, the difference wraps, and is larger than any length.
                (coordinate(&self.geometry, axis) - start).lt(len)
            })
            .reduce(|all, one| all & one)
    }

    /// How many elements of a box meet a condition. As
    /// [`VirtualArray::count_where`](crate::VirtualArray::count_where).
    ///
    /// # Errors
    /// [`BoxOutside`](ErrorKind::BoxOutside), [`BoxReversed`](ErrorKind::BoxReversed), and as
    /// [`VirtualArray::count_where`](crate::VirtualArray::count_where).
    ///
    /// ```
    /// use vmarray::{Field, NdArray};
    /// let image = NdArray::<f32, 2>::new([30, 40])?;
    /// image.fill([10, 10]..[20, 20], 0.5)?;
    /// assert_eq!(image.count_where([15, 0]..[30, 15], Field::whole().gt(0.25))?, 25);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn count_where(
        &self,
        bounds: impl RangeBounds<[usize; N]>,
        condition: impl IntoExpr<T, bool>,
    ) -> Result<usize> {
        let within = self.within(&self.checked_box(bounds)?)?;
        self.elements.count_where(within.range.clone(), within.and(condition.into_expr()))
    }

    /// The sum of an expression over a box. As [`VirtualArray::sum`](crate::VirtualArray::sum).
    ///
    /// # Errors
    /// As [`count_where`](Self::count_where).
    ///
    /// ```
    /// use vmarray::{Field, NdArray};
    /// let image = NdArray::<u8, 2>::builder([30, 40]).tile([8, 8]).build()?;
    /// image.fill(.., 3)?;
    /// let pixel = Field::whole().cast::<u32>();
    /// assert_eq!(image.sum([1, 2]..[11, 12], &pixel * &pixel)?, 900);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn sum<F: Summed>(
        &self,
        bounds: impl RangeBounds<[usize; N]>,
        what: impl IntoFiltered<T, F>,
    ) -> Result<F::Sum> {
        let within = self.within(&self.checked_box(bounds)?)?;
        self.elements.sum(within.range.clone(), within.only(what))
    }

    /// The least value of an expression over a box; none if there are no elements. As
    /// [`VirtualArray::min`](crate::VirtualArray::min).
    ///
    /// # Errors
    /// As [`count_where`](Self::count_where).
    ///
    /// ```
    /// use vmarray::{Field, NdArray};
    /// let image = NdArray::<i16, 2>::builder([30, 40]).tile([8, 8]).build()?;
    /// image.set([10, 10], -3)?;
    /// assert_eq!(image.min([5, 5]..[15, 15], Field::whole())?, Some(-3));
    /// assert_eq!(image.min([5, 5]..[5, 15], Field::whole())?, None);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn min<F: Scalar + Number>(
        &self,
        bounds: impl RangeBounds<[usize; N]>,
        what: impl IntoFiltered<T, F>,
    ) -> Result<Option<F>> {
        let within = self.within(&self.checked_box(bounds)?)?;
        self.elements.min(within.range.clone(), within.only(what))
    }

    /// The greatest value of an expression over a box; none if there are no elements. As
    /// [`VirtualArray::max`](crate::VirtualArray::max).
    ///
    /// # Errors
    /// As [`count_where`](Self::count_where).
    ///
    /// ```
    /// use vmarray::{Field, NdArray};
    /// let image = NdArray::<i16, 2>::builder([30, 40]).tile([8, 8]).build()?;
    /// image.fill(.., -3)?;
    /// assert_eq!(image.max(.., Field::whole())?, Some(-3));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn max<F: Scalar + Number>(
        &self,
        bounds: impl RangeBounds<[usize; N]>,
        what: impl IntoFiltered<T, F>,
    ) -> Result<Option<F>> {
        let within = self.within(&self.checked_box(bounds)?)?;
        self.elements.max(within.range.clone(), within.only(what))
    }

    /// The least and the greatest value of an expression over a box; none if there are no elements.
    ///
    /// # Errors
    /// As [`count_where`](Self::count_where).
    ///
    /// ```
    /// use vmarray::{Field, NdArray};
    /// let image = NdArray::<f32, 2>::new([30, 40])?;
    /// image.set([10, 10], -0.5)?;
    /// assert_eq!(image.min_max([5, 5]..[15, 15], Field::whole())?, Some((-0.5, 0.0)));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn min_max<F: Scalar + Number>(
        &self,
        bounds: impl RangeBounds<[usize; N]>,
        what: impl IntoFiltered<T, F>,
    ) -> Result<Option<(F, F)>> {
        let within = self.within(&self.checked_box(bounds)?)?;
        self.elements.min_max(within.range.clone(), within.only(what))
    }

    /// The least value of an expression over a box, and the position of the first element in order of storage that has
    /// it; none if there are no elements.
    ///
    /// # Errors
    /// As [`count_where`](Self::count_where).
    ///
    /// ```
    /// use vmarray::{Field, NdArray};
    /// let image = NdArray::<f32, 2>::new([30, 40])?;
    /// image.set([10, 10], -0.5)?;
    /// assert_eq!(image.arg_min([5, 5]..[15, 15], Field::whole())?, Some(([10, 10], -0.5)));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn arg_min<F: Scalar + Number>(
        &self,
        bounds: impl RangeBounds<[usize; N]>,
        what: impl IntoFiltered<T, F>,
    ) -> Result<Option<([usize; N], F)>> {
        let within = self.within(&self.checked_box(bounds)?)?;
        let found = self.elements.arg_min(within.range.clone(), within.only(what))?;
        Ok(found.and_then(|(at, value)| Some((self.position_of(at)?, value))))
    }

    /// The greatest value of an expression over a box, and the position of the first element in order of storage that
    /// has it; none if there are no elements.
    ///
    /// # Errors
    /// As [`count_where`](Self::count_where).
    ///
    /// ```
    /// use vmarray::{Field, NdArray};
    /// let image = NdArray::<f32, 2>::new([30, 40])?;
    /// image.set([10, 10], 0.5)?;
    /// assert_eq!(image.arg_max(.., Field::whole())?, Some(([10, 10], 0.5)));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn arg_max<F: Scalar + Number>(
        &self,
        bounds: impl RangeBounds<[usize; N]>,
        what: impl IntoFiltered<T, F>,
    ) -> Result<Option<([usize; N], F)>> {
        let within = self.within(&self.checked_box(bounds)?)?;
        let found = self.elements.arg_max(within.range.clone(), within.only(what))?;
        Ok(found.and_then(|(at, value)| Some((self.position_of(at)?, value))))
    }

    /// How many elements of a box have each number from 0 to below `bins`. As
    /// [`VirtualArray::histogram`](crate::VirtualArray::histogram).
    ///
    /// # Errors
    /// As [`count_where`](Self::count_where), and [`BinCount`](ErrorKind::BinCount).
    ///
    /// ```
    /// use vmarray::{Field, NdArray};
    /// let image = NdArray::<u8, 2>::builder([30, 40]).tile([8, 8]).build()?;
    /// image.fill([0, 0]..[30, 10], 2)?;
    /// assert_eq!(image.histogram([0, 0]..[10, 40], Field::whole().cast::<u32>(), 3)?, [300, 0, 100]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn histogram(
        &self,
        bounds: impl RangeBounds<[usize; N]>,
        bin: impl IntoFiltered<T, u32>,
        bins: usize,
    ) -> Result<Vec<u64>> {
        let within = self.within(&self.checked_box(bounds)?)?;
        self.elements.histogram(within.range.clone(), within.only(bin), bins)
    }

    /// Writes values to fields of all elements of a box. As
    /// [`VirtualArray::transform`](crate::VirtualArray::transform), of all pages from the box's first element to its
    /// last.
    ///
    /// # Errors
    /// [`BoxOutside`](ErrorKind::BoxOutside), [`BoxReversed`](ErrorKind::BoxReversed), and as
    /// [`VirtualArray::transform`](crate::VirtualArray::transform).
    ///
    /// ```
    /// use vmarray::{Field, NdArray};
    /// let image = NdArray::<f32, 2>::builder([30, 40]).tile([8, 8]).build()?;
    /// let pixel = Field::whole();
    /// image.transform([10, 10]..[20, 20], pixel.set(pixel * 2.0 + 1.0))?;
    /// assert_eq!((image.get([19, 19])?, image.get([20, 19])?), (1.0, 0.0));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn transform(
        &self,
        bounds: impl RangeBounds<[usize; N]>,
        assignments: impl IntoAssignments<T>,
    ) -> Result<()> {
        let within = self.within(&self.checked_box(bounds)?)?;
        match within.condition {
            Some(inside) => self.elements.assign_where(within.range, inside, assignments),
            None => self.elements.transform(within.range, assignments),
        }
    }

    /// As [`transform`](Self::transform), for those elements alone that meet a condition.
    ///
    /// # Errors
    /// As [`transform`](Self::transform).
    ///
    /// ```
    /// use vmarray::{Field, NdArray};
    /// let image = NdArray::<u8, 2>::new([30, 40])?;
    /// image.fill([10, 10]..[20, 20], 200)?;
    /// image.assign_where([0, 0]..[30, 15], Field::whole().gt(100), Field::whole().set(100))?;
    /// assert_eq!((image.get([12, 14])?, image.get([12, 15])?), (100, 200));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn assign_where(
        &self,
        bounds: impl RangeBounds<[usize; N]>,
        condition: impl IntoExpr<T, bool>,
        assignments: impl IntoAssignments<T>,
    ) -> Result<()> {
        let within = self.within(&self.checked_box(bounds)?)?;
        let condition = within.and(condition.into_expr());
        self.elements.assign_where(within.range, condition, assignments)
    }
}
