//! Benchmark workloads that access random elements, uniformly or (like real accesses) by Zipf's law.

use crate::bench::elements::{Payload, Record, zipf};
use crate::bench::measure::{Sample, Unit, on_threads, until};
use crate::bench::suite::{Bench, size};
use anyhow::Result;
use vmarray::device::wrap::SplitMix64;

/// The number of indices that each thread draws before the measurement and uses repeatedly.
const DRAWN: usize = 1 << 17;

/// The distributions of accesses: name, and exponent of Zipf's law or `None` if uniform.
const SPREADS: [(&str, Option<f64>); 3] =
    [("even", None), ("zipf-0.99", Some(0.99)), ("zipf-1.2", Some(1.2))];

pub fn run(bench: &mut Bench) -> Result<()> {
    if !bench.wants_any("mixed/") {
        return Ok(());
    }
    let setup = bench.setup.clone();
    let (bytes, seconds) = (setup.peer_bytes.min(1 << 30), setup.brief.seconds);
    let page_len = 64;
    let page = size(page_len * size_of::<Record>());
    let array = setup.filled::<Record>(bytes, Some(page_len), bytes / 10)?;
    for threads in setup.thread_counts(false) {
        for (what, exponent) in SPREADS {
            if !bench.wants_any(&format!("mixed/{what}-")) {
                continue;
            }
            let draw = |thread| draw(exponent, array.len(), thread);
            let lists: Vec<Vec<u32>> = (0..threads).map(draw).collect::<Result<_>>()?;
            for writes in [0, 10, 50] {
                // Of each hundred accesses `writes` are writes, evenly spread, in every repetition.
                let accesses = |access: &(dyn Fn(usize, bool) -> Result<()> + Sync)| -> Result<Sample> {
                    on_threads(threads, |thread| {
                        let mut at = 0;
                        until(seconds, 64, || {
                            let index = lists[thread][at % DRAWN] as usize;
                            at += 1;
                            access(index, at * 37 % 100 < writes)
                        })
                    })
                };
                let name = format!("mixed/{what}-{writes}%-writes/44B/{page}/cache-1:10/t{threads}");
                bench.row(name, Unit::KiloPerSecond, |_, row| {
                    row.effort = setup.brief;
                    row.ours(&array, || {
                        accesses(&|i, writes| match writes {
                            true => Ok(array.set(i, Record::of(i))?),
                            false => array.get(i)?.check(i),
                        })
                    })
                })?;
            }
        }
    }
    Ok(())
}

fn draw(exponent: Option<f64>, len: usize, thread: usize) -> Result<Vec<u32>> {
    let seed = thread as u64 + 77;
    if let Some(exponent) = exponent {
        return Ok(zipf(len, exponent, seed)?.take(DRAWN).map(|index| index as u32).collect());
    }
    let mut random = SplitMix64::new(seed);
    Ok((0..DRAWN).map(|_| random.index(len) as u32).collect())
}
