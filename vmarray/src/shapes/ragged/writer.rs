//! Rows that many threads add at once.

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

/// Takes rows from any number of threads at once; [`freeze`](Self::freeze) makes a [`RaggedArray`] of them.
///
/// Rows are numbered in the order in which pushes begin. Threads share a lock for as long as it takes to add
/// two numbers, and copy at the same time, but for those that copy to one page; a thread that has many short
/// rows pushes them [together](Self::push_joined). Where the
/// [capacity](crate::ragged::RaggedBuilder::capacity) ends, the arrays [grow](VirtualArray#growth), and
/// nothing that is there is copied. Where devices cannot do that, and with parity, longer arrays are built
/// beside the present ones, of twice the length if there is room, and all threads wait while what is there is
/// copied: to fill more than half of such devices, state the capacity.
///
/// ```
/// use vmarray::{RaggedArray, prelude::*};
/// let writer = RaggedArray::<u32>::builder().capacity(100, 1000).writer()?;
/// std::thread::scope(|threads| {
///     for thread in 0..4 {
///         let writer = &writer;
///         threads.spawn(move || (0..25).try_for_each(|i| writer.push(&vec![thread; i]).map(drop)));
///     }
/// });
/// assert_eq!(writer.push_joined(&[7, 8, 9], &[1, 0, 2])?, 100..103);
/// assert_eq!((writer.row_count(), writer.first_incomplete()), (103, None));
/// // With nothing incomplete, the same as `freeze_complete`.
/// let rows = writer.freeze()?;
/// assert_eq!((rows.item_total(), rows.row(102)?.to_vec(..)?), (1203, vec![8, 9]));
/// # Ok::<(), vmarray::Error>(())
/// ```
pub struct RaggedWriter<T: Element, D: Device = AnyDevice> {
    /// Moves on under a share of `store`, and no further than that has room for.
    next: Mutex<Next>,
    pub(super) store: RwLock<WrittenRows<T, D>>,
    /// The first row that could not be written, and where it begins.
    failed: Mutex<Option<Next>>,
    /// Of rows in files. Last, as in [`Ragged`].
    pub(super) kept: Option<RowsKept>,
}

/// What the next push begins with.
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

    /// How many rows are written, when pushes that are under way are over: those before the first one that
    /// could not be.
    #[cfg(feature = "host")]
    pub(super) fn complete_rows(&self) -> usize {
        let _alone = self.store.write();
        self.first_incomplete().unwrap_or_else(|| self.row_count())
    }

    /// Adds a row and returns its number.
    ///
    /// # Errors
    /// [`TooLong`](ErrorKind::TooLong); what [`VirtualArray::reserve`] reports where there is no more memory,
    /// or, where longer arrays are built, [`NoRoomToGrow`](ErrorKind::NoRoomToGrow) and what
    /// [`Builder::build`] reports: nothing is done then, and shorter rows may still fit. What
    /// [`VirtualArray::write`](crate::views::ViewMut::write) reports: the row has a number then but no
    /// contents, and [`freeze`](Self::freeze) refuses.
    pub fn push(&self, row: &[T]) -> Result<usize> {
        self.push_joined(row, &[row.len()]).map(|rows| rows.start)
    }

    /// Adds several rows that follow one another in `elements`, and returns their numbers, which do so as
    /// well. Costs one reservation and two copies.
    ///
    /// # Errors
    /// As [`push`](Self::push); [`LengthMismatch`](ErrorKind::LengthMismatch), with nothing done, if the
    /// lengths are not those of the elements.
    pub fn push_joined(&self, elements: &[T], lengths: &[usize]) -> Result<Range<usize>> {
        let total = lengths.iter().try_fold(0_usize, |sum, len| sum.checked_add(*len));
        expect_len("the slice of all rows", total.unwrap_or(usize::MAX), elements.len())?;
        let first = loop {
            let store = self.store.read();
            if let Some(first) = self.reserve(&store, elements.len(), lengths.len())? {
                // Nobody replaces the arrays before this thread has written what it has reserved.
                store.write(first, elements, lengths).inspect_err(|_| self.note_failure(first))?;
                break first;
            }
            drop(store);
            self.grow(elements.len(), lengths.len())?;
        };
        Ok(first.row..first.row + lengths.len())
    }

    /// Where the next push would end that has so many elements in so many rows.
    fn end(next: Next, elements: usize, rows: usize) -> Result<Next> {
        let end = |first: usize, count: usize| first.checked_add(count).filter(|end| *end < usize::MAX);
        match (end(next.row, rows), end(next.element, elements)) {
            (Some(row), Some(element)) => Ok(Next { row, element }),
            _ => Err(ErrorKind::TooLong { elements: u64::MAX, element_bytes: size_of::<T>() }.into()),
        }
    }

    /// Row number and place of so many elements in so many rows, which are the caller's from now on;
    /// none if there is no room.
    fn reserve(&self, store: &WrittenRows<T, D>, elements: usize, rows: usize) -> Result<Option<Next>> {
        let mut next = self.next.lock();
        let end = Self::end(*next, elements, rows)?;
        let has_room = end.row < store.offsets.array().len() && end.element <= store.elements.array().len();
        Ok(has_room.then(|| std::mem::replace(&mut *next, end)))
    }

    /// Makes room for so many elements in so many rows more.
    fn grow(&self, elements: usize, rows: usize) -> Result<()> {
        let mut store = self.store.write();
        // Nobody is writing now, and all that was reserved is written.
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

    /// How many rows were pushed so far.
    pub fn row_count(&self) -> usize {
        self.next.lock().row
    }

    /// Ends writing. Nothing is copied; capacity that is left over stays with the array.
    ///
    /// # Errors
    /// [`RowIncomplete`](ErrorKind::RowIncomplete) if the contents of a row could not be written. All rows
    /// are lost then: [`freeze_complete`](Self::freeze_complete) keeps those before it.
    pub fn freeze(self) -> Result<RaggedArray<T, D>> {
        match self.first_incomplete() {
            Some(row) => Err(ErrorKind::RowIncomplete { row }.into()),
            None => Ok(self.freeze_complete()),
        }
    }

    /// The first row whose contents could not be written, if there is one.
    pub fn first_incomplete(&self) -> Option<usize> {
        self.failed.lock().map(|first| first.row)
    }

    /// Ends writing, and keeps the rows before the [first that could not be written](Self::first_incomplete):
    /// all of them, if there is none.
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
    /// Goes on writing: rows that are pushed come behind those that are there, of which nothing is copied.
    ///
    /// The arrays of elements and offsets have to be such as can [grow](VirtualArray#growth), or to have room
    /// left over: those of a writer, and of [`from_rows`](crate::ragged::RaggedBuilder::from_rows), are, if
    /// their devices can do that, and those in files. Else a push says
    /// [`LengthLimit`](ErrorKind::LengthLimit).
    ///
    /// ```
    /// use vmarray::{RaggedArray, prelude::*};
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
    /// Writes rows that were reserved.
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
