//! Events as a Chrome trace.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::time::Instant;

use backend_api::QueueId;

use super::SubmittedWork;
use super::recorder::Events;

/// The program's own number among the processes of the trace; devices follow it.
const PROGRAM: usize = 1;

impl SubmittedWork {
    fn name(self) -> &'static str {
        match self {
            Self::Fetch => "fetch",
            Self::Write => "write",
            Self::Question => "question",
            Self::Change => "change",
        }
    }
}

/// Quotes a string for JSON.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => {
                // Writing to a string does not fail.
                let _ = write!(quoted, "\\u{:04x}", u32::from(c));
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

/// Writes all events; unfinished ones end `now`.
pub(super) fn write(events: &Events, now: Instant, to: &mut impl Write) -> io::Result<()> {
    let at = |time: Instant| time.saturating_duration_since(events.began).as_nanos() as f64 / 1000.0;
    let mut lines = Vec::new();
    let name = |what, process, thread, name: &str| {
        let name = quoted(name);
        format!(r#"{{"name":"{what}","ph":"M","pid":{process},"tid":{thread},"args":{{"name":{name}}}}}"#)
    };
    lines.push(name("process_name", PROGRAM, 0, "program"));
    for (number, device) in events.devices.iter().enumerate() {
        lines.push(name("process_name", PROGRAM + 1 + number, 0, device));
    }
    // In each queue, work begins after all earlier work has ended.
    let mut queues: BTreeMap<QueueId, (usize, Instant)> = BTreeMap::new();
    for piece in &events.work {
        let (number, process) = (queues.len() + 1, PROGRAM + 1 + piece.device);
        let (thread, free) = queues.entry(piece.ticket.queue).or_insert_with(|| {
            lines.push(name("thread_name", process, number, &format!("queue {number}")));
            (number, piece.submitted)
        });
        let begins = piece.submitted.max(*free);
        let ends = piece.done.unwrap_or(now).max(begins);
        *free = ends;
        lines.push(format!(
            r#"{{"name":"{}","ph":"X","pid":{process},"tid":{thread},"ts":{},"dur":{},"args":{{"pieces":{},"bytes":{},"waited_us":{}}}}}"#,
            piece.work.name(),
            at(begins),
            at(ends) - at(begins),
            piece.pieces,
            piece.bytes,
            at(begins) - at(piece.submitted),
        ));
    }
    let mut threads = Vec::new();
    for doing in &events.threads {
        let known = threads.iter().position(|thread| *thread == doing.thread);
        let thread = known.unwrap_or_else(|| {
            threads.push(doing.thread);
            lines.push(name("thread_name", PROGRAM, threads.len(), &format!("thread {}", threads.len())));
            threads.len() - 1
        }) + 1;
        let shape = match doing.ended {
            Some(ended) => format!(r#""ph":"X","dur":{}"#, at(ended) - at(doing.began)),
            None => r#""ph":"i","s":"t""#.to_owned(),
        };
        lines.push(format!(
            r#"{{"name":"{}",{shape},"pid":{PROGRAM},"tid":{thread},"ts":{},"args":{{"pages":{}}}}}"#,
            doing.what,
            at(doing.began),
            doing.pages,
        ));
    }
    let left_out = events.left_out;
    write!(
        to,
        "{{\"otherData\":{{\"left_out\":\"{left_out}\"}},\"traceEvents\":[\n{}\n]}}\n",
        lines.join(",\n")
    )
}

#[cfg(all(test, feature = "host"))]
mod tests {
    use std::sync::Arc;

    use backend_host::SimulatedDevice;

    use super::super::recorder::Recording;
    use super::*;
    use crate::prelude::*;

    #[test]
    fn strings_are_quoted() {
        assert_eq!(quoted("a \"b\" \\ \n"), r#""a \"b\" \\ \u000a""#);
    }

    /// Returns the whole numbers behind a key, in all lines that contain a text.
    fn numbers(trace: &str, text: &str, key: &str) -> Vec<u64> {
        let lines = trace.lines().filter(|line| line.contains(text));
        let number = |line: &str| {
            let rest = &line[line.find(key)? + key.len()..];
            rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
        };
        lines.filter_map(number).collect()
    }

    #[test]
    fn a_recording_matches_the_statistics() {
        let device = Arc::new(SimulatedDevice::builder(4711).build());
        let builder = VirtualArray::<u32>::builder(6400).devices([device]).page_len(64).read_ahead(false);
        let array = builder.frames_per_channel(10).build().unwrap();
        array.set(0, 1).unwrap();
        // Other tests of this process may use arrays meanwhile, but none of them records.
        let recording = Recording::begin().unwrap();
        assert!(Recording::begin().is_none());
        let watch = array.watch();
        for index in (0..6400).step_by(64) {
            array.set(index, 7).unwrap();
        }
        for index in (0..6400).step_by(64) {
            assert_eq!(array.get(index).unwrap(), 7);
        }
        array.transform(.., Field::whole().set(Field::whole() + 1)).unwrap();
        assert_eq!(array.sum(.., Field::whole()).unwrap(), 100 * 7 + 6400);
        let total = watch.report().stats.total();
        let mut trace = Vec::new();
        recording.write(&mut trace).unwrap();
        let trace = String::from_utf8(trace).unwrap();
        let device = array.pager().channels()[0].device().info().to_string();
        let own = numbers(&trace, &device, "\"pid\":")[0];
        let of = |what: &str, key: &str| -> u64 {
            let lines: Vec<&str> =
                trace.lines().filter(|line| line.contains(&format!("\"pid\":{own},"))).collect();
            numbers(&lines.join("\n"), &format!("\"name\":\"{what}\""), key).iter().sum()
        };
        let fetched = total.misses - 99;
        assert_eq!(
            (of("fetch", "\"pieces\":"), of("fetch", "\"bytes\":")),
            (fetched, 256 * fetched),
            "{trace}"
        );
        assert_eq!(of("write", "\"bytes\":"), total.bytes_to_device, "{trace}");
        assert_eq!(
            of("question", "\"bytes\":") + of("change", "\"bytes\":"),
            total.bytes_in_place,
            "{trace}"
        );
        assert!(numbers(&trace, "\"name\":\"miss\"", "\"pages\":").len() as u64 >= total.misses);
        assert!(numbers(&trace, "\"name\":\"evicted\"", "\"pages\":").iter().sum::<u64>() >= total.evictions);
        // Braces and quotes match, and no recording is left.
        assert_eq!(trace.matches('{').count(), trace.matches('}').count());
        assert_eq!(trace.matches('"').count() % 2, 0);
        array.get(5).unwrap();
        let mut empty = Vec::new();
        Recording::begin().unwrap().write(&mut empty).unwrap();
        assert_eq!(String::from_utf8(empty).unwrap().lines().count(), 3);
    }
}
