//! The attribute [`macro@kernel`] and the derive [`KernelType`](macro@KernelType) of `vmarray`.
//!
//! The attribute emits a function in four forms: a Rust function that the host calls (the *host form*), a
//! type of the same name, a syntax tree, and a closure for type inference. It reports an error at each
//! unsupported expression. The crate `vmarray-kernel` lowers the tree for devices.

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

/// Makes a function a kernel, which a program can launch for many items (GPU threads), or a function that
/// kernels can call.
///
/// The program can also call the function like any other function. Operators, indices and mathematics follow
/// the same rules as on all devices: sums wrap, and an index out of bounds reads zero. The attribute adds a
/// type with the name of the function. A program uses this type to launch the kernel, or to pass it to other
/// kernels as a type parameter. `crate = path` replaces the default path `vmarray::kernel` of the library.
///
/// # Groups
///
/// With `group = length` (a number or constant, at most 1024), items run in groups of `length` items. The
/// items of a group can share memory: `&Group<T, N>`. With `group = [rows, columns]`, with the same number of
/// axes as the kernel's `At`, a group is a tile of the result.
///
/// - `at.in_group()` is the item's position in its group, `at.group()` the index of the group, and
///   `at.groups()` the number of groups.
/// - `barrier()` waits for all items of the group.
/// - In groups of a multiple of 32 items, an item can use the values of the other items (lanes) of its
///   subgroup of 32 items: `lanes::sum(x)`, `min`, `max`, `and`, `or`, `xor`; `scan_sum(x)` and so on, over
///   the lanes up to the own one; `shuffle(x, lane)`, `shuffle_xor(x, mask)`, `ballot`, `any` and `all`;
///   `alike(x, bits)`, the lanes whose lowest bits equal the own ones; `sync(x)`, which returns `x` after all
///   lanes have reached it, and orders their accesses to `Group` memory.
///
/// All items of a group must reach a barrier or a `lanes` operation together. Conditions around it must
/// therefore depend only on data that is the same for all items, such as values, tables and counters of
/// loops.
///
/// # Memory and syntax
///
/// `let a = alloc::<T>(n)` allocates private memory for `n` elements until the end of the item. `a[i]` reads
/// an element, and `a.set(i, value)` writes it.
///
/// The body may use: `let` with patterns of tuples and structs; assignment to variables, their fields and
/// elements; `if`, `match` on integers and bools, `loop`, `while`, `for` over ranges, labels, `break` with a
/// value, `continue`, `return`; arrays, tuples, structs with `KernelType`; integers except 128 bits, `f32`,
/// `f64`, `bool`; `as`; the operators; the methods of numbers; calls of other kernel functions, with `&x` and
/// `&mut x` as arguments. The compiler reports everything else as an error, with the supported replacement.
///
/// ```
/// use vmarray_kernel::{kernel, KernelNumber};
///
/// #[kernel(crate = vmarray_kernel)]
/// fn lerp<T: KernelNumber>(a: T, b: T, t: T) -> T {
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
    let arguments = parse_macro_input!(arguments as arguments::AttributeArguments);
    let function = parse_macro_input!(item as syn::ItemFn);
    function::expand(&arguments, &function).into()
}

/// Makes a struct a type of values in kernels. The struct must be `Copy`, and all fields must have types that
/// kernels support. Elements of arrays must also be `bytemuck::Pod`. `#[kernel_type(crate = path)]` replaces
/// the default path `vmarray::kernel` of the library.
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
