//! Requests to run a kernel on a device.

use std::ops::Range;
use std::time::Duration;

use super::{Access, Memory, Report, VerifiedKernel};
use crate::expr::Geometry;
use crate::validate::check_aligned;
use crate::{BufferId, DeviceSpan, Elements, Error, ErrorKind, Extents, HostSpan, Result};

const OPERATION: &str = "launch";

/// The elements of a view: an array of elements in device memory, contiguous or in pages.
///
/// ```
/// use backend_api::{BufferHandle, Elements, LaunchView};
/// let memory = BufferHandle::unique();
/// let row = LaunchView::Run(Elements { start: memory.at(0), count: 5, stride: 4 });
/// assert_eq!((row.count(), row.stride(), row.place(3)), (5, 4, Some((memory.at(0), 12))));
/// // Pages of two elements, striped over two places.
/// let bases = [memory.at(100), memory.at(200)];
/// let striped = LaunchView::Striped { bases: &bases, page_len: 2, count: 7, stride: 4 };
/// assert_eq!(striped.place(3), Some((memory.at(200), 4)));
/// assert_eq!((striped.place(5), striped.place(7)), (Some((memory.at(100), 12)), None));
/// assert_eq!(striped.ranges().map(|(_, bytes)| bytes).collect::<Vec<_>>(), [16, 12]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaunchView<'a> {
    /// Contiguous elements.
    Run(Elements<'a>),
    /// Elements in pages, which are striped over several places. With `n = bases.len()`, page `p` is page
    /// number `p / n` of the contiguous pages from `bases[p % n]` on.
    Striped {
        /// The `n` places, 1 to [`LaunchView::BASES_MAX`]: the start of the pages `i`, `i + n`, `i + 2n` and
        /// so on.
        bases: &'a [DeviceSpan<'a>],
        /// Number of elements of a page; at least 1.
        page_len: u64,
        /// The number of elements.
        count: u64,
        /// Bytes from one element to the next; at least 1.
        stride: u64,
    },
}

impl<'a> From<Elements<'a>> for LaunchView<'a> {
    fn from(elements: Elements<'a>) -> Self {
        Self::Run(elements)
    }
}

impl<'a> LaunchView<'a> {
    /// Maximum number of places over which a view's pages are striped.
    pub const BASES_MAX: usize = 64;

    /// Returns the number of elements of the view.
    #[must_use]
    pub const fn count(&self) -> u64 {
        match self {
            Self::Run(elements) => elements.count,
            Self::Striped { count, .. } => *count,
        }
    }

    /// Bytes from one element to the next.
    #[must_use]
    pub const fn stride(&self) -> u64 {
        match self {
            Self::Run(elements) => elements.stride,
            Self::Striped { stride, .. } => *stride,
        }
    }

    /// Returns the start of each run of pages, or the start of the elements if they are contiguous.
    #[must_use]
    pub const fn bases(&self) -> &[DeviceSpan<'a>] {
        match self {
            Self::Run(elements) => std::slice::from_ref(&elements.start),
            Self::Striped { bases, .. } => bases,
        }
    }

    /// Number of elements of a page; all elements if they are contiguous.
    #[must_use]
    pub const fn page_len(&self) -> u64 {
        match self {
            Self::Run(_) => 1 << 63,
            Self::Striped { page_len, .. } => *page_len,
        }
    }

    /// Returns the start of an element, as one of the [`bases`](Self::bases) and an offset from it in bytes;
    /// `None` if the element does not exist.
    #[must_use]
    pub fn place(&self, element: u64) -> Option<(DeviceSpan<'a>, u64)> {
        if element >= self.count() {
            return None;
        }
        let (bases, page_len) = (self.bases().len() as u64, self.page_len());
        let page = element / page_len;
        let before = page / bases * page_len + element % page_len;
        Some((self.bases()[(page % bases) as usize], before * self.stride()))
    }

