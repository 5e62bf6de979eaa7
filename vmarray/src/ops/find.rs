//! Searches of elements in place: devices compare the elements in their memory, and list matches.

use std::ops::RangeInclusive;

use backend_api::expr::{Action, Program, Value};
use backend_api::{Compute, HostSpan, Search};
use bytemuck::NoUninit;

use crate::base::element::{Element, Field};
use crate::base::error::Result;
use crate::base::memory::{reserve_large, zeroed_vec};
use crate::ops::executor::{Answer, Question, Run, RunWork, TakenAnswer};

/// The least and the greatest list length of a first search, which has one entry for each [`ELEMENTS_EACH`]
/// elements. If there are more matches, the device searches again.
const FIRST_LIMIT: RangeInclusive<u64> = 4096..=(1 << 21) - 2;
const ELEMENTS_EACH: u64 = 64;
/// A search reserves memory for at most this number of indices in advance: 1 GiB of address space, which gets
/// physical pages only when written.
const AHEAD_MAX: u64 = 1 << 27;
/// The number of 64-bit words of a result that are read at a time.
const PIECE: usize = 4096;

/// The matches that a search has found.
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
    /// The indices of the first matches in ascending order, at most as many as the caller requested.
    pub indices: Vec<I>,
    /// The number of matches, including matches that [`indices`](Self::indices) does not list.
    pub total: usize,
}

impl<I> Found<I> {
    pub(crate) fn append(&mut self, mut more: Self) {
        self.total += more.total;
        // Usually this list is still empty, so move the other list instead of copying it.
        if self.indices.is_empty() {
            self.indices = more.indices;
        } else {
            self.indices.append(&mut more.indices);
        }
    }
}

/// The condition of a search: a value, or an expression.
#[derive(Clone, Copy, Debug)]
pub enum What<'a> {
    /// True for elements that have these bytes at this offset.
    Value { offset: u64, value: &'a [u8] },
    /// True for elements for which this `bool` value of the program is true.
    Holds { program: &'a Program, predicate: Value },
}

impl<'a> What<'a> {
    pub(crate) fn field<T: Element, F: NoUninit>(field: Field<T, F>, value: &'a F) -> Self {
        Self::Value { offset: field.offset() as u64, value: bytemuck::bytes_of(value) }
    }
}

/// A search for the first `limit` elements that meet a condition, executed by devices. If `count_all` is set,
/// the result contains the exact number of all matches. Otherwise it may count only some of the matches.
#[derive(Clone, Copy, Debug)]
pub struct Seek<'a> {
    pub(crate) what: What<'a>,
    pub(crate) limit: usize,
    pub(crate) count_all: bool,
}

impl Seek<'_> {
    /// Returns true if the search lists all matches, because the length of the list is then their number.
    fn lists_all(&self) -> bool {
        self.limit > isize::MAX as usize
    }
}

impl Question for Seek<'_> {
    type Part = Found;
    type Whole = Found;

    fn room(&self, count: u64) -> u64 {
        // Without `count_all`, the device stops at a full list. The list then has room for all requested
        // matches, unless the search lists all matches anyway (in several lists).
        let first = (count / ELEMENTS_EACH).clamp(*FIRST_LIMIT.start(), *FIRST_LIMIT.end());
        let most = if self.count_all || self.lists_all() { first } else { u64::MAX };
        most.min(self.limit as u64).min(count)
    }

    fn answer_bytes(&self, room: u64) -> u64 {
        Search::answer_bytes(room)
    }

    fn kernel<'a>(&'a self, run: Run<'a>, limit: u64, answer: HostSpan<'a>) -> RunWork<'a> {
        let Run { columns: sources, geometry } = run;
        // If the search lists all matches, it continues after a full list, so the device can stop there.
        let count_all = self.count_all && !self.lists_all();
        match self.what {
            What::Value { offset: field_offset, value } => {
                let elements = sources[0];
                RunWork::Search(Search { elements, field_offset, value, limit, count_all, answer })
            }
            What::Holds { program, predicate } => {
                let action = Action::Find { predicate, limit, count_all, answer };
                RunWork::Compute(Compute { program, sources, geometry, action })
            }
        }
    }

    fn take(&self, found: &mut Found, answer: &Answer<'_>) -> Result<TakenAnswer> {
        const HEADER: usize = Search::HEADER_BYTES as usize / 8;
        let header = answer.words(0, HEADER)?;
        let (matches, listed) = (header[0], header[1]);
        let wanted = matches.min((self.limit - found.indices.len()) as u64);
        if self.count_all && !self.lists_all() && listed < wanted {
            // Add an eighth, because the repeated search finds more matches after concurrent writes.
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
        // Assume that the other elements have matches at the same density as the elements searched so far.
        let more = (u128::from(rest) * listed as u128).div_ceil(u128::from(from.max(1))) as u64;
        // The reservation is only an optimization, so reserve less if it fails.
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
