//! Kernels: Rust functions that run unchanged on the host, and on devices after *lowering*: the translation
//! to `backend_api::kernel::Body`, from which backends generate code.
//!
//! `#[kernel]` emits a function in several forms: a syntax tree ([`Tree`](tree::Tree)) for lowering, with the
//! types of literals and callees that rustc infers ([`Definition`]), and a Rust function that the host calls
//! (the *host form*). The host form calls functions that implement the rule table of `backend_api::expr`.
//! Results on the host and on all devices are therefore equal bit by bit, except for the bits of a NaN.
//!
//! ```
//! use vmarray_kernel::{Anywhere, At, Own, kernel, run_on_host};
//!
//! #[kernel(crate = vmarray_kernel)]
//! fn smooth<const R: usize>(at: At<1>, image: &Anywhere<f32>, out: &mut Own<f32>) {
//!     let (i, last) = (at.index(), image.len() - 1);
//!     let mut sum = 0.0;
//!     for k in 0..2 * R + 1 {
//!         sum += image[(i + k).saturating_sub(R).min(last)];
//!     }
//!     out.set(sum / (2 * R + 1) as f32);
//! }
//!
//! let mut out = [0.0; 4];
//! run_on_host::<smooth<1>>(0..4, ((), &[3.0, 0.0, 0.0, 6.0], &mut out))?;
//! assert_eq!(out, [2.0, 1.0, 2.0, 4.0]);
//! # Ok::<_, vmarray_kernel::OutOfBounds>(())
//! ```

// Kernels of this crate have the paths that they have in other crates.
extern crate self as vmarray_kernel;

mod bounds_report;
#[cfg(feature = "num-complex")]
#[allow(missing_docs, reason = "they are the operators and methods of `num-complex`")]
mod complex;
#[doc(hidden)]
#[allow(missing_docs, reason = "they are Rust's functions of these names")]
pub mod derived_math;
mod error;
#[cfg(feature = "half")]
mod f16;
mod function;
#[allow(missing_docs, reason = "the attribute says what they are")]
mod group_ops;
mod host;
mod inferred_types;
mod interpret;
mod layout;
mod lower;
#[allow(missing_docs, reason = "they are Rust's functions of these names")]
mod math;
mod number;
mod place;
pub mod random;
mod returned;
mod rows;
#[allow(missing_docs, reason = "the rule table says what they are")]
mod rules;
mod shared;
mod source;
mod stencil;
#[doc(hidden)]
pub mod tree;
mod turns;
mod views;

/// The crate whose 16-bit floats kernels accept.
#[cfg(feature = "half")]
pub use ::half;
pub use bounds_report::OutOfBounds;
pub use error::{Error, ErrorKind};
pub use function::{ScalarArguments, function};
pub use host::{Kernel, PRIVATE_HEAP_BYTES, host_form, host_form_returning, run_on_host};
pub use inferred_types::{Define, Definition, Function};
pub use interpret::interpret;
pub use layout::{KernelType, Layout, LayoutField};
pub use lower::{
    AxisPart, GroupPart, Lowered, ScalarSource, SourcePlace, StencilPart, TableSource, lower, lower_returning,
};
/// The crate whose complex numbers kernels accept.
#[cfg(feature = "num-complex")]
pub use num_complex;
pub use number::{Bits, Float, Half, Integer, Number, Scalar, Signed};
pub use place::At;
pub use returned::Returned;
pub use rows::Rows;
pub use shared::{Append, Atomic, Group, GroupIndex, PrivateSlice, Shared};
pub use stencil::{Anywhere, Window};
pub use views::{Memory, Own, Parameter, ParameterInfo, ParameterKind, kind};
pub use vmarray_macros::{KernelType, kernel};

/// Items for crates that launch kernels, such as `vmarray`.
#[doc(hidden)]
pub mod launch {
    pub use crate::host::host_form_of;
    pub use crate::lower::{LaunchVariant, SHORT_MAX, VALUES_MAX, lower_for, lower_placing, numbered};
    pub use crate::place::{Divisor, DomainAxis};
    pub use crate::stencil::Mode;
}

/// Items for generated code only.
#[doc(hidden)]
pub mod k {
    pub use crate::derived_math;
    pub use crate::group_ops::{barrier, check_group, check_lanes, group_extent, lanes};
    pub use crate::host::Kernel;
    pub use crate::inferred_types::{
        Call, CalledByKernels, Constant, Define, Definition, Function, FunctionOfValues, LaunchedForItems,
        Lit, Of, PlainFunction, call, constant, never, slots, typed_call,
    };
    pub use crate::interpret::Argument;
    pub use crate::layout::{KernelType, Layout, field, layout};
    pub use crate::returned::{Returned, Returning};
    pub use crate::rules::*;
    pub use crate::shared::alloc;
    pub use crate::source::Given;
    pub use crate::tree::{Arm, Expr, NO_LABEL, Operator, Pattern, Range, Stmt, Tree};
    pub use crate::turns::Turns;
    pub use crate::views::{Item, Parameter, ParameterInfo};
    pub use backend_api::expr::Type;
}
