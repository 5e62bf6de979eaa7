//! Rebuilding: replaces a lost device by a spare while the group is used.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Core;
use super::copies::{If, PIECE_BYTES};
use super::locks::StripeUse;
use super::member_queue::MemberStage;
use super::stripe_layout::{StripeSegment, StripeTarget};
use super::worker::MemberWorker;
use crate::several::host::known;
use crate::several::member::{Member, MemberStatus};
use backend_api::{Commit, Device, Error, ErrorKind, Result};
use vmarray_support::links::is_same;

impl Core {
    /// Copies the data of a lost device to a spare. `workers` are the members by number.
    pub(super) fn rebuild(
        &self,
        workers: &[Arc<MemberWorker>],
        lost: &Arc<dyn Device>,
        spare: Arc<dyn Device>,
    ) -> Result<()> {
        let _only = self.rebuilding.lock();
        let position = self.join(workers, lost, spare)?;
        let id = self.member_queues[position].lock().member.id;
        let outcome = self.restore(position);
        let mut state = self.member_queues[position].lock();
        if let Err(error) = outcome {
            // The spare lacks data and no thread will copy it, so the spare counts as lost.
            let as_lost = Error::new(ErrorKind::Lost, "rebuild").with_detail(error.to_string());
            state.lose(id, if error.kind() == ErrorKind::Lost { &error } else { &as_lost });
            return Err(error);
        }
        if !state.member.is_there() {
            return Err(state.lost_error("rebuild"));
        }
        state.member.status = MemberStatus::Current;
        state.missing_bytes = 0;
        Ok(())
    }

    /// Replaces a lost device by a spare, with zeros in its memory. Returns the position.
    fn join(
        &self,
        workers: &[Arc<MemberWorker>],
        lost: &Arc<dyn Device>,
        spare: Arc<dyn Device>,
    ) -> Result<usize> {
        let _setup = self.setup.lock();
        if self.member_queues.iter().any(|member_queue| is_same(&member_queue.lock().member.device, &spare)) {
            return Err(refused("the spare is already a device of the group"));
        }
        let is_lost = |at: &usize| {
            let member = &self.member_queues[*at].lock().member;
            !member.is_there() && is_same(&member.device, lost)
        };
        let position = (0..self.member_queues.len()).find(is_lost);
        let position = position.ok_or_else(|| refused("the device is not a lost device of the group"))?;
        // All work of the lost device must be over. Pending requests will run without this device.
        workers[position].wait_for_direct();
        if self.scratches.wipes.load(Ordering::Acquire) {
            spare.wipe_on_release()?;
        }
        let id = self.next_member.fetch_add(1, Ordering::Relaxed);
        let mut member = Member::new(id, spare, MemberStatus::Rebuilding)?;
        let (queues, hosts, empty) = {
            let state = self.member_queues[position].lock();
            let queues: Vec<_> = state.queues.keys().copied().collect();
            let hosts: Vec<_> = state.hosts.iter().map(|(id, host)| (*id, *host)).collect();
            let empty: Vec<_> =
                state.buffers.iter().filter(|(_, bytes)| **bytes == 0).map(|(id, _)| *id).collect();
            (queues, hosts, empty)
        };
        for queue in queues {
            member.queues.insert(queue, member.device.create_queue()?);
        }
        let mut buffers: Vec<_> = empty.into_iter().map(|buffer| (buffer, 0)).collect();
        for (_, row) in self.rows.lock().all() {
            buffers.push((row.parity, row.part_bytes));
            buffers.extend(row.slots[position].map(|slot| (slot.buffer, slot.bytes)));
        }
        for (buffer, bytes) in &buffers {
            member.buffers.insert(*buffer, member.device.allocate(*bytes, Commit::Lazy)?);
        }
        for (id, host) in hosts {
            // SAFETY: the importer keeps its promises until the release, which ends the import in the
            // member's device; the member's own allocations live until then, too.
            let host = unsafe { known(&*member.device, host) }?;
            member.hosts.insert(id, host);
        }
        let mut state = self.member_queues[position].lock();
        state.missing_bytes = buffers.iter().map(|(_, bytes)| bytes).sum();
        let mut lost = std::mem::replace(&mut state.member, member);
        let stages = std::mem::take(&mut state.stages);
        // Allocations of the lost device are in use, and live as long as their handles.
        for (id, host) in std::mem::take(&mut lost.hosts) {
            let is_kept = state.own.contains_key(&id) || state.of_lost.contains_key(&id);
            if is_kept || state.imported.contains(&id) || !state.hosts.contains_key(&id) {
                lost.hosts.insert(id, host);
            } else {
                state.of_lost.insert(id, MemberStage::new(lost.id, Arc::clone(&lost.device), host));
            }
        }
        drop(state);
        // No work of the lost device is in flight, so its imports of host memory can end.
        drop((stages, lost));
        Ok(position)
    }

    /// Copies all data to a spare, a piece at a time.
    fn restore(&self, position: usize) -> Result<()> {
        let rows: Vec<u64> = {
            let rows = self.rows.lock();
            rows.all().map(|(id, _)| *id).collect()
        };
        for row in rows {
            // Rebuild the data first, then the parity of this device.
            for is_data in [true, false] {
                let mut offset = 0;
                while let Some(bytes) = self.restore_piece(position, row, is_data, offset)? {
                    offset += bytes;
                    let mut state = self.member_queues[position].lock();
                    state.missing_bytes = state.missing_bytes.saturating_sub(bytes);
                }
            }
        }
        Ok(())
    }

    /// Returns the number of bytes; `None` at the end.
    fn restore_piece(&self, position: usize, row: u64, is_data: bool, offset: u64) -> Result<Option<u64>> {
        let piece = |segment: &mut Vec<StripeSegment>| {
            let rows = self.rows.lock();
            let found = rows.get(row)?;
            let (buffer, all) = if is_data {
                found.slots[position].map(|slot| (slot.buffer, slot.bytes))?
            } else {
                (found.parity, found.part_bytes)
            };
            let bytes = all.saturating_sub(offset).min(PIECE_BYTES);
            let target = StripeTarget::new(buffer, offset, bytes);
            *segment = if is_data {
                rows.segments(&[target])
            } else {
                vec![StripeSegment { row, stripe: position, offset, bytes, at: 0 }]
            };
            (bytes > 0).then_some(target)
        };
        let mut segments = Vec::new();
        if piece(&mut segments).is_none() {
            return Ok(None);
        }
        let _locked = self.locks.lock(StripeUse::Rebuild, &segments);
        // The row may have been removed meanwhile, or the buffer may have a new name. Then there is nothing
        // to rebuild here.
        let Some(target) = piece(&mut segments) else { return Ok(None) };
        let mut bytes = self.scratch(target.bytes)?;
        let error = self.member_queues[position].lock().lost_error("rebuild");
        self.rebuild_bytes(position, &segments, &mut bytes, &error)?;
        self.write(position, If::There, &[target], &bytes)?;
        Ok(Some(target.bytes))
    }
}

/// The error for devices that cannot be exchanged.
fn refused(detail: &str) -> Error {
    Error::new(ErrorKind::InvalidArgument, "rebuild")
        .with_detail(detail)
        .with_advice("name a lost device of the group, and a spare that the group does not use")
}
