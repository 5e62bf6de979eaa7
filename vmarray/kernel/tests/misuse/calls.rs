//! Calls, conversions and lengths of groups that rustc rejects. A comment behind each line has the compiler's
//! message.

#![allow(unused_variables, dead_code)]

use vmarray_kernel::{Anywhere, Append, At, Kernel, Own, Shared, kernel};

fn plain(x: u32) -> u32 {
    x
}

fn generic<T>(x: T) -> T {
    x
}

mod other {
    pub fn plain(x: f32) -> f32 {
        x
    }
}

#[kernel(crate = vmarray_kernel)]
fn square(x: f32) -> f32 {
    x * x
}

#[kernel(crate = vmarray_kernel)]
fn functions(y: &mut Own<f32>) {
    y.set(plain(3) as f32); //~ a kernel calls kernel functions only: write `#[kernel]` above this function
    y.set(other::plain(3.0)); //~ a kernel calls kernel functions only
    y.set(generic(3.0)); //~ a kernel calls kernel functions only
    y.set(std::cmp::max(3, 4) as f32); //~ a kernel calls kernel functions only
    y.set(missing(3.0)); //~ cannot find function `missing` in this scope
    y.set(sqare(3.0)); //~ a function with a similar name exists
    y.set(square(1.0, 2.0)); //~ this function takes 1 argument but 2 arguments were supplied
    y.set(square()); //~ this function takes 1 argument but 0 arguments were supplied
    y.set(square(3_u32)); //~ expected `f32`, found `u32`
}

#[kernel(crate = vmarray_kernel)]
fn conversions(
    at: At<1>,
    i: u32,
    a: &Anywhere<f32>,
    bins: &Shared<u32>,
    found: &Append<u32>,
    x: &Own<f32>,
    y: &mut Own<f32>,
) {
    y.set(at.index()); //~ the elements are `f32`, this value is a `usize`: cast numbers, `value as f32`
    y.set(i); //~ the elements are `f32`, this value is a `u32`
    bins.add(0, x.get()); //~ the elements are `u32`, this value is a `f32`: cast numbers, `value as u32`
    bins.add(i, 1); //~ an index is a `usize` here, this is a `u32`: cast it, `i as usize`
    found.push(x.get()); //~ the elements are `u32`, this value is a `f32`
    y.set(a[i]); //~ a `u32` cannot index a
    let mut table = [0.0; 4];
    table[i] = 1.0; //~ a `u32` cannot index a
    y.set(table[1_u8]); //~ a `u8` cannot index a `[f32; 4]`: write `a[i as usize]`
    if x.get() {} //~ expected `bool`, found `f32`
    let c = x.get() as char; //~ `char` is not a number of at most 64 bits
    let z: f32 = while true { break 1.0 }; //~ `
}

#[kernel(crate = vmarray_kernel)]
fn returned(y: &mut Own<f32>) {
    let j = plain(3); //~ a kernel calls kernel functions only
    y.set(j as f32);
}

#[kernel(crate = vmarray_kernel, group = 2000)] //~ a group has more than 1024 items: make it smaller
fn long_group(at: At<1>, y: &mut Own<f32>) {
    barrier();
}

#[kernel(crate = vmarray_kernel, group = [64, 64])] //~ a group has more than 1024 items: make it smaller
fn large_tile(at: At<2>, y: &mut Own<f32>) {
    barrier();
}

#[kernel(crate = vmarray_kernel, group = 0)] //~ a group has no items: give it 1 to 1024
fn empty_group(at: At<1>, y: &mut Own<f32>) {}

#[kernel(crate = vmarray_kernel, group = 48)]
fn part_of_lanes(y: &mut Own<f32>) {
    y.set(lanes::sum(y.get())); //~ groups of a multiple of 32 items, as in `group = 64`
}

fn launch<K: Kernel>() {}

fn main() {
    launch::<square>(); //~ has only value parameters and cannot be launched: launch a kernel
    square::run((1.0,)); //~ a function with only value parameters cannot be launched: write
    square::launch().run((1.0,)); //~ a function with only value parameters cannot be launched
}
