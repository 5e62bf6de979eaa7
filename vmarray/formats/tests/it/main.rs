//! Files and arrays, both ways.

mod common;
mod damaged;
mod npy;
mod raw;
