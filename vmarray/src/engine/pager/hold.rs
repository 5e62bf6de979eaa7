//! Pages that a thread holds for a short time: what is done with their bytes, and that they are let go.

use backend_api::{Device, racy};

use super::{Fetch, Pager, Stream};
use crate::base::error::Result;
use crate::engine::page::state::DIRTY;
use crate::engine::page::{Access, Holder, State};

/// A resident page whose bytes stay as they are until the thread drops this.
pub(crate) struct SharedHold<'a, D: Device> {
    pager: &'a Pager<D>,
    page: u64,
    address: *mut u8,
}

/// A resident page whose bytes the thread alone reads and writes until it drops this. The page is dirty then.
pub(crate) struct ExclusiveHold<'a, D: Device> {
    pager: &'a Pager<D>,
    page: u64,
    address: *mut u8,
}

impl<D: Device> Pager<D> {
    /// Holds a page, shared, and waits for writers without a lock to leave it.
    pub(crate) fn hold_shared(&self, page: u64, stream: Stream) -> Result<SharedHold<'_, D>> {
        let held = self.share_steady(page, Holder::Pin, stream)?;
        Ok(SharedHold { pager: self, page, address: held.address })
    }

    /// Holds a page, exclusively, and waits for all accesses without a lock to end.
    pub(crate) fn hold_exclusive(
        &self,
        page: u64,
        fetch: Fetch,
        stream: Stream,
    ) -> Result<ExclusiveHold<'_, D>> {
        let held = self.take(page, Holder::Pin, fetch, stream)?;
        Ok(ExclusiveHold { pager: self, page, address: held.address })
    }

    /// The hold of a page that the thread has just shared as a pin, with the state before that.
    pub(super) fn now_shared(&self, page: u64, before: State) -> SharedHold<'_, D> {
        let entry = self.table.entry(page);
        let hold = SharedHold { pager: self, page, address: entry.address() };
        self.channel(page).quiesce(entry, before, Access::Writes);
        hold
    }

    /// The hold of a page that the thread has just taken as a pin, with the state before that.
    pub(super) fn now_exclusive(&self, page: u64, before: State) -> ExclusiveHold<'_, D> {
        let entry = self.table.entry(page);
        let hold = ExclusiveHold { pager: self, page, address: entry.address() };
        self.channel(page).quiesce(entry, before, Access::All);
        hold
    }
}

impl<D: Device> SharedHold<'_, D> {
    /// The page's bytes in place.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: a frame of initialised bytes; the page is shared and writers without a lock were waited
        // for, so it stays resident and nobody writes until the hold, which is borrowed, is dropped.
        unsafe { std::slice::from_raw_parts(self.address, self.pager.page_bytes()) }
    }

    /// Copies bytes of the page from an offset on.
    pub(crate) fn read(&self, offset: usize, into: &mut [u8]) {
        assert!(offset + into.len() <= self.pager.page_bytes(), "the part is inside of the page");
        // SAFETY: inside of the page, as was checked; it is shared and was waited for, so it stays resident
        // and nobody writes.
        unsafe { racy::read(self.address.add(offset), into) }
    }
}

impl<D: Device> ExclusiveHold<'_, D> {
    /// Copies bytes to the page from an offset on.
    pub(crate) fn write(&mut self, offset: usize, from: &[u8]) {
        assert!(offset + from.len() <= self.pager.page_bytes(), "the part is inside of the page");
        // SAFETY: inside of the page, as was checked, which is this thread's alone.
        unsafe { racy::write(self.address.add(offset), from) }
    }

    /// The page's bytes in place.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: a frame of initialised bytes, which is this thread's alone; borrowed with the hold.
        unsafe { std::slice::from_raw_parts_mut(self.address, self.pager.page_bytes()) }
    }
}

impl<D: Device> Drop for SharedHold<'_, D> {
    fn drop(&mut self) {
        self.pager.unshare(self.page, Holder::Pin);
    }
}

impl<D: Device> Drop for ExclusiveHold<'_, D> {
    fn drop(&mut self) {
        self.pager.release(self.page, Holder::Pin, DIRTY);
    }
}
