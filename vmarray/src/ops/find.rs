//! Searches on the devices.

use std::ops::{Range, RangeInclusive};

use backend_api::expr::{Action, Program, Value};
use backend_api::{Compute, HostSpan, Search};
use bytemuck::NoUninit;

use crate::base::element::{Element, Field};
use crate::base::error::Result;
use crate::base::memory::{reserve_large, zeroed_vec};
use crate::ops::executor::{Answer, Kernel, Question, Run, TakenAnswer};
use crate::ops::view::{INTERNAL, Shape, Store};

/// How many indices are listed at first, one for so many elements; if there are more, the device is asked
/// again.
const FIRST_LIMIT: RangeInclusive<u64> = 4096..=1 << 19;
const ELEMENTS_EACH: u64 = 64;
/// For so many indices there is room before they are found: 1 GiB, which costs nothing until it is touched.
const AHEAD_MAX: u64 = 1 << 27;
/// How many words of an answer are taken at a time.
const PIECE: usize = 4096;

/// What a search found.
///
/// ```
/// # use vmarray::prelude::*;
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

impl<I> Found<I> {
    /// Adds what was found elsewhere.
    fn append(&mut self, mut more: Self) {
        self.total += more.total;
        // As a rule there is nothing yet, and nothing to copy.
        if self.indices.is_empty() {
            self.indices = more.indices;
        } else {
            self.indices.append(&mut more.indices);
        }
    }
}

impl Found {
    /// The same by the indices of a view, for places of its store.
    pub(crate) fn by_index<X: Shape>(self, shape: &X) -> Found<X::Index> {
        Found { indices: shape.indices_at(self.indices), total: self.total }
    }
}

/// Runs of a region that have at most so many elements between them are searched as one.
const GAP_MAX: usize = if cfg!(test) { 8 } else { 1 << 16 };
/// How long one search of several runs may become.
const JOINED_MAX: usize = if cfg!(test) { 64 } else { 1 << 22 };

/// How many matches are listed to find those that come first, where they are stored in another order.
const ORDERED_MAX: usize = if cfg!(test) { 8 } else { 1 << 20 };

/// Searches a region of a store for a value. The total is exact if all are to be counted.
pub(crate) fn search_region<S: Store, X: Shape>(
    store: &S,
    shape: &X,
    of: &Range<X::Index>,
    seek: Seek<'_>,
) -> Result<Found<X::Index>> {
    let Seek { what, limit, count_all } = seek;
    if limit == 0 || limit == usize::MAX {
        return search_slab(store, shape, of, seek);
    }
    let mut all = Found { indices: Vec::new(), total: 0 };
    for slab in shape.slabs(of) {
        let more = limit - all.indices.len();
        if more == 0 && !count_all {
            break;
        }
        all.append(search_slab(store, shape, &slab, Seek { what, limit: more, count_all })?);
    }
    Ok(all)
}

