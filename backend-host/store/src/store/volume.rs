//! Volume: the pages of a store on its disk, with commits that are atomic after a crash.

mod commit;
mod errors;
mod log;
mod recover;
mod state;
mod sums;
mod table;
mod together;

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use backend_api::{Error, ErrorKind, Result};
use parking_lot::{Mutex, RwLock};

use super::disk::{Disk, Loss};
use super::format::{BLOCK_BYTES, CommitMetadata, HEAD_BYTES};
use crate::error::failure;
use crate::extent_allocator::ExtentAllocator;
use backend_host::parts::{Passage, system};
use errors::zeroes;
use state::CommitState;
use sums::Sums;
use table::WordTable;

pub(super) use errors::{corrupted, failed};
pub use recover::StoreReport;
pub(super) use recover::{OpenedVolume, PAGE_BYTES_MAX};
pub(super) use together::{FileError, open_together, sync_together};

/// Maximum bytes of one read or write, including its checks.
const BUFFER_BYTES: usize = 256 << 10;
/// Number of consecutive pages that share a lock.
pub(super) const GROUP_PAGES: u64 = 64;
const GROUPS: u64 = 256;
/// Length in bytes from which a write starts its write-back early. Such a write is part of a long range that
/// hardly changes again before the next commit. The drive stores it while the thread copies the next part.
const EARLY_BYTES: usize = 256 << 10;
/// Limits of the growth of the file, which grows by a 16th of its length.
const GROWTH_BYTES: std::ops::RangeInclusive<u64> = 1 << 20..=1 << 30;

/// Flag of pages with changes that no commit has stored.
const FRESH: u64 = 1 << 63;

/// Parameters of a new volume.
#[derive(Clone, Debug)]
pub(crate) struct VolumePlan {
    pub page_bytes: usize,
    pub pages: u64,
    pub has_checksums: bool,
    pub metadata: Vec<u8>,
    pub note: CommitMetadata,
    pub id: u64,
}

/// The pages of a store on its disk.
///
/// **Shadow pages** (R. A. Lorie, "Physical integrity in a large segmented database", 1977): the first write
/// to a page after a commit goes to a free place. A commit is one record with the new places of all changed
/// pages; only then their former places are free. So a commit happens as a whole or not at all, in any order
/// in which the disk stored its sectors before a power loss.
pub(crate) struct Volume {
    disk: Box<dyn Disk>,
    page_bytes: usize,
    /// Distance of two places on the disk in bytes.
    place_bytes: u64,
    sums: Sums,
    is_read_only: bool,
    /// Page table. For each page: the number of its place plus one, or 0 for zeroes, with the flag [`FRESH`];
    /// and the checksum of the bytes at its place. Changes require the lock of the page's group.
    table: WordTable,
    /// The program's note for the next commit.
    note: Mutex<CommitMetadata>,
    groups: Box<[RwLock<Changed>]>,
    /// Lock between writes and commits. A thread that changes several pages, or one page in several steps,
    /// locks `gate` for reading. A commit locks `gate` for writing while it collects the changes.
    pub gate: Arc<RwLock<()>>,
    space: Mutex<Space>,
    commit: Mutex<CommitState>,
    buffers: Mutex<Vec<Passage<u8>>>,
}

/// Changes in a group of pages since the last commit began; empty until the first change.
#[derive(Debug, Default)]
struct Changed(Option<Box<ChangedPages>>);

/// Allocated with the first change, because many stores change few pages.
#[derive(Debug, Default)]
struct ChangedPages {
    /// Pages whose changes no commit has stored ([`FRESH`]).
    pages: Vec<u64>,
    /// Places that become free after the commit of these pages.
    left: Vec<u64>,
}

impl Changed {
    fn pages(&mut self) -> &mut ChangedPages {
        self.0.get_or_insert_default()
    }
}

#[derive(Debug)]
struct Space {
    free: ExtentAllocator,
    /// Known length of the disk in bytes.
    reserved: u64,
    /// True if the closing mark is stored. The disk then never grows.
    is_closed: bool,
}

impl Space {
    fn expect_open(&self, operation: &'static str) -> Result<()> {
        let closed = || Error::new(ErrorKind::System, operation).with_detail("the store is closed");
        if self.is_closed { Err(closed()) } else { Ok(()) }
    }
}

