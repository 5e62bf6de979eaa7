//! The checks that every backend makes before it starts anything.

use crate::{
    BufferId, Compute, DeviceSpan, Elements, Error, ErrorKind, Fill, Gather, HostId, HostSpan, Result,
    Scatter, Search, Transfer,
};

/// Knows how long each piece of memory is, and checks requests against that.
///
/// Backends implement the two look-ups and call the `check_…` method that belongs to a call before they start
/// it. All arithmetic is checked: ranges that overflow are refused as invalid.
///
/// ```
/// use backend_api::{BufferHandle, BufferId, ErrorKind, Extents, HostAllocation, HostId, Transfer};
/// # use backend_api::{Device, HostMemory};
///
/// struct One(BufferHandle, HostAllocation);
/// impl Extents for One {
///     fn device_bytes(&self, buffer: BufferId) -> Option<u64> { (buffer == self.0.id()).then_some(100) }
///     fn host_bytes(&self, host: HostId) -> Option<u64> { (host == self.1.id()).then_some(10) }
/// }
/// # let host = backend_host::HostDevice::new(0)?.allocate_host(10, HostMemory::Pageable)?;
/// let memory = One(BufferHandle::unique(), host);
/// let copy = |offset| Transfer::Upload {
///     from: memory.1.at(0), to: memory.0.at(offset), bytes: 10,
/// };
/// assert!(memory.check_transfer(&copy(90)).is_ok());
/// assert_eq!(memory.check_transfer(&copy(91)).unwrap_err().kind(), ErrorKind::InvalidArgument);
/// # Ok::<_, backend_api::Error>(())
/// ```
pub trait Extents {
    /// The length of a buffer, if it is known here.
    ///
    /// ```
    /// use backend_api::Extents;
    /// # use backend_api::{BufferHandle, BufferId, Device, HostAllocation, HostId, HostMemory};
    /// # struct One(BufferHandle, HostAllocation);
    /// # impl Extents for One {
    /// #     fn device_bytes(&self, buffer: BufferId) -> Option<u64> { (buffer == self.0.id()).then_some(100) }
    /// #     fn host_bytes(&self, host: HostId) -> Option<u64> { (host == self.1.id()).then_some(64) }
    /// # }
    /// # let host = backend_host::HostDevice::new(0)?.allocate_host(64, HostMemory::Pageable)?;
    /// # let memory = One(BufferHandle::unique(), host);
    /// // A backend with one buffer of 100 bytes.
    /// assert_eq!(memory.device_bytes(memory.0.id()), Some(100));
    /// assert_eq!(memory.device_bytes(BufferHandle::unique().id()), None);
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    fn device_bytes(&self, buffer: BufferId) -> Option<u64>;

    /// The length of a piece of host memory, if it is known here.
    ///
    /// ```
    /// use backend_api::Extents;
    /// # use backend_api::{BufferHandle, BufferId, Device, HostAllocation, HostId, HostMemory};
    /// # struct One(BufferHandle, HostAllocation);
    /// # impl Extents for One {
    /// #     fn device_bytes(&self, buffer: BufferId) -> Option<u64> { (buffer == self.0.id()).then_some(100) }
    /// #     fn host_bytes(&self, host: HostId) -> Option<u64> { (host == self.1.id()).then_some(64) }
    /// # }
    /// # let host = backend_host::HostDevice::new(0)?.allocate_host(64, HostMemory::Pageable)?;
    /// # let memory = One(BufferHandle::unique(), host);
    /// // A backend with one piece of host memory of 64 bytes.
    /// assert_eq!(memory.host_bytes(memory.1.id()), Some(64));
    /// # let stranger = backend_host::HostDevice::new(0)?.allocate_host(64, HostMemory::Pageable)?;
    /// assert_eq!(memory.host_bytes(stranger.id()), None);
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    fn host_bytes(&self, host: HostId) -> Option<u64>;

