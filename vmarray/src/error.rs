//! What can go wrong with an array.

use std::fmt;
use std::ops::Range;

/// A result of this crate.
///
/// ```
/// use vmarray::{Result, VirtualArray};
/// fn swap(array: &VirtualArray<u32>, a: usize, b: usize) -> Result<()> {
///     let old = array.replace(a, array.get(b)?)?;
///     array.set(b, old)
/// }
/// let array = VirtualArray::new(2)?;
/// array.set(0, 7)?;
/// swap(&array, 0, 1)?;
/// assert_eq!(array.to_vec(..)?, [0, 7]);
/// # Ok::<(), vmarray::Error>(())
/// ```
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, with the values that belong to it.
///
/// ```
/// use vmarray::{ErrorKind, VirtualArray};
/// let array = VirtualArray::<u32>::new(100)?;
/// match array.read(90, &mut [0; 20]).unwrap_err().kind() {
///     ErrorKind::RangeOutside { end, len, .. } => assert_eq!((*end, *len), (110, 100)),
///     other => panic!("{other}"),
/// }
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An index is not below the length.
    #[error("index {index} is outside of an array of {len} elements")]
    IndexOutside {
        /// The index.
        index: usize,
        /// The array's length.
        len: usize,
    },
    /// An index of a list is not below the length.
    #[error("index {index} at place {position} of the list is outside of an array of {len} elements")]
    ListedIndexOutside {
        /// Where in the list the first such index stands.
        position: usize,
        /// The index.
        index: usize,
        /// The array's length.
        len: usize,
    },
    /// A range ends after the last element.
    #[error("range {start}..{end} is outside of an array of {len} elements")]
    RangeOutside {
        /// The range's start.
        start: usize,
        /// The range's end.
        end: usize,
        /// The array's length.
        len: usize,
    },
    /// A range ends before it starts.
    #[error("range {start}..{end} is reversed")]
    RangeReversed {
        /// The range's start.
        start: usize,
        /// The range's end.
        end: usize,
    },
    /// Two lengths that have to be equal are not.
    #[error("{expected} elements are wanted, {got} were given")]
    LengthMismatch {
        /// What is wanted.
        expected: usize,
        /// What was given.
        got: usize,
    },
    /// The elements have more bytes than can be counted.
    #[error("{elements} elements of {element_bytes} bytes each are more than can be addressed")]
    TooLong {
        /// How many elements.
        elements: u64,
        /// Bytes of one.
        element_bytes: usize,
    },
    /// A page length of no elements.
    #[error("a page must have at least one element")]
    ZeroPageLength,
    /// Memory of the program does not begin where an element may.
    #[error("memory at {address:#x} is not aligned to {align} bytes, as its elements have to be")]
    Misaligned {
        /// Where it begins.
        address: usize,
        /// What that has to be a multiple of.
        align: usize,
    },
    /// A page does not fit into memory, or into its length's type.
    #[error("a page of {page_len} elements of {element_bytes} bytes each is too long")]
    PageTooLong {
        /// Elements of a page.
        page_len: usize,
        /// Bytes of one.
        element_bytes: usize,
    },
    /// An index along one axis is outside of a shape.
    #[error("index {index} of axis {axis} is outside of an extent of {extent} elements")]
    PositionOutside {
        /// The axis.
        axis: usize,
        /// The index along it; negative ones are possible where boundaries are.
        index: i128,
        /// How many elements the shape has along it.
        extent: usize,
    },
    /// A box ends after the last element of an axis.
    #[error("range {start}..{end} of axis {axis} is outside of an extent of {extent} elements")]
    BoxOutside {
        /// The axis.
        axis: usize,
        /// The box's start along it.
        start: usize,
        /// The box's end along it.
        end: usize,
        /// How many elements the shape has along it.
        extent: usize,
    },
    /// A box ends before it starts.
    #[error("range {start}..{end} of axis {axis} is reversed")]
    BoxReversed {
        /// The axis.
        axis: usize,
        /// The box's start along it.
        start: usize,
        /// The box's end along it.
        end: usize,
    },
    /// A shape has more elements than can be counted.
    #[error("a shape of {shape:?} has more elements than can be counted")]
    ShapeOverflow {
        /// The extents.
        shape: Vec<usize>,
    },
    /// A shape has more elements than are there, or fewer.
    #[error("a shape of {shape:?} has {expected} elements, {got} are there")]
    ShapeMismatch {
        /// The extents.
        shape: Vec<usize>,
        /// Their product.
        expected: usize,
        /// How many elements are there.
        got: usize,
    },
    /// A view has another number of axes.
    #[error("{expected} axes are wanted, {got} were given")]
    RankMismatch {
        /// How many are wanted.
        expected: usize,
        /// How many were given.
        got: usize,
    },
    /// There is no such axis.
    #[error("there is no axis {axis} among {axes}")]
    NoSuchAxis {
        /// The axis.
        axis: usize,
        /// How many there are.
        axes: usize,
    },
    /// A tile has no elements.
    #[error("tiles have an extent of 0 along axis {axis}")]
    EmptyTile {
        /// The axis.
        axis: usize,
    },
    /// Tiles in place are wanted of an array that is not stored in tiles.
    #[error("the array is stored row by row, not in tiles")]
    NotTiled,
    /// There is no such row.
    #[error("row {row} is outside of a ragged array of {rows} rows")]
    RowOutside {
        /// The row.
        row: usize,
        /// How many there are.
        rows: usize,
    },
    /// Writing a row has failed before, so it has no contents.
    #[error("row {row} was not written whole")]
    RowIncomplete {
        /// The first row of which this is so.
        row: usize,
    },
    /// There is no device to put pages on.
    #[error("there is no device to put pages on")]
    NoDevices,
    /// A wish for devices that cannot be understood.
    #[error(
        "the wish for devices {wish:?} is none of backend, backend:number, backend:text, text, kind, all"
    )]
    DeviceFilter {
        /// The wish.
        wish: String,
    },
    /// Every device has zero channels.
    #[error("all {devices} devices are switched off by a share of zero channels")]
    NoChannels {
        /// How many devices were named.
        devices: usize,
    },
    /// More channels are asked for than an array can have.
    #[error("{channels} channels are asked for, at most {most} are possible")]
    TooManyChannels {
        /// How many are asked for, in lowest terms.
        channels: u64,
        /// How many an array can have.
        most: u64,
    },
    /// More shares were given than there are devices, or fewer.
    #[error("{shares} shares were given for {devices} devices")]
    SharesMismatch {
        /// How many shares.
        shares: usize,
        /// How many devices.
        devices: usize,
    },
    /// A device has not enough memory for its part of the array.
    #[error(
        "{device} cannot take its part of the array: {asked_bytes} bytes asked, {usable_bytes} bytes usable"
    )]
    DoesNotFit {
        /// The device.
        device: String,
        /// What its part of the array needs.
        asked_bytes: u64,
        /// What it can give.
        usable_bytes: u64,
    },
    /// There is no memory for the page table.
    #[error("no memory for a page table of {pages} entries")]
    NoTableMemory {
        /// How many pages the array would have.
        pages: u64,
    },
    /// There is no memory for a buffer.
    #[error("no memory for a buffer of {bytes} bytes")]
    NoMemory {
        /// How long it would be.
        bytes: usize,
    },
    /// All frames that may be guarded are guarded, and the calling thread holds guards itself, so that waiting might
    /// never end.
    #[error("all {frames} frames of channel {channel} that can be guarded are")]
    TooManyGuards {
        /// The channel.
        channel: u32,
        /// How many of its frames can be guarded at once.
        frames: u64,
    },
    /// The page is guarded, and the calling thread holds guards itself, so that waiting might never end.
    #[error("page {page} is guarded, and this thread holds guards for which others may wait")]
    WouldDeadlock {
        /// The page.
        page: u64,
    },
    /// A label is given to two columns of an index set.
    #[error("dimension {dimension} labels more than one column")]
    DuplicateDimension {
        /// The label.
        dimension: u32,
    },
    /// An index set has no column of this label.
    #[error("no column is labelled with dimension {dimension}")]
    UnknownDimension {
        /// The label.
        dimension: u32,
    },
    /// Two index sets are to be combined, but have no dimension in common.
    #[error("the two index sets have no dimension in common; their product has to be asked for")]
    NoCommonDimension,
    /// A product is asked of two index sets that have a dimension in common.
    #[error("the two index sets have dimension {dimension} in common, so they have no product")]
    CommonDimension {
        /// The first such dimension.
        dimension: u32,
    },
    /// A tuple has not one value for each dimension.
    #[error("tuple {tuple} has {got} values, there are {expected} dimensions")]
    RaggedTuple {
        /// The tuple's number.
        tuple: usize,
        /// How many dimensions there are.
        expected: usize,
        /// How many values it has.
        got: usize,
    },
    /// A column is longer or shorter than the first one.
    #[error("the column of dimension {dimension} has {got} values, the first column has {expected}")]
    RaggedColumn {
        /// The column's label.
        dimension: u32,
        /// The length of the first column.
        expected: usize,
        /// Its own length.
        got: usize,
    },
    /// Tuples that are read for a second time have changed, so that they make up another number of results.
    #[error("the tuples have changed meanwhile: of {expected} results, {got} are left")]
    InputChanged {
        /// How many results were counted.
        expected: usize,
        /// How many there are now.
        got: usize,
    },
    /// An expression has too many operations.
    #[error("an expression has more than {most} operations")]
    ExpressionTooLong {
        /// How many it can have.
        most: usize,
    },
    /// More fields are assigned at once than a device takes.
    #[error("{assignments} assignments at once, 1 to {most} are possible")]
    TooManyAssignments {
        /// How many.
        assignments: usize,
        /// How many are possible.
        most: usize,
    },
    /// A histogram of no bins, or of too many.
    #[error("{bins} bins are asked for, 1 to {most} are possible")]
    TooManyBins {
        /// How many are asked for.
        bins: usize,
        /// How many are possible.
        most: usize,
    },
    /// A device failed in the middle of writing to elements.
    #[error("{} elements of {} ranges are unspecified, {} ranges are written, the others unchanged: {cause}",
        unspecified.iter().map(ExactSizeIterator::len).sum::<usize>(), unspecified.len(), written.len())]
    Interrupted {
        /// Which elements were written, as ranges of indices, ascending.
        written: Vec<Range<usize>>,
        /// Which elements may hold anything.
        unspecified: Vec<Range<usize>>,
        /// What the device said.
        cause: backend_api::Error,
    },
    /// A device failed.
    #[error(transparent)]
    Device(#[from] backend_api::Error),
}

