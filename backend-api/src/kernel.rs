//! Kernels: functions that a device runs once for each item of a launch. An *item* is one execution, as a
//! thread in CUDA or a work-item in OpenCL.
//!
//! A [`Body`] is structured code over typed [registers](Reg), which are mutable variables of an item. The
//! code accesses [views](ViewDecl) (arrays of elements in device memory), local [arrays](ArrayDecl), and the
//! launch's [tables](TableDecl) (arrays of constants) and parameters. A [`VerifiedKernel`] is a verified
//! body: its types fit, and every path writes a register before it reads the register. An item can write to a
//! view in three ways only: to its own elements, by atomics, or to an element that an atomic has assigned to
//! it. Items of one launch therefore cannot race.
//!
//! # Arithmetic
//!
//! All backends give the same results, bit by bit, except for the bits of a NaN. The results follow the
//! table of [expressions](crate::expr#arithmetic), and
//!
//! | operation or object | behaviour |
//! |---|---|
//! | an index outside of a view, array, table or heap | reads 0, writes nothing, and is a [failure](#failures) |
//! | `Fma` | rounded once; no other operation is ever fused |
//! | `Sqrt`, `Floor`, `Ceil`, `Trunc`, `RoundEven` | exact, or rounded to nearest even |
//! | `CountOnes`, `LeadingZeros`, `TrailingZeros` | the latter two return the width for 0 |
//! | `MulHigh` | the upper half of the product, signed of signed numbers |
//! | `Cast`, `Bits` | `as` of Rust; the same bits as another type of the same length |
//! | [`Memory::F16`] | loads are exact; stores round to nearest even, to infinity if too large |
//! | arrays | zero when the item (of a group: its first item) starts; so are allocations of a private heap |
//! | `Shuffle` | the value of the lane whose number is the operand modulo 32 |
//! | `Reduce` | for distances 16, 8, 4, 2, 1: combines both lanes' values, the lower lane's first |
//! | `Scan` | inclusive; for distances 1, 2, 4, 8, 16: the lower lane's value first, if it exists, then the own |
//! | atomics | relaxed; of floats only `Add`, in an unspecified order |
//! | items past the last in its group | run with `Live` false: load 0, store nothing, never fail, join barriers |
//! | budget | counted at the back edges of loops; one edge too many is a failure and ends the item |
//! | budget where items [meet](Body::meets) | such an edge leaves the loop; [common loops](Body::common_loops) count apart |
//! | registers | zero before the first write; code after a loop that the budget ended may read this zero |
//!
//! # Failures
//!
//! An item that fails continues, unless it has exhausted its budget (the number of loop iterations that the
//! launch allows an item). A report holds the number of failed items, and the first failure of one of them:
//! the site, a detail and the item. A *site* is the number of the failed operation, in the order of
//! [`Body::operations`].
//!
//! A [time limit](Launch::time_limit) ends a launch on devices that compute with the CPU. They read the clock
//! every 2^16 iterations (back edges) of an item's loops. If an item has run longer than the limit, it ends;
//! all other items end at their next reading of the clock, or do not begin. The report then holds this item,
//! and its site contains the bit [`Report::TIME_OVER`].

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
mod limit;
mod report;
mod uniform;
mod verify;

pub use crate::elements::LaunchView;
pub use crate::expr::{Binary, Type, Unary};
pub use body::{
    Access, ArrayDecl, Body, Builtin, Memory, Op, Place, Reg, Rmw, Scope, Space, SubgroupOp, TableDecl,
    ViewDecl,
};
pub use define::{Needs, VerifiedKernel};
pub use foreign::{Code, InBounds, MatrixProduct, NativeLaunch, NativeQueue, NativeView, Submit};
pub use function::{HostFunction, ScalarFunction};
pub use half::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
pub use host::{HostForm, HostItems, HostView};
pub use interpret::{Interpreter, Slices, Views};
pub use launch::{KernelFacts, Launch};
pub use limit::{LoopClock, Overtime, TimeLimit};
pub use report::Report;
pub use uniform::Common;
