//! Sums of complex expressions over a view.

use std::ops::RangeBounds;

use num_complex::Complex;

use super::Query;
use crate::base::error::Result;
use crate::ops::expr::{ComplexExpr, Summed};

impl<T, F: Summed<Sum = f64>> ComplexExpr<T, F> {
    /// Returns the sum of a complex expression over the elements of a view. Calls [`Query::sum`] for each
    /// part.
    ///
    /// # Errors
    /// The errors of [`Query::sum`].
    pub fn sum<'a, Q: Query<'a, Row = T>>(
        self,
        view: Q,
        bounds: impl RangeBounds<Q::Index> + Clone,
    ) -> Result<Complex<f64>> {
        Ok(Complex { re: view.sum(bounds.clone(), self.re)?, im: view.sum(bounds, self.im)? })
    }
}
