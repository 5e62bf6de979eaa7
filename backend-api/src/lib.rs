//! The interface between `vmarray` and its devices: the trait [`Device`], and its rules (the *contract*).
//!
//! A *device* is a GPU, or a substitute for a GPU: host RAM, a file, a simulation. A *backend* is a crate
//! that implements devices. This crate depends on no backend. It defines a device's operations ([`Device`]),
//! facts ([`DeviceInfo`]) and errors ([`Error`]), and the parts that all backends and their users share:
//!
//! - owners that release memory on drop ([`DeviceBuffer`], [`HostBuffer`], [`Queue`]),
//! - copies of memory that other threads may access at the same time ([`racy`]),
//! - failures to inject, and the forwarding of methods by wrappers ([`wrap`]).
//!
//! The crate `vmarray-conformance` has a conformance suite for backends. Its [example][own-device], a device
//! that stores pages in 200 lines, is a template for a new backend. The crate `vmarray-support` has parts of
//! backends, such as the tickets of queues that software executes.
//!
//! [own-device]: https://docs.rs/crate/vmarray-conformance/latest/source/examples/own_device/device.rs
//!
//! # The contract
//!
//! **Handles and ids.** A device issues owned handles: [`BufferHandle`] for device memory, [`HostAllocation`]
//! for host memory that it can copy from and to, [`QueueHandle`] for queues. Releasing an object consumes its
//! handle. A submission borrows the queue's handle, and places in memory ([`DeviceSpan`],
//! [`HostSpan`]: an object and an offset), which borrow the memory's handle. The ids of objects
//! ([`BufferId`], [`HostId`], [`QueueId`]) are unique in the process and can be copied, but give no access. A
//! device refuses an unknown id with [`ErrorKind::UnknownHandle`]; a release ignores it. Handles are not
//! associated types, because arrays over different types of devices dispatch through an enum.
//!
//! **Validation.** A device checks every id and every range before it starts any work. Therefore
//! [`submit`](Device::submit) is a safe function: copies and kernels access only the memory that the request
//! names. Arithmetic on arguments never overflows silently.
//!
//! **Requests.** A queue takes [requests](Request) of several kinds. Every device supports copies and fills.
//! All other kinds are optional: a device that does not support one refuses it by [`ErrorKind::Unsupported`].
//!
//! **Queues.** Work in one queue runs in the order of submission, and each call sees the effects of the calls
//! before it. Work in different queues may run at the same time and in any order, unless
//! [`Device::order_after`] orders it. A call that fails does not stop its queue: later work runs regardless
//! of the error.
//!
//! **Tickets.** Each submission returns a [`Ticket`], a number that rises by one within its queue. *Done*
//! means that all effects of the call and of all earlier calls in the queue are visible to the host and to
//! all queues. A poll returns pending, done, or an error; work of a lost device does not stay pending. A poll
//! has no side effects, so several threads can poll one ticket.
//!
//! **Memory in flight.** The device keeps memory alive while submitted work touches it: releasing a buffer, a
//! host allocation or a queue blocks until that work is over, and so does dropping the device. Therefore no
//! safe call, early return, panic or forgotten ticket makes a GPU write to memory that has a new owner. After
//! a call has returned an error, none of its work is in flight.
//!
//! **Host memory and races.** Only the owner decides when the program accesses host memory. Access through
//! the memory's address is unsafe code with this duty: no *reference* into a range may exist while work in
//! flight writes to the range, and no `&mut` while work in flight reads it. Atomic reads of a range that work
//! in flight writes to are allowed, and return bytes of unspecified value. (A page cache does this in
//! optimistic reads, and discards the bytes if it has lost the race.) A backend that copies with the
//! processor must therefore use the functions of [`racy`] on host memory that other code can access, never an
//! ordinary `memcpy`.
//!
//! **Contents.** The contents of new device memory are unspecified, and may be data of another program. New
//! host memory is zeroed. Released memory keeps its contents, unless the device
//! [wipes](Device::wipe_on_release) it.
//!
//! **Failure.** An error has a [kind](ErrorKind), the only part that code may react to, and numbers and
//! driver codes for people. A failed copy leaves its target unspecified, and changes nothing else. A lost
//! device fails every later call at once. Its pending tickets fail with [`ErrorKind::Lost`], unless their
//! work still ends. A lost device touches no memory any more; its memory can still be released.
//!
//! **Zero.** Requests of zero length are valid, at any offset up to the end of their memory. They return an
//! ordinary ticket. Allocations of zero bytes are valid too.
//!
//! # Soundness
//!
//! Safe code cannot make a device access memory that the code has no right to use, and no device can make the
//! program do so:
//!
//! - **Submitting work on memory** needs a place ([`DeviceSpan`], [`HostSpan`]), which borrows the memory's
//!   owner. Code that only has an id, such as a wrapper that remembers ids, cannot submit work on the memory.
//!   Keeping a place longer than its borrow is [`unsafe`](HostSpan::detach).
//! - **Releasing memory** needs its handle. Handles cannot be copied, and [`Queue`], [`DeviceBuffer`] and
//!   [`HostBuffer`] never give theirs away, so memory in use is not released. If a handle or an owner is
//!   forgotten (`mem::forget`), its memory stays allocated until the device is dropped.
//! - **Work may outlive the borrow** of its places. Releasing memory waits for the work. Until then the
//!   memory's owner reads and writes the memory only by [`racy`], which tolerates races. Any other access
//!   needs the memory's address and unsafe code.
//! - **Devices do not mix.** Ids are unique in the process. A device therefore refuses a place or a queue of
//!   another device, even after `mem::swap` of two owners or two devices. Owners keep their device alive;
//!   handles do not.
//! - **Threads** may share and send all of these types; methods lock as needed.
//! - **Promises of a device.** Unsafe code relies on the behaviour of devices. [`Device`] is therefore an
//!   `unsafe trait`, and only [`unsafe` code](HostAllocation::new) can create a handle of host memory.
//!
//! # Example
//!
//! Programs use a device through [`Queue`], [`DeviceBuffer`] and [`HostBuffer`]. This function works on any
//! backend:
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
mod device;
mod elements;
mod error;
pub mod expr;
mod handle;
mod hardware;
mod health;
mod id;
mod info;
pub mod kernel;
#[doc(hidden)]
pub mod numa;
mod owned;
pub mod racy;
mod request;
mod route;
mod stream;
mod validate;
mod waker;
mod work;
pub mod wrap;

pub use absence::{Absence, AbsenceKind, refused_library};
pub use device::{AddressSpace, Addresses, Commit, Device, DirectReads, QueueProgress};
pub use elements::{Elements, LaunchView};
pub use error::{DriverCode, Error, ErrorKind, OverTime, Result, readable_bytes};
pub use expr::Compute;
pub use handle::{BufferHandle, DeviceSpan, HostAllocation, HostMemory, HostSpan, QueueHandle};
pub use hardware::uuid_text;
pub use health::CardHealth;
pub use id::{BufferId, HostId, QueueId, Ticket};
pub use info::{CodeLanguage, DeviceInfo, DeviceKind, MemoryStatus, Reach};
pub use kernel::Launch;
#[doc(hidden)]
pub use numa::numa_node;
pub use owned::{DeviceBuffer, HostBuffer, Queue};
pub use request::{Fill, Gather, LEFT_OUT, Scatter, Search, Transfer};
pub use route::{Route, Routing};
pub use stream::{StreamId, StreamKernel, StreamLauncher, StreamLayout, StreamView};
pub use validate::Extents;
#[doc(hidden)]
pub use waker::waker;
pub use work::Request;
