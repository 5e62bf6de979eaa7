//! [`RaggedWriter`]: adds rows to a ragged array from several threads at once.

use std::fmt;
use std::ops::Range;

use backend_api::Device;
use parking_lot::{Mutex, RwLock};

use super::growing::Growing;
use super::{Ragged, RaggedArray, RowsKept};
#[cfg(doc)]
use crate::array::VirtualArray;
use crate::array::builder::Builder;
use crate::base::element::Element;
use crate::base::error::{ErrorKind, Result, expect_len};
use crate::setup::any::AnyDevice;

/// A writer, which takes rows from several threads at once; [`freeze`](Self::freeze) makes a [`RaggedArray`].
///
/// Rows are numbered in the order in which pushes begin. A push takes a lock only to reserve the row's index
/// and elements. Threads then copy in parallel, unless they copy to the same page. For many short rows, use
/// [`push_joined`](Self::push_joined). Beyond the [capacity](crate::ragged::RaggedBuilder::capacity), the
/// arrays [grow](VirtualArray#growth) without copying. On devices whose memory cannot grow, the writer
/// instead builds longer arrays next to the current ones, twice as long if there is enough memory. It then
/// copies the elements while all threads wait. To fill more than half of such devices, set the capacity.
///
/// ```
/// use vmarray::prelude::*;
/// let writer = RaggedArray::<u32>::builder().capacity(100, 1000).writer()?;
/// assert!(writer.is_empty());
/// std::thread::scope(|threads| {
///     for thread in 0..4 {
///         let writer = &writer;
///         threads.spawn(move || (0..25).try_for_each(|i| writer.push(&vec![thread; i]).map(drop)));
///     }
/// });
/// assert_eq!(writer.push_joined(&[7, 8, 9], &[1, 0, 2])?, 100..103);
/// assert_eq!((writer.len(), writer.first_incomplete()), (103, None));
/// // With nothing incomplete, the same as `freeze_complete`.
/// let rows = writer.freeze()?;
/// assert_eq!((rows.item_total(), rows.row(102)?.to_vec(..)?), (1203, vec![8, 9]));
/// # Ok::<(), vmarray::Error>(())
/// ```
pub struct RaggedWriter<T: Element, D: Device = AnyDevice> {
    /// The next row and element to reserve. They advance under a shared lock of `store`, up to its length.
    next: Mutex<Next>,
    pub(super) store: RwLock<WrittenRows<T, D>>,
    /// The first row whose push failed, and the start of its elements.
    failed: Mutex<Option<Next>>,
    /// The stored number of rows, if the array is in files. The last field, as in [`Ragged`].
    pub(super) kept: Option<RowsKept>,
}

/// The row and the element at which the next push begins.
#[derive(Clone, Copy, Debug, Default)]
struct Next {
    row: usize,
    element: usize,
}

pub(super) struct WrittenRows<T: Element, D: Device> {
    pub(super) offsets: Growing<u64, D>,
    pub(super) elements: Growing<T, D>,
}

impl<T: Element, D: Device> RaggedWriter<T, D> {
    pub(super) fn new(
        elements: Builder<T, D>,
        offsets: Builder<u64, D>,
        (rows, capacity): (usize, usize),
    ) -> Result<Self> {
        let store = WrittenRows {
            offsets: Growing::in_place(offsets, rows.saturating_add(1))?,
            elements: Growing::in_place(elements, capacity)?,
        };
        Ok(Self::after(Next::default(), store, None))
    }

    fn after(next: Next, store: WrittenRows<T, D>, kept: Option<RowsKept>) -> Self {
        Self { next: Mutex::new(next), store: RwLock::new(store), failed: Mutex::default(), kept }
    }

    /// Waits for all pushes in progress, and returns the number of rows before the first failed one.
    #[cfg(feature = "host")]
    pub(super) fn complete_rows(&self) -> usize {
        let _alone = self.store.write();
        self.first_incomplete().unwrap_or_else(|| self.len())
    }

    /// Adds a row and returns its index.
    ///
    /// # Errors
    /// - [`TooLong`](ErrorKind::TooLong); if there is too little memory, errors of [`VirtualArray::reserve`]
    ///   or, if longer arrays are built, [`NoRoomToGrow`](ErrorKind::NoRoomToGrow) and errors of
    ///   [`Builder::build`]. The row is not added, and shorter rows may still fit.
    /// - Errors of [`VirtualArray::write`](crate::views::ViewMut::write). The row then has an index but no
    ///   contents, and [`freeze`](Self::freeze) returns an error.
    pub fn push(&self, row: &[T]) -> Result<usize> {
        self.push_joined(row, &[row.len()]).map(|rows| rows.start)
    }

    /// Adds several rows, whose elements are consecutive in `elements`, and returns their range of row
    /// indices. For any number of rows, the call needs one reservation and two copies.
    ///
    /// # Errors
    /// The errors of [`push`](Self::push); [`LengthMismatch`](ErrorKind::LengthMismatch), if the sum of the
    /// lengths differs from the number of elements; no row is added then.
    pub fn push_joined(&self, elements: &[T], lengths: &[usize]) -> Result<Range<usize>> {
        let total = lengths.iter().try_fold(0_usize, |sum, len| sum.checked_add(*len));
        expect_len("the slice of all rows", total.unwrap_or(usize::MAX), elements.len())?;
        let first = loop {
            let store = self.store.read();
            if let Some(first) = self.reserve(&store, elements.len(), lengths.len())? {
                // The shared lock of `store` keeps other threads from replacing the arrays until this thread
                // has written its reserved rows.
                store.write(first, elements, lengths).inspect_err(|_| self.note_failure(first))?;
                break first;
            }
            drop(store);
            self.grow(elements.len(), lengths.len())?;
        };
        Ok(first.row..first.row + lengths.len())
    }

