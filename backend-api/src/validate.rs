//! Checks of requests that every backend makes before it starts any work.

use std::ops::Range;

use crate::kernel::{Access, Memory, Report};
use crate::{
    BufferId, Compute, DeviceSpan, Elements, Error, ErrorKind, Fill, Gather, HostId, HostSpan, Launch,
    LaunchView, Result, Scatter, Search, Transfer,
};

/// Name of the operation in errors about launches.
const LAUNCH: &str = "launch";

/// Bounds checks of requests: each range that a request names must be inside of its buffer or host memory.
///
/// A backend implements [`device_bytes`](Self::device_bytes) and [`host_bytes`](Self::host_bytes), and calls
/// the `check_…` method for each request before it starts the work. A range whose end overflows is an invalid
/// argument.
///
/// ```
/// use backend_api::expr::{Action, Geometry, Instruction, Program, Type, Value};
/// use backend_api::{
///     BufferHandle, BufferId, Compute, Elements, ErrorKind, Extents, Fill, Gather, HostAllocation, HostId, Scatter,
///     Search, Transfer,
/// };
/// # use backend_api::{Device, HostMemory};
///
/// struct Memory(BufferHandle, HostAllocation);
/// impl Extents for Memory {
///     fn device_bytes(&self, buffer: BufferId) -> Option<u64> { (buffer == self.0.id()).then_some(100) }
///     fn host_bytes(&self, host: HostId) -> Option<u64> { (host == self.1.id()).then_some(64) }
/// }
/// # let host = backend_host::HostDevice::new(0)?.allocate_host(64, HostMemory::Pageable)?;
/// let memory = Memory(BufferHandle::unique(), host);
/// let (at, host) = (|offset| memory.0.at(offset), |offset| memory.1.at(offset));
/// assert_eq!((memory.device_bytes(memory.0.id()), memory.host_bytes(memory.1.id())), (Some(100), Some(64)));
///
/// let error = memory.check_device("fill", at(90), 11).unwrap_err();
/// assert_eq!((error.kind(), error.operation()), (ErrorKind::InvalidArgument, "fill"));
/// let stranger = BufferHandle::unique();
/// assert_eq!(memory.check_device("fill", stranger.at(0), 1).unwrap_err().kind(), ErrorKind::UnknownHandle);
/// assert!(memory.check_host("submit", host(0), 64).is_ok());
/// let copy = |from, to| Transfer::Internal { from: at(from), to: at(to), bytes: 50 };
/// assert!(memory.check_transfer(&copy(0, 50)).is_ok());
/// assert_eq!(memory.check_transfer(&copy(0, 49)).unwrap_err().detail(), "source and target overlap");
/// assert!(memory.check_fill(&Fill { to: at(0), bytes: 100, pattern: &[] }).is_err(), "an empty pattern");
///
/// let elements = Elements { start: at(0), count: 10, stride: 4 };
/// assert_eq!(memory.check_elements("gather", &elements)?, 40);
/// let answer = host(0);
/// let search = |field_offset| Search { elements, field_offset, value: &[1, 2], limit: 6, count_all: false, answer };
/// assert!(memory.check_search(&search(2)).is_ok());
/// assert!(memory.check_search(&search(3)).is_err(), "the field would leave its element");
/// let gather = |at| Gather { elements: elements.into(), indices: host(at), count: 4, values: host(40) };
/// assert!(memory.check_gather(&gather(0)).is_ok());
/// assert!(memory.check_gather(&gather(4)).is_err(), "indices start at a multiple of 8");
/// let scatter = Scatter { elements: elements.into(), indices: host(0), count: 7, values: host(40) };
/// assert!(memory.check_scatter(&scatter).is_err(), "there are not that many values");
/// let program = Program::new(vec![Instruction::Field { source: 0, offset: 0, of: Type::U32 }])?;
/// let action = Action::Histogram { value: Value(0), filter: None, bins: 9, answer };
/// let compute = Compute { program: &program, sources: &[elements], geometry: Geometry::plain(0), action };
/// assert!(memory.check_compute(&compute).is_err(), "the answer has room for 8 numbers");
/// let kernel = backend_api::kernel::VerifiedKernel::new(Default::default())?;
/// let launch = |report| backend_api::Launch::new(&kernel, 1, Geometry::plain(0), host(report));
/// assert!(memory.check_launch(&launch(32)).is_ok());
/// assert!(memory.check_launch(&launch(40)).is_err(), "there is no room for the report");
/// # Ok::<_, backend_api::Error>(())
/// ```
pub trait Extents {
    /// Returns the length of a buffer in bytes; `None` if the buffer does not belong to the device.
    fn device_bytes(&self, buffer: BufferId) -> Option<u64>;

