//! The error for a page whose checksum is wrong: adds the page's number to the error of the device.
//! [`comparing`](super::comparing) adds the checksums to a device.

use backend_api::{Error, ErrorKind, Result, Ticket};

use super::Channel;

impl Channel {
    /// Waits for a submission of page copies.
    ///
    /// # Errors
    /// The error of the submission; a wrong checksum names the damaged page.
    pub(super) fn wait_for_pages(&self, ticket: Ticket) -> Result<()> {
        self.queues.wait(ticket).map_err(|error| self.name_page(error))
    }

    /// Adds the array's page number to a device's error about a wrong checksum in a home slot.
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
