//! `cargo xtask kills`: crash tests that repeatedly kill a program while it writes to an array in files.
//!
//! The threads of a child process write elements, one or many in a call, and sync the array. The parent kills
//! the child at a random moment, even while it opens the files, and then checks the array:
//!
//! - Each element must be whole. A mapped file, which outlives the child, records two versions: of the write
//!   in progress, and of the last sync. The element's version must be between the two.
//! - For every second array shape, the threads also append elements. The array must be at least as long as at
//!   the last successful sync, and each thread's elements must be without gaps.
//!
//! The operating system keeps all writes that it received. (Tests of the store simulate losses of power.)

use crate::arrays::KillsArgs;
use anyhow::{Context, Result, bail, ensure};
use memmap2::MmapRaw;
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use vmarray::VirtualArray;
use vmarray::device::wrap::SplitMix64;
use vmarray::prelude::*;
use vmarray::store::StoreDevice;

/// An element: its value three times in different forms. No page or write has a whole number of elements.
type Words = [u64; 3];

const THREADS: usize = 8;
/// The number of kills after which new files are created, with an array of another shape.
const KILLS_OF_A_SHAPE: u64 = 100;
/// The length above which a growing array is truncated when the process starts again.
const GROWN_MAX: usize = 50_000;
/// The maximum time between the first write and the kill, in microseconds.
const LIFE_MICROSECONDS: usize = 30_000;

fn words(index: usize, version: u64) -> Words {
    if version == 0 {
        return [0; 3];
    }
    let value = (index as u64) << 32 | version;
    [value, !value, value.rotate_left(17)]
}

/// Returns the version of an element, or an error if the element is torn.
fn version(index: usize, found: Words) -> Result<u64> {
    let version = found[0] & u64::from(u32::MAX);
    ensure!(found == words(index, version), "element {index} is torn or misplaced: {found:x?}");
    Ok(version)
}

/// The recorded versions of each element, in a mapped file. For a growing array, the length at the last sync
/// replaces the version of its first element.
struct Known {
    map: MmapRaw,
    len: usize,
}

impl Known {
    fn open(path: &Path, len: usize) -> Result<Self> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        file.set_len(16 * len as u64)?;
        Ok(Self { map: MmapRaw::map_raw(&file)?, len })
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at < 2 * self.len, "the index of the word must be inside of the map");
        // SAFETY: the map has this length, is aligned, and lives as long as the reference; only atomics of
        // these two processes access it.
        unsafe { AtomicU64::from_ptr(self.map.as_mut_ptr().cast::<u64>().add(at)) }
    }

    /// The newest version that an element may have.
    fn begun(&self, index: usize) -> &AtomicU64 {
        self.word(index)
    }

    /// The version that an element had at the last successful sync.
    fn synced(&self, index: usize) -> &AtomicU64 {
        self.word(self.len + index)
    }
}

/// An array shape, its files, and the file with the recorded versions.
struct Shape {
    grows: bool,
    len: usize,
    page_len: usize,
    files: Vec<PathBuf>,
    known: PathBuf,
}

impl Shape {
    fn new(folder: &Path, seed: u64) -> Self {
        let mut random = SplitMix64::new(seed);
        let len = THREADS * (1 + random.index(4000));
        let files = (0..1 + random.index(2)).map(|file| folder.join(format!("part-{file}"))).collect();
        let page_len = [1, 7, 64, 512][random.index(4)];
        Self { grows: seed.is_multiple_of(2), len, page_len, files, known: folder.join("known") }
    }

    fn builder(&self) -> vmarray::Builder<Words, vmarray::AnyDevice> {
        let len = if self.grows { 0 } else { self.len };
        VirtualArray::<Words>::builder(len).page_len(self.page_len).cache_bytes(64 << 10)
    }

    /// Returns true if all files are complete; a kill during the creation leaves an incomplete file.
    fn are_made(&self) -> bool {
        let is_made = |file: &PathBuf| StoreDevice::check(file).is_ok();
        self.files.iter().all(is_made)
    }

    fn remove(&self) {
        self.files.iter().chain([&self.known]).for_each(|file| drop(std::fs::remove_file(file)));
    }
}

