//! Any OpenCL 1.2 device as a device of `vmarray`: GPUs of AMD, Intel and NVIDIA, integrated GPUs, and
//! processors through PoCL.
//!
//! [`devices`] lists the devices that the drivers report; [`OpenClDevice::open`] opens one of them. The crate
//! loads `libOpenCL` at run time (on Windows `OpenCL.dll`, from the system's folder only). Without it, or
//! without a driver, the list is empty. The environment variable `OPENCL_DYLIB_PATH` names other libraries to
//! try first.
//!
//! # Choices
//!
//! **Memory in pieces.** Drivers limit one allocation, often to a quarter of the GPU's memory. Longer memory
//! consists of several OpenCL buffers (*pieces*), each of a power of two bytes. The device splits copies at
//! the ends of pieces. A kernel accesses up to eight pieces at once, and finds a byte's piece by a shift. If
//! an element of a search or a computation spans two pieces, the kernel first assembles it.
//!
//! **Memory accounting.** OpenCL does not report the free memory (AMD's driver does), and drivers spill or
//! overcommit instead of refusing an allocation. So the device counts its allocations, and
//! [`Commit::Proven`](backend_api::Commit::Proven) writes to all of their bytes.
//!
//! **Pinned memory** is a buffer that the driver allocated in host memory and that stays mapped permanently;
//! copies use its host address. If device and host share memory, it is fine-grained shared memory, which
//! kernels use in place. On NVIDIA's GPUs the extension `cl_nv_create_buffer` allocates it in memory that
//! kernels can access. The standard does not promise that, so opening the device tests it; if the test fails,
//! the device uses copies ([`OpenClOptions::zero_copy`]). OpenCL cannot lock memory of the program: importing
//! it as pinned is unsupported.
//!
//! **Pageable memory** is read by some drivers when a copy is enqueued, before earlier work of the queue has
//! run (NVIDIA's driver does so). The device therefore enqueues a copy from it only after earlier work that
//! writes to this memory is done; `submit` blocks until then. Pinned memory never makes a call block.
//!
//! **Completion.** Only the last command of a submission carries an event. Threads query events when they
//! poll or wait; the device registers a driver's callback only for a [`Waker`](std::task::Waker). Wakers run
//! in a thread of the device, or in the thread that polls or waits. They never run in the driver's thread or
//! under a lock. So wakers may use the device, wait, release memory or drop the device.
//!
//! **Loss.** If a driver returns an ambiguous error, the device probes itself with a trivial command. If the
//! probes fail as well, for a tenth of a second, the device counts as lost, and all calls fail. The cause of
//! both errors may have been a shortage of memory, so work that was started may still run. Tickets therefore
//! wait until the driver reports that the events of their work are complete or have failed. If the driver
//! reports that the device is gone, all tickets fail at once. If a driver refuses to report an event's state,
//! the backend repeats the query for ten seconds; then the ticket fails. If the driver has not reported the
//! end of work on memory, the memory is kept until the process ends, neither wiped nor freed. Memory of the
//! program cannot be kept.
//!
//! **Kernels** of this crate are plain OpenCL C 1.2 and use no extension, not even 64-bit atomics. They are
//! built when the device is opened and cached on disk ([`KernelCache`]).
//!
//! **Searching** first counts the matches in one pass at the speed of memory. A second pass reads only chunks
//! with matches, to list them in order. Without a match there is no second pass. If the limit exceeds 512 Ki
//! indices, the call waits for the count, to copy only the matches to the host.
//!
//! **Arithmetic** follows [`backend_api::expr`], also for operations whose results OpenCL leaves unspecified.
//! Quotients of `f32`, whose error in OpenCL may be 2.5 units in the last place, are rounded correctly; so
//! are square roots in kernels. The backend uses a compiler option for that if the compiler has it, else
//! integer arithmetic. Two results depend on the device. If [`OpenClDevice::keeps_subnormals`] is false,
//! subnormal `f32` operands may be treated as zero, and subnormal results become zero. Devices of the
//! embedded profile may round towards zero.
//!
//! **Kernels of the program** ([`Request::Launch`](backend_api::Request::Launch)) are translated at their
//! first use, or by [`prepare`](backend_api::Device::prepare), which puts up to 16 into one OpenCL program.
//! Translated kernels are kept while the device is open. The backend does not support groups on a processor,
//! atomics of 64 bits on a device without the extension, or views that touch more than 16 pieces of memory in
//! all.
//!
//! **Many small copies** in one call are executed by a kernel if that is faster. The kernel accesses the host
//! memory in place if it can. Otherwise, if the host side is one range, it copies between the pieces and
//! scratch memory on the device, and one long copy moves the scratch memory. All other copies are single
//! commands, with one flush for all.
//!
//! # Devices of the tests
//!
//! Tests run on all devices, or on the devices that `VMARRAY_OPENCL_DEVICE` selects, by index or by a part of
//! their name, identity or platform. `VMARRAY_TEST_BYTES` sets the memory of a conformance check.
//! `VMARRAY_TEST_KERNELS` sets the number of kernels of the check `random_launches`, and `VMARRAY_TEST_SEED`
//! the first seed. With `VMARRAY_REQUIRE_DEVICE` the tests fail on a machine without a device. If NVIDIA's
//! driver is installed but not registered, put the path of `libnvidia-opencl.so.1` into a file `nvidia.icd`
//! in a folder of your own. Then set `OCL_ICD_VENDORS` to the folder. The example `opencl_limits` lists and
//! measures devices.

#![cfg_attr(docsrs, feature(doc_cfg))]

#[forbid(unsafe_code)]
mod batch;
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
mod kernel_clock;
mod memory;
#[forbid(unsafe_code)]
mod options;
mod queue;
#[forbid(unsafe_code)]
mod retry;
#[forbid(unsafe_code)]
mod uses;
#[forbid(unsafe_code)]
mod wakers;
mod zero_copy;

pub use device::OpenClDevice;
pub use discovery::{Discovered, devices, devices_matching, survey};
pub use options::{KernelCache, OpenClOptions};
pub use queue::Statistics;

/// Functions for fuzz targets of this crate.
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing {
    pub use crate::kernel::cache::fuzz_cached_kernel as cached_kernel;
}
