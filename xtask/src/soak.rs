//! `cargo xtask soak`: threads and tasks access elements of arrays for a long time, on every available
//! device, and check each value.
//!
//! Each element belongs to one thread or task (its owner). Only the owner writes the element; all threads and
//! tasks read it. A value encodes the element's index and a version, so a reader detects torn, lost, stale or
//! misplaced values. The owner expects the version that it wrote last; after a failed write, that version or
//! the one before. Each reader expects a version no older than the last one that it saw. In some rounds
//! devices occasionally fail copies. In rounds with mirrors, ten times a device is lost and rebuilt, and no
//! call may fail. In other rounds the array moves ten times to other devices.
//!
//! Each round creates an array of random shape; the printed seed repeats the round. If no thread progresses
//! for a minute, the process ends with a message. After each round the program drops the array and measures
//! resident memory. The program reports a leak if the minimum of the last rounds is far above the minimum of
//! the first rounds.

use crate::arrays::SoakArgs;
use anyhow::{Context, Result, anyhow, bail, ensure};
use futures::executor::block_on;
use futures::stream::{FuturesUnordered, TryStreamExt};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use vmarray::device::wrap::Fault;
use vmarray::device::wrap::SplitMix64;
use vmarray::device::{DeviceKind, ErrorKind as DeviceErrorKind};
use vmarray::home::{ChannelHome, ReplicaState};
use vmarray::host::{HostDevice, SimulatedDevice};
use vmarray::prelude::*;
use vmarray::store::FileDevice;
use vmarray::{AnyDevice, Discovery, Element, EvictionPolicy, Placement, VirtualArray, device::Device};
use vmarray_conformance::wrap::Faulty;

type OnDevice<T> = VirtualArray<T, Faulty<AnyDevice>>;

/// The number of kinds of rounds, which differ in their devices; in the last kind devices are lost.
const ROUND_KINDS: u64 = 5;
/// The number of losses and rebuilds in a round of the last kind.
const LOSSES: u64 = 10;
/// The probability of a device's failure in rounds with faults.
const FAULTS: f64 = 0.002;
/// The maximum time without progress of any thread.
const PATIENCE: Duration = Duration::from_secs(60);
/// The number of last rounds whose minimum resident memory is compared with the first rounds' minimum. It
/// covers all kinds of rounds.
const ROUNDS: usize = 16;
/// The allowed growth of resident memory; caches of allocators and drivers vary by less.
const GROWTH_MIB: u64 = 64;
/// The number of operations of all threads in this process, as a sign of progress.
static PROGRESS: AtomicU64 = AtomicU64::new(0);

/// The progress of all rounds, over all calls with the same progress file.
#[derive(Clone, Default, Serialize, Deserialize)]
struct Soaked {
    rounds: u64,
    operations: u64,
    /// Calls with an injected failure.
    failures: u64,
    seconds: f64,
}

pub fn run(args: SoakArgs) -> Result<()> {
    args.resume.iter().try_for_each(|file| crate::resume::begin(file))?;
    use_few_arenas();
    let before = match &args.resume {
        Some(file) if file.exists() => load(file).with_context(|| file.display().to_string())?,
        _ => Soaked::default(),
    };
    let is_over = AtomicBool::new(false);
    let soaked = std::thread::scope(|scope| {
        scope.spawn(|| watch(&is_over));
        let soaked = rounds(&args, before);
        is_over.store(true, Ordering::Relaxed);
        soaked
    })?;
    println!(
        "{} element operations in {} rounds, {:.0} s: none lost, torn, stale or stuck, no memory kept; {} calls \
         failed as they were made to",
        soaked.operations, soaked.rounds, soaked.seconds, soaked.failures
    );
    Ok(())
}

