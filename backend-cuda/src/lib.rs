//! NVIDIA GPUs as devices of `vmarray`.
//!
//! [`devices`] lists the GPUs; [`CudaDevice`] implements the [device contract](backend_api) for one GPU. The
//! crate needs only the driver, and only at run time: the first call loads the driver's library
//! (`libcuda.so.1`; on Windows `nvcuda.dll`, from the system's folder only). Without a driver the list is
//! empty. NVML, which comes with the driver, reports memory errors of a [GPU](Card::health). NVML is
//! optional.
//!
//! # How it works
//!
//! - A queue is a non-blocking CUDA stream, with a driver event after each submission. A thread that waits
//!   for a ticket polls the event often at first. Later it sleeps between polls, for a small part of the time
//!   waited so far. Each device has one thread that runs only [`Waker`](std::task::Waker)s.
//! - The copies of one call use one of three routes: single copies, one batch of the driver, or a kernel that
//!   moves many pieces between device memory and pinned memory in one launch. Number and size of the copies
//!   determine the [`Route`].
//! - The hand-written kernels are CUDA C (`kernels/`), checked in with their PTX text. The driver translates
//!   the PTX for the GPU at first use. This crate also translates kernels of the program to PTX. Kernels that
//!   are prepared together form one module.
//! - A kernel that [multiplies matrices](backend_api::kernel::Code::multiply) of `f32` or `f64` is a call of
//!   cuBLAS, if the machine has version 12 or 13. The first large product loads the library: the file that
//!   the variable `VMARRAY_CUBLAS` names (`off` for none), else a loaded library, a package of the running
//!   Python (on Linux), a file that the system's loader finds (not on Windows), or one of the CUDA toolkit
//!   in the folder `CUDA_PATH` or `CUDA_HOME`, or in its usual folder.
//! - Calls do not depend on the current context of the calling thread, and restore it before they return.
//!
//! # Other users of the GPU
//!
//! A device uses the GPU's primary context, as the CUDA runtime, `cudarc` and `cust` do, or a context that
//! the program passes to [`CudaDevice::adopt`]. With the feature `cust`, this crate and `cust` exchange
//! memory without a copy (`CudaDevice::import_cust`, `CudaDevice::export_cust`), or copy it in the order of a
//! queue.
//!
//! # Limits
//!
//! All calls accept pageable host memory. The driver then copies through its own buffers, which is slower,
//! and the call may block until the copy is done. Host memory that other code has page-locked cannot be
//! imported as pinned a second time.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod caching_allocator;
#[forbid(unsafe_code)]
mod completion;
mod context;
mod copy;
mod core;
mod cublas;
mod device;
mod discovery;
mod driver;
#[forbid(unsafe_code)]
mod error;
#[cfg(test)]
mod fake;
mod handle_table;
mod host_memory;
#[cfg(feature = "cust")]
mod interop;
mod kernel;
mod memory;
mod memory_cache;
mod nvml;
#[forbid(unsafe_code)]
mod options;
#[forbid(unsafe_code)]
mod peers;
#[forbid(unsafe_code)]
mod queue;
mod reserved;
#[forbid(unsafe_code)]
mod route;
mod staging;
mod submission;
#[forbid(unsafe_code)]
mod wakers;
#[forbid(unsafe_code)]
mod watcher;

pub use device::CudaDevice;
pub use discovery::{Card, devices, survey};
pub use options::{CudaOptions, Route};
