//! Requests to evaluate a program on a device.

use super::{Program, Value};
use crate::{Elements, HostSpan, Search};

/// The mapping from an element's number within a request to its index. Element numbers continue from
/// `first` through the pages of channel `channel`; pages are interleaved over `channels` channels.
///
/// ```
/// use backend_api::expr::Geometry;
/// let second_of_three = Geometry { first: 0, page_len: 10, channel: 1, channels: 3 };
/// assert_eq!((second_of_three.index(9), second_of_three.index(10)), (19, 40));
/// assert_eq!(Geometry::plain(5).index(7), 12);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Geometry {
    /// The number of elements of the channel before element 0 of the request.
    pub first: u64,
    /// Elements of a page; at least 1.
    pub page_len: u64,
    /// The index of the channel.
    pub channel: u64,
    /// The number of channels; at least 1.
    pub channels: u64,
}

impl Geometry {
    /// The geometry of contiguous elements, the first of which has the index `first`.
    #[must_use]
    pub const fn plain(first: u64) -> Self {
        Self { first, page_len: 1 << 63, channel: 0, channels: 1 }
    }

    /// Returns the index of element `number` of the request. Wraps.
    #[must_use]
    pub const fn index(&self, number: u64) -> u64 {
        let at = self.first.wrapping_add(number);
        let page = (at / self.page_len).wrapping_mul(self.channels).wrapping_add(self.channel);
        page.wrapping_mul(self.page_len).wrapping_add(at % self.page_len)
    }
}

/// A write of a value to a field of each element.
///
/// ```
/// use backend_api::expr::{Action, Store, Value};
/// let [low, high] = [4, 8].map(|offset| Store { value: Value(2), source: 0, offset });
/// assert!(matches!(Action::Store { stores: &[low, high], filter: None }, Action::Store { .. }));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Store {
    /// The value to write; not a bool.
    pub value: Value,
    /// The number of the source to write to.
    pub source: u8,
    /// Bytes from the start of the element.
    pub offset: u32,
}

/// The reduction or the store that a request applies to the values.
///
/// A device writes answers to host memory, at a multiple of 8, as unsigned 64-bit numbers in the host's
/// byte order. [`Compute::answer_bytes`] is their length. A `filter` is a bool: only elements for which it
/// is true count.
///
/// ```
/// use backend_api::expr::{Action, Store, Value};
/// let double = Store { value: Value(2), source: 0, offset: 8 };
/// let action = Action::Store { stores: &[double], filter: Some(Value(1)) };
/// assert!(matches!(action, Action::Store { stores: [Store { offset: 8, .. }], .. }));
/// ```
#[derive(Clone, Copy, Debug)]
pub enum Action<'a> {
    /// Find the numbers of the elements for which a bool is true, as for [`Search`].
    Find {
        /// The bool.
        predicate: Value,
        /// The most numbers to return; 0 only counts.
        limit: u64,
        /// True if the total must be exact.
        count_all: bool,
        /// The place for the answer.
        answer: HostSpan<'a>,
    },
    /// The sum of a number, as [`Partial`]s: integers exactly, `F32` and `F64` in `f64`.
    Sum {
        /// The number.
        value: Value,
        /// The filter of the elements that count.
        filter: Option<Value>,
        /// The place for the answer.
        answer: HostSpan<'a>,
    },
    /// The least and the greatest of a number, with the first element that has each, as [`Partial`]s. NaNs
    /// do not count.
    Extremes {
        /// The number.
        value: Value,
        /// The filter of the elements that count.
        filter: Option<Value>,
        /// True if the least is requested. The words of a [`Partial`] for an extreme that is not requested
        /// are unspecified.
        least: bool,
        /// True if the greatest is requested.
        greatest: bool,
        /// The place for the answer.
        answer: HostSpan<'a>,
    },
    /// A histogram: for each number below `bins`, a 64-bit count of the elements that have it.
    Histogram {
        /// The number, a `U32`; numbers from `bins` on do not count.
        value: Value,
        /// The filter of the elements that count.
        filter: Option<Value>,
        /// The number of bins: 1 to [`Compute::BINS_MAX`].
        bins: u32,
        /// The place for the answer.
        answer: HostSpan<'a>,
    },
    /// Writes to fields. A device reads all fields of an element before it writes the first. It may read
    /// and write whole elements for that, so no other work may write to them meanwhile.
    Store {
        /// The stores: 1 to [`Compute::STORES_MAX`], each to other bytes.
        stores: &'a [Store],
        /// The filter of the elements that are written.
        filter: Option<Value>,
    },
}

