//! Device memory of an OpenCL device: one allocation may consist of several buffers. Also counts bytes.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use backend_api::{Error, ErrorKind, MemoryStatus, Result};
use opencl3::memory::CL_MEM_READ_WRITE;
use vmarray_support::backends::{Account, AccountShare, check_extend, check_extensible};
use vmarray_support::warn;

use crate::core::OpenClCore;
use crate::discovery::{ONE_PIECE, free_bytes, piece_bytes};
use crate::driver::objects::{Memory, Status};
use crate::error;
use crate::retry::{DOUBT, insist};
use crate::uses::Uses;

/// A buffer of the driver for elements. It is wiped before its release if the device wipes memory.
///
/// The owner drops it after all work that uses it is done.
#[derive(Debug)]
pub(crate) struct OwnMemory {
    memory: Memory,
    pub bytes: usize,
    core: Arc<OpenClCore>,
}

impl OwnMemory {
    /// Allocates an OpenCL buffer of `bytes` > 0 bytes.
    pub fn new(core: &Arc<OpenClCore>, bytes: usize) -> Status<Self> {
        let memory = core.context.buffer(CL_MEM_READ_WRITE, bytes)?;
        Ok(Self { memory, bytes, core: Arc::clone(core) })
    }

    fn wipe(&self) -> Status<()> {
        // SAFETY: the buffer was created with this length.
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
            warn::not_wiped("memory", &self.core.info, &reason);
        }
    }
}

/// An allocation of device memory, in pieces (OpenCL buffers). Piece `i` has the bytes from `i << shift` on.
/// An extension creates another value with the same pieces and more. Work in flight uses either value.
#[derive(Debug)]
pub(crate) struct Buffer {
    pub bytes: u64,
    pub shift: u32,
    pub pieces: Vec<Arc<OwnMemory>>,
    pub uses: Arc<Uses>,
    /// Maximum length in bytes.
    most: u64,
    shares: Vec<Arc<AccountShare>>,
}

/// The part of a byte range that is in one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PiecePart {
    pub piece: usize,
    /// Byte offset of the part in its OpenCL buffer.
    pub offset: u64,
    pub bytes: u64,
    /// Byte offset of the part in the whole range.
    pub before: u64,
}

/// Maximum number of pieces of extensible memory, if the driver can allocate pieces of the needed length: the
/// number that a kernel can access at once.
const EXTENSIBLE_PIECES: u64 = 8;
/// Minimum length of a piece in bytes; shorter pieces are not useful.
const PIECE_BYTES_MIN: u64 = 64 << 10;

impl Buffer {
    pub fn new(core: &Arc<OpenClCore>, budget: &Budget, bytes: u64) -> Result<Self> {
        let largest = core.info.largest_allocation_bytes;
        let shift = if bytes <= largest { ONE_PIECE } else { piece_bytes(largest).ilog2() };
        let empty = Self {
            bytes: 0,
            shift,
            pieces: Vec::new(),
            uses: Arc::default(),
            most: bytes,
            shares: Vec::new(),
        };
        empty.with_pieces(core, budget, bytes, bytes)
    }

    /// Allocates `bytes` bytes, which can grow to `most` bytes. OpenCL cannot reserve addresses, so the
    /// memory consists of separate OpenCL buffers (pieces) of equal length.
    pub fn extensible(core: &Arc<OpenClCore>, budget: &Budget, bytes: u64, most: u64) -> Result<Self> {
        check_extensible(bytes, most).map_err(|error| error.on(&core.info))?;
        if most == u64::MAX {
            return Err(Error::new(ErrorKind::Unsupported, "allocate_extensible")
                .with_detail("OpenCL cannot reserve addresses, so memory needs a limit for its growth")
                .with_advice("set a maximum length, or allocate memory of a fixed length")
                .on(&core.info));
        }
        let largest = piece_bytes(core.info.largest_allocation_bytes);
        let wanted = most.div_ceil(EXTENSIBLE_PIECES).checked_next_power_of_two().unwrap_or(largest);
        let shift = wanted.max(PIECE_BYTES_MIN).min(largest).ilog2();
        let empty =
            Self { bytes: 0, shift, pieces: Vec::new(), uses: Arc::default(), most, shares: Vec::new() };
        let whole = bytes
            .checked_next_multiple_of(1 << shift)
            .ok_or_else(|| Error::new(ErrorKind::TooLarge, "allocate").with_bytes(bytes).on(&core.info))?;
        empty.with_pieces(core, budget, bytes, whole)
    }

