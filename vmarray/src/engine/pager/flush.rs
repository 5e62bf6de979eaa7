//! `flush`, `evict` and `discard`: write dirty pages of a range back to the devices, and drop cached pages.

use std::ops::Range;
use std::sync::atomic::Ordering;

use super::Pager;
use super::hold::AsFound;
use crate::base::error::{ErrorKind, Result};
use crate::engine::channel::{Victim, WriteBackFor};
use crate::engine::page::state::{DIRTY, EXCLUSIVE, RESIDENT};
use crate::engine::page::{Refusal, State};

impl Pager {
    /// Writes the dirty pages of a range back, and waits for the write-backs.
    ///
    /// If the calling thread holds a page of the range exclusively, the call returns an error, even if the
    /// page is clean: its writes are incomplete, and a device that reads its slot afterwards would miss them.
    ///
    /// After an error, the failed pages are still dirty, and all others are written back.
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
        // Submit the batches of all channels (device shares) before the first wait, so that all work at once.
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
                            // Look up the frame after pinning the page, because the page may have moved to
                            // another frame before.
                            let frame = channel.frame_at(self.table.entry(page).address());
                            batch.push(Victim { page, frame, before });
                            break;
                        }
                        Err(Refusal::Absent) => break,
                        Err(Refusal::Busy(state)) => {
                            // Submit the batch before waiting: the batch holds pages, and the holder of this
                            // page may wait for one of them.
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

    /// Takes the error of an earlier eviction that no thread has received. Checks only channels with pages of
    /// the range, because the loss of a device must not disturb other work.
    pub(crate) fn take_write_error(&self, pages: &Range<u64>) -> Option<backend_api::Error> {
        let channels = (0..).zip(&self.channels);
        let concerned = channels.filter(|(index, _)| self.of_channel(*index, pages).next().is_some());
        let mut errors = concerned.filter_map(|(_, channel)| channel.take_write_error());
        let first = errors.next();
        errors.for_each(drop);
        first
    }

    /// Writes the dirty pages of a range back, and frees the frames of all its pages.
    ///
    /// Pages that other threads use may still be resident when the call returns.
    pub(crate) fn evict(&self, pages: &Range<u64>) -> Result<()> {
        self.flush(pages)?;
        for channel in &self.channels {
            for page in channel.resident_pages(&self.table, pages, false) {
                self.drop_frame(page, false)?;
            }
        }
        Ok(())
    }

    /// Discards the contents of whole pages without a write-back. They then read as zeroes.
    pub(crate) fn discard(&self, pages: Range<u64>) -> Result<()> {
        self.expect_writable()?;
        for page in pages {
            self.drop_frame(page, true)?;
        }
        Ok(())
    }

    /// Frees the frame, if any, of a page that is clean or whose contents may be lost (`forget`).
    fn drop_frame(&self, page: u64, forget: bool) -> Result<()> {
        let state = self.table.entry(page).state(Ordering::Acquire);
        // A thread has written to the page since the flush, so the page keeps its frame.
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
