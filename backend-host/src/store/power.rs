//! Losses of power and failures of the disk, simulated: what was committed is there, and nothing is torn.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use backend_api::ErrorKind;
use backend_api::wrap::SplitMix64;
use parking_lot::Mutex;

use super::disk::Disk;
use super::volume::{Volume, VolumePlan};

/// What a disk stores as a whole.
const SECTOR_BYTES: usize = 512;

/// A disk with a cache that is lost with the power, sector by sector.
#[derive(Debug, Default)]
struct Platter {
    stored: Vec<u8>,
    /// With what is in the cache.
    seen: Vec<u8>,
    /// What is in the cache, in the order in which it was written.
    cached: Vec<(usize, Vec<u8>)>,
    /// What is seen there may not be what is stored.
    dropped: Vec<Range<usize>>,
    /// After so many more calls that change something the power is gone.
    calls_left: u64,
    /// One call in so many fails, or none.
    failing: Option<u64>,
    /// Whether it says that it has stored what it has not.
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
struct SimulatedDisk(Arc<Mutex<Platter>>);

impl Platter {
    fn call(&mut self) -> io::Result<()> {
        let is_out = self.calls_left == 0;
        self.calls_left = self.calls_left.saturating_sub(1);
        let fails = self.failing.is_some_and(|one_in| self.random.0.index(one_in as usize) == 0);
        if is_out || fails { Err(io::Error::other("simulated")) } else { Ok(()) }
    }

