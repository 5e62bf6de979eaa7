//! Recovery of a volume: reads the state of the last commit from its disk when the store is opened.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use backend_api::{Error, ErrorKind, Result};
use parking_lot::{Mutex, RwLock};

use super::super::disk::Disk;
use super::super::format::{
    BLOCK_BYTES, BlockChecksums, CommitId, CommitMetadata, ENTRY_BYTES, HEAD_BYTES, NoSuperblock, PageMove,
    RECORD_ALIGN, Record, SUPERBLOCK_BYTES, Superblock, VERSION, VERSION_MIN, checksum,
};
use super::log::LogReader;
use super::sums::Sums;
use super::table::WordTable;
use super::{Changed, CommitState, GROUPS, Space, Volume, VolumePlan, corrupted, failed, zeroes};
use crate::extent_allocator::ExtentAllocator;

/// Bounds for the length of the log in bytes; within them it is as long as the map.
const LOG_BYTES: std::ops::RangeInclusive<u64> = 64 << 10..=256 << 20;
/// Maximum length of a page in bytes.
pub(in super::super) const PAGE_BYTES_MAX: u64 = 1 << 30;
/// Alignment of places in bytes.
const SECTOR_BYTES: u64 = 512;
/// Upper bound of commit numbers.
const NUMBER_MAX: u64 = 1 << 62;

/// Changes at the end of the log that may not be durable.
#[derive(Debug, Default)]
struct Doubts {
    /// Changes that are visible, but perhaps not durable.
    changes: Vec<PageMove>,
    /// Places that are still needed if the changes turn out not to be durable.
    before: Vec<u64>,
}

/// Complete records of a log, up to the last one.
struct LogRecords {
    /// The last record, not applied yet, and its length in bytes.
    last: Option<(Record, u64)>,
    /// Bytes of all records before the last one.
    used: u64,
    /// Checksums of the last record, and of the last record that is no confirmation.
    checksums: [u64; 2],
}

/// State of a store, as read from superblock and log.
struct Found {
    stored: Superblock,
    table: WordTable,
    note: CommitMetadata,
    /// The last commit; also the previous one, if other volumes of the group may lack the last one.
    id: CommitId,
    before: Option<CommitId>,
    /// The other superblock, if it belongs to the previous commit.
    older: Option<Superblock>,
    map: Range<u64>,
    log_used: u64,
    next_record: u64,
    /// Checksum of the last valid record.
    last_checksum: u64,
    is_closed: bool,
    used: Vec<u64>,
    doubts: Doubts,
    are_superblocks_equal: bool,
    damaged_superblocks: u32,
    unfinished_pages: usize,
}

struct Superblocks {
    newest: Superblock,
    /// The other superblock, if it differs.
    older: Option<Superblock>,
    damaged: u32,
    are_equal: bool,
}

/// End of a volume's log, which the first commit of a writer needs.
pub(super) struct FoundEnd {
    /// Bytes that overwrite the beginning of a commit that other volumes of the group lack, and their offset
    /// on the disk.
    dropped: Option<(u64, Vec<u8>)>,
    doubts: Doubts,
    are_superblocks_equal: bool,
    is_closed: bool,
}

/// A store's disk whose state was read, before its volume is opened.
pub(crate) struct OpenedVolume {
    disk: Box<dyn Disk>,
    found: Found,
    /// State according to the other superblock, if it can be read.
    older: Option<Found>,
}

impl OpenedVolume {
    /// Reads the state of the last commit from a store's disk.
    pub fn read(disk: Box<dyn Disk>, is_read_only: bool) -> Result<Self> {
        let found = Found::on(&*disk)?;
        if found.stored.version < VERSION && !is_read_only {
            let detail = format!("the store has version {}, which can only be read", found.stored.version);
            let advice = "open it for reading only, or convert it by `vmarray-monitor --convert FILE`";
            return Err(wrong(detail).with_advice(advice));
        }
        let older = match &found.older {
            Some(older) => found.again(&*disk, older.clone(), true),
            None => return Ok(Self { disk, found, older: None }),
        };
        // Ignore damage of the older superblock: the older state matters only if another volume needs it.
        match older {
            Err(error) if error.kind() != ErrorKind::Corrupted => Err(error),
            older => Ok(Self { disk, found, older: older.ok() }),
        }
    }

