//! Sorting in a device's memory, digit by digit, from the least significant one on.
//!
//! Each pass moves all keys from one memory to another, where they are in the order of one digit more. The
//! next pass begins when that one is known to have succeeded: until then the keys are where they were.

use std::sync::Arc;

use backend_api::expr::Geometry;
use backend_api::kernel::Report;
use backend_api::{
    Commit, Device, DeviceBuffer, DeviceKind, DeviceSpan, Elements, Fill, Launch, Queue, Ticket, Transfer,
};

use super::Order;
use super::onesweep::{BLOCK, COUNTING_BLOCK, DIGITS, STATE_HEADER_BYTES, SortKernels, is_refusal};
use crate::base::error::{Error, Result};
use crate::base::recording;
use crate::engine::channel::PinnedPiece;
use crate::ops::executor::{Lane, RunAccess};

/// So many keys are moved by one launch: less than 2^30, which is what blocks tell each other.
const KEYS_AT_ONCE: u64 = 1 << 29;
/// Blocks that count digits, at most: as many as large cards run at once.
const COUNTING_BLOCKS: u64 = 1056;
/// Keys that make a block worth while.
const COUNTED_BY_BLOCK: u64 = 8192;
/// What parts of the memory begin at multiples of.
const ALIGN: u64 = 256;

/// What came of an attempt.
#[derive(Debug)]
pub(crate) enum DeviceSort {
    Done,
    /// The device cannot do it, or has no memory for it. Nothing was changed.
    Refused,
    /// The keys are in some order.
    Failed(Error),
    /// The keys are lost, or some of them.
    Lost(Error),
}

/// Whether it is worth an attempt to sort keys of so many bytes on a device.
pub(crate) fn can_sort(device: &Arc<dyn Device>, bytes: usize) -> bool {
    // Others would have to run the body of the kernels to say that they do not take its text.
    let is_card = matches!(device.info().kind, DeviceKind::DiscreteGpu | DeviceKind::IntegratedGpu);
    is_card && SortKernels::of(bytes).is_some()
}

/// Sorts keys that lie side by side, which nobody else uses; says when they are about to be written to.
pub(crate) fn sort_on_device(
    lane: &impl Lane,
    keys: Elements<'_>,
    order: Order,
    begin_write: impl FnOnce(),
) -> DeviceSort {
    let Some(kernels) = SortKernels::of(keys.stride as usize) else { return DeviceSort::Refused };
    match Sorter::new(lane, keys, order, kernels) {
        Ok(sorter) => {
            let outcome = sorter.run(begin_write);
            lane.keep(sorter.host);
            outcome
        }
        Err(error) if error.device_error().is_some_and(is_refusal) => DeviceSort::Refused,
        Err(error) => DeviceSort::Failed(error),
    }
}

struct Sorter<'a, L> {
    lane: &'a L,
    keys: Elements<'a>,
    order: Order,
    kernels: &'a SortKernels,
    /// Numbers of digits, and states of tiles.
    memory: DeviceBuffer<dyn Device>,
    states: u64,
    /// Numbers of digits, and what launches report.
    host: PinnedPiece,
}

impl<'a, L: Lane> Sorter<'a, L> {
    fn new(lane: &'a L, keys: Elements<'a>, order: Order, kernels: &'a SortKernels) -> Result<Self> {
        let states = (Self::words(keys.stride) * 8).next_multiple_of(ALIGN);
        let of_states = Self::state_bytes(kernels, keys.count.min(Self::at_once(kernels)));
        let memory = DeviceBuffer::new(lane.device(), states + of_states, Commit::Lazy)?;
        let host = lane.buffer((Self::words(keys.stride) * 8 + Report::BYTES) as usize)?;
        Ok(Self { lane, keys, order, kernels, memory, states, host })
    }

    /// The numbers of all digits, and two times where keys of each value of one begin.
    fn words(stride: u64) -> u64 {
        (stride + 2) * DIGITS as u64
    }

    fn at_once(kernels: &SortKernels) -> u64 {
        KEYS_AT_ONCE / kernels.tile * kernels.tile
    }

    fn state_bytes(kernels: &SortKernels, keys: u64) -> u64 {
        STATE_HEADER_BYTES + keys.div_ceil(kernels.tile) * DIGITS as u64 * 4
    }

    fn run(&self, begin_write: impl FnOnce()) -> DeviceSort {
        // Of long arrays it takes as long to get memory for as to count.
        let (device, bytes) = (self.lane.device(), self.keys.count * self.keys.stride);
        let (counts, beside) = std::thread::scope(|scope| {
            let allocate = || DeviceBuffer::new(device, bytes, Commit::Lazy);
            let beside = std::thread::Builder::new().spawn_scoped(scope, allocate);
            let counts = self.count();
            let beside =
                beside.map_or_else(|_| allocate(), |thread| thread.join().unwrap_or_else(|_| allocate()));
            (counts, beside)
        });
        let (counts, beside) = match (counts, beside) {
            (Ok(Some(counts)), Ok(beside)) => (counts, beside),
            (Ok(None), _) => return DeviceSort::Refused,
            (Err(error), _) | (_, Err(error)) if is_refusal(&error) => return DeviceSort::Refused,
            (Err(error), _) | (_, Err(error)) => return DeviceSort::Failed(error.into()),
        };
        begin_write();
        let mut from_to = (self.keys.start, beside.at(0));
        for (place, counts) in counts.chunks_exact(DIGITS).enumerate() {
            if counts.contains(&self.keys.count) {
                continue;
            }
            if let Err(error) = self.pass(place as u64, counts, from_to) {
                // What it has read is as it was.
                return self.failed(from_to.0, error);
            }
            from_to = (from_to.1, from_to.0);
        }
        match self.bring_home(from_to.0) {
            Ok(()) => DeviceSort::Done,
            Err(error) => self.failed(from_to.0, error),
        }
    }