    /// Returns each of the [`bases`](Self::bases) with the number of bytes from there on that belong to the
    /// view. For views that passed the check.
    pub fn ranges(&self) -> impl Iterator<Item = (DeviceSpan<'a>, u64)> {
        let (bases, page_len, count) = (self.bases().len() as u64, self.page_len(), self.count());
        let (stride, pages) = (self.stride(), count.div_ceil(page_len));
        // All pages before this element are whole, except perhaps for the last page of the view.
        let elements = move |base: u64| {
            let here = (pages + bases - 1 - base) / bases;
            let missing = pages * page_len.min(count) - count;
            let has_last = pages > 0 && (pages - 1) % bases == base;
            here * page_len.min(count) - if has_last { missing } else { 0 }
        };
        let places: Vec<_> = self.bases().to_vec();
        places.into_iter().zip(0..).map(move |(place, base)| (place, elements(base) * stride))
    }
}

/// A launch of a kernel: a request to run it for a number of items.
///
/// The device writes the [report](Report) about failed items at the end. The writes of failed items stay. If
/// the launch fails as a whole, the contents of written views are unspecified.
///
/// ```
/// use backend_api::expr::Geometry;
/// use backend_api::kernel::{
///     Access, Binary, Body, Builtin, Launch, LaunchView, Memory, Op, Reg, Report, Type, VerifiedKernel,
///     ViewDecl,
/// };
/// use backend_api::{
///     Commit, Device, DeviceBuffer, Elements, Fill, HostBuffer, HostMemory, Queue, Request, Transfer,
/// };
/// # use std::sync::Arc;
/// # let device = Arc::new(backend_host::HostDevice::new(1 << 20)?);
/// # let (queue, memory) = (Queue::new(&device)?, DeviceBuffer::new(&device, 64, Commit::Lazy)?);
/// # let host = HostBuffer::new(&device, 64, HostMemory::Pageable)?;
/// // x[i] += i
/// let (of, [at, value, index]) = (Memory::Value(Type::U64), [0, 1, 2].map(Reg));
/// let kernel = VerifiedKernel::new(Body {
///     registers: vec![Type::U64; 3],
///     views: vec![ViewDecl { access: Access::Write { tile: 1 }, fields: vec![(0, of)] }],
///     code: vec![
///         Op::Literal { to: at, bits: 0 },
///         Op::Load { to: value, view: 0, at, offset: 0, of },
///         Op::Builtin { to: index, what: Builtin::Index },
///         Op::Binary { op: Binary::Add, to: value, left: value, right: index },
///         Op::Store { view: 0, at, offset: 0, of, value },
///     ],
///     ..Body::default()
/// })?;
/// queue.submit(&Fill { to: memory.at(0), bytes: 64, pattern: &100_u64.to_ne_bytes() })?;
/// let views = [LaunchView::Run(Elements { start: memory.at(0), count: 4, stride: 8 })];
/// let launch = Launch { views: &views, ..Launch::new(&kernel, 4, Geometry::plain(7), host.at(32)) };
/// assert!(launch.writes(0) && launch.bytes() == 32);
/// device.prepare(&[Request::Launch(&launch)])?; // From here on nothing waits for a compiler.
/// queue.submit(&launch)?;
/// let result = Transfer::Download { from: memory.at(0), to: host.at(0), bytes: 32 };
/// device.wait(queue.submit(&[result])?)?;
/// let mut words = [[0; 8]; 8];
/// host.read(0, words.as_flattened_mut());
/// let words = words.map(u64::from_ne_bytes);
/// assert_eq!((words[..4].to_vec(), words[4]), (vec![107, 108, 109, 110], 0), "no failure");
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// Kernel to launch.
    pub kernel: &'a VerifiedKernel,
    /// Number of items to run.
    pub items: u64,
    /// Mapping from item numbers to element indices.
    pub geometry: Geometry,
    /// Views, one for each view of the kernel. A written view has at least one [tile](super::Access) for each
    /// item. It overlaps neither with itself nor with another view.
    pub views: &'a [LaunchView<'a>],
    /// Parameters, one for each parameter of the kernel: its value as 64 bits; see [`Type`](super::Type). The
    /// call copies them before it returns.
    pub params: &'a [u64],
    /// The bytes of the tables; see [`Body::table_offset`](super::Body::table_offset). The call copies
    /// them before it returns.
    pub table: &'a [u8],
    /// Maximum number of loop iterations (back edges) of an item. Without a budget, an endless loop occupies
    /// the device for ever.
    pub budget: Option<u64>,
    /// Time limit of an item or a group: see [`kernel`](super#failures). Devices that compute with the CPU
    /// enforce it. Other devices ignore it, because a GPU cannot stop a kernel.
    pub time_limit: Option<Duration>,
    /// Size of each item's private heap in bytes, a multiple of 8, for kernels with
    /// [`Op::PrivateAlloc`](super::Op::PrivateAlloc). The device allocates a private heap for each item that
    /// runs at a time. If it cannot, the call fails with [`OutOfMemory`](ErrorKind::OutOfMemory), and starts
    /// nothing.
    pub private_heap_bytes: u64,
    /// Place for the report: [`Report::BYTES`] bytes, at a multiple of 8.
    pub report: HostSpan<'a>,
}

