//! Two programs that measure the same rows in turns.
//!
//! A driver starts both programs. Each sets up a row and then waits, so that one program measures while the
//! other is idle. The driver repeats this with fresh processes, because the place of memory makes a process
//! faster or slower than the next one for as long as it lives. Each pair of processes yields a ratio of NEW
//! to OLD; OLD in two pairs yields a ratio of OLD to OLD, which shows the machine's noise.
//!
//! A program prints `turn: row NAME` after it has set up a row. The driver then writes `go` or `next`. After
//! `go` the program measures once and prints `turn: time SECONDS`, the time of a unit of work. After `next`
//! it leaves the row. [`serve`] is the program's part.

use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

/// The beginning of the lines for the driver.
const MARK: &str = "turn: ";
/// The pairs of processes. The least and the greatest of six ratios enclose the median with 95 % confidence.
const PAIRS: usize = 6;
/// The seconds of measurements in a turn, and the most measurements.
const TURN: (f64, usize) = (0.1, 4);

/// The ratios between the times of two programs for one row.
#[derive(Default)]
pub struct Ratios {
    /// Ratios of NEW's time to OLD's time, one for each pair of processes.
    pub new_to_old: Vec<f64>,
    /// Ratios of OLD's times in one pair to OLD's times in the pair before.
    pub old_to_old: Vec<f64>,
}

impl Ratios {
    /// Returns the ratios of the times of OLD and NEW, pair by pair.
    fn of(times: &[[f64; 2]]) -> Self {
        Self {
            new_to_old: times.iter().map(|[old, new]| new / old).collect(),
            old_to_old: times.windows(2).map(|pairs| pairs[1][0] / pairs[0][0]).collect(),
        }
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

    /// Measures the current row for a turn. Returns the least time of a unit of work.
    ///
    /// The first measurement does not count, because it follows a turn of the other program, which has used
    /// the caches of the processor and the clocks of the devices. The least time depends less on other
    /// programs of the machine than the median does.
    fn turn(&mut self) -> Result<f64> {
        self.time()?;
        let (start, mut least) = (Instant::now(), f64::INFINITY);
        for _ in 0..TURN.1 {
            least = least.min(self.time()?);
            if start.elapsed().as_secs_f64() > TURN.0 {
                break;
            }
        }
        Ok(least)
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

/// The processes of OLD and NEW, both running.
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

    /// Measures the current row of both programs, in an order. Returns the times of OLD and NEW.
    fn measure(&mut self, order: [usize; 2], by: fn(&mut Program) -> Result<f64>) -> Result<[f64; 2]> {
        let mut times = [0.0; 2];
        for which in order {
            times[which] = by(&mut self.0[which])?;
        }
        Ok(times)
    }
}

/// Measures the rows of two programs whose names `is_wanted` accepts, in turns. `command` returns the
/// command of OLD for 0, of NEW for 1.
pub fn rows(
    command: &dyn Fn(usize) -> Command,
    is_wanted: &dyn Fn(&str) -> bool,
) -> Result<BTreeMap<String, Ratios>> {
    in_pairs(command, |pair, order, times| {
        while let Some(name) = pair.row()? {
            if is_wanted(&name) {
                times(name, pair.measure(order, Program::turn)?);
            }
            pair.0.iter_mut().try_for_each(Program::leave)?;
        }
        Ok(())
    })
}

/// Measures the first row of two programs, once in each process, in turns.
pub fn first_calls(command: &dyn Fn(usize) -> Command) -> Result<BTreeMap<String, Ratios>> {
    in_pairs(command, |pair, order, times| {
        if let Some(name) = pair.row()? {
            times(name, pair.measure(order, Program::time)?);
        }
        Ok(())
    })
}

/// Measures by fresh pairs of programs. `measure` is called with a pair, the order of its programs, and a
/// function that takes the name of a row with the times of OLD and NEW.
fn in_pairs(
    command: &dyn Fn(usize) -> Command,
    measure: impl Fn(&mut Pair, [usize; 2], &mut dyn FnMut(String, [f64; 2])) -> Result<()>,
) -> Result<BTreeMap<String, Ratios>> {
    let mut times: BTreeMap<String, Vec<[f64; 2]>> = BTreeMap::new();
    for number in 0..PAIRS {
        // Slow drifts of the machine affect both programs alike, because each is the first in every second
        // pair.
        let order = if number % 2 == 0 { [0, 1] } else { [1, 0] };
        measure(&mut Pair::start(command)?, order, &mut |name, of_pair| {
            times.entry(name).or_default().push(of_pair);
        })?;
    }
    Ok(times.into_iter().map(|(name, times)| (name, Ratios::of(&times))).collect())
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
        let programs = |which: usize| program(["a=2 b=1 d=1 e=1", "a=3 c=7 b=1e0 d=0.5 e=1"][which]);
        let rows = rows(&programs, &|name| name != "b").unwrap();
        assert_eq!(rows.keys().collect::<Vec<_>>(), ["a", "d", "e"]);
        assert_eq!(rows["a"].new_to_old, [1.5; 6]);
        assert_eq!(rows["a"].old_to_old, [1.0; 5]);
        assert_eq!(rows["d"].new_to_old, [0.5; 6]);
    }

    #[test]
    fn first_calls_are_the_first_row() {
        let rows = first_calls(&|which| program(["a=2 b=1", "a=4 b=1"][which])).unwrap();
        assert_eq!((rows.len(), rows["a"].new_to_old.as_slice()), (1, &[2.0; 6][..]));
        assert!(first_calls(&|which| program(["a=2", ""][which])).unwrap().is_empty());
    }

    #[test]
    fn a_program_that_fails_is_an_error() {
        let fails = |_| {
            let mut command = Command::new("sh");
            command.args(["-c", "echo reason; exit 3"]);
            command
        };
        let error = rows(&fails, &|_| true).map(drop).unwrap_err().to_string();
        assert!(error.contains("exit status: 3") && error.contains("reason"), "{error}");
        let silent = |_| program("a=x");
        assert!(rows(&silent, &|_| true).is_err(), "a time that is no number");
    }
}
