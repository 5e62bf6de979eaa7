//! One channel: a slice of a device's memory, its queues, and one shard of the page cache.
//!
//! A channel owns frames and slots and moves bytes between them. It never holds its lock while it copies, waits, or
//! runs code of others; whatever is under way is on record as a [`Transfer`], which *any* thread can wait for and
//! finish. So there are no threads of our own: whoever needs a page or a frame drives the channel on.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use backend_api::{
    Commit, Device, DeviceBuffer, DeviceSpan, Fill, HostBuffer, HostMemory, HostSpan, Progress, Queue,
    QueueId, Ticket, Transfer as Copy,
};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::error::{ErrorKind, Result};
use crate::evict::{EvictionPolicy, Evictor, Verdict};
use crate::guards;
use crate::page::state::{AHEAD, DIRTY, USED};
use crate::page::{
    Access, Entry, Holder, PageTable, State, Sweep, barrier_all, drain_all, quiesce_by, unpark,
};
use crate::stats::Counters;

/// How many frames one round of eviction frees at most, and how many pages one write-back carries. Enough to make the
/// barrier (some microseconds) and the cost of a call cheap a page.
const ROUND_FRAMES_MAX: usize = 32;
/// A round takes at most this share of the frames, so that small caches keep what they hold.
const ROUND_SHARE: usize = 8;
/// How many dirty pages beyond a full batch a sweep passes over, at least, in search of clean ones.
const DIRTY_PATIENCE: usize = 64;
/// How much host memory is taken at once while a cache grows towards its limit; page-locking is slow.
const CHUNK_BYTES: usize = 16 << 20;

/// In place of the page of a frame that has none.
const NO_PAGE: u64 = u64::MAX;

/// A page-sized place in host memory. Whoever has one that is not in the free list owns it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    pub(crate) index: u32,
    pub(crate) address: *mut u8,
    pub(crate) host: HostSpan,
}

// SAFETY: a frame is a name and an address; who may touch the bytes is decided by the page protocol.
unsafe impl Send for Frame {}

/// What a loaded page is turned into for the thread that asked for it, whoever finishes the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    Share(Holder),
    Exclusive(Holder),
    /// Nobody holds it: a prefetch.
    Release,
}

#[derive(Debug)]
enum Work {
    Load { page: u64, frame: u32, then: Then },
    WriteBack { pages: Vec<u64>, evicting: bool },
}

#[derive(Debug)]
struct Transfer {
    ticket: Ticket,
    work: Work,
}

impl Transfer {
    fn concerns(&self, wanted: u64) -> bool {
        match &self.work {
            Work::Load { page, .. } => *page == wanted,
            Work::WriteBack { pages, .. } => pages.contains(&wanted),
        }
    }
}

/// A page that a sweep, or a flush, has taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Victim {
    pub(crate) page: u64,
    pub(crate) frame: Frame,
    pub(crate) before: State,
}

/// What one round of eviction found.
#[derive(Default)]
struct Victims {
    /// Claimed, to lose their frames.
    clean: Vec<Victim>,
    /// Pinned, to be written back.
    dirty: Vec<Victim>,
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
    fetches: Queue<D>,
    writes: Queue<D>,
    slots: DeviceBuffer<D>,
    shard: Mutex<Shard<D>>,
    freed: Condvar,
    /// Held while a write to home slots is submitted or ordered against a device-side operation.
    write_order: Mutex<()>,
    bounce: Mutex<Bounce<D>>,
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
    free: Vec<u32>,
    evictor: Evictor,
    /// The page in each frame, or `NO_PAGE`.
    pages: Vec<u64>,
    /// Frames of pages, for an exact order only.
    frame_of: HashMap<u64, u32>,
    transfers: Vec<Transfer>,
    /// Loads that failed, until whoever asked for them has been told.
    failed_loads: Vec<(Ticket, u64, backend_api::Error)>,
    /// The first failure of a write-back that nobody has been told of.
    write_error: Option<backend_api::Error>,
    /// Pages that an eviction had written back: the next victims, unless they were used since.
    cleaned: Vec<u64>,
    growing: bool,
    /// Set when the system gave no more memory: the cache stays as large as it is.
    full: bool,
    memory: HostMemory,
    guards: u32,
}

/// Small pieces of pinned memory for copies of single elements.
#[derive(Debug)]
struct Bounce<D: Device> {
    chunks: Vec<HostBuffer<D>>,
    free: Vec<(HostSpan, *mut u8)>,
}

