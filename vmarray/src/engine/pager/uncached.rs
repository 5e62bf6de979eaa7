//! Reads and writes of bytes of uncached pages, directly in device memory.

use std::sync::atomic::Ordering;

use super::Pager;
use super::hold::{AsFound, HomeClaim, HomeShare, SharedHold};
use crate::base::error::Result;
use crate::engine::page::count_hit;

/// Reads of parts of several absent pages, which devices carry out together. The thread holds these pages, so
/// it must not wait for other pages until it has [finished](Self::finish) the reads.
pub(crate) struct PartReads<'a> {
    pager: &'a Pager,
    homes: Vec<HomeShare<'a>>,
}

/// The state in which a thread finds a page for [`PartReads`].
pub(crate) enum PartFound<'a> {
    /// The page is in the cache.
    Resident(SharedHold<'a>),
    /// The page is absent and held; the caller reads its parts by [`PartReads::finish`].
    Absent,
    /// The page has no contents, so that its elements are zero.
    Zero,
    /// Another thread uses the page, or it is worth a fetch. The caller holds it after it has finished the
    /// reads.
    Later,
}

impl<'a> PartReads<'a> {
    /// Finds a page, of which a caller reads `bytes` bytes in all. Does not wait.
    pub(crate) fn find(&mut self, page: u64, bytes: usize) -> PartFound<'a> {
        let home = match self.pager.try_share_as_found(page) {
            Ok(AsFound::Resident(hold)) => return PartFound::Resident(hold),
            Ok(AsFound::Absent(home)) => home,
            Err(_) => return PartFound::Later,
        };
        if !home.has_contents() {
            return PartFound::Zero;
        }
        let channel = self.pager.channel(page);
        if !channel.prefers_direct_read(page, bytes) {
            return PartFound::Later;
        }
        channel.counters.misses.add(1);
        self.homes.push(home);
        PartFound::Absent
    }

    /// Reads parts of held pages: each with its page and its offset in the page. Then releases the pages.
    pub(crate) fn finish(&mut self, parts: Vec<(u64, usize, &mut [u8])>) -> Result<()> {
        let channels = self.pager.channels();
        let mut of: Vec<_> = channels.iter().map(|_| Vec::new()).collect();
        for (page, offset, into) in parts {
            of[self.pager.channel_number(page)].push((page, offset, into));
        }
        let mut read = channels.iter().zip(of).filter(|(_, parts)| !parts.is_empty());
        let outcome = read.try_for_each(|(channel, parts)| channel.read_homes_directly(parts));
        self.homes.clear();
        outcome
    }
}

impl Pager {
    /// Begins [reads of parts](PartReads).
    pub(crate) fn part_reads(&self) -> PartReads<'_> {
        PartReads { pager: self, homes: Vec::new() }
    }

    /// Reads bytes of a page without loading it into the cache.
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

    /// Enables short direct reads of absent pages from their home slots, if the devices support it, while
    /// [they are cheaper](crate::engine::channel) than a fetch.
    pub(crate) fn read_parts(&self) {
        let least = self.channels.iter().map(|channel| channel.begin_parts()).max();
        self.parts_least.store(least.unwrap_or(usize::MAX), Ordering::Relaxed);
    }

    /// Returns true if reads of this many bytes are direct.
    pub(crate) fn has_parts_of(&self, bytes: usize) -> bool {
        bytes >= self.parts_least.load(Ordering::Relaxed)
    }

    /// Returns true if reads and writes of any length are direct, so devices transfer only these bytes.
    pub(crate) fn has_exact_parts(&self) -> bool {
        self.has_parts_of(1)
    }

    /// Reads bytes of an absent page from its home slot, if this is cheaper than a fetch. Returns `false` if
    /// it read nothing; the page may then have a frame.
    pub(crate) fn read_part(&self, page: u64, offset: usize, into: &mut [u8]) -> Result<bool> {
        if !self.has_parts_of(into.len()) {
            return Ok(false);
        }
        let Some(home) = self.try_share_absent(page) else { return Ok(false) };
        let channel = self.channel(page);
        if !home.has_contents() || !channel.prefers_direct_read(page, into.len()) {
            return Ok(false);
        }
        channel.counters.misses.add(1);
        channel.read_home_directly(page, offset, into).transpose().map(|read| read.is_some())
    }

    /// Changes bytes of an absent page in its home slot, if this is cheaper than a fetch. `change` gets the
    /// present bytes, and returns true if it changed them. Returns `None` if nothing was done; the page may
    /// then have a frame.
    pub(crate) fn change_part<R>(
        &self,
        page: u64,
        offset: usize,
        bytes: &mut [u8],
        change: impl FnOnce(&mut [u8]) -> (R, bool),
    ) -> Result<Option<R>> {
        let Some(claim) = self.try_own_part(page, bytes.len())? else { return Ok(None) };
        let channel = self.channel(page);
        channel.note_load();
        let Some(read) = channel.read_home_directly(page, offset, bytes) else { return Ok(None) };
        read?;
        let (result, is_changed) = change(bytes);
        if is_changed {
            self.write_claimed(claim, offset, bytes)?;
        }
        Ok(Some(result))
    }

    /// Writes bytes as [`change_part`](Self::change_part), whatever the present ones. True if it wrote them.
    pub(crate) fn write_part(&self, page: u64, offset: usize, bytes: &[u8]) -> Result<bool> {
        let Some(claim) = self.try_own_part(page, bytes.len())? else { return Ok(false) };
        self.write_claimed(claim, offset, bytes).map(|()| true)
    }

    /// Holds an absent page with contents exclusively, for a write of `bytes` bytes to its home slot. Returns
    /// `None` if this does not succeed at once, or if a fetch is cheaper.
    fn try_own_part(&self, page: u64, bytes: usize) -> Result<Option<HomeClaim<'_>>> {
        if !self.has_exact_parts() {
            return Ok(None);
        }
        self.expect_writable()?;
        let Ok(claim) = self.try_own_home(page) else { return Ok(None) };
        let channel = self.channel(page);
        if !claim.has_contents() || !channel.prefers_direct_read(page, bytes) {
            return Ok(None);
        }
        channel.counters.misses.add(1);
        Ok(Some(claim))
    }

    /// Writes bytes to the home slot of a held page, and releases the page.
    fn write_claimed(&self, mut claim: HomeClaim<'_>, offset: usize, bytes: &[u8]) -> Result<()> {
        // The copy may fail, so first record that the home slot (in device memory) is unspecified.
        claim.begin_write();
        self.channel(claim.page()).write_home(claim.page(), offset, bytes)?;
        claim.end_write();
        Ok(())
    }

    /// Writes bytes of a page without loading it into the cache.
    pub(crate) fn write_uncached(&self, page: u64, offset: usize, bytes: &[u8]) -> Result<()> {
        self.expect_writable()?;
        match self.own_as_found(page)? {
            AsFound::Resident(mut hold) => {
                count_hit(self.counter);
                hold.write(offset, bytes);
            }
            AsFound::Absent(claim) => {
                claim.initialize()?;
                self.write_claimed(claim, offset, bytes)?;
            }
        }
        Ok(())
    }
}
