//! Benchmark workloads that save and load snapshots, compared with system calls that write, sync and read the
//! same bytes with the same number of threads.

use crate::bench::measure::{Unit, timed};
use crate::bench::results::Role;
use crate::bench::scratch::{Scratch, forget};
use crate::bench::setup::CHUNK_BYTES;
use crate::bench::suite::{Bench, size};
use anyhow::{Context, Result};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Mutex;
use std::thread;
use vmarray::VirtualArray;

/// The number of threads that copy; the library uses as many.
const THREADS: usize = 4;
/// The lengths of pages, in bytes.
const PAGE_BYTES: [usize; 2] = [64 << 10, 1 << 20];

pub fn run(bench: &mut Bench) -> Result<()> {
    if !bench.wants_any("snapshots/") {
        return Ok(());
    }
    let bytes = (bench.setup.large_bytes / 2).min(4 << 30);
    let words: Vec<u32> = (0..(bytes / 4) as u32).collect();
    for page_bytes in PAGE_BYTES {
        one(bench, &words, page_bytes)?;
    }
    Ok(())
}

fn one(bench: &mut Bench, words: &[u32], page_bytes: usize) -> Result<()> {
    let (setup, bytes, pages) = (bench.setup.clone(), size_of_val(words), size(page_bytes));
    let array = setup.filled::<u32>(bytes, Some(page_bytes / 4), bytes / 4)?;
    let amount = bytes as f64;
    bench.row(format!("snapshots/save/{pages}/w0"), Unit::GigabytesPerSecond, |_, row| {
        row.measure_in_turn(&mut [
            ("ours", Role::Ours, &mut || {
                let to = Scratch::new()?;
                timed(THREADS, || array.save(&to.0).map(|()| amount).map_err(Into::into))
            }),
            ("ahead", Role::Limit, &mut || {
                let to = Scratch::new()?;
                timed(THREADS, || write(words, &to.0, true).map(|()| amount))
            }),
            ("fdatasync", Role::Alternative, &mut || {
                let to = Scratch::new()?;
                timed(THREADS, || write(words, &to.0, false).map(|()| amount))
            }),
        ])
    })?;
    let (saved, plain) = (Scratch::new()?, Scratch::new()?);
    array.save(&saved.0)?;
    drop(array);
    write(words, &plain.0, false)?;
    for is_cold in [true, false] {
        let prepare = |path: &Path| -> Result<()> {
            if is_cold {
                let file = File::open(path)?;
                file.sync_all()?;
                forget(&file);
            }
            Ok(())
        };
        let name = format!("snapshots/load/{pages}/{}", if is_cold { "cold" } else { "warm" });
        bench.row(name, Unit::GigabytesPerSecond, |_, row| {
            row.measure_in_turn(&mut [
                ("ours", Role::Ours, &mut || {
                    prepare(&saved.0)?;
                    let builder = VirtualArray::<u32>::builder(0).devices(setup.devices.iter().cloned());
                    let builder = builder.page_len(page_bytes / 4).cache_bytes(bytes / 4);
                    let mut loaded = None;
                    timed(THREADS, || {
                        loaded = Some(builder.load(&saved.0)?);
                        Ok(amount)
                    })
                }),
                ("pread", Role::Limit, &mut || {
                    prepare(&plain.0)?;
                    let mut loaded = Vec::new();
                    timed(THREADS, || {
                        loaded = read(&plain.0, bytes)?;
                        Ok(amount)
                    })
                }),
            ])
        })?;
    }
    Ok(())
}

/// Writes all words to a new file, and syncs it. With `is_ahead`, the system first allocates space for all
/// words, and begins to store each piece while threads copy other pieces.
fn write(words: &[u32], path: &Path, is_ahead: bool) -> Result<()> {
    let file = File::options().write(true).create_new(true).open(path)?;
    #[cfg(target_os = "linux")]
    if is_ahead {
        let bytes = size_of_val(words) as libc::off_t;
        // SAFETY: the descriptor is open; the call uses no memory. Without room the writes fail.
        unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, bytes) };
    }
    by_pieces(words.chunks(CHUNK_BYTES / 4), &|number, part| {
        let (at, bytes) = (number * CHUNK_BYTES, bytemuck::cast_slice(part));
        file.write_all_at(bytes, at as u64)?;
        #[cfg(target_os = "linux")]
        if is_ahead {
            let (from, bytes) = (at as libc::off64_t, bytes.len() as libc::off64_t);
            // SAFETY: as above. The sync at the end reports errors.
            unsafe { libc::sync_file_range(file.as_raw_fd(), from, bytes, libc::SYNC_FILE_RANGE_WRITE) };
        }
        Ok(())
    })?;
    file.sync_data().context("the disk cannot store the file")
}

/// Reads a file into memory.
fn read(path: &Path, bytes: usize) -> Result<Vec<u8>> {
    let file = File::open(path)?;
    let mut memory = vec![0_u8; bytes];
    by_pieces(memory.chunks_mut(CHUNK_BYTES), &|number, part: &mut [u8]| {
        Ok(file.read_exact_at(part, (number * CHUNK_BYTES) as u64)?)
    })?;
    Ok(memory)
}

/// Calls `work` with each piece and its number, on as many threads as the library uses.
fn by_pieces<T: Send>(
    pieces: impl Iterator<Item = T> + Send,
    work: &(impl Fn(usize, T) -> Result<()> + Sync),
) -> Result<()> {
    let pieces = Mutex::new(pieces.enumerate());
    let next = || pieces.lock().ok().and_then(|mut pieces| pieces.next());
    let copy = || -> Result<()> {
        while let Some((number, piece)) = next() {
            work(number, piece)?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(copy)).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}
