//! The order between a channel's queues where they touch the same home slots.
//!
//! | | copies out of slots | kernels that read | kernels that write | copies into slots, fills |
//! |---|---|---|---|---|
//! | who keeps others away | the thread that holds the page | nobody | nobody, or the thread that holds the pages | the thread that holds the page |
//! | queue | any for fetches | any for fetches | the first one for fetches | any for writes |
//! | runs after all earlier | kernels that write | kernels that write, writes | copies, kernels, writes | kernels |
//!
//! Copies need no order among themselves: a page is fetched again only after its write-back. Kernels touch
//! slots of many pages that nobody need hold, so no element may change while one that reads runs, nor be read
//! while one that writes runs. Whichever comes next does the ordering, once for each pair of queues: kernels
//! in a row, and writes in a row, order nothing.

use std::sync::Arc;

use backend_api::{Device, Queue, Result, Scatter, Ticket};

use super::direct::{DirectGate, ReadsBarred};
use super::order_lock::{OrderGuard, OrderLock};
use super::queues::{QUEUES, Queues};
use crate::base::recording::{self, SubmittedWork};
use crate::base::stats::Counters;

/// The newest tickets of one kind, by queue.
type Newest = [Option<Ticket>; QUEUES];
/// Up to which ticket of each of some queues another one runs later.
type Known = [u64; QUEUES];

/// What writes and kernels have to come after.
#[derive(Debug, Default)]
pub(super) struct QueueBarriers {
    /// By write queue.
    writes: Newest,
    /// By fetch queue.
    kernels: Newest,
    /// What is known of the write queues, by fetch queue,
    after_writes: [Known; QUEUES],
    /// and of the kernels in the fetch queues, by write queue.
    after_kernels: [Known; QUEUES],
    /// Kernels in queues of the array's other channels that read these slots: the newest of each queue.
    readers: Vec<Ticket>,
    /// Up to which of them each write queue runs later, and the first fetch queue.
    after_readers: [Vec<Ticket>; QUEUES],
    store_after_readers: Vec<Ticket>,
}

impl QueueBarriers {
    /// Has a write queue run later than all of those.
    fn order_after_readers(&mut self, queue: &Queue<dyn Device>, at: usize) -> Result<()> {
        let known = &mut self.after_readers[at];
        self.readers.iter().try_for_each(|ticket| order_other(queue, *ticket, known))
    }
}

/// What copies out of slots, and kernels, have to come after.
#[derive(Debug, Default)]
pub(super) struct LoadOrder {
    /// How often loads, or fills of slots, were submitted.
    begun: u64,
    /// The newest copies and kernels that read, by fetch queue.
    reads: Newest,
    /// The newest kernel that writes, in the first queue, which runs after those reads.
    store: Option<Ticket>,
    after_reads: Known,
    /// What is known of such kernels, by fetch queue.
    after_store: Known,
    /// Up to which tickets of the queues of the array's other channels each fetch queue runs later.
    after_others: [Vec<Ticket>; QUEUES],
}

/// Scatters that were started, by the channel in whose queue each runs: waited for if nobody takes them.
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

/// Has a queue run later than a ticket of another channel's queue, unless it is known to.
fn order_other(queue: &Queue<dyn Device>, ticket: Ticket, known: &mut Vec<Ticket>) -> Result<()> {
    if known.iter().any(|known| known.queue == ticket.queue && known.value >= ticket.value) {
        return Ok(());
    }
    queue.order_after(ticket)?;
    note_newest(known, ticket);
    Ok(())
}

/// Puts a ticket in the place of an older one of its queue.
fn note_newest(tickets: &mut Vec<Ticket>, ticket: Ticket) {
    match tickets.iter_mut().find(|known| known.queue == ticket.queue) {
        Some(known) => known.value = known.value.max(ticket.value),
        None => tickets.push(ticket),
    }
}

/// Has a queue run later than a ticket, unless it does already.
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

/// The queues of a channel, and the order of what they do to its home slots.
#[derive(Debug)]
pub(crate) struct HomeQueues {
    pub(super) fetches: Queues,
    writes: Queues,
    /// Held while a write to home slots, or a kernel on them, is submitted.
    barriers: OrderLock<QueueBarriers>,
    /// Held while home slots are read by copies or kernels, filled, or written by kernels: during the
    /// submission. Taken after `barriers`.
    load_order: OrderLock<LoadOrder>,
    /// Where threads read home slots by themselves.
    direct: Option<DirectGate>,
    device: Arc<dyn Device>,
    counters: Arc<Counters>,
}

