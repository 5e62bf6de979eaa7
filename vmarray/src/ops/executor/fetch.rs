//! Direct copies of elements to other device memory, without the host.

use backend_api::{Device, DeviceSpan, HostSpan, Queue, Ticket, Transfer};

use super::{Answer, Kernel, Question, Run, TakenAnswer};
use crate::base::error::Result;

/// A copy by the devices of a store to memory of one device, which each of them can
/// [access](crate::engine::links::reach).
#[derive(Debug)]
pub struct PastHost<'a> {
    /// The place of the first element; the others follow in the order of their indices.
    pub(crate) to: DeviceSpan<'a>,
    /// The index of the first.
    pub(crate) first: usize,
}

impl PastHost<'_> {
    pub(super) fn submit(&self, queue: &Queue<dyn Device>, run: Run<'_>) -> backend_api::Result<Ticket> {
        let (start, stride) = (run.columns[0].start, run.columns[0].stride);
        let mut copies: Vec<Transfer<'_>> = Vec::new();
        for (number, index, len) in run.parts() {
            let (from, to) =
                (start.plus(number as u64 * stride), self.to.plus((index - self.first) as u64 * stride));
            append_copy(&mut copies, from, to, len as u64 * stride);
        }
        queue.submit(&copies)
    }
}

/// Appends a copy within or between devices. A copy that continues the last one in both places is merged
/// with it.
pub(super) fn append_copy<'a>(
    copies: &mut Vec<Transfer<'a>>,
    from: DeviceSpan<'a>,
    to: DeviceSpan<'a>,
    more: u64,
) {
    if let Some(Transfer::Internal { from: before, to: target, bytes }) = copies.last_mut()
        && (before.plus(*bytes), target.plus(*bytes)) == (from, to)
    {
        *bytes += more;
    } else {
        copies.push(Transfer::Internal { from, to, bytes: more });
    }
}

impl Question for PastHost<'_> {
    type Part = ();
    type Whole = ();

    fn answer_bytes(&self, _: u64) -> u64 {
        size_of::<u64>() as u64
    }

    fn kernel<'a>(&'a self, run: Run<'a>, _: u64, _: HostSpan<'a>) -> Kernel<'a> {
        Kernel::PastHost(self, run)
    }

    fn take(&self, (): &mut (), answer: &Answer<'_>) -> Result<TakenAnswer> {
        answer.note_fetched();
        Ok(TakenAnswer::Yes)
    }

    fn whole(&self, _: Vec<()>) {}
}
