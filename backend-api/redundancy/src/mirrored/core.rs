//! The state that a mirror's handles and tasks share, and methods that poll and await submissions (tickets).

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Weak};
use std::task::{Wake, Waker};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::host::MirrorMemory;
use super::member::Member;
use super::state::MirrorState;
use super::wakers::{DeferringCall, is_deferred};
use backend_api::{Device, DeviceInfo, Error, ErrorKind, QueueProgress, Reach, Result, Route, Ticket};
use vmarray_support::contended;
use vmarray_support::links::{is_same, reach};

/// The state that all handles of a mirror share: its devices, and the work in flight on them.
#[derive(Debug)]
pub(super) struct MirrorCore {
    pub(super) info: DeviceInfo,
    pub(super) routes: Vec<Route>,
    pub(super) state: Mutex<MirrorState>,
    /// Notified when a copy from device to device has ended, and when no submission waits for this any more.
    pub(super) opened: Condvar,
    /// A thread holds this lock while it creates queues or memory, or while a device joins or leaves.
    pub(super) setup: Mutex<()>,
    /// The thread that rebuilds holds this lock, because only one thread may rebuild.
    pub(super) rebuilding: Mutex<()>,
    pub(super) next_member: AtomicU64,
    /// The mirror's own host memory. It must be dropped after the devices, which copy from and to it.
    pub(super) own: Mutex<MirrorMemory>,
}

/// Returns the ids of the devices that can copy directly to the spare, without the host.
pub(super) fn links_to(devices: &[(u64, Arc<dyn Device>)], spare: &Arc<dyn Device>) -> Vec<u64> {
    let report = |from: &dyn Device, to: &dyn Device, error: Option<&Error>| {
        let (from, to) = (from.info(), to.info());
        tracing::warn!(%from, %to, ?error, "a mirror is copied through the host, because a link corrupts \
                                            data");
    };
    let linked = devices
        .iter()
        .filter(|(_, device)| !is_same(device, spare) && reach(device, spare, report) != Reach::No);
    linked.map(|(id, _)| *id).collect()
}

impl MirrorCore {
    pub(super) fn lock(&self) -> MutexGuard<'_, MirrorState> {
        contended::lock(&self.state)
    }

    /// Calls `run` for each working device. Returns the first error except losses, or an error if all are
    /// lost.
    pub(super) fn on_each(&self, operation: &'static str, run: impl Fn(&Member) -> Result<()>) -> Result<()> {
        let _call = DeferringCall::begin();
        let mut state = self.lock();
        let mut outcome = Ok(());
        for at in 0..state.members.len() {
            let member = &state.members[at];
            let (id, is_there) = (member.id, member.is_there());
            let Err(error) = (if is_there { run(member) } else { Ok(()) }) else { continue };
            if error.kind() == ErrorKind::Lost {
                state.lose(id, &error);
            } else {
                outcome = outcome.and(Err(error));
            }
        }
        outcome.and_then(|()| state.primary().map(drop).ok_or_else(|| state.all_lost(operation)))
    }

    pub(super) fn unknown(&self, operation: &'static str, detail: &str) -> Error {
        Error::new(ErrorKind::UnknownHandle, operation).with_detail(detail).on(&self.info)
    }

    /// Checks that the mirror has issued a ticket. Returns true if it is done because its queue was released.
    pub(super) fn check_ticket(
        &self,
        state: &MirrorState,
        operation: &'static str,
        ticket: Ticket,
    ) -> Result<bool> {
        let ended = state.ended.get(&ticket.queue).copied();
        let newest = ended.or_else(|| state.queues.get(&ticket.queue).map(|log| log.newest));
        match newest {
            Some(newest) if ticket.value <= newest => Ok(ended.is_some()),
            Some(_) => Err(self.unknown(operation, &format!("ticket {} was never issued", ticket.value))),
            None => Err(self.unknown(operation, "the queue is released, or belongs to another device")),
        }
    }

    pub(super) fn poll(&self, ticket: Ticket) -> Result<QueueProgress> {
        let _call = DeferringCall::begin();
        let mut state = self.lock();
        if self.check_ticket(&state, "poll", ticket)? {
            return Ok(QueueProgress::Done);
        }
        if state.settle_up_to(ticket.queue, ticket.value).is_some() {
            return Ok(QueueProgress::Pending);
        }
        state.outcome(ticket).map(|()| QueueProgress::Done)
    }

    pub(super) fn wait(&self, ticket: Ticket) -> Result<()> {
        let _call = DeferringCall::begin();
        loop {
            let mut state = self.lock();
            if self.check_ticket(&state, "wait", ticket)? {
                return Ok(());
            }
            let Some(part) = state.settle_up_to(ticket.queue, ticket.value) else {
                return state.outcome(ticket);
            };
            drop(state);
            // Ignore this wait's outcome, because the next iteration's poll returns it.
            let _ = part.device.wait(part.ticket);
        }
    }

    /// Wakes `waker` when a ticket is done or has failed.
    pub(super) fn wake(self: &Arc<Self>, ticket: Ticket, waker: Waker) {
        let call = DeferringCall::begin();
        let mut state = self.lock();
        let is_over = self.check_ticket(&state, "wake", ticket).unwrap_or(true);
        let part = if is_over { None } else { state.settle_up_to(ticket.queue, ticket.value) };
        drop(state);
        match part {
            Some(part) => {
                let (core, waker) = (Arc::downgrade(self), Mutex::new(Some(waker)));
                part.device.wake(part.ticket, Arc::new(ChainedWaker { core, ticket, waker }).into());
            }
            None => {
                drop(call);
                waker.wake();
            }
        }
    }
}

/// A waker that wraps a waker of the program. When one device's part ends, it checks the ticket again,
/// because another device may still have to do work for it.
struct ChainedWaker {
    core: Weak<MirrorCore>,
    ticket: Ticket,
    waker: Mutex<Option<Waker>>,
}

impl Wake for ChainedWaker {
    fn wake(self: Arc<Self>) {
        if is_deferred(|| Arc::clone(&self).into()) {
            return;
        }
        let Some(waker) = self.waker.lock().take() else { return };
        match self.core.upgrade() {
            Some(core) => core.wake(self.ticket, waker),
            None => waker.wake(),
        }
    }
}