/// Evaluates a program for each of some elements.
///
/// The call copies all arguments except the memory before it returns.
///
/// ```
/// use backend_api::{BufferHandle, Compute, Elements, HostBuffer, HostMemory};
/// use backend_api::expr::{Action, Geometry, Instruction, Partial, Program, Store, Type, Value};
/// // The sum of ten numbers of 32 bits that follow one another.
/// let program = Program::new(vec![Instruction::Field { source: 0, offset: 0, of: Type::U32 }, Instruction::Index])?;
/// let memory = BufferHandle::unique();
/// let sources = [Elements { start: memory.at(0), count: 10, stride: 4 }];
/// let device = std::sync::Arc::new(backend_host::HostDevice::new(0)?);
/// let host = HostBuffer::new(&device, 64, HostMemory::Pageable)?;
/// let asked = |action| Compute { program: &program, sources: &sources, geometry: Geometry::plain(0), action };
/// let answer = host.at(0);
/// let sum = asked(Action::Sum { value: Value(0), filter: None, answer });
/// assert_eq!((sum.count(), sum.bytes(), sum.answer()), (10, 40, Some(answer)));
/// assert_eq!((sum.results(), sum.needs_index()), (vec![Value(0)], false));
/// assert_eq!(sum.answer_bytes(), Compute::partials_bytes());
/// assert_eq!(Compute::partials_bytes(), 8 + Compute::PARTIALS_MAX * Partial::BYTES);
///
/// let stores = [Store { value: Value(0), source: 0, offset: 0 }];
/// let stored = asked(Action::Store { stores: &stores, filter: None });
/// assert!(stored.writes(0) && stored.answer().is_none());
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Compute<'a> {
    /// The program.
    pub program: &'a Program,
    /// The memory of the program's fields: 1 to [`Compute::SOURCES_MAX`] sources, all with the same number
    /// of elements. A written source must not overlap with another, unless both have the same start and
    /// stride.
    pub sources: &'a [Elements<'a>],
    /// The geometry that gives the elements their index.
    pub geometry: Geometry,
    /// The reduction or the store of the values.
    pub action: Action<'a>,
}

impl<'a> Compute<'a> {
    /// The most sources of a request.
    pub const SOURCES_MAX: usize = 8;
    /// The most stores of a request.
    pub const STORES_MAX: usize = 8;
    /// The most bins of a histogram.
    pub const BINS_MAX: u32 = 4096;
    /// The most [`Partial`]s of an answer.
    pub const PARTIALS_MAX: u64 = 4096;

    /// The number of elements.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.sources.first().map_or(0, |source| source.count)
    }

    /// Returns true if the action writes to the source of this number.
    #[must_use]
    pub fn writes(&self, source: usize) -> bool {
        matches!(self.action, Action::Store { stores, .. } if stores.iter().any(|store| usize::from(store.source) == source))
    }

    /// The number of bytes of the elements of all sources.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.sources
            .iter()
            .fold(0, |sum, source| sum.saturating_add(source.count.saturating_mul(source.stride)))
    }

    /// The place for the answer, if the action has one.
    #[must_use]
    pub fn answer(&self) -> Option<HostSpan<'a>> {
        match self.action {
            Action::Find { answer, .. }
            | Action::Sum { answer, .. }
            | Action::Extremes { answer, .. }
            | Action::Histogram { answer, .. } => Some(answer),
            Action::Store { .. } => None,
        }
    }

    /// The length of the answer's room, in bytes.
    #[must_use]
    pub fn answer_bytes(&self) -> u64 {
        match self.action {
            Action::Find { limit, .. } => Search::answer_bytes(limit.min(self.count())),
            Action::Sum { .. } | Action::Extremes { .. } => Self::partials_bytes(),
            Action::Histogram { bins, .. } => u64::from(bins) * 8,
            Action::Store { .. } => 0,
        }
    }

    /// The length of the room of an answer of [`Partial`]s, in bytes.
    #[must_use]
    pub const fn partials_bytes() -> u64 {
        8 + Self::PARTIALS_MAX * Partial::BYTES
    }

    /// The values that the action needs.
    #[must_use]
    pub fn results(&self) -> Vec<Value> {
        match self.action {
            Action::Find { predicate, .. } => vec![predicate],
            Action::Sum { value, filter, .. }
            | Action::Extremes { value, filter, .. }
            | Action::Histogram { value, filter, .. } => {
                [Some(value), filter].into_iter().flatten().collect()
            }
            Action::Store { stores, filter } => {
                stores.iter().map(|store| store.value).chain(filter).collect()
            }
        }
    }

    /// Returns true if the action needs the program's index.
    #[must_use]
    pub fn needs_index(&self) -> bool {
        let needed = self.program.needed(&self.results());
        let instructions = self.program.instructions().iter();
        instructions.zip(needed).any(|(one, needed)| needed && matches!(one, super::Instruction::Index))
    }
}

