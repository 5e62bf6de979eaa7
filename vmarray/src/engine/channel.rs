//! One channel: a share of a device's memory, some of its queues, and one shard of the page cache.
//!
//! A channel has *frames* (page-sized buffers in RAM) and *slots* (places of pages in device memory, the
//! pages' homes), and copies pages between them. No thread holds the channel's lock while it copies, waits,
//! or runs code of the program. A [`FetchUnderWay`] or a [`WriteBack`] records each transfer in flight. *Any*
//! thread can wait for a transfer and finish it, so the library needs no worker threads: a thread that needs
//! a page or a frame does this work.
//!
//! # A miss, by threads, tasks and prefetches
//!
//! 1. *Frame*: the thread takes a free frame, while it holds no page (`frames`), or evicts a page.
//! 2. *Claim*: one of the threads that need the page claims it ([`Entry::try_claim_absent`],
//!    [`Entry::claim_to_load`]).
//! 3. *Place*: a page without contents becomes resident at once, as zeroes ([`Channel::install_new`]). Other
//!    pages need a [`Load`].
//! 4. *Submit*: one batch contains the loads of many threads (`combine`), another the loads of tasks
//!    (`async_progress`).
//! 5. *Record*: the batch becomes a [`FetchUnderWay`], with pages in flight. Any thread may wait for it.
//! 6. *Finish*: a thread serves the requests of tasks, and publishes the pages, or releases them after a
//!    failure (`transfers`).
//!
//! # An eviction
//!
//! 1. *Choose*: the policy selects frames, or the thread takes frames behind a scan (`victims`).
//! 2. *Claim*: the thread claims clean pages exclusively, and dirty pages shared ([`Entry::sweep`]).
//! 3. *Quiesce*: one barrier waits for the end of lock-free accesses (`page::quiesce`).
//! 4. *Free* the frames of clean pages ([`Channel::free_clean`]), and *write back* the dirty pages
//!    (`write_back`).
//! 5. *Finish*: written-back pages are clean, and become the first victims of the next round (`transfers`).

#[forbid(unsafe_code)]
mod ahead;
#[forbid(unsafe_code)]
mod async_progress;
#[forbid(unsafe_code)]
mod async_requests;
#[forbid(unsafe_code)]
mod async_waiters;
#[forbid(unsafe_code)]
mod async_wakeups;
#[forbid(unsafe_code)]
mod checksums;
mod coalesce;
#[forbid(unsafe_code)]
mod combine;
#[forbid(unsafe_code)]
mod direct;
#[forbid(unsafe_code)]
mod frame_reservation;
#[forbid(unsafe_code)]
mod frames;
#[forbid(unsafe_code)]
mod guards;
#[forbid(unsafe_code)]
mod order_lock;
#[forbid(unsafe_code)]
mod pinned;
mod places;
#[forbid(unsafe_code)]
mod queue_barriers;
#[forbid(unsafe_code)]
mod queues;
#[forbid(unsafe_code)]
mod slot_io;
#[forbid(unsafe_code)]
mod staged_copies;
#[forbid(unsafe_code)]
mod staging;
#[cfg(test)]
mod tests;
#[forbid(unsafe_code)]
mod transfers;
#[forbid(unsafe_code)]
mod victims;
#[forbid(unsafe_code)]
mod waiting;
#[forbid(unsafe_code)]
mod write_back;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread;

use backend_api::numa::OnNode;
use backend_api::{Commit, Device, DeviceBuffer, HostBuffer, HostMemory};
use crossbeam_queue::SegQueue;
use parking_lot::Mutex;

use crate::base::error::{ErrorKind, Result};
use crate::base::stats::Counters;
use crate::engine::event_count::EventCount;
use crate::engine::evict::{EvictionPolicy, Evictor};
use crate::engine::page::state::{DIRTY, RESIDENT};
use crate::engine::page::{Entry, HazardAccess, PageTable, State, barrier_all, drain_all, quiesce_by};

