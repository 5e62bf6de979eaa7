//! Defaults compared with settings by hand: page length, channels, read-ahead; and with the advice of a
//! profile.
//!
//! First all settings are measured on all workloads. Then the best of them are measured again, next to the
//! defaults and the advice: the best of many noisy numbers is biased.

use super::random::at_random;
use super::{Bench, bulk, in_place, serial, size};
use crate::bench::elements::{self, Block, Payload, Record};
use crate::bench::measure::{Effort, Sample, Unit, calls, on_threads, repeat, timed, until};
use crate::bench::record::digits;
use crate::bench::results::Role;
use crate::bench::setup::{CHUNK_BYTES, Setup};
use anyhow::Result;
use std::fmt;
use vmarray::device::Routing;
use vmarray::device::wrap::SplitMix64;
use vmarray::prelude::*;
use vmarray::{Placement, VirtualArray, device::Device, profile::Profile};

/// The page lengths to try, in bytes.
const PAGES: [usize; 4] = [16 << 10, 64 << 10, 256 << 10, 1 << 20];
/// The numbers of channels per device to try.
const CHANNELS: [u32; 2] = [1, 2];
/// The ratio of the array's size to the cache's.
const CACHE_SHARE: usize = 16;

/// A setting of an array.
#[derive(Clone, Copy)]
enum Setting {
    Default,
    /// The page length and the routes of the devices' profiles.
    Advised {
        page_bytes: usize,
    },
    ByHand {
        page_bytes: usize,
        channels: u32,
        read_ahead: bool,
    },
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Default => f.write_str("default"),
            Self::Advised { page_bytes } => write!(f, "{}, advised", size(page_bytes)),
            Self::ByHand { page_bytes, channels, read_ahead } => {
                let read_ahead = if read_ahead { "on" } else { "off" };
                write!(f, "{}, {channels} a device, read-ahead {read_ahead}", size(page_bytes))
            }
        }
    }
}

/// An operation on an array.
struct Workload<T: Payload> {
    name: &'static str,
    unit: Unit,
    run: fn(&Setup, &VirtualArray<T>, f64) -> Result<Sample>,
}

fn workload<T: Payload>(
    name: &'static str,
    unit: Unit,
    run: fn(&Setup, &VirtualArray<T>, f64) -> Result<Sample>,
) -> Workload<T> {
    Workload { name, unit, run }
}

/// Creates a workload that passes over the whole array once, by the threads of rayon's pool.
fn pass(
    setup: &Setup,
    array: &VirtualArray<u32>,
    run: fn(&VirtualArray<u32>) -> Result<()>,
) -> Result<Sample> {
    timed(setup.threads, || run(array).map(|()| (array.len() * 4) as f64))
}

fn in_order<T: Payload>(setup: &Setup, array: &VirtualArray<T>, _: f64) -> Result<Sample> {
    serial::per_thread(array, setup.threads)
}

/// Profiles of the devices, in their order.
type Profiles = [Profile];

pub fn run(bench: &mut Bench) -> Result<()> {
    let setup = bench.setup.clone();
    let mut profiles = Vec::new();
    for device in &setup.devices {
        let start = std::time::Instant::now();
        let profile = Profile::of(device)?;
        println!("profile of {} in {:.0} ms: {profile}", device.info(), start.elapsed().as_secs_f64() * 1e3);
        profiles.push(profile);
    }
    all(
        bench,
        &profiles,
        &[
            workload("scan", Unit::GigabytesPerSecond, |setup, array, _| {
                pass(setup, array, in_place::par_scan)
            }),
            workload("bulk-read", Unit::GigabytesPerSecond, |setup, array, _| {
                bulk::read(array, setup.threads, CHUNK_BYTES / 4)
            }),
            workload("gather", Unit::MegaPerSecond, |_, array, _| gather(array)),
            workload("random-get", Unit::KiloPerSecond, get),
            workload("overwrite", Unit::GigabytesPerSecond, |setup, array, _| {
                pass(setup, array, in_place::par_overwrite)
            }),
            workload("bulk-write", Unit::GigabytesPerSecond, |setup, array, _| {
                bulk::write(array, setup.threads, CHUNK_BYTES / 4)
            }),
            workload("update", Unit::GigabytesPerSecond, |setup, array, _| {
                pass(setup, array, in_place::par_update)
            }),
        ],
    )?;
    all(
        bench,
        &profiles,
        &[
            workload("random-get", Unit::KiloPerSecond, get::<Record>),
            workload("random-set", Unit::KiloPerSecond, |setup, array, seconds| {
                at_random(setup.threads, seconds, array.len(), 3, |i| Ok(array.set(i, Record::of(i))?))
            }),
            workload("zipf", Unit::KiloPerSecond, zipf),
            workload("serial", Unit::GigabytesPerSecond, in_order),
        ],
    )?;
    all(
        bench,
        &profiles,
        &[
            workload("random-get", Unit::KiloPerSecond, get::<Block>),
            workload("serial", Unit::GigabytesPerSecond, in_order),
        ],
    )
}

