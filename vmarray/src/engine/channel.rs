//! One channel: a slice of a device's memory, its queues, and one shard of the page cache.
//!
//! A channel owns frames and slots and moves bytes between them. It never holds its lock while it copies,
//! waits, or runs code of others; whatever is under way is on record as a [`FetchUnderWay`] or a
//! [`WriteBack`], which *any* thread can wait for and finish. So no threads of our own do any work: whoever
//! needs a page or a frame drives the channel on.
//!
//! | file | subject |
//! |---|---|
//! | `frames` | host memory for frames, and how a thread gets hold of one |
//! | `victims` | which pages give up their frames |
//! | `transfers` | what is under way, waiting for it, finishing it |
//! | `waiting` | how threads wait for each other |
//! | `requests` | what tasks ask of pages that are not in the cache |
//! | `drive` | such requests on their way: submitted together, served when their pages have come |
//! | `driver` | what a device wakes for that |
//! | `tasks` | what else tasks wait for |
//! | `reserve` | frames that are kept for the guards of tasks |
//! | `combine` | loads of many threads in one submission |
//! | `write_back` | dirty pages on their way home |
//! | `ahead` | how many pages were fetched ahead and not used yet |
//! | `guards` | how many frames the program's guards may hold |
//! | `slot_io` | fills, kernels and copies of single elements on home slots |
//! | `staging` | pinned memory for ranges that pass by the cache |
//! | `staged_copies` | copies of such ranges by several threads in one submission |
//! | `coalesce` | copies of neighbouring pages as one |
//! | `queues` | the queues of one direction, and which one is next |
//! | `queue_barriers` | the order between queues where kernels are concerned |
//! | `order_lock` | locks under which work is submitted |
//! | `lists` | pinned memory for lists of indices and values |

#[forbid(unsafe_code)]
mod ahead;
mod coalesce;
#[forbid(unsafe_code)]
mod combine;
mod drive;
#[forbid(unsafe_code)]
mod driver;
mod frames;
#[forbid(unsafe_code)]
mod guards;
#[forbid(unsafe_code)]
mod lists;
#[forbid(unsafe_code)]
mod order_lock;
#[forbid(unsafe_code)]
mod queue_barriers;
#[forbid(unsafe_code)]
mod queues;
mod requests;
mod reserve;
mod slot_io;
#[forbid(unsafe_code)]
mod staged_copies;
mod staging;
#[forbid(unsafe_code)]
mod tasks;
#[cfg(test)]
mod tests;
mod transfers;
#[forbid(unsafe_code)]
mod victims;
#[forbid(unsafe_code)]
mod waiting;
#[forbid(unsafe_code)]
mod write_back;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Waker;

use backend_api::{Commit, Device, DeviceBuffer, DeviceSpan, HostBuffer, HostMemory, HostSpan};
use crossbeam_queue::ArrayQueue;
use parking_lot::{Condvar, Mutex};

use crate::base::error::{ErrorKind, Result};
use crate::base::stats::Counters;
use crate::engine::combiner::Combiner;
use crate::engine::evict::{EvictionPolicy, Evictor};
use crate::engine::page::state::{DIRTY, RESIDENT};
use crate::engine::page::{Access, Entry, PageTable, State, barrier_all, drain_all, quiesce_by};

use combine::Read;
pub(crate) use combine::{Load, LoadFor, Loaded};
use drive::{Serving, UNDER_WAY_MAX};
pub(crate) use driver::Driver;
pub(crate) use frames::{Blocking, Frame};
use order_lock::OrderLock;
use queue_barriers::{LoadOrder, QueueBarriers};
use queues::Queues;
pub(crate) use requests::{Ask, Bytes, Request, RequestAnswer};
use reserve::Reserved;
use slot_io::Bounce;
use staged_copies::StagedCopies;
pub(crate) use staged_copies::StagedCopy;
use staging::Stages;
pub(crate) use staging::{Stage, stage_pages};
pub(crate) use tasks::TaskWait;
use transfers::{FailedLoad, FetchUnderWay, WriteBack};
pub(crate) use victims::Victim;
pub(crate) use write_back::WriteBackFor;

