//! Lines on a terminal.

use super::digits;
use crate::bench::results::{Role, Row};
use std::fmt::Write;

/// A row: its name, ours with its spread, and the others, each with how many times faster ours is.
pub fn line(row: &Row) -> String {
    let unit = row.unit.symbol();
    let mut line = format!("{:46}", row.name);
    for entry in &row.entries {
        let median = digits(entry.summary.median);
        let _ = match entry.role {
            Role::Ours => {
                write!(line, " {median:>7} {unit} ±{:.0} %", 50.0 * entry.summary.spread())
            }
            _ => match row.base() {
                Some(base) => {
                    let ratio = row.unit.speed_ratio(base.summary.median, entry.summary.median);
                    write!(line, "   {} {median} ({}x)", entry.name, digits(ratio))
                }
                None => write!(line, "   {} {median} {unit}", entry.name),
            },
        };
    }
    if let Some((_, cores)) = row.counts.iter().find(|(name, _)| *name == "cores") {
        let _ = write!(line, "   {} cores", digits(*cores));
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::measure::{Summary, Unit};
    use crate::bench::results::{Entry, exactly};

    #[test]
    fn a_line_has_all_contenders() {
        let mut row = Row::new("bulk/read".into(), Unit::GigabytesPerSecond);
        let summary = Summary { median: 40.0, low: 38.0, high: 42.0, runs: 3 };
        row.entries.push(Entry { name: "ours", role: Role::Ours, summary });
        row.limit("bus", exactly(50.0));
        row.counts.push(("cores", 2.5));
        let line = line(&row);
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(
            words,
            ["bulk/read", "40.0", "GB/s", "±5", "%", "bus", "50.0", "(0.800x)", "2.50", "cores"]
        );
    }

    #[test]
    fn limits_stand_alone() {
        let mut row = Row::new("limits/down".into(), Unit::GigabytesPerSecond);
        row.limit("queued", exactly(50.0));
        assert!(line(&row).ends_with("queued 50.0 GB/s"));
    }
}
