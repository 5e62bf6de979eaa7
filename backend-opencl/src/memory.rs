//! Device memory: several buffers behind one name, and the account of what was given out.

use std::ops::Deref;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use backend_api::backends::{Account, Share};
use backend_api::{Error, ErrorKind, MemoryStatus, Result, tell};
use opencl3::memory::CL_MEM_READ_WRITE;
use parking_lot::Mutex;

use crate::core::Core;
use crate::discovery::free_bytes;
use crate::driver::objects::{Memory, Status};
use crate::error;
use crate::queue::Queue;
use crate::retry::{DOUBT, insist};

/// Which submissions touch a piece of memory: the newest of each queue.
#[derive(Debug, Default)]
pub(crate) struct Uses(Mutex<Vec<(Weak<Queue>, u64)>>);

impl Uses {
    /// Notes that submission `value` of `queue`, which is about to happen, touches the memory.
    pub fn note(&self, queue: &Arc<Queue>, value: u64) {
        let mut uses = self.0.lock();
        if let Some((_, newest)) = uses.iter_mut().find(|(known, _)| known.as_ptr() == Arc::as_ptr(queue)) {
            *newest = value;
            return;
        }
        uses.retain(|(known, _)| known.strong_count() > 0);
        uses.push((Arc::downgrade(queue), value));
    }

    /// Blocks until all noted submissions are done or the device is gone. Nobody may note more meanwhile.
    /// False if the device is lost and nobody knows whether they are done: then the memory must be
    /// [kept](Core::keep).
    #[must_use]
    pub fn wait(&self) -> bool {
        let uses = std::mem::take(&mut *self.0.lock());
        let queues = uses.into_iter().filter_map(|(queue, value)| Some((queue.upgrade()?, value)));
        // All of them, also after one that is not known.
        queues.fold(true, |known, (queue, value)| queue.wait_for_noted(value) && known)
    }
}

/// A buffer of the driver with elements in it, wiped before it is given back if the device does that.
///
/// Dropped when all work that touches it is done.
#[derive(Debug)]
pub(crate) struct OwnMemory {
    memory: Memory,
    pub bytes: usize,
    core: Arc<Core>,
}

impl OwnMemory {
    /// `bytes` > 0 bytes.
    pub fn new(core: &Arc<Core>, bytes: usize) -> Status<Self> {
        let memory = core.context.buffer(CL_MEM_READ_WRITE, bytes)?;
        Ok(Self { memory, bytes, core: Arc::clone(core) })
    }

    fn wipe(&self) -> Status<()> {
        // SAFETY: the buffer was made of this length.
        insist(DOUBT, || unsafe { self.core.service.clear(&self.memory, self.bytes) })?;
        insist(DOUBT, || self.core.service.finish())
    }
}

impl Deref for OwnMemory {
    type Target = Memory;

    fn deref(&self) -> &Memory {
        &self.memory
    }
}

impl Drop for OwnMemory {
    fn drop(&mut self) {
        if !self.core.wipes.load(Ordering::Acquire) {
            return;
        }
        let wiped = match self.core.is_lost() {
            true => Err("the device is lost".to_owned()),
            false => self.wipe().map_err(error::name),
        };
        if let Err(reason) = wiped {
            tell::not_wiped("memory", &self.core.info, &reason);
        }
    }
}

/// One allocation. Piece i holds the bytes from `i << shift` on.
#[derive(Debug)]
pub(crate) struct Buffer {
    pub bytes: u64,
    pub shift: u32,
    pub pieces: Vec<OwnMemory>,
    pub uses: Uses,
    _share: Share,
}

/// A part of one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub piece: usize,
    /// Bytes from the start of the piece.
    pub offset: u64,
    pub bytes: u64,
    /// Bytes of the whole range before this part.
    pub before: u64,
}

/// For memory in one piece: every offset is in piece 0.
pub(crate) const ONE_PIECE: u32 = 63;

impl Buffer {
    pub fn new(core: &Arc<Core>, budget: &Budget, bytes: u64) -> Result<Self> {
        let share = budget.take(core, bytes)?;
        let largest = core.info.largest_allocation_bytes;
        // Pieces of a power of two, so that kernels find theirs by a shift.
        let (shift, piece) =
            if bytes <= largest { (ONE_PIECE, bytes) } else { (largest.ilog2(), 1 << largest.ilog2()) };
        let mut pieces = Vec::new();
        let mut left = bytes;
        while left > 0 {
            let length = left.min(piece);
            let length_here = usize::try_from(length)
                .map_err(|_| Error::new(ErrorKind::TooLarge, "allocate").with_bytes(bytes).on(&core.info))?;
            let memory = OwnMemory::new(core, length_here).map_err(|status| {
                core.fail("allocate", ErrorKind::OutOfMemory, status)
                    .with_bytes(bytes)
                    .with_available_bytes(budget.status(core).usable_bytes)
            })?;
            pieces.push(memory);
            left -= length;
        }
        Ok(Self { bytes, shift, pieces, uses: Uses::default(), _share: share })
    }

    /// The parts of a range, in order. The range lies in the buffer.
    pub fn parts(&self, offset: u64, bytes: u64) -> impl Iterator<Item = Part> {
        let shift = self.shift;
        let mut before = 0;
        std::iter::from_fn(move || {
            if before == bytes {
                return None;
            }
            let at = offset + before;
            let inside = at & ((1 << shift) - 1);
            let length = (bytes - before).min((1 << shift) - inside);
            let part = Part { piece: (at >> shift) as usize, offset: inside, bytes: length, before };
            before += length;
            Some(part)
        })
    }
}

/// How much memory a device gives out, and has.
#[derive(Debug)]
pub(crate) struct Budget {
    bytes: u64,
    head_room_bytes: u64,
    account: Arc<Account>,
}

impl Budget {
    pub fn new(core: &Core, bytes: Option<u64>) -> Self {
        let total = core.info.total_bytes;
        // The driver's own needs, kernels, scratch memory, and on a shared memory the host's needs.
        let head_room = match core.info.kind {
            backend_api::DeviceKind::DiscreteGpu => (total / 50).max(384 << 20),
            _ => total / 8,
        };
        Self {
            bytes: bytes.unwrap_or(u64::MAX),
            head_room_bytes: head_room.min(total / 2),
            account: Arc::default(),
        }
    }

    pub fn status(&self, core: &Core) -> MemoryStatus {
        self.status_with(core, self.account.taken_bytes())
    }

    fn status_with(&self, core: &Core, taken: u64) -> MemoryStatus {
        let total = core.info.total_bytes;
        let mut free = total.saturating_sub(taken);
        if let Some(told) = free_bytes(core.handles, core.traits) {
            free = free.min(told);
        }
        let usable = free.saturating_sub(self.head_room_bytes).min(self.bytes.saturating_sub(taken));
        MemoryStatus::new(total, free, usable)
    }

    fn take(&self, core: &Core, bytes: u64) -> Result<Share> {
        let most = core.info.total_bytes.min(self.bytes);
        let share = self.account.take(bytes, most, |taken| self.status_with(core, taken).usable_bytes);
        share.map_err(|error| error.on(&core.info))
    }
}
