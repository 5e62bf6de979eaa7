//! Progress bars, and numbers in words.

use super::words::Traffic;
use indicatif::{ProgressBar, ProgressStyle};
use std::time::{Duration, Instant};

/// A progress bar over `len` units with a name before it, or a plain count if that is 0. It is drawn on a
/// terminal only.
fn bar(name: &'static str, len: u64) -> ProgressBar {
    let (bar, style) = match len {
        0 => (ProgressBar::no_length(), "{msg:10} {human_pos} {elapsed:>4}"),
        len => (ProgressBar::new(len), "{msg:10} {wide_bar} {percent:>3} % {elapsed:>4}"),
    };
    match ProgressStyle::with_template(style) {
        Ok(style) => bar.with_style(style).with_message(name),
        Err(_) => bar,
    }
}

/// Runs a phase of a job under a progress bar: what it gave, and how long it took.
pub fn timed<R>(
    name: &'static str,
    len: u64,
    phase: impl FnOnce(&ProgressBar) -> anyhow::Result<R>,
) -> anyhow::Result<(R, Duration)> {
    let bar = bar(name, len);
    let start = Instant::now();
    let result = phase(&bar);
    let time = start.elapsed();
    bar.finish_and_clear();
    Ok((result?, time))
}

/// One line of the report.
pub fn line(name: &str, text: impl AsRef<str>) {
    println!("   {name:10} {}", text.as_ref());
}

/// Bytes in binary units, three digits.
pub fn bytes(bytes: u64) -> String {
    let mut value = bytes as f64;
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if value < 1000.0 {
            return format!("{} {unit}", digits(value));
        }
        value /= 1024.0;
    }
    format!("{} TiB", digits(value))
}

/// How many a second, in decimal units, three digits.
pub fn rate(count: u64, time: Duration, unit: &str) -> String {
    let mut value = count as f64 / time.as_secs_f64().max(1e-9);
    for prefix in ["", "k", "M", "G"] {
        if value < 1000.0 {
            return format!("{} {prefix}{unit}/s", digits(value));
        }
        value /= 1000.0;
    }
    format!("{} T{unit}/s", digits(value))
}

fn digits(value: f64) -> String {
    match value {
        value if value == value.trunc() && value < 1000.0 => format!("{value:.0}"),
        value if value < 10.0 => format!("{value:.2}"),
        value if value < 100.0 => format!("{value:.1}"),
        value => format!("{value:.0}"),
    }
}

/// A whole number with its digits in groups.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

/// So many of something.
pub fn plural(number: u64, what: &str) -> String {
    format!("{} {what}{}", count(number), if number == 1 { "" } else { "s" })
}

/// What an array did in a phase.
pub fn traffic(traffic: &Traffic) -> String {
    let Traffic { hits, misses, to_devices, from_devices } = *traffic;
    let share = if hits + misses == 0 { 100.0 } else { 100.0 * hits as f64 / (hits + misses) as f64 };
    format!("hit rate {share:.1} %, {} to the devices, {} from them", bytes(to_devices), bytes(from_devices))
}

/// RAM that this process has in use now and has had at most, where the system tells.
pub fn ram() -> Option<(u64, u64)> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let field = |name: &str| -> Option<u64> {
        let line = status.lines().find(|line| line.starts_with(name))?;
        Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? * 1024)
    };
    Some((field("VmRSS:")?, field("VmHWM:")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_words() {
        assert_eq!(
            [0, 999, 1000, 1 << 20, 150 << 20].map(bytes),
            ["0 B", "999 B", "0.98 KiB", "1 MiB", "150 MiB"]
        );
        assert_eq!(rate(0, Duration::from_secs(1), "B"), "0 B/s");
        assert_eq!(rate(1_234_567, Duration::from_secs(1), "B"), "1.23 MB/s");
        assert_eq!(rate(50, Duration::from_millis(100), ""), "500 /s");
        assert_eq!([0, 999, 1000, 1_234_567].map(count), ["0", "999", "1 000", "1 234 567"]);
    }

    #[test]
    fn plurals() {
        assert_eq!([0, 1, 2000].map(|number| plural(number, "hit")), ["0 hits", "1 hit", "2 000 hits"]);
    }

    #[test]
    fn traffic_in_words() {
        let none = Traffic::default();
        assert_eq!(traffic(&none), "hit rate 100.0 %, 0 B to the devices, 0 B from them");
        let some = Traffic { hits: 3, misses: 1, to_devices: 2048, from_devices: 1 };
        assert_eq!(traffic(&some), "hit rate 75.0 %, 2 KiB to the devices, 1 B from them");
    }
}
