//! The opencl backend of `vmarray`.
