//! Making what was written stay: the log, the map, and what comes free.

use std::ops::Range;
use std::sync::atomic::Ordering;

use backend_api::{Error, ErrorKind, Result};

use super::super::format::{Change, ENTRY_BYTES, Note, Record, Superblock, checksum};
use super::recover::log_bytes;
use super::{Changed, FRESH, Volume, corrupted, failed};

/// Pages of up to so many bytes are stored together with the record that names them, and found out by their
/// checksums if they were not; more are stored before it, so that opening has less to read.
const UNORDERED_BYTES_MAX: u64 = 16 << 20;
/// How much of the map is written at a time.
const MAP_PIECE_BYTES: usize = 4 << 20;

/// What is stored, and what is about to be.
#[derive(Debug)]
pub(super) struct Commit {
    /// The superblock that counts.
    pub stored: Superblock,
    /// Where its map is; empty if it has none.
    pub map: Range<u64>,
    pub log_used: u64,
    pub next_record: u64,
    /// The note that is stored.
    pub noted: Note,
    /// What the next commit stores: each page once, in order.
    pub changes: Vec<Change>,
    /// How many pages there are with these, and the note that is stored with them.
    pub moment: (u64, Note),
    /// Places that are free then.
    pub left: Vec<Range<u64>>,
    /// What its user says of it now.
    pub metadata: Option<Vec<u8>>,
    /// The disk failed to store something: what the changes name may be lost, and is written once more.
    pub is_suspect: bool,
    /// Nothing but a superblock may follow: one was written of which nobody knows whether it is stored, and
    /// is written again; or nobody knows what of the log is.
    pub needs_map: bool,
    /// Places for the next map, so that a commit that frees places succeeds on a full disk.
    pub spare: Option<Range<u64>>,
}

impl Commit {
    pub fn metadata(&self) -> &[u8] {
        self.metadata.as_deref().unwrap_or(&self.stored.metadata)
    }
}

impl Volume {
    /// Has the next commit store other words of its user.
    pub fn set_metadata(&self, metadata: &[u8]) -> Result<()> {
        const OPERATION: &str = "set_metadata";
        if self.is_read_only {
            return Err(Error::new(ErrorKind::ReadOnly, OPERATION));
        }
        self.commit.lock().metadata = Some(Superblock::fitting(OPERATION, metadata)?);
        Ok(())
    }

    /// Commits: returns when all pages stay as they are now, or as others write them meanwhile. One thread at
    /// a time. Writers wait for the moment in which it is seen what has changed, and when the log is full for
    /// a copy of the map in RAM; that moment comes when jobs that are under way are done.
    ///
    /// # Errors
    /// What the disk says. What was to be stored is stored by the next commit that succeeds.
    pub fn sync(&self) -> Result<()> {
        if self.is_read_only {
            return Ok(());
        }
        self.commit(&mut self.commit.lock())
    }

    /// How many commits there were that found something to store.
    #[cfg(test)]
    pub fn commits(&self) -> u64 {
        let commit = self.commit.lock();
        commit.next_record - 1
    }

    pub(super) fn commit(&self, commit: &mut Commit) -> Result<()> {
        {
            let _quiet = self.gate.write();
            // First: what was written before it was noted is sealed.
            commit.moment.1 = self.note();
            self.groups.iter().for_each(|group| self.seal(commit, &mut group.write()));
            commit.moment.0 = self.pages();
        }
        commit.in_order();
        if commit.is_suspect {
            self.write_again(commit)?;
        }
        let is_noted = commit.noted == commit.moment.1;
        if commit.changes.is_empty() && commit.metadata.is_none() && !commit.needs_map && is_noted {
            return Ok(());
        }
        let needed = commit.log_used + Record::bytes(commit.changes.len()) as u64;
        if needed > commit.stored.log_bytes || commit.metadata.is_some() || commit.needs_map {
            self.write_map(commit)
        } else {
            self.append_record(commit)
        }
    }

    /// Takes over what was changed in a group: what is written to these pages later goes elsewhere.
    fn seal(&self, commit: &mut Commit, group: &mut Changed) {
        for page in group.pages.drain(..) {
            let word = self.table.word(page).fetch_and(!FRESH, Ordering::Relaxed) & !FRESH;
            let checksum = self.table.sum(page).load(Ordering::Relaxed);
            commit.changes.push(Change { page, word, checksum });
        }
        commit.left.extend(group.left.drain(..).map(|place| place..place + 1));
    }

