//! One channel (share of a device) of a source (program memory that devices process): slots for pages in
//! device memory, and the copies between these slots and the program's memory, which is a source's *home*.

use std::sync::Arc;

use backend_api::{Commit, Device, DeviceBuffer, Elements, HostSpan, Queue, Ticket, Transfer};
use parking_lot::Mutex;

use super::directory::{DirectoryEntry, ExclusivePage};
use super::home::HomeBytes;
use super::staging::Staging;
use crate::base::error::{Error, Result};
use crate::base::registered_memory::RegisteredMemory;
use crate::base::stats::Counters;
use crate::engine::channel::{DevicePlace, PinnedPiece, PinnedPool, SlotMemory};
use crate::engine::evict::{EvictionPolicy, Evictor, Verdict};
use crate::ops::executor::{Lane, RunAccess};

/// Bytes of one staging buffer.
const CHUNK_BYTES: usize = 8 << 20;
/// Maximum number of copies of a submission.
const BATCH: usize = 256;
/// Page number of a slot without a page.
const NO_PAGE: usize = usize::MAX;

/// Some blocks of a page that has a slot; one bit for each block.
#[derive(Clone, Copy, Debug)]
pub(super) struct PageBlocks {
    pub(super) page: usize,
    pub(super) slot: u32,
    pub(super) blocks: u64,
}

/// A range of bytes that is contiguous in the home and on the device.
#[derive(Clone, Copy, Debug)]
struct BlockPiece {
    home: usize,
    device: u64,
    bytes: usize,
}

#[derive(Debug)]
pub(super) struct SourceChannel {
    // Declared first, so that Rust drops the queues before the memory: the drop of a queue waits for its work
    // in this memory.
    uploads: Queue<dyn Device>,
    downloads: Queue<dyn Device>,
    kernels: Queue<dyn Device>,
    /// The handle of the registered home, which all channels of the device share.
    import: Option<Arc<RegisteredMemory>>,
    slots: SlotMemory,
    device: Arc<dyn Device>,
    page_bytes: usize,
    home: HomeBytes,
    /// The slots. A thread that holds several pages must hold this lock.
    pub(super) pool: Mutex<SlotPool>,
    /// Page-locked memory for results, single pages and staging buffers.
    pinned: Arc<PinnedPool>,
    pub(super) counters: Counters,
}

/// The slots of a channel, and the pages to which they are assigned.
#[derive(Debug)]
pub(super) struct SlotPool {
    /// The page of each slot.
    pages: Vec<usize>,
    /// True if the slot was used since the eviction policy last checked it.
    referenced: Vec<bool>,
    free: Vec<u32>,
    evictor: Evictor,
    pub(super) staging: Staging,
}

impl SlotPool {
    pub(super) fn slots(&self) -> usize {
        self.pages.len()
    }

    /// Records the use of a page's slot.
    pub(super) fn touched(&mut self, slot: u32) {
        self.referenced[slot as usize] = true;
        self.evictor.touched(slot);
    }

    /// Reports to the policy that a slot has a page.
    pub(super) fn policy_insert(&mut self, slot: u32, page: usize) {
        self.pages[slot as usize] = page;
        self.referenced[slot as usize] = false;
        self.evictor.inserted(slot, page as u64);
    }

    /// Frees the slot of a page.
    pub(super) fn policy_remove(&mut self, slot: u32) {
        self.evictor.removed(slot);
        self.pages[slot as usize] = NO_PAGE;
        self.free.push(slot);
    }

    /// Returns the pages that have slots.
    pub(super) fn tenants(&self) -> impl Iterator<Item = usize> + '_ {
        self.pages.iter().copied().filter(|&page| page != NO_PAGE)
    }
}

