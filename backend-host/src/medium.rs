//! What device memory is made of, as far as copies and kernels need to know.

use std::fmt::Debug;

use backend_api::{Error, ErrorKind, Result};

use crate::memory::Passage;

/// A range that is to be read, and where to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub offset: u64,
    pub to: *mut u8,
    pub bytes: usize,
}

impl Wanted {
    /// Whether the other one goes on where this ends, in both memories.
    pub fn is_before(&self, other: &Self) -> bool {
        self.offset + self.bytes as u64 == other.offset
            && std::ptr::eq(self.to.wrapping_add(self.bytes), other.to)
    }
}

/// One allocation of device memory.
///
/// All ranges were checked before a job was made of them; the methods rely on it. The operation is what
/// errors name.
pub(crate) trait Medium: Debug + Send + Sync + 'static {
    /// How much a kernel reads at a time into memory of its own.
    const BLOCK_BYTES: usize;
    /// From this stride on it is cheaper to read only the wanted field of each element than all that lies
    /// between.
    const SPARSE_STRIDE_BYTES: usize;

    /// Has bytes that are read next brought near, if that takes time and can go on by itself: of several
    /// reads, all then take about as long as one.
    fn announce(&self, _offset: u64, _bytes: usize) {}

    /// Its length.
    fn bytes(&self) -> u64;

    /// What writes are best made of, whole ones at multiples of it.
    fn unit_bytes(&self) -> u64 {
        1
    }

    /// Its first byte, if it can be read and written in place.
    fn address(&self) -> Option<*mut u8>;

    /// Copies out of it.
    ///
    /// # Safety
    /// `offset + bytes` is at most [`bytes`](Self::bytes); `to` is writable for `bytes` bytes and outside of
    /// this memory. Others may race.
    unsafe fn read(&self, operation: &'static str, offset: u64, to: *mut u8, bytes: usize) -> Result<()>;

    /// As [`read`](Self::read), into memory that nobody else has.
    ///
    /// # Safety
    /// As there, for the range.
    unsafe fn read_into(&self, operation: &'static str, offset: u64, into: &mut [u8]) -> Result<()> {
        // SAFETY: passed on; memory of the program is none of a device.
        unsafe { self.read(operation, offset, into.as_mut_ptr(), into.len()) }
    }

    /// Whether several ranges are read sooner by one call of [`read_all`](Self::read_all) than one by one.
    fn reads_together(&self) -> bool {
        false
    }

    /// Copies several ranges out of it.
    ///
    /// # Safety
    /// As [`read`](Self::read), for each.
    unsafe fn read_all(&self, operation: &'static str, wanted: &[Wanted]) -> Result<()> {
        // SAFETY: passed on.
        wanted.iter().try_for_each(|one| unsafe { self.read(operation, one.offset, one.to, one.bytes) })
    }

    /// Copies into it.
    ///
    /// # Safety
    /// `offset + bytes` is at most [`bytes`](Self::bytes); `from` is readable for `bytes` bytes and outside
    /// of this memory. Others may race.
    unsafe fn write(&self, operation: &'static str, offset: u64, from: *const u8, bytes: usize)
    -> Result<()>;

    /// Copies bytes into it that nobody else writes to.
    ///
    /// # Safety
    /// As [`write`](Self::write), for the target.
    unsafe fn store(&self, operation: &'static str, offset: u64, bytes: &[u8]) -> Result<()> {
        // SAFETY: passed on.
        unsafe { self.write(operation, offset, bytes.as_ptr(), bytes.len()) }
    }

    /// Copies from `source` to this memory, which may be the same: block by block, if it has no better way.
    ///
    /// # Safety
    /// Both ranges are inside of their memory, and they do not overlap.
    unsafe fn copy_from(
        &self,
        operation: &'static str,
        offset: u64,
        source: &Self,
        source_offset: u64,
        bytes: usize,
    ) -> Result<()> {
        let mut block = Passage(vec![0_u8; bytes.min(Self::BLOCK_BYTES)]);
        let block = &mut block.0;
        let mut done = 0;
        while done < bytes {
            let part = block.len().min(bytes - done);
            // SAFETY: the block has room for a part; the caller vouches for the ranges.
            unsafe {
                source.read(operation, source_offset + done as u64, block.as_mut_ptr(), part)?;
                self.store(operation, offset + done as u64, &block[..part])?;
            }
            done += part;
        }
        Ok(())
    }
}

/// What it is called when a medium fails in an operation: copies fail as copies, all else as kernels.
pub(crate) fn failure(operation: &'static str) -> Error {
    let is_copy = matches!(operation, "submit" | "read_directly");
    Error::new(if is_copy { ErrorKind::CopyFailed } else { ErrorKind::KernelFailed }, operation)
}