    pub fn metadata(&self) -> &[u8] {
        &self.found.stored.metadata
    }

    pub fn page_bytes(&self) -> usize {
        self.found.stored.page_bytes as usize
    }

    /// Returns the commits at which the volume can be opened, the last one first.
    pub(super) fn commits(&self) -> Vec<CommitId> {
        let states = std::iter::once(&self.found).chain(&self.older);
        states.flat_map(|found| std::iter::once(found.id).chain(found.before)).collect()
    }

    /// Returns the volume in the state of one of its [commits](Self::commits).
    pub(super) fn at(self, id: CommitId, is_read_only: bool) -> Result<(Volume, FoundEnd)> {
        let Self { disk, found, older } = self;
        let is_last = found.id == id || found.before == Some(id);
        let (mut found, mut dropped) = match older {
            Some(older) if !is_last => {
                let [_, other] = older.stored.offsets();
                let block = older.stored.encode().to_vec();
                (older, Some((other, block)))
            }
            _ => (found, None),
        };
        if found.id != id {
            found = found.again(&*disk, found.stored.clone(), false)?;
            let place_bytes = place_bytes(found.stored.page_bytes);
            let record = HEAD_BYTES + found.stored.log_place * place_bytes + found.log_used;
            dropped = dropped.or_else(|| Some((record, vec![0; RECORD_ALIGN])));
        }
        if found.unfinished_pages > 0 {
            let pages = found.unfinished_pages;
            tracing::warn!(
                pages,
                "an unfinished commit was rolled back: these pages have their previous contents"
            );
        }
        let doubts = std::mem::take(&mut found.doubts);
        let (are_superblocks_equal, is_closed) = (found.are_superblocks_equal, found.is_closed);
        let volume = Volume::with(disk, found, is_read_only)?;
        Ok((volume, FoundEnd { dropped, doubts, are_superblocks_equal, is_closed }))
    }
}

/// Report of [`check`](crate::StoreDevice::check) on a store file.
///
/// ```
/// use vmarray_store::StoreDevice;
/// # let path = std::env::temp_dir().join(format!("vmarray-report-{}", std::process::id()));
/// drop(StoreDevice::create(&path, 4096, 10, b"ten pages", [0; 3])?);
/// let report = StoreDevice::check(&path)?;
/// assert!(report.damaged_pages.is_empty() && report.damaged_superblocks == 0 && report.is_closed);
/// assert_eq!((report.pages, report.stored_pages, &*report.metadata), (10, 0, &b"ten pages"[..]));
/// # std::fs::remove_file(&path).unwrap();
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreReport {
    /// Number of pages of the store.
    pub pages: u64,
    /// Number of pages with nonzero contents.
    pub stored_pages: u64,
    /// Length of a page in bytes.
    pub page_bytes: u64,
    /// Number of free bytes in the store's file.
    pub free_bytes: u64,
    /// The damaged pages: the number of each page, with a description of the damage.
    pub damaged_pages: Vec<(u64, String)>,
    /// Number of damaged superblocks, 0 to 2. If only one is damaged, no data is lost.
    pub damaged_superblocks: u32,
    /// True if the last writer closed the store. If not, the process was killed, or the power failed; the
    /// store has the state of the last complete commit.
    pub is_closed: bool,
    /// Version of the file format: 3, or 2, which can be read but not written.
    pub version: u32,
    /// Number of pages of an unfinished commit. The store ignores this commit: these pages have their earlier
    /// contents.
    pub unfinished_pages: usize,
    /// Metadata that the program stored.
    pub metadata: Vec<u8>,
    /// The [note](crate::StoreDevice::note) of three numbers that the program stored with the last commit.
    pub note: CommitMetadata,
}

/// Returns the length in bytes of the log of a store with `pages` pages.
pub(super) fn log_bytes(pages: u64, place_bytes: u64) -> u64 {
    let bytes = pages.saturating_mul(ENTRY_BYTES as u64).clamp(*LOG_BYTES.start(), *LOG_BYTES.end());
    bytes.next_multiple_of(place_bytes)
}