use ahead::AheadCount;
pub(crate) use async_requests::{Ask, Bytes, PageRequest, RequestAnswer};
use async_waiters::TaskRequests;
pub(crate) use async_waiters::TaskWait;
pub(crate) use async_wakeups::WakeupDriver;
pub(crate) use coalesce::CopyWay;
use combine::Read;
pub(crate) use combine::{Load, LoadFor, LoadResult};
use direct::ReadCosts;
use frame_reservation::ReservedFrames;
pub(crate) use frames::{Blocking, Frame};
use guards::GuardCount;
pub(crate) use pinned::{PinnedPiece, PinnedPool};
pub(crate) use places::{DevicePlace, HostPlace, ProgramMemory, SlotMemory, comparing};
pub(crate) use queue_barriers::HomeQueues;
use staged_copies::StagedCopies;
pub(crate) use staged_copies::StagedCopy;
pub(crate) use staging::Stage;
use staging::Stages;
use transfers::{FailedLoad, FetchUnderWay, WriteBack};
use victims::DropBehind;
pub(crate) use victims::Victim;
pub(crate) use write_back::WriteBackFor;

/// Page number of a frame without a page.
const NO_PAGE: u64 = u64::MAX;

/// Bytes of host memory for lists and staging buffers that all channels of an array together allocate in
/// advance: enough for a gather by 16 threads. At most the given share of the slots; a channel that would get
/// too little allocates none.
const RESERVED_BYTES: u64 = 128 << 20;
const RESERVED_BYTES_MIN: u64 = 8 << 20;
const RESERVED_SHARE: u64 = 16;

/// Returns the pages of a range whose home is in one of `channels` channels, in ascending order.
pub(crate) fn pages_of(channel: u64, channels: u64, range: &Range<u64>) -> impl Iterator<Item = u64> + use<> {
    let first = range.start + (channel + channels - range.start % channels) % channels;
    (first..range.end).step_by(channels as usize)
}

/// Settings and memory from which a channel is built.
pub(crate) struct ChannelPlan {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) layout: ChannelLayout,
    pub(crate) slots: u64,
    /// Greatest number of slots, and true if this is the capacity of the device.
    pub(crate) slots_most: u64,
    pub(crate) is_open: bool,
    pub(crate) policy: EvictionPolicy,
    pub(crate) memory: HostMemory,
    pub(crate) fall_back: bool,
    pub(crate) commit: Commit,
    /// True if host memory is allocated in advance.
    pub(crate) is_ahead: bool,
    /// True if host memory is wiped before it is freed with the channel.
    pub(crate) wipe: bool,
}

impl ChannelPlan {
    fn allocate_slots(&self) -> Result<DeviceBuffer<dyn Device>> {
        let page_bytes = self.layout.page_bytes;
        let bytes = |slots: u64| -> Result<u64> {
            let too_long = || ErrorKind::TooLong { elements: u64::MAX, element_bytes: page_bytes }.into();
            slots.checked_mul(page_bytes as u64).ok_or_else(too_long)
        };
        let (bytes, most) = (bytes(self.slots)?, bytes(self.slots_most)?);
        if bytes >= most {
            return Ok(DeviceBuffer::new(&self.device, bytes, self.commit)?);
        }
        let most = if self.is_open { u64::MAX } else { most };
        Ok(DeviceBuffer::extensible(&self.device, bytes, most, self.commit)?)
    }
}

/// Properties of a channel that do not change.
#[derive(Debug)]
pub(crate) struct ChannelLayout {
    /// The index of the channel in the array, and the number of channels.
    pub(crate) index: u32,
    pub(crate) channels: u32,
    pub(crate) page_bytes: usize,
    pub(crate) frame_stride: usize,
    pub(crate) frames_max: u32,
}

/// The free frames of a channel, and the locks of threads that search for more.
#[derive(Debug)]
struct FrameSupply {
    /// Free frames, in ascending order if possible. Consecutive pages then get neighbouring frames, so the
    /// processor prefetches across them, and one copy writes them back.
    free: SegQueue<Frame>,
    /// The lock of the thread that searches for frames to free.
    search: Mutex<()>,
    /// The lock of the thread that polls the device for completed write-backs. No thread waits for it.
    asking: Mutex<()>,
}

