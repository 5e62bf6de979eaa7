//! Peer access: the devices of this process that can access each other's memory.

use std::sync::{Arc, Weak};

use backend_api::{BufferId, Extents, Gather, HostId, Request, Result, Scatter, Ticket, Transfer};
use parking_lot::{RwLock, RwLockReadGuard};
use vmarray_support::backends::MemoryTable;

use crate::handle_table::HandleTable;
use crate::host_memory::HostMemoryPiece;
use crate::storage::Storage;

/// List of the live devices that can access each other, with their handles and shared state.
///
/// A thread locks the list for reading from its lookup until the work is queued. A dropped device first
/// removes itself, so the list never keeps a part of a device alive.
#[derive(Debug)]
pub(crate) struct Peers<M, Q, S>(RwLock<Vec<Peer<M, Q, S>>>);

#[derive(Debug)]
struct Peer<M, Q, S> {
    registry: Weak<HandleTable<M, Q>>,
    state: Weak<S>,
}

impl<M, Q, S> Default for Peers<M, Q, S> {
    fn default() -> Self {
        Self::new()
    }
}

impl<M, Q, S> Peers<M, Q, S> {
    /// Creates an empty list of devices.
    pub const fn new() -> Self {
        Self(RwLock::new(Vec::new()))
    }
}

/// Parts of a live device.
type Alive<M, Q, S> = (Arc<HandleTable<M, Q>>, Arc<S>);

/// The locked list of devices; none of them can be dropped meanwhile.
pub(crate) struct Members<'a, M, Q, S> {
    /// Declared first, so it is dropped before the lock.
    all: Vec<Alive<M, Q, S>>,
    _list: RwLockReadGuard<'a, Vec<Peer<M, Q, S>>>,
}

/// The locked memory table (buffers and host memory by id) of a device.
pub(crate) type MemoryGuard<'a, M, Q> =
    (&'a HandleTable<M, Q>, RwLockReadGuard<'a, MemoryTable<M, HostMemoryPiece>>);

impl<M: Storage, Q, S> Peers<M, Q, S> {
    /// Adds a device to the list.
    pub fn add(&self, registry: &Arc<HandleTable<M, Q>>, state: &Arc<S>) {
        self.0.write().push(Peer { registry: Arc::downgrade(registry), state: Arc::downgrade(state) });
    }

    /// Removes a device from the list. Then no other device starts to submit work on that device's memory.
    pub fn remove(&self, registry: &Arc<HandleTable<M, Q>>) {
        self.0.write().retain(|peer| !std::ptr::eq(peer.registry.as_ptr(), Arc::as_ptr(registry)));
    }

    /// Locks the list for reading; returns all live devices. The caller must not hold a memory table's lock.
    pub fn members(&self) -> Members<'_, M, Q, S> {
        let list = self.0.read();
        let alive = list.iter().filter_map(|peer| Some((peer.registry.upgrade()?, peer.state.upgrade()?)));
        Members { all: alive.collect(), _list: list }
    }
}

impl<M: Storage, Q, S> Members<'_, M, Q, S> {
    /// Iterates over the handle table and the state of each device.
    pub fn iter(&self) -> impl Iterator<Item = (&HandleTable<M, Q>, &Arc<S>)> {
        self.all.iter().map(|(registry, state)| (&**registry, state))
    }

    /// Locks all devices' memory tables (buffers by id) for reading. All threads lock them in the order of
    /// the list, so the threads cannot deadlock.
    pub fn memory(&self) -> Vec<MemoryGuard<'_, M, Q>> {
        self.iter().map(|(registry, _)| (registry, registry.memory())).collect()
    }

    /// Finds the device that issued a ticket (submission), and its queue unless the queue has ended.
    pub fn queue_of(&self, operation: &'static str, ticket: Ticket) -> Option<(&Arc<S>, Option<Arc<Q>>)> {
        self.iter().find_map(|(registry, state)| Some((state, registry.queue_of(operation, ticket).ok()?)))
    }
}

/// Returns true if a request uses memory of another device.
pub(crate) fn names_others<M: Storage>(own: &MemoryTable<M, HostMemoryPiece>, request: &Request<'_>) -> bool {
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

/// Memory that a request may use: memory of its device, and of other devices.
pub(crate) struct KnownMemory<'a, M, Q> {
    /// Memory table (buffers and host memory by id) of the device that runs the request.
    pub own: &'a MemoryTable<M, HostMemoryPiece>,
    /// Tables of all devices in [`Peers`], including `own`, if the request may use them all; else empty.
    pub others: &'a [MemoryGuard<'a, M, Q>],
}

impl<'a, M: Storage, Q> KnownMemory<'a, M, Q> {
    /// Returns the memory that a request to the device `registry` may use; `None` if `all` lacks this device.
    pub fn among(registry: &HandleTable<M, Q>, all: &'a [MemoryGuard<'a, M, Q>]) -> Option<Self> {
        let own = all.iter().find(|(member, _)| std::ptr::eq(*member, registry))?;
        Some(Self { own: &own.1, others: all })
    }

    /// Looks up a buffer in the memory of all devices.
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

impl<M: Storage, Q> Extents for KnownMemory<'_, M, Q> {
    fn device_bytes(&self, buffer: BufferId) -> Option<u64> {
        let others = || self.others.iter().find_map(|(_, memory)| memory.device_bytes(buffer));
        self.own.device_bytes(buffer).or_else(others)
    }

    fn host_bytes(&self, host: HostId) -> Option<u64> {
        self.own.host_bytes(host)
    }
}
