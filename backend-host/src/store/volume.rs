//! Pages on a disk, each of which stays as it was at the last commit until the next one.

mod commit;
mod recover;
mod table;

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use backend_api::{Error, ErrorKind, Result};
use bytemuck::Zeroable;
use bytemuck::allocation::try_zeroed_vec;
use parking_lot::{Mutex, RwLock};

use super::disk::Disk;
use super::format::{self, HEAD_BYTES, Note};
use crate::error::{is_full, system};
use crate::free::Free;
use crate::medium;
use crate::memory::Passage;
use commit::Commit;
use table::Table;

pub(super) use recover::PAGE_BYTES_MAX;
pub use recover::StoreReport;

/// How much is read or written at a time, and checked.
const BUFFER_BYTES: usize = 256 << 10;
/// So many pages that follow one another have a lock.
pub(super) const GROUP_PAGES: u64 = 64;
const GROUPS: u64 = 256;
/// So much at once is a part of a long range, and will hardly be written anew before the next commit: the
/// drive stores it while the next part is copied.
const EARLY_BYTES: usize = 256 << 10;
/// The file grows by a 16th of what it has, within these limits.
const GROWTH_BYTES: std::ops::RangeInclusive<u64> = 1 << 20..=1 << 30;

/// Marks pages that no commit has stored as they are.
const FRESH: u64 = 1 << 63;

/// What a new volume is.
#[derive(Clone, Debug)]
pub(crate) struct VolumePlan {
    pub page_bytes: usize,
    pub pages: u64,
    pub has_checksums: bool,
    pub metadata: Vec<u8>,
    pub note: Note,
    pub id: u64,
}

/// Pages of a disk.
///
/// **Shadow pages** (R. A. Lorie, "Physical integrity in a large segmented database", 1977): a page that is
/// written to for the first time since a commit goes to a place that nothing refers to; a commit is one
/// record that says where all of them are now; only then are their former places free. So a commit happens as
/// a whole or not at all, whatever the disk had stored when the power went.
pub(crate) struct Volume {
    disk: Box<dyn Disk>,
    page_bytes: usize,
    /// How far places are apart.
    place_bytes: u64,
    id: u64,
    has_checksums: bool,
    is_read_only: bool,
    /// By page, its place plus one, or 0 for zeroes; and whether it is [`FRESH`]. And the checksum of what is
    /// at its place. Changed under the lock of its group.
    table: Table,
    /// What its user notes with the next commit.
    note: Mutex<Note>,
    groups: Box<[RwLock<Changed>]>,
    /// Held shared by whoever changes several pages, or one in several steps, and exclusively at the moment
    /// of which a commit is.
    pub gate: Arc<RwLock<()>>,
    space: Mutex<Space>,
    commit: Mutex<Commit>,
    buffers: Mutex<Vec<Passage<u8>>>,
}

/// What was changed in a group of pages since the last commit began.
#[derive(Debug, Default)]
struct Changed {
    /// Pages that are [`FRESH`].
    pages: Vec<u64>,
    /// Places that are free once the commit is done that stores them.
    left: Vec<u64>,
}

#[derive(Debug)]
struct Space {
    free: Free,
    /// How long the disk is known to be.
    reserved: u64,
}

/// Bytes of pages of one group, no more than a buffer holds.
#[derive(Clone, Copy, Debug)]
struct Piece {
    first: u64,
    pages: usize,
    /// The first byte in the first page.
    skip: usize,
    bytes: usize,
    /// How many bytes come before it.
    done: usize,
}

/// Where a page is from now on, as in the table.
#[derive(Clone, Copy, Debug)]
struct Move {
    page: u64,
    word: u64,
    sum: u64,
}

impl fmt::Debug for Volume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Volume").field("id", &self.id).field("pages", &self.pages()).finish_non_exhaustive()
    }
}

/// Whether all bytes are zero. Ends at the first few that are not.
fn is_zero(bytes: &[u8]) -> bool {
    bytes.chunks(512).all(|some| some.iter().fold(0, |all, byte| all | byte) == 0)
}

/// So many zeroes, untouched as yet, or an error.
fn zeroes<T: Zeroable>(operation: &'static str, count: u64) -> Result<Vec<T>> {
    let bytes = count.saturating_mul(size_of::<T>() as u64);
    let zeroes = usize::try_from(count).ok().and_then(|count| try_zeroed_vec(count).ok());
    zeroes.ok_or_else(|| Error::new(ErrorKind::OutOfMemory, operation).with_bytes(bytes))
}

/// An error of reading or writing the file.
#[cold]
pub(super) fn failed(operation: &'static str, cause: &io::Error) -> Error {
    if is_full(cause) {
        system(ErrorKind::OutOfMemory, operation, cause).with_advice("make room on the disk, and try again")
    } else {
        system(ErrorKind::System, operation, cause)
            .with_advice("try again; if it persists, look for faults of the drive in the log of the system")
    }
}