    /// Returns the length of a host allocation in bytes; `None` if the allocation does not belong to the
    /// device.
    fn host_bytes(&self, host: HostId) -> Option<u64>;

    /// Checks that the `bytes` bytes from `at` on are inside of a buffer.
    ///
    /// # Errors
    /// The buffer is unknown, or the range ends beyond the buffer.
    fn check_device(&self, operation: &'static str, at: DeviceSpan<'_>, bytes: u64) -> Result<()> {
        let length = self.device_bytes(at.buffer()).ok_or_else(|| {
            Error::new(ErrorKind::UnknownHandle, operation)
                .with_detail("the buffer is released, or belongs to another device")
        })?;
        within(operation, "device memory", at.offset(), bytes, length)
    }

    /// Checks that the `bytes` bytes from `at` on are inside of host memory.
    ///
    /// # Errors
    /// The host memory is unknown, or the range ends beyond the memory.
    fn check_host(&self, operation: &'static str, at: HostSpan<'_>, bytes: u64) -> Result<()> {
        let length = self.host_bytes(at.host()).ok_or_else(|| {
            Error::new(ErrorKind::UnknownHandle, operation)
                .with_detail("the host memory is released, or belongs to another device")
        })?;
        within(operation, "host memory", at.offset(), bytes, length)
    }

    /// Checks one copy of a copy request.
    ///
    /// # Errors
    /// The memory is unknown, a range ends beyond its memory, or source and target of an internal copy
    /// overlap.
    fn check_transfer(&self, transfer: &Transfer<'_>) -> Result<()> {
        const OPERATION: &str = "submit";
        match *transfer {
            Transfer::Upload { from, to, bytes } => {
                self.check_host(OPERATION, from, bytes)?;
                self.check_device(OPERATION, to, bytes)
            }
            Transfer::Download { from, to, bytes } => {
                self.check_device(OPERATION, from, bytes)?;
                self.check_host(OPERATION, to, bytes)
            }
            Transfer::Internal { from, to, bytes } => {
                self.check_device(OPERATION, from, bytes)?;
                self.check_device(OPERATION, to, bytes)?;
                if bytes > 0 && from.buffer() == to.buffer() && from.offset().abs_diff(to.offset()) < bytes {
                    return Err(Error::new(ErrorKind::InvalidArgument, OPERATION)
                        .with_bytes(bytes)
                        .with_offset(from.offset())
                        .with_detail("source and target overlap"));
                }
                Ok(())
            }
        }
    }

    /// Checks contiguous elements, and returns their length in bytes. Accepts 0 elements with any stride but
    /// 0.
    ///
    /// # Errors
    /// The stride is 0, the length overflows, the memory is unknown, or the elements end beyond the memory.
    fn check_elements(&self, operation: &'static str, elements: &Elements<'_>) -> Result<u64> {
        let invalid = |detail: &str| Error::new(ErrorKind::InvalidArgument, operation).with_detail(detail);
        if elements.stride == 0 {
            return Err(invalid("the elements have a stride of 0 bytes"));
        }
        let bytes = elements
            .count
            .checked_mul(elements.stride)
            .ok_or_else(|| invalid("the number of elements times their stride overflows"))?;
        self.check_device(operation, elements.start, bytes)?;
        Ok(bytes)
    }

    /// Checks a fill request.
    ///
    /// # Errors
    /// The pattern is empty or too long, the memory is unknown, or the range ends beyond the memory.
    fn check_fill(&self, fill: &Fill<'_>) -> Result<()> {
        const OPERATION: &str = "fill";
        check_value(OPERATION, "pattern", fill.pattern, Fill::PATTERN_MAX_BYTES)?;
        self.check_device(OPERATION, fill.to, fill.bytes)
    }

