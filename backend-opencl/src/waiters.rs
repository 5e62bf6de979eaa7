//! How threads wait for the driver.

use std::sync::Arc;
use std::time::{Duration, Instant};

use backend_api::DeviceKind;
use parking_lot::Mutex;

use crate::options::{Options, Waiting};
use crate::track::Mark;

/// How long to ask, unless the options say otherwise.
const PATIENCE: Duration = Duration::from_micros(20);
/// The first pause between two questions, in turns of the processor's spin hint.
const PAUSE: u32 = 4;
/// The longest pause of a waiter that backs off.
const LONGEST_PAUSE: u32 = 256;

/// The threads that wait for work of one device.
#[derive(Debug)]
pub(crate) struct Waiters {
    waiting: Waiting,
    /// How long to ask before sleeping in the driver.
    patience: Duration,
    /// What all wait for, where they ask together.
    marks: Mutex<Vec<Arc<Mark>>>,
    /// Held by the thread that asks for all.
    turn: Mutex<()>,
}

impl Waiters {
    pub fn new(options: &Options, kind: DeviceKind) -> Self {
        let usual = if kind == DeviceKind::Cpu { Duration::ZERO } else { PATIENCE };
        let patience = options.patience.unwrap_or(usual);
        Self { waiting: options.waiting, patience, marks: Mutex::default(), turn: Mutex::new(()) }
    }

    /// Blocks until the commands of `mark` are done or have failed.
    pub fn wait(&self, mark: &Arc<Mark>) {
        if mark.status() <= 0 {
            return;
        }
        let done = !self.patience.is_zero()
            && match self.waiting {
                Waiting::Spin => self.spin(mark, 1),
                Waiting::BackOff => self.spin(mark, 2),
                Waiting::Together => self.ask_together(mark),
            };
        if !done {
            mark.sleep();
        }
    }

    /// Asks again and again with pauses that grow by `factor`; false if that took too long.
    fn spin(&self, mark: &Mark, factor: u32) -> bool {
        let start = Instant::now();
        let mut pause = PAUSE;
        while start.elapsed() < self.patience {
            for _ in 0..pause {
                std::hint::spin_loop();
            }
            pause = (pause * factor).min(LONGEST_PAUSE);
            if mark.status() <= 0 {
                return true;
            }
        }
        false
    }

    /// One of the waiters asks for all of them, the others only look at what it has found out; false if that took too
    /// long.
    fn ask_together(&self, mark: &Arc<Mark>) -> bool {
        let start = Instant::now();
        self.marks.lock().push(Arc::clone(mark));
        let mut asked = Vec::new();
        while mark.known() > 0 && start.elapsed() < self.patience {
            let Some(_turn) = self.turn.try_lock() else {
                for _ in 0..PAUSE {
                    std::hint::spin_loop();
                }
                continue;
            };
            while mark.known() > 0 && start.elapsed() < self.patience {
                asked.clone_from(&*self.marks.lock());
                for other in &asked {
                    other.status();
                }
            }
        }
        self.marks.lock().retain(|other| !Arc::ptr_eq(other, mark));
        mark.known() <= 0
    }
}
