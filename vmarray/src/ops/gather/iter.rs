//! Gathers and scatters of lists that are longer than RAM: chunk by chunk.

use std::fmt;
use std::iter::FusedIterator;
use std::ops::Range;

use backend_api::Device;

use crate::array::VirtualArray;
use crate::base::element::Element;
use crate::base::error::{ErrorKind, Result};
use crate::base::memory::zeroed_vec;
use crate::setup::any::AnyDevice;

/// What a chunk takes of RAM, in bytes of indices and values.
const CHUNK_BYTES: usize = 32 << 20;

/// Elements of a chunk.
fn chunk_len<T>() -> usize {
    (CHUNK_BYTES / (size_of::<usize>() + size_of::<T>())).max(1)
}

/// An iterator over the elements of a sequence of indices: what [`VirtualArray::gather_iter`] and
/// [`Section::gather_iter`](crate::Section::gather_iter) return.
///
/// Ends after the first error.
///
/// ```
/// let array = vmarray::VirtualArray::<u32>::new(100)?;
/// array.set(5, 55)?;
/// let values: Vec<u32> = array.gather_iter([5, 6]).collect::<vmarray::Result<_>>()?;
/// assert_eq!(values, [55, 0]);
/// let mut outside = array.gather_iter([100]);
/// assert!(outside.next().is_some_and(|value| value.is_err()));
/// assert!(outside.next().is_none());
/// # Ok::<(), vmarray::Error>(())
/// ```
#[must_use = "iterators are lazy: nothing is read unless they are consumed"]
pub struct Gathered<'a, T: Element, I, D: Device = AnyDevice> {
    array: &'a VirtualArray<T, D>,
    /// Where the indices count from, and what they are to lie within.
    range: Range<usize>,
    source: I,
    indices: Vec<usize>,
    values: Vec<T>,
    /// The first value of the chunk that was not given out.
    next: usize,
    /// How many indices came before the chunk.
    before: usize,
    is_over: bool,
}

impl<T: Element, D: Device> VirtualArray<T, D> {
    /// The elements of a sequence of indices of any length, gathered in chunks.
    ///
    /// A chunk takes 32 MiB of RAM, and is [gathered](Self::gather) when its first element is asked for: so the
    /// indices run ahead of the elements.
    ///
    /// ```
    /// let array = vmarray::VirtualArray::<u64>::new(1_000_000)?;
    /// array.fill(.., 3)?;
    /// let sum: u64 = array.gather_iter((0..array.len()).step_by(7)).sum::<Result<u64, _>>()?;
    /// assert_eq!(sum, 3 * 142_858);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn gather_iter<I: IntoIterator<Item = usize>>(&self, indices: I) -> Gathered<'_, T, I::IntoIter, D> {
        self.gather_iter_within(0..self.len(), indices)
    }

    /// [`gather_iter`](Self::gather_iter) with indices that count from the start of a range and are to lie within it.
    pub(crate) fn gather_iter_within<I: IntoIterator<Item = usize>>(
        &self,
        range: Range<usize>,
        indices: I,
    ) -> Gathered<'_, T, I::IntoIter, D> {
        Gathered {
            array: self,
            range,
            source: indices.into_iter(),
            indices: Vec::new(),
            values: Vec::new(),
            next: 0,
            before: 0,
            is_over: false,
        }
    }

    /// Writes a sequence of elements of any length, each with its index, in chunks of 32 MiB, each of which is
    /// [scattered](Self::scatter) as soon as it is full. Returns how many there were.
    ///
    /// # Errors
    /// As [`scatter`](Self::scatter), at the first chunk that something is wrong with; those before it are written
    /// then.
    ///
    /// ```
    /// let array = vmarray::VirtualArray::<u64>::new(1_000_000)?;
    /// let count = array.scatter_iter((0..array.len()).step_by(7).map(|i| (i, i as u64)))?;
    /// assert_eq!(count, 142_858);
    /// assert_eq!(array.get(77)?, 77);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn scatter_iter(&self, elements: impl IntoIterator<Item = (usize, T)>) -> Result<usize> {
        self.scatter_iter_within(0..self.len(), elements)
    }

    /// [`scatter_iter`](Self::scatter_iter) with indices that count from the start of a range and are to lie within it.
    pub(crate) fn scatter_iter_within(
        &self,
        range: Range<usize>,
        elements: impl IntoIterator<Item = (usize, T)>,
    ) -> Result<usize> {
        let (mut indices, mut values) = (Vec::new(), Vec::new());
        let mut count = 0;
        let mut elements = elements.into_iter();
        loop {
            for (index, value) in elements.by_ref().take(chunk_len::<T>()) {
                indices.push(index);
                values.push(value);
            }
            if indices.is_empty() {
                return Ok(count);
            }
            self.scatter_within(range.clone(), &indices, &values)
                .map_err(|error| further_on(error, count))?;
            count += indices.len();
            indices.clear();
            values.clear();
        }
    }
}

/// An error in a list that comes after `before` others.
fn further_on(error: crate::Error, before: usize) -> crate::Error {
    match *error.kind() {
        ErrorKind::ListedIndexOutside { position, index, len } => {
            ErrorKind::ListedIndexOutside { position: position + before, index, len }.into()
        }
        _ => error,
    }
}

impl<T: Element, I: Iterator<Item = usize>, D: Device> Gathered<'_, T, I, D> {
    /// The next chunk as a whole: indices and elements, less what [`next`](Iterator::next) has given out of it. `None`
    /// at the end.
    ///
    /// # Errors
    /// As [`gather`](VirtualArray::gather), with positions in the whole sequence.
    ///
    /// ```
    /// let array = vmarray::VirtualArray::<u64>::new(1000)?;
    /// array.set(6, 5)?;
    /// let mut gathered = array.gather_iter([3, 6, 9]);
    /// while let Some((indices, values)) = gathered.next_chunk()? {
    ///     assert_eq!((indices, values), (&[3, 6, 9][..], &[0, 5, 0][..]));
    /// }
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn next_chunk(&mut self) -> Result<Option<(&[usize], &[T])>> {
        if self.next == self.indices.len() && !self.advance()? {
            return Ok(None);
        }
        let first = std::mem::replace(&mut self.next, self.indices.len());
        Ok(Some((&self.indices[first..], &self.values[first..self.indices.len()])))
    }

    /// Gathers the next chunk; false at the end.
    fn advance(&mut self) -> Result<bool> {
        self.before += self.indices.len();
        self.next = 0;
        // Apart, so that there are never indices without their values, whatever the program's iterator does.
        let mut indices = std::mem::take(&mut self.indices);
        indices.clear();
        if self.is_over {
            return Ok(false);
        }
        indices.extend(self.source.by_ref().take(chunk_len::<T>()));
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
        let gathered = self.array.gather_into_within(self.range.clone(), &self.indices, into);
        gathered.map_err(|error| further_on(error, self.before))
    }
}

impl<T: Element, I: Iterator<Item = usize>, D: Device> Iterator for Gathered<'_, T, I, D> {
    type Item = Result<T>;

    fn next(&mut self) -> Option<Result<T>> {
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
        // An error ends it early.
        (least.saturating_add(left).min(left + 1), most.and_then(|most| most.checked_add(left)))
    }
}

impl<T: Element, I: Iterator<Item = usize>, D: Device> FusedIterator for Gathered<'_, T, I, D> {}

impl<T: Element, I, D: Device> fmt::Debug for Gathered<'_, T, I, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gathered").field("given", &(self.before + self.next)).finish_non_exhaustive()
    }
}
