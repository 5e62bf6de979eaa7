//! Memory in a file, of which cards have pages.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use backend_api::{Elements, Gather, Result, Ticket, Transfer, racy, tell};

use super::Cards;
use super::card::{Card, LANE_BYTES, Lane, LaneGuard, Reading, Taken};
use super::map::{PageMap, Slot};
use crate::medium::{Medium, Wanted};
use crate::memory::{Passage, Wiping};

/// Elements shorter than this are collected by a kernel of the card, longer ones by copies.
const GATHERED_BYTES_MAX: usize = 1024;
/// Of what is written a card gets this much, or whole pages. Less is not worth a copy: the page leaves the
/// card, and comes back when it is read.
const UPDATED_BYTES_LEAST: usize = 4096;
/// So many parts are looked up at a time, at most.
const PARTS_MAX: usize = 1 << 14;

/// Memory, and pages of it on cards, if there is a tier.
///
/// Bytes on their way to a card go through memory of this type's own first: host memory of the program may
/// change while it is copied, and file and card could get different bytes of it.
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

/// A part of a page that is to be read or written.
#[derive(Clone, Copy, Debug)]
struct Part {
    page: u64,
    /// Where it begins in the page.
    skip: usize,
    bytes: usize,
    /// Where it is in host memory.
    host: *mut u8,
}

/// A part whose page is in a slot that the thread reads from.
type Hit<'a> = (Reading<'a>, Part);

/// A part whose page the thread is about to copy to a card.
type Load<'a> = (Claim<'a>, Part);

/// The right to load a page, given up when it is dropped.
struct Claim<'a> {
    map: &'a PageMap,
    page: u64,
    number: u32,
    is_used: bool,
}

impl Claim<'_> {
    /// Says that the page is in a slot; whether it still is what the file has.
    fn loaded(mut self, slot: Slot) -> bool {
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

/// A write to a page that is under way; over when this is dropped.
struct Write<'a> {
    map: &'a PageMap,
    part: Part,
    number: u32,
    /// The slot that had the page.
    taken: Option<Taken<'a>>,
    /// Whether the slot has what was written.
    is_in_slot: bool,
}

impl Drop for Write<'_> {
    fn drop(&mut self) {
        let slot = self.taken.as_ref().filter(|_| self.is_in_slot).map(Taken::slot);
        if self.map.with(self.part.page, |entry| entry.end_write(self.number, slot))
            && let Some(taken) = self.taken.take()
        {
            taken.settle();
        }
    }
}

/// What a card was asked for, and for whom.
struct Fetch<'a> {
    /// The memory that it copies to, from where on, and the ticket.
    asked: Result<(LaneGuard<'a>, usize, Ticket)>,
    hits: Vec<Hit<'a>>,
}

impl<'a> Fetch<'a> {
    /// Asks each card for what it has; nobody waits yet.
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

    /// Asks one card for parts of its pages, which get a place in the lane's memory one after the other.
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
            let ticket = lane.queue.gather(&gather)?;
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

    /// Waits for the card, and hands over what it has copied; asks the file if the card fails.
    ///
    /// # Safety
    /// As [`Medium::read_all`] for the parts.
    unsafe fn finish<M: Medium>(self, operation: &'static str, above: &Above, below: &M) -> Result<()> {
        let card = self.hits[0].0.card;
        let waited = self.asked.and_then(|(lane, start, ticket)| {
            card.device().wait(ticket)?;
            Ok((lane, start))
        });
        match waited {
            Ok((lane, _)) if card.is_checked() => {
                // SAFETY: passed on.
                unsafe { hand_over_checked(&self.hits, &lane, operation, above, below) }
            }
            Ok((lane, mut from)) => {
                for (_, part) in &self.hits {
                    // SAFETY: the lane's memory has all parts, one after the other; the caller vouches for
                    // the target.
                    unsafe { racy::copy(lane.host.address().as_ptr().add(from), part.host, part.bytes) };
                    from += part.bytes;
                }
                Ok(())
            }
            Err(error) => {
                card.lose(&error);
                let wanted: Vec<Wanted> = self.hits.iter().map(|(_, part)| above.wanted(part)).collect();
                // SAFETY: passed on.
                unsafe { below.read_all(operation, &wanted) }
            }
        }
    }
}

impl<M: Medium> Tiered<M> {
    /// Memory of which pages may be on these cards.
    pub fn new(below: M, cards: Option<&Arc<Cards>>, wiping: &Arc<Wiping>) -> Self {
        let above = cards.map(|cards| Above {
            cards: Arc::clone(cards),
            map: PageMap::new(),
            wiping: Arc::clone(wiping),
        });
        Self { below, above }
    }

    /// The memory in the file.
    pub fn below(&self) -> &M {
        &self.below
    }

