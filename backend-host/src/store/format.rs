//! How a store is laid out on its disk. All numbers are little-endian.
//!
//! ```text
//! 0       superblock of odd generations   } each has all that is needed to find the rest; the newest
//! 4096    superblock of even generations  } that is whole counts
//! 8192    places, each as long as a page, rounded up: pages, the map, the log
//! ```
//!
//! The map has for each page 16 bytes: its place plus one, or 0 for a page of zeroes, and its checksum. The
//! log has what changed since the map was written, a record for each commit, with how many pages there are
//! and the note of the store's user at that moment; records begin at multiples of 4096 bytes. The last one
//! may be a confirmation, which changes nothing: it says that the one before it was stored.

use backend_api::{Error, ErrorKind};
use twox_hash::XxHash3_64;

pub(super) const SUPERBLOCK_BYTES: usize = 4096;
/// Where places begin.
pub(super) const HEAD_BYTES: u64 = 2 * SUPERBLOCK_BYTES as u64;
pub(super) const ENTRY_BYTES: usize = 16;
/// What records begin at multiples of.
pub(super) const RECORD_ALIGN: usize = 4096;
/// How long the words of the user of a store may be.
const METADATA_BYTES_MAX: usize = SUPERBLOCK_BYTES - FIXED_BYTES - 8;

const MAGIC: [u8; 8] = *b"vmarray\x1a";
/// The version of the layout that is written, and the newest that is read.
pub(super) const VERSION: u32 = 2;
const FIXED_BYTES: usize = 8 + 4 + 4 + 8 * NUMBERS;
/// How many numbers a superblock has.
const NUMBERS: usize = 13;
const RECORD_MAGIC: u32 = 0x5643_4d52;
pub(super) const RECORD_HEAD_BYTES: usize = 4 + 4 + 8 + 8 + 8 + 24;
const CHANGE_BYTES: usize = 24;
/// The flags of a record.
const ORDERED: u32 = 1;
const CONFIRMATION: u32 = 2;

/// Numbers of the user of a store, which each commit stores together with the pages.
pub type Note = [u64; 3];

/// The checksum of bytes that belong to a store, or to a page of it.
pub(super) fn checksum(seed: u64, bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot_with_seed(seed, bytes)
}

/// Numbers, one after the other.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn u32(&mut self) -> Option<u32> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_le_bytes(*first))
    }

    fn u64(&mut self) -> Option<u64> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*first))
    }
}

/// What a store is at one moment: where to find all of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Superblock {
    pub generation: u64,
    /// A number of this store alone, with which its checksums begin.
    pub id: u64,
    pub page_bytes: u64,
    pub pages: u64,
    /// The first place of the map.
    pub map_place: u64,
    pub map_checksum: u64,
    /// The first place of the log.
    pub log_place: u64,
    pub log_bytes: u64,
    /// The number of the first record that was written after the map.
    pub first_record: u64,
    pub note: Note,
    /// Whether pages have checksums.
    pub has_checksums: bool,
    /// What the user of the store says of it.
    pub metadata: Vec<u8>,
}

/// Why bytes are no superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoSuperblock {
    /// They are of something else.
    Foreign,
    /// Of a version that is not known.
    Version(u32),
    /// They were one.
    Damaged,
}

impl Superblock {
    /// Words of a user, if there is room for them.
    pub fn fitting(operation: &'static str, metadata: &[u8]) -> backend_api::Result<Vec<u8>> {
        if metadata.len() <= METADATA_BYTES_MAX {
            return Ok(metadata.to_vec());
        }
        let detail = format!("a description of {} bytes; {METADATA_BYTES_MAX} at most", metadata.len());
        Err(Error::new(ErrorKind::InvalidArgument, operation).with_detail(detail))
    }

