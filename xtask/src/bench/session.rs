//! Runs `cargo xtask bench`: all selected families of workloads, one after another. Prints a line for each
//! workload when it ends, and reports at the end.

use super::page;
use super::peer;
use super::plain::Plain;
use super::raw::Raw;
use super::report::{CONTENDERS, line};
use super::results::Measurements;
use super::setup::Setup;
use super::suite::Bench;
use super::workloads::{FAMILIES, TUNING};
use crate::arrays::BenchArgs;
use anyhow::{Context, Result, bail};
use std::rc::Rc;
use std::time::Instant;

/// Runs the selected workloads.
pub fn run(args: BenchArgs) -> Result<()> {
    if args.only.iter().any(|only| only == "list") {
        for family in FAMILIES {
            println!("{:10} {}", family.name, family.about);
        }
        println!("\nContenders:");
        for (name, meaning) in CONTENDERS {
            println!("{name:13} {meaning}");
        }
        return Ok(());
    }
    for only in &args.only {
        if !FAMILIES.iter().any(|family| family.name.starts_with(only) || only.starts_with(family.name)) {
            bail!("there is no workload whose name begins with {only:?}; `--only list` lists the families");
        }
    }
    let start = Instant::now();
    let devices = if args.host { Some("host") } else { args.devices.as_deref() };
    let setup = Rc::new(Setup {
        checksums: args.checksums,
        is_in_turns: args.in_turns,
        ..Setup::new(devices, args.threads, args.quick)?
    });
    let about = setup.describe(&command());
    for (name, value) in &about {
        println!("{name:13} {value}");
    }
    let raw = Raw::new(&setup).context("the devices' limits cannot be measured")?;
    let mut bench = Bench {
        setup: Rc::clone(&setup),
        raw,
        plain: Plain::new(&setup),
        only: args.only.clone(),
        measured: Measurements { about, rows: Vec::new() },
    };
    let (mut failed, mut times) = (Vec::new(), Vec::new());
    for family in if args.tuning { TUNING } else { FAMILIES } {
        if !bench.wants_any(family.name) {
            continue;
        }
        println!("\n{}: {}", family.name, family.about);
        let begin = Instant::now();
        if let Err(error) = (family.run)(&mut bench) {
            // Continue after a failure, because the results of other families are useful nevertheless.
            println!("{} FAILED: {error:#}", family.name);
            failed.push(family.name);
        }
        if family.name == "peer"
            && let Some(template) = &args.peer
        {
            match peer::run(template, &setup) {
                Ok(results) => peer::join(&mut bench.measured.rows, &results),
                Err(error) => {
                    println!("the other program FAILED: {error:#}");
                    failed.push("the other program");
                }
            }
            for row in bench.measured.rows.iter().filter(|row| row.family() == "peer") {
                println!("{}", line(row));
            }
        }
        times.push((family.name, begin.elapsed().as_secs_f64()));
        // Write the results even if the run was interrupted, because they are useful as well.
        let json = args.record.then(|| page::record_path(&bench.measured)).or_else(|| args.json.clone());
        if let Some(path) = &json {
            bench.measured.write(path)?;
        }
    }
    if bench.measured.rows.is_empty() && failed.is_empty() && !args.in_turns {
        bail!("no workload has the given name; `--only list` lists the families");
    }
    println!(
        "\nSeconds: {}",
        times.iter().map(|(name, time)| format!("{name} {time:.1}")).collect::<Vec<_>>().join(", ")
    );
    println!("{} workloads in {:.1} s", bench.measured.rows.len(), start.elapsed().as_secs_f64());
    if failed.is_empty() { Ok(()) } else { bail!("these workloads failed: {}", failed.join(", ")) }
}

/// The command line of this run, without paths of files.
fn command() -> String {
    let mut words = vec!["cargo xtask".to_string()];
    let mut arguments = std::env::args().skip(1);
    while let Some(word) = arguments.next() {
        match word.as_str() {
            "--json" | "--peer" => drop(arguments.next()),
            _ => words.push(word),
        }
    }
    words.join(" ")
}
