//! Device memory in a file whose pages a tier caches on GPUs: selects cache or file for each read and write.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use backend_api::{Elements, Gather, Result, Ticket, Transfer, racy};
use vmarray_support::warn;

use super::Cards;
use super::card::{LANE_BYTES, LaneGuard, OwnedSlot, Reading, TierCard, TierLane};
use super::map::{PageMap, TierSlot};
use backend_host::parts::{Passage, ReadRange, Storage, Wiping};

/// Maximum length in bytes of elements that a kernel of the GPU gathers; copies collect longer ones.
const GATHERED_BYTES_MAX: usize = 1024;
/// Minimum length in bytes of an update on a GPU, except for whole pages. A shorter write evicts the page,
/// and the next read caches it again.
const UPDATED_BYTES_LEAST: usize = 4096;
/// Maximum number of parts of one look-up.
const PARTS_MAX: usize = 1 << 14;

/// Memory in a file, with an optional cache on GPUs.
///
/// Writes first copy host memory to a private buffer. Otherwise the program could change its memory during
/// the copy, and file and GPU could receive different bytes.
#[derive(Debug)]
pub(crate) struct Tiered<M> {
    below: M,
    above: Option<Above>,
}

#[derive(Debug)]
struct Above {
    cards: Arc<Cards>,
    map: Arc<PageMap>,
    wiping: Arc<Wiping>,
}

/// A part of a page to read or write.
#[derive(Clone, Copy, Debug)]
struct Part {
    page: u64,
    /// Byte offset in the page.
    skip: usize,
    bytes: usize,
    /// Address in host memory.
    host: *mut u8,
}

/// A part whose page is cached; the thread counts as a reader of its slot.
type Hit<'a> = (Reading<'a>, Part);

/// A part whose page the thread is about to copy to a GPU.
type Load<'a> = (Claim<'a>, Part);

/// The right to copy a page to a GPU, given up on drop.
struct Claim<'a> {
    map: &'a PageMap,
    page: u64,
    number: u32,
    is_used: bool,
}

impl Claim<'_> {
    /// Records that a slot caches the page; returns true if the page still matches the file.
    fn loaded(mut self, slot: TierSlot) -> bool {
        self.is_used = true;
        self.map.with(self.page, |entry| entry.loaded(self.number, slot))
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        if !self.is_used {
            self.map.with(self.page, |entry| entry.abandon(self.number));
        }
    }
}

/// A write to a page in progress, ended on drop.
struct Write<'a> {
    map: &'a PageMap,
    part: Part,
    number: u32,
    /// The slot that cached the page before the write.
    taken: Option<OwnedSlot<'a>>,
    /// True if the slot contains the written bytes.
    is_in_slot: bool,
}

impl Drop for Write<'_> {
    fn drop(&mut self) {
        let slot = self.taken.as_ref().filter(|_| self.is_in_slot).map(OwnedSlot::slot);
        if self.map.with(self.part.page, |entry| entry.end_write(self.number, slot))
            && let Some(taken) = self.taken.take()
        {
            taken.settle();
        }
    }
}

/// A request to a GPU, and the parts of pages that it reads.
struct Fetch<'a> {
    /// Host memory of the request, offset in it, and ticket.
    asked: Result<(LaneGuard<'a>, usize, Ticket)>,
    hits: Vec<Hit<'a>>,
}

impl<'a> Fetch<'a> {
    /// Submits requests to all GPUs, without waiting for them.
    fn begin(mut hits: Vec<Hit<'a>>) -> Vec<Self> {
        hits.sort_by_key(|(reading, _)| reading.card.number());
        let mut fetches = Vec::new();
        while let Some((last, _)) = hits.last() {
            let number = last.card.number();
            let hits = hits.split_off(hits.partition_point(|(reading, _)| reading.card.number() < number));
            fetches.push(Self { asked: Self::ask(&hits), hits });
        }
        fetches
    }