    pub fn encode(&self) -> [u8; SUPERBLOCK_BYTES] {
        let mut bytes = Vec::with_capacity(SUPERBLOCK_BYTES);
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(u32::from(self.has_checksums).to_le_bytes());
        let numbers = [
            self.generation,
            self.id,
            self.page_bytes,
            self.pages,
            self.map_place,
            self.map_checksum,
            self.log_place,
            self.log_bytes,
            self.first_record,
            self.note[0],
            self.note[1],
            self.note[2],
            self.metadata.len() as u64,
        ];
        bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        debug_assert_eq!(bytes.len(), FIXED_BYTES);
        bytes.extend(&self.metadata);
        assert!(self.metadata.len() <= METADATA_BYTES_MAX, "checked when it was given");
        bytes.resize(SUPERBLOCK_BYTES - 8, 0);
        bytes.extend(checksum(0, &bytes).to_le_bytes());
        let mut block = [0; SUPERBLOCK_BYTES];
        block.copy_from_slice(&bytes);
        block
    }

    pub fn decode(bytes: &[u8; SUPERBLOCK_BYTES]) -> Result<Self, NoSuperblock> {
        let Some(rest) = bytes.strip_prefix(&MAGIC) else { return Err(NoSuperblock::Foreign) };
        let (body, sum) = bytes.split_at(SUPERBLOCK_BYTES - 8);
        let is_whole = sum == checksum(0, body).to_le_bytes();
        let mut reader = Reader(rest);
        let mut fields = || {
            let (version, flags) = (reader.u32()?, reader.u32()?);
            Some((version, flags, std::array::from_fn::<_, NUMBERS, _>(|_| reader.u64().unwrap_or(0))))
        };
        let (version, flags, numbers) = fields().ok_or(NoSuperblock::Damaged)?;
        if is_whole && (version != VERSION || flags > 1) {
            return Err(NoSuperblock::Version(version));
        }
        let [generation, id, page_bytes, pages, map_place, map_checksum, numbers @ ..] = numbers;
        let [log_place, log_bytes, first_record, note @ .., length] = numbers;
        if !is_whole || length > METADATA_BYTES_MAX as u64 {
            return Err(NoSuperblock::Damaged);
        }
        Ok(Self {
            generation,
            id,
            page_bytes,
            pages,
            map_place,
            map_checksum,
            log_place,
            log_bytes,
            first_record,
            note,
            has_checksums: flags & 1 != 0,
            metadata: bytes[FIXED_BYTES..][..length as usize].to_vec(),
        })
    }

    /// Where the superblock of this generation is written, and where a second one.
    pub fn offsets(&self) -> [u64; 2] {
        let offsets = [0, SUPERBLOCK_BYTES as u64];
        if self.generation % 2 == 1 { offsets } else { [offsets[1], offsets[0]] }
    }
}

/// Where a page has gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Change {
    pub page: u64,
    /// Its place plus one, or 0.
    pub word: u64,
    pub checksum: u64,
}

/// What one commit changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub number: u64,
    /// Whether the pages were stored before the record was written: then those who find it need not look.
    pub is_ordered: bool,
    /// Whether it changes nothing, and says that the one before it was stored.
    pub is_confirmation: bool,
    /// How many pages there are.
    pub pages: u64,
    pub note: Note,
    pub changes: Vec<Change>,
}

impl Record {
    /// How long a record of so many changes is on the disk.
    pub fn bytes(changes: usize) -> usize {
        (RECORD_HEAD_BYTES + changes * CHANGE_BYTES + 8).next_multiple_of(RECORD_ALIGN)
    }

