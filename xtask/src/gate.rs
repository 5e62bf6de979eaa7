//! `cargo xtask gate`: fails if a change made a row of a fixed list of measurements slower.
//!
//! The command runs two builds of the benchmarks, old and new, alternately (see [`turns`]) on some forty rows
//! (measured workloads). The rows cover hits, misses, scans, bulk copies, lists, tasks, expressions, kernels,
//! sorts, joins, files, the first calls of a process, and the Python package.
//!
//! - A row fails if the upper end of the 95 % confidence interval of its speed ratio, new to old, is below
//!   [`ROW_LEAST`].
//! - The command measures a noisy row again while the run is on schedule: each row has an equal share of
//!   [`SECONDS`].
//! - A row is listed but not judged if it is too noisy: if the 95 % interval of the old build's ratio to
//!   itself reaches further than [`NOISE_MOST`] from 1. If fewer than half of the rows are judged, the
//!   command fails.
//! - A group of rows fails if the upper end of the 95 % interval of the geometric mean of its judged rows is
//!   below [`GROUP_LEAST`].
//!
//! The report ends with the rows of the list that this machine cannot measure.

use crate::arrays::GateArgs;
use crate::compare::in_turns;
use crate::turns::{self, NOISE_MOST, Times};
use anyhow::{Context, Result, bail};
use serde::Serialize;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::process::Command;
use std::time::Instant;

/// The minimum speed of a row: NEW divided by OLD.
const ROW_LEAST: f64 = 0.97;
/// The time of a run in seconds: in host RAM, and on GPUs.
const SECONDS: [f64; 2] = [180.0, 300.0];
/// The minimum geometric mean of the speeds of a group's rows.
const GROUP_LEAST: f64 = 0.98;

/// Beginnings of the names of the rows that use all threads.
const MANY_THREADS: [&str; 2] = ["in-place/", "bulk/"];
/// Families whose rows name their number of threads, and of which only the rows with one thread are measured.
const ONE_THREAD: [&str; 3] = ["cached/", "random/", "mixed/"];
/// Names of the rows that run first in a fresh process.
const FIRST_CALLS: &[&str] =
    &["rows/first-gather", "rows/first-scatter", "rows/first-read", "rows/first-transform"];
/// The program that measures rows of the Python package.
const PYTHON: &str = include_str!("../../vmarray/python/benches/gate.py");
/// Beginnings of the names of all other rows.
const ROWS: &[&str] = &[
    "cached/get/4B/t1",
    "cached/set/44B/t1",
    "cached/scan-by-cursor/8B/t1",
    "cached/scan-by-iter/4B/t1",
    "random/get/4B/64KiB",
    "random/set/4KiB",
    "mixed/zipf-0.99-10%-writes",
    "in-place/scan",
    "in-place/update",
    "bulk/read/44B",
    "bulk/write/4B",
    "gather/gather/4B",
    "gather/scatter/44B",
    "gather/gather-registered/4KiB",
    "rows/gather/512B",
    "rows/scatter/3072B",
    "async/get/4KiB",
    "async/dependent/4/64KiB/t16x500",
    "find/all/4B",
    "find/count/44B",
    "expressions/sum/4B",
    "expressions/two-terms/4B",
    "expressions/transform/44B",
    "section/source/search/pinned",
    "kernels/axpy-f32/",
    "kernels/five-points",
    "kernels/prefix-sum-u32",
    "kernels/launch-and-wait",
    "sort/u32",
    "sort/pairs/u64",
    "sort/unique",
    "join/uniform",
    "files/read/64KiB/warm/t1",
    "stored/read/4KiB/warm/t1",
    "stored/write-sync/1MiB",
    "snapshots/load/1MiB/warm",
    "ragged/push",
    "ragged/read/cached",
];

/// The result of one row: its speed, and if it failed.
#[derive(Debug, Serialize)]
struct Judged {
    /// The speed of the new build as a multiple of the old one's: lower end, median, upper end.
    speed: [f64; 3],
    /// The machine's noise: the distance from 1 that the 95 % interval of OLD against itself reaches.
    noise: f64,
    is_judged: bool,
    has_failed: bool,
}

