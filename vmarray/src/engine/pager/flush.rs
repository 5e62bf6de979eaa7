//! Writing pages back, and taking their frames or their contents from them.

use std::ops::Range;
use std::sync::atomic::Ordering;

use super::Pager;
use super::hold::AsFound;
use crate::base::error::{ErrorKind, Result};
use crate::engine::channel::{Victim, WriteBackFor};
use crate::engine::page::state::{DIRTY, EXCLUSIVE, RESIDENT};
use crate::engine::page::{Refusal, State};

impl Pager {
    /// Writes the dirty pages of a range back and waits until that is done.
    ///
    /// A page that the calling thread holds exclusively is an error, dirty or not: what the thread has
    /// written to it is on its way, and a device that looks at its slot afterwards would not see that.
    ///
    /// On an error the pages concerned are still dirty, and the others are written back all the same.
    pub(crate) fn flush(&self, pages: &Range<u64>) -> Result<()> {
        const BATCH: usize = 256;
        let mut first_error = Ok(());
        let mut keep = |result: Result<()>| {
            if first_error.is_ok() {
                first_error = result;
            }
        };
        let is_exclusive = |page| self.table.entry(page).state(Ordering::Acquire).any(EXCLUSIVE);
        if let Some(page) = self.identity.first_held(pages, is_exclusive) {
            keep(Err(ErrorKind::WouldDeadlock { page }.into()));
        }
        // All channels work at once: each gets its batches before anybody waits.
        let mut tickets = Vec::new();
        for channel in &self.channels {
            let mut batch: Vec<Victim> = Vec::new();
            let mut submit = |batch: &mut Vec<Victim>, keep: &mut dyn FnMut(Result<()>)| {
                match channel.write_back(&self.table, batch, WriteBackFor::Flush) {
                    Ok(ticket) => tickets.extend(ticket.map(|ticket| (channel, ticket))),
                    Err(error) => keep(Err(error)),
                }
                batch.clear();
            };
            for page in channel.resident_pages(&self.table, pages, true) {
                loop {
                    match self.table.entry(page).try_write_back() {
                        Ok(before) => {
                            // Looked up now that it is pinned: the page may have moved since it was listed.
                            let frame = channel.frame_at(self.table.entry(page).address());
                            batch.push(Victim { page, frame, before });
                            break;
                        }
                        Err(Refusal::Absent) => break,
                        Err(Refusal::Busy(state)) => {
                            // The thread that has the page may wait for those of the batch.
                            submit(&mut batch, &mut keep);
                            if let Err(error) = self.await_page(page, state, false) {
                                keep(Err(error));
                                break;
                            }
                        }
                    }
                }
                if batch.len() == BATCH {
                    submit(&mut batch, &mut keep);
                }
            }
            submit(&mut batch, &mut keep);
        }
        for (channel, ticket) in tickets {
            keep(channel.finish(&self.table, ticket));
        }
        if let Some(error) = self.take_write_error(pages) {
            keep(Err(error.into()));
        }
        first_error
    }

    /// What failed before, in the course of evictions, and was told to nobody: on channels that have pages of
    /// the range, since the loss of a device is not to disturb work elsewhere.
    pub(crate) fn take_write_error(&self, pages: &Range<u64>) -> Option<backend_api::Error> {
        let channels = (0..).zip(&self.channels);
        let concerned = channels.filter(|(index, _)| self.of_channel(*index, pages).next().is_some());
        let mut errors = concerned.filter_map(|(_, channel)| channel.take_write_error());
        let first = errors.next();
        errors.for_each(drop);
        first
    }

    /// Takes their frames from the pages of a range. What is dirty is written back first.
    ///
    /// Pages that others use meanwhile may be resident again, or still, when the call returns.
    pub(crate) fn evict(&self, pages: &Range<u64>) -> Result<()> {
        self.flush(pages)?;
        for channel in &self.channels {
            for page in channel.resident_pages(&self.table, pages, false) {
                self.drop_frame(page, false)?;
            }
        }
        Ok(())
    }

    /// Declares the contents of whole pages void: they read as zeroes, and nothing is written back for them.
    pub(crate) fn discard(&self, pages: Range<u64>) -> Result<()> {
        self.expect_writable()?;
        for page in pages {
            self.drop_frame(page, true)?;
        }
        Ok(())
    }

    /// Takes the frame, if any, from a page that is clean or may be forgotten.
    fn drop_frame(&self, page: u64, forget: bool) -> Result<()> {
        let state = self.table.entry(page).state(Ordering::Acquire);
        // Written to since the flush: its new contents are as good a reason to keep a page as any.
        let stays = |state: State| state.any(DIRTY) || !state.any(RESIDENT);
        if !forget && !state.any(EXCLUSIVE) && stays(state) {
            return Ok(());
        }
        match self.own_as_found(page)? {
            AsFound::Resident(hold) if !forget && stays(hold.before()) => hold.release_unchanged(),
            AsFound::Resident(hold) => hold.release_unmapped(forget),
            AsFound::Absent(claim) if forget => claim.forget(),
            AsFound::Absent(_) => {}
        }
        Ok(())
    }
}