/// A range of pages of one group, at most as long as a buffer.
#[derive(Clone, Copy, Debug)]
struct Piece {
    first: u64,
    pages: usize,
    /// Byte offset in the first page.
    skip: usize,
    bytes: usize,
    /// Number of bytes of the whole range before this piece.
    done: usize,
}

/// New place of a page, as an entry of the page table.
#[derive(Clone, Copy, Debug)]
struct Move {
    page: u64,
    word: u64,
    sum: u64,
}

impl fmt::Debug for Volume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Volume").field("pages", &self.pages()).finish_non_exhaustive()
    }
}

/// Returns true if all bytes are zero. Stops at the first block with another byte.
fn is_zero(bytes: &[u8]) -> bool {
    bytes.chunks(512).all(|some| some.iter().fold(0, |all, byte| all | byte) == 0)
}

impl Volume {
    pub fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    pub fn pages(&self) -> u64 {
        self.table.pages()
    }

    /// Grows the volume to at least `pages` pages. New pages are zeroes, and take no space on the disk.
    pub fn lengthen(&self, operation: &'static str, pages: u64) -> Result<()> {
        let fits = pages.checked_mul(self.page_bytes as u64).is_some_and(|bytes| bytes <= i64::MAX as u64);
        if !fits {
            let detail = format!("{pages} pages exceed the length of a file");
            return Err(Error::new(ErrorKind::TooLarge, operation).with_detail(detail));
        }
        self.table.lengthen(operation, pages)
    }

    /// Zeroes a page, and frees its part of the disk.
    pub fn clear(&self, page: u64) {
        let mut group = self.group(page).write();
        self.moved(&mut group, page, 0, 0);
    }

    pub fn note(&self) -> CommitMetadata {
        *self.note.lock()
    }

    /// Sets the note: three numbers that the next commit, and later commits, store together with the pages.
    pub fn set_note(&self, note: CommitMetadata) -> Result<()> {
        if self.is_read_only {
            return Err(Error::new(ErrorKind::ReadOnly, "set_note"));
        }
        *self.note.lock() = note;
        Ok(())
    }

    pub fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    /// The metadata that the program has set.
    pub fn metadata(&self) -> Vec<u8> {
        self.commit.lock().metadata().to_vec()
    }

    /// Returns true if a page has nonzero contents.
    pub fn has_contents(&self, page: u64) -> bool {
        page < self.pages() && self.table.word(page).load(Ordering::Relaxed) & !FRESH != 0
    }

    /// Number of unused bytes before the last used part of the disk.
    pub fn free_bytes(&self) -> u64 {
        self.space.lock().free.count().saturating_mul(self.place_bytes)
    }

    fn group(&self, page: u64) -> &RwLock<Changed> {
        &self.groups[(page / GROUP_PAGES % self.groups.len() as u64) as usize]
    }

    fn offset(&self, place: u64) -> u64 {
        HEAD_BYTES + place * self.place_bytes
    }

    /// Returns memory for the pages that contain `bytes` bytes at `offset`, at most for `BUFFER_BYTES` or one
    /// page. A store with short pages needs little.
    fn buffer(&self, operation: &'static str, offset: u64, bytes: usize) -> Result<Passage<u8>> {
        let skip = (offset % self.page_bytes as u64) as usize;
        let most = (BUFFER_BYTES / self.page_bytes).max(1) * self.page_bytes;
        let bytes = (skip + bytes).next_multiple_of(self.page_bytes).min(most);
        match self.buffers.lock().pop().filter(|buffer| buffer.0.len() >= bytes) {
            Some(buffer) => Ok(buffer),
            None => zeroes(operation, bytes as u64).map(Passage),
        }
    }

    /// Calls `work` for the pieces of a byte range, in order.
    fn pieces(&self, offset: u64, bytes: usize, mut work: impl FnMut(Piece) -> Result<()>) -> Result<()> {
        let length = self.page_bytes as u64;
        // A range shorter than a page may cross two pages. Pass these as two pieces: for a piece of one page,
        // block checksums permit to read a part of the page.
        let is_short = bytes < self.page_bytes && self.sums.blocks.is_some();
        let most = if is_short { 1 } else { (BUFFER_BYTES / self.page_bytes).max(1) as u64 };
        let mut done = 0;
        while done < bytes {
            let at = offset + done as u64;
            let (first, skip) = (at / length, (at % length) as usize);
            let pages = most.min(GROUP_PAGES - first % GROUP_PAGES) as usize;
            let part = (pages * self.page_bytes - skip).min(bytes - done);
            let pages = (skip + part).div_ceil(self.page_bytes);
            work(Piece { first, pages, skip, bytes: part, done })?;
            done += part;
        }
        Ok(())
    }

