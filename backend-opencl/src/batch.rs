//! The copies of one call to an OpenCL device, with their memory looked up and adjacent copies merged.

use std::sync::Arc;

use crate::host_memory::HostPiece;
use crate::memory::Buffer;

#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub copies: Vec<ResolvedCopy>,
}

/// One copy, with its memory looked up.
#[derive(Debug)]
pub(crate) struct ResolvedCopy {
    pub to_device: bool,
    pub buffer: Arc<Buffer>,
    pub offset: u64,
    pub other: OtherSide,
    /// Byte offset in the copy's other memory.
    pub at: u64,
    pub bytes: u64,
}

/// The other memory of a copy: host memory or, as the source, device memory.
#[derive(Debug)]
pub(crate) enum OtherSide {
    Host(Arc<HostPiece>),
    Device(Arc<Buffer>),
}

impl Batch {
    pub fn clear(&mut self) {
        self.copies.clear();
    }
}

impl ResolvedCopy {
    pub fn host(&self) -> Option<&Arc<HostPiece>> {
        match &self.other {
            OtherSide::Host(host) => Some(host),
            OtherSide::Device(_) => None,
        }
    }
}