    /// Returns the row and element after a push of `elements` elements in `rows` rows.
    fn end(next: Next, elements: usize, rows: usize) -> Result<Next> {
        let end = |first: usize, count: usize| first.checked_add(count).filter(|end| *end < usize::MAX);
        match (end(next.row, rows), end(next.element, elements)) {
            (Some(row), Some(element)) => Ok(Next { row, element }),
            _ => Err(ErrorKind::TooLong { elements: u64::MAX, element_bytes: size_of::<T>() }.into()),
        }
    }

    /// Reserves `rows` rows with `elements` elements, returns their start; `None` if arrays are too short.
    fn reserve(&self, store: &WrittenRows<T, D>, elements: usize, rows: usize) -> Result<Option<Next>> {
        let mut next = self.next.lock();
        let end = Self::end(*next, elements, rows)?;
        let has_room = end.row < store.offsets.array().len() && end.element <= store.elements.array().len();
        Ok(has_room.then(|| std::mem::replace(&mut *next, end)))
    }

    /// Makes the arrays long enough for `elements` more elements in `rows` more rows.
    fn grow(&self, elements: usize, rows: usize) -> Result<()> {
        let mut store = self.store.write();
        // The exclusive lock keeps all other threads from writing, so all reserved rows are written.
        let end = Self::end(*self.next.lock(), elements, rows)?;
        store.offsets.reserve(end.row + 1)?;
        store.elements.reserve(end.element)
    }

    fn note_failure(&self, first: Next) {
        let mut failed = self.failed.lock();
        if failed.is_none_or(|known| first.row < known.row) {
            *failed = Some(first);
        }
    }

    /// Returns the number of rows that all threads have pushed so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.next.lock().row
    }

    /// Returns true if no thread has pushed a row yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Ends writing, and returns the rows as an array without a copy. The array keeps unused capacity.
    ///
    /// # Errors
    /// [`RowIncomplete`](ErrorKind::RowIncomplete) if the contents of a row could not be written. All rows
    /// are then lost: [`freeze_complete`](Self::freeze_complete) keeps the rows before that row.
    pub fn freeze(self) -> Result<RaggedArray<T, D>> {
        match self.first_incomplete() {
            Some(row) => Err(ErrorKind::RowIncomplete { row }.into()),
            None => Ok(self.freeze_complete()),
        }
    }

    /// Returns the index of the first row whose push failed after it got its index, if any.
    pub fn first_incomplete(&self) -> Option<usize> {
        self.failed.lock().map(|first| first.row)
    }

    /// Ends writing, and returns the rows before the [first incomplete one](Self::first_incomplete), or all
    /// rows if none is incomplete.
    #[must_use]
    pub fn freeze_complete(self) -> RaggedArray<T, D> {
        let next = self.next.into_inner();
        let Next { row, element } = self.failed.into_inner().unwrap_or(next);
        let store = self.store.into_inner();
        let (offsets, items) = (store.offsets.into_array(), store.elements.into_array());
        let kept = self.kept;
        #[cfg(feature = "host")]
        let kept = kept.map(|kept| kept.of(row));
        Ragged { kept, ..Ragged::of(offsets, (row, element), items) }
    }
}

impl<T: Element, D: Device> RaggedArray<T, D> {
    /// Converts the array into a writer that adds rows after the existing ones, without a copy.
    ///
    /// The arrays of elements and offsets must be able to [grow](VirtualArray#growth), or have unused
    /// capacity. Arrays of a writer, of [`from_rows`](crate::ragged::RaggedBuilder::from_rows), and in files
    /// can grow, if their devices can. If an array cannot grow, a push returns
    /// [`LengthLimit`](ErrorKind::LengthLimit).
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// let words = RaggedArray::<u8>::builder().from_rows(["so", "many"])?;
    /// let writer = words.into_writer();
    /// assert_eq!(writer.push(b"more words")?, 2);
    /// let words = writer.freeze()?;
    /// assert_eq!(words.to_vecs()?, [&b"so"[..], b"many", b"more words"]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    #[must_use]
    pub fn into_writer(self) -> RaggedWriter<T, D> {
        let Self { offsets, rows, total, items, kept } = self;
        let store =
            WrittenRows { offsets: Growing::of(offsets, rows + 1), elements: Growing::of(items, total) };
        RaggedWriter::after(Next { row: rows, element: total }, store, kept)
    }
}

impl<T: Element, D: Device> WrittenRows<T, D> {
    /// Writes the elements and offsets of reserved rows.
    fn write(&self, first: Next, elements: &[T], lengths: &[usize]) -> Result<()> {
        self.elements.array().write_unseen(first.element, elements)?;
        let mut end = first.element as u64;
        if let [len] = lengths {
            return self.offsets.array().set(first.row + 1, end + *len as u64);
        }
        let ends = lengths.iter().map(|len| {
            end += *len as u64;
            end
        });
        self.offsets.array().write_unseen(first.row + 1, &ends.collect::<Vec<_>>())
    }
}

impl<T: Element, D: Device> fmt::Debug for RaggedWriter<T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RaggedWriter").field("next", &*self.next.lock()).finish_non_exhaustive()
    }
}
