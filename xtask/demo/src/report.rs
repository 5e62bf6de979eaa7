//! Output of the demo: progress bars, lines of the report, and formatted numbers.

use indicatif::{DecimalBytes, HumanBytes, HumanCount, ProgressBar, ProgressStyle};
use std::fmt::Display;
use std::time::{Duration, Instant};
use vmarray::VirtualArray;

/// Runs `phase` with a progress bar, which is visible only on a terminal. Returns the result of `phase` and
/// its duration. The bar ends at `len` units; 0 means that the end is unknown.
pub fn timed<R>(
    name: &'static str,
    len: usize,
    phase: impl FnOnce(&ProgressBar) -> anyhow::Result<R>,
) -> anyhow::Result<(R, Duration)> {
    let (bar, style) = match len {
        0 => (ProgressBar::no_length(), "{msg:10} {human_pos} {elapsed:>4}"),
        len => (ProgressBar::new(len as u64), "{msg:10} {wide_bar} {percent:>3} % {elapsed:>4}"),
    };
    let bar = bar.with_style(ProgressStyle::with_template(style)?).with_message(name);
    let start = Instant::now();
    let result = phase(&bar);
    let time = start.elapsed();
    bar.finish_and_clear();
    Ok((result?, time))
}

/// Prints one line of the report: `name`, then `text`.
pub fn line(name: &str, text: impl Display) {
    println!("   {name:10} {text}");
}

/// Formats the rate of `bytes` bytes in the duration `time`, in bytes per second.
pub fn byte_rate(bytes: usize, time: Duration) -> String {
    format!("{}/s", DecimalBytes(per_second(bytes, time)))
}

/// Formats `number` divided by the duration `time`, with the noun `what`.
pub fn rate(number: usize, what: &str, time: Duration) -> String {
    format!("{} {what}/s", HumanCount(per_second(number, time)))
}

fn per_second(number: usize, time: Duration) -> u64 {
    (number as f64 / time.as_secs_f64().max(1e-9)) as u64
}

/// Formats a number with a noun, and adds an `s` to the noun unless the number is 1.
pub fn plural(number: usize, what: &str) -> String {
    format!("{} {what}{}", HumanCount(number as u64), if number == 1 { "" } else { "s" })
}

/// Formats the array's traffic since the last call, and resets its statistics.
pub fn traffic<T: vmarray::Element>(array: &VirtualArray<T>) -> String {
    let total = array.stats().total();
    array.reset_stats();
    let (to, from) = (HumanBytes(total.bytes_to_device), HumanBytes(total.bytes_from_device));
    format!("{} misses, {to} to the devices, {from} from them", HumanCount(total.misses))
}

/// Returns the peak RAM of this process in bytes, if the system reports it.
pub fn peak_ram() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_words() {
        assert_eq!(byte_rate(1_234_567, Duration::from_secs(1)), "1.23 MB/s");
        assert_eq!(rate(5000, "bases", Duration::from_millis(100)), "50,000 bases/s");
        assert_eq!([0, 1, 2000].map(|number| plural(number, "hit")), ["0 hits", "1 hit", "2,000 hits"]);
    }
}
