//! Types that do not fit. A comment behind each line has the compiler's message.

#![allow(unused)]

use vmarray_kernel::{Anywhere, At, Function, KernelType, Own, Window, kernel};

#[derive(Clone, Copy)]
struct Opaque(u32);

#[derive(Clone, Copy, KernelType)]
#[kernel_type(crate = vmarray_kernel)]
struct Wide(u128); //~ kernels cannot hold a `u128`

#[kernel(crate = vmarray_kernel)]
fn square(x: f32) -> f32 {
    x * x
}

#[kernel(crate = vmarray_kernel)]
fn applied<F: Function<(f32,), f32>>(x: f32) -> f32 {
    F::call((x,))
}

#[kernel(crate = vmarray_kernel)]
fn operators(of: &Anywhere<f32>, x: f32, i: i32, out: &mut Own<f32>) {
    let a = x + i; //~ mismatched types
    let b = x % 2.0; //~ `f32` is not an integer of at most 64 bits
    let c = x & x; //~ `f32` has no bitwise operators
    let d = i.sqrt(); //~ `i32` is neither `f32` nor `f64`
    let e = -(i as u32); //~ `u32` has no sign
    let f = of[i]; //~ a `i32` is no index of a `vmarray_kernel::Anywhere<f32>`: write `a[i as usize]`
    let g = [x, x][0_u8]; //~ expected `usize`, found `u8`
    let h = (x, 1) == (x, 1); //~ is neither a number of at most 64 bits nor a `bool`
    let k = applied::<square>(i); //~ mismatched types
    out.set(i); //~ the elements are `f32`, this value is a `i32`: cast numbers, `value as f32`
    if i {} //~ mismatched types
}

#[kernel(crate = vmarray_kernel)] //~ kernels cannot hold a `Opaque`
fn parameters(at: At<1>, x: Opaque) {} //~ a kernel that is launched cannot take a `Opaque`

fn main() {}

#[kernel(crate = vmarray_kernel)]
fn places(at: At<2>, by: isize, of: &Anywhere<f32, 2>, image: &Window<f32, 2>, out: &mut Own<f32>) {
    let a = of[at[0]]; //~ expected `[usize; 2]`, found `usize`
    let b = image[at.plus(by)]; //~ expected `[isize; 2]`, found `isize`
    out.set(a + b);
}
