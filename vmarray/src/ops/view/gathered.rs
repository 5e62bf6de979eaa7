//! Gathers and scatters with index lists of any length, also longer than RAM, chunk by chunk.

use std::fmt;
use std::iter::FusedIterator;

use super::shape::Shape;
use super::store::{Store, StoreMut};
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::memory::zeroed_vec;
use crate::ops::sealed::INTERNAL;

/// The size of a chunk in RAM, in bytes of indices and values.
const CHUNK_BYTES: usize = 32 << 20;

fn chunk_len<I, T>() -> usize {
    (CHUNK_BYTES / (size_of::<I>() + size_of::<T>())).max(1)
}

/// An iterator over elements, in the order of a sequence of indices. Returned by
/// [`View::gather_iter`](crate::views::View::gather_iter).
///
/// A chunk takes 32 MiB of RAM. The iterator gathers a chunk when its first element is needed, and therefore
/// takes indices from the sequence ahead of the elements. The iterator ends after the first error.
///
/// ```
/// use vmarray::prelude::*;
/// let array = VirtualArray::<u32>::new(100)?;
/// array.set(5, 55)?;
/// let values: Vec<u32> = array.gather_iter([5, 6]).collect::<vmarray::Result<_>>()?;
/// assert_eq!(values, [55, 0]);
/// let mut outside = array.gather_iter([100]);
/// assert!(outside.next().is_some_and(|value| value.is_err()));
/// assert!(outside.next().is_none());
/// # Ok::<(), vmarray::Error>(())
/// ```
#[must_use = "iterators are lazy: nothing is read unless they are consumed"]
pub struct Gathered<'a, S: Store, X: Shape, I> {
    store: &'a S,
    shape: X,
    source: I,
    indices: Vec<X::Index>,
    values: Vec<S::Element>,
    /// The first value of the chunk that was not returned yet.
    next: usize,
    /// The number of indices before the present chunk.
    before: usize,
    is_over: bool,
}

/// Writes a sequence of elements chunk by chunk. Returns the number of elements.
pub(super) fn scatter_chunks<S: StoreMut, X: Shape>(
    store: &S,
    shape: &X,
    elements: impl IntoIterator<Item = (X::Index, S::Element)>,
) -> Result<usize> {
    let (mut indices, mut values) = (Vec::new(), Vec::new());
    let mut count = 0;
    let mut elements = elements.into_iter();
    loop {
        for (index, value) in elements.by_ref().take(chunk_len::<X::Index, S::Element>()) {
            indices.push(index);
            values.push(value);
        }
        if indices.is_empty() {
            return Ok(count);
        }
        let scattered =
            shape.list(&indices).and_then(|(of, list)| store.scatter_within(of, &list, &values, INTERNAL));
        scattered.map_err(|error| further_on(error, count))?;
        count += indices.len();
        indices.clear();
        values.clear();
    }
}

/// Converts an error of a chunk to an error of the whole sequence. `before` elements precede the chunk.
fn further_on(error: Error, before: usize) -> Error {
    match *error.kind() {
        ErrorKind::ListedIndexOutside { position, index, len } => {
            ErrorKind::ListedIndexOutside { position: position + before, index, len }.into()
        }
        _ => error,
    }
}

impl<'a, S: Store, X: Shape, I: Iterator<Item = X::Index>> Gathered<'a, S, X, I> {
    pub(super) fn new(store: &'a S, shape: X, source: I) -> Self {
        Self {
            store,
            shape,
            source,
            indices: Vec::new(),
            values: Vec::new(),
            next: 0,
            before: 0,
            is_over: false,
        }
    }

    /// Returns the indices and elements that remain in the current chunk, or the next chunk if
    /// [`next`](Iterator::next) has returned all of them. Returns `None` at the end.
    ///
    /// # Errors
    /// The errors of [`gather`](crate::views::View::gather), with positions in the whole sequence.
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// let array = vmarray::VirtualArray::<u64>::new(1000)?;
    /// array.set(6, 5)?;
    /// let mut gathered = array.gather_iter([3, 6, 9]);
    /// while let Some((indices, values)) = gathered.next_chunk()? {
    ///     assert_eq!((indices, values), (&[3, 6, 9][..], &[0, 5, 0][..]));
    /// }
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    #[expect(clippy::type_complexity, reason = "a pair of slices")]
    pub fn next_chunk(&mut self) -> Result<Option<(&[X::Index], &[S::Element])>> {
        if self.next == self.indices.len() && !self.advance()? {
            return Ok(None);
        }
        let first = std::mem::replace(&mut self.next, self.indices.len());
        Ok(Some((&self.indices[first..], &self.values[first..self.indices.len()])))
    }

    /// Gathers the next chunk. Returns false at the end of the sequence.
    fn advance(&mut self) -> Result<bool> {
        self.before += self.indices.len();
        self.next = 0;
        // Collect the indices in a separate vector, because the program's iterator may panic. Even after a
        // panic, `self` has no indices without values.
        let mut indices = std::mem::take(&mut self.indices);
        indices.clear();
        if self.is_over {
            return Ok(false);
        }
        indices.extend(self.source.by_ref().take(chunk_len::<X::Index, S::Element>()));
        self.indices = indices;
        self.is_over = self.indices.is_empty();
        if self.is_over {
            return Ok(false);
        }
        let result = self.fill();
        if result.is_err() {
            self.indices.clear();
            self.is_over = true;
        }
        result.map(|()| true)
    }

    fn fill(&mut self) -> Result<()> {
        let count = self.indices.len();
        if self.values.len() < count {
            self.values = zeroed_vec(count)?;
        }
        let into = &mut self.values[..count];
        let listed = self.shape.list(&self.indices);
        let gathered = listed.and_then(|(of, list)| self.store.gather_within(of, &list, into, INTERNAL));
        gathered.map_err(|error| further_on(error, self.before))
    }
}

impl<S: Store, X: Shape, I: Iterator<Item = X::Index>> Iterator for Gathered<'_, S, X, I> {
    type Item = Result<S::Element>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.next == self.indices.len() {
            match self.advance() {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => return Some(Err(error)),
            }
        }
        let value = self.values[self.next];
        self.next += 1;
        Some(Ok(value))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        if self.is_over {
            let left = self.indices.len() - self.next;
            return (left, Some(left));
        }
        let left = self.indices.len() - self.next;
        let (least, most) = self.source.size_hint();
        // The next chunk may be an error, which ends the iterator. So the lower bound is at most `left + 1`.
        (least.saturating_add(left).min(left + 1), most.and_then(|most| most.checked_add(left)))
    }
}

impl<S: Store, X: Shape, I: Iterator<Item = X::Index>> FusedIterator for Gathered<'_, S, X, I> {}

impl<S: Store, X: Shape, I> fmt::Debug for Gathered<'_, S, X, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gathered").field("given", &(self.before + self.next)).finish_non_exhaustive()
    }
}
