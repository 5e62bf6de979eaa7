//! The events of a process, from when somebody records.

use std::collections::{HashMap, VecDeque};
use std::io::{self, Write};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::ThreadId;
use std::time::Instant;

use backend_api::{Device, QueueId, Ticket};
use parking_lot::Mutex;

use super::{SubmittedWork, json};

/// So many events are kept, which take some 100 MB; later ones are counted.
const EVENTS_MAX: usize = 1 << 20;

/// Whether anybody records.
static RECORDS: AtomicBool = AtomicBool::new(false);
static EVENTS: LazyLock<Mutex<Events>> = LazyLock::new(Mutex::default);

/// Records what the engines of all arrays of the process do, until it is written or dropped.
///
/// A Chrome trace: open it at <https://ui.perfetto.dev> (nothing leaves the machine) or in
/// `chrome://tracing`. Each device is a process there, with a thread for each of its queues, which shows its
/// work: `fetch`, `write`, `question`, `change`, with bytes and pieces. The program has a thread for each of
/// its own that missed or evicted pages. Work is taken to begin when it was submitted, or when the work
/// before it in its queue was over, and to end when a thread of the program took notice: devices are not
/// asked. Work of [sessions](crate::kernel::Session), of sources and of joins' own queues is not in it.
///
/// The first million events are kept; how many more there were is under `otherData`.
///
/// ```
/// # use vmarray::prelude::*;
/// use vmarray::trace::Recording;
/// let array = VirtualArray::<u32>::builder(1000).page_len(100).build()?;
/// array.fill(.., 7)?;
/// let recording = Recording::begin().expect("nobody else records");
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
    /// Begins to record; `None` while another recording is under way.
    pub fn begin() -> Option<Self> {
        let mut events = EVENTS.lock();
        if RECORDS.load(Ordering::Relaxed) {
            return None;
        }
        *events = Events::default();
        RECORDS.store(true, Ordering::Relaxed);
        Some(Self(()))
    }

    /// Ends it, and writes what was recorded, as JSON. Work that is still under way ends with it.
    ///
    /// # Errors
    /// Those of the writer.
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

/// Has nobody record any more.
fn end() -> Events {
    let mut events = EVENTS.lock();
    RECORDS.store(false, Ordering::Relaxed);
    std::mem::take(&mut *events)
}

/// What was recorded.
#[derive(Debug)]
pub(super) struct Events {
    pub began: Instant,
    /// Work of devices, in the order of submission.
    pub work: Vec<DeviceWork>,
    /// What threads of the program did.
    pub threads: Vec<Doing>,
    /// What there was no room for.
    pub left_out: u64,
    /// The names of devices, each once.
    pub devices: Vec<String>,
    /// Work that is under way, by its place in the list.
    open: HashMap<QueueId, VecDeque<usize>>,
}

/// A submission.
#[derive(Debug)]
pub(super) struct DeviceWork {
    pub work: SubmittedWork,
    /// The number of its device.
    pub device: usize,
    pub ticket: Ticket,
    pub submitted: Instant,
    pub done: Option<Instant>,
    pub pieces: usize,
    pub bytes: u64,
}

/// What a thread did, or what happened there.
#[derive(Debug)]
pub(super) struct Doing {
    pub what: &'static str,
    pub thread: ThreadId,
    pub began: Instant,
    /// `None` for what takes no time.
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

/// Runs if somebody records.
fn with_events(run: impl FnOnce(&mut Events)) {
    if RECORDS.load(Ordering::Relaxed) {
        let mut events = EVENTS.lock();
        // Else it is over meanwhile.
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
    // The latest first: it was submitted a moment ago.
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

/// What a thread does, until it is dropped.
#[derive(Debug)]
pub(crate) struct Spent {
    on: &'static str,
    /// Unless nobody recorded then.
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
                // A recording that began meanwhile has no such time.
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
