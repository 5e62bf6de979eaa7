//! One flat JSON object of numbers, for scripts.
//!
//! | key | value |
//! |---|---|
//! | `workload:contender:unit` | the median |
//! | `workload:contender:spread` | highest less lowest, as a share of the median |
//! | `workload:ours/contender` | how many times faster ours is |
//! | `workload:count:name` | what was counted: bytes copied for each byte or operation, busy cores, hit rate |

use crate::bench::results::Row;
use anyhow::Result;
use std::collections::BTreeMap;

/// The object as text, its keys in order.
pub fn text(rows: &[Row]) -> Result<String> {
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
    use crate::bench::results::{Entry, Role, exactly};

    #[test]
    fn the_object_is_flat_and_has_ratios() {
        let mut row = Row::new("find/all/4B".into(), Unit::GigabytesPerSecond);
        row.entries.push(Entry { name: "ours", role: Role::Ours, summary: exactly(30.0) });
        row.limit("vec", exactly(10.0));
        row.counts.extend([("hit_rate", 1.0), ("cores", f64::NAN)]);
        let object: BTreeMap<String, f64> = serde_json::from_str(&text(&[row]).unwrap()).unwrap();
        let keys: Vec<&str> = object.keys().map(String::as_str).collect();
        assert_eq!(
            keys,
            [
                "find/all/4B:count:hit_rate",
                "find/all/4B:ours/vec",
                "find/all/4B:ours:GB/s",
                "find/all/4B:ours:spread",
                "find/all/4B:vec:GB/s",
                "find/all/4B:vec:spread"
            ]
        );
        assert_eq!(object["find/all/4B:ours/vec"], 3.0);
    }
}
