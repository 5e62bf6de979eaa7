//! Operations by expressions on the devices: questions about a word and about a field of records, and
//! writing.

use super::Bench;
use super::section::source_of;
use crate::bench::elements::{Payload, Record};
use crate::bench::measure::{Unit, on_threads, timed};
use crate::bench::results::Role;
use crate::bench::setup::{Setup, part};
use anyhow::{Result, ensure};
use std::hint::black_box;
use vmarray::prelude::*;
use vmarray::{Field, VirtualArray, field};

pub fn run(bench: &mut Bench) -> Result<()> {
    let setup = bench.setup.clone();
    one::<u32>(bench, &setup, Field::whole())?;
    one::<Record>(bench, &setup, field!(Record, last))?;
    sources(bench, &setup)
}

/// What is measured.
const QUESTIONS: [&str; 5] = ["count", "two-terms", "find-none", "sum", "min"];
/// And how much is read and written for each byte of the array; of records whole sectors are.
const WRITES: [(&str, f64); 3] = [("transform", 2.0), ("assign-half", 1.5), ("assign-none", 1.0)];

fn one<T: Payload>(bench: &mut Bench, setup: &Setup, field: Field<T, u32>) -> Result<()> {
    let name = |what: &str| format!("expressions/{what}/{}", T::SIZE);
    if !QUESTIONS.iter().chain(&WRITES.map(|(what, _)| what)).any(|what| bench.wants_any(&name(what))) {
        return Ok(());
    }
    let effort = &setup.effort;
    let array: VirtualArray<T> = setup.filled(setup.medium_bytes, None, 64 << 20)?;
    let (len, bytes) = (array.len(), (array.len() * size_of::<T>()) as f64);
    let calls = if setup.quick { 1 } else { 4 };
    let ask = |what: &str| -> Result<()> {
        match what {
            "count" => ensure!(array.count_where(.., field.ge(len as u32))? == 0),
            "two-terms" => ensure!(array.count_where(.., field.ge(len as u32) & field.ne(0))? == 0),
            "find-none" => ensure!(array.find_where(.., field.ge(len as u32), 1000)?.total == 0),
            "sum" => ensure!(array.sum(.., field)? > 0),
            "min" => ensure!(array.min(.., field)?.is_some()),
            "transform" => array.transform(.., field.set(field ^ 1))?,
            "assign-half" => array.assign_where(.., field.ge((len / 2) as u32), field.set(field ^ 1))?,
            _ => array.assign_where(.., field.ge(len as u32), field.set(1))?,
        }
        Ok(())
    };
    for what in QUESTIONS {
        let Some(mut row) = bench.row(name(what), Unit::GigabytesPerSecond) else { continue };
        row.ours(effort, &array, || {
            timed(1, || {
                (0..calls).try_for_each(|_| ask(what))?;
                Ok(bytes * f64::from(calls))
            })
        })?;
        // A copy reads and writes each byte.
        row.limit("internal-copy", bench.raw.internal()?.scaled(2.0));
        if what == "count" {
            let plain: Vec<T> = (0..setup.plain_bytes / size_of::<T>()).map(T::of).collect();
            row.other(effort, "vec", || {
                on_threads(setup.threads, |thread| {
                    let part = part(plain.len(), setup.threads, thread, 1);
                    let least = black_box(u32::MAX);
                    let found = plain[part.clone()].iter().filter(|element| element.key() >= least).count();
                    ensure!(black_box(found) == 0, "found what is not there");
                    Ok((part.len() * size_of::<T>()) as f64)
                })
            })?;
        }
        bench.push(row);
    }
    for (what, bytes_each) in WRITES {
        let Some(mut row) = bench.row(name(what), Unit::GigabytesPerSecond) else { continue };
        row.ours(effort, &array, || {
            timed(1, || {
                (0..calls).try_for_each(|_| ask(what))?;
                Ok(bytes_each * bytes * f64::from(calls))
            })
        })?;
        row.limit("internal-copy", bench.raw.internal()?.scaled(2.0));
        bench.push(row);
    }
    Ok(())
}

/// The same of a source all of which is on the devices, beside an array.
fn sources(bench: &mut Bench, setup: &Setup) -> Result<()> {
    const WHAT: [&str; 5] = ["count", "sum", "sum-floats", "arg-max", "transform"];
    let name = |what: &str| format!("expressions/source/{what}/4B");
    if !WHAT.iter().any(|what| bench.wants_any(&name(what))) {
        return Ok(());
    }
    let source = source_of(setup, setup.medium_bytes, 2 * setup.medium_bytes, None)?;
    let array: VirtualArray<u32> = setup.filled(setup.medium_bytes, None, 64 << 20)?;
    let (len, bytes) = (source.len(), (source.len() * 4) as f64);
    let calls = if setup.quick { 1 } else { 4 };
    let field = || Field::<u32, u32>::whole();
    macro_rules! ask {
        ($of:expr, $what:expr) => {
            match $what {
                "count" => ensure!($of.count_where(.., field().ge(len as u32))? == 0),
                "sum" => ensure!($of.sum(.., field())? > 0),
                "sum-floats" => ensure!($of.sum(.., field().cast::<f32>())? > 0.0),
                "arg-max" => ensure!($of.arg_max(.., field())?.is_some()),
                _ => $of.transform(.., field().set(field() ^ 1))?,
            }
        };
    }
    for what in WHAT {
        let Some(mut row) = bench.row(name(what), Unit::GigabytesPerSecond) else { continue };
        // What is changed is read and written.
        let amount = if what == "transform" { 2.0 * bytes } else { bytes } * f64::from(calls);
        // All is on the devices, and translated, before anything is measured.
        ask!(source, what);
        ask!(array, what);
        source.reset_stats();
        row.measure(&setup.effort, "ours", Role::Ours, || {
            timed(1, || {
                for _ in 0..calls {
                    ask!(source, what);
                }
                Ok(amount)
            })
        })?;
        ensure!(source.stats().total().bytes_to_device == 0, "a source that is on the devices was copied");
        row.other(&setup.effort, "array", || {
            timed(1, || {
                for _ in 0..calls {
                    ask!(array, what);
                }
                Ok(amount)
            })
        })?;
        row.limit("internal-copy", bench.raw.internal()?.scaled(2.0));
        bench.push(row);
    }
    Ok(())
}
