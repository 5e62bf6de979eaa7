//! Copies between devices and the heap, and reconstruction of a lost device's data.

use std::sync::Arc;

use super::Core;
use super::locks::StripeUse;
use super::member_queue::MemberStage;
use super::scratch::{ScratchBytes, xor};
use super::stripe_layout::{StripeSegment, StripeTarget};
use crate::several::member::{Adapted, Member, MemberStatus, PlaceTranslation};
use backend_api::numa::OnNode;
use backend_api::{Error, ErrorKind, HostMemory, Request, Result, Ticket, Transfer, racy};

/// The bytes of one piece of work: enough for most of the bandwidth of a bus.
pub(super) const PIECE_BYTES: u64 = 2 << 20;
/// The most places of one submission.
const PLACES: usize = 4096;
/// The attempts to copy before the device counts as lost.
const ATTEMPTS: u32 = 3;

/// The operation of errors about data of a device that was replaced meanwhile.
const GONE: &str = "parity of a device that was replaced";

/// The error of a request whose memory was lost together with its device.
pub(super) fn gone(detail: &str) -> Error {
    Error::new(ErrorKind::UnknownHandle, GONE).with_detail(detail)
}

/// The devices that a request may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum If {
    /// Complete devices.
    Current,
    /// Complete devices and spares under rebuild.
    There,
}

impl If {
    fn admits(self, status: MemberStatus) -> bool {
        status == MemberStatus::Current || self == Self::There && status == MemberStatus::Rebuilding
    }
}

/// A part of a target's bytes, which is copied between a device and the heap.
#[derive(Clone, Copy)]
struct Piece {
    target: StripeTarget,
    at: usize,
}

/// Calls `reach` with the first bytes of a stage, after the copies to it are over.
fn with_stage(stage: &MemberStage, bytes: usize, reach: impl FnOnce(&mut [u8])) {
    let Some(memory) = stage.memory() else { return };
    // SAFETY: the stage is longer, and this thread owns it; no copy to it is in flight, and earlier copies
    // have written all of these bytes.
    reach(unsafe { std::slice::from_raw_parts_mut(memory.address().as_ptr(), bytes) });
}

/// Splits targets so that each submission has at most a stage's bytes.
fn pieces(targets: &[StripeTarget]) -> Vec<Vec<Piece>> {
    let (mut all, mut now, mut bytes, mut at) = (Vec::new(), Vec::new(), 0, 0);
    for target in targets {
        let mut offset = target.offset;
        while offset < target.end() {
            let length = (target.end() - offset).min(PIECE_BYTES - bytes);
            now.push(Piece { target: StripeTarget::new(target.buffer, offset, length), at });
            (offset, bytes, at) = (offset + length, bytes + length, at + length as usize);
            if bytes == PIECE_BYTES || now.len() == PLACES {
                all.push(std::mem::take(&mut now));
                bytes = 0;
            }
        }
    }
    if !now.is_empty() {
        all.push(now);
    }
    all
}

impl Core {
    /// Submits to a member's device, if it may be used, and waits. Records a loss of the device.
    pub(super) fn run(
        &self,
        position: usize,
        which: If,
        start: impl FnOnce(&Member) -> Result<Ticket>,
    ) -> Result<()> {
        let (id, device, started) = {
            let state = self.member_queues[position].lock();
            if !which.admits(state.member.status) {
                return Err(state.lost_error("parity"));
            }
            (state.member.id, Arc::clone(&state.member.device), start(&state.member))
        };
        started.and_then(|ticket| device.wait(ticket)).map_err(|error| {
            if error.kind() == ErrorKind::Lost {
                self.lose(position, id, &error);
            } else if error.kind() == ErrorKind::UnknownHandle && error.operation() == GONE {
                // The error belongs to the replaced device, but the current device is not lost.
                return Error::new(ErrorKind::Lost, "parity").with_detail(error.detail());
            }
            error
        })
    }

