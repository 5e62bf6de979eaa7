//! Commits of a volume: write the log and the page map, and free the disk space of replaced pages.

use std::ops::Range;
use std::sync::atomic::Ordering;

use backend_api::{Error, ErrorKind, Result};

use super::super::format::{
    Closing, CommitId, CommitMetadata, ENTRY_BYTES, PageMove, Record, SUPERBLOCK_BYTES, Superblock, checksum,
    random,
};
use super::recover::log_bytes;
use super::{Changed, CommitState, FRESH, Volume, corrupted, failed};

/// Up to this number of bytes, a commit stores pages together with their record, and opening detects missing
/// pages by their checksums. More pages are stored before the record, because opening then has less to read.
const UNORDERED_BYTES_MAX: u64 = 16 << 20;
/// Bytes of one write of the map.
const MAP_PIECE_BYTES: usize = 4 << 20;

/// Commit that one volume has stored, but other volumes of its group may not have.
#[derive(Debug)]
pub(super) enum Prepared {
    /// A record in the log, with its length in bytes and its checksum.
    Record { bytes: u64, checksum: u64 },
    /// A superblock that has replaced the older copy.
    Map {
        superblock: Box<Superblock>,
        map: Range<u64>,
        /// Places of a longer log, and its length in bytes.
        longer: Option<(Range<u64>, u64)>,
    },
}

impl Volume {
    /// Replaces the program's metadata. The next commit stores the metadata.
    pub fn set_metadata(&self, metadata: &[u8]) -> Result<()> {
        const OPERATION: &str = "set_metadata";
        if self.is_read_only {
            return Err(Error::new(ErrorKind::ReadOnly, OPERATION));
        }
        self.commit.lock().metadata = Some(Superblock::fitting(OPERATION, metadata)?);
        Ok(())
    }

    /// Commits this volume without other volumes: [`sync_together`](super::sync_together).
    #[cfg(test)]
    pub fn sync(&self) -> Result<()> {
        super::sync_together(&[self]).map_err(|(_, error)| error)
    }

    /// Returns an error if another program has copied another store, or an earlier version of this one, into
    /// the file. Length and identity of the file may be unchanged.
    pub(super) fn expect_superblock(&self, commit: &CommitState) -> Result<()> {
        let mut block = [0; SUPERBLOCK_BYTES];
        let [own, _] = commit.stored.offsets();
        // Only a readable superblock with other contents proves that another program replaced the file. So
        // skip this check after a failed write, which leaves the contents unknown (`needs_map`).
        let is_known = !commit.needs_map && self.disk.read_at(own, &mut block).is_ok();
        if is_known && Superblock::decode(&block).is_ok_and(|found| found != commit.stored) {
            let detail = "another program has replaced the contents of the file while it was open";
            return Err(corrupted("sync", detail).with_advice("save the contents to another file"));
        }
        Ok(())
    }

    /// Commits this volume alone, and marks the store as closed.
    ///
    /// # Errors
    /// The errors of [`sync`](Self::sync). The store is then in its state after `sync`, or not closed.
    #[cfg(test)]
    pub fn close(&self) -> Result<()> {
        if self.is_read_only || self.is_removed() {
            return Ok(());
        }
        self.sync()?;
        self.mark_closed()
    }

    /// Commits this volume, which is a copy of another volume, with the commit `id` of the other volume. Then
    /// marks the store as closed.
    pub fn close_at(&self, id: CommitId) -> Result<()> {
        let commit = &mut *self.commit.lock();
        // Write a superblock even if no page changed, because the superblock has the commit number and token.
        commit.needs_map = true;
        let outcome = super::together::commit_together(&[self], &mut [&mut *commit], Some(id));
        outcome.map_err(|(_, error)| error)?;
        self.set_closing_mark(commit)
    }

    /// Marks the store as closed, and records the end of the log. All changes must be committed. Afterwards
    /// the store accepts no write.
    pub fn mark_closed(&self) -> Result<()> {
        self.set_closing_mark(&mut self.commit.lock())
    }

    fn set_closing_mark(&self, commit: &mut CommitState) -> Result<()> {
        const OPERATION: &str = "close";
        if commit.is_suspect {
            return Ok(());
        }
        let disk_bytes = {
            let space = &mut *self.space.lock();
            space.is_closed = true;
            space.reserved
        };
        let (last_record, checksum) = (commit.next_record - 1, commit.last_checksum);
        let closing = Some(Closing { last_record, checksum, disk_bytes });
        let generation = commit.stored.generation + 1;
        let superblock = Superblock { generation, closing, ..commit.stored.clone() };
        self.replace_superblock(OPERATION, commit, superblock)
    }

