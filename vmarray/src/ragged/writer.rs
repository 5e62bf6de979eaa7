//! Rows that many threads add at once.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use backend_api::Device;
use parking_lot::{Mutex, RwLock};

use super::growing::Growing;
use super::{Ragged, RaggedArray};
use crate::any::AnyDevice;
use crate::builder::Builder;
use crate::element::Element;
use crate::error::{ErrorKind, Result};

/// Takes rows from any number of threads at once; [`freeze`](Self::freeze) makes a [`RaggedArray`] of them.
///
/// Rows are numbered in the order in which pushes begin. Threads share a lock for as long as it takes to add two
/// numbers, and copy at the same time, but for those that copy to one page; whoever has many short rows
/// pushes them [together](Self::push_joined). Where the capacity ends, arrays of at least twice the length are built,
/// and all threads wait while what is there is copied.
///
/// ```
/// use vmarray::RaggedArray;
/// let writer = RaggedArray::<u32>::builder().capacity(100, 1000).writer()?;
/// std::thread::scope(|threads| {
///     for thread in 0..4 {
///         let writer = &writer;
///         threads.spawn(move || (0..25).try_for_each(|i| writer.push(&vec![thread; i]).map(drop)));
///     }
/// });
/// let rows = writer.freeze()?;
/// assert_eq!((rows.row_count(), rows.item_total()), (100, 1200));
/// # Ok::<(), vmarray::Error>(())
/// ```
pub struct RaggedWriter<T: Element, D: Device = AnyDevice> {
    next: Mutex<Next>,
    store: RwLock<Store<T, D>>,
    /// The first row that could not be written.
    failed: AtomicUsize,
}

/// What the next push begins with.
#[derive(Clone, Copy, Debug, Default)]
struct Next {
    row: usize,
    element: usize,
}

struct Store<T: Element, D: Device> {
    offsets: Growing<u64, D>,
    elements: Growing<T, D>,
}

impl<T: Element, D: Device> RaggedWriter<T, D> {
    pub(super) fn new(
        elements: Builder<T, D>,
        offsets: Builder<u64, D>,
        (rows, capacity): (usize, usize),
    ) -> Result<Self> {
        let store = Store {
            offsets: Growing::new(offsets, rows.saturating_add(1))?,
            elements: Growing::new(elements, capacity)?,
        };
        Ok(Self { next: Mutex::default(), store: RwLock::new(store), failed: AtomicUsize::new(usize::MAX) })
    }

    /// Adds a row and returns its number.
    ///
    /// # Errors
    /// [`TooLong`](ErrorKind::TooLong), and what [`Builder::build`] and
    /// [`VirtualArray::write`](crate::VirtualArray::write) report; the row has a number then but no contents, and
    /// [`freeze`](Self::freeze) refuses.
    ///
    /// ```
    /// let writer = vmarray::RaggedArray::<u8>::builder().writer()?;
    /// assert_eq!((writer.push(b"one")?, writer.push(b"two")?), (0, 1));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn push(&self, row: &[T]) -> Result<usize> {
        self.push_joined(row, &[row.len()]).map(|rows| rows.start)
    }

    /// Adds several rows that follow one another in `elements`, and returns their numbers, which do so as well. Costs
    /// one reservation and two copies.
    ///
    /// # Errors
    /// As [`push`](Self::push); [`LengthMismatch`](ErrorKind::LengthMismatch), with nothing done, if the lengths are
    /// not those of the elements.
    ///
    /// ```
    /// let writer = vmarray::RaggedArray::<u8>::builder().writer()?;
    /// assert_eq!(writer.push_joined(b"somanywords", &[2, 4, 5])?, 0..3);
    /// assert_eq!(writer.freeze()?.row(1)?.to_vec(..)?, b"many");
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn push_joined(&self, elements: &[T], lengths: &[usize]) -> Result<Range<usize>> {
        let total = lengths.iter().try_fold(0_usize, |sum, len| sum.checked_add(*len));
        if total != Some(elements.len()) {
            let expected = total.unwrap_or(usize::MAX);
            return Err(ErrorKind::LengthMismatch { expected, got: elements.len() }.into());
        }
        let first = {
            let mut next = self.next.lock();
            let first = *next;
            let too_long = ErrorKind::TooLong { elements: u64::MAX, element_bytes: size_of::<T>() };
            next.element = first.element.checked_add(elements.len()).ok_or(too_long)?;
            next.row += lengths.len();
            first
        };
        self.store(first, elements, lengths).inspect_err(|_| {
            self.failed.fetch_min(first.row, Ordering::Relaxed);
        })?;
        Ok(first.row..first.row + lengths.len())
    }

    fn store(&self, first: Next, elements: &[T], lengths: &[usize]) -> Result<()> {
        let mut end = first.element as u64;
        let mut ends = Vec::with_capacity(lengths.len());
        for len in lengths {
            end += *len as u64;
            ends.push(end);
        }
        let (last_row, last_element) = (first.row + lengths.len(), first.element + elements.len());
        loop {
            let store = self.store.read();
            if last_row < store.offsets.array().len() && last_element <= store.elements.array().len() {
                store.elements.array().write(first.element, elements)?;
                return match ends[..] {
                    [end] => store.offsets.array().set(last_row, end),
                    _ => store.offsets.array().write(first.row + 1, &ends),
                };
            }
            drop(store);
            let mut store = self.store.write();
            // Nobody is writing now; others may have reserved places up to the old ends, and written them or not.
            store.offsets.reserve(last_row + 1)?;
            store.elements.reserve(last_element)?;
        }
    }

    /// How many rows were pushed so far.
    ///
    /// ```
    /// let writer = vmarray::RaggedArray::<u8>::builder().writer()?;
    /// writer.push(b"one")?;
    /// assert_eq!(writer.row_count(), 1);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn row_count(&self) -> usize {
        self.next.lock().row
    }

    /// Ends writing. Nothing is copied; capacity that is left over stays with the array.
    ///
    /// # Errors
    /// [`RowIncomplete`](ErrorKind::RowIncomplete) if a push has failed.
    ///
    /// ```
    /// let writer = vmarray::RaggedArray::<u8>::builder().writer()?;
    /// writer.push(b"one")?;
    /// assert_eq!(writer.freeze()?.to_vecs()?, [b"one"]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn freeze(self) -> Result<RaggedArray<T, D>> {
        let failed = self.failed.into_inner();
        if failed != usize::MAX {
            return Err(ErrorKind::RowIncomplete { row: failed }.into());
        }
        let store = self.store.into_inner();
        let (offsets, items) = (store.offsets.into_array(), store.elements.into_array());
        let Next { row, element } = self.next.into_inner();
        Ok(Ragged { offsets, rows: row, total: element, items })
    }
}

impl<T: Element, D: Device> fmt::Debug for RaggedWriter<T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RaggedWriter").field("next", &*self.next.lock()).finish_non_exhaustive()
    }
}