    /// After a failure: the keys are in a place.
    fn failed(&self, at: DeviceSpan<'_>, error: backend_api::Error) -> DeviceSort {
        match self.bring_home(at) {
            Ok(()) => DeviceSort::Failed(error.into()),
            Err(_) => DeviceSort::Lost(error.into()),
        }
    }

    /// Copies keys to where they belong, if they are in the memory beside it.
    fn bring_home(&self, from: DeviceSpan<'_>) -> backend_api::Result<()> {
        let (to, bytes) = (self.keys.start, self.keys.count * self.keys.stride);
        if from == to {
            return Ok(());
        }
        self.done(&mut |queue| queue.submit(&[Transfer::Internal { from, to, bytes }]))
    }

    /// Has work done in the queue of what changes the keys.
    fn done(
        &self,
        work: &mut dyn FnMut(&Queue<dyn Device>) -> backend_api::Result<Ticket>,
    ) -> backend_api::Result<()> {
        let ticket = self.lane.submit(RunAccess::Change, work)?;
        recording::sized(ticket, 1, || 2 * self.keys.count * self.keys.stride);
        self.lane.wait(ticket)
    }

    /// How many keys have each value of each digit; none if the device does not take the kernels.
    fn count(&self) -> backend_api::Result<Option<Vec<u64>>> {
        let (words, stride) = (Self::words(self.keys.stride), self.keys.stride);
        let counted = stride * DIGITS as u64;
        let blocks = self.keys.count.div_ceil(COUNTED_BY_BLOCK).min(COUNTING_BLOCKS);
        let report = self.host.at(words * 8);
        let numbers = Elements { start: self.memory.at(0), count: words, stride: 8 };
        let views = [self.keys.into(), numbers.into()];
        let params = [self.keys.count, self.order.flip, self.order.flip_negative];
        let items = blocks * u64::from(COUNTING_BLOCK);
        let launch = Launch {
            views: &views,
            params: &params,
            ..Launch::new(&self.kernels.count, items, Geometry::plain(0), report)
        };
        self.done(&mut |queue| {
            queue.fill(&Fill { to: self.memory.at(0), bytes: words * 8, pattern: &[0] })?;
            queue.launch(&launch)?;
            let (from, to) = (self.memory.at(0), self.host.at(0));
            queue.submit(&[Transfer::Download { from, to, bytes: counted * 8 }])
        })?;
        let mut report = [0_u64; Report::BYTES as usize / 8];
        self.host.read(words as usize * 8, bytemuck::cast_slice_mut(&mut report));
        let mut counts = vec![0; counted as usize];
        self.host.read(0, bytemuck::cast_slice_mut(&mut counts));
        Ok((Report::from_words(report).failures == 0).then_some(counts))
    }

    /// Moves all keys, by one digit.
    fn pass(
        &self,
        place: u64,
        counts: &[u64],
        (from, to): (DeviceSpan<'_>, DeviceSpan<'_>),
    ) -> backend_api::Result<()> {
        let (count, stride, digits) = (self.keys.count, self.keys.stride, DIGITS as u64);
        let mut next = 0;
        let starts = counts.iter().map(|count| {
            next += count;
            next - count
        });
        let starts: Vec<u64> = starts.collect();
        self.host.write(0, bytemuck::cast_slice(&starts));
        let report = self.host.at(Self::words(stride) * 8);
        let numbers =
            |place: u64| Elements { start: self.memory.at(place * digits * 8), count: digits, stride: 8 };
        let (mut starts, mut ends) = (numbers(stride), numbers(stride + 1));
        let states = (self.memory.bytes() - self.states) / 4;
        let states = Elements { start: self.memory.at(self.states), count: states, stride: 4 };
        let to = Elements { start: to, count, stride };
        self.done(&mut |queue| {
            let upload = Transfer::Upload { from: self.host.at(0), to: starts.start, bytes: digits * 8 };
            let mut last = queue.submit(&[upload])?;
            let mut first = 0;
            while first < count {
                let here = Self::at_once(self.kernels).min(count - first);
                let bytes = Self::state_bytes(self.kernels, here);
                queue.fill(&Fill { to: states.start, bytes, pattern: &[0] })?;
                let keys = Elements { start: from.plus(first * stride), count: here, stride };
                let views = [keys.into(), to.into(), starts.into(), ends.into(), states.into()];
                let params = [here, 8 * place, self.order.flip, self.order.flip_negative];
                let items = here.div_ceil(self.kernels.tile) * u64::from(BLOCK);
                last = queue.launch(&Launch {
                    views: &views,
                    params: &params,
                    ..Launch::new(&self.kernels.move_keys, items, Geometry::plain(0), report)
                })?;
                (starts, ends) = (ends, starts);
                first += here;
            }
            Ok(last)
        })
    }
}