    /// Checks `bytes` bytes of device memory.
    ///
    /// ```
    /// use backend_api::{ErrorKind, Extents};
    /// # use backend_api::{BufferHandle, BufferId, Device, HostAllocation, HostId, HostMemory};
    /// # struct One(BufferHandle, HostAllocation);
    /// # impl Extents for One {
    /// #     fn device_bytes(&self, buffer: BufferId) -> Option<u64> { (buffer == self.0.id()).then_some(100) }
    /// #     fn host_bytes(&self, host: HostId) -> Option<u64> { (host == self.1.id()).then_some(64) }
    /// # }
    /// # let host = backend_host::HostDevice::new(0)?.allocate_host(64, HostMemory::Pageable)?;
    /// # let memory = One(BufferHandle::unique(), host);
    /// // The buffer has 100 bytes.
    /// let at = |offset| memory.0.at(offset);
    /// assert!(memory.check_device("fill", at(90), 10).is_ok());
    /// let error = memory.check_device("fill", at(90), 11).unwrap_err();
    /// assert_eq!((error.kind(), error.operation()), (ErrorKind::InvalidArgument, "fill"));
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    ///
    /// # Errors
    /// Unknown buffer, or a range that ends beyond it.
    fn check_device(&self, operation: &'static str, at: DeviceSpan<'_>, bytes: u64) -> Result<()> {
        let length = self
            .device_bytes(at.buffer())
            .ok_or_else(|| Error::new(ErrorKind::UnknownHandle, operation).with_detail("unknown buffer"))?;
        within(operation, "device memory", at.offset(), bytes, length)
    }

    /// Checks `bytes` bytes of host memory.
    ///
    /// ```
    /// use backend_api::{ErrorKind, Extents};
    /// # use backend_api::{BufferHandle, BufferId, Device, HostAllocation, HostId, HostMemory};
    /// # struct One(BufferHandle, HostAllocation);
    /// # impl Extents for One {
    /// #     fn device_bytes(&self, buffer: BufferId) -> Option<u64> { (buffer == self.0.id()).then_some(100) }
    /// #     fn host_bytes(&self, host: HostId) -> Option<u64> { (host == self.1.id()).then_some(64) }
    /// # }
    /// # let host = backend_host::HostDevice::new(0)?.allocate_host(64, HostMemory::Pageable)?;
    /// # let memory = One(BufferHandle::unique(), host);
    /// // The piece of host memory has 64 bytes.
    /// assert!(memory.check_host("submit", memory.1.at(0), 64).is_ok());
    /// # let stranger = backend_host::HostDevice::new(0)?.allocate_host(64, HostMemory::Pageable)?;
    /// assert_eq!(memory.check_host("submit", stranger.at(0), 1).unwrap_err().kind(), ErrorKind::UnknownHandle);
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    ///
    /// # Errors
    /// Unknown host memory, or a range that ends beyond it.
    fn check_host(&self, operation: &'static str, at: HostSpan<'_>, bytes: u64) -> Result<()> {
        let length = self.host_bytes(at.host()).ok_or_else(|| {
            Error::new(ErrorKind::UnknownHandle, operation).with_detail("unknown host memory")
        })?;
        within(operation, "host memory", at.offset(), bytes, length)
    }

    /// Checks one copy.
    ///
    /// ```
    /// use backend_api::{Extents, Transfer};
    /// # use backend_api::{BufferHandle, BufferId, Device, HostAllocation, HostId, HostMemory};
    /// # struct One(BufferHandle, HostAllocation);
    /// # impl Extents for One {
    /// #     fn device_bytes(&self, buffer: BufferId) -> Option<u64> { (buffer == self.0.id()).then_some(100) }
    /// #     fn host_bytes(&self, host: HostId) -> Option<u64> { (host == self.1.id()).then_some(64) }
    /// # }
    /// # let host = backend_host::HostDevice::new(0)?.allocate_host(64, HostMemory::Pageable)?;
    /// # let memory = One(BufferHandle::unique(), host);
    /// let at = |offset| memory.0.at(offset);
    /// let copy = |from, to| Transfer::Internal { from: at(from), to: at(to), bytes: 50 };
    /// assert!(memory.check_transfer(&copy(0, 50)).is_ok());
    /// assert_eq!(memory.check_transfer(&copy(0, 49)).unwrap_err().detail(), "source and target overlap");
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    ///
    /// # Errors
    /// Unknown memory, a range outside of its memory, or an internal copy onto itself.
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