    /// Submits one request for parts of pages of one GPU. The lane's memory receives the parts consecutively.
    fn ask(hits: &[Hit<'a>]) -> Result<(LaneGuard<'a>, usize, Ticket)> {
        let card = hits[0].0.card;
        let lane = card.lane()?;
        let length = card.page_bytes();
        if card.is_checked() {
            let copies = hits.iter().enumerate().map(|(number, (reading, _))| Transfer::Download {
                from: card.memory().at(card.offset(reading.at)),
                to: lane.host.at((number * length) as u64),
                bytes: length as u64,
            });
            let ticket = lane.queue.submit(&copies.collect::<Vec<_>>())?;
            return Ok((lane, 0, ticket));
        }
        let bytes = hits[0].1.bytes;
        let is_even = |part: &Part| part.bytes == bytes && part.skip.is_multiple_of(bytes);
        let is_list = hits.len() > 1 && bytes <= GATHERED_BYTES_MAX && length.is_multiple_of(bytes);
        let start = hits.len() * size_of::<u64>();
        if is_list
            && start + hits.len() * bytes <= lane.host.bytes()
            && hits.iter().all(|hit| is_even(&hit.1))
        {
            let index =
                |(reading, part): &Hit<'a>| (card.offset(reading.at) + part.skip as u64) / bytes as u64;
            let indices: Vec<u64> = hits.iter().map(index).collect();
            lane.host.write(0, bytemuck::cast_slice(&indices));
            let count = card.memory().bytes() / bytes as u64;
            let elements = Elements { start: card.memory().at(0), count, stride: bytes as u64 };
            let (indices, values) = (lane.host.at(0), lane.host.at(start as u64));
            let gather = Gather { elements: elements.into(), indices, count: hits.len() as u64, values };
            let ticket = lane.queue.submit(&gather)?;
            return Ok((lane, start, ticket));
        }
        let mut done = 0;
        let copies = hits.iter().map(|(reading, part)| {
            let from = card.memory().at(card.offset(reading.at) + part.skip as u64);
            let copy = Transfer::Download { from, to: lane.host.at(done), bytes: part.bytes as u64 };
            done += part.bytes as u64;
            copy
        });
        let ticket = lane.queue.submit(&copies.collect::<Vec<_>>())?;
        Ok((lane, 0, ticket))
    }

    /// Waits for the GPU and copies its parts to their targets; if the GPU fails, reads them from the file.
    ///
    /// # Safety
    /// As [`Storage::read_all`] for the parts.
    unsafe fn finish<M: Storage>(self, operation: &'static str, above: &Above, below: &M) -> Result<()> {
        let card = self.hits[0].0.card;
        let waited = self.asked.and_then(|(lane, start, ticket)| {
            card.device().wait(ticket)?;
            Ok((lane, start))
        });
        match waited {
            Ok((lane, _)) if card.is_checked() => {
                // SAFETY: the caller has the same obligations.
                unsafe { hand_over_checked(&self.hits, &lane, operation, above, below) }
            }
            Ok((lane, mut from)) => {
                for (_, part) in &self.hits {
                    // SAFETY: the lane's memory holds all parts consecutively; the caller guarantees the
                    // target.
                    unsafe { racy::copy(lane.host.address().as_ptr().add(from), part.host, part.bytes) };
                    from += part.bytes;
                }
                Ok(())
            }
            Err(error) => {
                card.lose(&error);
                let wanted: Vec<ReadRange> = self.hits.iter().map(|(_, part)| above.wanted(part)).collect();
                // SAFETY: the caller has the same obligations.
                unsafe { below.read_all(operation, &wanted) }
            }
        }
    }
}

impl<M: Storage> Tiered<M> {
    /// Creates device memory that caches pages of `below` on these GPUs.
    pub fn new(below: M, cards: Option<&Arc<Cards>>, wiping: &Arc<Wiping>) -> Self {
        let above = cards.map(|cards| Above {
            cards: Arc::clone(cards),
            map: PageMap::new(),
            wiping: Arc::clone(wiping),
        });
        Self { below, above }
    }