/// A place in the slots, kept beside them: detached where a channel gives it out.
pub(crate) type DevicePlace = DeviceSpan<'static>;
/// A place in a frame or a cell, kept beside the memory: detached where that is made.
pub(crate) type HostPlace = HostSpan<'static>;

/// In place of the page of a frame that has none.
const NO_PAGE: u64 = u64::MAX;

/// How many of the pages that long scans have left behind are known, in bytes: of a size that stays in a
/// processor's cache.
const PASSED_BYTES: usize = 32 << 20;

/// The pages of a range that are homed in the channel of this number, of so many, in ascending order.
pub(crate) fn pages_of(channel: u64, channels: u64, range: &Range<u64>) -> impl Iterator<Item = u64> + use<> {
    let first = range.start + (channel + channels - range.start % channels) % channels;
    (first..range.end).step_by(channels as usize)
}

/// What a channel is built from.
pub(crate) struct ChannelPlan<D> {
    pub(crate) device: Arc<D>,
    pub(crate) index: u32,
    pub(crate) channels: u32,
    pub(crate) slots: u64,
    pub(crate) page_bytes: usize,
    pub(crate) element_bytes: usize,
    pub(crate) frame_stride: usize,
    pub(crate) frames_max: u32,
    pub(crate) policy: EvictionPolicy,
    pub(crate) memory: HostMemory,
    pub(crate) fall_back: bool,
    pub(crate) commit: Commit,
}

#[derive(Debug)]
pub(crate) struct Channel<D: Device> {
    // Declared first, dropped first: ending a queue waits for its work.
    fetches: Queues<D>,
    writes: Queues<D>,
    slots: DeviceBuffer<D>,
    shard: Mutex<Shard<D>>,
    /// Frames that no page has, in ascending order as far as possible: pages that come in order get
    /// neighbours, which processors prefetch across, and which go home in one copy.
    free: ArrayQueue<Frame>,
    /// Pages that were put in frames, and the policy was not told of. Whoever [locks](Self::lock) the shard
    /// tells it.
    newcomers: ArrayQueue<(u64, u32)>,
    /// Pages that long scans have left behind, the latest of them.
    passed: ArrayQueue<u64>,
    /// Whether those are the first to go.
    drops_behind: bool,
    /// Held by the one thread that looks for frames to be freed.
    search: Mutex<()>,
    /// Held by a thread that asks the device which write-backs are done; nobody waits for it.
    asking: Mutex<()>,
    freed: Condvar,
    /// Changes when there may be frames, memory, or work that is done.
    news: AtomicU64,
    /// How many threads wait for `freed`.
    sleepers: AtomicU32,
    /// Whether what is queued may be submitted; to be looked at without the lock of the shard.
    may_lead: AtomicBool,
    /// Loads whose failure nobody has been told of yet.
    untold_failures: AtomicU32,
    /// Names loads.
    next_load: AtomicU64,
    /// Pages fetched ahead and not used yet, nearly.
    ahead: AtomicU64,
    ahead_refusals: AtomicU32,
    /// Guards that were admitted, and how many may be.
    guards: AtomicU32,
    guards_max: AtomicU32,
    /// Held while a write to home slots, or a kernel on them, is submitted.
    queue_barriers: OrderLock<QueueBarriers>,
    /// What tasks ask for, who is to be woken when something of it is done, and whether there is no frame for
    /// it; also not if nobody but the program lets go of frames.
    requests: Combiner<Arc<Request>, Serving>,
    driver: OnceLock<Waker>,
    kept_for_reads: Arc<reserve::KeptForReads>,
    is_short_of_frames: AtomicBool,
    are_all_kept: AtomicBool,
    /// Held while home slots are read by copies or kernels, filled, or written by kernels: during the
    /// submission. Taken after `queue_barriers`.
    load_order: OrderLock<LoadOrder>,
    lists: Mutex<Vec<HostBuffer<D>>>,
    bounce: Mutex<Bounce<D>>,
    stages: Stages<D>,
    staged_fetches: Mutex<StagedCopies>,
    staged_writes: Mutex<StagedCopies>,
    answers: Mutex<Vec<HostBuffer<D>>>,
    device: Arc<D>,
    index: u32,
    channels: u32,
    page_bytes: usize,
    /// The length of what is copied for single elements.
    cell_bytes: usize,
    frame_stride: usize,
    frames_max: u32,
    recency: bool,
    fall_back: bool,
    pub(crate) counters: Counters,
}

