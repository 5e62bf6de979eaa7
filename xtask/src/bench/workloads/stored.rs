//! Benchmark workloads that make changes of arrays in files durable, compared with plain writes to a file.

use crate::bench::measure::{Unit, calls};
use crate::bench::results::Role;
use crate::bench::scratch::Scratch;
use crate::bench::setup::{CHUNK_BYTES, pieces};
use crate::bench::suite::{Bench, size};
use anyhow::{Context, Result};
use std::fs::File;
use std::os::unix::fs::FileExt;
use vmarray::VirtualArray;
use vmarray::prelude::*;

/// The length of the files in bytes.
const FILE_BYTES: usize = 256 << 20;
/// The numbers of bytes that are written before each sync.
const WRITTEN_BYTES: [usize; 4] = [64 << 10, 1 << 20, 16 << 20, FILE_BYTES];

pub fn run(bench: &mut Bench) -> Result<()> {
    if !bench.wants_any("stored/") {
        return Ok(());
    }
    super::files::measure(bench, "stored", |path, builder| builder.create([path]))?;
    let (ours, plain) = (Scratch::new()?, Scratch::new()?);
    let words = FILE_BYTES / 4;
    let array = VirtualArray::<u32>::builder(words).cache_bytes(FILE_BYTES / 4).create([&ours.0])?;
    let file = File::options().read(true).write(true).create_new(true).open(&plain.0)?;
    let chunk: Vec<u32> = (1..=CHUNK_BYTES as u32 / 4).collect();
    // Write the whole file three times, so that the file system has allocated all blocks of both files. The
    // array's file needs additional blocks, because it writes changed pages to new blocks.
    for _ in 0..3 {
        for piece in pieces(0..words, chunk.len()) {
            array.write(piece.start, &chunk[..piece.len()])?;
            file.write_all_at(bytemuck::cast_slice(&chunk[..piece.len()]), piece.start as u64 * 4)?;
        }
        array.sync()?;
        file.sync_data()?;
    }
    let calls_of = bench.setup.calls();
    for bytes in WRITTEN_BYTES {
        let mut start = 0;
        let mut next = move || {
            start = (start + 7 * bytes) % FILE_BYTES / 4 / (bytes / 4) * bytes;
            (start / 4)..(start + bytes).min(FILE_BYTES) / 4
        };
        let mut theirs = next;
        let count = if bytes == FILE_BYTES { 1 } else { 8 * calls_of };
        bench.row(format!("stored/write-sync/{}", size(bytes)), Unit::GigabytesPerSecond, |_, row| {
            row.measure_in_turn(&mut [
                ("ours", Role::Ours, &mut || {
                    calls(count, bytes as f64, || {
                        for piece in pieces(next(), chunk.len()) {
                            array.write(piece.start, &chunk[..piece.len()])?;
                        }
                        Ok(array.sync()?)
                    })
                }),
                ("fdatasync", Role::Alternative, &mut || {
                    calls(count, bytes as f64, || {
                        for piece in pieces(theirs(), chunk.len()) {
                            let bytes = bytemuck::cast_slice(&chunk[..piece.len()]);
                            file.write_all_at(bytes, piece.start as u64 * 4)?;
                        }
                        file.sync_data().context("the disk cannot store the file")
                    })
                }),
            ])
        })?;
    }
    Ok(())
}
