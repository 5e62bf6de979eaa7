//! An allocation of a file device: a list of byte ranges of the file.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use backend_api::{Error, ErrorKind, Result};
use parking_lot::{Mutex, RwLock};
use vmarray_support::backends::check_extend;
use vmarray_support::warn;

use super::open_file::OpenFile;
use super::space::{AllocatedRanges, FileSpace};
use backend_host::parts::{Passage, Storage, Wiping};

/// One allocation: a list of ranges of the file.
#[derive(Debug)]
pub(super) struct Extent {
    file: Arc<OpenFile>,
    /// All ranges. An extension replaces the list; running work still uses the old list.
    ranges: RwLock<Arc<[Range<u64>]>>,
    /// Owners of the ranges. A thread that extends the memory locks them.
    places: Mutex<Vec<AllocatedRanges>>,
    bytes: AtomicU64,
    most: u64,
    wiping: Arc<Wiping>,
}

impl Drop for Extent {
    fn drop(&mut self) {
        if !self.wiping.is_on() {
            return;
        }
        match self.wipe() {
            Ok(()) => self.wiping.count(self.bytes()),
            Err(error) => warn::not_wiped("memory", &self.file.path().display(), &error),
        }
    }
}

impl Extent {
    /// Creates device memory from the allocated `place` in `file`, extensible to `most` bytes.
    pub fn new(file: &Arc<OpenFile>, place: AllocatedRanges, most: u64, wiping: &Arc<Wiping>) -> Self {
        let bytes = place.ranges().iter().map(|range| range.end - range.start).sum();
        Self {
            file: Arc::clone(file),
            ranges: RwLock::new(place.ranges().into()),
            places: Mutex::new(vec![place]),
            bytes: AtomicU64::new(bytes),
            most,
            wiping: Arc::clone(wiping),
        }
    }

    /// Extends the memory to `bytes` bytes, with free space of the file.
    pub fn extend(&self, space: &Arc<FileSpace>, bytes: u64) -> Result<()> {
        let (mut places, now) = (self.places.lock(), self.bytes());
        if !check_extend(now, bytes, self.most)? {
            return Ok(());
        }
        let place = space.take(bytes - now).map_err(|error| {
            Error::new(ErrorKind::OutOfMemory, "extend")
                .with_bytes(bytes - now)
                .with_available_bytes(error.available_bytes().unwrap_or(0).min(space.free_bytes()))
        })?;
        let mut ranges = self.ranges.read().to_vec();
        ranges.extend_from_slice(place.ranges());
        *self.ranges.write() = ranges.into();
        places.push(place);
        self.bytes.store(bytes, Ordering::Release);
        Ok(())
    }

    fn ranges(&self) -> Arc<[Range<u64>]> {
        Arc::clone(&self.ranges.read())
    }

    /// Overwrites nonzero bytes with zeroes and syncs them, because the system drops unsynced bytes of an
    /// unnamed file on close. Continues after an error.
    ///
    /// # Errors
    /// The first failure that left nonzero bytes.
    fn wipe(&self) -> Result<()> {
        const OPERATION: &str = "release";
        let mut block = Passage(vec![0_u8; Self::BLOCK_BYTES]);
        let mut outcome = Ok(());
        let length = self.file.length();
        for range in &*self.ranges() {
            let end = range.end.min(length);
            for at in (range.start..end).step_by(Self::BLOCK_BYTES) {
                let bytes = (end - at).min(Self::BLOCK_BYTES as u64) as usize;
                // SAFETY: the block has at least this length, and belongs to this function.
                let read = unsafe { self.file.read(OPERATION, at, block.0.as_mut_ptr(), bytes) };
                // Also zero a block that cannot be read, because writing it often succeeds nevertheless.
                if read.is_err() || block.0[..bytes].iter().fold(0, |all, byte| all | byte) != 0 {
                    block.0[..bytes].fill(0);
                    outcome = outcome.and(self.write_zeroes(OPERATION, at, &block.0[..bytes]));
                }
            }
            if range.end > length {
                // Data beyond the end of the truncated file may still be on the drive, but cannot be wiped.
                outcome = outcome.and(Err(self.file.truncated(OPERATION, length)));
            }
        }
        outcome.and(self.file.sync())
    }

