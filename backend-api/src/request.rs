//! What a queue is asked to do: copies and kernels, as plain descriptions.
//!
//! All offsets, lengths, strides and sizes are in bytes unless a name says otherwise. Indices and counts are
//! in elements. None of them needs any alignment.

use std::marker::PhantomData;

use crate::{BufferHandle, BufferId, HostAllocation, HostId};

/// A place in device memory, borrowed from the memory's owner: [`DeviceBuffer::at`](crate::DeviceBuffer::at)
/// or [`BufferHandle::at`].
///
/// ```
/// use backend_api::{Commit, DeviceBuffer};
/// # use std::sync::Arc;
/// # let device = Arc::new(backend_host::HostDevice::new(1 << 20)?);
/// let memory = DeviceBuffer::new(&device, 10_000, Commit::Lazy)?;
/// assert_eq!(memory.at(4096).plus(4096), memory.at(8192));
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceSpan<'a> {
    buffer: BufferId,
    offset: u64,
    owner: PhantomData<&'a BufferHandle>,
}

/// A place in host memory that the device knows, borrowed from the memory's owner:
/// [`HostBuffer::at`](crate::HostBuffer::at) or [`HostAllocation::at`].
///
/// ```
/// use backend_api::{HostBuffer, HostMemory};
/// # use std::sync::Arc;
/// # let device = Arc::new(backend_host::HostDevice::new(1 << 20)?);
/// let host = HostBuffer::new(&device, 10_000, HostMemory::Pageable)?;
/// assert_eq!(host.at(4096).plus(4096), host.at(8192));
/// # Ok::<_, backend_api::Error>(())
/// ```
///
/// A device that is asked for work on a place cannot keep it, and so cannot use it once more after the call:
///
/// ```compile_fail,E0521
/// # use backend_api::*;
/// # use std::sync::Mutex;
/// #[derive(Debug)]
/// struct Remembering<D> {
///     inner: D,
///     last: Mutex<Option<HostSpan<'static>>>,
/// }
///
/// // SAFETY: the inner device does everything.
/// unsafe impl<D: Device> Device for Remembering<D> {
///     fn submit(&self, queue: &QueueHandle, transfers: &[Transfer<'_>]) -> Result<Ticket> {
///         if let [Transfer::Download { to, .. }] = transfers {
///             *self.last.lock().unwrap() = Some(*to);
///         }
///         self.inner.submit(queue, transfers)
///     }
///     backend_api::forward! { self => self.inner;
///         info memory create_queue release_queue allocate release allocate_host import_host release_host
///         fill search gather scatter compute poll wait wake order_after
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HostSpan<'a> {
    host: HostId,
    offset: u64,
    owner: PhantomData<&'a HostAllocation>,
}

