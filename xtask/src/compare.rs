//! `cargo xtask compare`: two builds of the benchmarks, run in turns on one machine (see [`turns`]).

use crate::arrays::CompareArgs;
use crate::bench;
use crate::turns::{self, Ratios};
use anyhow::{Result, bail};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

/// The upper bound of an interval.
const BOUND: f64 = 1.03;

/// Runs `cargo xtask compare`.
pub fn run(args: CompareArgs) -> Result<()> {
    let quick = ["--quick".to_string()];
    let options = if args.options.is_empty() { &quick[..] } else { &args.options };
    let mut rows = BTreeMap::new();
    for family in bench::families(&args.filter) {
        let of_family = |name: &&String| name.starts_with(family) || family.starts_with(name.as_str());
        let only: Vec<&str> = args.filter.iter().filter(of_family).map(String::as_str).collect();
        let is_whole = only.is_empty() || only.iter().any(|name| family.starts_with(name));
        let only = if is_whole { vec![family] } else { only };
        let command = |which| in_turns(if which == 0 { &args.old } else { &args.new }, &only, options);
        rows.extend(turns::rows(&command, &|_| true)?);
    }
    if rows.is_empty() {
        bail!("the programs have no workload in common");
    }
    let (lines, marked) = report(&rows);
    print!("{lines}");
    println!("{marked} of {} workloads are not proven to take less than {BOUND} of the time", rows.len());
    Ok(())
}

/// The command of a build that measures, in turns with another one, the rows whose names begin with `only`.
pub fn in_turns(program: &Path, only: &[&str], options: &[String]) -> Command {
    let mut command = Command::new(program);
    command.args(["bench", "--in-turns"]).args(only.iter().flat_map(|name| ["--only", name])).args(options);
    command
}

/// Returns a line for each row, and the number of marked ones.
fn report(rows: &BTreeMap<String, Ratios>) -> (String, usize) {
    let width = rows.keys().map(String::len).max().unwrap_or(0);
    let show = |(low, median, high): (f64, f64, f64)| format!("{median:.3} [{low:.3}, {high:.3}]");
    let (mut lines, mut marked) = (String::new(), BTreeSet::new());
    for (name, Ratios { new_to_old, old_to_old }) in rows {
        let (new, old) = (interval(new_to_old), interval(old_to_old));
        let mut mark = "";
        if new.2 >= BOUND {
            marked.insert(name);
            mark = "   <- not below 1.03";
        }
        lines += &format!("{name:width$}  {}   OLD/OLD {}{mark}\n", show(new), show(old));
    }
    (lines, marked.len())
}

/// Returns the median, and the two values that enclose it with 95 % confidence.
///
/// The bounds follow from the sign test. Each of `n` values is above the median with
/// probability 1/2. The `k`-th lowest therefore exceeds the median with the probability of fewer than `k`
/// heads in `n` throws; likewise at the other end. Holds for any distribution. Source: W. J. Conover,
/// "Practical Nonparametric Statistics", 3rd edition, 1999, section 3.2.
pub fn interval(values: &[f64]) -> (f64, f64, f64) {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len();
    let (mut outside, mut term, mut k) = (0.0, 0.5_f64.powi(n as i32), 0);
    // `term` is the probability of `k` heads; both ends together may miss the median in 5 % of cases.
    while k < n / 2 && 2.0 * (outside + term) <= 0.05 {
        outside += term;
        term *= (n - k) as f64 / (k + 1) as f64;
        k += 1;
    }
    let at = k.saturating_sub(1);
    (sorted[at], (sorted[(n - 1) / 2] + sorted[n / 2]) / 2.0, sorted[n - 1 - at])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_match_the_sign_test() {
        let numbers: Vec<f64> = (1..=40).rev().map(f64::from).collect();
        // Ranks as in tables of the sign test: 1 of 6, 2 of 10, 3 of 12, 6 of 20, 14 of 40.
        for (n, rank) in [(6, 1.0), (10, 2.0), (12, 3.0), (20, 6.0), (40, 14.0)] {
            let values = &numbers[40 - n..];
            assert_eq!(interval(values), (rank, (n as f64 + 1.0) / 2.0, n as f64 + 1.0 - rank), "{n}");
        }
    }

    #[test]
    fn rows_that_may_be_slower_are_marked() {
        let ratios = |new: f64| Ratios { new_to_old: vec![new; 12], old_to_old: vec![1.0; 6] };
        let rows = BTreeMap::from([("a".into(), ratios(1.0)), ("bb".into(), ratios(1.04))]);
        let (lines, marked) = report(&rows);
        assert_eq!(marked, 1);
        assert_eq!(
            lines,
            "a   1.000 [1.000, 1.000]   OLD/OLD 1.000 [1.000, 1.000]\n\
             bb  1.040 [1.040, 1.040]   OLD/OLD 1.000 [1.000, 1.000]   <- not below 1.03\n"
        );
    }
}