// SAFETY: the pointers lead into the chunks, which move along; a free cell is touched by nobody.
unsafe impl<D: Device> Send for Bounce<D> {}

/// Whether a frame is worth waiting for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    Wait,
    Try,
}

/// Why pages are written back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To take their frames next.
    Evict,
    Flush,
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
        let channel = Self {
            fetches: Queue::new(&plan.device)?,
            writes: Queue::new(&plan.device)?,
            slots,
            shard: Mutex::new(Shard {
                chunks: Vec::new(),
                frames: Vec::new(),
                free: Vec::new(),
                evictor,
                pages: Vec::new(),
                frame_of: HashMap::new(),
                transfers: Vec::new(),
                failed_loads: Vec::new(),
                write_error: None,
                cleaned: Vec::new(),
                growing: false,
                full: false,
                memory: plan.memory,
                guards: 0,
            }),
            freed: Condvar::new(),
            write_order: Mutex::new(()),
            bounce: Mutex::new(Bounce { chunks: Vec::new(), free: Vec::new() }),
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
        }
        Ok(channel)
    }

    pub(crate) fn device(&self) -> &Arc<D> {
        &self.device
    }

    /// The home of a page of this channel.
    pub(crate) fn home(&self, page: u64) -> DeviceSpan {
        self.slots.at(page / u64::from(self.channels) * self.page_bytes as u64)
    }

    pub(crate) fn slot_memory(&self) -> DeviceSpan {
        self.slots.at(0)
    }

    pub(crate) fn slot_bytes(&self) -> u64 {
        self.slots.bytes()
    }

    pub(crate) fn frames_max(&self) -> u32 {
        self.frames_max
    }

    /// Bytes of RAM that the frames take now, and may take, and what kind of memory new ones are made of.
    pub(crate) fn cache_memory(&self) -> (usize, usize, HostMemory) {
        let cells: usize = self.bounce.lock().chunks.iter().map(HostBuffer::bytes).sum();
        let shard = self.shard.lock();
        let frames: usize = shard.chunks.iter().map(HostBuffer::bytes).sum();
        (frames + cells, self.frames_max as usize * self.frame_stride + cells, shard.memory)
    }

    /// Takes one more chunk of host memory for frames.
    fn grow(&self) -> Result<()> {
        let (kind, have) = {
            let mut shard = self.shard.lock();
            let have = shard.frames.len() as u32;
            if shard.growing || shard.full || have >= self.frames_max {
                return Ok(());
            }
            shard.growing = true;
            (shard.memory, have)
        };
        let frames = (CHUNK_BYTES / self.frame_stride).clamp(1, (self.frames_max - have) as usize);
        let mut memory = kind;
        let mut chunk = HostBuffer::new(&self.device, frames * self.frame_stride, memory);
        if self.fall_back
            && memory == HostMemory::Pinned
            && chunk.as_ref().is_err_and(|e| e.kind() == backend_api::ErrorKind::PinRefused)
        {
            memory = HostMemory::Pageable;
            if let Err(error) = &chunk {
                crate::trace::pin_refused(error);
            }
            chunk = HostBuffer::new(&self.device, frames * self.frame_stride, memory);
        }
        let mut shard = self.shard.lock();
        shard.growing = false;
        let result = match chunk {
            Ok(chunk) => {
                shard.memory = memory;
                for i in 0..frames {
                    let index = shard.frames.len() as u32;
                    // SAFETY: the chunk is `frames * frame_stride` bytes long.
                    let address = unsafe { chunk.address().as_ptr().add(i * self.frame_stride) };
                    let host = chunk.at((i * self.frame_stride) as u64);
                    shard.frames.push(Frame { index, address, host });
                    shard.pages.push(NO_PAGE);
                }
                // Taken from the end: pages that come in order get frames in order, which processors prefetch across.
                let last = shard.frames.len() as u32;
                shard.free.extend((last - frames as u32..last).rev());
                shard.chunks.push(chunk);
                Ok(())
            }
            // Less than was asked for still works; nothing at all does not.
            Err(_) if have > 0 => {
                shard.full = true;
                Ok(())
            }
            Err(error) => Err(error.into()),
        };
        drop(shard);
        self.freed.notify_all();
        result
    }

    /// Gets a frame that nobody uses. `None` only to the impatient.
    pub(crate) fn take_frame(&self, table: &PageTable, patience: Patience) -> Result<Option<Frame>> {
        let mut turns = 0_u32;
        loop {
            let mut shard = self.shard.lock();
            if shard.free.is_empty() {
                self.reap(&mut shard, table);
            }
            if let Some(index) = shard.free.pop() {
                return Ok(Some(shard.frames[index as usize]));
            }
            if !shard.full && !shard.growing && (shard.frames.len() as u32) < self.frames_max {
                drop(shard);
                self.grow()?;
                continue;
            }
            let victims = self.choose_victims(&mut shard, table);
            drop(shard);
            let frame = self.free_clean(table, &victims.clean);
            let started = self.write_back(table, &victims.dirty, Purpose::Evict);
            if frame.is_some() {
                // The next flush tells of a failure.
                return Ok(frame);
            }
            if let Err(error) = started {
                self.shard.lock().write_error = None;
                return Err(error);
            }
            if patience == Patience::Try {
                return Ok(None);
            }
            turns += 1;
            self.await_frame(table, turns)?;
        }
    }

    /// Waits for whatever may bring a frame: a transfer, a guard's end, or another thread's next step.
    fn await_frame(&self, table: &PageTable, turns: u32) -> Result<()> {
        let mut shard = self.shard.lock();
        if !shard.free.is_empty() {
            return Ok(());
        }
        let is_write_back = |t: &&Transfer| matches!(t.work, Work::WriteBack { .. });
        let oldest = shard.transfers.iter().find(is_write_back).or(shard.transfers.first());
        if let Some((ticket, write_back)) = oldest.map(|t| (t.ticket, is_write_back(&t))) {
            drop(shard);
            self.counters.waits.add(1);
            let outcome = self.finish(table, ticket);
            if write_back && outcome.is_err() {
                // Told to whoever needs the frame.
                self.shard.lock().write_error = None;
                return outcome;
            }
            return Ok(());
        }
        // Guards that were admitted and have no frame yet do not count: they may be the ones who wait here.
        let is_guarded =
            |page: &&u64| **page != NO_PAGE && table.entry(**page).state(Ordering::Acquire).guards() > 0;
        let guarded = shard.pages.iter().filter(is_guarded).count();
        if guarded > 0 && guarded == shard.frames.len() {
            if guards::held() {
                let frames = shard.frames.len() as u64;
                return Err(ErrorKind::TooManyGuards { channel: self.index, frames }.into());
            }
            self.counters.waits.add(1);
            // Every guard that goes takes the lock and notifies after it has let go of its page.
            self.freed.wait(&mut shard);
            return Ok(());
        }
        if shard.growing {
            self.freed.wait(&mut shard);
            return Ok(());
        }
        drop(shard);
        // Another thread is between two steps of taking or releasing a page.
        if turns < 50 {
            std::hint::spin_loop()
        } else {
            std::thread::yield_now()
        }
        Ok(())
    }

    /// Gives back a frame that no page has.
    pub(crate) fn put_back(&self, frame: Frame) {
        self.shard.lock().free.push(frame.index);
        self.freed.notify_all();
    }

    /// Puts a frame under the eviction policy: it now holds this page.
    pub(crate) fn adopt(&self, page: u64, frame: Frame) {
        self.shard.lock().adopt(page, frame.index, self.recency);
    }

    /// Takes the frame of a page that the caller holds exclusively out of the policy. Once the page is vacated the
    /// caller [puts it back](Self::put_back): not before, since the entry still names it; and it is taken out before
    /// that, since the page may get another frame the moment it is vacated.
    pub(crate) fn disown(&self, address: *mut u8, page: u64) -> Frame {
        let mut shard = self.shard.lock();
        let frame = shard.frame_at(address, self.frame_stride);
        shard.evictor.removed(frame.index);
        shard.frame_of.remove(&page);
        shard.pages[frame.index as usize] = NO_PAGE;
        frame
    }

    /// The frame at an address that a page's entry names, while the caller holds the page.
    pub(crate) fn frame_at(&self, address: *mut u8) -> Frame {
        self.shard.lock().frame_at(address, self.frame_stride)
    }

    /// Whether recency is kept in the page's state; else the policy is told of every access.
    pub(crate) fn recency(&self) -> bool {
        self.recency
    }

    /// Tells an exact order of an access.
    pub(crate) fn touched(&self, page: u64) {
        let mut shard = self.shard.lock();
        if let Some(&frame) = shard.frame_of.get(&page) {
            shard.evictor.touched(frame);
        }
    }

    fn round_frames(&self) -> usize {
        (self.frames_max as usize / ROUND_SHARE).clamp(1, ROUND_FRAMES_MAX)
    }

    fn choose_victims(&self, shard: &mut Shard<D>, table: &PageTable) -> Victims {
        let want = self.round_frames();
        let mut victims = Victims::default();
        let Shard { evictor, pages, frames, frame_of, cleaned, chunks, .. } = shard;
        if self.recency {
            // Under an exact order they come first anyway.
            for page in std::mem::take(cleaned) {
                if victims.clean.len() == want {
                    cleaned.push(page);
                } else if let Sweep::Claimed(before) = table.entry(page).sweep(true, false) {
                    let frame = frames[frame_number(chunks, self.frame_stride, table.entry(page).address())];
                    evictor.removed(frame.index);
                    pages[frame.index as usize] = NO_PAGE;
                    victims.clean.push(Victim { page, frame, before });
                }
            }
        } else {
            cleaned.clear();
        }
        let still_wanted = want - victims.clean.len();
        // Clean pages are looked for behind dirty ones, but not through all of a large cache.
        let mut patience = DIRTY_PATIENCE.max(4 * want);
        evictor.victims(still_wanted, &mut |frame| {
            let page = pages[frame as usize];
            match table.entry(page).sweep(self.recency, victims.dirty.len() < want) {
                Sweep::SecondChance => Verdict::Referenced,
                Sweep::Busy => {
                    patience -= usize::from(victims.dirty.len() >= want);
                    if patience == 0 { Verdict::Stop } else { Verdict::Skip }
                }
                Sweep::Claimed(before) => {
                    victims.clean.push(Victim { page, frame: frames[frame as usize], before });
                    pages[frame as usize] = NO_PAGE;
                    frame_of.remove(&page);
                    Verdict::Take
                }
                Sweep::WriteBack(before) => {
                    victims.dirty.push(Victim { page, frame: frames[frame as usize], before });
                    Verdict::Skip
                }
            }
        });
        victims
    }

    /// Frees the frames of claimed pages; keeps one for the caller.
    fn free_clean(&self, table: &PageTable, clean: &[Victim]) -> Option<Frame> {
        quiesce_all(clean.iter().map(|v| (table.entry(v.page), v.before)), Access::All);
        for victim in clean {
            let entry = table.entry(victim.page);
            if entry.vacate(false) {
                unpark(entry);
            }
        }
        let (first, rest) = clean.split_first()?;
        self.counters.evictions.add(clean.len() as u64);
        if !rest.is_empty() {
            self.shard.lock().free.extend(rest.iter().map(|victim| victim.frame.index));
            self.freed.notify_all();
        }
        Some(first.frame)
    }

    /// Starts to write pages back that [`Sweep::WriteBack`] or `try_write_back` gave to the caller.
    ///
    /// On an error the pages are dirty as before and free for others.
    pub(crate) fn write_back(
        &self,
        table: &PageTable,
        dirty: &[Victim],
        purpose: Purpose,
    ) -> Result<Option<Ticket>> {
        if dirty.is_empty() {
            return Ok(None);
        }
        quiesce_all(dirty.iter().map(|v| (table.entry(v.page), v.before)), Access::Writes);
        let bytes = self.page_bytes as u64;
        let copies: Vec<Copy> =
            dirty.iter().map(|v| Copy::Upload { from: v.frame.host, to: self.home(v.page), bytes }).collect();
        let order = self.write_order.lock();
        let submitted = self.writes.submit(&copies);
        drop(order);
        match submitted {
            Ok(ticket) => {
                self.counters.submissions.add(1);
                self.counters.bytes_to_device.add(bytes * dirty.len() as u64);
                let pages = dirty.iter().map(|v| v.page).collect();
                let mut shard = self.shard.lock();
                let work = Work::WriteBack { pages, evicting: purpose == Purpose::Evict };
                shard.transfers.push(Transfer { ticket, work });
                // Under the lock, so that nobody finishes the transfer before: whoever sleeps for one of the pages is
                // to help now.
                for victim in dirty {
                    let entry = table.entry(victim.page);
                    if entry.mark_in_flight() {
                        unpark(entry);
                    }
                }
                Ok(Some(ticket))
            }
            Err(error) => {
                self.counters.failed_write_backs.add(dirty.len() as u64);
                self.shard.lock().write_error.get_or_insert_with(|| error.clone());
                for victim in dirty {
                    let entry = table.entry(victim.page);
                    if entry.end_write_back(false) {
                        unpark(entry);
                    }
                }
                Err(error.into())
            }
        }
    }

    /// Starts to load absent pages, with contents, that the caller has claimed. On an error the claims are gone and
    /// the frames given back.
    pub(crate) fn start_loads(&self, table: &PageTable, loads: &[(u64, Frame, Then)]) -> Result<Ticket> {
        let bytes = self.page_bytes as u64;
        let copies: Vec<Copy> = loads
            .iter()
            .map(|(page, frame, _)| Copy::Download { from: self.home(*page), to: frame.host, bytes })
            .collect();
        match self.fetches.submit(&copies) {
            Ok(ticket) => {
                self.counters.submissions.add(1);
                self.counters.bytes_from_device.add(bytes * loads.len() as u64);
                let mut shard = self.shard.lock();
                shard.transfers.extend(loads.iter().map(|&(page, frame, then)| Transfer {
                    ticket,
                    work: Work::Load { page, frame: frame.index, then },
                }));
                // Under the lock: see `write_back`.
                for (page, _, _) in loads {
                    let entry = table.entry(*page);
                    if entry.mark_in_flight() {
                        unpark(entry);
                    }
                }
                Ok(ticket)
            }
            Err(error) => {
                for (page, frame, _) in loads {
                    let entry = table.entry(*page);
                    if entry.vacate(false) {
                        unpark(entry);
                    }
                    self.put_back(*frame);
                }
                Err(error.into())
            }
        }
    }

    /// Waits for a ticket and finishes all transfers that it stands for, unless somebody else did.
    pub(crate) fn finish(&self, table: &PageTable, ticket: Ticket) -> Result<()> {
        let outcome = self.device.wait(ticket);
        let mut shard = self.shard.lock();
        self.complete(&mut shard, table, ticket, outcome.as_ref().err());
        drop(shard);
        outcome.map_err(Into::into)
    }

    /// As [`finish`](Self::finish), for whoever asked for the load of a page. The outcome is that which the load was
    /// finished with, by whomever.
    pub(crate) fn finish_load(&self, table: &PageTable, ticket: Ticket, page: u64) -> Result<()> {
        let outcome = self.device.wait(ticket);
        let mut shard = self.shard.lock();
        self.complete(&mut shard, table, ticket, outcome.as_ref().err());
        match shard.failed_loads.iter().position(|(of, failed, _)| (*of, *failed) == (ticket, page)) {
            Some(at) => Err(shard.failed_loads.swap_remove(at).2.into()),
            None => Ok(()),
        }
    }

    /// Finishes what is done already, without waiting.
    fn reap(&self, shard: &mut MutexGuard<'_, Shard<D>>, table: &PageTable) {
        // Queues are in order: behind the first pending ticket of a queue nothing is done.
        let mut pending: [Option<QueueId>; 2] = [None; 2];
        let mut last = None;
        let mut tickets: Vec<Ticket> = shard.transfers.iter().map(|t| t.ticket).collect();
        tickets.sort_unstable_by_key(|t| t.value);
        tickets.retain(|t| last.replace(*t) != Some(*t));
        for ticket in tickets {
            if pending.contains(&Some(ticket.queue)) {
                continue;
            }
            match self.device.poll(ticket) {
                Ok(Progress::Pending) => {
                    let free = pending.iter_mut().find(|queue| queue.is_none());
                    if let Some(queue) = free {
                        *queue = Some(ticket.queue);
                    }
                }
                outcome => self.complete(shard, table, ticket, outcome.as_ref().err()),
            }
        }
    }

    fn complete(
        &self,
        shard: &mut MutexGuard<'_, Shard<D>>,
        table: &PageTable,
        ticket: Ticket,
        error: Option<&backend_api::Error>,
    ) {
        let mut freed = false;
        let mut i = 0;
        while i < shard.transfers.len() {
            if shard.transfers[i].ticket != ticket {
                i += 1;
                continue;
            }
            match shard.transfers.swap_remove(i).work {
                Work::Load { page, frame, then } => {
                    let entry = table.entry(page);
                    let wake = if let Some(error) = error {
                        if then != Then::Release {
                            shard.failed_loads.push((ticket, page, error.clone()));
                        }
                        shard.release_frame(frame);
                        freed = true;
                        entry.vacate(false)
                    } else {
                        entry.install(shard.frames[frame as usize].address);
                        shard.adopt(page, frame, self.recency);
                        match then {
                            Then::Share(holder) => entry.downgrade(holder),
                            Then::Exclusive(holder) => entry.hold_exclusive(holder),
                            // Its first lap through the cache is free.
                            Then::Release => entry.release_exclusive(Holder::Pin, AHEAD | USED),
                        }
                    };
                    if wake {
                        unpark(entry);
                    }
                }
                Work::WriteBack { pages, evicting } => {
                    let count = pages.len() as u64;
                    match error {
                        None => self.counters.write_backs.add(count),
                        Some(error) => {
                            self.counters.failed_write_backs.add(count);
                            shard.write_error.get_or_insert_with(|| error.clone());
                        }
                    }
                    for page in &pages {
                        let entry = table.entry(*page);
                        if entry.end_write_back(error.is_none()) {
                            unpark(entry);
                        }
                    }
                    if evicting && error.is_none() {
                        shard.cleaned.extend(pages);
                    }
                }
            }
        }
        if freed || shard.transfers.is_empty() {
            self.freed.notify_all();
        }
    }

    /// A failure of a write-back that nobody has been told of.
    pub(crate) fn take_write_error(&self) -> Option<backend_api::Error> {
        self.shard.lock().write_error.take()
    }

    /// Waits for the transfer of a page that is in flight. Its outcome is told to whoever asked for it.
    pub(crate) fn help(&self, table: &PageTable, page: u64) {
        let ticket = self.shard.lock().transfers.iter().find(|t| t.concerns(page)).map(|t| t.ticket);
        match ticket {
            Some(ticket) => {
                self.counters.waits.add(1);
                // Kept for whoever asked for it.
                let _ = self.finish(table, ticket);
            }
            // Its owner is about to put it on record, or somebody finished it just now.
            None => std::thread::yield_now(),
        }
    }

    /// The pages of a range that have frames now, in ascending order; of those only the dirty ones if so wanted. All of
    /// that may change at once.
    pub(crate) fn resident_pages(
        &self,
        table: &PageTable,
        range: &std::ops::Range<u64>,
        only_dirty: bool,
    ) -> Vec<u64> {
        let shard = self.shard.lock();
        let wanted = |page: &u64| {
            let page = *page;
            page != NO_PAGE
                && range.contains(&page)
                && (!only_dirty || table.entry(page).state(Ordering::Acquire).any(DIRTY))
        };
        let mut pages: Vec<u64> = shard.pages.iter().copied().filter(wanted).collect();
        drop(shard);
        pages.sort_unstable();
        pages
    }

    /// Counts a guard on a frame of this channel. All frames but one, or the only one, can be guarded.
    pub(crate) fn admit_guard(&self) -> Result<()> {
        let mut shard = self.shard.lock();
        let limit = self.guard_limit(&shard);
        while shard.guards >= limit {
            if guards::held() {
                return Err(ErrorKind::TooManyGuards { channel: self.index, frames: u64::from(limit) }.into());
            }
            self.counters.waits.add(1);
            self.freed.wait(&mut shard);
        }
        shard.guards += 1;
        Ok(())
    }

    fn guard_limit(&self, shard: &Shard<D>) -> u32 {
        let frames = if shard.full { shard.frames.len() as u32 } else { self.frames_max };
        (frames - 1).max(1)
    }

    pub(crate) fn dismiss_guard(&self) {
        self.shard.lock().guards -= 1;
        self.freed.notify_all();
    }

    /// Fills home slots `slots` of this channel, whose pages the caller holds, with a pattern, and waits.
    pub(crate) fn fill_slots(&self, slots: std::ops::Range<u64>, pattern: &[u8]) -> Result<()> {
        let bytes = self.page_bytes as u64;
        let fill = Fill {
            to: self.slots.at(slots.start * bytes),
            bytes: (slots.end - slots.start) * bytes,
            pattern,
        };
        let order = self.write_order.lock();
        let ticket = self.writes.fill(&fill);
        drop(order);
        self.counters.submissions.add(1);
        Ok(self.device.wait(ticket?)?)
    }

    /// Runs device-side work on the fetch queue so that no write to a home slot overlaps with it.
    pub(crate) fn between_writes(
        &self,
        submit: impl FnOnce(&Queue<D>) -> backend_api::Result<Ticket>,
    ) -> backend_api::Result<Ticket> {
        let _order = self.write_order.lock();
        let last_write = self.writes.submit(&[])?;
        self.fetches.order_after(last_write)?;
        self.counters.submissions.add(1);
        let ticket = submit(&self.fetches)?;
        self.writes.order_after(ticket)?;
        Ok(ticket)
    }

    /// Reads `into.len()` bytes at an offset of a page's home slot, which the caller keeps from changing.
    pub(crate) fn read_home(&self, page: u64, offset: usize, into: &mut [u8]) -> Result<()> {
        let (host, address) = self.bounce_cell()?;
        let from = DeviceSpan { offset: self.home(page).offset + offset as u64, ..self.home(page) };
        let copy = Copy::Download { from, to: host, bytes: into.len() as u64 };
        self.counters.submissions.add(1);
        let result = self.fetches.submit(&[copy]).and_then(|ticket| self.device.wait(ticket));
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
        let to = DeviceSpan { offset: self.home(page).offset + offset as u64, ..self.home(page) };
        let copy = Copy::Upload { from: host, to, bytes: bytes.len() as u64 };
        let order = self.write_order.lock();
        let ticket = self.writes.submit(&[copy]);
        drop(order);
        self.counters.submissions.add(1);
        let result = ticket.and_then(|ticket| self.device.wait(ticket));
        if result.is_ok() {
            self.counters.bytes_to_device.add(bytes.len() as u64);
        }
        self.bounce.lock().free.push((host, address));
        Ok(result?)
    }

    fn bounce_cell(&self) -> Result<(HostSpan, *mut u8)> {
        const CELLS: usize = 16;
        if let Some(cell) = self.bounce.lock().free.pop() {
            return Ok(cell);
        }
        let kind = self.shard.lock().memory;
        let stride = self.cell_bytes;
        let chunk = HostBuffer::new(&self.device, CELLS * stride, kind);
        let chunk = match chunk {
            Err(_) if self.fall_back => HostBuffer::new(&self.device, CELLS * stride, HostMemory::Pageable)?,
            chunk => chunk?,
        };
        let cell = |i: usize| {
            // SAFETY: the chunk is `CELLS * stride` bytes long.
            let address = unsafe { chunk.address().as_ptr().add(i * stride) };
            (chunk.at((i * stride) as u64), address)
        };
        let mut bounce = self.bounce.lock();
        bounce.free.extend((1..CELLS).map(cell));
        let first = cell(0);
        bounce.chunks.push(chunk);
        Ok(first)
    }
}

