//! Benchmark workloads on several devices: migration, rebuilding after a loss, and the cost of redundancy.

use crate::bench::elements::Payload;
use crate::bench::measure::{Sample, Unit, calls, on_threads, timed};
use crate::bench::raw::{Limit, Link};
use crate::bench::results::Role;
use crate::bench::setup::{CHUNK_BYTES, Setup, part, pieces};
use crate::bench::suite::{Bench, size};
use anyhow::{Result, ensure};
use std::sync::Arc;
use vmarray::{AnyDevice, Placement, VirtualArray, prelude::*};
use vmarray_conformance::wrap::Faulty;

pub fn run(bench: &mut Bench) -> Result<()> {
    let setup = bench.setup.clone();
    let [first, second, ..] = &setup.devices[..] else { return Ok(()) };
    if bench.raw.has_link() {
        moving(bench, first, second)?;
    }
    redundancy(bench, first, second)
}

/// Measures the move of an array to another device and back, and the rebuilding of a mirror.
fn moving(bench: &mut Bench, first: &Arc<AnyDevice>, second: &Arc<AnyDevice>) -> Result<()> {
    let setup = bench.setup.clone();
    // Place the whole array on one of the devices.
    let bytes = setup.large_bytes / setup.devices.len();
    let cache = (bytes / 256).max(8 << 20);
    let len = bytes / size_of::<u32>();
    let name = format!("rig/rebalance/{}", size(bytes));
    if bench.wants(&name) {
        let builder = VirtualArray::<u32>::builder(len).devices([first.clone()]).movable(true);
        let array = builder.cache_bytes(cache).build()?;
        setup.fill(&array)?;
        bench.row(name, Unit::GigabytesPerSecond, |bench, row| {
            row.ours(&array, || {
                let sample = calls(setup.calls(), 2.0 * bytes as f64, || {
                    array.rebalance([second.clone()])?;
                    Ok(array.rebalance([first.clone()])?)
                })?;
                array.get(len / 2)?.check(len / 2)?;
                Ok(sample)
            })?;
            row.limit("link", bench.raw.get(Limit::Link(Link::OneWay)))
        })?;
    }
    let name = format!("rig/rebuild/{}", size(bytes));
    bench.row(name, Unit::GigabytesPerSecond, |bench, row| {
        let card = |device: &Arc<AnyDevice>| Arc::new(Faulty::new(AnyDevice::Own(device.clone())));
        let (kept, mut lost) = (card(first), card(second));
        let builder = VirtualArray::<u32>::builder(len).devices([kept, lost.clone()]);
        let array = builder.placement(Placement::Mirrored).cache_bytes(cache).build()?;
        let chunk: Vec<u32> = (0..CHUNK_BYTES / 4).map(u32::of).collect();
        for piece in pieces(0..len, chunk.len()) {
            array.write(piece.start, &chunk[..piece.len()])?;
        }
        array.evict(..)?;
        let mut run = || {
            lost.lose();
            ensure!(
                array.homes().iter().all(|home| home.replicas.len() == 2),
                "a page of the mirrored array is on one device only"
            );
            let spare = card(second);
            let sample = timed(1, || {
                array.rebuild(spare.clone())?;
                Ok(bytes as f64)
            })?;
            lost = spare;
            let middle = len / 2 / chunk.len() * chunk.len();
            array.get(middle)?.check(0)?;
            Ok(sample)
        };
        row.measure("ours", Role::Ours, &mut run)?;
        row.limit("link", bench.raw.get(Limit::Link(Link::OneWay)))
    })
}

/// A function that measures work on a whole array.
type Work = fn(&VirtualArray<u32>, &Setup) -> Result<Sample>;

const WORKS: [(&str, Work); 2] = [("read", read), ("write", write)];

/// Measures the cost of mirrors, compared with the same devices without mirrors.
fn redundancy(bench: &mut Bench, first: &Arc<AnyDevice>, second: &Arc<AnyDevice>) -> Result<()> {
    let setup = bench.setup.clone();
    let (bytes, cache) = (setup.medium_bytes, (setup.medium_bytes / 64).max(8 << 20));
    if !bench.wants_any("rig/mirrored/") {
        return Ok(());
    }
    let build = |placement| -> Result<VirtualArray<u32>> {
        let builder = VirtualArray::<u32>::builder(bytes / 4).devices([first.clone(), second.clone()]);
        let array = builder.placement(placement).cache_bytes(cache).build()?;
        setup.fill(&array)?;
        Ok(array)
    };
    let (mirrored, plain) = (build(Placement::Mirrored)?, build(Placement::Equal)?);
    for (name, work) in WORKS {
        bench.row(format!("rig/mirrored/{name}"), Unit::GigabytesPerSecond, |_, row| {
            row.measure_in_turn(&mut [
                ("ours", Role::Ours, &mut || work(&mirrored, &setup)),
                ("plain", Role::Alternative, &mut || work(&plain, &setup)),
            ])
        })?;
    }
    Ok(())
}

fn read(array: &VirtualArray<u32>, setup: &Setup) -> Result<Sample> {
    on_threads(setup.threads, |thread| {
        let mine = part(array.len(), setup.threads, thread, array.page_len());
        let mut buffer = vec![0; CHUNK_BYTES / 4];
        for piece in pieces(mine.clone(), buffer.len()) {
            array.read(piece.start, &mut buffer[..piece.len()])?;
        }
        Ok((mine.len() * 4) as f64)
    })
}

fn write(array: &VirtualArray<u32>, setup: &Setup) -> Result<Sample> {
    on_threads(setup.threads, |thread| {
        let mine = part(array.len(), setup.threads, thread, array.page_len());
        let buffer = vec![1; CHUNK_BYTES / 4];
        for piece in pieces(mine.clone(), buffer.len()) {
            array.write(piece.start, &buffer[..piece.len()])?;
        }
        Ok((mine.len() * 4) as f64)
    })
}
