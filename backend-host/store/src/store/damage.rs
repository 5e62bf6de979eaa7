//! Tests that damage stores: each read then returns an error or correct contents of one commit, never of two.
//!
//! A *shape* is a store with a history of up to 20 commits, which was closed, killed, or killed during a
//! commit. Each test case damages a copy of it in one to three places, opens it, compares it with its
//! history, writes to it, commits, and opens it again. The number of a case determines the case, so a run can
//! be resumed, and a failure repeated.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use backend_api::ErrorKind;
use backend_api::wrap::{SplitMix64, random_cases};
use parking_lot::Mutex;

use super::disk::Disk;
use super::format::{HEAD_BYTES, SUPERBLOCK_BYTES};
use super::volume::{Volume, VolumePlan};

/// Number of test cases for each shape.
const CASES_OF_A_SHAPE: u64 = 400;
const SECTOR_BYTES: usize = 512;
const BLOCK_BYTES: usize = 4096;

#[derive(Clone, Debug, Default)]
pub(super) struct MemoryDisk(pub Arc<Mutex<Vec<u8>>>);

impl Disk for MemoryDisk {
    fn read_at(&self, offset: u64, to: &mut [u8]) -> io::Result<()> {
        let bytes = self.0.lock();
        let from = usize::try_from(offset).ok().and_then(|offset| bytes.get(offset..)?.get(..to.len()));
        to.copy_from_slice(from.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        let bytes = &mut *self.0.lock();
        let to = bytes.get_mut(offset as usize..).and_then(|bytes| bytes.get_mut(..from.len()));
        to.ok_or(io::ErrorKind::UnexpectedEof)?.copy_from_slice(from);
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.lock().len() as u64)
    }

