//! Reductions of expressions over elements: sums, minima and maxima, histograms.

use std::cmp::Reverse;
use std::marker::PhantomData;

use backend_api::expr::{Action, Number, Partial, Program, Value};
use backend_api::{Compute, HostSpan};

use crate::base::error::{ErrorKind, Result};
use crate::ops::executor::{Answer, Question, Run, RunWork, TakenAnswer};
use crate::ops::expr::{IntoFiltered, Lowering, Scalar, Summed};

/// A program that computes the value to reduce, and an optional condition on elements.
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

    fn kernel<'a>(&'a self, run: Run<'a>, action: Action<'a>) -> RunWork<'a> {
        let Run { columns: sources, geometry } = run;
        RunWork::Compute(Compute { program: &self.program, sources, geometry, action })
    }
}

/// A reduction to the sum of values of type `F`.
pub(crate) struct Total<F> {
    of: Reduced,
    marker: PhantomData<fn() -> F>,
}

impl<F: Summed> Total<F> {
    pub fn new<T>(what: impl IntoFiltered<T, F>) -> Result<Self> {
        Ok(Self { of: Reduced::new(what)?, marker: PhantomData })
    }
}

impl<F: Summed> Question for Total<F> {
    type Part = F::Sum;
    type Whole = F::Sum;

    fn kernel<'a>(&'a self, run: Run<'a>, _: u64, answer: HostSpan<'a>) -> RunWork<'a> {
        let Reduced { value, filter, .. } = self.of;
        self.of.kernel(run, Action::Sum { value, filter, answer })
    }

    fn is_rounded(&self) -> bool {
        F::TYPE.is_float()
    }

    fn take(&self, part: &mut F::Sum, answer: &Answer<'_>) -> Result<TakenAnswer> {
        *part = *part + F::sum(&answer.partials()?);
        Ok(TakenAnswer::Yes)
    }

    fn whole(&self, parts: Vec<F::Sum>) -> F::Sum {
        parts.into_iter().fold(F::Sum::default(), |sum, part| sum + part)
    }
}

/// A least or greatest value as a sort key, with the index of its first element.
type Extreme = Option<(u64, usize)>;

/// A reduction to the least value, the greatest value, or both.
pub(crate) struct Extremes<F> {
    of: Reduced,
    least: bool,
    greatest: bool,
    marker: PhantomData<fn() -> F>,
}

impl<F: Scalar + Number> Extremes<F> {
    pub fn new<T>(what: impl IntoFiltered<T, F>, least: bool, greatest: bool) -> Result<Self> {
        Ok(Self { of: Reduced::new(what)?, least, greatest, marker: PhantomData })
    }
}

/// Returns the lesser of two values; the first one if they are equal.
fn least(a: Extreme, b: Extreme) -> Extreme {
    a.into_iter().chain(b).min()
}

/// Returns the greater of two values; the first one if they are equal.
fn greatest(a: Extreme, b: Extreme) -> Extreme {
    a.into_iter().chain(b).max_by_key(|&(key, index)| (key, Reverse(index)))
}

impl<F: Scalar + Number> Question for Extremes<F> {
    type Part = (Extreme, Extreme);
    /// The least and the greatest value, each with the index of its first element.
    type Whole = (Option<(usize, F)>, Option<(usize, F)>);

    fn kernel<'a>(&'a self, run: Run<'a>, _: u64, answer: HostSpan<'a>) -> RunWork<'a> {
        let (Reduced { value, filter, .. }, least, greatest) = (&self.of, self.least, self.greatest);
        let action = Action::Extremes { value: *value, filter: *filter, least, greatest, answer };
        self.of.kernel(run, action)
    }

    fn take(&self, part: &mut Self::Part, answer: &Answer<'_>) -> Result<TakenAnswer> {
        let partials = answer.partials()?;
        let place = |(key, number)| (key, answer.index(number));
        if self.least {
            part.0 = least(part.0, Partial::least(&partials).map(place));
        }
        if self.greatest {
            part.1 = greatest(part.1, Partial::greatest(&partials).map(place));
        }
        Ok(TakenAnswer::Yes)
    }

    fn whole(&self, parts: Vec<Self::Part>) -> Self::Whole {
        let all = |(low, high), part: Self::Part| (least(low, part.0), greatest(high, part.1));
        let (low, high) = parts.into_iter().fold((None, None), all);
        let value = |(key, index)| (index, F::from_value(F::TYPE.from_key(key)));
        (low.map(value), high.map(value))
    }
}

/// A reduction to a histogram: the number of elements in each bin.
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

impl Question for Histogram {
    /// The counts of a channel's elements; empty before the first result.
    type Part = Vec<u64>;
    type Whole = Vec<u64>;

    fn answer_bytes(&self, _: u64) -> u64 {
        u64::from(self.bins) * 8
    }

    fn kernel<'a>(&'a self, run: Run<'a>, _: u64, answer: HostSpan<'a>) -> RunWork<'a> {
        let (Reduced { value, filter, .. }, bins) = (&self.of, self.bins);
        self.of.kernel(run, Action::Histogram { value: *value, filter: *filter, bins, answer })
    }

    fn take(&self, part: &mut Vec<u64>, answer: &Answer<'_>) -> Result<TakenAnswer> {
        part.resize(self.bins as usize, 0);
        part.iter_mut().zip(answer.words(0, self.bins as usize)?).for_each(|(sum, more)| *sum += more);
        Ok(TakenAnswer::Yes)
    }

    fn whole(&self, parts: Vec<Vec<u64>>) -> Vec<u64> {
        let mut counts = vec![0; self.bins as usize];
        for part in parts {
            counts.iter_mut().zip(part).for_each(|(sum, more)| *sum += more);
        }
        counts
    }
}
