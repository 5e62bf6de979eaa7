//! The stock of host memory that passes between the program and home slots without a frame: lists of indices
//! and values, answers of kernels, single elements.
//!
//! To lock memory takes longer than to use it, and to give it back has the device finish all that it does. So
//! what a thread gives back is kept for the next one, up to a limit.

use std::sync::Arc;

use backend_api::{Device, ErrorKind, HostBuffer, HostMemory};
use parking_lot::Mutex;

use crate::base::error::Result;
use crate::base::trace;

/// How much memory that nobody uses is kept, in bytes: enough for a thread on each of many cores.
const KEPT_BYTES: usize = 128 << 20;
/// The shortest piece: partial results of a kernel and short lists of matches fit.
const PIECE_BYTES_MIN: usize = 192 << 10;
const _: () = assert!(backend_api::Compute::partials_bytes() <= PIECE_BYTES_MIN as u64);
/// Longer pieces are not kept: a list of all matches of a search may take a hundred times as much.
const PIECE_BYTES_MAX: usize = 8 << 20;

#[derive(Debug)]
pub(crate) struct PinnedPool {
    device: Arc<dyn Device>,
    /// Whether pageable memory will do where page-locking is refused.
    fall_back: bool,
    /// What kind of memory new pieces are made of: that of the frames.
    kind: Mutex<HostMemory>,
    /// In ascending order of their lengths.
    idle: Mutex<Vec<HostBuffer<dyn Device>>>,
}

impl PinnedPool {
    pub(crate) fn new(device: &Arc<dyn Device>, kind: HostMemory, fall_back: bool) -> Self {
        Self { device: Arc::clone(device), fall_back, kind: Mutex::new(kind), idle: Mutex::default() }
    }

    /// What kind of memory new pieces are made of.
    pub(super) fn kind(&self) -> HostMemory {
        *self.kind.lock()
    }

    /// Notes what kind of memory the frames are made of.
    pub(super) fn set_kind(&self, kind: HostMemory) {
        *self.kind.lock() = kind;
    }

    /// New memory, which the caller owns, and of what kind it is: pageable where page-locking is refused,
    /// unless it is required.
    pub(crate) fn make(&self, bytes: usize) -> Result<(HostBuffer<dyn Device>, HostMemory)> {
        let kind = self.kind();
        match HostBuffer::new(&self.device, bytes, kind) {
            Err(error)
                if self.fall_back && kind == HostMemory::Pinned && error.kind() == ErrorKind::PinRefused =>
            {
                trace::pin_refused(&error);
                let memory = HostBuffer::new(&self.device, bytes, HostMemory::Pageable)?;
                Ok((memory, HostMemory::Pageable))
            }
            memory => Ok((memory?, kind)),
        }
    }

    /// Memory of at least so many bytes, kept or new. The thread [gives it back](Self::put).
    pub(crate) fn take(&self, bytes: usize) -> Result<HostBuffer<dyn Device>> {
        let mut idle = self.idle.lock();
        // The shortest one that is long enough.
        let at = idle.partition_point(|piece| piece.bytes() < bytes);
        if at < idle.len() {
            return Ok(idle.remove(at));
        }
        drop(idle);
        if bytes > PIECE_BYTES_MIN {
            return Ok(self.make(bytes)?.0);
        }
        // Page-locked whatever the frames are: a copy of an answer to other memory may block until the kernel
        // is done.
        let pinned = HostBuffer::new(&self.device, PIECE_BYTES_MIN, HostMemory::Pinned);
        Ok(pinned.or_else(|_| HostBuffer::new(&self.device, PIECE_BYTES_MIN, HostMemory::Pageable))?)
    }

    /// Takes memory back, with nothing in flight on it.
    pub(crate) fn put(&self, piece: HostBuffer<dyn Device>) {
        if piece.bytes() > PIECE_BYTES_MAX {
            return;
        }
        let mut idle = self.idle.lock();
        // The longer ones are kept: short lists can use them, too.
        let at = idle.partition_point(|other| other.bytes() < piece.bytes());
        idle.insert(at, piece);
        let bytes: usize = idle.iter().map(HostBuffer::bytes).sum();
        let dropped = if bytes > KEPT_BYTES && idle.len() > 1 { Some(idle.remove(0)) } else { None };
        drop(idle);
        drop(dropped);
    }

    /// How much memory nobody uses.
    pub(super) fn bytes(&self) -> usize {
        self.idle.lock().iter().map(HostBuffer::bytes).sum()
    }
}
