//! A cache in the memory of the GPU for rows that are in RAM. The kernels that read rows admit hot ones.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use backend_api::{
    Commit, Device, DeviceBuffer, Error, ErrorKind, Fill, HostBuffer, HostMemory, Queue, Result, Transfer,
};

use super::buffers::RowExtent;
use super::kernels::BLOCK;
use super::launches::{RowKernel, RowLaunch, StreamCall};
use super::order::address;

/// The slots of a set, one for each lane of a warp.
const WAYS: u64 = 32;
/// Bytes of a slot's tag, count of uses and share of the counts of reads.
const SLOT_BYTES: u64 = 16;
const COUNTER_BYTES: u64 = 256;
/// The number of reads for each slot after which all counts are halved.
const READS_OF_SLOT: u64 = 10;

/// Numbers of a [`RowTable`](super::RowTable)'s cache.
///
/// ```
/// use vmarray::rows::RowCacheStats;
/// let stats = RowCacheStats { reads: 100, hits: 75, row_bytes: 256, cached_rows: 1000 };
/// assert_eq!((stats.hit_rate(), stats.bytes_from_cache(), stats.bytes_from_home()), (0.75, 19200, 6400));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowCacheStats {
    /// Number of rows that kernels have read, of the cache or not.
    pub reads: u64,
    /// Number of rows that they have read in the cache.
    pub hits: u64,
    /// Bytes of a row.
    pub row_bytes: u64,
    /// Number of rows for which the cache has room.
    pub cached_rows: u64,
}

impl RowCacheStats {
    /// Returns the part of the reads that were hits; 0 if there was no read.
    #[must_use]
    pub fn hit_rate(&self) -> f64 {
        self.hits as f64 / self.reads.max(1) as f64
    }

    /// Returns the bytes that kernels have read in the cache.
    #[must_use]
    pub fn bytes_from_cache(&self) -> u64 {
        self.hits * self.row_bytes
    }

    /// Returns the bytes that kernels have read at the home of the rows.
    #[must_use]
    pub fn bytes_from_home(&self) -> u64 {
        self.reads.saturating_sub(self.hits) * self.row_bytes
    }
}

/// The memory of a cache.
#[derive(Debug)]
pub(super) struct RowCache {
    device: Arc<dyn Device>,
    memory: DeviceBuffer<dyn Device>,
    start: u64,
    row_bytes: u64,
    pub sets: u64,
    /// The number of counts of reads, a power of two.
    counts: u64,
    /// The number of reads since all counts were halved.
    reads: AtomicU64,
}

impl RowCache {
    /// Allocates a cache of at most `bytes` bytes, and clears it. Blocks.
    pub fn new(device: &Arc<dyn Device>, bytes: u64, row_bytes: u64) -> Result<Self> {
        let sets = bytes.saturating_sub(COUNTER_BYTES) / (WAYS * (row_bytes + SLOT_BYTES));
        if sets == 0 {
            let detail = format!("a cache of {bytes} bytes has no room for {WAYS} rows of {row_bytes} bytes");
            let error = Error::new(ErrorKind::InvalidArgument, "rows").with_bytes(bytes);
            return Err(error.with_detail(detail));
        }
        // The greatest power of two that is at most twice the number of slots.
        let counts = 1 << (2 * sets * WAYS).ilog2();
        let head = COUNTER_BYTES + 8 * sets * WAYS + 4 * counts;
        let memory = DeviceBuffer::new(device, head + sets * WAYS * row_bytes, Commit::Proven)?;
        let queue = Queue::new(device)?;
        device.wait(queue.submit(&Fill { to: memory.at(0), bytes: head, pattern: &[0] })?)?;
        let start = address(device, &memory)?;
        let device = Arc::clone(device);
        Ok(Self { device, memory, start, row_bytes, sets, counts, reads: AtomicU64::new(0) })
    }

    fn slots(&self) -> u64 {
        self.sets * WAYS
    }

    /// Returns tags, uses, counts of reads, rows and counters. A chunk of a row has `chunk` bytes.
    pub fn extents(&self, chunk: u64) -> [RowExtent; 5] {
        let tags = self.start + COUNTER_BYTES;
        let uses = tags + 4 * self.slots();
        let reads = uses + 4 * self.slots();
        let rows = reads + 4 * self.counts;
        [
            RowExtent::new(self.slots(), tags),
            RowExtent::new(self.slots(), uses),
            RowExtent::new(self.counts, reads),
            RowExtent::new(self.slots() * self.row_bytes / chunk, rows),
            RowExtent::new(2, self.start),
        ]
    }

    /// Counts reads. After many, enqueues kernels that halve the counts of all rows. A count that another
    /// kernel changes meanwhile may lose the change.
    pub fn age(&self, call: StreamCall<'_>, count: u64) -> crate::base::error::Result<()> {
        let reads = self.reads.fetch_add(count, Ordering::Relaxed) + count;
        if reads < READS_OF_SLOT * self.slots() {
            return Ok(());
        }
        self.reads.store(0, Ordering::Relaxed);
        let [_, uses, reads, ..] = self.extents(1);
        for counts in [uses, reads] {
            let groups = counts.count.div_ceil(BLOCK as u64);
            let (views, values) = (&[counts.of(4)], &[counts.count]);
            call.launch(&RowLaunch { kernel: RowKernel::Halve, groups, views, values })?;
        }
        Ok(())
    }

    /// Reads the counters. Blocks.
    pub fn stats(&self) -> Result<RowCacheStats> {
        let (queue, host) =
            (Queue::new(&self.device)?, HostBuffer::new(&self.device, 16, HostMemory::Pageable)?);
        let copy = Transfer::Download { from: self.memory.at(0), to: host.at(0), bytes: 16 };
        self.device.wait(queue.submit(&[copy])?)?;
        let mut words = [[0; 8]; 2];
        host.read(0, words.as_flattened_mut());
        let [hits, reads] = words.map(u64::from_ne_bytes);
        Ok(RowCacheStats { reads, hits, row_bytes: self.row_bytes, cached_rows: self.slots() })
    }
}
