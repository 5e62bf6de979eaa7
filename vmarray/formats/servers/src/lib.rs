//! Servers that speak S3, and a proxy before them that fails, for tests of vmarray-formats over
//! `object_store`.
//!
//! `cargo xtask formats` runs the tests, and installs what moto needs. Without that,
//! `cargo test` in this folder has the server of s3s-fs alone.

#![forbid(unsafe_code)]

mod bucket;
mod http;
mod moto;
mod proxy;
#[cfg(feature = "s3s")]
mod s3s;
mod server;

pub use bucket::{Bucket, Keys};
pub use moto::Moto;
pub use proxy::{Fault, Proxy, Request};
pub use server::{Server, each};
