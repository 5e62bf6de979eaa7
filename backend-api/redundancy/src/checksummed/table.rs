//! The table of the checksums of a device's buffers. Each checksum covers a unit: a range of fixed length.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, LazyLock};

use parking_lot::{Mutex, RwLock};

use backend_api::{BufferId, Error, ErrorKind, LaunchView, Result};

/// The tables of all buffers of all devices with checksums: a device may write to another device's memory.
static TABLES: LazyLock<RwLock<HashMap<BufferId, Arc<ChecksumTable>>>> = LazyLock::new(RwLock::default);

/// The state of a unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct UnitWord {
    /// The number of writes to it: a later check of a copy sees by it whether the unit has changed.
    changes: u64,
    /// The checksum of its bytes, or 0 if it is unknown.
    pub(super) sum: u64,
}

type Words = Vec<UnitWord>;

/// The words of the units of a buffer.
///
/// Words change at the submission of work, before the device receives it. By the contract of queues, work
/// is submitted after the work that it depends on. It therefore finds the words that the other work left.
#[derive(Debug)]
pub(super) struct ChecksumTable {
    pub(super) unit_bytes: u64,
    words: Mutex<Words>,
}

impl ChecksumTable {
    /// Creates a table for `bytes` bytes.
    pub(super) fn new(operation: &'static str, unit_bytes: u64, bytes: u64) -> Result<Arc<Self>> {
        let table = Arc::new(Self { unit_bytes, words: Mutex::default() });
        table.grow(operation, bytes)?;
        Ok(table)
    }

    /// Returns the table of a device's memory, if it has one.
    pub(super) fn of(buffer: BufferId) -> Option<Arc<Self>> {
        TABLES.read().get(&buffer).cloned()
    }

    pub(super) fn put(self: Arc<Self>, buffer: BufferId) {
        TABLES.write().insert(buffer, self);
    }

    pub(super) fn remove(buffer: BufferId) {
        TABLES.write().remove(&buffer);
    }

    /// Makes room for the whole units of `bytes` bytes. An incomplete unit at the end of a buffer has no
    /// word.
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

    /// Returns the units with a word that a range touches.
    fn touched(&self, words: &Words, start: u64, bytes: u64) -> Range<usize> {
        let end = start.saturating_add(bytes).div_ceil(self.unit_bytes).min(words.len() as u64);
        if bytes == 0 { 0..0 } else { (start / self.unit_bytes).min(end) as usize..end as usize }
    }

    /// Returns the units that are inside of a range as a whole.
    pub(super) fn whole(&self, start: u64, bytes: u64) -> Range<u64> {
        let end = (start.saturating_add(bytes) / self.unit_bytes).min(self.words.lock().len() as u64);
        start.div_ceil(self.unit_bytes).min(end)..end
    }

    /// Invalidates the units of a range.
    pub(super) fn forget(&self, start: u64, bytes: u64) {
        let mut words = self.words.lock();
        let touched = self.touched(&words, start, bytes);
        words[touched].iter_mut().for_each(UnitWord::forget);
    }

    /// Sets the checksum of a written unit, and returns its word.
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

    /// Returns the checksum of the unit that begins there, or 0; `None` if no unit begins there.
    pub(super) fn sum_at(&self, offset: u64) -> Option<u64> {
        let unit = Some(offset / self.unit_bytes).filter(|_| offset.is_multiple_of(self.unit_bytes))?;
        self.words.lock().get(unit as usize).map(|word| word.sum)
    }

    /// Replaces a checksum, unless the unit was written since.
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

/// Invalidates the units of a range.
pub(super) fn forget(buffer: BufferId, bytes: &Range<u64>) {
    if let Some(table) = ChecksumTable::of(buffer) {
        table.forget(bytes.start, bytes.end - bytes.start);
    }
}

/// Invalidates the units of some elements of a view.
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
