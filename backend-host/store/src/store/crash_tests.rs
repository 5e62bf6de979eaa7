//! Simulated power losses and disk failures: committed data is present, and no page is torn.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use backend_api::ErrorKind;
use backend_api::wrap::SplitMix64;
use parking_lot::Mutex;

use super::disk::Disk;
use super::volume::{Volume, VolumePlan};

/// A disk with a volatile cache, which a power loss destroys sector by sector.
#[derive(Debug, Default)]
struct Platter {
    /// Size of an atomic write.
    sector_bytes: usize,
    stored: Vec<u8>,
    /// Contents with the cache applied.
    seen: Vec<u8>,
    /// Cached writes in their order.
    cached: Vec<(usize, Vec<u8>)>,
    /// Ranges whose visible contents may differ from the stored ones.
    dropped: Vec<Range<usize>>,
    /// Number of further modifying calls until the power fails.
    calls_left: u64,
    /// True if the power has failed.
    is_out: bool,
    /// One modifying call in this number fails, or none.
    failing: Option<u64>,
    /// One read in this number fails, or none.
    failing_reads: Option<u64>,
    /// True if the disk reports a sync without storing all data.
    lies: bool,
    random: SplitMix64Default,
}

#[derive(Debug)]
struct SplitMix64Default(SplitMix64);

