//! Many arrays at the same time, compared with one array of the total size.

use super::Bench;
use crate::bench::elements::{Payload, Record};
use crate::bench::measure::Unit;
use crate::bench::results::Role;
use crate::bench::workloads::random::at_random;
use anyhow::Result;

/// The number of arrays, more than the arrays with separate hit counters.
const ARRAYS: usize = 100;

pub fn run(bench: &mut Bench) -> Result<()> {
    if !bench.wants_any("many/") {
        return Ok(());
    }
    let setup = bench.setup.clone();
    let bytes = setup.peer_bytes.min(1 << 30);
    let page_len = Some(64);
    // The cache has at least a frame for each channel.
    let cache_bytes = (bytes / 10 / ARRAYS).max(64 << 10);
    let small: Vec<_> = (0..ARRAYS)
        .map(|_| setup.filled::<Record>(bytes / ARRAYS, page_len, cache_bytes))
        .collect::<Result<_>>()?;
    let single = setup.filled::<Record>(bytes, page_len, cache_bytes * ARRAYS)?;
    let len = small[0].len();
    let mut seed = 0;
    for threads in setup.thread_counts(false) {
        let name = format!("many/get/44B/{ARRAYS}-arrays/t{threads}");
        bench.row(name, Unit::KiloPerSecond, |_, row| {
            let seconds = setup.effort.seconds;
            row.measure("ours", Role::Ours, || {
                seed += 1;
                at_random(threads, seconds, len * ARRAYS, seed, |index| {
                    small[index / len].get(index % len)?.check(index % len)
                })
            })?;
            row.other("one-array", || {
                seed += 1;
                at_random(threads, seconds, single.len(), seed, |index| single.get(index)?.check(index))
            })
        })?;
    }
    Ok(())
}
