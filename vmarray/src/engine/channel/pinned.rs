//! Pool of page-locked host memory for small transfers to and from a device: lists of indices, gathered
//! values, results of kernels, single elements, staging buffers.
//!
//! Page-locking takes some milliseconds a call, plus about a tenth of a second for each GB; freeing waits for
//! all work of the device. So the pool locks large slabs and divides them into pieces. Freed pieces stay in
//! the pool, up to a limit.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use backend_api::{Device, ErrorKind, HostBuffer, HostMemory, HostSpan};
use crossbeam_queue::ArrayQueue;
use parking_lot::Mutex;

use super::places::{self, HostPlace};
use crate::base::element::Element;
use crate::base::error::Result;
use crate::base::racy_slice::RacySlice;
use crate::base::trace;

/// Maximum number of unused bytes in the pool: enough for one thread on each of many cores.
const KEPT_BYTES: usize = 192 << 20;
/// Pieces begin and end at multiples of this number of bytes.
const GRAIN: usize = 4096;
/// Number of pieces of minimum length in a separate list.
const SHORT: usize = 64;
/// Minimum bytes of the first slab: enough for partial results of a kernel and short lists of matches.
const SLAB_BYTES_MIN: usize = 192 << 10;
const _: () = assert!(backend_api::Compute::partials_bytes() <= SLAB_BYTES_MIN as u64);
/// Maximum bytes of further slabs, which double the pool.
const SLAB_BYTES_MAX: usize = 32 << 20;
/// Maximum bytes of pieces that the pool keeps. A list of all matches may take a hundred times as much.
const PIECE_BYTES_MAX: usize = 16 << 20;

/// A piece of page-locked memory from the pool.
///
/// Its owner [returns it](PinnedPool::put) when no work uses it any more. If an error drops it instead, work
/// may still be in flight. Its slab is then retired, and freeing the slab waits for the work.
#[derive(Debug)]
pub(crate) struct PinnedPiece {
    slab: Arc<Slab>,
    range: Range<usize>,
    is_returned: bool,
}

#[derive(Debug)]
struct Slab {
    memory: HostBuffer<dyn Device>,
    is_retired: AtomicBool,
}

impl Drop for PinnedPiece {
    fn drop(&mut self) {
        if !self.is_returned {
            self.slab.is_retired.store(true, Ordering::Relaxed);
        }
    }
}

impl PinnedPiece {
    pub(crate) fn bytes(&self) -> usize {
        self.range.len()
    }

    /// Returns the offset in the slab of some bytes of the piece.
    #[inline]
    fn offset_of(&self, offset: usize, bytes: usize) -> usize {
        let end = offset.checked_add(bytes);
        assert!(end.is_some_and(|end| end <= self.bytes()), "the bytes must end within the piece");
        self.range.start + offset
    }

    /// Returns the slab's memory.
    pub(crate) fn memory(&self) -> &HostBuffer<dyn Device> {
        &self.slab.memory
    }

    pub(crate) fn at(&self, offset: u64) -> HostSpan<'_> {
        self.slab.memory.at(self.range.start as u64 + offset)
    }

    /// Returns the place of a byte, for a copy that ends before the owner returns the piece.
    pub(super) fn place(&self, offset: usize) -> HostPlace {
        places::host_place(&self.slab.memory, self.range.start + offset)
    }

    #[inline]
    pub(crate) fn read(&self, offset: usize, into: &mut [u8]) {
        self.slab.memory.read(self.offset_of(offset, into.len()), into);
    }

    /// Copies bytes out of the piece, with non-temporal stores.
    pub(super) fn read_past_caches(&self, offset: usize, into: &mut [u8]) {
        places::read_past_caches(&self.slab.memory, self.offset_of(offset, into.len()), into);
    }

    /// Copies elements out of the piece to a slice, with non-temporal stores on request.
    #[inline]
    pub(crate) fn read_elements<T: Element>(
        &self,
        offset: usize,
        into: (&RacySlice<'_, T>, usize),
        len: usize,
        passes_caches: bool,
    ) {
        let offset = self.offset_of(offset, len.saturating_mul(size_of::<T>()));
        places::read_elements(&self.slab.memory, offset, into, len, passes_caches);
    }

    #[inline]
    pub(crate) fn write(&self, offset: usize, from: &[u8]) {
        self.slab.memory.write(self.offset_of(offset, from.len()), from);
    }
}

#[derive(Debug)]
pub(crate) struct PinnedPool {
    stock: Arc<PinnedStock>,
    /// True if pageable memory may replace page-locked memory.
    fall_back: bool,
    /// The kind of memory of new slabs: that of the frames.
    kind: Mutex<HostMemory>,
}