/// Runs one round after the other until the number of operations is reached.
fn rounds(args: &SoakArgs, before: Soaked) -> Result<Soaked> {
    let (begun, at_first) = (Instant::now(), PROGRESS.load(Ordering::Relaxed));
    let mut soaked = before.clone();
    let mut memory = Memory::default();
    while soaked.operations < args.operations {
        let seed = args.seed + soaked.rounds;
        soaked.failures += round(args, seed).with_context(|| format!("seed {seed}"))?;
        soaked.rounds += 1;
        let tenths = |operations: u64| 10 * operations / args.operations;
        let last = soaked.operations;
        soaked.operations = before.operations + PROGRESS.load(Ordering::Relaxed) - at_first;
        soaked.seconds = before.seconds + begun.elapsed().as_secs_f64();
        let resident = memory.look().with_context(|| format!("after seed {seed}"))?;
        if tenths(last) < tenths(soaked.operations) {
            let Soaked { rounds, operations, failures, seconds } = &soaked;
            println!(
                "{operations} operations, {rounds} rounds, {seconds:.0} s, {failures} failures, {resident} MiB resident"
            );
        }
        if let Some(file) = &args.resume {
            std::fs::write(file, serde_json::to_vec(&soaked)?)?;
        }
    }
    Ok(soaked)
}

fn load(file: &Path) -> Result<Soaked> {
    Ok(serde_json::from_slice(&std::fs::read(file)?)?)
}

/// Resident memory after each round, in MiB.
#[derive(Default)]
struct Memory {
    after: Vec<u64>,
}

impl Memory {
    /// Measures the memory now. Returns an error if the minimum in the last rounds is too far above that of
    /// the first rounds.
    fn look(&mut self) -> Result<u64> {
        self.note(resident_mib().unwrap_or(0))
    }

    fn note(&mut self, mib: u64) -> Result<u64> {
        self.after.push(mib);
        // Skip the first rounds, in which drivers and allocators fill their caches.
        if let Some([first, .., last]) = self.after.get(ROUNDS..).map(|after| after.as_chunks::<ROUNDS>().0) {
            let [first, last] = [first, last].map(|some| some.iter().min().copied().unwrap_or(0));
            ensure!(
                last <= first + GROWTH_MIB,
                "resident memory, the minimum of {ROUNDS} rounds, has grown from {first} to {last} MiB"
            );
        }
        Ok(mib)
    }
}

/// Limits the allocator to few arenas. With 32 cores the GNU C library creates up to 256. Then resident
/// memory grows from 118 to 185 MiB in 90 rounds although they free all memory; with two arenas it stays at
/// 104 MiB.
fn use_few_arenas() {
    #[cfg(target_env = "gnu")]
    // SAFETY: any thread may call it at any time; it changes a setting of the allocator.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 2);
    }
}

/// Returns resident memory in MiB; `None` if the system does not report it. Before, returns freed memory to
/// the system: with an OpenCL driver on the processor, the allocator otherwise keeps 80 MiB in 200 rounds.
fn resident_mib() -> Option<u64> {
    #[cfg(target_env = "gnu")]
    // SAFETY: any thread may call it at any time.
    unsafe {
        libc::malloc_trim(0);
    }
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? / 1024)
}

/// Ends the process if no thread progresses for too long.
fn watch(is_over: &AtomicBool) {
    let mut seen = (0, Instant::now());
    while !is_over.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(20));
        let now = PROGRESS.load(Ordering::Relaxed);
        if now != seen.0 {
            seen = (now, Instant::now());
        } else if seen.1.elapsed() > PATIENCE {
            eprintln!("no thread has made progress for a minute after {now} operations");
            std::process::abort();
        }
    }
}

/// Opens devices and returns them by value, because wrappers own their devices.
fn open(list: &str) -> Result<Vec<AnyDevice>> {
    let separate = Discovery::new().select(list)?.separate(true);
    Ok(separate.open()?.into_iter().filter_map(Arc::into_inner).collect())
}