impl Judged {
    fn of(times: &Times) -> Self {
        let speed = speed(times);
        let noise = times.noise();
        // If a time is NaN, this comparison is false, and the row (measured workload) is not judged.
        let is_judged = noise <= NOISE_MOST;
        Self { speed, noise, is_judged, has_failed: is_judged && speed[2] < ROW_LEAST }
    }

    /// The line about the row `name`.
    fn line(&self, name: &str) -> String {
        let Self { speed: [low, median, high], noise, is_judged, has_failed } = self;
        let mark = match (is_judged, has_failed) {
            (false, _) => "   not judged: noise",
            (true, true) => "   FAILED",
            (true, false) => "",
        };
        format!("{name:44} {median:.3} [{low:.3}, {high:.3}]  old/old ±{noise:.3}{mark}")
    }
}

/// Returns the speed of NEW divided by OLD's: lower end of its interval, median, upper end.
fn speed(times: &Times) -> [f64; 3] {
    let [low, median, high] = times.new_to_old();
    [1.0 / high, 1.0 / median, 1.0 / low]
}

/// The results of all rows, as the JSON file stores them.
#[derive(Debug, Serialize)]
struct Record {
    rows: BTreeMap<String, Judged>,
    /// The geometric mean of the speeds of the judged rows of each group: lower end, median, upper end.
    groups: BTreeMap<String, [f64; 3]>,
    /// Rows of the list that neither build has on this machine.
    missing: Vec<String>,
}

impl Record {
    fn of(times: &BTreeMap<String, Times>) -> Self {
        let rows: BTreeMap<_, _> = times.iter().map(|(name, row)| (name.clone(), Judged::of(row))).collect();
        let mut members: BTreeMap<String, Vec<&Times>> = BTreeMap::new();
        for (name, _) in rows.iter().filter(|(_, row)| row.is_judged) {
            let group = name.split('/').next().unwrap_or_default();
            members.entry(group.into()).or_default().push(&times[name]);
        }
        let groups = members.into_iter().map(|(group, rows)| (group, speed(&Times::mean(&rows)))).collect();
        let is_missing = |name: &&&str| !rows.keys().any(|row| row.starts_with(**name));
        let missing =
            FIRST_CALLS.iter().chain(ROWS).filter(is_missing).map(|name| name.to_string()).collect();
        Self { rows, groups, missing }
    }

    /// The names of the rows and groups that failed.
    fn failures(&self) -> Vec<&str> {
        let rows = self.rows.iter().filter(|(_, row)| row.has_failed).map(|(name, _)| name.as_str());
        let groups =
            self.groups.iter().filter(|(_, mean)| mean[2] < GROUP_LEAST).map(|(name, _)| name.as_str());
        rows.chain(groups).collect()
    }

    /// A line for each group, and one for the rows that are missing.
    fn text(&self) -> String {
        let mut text = String::new();
        for (name, [low, median, high]) in &self.groups {
            let mark = if *high < GROUP_LEAST { "   FAILED" } else { "" };
            text += &format!("group {name:38} {median:.3} [{low:.3}, {high:.3}]{mark}\n");
        }
        if !self.missing.is_empty() {
            text += &format!("not on this machine: {}\n", self.missing.join(", "));
        }
        text
    }
}

pub fn run(args: &GateArgs) -> Result<()> {
    let start = Instant::now();
    let record = Record::of(&measure(args)?);
    print!("{}", record.text());
    if let Some(file) = &args.json {
        let text = serde_json::to_string_pretty(&record)? + "\n";
        std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))?;
    }
    println!("{} rows in {:.0} s", record.rows.len(), start.elapsed().as_secs_f64());
    let judged = record.rows.values().filter(|row| row.is_judged).count();
    if 2 * judged < record.rows.len() {
        bail!(
            "only {judged} of {} rows have little enough noise to be judged; use a quieter machine",
            record.rows.len()
        );
    }
    let failures = record.failures();
    if !failures.is_empty() {
        bail!("slower than before: {}", failures.join(", "));
    }
    Ok(())
}

