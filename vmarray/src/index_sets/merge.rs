//! The columns of a join: the columns of the two sets to compare, and the columns of the result.

use std::collections::HashMap;

use super::Dimension;
use crate::base::error::{ErrorKind, Result};

/// The columns of two sets that a join compares, and the columns of a result: all of the first set, then the
/// columns that only the second one has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Merge {
    pub(super) dimensions: Vec<Dimension>,
    pub(super) a_width: usize,
    pub(super) b_width: usize,
    /// The positions of the common dimensions in tuples of the first set, in the first set's order.
    pub(super) a_keys: Vec<usize>,
    /// The positions of the common dimensions in tuples of the second set, in the same order.
    pub(super) b_keys: Vec<usize>,
    /// The columns of the second set that go into a result.
    pub(super) b_rest: Vec<usize>,
}

impl Merge {
    /// Finds the common dimensions, in time linear in their number.
    fn new(a: &[Dimension], b: &[Dimension]) -> Self {
        let in_b: HashMap<Dimension, usize> = b.iter().enumerate().map(|(at, &label)| (label, at)).collect();
        let (a_keys, b_keys): (Vec<usize>, Vec<usize>) =
            a.iter().enumerate().filter_map(|(at, label)| Some((at, *in_b.get(label)?))).unzip();
        let mut is_common = vec![false; b.len()];
        b_keys.iter().for_each(|&at| is_common[at] = true);
        let b_rest: Vec<usize> = (0..b.len()).filter(|&at| !is_common[at]).collect();
        let dimensions = a.iter().copied().chain(b_rest.iter().map(|&at| b[at])).collect();
        Self { dimensions, a_width: a.len(), b_width: b.len(), a_keys, b_keys, b_rest }
    }

    /// Returns the columns for a natural join, or an error if there is no common dimension.
    pub(super) fn on_common(a: &[Dimension], b: &[Dimension]) -> Result<Self> {
        let merge = Self::new(a, b);
        if merge.is_product() { Err(ErrorKind::NoCommonDimension.into()) } else { Ok(merge) }
    }

    /// Returns the columns for a product, or an error if a dimension is common.
    pub(super) fn of_all(a: &[Dimension], b: &[Dimension]) -> Result<Self> {
        let merge = Self::new(a, b);
        match merge.a_keys.first() {
            Some(&at) => Err(ErrorKind::CommonDimension { dimension: a[at] }.into()),
            None => Ok(merge),
        }
    }

    pub(super) fn is_product(&self) -> bool {
        self.a_keys.is_empty()
    }

    pub(super) fn width(&self) -> usize {
        self.dimensions.len()
    }
}