fn devices(args: &SoakArgs, seed: u64, random: &mut SplitMix64) -> Result<Vec<AnyDevice>> {
    let bytes = 64 << 20;
    let host = || HostDevice::builder().bytes(bytes).build().map(AnyDevice::from);
    let mut devices = match &args.devices {
        Some(list) => open(list)?,
        None => match seed % ROUND_KINDS {
            0 => vec![host()?],
            1 => {
                let folder = args.folder.clone().unwrap_or_else(std::env::temp_dir);
                vec![FileDevice::builder(folder).create_temporary(bytes)?.into()]
            }
            2 => {
                let latency = Duration::from_micros(random.below(50));
                let device = SimulatedDevice::builder(seed).bytes(bytes).latency(latency).jitter(3.0);
                vec![device.build().into()]
            }
            _ => {
                let mut others = open("all").unwrap_or_default();
                others.retain(|device| device.info().kind != DeviceKind::HostMemory);
                if others.is_empty() { vec![host()?] } else { others }
            }
        },
    };
    if random.below(4) == 0 {
        devices.push(host()?);
    }
    Ok(devices)
}

/// Runs one array with all threads and tasks. Returns the number of failed calls.
fn round(args: &SoakArgs, seed: u64) -> Result<u64> {
    let mut random = SplitMix64::new(seed);
    if args.losses || args.devices.is_none() && seed % ROUND_KINDS == ROUND_KINDS - 1 {
        return if random.below(2) == 0 {
            with_losses::<u64>(args, seed, random)
        } else {
            with_losses::<[u64; 3]>(args, seed, random)
        };
    }
    let devices = devices(args, seed, &mut random)?.into_iter().map(|device| Arc::new(Faulty::new(device)));
    let devices: Vec<_> = devices.collect();
    if random.below(2) == 0 {
        on_elements::<u64>(args, devices, seed, random)
    } else {
        on_elements::<[u64; 3]>(args, devices, seed, random)
    }
}

fn on_elements<T: Cell>(
    args: &SoakArgs,
    devices: Vec<Arc<Faulty<AnyDevice>>>,
    seed: u64,
    mut random: SplitMix64,
) -> Result<u64> {
    let frames = random.pick(&[1, 3, 20, 200]);
    let channels = devices.iter().map(|_| 1 + random.below(2) as u32).collect();
    let array = VirtualArray::<T>::builder(4096 + random.index(200_000))
        .devices(devices.iter().cloned())
        .placement(Placement::Ratios(channels))
        .page_len(1 + random.index(2000))
        .frames_per_channel(1 + random.index(frames))
        .eviction(random.pick(&[EvictionPolicy::Clock, EvictionPolicy::Lru, EvictionPolicy::TwoQueue]))
        .read_ahead(random.below(2) == 0)
        .build()?;
    let (fails, later) = (random.below(2) == 0, random.below(2) == 0);
    for (device, seed) in devices.iter().zip(seed..).filter(|_| fails) {
        let fault = Fault::anywhere(DeviceErrorKind::CopyFailed).with_chance(FAULTS, seed);
        device.inject(if later { fault.reported_later() } else { fault });
    }
    work(&array, (args.threads, args.round), seed)
}

