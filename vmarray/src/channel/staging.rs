//! Pinned memory between home slots and the program's own, for ranges that pass by the cache.

use backend_api::{Device, HostBuffer, HostMemory, HostSpan, Ticket};

use super::Channel;
use super::pieces::{Way, pieces};
use crate::error::Result;

/// How long one stage is, in bytes, unless a page is longer: one copy of that length runs at the speed of the bus.
const STAGE_BYTES: usize = 1 << 20;
/// How many stages there may be, at least; and what share of the frames' memory they may take.
const STAGES_MIN: usize = 16;
const STAGES_SHARE: usize = 2;

/// Room for some pages, on their way.
#[derive(Debug)]
pub(crate) struct Stage<D: Device> {
    memory: HostBuffer<D>,
}

/// The stages of a channel.
#[derive(Debug)]
pub(super) struct Stages<D: Device> {
    free: Vec<Stage<D>>,
    made: usize,
}

impl<D: Device> Stages<D> {
    pub(super) fn new() -> Self {
        Self { free: Vec::new(), made: 0 }
    }
}

impl<D: Device> Stage<D> {
    /// Where its page number `at` begins.
    pub(crate) fn page(&self, at: usize, page_bytes: usize) -> *mut u8 {
        debug_assert!((at + 1) * page_bytes <= self.memory.bytes());
        // SAFETY: within the memory; callers number as many pages as the stage has room for.
        unsafe { self.memory.address().as_ptr().add(at * page_bytes) }
    }

    fn span(&self, at: usize, page_bytes: usize) -> HostSpan {
        self.memory.at((at * page_bytes) as u64)
    }
}

impl<D: Device> Channel<D> {
    /// How many pages a stage has room for.
    pub(crate) fn stage_pages(&self) -> usize {
        (STAGE_BYTES / self.page_bytes).max(1)
    }

    /// A stage, unless there are enough; or why there is no memory for it.
    pub(crate) fn take_stage(&self) -> Result<Option<Stage<D>>> {
        let bytes = self.stage_pages() * self.page_bytes;
        {
            let mut stages = self.stages.lock();
            if let Some(stage) = stages.free.pop() {
                return Ok(Some(stage));
            }
            let most = self.frames_max as usize * self.frame_stride / STAGES_SHARE / bytes;
            if stages.made >= most.max(STAGES_MIN) {
                return Ok(None);
            }
            stages.made += 1;
        }
        let kind = self.lock().memory;
        let memory = match HostBuffer::new(&self.device, bytes, kind) {
            Err(_) if self.fall_back => HostBuffer::new(&self.device, bytes, HostMemory::Pageable),
            memory => memory,
        };
        match memory {
            Ok(memory) => Ok(Some(Stage { memory })),
            Err(error) => {
                self.stages.lock().made -= 1;
                Err(error.into())
            }
        }
    }

    /// Gives a stage back, with nothing in flight on it.
    pub(crate) fn put_stage(&self, stage: Stage<D>) {
        self.stages.lock().free.push(stage);
    }

    /// Bytes of all stages.
    pub(super) fn stage_bytes(&self) -> usize {
        self.stages.lock().made * self.stage_pages() * self.page_bytes
    }

    /// Starts to copy the home slots of pages, which the caller keeps from changing, to a stage, in this order.
    pub(crate) fn fetch_to_stage(&self, pages: &[u64], stage: &Stage<D>) -> Result<Ticket> {
        let ticket =
            self.fetches.submit(&pieces(self.staged(pages, stage), self.page_bytes as u64, Way::Fetch))?;
        self.counters.submissions.add(1);
        self.counters.bypasses.add(pages.len() as u64);
        self.counters.bytes_from_device.add((pages.len() * self.page_bytes) as u64);
        Ok(ticket)
    }

    /// Starts to copy pages, which the caller has for itself, from a stage to their home slots.
    pub(crate) fn write_from_stage(&self, pages: &[u64], stage: &Stage<D>) -> Result<Ticket> {
        let copies = pieces(self.staged(pages, stage), self.page_bytes as u64, Way::WriteBack);
        let ticket = self.home_order.lock().write(&self.writes, |writes| writes.submit(&copies))?;
        self.counters.submissions.add(1);
        self.counters.bypasses.add(pages.len() as u64);
        self.counters.bytes_to_device.add((pages.len() * self.page_bytes) as u64);
        Ok(ticket)
    }

    fn staged<'a>(
        &'a self,
        pages: &'a [u64],
        stage: &'a Stage<D>,
    ) -> impl Iterator<Item = (backend_api::DeviceSpan, HostSpan)> + 'a {
        pages.iter().enumerate().map(|(at, page)| (self.home(*page), stage.span(at, self.page_bytes)))
    }
}
