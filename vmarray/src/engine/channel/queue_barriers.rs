//! Queue barriers: order between submissions to different queues of a channel (share of a device) that access
//! the same home slots (the pages' places in device memory).
//!
//! | | copies out of slots | kernels that read | kernels that write | copies into slots, fills |
//! |---|---|---|---|---|
//! | protection | the holder of the page | none | none, or the holder of the pages | the holder of the page |
//! | queue | any fetch queue | any fetch queue | the first fetch queue | any write queue |
//! | waits for all earlier | kernels that write | kernels that write, writes | copies, kernels, writes | kernels |
//!
//! Copies need no order among themselves, because a page is fetched again only after its write-back. Kernels
//! access slots of many pages without holding them. So no element may change during a reading kernel, and no
//! thread or copy may read an element during a writing kernel. The later submission waits for the earlier
//! one, once for each pair of queues. Consecutive kernels, and consecutive writes, need no barrier.

use std::sync::Arc;

use backend_api::{Device, Queue, Result, Scatter, Ticket};

use super::direct::{DirectGate, ReadsBarred};
use super::order_lock::{OrderGuard, OrderLock};
use super::queues::{DirectionQueues, QUEUES};
use crate::base::recording::{self, SubmittedWork};
use crate::base::stats::Counters;

/// The newest tickets of one kind of work, by queue.
type Newest = [Option<Ticket>; QUEUES];
/// A function that submits work to a queue; it is called at most once.
pub(crate) type QueueWork<'a> = &'a mut dyn FnMut(&Queue<dyn Device>) -> Result<Ticket>;
/// For each of some queues, the newest ticket of another queue after which its work is ordered already.
type Known = [u64; QUEUES];

/// Work after which later writes and kernels must run.
#[derive(Debug, Default)]
pub(super) struct QueueBarriers {
    /// The newest writes, by write queue.
    writes: Newest,
    /// The newest kernels, by fetch queue.
    kernels: Newest,
    /// Tickets of write queues after which fetch queues are ordered already, by fetch queue,
    after_writes: [Known; QUEUES],
    /// and tickets of kernels after which write queues are ordered already, by write queue.
    after_kernels: [Known; QUEUES],
    /// Kernels in queues of the array's other channels that read these slots: the newest one of each queue.
    readers: Vec<Ticket>,
    /// The newest of `readers` after which each write queue, and the first fetch queue, are ordered already.
    after_readers: [Vec<Ticket>; QUEUES],
    store_after_readers: Vec<Ticket>,
}

impl QueueBarriers {
    /// Orders a write queue after all `readers`.
    fn order_after_readers(&mut self, queue: &Queue<dyn Device>, at: usize) -> Result<()> {
        let known = &mut self.after_readers[at];
        self.readers.iter().try_for_each(|ticket| order_other(queue, *ticket, known))
    }
}

/// Work after which later copies out of slots, and kernels, must run.
#[derive(Debug, Default)]
pub(super) struct LoadOrder {
    begun: u64,
    /// The newest copies and reading kernels, by fetch queue.
    reads: Newest,
    /// The newest writing kernel. It runs in the first queue, after these reads.
    store: Option<Ticket>,
    after_reads: Known,
    /// Tickets of writing kernels after which fetch queues are ordered already, by fetch queue.
    after_store: Known,
    /// Tickets of queues of the array's other channels after which each fetch queue is ordered already.
    after_others: [Vec<Ticket>; QUEUES],
}

/// Scatters in flight, by the channel of their queue. The drop waits for their end.
struct StartedScatters<'a> {
    all: &'a [&'a HomeQueues],
    tickets: Vec<(usize, Ticket)>,
}

impl Drop for StartedScatters<'_> {
    fn drop(&mut self) {
        for (lane, ticket) in &self.tickets {
            let _ = self.all[*lane].device.wait(*ticket);
        }
    }
}