/// Runs a round in which an array loses devices one after another, or moves to others; no value may be lost.
fn with_losses<T: Cell>(args: &SoakArgs, seed: u64, mut random: SplitMix64) -> Result<u64> {
    let moves = random.below(2) == 0;
    let (placement, least) = if moves { (Placement::Equal, 1) } else { (Placement::Mirrored, 2) };
    let mut cards =
        (0..least + random.below(6 - least)).map(|at| card(seed << 8 | at)).collect::<Result<Vec<_>>>()?;
    let frames = random.pick(&[3, 20, 200]);
    let array = VirtualArray::<T>::builder(4096 + random.index(50_000))
        .devices(cards.iter().cloned())
        .placement(placement)
        .movable(moves)
        .page_len(1 + random.index(1000))
        .frames_per_channel(1 + random.index(frames))
        .eviction(random.pick(&[EvictionPolicy::Clock, EvictionPolicy::Lru, EvictionPolicy::TwoQueue]))
        .read_ahead(random.below(2) == 0)
        .build()?;
    let is_over = AtomicBool::new(false);
    let failures = std::thread::scope(|scope| {
        let breaking = scope.spawn(|| -> Result<u64> {
            let mut losses = 0;
            while losses < LOSSES {
                // Spread the losses over the round, so that some operations run with all devices.
                let next = PROGRESS.load(Ordering::Relaxed) + args.round / (LOSSES + 2);
                while PROGRESS.load(Ordering::Relaxed) < next && !is_over.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                let at = random.index(cards.len());
                let old = std::mem::replace(&mut cards[at], card(random.next())?);
                if moves {
                    // Move the array to some of the current devices.
                    array.rebalance(cards[random.index(at + 1)..=at].iter().cloned())?;
                } else {
                    old.lose();
                    array.rebuild(cards[at].clone())?;
                }
                losses += 1;
            }
            Ok(losses)
        });
        let worked = work(&array, (args.threads, args.round), seed);
        is_over.store(true, Ordering::Relaxed);
        breaking.join().unwrap_or_else(|_| bail!("the thread that breaks devices panicked"))?;
        worked
    })?;
    let homes = array.homes();
    let are_whole = |home: &ChannelHome| {
        home.lost_pages == 0 && home.replicas.iter().all(|one| one.state == ReplicaState::Current)
    };
    ensure!(homes.iter().all(are_whole), "a device was not rebuilt: {homes:?}");
    ensure!(failures == 0, "{failures} calls failed, but a mirror must survive the loss of a device");
    Ok(0)
}

/// Creates a device that can be lost.
fn card(seed: u64) -> Result<Arc<Faulty<AnyDevice>>> {
    let bytes = 16 << 20;
    let device: AnyDevice = if seed.is_multiple_of(3) {
        HostDevice::builder().bytes(bytes).build()?.into()
    } else {
        let latency = Duration::from_micros(seed % 50);
        SimulatedDevice::builder(seed).bytes(bytes).latency(latency).jitter(3.0).build().into()
    };
    Ok(Arc::new(Faulty::new(device)))
}

/// An element whose value encodes its index and version.
trait Cell: Element + PartialEq + std::fmt::Debug {
    fn of(index: usize, version: u32) -> Self;
    /// Returns the version, if the value is whole and has this index.
    fn version(self, index: usize) -> Option<u32>;
}

impl Cell for u64 {
    fn of(index: usize, version: u32) -> Self {
        if version == 0 { 0 } else { (index as u64) << 32 | u64::from(version) }
    }

    fn version(self, index: usize) -> Option<u32> {
        let version = self as u32;
        (self == Self::of(index, version)).then_some(version)
    }
}

impl Cell for [u64; 3] {
    fn of(index: usize, version: u32) -> Self {
        if version == 0 {
            [0; 3]
        } else {
            [
                index as u64,
                u64::from(version),
                SplitMix64::new(index as u64 ^ u64::from(version) << 32).next(),
            ]
        }
    }

    fn version(self, index: usize) -> Option<u32> {
        let version = self[1] as u32;
        (self == Self::of(index, version)).then_some(version)
    }
}

/// The state of a thread or a task: its own elements, and the versions of other elements that it has read.
struct Worker {
    number: usize,
    workers: usize,
    random: SplitMix64,
    /// The versions of its own elements: the last written one, and the oldest that may still be stored.
    own: Vec<(u32, u32)>,
    /// The newest version that it has read of an element, and its index; at the index modulo the length.
    seen: Vec<(usize, u32)>,
    /// The current operation, and the number of failures.
    drawn: u64,
    failures: u64,
}

