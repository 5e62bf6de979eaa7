//! Fills of home slots (the pages' places in device memory), and copies of single elements from and to them.

use backend_api::{Fill, Transfer as Copy};

use super::Channel;
use crate::base::error::Result;
use crate::engine::page::PageTable;

impl Channel {
    /// Fills the home slots `slots` with a pattern, and waits. The caller holds their pages.
    pub(crate) fn fill_slots(&self, slots: std::ops::Range<u64>, pattern: &[u8]) -> Result<()> {
        let bytes = self.layout.page_bytes as u64;
        let fill = Fill {
            to: self.slots.at(slots.start * bytes),
            bytes: (slots.end - slots.start) * bytes,
            pattern,
        };
        let mut order = self.queues.begin_writes();
        let loads = self.queues.begin_loads();
        let ticket = self.queues.write(&mut order, |queue| queue.submit(&fill));
        drop(loads);
        drop(order);
        Ok(self.queues.wait(ticket?)?)
    }

    /// Reads `into.len()` bytes at an offset of a page's home slot, directly or together with fetches of
    /// other threads. The caller protects the slot from changes.
    pub(crate) fn read_home(
        &self,
        table: &PageTable,
        page: u64,
        offset: usize,
        into: &mut [u8],
    ) -> Result<()> {
        if self.loads_directly()
            && let Some(outcome) = self.read_home_directly(page, offset, into)
        {
            return outcome;
        }
        let memory = self.pinned.take(into.len())?;
        let from = self.home(page).plus(offset as u64);
        self.read_with_others(table, from, memory.place(0), into.len() as u64)?;
        memory.read(0, into);
        self.counters.bytes_from_device.add(into.len() as u64);
        self.pinned.put(memory);
        Ok(())
    }

    /// Writes bytes at an offset of a page's home slot. The caller holds the page exclusively.
    pub(crate) fn write_home(&self, page: u64, offset: usize, bytes: &[u8]) -> Result<()> {
        let memory = self.pinned.take(bytes.len())?;
        memory.write(0, bytes);
        let to = self.home(page).plus(offset as u64);
        let copy = Copy::Upload { from: memory.at(0), to, bytes: bytes.len() as u64 };
        let ticket = self.queues.write(&mut self.queues.begin_writes(), |queue| queue.submit(&[copy]))?;
        self.queues.wait(ticket)?;
        self.counters.bytes_to_device.add(bytes.len() as u64);
        self.pinned.put(memory);
        Ok(())
    }
}