    /// Returns the memory, extended to at least `bytes` bytes by further pieces; `None` if it is that long.
    pub fn extended(&self, core: &Arc<OpenClCore>, budget: &Budget, bytes: u64) -> Result<Option<Self>> {
        if !check_extend(self.bytes, bytes, self.most).map_err(|error| error.on(&core.info))? {
            return Ok(None);
        }
        let refused = |more| {
            Error::new(ErrorKind::OutOfMemory, "extend")
                .with_bytes(more)
                .with_available_bytes(budget.status(core).usable_bytes)
                .on(&core.info)
        };
        let whole = bytes.checked_next_multiple_of(1 << self.shift).ok_or_else(|| refused(bytes))?;
        let more = whole - ((self.pieces.len() as u64) << self.shift);
        let extended = self.with_pieces(core, budget, bytes, more).map(Some);
        // `TooLarge` is for unused devices. This memory uses a part of the device, so report `OutOfMemory`.
        extended.map_err(|error| if error.kind() == ErrorKind::TooLarge { refused(more) } else { error })
    }

    /// Returns the buffer with `more` additional bytes; then `bytes` bytes are used in all.
    fn with_pieces(&self, core: &Arc<OpenClCore>, budget: &Budget, bytes: u64, more: u64) -> Result<Self> {
        let (mut pieces, mut shares) = (self.pieces.clone(), self.shares.clone());
        shares.push(Arc::new(budget.take(core, more)?));
        let mut left = more;
        while left > 0 {
            let length = left.min(1 << self.shift);
            let length_here = usize::try_from(length)
                .map_err(|_| Error::new(ErrorKind::TooLarge, "allocate").with_bytes(bytes).on(&core.info))?;
            let memory = OwnMemory::new(core, length_here).map_err(|status| {
                core.fail("allocate", ErrorKind::OutOfMemory, status)
                    .with_bytes(more)
                    .with_available_bytes(budget.status(core).usable_bytes)
            })?;
            pieces.push(Arc::new(memory));
            left -= length;
        }
        Ok(Self { bytes, shift: self.shift, pieces, uses: Arc::clone(&self.uses), most: self.most, shares })
    }

    /// Divides a byte range of the memory into parts, each in one OpenCL buffer. The range must be in bounds.
    pub fn parts(&self, offset: u64, bytes: u64) -> impl Iterator<Item = PiecePart> {
        let shift = self.shift;
        let mut before = 0;
        std::iter::from_fn(move || {
            if before == bytes {
                return None;
            }
            let at = offset + before;
            let inside = at & ((1 << shift) - 1);
            let length = (bytes - before).min((1 << shift) - inside);
            let part = PiecePart { piece: (at >> shift) as usize, offset: inside, bytes: length, before };
            before += length;
            Some(part)
        })
    }
}

/// The memory that a device may allocate, and the memory that it has allocated, in bytes.
#[derive(Debug)]
pub(crate) struct Budget {
    bytes: u64,
    head_room_bytes: u64,
    account: Arc<Account>,
}

impl Budget {
    pub fn new(core: &OpenClCore, bytes: Option<u64>) -> Self {
        let total = core.info.total_bytes;
        // Leave memory for the driver, kernels and scratch memory. A device that shares RAM with the host
        // leaves more.
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

    pub fn status(&self, core: &OpenClCore) -> MemoryStatus {
        self.status_with(core, self.account.taken_bytes())
    }

    fn status_with(&self, core: &OpenClCore, taken: u64) -> MemoryStatus {
        let total = core.info.total_bytes;
        let mut free = total.saturating_sub(taken);
        if let Some(reported) = free_bytes(core.handles, core.traits) {
            free = free.min(reported);
        }
        let usable = free.saturating_sub(self.head_room_bytes).min(self.bytes.saturating_sub(taken));
        MemoryStatus::new(total, free, usable)
    }

    fn take(&self, core: &OpenClCore, bytes: u64) -> Result<AccountShare> {
        let most = core.info.total_bytes.min(self.bytes);
        let share = self.account.take(bytes, most, |taken| self.status_with(core, taken).usable_bytes);
        share.map_err(|error| error.on(&core.info))
    }
}
