//! Files and arrays, both ways.

mod common;
mod damaged;
mod npy;
mod raw;
#[cfg(feature = "zarr")]
mod zarr;
#[cfg(feature = "zarr")]
mod zarr_damaged;
