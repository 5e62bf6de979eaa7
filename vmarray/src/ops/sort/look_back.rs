//! What is found out on a card by one reading of elements side by side, in which each block waits for what
//! those before it have found: prefix sums, and runs of equal elements.

use std::ops::Range;
use std::sync::Arc;

use backend_api::expr::Geometry;
use backend_api::kernel::{Kernel, Report};
use backend_api::{
    Commit, Device, DeviceBuffer, Elements, ErrorKind, Fill, Launch, Queue, Ticket, Transfer, View,
};

use super::on_device::{ChannelShare, DeviceOutcome, refusal};
use super::onesweep::{
    LOOK_BACK_BLOCK, LOOK_BACK_OPENCL_MAX, LOOK_BACK_TILE, is_refusal, look_back_kernels, takes_opencl,
};
use crate::base::error::Result;
use crate::base::memory::zeroed_vec;
use crate::base::recording;
use crate::engine::channel::PinnedPiece;
use crate::ops::executor::{Operand, ResultStore, RunAccess};

/// Bytes of the states of tiles: before the first, and of each.
const STATE_BYTES: (u64, u64) = (64, 32);
/// Where the answer is in memory of the host.
const ANSWER_AT: usize = Report::BYTES as usize;
/// Bytes of states that are copied at a time.
const COPIED_AT_ONCE: usize = 1 << 20;

/// Submits something to a queue.
type SubmittedOne<'a> = dyn FnMut(&Queue<dyn Device>) -> backend_api::Result<Ticket> + 'a;

/// What is found of runs of equal elements, by their bits: so many of them are written beside, and the answer
/// is how many there are.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LookBack {
    /// The places where they begin, and behind all of them where they end.
    ListStarts { room: u64 },
    /// An element of each.
    ListDistinct { room: u64 },
}

/// Does it to the elements of a range of a store, if one card has them; says what came of it, or changes
/// nothing.
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
        let [share] = shares else { return DeviceOutcome::Refused };
        begin_write();
        match look_back_in(share, work) {
            Ok(found) => {
                answer = Some(found);
                DeviceOutcome::Done
            }
            Err(error) if error.device_error().is_some_and(is_refusal) => DeviceOutcome::Refused,
            // What was to be listed is new, and the elements are as they were.
            Err(error) => DeviceOutcome::Failed(error),
        }
    })?;
    Ok(answer)
}

fn look_back_in(share: &ChannelShare<'_>, work: LookBack) -> Result<u64> {
    let of = share.keys;
    let is_too_long = of.count >= LOOK_BACK_OPENCL_MAX && takes_opencl(share.lane.device());
    let kernels = look_back_kernels(of.stride).filter(|_| !is_too_long);
    let Some(kernels) = kernels else { return Err(refusal().into()) };
    let states = TileStates::new(share, of.count.div_ceil(LOOK_BACK_TILE))?;
    let (kernel, room) = match work {
        LookBack::ListStarts { room } => (&kernels.list_starts, room),
        LookBack::ListDistinct { room } => (&kernels.list_distinct, room),
    };
    let nothing = Elements { start: states.memory.at(states.bytes), count: 1, stride: 8 };
    let list = share.values.unwrap_or(nothing);
    states.launch(kernel, Some(list.into()), &[of.count, room], false, &mut || ())
}

/// What the tiles of a share tell each other, or are told, in memory of the device beside it.
pub(crate) struct TileStates<'a> {
    share: &'a ChannelShare<'a>,
    bytes: u64,
    memory: DeviceBuffer<dyn Device>,
    host: Option<PinnedPiece>,
}

/// What is known of a tile, its sum in two words behind that.
pub(crate) type TileState = [u64; STATE_BYTES.1 as usize / 8];

impl<'a> TileStates<'a> {
    /// Memory for so many tiles.
    ///
    /// # Errors
    /// A [refusal](is_refusal) of the device, and others.
    pub fn new(share: &'a ChannelShare<'a>, tiles: u64) -> Result<Self> {
        let bytes = STATE_BYTES.0 + tiles * STATE_BYTES.1;
        // And a list without room.
        let memory = DeviceBuffer::new(share.lane.device(), bytes + 8, Commit::Lazy)?;
        Ok(Self { share, bytes, memory, host: Some(share.lane.buffer(ANSWER_AT + 8)?) })
    }

