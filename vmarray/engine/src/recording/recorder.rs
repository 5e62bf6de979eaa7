//! The recording of a process.

use std::io::{self, Write};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use backend_api::{Device, Ticket};
use parking_lot::Mutex;

use super::events::{DeviceWork, Doing, Events};
use super::json;
use super::work::SubmittedWork;

/// True if a recording is running.
static RECORDS: AtomicBool = AtomicBool::new(false);
static EVENTS: LazyLock<Mutex<Events>> = LazyLock::new(Mutex::default);

/// A recording of the work of all arrays of the process. It ends when the program writes or drops it.
///
/// The result is a Chrome trace: open it at <https://ui.perfetto.dev> (no data leaves the machine) or in
/// `chrome://tracing`. The trace shows each device as a process, and each of its queues as a thread with the
/// work of the queue: `fetch`, `write`, `question`, `change`, with bytes and pieces. It also shows the
/// program's threads that missed or evicted pages. The times are not from the device's clock: in the trace,
/// work begins at its submission, or at the end of earlier work in its queue. It ends when a thread of the
/// program observes its end. The trace does not include the work of sessions, of
/// sources, and of joins.
///
/// A recording stores the first million events; `otherData` has the number of further events.
///
/// ```
/// use vmarray::prelude::*;
/// use vmarray::trace::Recording;
/// let array = VirtualArray::<u32>::builder(1000).page_len(100).build()?;
/// array.fill(.., 7)?;
/// let recording = Recording::begin().expect("no other thread records");
/// assert_eq!(array.sum(.., Field::whole())?, 7000);
/// let mut trace = Vec::new(); // or a file
/// recording.write(&mut trace).unwrap();
/// assert!(String::from_utf8(trace).unwrap().contains("\"question\""));
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "records until it is dropped"]
pub struct Recording(());

impl Recording {
    /// Begins a recording; returns `None` while another recording is active.
    pub fn begin() -> Option<Self> {
        let mut events = EVENTS.lock();
        if RECORDS.load(Ordering::Relaxed) {
            return None;
        }
        *events = Events::default();
        RECORDS.store(true, Ordering::Relaxed);
        Some(Self(()))
    }

    /// Ends the recording, and writes it as JSON. In the trace, unfinished work ends at the time of the call.
    ///
    /// # Errors
    /// The errors of the writer.
    pub fn write(self, to: impl Write) -> io::Result<()> {
        let events = end();
        drop(self);
        let mut to = io::BufWriter::new(to);
        json::write(&events, Instant::now(), &mut to)?;
        to.flush()
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        drop(end());
    }
}

/// Ends the recording, and returns its events.
fn end() -> Events {
    let mut events = EVENTS.lock();
    RECORDS.store(false, Ordering::Relaxed);
    std::mem::take(&mut *events)
}

/// Runs if a recording is running.
fn with_events(run: impl FnOnce(&mut Events)) {
    if RECORDS.load(Ordering::Relaxed) {
        let mut events = EVENTS.lock();
        // Check again under the lock: the recording may have ended meanwhile.
        if RECORDS.load(Ordering::Relaxed) && events.has_room() {
            run(&mut events);
        }
    }
}

pub(super) fn submitted(work: SubmittedWork, device: &dyn Device, ticket: Ticket) {
    with_events(|events| {
        let name = device.info().to_string();
        let known = events.devices.iter().position(|device| *device == name);
        let device = known.unwrap_or_else(|| {
            events.devices.push(name);
            events.devices.len() - 1
        });
        events.open.entry(ticket.queue).or_default().push_back(events.work.len());
        let submitted = Instant::now();
        events.work.push(DeviceWork { work, device, ticket, submitted, done: None, pieces: 0, bytes: 0 });
    });
}

pub(super) fn sized(ticket: Ticket, pieces: usize, bytes: impl FnOnce() -> u64) {
    if !RECORDS.load(Ordering::Relaxed) {
        return;
    }
    let mut events = EVENTS.lock();
    let Events { work, open, .. } = &mut *events;
    // Search from the latest entry, because the ticket was submitted a moment ago.
    let places = open.get(&ticket.queue).into_iter().flatten().rev();
    let mut found = places.copied().filter(|at| work[*at].ticket == ticket);
    if let Some(at) = found.next() {
        (work[at].pieces, work[at].bytes) = (pieces, bytes());
    }
}

pub(super) fn done(ticket: Ticket) {
    if !RECORDS.load(Ordering::Relaxed) {
        return;
    }
    let mut events = EVENTS.lock();
    let Events { work, open, .. } = &mut *events;
    let Some(places) = open.get_mut(&ticket.queue) else { return };
    let now = Instant::now();
    while let Some(&at) = places.front()
        && work[at].ticket.value <= ticket.value
    {
        work[at].done = Some(now);
        places.pop_front();
    }
}

/// An activity of a thread, until it is dropped.
#[doc(hidden)]
#[derive(Debug)]
pub struct Spent {
    on: &'static str,
    /// `None` if no recording was running.
    began: Option<Instant>,
}

impl Spent {
    pub(super) fn begin(on: &'static str) -> Self {
        Self { on, began: RECORDS.load(Ordering::Relaxed).then(Instant::now) }
    }
}

impl Drop for Spent {
    fn drop(&mut self) {
        if let Some(began) = self.began {
            with_events(|events| {
                // If another recording has begun meanwhile, no event may begin before that recording.
                let (began, thread) = (began.max(events.began), std::thread::current().id());
                let ended = Some(Instant::now());
                events.threads.push(Doing { what: self.on, thread, began, ended, pages: 1 });
            });
        }
    }
}

pub(super) fn happened(what: &'static str, pages: usize) {
    with_events(|events| {
        let (thread, began) = (std::thread::current().id(), Instant::now());
        events.threads.push(Doing { what, thread, began, ended: None, pages });
    });
}