macro_rules! span {
    ($Span:ident, $name:ident: $Id:ident, $make:literal) => {
        impl $Span<'_> {
            pub(crate) fn new($name: $Id, offset: u64) -> Self {
                Self { $name, offset, owner: PhantomData }
            }

            /// The name of the memory.
            ///
            /// ```
            #[doc = $make]
            #[doc = concat!("assert_eq!(memory.at(10).", stringify!($name), "(), memory.id());")]
            /// # Ok::<_, backend_api::Error>(())
            /// ```
            #[must_use]
            pub fn $name(self) -> $Id {
                self.$name
            }

            /// Bytes from its start.
            ///
            /// ```
            #[doc = $make]
            /// assert_eq!(memory.at(10).offset(), 10);
            /// # Ok::<_, backend_api::Error>(())
            /// ```
            #[must_use]
            pub fn offset(self) -> u64 {
                self.offset
            }

            /// The place `bytes` bytes further on. One that no memory has, if there are not so many numbers:
            /// it is refused when it is used, as any place outside of its memory is.
            ///
            /// ```
            #[doc = $make]
            /// assert_eq!(memory.at(10).plus(5), memory.at(15));
            /// # Ok::<_, backend_api::Error>(())
            /// ```
            #[must_use]
            pub fn plus(self, bytes: u64) -> Self {
                self.with_offset(self.offset.saturating_add(bytes))
            }

            /// The place `offset` bytes into the same memory.
            ///
            /// ```
            #[doc = $make]
            /// assert_eq!(memory.at(10).with_offset(5), memory.at(5));
            /// # Ok::<_, backend_api::Error>(())
            /// ```
            #[must_use]
            pub fn with_offset(self, offset: u64) -> Self {
                Self { offset, ..self }
            }

            /// The same place, tied to its owner no longer: for those who own the memory and keep places in
            /// it beside it, or whose release of it waits until the last use is over.
            ///
            /// ```
            #[doc = $make]
            #[doc = concat!("use backend_api::", stringify!($Span), ";")]
            #[doc = concat!("struct Slots<M> { places: Vec<", stringify!($Span), "<'static>>, memory: M }")]
            /// // SAFETY: nobody but the owner of the slots gets their places, which go with the memory.
            /// let places = (0..10).map(|slot| unsafe { memory.at(slot * 10).detach() }).collect();
            /// let slots = Slots { places, memory };
            /// assert_eq!(slots.places[9], slots.memory.at(90));
            /// # Ok::<_, backend_api::Error>(())
            /// ```
            ///
            /// # Safety
            /// The caller owns the memory, or acts for its owner, until the last use of the place, and lets
            /// nobody use it who would not get one from the owner then.
            #[must_use]
            pub unsafe fn detach(self) -> $Span<'static> {
                $Span { $name: self.$name, offset: self.offset, owner: PhantomData }
            }
        }
    };
}

span!(
    DeviceSpan,
    buffer: BufferId,
    "# let device = std::sync::Arc::new(backend_host::HostDevice::new(1 << 20)?);
let memory = backend_api::DeviceBuffer::new(&device, 100, backend_api::Commit::Lazy)?;"
);
span!(
    HostSpan,
    host: HostId,
    "# let device = std::sync::Arc::new(backend_host::HostDevice::new(1 << 20)?);
let memory = backend_api::HostBuffer::new(&device, 100, backend_api::HostMemory::Pageable)?;"
);

/// One copy of `bytes` bytes.
///
/// ```
/// use backend_api::{Commit, Device, DeviceBuffer, HostBuffer, HostMemory, Queue, Transfer};
/// # use std::sync::Arc;
/// # let device = Arc::new(backend_host::HostDevice::new(1 << 20)?);
/// # let (queue, memory) = (Queue::new(&device)?, DeviceBuffer::new(&device, 64, Commit::Lazy)?);
/// # let host = HostBuffer::new(&device, 64, HostMemory::Pageable)?;
/// host.write(0, b"one");
/// let (here, there) = (host.at(8), memory.at(32));
/// queue.submit(&[Transfer::Upload { from: host.at(0), to: memory.at(0), bytes: 3 }])?;
/// queue.submit(&[Transfer::Internal { from: memory.at(0), to: there, bytes: 3 }])?;
/// device.wait(queue.submit(&[Transfer::Download { from: there, to: here, bytes: 3 }])?)?;
/// let mut bytes = [0; 3];
/// host.read(8, &mut bytes);
/// assert_eq!(&bytes, b"one");
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transfer<'a> {
    /// Host to device.
    Upload {
        /// Where the bytes come from.
        from: HostSpan<'a>,
        /// Where they go.
        to: DeviceSpan<'a>,
        /// How many.
        bytes: u64,
    },
    /// Device to host.
    Download {
        /// Where the bytes come from.
        from: DeviceSpan<'a>,
        /// Where they go.
        to: HostSpan<'a>,
        /// How many.
        bytes: u64,
    },
    /// Within the device. Source and target must not overlap.
    Internal {
        /// Where the bytes come from.
        from: DeviceSpan<'a>,
        /// Where they go.
        to: DeviceSpan<'a>,
        /// How many.
        bytes: u64,
    },
}

