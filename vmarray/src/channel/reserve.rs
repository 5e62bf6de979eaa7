//! Frames that are kept for the guards of tasks.
//!
//! The page that a guard's future has asked for may come while its task waits to be polled. Its frame is then reserved:
//! others can use the page, write to it, even hold it, but it keeps its frame. The future counts as a guard meanwhile,
//! so that frames are left for others: who wants a guard or a frame waits for it, or is refused, as for a guard.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use backend_api::Device;

use super::{Channel, Shard};
use crate::page::state::RESIDENT;
use crate::page::{PageTable, this_thread};

/// The frames that are reserved, each with the threads whose tasks they are for.
pub(super) type Reserved = HashMap<u32, Vec<usize>>;

impl<D: Device> Channel<D> {
    /// Ends a reservation, and tells those who wait for frames.
    pub(crate) fn unreserve(&self, frame: u32) {
        let mut shard = self.lock();
        shard.unreserve(frame);
        drop(shard);
        self.note_news();
        self.announce();
    }
}

impl<D: Device> Shard<D> {
    /// Reserves the frame at an address for a task of a thread. Its number.
    pub(super) fn reserve(&mut self, address: *mut u8, stride: usize, thread: usize) -> u32 {
        let frame = self.frame_at(address, stride).index;
        self.reserved.entry(frame).or_default().push(thread);
        frame
    }

    /// Ends one of a frame's reservations.
    pub(super) fn unreserve(&mut self, frame: u32) {
        if let Some(threads) = self.reserved.get_mut(&frame) {
            threads.pop();
            if threads.is_empty() {
                self.reserved.remove(&frame);
            }
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
        self.reserved.values().flatten().any(|thread| *thread == this_thread())
    }
}
