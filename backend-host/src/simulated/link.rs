//! Bandwidth of a simulated link: reserves an interval of virtual time for each copy, one copy at a time.

use std::collections::BTreeMap;

/// A link's bandwidth, and the intervals of virtual time in which it is busy.
#[derive(Debug)]
pub(super) struct SimulatedLink {
    bytes_per_second: u64,
    /// Start -> end of busy intervals in nanoseconds, without overlaps. Intervals that ended before the last
    /// reservation request are removed.
    busy: BTreeMap<u64, u64>,
}

impl SimulatedLink {
    pub fn new(bytes_per_second: u64) -> Self {
        Self { bytes_per_second: bytes_per_second.max(1), busy: BTreeMap::new() }
    }

    /// Reserves the link's first free interval, at or after `ready_ns`, that suffices for `bytes` bytes.
    /// Returns the interval's end. Later calls can use earlier gaps. Forgets intervals before `now_ns`.
    pub fn reserve(&mut self, now_ns: u64, ready_ns: u64, bytes: u64) -> u64 {
        if bytes == 0 {
            return ready_ns;
        }
        while let Some(first) = self.busy.first_entry().filter(|first| *first.get() <= now_ns) {
            first.remove();
        }
        let duration = (u128::from(bytes) * 1_000_000_000).div_ceil(u128::from(self.bytes_per_second));
        let duration_ns = u64::try_from(duration).unwrap_or(u64::MAX);
        let mut start_ns = ready_ns;
        for (&from, &to) in &self.busy {
            if start_ns.saturating_add(duration_ns) <= from {
                break;
            }
            start_ns = start_ns.max(to);
        }
        let mut finish_ns = start_ns.saturating_add(duration_ns);
        let finished_ns = finish_ns;
        // Merge adjacent intervals to keep look-ups on a busy link fast.
        if let Some(to) = self.busy.remove(&finish_ns) {
            finish_ns = to;
        }
        match self.busy.range_mut(..start_ns).next_back() {
            Some((_, to)) if *to == start_ns => *to = finish_ns,
            _ => {
                self.busy.insert(start_ns, finish_ns);
            }
        }
        finished_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_gap_that_is_long_enough_is_used() {
        let mut link = SimulatedLink::new(1_000_000_000);
        assert_eq!(link.reserve(0, 100, 50), 150);
        assert_eq!(link.reserve(0, 0, 100), 100);
        assert_eq!(link.busy, [(0, 150)].into());
        assert_eq!(link.reserve(0, 20, 10), 160);
        assert_eq!(link.reserve(0, 500, 10), 510);
        assert_eq!(link.reserve(0, 170, 400), 910);
        assert_eq!(link.reserve(0, 170, 300), 470);
        assert_eq!(link.reserve(0, 170, 40), 950);
        assert_eq!(link.reserve(0, 170, 30), 500);
        assert_eq!(link.busy, [(0, 160), (170, 950)].into());
        assert_eq!(link.reserve(940, 940, 1), 951);
        assert_eq!(link.busy.len(), 1);
    }

    #[test]
    fn nothing_takes_no_time_and_very_much_does_not_overflow() {
        let mut link = SimulatedLink::new(1);
        assert_eq!(link.reserve(0, 7, 0), 7);
        assert_eq!(link.reserve(0, 7, u64::MAX), u64::MAX);
    }
}