impl SourceChannel {
    pub(super) fn new(
        device: Arc<dyn Device>,
        slots: usize,
        home: HomeBytes,
        policy: EvictionPolicy,
        import: Option<Arc<RegisteredMemory>>,
        pinned: PinnedPool,
    ) -> Result<Self> {
        let page_bytes = home.cuts.page_len * home.element_bytes;
        let chunk_bytes = CHUNK_BYTES.min(slots * page_bytes).max(page_bytes);
        let pinned = Arc::new(pinned);
        let pool = SlotPool {
            pages: vec![NO_PAGE; slots],
            referenced: vec![false; slots],
            // In reverse order, because `allocate` takes slots (pages in device memory) from the end of the
            // list.
            free: (0..slots as u32).rev().collect(),
            evictor: Evictor::new(policy, slots),
            staging: Staging::new(&device, &pinned, chunk_bytes),
        };
        Ok(Self {
            uploads: Queue::new(&device)?,
            downloads: Queue::new(&device)?,
            kernels: Queue::new(&device)?,
            import,
            slots: SlotMemory::new(DeviceBuffer::new(&device, (slots * page_bytes) as u64, Commit::Lazy)?),
            device,
            page_bytes,
            home,
            pool: Mutex::new(pool),
            pinned,
            counters: Counters::default(),
        })
    }

    pub(super) fn kernels(&self) -> &Queue<dyn Device> {
        &self.kernels
    }

