//! Compute requests: a device evaluates a program for each element, and combines or stores the values.

use super::{Geometry, Program, Value};
use crate::kernel::{Builtin, Op};
use crate::{Elements, HostSpan, Search};

/// A store of a compute request: the device writes a value of the program to a field of each element.
///
/// ```
/// use backend_api::expr::{Action, FieldStore, Value};
/// let [low, high] = [4, 8].map(|offset| FieldStore { value: Value(2), source: 0, offset });
/// assert!(matches!(Action::Store { stores: &[low, high], filter: None }, Action::Store { .. }));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FieldStore {
    /// The value of the program to write; it must not be a bool.
    pub value: Value,
    /// Index of the source (the array) to write to.
    pub source: u8,
    /// Offset of the field in an element, in bytes.
    pub offset: u32,
}

/// The operation of a compute request on the values of its program: a search, a reduction or stores.
///
/// The device writes the answer to host memory, at an offset that is a multiple of 8, as unsigned 64-bit
/// numbers in the host's byte order. The answer takes [`Compute::answer_bytes`] bytes. `filter` is a bool
/// value of the program: the operation applies only to elements for which it is true.
///
/// ```
/// use backend_api::expr::{Action, FieldStore, Value};
/// let double = FieldStore { value: Value(2), source: 0, offset: 8 };
/// let action = Action::Store { stores: &[double], filter: Some(Value(1)) };
/// assert!(matches!(action, Action::Store { stores: [FieldStore { offset: 8, .. }], .. }));
/// ```
#[derive(Clone, Copy, Debug)]
pub enum Action<'a> {
    /// Finds the elements for which a bool is true. The answer has the layout of a [`Search`]'s answer; its
    /// indices are the numbers of the elements in the request.
    Find {
        /// The bool value that selects the elements.
        predicate: Value,
        /// Maximum number of elements in the answer; 0 to count matches only.
        limit: u64,
        /// True if the number of matches must be exact. If false, the device may stop after `limit` matches.
        count_all: bool,
        /// Host memory for the answer.
        answer: HostSpan<'a>,
    },
    /// Sums a number over all elements: integers exactly, floats in `f64`. The answer is a list of
    /// [`Partial`]s.
    Sum {
        /// The number to sum.
        value: Value,
        /// The bool value that selects elements; `None` selects all.
        filter: Option<Value>,
        /// Host memory for the answer.
        answer: HostSpan<'a>,
    },
    /// Finds the least and the greatest of a number over all elements, each with the first element that has
    /// it. NaNs are ignored. The answer is a list of [`Partial`]s.
    Extremes {
        /// The number to compare.
        value: Value,
        /// The bool value that selects elements; `None` selects all.
        filter: Option<Value>,
        /// True if the program requests the least number. If it does not request an extreme, the extreme's
        /// words in a [`Partial`] are unspecified.
        least: bool,
        /// True if the program requests the greatest number.
        greatest: bool,
        /// Host memory for the answer.
        answer: HostSpan<'a>,
    },
    /// Counts the elements with each number below `bins`. The answer has a 64-bit count for each number.
    Histogram {
        /// The number, a `U32`. Elements with a number of at least `bins` are ignored.
        value: Value,
        /// The bool value that selects elements; `None` selects all.
        filter: Option<Value>,
        /// The number of bins: 1 to [`Compute::BINS_MAX`].
        bins: u32,
        /// Host memory for the answer.
        answer: HostSpan<'a>,
    },
    /// Writes values to fields of the elements. A device reads all fields of an element before it writes the
    /// first one. It may read and write whole elements, so no other work may write to them at the same time.
    Store {
        /// The fields to write: 1 to [`Compute::STORES_MAX`] stores. No two stores may write the same bytes.
        stores: &'a [FieldStore],
        /// The bool value that selects the elements to write; `None` selects all.
        filter: Option<Value>,
    },
}

