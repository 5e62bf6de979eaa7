//! External sort of elements in RAM by GPUs with less memory. Elements cross the bus twice in each direction:
//!
//! 1. A GPU sorts one piece at a time: elements from all parts of the input. It cuts the sorted piece into
//!    equal strips, and writes the `n`-th strip to the `n`-th area of RAM. An area then holds about one
//!    bucket (range of keys), because all pieces are similar samples of the elements.
//! 2. The host computes the exact bounds of equally long buckets. Threads move each element that is not in
//!    its bucket's area.
//! 3. A GPU reads each bucket from its area, sorts it, and writes it to its final place.
//!
//! While a GPU sorts one piece, the next piece is uploaded and the previous one downloaded. If all elements
//! fit on a GPU, it sorts them in one piece, and threads copy them to other RAM meanwhile.
//!
//! A GPU never downloads a piece to the RAM from which it uploaded the piece, but to free RAM. The RAM of the
//! upload becomes free when the download has succeeded. All elements are therefore in RAM at any time, and
//! the loss of a GPU loses none of them. The additional RAM is two pieces for each GPU: see [`layout`].

mod layout;

use std::collections::VecDeque;
use std::iter::once;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use backend_api::{Device, DeviceSpan, Queue, Ticket, Transfer};

use self::layout::{AreaLayout, PIECES_ON_CARD, PieceJob, PlannedCopy, cut};
use super::keys::KeyOrder;
use super::on_device::Sorter;
use super::on_devices::of_each;
use super::onesweep::is_unsupported;
use crate::base::error::{ErrorKind, Result};
use crate::base::progress::{Steps, in_steps};
use crate::base::racy_slice::RacySlice;
use crate::base::registered_memory::{RegisteredMemory, RegisteredScratch};
use crate::base::scoped_threads::{CORES, each};
use crate::ops::executor::{DeviceOutcome, ImportedHome, ImportedShare};

/// Shorter ranges (in bytes) are sorted in RAM.
const BYTES_MIN: usize = if cfg!(test) { 256 } else { 16 << 20 };
/// The longest range, in bytes, that is sorted as one piece if a GPU has memory for twice its length.
const WHOLE_BYTES_MAX: usize = if cfg!(test) { 4 << 10 } else { 1 << 30 };
/// The most copies in one submission.
const BATCH: usize = 256;
/// The bytes that a thread copies at a time; another thread is used for each such part.
const PART_BYTES: usize = 1 << 20;

/// The method of an external sort: as a whole, or in pieces.
#[derive(Clone, Copy, Debug)]
pub(super) enum ExternalPlan {
    /// All elements form one piece, which one GPU sorts.
    Whole,
    InPieces(AreaLayout),
}

