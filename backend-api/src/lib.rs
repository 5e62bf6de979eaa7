//! The device contract of `vmarray`.
//!
//! A *device* is a card, or something that stands in for one: a piece of host RAM, a file, a simulation. This crate
//! knows none of them. It states what a device can do ([`Device`]), what it is ([`DeviceInfo`]) and what can go wrong
//! ([`Error`]), and brings what every backend or every user of a backend would otherwise write again: owners that
//! give memory back ([`DeviceBuffer`], [`HostBuffer`], [`Queue`]), the book-keeping of a queue that is worked off by
//! software ([`Timeline`]), copies that may race ([`racy`]), wrappers that count, fail or delay ([`wrap`]), and a suite
//! that checks a backend against everything said here (feature `conformance`).
//!
//! # The contract
//!
//! **Names.** A device hands out opaque names: [`BufferId`] for device memory, [`HostId`] for host memory that it can
//! copy from and to, [`QueueId`] for queues. Names are unique in the process. One that a device does not know is
//! refused with [`ErrorKind::UnknownHandle`]. Opaque names rather than associated types, because arrays over mixed
//! devices dispatch through an enum, which associated types would forbid; the owners bring back what types would have
//! given.
//!
//! **Validation.** A device checks every name and every range before it starts anything, so `submit` and its sisters
//! are safe functions: no copy or kernel ever leaves the memory that its names stand for. Arithmetic on what callers
//! pass never overflows silently.
//!
//! **Queues.** Work in one queue runs in the order of submission, each call seeing the effects of the calls before it.
//! Work in different queues may run at the same time and in any order, unless [`Device::order_after`] says otherwise.
//! A call that fails does not stop its queue: later work runs, and is not told.
//!
//! **Tickets.** Each submission returns a [`Ticket`], a number that rises by one within its queue. *Done* means that
//! all effects of the call, and of all before it in the queue, are visible to the host and to all queues. Asking has
//! three answers: pending, done, or an error; a dead device is never "pending" for ever. Asking is free of side
//! effects, so many threads can ask for one ticket.
//!
//! **Memory in flight.** The device itself keeps memory alive that submitted work touches: releasing a buffer, a piece
//! of host memory or a queue blocks until that work is done or the device is declared lost. So no safe call, early
//! return, panic or forgotten ticket makes a card write to memory that is somebody else's. After a call returned an
//! error, nothing of it is in flight.
//!
//! **Host memory and races.** Nobody but its owner decides when host memory is read or written by the program, and
//! doing so through its address is unsafe code with this duty: no *reference* into a range may exist while work in
//! flight writes to it, and no `&mut` while work in flight reads it. Reading a range through atomics while work in
//! flight writes to it is allowed, and gives bytes of unspecified value: a page cache does so when an optimistic read
//! loses its race, and throws the bytes away. A backend that copies with the processor must therefore use the functions
//! of [`racy`] towards host memory that others see, never an ordinary `memcpy`.
//!
//! **Contents.** New device memory holds anything, possibly data of another program. New host memory is zeroed.
//!
//! **Failure.** Errors carry a [kind](ErrorKind), which is all that logic may react to, and the figures and driver
//! codes that a person needs. A failed copy leaves its target unspecified and nothing else. A lost device fails every
//! call from then on, at once, and its pending tickets with [`ErrorKind::Lost`]; releasing its memory still works.
//!
//! **Zero.** Copies, fills, searches, gathers, scatters and computations of nothing are valid, at any offset up to the
//! end of their memory, and give a ticket like any other. Allocations of nothing are valid too.
//!
//! # Example
//!
//! A backend is used through its owners; here in a function that works on any of them.
//!
//! ```
//! use std::sync::Arc;
//! use backend_api::{Commit, Device, DeviceBuffer, HostBuffer, HostMemory, Queue, Result, Transfer};
//!
//! /// Sends bytes to a device and fetches them again.
//! fn there_and_back<D: Device>(device: &Arc<D>, bytes: &[u8]) -> Result<Vec<u8>> {
//!     let queue = Queue::new(device)?;
//!     let memory = DeviceBuffer::new(device, bytes.len() as u64, Commit::Lazy)?;
//!     let host = HostBuffer::new(device, 2 * bytes.len(), HostMemory::Pageable)?;
//!     let (len, half) = (bytes.len() as u64, bytes.len());
//!     host.write(0, bytes);
//!     queue.submit(&[Transfer::Upload { from: host.at(0), to: memory.at(0), bytes: len }])?;
//!     let ticket = queue.submit(&[Transfer::Download { from: memory.at(0), to: host.at(len), bytes: len }])?;
//!     device.wait(ticket)?;
//!     let mut back = vec![0; half];
//!     host.read(half, &mut back);
//!     Ok(back)
//! }
//!
//! let device = Arc::new(backend_host::HostDevice::new(1 << 20)?);
//! assert_eq!(there_and_back(&device, b"pages")?, b"pages");
//! # Ok::<_, backend_api::Error>(())
//! ```

extern crate self as backend_api;

mod absence;
pub mod contended;
mod device;
mod error;
pub mod expr;
mod id;
mod info;
mod names;
mod owned;
pub mod racy;
mod request;
mod route;
mod timeline;
mod validate;
pub mod wrap;

#[cfg(feature = "conformance")]
pub mod conformance;

pub use absence::{Absence, AbsenceKind, refused_library};
pub use device::{Commit, Device, HostAllocation, HostMemory, Progress};
pub use error::{DriverCode, Error, ErrorKind, Result, readable_bytes};
pub use expr::Compute;
pub use id::{BufferId, HostId, QueueId, Ticket};
pub use info::{DeviceInfo, DeviceKind, MemoryStatus};
pub use names::{NameHasher, Names};
pub use owned::{DeviceBuffer, HostBuffer, Queue};
pub use request::{DeviceSpan, Elements, Fill, Gather, HostSpan, Scatter, Search, Transfer};
pub use route::{Route, Routing};
pub use timeline::Timeline;
pub use validate::Extents;
