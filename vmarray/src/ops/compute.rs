//! Operations on the devices, by [expressions](crate::expr): elements are worked on where they lie.
//!
//! All channels of all devices work at once. What was written and is not on its device yet is copied there first, and
//! answers come back; nothing else moves. Expressions are translated for a device when it meets them for the first
//! time, which may take some milliseconds; those that differ in their numbers alone count as one.
//!
//! An operation sees every write that returned before it began; of writes that happen meanwhile it sees any.

mod joined;
mod outcome;
mod plan;
mod reduce;
mod select;
mod store;

use std::ops::{Range, RangeBounds};

use backend_api::expr::{Geometry, Number};
use backend_api::{Compute, Device, Elements};

use crate::array::VirtualArray;
use crate::base::element::Element;
#[cfg(doc)]
use crate::base::error::ErrorKind;
use crate::base::error::Result;
use crate::ops::expr::{Expr, IntoExpr, IntoFiltered, Scalar, Summed};
use crate::ops::find::Found;

pub use joined::{Column, Joinable, Joined, Row};
pub use select::Selected;

pub(crate) use joined::{Joint, Target, sealed};
pub(crate) use outcome::{Outcome, changes_nothing};
pub(crate) use plan::{Condition, Plan};
pub(crate) use reduce::{Answer, Extremes, Histogram, Reduction, Total};
pub(crate) use select::{Searched, batch_len};
pub(crate) use store::{Other, STAGED_BYTES};

impl<T: Element, D: Device> VirtualArray<T, D> {
    /// How many elements of a range meet a condition.
    ///
    /// # Errors
    /// As [`find_where`](Self::find_where).
    ///
    /// ```
    /// use vmarray::{Field, VirtualArray};
    /// let array = VirtualArray::<u32>::new(10_000)?;
    /// array.fill(100..200, 5)?;
    /// assert_eq!(array.count_where(.., Field::whole().gt(3) & Field::whole().lt(9))?, 100);
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
    /// into RAM, [`Device`](ErrorKind::Device); [`WouldDeadlock`](ErrorKind::WouldDeadlock) if the calling thread holds
    /// a page exclusively.
    ///
    /// ```
    /// use vmarray::{Field, VirtualArray};
    /// let array = VirtualArray::<f32>::new(10_000)?;
    /// array.fill(100..200, 5.0)?;
    /// let found = array.find_where(150.., Field::whole().ge(2.5), 3)?;
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

