//! Writes to device memory that also update the parity on the other devices.

use super::Core;
use super::copies::{If, PIECE_BYTES, both_lost};
use super::locks::StripeUse;
use super::scratch::{ScratchBytes, difference_of};
use super::stripe_layout::{StripeSegment, StripeTarget};
use crate::several::member::MemberStatus;
use backend_api::{Error, ErrorKind, Result};

/// A change of a member's data.
pub(super) struct ParityUpdate<'a> {
    pub(super) position: usize,
    /// The ranges to change; no byte twice.
    pub(super) targets: &'a [StripeTarget],
    /// The ranges that a stand-in reads.
    pub(super) reads: &'a [StripeTarget],
    /// The new bytes, if they are known.
    pub(super) known: Option<&'a [u8]>,
    /// Runs the change on the member's device, and waits.
    pub(super) run: &'a dyn Fn() -> Result<()>,
    /// Computes the new bytes without the member's device, if they are not known.
    pub(super) run_degraded: &'a dyn Fn() -> Result<ScratchBytes>,
}

impl Core {
    /// Changes a member's data together with the parities:
    ///
    /// 1. Read the old data.
    /// 2. Let the member's device change it.
    /// 3. Read the new data, unless it is known.
    /// 4. Add the difference to the parities.
    ///
    /// Until the fourth step the parities match the old data. If the member's device is lost by then, its
    /// data is reconstructed from them. The change then starts again without the device, from the data of
    /// the others. From the fourth step on, the host has all data it needs, so the member's device does not
    /// matter any more. If the device of a parity is lost, the data exists without it. If another device
    /// is lost, the parities contain its data after the last step; its readers wait for that.
    pub(super) fn change(&self, change: &ParityUpdate<'_>) -> Result<()> {
        let segments = self.rows.lock().segments(change.targets);
        loop {
            let is_current = self.member_queues[change.position].lock().member.is_current();
            let done = if is_current {
                let _locked = self.locks.lock(StripeUse::ParityUpdate, &segments);
                self.change_here(change, &segments)
            } else {
                let mut all = self.rows.lock().segments(change.reads);
                all.extend(&segments);
                let _locked = self.locks.lock(StripeUse::Rebuild, &all);
                self.change_lost(change, &segments)
            };
            if let Some(outcome) = done {
                return outcome;
            }
        }
    }

    /// Changes the data on the member's device; returns `None` if that is lost.
    fn change_here(&self, change: &ParityUpdate<'_>, segments: &[StripeSegment]) -> Option<Result<()>> {
        let position = change.position;
        let is_kept =
            segments.iter().any(|segment| self.member_queues[segment.stripe].lock().member.is_there());
        if !is_kept {
            let outcome = (change.run)();
            let is_lost = outcome.as_ref().is_err_and(|error| self.is_loss(position, error));
            return (!is_lost).then_some(outcome);
        }
        let bytes = change.targets.iter().map(|target| target.bytes).sum();
        let mut difference = match self.scratch(bytes) {
            Ok(scratch) => scratch,
            Err(error) => return Some(Err(error)),
        };
        let read = self.read_each(position, If::Current, change.targets, |at, old| {
            let to = &mut difference[at..at + old.len()];
            match change.known {
                Some(new) => difference_of(to, old, &new[at..at + old.len()]),
                None => to.copy_from_slice(old),
            }
        });
        if let Err(error) = read {
            return (!self.is_loss(position, &error)).then_some(Err(error));
        }
        let id = self.member_queues[position].lock().member.id;
        let outcome = (change.run)();
        if !self.is_current(position) || outcome.as_ref().is_err_and(|error| self.is_loss(position, error)) {
            return None;
        }
        match change.known {
            Some(_) if outcome.is_ok() => {}
            // After a failure the contents are unknown, but the parities must match the contents
            // nevertheless.
            known => {
                if let Some(new) = known {
                    difference.xor(0, new);
                }
                if let Err(error) = self.add_contents(position, change.targets, &mut difference) {
                    self.lose(position, id, &error);
                    return None;
                }
            }
        }
        match self.change_parities(segments, &difference) {
            Err(error) if !self.is_current(position) => Some(Err(both_lost(&error))),
            _ => Some(outcome),
        }
    }

    /// Adds the contents of targets to a difference, a piece at a time.
    fn add_contents(
        &self,
        position: usize,
        targets: &[StripeTarget],
        difference: &mut ScratchBytes,
    ) -> Result<()> {
        let mut at = 0;
        for group in grouped(targets) {
            let bytes = group.iter().map(|target| target.bytes).sum();
            let mut now = self.scratch(bytes)?;
            self.read(position, If::Current, &group, &mut now)?;
            difference.xor(at, &now);
            at += bytes as usize;
        }
        Ok(())
    }

    /// Changes the data of a lost device, or data that its spare still lacks. Returns `None` if the spare
    /// is complete by now.
    fn change_lost(&self, change: &ParityUpdate<'_>, segments: &[StripeSegment]) -> Option<Result<()>> {
        let position = change.position;
        let error = {
            let state = self.member_queues[position].lock();
            if state.member.is_current() {
                return None;
            }
            state.lost_error("parity")
        };
        let (mut difference, made) = match self.make_change(change, segments, &error) {
            // The reconstruction failed, but a spare has replaced the device meanwhile and has the old data.
            // Repeat the change on the spare.
            Err(_) if self.is_current(position) => return None,
            Err(error) => return Some(Err(error)),
            Ok(made) => made,
        };
        let new = change.known.or(made.as_deref()).unwrap_or_default();
        difference.xor(0, new);
        let (id, status) = {
            let state = self.member_queues[position].lock();
            (state.member.id, state.member.status)
        };
        // When the stripes are unlocked, the spare has the new bytes, even if it had not received the old
        // ones.
        if status != MemberStatus::Lost
            && let Err(error) = self.write(position, If::There, change.targets, new)
        {
            self.lose(position, id, &error);
        }
        match self.change_parities(segments, &difference) {
            Err(error) if !self.is_current(position) => Some(Err(both_lost(&error))),
            _ => Some(Ok(())),
        }
    }

    /// Reconstructs the data of a lost device, and computes its new data if that is not known.
    fn make_change(
        &self,
        change: &ParityUpdate<'_>,
        segments: &[StripeSegment],
        error: &Error,
    ) -> Result<(ScratchBytes, Option<ScratchBytes>)> {
        let mut before = self.scratch(change.targets.iter().map(|target| target.bytes).sum())?;
        self.rebuild_bytes(change.position, segments, &mut before, error)?;
        let made = if change.known.is_none() { Some((change.run_degraded)()?) } else { None };
        Ok((before, made))
    }
}

/// Splits and merges targets into groups of at most a piece's bytes.
pub(super) fn grouped(targets: &[StripeTarget]) -> Vec<Vec<StripeTarget>> {
    let (mut groups, mut group, mut bytes) = (Vec::new(), Vec::new(), 0);
    for target in targets {
        let mut offset = target.offset;
        while offset < target.end() {
            let length = (target.end() - offset).min(PIECE_BYTES - bytes);
            group.push(StripeTarget::new(target.buffer, offset, length));
            (offset, bytes) = (offset + length, bytes + length);
            if bytes == PIECE_BYTES {
                groups.push(std::mem::take(&mut group));
                bytes = 0;
            }
        }
    }
    if !group.is_empty() {
        groups.push(group);
    }
    groups
}

/// The stand-in of a change whose new bytes are known.
pub(super) fn no_scratch() -> Result<ScratchBytes> {
    Err(Error::new(ErrorKind::Unsupported, "parity"))
}
