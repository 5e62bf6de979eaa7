//! Types and callees in a kernel function that rustc infers, such as the types of number literals.

use crate::layout::{KernelType, Layout};
use crate::number::KernelScalar;
use crate::tree::Tree;
use backend_api::expr::Type;
use std::marker::PhantomData;

/// The type of a literal in a kernel, for inference. `#[kernel]` generates a closure with a `Lit` parameter
/// for each literal, so that rustc infers `T` from the closure's body. No code calls the closure.
pub struct Lit<T>(PhantomData<fn() -> T>);

impl<T> Lit<T> {
    /// Makes rustc infer that `T` is the type of `value`.
    pub fn is(&self, value: T) -> T {
        value
    }
}

/// The callee of a call in a kernel, for inference: rustc infers `C`, the type of the called kernel function.
pub struct Call<C>(PhantomData<fn() -> C>);

/// The type of a struct literal in a kernel, for inference: rustc infers `T`.
pub struct Of<T>(PhantomData<fn() -> T>);

impl<T> Of<T> {
    /// Makes rustc infer that `T` is the type of `value`.
    pub fn is(&self, value: T) -> T {
        value
    }
}

/// The inferred contents of a slot. A *slot* is a position in a kernel function whose type or callee rustc
/// infers.
#[derive(Clone, Copy, Debug)]
pub enum InferredSlot {
    /// The type of a number or bool literal.
    Literal(Type),
    /// The type of a struct literal.
    Struct(fn() -> Layout),
    /// The definition of a called kernel function.
    Callee(fn() -> Definition),
}

/// A slot (a position in a kernel whose type or callee rustc infers), or a tuple of slots. Slots are the
/// parameter types of a closure that exists only for type inference.
pub trait Slots {
    /// Appends the inferred contents of each slot to `into`.
    fn append(into: &mut Vec<InferredSlot>);
}

impl<T: KernelScalar> Slots for Lit<T> {
    fn append(into: &mut Vec<InferredSlot>) {
        into.push(InferredSlot::Literal(T::TYPE));
    }
}

impl<T: KernelType> Slots for Of<T> {
    fn append(into: &mut Vec<InferredSlot>) {
        into.push(InferredSlot::Struct(T::layout));
    }
}

impl<C: Define> Slots for Call<C> {
    fn append(into: &mut Vec<InferredSlot>) {
        into.push(InferredSlot::Callee(C::define));
    }
}

macro_rules! tuples {
    ($($($S:ident)*;)*) => { $(
        impl<$($S: Slots),*> Slots for ($($S,)*) {
            #[allow(unused_variables, reason = "the macro also makes the empty tuple")]
            fn append(into: &mut Vec<InferredSlot>) {
                $($S::append(into);)*
            }
        }
    )* };
}
tuples! { ; A; A B; A B C; A B C D; A B C D E; A B C D E F; A B C D E F G; A B C D E F G H; }

/// Returns the types and callees that rustc infers for a closure's parameters. Does not call the closure.
pub fn slots<S: Slots, R>(_: impl Fn(S) -> R) -> Vec<InferredSlot> {
    let mut slots = Vec::new();
    S::append(&mut slots);
    slots
}

/// Returns a value of any type, for code that is compiled but never run.
pub fn never<T>() -> T {
    unreachable!("rustc only checks the types of this code; it never runs")
}

/// A constant that a kernel function names: its type, and the bits of its scalars.
#[derive(Clone, Debug)]
pub struct NamedConstant {
    /// Type of the constant.
    pub layout: Layout,
    /// The bits of all scalars in the constant, in the order of its fields and elements.
    pub values: Vec<u64>,
}

/// Converts the value of a Rust constant to the type and bits that lowering uses.
pub fn constant<T: KernelType>(value: T) -> NamedConstant {
    let mut values = Vec::new();
    value.values(&mut values);
    NamedConstant { layout: T::layout(), values }
}

