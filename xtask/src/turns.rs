//! Two programs that measure the same rows in turns.
//!
//! A driver starts both programs. Each sets up a row and then waits, so that one program measures while the
//! other is idle, and each sets up a row only once. A round is OLD, NEW, NEW, OLD, so that slow drifts (clock
//! speed, temperature, other tenants) affect both alike. It yields two ratios of NEW to OLD, and one of OLD
//! to OLD, which shows the machine's noise.
//!
//! A program prints `turn: row NAME` after it has set up a row. The driver then writes `go` or `next`. After
//! `go` the program measures once and prints `turn: time SECONDS`, the time of a unit of work. After `next`
//! it leaves the row. [`serve`] is the program's part.

use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// The beginning of the lines for the driver.
const MARK: &str = "turn: ";
/// The fewest rounds of a row. The least and the greatest of six ratios enclose the median with 95 %
/// confidence.
const ROUNDS_MIN: usize = 3;
/// The most rounds of a row.
const ROUNDS_MAX: usize = 12;

/// The ratios between the times of two programs for one row.
#[derive(Default)]
pub struct Ratios {
    /// Ratios of NEW's time to OLD's time, two for each round.
    pub new_to_old: Vec<f64>,
    /// Ratios of the second time of OLD to the first one, one for each round.
    pub old_to_old: Vec<f64>,
}

impl Ratios {
    /// Adds the four times of a round, in the order OLD, NEW, NEW, OLD.
    fn add(&mut self, [first, second, third, last]: [f64; 4]) {
        self.new_to_old.extend([second / first, third / last]);
        self.old_to_old.push(last / first);
    }

    /// Returns true if the row needs no further round after `seconds` have passed since `start`.
    fn is_enough(&self, start: Instant, seconds: f64) -> bool {
        let (rounds, spent) = (self.old_to_old.len(), start.elapsed());
        rounds >= ROUNDS_MAX || rounds >= ROUNDS_MIN && spent >= Duration::from_secs_f64(seconds)
    }
}

/// Serves a driver in a program: measures the row `name` each time that the driver asks for it.
///
/// `time` measures once, and returns the time of a unit of work in seconds, or in any unit that all builds
/// of the program share.
pub fn serve(name: &str, mut time: impl FnMut() -> Result<f64>) -> Result<()> {
    let answer = |text: String| -> Result<()> {
        let mut out = std::io::stdout().lock();
        writeln!(out, "{MARK}{text}")?;
        Ok(out.flush()?)
    };
    answer(format!("row {name}"))?;
    for line in std::io::stdin().lines() {
        match line?.as_str() {
            "go" => answer(format!("time {:e}", time()?))?,
            _ => return Ok(()),
        }
    }
    bail!("the driver has ended")
}

/// A running program.
struct Program {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    /// The lines without the mark, for the message about a failure.
    printed: Vec<String>,
}

impl Program {
    fn start(mut command: Command) -> Result<Self> {
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.with_context(|| format!("{command:?} cannot be started"))?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (input, output) = pipes.context("the program has no pipes")?;
        Ok(Self { child, input, output: BufReader::new(output).lines(), printed: Vec::new() })
    }

    /// Returns the rest of the next line with the mark, or `None` at the end of the output.
    fn marked(&mut self) -> Result<Option<String>> {
        for line in self.output.by_ref() {
            let line = line?;
            match line.strip_prefix(MARK) {
                Some(rest) => return Ok(Some(rest.to_owned())),
                None => self.printed.push(line),
            }
        }
        Ok(None)
    }

    /// Waits until the program has set up its next row. Returns the name, or `None` if the program has ended.
    fn row(&mut self) -> Result<Option<String>> {
        let Some(line) = self.marked()? else {
            let status = self.child.wait()?;
            ensure!(status.success(), "a program ended with {status}:\n{}", self.printed.join("\n"));
            return Ok(None);
        };
        let name = line.strip_prefix("row ").with_context(|| format!("{line:?} is not the name of a row"))?;
        Ok(Some(name.to_owned()))
    }

    /// Measures the current row once. Returns the time of a unit of work.
    fn time(&mut self) -> Result<f64> {
        writeln!(self.input, "go")?;
        let line = self.marked()?.unwrap_or_default();
        let time = line.strip_prefix("time ").and_then(|time| time.parse().ok());
        time.with_context(|| format!("a program did not measure its row:\n{}", self.printed.join("\n")))
    }