/// The slabs of memory of a device. Channels with the same number share them across arrays.
#[derive(Debug)]
struct PinnedStock {
    device: Arc<dyn Device>,
    slabs: Mutex<Vec<PoolSlab>>,
    /// Free pieces of one [`GRAIN`], for single elements that many threads access.
    short: ArrayQueue<PinnedPiece>,
    /// The lock of the thread that allocates a slab; other threads wait for it.
    growing: Mutex<()>,
}

/// A slab of memory, and its free ranges.
#[derive(Debug)]
struct PoolSlab {
    slab: Arc<Slab>,
    wanted: HostMemory,
    /// Free ranges in ascending order, which do not touch each other.
    free: Vec<Range<usize>>,
}

impl PoolSlab {
    fn new(memory: HostBuffer<dyn Device>, wanted: HostMemory) -> Self {
        let free = std::iter::once(0..memory.bytes()).collect();
        Self { slab: Arc::new(Slab { memory, is_retired: AtomicBool::new(false) }), wanted, free }
    }

    fn take(&mut self, bytes: usize) -> Option<PinnedPiece> {
        let at = self.free.iter().position(|range| range.len() >= bytes)?;
        let range = self.free[at].start..self.free[at].start + bytes;
        self.free[at].start = range.end;
        if self.free[at].is_empty() {
            self.free.remove(at);
        }
        Some(PinnedPiece { slab: Arc::clone(&self.slab), range, is_returned: false })
    }

    /// Frees a piece. Returns true if the whole slab is free now.
    fn put(&mut self, range: Range<usize>) -> bool {
        let at = self.free.partition_point(|other| other.start < range.start);
        self.free.insert(at, range);
        self.free.dedup_by(|next, before| {
            let touch = before.end == next.start;
            if touch {
                before.end = next.end;
            }
            touch
        });
        self.free[0].len() == self.bytes()
    }

    fn bytes(&self) -> usize {
        self.slab.memory.bytes()
    }
}

/// A pool that some channels share, while one of them exists.
struct SharedStock {
    /// The address of the pool's device, which the pool keeps alive.
    device: usize,
    channel: u32,
    stock: Weak<PinnedStock>,
}

static SHARED: Mutex<Vec<SharedStock>> = Mutex::new(Vec::new());

impl PinnedStock {
    fn new(device: &Arc<dyn Device>) -> Self {
        Self {
            device: Arc::clone(device),
            slabs: Mutex::default(),
            short: ArrayQueue::new(SHORT),
            growing: Mutex::default(),
        }
    }

    /// Returns the pool of all channels of the device with this number.
    fn shared(device: &Arc<dyn Device>, channel: u32) -> Arc<Self> {
        let address = Arc::as_ptr(device).addr();
        let mut shared = SHARED.lock();
        shared.retain(|one| one.stock.strong_count() > 0);
        let known = shared.iter().find(|one| one.device == address && one.channel == channel);
        known.and_then(|one| one.stock.upgrade()).unwrap_or_else(|| {
            let stock = Arc::new(Self::new(device));
            shared.push(SharedStock { device: address, channel, stock: Arc::downgrade(&stock) });
            stock
        })
    }

    fn bytes(&self) -> usize {
        self.slabs.lock().iter().map(PoolSlab::bytes).sum()
    }
}

impl PinnedPool {
    /// Creates access to the pool that channels of the device with this number share.
    pub(crate) fn new(device: &Arc<dyn Device>, channel: u32, kind: HostMemory) -> Self {
        Self { stock: PinnedStock::shared(device, channel), fall_back: true, kind: Mutex::new(kind) }
    }

    /// Creates a private pool, which is freed with its channel. Unless `fall_back`, all of it is page-locked.
    pub(crate) fn separate(device: &Arc<dyn Device>, kind: HostMemory, fall_back: bool) -> Self {
        Self { stock: Arc::new(PinnedStock::new(device)), fall_back, kind: Mutex::new(kind) }
    }

    pub(super) fn kind(&self) -> HostMemory {
        *self.kind.lock()
    }

    /// Sets the kind of memory of new slabs, which is that of the frames.
    pub(super) fn set_kind(&self, kind: HostMemory) {
        *self.kind.lock() = kind;
    }

