//! Benchmark records: a run's results in a JSON file. Reading records does not need the feature `array`.

// Without the feature `array`, xtask only reads records, so some functions are unused.
#![cfg_attr(not(feature = "array"), allow(dead_code))]

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// A record: all results of one run of the benchmarks, as a file stores them.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Measurements {
    /// Facts about the run, such as its time, setup and machine, as names and values.
    pub about: Vec<(String, String)>,
    /// The workloads, in the order in which they ran.
    pub rows: Vec<Row>,
}

impl Measurements {
    /// Reads a file that [`write`](Self::write) has written.
    pub fn read(path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path).with_context(|| format!("{} cannot be read", path.display()))?;
        serde_json::from_slice(&bytes)
            .with_context(|| format!("{} is not a record of `bench --json`", path.display()))
    }

    /// Writes a file, as JSON.
    pub fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self)? + "\n";
        std::fs::write(path, text).with_context(|| format!("{} cannot be written", path.display()))
    }

    /// Returns the value of `name` in [`about`](Self::about), or `unknown` if the run has no such fact.
    pub fn fact(&self, name: &str) -> &str {
        self.about.iter().find(|(of, _)| of == name).map_or("unknown", |(_, value)| value)
    }
}

/// The role of a contender in a benchmark: the array, other software, or a limit of the hardware.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The array.
    Ours,
    /// The hardware's limit.
    Limit,
    /// Other software that does the same work.
    Alternative,
}

/// The result of one contender (the array, other software or a limit) in a workload.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Entry {
    /// Name of the contender (the array or its alternative): one of `CONTENDERS` in `bench/report.rs`, or the
    /// name of a program.
    pub name: String,
    /// The version, if the contender is a program or a driver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    pub role: Role,
    /// Summary of the repetitions.
    pub summary: Summary,
}

/// The results of one workload.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// Name of the workload: family, operation, sizes and threads, separated by `/`.
    pub name: String,
    /// Unit of all results of the workload.
    pub unit: Unit,
    /// Number and length of the repetitions in the workload.
    #[serde(skip)]
    pub effort: Effort,
    /// True if only the array is measured, each time that the parent process requests it (see `turns`).
    #[serde(skip)]
    pub is_in_turns: bool,
    /// The results of the array (first, if it was measured), of other software, and of limits.
    pub entries: Vec<Entry>,
    /// Further numbers by name: copies, bytes, busy cores.
    #[serde(default)]
    pub counts: Vec<(String, f64)>,
}

impl Row {
    /// Creates a row without entries.
    pub fn new(name: String, unit: Unit, effort: Effort) -> Self {
        Self { name, unit, effort, is_in_turns: false, entries: Vec::new(), counts: Vec::new() }
    }

    /// The name of the workload's family: the part of `name` before the first `/`.
    pub fn family(&self) -> &str {
        self.name.split('/').next().unwrap_or_default()
    }

    /// Returns the entry of the array, with which the report compares the other entries.
    pub fn base(&self) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.role == Role::Ours)
    }

    /// Returns all entries except for the array's, each with the factor by which the array is faster.
    pub fn ratios(&self) -> impl Iterator<Item = (&Entry, f64)> {
        let base = self.base().map(|entry| entry.summary.median);
        let others = self.entries.iter().filter(|entry| entry.role != Role::Ours);
        base.into_iter().flat_map(move |base| {
            others.clone().map(move |entry| (entry, self.unit.speed_ratio(base, entry.summary.median)))
        })
    }

    /// Returns the array's speed divided by the limit's; by the lowest limit if the workload has several.
    pub fn share_of_limit(&self) -> Option<f64> {
        let limits = self.ratios().filter(|(entry, _)| entry.role == Role::Limit);
        limits.map(|(_, ratio)| ratio).max_by(f64::total_cmp)
    }
}

