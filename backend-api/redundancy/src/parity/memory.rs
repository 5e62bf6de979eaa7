//! Queues and memory of a member of a parity group. The data is on the member's own device, and its parity on
//! the other devices.

use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Core;
use super::member_queue::Log;
use super::stripe_layout::StripeRow;
use super::worker::MemberWorker;
use crate::several::host::{Host, HostBlock};
use crate::several::member::Member;
use crate::several::wakers::DeferringCall;
use backend_api::{
    BufferHandle, BufferId, Commit, Device, Error, ErrorKind, Fill, HostAllocation, HostMemory, QueueHandle,
    QueueId, Request, Result, Ticket,
};

impl Core {
    /// Creates an object on a member's device, and keeps it. Does nothing if the device is lost, since the
    /// others replace it. The caller holds the setup lock, so that no other device joins.
    pub(super) fn make<T>(
        &self,
        position: usize,
        make: impl FnOnce(&dyn Device) -> Result<T>,
        keep: impl FnOnce(&mut Member, T),
    ) -> Result<()> {
        let (id, device, is_there) = {
            let state = self.member_queues[position].lock();
            (state.member.id, Arc::clone(&state.member.device), state.member.is_there())
        };
        if !is_there {
            return Ok(());
        }
        match make(&*device) {
            Ok(made) => keep(&mut self.member_queues[position].lock().member, made),
            Err(error) if error.kind() == ErrorKind::Lost => self.lose(position, id, &error),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Allocates zeroed device memory: absent memory counts as zeros.
    pub(super) fn make_cleared(
        &self,
        position: usize,
        name: BufferId,
        bytes: u64,
        commit: Commit,
    ) -> Result<()> {
        let make = |device: &dyn Device| {
            let buffer = device.allocate(bytes, commit)?;
            let cleared = (|| {
                let queue = device.create_queue()?;
                let fill = Fill { to: buffer.at(0), bytes, pattern: &[0] };
                let done =
                    device.submit(&queue, &Request::Fill(&fill)).and_then(|ticket| device.wait(ticket));
                device.release_queue(queue);
                done
            })();
            match cleared {
                Ok(()) => Ok(buffer),
                Err(error) => {
                    device.release(buffer);
                    Err(error)
                }
            }
        };
        self.make(position, make, |member, buffer| {
            member.buffers.insert(name, buffer);
        })
    }

    /// Releases a member's buffer of this name.
    fn unmake(&self, position: usize, name: BufferId) {
        let mut state = self.member_queues[position].lock();
        let (device, buffer) = (Arc::clone(&state.member.device), state.member.buffers.remove(&name));
        drop(state);
        buffer.into_iter().for_each(|buffer| device.release(buffer));
    }

    /// Checks that work can continue: a member's device works, or all others do.
    pub(super) fn expect_there(&self, position: usize, operation: &'static str) -> Result<()> {
        let (is_there, error) = {
            let state = self.member_queues[position].lock();
            (state.member.is_there(), state.lost_error(operation))
        };
        let others = || (0..self.member_queues.len()).filter(|other| *other != position);
        if is_there || others().all(|other| self.member_queues[other].lock().member.is_current()) {
            return Ok(());
        }
        Err(super::copies::both_lost(&error))
    }

    fn allocate(&self, position: usize, name: BufferId, bytes: u64, commit: Commit) -> Result<()> {
        let devices = self.member_queues.len();
        if bytes == 0 {
            return self.make(
                position,
                |device| device.allocate(0, commit),
                |member, buffer| {
                    member.buffers.insert(name, buffer);
                },
            );
        }
        let free = self.rows.lock().with_free(position, bytes);
        if let Some((row, slot)) = free {
            // The current contents of the free memory are part of the parity already.
            let _locked = self.locks.lock_row(row, devices);
            let mut state = self.member_queues[position].lock();
            if let Some(buffer) = state.member.buffers.remove(&slot.buffer) {
                state.member.buffers.insert(name, buffer);
            }
            self.rows.lock().put(row, position, name, slot.bytes);
            return Ok(());
        }
        self.make_cleared(position, name, bytes, commit)?;
        let row = self.rows.lock().with_room(position, bytes);
        let row = match row {
            Some(row) => row,
            None => {
                let row = StripeRow::new(BufferHandle::unique().id(), bytes, devices);
                let (parity, parity_bytes) = (row.parity, row.part_bytes);
                let mut made = (0..devices).map(|at| self.make_cleared(at, parity, parity_bytes, commit));
                if let Some(error) = made.find_map(Result::err) {
                    (0..devices).for_each(|at| self.unmake(at, parity));
                    self.unmake(position, name);
                    // The error names the requested length, not the length with parity.
                    return Err(if error.bytes().is_some() { error.with_bytes(bytes) } else { error });
                }
                self.rows.lock().add(row)
            }
        };
        self.rows.lock().put(row, position, name, bytes);
        Ok(())
    }

    /// Releases a buffer; also the row's memory after all of the row was released.
    fn release(&self, position: usize, name: BufferId) {
        let devices = self.member_queues.len();
        let Some(row) = self.rows.lock().free(name) else { return self.unmake(position, name) };
        let removed = {
            let _locked = self.locks.lock_row(row, devices);
            self.rows.lock().remove(row)
        };
        let Some(row) = removed else { return };
        for (at, slot) in row.slots.iter().enumerate() {
            slot.iter().for_each(|slot| self.unmake(at, slot.buffer));
            self.unmake(at, row.parity);
        }
    }
}

impl MemberWorker {
    pub(super) fn create_queue(&self) -> Result<QueueHandle> {
        let (_call, _setup) = (DeferringCall::begin(), self.core.setup.lock());
        let handle = QueueHandle::unique();
        self.core.make(
            self.at,
            |device| device.create_queue(),
            |member, queue| {
                member.queues.insert(handle.id(), queue);
            },
        )?;
        self.core.expect_there(self.at, "create_queue")?;
        self.core.member_queues[self.at].lock().queues.insert(handle.id(), Log::default());
        Ok(handle)
    }

    pub(super) fn release_queue(&self, queue: QueueId) {
        let _call = DeferringCall::begin();
        let member_queue = &self.core.member_queues[self.at];
        let Some(newest) = member_queue.lock().queues.get(&queue).map(|log| log.newest) else { return };
        // Ignore an error: the failures of a queue are forgotten when the queue is released.
        let _ = self.wait(Ticket { queue, value: newest });
        let _setup = self.core.setup.lock();
        let mut state = member_queue.lock();
        state.queues.remove(&queue);
        state.ended.insert(queue, newest);
        let (device, queue) = (Arc::clone(&state.member.device), state.member.queues.remove(&queue));
        drop(state);
        queue.into_iter().for_each(|queue| device.release_queue(queue));
    }

    pub(super) fn allocate(&self, bytes: u64, commit: Commit) -> Result<BufferHandle> {
        let (_call, _setup) = (DeferringCall::begin(), self.core.setup.lock());
        let handle = BufferHandle::unique();
        self.core.expect_there(self.at, "allocate")?;
        self.core.allocate(self.at, handle.id(), bytes, commit)?;
        self.core.member_queues[self.at].lock().buffers.insert(handle.id(), bytes);
        Ok(handle)
    }

    pub(super) fn release(&self, buffer: BufferId) {
        let _call = DeferringCall::begin();
        if !self.core.member_queues[self.at].lock().buffers.contains_key(&buffer) {
            return;
        }
        self.wait_for_all(|entry| entry.touches.has_buffer(buffer));
        let _setup = self.core.setup.lock();
        self.core.member_queues[self.at].lock().buffers.remove(&buffer);
        self.core.release(self.at, buffer);
    }

    pub(super) fn allocate_host(&self, bytes: usize, kind: HostMemory) -> Result<HostAllocation> {
        const OPERATION: &str = "allocate_host";
        let (_call, _setup) = (DeferringCall::begin(), self.core.setup.lock());
        self.core.expect_there(self.at, OPERATION)?;
        let made = Cell::new(None);
        // SAFETY: the device's memory is released with this handle; if the device is replaced before, the
        // memory outlives it.
        let handle = |address| unsafe { HostAllocation::new(address, bytes, kind) };
        self.core.make(
            self.at,
            |device| device.allocate_host(bytes, kind),
            |member, host| {
                let own = handle(host.address());
                member.hosts.insert(own.id(), host);
                made.set(Some(own));
            },
        )?;
        let own = match made.take() {
            Some(own) => own,
            None => {
                let refused =
                    || Error::new(ErrorKind::OutOfMemory, OPERATION).with_bytes(bytes as u64).on(&self.info);
                let block = HostBlock::new(bytes).ok_or_else(refused)?;
                let own = handle(block.address());
                self.member_queue().lock().own.insert(own.id(), block);
                own
            }
        };
        let address = own.address().as_ptr().expose_provenance();
        self.member_queue().lock().hosts.insert(own.id(), Host { address, bytes: bytes as u64, kind });
        Ok(own)
    }

    /// Imports memory into the member's device.
    ///
    /// # Safety
    /// The requirements of [`Device::import_host`].
    pub(super) unsafe fn import_host(
        &self,
        address: NonNull<u8>,
        bytes: usize,
        kind: HostMemory,
    ) -> Result<HostAllocation> {
        let (_call, _setup) = (DeferringCall::begin(), self.core.setup.lock());
        self.core.expect_there(self.at, "import_host")?;
        // SAFETY: guaranteed by the caller.
        let handle = unsafe { HostAllocation::new(address, bytes, kind) };
        let id = handle.id();
        // SAFETY: guaranteed by the caller.
        let import = |device: &dyn Device| unsafe { device.import_host(address, bytes, kind) };
        self.core.make(self.at, import, |member, host| {
            member.hosts.insert(id, host);
        })?;
        let mut state = self.member_queue().lock();
        let host = Host { address: address.as_ptr().expose_provenance(), bytes: bytes as u64, kind };
        state.hosts.insert(id, host);
        state.imported.insert(id);
        Ok(handle)
    }

    pub(super) fn release_host(&self, id: backend_api::HostId) {
        let _call = DeferringCall::begin();
        let member_queue = &self.core.member_queues[self.at];
        if !member_queue.lock().hosts.contains_key(&id) {
            return;
        }
        self.wait_for_all(|entry| entry.touches.has_host(id));
        let setup = self.core.setup.lock();
        let mut state = member_queue.lock();
        state.hosts.remove(&id);
        state.imported.remove(&id);
        let (device, host) = (Arc::clone(&state.member.device), state.member.hosts.remove(&id));
        let (block, kept) = (state.own.remove(&id), state.of_lost.remove(&id));
        drop(state);
        host.into_iter().for_each(|host| device.release_host(host));
        drop(setup);
        // After this call, only the lost device still refers to the memory.
        drop(kept);
        if let Some(block) = block
            && self.core.scratches.wipes.load(Ordering::Acquire)
        {
            // SAFETY: no device knows it any more.
            unsafe { block.wipe() };
        }
    }

    /// Releases all remaining objects, after the work is over.
    pub(super) fn release_all(&self) {
        let (buffers, hosts, queues) = {
            let state = self.core.member_queues[self.at].lock();
            let queues: Vec<QueueId> = state.queues.keys().copied().collect();
            let hosts: Vec<_> = state.hosts.keys().copied().collect();
            (state.buffers.keys().copied().collect::<Vec<_>>(), hosts, queues)
        };
        queues.into_iter().for_each(|queue| self.release_queue(queue));
        buffers.into_iter().for_each(|buffer| self.release(buffer));
        hosts.into_iter().for_each(|host| self.release_host(host));
    }
}
