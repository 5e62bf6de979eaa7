//! Any OpenCL 1.2 device as a device of `vmarray`: cards of AMD, Intel and NVIDIA, integrated GPUs, and
//! processors through PoCL.
//!
//! [`devices`] lists what the drivers of the machine report, [`OpenClDevice::open`] opens one of them.
//! `libOpenCL` is loaded at run time (on Windows `OpenCL.dll`, from the system's folder only); without it, or
//! without a driver, the list is empty. The environment variable `OPENCL_DYLIB_PATH` names other libraries to
//! be tried first.
//!
//! # Choices
//!
//! **Memory in pieces.** Drivers limit one allocation, often to a quarter of the card. Longer memory is put
//! together from buffers of a power of two bytes. Copies are cut where one ends; kernels take up to eight
//! pieces at once and find theirs by a shift; a searched field that lies across two pieces is copied together
//! first.
//!
//! **An account.** OpenCL does not tell how much memory is free (AMD's driver does), and drivers spill or
//! overcommit instead of refusing. What is given out is therefore counted, and
//! [`Commit::Proven`](backend_api::Commit::Proven) writes to all of it.
//!
//! **Pinned memory** is a buffer that the driver allocated in host memory and that stays mapped for good;
//! copies name its address. Where device and host share memory, it is fine-grained shared memory, on which
//! kernels work in place. On NVIDIA's cards it is made with the extension `cl_nv_create_buffer`, which puts
//! it where kernels reach it; the standard does not promise that, so it is tried out when the device is
//! opened, and without success copies do ([`Options::zero_copy`]). OpenCL cannot lock memory of the program:
//! importing it as pinned is unsupported.
//!
//! **Pageable memory** is read by some drivers when a copy is enqueued, whatever the queue has still to do
//! (NVIDIA's driver does so). A copy from it is therefore only enqueued once earlier work that writes there
//! is done; `submit` blocks until then. Pinned memory never makes a call block.
//!
//! **Completion.** The last command of a submission carries an event, no other does. Events are looked at by
//! those who ask; a driver's callback is only asked for where a [`Waker`](std::task::Waker) waits. Wakers run
//! in a thread of the device or in whichever thread polls or waits, never in the driver's and never under a
//! lock: they may use the device, wait, give memory back or drop the device.
//!
//! **Loss.** When a driver answers with an error that may mean anything, the device is asked for something
//! trivial: if that fails as well, for a tenth of a second, it is lost, and refuses all calls. Both may have
//! been a shortage, so work that was started is waited for: tickets are pending until the driver says of
//! their events that they are complete or have failed. Only where it says of the device that it is gone, all
//! tickets fail at once. A driver that refuses to tell of an event is asked again, for ten seconds; then the
//! ticket fails, too. Memory that work touches of which the driver has not said that it is over is kept until
//! the process ends, neither wiped nor freed; memory of the program cannot be kept from it.
//!
//! **Kernels** are plain OpenCL C 1.2 without any extension, 64-bit atomics included. They are built when the
//! device is opened and kept on disk ([`KernelCache`]).
//!
//! **Searching** counts in one pass at the speed of memory; only chunks that have matches are read again, to
//! list them in order. No match costs that one pass. A limit above 512 Ki indices makes the call wait for the
//! counting, so as to fetch no more than there is.
//!
//! **Arithmetic** is that of [`backend_api::expr`], whatever OpenCL leaves open: see there. Quotients of
//! `f32`, which may be 2.5 units in the last place off in OpenCL, are rounded correctly, and square roots of
//! kernels as well: by the compiler where it can be told to, else in integers. Two things are up to the
//! device. Where [`OpenClDevice::keeps_subnormals`] says no, subnormal `f32` may count as zero, and results
//! that would be subnormal become zero. Devices of the embedded profile may round towards zero.
//!
//! **Kernels of the program** ([`launch`](backend_api::Device::launch)) are translated when they are first
//! met, or together by [`prepare_launches`](backend_api::Device::prepare_launches), up to 16 in one program,
//! and kept for as long as the device is open. Not supported are groups on a processor, atomics of
//! 64 bits where the device has no extension for them, and views that touch more than 16 pieces of memory in
//! all.
//!
//! **Many small copies** in one call go through a kernel where that helps: in place where kernels reach the
//! host memory, else, where the host side is one range, by way of scratch memory on the device and one long
//! copy. All others are single copies under one flush.
//!
//! # Which devices the tests use
//!
//! All that are found, or those that `VMARRAY_OPENCL_DEVICE` names, by index or by a part of their name,
//! identity or platform. `VMARRAY_TEST_BYTES` sets how much memory a check of the contract may use,
//! `VMARRAY_TEST_KERNELS` how many random kernels are compared with the interpreter, and `VMARRAY_TEST_SEED`
//! from which on; with `VMARRAY_REQUIRE_DEVICE` a machine without a device fails. Where NVIDIA's driver is
//! installed but not registered, put the path of `libnvidia-opencl.so.1` into a file `nvidia.icd` in a folder
//! of your own, and name the folder in `OCL_ICD_VENDORS`. The example `opencl_limits` lists and measures
//! devices.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod completion;
mod copy;
mod core;
mod device;
mod discovery;
mod driver;
#[forbid(unsafe_code)]
mod error;
#[cfg(test)]
mod faulty;
mod host_memory;
mod kernel;
mod memory;
#[forbid(unsafe_code)]
mod options;
mod queue;
#[forbid(unsafe_code)]
mod retry;
#[forbid(unsafe_code)]
mod wakers;
mod zero_copy;

pub use device::OpenClDevice;
pub use discovery::{Discovered, devices, devices_matching, survey};
pub use options::{KernelCache, Options};
pub use queue::Statistics;

/// What fuzz targets run.
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing {
    pub use crate::kernel::cache::fuzz_kept_kernel as kept_kernel;
}
