//! `cargo xtask compare`: two builds of the benchmarks, run in turns on one machine.
//!
//! Each round runs OLD, NEW, NEW, OLD, so that slow drifts (clock speed, temperature, other tenants)
//! affect both alike. A round yields two ratios of NEW to OLD, and one of OLD to OLD, which shows the
//! machine's noise.

use crate::arrays::CompareArgs;
use crate::bench::results::{Measurements, Row};
use anyhow::{Context, Result, bail};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, Stdio};

/// The upper bound of an interval.
const BOUND: f64 = 1.03;
/// The results of one run: the time of a unit of work, by workload.
type Times = BTreeMap<String, f64>;

/// The ratios between the times of two builds for one workload.
#[derive(Default)]
pub struct Ratios {
    /// Ratios of NEW's time to OLD's time, two for each round.
    pub new_to_old: Vec<f64>,
    /// Ratios of the second time of OLD to the first one, one for each round.
    pub old_to_old: Vec<f64>,
}

/// Runs `cargo xtask compare`.
pub fn run(args: CompareArgs) -> Result<()> {
    let quick = ["--quick".to_string()];
    let options = if args.options.is_empty() { &quick[..] } else { &args.options };
    let rows = in_turns(&args.old, &args.new, args.rounds, &args.filter, options)?;
    let (lines, marked) = report(&rows);
    print!("{lines}");
    println!("{marked} of {} workloads are not proven to take less than {BOUND} of the time", rows.len());
    Ok(())
}

/// Returns the ratios of the workloads that both programs have, from `rounds` rounds of OLD, NEW, NEW, OLD.
pub fn in_turns(
    old: &Path,
    new: &Path,
    rounds: u64,
    filter: &[String],
    options: &[String],
) -> Result<BTreeMap<String, Ratios>> {
    let mut rows: BTreeMap<String, Ratios> = BTreeMap::new();
    for round in 1..=rounds {
        eprintln!("round {round} of {rounds}");
        let [a, b, c, d] = [old, new, new, old].map(|program| measure(program, filter, options));
        let (a, b, c, d) = (a?, b?, c?, d?);
        for (name, first) in &a {
            if let (Some(second), Some(third), Some(last)) = (b.get(name), c.get(name), d.get(name)) {
                let row = rows.entry(name.clone()).or_default();
                row.new_to_old.extend([second / first, third / last]);
                row.old_to_old.push(last / first);
            }
        }
    }
    if rows.is_empty() {
        bail!("the programs have no workload in common");
    }
    Ok(rows)
}

/// Runs one program once.
fn measure(program: &Path, filter: &[String], options: &[String]) -> Result<Times> {
    let json = std::env::temp_dir().join(format!("vmarray-compare-{}.json", std::process::id()));
    let status = Command::new(program)
        .args(["bench", "--workloads", "--json"])
        .arg(&json)
        .args(filter.iter().flat_map(|name| ["--only", name]))
        .args(options)
        .stdout(Stdio::null())
        .status()
        .with_context(|| format!("{} cannot be started", program.display()))?;
    if !status.success() {
        bail!("`{} bench` ended with {status}", program.display());
    }
    let measured = Measurements::read(&json)?;
    std::fs::remove_file(&json)?;
    Ok(times(&measured.rows))
}

/// Returns our times; rates are inverted.
fn times(rows: &[Row]) -> Times {
    let time =
        |row: &Row| Some((row.name.clone(), 1.0 / row.unit.speed_ratio(row.base()?.summary.median, 1.0)));
    rows.iter().filter_map(time).collect()
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
    use crate::bench::measure::Unit;
    use crate::bench::results::row_of;

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

    #[test]
    fn rates_become_times() {
        let rows = [
            row_of("a", Unit::Nanoseconds, Some(4.0), &[]),
            row_of("b/c", Unit::GigabytesPerSecond, Some(4.0), &[("vec", 2.0)]),
            row_of("d", Unit::Nanoseconds, None, &[("vec", 1.0)]),
        ];
        assert_eq!(times(&rows), BTreeMap::from([("a".to_string(), 4.0), ("b/c".to_string(), 0.25)]));
    }
}
