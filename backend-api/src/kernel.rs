//! Kernels: functions that a device runs once for each item of a launch.
//!
//! A [`Body`] is structured code over typed [registers](Reg), which are variables of the item and may be
//! written any number of times. It reads and writes [views](ViewDecl), rows of elements in device memory;
//! local [arrays](ArrayDecl); [tables](TableDecl) and parameters that come with the launch. A [`Kernel`] is a
//! body that was verified: types fit, nothing is read before it is written, and an item writes to a view at
//! its own place alone, by atomics, or where an atomic gave it a place, so that items of one launch cannot
//! race.
//!
//! # Arithmetic
//!
//! All backends give the same results, bit by bit, except for the bits of a NaN: those of the table of
//! [expressions](crate::expr#arithmetic), and
//!
//! | what | is |
//! |---|---|
//! | an index outside of a view, array, table or arena | reads 0, writes nothing, and is a [failure](#failures) |
//! | `Fma` | rounded once; nothing else is ever fused |
//! | `Sqrt`, `Floor`, `Ceil`, `Trunc`, `RoundEven` | exact, or rounded to nearest even |
//! | `CountOnes`, `LeadingZeros`, `TrailingZeros` | of 0, the latter two give the width |
//! | `MulHigh` | the upper half of the product, signed of signed numbers |
//! | `Cast`, `Bits` | `as` of Rust; the same bits as another type of the same length |
//! | [`Memory::F16`] | loads are exact; stores round to nearest even, to infinity if too large |
//! | arrays | zero when the item starts, or the first item of its group; what is taken of an arena too |
//! | `Shuffle` | the value of the lane of this number modulo 32 |
//! | `Reduce` | for 16, 8, 4, 2, 1 lanes apart: own value and the other's, that of the lower lane first |
//! | `Scan` | inclusive; for 1, 2, 4, 8, 16: the value of the lane so many below, if any, first, then the own |
//! | atomics | relaxed; of floats only `Add`, in an order that is not said |
//! | items past the last in its group | run with `Live` false: load 0, store nothing, never fail, join barriers |
//! | budget | counted at the back edges of loops; one edge too many is a failure and ends the item |
//! | budget where items [meet](Body::meets) | such an edge leaves the loop; [those of all](Body::common_loops) count apart |
//! | registers | zero before they are written, as code behind a loop that a budget ended may see |
//!
//! # Failures
//!
//! An item that fails goes on, but for its budget. What is reported is how many items failed, and of one of
//! them the first failure: its site, a detail and the item. Sites are numbers of operations:
//! [`Body::operations`] visits them in this order.

pub mod arithmetic;
mod body;
mod define;
mod foreign;
mod function;
mod half;
mod hash;
mod host;
mod interpret;
mod launch;
mod report;
mod uniform;
mod verify;

pub use crate::expr::{Binary, Type, Unary};
pub use body::{
    Access, Across, ArrayDecl, Body, Memory, Op, Place, Reg, Rmw, Scope, Space, TableDecl, ViewDecl, Where,
};
pub use define::{Kernel, Needs};
pub use foreign::{Code, NativeLaunch, NativeQueue, NativeView, Submit};
pub use function::{Function, HostFunction};
pub use half::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
pub use host::{HostForm, HostItems, HostView};
pub use interpret::{Interpreter, Slices, Views};
pub use launch::{KernelFacts, Launch, View};
pub(crate) use launch::{check as check_launch, check_shape};
pub use report::Report;
pub use uniform::Common;
