//! Creation and release of a mirror's queues and memory, on each of its devices.

use std::ptr::NonNull;
use std::sync::Arc;

use super::core::MirrorCore;
use super::host::{Host, HostBlock};
use super::member::Member;
use super::state::Length;
use super::wakers::DeferringCall;
use backend_api::{
    BufferHandle, Commit, Device, Error, ErrorKind, HostAllocation, HostMemory, QueueHandle, Result,
};
use vmarray_support::backends::check_extend;

impl MirrorCore {
    /// Creates an object on each working device, or on none. `make` creates it without the mirror's lock,
    /// `give_back` releases it after a failure, and `keep` stores it under the lock.
    fn make_on_each<T>(
        &self,
        operation: &'static str,
        make: impl Fn(&dyn Device) -> Result<T>,
        give_back: impl Fn(&dyn Device, T),
        mut keep: impl FnMut(&mut Member, T),
    ) -> Result<()> {
        let there = self.lock().devices();
        let mut made = Vec::new();
        let mut refusal = None;
        for (id, device) in there {
            match make(&*device) {
                Ok(one) => made.push((id, device, one)),
                Err(error) if error.kind() == ErrorKind::Lost => self.lock().lose(id, &error),
                Err(error) => {
                    refusal = Some(error);
                    break;
                }
            }
        }
        if refusal.is_none() && self.lock().primary().is_none() {
            refusal = Some(self.lock().all_lost(operation));
        }
        if let Some(error) = refusal {
            made.into_iter().for_each(|(_, device, one)| give_back(&*device, one));
            return Err(error);
        }
        let mut state = self.lock();
        for (id, _, one) in made {
            // No device joins or leaves in the meantime, because this thread holds the set-up lock.
            if let Some(member) = state.member(id) {
                keep(member, one);
            }
        }
        Ok(())
    }

    pub(super) fn create_queue(&self) -> Result<QueueHandle> {
        let (_call, _setup) = (DeferringCall::begin(), self.setup.lock());
        let handle = QueueHandle::unique();
        let (id, give_back) = (handle.id(), |device: &dyn Device, queue| device.release_queue(queue));
        self.make_on_each(
            "create_queue",
            |device| device.create_queue(),
            give_back,
            |member, queue| {
                member.queues.insert(id, queue);
            },
        )?;
        self.lock().queues.insert(id, Default::default());
        Ok(handle)
    }

    pub(super) fn release_queue(&self, queue: &QueueHandle) {
        let (_call, id) = (DeferringCall::begin(), queue.id());
        let Some(newest) = self.lock().queues.get(&id).map(|log| log.newest) else { return };
        // Ignore an error, because the release of a queue discards its failures anyway.
        let _ = self.wait(backend_api::Ticket { queue: id, value: newest });
        let _setup = self.setup.lock();
        let mut state = self.lock();
        state.queues.remove(&id);
        state.ended.insert(id, newest);
        let members = state.members.iter_mut();
        let queues: Vec<_> = members
            .filter_map(|member| Some((Arc::clone(&member.device), member.queues.remove(&id)?)))
            .collect();
        drop(state);
        queues.into_iter().for_each(|(device, queue)| device.release_queue(queue));
    }

    pub(super) fn allocate(&self, length: Length, commit: Commit) -> Result<BufferHandle> {
        let (_call, _setup) = (DeferringCall::begin(), self.setup.lock());
        let handle = BufferHandle::unique();
        let (id, give_back) = (handle.id(), |device: &dyn Device, buffer| device.release(buffer));
        self.make_on_each(
            "allocate",
            |device| length.allocate(device, commit),
            give_back,
            |member, buffer| {
                member.buffers.insert(id, buffer);
            },
        )?;
        self.lock().buffers.insert(id, length);
        Ok(handle)
    }

    /// Extends a buffer on each device. If one device refuses, other devices may keep the longer buffer.
    pub(super) fn extend(&self, buffer: &BufferHandle, bytes: u64, commit: Commit) -> Result<()> {
        const OPERATION: &str = "extend";
        let (_call, _setup) = (DeferringCall::begin(), self.setup.lock());
        let id = buffer.id();
        let length = self.lock().buffers.get(&id).copied();
        let Length { bytes: now, most } = length
            .ok_or_else(|| self.unknown(OPERATION, "the buffer is released, or belongs to another device"))?;
        if !check_extend(now, bytes, most.unwrap_or(now)).map_err(|error| error.on(&self.info))? {
            return Ok(());
        }
        self.on_each(OPERATION, |member| match member.buffers.get(&id) {
            Some(buffer) => member.device.extend(buffer, bytes, commit),
            None => Err(self.unknown(OPERATION, "the buffer is released, or belongs to another device")),
        })?;
        // A rebuild need not copy the new bytes, because their contents are unspecified on all devices.
        self.lock().buffers.insert(id, Length { bytes, most });
        Ok(())
    }

