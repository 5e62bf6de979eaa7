//! A peer of the array: a simple page cache. Each shard has a lock, a hash map and a list in the order of
//! use; the lock is held while pages are copied.

use super::elements::Payload;
use super::raw::pinned;
use anyhow::{Context, Result, anyhow, ensure};
use lru::LruCache;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex};
use vmarray::device::{Commit, DeviceBuffer, HostBuffer, Queue, Transfer};
use vmarray::{AnyDevice, device::Device};

/// The number of shards.
const SHARDS: usize = 16;

/// Elements on one device with a cache of the most recently used pages under one lock.
pub struct LockedCache<T> {
    shards: Vec<Mutex<Shard>>,
    len: usize,
    page_len: usize,
    marker: PhantomData<T>,
}

struct Shard {
    queue: Queue<AnyDevice>,
    memory: Arc<DeviceBuffer<AnyDevice>>,
    frames: HostBuffer<AnyDevice>,
    page_bytes: usize,
    /// The frame of each resident page.
    pages: LruCache<usize, Frame>,
}

struct Frame {
    number: usize,
    dirty: bool,
}

impl<T: Payload> LockedCache<T> {
    /// Creates `len` elements on the first device, with a cache of about `cache_bytes` bytes. Each element is
    /// computed from its index.
    pub fn new(devices: &[Arc<AnyDevice>], len: usize, page_len: usize, cache_bytes: usize) -> Result<Self> {
        let device = devices.first().context("there is no device")?;
        let page_bytes = page_len * size_of::<T>();
        let pages = len.div_ceil(page_len);
        let memory = Arc::new(DeviceBuffer::new(device, (pages * page_bytes) as u64, Commit::Lazy)?);
        let frames = (cache_bytes / page_bytes / SHARDS).clamp(2, pages.div_ceil(SHARDS).max(2));
        let shard = |_| -> Result<Mutex<Shard>> {
            Ok(Mutex::new(Shard {
                queue: Queue::new(device)?,
                memory: Arc::clone(&memory),
                frames: pinned(device, frames * page_bytes)?,
                page_bytes,
                pages: LruCache::new(frames.try_into()?),
            }))
        };
        let shards = (0..SHARDS).map(shard).collect::<Result<_>>()?;
        let cache = Self { shards, len, page_len, marker: PhantomData };
        (0..len).try_for_each(|index| cache.set(index, T::of(index)))?;
        Ok(cache)
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Reads an element.
    pub fn get(&self, index: usize) -> Result<T> {
        let mut value = T::zeroed();
        self.with(index, false, |frames, at| frames.read(at, bytemuck::bytes_of_mut(&mut value)))?;
        Ok(value)
    }

    /// Writes an element.
    pub fn set(&self, index: usize, value: T) -> Result<()> {
        self.with(index, true, |frames, at| frames.write(at, bytemuck::bytes_of(&value)))
    }

    /// Runs code with the frames, and the place of an element in them.
    fn with(&self, index: usize, write: bool, run: impl FnOnce(&HostBuffer<AnyDevice>, usize)) -> Result<()> {
        ensure!(index < self.len, "index {index} is outside of {} elements", self.len);
        let page = index / self.page_len;
        let mut shard = self.shards[page % SHARDS].lock().map_err(|_| anyhow!("a thread panicked"))?;
        let frame = shard.frame(page, write)?;
        run(&shard.frames, frame * shard.page_bytes + index % self.page_len * size_of::<T>());
        Ok(())
    }
}

impl Shard {
    /// Returns the index of a page's frame, which becomes the most recently used.
    fn frame(&mut self, page: usize, write: bool) -> Result<usize> {
        if let Some(frame) = self.pages.get_mut(&page) {
            frame.dirty |= write;
            return Ok(frame.number);
        }
        let mut number = self.pages.len();
        if number == self.pages.cap().get() {
            let (old, frame) = self.pages.pop_lru().context("the cache has no frame")?;
            number = frame.number;
            if frame.dirty {
                self.copy(number, old, true)?;
            }
        }
        self.copy(number, page, false)?;
        self.pages.put(page, Frame { number, dirty: write });
        Ok(number)
    }

    fn copy(&self, frame: usize, page: usize, up: bool) -> Result<()> {
        let bytes = self.page_bytes as u64;
        let (host, home) = (self.frames.at(frame as u64 * bytes), self.memory.at(page as u64 * bytes));
        let transfer = if up {
            Transfer::Upload { from: host, to: home, bytes }
        } else {
            Transfer::Download { from: home, to: host, bytes }
        };
        Ok(self.queue.device().wait(self.queue.submit(&[transfer])?)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::elements::Record;
    use vmarray::device::wrap::SplitMix64;
    use vmarray::host::HostDevice;

    #[test]
    fn the_lru_cache_matches_a_vector() {
        let devices = [Arc::new(AnyDevice::from(HostDevice::new(64 << 20).unwrap()))];
        let cache = LockedCache::<Record>::new(&devices, 10_007, 10, 1).unwrap();
        let mut values: Vec<u32> = (0..10_007).collect();
        let mut random = SplitMix64::new(5);
        for turn in 0..20_000 {
            let index = random.index(values.len());
            if turn % 3 == 0 {
                values[index] = turn;
                cache.set(index, Record::of(turn as usize)).unwrap();
            } else {
                assert_eq!(cache.get(index).unwrap().key(), values[index]);
            }
        }
        assert!(cache.get(10_007).is_err());
        // Each shard has two frames of 440 bytes, so nearly every access above was a miss.
        assert!(cache.shards.iter().all(|shard| shard.lock().unwrap().pages.len() == 2));
    }
}
