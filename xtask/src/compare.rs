//! `cargo xtask compare`: runs two builds of the benchmarks alternately on one machine (see [`turns`]).

use crate::arrays::CompareArgs;
use crate::bench;
use crate::turns::{self, Times};
use anyhow::{Result, bail};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

/// The bound that a row's interval must stay below; otherwise the row is marked.
const BOUND: f64 = 1.03;

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
        turns::rows(&command, &|_| true, &|| true, &mut |name, times| {
            rows.insert(name, times);
        })?;
    }
    if rows.is_empty() {
        bail!("the programs OLD and NEW have no selected workload in common");
    }
    let (lines, marked) = report(&rows);
    print!("{lines}");
    println!("{marked} of {} workloads are not proven to take less than {BOUND} of the time", rows.len());
    Ok(())
}

/// Returns the command that starts the build `program` for alternating measurements of all workloads whose
/// names begin with one of `only`.
pub fn in_turns(program: &Path, only: &[&str], options: &[String]) -> Command {
    let mut command = Command::new(program);
    command.args(["bench", "--in-turns"]).args(only.iter().flat_map(|name| ["--only", name])).args(options);
    command
}

/// Returns a line for each row, and the number of marked ones.
fn report(rows: &BTreeMap<String, Times>) -> (String, usize) {
    let width = rows.keys().map(String::len).max().unwrap_or(0);
    let show = |[low, median, high]: [f64; 3]| format!("{median:.3} [{low:.3}, {high:.3}]");
    let (mut lines, mut marked) = (String::new(), BTreeSet::new());
    for (name, times) in rows {
        let (new, old) = (times.new_to_old(), times.old_to_old());
        let mut mark = "";
        if new[2] >= BOUND {
            marked.insert(name);
            mark = "   <- not below 1.03";
        }
        lines += &format!("{name:width$}  {}   OLD/OLD {}{mark}\n", show(new), show(old));
    }
    (lines, marked.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_may_be_slower_are_marked() {
        let times = |new: f64| Times { old: [1.0; 5], new: [new; 5] };
        let rows = BTreeMap::from([("a".into(), times(1.0)), ("bb".into(), times(1.04))]);
        let (lines, marked) = report(&rows);
        assert_eq!(marked, 1);
        assert_eq!(
            lines,
            "a   1.000 [1.000, 1.000]   OLD/OLD 1.000 [1.000, 1.000]\n\
             bb  1.040 [1.040, 1.040]   OLD/OLD 1.000 [1.000, 1.000]   <- not below 1.03\n"
        );
    }
}
