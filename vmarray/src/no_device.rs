//! The device of a build without backends: there is none.

use std::ptr::NonNull;
use std::task::Waker;

use backend_api::{
    BufferId, Commit, Compute, Device, DeviceInfo, Fill, Gather, HostAllocation, HostId, HostMemory,
    MemoryStatus, Progress, QueueId, Result, Scatter, Search, Ticket, Transfer,
};

/// Has no values, so that [`AnyDevice`](crate::AnyDevice) is a type in every build.
#[derive(Clone, Copy, Debug)]
pub enum NoDevice {}

impl Device for NoDevice {
    fn info(&self) -> &DeviceInfo {
        match *self {}
    }

    fn memory(&self) -> Result<MemoryStatus> {
        match *self {}
    }

    fn create_queue(&self) -> Result<QueueId> {
        match *self {}
    }

    fn release_queue(&self, _: QueueId) {
        match *self {}
    }

    fn allocate(&self, _: u64, _: Commit) -> Result<BufferId> {
        match *self {}
    }

    fn release(&self, _: BufferId) {
        match *self {}
    }

    fn allocate_host(&self, _: usize, _: HostMemory) -> Result<HostAllocation> {
        match *self {}
    }

    fn release_host(&self, _: HostId) {
        match *self {}
    }

    fn submit(&self, _: QueueId, _: &[Transfer]) -> Result<Ticket> {
        match *self {}
    }

    fn fill(&self, _: QueueId, _: &Fill<'_>) -> Result<Ticket> {
        match *self {}
    }

    fn search(&self, _: QueueId, _: &Search<'_>) -> Result<Ticket> {
        match *self {}
    }

    fn gather(&self, _: QueueId, _: &Gather) -> Result<Ticket> {
        match *self {}
    }

    fn scatter(&self, _: QueueId, _: &Scatter) -> Result<Ticket> {
        match *self {}
    }

    fn compute(&self, _: QueueId, _: &Compute<'_>) -> Result<Ticket> {
        match *self {}
    }

    fn poll(&self, _: Ticket) -> Result<Progress> {
        match *self {}
    }

    fn wait(&self, _: Ticket) -> Result<()> {
        match *self {}
    }

    fn wake(&self, _: Ticket, _: Waker) {
        match *self {}
    }

    fn order_after(&self, _: QueueId, _: Ticket) -> Result<()> {
        match *self {}
    }

    unsafe fn import_host(&self, _: NonNull<u8>, _: usize, _: HostMemory) -> Result<HostId> {
        match *self {}
    }
}