impl HomeQueues {
    pub(super) fn new(device: &Arc<dyn Device>, counters: &Arc<Counters>) -> Result<Self> {
        Ok(Self {
            // Writes run after kernels of other channels that were ordered before the first queue.
            fetches: Queues::new(device, false)?,
            writes: Queues::new(device, true)?,
            barriers: OrderLock::default(),
            load_order: OrderLock::default(),
            direct: device.direct_reads().map(|_| DirectGate::of(device)),
            device: Arc::clone(device),
            counters: Arc::clone(counters),
        })
    }

    /// What threads pass through that read home slots by themselves, if they do.
    pub(super) fn direct(&self) -> Option<&DirectGate> {
        self.direct.as_ref()
    }

    /// Keeps such threads away from the slots of some channels.
    fn bar_reads<'q>(written: impl IntoIterator<Item = &'q Self>) -> ReadsBarred<'q> {
        ReadsBarred::begin(written.into_iter().filter_map(Self::direct).collect())
    }

    /// Held while writes to home slots are submitted.
    pub(super) fn begin_writes(&self) -> OrderGuard<'_, QueueBarriers> {
        self.barriers.lock()
    }

    /// Submits a copy into home slots, or a fill, whose pages the caller holds: in the first queue for
    /// writes.
    pub(super) fn write(
        &self,
        order: &mut QueueBarriers,
        submit: impl FnOnce(&Queue<dyn Device>) -> Result<Ticket>,
    ) -> Result<Ticket> {
        self.write_in(order, (0, self.writes.first()), submit)
    }

    /// As [`write`](Self::write), for many short copies: one beside the other, unless fetches have the bus
    /// stay busy between them, and are to have their share of it.
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

    /// Submits copies out of home slots, whose pages the caller keeps from changing.
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
        // Those of the same queue are in order anyway.
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

    /// Has a kernel run that reads home slots, also some of other channels on the same device, so that no
    /// write to any of them overlaps with it.
    pub(crate) fn between_writes(
        &self,
        others: &[&Self],
        submit: impl FnOnce(&Queue<dyn Device>) -> Result<Ticket>,
    ) -> Result<Ticket> {
        self.beside(others, &[], |order, loads, order_after_others| {
            let (at, queue) = self.fetches.least_busy(&self.device);
            order_after_others(queue)?;
            self.examine(order, loads, (at, queue), submit)
        })
    }

    /// Has a kernel run that writes to home slots, and also reads some of other channels on the same device,
    /// of which it writes to some, so that nothing overlaps with it.
    pub(crate) fn between_all_writes(
        &self,
        others: &[&Self],
        written: &[&Self],
        submit: impl FnOnce(&Queue<dyn Device>) -> Result<Ticket>,
    ) -> Result<Ticket> {
        let barred = Self::bar_reads(written.iter().copied().chain([self]));
        let ticket = self.beside(others, written, |order, loads, order_after_others| {
            order_after_others(self.fetches.first())?;
            self.store(order, loads, submit)
        })?;
        barred.until_done(&*self.device, ticket);
        Ok(ticket)
    }

    /// Has a kernel submitted that reads slots of other channels on the same device, too: `submit` is given
    /// what makes a queue run later than what writes to those; and what writes to them afterwards runs later
    /// than the kernel. Where it is `written` to, what reads them counts as well.
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
        // Always in this order, so that two threads do not wait for each other.
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
            // Whatever writes to their slots; and where the kernel does, whatever reads them.
            let mut queues = other.writes.iter().chain([other.fetches.first()]);
            let is_ordered = queues.all(|queue| queue.order_after(ticket).is_ok())
                && (!is_written(other) || other.note_store_elsewhere(order, loads).is_ok());
            if !is_ordered {
                // The work is under way all the same: what cannot come after it waits for it here. How it
                // ends is told to the thread that has the ticket.
                let _ = self.device.wait(ticket);
            }
        }
        Ok(ticket)
    }

    /// Has whatever reads home slots from now on run after what the first queue runs after: a kernel in a
    /// queue of another channel, which writes to them.
    fn note_store_elsewhere(&self, order: &mut QueueBarriers, loads: &mut LoadOrder) -> Result<()> {
        let ticket = self.fetches.first().submit(&[])?;
        self.fetches.note_submitted(0, ticket);
        order.kernels[0] = Some(ticket);
        loads.store = Some(ticket);
        loads.after_store[0] = ticket.value;
        Ok(())
    }

    /// Held while copies are submitted that are no loads.
    pub(super) fn begin_reads(&self) -> OrderGuard<'_, LoadOrder> {
        self.load_order.lock()
    }

    /// Held while loads, or fills of slots, are submitted, which are counted.
    pub(super) fn begin_loads(&self) -> OrderGuard<'_, LoadOrder> {
        let mut loads = self.load_order.lock();
        loads.begun += 1;
        loads
    }

    /// How often loads, or fills of slots, were submitted. A page that has contents and is absent at some
    /// time is so as far as a [scatter](Self::scatter_home) is concerned until the number changes.
    pub(crate) fn loads_begun(&self) -> u64 {
        self.load_order.lock().begun
    }

    /// Has scatters that have looked at their pages, and were not submitted, look at them again.
    pub(crate) fn note_change(&self) {
        drop(self.begin_loads());
    }

    /// Has elements of absent pages with contents written where they live, with nothing held: what is loaded
    /// later sees them, since loads run after it, and what was loaded before is found out here.
    ///
    /// `choose` is told whether any load or fill was submitted since there were `begun` of them. If so it
    /// looks at its pages again and leaves out all that are not absent any more. Loads of the channel wait
    /// meanwhile.
    pub(crate) fn scatter_home<'a>(
        &self,
        begun: u64,
        choose: impl FnOnce(bool) -> Option<Scatter<'a>>,
    ) -> Result<Option<Ticket>> {
        let barred = Self::bar_reads([self]);
        let mut order = self.barriers.lock();
        let mut loads = self.load_order.lock();
        let Some(scatter) = choose(loads.begun != begun) else { return Ok(None) };
        let ticket = self.store(&mut order, &mut loads, |queue| queue.scatter(&scatter))?;
        drop((order, loads));
        barred.until_done(&*self.device, ticket);
        Ok(Some(ticket))
    }

    /// The locks of several channels, in their order.
    fn lock_all<'q>(all: &[&'q Self]) -> Vec<(OrderGuard<'q, QueueBarriers>, OrderGuard<'q, LoadOrder>)> {
        // Taken in the order in which others take several.
        let mut sorted: Vec<usize> = (0..all.len()).collect();
        sorted.sort_by_key(|number| std::ptr::from_ref(all[*number]));
        let lock = |number: usize| (all[number].barriers.lock(), all[number].load_order.lock());
        let mut locked: Vec<_> = sorted.into_iter().map(|number| (number, lock(number))).collect();
        locked.sort_by_key(|(number, _)| *number);
        locked.into_iter().map(|(_, guards)| guards).collect()
    }

    /// As [`between_writes`](Self::between_writes), for all channels of an array, whose devices reach the
    /// home slots of all of them: in a queue of the one with this number. Kernels in a row order nothing:
    /// what writes to slots of other channels comes after them when it comes.
    pub(crate) fn between_writes_of_all(
        all: &[&Self],
        lane: usize,
        submit: impl FnOnce(&Queue<dyn Device>) -> Result<Ticket>,
    ) -> Result<Ticket> {
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

    /// As [`scatter_home`](Self::scatter_home), for channels whose devices reach the home slots of all of
    /// them: has several of the devices write to elements of different places in a list at the same time,
    /// whichever channels these live on.
    ///
    /// `begun` is the sum over all channels. `choose` gives each scatter with the number of the channel in
    /// whose first queue it runs. Those that were submitted are under way also if another one was refused.
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
            // Kernels of other arrays that read here are known to the first queue alone.
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
        // A device of the program's own may panic.
        let mut started = StartedScatters { all, tickets: Vec::new() };
        for (number, scatter) in &scatters {
            let (of, (order, loads)) = (all[*number], &mut locked[*number]);
            let queue = of.fetches.first();
            let others = before.iter().filter(|ticket| ticket.queue != queue.id());
            let known = &mut loads.after_others[0];
            let ordered = others.copied().try_for_each(|ticket| order_other(queue, ticket, known));
            match ordered.and_then(|()| of.store(order, loads, |queue| queue.scatter(scatter))) {
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
                    // As in `beside`.
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

    /// Notes that a submission is done, for the sake of those that come next.
    pub(crate) fn note_done(&self, ticket: Ticket) {
        recording::done(ticket);
        self.fetches.note_done(ticket);
        self.writes.note_done(ticket);
    }

    /// Waits for a submission.
    ///
    /// # Errors
    /// Its failure.
    pub(crate) fn wait(&self, ticket: Ticket) -> Result<()> {
        let outcome = self.device.wait(ticket);
        self.note_done(ticket);
        outcome
    }
}

#[cfg(test)]
mod tests;