#[derive(Debug)]
struct Shard<D: Device> {
    chunks: Vec<HostBuffer<D>>,
    frames: Vec<Frame>,
    evictor: Evictor,
    /// The page in each frame, or `NO_PAGE`.
    pages: Vec<u64>,
    /// Frames of pages, for an exact order only.
    frame_of: HashMap<u64, u32>,
    /// Loads that wait to be submitted.
    queued: Vec<Load>,
    /// Reads that do.
    queued_reads: Vec<Arc<Read>>,
    /// Whether a thread submits loads.
    is_led: bool,
    fetches: Vec<FetchUnderWay>,
    write_backs: Vec<WriteBack>,
    /// Loads that failed, until whoever asked for them has been told.
    failed_loads: Vec<FailedLoad>,
    /// The first failure of a write-back that nobody has been told of.
    write_error: Option<backend_api::Error>,
    /// Pages that an eviction had written back: the next victims, unless they were used since.
    cleaned: Vec<u64>,
    growing: bool,
    /// Frames that are kept for tasks.
    reserved: Reserved,
    /// Set when the system gave no more memory: the cache stays as large as it is.
    full: bool,
    memory: HostMemory,
}

impl<D: Device> Channel<D> {
    pub(crate) fn new(plan: ChannelPlan<D>) -> Result<Self> {
        let bytes = plan
            .slots
            .checked_mul(plan.page_bytes as u64)
            .ok_or(ErrorKind::TooLong { elements: u64::MAX, element_bytes: plan.page_bytes })?;
        let slots = DeviceBuffer::new(&plan.device, bytes, plan.commit)?;
        let evictor = Evictor::new(plan.policy, plan.frames_max as usize);
        let recency = !evictor.wants_touches();
        let passed_max = (plan.frames_max as usize / 2).max(1);
        let reserved = Reserved::new(plan.frames_max);
        let kept_for_reads = Arc::clone(reserved.for_reads());
        let channel = Self {
            // Writes run after kernels of other channels that were ordered before the first queue.
            fetches: Queues::new(&plan.device, false)?,
            writes: Queues::new(&plan.device, true)?,
            slots,
            shard: Mutex::new(Shard {
                chunks: Vec::new(),
                frames: Vec::new(),
                evictor,
                pages: Vec::new(),
                frame_of: HashMap::new(),
                queued: Vec::new(),
                queued_reads: Vec::new(),
                is_led: false,
                fetches: Vec::new(),
                write_backs: Vec::new(),
                failed_loads: Vec::new(),
                write_error: None,
                cleaned: Vec::new(),
                growing: false,
                reserved,
                full: false,
                memory: plan.memory,
            }),
            free: ArrayQueue::new(plan.frames_max.max(1) as usize),
            newcomers: ArrayQueue::new(plan.frames_max.max(1) as usize),
            passed: ArrayQueue::new((PASSED_BYTES / plan.page_bytes).clamp(1, passed_max)),
            drops_behind: plan.policy == EvictionPolicy::Clock,
            search: Mutex::new(()),
            asking: Mutex::new(()),
            freed: Condvar::new(),
            news: AtomicU64::new(0),
            sleepers: AtomicU32::new(0),
            may_lead: AtomicBool::new(false),
            untold_failures: AtomicU32::new(0),
            next_load: AtomicU64::new(0),
            ahead: AtomicU64::new(0),
            ahead_refusals: AtomicU32::new(0),
            guards: AtomicU32::new(0),
            guards_max: AtomicU32::new(guards::most(plan.frames_max)),
            queue_barriers: OrderLock::default(),
            requests: Combiner::new(UNDER_WAY_MAX, Serving::default()),
            kept_for_reads,
            driver: OnceLock::new(),
            is_short_of_frames: AtomicBool::new(false),
            are_all_kept: AtomicBool::new(false),
            load_order: OrderLock::default(),
            lists: Mutex::new(Vec::new()),
            bounce: Mutex::new(Bounce::new()),
            stages: Stages::new(),
            staged_fetches: Mutex::default(),
            staged_writes: Mutex::default(),
            answers: Mutex::new(Vec::new()),
            device: plan.device,
            index: plan.index,
            channels: plan.channels,
            page_bytes: plan.page_bytes,
            cell_bytes: plan.element_bytes.next_multiple_of(64),
            frame_stride: plan.frame_stride,
            frames_max: plan.frames_max,
            recency,
            fall_back: plan.fall_back,
            counters: Counters::default(),
        };
        if plan.slots > 0 {
            // A refusal of the first frames is an error of the builder, not of the first access.
            channel.grow()?;
            // What is required is known to be there from now on.
            while !channel.fall_back && channel.lock().frames.len() < channel.frames_max as usize {
                channel.grow()?;
            }
        }
        Ok(channel)
    }

