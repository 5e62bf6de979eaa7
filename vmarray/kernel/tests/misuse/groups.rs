//! Misuse of barriers, lanes, group memory and lists. A comment behind each line has the compiler's message.

#![allow(unused)]

use vmarray_kernel::{Append, At, Group, Own, Shared, kernel};

#[kernel(crate = vmarray_kernel, group = 64)]
fn statements(at: At<1>, part: &Group<f32, 64>, bins: &Shared<u32>, found: &Append<u16>, x: &Own<f32>) {
    barrier(3); //~ `barrier()` takes no arguments
    let a = lanes::sort(x.get()); //~ `lanes` has no operation `sort`
    let c = alloc(3); //~ give the type and the number of elements
    let b = lanes::sum(); //~ `lanes::sum` takes 1 arguments
    bins.add(1); //~ `add` takes 2 arguments
}

#[kernel(crate = vmarray_kernel, group = 64)]
fn types(at: At<1>, part: &Group<f32, 64>, bins: &Shared<u32>, sums: &Shared<f32>, found: &Append<u16>) {
    let a = lanes::ballot(3); //~ mismatched types
    let b = lanes::and(part[0]); //~ `f32` has no bitwise operators
    let c = sums.max(0, 2.5); //~ `f32` is not an integer of at most 64 bits
    let d = part.min(0, 1.0); //~ `f32` is not an integer of at most 64 bits
    bins.add(0, 1.5); //~ mismatched types
    found.push(1_u32); //~ mismatched types
    part.set(1); //~ this method takes 2 arguments but 1 argument was supplied
}

#[kernel(crate = vmarray_kernel)]
fn elements(bins: &Shared<u8>) {
    bins.set(0, 1);
    bins.add(0, 1); //~ a `u8` cannot be changed atomically
}

#[kernel(crate = vmarray_kernel, group = "many")] //~ mismatched types
fn length(at: At<1>) {}

#[kernel(crate = vmarray_kernel, groups = 3)] //~ the arguments are `group = length of a group`
fn argument(at: At<1>) {}

fn main() {}
