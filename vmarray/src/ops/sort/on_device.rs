//! LSD radix sort, in device memory, of the keys that one channel (share of a device) stores.
//!
//! Each pass copies all keys to other memory, sorted by one more digit. The next pass starts only after the
//! previous one has succeeded, so a failed pass leaves its input intact. Keys may have values, which move
//! with them.

use std::sync::Arc;

use backend_api::expr::Geometry;
use backend_api::kernel::Report;
use backend_api::{
    Commit, Device, DeviceBuffer, DeviceSpan, Elements, Fill, Launch, LaunchView, Queue, Request, Route,
    Ticket, Transfer,
};

use super::kernels::{count_kernel, move_kernel};
use super::keys::KeyOrder;
use super::onesweep::{COUNTING_BLOCK, DIGITS, MoveKernel, STATE_HEADER_BYTES};
use crate::base::error::Result;
use crate::base::progress::Steps;
use crate::base::recording;
use crate::engine::channel::PinnedPiece;
use crate::ops::executor::{ChannelShare, LibraryKernel, RunAccess};

/// The most keys in one launch: less than 2^30, because the state word of a tile has 30 bits for counts.
const KEYS_AT_ONCE: u64 = 1 << 29;
/// The most blocks that count digits: as many as run concurrently on a large GPU.
const COUNTING_BLOCKS: u64 = 1056;
/// The least number of keys that a block counts.
const COUNTED_BY_BLOCK: u64 = 8192;
/// Alignment in bytes of the parts of the scratch memory.
const ALIGN: u64 = 256;

/// Returns true if a device may sort keys of this size in bytes, with values of `value_bytes` or without.
pub(crate) fn can_sort(device: &Arc<dyn Device>, key_bytes: usize, value_bytes: Option<usize>) -> bool {
    // Check for a GPU here, because other devices would refuse the native kernel only at its launch.
    device.info().kind.is_gpu()
        && move_kernel(device, key_bytes as u64, value_bytes.map(|bytes| bytes as u64)).is_some()
}

/// The device addresses of keys and of their values.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct KeysPlace<'a> {
    pub keys: DeviceSpan<'a>,
    pub values: Option<DeviceSpan<'a>>,
}

/// Sorts a channel's keys in its device's memory, with scratch memory.
pub(super) struct Sorter<'a> {
    pub share: &'a ChannelShare<'a>,
    pub order: KeyOrder,
    steps: &'a Steps,
    count: &'a LibraryKernel,
    moves: &'a MoveKernel,
    /// Device memory for digit counts, and for states of tiles.
    memory: DeviceBuffer<dyn Device>,
    states: u64,
    /// Host memory for digit counts, and for reports of launches.
    host: PinnedPiece,
}

impl<'a> Sorter<'a> {
    /// Allocates memory for the sort of the keys in `share` (one channel, which is a share of a device).
    ///
    /// # Errors
    /// An error for which [`is_unsupported`](super::onesweep::is_unsupported) is true if the device does not
    /// support the sort; other errors of the device.
    pub fn new(share: &'a ChannelShare<'a>, order: KeyOrder, steps: &'a Steps) -> Result<Self> {
        let keys = share.keys;
        let value_bytes = share.values.map(|of| of.stride);
        let device = share.lane.device();
        let kernels = (count_kernel(device, keys.stride), move_kernel(device, keys.stride, value_bytes));
        let (Some(count), Some(moves)) = kernels else { return Err(refusal().into()) };
        let states = (Self::words(keys.stride) * 8).next_multiple_of(ALIGN);
        let of_states = Self::state_bytes(moves, keys.count.min(Self::at_once(moves)));
        let memory = DeviceBuffer::new(share.lane.device(), states + of_states, Commit::Lazy)?;
        let host = share.lane.buffer((Self::words(keys.stride) * 8 + Report::BYTES) as usize)?;
        Ok(Self { share, order, steps, count, moves, memory, states, host })
    }

