//! Any OpenCL 1.2 device as a device of `vmarray`: cards of AMD, Intel and NVIDIA, integrated GPUs, and processors
//! through PoCL.
//!
//! [`devices`] lists what the drivers of the machine report, [`OpenClDevice::open`] opens one of them. `libOpenCL` is
//! loaded at run time; without it, or without a driver, the list is empty.
//!
//! # Choices
//!
//! **Memory in pieces.** Drivers limit one allocation, often to a quarter of the card. Longer memory is put together
//! from buffers of a power of two bytes. Copies are cut where one ends; kernels take up to eight pieces at once and
//! find theirs by a shift; a searched field that lies across two pieces is copied together first.
//!
//! **An account.** OpenCL does not tell how much memory is free (AMD's driver does), and drivers spill or
//! overcommit instead of refusing. What is given out is therefore counted, and
//! [`Commit::Proven`](backend_api::Commit::Proven) writes to all of it.
//!
//! **Pinned memory** is a buffer that the driver allocated in host memory and that stays mapped for good; copies name
//! its address. Where device and host share memory, it is fine-grained shared memory, on which kernels work in place.
//! OpenCL cannot lock memory of the program: importing it as pinned is unsupported.
//!
//! **Completion.** The last command of a submission carries an event, no other does. Events are looked at by those
//! who ask; a driver's callback is only asked for where a [`Waker`](std::task::Waker) waits. When a driver answers with
//! an error that may mean anything, the device is asked for something trivial: if that fails as well, it is lost.
//!
//! **Kernels** are plain OpenCL C 1.2 without any extension, 64-bit atomics included. They are built when the device is
//! opened and kept on disk ([`KernelCache`]).
//!
//! **Searching** counts in one pass at the speed of memory; only chunks that have matches are read again, to list them
//! in order. No match costs that one pass. A limit above 512 Ki indices makes the call wait for the counting, so as to
//! fetch no more than there is.
//!
//! **Many small copies** in one call go through a kernel where that helps: in place on shared memory, else, where the
//! host side is one range, by way of scratch memory on the device and one long copy. All others are single copies under
//! one flush.
//!
//! # Which devices the tests use
//!
//! All that are found, or those that `VMARRAY_OPENCL_DEVICE` names, by index or by a part of their name, identity or
//! platform. `VMARRAY_TEST_BYTES` sets how much memory a check of the contract may use; with `VMARRAY_REQUIRE_DEVICE` a
//! machine without a device fails. Where NVIDIA's driver is installed but not registered, put the path of
//! `libnvidia-opencl.so.1` into a file `nvidia.icd` in a folder of your own, and name the folder in `OCL_ICD_VENDORS`.
//! The example `opencl_check` lists and measures devices.

mod cache;
mod core;
mod courier;
mod device;
mod discovery;
mod error;
mod fill;
mod host;
mod indexed;
mod memory;
mod options;
mod program;
mod queue;
mod raw;
mod search;
mod sys;
mod track;
mod transfer;
mod waiters;

pub use device::OpenClDevice;
pub use discovery::{Discovered, devices, devices_matching};
pub use options::{KernelCache, Options, PinnedAccess, Waiting};
pub use queue::Statistics;
