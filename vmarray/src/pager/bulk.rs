//! Long ranges between home slots and the program's memory, past the cache.
//!
//! Pages that are not resident are copied through [stages](crate::channel::Stage): no frame is taken, so nothing is
//! evicted. Resident pages are read and written in their frames. Meanwhile the pages are held, so that nobody changes
//! a home slot that is being read, or reads one that is being written. A thread has two waves of pages under way:
//! one is copied by the device while it copies the other.
//!
//! Nothing is waited for while pages are held, but copies; so nobody can wait for a thread that waits for them.

use std::ops::Range;

use backend_api::{Device, Ticket, racy};

use super::{Fetch, Pager, Stream};
use crate::channel::{Channel, Stage};
use crate::error::Result;
use crate::guards;
use crate::page::state::{AHEAD, DIRTY, HOME, RESIDENT};
use crate::page::{Access, Holder, Refusal, State};

/// A range passes by the cache if it takes at least so many pages, and at least this share of all frames: short ones
/// are likely to be wanted again, and cost others little of the cache. Nor does it if the cache has room for all.
const BULK_PAGES_MIN: u64 = 4;
const BULK_SHARE: u64 = 16;

/// Pages of one channel on their way through a stage.
struct Load<'a, D: Device> {
    channel: &'a Channel<D>,
    pages: Vec<u64>,
    stage: Stage<D>,
    ticket: Ticket,
}

/// Pages under way, of all channels.
struct Wave<'a, D: Device>(Vec<Load<'a, D>>);

/// Where a wave ended.
enum End {
    /// Where the stages were full, or at the end.
    Before(u64),
    /// Before a page that somebody is in the way of.
    Busy(u64, State),
    /// Before a page that there is no stage for.
    NoStage(u64),
}

/// A range of bytes of the array, which begins somewhere in a page.
#[derive(Clone, Copy)]
struct Span {
    start: u64,
    bytes: u64,
    page_bytes: u64,
}

impl Span {
    fn pages(&self) -> Range<u64> {
        self.start / self.page_bytes..(self.start + self.bytes).div_ceil(self.page_bytes)
    }

    /// The bytes of a page that are in the range: from where in the page, and where in the range.
    fn part(&self, page: u64) -> (usize, Range<usize>) {
        let first = page * self.page_bytes;
        let start = self.start.max(first);
        let end = (self.start + self.bytes).min(first + self.page_bytes);
        ((start - first) as usize, (start - self.start) as usize..(end - self.start) as usize)
    }
}

impl<D: Device> Pager<D> {
    /// Whether a range of so many pages is to pass by the cache.
    pub(crate) fn is_bulk(&self, pages: u64) -> bool {
        pages >= (self.frames / BULK_SHARE).max(BULK_PAGES_MIN) && self.table.len() > self.frames
    }

    /// Copies bytes of the array, from `start` on, into a slice.
    ///
    /// # Errors
    /// What a device reports; the slice then holds what it held, or what was read, page by page.
    pub(crate) fn read_bulk(&self, start: u64, into: &mut [u8]) -> Result<()> {
        let span = Span { start, bytes: into.len() as u64, page_bytes: self.page_bytes as u64 };
        let mut rest = span.pages();
        let mut under_way: Option<Wave<'_, D>> = None;
        let mut tried_again = None;
        loop {
            let started =
                if rest.is_empty() { None } else { Some(self.begin_reading(rest.clone(), span, into)) };
            // Finished also if the next one failed to start: pages are held for it.
            let finished = under_way.take().map_or(Ok(()), |wave| self.end_reading(wave, span, into));
            let Some(started) = started else { return finished };
            let (wave, end) = started?;
            if let Err(error) = finished {
                let _ = self.end_reading(wave, span, into);
                return Err(error);
            }
            let (reached, obstacle) = match end {
                End::Before(page) => (page, None),
                End::Busy(page, state) => (page, Some(Some(state))),
                End::NoStage(page) => (page, Some(None)),
            };
            rest.start = reached;
            let Some(obstacle) = obstacle else {
                under_way = Some(wave);
                continue;
            };
            self.end_reading(wave, span, into)?;
            match obstacle {
                // This thread may have had them itself.
                None if tried_again != Some(reached) => tried_again = Some(reached),
                Some(state) => self.await_page(reached, state, false)?,
                None => {
                    let (offset, part) = span.part(reached);
                    let held = self.share_steady(reached, Holder::Pin, Stream::Ignore)?;
                    // SAFETY: inside of the page, which is shared, so that it stays resident and nobody writes.
                    unsafe { racy::read(held.address.add(offset), &mut into[part]) };
                    self.unshare(reached, Holder::Pin);
                    rest.start += 1;
                }
            }
        }
    }

