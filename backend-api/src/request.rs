//! Requests to a queue: copies, fills, searches, gathers and scatters.
//!
//! Offsets, lengths, strides and sizes are in bytes, unless a name says otherwise. Indices and counts are in
//! elements. Offsets need no alignment, unless the documentation requires one.

use crate::{DeviceSpan, Elements, HostSpan, LaunchView};

/// One copy of a request: `bytes` bytes from host to device, from device to host, or within device memory.
///
/// ```
/// use backend_api::{Commit, Device, HostMemory, Request, Transfer};
/// # let device = backend_host::HostDevice::new(1 << 20)?;
/// # let (queue, memory) = (device.create_queue()?, device.allocate(64, Commit::Lazy)?);
/// # let host = device.allocate_host(64, HostMemory::Pageable)?;
/// let (here, there) = (host.at(8), memory.at(32));
/// let copies = [
///     Transfer::Upload { from: host.at(0), to: memory.at(0), bytes: 3 },
///     Transfer::Internal { from: memory.at(3), to: there, bytes: 3 },
///     Transfer::Download { from: memory.at(6), to: here, bytes: 3 },
/// ];
/// assert_eq!(copies.iter().map(Transfer::bytes).sum::<u64>(), 9);
/// device.wait(device.submit(&queue, &Request::Copies(&copies, None))?)?;
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transfer<'a> {
    /// A copy from the host to the device.
    Upload {
        /// The source.
        from: HostSpan<'a>,
        /// The target.
        to: DeviceSpan<'a>,
        /// The number of bytes.
        bytes: u64,
    },
    /// A copy from the device to the host.
    Download {
        /// The source.
        from: DeviceSpan<'a>,
        /// The target.
        to: HostSpan<'a>,
        /// The number of bytes.
        bytes: u64,
    },
    /// A copy within the device's memory, or from or to another device that this device
    /// [reaches](crate::Device::reaches). Source and target must not overlap.
    Internal {
        /// The source.
        from: DeviceSpan<'a>,
        /// The target.
        to: DeviceSpan<'a>,
        /// The number of bytes.
        bytes: u64,
    },
}

impl Transfer<'_> {
    /// Returns the number of bytes to copy.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match *self {
            Self::Upload { bytes, .. } | Self::Download { bytes, .. } | Self::Internal { bytes, .. } => bytes,
        }
    }
}

/// A request to fill device memory with copies of a pattern.
///
/// ```
/// use backend_api::{Commit, Device, DeviceBuffer, Fill, HostBuffer, HostMemory, Queue, Transfer};
/// # use std::sync::Arc;
/// # let device = Arc::new(backend_host::HostDevice::new(1 << 20)?);
/// # let (queue, memory) = (Queue::new(&device)?, DeviceBuffer::new(&device, 64, Commit::Lazy)?);
/// # let host = HostBuffer::new(&device, 64, HostMemory::Pageable)?;
/// // A whole and a truncated copy of a pattern of four bytes.
/// queue.submit(&Fill { to: memory.at(0), bytes: 6, pattern: &[1, 2, 3, 4] })?;
/// device.wait(queue.submit(&[Transfer::Download { from: memory.at(0), to: host.at(0), bytes: 6 }])?)?;
/// let mut bytes = [0; 6];
/// host.read(0, &mut bytes);
/// assert_eq!(bytes, [1, 2, 3, 4, 1, 2]);
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Fill<'a> {
    /// Start of the memory to fill.
    pub to: DeviceSpan<'a>,
    /// Number of bytes to write. If it is not a multiple of the pattern's length, the last copy is truncated.
    pub bytes: u64,
    /// The pattern: 1 to [`Fill::PATTERN_MAX_BYTES`] bytes. The submitting call copies it before it returns.
    pub pattern: &'a [u8],
}

impl Fill<'_> {
    /// Maximum length of a pattern, in bytes.
    pub const PATTERN_MAX_BYTES: usize = 4096;
}

