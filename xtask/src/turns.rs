//! Alternating measurements of two benchmark programs, OLD and NEW, on the same rows (measured workloads).
//!
//! The driver (the command `compare` or `gate`) starts several processes of both programs. Each process sets
//! up a row and waits, so only one process measures at a time. The driver needs several processes, because a
//! process's memory addresses make it faster or slower until it ends. Processes of OLD and NEW alternate, so
//! slow drifts of the machine's speed affect both alike.
//!
//! A program prints `turn: row NAME` after it has set up a row. The driver then writes `go` or `next`. After
//! `go` the program measures once and prints `turn: time SECONDS`, the time of a unit of work. After `next`
//! it ends the row. The program calls [`serve`] for all of this.

use anyhow::{Context, Result, bail, ensure};
use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

/// The prefix of a program's lines that are for the driver.
const MARK: &str = "turn: ";
/// The number of processes of each program, OLD and NEW.
pub const PROCESSES: usize = 5;
/// The number of ratios outside of the 95 % interval at each end; there are 25 ratios, five times to five.
const OUTSIDE: usize = 2;
/// The time of a process's turn in seconds, and the maximum number of measurements in it.
const TURN: (f64, usize) = (0.1, 4);
/// The maximum number of turns of a process. A row with little noise takes one.
const TURNS: usize = 4;
/// The noise above which the command measures a row (workload) again. A row that stays noisier is not judged.
pub const NOISE_MOST: f64 = 0.05;

/// The times of the programs OLD and NEW for one row (workload), one for each process.
#[derive(Clone, Debug, PartialEq)]
pub struct Times {
    /// The times of OLD.
    pub old: [f64; PROCESSES],
    /// The times of NEW.
    pub new: [f64; PROCESSES],
}

impl Times {
    /// Returns NEW's time divided by OLD's: lower end of the 95 % confidence interval, median, upper end.
    pub fn new_to_old(&self) -> [f64; 3] {
        interval(&self.new, &self.old)
    }

    /// Returns the ratio of OLD's times to each other: lower end of the 95 % interval, median, upper end.
    pub fn old_to_old(&self) -> [f64; 3] {
        interval(&self.old, &self.old)
    }

    /// Returns the noise: the greatest distance from 1 in the 95 % interval of OLD's times to themselves.
    pub fn noise(&self) -> f64 {
        let [low, _, high] = self.old_to_old();
        (1.0 - low).max(high - 1.0)
    }

    /// Returns the lesser time of each process, of two turns. The minimum depends less on the machine's other
    /// programs than the median does.
    fn least(&self, other: &Self) -> Self {
        let least = |a: &[f64; PROCESSES], b: &[f64; PROCESSES]| std::array::from_fn(|at| a[at].min(b[at]));
        Self { old: least(&self.old, &other.old), new: least(&self.new, &other.new) }
    }

    /// Returns the geometric mean of the times of several rows (workloads), for each process separately.
    pub fn mean(rows: &[&Self]) -> Self {
        let mean = |of: fn(&Self) -> &[f64; PROCESSES]| {
            std::array::from_fn(|process| {
                let logarithms: f64 = rows.iter().map(|row| of(row)[process].ln()).sum();
                (logarithms / rows.len() as f64).exp()
            })
        };
        Self { old: mean(|row| &row.old), new: mean(|row| &row.new) }
    }
}

/// Returns the ratio of two samples' times: the lower end of its 95 % interval, the estimate, the upper end.
///
/// The estimate is the median of all ratios of a time to a time of the other sample, and the ends are the
/// third ratio from either end of 25. The interval holds for any distribution, if the two differ by a factor:
/// it has the factors that a Mann-Whitney test at 5 % accepts. Source: J. L. Hodges and E. L. Lehmann,
/// "Estimates of Location Based on Rank Tests", The Annals of Mathematical Statistics 34, 1963.
fn interval(times: &[f64; PROCESSES], to: &[f64; PROCESSES]) -> [f64; 3] {
    let mut ratios: Vec<f64> = times.iter().flat_map(|time| to.iter().map(move |base| time / base)).collect();
    ratios.sort_by(f64::total_cmp);
    [OUTSIDE, ratios.len() / 2, ratios.len() - 1 - OUTSIDE].map(|rank| ratios[rank])
}