    /// Reads resident pages, and starts to fetch the others, until the stages are full or something is in the way.
    fn begin_reading(&self, pages: Range<u64>, span: Span, into: &mut [u8]) -> Result<(Wave<'_, D>, End)> {
        let mut wanted: Vec<Vec<u64>> = vec![Vec::new(); self.channels.len()];
        let mut end = End::Before(pages.end);
        for page in pages {
            let channel = (page % self.channels.len() as u64) as usize;
            if wanted[channel].len() == self.channels[channel].stage_pages() {
                end = End::Before(page);
                break;
            }
            let entry = self.table.entry(page);
            let (offset, part) = span.part(page);
            match entry.try_share(Holder::Pin, guards::held()) {
                Ok(before) => {
                    crate::page::count_hit(self.counter);
                    self.channels[channel].fewer_ahead(usize::from(before.any(AHEAD)));
                    self.channels[channel].quiesce(entry, before, Access::Writes);
                    // SAFETY: inside of the page, which is shared, so that it stays resident and nobody writes.
                    unsafe { racy::read(entry.address().add(offset), &mut into[part]) };
                    self.unshare(page, Holder::Pin);
                }
                Err(Refusal::Busy(state)) => {
                    end = End::Busy(page, state);
                    break;
                }
                Err(Refusal::Absent) => match entry.try_share_home() {
                    Ok(true) => wanted[channel].push(page),
                    Ok(false) => {
                        into[part].fill(0);
                        self.unshare(page, Holder::Pin);
                    }
                    Err(Refusal::Busy(state)) if !state.any(RESIDENT) => {
                        end = End::Busy(page, state);
                        break;
                    }
                    Err(_) => {
                        // It has become resident just now: the next wave begins with it.
                        end = End::Before(page);
                        break;
                    }
                },
            }
        }
        let mut wave = Wave(Vec::new());
        let mut failure = None;
        for (channel, pages) in self.channels.iter().zip(wanted) {
            if pages.is_empty() {
                continue;
            }
            let first = pages[0];
            let let_go = |pages: &[u64]| pages.iter().for_each(|page| self.unshare(*page, Holder::Pin));
            let stage = match channel.take_stage() {
                _ if failure.is_some() => Err(None),
                Ok(Some(stage)) => Ok(stage),
                Ok(None) => {
                    end = End::NoStage(first.min(end.page()));
                    Err(None)
                }
                Err(error) => Err(Some(error)),
            };
            let submitted = stage.and_then(|stage| match channel.fetch_to_stage(&pages, &stage) {
                Ok(ticket) => Ok((stage, ticket)),
                Err(error) => {
                    channel.put_stage(stage);
                    Err(Some(error))
                }
            });
            match submitted {
                Ok((stage, ticket)) => wave.0.push(Load { channel, pages, stage, ticket }),
                Err(error) => {
                    let_go(&pages);
                    failure = failure.or(error);
                }
            }
        }
        if let Some(error) = failure {
            let _ = self.end_reading(wave, span, into);
            return Err(error);
        }
        Ok((wave, end))
    }

    /// Waits for a wave, copies its pages to the slice, and lets go of them.
    fn end_reading(&self, wave: Wave<'_, D>, span: Span, into: &mut [u8]) -> Result<()> {
        let mut outcome = Ok(());
        for load in wave.0 {
            let fetched = load.channel.device().wait(load.ticket);
            for (at, page) in load.pages.iter().enumerate() {
                if fetched.is_ok() {
                    let (offset, part) = span.part(*page);
                    // SAFETY: inside of the stage's page; the copy to it is done and the stage is this thread's.
                    let from = unsafe {
                        let from = load.stage.page(at, self.page_bytes).add(offset);
                        std::slice::from_raw_parts(from, part.len())
                    };
                    into[part].copy_from_slice(from);
                }
                self.unshare(*page, Holder::Pin);
            }
            load.channel.put_stage(load.stage);
            outcome = outcome.and(fetched);
        }
        Ok(outcome?)
    }

    /// Copies a slice to bytes of the array, from `start` on: whole pages.
    ///
    /// # Errors
    /// What a device reports, if the cache has no frame for the page either. Pages up to some one are written then; of
    /// those whose copy failed the contents are unspecified.
    pub(crate) fn write_bulk(&self, start: u64, from: &[u8]) -> Result<()> {
        let span = Span { start, bytes: from.len() as u64, page_bytes: self.page_bytes as u64 };
        let mut rest = span.pages();
        let mut under_way: Option<Wave<'_, D>> = None;
        let mut tried_again = None;
        loop {
            let started = (!rest.is_empty()).then(|| self.begin_writing(rest.clone(), span, from));
            let finished = under_way.take().map_or(Ok(()), |wave| self.end_writing(wave, span, from));
            let Some((wave, end)) = started else { return finished };
            if let Err(error) = finished {
                let _ = self.end_writing(wave, span, from);
                return Err(error);
            }
            match end {
                End::Before(page) => {
                    rest.start = page;
                    under_way = Some(wave);
                }
                // This thread may have had them itself.
                End::NoStage(page) if tried_again != Some(page) => {
                    self.end_writing(wave, span, from)?;
                    tried_again = Some(page);
                    rest.start = page;
                }
                End::Busy(page, _) | End::NoStage(page) => {
                    self.end_writing(wave, span, from)?;
                    self.write_in_frame(page, span, from)?;
                    rest.start = page + 1;
                }
            }
        }
    }

