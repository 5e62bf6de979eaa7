//! Checksums of pages: a wrapper that makes a channel's device compare checksums, and the error that names a
//! damaged page.

use std::sync::Arc;

use backend_api::{Device, Error, ErrorKind, Result, Ticket};
use vmarray_redundancy::Checksummed;

use super::Channel;

/// A device for channels whose pages have checksums.
pub(crate) fn comparing(device: Arc<dyn Device>, page_bytes: usize) -> Arc<dyn Device> {
    // SAFETY: channels, and all work on them, use only the new device, never the inner one. Owners of memory
    // release it on the new device, and readers of host memory poll the new device first.
    Arc::new(unsafe { Checksummed::new(device, page_bytes) })
}

impl Channel {
    /// Waits for copies of pages.
    ///
    /// # Errors
    /// Their failure, with the damaged page.
    pub(super) fn wait_for_pages(&self, ticket: Ticket) -> Result<()> {
        self.queues.wait(ticket).map_err(|error| self.name_page(error))
    }

    /// Adds the page of the array to a device's error about a wrong checksum in home slots.
    pub(super) fn name_page(&self, error: Error) -> Error {
        let (page_bytes, channels) = (self.layout.page_bytes as u64, u64::from(self.layout.channels));
        match error.offset() {
            Some(offset) if error.kind() == ErrorKind::Corrupted && error.bytes() == Some(page_bytes) => {
                let page = offset / page_bytes * channels + u64::from(self.layout.index);
                error.with_detail(format!("page {page} of the array differs from the data that was written"))
            }
            _ => error,
        }
    }
}