/// A failure of an array: one pointer in size, so that results of single accesses stay small.
///
/// ```
/// use vmarray::{ErrorKind, VirtualArray};
/// let array = VirtualArray::<u32>::new(10)?;
/// let error = array.get(10).unwrap_err();
/// assert!(matches!(error.kind(), ErrorKind::IndexOutside { index: 10, len: 10 }));
/// assert_eq!(error.to_string(), "index 10 is outside of an array of 10 elements");
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Error(Box<ErrorKind>);

impl Error {
    /// What went wrong.
    ///
    /// ```
    /// use vmarray::{ErrorKind, VirtualArray};
    /// let array = VirtualArray::<u32>::new(10)?;
    /// assert_eq!(*array.get(10).unwrap_err().kind(), ErrorKind::IndexOutside { index: 10, len: 10 });
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    #[must_use]
    pub fn kind(&self) -> &ErrorKind {
        &self.0
    }

    /// The device's own error, if a device failed.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// use vmarray::{Device, VirtualArray, device, host::SimulatedDevice};
    /// let card = Arc::new(SimulatedDevice::builder(1).build());
    /// let array = VirtualArray::<u32>::builder(100).devices([card.clone()]).build()?;
    /// card.lose();
    /// let error = array.fill(.., 7).and_then(|()| array.flush(..)).unwrap_err();
    /// let cause = error.device_error().unwrap();
    /// assert_eq!(cause.kind(), device::ErrorKind::Lost);
    /// assert_eq!(cause.device(), card.info().to_string());
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    #[must_use]
    pub fn device_error(&self) -> Option<&backend_api::Error> {
        match &*self.0 {
            ErrorKind::Device(error) => Some(error),
            _ => None,
        }
    }
}

impl Error {
    /// The same with ranges of elements that count from an element at or before them.
    pub(crate) fn counted_from(self, start: usize) -> Self {
        let ErrorKind::Interrupted { written, unspecified, cause } = *self.0 else { return self };
        let inner = |ranges: Vec<Range<usize>>| -> Vec<_> {
            ranges.into_iter().map(|range| range.start - start..range.end - start).collect()
        };
        let (written, unspecified) = (inner(written), inner(unspecified));
        ErrorKind::Interrupted { written, unspecified, cause }.into()
    }
}

impl From<ErrorKind> for Error {
    fn from(kind: ErrorKind) -> Self {
        Self(Box::new(kind))
    }
}

impl From<backend_api::Error> for Error {
    fn from(error: backend_api::Error) -> Self {
        ErrorKind::Device(error).into()
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source()
    }
}

/// Out of line, so that the check costs callers one comparison.
#[cold]
#[inline(never)]
pub(crate) fn index_outside(index: usize, len: usize) -> Error {
    ErrorKind::IndexOutside { index, len }.into()
}
