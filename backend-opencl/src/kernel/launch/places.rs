//! Memory of a launch's views: the OpenCL buffers and offsets that a kernel receives for each view.

use std::sync::Arc;

use backend_api::DeviceSpan;

use crate::memory::Buffer;

/// Memory of a view. For each range: the buffer, the first accessed piece, the number of pieces, the offset.
pub(crate) struct ViewPlaces {
    pub(super) bases: Vec<(Arc<Buffer>, usize, usize, u64)>,
}

impl ViewPlaces {
    /// Returns the pieces of memory ranges in these buffers.
    pub(crate) fn new<'a>(
        ranges: impl Iterator<Item = (DeviceSpan<'a>, u64)>,
        buffers: Vec<Arc<Buffer>>,
    ) -> Self {
        let base = |((start, bytes), buffer): ((DeviceSpan<'_>, u64), Arc<Buffer>)| {
            let first = start.offset() >> buffer.shift;
            let pieces =
                if bytes == 0 { 0 } else { ((start.offset() + bytes - 1) >> buffer.shift) - first + 1 };
            let before = start.offset() - (first << buffer.shift);
            (buffer, first as usize, pieces as usize, before)
        };
        Self { bases: ranges.zip(buffers).map(base).collect() }
    }
}
