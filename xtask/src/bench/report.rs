//! Reports: a line on a terminal for each row, and a JSON object.

use super::results::{Role, Row};
use anyhow::Result;
use std::collections::BTreeMap;
use std::fmt::Write;

/// A number with three digits that count.
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

/// One flat JSON object of numbers, for scripts, its keys in order.
///
/// | key | value |
/// |---|---|
/// | `workload:contender:unit` | the median |
/// | `workload:contender:spread` | highest less lowest, as a share of the median |
/// | `workload:ours/contender` | how many times faster ours is |
/// | `workload:count:name` | what was counted: bytes copied for each byte or operation, busy cores, hit rate |
pub fn json(rows: &[Row]) -> Result<String> {
    let mut numbers: BTreeMap<String, f64> = BTreeMap::new();
    for row in rows {
        let name = &row.name;
        for entry in &row.entries {
            let contender = entry.name;
            numbers.insert(format!("{name}:{contender}:{}", row.unit.symbol()), entry.summary.median);
            numbers.insert(format!("{name}:{contender}:spread"), entry.summary.spread());
        }
        for (contender, ratio) in row.ratios() {
            numbers.insert(format!("{name}:ours/{contender}"), ratio);
        }
        for (count, value) in &row.counts {
            numbers.insert(format!("{name}:count:{count}"), *value);
        }
    }
    numbers.retain(|_, value| value.is_finite());
    Ok(serde_json::to_string_pretty(&numbers)? + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::measure::Unit;
    use crate::bench::results::row_of;

    #[test]
    fn three_digits_count() {
        let numbers = [0.0, 0.001_234, 0.12345, 1.2345, 12.345, 123.45, 12345.6];
        assert_eq!(numbers.map(digits), ["0", "1.2e-3", "0.123", "1.23", "12.3", "123", "12346"]);
    }

    #[test]
    fn lines_and_the_object_have_all_contenders() {
        let mut row = row_of("bulk/read", Unit::GigabytesPerSecond, Some(40.0), &[("bus", 50.0)]);
        (row.entries[0].summary.low, row.entries[0].summary.high) = (38.0, 42.0);
        row.counts.extend([("cores", 2.5), ("hit_rate", f64::NAN)]);
        let words = line(&row).split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(words, "bulk/read 40.0 GB/s ±5 % bus 50.0 (0.800x) 2.50 cores");
        let limit = row_of("limits/down", Unit::GigabytesPerSecond, None, &[("queued", 50.0)]);
        assert!(line(&limit).ends_with("queued 50.0 GB/s"));
        let object: BTreeMap<String, f64> = serde_json::from_str(&json(&[row]).unwrap()).unwrap();
        let wanted = [
            ("bulk/read:bus:GB/s", 50.0),
            ("bulk/read:bus:spread", 0.0),
            ("bulk/read:count:cores", 2.5),
            ("bulk/read:ours/bus", 0.8),
            ("bulk/read:ours:GB/s", 40.0),
            ("bulk/read:ours:spread", 0.1),
        ];
        assert!(object.iter().map(|(key, value)| (key.as_str(), *value)).eq(wanted), "{object:?}");
    }
}