    /// Number of commits that changed pages.
    #[cfg(test)]
    pub fn commits(&self) -> u64 {
        let commit = self.commit.lock();
        commit.next_record - 1
    }

    /// Byte ranges of the disk with the confirmation record of the last commit; empty if there is none.
    #[cfg(test)]
    pub fn confirmation(&self) -> Vec<Range<usize>> {
        let commit = self.commit.lock();
        let start = self.offset(commit.stored.log_place) + commit.log_used;
        let is_there = commit.log_used > 0;
        is_there.then(|| start as usize..start as usize + Record::bytes(0)).into_iter().collect()
    }

    /// Returns the number and the token of the last commit.
    pub fn commit_id(&self) -> CommitId {
        self.commit.lock().id
    }

    /// Collects the changes of the next commit, and records its note.
    pub(super) fn collect(&self, commit: &mut CommitState, note: CommitMetadata) -> Result<()> {
        {
            let _quiet = self.gate.write();
            self.groups.iter().for_each(|group| self.seal(commit, &mut group.write()));
            commit.moment = (self.pages(), note);
        }
        commit.in_order();
        if commit.is_suspect { self.write_again(commit) } else { Ok(()) }
    }

    /// Stores the collected changes. The previous commit stays valid until [`settle`](Self::settle).
    pub(super) fn prepare(&self, commit: &mut CommitState, id: CommitId) -> Result<Prepared> {
        // Also reserve log space for the confirmation (a record without changes), which follows the record.
        let record_bytes = Record::bytes(commit.changes.len()) + Record::bytes(0);
        let needed = commit.log_used + record_bytes as u64;
        if needed > commit.stored.log_bytes || commit.metadata.is_some() || commit.needs_map {
            self.write_map(commit, id)
        } else {
            self.append_record(commit, id)
        }
    }

    /// Completes a commit after all volumes of the group have stored it.
    pub(super) fn settle(&self, commit: &mut CommitState, id: CommitId, prepared: Prepared) {
        commit.id = id;
        // Free the buffers, because many files may be idle, and need none until their next commit.
        self.buffers.lock().clear();
        match prepared {
            Prepared::Record { bytes, checksum } => {
                commit.has_tail = false;
                commit.log_used += bytes;
                commit.next_record += 1;
                commit.last_checksum = checksum;
                self.confirm(commit);
            }
            Prepared::Map { superblock, map, longer } => {
                let log_before = (commit.stored.log_place, commit.stored.log_bytes);
                self.complete_superblock(commit, *superblock);
                // Flush before records overwrite the log, to which the superblock's old copy may still refer.
                let _ = self.flush(commit);
                let before = std::mem::replace(&mut commit.map, map);
                if before.is_empty() || commit.spare.is_some() {
                    commit.left.push(before);
                } else {
                    commit.spare = Some(before);
                }
                if longer.is_some() {
                    let (place, bytes) = log_before;
                    commit.left.push(place..place + bytes / self.place_bytes);
                }
                commit.next_record = commit.stored.first_record;
                (commit.log_used, commit.last_checksum, commit.has_tail) = (0, 0, false);
                commit.metadata = None;
            }
        }
        commit.changes.clear();
        commit.noted = commit.moment.1;
        let mut space = self.space.lock();
        commit.left.drain(..).for_each(|places| space.free.give_back(places));
    }

    /// Withdraws a commit that another volume of the group could not store. The next commit replaces it.
    pub(super) fn withdraw(commit: &mut CommitState, prepared: Prepared) {
        if let Prepared::Map { map, longer, .. } = prepared {
            // Recovery may find the superblock of this failed commit, so keep the commit's map and log.
            commit.left.push(map);
            commit.left.extend(longer.map(|(places, _)| places));
        }
    }

    /// Collects the changes of a group of pages. Later writes to these pages go to other places.
    fn seal(&self, commit: &mut CommitState, group: &mut Changed) {
        let Some(changed) = group.0.take() else { return };
        for page in changed.pages {
            let word = self.table.word(page).fetch_and(!FRESH, Ordering::Relaxed) & !FRESH;
            let checksum = self.table.sum(page).load(Ordering::Relaxed);
            commit.changes.push(PageMove { page, word, checksum });
        }
        commit.left.extend(changed.left.into_iter().map(|place| place..place + 1));
    }

