//! An alternative: a page cache written the obvious way. A lock, a hash map and a list for the order of use
//! in each of some shards; the lock is held while pages are copied.

use super::elements::Payload;
use super::setup::{CHUNK_BYTES, pieces};
use anyhow::{Context, Result};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use vmarray::device::{Commit, DeviceBuffer, HostBuffer, HostMemory, Queue, Transfer};
use vmarray::{AnyDevice, Device};

/// How many shards there are.
const SHARDS: usize = 16;
/// No frame.
const NONE: usize = usize::MAX;

/// Elements on one device behind a cache of the least recently used pages.
pub struct LockedCache<T> {
    shards: Vec<Mutex<Shard<T>>>,
    len: usize,
    page_len: usize,
}

struct Shard<T> {
    device: Arc<AnyDevice>,
    queue: Queue<AnyDevice>,
    memory: Arc<DeviceBuffer<AnyDevice>>,
    frames: HostBuffer<AnyDevice>,
    page_len: usize,
    by_page: HashMap<usize, usize>,
    uses: Vec<Use>,
    newest: usize,
    oldest: usize,
    marker: std::marker::PhantomData<T>,
}

/// A frame in the list of uses.
struct Use {
    page: usize,
    dirty: bool,
    newer: usize,
    older: usize,
}

impl<T: Payload> LockedCache<T> {
    /// `len` elements, made from their indices, with about `cache_bytes` of frames, on the first device.
    pub fn new(devices: &[Arc<AnyDevice>], len: usize, page_len: usize, cache_bytes: usize) -> Result<Self> {
        let device = devices.first().context("there is no device")?;
        let page_bytes = page_len * size_of::<T>();
        let pages = len.div_ceil(page_len);
        let memory = Arc::new(DeviceBuffer::new(device, (pages * page_bytes) as u64, Commit::Lazy)?);
        let frames = (cache_bytes / page_bytes / SHARDS).clamp(2, pages.div_ceil(SHARDS).max(2));
        let shard = |_| -> Result<Mutex<Shard<T>>> {
            let bytes = frames * page_bytes;
            Ok(Mutex::new(Shard {
                device: Arc::clone(device),
                queue: Queue::new(device)?,
                memory: Arc::clone(&memory),
                frames: HostBuffer::new(device, bytes, HostMemory::Pinned)
                    .or_else(|_| HostBuffer::new(device, bytes, HostMemory::Pageable))?,
                page_len,
                by_page: HashMap::new(),
                uses: Vec::new(),
                newest: NONE,
                oldest: NONE,
                marker: std::marker::PhantomData,
            }))
        };
        let cache = Self { shards: (0..SHARDS).map(shard).collect::<Result<_>>()?, len, page_len };
        cache.fill(device, &memory)?;
        Ok(cache)
    }

    fn fill(&self, device: &Arc<AnyDevice>, memory: &DeviceBuffer<AnyDevice>) -> Result<()> {
        let queue = Queue::new(device)?;
        let chunk = CHUNK_BYTES / size_of::<T>();
        let host = HostBuffer::new(device, chunk * size_of::<T>(), HostMemory::Pageable)?;
        for piece in pieces(0..self.len, chunk) {
            let values: Vec<T> = piece.clone().map(T::of).collect();
            let bytes: &[u8] = bytemuck::cast_slice(&values);
            host.write(0, bytes);
            let to = memory.at((piece.start * size_of::<T>()) as u64);
            let upload = Transfer::Upload { from: host.at(0), to, bytes: bytes.len() as u64 };
            device.wait(queue.submit(&[upload])?)?;
        }
        Ok(())
    }

    /// How many elements there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Reads an element.
    pub fn get(&self, index: usize) -> Result<T> {
        // SAFETY: `with` gives the place of an element, under the lock, with no copy under way.
        self.with(index, false, |element| unsafe { element.read() })
    }

    /// Writes an element.
    pub fn set(&self, index: usize, value: T) -> Result<()> {
        // SAFETY: as in `get`.
        self.with(index, true, |element| unsafe { element.write(value) })
    }

