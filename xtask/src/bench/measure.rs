//! Measures a benchmark's functions: starts their threads together, repeats, and computes medians and spread.

pub use super::record::{Effort, Summary, Unit};
use anyhow::Result;
use std::sync::Barrier;
use std::time::Instant;

/// One repetition of a workload: the amount of work, and its time.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Seconds from the start of the first thread to the end of the last thread.
    pub wall: f64,
    /// Processor time of the whole process in seconds; 0 if the system does not report it.
    pub cpu: f64,
    /// The amount: bytes or operations of all threads, depending on the unit.
    pub amount: f64,
    /// Number of threads that did the work.
    pub threads: usize,
}

impl Unit {
    /// Converts `sample` (a repetition) to this unit: to the rate of work, or to the time of one operation.
    pub fn of(self, sample: &Sample) -> f64 {
        let Sample { wall, amount, threads, .. } = *sample;
        let (_, scale, is_time) = self.parts();
        if is_time { wall * threads as f64 / amount * scale } else { amount / wall / scale }
    }
}

/// The measured repetitions of one contender: the array, or other software.
#[derive(Debug, Default)]
pub struct Series {
    /// The measured repetitions, without the warm-up.
    pub samples: Vec<Sample>,
    /// The total amount, including the warm-up.
    pub amount: f64,
}

impl Series {
    /// Returns the median and the range of the results in a unit; `None` without repetitions.
    pub fn summary(&self, unit: Unit) -> Option<Summary> {
        Summary::of(&self.samples.iter().map(|sample| unit.of(sample)).collect::<Vec<_>>())
    }

    /// Returns the mean number of processor cores that were busy during the repetitions.
    pub fn cores(&self) -> f64 {
        let sum = |value: fn(&Sample) -> f64| self.samples.iter().map(value).sum::<f64>();
        sum(|s| s.cpu) / sum(|s| s.wall).max(1e-12)
    }
}

/// Repeats `run`: once as a warm-up, then until the number or 1.5 times the time of `effort` is reached, but
/// at least twice. If a repetition takes very long, measures only one.
///
/// A warm-up counts as a repetition if it is longer than three times `effort.seconds`.
pub fn repeat(effort: &Effort, mut run: impl FnMut() -> Result<Sample>) -> Result<Series> {
    let mut series = Series::default();
    let budget = effort.seconds * effort.runs as f64 * 1.5;
    let mut spent = 0.0;
    for turn in 0..=effort.runs {
        let sample = run()?;
        series.amount += sample.amount;
        spent += sample.wall;
        if turn > 0 || sample.wall > effort.seconds * 3.0 {
            series.samples.push(sample);
        }
        let enough = match series.samples.len() {
            0 => false,
            1 => spent > budget * 4.0,
            _ => spent > budget,
        };
        if enough {
            break;
        }
    }
    Ok(series)
}

/// Measures `work` on `threads` threads that start together. `work(thread)` returns its amount of work.
pub fn on_threads(threads: usize, work: impl Fn(usize) -> Result<f64> + Sync) -> Result<Sample> {
    let barrier = Barrier::new(threads);
    let cpu = cpu_seconds();
    let one = |thread: usize| -> (Instant, Result<f64>, Instant) {
        barrier.wait();
        let start = Instant::now();
        let done = work(thread);
        (start, done, Instant::now())
    };
    let results: Vec<(Instant, Result<f64>, Instant)> = if threads == 1 {
        vec![one(0)]
    } else {
        std::thread::scope(|scope| {
            let one = &one;
            let all: Vec<_> = (0..threads).map(|thread| scope.spawn(move || one(thread))).collect();
            all.into_iter()
                .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect()
        })
    };
    let cpu = cpu_seconds() - cpu;
    let start = results.iter().map(|(start, ..)| *start).min();
    let end = results.iter().map(|(.., end)| *end).max();
    let wall = start.zip(end).map_or(0.0, |(start, end)| (end - start).as_secs_f64());
    let mut amount = 0.0;
    for (_, done, _) in results {
        amount += done?;
    }
    Ok(Sample { wall: wall.max(1e-9), cpu, amount, threads })
}

/// Measures `work`, which starts `threads` threads itself, and returns the amount of work.
pub fn timed(threads: usize, work: impl FnOnce() -> Result<f64>) -> Result<Sample> {
    let (cpu, start) = (cpu_seconds(), Instant::now());
    let amount = work()?;
    Ok(Sample { wall: start.elapsed().as_secs_f64().max(1e-9), cpu: cpu_seconds() - cpu, amount, threads })
}

/// Measures `calls` calls by this thread. Each call does the amount `amount` of work, such as its bytes.
pub fn calls(calls: usize, amount: f64, mut call: impl FnMut() -> Result<()>) -> Result<Sample> {
    timed(1, || {
        (0..calls).try_for_each(|_| call())?;
        Ok(amount * calls as f64)
    })
}

/// Calls `step` repeatedly for `seconds` seconds, and returns the number of calls. Reads the clock only after
/// each `batch` calls.
#[inline]
pub fn until(seconds: f64, batch: usize, mut step: impl FnMut() -> Result<()>) -> Result<f64> {
    let start = Instant::now();
    let mut calls = 0;
    loop {
        for _ in 0..batch {
            step()?;
        }
        calls += batch;
        if start.elapsed().as_secs_f64() >= seconds {
            return Ok(calls as f64);
        }
    }
}

/// Returns the processor time of the process so far, in seconds.
fn cpu_seconds() -> f64 {
    #[cfg(unix)]
    {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the clock exists on every Unix and the pointer leads to a `timespec`.
        if unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) } == 0 {
            return time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9;
        }
    }
    0.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(wall: f64, amount: f64) -> Sample {
        Sample { wall, cpu: 0.0, amount, threads: 2 }
    }

    #[test]
    fn units_count_work_or_time() {
        let s = sample(2.0, 8e9);
        // Two threads take two seconds each for 8e9 operations, so an operation takes half a nanosecond of
        // one thread.
        let of = [Unit::GigabytesPerSecond, Unit::MegaPerSecond, Unit::Nanoseconds].map(|unit| unit.of(&s));
        assert_eq!(of, [4.0, 4000.0, 0.5]);
        assert_eq!(Unit::Nanoseconds.speed_ratio(2.0, 10.0), 5.0);
        assert_eq!(Unit::KiloPerSecond.speed_ratio(2.0, 10.0), 0.2);
    }

    #[test]
    fn short_warm_ups_do_not_count_and_long_ones_do() {
        let runs = |wall: f64| {
            let effort = Effort { runs: 3, seconds: 1.0 };
            let series = repeat(&effort, || Ok(sample(wall, 1.0))).unwrap();
            (series.amount, series.samples.len())
        };
        assert_eq!([0.5, 1.0, 10.0, 20.0].map(runs), [(4.0, 3), (4.0, 3), (2.0, 2), (1.0, 1)]);
    }

    #[test]
    fn all_threads_run_and_one_failure_is_reported() {
        let sample = on_threads(3, |thread| Ok(thread as f64)).unwrap();
        assert_eq!((sample.amount, sample.threads), (3.0, 3));
        assert!(on_threads(2, |thread| if thread == 1 { anyhow::bail!("no") } else { Ok(1.0) }).is_err());
        assert_eq!(until(0.0, 7, || Ok(())).unwrap(), 7.0);
    }
}
