//! Work on home slots: fills, kernels, and copies of single elements.

use backend_api::{Fill, Transfer as Copy};

use super::Channel;
use crate::base::error::Result;
use crate::engine::page::PageTable;

impl Channel {
    /// Fills home slots `slots` of this channel, whose pages the caller holds, with a pattern, and waits.
    pub(crate) fn fill_slots(&self, slots: std::ops::Range<u64>, pattern: &[u8]) -> Result<()> {
        let bytes = self.layout.page_bytes as u64;
        let fill = Fill {
            to: self.slots.at(slots.start * bytes),
            bytes: (slots.end - slots.start) * bytes,
            pattern,
        };
        let mut order = self.queues.begin_writes();
        let loads = self.queues.begin_loads();
        let ticket = self.queues.write(&mut order, |queue| queue.fill(&fill));
        drop(loads);
        drop(order);
        Ok(self.queues.wait(ticket?)?)
    }

    /// Reads `into.len()` bytes at an offset of a page's home slot, which the caller keeps from changing.
    /// Together with what other threads fetch at the same time.
    pub(crate) fn read_home(
        &self,
        table: &PageTable,
        page: u64,
        offset: usize,
        into: &mut [u8],
    ) -> Result<()> {
        let cell = self.pinned.take_cell()?;
        let from = self.home(page).plus(offset as u64);
        let result = self.read_with_others(table, from, cell.host, into.len() as u64);
        if result.is_ok() {
            // SAFETY: the cell is as long as an element and this thread's alone; the copy into it is done.
            unsafe { cell.address.copy_to_nonoverlapping(into.as_mut_ptr(), into.len()) };
            self.counters.bytes_from_device.add(into.len() as u64);
        }
        self.pinned.put_cell(cell);
        Ok(result?)
    }

    /// Writes bytes at an offset of a page's home slot, which the caller has for itself.
    pub(crate) fn write_home(&self, page: u64, offset: usize, bytes: &[u8]) -> Result<()> {
        let cell = self.pinned.take_cell()?;
        // SAFETY: the cell is as long as an element and this thread's alone.
        unsafe { bytes.as_ptr().copy_to_nonoverlapping(cell.address, bytes.len()) };
        let to = self.home(page).plus(offset as u64);
        let copy = Copy::Upload { from: cell.host, to, bytes: bytes.len() as u64 };
        let ticket = self.queues.write(&mut self.queues.begin_writes(), |queue| queue.submit(&[copy]));
        let result = ticket.and_then(|ticket| self.queues.wait(ticket));
        if result.is_ok() {
            self.counters.bytes_to_device.add(bytes.len() as u64);
        }
        self.pinned.put_cell(cell);
        Ok(result?)
    }
}
