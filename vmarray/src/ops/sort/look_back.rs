//! Launches of scans over tiles on a GPU: prefix sums, and the search for runs of equal elements. On
//! devices with forward progress each thread block waits for the results of earlier blocks. On other
//! devices, a first launch computes the result of each tile, and the host adds them up for a second
//! launch.

use std::ops::Range;
use std::sync::Arc;

use backend_api::expr::Geometry;
use backend_api::kernel::Report;
use backend_api::{
    Commit, Device, DeviceBuffer, Elements, ErrorKind, Fill, Launch, LaunchView, Queue, Request, Ticket,
    Transfer,
};

use super::kernels::{HAS_CARRIES, LOOK_BACK_BLOCK, LOOK_BACK_TILE, SUMS_ONLY, runs_kernel};
use super::on_device::refusal;
use super::onesweep::is_unsupported;
use crate::base::error::Result;
use crate::base::memory::zeroed_vec;
use crate::base::recording;
use crate::engine::channel::PinnedPiece;
use crate::ops::executor::{ChannelShare, DeviceOutcome, LibraryKernel, Operand, ResultStore, RunAccess};

/// The size in bytes of the state memory before the first tile, and of each tile's state.
const STATE_BYTES: (u64, u64) = (64, 32);
/// Offset in bytes of the kernel's result in host memory.
const ANSWER_AT: usize = Report::BYTES as usize;
/// The most bytes of states in one copy.
const COPIED_AT_ONCE: usize = 1 << 20;

type SubmittedOne<'a> = dyn FnMut(&Queue<dyn Device>) -> backend_api::Result<Ticket> + 'a;

/// The output of a search for runs of equal elements: at most `room` list entries. The result is their
/// number.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LookBack {
    /// The first position of each run, followed by the end of the last run.
    ListStarts { room: u64 },
    /// One element of each run.
    ListDistinct { room: u64 },
}

/// Runs a scan over a range of a store, if one GPU stores its elements. A refusal changes nothing.
pub(crate) fn look_back(
    store: &dyn ResultStore,
    range: &Range<usize>,
    beside: Option<(&dyn ResultStore, usize)>,
    work: LookBack,
) -> Result<Option<u64>> {
    let is_gpu = |device: &Arc<dyn Device>| device.info().kind.is_gpu();
    let beside = beside.map(|(store, len)| (Operand::changed(store, 0), len));
    let mut answer = None;
    store.change_on_devices(range, beside, &is_gpu, &mut |shares, _, begin_write| {
        let [share] = shares else { return DeviceOutcome::Unsupported };
        begin_write();
        match look_back_in(share, work) {
            Ok(found) => {
                answer = Some(found);
                DeviceOutcome::Done
            }
            Err(error) if error.device_error().is_some_and(is_unsupported) => DeviceOutcome::Unsupported,
            // Report `Failed`, not `Lost`: the kernel writes only to the new list, so the elements are
            // unchanged.
            Err(error) => DeviceOutcome::Failed(error),
        }
    })?;
    Ok(answer)
}

fn look_back_in(share: &ChannelShare<'_>, work: LookBack) -> Result<u64> {
    let of = share.keys;
    let (is_starts, room) = match work {
        LookBack::ListStarts { room } => (true, room),
        LookBack::ListDistinct { room } => (false, room),
    };
    let device = share.lane.device();
    let Some(kernel) = runs_kernel(device, of.stride, is_starts) else { return Err(refusal().into()) };
    let states = TileStates::new(share, of.count.div_ceil(LOOK_BACK_TILE))?;
    let stride = if is_starts { 8 } else { of.stride };
    let nothing = Elements { start: states.memory.at(states.bytes), count: 1, stride };
    let list = share.values.unwrap_or(nothing);
    let launch = |flags: u32, are_passed| {
        let values = [of.count, room, flags.into()];
        states.launch(kernel, Some(list.into()), &values, are_passed, &mut || ())
    };
    if device.info().forward_progress {
        return launch(0, false);
    }
    launch(SUMS_ONLY, false)?;
    let (mut sums, mut runs) = (states.read()?, 0);
    for [_, sum, ..] in &mut sums {
        runs += std::mem::replace(sum, runs);
    }
    if room > 0 {
        states.write_states(&mut sums)?;
        launch(HAS_CARRIES, true)?;
    }
    Ok(runs)
}

/// The states of a channel's tiles, in scratch memory of its device.
pub(crate) struct TileStates<'a> {
    share: &'a ChannelShare<'a>,
    bytes: u64,
    memory: DeviceBuffer<dyn Device>,
    host: Option<PinnedPiece>,
}

/// The state of a tile; its last two words are the sum.
pub(crate) type TileState = [u64; STATE_BYTES.1 as usize / 8];

impl<'a> TileStates<'a> {
    /// Allocates device memory for the states of `tiles` tiles (the elements of one thread block each).
    pub fn new(share: &'a ChannelShare<'a>, tiles: u64) -> Result<Self> {
        let bytes = STATE_BYTES.0 + tiles * STATE_BYTES.1;
        // The last 8 bytes of the memory serve as an empty list for kernels that take a list.
        let memory = DeviceBuffer::new(share.lane.device(), bytes + 8, Commit::Lazy)?;
        Ok(Self { share, bytes, memory, host: Some(share.lane.buffer(ANSWER_AT + 8)?) })
    }