/// A request to find the elements that contain a given value at a given offset.
///
/// The device writes the answer to host memory as unsigned 64-bit numbers in the host's byte order:
///
/// | bytes | contents |
/// |---|---|
/// | 0..8 | the number of matching elements; with [`count_all`](Self::count_all) off, at least the number listed |
/// | 8..16 | the number of listed indices: the smaller of `limit` and the number of matches |
/// | 16.. | the indices of the first matches, ascending |
///
/// ```
/// use backend_api::{Commit, Device, DeviceBuffer, Elements, Fill, HostBuffer, HostMemory, Queue, Search};
/// # use std::sync::Arc;
/// # let device = Arc::new(backend_host::HostDevice::new(1 << 20)?);
/// # let (queue, memory) = (Queue::new(&device)?, DeviceBuffer::new(&device, 64, Commit::Lazy)?);
/// # queue.submit(&Fill { to: memory.at(0), bytes: 20, pattern: &[1, 0, 7, 0, 2, 0, 8, 0] })?;
/// // Device memory holds pairs of 16-bit numbers: (1, 7), (2, 8), (1, 7), …
/// let elements = Elements { start: memory.at(0), count: 5, stride: 4 };
/// let host = HostBuffer::new(&device, Search::answer_bytes(9) as usize, HostMemory::Pageable)?;
/// let (value, answer) = (&8_u16.to_le_bytes(), host.at(0));
/// let second_is_8 = Search { elements, field_offset: 2, value, limit: 9, count_all: true, answer };
/// device.wait(queue.submit(&second_is_8)?)?;
/// let mut words = [[0; 8]; 4];
/// host.read(0, words.as_flattened_mut());
/// assert_eq!(words.map(u64::from_ne_bytes), [2, 2, 1, 3]);
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Search<'a> {
    /// The elements to search.
    pub elements: Elements<'a>,
    /// Offset of the compared field in an element, in bytes; `field_offset + value.len() <= stride`.
    pub field_offset: u64,
    /// The bytes to find: 1 to [`Search::VALUE_MAX_BYTES`]. The submission copies them.
    pub value: &'a [u8],
    /// Maximum number of indices in the answer; 0 to count matches only.
    pub limit: u64,
    /// True if the number of matches must be exact. If false, the search may stop when it has found the first
    /// `limit` matches.
    pub count_all: bool,
    /// Host memory for the answer, at an offset that is a multiple of 8. It has [`Search::answer_bytes`]
    /// bytes for the smaller of `limit` and the number of elements. The bytes after the indices are
    /// unspecified.
    pub answer: HostSpan<'a>,
}

impl Search<'_> {
    /// Maximum length of a value, in bytes.
    pub const VALUE_MAX_BYTES: usize = 4096;
    /// Size in bytes of the numbers before the indices in an answer.
    pub const HEADER_BYTES: u64 = 16;

    /// Returns the maximum size in bytes of an answer with `limit` indices.
    #[must_use]
    pub fn answer_bytes(limit: u64) -> u64 {
        limit.saturating_mul(8).saturating_add(Self::HEADER_BYTES)
    }
}

/// A special index in the list of a [`Gather`] or a [`Scatter`]: the device reads and writes no element for
/// this index. The corresponding value of a gather is unspecified.
///
/// ```
/// use backend_api::{Commit, DeviceBuffer, Elements, Fill, HostBuffer, HostMemory, LEFT_OUT, Queue, Scatter};
/// # use std::sync::Arc;
/// # let device = Arc::new(backend_host::HostDevice::new(1 << 20)?);
/// # let (queue, memory) = (Queue::new(&device)?, DeviceBuffer::new(&device, 64, Commit::Lazy)?);
/// # queue.submit(&Fill { to: memory.at(0), bytes: 8, pattern: b"abcd" })?;
/// # let host = HostBuffer::new(&device, 64, HostMemory::Pageable)?;
/// // Device memory holds `abcd` twice. The device skips the second of three values.
/// host.write(0, [0, LEFT_OUT, 2].map(u64::to_ne_bytes).as_flattened());
/// host.write(24, b"xyz");
/// let elements = Elements { start: memory.at(0), count: 4, stride: 1 };
/// # use backend_api::{Device, Transfer};
/// queue.submit(&Scatter { elements: elements.into(), indices: host.at(0), count: 3, values: host.at(24) })?;
/// device.wait(queue.submit(&[Transfer::Download { from: memory.at(0), to: host.at(32), bytes: 4 }])?)?;
/// # let mut bytes = [0; 4];
/// # host.read(32, &mut bytes);
/// assert_eq!(&bytes, b"xbzd");
/// # Ok::<_, backend_api::Error>(())
/// ```
pub const LEFT_OUT: u64 = u64::MAX;

