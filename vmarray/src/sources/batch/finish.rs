//! Completion of a batch of a source's pages: waits for the work, and records the pages' new states.

use std::ops::{ControlFlow, Range};

use super::{BatchOperation, Hold, PageBatch, SlotRun, SourceCore};
use crate::base::element::Element;
use crate::base::error::{Error, Result};
use crate::ops::executor::{Lane as _, RunAccess};
use crate::sources::channel::PageBlocks;

impl<T: Element> SourceCore<T> {
    /// Waits for the work of a batch, records the new states of its pages, and processes the results.
    pub(super) fn finish<O: BatchOperation<T>>(
        &self,
        mut batch: PageBatch<'_, O::Work>,
        operation: &O,
        outcome: &mut O::Found,
    ) -> Result<ControlFlow<()>> {
        let mut result = batch.error.take().map_or(Ok(()), Err);
        // If a submission failed, it is unknown which copies were started, so a later batch repeats all.
        for ticket in std::mem::take(&mut batch.uploads) {
            if let Err(error) = batch.channel.device().wait(ticket) {
                batch.is_fetched = false;
                result = result.and(Err(error.into()));
            }
        }
        if batch.is_fetched {
            let fetched = batch.members.iter().filter(|member| member.fetched != 0);
            fetched.for_each(|member| self.entries[member.page].fetched(member.fetched));
        }
        let by_run = operation.access() != RunAccess::Read && operation.value().is_none();
        let mut flow = ControlFlow::Continue(());
        while let Some((run, tickets, work)) = batch.works.pop_front() {
            // Wait for all tickets even after an error, so that no work is in flight.
            let waits = tickets.iter().map(|ticket| batch.channel.device().wait(*ticket));
            let done = waits.reduce(Result::and).unwrap_or(Ok(())).map_err(Error::from);
            if by_run {
                self.note_changed(&batch, &run, done.is_ok(), operation, outcome);
            }
            if result.is_err() || flow.is_break() {
                continue;
            }
            match done.and_then(|()| operation.finish(batch.channel, &run, work, outcome)) {
                Ok(next) => flow = next,
                Err(error) => result = Err(error),
            }
            if result.is_ok() && flow.is_continue() {
                result = self.launch(&mut batch, operation);
            }
        }
        if operation.access() != RunAccess::Read && result.is_err() {
            // Wait, because a part of the refused work may be in flight already.
            let rest = batch.channel.kernels().submit(&[]);
            let _ = rest.and_then(|ticket| batch.channel.device().wait(ticket));
        }
        if let Some(run) = batch.refused.take().filter(|_| by_run) {
            self.note_changed(&batch, &run, false, operation, outcome);
        }
        if let Some(value) = operation.value() {
            result = self.note_overwritten(&mut batch, value, result);
        }
        result.map(|()| flow)
    }

    /// Records the states of the pages of a run after work that changes elements.
    ///
    /// If the work failed, blocks that are valid in the home keep their value. Blocks that only the device
    /// has were written, or their contents are unspecified.
    fn note_changed<O: BatchOperation<T>>(
        &self,
        batch: &PageBatch<'_, O::Work>,
        run: &SlotRun,
        done: bool,
        operation: &O,
        outcome: &mut O::Found,
    ) {
        for member in &batch.members[run.members.clone()] {
            let entry = &self.entries[member.page];
            let changed = if done {
                let changed =
                    if batch.is_fetched { member.touched } else { member.touched & !member.fetched };
                entry.changed_on_device(changed);
                changed
            } else {
                let lost = member.touched & entry.dirty();
                entry.invalidate(member.touched & !lost);
                lost
            };
            let first = member.page * self.cuts.page_len;
            let within = &member.within;
            for blocks in self.cuts.ranges(member.page, changed) {
                let elements: Range<usize> = blocks.start.max(within.start)..blocks.end.min(within.end);
                operation.changed(first + elements.start..first + elements.end, done, outcome);
            }
        }
    }

    /// Records that the work overwrote the batch's elements with a value. If the device failed, the host
    /// writes the value.
    fn note_overwritten<W>(&self, batch: &mut PageBatch<'_, W>, value: T, result: Result<()>) -> Result<()> {
        let Err(error) = result else {
            batch.members.iter().for_each(|m| self.entries[m.page].changed_on_device(m.touched));
            return Ok(());
        };
        for member in &mut batch.members {
            let Some(Hold::Exclusive(held)) = &mut member.hold else { continue };
            let entry = &self.entries[member.page];
            let covered = self.cuts.covered(member.page, &member.within);
            // The device may have written a part of these blocks, so discard the device's copies. All other
            // blocks are unchanged.
            entry.invalidate(covered);
            let beside = member.touched & !covered;
            let newer = entry.dirty() & beside;
            if newer != 0 {
                let blocks = PageBlocks { page: member.page, slot: member.slot, blocks: newer };
                self.bring_page_home(held, blocks).map_err(|_| error.clone())?;
            }
            entry.invalidate(beside);
            self.elements_mut(held, member.page, &member.within).fill(value);
        }
        Ok(())
    }
}