impl Default for SplitMix64Default {
    fn default() -> Self {
        Self(SplitMix64::new(0))
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct SimulatedDisk(Arc<Mutex<Platter>>);

impl SimulatedDisk {
    /// A disk without failures.
    pub fn with(seed: u64) -> Self {
        let (mut random, disk) = (SplitMix64::new(seed), Self::default());
        (disk.0.lock().sector_bytes, disk.0.lock().calls_left) = ([16, 64, 512][random.index(3)], u64::MAX);
        disk.0.lock().random = SplitMix64Default(random);
        disk
    }

    /// The power fails after this number of modifying calls; one call in `failing` fails before.
    pub fn fail_after(&self, calls: u64, failing: Option<u64>) {
        (self.0.lock().calls_left, self.0.lock().failing) = (calls, failing);
    }

    pub fn lose_power(&self) {
        self.0.lock().lose_power();
    }
}

impl Platter {
    fn call(&mut self) -> io::Result<()> {
        self.is_out = self.calls_left == 0;
        self.calls_left = self.calls_left.saturating_sub(1);
        let fails = self.failing.is_some_and(|one_in| self.random.0.index(one_in as usize) == 0);
        if self.is_out || fails { Err(io::Error::other("simulated")) } else { Ok(()) }
    }

    /// Stores each cached sector with some probability, in any order.
    fn store_some(&mut self, percent: usize) {
        let mut cached = std::mem::take(&mut self.cached);
        while !cached.is_empty() {
            let (offset, bytes) = cached.swap_remove(self.random.0.index(cached.len()));
            let mut at = 0;
            while at < bytes.len() {
                let end =
                    bytes.len().min(((offset + at) / self.sector_bytes + 1) * self.sector_bytes - offset);
                if self.random.0.index(100) < percent {
                    self.stored[offset + at..offset + end].copy_from_slice(&bytes[at..end]);
                }
                at = end;
            }
        }
    }

    fn lose_power(&mut self) {
        self.dropped.extend(self.cached.iter().map(|(offset, bytes)| *offset..offset + bytes.len()));
        let percent = [0, 50, 90, 100][self.random.0.index(4)];
        self.store_some(percent);
        for range in self.dropped.drain(..) {
            self.seen[range.clone()].copy_from_slice(&self.stored[range]);
        }
    }
}

impl Disk for SimulatedDisk {
    fn read_at(&self, offset: u64, to: &mut [u8]) -> io::Result<()> {
        let platter = &mut *self.0.lock();
        if platter.failing_reads.is_some_and(|one_in| platter.random.0.index(one_in as usize) == 0) {
            return Err(io::Error::other("simulated"));
        }
        let from = platter.seen.get(offset as usize..offset as usize + to.len());
        to.copy_from_slice(from.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        let platter = &mut *self.0.lock();
        let outcome = platter.call();
        // A failed call may have written a part.
        let from = if outcome.is_err() { &from[..platter.random.0.index(from.len() + 1)] } else { from };
        if platter.is_out {
            return outcome;
        }
        let offset = offset as usize;
        if platter.seen.len() < offset + from.len() {
            platter.seen.resize(offset + from.len(), 0);
            platter.stored.resize(offset + from.len(), 0);
        }
        platter.seen[offset..offset + from.len()].copy_from_slice(from);
        platter.cached.push((offset, from.to_vec()));
        outcome
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.lock().seen.len() as u64)
    }

    fn reserve(&self, bytes: u64) -> io::Result<()> {
        let platter = &mut *self.0.lock();
        platter.call()?;
        let bytes = platter.seen.len().max(bytes as usize);
        platter.seen.resize(bytes, 0);
        platter.stored.resize(bytes, 0);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let platter = &mut *self.0.lock();
        if let Err(error) = platter.call() {
            // The disk drops failed writes, but reads return them until the power fails.
            let cached = platter.cached.iter().map(|(at, bytes)| *at..at + bytes.len());
            platter.dropped.extend(cached);
            platter.store_some(50);
            return Err(error);
        }
        if !platter.lies {
            for (offset, bytes) in platter.cached.drain(..) {
                platter.stored[offset..offset + bytes.len()].copy_from_slice(&bytes);
            }
        }
        Ok(())
    }
}

/// Contents of a store: its pages without trailing zeroes, and the note stored with them.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Contents {
    pages: Vec<Vec<u8>>,
    note: [u64; 3],
}

fn read(volume: &Volume, page: u64) -> backend_api::Result<Vec<u8>> {
    let bytes = volume.page_bytes();
    let mut into = vec![0; bytes];
    let read = volume.read("read", page * bytes as u64, bytes, |done, part| {
        into[done..done + part.len()].copy_from_slice(part);
    });
    read.map(|()| into)
}

fn contents(volume: &Volume) -> Contents {
    let mut pages: Vec<_> = (0..volume.pages()).map(|page| read(volume, page).unwrap()).collect();
    trim(&mut pages);
    Contents { pages, note: volume.note() }
}

fn trim(pages: &mut Vec<Vec<u8>>) {
    while pages.last().is_some_and(|page| page.iter().all(|byte| *byte == 0)) {
        pages.pop();
    }
}

fn write(volume: &Volume, offset: u64, bytes: &[u8]) -> backend_api::Result<()> {
    volume.write("write", offset, bytes.len(), |done, part| {
        part.copy_from_slice(&bytes[done..done + part.len()]);
    })
}

/// Threads append numbers, note the count, and commit, like growing arrays. After a power failure the note is
/// at least the count at the last commit, and all noted numbers are present.
#[test]
fn noted_metadata_survives() {
    const PAGE_BYTES: usize = 64;
    const NUMBERS: u64 = PAGE_BYTES as u64 / 8;
    let disk = SimulatedDisk::default();
    (disk.0.lock().sector_bytes, disk.0.lock().calls_left) = (16, u64::MAX);
    let (page_bytes, has_checksums, metadata, note) = (PAGE_BYTES, true, Vec::new(), [0; 3]);
    let plan = VolumePlan { page_bytes, pages: 0, has_checksums, metadata, note, id: 1 };
    drop(Volume::create(Box::new(disk.clone()), plan).unwrap());
    let mut least = 0;
    for round in 0..losses() / 50 {
        let mut random = SplitMix64::new(first_seed() + round);
        disk.0.lock().calls_left = u64::MAX;
        let volume = Volume::open(Box::new(disk.clone()), false).unwrap();
        let [found, ..] = volume.note();
        assert!(found >= least, "round {round}: {found} of {least}");
        let holds = |place: u64| {
            read(&volume, place / NUMBERS).unwrap()[(place % NUMBERS) as usize * 8..][..8]
                == place.to_le_bytes()
        };
        assert!((0..found).all(holds), "round {round}");
        least = found;
        disk.0.lock().calls_left = random.index(800) as u64;
        let (pushed, committed) = (Mutex::new(found), AtomicU64::new(found));
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let (volume, pushed, committed) = (&volume, &pushed, &committed);
                let mut random = SplitMix64::new(round << 8 | thread);
                scope.spawn(move || {
                    loop {
                        let len = {
                            let mut pushed = pushed.lock();
                            volume.lengthen("extend", *pushed / NUMBERS + 1).unwrap();
                            if write(volume, *pushed * 8, &pushed.to_le_bytes()).is_err() {
                                return;
                            }
                            *pushed += 1;
                            *pushed
                        };
                        if random.index(9) == 0 {
                            // Hold the lock, so that a slower thread cannot store a lower note.
                            let noted = pushed.lock();
                            volume.set_note([*noted, 0, 0]).unwrap();
                            drop(noted);
                            if volume.sync().is_err() {
                                return;
                            }
                            committed.fetch_max(len, Ordering::SeqCst);
                        }
                    }
                });
            }
        });
        least = least.max(committed.into_inner());
        drop(volume);
        disk.0.lock().random = SplitMix64Default(SplitMix64::new(round));
        disk.0.lock().lose_power();
    }
    assert!(least > 1000, "{least}");
}

