//! The device contract of `vmarray`.
//!
//! A *device* is a GPU, or a substitute for one: host RAM, a file, a simulation. This crate depends on no
//! particular device. It defines a device's operations ([`Device`]), its facts ([`DeviceInfo`]) and its
//! errors ([`Error`]). It also has the parts that all backends and their users share:
//!
//! - owners that release memory on drop ([`DeviceBuffer`], [`HostBuffer`], [`Queue`]),
//! - the book-keeping of a software queue ([`Timeline`]),
//! - copies that may race ([`racy`]),
//! - wrappers that count calls and inject failures ([`wrap`]),
//! - a conformance suite for backends (feature `conformance`). Its [reference
//!   device](https://docs.rs/crate/vmarray-backend-api/latest/source/src/conformance/reference/device.rs),
//!   of host RAM and in one file, is a template for a new backend.
//!
//! # The contract
//!
//! **Handles and names.** A device issues owned handles: [`BufferHandle`] for device memory,
//! [`HostAllocation`] for host memory that it can copy from and to, [`QueueHandle`] for queues. Releasing
//! consumes them. A submission borrows them: the queue's handle, and places ([`DeviceSpan`], [`HostSpan`])
//! in memory. Their names ([`BufferId`], [`HostId`], [`QueueId`]) are unique in the process and can be
//! copied, but give no access. A device refuses an unknown name with [`ErrorKind::UnknownHandle`], and
//! ignores it in a release. Handles are not associated types, because arrays over mixed devices dispatch
//! through an enum, which associated types would forbid; the owners restore the guarantees of types.
//!
//! **Validation.** A device checks every name and every range before it starts any work. So `submit` and
//! the other submitting methods are safe functions: no copy or kernel leaves the memory of its names.
//! Arithmetic on arguments never overflows silently.
//!
//! **Queues.** Work in one queue runs in the order of submission, and each call sees the effects of the
//! calls before it. Work in different queues may run at the same time and in any order, unless
//! [`Device::order_after`] orders it. A call that fails does not stop its queue: later work runs
//! regardless of the error.
//!
//! **Tickets.** Each submission returns a [`Ticket`], a number that rises by one within its queue. *Done*
//! means that all effects of the call and of all earlier calls in the queue are visible to the host and to
//! all queues. A poll returns pending, done, or an error; a dead device is never "pending" for ever. A
//! poll has no side effects, therefore several threads can poll one ticket.
//!
//! **Memory in flight.** The device itself keeps memory alive that submitted work touches. Releasing a
//! buffer, a host allocation or a queue blocks until that work is over, as does dropping the device. So no
//! safe call, early return, panic or forgotten ticket makes a GPU write to memory that has a new owner.
//! After a call returned an error, no part of it is in flight.
//!
//! **Host memory and races.** The owner alone decides when the program accesses host memory. Access
//! through its address is unsafe code with this duty: no *reference* into a range may exist while work in
//! flight writes to it, and no `&mut` while work in flight reads it. Reading a range through atomics while
//! work in flight writes to it is allowed, and returns bytes of unspecified value. A page cache does so if
//! an optimistic read loses its race, and discards the bytes. So a backend that copies with the processor
//! must use the functions of [`racy`] on host memory that other code can access, never an ordinary
//! `memcpy`.
//!
//! **Contents.** The contents of new device memory are unspecified, and may be data of another program.
//! New host memory is zeroed. Released memory keeps its contents, unless the device
//! [wipes](Device::wipe_on_release) it.
//!
//! **Failure.** Errors carry a [kind](ErrorKind), the only part that logic may react to, and the numbers
//! and driver codes that a person needs. A failed copy leaves its target unspecified, and changes nothing
//! else. A lost device fails every later call at once. Its pending tickets fail with [`ErrorKind::Lost`],
//! unless their work still ends. After that it touches no memory any more; releasing its memory still
//! works.
//!
//! **Zero.** Copies, fills, searches, gathers, scatters and computations of zero length are valid, at any
//! offset up to the end of their memory. They return an ordinary ticket. Allocations of zero bytes are
//! valid too.
//!
//! # Soundness
//!
//! Safe code cannot make a device, nor a device the program, access memory without a right to it:
//!
//! - **Naming memory** needs its owner, or a place that the owner lends. A place is borrowed. Code that
//!   keeps an id, or received a place for one call, can therefore submit no work on it later. This holds
//!   for a wrapper that remembers ids, and for a program with another handle of the same device. Keeping a
//!   place longer than its borrow is [`unsafe`](HostSpan::detach).
//! - **Releasing memory** needs its handle. Handles cannot be copied, and [`Queue`], [`DeviceBuffer`] and
//!   [`HostBuffer`] keep theirs, so memory in use is not released. A forgotten handle, or an owner in
//!   `mem::forget`, keeps its memory until the device is dropped; work in flight is harmless meanwhile.
//! - **Work may outlive the borrow** of its places. Releasing waits for it; until then the memory's owner
//!   reads and writes by [`racy`], which tolerates it. Addresses, for code that does more, are of use in
//!   unsafe code alone.
//! - **Devices do not mix.** Names are unique in the process. A device therefore refuses a place or a
//!   queue of another device, even after `mem::swap` of two owners or two devices. Owners keep their
//!   device alive; handles do not, and are unknown after its end.
//! - **Threads** may share and send all of these types; every method takes the locks that it needs.
//! - **A device keeps promises** on which unsafe code relies: [`Device`] is an `unsafe trait`, and only
//!   [`unsafe` code](HostAllocation::new) can issue memory that does not exist.
//!
//! # Example
//!
//! Programs use a backend through its owners; here in a function that works on any backend.
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
pub mod contended;
mod device;
mod error;
pub mod expr;
mod handle;
mod hardware;
mod health;
mod id;
mod id_map;
mod info;
pub mod kernel;
#[doc(hidden)]
pub mod numa;
mod owned;
mod queues;
pub mod racy;
mod request;
mod route;
mod timeline;
mod validate;
mod waker;
mod work;
pub mod wrap;

#[cfg(feature = "conformance")]
pub mod conformance;

pub use absence::{Absence, AbsenceKind, refused_library};
pub use device::{AddressSpace, Addresses, Commit, Device, DirectReads, HostMemory, Progress};
pub use error::{DriverCode, Error, ErrorKind, OverTime, Result, readable_bytes};
pub use expr::Compute;
pub use handle::{BufferHandle, HostAllocation, QueueHandle};
pub use hardware::uuid_text;
pub use health::CardHealth;
pub use id::{BufferId, HostId, QueueId, Ticket};
pub use id_map::{IdHasher, IdMap};
pub use info::{DeviceInfo, DeviceKind, MemoryStatus, Reach};
pub use kernel::{Launch, View};
#[doc(hidden)]
pub use numa::numa_node;
pub use owned::{DeviceBuffer, HostBuffer, Queue};
pub use queues::Queues;
pub use request::{DeviceSpan, Elements, Fill, Gather, HostSpan, LEFT_OUT, Scatter, Search, Transfer};
pub use route::{Route, Routing};
pub use timeline::Timeline;
pub use validate::Extents;
#[doc(hidden)]
pub use waker::waker;
pub use work::Request;
