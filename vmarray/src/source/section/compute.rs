//! Operations on a section of a source by [expressions](crate::expr), on the devices.

use std::ops::RangeBounds;

use backend_api::Device;
use backend_api::expr::Number;

use super::{SourceSection, SourceSectionMut};
use crate::base::element::Element;
use crate::base::error::Result;
use crate::ops::compute::Selected;
use crate::ops::expr::{IntoAssignments, IntoExpr, IntoFiltered, Scalar, Summed, assignments_counted_from};
use crate::ops::find::Found;
use crate::source::home::{Home, HomeMut};

impl<'a, T: Element, H: Home<T>, D: Device> SourceSection<'a, T, H, D> {
    /// How many elements of a range meet a condition:
    /// [`Source::count_where`](crate::Source::count_where).
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// use vmarray::{Field, expr::index};
    /// # let source = vmarray::Source::new(vec![0_u32; 1000])?;
    /// source.fill(100..200, 5)?;
    /// let section = source.section(150..)?;
    /// assert_eq!(section.count_where(.., Field::whole().gt(3))?, 50);
    /// assert_eq!(section.count_where(.., Field::whole().gt(3) & index().lt(20))?, 20);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn count_where(
        &self,
        range: impl RangeBounds<usize>,
        condition: impl IntoExpr<T, bool>,
    ) -> Result<usize> {
        self.source.count_where(self.outer_range(range)?, condition.into_expr().counted_from(self.start))
    }

    /// The indices of the first `limit` elements of a range that meet a condition, ascending; and how many there are in
    /// all: [`Source::find_where`](crate::Source::find_where).
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// use vmarray::Field;
    /// # let source = vmarray::Source::new(vec![0.0_f32; 1000])?;
    /// source.fill(100..200, 5.0)?;
    /// let found = source.section(50..)?.find_where(60.., Field::whole().ge(2.5), 3)?;
    /// assert_eq!((found.indices, found.total), (vec![60, 61, 62], 90));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn find_where(
        &self,
        range: impl RangeBounds<usize>,
        condition: impl IntoExpr<T, bool>,
        limit: usize,
    ) -> Result<Found> {
        let condition = condition.into_expr().counted_from(self.start);
        let mut found = self.source.find_where(self.outer_range(range)?, condition, limit)?;
        found.indices.iter_mut().for_each(|index| *index -= self.start);
        Ok(found)
    }

    /// The index of the first element of a range that meets a condition:
    /// [`Source::position_first`](crate::Source::position_first).
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// use vmarray::Field;
    /// # let source = vmarray::Source::new(vec![0_u8; 10_000])?;
    /// source.set(7000, 5)?;
    /// assert_eq!(source.section(6000..)?.position_first(.., Field::whole().ne(0))?, Some(1000));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn position_first(
        &self,
        range: impl RangeBounds<usize>,
        condition: impl IntoExpr<T, bool>,
    ) -> Result<Option<usize>> {
        let condition = condition.into_expr().counted_from(self.start);
        let first = self.source.position_first(self.outer_range(range)?, condition)?;
        Ok(first.map(|index| index - self.start))
    }

    /// Whether any element of a range meets a condition: [`Source::any`](crate::Source::any).
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// use vmarray::Field;
    /// # let source = vmarray::Source::new(vec![0_u8; 10_000])?;
    /// source.set(7000, 5)?;
    /// assert!(!source.section(..7000)?.any(.., Field::whole().ne(0))?);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn any(&self, range: impl RangeBounds<usize>, condition: impl IntoExpr<T, bool>) -> Result<bool> {
        self.source.any(self.outer_range(range)?, condition.into_expr().counted_from(self.start))
    }

    /// Whether all elements of a range meet a condition: [`Source::all`](crate::Source::all).
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// use vmarray::Field;
    /// # let source = vmarray::Source::new(vec![0_u8; 10_000])?;
    /// source.set(7000, 5)?;
    /// assert!(source.section(7001..)?.all(.., Field::whole().eq(0))?);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn all(&self, range: impl RangeBounds<usize>, condition: impl IntoExpr<T, bool>) -> Result<bool> {
        self.source.all(self.outer_range(range)?, condition.into_expr().counted_from(self.start))
    }

    /// The sum of a value over a range: [`Source::sum`](crate::Source::sum).
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// use vmarray::{Field, expr::index};
    /// # let source = vmarray::Source::new(vec![0_u32; 1000])?;
    /// source.fill(.., u32::MAX)?;
    /// let section = source.section(900..)?;
    /// assert_eq!(section.sum(.., Field::whole())?, 100 * i128::from(u32::MAX));
    /// assert_eq!(section.sum(..3, index())?, 0 + 1 + 2);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn sum<F: Summed>(
        &self,
        range: impl RangeBounds<usize>,
        what: impl IntoFiltered<T, F>,
    ) -> Result<F::Sum> {
        self.source.sum(self.outer_range(range)?, what.into_filtered().counted_from(self.start))
    }

    /// The least value over a range: [`Source::min`](crate::Source::min).
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// use vmarray::Field;
    /// # let source = vmarray::Source::new(vec![0_i16; 1000])?;
    /// source.set(77, -3)?;
    /// assert_eq!(source.section(77..)?.min(.., Field::whole())?, Some(-3));
    /// assert_eq!(source.section(78..)?.min(.., Field::whole())?, Some(0));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn min<F: Scalar + Number>(
        &self,
        range: impl RangeBounds<usize>,
        what: impl IntoFiltered<T, F>,
    ) -> Result<Option<F>> {
        self.source.min(self.outer_range(range)?, what.into_filtered().counted_from(self.start))
    }

    /// The greatest value over a range: [`Source::max`](crate::Source::max).
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// use vmarray::Field;
    /// # let source = vmarray::Source::new(vec![0.0_f64; 1000])?;
    /// source.set(77, 4.0)?;
    /// assert_eq!(source.section(..77)?.max(.., Field::whole() + 2.0)?, Some(2.0));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn max<F: Scalar + Number>(
        &self,
        range: impl RangeBounds<usize>,
        what: impl IntoFiltered<T, F>,
    ) -> Result<Option<F>> {
        self.source.max(self.outer_range(range)?, what.into_filtered().counted_from(self.start))
    }

    /// The least and the greatest value over a range: [`Source::min_max`](crate::Source::min_max).
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// use vmarray::Field;
    /// # let source = vmarray::Source::new(vec![0_u64; 1000])?;
    /// source.set(77, 8)?;
    /// assert_eq!(source.section(70..80)?.min_max(.., Field::whole())?, Some((0, 8)));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn min_max<F: Scalar + Number>(
        &self,
        range: impl RangeBounds<usize>,
        what: impl IntoFiltered<T, F>,
    ) -> Result<Option<(F, F)>> {
        self.source.min_max(self.outer_range(range)?, what.into_filtered().counted_from(self.start))
    }

    /// The least value over a range and the index of the first element that has it:
    /// [`Source::arg_min`](crate::Source::arg_min).
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// use vmarray::Field;
    /// # let source = vmarray::Source::new(vec![0_i16; 1000])?;
    /// source.fill(77..99, -3)?;
    /// assert_eq!(source.section(70..)?.arg_min(.., Field::whole())?, Some((7, -3)));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn arg_min<F: Scalar + Number>(
        &self,
        range: impl RangeBounds<usize>,
        what: impl IntoFiltered<T, F>,
    ) -> Result<Option<(usize, F)>> {
        let what = what.into_filtered().counted_from(self.start);
        let least = self.source.arg_min(self.outer_range(range)?, what)?;
        Ok(least.map(|(index, value)| (index - self.start, value)))
    }

    /// The greatest value over a range and the index of the first element that has it:
    /// [`Source::arg_max`](crate::Source::arg_max).
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// use vmarray::Field;
    /// # let source = vmarray::Source::new(vec![0_i16; 1000])?;
    /// source.fill(77..99, 3)?;
    /// assert_eq!(source.section(70..)?.arg_max(10.., Field::whole())?, Some((10, 3)));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn arg_max<F: Scalar + Number>(
        &self,
        range: impl RangeBounds<usize>,
        what: impl IntoFiltered<T, F>,
    ) -> Result<Option<(usize, F)>> {
        let what = what.into_filtered().counted_from(self.start);
        let greatest = self.source.arg_max(self.outer_range(range)?, what)?;
        Ok(greatest.map(|(index, value)| (index - self.start, value)))
    }

    /// How many elements of a range have each number from 0 to below `bins`:
    /// [`Source::histogram`](crate::Source::histogram).
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// use vmarray::Field;
    /// # let source = vmarray::Source::new(vec![0_u32; 1000])?;
    /// source.fill(..300, 2)?;
    /// assert_eq!(source.section(100..500)?.histogram(.., Field::whole(), 3)?, [200, 0, 200]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn histogram(
        &self,
        range: impl RangeBounds<usize>,
        bin: impl IntoFiltered<T, u32>,
        bins: usize,
    ) -> Result<Vec<u64>> {
        self.source.histogram(self.outer_range(range)?, bin.into_filtered().counted_from(self.start), bins)
    }

    /// The elements of a range that meet a condition, with their indices, ascending:
    /// [`Source::select_where`](crate::Source::select_where).
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// use vmarray::Field;
    /// # let source = vmarray::Source::new(vec![0_u32; 10_000])?;
    /// source.set(7, 100)?;
    /// source.set(9000, 200)?;
    /// let found = source.section(5..)?.select_where(.., Field::whole().gt(0))?;
    /// assert_eq!(found.collect::<Result<Vec<_>, _>>()?, [(2, 100), (8995, 200)]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn select_where(
        &self,
        range: impl RangeBounds<usize>,
        condition: impl IntoExpr<T, bool>,
    ) -> Result<Selected<'a, T, D>> {
        let condition = condition.into_expr().counted_from(self.start);
        let selected = self.source.select_where(self.outer_range(range)?, condition)?;
        Ok(selected.counted_from(self.start))
    }
}