/// A store of another version is refused, with advice in the error.
#[test]
fn other_versions_are_refused() {
    for (version, advice) in [(1, "that created the store"), (200, "newer version")] {
        let (disk, volume) = simulated(4);
        drop(volume);
        for start in [0, 4096] {
            let platter = &mut *disk.0.lock();
            platter.seen[start + 8] = version;
            let sum = super::format::checksum(0, &platter.seen[start..start + 4088]);
            platter.seen[start + 4088..start + 4096].copy_from_slice(&sum.to_le_bytes());
        }
        let error = Volume::open(Box::new(disk), false).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WrongFormat);
        assert!(error.to_string().contains(advice), "{error}");
    }
}

/// A store that grows far beyond its initial size gets a longer log, so that it seldom writes its map.
#[test]
fn the_log_grows_with_the_store() {
    let (disk, volume) = simulated(0);
    volume.lengthen("extend", 40_000).unwrap();
    for page in [7, 39_999, 20_000] {
        write(&volume, page * 512, &[page as u8; 512]).unwrap();
        volume.set_metadata(b"have the map written").unwrap();
        volume.sync().unwrap();
    }
    let before = volume.commits();
    for value in 1..100_u8 {
        write(&volume, 512, &[value; 512]).unwrap();
        volume.sync().unwrap();
    }
    // If the file wrote its map, there would be more commits than this.
    assert_eq!(volume.commits() - before, 99, "640 KiB have room for so many records");
    drop(volume);
    let volume = Volume::open(Box::new(disk), false).unwrap();
    assert_eq!((volume.pages(), read(&volume, 1).unwrap()), (40_000, vec![99; 512]));
    for page in [7, 39_999, 20_000] {
        assert_eq!(read(&volume, page).unwrap(), vec![page as u8; 512]);
    }
}

#[test]
fn a_record_at_the_end_of_the_log_is_confirmed() {
    let (disk, volume) = simulated(0);
    volume.lengthen("extend", 5000).unwrap();
    // The records have one to fifteen blocks, and end at all distances from the end of the log.
    for commit in 1..1500 {
        for page in 0..commit * commit % 2500 {
            write(&volume, page * 512, &[commit as u8; 512]).unwrap();
        }
        write(&volume, 512, &[commit as u8; 512]).unwrap();
        volume.sync().unwrap();
        for range in volume.confirmation() {
            let mut bytes = vec![0; range.len()];
            disk.read_at(range.start as u64, &mut bytes).unwrap();
            let confirmed = &bytes[..];
            assert!(confirmed.iter().any(|byte| *byte != 0), "commit {commit}");
        }
    }
}

/// Number of simulated losses: from the environment, else a few thousand.
fn losses() -> u64 {
    number("VMARRAY_POWER_LOSSES").unwrap_or(2000)
}

