//! Work on home slots: fills, kernels, and copies of single elements.

use backend_api::{Device, Fill, HostBuffer, HostMemory, Transfer as Copy};

use super::{Channel, HostPlace};
use crate::base::error::Result;
use crate::engine::page::PageTable;

/// Small pieces of pinned memory for copies of single elements.
#[derive(Debug)]
pub(super) struct Bounce<D: Device> {
    chunks: Vec<HostBuffer<D>>,
    free: Vec<(HostPlace, *mut u8)>,
}

// SAFETY: the pointers lead into the chunks, which move along; a free cell is touched by nobody.
unsafe impl<D: Device> Send for Bounce<D> {}

impl<D: Device> Bounce<D> {
    pub(super) fn new() -> Self {
        Self { chunks: Vec::new(), free: Vec::new() }
    }

    /// How much memory it has.
    pub(super) fn bytes(&self) -> usize {
        self.chunks.iter().map(HostBuffer::bytes).sum()
    }
}

/// How many buffers for answers are kept, and up to which length.
const ANSWERS_KEPT: usize = 4;
const ANSWER_BYTES_KEPT: usize = 192 << 10;
const _: () = assert!(backend_api::Compute::partials_bytes() <= ANSWER_BYTES_KEPT as u64);

impl<D: Device> Channel<D> {
    /// Host memory for what a kernel answers, of at least so many bytes: pinned if that is to be had.
    ///
    /// To lock memory takes longer than many a search, so a few short buffers are kept.
    pub(crate) fn take_answer(&self, bytes: usize) -> Result<HostBuffer<D>> {
        let mut kept = self.answers.lock();
        if let Some(at) = kept.iter().position(|answer| answer.bytes() >= bytes) {
            return Ok(kept.swap_remove(at));
        }
        drop(kept);
        let bytes = if bytes <= ANSWER_BYTES_KEPT { ANSWER_BYTES_KEPT } else { bytes };
        let pinned = HostBuffer::new(&self.device, bytes, HostMemory::Pinned);
        Ok(pinned.or_else(|_| HostBuffer::new(&self.device, bytes, HostMemory::Pageable))?)
    }

    /// Gives such memory back, with nothing in flight on it.
    pub(crate) fn put_answer(&self, answer: HostBuffer<D>) {
        let mut kept = self.answers.lock();
        if kept.len() < ANSWERS_KEPT && answer.bytes() == ANSWER_BYTES_KEPT {
            kept.push(answer);
        }
    }

    /// Fills home slots `slots` of this channel, whose pages the caller holds, with a pattern, and waits.
    pub(crate) fn fill_slots(&self, slots: std::ops::Range<u64>, pattern: &[u8]) -> Result<()> {
        let bytes = self.page_bytes as u64;
        let fill = Fill {
            to: self.slots.at(slots.start * bytes),
            bytes: (slots.end - slots.start) * bytes,
            pattern,
        };
        let mut order = self.queue_barriers.lock();
        let loads = self.begin_loads();
        let ticket = self.write(&mut order, |queue| queue.fill(&fill));
        drop(loads);
        drop(order);
        Ok(self.wait(ticket?)?)
    }

    /// Reads `into.len()` bytes at an offset of a page's home slot, which the caller keeps from changing.
    /// Together with what other threads fetch at the same time.
    pub(crate) fn read_home(
        &self,
        table: &PageTable,
        page: u64,
        offset: usize,
        into: &mut [u8],
    ) -> Result<()> {
        let (host, address) = self.bounce_cell()?;
        let from = self.home(page).plus(offset as u64);
        let result = self.read_with_others(table, from, host, into.len() as u64);
        if result.is_ok() {
            // SAFETY: the cell is as long as an element and this thread's alone; the copy into it is done.
            unsafe { address.copy_to_nonoverlapping(into.as_mut_ptr(), into.len()) };
            self.counters.bytes_from_device.add(into.len() as u64);
        }
        self.bounce.lock().free.push((host, address));
        Ok(result?)
    }

    /// Writes bytes at an offset of a page's home slot, which the caller has for itself.
    pub(crate) fn write_home(&self, page: u64, offset: usize, bytes: &[u8]) -> Result<()> {
        let (host, address) = self.bounce_cell()?;
        // SAFETY: the cell is as long as an element and this thread's alone.
        unsafe { bytes.as_ptr().copy_to_nonoverlapping(address, bytes.len()) };
        let to = self.home(page).plus(offset as u64);
        let copy = Copy::Upload { from: host, to, bytes: bytes.len() as u64 };
        let ticket = self.write(&mut self.queue_barriers.lock(), |queue| queue.submit(&[copy]));
        let result = ticket.and_then(|ticket| self.wait(ticket));
        if result.is_ok() {
            self.counters.bytes_to_device.add(bytes.len() as u64);
        }
        self.bounce.lock().free.push((host, address));
        Ok(result?)
    }

    fn bounce_cell(&self) -> Result<(HostPlace, *mut u8)> {
        const CELLS: usize = 16;
        if let Some(cell) = self.bounce.lock().free.pop() {
            return Ok(cell);
        }
        let stride = self.cell_bytes;
        let chunk = self.host_memory(CELLS * stride)?;
        let cell = |i: usize| {
            // SAFETY: the chunk is `CELLS * stride` bytes long.
            let address = unsafe { chunk.address().as_ptr().add(i * stride) };
            // SAFETY: the chunk is kept beside its cells as long as the channel lives.
            (unsafe { chunk.at((i * stride) as u64).detach() }, address)
        };
        let mut bounce = self.bounce.lock();
        bounce.free.extend((1..CELLS).map(cell));
        let first = cell(0);
        bounce.chunks.push(chunk);
        Ok(first)
    }
}
