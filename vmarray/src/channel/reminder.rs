//! A second look, a moment later: for what is right as a rule, and has to be put right where it is not.
//!
//! The one thread of this library. It is started when it is needed first, and ends when it was not needed for a while.

use std::collections::VecDeque;
use std::mem;
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::page::wake;

/// Long for a task that is polled as soon as it is woken, also where a processor has other things to do.
const MOMENT: Duration = Duration::from_millis(10);
/// How long the thread sleeps at least, so that many who are due one after another share a turn.
const PAUSE: Duration = Duration::from_millis(1);
/// How long the thread stays for nothing.
const IDLE: Duration = Duration::from_secs(1);

struct Reminders {
    /// In the order in which they are due.
    due: VecDeque<(Instant, Waker)>,
    is_running: bool,
}

static REMINDERS: Mutex<Reminders> = Mutex::new(Reminders { due: VecDeque::new(), is_running: false });
static NEWS: Condvar = Condvar::new();

/// Wakes a waker in a moment; at once if the system gives no thread.
pub(super) fn remind(waker: Waker) {
    let mut reminders = REMINDERS.lock();
    reminders.due.push_back((Instant::now() + MOMENT, waker));
    if mem::replace(&mut reminders.is_running, true) {
        drop(reminders);
        NEWS.notify_one();
        return;
    }
    drop(reminders);
    if thread::Builder::new().name("vmarray-reminder".into()).spawn(run).is_err() {
        let mut reminders = REMINDERS.lock();
        reminders.is_running = false;
        let due = mem::take(&mut reminders.due);
        drop(reminders);
        due.into_iter().for_each(|(_, waker)| wake(waker));
    }
}

fn run() {
    let mut reminders = REMINDERS.lock();
    loop {
        let now = Instant::now();
        match reminders.due.front() {
            Some(&(at, _)) if at > now => {
                MutexGuard::unlocked(&mut reminders, || thread::sleep((at - now).max(PAUSE)));
            }
            Some(_) => {
                let due = reminders.due.pop_front();
                MutexGuard::unlocked(&mut reminders, || due.into_iter().for_each(|(_, waker)| wake(waker)));
            }
            None => {
                if NEWS.wait_for(&mut reminders, IDLE).timed_out() && reminders.due.is_empty() {
                    reminders.is_running = false;
                    return;
                }
            }
        }
    }
}
