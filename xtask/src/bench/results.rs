//! Results: rows of contenders.

use super::measure::{Effort, Sample, Series, Summary, Unit, repeat};
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::path::Path;
use vmarray::{Element, VirtualArray};

/// All results of one run, as stored in a file.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Measurements {
    /// The time, the setup and the machine: names and values.
    pub about: Vec<(String, String)>,
    /// The workloads, in the order in which they ran.
    pub rows: Vec<Row>,
}

impl Measurements {
    /// Reads a file that [`write`](Self::write) has written.
    pub fn read(path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path).with_context(|| format!("{} cannot be read", path.display()))?;
        serde_json::from_slice(&bytes)
            .with_context(|| format!("{} is not what `bench --json` writes", path.display()))
    }

    /// Writes a file, as JSON.
    pub fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self)? + "\n";
        std::fs::write(path, text).with_context(|| format!("{} cannot be written", path.display()))
    }

    /// Returns a fact about the run.
    pub fn fact(&self, name: &str) -> &str {
        self.about.iter().find(|(of, _)| of == name).map_or("unknown", |(_, value)| value)
    }
}

/// The role of a contender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The array.
    Ours,
    /// The hardware's limit.
    Limit,
    /// An alternative.
    Alternative,
}

/// One contender's result.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Entry {
    /// Its name: one of [`CONTENDERS`](super::report::CONTENDERS).
    pub name: String,
    /// Its role.
    pub role: Role,
    /// Its repetitions.
    pub summary: Summary,
}

/// A contender that is measured in turn with others: its name, its role, and one repetition.
pub type Contender<'a> = (&'static str, Role, &'a mut dyn FnMut() -> Result<Sample>);

/// One workload.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// The name: family, operation, sizes, threads, separated by `/`.
    pub name: String,
    /// The unit of all its numbers.
    pub unit: Unit,
    /// The number and length of its repetitions.
    #[serde(skip)]
    pub effort: Effort,
    /// The contenders, ours first if it is among them.
    pub entries: Vec<Entry>,
    /// Further numbers by name: copies, bytes, busy cores.
    pub counts: Vec<(String, f64)>,
}

impl Row {
    /// A row without contenders.
    pub fn new(name: String, unit: Unit, effort: Effort) -> Self {
        Self { name, unit, effort, entries: Vec::new(), counts: Vec::new() }
    }

    /// The family's name.
    pub fn family(&self) -> &str {
        self.name.split('/').next().unwrap_or_default()
    }

    /// Measures a contender.
    pub fn measure(
        &mut self,
        name: &'static str,
        role: Role,
        run: impl FnMut() -> Result<Sample>,
    ) -> Result<Series> {
        let series = repeat(&self.effort, run)?;
        if let Some(summary) = series.summary(self.unit) {
            self.add(name, role, summary);
        }
        Ok(series)
    }

    /// Measures contenders in turn, so that changes of the machine affect all of them: once to warm up,
    /// then as often as the effort requires.
    pub fn measure_in_turn(&mut self, contenders: &mut [Contender<'_>]) -> Result<()> {
        let mut all: Vec<Series> = contenders.iter().map(|_| Series::default()).collect();
        for turn in 0..=self.effort.runs {
            for ((_, _, run), series) in contenders.iter_mut().zip(&mut all) {
                let sample = run()?;
                if turn > 0 {
                    series.samples.push(sample);
                }
            }
        }
        for ((name, role, _), series) in contenders.iter().zip(all) {
            if let Some(summary) = series.summary(self.unit) {
                self.add(name, *role, summary);
            }
        }
        Ok(())
    }

    /// Adds a contender's result.
    pub fn add(&mut self, name: &str, role: Role, summary: Summary) {
        debug_assert!(super::report::meaning(name).is_some(), "{name} is not in the legend");
        self.entries.push(Entry { name: name.into(), role, summary });
    }

    /// Measures the array, and the bytes that it copies for each byte, or each operation, of the work.
    pub fn ours<T: Element>(
        &mut self,
        array: &VirtualArray<T>,
        run: impl FnMut() -> Result<Sample>,
    ) -> Result<()> {
        array.reset_stats();
        let series = self.measure("ours", Role::Ours, run)?;
        let (stats, amount) = (array.stats(), series.amount.max(1.0));
        let total = stats.total();
        self.count([
            ("cores", series.cores()),
            ("fetched_bytes_per_unit", total.bytes_from_device as f64 / amount),
            ("written_bytes_per_unit", total.bytes_to_device as f64 / amount),
            ("misses_per_unit", total.misses as f64 / amount),
            ("submissions_per_unit", total.submissions as f64 / amount),
        ]);
        Ok(())
    }

    /// Adds further numbers, if they are finite.
    pub fn count(&mut self, counts: impl IntoIterator<Item = (&'static str, f64)>) {
        let counts = counts.into_iter().filter(|(_, value)| value.is_finite());
        self.counts.extend(counts.map(|(name, value)| (name.into(), value)));
    }

    /// Measures an alternative.
    pub fn other(&mut self, name: &'static str, run: impl FnMut() -> Result<Sample>) -> Result<()> {
        self.measure(name, Role::Alternative, run).map(drop)
    }

    /// Adds a known limit, in this row's unit.
    pub fn limit(&mut self, name: &'static str, summary: Result<Summary>) -> Result<()> {
        self.add(name, Role::Limit, summary?);
        Ok(())
    }

    /// The contender to compare with: the array.
    pub fn base(&self) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.role == Role::Ours)
    }

    /// All entries but ours, each with the factor by which ours is faster.
    pub fn ratios(&self) -> impl Iterator<Item = (&Entry, f64)> {
        let base = self.base().map(|entry| entry.summary.median);
        let others = self.entries.iter().filter(|entry| entry.role != Role::Ours);
        base.into_iter().flat_map(move |base| {
            others.clone().map(move |entry| (entry, self.unit.speed_ratio(base, entry.summary.median)))
        })
    }

    /// The share of the binding limit that ours reaches: the lowest of several limits.
    pub fn share_of_limit(&self) -> Option<f64> {
        let limits = self.ratios().filter(|(entry, _)| entry.role == Role::Limit);
        limits.map(|(_, ratio)| ratio).max_by(f64::total_cmp)
    }
}

/// Creates a row for tests, with the roles of the array and of limits.
#[cfg(test)]
pub fn row_of(name: &str, unit: Unit, ours: Option<f64>, limits: &[(&'static str, f64)]) -> Row {
    let mut row = Row::new(name.into(), unit, Effort::default());
    let summary = |value| Summary { median: value, low: value, high: value, runs: 1 };
    ours.into_iter().for_each(|value| row.add("ours", Role::Ours, summary(value)));
    limits.iter().for_each(|(name, value)| row.add(name, Role::Limit, summary(*value)));
    row
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_say_how_much_faster_ours_is() {
        let row = row_of("find/u32", Unit::Nanoseconds, Some(2.0), &[("vec", 1.0), ("peer", 16.0)]);
        let ratios = row.ratios().map(|(entry, ratio)| (&*entry.name, ratio));
        assert_eq!(ratios.collect::<Vec<_>>(), [("vec", 0.5), ("peer", 8.0)]);
        assert_eq!(row.share_of_limit(), Some(8.0), "the slower one binds");
        assert_eq!(row.family(), "find");
        assert_eq!(row_of("raw/x", Unit::KiloPerSecond, None, &[("raw", 1.0)]).ratios().count(), 0);
    }
}