/// All workloads of a type of elements.
fn all<T: Payload>(bench: &mut Bench, profiles: &Profiles, workloads: &[Workload<T>]) -> Result<()> {
    let setup = bench.setup.clone();
    let mut by_hand = Vec::new();
    for page_bytes in PAGES {
        for channels in CHANNELS {
            by_hand.extend([true, false].map(|on| Setting::ByHand { page_bytes, channels, read_ahead: on }));
        }
    }
    let short = Effort { runs: 2, seconds: setup.brief.seconds };
    let mut medians: Vec<Vec<(f64, Setting)>> = workloads.iter().map(|_| Vec::new()).collect();
    for setting in by_hand {
        let array = build::<T>(&setup, profiles, setting)?;
        println!("{}, {setting}:", T::SIZE);
        for (workload, medians) in workloads.iter().zip(&mut medians) {
            let series = repeat(&short, || (workload.run)(&setup, &array, short.seconds))?;
            let median = series.summary(workload.unit).map_or(0.0, |summary| summary.median);
            println!("    {:12} {} {}", workload.name, digits(median), workload.unit.symbol());
            medians.push((median, setting));
        }
    }
    let advised = Setting::Advised { page_bytes: profiles.iter().map(|p| p.page_bytes).max().unwrap_or(1) };
    for (workload, medians) in workloads.iter().zip(medians) {
        let Some((_, best)) = medians.into_iter().max_by(|a, b| a.0.total_cmp(&b.0)) else { continue };
        println!("best by hand: {best}");
        bench.row(format!("tuning/{}/{}", workload.name, T::SIZE), workload.unit, |_, row| {
            for (name, setting) in [("ours", Setting::Default), ("advised", advised), ("best", best)] {
                let role = if name == "ours" { Role::Ours } else { Role::Alternative };
                let array = build::<T>(&setup, profiles, setting)?;
                row.measure(name, role, || (workload.run)(&setup, &array, setup.brief.seconds))?;
            }
            if let Setting::ByHand { page_bytes, channels, read_ahead } = best {
                row.count([
                    ("best_page_bytes", page_bytes as f64),
                    ("best_channels", f64::from(channels)),
                    ("best_read_ahead", f64::from(u8::from(read_ahead))),
                ]);
            }
            Ok(())
        })?;
    }
    set_routes(&setup, profiles, Setting::Default);
    Ok(())
}

/// Sets the routes of the devices' copies: their own choice, or that of their profiles.
fn set_routes(setup: &Setup, profiles: &Profiles, setting: Setting) {
    for (device, profile) in setup.devices.iter().zip(profiles) {
        let is_advised = matches!(setting, Setting::Advised { .. });
        device.set_routing(if is_advised { profile.routing } else { Routing::new() });
    }
}

fn build<T: Payload>(setup: &Setup, profiles: &Profiles, setting: Setting) -> Result<VirtualArray<T>> {
    let bytes = (2 * setup.medium_bytes).min(setup.large_bytes).min(2 << 30);
    let page_len = |page_bytes: usize| 1 << (page_bytes / size_of::<T>()).ilog2();
    let builder = VirtualArray::<T>::builder(bytes / size_of::<T>())
        .devices(setup.devices.iter().cloned())
        .cache_bytes(bytes / CACHE_SHARE);
    let array = match setting {
        // The default without a profile. It does not depend on the current profiles.
        Setting::Default => builder.page_len(page_len(64 << 10)),
        Setting::Advised { page_bytes } => builder.page_len(page_len(page_bytes)),
        Setting::ByHand { page_bytes, channels, read_ahead } => builder
            .page_len(page_len(page_bytes))
            .placement(Placement::Ratios(vec![channels; setup.devices.len()]))
            .read_ahead(read_ahead),
    }
    .build()?;
    set_routes(setup, profiles, setting);
    setup.fill(&array)?;
    Ok(array)
}

fn get<T: Payload>(setup: &Setup, array: &VirtualArray<T>, seconds: f64) -> Result<Sample> {
    at_random(setup.threads, seconds, array.len(), 1, |index| array.get(index)?.check(index))
}

fn gather(array: &VirtualArray<u32>) -> Result<Sample> {
    let mut random = SplitMix64::new(5);
    let indices: Vec<usize> = (0..(array.len() / 32)).map(|_| random.index(array.len())).collect();
    let mut values = vec![0; indices.len()];
    calls(1, indices.len() as f64, || Ok(array.gather_into(&indices, &mut values)?))
}

/// One access in ten writes; the elements follow Zipf's law.
fn zipf(setup: &Setup, array: &VirtualArray<Record>, seconds: f64) -> Result<Sample> {
    const DRAWN: usize = 1 << 14;
    let list = |thread| Ok(elements::zipf(array.len(), 0.99, thread)?.take(DRAWN).collect());
    let lists: Vec<Vec<usize>> = (0..setup.threads as u64).map(list).collect::<Result<_>>()?;
    on_threads(setup.threads, |thread| {
        let mut at = 0;
        until(seconds, 64, || {
            let index = lists[thread][at % DRAWN];
            at += 1;
            match at.is_multiple_of(10) {
                true => Ok(array.set(index, Record::of(index))?),
                false => array.get(index)?.check(index),
            }
        })
    })
}
