//! Bytes of pages that are given no frame.

use super::Pager;
use super::hold::AsFound;
use crate::base::error::Result;
use crate::engine::page::count_hit;

impl Pager {
    /// Reads bytes of a page without giving it a frame.
    pub(crate) fn read_uncached(&self, page: u64, offset: usize, into: &mut [u8]) -> Result<()> {
        loop {
            match self.try_share_as_found(page) {
                Ok(AsFound::Resident(hold)) => hold.read(offset, into),
                Ok(AsFound::Absent(home)) if home.has_contents() => {
                    self.channel(page).read_home(&self.table, page, offset, into)?;
                }
                Ok(AsFound::Absent(_)) => into.fill(0),
                Err(state) => {
                    self.await_page(page, state, false)?;
                    continue;
                }
            }
            return Ok(());
        }
    }

    /// Writes bytes of a page without giving it a frame.
    pub(crate) fn write_uncached(&self, page: u64, offset: usize, bytes: &[u8]) -> Result<()> {
        self.expect_writable()?;
        match self.own_as_found(page)? {
            AsFound::Resident(mut hold) => {
                count_hit(self.counter);
                hold.write(offset, bytes);
            }
            AsFound::Absent(mut claim) => {
                claim.initialize()?;
                // If the copy fails nobody looks at what the slot holds, unless it had contents.
                claim.begin_write();
                self.channel(page).write_home(page, offset, bytes)?;
                claim.end_write();
            }
        }
        Ok(())
    }
}
