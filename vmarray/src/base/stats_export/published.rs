//! The published statistics of a program, and their text format: one line for the program, then one for each
//! array, and one for each channel (share of a device) of the array.
//!
//! A reader ignores a file with any error. It also ignores unknown counters, which a later version may write.

use std::fmt::Write;
use std::time::Duration;

use crate::base::stats::ChannelStats;

/// A running program that publishes statistics of its arrays.
///
/// ```
/// use vmarray::prelude::*;
/// use vmarray::monitor;
/// let array = VirtualArray::<u32>::builder(1000).page_len(100).publish("numbers").build()?;
/// array.fill(.., 7)?;
/// array.flush(..)?;
/// // Twice a second this happens by itself.
/// monitor::publish_now();
/// let own = monitor::programs().into_iter().find(|program| program.process == std::process::id());
/// # if let Some(program) = own {
/// let numbers = &program.arrays[0];
/// assert_eq!((&*numbers.name, numbers.bytes), ("numbers", 4000));
/// let stats: u64 = numbers.channels.iter().map(|channel| channel.stats.bytes_to_device).sum();
/// assert_eq!(stats, array.stats().total().bytes_to_device);
/// # }
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PublishedProgram {
    /// The process ID.
    pub process: u32,
    /// The file name of the program.
    pub name: String,
    /// The time of publication, since the beginning of 1970. To compute a rate, divide the difference of two
    /// values of a counter by the difference of their times.
    pub at: Duration,
    /// The arrays of the program, in the order in which they were built.
    pub arrays: Vec<PublishedArray>,
    /// The number of further arrays, which the file omits because the file's size is limited.
    pub left_out: u64,
}

/// An array of a [program](PublishedProgram).
///
/// ```
/// use vmarray::monitor::{PublishedArray, programs};
/// let arrays: Vec<PublishedArray> = programs().into_iter().flat_map(|program| program.arrays).collect();
/// for PublishedArray { name, hits, .. } in arrays {
///     println!("{name}: {hits:?} hits");
/// }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PublishedArray {
    /// The name passed to [`Builder::publish`](crate::Builder::publish), or `array` and a number.
    pub name: String,
    /// The length of the array, in bytes.
    pub bytes: u64,
    /// Number of hits since the creation of the array; `None` if the array does not count hits.
    pub hits: Option<u64>,
    /// The channels (shares of devices) of the array.
    pub channels: Vec<PublishedChannel>,
}

/// A channel (share of a device) of an [array](PublishedArray).
///
/// ```
/// use vmarray::monitor::{PublishedChannel, programs};
/// let arrays = programs().into_iter().flat_map(|program| program.arrays);
/// let channels: Vec<PublishedChannel> = arrays.flat_map(|array| array.channels).collect();
/// println!("{} bytes are page-locked", channels.iter().map(|channel| channel.pinned_bytes).sum::<u64>());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PublishedChannel {
    /// Name of the device, as in error messages.
    pub device: String,
    /// The counters of the channel (share of a device) since the array was built.
    pub stats: ChannelStats,
    /// RAM of the cache frames of the channel (share of a device), in bytes.
    pub cache_bytes: u64,
    /// Page-locked RAM of the channel (share of a device) for cache frames and buffers, in bytes; 0 if
    /// pageable.
    pub pinned_bytes: u64,
    /// The bandwidth from the device in bytes per second, if its [profile](crate::profile::Profile) exists.
    pub read_limit: Option<u64>,
    /// The bandwidth to the device in bytes per second, if its profile (measured speeds) exists.
    pub write_limit: Option<u64>,
}

/// The first line of a file. Another format has another number.
const TITLE: &str = "vmarray statistics 1";
/// The last line of a file, which shows that it is complete.
const END: &str = "end";
/// The greatest length of a name in bytes; longer names are truncated.
const NAME_MAX: usize = 100;

/// Returns a name on one line, without characters that control terminals.
fn shown(name: &str) -> String {
    let is_shown =
        |c: char| !c.is_control() && !matches!(c, '\u{200B}'..='\u{200F}' | '\u{202A}'..='\u{202E}');
    name.chars().map(|c| if is_shown(c) { c } else { ' ' }).take(NAME_MAX).collect()
}

fn print_number(number: Option<u64>) -> String {
    number.map_or("-".into(), |number| number.to_string())
}

/// Formats the statistics as a file of at most `bytes_max` bytes, which omits further arrays.
pub(super) fn print(program: PublishedProgram, bytes_max: usize) -> String {
    let mut arrays = String::new();
    let mut left_out = program.left_out;
    // The bytes that remain for arrays besides the title, the end and the names.
    let room = bytes_max.saturating_sub(TITLE.len() + END.len() + 4 * NAME_MAX + 100);
    for array in &program.arrays {
        let text = print_array(array);
        if arrays.len() + text.len() <= room {
            arrays += &text;
        } else {
            left_out += 1;
        }
    }
    let PublishedProgram { process, name, at, .. } = program;
    format!("{TITLE}\nprogram {process} {} {left_out} {}\n{arrays}{END}\n", at.as_nanos(), shown(&name))
}

fn print_array(array: &PublishedArray) -> String {
    let PublishedArray { name, bytes, hits, channels } = array;
    let mut text = format!("array {bytes} {} {}\n", print_number(*hits), shown(name));
    for PublishedChannel { device, stats, cache_bytes, pinned_bytes, read_limit, write_limit } in channels {
        let (read, write) = (print_number(*read_limit), print_number(*write_limit));
        let counters: Vec<String> = stats.by_name().map(|(name, count)| format!("{name}={count}")).collect();
        let (counters, device) = (counters.join(","), shown(device));
        // Writing to a string does not fail.
        let _ = writeln!(text, "channel {cache_bytes} {pinned_bytes} {read} {write} {counters} {device}");
    }
    text
}