    /// Allocates memory, and returns its kind: pageable if page-locking is neither possible nor required.
    pub(crate) fn make(&self, bytes: usize) -> Result<(HostBuffer<dyn Device>, HostMemory)> {
        let kind = self.kind();
        match HostBuffer::new(&self.stock.device, bytes, kind) {
            Err(error)
                if self.fall_back && kind == HostMemory::Pinned && error.kind() == ErrorKind::PinRefused =>
            {
                trace::pin_refused(&error);
                let memory = HostBuffer::new(&self.stock.device, bytes, HostMemory::Pageable)?;
                Ok((memory, HostMemory::Pageable))
            }
            memory => Ok((memory?, kind)),
        }
    }

    /// Returns memory of at least `bytes` bytes, pooled or new. The caller [returns it](Self::put).
    pub(crate) fn take(&self, bytes: usize) -> Result<PinnedPiece> {
        let is_short = bytes <= SLAB_BYTES_MIN;
        let bytes = bytes.max(1).next_multiple_of(GRAIN);
        // Page-lock short pieces even if the frames are pageable: a copy to pageable memory may block the
        // thread until the GPU kernel has ended.
        let wanted = if is_short { HostMemory::Pinned } else { self.kind() };
        if bytes == GRAIN
            && let Some(piece) = self.stock.short.pop()
        {
            return Ok(piece);
        }
        if let Some(piece) = self.take_kept(bytes, wanted) {
            return Ok(piece);
        }
        let _growing = self.stock.growing.lock();
        // Check again, because another thread may have freed or allocated a piece meanwhile.
        if let Some(piece) = self.take_kept(bytes, wanted) {
            return Ok(piece);
        }
        let length = match bytes {
            PIECE_BYTES_MAX.. => bytes,
            _ => self.bytes().clamp(SLAB_BYTES_MIN, SLAB_BYTES_MAX).max(bytes),
        };
        let new = |bytes, kind| HostBuffer::new(&self.stock.device, bytes, kind);
        // If a whole slab does not fit, try memory for this piece alone, then pageable memory.
        let memory = match new(length, wanted).or_else(|_| new(bytes, wanted)) {
            Ok(memory) => memory,
            Err(_) if is_short => new(length, HostMemory::Pageable)?,
            Err(_) => self.make(length)?.0,
        };
        let mut slab = PoolSlab::new(memory, wanted);
        let piece = slab.take(bytes).expect("a new slab has at least the piece's length");
        self.stock.slabs.lock().push(slab);
        Ok(piece)
    }

    fn take_kept(&self, bytes: usize, wanted: HostMemory) -> Option<PinnedPiece> {
        let mut slabs = self.stock.slabs.lock();
        let retired = retired(&mut slabs);
        let piece = slabs.iter_mut().filter(|slab| slab.wanted == wanted).find_map(|slab| slab.take(bytes));
        drop(slabs);
        drop(retired);
        piece
    }

    /// Allocates memory in advance, until the pool has `bytes` bytes.
    pub(super) fn reserve(&self, bytes: usize) {
        let (_growing, wanted) = (self.stock.growing.lock(), self.kind());
        let missing = bytes.saturating_sub(self.bytes());
        // Ignore a failure here, because a later call that needs the memory reports the shortage.
        if missing > 0
            && let Ok(memory) = HostBuffer::new(&self.stock.device, missing, wanted)
        {
            self.stock.slabs.lock().push(PoolSlab::new(memory, wanted));
        }
    }

    /// Returns a piece to the pool. No work on it may be in flight.
    pub(crate) fn put(&self, mut piece: PinnedPiece) {
        if piece.bytes() == GRAIN {
            match self.stock.short.push(piece) {
                Ok(()) => return,
                Err(back) => piece = back,
            }
        }
        piece.is_returned = true;
        let mut dropped = Vec::new();
        let mut slabs = self.stock.slabs.lock();
        let kept: usize = slabs.iter().map(PoolSlab::bytes).sum();
        if let Some(at) = slabs.iter().position(|slab| Arc::ptr_eq(&slab.slab, &piece.slab)) {
            let is_free = slabs[at].put(piece.range.clone());
            if is_free && (kept > KEPT_BYTES || piece.bytes() > PIECE_BYTES_MAX) {
                dropped.push(slabs.remove(at));
            }
        }
        dropped.extend(retired(&mut slabs));
        // Free the memory without the lock, because the device may first have to finish its work.
        drop(slabs);
        drop(piece);
        drop(dropped);
    }

    pub(super) fn bytes(&self) -> usize {
        self.stock.bytes()
    }

    /// Returns the bytes of the pool that count for this channel, equal for all channels that share it.
    pub(super) fn share_bytes(&self) -> usize {
        self.bytes().div_ceil(Arc::strong_count(&self.stock))
    }
}