fn place_bytes(page_bytes: u64) -> u64 {
    let block_bytes = BLOCK_BYTES as u64;
    page_bytes.next_multiple_of(if page_bytes < block_bytes { SECTOR_BYTES } else { block_bytes })
}

/// Returns true if a file can have this number of pages.
fn is_possible(pages: u64, page_bytes: u64) -> bool {
    pages.checked_mul(page_bytes).is_some_and(|bytes| bytes <= i64::MAX as u64)
}

fn wrong(detail: impl Into<String>) -> Error {
    Error::new(ErrorKind::WrongFormat, "open").with_detail(detail)
}

impl Volume {
    /// Creates a volume on an empty disk. The volume is durable when the call returns.
    pub fn create(disk: Box<dyn Disk>, plan: VolumePlan) -> Result<Self> {
        const OPERATION: &str = "create";
        let page_bytes = plan.page_bytes as u64;
        let place_bytes = place_bytes(page_bytes);
        let log_bytes = log_bytes(plan.pages, place_bytes);
        let mut stored = Superblock {
            version: VERSION,
            generation: 1,
            id: plan.id,
            page_bytes,
            pages: plan.pages,
            map_place: u64::MAX,
            map_checksum: 0,
            log_place: 0,
            log_bytes,
            first_record: 1,
            epoch: 1,
            commit: CommitId::default(),
            closing: None,
            note: plan.note,
            has_checksums: plan.has_checksums,
            metadata: Superblock::fitting(OPERATION, &plan.metadata)?,
        };
        let table = WordTable::new(OPERATION, plan.pages)?;
        let refused = |cause: std::io::Error| failed(OPERATION, &cause);
        // Put the log behind the first block checksums.
        let kept = BlockChecksums::of(&stored, place_bytes).map_or(0..0, |sums| sums.area(0));
        stored.log_place = kept.end;
        let end = kept.end + log_bytes / place_bytes;
        disk.reserve(HEAD_BYTES + end * place_bytes).map_err(refused)?;
        let (block, [own, other]) = (stored.encode(), stored.offsets());
        disk.write_at(own, &block).map_err(refused)?;
        disk.sync().map_err(refused)?;
        disk.write_at(other, &block).map_err(refused)?;
        let used = (0..end).collect();
        let found = Found {
            stored,
            table,
            note: plan.note,
            id: CommitId::default(),
            before: None,
            older: None,
            map: 0..0,
            log_used: 0,
            next_record: 1,
            last_checksum: 0,
            is_closed: false,
            used,
            doubts: Doubts::default(),
            are_superblocks_equal: true,
            damaged_superblocks: 0,
            unfinished_pages: 0,
        };
        let volume = Self::with(disk, found, false)?;
        if plan.pages > 0 {
            volume.commit.lock().spare = Some(volume.take_map(plan.pages)?);
        }
        Ok(volume)
    }

    /// Removes a commit that other volumes of the group lack, before any write reuses its places.
    pub(super) fn drop_commit(&self, end: &FoundEnd) -> Result<()> {
        let Some((offset, bytes)) = &end.dropped else { return Ok(()) };
        let written = self.disk.write_at(*offset, bytes);
        written.and_then(|()| self.disk.sync()).map_err(|cause| failed("open", &cause))
    }

    /// Prepares an opened volume for writing. Then all volumes of the group commit.
    pub(super) fn begin_to_write(&self, commit: &mut CommitState, end: FoundEnd) -> Result<()> {
        let FoundEnd { doubts, are_superblocks_equal, is_closed, .. } = end;
        // Visible data may only be in the system's page cache, and the system reports a failed write only
        // once. So write all unproven data again, before the pages that it replaces are freed.
        if !are_superblocks_equal {
            self.store_superblock(commit)?;
        }
        if is_closed {
            // Remove the mark of a closed store before any other write, because later writes change the
            // store.
            let superblock = Superblock {
                generation: commit.stored.generation + 1,
                closing: None,
                ..commit.stored.clone()
            };
            self.replace_superblock("open", commit, superblock)?;
        } else {
            // Begin a log with a new epoch (random number). Then bytes after the end of the old log cannot
            // become part of the new log.
            (commit.needs_map, commit.is_suspect) = (true, true);
            commit.changes = doubts.changes;
            commit.left.extend(doubts.before.into_iter().map(|place| place..place + 1));
        }
        Ok(())
    }

