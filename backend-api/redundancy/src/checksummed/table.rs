//! The table of the checksums of a device's buffers. Each checksum covers a fixed number of bytes (a unit).

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, LazyLock};

use parking_lot::{Mutex, RwLock};

use backend_api::{BufferId, Error, ErrorKind, LaunchView, Result};

/// The checksum tables of the buffers of all [`Checksummed`](super::Checksummed) devices, in one map because
/// a device may write to another device's memory.
static TABLES: LazyLock<RwLock<HashMap<BufferId, Arc<ChecksumTable>>>> = LazyLock::new(RwLock::default);

/// The state of a unit: its checksum, and a count of its writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct UnitWord {
    /// Number of writes to the unit. A later check of a copy detects by it whether the unit has changed.
    changes: u64,
    /// Checksum of the unit's bytes, or 0 if it is unknown.
    pub(super) sum: u64,
}

type Words = Vec<UnitWord>;

/// The checksums of a buffer's units. The wrapper changes them when the program submits work, before the
/// device receives it. By the contract of queues, the program submits work after the work that it depends on.
/// It therefore finds the checksums that the other work left.
#[derive(Debug)]
pub(super) struct ChecksumTable {
    pub(super) unit_bytes: u64,
    words: Mutex<Words>,
}

impl ChecksumTable {
    /// Creates a table for a buffer of `bytes` bytes.
    pub(super) fn new(operation: &'static str, unit_bytes: u64, bytes: u64) -> Result<Arc<Self>> {
        let table = Arc::new(Self { unit_bytes, words: Mutex::default() });
        table.grow(operation, bytes)?;
        Ok(table)
    }

    /// Returns the table of a buffer, if it has one.
    pub(super) fn of(buffer: BufferId) -> Option<Arc<Self>> {
        TABLES.read().get(&buffer).cloned()
    }

    pub(super) fn put(self: Arc<Self>, buffer: BufferId) {
        TABLES.write().insert(buffer, self);
    }

    pub(super) fn remove(buffer: BufferId) {
        TABLES.write().remove(&buffer);
    }

    /// Extends the table to the whole units of `bytes` bytes. An incomplete last unit has no checksum.
    pub(super) fn grow(&self, operation: &'static str, bytes: u64) -> Result<()> {
        let none = || {
            Error::new(ErrorKind::OutOfMemory, operation)
                .with_detail("the host has too little RAM for the checksums of the new buffer")
        };
        let units = usize::try_from(bytes / self.unit_bytes).map_err(|_| none())?;
        let mut words = self.words.lock();
        let more = units.saturating_sub(words.len());
        words.try_reserve_exact(more).map_err(|_| none())?;
        words.extend(std::iter::repeat_n(UnitWord::default(), more));
        Ok(())
    }

    /// Returns the units that a range touches and that have a checksum.
    fn touched(&self, words: &Words, start: u64, bytes: u64) -> Range<usize> {
        let end = start.saturating_add(bytes).div_ceil(self.unit_bytes).min(words.len() as u64);
        if bytes == 0 { 0..0 } else { (start / self.unit_bytes).min(end) as usize..end as usize }
    }

    /// Returns the units that are completely inside of a range.
    pub(super) fn whole(&self, start: u64, bytes: u64) -> Range<u64> {
        let end = (start.saturating_add(bytes) / self.unit_bytes).min(self.words.lock().len() as u64);
        start.div_ceil(self.unit_bytes).min(end)..end
    }

    /// Marks the checksums of a range's units as unknown.
    pub(super) fn forget(&self, start: u64, bytes: u64) {
        let mut words = self.words.lock();
        let touched = self.touched(&words, start, bytes);
        words[touched].iter_mut().for_each(UnitWord::forget);
    }

    /// Sets the checksum of a unit that a request writes as a whole, and returns its new state.
    pub(super) fn set(&self, unit: u64, sum: u64) -> UnitWord {
        let mut words = self.words.lock();
        let word = &mut words[unit as usize];
        word.forget();
        word.sum = sum;
        *word
    }

    pub(super) fn word(&self, unit: u64) -> UnitWord {
        self.words.lock()[unit as usize]
    }

    /// Returns the checksum (0 if unknown) of the unit that begins at `offset`; `None` if no unit begins
    /// there.
    pub(super) fn sum_at(&self, offset: u64) -> Option<u64> {
        let unit = Some(offset / self.unit_bytes).filter(|_| offset.is_multiple_of(self.unit_bytes))?;
        self.words.lock().get(unit as usize).map(|word| word.sum)
    }

    /// Replaces a unit's checksum, unless a request has written to the unit since `word` was read.
    pub(super) fn replace(&self, unit: u64, word: UnitWord, sum: u64) {
        if let Some(now) = self.words.lock().get_mut(unit as usize).filter(|now| **now == word) {
            now.sum = sum;
        }
    }
}

impl UnitWord {
    fn forget(&mut self) {
        *self = Self { changes: self.changes.wrapping_add(1), sum: 0 };
    }
}

/// Marks the checksums of a range of a buffer as unknown.
pub(super) fn forget(buffer: BufferId, bytes: &Range<u64>) {
    if let Some(table) = ChecksumTable::of(buffer) {
        table.forget(bytes.start, bytes.end - bytes.start);
    }
}

/// Marks the checksums of the elements with these indices as unknown.
pub(super) fn forget_listed(elements: &LaunchView<'_>, indices: impl Iterator<Item = u64>) {
    let mut buffers: Vec<BufferId> = elements.bases().iter().map(|base| base.buffer()).collect();
    // Lock the tables in ascending order of their buffers: two threads then cannot deadlock.
    buffers.sort_unstable();
    buffers.dedup();
    let tables = buffers.into_iter().filter_map(|buffer| Some((buffer, ChecksumTable::of(buffer)?)));
    let tables: Vec<(BufferId, Arc<ChecksumTable>)> = tables.collect();
    let mut locked: Vec<_> =
        tables.iter().map(|(buffer, table)| (*buffer, &**table, table.words.lock())).collect();
    for (place, ahead) in indices.filter_map(|index| elements.place(index)) {
        if let Some((_, table, words)) = locked.iter_mut().find(|(buffer, ..)| *buffer == place.buffer()) {
            let touched = table.touched(words, place.offset() + ahead, elements.stride());
            words[touched].iter_mut().for_each(UnitWord::forget);
        }
    }
}
