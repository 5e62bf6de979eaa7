//! Direct copies between a store (array or program memory) and a buffer in device memory, without the host.

use std::ops::Range;
use std::sync::Arc;

use backend_api::{Device, DeviceSpan, HostSpan, Reach, Ticket, Transfer};

use super::change::{Change, ResultStore};
use super::copy::SHORT_BYTES;
use super::in_ram::WorkQueue;
use super::peer_copy::{PeerCopy, append_copy};
use super::question::{Answer, Question, RunWork, TakenAnswer};
use super::run::Run;
use crate::base::error::Result;
use crate::engine::guards;
use crate::engine::links::reach;

/// A copy from memory of a device to the runs of a store.
struct FromMemory<'a> {
    from: DeviceSpan<'a>,
    /// The index of the first copied element.
    first: usize,
    stride: u64,
}

impl Change for FromMemory<'_> {
    fn overwrites(&self, _: usize) -> bool {
        true
    }

    fn prepare(&self, _: &dyn Device, _: Run<'_>, _: Option<HostSpan<'_>>) {}

    fn submit(
        &self,
        queue: WorkQueue<'_>,
        run: Run<'_>,
        _: Option<HostSpan<'_>>,
    ) -> backend_api::Result<Ticket> {
        let mut copies: Vec<Transfer<'_>> = Vec::new();
        for (number, index, len) in run.parts() {
            let from = self.from.plus((index - self.first) as u64 * self.stride);
            let to = run.columns[0].start.plus(number as u64 * self.stride);
            append_copy(&mut copies, from, to, len as u64 * self.stride);
        }
        queue.submit(&copies)
    }
}

/// Returns true if the devices of a store can copy `count` elements from memory of `device`. Short copies to
/// arrays go through the cache instead, which keeps the pages.
pub(super) fn can_put_from(target: &dyn ResultStore, count: usize, device: &Arc<dyn Device>) -> bool {
    let is_long = count * target.stride() >= SHORT_BYTES;
    // Do not wait while this thread holds page guards: the direct copy waits for threads that use its pages,
    // and one of these threads could be waiting for a guard of this thread.
    !guards::held()
        && target.pager().is_none_or(|pager| is_long && pager.redundancy().is_none())
        && target.devices().into_iter().all(|(own, _)| reach(own, device) >= Reach::Copies)
}

/// Copies elements from memory of a device to a range of a store, by the store's devices. Returns false
/// without a change if these devices cannot access the memory.
pub(crate) fn put_from(
    target: &dyn ResultStore,
    range: &Range<usize>,
    device: &Arc<dyn Device>,
    from: DeviceSpan<'_>,
) -> Result<bool> {
    if !can_put_from(target, range.len(), device) {
        return Ok(false);
    }
    let stride = target.stride() as u64;
    target.change(&[], range, &FromMemory { from, first: range.start, stride })?;
    if let Some((_, counters)) = target.devices().first() {
        counters.bytes_past_host.add(range.len() as u64 * stride);
    }
    Ok(true)
}

impl Question for PeerCopy<'_> {
    type Part = ();
    type Whole = ();

    fn answer_bytes(&self, _: u64) -> u64 {
        size_of::<u64>() as u64
    }

    fn kernel<'a>(&'a self, run: Run<'a>, _: u64, _: HostSpan<'a>) -> RunWork<'a> {
        RunWork::PeerCopy(self, run)
    }

    fn take(&self, (): &mut (), answer: &Answer<'_>) -> Result<TakenAnswer> {
        answer.note_fetched();
        Ok(TakenAnswer::Yes)
    }

    fn whole(&self, _: Vec<()>) {}
}
