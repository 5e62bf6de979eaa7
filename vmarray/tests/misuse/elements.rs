//! Types that cannot be elements. A comment behind each line has the compiler's message.

use vmarray::bytemuck::{Pod, Zeroable};
use vmarray::prelude::*;

#[derive(Clone, Copy)]
struct Bare {
    _x: u32,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[bytemuck(crate = "vmarray::bytemuck")]
#[repr(C)]
struct Derived {
    x: [f32; 1000],
}

fn main() -> vmarray::Result<()> {
    let fine = VirtualArray::<[Derived; 77]>::new(10)?;
    fine.set(3, [Derived { x: [1.0; 1000] }; 77])?;
    let _ = VirtualArray::<Bare>::new(10)?; //~ `Bare` cannot be an element of an array
    let _ = VirtualArray::<Option<u32>>::builder(10); //~ `bool`, `char`, `Option`, enumerations and references
    let _ = NdArray::<bool, 2>::new([10, 10])?; //~ vmarray::bytemuck::Pod, vmarray::bytemuck::Zeroable
    let _ = VirtualArray::<Derived>::create("file", 10)?; //~ vmarray::kernel::KernelType
    let _ = Source::new(vec![String::new()])?; //~ `String` cannot be an element of an array
    Ok(())
}
