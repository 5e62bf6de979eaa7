//! File format of a store: its layout, and the guarantees of each part. All numbers are little-endian.
//!
//! ```text
//! 0       superblock of odd generations   } equal, but while one is replaced: then the newer one counts
//! 4096    superblock of even generations  }
//! 8192    places, each as long as a page, rounded up: pages, checksums of blocks, the map, the log
//! ```
//!
//! A *place* is a numbered range of the disk that can hold one page. The map has 16 bytes for each page: the
//! number of the page's place plus one (0 for a page of zeroes), and the page's checksum. The log has a
//! record for each commit since the map was written. A record lists the changed pages, the number of pages,
//! and [three numbers](CommitMetadata) of the store's user. Records begin at multiples of 4096 bytes.
//!
//! # Guarantees
//!
//! - **A superblock** identifies the valid map and log. It has the checksum of the whole map, and the *epoch*
//!   of the log: a random number that no other log has. Both copies are stored before `sync` returns, and
//!   before the log is overwritten. So the store survives damage to one copy; damage to both is an error.
//! - **The closing mark** is a flag of both superblocks, with number and checksum of the last record and the
//!   length of the file. It shows the end of the log: a log that ends earlier is damaged. Opening a store for
//!   writing removes both marks before any other write.
//! - **A record** shows that all earlier records were stored in all files of the group: it is written after
//!   the flush of the previous record, and has the previous record's checksum. The store and the epoch seed
//!   its own checksum, so a reader cannot mistake a record of an earlier log for one of this log.
//! - **A confirmation** is a record without changes, written after the previous record was stored in all
//!   files of the group. The next record overwrites it.
//! - **The commit of a group** of files has one [number and one random token](CommitId), in a record or a
//!   superblock of each file. The group opens at the last commit that all files have; without such a commit,
//!   opening fails. To reach that commit, a reader may drop the last record of a file if no confirmation and
//!   no later record follows. It may also drop a superblock with an empty log if the other copy is the
//!   previous superblock.
//! - **The head of a record** has its own checksum. So a record of several blocks confirms the previous
//!   record even if its other blocks are not stored.
//! - **The end of a log without a closing mark** is the first incomplete record. If the head of a record of
//!   the same epoch with a higher number follows it, the store is damaged. Otherwise the writer ended before
//!   the record was stored, or the record was damaged later. A reader cannot distinguish the two, and uses
//!   the commit before this record. The last complete record is valid in four cases: it is confirmed; the
//!   beginning of the next record follows it; its pages were stored before it; or its pages have the
//!   checksums that it lists.
//! - **The first write** after such an end writes the map and begins a log with a new epoch. So no bytes
//!   after the old end can become part of the new log.
//! - **The checksum of a page** covers its contents, the store and the number of the page. It is the checksum
//!   of the checksums of the page's blocks of 4096 bytes. These are stored [elsewhere](BlockChecksums) on the
//!   disk, so a thread can check one block without the rest of its page. If they are damaged, the thread
//!   reads the whole page. A page of up to one block has one checksum.
//!
//! Format version 2 has no epochs, closing marks, checksums of blocks or numbers of commits, and its records
//! lack the checksum of the previous record. Stores of version 2 can be read, but not written.

use std::ops::Range;

use backend_api::{Error, ErrorKind};
use twox_hash::XxHash3_64;

pub(super) const SUPERBLOCK_BYTES: usize = 4096;
/// Byte offset of the first place on the disk.
pub(super) const HEAD_BYTES: u64 = 2 * SUPERBLOCK_BYTES as u64;
pub(super) const ENTRY_BYTES: usize = 16;
/// Alignment of log records in bytes.
pub(super) const RECORD_ALIGN: usize = 4096;
/// Maximum length of the metadata in bytes.
const METADATA_BYTES_MAX: usize = SUPERBLOCK_BYTES - FIXED_BYTES - 8;

const MAGIC: [u8; 8] = *b"vmarray\x1a";
/// Format version that this code writes, and the newest that it reads.
pub(super) const VERSION: u32 = 3;
/// Oldest format version that this code reads.
pub(super) const VERSION_MIN: u32 = 2;
const FIXED_BYTES: usize = fixed_bytes(VERSION);
/// Number of 64-bit numbers in a superblock.
const NUMBERS: usize = numbers(VERSION);
/// The flags of a superblock.
const HAS_CHECKSUMS: u32 = 1;
const IS_CLOSED: u32 = 2;
const RECORD_MAGIC: u32 = 0x5643_4d52;
pub(super) const RECORD_HEAD_BYTES: usize = record_head_bytes(VERSION);
const CHANGE_BYTES: usize = 24;
/// Length in bytes of a block with its own checksum.
pub(super) const BLOCK_BYTES: usize = 4096;
/// The flags of a record.
const ORDERED: u32 = 1;
const CONFIRMATION: u32 = 2;

