//! [`RaggedArray`]: an array of rows of different lengths.

mod builder;
mod growing;
mod kernel_arguments;
#[cfg(feature = "host")]
mod persistent_rows;
mod row;
#[cfg(feature = "host")]
mod stored;
mod writer;

use std::fmt;
use std::ops::Range;

use backend_api::Device;

use crate::array::VirtualArray;
use crate::array::builder::Builder;
use crate::array::range;
use crate::base::element::Element;
use crate::base::error::{ErrorKind, Result, index_outside};
use crate::ops::view::View as _;
use crate::setup::any::AnyDevice;

use growing::Growing;

pub use builder::RaggedBuilder;
pub use row::{RaggedRow, RowIter};
pub use writer::RaggedWriter;

#[cfg(feature = "host")]
use persistent_rows::RowsKept;
/// A placeholder in a build without files.
#[cfg(not(feature = "host"))]
type RowsKept = std::convert::Infallible;

/// Number of row offsets that are written, or read for an iteration, at once.
const CHUNK: usize = 4096;

/// The storage of the items of rows: an array of elements, another [`Ragged`] whose rows are the items, or a
/// type of the program.
///
/// ```
/// use vmarray::ragged::{Items, RaggedRow};
/// fn is_first<S: Items>(row: &RaggedRow<'_, S>) -> bool {
///     row.range().start == 0
/// }
/// let rows = vmarray::RaggedArray::<u8>::builder().with_lengths([4, 5])?;
/// assert!(is_first(&rows.row(0)?) && rows.item_count() == 2);
/// # Ok::<(), vmarray::Error>(())
/// ```
pub trait Items {
    /// Returns the number of items.
    fn item_count(&self) -> usize;

    /// Notifies the storage that its items become rows, so that reads will be short.
    #[doc(hidden)]
    fn are_in_rows(&self) {}
}

impl<T: Element, D: Device> Items for VirtualArray<T, D> {
    fn item_count(&self) -> usize {
        self.len()
    }

    fn are_in_rows(&self) {
        self.pager().read_parts();
    }
}

impl<S: Items, D: Device> Items for Ragged<S, D> {
    fn item_count(&self) -> usize {
        self.rows
    }
}

/// An array of rows of different lengths, whose elements follow one another in one virtual array.
///
/// ```
/// use vmarray::prelude::*;
/// let words = RaggedArray::<u8>::builder().from_rows(["so", "", "many", "words"])?;
/// assert_eq!((words.len(), words.item_total()), (4, 11));
/// assert_eq!(words.row(2)?.to_vec(..)?, b"many");
/// assert!(words.row(4).is_err());
/// let lengths = words.rows().map(|row| Ok(row?.len())).collect::<vmarray::Result<Vec<_>>>()?;
/// assert_eq!(lengths, [2, 0, 4, 5]);
/// // Searches go by the elements of all rows.
/// let found = words.items().find(Field::whole(), &b'o')?;
/// assert_eq!((&found[..], words.row_of(found[1])?), (&[1, 7][..], 3));
/// assert_eq!(words.offsets().to_vec(..5)?, [0, 2, 2, 6, 11]);
/// assert_eq!(words.to_vecs()?[1..3], [&b""[..], b"many"]);
/// assert_eq!(words.into_items().get(2)?, b'm');
/// # Ok::<(), vmarray::Error>(())
/// ```
pub type RaggedArray<T, D = AnyDevice> = Ragged<VirtualArray<T, D>, D>;

/// An array of rows of different lengths: each row consists of consecutive items.
///
/// Items are elements (in a [`RaggedArray`]) or rows themselves: a row of a `Ragged<RaggedArray<T>>` consists
/// of rows of elements. A second virtual array stores the offsets of the rows, eight bytes per row, so the
/// offsets may exceed RAM too. The lengths of rows are fixed; any number of threads may change their
/// elements. An array in [files](RaggedArray::create) outlives the program.
///
/// Create an array [from rows](RaggedBuilder::from_rows), [from lengths](RaggedBuilder::with_lengths), or
/// [from existing items](Self::new). Several threads can add rows at the same time with a [`RaggedWriter`],
/// which can also [extend](RaggedArray::into_writer) an existing array.
///
/// ```
/// use vmarray::{prelude::*, ragged::Ragged};
/// let words = RaggedArray::<u8>::builder().from_rows(["so", "many", "words", "in", "lines"])?;
/// // Three words in the first line, none in the second.
/// let lines = Ragged::new(words, [3, 0, 2], VirtualArray::builder(0))?;
/// assert_eq!(lines.row(2)?.row(1)?.to_vec(..)?, b"lines");
/// assert_eq!((lines.len(), lines.item_total(), lines.row_of(3)?), (3, 5, 2));
/// assert_eq!((lines.rows().len(), lines.items().to_vecs()?.len()), (3, 5));
/// assert_eq!((lines.offsets().get(3)?, lines.into_items().len()), (5, 5));
/// # Ok::<(), vmarray::Error>(())
/// ```
pub struct Ragged<S, D: Device = AnyDevice> {
    /// The index of each row's first item, and the end of the last row; later entries are unused.
    offsets: VirtualArray<u64, D>,
    rows: usize,
    /// The number of items of all rows together.
    total: usize,
    items: S,
    /// The stored number of rows, if the array is in files. The last field, because its drop stores the
    /// number after the other fields were stored.
    kept: Option<RowsKept>,
}