/// The unit of a result. For rates more is better; for times less is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unit {
    /// 10^9 bytes a second.
    #[serde(rename = "GB/s")]
    GigabytesPerSecond,
    /// 10^9 operations a second.
    #[serde(rename = "G/s")]
    GigaPerSecond,
    /// 10^6 operations a second.
    #[serde(rename = "M/s")]
    MegaPerSecond,
    /// 10^3 operations a second.
    #[serde(rename = "k/s")]
    KiloPerSecond,
    /// Nanoseconds that one operation takes one thread.
    #[serde(rename = "ns")]
    Nanoseconds,
    /// Microseconds that one operation takes one thread.
    #[serde(rename = "us")]
    Microseconds,
    /// Milliseconds of the whole work.
    #[serde(rename = "ms")]
    Milliseconds,
    /// Seconds of the whole work.
    #[serde(rename = "s")]
    Seconds,
    /// Times as multiples of ours, for records that have only ratios.
    #[serde(rename = "relative")]
    Relative,
}

impl Unit {
    /// Returns the unit's symbol, its size in single operations, bytes or seconds, and true for a time, of
    /// which less is better.
    pub(super) fn parts(self) -> (&'static str, f64, bool) {
        match self {
            Self::GigabytesPerSecond => ("GB/s", 1e9, false),
            Self::GigaPerSecond => ("G/s", 1e9, false),
            Self::MegaPerSecond => ("M/s", 1e6, false),
            Self::KiloPerSecond => ("k/s", 1e3, false),
            Self::Nanoseconds => ("ns", 1e9, true),
            Self::Microseconds => ("us", 1e6, true),
            Self::Milliseconds => ("ms", 1e3, true),
            Self::Seconds => ("s", 1.0, true),
            Self::Relative => ("relative", 1.0, true),
        }
    }

    /// Returns the symbol of the unit, as in reports and in the output of peer programs.
    pub fn symbol(self) -> &'static str {
        self.parts().0
    }

    /// The speed of `ours` divided by the speed of `other`; for times, the inverse ratio of the values.
    pub fn speed_ratio(self, ours: f64, other: f64) -> f64 {
        if self.parts().2 { other / ours } else { ours / other }
    }
}

/// The median of several repetitions, and the lowest and the highest value.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The median. For an even number of values it is the mean of the two middle values.
    pub median: f64,
    pub low: f64,
    pub high: f64,
    /// The number of repetitions; 0 if a record has only the median.
    pub runs: usize,
}

impl Summary {
    /// The placeholder if nothing was measured.
    pub const NONE: Self = Self { median: 0.0, low: 0.0, high: 0.0, runs: 0 };

    /// Summarises at least one value; `None` for an empty list.
    pub fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (low, high) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median =
            if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 };
        Some(Self { median, low, high, runs: sorted.len() })
    }

    /// The difference between the highest and the lowest value, divided by the median; 0 if the median is 0.
    pub fn spread(&self) -> f64 {
        if self.median == 0.0 { 0.0 } else { (self.high - self.low) / self.median }
    }

    /// Returns the summary with all values multiplied by `factor`.
    pub fn scaled(&self, factor: f64) -> Self {
        Self { median: self.median * factor, low: self.low * factor, high: self.high * factor, ..*self }
    }
}

/// The number and the length of repetitions.
#[derive(Clone, Copy, Debug, Default)]
pub struct Effort {
    /// Number of repetitions, in addition to one warm-up.
    pub runs: usize,
    /// Length of a repetition in seconds, if the workload can choose it. A workload with much longer
    /// repetitions runs fewer of them.
    pub seconds: f64,
}

/// Formats a number with three significant digits.
pub fn digits(value: f64) -> String {
    match value.abs() {
        value if value == 0.0 || !value.is_finite() => format!("{value}"),
        size if size < 0.01 => format!("{value:.1e}"),
        size if size < 1.0 => format!("{value:.3}"),
        size if size < 10.0 => format!("{value:.2}"),
        size if size < 100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_spread() {
        assert_eq!(Summary::of(&[]), None);
        let odd = Summary { median: 2.0, low: 1.0, high: 3.0, runs: 3 };
        assert_eq!((Summary::of(&[3.0, 1.0, 2.0]), odd.spread()), (Some(odd), 1.0));
        assert_eq!(Summary::of(&[4.0, 1.0, 2.0, 100.0]).unwrap().median, 3.0);
        assert_eq!(Summary::of(&[0.0]).unwrap().spread(), 0.0);
    }

    #[test]
    fn three_digits_count() {
        let numbers = [0.0, 0.001_234, 0.12345, 1.2345, 12.345, 123.45, 12345.6];
        assert_eq!(numbers.map(digits), ["0", "1.2e-3", "0.123", "1.23", "12.3", "123", "12346"]);
    }
}
