//! Searches on the devices: whole words, a field of records; all of an array, or up to the first match.

use super::Bench;
use crate::bench::elements::{Payload, Record};
use crate::bench::measure::{Unit, on_threads, timed};
use crate::bench::setup::{Setup, part};
use anyhow::{Result, ensure};
use std::hint::black_box;
use vmarray::prelude::*;
use vmarray::{Field, VirtualArray, field};

pub fn run(bench: &mut Bench) -> Result<()> {
    let setup = bench.setup.clone();
    one::<u32>(bench, &setup, Field::whole())?;
    one::<Record>(bench, &setup, field!(Record, last))
}

fn one<T: Payload>(bench: &mut Bench, setup: &Setup, field: Field<T, u32>) -> Result<()> {
    let name = |what: &str| format!("find/{what}/{}", T::SIZE);
    if !["all", "count", "first"].iter().any(|what| bench.wants_any(&name(what))) {
        return Ok(());
    }
    let effort = &setup.effort;
    let array: VirtualArray<T> = setup.filled(setup.medium_bytes, None, 64 << 20)?;
    let (len, bytes) = (array.len(), (array.len() * size_of::<T>()) as f64);
    let last = len - 3;
    let calls = if setup.quick { 1 } else { 4 };
    if let Some(mut row) = bench.row(name("all"), Unit::GigabytesPerSecond) {
        row.ours(effort, &array, || {
            timed(1, || {
                for _ in 0..calls {
                    let found = array.find(field, &(last as u32))?;
                    ensure!(found == [last], "found {found:?} and not {last}");
                }
                Ok(bytes * f64::from(calls))
            })
        })?;
        // A copy reads and writes each byte.
        row.limit("internal-copy", bench.raw.internal()?.scaled(2.0));
        let plain: Vec<T> = (0..setup.plain_bytes / size_of::<T>()).map(T::of).collect();
        row.other(effort, "vec", || {
            on_threads(setup.threads, |thread| {
                let part = part(plain.len(), setup.threads, thread, 1);
                let wanted = black_box(u32::MAX);
                // The key is the first word of a record; the last one takes as long to look at.
                let found = plain[part.clone()].iter().filter(|element| element.key() == wanted).count();
                ensure!(black_box(found) == 0, "found what is not there");
                Ok((part.len() * size_of::<T>()) as f64)
            })
        })?;
        bench.push(row);
    }
    if let Some(mut row) = bench.row(name("count"), Unit::GigabytesPerSecond) {
        row.ours(effort, &array, || {
            timed(1, || {
                for _ in 0..calls {
                    let count = array.count(.., field, &(last as u32))?;
                    ensure!(count == 1, "counted {count} and not 1");
                }
                Ok(bytes * f64::from(calls))
            })
        })?;
        row.limit("internal-copy", bench.raw.internal()?.scaled(2.0));
        bench.push(row);
    }
    if let Some(mut row) = bench.row(name("first"), Unit::Microseconds) {
        let early = (len / 1000).max(1);
        row.ours(effort, &array, || {
            timed(1, || {
                for _ in 0..8 {
                    let found = array.position(.., field, &(early as u32))?;
                    ensure!(found == Some(early), "found {found:?} and not {early}");
                }
                Ok(8.0)
            })
        })?;
        bench.push(row);
    }
    Ok(())
}
