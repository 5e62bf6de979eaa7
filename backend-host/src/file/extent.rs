//! A part of a file as device memory.

use std::ops::Range;
use std::sync::Arc;

use backend_api::{Error, ErrorKind, Result};

use super::open_file::OpenFile;
use super::space::Taken;
use crate::medium::Medium;

/// One allocation: ranges of the file, one after the other.
#[derive(Debug)]
pub(super) struct Extent {
    file: Arc<OpenFile>,
    place: Taken,
    bytes: u64,
}

impl Extent {
    /// The bytes of `file` at `place`.
    pub fn new(file: &Arc<OpenFile>, place: Taken) -> Self {
        let bytes = place.ranges().iter().map(|range| range.end - range.start).sum();
        Self { file: Arc::clone(file), place, bytes }
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

    fn check_writable(&self, operation: &'static str) -> Result<()> {
        if self.file.is_writable() {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Unsupported, operation).with_detail("the file was opened for reading only"))
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
        let mut block = vec![0_u8; bytes.min(Self::BLOCK_BYTES)];
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