    /// Allocates places for the next map.
    pub(super) fn take_spare(&self, commit: &mut CommitState) {
        if self.pages() > 0 && commit.spare.is_none() {
            // Ignore an error: on a full disk, space for a second page map is reserved only after a commit
            // frees space.
            commit.spare = self.take_map(self.pages()).ok();
        }
    }

    /// Reads the whole disk of a store, and reports its damage.
    pub fn check(disk: Box<dyn Disk>) -> Result<StoreReport> {
        let found = Found::on(&*disk)?;
        let mut report = StoreReport {
            pages: found.table.pages(),
            page_bytes: found.stored.page_bytes,
            damaged_superblocks: found.damaged_superblocks,
            is_closed: found.is_closed,
            version: found.stored.version,
            unfinished_pages: found.unfinished_pages,
            metadata: found.stored.metadata.clone(),
            note: found.note,
            ..StoreReport::default()
        };
        let volume = Self::with(disk, found, true)?;
        report.free_bytes = volume.free_bytes();
        for page in (0..volume.pages()).filter(|page| volume.has_contents(*page)) {
            report.stored_pages += 1;
            let offset = page * volume.page_bytes as u64;
            if let Err(error) = volume.read("check", offset, volume.page_bytes, |_, _| ()) {
                report.damaged_pages.push((page, error.to_string()));
            }
        }
        Ok(report)
    }

    fn with(disk: Box<dyn Disk>, found: Found, is_read_only: bool) -> Result<Self> {
        let refused = |cause: std::io::Error| failed("open", &cause);
        let reserved = disk.len().map_err(refused)?;
        let moment = (found.table.pages(), found.note);
        let place_bytes = place_bytes(found.stored.page_bytes);
        Ok(Self {
            page_bytes: found.stored.page_bytes as usize,
            place_bytes,
            sums: Sums::of(&found.stored, place_bytes),
            is_read_only,
            table: found.table,
            note: Mutex::new(found.note),
            gate: Arc::default(),
            groups: (0..GROUPS).map(|_| RwLock::new(Changed::default())).collect(),
            space: Mutex::new(Space {
                free: ExtentAllocator::except(found.used),
                reserved,
                is_closed: false,
            }),
            commit: Mutex::new(CommitState {
                stored: found.stored,
                id: found.id,
                map: found.map,
                log_used: found.log_used,
                next_record: found.next_record,
                last_checksum: found.last_checksum,
                has_tail: false,
                noted: found.note,
                changes: Vec::new(),
                moment,
                left: Vec::new(),
                metadata: None,
                is_suspect: false,
                needs_map: false,
                spare: None,
            }),
            buffers: Mutex::default(),
            disk,
        })
    }
}

impl Found {
    /// Reads superblocks, map and log.
    fn on(disk: &dyn Disk) -> Result<Self> {
        let refused = |cause: std::io::Error| failed("open", &cause);
        if disk.len().map_err(refused)? < HEAD_BYTES {
            return Err(wrong("the file is too short for a store"));
        }
        Self::of(disk, Self::superblocks(|offset, bytes| disk.read_at(offset, bytes).map_err(refused))?, true)
    }

    /// Reads the disk again by one of its superblocks, with or without a last record that other volumes may
    /// lack.
    fn again(&self, disk: &dyn Disk, superblock: Superblock, keeps_last: bool) -> Result<Self> {
        let are_equal = self.are_superblocks_equal && superblock == self.stored;
        let damaged = self.damaged_superblocks;
        Self::of(disk, Superblocks { newest: superblock, older: None, damaged, are_equal }, keeps_last)
    }

