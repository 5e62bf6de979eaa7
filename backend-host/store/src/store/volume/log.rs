//! Reader of the log of a volume: finds the valid records.

use backend_api::Result;

use super::super::disk::Disk;
use super::super::format::{RECORD_ALIGN, RECORD_HEAD_BYTES, Record};
use super::{corrupted, failed, zeroes};

/// Bytes of one read in the search of a log.
const SEARCH_BYTES: u64 = 1 << 20;

/// The log of a store on its disk.
pub(super) struct LogReader<'a> {
    pub disk: &'a dyn Disk,
    /// Byte offset of the log on the disk. `bytes` is the log's length.
    pub start: u64,
    pub bytes: u64,
    /// Version of the store's file format.
    pub version: u32,
    /// Seed of the checksums of records.
    pub seed: u64,
}

impl LogReader<'_> {
    fn read(&self, at: u64, bytes: &mut [u8]) -> Result<()> {
        self.disk.read_at(self.start + at, bytes).map_err(|cause| failed("open", &cause))
    }

    /// Reads the record at offset `at` of the log, if the record is complete and `is_asked` accepts its
    /// number. Returns the record, its length in bytes and its checksum.
    pub fn record(&self, at: u64, is_asked: impl Fn(u64) -> bool) -> Result<Option<(Record, u64, u64)>> {
        let left = self.bytes.saturating_sub(at);
        if left < RECORD_ALIGN as u64 {
            return Ok(None);
        }
        let mut head = [0; RECORD_HEAD_BYTES];
        self.read(at, &mut head)?;
        let bytes = Record::head(&head, self.seed, self.version)
            .filter(|(number, bytes)| is_asked(*number) && *bytes as u64 <= left)
            .map(|(_, bytes)| bytes);
        let Some(bytes) = bytes else { return Ok(None) };
        let mut encoded: Vec<u8> = zeroes("open", bytes as u64)?;
        self.read(at, &mut encoded)?;
        let decoded = Record::decode(&encoded, self.seed, self.version);
        Ok(decoded.map(|(record, checksum)| (record, bytes as u64, checksum)))
    }

    /// Returns an error if a record with a higher number than `next` follows the supposed end of the log.
    /// Such a record proves that record `next` was stored, and is now damaged.
    pub fn expect_end(&self, end: u64, next: u64) -> Result<()> {
        for piece in (end..self.bytes).step_by(SEARCH_BYTES as usize) {
            let mut bytes: Vec<u8> = zeroes("open", SEARCH_BYTES.min(self.bytes - piece))?;
            self.read(piece, &mut bytes)?;
            for (at, block) in (piece..).step_by(RECORD_ALIGN).zip(bytes.chunks_exact(RECORD_ALIGN)) {
                let head = block.first_chunk().and_then(|head| Record::head(head, self.seed, self.version));
                let is_later = head.is_some_and(|(number, _)| number > next);
                // In version 2 the heads of records have no checksum, so check the whole record.
                if is_later && (self.version > 2 || self.record(at, |number| number > next)?.is_some()) {
                    let detail = format!(
                        "record {next} of the log of the store differs from the data that was written"
                    );
                    return Err(corrupted("open", detail));
                }
            }
        }
        Ok(())
    }

    /// Returns true if record `next` begins at `end`, after the last complete record, whose checksum is
    /// `before`. Then the last complete record and its pages are durable.
    pub fn is_followed(&self, end: u64, next: u64, before: u64) -> Result<bool> {
        if self.version == 2 || end >= self.bytes {
            return Ok(false);
        }
        let mut head = [0; RECORD_HEAD_BYTES];
        self.read(end, &mut head)?;
        Ok(Record::begins(&head, self.seed, next, before))
    }
}
