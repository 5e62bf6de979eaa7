//! Benchmark workloads that read random elements of a file far larger than RAM, with and without GPUs as a
//! cache tier between file and RAM.

use crate::bench::elements::{Payload, zipf};
use crate::bench::measure::{Unit, on_threads, until};
use crate::bench::record::digits;
use crate::bench::results::{Role, Row};
use crate::bench::scratch::{Scratch, forget};
use crate::bench::setup::{CHUNK_BYTES, pieces};
use crate::bench::suite::{Bench, size};
use anyhow::{Context, Result};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use vmarray::device::DeviceKind;
use vmarray::device::wrap::SplitMix64;
use vmarray::prelude::*;
use vmarray::store::{Tier, TierStatus};
use vmarray::{VirtualArray, device::Device};

/// The distributions of accesses over pages: name, and exponent of Zipf's law or `None` if uniform.
const SPREADS: [(&str, Option<f64>); 2] = [("zipf-1.0", Some(1.0)), ("even", None)];
const THREADS: [usize; 2] = [1, 16];
/// The number of indices that a thread draws before the measurement. It uses them repeatedly. They touch many
/// times more pages than the cache in RAM holds, so repetition does not help it.
const DRAWN: usize = 1 << 18;

pub fn run(bench: &mut Bench) -> Result<()> {
    if !bench.wants_any("tier/") {
        return Ok(());
    }
    let setup = bench.setup.clone();
    let in_ram = setup.devices.iter().any(|device| device.info().kind != DeviceKind::DiscreteGpu);
    let most = match (in_ram, setup.quick) {
        (true, true) => 256 << 20,
        (true, false) | (false, true) => 1 << 30,
        (false, false) => 8 << 30,
    };
    // Use a power of two: `zipf` multiplies page ranks modulo their count, which is then a permutation.
    let usable = setup.devices.iter().map(|device| Ok(device.memory()?.usable_bytes as usize));
    let usable = usable.sum::<Result<usize>>()?;
    let bytes = usable.saturating_mul(2).min(most);
    let bytes = 1_usize << bytes.ilog2();
    let file = Scratch::new()?;
    fill(&file.0, bytes)?;
    // Drop the file from RAM, because the system's page cache would be another cache.
    let forgotten = Forgotten::new(&file.0)?;
    for (what, exponent) in SPREADS {
        spread(bench, &file.0, bytes, (what, exponent))?;
    }
    forgotten.end()
}

/// Creates an array of `bytes` bytes in a new file, whose elements are their indices.
fn fill(path: &Path, bytes: usize) -> Result<()> {
    let array = VirtualArray::<u64>::builder(bytes / 8).cache_bytes(64 << 20).create([path])?;
    let mut chunk = Vec::new();
    for piece in pieces(0..array.len(), CHUNK_BYTES / 8) {
        chunk.clear();
        chunk.extend(piece.clone().map(u64::of));
        array.write(piece.start, &chunk)?;
    }
    Ok(array.sync()?)
}