    /// Reads map and log by the newest superblock.
    fn of(disk: &dyn Disk, superblocks: Superblocks, keeps_last: bool) -> Result<Self> {
        let Superblocks { newest: stored, older, damaged, are_equal: are_superblocks_equal } = superblocks;
        let refused = |cause: std::io::Error| failed("open", &cause);
        let length = disk.len().map_err(refused)?;
        let read = |offset: u64, bytes: &mut [u8]| disk.read_at(offset, bytes).map_err(refused);
        if let Some(closing) = &stored.closing
            && (length < closing.disk_bytes || length > closing.disk_bytes && are_superblocks_equal)
        {
            let detail = format!("the file has {length} bytes instead of {}", closing.disk_bytes);
            let is_cut = length < closing.disk_bytes;
            return Err(corrupted("open", format!("{detail}: another program has changed its length"))
                .with_advice(if is_cut {
                    "restore the file from a copy"
                } else {
                    "truncate the file to that length: the appended bytes are not part of the store"
                }));
        }
        let place_bytes = place_bytes(stored.page_bytes);
        let places = (length - HEAD_BYTES) / place_bytes;
        let offset = |place: u64| HEAD_BYTES + place * place_bytes;
        // Returns the places (page-sized ranges of the disk) of `bytes` bytes, starting at the place `first`.
        let area = |first: u64, bytes: u64| {
            let end = first.checked_add(bytes.div_ceil(place_bytes)).filter(|end| *end <= places);
            end.map(|end| first..end)
                .ok_or_else(|| corrupted("open", "the file is shorter than its superblock says"))
        };
        let log = area(stored.log_place, stored.log_bytes)?;
        let table = WordTable::new("open", stored.pages)?;
        let mut map = 0..0;
        if stored.map_place != u64::MAX {
            let bytes = stored.pages.saturating_mul(ENTRY_BYTES as u64);
            map = area(stored.map_place, bytes)?;
            let mut encoded: Vec<u8> = zeroes("open", bytes)?;
            read(offset(map.start), &mut encoded)?;
            if checksum(stored.id, &encoded) != stored.map_checksum {
                return Err(corrupted("open", "the page table differs from the data that was written"));
            }
            let number = |half: &[u8]| half.try_into().map_or(0, u64::from_le_bytes);
            for (page, entry) in (0..).zip(encoded.chunks_exact(ENTRY_BYTES)) {
                table.word(page).store(number(&entry[..8]), Ordering::Relaxed);
                table.sum(page).store(number(&entry[8..]), Ordering::Relaxed);
            }
        }
        let mut found = Self {
            next_record: stored.first_record,
            note: stored.note,
            id: stored.commit,
            before: None,
            older: None,
            stored,
            table,
            map,
            log_used: 0,
            last_checksum: 0,
            is_closed: false,
            used: Vec::new(),
            doubts: Doubts::default(),
            are_superblocks_equal,
            damaged_superblocks: damaged,
            unfinished_pages: 0,
        };
        let (start, bytes) = (offset(found.stored.log_place), found.stored.log_bytes);
        let (version, seed) = (found.stored.version, found.stored.log_seed());
        found.replay(&LogReader { disk, start, bytes, version, seed }, offset, places, keeps_last)?;
        // With records in the log, all volumes have stored this superblock, so the older state is not needed.
        let has_records = found.next_record > found.stored.first_record || found.unfinished_pages > 0;
        found.older = older.filter(|_| !has_records && found.stored.closing.is_none());
        found.used = found.used_places(places, log)?;
        Ok(found)
    }

