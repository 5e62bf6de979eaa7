//! Test tools for vmarray-formats over `object_store`: S3 servers, and a proxy that injects faults.
//!
//! `cargo xtask formats` runs the tests, and installs the Python packages of the server moto. Without moto,
//! `cargo test` in this folder uses only the server of s3s-fs.

#![forbid(unsafe_code)]

mod bucket;
mod http;
mod keys;
mod moto;
mod proxy;
#[cfg(feature = "s3s")]
mod s3s;
mod server;

pub use bucket::{Bucket, each};
pub use keys::Keys;
pub use moto::Moto;
pub use proxy::{Fault, Proxy, Request};
pub use server::Server;
