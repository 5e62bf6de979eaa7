//! Sorting in a device's memory, digit by digit, from the least significant one on.
//!
//! Each pass moves all keys from one memory to another, where they are in the order of one digit more. The
//! next pass begins when that one is known to have succeeded: until then the keys are where they were. Keys
//! may have values, which move with them.

use std::sync::Arc;

use backend_api::expr::Geometry;
use backend_api::kernel::{Kernel, Report};
use backend_api::{
    Commit, Device, DeviceBuffer, DeviceKind, DeviceSpan, Elements, Fill, Launch, Queue, Ticket, Transfer,
};

use super::KeyOrder;
use super::onesweep::{
    COUNTING_BLOCK, DIGITS, MoveKernel, STATE_HEADER_BYTES, count_kernel, is_refusal, move_kernel,
};
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

/// Whether it is worth an attempt to sort keys of so many bytes on a device, with values of so many or none.
pub(crate) fn can_sort(device: &Arc<dyn Device>, key_bytes: usize, value_bytes: Option<usize>) -> bool {
    // Others would have to run the body of the kernels to say that they do not take its text.
    let is_card = matches!(device.info().kind, DeviceKind::DiscreteGpu | DeviceKind::IntegratedGpu);
    is_card && move_kernel(key_bytes as u64, value_bytes.map(|bytes| bytes as u64)).is_some()
}

/// Sorts keys that lie side by side, which nobody else uses, and with them values, of which there are as
/// many; says when they are about to be written to.
pub(crate) fn sort_on_device(
    lane: &impl Lane,
    keys: Elements<'_>,
    values: Option<Elements<'_>>,
    order: KeyOrder,
    begin_write: impl FnOnce(),
) -> DeviceSort {
    let kernels = (count_kernel(keys.stride), move_kernel(keys.stride, values.map(|values| values.stride)));
    let (Some(count), Some(moves)) = kernels else { return DeviceSort::Refused };
    match Sorter::new(lane, (keys, values), order, (count, moves)) {
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
    values: Option<Elements<'a>>,
    order: KeyOrder,
    count: &'a Kernel,
    moves: &'a MoveKernel,
    /// Numbers of digits, and states of tiles.
    memory: DeviceBuffer<dyn Device>,
    states: u64,
    /// Numbers of digits, and what launches report.
    host: PinnedPiece,
}

/// Where keys are, and their values.
#[derive(Clone, Copy, PartialEq)]
struct KeysPlace<'a> {
    keys: DeviceSpan<'a>,
    values: Option<DeviceSpan<'a>>,
}

impl<'a, L: Lane> Sorter<'a, L> {
    fn new(
        lane: &'a L,
        (keys, values): (Elements<'a>, Option<Elements<'a>>),
        order: KeyOrder,
        (count, moves): (&'a Kernel, &'a MoveKernel),
    ) -> Result<Self> {
        let states = (Self::words(keys.stride) * 8).next_multiple_of(ALIGN);
        let of_states = Self::state_bytes(moves, keys.count.min(Self::at_once(moves)));
        let memory = DeviceBuffer::new(lane.device(), states + of_states, Commit::Lazy)?;
        let host = lane.buffer((Self::words(keys.stride) * 8 + Report::BYTES) as usize)?;
        Ok(Self { lane, keys, values, order, count, moves, memory, states, host })
    }

    /// The numbers of all digits, and two times where keys of each value of one begin.
    fn words(stride: u64) -> u64 {
        (stride + 2) * DIGITS as u64
    }

    fn at_once(moves: &MoveKernel) -> u64 {
        KEYS_AT_ONCE / moves.tile * moves.tile
    }

    fn state_bytes(moves: &MoveKernel, keys: u64) -> u64 {
        STATE_HEADER_BYTES + keys.div_ceil(moves.tile) * DIGITS as u64 * 4
    }

    /// Bytes of keys and values beside one another, and where the values begin.
    fn beside_bytes(&self) -> (u64, u64) {
        let keys = (self.keys.count * self.keys.stride).next_multiple_of(ALIGN);
        (keys + self.values.map_or(0, |values| values.count * values.stride), keys)
    }