    /// After a failure of the disk, writes pages that may be lost to other places.
    fn write_again(&self, commit: &mut CommitState) -> Result<()> {
        const OPERATION: &str = "sync";
        let mut bytes = self.buffer(OPERATION, 0, self.page_bytes)?;
        let CommitState { changes, left, is_suspect, .. } = commit;
        for change in changes.iter_mut().filter(|change| change.word != 0) {
            let page = &mut bytes.0[..self.page_bytes];
            let mut group = self.group(change.page).write();
            self.disk
                .read_at(self.offset(change.word - 1), page)
                .map_err(|cause| self.unreadable(OPERATION, change.page, &cause))?;
            let mut blocks = Vec::new();
            let sum = self.sums.of_page(change.page, page, &mut blocks);
            if self.sums.are_kept() && sum != change.checksum {
                let detail = format!("page {} is lost, since the disk failed to store it", change.page);
                return Err(corrupted(OPERATION, detail));
            }
            let place = self.take_places(OPERATION, 1)?;
            if let Err(cause) = self.write_places(place.start, page) {
                self.space.lock().free.give_back(place);
                return Err(failed(OPERATION, &cause));
            }
            self.write_block_sums(place.start, &blocks);
            let word = self.table.word(change.page);
            if word.load(Ordering::Relaxed) == change.word {
                word.store(place.end, Ordering::Relaxed);
                left.push(change.word - 1..change.word);
            } else {
                // A concurrent write has moved the page, and freed the part of the disk to which this commit
                // refers. Keep that part allocated until the next commit.
                group.pages().left.push(place.start);
            }
            change.word = place.end;
        }
        *is_suspect = false;
        self.buffers.lock().push(bytes);
        Ok(())
    }

    fn flush(&self, commit: &mut CommitState) -> Result<()> {
        self.disk.sync().map_err(|cause| {
            // The system reports failed writes once, and may drop them. So the next commit repeats them.
            commit.is_suspect = true;
            failed("sync", &cause)
        })
    }

    /// Writes the changes to the log.
    fn append_record(&self, commit: &mut CommitState, id: CommitId) -> Result<Prepared> {
        let bytes = commit.changes.len() as u64 * self.page_bytes as u64;
        let is_ordered = !self.sums.are_kept() || bytes > UNORDERED_BYTES_MAX;
        if is_ordered {
            self.flush(commit)?;
        }
        let (changes, (pages, note)) = (std::mem::take(&mut commit.changes), commit.moment);
        let (number, before, is_confirmation) = (commit.next_record, commit.last_checksum, false);
        let record = Record { number, commit: id, before, is_ordered, is_confirmation, pages, note, changes };
        let (encoded, checksum) = record.encode(commit.stored.log_seed());
        commit.changes = record.changes;
        commit.has_tail = true;
        let offset = self.offset(commit.stored.log_place) + commit.log_used;
        self.disk.write_at(offset, &encoded).map_err(|cause| failed("sync", &cause))?;
        self.flush(commit)?;
        Ok(Prepared::Record { bytes: encoded.len() as u64, checksum })
    }

    /// Writes a confirmation in the place of the next record. It proves that all volumes of the group have
    /// stored the commit. So if its pages are wrong later, they were damaged, and not left unfinished. No
    /// thread waits for this write.
    fn confirm(&self, commit: &CommitState) {
        let (number, before, (pages, note)) = (commit.next_record, commit.last_checksum, commit.moment);
        let (is_ordered, is_confirmation, changes) = (true, true, Vec::new());
        let id = commit.id;
        let record = Record { number, commit: id, before, is_ordered, is_confirmation, pages, note, changes };
        let (encoded, _) = record.encode(commit.stored.log_seed());
        let offset = self.offset(commit.stored.log_place) + commit.log_used;
        let _ = self.disk.write_at(offset, &encoded);
    }

