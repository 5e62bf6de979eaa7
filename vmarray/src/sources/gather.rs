//! Gather and scatter of a source's elements by indices, in the program's memory or on the devices.

use std::ops::Range;

use super::channel::SourceChannel;
use super::core::SourceCore;
use crate::base::element::Element;
use crate::base::error::Result;
use crate::base::memory::zeroed_vec;
use crate::ops::executor::Collecting;
use crate::ops::gather::check_list;

/// Number of elements that a gather reads at a time.
const BATCH: usize = 1 << 16;

/// Returns the positions of a list's entries, sorted by their indices; equal ones stay in order.
fn by_index(list: &[usize]) -> Result<Vec<usize>> {
    let mut order = zeroed_vec(list.len())?;
    order.iter_mut().zip(0..).for_each(|(place, number)| *place = number);
    if !list.is_sorted() {
        order.sort_unstable_by_key(|number| (list[*number], *number));
    }
    Ok(order)
}

impl<T: Element> SourceCore<T> {
    /// Reads the elements of a list from the home, or from the devices that have newer copies. The indices
    /// count from the start of the range `of`.
    pub(super) fn gather(&self, of: Range<usize>, list: &[usize], into: &mut [T]) -> Result<()> {
        check_list(list, of.len())?;
        for numbers in by_index(list)?.chunks(BATCH) {
            let places: Vec<usize> = numbers.iter().map(|number| of.start + list[*number]).collect();
            for (number, value) in numbers.iter().zip(self.collect(&places)?) {
                into[*number] = value;
            }
        }
        Ok(())
    }

    /// Writes the elements of a list in the home. If an index occurs several times, its last value stays.
    pub(super) fn scatter(&self, of: Range<usize>, list: &[usize], values: &[T]) -> Result<()> {
        check_list(list, of.len())?;
        by_index(list)?.into_iter().try_for_each(|number| self.set(of.start + list[number], values[number]))
    }

    /// Returns elements from the home or the devices; the indices must ascend.
    pub(super) fn collect(&self, indices: &[usize]) -> Result<Vec<T>> {
        let mut values = vec![T::zeroed(); indices.len()];
        let mut by_channel: Vec<Vec<usize>> = vec![Vec::new(); self.channels.len()];
        for (place, index) in indices.iter().enumerate() {
            by_channel[index / self.cuts.page_len % self.channels.len()].push(place);
        }
        for (channel, places) in self.channels.iter().zip(&by_channel).filter(|(_, p)| !p.is_empty()) {
            self.collect_from(channel, indices, places, &mut values)?;
        }
        Ok(values)
    }

    /// Reads the entries of a list that belong to one channel.
    fn collect_from(
        &self,
        channel: &SourceChannel,
        indices: &[usize],
        places: &[usize],
        values: &mut [T],
    ) -> Result<()> {
        let page_len = self.cuts.page_len;
        // To hold several pages of a channel (share of a device), a thread must also hold the lock of the
        // channel.
        let _pool = channel.pool.lock();
        let (mut held, mut newer, mut numbers) = (Vec::new(), Vec::new(), Vec::new());
        for places in places.chunk_by(|&a, &b| indices[a] / page_len == indices[b] / page_len) {
            let page = indices[places[0]] / page_len;
            let entry = &self.entries[page];
            let (guard, before) = (entry.share(), newer.len());
            for &place in places {
                let at = indices[place] % page_len;
                let is_newer = entry.dirty() & self.cuts.touched(&(at..at + 1)) != 0;
                match entry.slot().filter(|_| is_newer) {
                    Some(slot) => {
                        newer.push(place);
                        numbers.push((slot as usize * page_len + at) as u64);
                    }
                    None => values[place] = self.elements(&guard, page, &(at..at + 1))[0],
                }
            }
            if newer.len() > before {
                held.push(guard);
            }
        }
        if numbers.is_empty() {
            return Ok(());
        }
        channel.counters.submissions.add(1);
        let part = Collecting::new(channel, channel.all_elements(), &numbers)?.values(channel)?;
        newer.into_iter().zip(part).for_each(|(place, value)| values[place] = value);
        Ok(())
    }
}