    /// Returns all slots as contiguous elements of the device.
    pub(super) fn all_elements(&self) -> Elements<'_> {
        let stride = self.home.element_bytes as u64;
        Elements { start: self.slots.at(0), count: self.slots.bytes() / stride, stride }
    }

    /// Returns the home's handle on the device, if the home is registered.
    pub(super) fn import(&self) -> Option<&RegisteredMemory> {
        self.import.as_deref()
    }

    pub(super) fn slot_bytes(&self) -> u64 {
        self.slots.bytes()
    }

    /// Returns the device address of an element of a slot.
    pub(super) fn place(&self, slot: u32, at: usize) -> DevicePlace {
        let offset = slot as u64 * self.page_bytes as u64 + (at * self.home.element_bytes) as u64;
        self.slots.at(offset)
    }

    fn pieces(&self, pages: &[PageBlocks]) -> Vec<BlockPiece> {
        let mut pieces: Vec<BlockPiece> = Vec::new();
        let HomeBytes { element_bytes, cuts, .. } = self.home;
        for &PageBlocks { page, slot, blocks } in pages {
            for range in cuts.ranges(page, blocks) {
                let piece = BlockPiece {
                    home: (page * cuts.page_len + range.start) * element_bytes,
                    device: self.place(slot, range.start).offset(),
                    bytes: range.len() * element_bytes,
                };
                match pieces.last_mut() {
                    Some(last)
                        if last.home + last.bytes == piece.home
                            && last.device + last.bytes as u64 == piece.device =>
                    {
                        last.bytes += piece.bytes;
                    }
                    _ => pieces.push(piece),
                }
            }
        }
        pieces
    }

    fn upload_of<'a>(&'a self, piece: &BlockPiece, from: HostSpan<'a>) -> Transfer<'a> {
        Transfer::Upload { from, to: self.slots.at(piece.device), bytes: piece.bytes as u64 }
    }

    fn download_of<'a>(&'a self, piece: &BlockPiece, to: HostSpan<'a>) -> Transfer<'a> {
        Transfer::Download { from: self.slots.at(piece.device), to, bytes: piece.bytes as u64 }
    }

    /// Starts copies of pieces from the device to a buffer, one after the other.
    fn download(&self, pieces: &[BlockPiece], buffer: &PinnedPiece) -> Result<Ticket> {
        let mut at = 0;
        let copy = |piece: &BlockPiece| {
            let to = buffer.at(at);
            at += piece.bytes as u64;
            self.download_of(piece, to)
        };
        self.submit(&self.downloads, &pieces.iter().map(copy).collect::<Vec<_>>())
    }

    fn submit(&self, queue: &Queue<dyn Device>, transfers: &[Transfer<'_>]) -> Result<Ticket> {
        self.counters.submissions.add(1);
        Ok(queue.submit(transfers)?)
    }

    /// Starts copies of blocks from the home to the device. The caller holds the pages. Appends the tickets
    /// of all started copies to `tickets`, also after an error.
    pub(super) fn fetch(
        &self,
        staging: &mut Staging,
        pages: &[PageBlocks],
        tickets: &mut Vec<Ticket>,
    ) -> Result<()> {
        let pieces = self.pieces(pages);
        if let Some(import) = &self.import {
            for batch in pieces.chunks(BATCH) {
                let copy = |piece: &BlockPiece| self.upload_of(piece, import.at(piece.home as u64));
                tickets.push(self.submit(&self.uploads, &batch.iter().map(copy).collect::<Vec<_>>())?);
            }
        } else {
            for batch in batches(&pieces, staging.chunk_bytes()) {
                let chunk = staging.next()?;
                let (mut at, mut transfers) = (0, Vec::with_capacity(batch.len()));
                for piece in &batch {
                    let buffer = staging.chunk(chunk);
                    self.home.read(piece.home, piece.bytes, (buffer, at));
                    transfers.push(self.upload_of(piece, buffer.at(at as u64)));
                    at += piece.bytes;
                }
                let ticket = self.submit(&self.uploads, &transfers)?;
                staging.busy(chunk, ticket);
                tickets.push(ticket);
            }
        }
        self.counters.bytes_to_device.add(pieces.iter().map(|piece| piece.bytes as u64).sum());
        Ok(())
    }

    /// Copies blocks from the device to the home, and waits. The caller holds the pages exclusively, and
    /// records the outcome. After an error some of the blocks may be copied.
    pub(super) fn bring_home(&self, staging: &mut Staging, pages: &[PageBlocks]) -> Result<()> {
        if let Some(done) = self.bring_home_directly(pages) {
            return done;
        }
        let pieces = self.pieces(pages);
        let land =
            |staging: &Staging, (ticket, chunk, batch): (Ticket, usize, Vec<BlockPiece>)| -> Result<()> {
                self.device.wait(ticket)?;
                self.land(staging.chunk(chunk), &batch);
                Ok(())
            };
        // This thread copies one batch from staging memory to the program's memory while the device copies
        // the next batch.
        let mut former = None;
        for batch in batches(&pieces, staging.chunk_bytes()) {
            let chunk = staging.next()?;
            let ticket = self.download(&batch, staging.chunk(chunk))?;
            staging.busy(chunk, ticket);
            if let Some(former) = former.replace((ticket, chunk, batch)) {
                land(staging, former)?;
            }
        }
        former.map_or(Ok(()), |last| land(staging, last))
    }

    /// Copies as [`bring_home`](Self::bring_home), but without staging memory, if the home is registered with
    /// the device. Otherwise returns `None`.
    pub(super) fn bring_home_directly(&self, pages: &[PageBlocks]) -> Option<Result<()>> {
        let (import, pieces) = (self.import.as_ref()?, self.pieces(pages));
        let copy = |piece: &BlockPiece| self.download_of(piece, import.at(piece.home as u64));
        let mut tickets = Vec::new();
        let submitted: Result<()> = pieces.chunks(BATCH).try_for_each(|batch| {
            tickets.push(self.submit(&self.downloads, &batch.iter().map(copy).collect::<Vec<_>>())?);
            Ok(())
        });
        // Wait for all copies even after an error, because none may be in flight when the function returns.
        let waits = tickets.into_iter().map(|ticket| self.device.wait(ticket).map_err(Error::from));
        let done = waits.fold(submitted, Result::and);
        if done.is_ok() {
            self.counters.bytes_from_device.add(pieces.iter().map(|piece| piece.bytes as u64).sum());
        }
        Some(done)
    }

    /// Copies pieces from a buffer to the home. The caller holds the pages exclusively, and no copy into the
    /// buffer is in flight.
    fn land(&self, buffer: &PinnedPiece, pieces: &[BlockPiece]) {
        let mut at = 0;
        for piece in pieces {
            self.home.write(piece.home, piece.bytes, (buffer, at));
            at += piece.bytes;
        }
        self.counters.bytes_from_device.add(at as u64);
    }

    /// Starts copies of a page's blocks from the device to a buffer, one after the other.
    pub(super) fn start_to_read(&self, page: PageBlocks) -> Result<(PinnedPiece, Ticket)> {
        let buffer = self.buffer(self.page_bytes)?;
        let ticket = self.download(&self.pieces(&[page]), &buffer)?;
        Ok((buffer, ticket))
    }

    /// Returns free slots in ascending order. If there are too few, evicts other pages, and copies their
    /// newer blocks to the home.
    ///
    /// The caller must hold few pages, so that the slots of other pages suffice.
    pub(super) fn allocate(
        &self,
        pool: &mut SlotPool,
        entries: &[DirectoryEntry],
        want: usize,
    ) -> Result<Vec<u32>> {
        let at_hand = pool.free.len().min(want);
        let mut slots = pool.free.split_off(pool.free.len() - at_hand);
        while slots.len() < want {
            let victims = self.victims(pool, entries, want - slots.len());
            if victims.is_empty() {
                // Other threads hold the pages of all remaining slots (in device memory), each for a moment,
                // so let them run.
                std::thread::yield_now();
            } else if let Err(error) = self.evict(pool, entries, victims, &mut slots) {
                pool.free.append(&mut slots);
                return Err(error);
            }
        }
        slots.sort_unstable();
        Ok(slots)
    }

    fn victims<'e>(
        &self,
        pool: &mut SlotPool,
        entries: &'e [DirectoryEntry],
        want: usize,
    ) -> Vec<(u32, ExclusivePage<'e>)> {
        let mut victims = Vec::new();
        let SlotPool { pages, referenced, evictor, .. } = pool;
        evictor.victims(want, &mut |slot| {
            if std::mem::take(&mut referenced[slot as usize]) {
                return Verdict::Referenced;
            }
            match entries[pages[slot as usize]].try_take() {
                Some(guard) => {
                    victims.push((slot, guard));
                    Verdict::Take
                }
                None => Verdict::Skip,
            }
        });
        victims
    }

    fn evict(
        &self,
        pool: &mut SlotPool,
        entries: &[DirectoryEntry],
        victims: Vec<(u32, ExclusivePage<'_>)>,
        slots: &mut Vec<u32>,
    ) -> Result<()> {
        let of = |slot: u32, pool: &SlotPool| pool.pages[slot as usize];
        let mut dirty: Vec<PageBlocks> = victims
            .iter()
            .map(|&(slot, _)| (slot, of(slot, pool)))
            .map(|(slot, page)| PageBlocks { page, slot, blocks: entries[page].dirty() })
            .filter(|page| page.blocks != 0)
            .collect();
        dirty.sort_unstable_by_key(|page| page.page);
        if let Err(error) = self.bring_home(&mut pool.staging, &dirty) {
            self.counters.failed_write_backs.add(dirty.len() as u64);
            for (slot, _) in &victims {
                pool.evictor.inserted(*slot, of(*slot, pool) as u64);
            }
            return Err(error);
        }
        self.counters.write_backs.add(dirty.len() as u64);
        self.counters.evictions.add(victims.len() as u64);
        for (slot, _guard) in &victims {
            let entry = &entries[of(*slot, pool)];
            entry.invalidate(u64::MAX);
            entry.place(None);
            pool.pages[*slot as usize] = NO_PAGE;
            slots.push(*slot);
        }
        Ok(())
    }
}