fn spread(bench: &mut Bench, path: &Path, bytes: usize, spread: (&str, Option<f64>)) -> Result<()> {
    let (what, exponent) = spread;
    let name = |how: &str| format!("tier/{what}/8B/{}/file-{}/{how}", size(64 << 10), size(bytes));
    if !bench.wants_any(&format!("tier/{what}/")) {
        return Ok(());
    }
    let setup = bench.setup.clone();
    let tier = Tier::new(setup.devices.iter().cloned()).bytes((bytes / 4 / setup.devices.len()) as u64);
    let open = || VirtualArray::<u64>::builder(0).cache_bytes(bytes / 100).read_ahead(false);
    let tiered = open().tier(&tier).open_read_only([path])?;
    let alone = open().open_read_only([path])?;
    let plain = File::open(path)?;
    let lists = (0..THREADS[1]).map(|thread| draw(exponent, &tiered, thread as u64));
    let lists: Vec<Vec<usize>> = lists.collect::<Result<_>>()?;
    let next: Vec<AtomicUsize> = lists.iter().map(|_| AtomicUsize::new(0)).collect();
    let threads = |threads: usize, seconds: f64, get: &(dyn Fn(usize) -> Result<()> + Sync)| {
        on_threads(threads, |thread| {
            until(seconds, 16, || {
                // Continue in the list where the previous repetition ended, so that repetitions read
                // different elements.
                let at = next[thread].fetch_add(1, Ordering::Relaxed);
                get(lists[thread][at % DRAWN])
            })
        })
    };
    let get = |array: &VirtualArray<u64>, index: usize| array.get(index)?.check(index);
    // Run until the GPUs are full, and some time longer.
    let start = Instant::now();
    let (limit, more) = if setup.quick { (2.0, 0.5) } else { (12.0, 3.0) };
    while tier.status().bytes < tier.status().capacity_bytes && start.elapsed().as_secs_f64() < limit {
        threads(THREADS[1], 0.2, &|index| get(&tiered, index))?;
    }
    threads(THREADS[1], more, &|index| get(&tiered, index))?;
    threads(THREADS[1], 0.2, &|index| get(&alone, index))?;
    let status = tier.status();
    println!(
        "    {}: cards have {} of {}, {} lost",
        name("warm"),
        size(status.bytes as usize),
        size(bytes),
        status.lost.len()
    );
    for count in THREADS {
        let seconds = setup.effort.seconds;
        bench.row(name(&format!("t{count}")), Unit::KiloPerSecond, |_, row| {
            let before = tier.status();
            row.ours(&tiered, || threads(count, seconds, &|index| get(&tiered, index)))?;
            let hits = Hits::of(&before, &tier.status());
            row.other("file", || threads(count, seconds, &|index| get(&alone, index)))?;
            row.other("pread", || {
                threads(count, seconds, &|index| {
                    let mut word = [0; 8];
                    Ok(plain.read_exact_at(&mut word, (index * 8) as u64)?)
                })
            })?;
            hits.report(row)
        })?;
    }
    Ok(())
}

/// Draws random elements of random pages.
fn draw(exponent: Option<f64>, array: &VirtualArray<u64>, seed: u64) -> Result<Vec<usize>> {
    let mut random = SplitMix64::new(seed);
    let (pages, page_len) = (array.len().div_ceil(array.page_len()), array.page_len());
    if let Some(exponent) = exponent {
        let pages = zipf(pages, exponent, seed)?.take(DRAWN);
        return Ok(pages.map(|page| page * page_len + random.index(page_len)).collect());
    }
    Ok((0..DRAWN).map(|_| random.index(array.len())).collect())
}

/// The share of pages that came from GPUs, among all pages that were not in RAM.
struct Hits(f64);

impl Hits {
    fn of(before: &TierStatus, after: &TierStatus) -> Self {
        let (hits, misses) = (after.hits - before.hits, after.misses - before.misses);
        Self(hits as f64 / (hits + misses).max(1) as f64)
    }

    /// Adds the limit that follows from this share: the speed if hits on GPUs took no time.
    fn report(self, row: &mut Row) -> Result<()> {
        let entry = |name| row.entries.iter().find(|entry| entry.name == name);
        let (ours, file) = entry("ours").zip(entry("file")).context("the row lacks a measured value")?;
        let (limit, ratio) = (1.0 / (1.0 - self.0).max(1e-6), ours.summary.median / file.summary.median);
        let free = file.summary.scaled(limit);
        println!(
            "    {} times the file; cards had {} of what RAM had not: {} times at most",
            digits(ratio),
            digits(self.0),
            digits(limit)
        );
        row.add("free-hits", Role::Limit, free);
        row.count([("tier_hits", self.0)]);
        Ok(())
    }
}

/// Keeps a file out of the system's page cache: a thread drops it repeatedly, by `posix_fadvise`.
struct Forgotten {
    end: mpsc::Sender<()>,
    thread: JoinHandle<()>,
    is_refused: Arc<AtomicBool>,
}

impl Forgotten {
    const EVERY: Duration = Duration::from_millis(10);

    fn new(path: &Path) -> Result<Self> {
        let file = File::open(path)?;
        let (end, ended) = mpsc::channel();
        let is_refused = Arc::new(AtomicBool::new(false));
        let refused = is_refused.clone();
        let thread = std::thread::spawn(move || {
            while ended.recv_timeout(Self::EVERY) == Err(mpsc::RecvTimeoutError::Timeout) {
                refused.fetch_or(!forget(&file), Ordering::Relaxed);
            }
        });
        Ok(Self { end, thread, is_refused })
    }

    fn end(self) -> Result<()> {
        drop(self.end);
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        if self.is_refused.load(Ordering::Relaxed) {
            println!("    The system keeps files in its page cache, so measurements of the file read RAM.");
        }
        Ok(())
    }
}
