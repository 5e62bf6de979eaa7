//! Page-locked staging buffers for copies between a device and program memory that is not page-locked.

use std::sync::Arc;

use backend_api::{Device, Ticket};

use crate::base::error::Result;
use crate::engine::channel::{PinnedPiece, PinnedPool};

/// Number of staging buffers. The host fills or empties one while the device copies the others.
const CHUNKS: usize = 3;

/// Staging buffers, which the channel uses in turn.
#[derive(Debug)]
pub(super) struct Staging {
    device: Arc<dyn Device>,
    pinned: Arc<PinnedPool>,
    chunk_bytes: usize,
    /// The buffers, each with the ticket of its last copy.
    chunks: Vec<(PinnedPiece, Option<Ticket>)>,
    next: usize,
}

impl Staging {
    /// Creates the buffers; their memory is allocated at the first use.
    pub(super) fn new(device: &Arc<dyn Device>, pinned: &Arc<PinnedPool>, chunk_bytes: usize) -> Self {
        let (device, pinned) = (Arc::clone(device), Arc::clone(pinned));
        Self { device, pinned, chunk_bytes, chunks: Vec::new(), next: 0 }
    }

    pub(super) fn chunk_bytes(&self) -> usize {
        self.chunk_bytes
    }

    /// Returns the index of a buffer with no copy in flight, after waiting for its last copy.
    pub(super) fn next(&mut self) -> Result<usize> {
        let index = self.next;
        if index == self.chunks.len() {
            self.chunks.push((self.pinned.take(self.chunk_bytes)?, None));
        }
        self.next = (index + 1) % CHUNKS;
        if let Some(ticket) = self.chunks[index].1.take() {
            // Ignore an error here, because the thread that submitted the copy handles it.
            let _ = self.device.wait(ticket);
        }
        Ok(index)
    }

    pub(super) fn chunk(&self, index: usize) -> &PinnedPiece {
        &self.chunks[index].0
    }

    /// Records a copy in flight on a buffer.
    pub(super) fn busy(&mut self, index: usize, ticket: Ticket) {
        self.chunks[index].1 = Some(ticket);
    }
}

impl Drop for Staging {
    /// Returns the buffers to the pool that the channels share, unless a copy that accesses them has failed.
    fn drop(&mut self) {
        for (piece, ticket) in self.chunks.drain(..) {
            if ticket.is_none_or(|ticket| self.device.wait(ticket).is_ok()) {
                self.pinned.put(piece);
            }
        }
    }
}
