//! Operations on a source by [expressions](crate::expr), on the devices.

use std::ops::RangeBounds;

use backend_api::Device;
use backend_api::expr::Number;

use super::Source;
use super::home::{Home, HomeMut};
use crate::array::range::checked as checked_range;
use crate::base::element::Element;
#[cfg(doc)]
use crate::base::error::ErrorKind;
use crate::base::error::Result;
use crate::ops::compute::{
    Column, Condition, Extremes, Histogram, Joinable, Joined, Joint, Other, Plan, Selected, Target, Total,
    sealed,
};
use crate::ops::expr::{Expr, IntoAssignments, IntoExpr, IntoFiltered, Scalar, Summed};
use crate::ops::find::Found;

/// Operations by [expressions](crate::expr), as of [`VirtualArray`](crate::VirtualArray). They run on all devices at
/// once. What is missing there is copied there first, in waves that fit into the device memory; what is there already
/// is not copied again. The index in expressions is that in the source.
impl<T: Element, H: Home<T>, D: Device> Source<T, H, D> {
    /// How many elements of a range meet a condition.
    ///
    /// # Errors
    /// As [`find_where`](Self::find_where).
    ///
    /// ```
    /// use vmarray::{Field, Source};
    /// let source = Source::new((0..10_000).collect::<Vec<u32>>())?;
    /// assert_eq!(source.count_where(.., Field::whole().ge(3) & Field::whole().lt(9))?, 6);
    /// // Again nothing is copied to the devices.
    /// source.reset_stats();
    /// assert_eq!(source.count_where(5.., Field::whole().lt(9))?, 4);
    /// assert_eq!(source.stats().total().bytes_to_device, 0);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn count_where(
        &self,
        range: impl RangeBounds<usize>,
        condition: impl IntoExpr<T, bool>,
    ) -> Result<usize> {
        self.search_where(range, condition, 0, true).map(|found| found.total)
    }

    /// The indices of the first `limit` elements of a range that meet a condition, ascending; and how many there are in
    /// all.
    ///
    /// # Errors
    /// [`RangeOutside`](ErrorKind::RangeOutside), [`RangeReversed`](ErrorKind::RangeReversed),
    /// [`ExpressionTooLong`](ErrorKind::ExpressionTooLong), [`NoMemory`](ErrorKind::NoMemory) for more indices than fit
    /// into RAM, [`Device`](ErrorKind::Device).
    ///
    /// ```
    /// use vmarray::{Field, Source};
    /// let source = Source::new(vec![5.0_f32; 200])?;
    /// let found = source.find_where(150.., Field::whole().ge(2.5), 3)?;
    /// assert_eq!((found.indices, found.total), (vec![150, 151, 152], 50));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn find_where(
        &self,
        range: impl RangeBounds<usize>,
        condition: impl IntoExpr<T, bool>,
        limit: usize,
    ) -> Result<Found> {
        self.search_where(range, condition, limit, true)
    }

    /// The index of the first element of a range that meets a condition. Stops soon after it is found: what comes after
    /// it need not be copied to the devices.
    ///
    /// # Errors
    /// As [`find_where`](Self::find_where).
    ///
    /// ```
    /// use vmarray::{Field, Source};
    /// let source = Source::new((0..10_000).collect::<Vec<u32>>())?;
    /// assert_eq!(source.position_first(.., (Field::whole() % 1000).eq(999))?, Some(999));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn position_first(
        &self,
        range: impl RangeBounds<usize>,
        condition: impl IntoExpr<T, bool>,
    ) -> Result<Option<usize>> {
        self.search_where(range, condition, 1, false).map(|found| found.indices.first().copied())
    }

    /// Whether any element of a range meets a condition. Stops soon after one is found.
    ///
    /// # Errors
    /// As [`find_where`](Self::find_where).
    ///
    /// ```
    /// use vmarray::{Field, Source};
    /// let source = Source::new(vec![0_u8; 10_000])?;
    /// assert!(!source.any(.., Field::whole().ne(0))?);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn any(&self, range: impl RangeBounds<usize>, condition: impl IntoExpr<T, bool>) -> Result<bool> {
        self.position_first(range, condition).map(|first| first.is_some())
    }

    /// Whether all elements of a range meet a condition. Stops soon after one is found that does not.
    ///
    /// # Errors
    /// As [`find_where`](Self::find_where).
    ///
    /// ```
    /// use vmarray::{Field, Source};
    /// let source = Source::new(vec![0_u8; 10_000])?;
    /// assert!(source.all(.., Field::whole().eq(0))?);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn all(&self, range: impl RangeBounds<usize>, condition: impl IntoExpr<T, bool>) -> Result<bool> {
        self.any(range, !condition.into_expr()).map(|any| !any)
    }

    /// The sum of a value over a range. Integers are added exactly.
    ///
    /// Floating point is added in `f64`, beginning at +0, in an order that depends on the devices, the channels, the
    /// range, and on which neighbouring pages lie side by side in device memory: the same call on the same contents
    /// gives the same sum as long as no page has lost its device memory. It sees each element once; rounding differs
    /// from that of a sum in ascending order.
    ///
    /// # Errors
    /// As [`find_where`](Self::find_where).
    ///
    /// ```
    /// use vmarray::{Field, Source};
    /// let source = Source::new(vec![u32::MAX; 10_000])?;
    /// assert_eq!(source.sum(.., Field::whole())?, 10_000 * i128::from(u32::MAX));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn sum<F: Summed>(
        &self,
        range: impl RangeBounds<usize>,
        what: impl IntoFiltered<T, F>,
    ) -> Result<F::Sum> {
        self.core.reduce(&checked_range(range, self.len())?, &Total::new(what)?)
    }

    /// The least value over a range; `None` if there is none. NaNs do not count, and a zero comes back as +0.
    ///
    /// # Errors
    /// As [`find_where`](Self::find_where).
    ///
    /// ```
    /// use vmarray::{Field, Source};
    /// let source = Source::new(vec![4_i16, -3, 5])?;
    /// assert_eq!(source.min(.., Field::whole())?, Some(-3));
    /// assert_eq!(source.min(3..3, Field::whole())?, None);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn min<F: Scalar + Number>(
        &self,
        range: impl RangeBounds<usize>,
        what: impl IntoFiltered<T, F>,
    ) -> Result<Option<F>> {
        self.arg_min(range, what).map(|found| found.map(|(_, value)| value))
    }

    /// The greatest value over a range; see [`min`](Self::min).
    ///
    /// # Errors
    /// As [`find_where`](Self::find_where).
    ///
    /// ```
    /// use vmarray::{Field, Source};
    /// let source = Source::new(vec![0.5, f64::NAN, 0.25])?;
    /// assert_eq!(source.max(.., Field::whole() + 2.0)?, Some(2.5));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn max<F: Scalar + Number>(
        &self,
        range: impl RangeBounds<usize>,
        what: impl IntoFiltered<T, F>,
    ) -> Result<Option<F>> {
        self.arg_max(range, what).map(|found| found.map(|(_, value)| value))
    }

    /// The least and the greatest value over a range, in one pass; see [`min`](Self::min).
    ///
    /// # Errors
    /// As [`find_where`](Self::find_where).
    ///
    /// ```
    /// use vmarray::{Field, Source};
    /// let source = Source::new(vec![4_i16, -3, 5])?;
    /// assert_eq!(source.min_max(.., Field::whole())?, Some((-3, 5)));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn min_max<F: Scalar + Number>(
        &self,
        range: impl RangeBounds<usize>,
        what: impl IntoFiltered<T, F>,
    ) -> Result<Option<(F, F)>> {
        let (least, greatest) =
            self.core.reduce(&checked_range(range, self.len())?, &Extremes::both(what)?)?;
        Ok(least.zip(greatest).map(|((_, least), (_, greatest))| (least, greatest)))
    }

    /// The least value over a range and the index of the first element that has it; see [`min`](Self::min).
    ///
    /// # Errors
    /// As [`find_where`](Self::find_where).
    ///
    /// ```
    /// use vmarray::{Field, Source};
    /// let source = Source::new(vec![4_i16, -3, 5, -3])?;
    /// assert_eq!(source.arg_min(.., Field::whole())?, Some((1, -3)));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn arg_min<F: Scalar + Number>(
        &self,
        range: impl RangeBounds<usize>,
        what: impl IntoFiltered<T, F>,
    ) -> Result<Option<(usize, F)>> {
        let range = checked_range(range, self.len())?;
        self.core.reduce(&range, &Extremes::least(what)?).map(|(least, _)| least)
    }

    /// The greatest value over a range and the index of the first element that has it; see [`min`](Self::min).
    ///
    /// # Errors
    /// As [`find_where`](Self::find_where).
    ///
    /// ```
    /// use vmarray::{Field, Source};
    /// let source = Source::new(vec![4_i16, 5, -3, 5])?;
    /// assert_eq!(source.arg_max(2.., Field::whole())?, Some((3, 5)));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn arg_max<F: Scalar + Number>(
        &self,
        range: impl RangeBounds<usize>,
        what: impl IntoFiltered<T, F>,
    ) -> Result<Option<(usize, F)>> {
        let range = checked_range(range, self.len())?;
        self.core.reduce(&range, &Extremes::greatest(what)?).map(|(_, greatest)| greatest)
    }

    /// How many elements of a range have each number from 0 to below `bins`; others do not count. A number that is
    /// [cast](crate::expr) to `u32` beforehand is 0 if it was negative, or a NaN: leave those out by `only_where`.
    ///
    /// # Errors
    /// As [`find_where`](Self::find_where), and [`BinCount`](ErrorKind::BinCount): 1 to 4096 are possible.
    ///
    /// ```
    /// use vmarray::{Field, Source};
    /// let source = Source::new(vec![2.5_f32, 0.0, 2.5])?;
    /// let bin = (Field::whole() * 2.0).cast::<u32>();
    /// assert_eq!(source.histogram(.., bin, 6)?, [1, 0, 0, 0, 0, 2]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn histogram(
        &self,
        range: impl RangeBounds<usize>,
        bin: impl IntoFiltered<T, u32>,
        bins: usize,
    ) -> Result<Vec<u64>> {
        self.core.reduce(&checked_range(range, self.len())?, &Histogram::new(bin, bins)?)
    }

    /// The elements of a range that meet a condition, with their indices, ascending.
    ///
    /// They are found on the devices, some thousands at a time, so memory is bounded, however many there are. Their
    /// values are read at home; what is newer on a device is collected there, and alone copied. An element that is
    /// written to meanwhile may come with its new value.
    ///
    /// # Errors
    /// [`RangeOutside`](ErrorKind::RangeOutside), [`RangeReversed`](ErrorKind::RangeReversed),
    /// [`ExpressionTooLong`](ErrorKind::ExpressionTooLong). The iterator gives an error of a device once and ends.
    ///
    /// ```
    /// use vmarray::{Field, Source};
    /// let mut elements = vec![[0_u32; 2]; 10_000];
    /// (elements[7], elements[9000]) = ([1, 100], [2, 200]);
    /// let source = Source::new(&elements[..])?;
    /// let first = Field::<[u32; 2], [u32; 2]>::whole().nth::<0>();
    /// let found = source.select_where(.., first.gt(0))?.collect::<Result<Vec<_>, _>>()?;
    /// assert_eq!(found, [(7, [1, 100]), (9000, [2, 200])]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn select_where(
        &self,
        range: impl RangeBounds<usize>,
        condition: impl IntoExpr<T, bool>,
    ) -> Result<Selected<'_, T, D>> {
        let range = checked_range(range, self.len())?;
        Ok(Selected::new(&*self.core, range, Condition::new(condition)?))
    }

    fn search_where(
        &self,
        range: impl RangeBounds<usize>,
        condition: impl IntoExpr<T, bool>,
        limit: usize,
        count_all: bool,
    ) -> Result<Found> {
        let range = checked_range(range, self.len())?;
        self.core.search(&range, &Condition::new(condition)?.what(), limit, count_all)
    }

    pub(crate) fn as_other(&self) -> &dyn Other<D> {
        &*self.core
    }
}

