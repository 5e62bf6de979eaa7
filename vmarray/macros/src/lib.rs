//! The attribute [`macro@kernel`] and the derive [`KernelType`](macro@KernelType) of `vmarray`.
//!
//! The attribute reads a function, refuses what is outside of the subset at its span, and writes it down four
//! times: as the host's function, as a type of the same name, as a syntax tree, and as a closure of which
//! rustc infers the types. No logic is in what it writes: all of that is in `vmarray-kernel`, which lowers
//! the tree.

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

use proc_macro::TokenStream;
use syn::parse_macro_input;

/// Makes a function a kernel, or a function that kernels call.
///
/// The function stays what it is and is called like any other; its operators, indices and mathematics follow
/// the rules that all devices keep to, so that sums wrap and an index outside reads zero. Beside it there is
/// a type of the same name, by which it is launched, lowered, and passed to other kernels as a type
/// parameter. `crate = path` says where `vmarray::kernel` is, if not there.
///
/// Items of a kernel with `group = length` run in groups of so many (a number or constant, at most 1024) and
/// can share memory, `&Group<T, N>`; `at.in_group()`, `at.group()` and `at.groups()` say which they are. With
/// `group = [rows, columns]`, of as many axes as the kernel's `At`, a group is a tile of the result.
/// `barrier()` waits for all items of the group; with a multiple of 32 of them there are operations across 32
/// lanes each: `lanes::sum`, `min`, `max`, `and`, `or`, `xor`, and `scan_…` of these up to the own lane;
/// `lanes::shuffle(x, lane)`, `shuffle_xor(x, mask)`, `ballot`, `any` and `all`. All items of a group have to
/// come to a barrier or such an operation: conditions around them are of what all have in common, such as
/// values, tables and loops over numbers.
///
/// `alloc::<T>(n)` takes memory for `n` elements that only the item has, for as long as it runs: `a[i]` and
/// `a.set(i, value)`.
///
/// The body may use: `let` with patterns of tuples and structs; assignment to variables, their fields and
/// elements; `if`, `match` on integers and bools, `loop`, `while`, `for` over ranges, labels, `break` with a
/// value, `continue`, `return`; arrays, tuples, structs with `KernelType`; all integers but 128 bits, `f32`,
/// `f64`, `bool`; `as`; the operators; the methods of numbers; calls of other kernel functions, with `&x` and
/// `&mut x` as arguments. Everything else is an error at its place that says what to write instead.
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

/// Makes a struct a value that kernels can hold: all of its fields have to be such values, and it has to be
/// `Copy`. For elements of arrays it has to be `bytemuck::Pod` too. `#[kernel_type(crate = path)]` says where
/// `vmarray::kernel` is, if not there.
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
