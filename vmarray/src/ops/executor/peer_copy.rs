//! Copies of runs (contiguous elements on a device) to the memory of another device, without the host.

use backend_api::{DeviceSpan, Ticket, Transfer};

use super::in_ram::WorkQueue;
use super::run::Run;

/// The target of a copy between devices: memory of one device. All devices that store the copied elements
/// must be able to [access](crate::engine::links::reach) this memory.
#[derive(Debug)]
pub struct PeerCopy<'a> {
    /// The target address of the first element; further elements follow in the order of their indices.
    pub(crate) to: DeviceSpan<'a>,
    pub(crate) first: usize,
}

impl PeerCopy<'_> {
    pub(super) fn submit(&self, queue: WorkQueue<'_>, run: Run<'_>) -> backend_api::Result<Ticket> {
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

/// Appends a copy to a list of copies. Merges it with the last copy if it continues both ranges.
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