    pub fn encode(&self, seed: u64) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(Self::bytes(self.changes.len()));
        bytes.extend(RECORD_MAGIC.to_le_bytes());
        let flag = |is_set: bool, flag: u32| if is_set { flag } else { 0 };
        let flags = flag(self.is_ordered, ORDERED) | flag(self.is_confirmation, CONFIRMATION);
        bytes.extend(flags.to_le_bytes());
        let [a, b, c] = self.note;
        let numbers = [self.number, self.changes.len() as u64, self.pages, a, b, c];
        bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        for Change { page, word, checksum } in &self.changes {
            bytes.extend([page, word, checksum].iter().flat_map(|number| number.to_le_bytes()));
        }
        bytes.extend(checksum(seed, &bytes).to_le_bytes());
        bytes.resize(Self::bytes(self.changes.len()), 0);
        bytes
    }

    /// How many bytes the record that begins with these takes, if it can be record `number` at all.
    pub fn length(head: &[u8], number: u64) -> Option<usize> {
        let mut reader = Reader(head);
        let is_record = reader.u32()? == RECORD_MAGIC
            && reader.u32()? <= ORDERED | CONFIRMATION
            && reader.u64()? == number;
        let changes = reader.u64()?;
        reader.u64().filter(|pages| changes <= *pages)?;
        let changes = usize::try_from(changes).ok()?.checked_mul(CHANGE_BYTES)?;
        let bytes = changes.checked_add(RECORD_HEAD_BYTES + 8)?.checked_next_multiple_of(RECORD_ALIGN)?;
        is_record.then_some(bytes)
    }

    /// The record that these bytes are, if it is whole.
    pub fn decode(bytes: &[u8], seed: u64) -> Option<Self> {
        let mut reader = Reader(bytes);
        let (_, flags, number, count) = (reader.u32()?, reader.u32()?, reader.u64()?, reader.u64()?);
        let (pages, note) = (reader.u64()?, [reader.u64()?, reader.u64()?, reader.u64()?]);
        let end = usize::try_from(count).ok()?.checked_mul(CHANGE_BYTES)?.checked_add(RECORD_HEAD_BYTES)?;
        let sum = bytes.get(end..)?.first_chunk()?;
        if u64::from_le_bytes(*sum) != checksum(seed, &bytes[..end]) {
            return None;
        }
        let mut change =
            || Some(Change { page: reader.u64()?, word: reader.u64()?, checksum: reader.u64()? });
        let changes = (0..count).map(|_| change()).collect::<Option<_>>()?;
        let (is_ordered, is_confirmation) = (flags & ORDERED != 0, flags & CONFIRMATION != 0);
        Some(Self { number, is_ordered, is_confirmation, pages, note, changes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn superblock() -> Superblock {
        Superblock {
            generation: 7,
            id: 1,
            page_bytes: 2,
            pages: 3,
            map_place: 4,
            map_checksum: 5,
            log_place: 6,
            log_bytes: 8,
            first_record: 9,
            note: [10, 11, 12],
            has_checksums: true,
            metadata: b"text".to_vec(),
        }
    }

    #[test]
    fn superblocks_that_are_not_whole_are_found_out() {
        let bytes = superblock().encode();
        assert_eq!(Superblock::decode(&bytes), Ok(superblock()));
        for at in 0..SUPERBLOCK_BYTES {
            let mut damaged = bytes;
            damaged[at] ^= 1;
            assert!(Superblock::decode(&damaged).is_err(), "byte {at}");
        }
        assert_eq!(Superblock::decode(&[0; SUPERBLOCK_BYTES]), Err(NoSuperblock::Foreign));
    }

    #[test]
    fn records_that_are_not_whole_are_found_out() {
        let changes = (0..300).map(|page| Change { page, word: page * 2, checksum: page * 3 }).collect();
        let (is_ordered, is_confirmation) = (true, false);
        let record = Record { number: 12, is_ordered, is_confirmation, pages: 300, note: [7, 8, 9], changes };
        let bytes = record.encode(5);
        assert_eq!(bytes.len(), 8192);
        assert_eq!(Record::length(&bytes[..RECORD_HEAD_BYTES], 12), Some(8192));
        assert_eq!(Record::length(&bytes[..RECORD_HEAD_BYTES], 13), None);
        let of_fewer_pages = Record { pages: 299, ..record.clone() }.encode(5);
        assert_eq!(Record::length(&of_fewer_pages[..RECORD_HEAD_BYTES], 12), None);
        assert_eq!(Record::decode(&bytes, 5), Some(record));
        assert_eq!(Record::decode(&bytes, 6), None, "of another store");
        for at in (4..RECORD_HEAD_BYTES + 300 * CHANGE_BYTES + 8).step_by(5) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x80;
            assert_eq!(Record::decode(&damaged, 5), None, "byte {at}");
        }
    }
}