/// Removes and returns the slabs with dropped pieces.
fn retired(slabs: &mut Vec<PoolSlab>) -> Vec<PoolSlab> {
    slabs.extract_if(.., |slab| slab.slab.is_retired.load(Ordering::Relaxed)).collect()
}

#[cfg(test)]
mod tests {
    use vmarray_conformance::reference::ReferenceDevice;

    use super::*;

    impl PinnedPiece {
        fn address(&self) -> usize {
            self.slab.memory.address().addr().get() + self.range.start
        }
    }

    fn pool() -> PinnedPool {
        let device: Arc<dyn Device> = Arc::new(ReferenceDevice::new(64 << 20));
        PinnedPool::separate(&device, HostMemory::Pinned, true)
    }

    #[test]
    fn pieces_do_not_overlap_and_come_again() {
        let pool = pool();
        let pieces: Vec<_> = [1, 5000, 100_000, 300_000, 4096].map(|bytes| pool.take(bytes).unwrap()).into();
        let mut places: Vec<_> = pieces.iter().map(|piece| (piece.address(), piece.bytes())).collect();
        places.sort_unstable();
        assert!(places.windows(2).all(|two| two[0].0 + two[0].1 <= two[1].0));
        assert!(places.iter().all(|(address, bytes)| address % GRAIN == 0 && bytes % GRAIN == 0));
        let made = pool.bytes();
        for _ in 0..3 {
            pieces_again(&pool);
        }
        pieces.into_iter().for_each(|piece| pool.put(piece));
        pieces_again(&pool);
        assert!(pool.bytes() <= 2 * made, "{} instead of {made}", pool.bytes());
        let short = pool.stock.short.len() * GRAIN;
        let free: usize = pool.stock.slabs.lock().iter().flat_map(|slab| &slab.free).map(Range::len).sum();
        assert_eq!(free + short, pool.bytes(), "all came back");
    }

    fn pieces_again(pool: &PinnedPool) {
        let pieces = [7, 9000, 200_000].map(|bytes| {
            let piece = pool.take(bytes).unwrap();
            assert!(piece.bytes() >= bytes);
            piece
        });
        pieces.into_iter().for_each(|piece| pool.put(piece));
    }

    #[test]
    fn a_piece_as_long_as_its_slab_leaves_nothing_free() {
        let pool = pool();
        let piece = pool.take(SLAB_BYTES_MIN).unwrap();
        assert!(pool.stock.slabs.lock()[0].free.is_empty());
        pool.put(piece);
        assert_eq!(
            pool.stock.slabs.lock()[0].free.iter().map(Range::len).collect::<Vec<_>>(),
            [SLAB_BYTES_MIN]
        );
    }

    #[test]
    fn dropped_memory_is_never_handed_out_again() {
        let pool = pool();
        let lost = pool.take(4096).unwrap();
        let place = lost.address();
        let beside = pool.take(4096).unwrap();
        drop(lost);
        let next = pool.take(4096).unwrap();
        assert!(!Arc::ptr_eq(&next.slab, &beside.slab) && next.address() != place);
        assert_eq!(pool.stock.slabs.lock().len(), 1, "the pool has let go of the slab");
        pool.put(next);
        pool.put(beside);
        assert_eq!(pool.bytes(), SLAB_BYTES_MIN);
    }

    #[test]
    fn long_pieces_are_not_kept_and_reserved_memory_is_used() {
        let pool = pool();
        let long = pool.take(PIECE_BYTES_MAX + 1).unwrap();
        pool.put(long);
        assert_eq!(pool.bytes(), 0);
        pool.reserve(1 << 20);
        pool.reserve(1 << 19);
        let pieces: Vec<_> = (0..4).map(|_| pool.take(1 << 18).unwrap()).collect();
        assert_eq!(pool.bytes(), 1 << 20);
        pieces.into_iter().for_each(|piece| pool.put(piece));
    }

    #[test]
    fn channels_of_one_number_share_slabs() {
        let device: Arc<dyn Device> = Arc::new(ReferenceDevice::new(64 << 20));
        let pool = |channel| PinnedPool::new(&device, channel, HostMemory::Pinned);
        let (one, same, other) = (pool(0), pool(0), pool(1));
        let piece = one.take(9000).unwrap();
        let place = piece.address();
        one.put(piece);
        drop(one);
        let again = same.take(9000).unwrap();
        assert_eq!(again.address(), place, "a dropped channel leaves its memory to the others");
        assert_eq!(other.bytes(), 0);
        let own = PinnedPool::separate(&device, HostMemory::Pinned, true);
        assert_eq!(own.bytes(), 0);
        same.put(again);
        drop(same);
        assert_eq!(pool(0).bytes(), 0, "the last one gives it back");
    }
}
