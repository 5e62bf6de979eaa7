//! All questions by expressions, and changes, of a section and of a slice: what arrays and sources share.

use std::ops::Range;

use vmarray::Field;
use vmarray::expr::{Expr, index};

pub type Pair = [u32; 2];

pub const KEY: Field<Pair, u32> = Field::<Pair, Pair>::whole().nth::<0>();
pub const VALUE: Field<Pair, u32> = Field::<Pair, Pair>::whole().nth::<1>();

/// A condition that looks at the element and at its index.
#[derive(Clone, Copy, Debug)]
pub struct Condition {
    pub key: u32,
    pub rest: u64,
}

impl Condition {
    pub fn expr(self) -> Expr<Pair, bool> {
        KEY.lt(self.key) & (index() % 3).ne(self.rest) | index().eq(self.rest + 4)
    }

    pub fn holds(self, at: usize, [key, _]: Pair) -> bool {
        key < self.key && at as u64 % 3 != self.rest || at as u64 == self.rest + 4
    }
}

/// A range within a length from any two numbers.
pub fn within(a: usize, b: usize, len: usize) -> Range<usize> {
    let (a, b) = (a % (len + 1), b % (len + 1));
    a.min(b)..a.max(b)
}

/// Asks a section all there is to ask of a range, and compares with a slice of the same elements.
macro_rules! ask {
    ($section:expr, $model:expr, $range:expr, $condition:expr, $limit:expr) => {{
        use crate::common::asked::{Condition, KEY, Pair, VALUE};
        use vmarray::expr::index;
        let (section, model, range): (_, &[Pair], std::ops::Range<usize>) = ($section, $model, $range);
        let (condition, limit): (Condition, usize) = ($condition, $limit);
        let part = || range.clone().map(|i| (i, model[i]));
        let over = || range.clone();
        let found: Vec<(usize, Pair)> = part().filter(|(i, pair)| condition.holds(*i, *pair)).collect();

        assert_eq!(section.count_where(over(), condition.expr()).unwrap(), found.len());
        let answer = section.find_where(over(), condition.expr(), limit).unwrap();
        assert_eq!(answer.total, found.len());
        assert!(answer.indices.iter().eq(found.iter().take(limit).map(|(i, _)| i)), "{answer:?}");
        let first = section.position_first(over(), condition.expr()).unwrap();
        assert_eq!(first, found.first().map(|(i, _)| *i));
        assert_eq!(section.any(over(), condition.expr()).unwrap(), !found.is_empty());
        assert_eq!(section.all(over(), condition.expr()).unwrap(), found.len() == range.len());
        let selected = section.select_where(over(), condition.expr()).unwrap();
        assert_eq!(selected.collect::<Result<Vec<_>, _>>().unwrap(), found);

        // A value and a condition that use the index both.
        let value = || (VALUE.cast::<u64>() * 8 + index()).only_where(condition.expr());
        let truth = || found.iter().map(|(i, pair)| (*i, u64::from(pair[1]) * 8 + *i as u64));
        let sum: i128 = truth().map(|(_, value)| i128::from(value)).sum();
        assert_eq!(section.sum(over(), value()).unwrap(), sum);
        let least = truth().min_by_key(|(i, value)| (*value, *i));
        let greatest = truth().max_by_key(|(i, value)| (*value, std::cmp::Reverse(*i)));
        assert_eq!(section.arg_min(over(), value()).unwrap(), least);
        assert_eq!(section.arg_max(over(), value()).unwrap(), greatest);
        assert_eq!(section.min(over(), value()).unwrap(), least.map(|l| l.1));
        assert_eq!(section.max(over(), value()).unwrap(), greatest.map(|g| g.1));
        assert_eq!(section.min_max(over(), value()).unwrap(), least.zip(greatest).map(|(l, g)| (l.1, g.1)));
        let mut bins = vec![0; 5];
        part().filter(|(_, pair)| pair[0] < 5).for_each(|(_, pair)| bins[pair[0] as usize] += 1);
        assert_eq!(section.histogram(over(), KEY, 5).unwrap(), bins);
        let mut bins = vec![0; 4];
        part().for_each(|(i, _)| bins[i % 4] += 1);
        assert_eq!(section.histogram(over(), (index() % 4).cast::<u32>(), 4).unwrap(), bins);
    }};
}

/// Changes both fields of the elements of a range by what they are, in a section and in a slice of the same
/// elements.
macro_rules! transform {
    ($section:expr, $model:expr, $range:expr, $by:expr) => {{
        use crate::common::asked::{KEY, Pair, VALUE};
        use vmarray::expr::index;
        let (section, model, range): (_, &mut [Pair], std::ops::Range<usize>) = ($section, $model, $range);
        let by: u32 = $by;
        let both = [VALUE.set(VALUE + index().cast::<u32>()), KEY.set((VALUE + by) % 20)];
        section.transform(range.clone(), both).unwrap();
        for i in range {
            let value = model[i][1];
            model[i] = [value.wrapping_add(by) % 20, value.wrapping_add(i as u32)];
        }
    }};
}

/// Changes a field of the elements of a range that meet a condition, in a section and in a slice of the same
/// elements.
macro_rules! assign {
    ($section:expr, $model:expr, $range:expr, $condition:expr, $by:expr) => {{
        use crate::common::asked::{Condition, Pair, VALUE};
        use vmarray::expr::index;
        let (section, model, range): (_, &mut [Pair], std::ops::Range<usize>) = ($section, $model, $range);
        let (condition, by): (Condition, u32) = ($condition, $by);
        let set = VALUE.set(index().cast::<u32>() * 3 + by);
        section.assign_where(range.clone(), condition.expr(), set).unwrap();
        for i in range.filter(|i| condition.holds(*i, model[*i])).collect::<Vec<_>>() {
            model[i][1] = (i as u32 * 3).wrapping_add(by);
        }
    }};
}

pub(crate) use {ask, assign, transform};