    /// Writes a block of zeroes. If the write fails, writes each part of the block separately.
    fn write_zeroes(&self, operation: &'static str, at: u64, zeroes: &[u8]) -> Result<()> {
        const PART_BYTES: usize = 4096;
        // SAFETY: the write covers exactly the slice.
        let write =
            |at: u64, from: &[u8]| unsafe { self.file.write(operation, at, from.as_ptr(), from.len()) };
        if write(at, zeroes).is_ok() {
            return Ok(());
        }
        let mut outcome = Ok(());
        for (i, part) in zeroes.chunks(PART_BYTES).enumerate() {
            // Continue after a failed part, because as much as possible should be wiped.
            outcome = outcome.and(write(at + (i * PART_BYTES) as u64, part));
        }
        outcome
    }

    /// Byte ranges of the file, in the order in which they make up the memory.
    pub fn file_ranges(&self) -> Vec<Range<u64>> {
        self.ranges().to_vec()
    }

    /// Calls `body` for each contiguous piece of `offset..offset + bytes`, with its file offset, the number
    /// of bytes before it, and its length.
    fn pieces(
        &self,
        offset: u64,
        bytes: usize,
        mut body: impl FnMut(u64, usize, usize) -> Result<()>,
    ) -> Result<()> {
        let (mut skip, mut done) = (offset, 0);
        for range in &*self.ranges() {
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
        debug_assert_eq!(done, bytes, "the range extends beyond the buffer");
        Ok(())
    }
}

impl Storage for Extent {
    /// Long compared with the cost of a system call, about a microsecond.
    const BLOCK_BYTES: usize = 256 << 10;
    /// A drive reads this many bytes almost as fast as one byte.
    const SPARSE_STRIDE_BYTES: usize = 32 << 10;

    fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Acquire)
    }

    fn address(&self) -> Option<*mut u8> {
        None
    }

    fn announce(&self, offset: u64, bytes: usize) {
        let announced = self.pieces(offset, bytes, |at, _, part| {
            self.file.announce(at, part);
            Ok(())
        });
        debug_assert!(announced.is_ok(), "a read-ahead hint failed");
    }

    unsafe fn read(&self, operation: &'static str, offset: u64, to: *mut u8, bytes: usize) -> Result<()> {
        self.pieces(offset, bytes, |at, done, part| {
            // SAFETY: the caller guarantees the target, and this is a part of it.
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
            // SAFETY: the caller guarantees the source, and this is a part of it.
            unsafe { self.file.write(operation, at, from.wrapping_add(done), part) }
        })
    }
}

#[cfg(all(test, unix, not(miri)))]
mod tests {
    use super::*;

    /// Simulates a file of which all reads fail, and all writes succeed.
    #[test]
    fn unreadable_extents_are_wiped() {
        const BYTES: u64 = 600_000;
        let path = std::env::temp_dir().join(vmarray_support::private_dir::random_name());
        let mut file = OpenFile::create(&path, BYTES).unwrap();
        std::fs::write(&path, vec![7; BYTES as usize]).unwrap();
        file.write_only();
        let (space, wiping) = (FileSpace::new(BYTES), Arc::<Wiping>::default());
        wiping.start();
        drop(Extent::new(&Arc::new(file), space.take(BYTES - 1).unwrap(), BYTES, &wiping));
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(bytes.iter().filter(|&&byte| byte != 0).count(), 1, "the last byte is not part of it");
        assert_eq!(wiping.bytes(), BYTES - 1);
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn the_rest_of_a_cut_file_is_wiped() {
        let path = std::env::temp_dir().join(vmarray_support::private_dir::random_name());
        let file = Arc::new(OpenFile::create(&path, 600_000).unwrap());
        std::fs::write(&path, vec![7; 300_001]).unwrap();
        let (space, wiping) = (FileSpace::new(600_000), Arc::<Wiping>::default());
        wiping.start();
        let extent = Extent::new(&file, space.take(600_000).unwrap(), 600_000, &wiping);
        let error = extent.wipe().unwrap_err();
        assert!(error.detail().contains("truncated"), "{error}");
        drop(extent);
        assert_eq!((std::fs::read(&path).unwrap(), wiping.bytes()), (vec![0; 300_001], 0));
        std::fs::remove_file(path).unwrap();
    }
}
