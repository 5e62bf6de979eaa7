//! Prefetches of pages into the cache: at the program's request, and by read-ahead.

use std::ops::Range;
use std::sync::atomic::Ordering;

use super::Pager;
use crate::base::error::Result;
use crate::base::trace;
use crate::engine::channel::{Channel, Load, LoadFor, pages_of};
use crate::engine::page::state::{EXCLUSIVE, HOME, RESIDENT};
use crate::engine::page::unpark;
use crate::engine::read_ahead::{self, Ahead, Streams, Use};

impl Pager {
    /// Reports the first use of a prefetched page to read-ahead.
    pub(crate) fn advance(&self, page: u64) {
        self.channel(page).fewer_ahead(1);
        self.follow(page, Use::FetchedAhead);
    }

    /// Reports an access to a page to read-ahead, and starts to fetch the pages that it expects next.
    pub(super) fn follow(&self, page: u64, usage: Use) {
        if !self.read_ahead {
            return;
        }
        let array =
            Streams { array: self.identity.number(), pages: self.table.len(), window_max: self.window_max };
        let Some(ahead) = read_ahead::advance(array, page, usage) else { return };
        let fetched = self.fetch_ahead(ahead);
        if fetched < ahead.count {
            read_ahead::retract(array, page, ahead.count - fetched);
        }
    }

    /// Starts to fetch pages of a stream, as frames permit. Returns the number of the stream's next pages
    /// that will be resident.
    fn fetch_ahead(&self, ahead: Ahead) -> u64 {
        let count = self.channels.len() as u64;
        let mut fetched = ahead.count;
        for (index, channel) in (0..).zip(&self.channels) {
            let pages = ahead.pages().filter(|page| page % count == index);
            let left_out = match channel.ahead_room(&self.table) {
                0 => pages.clone().next(),
                mut room => self.prefetch_in(channel, pages, &mut room).unwrap_or_else(|error| {
                    trace::read_ahead_failed(&error);
                    Some(ahead.first)
                }),
            };
            if let Some(page) = left_out {
                fetched = fetched.min(page.abs_diff(ahead.first) / ahead.stride.unsigned_abs().max(1));
            }
        }
        fetched
    }

    /// Returns, for each channel, the greatest number of pages that one call may prefetch: more than half of
    /// the frames would evict pages fetched just before.
    pub(crate) fn prefetch_room(&self) -> Vec<usize> {
        self.channels.iter().map(|channel| (channel.frames_max() as usize / 2).max(1)).collect()
    }

    /// Starts to fetch the pages of a range that are absent and have contents, while frames are free without
    /// a wait. Returns the first page that it leaves out, or the end.
    pub(crate) fn prefetch(&self, pages: Range<u64>) -> Result<u64> {
        self.prefetch_within(pages, &mut self.prefetch_room())
    }

    /// Prefetches a part of a range as [`prefetch`](Self::prefetch) does. `room` limits the pages of each
    /// channel, and the call reduces it. After a page that it leaves out, a channel has no more room.
    pub(crate) fn prefetch_within(&self, pages: Range<u64>, room: &mut [usize]) -> Result<u64> {
        let mut reached = pages.end;
        let mut outcome = Ok(());
        for ((index, channel), room) in (0..).zip(&self.channels).zip(room) {
            match self.prefetch_in(channel, self.of_channel(index, &pages), room) {
                Ok(None) => {}
                Ok(Some(left_out)) => {
                    *room = 0;
                    reached = reached.min(left_out);
                }
                Err(error) => {
                    *room = 0;
                    reached = pages.start;
                    outcome = outcome.and(Err(error));
                }
            }
        }
        outcome.map(|()| reached)
    }

    /// Starts to fetch pages of one channel up to the limit `room`, which the call reduces. Returns the first
    /// page that it leaves out.
    fn prefetch_in(
        &self,
        channel: &Channel,
        pages: impl Iterator<Item = u64>,
        room: &mut usize,
    ) -> Result<Option<u64>> {
        let is_absent = |page: &u64| {
            let state = self.table.entry(*page).state(Ordering::Relaxed);
            !state.any(EXCLUSIVE | RESIDENT) && state.has(HOME)
        };
        let most = *room;
        let mut wanted: Vec<u64> = pages.filter(is_absent).take(most.saturating_add(1)).collect();
        let mut left_out = if wanted.len() > most { wanted.pop() } else { None };
        *room -= wanted.len();
        if wanted.is_empty() {
            return Ok(left_out);
        }
        let mut frames = Vec::new();
        channel
            .take_frames(&self.table, wanted.len(), &mut frames)
            .inspect_err(|_| channel.put_back_all(&frames))?;
        frames.sort_unstable_by_key(|frame| frame.index);
        left_out = wanted.get(frames.len()).copied().or(left_out);
        let mut loads = Vec::with_capacity(frames.len());
        let mut unused = Vec::new();
        let mut frames = frames.into_iter();
        for page in wanted {
            let entry = self.table.entry(page);
            // First use the frames of pages that another thread has loaded or used meanwhile.
            let Some(frame) = unused.pop().or_else(|| frames.next()) else { break };
            match entry.try_claim_absent(true) {
                Ok(before) if before.has(HOME) => {
                    loads.push(Load { page, frame, then: LoadFor::Release, id: channel.load_id() });
                    continue;
                }
                // The page lost its contents between the two checks, so there is nothing to fetch.
                Ok(_) => {
                    if entry.unmap(false) {
                        unpark(entry);
                    }
                }
                Err(_) => {}
            }
            unused.push(frame);
        }
        unused.extend(frames);
        channel.put_back_all(&unused);
        channel.counters.prefetches.add(loads.len() as u64);
        channel.more_ahead(loads.len());
        channel.request(&self.table, loads);
        Ok(left_out)
    }

    /// Returns the pages of a range whose home is in a channel.
    pub(super) fn of_channel(&self, index: u64, pages: &Range<u64>) -> impl Iterator<Item = u64> + use<> {
        pages_of(index, self.channels.len() as u64, pages)
    }
}