/// The first seed, from the environment, so that several processes share the work.
fn first_seed() -> u64 {
    number("VMARRAY_POWER_SEED").unwrap_or(0)
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// A store that is used until the power fails, again and again.
struct Round {
    disk: SimulatedDisk,
    random: SplitMix64,
    page_bytes: usize,
    pages: u64,
}

impl Round {
    fn new(seed: u64, has_checksums: bool) -> Self {
        let mut random = SplitMix64::new(seed);
        let disk = SimulatedDisk::default();
        disk.0.lock().random = SplitMix64Default(SplitMix64::new(seed));
        disk.0.lock().calls_left = u64::MAX;
        disk.0.lock().sector_bytes = [16, 64, 512][random.index(3)];
        let page_bytes = [16, 100, 512, 1000, 4096][random.index(5)];
        let pages = 1 + random.index(if page_bytes < 512 { 300 } else { 12 }) as u64;
        let (metadata, note) = (Vec::new(), [0; 3]);
        let plan = VolumePlan { page_bytes, pages, has_checksums, metadata, note, id: seed };
        drop(Volume::create(Box::new(disk.clone()), plan).unwrap());
        Self { disk, random, page_bytes, pages }
    }

    /// Writes a page, some bytes or zeroes at random; sometimes to new pages.
    fn change(&mut self, volume: &Volume, now: &mut Contents) {
        if self.random.index(12) == 0 {
            self.pages += self.random.index(if self.page_bytes < 512 { 60 } else { 4 }) as u64;
        }
        // Also extend over pages that were truncated before the store was opened.
        volume.lengthen("extend", self.pages).unwrap();
        let pages = &mut now.pages;
        pages.resize(self.pages as usize, vec![0; self.page_bytes]);
        let all = self.pages as usize * self.page_bytes;
        let start = self.random.index(all);
        let (start, bytes) = match self.random.index(3) {
            0 => (start, 1 + self.random.index((all - start).min(3 * self.page_bytes))),
            1 => (start / self.page_bytes * self.page_bytes, self.page_bytes),
            _ => (start, 1 + self.random.index((all - start).min(8))),
        };
        // Use few different values, so that pages repeat earlier contents of themselves or of other pages.
        let mut written = vec![self.random.index(3) as u8; bytes];
        if self.random.index(5) == 0 {
            self.random.fill(&mut written);
        }
        let written_all = write(volume, start as u64, &written).is_ok();
        for (at, byte) in (start..).zip(written) {
            pages[at / self.page_bytes][at % self.page_bytes] = byte;
        }
        if !written_all {
            // After a failure some pages may have the new bytes, so read them.
            let (first, last) = (start / self.page_bytes, (start + bytes - 1) / self.page_bytes);
            for (page, now) in (first as u64..).zip(&mut pages[first..=last]) {
                *now = read(volume, page).expect("no page is written over where it is");
            }
        }
        if self.random.index(8) == 0 {
            let cleared = self.random.index(pages.len());
            volume.clear(cleared as u64);
            pages[cleared].fill(0);
        }
        trim(pages);
        if self.random.index(3) == 0 {
            now.note = [self.random.index(1000) as u64, bytes as u64, start as u64];
            volume.set_note(now.note).unwrap();
        }
    }
}

/// Each time the store is as at the last finished commit, or at a later one that was begun. That also holds
/// if it is reopened after failures without a power loss.
#[test]
fn committed_pages_survive_losses_of_power() {
    let mut left = losses();
    let mut seed = first_seed();
    while left > 0 {
        seed += 1;
        let mut round = Round::new(seed, !seed.is_multiple_of(4));
        let platter = round.disk.clone();
        // The permitted states are the last commit, and later commits that failed.
        let mut allowed = vec![Contents { pages: Vec::new(), note: [0; 3] }];
        for _ in 0..left.min(100) {
            left -= 1;
            platter.0.lock().calls_left = round.random.index(80) as u64;
            platter.0.lock().failing = [None, None, Some(10)][round.random.index(3)];
            platter.0.lock().failing_reads = [None, None, None, Some(4)][round.random.index(4)];
            let volume = Volume::open(Box::new(round.disk.clone()), false);
            platter.0.lock().failing_reads = None;
            if let Ok(volume) = volume {
                let mut now = contents(&volume);
                assert!(allowed.contains(&now), "seed {seed}: neither the last commit nor a later one");
                // The found state becomes the baseline: no part of it may disappear.
                allowed = vec![now.clone()];
                for _ in 0..round.random.index(100) {
                    if round.random.index(4) > 0 {
                        round.change(&volume, &mut now);
                        continue;
                    }
                    if round.random.index(8) == 0 {
                        volume.set_metadata(&[round.random.index(256) as u8]).unwrap();
                    }
                    // The state of a failed commit is permitted.
                    match volume.sync() {
                        Ok(()) => allowed = vec![now.clone()],
                        Err(_) => allowed.push(now.clone()),
                    }
                }
                if round.random.index(3) == 0 {
                    match volume.close() {
                        Ok(()) => allowed = vec![now],
                        Err(_) => allowed.push(now),
                    }
                }
            }
            // Sometimes the store is closed; sometimes only the process ends.
            if platter.0.lock().is_out || round.random.index(3) > 0 {
                platter.0.lock().lose_power();
            }
        }
        platter.0.lock().calls_left = u64::MAX;
        platter.0.lock().failing = None;
        let volume = Volume::open(Box::new(round.disk.clone()), false);
        let found = contents(&volume.unwrap_or_else(|error| panic!("seed {seed}: {error}")));
        assert!(allowed.contains(&found), "seed {seed}: neither the last commit nor a later one");
    }
}

/// Threads write while others commit: each page is a version that its thread wrote, no older than the last
/// commit.
#[test]
fn pages_are_whole_while_threads_write() {
    const PAGE_BYTES: usize = 100;
    let disk = SimulatedDisk::default();
    (disk.0.lock().sector_bytes, disk.0.lock().calls_left) = (64, u64::MAX);
    let (page_bytes, has_checksums, metadata, note) = (PAGE_BYTES, true, Vec::new(), [0; 3]);
    let plan = VolumePlan { page_bytes, pages: 256, has_checksums, metadata, note, id: 1 };
    drop(Volume::create(Box::new(disk.clone()), plan).unwrap());
    for round in 0..20_u64 {
        disk.0.lock().calls_left = u64::MAX;
        let volume = Volume::open(Box::new(disk.clone()), false).unwrap();
        (0..256).for_each(|page| write(&volume, page * PAGE_BYTES as u64, &[0; PAGE_BYTES]).unwrap());
        volume.sync().unwrap();
        disk.0.lock().calls_left = 2000 + SplitMix64::new(round).index(20_000) as u64;
        let written: Vec<AtomicU64> = (0..4).map(|_| AtomicU64::new(0)).collect();
        let synced: Vec<AtomicU64> = (0..4).map(|_| AtomicU64::new(0)).collect();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (volume, written, synced) = (&volume, &written[thread], &synced[thread]);
                scope.spawn(move || {
                    // One job writes the same number to all its pages, like one piece of work of a device.
                    for number in 1..=u64::MAX {
                        let page = [&number.to_le_bytes()[..], &[number as u8; PAGE_BYTES - 8]].concat();
                        written.store(number, Ordering::SeqCst);
                        {
                            let _job = volume.gate.read();
                            for piece in 0..8 {
                                let offset = (thread * 64 + piece * 8) * PAGE_BYTES;
                                if write(volume, offset as u64, &page.repeat(8)).is_err() {
                                    return;
                                }
                            }
                        }
                        if number % 7 == 0 && volume.sync().is_ok() {
                            synced.store(number, Ordering::SeqCst);
                        }
                    }
                });
            }
        });
        drop(volume);
        disk.0.lock().random = SplitMix64Default(SplitMix64::new(round));
        disk.0.lock().lose_power();
        let volume = Volume::open(Box::new(disk.clone()), true).unwrap();
        for thread in 0..4_usize {
            let first = read(&volume, thread as u64 * 64).unwrap();
            let number = u64::from_le_bytes(*first.first_chunk().unwrap());
            let least = synced[thread].load(Ordering::SeqCst);
            assert!(number >= least && number <= written[thread].load(Ordering::SeqCst), "{number}, {least}");
            for page in 0..64 {
                // All pages must have the number of the same job.
                assert_eq!(read(&volume, (thread * 64 + page) as u64).unwrap(), first, "page {page}");
            }
        }
    }
}

