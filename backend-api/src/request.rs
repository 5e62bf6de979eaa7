//! What a queue is asked to do: copies and kernels, as plain descriptions.
//!
//! All offsets, lengths, strides and sizes are in bytes unless a name says otherwise. Indices and counts are in
//! elements. None of them needs any alignment.

use crate::{BufferId, HostId};

/// A place in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceSpan {
    /// The allocation.
    pub buffer: BufferId,
    /// Bytes from its start.
    pub offset: u64,
}

impl DeviceSpan {
    /// The place `offset` bytes into `buffer`.
    #[must_use]
    pub fn new(buffer: BufferId, offset: u64) -> Self {
        Self { buffer, offset }
    }
}

/// A place in host memory that the device knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HostSpan {
    /// The piece of host memory.
    pub host: HostId,
    /// Bytes from its start.
    pub offset: u64,
}

impl HostSpan {
    /// The place `offset` bytes into `host`.
    #[must_use]
    pub fn new(host: HostId, offset: u64) -> Self {
        Self { host, offset }
    }
}

/// One copy of `bytes` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transfer {
    /// Host to device.
    Upload {
        /// Where the bytes come from.
        from: HostSpan,
        /// Where they go.
        to: DeviceSpan,
        /// How many.
        bytes: u64,
    },
    /// Device to host.
    Download {
        /// Where the bytes come from.
        from: DeviceSpan,
        /// Where they go.
        to: HostSpan,
        /// How many.
        bytes: u64,
    },
    /// Within the device. Source and target must not overlap.
    Internal {
        /// Where the bytes come from.
        from: DeviceSpan,
        /// Where they go.
        to: DeviceSpan,
        /// How many.
        bytes: u64,
    },
}

impl Transfer {
    /// How many bytes it moves.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match *self {
            Self::Upload { bytes, .. } | Self::Download { bytes, .. } | Self::Internal { bytes, .. } => bytes,
        }
    }
}

/// `count` elements of `stride` bytes each, one after the other, starting at a place in device memory.
///
/// Element `i` begins `i * stride` bytes after [`start`](Self::start).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Elements {
    /// Where element 0 begins.
    pub start: DeviceSpan,
    /// How many elements there are.
    pub count: u64,
    /// Bytes from one element to the next; at least 1.
    pub stride: u64,
}

/// Writes one pattern again and again.
#[derive(Clone, Copy, Debug)]
pub struct Fill<'a> {
    /// Where the first copy of the pattern goes.
    pub to: DeviceSpan,
    /// How many bytes are written in all; need not be a multiple of the pattern, whose last copy is then cut off.
    pub bytes: u64,
    /// What is written: 1 to [`Fill::PATTERN_MAX_BYTES`] bytes. It is copied before the call returns.
    pub pattern: &'a [u8],
}

impl Fill<'_> {
    /// The longest pattern.
    pub const PATTERN_MAX_BYTES: usize = 4096;
}

/// Looks for elements whose bytes at an offset equal a value.
///
/// The answer is written to host memory as unsigned 64-bit numbers in the host's byte order:
///
/// | bytes | what |
/// |---|---|
/// | 0..8 | how many elements match; with [`count_all`](Self::count_all) off, at least the number listed |
/// | 8..16 | how many indices are listed: the smaller of `limit` and the number of matches |
/// | 16.. | the indices of the first matches, ascending |
#[derive(Clone, Copy, Debug)]
pub struct Search<'a> {
    /// What is searched.
    pub elements: Elements,
    /// Where in an element the compared bytes begin. `field_offset + value.len() <= stride`.
    pub field_offset: u64,
    /// The bytes to be found: 1 to [`Search::VALUE_MAX_BYTES`]. They are copied before the call returns.
    pub value: &'a [u8],
    /// How many indices are wanted at most; 0 only counts.
    pub limit: u64,
    /// Whether the total must be exact. If not, the search may stop once the first `limit` matches are known.
    pub count_all: bool,
    /// Where the answer goes, at a multiple of 8: [`Search::answer_bytes`] bytes for the smaller of `limit` and the
    /// number of elements. What follows the listed indices there is unspecified.
    pub answer: HostSpan,
}

impl Search<'_> {
    /// The longest value.
    pub const VALUE_MAX_BYTES: usize = 4096;
    /// The length of the answer before its indices.
    pub const HEADER_BYTES: u64 = 16;

    /// How long an answer can get with this limit, in bytes.
    ///
    /// ```
    /// assert_eq!(backend_api::Search::answer_bytes(3), 16 + 3 * 8);
    /// ```
    #[must_use]
    pub fn answer_bytes(limit: u64) -> u64 {
        limit.saturating_mul(8).saturating_add(Self::HEADER_BYTES)
    }
}

/// Collects elements by index: `values[k] = elements[indices[k]]`.
#[derive(Clone, Copy, Debug)]
pub struct Gather {
    /// What is collected from; an element's `stride` bytes are moved whole.
    pub elements: Elements,
    /// The indices: `count` unsigned 64-bit numbers in the host's byte order, at a multiple of 8. They must stay as
    /// they are until the ticket is done.
    pub indices: HostSpan,
    /// How many indices.
    pub count: u64,
    /// Where the values go, one after the other without gaps.
    pub values: HostSpan,
}

/// Distributes elements by index: `elements[indices[k]] = values[k]`.
#[derive(Clone, Copy, Debug)]
pub struct Scatter {
    /// What is written to; an element's `stride` bytes are moved whole.
    pub elements: Elements,
    /// The indices, as for [`Gather`]. No index may occur twice: which value wins, or whether the element is then a
    /// mixture, is not said.
    pub indices: HostSpan,
    /// How many indices.
    pub count: u64,
    /// Where the values come from. They must stay as they are until the ticket is done.
    pub values: HostSpan,
}