    /// Reads parts of pages, no more bytes than a lane has.
    ///
    /// # Safety
    /// As [`Medium::read_all`] for the parts.
    unsafe fn read_parts(&self, operation: &'static str, above: &Above, parts: &[Part]) -> Result<()> {
        let (hits, loads, others) = above.look(self.below.bytes(), parts);
        let fetches = Fetch::begin(hits);
        // The drive is asked while the cards copy.
        let mut outcome = if others.is_empty() {
            Ok(())
        } else {
            // SAFETY: these are parts.
            unsafe { self.below.read_all(operation, &joined(others)) }
        };
        if outcome.is_ok() && !loads.is_empty() {
            // SAFETY: these are parts.
            outcome = unsafe { self.load(operation, above, loads) };
        }
        for fetch in fetches {
            // SAFETY: these are parts.
            outcome = outcome.and(unsafe { fetch.finish(operation, above, &self.below) });
        }
        outcome
    }

    /// Reads parts of pages that are to be on cards, and copies the pages there.
    ///
    /// # Safety
    /// As [`Medium::read_all`] for the parts.
    unsafe fn load(&self, operation: &'static str, above: &Above, loads: Vec<Load<'_>>) -> Result<()> {
        let (mut placed, mut others) = (Vec::new(), Vec::new());
        for (claim, part) in loads {
            match above.cards.take(&above.map, part.page) {
                Some(taken) => placed.push((taken, claim, part)),
                None => others.push(above.wanted(&part)),
            }
        }
        placed.sort_by_key(|(taken, ..)| taken.slot().card);
        // SAFETY: passed on.
        let mut outcome = unsafe { self.below.read_all(operation, &others) };
        while let Some((last, ..)) = placed.last() {
            let card = last.card;
            let first = placed.partition_point(|(taken, ..)| taken.slot().card < card.number());
            let some = placed.split_off(first.max(placed.len().saturating_sub(card.lane_pages())));
            // SAFETY: passed on.
            outcome = outcome.and_then(|()| unsafe { self.load_to(operation, above, card, some) });
        }
        outcome
    }