/// Runs in a measured program: measures the row `name` each time that the parent process requests it.
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
    bail!("the parent process, which requests the measurements, has ended")
}

/// A running process of OLD or NEW.
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
        let (input, output) = pipes.context("the measured program has no pipes for its input and output")?;
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
            ensure!(status.success(), "a measured program failed ({status}):\n{}", self.printed.join("\n"));
            return Ok(None);
        };
        let name = line.strip_prefix("row ").with_context(|| format!("expected `row NAME`, got {line:?}"))?;
        Ok(Some(name.to_owned()))
    }

    /// Measures the current row in one turn. Returns the minimum time of a unit of work.
    ///
    /// The first measurement does not count, because it follows a turn of the other program, which has used
    /// the caches of the processor and the clocks of the devices.
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
        time.with_context(|| format!("a measured program printed no time:\n{}", self.printed.join("\n")))
    }

    /// Ends the current row, so that the program sets up the next one.
    fn leave(&mut self) -> Result<()> {
        Ok(writeln!(self.input, "next")?)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Ignore errors: both calls fail if the program has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The running processes of OLD and NEW.
struct Processes {
    /// All processes; OLD and NEW alternate.
    all: Vec<Program>,
}

impl Processes {
    /// Starts all processes. `command` returns the command of OLD for 0, of NEW for 1.
    fn start(command: &dyn Fn(usize) -> Command) -> Result<Self> {
        let all = (0..2 * PROCESSES).map(|number| Program::start(command(number % 2)));
        Ok(Self { all: all.collect::<Result<_>>()? })
    }

    /// Waits for the next row that all processes have. Returns its name, or `None` at the end. Names the rows
    /// that only some have on standard error.
    fn row(&mut self) -> Result<Option<String>> {
        let Some((first, others)) = self.all.split_first_mut() else { return Ok(None) };
        let Some(name) = first.row()? else { return Ok(None) };
        for other in others {
            loop {
                match other.row()? {
                    Some(found) if found == name => break,
                    Some(found) => {
                        eprintln!("{found}: the other program has no such row here");
                        other.leave()?;
                    }
                    None => {
                        eprintln!("{name}: the other program has no such row");
                        return Ok(None);
                    }
                }
            }
        }
        Ok(Some(name))
    }

    /// Measures the current row by each process, one after the other.
    fn measure(&mut self, by: fn(&mut Program) -> Result<f64>) -> Result<Times> {
        let mut times = Times { old: [0.0; PROCESSES], new: [0.0; PROCESSES] };
        for (number, process) in self.all.iter_mut().enumerate() {
            let of = if number % 2 == 0 { &mut times.old } else { &mut times.new };
            of[number / 2] = by(process)?;
        }
        Ok(times)
    }
}

/// Measures the rows (workloads) whose names `is_wanted` accepts, alternately by processes of two programs.
/// `command` returns the command of the program OLD for 0, and of NEW for 1. Calls `measured` with the name
/// and the times of each row. Measures a noisy row some more times while `has_time` returns true.
pub fn rows(
    command: &dyn Fn(usize) -> Command,
    is_wanted: &dyn Fn(&str) -> bool,
    has_time: &dyn Fn() -> bool,
    measured: &mut dyn FnMut(String, Times),
) -> Result<()> {
    let mut processes = Processes::start(command)?;
    while let Some(name) = processes.row()? {
        if is_wanted(&name) {
            let mut times = processes.measure(Program::turn)?;
            for _ in 1..TURNS {
                if times.noise() <= NOISE_MOST || !has_time() {
                    break;
                }
                times = times.least(&processes.measure(Program::turn)?);
            }
            measured(name, times);
        }
        processes.all.iter_mut().try_for_each(Program::leave)?;
    }
    Ok(())
}

/// Measures the first row (workload) of the programs OLD (`command(0)`) and NEW, once in each process. First
/// runs both programs unmeasured, so that the caches on disk contain their compiled kernels.
pub fn first_calls(
    command: &dyn Fn(usize) -> Command,
    measured: &mut dyn FnMut(String, Times),
) -> Result<()> {
    for number in 0..2 {
        let mut program = Program::start(command(number))?;
        if program.row()?.is_some() {
            program.time()?;
        }
    }
    let mut processes = Processes::start(command)?;
    if let Some(name) = processes.row()? {
        measured(name, processes.measure(Program::time)?);
    }
    Ok(())
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

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

    fn measured(
        command: &dyn Fn(usize) -> Command,
        is_wanted: &dyn Fn(&str) -> bool,
    ) -> Result<BTreeMap<String, Times>> {
        let mut found = BTreeMap::new();
        rows(command, is_wanted, &|| true, &mut |name, times| {
            found.insert(name, times);
        })?;
        Ok(found)
    }

    #[test]
    fn rows_of_both_programs_are_measured_in_turns() {
        let programs = |which: usize| program(["a=2 b=1 d=1 e=1", "a=3 c=7 b=1e0 d=0.5 e=1"][which]);
        let rows = measured(&programs, &|name| name != "b").unwrap();
        assert_eq!(rows.keys().collect::<Vec<_>>(), ["a", "d", "e"]);
        assert_eq!(rows["a"], Times { old: [2.0; 5], new: [3.0; 5] });
        assert_eq!(rows["a"].new_to_old(), [1.5; 3]);
        assert_eq!(rows["d"].new_to_old(), [0.5; 3]);
    }

    #[test]
    fn first_calls_are_the_first_row() {
        let first = |programs: [&'static str; 2]| {
            let mut found = Vec::new();
            let command = |which| program(programs[which]);
            first_calls(&command, &mut |name, times| found.push((name, times.new))).unwrap();
            found
        };
        assert_eq!(first(["a=2 b=1", "a=4 b=1"]), [("a".to_owned(), [4.0; 5])]);
        assert!(first(["a=2", ""]).is_empty());
    }

    #[test]
    fn a_program_that_fails_is_an_error() {
        let fails = |_| {
            let mut command = Command::new("sh");
            command.args(["-c", "echo reason; exit 3"]);
            command
        };
        let error = measured(&fails, &|_| true).unwrap_err().to_string();
        assert!(error.contains("exit status: 3") && error.contains("reason"), "{error}");
        let silent = |_| program("a=x");
        assert!(measured(&silent, &|_| true).is_err(), "a time that is no number");
    }

    /// The third ratio from either end: at most 2 of 25 pairs in order have a probability of at most 2.5 %,
    /// and at most 3 have a greater one.
    #[test]
    fn intervals_match_the_rank_test() {
        let mut orders = [0_u32; 26];
        for subset in (0_u32..1 << 10).filter(|subset| subset.count_ones() == 5) {
            let ones = (0..10).filter(|bit| subset >> bit & 1 == 1);
            orders[ones.map(|bit| (!subset & ((1 << bit) - 1)).count_ones() as usize).sum::<usize>()] += 1;
        }
        let share = |most: usize| f64::from(orders[..=most].iter().sum::<u32>()) / 252.0;
        assert!(share(OUTSIDE) <= 0.025 && share(OUTSIDE + 1) > 0.025);
        let (old, new) = ([1.0, 2.0, 4.0, 8.0, 16.0], [3.0, 6.0, 12.0, 24.0, 48.0]);
        let times = Times { old, new };
        assert_eq!(times.new_to_old(), [0.375, 3.0, 24.0]);
        assert_eq!(times.old_to_old(), [0.125, 1.0, 8.0]);
        assert_eq!(Times::mean(&[&times, &times]).new.map(f64::round), new);
    }
}
