//! A part of a file as device memory.

use std::ops::Range;
use std::sync::Arc;

use backend_api::Result;

use super::open_file::OpenFile;
use super::space::Taken;
use crate::medium::Medium;
use crate::memory::{Passage, Wiping};

/// One allocation: ranges of the file, one after the other.
#[derive(Debug)]
pub(super) struct Extent {
    file: Arc<OpenFile>,
    place: Taken,
    bytes: u64,
    wiping: Arc<Wiping>,
}

impl Drop for Extent {
    fn drop(&mut self) {
        if !self.wiping.is_on() {
            return;
        }
        match self.wipe() {
            Ok(()) => self.wiping.count(self.bytes),
            Err(error) => tracing::warn!(%error, path = %self.file.path().display(), "a file was not wiped"),
        }
    }
}

impl Extent {
    /// The bytes of `file` at `place`.
    pub fn new(file: &Arc<OpenFile>, place: Taken, wiping: &Arc<Wiping>) -> Self {
        let bytes = place.ranges().iter().map(|range| range.end - range.start).sum();
        Self { file: Arc::clone(file), place, bytes, wiping: Arc::clone(wiping) }
    }

    /// Writes zeroes where there are others, and has the drive store them: what is still to be stored of a file without
    /// a name is dropped when it is closed.
    fn wipe(&self) -> Result<()> {
        const OPERATION: &str = "release";
        let mut block = Passage(vec![0_u8; Self::BLOCK_BYTES]);
        for range in self.place.ranges() {
            for at in range.clone().step_by(Self::BLOCK_BYTES) {
                let bytes = (range.end - at).min(Self::BLOCK_BYTES as u64) as usize;
                // SAFETY: the block is so long, and this function's own.
                unsafe { self.file.read(OPERATION, at, block.0.as_mut_ptr(), bytes)? };
                if block.0[..bytes].iter().fold(0, |all, byte| all | byte) != 0 {
                    block.0[..bytes].fill(0);
                    // SAFETY: as above.
                    unsafe { self.file.write(OPERATION, at, block.0.as_ptr(), bytes)? };
                }
            }
        }
        self.file.sync()
    }

    /// Where it is in the file.
    pub fn file_ranges(&self) -> Vec<Range<u64>> {
        self.place.ranges().to_vec()
    }

    /// Calls `body` with file offset, number of bytes before, and length, for each piece of `offset..offset + bytes`.
    fn pieces(
        &self,
        offset: u64,
        bytes: usize,
        mut body: impl FnMut(u64, usize, usize) -> Result<()>,
    ) -> Result<()> {
        let (mut skip, mut done) = (offset, 0);
        for range in self.place.ranges() {
            let length = range.end - range.start;
            if skip >= length {
                skip -= length;
                continue;
            }
            let part = (length - skip).min((bytes - done) as u64) as usize;
            if part == 0 {
                break;
            }
            body(range.start + skip, done, part)?;
            done += part;
            skip = 0;
        }
        debug_assert_eq!(done, bytes, "the range was checked to be inside of the buffer");
        Ok(())
    }
}

impl Medium for Extent {
    /// Long enough that a system call, about a microsecond, is cheap against it.
    const BLOCK_BYTES: usize = 256 << 10;
    /// A drive reads this much about as fast as it reads one byte.
    const SPARSE_STRIDE_BYTES: usize = 32 << 10;

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn address(&self) -> Option<*mut u8> {
        None
    }

    unsafe fn read(&self, operation: &'static str, offset: u64, to: *mut u8, bytes: usize) -> Result<()> {
        self.pieces(offset, bytes, |at, done, part| {
            // SAFETY: the caller vouches for the target, of which this is a part.
            unsafe { self.file.read(operation, at, to.wrapping_add(done), part) }
        })
    }

    unsafe fn write(
        &self,
        operation: &'static str,
        offset: u64,
        from: *const u8,
        bytes: usize,
    ) -> Result<()> {
        self.pieces(offset, bytes, |at, done, part| {
            // SAFETY: the caller vouches for the source, of which this is a part.
            unsafe { self.file.write(operation, at, from.wrapping_add(done), part) }
        })
    }

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