    /// Checks a row of elements; returns its length in bytes. A row of no elements passes with any stride but
    /// 0, also with one that is longer than all memory.
    ///
    /// ```
    /// use backend_api::{Elements, Extents};
    /// # use backend_api::{BufferHandle, BufferId, Device, HostAllocation, HostId, HostMemory};
    /// # struct One(BufferHandle, HostAllocation);
    /// # impl Extents for One {
    /// #     fn device_bytes(&self, buffer: BufferId) -> Option<u64> { (buffer == self.0.id()).then_some(100) }
    /// #     fn host_bytes(&self, host: HostId) -> Option<u64> { (host == self.1.id()).then_some(64) }
    /// # }
    /// # let host = backend_host::HostDevice::new(0)?.allocate_host(64, HostMemory::Pageable)?;
    /// # let memory = One(BufferHandle::unique(), host);
    /// // The buffer has 100 bytes.
    /// let row = |count| Elements { start: memory.0.at(0), count, stride: 30 };
    /// assert_eq!(memory.check_elements("gather", &row(3))?, 90);
    /// assert!(memory.check_elements("gather", &row(4)).is_err());
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    ///
    /// # Errors
    /// Stride 0, a length that overflows, unknown memory, a range outside of it.
    fn check_elements(&self, operation: &'static str, elements: &Elements<'_>) -> Result<u64> {
        let invalid = |detail: &str| Error::new(ErrorKind::InvalidArgument, operation).with_detail(detail);
        if elements.stride == 0 {
            return Err(invalid("stride is 0"));
        }
        let bytes = elements
            .count
            .checked_mul(elements.stride)
            .ok_or_else(|| invalid("count times stride overflows"))?;
        self.check_device(operation, elements.start, bytes)?;
        Ok(bytes)
    }

    /// Checks a fill.
    ///
    /// ```
    /// use backend_api::{Extents, Fill};
    /// # use backend_api::{BufferHandle, BufferId, Device, HostAllocation, HostId, HostMemory};
    /// # struct One(BufferHandle, HostAllocation);
    /// # impl Extents for One {
    /// #     fn device_bytes(&self, buffer: BufferId) -> Option<u64> { (buffer == self.0.id()).then_some(100) }
    /// #     fn host_bytes(&self, host: HostId) -> Option<u64> { (host == self.1.id()).then_some(64) }
    /// # }
    /// # let host = backend_host::HostDevice::new(0)?.allocate_host(64, HostMemory::Pageable)?;
    /// # let memory = One(BufferHandle::unique(), host);
    /// let fill = |pattern| Fill { to: memory.0.at(0), bytes: 100, pattern };
    /// assert!(memory.check_fill(&fill(&[1, 2, 3])).is_ok());
    /// assert!(memory.check_fill(&fill(&[])).is_err());
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    ///
    /// # Errors
    /// A pattern of no or too many bytes, unknown memory, a range outside of it.
    fn check_fill(&self, fill: &Fill<'_>) -> Result<()> {
        const OPERATION: &str = "fill";
        check_value(OPERATION, "pattern", fill.pattern, Fill::PATTERN_MAX_BYTES)?;
        self.check_device(OPERATION, fill.to, fill.bytes)
    }