const fn numbers(version: u32) -> usize {
    if version == 2 { 13 } else { 19 }
}

const fn fixed_bytes(version: u32) -> usize {
    8 + 4 + 4 + 8 * numbers(version)
}

const fn record_head_bytes(version: u32) -> usize {
    if version == 2 { 56 } else { 88 }
}

/// The note: three numbers of the program, such as an array's length, stored by each commit.
pub type CommitMetadata = [u64; 3];

/// Checksum of bytes of a store or a page, with a seed.
pub(super) fn checksum(seed: u64, bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot_with_seed(seed, bytes)
}

/// Decoder of consecutive little-endian numbers.
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

/// Identity of a commit, which is the same in all files of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CommitId {
    /// Number of the commit, counted from the creation of the store, which is number 0.
    pub number: u64,
    /// A random number, by which commits of two copies of the files differ.
    pub token: u64,
}

impl CommitId {
    /// Returns a new identity of the commit after this one.
    pub fn next(self) -> Self {
        Self { number: self.number + 1, token: random() }
    }
}

pub(super) fn random() -> u64 {
    // The hasher's state has a random seed from the operating system, so its hash is a random number.
    std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0)
}

/// The closing mark of a store: it records the end of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Closing {
    /// Number of the log's last record. If the log is empty, the number before the first record.
    pub last_record: u64,
    /// Checksum of the log's last record; 0 if the log is empty.
    pub checksum: u64,
    /// Length of the store's disk (file) in bytes.
    pub disk_bytes: u64,
}

/// Superblock: the state of a store at one commit, with the places of map and log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Superblock {
    pub version: u32,
    pub generation: u64,
    /// Random number of this store, the seed of its checksums.
    pub id: u64,
    pub page_bytes: u64,
    pub pages: u64,
    /// First place of the map; a place is a numbered, page-sized range of the disk.
    pub map_place: u64,
    pub map_checksum: u64,
    /// First place of the log; a place is a numbered, page-sized range of the disk.
    pub log_place: u64,
    pub log_bytes: u64,
    /// Number of the first log record after the map.
    pub first_record: u64,
    /// Random number that identifies this log, unlike earlier logs of the store.
    pub epoch: u64,
    /// The commit that wrote the page map.
    pub commit: CommitId,
    /// Mark of a closed store. `None` while a writer has the store open, and after a crash of the writer.
    pub closing: Option<Closing>,
    pub note: CommitMetadata,
    /// True if the pages have checksums.
    pub has_checksums: bool,
    /// Metadata that the program stored.
    pub metadata: Vec<u8>,
}

/// Reason why bytes are not a valid superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoSuperblock {
    Foreign,
    Version(u32),
    Damaged,
}

impl Superblock {
    /// Returns the metadata; an error if it does not fit into a superblock.
    pub fn fitting(operation: &'static str, metadata: &[u8]) -> backend_api::Result<Vec<u8>> {
        if metadata.len() <= METADATA_BYTES_MAX {
            return Ok(metadata.to_vec());
        }
        let detail = format!(
            "the metadata has {} bytes, but at most {METADATA_BYTES_MAX} are supported",
            metadata.len()
        );
        Err(Error::new(ErrorKind::InvalidArgument, operation).with_detail(detail))
    }

