//! Staging buffers: pinned memory between pages' home slots (in device memory) and the program's memory, for
//! long copies that bypass the cache.

use backend_api::DeviceKind;
use parking_lot::Mutex;

use super::waiting::spin_while;
use super::{Channel, HostPlace, PinnedPiece};
use crate::engine::event_count::EventCount;

/// Bytes of one staging buffer, unless a page is longer. Longer copies would not reduce the idle time of the
/// bus between copies much.
const STAGE_BYTES: usize = 4 << 20;
/// The same for a file, whose copies have no latency that a longer buffer would hide.
const FILE_STAGE_BYTES: usize = 512 << 10;
/// Maximum number of staging buffers of a channel: enough to keep a bus of 64 GB/s busy while threads copy
/// from other buffers, and few enough for the processor's caches.
const STAGES: usize = 16;

/// A staging buffer: pinned memory for some pages in transfer.
#[derive(Debug)]
pub(crate) struct Stage {
    memory: PinnedPiece,
}

/// The staging buffers of a channel. A thread that has one waits only for copies, and then returns it.
#[derive(Debug, Default)]
pub(super) struct Stages {
    stock: Mutex<Stock>,
    /// Counts returned buffers and failed allocations, for threads that wait.
    returned: EventCount,
}

#[derive(Debug, Default)]
struct Stock {
    free: Vec<Stage>,
    made: usize,
}

impl Stage {
    /// Copies bytes out of the buffer, with non-temporal stores on request. The copy into it must have ended.
    pub(crate) fn read(&self, offset: usize, into: &mut [u8], passes_caches: bool) {
        if passes_caches {
            self.memory.read_past_caches(offset, into);
        } else {
            self.memory.read(offset, into);
        }
    }

    /// Copies bytes into the buffer, before a copy out of it begins.
    pub(crate) fn write(&mut self, offset: usize, from: &[u8]) {
        self.memory.write(offset, from);
    }

    /// Returns the address of the page with index `at` in the buffer.
    pub(super) fn span(&self, at: usize, page_bytes: usize) -> HostPlace {
        self.memory.place(at * page_bytes)
    }
}

impl Drop for Channel {
    /// Returns the buffers to the shared pool. No work on them may be in flight.
    fn drop(&mut self) {
        let stages = std::mem::take(&mut self.stages.stock.get_mut().free);
        stages.into_iter().for_each(|stage| self.pinned.put(stage.memory));
    }
}

impl Channel {
    /// Returns the number of pages that fit into a staging buffer.
    pub(crate) fn stage_pages(&self) -> usize {
        let bytes = if self.device.info().kind == DeviceKind::File { FILE_STAGE_BYTES } else { STAGE_BYTES };
        (bytes / self.layout.page_bytes).max(1)
    }

    /// Returns a staging buffer; `None` if the limit is reached or memory is exhausted.
    pub(crate) fn take_stage(&self) -> Option<Stage> {
        {
            let mut stock = self.stages.stock.lock();
            if let Some(stage) = stock.free.pop() {
                return Some(stage);
            }
            if stock.made >= STAGES {
                return None;
            }
            stock.made += 1;
        }
        let memory = self.pinned.take(self.stage_pages() * self.layout.page_bytes);
        if memory.is_err() {
            self.stages.stock.lock().made -= 1;
            self.announce_stage();
        }
        Some(Stage { memory: memory.ok()? })
    }

    /// Waits until a buffer may be free. Returns false if none exists. The caller has no buffer and no page.
    pub(crate) fn await_stage(&self) -> bool {
        let Stages { stock, returned } = &self.stages;
        self.counters.waits.add(1);
        let key = returned.prepare();
        let has_none_free = || {
            let stock = stock.lock();
            stock.made > 0 && stock.free.is_empty()
        };
        if has_none_free() && !spin_while(|| returned.is_current(key)) {
            returned.wait(key);
        }
        stock.lock().made > 0
    }

    /// Returns a buffer. No work on it may be in flight.
    pub(crate) fn put_stage(&self, stage: Stage) {
        self.stages.stock.lock().free.push(stage);
        self.announce_stage();
    }

    fn announce_stage(&self) {
        self.stages.returned.advance();
        self.stages.returned.notify();
    }
}
