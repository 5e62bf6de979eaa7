//! Tests that run kernels in their host form and in their lowered form; both must give equal results.

#![allow(clippy::never_loop, clippy::unnecessary_cast, reason = "kernels in unusual forms are the subject")]

mod arrays;
mod calls;
mod errors;
mod flow;
mod groups;
mod harness;
mod lowered;
mod math;
mod memory;
mod numbers;
mod parameters;
mod places;
mod sorting;
mod structs;