/// Something was read that is not what was written.
#[cold]
pub(super) fn corrupted(operation: &'static str, detail: impl Into<String>) -> Error {
    Error::new(ErrorKind::Corrupted, operation).with_detail(detail)
}

impl Volume {
    pub fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    pub fn pages(&self) -> u64 {
        self.table.pages()
    }

    /// Has it have so many pages at least. Those that are new are zeroes, and take no place.
    pub fn lengthen(&self, operation: &'static str, pages: u64) -> Result<()> {
        let fits = pages.checked_mul(self.page_bytes as u64).is_some_and(|bytes| bytes <= i64::MAX as u64);
        if !fits {
            let detail = format!("{pages} pages are more than a file can have");
            return Err(Error::new(ErrorKind::TooLarge, operation).with_detail(detail));
        }
        self.table.lengthen(operation, pages)
    }

    /// Has a page be of zeroes.
    pub fn clear(&self, page: u64) {
        let mut group = self.group(page).write();
        self.moved(&mut group, page, 0, 0);
    }

    pub fn note(&self) -> Note {
        *self.note.lock()
    }

    /// Has the next commit, and later ones, store other numbers of its user together with the pages.
    pub fn set_note(&self, note: Note) -> Result<()> {
        if self.is_read_only {
            return Err(Error::new(ErrorKind::ReadOnly, "set_note"));
        }
        *self.note.lock() = note;
        Ok(())
    }

    pub fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    /// What its user says of it.
    pub fn metadata(&self) -> Vec<u8> {
        self.commit.lock().metadata().to_vec()
    }

    /// Whether a page has anything but zeroes.
    pub fn has_contents(&self, page: u64) -> bool {
        page < self.pages() && self.table.word(page).load(Ordering::Relaxed) & !FRESH != 0
    }

    /// How many bytes below the last place in use nothing refers to.
    pub fn free_bytes(&self) -> u64 {
        self.space.lock().free.count().saturating_mul(self.place_bytes)
    }

    fn group(&self, page: u64) -> &RwLock<Changed> {
        &self.groups[(page / GROUP_PAGES % self.groups.len() as u64) as usize]
    }

    fn offset(&self, place: u64) -> u64 {
        HEAD_BYTES + place * self.place_bytes
    }

    fn checksum(&self, page: u64, bytes: &[u8]) -> u64 {
        // A page at the place of another one is wrong, too.
        if self.has_checksums { format::checksum(self.id.wrapping_add(page), bytes) } else { 0 }
    }

    /// Memory for as many whole pages as are worked on at a time.
    fn buffer(&self, operation: &'static str) -> Result<Passage<u8>> {
        let bytes = (BUFFER_BYTES / self.page_bytes).max(1) * self.page_bytes;
        match self.buffers.lock().pop() {
            Some(buffer) => Ok(buffer),
            None => zeroes(operation, bytes as u64).map(Passage),
        }
    }

    /// Calls `work` for pieces that make up a range of bytes, in order.
    fn pieces(&self, offset: u64, bytes: usize, mut work: impl FnMut(Piece) -> Result<()>) -> Result<()> {
        let length = self.page_bytes as u64;
        let most = (BUFFER_BYTES / self.page_bytes).max(1) as u64;
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

    /// Reads a range of bytes, and hands it over in parts, each with how many bytes came before.
    pub fn read(
        &self,
        operation: &'static str,
        offset: u64,
        bytes: usize,
        mut take: impl FnMut(usize, &[u8]),
    ) -> Result<()> {
        self.announce(offset, bytes);
        let mut buffer = self.buffer(operation)?;
        let outcome = self.pieces(offset, bytes, |piece| {
            let wanted = piece.skip..piece.skip + piece.bytes;
            let whole = 0..piece.pages * self.page_bytes;
            let _group = self.group(piece.first).read();
            self.load(
                operation,
                piece.first,
                if self.has_checksums { whole } else { wanted.clone() },
                &mut buffer.0,
            )?;
            take(piece.done, &buffer.0[wanted]);
            Ok(())
        });
        self.buffers.lock().push(buffer);
        outcome
    }

    /// As [`read`](Self::read), into memory of the caller's alone: whole pages without a detour.
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

    /// Has the system begin to read several pages that lie in several places.
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
        // Where a page is may change meanwhile: then this was of no use.
        while page < end {
            let next = run(page);
            if let Some(here) = place(page).checked_sub(1) {
                self.disk.announce(self.offset(here), ((next - page) * self.place_bytes) as usize);
            }
            page = next;
        }
    }

