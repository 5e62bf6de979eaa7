//! Benchmark workloads that copy whole arrays to other arrays, without the host if devices have a link.

use crate::bench::elements::{Payload, Record};
use crate::bench::measure::{Unit, calls};
use crate::bench::raw::{Limit, Link, Way};
use crate::bench::suite::Bench;
use anyhow::Result;
use vmarray::VirtualArray;
use vmarray::prelude::*;

pub fn run(bench: &mut Bench) -> Result<()> {
    if !bench.wants_any("copies/") {
        return Ok(());
    }
    let setup = bench.setup.clone();
    let bytes = setup.medium_bytes;
    let cache = (bytes / 64).max(8 << 20);
    let from = setup.filled::<Record>(bytes, None, cache)?;
    let (len, page_len) = (from.len(), from.page_len());
    // Rotate the devices, so that each page is copied to another device over a link.
    bench.row("copies/next-device/44B", Unit::GigabytesPerSecond, |bench, row| {
        let mut devices = setup.devices.clone();
        let count = devices.len();
        devices.rotate_left(1 % count);
        let to = VirtualArray::<Record>::builder(len).devices(devices).cache_bytes(cache);
        let to = to.page_len(page_len).build()?;
        let amount = (len * size_of::<Record>()) as f64;
        row.ours(&to, || calls(setup.calls(), amount, || Ok(to.copy_from(0, &from)?)))?;
        let indices = (0..len).step_by(len / 97);
        let values = to.gather(&indices.clone().collect::<Vec<_>>())?;
        indices.zip(&values).try_for_each(|(index, value)| value.check(index))?;
        if bench.raw.has_link() {
            row.limit("link", bench.raw.get(Limit::Link(Link::Ring)))
        } else if count > 1 {
            // Compare with half of the bus speed, because each byte crosses the bus twice.
            row.limit("bus", Ok(bench.raw.bus(Way::Both)?.scaled(0.5)))
        } else {
            row.limit("raw", bench.raw.get(Limit::Internal))
        }
    })
}
