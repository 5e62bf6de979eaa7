//! Sorting memory of the program by way of cards that have less: each element goes up and down the bus twice.
//!
//! In the first pass pieces are sorted which are evenly spread over all elements, so that each has about as
//! many of every bucket, and goes back to the areas of these. Then it is found out where exactly each
//! sorted piece is to be cut, so that all buckets are as long; what is in the area of another bucket is
//! moved by threads. In the second pass a bucket is read from its area, sorted, and written to where it
//! belongs. While a card sorts one piece, the next one comes and the one before goes.
//!
//! What comes back from a card is never written to where it came from, but to RAM that is free, and what
//! was there before is free once the copy is known to have succeeded. So all elements are in RAM at any
//! time, and a card that fails or is lost takes none with it. That RAM is two pieces for each card:
//! [`layout`] says where. What is short, and fits on a card, goes there as a whole, and is copied to other
//! RAM meanwhile.

mod layout;

use std::collections::VecDeque;
use std::iter::once;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use backend_api::{Device, DeviceSpan, HostMemory, Queue, Ticket, Transfer};

use self::layout::{AreaLayout, Move, PIECES_ON_CARD, PieceJob, cut};
use super::KeyOrder;
use super::on_device::{ChannelShare, DeviceOutcome, Sorter};
use super::on_devices::of_each;
use super::onesweep::is_unsupported;
use crate::base::error::{ErrorKind, Result};
use crate::base::progress::{Steps, in_steps};
use crate::base::registered_memory::RegisteredMemory;
use crate::base::scoped_threads::{CORES, each};
use crate::base::scratch_pool::ScratchVec;

/// What is shorter is sorted in RAM.
const BYTES_MIN: usize = if cfg!(test) { 256 } else { 16 << 20 };
/// What is no longer than this, and fits on a card twice, is sorted as a whole.
const WHOLE_BYTES_MAX: usize = if cfg!(test) { 4 << 10 } else { 1 << 30 };
/// How many copies a submission has at most.
const BATCH: usize = 256;
/// What a thread copies at a time, and is worth a thread.
const PART_BYTES: usize = 1 << 20;

/// A share of a card, all of whose memory that it names is used.
#[derive(Debug)]
pub(crate) struct ExternalLane<'a> {
    pub share: ChannelShare<'a>,
    /// The memory of the program as the card knows it, and where in it what is sorted begins.
    pub import: &'a RegisteredMemory,
    pub offset: u64,
}

/// How something is sorted.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ExternalPlan {
    /// All at once.
    Whole,
    InPieces(AreaLayout),
}

impl ExternalPlan {
    /// For so many elements of so many bytes by lanes that have room for some each, if it is worth it.
    pub fn new(len: usize, stride: usize, rooms: &[usize]) -> Option<Self> {
        if len * stride < BYTES_MIN {
            return None;
        }
        if len * stride <= WHOLE_BYTES_MAX && 2 * len <= rooms[0] {
            return Some(Self::Whole);
        }
        AreaLayout::new(len, stride, rooms).map(Self::InPieces)
    }
}

/// Sorts so many keys of the program's memory. No card that fails loses any.
///
/// # Safety
/// They begin at `home`, and nobody else touches them meanwhile. They are what the lanes' imports have where
/// the lanes say, and can be written to.
pub(crate) unsafe fn sort(
    home: NonNull<u8>,
    len: usize,
    lanes: Vec<ExternalLane<'_>>,
    order: KeyOrder,
    plan: ExternalPlan,
) -> DeviceOutcome {
    let stride = lanes[0].share.keys.stride as usize;
    let passes = if let ExternalPlan::Whole = plan { 1 } else { 2 };
    let sorted = in_steps((len * stride * stride * passes) as u64, |steps| {
        // SAFETY: by the caller's word.
        let Err(error) = (unsafe { sort_in_steps((home, len), lanes, order, plan, steps) }) else {
            return Ok(DeviceOutcome::Done);
        };
        Err(match error.device_error() {
            _ if steps.is_cancelled() => DeviceOutcome::Failed(ErrorKind::Cancelled.into()),
            Some(error) if is_unsupported(error) => DeviceOutcome::Unsupported,
            _ => DeviceOutcome::Failed(error),
        })
    });
    sorted.unwrap_or_else(|other| other)
}