/// Parses a file; returns `None` if any part is invalid.
pub(super) fn parse(text: &str) -> Option<PublishedProgram> {
    let mut lines = text.strip_suffix(&format!("\n{END}\n"))?.split('\n');
    (lines.next()? == TITLE).then_some(())?;
    let mut fields = lines.next()?.strip_prefix("program ")?.splitn(4, ' ');
    let mut program = PublishedProgram {
        process: fields.next()?.parse().ok()?,
        at: Duration::from_nanos(fields.next()?.parse().ok()?),
        left_out: fields.next()?.parse().ok()?,
        name: shown(fields.next()?),
        arrays: Vec::new(),
    };
    for line in lines {
        match line.split_once(' ')? {
            ("array", rest) => program.arrays.push(parse_array(rest)?),
            ("channel", rest) => program.arrays.last_mut()?.channels.push(parse_channel(rest)?),
            _ => return None,
        }
    }
    Some(program)
}

fn parse_number(text: &str) -> Option<Option<u64>> {
    if text == "-" { Some(None) } else { text.parse().ok().map(Some) }
}

fn parse_array(text: &str) -> Option<PublishedArray> {
    let mut fields = text.splitn(3, ' ');
    Some(PublishedArray {
        bytes: fields.next()?.parse().ok()?,
        hits: parse_number(fields.next()?)?,
        name: shown(fields.next()?),
        channels: Vec::new(),
    })
}

fn parse_channel(text: &str) -> Option<PublishedChannel> {
    let mut fields = text.splitn(6, ' ');
    Some(PublishedChannel {
        cache_bytes: fields.next()?.parse().ok()?,
        pinned_bytes: fields.next()?.parse().ok()?,
        read_limit: parse_number(fields.next()?)?,
        write_limit: parse_number(fields.next()?)?,
        stats: parse_counters(fields.next()?)?,
        device: shown(fields.next()?),
    })
}

fn parse_counters(text: &str) -> Option<ChannelStats> {
    let mut stats = ChannelStats::default();
    for counter in text.split(',') {
        let (name, count) = counter.split_once('=')?;
        stats.set(name, count.parse().ok()?);
    }
    Some(stats)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program() -> PublishedProgram {
        let mut stats = ChannelStats::default();
        (stats.misses, stats.bytes_to_device, stats.waits) = (3, u64::MAX, 7);
        let channel = |read_limit| PublishedChannel {
            device: "a card (cuda pci:0000:81:00.0)".into(),
            stats,
            cache_bytes: 1 << 20,
            pinned_bytes: 5,
            read_limit,
            write_limit: Some(9),
        };
        let array =
            |name: &str, hits, channels| PublishedArray { name: name.into(), bytes: 80, hits, channels };
        PublishedProgram {
            process: 12,
            name: "a program".into(),
            at: Duration::from_nanos(1_234_567_890_123),
            arrays: vec![
                array("the first one", Some(5), vec![channel(None), channel(Some(1))]),
                array("", None, Vec::new()),
            ],
            left_out: 0,
        }
    }

    #[test]
    fn printed_text_is_parsed_back() {
        assert_eq!(parse(&print(program(), 1 << 20)), Some(program()));
        let mut hostile = program();
        hostile.name = "a\nb\x1b[31m\u{202e}".into();
        hostile.arrays[0].name = "x".repeat(1000);
        let parsed = parse(&print(hostile, 1 << 20)).unwrap();
        assert_eq!((&*parsed.name, parsed.arrays[0].name.len()), ("a b [31m ", NAME_MAX));
    }

    #[test]
    fn a_counter_of_a_later_version_is_passed_over() {
        let text = print(program(), 1 << 20).replace("misses=3", "misses=3,laps=5");
        assert_eq!(parse(&text), Some(program()));
    }

    #[test]
    fn arrays_that_are_too_many_are_counted() {
        let mut many = program();
        many.arrays = vec![many.arrays[0].clone(); 1000];
        let text = print(many, 10_000);
        assert!(text.len() <= 10_000, "{}", text.len());
        let parsed = parse(&text).unwrap();
        assert!(parsed.arrays.len() > 5 && parsed.arrays.len() as u64 + parsed.left_out == 1000);
    }

    #[test]
    fn anything_else_is_not_understood_and_does_no_harm() {
        let text = print(program(), 1 << 20);
        for end in 0..text.len() {
            assert_eq!(parse(&text[..end]), None, "cut at {end}");
        }
        for at in 0..text.len() {
            for byte in ["", "\n", " ", "-", "99999999999999999999", "\u{0}", "ä"] {
                // Some of these texts are valid, because a name may contain any character.
                let _ = parse(&format!("{}{byte}{}", &text[..at], &text[at + 1..]));
            }
        }
        let lines: Vec<&str> = text.lines().collect();
        for (at, wrong) in [(0, "vmarray statistics 2"), (1, "program 1"), (2, lines[3]), (3, "channel 1 2")]
        {
            let mut lines = lines.clone();
            lines[at] = wrong;
            assert_eq!(parse(&format!("{}\n", lines.join("\n"))), None, "{wrong}");
        }
    }
}
