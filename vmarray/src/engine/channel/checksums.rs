//! Checksums of pages: the device that compares them, and what a page is called that is not sound.

use std::sync::Arc;

use backend_api::wrap::Checksummed;
use backend_api::{Device, Error, ErrorKind, Result, Ticket};

use super::Channel;

/// A device for channels whose pages have checksums.
pub(crate) fn comparing(device: Arc<dyn Device>, page_bytes: usize) -> Arc<dyn Device> {
    // SAFETY: channels, and what works on them, know this device and not the other one. Memory goes back to
    // the device that its owner has it from, and whoever looks at host memory has asked the same one.
    Arc::new(unsafe { Checksummed::new(device, page_bytes) })
}

impl Channel {
    /// Waits for copies of pages.
    ///
    /// # Errors
    /// Their failure, with the page that is to blame.
    pub(super) fn wait_for_pages(&self, ticket: Ticket) -> Result<()> {
        self.queues.wait(ticket).map_err(|error| self.name_page(error))
    }

    /// Says which page of the array it is whose checksum a device finds wrong in home slots.
    pub(super) fn name_page(&self, error: Error) -> Error {
        let (page_bytes, channels) = (self.layout.page_bytes as u64, u64::from(self.layout.channels));
        match error.offset() {
            Some(offset) if error.kind() == ErrorKind::Corrupted && error.bytes() == Some(page_bytes) => {
                let page = offset / page_bytes * channels + u64::from(self.layout.index);
                error.with_detail(format!("page {page} of the array is not what was written to it"))
            }
            _ => error,
        }
    }
}