    /// Writes the map with the places of all pages, and a superblock that begins a new log. If the log is to
    /// be longer, it gets other places.
    fn write_map(&self, commit: &mut CommitState, id: CommitId) -> Result<Prepared> {
        let mut bytes = Vec::new();
        {
            // Lock `gate` to stop all writes, because the map must contain all changes of one moment.
            let _quiet = self.gate.write();
            let mut groups: Vec<_> = self.groups.iter().map(|group| group.write()).collect();
            let pages = self.pages();
            let length = pages as usize * ENTRY_BYTES;
            bytes
                .try_reserve_exact(length)
                .map_err(|_| Error::new(ErrorKind::OutOfMemory, "sync").with_bytes(length as u64))?;
            groups.iter_mut().for_each(|group| self.seal(commit, group));
            commit.moment.0 = pages;
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
        let generation = commit.stored.generation + 1;
        let superblock = Superblock {
            generation,
            pages,
            map_place: place.as_ref().map_or(u64::MAX, |places| places.start),
            map_checksum: if place.is_some() { checksum(commit.stored.id, &bytes) } else { 0 },
            log_place,
            log_bytes,
            // Skip a number: a record with the next number, whose write failed, may be in the log.
            first_record: commit.next_record + 1,
            epoch: random(),
            commit: id,
            note,
            metadata: commit.metadata().to_vec(),
            ..commit.stored.clone()
        };
        let outcome = self.begin_superblock("sync", commit, &superblock);
        let prepared = Prepared::Map { superblock: Box::new(superblock), map: place.unwrap_or(0..0), longer };
        match outcome {
            Ok(()) => Ok(prepared),
            Err(error) => {
                Self::withdraw(commit, prepared);
                Err(error)
            }
        }
    }

    /// Replaces the superblock by another one of the same commit.
    pub(super) fn replace_superblock(
        &self,
        operation: &'static str,
        commit: &mut CommitState,
        superblock: Superblock,
    ) -> Result<()> {
        self.begin_superblock(operation, commit, &superblock)?;
        self.complete_superblock(commit, superblock);
        Ok(())
    }

    /// Writes a superblock over the older copy. Meanwhile, opening may find either superblock.
    fn begin_superblock(
        &self,
        operation: &'static str,
        commit: &mut CommitState,
        superblock: &Superblock,
    ) -> Result<()> {
        let (block, [own, _]) = (superblock.encode(), superblock.offsets());
        let written = self.disk.write_at(own, &block).map_err(|cause| failed(operation, &cause));
        commit.needs_map = true;
        written.and_then(|()| self.flush(commit))
    }

    /// Makes a stored superblock the valid one, and writes its second copy; the next flush stores it.
    fn complete_superblock(&self, commit: &mut CommitState, superblock: Superblock) {
        let [_, other] = superblock.offsets();
        // Write the second copy of the superblock. Then damage of one copy loses nothing.
        let _ = self.disk.write_at(other, &superblock.encode());
        commit.needs_map = false;
        commit.stored = superblock;
    }

    /// Writes the map to newly allocated places, and syncs it.
    fn store_map(&self, commit: &mut CommitState, pages: u64, bytes: &[u8]) -> Result<Range<u64>> {
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

    /// Allocates places for a longer log of `bytes` bytes, if the number of pages justifies it and the disk
    /// has space. With a longer log, commits write the map less often.
    fn take_longer_log(&self, pages: u64, present: u64) -> Option<(Range<u64>, u64)> {
        let bytes = log_bytes(pages, self.place_bytes);
        if bytes < 2 * present {
            return None;
        }
        self.take_places_together("sync", bytes / self.place_bytes).ok().map(|places| (places, bytes))
    }

    fn map_places(&self, pages: u64) -> u64 {
        pages.saturating_mul(ENTRY_BYTES as u64).div_ceil(self.place_bytes)
    }

    /// Allocates places for a map of this number of pages.
    pub(super) fn take_map(&self, pages: u64) -> Result<Range<u64>> {
        self.take_places_together("sync", self.map_places(pages))
    }

    /// Stores the valid superblock again, before its other copy is overwritten.
    pub(super) fn store_superblock(&self, commit: &mut CommitState) -> Result<()> {
        let (block, [own, _]) = (commit.stored.encode(), commit.stored.offsets());
        self.disk.write_at(own, &block).map_err(|cause| failed("open", &cause))?;
        self.flush(commit)
    }
}

impl CommitState {
    /// Returns true if the commit has anything to store.
    pub(super) fn is_needed(&self) -> bool {
        let is_noted = self.noted == self.moment.1;
        let is_same = self.changes.is_empty() && is_noted && !self.has_tail;
        !is_same || self.metadata.is_some() || self.needs_map
    }

    /// Sorts the changes, and keeps only the last change of each page.
    fn in_order(&mut self) {
        self.changes.reverse();
        self.changes.sort_by_key(|change| change.page);
        self.changes.dedup_by_key(|change| change.page);
    }
}
