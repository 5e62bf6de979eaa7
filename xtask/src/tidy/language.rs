//! Counts the lines of comments and documentation that contain certain words, and compares the counts with
//! the budget in `language-budget.toml`.
//!
//! The check fails if a word exceeds both its budget (a number of lines) and its goal (lines per thousand).
//! Budgets only fall: [`Budget::tighten`] lowers them to the present counts.

use super::prose;
use crate::project;
use anyhow::{Context, Result};
use regex::Regex;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

/// The file with budgets, goals and exempt paths, relative to the workspace.
const FILE: &str = "xtask/language-budget.toml";

/// A word, or several words, whose lines are counted.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Word {
    /// A regular expression without regard to case.
    pattern: String,
    /// The intended number of lines with the word, per thousand lines.
    goal: f64,
    /// The number of lines that may contain the word at present.
    budget: usize,
}

/// The budget (maximum number of lines) and the goal of each word, and the paths that the check skips.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    /// Files and folders that are not measured because a later change deletes them; without `.rs`.
    exempt: Vec<String>,
    word: BTreeMap<String, Word>,
}

/// The number of lines of prose in a set of files, and the number of lines that contain each word.
#[derive(Default)]
pub struct Counts {
    lines: usize,
    /// For each file, and for each word in order, the numbers of the lines that contain the word.
    files: BTreeMap<String, Vec<Vec<usize>>>,
    words: Vec<usize>,
}

impl Budget {
    /// Reads the budget of this workspace: the maximum number of lines that may contain each word.
    pub fn read() -> Result<Self> {
        let text = std::fs::read_to_string(project::root().join(FILE)).context(FILE)?;
        toml::from_str(&text).context(FILE)
    }

    /// Returns true if a file is left out of the measure.
    fn is_exempt(&self, name: &str) -> bool {
        self.exempt.iter().any(|path| {
            name.strip_prefix(path.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '.']))
        })
    }

    /// Counts the lines of prose that contain each word. Each file is a name and a text.
    pub fn count<'a>(&self, files: impl Iterator<Item = (&'a str, &'a str)>) -> Result<Counts> {
        let insensitive = |word: &Word| Regex::new(&format!("(?i){}", word.pattern));
        let patterns = self.word.values().map(insensitive).collect::<Result<Vec<_>, _>>().context(FILE)?;
        let mut counts = Counts { words: vec![0; patterns.len()], ..Counts::default() };
        for (name, text) in files.filter(|(name, _)| !self.is_exempt(name)) {
            let prose = prose::lines(name, text);
            counts.lines += prose.len();
            let holding = |pattern: &Regex| {
                prose.iter().filter(|(_, line)| pattern.is_match(line)).map(|(number, _)| *number).collect()
            };
            let held: Vec<Vec<usize>> = patterns.iter().map(holding).collect();
            for (sum, lines) in counts.words.iter_mut().zip(&held) {
                *sum += lines.len();
            }
            counts.files.insert(name.to_string(), held);
        }
        Ok(counts)
    }

    /// Returns an error message for each word that occurs in more lines than its budget and goal permit.
    pub fn faults(&self, counts: &Counts) -> Vec<String> {
        let exceeds = |word: &Word, count: usize| count > word.budget && counts.rate(count) > word.goal;
        let found = self.word.iter().zip(&counts.words).filter(|((_, word), count)| exceeds(word, **count));
        let sentence = |((name, word), count): ((&String, &Word), &usize)| {
            format!(
                "language: {count} lines of prose hold \"{name}\", and {FILE} allows {}; \
                 `cargo xtask tidy --language` lists them by file",
                word.budget
            )
        };
        found.map(sentence).collect()
    }

    /// Returns a note with the words whose budgets (maximum numbers of lines that contain the word) exceed
    /// the present numbers of lines; empty if there are none.
    pub fn slack(&self, counts: &Counts) -> String {
        let below = self.word.iter().zip(&counts.words).filter(|((_, word), count)| **count < word.budget);
        let list: Vec<_> =
            below.map(|((name, word), count)| format!("{name} {} to {count}", word.budget)).collect();
        match list.is_empty() {
            true => String::new(),
            false => format!("; `cargo xtask tidy --tighten` lowers the budget of {}", list.join(", ")),
        }
    }

    /// Lowers the maximum number of lines of each word in the budget file to the present count. Keeps the
    /// comments and the order of the file.
    pub fn tighten(&self, counts: &Counts) -> Result<()> {
        let path = project::root().join(FILE);
        let text = std::fs::read_to_string(&path)?;
        Ok(std::fs::write(path, self.tightened(&text, counts))?)
    }

    /// Returns the text of the budget file with lower budgets.
    fn tightened(&self, text: &str, counts: &Counts) -> String {
        let now: BTreeMap<_, _> = self.word.keys().map(String::as_str).zip(&counts.words).collect();
        let mut table = "";
        let mut lowered = String::new();
        for line in text.lines() {
            if let Some(name) = line.strip_prefix("[word.").and_then(|name| name.strip_suffix(']')) {
                table = name;
            }
            let budget = line.strip_prefix("budget = ").and_then(|budget| budget.parse::<usize>().ok());
            match (budget, now.get(table)) {
                (Some(budget), Some(now)) => {
                    let _ = writeln!(lowered, "budget = {}", budget.min(**now));
                }
                _ => lowered = lowered + line + "\n",
            }
        }
        lowered
    }

    /// Returns a table of words and rates, and the files with the most lines that contain a word. A path
    /// restricts the report to files below it. For the path of a file, the report lists the lines.
    pub fn report(&self, counts: &Counts, path: Option<&Path>) -> String {
        let mut text = format!("{:>7} lines of prose\n", counts.lines);
        let _ = writeln!(text, "{:>7} {:>7} {:>9} {:>6}  word", "lines", "budget", "per 1000", "goal");
        for ((name, word), count) in self.word.iter().zip(&counts.words) {
            let rate = counts.rate(*count);
            let _ = writeln!(text, "{count:>7} {:>7} {rate:>9.1} {:>6}  {name}", word.budget, word.goal);
        }
        let inside = |name: &str| path.is_none_or(|path| Path::new(name).starts_with(path));
        let mut files: Vec<_> = counts
            .files
            .iter()
            .map(|(name, held)| (held.iter().map(Vec::len).sum::<usize>(), name, held))
            .filter(|(sum, name, _)| *sum > 0 && inside(name))
            .collect();
        files.sort_by(|one, two| two.0.cmp(&one.0).then(one.1.cmp(two.1)));
        for (sum, name, held) in &files {
            let words = self.word.keys().zip(held.iter()).filter(|(_, lines)| !lines.is_empty());
            let list: Vec<_> = words.map(|(name, lines)| format!("{name} {}", lines.len())).collect();
            let _ = writeln!(text, "{sum:>7} {name}: {}", list.join(", "));
            if path == Some(Path::new(name)) {
                let words = self.word.keys().zip(held.iter());
                let mut lines: Vec<_> =
                    words.flat_map(|(word, lines)| lines.iter().map(move |line| (line, word))).collect();
                lines.sort();
                text.extend(lines.iter().map(|(line, word)| format!("{name}:{line}: {word}\n")));
            }
        }
        text
    }
}

