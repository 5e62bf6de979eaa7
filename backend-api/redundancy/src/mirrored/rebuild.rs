//! Rebuilding a mirror: copies all of its data to a spare device while the program uses the mirror.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::Mirrored;
use super::core::{MirrorCore, links_to};
use super::host::known;
use super::member::{Member, MemberStatus};
use super::state::MirrorState;
use super::wakers::DeferringCall;
use backend_api::{
    BufferId, Commit, Device, Error, ErrorKind, HostAllocation, HostMemory, Request, Result, Ticket, Transfer,
};
use vmarray_support::links::is_same;

/// The bytes of one copy of a rebuild, during which submissions wait: long enough for the bandwidth of a bus,
/// and done in less than a millisecond.
const PIECE_BYTES: u64 = 4 << 20;
/// Maximum number of bytes of one direct copy between devices. If a copy takes less than the time below, the
/// next copy is twice as long; if it takes more than twice the time, half as long. Between two H200 the waits
/// take about 150 us of each piece, and half a GiB takes 1.5 ms.
const LINKED_PIECE_BYTES: u64 = 512 << 20;
const LINKED_PIECE_TIME: Duration = Duration::from_millis(1);

/// Number of attempts to copy a piece before the mirror treats the target as lost.
const ATTEMPTS: u32 = 3;

/// The result of a copy from one device to another.
pub(super) enum CopyEnd {
    Copied,
    TargetLost,
    SourceLost,
}

impl Mirrored {
    /// Replaces a lost device by a spare device, and copies all data to the spare. The program can use the
    /// mirror in the meantime: writes go to the spare from the beginning, and a submission waits for the copy
    /// of at most one piece. Returns when the spare has all data.
    ///
    /// The call first waits for the end of the lost device's work. One thread rebuilds at a time; other
    /// callers wait. If the devices [reach](Device::reaches) each other, they copy over their link, in pieces
    /// of about a millisecond. Otherwise the call copies through host memory in pieces of 4 MiB, at the
    /// bandwidth of the slower bus.
    ///
    /// # Errors
    /// - [`InvalidArgument`](ErrorKind::InvalidArgument) if `lost` is not a lost device of the mirror, or if
    ///   the spare already belongs to the mirror.
    /// - The spare's error, such as [`OutOfMemory`](ErrorKind::OutOfMemory); the mirror is then unchanged.
    /// - [`Lost`](ErrorKind::Lost) if the spare is lost (try another spare), or if the last complete device
    ///   is lost.
    pub fn rebuild(&self, lost: &Arc<dyn Device>, spare: Arc<dyn Device>) -> Result<()> {
        let _only = self.core.rebuilding.lock();
        let id = self.core.join(Some(lost), spare)?;
        self.core.complete(id, None)
    }

    /// Replaces a working device by another device while the program uses the mirror. Copies all data to the
    /// new device, like [`rebuild`](Self::rebuild), and then removes the old device. A mirror of a single
    /// device can thus move to another device.
    ///
    /// Returns when the new device has all data, and the old device has finished its work and released its
    /// memory. If the old device is lost, this is the same as `rebuild`.
    ///
    /// # Errors
    /// The errors of `rebuild`, and [`InvalidArgument`](ErrorKind::InvalidArgument) if `old` is not a device
    /// of the mirror. After an error the mirror is unchanged, unless `old` is lost.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use vmarray_redundancy::Mirrored;
    /// use backend_api::{Commit, Device, DeviceBuffer};
    /// # use backend_host::HostDevice;
    /// let cards = [(); 2].map(|()| Arc::new(HostDevice::new(1 << 20).unwrap()) as Arc<dyn Device>);
    /// let movable = Arc::new(Mirrored::new([cards[0].clone()])?);
    /// let _memory = DeviceBuffer::new(&movable, 1000, Commit::Lazy)?;
    /// movable.replace(&cards[0], cards[1].clone())?;
    /// assert!(movable.devices().iter().all(|device| Arc::ptr_eq(device, &cards[1])));
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    pub fn replace(&self, old: &Arc<dyn Device>, new: Arc<dyn Device>) -> Result<()> {
        let _only = self.core.rebuilding.lock();
        let member = {
            let state = self.core.lock();
            let member = state.members.iter().find(|member| is_same(&member.device, old));
            member.map(|member| (member.id, member.is_there()))
        };
        match member {
            None => Err(self.core.refused("the device to replace does not belong to the mirror")),
            Some((_, false)) => self.core.join(Some(old), new).and_then(|id| self.core.complete(id, None)),
            Some((left, true)) => {
                let joined = self.core.join(None, new)?;
                let completed = self.core.complete(joined, Some(left));
                self.core.leave(if completed.is_ok() { left } else { joined });
                completed
            }
        }
    }
}