    /// After the disk failed: writes pages that may be lost to other places.
    fn write_again(&self, commit: &mut Commit) -> Result<()> {
        const OPERATION: &str = "sync";
        let mut bytes = self.buffer(OPERATION)?;
        let Commit { changes, left, is_suspect, .. } = commit;
        for change in changes.iter_mut().filter(|change| change.word != 0) {
            let page = &mut bytes.0[..self.page_bytes];
            let mut group = self.group(change.page).write();
            self.disk
                .read_at(self.offset(change.word - 1), page)
                .map_err(|cause| self.unreadable(OPERATION, change.page, &cause))?;
            if self.has_checksums && self.checksum(change.page, page) != change.checksum {
                let detail = format!("page {} is lost, since the disk failed to store it", change.page);
                return Err(corrupted(OPERATION, detail));
            }
            let place = self.take_places(OPERATION, 1)?;
            if let Err(cause) = self.write_places(place.start, page) {
                self.space.lock().free.give_back(place);
                return Err(failed(OPERATION, &cause));
            }
            let word = self.table.word(change.page);
            if word.load(Ordering::Relaxed) == change.word {
                word.store(place.end, Ordering::Relaxed);
                left.push(change.word - 1..change.word);
            } else {
                // Written to meanwhile, which gave the former place up. This one is needed until the next
                // commit.
                group.left.push(place.start);
            }
            change.word = place.end;
        }
        *is_suspect = false;
        self.buffers.lock().push(bytes);
        Ok(())
    }

    fn flush(&self, commit: &mut Commit) -> Result<()> {
        self.disk.sync().map_err(|cause| {
            // The system may have dropped what it could not store, and say so once.
            commit.is_suspect = true;
            failed("sync", &cause)
        })
    }

    /// Writes what has changed to the log.
    fn append_record(&self, commit: &mut Commit) -> Result<()> {
        let bytes = commit.changes.len() as u64 * self.page_bytes as u64;
        let is_ordered = !self.has_checksums || bytes > UNORDERED_BYTES_MAX;
        if is_ordered {
            self.flush(commit)?;
        }
        let (changes, (pages, note)) = (std::mem::take(&mut commit.changes), commit.moment);
        let (number, is_confirmation) = (commit.next_record, false);
        let record = Record { number, is_ordered, is_confirmation, pages, note, changes };
        let encoded = record.encode(self.id);
        commit.changes = record.changes;
        let offset = self.offset(commit.stored.log_place) + commit.log_used;
        self.disk.write_at(offset, &encoded).map_err(|cause| failed("sync", &cause))?;
        self.flush(commit)?;
        commit.log_used += encoded.len() as u64;
        commit.next_record += 1;
        self.confirm(commit);
        self.settled(commit);
        Ok(())
    }

    /// Writes a confirmation in the place of the next record, which says that the last one is stored: pages
    /// of it that are wrong from now on were damaged, and not left unfinished. Nobody waits until that stays.
    fn confirm(&self, commit: &Commit) {
        let (number, (pages, note)) = (commit.next_record, commit.moment);
        let (is_ordered, is_confirmation, changes) = (true, true, Vec::new());
        let record = Record { number, is_ordered, is_confirmation, pages, note, changes };
        let encoded = record.encode(self.id);
        if commit.log_used + encoded.len() as u64 <= commit.stored.log_bytes {
            let offset = self.offset(commit.stored.log_place) + commit.log_used;
            let _ = self.disk.write_at(offset, &encoded);
        }
    }

