//! Kernels in their host form and in their lowered form, which have to give the same.

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
mod structs;
