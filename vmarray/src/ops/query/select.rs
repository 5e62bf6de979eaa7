//! Iterators over the elements that meet a condition, in index order and with bounded memory.

use std::collections::VecDeque;
use std::fmt;
use std::iter::FusedIterator;
use std::ops::{Range, RangeBounds};

use super::plan::Condition;
use super::{Ordered, Query};
use crate::base::element::Element;
use crate::base::error::Result;
use crate::ops::expr::{Expr, IntoExpr};
use crate::ops::sealed::INTERNAL;
use crate::ops::view::{Shape, Store, View};

/// The most elements fetched at a time.
const BATCH: usize = 16 << 10;
/// The most bytes fetched at a time.
const BATCH_BYTES: usize = 4 << 20;

fn batch_len<T: Element>() -> usize {
    (BATCH_BYTES / size_of::<T>()).clamp(1, BATCH)
}

/// Iteration over the elements of a [`View`] that meet a condition.
///
/// ```
/// use vmarray::prelude::*;
///
/// fn large<'a>(view: impl View<'a, Element = u32, Index = usize>) -> vmarray::Result<usize> {
///     Ok(view.select_where(.., Field::whole().gt(7))?.count())
/// }
/// let array = VirtualArray::<u32>::new(100)?;
/// array.fill(..10, 8)?;
/// assert_eq!(large(&array)?, 10);
/// # Ok::<(), vmarray::Error>(())
/// ```
pub trait Select<'a>: View<'a> {
    /// Returns the elements within bounds that meet a condition, with their indices, in ascending order.
    ///
    /// The devices search and gather some thousands of elements at a time. Nothing else is copied, so the
    /// iterator needs bounded memory for any number of matches. If another thread writes to an element
    /// meanwhile, the iterator may return the new value.
    ///
    /// # Errors
    /// The errors of [`section`](View::section); [`ExpressionTooLong`](crate::ErrorKind::ExpressionTooLong).
    /// After an error of a device, the iterator returns it once and ends.
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// let array = VirtualArray::<[u32; 2]>::new(10_000)?;
    /// array.set(7, [1, 100])?;
    /// array.set(9000, [2, 200])?;
    /// let first = Field::<[u32; 2], [u32; 2]>::whole().nth::<0>();
    /// let found = array.select_where(.., first.gt(0))?.collect::<Result<Vec<_>, _>>()?;
    /// assert_eq!(found, [(7, [1, 100]), (9000, [2, 200])]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    fn select_where(
        self,
        bounds: impl RangeBounds<<Self as View<'a>>::Index>,
        condition: impl IntoExpr<Self::Element, bool>,
    ) -> Result<Selected<'a, Self>> {
        Selected::new(self, self.parts().1.checked(bounds)?, condition.into_expr())
    }
}

impl<'a, V: View<'a>> Select<'a> for V {}

/// Iterator over the elements that meet a condition, with their indices; see [`Select::select_where`].
///
/// ```
/// use vmarray::{expr::index, prelude::*};
///
/// let array = VirtualArray::<u32>::new(100_000)?;
/// let even = (index() % 2).eq(0);
/// assert_eq!(array.select_where(.., even)?.count(), 50_000);
/// # Ok::<(), vmarray::Error>(())
/// ```
pub struct Selected<'a, V: View<'a>> {
    search: Ordered<'a, V>,
    batch: usize,
    found: VecDeque<(<V as View<'a>>::Index, V::Element)>,
}

impl<'a, V: View<'a>> Selected<'a, V> {
    fn new(view: V, of: Range<<V as View<'a>>::Index>, condition: Expr<V::Element, bool>) -> Result<Self> {
        // Lower the condition now, so that an invalid condition fails before the first iteration.
        Condition::new(view.region().lowered(&of).condition(condition.clone()))?;
        let search = Ordered::new(view, of, condition);
        Ok(Self { search, batch: batch_len::<V::Element>(), found: VecDeque::new() })
    }

    /// Sets the number of elements fetched at a time, for tests.
    #[cfg(test)]
    pub(crate) fn by(self, batch: usize) -> Self {
        Self { batch, ..self }
    }

    #[cfg(test)]
    pub(crate) fn kept(&self) -> usize {
        self.found.len()
    }

    fn fetch(&mut self) -> Result<()> {
        let places = self.search.next(self.batch)?;
        let values = self.search.query.parts().0.collect(&places, INTERNAL)?;
        let indices = places.iter().filter_map(|place| self.search.shape.index_at(*place));
        let mut found: Vec<_> = indices.zip(values).collect();
        if !found.is_sorted_by_key(|(index, _)| *index) {
            found.sort_unstable_by_key(|(index, _)| *index);
        }
        self.found = found.into();
        Ok(())
    }
}

impl<'a, V: View<'a>> Iterator for Selected<'a, V> {
    type Item = Result<(<V as View<'a>>::Index, V::Element)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.found.is_empty()
            && let Err(error) = self.fetch()
        {
            self.search.rest.clear();
            return Some(Err(error));
        }
        self.found.pop_front().map(Ok)
    }
}

impl<'a, V: View<'a>> FusedIterator for Selected<'a, V> {}

impl<'a, V: View<'a>> fmt::Debug for Selected<'a, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Selected")
            .field("condition", &self.search.condition)
            .field("rest", &self.search.rest)
            .finish_non_exhaustive()
    }
}