    /// Reads `bytes` bytes at `offset`. Passes them to `take` in parts, each with its offset in the range.
    pub fn read(
        &self,
        operation: &'static str,
        offset: u64,
        bytes: usize,
        mut take: impl FnMut(usize, &[u8]),
    ) -> Result<()> {
        self.announce(offset, bytes);
        let mut buffer = self.buffer(operation, offset, bytes)?;
        let outcome = self.pieces(offset, bytes, |piece| {
            let wanted = piece.skip..piece.skip + piece.bytes;
            let _group = self.group(piece.first).read();
            if let Some(wanted) = self.load_blocks(operation, piece, &mut buffer.0)? {
                take(piece.done, &buffer.0[wanted]);
                return Ok(());
            }
            let whole = 0..piece.pages * self.page_bytes;
            let loaded = if self.sums.are_kept() { whole } else { wanted.clone() };
            self.load(operation, piece.first, loaded, &mut buffer.0)?;
            take(piece.done, &buffer.0[wanted]);
            Ok(())
        });
        self.buffers.lock().push(buffer);
        outcome
    }

    /// Reads a range of bytes into memory of the caller. Copies whole pages without an intermediate buffer.
    pub fn read_into(&self, operation: &'static str, offset: u64, into: &mut [u8]) -> Result<()> {
        let page_bytes = self.page_bytes as u64;
        let is_whole = offset.is_multiple_of(page_bytes) && into.len().is_multiple_of(self.page_bytes);
        if !is_whole {
            return self.read(operation, offset, into.len(), |done, part| {
                into[done..done + part.len()].copy_from_slice(part);
            });
        }
        self.announce(offset, into.len());
        self.pieces(offset, into.len(), |piece| {
            let _group = self.group(piece.first).read();
            let into = &mut into[piece.done..piece.done + piece.bytes];
            self.load(operation, piece.first, 0..piece.bytes, into)
        })
    }

    /// Reads only the blocks that contain a part of a page, if they have checksums. Returns the range of the
    /// part in `into`; `None` if the whole page must be read. The caller has locked the page's group.
    fn load_blocks(
        &self,
        operation: &'static str,
        piece: Piece,
        into: &mut [u8],
    ) -> Result<Option<Range<usize>>> {
        let wanted = piece.skip..piece.skip + piece.bytes;
        if piece.pages > 1 {
            return Ok(None);
        }
        let Some((blocks, sums)) = self.sums.blocks_of(&wanted, self.page_bytes) else { return Ok(None) };
        let place = self.table.word(piece.first).load(Ordering::Relaxed) & !FRESH;
        let Some(place) = place.checked_sub(1) else { return Ok(None) };
        let (sums_read, into) = into.split_at_mut(sums.bytes());
        let has_sums = self.disk.read_at(HEAD_BYTES + sums.offset(place), sums_read).is_ok()
            && self.sums.with(piece.first, sums_read) == self.table.sum(piece.first).load(Ordering::Relaxed);
        if !has_sums {
            return Ok(None);
        }
        let into = &mut into[..blocks.len()];
        self.disk
            .read_at(self.offset(place) + blocks.start as u64, into)
            .map_err(|cause| self.unreadable(operation, piece.first, &cause))?;
        let is_sound = self.sums.fit(sums_read, blocks.start / BLOCK_BYTES, into);
        // If the blocks are damaged, the caller reads the whole page, and reports damage of the page.
        let start = sums.bytes() + wanted.start - blocks.start;
        Ok(is_sound.then_some(start..start + wanted.len()))
    }

    /// Length in bytes of the unit whose checksum a read verifies: a block or a page.
    pub fn unit_bytes(&self) -> usize {
        if self.sums.blocks.is_some() { BLOCK_BYTES } else { self.page_bytes }
    }