impl Worker {
    fn new(number: usize, workers: usize, len: usize, seed: u64) -> Self {
        let own = vec![(0, 0); (len + workers - 1 - number) / workers];
        let random = SplitMix64::new(seed << 32 | number as u64);
        Self { number, workers, random, own, seen: vec![(0, 0); 512], drawn: 0, failures: 0 }
    }

    /// Returns a random index; half of the time it is in a range that all workers use often.
    fn any(&mut self, len: usize) -> usize {
        if self.random.below(2) == 0 { self.random.index(len) } else { self.random.index(len.min(3000)) }
    }

    /// Returns the number of one of its own elements; `None` if it has none.
    fn own(&mut self) -> Option<usize> {
        let few = if self.random.below(2) == 0 { self.own.len() } else { self.own.len().min(20) };
        (few > 0).then(|| self.random.index(few))
    }

    fn index(&self, place: usize) -> usize {
        place * self.workers + self.number
    }

    fn check<T: Cell>(&mut self, index: usize, value: T) -> Result<()> {
        let version = value.version(index).ok_or_else(|| anyhow!("element {index} is torn: {value:?}"))?;
        if index % self.workers == self.number {
            let (last, before) = self.own[index / self.workers];
            ensure!(
                (before..=last).contains(&version),
                "element {index} has version {version}, not {before} to {last} ({})",
                self.drawn
            );
            // From now on, reads must not return an older version than `version`.
            self.own[index / self.workers].1 = version;
            return Ok(());
        }
        let at = index % self.seen.len();
        let (known, least) = &mut self.seen[at];
        if *known == index {
            ensure!(
                version >= *least,
                "element {index} has version {version}, older than the version {least} seen before ({})",
                self.drawn
            );
        }
        (*known, *least) = (index, version);
        Ok(())
    }

    /// Checks a list as [`check`](Self::check); its elements may have been read in any order.
    fn check_list<T: Cell>(&mut self, indices: &[usize], values: Vec<T>) -> Result<()> {
        let before = self.seen.clone();
        let mut after = before.clone();
        for (&index, value) in indices.iter().zip(values) {
            self.seen.clone_from(&before);
            self.check(index, value)?;
            let at = index % before.len();
            let newest = if after[at].0 == index { after[at].1 } else { 0 };
            after[at] = (index, self.seen[at].1.max(newest));
        }
        self.seen = after;
        Ok(())
    }

    /// Returns the next value for one of its own elements.
    fn begin<T: Cell>(&mut self, place: usize) -> T {
        // Until the write has succeeded, reads may return the old or the new version.
        self.own[place].0 += 1;
        T::of(self.index(place), self.own[place].0)
    }

    /// Records the outcome of the write that `begin` started.
    fn end<R>(&mut self, place: usize, result: vmarray::Result<R>) -> Result<Option<R>> {
        let result = self.outcome(result)?;
        if result.is_some() {
            self.own[place].1 = self.own[place].0;
        }
        Ok(result)
    }

    /// Converts the result of a call: returns `None` for an injected failure.
    fn outcome<R>(&mut self, result: vmarray::Result<R>) -> Result<Option<R>> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(error) if error.device_error().is_some_and(|e| e.kind() == DeviceErrorKind::CopyFailed) => {
                self.failures += 1;
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// Runs threads that block and threads that poll tasks. Returns the number of failed calls.
fn work<T: Cell>(array: &OnDevice<T>, (threads, operations): (usize, u64), seed: u64) -> Result<u64> {
    let tasks = [1, 30, 300][seed as usize % 3];
    let workers = threads / 2 * tasks + threads.div_ceil(2);
    let each = operations / workers as u64;
    let worker = |number| Worker::new(number, workers, array.len(), seed);
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads)
            .map(|thread| {
                scope.spawn(move || -> Result<u64> {
                    if thread % 2 == 0 {
                        return block_on(operate(array, worker(thread / 2), each * tasks as u64, true));
                    }
                    let first = threads.div_ceil(2) + thread / 2 * tasks;
                    let tasks: FuturesUnordered<_> = (first..first + tasks)
                        .map(|number| operate(array, worker(number), each, false))
                        .collect();
                    block_on(tasks.try_fold(0, async |sum, failures| Ok(sum + failures)))
                })
            })
            .collect();
        all.into_iter().map(|thread| thread.join().unwrap_or_else(|_| bail!("a thread panicked"))).sum()
    })
}