    /// Runs a request with the member's names on its device, in the queue of the current job: copies for
    /// other members' parities do not wait for it.
    pub(super) fn run_request(&self, position: usize, request: &Request<'_>) -> Result<()> {
        let queue = self.member_queues[position].lock().busy_queue;
        self.run(position, If::Current, |member| {
            let own = queue.and_then(|queue| member.queues.get(&queue)).or(member.copies.as_ref());
            let queue = own.ok_or_else(|| Error::new(ErrorKind::Lost, "parity"))?;
            member.start_on(&*member.device, queue, request, Adapted::default())
        })
    }

    /// Copies from a member's device. If it fails permanently, the device counts as lost.
    pub(super) fn read(
        &self,
        position: usize,
        which: If,
        targets: &[StripeTarget],
        to: &mut [u8],
    ) -> Result<()> {
        self.read_each(position, which, targets, |at, bytes| to[at..at + bytes.len()].copy_from_slice(bytes))
    }

    /// Reads like [`read`](Self::read). Passes the bytes in place, a piece at a time, with their position
    /// among the bytes of all targets.
    pub(super) fn read_each(
        &self,
        position: usize,
        which: If,
        targets: &[StripeTarget],
        mut take: impl FnMut(usize, &[u8]),
    ) -> Result<()> {
        for pieces in pieces(targets) {
            let stage = self.stage(position, which)?;
            self.copy(position, which, &stage, &pieces, true)?;
            let (start, end) = ends(&pieces);
            with_stage(&stage, end - start, |bytes| take(start, bytes));
            self.put_stage(position, stage);
        }
        Ok(())
    }

    /// Copies to a member's device, as [`read`](Self::read) does.
    pub(super) fn write(
        &self,
        position: usize,
        which: If,
        targets: &[StripeTarget],
        from: &[u8],
    ) -> Result<()> {
        for pieces in pieces(targets) {
            let stage = self.stage(position, which)?;
            let Some(address) = stage.memory().map(|memory| memory.address()) else { continue };
            let (start, end) = ends(&pieces);
            // SAFETY: the stage is longer, and no copy in flight touches it.
            unsafe { racy::write(address.as_ptr(), &from[start..end]) };
            self.copy(position, which, &stage, &pieces, false)?;
            self.put_stage(position, stage);
        }
        Ok(())
    }

    fn copy(
        &self,
        position: usize,
        which: If,
        stage: &MemberStage,
        pieces: &[Piece],
        is_read: bool,
    ) -> Result<()> {
        let mut attempts = 1;
        loop {
            let outcome = self.run(position, which, |member| {
                let host = stage.memory().filter(|_| stage.member == member.id);
                let host = host.ok_or_else(|| gone("the device was replaced"))?;
                let queue = member.copies.as_ref().ok_or_else(|| gone("the device has no queue"))?;
                let (mut transfers, mut at) = (Vec::with_capacity(pieces.len()), 0);
                for Piece { target, .. } in pieces {
                    // A device does not need memory that it never had.
                    let buffer = member.buffers.get(&target.buffer);
                    let place = buffer.ok_or_else(|| gone("the memory is gone"))?.at(target.offset);
                    let bytes = target.bytes;
                    transfers.push(if is_read {
                        Transfer::Download { from: place, to: host.at(at), bytes }
                    } else {
                        Transfer::Upload { from: host.at(at), to: place, bytes }
                    });
                    at += bytes;
                }
                member.device.submit(queue, &Request::Copies(&transfers, None))
            });
            match outcome {
                Err(error) if error.kind() != ErrorKind::Lost && attempts < ATTEMPTS => attempts += 1,
                Err(error) => {
                    // The copy failed, so the contents of the device are unknown.
                    self.lose(position, stage.member, &error);
                    return Err(error);
                }
                Ok(()) => return Ok(()),
            }
        }
    }

    /// Returns host memory of a piece's length that a member's device knows.
    fn stage(&self, position: usize, which: If) -> Result<MemberStage> {
        let (id, device) = {
            let mut state = self.member_queues[position].lock();
            if !which.admits(state.member.status) {
                return Err(state.lost_error("parity"));
            }
            if let Some(stage) = state.stages.pop() {
                return Ok(stage);
            }
            (state.member.id, Arc::clone(&state.member.device))
        };
        let _near = OnNode::prefer(device.info().numa_node);
        let allocate = |kind| device.allocate_host(PIECE_BYTES as usize, kind);
        let memory = match allocate(HostMemory::Pinned) {
            Err(error) if matches!(error.kind(), ErrorKind::PinRefused | ErrorKind::Unsupported) => {
                allocate(HostMemory::Pageable)
            }
            other => other,
        };
        let memory = memory.inspect_err(|error| {
            if error.kind() == ErrorKind::Lost {
                self.lose(position, id, error);
            }
        })?;
        Ok(MemberStage::new(id, device, memory))
    }

