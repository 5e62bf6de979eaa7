//! Searches on the devices.

use std::ops::Range;

use backend_api::expr::{Action, Geometry, Program, Value};
use backend_api::{Compute, Device, Elements, HostBuffer, HostSpan, Queue, Search, Ticket};
use bytemuck::NoUninit;

use crate::array::VirtualArray;
use crate::base::element::{Element, Field};
use crate::base::error::Result;
use crate::base::memory::zeroed_vec;
use crate::base::stats::Counter;
use crate::engine::channel::{Channel, HomeQueues};
use crate::ops::compute::Operand;
use crate::ops::view::{INTERNAL, Shape, Store};

/// How many indices are listed at first; if there are more, the device is asked again.
const FIRST_LIMIT: u64 = 4096;

/// What a search found.
///
/// ```
/// use vmarray::prelude::*;
///
/// let array = VirtualArray::<u16>::new(1000)?;
/// array.fill(10..20, 5)?;
/// let found = array.find_first(.., Field::whole(), &5, 2)?;
/// assert_eq!((found.indices, found.total), (vec![10, 11], 10));
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Found<I = usize> {
    /// The indices of the first matches, ascending; as many as were asked for at most.
    pub indices: Vec<I>,
    /// How many matches there are in all.
    pub total: usize,
}

impl Found {
    /// The same by the indices of a view, for places of its store.
    pub(crate) fn by_index<X: Shape>(self, shape: &X) -> Found<X::Index> {
        let mut indices: Vec<_> =
            self.indices.into_iter().filter_map(|place| shape.index_at(place)).collect();
        if !indices.is_sorted() {
            indices.sort_unstable();
        }
        Found { indices, total: self.total }
    }
}

/// Runs of a region that have at most so many elements between them are searched as one.
const GAP_MAX: usize = if cfg!(test) { 8 } else { 1 << 16 };
/// How long one search of several runs may become.
const JOINED_MAX: usize = if cfg!(test) { 64 } else { 1 << 22 };

/// How many matches are listed to find those that come first, where they are stored in another order.
const LISTED_MAX: usize = if cfg!(test) { 8 } else { 1 << 20 };

/// Searches a region of a store for a value. The total is exact if all are to be counted.
pub(crate) fn search_region<S: Store, X: Shape>(
    store: &S,
    shape: &X,
    of: &Range<X::Index>,
    what: &What<'_>,
    limit: usize,
    count_all: bool,
) -> Result<Found<X::Index>> {
    if limit == 0 || limit == usize::MAX {
        return search_slab(store, shape, of, what, limit, count_all);
    }
    let mut all = Found { indices: Vec::new(), total: 0 };
    for slab in shape.slabs(of) {
        let more = limit - all.indices.len();
        if more == 0 && !count_all {
            break;
        }
        let mut found = search_slab(store, shape, &slab, what, more, count_all)?;
        all.total += found.total;
        if all.indices.is_empty() {
            all.indices = found.indices
        } else {
            all.indices.append(&mut found.indices)
        }
    }
    Ok(all)
}

/// The same for a region whose indices are less than those of all that follow.
fn search_slab<S: Store, X: Shape>(
    store: &S,
    shape: &X,
    of: &Range<X::Index>,
    what: &What<'_>,
    limit: usize,
    count_all: bool,
) -> Result<Found<X::Index>> {
    let (region, is_in_order) = (shape.cut(of), shape.is_in_order(of));
    if !is_in_order && (1..usize::MAX).contains(&limit) {
        // All are listed before it is known which ones come first: of a part that does not have too many.
        let total = search_slab(store, shape, of, what, 0, true)?.total;
        if total > LISTED_MAX
            && let Some([first, second]) = shape.halves(of)
        {
            let mut found = search_slab(store, shape, &first, what, limit, count_all)?;
            if found.indices.len() < limit {
                let more = limit - found.indices.len();
                found.indices.append(&mut search_slab(store, shape, &second, what, more, false)?.indices);
            }
            return Ok(Found { total, ..found });
        }
    }
    let joins = |next: &Range<usize>, range: &Range<usize>| match next.start - range.end {
        0 => true,
        // What is found in gaps has to be listed to be left out.
        gap => limit > 0 && gap <= GAP_MAX && next.end - range.start <= JOINED_MAX,
    };
    let mut all = Found { indices: Vec::new(), total: 0 };
    let mut runs = shape.runs(of).peekable();
    while let Some(mut range) = runs.next() {
        let mut has_gaps = false;
        while let Some(next) = runs.next_if(|next| joins(next, &range)) {
            has_gaps |= next.start > range.end;
            range.end = next.end;
        }
        // What is found in gaps, or in another order, is not all that counts.
        let is_exact = !has_gaps && (is_in_order || limit == 0);
        let wanted = if is_exact { limit - all.indices.len() } else { usize::MAX };
        let found = store.search(&[], &range, what, wanted, count_all || !is_exact, INTERNAL)?;
        let total = found.total;
        let inside = found.indices.into_iter().filter(|place| !has_gaps || region.index_at(*place).is_some());
        let mut indices: Vec<_> = inside.filter_map(|place| shape.index_at(place)).collect();
        all.total += if has_gaps { indices.len() } else { total };
        if limit > 0 {
            if all.indices.is_empty() { all.indices = indices } else { all.indices.append(&mut indices) }
        }
        if is_in_order {
            all.indices.truncate(limit);
            if !count_all && all.indices.len() == limit {
                break;
            }
        }
    }
    if !is_in_order {
        all.indices.sort_unstable();
        all.indices.truncate(limit);
    }
    Ok(all)
}

