//! Locks on ranges of parity stripes. A stripe is bytes on several devices and their parity.

use parking_lot::{Condvar, Mutex};

use super::stripe_layout::StripeSegment;
use crate::several::access_set::Ranges;

/// The ranges of stripes that threads work on. Changes of different devices may run in parallel: each
/// changes its own bytes, and parities have a lock of their own. A reconstruction is exclusive: during a
/// change, data and parity do not match.
#[derive(Debug, Default)]
pub(super) struct Locks {
    held: Mutex<Held>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Held {
    next: u64,
    /// The claims in the order of arrival; each waits for earlier ones that conflict with it.
    list: Vec<Claim>,
}

/// The claim of one thread: ranges of rows and stripes.
#[derive(Debug)]
struct Claim {
    number: u64,
    what: StripeUse,
    ranges: Ranges<(u64, usize)>,
}

impl Claim {
    fn can_run_with(&self, other: &Self) -> bool {
        self.what == StripeUse::ParityUpdate && other.what == StripeUse::ParityUpdate
            || !self.ranges.overlap(&other.ranges)
    }
}

/// The use of a stripe's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StripeUse {
    /// One device changes its own bytes.
    ParityUpdate,
    /// A thread reads or changes the bytes of a lost device.
    Rebuild,
}

/// A guard of locked ranges.
#[derive(Debug)]
#[must_use]
pub(super) struct LockedRanges<'a> {
    locks: &'a Locks,
    number: u64,
}

impl Locks {
    /// Waits until no earlier claim conflicts, and locks the segments.
    pub(super) fn lock(&self, what: StripeUse, segments: &[StripeSegment]) -> LockedRanges<'_> {
        let ranges =
            segments.iter().map(|segment| (segment.row, segment.stripe, segment.offset, segment.bytes));
        self.lock_ranges(what, ranges)
    }

    /// Locks a whole row.
    pub(super) fn lock_row(&self, row: u64, devices: usize) -> LockedRanges<'_> {
        self.lock_ranges(StripeUse::Rebuild, (0..devices).map(|stripe| (row, stripe, 0, u64::MAX)))
    }

    fn lock_ranges(
        &self,
        what: StripeUse,
        parts: impl Iterator<Item = (u64, usize, u64, u64)>,
    ) -> LockedRanges<'_> {
        let mut ranges = Ranges::default();
        parts.for_each(|(row, stripe, offset, bytes)| ranges.add((row, stripe), offset, bytes));
        ranges.join();
        let mut held = self.held.lock();
        held.next += 1;
        let number = held.next;
        held.list.push(Claim { number, what, ranges });
        while !held.is_turn(number) {
            self.changed.wait(&mut held);
        }
        LockedRanges { locks: self, number }
    }
}

impl Held {
    fn is_turn(&self, number: u64) -> bool {
        let Some(own) = self.list.iter().find(|one| one.number == number) else { return true };
        let mut earlier = self.list.iter().take_while(|one| one.number != number);
        earlier.all(|one| one.can_run_with(own))
    }
}

impl Drop for LockedRanges<'_> {
    fn drop(&mut self) {
        let mut held = self.locks.held.lock();
        held.list.retain(|one| one.number != self.number);
        drop(held);
        self.locks.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_go_side_by_side_and_rebuilding_alone() {
        let segment = |stripe, offset| [StripeSegment { row: 1, stripe, offset, bytes: 10, at: 0 }];
        let locks = Locks::default();
        let one = locks.lock(StripeUse::ParityUpdate, &segment(0, 0));
        let concurrent = [
            (StripeUse::ParityUpdate, segment(0, 5)),
            (StripeUse::Rebuild, segment(0, 10)),
            (StripeUse::Rebuild, segment(1, 0)),
        ];
        concurrent.into_iter().for_each(|(what, segments)| drop(locks.lock(what, &segments)));
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| drop(locks.lock(StripeUse::Rebuild, &segment(0, 9))));
            while locks.held.lock().list.len() < 2 {
                std::thread::yield_now();
            }
            // A later claim waits behind earlier ones.
            let later = scope.spawn(|| drop(locks.lock(StripeUse::ParityUpdate, &segment(0, 9))));
            while locks.held.lock().list.len() < 3 {
                std::thread::yield_now();
            }
            assert!(!waits.is_finished() && !later.is_finished());
            drop(one);
        });
        assert!(locks.held.lock().list.is_empty());
    }
}