    pub(crate) fn device(&self) -> &Arc<D> {
        &self.device
    }

    /// The home of a page of this channel.
    pub(crate) fn home(&self, page: u64) -> DevicePlace {
        self.slot_memory().plus(page / u64::from(self.channels) * self.page_bytes as u64)
    }

    pub(crate) fn slot_memory(&self) -> DevicePlace {
        // SAFETY: the channel owns the slots as long as it lives, and work on them is submitted by the pager
        // alone.
        unsafe { self.slots.at(0).detach() }
    }

    pub(crate) fn slot_bytes(&self) -> u64 {
        self.slots.bytes()
    }

    pub(crate) fn frames_max(&self) -> u32 {
        self.frames_max
    }

    /// Bytes of RAM that the frames take now, and may take, and what kind of memory new ones are made of.
    pub(crate) fn cache_memory(&self) -> (usize, usize, HostMemory) {
        let shard = self.lock();
        let frames: usize = shard.chunks.iter().map(HostBuffer::bytes).sum();
        (frames, self.frames_max as usize * self.frame_stride, shard.memory)
    }

    /// Bytes of RAM that are kept for what goes past the frames.
    pub(crate) fn staging_bytes(&self) -> usize {
        let answers: usize = self.answers.lock().iter().map(HostBuffer::bytes).sum();
        self.bounce.lock().bytes() + self.stage_bytes() + self.list_bytes() + answers
    }

    /// Whether recency is kept in the page's state; else the policy is told of every access.
    pub(crate) fn recency(&self) -> bool {
        self.recency
    }

    /// Tells an exact order of an access.
    pub(crate) fn touched(&self, page: u64) {
        let mut shard = self.lock();
        if let Some(&frame) = shard.frame_of.get(&page) {
            shard.evictor.touched(frame);
        }
    }

    /// The pages of a range that have frames now, in ascending order; of those only the dirty ones if so
    /// wanted. All of that may change at once. Looks at the range or at the frames, whichever are fewer.
    pub(crate) fn resident_pages(&self, table: &PageTable, range: &Range<u64>, only_dirty: bool) -> Vec<u64> {
        let is_wanted = |page: &u64| {
            let state = table.entry(*page).state(Ordering::Acquire);
            state.any(if only_dirty { DIRTY } else { RESIDENT })
        };
        let (channels, shard) = (u64::from(self.channels), self.lock());
        if (range.end - range.start) / channels <= shard.pages.len() as u64 {
            drop(shard);
            return pages_of(u64::from(self.index), channels, range).filter(is_wanted).collect();
        }
        let is_inside = |page: &u64| *page != NO_PAGE && range.contains(page);
        let mut pages: Vec<u64> =
            shard.pages.iter().copied().filter(|page| is_inside(page) && is_wanted(page)).collect();
        drop(shard);
        pages.sort_unstable();
        pages
    }
}

impl<D: Device> Channel<D> {
    /// Sees to it that no lock-free access is under way that the earlier state of a page allowed. The caller
    /// holds the page: exclusively for [`Access::All`], at least shared for [`Access::Writes`].
    pub(crate) fn quiesce(&self, entry: &Entry, before: State, access: Access) {
        self.quiesce_all(std::iter::once((entry, before)), access);
    }

    /// As [`quiesce`](Self::quiesce) for several pages, with one barrier.
    fn quiesce_all<'a>(&self, pages: impl Iterator<Item = (&'a Entry, State)> + Clone, access: Access) {
        let barrier = || {
            self.counters.barriers.add(1);
            barrier_all();
        };
        quiesce_by(pages, access, barrier, |entry| drain_all(entry, access));
    }
}
