//! Benchmark workloads on arrays in files, compared with plain reads and writes and with a mapped file of the
//! same length. Each runs with the file in the system's page cache (warm), and without it (cold).

use crate::bench::measure::{Sample, Unit, on_threads};
use crate::bench::results::{Role, Row};
use crate::bench::scratch::{Scratch, forget};
use crate::bench::suite::{Bench, size};
use anyhow::{Context, Result};
use memmap2::MmapMut;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use vmarray::device::Device;
use vmarray::device::wrap::SplitMix64;
use vmarray::prelude::*;
use vmarray::store::FileDevice;
use vmarray::{AnyDevice, Builder, VirtualArray};

/// The length of a random read or write, in bytes.
const BLOCK_BYTES: usize = 4 << 10;
const BLOCK_WORDS: usize = BLOCK_BYTES / 4;
/// The length of a scan's reads, in bytes.
const PIECE_BYTES: usize = 1 << 20;
/// The number of blocks that one repetition reads or writes.
const BLOCKS_WARM: usize = 1 << 16;
const BLOCKS_COLD: usize = 1 << 13;

/// An array in a file, and a second file with the same bytes for the competitors.
struct Files<D: Device> {
    array: VirtualArray<u32, D>,
    own: Scratch,
    plain: File,
    map: MmapMut,
    other: Scratch,
    words: usize,
}

impl<D: Device> Files<D> {
    /// Creates files of `bytes` bytes; `make` creates an array in the file of a path.
    fn new(
        bytes: usize,
        make: impl FnOnce(&Path, Builder<u32, AnyDevice>) -> vmarray::Result<VirtualArray<u32, D>>,
    ) -> Result<Self> {
        let (own, other) = (Scratch::new()?, Scratch::new()?);
        let words = bytes / 4;
        let array = make(&own.0, VirtualArray::<u32>::builder(words).cache_bytes(bytes / 4))?;
        let plain = File::options().read(true).write(true).create_new(true).open(&other.0)?;
        plain.set_len(bytes as u64)?;
        let piece: Vec<u32> = (0..PIECE_BYTES as u32 / 4).collect();
        for start in (0..words).step_by(piece.len()) {
            let piece = &piece[..piece.len().min(words - start)];
            array.write(start, piece)?;
            plain.write_all_at(bytemuck::cast_slice(piece), start as u64 * 4)?;
        }
        // SAFETY: no other process knows the file, so it is neither changed nor truncated.
        let map = unsafe { MmapMut::map_mut(&plain)? };
        Ok(Self { array, own, plain, map, other, words })
    }

    /// Empties the array's cache, and if `is_cold`, drops both files from the system's page cache.
    fn prepare(&mut self, is_cold: bool) -> Result<()> {
        self.array.evict(..)?;
        if is_cold {
            // Unmap the files first, because the system does not drop mapped pages.
            self.map = MmapMut::map_anon(1)?;
            for Scratch(path) in [&self.own, &self.other] {
                let file = File::open(path)?;
                file.sync_all()?;
                forget(&file);
            }
            // SAFETY: as in `new`.
            self.map = unsafe { MmapMut::map_mut(&self.plain)? };
        }
        Ok(())
    }
}

/// Runs one repetition: several threads work on some random blocks.
fn at_random(
    threads: usize,
    blocks: usize,
    len: usize,
    seed: u64,
    step: impl Fn(usize) -> Result<()> + Sync,
) -> Result<Sample> {
    on_threads(threads, |thread| {
        let mut random = SplitMix64::new(seed * 1000 + thread as u64);
        let count = blocks / threads;
        (0..count).try_for_each(|_| step(random.index(len / BLOCK_WORDS)))?;
        Ok(count as f64)
    })
}

/// Measures contenders alternately, and records their speed, and for reads also the processor time.
fn compare<D: Device>(
    row: &mut Row,
    files: &mut Files<D>,
    is_cold: bool,
    run: impl Fn(&Files<D>, usize, u64) -> Result<Sample>,
) -> Result<()> {
    const NAMES: [(&str, Role); 3] =
        [("ours", Role::Ours), ("pread", Role::Alternative), ("mmap", Role::Alternative)];
    let turns = row.effort.runs;
    let mut series: [Vec<Sample>; 3] = Default::default();
    for turn in 0..=turns {
        for (way, series) in series.iter_mut().enumerate() {
            files.prepare(is_cold)?;
            let sample = run(files, way, turn as u64)?;
            if turn > 0 {
                series.push(sample);
            }
        }
    }
    let middle = |samples: &[Sample], of: &dyn Fn(&Sample) -> f64| {
        crate::bench::measure::Summary::of(&samples.iter().map(of).collect::<Vec<_>>()).context("no samples")
    };
    let mut cpu = Vec::new();
    for ((name, role), series) in NAMES.into_iter().zip(&series) {
        row.add(name, role, middle(series, &|sample| row.unit.of(sample))?);
        cpu.push(middle(series, &|sample| sample.cpu / sample.amount)?.median);
    }
    row.count([("processor_time_to_pread", cpu[0] / cpu[1]), ("processor_time_to_mmap", cpu[0] / cpu[2])]);
    Ok(())
}

