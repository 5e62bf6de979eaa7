//! Several devices as one memory: migration, rebuilding, the cost of redundancy, and the division of work.

use super::{Bench, size};
use crate::bench::elements::Payload;
use crate::bench::measure::{Sample, Unit, calls, on_threads, timed};
use crate::bench::raw::{Limit, Link};
use crate::bench::results::Role;
use crate::bench::setup::{CHUNK_BYTES, Setup, part, pieces};
use anyhow::{Result, ensure};
use std::sync::Arc;
use vmarray::device::wrap::SplitMix64;
use vmarray::profile::Direction;
use vmarray::{AnyDevice, Placement, VirtualArray, device::Device, prelude::*};
use vmarray_conformance::wrap::Faulty;

pub fn run(bench: &mut Bench) -> Result<()> {
    let setup = bench.setup.clone();
    let [first, second, ..] = &setup.devices[..] else { return Ok(()) };
    if bench.raw.has_link() {
        moving(bench, first, second)?;
    }
    redundancy(bench, first, second)?;
    divided(bench)
}

/// An array that moves to another device and back, and a mirror whose lost device is replaced.
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
            ensure!(array.homes().iter().all(|home| home.replicas.len() == 2), "each page is on both");
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

/// A workload over all of an array.
type Work = fn(&VirtualArray<u32>, &Setup) -> Result<Sample>;

const WORKS: [(&str, Work); 5] =
    [("read", read), ("write", write), ("get", get), ("sum", sum), ("transform", transform)];

/// Measures the cost of mirrors, compared with the same devices without.
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

/// Work on unequal devices, divided by their speed, next to each device alone with its part.
fn divided(bench: &mut Bench) -> Result<()> {
    let setup = bench.setup.clone();
    let (len, name) = (setup.medium_bytes / 4, "rig/divided/sum");
    bench.row(name, Unit::GigabytesPerSecond, |_, row| {
        let by_speed = Placement::Bandwidth(Direction::OnDevice);
        let build = |devices: Vec<Arc<AnyDevice>>, len: usize| -> Result<VirtualArray<u32>> {
            let builder = VirtualArray::<u32>::builder(len).devices(devices).cache_bytes(64 << 20);
            let array = builder.placement(by_speed.clone()).build()?;
            array.fill(.., 1)?;
            array.evict(..)?;
            Ok(array)
        };
        let array = build(setup.devices.clone(), len)?;
        let mut whole = 0.0;
        row.ours(&array, || {
            let sample = sum(&array, &setup)?;
            whole = sample.wall / sample.amount * (len * 4) as f64;
            Ok(sample)
        })?;
        // A device's idle share is the time of the call less the time of its part alone.
        let homes = array.homes();
        for device in &setup.devices {
            let is_there = |home: &&vmarray::home::ChannelHome| {
                home.replicas.iter().any(|replica| replica.device == device.info().to_string())
            };
            let pages: u64 = homes.iter().filter(is_there).map(|home| home.pages).sum();
            let share = (pages as usize * array.page_len()).min(len);
            if share > 0 {
                let part = build(vec![device.clone()], share)?;
                let mut busy = f64::INFINITY;
                for _ in 0..4 {
                    let alone = sum(&part, &setup)?;
                    busy = busy.min(alone.wall / alone.amount * (share * 4) as f64);
                }
                let (percent, idle) = (100 * share / len, 100.0 * (1.0 - busy / whole));
                println!("    {}: {percent} % of the elements, idle {idle:.0} % of a call", device.info());
            }
        }
        #[cfg(feature = "trace")]
        traced(&array, &setup)?;
        Ok(())
    })
}

/// Records a few calls, and prints how long each device had work in them, from the first to the last.
#[cfg(feature = "trace")]
fn traced(array: &VirtualArray<u32>, setup: &Setup) -> Result<()> {
    use anyhow::Context;
    let recording = vmarray::trace::Recording::begin().context("another recording is active")?;
    sum(array, setup)?;
    let mut json = Vec::new();
    recording.write(&mut json)?;
    let trace: serde_json::Value = serde_json::from_slice(&json)?;
    let events = trace["traceEvents"].as_array().context("the trace has no list of events")?;
    let name = |process: &serde_json::Value| {
        let named = |e: &&serde_json::Value| e["name"] == "process_name" && &e["pid"] == process;
        events.iter().find(named).and_then(|event| event["args"]["name"].as_str()).unwrap_or("?")
    };
    // Pieces of work by device, as begin and end in microseconds; the queues of one device overlap.
    let mut work = std::collections::BTreeMap::<&str, Vec<(f64, f64)>>::new();
    for event in events.iter().filter(|event| event["name"] == "question") {
        let at = event["ts"].as_f64().unwrap_or(0.0);
        let piece = (at, at + event["dur"].as_f64().unwrap_or(0.0));
        work.entry(name(&event["pid"])).or_default().push(piece);
    }
    let all = || work.values().flatten();
    let begin = all().map(|piece| piece.0).fold(f64::INFINITY, f64::min);
    let end = all().map(|piece| piece.1).fold(0.0, f64::max);
    for (device, pieces) in &mut work {
        pieces.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (mut busy, mut until) = (0.0, begin);
        for &(from, to) in pieces.iter() {
            busy += (to - from.max(until)).max(0.0);
            until = until.max(to);
        }
        let idle = 100.0 * (1.0 - busy / (end - begin));
        println!("    traced: {device}: idle {idle:.0} % of {:.0} us", end - begin);
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

/// One element of a random page.
fn get(array: &VirtualArray<u32>, setup: &Setup) -> Result<Sample> {
    const GETS: usize = 4000;
    on_threads(setup.threads, |thread| {
        let mut random = SplitMix64::new(thread as u64);
        for _ in 0..GETS {
            std::hint::black_box(array.get(random.index(array.len()))?);
        }
        // Most reads fetch a whole page, so count the bytes of whole pages.
        Ok((GETS * array.page_len() * 4) as f64)
    })
}

fn sum(array: &VirtualArray<u32>, setup: &Setup) -> Result<Sample> {
    calls(setup.calls(), (array.len() * 4) as f64, || {
        let sum = array.sum(.., Field::whole())?;
        ensure!(sum >= 0, "the sum must not be negative");
        Ok(())
    })
}

fn transform(array: &VirtualArray<u32>, setup: &Setup) -> Result<Sample> {
    let whole = Field::<u32, u32>::whole();
    // The update reads and writes each element.
    calls(setup.calls(), (array.len() * 8) as f64, || Ok(array.transform(.., whole.set(whole + 1))?))
}