/// A request to evaluate a program for each element, and to apply an [`Action`] to its values.
///
/// The submission copies the request, but not the contents of the memory that the request names.
///
/// ```
/// use backend_api::{BufferHandle, Compute, Elements, HostBuffer, HostMemory};
/// use backend_api::expr::{Action, Geometry, Instruction, Partial, Program, FieldStore, Type, Value};
/// // The sum of ten contiguous 32-bit numbers.
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
/// let stores = [FieldStore { value: Value(0), source: 0, offset: 0 }];
/// let stored = asked(Action::Store { stores: &stores, filter: None });
/// assert!(stored.writes(0) && stored.answer().is_none());
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Compute<'a> {
    /// Program to evaluate for each element.
    pub program: &'a Program,
    /// Arrays with the fields that the program reads (*sources*): 1 to [`Compute::SOURCES_MAX`], all with the
    /// same number of elements. A written source must not overlap with another source, unless both have the
    /// same start and stride.
    pub sources: &'a [Elements<'a>],
    /// Mapping from an element's number in the request to its index in the program's array.
    pub geometry: Geometry,
    /// The operation on the program's values.
    pub action: Action<'a>,
}

impl<'a> Compute<'a> {
    /// Maximum number of sources (arrays) of a compute request.
    pub const SOURCES_MAX: usize = 8;
    /// Maximum number of stores of a compute request.
    pub const STORES_MAX: usize = 8;
    /// Maximum number of bins of a histogram.
    pub const BINS_MAX: u32 = 4096;
    /// Maximum number of [`Partial`]s in an answer.
    pub const PARTIALS_MAX: u64 = 4096;

    /// Returns the number of elements of each source (array).
    #[must_use]
    pub fn count(&self) -> u64 {
        self.sources.first().map_or(0, |source| source.count)
    }

    /// Returns true if the action writes to the source (array) with this index.
    #[must_use]
    pub fn writes(&self, source: usize) -> bool {
        matches!(self.action, Action::Store { stores, .. } if stores.iter().any(|store| usize::from(store.source) == source))
    }

    /// Returns the size of the elements of all sources (arrays) together, in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.sources
            .iter()
            .fold(0, |sum, source| sum.saturating_add(source.count.saturating_mul(source.stride)))
    }

    /// Returns the position in host memory for the answer, if the action has an answer.
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

    /// Returns the size in bytes of the memory that the request needs for its answer.
    #[must_use]
    pub fn answer_bytes(&self) -> u64 {
        match self.action {
            Action::Find { limit, .. } => Search::answer_bytes(limit.min(self.count())),
            Action::Sum { .. } | Action::Extremes { .. } => Self::partials_bytes(),
            Action::Histogram { bins, .. } => u64::from(bins) * 8,
            Action::Store { .. } => 0,
        }
    }

    /// Returns the maximum size in bytes of an answer that consists of [`Partial`]s.
    #[must_use]
    pub const fn partials_bytes() -> u64 {
        8 + Self::PARTIALS_MAX * Partial::BYTES
    }

    /// Returns the program's values that the action uses.
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

    /// Returns true if the action uses a value that depends on the element's index,
    /// [`Instruction::Index`](super::Instruction::Index).
    #[must_use]
    pub fn needs_index(&self) -> bool {
        let needed = self.program.needed(&self.results());
        let is_index = |op: &Op| matches!(op, Op::Builtin { what: Builtin::Index, .. });
        self.program.ops().iter().zip(needed).any(|(op, needed)| needed && is_index(op))
    }
}

/// The partial result of a reduction, for some of the elements, such as the elements of one GPU thread. The
/// device's answer has the number of partial results, then the results; the host combines them. The elements
/// of a partial result may be spread over the whole request. Their choice depends only on the device and the
/// number of elements.
///
/// | action | words |
/// |---|---|
/// | `Sum` of integers | 0, 1: the sum, as `i128`, low half first |
/// | `Sum` of floats | 0: the sum, as `f64` |
/// | `Extremes` | 0, 1: [key](super::Type::key) of the least and the number of the first element that has it; 2, 3: likewise of the greatest |
///
/// If the filter excludes all elements of a partial result, the words of `Extremes` are unspecified.
///
/// ```
/// use backend_api::expr::{Partial, Type};
/// // Two partial sums of integers in an answer. Words after the answer's end are ignored.
/// let sums = [Partial::of_integers(2, 5), Partial::of_integers(1, -1)];
/// let mut answer = Partial::answer(&sums);
/// answer.extend([99, 99]);
/// assert_eq!((Partial::list(&answer), Partial::sum_of_integers(&sums)), (sums.to_vec(), 4));
/// assert_eq!(Partial::sum_of_floats(&[Partial::of_floats(1, 1.5), Partial::of_floats(3, -0.25)]), 1.25);
/// // The least number is -1 (element 7). The greatest is 3, first in element 2.
/// let key = |bits| Type::I8.key(bits);
/// let minus_one = Partial::of_extremes(4, (key(0xFF), 7), (key(3), 2));
/// let extremes = [Partial::of_extremes(1, (key(3), 9), (key(3), 9)), minus_one];
/// assert_eq!(Partial::least(&extremes), Some((key(0xFF), 7)));
/// assert_eq!(Partial::greatest(&extremes), Some((key(3), 2)));
/// assert_eq!(Partial::least(&[Partial::default()]), None, "nothing counted");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Partial {
    /// Number of elements of this partial result that pass the filter.
    pub count: u64,
    /// The partial result, in the format of the table at [`Partial`].
    pub words: [u64; 4],
}

