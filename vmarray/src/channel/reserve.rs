//! Frames that are kept for tasks: for their guards, and for long reads.
//!
//! The page that a guard's future has asked for may come while its task waits to be polled. Its frame is then reserved:
//! others can use the page, write to it, even hold it, but it keeps its frame. The future counts as a guard meanwhile,
//! so that frames are left for others: who wants a guard or a frame waits for it, or is refused, as for a guard.
//!
//! A long read has a frame kept only while less than a quarter of the frames is, and none of a thread that waits for
//! one: then it is [served](Channel::serve_long_reads) on the spot.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use backend_api::Device;

use super::{Channel, Request, Shard};
use crate::page::state::RESIDENT;
use crate::page::{self, Access, PageTable, this_thread};

/// The frames that are reserved, each with those that it is for.
pub(super) type Reserved = HashMap<u32, Vec<Holder>>;

/// Whom a frame is kept for.
#[derive(Clone, Debug)]
pub(super) enum Holder {
    /// The guard of a task of this thread.
    Guard { thread: usize },
    /// A long read.
    Read(Arc<Request>),
}

impl<D: Device> Channel<D> {
    /// Ends the reservation of a frame, for a guard or else for a long read, and tells those who wait for frames.
    pub(crate) fn unreserve(&self, frame: u32, read: Option<&Arc<Request>>) {
        let mut shard = self.lock();
        shard.unreserve(frame, read);
        drop(shard);
        self.note_news();
        self.announce();
    }

    /// Has those long reads served whose frames are kept, so that none is kept for them any more. Whether any was.
    pub(super) fn serve_long_reads(&self, table: &PageTable) -> bool {
        let reads: Vec<(u32, Arc<Request>)> = {
            let shard = self.lock();
            let all = shard.reserved.iter().flat_map(|(frame, holders)| holders.iter().map(|h| (*frame, h)));
            all.filter_map(|(frame, holder)| match holder {
                Holder::Read(request) => Some((frame, Arc::clone(request))),
                Holder::Guard { .. } => None,
            })
            .collect()
        };
        let mut any = false;
        for (frame, request) in reads {
            let entry = table.entry(request.page);
            // Somebody who has the page for itself lets go of it soon; one that is not there is asked for again.
            if let Ok(before) = entry.try_share(page::Holder::Pin, true) {
                self.quiesce(entry, before, Access::Writes);
                // SAFETY: the page is shared and quiet: it stays resident, and nobody writes.
                unsafe { request.serve_reserved(entry.address()) };
                if entry.unshare(page::Holder::Pin) {
                    page::unpark(entry);
                }
            } else if entry.state(Ordering::Acquire).any(RESIDENT) {
                continue;
            }
            any = true;
            self.lock().unreserve(frame, Some(&request));
        }
        if any {
            self.note_news();
            self.announce();
        }
        any
    }
}

impl<D: Device> Shard<D> {
    /// Reserves the frame at an address for a task of a thread. Its number.
    pub(super) fn reserve(&mut self, address: *mut u8, stride: usize, thread: usize) -> u32 {
        let frame = self.frame_at(address, stride).index;
        self.reserved.entry(frame).or_default().push(Holder::Guard { thread });
        frame
    }

    /// Ends one of a frame's reservations.
    pub(super) fn unreserve(&mut self, frame: u32, read: Option<&Arc<Request>>) {
        let Some(holders) = self.reserved.get_mut(&frame) else { return };
        let is_it = |holder: &Holder| match (holder, read) {
            (Holder::Guard { .. }, None) => true,
            (Holder::Read(known), Some(request)) => Arc::ptr_eq(known, request),
            _ => false,
        };
        if let Some(at) = holders.iter().position(is_it) {
            holders.swap_remove(at);
        }
        if holders.is_empty() {
            self.reserved.remove(&frame);
        }
    }

    pub(super) fn is_reserved_at(&self, address: *mut u8, stride: usize) -> bool {
        !self.reserved.is_empty() && self.reserved.contains_key(&self.frame_at(address, stride).index)
    }

    /// Whether a page is in a reserved frame. Such a page changes its frame only where the program takes it away.
    pub(super) fn keeps(&self, table: &PageTable, page: u64, stride: usize) -> bool {
        let entry = table.entry(page);
        !self.reserved.is_empty()
            && entry.state(Ordering::Acquire).any(RESIDENT)
            && self.is_reserved_at(entry.address(), stride)
    }

    /// Whether a page keeps its frame for as long as the program likes.
    pub(super) fn is_kept(&self, table: &PageTable, frame: u32, page: u64) -> bool {
        self.reserved.contains_key(&frame) || table.entry(page).state(Ordering::Acquire).guards() > 0
    }

    /// Whether a frame is reserved for a task of the calling thread.
    pub(super) fn reserves_here(&self) -> bool {
        let here = this_thread();
        self.reserved
            .values()
            .flatten()
            .any(|holder| matches!(holder, Holder::Guard { thread } if *thread == here))
    }
}