    fn with<R>(&self, index: usize, write: bool, run: impl FnOnce(*mut T) -> R) -> Result<R> {
        anyhow::ensure!(index < self.len, "index {index} is outside of {} elements", self.len);
        let page = index / self.page_len;
        let mut shard =
            self.shards[page % SHARDS].lock().map_err(|_| anyhow::anyhow!("a thread panicked"))?;
        let frame = shard.frame(page)?;
        shard.uses[frame].dirty |= write;
        Ok(run(shard.element(frame, index % self.page_len)))
    }
}

impl<T: Payload> Shard<T> {
    fn page_bytes(&self) -> usize {
        self.page_len * size_of::<T>()
    }

    fn element(&self, frame: usize, at: usize) -> *mut T {
        let offset = frame * self.page_bytes() + at * size_of::<T>();
        debug_assert!(offset + size_of::<T>() <= self.frames.bytes());
        // SAFETY: frame and place are within the frames, which are aligned to 4096 bytes.
        unsafe { self.frames.address().as_ptr().add(offset).cast() }
    }

    /// The frame of a page, which becomes the newest.
    fn frame(&mut self, page: usize) -> Result<usize> {
        if let Some(&frame) = self.by_page.get(&page) {
            if self.newest != frame {
                self.unlink(frame);
                self.link(frame);
            }
            return Ok(frame);
        }
        let frame = if (self.uses.len() + 1) * self.page_bytes() <= self.frames.bytes() {
            self.uses.push(Use { page: NONE, dirty: false, newer: NONE, older: NONE });
            self.uses.len() - 1
        } else {
            let frame = self.oldest;
            self.unlink(frame);
            self.by_page.remove(&self.uses[frame].page);
            if self.uses[frame].dirty {
                self.copy(frame, self.uses[frame].page, true)?;
            }
            frame
        };
        self.copy(frame, page, false)?;
        self.uses[frame].page = page;
        self.uses[frame].dirty = false;
        self.by_page.insert(page, frame);
        self.link(frame);
        Ok(frame)
    }

    fn copy(&self, frame: usize, page: usize, up: bool) -> Result<()> {
        let bytes = self.page_bytes() as u64;
        let (host, home) = (self.frames.at(frame as u64 * bytes), self.memory.at(page as u64 * bytes));
        let transfer = if up {
            Transfer::Upload { from: host, to: home, bytes }
        } else {
            Transfer::Download { from: home, to: host, bytes }
        };
        Ok(self.device.wait(self.queue.submit(&[transfer])?)?)
    }

    fn unlink(&mut self, frame: usize) {
        let Use { newer, older, .. } = self.uses[frame];
        match newer {
            NONE => self.newest = older,
            newer => self.uses[newer].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.uses[older].newer = newer,
        }
    }

    fn link(&mut self, frame: usize) {
        let older = self.newest;
        self.uses[frame].newer = NONE;
        self.uses[frame].older = older;
        match older {
            NONE => self.oldest = frame,
            older => self.uses[older].newer = frame,
        }
        self.newest = frame;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::elements::Record;
    use crate::random::Random;
    use vmarray::host::HostDevice;

    #[test]
    fn it_does_what_a_vector_does() {
        let devices = [Arc::new(AnyDevice::from(HostDevice::new(64 << 20).unwrap()))];
        let cache = LockedCache::<Record>::new(&devices, 10_007, 10, 1).unwrap();
        let mut values: Vec<u32> = (0..10_007).collect();
        let mut random = Random::new(5);
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
        // Two frames of 440 bytes a shard: nearly everything above was a miss.
        assert!(cache.shards.iter().all(|shard| shard.lock().unwrap().uses.len() == 2));
    }

    #[test]
    fn the_least_recently_used_page_leaves() {
        let devices = [Arc::new(AnyDevice::from(HostDevice::new(64 << 20).unwrap()))];
        let cache = LockedCache::<u32>::new(&devices, 1600, 10, 1).unwrap();
        for page in [0, 16, 0, 32] {
            cache.get(page * 10).unwrap();
        }
        let shard = cache.shards[0].lock().unwrap();
        let mut pages: Vec<usize> = shard.by_page.keys().copied().collect();
        pages.sort_unstable();
        assert_eq!(pages, [0, 32]);
    }
}