    pub fn encode(&self) -> [u8; SUPERBLOCK_BYTES] {
        let mut bytes = Vec::with_capacity(SUPERBLOCK_BYTES);
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        let flag = |is_set: bool, flag: u32| if is_set { flag } else { 0 };
        let flags = flag(self.has_checksums, HAS_CHECKSUMS) | flag(self.closing.is_some(), IS_CLOSED);
        bytes.extend(flags.to_le_bytes());
        let closing = self.closing.unwrap_or(Closing { last_record: 0, checksum: 0, disk_bytes: 0 });
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
            self.epoch,
            closing.last_record,
            closing.checksum,
            closing.disk_bytes,
            self.commit.number,
            self.commit.token,
        ];
        bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        debug_assert_eq!(bytes.len(), FIXED_BYTES);
        bytes.extend(&self.metadata);
        assert!(self.metadata.len() <= METADATA_BYTES_MAX, "the metadata is longer than `fitting` permits");
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
        let (Some(version), Some(flags)) = (reader.u32(), reader.u32()) else {
            return Err(NoSuperblock::Damaged);
        };
        if !is_whole {
            return Err(NoSuperblock::Damaged);
        }
        let flags_known = if version == 2 { HAS_CHECKSUMS } else { HAS_CHECKSUMS | IS_CLOSED };
        if !(VERSION_MIN..=VERSION).contains(&version) || flags & !flags_known != 0 {
            return Err(NoSuperblock::Version(version));
        }
        let mut number = || reader.u64().unwrap_or(0);
        let numbers: [u64; NUMBERS] =
            std::array::from_fn(|at| if at < numbers(version) { number() } else { 0 });
        let [generation, id, page_bytes, pages, map_place, map_checksum, numbers @ ..] = numbers;
        let [log_place, log_bytes, first_record, a, b, c, length, numbers @ ..] = numbers;
        let [epoch, last_record, checksum, disk_bytes, number, token] = numbers;
        let metadata =
            usize::try_from(length).ok().and_then(|length| body.get(fixed_bytes(version)..)?.get(..length));
        Ok(Self {
            version,
            generation,
            id,
            page_bytes,
            pages,
            map_place,
            map_checksum,
            log_place,
            log_bytes,
            first_record,
            epoch,
            commit: CommitId { number, token },
            closing: (flags & IS_CLOSED != 0).then_some(Closing { last_record, checksum, disk_bytes }),
            note: [a, b, c],
            has_checksums: flags & HAS_CHECKSUMS != 0,
            metadata: metadata.ok_or(NoSuperblock::Damaged)?.to_vec(),
        })
    }

    /// Seed for the checksums of the log's records.
    pub fn log_seed(&self) -> u64 {
        if self.version == 2 { self.id } else { checksum(self.id, &self.epoch.to_le_bytes()) }
    }

    /// Returns the disk offsets of the superblock's two copies. This generation writes the first offset.
    pub fn offsets(&self) -> [u64; 2] {
        let offsets = [0, SUPERBLOCK_BYTES as u64];
        if self.generation % 2 == 1 { offsets } else { [offsets[1], offsets[0]] }
    }
}

/// New place of a changed page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PageMove {
    pub page: u64,
    /// Number of the page's place (page-sized range of the disk) plus one, or 0 for a page of zeroes.
    pub word: u64,
    pub checksum: u64,
}

/// Log record: the changes of one commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub number: u64,
    /// The commit that wrote this record. In joined stores, the records of one commit have equal ids.
    pub commit: CommitId,
    /// Checksum of the previous record in the log; 0 for the first record.
    pub before: u64,
    /// True if the pages were durable before the record was written. A reader then need not check them.
    pub is_ordered: bool,
    /// True if the record has no changes, and only confirms that the previous record is durable.
    pub is_confirmation: bool,
    /// Number of pages of the store after the commit.
    pub pages: u64,
    pub note: CommitMetadata,
    pub changes: Vec<PageMove>,
}

impl Record {
    /// Length in bytes of a log record with this number of changed pages.
    pub fn bytes(changes: usize) -> usize {
        (RECORD_HEAD_BYTES + changes * CHANGE_BYTES + 8).next_multiple_of(RECORD_ALIGN)
    }

    /// Encodes the record for the log; returns its bytes and its checksum.
    pub fn encode(&self, seed: u64) -> (Vec<u8>, u64) {
        let mut bytes = Vec::with_capacity(Self::bytes(self.changes.len()));
        bytes.extend(RECORD_MAGIC.to_le_bytes());
        let flag = |is_set: bool, flag: u32| if is_set { flag } else { 0 };
        let flags = flag(self.is_ordered, ORDERED) | flag(self.is_confirmation, CONFIRMATION);
        bytes.extend(flags.to_le_bytes());
        let [a, b, c] = self.note;
        let CommitId { number, token } = self.commit;
        let numbers =
            [self.number, self.changes.len() as u64, self.pages, a, b, c, number, token, self.before];
        bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        bytes.extend(checksum(seed, &bytes).to_le_bytes());
        for PageMove { page, word, checksum } in &self.changes {
            bytes.extend([page, word, checksum].iter().flat_map(|number| number.to_le_bytes()));
        }
        let sum = checksum(seed, &bytes);
        bytes.extend(sum.to_le_bytes());
        bytes.resize(Self::bytes(self.changes.len()), 0);
        (bytes, sum)
    }

