//! From array to array.

use super::{Bench, size};
use crate::bench::elements::{Payload, Record};
use crate::bench::measure::{Unit, on_threads};
use crate::bench::raw::Way;
use crate::bench::setup::part;
use anyhow::Result;
use vmarray::prelude::*;

pub fn run(bench: &mut Bench) -> Result<()> {
    let setup = bench.setup.clone();
    let bytes = setup.medium_bytes;
    let cache = (bytes / 64).max(8 << 20);
    let from = setup.filled::<Record>(bytes, None, cache)?;
    let to = setup.filled::<Record>(bytes, None, cache)?;
    let page = size(from.page_len() * size_of::<Record>());
    for threads in setup.thread_counts(false) {
        let name = format!("copy/array-to-array/44B/{page}/t{threads}");
        bench.row(name, Unit::GigabytesPerSecond, |bench, row| {
            row.ours(&to, || {
                to.discard(..)?;
                let sample = on_threads(threads, |thread| {
                    let part = part(from.len(), threads, thread, from.page_len());
                    to.copy_from(part.start, from.section(part.clone())?)?;
                    Ok((part.len() * size_of::<Record>()) as f64)
                })?;
                let middle = to.len() / 2;
                to.get(middle)?.check(middle)?;
                Ok(sample)
            })?;
            // Each byte goes both ways.
            row.limit("bus", Ok(bench.raw.bus(Way::Both)?.scaled(0.5)))?;
            row.limit("vec", bench.plain.copy(threads))
        })?;
    }
    Ok(())
}
