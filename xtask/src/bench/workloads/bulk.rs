//! Benchmark workloads that copy ranges to and from buffers, by one thread or by all threads, and one that
//! copies a long range in one call.

use crate::bench::elements::{Payload, Record};
use crate::bench::measure::{Sample, Unit, calls, on_threads};
use crate::bench::raw::Way;
use crate::bench::setup::{CHUNK_BYTES, part, pieces};
use crate::bench::suite::{Bench, size};
use anyhow::{Result, anyhow};
use std::sync::Mutex;
use vmarray::VirtualArray;
use vmarray::prelude::*;

pub fn run(bench: &mut Bench) -> Result<()> {
    one::<u32>(bench, None)?;
    if !bench.setup.quick {
        one::<u32>(bench, Some(1 << 20))?;
    }
    one::<Record>(bench, None)
}

fn one<T: Payload>(bench: &mut Bench, page_bytes: Option<usize>) -> Result<()> {
    if !bench.wants_ways("bulk", &["read", "read-at-once", "write"], T::SIZE) {
        return Ok(());
    }
    let setup = bench.setup.clone();
    let bytes = (setup.medium_bytes * 4).min(setup.large_bytes);
    let page_len = page_bytes.map(|bytes| bytes / size_of::<T>());
    let array = setup.filled::<T>(bytes, page_len, (bytes / 64).max(8 << 20))?;
    let page = size(array.page_len() * size_of::<T>());
    let name = |what: &str, threads: usize| format!("bulk/{what}/{}/{page}/t{threads}", T::SIZE);
    let chunk = CHUNK_BYTES / size_of::<T>();
    // Measure all reads before the writes: reads check the ends of their pieces, but writes store the
    // expected values only at the ends of the writes' pieces.
    for threads in setup.thread_counts(false) {
        bench.row(name("read", threads), Unit::GigabytesPerSecond, |bench, row| {
            row.ours(&array, || read(&array, threads, chunk))?;
            row.limit("bus", bench.raw.bus(Way::Down))?;
            row.limit("memcpy", bench.plain.memcpy(threads))
        })?;
    }
    bench.row(name("read-at-once", 1), Unit::GigabytesPerSecond, |bench, row| {
        let mut buffer: Vec<T> = (0..array.len().min((1 << 30) / size_of::<T>())).map(T::of).collect();
        let bytes = size_of_val(buffer.as_slice()) as f64;
        row.ours(&array, || calls(1, bytes, || Ok(array.read(0, &mut buffer)?)))?;
        row.limit("bus", bench.raw.bus(Way::Down))?;
        row.limit("copy", bench.plain.copy(setup.threads))
    })?;
    for threads in setup.thread_counts(false) {
        bench.row(name("write", threads), Unit::GigabytesPerSecond, |bench, row| {
            row.ours(&array, || write(&array, threads, chunk))?;
            row.limit("bus", bench.raw.bus(Way::Up))?;
            row.limit("memcpy", bench.plain.memcpy(threads))
        })?;
    }
    Ok(())
}

/// Measures reads: each of the `threads` threads reads its part of the array in pieces of `chunk` elements.
pub fn read<T: Payload>(array: &VirtualArray<T>, threads: usize, chunk: usize) -> Result<Sample> {
    by_pieces(array, threads, chunk, |start, buffer| {
        array.read(start, buffer)?;
        buffer[0].check(start)?;
        buffer[buffer.len() - 1].check(start + buffer.len() - 1)
    })
}

/// Measures writes by `threads` threads. Each thread writes its part of the array in pieces of `chunk`
/// elements. Only the first and last element of each piece get the values of their indices.
pub fn write<T: Payload>(array: &VirtualArray<T>, threads: usize, chunk: usize) -> Result<Sample> {
    by_pieces(array, threads, chunk, |start, buffer| {
        let last = buffer.len() - 1;
        buffer[0] = T::of(start);
        buffer[last] = T::of(start + last);
        Ok(array.write(start, buffer)?)
    })
}

/// Runs threads, each of which calls `step` for every piece of its part of the array: with the first index,
/// and a buffer of the piece's length. The buffer's memory was touched before. Counts bytes.
fn by_pieces<T: Payload>(
    array: &VirtualArray<T>,
    threads: usize,
    chunk: usize,
    step: impl Fn(usize, &mut [T]) -> Result<()> + Sync,
) -> Result<Sample> {
    let buffers: Vec<Mutex<Vec<T>>> =
        (0..threads).map(|_| Mutex::new((0..chunk).map(T::of).collect())).collect();
    on_threads(threads, |thread| {
        let mut buffer = buffers[thread].lock().map_err(|_| anyhow!("a thread with this buffer panicked"))?;
        let part = part(array.len(), threads, thread, array.page_len());
        for piece in pieces(part.clone(), chunk) {
            step(piece.start, &mut buffer[..piece.len()])?;
        }
        Ok((part.len() * size_of::<T>()) as f64)
    })
}
