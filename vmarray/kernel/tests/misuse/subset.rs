//! Code outside the subset of Rust for kernels. A comment behind each line has the compiler's message.

#![allow(unused)]

use vmarray_kernel::{Anywhere, At, KernelType, KernelNumber, Own, kernel};

#[kernel(crate = vmarray_kernel)]
fn expressions(at: At<1>, of: &Anywhere<f32>, x: f32, out: &mut Own<f32>) {
    let double = |y: f32| y * 2.0; //~ write a kernel function and pass it as a type parameter
    let r = &x; //~ `&` is supported only in arguments of kernel functions
    println!("{x}"); //~ kernels do not support macros
    let text = "a"; //~ kernels support numbers and `bool`
    let letter = 'a'; //~ write letters as `b'a'`
    let wide = 1_u128; //~ kernels support integers of at most 64 bits
    let range = 0..3; //~ ranges are supported only after `in` of a `for`
    let some = Some(x)?; //~ kernels do not support `?`
    if let y = x {} //~ kernels do not support `let` in conditions
    let z: f32 = x as _; //~ name the type
    for y in [1, 2] {} //~ loops run over ranges: write `for i in 0..n` and `a[i]`
    for i in (0..9).step_by(2).rev() {} //~ ranges support `.rev()`
    for i in 0.. {} //~ give the range both ends
    fn inner() {} //~ put this outside of the kernel function
    const N: u32 = 3; //~ put this outside of the kernel function
    let y = x.checked_add(1); //~ kernels do not support `Option`
    let y = x.frobnicate(); //~ make it a kernel function and call `frobnicate(x)`
    let y = x.max(); //~ `max` takes 1 arguments
    let y = x.max::<f32>(x); //~ methods in kernels have no type parameters
    let y @ 1.0.. = x else { return }; //~ kernels do not support `let … else`
    let [a, b] = [x, x]; //~ kernels do not support array patterns
    let ref y = x; //~ leave `ref` out
    x + 1.0 = 3.0; //~ only variables, their fields and their elements can be assigned
    double(x); //~ functions are no values in kernels
    unsafe { out.set(x) } //~ leave `unsafe` out
    break; //~ no enclosing loop or block has this label
    #[cfg(unix)] //~ kernels do not support attributes here
    out.set(x);
    match at.index() { 0 | 1 => {} (y | 2) => {} _ => {} } //~ bind the whole
}

#[kernel(crate = vmarray_kernel)]
async fn waits() {} //~ kernels do not wait

#[kernel(crate = vmarray_kernel)]
unsafe fn careless() {} //~ kernels are safe

#[kernel(crate = vmarray_kernel)]
fn with_lifetime<'a>(x: &Own<f32>) {} //~ leave lifetimes out

#[kernel(crate = vmarray_kernel)]
fn with_slice(x: &[f32]) {} //~ kernels need the length: write `&[T; N]`

#[kernel(crate = vmarray_kernel)]
fn with_trait(x: impl KernelNumber) {} //~ name the type: `fn f<T: Trait>(x: T)`

#[kernel(crate = vmarray_kernel)]
fn with_object(x: &dyn Send) {} //~ take a type parameter

#[kernel(crate = vmarray_kernel)]
fn with_pointer(x: *const f32) {} //~ kernels have no pointers

#[kernel(crate = vmarray_kernel)]
fn with_function(f: fn(f32) -> f32) {} //~ functions are type parameters

#[kernel(crate = vmarray_kernel)]
fn with_reference() -> &'static f32 { loop {} } //~ references within a type are not supported

#[kernel(somewhere)] //~ the arguments are `group = length of a group`
fn with_argument() {}

#[derive(Clone, Copy, KernelType)]
#[kernel_type(crate = vmarray_kernel)]
enum Choice { A, B } //~ kernels support only structs

fn main() {}
