//! Searching for values on the devices.

use std::ops::{Range, RangeBounds};

use backend_api::expr::{Action, Geometry, Program, Value};
use backend_api::{Compute, Device, Elements, HostBuffer, HostSpan, Queue, Search, Ticket};
use bytemuck::NoUninit;

use crate::array::VirtualArray;
use crate::base::element::{Element, Field};
use crate::base::error::Result;
use crate::base::memory::zeroed_vec;
use crate::base::stats::Counter;
use crate::engine::channel::Channel;

/// How many indices are listed at first; if there are more, the device is asked again.
const FIRST_LIMIT: u64 = 4096;

/// What a search found.
///
/// ```
/// use vmarray::{Field, VirtualArray};
/// let array = VirtualArray::<u16>::new(1000)?;
/// array.fill(10..20, 5)?;
/// let found = array.find_first(.., Field::whole(), &5, 2)?;
/// assert_eq!((found.indices, found.total), (vec![10, 11], 10));
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Found {
    /// The indices of the first matches, ascending; as many as were asked for at most.
    pub indices: Vec<usize>,
    /// How many matches there are in all.
    pub total: usize,
}

impl<T: Element, D: Device> VirtualArray<T, D> {
    /// The indices of all elements whose field has this value, ascending.
    ///
    /// The search runs on all devices at once, where the data lies: only what was written and is not there yet is
    /// copied to them, and the indices back. It sees every write that returned before it began; of writes that happen
    /// meanwhile it sees any. Values are equal if their bytes are.
    ///
    /// # Errors
    /// [`Device`](crate::ErrorKind::Device); [`WouldDeadlock`](crate::ErrorKind::WouldDeadlock) if the calling thread
    /// holds a page exclusively.
    ///
    /// ```
    /// use vmarray::{Field, VirtualArray};
    /// let array = VirtualArray::<u16>::new(10_000)?;
    /// array.set(7000, 5)?;
    /// array.set(50, 5)?;
    /// assert_eq!(array.find(Field::whole(), &5)?, [50, 7000]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn find<F: NoUninit>(&self, field: Field<T, F>, value: &F) -> Result<Vec<usize>> {
        self.find_first(.., field, value, usize::MAX).map(|found| found.indices)
    }

    /// As [`find`](Self::find), within a range of elements, for the first `limit` matches; and how many there are in
    /// all.
    ///
    /// # Errors
    /// As [`find`](Self::find), and [`RangeOutside`](crate::ErrorKind::RangeOutside),
    /// [`RangeReversed`](crate::ErrorKind::RangeReversed).
    ///
    /// ```
    /// use vmarray::{Field, VirtualArray};
    /// let array = VirtualArray::<u16>::new(10_000)?;
    /// array.fill(100..200, 5)?;
    /// let found = array.find_first(150.., Field::whole(), &5, 3)?;
    /// assert_eq!(found.indices, [150, 151, 152]);
    /// assert_eq!(found.total, 50);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn find_first<F: NoUninit>(
        &self,
        range: impl RangeBounds<usize>,
        field: Field<T, F>,
        value: &F,
        limit: usize,
    ) -> Result<Found> {
        let range = self.checked_range(range)?;
        self.search(&range, &What::field(field, value), limit, true)
    }

    /// The index of the first element of a range whose field has this value. May stop as soon as it is found.
    ///
    /// # Errors
    /// As [`find_first`](Self::find_first).
    ///
    /// ```
    /// use vmarray::{Field, VirtualArray};
    /// let array = VirtualArray::<u16>::new(10_000)?;
    /// array.set(7000, 5)?;
    /// assert_eq!(array.position(.., Field::whole(), &5)?, Some(7000));
    /// assert_eq!(array.position(..7000, Field::whole(), &5)?, None);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn position<F: NoUninit>(
        &self,
        range: impl RangeBounds<usize>,
        field: Field<T, F>,
        value: &F,
    ) -> Result<Option<usize>> {
        let range = self.checked_range(range)?;
        let found = self.search(&range, &What::field(field, value), 1, false)?;
        Ok(found.indices.first().copied())
    }

    /// How many elements of a range have a field of this value.
    ///
    /// # Errors
    /// As [`find_first`](Self::find_first).
    ///
    /// ```
    /// use vmarray::{Field, VirtualArray};
    /// let array = VirtualArray::<u16>::new(10_000)?;
    /// assert_eq!(array.count(10.., Field::whole(), &0)?, 9990);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn count<F: NoUninit>(
        &self,
        range: impl RangeBounds<usize>,
        field: Field<T, F>,
        value: &F,
    ) -> Result<usize> {
        let range = self.checked_range(range)?;
        self.search(&range, &What::field(field, value), 0, true).map(|found| found.total)
    }

    pub(crate) fn search(
        &self,
        range: &Range<usize>,
        what: &What<'_>,
        limit: usize,
        count_all: bool,
    ) -> Result<Found> {
        if range.is_empty() {
            return Ok(Found::default());
        }
        self.pager().read_settled(&self.touched_pages(range), || self.ask_all(range, what, limit, count_all))
    }

    /// Asks all channels.
    fn ask_all(&self, range: &Range<usize>, what: &What<'_>, limit: usize, count_all: bool) -> Result<Found> {
        let limit = limit as u64;
        let channels = self.pager().channels().len() as u64;
        let ask = |channel: usize, limit: u64| -> Result<Option<Question<'_, D>>> {
            let within = self.elements_in_channel(channel, range);
            if within.is_empty() {
                return Ok(None);
            }
            let page_len = self.page_len() as u64;
            let geometry = Geometry { first: within.start, page_len, channel: channel as u64, channels };
            let channel = &self.pager().channels()[channel];
            Question::ask(channel, within, (size_of::<T>(), geometry), what, limit, count_all).map(Some)
        };
        let first_limit = first_limit(limit, count_all);
        // All channels are asked before any is waited for.
        let questions = (0..self.pager().channels().len())
            .map(|channel| ask(channel, first_limit))
            .collect::<Result<Vec<_>>>()?;
        let mut found = Found::default();
        for (channel, question) in questions.into_iter().enumerate() {
            let Some(question) = question else { continue };
            let geometry = question.geometry;
            let mut answer = question.answer()?;
            // Others may write meanwhile, so that there can be more matches each time.
            while (answer.numbers.len() as u64) < answer.total.min(limit) {
                let Some(question) = ask(channel, answer.total.saturating_add(answer.total / 8).min(limit))?
                else {
                    break;
                };
                answer = question.answer()?;
            }
            found.total += answer.total as usize;
            found.indices.extend(answer.numbers.iter().map(|&number| geometry.index(number) as usize));
        }
        found.indices.sort_unstable();
        found.indices.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        Ok(found)
    }

    /// The elements of a range that are homed in a channel, counted from its first slot on. Slots follow one another
    /// without gaps, so they are one run.
    pub(crate) fn elements_in_channel(&self, channel: usize, range: &Range<usize>) -> Range<u64> {
        let (count, page_len) = (self.pager().channels().len(), self.page_len());
        // How many elements of the channel come before an element of the array.
        let before = |index: usize| -> u64 {
            let (page, at) = (index / page_len, index % page_len);
            let slots = (page + count - 1 - channel) / count;
            let within = if page % count == channel { at } else { 0 };
            (slots * page_len + within) as u64
        };
        before(range.start)..before(range.end)
    }

    pub(crate) fn index_in_channel(&self, channel: usize, at: u64) -> usize {
        let (slot, within) = (at as usize / self.page_len(), at as usize % self.page_len());
        (slot * self.pager().channels().len() + channel) * self.page_len() + within
    }
}

