//! The error type of all array operations: its kinds, and their messages with advice.

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use backend_api::readable_bytes;

/// Result type of this crate.
///
/// ```
/// use vmarray::{Result, prelude::*};
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

/// The kind of an error, with the values that caused it.
///
/// ```
/// use vmarray::{ErrorKind, prelude::*};
/// let array = VirtualArray::<u32>::new(100)?;
/// match array.read(90, &mut [0; 20]).unwrap_err().kind() {
///     ErrorKind::RangeOutside { end, len, .. } => assert_eq!((*end, *len), (110, 100)),
///     other => panic!("{other}"),
/// }
/// assert_eq!(array.get(100).unwrap_err().kind().advice(), "use an index below 100");
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "fields whose names say what they are")]
pub enum ErrorKind {
    /// An index is not below the length.
    IndexOutside { index: usize, len: usize },
    /// The index of a page is not below the number of pages.
    PageOutside { page: usize, pages: usize },
    /// An index of a list is not below the length; `position` is that of the first such index in the list.
    ListedIndexOutside { position: usize, index: usize, len: usize },
    /// A share of elements, such as the share of a quantile, is not between 0 and 1; `position` is its
    /// position in the list.
    ShareOutside { position: usize, share: String },
    /// A range ends after the last element.
    RangeOutside { start: usize, end: usize, len: usize },
    /// A range ends before it starts.
    RangeReversed { start: usize, end: usize },
    /// Two lengths that must be equal are not, or a buffer is too short.
    LengthMismatch {
        /// The object with the wrong length, such as "the slice".
        of: &'static str,
        expected: usize,
        got: usize,
    },
    /// The number of bytes of the elements overflows.
    TooLong { elements: u64, element_bytes: usize },
    /// A page length of zero elements.
    ZeroPageLength,
    /// Memory of the program begins at an address that is no multiple of its element type's alignment.
    Misaligned { address: usize, align: usize },
    /// A page does not fit into memory, or its number of bytes overflows.
    PageTooLong { page_len: usize, element_bytes: usize },
    /// An array would exceed the greatest length, in elements, that its builder set.
    LengthLimit { asked: usize, max_len: usize },
    /// An index along one axis is outside of a shape. `index` may be negative if the view has boundary modes.
    PositionOutside { axis: usize, index: i128, extent: usize },
    /// A box ends after the last element of an axis.
    BoxOutside { axis: usize, start: usize, end: usize, extent: usize },
    /// A box ends before it starts.
    BoxReversed { axis: usize, start: usize, end: usize },
    /// The number of elements of a shape, given by its extents, overflows.
    ShapeOverflow { shape: Vec<usize> },
    /// A shape, given by its extents, has more or fewer elements than the data.
    ShapeMismatch { shape: Vec<usize>, expected: usize, got: usize },
    /// The number of axes of a view differs from the expected one.
    RankMismatch { expected: usize, got: usize },
    /// The axis does not exist: the shape has `axes` axes.
    NoSuchAxis { axis: usize, axes: usize },
    /// The tile extents of a new array contain a 0, so tiles would have no elements.
    EmptyTile { axis: usize },
    /// An operation on tiles in the cache was called for an array that is not stored in tiles.
    NotTiled,
    /// The row does not exist: the array has `rows` rows.
    RowOutside { row: usize, rows: usize },
    /// The push of this row has failed, so the row has no contents; earlier rows are complete.
    RowIncomplete { row: usize },
    /// The list of devices is empty.
    NoDevices,
    /// Discovery found no device for the request, or only devices that need an explicit filter.
    NoneFound {
        /// The filters of the request, each with the reason why it selects no device. Empty without one.
        asked: Vec<Unmet>,
        /// The devices that exist, and the reasons why backends have none.
        found: Vec<String>,
    },
    /// A device filter is empty, or not UTF-8.
    DeviceFilter { filter: String },
    /// All of `devices` devices have zero channels.
    NoChannels { devices: usize },
    /// The number of channels exceeds the maximum for an array, even after reducing the ratios.
    TooManyChannels { channels: u64, most: u64 },
    /// The number of shares differs from the number of devices.
    SharesMismatch { shares: usize, devices: usize },
    /// Pages cannot be mirrored, or a mirror cannot be rebuilt.
    MirrorRefused { reason: &'static str },
    /// Pages cannot be moved to other devices.
    MoveRefused { reason: &'static str },
    /// An array with these settings cannot be stored in files, or files cannot be used in this way.
    FileRefused { reason: &'static str },
    /// The program's progress function has stopped the work.
    Cancelled,
    /// The contents of a file differ from the request, for example in the type of elements.
    FileMismatch {
        /// The file.
        path: String,
        /// The property that differs, such as "element".
        what: &'static str,
        /// The value in the file.
        stored: String,
        /// The requested value.
        asked: String,
    },
    /// A device has too little memory for its part of the array. The last two numbers are sums over all
    /// devices, in bytes.
    DoesNotFit {
        device: String,
        asked_bytes: u64,
        usable_bytes: u64,
        all_asked_bytes: u64,
        all_usable_bytes: u64,
    },
    /// A longer array would fit, but not together with the old one, from which it is copied. `usable_bytes`
    /// is the memory of all devices in addition to the old array.
    NoRoomToGrow { present_bytes: u64, asked_bytes: u64, usable_bytes: u64 },
    /// The system has no memory for the page table of an array of `pages` pages.
    NoTableMemory { pages: u64 },
    /// The system has no memory for a buffer.
    NoMemory { bytes: usize },
    /// A channel has no cache frame left for another page guard. The calling thread holds guards itself, so a
    /// wait might never end.
    TooManyGuards { channel: u32, frames: u64 },
    /// The calling thread would have to wait for another thread, which may wait for the guards that the
    /// calling thread holds, or for the progress function that it runs. The wait might never end. `page` is 0
    /// if the wait concerns no page of the array.
    WouldDeadlock { page: u64 },
    /// Two columns of an index set have the same label.
    DuplicateDimension { dimension: u32 },
    /// An index set has no column with this label.
    UnknownDimension { dimension: u32 },
    /// Two index sets that a join combines have no common dimension.
    NoCommonDimension,
    /// Two index sets have common dimensions, so they have no product; `dimension` is the first of them.
    CommonDimension { dimension: u32 },
    /// The number of values of a tuple differs from the number of dimensions; `tuple` is its index.
    RaggedTuple { tuple: usize, expected: usize, got: usize },
    /// The column with this label is longer or shorter than the first column.
    RaggedColumn { dimension: u32, expected: usize, got: usize },
    /// Tuples have changed between two reads, so the number of results differs from the counted one.
    InputChanged { expected: usize, got: usize },
    /// An expression has too many operations.
    ExpressionTooLong { most: usize },
    /// The number of assignments is 0, or more than a device supports.
    AssignmentCount { assignments: usize, most: usize },
    /// The number of bins of a histogram is 0 or too large.
    BinCount { bins: usize, most: usize },
    /// A kernel cannot be translated for devices.
    KernelRefused { kernel: String, reason: String },
    /// A result of a kernel shares elements with another of its arguments. `place` is the kernel's
    /// `file:line`; empty for an operation of the library.
    KernelOverlap { kernel: String, place: String, result: String, argument: String },
    /// An argument of a kernel has another shape than its result. `place` is the kernel's `file:line`; empty
    /// for an operation of the library.
    KernelShape { kernel: String, place: String, argument: String, expected: Vec<usize>, got: Vec<usize> },
    /// Items (GPU threads) of a kernel accessed elements out of bounds. `items` is their number; `item` is
    /// one of them, which used `index` at `place` in the source, `file:line`. The index may be negative in
    /// windows.
    KernelOutside { kernel: String, place: String, index: i128, item: usize, items: u64 },
    /// Items (GPU threads) of a kernel exceeded their budget of loop iterations. `items` is their number;
    /// `item` is one of them, in a loop at `place` in the source, `file:line`.
    KernelBudget { kernel: String, place: String, turns: u64, item: usize, items: u64 },
    /// Items (GPU threads) of a kernel requested more private memory than an item has. `items` is their
    /// number; `item` is one of them, which requested `asked` bytes at `place` in the source, `file:line`.
    KernelPrivateHeap {
        kernel: String,
        place: String,
        asked: u64,
        private_heap_bytes: u64,
        item: usize,
        items: u64,
    },
    /// An item (GPU thread) of a kernel, or a function in an expression for the element `item`
    /// (`Expr::time_limit`), ran longer than the time limit, in a loop at `place` in the source, `file:line`.
    /// The operation has ended. Items that had ended before have written their results; for the others,
    /// results have the old values or a part of the new ones.
    KernelTime { kernel: String, place: String, limit: Duration, item: usize },
    /// In a session, groups of `group_len` items (GPU threads) would have elements on several channels,
    /// because the array has pages of `page_len` elements and the launch begins at element `start`. Use pages
    /// of `fits` elements, and a start at a multiple of `group_len`.
    KernelGroups { kernel: String, group_len: usize, page_len: usize, start: usize, fits: usize },
    /// Items (GPU threads) of a kernel appended more elements to an argument than allowed. None is appended.
    KernelAppend { kernel: String, argument: String, asked: u64, most: usize },
    /// A device failed while it was writing elements.
    Interrupted {
        /// The elements that were written, as ranges of indices, ascending.
        written: Vec<Range<usize>>,
        /// The elements whose contents are unspecified.
        unspecified: Vec<Range<usize>>,
        /// The device's error.
        cause: backend_api::Error,
    },
    /// A device failed.
    Device(backend_api::Error),
}

impl ErrorKind {
    /// Returns advice on how to avoid the error, in one clause. The text of an error ends with this advice.
    #[must_use]
    pub fn advice(&self) -> String {
        self.texts().1
    }

    /// Returns the description of the error and its remedy. The compiler requires both for each kind.
    fn texts(&self) -> (String, String) {
        let below = |what: &str, len: usize| match len {
            0 => "it is empty: add elements first".to_owned(),
            _ => format!("use {what} below {len}"),
        };
        let within = |len: usize| format!("end the range at {len} at most");
        let start_first = || "give the smaller number first: start..end with start at most end".to_owned();
        let fewer_guards = "first drop the guards, cursors and iterators that this thread holds: other threads may wait \
                            for them";
        match self {
            Self::IndexOutside { index, len } => {
                (format!("index {index} is outside of an array of {}", counted(*len, "element")), below("an index", *len))
            }
            Self::PageOutside { page, pages } => {
                (format!("page {page} is outside of {}", counted(*pages, "page")), below("a page", *pages))
            }
            Self::ShareOutside { position, share } => (
                format!("share {share} at position {position} of the list is not between 0 and 1"),
                "use shares from 0 to 1; 0.5 is the median".into(),
            ),
            Self::ListedIndexOutside { position, index, len } => (
                format!(
                    "index {index} at position {position} of the list is outside of an array of {}",
                    counted(*len, "element")
                ),
                below("indices", *len),
            ),
            Self::RangeOutside { start, end, len } => {
                (
                    format!("range {start}..{end} is outside of an array of {}", counted(*len, "element")),
                    within(*len),
                )
            }
            Self::RangeReversed { start, end } => (format!("range {start}..{end} is reversed"), start_first()),
            Self::LengthMismatch { of, expected, got } => (
                format!("{of} has length {got}, but its length must be {expected}"),
                format!("give {of} the length {expected}"),
            ),
            Self::TooLong { elements, element_bytes } => (
                format!("{elements} elements of {element_bytes} bytes each are more than can be addressed"),
                format!("use at most {} elements", isize::MAX as usize / (*element_bytes).max(1)),
            ),
            Self::ZeroPageLength => (
                "a page must have at least one element".into(),
                "omit the page length, so that the library chooses it, or set a power of two".into(),
            ),
            Self::Misaligned { address, align } => (
                format!("memory at {address:#x} is not aligned to {align} bytes, which its element type requires"),
                format!("begin at a multiple of {align} bytes, or copy the elements into a vector"),
            ),
            Self::PageTooLong { page_len, element_bytes } => (
                format!("a page of {page_len} elements of {element_bytes} bytes each is too long"),
                "omit the page length, so that the library chooses it, or set a shorter one".into(),
            ),
            Self::LengthLimit { asked, max_len } => (
                format!("{asked} elements are more than the {max_len} that the array may have"),
                "build the array with a larger `Builder::max_len`, which costs no memory until elements are added".into(),
            ),
            Self::PositionOutside { axis, index, extent } => (
                format!(
                    "index {index} of axis {axis} is outside of an extent of {}",
                    counted(*extent, "element")
                ),
                position_advice(*extent),
            ),
            Self::BoxOutside { axis, start, end, extent } => (
                format!(
                    "range {start}..{end} of axis {axis} is outside of an extent of {}",
                    counted(*extent, "element")
                ),
                within(*extent),
            ),
            Self::BoxReversed { axis, start, end } => {
                (format!("range {start}..{end} of axis {axis} is reversed"), start_first())
            }
            Self::ShapeOverflow { shape } => (
                format!("a shape of {shape:?} has more elements than can be counted"),
                format!("use extents whose product, with the padding of tiles, is at most {}", isize::MAX),
            ),
            Self::ShapeMismatch { shape, expected, got } => (
                format!("a shape of {shape:?} has {}, but the data has {got}", counted(*expected, "element")),
                format!("use extents whose product is {got}"),
            ),
            Self::RankMismatch { expected, got } => (
                format!("{} given, but the operation needs {expected}", counted(*got, "axis")),
                format!("use a view of {}", counted(*expected, "axis")),
            ),
            Self::NoSuchAxis { axis, axes } => (
                format!("axis {axis} does not exist: the shape has {}", counted(*axes, "axis")),
                format!("count axes from 0: the last one is {}", axes.saturating_sub(1)),
            ),
            Self::EmptyTile { axis } => (
                format!("tiles have an extent of 0 along axis {axis}"),
                "give tiles at least one element along each axis".into(),
            ),
            Self::NotTiled => (
                "the array is stored row by row, not in tiles".into(),
                "build the array with `tiled` or `tile`, or use `tiles`, which copies each tile".into(),
            ),
            Self::RowOutside { row, rows } => {
                (format!("row {row} is outside of a ragged array of {rows} rows"), below("a number", *rows))
            }
            Self::RowIncomplete { row } => (
                format!("row {row} was not written completely"),
                "call `freeze_complete` to keep all earlier rows, then push this row and all later rows again".into(),
            ),
            Self::NoDevices => (
                "the list of devices is empty".into(),
                "name at least one, or leave `devices` out to use the devices of the machine".into(),
            ),
            Self::NoneFound { asked, found } => {
                (none_found(asked, found), "name a device that exists, such as `cpu`, `host` or `all`, in \
                    VMARRAY_DEVICES or `Discovery::select`; `Discovery::report` lists all with reasons".into())
            }
            Self::DeviceFilter { filter } => (
                format!("invalid device filter {filter:?}: an entry is empty or not UTF-8"),
                "separate entries by single commas: a backend (`host`) or one of its devices (`host:0`), `gpu`, \
                 `integrated`, `cpu`, `all`, or part of a name"
                    .into(),
            ),
            Self::NoChannels { devices } => (
                format!("all {devices} devices have a share of zero, so no device stores pages"),
                "give at least one device a share above zero".into(),
            ),
            Self::TooManyChannels { channels, most } => (
                format!("{channels} channels requested, but at most {most} are possible"),
                "use smaller shares: a few channels for each device are enough".into(),
            ),
            Self::SharesMismatch { shares, devices } => (
                format!("{shares} shares were given for {devices} devices"),
                "give one share for each device, in their order".into(),
            ),
            Self::MirrorRefused { reason } => refused(
                "pages are not mirrored",
                reason,
                "mirror an array over at least two devices, and call `rebuild` after the loss of one",
            ),
            Self::MoveRefused { reason } => refused(
                "pages are not moved",
                reason,
                "build the array with `Builder::movable`, and name the devices to move to",
            ),
            Self::FileRefused { reason } => refused(
                "the array is not stored in files",
                reason,
                "name at least one file, and use the settings that `Builder::create` lists",
            ),
            Self::Cancelled => {
                ("the program cancelled the work".into(), "call the operation again to start from the beginning".into())
            }
            Self::FileMismatch { path, what, stored, asked } => (
                format!("{path}: the {what} in the file is `{stored}`, but the program expects `{asked}`"),
                "open the file with the settings of its creation, name another file, or create a new array".into(),
            ),
            Self::DoesNotFit { device, asked_bytes, usable_bytes, all_asked_bytes, all_usable_bytes } => (
                format!(
                    "{device} does not have enough memory for its part of the array: {} requested, {} usable",
                    readable_bytes(*asked_bytes),
                    readable_bytes(*usable_bytes)
                ),
                room_advice(*all_asked_bytes, *all_usable_bytes),
            ),
            Self::NoRoomToGrow { present_bytes, asked_bytes, usable_bytes } => (
                format!(
                    "an array of {} cannot grow to {}: only {} of other device memory are usable",
                    readable_bytes(*present_bytes),
                    readable_bytes(*asked_bytes),
                    readable_bytes(*usable_bytes)
                ),
                "set the final length first (`RaggedBuilder::capacity`): growth needs room for the old and the new array".into(),
            ),
            Self::NoTableMemory { pages } => (
                format!("no memory for a page table of {pages} entries"),
                "use longer pages, or fewer elements".into(),
            ),
            Self::NoMemory { bytes } => (
                format!("no memory for a buffer of {}", readable_bytes(*bytes as u64)),
                "process shorter ranges, or use an iterator".into(),
            ),
            Self::TooManyGuards { channel, frames } => (
                format!("page guards hold {frames} cache frames of channel {channel}, which is the limit for guards"),
                format!("{fewer_guards}, or build the array with a larger cache (`cache_bytes`, `frames_per_channel`)"),
            ),
            Self::WouldDeadlock { page } => (
                format!(
                    "would deadlock at page {page}: this thread holds page guards, or runs a progress function"
                ),
                fewer_guards.into(),
            ),
            Self::DuplicateDimension { dimension } => (
                format!("dimension {dimension} labels more than one column"),
                "give each column a label of its own".into(),
            ),
            Self::UnknownDimension { dimension } => (
                format!("no column is labelled with dimension {dimension}"),
                "use one of the labels that `dimensions` lists".into(),
            ),
            Self::NoCommonDimension => (
                "the two index sets have no dimension in common".into(),
                "use `Combine::product` for all pairs, or `relabel` one of the sets".into(),
            ),
            Self::CommonDimension { dimension } => (
                format!("the two index sets have dimension {dimension} in common, so they have no product"),
                "merge them with `Combine::new`, or `relabel` one of the sets".into(),
            ),
            Self::RaggedTuple { tuple, expected, got } => (
                format!("tuple {tuple} has {got} values, but there are {expected} dimensions"),
                format!("give each tuple {expected} values"),
            ),
            Self::RaggedColumn { dimension, expected, got } => (
                format!("the column of dimension {dimension} has {got} values, but the first column has {expected}"),
                "give all columns the same length".into(),
            ),
            Self::InputChanged { expected, got } => (
                format!("the input changed during the operation: {got} of {expected} results are left"),
                "run the operation again, and leave its inputs unchanged while its results are in use".into(),
            ),
            Self::ExpressionTooLong { most } => (
                format!("an expression has more than {most} operations"),
                "split the expression, and store the intermediate value in a field".into(),
            ),
            Self::AssignmentCount { assignments, most } => (
                format!("{assignments} assignments in one operation, but 1 to {most} are possible"),
                match assignments {
                    0 => "give at least one assignment".into(),
                    _ => "split the assignments over several operations".into(),
                },
            ),
            Self::BinCount { bins, most } => (
                format!("{bins} bins requested, but 1 to {most} are possible"),
                match bins {
                    0 => "request at least one".into(),
                    _ => "make wider bins, or several histograms that cover a part of the bins each".into(),
                },
            ),
            Self::KernelRefused { kernel, reason } => (
                format!("kernel `{kernel}` cannot run on devices: {reason}"),
                "change the kernel at this place, or a function that it calls".into(),
            ),
            Self::KernelOverlap { kernel, place, result, argument } => (
                format!(
                    "the result `{result}` of kernel `{kernel}`{} shares elements with its argument `{argument}`",
                    bracketed(place)
                ),
                format!("give `{result}` elements of its own; the kernel reads their old values by `{result}.get()`"),
            ),
            Self::KernelShape { kernel, place, argument, expected, got } => (
                format!(
                    "`{argument}` of kernel `{kernel}`{} has the shape {got:?}, but its result has {expected:?}",
                    bracketed(place)
                ),
                "give a section of that shape, or read the elements by `&Anywhere<T>` in the kernel".into(),
            ),
            Self::KernelOutside { kernel, place, index, item, items } => (
                format!(
                    "{} of kernel `{kernel}` accessed elements outside of an array: item {item} used index {index} \
                     in {place}",
                    counted(*items as usize, "item")
                ),
                "compare the index with the length first, limit it by `min`, or give a window a boundary \
                 mode: `view.bounded(mode).window(halo)`"
                    .into(),
            ),
            Self::KernelBudget { kernel, place, turns, item, items } => (
                format!(
                    "{} of kernel `{kernel}` ran loops for more than {turns} iterations: item {item} stopped in \
                     {place}",
                    counted(*items as usize, "item")
                ),
                "look for an endless loop there, or allow more iterations by `launch().budget(turns)`".into(),
            ),
            Self::KernelPrivateHeap { kernel, place, asked, private_heap_bytes, item, items } => (
                format!(
                    "{} of kernel `{kernel}` used up the {private_heap_bytes} bytes that \
                     `alloc` has for each item: item {item} \
                     requested {asked} in {place}",
                    counted(*items as usize, "item")
                ),
                "allow more bytes by `launch().private_heap_bytes(bytes)`".into(),
            ),
            Self::KernelTime { kernel, place, limit, item } => (
                format!("item {item} of kernel `{kernel}` ran longer than {limit:?}, in the loop at {place}"),
                "check for an endless loop there, or allow more by `time_limit(duration)` of the launch or \
                 expression"
                    .into(),
            ),
            Self::KernelGroups { kernel, group_len, page_len, start, fits } => (
                format!(
                    "groups of {group_len} items of kernel `{kernel}` would have elements on several channels (shares of \
                     devices): pages have {page_len} elements, and the launch begins at element {start}"
                ),
                format!(
                    "build the arrays with `page_len({fits})` and begin sections at multiples of {group_len}, or use \
                     `run`, which copies such groups to one device"
                ),
            ),
            Self::KernelAppend { kernel, argument, asked, most } => (
                format!("kernel `{kernel}` appends {asked} elements to `{argument}`, but {most} are allowed"),
                "allow that many by `Appended::to(&mut vector, most)`".into(),
            ),
            Self::Interrupted { written, unspecified, cause } => (
                format!(
                    "{} elements of {} ranges are unspecified, {} ranges are written, the others unchanged ({})",
                    unspecified.iter().map(ExactSizeIterator::len).sum::<usize>(),
                    unspecified.len(),
                    written.len(),
                    // Cut off the advice of the cause, because the advice of the whole error follows.
                    cause.to_string().trim_end_matches(cause.advice()).trim_end_matches("; "),
                ),
                "write the unspecified ranges again, then repeat the operation for all ranges that are not written".into(),
            ),
            Self::Device(error) => (error.to_string(), error.advice().into()),
        }
    }
}

/// Returns advice for an index outside of an axis of `extent` elements.
fn position_advice(extent: usize) -> String {
    match extent {
        0 => "the axis is empty: compare the index with the shape first".into(),
        _ => format!(
            "use indices from 0 to {} along this axis, or a view with another boundary mode",
            extent - 1
        ),
    }
}

/// Returns advice if one device lacks memory. The arguments are sums over all devices.
fn room_advice(all_asked_bytes: u64, all_usable_bytes: u64) -> String {
    if all_asked_bytes <= all_usable_bytes {
        return "all devices together have enough memory: use `Placement::Capacity`, or request a little less"
            .into();
    }
    format!(
        "all devices together have {} of the {} requested: request less, or add host RAM (`HostDevice`) or \
         a file (`FileDevice`) as a device",
        readable_bytes(all_usable_bytes),
        readable_bytes(all_asked_bytes)
    )
}

/// Returns `place` in brackets with a blank before, or nothing if it is empty.
fn bracketed(place: &str) -> String {
    if place.is_empty() { String::new() } else { format!(" ({place})") }
}

/// Returns a number and its noun, such as "3 elements".
fn counted(number: usize, of: &str) -> String {
    match (number, of) {
        (1, _) => format!("1 {of}"),
        (_, "axis") => format!("{number} axes"),
        _ => format!("{number} {of}s"),
    }
}

/// Returns the description of a refusal and its remedy: the part of `reason` after a semicolon, or `usual`.
fn refused(what: &str, reason: &str, usual: &str) -> (String, String) {
    let (reason, remedy) = reason.split_once("; ").unwrap_or((reason, usual));
    (format!("{what}: {reason}"), remedy.into())
}

/// A device filter that no device of the machine satisfies.
///
/// ```
/// let report = vmarray::Discovery::new().select("host, no such device").unwrap().report();
/// assert_eq!(report.unmet.len(), 1);
/// assert_eq!(report.unmet[0].filter, "no such device");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unmet {
    /// The filter, as the user wrote it.
    pub filter: String,
    /// The reason why no device satisfies the filter.
    pub reason: String,
}

impl Unmet {
    #[doc(hidden)]
    pub fn new(filter: String, reason: String) -> Self {
        Self { filter, reason }
    }
}

impl fmt::Display for Unmet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no device for {:?}: {}", self.filter, self.reason)
    }
}

