//! Operations on the devices, by [expressions](crate::expr): elements are worked on where they lie.
//!
//! All channels of all devices work at once. What was written and is not on its device yet is copied there first, and
//! answers come back; nothing else moves. Expressions are translated for a device when it meets them for the first
//! time, which may take some milliseconds; those that differ in their numbers alone count as one.
//!
//! An operation sees every write that returned before it began; of writes that happen meanwhile it sees any.

mod joined;
mod select;
mod store;

use std::ops::{Range, RangeBounds};

use backend_api::expr::{Action, Geometry, Number, Partial, Program};
use backend_api::{Compute, Device, DeviceSpan, Elements, HostBuffer, HostSpan, Ticket};

use crate::array::VirtualArray;
use crate::channel::Channel;
use crate::element::Element;
use crate::error::{ErrorKind, Result};
use crate::expr::{Expr, IntoExpr, IntoFiltered, Lowering, Scalar, Summed};
use crate::find::{Found, What};

pub use joined::{Joinable, Joined, Row};
pub use select::Selected;
pub(crate) use select::batch_len;

/// An extreme by its key, and the index of the first element that has it.
type Extreme = Option<(u64, usize)>;

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
        let range = self.checked_range(range)?;
        let mut lowering = Lowering::default();
        let (value, filter) = lowering.filtered(&what.into_filtered());
        let program = lowering.program()?;
        let action = |answer| Action::Sum { value, filter, answer };
        let mut partials = Vec::new();
        self.reduce(&range, &program, Compute::partials_bytes(), &action, |_, asked| {
            partials.extend(asked.partials());
        })?;
        Ok(F::sum(&partials))
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
        let (least, greatest) = self.extremes(range, what, (true, true))?;
        let value = |(key, _): (u64, usize)| F::from_bits(<F as Scalar>::TYPE.from_key(key));
        Ok(least.map(value).zip(greatest.map(value)))
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
        let (least, _) = self.extremes(range, what, (true, false))?;
        Ok(least.map(|(key, index)| (index, F::from_bits(<F as Scalar>::TYPE.from_key(key)))))
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
        let (_, greatest) = self.extremes(range, what, (false, true))?;
        Ok(greatest.map(|(key, index)| (index, F::from_bits(<F as Scalar>::TYPE.from_key(key)))))
    }

    /// How many elements of a range have each number from 0 to below `bins`; others do not count.
    ///
    /// # Errors
    /// As [`find_where`](Self::find_where), and [`TooManyBins`](ErrorKind::TooManyBins): 1 to 4096 are possible.
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
        let range = self.checked_range(range)?;
        let most = Compute::BINS_MAX as usize;
        if !(1..=most).contains(&bins) {
            return Err(ErrorKind::TooManyBins { bins, most }.into());
        }
        let mut lowering = Lowering::default();
        let (value, filter) = lowering.filtered(&bin.into_filtered());
        let program = lowering.program()?;
        let action = |answer| Action::Histogram { value, filter, bins: bins as u32, answer };
        let mut counts = vec![0; bins];
        self.reduce(&range, &program, bins as u64 * 8, &action, |_, asked| {
            counts.iter_mut().zip(asked.words(0, bins)).for_each(|(sum, more)| *sum += more);
        })?;
        Ok(counts)
    }

    fn extremes<F: Scalar + Number>(
        &self,
        range: impl RangeBounds<usize>,
        what: impl IntoFiltered<T, F>,
        (least, greatest): (bool, bool),
    ) -> Result<(Extreme, Extreme)> {
        let range = self.checked_range(range)?;
        let mut lowering = Lowering::default();
        let (value, filter) = lowering.filtered(&what.into_filtered());
        let program = lowering.program()?;
        let action = |answer| Action::Extremes { value, filter, least, greatest, answer };
        let (mut lowest, mut highest): (Extreme, Extreme) = (None, None);
        self.reduce(&range, &program, Compute::partials_bytes(), &action, |channel, asked| {
            let partials = asked.partials();
            let place = |(key, number)| (key, self.index_in_channel(channel, asked.first + number));
            // What is said of an extreme that was not asked for is anything, so it is not even looked at.
            if least {
                lowest = lowest.into_iter().chain(Partial::least(&partials).map(place)).min();
            }
            if greatest {
                let others = highest.into_iter().chain(Partial::greatest(&partials).map(place));
                highest = others.max_by_key(|&(key, index)| (key, std::cmp::Reverse(index)));
            }
        })?;
        Ok((lowest, highest))
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
        let (program, predicate) = condition.into_expr().lowered()?;
        self.search(&range, &What::Holds { program: &program, predicate }, limit, count_all)
    }

    /// Asks all channels that have elements of a range, and has `read` look at the answers in the order of channels.
    fn reduce(
        &self,
        range: &Range<usize>,
        program: &Program,
        answer_bytes: u64,
        action: &dyn Fn(HostSpan) -> Action<'static>,
        mut read: impl FnMut(usize, &Asked<'_, D>),
    ) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        self.pager().settle(&self.touched_pages(range))?;
        let channels = self.pager().channels();
        let mut asked = Vec::with_capacity(channels.len());
        for (at, channel) in channels.iter().enumerate() {
            let within = self.elements_in_channel(at, range);
            if within.is_empty() {
                continue;
            }
            let slots = channel.slot_memory();
            let stride = size_of::<T>() as u64;
            let start = DeviceSpan::new(slots.buffer, slots.offset + within.start * stride);
            let sources = [Elements { start, count: within.end - within.start, stride }];
            let answer = channel.take_answer(answer_bytes as usize)?;
            let geometry = self.geometry(at, within.start);
            let action = action(answer.at(0));
            let compute = Compute { program, sources: &sources, geometry, action };
            let ticket = channel.between_writes(|queue| queue.compute(&compute))?;
            asked.push((at, Asked { channel, first: within.start, ticket, answer }));
        }
        for (at, asked) in asked {
            asked.channel.device().wait(asked.ticket)?;
            read(at, &asked);
            asked.channel.put_answer(asked.answer);
        }
        Ok(())
    }

    fn geometry(&self, channel: usize, first: u64) -> Geometry {
        let channels = self.pager().channels().len() as u64;
        Geometry { first, page_len: self.page_len() as u64, channel: channel as u64, channels }
    }
}

/// An operation of one channel, under way.
struct Asked<'a, D: Device> {
    channel: &'a Channel<D>,
    /// The first element, counted in the channel.
    first: u64,
    ticket: Ticket,
    answer: HostBuffer<D>,
}

impl<D: Device> Asked<'_, D> {
    fn words(&self, from: usize, count: usize) -> Vec<u64> {
        let mut words = vec![0_u64; count];
        self.answer.read(from * 8, bytemuck::cast_slice_mut(&mut words));
        self.channel.counters.bytes_from_device.add(count as u64 * 8);
        words
    }

    fn partials(&self) -> Vec<Partial> {
        let number = self.words(0, 1)[0].min(Compute::PARTIALS_MAX);
        let words = self.words(0, 1 + number as usize * (Partial::BYTES as usize / 8));
        Partial::list(&words)
    }
}
