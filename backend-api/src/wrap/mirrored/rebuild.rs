//! Copies from device to device: a spare gets everything, while the mirror is used.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::state::State;
use super::{Core, Mirrored};
use crate::wrap::several::host::known;
use crate::wrap::several::member::{Member, Status};
use crate::wrap::several::wakers::Call;
use crate::{
    BufferId, Commit, Device, Error, ErrorKind, HostAllocation, HostMemory, Result, Ticket, Transfer,
};

/// Bytes of a copy, for which submissions wait: long enough for the bandwidth of a bus, and copied within
/// less than a millisecond.
const PIECE_BYTES: u64 = 4 << 20;

/// How often a piece is copied that fails, before its target is given up.
const ATTEMPTS: u32 = 3;

/// How a copy from one device to another ended.
pub(super) enum CopyEnd {
    Copied,
    TargetLost,
    SourceLost,
}

impl Mirrored {
    /// Puts a spare device in the place of one that is lost, and gives it everything. The mirror is
    /// used meanwhile: writes go to the spare from the beginning, and submissions wait at most for one piece
    /// of 4 MiB at a time to be copied. Returns when the spare has everything.
    ///
    /// Blocks until the work of the lost device is over. One thread at a time; others wait. What is copied
    /// goes through host memory, at the bandwidth of the slower of two buses.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) if the device is none of those that are lost, or the
    /// spare is one of the mirror's; what the spare refuses, such as
    /// [`OutOfMemory`](ErrorKind::OutOfMemory) (the mirror is as before then); [`Lost`](ErrorKind::Lost) if
    /// the spare is lost, for which another one can be given, or the last device that has everything.
    pub fn rebuild(&self, lost: &Arc<dyn Device>, spare: Arc<dyn Device>) -> Result<()> {
        let _call = Call::begin();
        let _only = self.core.rebuilding.lock();
        self.core.bounce()?;
        let id = self.core.join(lost, spare)?;
        loop {
            let mut state = self.core.lock();
            while state.waiting > 0 || state.is_closed {
                self.core.opened.wait(&mut state);
            }
            let Some(source) = state.primary() else { return Err(state.all_lost("rebuild")) };
            let lost = state.all_lost("rebuild");
            let Some(member) = state.member(id).filter(|member| member.is_there()) else { return Err(lost) };
            let Some((buffer, range)) = member.missing.pop() else {
                member.status = Status::Current;
                return Ok(());
            };
            let end = range.end.min(range.start + PIECE_BYTES);
            if end < range.end {
                member.missing.push((buffer, end..range.end));
            }
            state.is_closed = true;
            drop(state);
            let copied = self.core.copy(source, id, buffer, range.start..end);
            if matches!(copied, CopyEnd::SourceLost) {
                // Another one may have it.
                self.core.lock().add_missing(id, vec![(buffer, range.start..end)]);
            }
            self.core.open();
        }
    }
}

impl Core {
    /// Makes the memory that copies go through, unless it is there.
    fn bounce(&self) -> Result<()> {
        if self.lock().bounce.is_some() {
            return Ok(());
        }
        let bytes = PIECE_BYTES as usize;
        let pinned = self.allocate_host(bytes, HostMemory::Pinned);
        let memory = match pinned {
            Err(error) if matches!(error.kind(), ErrorKind::PinRefused | ErrorKind::Unsupported) => {
                self.allocate_host(bytes, HostMemory::Pageable)?
            }
            other => other?,
        };
        self.lock().bounce.get_or_insert(memory);
        Ok(())
    }

