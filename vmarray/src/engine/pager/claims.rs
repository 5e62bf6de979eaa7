//! Holding pages so that a device can write to their home slots.

use std::sync::atomic::Ordering;

use backend_api::Device;

use super::Pager;
use crate::base::error::Result;
use crate::engine::page::state::{AHEAD, DIRTY, HOME, RESIDENT, State, ZEROED};
use crate::engine::page::{Access, Holder, Refusal, unpark};

impl<D: Device> Pager<D> {
    /// Holds an absent page whose home slot is up to date, if that can be had at once. Whoever holds several
    /// may wait for their devices, and for nothing else.
    pub(crate) fn try_claim_home(&self, page: u64) -> Result<bool> {
        match self.entry(page).try_claim_absent(false) {
            Ok(before) => self.ensure_initialized(page, before).map(|()| true),
            Err(_) => Ok(false),
        }
    }

    /// Holds a page as [`try_claim_home`](Self::try_claim_home) does, waiting for those who use it, and
    /// having its frame written back and dropped. The caller holds no page.
    pub(crate) fn claim_home(&self, page: u64) -> Result<()> {
        self.wanting(page, |wants| self.claim_or_want(page, wants))
    }

    fn claim_or_want(&self, page: u64, wants: &mut bool) -> Result<()> {
        let (entry, channel) = (self.entry(page), self.channel(page));
        loop {
            let state = match entry.try_claim_absent(false) {
                Ok(before) => return self.ensure_initialized(page, before),
                Err(Refusal::Absent) => continue,
                Err(Refusal::Busy(state)) => state,
            };
            let busy = if state.any(RESIDENT) {
                match entry.try_exclusive(Holder::Pin) {
                    Ok(before) => {
                        channel.quiesce(entry, before, Access::All);
                        // Without letting go: whoever goes on writing would have it dirty again each time.
                        if before.any(DIRTY)
                            && let Err(error) = channel.write_back_held(&self.table, page)
                        {
                            self.release(page, Holder::Pin, 0);
                            return Err(error);
                        }
                        channel.fewer_ahead(usize::from(before.any(AHEAD)));
                        let frame = channel.policy_remove(entry.address(), page);
                        if entry.unmap_and_keep() {
                            unpark(entry);
                        }
                        channel.put_back(frame);
                        return self.ensure_initialized(page, entry.state(Ordering::Relaxed));
                    }
                    Err(Refusal::Absent) => continue,
                    Err(Refusal::Busy(state)) => state,
                }
            } else {
                state
            };
            self.await_wanted(page, busy, wants)?;
        }
    }

    /// Writes zeroes to the slot of a held page that has no contents; lets the page go if that fails.
    fn ensure_initialized(&self, page: u64, before: State) -> Result<()> {
        let mut result = Ok(());
        if !before.any(HOME | ZEROED) {
            let slot = page / self.channels.len() as u64;
            result = self.channel(page).fill_slots(slot..slot + 1, &[0]);
            match result {
                Ok(()) => self.entry(page).home_is_zeroed(),
                Err(_) => self.release(page, Holder::Pin, 0),
            }
        }
        result
    }

    /// Lets a page go whose slot was not written to.
    pub(crate) fn release_unchanged(&self, page: u64) {
        self.release(page, Holder::Pin, 0);
    }

    /// Lets a page go whose slot now has contents.
    pub(crate) fn release_written(&self, page: u64) {
        let entry = self.entry(page);
        if entry.release_written() {
            unpark(entry);
        }
    }
}