/// The result of a part of the elements. An answer is the number of parts and a list of them. A part's
/// elements may be spread over the whole request. The parts depend only on the device and the number of
/// elements.
///
/// | action | words |
/// |---|---|
/// | `Sum` of integers | 0, 1: the sum, as `i128`, low half first |
/// | `Sum` of floats | 0: the sum, as `f64` |
/// | `Extremes` | 0, 1: [key](super::Type::key) of the least and the number of the first element that has it; 2, 3: likewise of the greatest |
///
/// If no element of a part counted, the words of `Extremes` are unspecified.
///
/// ```
/// use backend_api::expr::{Partial, Type};
/// // Sums of integers, written as a kernel writes its answer, into room for more.
/// let sums = [Partial::of_integers(2, 5), Partial::of_integers(1, -1)];
/// let mut answer = Partial::answer(&sums);
/// answer.extend([99, 99]);
/// assert_eq!((Partial::list(&answer), Partial::sum_of_integers(&sums)), (sums.to_vec(), 4));
/// assert_eq!(Partial::sum_of_floats(&[Partial::of_floats(1, 1.5), Partial::of_floats(3, -0.25)]), 1.25);
/// // The least and the greatest of 8-bit numbers: -1 of element 7, and of equal ones the first.
/// let key = |bits| Type::I8.key(bits);
/// let minus_one = Partial::of_extremes(4, (key(0xFF), 7), (key(3), 2));
/// let extremes = [Partial::of_extremes(1, (key(3), 9), (key(3), 9)), minus_one];
/// assert_eq!(Partial::least(&extremes), Some((key(0xFF), 7)));
/// assert_eq!(Partial::greatest(&extremes), Some((key(3), 2)));
/// assert_eq!(Partial::least(&[Partial::default()]), None, "nothing counted");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Partial {
    /// The number of elements that counted.
    pub count: u64,
    /// The result of the part.
    pub words: [u64; 4],
}

impl Partial {
    /// The length of a partial result in the answer of a [`Compute`](crate::Compute) request.
    pub const BYTES: u64 = 40;

    /// The sum of `count` integers.
    #[must_use]
    pub const fn of_integers(count: u64, sum: i128) -> Self {
        Self { count, words: [sum as u64, (sum >> 64) as u64, 0, 0] }
    }

    /// The sum of `count` floats.
    #[must_use]
    pub const fn of_floats(count: u64, sum: f64) -> Self {
        Self { count, words: [sum.to_bits(), 0, 0, 0] }
    }

    /// The extremes of `count` numbers, each as its [key](super::Type::key) and the number of the first
    /// element that has it.
    #[must_use]
    pub const fn of_extremes(count: u64, least: (u64, u64), greatest: (u64, u64)) -> Self {
        Self { count, words: [least.0, least.1, greatest.0, greatest.1] }
    }

    /// The words of an answer with these partial results, at most [`Compute::PARTIALS_MAX`].
    #[must_use]
    pub fn answer(parts: &[Self]) -> Vec<u64> {
        let words = parts.iter().flat_map(|part| [part.count].into_iter().chain(part.words));
        [parts.len() as u64].into_iter().chain(words).collect()
    }

    /// The partial results of an answer.
    #[must_use]
    pub fn list(answer: &[u64]) -> Vec<Self> {
        let Some((&number, rest)) = answer.split_first() else { return Vec::new() };
        let one =
            |words: &[u64; 5]| Self { count: words[0], words: [words[1], words[2], words[3], words[4]] };
        rest.as_chunks().0.iter().take(number as usize).map(one).collect()
    }

    /// The sum of sums of integers. Exact unless it leaves 128 bits.
    #[must_use]
    pub fn sum_of_integers(list: &[Self]) -> i128 {
        let one = |part: &Self| (u128::from(part.words[1]) << 64 | u128::from(part.words[0])) as i128;
        list.iter().map(one).fold(0, i128::wrapping_add)
    }

    /// The sum of sums of floats, in their order.
    #[must_use]
    pub fn sum_of_floats(list: &[Self]) -> f64 {
        list.iter().map(|part| f64::from_bits(part.words[0])).fold(0.0, |sum, part| sum + part)
    }

    /// The [key](super::Type::key) of the least and the number of the first element that has it, if anything
    /// counted.
    #[must_use]
    pub fn least(list: &[Self]) -> Option<(u64, u64)> {
        list.iter().filter(|part| part.count > 0).map(|part| (part.words[0], part.words[1])).min()
    }

    /// The [key](super::Type::key) of the greatest and the number of the first element that has it, if
    /// anything counted.
    #[must_use]
    pub fn greatest(list: &[Self]) -> Option<(u64, u64)> {
        let parts = list.iter().filter(|part| part.count > 0).map(|part| (part.words[2], part.words[3]));
        parts.max_by_key(|&(key, number)| (key, std::cmp::Reverse(number)))
    }
}