impl<D: Device> Shard<D> {
    fn adopt(&mut self, page: u64, frame: u32, recency: bool) {
        self.pages[frame as usize] = page;
        self.evictor.inserted(frame, page);
        if !recency {
            self.frame_of.insert(page, frame);
        }
    }

    fn frame_at(&self, address: *mut u8, stride: usize) -> Frame {
        self.frames[frame_number(&self.chunks, stride, address)]
    }

    fn release_frame(&mut self, frame: u32) {
        self.pages[frame as usize] = NO_PAGE;
        self.free.push(frame);
    }
}

/// The number of the frame at an address that an entry names.
fn frame_number<D: Device>(chunks: &[HostBuffer<D>], stride: usize, address: *mut u8) -> usize {
    let mut first = 0;
    for chunk in chunks {
        let offset = address.addr().wrapping_sub(chunk.address().addr().get());
        if offset < chunk.bytes() {
            return first + offset / stride;
        }
        first += chunk.bytes() / stride;
    }
    unreachable!("entries name frames of their own channel only")
}

/// Sees to it that no lock-free access is under way that the earlier state of a page allowed. The caller holds the
/// page: exclusively for [`Access::All`], at least shared for [`Access::Writes`].
pub(crate) fn quiesce(entry: &Entry, before: State, access: Access) {
    quiesce_all(std::iter::once((entry, before)), access);
}

fn quiesce_all<'a>(pages: impl Iterator<Item = (&'a Entry, State)> + Clone, access: Access) {
    quiesce_by(pages, access, barrier_all, |entry| drain_all(entry, access));
}
