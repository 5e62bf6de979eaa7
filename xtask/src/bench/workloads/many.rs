//! Many arrays at once, next to a single one of the same size.

use super::Bench;
use crate::bench::elements::{Payload, Record};
use crate::bench::measure::Unit;
use crate::bench::results::Role;
use crate::bench::workloads::random::at_random;
use anyhow::{Result, ensure};

/// More than the counters of hits that arrays have for themselves.
const ARRAYS: usize = 100;

pub fn run(bench: &mut Bench) -> Result<()> {
    if !bench.wants_any("many/") {
        return Ok(());
    }
    let setup = bench.setup.clone();
    let effort = &setup.effort;
    let bytes = setup.peer_bytes.min(1 << 30);
    let page_len = Some(64);
    // A frame for each channel at least.
    let cache_bytes = (bytes / 10 / ARRAYS).max(64 << 10);
    let small: Vec<_> = (0..ARRAYS)
        .map(|_| setup.filled::<Record>(bytes / ARRAYS, page_len, cache_bytes))
        .collect::<Result<_>>()?;
    let single = setup.filled::<Record>(bytes, page_len, cache_bytes * ARRAYS)?;
    let len = small[0].len();
    let mut seed = 0;
    for threads in setup.thread_counts(false) {
        let Some(mut row) =
            bench.row(format!("many/get/44B/{ARRAYS}-arrays/t{threads}"), Unit::KiloPerSecond)
        else {
            continue;
        };
        row.measure(effort, "ours", Role::Ours, || {
            seed += 1;
            at_random(threads, effort.seconds, len * ARRAYS, seed, |index| {
                let found = small[index / len].get(index % len)?;
                ensure!(found.belongs_to(index % len), "element {index} is wrong");
                Ok(())
            })
        })?;
        row.other(effort, "one-array", || {
            seed += 1;
            at_random(threads, effort.seconds, single.len(), seed, |index| {
                ensure!(single.get(index)?.belongs_to(index), "element {index} is wrong");
                Ok(())
            })
        })?;
        bench.push(row);
    }
    Ok(())
}