    fn reserve(&self, bytes: u64) -> io::Result<()> {
        let memory = &mut *self.0.lock();
        if memory.len() < bytes as usize {
            memory.resize(bytes as usize, 0);
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

/// End of the last program that wrote to a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProgramEnd {
    Closed,
    /// The process was killed after a commit and its confirmation.
    Killed,
    /// The power failed before the confirmation was stored.
    PowerLost,
    /// The power failed during a commit: its record of several blocks is stored only in part.
    Torn,
}

/// The nonzero pages of a store at one commit.
type Pages = BTreeMap<u64, Vec<u8>>;

/// A store and the history of its commits.
struct Shape {
    has_checksums: bool,
    end: ProgramEnd,
    /// For each commit by its number: the first number of its note, and its pages.
    history: Vec<(u64, Pages)>,
    image: Vec<u8>,
    /// Image of the disk after each commit before the last one.
    before: Vec<Vec<u8>>,
    /// Offsets of used sectors of the disk, in bytes.
    sectors: Vec<usize>,
}

fn write(volume: &Volume, page: u64, bytes: &[u8]) {
    let offset = page * bytes.len() as u64;
    let give = |done: usize, part: &mut [u8]| part.copy_from_slice(&bytes[done..done + part.len()]);
    volume.write("write", offset, bytes.len(), give).unwrap();
}

/// Changes some pages to contents that no page has had before.
fn change(volume: &Volume, random: &mut SplitMix64, pages: &mut Pages, pages_most: u64) {
    let bytes = volume.page_bytes();
    for _ in 0..1 + random.index(6) {
        let page = random.index(pages_most as usize) as u64;
        volume.lengthen("extend", page + 1).unwrap();
        if random.index(8) == 0 {
            volume.clear(page);
            pages.remove(&page);
            continue;
        }
        let mut contents = vec![0; bytes];
        random.fill(&mut contents);
        contents[0] |= 1;
        write(volume, page, &contents);
        pages.insert(page, contents);
    }
}

/// Simulates a power failure during a commit, when only some sectors of the record are stored. If the log has
/// no room, or is empty, nothing of the commit is stored.
fn tear_commit(volume: &Volume, disk: &MemoryDisk, random: &mut SplitMix64, pages: u64) {
    let (before, place) = (disk.0.lock().clone(), volume.confirmation());
    volume.lengthen("extend", pages).unwrap();
    for page in (0..pages).filter(|page| page % 5 > 0) {
        write(volume, page, &vec![1 + random.index(255) as u8; volume.page_bytes()]);
    }
    volume.sync().unwrap();
    let image = &mut *disk.0.lock();
    let (Some(record), Some(behind)) = (place.first(), volume.confirmation().pop()) else {
        image.clone_from(&before);
        return;
    };
    let blocks = behind.start.saturating_sub(record.start) / BLOCK_BYTES;
    if blocks < 2 {
        image.clone_from(&before);
        return;
    }
    // Lose a sector in a block before the last one, because only the earlier blocks are full.
    let lost = record.start + random.index((blocks - 1) * BLOCK_BYTES) / SECTOR_BYTES * SECTOR_BYTES;
    for sector in (record.start..behind.end).step_by(SECTOR_BYTES) {
        if sector == lost || sector >= behind.start || random.index(2) == 0 {
            let old = before.get(sector..sector + SECTOR_BYTES).unwrap_or(&[0; SECTOR_BYTES]);
            image[sector..sector + SECTOR_BYTES].copy_from_slice(old);
        }
    }
}

impl Shape {
    fn new(number: u64) -> Self {
        let mut random = SplitMix64::new(number);
        let has_checksums = random.index(8) > 0;
        let ends = [
            ProgramEnd::Closed,
            ProgramEnd::Closed,
            ProgramEnd::Killed,
            ProgramEnd::PowerLost,
            ProgramEnd::Torn,
        ];
        let end = ends[random.index(ends.len())];
        // This test tears only records of several blocks, which need many pages.
        let (lengths, pages_least) = if end == ProgramEnd::Torn { (2, 400) } else { (7, 1) };
        let page_bytes = [16, 100, 512, 1000, 4096, 8192, 20_000][random.index(lengths)];
        let pages_most = pages_least + random.index(60) as u64;
        let pages = random.index(pages_most as usize + 1) as u64;
        let (metadata, note) = (b"metadata".to_vec(), [0; 3]);
        let plan =
            VolumePlan { page_bytes, pages, has_checksums, metadata, note, id: number.wrapping_mul(31) };
        let disk = MemoryDisk::default();
        let mut volume = Volume::create(Box::new(disk.clone()), plan).unwrap();
        let (mut now, mut history, mut before) = (Pages::new(), vec![(pages, Pages::new())], Vec::new());
        let mut unconfirmed = Vec::new();
        for commit in 1..=1 + random.index(20) as u64 {
            before.push(disk.0.lock().clone());
            change(&volume, &mut random, &mut now, pages_most);
            volume.set_note([commit, 7, commit * commit]).unwrap();
            if random.index(6) == 0 {
                // New metadata makes the commit write the map of all pages instead of a record.
                volume.set_metadata(&commit.to_le_bytes()).unwrap();
            }
            volume.sync().unwrap();
            unconfirmed = volume.confirmation();
            history.push((volume.pages(), now.clone()));
            if random.index(8) == 0 {
                if random.index(2) == 0 {
                    volume.close().unwrap();
                }
                drop(volume);
                volume = Volume::open(Box::new(disk.clone()), false).unwrap();
                unconfirmed.clear();
            }
        }
        match end {
            ProgramEnd::Closed => volume.close().unwrap(),
            ProgramEnd::Killed => {}
            ProgramEnd::PowerLost => unconfirmed.into_iter().for_each(|range| disk.0.lock()[range].fill(0)),
            ProgramEnd::Torn => tear_commit(&volume, &disk, &mut random, pages_most),
        }
        drop(volume);
        let image = std::mem::take(&mut *disk.0.lock());
        let starts = (0..image.len()).step_by(SECTOR_BYTES);
        let has_any = |start: &usize| image[*start..].iter().take(SECTOR_BYTES).any(|byte| *byte != 0);
        let sectors = starts.filter(|start| *start < HEAD_BYTES as usize || has_any(start)).collect();
        Self { has_checksums, end, history, image, before, sectors }
    }

    /// For one sector: flips each byte (or one of some), zeroes the sector, and truncates the disk there.
    fn damage_sector(
        &self,
        (shape, at): (u64, usize),
        sector: usize,
        step: usize,
        disk: &MemoryDisk,
        counts: &Counts,
    ) {
        let end = self.image.len().min(sector + SECTOR_BYTES);
        let case = |more: usize| shape << 32 | (at * SECTOR_BYTES + more) as u64;
        let check = |more: usize, words: String| {
            let damage = (case(more), vec![words]);
            expect_sound(self, damage, SplitMix64::new(case(more)), disk, counts);
        };
        for byte in (sector + at % step..end).step_by(step) {
            disk.0.lock().clone_from(&self.image);
            disk.0.lock()[byte] ^= 1 << (byte % 8);
            check(byte - sector, format!("flip at {byte}"));
        }
        if at.is_multiple_of(step.min(4)) {
            disk.0.lock().clone_from(&self.image);
            disk.0.lock()[sector..end].fill(0);
            check(0, format!("zeroes in {sector}..{end}"));
            disk.0.lock().clone_from(&self.image);
            disk.0.lock().truncate(sector);
            check(1, format!("cut at {sector}"));
        }
    }

    /// Damages one place of an image, and returns a description of the damage.
    fn damage(&self, image: &mut Vec<u8>, random: &mut SplitMix64) -> String {
        let sector = self.sectors[random.index(self.sectors.len())];
        let block = sector / BLOCK_BYTES * BLOCK_BYTES;
        let other = self.sectors[random.index(self.sectors.len())];
        let at = sector + random.index(SECTOR_BYTES);
        let unit = [SECTOR_BYTES, BLOCK_BYTES][random.index(2)];
        let units = [sector, other].map(|at| at / unit * unit);
        let fits = units.iter().all(|at| at + unit <= image.len());
        match random.index(8) {
            0 | 1 if at < image.len() => {
                image[at] ^= 1 << random.index(8);
                format!("flip at {at}")
            }
            2 => {
                let end = image.len().min(units[0] + unit);
                image.get_mut(units[0]..end).unwrap_or_default().fill(0);
                format!("zeroes in {}..{end}", units[0])
            }
            3 => {
                let end = image.len().min(block + random.index(64 << 10));
                image.get_mut(block..end).unwrap_or_default().fill(0);
                format!("zeroes in {block}..{end}")
            }
            4 => {
                image.truncate(at);
                format!("cut at {at}")
            }
            5 if fits => {
                let [one, other] = units.map(|at| image[at..at + unit].to_vec());
                image[units[0]..][..unit].copy_from_slice(&other);
                image[units[1]..][..unit].copy_from_slice(&one);
                format!("{unit} bytes at {} and {} swapped", units[0], units[1])
            }
            6 if fits => {
                image.copy_within(units[0]..units[0] + unit, units[1]);
                format!("{unit} bytes of {} at {}", units[0], units[1])
            }
            _ if fits => {
                // Simulate a write that never reached the disk: restore the old bytes.
                let old = &self.before[random.index(self.before.len())];
                let old = old.get(units[0]..units[0] + unit).map_or(vec![0; unit], <[u8]>::to_vec);
                image[units[0]..][..unit].copy_from_slice(&old);
                format!("{unit} bytes at {} of an earlier commit", units[0])
            }
            _ => String::new(),
        }
    }
}

/// Results of the test cases.
#[derive(Debug, Default)]
struct Counts {
    cases: AtomicU64,
    /// Stores that opened with the newest contents; reads of some pages may fail.
    right: AtomicU64,
    refused: AtomicU64,
    /// Stores that opened with the contents of an earlier commit, as is allowed if a store was not closed.
    older: AtomicU64,
    /// Closed stores that opened with earlier contents, because both superblocks with the closing mark were
    /// damaged, and one was replaced by an earlier version.
    marks_gone: AtomicU64,
    /// Cases among `older` with one flipped bit.
    older_by_one: AtomicU64,
    /// Pages whose reads fail.
    damaged_pages: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

fn read(volume: &Volume, page: u64) -> backend_api::Result<Vec<u8>> {
    let mut bytes = vec![0; volume.page_bytes()];
    volume.read_into("read", page * volume.page_bytes() as u64, &mut bytes).map(|()| bytes)
}

/// Compares a store with the pages of a commit. Returns the number of pages whose reads fail.
fn compare(volume: &Volume, pages: u64, expected: &Pages, has_checksums: bool) -> u64 {
    assert_eq!(volume.pages(), pages, "the store has a wrong number of pages");
    let mut damaged = 0;
    for page in 0..pages {
        let zeroes = || vec![0; volume.page_bytes()];
        match read(volume, page) {
            Ok(found) => {
                let expected = expected.get(&page).cloned().unwrap_or_else(zeroes);
                assert!(
                    found == expected || !has_checksums,
                    "page {page} has the contents of another commit"
                );
                // Also read a part of the page separately.
                let (at, bytes) = (found.len() / 3, found.len().min(50));
                let mut part = vec![0; bytes.min(found.len() - at)];
                let offset = page * found.len() as u64 + at as u64;
                volume.read_into("read", offset, &mut part).unwrap();
                assert_eq!(part, found[at..at + part.len()], "a part of page {page} differs from the page");
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corrupted, "{error}");
                assert!(error.detail().contains(&format!("page {page} ")), "{error}");
                damaged += 1;
            }
        }
    }
    damaged
}

/// Runs one test case.
fn run(shape: &Shape, case: u64, disk: &MemoryDisk, counts: &Counts) {
    let mut random = SplitMix64::new(case);
    let places = [1, 1, 1, 2, 3][random.index(5)];
    disk.0.lock().clone_from(&shape.image);
    let damage = (0..places).map(|_| shape.damage(&mut disk.0.lock(), &mut random)).collect();
    expect_sound(shape, (case, damage), random, disk, counts);
}

/// Opens a damaged store, compares it with its history, writes to it and opens it again.
fn expect_sound(
    shape: &Shape,
    (case, damage): (u64, Vec<String>),
    mut random: SplitMix64,
    disk: &MemoryDisk,
    counts: &Counts,
) {
    let superblocks = |image: &[u8]| {
        let block =
            |at: usize| image.get(at * SUPERBLOCK_BYTES..(at + 1) * SUPERBLOCK_BYTES).map(<[u8]>::to_vec);
        [0, 1].map(block)
    };
    let (found, stored) = (superblocks(&disk.0.lock()), superblocks(&shape.image));
    let are_marks_gone = (0..2).all(|at| found[at] != stored[at]);
    let _context = Context { case, words: format!("{damage:?} of a store {:?}", shape.end) };
    count(&counts.cases);
    let Some(volume) = open(disk, true) else {
        assert!(open(disk, false).is_none(), "a store that cannot be read was opened for writing");
        return count(&counts.refused);
    };
    let [commit, seven, square] = volume.note();
    assert!(
        commit == 0 || (seven, square) == (7, commit * commit),
        "the note mixes the numbers of two commits"
    );
    let (pages, expected) = &shape.history[commit as usize];
    let newest = shape.history.len() as u64 - 1;
    let damaged = compare(&volume, *pages, expected, shape.has_checksums);
    counts.damaged_pages.fetch_add(damaged, Ordering::Relaxed);
    let report = Volume::check(Box::new(disk.clone())).unwrap();
    assert_eq!(report.damaged_pages.len() as u64, damaged);
    if commit == newest {
        count(&counts.right);
    } else if are_marks_gone {
        count(&counts.marks_gone);
    } else {
        assert_ne!(shape.end, ProgramEnd::Closed, "only commit {commit} of {newest} was found");
        assert!(!report.is_closed);
        count(&counts.older);
        let is_short = damage.len() == 1 && damage[0].starts_with("flip");
        if is_short {
            assert_eq!(shape.end, ProgramEnd::PowerLost, "only commit {commit} of {newest} was found");
            assert_eq!(commit + 1, newest, "more commits than the last one were lost");
            count(&counts.older_by_one);
        }
    }
    drop(volume);
    expect_changes(shape, &mut random, disk, (commit, *pages, expected), damaged);
}

/// Opens a store; returns `None` if it is too damaged.
fn open(disk: &MemoryDisk, is_read_only: bool) -> Option<Volume> {
    match Volume::open(Box::new(disk.clone()), is_read_only) {
        Ok(volume) => Some(volume),
        Err(error) => {
            assert!(matches!(error.kind(), ErrorKind::Corrupted | ErrorKind::WrongFormat), "{error}");
            None
        }
    }
}

/// Checks that the store accepts changes, and that none is lost or mixed with the damaged contents.
fn expect_changes(
    shape: &Shape,
    random: &mut SplitMix64,
    disk: &MemoryDisk,
    (commit, pages, expected): (u64, u64, &Pages),
    damaged: u64,
) {
    let Some(volume) = open(disk, false) else { return };
    let newest = shape.history.len() as u64 - 1;
    assert_eq!(volume.note()[0], commit);
    let (mut now, is_closed) = (expected.clone(), random.index(2) == 0);
    for turn in 1..=2 {
        change(&volume, random, &mut now, pages + 2);
        volume.set_note([newest + turn, 7, 0]).unwrap();
        volume.sync().unwrap();
    }
    let (pages, note) = (volume.pages(), volume.note());
    if is_closed {
        volume.close().unwrap();
    }
    drop(volume);
    for is_read_only in [true, false] {
        let volume = Volume::open(Box::new(disk.clone()), is_read_only).unwrap();
        assert_eq!(volume.note(), note);
        assert!(
            compare(&volume, pages, &now, shape.has_checksums) <= damaged,
            "more pages are damaged than the case has damaged"
        );
    }
}

/// Prints the failed case when a test panics.
struct Context {
    case: u64,
    words: String,
}

impl Drop for Context {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("case {}: {}", self.case, self.words);
        }
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Calls `work` with each number up to `end` and a disk, on all processors.
fn on_all_processors(numbers: std::ops::Range<u64>, work: impl Fn(u64, &MemoryDisk) + Sync) {
    let (next, threads) = (AtomicU64::new(numbers.start), std::thread::available_parallelism());
    std::thread::scope(|scope| {
        for _ in 0..threads.map_or(1, std::num::NonZero::get) {
            scope.spawn(|| {
                let (disk, take) = (MemoryDisk::default(), || next.fetch_add(1, Ordering::Relaxed));
                std::iter::repeat_with(take)
                    .take_while(|number| *number < numbers.end)
                    .for_each(|number| work(number, &disk));
            });
        }
    });
}

/// Runs some thousand cases, or the number in `VMARRAY_DAMAGE_CASES`. The file in `VMARRAY_DAMAGE_RESUME`
/// stores the number of finished cases.
#[test]
fn damage_is_an_error_or_harmless() {
    const SHAPES_AT_ONCE: u64 = 32;
    let cases = number("VMARRAY_DAMAGE_CASES").unwrap_or(16 * CASES_OF_A_SHAPE);
    let resume = std::env::var_os("VMARRAY_DAMAGE_RESUME");
    let done = resume.as_ref().and_then(|file| std::fs::read_to_string(file).ok());
    let first = done.map_or(0, |done| done.trim().parse().expect("the file must contain a number of cases"));
    let (counts, shapes) = (Counts::default(), cases.div_ceil(CASES_OF_A_SHAPE));
    let mut start = first / CASES_OF_A_SHAPE;
    while start < shapes {
        let end = shapes.min(start + SHAPES_AT_ONCE);
        on_all_processors(start..end, |number, disk| {
            let (shape, first) = (Shape::new(number), number * CASES_OF_A_SHAPE);
            (first..first + CASES_OF_A_SHAPE).for_each(|case| run(&shape, case, disk, &counts));
        });
        start = end;
        if let Some(file) = &resume {
            std::fs::write(file, (end * CASES_OF_A_SHAPE).min(cases).to_string()).unwrap();
        }
    }
    println!("{first} cases before; {counts:?}");
    let all = counts.cases.into_inner();
    assert!(all == 0 || counts.refused.into_inner() > 0 && counts.right.into_inner() > 0);
}

/// Flips every byte of every structure and page, zeroes every sector, and truncates the disk at every sector:
/// all of that for `VMARRAY_DAMAGE_WHOLE` stores, a part of it for further stores.
#[test]
fn every_byte_counts() {
    let (shapes, step) =
        number("VMARRAY_DAMAGE_WHOLE").map_or((random_cases(4).into(), 131), |shapes| (shapes, 1));
    let counts = Counts::default();
    on_all_processors(0..shapes, |number, disk| {
        let shape = Shape::new(1 << 40 | number);
        for (at, sector) in shape.sectors.iter().enumerate() {
            shape.damage_sector((number, at), *sector, step, disk, &counts);
        }
    });
    println!("{counts:?}");
    assert!(counts.right.into_inner() > 0 && counts.refused.into_inner() > 0);
}

/// A store that lost both superblocks, and nothing else, returns an error instead of zeroes.
#[test]
fn a_store_without_superblocks_is_refused() {
    let shape = Shape::new(1);
    let disk = MemoryDisk(Arc::new(Mutex::new(shape.image)));
    for block in 0..2 {
        disk.0.lock()[block * SUPERBLOCK_BYTES + 100] ^= 1;
    }
    let error = Volume::open(Box::new(disk), true).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupted);
}

/// Creates a store in memory, and opens it as a volume with pages of 16 bytes.
fn open_store(pages: u64) -> (MemoryDisk, Volume) {
    let (page_bytes, metadata, note) = (16, Vec::new(), [0; 3]);
    let plan = VolumePlan { page_bytes, pages, has_checksums: true, metadata, note, id: 1 };
    let disk = MemoryDisk::default();
    (disk.clone(), Volume::create(Box::new(disk), plan).unwrap())
}

/// Commits pages of equal bytes, and a note. Returns the byte range of the disk that has the confirmation.
fn commit_pages(volume: &Volume, pages: u64, byte: u8) -> std::ops::Range<usize> {
    (0..pages).for_each(|page| write(volume, page, &[byte; 16]));
    volume.set_note([byte.into(), 0, 0]).unwrap();
    volume.sync().unwrap();
    volume.confirmation().remove(0)
}

fn note_of(image: Vec<u8>) -> Result<u64, ErrorKind> {
    let volume = Volume::open(Box::new(MemoryDisk(Arc::new(Mutex::new(image)))), true);
    volume.map(|volume| volume.note()[0]).map_err(|error| error.kind())
}

/// A torn record proves that the previous record was stored. So after damage to that record's pages, the
/// store must not open in the state of two commits before.
#[test]
fn a_torn_record_proves_the_one_before_it() {
    let (disk, volume) = open_store(1);
    commit_pages(&volume, 1, 1);
    let torn = commit_pages(&volume, 1, 2).start;
    commit_pages(&volume, 1, 3);
    let mut image = disk.0.lock().clone();
    // Tear the record: clear its checksum, and all bytes behind it.
    image[torn + 88..torn + 8192].fill(0);
    assert_eq!(note_of(image.clone()), Ok(2));
    let page = image.windows(16).position(|bytes| bytes == [2; 16]).unwrap();
    image[page] ^= 1;
    assert_eq!(note_of(image.clone()), Ok(2));
    let volume = Volume::open(Box::new(MemoryDisk(Arc::new(Mutex::new(image)))), false).unwrap();
    assert_eq!(read(&volume, 0).unwrap_err().kind(), ErrorKind::Corrupted);
}

/// The first block of a torn record of several blocks proves that the previous record was complete.
#[test]
fn a_torn_record_of_several_blocks_proves_the_one_before_it() {
    let (disk, volume) = open_store(400);
    let second = commit_pages(&volume, 1, 1).start;
    let torn = commit_pages(&volume, 400, 2).start;
    let end = commit_pages(&volume, 400, 3).end;
    let mut image = disk.0.lock().clone();
    image[torn + BLOCK_BYTES..end].fill(0);
    assert_eq!(note_of(image.clone()), Ok(2));
    for block in 0..3 {
        let mut damaged = image.clone();
        damaged[second + block * BLOCK_BYTES + 100] ^= 1;
        assert_eq!(note_of(damaged), Err(ErrorKind::Corrupted), "block {block}");
    }
}

/// The drive loses the record that replaced a confirmation, so the confirmation is visible again. It must not
/// end a log that continues after it.
#[test]
fn a_confirmation_in_place_of_a_longer_record_is_noticed() {
    let (disk, volume) = open_store(200);
    let place = commit_pages(&volume, 1, 1);
    let confirmation = disk.0.lock()[place.clone()].to_vec();
    commit_pages(&volume, 200, 2);
    let last = commit_pages(&volume, 1, 3);
    let mut image = disk.0.lock().clone();
    image[place].copy_from_slice(&confirmation);
    image[last].fill(0);
    assert_eq!(note_of(image), Err(ErrorKind::Corrupted));
}

/// Another program copies an older version over the file, which keeps its identity and length.
#[test]
fn contents_that_another_program_replaces_are_noticed() {
    let (disk, volume) = open_store(10);
    commit_pages(&volume, 10, 1);
    volume.close().unwrap();
    let older = disk.0.lock().clone();
    let volume = Volume::open(Box::new(disk.clone()), false).unwrap();
    commit_pages(&volume, 10, 2);
    assert_eq!(disk.0.lock().len(), older.len());
    disk.0.lock().copy_from_slice(&older);
    write(&volume, 0, &[3; 16]);
    assert_eq!(volume.sync().unwrap_err().kind(), ErrorKind::Corrupted);
}

/// A disk that stores a part of a write that did not fit, as ext4 does.
#[derive(Debug)]
struct FullDisk(MemoryDisk, AtomicU64);

impl Disk for FullDisk {
    fn read_at(&self, offset: u64, to: &mut [u8]) -> io::Result<()> {
        self.0.read_at(offset, to)
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        self.0.write_at(offset, from)
    }

    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn reserve(&self, bytes: u64) -> io::Result<()> {
        let room = self.1.load(Ordering::Relaxed);
        self.0.reserve(bytes.min(room))?;
        if bytes <= room { Ok(()) } else { Err(io::ErrorKind::StorageFull.into()) }
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

/// The store must not mistake the stored part for a change by another program.
#[test]
fn a_full_disk_that_gets_longer_does_not_end_the_store() {
    let (page_bytes, metadata, note) = (4096, Vec::new(), [0; 3]);
    let plan = VolumePlan { page_bytes, pages: 2000, has_checksums: true, metadata, note, id: 1 };
    let (memory, room) = (MemoryDisk::default(), 3 << 20);
    let disk = FullDisk(memory.clone(), AtomicU64::new(room));
    let volume = Volume::create(Box::new(disk), plan).unwrap();
    let store = |page: u64| {
        let bytes = [1 + page as u8 % 200; 4096];
        volume.write("write", page * 4096, 4096, |done, part| {
            part.copy_from_slice(&bytes[done..done + part.len()]);
        })
    };
    let mut written = 0;
    let refused = loop {
        match store(written) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(refused.kind(), ErrorKind::OutOfMemory);
    assert_eq!(memory.0.lock().len() as u64, room);
    volume.sync().unwrap();
    volume.close().unwrap();
    let volume = Volume::open(Box::new(memory), true).unwrap();
    assert!((0..written).all(|page| read(&volume, page).unwrap()[0] == 1 + page as u8 % 200));
}