    fn write_in_frame(&self, page: u64, span: Span, from: &[u8]) -> Result<()> {
        let (offset, part) = span.part(page);
        let held = self.take(page, Holder::Pin, Fetch::Overwrite, Stream::Ignore)?;
        // SAFETY: inside of the page, which is this thread's alone.
        unsafe { racy::write(held.address.add(offset), &from[part]) };
        self.release(page, Holder::Pin, DIRTY);
        Ok(())
    }

    /// Writes resident pages, and starts to copy the others to their slots, until the stages are full or something is
    /// in the way.
    fn begin_writing(&self, pages: Range<u64>, span: Span, from: &[u8]) -> (Wave<'_, D>, End) {
        let mut stages: Vec<Option<(Stage<D>, Vec<u64>)>> = self.channels.iter().map(|_| None).collect();
        let mut end = End::Before(pages.end);
        for page in pages {
            let number = (page % self.channels.len() as u64) as usize;
            let channel = &self.channels[number];
            let entry = self.table.entry(page);
            let (offset, part) = span.part(page);
            match entry.try_exclusive(Holder::Pin) {
                Ok(before) => {
                    crate::page::count_hit(self.counter);
                    channel.fewer_ahead(usize::from(before.any(AHEAD)));
                    channel.quiesce(entry, before, Access::All);
                    // SAFETY: inside of the page, which is this thread's alone.
                    unsafe { racy::write(entry.address().add(offset), &from[part]) };
                    self.release(page, Holder::Pin, DIRTY);
                    continue;
                }
                Err(Refusal::Busy(state)) => {
                    end = End::Busy(page, state);
                    break;
                }
                Err(Refusal::Absent) => {}
            }
            if stages[number].is_none() {
                match channel.take_stage() {
                    Ok(Some(stage)) => stages[number] = Some((stage, Vec::new())),
                    Ok(None) | Err(_) => {
                        end = End::NoStage(page);
                        break;
                    }
                }
            }
            let Some((stage, pages)) = &mut stages[number] else { break };
            if pages.len() == channel.stage_pages() {
                end = End::Before(page);
                break;
            }
            match entry.try_claim_absent(false) {
                Ok(_) => {
                    entry.home_is_unknown();
                    // SAFETY: inside of the stage's page; the stage is this thread's, and nothing is in flight on it.
                    unsafe {
                        let to = stage.page(pages.len(), self.page_bytes).add(offset);
                        from[part.clone()].as_ptr().copy_to_nonoverlapping(to, part.len());
                    }
                    pages.push(page);
                }
                Err(Refusal::Busy(state)) => {
                    end = End::Busy(page, state);
                    break;
                }
                Err(Refusal::Absent) => {
                    end = End::Before(page);
                    break;
                }
            }
        }
        let mut wave = Wave(Vec::new());
        for (channel, filled) in self.channels.iter().zip(stages) {
            let Some((stage, pages)) = filled else { continue };
            if pages.is_empty() {
                channel.put_stage(stage);
                continue;
            }
            match channel.write_from_stage(&pages, &stage) {
                Ok(ticket) => wave.0.push(Load { channel, pages, stage, ticket }),
                Err(_) => {
                    // Nothing of it happened: they go through frames, from the first on.
                    pages.iter().for_each(|page| self.release(*page, Holder::Pin, 0));
                    channel.put_stage(stage);
                    end = End::NoStage(pages[0].min(end.page()));
                }
            }
        }
        (wave, end)
    }

    /// Waits for a wave and lets go of its pages; those whose copy failed are written in frames.
    fn end_writing(&self, wave: Wave<'_, D>, span: Span, from: &[u8]) -> Result<()> {
        let mut failed = Vec::new();
        for load in wave.0 {
            let is_written = load.channel.device().wait(load.ticket).is_ok();
            for page in &load.pages {
                self.release(*page, Holder::Pin, if is_written { HOME } else { 0 });
            }
            load.channel.put_stage(load.stage);
            if !is_written {
                failed.extend(load.pages);
            }
        }
        // When nothing is held any more.
        failed.into_iter().try_for_each(|page| self.write_in_frame(page, span, from))
    }
}

impl End {
    fn page(&self) -> u64 {
        match *self {
            Self::Before(page) | Self::Busy(page, _) | Self::NoStage(page) => page,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_pages_and_of_ranges() {
        let span = Span { start: 25, bytes: 30, page_bytes: 10 };
        assert_eq!(span.pages(), 2..6);
        assert_eq!(span.part(2), (5, 0..5));
        assert_eq!(span.part(3), (0, 5..15));
        assert_eq!(span.part(5), (0, 25..30));
    }
}