impl MirrorCore {
    /// Copies all missing data to a device under rebuild. At the end, removes the device `leaves`, if any.
    fn complete(&self, id: u64, leaves: Option<u64>) -> Result<()> {
        let mut linked_piece = PIECE_BYTES;
        loop {
            let _call = DeferringCall::begin();
            let mut state = self.lock();
            while state.waiting > 0 || state.is_closed {
                self.opened.wait(&mut state);
            }
            let Some(source) = state.primary() else { return Err(state.all_lost("rebuild")) };
            let lost = state.all_lost("rebuild");
            let Some(member) = state.member(id).filter(|member| member.is_there()) else { return Err(lost) };
            let Some((buffer, range)) = member.missing.pop() else {
                member.status = MemberStatus::Current;
                // The thread holds the lock during both changes, so each submission sees one of the two
                // devices.
                if let Some(old) = leaves.and_then(|old| state.member(old)) {
                    old.status = MemberStatus::Leaving;
                }
                return Ok(());
            };
            let piece = if member.links.contains(&source) { linked_piece } else { PIECE_BYTES };
            let end = range.end.min(range.start + piece);
            if end < range.end {
                member.missing.push((buffer, end..range.end));
            }
            state.is_closed = true;
            drop(state);
            let start = Instant::now();
            let copied = self.copy(source, id, buffer, range.start..end);
            let took = start.elapsed();
            if took < LINKED_PIECE_TIME {
                linked_piece = (piece * 2).min(LINKED_PIECE_BYTES);
            } else if took > 2 * LINKED_PIECE_TIME {
                linked_piece = (piece / 2).max(PIECE_BYTES);
            }
            if matches!(copied, CopyEnd::SourceLost) {
                // Another device may still have this data, so record only that this device lacks it.
                self.lock().add_missing(id, vec![(buffer, range.start..end)]);
            }
            self.open();
        }
    }

    /// Removes a device: it receives no more requests, and the mirror drops it when its work is done.
    fn leave(&self, id: u64) {
        loop {
            let _call = DeferringCall::begin();
            let setup = self.setup.lock();
            let mut state = self.lock();
            let Some(at) = state.members.iter().position(|member| member.id == id) else { return };
            state.members[at].status = MemberStatus::Leaving;
            let part = state.find_part(|entry| entry.parts.iter().any(|part| part.member == id));
            let Some(part) = part else {
                let gone = state.members.remove(at);
                drop(state);
                // The thread still holds the set-up lock during this drop. So no other thread releases
                // objects of the device meanwhile.
                drop(gone);
                return;
            };
            drop((state, setup));
            let _ = part.device.wait(part.ticket);
        }
    }

    fn refused(&self, detail: &str) -> Error {
        Error::new(ErrorKind::InvalidArgument, "rebuild")
            .with_detail(detail)
            .with_advice("name a device of the mirror, and a spare that the mirror does not use")
            .on(&self.info)
    }

    /// Allocates the host memory through which devices copy to each other, unless it exists.
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

    /// Adds a device to the mirror, either in place of a lost device or as an additional device. Its memory
    /// has no data yet. Returns its id.
    fn join(&self, lost: Option<&Arc<dyn Device>>, spare: Arc<dyn Device>) -> Result<u64> {
        let _call = DeferringCall::begin();
        let there = self.lock().devices();
        if there.is_empty() {
            return Err(self.lock().all_lost("rebuild"));
        }
        let links = links_to(&there, &spare);
        let back =
            there.iter().filter(|(_, device)| !links_to(&[(0, Arc::clone(&spare))], device).is_empty());
        let back: Vec<u64> = back.map(|(id, _)| *id).collect();
        let _setup = self.setup.lock();
        let lost = self.lost_without_work(lost, &spare)?;
        if self.own.lock().wipes {
            spare.wipe_on_release()?;
        }
        let id = self.next_member.fetch_add(1, Ordering::Relaxed);
        let mut member = Member::new(id, spare, MemberStatus::Rebuilding)?;
        member.links = links;
        let (queues, buffers, hosts) = {
            let state = self.lock();
            let queues: Vec<_> = state.queues.keys().copied().collect();
            let buffers: Vec<_> = state.buffers.iter().map(|(id, length)| (*id, *length)).collect();
            let hosts: Vec<_> = state.hosts.iter().map(|(id, host)| (*id, *host)).collect();
            (queues, buffers, hosts)
        };
        for queue in queues {
            member.queues.insert(queue, member.device.create_queue()?);
        }
        for &(buffer, length) in &buffers {
            member.buffers.insert(buffer, length.allocate(&*member.device, Commit::Lazy)?);
            member.missing.push((buffer, 0..length.bytes));
        }
        for (id, host) in hosts {
            // SAFETY: the importer of the memory keeps its promises until the mirror releases it, which
            // waits for all of its devices; the mirror's own allocations live until then, too.
            let host = unsafe { known(&*member.device, host) }?;
            member.hosts.insert(id, host);
        }
        let mut state = self.lock();
        for member in state.members.iter_mut().filter(|member| back.contains(&member.id)) {
            member.links.push(id);
        }
        let at = state.members.iter().position(|member| Some(member.id) == lost);
        let Some(at) = at else {
            state.members.push(member);
            return Ok(id);
        };
        let lost = std::mem::replace(&mut state.members[at], member);
        drop(state);
        // The lost device has no work in flight. Dropping the device ends its imports of host memory.
        drop(lost);
        Ok(id)
    }