/// The definition of a kernel function for lowering, with concrete types and constants as generic arguments.
///
/// ```
/// use vmarray_kernel::{Define, Definition, kernel};
///
/// #[kernel(crate = vmarray_kernel)]
/// fn half(x: f64) -> f64 {
///     x / 2.0
/// }
/// let Definition { tree, slots, .. } = half::define();
/// assert_eq!((tree.name, slots.len()), ("half", 1));
/// ```
#[derive(Debug)]
pub struct Definition {
    /// The syntax tree of the function.
    pub tree: &'static Tree,
    /// The types and callees that rustc inferred, one for each slot (position in the function).
    pub slots: Vec<InferredSlot>,
    /// The types that the function names. The syntax tree refers to them by index.
    pub types: Vec<Layout>,
    /// The constants that the function names. The syntax tree refers to them by index.
    pub constants: Vec<NamedConstant>,
}

/// The type of a kernel function. `#[kernel]` implements this trait for a type that has the function's name.
///
/// ```
/// use vmarray_kernel::{kernel, Define};
///
/// #[kernel(crate = vmarray_kernel)]
/// fn double(x: u32) -> u32 {
///     x * 2
/// }
///
/// fn name_of<F: Define>() -> &'static str {
///     F::define().tree.name
/// }
/// assert_eq!(name_of::<double>(), "double");
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a kernel function",
    note = "put `#[kernel]` above the function"
)]
pub trait Define: 'static {
    /// Returns the definition of the function.
    fn define() -> Definition;
}

/// The type of a kernel function with these argument types and this output type. Functions use it as a bound
/// on their type parameters.
///
/// ```
/// use vmarray_kernel::{kernel, Function};
///
/// #[kernel(crate = vmarray_kernel)]
/// fn square(x: f32) -> f32 {
///     x * x
/// }
///
/// #[kernel(crate = vmarray_kernel)]
/// fn twice<F: Function<(f32,), f32>>(x: f32) -> f32 {
///     F::call((F::call((x,)),))
/// }
/// assert_eq!(twice::<square>(3.0), 81.0);
/// assert_eq!(<square as Function<_, _>>::call((3.0,)), 9.0);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a kernel function with these arguments and this output",
    note = "a function with a reference parameter cannot be a type parameter"
)]
pub trait Function<Arguments, Output>: Define {
    /// Calls the function on the host.
    fn call(arguments: Arguments) -> Output;
}

/// Marker type for a function without `#[kernel]`. If code uses such a function as a kernel, rustc resolves
/// the name to this type, and reports an error with advice.
#[derive(Debug)]
pub struct PlainFunction;

/// Marker type for a kernel function that has only value parameters, so it cannot be launched. If code tries
/// to launch it, rustc names this type in an error with advice.
#[derive(Debug)]
pub struct FunctionOfValues;

/// A function that kernels can call. Missing functions also implement this trait, because rustc reports a
/// missing function elsewhere.
#[diagnostic::on_unimplemented(
    message = "a kernel calls kernel functions only: write `#[kernel]` above this function",
    label = "this function has no `#[kernel]`"
)]
pub trait CalledByKernels {}
impl CalledByKernels for &'static () {}

/// A kernel that has parameters for items, so a program can launch it.
#[diagnostic::on_unimplemented(
    message = "a function with only value parameters cannot be launched: write a kernel with a `&mut \
               Own<T>` that calls it",
    label = "this function has only value parameters",
    note = "expressions can also call it: `name::of(…)`"
)]
pub trait LaunchedForItems {}
impl LaunchedForItems for &'static Definition {}

impl Define for PlainFunction {
    fn define() -> Definition {
        never()
    }
}

/// Calls the kernel function whose type is `F`, with the tuple `arguments`.
#[inline(always)]
pub fn call<F: Function<A, R>, A, R>(arguments: A) -> R {
    F::call(arguments)
}

/// Makes rustc infer the types in a call of the kernel function whose type is `F`. Never runs.
pub fn typed_call<F: Function<A, R>, A, R>(_: &Call<F>, _: A) -> R {
    never()
}