/// # Safety
/// As [`sort`].
unsafe fn sort_in_steps(
    (home, len): (NonNull<u8>, usize),
    mut lanes: Vec<ExternalLane<'_>>,
    order: KeyOrder,
    plan: ExternalPlan,
    steps: &Steps,
) -> Result<()> {
    let stride = lanes[0].share.keys.stride as usize;
    let (before, end, piece, used) = match plan {
        ExternalPlan::Whole => (0, 2 * len, len, 1),
        ExternalPlan::InPieces(layout) => (layout.home().start, layout.end(), layout.piece(), layout.lanes),
    };
    lanes.truncate(used);
    lanes.iter_mut().for_each(|lane| lane.share.keys.count = piece as u64);
    // Declared first, dropped last.
    let mut memory = ScratchVec::<u64>::unspecified(((end - len) * stride).div_ceil(size_of::<u64>()))?;
    let (bytes, spare) = (memory.len() * size_of::<u64>(), NonNull::from(&mut *memory).cast());
    let ram = Ram { home, spare, before, len, stride, order };
    let mut cards = Vec::new();
    for lane in &lanes {
        let import = |kind| {
            // SAFETY: the memory goes after what is made here, and is reached by its address alone until
            // then: by threads while no work is under way.
            unsafe { RegisteredMemory::new(lane.share.lane.device(), spare, bytes, kind) }
        };
        let spare = match plan {
            ExternalPlan::Whole => None,
            ExternalPlan::InPieces(_) => {
                Some(import(HostMemory::Pinned).or_else(|_| import(HostMemory::Pageable))?)
            }
        };
        cards.push(Card { lane, spare, sorter: Sorter::new(&lane.share, order, steps)? });
    }
    let sorting = ExternalSort { ram, cards, piece };
    let sorted = match plan {
        ExternalPlan::Whole => sorting.at_once(),
        ExternalPlan::InPieces(layout) => sorting.in_pieces(layout),
    };
    sorting.cards.into_iter().for_each(|card| card.sorter.end());
    sorted
}

/// Elements, by their place in a [`AreaLayout`]: those at home, and those of the spare memory before and
/// behind.
struct Ram {
    home: NonNull<u8>,
    spare: NonNull<u8>,
    before: usize,
    len: usize,
    stride: usize,
    order: KeyOrder,
}

// SAFETY: addresses, of memory that nobody else touches; who touches what is decided by the layout.
unsafe impl Sync for Ram {}

impl Ram {
    /// Whether an element is at home, at which byte, and what is the first one further on that is elsewhere.
    fn find(&self, at: usize) -> (bool, usize, usize) {
        let end = self.before + self.len;
        match at {
            _ if at < self.before => (false, at * self.stride, self.before),
            _ if at < end => (true, (at - self.before) * self.stride, end),
            _ => (false, (at - self.len) * self.stride, usize::MAX),
        }
    }

    fn address(&self, at: usize) -> *mut u8 {
        let (is_home, byte, _) = self.find(at);
        let start = if is_home { self.home } else { self.spare };
        start.as_ptr().wrapping_add(byte)
    }

    /// Copies elements to places that are free. No device touches either.
    fn copy(&self, moves: &[Move]) {
        let most = PART_BYTES / self.stride;
        let mut parts = Vec::new();
        for (from, mut to) in moves.iter().cloned() {
            let mut start = from.start;
            while start < from.end {
                let len = most.min(from.end - start).min(self.find(start).2 - start);
                let len = len.min(self.find(to).2 - to);
                parts.push((start, to, len));
                (start, to) = (start + len, to + len);
            }
        }
        let bytes = moves.iter().map(|(from, _)| from.len() * self.stride).sum::<usize>();
        each(bytes.div_ceil(PART_BYTES).min(*CORES), parts.len(), |number| {
            let (from, to, len) = parts[number];
            // SAFETY: both are within one memory, and no other thread touches what is written; places that
            // are free are none that is copied from.
            unsafe { self.address(from).copy_to_nonoverlapping(self.address(to), len * self.stride) };
        });
    }

