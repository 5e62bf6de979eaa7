//! Fills: write a pattern or zeroes to many pages at once, by the devices that store them.

use std::ops::Range;
use std::sync::atomic::Ordering;

use super::hold::{AsFound, HomeClaim, HomeShare};
use super::{Fetch, Pager, Stream};
use crate::base::error::Result;
use crate::engine::channel::Channel;
use crate::engine::page::state::{HOME, RESIDENT, ZEROED};
use crate::engine::page::{Refusal, State};

/// The result of an attempt to hold a page without contents, to zero its home slot.
enum Homeless<'a> {
    Held(ZeroedNext<'a>),
    /// The slot needs no zeroes, because the page has contents, or the slot has zeroes already.
    Not,
    /// A thread has written to the page, so it will be written back.
    Dirty,
    /// Another thread uses the page.
    Busy(State),
}

/// A held page whose slot the device will zero. It is absent, or resident with zeroes only.
type ZeroedNext<'a> = AsFound<HomeShare<'a>, HomeClaim<'a>>;

impl Pager {
    /// Fills whole pages with a pattern whose length divides that of a page. Fills resident pages in their
    /// frames, others on their device.
    ///
    /// If a fill on a device fails, the slots are unspecified, and the call repeats the fill in frames. If
    /// this fails too, the contents of the pages are unspecified.
    pub(crate) fn fill_pages(&self, pages: Range<u64>, pattern: &[u8]) -> Result<()> {
        self.expect_writable()?;
        for (index, channel) in (0..).zip(&self.channels) {
            // The claimed absent pages so far, whose home slots (in device memory) are contiguous.
            let mut run = Vec::new();
            for page in self.of_channel(index, &pages) {
                if run.len() == self.run_pages() {
                    self.fill_somewhere(channel, &mut run, pattern)?;
                }
                if let Ok(claim) = self.try_own_home(page) {
                    run.push(claim);
                    continue;
                }
                // Fill the claimed (exclusively held) pages first: to wait while holding them could deadlock.
                self.fill_somewhere(channel, &mut run, pattern)?;
                self.fill_in_frame(page, pattern)?;
            }
            self.fill_somewhere(channel, &mut run, pattern)?;
        }
        Ok(())
    }

    /// Returns the greatest number of pages that a fill holds at once.
    fn run_pages(&self) -> usize {
        const RUN_BYTES: usize = 64 << 20;
        (RUN_BYTES / self.page_bytes).max(1)
    }

    /// Returns the home slots of pages that are consecutive in their channel.
    fn slots_of(&self, first: u64, last: u64) -> Range<u64> {
        let count = self.channels.len() as u64;
        first / count..last / count + 1
    }

    /// Fills claimed pages on their device, and releases them. After a failure, fills them in frames.
    fn fill_somewhere(&self, channel: &Channel, run: &mut Vec<HomeClaim<'_>>, pattern: &[u8]) -> Result<()> {
        let mut claims = std::mem::take(run);
        let (Some(first), Some(last)) = (claims.first(), claims.last()) else { return Ok(()) };
        let slots = self.slots_of(first.page(), last.page());
        claims.iter().for_each(|claim| self.table.entry(claim.page()).home_is_unknown());
        if channel.fill_slots(slots, pattern).is_ok() {
            claims.iter_mut().for_each(HomeClaim::end_write);
            return Ok(());
        }
        // Before releasing the pages, record that their home slots (in device memory) are unspecified.
        self.init_tracker.lose();
        let pages: Vec<u64> = claims.into_iter().map(|claim| claim.page()).collect();
        pages.into_iter().try_for_each(|page| self.fill_in_frame(page, pattern))
    }

    fn fill_in_frame(&self, page: u64, pattern: &[u8]) -> Result<()> {
        repeat(self.hold_exclusive(page, Fetch::Overwrite, Stream::Ignore)?.bytes(), pattern);
        Ok(())
    }

    /// Prepares the home slots of a range for work on a device: writes dirty pages back, and zeroes the slots
    /// of pages without contents. Such pages still count as without contents, so later accesses fetch
    /// nothing.
    pub(crate) fn settle(&self, pages: &Range<u64>) -> Result<()> {
        self.flush(pages)?;
        let (since, unknown) = self.init_tracker.begin(pages);
        self.settle_homes(&unknown)?;
        self.init_tracker.end(since, pages);
        Ok(())
    }

