//! Benchmark workloads for tuning. They compare three kinds of settings: the defaults, the settings that a
//! device profile advises, and settings chosen by hand (page length, channels per device, read-ahead).
//!
//! The benchmark measures all settings, then the best ones again together with the defaults and the advice.
//! The second measurement is necessary because the fastest of many noisy results is biased.

use super::bulk;
use super::random::at_random;
use crate::bench::elements::{Block, Payload, Record};
use crate::bench::measure::{Effort, Sample, Unit, repeat};
use crate::bench::record::digits;
use crate::bench::results::Role;
use crate::bench::setup::{CHUNK_BYTES, Setup};
use crate::bench::suite::{Bench, size};
use anyhow::Result;
use std::fmt;
use vmarray::device::Routing;
use vmarray::{Placement, VirtualArray, device::Device, profile::Profile};

/// The page lengths to try, in bytes.
const PAGES: [usize; 4] = [16 << 10, 64 << 10, 256 << 10, 1 << 20];
/// The numbers of channels per device to try.
const CHANNELS: [u32; 2] = [1, 2];
/// The size of the array divided by the size of its cache.
const CACHE_SHARE: usize = 16;

/// A combination of settings of an array.
#[derive(Clone, Copy)]
enum Setting {
    Default,
    /// The page length and the copy routes that the devices' profiles advise.
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

/// Profiles of all devices, in the order of the devices.
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
    one(bench, &profiles, "bulk-read", Unit::GigabytesPerSecond, |setup, array: &VirtualArray<u32>, _| {
        bulk::read(array, setup.threads, CHUNK_BYTES / 4)
    })?;
    one(bench, &profiles, "random-set", Unit::KiloPerSecond, |setup, array, seconds| {
        at_random(setup.threads, seconds, array.len(), 3, |i| Ok(array.set(i, Record::of(i))?))
    })?;
    one(bench, &profiles, "random-get", Unit::KiloPerSecond, |setup, array: &VirtualArray<Block>, seconds| {
        at_random(setup.threads, seconds, array.len(), 1, |index| array.get(index)?.check(index))
    })
}

/// Measures a workload with all settings, then with the defaults, the advice and the best settings.
fn one<T: Payload>(
    bench: &mut Bench,
    profiles: &Profiles,
    name: &str,
    unit: Unit,
    run: fn(&Setup, &VirtualArray<T>, f64) -> Result<Sample>,
) -> Result<()> {
    let setup = bench.setup.clone();
    let short = Effort { runs: 2, seconds: setup.brief.seconds };
    let (mut best, mut highest) = (None, 0.0);
    for (page_bytes, channels) in PAGES.into_iter().flat_map(|page| CHANNELS.map(|count| (page, count))) {
        for read_ahead in [true, false] {
            let setting = Setting::ByHand { page_bytes, channels, read_ahead };
            let array = build::<T>(&setup, profiles, setting)?;
            let series = repeat(&short, || run(&setup, &array, short.seconds))?;
            let median = series.summary(unit).map_or(0.0, |summary| summary.median);
            println!("    {name:12} {setting}: {} {}", digits(median), unit.symbol());
            if median > highest {
                (best, highest) = (Some((setting, page_bytes, channels, read_ahead)), median);
            }
        }
    }
    let Some((best, page_bytes, channels, read_ahead)) = best else { return Ok(()) };
    println!("best by hand: {best}");
    let advised = Setting::Advised { page_bytes: profiles.iter().map(|p| p.page_bytes).max().unwrap_or(1) };
    bench.row(format!("tuning/{name}/{}", T::SIZE), unit, |_, row| {
        for (name, setting) in [("ours", Setting::Default), ("advised", advised), ("best", best)] {
            let role = if name == "ours" { Role::Ours } else { Role::Alternative };
            let array = build::<T>(&setup, profiles, setting)?;
            row.measure(name, role, || run(&setup, &array, setup.brief.seconds))?;
        }
        row.count([
            ("best_page_bytes", page_bytes as f64),
            ("best_channels", f64::from(channels)),
            ("best_read_ahead", f64::from(u8::from(read_ahead))),
        ]);
        Ok(())
    })?;
    set_routes(&setup, profiles, Setting::Default);
    Ok(())
}

/// Sets the devices' copy routes: the backend's own choice, or the profile's.
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
        // Use the default page length without a profile, so that stored profiles have no effect.
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