    fn word(&self, at: usize) -> u64 {
        let mut word = [0; 8];
        // SAFETY: within the memory, which no device writes to.
        unsafe { self.address(at).copy_to_nonoverlapping(word.as_mut_ptr(), self.stride) };
        u64::from_le_bytes(word)
    }

    fn set_word(&self, at: usize, word: u64) {
        // SAFETY: within the memory, which neither a device nor another thread touches.
        unsafe { self.address(at).copy_from_nonoverlapping(word.to_le_bytes().as_ptr(), self.stride) };
    }

    /// Makes what is behind the elements padding, which is as great as anything: also where elements have
    /// come to be there and padding to be among those.
    fn pad(&self, behind: Range<usize>, is_new: bool) {
        let greatest = u64::MAX >> (64 - 8 * self.stride);
        let (padding, mut at) = (self.order.word(greatest, self.stride as u64), self.before);
        for place in behind {
            let word = self.word(place);
            if !is_new && word != padding {
                while self.word(at) != padding {
                    at += 1;
                }
                self.set_word(at, word);
            }
            self.set_word(place, padding);
        }
    }
}

/// What sorts pieces, and the spare memory as it knows that.
struct Card<'a> {
    lane: &'a ExternalLane<'a>,
    spare: Option<RegisteredMemory>,
    sorter: Sorter<'a>,
}

struct ExternalSort<'a> {
    ram: Ram,
    cards: Vec<Card<'a>>,
    piece: usize,
}

impl ExternalSort<'_> {
    /// Sorts all in one piece, which is copied to the spare memory on its way.
    fn at_once(&self) -> Result<()> {
        let len = self.ram.len;
        let [from, to] = [0, 0].map(|start| once(start..len).collect());
        let job = PieceJob { from, to };
        let is_copied = AtomicBool::new(false);
        let (_, sorted) = self.run(&[job], &|| {
            self.ram.copy(&[(0..len, len)]);
            is_copied.store(true, Ordering::Relaxed);
        });
        if sorted.is_err() && is_copied.into_inner() {
            self.ram.copy(&[(len..2 * len, 0)]);
        }
        sorted
    }

    fn in_pieces(&self, layout: AreaLayout) -> Result<()> {
        let (ram, AreaLayout { strips, strip, .. }) = (&self.ram, layout);
        let behind = ram.before + ram.len..layout.home().end;
        ram.pad(behind.clone(), true);
        let pass = |jobs: &[PieceJob]| {
            let (done, sorted) = self.run(jobs, &|| {});
            sorted.inspect_err(|_| {
                let is_done = |number: usize| number / layout.lanes < done[number % layout.lanes];
                let now = |(number, job): (usize, &PieceJob)| {
                    if is_done(number) { job.to.clone() } else { job.from.clone() }
                };
                ram.copy(&layout.back_home(jobs.iter().enumerate().flat_map(now).collect()));
                ram.pad(behind.clone(), false);
            })
        };
        let runs = layout.first_pass();
        pass(&runs)?;
        let cuts = of_each(*CORES, strips + 1, |bucket| match bucket {
            0 => vec![0; strips],
            _ => cut(strips, self.piece, bucket * self.piece, |run, number| {
                let at = runs[run].to[number / strip].start + number % strip;
                ram.order.key_of_word(ram.word(at), ram.stride as u64)
            }),
        });
        pass(&layout.second_pass(&runs, &cuts, |moves| ram.copy(moves)))
    }

    /// Has each card do its jobs, and one thread some work in RAM meanwhile; how many jobs each card has
    /// done, also if it fails.
    fn run(&self, jobs: &[PieceJob], meanwhile: &(dyn Fn() + Sync)) -> (Vec<usize>, Result<()>) {
        let has_failed = AtomicBool::new(false);
        let outcomes = of_each(self.cards.len(), self.cards.len(), |number| {
            let done = AtomicUsize::new(0);
            let sorted = self.run_lane(number, jobs, meanwhile, &done, &has_failed);
            has_failed.fetch_or(sorted.is_err(), Ordering::Relaxed);
            (done.into_inner(), sorted)
        });
        let (done, sorted): (Vec<_>, Vec<_>) = outcomes.into_iter().unzip();
        (done, sorted.into_iter().collect())
    }

    /// Has a card do its jobs one after the other; counts those whose elements are where they go to.
    fn run_lane(
        &self,
        number: usize,
        jobs: &[PieceJob],
        meanwhile: &(dyn Fn() + Sync),
        done: &AtomicUsize,
        has_failed: &AtomicBool,
    ) -> Result<()> {
        let (card, keys) = (&self.cards[number], self.piece as u64);
        let (sorter, device) = (&card.sorter, card.lane.share.lane.device());
        // Of their own, so that all copies are over when they end, whatever fails.
        let (uploads, downloads) = (Queue::new(device)?, Queue::new(device)?);
        let mine = || jobs.iter().skip(number).step_by(self.cards.len());
        let places = if jobs.len() == 1 { 2 } else { PIECES_ON_CARD as u64 };
        let mut free: Vec<_> = (0..places).map(|place| sorter.further(sorter.home(), place * keys)).collect();
        let (mut next, mut coming, mut going) = (mine(), VecDeque::new(), None);
        for (at, job) in mine().enumerate() {
            while coming.len() < 2
                && let Some(job) = next.next()
            {
                let to =
                    free.pop().expect("a card has room for two pieces beside those that are sorted and go");
                coming.push_back((to, card.copy(&self.ram, &uploads, &job.from, to.keys, true)?));
            }
            if (number, at) == (0, 0) {
                meanwhile();
            }
            let come = coming.pop_front().zip(free.pop());
            let ((from, tickets), beside) = come.expect("a piece comes, and there is room beside it");
            wait_for(device, tickets)?;
            let counts = sorter.counts(from, keys)?;
            let sorted = sorter.sort(keys, &counts, from, beside).map_err(|(_, error)| error)?;
            free.push(if sorted == from { beside } else { from });
            if let Some((from, tickets)) = going.take() {
                wait_for(device, tickets)?;
                free.push(from);
                done.fetch_add(1, Ordering::Relaxed);
            }
            if has_failed.load(Ordering::Relaxed) {
                return Ok(());
            }
            going = Some((sorted, card.copy(&self.ram, &downloads, &job.to, sorted.keys, false)?));
        }
        if let Some((_, tickets)) = going {
            wait_for(device, tickets)?;
            done.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }
}

