//! Pinned memory through which lists of indices and values pass on their way to kernels and back.

use backend_api::{Device, HostBuffer, HostMemory};

use super::Channel;
use crate::error::Result;

/// How many pieces that nobody uses are kept for the next call.
const KEPT: usize = 32;

impl<D: Device> Channel<D> {
    /// Host memory of at least so many bytes, of the kind that the frames have. The caller
    /// [gives it back](Self::put_list).
    pub(crate) fn take_list(&self, bytes: usize) -> Result<HostBuffer<D>> {
        let mut idle = self.lists.lock();
        if let Some(at) = idle.iter().position(|stage| stage.bytes() >= bytes) {
            return Ok(idle.swap_remove(at));
        }
        drop(idle);
        let kind = self.shard.lock().memory;
        match HostBuffer::new(&self.device, bytes, kind) {
            Err(_) if self.fall_back => Ok(HostBuffer::new(&self.device, bytes, HostMemory::Pageable)?),
            stage => Ok(stage?),
        }
    }

    /// Takes memory back that no work uses any more.
    pub(crate) fn put_list(&self, stage: HostBuffer<D>) {
        let mut idle = self.lists.lock();
        if idle.len() < KEPT {
            idle.push(stage);
            return;
        }
        // The longer one is kept: short lists can use it, too.
        let shortest = idle.iter_mut().min_by_key(|idle| idle.bytes());
        let dropped = match shortest {
            Some(shortest) if shortest.bytes() < stage.bytes() => std::mem::replace(shortest, stage),
            _ => stage,
        };
        drop(idle);
        drop(dropped);
    }

    /// How much memory is kept.
    pub(super) fn list_bytes(&self) -> usize {
        self.lists.lock().iter().map(HostBuffer::bytes).sum()
    }
}
