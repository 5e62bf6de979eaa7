//! The memory ranges that a request reads and writes, by which wrappers of devices order conflicting
//! requests.

use std::ops::Range;

use backend_api::kernel::Report;
use backend_api::{BufferId, DeviceSpan, Elements, HostId, HostSpan, Request, Search, Transfer};

/// Ranges of bytes with the id of their memory, ascending and disjoint.
#[derive(Debug)]
pub(crate) struct Ranges<K>(Vec<(K, Range<u64>)>);

impl<K> Default for Ranges<K> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<K: Ord + Copy> Ranges<K> {
    pub(crate) fn add(&mut self, memory: K, start: u64, bytes: u64) {
        if bytes > 0 {
            self.0.push((memory, start..start.saturating_add(bytes)));
        }
    }

    pub(crate) fn join(&mut self) {
        self.0.sort_unstable_by_key(|(memory, range)| (*memory, range.start));
        self.0.dedup_by(|(memory, range), (earlier, joined)| {
            let is_joined = memory == earlier && range.start <= joined.end;
            if is_joined {
                joined.end = joined.end.max(range.end);
            }
            is_joined
        });
    }

    pub(crate) fn overlap(&self, other: &Self) -> bool {
        let (mut left, mut right) = (self.0.iter().peekable(), other.0.iter().peekable());
        while let (Some((a, one)), Some((b, two))) = (left.peek(), right.peek()) {
            if a == b && one.start < two.end && two.start < one.end {
                return true;
            }
            if (*a, one.end) <= (*b, two.end) {
                left.next();
            } else {
                right.next();
            }
        }
        false
    }

    /// Returns the range of all bytes of a buffer or of host memory.
    pub(crate) fn all_of(memory: K) -> Self {
        Self(vec![(memory, 0..u64::MAX)])
    }

    /// Returns true if one of the ranges overlaps with `range` of `memory`.
    pub(crate) fn meet(&self, memory: K, range: &Range<u64>) -> bool {
        let mut own = self.0.iter().filter(|(other, _)| *other == memory);
        own.any(|(_, own)| own.start < range.end && range.start < own.end)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &(K, Range<u64>)> {
        self.0.iter()
    }

    fn has(&self, memory: K) -> bool {
        self.0.iter().any(|(other, _)| *other == memory)
    }

    fn bytes(&self) -> u64 {
        self.0.iter().map(|(_, range)| range.end - range.start).sum()
    }
}

/// The source of the bytes that a request writes to device memory, if it writes any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Effect {
    /// The request does not write to device memory.
    #[default]
    Read,
    /// The request writes only bytes from the host, so it has the same effect on every device.
    FromHost,
    /// The request also writes bytes from device memory.
    FromDevice,
}

/// The ranges of memory that a request reads and writes.
#[derive(Debug, Default)]
pub(crate) struct AccessSet {
    pub(crate) effect: Effect,
    /// True if a mirror executes some of the request's reads on only one device.
    reads_alone: bool,
    pub(crate) reads: Ranges<BufferId>,
    pub(crate) writes: Ranges<BufferId>,
    pub(crate) host_reads: Ranges<HostId>,
    pub(crate) host_writes: Ranges<HostId>,
}

impl AccessSet {
    /// Returns the ranges of a request that has passed its check.
    pub(crate) fn of(request: &Request<'_>) -> Self {
        let mut touches = Self::default();
        touches.add(request);
        touches.reads_alone |= touches.effect == Effect::Read;
        touches.reads.join();
        touches.writes.join();
        touches.host_reads.join();
        touches.host_writes.join();
        touches
    }

    fn add(&mut self, request: &Request<'_>) {
        let bytes = |elements: &Elements<'_>| elements.count.saturating_mul(elements.stride);
        match *request {
            Request::Copies(transfers, _) => self.add_copies(transfers),
            Request::Fill(fill) => {
                self.effect = Effect::FromHost;
                self.write(fill.to, fill.bytes);
            }
            Request::Search(search) => {
                let listed = search.limit.min(search.elements.count);
                self.read(search.elements.start, bytes(&search.elements));
                self.host_write(search.answer, Search::answer_bytes(listed));
            }
            Request::Gather(gather) => {
                gather.elements.ranges().for_each(|(place, bytes)| self.read(place, bytes));
                self.host_read(gather.indices, gather.count.saturating_mul(8));
                self.host_write(gather.values, gather.count.saturating_mul(gather.elements.stride()));
            }
            Request::Scatter(scatter) => {
                self.effect = Effect::FromHost;
                scatter.elements.ranges().for_each(|(place, bytes)| self.write(place, bytes));
                self.host_read(scatter.indices, scatter.count.saturating_mul(8));
                self.host_read(scatter.values, scatter.count.saturating_mul(scatter.elements.stride()));
            }
            Request::Compute(compute) => {
                for (number, source) in compute.sources.iter().enumerate() {
                    self.read(source.start, bytes(source));
                    if compute.writes(number) {
                        self.effect = Effect::FromDevice;
                        self.write(source.start, bytes(source));
                    }
                }
                if let Some(answer) = compute.answer() {
                    self.host_write(answer, compute.answer_bytes());
                }
            }
            Request::Launch(launch) => {
                self.effect = Effect::FromDevice;
                for (number, view) in launch.views.iter().enumerate() {
                    for (place, bytes) in view.ranges() {
                        self.read(place, bytes);
                        if launch.writes(number) {
                            self.write(place, bytes);
                        }
                    }
                }
                self.host_write(launch.report, Report::BYTES);
            }
        }
    }

