//! Microbenchmarks by criterion, and their ratios, which hold on any machine.

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
/// The measured function, and the baseline in the same group: an array of a static device type.
const MEASURED: &str = "any device";
const BASELINE: &str = "one type of device";
/// The bounds of the ratio to the baseline.
const BOUNDS: RangeInclusive<f64> = 0.0..=1.02;

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
        let Some((time, base)) = functions.get(MEASURED).zip(functions.get(BASELINE)) else { continue };
        let ratio = time / base;
        let is_broken = !BOUNDS.contains(&ratio);
        broken += usize::from(is_broken);
        let verdict = if is_broken { "  OUT OF BOUNDS" } else { "" };
        let (least, most) = (BOUNDS.start(), BOUNDS.end());
        table += &format!("{group:26} {MEASURED} {ratio:6.2} x {BASELINE}, {least} to {most}{verdict}\n");
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
            ("miss, get", "one type of device", 10.0),
            ("miss, get", "any device", 10.1),
            ("miss, set", "one type of device", 10.0),
            ("miss, set", "any device", 10.5),
            ("something", "alone", 1.0),
        ]));
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines.len(), 2, "{table}");
        assert!(lines[0].contains("1.01 x one type of device") && !lines[0].contains("OUT"));
        assert!(lines[1].contains("1.05 x one type of device") && lines[1].contains("OUT"));
        assert_eq!(broken, 1);
    }
}