/// Runs the operations of a thread (blocking) or of a task. Returns the number of failures.
async fn operate<T: Cell>(
    array: &OnDevice<T>,
    mut worker: Worker,
    operations: u64,
    blocks: bool,
) -> Result<u64> {
    let mut done = 0;
    while done < operations {
        worker.drawn = worker.random.below(40);
        let count = match worker.drawn {
            0..20 => {
                let index = worker.any(array.len());
                let result = if blocks { array.get(index) } else { array.get_async(index).await };
                if let Some(value) = worker.outcome(result)? {
                    worker.check(index, value)?;
                }
                1
            }
            20..34 => {
                let Some(place) = worker.own() else { continue };
                let value = worker.begin::<T>(place);
                let index = worker.index(place);
                let result = match worker.random.below(3) {
                    _ if !blocks => array.set_async(index, value).await,
                    0 => array.update(index, |_| value).map(drop),
                    _ => array.set(index, value),
                };
                worker.end(place, result)?;
                1
            }
            34 => {
                let indices: Vec<usize> = (0..64).map(|_| worker.any(array.len())).collect();
                let result = if blocks { array.gather(&indices) } else { array.gather_async(&indices).await };
                if let Some(values) = worker.outcome(result)? {
                    worker.check_list(&indices, values)?;
                }
                64
            }
            35..38 => {
                let start = worker.any(array.len());
                let mut values = vec![T::of(0, 0); 1 + worker.random.index(500).min(array.len() - start - 1)];
                let result = if blocks {
                    array.read(start, &mut values)
                } else {
                    array.read_async(start, &mut values).await
                };
                if worker.outcome(result)?.is_some() {
                    (start..).zip(&values).try_for_each(|(index, value)| worker.check(index, *value))?;
                }
                values.len() as u64
            }
            38 if blocks => {
                let start = worker.any(array.len());
                let range = start..(start + 5000).min(array.len());
                let flushes = worker.random.below(2) == 0;
                worker.outcome(if flushes { array.flush(range) } else { array.evict(range) })?;
                1
            }
            38 => {
                // Cancel a read: poll its future once, and drop it.
                let _ = futures::poll!(array.get_async(worker.any(array.len())));
                1
            }
            _ => {
                let page = worker.any(array.len()) / array.page_len();
                let result = if blocks { array.page(page) } else { array.page_async(page).await };
                if let Some(guard) = worker.outcome(result)? {
                    let mut elements = guard.range().zip(guard.iter());
                    elements.try_for_each(|(index, value)| worker.check(index, *value))?;
                }
                array.page_len() as u64
            }
        };
        done += count;
        PROGRESS.fetch_add(count, Ordering::Relaxed);
    }
    Ok(worker.failures)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_of_rounds_finds_nothing() {
        let (devices, folder, resume) = (None, None, None);
        let (operations, round, seed, threads, losses) = (5_000_000, 125_000, 1, 4, false);
        run(SoakArgs { devices, operations, round, seed, threads, losses, folder, resume }).unwrap();
    }

    #[test]
    fn memory_that_grows_is_found_and_memory_that_varies_is_not() {
        let after = |of: fn(u64) -> u64| {
            let mut memory = Memory::default();
            (0..200).try_for_each(|round| memory.note(of(round)).map(drop))
        };
        after(|round| 50 + 300 * (round % 7)).unwrap();
        after(|round| 50 + round.min(15) * 100).unwrap();
        assert!(after(|round| 50 + round).is_err());
        assert!(after(|round| 50 + round + 300 * (round % 7)).is_err());
    }
}