impl Card<'_> {
    /// Starts to copy elements of some ranges to the card, one after the other, or from there.
    fn copy(
        &self,
        ram: &Ram,
        queue: &Queue<dyn Device>,
        ranges: &[Range<usize>],
        mut card: DeviceSpan<'_>,
        is_upload: bool,
    ) -> Result<Vec<Ticket>> {
        let (mut transfers, mut all) = (Vec::with_capacity(ranges.len()), 0);
        for range in ranges {
            let mut start = range.start;
            while start < range.end {
                let (is_home, byte, end) = ram.find(start);
                let len = end.min(range.end) - start;
                let (byte, bytes) = (byte as u64, (len * ram.stride) as u64);
                let host = match &self.spare {
                    Some(spare) if !is_home => spare.at(byte),
                    _ => self.lane.import.at(self.lane.offset + byte),
                };
                transfers.push(match is_upload {
                    true => Transfer::Upload { from: host, to: card, bytes },
                    false => Transfer::Download { from: card, to: host, bytes },
                });
                (start, card, all) = (start + len, card.plus(bytes), all + bytes);
            }
        }
        let counters = self.lane.share.lane.counters();
        let moved = if is_upload { &counters.bytes_to_device } else { &counters.bytes_from_device };
        let submit = |batch: &[Transfer<'_>]| {
            counters.submissions.add(1);
            Ok(queue.submit(batch)?)
        };
        let tickets = transfers.chunks(BATCH).map(submit).collect();
        moved.add(all);
        tickets
    }
}

fn wait_for(device: &Arc<dyn Device>, tickets: Vec<Ticket>) -> backend_api::Result<()> {
    tickets.into_iter().try_for_each(|ticket| device.wait(ticket))
}