    /// Writes a range of bytes, which it is given in parts, each with how many bytes came before. On an error
    /// some pages have been written and others are as they were. Who may be beside a commit holds the gate:
    /// no commit begins between the writing of a page and the note of where it is.
    ///
    /// Pages of a group that are written whole are written by several threads at a time: each has places of
    /// its own. Parts of pages are put together with the rest of these by one thread at a time.
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
        let (mut buffer, mut moves) = (self.buffer(operation)?, Vec::new());
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

    /// Reads a range of the bytes of pages from `first` on to the same range of `into`, and checks the pages
    /// that are read whole. The caller holds the lock of their group.
    fn load(&self, operation: &'static str, first: u64, range: Range<usize>, into: &mut [u8]) -> Result<()> {
        let length = self.page_bytes;
        let word = |at: usize| self.table.word(first + at as u64).load(Ordering::Relaxed) & !FRESH;
        let (mut at, end) = (range.start / length, range.end.div_ceil(length));
        while at < end {
            let here = word(at);
            // Neighbours on the disk, too.
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
                if self.has_checksums {
                    (at..next).try_for_each(|at| {
                        self.expect(operation, first + at as u64, &into[at * length..(at + 1) * length])
                    })?;
                }
            }
            at = next;
        }
        Ok(())
    }

    /// Whether places follow one another without gaps.
    fn are_packed(&self) -> bool {
        self.place_bytes == self.page_bytes as u64
    }

    /// Checks what was read of a page.
    fn expect(&self, operation: &'static str, page: u64, bytes: &[u8]) -> Result<()> {
        if self.checksum(page, bytes) == self.table.sum(page).load(Ordering::Relaxed) {
            return Ok(());
        }
        Err(corrupted(operation, format!("page {page} of the store is not what was written to it"))
            .with_offset(page * self.page_bytes as u64))
    }

    #[cold]
    fn unreadable(&self, operation: &'static str, page: u64, cause: &io::Error) -> Error {
        let offset = page * self.page_bytes as u64;
        if cause.kind() == io::ErrorKind::UnexpectedEof {
            let detail =
                format!("page {page} of the store is beyond the end of the file, which somebody has cut");
            return corrupted(operation, detail).with_offset(offset);
        }
        system(medium::failure(operation).kind(), operation, cause).with_offset(offset)
    }

    /// Writes whole pages from `first` on, and says where they are then, also of those before one that fails.
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
            // Never over what is there, even if no commit knows it: a write that fails would tear it.
            let places = self.take_places(operation, count as u64)?;
            let next = at + (places.end - places.start) as usize;
            if let Err(cause) = self.write_places(places.start, &bytes[at * length..next * length]) {
                self.space.lock().free.give_back(places);
                let error = system(medium::failure(operation).kind(), operation, &cause);
                return Err(error.with_offset((first + at as u64) * length as u64));
            }
            moves.extend(places.zip(at..next).map(|(place, at)| {
                let page = first + at as u64;
                Move { page, word: place + 1, sum: self.checksum(page, page_of(at)) }
            }));
            at = next;
        }
        Ok(())
    }

    /// Notes where a page is now. Its former place is free at once if no commit knows it.
    fn moved(&self, group: &mut Changed, page: u64, word: u64, sum: u64) {
        let place = self.table.word(page);
        if word == 0 && place.load(Ordering::Relaxed) == 0 {
            // Zeroes, as the last commit has them.
            return;
        }
        let before = place.swap(word | FRESH, Ordering::Relaxed);
        self.table.sum(page).store(sum, Ordering::Relaxed);
        let left = before & !FRESH;
        if before & FRESH == 0 {
            group.pages.push(page);
            if left != 0 {
                group.left.push(left - 1);
            }
        } else if left != 0 {
            self.space.lock().free.give_back(left - 1..left);
        }
    }

    /// Places for at most so many pages, one at least, for which the disk has blocks.
    fn take_places(&self, operation: &'static str, count: u64) -> Result<Range<u64>> {
        let mut space = self.space.lock();
        let places = space.free.take(count);
        self.reserve(operation, &mut space, places)
    }

    /// Sees to it that the disk is long enough for places that were taken; gives them back if it cannot be.
    fn reserve(&self, operation: &'static str, space: &mut Space, places: Range<u64>) -> Result<Range<u64>> {
        let needed = self.offset(places.end);
        if needed > space.reserved {
            let generous = needed + (needed / 16).clamp(*GROWTH_BYTES.start(), *GROWTH_BYTES.end());
            let reserved = self.disk.reserve(generous).map(|()| generous);
            let reserved = reserved.or_else(|_| self.disk.reserve(needed).map(|()| needed));
            match reserved {
                Ok(bytes) => space.reserved = bytes,
                Err(cause) => {
                    let bytes = (places.end - places.start) * self.place_bytes;
                    space.free.give_back(places);
                    return Err(failed(operation, &cause).with_bytes(bytes));
                }
            }
        }
        Ok(places)
    }

    /// Writes pages to places from `place` on.
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
