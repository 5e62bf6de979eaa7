//! Typical mistakes in a first kernel. The compiler reports each as one error, with the advice behind the
//! line, and warns about no unused name.

use vmarray_kernel::{Anywhere, Append, At, Group, KernelType, Own, Rows, Shared, Window, kernel};

#[kernel(crate = vmarray_kernel)]
fn square(x: f32) -> f32 {
    x * x
}

#[derive(Clone, Copy, KernelType)]
#[kernel_type(crate = vmarray_kernel)]
struct Pair {
    a: f32,
    b: f32,
}

#[kernel(crate = vmarray_kernel)]
fn elements(at: At<1>, x: &Own<f32>, y: &mut Own<f32>, i: usize) {
    y.set(x[i]); //~ `x` is the item's own element: read it by `x.get()`
    y.set(x[0]); //~ or use `x: &Anywhere<T>` to read elements by index
    y[i] = 3.0; //~ write the item's own element by `y.set(value)`
    *y = x.get(); //~ write the item's own element by `y.set(value)`
    *y = 3.0; //~ write the item's own element by `y.set(value)`
    *y += 3.0; //~ write the item's own element by `y.set(y.get() + …)`
    y = 3.0; //~ write the item's own element by `y.set(value)`
    *x = 3.0; //~ `x` is read-only: use `x: &mut Own<T>`, and write `x.set(value)`
    x.set(3.0); //~ `x` is read-only: use `x: &mut Own<T>`
    y.set(*x + 1.0); //~ `x` is the item's own element: read it by `x.get()`
    y.set(x + 1.0); //~ `x` is the item's own element: read it by `x.get()`
    y.set(-x); //~ `x` is the item's own element: read it by `x.get()`
    y.set(x as f32); //~ `x` is the item's own element: read it by `x.get()`
    y.set(x.sqrt()); //~ `x` is the item's own element: read it by `x.get()`
    y.set(x.read()); //~ `x` has no `read`: it has `get()`
    y.put(1.0); //~ `y` has no `put`: it has `get()` and `set(value)`
    y.set(at); //~ `at` is a position: write `at.index()` for its index
    at[0] = 1; //~ kernels cannot change the item's position `at`: use a variable instead
}

#[kernel(crate = vmarray_kernel)]
fn places(
    at: At<1>,
    at2: At<2>,
    a: &Anywhere<f32>,
    b: &Anywhere<f32, 2>,
    w: &Window<f32, 1>,
    r: &Rows<f32>,
    y: &mut Own<f32>,
) {
    y.set(a[at]); //~ an index is a number, not a position: write `a[at.index()]`
    y.set(b[at2]); //~ several axes need an array of indices: write `b[[at2[0], at2[1]]]`
    y.set(b[0][1]); //~ an index along several axes is one array: write `b[[i, j]]`
    y.set(w[at.index()]); //~ a window's index is a position: write `w[at]`
    y.set(w[at - 1]); //~ a window's index is a position: write `w[at]`, or `w[at.plus(1)]`
    y.set(w[at.plus(1, 0)]); //~ `plus` takes 1 argument
    y.set(r[at.index()]); //~ rows need the row's and the element's index: write `r[[row, i]]`
    y.set(at2.index() as f32); //~ `at2` has several axes: write `at2[0]`, `at2[1]` and so on
    y.set(a.get(0)); //~ `a` has many elements: read one by an index, `a[i]`
    a.set(0, 1.0); //~ `a` is read-only: write the item's own element by `&mut Own<T>`
    a[0] = 1.0; //~ `a` is read-only: write the item's own element by `&mut Own<T>`
    y.set(a[0..3]); //~ ranges are supported only after `in` of a `for`
    y.set(at.in_group() as f32); //~ this kernel has no groups: set their length
    barrier(); //~ set their length, `#[kernel(group = 64)]`
    y.set(lanes::sum(y.get())); //~ set their length, `#[kernel(group = 64)]`
}

#[kernel(crate = vmarray_kernel)]
fn collections(x: &Anywhere<f32>, table: &[f32; 4], y: &mut Own<f32>) {
    for v in x.iter() {} //~ loops run over ranges
    for v in x {} //~ loops run over ranges: write `for i in 0..n` and `a[i]`
    for v in table.windows(2) {} //~ loops run over ranges
    y.set(x.iter().sum()); //~ kernels have no iterators and slices: write `for i in 0..n` and `a[i]`
    y.set(table.iter().map(|v| v * 2.0).sum()); //~ kernels have no iterators and slices
    let v = Vec::new(); //~ kernels have no heap: use an array, `[0; N]`, or memory of the item
    let v = Box::new(1.0); //~ kernels have no heap
    let v = vec![0.0; 4]; //~ kernels do not support macros
    let s = String::from("a"); //~ kernels have no strings: use bytes, `&Anywhere<u8>`
    let s = "a".to_string(); //~ kernels have no strings
    let p = Pair::new(1.0); //~ kernels cannot call the associated function `Pair::new`
    let z = u32::try_from(3); //~ numbers are cast by `x as T`
    let z: u32 = 3.into(); //~ numbers are cast by `x as T`
    let z = y.get().partial_cmp(&1.0).unwrap(); //~ kernels do not support the method `partial_cmp`
    assert!(y.get() > 0.0); //~ kernels do not support macros
}

#[kernel(crate = vmarray_kernel, group = 64)]
fn shared(bins: &Shared<u32>, part: &Group<f32, 64>, found: &Append<u32>, y: &mut Own<f32>) {
    bins[0] += 1; //~ write shared elements by `bins.set(i, value)`, or atomics like `bins.add(i, value)`
    part[0] = 1.0; //~ write memory of a group by `part.set(i, value)`
    found[0] = 1; //~ append an element by `found.push(value)`
    y.set(found[0]); //~ `found` is only appended to, by `found.push(value)`
    y.set(part + 1.0); //~ `part` has many elements: read one by an index, `part[i]`
}

#[kernel(crate = vmarray_kernel)]
fn no_option(x: Option<f32>) {} //~ kernels do not support `Option` and `Result`

#[kernel(crate = vmarray_kernel)]
fn no_result(x: &Own<f32>) -> Option<f32> {} //~ use a value and a `bool`

#[kernel(crate = vmarray_kernel)]
fn no_string(x: &str) {} //~ kernels have no strings: use bytes, `&Anywhere<u8>`

#[kernel(crate = vmarray_kernel)]
fn no_vector(x: Vec<f32>) {} //~ kernels have no heap: use `&Anywhere<T>` or `&[T; N]`

#[kernel(crate = vmarray_kernel)]
fn no_letter(x: char) {} //~ kernels do not support `char`: use a `u8` or `u32`

#[kernel(crate = vmarray_kernel)]
fn no_wide_integer(x: u128) {} //~ kernels support integers of at most 64 bits: use two `u64`

#[kernel(crate = vmarray_kernel)]
fn no_bools(x: &Own<bool>, y: &mut Own<f32>) {} //~ arrays cannot have `bool` elements: use `u8`

#[kernel(crate = vmarray_kernel)]
fn no_value(x: Own<f32>) {} //~ the item's own element is passed by reference

#[kernel(crate = vmarray_kernel)]
fn no_view_by_value(x: Anywhere<f32>) {} //~ views are passed by reference: write `&` before the type

#[kernel(crate = vmarray_kernel)]
fn no_mutable_view(x: &mut Anywhere<f32>) {} //~ only `Own` is passed by `&mut`

#[kernel(crate = vmarray_kernel)]
fn no_reference_to_a_place(at: &At<1>) {} //~ a position is passed by value: leave `&` out

fn main() {}
