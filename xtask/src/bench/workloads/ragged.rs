//! Benchmark workloads on ragged arrays (rows of different lengths), compared with two `Vec`s.

use crate::bench::measure::{Sample, Unit, timed};
use crate::bench::results::Role;
use crate::bench::suite::Bench;
use anyhow::Result;
use vmarray::RaggedArray;
use vmarray::device::wrap::SplitMix64;
use vmarray::prelude::*;

const ROWS: usize = 1 << 20;
/// The bound of the rows' lengths: each row has fewer items.
const ROW_LEN_MAX: usize = 32;
/// The number of rows that one repetition reads.
const READS: usize = 1 << 18;

/// The competitor: the rows in two `Vec`s, of offsets and of values.
struct Plain {
    offsets: Vec<u64>,
    values: Vec<u32>,
}

impl Plain {
    fn new() -> Self {
        Self { offsets: vec![0], values: Vec::new() }
    }

    fn push(&mut self, row: &[u32]) {
        self.values.extend_from_slice(row);
        self.offsets.push(self.values.len() as u64);
    }

    fn row(&self, row: usize) -> &[u32] {
        &self.values[self.offsets[row] as usize..self.offsets[row + 1] as usize]
    }
}

pub fn run(bench: &mut Bench) -> Result<()> {
    if !bench.wants_any("ragged/") {
        return Ok(());
    }
    let setup = bench.setup.clone();
    let mut random = SplitMix64::new(5);
    let rows: Vec<Vec<u32>> = (0..ROWS as u32).map(|row| vec![row; random.index(ROW_LEN_MAX)]).collect();
    let mut plain = Plain::new();
    rows.iter().for_each(|row| plain.push(row));
    let total = plain.values.len();
    let builder = || {
        RaggedArray::<u32>::builder()
            .devices(setup.devices.iter().cloned())
            .elements(|elements| elements.cache_bytes(8 * total))
            .offsets(|offsets| offsets.cache_bytes(16 * ROWS))
    };
    bench.row("ragged/push", Unit::MegaPerSecond, |_, row| {
        row.measure_in_turn(&mut [
            ("ours", Role::Ours, &mut || {
                let writer = builder().writer()?;
                timed(1, || {
                    rows.iter().try_for_each(|row| writer.push(row).map(drop))?;
                    Ok(ROWS as f64)
                })
            }),
            ("vec", Role::Alternative, &mut || timed(1, || Ok(built(&rows)))),
        ])
    })?;
    let ragged = builder().from_rows(&rows)?;
    bench.row("ragged/read/cached", Unit::MegaPerSecond, |_, row| {
        let seed = std::cell::Cell::new(0);
        let next = || {
            seed.set(seed.get() + 1);
            SplitMix64::new(seed.get())
        };
        row.measure_in_turn(&mut [
            ("ours", Role::Ours, &mut || {
                reads(&mut next(), |row, buffer| {
                    let row = ragged.row(row)?;
                    let buffer = &mut buffer[..row.len()];
                    row.read(0, buffer)?;
                    Ok(buffer.iter().copied().fold(0, u32::wrapping_add))
                })
            }),
            ("vec", Role::Alternative, &mut || {
                reads(&mut next(), |row, buffer| {
                    let row = plain.row(row);
                    let buffer = &mut buffer[..row.len()];
                    buffer.copy_from_slice(row);
                    Ok(buffer.iter().copied().fold(0, u32::wrapping_add))
                })
            }),
        ])
    })
}

fn built(rows: &[Vec<u32>]) -> f64 {
    let mut plain = Plain::new();
    rows.iter().for_each(|row| plain.push(row));
    std::hint::black_box(plain.values.len());
    ROWS as f64
}

fn reads(
    random: &mut SplitMix64,
    mut read: impl FnMut(usize, &mut [u32; ROW_LEN_MAX]) -> Result<u32>,
) -> Result<Sample> {
    timed(1, || {
        let mut buffer = [0; ROW_LEN_MAX];
        let mut sum = 0_u32;
        for _ in 0..READS {
            sum = sum.wrapping_add(read(random.index(ROWS), &mut buffer)?);
        }
        std::hint::black_box(sum);
        Ok(READS as f64)
    })
}