    fn put_stage(&self, position: usize, stage: MemberStage) {
        let mut state = self.member_queues[position].lock();
        // If the device was replaced meanwhile, its stage is released instead.
        if state.member.id == stage.member {
            state.stages.push(stage);
        } else {
            drop(state);
        }
    }

    /// Copies a member's data, from its device or from a reconstruction.
    pub(super) fn read_position(
        &self,
        position: usize,
        targets: &[StripeTarget],
        to: &mut [u8],
    ) -> Result<()> {
        loop {
            let error = match self.read(position, If::Current, targets, to) {
                Err(error) if self.is_loss(position, &error) => error,
                other => return other,
            };
            let segments = self.rows.lock().segments(targets);
            let _locked = self.locks.lock(StripeUse::Rebuild, &segments);
            match self.rebuild_bytes(position, &segments, to, &error) {
                // Try again: a spare has the data now, and the error belongs to another device.
                Err(_) if self.is_current(position) => {}
                other => return other,
            }
        }
    }

    /// Returns true if an error means that a member's device was lost. A spare may have replaced it by now.
    pub(super) fn is_loss(&self, position: usize, error: &Error) -> bool {
        error.kind() == ErrorKind::Lost || !self.is_current(position)
    }

    /// Returns true if a member's device is complete.
    pub(super) fn is_current(&self, position: usize) -> bool {
        self.member_queues[position].lock().member.is_current()
    }

    /// Reconstructs a member's data from the parity and the other devices. The caller has locked the
    /// stripes. `error` is reported if another device is missing, too.
    pub(super) fn rebuild_bytes(
        &self,
        position: usize,
        segments: &[StripeSegment],
        to: &mut [u8],
        error: &Error,
    ) -> Result<()> {
        to.fill(0);
        // For each device: the ranges to read, and their offsets in the result.
        let mut lists: Vec<(Vec<StripeTarget>, Vec<usize>)> =
            vec![Default::default(); self.member_queues.len()];
        {
            let rows = self.rows.lock();
            for segment in segments {
                let Some(row) = rows.get(segment.row) else { continue };
                let range = segment.offset..segment.offset + segment.bytes;
                let mut add = |device: usize, target: StripeTarget| {
                    lists[device].0.push(target);
                    lists[device].1.push(segment.at);
                };
                if segment.stripe != position {
                    add(segment.stripe, StripeTarget::new(row.parity, segment.offset, segment.bytes));
                }
                row.parts(segment.stripe, range, position)
                    .into_iter()
                    .for_each(|(device, part)| add(device, part));
            }
        }
        for (device, (targets, places)) in lists.iter().enumerate().filter(|(_, list)| !list.0.is_empty()) {
            let bytes: u64 = targets.iter().map(|target| target.bytes).sum();
            let mut read = self.scratch(bytes)?;
            self.read(device, If::Current, targets, &mut read).map_err(|_| both_lost(error))?;
            let mut from = 0;
            for (target, at) in targets.iter().zip(places) {
                let bytes = target.bytes as usize;
                xor(&mut to[*at..at + bytes], &read[from..from + bytes]);
                from += bytes;
            }
        }
        Ok(())
    }

