//! Rows of a benchmark run: each row measures several contenders (the array, and other software) with the
//! same work, and keeps their results.

use super::measure::{Sample, Series, Summary, repeat};
pub use super::record::{Entry, Measurements, Role, Row};
use crate::turns;
use anyhow::Result;
use vmarray::stats::ChannelStats;
use vmarray::{Element, VirtualArray};

/// A contender (the array or other software): its name, its role, and a function that runs one repetition.
pub type Contender<'a> = (&'static str, Role, &'a mut dyn FnMut() -> Result<Sample>);

impl Row {
    /// True if the run does not measure a contender with this role.
    fn omits(&self, role: Role) -> bool {
        self.is_in_turns && role != Role::Ours
    }

    /// Measures the array each time that the driver asks for it.
    fn serve(&self, mut run: impl FnMut() -> Result<Sample>) -> Result<()> {
        let time = |result| 1.0 / self.unit.speed_ratio(result, 1.0);
        turns::serve(&self.name, || Ok(time(self.unit.of(&run()?))))
    }

    /// Measures a contender (the array or other software), and adds its result to the row of the workload.
    /// Does nothing if the run leaves out `role`. If `is_in_turns`, only answers the parent process.
    pub fn measure(
        &mut self,
        name: &'static str,
        role: Role,
        run: impl FnMut() -> Result<Sample>,
    ) -> Result<Series> {
        if self.omits(role) {
            return Ok(Series::default());
        }
        if self.is_in_turns {
            return self.serve(run).map(|()| Series::default());
        }
        let series = repeat(&self.effort, run)?;
        if let Some(summary) = series.summary(self.unit) {
            self.add(name, role, summary);
        }
        Ok(series)
    }

    /// Measures `contenders` (the array and other software) alternately, so that changes of the machine's
    /// speed affect all. Each runs once as a warm-up, and then as often as `effort` requires.
    pub fn measure_in_turn(&mut self, contenders: &mut [Contender<'_>]) -> Result<()> {
        if self.is_in_turns {
            let ours = contenders.iter_mut().find(|(_, role, _)| *role == Role::Ours);
            return ours.map_or(Ok(()), |(_, _, run)| self.serve(run));
        }
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

    pub fn add(&mut self, name: &str, role: Role, summary: Summary) {
        debug_assert!(super::report::meaning(name).is_some(), "`CONTENDERS` lacks {name}");
        if self.omits(role) {
            return;
        }
        self.entries.push(Entry { name: name.into(), version: None, role, summary });
    }

    /// Measures `array` by `run` and adds the result to the row. Also adds the counts of page misses,
    /// submissions and copied bytes, each divided by the amount of work.
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

    /// Adds the busy cores, and the bytes that a source (memory of the program) copied for each byte of work.
    pub fn count_source(&mut self, total: &ChannelStats, series: &Series) {
        let amount = series.amount.max(1.0);
        self.count([
            ("cores", series.cores()),
            ("to_device_bytes_per_unit", total.bytes_to_device as f64 / amount),
            ("from_device_bytes_per_unit", total.bytes_from_device as f64 / amount),
        ]);
    }

    /// Adds further named numbers to the results of the workload, if they are finite.
    pub fn count(&mut self, counts: impl IntoIterator<Item = (&'static str, f64)>) {
        let counts = counts.into_iter().filter(|(_, value)| value.is_finite());
        self.counts.extend(counts.map(|(name, value)| (name.into(), value)));
    }

    /// Measures other software that does the array's work, and adds its result to the row.
    pub fn other(&mut self, name: &'static str, run: impl FnMut() -> Result<Sample>) -> Result<()> {
        self.measure(name, Role::Alternative, run).map(drop)
    }

    /// Adds `summary`, a measured limit in the unit of this workload, to the row.
    pub fn limit(&mut self, name: &'static str, summary: Result<Summary>) -> Result<()> {
        self.add(name, Role::Limit, summary?);
        Ok(())
    }
}

/// Creates a row for tests: the array's result, if any, and the limits.
#[cfg(test)]
pub fn row_of(
    name: &str,
    unit: super::record::Unit,
    ours: Option<f64>,
    limits: &[(&'static str, f64)],
) -> Row {
    let mut row = Row::new(name.into(), unit, super::record::Effort::default());
    let summary = |value| Summary { median: value, low: value, high: value, runs: 1 };
    ours.into_iter().for_each(|value| row.add("ours", Role::Ours, summary(value)));
    limits.iter().for_each(|(name, value)| row.add(name, Role::Limit, summary(*value)));
    row
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::measure::Unit;

    #[test]
    fn rows_in_turns_run_no_other_contender() {
        let mut row = row_of("find/u32", Unit::Nanoseconds, None, &[]);
        row.is_in_turns = true;
        row.other("vec", || panic!("runs")).unwrap();
        row.limit("bus", Ok(Summary::NONE)).unwrap();
        row.measure_in_turn(&mut [("vec", Role::Alternative, &mut || panic!("runs"))]).unwrap();
        assert!(row.entries.is_empty());
    }

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