impl Partial {
    /// Size in bytes of a partial result in the answer of a [`Compute`](crate::Compute) request.
    pub const BYTES: u64 = 40;

    /// Creates a partial result: the sum of `count` integers.
    #[must_use]
    pub const fn of_integers(count: u64, sum: i128) -> Self {
        Self { count, words: [sum as u64, (sum >> 64) as u64, 0, 0] }
    }

    /// Creates a partial result: the sum of `count` floats.
    #[must_use]
    pub const fn of_floats(count: u64, sum: f64) -> Self {
        Self { count, words: [sum.to_bits(), 0, 0, 0] }
    }

    /// Creates a partial result: the extremes of `count` values. `least` and `greatest` each consist of the
    /// value's [key](super::Type::key) and the number (in the request) of the first element that has it.
    #[must_use]
    pub const fn of_extremes(count: u64, least: (u64, u64), greatest: (u64, u64)) -> Self {
        Self { count, words: [least.0, least.1, greatest.0, greatest.1] }
    }

    /// Returns the words of an answer with the results `parts`, at most [`Compute::PARTIALS_MAX`].
    #[must_use]
    pub fn answer(parts: &[Self]) -> Vec<u64> {
        let words = parts.iter().flat_map(|part| [part.count].into_iter().chain(part.words));
        [parts.len() as u64].into_iter().chain(words).collect()
    }

    /// Returns the partial results of an answer, which is a list of 64-bit words.
    #[must_use]
    pub fn list(answer: &[u64]) -> Vec<Self> {
        let Some((&number, rest)) = answer.split_first() else { return Vec::new() };
        let one =
            |words: &[u64; 5]| Self { count: words[0], words: [words[1], words[2], words[3], words[4]] };
        rest.as_chunks().0.iter().take(number as usize).map(one).collect()
    }

    /// Returns the total of partial sums of integers. The total is exact unless it overflows 128 bits.
    #[must_use]
    pub fn sum_of_integers(list: &[Self]) -> i128 {
        let one = |part: &Self| (u128::from(part.words[1]) << 64 | u128::from(part.words[0])) as i128;
        list.iter().map(one).fold(0, i128::wrapping_add)
    }

    /// Returns the total of partial sums of floats, added in the order of the list.
    #[must_use]
    pub fn sum_of_floats(list: &[Self]) -> f64 {
        list.iter().map(|part| f64::from_bits(part.words[0])).fold(0.0, |sum, part| sum + part)
    }

    /// Returns the [key](super::Type::key) of the least value, and the number (in the request) of the first
    /// element with this value. Returns `None` if the filter excludes all elements.
    #[must_use]
    pub fn least(list: &[Self]) -> Option<(u64, u64)> {
        list.iter().filter(|part| part.count > 0).map(|part| (part.words[0], part.words[1])).min()
    }

    /// Returns the [key](super::Type::key) of the greatest value, and the number (in the request) of the
    /// first element with this value. Returns `None` if the filter excludes all elements.
    #[must_use]
    pub fn greatest(list: &[Self]) -> Option<(u64, u64)> {
        let parts = list.iter().filter(|part| part.count > 0).map(|part| (part.words[2], part.words[3]));
        parts.max_by_key(|&(key, number)| (key, std::cmp::Reverse(number)))
    }
}
