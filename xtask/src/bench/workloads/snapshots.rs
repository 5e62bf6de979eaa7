//! Snapshots, saved and loaded, compared with system calls that write and read the same bytes with as many
//! threads, including the sync.

use crate::bench::mapped_file::{Scratch, forget};
use crate::bench::measure::{Sample, Unit, timed};
use crate::bench::results::{Role, Row};
use crate::bench::setup::{CHUNK_BYTES, Setup};
use crate::bench::suite::{Bench, size};
use anyhow::{Context, Result, ensure};
use std::fs::{self, File};
use std::ops::ControlFlow;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::thread;
use vmarray::VirtualArray;
use vmarray::device::wrap::SplitMix64;
use vmarray::file::SaveOptions;

/// The number of threads that copy, as in the library.
const THREADS: usize = 4;
/// The number of threads that write meanwhile.
const WRITERS: usize = 4;
/// The lengths of pages.
const PAGE_BYTES: [usize; 2] = [64 << 10, 1 << 20];

pub fn run(bench: &mut Bench) -> Result<()> {
    if !bench.wants_any("snapshots/") {
        return Ok(());
    }
    let setup = bench.setup.clone();
    let bytes = (setup.large_bytes / 2).min(4 << 30);
    let words: Vec<AtomicU32> = (0..(bytes / 4) as u32).map(AtomicU32::new).collect();
    for page_bytes in PAGE_BYTES {
        lists(bench, &setup, &words, page_bytes)?;
    }
    Ok(())
}

/// Measures arrays without and with threads that write.
fn lists(bench: &mut Bench, setup: &Setup, words: &[AtomicU32], page_bytes: usize) -> Result<()> {
    let bytes = size_of_val(words);
    let array = setup.filled::<u32>(bytes, Some(page_bytes / 4), bytes / 4)?;
    let pages = size(page_bytes);
    for writers in [0, WRITERS] {
        for is_instant in [false, true] {
            let way = if is_instant { "save-instant" } else { "save" };
            let name = format!("snapshots/{way}/{pages}/w{writers}");
            bench.row(name, Unit::GigabytesPerSecond, |_, row| {
                let options = SaveOptions::new().point_in_time(is_instant);
                beside_writes(row, words, writers, &|at| Ok(array.set(at, 7)?), &|path| {
                    Ok(array.save_with(path, options, |_| ControlFlow::Continue(()))?)
                })
            })?;
        }
    }
    let saved = Scratch::new()?;
    array.save(&saved.0)?;
    drop(array);
    for is_cold in [true, false] {
        let name = format!("snapshots/load/{pages}/{}", if is_cold { "cold" } else { "warm" });
        bench.row(name, Unit::GigabytesPerSecond, |_, row| {
            beside_reads(row, words, &saved.0, is_cold, &|path| {
                let builder = VirtualArray::<u32>::builder(0).devices(setup.devices.iter().cloned());
                let builder = builder.page_len(page_bytes / 4).cache_bytes(bytes / 4);
                Ok(builder.load(path)?)
            })
        })?;
    }
    Ok(())
}

/// Compares writing all elements to files, of an array and of plain memory, while threads write to either.
fn beside_writes(
    row: &mut Row,
    words: &[AtomicU32],
    writers: usize,
    set: &(impl Fn(usize) -> Result<()> + Sync),
    save: &impl Fn(&Path) -> Result<()>,
) -> Result<()> {
    let most = AtomicUsize::new(0);
    row.measure_in_turn(&mut [
        ("ours", Role::Ours, &mut || {
            let to = Scratch::new()?;
            with_writers(writers, words.len(), set, || {
                let (sample, more) =
                    with_peak(|| timed(THREADS, || save(&to.0).map(|()| size_of_val(words) as f64)))?;
                most.fetch_max(more, Ordering::Relaxed);
                Ok(sample)
            })
        }),
        ("ahead", Role::Limit, &mut || plainly(words, writers, true)),
        ("fdatasync", Role::Alternative, &mut || plainly(words, writers, false)),
    ])?;
    row.count([("more_ram_bytes", most.into_inner() as f64)]);
    Ok(())
}

/// Writes plain memory to a file while threads change it.
fn plainly(words: &[AtomicU32], writers: usize, is_ahead: bool) -> Result<Sample> {
    let to = Scratch::new()?;
    let set = |at: usize| {
        words[at].store(7, Ordering::Relaxed);
        Ok(())
    };
    with_writers(writers, words.len(), &set, || timed(THREADS, || write(words, &to.0, is_ahead)))
}

