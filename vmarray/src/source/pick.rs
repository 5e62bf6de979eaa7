//! Collecting elements by index from wherever they are valid.

use backend_api::{Device, Gather};

use super::channel::SourceChannel;
use super::core::Core;
use crate::base::element::Element;
use crate::base::error::Result;

impl<T: Element, D: Device> Core<T, D> {
    /// Elements by index, collected where they are. Indices ascend.
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
}

impl<T: Element, D: Device> Core<T, D> {
    /// Collects those of a list that stand at some places and belong to a channel.
    fn collect_from(
        &self,
        channel: &SourceChannel<D>,
        indices: &[usize],
        places: &[usize],
        values: &mut [T],
    ) -> Result<()> {
        let page_len = self.cuts.page_len;
        // Whoever holds several pages holds their channel.
        let _pool = channel.pool.lock();
        let (mut held, mut newer, mut numbers) = (Vec::new(), Vec::new(), Vec::new());
        for places in places.chunk_by(|&a, &b| indices[a] / page_len == indices[b] / page_len) {
            let page = indices[places[0]] / page_len;
            let entry = &self.entries[page];
            let (guard, before) = (entry.share(), newer.len());
            for &place in places {
                let (index, at) = (indices[place], indices[place] % page_len);
                let is_newer = entry.dirty() & self.cuts.touched(&(at..at + 1)) != 0;
                match entry.slot().filter(|_| is_newer) {
                    Some(slot) => {
                        newer.push(place);
                        numbers.push((slot as usize * page_len + at) as u64);
                    }
                    // SAFETY: the page is shared, so nobody writes to it at home.
                    None => values[place] = unsafe { self.range_at_home(&(index..index + 1)) }[0],
                }
            }
            if newer.len() > before {
                held.push(guard);
            }
        }
        if numbers.is_empty() {
            return Ok(());
        }
        let (list_bytes, bytes) = (numbers.len() * 8, numbers.len() * size_of::<T>());
        let memory = channel.buffer(list_bytes + bytes)?;
        memory.write(0, bytemuck::cast_slice(&numbers));
        let gather = Gather {
            elements: channel.all_elements(),
            indices: memory.at(0),
            count: numbers.len() as u64,
            values: memory.at(list_bytes as u64),
        };
        channel.counters.submissions.add(1);
        channel.device().wait(channel.kernels().gather(&gather)?)?;
        let mut part = vec![T::zeroed(); numbers.len()];
        memory.read(list_bytes, bytemuck::cast_slice_mut(&mut part));
        channel.counters.bytes_from_device.add(bytes as u64);
        channel.keep(memory);
        newer.into_iter().zip(part).for_each(|(place, value)| values[place] = value);
        Ok(())
    }
}