    /// Returns the number and the length in bytes of the log record that begins with these bytes. `None` if
    /// the bytes are not a complete head of a record.
    pub fn head(head: &[u8; RECORD_HEAD_BYTES], seed: u64, version: u32) -> Option<(u64, usize)> {
        let (body, sum) = head.split_at(RECORD_HEAD_BYTES - 8);
        if version > 2 && sum != checksum(seed, body).to_le_bytes() {
            return None;
        }
        let mut reader = Reader(head);
        let is_record = reader.u32()? == RECORD_MAGIC && reader.u32()? <= ORDERED | CONFIRMATION;
        let (number, changes) = (reader.u64()?, reader.u64()?);
        reader.u64().filter(|pages| changes <= *pages)?;
        let changes = usize::try_from(changes).ok()?.checked_mul(CHANGE_BYTES)?;
        let bytes =
            changes.checked_add(record_head_bytes(version) + 8)?.checked_next_multiple_of(RECORD_ALIGN)?;
        is_record.then_some((number, bytes))
    }

    /// Returns true if these bytes begin the record `number`, after a record with the checksum `before`. The
    /// rest of the record may be incomplete.
    pub fn begins(head: &[u8; RECORD_HEAD_BYTES], seed: u64, number: u64, before: u64) -> bool {
        let (body, _) = head.split_at(RECORD_HEAD_BYTES - 8);
        let found = Self::head(head, seed, VERSION).map(|(number, _)| number);
        found == Some(number) && body.ends_with(&before.to_le_bytes())
    }

    /// Decodes a log record. Returns the record and its checksum; `None` if incomplete or damaged.
    pub fn decode(bytes: &[u8], seed: u64, version: u32) -> Option<(Self, u64)> {
        let mut reader = Reader(bytes);
        let (_, flags, number, count) = (reader.u32()?, reader.u32()?, reader.u64()?, reader.u64()?);
        let (pages, note) = (reader.u64()?, [reader.u64()?, reader.u64()?, reader.u64()?]);
        let [commit_number, token, before] =
            if version == 2 { [0; 3] } else { [reader.u64()?, reader.u64()?, reader.u64()?] };
        let commit = CommitId { number: commit_number, token };
        if version > 2 {
            // Skip the checksum of the head, because the checksum of the whole record covers the head.
            reader.u64()?;
        }
        let changes = usize::try_from(count).ok()?.checked_mul(CHANGE_BYTES)?;
        let end = changes.checked_add(record_head_bytes(version))?;
        let sum = checksum(seed, bytes.get(..end)?);
        if u64::from_le_bytes(*bytes.get(end..)?.first_chunk()?) != sum {
            return None;
        }
        let mut change =
            || Some(PageMove { page: reader.u64()?, word: reader.u64()?, checksum: reader.u64()? });
        let changes = (0..count).map(|_| change()).collect::<Option<_>>()?;
        let (is_ordered, is_confirmation) = (flags & ORDERED != 0, flags & CONFIRMATION != 0);
        Some((Self { number, commit, before, is_ordered, is_confirmation, pages, note, changes }, sum))
    }
}

/// Places of the block checksums on the disk.
///
/// Places are grouped in segments: the first has 512 places, and each later one as many as all before it.
/// Each segment begins with the places for the checksums of all its blocks. Their position follows from the
/// page length alone, and no other data is stored there. A thread writes block checksums together with their
/// pages. They are valid only if they match the checksum of the page.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockChecksums {
    page_bytes: usize,
    place_bytes: u64,
}

impl BlockChecksums {
    const FIRST_BITS: u32 = 9;

    /// Returns the disk layout of block checksums; `None` if the store has none, as for pages of one block.
    pub fn of(superblock: &Superblock, place_bytes: u64) -> Option<Self> {
        let is_long = superblock.page_bytes > BLOCK_BYTES as u64;
        let has_sums = superblock.version >= 3 && superblock.has_checksums && is_long;
        has_sums.then_some(Self { page_bytes: superblock.page_bytes as usize, place_bytes })
    }

    /// Length in bytes of the block checksums of one page.
    pub fn bytes(&self) -> usize {
        self.page_bytes.div_ceil(BLOCK_BYTES) * 8
    }