/// Writing by [expressions](crate::expr). What is written is newer on the devices afterwards, and comes home when the
/// program looks at it.
impl<T: Element, H: HomeMut<T>, D: Device> Source<T, H, D> {
    /// Writes values to fields of all elements of a range, on the devices.
    ///
    /// All fields of an element are read before the first is written. What is missing on the devices of the blocks
    /// concerned is copied there first; nothing of blocks in the range is if all bytes of the elements are written,
    /// whatever they were. Accesses to a page that is being written to wait.
    ///
    /// # Errors
    /// [`RangeOutside`](ErrorKind::RangeOutside), [`RangeReversed`](ErrorKind::RangeReversed),
    /// [`ExpressionTooLong`](ErrorKind::ExpressionTooLong), [`AssignmentCount`](ErrorKind::AssignmentCount);
    /// [`Interrupted`](ErrorKind::Interrupted) says what was written, and what holds anything, if there is trouble
    /// after devices were asked to write, and [`Device`](ErrorKind::Device) that nothing was written. Of elements that
    /// a device failed to write, only those hold anything that were newer there before: the others are valid at home.
    ///
    /// ```
    /// use vmarray::{Field, Source};
    /// let source = Source::new(vec![0.0_f32; 10_000])?;
    /// let value = Field::whole();
    /// source.transform(.., value.set(value * 2.0 + 1.0))?;
    /// source.transform(5000.., value.set(value * 2.0 + 1.0))?;
    /// assert_eq!((source.get(4999)?, source.get(5000)?), (1.0, 3.0));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn transform(
        &self,
        range: impl RangeBounds<usize>,
        assignments: impl IntoAssignments<T>,
    ) -> Result<()> {
        self.assign(range, None, assignments)
    }

    /// As [`transform`](Self::transform), for those elements alone that meet a condition. All blocks of the range are
    /// newer on the devices afterwards, whatever elements did.
    ///
    /// # Errors
    /// As [`transform`](Self::transform).
    ///
    /// ```
    /// use vmarray::{Field, Source, expr::index};
    /// let source = Source::new(vec![0_u32; 10_000])?;
    /// source.assign_where(.., (index() % 10).eq(3), Field::whole().set(7))?;
    /// assert_eq!(source.sum(.., Field::whole())?, 7000);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn assign_where(
        &self,
        range: impl RangeBounds<usize>,
        condition: impl IntoExpr<T, bool>,
        assignments: impl IntoAssignments<T>,
    ) -> Result<()> {
        self.assign(range, Some(condition.into_expr()), assignments)
    }

    /// This source together with arrays and other sources, to write to this one what is computed from all. See
    /// [`Joined`]: elements of the others are read and copied to this one's devices by each operation.
    ///
    /// # Errors
    /// [`LengthMismatch`](ErrorKind::LengthMismatch).
    ///
    /// ```
    /// use vmarray::{Field, Source, VirtualArray};
    /// let (source, array) = (Source::new(vec![1_u32; 1000])?, VirtualArray::<u32>::new(1000)?);
    /// array.fill(500.., 7)?;
    /// let joined = source.join((&array,))?;
    /// let (x, y) = joined.rows();
    /// joined.transform(.., x.set(Field::whole(), x.get(Field::whole()) + y.get(Field::whole())))?;
    /// assert_eq!((source.get(499)?, source.get(500)?), (1, 8));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    ///
    /// What is only borrowed for reading can be one of the others, and no more:
    ///
    /// ```compile_fail
    /// # let array = vmarray::VirtualArray::<u32>::new(3).unwrap();
    /// vmarray::Source::new(&[1_u32, 2, 3][..]).unwrap().join((&array,)).unwrap();
    /// ```
    pub fn join<'a, O: Joinable<'a, T, D>>(&'a self, others: O) -> Result<Joined<'a, T, O, D>> {
        Joined::new(&*self.core, others)
    }

    fn assign(
        &self,
        range: impl RangeBounds<usize>,
        condition: Option<Expr<T, bool>>,
        assignments: impl IntoAssignments<T>,
    ) -> Result<()> {
        let range = checked_range(range, self.len())?;
        let plan = Plan::new(condition, assignments.into_assignments())?;
        self.core.store(&[], &range, &plan)
    }
}

impl<T: Element, H: Home<T>, D: Device> sealed::Sealed for &Source<T, H, D> {}

impl<'a, T: Element, H: Home<T>, D: Device> Column<'a, D> for &'a Source<T, H, D> {
    type Element = T;

    fn joint(self) -> Joint<'a, D> {
        Joint::new(self.as_other())
    }
}
