//! Combined submissions of copies between staging buffers (pinned RAM) and home slots (the pages' places in
//! device memory), for several threads.
//!
//! A submission costs a driver some microseconds, more if each comes from another core, and the bus idles
//! between submissions. Therefore few submissions are in flight. Meanwhile requested copies wait in a list,
//! if they are shorter than a staging buffer. When a submission ends, all waiting copies form the next one.
//! If a single thread copies, it submits each of its copies at once.
//!
//! One thread waits in the driver for a submission; the other threads sleep until their copies complete.
//! Copies are submitted in the order of their requests, and each thread waits for its copies in that order.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, Thread};

use backend_api::{Ticket, Transfer};
use parking_lot::MutexGuard;
use vmarray_support::contended;

use super::coalesce::{CopyWay, coalesce};
use super::waiting::spin_while;
use super::{Channel, Stage};
use crate::base::recording;

/// Maximum bytes of one submission, unless one thread requests more.
const GROUP_BYTES: u64 = 4 << 20;
/// Maximum number of submissions in flight in one direction. With one, the device would idle in between.
const DEPTH: usize = 2;

/// A requested copy, and its result.
#[derive(Debug)]
pub(crate) struct StagedCopy {
    way: CopyWay,
    copies: Vec<Transfer<'static>>,
    bytes: u64,
    owner: Thread,
    /// True if the owner does not wait in the driver, as another thread does. Written under the lock.
    is_left: AtomicBool,
    /// The result of the copy, and true if it was submitted alone.
    outcome: OnceLock<(backend_api::Result<()>, bool)>,
}

impl StagedCopy {
    fn is_done(&self) -> bool {
        self.outcome.get().is_some()
    }

    /// Blocks until the copy completes, or until another thread [wakes](Self::call) the owner.
    fn sleep(&self) {
        let sleeps = || !self.is_done() && self.is_left.load(Ordering::Acquire);
        if !spin_while(sleeps) {
            while sleeps() {
                thread::park();
            }
        }
    }

    /// Wakes the owner of the copy if it sleeps; returns true if it did. The caller holds the lock.
    fn call(&self) -> bool {
        let slept = self.is_left.swap(false, Ordering::AcqRel);
        if slept {
            self.owner.unpark();
        }
        slept
    }
}

/// The copies of one submission.
#[derive(Debug)]
struct Group {
    ticket: Ticket,
    copies: Vec<Arc<StagedCopy>>,
    /// True if a thread waits in the driver for the ticket.
    is_watched: bool,
}

/// Stores the result of a submission in its copies, and wakes their owners.
fn report_outcome(copies: &[Arc<StagedCopy>], outcome: &backend_api::Result<()>) {
    for copy in copies {
        // Only the thread that removed the copy from the list sets the copy's outcome, so `set` succeeds.
        let stored = copy.outcome.set((outcome.clone(), copies.len() == 1));
        debug_assert!(stored.is_ok());
        copy.owner.unpark();
    }
}

/// The copies of one direction that are queued or in flight.
#[derive(Debug, Default)]
pub(super) struct StagedCopies {
    queued: VecDeque<Arc<StagedCopy>>,
    /// True while a thread submits copies.
    has_combiner: bool,
    /// Submissions in flight, in their order.
    under_way: Vec<Group>,
}

impl StagedCopies {
    /// Returns the copies of the next submission; `None` if there are none, or another thread submits.
    fn next(&mut self) -> Option<Vec<Arc<StagedCopy>>> {
        if self.has_combiner || self.under_way.len() >= DEPTH {
            return None;
        }
        let mut copies = vec![self.queued.pop_front()?];
        let mut bytes = copies[0].bytes;
        while let Some(more) = self.queued.pop_front_if(|next| bytes + next.bytes <= GROUP_BYTES) {
            bytes += more.bytes;
            copies.push(more);
        }
        self.has_combiner = true;
        Some(copies)
    }

    /// Removes completed submissions for which no thread waits from the list, and returns them.
    fn take(
        &mut self,
        done: Vec<(Ticket, backend_api::Result<()>)>,
    ) -> Vec<(Group, backend_api::Result<()>)> {
        let mut taken = Vec::new();
        for (ticket, outcome) in done {
            let is_it = |group: &Group| group.ticket == ticket && !group.is_watched;
            if let Some(at) = self.under_way.iter().position(is_it) {
                taken.push((self.under_way.remove(at), outcome));
            }
        }
        taken
    }

    /// Returns the submission for which the thread should wait in the driver: the one with its copy or, while
    /// the copy is queued, one without a waiting thread. Returns `None` if other threads wait; they
    /// [wake](StagedCopy::call) this thread on a change.
    fn watch(&mut self, copy: &Arc<StagedCopy>) -> Option<Ticket> {
        let own = self.under_way.iter().position(|group| group.copies.iter().any(|c| Arc::ptr_eq(c, copy)));
        let group = match own {
            Some(at) => Some(&mut self.under_way[at]).filter(|group| !group.is_watched),
            None => self.under_way.iter_mut().find(|group| !group.is_watched),
        };
        copy.is_left.store(group.is_none(), Ordering::Relaxed);
        let group = group?;
        group.is_watched = true;
        Some(group.ticket)
    }
}