    fn home(&self) -> KeysPlace<'a> {
        KeysPlace { keys: self.keys.start, values: self.values.map(|values| values.start) }
    }

    fn run(&self, begin_write: impl FnOnce()) -> DeviceSort {
        // Of long arrays it takes as long to get memory for as to count.
        let (device, (bytes, values)) = (self.lane.device(), self.beside_bytes());
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
        let beside = KeysPlace { keys: beside.at(0), values: self.values.map(|_| beside.at(values)) };
        let mut from_to = (self.home(), beside);
        for (place, counts) in counts.chunks_exact(DIGITS).enumerate() {
            if counts.contains(&self.keys.count) {
                continue;
            }
            match self.pass(place as u64, counts, from_to) {
                Ok(()) => {}
                Err(error) if from_to.0 == self.home() && is_refusal(&error) => return DeviceSort::Refused,
                // What it has read is as it was.
                Err(error) => return self.failed(from_to.0, error),
            }
            from_to = (from_to.1, from_to.0);
        }
        match self.bring_home(from_to.0) {
            Ok(()) => DeviceSort::Done,
            Err(error) => self.failed(from_to.0, error),
        }
    }

    /// After a failure: the keys are in a place.
    fn failed(&self, at: KeysPlace<'_>, error: backend_api::Error) -> DeviceSort {
        match self.bring_home(at) {
            Ok(()) => DeviceSort::Failed(error.into()),
            Err(_) => DeviceSort::Lost(error.into()),
        }
    }

    /// Copies keys and values to where they belong, if they are in the memory beside it.
    fn bring_home(&self, from: KeysPlace<'_>) -> backend_api::Result<()> {
        let to = self.home();
        if from == to {
            return Ok(());
        }
        let bytes = self.keys.count * self.keys.stride;
        let mut copies = vec![Transfer::Internal { from: from.keys, to: to.keys, bytes }];
        if let (Some(values), Some(from)) = (self.values, from.values) {
            let bytes = values.count * values.stride;
            copies.push(Transfer::Internal { from, to: values.start, bytes });
        }
        self.done(&mut |queue| queue.submit(&copies))
    }

    /// Has work done in the queue of what changes the keys.
    fn done(
        &self,
        work: &mut dyn FnMut(&Queue<dyn Device>) -> backend_api::Result<Ticket>,
    ) -> backend_api::Result<()> {
        let ticket = self.lane.submit(RunAccess::Change, work)?;
        let of_each = self.keys.stride + self.values.map_or(0, |values| values.stride);
        recording::sized(ticket, 1, || 2 * self.keys.count * of_each);
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
            ..Launch::new(self.count, items, Geometry::plain(0), report)
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

    /// Moves all keys and values, by one digit.
    fn pass(
        &self,
        place: u64,
        counts: &[u64],
        (from, to): (KeysPlace<'_>, KeysPlace<'_>),
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
        let keys_to = Elements { start: to.keys, count, stride };
        self.done(&mut |queue| {
            let upload = Transfer::Upload { from: self.host.at(0), to: starts.start, bytes: digits * 8 };
            let mut last = queue.submit(&[upload])?;
            let mut first = 0;
            while first < count {
                let here = Self::at_once(self.moves).min(count - first);
                let bytes = Self::state_bytes(self.moves, here);
                queue.fill(&Fill { to: states.start, bytes, pattern: &[0] })?;
                let keys = Elements { start: from.keys.plus(first * stride), count: here, stride };
                let mut views = vec![keys.into(), keys_to.into(), starts.into(), ends.into(), states.into()];
                if let (Some(from), Some(to), Some(of)) = (from.values, to.values, self.values) {
                    let values = Elements { start: from.plus(first * of.stride), count: here, ..of };
                    views.push(values.into());
                    views.push(Elements { start: to, ..of }.into());
                }
                let params = [here, 8 * place, self.order.flip, self.order.flip_negative];
                let items = here.div_ceil(self.moves.tile) * u64::from(self.moves.block);
                last = queue.launch(&Launch {
                    views: &views,
                    params: &params,
                    ..Launch::new(&self.moves.kernel, items, Geometry::plain(0), report)
                })?;
                (starts, ends) = (ends, starts);
                first += here;
            }
            Ok(last)
        })
    }
}
