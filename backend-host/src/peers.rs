//! Devices of one process that reach each other's memory.

use std::sync::{Arc, Weak};

use backend_api::backends::Memory;
use backend_api::{BufferId, Extents, Gather, HostId, Request, Result, Scatter, Ticket, Transfer};
use parking_lot::{RwLock, RwLockReadGuard};

use crate::host_memory::Piece;
use crate::medium::Medium;
use crate::registry::Registry;

/// The names of devices that reach each other, of those that live; with each what else a device needs of the
/// others.
///
/// Who looks something up there keeps the list locked until the work is in its queue. A device that is
/// dropped takes itself off the list first, so nobody keeps a part of it alive after that.
#[derive(Debug)]
pub(crate) struct Peers<M, Q, S>(RwLock<Vec<Peer<M, Q, S>>>);

#[derive(Debug)]
struct Peer<M, Q, S> {
    registry: Weak<Registry<M, Q>>,
    state: Weak<S>,
}

impl<M, Q, S> Default for Peers<M, Q, S> {
    fn default() -> Self {
        Self::new()
    }
}

impl<M, Q, S> Peers<M, Q, S> {
    /// No devices.
    pub const fn new() -> Self {
        Self(RwLock::new(Vec::new()))
    }
}

/// What a device has, which lives.
type Alive<M, Q, S> = (Arc<Registry<M, Q>>, Arc<S>);

/// The devices of a list, while none of them can go.
pub(crate) struct Members<'a, M, Q, S> {
    /// Dropped before the lock is.
    all: Vec<Alive<M, Q, S>>,
    _list: RwLockReadGuard<'a, Vec<Peer<M, Q, S>>>,
}

/// The memory of a device, locked.
pub(crate) type Locked<'a, M, Q> = (&'a Registry<M, Q>, RwLockReadGuard<'a, Memory<M, Piece>>);

impl<M: Medium, Q, S> Peers<M, Q, S> {
    /// Enters a device.
    pub fn add(&self, registry: &Arc<Registry<M, Q>>, state: &Arc<S>) {
        self.0.write().push(Peer { registry: Arc::downgrade(registry), state: Arc::downgrade(state) });
    }

    /// Takes a device off the list. After that no other one is about to submit work on its memory.
    pub fn remove(&self, registry: &Arc<Registry<M, Q>>) {
        self.0.write().retain(|peer| !std::ptr::eq(peer.registry.as_ptr(), Arc::as_ptr(registry)));
    }

    /// All devices. The calling thread has no memory locked.
    pub fn members(&self) -> Members<'_, M, Q, S> {
        let list = self.0.read();
        let alive = list.iter().filter_map(|peer| Some((peer.registry.upgrade()?, peer.state.upgrade()?)));
        Members { all: alive.collect(), _list: list }
    }
}

impl<M: Medium, Q, S> Members<'_, M, Q, S> {
    /// What each has.
    pub fn iter(&self) -> impl Iterator<Item = (&Registry<M, Q>, &Arc<S>)> {
        self.all.iter().map(|(registry, state)| (&**registry, state))
    }

    /// The memory of each, locked in the order of the list, which is the same for all threads.
    pub fn memory(&self) -> Vec<Locked<'_, M, Q>> {
        self.iter().map(|(registry, _)| (registry, registry.memory())).collect()
    }

    /// The device that has given a ticket, with its queue unless that has ended.
    pub fn queue_of(&self, operation: &'static str, ticket: Ticket) -> Option<(&Arc<S>, Option<Arc<Q>>)> {
        self.iter().find_map(|(registry, state)| Some((state, registry.queue_of(operation, ticket).ok()?)))
    }
}

/// Whether a request names device memory that this does not know, where places of others may be named.
pub(crate) fn names_others<M: Medium>(own: &Memory<M, Piece>, request: &Request<'_>) -> bool {
    let is_strange = |buffer: BufferId| own.device_bytes(buffer).is_none();
    match request {
        Request::Copies(transfers, _) => transfers.iter().any(|transfer| match transfer {
            Transfer::Internal { from, to, .. } => is_strange(from.buffer()) || is_strange(to.buffer()),
            _ => false,
        }),
        Request::Launch(launch) => {
            launch.views.iter().flat_map(|view| view.bases()).any(|base| is_strange(base.buffer()))
        }
        Request::Gather(Gather { elements, .. }) | Request::Scatter(Scatter { elements, .. }) => {
            elements.bases().iter().any(|base| is_strange(base.buffer()))
        }
        _ => false,
    }
}

/// The memory that a request may name: a device's own, and that of others.
pub(crate) struct Known<'a, M, Q> {
    /// That of the device.
    pub own: &'a Memory<M, Piece>,
    /// That of all that it reaches, where the request may name it.
    pub others: &'a [Locked<'a, M, Q>],
}

impl<'a, M: Medium, Q> Known<'a, M, Q> {
    /// That of a device among all of its list.
    pub fn among(registry: &Registry<M, Q>, all: &'a [Locked<'a, M, Q>]) -> Option<Self> {
        let own = all.iter().find(|(member, _)| std::ptr::eq(*member, registry))?;
        Some(Self { own: &own.1, others: all })
    }

    /// A buffer of any of the devices.
    ///
    /// # Errors
    /// [`UnknownHandle`](backend_api::ErrorKind::UnknownHandle).
    pub fn buffer(&self, operation: &'static str, id: BufferId) -> Result<&Arc<M>> {
        self.own.buffer(operation, id).or_else(|unknown| {
            let found = self.others.iter().find_map(|(registry, memory)| {
                let buffer = memory.buffer(operation, id).ok()?;
                registry.note_visit();
                Some(buffer)
            });
            found.ok_or(unknown)
        })
    }
}

impl<M: Medium, Q> Extents for Known<'_, M, Q> {
    fn device_bytes(&self, buffer: BufferId) -> Option<u64> {
        let others = || self.others.iter().find_map(|(_, memory)| memory.device_bytes(buffer));
        self.own.device_bytes(buffer).or_else(others)
    }

    fn host_bytes(&self, host: HostId) -> Option<u64> {
        self.own.host_bytes(host)
    }
}