    /// First and end place of the segment that contains a place.
    fn segment(place: u64) -> Range<u64> {
        match (place >> Self::FIRST_BITS).checked_ilog2() {
            None => 0..1 << Self::FIRST_BITS,
            Some(doublings) => {
                let start = 1 << (Self::FIRST_BITS + doublings);
                start..2 * start
            }
        }
    }

    /// The places (page-sized ranges of the disk) with the block checksums of all places in the same segment
    /// (range of places) as `place`.
    pub fn area(&self, place: u64) -> Range<u64> {
        let Range { start, end } = Self::segment(place);
        start..start + ((end - start) * self.bytes() as u64).div_ceil(self.place_bytes)
    }

    /// The places (page-sized ranges of the disk) with the block checksums of all segments (ranges of places)
    /// that begin before place `end`.
    pub fn areas(&self, end: u64) -> impl Iterator<Item = Range<u64>> + '_ {
        let starts = std::iter::once(0).chain((Self::FIRST_BITS..u64::BITS).map(|bits| 1 << bits));
        starts.take_while(move |start| *start < end).map(|start| self.area(start))
    }

    /// Byte offset of the block checksums of the page at `place`, counted from the start of place 0.
    pub fn offset(&self, place: u64) -> u64 {
        let start = Self::segment(place).start;
        start * self.place_bytes + (place - start) * self.bytes() as u64
    }

    /// Appends the checksum of each block of a page to `sums`.
    pub fn of_page(&self, seed: u64, page: &[u8], sums: &mut Vec<u8>) {
        sums.extend(page.chunks(BLOCK_BYTES).flat_map(|block| checksum(seed, block).to_le_bytes()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn superblock() -> Superblock {
        Superblock {
            version: VERSION,
            generation: 7,
            id: 1,
            page_bytes: 2,
            pages: 3,
            map_place: 4,
            map_checksum: 5,
            log_place: 6,
            log_bytes: 8,
            first_record: 9,
            epoch: 6,
            commit: CommitId { number: 14, token: 15 },
            closing: Some(Closing { last_record: 11, checksum: 12, disk_bytes: 13 }),
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
        let changes = (0..300).map(|page| PageMove { page, word: page * 2, checksum: page * 3 }).collect();
        let (is_ordered, is_confirmation) = (true, false);
        let (number, commit, before, note) = (12, CommitId { number: 4, token: 5 }, 3, [7, 8, 9]);
        let record =
            Record { number, commit, before, is_ordered, is_confirmation, pages: 300, note, changes };
        let (bytes, sum) = record.encode(5);
        assert_eq!(bytes.len(), 8192);
        let head_of = |bytes: &[u8], seed| Record::head(bytes.first_chunk().unwrap(), seed, VERSION);
        assert_eq!((head_of(&bytes, 5), head_of(&bytes, 6)), (Some((12, 8192)), None));
        let (of_fewer_pages, _) = Record { pages: 299, ..record.clone() }.encode(5);
        assert_eq!(head_of(&of_fewer_pages, 5), None);
        assert_eq!(Record::decode(&bytes, 5, VERSION), Some((record, sum)));
        assert_eq!(Record::decode(&bytes, 6, VERSION), None, "of another store or log");
        for at in (4..RECORD_HEAD_BYTES + 300 * CHANGE_BYTES + 8).step_by(5) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x80;
            assert_eq!(Record::decode(&damaged, 5, VERSION), None, "byte {at}");
        }
    }

    /// The places of checksums overlap neither each other nor the places of their pages.
    #[test]
    fn checksums_of_blocks_have_places_of_their_own() {
        for page_bytes in [4100_u64, 8192, 65_536, 1 << 20] {
            let place_bytes = page_bytes.next_multiple_of(4096);
            let superblock = Superblock { page_bytes, ..superblock() };
            let sums = BlockChecksums::of(&superblock, place_bytes).unwrap();
            let mut end = 0;
            for place in 0..5000 {
                let area = sums.area(place);
                let offset = sums.offset(place);
                assert!(offset >= end || place == 0, "after the records of the place before");
                end = offset + sums.bytes() as u64;
                assert!(end <= area.end * place_bytes && offset >= area.start * place_bytes);
            }
            let areas: Vec<_> = sums.areas(5000).collect();
            assert_eq!(areas.len(), 5, "of 512, 512, 1024, 2048 and 4096 places");
        }
        assert!(BlockChecksums::of(&Superblock { page_bytes: 4096, ..superblock() }, 4096).is_none());
    }
}
