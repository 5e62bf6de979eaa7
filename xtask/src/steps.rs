//! Runs the named steps of a command, times them, and prints a table at the end. If a step fails, the next
//! steps still run.

use anyhow::{Context, Result, bail};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The maximum length of a note in the table, in characters. The whole note is printed when the step ends.
const NOTE_MAX: usize = 80;

/// The result of a step of a command such as `cargo xtask ci`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The step ran and found no fault; the text describes its coverage, and may be empty.
    Passed(String),
    /// The step could not run on this machine; the text is the reason. Never silent: the table and the
    /// last line name it.
    Skipped(String),
    /// The step found a fault.
    Failed(String),
}

impl Outcome {
    /// Returns the outcome of a passed step, with an empty text.
    pub fn passed() -> Self {
        Self::Passed(String::new())
    }

    /// Returns the outcome's word in the table, such as "ok", and its note.
    fn words(&self) -> (&'static str, &str) {
        match self {
            Self::Passed(note) => ("ok", note),
            Self::Failed(note) => ("FAILED", note),
            Self::Skipped(note) => ("SKIPPED, NOT CHECKED", note),
        }
    }

    /// Prints the text of the outcome: the coverage, or the reason why the check could not run.
    pub fn print(self) {
        eprintln!("{}", self.words().1);
    }
}

impl From<Result<Self>> for Outcome {
    fn from(result: Result<Self>) -> Self {
        result.unwrap_or_else(|error| Self::Failed(format!("{error:#}")))
    }
}

struct Step {
    name: &'static str,
    outcome: Outcome,
    time: Duration,
}

/// The results of all steps of a command so far, for the table at its end.
pub struct Steps {
    done: Vec<Step>,
    start: Instant,
    /// The path of this program, determined at the start, because a step may replace the file.
    program: PathBuf,
}

impl Steps {
    /// Creates an empty list of results, and starts the clock of the total time.
    pub fn new() -> Self {
        let program = std::env::current_exe().unwrap_or_default();
        Self { done: Vec::new(), start: Instant::now(), program }
    }

    /// Runs the step `work`, prints and records its result under `name`. Returns true unless the step failed.
    pub fn run(&mut self, name: &'static str, work: impl FnOnce() -> Result<Outcome>) -> bool {
        eprintln!("\n==== {name} ====");
        let start = Instant::now();
        let outcome = Outcome::from(work());
        let (time, (words, note)) = (start.elapsed(), outcome.words());
        eprintln!("==== {name} in {:.1} s {words}: {note}", time.as_secs_f64());
        let goes_on = !matches!(outcome, Outcome::Failed(_));
        self.done.push(Step { name, outcome, time });
        goes_on
    }

