//! State of a benchmark run that all families of workloads share: setup, limits, and measured rows.

use super::measure::Unit;
use super::plain::Plain;
use super::raw::Raw;
use super::report::line;
use super::results::{Measurements, Row};
use super::setup::Setup;
use anyhow::Result;
use std::rc::Rc;

/// The inputs and the results of all workloads of a run.
pub struct Bench {
    /// Devices, threads and sizes of the run.
    pub setup: Rc<Setup>,
    /// Measured limits of the devices.
    pub raw: Raw,
    /// Measurements of the same work on plain RAM.
    pub plain: Plain,
    /// Prefixes of the workloads to run; all if empty.
    pub only: Vec<String>,
    /// The workloads that were measured so far, with their results.
    pub measured: Measurements,
}

impl Bench {
    /// Returns true if the workload `name` is selected.
    pub fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| name.starts_with(only.as_str()))
    }

    /// Returns true if a workload may be selected whose name begins with `beginning`.
    pub fn wants_any(&self, beginning: &str) -> bool {
        self.wants(beginning) || self.only.iter().any(|only| only.starts_with(beginning))
    }

    /// Returns true if the run may include a workload `family/way/size…`, for any of `ways`.
    pub fn wants_ways(&self, family: &str, ways: &[&str], size: &str) -> bool {
        ways.iter().any(|way| self.wants_any(&format!("{family}/{way}/{size}")))
    }

    /// Runs the workload `name` if it is selected. `fill` measures the array and other software, and adds the
    /// results to the row.
    pub fn row(
        &mut self,
        name: impl Into<String>,
        unit: Unit,
        fill: impl FnOnce(&mut Self, &mut Row) -> Result<()>,
    ) -> Result<()> {
        let name = name.into();
        if !self.wants(&name) {
            return Ok(());
        }
        let mut row = Row::new(name, unit, self.setup.effort);
        row.is_in_turns = self.setup.is_in_turns;
        fill(self, &mut row)?;
        if !row.entries.is_empty() {
            println!("{}", line(&row));
            self.measured.rows.push(row);
        }
        Ok(())
    }
}

/// Formats a number of bytes for names of workloads.
pub fn size(bytes: usize) -> String {
    match bytes {
        0..1024 => format!("{bytes}B"),
        1024..1_048_576 => format!("{}KiB", bytes >> 10),
        _ => format!("{}MiB", bytes >> 20),
    }
}