/// Describes a request that found no device, and the devices that exist.
fn none_found(asked: &[Unmet], found: &[String]) -> String {
    let asked: Vec<String> = asked.iter().map(Unmet::to_string).collect();
    let what =
        if asked.is_empty() { "no device can be used by default".to_owned() } else { asked.join("; ") };
    let found = if found.is_empty() { "nothing".to_owned() } else { found.join("; ") };
    format!("{what}; found: {found}")
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // The text of the device's error contains the advice already.
            Self::Device(error) => fmt::Display::fmt(error, f),
            _ => {
                let (what, advice) = self.texts();
                write!(f, "{what}; {advice}")
            }
        }
    }
}

impl std::error::Error for ErrorKind {}

/// An error of this crate. It has the size of a pointer, so the results of element accesses are small.
///
/// ```
/// use vmarray::{ErrorKind, prelude::*};
/// let array = VirtualArray::<u32>::new(10)?;
/// let error = array.get(10).unwrap_err();
/// assert!(matches!(error.kind(), ErrorKind::IndexOutside { index: 10, len: 10 }));
/// let text = "index 10 is outside of an array of 10 elements; use an index below 10";
/// assert_eq!(error.to_string(), text);
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Error(Box<ErrorKind>);

impl Error {
    /// Returns the kind of the error.
    #[must_use]
    pub fn kind(&self) -> &ErrorKind {
        &self.0
    }