impl Lane for SourceChannel {
    fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }

    fn buffer(&self, bytes: usize) -> Result<PinnedPiece> {
        self.pinned.take(bytes)
    }

    fn keep(&self, buffer: PinnedPiece) {
        self.pinned.put(buffer);
    }

    fn submit(
        &self,
        _: RunAccess,
        work: &mut dyn FnMut(&Queue<dyn Device>) -> backend_api::Result<Ticket>,
    ) -> backend_api::Result<Ticket> {
        work(&self.kernels)
    }
}

/// Divides pieces into batches of at most `most_bytes` bytes.
fn batches(pieces: &[BlockPiece], most_bytes: usize) -> Vec<Vec<BlockPiece>> {
    let (mut batches, mut room) = (Vec::new(), 0);
    for mut piece in pieces.iter().copied() {
        while piece.bytes > 0 {
            if room == 0 || batches.last().is_none_or(|batch: &Vec<BlockPiece>| batch.len() == BATCH) {
                batches.push(Vec::new());
                room = most_bytes;
            }
            let bytes = piece.bytes.min(room);
            if let Some(batch) = batches.last_mut() {
                batch.push(BlockPiece { bytes, ..piece });
            }
            room -= bytes;
            piece = BlockPiece {
                home: piece.home + bytes,
                device: piece.device + bytes as u64,
                bytes: piece.bytes - bytes,
            };
        }
    }
    batches
}