/// Returns true for one row of each kind: the row with all threads if the kind measures bandwidth, else the
/// row with one thread.
fn is_in_list(name: &str) -> bool {
    let has_one = name.ends_with("/t1");
    let has_many =
        !has_one && name.rsplit_once("/t").is_some_and(|(_, threads)| threads.parse::<u32>().is_ok());
    if MANY_THREADS.iter().any(|family| name.starts_with(family)) { !has_one } else { !has_many }
}

/// Measures all rows of the list, and the rows of the Python package if it is given. Prints a line for each
/// row once it is measured.
fn measure(args: &GateArgs) -> Result<BTreeMap<String, Times>> {
    let programs = [&args.old, &args.new];
    let devices = args.devices.iter().flat_map(|devices| ["--devices".into(), devices.clone()]);
    let options: Vec<String> = std::iter::once("--quick".into()).chain(devices).collect();
    let mut rows = BTreeMap::new();
    let (start, done) = (Instant::now(), Cell::new(0.0));
    let mut add = |name: String, times: Times| {
        println!("{}", Judged::of(&times).line(&name));
        rows.insert(name, times);
        done.set(done.get() + 1.0);
    };
    let seconds = SECONDS[usize::from(args.devices.as_deref() != Some("host"))];
    let row_seconds = seconds / (FIRST_CALLS.len() + ROWS.len() + PYTHON.matches("\nserve(").count()) as f64;
    let has_time = || start.elapsed().as_secs_f64() < row_seconds * (done.get() + 1.0);
    for name in FIRST_CALLS {
        turns::first_calls(&|which| in_turns(programs[which], &[name], &options), &mut add)?;
    }
    // The rows (workloads) of one family share arrays, so that one process measures them all.
    for family in ROWS.chunk_by(|a, b| a.split('/').next() == b.split('/').next()) {
        // Pass `--threads 1` if the family's rows use one thread, so that no rows with more threads are set
        // up.
        let is_alone = ONE_THREAD.iter().any(|name| family[0].starts_with(name));
        let threads = if is_alone { &["--threads".into(), "1".into()][..] } else { &[] };
        let options = [&options, threads].concat();
        let command = |which: usize| in_turns(programs[which], family, &options);
        turns::rows(&command, &is_in_list, &has_time, &mut add)?;
    }
    if let [old, new] = &args.python[..] {
        let python = |which: usize| {
            let mut command = Command::new([old, new][which]);
            command.args(["-c", PYTHON]).args(&args.devices);
            command
        };
        turns::rows(&python, &|_| true, &has_time, &mut add)?;
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Times of OLD that differ by a factor between two processes, and constant ones of NEW.
    fn times(new: f64, noise: f64) -> Times {
        Times { old: [1.0, 1.0, noise, noise, noise], new: [new; 5] }
    }

    #[test]
    fn slow_rows_fail_and_noisy_rows_are_not_judged() {
        let rows = [
            ("find/all", times(1.0, 1.0)),
            ("find/count", times(1.02, 1.0)),
            ("sort/u32", times(1.05, 1.0)),
            ("join/uniform", times(2.0, 1.2)),
        ];
        let record = Record::of(&rows.map(|(name, row)| (name.to_string(), row)).into());
        assert_eq!(record.failures(), ["sort/u32", "sort"]);
        assert!(!record.rows["join/uniform"].is_judged && !record.groups.contains_key("join"));
        assert!((record.groups["find"][1] - 1.0 / 1.02_f64.sqrt()).abs() < 1e-9);
        assert!(record.missing.contains(&"bulk/read/44B".to_string()));
        assert!(record.text().contains("\nnot on this machine: rows/first-gather, "));
    }

    #[test]
    fn groups_fail_by_their_intervals() {
        let mut slow = times(1.05, 1.0);
        assert_eq!(
            Record::of(&[("ragged/push".to_string(), slow.clone())].into()).failures(),
            ["ragged/push", "ragged"]
        );
        slow.new[4] = 1.0; // The median is as slow, but one process is not.
        assert!(Record::of(&[("ragged/push".to_string(), slow)].into()).failures().is_empty());
    }
}