    /// Reads pages by way of the memory of a lane of one card, which has room for them, and copies them to
    /// the card.
    ///
    /// # Safety
    /// As [`Medium::read_all`] for the parts.
    unsafe fn load_to(
        &self,
        operation: &'static str,
        above: &Above,
        card: &Card,
        loads: Vec<(Taken<'_>, Claim<'_>, Part)>,
    ) -> Result<()> {
        let length = card.page_bytes();
        let as_they_are = |loads: &[(Taken<'_>, Claim<'_>, Part)]| {
            let wanted: Vec<Wanted> = loads.iter().map(|(.., part)| above.wanted(part)).collect();
            // SAFETY: passed on.
            unsafe { self.below.read_all(operation, &wanted) }
        };
        let lane = match card.lane() {
            Ok(lane) => lane,
            Err(error) => {
                card.lose(&error);
                return as_they_are(&loads);
            }
        };
        // SAFETY: `lane_pages` says how many pages the memory has room for.
        let at = |number: usize| unsafe { lane.host.address().as_ptr().add(number * length) };
        let whole = loads.iter().enumerate().map(|(number, (.., part))| Wanted {
            offset: part.page * length as u64,
            to: at(number),
            bytes: length,
        });
        let whole = joined(whole);
        // SAFETY: these are whole pages of the memory below, and the lane is this thread's.
        if unsafe { self.below.read_all(operation, &whole) }.is_err() {
            // What is wanted may be sound all the same.
            return as_they_are(&loads);
        }
        for (number, (.., part)) in loads.iter().enumerate() {
            // SAFETY: the part is inside of its page; the caller vouches for the target.
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

    /// Writes parts of pages that follow one another, no more bytes than a lane has.
    ///
    /// # Safety
    /// As [`Medium::write`] for the parts.
    unsafe fn write_parts(&self, operation: &'static str, above: &Above, parts: &[Part]) -> Result<()> {
        let Some(first) = parts.first() else { return Ok(()) };
        let (offset, bytes) = (above.offset(first), parts.iter().map(|part| part.bytes).sum());
        let mut writes: Vec<Write<'_>> = parts.iter().map(|part| above.begin_write(*part)).collect();
        if writes.iter().all(|write| write.taken.is_none()) {
            // SAFETY: passed on.
            return unsafe { self.below.write(operation, offset, first.host, bytes) };
        }
        let mut stable = Passage(vec![0; bytes]);
        // SAFETY: the caller vouches for the source.
        unsafe { racy::read(first.host, &mut stable.0) };
        // SAFETY: as the caller promises, for the target.
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

/// Hands over parts of pages, all of which a lane's memory has one after the other, of those that are what
/// was copied to the card; reads the others from the file, and takes them off the card.
///
/// # Safety
/// As [`Medium::read_all`] for the parts.
unsafe fn hand_over_checked<M: Medium>(
    hits: &[Hit<'_>],
    lane: &Lane,
    operation: &'static str,
    above: &Above,
    below: &M,
) -> Result<()> {
    let mut page = Passage(vec![0; above.cards.page_bytes]);
    let mut damaged = Vec::new();
    for (number, (reading, part)) in hits.iter().enumerate() {
        lane.host.read(number * page.0.len(), &mut page.0);
        if reading.is_sound(&page.0) {
            // SAFETY: the caller vouches for the target.
            unsafe { racy::write(part.host, &page.0[part.skip..part.skip + part.bytes]) };
            continue;
        }
        let slot = Slot { card: reading.card.number(), at: reading.at };
        above.map.with(part.page, |entry| {
            if entry.leave(slot) {
                // This thread still reads there: it gives the slot back, or whoever does so last.
                let taken = reading.card.take_left(slot.at);
                debug_assert!(taken.is_none());
            }
        });
        damaged.push(above.wanted(part));
        above.cards.counts.damaged.fetch_add(1, Ordering::Relaxed);
        let (page, device) = (part.page, reading.card.device().info());
        tell::warn(format!("page {page} of a file came from {device} other than it went there"));
    }
    // SAFETY: passed on.
    unsafe { below.read_all(operation, &damaged) }
}

/// The same ranges, with one for several that follow one another.
fn joined(ranges: impl IntoIterator<Item = Wanted>) -> Vec<Wanted> {
    let mut joined = Vec::<Wanted>::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if last.is_before(&range) => last.bytes += range.bytes,
            _ => joined.push(range),
        }
    }
    joined
}

/// Writes to slots of a card what was written to their pages.
fn update(card: &Card, writes: &[(&mut Write<'_>, &[u8])]) -> Result<()> {
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

    fn wanted(&self, part: &Part) -> Wanted {
        Wanted { offset: self.offset(part), to: part.host, bytes: part.bytes }
    }

    /// Cuts ranges at the ends of pages, and calls `work` with as many parts as a lane has room for.
    fn in_parts(
        &self,
        ranges: impl Iterator<Item = Wanted>,
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

    /// Looks for parts on the cards: what is there, what is to be there, and all else, as ranges.
    fn look(&self, bytes: u64, parts: &[Part]) -> (Vec<Hit<'_>>, Vec<Load<'_>>, Vec<Wanted>) {
        let (mut hits, mut loads, mut others) = (Vec::new(), Vec::new(), Vec::new());
        let now = self.cards.now();
        for (number, &part) in parts.iter().enumerate() {
            // A page that may grow is never on a card: its slot would not know the end.
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
            let card = |slot: Slot| (&self.cards.cards[slot.card as usize], slot.at);
            let taken = slot.map(card).filter(|(card, _)| !card.is_lost());
            (number, taken.and_then(|(card, at)| card.take_left(at)))
        });
        let length = self.cards.page_bytes;
        // A checksum is of a whole page.
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
                    tell::not_wiped("memory", card.device().info(), &error);
                }
            }
        }
    }
}

impl<M: Medium> Medium for Tiered<M> {
    const BLOCK_BYTES: usize = M::BLOCK_BYTES;
    const SPARSE_STRIDE_BYTES: usize = M::SPARSE_STRIDE_BYTES;

    fn bytes(&self) -> u64 {
        self.below.bytes()
    }

    fn unit_bytes(&self) -> u64 {
        self.below.unit_bytes()
    }

    fn address(&self) -> Option<*mut u8> {
        // What is written there would pass the cards by.
        self.below.address().filter(|_| self.above.is_none())
    }

    fn announce(&self, offset: u64, bytes: usize) {
        if self.above.is_none() {
            self.below.announce(offset, bytes);
        }
    }

    unsafe fn read_into(&self, operation: &'static str, offset: u64, into: &mut [u8]) -> Result<()> {
        if self.above.is_none() {
            // SAFETY: passed on.
            return unsafe { self.below.read_into(operation, offset, into) };
        }
        // SAFETY: passed on; memory of the program is none of a device.
        unsafe { self.read(operation, offset, into.as_mut_ptr(), into.len()) }
    }

    fn reads_together(&self) -> bool {
        self.above.is_some() || self.below.reads_together()
    }

    unsafe fn read(&self, operation: &'static str, offset: u64, to: *mut u8, bytes: usize) -> Result<()> {
        if self.above.is_none() {
            // SAFETY: passed on.
            return unsafe { self.below.read(operation, offset, to, bytes) };
        }
        // SAFETY: passed on.
        unsafe { self.read_all(operation, &[Wanted { offset, to, bytes }]) }
    }

    unsafe fn read_all(&self, operation: &'static str, wanted: &[Wanted]) -> Result<()> {
        let Some(above) = &self.above else {
            // SAFETY: passed on.
            return unsafe { self.below.read_all(operation, wanted) };
        };
        above.in_parts(wanted.iter().copied(), |parts| {
            // SAFETY: passed on, for parts of what is wanted.
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
            // SAFETY: passed on.
            return unsafe { self.below.write(operation, offset, from, bytes) };
        };
        let range = Wanted { offset, to: from.cast_mut(), bytes };
        above.in_parts(std::iter::once(range), |parts| {
            // SAFETY: passed on, for parts of it; nothing is written to what is read from here.
            unsafe { self.write_parts(operation, above, parts) }
        })
    }
}
