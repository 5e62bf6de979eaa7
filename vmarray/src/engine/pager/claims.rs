//! Holding pages so that a device can write to their home slots.

use super::Pager;
use super::hold::{AsFound, HomeClaim};
use crate::base::error::Result;
use crate::engine::page::{Holder, unpark};

impl Pager {
    /// Holds an absent page whose home slot is up to date, if that can be had at once. A thread that holds
    /// several may wait for their devices, and for nothing else.
    pub(crate) fn try_claim_home(&self, page: u64) -> Result<bool> {
        match self.try_own_home(page) {
            Ok(claim) => keep(claim).map(|()| true),
            Err(_) => Ok(false),
        }
    }

    /// Holds a page as [`try_claim_home`](Self::try_claim_home) does, waiting for threads that use it, and
    /// having its frame written back and dropped. The caller holds no page.
    pub(crate) fn claim_home(&self, page: u64) -> Result<()> {
        keep(match self.own_as_found(page)? {
            AsFound::Absent(claim) => claim,
            AsFound::Resident(hold) => hold.write_back_and_unmap()?,
        })
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

/// Writes zeroes to the slot of a held page that has no contents; lets the page go if that fails.
fn keep(claim: HomeClaim<'_>) -> Result<()> {
    claim.initialize()?;
    claim.keep();
    Ok(())
}