/// Orders a queue after a ticket of another channel's queue, unless `known` says that it is.
fn order_other(queue: &Queue<dyn Device>, ticket: Ticket, known: &mut Vec<Ticket>) -> Result<()> {
    if known.iter().any(|known| known.queue == ticket.queue && known.value >= ticket.value) {
        return Ok(());
    }
    queue.order_after(ticket)?;
    note_newest(known, ticket);
    Ok(())
}

/// Adds a ticket, which replaces an older one of the same queue.
fn note_newest(tickets: &mut Vec<Ticket>, ticket: Ticket) {
    match tickets.iter_mut().find(|known| known.queue == ticket.queue) {
        Some(known) => known.value = known.value.max(ticket.value),
        None => tickets.push(ticket),
    }
}

/// Orders a queue after a ticket, unless `known` says that it is.
fn order_one(queue: &Queue<dyn Device>, ticket: Option<Ticket>, known: &mut u64) -> Result<()> {
    if let Some(ticket) = ticket
        && ticket.value > *known
    {
        queue.order_after(ticket)?;
        *known = ticket.value;
    }
    Ok(())
}

fn order_all(queue: &Queue<dyn Device>, tickets: &Newest, known: &mut Known) -> Result<()> {
    tickets.iter().zip(known).try_for_each(|(ticket, known)| order_one(queue, *ticket, known))
}

/// The queues of a channel, and the order of their work on its home slots.
#[derive(Debug)]
pub(crate) struct HomeQueues {
    pub(super) fetches: DirectionQueues,
    writes: DirectionQueues,
    /// The lock during the submission of a write to home slots, or of a kernel on them.
    barriers: OrderLock<QueueBarriers>,
    /// The lock during submissions of copies out of home slots, fills, and kernels; taken after `barriers`.
    load_order: OrderLock<LoadOrder>,
    /// The lock of direct reads of home slots, if the device supports them.
    direct: Option<DirectGate>,
    device: Arc<dyn Device>,
    counters: Arc<Counters>,
}

impl HomeQueues {
    pub(super) fn new(device: &Arc<dyn Device>, counters: &Arc<Counters>) -> Result<Self> {
        Ok(Self {
            // `true`: the channel's first write queue is ordered after kernels of other channels (shares of
            // devices). Each later write queue starts after the first queue's work, to inherit this order.
            fetches: DirectionQueues::new(device, false)?,
            writes: DirectionQueues::new(device, true)?,
            barriers: OrderLock::default(),
            load_order: OrderLock::default(),
            direct: device.direct_reads().map(|_| DirectGate::of(device)),
            device: Arc::clone(device),
            counters: Arc::clone(counters),
        })
    }

    pub(super) fn direct(&self) -> Option<&DirectGate> {
        self.direct.as_ref()
    }