    /// Runs `work`, and meanwhile `commands` of xtask as further named steps. While `work` runs, one command
    /// runs at a time, at a lower priority, so that it takes the cores that `work` leaves idle; after `work`,
    /// two run. Prints the output of a command when the command ends.
    pub fn beside(&mut self, commands: &[(&'static str, &[&str])], work: impl FnOnce(&mut Self)) {
        let (program, waiting, done) =
            (self.program.clone(), Mutex::new(commands.iter()), Mutex::new(Vec::new()));
        let run_waiting = || {
            loop {
                let next = waiting.lock().unwrap_or_else(PoisonError::into_inner).next();
                let Some((name, arguments)) = next else { break };
                let step = command(&program, name, arguments);
                done.lock().unwrap_or_else(PoisonError::into_inner).push(step);
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(run_waiting);
            work(self);
            run_waiting();
        });
        self.done.extend(done.into_inner().unwrap_or_else(PoisonError::into_inner));
    }

    /// Prints the table of all steps. Returns an error that names the failed steps, if any.
    pub fn finish(self) -> Result<()> {
        eprint!("\n{}", self.table());
        let names = |is: fn(&Outcome) -> bool| -> Vec<&str> {
            self.done.iter().filter(|step| is(&step.outcome)).map(|step| step.name).collect()
        };
        let skipped = names(|outcome| matches!(outcome, Outcome::Skipped(_)));
        if !skipped.is_empty() {
            eprintln!("NOT CHECKED on this machine: {}", skipped.join(", "));
        }
        let failed = names(|outcome| matches!(outcome, Outcome::Failed(_)));
        if !failed.is_empty() {
            bail!("failed: {}", failed.join(", "));
        }
        Ok(())
    }

    fn table(&self) -> String {
        let width = self.done.iter().map(|step| step.name.len()).max().unwrap_or(0);
        let mut text = String::new();
        for Step { name, outcome, time } in &self.done {
            let (words, note) = outcome.words();
            let state = words.split(',').next().unwrap_or_default();
            let first = note.lines().next().unwrap_or_default();
            let mut note: String = first.chars().take(NOTE_MAX).collect();
            if note.len() < first.len() {
                note.push('…');
            }
            let line = format!("{name:width$}  {state:7}  {:7.1} s  {note}", time.as_secs_f64());
            let _ = writeln!(text, "{}", line.trim_end());
        }
        let _ = writeln!(text, "{:width$}  {:7}  {:7.1} s", "total", "", self.start.elapsed().as_secs_f64());
        text
    }
}

/// Runs a command of this program, and parses the result of its step from the output.
fn command(program: &Path, name: &'static str, arguments: &[&str]) -> Step {
    let start = Instant::now();
    let run = || -> Result<Outcome> {
        let output = behind(program).args(arguments).output()?;
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        eprint!("\n==== {name}, beside the steps above ====\n{out}{err}");
        ended(name, &err)
            .with_context(|| format!("the command of the step `{name}` ended with {}", output.status))
    };
    Step { name, outcome: run().into(), time: start.elapsed() }
}

/// Returns the command that runs a program at a lower priority than this process, on Unix. If both compete
/// for a core, the program gets a quarter of its time, so the program's tests do not starve.
fn behind(program: &Path) -> Command {
    if cfg!(not(unix)) {
        return Command::new(program);
    }
    let mut command = Command::new("nice");
    command.args(["-n", "5"]).arg(program);
    command
}

/// Returns the result of a named step, from the line about its end.
fn ended(name: &str, printed: &str) -> Option<Outcome> {
    let begins = format!("==== {name} in ");
    let line = printed.lines().find_map(|line| line.strip_prefix(&begins)?.split_once(" s "))?.1;
    let (words, note) = line.split_once(": ")?;
    let kinds = [Outcome::Passed, Outcome::Failed, Outcome::Skipped];
    kinds.map(|kind| kind(note.into())).into_iter().find(|outcome| outcome.words().0 == words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;

    #[test]
    fn every_step_runs_and_only_failed_ones_fail_the_whole() {
        let mut steps = Steps::new();
        assert!(steps.run("first", || Ok(Outcome::passed())));
        assert!(steps.run("second", || Ok(Outcome::Skipped("no tool".into()))));
        assert!(Steps { done: steps.done.drain(..).collect(), ..Steps::new() }.finish().is_ok());
        assert!(!steps.run("third", || Err(anyhow!("broken"))));
        let table = steps.table();
        let line = table.lines().next().unwrap();
        assert!(line.contains("FAILED") && line.ends_with("broken"), "{table}");
        assert_eq!(steps.finish().unwrap_err().to_string(), "failed: third");
    }

    #[cfg(unix)]
    #[test]
    fn commands_beside_other_steps_have_a_lower_priority() {
        // Without arguments, `nice` prints its priority; a greater number is a lower priority.
        let priority = |mut command: Command| -> i32 {
            String::from_utf8(command.output().unwrap().stdout).unwrap().trim().parse().unwrap()
        };
        let (own, beside) = (priority(Command::new("nice")), priority(behind(Path::new("nice"))));
        assert_eq!(beside, (own + 5).min(19));
    }

    #[test]
    fn the_end_of_a_step_is_read_from_its_output() {
        let ended = |line: &str| ended("Miri", &format!("x\n{line}\ny"));
        assert_eq!(ended("==== Miri in 1.5 s ok: a: sample"), Some(Outcome::Passed("a: sample".into())));
        let skipped = ended("==== Miri in 0.0 s SKIPPED, NOT CHECKED: none");
        assert_eq!(skipped, Some(Outcome::Skipped("none".into())));
        assert_eq!(ended("==== tests in 0.0 s ok: all"), None);
    }
}
