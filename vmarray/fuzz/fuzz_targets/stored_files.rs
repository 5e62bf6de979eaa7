//! Damaged caches on disk: profiles of devices, and translated kernels.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    vmarray::fuzzing::profile(data);
    backend_opencl::fuzzing::cached_kernel(data);
});