    fn tiles(&self) -> u64 {
        (self.bytes - STATE_BYTES.0) / STATE_BYTES.1
    }

    /// Launches a kernel over the elements, a list if it takes one, and the states, which are all zero but
    /// for what was [told](Self::tell); says when it is about to, and gives the word that it answers with.
    ///
    /// # Errors
    /// A [refusal](is_refusal), if the device does not take the kernel, and others.
    pub fn launch(
        &self,
        kernel: &Kernel,
        list: Option<View<'_>>,
        params: &[u64],
        are_told: bool,
        begin_write: &mut dyn FnMut(),
    ) -> Result<u64> {
        let Some(host) = &self.host else { return Err(refusal().into()) };
        let (of, start) = (self.share.keys, self.memory.at(0));
        let states = Elements { start, count: self.bytes / 8, stride: 8 };
        let views: Vec<View<'_>> =
            [Some(of.into()), list, Some(states.into())].into_iter().flatten().collect();
        let new = Launch::new(kernel, self.tiles() * LOOK_BACK_BLOCK, Geometry::plain(0), host.at(0));
        let launch = Launch { views: &views, params, ..new };
        self.share.lane.device().prepare_launches(std::slice::from_ref(&launch))?;
        begin_write();
        let bytes = if are_told { STATE_BYTES.0 } else { self.bytes };
        let answer = (self.memory.at(8), host.at(ANSWER_AT as u64));
        let answer = Transfer::Download { from: answer.0, to: answer.1, bytes: 8 };
        self.done(&mut [
            &mut |queue| queue.fill(&Fill { to: start, bytes, pattern: &[0] }),
            &mut |queue| queue.launch(&launch),
            &mut |queue| queue.submit(&[answer]),
        ])?;
        let (mut report, mut answer) = ([0_u64; Report::BYTES as usize / 8], [0_u64]);
        host.read(0, bytemuck::cast_slice_mut(&mut report));
        host.read(ANSWER_AT, bytemuck::cast_slice_mut(&mut answer));
        if Report::from_words(report).failures == 0 { Ok(answer[0]) } else { Err(refusal().into()) }
    }

    /// Has each element, an integer, become the sum of all up to it, or of all before it.
    ///
    /// # Errors
    /// As there.
    pub fn sum_up(&self, is_exclusive: bool, begin_write: &mut dyn FnMut()) -> Result<()> {
        let of = self.share.keys;
        let kernels = look_back_kernels(of.stride).ok_or_else(refusal)?;
        let params = [of.count, is_exclusive.into()];
        self.launch(&kernels.sum_up, None, &params, false, begin_write).map(drop)
    }

    /// The states.
    pub fn read(&self) -> Result<Vec<TileState>> {
        let mut states = zeroed_vec(self.tiles() as usize)?;
        self.copy(&mut states, false)?;
        Ok(states)
    }

    /// Writes the states.
    pub fn tell(&self, states: &mut [TileState]) -> Result<()> {
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

    /// Has all of some work done, one after the other.
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
        // Also of what was submitted before something failed.
        let waited: Vec<_> =
            tickets.into_iter().map(|ticket| lane.wait(ticket).map_err(no_refusal)).collect();
        Ok(waited.into_iter().collect::<backend_api::Result<()>>().and(submitted)?)
    }
}

/// The error of work that may have been done, at least some of it: nobody is to do it again.
fn no_refusal(error: backend_api::Error) -> backend_api::Error {
    if !is_refusal(&error) {
        return error;
    }
    let changed = backend_api::Error::new(ErrorKind::KernelFailed, "prefix sum");
    changed.with_detail(format!("after it had begun: {error}"))
}

impl Drop for TileStates<'_> {
    fn drop(&mut self) {
        // All work has been waited for.
        self.host.take().into_iter().for_each(|host| self.share.lane.keep(host));
    }
}