    /// Writes where all pages are, and begins the log anew; elsewhere, if it is to be longer.
    fn write_map(&self, commit: &mut Commit) -> Result<()> {
        let mut bytes = Vec::new();
        {
            // Of one moment: what is in the map is sealed.
            let _quiet = self.gate.write();
            let note = self.note();
            let mut groups: Vec<_> = self.groups.iter().map(|group| group.write()).collect();
            let pages = self.pages();
            let length = pages as usize * ENTRY_BYTES;
            bytes
                .try_reserve_exact(length)
                .map_err(|_| Error::new(ErrorKind::OutOfMemory, "sync").with_bytes(length as u64))?;
            groups.iter_mut().for_each(|group| self.seal(commit, group));
            commit.moment = (pages, note);
            for page in 0..pages {
                bytes.extend(self.table.word(page).load(Ordering::Relaxed).to_le_bytes());
                bytes.extend(self.table.sum(page).load(Ordering::Relaxed).to_le_bytes());
            }
        }
        commit.in_order();
        self.flush(commit)?;
        let (pages, note) = commit.moment;
        let place = if bytes.iter().any(|byte| *byte != 0) {
            Some(self.store_map(commit, pages, &bytes)?)
        } else {
            None
        };
        let (mut log_place, mut log_bytes) = (commit.stored.log_place, commit.stored.log_bytes);
        let longer = self.take_longer_log(pages, log_bytes);
        if let Some((places, bytes)) = &longer {
            (log_place, log_bytes) = (places.start, *bytes);
        }
        let stored = Superblock {
            generation: commit.stored.generation + 1,
            pages,
            map_place: place.as_ref().map_or(u64::MAX, |places| places.start),
            map_checksum: if place.is_some() { checksum(self.id, &bytes) } else { 0 },
            log_place,
            log_bytes,
            // A record that could not be stored may be found at the beginning of the log.
            first_record: commit.next_record + 1,
            note,
            metadata: commit.metadata().to_vec(),
            ..commit.stored.clone()
        };
        let (block, [own, other]) = (stored.encode(), stored.offsets());
        let map = place.unwrap_or(0..0);
        let written = self.disk.write_at(own, &block).map_err(|cause| failed("sync", &cause));
        if let Err(error) = written.and_then(|()| self.flush(commit)) {
            // It may be found when the store is opened, so its map has to stay, and its log.
            commit.needs_map = true;
            commit.left.push(map);
            commit.left.extend(longer.map(|(places, _)| places));
            return Err(error);
        }
        // Two of the same: one that decays is no loss.
        let _ = self.disk.write_at(other, &block);
        let before = std::mem::replace(&mut commit.map, map);
        if before.is_empty() || commit.spare.is_some() {
            commit.left.push(before);
        } else {
            commit.spare = Some(before);
        }
        if longer.is_some() {
            let places = commit.stored.log_bytes / self.place_bytes;
            commit.left.push(commit.stored.log_place..commit.stored.log_place + places);
        }
        commit.next_record = stored.first_record;
        commit.stored = stored;
        commit.metadata = None;
        commit.log_used = 0;
        commit.needs_map = false;
        self.settled(commit);
        Ok(())
    }

    /// Writes a map to places of its own, and has it stored.
    fn store_map(&self, commit: &mut Commit, pages: u64, bytes: &[u8]) -> Result<Range<u64>> {
        let is_enough = |places: &Range<u64>| places.end - places.start >= self.map_places(pages);
        let places = match commit.spare.take() {
            Some(places) if is_enough(&places) => places,
            before => {
                before.into_iter().for_each(|places| self.space.lock().free.give_back(places));
                self.take_map(pages)?
            }
        };
        let written = (0..).zip(bytes.chunks(MAP_PIECE_BYTES)).try_for_each(|(piece, bytes)| {
            self.disk.write_at(self.offset(places.start) + piece * MAP_PIECE_BYTES as u64, bytes)
        });
        let written = written.map_err(|cause| failed("sync", &cause));
        match written.and_then(|()| self.flush(commit)) {
            Ok(()) => Ok(places),
            Err(error) => {
                commit.spare = Some(places);
                Err(error)
            }
        }
    }

    /// Places for a log of so many bytes, if there are so many pages by now that the present one is short,
    /// and there is room: the longer it is, the less often the map is written.
    fn take_longer_log(&self, pages: u64, present: u64) -> Option<(Range<u64>, u64)> {
        let bytes = log_bytes(pages, self.place_bytes);
        if bytes < 2 * present {
            return None;
        }
        let mut space = self.space.lock();
        let places = space.free.take_together(bytes / self.place_bytes);
        self.reserve("sync", &mut space, places).ok().map(|places| (places, bytes))
    }

    fn map_places(&self, pages: u64) -> u64 {
        pages.saturating_mul(ENTRY_BYTES as u64).div_ceil(self.place_bytes)
    }

    /// Places for a map of so many pages.
    pub(super) fn take_map(&self, pages: u64) -> Result<Range<u64>> {
        let count = self.map_places(pages);
        let mut space = self.space.lock();
        let places = space.free.take_together(count);
        self.reserve("sync", &mut space, places)
    }

    /// Stores the newest superblock once more, and the other one as its equal.
    pub(super) fn store_superblocks(&self, commit: &mut Commit) -> Result<()> {
        let block = commit.stored.encode();
        for offset in commit.stored.offsets() {
            self.disk.write_at(offset, &block).map_err(|cause| failed("open", &cause))?;
            self.flush(commit)?;
        }
        Ok(())
    }

    /// All changes are stored.
    fn settled(&self, commit: &mut Commit) {
        commit.changes.clear();
        commit.noted = commit.moment.1;
        let mut space = self.space.lock();
        commit.left.drain(..).for_each(|places| space.free.give_back(places));
    }
}

impl Commit {
    /// Of several changes of a page leaves the last one.
    fn in_order(&mut self) {
        self.changes.reverse();
        self.changes.sort_by_key(|change| change.page);
        self.changes.dedup_by_key(|change| change.page);
    }
}