/// A search of one channel, under way.
struct Question<'a, D: Device> {
    channel: &'a Channel<D>,
    geometry: Geometry,
    ticket: Ticket,
    answer: HostBuffer<D>,
}

/// What is looked for.
pub(crate) enum What<'a> {
    /// Bytes at an offset.
    Value { offset: u64, value: &'a [u8] },
    /// Elements for which a bool of a program holds.
    Holds { program: &'a Program, predicate: Value },
}

/// How many indices are asked for at first. A search that stops early does not tell how many there are: it is asked
/// once.
pub(crate) fn first_limit(limit: u64, count_all: bool) -> u64 {
    if count_all { limit.min(FIRST_LIMIT) } else { limit }
}

impl<'a> What<'a> {
    pub(crate) fn field<T: Element, F: NoUninit>(field: Field<T, F>, value: &'a F) -> Self {
        Self::Value { offset: field.offset() as u64, value: bytemuck::bytes_of(value) }
    }

    /// Has the device translate what a search for this needs, if it does not know it yet. Called with nothing held;
    /// what goes wrong here is told by the search itself.
    pub(crate) fn prepare<D: Device>(
        &self,
        device: &D,
        elements: Elements<'_>,
        geometry: Geometry,
        (limit, count_all): (u64, bool),
        answer: HostSpan<'_>,
    ) {
        if let Self::Holds { program, predicate } = *self {
            let action = Action::Find { predicate, limit, count_all, answer };
            let _ = device.prepare(&Compute { program, sources: &[elements], geometry, action });
        }
    }

    /// Starts the search of some elements.
    pub(crate) fn ask<D: Device>(
        &self,
        queue: &Queue<D>,
        elements: Elements<'_>,
        geometry: Geometry,
        (limit, count_all): (u64, bool),
        answer: HostSpan<'_>,
    ) -> backend_api::Result<Ticket> {
        match *self {
            What::Value { offset, value } => {
                queue.search(&Search { elements, field_offset: offset, value, limit, count_all, answer })
            }
            What::Holds { program, predicate } => queue.compute(&Compute {
                program,
                sources: &[elements],
                geometry,
                action: Action::Find { predicate, limit, count_all, answer },
            }),
        }
    }
}

/// What a search has answered.
pub(crate) struct Listed {
    pub total: u64,
    /// The numbers of elements, counted from the first that was searched.
    pub numbers: Vec<u64>,
}

impl Listed {
    /// Reads the answer of a search that is done.
    pub(crate) fn read<D: Device>(answer: &HostBuffer<D>, copied: &Counter) -> Result<Self> {
        let mut header = [0_u64; 2];
        answer.read(0, bytemuck::cast_slice_mut(&mut header));
        let [total, listed] = header;
        let mut numbers = zeroed_vec::<u64>(listed as usize)?;
        answer.read(Search::HEADER_BYTES as usize, bytemuck::cast_slice_mut(&mut numbers));
        copied.add(Search::HEADER_BYTES + listed * 8);
        Ok(Self { total, numbers })
    }
}

impl<'a, D: Device> Question<'a, D> {
    fn ask(
        channel: &'a Channel<D>,
        within: Range<u64>,
        (stride, geometry): (usize, Geometry),
        what: &What<'_>,
        limit: u64,
        count_all: bool,
    ) -> Result<Self> {
        let limit = limit.min(within.end - within.start);
        let answer = channel.take_answer(Search::answer_bytes(limit) as usize)?;
        let slots = channel.slot_memory();
        let start = slots.plus(within.start * stride as u64);
        let elements = Elements { start, count: within.end - within.start, stride: stride as u64 };
        let wanted = (limit, count_all);
        what.prepare(&**channel.device(), elements, geometry, wanted, answer.at(0));
        let ticket =
            channel.between_writes(|queue| what.ask(queue, elements, geometry, wanted, answer.at(0)))?;
        Ok(Self { channel, geometry, ticket, answer })
    }

    fn answer(self) -> Result<Listed> {
        self.channel.wait(self.ticket)?;
        let listed = Listed::read(&self.answer, &self.channel.counters.bytes_from_device)?;
        self.channel.put_answer(self.answer);
        Ok(listed)
    }
}
