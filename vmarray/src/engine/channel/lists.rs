//! Pinned memory through which lists of indices and values pass on their way to kernels and back.

use backend_api::{Device, HostBuffer};

use super::Channel;
use crate::base::error::Result;

/// How much memory that nobody uses is kept for the next call, in bytes: enough for a thread on each of many
/// cores. To lock memory takes longer than to use it, and to give it back has the device finish all that it
/// does.
const KEPT_BYTES: usize = 128 << 20;

impl<D: Device> Channel<D> {
    /// Host memory of at least so many bytes, of the kind that the frames have. The caller
    /// [gives it back](Self::put_list).
    pub(crate) fn take_list(&self, bytes: usize) -> Result<HostBuffer<D>> {
        let mut idle = self.lists.lock();
        // In ascending order: the shortest one that is long enough.
        let at = idle.partition_point(|list| list.bytes() < bytes);
        if at < idle.len() {
            return Ok(idle.remove(at));
        }
        drop(idle);
        self.host_memory(bytes)
    }

    /// Takes memory back that no work uses any more.
    pub(crate) fn put_list(&self, list: HostBuffer<D>) {
        let mut idle = self.lists.lock();
        // The longer ones are kept: short lists can use them, too.
        let at = idle.partition_point(|other| other.bytes() < list.bytes());
        idle.insert(at, list);
        let bytes: usize = idle.iter().map(HostBuffer::bytes).sum();
        let dropped = if bytes > KEPT_BYTES && idle.len() > 1 { Some(idle.remove(0)) } else { None };
        drop(idle);
        drop(dropped);
    }

    /// How much memory is kept.
    pub(super) fn list_bytes(&self) -> usize {
        self.lists.lock().iter().map(HostBuffer::bytes).sum()
    }
}
