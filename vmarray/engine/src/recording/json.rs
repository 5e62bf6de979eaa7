//! Output of recorded events as a Chrome trace (JSON), which Perfetto displays.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::time::Instant;

use backend_api::QueueId;

use super::recorder::{Events, Recording, end};

/// The process number of the program in the trace; devices have the following numbers.
const PROGRAM: usize = 1;

impl Recording {
    /// Ends the recording, and writes it as JSON. In the trace, unfinished work ends with this call.
    ///
    /// # Errors
    /// The errors of the writer.
    pub fn write(self, to: impl Write) -> io::Result<()> {
        let events = end();
        drop(self);
        let mut to = io::BufWriter::new(to);
        write(&events, Instant::now(), &mut to)?;
        to.flush()
    }
}

/// Returns a string in quotes, escaped for JSON.
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

/// Writes all events as JSON. Unfinished work ends at the time `now`.
fn write(events: &Events, now: Instant, to: &mut impl Write) -> io::Result<()> {
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
    // Work in a queue begins after all earlier work has ended, so keep the time when each queue becomes free.
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
            piece.work,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_quoted() {
        assert_eq!(quoted("a \"b\" \\ \n"), r#""a \"b\" \\ \u000a""#);
    }
}