    /// Has a spare take the place of a lost device, with nothing in its memory so far. Its id.
    fn join(&self, lost: &Arc<dyn Device>, spare: Arc<dyn Device>) -> Result<u64> {
        let refused = |detail: &str| {
            Error::new(ErrorKind::InvalidArgument, "rebuild")
                .with_detail(detail)
                .with_advice("give a device that the mirror does not have, once one of its own is lost")
                .on(&self.info)
        };
        let _setup = self.setup.lock();
        let lost = loop {
            let mut state = self.lock();
            let is = |member: &Member, device: &Arc<dyn Device>| {
                std::ptr::addr_eq(Arc::as_ptr(&member.device), Arc::as_ptr(device))
            };
            if state.members.iter().any(|member| is(member, &spare)) {
                return Err(refused("the spare is one of the devices"));
            }
            let lost = state.members.iter().find(|member| !member.is_there() && is(member, lost));
            let lost = lost.map(|member| member.id);
            let Some(lost) = lost else { return Err(refused("the device is not one of the lost ones")) };
            // All that it was doing is over, and another device has taken over what is to be.
            let part = state.find_part(|entry| entry.parts.iter().any(|part| part.member == lost));
            let Some(part) = part else { break lost };
            drop(state);
            let _ = part.device.wait(part.ticket);
        };
        if self.wipes.load(Ordering::Acquire) {
            spare.wipe_on_release()?;
        }
        let id = self.next_member.fetch_add(1, Ordering::Relaxed);
        let mut member = Member::new(id, spare, Status::Rebuilding)?;
        let (queues, buffers, hosts) = {
            let state = self.lock();
            let queues: Vec<_> = state.queues.keys().copied().collect();
            let buffers: Vec<_> = state.buffers.iter().map(|(id, bytes)| (*id, *bytes)).collect();
            let hosts: Vec<_> = state.hosts.iter().map(|(id, host)| (*id, *host)).collect();
            (queues, buffers, hosts)
        };
        for queue in queues {
            member.queues.insert(queue, member.device.create_queue()?);
        }
        for &(buffer, bytes) in &buffers {
            member.buffers.insert(buffer, member.device.allocate(bytes, Commit::Lazy)?);
            member.missing.push((buffer, 0..bytes));
        }
        for (id, host) in hosts {
            // SAFETY: who had the mirror import the memory keeps its promises until the mirror was told to
            // forget it, which waits for all of its devices; what the mirror allocated stays until then, too.
            let host = unsafe { known(&*member.device, host) }?;
            member.hosts.insert(id, host);
        }
        let mut state = self.lock();
        let at = state.members.iter().position(|member| member.id == lost);
        let Some(at) = at else { return Err(refused("the device is gone")) };
        let lost = std::mem::replace(&mut state.members[at], member);
        drop(state);
        // Nothing of it is under way: what it knows of host memory is forgotten.
        drop(lost);
        Ok(id)
    }

    /// Copies a part of a buffer from one device to another, between all that was submitted before and what
    /// is submitted later. The caller has closed the mirror.
    pub(super) fn copy(&self, source: u64, target: u64, buffer: BufferId, range: Range<u64>) -> CopyEnd {
        if let Err(error) = self.bounce() {
            // Without it the other devices are of no use.
            self.lock().lose(target, &error);
            return CopyEnd::TargetLost;
        }
        let mut start = range.start;
        while start < range.end {
            let bytes = (range.end - start).min(PIECE_BYTES);
            for (id, is_source) in [(source, true), (target, false)] {
                let Err(error) = self.copy_piece(id, is_source, buffer, start, bytes) else { continue };
                if is_source && error.kind() == ErrorKind::Lost {
                    self.lock().lose(source, &error);
                    return CopyEnd::SourceLost;
                }
                // It does not have what it should have.
                self.lock().lose(target, &error);
                return CopyEnd::TargetLost;
            }
            start += bytes;
        }
        CopyEnd::Copied
    }

    /// Copies a piece from a device to the memory in between, or from there to a device.
    fn copy_piece(&self, id: u64, is_source: bool, buffer: BufferId, offset: u64, bytes: u64) -> Result<()> {
        let mut attempts = 1;
        loop {
            let begun = self.lock().begin_copy(id, is_source, buffer, offset, bytes);
            let copied =
                begun.and_then(|(device, ticket)| ticket.map_or(Ok(()), |ticket| device.wait(ticket)));
            match copied {
                Err(error) if error.kind() != ErrorKind::Lost && attempts < ATTEMPTS => attempts += 1,
                other => return other,
            }
        }
    }
}

impl State {
    /// Starts a copy between a device and the memory in between, later than all that the device has to do. No
    /// ticket if the buffer is gone.
    fn begin_copy(
        &mut self,
        id: u64,
        is_source: bool,
        buffer: BufferId,
        offset: u64,
        bytes: u64,
    ) -> Result<(Arc<dyn Device>, Option<Ticket>)> {
        let gone = || Error::new(ErrorKind::Lost, "rebuild");
        let before = self.newest_parts(id);
        let bounce = self.bounce.as_ref().map(HostAllocation::id);
        let member = self.member(id).filter(|member| member.is_there()).ok_or_else(gone)?;
        let device = Arc::clone(&member.device);
        let (Some(buffer), Some(queue)) = (member.buffers.get(&buffer), &member.copies) else {
            return Ok((device, None));
        };
        let host = bounce.and_then(|bounce| member.hosts.get(&bounce)).ok_or_else(gone)?;
        for ticket in before {
            device.order_after(queue, ticket)?;
        }
        let copy = if is_source {
            Transfer::Download { from: buffer.at(offset), to: host.at(0), bytes }
        } else {
            Transfer::Upload { from: host.at(0), to: buffer.at(offset), bytes }
        };
        let ticket = device.submit(queue, &[copy])?;
        Ok((device, Some(ticket)))
    }
}