    /// Checks a search request.
    ///
    /// # Errors
    /// The value is empty or too long, the field ends beyond its element, the host memory for the answer is
    /// misaligned or too small, a memory is unknown, or a range ends beyond its memory.
    fn check_search(&self, search: &Search<'_>) -> Result<()> {
        const OPERATION: &str = "search";
        check_value(OPERATION, "value", search.value, Search::VALUE_MAX_BYTES)?;
        let end = search.field_offset.checked_add(search.value.len() as u64);
        if end.is_none_or(|end| end > search.elements.stride) {
            return Err(Error::new(ErrorKind::InvalidArgument, OPERATION)
                .with_offset(search.field_offset)
                .with_bytes(search.value.len() as u64)
                .with_detail(format!(
                    "the field ends outside of its element of {} bytes",
                    search.elements.stride
                )));
        }
        self.check_elements(OPERATION, &search.elements)?;
        check_aligned(OPERATION, "answer", search.answer)?;
        let listed = search.limit.min(search.elements.count);
        self.check_host(OPERATION, search.answer, Search::answer_bytes(listed))
    }

    /// Checks a gather request.
    ///
    /// # Errors
    /// The indices are misaligned, a size overflows, a memory is unknown, or a range ends beyond its memory.
    fn check_gather(&self, gather: &Gather<'_>) -> Result<()> {
        self.check_indexed("gather", &gather.elements, gather.indices, gather.count, gather.values)
    }

    /// Checks a scatter request.
    ///
    /// # Errors
    /// The errors of [`check_gather`](Self::check_gather).
    fn check_scatter(&self, scatter: &Scatter<'_>) -> Result<()> {
        self.check_indexed("scatter", &scatter.elements, scatter.indices, scatter.count, scatter.values)
    }

    /// Checks a compute request.
    ///
    /// # Errors
    /// - The request has no or too many sources or stores, or sources of different lengths.
    /// - A field ends beyond its element, or a value has another type than the action needs.
    /// - A written source overlaps with another source.
    /// - The host memory for the answer is misaligned or too small.
    /// - A memory is unknown, or a range ends beyond its memory.
    fn check_compute(&self, compute: &Compute<'_>) -> Result<()> {
        const OPERATION: &str = "compute";
        compute.sources.iter().try_for_each(|source| self.check_elements(OPERATION, source).map(drop))?;
        crate::expr::check(compute)?;
        let Some(answer) = compute.answer() else { return Ok(()) };
        check_aligned(OPERATION, "answer", answer)?;
        self.check_host(OPERATION, answer, compute.answer_bytes())
    }

    /// Checks the launch of a kernel.
    ///
    /// # Errors
    /// - The number of views, parameters or table bytes differs from the kernel's.
    /// - A field ends beyond its element, or the field of an atomic is misaligned.
    /// - A written view has too few elements, or overlaps with itself or another view.
    /// - The host memory for the report is misaligned or too small.
    /// - A memory is unknown, or a range ends beyond its memory.
    fn check_launch(&self, launch: &Launch<'_>) -> Result<()> {
        check_arguments(self, launch)
    }

    #[doc(hidden)]
    fn check_indexed(
        &self,
        operation: &'static str,
        elements: &LaunchView<'_>,
        indices: HostSpan<'_>,
        count: u64,
        values: HostSpan<'_>,
    ) -> Result<()> {
        let overflow = || {
            Error::new(ErrorKind::InvalidArgument, operation)
                .with_detail("the number of indices times the size of a value overflows")
        };
        check_shape(self, operation, "elements", elements)?;
        for (place, bytes) in elements.ranges() {
            self.check_device(operation, place, bytes)?;
        }
        check_aligned(operation, "indices", indices)?;
        self.check_host(operation, indices, count.checked_mul(8).ok_or_else(overflow)?)?;
        self.check_host(operation, values, count.checked_mul(elements.stride()).ok_or_else(overflow)?)
    }
}

/// A contiguous range of device memory that belongs to a view of a launch.
struct Reached {
    view: usize,
    buffer: BufferId,
    bytes: Range<u64>,
}