    fn add_copies(&mut self, transfers: &[Transfer<'_>]) {
        // Classify an empty list of copies as `FromHost`, which goes to every device: its ticket must wait
        // for all earlier work of the queue on every device.
        self.effect = if transfers.is_empty() { Effect::FromHost } else { Effect::Read };
        for transfer in transfers {
            match *transfer {
                Transfer::Upload { from, to, bytes } => {
                    if self.effect == Effect::Read {
                        self.effect = Effect::FromHost;
                    }
                    self.host_read(from, bytes);
                    self.write(to, bytes);
                }
                Transfer::Download { from, to, bytes } => {
                    self.reads_alone = true;
                    self.read(from, bytes);
                    self.host_write(to, bytes);
                }
                Transfer::Internal { from, to, bytes } => {
                    self.effect = Effect::FromDevice;
                    self.read(from, bytes);
                    self.write(to, bytes);
                }
            }
        }
    }

    fn read(&mut self, at: DeviceSpan<'_>, bytes: u64) {
        self.reads.add(at.buffer(), at.offset(), bytes);
    }

    fn write(&mut self, at: DeviceSpan<'_>, bytes: u64) {
        self.writes.add(at.buffer(), at.offset(), bytes);
    }

    fn host_read(&mut self, at: HostSpan<'_>, bytes: u64) {
        self.host_reads.add(at.host(), at.offset(), bytes);
    }

    fn host_write(&mut self, at: HostSpan<'_>, bytes: u64) {
        self.host_writes.add(at.host(), at.offset(), bytes);
    }

    /// Returns true if a new request must wait for the request in flight `under_way`, because the devices'
    /// queues do not order the two requests. There are two cases:
    ///
    /// - One request changes host memory that the other request uses.
    /// - The new request changes device memory that the request in flight reads on only one device. If that
    ///   device is lost, another device must repeat the read.
    pub(crate) fn must_follow(&self, under_way: &Self) -> bool {
        self.host_writes.overlap(&under_way.host_reads)
            || self.host_writes.overlap(&under_way.host_writes)
            || self.host_reads.overlap(&under_way.host_writes)
            || under_way.reads_alone && self.writes.overlap(&under_way.reads)
    }

    pub(crate) fn has_buffer(&self, buffer: BufferId) -> bool {
        self.reads.has(buffer) || self.writes.has(buffer)
    }

    pub(crate) fn has_host(&self, host: HostId) -> bool {
        self.host_reads.has(host) || self.host_writes.has(host)
    }

    /// Returns an estimate of the request's work, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.reads.bytes() + self.writes.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(of: &[(u32, Range<u64>)]) -> Ranges<u32> {
        let mut ranges = Ranges::default();
        of.iter().for_each(|(memory, range)| ranges.add(*memory, range.start, range.end - range.start));
        ranges.join();
        ranges
    }

    #[test]
    fn ranges_are_joined_and_compared() {
        let joined = ranges(&[(2, 5..9), (1, 4..6), (1, 0..4), (1, 1..2), (1, 8..9), (2, 0..0)]);
        assert_eq!(joined.0, [(1, 0..6), (1, 8..9), (2, 5..9)]);
        for (other, overlaps) in [
            ((1, 6..8), false),
            ((1, 5..7), true),
            ((2, 0..5), false),
            ((2, 8..20), true),
            ((3, 0..9), false),
        ] {
            assert_eq!(joined.overlap(&ranges(std::slice::from_ref(&other))), overlaps, "{other:?}");
            assert_eq!(ranges(std::slice::from_ref(&other)).overlap(&joined), overlaps, "{other:?}");
        }
    }
}
