//! Tests of import and export, as one program.

mod common;
mod damaged;
#[cfg(feature = "safetensors")]
mod in_place;
mod npy;
#[cfg(all(feature = "zarr", feature = "half", feature = "num-complex"))]
mod python;
mod raw;
#[cfg(feature = "zarr")]
mod zarr;
#[cfg(feature = "zarr")]
mod zarr_corrupted;
#[cfg(feature = "zarr")]
mod zarr_damaged;
#[cfg(feature = "zarr")]
mod zarr_home;