/// A disk that loses flushed data: older contents or an error, but never foreign contents.
#[test]
fn a_disk_that_lies_gives_errors_or_older_pages() {
    let (mut errors, mut wrong) = (0, 0);
    for seed in (first_seed()..).take(losses() as usize / 20) {
        let mut round = Round::new(seed, true);
        let zeroes = vec![0; round.page_bytes];
        let mut history = vec![vec![zeroes.clone()]; round.pages as usize];
        let volume = Volume::open(Box::new(round.disk.clone()), false).unwrap();
        let mut now = contents(&volume);
        for step in 0..40 {
            round.disk.0.lock().lies = step >= 20;
            round.change(&volume, &mut now);
            history.resize(round.pages as usize, vec![zeroes.clone()]);
            for (page, had) in history.iter_mut().enumerate() {
                had.push(now.pages.get(page).unwrap_or(&zeroes).clone());
            }
            if round.random.index(3) == 0 {
                volume.sync().unwrap();
            }
        }
        drop(volume);
        round.disk.0.lock().lose_power();
        let Ok(volume) = Volume::open(Box::new(round.disk.clone()), true) else {
            errors += 1;
            continue;
        };
        for (page, had) in (0..volume.pages()).zip(&history) {
            match read(&volume, page) {
                Ok(found) => assert!(had.contains(&found), "seed {seed}, page {page}"),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Corrupted);
                    wrong += 1;
                }
            }
        }
    }
    assert!(errors + wrong > 0, "nothing of it came to light");
}

