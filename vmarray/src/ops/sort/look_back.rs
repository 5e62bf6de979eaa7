//! What is found out on a card by one reading of elements side by side, in which each block waits for what
//! those before it have found: prefix sums, and runs of equal elements.

use std::ops::Range;
use std::sync::Arc;

use backend_api::expr::Geometry;
use backend_api::kernel::Report;
use backend_api::{
    Commit, Device, DeviceBuffer, Elements, Fill, HostSpan, Launch, Queue, Ticket, Transfer, View,
};

use super::on_device::{ChannelShare, DeviceOutcome, refusal};
use super::onesweep::{
    LOOK_BACK_BLOCK, LOOK_BACK_OPENCL_MAX, LOOK_BACK_TILE, is_refusal, look_back_kernels, takes_opencl,
};
use crate::base::error::Result;
use crate::base::recording;
use crate::ops::executor::{Operand, ResultStore, RunAccess};

/// Bytes of the states of tiles: before the first, and of each.
const STATE_BYTES: (u64, u64) = (64, 32);

/// What is done with integers, by their bits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum LookBack {
    /// Each becomes the sum of all up to it, or of all before it. The answer is the sum of all.
    SumUp { is_exclusive: bool },
    /// So many of the places where runs of equal ones begin, and behind all of them where they end, are
    /// written beside. The answer is how many runs there are.
    ListStarts { room: u64 },
    /// The same of one element of each run.
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
            Err(error) if !matches!(work, LookBack::SumUp { .. }) => DeviceOutcome::Failed(error),
            Err(error) => DeviceOutcome::Lost(error),
        }
    })?;
    Ok(answer)
}

fn look_back_in(share: &ChannelShare<'_>, work: LookBack) -> Result<u64> {
    const REPORT_AT: usize = 8;
    let (lane, of) = (&share.lane, share.keys);
    let is_too_long = of.count >= LOOK_BACK_OPENCL_MAX && takes_opencl(lane.device());
    let kernels = look_back_kernels(of.stride).filter(|_| !is_too_long);
    let Some(kernels) = kernels else { return Err(refusal().into()) };
    let bytes = STATE_BYTES.0 + of.count.div_ceil(LOOK_BACK_TILE) * STATE_BYTES.1;
    // And a list without room.
    let memory = DeviceBuffer::<dyn Device>::new(lane.device(), bytes + 8, Commit::Lazy)?;
    let states = Elements { start: memory.at(0), count: bytes / 8, stride: 8 };
    let mut views = vec![View::from(of), View::from(states)];
    let (kernel, word) = match work {
        LookBack::SumUp { is_exclusive } => (&kernels.sum_up, u64::from(is_exclusive)),
        LookBack::ListStarts { room } => (&kernels.list_starts, room),
        LookBack::ListDistinct { room } => (&kernels.list_distinct, room),
    };
    if !matches!(work, LookBack::SumUp { .. }) {
        let nothing = Elements { start: memory.at(bytes), count: 1, stride: 8 };
        views.insert(1, share.values.unwrap_or(nothing).into());
    }
    let host = lane.buffer(REPORT_AT + Report::BYTES as usize)?;
    let done = |work: &mut dyn FnMut(&Queue<dyn Device>) -> backend_api::Result<Ticket>| {
        let ticket = lane.submit(RunAccess::Change, work)?;
        recording::sized(ticket, 1, || 2 * of.count * of.stride);
        lane.wait(ticket)
    };
    let launch_into = |report: HostSpan<'_>| {
        let params = [of.count, word];
        let items = of.count.div_ceil(LOOK_BACK_TILE) * LOOK_BACK_BLOCK;
        let launch = Launch {
            views: &views,
            params: &params,
            ..Launch::new(kernel, items, Geometry::plain(0), report)
        };
        done(&mut |queue| queue.fill(&Fill { to: memory.at(0), bytes, pattern: &[0] }))?;
        done(&mut |queue| queue.launch(&launch))?;
        let (from, to) = (memory.at(8), host.at(0));
        done(&mut |queue| queue.submit(&[Transfer::Download { from, to, bytes: 8 }]))
    };
    let launched = launch_into(host.at(REPORT_AT as u64));
    let (mut answer, mut report) = ([0_u64], [0_u64; Report::BYTES as usize / 8]);
    host.read(0, bytemuck::cast_slice_mut(&mut answer));
    host.read(REPORT_AT, bytemuck::cast_slice_mut(&mut report));
    lane.keep(host);
    launched?;
    if Report::from_words(report).failures == 0 { Ok(answer[0]) } else { Err(refusal().into()) }
}