impl Channel {
    /// Queues copies of pages between their home slots and a staging buffer. The caller protects the slots
    /// from changes, or holds the pages exclusively, and then [waits](Self::await_staged).
    pub(crate) fn copy_staged(&self, way: CopyWay, pages: &[u64], stage: &Stage) -> Arc<StagedCopy> {
        let page_bytes = self.layout.page_bytes;
        let bytes = (pages.len() * page_bytes) as u64;
        self.counters.bypasses.add(pages.len() as u64);
        match way {
            CopyWay::Fetch => self.counters.bytes_from_device.add(bytes),
            CopyWay::WriteBack => self.counters.bytes_to_device.add(bytes),
        }
        let places = pages.iter().enumerate();
        let places = places.map(|(at, page)| (self.home(*page), stage.span(at, page_bytes)));
        let copy = Arc::new(StagedCopy {
            way,
            copies: coalesce(places, page_bytes as u64, way),
            bytes,
            owner: thread::current(),
            is_left: AtomicBool::new(false),
            outcome: OnceLock::new(),
        });
        let done = self.staged_done(way);
        let mut list = contended::lock(&self.staged[way as usize]);
        list.queued.push_back(Arc::clone(&copy));
        let done = list.take(done);
        self.combine_staged(way, list);
        done.into_iter().for_each(|(group, outcome)| report_outcome(&group.copies, &outcome));
        copy
    }

    /// Waits for a copy that the calling thread has requested.
    ///
    /// # Errors
    /// The error of the copy.
    pub(crate) fn await_staged(&self, copy: &Arc<StagedCopy>) -> backend_api::Result<()> {
        let (outcome, alone) = loop {
            if let Some(outcome) = copy.outcome.get() {
                break outcome;
            }
            let watched = contended::lock(&self.staged[copy.way as usize]).watch(copy);
            match watched {
                Some(ticket) => self.end_staged(copy.way, ticket),
                None => copy.sleep(),
            }
        };
        match outcome {
            // Another copy of the submission may have caused the error, so repeat this copy alone.
            Err(_) if !alone => {
                self.submit_staged(copy.way, &copy.copies).and_then(|t| self.wait_for_pages(t))
            }
            outcome => outcome.clone(),
        }
    }

    /// Waits for a submission, and reports its result to the owners of the copies.
    fn end_staged(&self, way: CopyWay, ticket: Ticket) {
        let outcome = self.wait_for_pages(ticket);
        let done = self.staged_done(way);
        let mut list = contended::lock(&self.staged[way as usize]);
        let at = list.under_way.iter().position(|group| group.ticket == ticket);
        let group = at.map(|at| list.under_way.remove(at));
        let done = list.take(done);
        // Submit the next copies before reporting outcomes, to keep the device busy.
        self.combine_staged(way, list);
        group.into_iter().for_each(|group| report_outcome(&group.copies, &outcome));
        done.into_iter().for_each(|(group, outcome)| report_outcome(&group.copies, &outcome));
    }

    /// Returns completed submissions for which no thread waits. The caller does not hold the lock, because a
    /// device may run wakers when polled.
    fn staged_done(&self, way: CopyWay) -> Vec<(Ticket, backend_api::Result<()>)> {
        let tickets: Vec<Ticket> = {
            let list = contended::lock(&self.staged[way as usize]);
            list.under_way.iter().filter(|group| !group.is_watched).map(|group| group.ticket).collect()
        };
        self.ask_which_are_done(tickets)
    }

    /// Submits queued copies until the limit of submissions in flight.
    fn combine_staged<'a>(&'a self, way: CopyWay, mut list: MutexGuard<'a, StagedCopies>) {
        while let Some(copies) = list.next() {
            drop(list);
            let transfers: Vec<Transfer> =
                copies.iter().flat_map(|copy| copy.copies.iter().copied()).collect();
            let submitted = self.submit_staged(way, &transfers);
            list = contended::lock(&self.staged[way as usize]);
            list.has_combiner = false;
            match submitted {
                Ok(ticket) => {
                    // Wake a sleeping thread of this submission, to wait for the submission in the GPU
                    // driver. If no thread of the submission sleeps, an awake one will wait there. Then wake
                    // the thread of the next queued copy instead.
                    if !copies.iter().any(|copy| copy.call()) {
                        let _ = list.queued.front().is_some_and(|next| next.call());
                    }
                    list.under_way.push(Group { ticket, copies, is_watched: false });
                }
                Err(error) => report_outcome(&copies, &Err(error)),
            }
        }
    }

    fn submit_staged(&self, way: CopyWay, copies: &[Transfer<'_>]) -> backend_api::Result<Ticket> {
        let ticket = match way {
            CopyWay::Fetch => self.queues.read(&mut self.queues.begin_reads(), |queue| queue.submit(copies)),
            CopyWay::WriteBack => {
                self.queues.write(&mut self.queues.begin_writes(), |queue| queue.submit(copies))
            }
        }?;
        recording::sized(ticket, copies.len(), || copies.iter().map(Transfer::bytes).sum());
        Ok(ticket)
    }
}