impl<T: Element, H: HomeMut<T>, D: Device> SourceSectionMut<'_, T, H, D> {
    /// Writes values to fields of all elements of a range, on the devices:
    /// [`Source::transform`](crate::Source::transform).
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// use vmarray::{Field, expr::index};
    /// # let source = vmarray::Source::new(vec![0_u64; 1000])?;
    /// source.section_mut(100..200)?.transform(.., Field::whole().set(index() * 2))?;
    /// assert_eq!((source.get(99)?, source.get(100)?, source.get(199)?, source.get(200)?), (0, 0, 198, 0));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn transform(
        &self,
        range: impl RangeBounds<usize>,
        assignments: impl IntoAssignments<T>,
    ) -> Result<()> {
        let assignments = assignments_counted_from(assignments, self.start);
        let done = self.source.transform(self.outer_range(range)?, assignments);
        done.map_err(|error| error.counted_from(self.start))
    }

    /// As [`transform`](Self::transform), for those elements alone that meet a condition:
    /// [`Source::assign_where`](crate::Source::assign_where).
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// use vmarray::{Field, expr::index};
    /// # let source = vmarray::Source::new(vec![0_u32; 1000])?;
    /// source.section_mut(105..)?.assign_where(.., (index() % 10).eq(3), Field::whole().set(7))?;
    /// assert_eq!((source.get(107)?, source.get(108)?), (0, 7));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn assign_where(
        &self,
        range: impl RangeBounds<usize>,
        condition: impl IntoExpr<T, bool>,
        assignments: impl IntoAssignments<T>,
    ) -> Result<()> {
        let condition = condition.into_expr().counted_from(self.start);
        let assignments = assignments_counted_from(assignments, self.start);
        let done = self.source.assign_where(self.outer_range(range)?, condition, assignments);
        done.map_err(|error| error.counted_from(self.start))
    }
}
