//! Who is changing which bytes of stripes.

use parking_lot::{Condvar, Mutex};

use super::rows::Segment;
use crate::wrap::several::touches::Ranges;

/// Ranges of stripes that threads are at work on. Changes of different devices go side by side: each keeps
/// its own bytes to itself, and parities are changed under a lock of their own. Who reads what a lost device
/// had, or changes it, is alone: in between, data and parity do not fit together.
#[derive(Debug, Default)]
pub(super) struct Locks {
    held: Mutex<Held>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Held {
    next: u64,
    /// In the order in which they came; each waits for those before it that it cannot be beside.
    list: Vec<Claim>,
}

/// What one thread works on or waits for: ranges of rows and stripes.
#[derive(Debug)]
struct Claim {
    number: u64,
    what: Use,
    ranges: Ranges<(u64, usize)>,
}

impl Claim {
    fn can_be_beside(&self, other: &Self) -> bool {
        self.what == Use::Change && other.what == Use::Change || !self.ranges.overlap(&other.ranges)
    }
}

/// What is done to the bytes of a stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// One device changes its own.
    Change,
    /// Those of a lost device are read or changed.
    Rebuild,
}

/// Ranges that are held until it is dropped.
#[derive(Debug)]
#[must_use]
pub(super) struct Locked<'a> {
    locks: &'a Locks,
    number: u64,
}

impl Locks {
    /// Waits until nobody is at work on these that one cannot be beside.
    pub(super) fn lock(&self, what: Use, segments: &[Segment]) -> Locked<'_> {
        let ranges =
            segments.iter().map(|segment| (segment.row, segment.stripe, segment.offset, segment.bytes));
        self.lock_ranges(what, ranges)
    }

    /// The same for all of a row.
    pub(super) fn lock_row(&self, row: u64, devices: usize) -> Locked<'_> {
        self.lock_ranges(Use::Rebuild, (0..devices).map(|stripe| (row, stripe, 0, u64::MAX)))
    }

    fn lock_ranges(&self, what: Use, parts: impl Iterator<Item = (u64, usize, u64, u64)>) -> Locked<'_> {
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
        Locked { locks: self, number }
    }
}

impl Held {
    fn is_turn(&self, number: u64) -> bool {
        let Some(own) = self.list.iter().find(|one| one.number == number) else { return true };
        let mut earlier = self.list.iter().take_while(|one| one.number != number);
        earlier.all(|one| one.can_be_beside(own))
    }
}

impl Drop for Locked<'_> {
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
        let segment = |stripe, offset| [Segment { row: 1, stripe, offset, bytes: 10, at: 0 }];
        let locks = Locks::default();
        let one = locks.lock(Use::Change, &segment(0, 0));
        let beside =
            [(Use::Change, segment(0, 5)), (Use::Rebuild, segment(0, 10)), (Use::Rebuild, segment(1, 0))];
        beside.into_iter().for_each(|(what, segments)| drop(locks.lock(what, &segments)));
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| drop(locks.lock(Use::Rebuild, &segment(0, 9))));
            while locks.held.lock().list.len() < 2 {
                std::thread::yield_now();
            }
            // Who comes later does not overtake.
            let later = scope.spawn(|| drop(locks.lock(Use::Change, &segment(0, 9))));
            while locks.held.lock().list.len() < 3 {
                std::thread::yield_now();
            }
            assert!(!waits.is_finished() && !later.is_finished());
            drop(one);
        });
        assert!(locks.held.lock().list.is_empty());
    }
}