/// Hints about queued loads, which threads read without the lock of the shard.
#[derive(Debug, Default)]
struct LoadQueue {
    /// True if a thread may submit queued loads.
    may_combine: AtomicBool,
    /// Number of failed loads whose error no thread has received yet.
    unreported_errors: AtomicU32,
    next: AtomicU64,
}

#[derive(Debug)]
pub(crate) struct Channel {
    // Declared first, so that Rust drops the queues before the memory: the drop of a queue waits for its work
    // in this memory.
    pub(crate) queues: HomeQueues,
    slots: SlotMemory,
    shard: Mutex<Shard>,
    supply: FrameSupply,
    /// Pages that have got a frame but are not yet reported to the eviction policy. A thread that
    /// [locks](Self::lock) the shard reports them.
    newcomers: SegQueue<(u64, u32)>,
    drop_behind: DropBehind,
    loads: LoadQueue,
    ahead: AheadCount,
    guards: GuardCount,
    tasks: TaskRequests,
    /// Counts events that may end a wait: new frames, free memory, the end of a guard, or completed work.
    events: EventCount,
    pinned: Arc<PinnedPool>,
    read_costs: ReadCosts,
    stages: Stages,
    /// Staged copies, by [`CopyWay`].
    staged: [Mutex<StagedCopies>; 2],
    device: Arc<dyn Device>,
    layout: ChannelLayout,
    recency: bool,
    fall_back: bool,
    commit: Commit,
    is_ahead: bool,
    pub(crate) counters: Arc<Counters>,
}

/// The part of a channel's state that its lock protects.
#[derive(Debug)]
struct Shard {
    frames: FrameTable,
    work: WorkUnderWay,
}

/// All frames of a channel, and their pages.
#[derive(Debug)]
struct FrameTable {
    chunks: Vec<HostBuffer<dyn Device>>,
    list: Vec<Frame>,
    evictor: Evictor,
    /// The page in each frame, or `NO_PAGE`.
    pages: Vec<u64>,
    /// The frame of each page; only for a policy with an exact order.
    frame_of: HashMap<u64, u32>,
    /// Pages that an eviction has written back. They are evicted next, unless a thread has used them since.
    cleaned: Vec<u64>,
    /// Frames reserved for pages that tasks have requested.
    reserved: ReservedFrames,
    stride: usize,
    growing: bool,
    /// True after the system has refused memory, so the cache does not grow any more.
    full: bool,
}

/// Copies of a channel that are queued or in flight, and their failures.
#[derive(Debug, Default)]
struct WorkUnderWay {
    queued: Vec<Load>,
    queued_reads: Vec<Arc<Read>>,
    /// True while a thread submits loads.
    has_combiner: bool,
    fetches: Vec<FetchUnderWay>,
    write_backs: Vec<WriteBack>,
    /// Failed loads whose threads have not yet received the error.
    failed_loads: Vec<FailedLoad>,
    /// The first unreported failure of a write-back.
    write_error: Option<backend_api::Error>,
}