    fn settle_homes(&self, pages: &Range<u64>) -> Result<()> {
        let count = self.channels.len() as u64;
        for (index, channel) in (0..).zip(&self.channels) {
            // The held pages so far, whose home slots (in device memory) are contiguous.
            let mut run: Vec<(u64, ZeroedNext<'_>)> = Vec::new();
            for page in self.of_channel(index, pages) {
                while !self.table.entry(page).state(Ordering::Acquire).any(HOME | ZEROED) {
                    let follows = run.last().is_none_or(|(last, _)| last + count == page);
                    if !follows || run.len() == self.run_pages() {
                        self.zero(channel, &mut run)?;
                    }
                    match self.hold_homeless(page) {
                        Homeless::Not => break,
                        Homeless::Dirty => {
                            self.zero(channel, &mut run)?;
                            self.flush(&(page..page + 1))?;
                        }
                        Homeless::Busy(state) => {
                            // Zero the collected pages first: this page's holder may wait for them.
                            self.zero(channel, &mut run)?;
                            // An absent page is taken exclusively, so wait until no thread holds it.
                            self.await_page(page, state, !state.any(RESIDENT))?;
                        }
                        Homeless::Held(held) => {
                            run.push((page, held));
                            break;
                        }
                    }
                }
            }
            self.zero(channel, &mut run)?;
        }
        Ok(())
    }

    /// Runs `work` on the [settled](Self::settle) home slots of a range. If a write-back of a page fails
    /// meanwhile, its slot is unspecified, so `work` runs again.
    pub(crate) fn read_settled<R>(
        &self,
        pages: &Range<u64>,
        mut work: impl FnMut() -> Result<R>,
    ) -> Result<R> {
        loop {
            // Count only new failures, because `settle` repeats write-backs that failed earlier.
            let before = self.failed_write_backs();
            self.settle(pages)?;
            let result = work()?;
            if self.failed_write_backs() == before {
                return Ok(result);
            }
        }
    }

    pub(crate) fn failed_write_backs(&self) -> u64 {
        self.channels.iter().map(|channel| channel.failed_write_backs(&self.table)).sum()
    }

    /// Holds a page without contents, absent or resident, so that the caller can zero its slot.
    fn hold_homeless(&self, page: u64) -> Homeless<'_> {
        match self.try_own_homeless(page) {
            Ok(claim) if claim.is_initialized() => Homeless::Not,
            Ok(claim) => Homeless::Held(AsFound::Absent(claim)),
            Err(state) if state.any(RESIDENT) => match self.try_share_homeless(page) {
                Ok(Ok(share)) => Homeless::Held(AsFound::Resident(share)),
                Ok(Err(before)) if before.any(HOME | ZEROED) => Homeless::Not,
                Ok(Err(_)) => Homeless::Dirty,
                Err(Refusal::Busy(state)) => Homeless::Busy(state),
                Err(Refusal::Absent) => Homeless::Busy(self.table.entry(page).state(Ordering::Acquire)),
            },
            Err(state) => Homeless::Busy(state),
        }
    }

    /// Zeroes the slots of held pages, and releases the pages.
    fn zero(&self, channel: &Channel, run: &mut Vec<(u64, ZeroedNext<'_>)>) -> Result<()> {
        let pages = std::mem::take(run);
        let (Some((first, _)), Some((last, _))) = (pages.first(), pages.last()) else { return Ok(()) };
        channel.fill_slots(self.slots_of(*first, *last), &[0])?;
        pages.iter().for_each(|(page, _)| self.table.entry(*page).home_is_zeroed());
        Ok(())
    }
}

fn repeat(into: &mut [u8], pattern: &[u8]) {
    let first = pattern.len().min(into.len());
    into[..first].copy_from_slice(&pattern[..first]);
    let mut done = first;
    while done < into.len() {
        let more = done.min(into.len() - done);
        into.copy_within(..more, done);
        done += more;
    }
}

#[cfg(test)]
mod tests {
    use super::repeat;

    #[test]
    fn a_pattern_is_repeated_to_the_end() {
        for len in 0..20 {
            let mut bytes = vec![0; len];
            repeat(&mut bytes, &[1, 2, 3]);
            assert!(bytes.iter().enumerate().all(|(at, byte)| usize::from(*byte) == at % 3 + 1), "{bytes:?}");
        }
    }
}