    /// The index of the first element of a range that meets a condition. Stops soon after it is found.
    ///
    /// # Errors
    /// As [`find_where`](Self::find_where).
    ///
    /// ```
    /// use vmarray::{Field, VirtualArray};
    /// let array = VirtualArray::<u8>::new(10_000)?;
    /// array.set(7000, 5)?;
    /// assert_eq!(array.position_first(.., Field::whole().ne(0))?, Some(7000));
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
    /// use vmarray::{Field, VirtualArray};
    /// let array = VirtualArray::<u8>::new(10_000)?;
    /// assert!(!array.any(.., Field::whole().ne(0))?);
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
    /// use vmarray::{Field, VirtualArray};
    /// let array = VirtualArray::<u8>::new(10_000)?;
    /// assert!(array.all(.., Field::whole().eq(0))?);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn all(&self, range: impl RangeBounds<usize>, condition: impl IntoExpr<T, bool>) -> Result<bool> {
        self.any(range, !condition.into_expr()).map(|any| !any)
    }

    /// The sum of a value over a range. Integers are added exactly.
    ///
    /// Floating point is added in `f64`, beginning at +0, in an order that depends on the devices, the channels and the
    /// range alone: the same call on the same contents gives the same sum. It sees each element once; rounding differs
    /// from that of a sum in ascending order.
    ///
    /// # Errors
    /// As [`find_where`](Self::find_where).
    ///
    /// ```
    /// use vmarray::{Field, VirtualArray};
    /// let array = VirtualArray::<u32>::new(10_000)?;
    /// array.fill(.., u32::MAX)?;
    /// assert_eq!(array.sum(.., Field::whole())?, 10_000 * i128::from(u32::MAX));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn sum<F: Summed>(
        &self,
        range: impl RangeBounds<usize>,
        what: impl IntoFiltered<T, F>,
    ) -> Result<F::Sum> {
        self.reduce(&self.checked_range(range)?, &Total::new(what)?)
    }

    /// The least value over a range; `None` if there is none. NaNs do not count, and a zero comes back as +0.
    ///
    /// # Errors
    /// As [`find_where`](Self::find_where).
    ///
    /// ```
    /// use vmarray::{Field, VirtualArray};
    /// let array = VirtualArray::<i16>::new(10_000)?;
    /// array.set(77, -3)?;
    /// assert_eq!(array.min(.., Field::whole())?, Some(-3));
    /// assert_eq!(array.min(5..5, Field::whole())?, None);
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
    /// use vmarray::{Field, VirtualArray};
    /// let array = VirtualArray::<f64>::new(10_000)?;
    /// array.set(77, f64::NAN)?;
    /// assert_eq!(array.max(.., Field::whole() + 2.0)?, Some(2.0));
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
    /// use vmarray::{Field, VirtualArray};
    /// let array = VirtualArray::<u64>::new(10_000)?;
    /// array.set(77, 8)?;
    /// assert_eq!(array.min_max(.., Field::whole())?, Some((0, 8)));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn min_max<F: Scalar + Number>(
        &self,
        range: impl RangeBounds<usize>,
        what: impl IntoFiltered<T, F>,
    ) -> Result<Option<(F, F)>> {
        let (least, greatest) = self.reduce(&self.checked_range(range)?, &Extremes::both(what)?)?;
        Ok(least.zip(greatest).map(|((_, least), (_, greatest))| (least, greatest)))
    }

    /// The least value over a range and the index of the first element that has it; see [`min`](Self::min).
    ///
    /// # Errors
    /// As [`find_where`](Self::find_where).
    ///
    /// ```
    /// use vmarray::{Field, VirtualArray};
    /// let array = VirtualArray::<i16>::new(10_000)?;
    /// array.fill(77..99, -3)?;
    /// assert_eq!(array.arg_min(.., Field::whole())?, Some((77, -3)));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn arg_min<F: Scalar + Number>(
        &self,
        range: impl RangeBounds<usize>,
        what: impl IntoFiltered<T, F>,
    ) -> Result<Option<(usize, F)>> {
        self.reduce(&self.checked_range(range)?, &Extremes::least(what)?).map(|(least, _)| least)
    }

    /// The greatest value over a range and the index of the first element that has it; see [`min`](Self::min).
    ///
    /// # Errors
    /// As [`find_where`](Self::find_where).
    ///
    /// ```
    /// use vmarray::{Field, VirtualArray};
    /// let array = VirtualArray::<i16>::new(10_000)?;
    /// array.fill(77..99, 3)?;
    /// assert_eq!(array.arg_max(80.., Field::whole())?, Some((80, 3)));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn arg_max<F: Scalar + Number>(
        &self,
        range: impl RangeBounds<usize>,
        what: impl IntoFiltered<T, F>,
    ) -> Result<Option<(usize, F)>> {
        self.reduce(&self.checked_range(range)?, &Extremes::greatest(what)?).map(|(_, greatest)| greatest)
    }

    /// How many elements of a range have each number from 0 to below `bins`; others do not count. A number that is
    /// [cast](crate::expr) to `u32` beforehand is 0 if it was negative, or a NaN: leave those out by `only_where`.
    ///
    /// # Errors
    /// As [`find_where`](Self::find_where), and [`BinCount`](ErrorKind::BinCount): 1 to 4096 are possible.
    ///
    /// ```
    /// use vmarray::{Field, VirtualArray};
    /// let array = VirtualArray::<f32>::new(1000)?;
    /// array.fill(..300, 2.5)?;
    /// let bin = (Field::whole() * 2.0).cast::<u32>();
    /// assert_eq!(array.histogram(.., bin, 6)?, [700, 0, 0, 0, 0, 300]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn histogram(
        &self,
        range: impl RangeBounds<usize>,
        bin: impl IntoFiltered<T, u32>,
        bins: usize,
    ) -> Result<Vec<u64>> {
        self.reduce(&self.checked_range(range)?, &Histogram::new(bin, bins)?)
    }

    /// The indices of the first `limit` elements of a range that meet a condition, ascending. Stops soon after they are
    /// found.
    pub(crate) fn first_where(
        &self,
        range: Range<usize>,
        condition: Expr<T, bool>,
        limit: usize,
    ) -> Result<Vec<usize>> {
        self.search_where(range, condition, limit, false).map(|found| found.indices)
    }

    fn search_where(
        &self,
        range: impl RangeBounds<usize>,
        condition: impl IntoExpr<T, bool>,
        limit: usize,
        count_all: bool,
    ) -> Result<Found> {
        let range = self.checked_range(range)?;
        self.search(&range, &Condition::new(condition)?.what(), limit, count_all)
    }

    /// Asks all channels that have elements of a range.
    fn reduce<R: Reduction>(&self, range: &Range<usize>, reduction: &R) -> Result<R::Whole> {
        if range.is_empty() {
            return Ok(reduction.whole(Vec::new()));
        }
        self.pager().read_settled(&self.touched_pages(range), || self.ask_all_channels(range, reduction))
    }

    fn ask_all_channels<R: Reduction>(&self, range: &Range<usize>, reduction: &R) -> Result<R::Whole> {
        let channels = self.pager().channels();
        let mut asked = Vec::with_capacity(channels.len());
        for (at, channel) in channels.iter().enumerate() {
            let within = self.elements_in_channel(at, range);
            if within.is_empty() {
                continue;
            }
            let slots = channel.slot_memory();
            let stride = size_of::<T>() as u64;
            let start = slots.plus(within.start * stride);
            let sources = [Elements { start, count: within.end - within.start, stride }];
            let answer = channel.take_answer(reduction.answer_bytes() as usize)?;
            let geometry = Geometry {
                first: within.start,
                page_len: self.page_len() as u64,
                channel: at as u64,
                channels: channels.len() as u64,
            };
            let (program, action) = (reduction.program(), reduction.action(answer.at(0)));
            let compute = Compute { program, sources: &sources, geometry, action };
            // Before anything is locked. What goes wrong is told by the computation itself.
            let _ = channel.device().prepare(&compute);
            let ticket = channel.between_writes(|queue| queue.compute(&compute))?;
            asked.push((channel, geometry, ticket, answer));
        }
        let mut parts = Vec::with_capacity(asked.len());
        for (channel, geometry, ticket, memory) in asked {
            channel.wait(ticket)?;
            let answer = Answer { memory: &memory, copied: &channel.counters.bytes_from_device };
            let mut part = R::Part::default();
            reduction.take(&mut part, &answer, &|number| geometry.index(number) as usize);
            parts.push(part);
            channel.put_answer(memory);
        }
        Ok(reduction.whole(parts))
    }
}