    /// Adds a change to the parities of the changed ranges. A lost parity is skipped; the caller decides
    /// whether that is an error.
    ///
    /// # Errors
    /// The first loss of a parity's device.
    pub(super) fn change_parities(&self, segments: &[StripeSegment], change: &[u8]) -> Result<()> {
        let mut outcome = Ok(());
        for device in 0..self.member_queues.len() {
            let is_changed = |segment: &&StripeSegment| {
                let at = segment.at..segment.at + segment.bytes as usize;
                segment.stripe == device && change[at].iter().any(|byte| *byte != 0)
            };
            let (mut targets, mut places): (Vec<StripeTarget>, Vec<usize>) = Default::default();
            {
                let rows = self.rows.lock();
                for segment in segments.iter().filter(is_changed) {
                    let Some(row) = rows.get(segment.row) else { continue };
                    // Work in steps, to limit the length of parity that is locked at a time.
                    let mut from = 0;
                    while from < segment.bytes {
                        let bytes = (segment.bytes - from).min(PIECE_BYTES);
                        targets.push(StripeTarget::new(row.parity, segment.offset + from, bytes));
                        places.push(segment.at + from as usize);
                        from += bytes;
                    }
                }
            }
            if targets.is_empty() {
                continue;
            }
            let id = self.member_queues[device].lock().member.id;
            if let Err(error) = self.change_parity(device, &targets, &places, change) {
                // After an error the parity may be wrong, so its device counts as lost.
                self.lose(device, id, &error);
                outcome = outcome.and(Err(error));
            }
        }
        outcome
    }

    fn change_parity(
        &self,
        device: usize,
        targets: &[StripeTarget],
        places: &[usize],
        change: &[u8],
    ) -> Result<()> {
        let mut first = 0;
        while first < targets.len() {
            let (mut end, mut bytes) = (first, 0);
            while end < targets.len() && (end == first || bytes + targets[end].bytes <= PIECE_BYTES) {
                bytes += targets[end].bytes;
                end += 1;
            }
            // Changes to the same bytes by other devices wait for this lock.
            let _one = self.member_queues[device].parity.lock();
            self.change_each(device, &targets[first..end], |part, bytes| {
                let place = places[first + part];
                xor(bytes, &change[place..place + bytes.len()]);
            })?;
            first = end;
        }
        Ok(())
    }

    /// Copies data of a member's device to the host, changes it there and copies it back, target by target.
    /// All targets together are at most a piece.
    fn change_each(
        &self,
        position: usize,
        targets: &[StripeTarget],
        mut change: impl FnMut(usize, &mut [u8]),
    ) -> Result<()> {
        let mut done = 0;
        for pieces in pieces(targets) {
            let stage = self.stage(position, If::There)?;
            self.copy(position, If::There, &stage, &pieces, true)?;
            let (start, end) = ends(&pieces);
            with_stage(&stage, end - start, |bytes| {
                let mut rest = bytes;
                for (number, piece) in pieces.iter().enumerate() {
                    let (now, later) = rest.split_at_mut(piece.target.bytes as usize);
                    change(done + number, now);
                    rest = later;
                }
            });
            self.copy(position, If::There, &stage, &pieces, false)?;
            self.put_stage(position, stage);
            done += pieces.len();
        }
        Ok(())
    }

    pub(super) fn scratch(&self, bytes: u64) -> Result<ScratchBytes> {
        self.scratches.take(usize::try_from(bytes).unwrap_or(usize::MAX))
    }

    /// Records the loss of a device.
    pub(super) fn lose(&self, position: usize, member: u64, error: &Error) {
        let as_lost;
        let error = if error.kind() == ErrorKind::Lost {
            error
        } else {
            as_lost = Error::new(ErrorKind::Lost, "parity")
                .with_detail(format!(
                    "the group no longer uses the device, because its contents are unknown: {error}"
                ))
                .on(self.member_queues[position].lock().member.device.info());
            &as_lost
        };
        self.member_queues[position].lock().lose(member, error);
    }
}

fn ends(pieces: &[Piece]) -> (usize, usize) {
    let start = pieces.first().map_or(0, |piece| piece.at);
    (start, pieces.last().map_or(0, |piece| piece.at + piece.target.bytes as usize))
}

/// The error of work whose two devices, which would reconstruct each other, are both lost.
pub(super) fn both_lost(error: &Error) -> Error {
    if error.detail().contains(BOTH) {
        return error.clone();
    }
    let detail = format!("{}{}{BOTH}", error.detail(), if error.detail().is_empty() { "" } else { "; " });
    error.clone().with_detail(detail)
}

const BOTH: &str = "another device of the group is lost, too";