    pub(super) fn release(&self, buffer: &BufferHandle) {
        let (_call, id) = (DeferringCall::begin(), buffer.id());
        self.wait_for_all(|entry| entry.touches.has_buffer(id));
        let _setup = self.setup.lock();
        let mut state = self.lock();
        state.buffers.remove(&id);
        let members = state.members.iter_mut();
        let buffers: Vec<_> = members
            .filter_map(|member| {
                member.missing.retain(|(buffer, _)| *buffer != id);
                Some((Arc::clone(&member.device), member.buffers.remove(&id)?))
            })
            .collect();
        drop(state);
        buffers.into_iter().for_each(|(device, buffer)| device.release(buffer));
    }

    /// Waits for all pending submissions that meet a condition, also if another device takes them over.
    fn wait_for_all(&self, is_wanted: impl Fn(&super::state::MirrorSubmission) -> bool) {
        loop {
            let part = self.lock().find_part(&is_wanted);
            let Some(part) = part else { return };
            let _ = part.device.wait(part.ticket);
        }
    }

    pub(super) fn allocate_host(&self, bytes: usize, kind: HostMemory) -> Result<HostAllocation> {
        const OPERATION: &str = "allocate_host";
        let refused =
            || Error::new(ErrorKind::OutOfMemory, OPERATION).with_bytes(bytes as u64).on(&self.info);
        let block = HostBlock::new(bytes).ok_or_else(refused)?;
        // SAFETY: the block is not shared, and is freed after all devices have released it.
        let allocation = unsafe { self.import_host(OPERATION, block.address(), bytes, kind) };
        let allocation = allocation.map_err(|error| match error.kind() {
            // A device that can allocate page-locked memory may be unable to page-lock memory of the program.
            ErrorKind::Unsupported if kind == HostMemory::Pinned => {
                Error::new(ErrorKind::PinRefused, OPERATION).with_detail(error.to_string()).on(&self.info)
            }
            _ => error,
        })?;
        self.own.lock().blocks.insert(allocation.id(), block);
        Ok(allocation)
    }

    /// Imports the program's memory into all devices, page-locked if one of them can lock it.
    ///
    /// # Safety
    /// The requirements of [`Device::import_host`].
    pub(super) unsafe fn import_host(
        &self,
        operation: &'static str,
        address: NonNull<u8>,
        bytes: usize,
        kind: HostMemory,
    ) -> Result<HostAllocation> {
        let (_call, _setup) = (DeferringCall::begin(), self.setup.lock());
        // SAFETY: guaranteed by the caller.
        let handle = unsafe { HostAllocation::new(address, bytes, kind) };
        let is_locked = std::cell::Cell::new(false);
        let import = |device: &dyn Device| {
            // SAFETY: guaranteed by the caller.
            let wanted = unsafe { device.import_host(address, bytes, kind) };
            match wanted {
                Err(error)
                    if is_locked.get()
                        && matches!(error.kind(), ErrorKind::PinRefused | ErrorKind::Unsupported) =>
                {
                    // Another device has page-locked the memory already, and a driver may refuse a second
                    // lock. SAFETY: guaranteed by the caller.
                    unsafe { device.import_host(address, bytes, HostMemory::Pageable) }
                }
                other => {
                    is_locked.set(is_locked.get() | other.is_ok());
                    other
                }
            }
        };
        let (id, give_back) = (handle.id(), |device: &dyn Device, host| device.release_host(host));
        self.make_on_each(operation, import, give_back, |member, host| {
            member.hosts.insert(id, host);
        })?;
        let host = Host { address: address.as_ptr().expose_provenance(), bytes: bytes as u64, kind };
        self.lock().hosts.insert(id, host);
        Ok(handle)
    }

    pub(super) fn release_host(&self, host: HostAllocation) {
        let (_call, id) = (DeferringCall::begin(), host.id());
        self.wait_for_all(|entry| entry.touches.has_host(id));
        let setup = self.setup.lock();
        let mut state = self.lock();
        state.hosts.remove(&id);
        let members = state.members.iter_mut();
        let hosts: Vec<_> = members
            .filter_map(|member| Some((Arc::clone(&member.device), member.hosts.remove(&id)?)))
            .collect();
        drop(state);
        hosts.into_iter().for_each(|(device, host)| device.release_host(host));
        drop(setup);
        let (block, wipes) = {
            let mut own = self.own.lock();
            (own.blocks.remove(&id), own.wipes)
        };
        if let Some(block) = block
            && wipes
        {
            // SAFETY: all devices have released the block, so no device accesses it.
            unsafe { block.wipe() };
        }
    }
}