pub fn run(args: KillsArgs) -> Result<()> {
    if let Some(victim) = Victim::of_env() {
        return victim.be_killed();
    }
    args.resume.iter().try_for_each(|file| crate::resume::begin(file))?;
    let before: u64 = match &args.resume {
        Some(file) if file.exists() => std::fs::read_to_string(file)?.trim().parse()?,
        _ => 0,
    };
    let folder = args.folder.clone().unwrap_or_else(std::env::temp_dir);
    let folder = folder.join(format!("vmarray-kills-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let started = Instant::now();
    let outcome = kills(&args, &folder, before);
    if outcome.is_ok() {
        std::fs::remove_dir_all(&folder)?;
    }
    let synced = outcome.with_context(|| format!("the files are in {}", folder.display()))?;
    println!(
        "{} kills, {} before: nothing that was synced was lost, nothing torn; {synced} elements had been synced, {:.0} s",
        args.count.saturating_sub(before),
        before,
        started.elapsed().as_secs_f64()
    );
    Ok(())
}

fn kills(args: &KillsArgs, folder: &Path, before: u64) -> Result<u64> {
    let mut synced = 0;
    for kill in before..args.count {
        let seed = args.seed + kill / KILLS_OF_A_SHAPE;
        let shape = Shape::new(folder, seed);
        if kill % KILLS_OF_A_SHAPE == 0 || kill == before {
            shape.remove();
        }
        let life = SplitMix64::new(args.seed ^ kill << 20).index(LIFE_MICROSECONDS) as u64;
        let mut victim = Victim { folder: folder.to_owned(), seed, life: kill }.spawn()?;
        let output = BufReader::new(victim.stdout.take().context("the victim has no output")?);
        // Every fourth time, kill the process before it writes, while it creates or opens the files.
        let writes =
            kill % 4 == 3 || output.lines().map_while(Result::ok).any(|line| line.ends_with("writing"));
        std::thread::sleep(Duration::from_micros(life));
        victim.kill()?;
        let status = victim.wait()?;
        ensure!(writes && status.code().is_none(), "the child process ended before it was killed: {status}");
        synced += look(&shape).with_context(|| format!("kill {kill}, seed {seed}"))?;
        if let Some(file) = &args.resume {
            std::fs::write(file, (kill + 1).to_string())?;
        }
        if (kill + 1) % (args.count / 10).max(1) == 0 {
            println!("{} kills", kill + 1);
        }
    }
    Ok(synced)
}

/// Checks each element after a kill. Returns the number of elements that had been synced.
fn look(shape: &Shape) -> Result<u64> {
    let known = Known::open(&shape.known, shape.len)?;
    if !shape.are_made() {
        let is_synced = |index| known.synced(index).load(Ordering::Relaxed) > 0;
        ensure!(!(0..shape.len).any(is_synced), "the files cannot be opened, although elements were synced");
        return Ok(0);
    }
    let array = VirtualArray::<Words>::builder(0).open_read_only(&shape.files)?;
    if shape.grows {
        let least = known.synced(0).load(Ordering::Relaxed);
        ensure!(
            array.len() as u64 >= least,
            "the array has {} elements, but {least} were synced",
            array.len()
        );
        counts(&array)?;
        return Ok(least);
    }
    ensure!(array.len() == shape.len, "the array has {} elements instead of {}", array.len(), shape.len);
    let mut synced = 0;
    for (index, found) in array.to_vec(..)?.into_iter().enumerate() {
        let version = version(index, found)?;
        let least = known.synced(index).load(Ordering::Relaxed);
        let most = known.begun(index).load(Ordering::Relaxed);
        ensure!(
            (least..=most).contains(&version),
            "element {index} has version {version}, but {least} was synced, and {most} is the last one written"
        );
        synced += u64::from(least > 0);
    }
    Ok(synced)
}

/// Returns the number of elements that each thread has pushed; fails if one of them is missing.
fn counts(array: &VirtualArray<Words>) -> Result<[u64; THREADS]> {
    let mut counts = [0; THREADS];
    for (index, found) in array.to_vec(..)?.into_iter().enumerate() {
        let thread = (found[0] >> 32) as usize;
        let number = version(thread, found).with_context(|| format!("at {index}"))?;
        let count = counts.get_mut(thread).context("an element has an invalid thread number")?;
        *count += 1;
        ensure!(
            number == *count,
            "element {index}: number {number} of thread {thread} follows {}",
            *count - 1
        );
    }
    Ok(counts)
}

/// The child process, which the parent kills.
struct Victim {
    folder: PathBuf,
    seed: u64,
    /// The number of the start of this process.
    life: u64,
}

impl Victim {
    const VARIABLE: &str = "VMARRAY_KILLS_VICTIM";

    /// Returns the victim's data from the environment, if this process is a victim.
    fn of_env() -> Option<Self> {
        let said = std::env::var(Self::VARIABLE).ok()?;
        let mut words = said.splitn(3, ' ');
        let (seed, life) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        Some(Self { folder: words.next()?.into(), seed, life })
    }

    fn spawn(&self) -> Result<Child> {
        let mut command = Command::new(std::env::current_exe()?);
        // In a test program, start the ignored test `victim`, which runs only if named.
        let own: &[&str] = if cfg!(test) {
            &["kills::tests::victim", "--exact", "--ignored", "--nocapture"]
        } else {
            &["kills"]
        };
        let said = format!("{} {} {}", self.seed, self.life, self.folder.display());
        Ok(command.args(own).env(Self::VARIABLE, said).stdout(Stdio::piped()).spawn()?)
    }

    /// Writes until it is killed.
    fn be_killed(&self) -> Result<()> {
        let shape = Shape::new(&self.folder, self.seed);
        let known = Known::open(&shape.known, shape.len)?;
        let mut array = if shape.are_made() {
            shape.builder().open(&shape.files)?
        } else {
            // The last process was killed during the creation, so no element was synced; begin again.
            shape.files.iter().for_each(|file| drop(std::fs::remove_file(file)));
            shape.builder().create(&shape.files)?
        };
        let mut counts = [0; THREADS];
        if shape.grows {
            if array.len() > GROWN_MAX {
                let len = SplitMix64::new(self.life).index(GROWN_MAX);
                // Record the new length before the truncation: from now on, elements beyond it may disappear.
                known.synced(0).fetch_min(len as u64, Ordering::Relaxed);
                array.truncate(len)?;
            }
            counts = self::counts(&array)?;
        }
        println!("writing");
        std::thread::scope(|scope| {
            let threads = (0..THREADS).map(|thread| {
                let random = SplitMix64::new(self.life << 8 | thread as u64);
                let (array, known, count, grows) = (&array, &known, counts[thread], shape.grows);
                scope.spawn(move || match grows {
                    true => push(array, known, (thread, count), random),
                    false => write(array, known, thread, random),
                })
            });
            let threads: Vec<_> = threads.collect();
            let mut outcomes = threads.into_iter().map(|thread| thread.join());
            outcomes.try_for_each(|outcome| outcome.unwrap_or_else(|_| bail!("a writing thread panicked")))
        })
    }
}

/// The work of one thread: writes its own elements, reads other threads' elements, and syncs.
fn write(array: &VirtualArray<Words>, known: &Known, thread: usize, mut random: SplitMix64) -> Result<()> {
    let part = array.len() / THREADS;
    let own = thread * part..(thread + 1) * part;
    // For each element of this thread, the version that the last completed write stored.
    let mut done: Vec<u64> =
        own.clone().map(|index| version(index, array.get(index)?)).collect::<Result<_>>()?;
    loop {
        let start = random.index(part);
        let count = if random.index(8) == 0 { 1 + random.index(part - start) } else { 1 };
        let mut values = Vec::new();
        for at in start..start + count {
            let next = known.begun(own.start + at).load(Ordering::Relaxed) + 1;
            known.begun(own.start + at).store(next, Ordering::Relaxed);
            values.push(words(own.start + at, next));
        }
        match values[..] {
            [value] => array.set(own.start + start, value)?,
            _ => array.write(own.start + start, &values)?,
        }
        for (at, value) in (start..).zip(&values) {
            done[at] = version(own.start + at, *value)?;
        }
        let other = random.index(array.len());
        version(other, array.get(other)?)?;
        if random.index(30) == 0 {
            array.sync()?;
            for (index, version) in own.clone().zip(&done) {
                known.synced(index).store(*version, Ordering::Relaxed);
            }
        }
    }
}

/// The work of one thread on a growing array: pushes numbered elements, reads others, and syncs.
fn push(
    array: &VirtualArray<Words>,
    known: &Known,
    (thread, mut count): (usize, u64),
    mut random: SplitMix64,
) -> Result<()> {
    loop {
        count += 1;
        let index = array.push(words(thread, count))?;
        ensure!(array.get(index)? == words(thread, count), "element {index} differs from the pushed value");
        let other = array.get(random.index(index + 1))?;
        version((other[0] >> 32) as usize, other)?;
        if random.index(30) == 0 {
            let len = array.len() as u64;
            array.sync()?;
            known.synced(0).fetch_max(len, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_of_kills_loses_nothing() {
        // Test both kinds of shapes.
        run(KillsArgs { count: 120, seed: 1, folder: None, resume: None }).unwrap();
    }

    /// The program that the other test kills.
    #[test]
    #[ignore = "runs until it is killed"]
    fn victim() {
        Victim::of_env().expect("the parent process passes the job").be_killed().unwrap();
    }
}
