//! Reductions: what devices are asked, and how their answers become one. Arrays and sources share them.

use std::cmp::Reverse;
use std::marker::PhantomData;

use backend_api::expr::{Action, Number, Partial, Program, Value};
use backend_api::{Compute, Device, HostBuffer, HostSpan};

use crate::base::error::{ErrorKind, Result};
use crate::base::stats::Counter;
use crate::ops::expr::{IntoFiltered, Lowering, Scalar, Summed};

/// What devices are asked about elements that they have, and how their answers become one.
pub trait Reduction: Sync {
    /// What answers of one channel came to, taken in in ascending order of their elements.
    type Part: Default + Send;
    /// What all came to.
    type Whole;

    fn program(&self) -> &Program;

    /// How much room an answer needs.
    fn answer_bytes(&self) -> u64 {
        Compute::partials_bytes()
    }

    fn action<'a>(&self, answer: HostSpan<'a>) -> Action<'a>;

    /// Whether results are rounded, so that it matters which elements are asked for together.
    fn is_rounded(&self) -> bool {
        false
    }

    /// Takes in an answer. `index` tells the index of an element by its number in the request.
    fn take<D: Device>(&self, part: &mut Self::Part, answer: &Answer<'_, D>, index: &dyn Fn(u64) -> usize);

    /// Puts the parts of all channels together, in their order.
    fn whole(&self, parts: Vec<Self::Part>) -> Self::Whole;
}

/// What a device has answered.
pub struct Answer<'a, D: Device> {
    pub memory: &'a HostBuffer<D>,
    /// Where the bytes are counted.
    pub copied: &'a Counter,
}

impl<D: Device> Answer<'_, D> {
    fn words(&self, from: usize, count: usize) -> Vec<u64> {
        let mut words = vec![0_u64; count];
        self.memory.read(from * 8, bytemuck::cast_slice_mut(&mut words));
        self.copied.add(count as u64 * 8);
        words
    }

    fn partials(&self) -> Vec<Partial> {
        let number = self.words(0, 1)[0].min(Compute::PARTIALS_MAX);
        Partial::list(&self.words(0, 1 + number as usize * (Partial::BYTES as usize / 8)))
    }
}

/// What is reduced: a value, of those elements alone that meet a condition.
struct Reduced {
    program: Program,
    value: Value,
    filter: Option<Value>,
}

impl Reduced {
    fn new<T, F>(what: impl IntoFiltered<T, F>) -> Result<Self> {
        let mut lowering = Lowering::default();
        let (value, filter) = lowering.filtered(&what.into_filtered());
        Ok(Self { program: lowering.program()?, value, filter })
    }
}

/// A sum.
pub(crate) struct Total<F> {
    of: Reduced,
    marker: PhantomData<fn() -> F>,
}

impl<F: Summed> Total<F> {
    pub fn new<T>(what: impl IntoFiltered<T, F>) -> Result<Self> {
        Ok(Self { of: Reduced::new(what)?, marker: PhantomData })
    }
}

impl<F: Summed> Reduction for Total<F> {
    type Part = F::Sum;
    type Whole = F::Sum;

    fn program(&self) -> &Program {
        &self.of.program
    }

    fn action<'a>(&self, answer: HostSpan<'a>) -> Action<'a> {
        Action::Sum { value: self.of.value, filter: self.of.filter, answer }
    }

    fn is_rounded(&self) -> bool {
        F::TYPE.is_float()
    }

    fn take<D: Device>(&self, part: &mut F::Sum, answer: &Answer<'_, D>, _: &dyn Fn(u64) -> usize) {
        *part = *part + F::sum(&answer.partials());
    }

    fn whole(&self, parts: Vec<F::Sum>) -> F::Sum {
        parts.into_iter().fold(F::Sum::default(), |sum, part| sum + part)
    }
}

/// An extreme by its key, and the index of the first element that has it.
type Extreme = Option<(u64, usize)>;

/// The least value, the greatest, or both.
pub(crate) struct Extremes<F> {
    of: Reduced,
    least: bool,
    greatest: bool,
    marker: PhantomData<fn() -> F>,
}