    /// Leaves the current row.
    fn leave(&mut self) -> Result<()> {
        Ok(writeln!(self.input, "next")?)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Both calls fail if the program has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The programs OLD and NEW, both running.
struct Pair([Program; 2]);

impl Pair {
    /// Starts both programs. `command` returns the command of OLD for 0, of NEW for 1.
    fn start(command: &dyn Fn(usize) -> Command) -> Result<Self> {
        Ok(Self([Program::start(command(0))?, Program::start(command(1))?]))
    }

    /// Waits for the next row that both programs have. Returns its name, or `None` at the end. Names the rows
    /// that only one of them has on standard error.
    fn row(&mut self) -> Result<Option<String>> {
        let Self([old, new]) = self;
        let Some(name) = old.row()? else { return Ok(None) };
        while let Some(other) = new.row()? {
            if other == name {
                return Ok(Some(name));
            }
            eprintln!("{other}: the other program has no such row here");
            new.leave()?;
        }
        eprintln!("{name}: the other program has no such row");
        Ok(None)
    }

    /// Measures the current row by the programs `order`.
    fn times<const N: usize>(&mut self, order: [usize; N]) -> Result<[f64; N]> {
        let mut times = [0.0; N];
        for (time, which) in times.iter_mut().zip(order) {
            *time = self.0[which].time()?;
        }
        Ok(times)
    }
}

/// Measures all rows of two programs in turns, each row for `seconds` and for three to twelve rounds.
/// `command` returns the command of OLD for 0, of NEW for 1.
pub fn rows(command: &dyn Fn(usize) -> Command, seconds: f64) -> Result<BTreeMap<String, Ratios>> {
    let mut rows = BTreeMap::new();
    let mut pair = Pair::start(command)?;
    while let Some(name) = pair.row()? {
        let (start, mut ratios) = (Instant::now(), Ratios::default());
        // The first repetition of each program is slower, and does not count.
        pair.times([0, 1])?;
        while !ratios.is_enough(start, seconds) {
            ratios.add(pair.times([0, 1, 1, 0])?);
        }
        pair.0.iter_mut().try_for_each(Program::leave)?;
        rows.insert(name, ratios);
    }
    Ok(rows)
}

/// Measures the first row of two programs in turns, as [`rows`] does, but in a fresh process each time.
/// Returns `None` if the programs have no row in common.
pub fn first_calls(command: &dyn Fn(usize) -> Command, seconds: f64) -> Result<Option<(String, Ratios)>> {
    let (start, mut ratios) = (Instant::now(), Ratios::default());
    loop {
        let mut times = [0.0; 4];
        let mut row = None;
        for (times, order) in times.chunks_exact_mut(2).zip([[0, 1], [1, 0]]) {
            let mut pair = Pair::start(command)?;
            row = pair.row()?;
            if row.is_none() {
                return Ok(None);
            }
            times.copy_from_slice(&pair.times(order)?);
        }
        ratios.add(times);
        if ratios.is_enough(start, seconds) {
            return Ok(row.map(|name| (name, ratios)));
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    /// A program of rows whose times are constant.
    fn program(rows: &str) -> Command {
        let mut command = Command::new("sh");
        let script = r#"for row in $0; do
            echo "turn: row ${row%=*}"
            while read word && [ $word = go ]; do echo noise; echo "turn: time ${row#*=}"; done
        done"#;
        command.args(["-c", script, rows]);
        command
    }

    #[test]
    fn rows_of_both_programs_are_measured_in_turns() {
        let programs = |which: usize| program(["a=2 b=1 d=1", "a=3 c=7 b=1e0 d=0.5"][which]);
        let rows = rows(&programs, 0.0).unwrap();
        assert_eq!(rows.keys().collect::<Vec<_>>(), ["a", "b", "d"]);
        assert_eq!(rows["a"].new_to_old, [1.5; 6]);
        assert_eq!(rows["a"].old_to_old, [1.0; 3]);
        assert_eq!(rows["d"].new_to_old, [0.5; 6]);
    }

    #[test]
    fn first_calls_use_fresh_processes() {
        let (name, ratios) = first_calls(&|which| program(["a=2", "a=4"][which]), 0.0).unwrap().unwrap();
        assert_eq!((name.as_str(), ratios.new_to_old.as_slice()), ("a", &[2.0; 6][..]));
        assert!(first_calls(&|which| program(["a=2", ""][which]), 0.0).unwrap().is_none());
    }

    #[test]
    fn a_program_that_fails_is_an_error() {
        let fails = |_| {
            let mut command = Command::new("sh");
            command.args(["-c", "echo reason; exit 3"]);
            command
        };
        let error = rows(&fails, 0.0).map(drop).unwrap_err().to_string();
        assert!(error.contains("exit status: 3") && error.contains("reason"), "{error}");
        let silent = |_| program("a=x");
        assert!(rows(&silent, 0.0).is_err(), "a time that is no number");
    }
}
