//! Rows in files or other storage: threads of the host read them, in a host function on the stream.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use backend_api::{Device, HostBuffer, HostMemory, StreamId};
use parking_lot::Mutex;

use super::buffers::{CheckedList, RowExtent};
use super::kernels::BLOCK;
use super::launches::{RowKernel, RowLaunch, StreamCall};
use super::memory::no_streams;
use crate::base::error::{Error, ErrorKind, Result};

/// Reads a row, with this number, into memory of its length.
pub(super) type RowReader<'a> = Arc<dyn Fn(usize, &mut [u8]) -> Result<()> + Send + Sync + 'a>;

/// Most bytes of the rows of a piece of a list.
const PIECE_BYTES: u64 = 32 << 20;
/// Most threads that read rows, each with one read in flight, and the least rows for each.
const THREADS: usize = 64;
const ROWS_OF_THREAD: usize = 16;
/// Most bytes of rows that are read ahead at once.
const AHEAD_BYTES: usize = 4 << 20;

/// Reader of rows in storage.
pub(super) struct HostReads {
    device: Arc<dyn Device>,
    shared: Arc<Shared>,
    pub row_bytes: u64,
    streams: Mutex<BTreeMap<u64, Arc<Staging>>>,
    /// Passes lists to the thread that reads rows ahead. A send fails only if the thread has panicked.
    pub ahead: Sender<Vec<u64>>,
    thread: Option<JoinHandle<bool>>,
}

/// Data that calls on streams share.
struct Shared {
    read: RowReader<'static>,
    rows: u64,
    scales: Vec<f32>,
    row_bytes: usize,
    /// An error of a read, or an id out of range.
    error: Mutex<Option<Error>>,
    /// Set by the drop of the table.
    is_closed: AtomicBool,
}

/// Page-locked memory of a stream: ids, scales and rows of one piece of a list.
struct Staging {
    memory: HostBuffer<dyn Device>,
    start: u64,
    piece_rows: u64,
}

impl Staging {
    fn scales_at(&self) -> u64 {
        8 * self.piece_rows
    }

    fn rows_at(&self) -> u64 {
        (12 * self.piece_rows).next_multiple_of(16)
    }

    /// Returns the listed ids.
    fn ids(&self, count: usize) -> &[u64] {
        // SAFETY: the memory has room for the ids of a piece, of which `count` are used. Only a kernel of
        // the memory's stream writes them, and the stream runs none while a host function has the slice.
        unsafe { std::slice::from_raw_parts(self.memory.address().as_ptr().cast::<u64>(), count) }
    }
}

/// Addresses of the rows of a piece, and of their scales.
pub(super) struct StagedPiece {
    pub rows: u64,
    pub scales: u64,
}

impl HostReads {
    /// # Safety
    /// The value is dropped, after all work of the device is done, before the borrow of `read` ends.
    pub unsafe fn new(
        device: &Arc<dyn Device>,
        read: RowReader<'_>,
        rows: u64,
        row_bytes: u64,
        scales: &[f32],
    ) -> Result<Self> {
        // SAFETY: only the lifetime changes; the caller guarantees it.
        let read = unsafe { std::mem::transmute::<RowReader<'_>, RowReader<'static>>(read) };
        let (scales, row_bytes_of) = (scales.to_vec(), row_bytes as usize);
        let (error, is_closed) = (Mutex::default(), AtomicBool::new(false));
        let shared = Arc::new(Shared { read, rows, scales, row_bytes: row_bytes_of, error, is_closed });
        let (ahead, lists) = channel::<Vec<u64>>();
        let own = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("vmarray-rows".into());
        let thread = thread.spawn(move || lists.iter().all(|ids| own.read_ahead(&ids))).map_err(|cause| {
            let error = backend_api::Error::new(backend_api::ErrorKind::System, "rows");
            error.with_detail(format!("cannot start a thread: {cause}"))
        })?;
        Ok(Self {
            device: Arc::clone(device),
            shared,
            row_bytes,
            streams: Mutex::default(),
            ahead,
            thread: Some(thread),
        })
    }

    /// Returns the most rows of a piece.
    pub fn piece_rows(&self) -> u64 {
        (PIECE_BYTES / self.row_bytes).clamp(1, 1 << 20)
    }

    /// Returns the error of earlier reads, if there is one.
    pub fn check(&self) -> Result<()> {
        self.shared.error.lock().take().map_or(Ok(()), Err)
    }

    fn staging(&self, stream: StreamId) -> Result<Arc<Staging>> {
        let mut streams = self.streams.lock();
        if let Some(found) = streams.get(&stream.0) {
            return Ok(Arc::clone(found));
        }
        let piece_rows = self.piece_rows();
        let bytes = (12 * piece_rows).next_multiple_of(16) + piece_rows * self.row_bytes;
        let memory = HostBuffer::new(&self.device, bytes as usize, HostMemory::Pinned)?;
        let streams_of = self.device.stream_launcher().ok_or_else(|| no_streams(&self.device))?;
        let start = streams_of.kernel_address(memory.at(0), bytes)?;
        let staging = Arc::new(Staging { memory, start, piece_rows });
        streams.insert(stream.0, Arc::clone(&staging));
        Ok(staging)
    }