    /// Checks a search.
    ///
    /// ```
    /// use backend_api::{Elements, Extents, Search};
    /// # use backend_api::{BufferHandle, BufferId, Device, HostAllocation, HostId, HostMemory};
    /// # struct One(BufferHandle, HostAllocation);
    /// # impl Extents for One {
    /// #     fn device_bytes(&self, buffer: BufferId) -> Option<u64> { (buffer == self.0.id()).then_some(100) }
    /// #     fn host_bytes(&self, host: HostId) -> Option<u64> { (host == self.1.id()).then_some(64) }
    /// # }
    /// # let host = backend_host::HostDevice::new(0)?.allocate_host(64, HostMemory::Pageable)?;
    /// # let memory = One(BufferHandle::unique(), host);
    /// let elements = Elements { start: memory.0.at(0), count: 10, stride: 4 };
    /// let answer = memory.1.at(0);
    /// let value = &[1, 2];
    /// let search = |field_offset| Search { elements, field_offset, value, limit: 6, count_all: false, answer };
    /// assert!(memory.check_search(&search(2)).is_ok());
    /// assert!(memory.check_search(&search(3)).is_err(), "the field would leave its element");
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    ///
    /// # Errors
    /// A value of no or too many bytes, a field outside of its element, an answer that is not aligned or has
    /// no room, unknown memory, a range outside of it.
    fn check_search(&self, search: &Search<'_>) -> Result<()> {
        const OPERATION: &str = "search";
        check_value(OPERATION, "value", search.value, Search::VALUE_MAX_BYTES)?;
        let end = search.field_offset.checked_add(search.value.len() as u64);
        if end.is_none_or(|end| end > search.elements.stride) {
            return Err(Error::new(ErrorKind::InvalidArgument, OPERATION)
                .with_offset(search.field_offset)
                .with_bytes(search.value.len() as u64)
                .with_detail(format!("the field leaves its element of {} bytes", search.elements.stride)));
        }
        self.check_elements(OPERATION, &search.elements)?;
        check_aligned(OPERATION, "answer", search.answer)?;
        let listed = search.limit.min(search.elements.count);
        self.check_host(OPERATION, search.answer, Search::answer_bytes(listed))
    }

    /// Checks a gather.
    ///
    /// ```
    /// use backend_api::{Elements, Extents, Gather};
    /// # use backend_api::{BufferHandle, BufferId, Device, HostAllocation, HostId, HostMemory};
    /// # struct One(BufferHandle, HostAllocation);
    /// # impl Extents for One {
    /// #     fn device_bytes(&self, buffer: BufferId) -> Option<u64> { (buffer == self.0.id()).then_some(100) }
    /// #     fn host_bytes(&self, host: HostId) -> Option<u64> { (host == self.1.id()).then_some(64) }
    /// # }
    /// # let host = backend_host::HostDevice::new(0)?.allocate_host(64, HostMemory::Pageable)?;
    /// # let memory = One(BufferHandle::unique(), host);
    /// let elements = Elements { start: memory.0.at(0), count: 10, stride: 4 };
    /// let host = |offset| memory.1.at(offset);
    /// let gather = |at| Gather { elements, indices: host(at), count: 4, values: host(40) };
    /// assert!(memory.check_gather(&gather(0)).is_ok());
    /// assert!(memory.check_gather(&gather(4)).is_err(), "indices start at a multiple of 8");
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    ///
    /// # Errors
    /// Indices that are not aligned, sizes that overflow, unknown memory, a range outside of it.
    fn check_gather(&self, gather: &Gather<'_>) -> Result<()> {
        self.check_indexed("gather", &gather.elements, gather.indices, gather.count, gather.values)
    }