/// The same for a region whose indices are less than those of all that follow.
fn search_slab<S: Store, X: Shape>(
    store: &S,
    shape: &X,
    of: &Range<X::Index>,
    seek: Seek<'_>,
) -> Result<Found<X::Index>> {
    let Seek { what, limit, count_all } = seek;
    let (region, is_in_order) = (shape.cut(of), shape.is_in_order(of));
    if !is_in_order && (1..usize::MAX).contains(&limit) {
        // All are listed before it is known which ones come first: of a part that does not have too many.
        let total = search_slab(store, shape, of, Seek { what, limit: 0, count_all: true })?.total;
        if total > ORDERED_MAX
            && let Some([first, second]) = shape.halves(of)
        {
            let mut found = search_slab(store, shape, &first, seek)?;
            if found.indices.len() < limit {
                let limit = limit - found.indices.len();
                found.append(search_slab(store, shape, &second, Seek { what, limit, count_all: false })?);
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
        let seek = Seek { what, limit: wanted, count_all: count_all || !is_exact };
        let Found { indices, total } = store.ask(&[], &range, &seek, INTERNAL)?;
        let mut places = indices;
        if has_gaps {
            places.retain(|place| region.index_at(*place).is_some());
        }
        let indices = shape.indices_at(places);
        all.append(Found { total: if has_gaps { indices.len() } else { total }, indices });
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

/// What is looked for.
#[derive(Clone, Copy, Debug)]
pub enum What<'a> {
    /// Bytes at an offset.
    Value { offset: u64, value: &'a [u8] },
    /// Elements for which a bool of a program holds.
    Holds { program: &'a Program, predicate: Value },
}

impl<'a> What<'a> {
    pub(crate) fn field<T: Element, F: NoUninit>(field: Field<T, F>, value: &'a F) -> Self {
        Self::Value { offset: field.offset() as u64, value: bytemuck::bytes_of(value) }
    }
}

/// The question for the first `limit` elements that are looked for. Their number is exact if all are to be
/// counted.
#[derive(Clone, Copy, Debug)]
pub struct Seek<'a> {
    pub(crate) what: What<'a>,
    pub(crate) limit: usize,
    pub(crate) count_all: bool,
}

impl Seek<'_> {
    /// Whether all that there are are listed: then nothing has to be counted before.
    fn lists_all(&self) -> bool {
        self.limit > isize::MAX as usize
    }
}

impl Question for Seek<'_> {
    type Part = Found;
    type Whole = Found;

    fn room(&self, count: u64) -> u64 {
        // A search that stops early does not tell how many there are: it is asked once.
        let first = (count / ELEMENTS_EACH).clamp(*FIRST_LIMIT.start(), *FIRST_LIMIT.end());
        let most = if self.count_all || self.lists_all() { first } else { u64::MAX };
        most.min(self.limit as u64).min(count)
    }

    fn answer_bytes(&self, room: u64) -> u64 {
        Search::answer_bytes(room)
    }

    fn kernel<'a>(&'a self, run: Run<'a>, limit: u64, answer: HostSpan<'a>) -> Kernel<'a> {
        let Run { columns: sources, geometry } = run;
        // Where all are listed, a list that is full is gone on from: the device need not read further.
        let count_all = self.count_all && !self.lists_all();
        match self.what {
            What::Value { offset: field_offset, value } => {
                let elements = sources[0];
                Kernel::Search(Search { elements, field_offset, value, limit, count_all, answer })
            }
            What::Holds { program, predicate } => {
                let action = Action::Find { predicate, limit, count_all, answer };
                Kernel::Compute(Compute { program, sources, geometry, action })
            }
        }
    }

    fn take(&self, found: &mut Found, answer: &Answer<'_>) -> Result<TakenAnswer> {
        const HEADER: usize = Search::HEADER_BYTES as usize / 8;
        let header = answer.words(0, HEADER)?;
        let (matches, listed) = (header[0], header[1]);
        let wanted = matches.min((self.limit - found.indices.len()) as u64);
        if self.count_all && !self.lists_all() && listed < wanted {
            // Where others may write meanwhile there can be more matches each time.
            let room = matches.saturating_add(matches / 8).min(self.limit as u64).min(answer.count());
            reserve_large(&mut found.indices, wanted as usize)?;
            return Ok(TakenAnswer::TooShort { from: 0, room });
        }
        let listed = listed.min(wanted) as usize;
        let (mut numbers, mut from) = (zeroed_vec(PIECE.min(listed))?, answer.count());
        if self.lists_all() && listed as u64 == answer.room && listed > 0 {
            answer.read_words(HEADER + listed - 1, &mut numbers[..1]);
            from = numbers[0] + 1;
        }
        let rest = answer.count() - from;
        // As many in what is left as in what comes before it.
        let more = (u128::from(rest) * listed as u128).div_ceil(u128::from(from.max(1))) as u64;
        // Room for them is worth having, but no reason to fail.
        if reserve_large(&mut found.indices, listed + more.min(AHEAD_MAX) as usize).is_err() {
            reserve_large(&mut found.indices, listed)?;
        }
        for first in (0..listed).step_by(PIECE) {
            let numbers = &mut numbers[..PIECE.min(listed - first)];
            answer.read_words(HEADER + first, numbers);
            answer.append_indices(numbers, &mut found.indices);
        }
        found.total += if self.lists_all() { listed } else { matches as usize };
        if rest > 0 {
            return Ok(TakenAnswer::TooShort { from, room: more });
        }
        let is_enough = !self.count_all && found.indices.len() >= self.limit;
        Ok(if is_enough { TakenAnswer::Enough } else { TakenAnswer::Yes })
    }

    fn whole(&self, parts: Vec<Found>) -> Found {
        let mut found = Found::default();
        let is_one = parts.iter().filter(|part| !part.indices.is_empty()).count() <= 1;
        parts.into_iter().for_each(|part| found.append(part));
        if !is_one {
            found.indices.sort_unstable();
        }
        found.indices.truncate(self.limit);
        found
    }
}