impl Counts {
    /// Converts a count to lines per thousand.
    fn rate(&self, count: usize) -> f64 {
        count as f64 * 1000.0 / self.lines.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "exempt = [\"a/gone\"]\n# A comment.\n[word.those]\npattern = '\\bthose\\b'\ngoal = 5\nbudget = 2\n\
                        [word.what]\npattern = '\\bwhat\\b'\ngoal = 500\nbudget = 0\n";

    fn counts(budget: &Budget, text: &str) -> Counts {
        let files = ["a/gone.rs", "a/gone/b.rs", "a/gone_on.rs"].map(|name| (name, text));
        budget.count(files.into_iter()).expect("patterns are well-formed")
    }

    #[test]
    fn counts_fall_and_do_not_rise() {
        let budget: Budget = toml::from_str(TEXT).expect("the text is well-formed");
        let found = counts(&budget, "// Those and those.\n// What `those` are.\n// Neither.\n");
        assert_eq!((found.lines, &found.words[..]), (3, &[1, 1][..]), "one of three files is not exempt");
        // One of three lines is below the goal of the word "what".
        assert!(budget.faults(&found).is_empty());
        assert!(budget.slack(&found).contains("those 2 to 1"));
        let lowered = budget.tightened(TEXT, &found);
        assert_eq!(lowered, TEXT.replace("budget = 2", "budget = 1"));
        let faults = budget.faults(&counts(&budget, "// those\n// THOSE\n// what\n// those\n"));
        assert_eq!(faults.len(), 1, "{faults:?}");
        assert!(faults[0].contains("3 lines of prose hold \"those\""));
    }

    #[test]
    fn reports_list_the_worst_first() {
        let budget: Budget = toml::from_str(TEXT).expect("the text is well-formed");
        let files = [("a.rs", "// those\n"), ("b/c.md", "those\n\nwhat\n"), ("d.py", "# fine\n")];
        let found = budget.count(files.into_iter()).expect("patterns are well-formed");
        let report = budget.report(&found, None);
        assert!(report.ends_with("      2 b/c.md: those 1, what 1\n      1 a.rs: those 1\n"), "{report}");
        let report = budget.report(&found, Some(Path::new("b/c.md")));
        assert!(report.ends_with("b/c.md:1: those\nb/c.md:3: what\n"), "{report}");
    }

    #[test]
    fn the_budget_of_the_workspace_is_well_formed() {
        let budget = Budget::read().expect("the budget is well-formed");
        assert!(budget.word.values().all(|word| Regex::new(&word.pattern).is_ok()));
        for path in &budget.exempt {
            let path = project::root().join(path);
            assert!(
                path.exists() || path.with_extension("rs").exists(),
                "{} is exempt and gone",
                path.display()
            );
        }
    }
}
