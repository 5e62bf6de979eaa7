//! Tests of arrays in several store files: files from different commits never open together, and after a
//! crash all files open at the same commit.

use std::collections::BTreeMap;
use std::sync::Arc;

use backend_api::wrap::{SplitMix64, random_cases};
use backend_api::{ErrorKind, Result};
use parking_lot::Mutex;

use super::crash_tests::SimulatedDisk;
use super::damage::{MemoryDisk, ProgramEnd};
use super::volume::{FileError, OpenedVolume, Volume, VolumePlan, open_together, sync_together};
use crate::store::disk::Disk;

const PAGES: u64 = 12;

/// Value of the nonzero pages (all bytes of a page are equal), by file and page.
type Contents = BTreeMap<(usize, u64), u8>;

/// Contents and note of all files of a group.
type State = (Contents, [u64; 3]);

fn plan(page_bytes: usize, id: u64) -> VolumePlan {
    VolumePlan { page_bytes, pages: PAGES, has_checksums: true, metadata: Vec::new(), note: [0; 3], id }
}

fn open<D: Disk + Clone>(disks: &[D], is_read_only: bool) -> Result<Vec<Volume>, FileError> {
    let mut files = Vec::new();
    for (file, disk) in disks.iter().enumerate() {
        let opened = OpenedVolume::read(Box::new(disk.clone()), is_read_only);
        files.push(opened.map_err(|error| (file, error))?);
    }
    open_together(files, is_read_only)
}

fn sync(volumes: &[Volume]) -> Result<(), FileError> {
    sync_together(&volumes.iter().collect::<Vec<_>>())
}

fn write(volume: &Volume, page: u64, byte: u8) -> Result<()> {
    let bytes = volume.page_bytes();
    volume.write("write", page * bytes as u64, bytes, |_, part| part.fill(byte))
}

fn read(volume: &Volume, page: u64) -> Result<u8> {
    let mut bytes = vec![0; volume.page_bytes()];
    volume.read_into("read", page * bytes.len() as u64, &mut bytes)?;
    assert!(bytes.iter().all(|byte| *byte == bytes[0]), "a page has bytes of two commits");
    Ok(bytes[0])
}

/// Reads contents and note of all files.
fn state(volumes: &[Volume]) -> Result<State> {
    let mut contents = Contents::new();
    for (file, volume) in volumes.iter().enumerate() {
        assert_eq!(volume.note(), volumes[0].note(), "two files have different notes");
        for page in 0..PAGES {
            let byte = read(volume, page)?;
            if byte != 0 {
                contents.insert((file, page), byte);
            }
        }
    }
    Ok((contents, volumes[0].note()))
}

