//! Tests of Zarr stores on servers that speak S3.

mod common;
mod failing;
mod kinds;
mod missing;
mod parts;
mod program;
mod python;