impl Transfer<'_> {
    /// How many bytes it moves.
    ///
    /// ```
    /// use backend_api::{BufferHandle, Transfer};
    /// let memory = BufferHandle::unique();
    /// let batch = [Transfer::Internal { from: memory.at(0), to: memory.at(500), bytes: 100 }; 3];
    /// assert_eq!(batch.iter().map(Transfer::bytes).sum::<u64>(), 300);
    /// ```
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
///
/// ```
/// use backend_api::{BufferHandle, BufferId, Elements, Extents, HostId};
/// # struct One(BufferHandle);
/// # impl Extents for One {
/// #     fn device_bytes(&self, buffer: BufferId) -> Option<u64> { (buffer == self.0.id()).then_some(100) }
/// #     fn host_bytes(&self, _: HostId) -> Option<u64> { None }
/// # }
/// # let memory = One(BufferHandle::unique());
/// // Eight structures of twelve bytes, after a header of four.
/// let elements = Elements { start: memory.0.at(4), count: 8, stride: 12 };
/// assert_eq!(memory.check_elements("search", &elements)?, 96);
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Elements<'a> {
    /// Where element 0 begins.
    pub start: DeviceSpan<'a>,
    /// How many elements there are.
    pub count: u64,
    /// Bytes from one element to the next; at least 1.
    pub stride: u64,
}

/// Writes one pattern again and again.
///
/// ```
/// use backend_api::{Commit, Device, DeviceBuffer, Fill, HostBuffer, HostMemory, Queue, Transfer};
/// # use std::sync::Arc;
/// # let device = Arc::new(backend_host::HostDevice::new(1 << 20)?);
/// # let (queue, memory) = (Queue::new(&device)?, DeviceBuffer::new(&device, 64, Commit::Lazy)?);
/// # let host = HostBuffer::new(&device, 64, HostMemory::Pageable)?;
/// // Whole and cut-off copies of a number of four bytes.
/// queue.fill(&Fill { to: memory.at(0), bytes: 10, pattern: &[1, 2, 3, 4] })?;
/// # let back = Transfer::Download { from: memory.at(0), to: host.at(0), bytes: 10 };
/// # device.wait(queue.submit(&[back])?)?;
/// # let mut device_memory = [0; 10];
/// # host.read(0, &mut device_memory);
/// assert_eq!(device_memory, [1, 2, 3, 4, 1, 2, 3, 4, 1, 2]);
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Fill<'a> {
    /// Where the first copy of the pattern goes.
    pub to: DeviceSpan<'a>,
    /// How many bytes are written in all; need not be a multiple of the pattern, whose last copy is then cut
    /// off.
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
///
/// ```
/// use backend_api::{Commit, Device, DeviceBuffer, Elements, Fill, HostBuffer, HostMemory, Queue, Search};
/// # use std::sync::Arc;
/// # let device = Arc::new(backend_host::HostDevice::new(1 << 20)?);
/// # let (queue, memory) = (Queue::new(&device)?, DeviceBuffer::new(&device, 64, Commit::Lazy)?);
/// # queue.fill(&Fill { to: memory.at(0), bytes: 20, pattern: &[1, 0, 7, 0, 2, 0, 8, 0] })?;
/// // Device memory holds pairs of 16-bit numbers: (1, 7), (2, 8), (1, 7), …
/// let elements = Elements { start: memory.at(0), count: 5, stride: 4 };
/// let host = HostBuffer::new(&device, Search::answer_bytes(9) as usize, HostMemory::Pageable)?;
/// let (value, answer) = (&8_u16.to_le_bytes(), host.at(0));
/// let second_is_8 = Search { elements, field_offset: 2, value, limit: 9, count_all: true, answer };
/// device.wait(queue.search(&second_is_8)?)?;
/// let mut words = [[0; 8]; 4];
/// host.read(0, words.as_flattened_mut());
/// assert_eq!(words.map(u64::from_ne_bytes), [2, 2, 1, 3]);
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Search<'a> {
    /// What is searched.
    pub elements: Elements<'a>,
    /// Where in an element the compared bytes begin. `field_offset + value.len() <= stride`.
    pub field_offset: u64,
    /// The bytes to be found: 1 to [`Search::VALUE_MAX_BYTES`]. They are copied before the call returns.
    pub value: &'a [u8],
    /// How many indices are wanted at most; 0 only counts.
    pub limit: u64,
    /// Whether the total must be exact. If not, the search may stop once the first `limit` matches are known.
    pub count_all: bool,
    /// Where the answer goes, at a multiple of 8: [`Search::answer_bytes`] bytes for the smaller of `limit`
    /// and the number of elements. What follows the listed indices there is unspecified.
    pub answer: HostSpan<'a>,
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
///
/// ```
/// use backend_api::{Commit, Device, DeviceBuffer, Elements, Fill, Gather, HostBuffer, HostMemory, Queue};
/// # use std::sync::Arc;
/// # let device = Arc::new(backend_host::HostDevice::new(1 << 20)?);
/// # let (queue, memory) = (Queue::new(&device)?, DeviceBuffer::new(&device, 64, Commit::Lazy)?);
/// # queue.fill(&Fill { to: memory.at(0), bytes: 6, pattern: b"aabbcc" })?;
/// # let host = HostBuffer::new(&device, 64, HostMemory::Pageable)?;
/// // Device memory holds `aabbcc`. An element can be asked for any number of times.
/// host.write(0, [1_u64, 1, 2].map(u64::to_ne_bytes).as_flattened());
/// let elements = Elements { start: memory.at(0), count: 3, stride: 2 };
/// let gather = Gather { elements, indices: host.at(0), count: 3, values: host.at(24) };
/// device.wait(queue.gather(&gather)?)?;
/// let mut values = [0; 6];
/// host.read(24, &mut values);
/// assert_eq!(&values, b"bbbbcc");
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Gather<'a> {
    /// What is collected from; an element's `stride` bytes are moved whole.
    pub elements: Elements<'a>,
    /// The indices: `count` unsigned 64-bit numbers in the host's byte order, at a multiple of 8. They must
    /// stay as they are until the ticket is done.
    pub indices: HostSpan<'a>,
    /// How many indices.
    pub count: u64,
    /// Where the values go, one after the other without gaps.
    pub values: HostSpan<'a>,
}

