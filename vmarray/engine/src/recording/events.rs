//! The events of a recording.

use std::collections::{HashMap, VecDeque};
use std::thread::ThreadId;
use std::time::Instant;

use backend_api::{QueueId, Ticket};

use super::work::SubmittedWork;

/// Maximum number of stored events, which take about 100 MB. The recording only counts later events.
const EVENTS_MAX: usize = 1 << 20;

/// The recorded events.
#[derive(Debug)]
pub(super) struct Events {
    pub began: Instant,
    /// Work of devices, in the order of submission.
    pub work: Vec<DeviceWork>,
    /// Activities of threads of the program.
    pub threads: Vec<Doing>,
    /// Number of events that were not stored, because the recording was full.
    pub left_out: u64,
    /// The names of devices, each once.
    pub devices: Vec<String>,
    /// Unfinished work, by its place in the list.
    pub open: HashMap<QueueId, VecDeque<usize>>,
}

/// A submission.
#[derive(Debug)]
pub(super) struct DeviceWork {
    pub work: SubmittedWork,
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
    /// The end of the event; `None` for an event without a duration.
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
    /// Returns true if there is room for another event; counts it if there is none.
    pub fn has_room(&mut self) -> bool {
        let has_room = self.work.len() + self.threads.len() < EVENTS_MAX;
        self.left_out += u64::from(!has_room);
        has_room
    }
}