    /// Stores each sector in the cache with some probability, in any order.
    fn store_some(&mut self, percent: usize) {
        let mut cached = std::mem::take(&mut self.cached);
        while !cached.is_empty() {
            let (offset, bytes) = cached.swap_remove(self.random.0.index(cached.len()));
            let mut at = 0;
            while at < bytes.len() {
                let end = bytes.len().min(((offset + at) / SECTOR_BYTES + 1) * SECTOR_BYTES - offset);
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
        let platter = self.0.lock();
        let from = platter.seen.get(offset as usize..offset as usize + to.len());
        to.copy_from_slice(from.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        let platter = &mut *self.0.lock();
        platter.call()?;
        let offset = offset as usize;
        if platter.seen.len() < offset + from.len() {
            platter.seen.resize(offset + from.len(), 0);
            platter.stored.resize(offset + from.len(), 0);
        }
        platter.seen[offset..offset + from.len()].copy_from_slice(from);
        platter.cached.push((offset, from.to_vec()));
        Ok(())
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
            // What could not be stored is dropped, though it is seen until the power goes.
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

type Contents = Vec<Vec<u8>>;

fn contents(volume: &Volume) -> Contents {
    let bytes = volume.page_bytes();
    let page = |page: u64| {
        let mut into = vec![0; bytes];
        let read = volume.read("read", page * bytes as u64, bytes, |done, part| {
            into[done..done + part.len()].copy_from_slice(part);
        });
        read.map(|()| into).unwrap()
    };
    (0..volume.pages()).map(page).collect()
}

fn write(volume: &Volume, offset: u64, bytes: &[u8]) -> backend_api::Result<()> {
    volume.write("write", offset, bytes.len(), |done, part| {
        part.copy_from_slice(&bytes[done..done + part.len()]);
    })
}

/// How many losses a test makes: a few thousand, or what the environment says.
fn losses() -> u64 {
    std::env::var("VMARRAY_POWER_LOSSES").ok().and_then(|count| count.parse().ok()).unwrap_or(2000)
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
        let (page_bytes, pages) = ([16, 100, 512, 1000, 4096][random.index(5)], 1 + random.index(12) as u64);
        let plan = VolumePlan { page_bytes, pages, has_checksums, metadata: Vec::new(), id: seed };
        drop(Volume::create(Box::new(disk.clone()), plan).unwrap());
        Self { disk, random, page_bytes, pages }
    }

    /// Writes something somewhere: a page, some bytes, or zeroes.
    fn change(&mut self, volume: &Volume, now: &mut Contents) {
        let all = self.pages as usize * self.page_bytes;
        let start = self.random.index(all);
        let (start, bytes) = match self.random.index(3) {
            0 => (start, 1 + self.random.index((all - start).min(3 * self.page_bytes))),
            1 => (start / self.page_bytes * self.page_bytes, self.page_bytes),
            _ => (start, 1 + self.random.index((all - start).min(8))),
        };
        let mut written = vec![0; bytes];
        if self.random.index(5) > 0 {
            self.random.fill(&mut written);
        }
        let written_all = write(volume, start as u64, &written).is_ok();
        for (at, byte) in (start..).zip(written) {
            now[at / self.page_bytes][at % self.page_bytes] = byte;
        }
        if !written_all {
            // Some pages have it: what they hold now is asked, as far as they tell.
            for page in start / self.page_bytes..=(start + bytes - 1) / self.page_bytes {
                let (at, length) = (page * self.page_bytes, self.page_bytes);
                let into = &mut now[page];
                let read = volume.read("read", at as u64, length, |done, part| {
                    into[done..done + part.len()].copy_from_slice(part);
                });
                if read.is_err() {
                    // A page that was overwritten where it is; its user has it still, and writes it again.
                    let again = now[page].clone();
                    while write(volume, at as u64, &again).is_err() {
                        if self.disk.0.lock().calls_left == 0 {
                            break;
                        }
                    }
                }
            }
        }
    }
}

/// Each time the store is as at the last commit that was done, or as at one that was begun later.
#[test]
fn what_was_committed_survives_losses_of_power() {
    let mut left = losses();
    let mut seed = 0;
    while left > 0 {
        seed += 1;
        let mut round = Round::new(seed, seed % 4 > 0);
        let mut stored: Contents = vec![vec![0; round.page_bytes]; round.pages as usize];
        for _ in 0..left.min(100) {
            left -= 1;
            let platter = round.disk.clone();
            platter.0.lock().calls_left = u64::MAX;
            platter.0.lock().failing = None;
            let volume = Volume::open(Box::new(round.disk.clone()), false).unwrap();
            let mut now = contents(&volume);
            let mut allowed = vec![stored.clone()];
            assert_eq!(now, stored, "seed {seed}");
            platter.0.lock().calls_left = round.random.index(60) as u64;
            platter.0.lock().failing = [None, None, Some(10)][round.random.index(3)];
            while platter.0.lock().calls_left > 0 {
                if round.random.index(4) > 0 {
                    round.change(&volume, &mut now);
                    continue;
                }
                if round.random.index(8) == 0 {
                    volume.set_metadata(&[round.random.index(256) as u8]).unwrap();
                }
                // What a commit that fails was to store may be found.
                match volume.sync() {
                    Ok(()) => allowed = vec![now.clone()],
                    Err(_) => allowed.push(now.clone()),
                }
            }
            // The power is gone: nothing that is done from now on arrives.
            drop(volume);
            platter.0.lock().lose_power();
            platter.0.lock().failing = None;
            platter.0.lock().calls_left = u64::MAX;
            let volume = Volume::open(Box::new(round.disk.clone()), false);
            let found = contents(&volume.unwrap_or_else(|error| panic!("seed {seed}: {error}")));
            assert!(allowed.contains(&found), "seed {seed}: neither the last commit nor a later one");
            stored = found;
        }
    }
}

/// A disk that loses what it said it had stored: older contents or an error, and never what no page had.
#[test]
fn a_disk_that_lies_gives_errors_or_older_pages() {
    let (mut errors, mut wrong) = (0, 0);
    for seed in 0..losses() / 20 {
        let mut round = Round::new(seed, true);
        let mut history = vec![vec![vec![0; round.page_bytes]]; round.pages as usize];
        let volume = Volume::open(Box::new(round.disk.clone()), false).unwrap();
        let mut now = contents(&volume);
        for step in 0..40 {
            round.disk.0.lock().lies = step >= 20;
            round.change(&volume, &mut now);
            now.iter().zip(&mut history).for_each(|(page, had)| had.push(page.clone()));
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
        for (page, had) in (0..).zip(&history) {
            let mut into = vec![0; round.page_bytes];
            let read = volume.read("read", page * round.page_bytes as u64, round.page_bytes, |done, part| {
                into[done..done + part.len()].copy_from_slice(part);
            });
            match read {
                Ok(()) => assert!(had.contains(&into), "seed {seed}, page {page}"),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Corrupted);
                    wrong += 1;
                }
            }
        }
    }
    assert!(errors + wrong > 0, "nothing of it came to light");
}

/// Any bit that flips is found: in a page, in the map, in the log.
#[test]
fn flipped_bits_are_errors_and_no_values() {
    for seed in 0..200 {
        let mut round = Round::new(seed, true);
        let volume = Volume::open(Box::new(round.disk.clone()), false).unwrap();
        let mut now = contents(&volume);
        for _ in 0..20 {
            round.change(&volume, &mut now);
            volume.sync().unwrap();
        }
        drop(volume);
        let at = {
            let platter = &mut *round.disk.0.lock();
            let at = round.random.index(platter.seen.len());
            platter.seen[at] ^= 1 << round.random.index(8);
            at
        };
        // A record that is not whole was not written to its end, as far as anybody can tell.
        let Ok(volume) = Volume::open(Box::new(round.disk.clone()), true) else { continue };
        let report = Volume::check(Box::new(round.disk.clone())).unwrap();
        for page in 0..round.pages {
            let mut into = vec![0; round.page_bytes];
            let offset = page * round.page_bytes as u64;
            let read = volume.read("read", offset, round.page_bytes, |done, part| {
                into[done..done + part.len()].copy_from_slice(part);
            });
            let is_damaged = report.damaged_pages.iter().any(|(damaged, _)| *damaged == page);
            assert_eq!(read.is_err(), is_damaged, "seed {seed}, byte {at}");
        }
    }
}
