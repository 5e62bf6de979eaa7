//! A pool of heap memory for temporary copies of data.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::copies::PIECE_BYTES;
use backend_api::{Error, ErrorKind, Result, racy};

/// The least length of pooled memory; shorter memory is allocated for each use.
const SHORT_BYTES: usize = 64 << 10;
/// The most pieces in the pool: some for each thread of a group of a few devices.
const KEPT: usize = 16;

/// A pool of pieces. The system takes longer to map and clear new memory of this length than a bus takes
/// to fill it.
#[derive(Debug, Default)]
pub(super) struct Scratches {
    kept: Mutex<Vec<Vec<u8>>>,
    /// True if bytes are wiped before they are pooled or freed.
    pub(super) wipes: AtomicBool,
}

/// Bytes of unspecified value, which the caller overwrites.
#[derive(Debug)]
pub(super) struct ScratchBytes {
    bytes: Vec<u8>,
    len: usize,
    from: Arc<Scratches>,
}

impl Scratches {
    /// # Errors
    /// [`OutOfMemory`](ErrorKind::OutOfMemory) if the allocation fails.
    pub(super) fn take(self: &Arc<Self>, len: usize) -> Result<ScratchBytes> {
        let is_piece = (SHORT_BYTES..=PIECE_BYTES as usize).contains(&len);
        let mut bytes = if is_piece { self.kept.lock().pop() } else { None }.unwrap_or_default();
        if bytes.len() < len {
            let refused = |_| {
                Error::new(ErrorKind::OutOfMemory, "parity")
                    .with_bytes(len as u64)
                    .with_detail("no host memory for a copy of the former contents")
                    .with_advice("write less at once, or leave more RAM free")
            };
            let room = if is_piece { PIECE_BYTES as usize } else { len };
            bytes.try_reserve_exact(room).map_err(refused)?;
            bytes.resize(room, 0);
        }
        Ok(ScratchBytes { bytes, len, from: Arc::clone(self) })
    }
}

impl ScratchBytes {
    /// Adds a difference to the bytes from `at` on.
    pub(super) fn xor(&mut self, at: usize, other: &[u8]) {
        xor(&mut self[at..at + other.len()], other);
    }
}

/// Stores the XOR of two ranges of bytes in the first.
pub(super) fn xor(to: &mut [u8], other: &[u8]) {
    to.iter_mut().zip(other).for_each(|(byte, other)| *byte ^= other);
}

/// Stores the XOR of two ranges of bytes in a third.
pub(super) fn difference_of(to: &mut [u8], one: &[u8], other: &[u8]) {
    to.iter_mut().zip(one.iter().zip(other)).for_each(|(to, (one, other))| *to = one ^ other);
}

impl Deref for ScratchBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl DerefMut for ScratchBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.len]
    }
}

impl Drop for ScratchBytes {
    fn drop(&mut self) {
        if self.from.wipes.load(Ordering::Acquire) {
            // SAFETY: the bytes are initialised and exclusively borrowed.
            unsafe { racy::wipe(self.bytes.as_mut_ptr(), self.len) };
        }
        if self.bytes.len() == PIECE_BYTES as usize {
            let mut kept = self.from.kept.lock();
            if kept.len() < KEPT {
                kept.push(std::mem::take(&mut self.bytes));
            }
        }
    }
}