    /// Bars direct reads of the home slots of some channels.
    fn bar_reads<'q>(written: impl IntoIterator<Item = &'q Self>) -> ReadsBarred<'q> {
        ReadsBarred::begin(written.into_iter().filter_map(Self::direct).collect())
    }

    /// Locks the order for the submission of writes to home slots.
    pub(super) fn begin_writes(&self) -> OrderGuard<'_, QueueBarriers> {
        self.barriers.lock()
    }

    /// Submits a copy into home slots, or a fill, to the first write queue. The caller holds the pages.
    pub(super) fn write(
        &self,
        order: &mut QueueBarriers,
        submit: impl FnOnce(&Queue<dyn Device>) -> Result<Ticket>,
    ) -> Result<Ticket> {
        self.write_in(order, (0, self.writes.first()), submit)
    }

    /// Submits writes as [`write`](Self::write), for many short copies. Uses parallel queues, unless fetches
    /// in between keep the bus busy and need their part of it.
    pub(super) fn write_beside(
        &self,
        order: &mut QueueBarriers,
        submit: impl FnOnce(&Queue<dyn Device>) -> Result<Ticket>,
    ) -> Result<Ticket> {
        let is_alone = !self.fetches.are_busy();
        let first = (0, self.writes.first());
        self.write_in(order, if is_alone { self.writes.least_busy(&self.device) } else { first }, submit)
    }

    fn write_in(
        &self,
        order: &mut QueueBarriers,
        (at, queue): (usize, &Queue<dyn Device>),
        submit: impl FnOnce(&Queue<dyn Device>) -> Result<Ticket>,
    ) -> Result<Ticket> {
        order_all(queue, &order.kernels, &mut order.after_kernels[at])?;
        order.order_after_readers(queue, at)?;
        let ticket = submit(queue)?;
        recording::submitted(SubmittedWork::Write, &self.device, ticket);
        self.writes.note_submitted(at, ticket);
        order.writes[at] = Some(ticket);
        self.counters.submissions.add(1);
        Ok(ticket)
    }

    /// Submits copies out of home slots. The caller protects their pages from changes.
    pub(super) fn read(
        &self,
        loads: &mut LoadOrder,
        submit: impl FnOnce(&Queue<dyn Device>) -> Result<Ticket>,
    ) -> Result<Ticket> {
        let (at, queue) = self.fetches.least_busy(&self.device);
        order_one(queue, loads.store, &mut loads.after_store[at])?;
        let ticket = submit(queue)?;
        recording::submitted(SubmittedWork::Fetch, &self.device, ticket);
        self.note_read(loads, at, ticket);
        Ok(ticket)
    }

    fn note_read(&self, loads: &mut LoadOrder, at: usize, ticket: Ticket) {
        self.fetches.note_submitted(at, ticket);
        loads.reads[at] = Some(ticket);
        self.counters.submissions.add(1);
    }

    /// Submits a kernel that writes to home slots.
    fn store(
        &self,
        order: &mut QueueBarriers,
        loads: &mut LoadOrder,
        submit: impl FnOnce(&Queue<dyn Device>) -> Result<Ticket>,
    ) -> Result<Ticket> {
        let queue = self.fetches.first();
        order_all(queue, &order.writes, &mut order.after_writes[0])?;
        let QueueBarriers { readers, store_after_readers, .. } = order;
        readers.iter().try_for_each(|ticket| order_other(queue, *ticket, store_after_readers))?;
        // The GPU kernel runs in the first fetch queue, so that queue's reads need no barrier.
        loads.reads[0] = None;
        order_all(queue, &loads.reads, &mut loads.after_reads)?;
        let ticket = submit(queue)?;
        recording::submitted(SubmittedWork::Change, &self.device, ticket);
        self.fetches.note_submitted(0, ticket);
        order.kernels[0] = Some(ticket);
        loads.store = Some(ticket);
        loads.after_store[0] = ticket.value;
        self.counters.submissions.add(1);
        Ok(ticket)
    }

    /// Submits a kernel that reads home slots to a queue.
    fn examine(
        &self,
        order: &mut QueueBarriers,
        loads: &mut LoadOrder,
        (at, queue): (usize, &Queue<dyn Device>),
        submit: impl FnOnce(&Queue<dyn Device>) -> Result<Ticket>,
    ) -> Result<Ticket> {
        order_all(queue, &order.writes, &mut order.after_writes[at])?;
        order_one(queue, loads.store, &mut loads.after_store[at])?;
        let ticket = submit(queue)?;
        recording::submitted(SubmittedWork::Question, &self.device, ticket);
        order.kernels[at] = Some(ticket);
        self.note_read(loads, at, ticket);
        Ok(ticket)
    }

    /// Runs a kernel that reads home slots, also of other channels on the device, not during writes.
    pub(crate) fn between_writes(&self, others: &[&Self], submit: QueueWork<'_>) -> Result<Ticket> {
        self.beside(others, &[], |order, loads, order_after_others| {
            let (at, queue) = self.fetches.least_busy(&self.device);
            order_after_others(queue)?;
            self.examine(order, loads, (at, queue), submit)
        })
    }

    /// Runs a kernel that writes to home slots, and accesses slots of other channels on the same device,
    /// without overlap with other work on them.
    pub(crate) fn between_all_writes(
        &self,
        others: &[&Self],
        written: &[&Self],
        submit: QueueWork<'_>,
    ) -> Result<Ticket> {
        let barred = Self::bar_reads(written.iter().copied().chain([self]));
        let ticket = self.beside(others, written, |order, loads, order_after_others| {
            order_after_others(self.fetches.first())?;
            self.store(order, loads, submit)
        })?;
        barred.until_done(&*self.device, ticket);
        Ok(ticket)
    }

    /// Submits a kernel that also reads slots of other channels on the same device. `submit` gets a function
    /// that orders a queue after writes to these slots; later writes to them run after the kernel. For slots
    /// of channels that the kernel writes (`written`), reads count too.
    fn beside(
        &self,
        others: &[&Self],
        written: &[&Self],
        submit: impl FnOnce(
            &mut QueueBarriers,
            &mut LoadOrder,
            &dyn Fn(&Queue<dyn Device>) -> Result<()>,
        ) -> Result<Ticket>,
    ) -> Result<Ticket> {
        let mut others: Vec<&Self> =
            others.iter().copied().filter(|other| !std::ptr::eq(*other, self)).collect();
        // All threads lock the channels (shares of devices) in address order, to avoid deadlock.
        others.sort_by_key(|channel| std::ptr::from_ref(*channel));
        others.dedup_by_key(|channel| std::ptr::from_ref(*channel));
        let own = others.partition_point(|other| std::ptr::from_ref(*other) < self);
        let mut channels = others.clone();
        channels.insert(own, self);
        let mut locked: Vec<_> =
            channels.iter().map(|channel| (channel.barriers.lock(), channel.load_order.lock())).collect();
        let mut writes: Vec<Ticket> = Vec::new();
        let is_written = |channel: &Self| written.iter().any(|other| std::ptr::eq(*other, channel));
        let both = channels.iter().zip(&locked).enumerate().filter(|(number, _)| *number != own);
        for (_, (channel, (order, loads))) in both {
            writes.extend(order.writes.iter().chain([&loads.store]).flatten());
            if is_written(channel) {
                writes.extend(loads.reads.iter().flatten().chain(&order.readers));
            }
        }
        let order_after_others =
            |queue: &Queue<dyn Device>| writes.iter().try_for_each(|before| queue.order_after(*before));
        let (order, loads) = &mut locked[own];
        let ticket = submit(order, loads, &order_after_others)?;
        for (other, (order, loads)) in channels.into_iter().zip(&mut locked) {
            if std::ptr::eq(other, self) {
                continue;
            }
            // Order all queues that write to the other channel's slots (pages in device memory) after the GPU
            // kernel. If the kernel writes to these slots, also order all queues that read them.
            let mut queues = other.writes.iter().chain([other.fetches.first()]);
            let is_ordered = queues.all(|queue| queue.order_after(ticket).is_ok())
                && (!is_written(other) || other.note_store_elsewhere(order, loads).is_ok());
            if !is_ordered {
                // This device cannot order the queue after the GPU kernel, so wait for the kernel here.
                // Ignore the outcome, because the owner of the ticket gets it.
                let _ = self.device.wait(ticket);
            }
        }
        Ok(ticket)
    }

    /// A kernel in a queue of another channel writes to these home slots. Orders later reads of them after
    /// it, through the work that the first queue waits for.
    fn note_store_elsewhere(&self, order: &mut QueueBarriers, loads: &mut LoadOrder) -> Result<()> {
        let ticket = self.fetches.first().submit(&[])?;
        self.fetches.note_submitted(0, ticket);
        order.kernels[0] = Some(ticket);
        loads.store = Some(ticket);
        loads.after_store[0] = ticket.value;
        Ok(())
    }

    /// Locks the order for the submission of copies other than loads.
    pub(super) fn begin_reads(&self) -> OrderGuard<'_, LoadOrder> {
        self.load_order.lock()
    }

    /// Locks the order for the submission of loads or fills, and counts them.
    pub(super) fn begin_loads(&self) -> OrderGuard<'_, LoadOrder> {
        let mut loads = self.load_order.lock();
        loads.begun += 1;
        loads
    }

    /// Returns the number of submitted loads and fills. For a [scatter](Self::scatter_home), an absent page
    /// with contents stays absent until this number changes.
    pub(crate) fn loads_begun(&self) -> u64 {
        self.load_order.lock().begun
    }

    /// Makes scatters that have examined their pages, and were not submitted yet, examine them again.
    pub(crate) fn note_change(&self) {
        drop(self.begin_loads());
    }

    /// Writes elements of absent pages with contents in their home slots, without holding the pages. Later
    /// loads run after the scatter, so they see the elements. Earlier loads are detected here.
    ///
    /// `choose` gets true if a load or fill was submitted since the count was `begun`. It then examines its
    /// pages again, and omits pages that are no longer absent. Loads of the channel wait meanwhile.
    pub(crate) fn scatter_home<'a>(
        &self,
        begun: u64,
        choose: impl FnOnce(bool) -> Option<Scatter<'a>>,
    ) -> Result<Option<Ticket>> {
        let barred = Self::bar_reads([self]);
        let mut order = self.barriers.lock();
        let mut loads = self.load_order.lock();
        let Some(scatter) = choose(loads.begun != begun) else { return Ok(None) };
        let ticket = self.store(&mut order, &mut loads, |queue| queue.submit(&scatter))?;
        drop((order, loads));
        barred.until_done(&*self.device, ticket);
        Ok(Some(ticket))
    }

    /// Locks the order of several channels.
    fn lock_all<'q>(all: &[&'q Self]) -> Vec<(OrderGuard<'q, QueueBarriers>, OrderGuard<'q, LoadOrder>)> {
        // All threads lock the channels (shares of devices) in address order, to avoid deadlock.
        let mut sorted: Vec<usize> = (0..all.len()).collect();
        sorted.sort_by_key(|number| std::ptr::from_ref(all[*number]));
        let lock = |number: usize| (all[number].barriers.lock(), all[number].load_order.lock());
        let mut locked: Vec<_> = sorted.into_iter().map(|number| (number, lock(number))).collect();
        locked.sort_by_key(|(number, _)| *number);
        locked.into_iter().map(|(_, guards)| guards).collect()
    }

    /// Runs a kernel as [`between_writes`](Self::between_writes), for all channels of an array whose devices
    /// can access all home slots, in a queue of one of them. Consecutive kernels need no barrier; later
    /// writes to slots of other channels add it.
    pub(crate) fn between_writes_of_all(all: &[&Self], lane: usize, submit: QueueWork<'_>) -> Result<Ticket> {
        let of = all[lane];
        let mut locked = Self::lock_all(all);
        let (at, queue) = of.fetches.least_busy(&of.device);
        let mut before: Vec<Ticket> = Vec::new();
        for (_, (order, loads)) in locked.iter().enumerate().filter(|(number, _)| *number != lane) {
            before.extend(order.writes.iter().chain([&loads.store]).flatten());
        }
        let (order, loads) = &mut locked[lane];
        let known = &mut loads.after_others[at];
        before.into_iter().try_for_each(|ticket| order_other(queue, ticket, known))?;
        let ticket = of.examine(order, loads, (at, queue), submit)?;
        for (number, (order, _)) in locked.iter_mut().enumerate() {
            if number != lane {
                note_newest(&mut order.readers, ticket);
            }
        }
        Ok(ticket)
    }

    /// Scatters as [`scatter_home`](Self::scatter_home), for channels whose devices can access all home
    /// slots. Several devices write elements of different parts of a list at the same time, to home slots of
    /// any channel.
    ///
    /// `begun` is the sum over all channels. `choose` returns each scatter with the number of the channel in
    /// whose first queue it runs. If a device refuses a scatter, the submitted ones stay in flight.
    pub(crate) fn scatter_homes<'a>(
        all: &[&Self],
        begun: u64,
        choose: impl FnOnce(bool) -> Vec<(usize, Scatter<'a>)>,
    ) -> (Vec<(usize, Ticket)>, Result<()>) {
        let barred = Self::bar_reads(all.iter().copied());
        let mut locked = Self::lock_all(all);
        let now: u64 = locked.iter().map(|(_, loads)| loads.begun).sum();
        let scatters = choose(now != begun);
        let mut before: Vec<Ticket> = Vec::new();
        let mut outcome = Ok(());
        for (of, (order, loads)) in all.iter().zip(&locked).filter(|_| !scatters.is_empty()) {
            let noted = order.writes.iter().chain(&loads.reads).chain([&loads.store]);
            before.extend(noted.flatten().chain(&order.readers));
            // Other arrays' kernels that read these home slots (in device memory) are ordered with the first
            // fetch queue only. To wait for them, submit an empty batch there as a marker.
            match of.fetches.first().submit(&[]) {
                Ok(marker) => {
                    of.fetches.note_submitted(0, marker);
                    before.push(marker);
                }
                Err(error) => outcome = Err(error),
            }
        }
        if outcome.is_err() {
            return (Vec::new(), outcome);
        }
        // The drop of `started` waits for the tickets, even if a device of the program panics.
        let mut started = StartedScatters { all, tickets: Vec::new() };
        for (number, scatter) in &scatters {
            let (of, (order, loads)) = (all[*number], &mut locked[*number]);
            let queue = of.fetches.first();
            let others = before.iter().filter(|ticket| ticket.queue != queue.id());
            let known = &mut loads.after_others[0];
            let ordered = others.copied().try_for_each(|ticket| order_other(queue, ticket, known));
            match ordered.and_then(|()| of.store(order, loads, |queue| queue.submit(scatter))) {
                Ok(ticket) => started.tickets.push((*number, ticket)),
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
        }
        for (number, (of, (order, loads))) in all.iter().zip(&mut locked).enumerate() {
            let elsewhere = started.tickets.iter().filter(|(lane, _)| *lane != number);
            let mut tickets = elsewhere.copied().peekable();
            if tickets.peek().is_none() {
                continue;
            }
            for (lane, ticket) in tickets {
                let mut writes = of.writes.iter();
                let is_ordered = writes.all(|queue| queue.order_after(ticket).is_ok())
                    && order_other(of.fetches.first(), ticket, &mut loads.after_others[0]).is_ok();
                if !is_ordered {
                    // The device cannot order the queue after the ticket, so wait for the ticket here.
                    let _ = all[lane].device.wait(ticket);
                }
            }
            if let Err(error) = of.note_store_elsewhere(order, loads) {
                outcome = outcome.and(Err(error));
            }
        }
        drop(locked);
        for (number, ticket) in &started.tickets {
            barred.until_done(&*all[*number].device, *ticket);
        }
        (std::mem::take(&mut started.tickets), outcome)
    }

    /// Records that a submission has ended, for later submissions.
    pub(crate) fn note_done(&self, ticket: Ticket) {
        recording::done(ticket);
        self.fetches.note_done(ticket);
        self.writes.note_done(ticket);
    }

    /// Waits for a submission.
    ///
    /// # Errors
    /// The error of the submission.
    pub(crate) fn wait(&self, ticket: Ticket) -> Result<()> {
        let outcome = self.device.wait(ticket);
        self.note_done(ticket);
        outcome
    }
}

#[cfg(test)]
mod tests;