/// Compares reading all elements into a new array, and into plain memory.
fn beside_reads(
    row: &mut Row,
    words: &[AtomicU32],
    saved: &Path,
    is_cold: bool,
    load: &dyn Fn(&Path) -> Result<VirtualArray<u32>>,
) -> Result<()> {
    let plain = Scratch::new()?;
    write(words, &plain.0, false)?;
    let prepare = |path: &Path| -> Result<()> {
        if is_cold {
            let file = File::open(path)?;
            file.sync_all()?;
            forget(&file);
        }
        Ok(())
    };
    row.measure_in_turn(&mut [
        ("ours", Role::Ours, &mut || {
            prepare(saved)?;
            let mut loaded = None;
            timed(THREADS, || {
                loaded = Some(load(saved)?);
                Ok(size_of_val(words) as f64)
            })
        }),
        ("pread", Role::Limit, &mut || {
            prepare(&plain.0)?;
            let mut loaded = Vec::new();
            timed(THREADS, || {
                loaded = read(&plain.0, size_of_val(words))?;
                Ok(size_of_val(words) as f64)
            })
        }),
    ])
}

/// Runs `work` while threads call `set` with random places.
fn with_writers<T>(
    writers: usize,
    len: usize,
    set: &(impl Fn(usize) -> Result<()> + Sync),
    work: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let stop = &stop;
        let threads: Vec<_> = (0..writers as u64)
            .map(|seed| {
                scope.spawn(move || {
                    let mut random = SplitMix64::new(seed);
                    while !stop.load(Ordering::Relaxed) {
                        set(random.index(len))?;
                    }
                    Ok(())
                })
            })
            .collect();
        let done = work();
        stop.store(true, Ordering::Relaxed);
        threads.into_iter().try_for_each(joined)?;
        done
    })
}

/// Writes all words to a new file, and syncs it. With `is_ahead`, the system allocates room for all of
/// them first. It starts to store each piece while threads copy others.
fn write(words: &[AtomicU32], path: &Path, is_ahead: bool) -> Result<f64> {
    let file = File::options().write(true).create_new(true).open(path)?;
    #[cfg(target_os = "linux")]
    if is_ahead {
        let bytes = size_of_val(words) as libc::off_t;
        // SAFETY: the descriptor is open; the call uses no memory. Without room the writes fail.
        unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, bytes) };
    }
    let next = AtomicUsize::new(0);
    let copy = || -> Result<()> {
        loop {
            let start = next.fetch_add(CHUNK_BYTES / 4, Ordering::Relaxed);
            let Some(mut part) = words.get(start..(start + CHUNK_BYTES / 4).min(words.len())) else {
                return Ok(());
            };
            let (mut at, bytes) = (start * 4, size_of_val(part));
            while !part.is_empty() {
                // SAFETY: the words exist during the call, which may read any value that threads store.
                let count = unsafe {
                    libc::pwrite(file.as_raw_fd(), part.as_ptr().cast(), size_of_val(part), at as libc::off_t)
                };
                ensure!(count > 0, std::io::Error::last_os_error());
                // Advance by whole words, so that a partially written word is written again.
                part = &part[count as usize / 4..];
                at += count as usize / 4 * 4;
            }
            #[cfg(target_os = "linux")]
            if is_ahead {
                let (from, bytes) = ((start * 4) as libc::off64_t, bytes as libc::off64_t);
                // SAFETY: as above. The sync at the end reports errors.
                unsafe { libc::sync_file_range(file.as_raw_fd(), from, bytes, libc::SYNC_FILE_RANGE_WRITE) };
            }
        }
    };
    all(&copy)?;
    file.sync_data().context("the disk cannot store the file")?;
    Ok(size_of_val(words) as f64)
}

/// Reads a file into memory.
fn read(path: &Path, bytes: usize) -> Result<Vec<u8>> {
    let file = File::open(path)?;
    let mut memory = vec![0_u8; bytes];
    let parts = std::sync::Mutex::new(memory.chunks_mut(CHUNK_BYTES).enumerate());
    let copy = || -> Result<()> {
        loop {
            let next = parts.lock().ok().and_then(|mut parts| parts.next());
            let Some((number, part)) = next else { return Ok(()) };
            file.read_exact_at(part, (number * CHUNK_BYTES) as u64)?;
        }
    };
    all(&copy)?;
    Ok(memory)
}

/// Runs work by as many threads as copy.
fn all(work: &(impl Fn() -> Result<()> + Sync)) -> Result<()> {
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(joined)
    })
}

/// Returns a thread's result at its end.
fn joined(thread: thread::ScopedJoinHandle<'_, Result<()>>) -> Result<()> {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Returns the result of `work`, and the peak of additional RAM of the process meanwhile; 0 if the system
/// does not report it.
fn with_peak<T>(work: impl FnOnce() -> Result<T>) -> Result<(T, usize)> {
    let of = |name: &str| -> usize {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| line.trim().split(' ').next()?.parse::<usize>().ok()).unwrap_or(0) << 10
    };
    // If the system refuses this, the peak is that of the process so far.
    let _ = fs::write("/proc/self/clear_refs", "5");
    let before = of("VmRSS:");
    let done = work()?;
    Ok((done, of("VmHWM:").saturating_sub(before)))
}
