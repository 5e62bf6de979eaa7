//! Reader of the report that nextest writes: the counts of a test run.

use anyhow::{Context, Result};
use std::path::{Path, PathBuf};

/// The number of tests that ran, and the number of failed ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub run: usize,
    pub failed: usize,
}

impl Counts {
    /// Adds the counts of another run.
    pub fn add(&mut self, other: Self) {
        self.run += other.run;
        self.failed += other.failed;
    }

    /// Reads the counts from the first element of a JUnit report.
    pub fn read(file: &Path) -> Result<Self> {
        let text =
            std::fs::read_to_string(file).with_context(|| format!("no report at {}", file.display()))?;
        parse(&text).with_context(|| format!("no counts in {}", file.display()))
    }
}

/// Returns the path of nextest's report for a profile, which is in nextest's own folder.
pub fn report(profile: &str) -> PathBuf {
    crate::project::root().join("target/nextest").join(profile).join("junit.xml")
}

fn parse(text: &str) -> Option<Counts> {
    let from = text.find("<testsuites")?;
    let element = &text[from..from + text[from..].find('>')?];
    let number = |name: &str| -> Option<usize> {
        let key = format!(" {name}=\"");
        let value = &element[element.find(&key)? + key.len()..];
        value[..value.find('"')?].parse().ok()
    };
    Some(Counts { run: number("tests")?, failed: number("failures")? + number("errors").unwrap_or(0) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_come_from_the_outer_element() {
        let text = r#"<?xml version="1.0"?>
<testsuites name="nextest-run" tests="12" failures="2" errors="1" time="0.5">
  <testsuite name="inner" tests="7" failures="0"/></testsuites>"#;
        assert_eq!(parse(text), Some(Counts { run: 12, failed: 3 }));
        assert_eq!(parse("<testsuite tests=\"1\"/>"), None);
    }
}
