//! Iteration over the elements that meet a condition, in order and in bounded memory.

use std::collections::VecDeque;
use std::fmt;
use std::iter::FusedIterator;
use std::marker::PhantomData;
use std::ops::Range;

use super::Condition;
use crate::base::element::Element;
use crate::base::error::Result;
use crate::ops::expr::Expr;
use crate::ops::view::{INTERNAL, Query, Shape, Store, View};

/// The number of elements fetched at a time, at most.
const BATCH: usize = 16 << 10;
/// The number of bytes fetched at a time, at most.
const BATCH_BYTES: usize = 4 << 20;

/// The number of elements fetched at a time.
fn batch_len<T: Element>() -> usize {
    (BATCH_BYTES / size_of::<T>()).clamp(1, BATCH)
}

/// A search that returns matches in the order of their indices, a batch at a time.
pub(crate) struct Ordered<'a, Q: Query<'a>> {
    query: Q,
    shape: Q::Shape,
    condition: Expr<Q::Row, bool>,
    /// The regions not yet searched, each with the place where the search continues; the next region is
    /// last.
    rest: Vec<(Range<Q::Index>, usize)>,
    marker: PhantomData<&'a ()>,
}

impl<'a, Q: Query<'a>> Ordered<'a, Q> {
    pub(crate) fn new(query: Q, of: Range<Q::Index>, condition: Expr<Q::Row, bool>) -> Self {
        let mut search =
            Self { query, shape: query.region(), condition, rest: Vec::new(), marker: PhantomData };
        search.push(of, 0);
        search
    }

    fn push(&mut self, of: Range<Q::Index>, from: usize) {
        if self.shape.cut(&of).count() > 0 {
            self.rest.push((of, from));
        }
    }

    /// Returns the first `limit` indices.
    pub(crate) fn first(&mut self, limit: usize) -> Result<Vec<Q::Index>> {
        let mut indices = Vec::new();
        while indices.len() < limit {
            let places = self.next(limit - indices.len())?;
            if places.is_empty() {
                break;
            }
            let start = indices.len();
            indices.extend(places.iter().filter_map(|place| self.shape.index_at(*place)));
            indices[start..].sort_unstable();
        }
        Ok(indices)
    }

    /// Returns the next places in ascending order; none at the end.
    fn next(&mut self, limit: usize) -> Result<Vec<usize>> {
        while let Some((of, from)) = self.rest.pop() {
            let lowered = self.shape.lowered(&of);
            let range = lowered.range.start.max(from)..lowered.range.end;
            if range.is_empty() {
                continue;
            }
            let condition = Condition::new(lowered.condition(self.condition.clone()))?;
            let mut found = self.query.ask(&range, &condition.seek(limit, false), INTERNAL)?.indices;
            if found.len() == limit {
                for (of, from) in self.shape.rest(of, &mut found) {
                    self.push(of, from);
                }
            }
            if !found.is_empty() {
                return Ok(found);
            }
        }
        Ok(Vec::new())
    }
}

/// Iterator over the elements that meet a condition, with their indices; see [`View::select_where`].
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
    pub(crate) fn new(
        view: V,
        of: Range<<V as View<'a>>::Index>,
        condition: Expr<V::Element, bool>,
    ) -> Result<Self> {
        // An invalid condition is refused immediately.
        Condition::new(view.region().lowered(&of).condition(condition.clone()))?;
        let search = Ordered::new(view, of, condition);
        Ok(Self { search, batch: batch_len::<V::Element>(), found: VecDeque::new() })
    }

    /// Sets the number of elements fetched at a time.
    #[cfg(test)]
    pub(crate) fn by(self, batch: usize) -> Self {
        Self { batch, ..self }
    }

    /// The number of elements buffered.
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