    /// Returns the memory in the file, without the cache on GPUs.
    pub fn below(&self) -> &M {
        &self.below
    }

    /// Reads parts of pages, at most as many bytes as the memory of a lane has.
    ///
    /// # Safety
    /// As [`Storage::read_all`] for the parts.
    unsafe fn read_parts(&self, operation: &'static str, above: &Above, parts: &[Part]) -> Result<()> {
        let (hits, loads, others) = above.look(self.below.bytes(), parts);
        let fetches = Fetch::begin(hits);
        // Read the other parts from the file while the GPUs copy.
        let mut outcome = if others.is_empty() {
            Ok(())
        } else {
            // SAFETY: these are parts of the caller's parts.
            unsafe { self.below.read_all(operation, &joined(others)) }
        };
        if outcome.is_ok() && !loads.is_empty() {
            // SAFETY: these are parts of the caller's parts.
            outcome = unsafe { self.load(operation, above, loads) };
        }
        for fetch in fetches {
            // SAFETY: these are parts of the caller's parts.
            outcome = outcome.and(unsafe { fetch.finish(operation, above, &self.below) });
        }
        outcome
    }

    /// Reads parts of uncached pages from the file, and copies the pages to GPUs.
    ///
    /// # Safety
    /// As [`Storage::read_all`] for the parts.
    unsafe fn load(&self, operation: &'static str, above: &Above, loads: Vec<Load<'_>>) -> Result<()> {
        let (mut placed, mut others) = (Vec::new(), Vec::new());
        for (claim, part) in loads {
            match above.cards.take(&above.map, part.page) {
                Some(taken) => placed.push((taken, claim, part)),
                None => others.push(above.wanted(&part)),
            }
        }
        placed.sort_by_key(|(taken, ..)| taken.slot().card);
        // SAFETY: the caller has the same obligations.
        let mut outcome = unsafe { self.below.read_all(operation, &others) };
        while let Some((last, ..)) = placed.last() {
            let card = last.card;
            let first = placed.partition_point(|(taken, ..)| taken.slot().card < card.number());
            let some = placed.split_off(first.max(placed.len().saturating_sub(card.lane_pages())));
            // SAFETY: the caller has the same obligations.
            outcome = outcome.and_then(|()| unsafe { self.load_to(operation, above, card, some) });
        }
        outcome
    }

