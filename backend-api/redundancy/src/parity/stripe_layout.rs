//! The layout of stripes: maps bytes of buffers to the parity that protects them.

use std::collections::HashMap;
use std::ops::Range;

use backend_api::BufferId;

/// The alignment of parity in its memory.
const ALIGNMENT: u64 = 256;

/// A row: at most one buffer of each device, and their parity.
///
/// With `n` devices, each buffer is divided into `n - 1` parts. Part `p` of device `d` belongs to the
/// *stripe* `(d + 1 + p) % n`. So a stripe has a part of each device but the one of its own number. That
/// device has the stripe's parity, the XOR of its parts. Absent bytes count as zeros.
#[derive(Debug)]
pub(super) struct StripeRow {
    /// The name of the parity on each device.
    pub(super) parity: BufferId,
    /// The greatest length of a buffer in bytes.
    pub(super) len: u64,
    /// The bytes of a part, and of a parity.
    pub(super) part_bytes: u64,
    /// The slots, by device.
    pub(super) slots: Vec<Option<RowSlot>>,
}

/// A buffer in a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowSlot {
    pub(super) buffer: BufferId,
    pub(super) bytes: u64,
    /// True if it was released. Its bytes count until the whole row is released.
    pub(super) is_free: bool,
}

/// A range of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StripeTarget {
    pub(super) buffer: BufferId,
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

impl StripeTarget {
    pub(super) fn new(buffer: BufferId, offset: u64, bytes: u64) -> Self {
        Self { buffer, offset, bytes }
    }

    pub(super) fn end(&self) -> u64 {
        self.offset + self.bytes
    }
}

/// A range of a stripe: the share of one parity in a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StripeSegment {
    pub(super) row: u64,
    pub(super) stripe: usize,
    /// The offset in the stripe.
    pub(super) offset: u64,
    pub(super) bytes: u64,
    /// The position of its bytes among the bytes of all targets.
    pub(super) at: usize,
}

impl StripeRow {
    pub(super) fn new(parity: BufferId, len: u64, devices: usize) -> Self {
        Self { parity, len, part_bytes: part_bytes(len, devices), slots: vec![None; devices] }
    }

    /// The offset of a device's part of a stripe in its buffer; `None` for the device with the parity.
    fn part(&self, device: usize, stripe: usize) -> Option<u64> {
        let devices = self.slots.len();
        let part = (stripe + devices - device - 1) % devices;
        (part < devices - 1).then(|| part as u64 * self.part_bytes)
    }

    /// Returns the parts of a range of a stripe on all devices except for one, without the parity.
    pub(super) fn parts(
        &self,
        stripe: usize,
        range: Range<u64>,
        without: usize,
    ) -> Vec<(usize, StripeTarget)> {
        let part = |(device, slot): (usize, &Option<RowSlot>)| {
            let (slot, start) = (slot.as_ref()?, self.part(device, stripe)?);
            let (start, end) = (start + range.start, (start + range.end).min(slot.bytes));
            (device != without && start < end)
                .then(|| (device, StripeTarget::new(slot.buffer, start, end - start)))
        };
        self.slots.iter().enumerate().filter_map(part).collect()
    }
}

/// Returns the length of the parts of a buffer.
pub(super) fn part_bytes(len: u64, devices: usize) -> u64 {
    let even = len.div_ceil(devices as u64 - 1);
    even.checked_next_multiple_of(ALIGNMENT).unwrap_or(even)
}

/// All rows of a group.
#[derive(Debug, Default)]
pub(super) struct StripeLayout {
    next: u64,
    rows: HashMap<u64, StripeRow>,
    /// The row and the device of each buffer.
    places: HashMap<BufferId, (u64, usize)>,
}

