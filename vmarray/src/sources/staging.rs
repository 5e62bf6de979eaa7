//! Page-locked staging memory between an unregistered home and a device.

use std::sync::Arc;

use backend_api::{Device, Ticket};

use crate::base::error::Result;
use crate::engine::channel::{PinnedPiece, PinnedPool};

/// Number of alternating pieces, so that one is filled or emptied during copies of others.
const CHUNKS: usize = 3;

/// Alternating pieces of host memory.
#[derive(Debug)]
pub(super) struct Staging {
    device: Arc<dyn Device>,
    pinned: Arc<PinnedPool>,
    chunk_bytes: usize,
    /// Each with the last work on it.
    chunks: Vec<(PinnedPiece, Option<Ticket>)>,
    next: usize,
}

impl Staging {
    /// Allocates no memory yet.
    pub(super) fn new(device: &Arc<dyn Device>, pinned: &Arc<PinnedPool>, chunk_bytes: usize) -> Self {
        let (device, pinned) = (Arc::clone(device), Arc::clone(pinned));
        Self { device, pinned, chunk_bytes, chunks: Vec::new(), next: 0 }
    }

    pub(super) fn chunk_bytes(&self) -> usize {
        self.chunk_bytes
    }

    /// A piece without work in flight; waits for its last work.
    pub(super) fn next(&mut self) -> Result<usize> {
        let index = self.next;
        if index == self.chunks.len() {
            self.chunks.push((self.pinned.take(self.chunk_bytes)?, None));
        }
        self.next = (index + 1) % CHUNKS;
        if let Some(ticket) = self.chunks[index].1.take() {
            // The submitting thread gets its errors.
            let _ = self.device.wait(ticket);
        }
        Ok(index)
    }

    pub(super) fn chunk(&self, index: usize) -> &PinnedPiece {
        &self.chunks[index].0
    }

    /// Records work in flight on a piece.
    pub(super) fn busy(&mut self, index: usize, ticket: Ticket) {
        self.chunks[index].1 = Some(ticket);
    }
}

impl Drop for Staging {
    /// Gives pieces to the other channels that share the stock, unless work that touches them has failed.
    fn drop(&mut self) {
        for (piece, ticket) in self.chunks.drain(..) {
            if ticket.is_none_or(|ticket| self.device.wait(ticket).is_ok()) {
                self.pinned.put(piece);
            }
        }
    }
}
