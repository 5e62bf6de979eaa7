//! Wake-ups of tasks that wait without a request of their own: for transfers of other threads, for frames,
//! and for page guards.

use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::task::Waker;

use backend_api::QueueProgress;

use super::async_progress::{Serving, UNDER_WAY_MAX};
use super::frame_reservation::{KeptForReads, ReservedFrames};
use super::{Channel, PageRequest};
use crate::base::error::Result;
use crate::engine::combiner::Combiner;
use crate::engine::guards;
use crate::engine::page::state::IN_FLIGHT;
use crate::engine::page::{Asleep, PageTable, park_task, wake};

/// The kind of a task's wait.
#[derive(Debug)]
pub(crate) enum TaskWait {
    /// No wait: the task tries again at once.
    No,
    /// The task was woken already, to try again.
    Woken,
    /// The task is registered, while this value lives, and is woken to try again.
    Asleep(Asleep),
}

/// The requests of tasks to a channel, and the reasons why they may be stuck.
#[derive(Debug)]
pub(super) struct TaskRequests {
    pub(super) requests: Combiner<Arc<PageRequest>, Serving>,
    pub(super) driver: OnceLock<Waker>,
    pub(super) kept_for_reads: Arc<KeptForReads>,
    /// True if the first request in the queue has no frame.
    pub(super) is_short_of_frames: AtomicBool,
    /// True if, in addition, only the program can free a frame, by dropping a guard.
    pub(super) are_all_kept: AtomicBool,
}

impl TaskRequests {
    pub(super) fn new(reserved: &ReservedFrames) -> Self {
        Self {
            requests: Combiner::new(UNDER_WAY_MAX, Serving::default()),
            driver: OnceLock::new(),
            kept_for_reads: Arc::clone(reserved.for_reads()),
            is_short_of_frames: AtomicBool::new(false),
            are_all_kept: AtomicBool::new(false),
        }
    }
}

impl Channel {
    /// Registers a task that needs a page in transfer.
    pub(crate) fn poll_transfer(&self, table: &PageTable, page: u64, waker: &Waker) -> TaskWait {
        let found = self.lock().work.transfer_of(page).map(|submission| submission.ticket);
        let Some(ticket) = found else {
            // Either the owner of the transfer has not recorded it yet, or another thread has just finished
            // it. So poll the task again.
            wake(waker.clone());
            return TaskWait::Woken;
        };
        if matches!(self.device.poll(ticket), Ok(QueueProgress::Pending)) {
            self.drive_when_done(ticket);
            // The thread that ends the transfer wakes the threads and tasks that wait for the page.
            let asleep = park_task(table.entry(page), waker, |state| state.any(IN_FLIGHT));
            return asleep.map_or(TaskWait::No, TaskWait::Asleep);
        }
        // Ignore an error here, because the requester of the transfer reports it.
        let _ = self.finish(table, ticket);
        TaskWait::No
    }

    /// Registers a task, whose request waits for a frame, for other events that may end the wait.
    ///
    /// # Errors
    /// [`TooManyGuards`](crate::ErrorKind::TooManyGuards) if guards hold all frames, one by this thread.
    pub(crate) fn poll_frames(&self, waker: &Waker) -> Result<TaskWait> {
        if !self.are_all_kept() {
            return Ok(TaskWait::No);
        }
        if guards::held() {
            return Err(self.too_many_guards(self.layout.frames_max));
        }
        Ok(self.sleep_as_task(waker, || self.are_all_kept()))
    }

    /// Counts a guard if the limit allows it; otherwise returns the kind of wait.
    ///
    /// # Errors
    /// [`TooManyGuards`](crate::ErrorKind::TooManyGuards) if the calling thread holds guards.
    pub(crate) fn poll_guard(&self, waker: &Waker) -> Result<Option<TaskWait>> {
        if self.try_admit_guard() {
            return Ok(None);
        }
        let frames = self.guards.max.load(Ordering::Relaxed);
        if guards::held() {
            return Err(self.too_many_guards(frames));
        }
        Ok(Some(self.sleep_as_task(waker, || self.guards.count.load(Ordering::SeqCst) >= frames)))
    }

    /// Registers a task for [`announce`](Self::announce), if a condition still holds.
    fn sleep_as_task(&self, waker: &Waker, holds: impl Fn() -> bool) -> TaskWait {
        let asleep = Asleep::at(self.task_key(), waker);
        // Pairs with the fence of `announce`: this check sees the change, or the other thread sees the task.
        fence(Ordering::SeqCst);
        if holds() { TaskWait::Asleep(asleep) } else { TaskWait::No }
    }

    /// Key under which tasks wait for [`announce`](Self::announce).
    pub(super) fn task_key(&self) -> usize {
        std::ptr::from_ref(&self.events).addr()
    }
}