    /// Copies all pages to another volume with the same page length.
    pub fn copy_to(&self, operation: &'static str, target: &Self) -> Result<()> {
        let at_once = (BUFFER_BYTES / self.page_bytes).max(1) as u64;
        let mut bytes = Vec::new();
        for first in (0..self.pages()).step_by(at_once as usize) {
            let pages = first..(first + at_once).min(self.pages());
            if pages.clone().any(|page| self.has_contents(page)) {
                bytes.resize((pages.end - first) as usize * self.page_bytes, 0);
                let offset = first * self.page_bytes as u64;
                self.read_into(operation, offset, &mut bytes)?;
                let give = |done: usize, part: &mut [u8]| part.copy_from_slice(&bytes[done..][..part.len()]);
                target.write(operation, offset, bytes.len(), give)?;
            }
        }
        Ok(())
    }

    /// Starts asynchronous readahead of the pages of a range.
    fn announce(&self, offset: u64, bytes: usize) {
        let length = self.page_bytes as u64;
        let (mut page, end) = (offset / length, (offset + bytes as u64).div_ceil(length));
        let place = |page: u64| self.table.word(page).load(Ordering::Relaxed) & !FRESH;
        let run = |first: u64| {
            let here = place(first);
            let follows = |next: u64| self.are_packed() && here != 0 && place(next) == here + (next - first);
            (first + 1..end).find(|next| !follows(*next)).unwrap_or(end)
        };
        if end - page < 2 || run(page) == end {
            return;
        }
        // If another thread moves the page meanwhile, this read-ahead is useless but harmless.
        while page < end {
            let next = run(page);
            if let Some(here) = place(page).checked_sub(1) {
                self.disk.announce(self.offset(here), ((next - page) * self.place_bytes) as usize);
            }
            page = next;
        }
    }

    /// Writes `bytes` bytes at `offset`. `give` fills them in parts, each by its offset in the range. After
    /// an error some pages are written, and the other pages are unchanged. A caller that can run concurrently
    /// with a commit locks [`gate`](Self::gate) for reading. Then no commit begins between the write of a
    /// page and the update of the page table.
    ///
    /// Several threads may write whole pages of a group (64 consecutive pages with one lock) at a time. Only
    /// one thread at a time writes parts of pages, because it merges each part with the rest of its page.
    pub fn write(
        &self,
        operation: &'static str,
        offset: u64,
        bytes: usize,
        mut give: impl FnMut(usize, &mut [u8]),
    ) -> Result<()> {
        if self.is_read_only {
            return Err(Error::new(ErrorKind::ReadOnly, operation));
        }
        let (mut buffer, mut moves) = (self.buffer(operation, offset, bytes)?, Vec::new());
        let outcome = self.pieces(offset, bytes, |piece| {
            let whole = piece.pages * self.page_bytes;
            let written = piece.skip..piece.skip + piece.bytes;
            let group = self.group(piece.first);
            let group_held = (written != (0..whole)).then(|| group.write());
            let last = (piece.pages - 1) * self.page_bytes;
            if written.start > 0 {
                self.load(operation, piece.first, 0..self.page_bytes, &mut buffer.0)?;
            }
            if written.end < whole && (last > 0 || written.start == 0) {
                let page = piece.first + piece.pages as u64 - 1;
                self.load(operation, page, 0..self.page_bytes, &mut buffer.0[last..])?;
            }
            give(piece.done, &mut buffer.0[written]);
            let outcome = self.store(operation, piece.first, &buffer.0[..whole], &mut moves);
            let mut group = group_held.unwrap_or_else(|| group.write());
            moves.drain(..).for_each(|Move { page, word, sum }| self.moved(&mut group, page, word, sum));
            outcome
        });
        self.buffers.lock().push(buffer);
        outcome
    }

    /// Reads a byte range of the pages that start at page `first` to the same range of `into`. Verifies pages
    /// that are read whole. The caller has locked their group.
    fn load(&self, operation: &'static str, first: u64, range: Range<usize>, into: &mut [u8]) -> Result<()> {
        let length = self.page_bytes;
        let word = |at: usize| self.table.word(first + at as u64).load(Ordering::Relaxed) & !FRESH;
        let (mut at, end) = (range.start / length, range.end.div_ceil(length));
        while at < end {
            let here = word(at);
            // Extend the range to read while the next page is also adjacent on the disk.
            let mut next = at + 1;
            while next < end && here != 0 && self.are_packed() && word(next) == here + (next - at) as u64 {
                next += 1;
            }
            let part = range.start.max(at * length)..range.end.min(next * length);
            let bytes = &mut into[part.clone()];
            if here == 0 {
                bytes.fill(0);
            } else {
                let offset = self.offset(here - 1) + (part.start - at * length) as u64;
                self.disk
                    .read_at(offset, bytes)
                    .map_err(|cause| self.unreadable(operation, first + at as u64, &cause))?;
                if self.sums.are_kept() {
                    (at..next).try_for_each(|at| {
                        self.expect(operation, first + at as u64, &into[at * length..(at + 1) * length])
                    })?;
                }
            }
            at = next;
        }
        Ok(())
    }