impl<'a> Launch<'a> {
    /// Creates a launch without views, parameters and tables, with no budget, no time limit and no private
    /// heap.
    #[must_use]
    pub const fn new(
        kernel: &'a VerifiedKernel,
        items: u64,
        geometry: Geometry,
        report: HostSpan<'a>,
    ) -> Self {
        let (views, params, table): (&[LaunchView<'_>], &[u64], &[u8]) = (&[], &[], &[]);
        let (budget, time_limit) = (None, None);
        Self {
            kernel,
            items,
            geometry,
            views,
            params,
            table,
            budget,
            time_limit,
            private_heap_bytes: 0,
            report,
        }
    }

    /// Size of the elements of all views together, in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let bytes = self.views.iter().map(|view| view.count().saturating_mul(view.stride()));
        bytes.fold(0, u64::saturating_add)
    }

    /// Returns true if the kernel writes to the view at this index.
    #[must_use]
    pub fn writes(&self, view: usize) -> bool {
        self.kernel.body().views[view].access.is_written()
    }
}

/// A range of device memory that a view covers.
struct Reached {
    view: usize,
    buffer: BufferId,
    bytes: Range<u64>,
}

/// The check of a launch.
pub(crate) fn check<E: Extents + ?Sized>(extents: &E, launch: &Launch<'_>) -> Result<()> {
    let body = launch.kernel.body();
    let equal = |what: &str, given: u64, wanted: u64| {
        let refused = || invalid(format!("the launch has {given} {what}, but the kernel has {wanted}"));
        if given == wanted { Ok(()) } else { Err(refused()) }
    };
    equal("views", launch.views.len() as u64, body.views.len() as u64)?;
    equal("parameters", launch.params.len() as u64, body.params.len() as u64)?;
    equal("bytes of tables", launch.table.len() as u64, body.table_bytes())?;
    for (number, (bits, of)) in launch.params.iter().zip(&body.params).enumerate() {
        if bits & !of.mask() != 0 {
            return Err(invalid(format!("parameter {number} has more bits than {of}")));
        }
    }
    if launch.geometry.page_len == 0 || launch.geometry.channels == 0 {
        return Err(invalid(
            "the geometry has empty pages or no channel, but needs at least one element and one channel"
                .into(),
        ));
    }
    if !launch.private_heap_bytes.is_multiple_of(8) {
        return Err(invalid(format!(
            "the private heap has {} bytes, which is not a multiple of 8",
            launch.private_heap_bytes
        )));
    }
    let mut reached = Vec::new();
    for (number, view) in launch.views.iter().enumerate() {
        check_view(extents, launch, number, view, &mut reached)?;
    }
    for (at, one) in reached.iter().enumerate().filter(|(_, one)| launch.writes(one.view)) {
        // If the launch writes both views, the check of the second view finds the overlap with the first one.
        for (_, other) in reached.iter().enumerate().filter(|(number, _)| *number != at) {
            let apart = one.buffer != other.buffer
                || one.bytes.is_empty()
                || other.bytes.is_empty()
                || one.bytes.end <= other.bytes.start
                || other.bytes.end <= one.bytes.start;
            if !apart {
                let detail =
                    format!("view {}, which is written to, overlaps with view {}", one.view, other.view);
                return Err(invalid(detail).with_offset(one.bytes.start));
            }
        }
    }
    check_aligned(OPERATION, "report", launch.report)?;
    extents.check_host(OPERATION, launch.report, Report::BYTES)
}

/// Checks that a view has places and elements, and that its number of bytes does not overflow. It checks
/// the bounds only of contiguous views.
pub(crate) fn check_shape<E: Extents + ?Sized>(
    extents: &E,
    operation: &'static str,
    what: &str,
    view: &LaunchView<'_>,
) -> Result<()> {
    let invalid = |detail: String| Err(Error::new(ErrorKind::InvalidArgument, operation).with_detail(detail));
    match *view {
        LaunchView::Run(elements) => extents.check_elements(operation, &elements).map(drop),
        LaunchView::Striped { bases, page_len, count, stride } => {
            if !(1..=LaunchView::BASES_MAX).contains(&bases.len()) || page_len == 0 || stride == 0 {
                let (places, most) = (bases.len(), LaunchView::BASES_MAX);
                return invalid(format!(
                    "{what}: {places} places with pages of {page_len} elements of {stride} bytes, but 1 to {most} places \
                     and at least 1 element and byte are supported"
                ));
            }
            // All later products are smaller, so they cannot overflow.
            let rounds_up = count.checked_add(page_len.min(count)).and_then(|most| most.checked_mul(stride));
            match rounds_up {
                None => {
                    invalid(format!("{what}: {count} elements of {stride} bytes overflow the address space"))
                }
                Some(_) => Ok(()),
            }
        }
    }
}

fn check_view<E: Extents + ?Sized>(
    extents: &E,
    launch: &Launch<'_>,
    number: usize,
    view: &LaunchView<'_>,
    reached: &mut Vec<Reached>,
) -> Result<()> {
    let decl = &launch.kernel.body().views[number];
    check_shape(extents, OPERATION, &format!("view {number}"), view)?;
    if decl.extent() > view.stride() {
        let detail = format!("view {number}: a field ends outside of its element of {} bytes", view.stride());
        return Err(invalid(detail).with_bytes(decl.extent()));
    }
    for (place, bytes) in view.ranges() {
        extents.check_device(OPERATION, place, bytes)?;
        let bytes = place.offset()..place.offset() + bytes;
        reached.push(Reached { view: number, buffer: place.buffer(), bytes });
        let aligned = |(offset, of): &(u32, Memory)| {
            let bytes = u64::from(of.bytes());
            (place.offset() + u64::from(*offset)).is_multiple_of(bytes) && view.stride().is_multiple_of(bytes)
        };
        if decl.access == Access::Atomic && !decl.fields.iter().all(aligned) {
            let detail =
                format!("view {number}: the place of an atomic field is not a multiple of its length");
            return Err(invalid(detail).with_offset(place.offset()));
        }
    }
    if let (Access::Write { tile }, Some(before)) = (decl.access, launch.items.checked_sub(1)) {
        let needed = before.checked_mul(tile.into());
        if needed.is_none_or(|needed| view.count() <= needed) {
            let (count, items) = (view.count(), launch.items);
            return Err(invalid(format!(
                "view {number} has {count} elements, too few for {items} items of {tile} elements each"
            )));
        }
    }
    Ok(())
}

fn invalid(detail: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, OPERATION).with_detail(detail)
}

/// Facts about a kernel that a device has compiled. A fact is `None` if the driver does not report it.
///
/// ```
/// use backend_api::kernel::KernelFacts;
/// assert_eq!(KernelFacts::default().registers, None);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct KernelFacts {
    /// Number of 32-bit hardware registers of an item.
    pub registers: Option<u32>,
    /// Size of the registers that an item spills to memory, in bytes.
    pub spilled_bytes: Option<u64>,
    /// The number of items in a group.
    pub group_len: Option<u32>,
}