impl<S: Items, D: Device> Ragged<S, D> {
    /// Divides items into rows of the given lengths, in order. Items after the last row belong to no row.
    ///
    /// `offsets` has the settings of the array that stores the rows' offsets. The number of rows determines
    /// the length of this array.
    ///
    /// # Errors
    /// [`LengthMismatch`](ErrorKind::LengthMismatch) if there are too few items, and errors of
    /// [`Builder::build`] and [`ViewMut::write`](crate::views::ViewMut::write).
    pub fn new(items: S, lengths: impl IntoIterator<Item = usize>, offsets: Builder<u64, D>) -> Result<Self> {
        let (offsets, rows, total) = offsets_of(lengths, &offsets)?;
        if total > items.item_count() {
            let (expected, got) = (total, items.item_count());
            return Err(ErrorKind::LengthMismatch { of: "the view of the items", expected, got }.into());
        }
        Ok(Self::of(offsets, (rows, total), items))
    }

    /// Assembles an array of `rows` rows with `total` items. Enables direct reads, because a row is usually
    /// much shorter than a page: it is read from the page's home slot, until this has cost as much as a
    /// fetch.
    fn of(offsets: VirtualArray<u64, D>, (rows, total): (usize, usize), items: S) -> Self {
        offsets.pager().read_parts();
        items.are_in_rows();
        Self { offsets, rows, total, items, kept: None }
    }

    /// Returns the number of rows. [`item_total`](Self::item_total) is the number of all items.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows
    }

    /// Returns true if there are no rows. An array of empty rows is not empty.
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// assert!(!RaggedArray::<u8>::builder().from_rows([""])?.is_empty());
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Returns the number of items of all rows together.
    #[must_use]
    pub fn item_total(&self) -> usize {
        self.total
    }

    /// Returns the storage of all rows' items; unused items may follow [the last row](Self::item_total). For
    /// a [`RaggedArray`] this is the array of elements. Use it for operations without rows, such as searches
    /// on the devices, statistics and flushes.
    #[must_use]
    pub fn items(&self) -> &S {
        &self.items
    }

    /// Returns the array that stores the index of each row's first item, and then the end of the last row;
    /// later entries are unused. A flush of the items does not flush this array.
    #[must_use]
    pub fn offsets(&self) -> &VirtualArray<u64, D> {
        &self.offsets
    }

    /// Checks the range between two offsets, because the program may have changed them, and returns it.
    pub(crate) fn checked(&self, start: u64, end: u64) -> Result<Range<usize>> {
        range::checked(start as usize..end as usize, self.items.item_count())
    }

    /// Returns the index of the row that contains an item, by a binary search.
    ///
    /// # Errors
    /// [`IndexOutside`](ErrorKind::IndexOutside) for items behind the last row, and errors of
    /// [`VirtualArray::get`].
    pub fn row_of(&self, item: usize) -> Result<usize> {
        if item >= self.total {
            return Err(index_outside(item, self.total));
        }
        // Find the last row that begins at the item or before. This row is not empty, even if empty rows
        // begin at the same item.
        let (mut low, mut high) = (0, self.rows);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if self.offsets.get(middle)? as usize <= item { low = middle } else { high = middle }
        }
        Ok(low)
    }

    /// Returns the storage of the items, without their rows. If the array is in files, rows that were not
    /// [synced](RaggedArray::sync) may be lost.
    #[must_use]
    pub fn into_items(self) -> S {
        #[cfg(feature = "host")]
        self.kept.into_iter().for_each(RowsKept::leave);
        self.items
    }
}

impl<T: Element, D: Device> RaggedArray<T, D> {
    /// Copies each row to a vector.
    ///
    /// # Errors
    /// [`NoMemory`](ErrorKind::NoMemory), and errors of [`View::read`](crate::views::View::read).
    pub fn to_vecs(&self) -> Result<Vec<Vec<T>>> {
        self.rows().map(|row| row?.to_vec(..)).collect()
    }
}

impl<S: Items, D: Device> fmt::Debug for Ragged<S, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ragged").field("rows", &self.rows).field("items", &self.total).finish_non_exhaustive()
    }
}

/// Returns an array of the offsets of rows with these lengths, the number of rows, and their total length.
fn offsets_of<D: Device>(
    lengths: impl IntoIterator<Item = usize>,
    builder: &Builder<u64, D>,
) -> Result<(VirtualArray<u64, D>, usize, usize)> {
    let lengths = lengths.into_iter();
    let mut offsets = Growing::new(builder.resized(0), lengths.size_hint().0.saturating_add(1))?;
    let (mut total, mut rows) = (0_usize, 0);
    let mut chunk = vec![0_u64];
    for len in lengths {
        let too_long = ErrorKind::TooLong { elements: u64::MAX, element_bytes: 1 };
        total = total.checked_add(len).ok_or(too_long)?;
        rows += 1;
        chunk.push(total as u64);
        if chunk.len() == CHUNK {
            offsets.append(&chunk)?;
            chunk.clear();
        }
    }
    offsets.append(&chunk)?;
    Ok((offsets.into_array(), rows, total))
}