impl StripeLayout {
    pub(super) fn get(&self, row: u64) -> Option<&StripeRow> {
        self.rows.get(&row)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = (&u64, &StripeRow)> {
        self.rows.iter()
    }

    pub(super) fn add(&mut self, row: StripeRow) -> u64 {
        self.next += 1;
        self.rows.insert(self.next, row);
        self.next
    }

    /// Removes a row if all of its buffers are free.
    pub(super) fn remove(&mut self, row: u64) -> Option<StripeRow> {
        let is_free = |row: &StripeRow| row.slots.iter().flatten().all(|slot| slot.is_free);
        if !self.rows.get(&row).is_some_and(is_free) {
            return None;
        }
        let row = self.rows.remove(&row)?;
        for slot in row.slots.iter().flatten() {
            self.places.remove(&slot.buffer);
        }
        Some(row)
    }

    /// Returns a row with room for a buffer of a device, whose other buffers have about the same length.
    pub(super) fn with_room(&self, device: usize, bytes: u64) -> Option<u64> {
        let has_room =
            |row: &StripeRow| row.slots[device].is_none() && (row.len / 2..=row.len).contains(&bytes);
        self.rows.iter().filter(|(_, row)| has_room(row)).map(|(id, _)| *id).min()
    }

    /// Returns a row with a released buffer of a device that has at least this length, and at most twice.
    pub(super) fn with_free(&self, device: usize, bytes: u64) -> Option<(u64, RowSlot)> {
        let fits = |slot: &RowSlot| slot.is_free && (slot.bytes / 2..=slot.bytes).contains(&bytes);
        let free = |(id, row): (&u64, &StripeRow)| Some((*id, row.slots[device].filter(fits)?));
        self.rows.iter().filter_map(free).min_by_key(|(id, _)| *id)
    }

    /// Adds a buffer to a row; it replaces a free one, if any.
    pub(super) fn put(&mut self, row: u64, device: usize, buffer: BufferId, bytes: u64) {
        let Some(slot) = self.rows.get_mut(&row).map(|row| &mut row.slots[device]) else { return };
        let former = slot.replace(RowSlot { buffer, bytes, is_free: false });
        if let Some(former) = former {
            self.places.remove(&former.buffer);
        }
        self.places.insert(buffer, (row, device));
    }

    /// Removes an unused buffer from its row, or marks a used one as free. Returns the row.
    pub(super) fn free(&mut self, buffer: BufferId) -> Option<u64> {
        let (row, device) = *self.places.get(&buffer)?;
        let slot = self.rows.get_mut(&row)?.slots[device].as_mut()?;
        slot.is_free = true;
        Some(row)
    }

    /// Returns the segments of stripes that contain targets. Memory without bytes has none.
    pub(super) fn segments(&self, targets: &[StripeTarget]) -> Vec<StripeSegment> {
        let (mut segments, mut at) = (Vec::with_capacity(targets.len()), 0);
        for target in targets {
            let Some((id, device)) = self.places.get(&target.buffer) else { continue };
            let Some(row) = self.rows.get(id) else { continue };
            let mut offset = target.offset;
            while offset < target.end() {
                let part = offset / row.part_bytes;
                let bytes = target.end().min((part + 1) * row.part_bytes) - offset;
                segments.push(StripeSegment {
                    row: *id,
                    stripe: (device + 1 + part as usize) % row.slots.len(),
                    offset: offset % row.part_bytes,
                    bytes,
                    at,
                });
                at += bytes as usize;
                offset += bytes;
            }
        }
        segments
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use backend_api::BufferHandle;

    #[test]
    fn each_byte_is_in_a_stripe_with_one_of_each_other_device() {
        for devices in 3..6 {
            for len in [1, 255, 256, 1000, 5000] {
                let name = || BufferHandle::unique().id();
                let mut rows = StripeLayout::default();
                let row = rows.add(StripeRow::new(name(), len, devices));
                let buffers: Vec<_> = (0..devices).map(|_| name()).collect();
                let bytes = |device: usize| len - device as u64 * len / 8;
                for (device, buffer) in buffers.iter().enumerate() {
                    rows.put(row, device, *buffer, bytes(device));
                }
                for (device, buffer) in buffers.iter().enumerate() {
                    let segments = rows.segments(&[StripeTarget::new(*buffer, 0, bytes(device))]);
                    assert_eq!(segments.iter().map(|segment| segment.bytes).sum::<u64>(), bytes(device));
                    for segment in segments {
                        assert_ne!(segment.stripe, device, "no device keeps its own bytes");
                        let range = segment.offset..segment.offset + segment.bytes;
                        let row = rows.get(row).unwrap();
                        assert!(range.end <= row.part_bytes);
                        let parts = row.parts(segment.stripe, range.clone(), usize::MAX);
                        let own = parts.iter().find(|(other, _)| *other == device).unwrap().1;
                        assert_eq!((own.offset, own.bytes), (segment.at as u64, segment.bytes));
                        assert!(parts.iter().all(|(other, _)| *other != segment.stripe));
                        // A query for the part of another device returns the same stripe.
                        for (_, part) in parts {
                            let of_other = rows.segments(&[part]);
                            assert_eq!((of_other.len(), of_other[0].stripe), (1, segment.stripe));
                            assert_eq!(of_other[0].offset, segment.offset);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_row_goes_when_all_of_it_is_released() {
        let name = || BufferHandle::unique().id();
        let mut rows = StripeLayout::default();
        let (one, two, other) = (name(), name(), name());
        let row = rows.add(StripeRow::new(name(), 1000, 3));
        rows.put(row, 0, one, 1000);
        assert_eq!((rows.with_room(1, 999), rows.with_room(1, 499)), (Some(row), None));
        assert_eq!((rows.with_room(0, 999), rows.with_room(1, 1001)), (None, None));
        rows.put(row, 1, two, 999);
        assert_eq!(rows.free(one), Some(row));
        assert!(rows.remove(row).is_none());
        assert_eq!(rows.with_free(0, 900).map(|(row, slot)| (row, slot.buffer)), Some((row, one)));
        rows.put(row, 0, other, 1000);
        assert!(rows.segments(&[StripeTarget::new(one, 0, 9)]).is_empty(), "its name is gone");
        rows.free(other);
        rows.free(two);
        assert!(rows.remove(row).is_some() && rows.segments(&[StripeTarget::new(two, 0, 9)]).is_empty());
    }
}