pub fn run(bench: &mut Bench) -> Result<()> {
    let bytes = bench.setup.file_bytes as u64 + (1 << 20);
    measure(bench, "files", |path, builder| {
        let device = FileDevice::create(path, bytes)?;
        builder.devices([Arc::new(device)]).build()
    })
}

/// Measures the workloads of `family` on the array that `make` creates, whose devices are files (`D`).
pub fn measure<D: Device>(
    bench: &mut Bench,
    family: &str,
    make: impl FnOnce(&Path, Builder<u32, AnyDevice>) -> vmarray::Result<VirtualArray<u32, D>>,
) -> Result<()> {
    let pages = size(64 << 10);
    if !bench.wants_ways(family, &["scan", "read", "update"], &pages) {
        return Ok(());
    }
    let mut files = Files::new(bench.setup.file_bytes, make)?;
    for is_cold in [false, true] {
        let name = |way: &str, more: &str| {
            format!("{family}/{way}/{pages}/{}{more}", if is_cold { "cold" } else { "warm" })
        };
        bench.row(name("scan", ""), Unit::GigabytesPerSecond, |_, row| {
            compare(row, &mut files, is_cold, scan)
        })?;
        let blocks = if is_cold { BLOCKS_COLD } else { BLOCKS_WARM };
        for threads in [1, 16] {
            let more = format!("/t{threads}");
            bench.row(name("read", &more), Unit::KiloPerSecond, |_, row| {
                compare(row, &mut files, is_cold, |files, way, seed| {
                    at_random(threads, blocks, files.words, seed, |block| read(files, way, block))
                })
            })?;
            bench.row(name("update", &more), Unit::KiloPerSecond, |_, row| {
                compare(row, &mut files, is_cold, |files, way, seed| {
                    update(files, way, threads, blocks, seed)
                })
            })?;
        }
    }
    Ok(())
}

/// Reads the whole array, file or mapping, piece by piece.
fn scan<D: Device>(files: &Files<D>, way: usize, _: u64) -> Result<Sample> {
    on_threads(1, |_| {
        let mut piece = vec![0_u32; PIECE_BYTES / 4];
        let mut sum = 0_u64;
        for start in (0..files.words).step_by(piece.len()) {
            let len = piece.len().min(files.words - start);
            take(files, way, start, &mut piece[..len])?;
            sum += piece[..len].iter().map(|word| u64::from(*word)).sum::<u64>();
        }
        std::hint::black_box(sum);
        Ok(files.words as f64 * 4.0)
    })
}

/// Copies elements from the array, file or mapping.
fn take<D: Device>(files: &Files<D>, way: usize, start: usize, to: &mut [u32]) -> Result<()> {
    match way {
        0 => files.array.read(start, to)?,
        1 => files.plain.read_exact_at(bytemuck::cast_slice_mut(to), start as u64 * 4)?,
        _ => to.copy_from_slice(bytemuck::cast_slice(&files.map[start * 4..(start + to.len()) * 4])),
    }
    Ok(())
}

fn read<D: Device>(files: &Files<D>, way: usize, block: usize) -> Result<()> {
    let mut words = [0_u32; BLOCK_WORDS];
    take(files, way, block * BLOCK_WORDS, &mut words)?;
    std::hint::black_box(words[7]);
    Ok(())
}

/// Changes one word in each of some blocks, and passes all changes to the operating system.
fn update<D: Device>(
    files: &Files<D>,
    way: usize,
    threads: usize,
    blocks: usize,
    seed: u64,
) -> Result<Sample> {
    on_threads(threads, |thread| {
        let mut random = SplitMix64::new(seed * 1000 + thread as u64);
        let count = blocks / threads;
        for _ in 0..count {
            let at = random.index(files.words / BLOCK_WORDS) * BLOCK_WORDS;
            match way {
                0 => {
                    files.array.update(at, |word| word.wrapping_add(1))?;
                }
                1 => {
                    let mut words = [0_u32; BLOCK_WORDS];
                    files.plain.read_exact_at(bytemuck::cast_slice_mut(&mut words), at as u64 * 4)?;
                    words[0] = words[0].wrapping_add(1);
                    files.plain.write_all_at(bytemuck::cast_slice(&words), at as u64 * 4)?;
                }
                _ => {
                    let word: *const u32 = files.map[at * 4..].as_ptr().cast();
                    // SAFETY: inside of the mapping, which is writable and aligned; all other code changes
                    // the word by an atomic access, too.
                    let word = unsafe { std::sync::atomic::AtomicU32::from_ptr(word.cast_mut()) };
                    word.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                }
            }
        }
        if way == 0 && thread == 0 {
            files.array.flush(..)?;
        }
        Ok(count as f64)
    })
}