    /// Returns true if pages fill their places without gaps.
    fn are_packed(&self) -> bool {
        self.place_bytes == self.page_bytes as u64
    }

    /// Verifies the checksum of a page.
    fn expect(&self, operation: &'static str, page: u64, bytes: &[u8]) -> Result<()> {
        let sum = self.sums.of_page(page, bytes, &mut Vec::new());
        if sum == self.table.sum(page).load(Ordering::Relaxed) {
            return Ok(());
        }
        Err(corrupted(operation, format!("page {page} of the store differs from the data that was written"))
            .with_offset(page * self.page_bytes as u64))
    }

    #[cold]
    fn unreadable(&self, operation: &'static str, page: u64, cause: &io::Error) -> Error {
        let offset = page * self.page_bytes as u64;
        if cause.kind() == io::ErrorKind::UnexpectedEof {
            let detail = format!(
                "page {page} of the store is beyond the end of the file, which another program has shortened"
            );
            return corrupted(operation, detail).with_offset(offset);
        }
        system(failure(operation).kind(), operation, cause).with_offset(offset)
    }

    /// Writes whole pages, starting at page `first`. Appends their places to `moves`, also after a failure.
    fn store(&self, operation: &'static str, first: u64, bytes: &[u8], moves: &mut Vec<Move>) -> Result<()> {
        let length = self.page_bytes;
        let page_of = |at: usize| &bytes[at * length..(at + 1) * length];
        let is_zero = |at: usize| is_zero(page_of(at));
        let (mut at, end) = (0, bytes.len() / length);
        while at < end {
            if is_zero(at) {
                moves.push(Move { page: first + at as u64, word: 0, sum: 0 });
                at += 1;
                continue;
            }
            let count = (at..end).take_while(|at| !is_zero(*at)).count();
            // Never overwrite the page's present data: write to a free part of the disk, because a write that
            // fails destroys the old contents.
            let places = self.take_places(operation, count as u64)?;
            let next = at + (places.end - places.start) as usize;
            if let Err(cause) = self.write_places(places.start, &bytes[at * length..next * length]) {
                self.space.lock().free.give_back(places);
                let error = system(failure(operation).kind(), operation, &cause);
                return Err(error.with_offset((first + at as u64) * length as u64));
            }
            let (start, mut blocks) = (places.start, Vec::new());
            moves.extend(places.zip(at..next).map(|(place, at)| {
                let page = first + at as u64;
                Move { page, word: place + 1, sum: self.sums.of_page(page, page_of(at), &mut blocks) }
            }));
            self.write_block_sums(start, &blocks);
            at = next;
        }
        Ok(())
    }

    /// Updates the page table for a page that was written to a new place. The former place is free at once if
    /// no commit refers to it.
    fn moved(&self, group: &mut Changed, page: u64, word: u64, sum: u64) {
        let place = self.table.word(page);
        if word == 0 && place.load(Ordering::Relaxed) == 0 {
            // The page was already zero at the last commit, so nothing changes.
            return;
        }
        let before = place.swap(word | FRESH, Ordering::Relaxed);
        self.table.sum(page).store(sum, Ordering::Relaxed);
        let left = before & !FRESH;
        if before & FRESH == 0 {
            group.pages().pages.push(page);
            if left != 0 {
                group.pages().left.push(left - 1);
            }
        } else if left != 0 {
            self.space.lock().free.give_back(left - 1..left);
        }
    }

    /// Allocates places for one to `count` pages. The disk then has blocks for them.
    fn take_places(&self, operation: &'static str, count: u64) -> Result<Range<u64>> {
        let mut space = self.space.lock();
        let mut places = space.free.take(count);
        while let Some(kept) = self.kept_for_sums(&places) {
            if places.start < kept.start {
                space.free.give_back(kept.start..places.end);
                places.end = kept.start;
                break;
            }
            space.free.give_back(kept.end.min(places.end)..places.end);
            places = space.free.take(count);
        }
        self.reserve(operation, &mut space, places)
    }

