//! Runs another program as a competitor: starts it by a command template, and reads its results.

use super::measure::Summary;
use super::results::{Role, Row};
use super::setup::Setup;
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::process::{Command, Stdio};

/// Results of another program by name of the workload: the unit, and one value for each repetition.
pub type Results = BTreeMap<String, (String, Vec<f64>)>;

/// Runs the command `template` of another program, after it has replaced `{threads}`, `{bytes}` and
/// `{seconds}`. Parses the results in the output, and prints all other lines.
pub fn run(template: &str, setup: &Setup) -> Result<Results> {
    let command = template
        .replace("{threads}", &setup.threads.to_string())
        .replace("{bytes}", &setup.peer_bytes.to_string())
        .replace("{seconds}", &setup.effort.seconds.to_string());
    println!("$ {command}");
    let (shell, option) = if cfg!(windows) { ("cmd", "/C") } else { ("sh", "-c") };
    let output = Command::new(shell)
        .args([option, &command])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("{shell} cannot be started"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let (results, others) = parse(&text);
    others.iter().for_each(|line| println!("{line}"));
    if results.is_empty() {
        bail!("`{command}` ended with {} and printed no results", output.status);
    }
    if !output.status.success() {
        println!("`{command}` ended with {}; its output up to then is used", output.status);
    }
    Ok(results)
}

/// Splits a program's output into results and all other lines.
fn parse(text: &str) -> (Results, Vec<&str>) {
    let (mut results, mut others) = (Results::new(), Vec::new());
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match (words.as_slice(), words.get(1).and_then(|value| value.parse::<f64>().ok())) {
            ([name, _, unit], Some(value)) if value.is_finite() => {
                let entry = results.entry(name.to_string()).or_insert_with(|| (unit.to_string(), Vec::new()));
                entry.1.push(value);
            }
            _ => others.push(line),
        }
    }
    (results, others)
}

/// Adds results of another program to the rows (workloads) of equal name and unit; prints all other results.
pub fn join(rows: &mut [Row], results: &Results) {
    for (name, (unit, values)) in results {
        let row = rows.iter_mut().find(|row| row.name == *name && row.unit.symbol() == unit);
        match (row, Summary::of(values)) {
            (Some(row), Some(summary)) => {
                row.add("peer", Role::Alternative, summary);
            }
            _ => println!("{name}, in {unit}, is not among the workloads that were run"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::measure::Unit;
    use crate::bench::results::row_of;

    #[test]
    fn results_go_to_rows_of_the_same_name_and_unit() {
        let text =
            "hello\npeer/a 4 GB/s\npeer/a 6 GB/s\npeer/b x ns\npeer/b 3 ns\npeer/c inf ns\npeer/d 1 ns\n";
        let (results, others) = parse(text);
        assert_eq!(results["peer/a"], ("GB/s".into(), vec![4.0, 6.0]));
        assert_eq!(others, ["hello", "peer/b x ns", "peer/c inf ns"]);
        let mut rows = [
            row_of("peer/a", Unit::GigabytesPerSecond, Some(10.0), &[]),
            row_of("peer/b", Unit::KiloPerSecond, None, &[]),
        ];
        join(&mut rows, &results);
        let ratios = rows[0].ratios().map(|(entry, ratio)| (&*entry.name, ratio));
        assert_eq!(ratios.collect::<Vec<_>>(), [("peer", 2.0)]);
        assert!(rows[1].entries.is_empty());
    }
}