    /// Number of words for the counts of all digits, and two lists of the first position of each value.
    fn words(stride: u64) -> u64 {
        (stride + 2) * DIGITS as u64
    }

    fn at_once(moves: &MoveKernel) -> u64 {
        KEYS_AT_ONCE / moves.tile * moves.tile
    }

    fn state_bytes(moves: &MoveKernel, keys: u64) -> u64 {
        STATE_HEADER_BYTES + keys.div_ceil(moves.tile) * DIGITS as u64 * 4
    }

    /// Returns the borrowed host memory to the channel (share of a device).
    pub fn end(self) {
        self.share.lane.keep(self.host);
    }

    pub fn home(&self) -> KeysPlace<'a> {
        let ChannelShare { keys, values, .. } = self.share;
        KeysPlace { keys: keys.start, values: values.map(|values| values.start) }
    }

    /// Allocates device memory for `count` keys and their values.
    pub fn memory_for(&self, count: u64) -> backend_api::Result<KeysMemory> {
        let values = self.share.values.map(|of| of.stride);
        let values_begin = (count * self.share.keys.stride).next_multiple_of(ALIGN);
        let bytes = values_begin + values.map_or(0, |stride| count * stride);
        let memory = DeviceBuffer::new(self.share.lane.device(), bytes, Commit::Lazy)?;
        Ok(KeysMemory { memory, values: values.map(|_| values_begin) })
    }

    /// Returns the location `by` keys after `place`.
    pub fn further<'p>(&self, place: KeysPlace<'p>, by: u64) -> KeysPlace<'p> {
        let ChannelShare { keys, values, .. } = self.share;
        let values = place.values.zip(*values).map(|(place, of)| place.plus(by * of.stride));
        KeysPlace { keys: place.keys.plus(by * keys.stride), values }
    }

    /// Counts the `keys` keys from `at` on by the value of each digit (the histograms of the radix sort).
    ///
    /// # Errors
    /// An error for which [`is_unsupported`](super::onesweep::is_unsupported) is true if the device does not
    /// support the kernels; other errors of the device.
    pub fn counts(&self, at: KeysPlace<'_>, keys: u64) -> backend_api::Result<Vec<u64>> {
        let (words, stride) = (Self::words(self.share.keys.stride), self.share.keys.stride);
        let counted = stride * DIGITS as u64;
        let blocks = keys.div_ceil(COUNTED_BY_BLOCK).min(COUNTING_BLOCKS);
        let numbers = Elements { start: self.memory.at(0), count: 2 * words, stride: 4 };
        let items = blocks * u64::from(COUNTING_BLOCK);
        let views = [Elements { start: at.keys, count: keys, stride }.into(), numbers.into()];
        let fill = Fill { to: self.memory.at(0), bytes: words * 8, pattern: &[0] };
        self.done(0, &mut |queue| queue.submit(&fill))?;
        self.launch(self.count, items, &views, &[keys, self.order.flip, self.order.flip_negative])?;
        let (from, to) = (self.memory.at(0), self.host.at(0));
        self.copy_numbers(Transfer::Download { from, to, bytes: counted * 8 })?;
        let mut counts = vec![0; counted as usize];
        self.host.read(0, bytemuck::cast_slice_mut(&mut counts));
        Ok(counts)
    }

    /// Sorts the `keys` keys at `from` by all digits. `counts` are the histograms from
    /// [`counts`](Self::counts), and `beside` is scratch memory. Returns the location of the sorted keys.
    ///
    /// # Errors
    /// An error of the device, with the location of the keys, which are then in an unspecified order.
    pub fn sort<'p>(
        &self,
        keys: u64,
        counts: &[u64],
        from: KeysPlace<'p>,
        beside: KeysPlace<'p>,
    ) -> std::result::Result<KeysPlace<'p>, (KeysPlace<'p>, backend_api::Error)> {
        let mut from_to = (from, beside);
        for (place, counts) in counts.chunks_exact(DIGITS).enumerate() {
            if counts.contains(&keys) {
                self.report(keys).map_err(|error| (from_to.0, error))?;
            } else {
                // A failed pass leaves its input unchanged, so the keys are still at the source.
                self.pass(place as u64, counts, from_to).map_err(|error| (from_to.0, error))?;
                from_to = (from_to.1, from_to.0);
            }
        }
        Ok(from_to.0)
    }

    /// Copies keys and values in device memory. A copy is (source, target, number of keys), without overlap.
    pub fn copy(&self, copies: &[(KeysPlace<'_>, KeysPlace<'_>, u64)]) -> backend_api::Result<()> {
        let ChannelShare { keys: of_keys, values: of_values, .. } = self.share;
        let mut transfers = Vec::new();
        for (from, to, keys) in copies.iter().filter(|(from, to, _)| from != to) {
            let bytes = keys * of_keys.stride;
            transfers.push(Transfer::Internal { from: from.keys, to: to.keys, bytes });
            if let (Some(of), Some(from), Some(to)) = (of_values, from.values, to.values) {
                transfers.push(Transfer::Internal { from, to, bytes: keys * of.stride });
            }
        }
        if transfers.is_empty() {
            return Ok(());
        }
        self.done(copies.iter().map(|(.., keys)| keys).sum(), &mut |queue| queue.submit(&transfers))
    }

    /// Launches a kernel over `items` work-items (GPU threads) in the queue that also moves the keys, and
    /// waits until the kernel has ended. `values` are the kernel's scalar parameters.
    ///
    /// # Errors
    /// An error for which [`is_unsupported`](super::onesweep::is_unsupported) is true if the device does not
    /// support the kernel, for example because its memory consists of several allocations; other errors of
    /// the device.
    pub fn launch(
        &self,
        kernel: &LibraryKernel,
        items: u64,
        views: &[LaunchView<'_>],
        values: &[u64],
    ) -> backend_api::Result<()> {
        let report_at = Self::words(self.share.keys.stride) * 8;
        let new = Launch::new(kernel.kernel(), items, Geometry::plain(0), self.host.at(report_at));
        let params = kernel.params(values, views, items);
        let launch = Launch { views, params: &params, ..new };
        self.done(views.iter().map(LaunchView::count).max().unwrap_or(0), &mut |queue| {
            queue.submit(&launch)
        })?;
        let mut report = [0_u64; Report::BYTES as usize / 8];
        self.host.read(report_at as usize, bytemuck::cast_slice_mut(&mut report));
        if Report::from_words(report).failures == 0 { Ok(()) } else { Err(refusal()) }
    }

    /// Reads key `number` after `place`, and converts it to the unsigned number by which the sort orders it.
    pub fn key_at(&self, place: KeysPlace<'_>, number: u64) -> backend_api::Result<u64> {
        let bytes = self.share.keys.stride;
        let from = self.further(place, number).keys;
        let copy = Transfer::Download { from, to: self.host.at(0), bytes };
        self.done(1, &mut |queue| queue.submit(&[copy]))?;
        let mut word = [0; 8];
        self.host.read(0, &mut word[..bytes as usize]);
        Ok(self.order.key_of_word(u64::from_le_bytes(word), bytes))
    }

    /// Copies a short range. Uses a kernel if possible, because the copy engine may be busy with long copies.
    fn copy_numbers(&self, copy: Transfer<'_>) -> backend_api::Result<()> {
        let device = self.share.lane.device();
        self.done(0, &mut |queue| {
            device.submit(queue.handle(), &Request::Copies(&[copy], Some(Route::Kernel)))
        })
    }

    /// Submits work to the queue that moves the keys, and waits for it.
    fn done(
        &self,
        keys_moved: u64,
        work: &mut dyn FnMut(&Queue<dyn Device>) -> backend_api::Result<Ticket>,
    ) -> backend_api::Result<()> {
        let lane = &self.share.lane;
        let ticket = lane.submit(RunAccess::Change, work)?;
        recording::sized(ticket, 1, || 2 * keys_moved * self.share.bytes_of_each());
        lane.wait(ticket)
    }

    /// Reports to the program that the sort is about to move `keys` keys.
    ///
    /// # Errors
    /// A cancellation by the program, as an error of a device.
    pub fn report(&self, keys: u64) -> backend_api::Result<()> {
        let reported = self.steps.report(keys * self.share.bytes_of_each());
        reported.map_err(|_| backend_api::Error::new(backend_api::ErrorKind::KernelFailed, "sort"))
    }

    /// One pass of the radix sort: sorts keys and values by the digit at `place`. `counts` is the histogram
    /// of the digit.
    pub fn pass(
        &self,
        place: u64,
        counts: &[u64],
        (from, to): (KeysPlace<'_>, KeysPlace<'_>),
    ) -> backend_api::Result<()> {
        let ChannelShare { keys: Elements { stride, .. }, values, .. } = *self.share;
        let (digits, mut next) = (DIGITS as u64, 0);
        let starts = counts.iter().map(|count| {
            next += count;
            next - count
        });
        let starts: Vec<u64> = starts.collect();
        let count = next;
        self.host.write(0, bytemuck::cast_slice(&starts));
        let numbers =
            |place: u64| Elements { start: self.memory.at(place * digits * 8), count: digits, stride: 8 };
        let (mut starts, mut ends) = (numbers(stride), numbers(stride + 1));
        let states_start = self.memory.at(self.states);
        let keys_to = Elements { start: to.keys, count, stride };
        let upload = Transfer::Upload { from: self.host.at(0), to: starts.start, bytes: digits * 8 };
        self.copy_numbers(upload)?;
        let mut first = 0;
        while first < count {
            let here = Self::at_once(self.moves).min(count - first);
            self.report(here)?;
            let bytes = Self::state_bytes(self.moves, here);
            let states = Elements { start: states_start, count: bytes / 4, stride: 4 };
            let fill = Fill { to: states.start, bytes, pattern: &[0] };
            self.done(0, &mut |queue| queue.submit(&fill))?;
            let keys = Elements { start: from.keys.plus(first * stride), count: here, stride };
            let mut views = vec![keys.into(), keys_to.into(), starts.into(), ends.into(), states.into()];
            if let (Some(from), Some(to), Some(of)) = (from.values, to.values, values) {
                let values = Elements { start: from.plus(first * of.stride), count: here, ..of };
                views.push(values.into());
                views.push(Elements { start: to, count, ..of }.into());
            }
            let params = [here, 8 * place, self.order.flip, self.order.flip_negative];
            let items = here.div_ceil(self.moves.tile) * u64::from(self.moves.block);
            if let Some([count, add]) = &self.moves.counts {
                self.launch(count, items, &[keys.into(), states.into()], &params)?;
                self.launch(add, digits * digits, &[states.into()], &[])?;
            }
            self.launch(&self.moves.kernel, items, &views, &params)?;
            (starts, ends) = (ends, starts);
            first += here;
        }
        Ok(())
    }
}

/// Device memory for keys, and for their values behind them.
pub(super) struct KeysMemory {
    memory: DeviceBuffer<dyn Device>,
    values: Option<u64>,
}

impl KeysMemory {
    pub fn place(&self) -> KeysPlace<'_> {
        KeysPlace { keys: self.memory.at(0), values: self.values.map(|begin| self.memory.at(begin)) }
    }
}

/// Returns the error for a device that does not support a kernel, or lacks scratch memory.
pub(crate) fn refusal() -> backend_api::Error {
    backend_api::Error::new(backend_api::ErrorKind::Unsupported, "sort")
}
