//! Elements that meet a condition, in order and in bounded memory.

use std::collections::VecDeque;
use std::fmt;
use std::iter::FusedIterator;
use std::ops::{Range, RangeBounds};

use backend_api::{Device, Elements, Gather};

use super::Condition;
use crate::array::VirtualArray;
use crate::base::element::Element;
use crate::base::error::Result;
use crate::ops::expr::IntoExpr;
use crate::ops::find::{Found, What};

/// So many elements are fetched at a time, at most.
const BATCH: usize = 16 << 10;
/// And so many bytes.
const BATCH_BYTES: usize = 4 << 20;

/// How many elements are fetched at a time.
pub(crate) fn batch_len<T: Element>() -> usize {
    (BATCH_BYTES / size_of::<T>()).clamp(1, BATCH)
}

impl<T: Element, D: Device> VirtualArray<T, D> {
    /// The elements of a range that meet a condition, with their indices, ascending.
    ///
    /// They are found and collected on the devices, some thousands at a time: nothing else is copied, and memory is
    /// bounded, however many there are. An element that is written to meanwhile may come with its new value.
    ///
    /// # Errors
    /// [`RangeOutside`](crate::ErrorKind::RangeOutside), [`RangeReversed`](crate::ErrorKind::RangeReversed),
    /// [`ExpressionTooLong`](crate::ErrorKind::ExpressionTooLong). The iterator gives an error of a device once and
    /// ends.
    ///
    /// ```
    /// use vmarray::{Field, VirtualArray};
    /// let array = VirtualArray::<[u32; 2]>::new(10_000)?;
    /// array.set(7, [1, 100])?;
    /// array.set(9000, [2, 200])?;
    /// let first = Field::<[u32; 2], [u32; 2]>::whole().nth::<0>();
    /// let found = array.select_where(.., first.gt(0))?.collect::<Result<Vec<_>, _>>()?;
    /// assert_eq!(found, [(7, [1, 100]), (9000, [2, 200])]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn select_where(
        &self,
        range: impl RangeBounds<usize>,
        condition: impl IntoExpr<T, bool>,
    ) -> Result<Selected<'_, T, D>> {
        Ok(Selected::new(self, self.checked_range(range)?, Condition::new(condition)?))
    }
}

/// What elements are selected from: an array or a source.
pub(crate) trait Searched<T, D: Device>: Sync {
    /// The first `limit` elements of a range that are looked for. Their number is exact if all are to be counted.
    fn search(&self, range: &Range<usize>, what: &What<'_>, limit: usize, count_all: bool) -> Result<Found>;

    /// Elements by index, collected where they are. Indices ascend.
    fn collect_elements(&self, indices: &[usize]) -> Result<Vec<T>>;
}

impl<T: Element, D: Device> Searched<T, D> for VirtualArray<T, D> {
    fn search(&self, range: &Range<usize>, what: &What<'_>, limit: usize, count_all: bool) -> Result<Found> {
        self.search(range, what, limit, count_all)
    }

    fn collect_elements(&self, indices: &[usize]) -> Result<Vec<T>> {
        let (Some(first), Some(last)) = (indices.first(), indices.last()) else { return Ok(Vec::new()) };
        let pages = self.touched_pages(&(*first..*last + 1));
        self.pager().read_settled(&pages, || self.collect_settled(indices))
    }
}

impl<T: Element, D: Device> VirtualArray<T, D> {
    /// Elements by index, from home slots that are up to date.
    fn collect_settled(&self, indices: &[usize]) -> Result<Vec<T>> {
        let count = self.pager().channels().len();
        let mut values = vec![T::zeroed(); indices.len()];
        let mut by_channel: Vec<Vec<usize>> = vec![Vec::new(); count];
        for (place, index) in indices.iter().enumerate() {
            by_channel[index / self.page_len() % count].push(place);
        }
        let mut under_way = Vec::new();
        for (channel, places) in
            self.pager().channels().iter().zip(&by_channel).filter(|(_, p)| !p.is_empty())
        {
            let numbers: Vec<u64> = places
                .iter()
                .map(|place| {
                    let (page, at) = (indices[*place] / self.page_len(), indices[*place] % self.page_len());
                    (page / count * self.page_len() + at) as u64
                })
                .collect();
            let (list_bytes, bytes) = (numbers.len() * 8, places.len() * size_of::<T>());
            let memory = channel.take_answer(list_bytes + bytes)?;
            memory.write(0, bytemuck::cast_slice(&numbers));
            let slots = channel.slot_memory();
            let stride = size_of::<T>() as u64;
            let gather = Gather {
                elements: Elements { start: slots, count: channel.slot_bytes() / stride, stride },
                indices: memory.at(0),
                count: numbers.len() as u64,
                values: memory.at(list_bytes as u64),
            };
            let ticket = channel.between_writes(|queue| queue.gather(&gather))?;
            under_way.push((channel, ticket, memory, list_bytes, places));
        }
        for (channel, ticket, memory, list_bytes, places) in under_way {
            channel.wait(ticket)?;
            let mut part = vec![T::zeroed(); places.len()];
            let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut part);
            memory.read(list_bytes, bytes);
            channel.counters.bytes_from_device.add(bytes.len() as u64);
            places.iter().zip(part).for_each(|(place, value)| values[*place] = value);
            channel.put_answer(memory);
        }
        Ok(values)
    }
}

/// Elements that meet a condition; see [`VirtualArray::select_where`], and that of [`Source`](crate::Source).
///
/// ```
/// use vmarray::{Field, VirtualArray, expr::index};
/// let array = VirtualArray::<u32>::new(100_000)?;
/// let even = (index() % 2).eq(0);
/// assert_eq!(array.select_where(.., even)?.count(), 50_000);
/// # Ok::<(), vmarray::Error>(())
/// ```
pub struct Selected<'a, T: Element, D: Device> {
    from: &'a dyn Searched<T, D>,
    /// The element whose index is given out as 0.
    start: usize,
    /// What was not looked at yet.
    rest: Range<usize>,
    condition: Condition,
    found: VecDeque<(usize, T)>,
}

impl<'a, T: Element, D: Device> Selected<'a, T, D> {
    pub(crate) fn new(from: &'a dyn Searched<T, D>, range: Range<usize>, condition: Condition) -> Self {
        Self { from, start: 0, rest: range, condition, found: VecDeque::new() }
    }

    /// The same with indices that count from an element at or before the range.
    pub(crate) fn counted_from(self, start: usize) -> Self {
        Self { start, ..self }
    }

    fn fetch(&mut self) -> Result<()> {
        let limit = batch_len::<T>();
        let indices = self.from.search(&self.rest, &self.condition.what(), limit, false)?.indices;
        self.rest.start = match indices.last() {
            Some(last) if indices.len() == limit => last + 1,
            _ => self.rest.end,
        };
        let values = self.from.collect_elements(&indices)?;
        self.found = indices.into_iter().map(|index| index - self.start).zip(values).collect();
        Ok(())
    }
}

impl<T: Element, D: Device> Iterator for Selected<'_, T, D> {
    type Item = Result<(usize, T)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.found.is_empty()
            && !self.rest.is_empty()
            && let Err(error) = self.fetch()
        {
            self.rest.start = self.rest.end;
            return Some(Err(error));
        }
        self.found.pop_front().map(Ok)
    }
}

impl<T: Element, D: Device> FusedIterator for Selected<'_, T, D> {}

impl<T: Element, D: Device> fmt::Debug for Selected<'_, T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Selected")
            .field("condition", &self.condition)
            .field("rest", &self.rest)
            .field("found", &self.found.len())
            .finish_non_exhaustive()
    }
}
