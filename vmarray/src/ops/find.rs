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

/// The number of matches that the first answer has room for, one for each [`ELEMENTS_EACH`] elements. If
/// there are more matches, the device searches again.
const FIRST_LIMIT: RangeInclusive<u64> = 4096..=1 << 19;
const ELEMENTS_EACH: u64 = 64;
/// The number of indices for which a search reserves memory in advance: 1 GiB of address space, without
/// physical pages until they are written.
const AHEAD_MAX: u64 = 1 << 27;
/// The number of words of an answer that are read at a time.
const PIECE: usize = 4096;

/// The result of a search.
///
/// ```
/// use vmarray::prelude::*;
/// let array = VirtualArray::<u16>::new(1000)?;
/// array.fill(10..20, 5)?;
/// let found = array.find_first(.., Field::whole(), &5, 2)?;
/// assert_eq!((found.indices, found.total), (vec![10, 11], 10));
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Found<I = usize> {
    /// The indices of the first matches, ascending, at most as many as requested.
    pub indices: Vec<I>,
    /// The number of all matches.
    pub total: usize,
}

impl<I> Found<I> {
    /// Appends the result of a later part.
    fn append(&mut self, mut more: Self) {
        self.total += more.total;
        // Usually the list is still empty, and nothing is copied.
        if self.indices.is_empty() {
            self.indices = more.indices;
        } else {
            self.indices.append(&mut more.indices);
        }
    }
}

impl Found {
    /// Converts places of a view's store to indices of the view.
    pub(crate) fn by_index<X: Shape>(self, shape: &X) -> Found<X::Index> {
        Found { indices: shape.indices_at(self.indices), total: self.total }
    }
}

/// The greatest number of elements between two runs of a region that are searched as one.
const GAP_MAX: usize = if cfg!(test) { 8 } else { 1 << 16 };
/// The greatest length of a search that joins several runs.
const JOINED_MAX: usize = if cfg!(test) { 64 } else { 1 << 22 };

/// The number of matches listed in order to find the first ones, if the store has another order than the
/// view.
const ORDERED_MAX: usize = if cfg!(test) { 8 } else { 1 << 20 };

/// Searches a region of a store for a value. If all are to be counted, the total is exact.
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

/// Like [`search_region`], for a region whose indices are all less than the indices of later regions.
fn search_slab<S: Store, X: Shape>(
    store: &S,
    shape: &X,
    of: &Range<X::Index>,
    seek: Seek<'_>,
) -> Result<Found<X::Index>> {
    let Seek { what, limit, count_all } = seek;
    let (region, is_in_order) = (shape.cut(of), shape.is_in_order(of));
    if !is_in_order && (1..usize::MAX).contains(&limit) {
        // The search must list all matches before it can determine the first ones. It therefore splits a
        // region with too many matches.
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
        // Matches in gaps must be listed, so that they can be excluded.
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
        // Matches in gaps must be excluded, and matches in another order must be sorted: all are listed.
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

/// The condition of a search.
#[derive(Clone, Copy, Debug)]
pub enum What<'a> {
    /// Elements with these bytes at this offset.
    Value { offset: u64, value: &'a [u8] },
    /// Elements for which this value of the program, a bool, is true.
    Holds { program: &'a Program, predicate: Value },
}

impl<'a> What<'a> {
    pub(crate) fn field<T: Element, F: NoUninit>(field: Field<T, F>, value: &'a F) -> Self {
        Self::Value { offset: field.offset() as u64, value: bytemuck::bytes_of(value) }
    }
}

/// A search for the first `limit` matches, as a question to devices. If `count_all` is set, the total is
/// exact.
#[derive(Clone, Copy, Debug)]
pub struct Seek<'a> {
    pub(crate) what: What<'a>,
    pub(crate) limit: usize,
    pub(crate) count_all: bool,
}

impl Seek<'_> {
    /// Returns true if the search lists all matches, so that the device need not count them.
    fn lists_all(&self) -> bool {
        self.limit > isize::MAX as usize
    }
}

impl Question for Seek<'_> {
    type Part = Found;
    type Whole = Found;

    fn room(&self, count: u64) -> u64 {
        // A search that stops early cannot return the total, so the device is asked only once.
        let first = (count / ELEMENTS_EACH).clamp(*FIRST_LIMIT.start(), *FIRST_LIMIT.end());
        let most = if self.count_all || self.lists_all() { first } else { u64::MAX };
        most.min(self.limit as u64).min(count)
    }

    fn answer_bytes(&self, room: u64) -> u64 {
        Search::answer_bytes(room)
    }

    fn kernel<'a>(&'a self, run: Run<'a>, limit: u64, answer: HostSpan<'a>) -> Kernel<'a> {
        let Run { columns: sources, geometry } = run;
        // A search for all matches continues after a full list, so the device can stop when the list is full.
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
            // Other threads may write concurrently, so each search can have more matches than the last.
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
        // The rest is assumed to have matches at the same density as the part before it.
        let more = (u128::from(rest) * listed as u128).div_ceil(u128::from(from.max(1))) as u64;
        // Room for them is an optimisation, so a failure to reserve it is no error.
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