    /// Checks a scatter.
    ///
    /// ```
    /// use backend_api::{Elements, Extents, Scatter};
    /// # use backend_api::{BufferHandle, BufferId, Device, HostAllocation, HostId, HostMemory};
    /// # struct One(BufferHandle, HostAllocation);
    /// # impl Extents for One {
    /// #     fn device_bytes(&self, buffer: BufferId) -> Option<u64> { (buffer == self.0.id()).then_some(100) }
    /// #     fn host_bytes(&self, host: HostId) -> Option<u64> { (host == self.1.id()).then_some(64) }
    /// # }
    /// # let host = backend_host::HostDevice::new(0)?.allocate_host(64, HostMemory::Pageable)?;
    /// # let memory = One(BufferHandle::unique(), host);
    /// let elements = Elements { start: memory.0.at(0), count: 10, stride: 4 };
    /// let host = |offset| memory.1.at(offset);
    /// let scatter = |count| Scatter { elements, indices: host(0), count, values: host(40) };
    /// assert!(memory.check_scatter(&scatter(5)).is_ok());
    /// assert!(memory.check_scatter(&scatter(7)).is_err(), "there are not that many values");
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`check_gather`](Self::check_gather).
    fn check_scatter(&self, scatter: &Scatter<'_>) -> Result<()> {
        self.check_indexed("scatter", &scatter.elements, scatter.indices, scatter.count, scatter.values)
    }

    /// Checks a computation.
    ///
    /// ```
    /// use backend_api::{Compute, Elements, Extents};
    /// use backend_api::expr::{Action, Geometry, Instruction, Program, Type, Value};
    /// # use backend_api::{BufferHandle, BufferId, Device, HostAllocation, HostId, HostMemory};
    /// # struct One(BufferHandle, HostAllocation);
    /// # impl Extents for One {
    /// #     fn device_bytes(&self, buffer: BufferId) -> Option<u64> { (buffer == self.0.id()).then_some(100) }
    /// #     fn host_bytes(&self, host: HostId) -> Option<u64> { (host == self.1.id()).then_some(64) }
    /// # }
    /// # let host = backend_host::HostDevice::new(0)?.allocate_host(64, HostMemory::Pageable)?;
    /// # let memory = One(BufferHandle::unique(), host);
    /// let program = Program::new(vec![Instruction::Field { source: 0, offset: 0, of: Type::U32 }])?;
    /// let sources = [Elements { start: memory.0.at(0), count: 10, stride: 4 }];
    /// let answer = memory.1.at(0);
    /// let check = |bins| {
    ///     let action = Action::Histogram { value: Value(0), filter: None, bins, answer };
    ///     let geometry = Geometry::plain(0);
    ///     memory.check_compute(&Compute { program: &program, sources: &sources, geometry, action })
    /// };
    /// assert!(check(8).is_ok());
    /// assert!(check(9).is_err(), "the answer has room for 8 numbers");
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    ///
    /// # Errors
    /// No or too many sources or stores, sources of different lengths, a field outside of its element, a
    /// value of another type than the action needs, sources that overlap though one is written to, an answer
    /// that is not aligned or has no room, unknown memory, a range outside of it.
    fn check_compute(&self, compute: &Compute<'_>) -> Result<()> {
        crate::expr::check(self, compute)
    }

    #[doc(hidden)]
    fn check_indexed(
        &self,
        operation: &'static str,
        elements: &Elements<'_>,
        indices: HostSpan<'_>,
        count: u64,
        values: HostSpan<'_>,
    ) -> Result<()> {
        let overflow =
            || Error::new(ErrorKind::InvalidArgument, operation).with_detail("count times size overflows");
        self.check_elements(operation, elements)?;
        check_aligned(operation, "indices", indices)?;
        self.check_host(operation, indices, count.checked_mul(8).ok_or_else(overflow)?)?;
        self.check_host(operation, values, count.checked_mul(elements.stride).ok_or_else(overflow)?)
    }
}

fn within(operation: &'static str, what: &str, offset: u64, bytes: u64, length: u64) -> Result<()> {
    if offset.checked_add(bytes).is_some_and(|end| end <= length) {
        return Ok(());
    }
    Err(Error::new(ErrorKind::InvalidArgument, operation)
        .with_offset(offset)
        .with_bytes(bytes)
        .with_available_bytes(length)
        .with_detail(format!("the range leaves its {what}")))
}