    /// Allocates `count` adjacent places.
    fn take_places_together(&self, operation: &'static str, count: u64) -> Result<Range<u64>> {
        let mut space = self.space.lock();
        let mut places = space.free.take_together(count);
        while let Some(kept) = self.kept_for_sums(&places) {
            space.free.give_back(places.start..kept.start.max(places.start));
            space.free.give_back(kept.end.min(places.end)..places.end);
            places = space.free.take_together(count);
        }
        self.reserve(operation, &mut space, places)
    }

    /// Returns the first area of block checksums that overlaps new places.
    fn kept_for_sums(&self, places: &Range<u64>) -> Option<Range<u64>> {
        let mut areas = self.sums.blocks.as_ref()?.areas(places.end);
        areas.find(|area| area.start < places.end && places.start < area.end)
    }

    /// Extends the disk for allocated places. Frees the places if that fails.
    fn reserve(&self, operation: &'static str, space: &mut Space, places: Range<u64>) -> Result<Range<u64>> {
        let needed = self.offset(places.end);
        if needed > space.reserved {
            let is_open = self.expect_length(operation, space);
            if let Err(error) = is_open.and_then(|()| space.expect_open(operation)) {
                space.free.give_back(places);
                return Err(error);
            }
            let generous = needed + (needed / 16).clamp(*GROWTH_BYTES.start(), *GROWTH_BYTES.end());
            let reserved = self.disk.reserve(generous).or_else(|_| self.disk.reserve(needed));
            // Query the length even after an error, because ext4, for example, may keep a part of the
            // extension.
            let length = self.disk.len();
            space.reserved = length.as_ref().map_or(space.reserved, |length| *length);
            if let Err(cause) = reserved.and(length) {
                let bytes = (places.end - places.start) * self.place_bytes;
                space.free.give_back(places);
                return Err(failed(operation, &cause).with_bytes(bytes));
            }
        }
        Ok(places)
    }

    /// Returns an error if another program has changed the length of the disk.
    fn expect_length(&self, operation: &'static str, space: &Space) -> Result<()> {
        let length = self.disk.len().map_err(|cause| failed(operation, &cause))?;
        if length == space.reserved {
            return Ok(());
        }
        let how = if length < space.reserved { "cut" } else { "lengthened" };
        let before = space.reserved;
        let detail = format!("another program has {how} the file from {before} to {length} bytes");
        Err(corrupted(operation, detail).with_advice("let no other program change the file"))
    }

    /// Returns an error if the store's closing mark is set, because it must not change.
    fn expect_not_closed(&self, operation: &'static str) -> Result<()> {
        self.space.lock().expect_open(operation)
    }

    /// Returns an error if another program has changed the disk in a way that this process can see.
    pub fn expect_disk(&self, operation: &'static str) -> Result<()> {
        if self.disk.loss() == Some(Loss::Replaced) {
            let detail = "another file has replaced this file while it was open";
            return Err(corrupted(operation, detail).with_advice("save the contents to another file"));
        }
        self.expect_length(operation, &self.space.lock())
    }

    /// Returns true if the file was removed. Its contents then cannot be opened again.
    pub fn is_removed(&self) -> bool {
        self.disk.loss() == Some(Loss::Removed)
    }

    /// Writes the block checksums of pages with consecutive places.
    fn write_block_sums(&self, place: u64, blocks: &[u8]) {
        if let Some(sums) = self.sums.blocks.filter(|_| !blocks.is_empty()) {
            // Ignore an error, because without stored block checksums readers check whole pages.
            let _ = self.disk.write_at(HEAD_BYTES + sums.offset(place), blocks);
        }
    }

    /// Writes pages to consecutive places, starting at `place`.
    fn write_places(&self, place: u64, bytes: &[u8]) -> io::Result<()> {
        if self.are_packed() {
            self.disk.write_at(self.offset(place), bytes)?;
            if bytes.len() >= EARLY_BYTES {
                self.disk.begin_to_store(self.offset(place), bytes.len());
            }
            return Ok(());
        }
        let mut pages = (place..).zip(bytes.chunks(self.page_bytes));
        pages.try_for_each(|(place, page)| self.disk.write_at(self.offset(place), page))
    }
}
