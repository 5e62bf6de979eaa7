//! The recorder of the process: collects events from all threads during a recording.

use std::collections::{HashMap, VecDeque};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::ThreadId;
use std::time::Instant;

use backend_api::{Device, QueueId, Ticket};
use parking_lot::Mutex;

/// Maximum number of stored events; they take about 100 MB. Later events are only counted.
const EVENTS_MAX: usize = 1 << 20;

static RECORDS: AtomicBool = AtomicBool::new(false);
static EVENTS: LazyLock<Mutex<Events>> = LazyLock::new(Mutex::default);

/// A recording of the work of all arrays of the process. It ends when the program writes or drops it.
///
/// The result is a Chrome trace: open it at <https://ui.perfetto.dev> (no data leaves the machine) or in
/// `chrome://tracing`. The trace shows each device as a process, and each of its queues as a thread with the
/// work of the queue: `fetch`, `write`, `question`, `change`, with bytes and pieces. It also shows the
/// program's threads that missed or evicted pages. The times come from the host's clock. Work begins in the
/// trace at its submission, or at the end of earlier work in its queue; it ends when a thread of the program
/// observes the end. The trace omits work of sessions, sources and joins.
///
/// A recording stores the first million events; `otherData` in the trace has the number of further events.
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
    /// Begins a recording. Returns `None` while another recording of the process is active.
    pub fn begin() -> Option<Self> {
        let mut events = EVENTS.lock();
        if RECORDS.load(Ordering::Relaxed) {
            return None;
        }
        *events = Events::default();
        RECORDS.store(true, Ordering::Relaxed);
        Some(Self(()))
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        drop(end());
    }
}

pub(super) fn end() -> Events {
    let mut events = EVENTS.lock();
    RECORDS.store(false, Ordering::Relaxed);
    std::mem::take(&mut *events)
}

/// The recorded events.
#[derive(Debug)]
pub(super) struct Events {
    pub began: Instant,
    /// The work of devices, in the order of submission.
    pub work: Vec<DeviceWork>,
    /// Activities of the program's threads, such as misses and evictions.
    pub threads: Vec<Doing>,
    /// Number of events that were not stored, because the recording was full.
    pub left_out: u64,
    /// The names of devices, each once.
    pub devices: Vec<String>,
    /// Indices in `work` of unfinished submissions, by queue.
    open: HashMap<QueueId, VecDeque<usize>>,
}

/// A submission to a device.
#[derive(Debug)]
pub(super) struct DeviceWork {
    pub work: &'static str,
    /// Index of the device in the list of devices.
    pub device: usize,
    pub ticket: Ticket,
    pub submitted: Instant,
    pub done: Option<Instant>,
    pub pieces: usize,
    pub bytes: u64,
}

/// An activity of a thread, or an event in it.
#[derive(Debug)]
pub(super) struct Doing {
    pub what: &'static str,
    pub thread: ThreadId,
    pub began: Instant,
    /// The end of the activity; `None` for an event without a duration.
    pub ended: Option<Instant>,
    pub pages: usize,
}

impl Default for Events {
    fn default() -> Self {
        let (work, threads, devices) = Default::default();
        Self { began: Instant::now(), work, threads, left_out: 0, devices, open: HashMap::new() }
    }
}

impl Events {
    fn has_room(&mut self) -> bool {
        let has_room = self.work.len() + self.threads.len() < EVENTS_MAX;
        self.left_out += u64::from(!has_room);
        has_room
    }
}

/// Runs a function on the events, if a recording is running.
fn with_events(run: impl FnOnce(&mut Events)) {
    if RECORDS.load(Ordering::Relaxed) {
        let mut events = EVENTS.lock();
        // Check again under the lock: the recording may have ended meanwhile.
        if RECORDS.load(Ordering::Relaxed) && events.has_room() {
            run(&mut events);
        }
    }
}

pub(super) fn submitted(work: &'static str, device: &dyn Device, ticket: Ticket) {
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
    // Search backwards from the latest entry, because the ticket was submitted a moment ago.
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

/// An activity of a thread, which the recorder adds when this value is dropped.
#[doc(hidden)]
#[derive(Debug)]
pub struct Spent {
    on: &'static str,
    /// Start of the activity; `None` if no recording was running then.
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