/// Offset of bytes that occur once on the disk.
fn find(disk: &SimulatedDisk, wanted: &[u8]) -> usize {
    disk.0.lock().seen.windows(wanted.len()).position(|some| some == wanted).unwrap()
}

fn simulated(pages: u64) -> (SimulatedDisk, Volume) {
    let disk = SimulatedDisk::default();
    (disk.0.lock().sector_bytes, disk.0.lock().calls_left) = (512, u64::MAX);
    let (page_bytes, has_checksums, metadata, note) = (512, true, Vec::new(), [0; 3]);
    let plan = VolumePlan { page_bytes, pages, has_checksums, metadata, note, id: 1 };
    let volume = Volume::create(Box::new(disk.clone()), plan).unwrap();
    (disk, volume)
}

/// Damaged committed data is an error, also in the last commit: the store does not roll it back.
#[test]
fn damage_in_the_last_commit_is_an_error() {
    let (disk, volume) = simulated(4);
    write(&volume, 0, &[7; 512]).unwrap();
    volume.sync().unwrap();
    drop(volume);
    let at = find(&disk, &[7; 512]);
    disk.0.lock().seen[at] = 8;
    for is_read_only in [true, false, true] {
        let volume = Volume::open(Box::new(disk.clone()), is_read_only).unwrap();
        assert_eq!(read(&volume, 0).unwrap_err().kind(), ErrorKind::Corrupted);
    }
}

/// An unfinished commit does not complete later, when its places get the expected bytes by chance.
#[test]
fn a_commit_that_was_taken_back_does_not_return() {
    let (disk, volume) = simulated(4);
    write(&volume, 0, &[1; 512]).unwrap();
    volume.sync().unwrap();
    let stored = disk.0.lock().stored.clone();
    write(&volume, 0, &[0; 512]).unwrap();
    write(&volume, 512, &[2; 512]).unwrap();
    volume.sync().unwrap();
    drop(volume);
    // The disk stored the whole commit except this page.
    let at = find(&disk, &[2; 512]);
    let after = disk.0.lock().stored.clone();
    let platter = &mut *disk.0.lock();
    platter.stored = after;
    let old = stored.get(at..at + 512).map_or(vec![0; 512], <[u8]>::to_vec);
    platter.stored[at..at + 512].copy_from_slice(&old);
    platter.seen.clone_from(&platter.stored);
    platter.cached.clear();
    // The disk did not store the confirmation of the commit either.
    let log = super::format::HEAD_BYTES as usize;
    platter.seen[log + 8192..log + 12288].fill(0);
    platter.stored.clone_from(&platter.seen);
    let disk = SimulatedDisk(Arc::new(Mutex::new(std::mem::take(platter))));
    let volume = Volume::open(Box::new(disk.clone()), false).unwrap();
    assert_eq!((read(&volume, 0).unwrap(), read(&volume, 1).unwrap()), (vec![1; 512], vec![0; 512]));
    volume.sync().unwrap();
    // Fill the disk with the same bytes at each place that the page can get now.
    disk.0.lock().seen[at..at + 512].fill(2);
    drop(volume);
    let volume = Volume::open(Box::new(disk.clone()), false).unwrap();
    assert_eq!((read(&volume, 0).unwrap(), read(&volume, 1).unwrap()), (vec![1; 512], vec![0; 512]));
}