impl ExternalPlan {
    /// Plans the sort of `len` elements of `stride` bytes on several GPUs. `rooms` is the number of elements
    /// that fit into each GPU. Returns `None` if this algorithm is impossible, or slower than another one.
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

/// Sorts keys in the program's memory by GPUs. If a GPU fails, no key is lost.
pub(super) fn sort(elements: ImportedHome<'_>, order: KeyOrder, plan: ExternalPlan) -> DeviceOutcome {
    let ImportedHome { memory, shares: lanes } = elements;
    let stride = lanes[0].share.keys.stride as usize;
    let len = memory.len() / stride;
    let home = RacySlice::from(memory);
    let passes = if let ExternalPlan::Whole = plan { 1 } else { 2 };
    let sorted = in_steps((len * stride * stride * passes) as u64, |steps| {
        let Err(error) = sort_in_steps(home, lanes, order, plan, steps) else {
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

/// Sorts the keys in the memory `home`, which the GPU of each lane has imported.
fn sort_in_steps(
    home: RacySlice<'_, u8>,
    mut lanes: Vec<ImportedShare<'_>>,
    order: KeyOrder,
    plan: ExternalPlan,
    steps: &Steps,
) -> Result<()> {
    let stride = lanes[0].share.keys.stride as usize;
    let len = home.len() / stride;
    let (before, end, piece, used) = match plan {
        ExternalPlan::Whole => (0, 2 * len, len, 1),
        ExternalPlan::InPieces(layout) => (layout.home().start, layout.end(), layout.piece(), layout.lanes),
    };
    lanes.truncate(used);
    lanes.iter_mut().for_each(|lane| lane.share.keys.count = piece as u64);
    let mut scratch = RegisteredScratch::new((end - len) * stride)?;
    if let ExternalPlan::InPieces(_) = plan {
        for lane in &lanes {
            scratch.register(lane.share.lane.device())?;
        }
    }
    let (spare, imports) = scratch.parts();
    let ram = Ram { home, spare, before, len, stride, order };
    let mut cards = Vec::new();
    for (number, lane) in lanes.iter().enumerate() {
        cards.push(Card {
            lane,
            spare: imports.get(number),
            sorter: Sorter::new(&lane.share, order, steps)?,
        });
    }
    let sorting = ExternalSort { ram, cards, piece };
    let sorted = match plan {
        ExternalPlan::Whole => sorting.at_once(),
        ExternalPlan::InPieces(layout) => sorting.in_pieces(layout),
    };
    sorting.cards.into_iter().for_each(|card| card.sorter.end());
    sorted
}

/// The memory of the sort, addressed by positions in an [`AreaLayout`]: the elements' own memory, and spare
/// memory before and behind it.
struct Ram<'a> {
    home: RacySlice<'a, u8>,
    spare: RacySlice<'a, u8>,
    before: usize,
    len: usize,
    stride: usize,
    order: KeyOrder,
}

impl<'a> Ram<'a> {
    /// Locates a position. Returns true if it is in the elements' own memory, its offset in bytes, and the
    /// next position that is in the other memory.
    fn find(&self, at: usize) -> (bool, usize, usize) {
        let end = self.before + self.len;
        match at {
            _ if at < self.before => (false, at * self.stride, self.before),
            _ if at < end => (true, (at - self.before) * self.stride, end),
            _ => (false, (at - self.len) * self.stride, usize::MAX),
        }
    }

    /// Returns the memory that contains a position, and the offset in bytes.
    fn place(&self, at: usize) -> (&RacySlice<'a, u8>, usize) {
        let (is_home, byte, _) = self.find(at);
        (if is_home { &self.home } else { &self.spare }, byte)
    }

    /// Copies elements to free positions. No device may access these elements or positions.
    fn copy(&self, moves: &[PlannedCopy]) {
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
            // No two moves overlap: the layout assigns each target to one thread, and a target is free
            // memory, from which no move reads.
            let (memory, byte) = self.place(from);
            memory.copy(byte, self.place(to), len * self.stride);
        });
    }

    fn word(&self, at: usize) -> u64 {
        let (mut word, (memory, byte)) = ([0; 8], self.place(at));
        memory.read(byte, &mut word[..self.stride]);
        u64::from_le_bytes(word)
    }

    fn set_word(&self, at: usize, word: u64) {
        let (memory, byte) = self.place(at);
        memory.write(byte, &word.to_le_bytes()[..self.stride]);
    }

    /// Fills the positions behind the elements with padding, the greatest key. Unless `is_new`, padding may
    /// be mixed with elements. Elements found there first move to positions of padding among the elements
    /// before.
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

/// A GPU with its sorter, and the spare memory as imported by the GPU.
struct Card<'a> {
    lane: &'a ImportedShare<'a>,
    spare: Option<&'a RegisteredMemory>,
    sorter: Sorter<'a>,
}

struct ExternalSort<'a> {
    ram: Ram<'a>,
    cards: Vec<Card<'a>>,
    piece: usize,
}

impl ExternalSort<'_> {
    /// Sorts all elements as one piece. Meanwhile a thread copies them to the spare memory, in case of a
    /// failure.
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

    /// Runs the jobs of all GPUs, and meanwhile calls `meanwhile` on one thread. Returns the number of
    /// finished jobs of each GPU, even after a failure.
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

    /// Runs the jobs of one GPU in order. Counts the jobs whose elements have arrived at their target.
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
        // Use one queue for uploads and one for downloads. Dropping a queue waits for its copies.
        let (uploads, downloads) = (Queue::new(device)?, Queue::new(device)?);
        let mine = || jobs.iter().skip(number).step_by(self.cards.len());
        let places = if jobs.len() == 1 { 2 } else { PIECES_ON_CARD as u64 };
        let mut free: Vec<_> = (0..places).map(|place| sorter.further(sorter.home(), place * keys)).collect();
        let (mut next, mut coming, mut going) = (mine(), VecDeque::new(), None);
        for (at, job) in mine().enumerate() {
            while coming.len() < 2
                && let Some(job) = next.next()
            {
                let to = free.pop().expect("a GPU has room for two pieces more than it sorts and downloads");
                coming.push_back((to, card.copy(&self.ram, &uploads, &job.from, to.keys, true)?));
            }
            if (number, at) == (0, 0) {
                meanwhile();
            }
            let come = coming.pop_front().zip(free.pop());
            let ((from, tickets), beside) =
                come.expect("a piece is being uploaded, and another place is free");
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
    /// Submits copies of consecutive ranges to or from the GPU.
    fn copy(
        &self,
        ram: &Ram<'_>,
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
                let host = match self.spare {
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
