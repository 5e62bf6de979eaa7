//! Changes of device memory, with the parities that keep it.

use super::Core;
use super::copies::{If, PIECE_BYTES, both_lost};
use super::locks::Use;
use super::rows::{Segment, Target};
use super::scratch::{Scratch, difference_of};
use crate::wrap::several::member::Status;
use crate::{Error, ErrorKind, Result};

/// A change of what one seat has.
pub(super) struct Change<'a> {
    pub(super) seat: usize,
    /// What is changed; no byte twice.
    pub(super) targets: &'a [Target],
    /// What a stand-in reads.
    pub(super) reads: &'a [Target],
    /// What it becomes, where that is known.
    pub(super) known: Option<&'a [u8]>,
    /// Has the seat's device change it, and waits.
    pub(super) run: &'a dyn Fn() -> Result<()>,
    /// What it becomes, where it is not known, without the seat's device.
    pub(super) stand_in: &'a dyn Fn() -> Result<Scratch>,
}

impl Core {
    /// Changes what a seat has, and the parities with it:
    ///
    /// 1. What is to be replaced is read.
    /// 2. The seat's device changes it.
    /// 3. What it is now is read, unless it is known.
    /// 4. The difference is added to the parities.
    ///
    /// Up to the fourth step the parities fit what was there before. So if the seat's device is lost up to
    /// then, what it had is what they say, and the change is begun anew without the device: from what the
    /// others have. From the fourth step on all that is needed is on the host: what the device had does not
    /// matter any more. If the device of a parity is lost, the data are there without it. If another device
    /// is lost, what it had is in the parities when the last step is done; who asks for it waits for that.
    pub(super) fn change(&self, change: &Change<'_>) -> Result<()> {
        let segments = self.rows.lock().segments(change.targets);
        loop {
            let is_current = self.seats[change.seat].lock().member.is_current();
            let done = if is_current {
                let _locked = self.locks.lock(Use::Change, &segments);
                self.change_here(change, &segments)
            } else {
                let mut all = self.rows.lock().segments(change.reads);
                all.extend(&segments);
                let _locked = self.locks.lock(Use::Rebuild, &all);
                self.change_lost(change, &segments)
            };
            if let Some(outcome) = done {
                return outcome;
            }
        }
    }

    /// A change by the seat's device; nothing if that is lost.
    fn change_here(&self, change: &Change<'_>, segments: &[Segment]) -> Option<Result<()>> {
        let seat = change.seat;
        let is_kept = segments.iter().any(|segment| self.seats[segment.stripe].lock().member.is_there());
        if !is_kept {
            let outcome = (change.run)();
            let is_lost = outcome.as_ref().is_err_and(|error| self.is_loss(seat, error));
            return (!is_lost).then_some(outcome);
        }
        let bytes = change.targets.iter().map(|target| target.bytes).sum();
        let mut difference = match self.scratch(bytes) {
            Ok(scratch) => scratch,
            Err(error) => return Some(Err(error)),
        };
        let read = self.read_each(seat, If::Current, change.targets, |at, old| {
            let to = &mut difference[at..at + old.len()];
            match change.known {
                Some(new) => difference_of(to, old, &new[at..at + old.len()]),
                None => to.copy_from_slice(old),
            }
        });
        if let Err(error) = read {
            return (!self.is_loss(seat, &error)).then_some(Err(error));
        }
        let id = self.seats[seat].lock().member.id;
        let outcome = (change.run)();
        if !self.is_current(seat) || outcome.as_ref().is_err_and(|error| self.is_loss(seat, error)) {
            return None;
        }
        match change.known {
            Some(_) if outcome.is_ok() => {}
            // After a failure nobody knows what is there; the parities have to keep that all the same.
            known => {
                if let Some(new) = known {
                    difference.xor(0, new);
                }
                if let Err(error) = self.add_contents(seat, change.targets, &mut difference) {
                    self.lose(seat, id, &error);
                    return None;
                }
            }
        }
        match self.change_parities(segments, &difference) {
            Err(error) if !self.is_current(seat) => Some(Err(both_lost(&error))),
            _ => Some(outcome),
        }
    }

    /// Adds what targets hold to a difference, a piece at a time.
    fn add_contents(&self, seat: usize, targets: &[Target], difference: &mut Scratch) -> Result<()> {
        let mut at = 0;
        for group in grouped(targets) {
            let bytes = group.iter().map(|target| target.bytes).sum();
            let mut now = self.scratch(bytes)?;
            self.read(seat, If::Current, &group, &mut now)?;
            difference.xor(at, &now);
            at += bytes as usize;
        }
        Ok(())
    }

    /// A change of what a lost device had, or of what its successor is still to be given; nothing if that has
    /// it by now.
    fn change_lost(&self, change: &Change<'_>, segments: &[Segment]) -> Option<Result<()>> {
        let seat = change.seat;
        let error = {
            let state = self.seats[seat].lock();
            if state.member.is_current() {
                return None;
            }
            state.lost_error("parity")
        };
        let (mut difference, made) = match self.make_change(change, segments, &error) {
            // A spare has what is to be replaced by now, and another device has been lost since.
            Err(_) if self.is_current(seat) => return None,
            Err(error) => return Some(Err(error)),
            Ok(made) => made,
        };
        let new = change.known.or(made.as_deref()).unwrap_or_default();
        difference.xor(0, new);
        let (id, status) = {
            let state = self.seats[seat].lock();
            (state.member.id, state.member.status)
        };
        // Whether a spare has been given these bytes already or not, it has the new ones when the stripes are
        // let go of.
        if status != Status::Lost
            && let Err(error) = self.write(seat, If::There, change.targets, new)
        {
            self.lose(seat, id, &error);
        }
        match self.change_parities(segments, &difference) {
            Err(error) if !self.is_current(seat) => Some(Err(both_lost(&error))),
            _ => Some(Ok(())),
        }
    }

    /// What a lost device had, and what it would have after a change if that is not known.
    fn make_change(
        &self,
        change: &Change<'_>,
        segments: &[Segment],
        error: &Error,
    ) -> Result<(Scratch, Option<Scratch>)> {
        let mut before = self.scratch(change.targets.iter().map(|target| target.bytes).sum())?;
        self.rebuild_bytes(change.seat, segments, &mut before, error)?;
        let made = if change.known.is_none() { Some((change.stand_in)()?) } else { None };
        Ok((before, made))
    }
}

/// Targets cut and put together so that each group has no more than a piece's bytes.
pub(super) fn grouped(targets: &[Target]) -> Vec<Vec<Target>> {
    let (mut groups, mut group, mut bytes) = (Vec::new(), Vec::new(), 0);
    for target in targets {
        let mut offset = target.offset;
        while offset < target.end() {
            let length = (target.end() - offset).min(PIECE_BYTES - bytes);
            group.push(Target::new(target.buffer, offset, length));
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

/// What a change gives that needs no stand-in, since what it writes is known.
pub(super) fn nobody() -> Result<Scratch> {
    Err(Error::new(ErrorKind::Unsupported, "parity"))
}