    /// Reads the superblocks, at least one of which is valid.
    fn superblocks(read: impl Fn(u64, &mut [u8]) -> Result<()>) -> Result<Superblocks> {
        let mut blocks = [[0; SUPERBLOCK_BYTES]; 2];
        for (block, at) in blocks.iter_mut().zip(0..) {
            read(at * SUPERBLOCK_BYTES as u64, block)?;
        }
        let decoded = [0, 1].map(|at: usize| Superblock::decode(&blocks[at]));
        let damaged = decoded.iter().filter(|block| block.is_err()).count() as u32;
        // Report a newer version of a superblock, because a newer program can open the store.
        if let Some(Err(NoSuperblock::Version(version))) =
            decoded.iter().find(|block| matches!(block, Err(NoSuperblock::Version(_))))
        {
            let detail = format!(
                "the store has version {version}, but this program reads versions {VERSION_MIN} to \
                         {VERSION}"
            );
            return Err(wrong(detail).with_advice(if *version < VERSION {
                "use the version of this library that created the store"
            } else {
                "use a newer version of this library"
            }));
        }
        if let [Ok(one), Ok(other)] = &decoded {
            let is_same = (one.version, one.id, one.page_bytes, one.has_checksums)
                == (other.version, other.id, other.page_bytes, other.has_checksums);
            if !is_same || one.generation.abs_diff(other.generation) > 1 {
                return Err(corrupted("open", "the two superblocks of the store contradict each other"));
            }
        }
        let newest = decoded.iter().flatten().max_by_key(|block| block.generation);
        let Some(newest) = newest else {
            return Err(if decoded.contains(&Err(NoSuperblock::Damaged)) {
                corrupted("open", "both superblocks of the store differ from the data that was written")
            } else {
                wrong("the file is not a store of this library")
            });
        };
        let sane = (1..=PAGE_BYTES_MAX).contains(&newest.page_bytes)
            && is_possible(newest.pages, newest.page_bytes)
            && newest.log_bytes >= *LOG_BYTES.start()
            && newest.log_bytes <= *LOG_BYTES.end() + 2 * PAGE_BYTES_MAX
            && newest.generation < NUMBER_MAX
            && newest.commit.number < NUMBER_MAX
            && newest.first_record < NUMBER_MAX;
        if !sane {
            return Err(corrupted("open", "the superblock of the store has invalid numbers"));
        }
        let older = decoded.iter().flatten().find(|block| *block != newest).cloned();
        Ok(Superblocks { newest: newest.clone(), older, damaged, are_equal: blocks[0] == blocks[1] })
    }

    /// Applies the log up to its [proven](super::super::format) end.
    fn replay(
        &mut self,
        log: &LogReader<'_>,
        offset: impl Fn(u64) -> u64,
        places: u64,
        keeps_last: bool,
    ) -> Result<()> {
        let LogRecords { last, used, checksums } = self.records(log, places)?;
        let [last_checksum, checksum_before] = checksums;
        let is_confirmed = last.as_ref().is_some_and(|(record, _)| record.is_confirmation);
        // Compute the number of the last record with changes.
        let number = last.as_ref().map_or(self.stored.first_record, |(record, _)| record.number + 1) - 1;
        let number = number - u64::from(is_confirmed);
        let checksum = if is_confirmed { checksum_before } else { last_checksum };
        let end = used + last.as_ref().map_or(0, |(_, bytes)| *bytes);
        self.last_checksum = checksum;
        if let Some(closing) = self.stored.closing {
            self.is_closed = number == closing.last_record;
            if number < closing.last_record || self.is_closed && checksum != closing.checksum {
                let detail = format!(
                    "the log of the store ends at record {number}, but its last record was {}",
                    closing.last_record
                );
                return Err(corrupted("open", detail));
            }
        }
        if !self.is_closed {
            // The next record would overwrite the confirmation (a record without changes), so no later record
            // may follow.
            log.expect_end(end, number + 1)?;
        }
        let Some((record, bytes)) = last else { return Ok(()) };
        if record.is_confirmation {
            // A confirmation proves the previous record: its writer waited until the drive had stored that
            // record. The confirmation itself need not be durable, because the next record overwrites it.
            return Ok(());
        }
        if self.is_closed {
            return self.apply(&record, bytes, places);
        }
        let is_followed = log.is_followed(end, number + 1, self.last_checksum)?;
        let is_stored = record.is_ordered || is_followed;
        let is_kept = keeps_last || is_followed;
        if !is_kept || !is_stored && !self.are_stored(&record, log.disk, &offset, places)? {
            self.unfinished_pages = record.changes.len();
            return Ok(());
        }
        self.before = Some(self.id).filter(|id| !is_followed && *id != record.commit);
        let word = |change: &PageMove| {
            let is_known = change.page < self.table.pages();
            if is_known { self.table.word(change.page).load(Ordering::Relaxed) } else { 0 }
        };
        let before = record.changes.iter().map(word).filter(|word| *word != 0).map(|word| word - 1).collect();
        let changes = if is_stored { Vec::new() } else { record.changes.clone() };
        self.doubts = Doubts { changes, before };
        self.apply(&record, bytes, places)
    }

