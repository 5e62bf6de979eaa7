//! Lists of random indices: elements collected, and distributed, by the devices.

use super::Bench;
use crate::bench::elements::{Block, Payload, Record};
use crate::bench::measure::{Unit, timed};
use crate::bench::raw::Way;
use crate::random::Random;
use anyhow::{Result, ensure};
use vmarray::prelude::*;

pub fn run(bench: &mut Bench) -> Result<()> {
    one::<u32>(bench)?;
    one::<Record>(bench)?;
    one::<Block>(bench)
}

fn one<T: Payload>(bench: &mut Bench) -> Result<()> {
    let name = |what: &str| format!("gather/{what}/{}", T::SIZE);
    if !["gather", "scatter", "cached"].iter().any(|what| bench.wants_any(&name(what))) {
        return Ok(());
    }
    let setup = bench.setup.clone();
    let effort = &setup.effort;
    let bytes = setup.medium_bytes;
    let array = setup.filled::<T>(bytes, None, bytes / 100)?;
    // Enough for many stages, and few enough to be repeated.
    let count = (bytes / 4 / size_of::<T>()).min(16 << 20);
    let mut random = Random::new(5);
    let indices: Vec<usize> = (0..count).map(|_| random.index(array.len())).collect();
    let mut values: Vec<T> = indices.iter().map(|&index| T::of(index)).collect();
    let calls = if setup.quick { 1 } else { 4 };
    if let Some(mut row) = bench.row(name("gather"), Unit::MegaPerSecond) {
        row.ours(effort, &array, || {
            let sample = timed(setup.threads, || {
                (0..calls).try_for_each(|_| array.gather_into(&indices, &mut values))?;
                Ok((calls * count) as f64)
            })?;
            let checked = indices.iter().zip(&values).step_by(97);
            for (&index, value) in checked {
                ensure!(value.belongs_to(index), "element {index} is wrong");
            }
            Ok(sample)
        })?;
        row.limit("kernel", bench.raw.indexed(Way::Down, size_of::<T>())?);
        bench.push(row);
    }
    if let Some(mut row) = bench.row(name("scatter"), Unit::MegaPerSecond) {
        row.ours(effort, &array, || {
            timed(setup.threads, || {
                (0..calls).try_for_each(|_| array.scatter(&indices, &values))?;
                Ok((calls * count) as f64)
            })
        })?;
        row.limit("kernel", bench.raw.indexed(Way::Up, size_of::<T>())?);
        bench.push(row);
    }
    if let Some(mut row) = bench.row(name("cached"), Unit::MegaPerSecond) {
        // As many different elements as the cache holds.
        let few = array.len() / 200;
        let indices: Vec<usize> = (0..count).map(|_| random.index(few)).collect();
        (0..few).try_for_each(|index| array.get(index).map(drop))?;
        row.ours(effort, &array, || {
            timed(setup.threads, || {
                (0..calls).try_for_each(|_| array.gather_into(&indices, &mut values))?;
                Ok((calls * count) as f64)
            })
        })?;
        let plain: Vec<T> = (0..few).map(T::of).collect();
        row.other(effort, "vec", || {
            timed(1, || {
                for _ in 0..calls {
                    indices.iter().zip(&mut values).for_each(|(&index, value)| *value = plain[index]);
                }
                Ok((calls * count) as f64)
            })
        })?;
        bench.push(row);
    }
    Ok(())
}
