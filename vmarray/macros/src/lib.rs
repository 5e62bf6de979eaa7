//! The attribute [`macro@kernel`] and the derive [`KernelType`](macro@KernelType) of `vmarray`.
//!
//! The attribute reads a function, reports code outside the subset at its span, and emits it in four forms:
//! the host form, a type of the same name, a syntax tree, and a closure for type inference. The emitted code
//! has no logic; `vmarray-kernel` lowers the tree.

mod arguments;
mod body;
mod call;
mod code;
mod control;
mod function;
mod kernel_type;
mod literal;
mod methods;
mod pattern;
mod place;
mod scope;
mod spans;
mod view;

use proc_macro::TokenStream;
use syn::parse_macro_input;

/// Makes a function a kernel, or a function that kernels call.
///
/// The program can call the function like any other. Its operators, indices and mathematics follow the common
/// rules of all devices: sums wrap, and an index out of bounds reads zero. The attribute adds a type of the
/// same name, for launching and lowering the function and for passing it to other kernels as a type
/// parameter. `crate = path` replaces the default path `vmarray::kernel`.
///
/// Items of a kernel with `group = length` run in groups of `length` items (a number or constant, at most
/// 1024) and can share memory, `&Group<T, N>`. `at.in_group()`, `at.group()` and `at.groups()` give the place
/// of an item. With `group = [rows, columns]`, of as many axes as the kernel's `At`, a group is a tile of the
/// result. `barrier()` waits for all items of the group. Groups of a multiple of 32 items have operations
/// across 32 lanes: `lanes::sum`, `min`, `max`, `and`, `or`, `xor`, and `scan_…` of these up to the own lane;
/// `lanes::shuffle(x, lane)`, `shuffle_xor(x, mask)`, `ballot`, `any` and `all`. All items of a group must
/// reach a barrier or such an operation, so conditions around it must depend only on common data, such as
/// values, tables and loops over numbers.
///
/// `alloc::<T>(n)` allocates private memory for `n` elements until the end of the item: `a[i]` and
/// `a.set(i, value)`.
///
/// The body may use: `let` with patterns of tuples and structs; assignment to variables, their fields and
/// elements; `if`, `match` on integers and bools, `loop`, `while`, `for` over ranges, labels, `break` with a
/// value, `continue`, `return`; arrays, tuples, structs with `KernelType`; integers except 128 bits, `f32`,
/// `f64`, `bool`; `as`; the operators; the methods of numbers; calls of other kernel functions, with `&x` and
/// `&mut x` as arguments. Everything else is an error at its place with the supported replacement.
///
/// ```
/// use vmarray_kernel::{kernel, Number};
///
/// #[kernel(crate = vmarray_kernel)]
/// fn lerp<T: Number>(a: T, b: T, t: T) -> T {
///     a + (b - a) * t
/// }
///
/// #[kernel(crate = vmarray_kernel)]
/// fn halfway(x: f32) -> f32 {
///     lerp(x, 10.0, 0.5)
/// }
/// assert_eq!((lerp(1, 3, 2), halfway(2.0)), (5, 6.0));
/// ```
#[proc_macro_attribute]
pub fn kernel(arguments: TokenStream, item: TokenStream) -> TokenStream {
    let arguments = parse_macro_input!(arguments as arguments::Arguments);
    let function = parse_macro_input!(item as syn::ItemFn);
    function::expand(&arguments, &function).into()
}

/// Makes a struct a value for kernels: its fields must be such values, and the struct must be `Copy`.
/// Elements of arrays must be `bytemuck::Pod` too. `#[kernel_type(crate = path)]` replaces the default path
/// `vmarray::kernel`.
///
/// ```
/// use vmarray_kernel::{kernel, KernelType};
///
/// #[derive(Clone, Copy, KernelType)]
/// #[kernel_type(crate = vmarray_kernel)]
/// struct Body {
///     place: [f32; 3],
///     mass: f32,
/// }
///
/// #[kernel(crate = vmarray_kernel)]
/// fn lifted(body: Body, by: f32) -> Body {
///     let mut body = body;
///     body.place[2] += by / body.mass;
///     body
/// }
/// assert_eq!(lifted(Body { place: [1.0; 3], mass: 2.0 }, 1.0).place, [1.0, 1.0, 1.5]);
/// ```
#[proc_macro_derive(KernelType, attributes(kernel_type))]
pub fn kernel_type(item: TokenStream) -> TokenStream {
    let item = parse_macro_input!(item as syn::DeriveInput);
    kernel_type::expand(&item).unwrap_or_else(|error| error.to_compile_error()).into()
}