    /// Waits until other devices have taken over a lost device's unfinished work, and returns the id of the
    /// lost device. Refuses a spare that is already in the mirror.
    fn lost_without_work(
        &self,
        lost: Option<&Arc<dyn Device>>,
        spare: &Arc<dyn Device>,
    ) -> Result<Option<u64>> {
        loop {
            let mut state = self.lock();
            if state.members.iter().any(|member| is_same(&member.device, spare)) {
                return Err(self.refused("the spare is already a device of the mirror"));
            }
            let Some(lost) = lost else { return Ok(None) };
            let is_it =
                |member: &&Member| member.status == MemberStatus::Lost && is_same(&member.device, lost);
            let lost = state.members.iter().find(is_it);
            let lost = lost.map(|member| member.id);
            let Some(lost) = lost else {
                return Err(self.refused("the device is not a lost device of the mirror"));
            };
            let part = state.find_part(|entry| entry.parts.iter().any(|part| part.member == lost));
            let Some(part) = part else { return Ok(Some(lost)) };
            drop(state);
            let _ = part.device.wait(part.ticket);
        }
    }

    /// Copies a part of a buffer from one device to another, after earlier and before later submissions. The
    /// caller has set `is_closed`.
    pub(super) fn copy(&self, source: u64, target: u64, buffer: BufferId, range: Range<u64>) -> CopyEnd {
        if self.copy_linked(source, target, buffer, &range).unwrap_or(false) {
            return CopyEnd::Copied;
        }
        if let Err(error) = self.bounce() {
            // Without host memory for copies, no device can copy to the spare, so treat the spare as lost.
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
                // The spare now lacks data that it needs, so treat the spare as lost.
                self.lock().lose(target, &error);
                return CopyEnd::TargetLost;
            }
            start += bytes;
        }
        CopyEnd::Copied
    }

    /// Copies directly, if the source device reaches the target. Returns `false` if it does not. After an
    /// error, the copy through the host finds out which device failed.
    fn copy_linked(&self, source: u64, target: u64, buffer: BufferId, range: &Range<u64>) -> Result<bool> {
        let there = |state: &MirrorState, id: u64| {
            state.members.iter().position(|member| member.id == id && member.is_there())
        };
        let state = self.lock();
        let Some(to) = there(&state, target).filter(|at| state.members[*at].links.contains(&source)) else {
            return Ok(false);
        };
        // The copy runs in a queue of the source device, which is not ordered after the target's work. So
        // wait here for the target's work.
        let (before, device) = (state.newest_parts(target), Arc::clone(&state.members[to].device));
        drop(state);
        before.into_iter().try_for_each(|ticket| device.wait(ticket))?;
        let state = self.lock();
        let (Some(from), Some(to)) = (there(&state, source), there(&state, target)) else { return Ok(false) };
        let (from, to) = (&state.members[from], &state.members[to]);
        let Some(queue) = &from.copies else { return Ok(false) };
        let (Some(start), Some(end)) = (from.buffers.get(&buffer), to.buffers.get(&buffer)) else {
            // Another thread has released the buffer in the meantime, so no data is left to copy.
            return Ok(true);
        };
        let (start, end, bytes) = (start.at(range.start), end.at(range.start), range.end - range.start);
        let device = Arc::clone(&from.device);
        for ticket in state.newest_parts(source) {
            device.order_after(queue, ticket)?;
        }
        let ticket = device
            .submit(queue, &Request::Copies(&[Transfer::Internal { from: start, to: end, bytes }], None))?;
        drop(state);
        device.wait(ticket)?;
        // A lost device may still accept writes from other devices. So test the target by a submission.
        let proof = {
            let state = self.lock();
            let Some(to) = there(&state, target) else { return Ok(false) };
            let to = &state.members[to];
            let Some(queue) = &to.copies else { return Ok(false) };
            (Arc::clone(&to.device), to.device.submit(queue, &Request::Copies(&[], None))?)
        };
        proof.0.wait(proof.1)?;
        Ok(true)
    }

    /// Copies a piece from a device to the intermediate host memory, or from there to a device.
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

impl MirrorState {
    /// Starts a copy between a device and the intermediate host memory, after all work of the device. Returns
    /// no ticket if the program has released the buffer.
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
        let ticket = device.submit(queue, &Request::Copies(&[copy], None))?;
        Ok((device, Some(ticket)))
    }
}