impl<F: Scalar + Number> Extremes<F> {
    pub fn least<T>(what: impl IntoFiltered<T, F>) -> Result<Self> {
        Ok(Self { of: Reduced::new(what)?, least: true, greatest: false, marker: PhantomData })
    }

    pub fn greatest<T>(what: impl IntoFiltered<T, F>) -> Result<Self> {
        Ok(Self { of: Reduced::new(what)?, least: false, greatest: true, marker: PhantomData })
    }

    pub fn both<T>(what: impl IntoFiltered<T, F>) -> Result<Self> {
        Ok(Self { of: Reduced::new(what)?, least: true, greatest: true, marker: PhantomData })
    }
}

/// The least of two extremes, and of those that are equal the first.
fn least(a: Extreme, b: Extreme) -> Extreme {
    a.into_iter().chain(b).min()
}

/// The greatest of two extremes, and of those that are equal the first.
fn greatest(a: Extreme, b: Extreme) -> Extreme {
    a.into_iter().chain(b).max_by_key(|&(key, index)| (key, Reverse(index)))
}

impl<F: Scalar + Number> Reduction for Extremes<F> {
    type Part = (Extreme, Extreme);
    /// Least and greatest, each with the index of the first element that has it.
    type Whole = (Option<(usize, F)>, Option<(usize, F)>);

    fn program(&self) -> &Program {
        &self.of.program
    }

    fn action<'a>(&self, answer: HostSpan<'a>) -> Action<'a> {
        let Reduced { value, filter, .. } = self.of;
        Action::Extremes { value, filter, least: self.least, greatest: self.greatest, answer }
    }

    fn take<D: Device>(&self, part: &mut Self::Part, answer: &Answer<'_, D>, index: &dyn Fn(u64) -> usize) {
        let partials = answer.partials();
        let place = |(key, number)| (key, index(number));
        if self.least {
            part.0 = least(part.0, Partial::least(&partials).map(place));
        }
        if self.greatest {
            part.1 = greatest(part.1, Partial::greatest(&partials).map(place));
        }
    }

    fn whole(&self, parts: Vec<Self::Part>) -> Self::Whole {
        let all = |(low, high), part: Self::Part| (least(low, part.0), greatest(high, part.1));
        let (low, high) = parts.into_iter().fold((None, None), all);
        let value = |(key, index)| (index, F::from_bits(F::TYPE.from_key(key)));
        (low.map(value), high.map(value))
    }
}

/// How many elements have each of some numbers.
pub(crate) struct Histogram {
    of: Reduced,
    bins: u32,
}

impl Histogram {
    pub fn new<T>(bin: impl IntoFiltered<T, u32>, bins: usize) -> Result<Self> {
        let most = Compute::BINS_MAX as usize;
        if !(1..=most).contains(&bins) {
            return Err(ErrorKind::BinCount { bins, most }.into());
        }
        Ok(Self { of: Reduced::new(bin)?, bins: bins as u32 })
    }
}

impl Reduction for Histogram {
    /// Empty if there was no answer.
    type Part = Vec<u64>;
    type Whole = Vec<u64>;

    fn program(&self) -> &Program {
        &self.of.program
    }

    fn answer_bytes(&self) -> u64 {
        u64::from(self.bins) * 8
    }

    fn action<'a>(&self, answer: HostSpan<'a>) -> Action<'a> {
        Action::Histogram { value: self.of.value, filter: self.of.filter, bins: self.bins, answer }
    }

    fn take<D: Device>(&self, part: &mut Vec<u64>, answer: &Answer<'_, D>, _: &dyn Fn(u64) -> usize) {
        part.resize(self.bins as usize, 0);
        part.iter_mut().zip(answer.words(0, self.bins as usize)).for_each(|(sum, more)| *sum += more);
    }

    fn whole(&self, parts: Vec<Vec<u64>>) -> Vec<u64> {
        let mut counts = vec![0; self.bins as usize];
        for part in parts {
            counts.iter_mut().zip(part).for_each(|(sum, more)| *sum += more);
        }
        counts
    }
}