/// A request to copy elements by index from the device to the host: `values[k] = elements[indices[k]]`.
///
/// ```
/// use backend_api::{Commit, Device, DeviceBuffer, Elements, Fill, Gather, HostBuffer, HostMemory, Queue};
/// # use std::sync::Arc;
/// # let device = Arc::new(backend_host::HostDevice::new(1 << 20)?);
/// # let (queue, memory) = (Queue::new(&device)?, DeviceBuffer::new(&device, 64, Commit::Lazy)?);
/// # queue.submit(&Fill { to: memory.at(0), bytes: 6, pattern: b"aabbcc" })?;
/// # let host = HostBuffer::new(&device, 64, HostMemory::Pageable)?;
/// // Device memory holds `aabbcc`. A list may contain an index several times.
/// host.write(0, [1_u64, 1, 2].map(u64::to_ne_bytes).as_flattened());
/// let elements = Elements { start: memory.at(0), count: 3, stride: 2 };
/// let gather = Gather { elements: elements.into(), indices: host.at(0), count: 3, values: host.at(24) };
/// device.wait(queue.submit(&gather)?)?;
/// let mut values = [0; 6];
/// host.read(24, &mut values);
/// assert_eq!(&values, b"bbbbcc");
/// # Ok::<_, backend_api::Error>(())
/// ```
///
/// Some devices refuse elements in [striped pages](LaunchView::Striped) as
/// [`Unsupported`](crate::ErrorKind::Unsupported). The pages can be in memory of other devices that this
/// device [maps](crate::Reach::Maps). To find out if a device supports a kind of request, submit one without
/// indices.
#[derive(Clone, Copy, Debug)]
pub struct Gather<'a> {
    /// Elements to read. Each value is a whole element of `stride` bytes.
    pub elements: LaunchView<'a>,
    /// Indices: `count` unsigned 64-bit numbers in the host's byte order, at an offset that is a multiple of
    /// 8. The device skips an entry [`LEFT_OUT`]. The list must not change until the gather is done.
    pub indices: HostSpan<'a>,
    /// The number of indices.
    pub count: u64,
    /// Host memory to which the device writes the values, which are contiguous.
    pub values: HostSpan<'a>,
}

/// A request to copy elements by index from the host to the device: `elements[indices[k]] = values[k]`.
///
/// ```
/// use backend_api::{Commit, Device, Elements, ErrorKind, HostMemory, Request, Scatter};
/// # let device = backend_host::HostDevice::new(1 << 20)?;
/// # let (queue, memory) = (device.create_queue()?, device.allocate(64, Commit::Lazy)?);
/// # let host = device.allocate_host(64, HostMemory::Pageable)?;
/// // New host memory is zeroed, so the index is 0, which is out of bounds for 0 elements.
/// let elements = |count| Elements { start: memory.at(0), count, stride: 2 };
/// let (indices, values) = (host.at(0), host.at(16));
/// let scatter = |count| Scatter { elements: elements(count).into(), indices, count: 1, values };
/// device.wait(device.submit(&queue, &Request::Scatter(&scatter(3)))?)?;
/// let failed = device.submit(&queue, &Request::Scatter(&scatter(0)))?;
/// assert_eq!(device.wait(failed).unwrap_err().kind(), ErrorKind::KernelFailed);
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Scatter<'a> {
    /// Elements to write, as in [`Gather::elements`]. Each value is a whole element of `stride` bytes.
    pub elements: LaunchView<'a>,
    /// Indices, by the rules of [`Gather::indices`]. If an index occurs twice, the element gets one of the
    /// two values, or a mixture of their bytes.
    pub indices: HostSpan<'a>,
    /// The number of indices.
    pub count: u64,
    /// Host memory with the contiguous values. The program must not change them until the scatter is done.
    pub values: HostSpan<'a>,
}
