//! Copies of elements between arrays, within device memory: from the pages' home slots (places in device
//! memory) of one array to the home slots of the other, without the host.

use std::ops::Range;

use backend_api::{Device, HostSpan, Reach, Ticket, Transfer};
use vmarray_support::links::is_same;

use super::change::{Change, OperandStore, ResultStore};
use super::in_ram::WorkQueue;
use super::peer_copy::append_copy;
use super::run::Run;
use crate::array::range::parts;
use crate::base::error::{Error, ErrorKind, Result};
use crate::engine::guards;
use crate::engine::links::reach;
use crate::engine::pager::Pager;

/// Copies of fewer bytes or pages go through the host, because frames may hold their pages and keep them.
/// Devices need whole pages written back and dropped, and several submissions, even for parts of pages.
pub(crate) const SHORT_BYTES: usize = 64 << 10;
const FEW_PAGES: usize = 4;
/// The most page copies in one submission: their list takes a MiB.
const LISTED_PAGES: usize = 16 << 10;

/// A copy from another array: each device of the target array copies to its own home slots.
struct ArrayCopy<'a> {
    from: &'a Pager,
    /// The number of elements in a page of the source array.
    page_len: usize,
    /// The range of the source array.
    of: Range<usize>,
    /// The index in the target array of the first copied element.
    first: usize,
    stride: usize,
    run_bytes: usize,
}

/// Copies elements of a store, from index `start` on, to a range of another store. If both are arrays and the
/// target's devices can access the source's memory, the devices copy. Otherwise the host does.
pub(crate) fn copy_elements(
    target: &dyn ResultStore,
    to: &Range<usize>,
    from: &dyn OperandStore,
    start: usize,
    mut by_host: impl FnMut() -> Result<()>,
) -> Result<()> {
    let Some(copy) = past_host(target, to, from, start) else { return by_host() };
    match target.change(&[], to, &copy) {
        // The failed copy has not changed the source array, so the host can repeat the whole copy.
        Err(error) if is_unsupported(&error) => by_host().map_err(|other| {
            // The host's copy has failed as well. If the direct copy had begun, return its error, because
            // only that error lists the elements that the direct copy may have written.
            let is_begun = matches!(error.kind(), ErrorKind::Interrupted { .. });
            if is_begun { error } else { other }
        }),
        done => done,
    }
}

/// Returns the copy as a change of the target, or `None` if the devices cannot copy directly.
fn past_host<'a>(
    target: &dyn ResultStore,
    to: &Range<usize>,
    from: &'a dyn OperandStore,
    start: usize,
) -> Option<ArrayCopy<'a>> {
    let (own, other, stride) = (target.pager()?, from.pager()?, from.stride());
    let few = FEW_PAGES.saturating_mul(own.page_bytes().max(other.page_bytes()));
    // Do not wait while this thread has page guards: the direct copy waits for threads that use its pages,
    // and one of these threads could be waiting for a guard of this thread.
    if to.len() * stride < few.max(SHORT_BYTES) || guards::is_waited_for() {
        return None;
    }
    let copy = ArrayCopy {
        from: other,
        page_len: other.page_bytes() / stride,
        of: start..start + to.len(),
        first: to.start,
        stride,
        run_bytes: LISTED_PAGES.saturating_mul(own.page_bytes().min(other.page_bytes())),
    };
    if std::ptr::eq(own, other) {
        let (read, page_len) = (copy.pages(), copy.page_len);
        let (first, end) = (to.start / page_len, to.end.div_ceil(page_len));
        if (first as u64) < read.end && read.start < end as u64 {
            return None;
        }
    }
    let is_alone = |pager: &Pager| pager.redundancy().is_none();
    if !is_alone(own) || !is_alone(other) {
        return None;
    }
    let others = from.devices();
    let reaches_all = |device| others.iter().all(|(other, _)| reach(device, other) >= Reach::Copies);
    let is_reached =
        copy.stays_on_devices(own) || target.devices().into_iter().all(|(own, _)| reaches_all(own));
    is_reached.then_some(copy)
}

/// Returns true if devices can move long ranges within an array without the host. `pages` is the distance in
/// pages; `None` stands for any distance.
pub(crate) fn copies_within(pager: &Pager, pages: Option<usize>) -> bool {
    let devices = || pager.channels().iter().map(|channel| channel.device());
    let stays = pages.is_some_and(|pages| pages.is_multiple_of(pager.channels().len()));
    pager.redundancy().is_none()
        && !guards::is_waited_for()
        && (stays || devices().all(|from| devices().all(|to| reach(from, to) >= Reach::Copies)))
}

/// Returns true if a device refused the copy as unsupported, instead of failing.
fn is_unsupported(error: &Error) -> bool {
    use backend_api::ErrorKind::{OutOfMemory, Unsupported};
    error.device_error().is_some_and(|error| matches!(error.kind(), OutOfMemory | Unsupported))
}

impl ArrayCopy<'_> {
    /// Returns true if source and target page are always on the same device: the distance is a multiple of
    /// the number of channels.
    fn stays_on_devices(&self, target: &Pager) -> bool {
        let (own, other) = (target.channels(), self.from.channels());
        let turn = self.page_len * own.len();
        self.first.abs_diff(self.of.start).is_multiple_of(turn)
            && target.page_bytes() == self.from.page_bytes()
            && own.len() == other.len()
            && own.iter().zip(other).all(|(one, other)| is_same(one.device(), other.device()))
    }

    fn pages(&self) -> Range<u64> {
        (self.of.start / self.page_len) as u64..self.of.end.div_ceil(self.page_len) as u64
    }
}

impl Change for ArrayCopy<'_> {
    fn overwrites(&self, _: usize) -> bool {
        true
    }

    fn striped(&self) -> Vec<(&Pager, Range<u64>)> {
        vec![(self.from, self.pages())]
    }

    fn run_bytes(&self) -> usize {
        self.run_bytes
    }

    fn prepare(&self, _: &dyn Device, _: Run<'_>, _: Option<HostSpan<'_>>) {}

    fn submit(
        &self,
        queue: WorkQueue<'_>,
        run: Run<'_>,
        _: Option<HostSpan<'_>>,
    ) -> backend_api::Result<Ticket> {
        let (to, bytes_of, channels) = (run.columns[0].start, self.stride as u64, self.from.channels());
        let mut copies: Vec<Transfer<'_>> = Vec::new();
        let mut copied = vec![0; channels.len()];
        for (number, index, len) in run.parts() {
            let place = self.of.start + (index - self.first);
            for part in parts(place..place + len, self.page_len) {
                let (channel, slot) = (part.page % channels.len(), part.page / channels.len());
                let at = (slot * self.page_len + part.within.start) as u64 * bytes_of;
                let from = channels[channel].slot_memory().plus(at);
                let bytes = part.within.len() as u64 * bytes_of;
                let to = to.plus((number + part.of_range.start) as u64 * bytes_of);
                append_copy(&mut copies, from, to, bytes);
                copied[channel] += bytes;
            }
        }
        let ticket = queue.submit(&copies)?;
        for (channel, bytes) in channels.iter().zip(copied) {
            channel.counters.bytes_past_host.add(bytes);
        }
        Ok(ticket)
    }
}