/// Checks the arguments of a launch, and the memory of its views.
fn check_arguments<E: Extents + ?Sized>(extents: &E, launch: &Launch<'_>) -> Result<()> {
    let body = launch.kernel.body();
    let equal = |what: &str, given: u64, wanted: u64| {
        let refused =
            || invalid_launch(format!("the launch has {given} {what}, but the kernel has {wanted}"));
        if given == wanted { Ok(()) } else { Err(refused()) }
    };
    equal("views", launch.views.len() as u64, body.views.len() as u64)?;
    equal("parameters", launch.params.len() as u64, body.params.len() as u64)?;
    equal("bytes of tables", launch.table.len() as u64, body.table_bytes())?;
    for (number, (bits, of)) in launch.params.iter().zip(&body.params).enumerate() {
        if bits & !of.mask() != 0 {
            return Err(invalid_launch(format!("parameter {number} has bits beyond the width of {of}")));
        }
    }
    if launch.geometry.page_len == 0 || launch.geometry.channels == 0 {
        return Err(invalid_launch(
            "the geometry has pages of 0 elements, or 0 channels; both must be at least 1".into(),
        ));
    }
    if !launch.private_heap_bytes.is_multiple_of(8) {
        return Err(invalid_launch(format!(
            "the private heap has {} bytes, which is not a multiple of 8",
            launch.private_heap_bytes
        )));
    }
    let mut reached = Vec::new();
    for (number, view) in launch.views.iter().enumerate() {
        check_view(extents, launch, number, view, &mut reached)?;
    }
    for (at, one) in reached.iter().enumerate().filter(|(_, one)| launch.writes(one.view)) {
        // Compare each written view with every other view, including views that the launch only reads.
        for (_, other) in reached.iter().enumerate().filter(|(number, _)| *number != at) {
            let apart = one.buffer != other.buffer
                || one.bytes.is_empty()
                || other.bytes.is_empty()
                || one.bytes.end <= other.bytes.start
                || other.bytes.end <= one.bytes.start;
            if !apart {
                let detail =
                    format!("view {}, which is written to, overlaps with view {}", one.view, other.view);
                return Err(invalid_launch(detail).with_offset(one.bytes.start));
            }
        }
    }
    check_aligned(LAUNCH, "report", launch.report)?;
    extents.check_host(LAUNCH, launch.report, Report::BYTES)
}

/// Checks that a view has at least one start, one element per page and one byte per element, and that its
/// length does not overflow. Checks the bounds only of contiguous views.
fn check_shape<E: Extents + ?Sized>(
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
            // The products below are at most this product, so they cannot overflow.
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
    check_shape(extents, LAUNCH, &format!("view {number}"), view)?;
    if decl.extent() > view.stride() {
        let detail = format!("view {number}: a field ends outside of its element of {} bytes", view.stride());
        return Err(invalid_launch(detail).with_bytes(decl.extent()));
    }
    for (place, bytes) in view.ranges() {
        extents.check_device(LAUNCH, place, bytes)?;
        let bytes = place.offset()..place.offset() + bytes;
        reached.push(Reached { view: number, buffer: place.buffer(), bytes });
        let aligned = |(offset, of): &(u32, Memory)| {
            let bytes = u64::from(of.bytes());
            (place.offset() + u64::from(*offset)).is_multiple_of(bytes) && view.stride().is_multiple_of(bytes)
        };
        if decl.access == Access::Atomic && !decl.fields.iter().all(aligned) {
            let detail =
                format!("view {number}: the place of an atomic field is not a multiple of its length");
            return Err(invalid_launch(detail).with_offset(place.offset()));
        }
    }
    if let (Access::Write { tile }, Some(before)) = (decl.access, launch.items.checked_sub(1)) {
        let needed = before.checked_mul(tile.into());
        if needed.is_none_or(|needed| view.count() <= needed) {
            let (count, items) = (view.count(), launch.items);
            return Err(invalid_launch(format!(
                "view {number} has {count} elements, too few for {items} items of {tile} elements each"
            )));
        }
    }
    Ok(())
}

fn invalid_launch(detail: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, LAUNCH).with_detail(detail)
}

fn within(operation: &'static str, what: &str, offset: u64, bytes: u64, length: u64) -> Result<()> {
    if offset.checked_add(bytes).is_some_and(|end| end <= length) {
        return Ok(());
    }
    Err(Error::new(ErrorKind::InvalidArgument, operation)
        .with_offset(offset)
        .with_bytes(bytes)
        .with_available_bytes(length)
        .with_detail(format!("the range ends beyond the end of its {what}")))
}

fn check_value(operation: &'static str, what: &str, value: &[u8], max: usize) -> Result<()> {
    if (1..=max).contains(&value.len()) {
        return Ok(());
    }
    Err(Error::new(ErrorKind::InvalidArgument, operation)
        .with_bytes(value.len() as u64)
        .with_available_bytes(max as u64)
        .with_detail(format!("the {what} has {} bytes, but 1 to {max} are supported", value.len())))
}

fn check_aligned(operation: &'static str, what: &str, at: HostSpan<'_>) -> Result<()> {
    if at.offset().is_multiple_of(8) {
        return Ok(());
    }
    Err(Error::new(ErrorKind::InvalidArgument, operation)
        .with_offset(at.offset())
        .with_detail(format!("{what}: the offset {} is not a multiple of 8", at.offset())))
}