impl Channel {
    pub(crate) fn new(plan: ChannelPlan) -> Result<Self> {
        let slots = plan.allocate_slots()?;
        let frames_max = plan.layout.frames_max as usize;
        let evictor = Evictor::new(plan.policy, frames_max);
        let recency = !evictor.wants_touches();
        let reserved = ReservedFrames::new(plan.layout.frames_max);
        let counters = Arc::new(Counters::default());
        let channel = Self {
            queues: HomeQueues::new(&plan.device, &counters)?,
            slots: SlotMemory::new(slots),
            supply: FrameSupply { free: SegQueue::new(), search: Mutex::new(()), asking: Mutex::new(()) },
            newcomers: SegQueue::new(),
            drop_behind: DropBehind::new(
                plan.policy == EvictionPolicy::Clock,
                plan.layout.page_bytes,
                frames_max,
            ),
            loads: LoadQueue::default(),
            ahead: AheadCount::default(),
            guards: GuardCount::new(plan.layout.frames_max),
            tasks: TaskRequests::new(&reserved),
            shard: Mutex::new(Shard {
                frames: FrameTable {
                    chunks: Vec::new(),
                    list: Vec::new(),
                    evictor,
                    pages: Vec::new(),
                    frame_of: HashMap::new(),
                    cleaned: Vec::new(),
                    reserved,
                    stride: plan.layout.frame_stride,
                    growing: false,
                    full: false,
                },
                work: WorkUnderWay::default(),
            }),
            events: EventCount::default(),
            pinned: Arc::new(match plan.fall_back && !plan.wipe {
                true => PinnedPool::new(&plan.device, plan.layout.index, plan.memory),
                false => PinnedPool::separate(&plan.device, plan.memory, plan.fall_back),
            }),
            read_costs: ReadCosts::default(),
            stages: Stages::default(),
            staged: Default::default(),
            device: plan.device,
            layout: plan.layout,
            recency,
            fall_back: plan.fall_back,
            commit: plan.commit,
            is_ahead: plan.is_ahead,
            counters,
        };
        if plan.slots_most > 0 {
            channel.allocate_frames(frames_max)?;
        }
        Ok(channel)
    }

    /// Allocates the first frames when the array is built. If there is no memory for them, the builder
    /// returns the error, and not the first access.
    fn allocate_frames(&self, frames_max: usize) -> Result<()> {
        self.grow()?;
        // `require_pinned`: allocate all frames now, so that later accesses cannot fail for lack of
        // page-locked memory.
        while !self.fall_back && self.lock().frames.list.len() < frames_max {
            self.grow()?;
        }
        if self.is_ahead {
            self.reserve_pinned();
        }
        Ok(())
    }

    /// Allocates host memory for lists and staging buffers in the background, for large arrays on GPUs, so
    /// that the first call takes as long as later ones.
    fn reserve_pinned(&self) {
        let bytes =
            (self.slots.bytes() / RESERVED_SHARE).min(RESERVED_BYTES / u64::from(self.layout.channels));
        if self.device.info().kind.is_gpu() && bytes >= RESERVED_BYTES_MIN {
            let (pinned, node) = (Arc::clone(&self.pinned), self.device.info().numa_node);
            // Ignore a failure: without the thread, the first calls allocate the memory themselves.
            let _ = thread::Builder::new().name("vmarray-reserve".into()).spawn(move || {
                let _near = OnNode::run(node);
                pinned.reserve(bytes as usize);
            });
        }
    }

    pub(crate) fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// Returns the place of a page's home slot in device memory.
    pub(crate) fn home(&self, page: u64) -> DevicePlace {
        self.slot_memory().plus(page / u64::from(self.layout.channels) * self.layout.page_bytes as u64)
    }

    pub(crate) fn slot_memory(&self) -> DevicePlace {
        self.slots.at(0)
    }

    pub(crate) fn slot_bytes(&self) -> u64 {
        self.slots.bytes()
    }

    /// Extends the device memory to a number of slots.
    pub(crate) fn extend_slots(&self, slots: u64) -> Result<()> {
        Ok(self.slots.extend(slots * self.layout.page_bytes as u64, self.commit)?)
    }

    pub(crate) fn frames_max(&self) -> u32 {
        self.layout.frames_max
    }

    /// Returns the present and the maximum RAM of the frames, in bytes, and the kind of memory of new frames.
    pub(crate) fn cache_memory(&self) -> (usize, usize, HostMemory) {
        let frames: usize = self.lock().frames.chunks.iter().map(HostBuffer::bytes).sum();
        (frames, self.layout.frames_max as usize * self.layout.frame_stride, self.pinned.kind())
    }

    /// Returns this channel's part of the RAM for transfers without frames, in bytes. Channels that share
    /// this RAM have equal parts.
    pub(crate) fn staging_bytes(&self) -> usize {
        self.pinned.share_bytes()
    }

