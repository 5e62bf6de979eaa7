//! Ranges into and out of the caller's buffers, by one thread and by all; and a long one in a single call.

use super::{Bench, size};
use crate::bench::elements::{Payload, Record};
use crate::bench::measure::{Sample, Unit, on_threads, timed};
use crate::bench::raw::Way;
use crate::bench::setup::{CHUNK_BYTES, part, pieces};
use anyhow::{Result, ensure};
use vmarray::VirtualArray;
use vmarray::prelude::*;

pub fn run(bench: &mut Bench) -> Result<()> {
    let setup = bench.setup.clone();
    let cases: &[(bool, Option<usize>)] = if setup.quick {
        &[(false, None), (true, None)]
    } else {
        &[(false, None), (false, Some(1 << 20)), (true, None)]
    };
    for &(records, page_bytes) in cases {
        let bytes = (setup.medium_bytes * 4).min(setup.large_bytes);
        if records { one::<Record>(bench, bytes, page_bytes)? } else { one::<u32>(bench, bytes, page_bytes)? }
    }
    Ok(())
}

fn one<T: Payload>(bench: &mut Bench, bytes: usize, page_bytes: Option<usize>) -> Result<()> {
    if !["read", "read-at-once", "write"]
        .iter()
        .any(|way| bench.wants_any(&format!("bulk/{way}/{}/", T::SIZE)))
    {
        return Ok(());
    }
    let setup = bench.setup.clone();
    let effort = &setup.effort;
    let page_len = page_bytes.map(|bytes| bytes / size_of::<T>());
    let array = setup.filled::<T>(bytes, page_len, (bytes / 64).max(8 << 20))?;
    let page = size(array.page_len() * size_of::<T>());
    let name = |what: &str, threads: usize| format!("bulk/{what}/{}/{page}/t{threads}", T::SIZE);
    let chunk = CHUNK_BYTES / size_of::<T>();
    // All reads come first: what is written then has the right elements at the ends of pieces only.
    for threads in setup.thread_counts(false) {
        if let Some(mut row) = bench.row(name("read", threads), Unit::GigabytesPerSecond) {
            row.ours(effort, &array, || read(&array, threads, chunk))?;
            row.limit("bus", bench.raw.bus(Way::Down)?);
            row.limit("memcpy", bench.plain.memcpy(&setup, threads)?);
            bench.push(row);
        }
    }
    if let Some(mut row) = bench.row(name("read-at-once", 1), Unit::GigabytesPerSecond) {
        let mut buffer: Vec<T> = (0..array.len().min((1 << 30) / size_of::<T>())).map(T::of).collect();
        row.ours(effort, &array, || {
            timed(1, || {
                array.read(0, &mut buffer)?;
                Ok(size_of_val(buffer.as_slice()) as f64)
            })
        })?;
        row.limit("bus", bench.raw.bus(Way::Down)?);
        row.limit("copy", bench.plain.copy(&setup, setup.threads)?);
        bench.push(row);
    }
    for threads in setup.thread_counts(false) {
        if let Some(mut row) = bench.row(name("write", threads), Unit::GigabytesPerSecond) {
            row.ours(effort, &array, || write(&array, threads, chunk))?;
            row.limit("bus", bench.raw.bus(Way::Up)?);
            row.limit("memcpy", bench.plain.memcpy(&setup, threads)?);
            bench.push(row);
        }
    }
    Ok(())
}

/// Each thread reads its share into its buffer, piece by piece.
pub fn read<T: Payload>(array: &VirtualArray<T>, threads: usize, chunk: usize) -> Result<Sample> {
    let buffers = buffers::<T>(threads, chunk);
    on_threads(threads, |thread| {
        let mut buffer = lock(&buffers[thread])?;
        let part = part(array.len(), threads, thread, array.page_len());
        for piece in pieces(part.clone(), chunk) {
            let buffer = &mut buffer[..piece.len()];
            array.read(piece.start, buffer)?;
            let ends = (buffer.first(), buffer.last());
            if let (Some(first), Some(last)) = ends {
                ensure!(
                    first.belongs_to(piece.start) && last.belongs_to(piece.end - 1),
                    "wrong data at {piece:?}"
                );
            }
        }
        Ok((part.len() * size_of::<T>()) as f64)
    })
}

/// Each thread writes its share from its buffer, piece by piece. First and last element of each piece are
/// right.
pub fn write<T: Payload>(array: &VirtualArray<T>, threads: usize, chunk: usize) -> Result<Sample> {
    let buffers = buffers::<T>(threads, chunk);
    on_threads(threads, |thread| {
        let mut buffer = lock(&buffers[thread])?;
        let part = part(array.len(), threads, thread, array.page_len());
        for piece in pieces(part.clone(), chunk) {
            let buffer = &mut buffer[..piece.len()];
            if let Some(last) = piece.len().checked_sub(1) {
                buffer[0] = T::of(piece.start);
                buffer[last] = T::of(piece.end - 1);
            }
            array.write(piece.start, buffer)?;
        }
        Ok((part.len() * size_of::<T>()) as f64)
    })
}

/// A buffer for each thread, its memory taken and touched.
fn buffers<T: Payload>(threads: usize, len: usize) -> Vec<std::sync::Mutex<Vec<T>>> {
    (0..threads).map(|_| std::sync::Mutex::new((0..len).map(T::of).collect())).collect()
}

fn lock<T>(buffer: &std::sync::Mutex<Vec<T>>) -> Result<std::sync::MutexGuard<'_, Vec<T>>> {
    buffer.lock().map_err(|_| anyhow::anyhow!("a thread panicked"))
}
