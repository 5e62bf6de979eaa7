//! Bytes of pages that are given no frame.

use backend_api::Device;

use super::Pager;
use crate::base::error::Result;
use crate::engine::guards;
use crate::engine::page::state::{AHEAD, HOME, RESIDENT, ZEROED};
use crate::engine::page::{Holder, Refusal, count_hit};

impl<D: Device> Pager<D> {
    /// Reads bytes of a page without giving it a frame.
    pub(crate) fn read_uncached(&self, page: u64, offset: usize, into: &mut [u8]) -> Result<()> {
        let (entry, barging) = (self.table.entry(page), guards::held());
        loop {
            match entry.try_share(Holder::Pin, barging) {
                Ok(before) => {
                    count_hit(self.counter);
                    self.channel(page).fewer_ahead(usize::from(before.any(AHEAD)));
                    self.now_shared(page, before).read(offset, into);
                    return Ok(());
                }
                Err(Refusal::Busy(state)) => self.await_page(page, state, false)?,
                Err(Refusal::Absent) => match entry.try_share_home(barging) {
                    Ok(has_home) => {
                        let result = if has_home {
                            self.channel(page).read_home(&self.table, page, offset, into)
                        } else {
                            into.fill(0);
                            Ok(())
                        };
                        self.unshare(page, Holder::Pin);
                        return result;
                    }
                    Err(Refusal::Busy(state)) if !state.has(RESIDENT) => {
                        self.await_page(page, state, false)?;
                    }
                    Err(_) => {}
                },
            }
        }
    }

    /// Writes bytes of a page without giving it a frame.
    pub(crate) fn write_uncached(&self, page: u64, offset: usize, bytes: &[u8]) -> Result<()> {
        self.wanting(page, |wants| self.write_or_want(page, offset, bytes, wants))
    }

    fn write_or_want(&self, page: u64, offset: usize, bytes: &[u8], wants: &mut bool) -> Result<()> {
        let entry = self.table.entry(page);
        loop {
            match entry.try_exclusive(Holder::Pin) {
                Ok(before) => {
                    count_hit(self.counter);
                    self.channel(page).fewer_ahead(usize::from(before.any(AHEAD)));
                    self.now_exclusive(page, before).write(offset, bytes);
                    return Ok(());
                }
                Err(Refusal::Busy(state)) => self.await_wanted(page, state, wants)?,
                Err(Refusal::Absent) => match entry.try_claim_absent(false) {
                    Ok(before) => {
                        let channel = self.channel(page);
                        let slot = page / self.channels.len() as u64;
                        entry.home_is_unknown();
                        self.settled.lose_if(before);
                        let is_ready = before.any(HOME | ZEROED);
                        let prepared =
                            if is_ready { Ok(()) } else { channel.fill_slots(slot..slot + 1, &[0]) };
                        let result = prepared.and_then(|()| channel.write_home(page, offset, bytes));
                        // Without a home, nobody looks at what the slot holds now.
                        self.release(page, Holder::Pin, if result.is_ok() { HOME } else { 0 });
                        return result;
                    }
                    Err(Refusal::Busy(state)) if !state.has(RESIDENT) => {
                        self.await_wanted(page, state, wants)?;
                    }
                    Err(_) => {}
                },
            }
        }
    }
}
