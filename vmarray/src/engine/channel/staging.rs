//! Pinned memory between home slots and the program's own, for ranges that pass by the cache.

use parking_lot::Mutex;

use super::waiting::spin_while;
use super::{Channel, HostPlace, PinnedPiece};
use crate::engine::event_count::EventCount;

/// How long one stage is, in bytes, unless a page is longer: the bus stands still for some microseconds
/// between one copy and the next.
const STAGE_BYTES: usize = 4 << 20;
/// How many stages a channel may have: enough to keep a bus of 64 GB/s busy while threads copy from others,
/// and few enough to stay in the processor's caches.
const STAGES: usize = 16;

/// How many pages of so many bytes a stage has room for.
pub(crate) fn stage_pages(page_bytes: usize) -> usize {
    (STAGE_BYTES / page_bytes).max(1)
}

/// Room for some pages, on their way.
#[derive(Debug)]
pub(crate) struct Stage {
    memory: PinnedPiece,
}

/// The stages of a channel. The thread that has one waits for nothing but copies, and then gives it back.
#[derive(Debug, Default)]
pub(super) struct Stages {
    stock: Mutex<Stock>,
    /// A stage was given back, or cannot be made.
    returned: EventCount,
}

#[derive(Debug, Default)]
struct Stock {
    free: Vec<Stage>,
    made: usize,
}

impl Stage {
    /// Bytes of it, once the copy to it is done.
    pub(crate) fn bytes(&self, offset: usize, len: usize) -> &[u8] {
        assert!(offset + len <= self.memory.bytes(), "the part is inside of the stage");
        // SAFETY: within the memory, which is initialised. The thread that has the stage waits for a copy to
        // it before it looks.
        unsafe { std::slice::from_raw_parts(self.memory.address().as_ptr().add(offset), len) }
    }

    /// Copies bytes to it, before it is copied from.
    pub(crate) fn write(&mut self, offset: usize, from: &[u8]) {
        assert!(offset + from.len() <= self.memory.bytes(), "the part is inside of the stage");
        // SAFETY: within the memory; the thread that has the stage has no copy under way on it yet.
        unsafe {
            self.memory.address().as_ptr().add(offset).copy_from_nonoverlapping(from.as_ptr(), from.len());
        }
    }

    /// The place of a page.
    pub(super) fn span(&self, at: usize, page_bytes: usize) -> HostPlace {
        // SAFETY: the stage is kept until the copy is done, and given to nobody else meanwhile.
        unsafe { self.memory.at((at * page_bytes) as u64).detach() }
    }
}

impl Drop for Channel {
    /// Gives stages, with nothing in flight on them, to the other channels that share the stock.
    fn drop(&mut self) {
        let stages = std::mem::take(&mut self.stages.stock.get_mut().free);
        stages.into_iter().for_each(|stage| self.pinned.put(stage.memory));
    }
}

impl Channel {
    /// A stage, unless there are enough, or there is no memory for one more.
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
        let memory = self.pinned.take(stage_pages(self.layout.page_bytes) * self.layout.page_bytes);
        if memory.is_err() {
            self.stages.stock.lock().made -= 1;
            self.announce_stage();
        }
        Some(Stage { memory: memory.ok()? })
    }

    /// Waits until a stage may be free; false if there are none. The caller has no stage and holds no page.
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

    /// Gives a stage back, with nothing in flight on it.
    pub(crate) fn put_stage(&self, stage: Stage) {
        self.stages.stock.lock().free.push(stage);
        self.announce_stage();
    }

    fn announce_stage(&self) {
        self.stages.returned.advance();
        self.stages.returned.notify();
    }
}
