//! Named steps, timed, with a table at the end. A failed step does not stop the next one.

use anyhow::{Result, bail};
use std::fmt::Write;
use std::time::{Duration, Instant};

/// The longest note in the table, in characters; the whole of it is printed when the step ends.
const NOTE_MAX: usize = 80;

/// How a step ended, if not with an error.
pub enum Outcome {
    /// It ran and found nothing wrong; the text says what was covered, and may be empty.
    Passed(String),
    /// It could not run on this machine, for the reason given. Never silent: the table and the last line name
    /// it.
    Skipped(String),
}

impl Outcome {
    /// Passed, with nothing to add.
    pub fn passed() -> Self {
        Self::Passed(String::new())
    }

    /// Prints what was covered, or why it could not run.
    pub fn print(self) {
        let (Self::Passed(note) | Self::Skipped(note)) = self;
        eprintln!("{note}");
    }
}

enum State {
    Passed,
    Failed,
    Skipped,
}

struct Step {
    name: &'static str,
    state: State,
    note: String,
    time: Duration,
}

/// The steps so far.
#[derive(Default)]
pub struct Steps {
    done: Vec<Step>,
}

impl Steps {
    /// Runs one step, prints how it ended and remembers it. True unless it failed.
    pub fn run(&mut self, name: &'static str, work: impl FnOnce() -> Result<Outcome>) -> bool {
        eprintln!("\n==== {name} ====");
        let start = Instant::now();
        let (state, note) = match work() {
            Ok(Outcome::Passed(note)) => (State::Passed, note),
            Ok(Outcome::Skipped(reason)) => (State::Skipped, reason),
            Err(error) => (State::Failed, format!("{error:#}")),
        };
        match state {
            State::Passed => {}
            State::Failed => eprintln!("==== {name} FAILED: {note}"),
            State::Skipped => eprintln!("==== {name} SKIPPED, NOT CHECKED: {note}"),
        }
        let passed = !matches!(state, State::Failed);
        self.done.push(Step { name, state, note, time: start.elapsed() });
        passed
    }

    /// Prints the table. An error names the failed steps.
    pub fn finish(self) -> Result<()> {
        eprint!("\n{}", self.table());
        let names = |wanted: fn(&State) -> bool| -> Vec<&str> {
            self.done.iter().filter(|step| wanted(&step.state)).map(|step| step.name).collect()
        };
        let skipped = names(|state| matches!(state, State::Skipped));
        if !skipped.is_empty() {
            eprintln!("NOT CHECKED on this machine: {}", skipped.join(", "));
        }
        let failed = names(|state| matches!(state, State::Failed));
        if !failed.is_empty() {
            bail!("failed: {}", failed.join(", "));
        }
        Ok(())
    }

    fn table(&self) -> String {
        let width = self.done.iter().map(|step| step.name.len()).max().unwrap_or(0);
        let mut text = String::new();
        for Step { name, state, note, time } in &self.done {
            let state = match state {
                State::Passed => "ok",
                State::Failed => "FAILED",
                State::Skipped => "SKIPPED",
            };
            let first = note.lines().next().unwrap_or_default();
            let mut note: String = first.chars().take(NOTE_MAX).collect();
            if note.len() < first.len() {
                note.push('…');
            }
            let line = format!("{name:width$}  {state:7}  {:7.1} s  {note}", time.as_secs_f64());
            let _ = writeln!(text, "{}", line.trim_end());
        }
        let total: Duration = self.done.iter().map(|step| step.time).sum();
        let _ = writeln!(text, "{:width$}  {:7}  {:7.1} s", "total", "", total.as_secs_f64());
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;

    #[test]
    fn every_step_runs_and_the_failed_ones_are_named() {
        let mut steps = Steps::default();
        assert!(steps.run("first", || Ok(Outcome::passed())));
        assert!(!steps.run("second", || Err(anyhow!("broken"))));
        assert!(steps.run("third", || Ok(Outcome::Skipped("no tool".into()))));
        let table = steps.table();
        assert_eq!(table.lines().count(), 4);
        assert!(table.lines().nth(1).is_some_and(|line| line.contains("FAILED") && line.ends_with("broken")));
        assert!(
            table.lines().nth(2).is_some_and(|line| line.contains("SKIPPED") && line.ends_with("no tool"))
        );
        let error = steps.finish().unwrap_err().to_string();
        assert_eq!(error, "failed: second");
    }

    #[test]
    fn a_skipped_step_is_no_failure() {
        let mut steps = Steps::default();
        steps.run("only", || Ok(Outcome::Skipped("absent".into())));
        assert!(steps.finish().is_ok());
    }
}