    /// Enqueues the kernel that lists the ids of a piece in page-locked memory.
    fn list_ids(&self, call: StreamCall<'_>, list: &CheckedList) -> Result<Arc<Staging>> {
        let staging = self.staging(call.stream)?;
        call.launch(&RowLaunch {
            kernel: RowKernel::ListIds,
            groups: list.count.div_ceil(BLOCK as u64),
            views: &[list.ids.of(4), RowExtent::new(list.count, staging.start).of(8)],
            values: &[list.count, list.id_words],
        })?;
        Ok(staging)
    }

    /// Enqueues the transfer of a list to the thread that reads rows ahead.
    pub fn prefetch(&self, call: StreamCall<'_>, list: &CheckedList) -> Result<()> {
        let mut first = 0;
        while first < list.count {
            let count = self.piece_rows().min(list.count - first);
            let staging = self.list_ids(call, &list.part(first, count))?;
            let ahead = self.ahead.clone();
            call.call_host(Box::new(move || drop(ahead.send(staging.ids(count as usize).to_vec()))))?;
            first += count;
        }
        Ok(())
    }

    /// Enqueues the reads of a piece of a list. `refuses` is true if ids out of range are an error.
    pub fn read(&self, call: StreamCall<'_>, list: &CheckedList, refuses: bool) -> Result<StagedPiece> {
        let (staging, count) = (self.list_ids(call, list)?, list.count);
        let [rows, scales] = [staging.rows_at(), staging.scales_at()].map(|at| staging.start + at);
        let shared = Arc::clone(&self.shared);
        call.call_host(Box::new(move || {
            let filling = || shared.fill(&staging, count as usize, refuses);
            // A panic must not unwind into the driver.
            if std::panic::catch_unwind(std::panic::AssertUnwindSafe(filling)).is_err() {
                let error = backend_api::Error::new(backend_api::ErrorKind::KernelFailed, "rows");
                let error = error.with_detail("a thread that reads rows has panicked");
                shared.error.lock().get_or_insert(error.into());
            }
        }))?;
        Ok(StagedPiece { rows, scales })
    }
}

impl Drop for HostReads {
    fn drop(&mut self) {
        self.shared.is_closed.store(true, Ordering::Relaxed);
        // The empty list wakes the thread, which uses the borrowed reader. A panic of it has been printed.
        let _ = self.ahead.send(Vec::new());
        self.thread.take().map(JoinHandle::join);
    }
}

impl Shared {
    /// Reads the rows of the listed ids into the staging.
    fn fill(&self, staging: &Staging, count: usize, refuses: bool) {
        let (start, ids) = (staging.memory.address().as_ptr(), staging.ids(count));
        // SAFETY: the memory has room for the ids, scales and rows of a piece, of which `count` are used. The
        // stream runs no kernel during this call, and only this stream uses the memory.
        let (scales, rows) = unsafe {
            (
                std::slice::from_raw_parts_mut(start.add(staging.scales_at() as usize).cast::<f32>(), count),
                std::slice::from_raw_parts_mut(start.add(staging.rows_at() as usize), count * self.row_bytes),
            )
        };
        if !self.scales.is_empty() {
            for (scale, id) in scales.iter_mut().zip(ids) {
                *scale = self.scales.get(*id as usize).copied().unwrap_or(1.0);
            }
        }
        self.read_rows(ids, rows, refuses);
    }

    /// Reads rows, so that the system caches their pages. Returns false if the table is being dropped.
    fn read_ahead(&self, ids: &[u64]) -> bool {
        let mut rows = Vec::new();
        for piece in ids.chunks((AHEAD_BYTES / self.row_bytes).max(1)) {
            if self.is_closed.load(Ordering::Relaxed) {
                return false;
            }
            rows.resize(piece.len() * self.row_bytes, 0);
            self.read_rows(piece, &mut rows, false);
        }
        !self.is_closed.load(Ordering::Relaxed)
    }

    /// Reads the row of each id, on several threads.
    fn read_rows(&self, ids: &[u64], rows: &mut [u8], refuses: bool) {
        let (count, row_bytes) = (ids.len(), self.row_bytes);
        let threads = (count / ROWS_OF_THREAD).clamp(1, THREADS);
        let each = 8_usize.min(count.div_ceil(threads)).max(1);
        let next = AtomicUsize::new(0);
        let parts: Vec<Mutex<&mut [u8]>> = rows.chunks_mut(each * row_bytes).map(Mutex::new).collect();
        let work = || {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let Some(part) = parts.get(number) else { return };
                let mut part = part.lock();
                for (row, id) in part.chunks_mut(row_bytes).zip(&ids[number * each..]) {
                    self.read_row(*id, row, refuses);
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..threads {
                scope.spawn(work);
            }
            work();
        });
    }

    fn read_row(&self, id: u64, into: &mut [u8], refuses: bool) {
        let outcome = match id < self.rows {
            true => (self.read)(id as usize, into),
            false if refuses => {
                Err(ErrorKind::RowOutside { row: id as usize, rows: self.rows as usize }.into())
            }
            false => {
                into.fill(0);
                Ok(())
            }
        };
        if let Err(error) = outcome {
            into.fill(0);
            self.error.lock().get_or_insert(error);
        }
    }
}
