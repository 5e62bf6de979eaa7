//! Reads and writes of random elements: which elements is even, or skewed by Zipf's law as real accesses are.

use super::{Bench, size};
use crate::bench::elements::{Payload, Record, Zipf};
use crate::bench::lru::LockedCache;
use crate::bench::mapped_file::MappedFile;
use crate::bench::measure::{Sample, Unit, on_threads, until};
use crate::random::Random;
use anyhow::{Result, ensure};

/// How accesses are spread.
#[derive(Clone, Copy)]
enum Spread {
    Even,
    Zipf(f64),
}

/// Indices of a thread that are drawn before anything is timed, and used again and again.
const DRAWN: usize = 1 << 17;

pub fn run(bench: &mut Bench) -> Result<()> {
    if !bench.wants_any("mixed/") {
        return Ok(());
    }
    let setup = bench.setup.clone();
    let effort = &setup.brief;
    let bytes = setup.peer_bytes.min(1 << 30);
    let page_len = 64;
    let page_bytes = page_len * size_of::<Record>();
    let array = setup.filled::<Record>(bytes, Some(page_len), bytes / 10)?;
    let locked = LockedCache::<Record>::new(&setup.devices, array.len(), page_len, bytes / 10)?;
    let spreads =
        [("even", Spread::Even), ("zipf-0.99", Spread::Zipf(0.99)), ("zipf-1.2", Spread::Zipf(1.2))];
    for threads in setup.thread_counts(false) {
        for (what, spread) in spreads {
            let lists: Vec<Vec<u32>> =
                (0..threads).map(|thread| draw(spread, array.len(), thread as u64)).collect();
            for writes in [0, 10, 50] {
                let page = size(page_bytes);
                let name = format!("mixed/{what}-{writes}%-writes/44B/{page}/cache-1:10/t{threads}");
                let Some(mut row) = bench.row(name, Unit::KiloPerSecond) else { continue };
                let accesses = |get: &(dyn Fn(usize) -> Result<Record> + Sync),
                                set: &(dyn Fn(usize, Record) -> Result<()> + Sync)|
                 -> Result<Sample> {
                    on_threads(threads, |thread| {
                        let mut at = 0;
                        until(effort.seconds, 64, || {
                            let index = lists[thread][at % DRAWN] as usize;
                            at += 1;
                            // Spread evenly, and the same in every repetition.
                            if at * 37 % 100 < writes {
                                set(index, Record::of(index))
                            } else {
                                ensure!(get(index)?.belongs_to(index), "element {index} is wrong");
                                Ok(())
                            }
                        })
                    })
                };
                row.ours(effort, &array, || {
                    accesses(&|i| Ok(array.get(i)?), &|i, value| Ok(array.set(i, value)?))
                })?;
                row.other(effort, "lru", || accesses(&|i| locked.get(i), &|i, value| locked.set(i, value)))?;
                if writes == 0 && !matches!(spread, Spread::Even) {
                    let mut file = MappedFile::<Record>::new(setup.file_bytes)?;
                    let len = file.len();
                    row.other(effort, "mmap", || {
                        file.forget()?;
                        let slice = file.slice();
                        on_threads(threads, |thread| {
                            let mut at = 0;
                            until(effort.seconds, 64, || {
                                let index = lists[thread][at % DRAWN] as usize % len;
                                at += 1;
                                ensure!(slice[index].belongs_to(index), "element {index} is wrong");
                                Ok(())
                            })
                        })
                    })?;
                }
                bench.push(row);
            }
        }
    }
    Ok(())
}

fn draw(spread: Spread, len: usize, thread: u64) -> Vec<u32> {
    let mut random = Random::new(thread + 77);
    match spread {
        Spread::Even => (0..DRAWN).map(|_| random.index(len) as u32).collect(),
        Spread::Zipf(exponent) => {
            let zipf = Zipf::new(len, exponent);
            // Ranks are scattered over the array, so that what is wanted often does not share pages.
            let scatter = |rank: usize| (rank as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) % len as u64;
            (0..DRAWN).map(|_| scatter(zipf.next(&mut random)) as u32).collect()
        }
    }
}