    fn tiles(&self) -> u64 {
        (self.bytes - STATE_BYTES.0) / STATE_BYTES.1
    }

    /// Launches a kernel with these values of scalars, whose views are the elements, an optional list, and
    /// the states of tiles (the elements of one thread block each). If `are_passed` is set, the states
    /// come from [`write_states`](Self::write_states); otherwise they are zero. Calls `begin_write` before
    /// the launch. Returns the number that the kernel returns.
    ///
    /// # Errors
    /// An error for which [`is_unsupported`] is true if the device does not support the kernel; other errors
    /// of the device.
    pub fn launch(
        &self,
        kernel: &LibraryKernel,
        list: Option<LaunchView<'_>>,
        values: &[u64],
        are_passed: bool,
        begin_write: &mut dyn FnMut(),
    ) -> Result<u64> {
        let Some(host) = &self.host else { return Err(refusal().into()) };
        let (of, start) = (self.share.keys, self.memory.at(0));
        let states = Elements { start, count: self.bytes / 8, stride: 8 };
        let views: Vec<LaunchView<'_>> =
            [Some(of.into()), list, Some(states.into())].into_iter().flatten().collect();
        let items = self.tiles() * LOOK_BACK_BLOCK;
        let params = kernel.params(values, &views, items);
        let new = Launch::new(kernel.kernel(), items, Geometry::plain(0), host.at(0));
        let launch = Launch { views: &views, params: &params, ..new };
        self.share.lane.device().prepare(&[Request::Launch(&launch)])?;
        begin_write();
        let bytes = if are_passed { STATE_BYTES.0 } else { self.bytes };
        let answer = (self.memory.at(8), host.at(ANSWER_AT as u64));
        let answer = Transfer::Download { from: answer.0, to: answer.1, bytes: 8 };
        self.done(&mut [
            &mut |queue| queue.submit(&Fill { to: start, bytes, pattern: &[0] }),
            &mut |queue| queue.submit(&launch),
            &mut |queue| queue.submit(&[answer]),
        ])?;
        let (mut report, mut answer) = ([0_u64; Report::BYTES as usize / 8], [0_u64]);
        host.read(0, bytemuck::cast_slice_mut(&mut report));
        host.read(ANSWER_AT, bytemuck::cast_slice_mut(&mut answer));
        if Report::from_words(report).failures == 0 { Ok(answer[0]) } else { Err(refusal().into()) }
    }

    /// Copies the states of all tiles from the device to the host.
    pub fn read(&self) -> Result<Vec<TileState>> {
        let mut states = zeroed_vec(self.tiles() as usize)?;
        self.copy(&mut states, false)?;
        Ok(states)
    }

    /// Copies the states of tiles from the host to the device.
    pub fn write_states(&self, states: &mut [TileState]) -> Result<()> {
        self.copy(states, true)
    }

    fn copy(&self, states: &mut [TileState], is_written: bool) -> Result<()> {
        let (lane, mut at) = (&self.share.lane, STATE_BYTES.0);
        let host = lane.buffer(size_of_val(states).min(COPIED_AT_ONCE))?;
        let copied = states.chunks_mut(COPIED_AT_ONCE / size_of::<TileState>()).try_for_each(|states| {
            let (here, bytes) = (self.memory.at(at), size_of_val(states) as u64);
            let copy = if is_written {
                host.write(0, bytemuck::cast_slice(states));
                Transfer::Upload { from: host.at(0), to: here, bytes }
            } else {
                Transfer::Download { from: here, to: host.at(0), bytes }
            };
            self.done(&mut [&mut |queue| queue.submit(&[copy])])?;
            if !is_written {
                host.read(0, bytemuck::cast_slice_mut(states));
            }
            at += bytes;
            Ok(())
        });
        lane.keep(host);
        copied
    }

    /// Submits work several times in order, and waits for all of it.
    fn done(&self, all: &mut [&mut SubmittedOne<'_>]) -> Result<()> {
        let (lane, of) = (&self.share.lane, self.share.keys);
        let mut tickets = Vec::new();
        let submitted = all.iter_mut().try_for_each(|work| {
            let ticket =
                lane.submit(RunAccess::Change, &mut **work).map_err(|error| match tickets.len() {
                    0 | 1 => error,
                    _ => no_refusal(error),
                })?;
            recording::sized(ticket, 1, || 2 * of.count * of.stride);
            tickets.push(ticket);
            Ok(())
        });
        // Wait for the accepted submissions even after a failure, because they use the memory that the caller
        // reuses.
        let waited: Vec<_> =
            tickets.into_iter().map(|ticket| lane.wait(ticket).map_err(no_refusal)).collect();
        Ok(waited.into_iter().collect::<backend_api::Result<()>>().and(submitted)?)
    }
}

/// Converts a refusal to another error if the operation may be partly done, to prevent a retry.
fn no_refusal(error: backend_api::Error) -> backend_api::Error {
    if !is_unsupported(&error) {
        return error;
    }
    let changed = backend_api::Error::new(ErrorKind::KernelFailed, "prefix sum");
    changed.with_detail(format!("the operation failed after it may have changed elements: {error}"))
}

impl Drop for TileStates<'_> {
    fn drop(&mut self) {
        // The caller has waited for all device work, so the host memory can be reused.
        self.host.take().into_iter().for_each(|host| self.share.lane.keep(host));
    }
}