    /// Returns the error of the device, if a device failed.
    ///
    /// ```
    /// use vmarray::{host::SimulatedDevice, prelude::*};
    /// use vmarray::device::{self, Device};
    /// use std::sync::Arc;
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
            ErrorKind::Device(error) | ErrorKind::Interrupted { cause: error, .. } => Some(error),
            _ => None,
        }
    }
}

impl Error {
    /// Subtracts `start` from the ranges or work-item numbers in the error, so that they count from element
    /// `start`.
    #[doc(hidden)]
    pub fn counted_from(mut self, start: usize) -> Self {
        if let ErrorKind::KernelTime { item, .. } = &mut *self.0 {
            *item -= start;
        }
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
        let Some(late) = error.over_time() else { return ErrorKind::Device(error).into() };
        let backend_api::OverTime { function, place, limit, element } = late.clone();
        ErrorKind::KernelTime { kernel: function, place, limit, item: element as usize }.into()
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

impl std::error::Error for Error {}

/// Converts a device's error to [`Interrupted`](ErrorKind::Interrupted), which lists the ranges of written
/// and of unspecified elements.
#[doc(hidden)]
pub fn interrupted(error: Error, written: Range<usize>, unspecified: Range<usize>) -> Error {
    let Some(cause) = error.device_error().cloned() else { return error };
    let ranges = |range: Range<usize>| if range.is_empty() { Vec::new() } else { vec![range] };
    let (written, unspecified) = (ranges(written), ranges(unspecified));
    ErrorKind::Interrupted { written, unspecified, cause }.into()
}

/// Returns an error that names `of` unless the length `got` equals the length `expected`.
#[doc(hidden)]
pub fn expect_len(of: &'static str, expected: usize, got: usize) -> Result<()> {
    if expected == got { Ok(()) } else { Err(ErrorKind::LengthMismatch { of, expected, got }.into()) }
}

/// Returns the error for an index outside of an array. A separate function, so that callers stay short.
#[doc(hidden)]
#[cold]
#[inline(never)]
pub fn index_outside(index: usize, len: usize) -> Error {
    ErrorKind::IndexOutside { index, len }.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One of each kind. A missing kind does not compile.
    macro_rules! one_of_each {
        ($($Kind:ident $({ $($fields:tt)* })? $(($value:expr))?,)*) => {{
            let _ = |kind: &ErrorKind| match kind { $(ErrorKind::$Kind { .. } => {})* };
            [$(ErrorKind::$Kind $({ $($fields)* })? $(($value))?,)*]
        }};
    }

    #[test]
    fn every_text_ends_with_a_remedy() {
        let cause = || backend_api::Error::new(backend_api::ErrorKind::Lost, "compute");
        let asked = vec![Unmet { filter: "gpu".into(), reason: "there is none".into() }];
        let all = one_of_each! {
            IndexOutside { index: 9, len: 9 },
            PageOutside { page: 9, pages: 1 },
            ListedIndexOutside { position: 1, index: 9, len: 9 },
            ShareOutside { position: 1, share: "NaN".into() },
            RangeOutside { start: 1, end: 9, len: 8 },
            LengthLimit { asked: 9, max_len: 8 },
            RangeReversed { start: 9, end: 1 },
            LengthMismatch { of: "the slice", expected: 2, got: 3 },
            TooLong { elements: u64::MAX, element_bytes: 4 },
            ZeroPageLength,
            Misaligned { address: 3, align: 4 },
            PageTooLong { page_len: usize::MAX, element_bytes: 4 },
            PositionOutside { axis: 0, index: -1, extent: 4 },
            BoxOutside { axis: 0, start: 1, end: 5, extent: 4 },
            BoxReversed { axis: 0, start: 2, end: 1 },
            ShapeOverflow { shape: vec![usize::MAX, 2] },
            ShapeMismatch { shape: vec![2, 2], expected: 4, got: 5 },
            RankMismatch { expected: 2, got: 3 },
            NoSuchAxis { axis: 3, axes: 3 },
            EmptyTile { axis: 1 },
            NotTiled,
            RowOutside { row: 3, rows: 3 },
            RowIncomplete { row: 3 },
            NoDevices,
            NoneFound { asked, found: vec!["host RAM".into()] },
            DeviceFilter { filter: String::new() },
            NoChannels { devices: 2 },
            TooManyChannels { channels: 1 << 20, most: 1 << 16 },
            SharesMismatch { shares: 1, devices: 2 },
            MirrorRefused { reason: "there is one device" },
            MoveRefused { reason: "there is no device to move to" },
            FileRefused { reason: "no file is named" },
            Cancelled,
            FileMismatch { path: "a".into(), what: "element", stored: "f32".into(), asked: "u32".into() },
            DoesNotFit {
                device: "a card".into(),
                asked_bytes: 3 << 30,
                usable_bytes: 2 << 30,
                all_asked_bytes: 6 << 30,
                all_usable_bytes: 8 << 30,
            },
            NoRoomToGrow { present_bytes: 4, asked_bytes: 6, usable_bytes: 4 },
            NoTableMemory { pages: 1 << 60 },
            NoMemory { bytes: 1 << 60 },
            TooManyGuards { channel: 0, frames: 3 },
            WouldDeadlock { page: 3 },
            DuplicateDimension { dimension: 1 },
            UnknownDimension { dimension: 1 },
            NoCommonDimension,
            CommonDimension { dimension: 1 },
            RaggedTuple { tuple: 1, expected: 2, got: 3 },
            RaggedColumn { dimension: 1, expected: 2, got: 3 },
            InputChanged { expected: 3, got: 2 },
            ExpressionTooLong { most: 256 },
            AssignmentCount { assignments: 0, most: 8 },
            BinCount { bins: 0, most: 4096 },
            KernelRefused { kernel: "blur".into(), reason: "calls lie too deep".into() },
            KernelOverlap {
                kernel: "blur".into(),
                place: "blur.rs:7".into(),
                result: "out".into(),
                argument: "image".into(),
            },
            KernelShape {
                kernel: "blur".into(),
                place: String::new(),
                argument: "x".into(),
                expected: vec![3, 4],
                got: vec![12],
            },
            KernelOutside { kernel: "blur".into(), place: "blur.rs:7".into(), index: 9, item: 8, items: 1 },
            KernelBudget { kernel: "blur".into(), place: "blur.rs:7".into(), turns: 9, item: 8, items: 1 },
            KernelPrivateHeap {
                kernel: "blur".into(),
                place: "blur.rs:7".into(),
                asked: 99,
                private_heap_bytes: 64,
                item: 8,
                items: 1,
            },
            KernelTime {
                kernel: "blur".into(),
                place: "blur.rs:7".into(),
                limit: Duration::from_secs(9),
                item: 8,
            },
            KernelGroups { kernel: "blur".into(), group_len: 9, page_len: 8, start: 3, fits: 9 },
            KernelAppend { kernel: "blur".into(), argument: "found".into(), asked: 9, most: 8 },
            Interrupted { written: Vec::new(), unspecified: vec![2..3, 5..9], cause: cause() },
            Device(cause()),
        };
        for kind in all {
            let advice = kind.advice();
            let text = Error::from(kind).to_string();
            assert!(text.ends_with(&format!("; {advice}")) && text.len() > advice.len() + 10, "{text}");
            assert!(advice.split(' ').count() > 2 && !advice.ends_with('.'), "{text}");
            assert!(text.lines().count() == 1 && !text.contains("  "), "{text}");
        }
    }

    #[test]
    fn the_advice_depends_on_the_cause() {
        let fits = |all_asked_bytes, all_usable_bytes| {
            let (asked_bytes, usable_bytes) = (3 << 30, 2 << 30);
            let device = "a card".into();
            ErrorKind::DoesNotFit { device, asked_bytes, usable_bytes, all_asked_bytes, all_usable_bytes }
        };
        let text = fits(6 << 30, 8 << 30).to_string();
        assert!(
            text.contains("3.0 GiB requested, 2.0 GiB usable") && text.contains("Placement::Capacity"),
            "{text}"
        );
        let text = fits(9 << 30, 8 << 30).to_string();
        assert!(text.contains("8.0 GiB of the 9.0 GiB") && text.contains("FileDevice"), "{text}");
        let text = ErrorKind::WouldDeadlock { page: 1 }.to_string();
        assert!(
            text.contains("first drop the guards, cursors and iterators that this thread holds"),
            "{text}"
        );
        let text = ErrorKind::LengthMismatch { of: "the list of labels", expected: 2, got: 1 }.to_string();
        assert!(text.starts_with("the list of labels has length 1, but its length must be 2"), "{text}");
        assert_ne!(
            ErrorKind::BinCount { bins: 0, most: 9 }.advice(),
            ErrorKind::BinCount { bins: 10, most: 9 }.advice()
        );
        assert_ne!(
            ErrorKind::IndexOutside { index: 0, len: 0 }.advice(),
            ErrorKind::IndexOutside { index: 1, len: 1 }.advice()
        );
    }
}
