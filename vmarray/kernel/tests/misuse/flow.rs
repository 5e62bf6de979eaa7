//! Errors that rustc reports after type checking. A comment behind each line has the compiler's message.

#![allow(unused)]

use vmarray_kernel::{Own, kernel};

#[kernel(crate = vmarray_kernel)]
fn choice(i: u32, y: &mut Own<f32>) {
    y.set(match i { 0 => 1.0, n if n > 3 => 2.0 }); //~ non-exhaustive patterns
}

#[kernel(crate = vmarray_kernel)]
fn twice(y: &mut Own<f32>) {
    let x = 1.0;
    x = 2.0; //~ cannot assign twice to immutable variable `x`
    y.set(x);
}

fn main() {}