/// Changes pages of some files of a group.
fn change(volumes: &[Volume], random: &mut SplitMix64, contents: &mut Contents) -> Result<()> {
    for _ in 0..1 + random.index(4) {
        let (file, page) = (random.index(volumes.len()), random.index(PAGES as usize) as u64);
        let byte = 1 + random.index(255) as u8;
        write(&volumes[file], page, byte)?;
        contents.insert((file, page), byte);
    }
    Ok(())
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// After a power failure at any time, or a failure of disks, the files open together at the last commit or at
/// the one in progress, and never at different commits.
#[test]
fn a_crash_leaves_all_files_at_one_commit() {
    let rounds = number("VMARRAY_POWER_LOSSES").unwrap_or(random_cases(2000).into());
    let (mut opened, mut taken_back) = (0, 0);
    let first = number("VMARRAY_POWER_SEED").unwrap_or(0);
    for seed in first..first + rounds / 10 {
        let mut random = SplitMix64::new(seed);
        let count = 2 + random.index(3);
        let disks: Vec<SimulatedDisk> =
            (0..count).map(|file| SimulatedDisk::with(seed + file as u64)).collect();
        let page_bytes = [16, 512, 5000][random.index(3)];
        for disk in &disks {
            drop(Volume::create(Box::new(disk.clone()), plan(page_bytes, seed)).unwrap());
        }
        let mut allowed = vec![(Contents::new(), [0; 3])];
        for _ in 0..10 {
            for disk in &disks {
                let calls = [u64::MAX, random.index(90) as u64][random.index(2)];
                disk.fail_after(calls, [None, None, Some(12)][random.index(3)]);
            }
            // The history must contain the opened state, because all disks lost power together.
            if let Ok(volumes) = open(&disks, false) {
                let mut now = state(&volumes).unwrap();
                let at = allowed.iter().position(|state| *state == now);
                let at = at.unwrap_or_else(|| {
                    panic!("seed {seed}: the files have neither the last commit nor a later one")
                });
                (opened, taken_back) = (opened + 1, taken_back + usize::from(at == 0 && allowed.len() > 1));
                allowed = vec![now.clone()];
                for step in 0..random.index(30) as u64 {
                    if random.index(3) > 0 {
                        let changed = change(&volumes, &mut random, &mut now.0);
                        if changed.is_err() {
                            now.0 = state(&volumes).unwrap().0;
                        }
                        continue;
                    }
                    now.1 = [step, seed, 1];
                    volumes.iter().for_each(|volume| volume.set_note(now.1).unwrap());
                    if random.index(5) == 0 {
                        let some = &volumes[random.index(count)];
                        some.set_metadata(b"the map is written").unwrap();
                    }
                    match sync(&volumes) {
                        Ok(()) => allowed = vec![now.clone()],
                        Err(_) => allowed.push(now.clone()),
                    }
                }
                if random.index(3) == 0 && sync(&volumes).is_ok() {
                    allowed = vec![now.clone()];
                    // Close some volumes before the power fails.
                    for volume in &volumes[..random.index(count + 1)] {
                        let _ = volume.mark_closed();
                    }
                } else {
                    allowed.push(now);
                }
            }
            disks.iter().for_each(SimulatedDisk::lose_power);
        }
        disks.iter().for_each(|disk| disk.fail_after(u64::MAX, None));
        let volumes =
            open(&disks, false).unwrap_or_else(|(file, error)| panic!("seed {seed}, {file}: {error}"));
        assert!(allowed.contains(&state(&volumes).unwrap()), "seed {seed}");
    }
    println!("opened {opened} times, {taken_back} commits taken back");
    assert!(opened > 0 && (taken_back > 0 || rounds < 1000));
}

/// A group of stores in memory, with the images of its files after each commit, and the state at that time.
struct History {
    disks: Vec<MemoryDisk>,
    images: Vec<(Vec<Vec<u8>>, State)>,
}

impl History {
    fn new(random: &mut SplitMix64, count: usize, end: ProgramEnd) -> Self {
        let disks: Vec<MemoryDisk> = (0..count).map(|_| MemoryDisk::default()).collect();
        for (file, disk) in disks.iter().enumerate() {
            drop(Volume::create(Box::new(disk.clone()), plan(512, 100 + file as u64)).unwrap());
        }
        let mut history = Self { disks, images: Vec::new() };
        let mut contents = Contents::new();
        history.commit(random, &mut contents, 6, end);
        history
    }

    /// Makes commits. Reopens the group in between, and finally closes it or not, as `end` says.
    fn commit(&mut self, random: &mut SplitMix64, contents: &mut Contents, commits: u64, end: ProgramEnd) {
        let mut volumes = open(&self.disks, false).unwrap();
        for commit in 1..=commits {
            change(&volumes, random, contents).unwrap();
            let note = [self.images.len() as u64 + 1, commit, 0];
            volumes.iter().for_each(|volume| volume.set_note(note).unwrap());
            sync(&volumes).unwrap();
            if random.index(4) == 0 && commit < commits {
                // In half of the cases, mark the volumes as closed before their drop.
                if random.index(2) == 0 {
                    volumes.iter().for_each(|volume| volume.mark_closed().unwrap());
                }
                drop(volumes);
                self.keep(contents, note);
                volumes = open(&self.disks, false).unwrap();
                continue;
            }
            let confirmations: Vec<_> = volumes.iter().map(Volume::confirmation).collect();
            if commit == commits && end == ProgramEnd::Closed {
                volumes.iter().for_each(|volume| volume.mark_closed().unwrap());
            }
            if commit == commits && end == ProgramEnd::PowerLost {
                for (disk, ranges) in self.disks.iter().zip(confirmations) {
                    ranges.into_iter().for_each(|range| disk.0.lock()[range].fill(0));
                }
            }
            self.keep(contents, note);
        }
    }

    fn keep(&mut self, contents: &Contents, note: [u64; 3]) {
        let images = self.disks.iter().map(|disk| disk.0.lock().clone()).collect();
        self.images.push((images, (contents.clone(), note)));
    }
}

fn memory(image: &[u8]) -> MemoryDisk {
    MemoryDisk(Arc::new(Mutex::new(image.to_vec())))
}

/// Files are replaced by earlier or later copies, whole or damaged, by copies that another program has
/// continued, or by files of another store. Opening returns an error for a file, or one earlier commit.
#[test]
fn files_of_two_moments_do_not_open() {
    let (mut refused, mut whole) = (0, 0);
    for seed in 0..number("VMARRAY_DAMAGE_CASES").map_or(40, |cases| cases / 10) {
        let mut random = SplitMix64::new(seed);
        let ends = [ProgramEnd::Closed, ProgramEnd::Killed, ProgramEnd::PowerLost];
        let (count, end) = (2 + random.index(3), ends[random.index(3)]);
        let history = History::new(&mut random, count, end);
        let last = history.images.len() - 1;
        // Simulate another program that continues with copies of the files.
        let copies = &history.images[last - 1].0;
        let mut fork =
            History { disks: copies.iter().map(|image| memory(image)).collect(), images: Vec::new() };
        let mut contents = history.images[last - 1].1.0.clone();
        fork.commit(&mut random, &mut contents, 1, end);
        for case in 0..10 {
            // Choose the commit of most files, and the states of other commits for some files.
            let base = if random.index(3) == 0 { random.index(last + 1) } else { last };
            let mut images = history.images[base].0.clone();
            let mut words = format!("seed {seed}, case {case}, {end:?}: all {count} of commit {base}");
            let mut moments = vec![Some(base); count];
            for _ in 0..1 + random.index(count - 1) {
                let file = random.index(count);
                let from_fork = random.index(5) == 0;
                let commit =
                    if random.index(2) == 0 { base.saturating_sub(1) } else { random.index(last + 1) };
                images[file] = match from_fork {
                    true => fork.images[0].0[file].clone(),
                    false => history.images[commit].0[file].clone(),
                };
                moments[file] = (!from_fork).then_some(commit);
                if random.index(3) == 0 {
                    // Damage the last written record, or any other used byte.
                    let used: Vec<usize> =
                        (0..images[file].len()).filter(|at| images[file][*at] != 0).collect();
                    let at = used[random.index(used.len())];
                    images[file][at] ^= 1 << random.index(8);
                }
                words = format!("{words}; {file} of {commit}, fork {from_fork}");
            }
            let disks: Vec<MemoryDisk> = images.iter().map(|image| memory(image)).collect();
            match open(&disks, true) {
                Err((file, error)) => {
                    assert!(file < count && error.kind() == ErrorKind::Corrupted, "{words}: {error}");
                    refused += 1;
                }
                Ok(volumes) => {
                    let Ok(found) = state(&volumes) else { continue };
                    let states = history.images.iter().map(|(_, state)| state);
                    let known = states.chain(fork.images.iter().map(|(_, state)| state));
                    let of: Vec<_> = known.filter(|state| **state == found).collect();
                    assert!(!of.is_empty(), "{words}: the files have contents of different commits");
                    whole += 1;
                    drop(volumes);
                    // Open the files in this state for writing, and continue with them.
                    let volumes = open(&disks, false).unwrap();
                    assert_eq!(state(&volumes).unwrap(), found, "{words}");
                    let mut contents = found.0;
                    change(&volumes, &mut random, &mut contents).unwrap();
                    sync(&volumes).unwrap();
                    drop(volumes);
                    let volumes = open(&disks, false).unwrap();
                    assert_eq!(state(&volumes).unwrap(), (contents, found.1), "{words}");
                }
            }
        }
    }
    println!("{refused} refused, {whole} of one moment");
    assert!(refused > 100 && whole > 10);
}

/// If one of several closed files is older by one commit, opening fails, and the error names that file.
#[test]
fn the_error_names_the_file_that_differs() {
    for count in 2..=4 {
        for odd in 0..count {
            for (of_odd, of_others) in [(3, 5), (4, 5), (5, 4), (5, 2)] {
                let mut random = SplitMix64::new(count as u64);
                let history = History::new(&mut random, count, ProgramEnd::Killed);
                let images = (0..count).map(|file| {
                    let commit = if file == odd { of_odd } else { of_others };
                    memory(&history.images[commit].0[file])
                });
                let (file, error) = open(&images.collect::<Vec<_>>(), false).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Corrupted);
                // With two files, the error must name the older one.
                let expected = if count == 2 && of_odd > of_others { 1 - odd } else { odd };
                assert_eq!(file, expected, "{error}");
                assert!(error.to_string().contains("commit"), "{error}");
            }
        }
    }
}
