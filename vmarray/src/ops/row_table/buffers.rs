//! Memory of the GPU that a program passes to a table: ids, rows, and the bags of a sum.

use backend_api::{StreamLayout, StreamView};

use super::formats::RowFormat;

/// The result for an id that is not the number of a row. Negative ids are no numbers of rows.
///
/// ```
/// use vmarray::rows::OutOfRange;
/// assert_eq!(OutOfRange::default(), OutOfRange::Error);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OutOfRange {
    /// A row of zeros, and an error of a later call: the first one after the kernel has read the id.
    #[default]
    Error,
    /// A row of zeros.
    Zeros,
}

/// Numbers in the memory of the GPU: ids of rows, or offsets of bags.
///
/// ```
/// use vmarray::rows::IdBuffer;
/// let ids = IdBuffer { address: 0x1000, count: 10, bytes: 8 };
/// assert_eq!(ids.bytes, 8);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdBuffer {
    /// Address for kernels of the GPU, a multiple of `bytes`.
    pub address: u64,
    /// Number of ids.
    pub count: usize,
    /// Bytes of an id: 4 for `i32`, 8 for `i64`.
    pub bytes: usize,
}

/// Contiguous rows in the memory of the GPU.
///
/// ```
/// use vmarray::rows::{RowBuffer, RowFormat};
/// let rows = RowBuffer { address: 0x1000, format: RowFormat::F32 };
/// assert_eq!(rows.format.bytes(), 4);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowBuffer {
    /// Address for kernels of the GPU, a multiple of the elements' length.
    pub address: u64,
    /// Format of the elements.
    pub format: RowFormat,
}

/// Ranges of a list of ids, for [`sum_into`](super::RowTable::sum_into).
///
/// ```
/// use vmarray::rows::{Bags, IdBuffer};
/// let offsets = IdBuffer { address: 0x1000, count: 4, bytes: 8 };
/// let bags = Bags { offsets, count: 4, weights: None };
/// assert_eq!(bags.count, 4);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bags {
    /// For each bag, the position in the list of its first id. A bag ends at the next offset or, if there is
    /// none, at the end of the list.
    pub offsets: IdBuffer,
    /// Number of bags: the number of offsets, or one less.
    pub count: usize,
    /// Address of an `f32` for each id of the list, the factor of its row.
    pub weights: Option<u64>,
}

/// A view of a kernel, with the layout that the kernel is compiled for.
pub(super) type RowView<'a> = (StreamLayout, StreamView<'a>);

/// Contiguous elements: their number and start address.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RowExtent {
    pub count: u64,
    pub start: [u64; 1],
}

impl RowExtent {
    pub const fn new(count: u64, start: u64) -> Self {
        Self { count, start: [start] }
    }

    /// Returns the view of the elements, of `stride` bytes each.
    pub const fn of(&self, stride: u64) -> RowView<'_> {
        (StreamLayout::contiguous(stride), StreamView { count: self.count, starts: &self.start })
    }
}

/// A checked list, with the views that most kernels have.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CheckedList {
    pub count: u64,
    /// Words of an id; 0 for a list without ids, of the first `count` rows.
    pub id_words: u64,
    /// The words of the ids.
    pub ids: RowExtent,
    /// The words of the status; none if ids out of range are no error.
    pub status: RowExtent,
}

impl CheckedList {
    /// Returns a part of the list.
    pub fn part(&self, first: u64, count: u64) -> Self {
        let start = self.ids.start[0] + 4 * first * self.id_words;
        Self { count, ids: RowExtent::new(count * self.id_words, start), ..*self }
    }
}

/// Returns the greatest power of two, at most 16, that divides an address.
pub(super) fn alignment(address: u64) -> u64 {
    1 << (address | 16).trailing_zeros()
}
