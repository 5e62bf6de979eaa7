//! Memory of a group's own on the heap, through which bytes of the program pass.

use std::ops::{Deref, DerefMut};

use crate::{Error, ErrorKind, Result, racy};

/// Zeroed bytes, overwritten before they go if so wanted.
#[derive(Debug)]
pub(super) struct Scratch {
    bytes: Vec<u8>,
    wipes: bool,
}

impl Scratch {
    /// # Errors
    /// [`OutOfMemory`](ErrorKind::OutOfMemory).
    pub(super) fn new(bytes: usize, wipes: bool) -> Result<Self> {
        let mut list = Vec::new();
        let refused = |_| {
            Error::new(ErrorKind::OutOfMemory, "parity")
                .with_bytes(bytes as u64)
                .with_detail("of host memory, for what is to be replaced")
                .with_advice("write to less at once, or leave more RAM free")
        };
        list.try_reserve_exact(bytes).map_err(refused)?;
        list.resize(bytes, 0);
        Ok(Self { bytes: list, wipes })
    }

    /// Adds a change to what it changes.
    pub(super) fn xor(&mut self, at: usize, other: &[u8]) {
        xor(&mut self.bytes[at..at + other.len()], other);
    }
}

/// The bitwise difference of two ranges of bytes goes to the first.
pub(super) fn xor(to: &mut [u8], other: &[u8]) {
    to.iter_mut().zip(other).for_each(|(byte, other)| *byte ^= other);
}

impl Deref for Scratch {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl DerefMut for Scratch {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if self.wipes {
            // SAFETY: the bytes are initialised, and borrowed alone.
            unsafe { racy::wipe(self.bytes.as_mut_ptr(), self.bytes.len()) };
        }
    }
}
