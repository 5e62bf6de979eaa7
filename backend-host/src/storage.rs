//! The trait [`Storage`]: access to device memory, which copies and kernels use for RAM and files alike.

use std::fmt::Debug;

use backend_api::Result;

use crate::memory::Passage;

/// A range of device memory to read, and the host memory that receives its bytes.
#[derive(Clone, Copy, Debug)]
pub struct ReadRange {
    /// Offset in the device memory, in bytes.
    pub offset: u64,
    /// Start of the target in host memory.
    pub to: *mut u8,
    /// Length of the range in bytes.
    pub bytes: usize,
}

impl ReadRange {
    /// Returns true if `other` directly follows this range, in device memory and in its target.
    pub fn is_before(&self, other: &Self) -> bool {
        self.offset + self.bytes as u64 == other.offset
            && std::ptr::eq(self.to.wrapping_add(self.bytes), other.to)
    }
}

/// One allocation of device memory: RAM, a file, or pages of the program.
///
/// Callers have checked that all ranges are inside of the memory. Errors name `operation`.
pub trait Storage: Debug + Send + Sync + 'static {
    /// Bytes that a kernel reads into private memory at once.
    const BLOCK_BYTES: usize;
    /// Stride in bytes from which reads of single fields are cheaper than a read of whole elements.
    const SPARSE_STRIDE_BYTES: usize;

    /// Starts asynchronous readahead of a range, if the memory has latency. Several announced reads then take
    /// about as long as one.
    fn announce(&self, _offset: u64, _bytes: usize) {}

    /// Length of the memory in bytes.
    fn bytes(&self) -> u64;

    /// Preferred unit of writes in bytes: writes of whole units, at multiples of it, are fastest.
    fn unit_bytes(&self) -> u64 {
        1
    }

    /// Address of the first byte, if the memory can be accessed in place.
    fn address(&self) -> Option<*mut u8>;

    /// Copies `bytes` bytes at `offset` out of the memory.
    ///
    /// # Safety
    /// `offset + bytes` is at most [`bytes`](Self::bytes); `to` is writable for `bytes` bytes and outside
    /// this memory. Other threads may race.
    unsafe fn read(&self, operation: &'static str, offset: u64, to: *mut u8, bytes: usize) -> Result<()>;

    /// Copies out of the memory as [`read`](Self::read) does, into exclusive memory.
    ///
    /// # Safety
    /// As [`read`](Self::read), for the range.
    unsafe fn read_into(&self, operation: &'static str, offset: u64, into: &mut [u8]) -> Result<()> {
        // SAFETY: the caller has the same obligations; memory of the program is not memory of a device.
        unsafe { self.read(operation, offset, into.as_mut_ptr(), into.len()) }
    }

    /// Returns true if one call of [`read_all`](Self::read_all) is faster than single reads.
    fn reads_together(&self) -> bool {
        false
    }

    /// Copies several ranges out of the memory.
    ///
    /// # Safety
    /// As [`read`](Self::read), for each.
    unsafe fn read_all(&self, operation: &'static str, wanted: &[ReadRange]) -> Result<()> {
        // SAFETY: the caller has the same obligations.
        wanted.iter().try_for_each(|one| unsafe { self.read(operation, one.offset, one.to, one.bytes) })
    }

    /// Copies `bytes` bytes into the memory at `offset`.
    ///
    /// # Safety
    /// `offset + bytes` is at most [`bytes`](Self::bytes); `from` is readable for `bytes` bytes and outside
    /// this memory. Other threads may race.
    unsafe fn write(&self, operation: &'static str, offset: u64, from: *const u8, bytes: usize)
    -> Result<()>;

    /// Copies bytes into the memory, which no other thread changes during the call.
    ///
    /// # Safety
    /// As [`write`](Self::write), for the target.
    unsafe fn store(&self, operation: &'static str, offset: u64, bytes: &[u8]) -> Result<()> {
        // SAFETY: the caller has the same obligations.
        unsafe { self.write(operation, offset, bytes.as_ptr(), bytes.len()) }
    }

    /// Copies from `source`, which may be this memory. The default copies block by block.
    ///
    /// # Safety
    /// Both ranges are inside their memory, and do not overlap.
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
            // SAFETY: the block has room for a part; the caller guarantees the ranges.
            unsafe {
                source.read(operation, source_offset + done as u64, block.as_mut_ptr(), part)?;
                self.store(operation, offset + done as u64, &block[..part])?;
            }
            done += part;
        }
        Ok(())
    }
}
