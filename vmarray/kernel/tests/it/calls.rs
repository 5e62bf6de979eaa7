//! Tests of kernels that call other kernel functions.

use crate::harness::both;
use vmarray_kernel::{Function, KernelInteger, KernelNumber, kernel};

mod elsewhere {
    use vmarray_kernel::{KernelNumber, kernel};

    #[kernel(crate = vmarray_kernel)]
    pub fn lerp<T: KernelNumber>(a: T, b: T, t: T) -> T {
        a + (b - a) * t
    }

    #[kernel(crate = vmarray_kernel)]
    pub fn halved(x: f32) -> f32 {
        lerp(0.0, x, 0.5)
    }

    #[kernel(crate = vmarray_kernel)]
    pub fn nothing() {}
}
use elsewhere::lerp;

#[kernel(crate = vmarray_kernel)]
fn first_multiple<const N: u32>(from: u32) -> u32 {
    let mut x = from;
    loop {
        if x % N == 0 {
            return x;
        }
        x += 1;
    }
}

#[kernel(crate = vmarray_kernel)]
fn divided(a: i32, b: i32) -> (i32, i32) {
    if b == 0 {
        return (0, a);
    }
    (a / b, a % b)
}

#[kernel(crate = vmarray_kernel)]
fn square<T: KernelNumber>(x: T) -> T {
    x * x
}

#[kernel(crate = vmarray_kernel)]
fn next(x: u32) -> u32 {
    x + 1
}

#[kernel(crate = vmarray_kernel)]
fn repeated<F: Function<(u32,), u32>, const N: usize>(x: u32) -> u32 {
    let mut x = x;
    for _ in 0..N {
        x = F::call((x,));
    }
    x
}

#[kernel(crate = vmarray_kernel)]
fn zipped<T: KernelNumber, F: Function<(T, T), T>>(a: [T; 3], b: [T; 3]) -> [T; 3] {
    let mut out = a;
    for i in 0..3 {
        out[i] = F::call((a[i], b[i]));
    }
    out
}

#[kernel(crate = vmarray_kernel)]
fn larger<T: KernelNumber>(a: T, b: T) -> T {
    a.max(b)
}

#[kernel(crate = vmarray_kernel)]
fn step<T: KernelInteger>(of: &mut T, by: &T) -> T {
    let before = *of;
    *of = *of * T::ONE + *by;
    before
}

#[kernel(crate = vmarray_kernel)]
fn stepped_twice(of: &mut u32) -> u32 {
    let by = 3;
    step(of, &by) + step(of, &by)
}

#[test]
fn functions_are_generic_and_from_other_modules() {
    both!(|x: f32| -> f32 {
        elsewhere::nothing();
        lerp(x, 1.0, 0.25) + elsewhere::halved(x)
    });
    both!(|x: i32| -> i32 { lerp(x, 3, 2) });
    both!(|x: u32| -> [u32; 2] { [first_multiple::<7>(x % 1000), first_multiple::<1>(x)] });
}

#[test]
fn functions_return_early_and_several_values() {
    both!(|x: [i32; 2]| -> i32 {
        let (quotient, rest) = divided(x[0], x[1] % 5);
        quotient * 3 + rest + divided(7, x[0]).1
    });
}

#[test]
fn functions_are_type_parameters() {
    both!(|x: u32| -> [u32; 2] { [repeated::<next, 5>(x), repeated::<square<u32>, 3>(x % 10)] });
    both!(|x: [f32; 3]| -> [f32; 3] { zipped::<_, larger<f32>>(x, [0.5; 3]) });
}

#[test]
fn functions_change_variables_through_references() {
    both!(|x: u32| -> [u32; 4] {
        let mut y = x;
        let a = step(&mut y, &x);
        let b = stepped_twice(&mut y) + y;
        let mut t = (y, 1_u32);
        let c = step(&mut t.1, &y) + t.1;
        let d =
            y + {
                let five = 5;
                step(&mut y, &five)
            } + y;
        [a, b, c, d]
    });
}

#[test]
fn places_are_assigned_with_any_calls_in_indices() {
    both!(|x: u32| -> [u32; 4] {
        let mut a = [[x; 2]; 2];
        let i = x;
        a[next(i) as usize % 2][0] = 7;
        a[0][next(i) as usize % 2] += next(i);
        [a[0][0], a[0][1], a[1][0], a[1][1]]
    });
}

#[test]
fn arguments_by_value_are_copies() {
    both!(|x: u32| -> u32 {
        let mut y = x;
        let z = square(y)
            + {
                let one = 1;
                step(&mut y, &one)
            }
            + square(y);
        z
    });
}
