//! The device contract of `vmarray`.
//!
//! A *device* is a card, or something that stands in for one: a piece of host RAM, a file, a simulation. This
//! crate knows none of them. It states what a device can do ([`Device`]), what it is ([`DeviceInfo`]) and
//! what can go wrong ([`Error`]), and brings what every backend or every user of a backend would otherwise
//! write again: owners that give memory back ([`DeviceBuffer`], [`HostBuffer`], [`Queue`]), the book-keeping
//! of a queue that is worked off by software ([`Timeline`]), copies that may race ([`racy`]), wrappers that
//! count and fail ([`wrap`]), and a suite that checks a backend against everything said here (feature
//! `conformance`). Its [reference
//! device](https://docs.rs/crate/vmarray-backend-api/latest/source/src/conformance/reference/device.rs), of
//! host RAM and in one file, is there to be copied as a beginning of another.
//!
//! # The contract
//!
//! **Handles and names.** A device hands out owned handles: [`BufferHandle`] for device memory,
//! [`HostAllocation`] for host memory that it can copy from and to, [`QueueHandle`] for queues. Releasing
//! takes them back. A submission borrows them: the queue's handle, and places ([`DeviceSpan`], [`HostSpan`])
//! in memory. Their names ([`BufferId`], [`HostId`], [`QueueId`]) are unique in the process and can be
//! copied; nothing is reached through them. What a device does not know is refused with
//! [`ErrorKind::UnknownHandle`], and ignored where it is released. Handles of one type rather than associated
//! types, because arrays over mixed devices dispatch through an enum, which associated types would forbid;
//! the owners bring back what types would have given.
//!
//! **Validation.** A device checks every name and every range before it starts anything, so `submit` and its
//! sisters are safe functions: no copy or kernel ever leaves the memory that its names stand for. Arithmetic
//! on what callers pass never overflows silently.
//!
//! **Queues.** Work in one queue runs in the order of submission, each call seeing the effects of the calls
//! before it. Work in different queues may run at the same time and in any order, unless
//! [`Device::order_after`] says otherwise. A call that fails does not stop its queue: later work runs, and is
//! not told.
//!
//! **Tickets.** Each submission returns a [`Ticket`], a number that rises by one within its queue. *Done*
//! means that all effects of the call, and of all before it in the queue, are visible to the host and to all
//! queues. Asking has three answers: pending, done, or an error; a dead device is never "pending" for ever.
//! Asking is free of side effects, so many threads can ask for one ticket.
//!
//! **Memory in flight.** The device itself keeps memory alive that submitted work touches: releasing a
//! buffer, a piece of host memory or a queue blocks until that work is over, as does dropping the device. So
//! no safe call, early return, panic or forgotten ticket makes a card write to memory that is somebody
//! else's. After a call returned an error, nothing of it is in flight.
//!
//! **Host memory and races.** Nobody but its owner decides when host memory is read or written by the
//! program, and doing so through its address is unsafe code with this duty: no *reference* into a range may
//! exist while work in flight writes to it, and no `&mut` while work in flight reads it. Reading a range
//! through atomics while work in flight writes to it is allowed, and gives bytes of unspecified value: a page
//! cache does so when an optimistic read loses its race, and throws the bytes away. A backend that copies
//! with the processor must therefore use the functions of [`racy`] towards host memory that others see, never
//! an ordinary `memcpy`.
//!
//! **Contents.** New device memory holds anything, possibly data of another program. New host memory is
//! zeroed. What was in memory stays there when it is given back, unless the device was told to
//! [wipe](Device::wipe_on_release) it.
//!
//! **Failure.** Errors carry a [kind](ErrorKind), which is all that logic may react to, and the figures and
//! driver codes that a person needs. A failed copy leaves its target unspecified and nothing else. A lost
//! device fails every call from then on, at once, and its pending tickets with [`ErrorKind::Lost`], unless
//! their work still gets done. After that it touches no memory any more; releasing its memory still works.
//!
//! **Zero.** Copies, fills, searches, gathers, scatters and computations of nothing are valid, at any offset
//! up to the end of their memory, and give a ticket like any other. Allocations of nothing are valid too.
//!
//! # Soundness
//!
//! Safe code cannot make a device, or a device make the program, touch memory that it has no right to:
//!
//! - **Who may name memory** is who owns it, and whom the owner lends a place. A place is borrowed, so code
//!   that keeps an id, or was lent a place for one call, can submit nothing on it later: neither a wrapper
//!   that remembers what went through it, nor a program that has another handle of the same device. To keep a
//!   place beside the memory is [`unsafe`](HostSpan::detach).
//! - **Who may release** is who has the handle. Handles cannot be copied, and [`Queue`], [`DeviceBuffer`] and
//!   [`HostBuffer`] do not give theirs away, so nothing goes while somebody uses it. A forgotten handle, or
//!   an owner in `mem::forget`, keeps its memory until the device is dropped; work in flight is harmless
//!   meanwhile.
//! - **Work outlives the borrow** of its places, and may. Releasing waits for it; until then the memory's
//!   owner reads and writes by [`racy`], which tolerates it. Addresses, for code that does more, are of use
//!   in unsafe code alone.
//! - **Devices do not mix.** Names are unique in the process, so a place or a queue of another device is
//!   refused, also where two owners or two devices have changed places by `mem::swap`. Owners keep their
//!   device alive; handles do not, and name nothing once it is gone.
//! - **Threads** may share and send all of it; every method locks what it needs.
//! - **What a device promises** unsafe code relies on: [`Device`] is an `unsafe trait`, and memory that is
//!   not there can be handed out by [`unsafe` code](HostAllocation::new) alone.
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

#![cfg_attr(docsrs, feature(doc_cfg))]

extern crate self as backend_api;

mod absence;
#[doc(hidden)]
pub mod backends;
pub mod contended;
mod device;
mod error;
pub mod expr;
mod handle;
mod hardware;
mod health;
mod id;
mod info;
pub mod kernel;
#[doc(hidden)]
pub mod links;
mod names;
#[doc(hidden)]
pub mod numa;
pub mod own_files;
mod owned;
mod queues;
pub mod racy;
mod request;
mod route;
#[doc(hidden)]
pub mod tell;
mod timeline;
mod validate;
mod work;
pub mod wrap;

#[cfg(feature = "conformance")]
pub mod conformance;

pub use absence::{Absence, AbsenceKind, refused_library};
pub use device::{AddressSpace, Addresses, Commit, Device, DirectReads, HostMemory, Progress};
pub use error::{DriverCode, Error, ErrorKind, Result, readable_bytes};
pub use expr::Compute;
pub use handle::{BufferHandle, HostAllocation, QueueHandle};
pub use hardware::uuid_text;
pub use health::CardHealth;
pub use id::{BufferId, HostId, QueueId, Ticket};
pub use info::{DeviceInfo, DeviceKind, MemoryStatus, Reach};
pub use kernel::{Launch, View};
pub use names::{NameHasher, Names};
#[doc(hidden)]
pub use numa::numa_node;
pub use owned::{DeviceBuffer, HostBuffer, Queue};
pub use queues::Queues;
pub use request::{DeviceSpan, Elements, Fill, Gather, HostSpan, LEFT_OUT, Scatter, Search, Transfer};
pub use route::{Route, Routing};
pub use timeline::Timeline;
pub use validate::Extents;
pub use work::Request;