impl<T: Element, D: Device> VirtualArray<T, D> {
    /// The first `limit` elements of a range that are looked for, by themselves and those of others beside
    /// them. Their number is exact if all are to be counted.
    pub(crate) fn search(
        &self,
        others: &[Operand<'_, D>],
        range: &Range<usize>,
        what: &What<'_>,
        limit: usize,
        count_all: bool,
    ) -> Result<Found> {
        if range.is_empty() {
            return Ok(Found::default());
        }
        if !self.has_beside(others, range) {
            return self.rows(others, range).search(what, limit, count_all);
        }
        self.read_together(others, range, || self.ask_all(others, range, what, limit, count_all))
    }

    /// Asks all channels.
    fn ask_all(
        &self,
        others: &[Operand<'_, D>],
        range: &Range<usize>,
        what: &What<'_>,
        limit: usize,
        count_all: bool,
    ) -> Result<Found> {
        let limit = limit as u64;
        let ask = |number: usize, limit: u64| -> Result<Option<Question<'_, D>>> {
            let within = self.elements_in_channel(number, range);
            if within.is_empty() {
                return Ok(None);
            }
            let (sources, neighbours) = self.beside(others, number, &within);
            let geometry = self.geometry_of(number, within.start);
            let channel = &self.pager().channels()[number];
            let wanted = (limit.min(within.end - within.start), count_all);
            Question::ask(channel, &sources, &neighbours, geometry, what, wanted).map(Some)
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

    /// The elements of a range that are homed in a channel, counted from its first slot on. Slots follow one
    /// another without gaps, so they are one run.
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
#[derive(Debug)]
pub enum What<'a> {
    /// Bytes at an offset.
    Value { offset: u64, value: &'a [u8] },
    /// Elements for which a bool of a program holds.
    Holds { program: &'a Program, predicate: Value },
}

/// How many indices are asked for at first. A search that stops early does not tell how many there are: it is
/// asked once.
pub(crate) fn first_limit(limit: u64, count_all: bool) -> u64 {
    if count_all { limit.min(FIRST_LIMIT) } else { limit }
}

impl<'a> What<'a> {
    pub(crate) fn field<T: Element, F: NoUninit>(field: Field<T, F>, value: &'a F) -> Self {
        Self::Value { offset: field.offset() as u64, value: bytemuck::bytes_of(value) }
    }

    /// Has the device translate what a search for this needs, if it does not know it yet. Called with nothing
    /// held; what goes wrong here is told by the search itself.
    pub(crate) fn prepare<D: Device>(
        &self,
        device: &D,
        sources: &[Elements<'_>],
        geometry: Geometry,
        (limit, count_all): (u64, bool),
        answer: HostSpan<'_>,
    ) {
        if let Self::Holds { program, predicate } = *self {
            let action = Action::Find { predicate, limit, count_all, answer };
            let _ = device.prepare(&Compute { program, sources, geometry, action });
        }
    }

    /// Starts the search of some elements.
    pub(crate) fn ask<D: Device>(
        &self,
        queue: &Queue<D>,
        sources: &[Elements<'_>],
        geometry: Geometry,
        (limit, count_all): (u64, bool),
        answer: HostSpan<'_>,
    ) -> backend_api::Result<Ticket> {
        match *self {
            What::Value { offset, value } => {
                let elements = sources[0];
                queue.search(&Search { elements, field_offset: offset, value, limit, count_all, answer })
            }
            What::Holds { program, predicate } => queue.compute(&Compute {
                program,
                sources,
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
        sources: &[Elements<'_>],
        neighbours: &[&HomeQueues<D>],
        geometry: Geometry,
        what: &What<'_>,
        wanted: (u64, bool),
    ) -> Result<Self> {
        let answer = channel.take_pinned(Search::answer_bytes(wanted.0) as usize)?;
        what.prepare(&**channel.device(), sources, geometry, wanted, answer.at(0));
        let ticket = channel
            .queues
            .between_writes(neighbours, |queue| what.ask(queue, sources, geometry, wanted, answer.at(0)))?;
        Ok(Self { channel, geometry, ticket, answer })
    }

    fn answer(self) -> Result<Listed> {
        self.channel.queues.wait(self.ticket)?;
        let listed = Listed::read(&self.answer, &self.channel.counters.bytes_from_device)?;
        self.channel.put_pinned(self.answer);
        Ok(listed)
    }
}