/// Distributes elements by index: `elements[indices[k]] = values[k]`.
///
/// ```
/// # use backend_api::{Commit, DeviceBuffer, Fill, HostBuffer, HostMemory, Queue, Transfer};
/// use backend_api::{Device, Elements, ErrorKind, Scatter};
/// # use std::sync::Arc;
/// # let device = Arc::new(backend_host::HostDevice::new(1 << 20)?);
/// # let (queue, memory) = (Queue::new(&device)?, DeviceBuffer::new(&device, 64, Commit::Lazy)?);
/// # let host = HostBuffer::new(&device, 64, HostMemory::Pageable)?;
/// // Three elements; number 3 is outside.
/// host.write(0, [0_u64, 3].map(u64::to_ne_bytes).as_flattened());
/// let elements = Elements { start: memory.at(0), count: 3, stride: 2 };
/// let scatter = |count| Scatter { elements, indices: host.at(0), count, values: host.at(16) };
/// device.wait(queue.scatter(&scatter(1))?)?;
/// let failed = queue.scatter(&scatter(2))?;
/// assert_eq!(device.wait(failed).unwrap_err().kind(), ErrorKind::KernelFailed);
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Scatter<'a> {
    /// What is written to; an element's `stride` bytes are moved whole.
    pub elements: Elements<'a>,
    /// The indices, as for [`Gather`]. No index may occur twice: which value wins, or whether the element is
    /// then a mixture, is not said.
    pub indices: HostSpan<'a>,
    /// How many indices.
    pub count: u64,
    /// Where the values come from. They must stay as they are until the ticket is done.
    pub values: HostSpan<'a>,
}
