//! Measures Rust functions and a Python script's work alternately, for the benchmarks `peers` and `tables`.

use std::cell::Cell;
use std::fmt::Display;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::LazyLock;
use std::time::Instant;

/// A function to measure. Its result must equal the results of all other functions in the row (report line).
pub type Work<'a> = Box<dyn FnMut() -> f64 + 'a>;

/// Wall-clock time and processor time, in seconds.
type Times = [f64; 2];

thread_local! {
    static TIMES: Cell<[Option<Times>; 2]> = const { Cell::new([None; 2]) };
}

/// Runs `part` within a measured function. Only the time of `part` counts, not the preparation before it.
#[allow(dead_code, reason = "not all benchmarks that share this prepare something")]
pub fn timed<R>(part: impl FnOnce() -> R) -> R {
    let begin = now();
    let result = part();
    TIMES.set([Some(begin), Some(now())]);
    result
}

fn now() -> Times {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    [START.elapsed().as_secs_f64(), processor_seconds()]
}

/// Measures `works`, and the work of `python` for `row`, alternately after a warm-up; prints the row.
pub fn compare(row: &str, mut works: Vec<(String, Work<'_>)>, python: Option<&mut Python>) {
    let rounds = std::env::var("ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(11);
    let mut python = python;
    let there: Vec<String> = python.iter().flat_map(|python| python.peers(row)).collect();
    let names: Vec<String> =
        works.iter().map(|(name, _)| name.clone()).chain(there.iter().cloned()).collect();
    let mut times: Vec<Vec<[f64; 2]>> = vec![Vec::new(); names.len()];
    for round in 0..=rounds {
        let mut results = Vec::new();
        for (_, work) in &mut works {
            let whole = now();
            let result = work();
            let [begin, end] = TIMES.take();
            let (begin, end) = (begin.unwrap_or(whole), end.unwrap_or_else(now));
            results.push(([end[0] - begin[0], end[1] - begin[1]], result));
        }
        if let Some(python) = python.as_mut() {
            results.extend(there.iter().map(|peer| python.run(peer, row)));
        }
        let expected = results[0].1;
        for (number, (seconds, result)) in results.into_iter().enumerate() {
            let near = (result - expected).abs() <= expected.abs() * 1e-3;
            assert!(near, "{row}: {} gives {result} instead of {expected}", names[number]);
            if round > 0 {
                times[number].push(seconds);
            }
        }
    }
    print!("{row:18}");
    for (name, of) in names.iter().zip(&times) {
        let least = |kind: usize| of.iter().map(|time| time[kind] * 1e3).fold(f64::INFINITY, f64::min);
        let ratio =
            |kind: usize| median(times[0].iter().zip(of).map(|(ours, other)| ours[kind] / other[kind]));
        print!("  {name} {:.1}/{:.1} ms", least(0), least(1));
        if name != "vmarray" {
            print!(" ({:.2}/{:.2})", ratio(0), ratio(1));
        }
    }
    println!();
}

/// The processor time of all threads in seconds; 0 if the system does not report it.
fn processor_seconds() -> f64 {
    let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let stats = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("schedstat")).ok());
    let nanoseconds = stats.filter_map(|stats| stats.split(' ').next()?.parse::<u64>().ok());
    nanoseconds.sum::<u64>() as f64 / 1e9
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// A Python process that runs and measures work on request.
pub struct Python {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    /// The lines `peer row` that the script printed at its start.
    works: Vec<String>,
}

impl Python {
    /// Starts `script` with the interpreter in the variable `PYTHON`, else `python3`; `None` if this fails.
    pub fn start(script: &str, arguments: &[&dyn Display]) -> Option<Self> {
        let program = std::env::var("PYTHON").unwrap_or_else(|_| "python3".to_owned());
        let mut command = Command::new(program);
        command.arg(script).args(arguments.iter().map(|argument| argument.to_string()));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().ok()?;
        let (to, from) = (child.stdin.take()?, BufReader::new(child.stdout.take()?));
        let mut python = Self { child, to, from, works: Vec::new() };
        loop {
            match python.line() {
                None => {
                    println!("Python, or what the script needs, is missing: its peers are left out");
                    return None;
                }
                Some(line) if line.is_empty() => return Some(python),
                Some(line) => python.works.push(line),
            }
        }
    }

    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let read = self.from.read_line(&mut line).ok()?;
        (read > 0).then(|| line.trim().to_owned())
    }

    /// The competitors of the script that can do the work of a row.
    fn peers(&self, row: &str) -> Vec<String> {
        let peers = self.works.iter().filter_map(|line| line.split_once(' '));
        peers.filter(|(_, of)| *of == row).map(|(peer, _)| peer.to_owned()).collect()
    }

    /// Runs a competitor's work; returns wall-clock seconds, processor seconds, and the result.
    fn run(&mut self, peer: &str, row: &str) -> ([f64; 2], f64) {
        writeln!(self.to, "{peer} {row}").expect("Python reads the line");
        let line = self.line().expect("Python prints a line");
        let mut numbers = line.split(' ').map(|number| number.parse().expect("Python prints numbers"));
        let mut next = || numbers.next().expect("Python prints three numbers");
        ([next(), next()], next())
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        // Ignore errors, because the script may have ended already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
