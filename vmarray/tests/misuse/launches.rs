//! Arguments of kernels. A comment behind each line has the compiler's message.

use vmarray::kernel::Own;
use vmarray::prelude::*;

#[vmarray::kernel]
fn scale(by: f32, x: &Own<f32>, out: &mut Own<f32>) {
    out.set(x.get() * by);
}

fn main() -> vmarray::Result<()> {
    let (x, mut y) = (VirtualArray::<f32>::new(10)?, VirtualArray::<f32>::new(10)?);
    let (list, whole) = (vec![1.0_f32; 10], VirtualArray::<u32>::new(10)?);
    scale::run((2.0, &list, &mut y))?; //~ is not implemented for `&Vec<f32>`
    scale::run((2.0, &x))?; //~ wrong arguments, or a wrong number of them
    scale::run((2.0, &x, &y))?; //~ `&mut array`, `&mut source` or `section_mut(..)?`
    scale::run((2.0, &whole, &mut y))?; //~ expected `f32`, found `u32`
    scale::run((2_u32, &x, &mut y))?; //~ a kernel cannot take a `u32` as its parameter of type `f32`
    Ok(())
}
