//! Coherence between a source's home (the program's memory) and its copies on devices: flush, discard,
//! invalidate, evict, verify.

use std::ops::Range;

use super::channel::{PageBlocks, SlotPool, SourceChannel};
use super::core::SourceCore;
use super::directory::ExclusivePage;
use crate::base::element::Element;
use crate::base::error::Result;
use crate::ops::executor::Lane as _;

/// Maximum number of bytes that one call copies to the home.
const BATCH_BYTES: usize = 32 << 20;

impl<T: Element> SourceCore<T> {
    /// Copies newer elements of a range to the home. After an error on one channel, the other channels still
    /// copy their elements. The elements that were not copied stay newer on the device.
    pub(super) fn flush(&self, range: &Range<usize>) -> Result<()> {
        let mut outcome = Ok(());
        for (index, channel) in self.channels.iter().enumerate() {
            let mut pages = self
                .pages_of_channel(index, range)
                .filter(|&page| self.entries[page].dirty() != 0)
                .peekable();
            if pages.peek().is_some() {
                let mut pool = channel.pool.lock();
                let most = (BATCH_BYTES / self.page_bytes()).max(1);
                while pages.peek().is_some() {
                    let done = self.flush_some(channel, &mut pool, pages.by_ref().take(most), range);
                    outcome = outcome.and(done);
                }
            }
        }
        outcome
    }

    fn flush_some(
        &self,
        channel: &SourceChannel,
        pool: &mut SlotPool,
        pages: impl Iterator<Item = usize>,
        range: &Range<usize>,
    ) -> Result<()> {
        let mut held: Vec<(PageBlocks, ExclusivePage<'_>)> = Vec::new();
        for page in pages {
            let entry = &self.entries[page];
            let guard = entry.take();
            let blocks = entry.dirty() & self.cuts.touched(&self.cuts.within(page, range));
            if let Some(slot) = entry.slot().filter(|_| blocks != 0) {
                held.push((PageBlocks { page, slot, blocks }, guard));
            }
        }
        let blocks: Vec<PageBlocks> = held.iter().map(|(blocks, _)| *blocks).collect();
        if let Err(error) = channel.bring_home(&mut pool.staging, &blocks) {
            channel.counters.failed_write_backs.add(blocks.len() as u64);
            return Err(error);
        }
        channel.counters.write_backs.add(blocks.len() as u64);
        blocks.iter().for_each(|done| self.entries[done.page].flushed(done.blocks));
        Ok(())
    }

    /// Discards the contents of a range. Later operations copy its elements in neither direction.
    pub(super) fn discard(&self, range: &Range<usize>) {
        for page in self.cuts.touched_pages(range) {
            let entry = &self.entries[page];
            if entry.valid() != 0 {
                let _guard = entry.take();
                entry.invalidate(self.cuts.covered(page, &self.cuts.within(page, range)));
            }
        }
    }

    /// Invalidates the device copies of a range, so that the home is valid. First copies newer elements next
    /// to the range, in the same blocks, to the home.
    pub(super) fn invalidate(&self, range: &Range<usize>) -> Result<()> {
        for page in self.cuts.touched_pages(range) {
            let entry = &self.entries[page];
            if entry.valid() == 0 {
                continue;
            }
            let mut held = entry.take();
            let within = self.cuts.within(page, range);
            let touched = self.cuts.touched(&within);
            let beside = touched & !self.cuts.covered(page, &within) & entry.dirty();
            if beside != 0 {
                let kept = self.elements_mut(&mut held, page, &within).to_vec();
                self.settle(&mut held, page, beside)?;
                self.elements_mut(&mut held, page, &within).copy_from_slice(&kept);
            }
            entry.invalidate(touched);
        }
        Ok(())
    }

    /// Copies newer elements of a range to the home, and frees the slots of its pages.
    pub(super) fn evict(&self, range: &Range<usize>) -> Result<()> {
        self.flush(range)?;
        let touched = self.cuts.touched_pages(range);
        for (index, channel) in self.channels.iter().enumerate() {
            let mut pool = channel.pool.lock();
            let tenants: Vec<usize> = if touched.len() / self.channels.len() < pool.slots() {
                self.pages_of_channel(index, range).collect()
            } else {
                pool.tenants().filter(|page| touched.contains(page)).collect()
            };
            self.evict_pages(&mut pool, tenants)?;
        }
        Ok(())
    }

    /// Evicts pages as [`evict`](Self::evict). The caller holds their channel.
    pub(super) fn evict_pages(&self, pool: &mut SlotPool, pages: Vec<usize>) -> Result<()> {
        for page in pages {
            let entry = &self.entries[page];
            let mut held = entry.take();
            if let Some(slot) = entry.slot() {
                self.settle(&mut held, page, u64::MAX)?;
                entry.invalidate(u64::MAX);
                entry.place(None);
                pool.policy_remove(slot);
            }
        }
        Ok(())
    }

    /// Returns the index of the first element of a range whose shared copy on a device differs from the home.
    pub(super) fn verify(&self, range: &Range<usize>) -> Result<Option<usize>> {
        for page in self.cuts.touched_pages(range) {
            let entry = &self.entries[page];
            if entry.valid() == 0 {
                continue;
            }
            let held = entry.share();
            let blocks = entry.valid() & !entry.dirty() & self.cuts.touched(&self.cuts.within(page, range));
            let Some(slot) = entry.slot().filter(|_| blocks != 0) else { continue };
            let channel = self.channel(page);
            let (buffer, ticket) = channel.start_to_read(PageBlocks { page, slot, blocks })?;
            let arrived = channel.wait(ticket);
            let mut differs = None;
            let mut at = 0;
            for range in self.cuts.ranges(page, blocks).take_while(|_| arrived.is_ok()) {
                let home = self.elements(&held, page, &range);
                let mut seen = vec![T::zeroed(); range.len()];
                let seen: &mut [u8] = bytemuck::cast_slice_mut(&mut seen);
                buffer.read(at, seen);
                at += seen.len();
                let bytes: &[u8] = bytemuck::cast_slice(home);
                if let Some(byte) = bytes.iter().zip(seen.iter()).position(|(a, b)| a != b) {
                    differs = Some(page * self.cuts.page_len + range.start + byte / size_of::<T>());
                    break;
                }
            }
            channel.counters.bytes_from_device.add(at as u64);
            channel.keep(buffer);
            arrived?;
            if differs.is_some() {
                return Ok(differs);
            }
        }
        Ok(None)
    }
}