    /// Reads records up to the first incomplete one, and applies all but the last complete one.
    fn records(&mut self, reader: &LogReader<'_>, places: u64) -> Result<LogRecords> {
        let mut log = LogRecords { last: None, used: 0, checksums: [0; 2] };
        loop {
            let (at, number) = match &log.last {
                Some((record, bytes)) => (log.used + bytes, record.number + 1),
                None => (log.used, self.stored.first_record),
            };
            let Some((record, bytes, checksum)) = reader.record(at, |found| found == number)? else {
                return Ok(log);
            };
            if self.stored.version > 2 && record.before != log.checksums[0] {
                let detail = format!("record {number} of the log does not follow the previous record");
                return Err(corrupted("open", detail));
            }
            let checksum_before = std::mem::replace(&mut log.checksums[0], checksum);
            log.checksums[1] = checksum_before;
            if let Some((record, bytes)) = log.last.replace((record, bytes)) {
                self.apply(&record, bytes, places)?;
                log.used = self.log_used;
            }
        }
    }

    /// Returns true if the pages of a record are at their places on the disk.
    fn are_stored(
        &self,
        record: &Record,
        disk: &dyn Disk,
        offset: impl Fn(u64) -> u64,
        places: u64,
    ) -> Result<bool> {
        let mut page: Vec<u8> = zeroes("open", self.stored.page_bytes)?;
        let sums = Sums::of(&self.stored, place_bytes(self.stored.page_bytes));
        for change in record.changes.iter().filter(|change| change.word != 0) {
            if change.word > places {
                return Ok(false);
            }
            // Return an error instead of `false` for a failed read, because a later read may succeed.
            disk.read_at(offset(change.word - 1), &mut page).map_err(|cause| failed("open", &cause))?;
            if sums.of_page(change.page, &page, &mut Vec::new()) != change.checksum {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn apply(&mut self, record: &Record, bytes: u64, places: u64) -> Result<()> {
        let impossible = || corrupted("open", "the log of the store has invalid page numbers");
        if !is_possible(record.pages, self.stored.page_bytes) {
            return Err(impossible());
        }
        self.table.lengthen("open", record.pages)?;
        for PageMove { page, word, checksum } in &record.changes {
            if *page >= record.pages {
                return Err(impossible());
            }
            if *word > places {
                return Err(corrupted("open", "the file was shortened, and lacks pages of the store"));
            }
            self.table.word(*page).store(*word, Ordering::Relaxed);
            self.table.sum(*page).store(*checksum, Ordering::Relaxed);
        }
        self.note = record.note;
        self.id = record.commit;
        self.log_used += bytes;
        self.next_record = record.number + 1;
        Ok(())
    }

    /// Returns all used places in ascending order.
    fn used_places(&self, places: u64, log: Range<u64>) -> Result<Vec<u64>> {
        let words = (0..self.table.pages()).map(|page| self.table.word(page).load(Ordering::Relaxed));
        let mut used: Vec<u64> = words.filter(|word| *word != 0).map(|word| word - 1).collect();
        used.extend(log.chain(self.map.clone()));
        // Count space as used if the last commit freed it, until the pages of that commit are on the disk.
        used.extend(&self.doubts.before);
        let end = used.iter().max().map_or(0, |last| last.saturating_add(1));
        if end > places {
            return Err(corrupted("open", "the file was shortened, and lacks pages of the store"));
        }
        if let Some(sums) = BlockChecksums::of(&self.stored, place_bytes(self.stored.page_bytes)) {
            used.extend(sums.areas(end).flatten());
        }
        used.sort_unstable();
        let is_sound = used.is_sorted_by(|a, b| a < b);
        is_sound
            .then_some(used)
            .ok_or_else(|| corrupted("open", "two pages of the store have the same position in the file"))
    }
}
