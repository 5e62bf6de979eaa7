//! The order between a channel's two queues where they touch the same home slots.
//!
//! Fetches and write-backs need none: a page is fetched again only after its write-back. Kernels touch slots of many
//! pages, so they run in the fetch queue after all writes before them, and all later writes run after them. Whichever
//! comes next does the ordering, so that kernels in a row, and writes in a row, order nothing.

use backend_api::{Device, Queue, Result, Scatter, Ticket, contended};
use parking_lot::MutexGuard;

use super::Channel;
use crate::page::PageTable;

/// What the next submission to either queue has to come after.
#[derive(Debug, Default)]
pub(super) struct HomeOrder {
    /// The last write, unless a kernel was ordered after it.
    write: Option<Ticket>,
    /// The last kernel, unless a write was ordered after it.
    kernel: Option<Ticket>,
}

impl HomeOrder {
    /// Submits a write to home slots, after all kernels before it.
    pub(super) fn write<D: Device>(
        &mut self,
        writes: &Queue<D>,
        submit: impl FnOnce(&Queue<D>) -> Result<Ticket>,
    ) -> Result<Ticket> {
        if let Some(kernel) = self.kernel {
            writes.order_after(kernel)?;
            self.kernel = None;
        }
        let ticket = submit(writes)?;
        self.write = Some(ticket);
        Ok(ticket)
    }

    /// Submits a kernel, after all writes before it.
    fn kernel<D: Device>(
        &mut self,
        fetches: &Queue<D>,
        submit: impl FnOnce(&Queue<D>) -> Result<Ticket>,
    ) -> Result<Ticket> {
        if let Some(write) = self.write {
            fetches.order_after(write)?;
            self.write = None;
        }
        let ticket = submit(fetches)?;
        self.kernel = Some(ticket);
        Ok(ticket)
    }
}

impl<D: Device> Channel<D> {
    /// Runs device-side work on the fetch queue so that no write to a home slot overlaps with it.
    pub(crate) fn between_writes(&self, submit: impl FnOnce(&Queue<D>) -> Result<Ticket>) -> Result<Ticket> {
        let ticket = contended::lock(&self.home_order).kernel(&self.fetches, submit)?;
        self.counters.submissions.add(1);
        Ok(ticket)
    }

    /// The same for work that also reads home slots of other channels, on the same device.
    pub(crate) fn between_all_writes(
        &self,
        others: &[&Self],
        submit: impl FnOnce(&Queue<D>) -> Result<Ticket>,
    ) -> Result<Ticket> {
        let mut channels: Vec<&Self> = others.iter().copied().chain([self]).collect();
        // Always in this order, so that two threads do not wait for each other.
        channels.sort_by_key(|channel| std::ptr::from_ref(*channel));
        channels.dedup_by_key(|channel| std::ptr::from_ref(*channel));
        let mut orders: Vec<_> =
            channels.iter().map(|channel| contended::lock(&channel.home_order)).collect();
        for order in &orders {
            // Those of this channel's own queue are in order anyway.
            for before in [order.write, order.kernel].into_iter().flatten() {
                self.fetches.order_after(before)?;
            }
        }
        let ticket = submit(&self.fetches)?;
        self.counters.submissions.add(1);
        for (channel, order) in channels.iter().zip(&mut orders) {
            if std::ptr::eq(*channel, self) {
                (order.write, order.kernel) = (None, Some(ticket));
                continue;
            }
            let queues = [&channel.writes, &channel.fetches];
            if queues.into_iter().any(|queue| queue.order_after(ticket).is_err()) {
                // The work is under way all the same: what cannot come after it waits for it here. How it ends is
                // told to whoever has the ticket.
                let _ = self.device.wait(ticket);
            }
        }
        Ok(ticket)
    }

    /// Held while loads, or fills of slots, are submitted. The number counts them.
    pub(super) fn begin_loads(&self) -> MutexGuard<'_, u64> {
        let mut loads = contended::lock(&self.loads_begun);
        *loads += 1;
        loads
    }

    /// How often loads, or fills of slots, were submitted. A page that has contents and is absent at some time is so
    /// as far as a [scatter](Self::scatter_home) is concerned until the number changes.
    pub(crate) fn loads_begun(&self) -> u64 {
        *contended::lock(&self.loads_begun)
    }

    /// Has elements of absent pages with contents written where they live, with nothing held: what is loaded later
    /// sees them, since kernel and loads share a queue, and what was loaded before is found out here.
    ///
    /// `choose` is told whether any load or fill was submitted since there were `begun` of them. If so it looks at
    /// its pages again and leaves out all that are not absent any more. Loads of the channel wait meanwhile.
    pub(crate) fn scatter_home(
        &self,
        begun: u64,
        choose: impl FnOnce(bool) -> Option<Scatter>,
    ) -> Result<Option<Ticket>> {
        let mut order = contended::lock(&self.home_order);
        let loads = contended::lock(&self.loads_begun);
        let Some(scatter) = choose(*loads != begun) else { return Ok(None) };
        let ticket = order.kernel(&self.fetches, |queue| queue.scatter(&scatter))?;
        drop(loads);
        self.counters.submissions.add(1);
        Ok(Some(ticket))
    }

    /// How many pages could not be written back so far, of all writes that are done by now. A failed one leaves a home
    /// slot with anything in it, while its page stays resident.
    pub(crate) fn failed_write_backs(&self, table: &PageTable) -> u64 {
        self.reap(table);
        self.counters.failed_write_backs.get()
    }
}
