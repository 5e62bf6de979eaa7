//! What was measured: rows of contenders.

use super::measure::{Effort, Sample, Series, Summary, Unit, repeat};
use anyhow::Result;
use vmarray::{Element, VirtualArray};

/// What a contender stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The array.
    Ours,
    /// What the hardware allows.
    Limit,
    /// Another way to do it.
    Alternative,
}

/// One contender's result.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Its name: `ours`, `bus`, `vec`, …
    pub name: &'static str,
    /// What it stands for.
    pub role: Role,
    /// Its repetitions.
    pub summary: Summary,
}

/// One workload.
#[derive(Clone, Debug)]
pub struct Row {
    /// Its name: family, what is done, sizes, threads, separated by `/`.
    pub name: String,
    /// The unit of all its numbers.
    pub unit: Unit,
    /// How often and how long its contenders are measured.
    pub effort: Effort,
    /// Those that did it, ours first if it is among them.
    pub entries: Vec<Entry>,
    /// Further numbers by name: copies, bytes, busy cores.
    pub counts: Vec<(&'static str, f64)>,
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
            self.entries.push(Entry { name, role, summary });
        }
        Ok(series)
    }

    /// Measures the array, and what it has copied for each byte, or each operation, of the work.
    pub fn ours<T: Element>(
        &mut self,
        array: &VirtualArray<T>,
        run: impl FnMut() -> Result<Sample>,
    ) -> Result<()> {
        array.reset_stats();
        let series = self.measure("ours", Role::Ours, run)?;
        let (stats, amount) = (array.stats(), series.amount.max(1.0));
        let total = stats.total();
        self.counts.extend([
            ("cores", series.cores()),
            ("fetched_bytes_per_unit", total.bytes_from_device as f64 / amount),
            ("written_bytes_per_unit", total.bytes_to_device as f64 / amount),
            ("misses_per_unit", total.misses as f64 / amount),
            ("submissions_per_unit", total.submissions as f64 / amount),
        ]);
        Ok(())
    }

    /// Measures another way to do it.
    pub fn other(&mut self, name: &'static str, run: impl FnMut() -> Result<Sample>) -> Result<()> {
        self.measure(name, Role::Alternative, run).map(drop)
    }

    /// Notes a limit that was measured before, in this row's unit.
    pub fn limit(&mut self, name: &'static str, summary: Result<Summary>) -> Result<()> {
        self.entries.push(Entry { name, role: Role::Limit, summary: summary? });
        Ok(())
    }

    /// The contender that others are compared with: the array.
    pub fn base(&self) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.role == Role::Ours)
    }

    /// How many times faster ours is than each of the others.
    pub fn ratios(&self) -> impl Iterator<Item = (&'static str, f64)> + '_ {
        let base = self.base().map(|entry| entry.summary.median);
        let others = self.entries.iter().filter(|entry| entry.role != Role::Ours);
        base.into_iter().flat_map(move |base| {
            others.clone().map(move |entry| (entry.name, self.unit.speed_ratio(base, entry.summary.median)))
        })
    }
}

/// A row for tests: what is given, with the roles of the array and of limits.
#[cfg(test)]
pub fn row_of(name: &str, unit: Unit, ours: Option<f64>, limits: &[(&'static str, f64)]) -> Row {
    let mut row = Row::new(name.into(), unit, Effort { runs: 1, seconds: 0.0 });
    let entry = |name, role, value| Entry {
        name,
        role,
        summary: Summary { median: value, low: value, high: value, runs: 1 },
    };
    row.entries.extend(ours.map(|value| entry("ours", Role::Ours, value)));
    row.entries.extend(limits.iter().map(|(name, value)| entry(name, Role::Limit, *value)));
    row
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_say_how_much_faster_ours_is() {
        let row = row_of("find/u32", Unit::Nanoseconds, Some(2.0), &[("vec", 1.0), ("peer", 16.0)]);
        assert_eq!(row.ratios().collect::<Vec<_>>(), [("vec", 0.5), ("peer", 8.0)]);
        assert_eq!(row.family(), "find");
        assert_eq!(row_of("raw/x", Unit::KiloPerSecond, None, &[("raw", 1.0)]).ratios().count(), 0);
    }
}
