//! Fuzz target: damaged cache files that hold profiles of devices or translated kernels.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    vmarray::fuzzing::profile(data);
    backend_opencl::fuzzing::cached_kernel(data);
});
