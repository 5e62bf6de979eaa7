//! Microbenchmarks of the hit path and the paging core, by criterion, and their ratios, which hold on any
//! machine.

use crate::project;
use anyhow::{Context, Result, bail};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::SystemTime;
use xshell::cmd;

/// Benchmarks with this prefix need a GPU; so do all benchmarks of the GPU backends' packages.
const GPU: &str = "gpu";
const GPU_PACKAGES: [&str; 2] = ["backend-cuda", "backend-opencl"];
/// The baseline of the other functions of a group.
const BASELINE: &str = "vec";

/// Bounds by group and function, relative to `vec` in the same group. There are three exceptions. The
/// baseline of `mutex and hash map` is `array`. The baseline of `any device` is an array with a static
/// device type. The baseline of threads is one thread that does all the work.
const BOUNDS: [(&str, &str, RangeInclusive<f64>); 13] = [
    ("random get u32", "array", 0.0..=1.2),
    ("random get u32", "mutex and hash map", 8.0..=f64::INFINITY),
    // If one thread can make all other threads execute a barrier, a writer needs none of its own.
    ("random set u32", "array", 0.0..=if cfg!(target_os = "linux") { 1.3 } else { 2.5 }),
    ("sequential get u32", "array", 0.0..=5.0),
    ("sequential get u32", "cursor", 0.0..=3.0),
    ("scan u32, 8 MiB", "pages", 0.0..=1.1),
    ("scan u32, 8 MiB", "iterator", 0.0..=1.1),
    ("scan u32, 64 MiB", "pages", 0.0..=1.1),
    ("scan u32, 64 MiB", "iterator", 0.0..=1.1),
    ("random get u32 by threads", "2", 1.8..=f64::INFINITY),
    ("miss, get of 4 KiB pages", "any device", 0.0..=1.02),
    ("miss, set of 4 KiB pages", "any device", 0.0..=1.02),
    ("hit, get", "any device", 0.0..=1.02),
];

/// A measurement that criterion has stored.
#[derive(Deserialize)]
struct Benchmark {
    group_id: String,
    function_id: Option<String>,
}

#[derive(Deserialize)]
struct Estimates {
    median: Estimate,
}

#[derive(Deserialize)]
struct Estimate {
    point_estimate: f64,
}

/// Medians in nanoseconds, by group, then function.
type Medians = BTreeMap<String, BTreeMap<String, f64>>;

/// Runs the criterion benchmarks, which write their results to target/criterion. With `host`, omits the
/// benchmarks that need a GPU. Prints a table of ratios. With `check`, fails if a ratio is outside of its
/// bounds.
pub fn run(host: bool, check: bool, arguments: &[String]) -> Result<()> {
    let sh = project::shell()?;
    let metadata = project::members()?;
    let start = SystemTime::now();
    let mut ran = 0;
    for package in metadata.workspace_packages() {
        for target in package.targets.iter().filter(|target| target.is_bench()) {
            let (name, bench) = (package.name.as_str(), &target.name);
            if host && (bench.starts_with(GPU) || GPU_PACKAGES.contains(&project::folder_name(package))) {
                continue;
            }
            ran += 1;
            cmd!(sh, "cargo bench -p {name} --all-features --bench {bench} -- {arguments...}").run()?;
        }
    }
    if ran == 0 {
        bail!("there is no benchmark{}", if host { " that needs no GPU" } else { "" });
    }
    let medians = read(metadata.target_directory.join("criterion").as_std_path(), start)?;
    let (table, broken) = compare(&medians);
    print!("\n{table}");
    if check && broken > 0 {
        bail!("{broken} ratios exceed their limits");
    }
    Ok(())
}

/// Reads all measurements newer than `start` in criterion's folder.
fn read(folder: &Path, start: SystemTime) -> Result<Medians> {
    let mut medians = Medians::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in
            folder.read_dir().with_context(|| format!("{} cannot be read", folder.display()))?.flatten()
        {
            let path = entry.path();
            if !path.is_dir() {
                continue;
            }
            if entry.file_name() != "new" {
                folders.push(path);
                continue;
            }
            let (name, estimates) = (path.join("benchmark.json"), path.join("estimates.json"));
            if estimates.metadata().and_then(|file| file.modified()).is_ok_and(|time| time >= start) {
                let name: Benchmark = serde_json::from_str(&std::fs::read_to_string(name)?)?;
                let estimates: Estimates = serde_json::from_str(&std::fs::read_to_string(estimates)?)?;
                let group = medians.entry(name.group_id).or_default();
                group.insert(name.function_id.unwrap_or_default(), estimates.median.point_estimate);
            }
        }
    }
    Ok(medians)
}

/// Returns the table of ratios, and the number of ratios out of bounds.
fn compare(medians: &Medians) -> (String, usize) {
    let (mut table, mut broken) = (String::new(), 0);
    for (group, functions) in medians {
        let by_threads = functions.keys().all(|name| name.parse::<u32>().is_ok());
        for (function, time) in functions {
            let baseline = match function.as_str() {
                _ if by_threads => "1",
                "mutex and hash map" => "array",
                "any device" => "one type of device",
                _ => BASELINE,
            };
            if function == baseline {
                continue;
            }
            let Some(base) = functions.get(baseline) else { continue };
            let (ratio, unit) = match function.parse::<f64>() {
                Ok(threads) if by_threads => (threads * base / time, "the speed of 1 thread"),
                _ => (time / base, "the time of "),
            };
            let unit = if by_threads { unit.to_string() } else { format!("{unit}{baseline}") };
            let bound = BOUNDS.iter().find(|(g, f, _)| g == group && f == function);
            let (kept, bound) = match bound.map(|(_, _, bound)| bound) {
                None => (true, String::new()),
                Some(bound) => (bound.contains(&ratio), format!("{} to {}", bound.start(), bound.end())),
            };
            broken += usize::from(!kept);
            let verdict = if kept { "" } else { "  OUT OF BOUNDS" };
            let line = format!("{group:26} {function:20} {ratio:6.2} x {unit:22} {bound}");
            table.push_str(line.trim_end());
            table.push_str(verdict);
            table.push('\n');
        }
    }
    (table, broken)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn medians(list: &[(&str, &str, f64)]) -> Medians {
        let mut medians = Medians::new();
        for (group, function, time) in list {
            medians.entry(group.to_string()).or_default().insert(function.to_string(), *time);
        }
        medians
    }

    #[test]
    fn ratios_and_their_bounds() {
        let (table, broken) = compare(&medians(&[
            ("random get u32", "vec", 10.0),
            ("random get u32", "array", 11.0),
            ("random get u32", "mutex and hash map", 70.0),
            ("random get u32 by threads", "1", 10.0),
            ("random get u32 by threads", "2", 10.5),
            ("scan u32, 8 MiB", "vec", 1.0),
            ("scan u32, 8 MiB", "pages", 1.2),
            ("something", "alone", 1.0),
        ]));
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines.len(), 4, "{table}");
        assert!(lines[0].contains("1.10 x the time of vec") && !lines[0].contains("OUT"));
        assert!(lines[1].contains("6.36 x the time of array") && lines[1].contains("OUT"));
        assert!(lines[2].contains("1.90 x the speed of 1 thread") && !lines[2].contains("OUT"));
        assert!(lines[3].contains("1.20 x the time of vec") && lines[3].contains("OUT"));
        assert_eq!(broken, 2);
    }
}