    /// Reads pages into the memory of a lane, which is long enough, and copies them to its GPU.
    ///
    /// # Safety
    /// As [`Storage::read_all`] for the parts.
    unsafe fn load_to(
        &self,
        operation: &'static str,
        above: &Above,
        card: &TierCard,
        loads: Vec<(OwnedSlot<'_>, Claim<'_>, Part)>,
    ) -> Result<()> {
        let length = card.page_bytes();
        let as_they_are = |loads: &[(OwnedSlot<'_>, Claim<'_>, Part)]| {
            let wanted: Vec<ReadRange> = loads.iter().map(|(.., part)| above.wanted(part)).collect();
            // SAFETY: the caller has the same obligations.
            unsafe { self.below.read_all(operation, &wanted) }
        };
        let lane = match card.lane() {
            Ok(lane) => lane,
            Err(error) => {
                card.lose(&error);
                return as_they_are(&loads);
            }
        };
        // SAFETY: `lane_pages` is the number of pages that fit in the memory.
        let at = |number: usize| unsafe { lane.host.address().as_ptr().add(number * length) };
        let whole = loads.iter().enumerate().map(|(number, (.., part))| ReadRange {
            offset: part.page * length as u64,
            to: at(number),
            bytes: length,
        });
        let whole = joined(whole);
        // SAFETY: these are whole pages of the memory below, and the lane belongs to this thread.
        if unsafe { self.below.read_all(operation, &whole) }.is_err() {
            // After a failed read, read only the requested parts, which may be readable.
            return as_they_are(&loads);
        }
        for (number, (.., part)) in loads.iter().enumerate() {
            // SAFETY: the part is inside its page; the caller guarantees the target.
            unsafe { racy::copy(at(number).add(part.skip), part.host, part.bytes) };
        }
        if card.is_checked() {
            let mut page = Passage(vec![0; length]);
            for (number, (taken, ..)) in loads.iter().enumerate() {
                lane.host.read(number * length, &mut page.0);
                taken.expect(&page.0);
            }
        }
        let copies = loads.iter().enumerate().map(|(number, (taken, ..))| Transfer::Upload {
            from: lane.host.at((number * length) as u64),
            to: card.memory().at(card.offset(taken.at)),
            bytes: length as u64,
        });
        let copied = lane.queue.submit(&copies.collect::<Vec<_>>());
        if let Err(error) = copied.and_then(|ticket| card.device().wait(ticket)) {
            card.lose(&error);
            return Ok(());
        }
        for (taken, claim, _) in loads {
            if claim.loaded(taken.slot()) {
                taken.settle();
                above.cards.counts.admitted.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Writes consecutive parts of pages, at most as many bytes as the memory of a lane has.
    ///
    /// # Safety
    /// As [`Storage::write`] for the parts.
    unsafe fn write_parts(&self, operation: &'static str, above: &Above, parts: &[Part]) -> Result<()> {
        let Some(first) = parts.first() else { return Ok(()) };
        let (offset, bytes) = (above.offset(first), parts.iter().map(|part| part.bytes).sum());
        let mut writes: Vec<Write<'_>> = parts.iter().map(|part| above.begin_write(*part)).collect();
        if writes.iter().all(|write| write.taken.is_none()) {
            // SAFETY: the caller has the same obligations.
            return unsafe { self.below.write(operation, offset, first.host, bytes) };
        }
        let mut stable = Passage(vec![0; bytes]);
        // SAFETY: the caller guarantees the source.
        unsafe { racy::read(first.host, &mut stable.0) };
        // SAFETY: the caller guarantees the target.
        unsafe { self.below.store(operation, offset, &stable.0) }?;
        for card in &above.cards.cards {
            let mut done = 0;
            let mut own = Vec::new();
            for write in &mut writes {
                let from = done;
                done += write.part.bytes;
                if write.taken.as_ref().is_some_and(|taken| taken.slot().card == card.number()) {
                    own.push((write, &stable.0[from..done]));
                }
            }
            if own.is_empty() || card.is_lost() {
                continue;
            }
            match update(card, &own) {
                Ok(()) => own.iter_mut().for_each(|(write, _)| write.is_in_slot = true),
                Err(error) => card.lose(&error),
            }
        }
        Ok(())
    }
}

/// Verifies the pages in a lane's memory and copies the parts of correct pages to their targets. Reads the
/// other parts from the file, and removes their pages from the GPU.
///
/// # Safety
/// As [`Storage::read_all`] for the parts.
unsafe fn hand_over_checked<M: Storage>(
    hits: &[Hit<'_>],
    lane: &TierLane,
    operation: &'static str,
    above: &Above,
    below: &M,
) -> Result<()> {
    let mut page = Passage(vec![0; above.cards.page_bytes]);
    let mut damaged = Vec::new();
    for (number, (reading, part)) in hits.iter().enumerate() {
        lane.host.read(number * page.0.len(), &mut page.0);
        if reading.is_sound(&page.0) {
            // SAFETY: the caller guarantees the target.
            unsafe { racy::write(part.host, &page.0[part.skip..part.skip + part.bytes]) };
            continue;
        }
        let slot = TierSlot { card: reading.card.number(), at: reading.at };
        above.map.with(part.page, |entry| {
            if entry.leave(slot) {
                // `take_left` returns `None`, because this thread still reads the slot (GPU memory). The last
                // reader releases the slot.
                let taken = reading.card.take_left(slot.at);
                debug_assert!(taken.is_none());
            }
        });
        damaged.push(above.wanted(part));
        above.cards.counts.damaged.fetch_add(1, Ordering::Relaxed);
        let (page, device) = (part.page, reading.card.device().info());
        warn::warn(format!(
            "the copy of page {page} of a file on {device} is damaged; the page is read from the file again"
        ));
    }
    // SAFETY: the caller has the same obligations.
    unsafe { below.read_all(operation, &damaged) }
}

fn joined(ranges: impl IntoIterator<Item = ReadRange>) -> Vec<ReadRange> {
    let mut joined = Vec::<ReadRange>::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if last.is_before(&range) => last.bytes += range.bytes,
            _ => joined.push(range),
        }
    }
    joined
}

/// Updates slots of a GPU with the bytes written to their pages.
fn update(card: &TierCard, writes: &[(&mut Write<'_>, &[u8])]) -> Result<()> {
    let lane = card.lane()?;
    let mut done = 0;
    let copies = writes.iter().filter_map(|(write, bytes)| {
        lane.host.write(done, bytes);
        let taken = write.taken.as_ref()?;
        if card.is_checked() {
            taken.expect(bytes);
        }
        let to = card.memory().at(card.offset(taken.at) + write.part.skip as u64);
        let copy = Transfer::Upload { from: lane.host.at(done as u64), to, bytes: bytes.len() as u64 };
        done += bytes.len();
        Some(copy)
    });
    card.device().wait(lane.queue.submit(&copies.collect::<Vec<_>>())?)
}

impl Above {
    fn offset(&self, part: &Part) -> u64 {
        part.page * self.cards.page_bytes as u64 + part.skip as u64
    }

    fn wanted(&self, part: &Part) -> ReadRange {
        ReadRange { offset: self.offset(part), to: part.host, bytes: part.bytes }
    }

    /// Divides ranges at page boundaries, and calls `work` with as many parts as a lane can process.
    fn in_parts(
        &self,
        ranges: impl Iterator<Item = ReadRange>,
        mut work: impl FnMut(&[Part]) -> Result<()>,
    ) -> Result<()> {
        let length = self.cards.page_bytes;
        let most = LANE_BYTES.max(length);
        let parts_most = if self.cards.is_checked { most / length } else { PARTS_MAX };
        let (mut parts, mut sum) = (Vec::new(), 0);
        for range in ranges {
            let mut done = 0;
            while done < range.bytes {
                let at = range.offset + done as u64;
                let (page, skip) = (at / length as u64, (at % length as u64) as usize);
                let bytes = (length - skip).min(range.bytes - done);
                if sum + bytes > most || parts.len() == parts_most {
                    work(&parts)?;
                    (sum, _) = (0, parts.clear());
                }
                parts.push(Part { page, skip, bytes, host: range.to.wrapping_add(done) });
                sum += bytes;
                done += bytes;
            }
        }
        work(&parts)
    }

    /// Looks up parts in the page table. Returns cached parts, parts of pages to cache, and other ranges.
    fn look(&self, bytes: u64, parts: &[Part]) -> (Vec<Hit<'_>>, Vec<Load<'_>>, Vec<ReadRange>) {
        let (mut hits, mut loads, mut others) = (Vec::new(), Vec::new(), Vec::new());
        let now = self.cards.now();
        for (number, &part) in parts.iter().enumerate() {
            // Never cache the incomplete page at the end of growing memory: GPU memory would not record where
            // it ends.
            let is_whole = (part.page + 1) * self.cards.page_bytes as u64 <= bytes;
            let found = self.map.with(part.page, |entry| {
                if let Some(slot) = entry.slot() {
                    let card = &self.cards.cards[slot.card as usize];
                    if !card.is_lost() {
                        return Ok(card.enter(slot.at));
                    }
                    entry.leave(slot);
                }
                Err(if is_whole && self.cards.wants(entry, now, number) { entry.claim() } else { None })
            });
            match found {
                Ok(reading) => hits.push((reading, part)),
                Err(Some(number)) => {
                    let claim = Claim { map: &self.map, page: part.page, number, is_used: false };
                    loads.push((claim, part));
                }
                Err(None) => others.push(self.wanted(&part)),
            }
        }
        self.cards.count(hits.len(), parts.len() - hits.len());
        (hits, loads, others)
    }

    fn begin_write(&self, part: Part) -> Write<'_> {
        let (number, taken) = self.map.with(part.page, |entry| {
            let (number, slot) = entry.begin_write();
            let card = |slot: TierSlot| (&self.cards.cards[slot.card as usize], slot.at);
            let taken = slot.map(card).filter(|(card, _)| !card.is_lost());
            (number, taken.and_then(|(card, at)| card.take_left(at)))
        });
        let length = self.cards.page_bytes;
        // With checksums, update only whole pages, because a checksum covers a whole page.
        let least = if self.cards.is_checked { length } else { UPDATED_BYTES_LEAST.min(length) };
        let taken = taken.filter(|_| part.bytes >= least);
        Write { map: &self.map, part, number, taken, is_in_slot: false }
    }
}

impl Drop for Above {
    fn drop(&mut self) {
        for slot in self.map.clear() {
            self.cards.cards[slot.card as usize].give_back(slot.at);
        }
        if self.wiping.is_on() {
            for card in self.cards.in_use() {
                if let Err(error) = card.wipe_free() {
                    warn::not_wiped("memory", card.device().info(), &error);
                }
            }
        }
    }
}

impl<M: Storage> Storage for Tiered<M> {
    const BLOCK_BYTES: usize = M::BLOCK_BYTES;
    const SPARSE_STRIDE_BYTES: usize = M::SPARSE_STRIDE_BYTES;

    fn bytes(&self) -> u64 {
        self.below.bytes()
    }

    fn unit_bytes(&self) -> u64 {
        self.below.unit_bytes()
    }

    fn address(&self) -> Option<*mut u8> {
        // Return no address if GPUs cache pages, because direct writes would bypass the cache.
        self.below.address().filter(|_| self.above.is_none())
    }

    fn announce(&self, offset: u64, bytes: usize) {
        if self.above.is_none() {
            self.below.announce(offset, bytes);
        }
    }

    unsafe fn read_into(&self, operation: &'static str, offset: u64, into: &mut [u8]) -> Result<()> {
        if self.above.is_none() {
            // SAFETY: the caller has the same obligations.
            return unsafe { self.below.read_into(operation, offset, into) };
        }
        // SAFETY: the caller has the same obligations; memory of the program is not memory of a device.
        unsafe { self.read(operation, offset, into.as_mut_ptr(), into.len()) }
    }

    fn reads_together(&self) -> bool {
        self.above.is_some() || self.below.reads_together()
    }

    unsafe fn read(&self, operation: &'static str, offset: u64, to: *mut u8, bytes: usize) -> Result<()> {
        if self.above.is_none() {
            // SAFETY: the caller has the same obligations.
            return unsafe { self.below.read(operation, offset, to, bytes) };
        }
        // SAFETY: the caller has the same obligations.
        unsafe { self.read_all(operation, &[ReadRange { offset, to, bytes }]) }
    }

    unsafe fn read_all(&self, operation: &'static str, wanted: &[ReadRange]) -> Result<()> {
        let Some(above) = &self.above else {
            // SAFETY: the caller has the same obligations.
            return unsafe { self.below.read_all(operation, wanted) };
        };
        above.in_parts(wanted.iter().copied(), |parts| {
            // SAFETY: the caller has the same obligations, for parts of its ranges.
            unsafe { self.read_parts(operation, above, parts) }
        })
    }

    unsafe fn write(
        &self,
        operation: &'static str,
        offset: u64,
        from: *const u8,
        bytes: usize,
    ) -> Result<()> {
        let Some(above) = &self.above else {
            // SAFETY: the caller has the same obligations.
            return unsafe { self.below.write(operation, offset, from, bytes) };
        };
        let range = ReadRange { offset, to: from.cast_mut(), bytes };
        above.in_parts(std::iter::once(range), |parts| {
            // SAFETY: the caller has the same obligations, for parts of its range; `write_parts` only reads
            // from `to`.
            unsafe { self.write_parts(operation, above, parts) }
        })
    }
}