fn check_value(operation: &'static str, what: &str, value: &[u8], max: usize) -> Result<()> {
    if (1..=max).contains(&value.len()) {
        return Ok(());
    }
    Err(Error::new(ErrorKind::InvalidArgument, operation)
        .with_bytes(value.len() as u64)
        .with_available_bytes(max as u64)
        .with_detail(format!("a {what} has 1 to {max} bytes")))
}

fn check_aligned(operation: &'static str, what: &str, at: HostSpan<'_>) -> Result<()> {
    if at.offset().is_multiple_of(8) {
        return Ok(());
    }
    Err(Error::new(ErrorKind::InvalidArgument, operation)
        .with_offset(at.offset())
        .with_detail(format!("{what}: the offset is not a multiple of 8")))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Memory {
        buffer: BufferId,
        host: HostId,
    }

    impl Extents for Memory {
        fn device_bytes(&self, buffer: BufferId) -> Option<u64> {
            (buffer == self.buffer).then_some(1000)
        }
        fn host_bytes(&self, host: HostId) -> Option<u64> {
            (host == self.host).then_some(100)
        }
    }

    fn memory() -> Memory {
        Memory { buffer: BufferId::unique(), host: HostId::unique() }
    }

    #[test]
    fn ranges_that_overflow_are_refused() {
        let m = memory();
        let at = DeviceSpan::new(m.buffer, u64::MAX);
        assert_eq!(m.check_device("submit", at, 2).unwrap_err().kind(), ErrorKind::InvalidArgument);
        let elements = Elements { start: DeviceSpan::new(m.buffer, 0), count: u64::MAX, stride: 2 };
        assert_eq!(m.check_elements("gather", &elements).unwrap_err().kind(), ErrorKind::InvalidArgument);
    }

    #[test]
    fn empty_ranges_are_valid_up_to_the_end_and_not_beyond() {
        let m = memory();
        assert!(m.check_device("submit", DeviceSpan::new(m.buffer, 1000), 0).is_ok());
        assert!(m.check_device("submit", DeviceSpan::new(m.buffer, 1001), 0).is_err());
    }

    #[test]
    fn the_answer_needs_room_for_no_more_than_there_are_elements() {
        let m = memory();
        let mut search = Search {
            elements: Elements { start: DeviceSpan::new(m.buffer, 0), count: 10, stride: 4 },
            field_offset: 0,
            value: &[1, 2, 3, 4],
            limit: u64::MAX,
            count_all: true,
            answer: HostSpan::new(m.host, 0),
        };
        assert!(m.check_search(&search).is_ok());
        search.elements.count = 11;
        assert!(m.check_search(&search).is_err());
        search.limit = 10;
        assert!(m.check_search(&search).is_ok());
        search.field_offset = 1;
        assert!(m.check_search(&search).is_err());
    }

    #[test]
    fn an_internal_copy_may_touch_but_not_overlap() {
        let m = memory();
        let copy = |from, to| Transfer::Internal {
            from: DeviceSpan::new(m.buffer, from),
            to: DeviceSpan::new(m.buffer, to),
            bytes: 100,
        };
        assert!(m.check_transfer(&copy(0, 100)).is_ok());
        assert!(m.check_transfer(&copy(100, 0)).is_ok());
        assert!(m.check_transfer(&copy(0, 99)).is_err());
        assert!(m.check_transfer(&copy(99, 0)).is_err());
    }

    #[test]
    fn strangers_are_unknown() {
        let m = memory();
        let stranger = DeviceSpan::new(BufferId::unique(), 0);
        assert_eq!(m.check_device("submit", stranger, 0).unwrap_err().kind(), ErrorKind::UnknownHandle);
    }
}