    /// Allocates host memory of the same kind as the frames, for the caller.
    pub(crate) fn host_memory(&self, bytes: usize) -> Result<ProgramMemory> {
        Ok(ProgramMemory::new(self.pinned.make(bytes)?.0))
    }

    /// Takes at least `bytes` bytes of host memory from the pool, page-locked if possible. The caller
    /// [returns it](Self::put_pinned).
    pub(crate) fn take_pinned(&self, bytes: usize) -> Result<PinnedPiece> {
        self.pinned.take(bytes)
    }

    /// Returns host memory to the pool. No work on it may be in flight.
    pub(crate) fn put_pinned(&self, memory: PinnedPiece) {
        self.pinned.put(memory);
    }

    /// Returns true if the state of a page records its recent use. Otherwise threads report accesses.
    pub(crate) fn recency(&self) -> bool {
        self.recency
    }

    /// Reports an access to a page to an exact policy.
    pub(crate) fn touched(&self, page: u64) {
        let frames = &mut self.lock().frames;
        if let Some(&frame) = frames.frame_of.get(&page) {
            frames.evictor.touched(frame);
        }
    }

    /// Returns the pages of a range that have frames, in ascending order; with `only_dirty`, only the dirty
    /// ones. The result may be outdated at once. Examines the pages of the range or all frames, whichever are
    /// fewer.
    pub(crate) fn resident_pages(&self, table: &PageTable, range: &Range<u64>, only_dirty: bool) -> Vec<u64> {
        let is_wanted = |page: &u64| {
            let state = table.entry(*page).state(Ordering::Acquire);
            state.any(if only_dirty { DIRTY } else { RESIDENT })
        };
        let (channels, shard) = (u64::from(self.layout.channels), self.lock());
        if (range.end - range.start) / channels <= shard.frames.pages.len() as u64 {
            drop(shard);
            return pages_of(u64::from(self.layout.index), channels, range).filter(is_wanted).collect();
        }
        let is_inside = |page: &u64| *page != NO_PAGE && range.contains(page);
        let mut pages: Vec<u64> =
            shard.frames.pages.iter().copied().filter(|page| is_inside(page) && is_wanted(page)).collect();
        drop(shard);
        pages.sort_unstable();
        pages
    }
}

impl Channel {
    /// Returns the number of failed write-backs so far. A failed write-back leaves unspecified contents in
    /// the home slot, and its page stays in the cache.
    pub(crate) fn failed_write_backs(&self, table: &PageTable) -> u64 {
        self.reap(table);
        self.counters.failed_write_backs.get()
    }

    /// Waits until no lock-free access that the page's earlier state `before` allowed is running. The caller
    /// holds the page: exclusively for [`HazardAccess::All`], at least shared for [`HazardAccess::Writes`].
    pub(crate) fn quiesce(&self, entry: &Entry, before: State, access: HazardAccess) {
        self.quiesce_all(std::iter::once((entry, before)), access);
    }

    /// Waits as [`quiesce`](Self::quiesce) does for several pages, with one barrier.
    fn quiesce_all<'a>(&self, pages: impl Iterator<Item = (&'a Entry, State)> + Clone, access: HazardAccess) {
        let barrier = || {
            self.counters.barriers.add(1);
            barrier_all();
        };
        quiesce_by(pages, access, barrier, |entry| drain_all(entry, access));
    }

    /// Waits until no lock-free write is running on pages that a snapshot has marked and no thread holds,
    /// with one barrier for all. A page that has lost its mark meanwhile keeps its state.
    pub(crate) fn quiesce_unsaved(&self, pages: &[&Entry]) {
        if pages.is_empty() {
            return;
        }
        pages.iter().for_each(|entry| entry.shut_writes());
        self.counters.barriers.add(1);
        barrier_all();
        for entry in pages {
            drain_all(entry, HazardAccess::Writes);
            entry.quiet_unsaved();
        }
    }
}
