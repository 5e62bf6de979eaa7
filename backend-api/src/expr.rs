//! Expressions over the fields of elements, and the requests that evaluate them on a device.
//!
//! A [`Program`] is a list of [`Instruction`]s. Each instruction computes one value of one [`Type`] from
//! earlier values. The list is lowered to the [body](Program::body) of a kernel without control flow, so that
//! expressions and kernels have one representation, one verifier and one interpreter. A device evaluates the
//! program once for each element of the [sources](crate::Elements): one or several arrays of the same length.
//! A [`Compute`] request selects the result: indices of matches, a sum, extremes, a histogram, or values to
//! write to fields.
//!
//! # Arithmetic
//!
//! All backends give the same results, bit by bit, except for the bits of a NaN:
//!
//! | operation | integers | floating point |
//! |---|---|---|
//! | `Add`, `Sub`, `Mul`, `Neg` | wrap | rounded to nearest even; never fused |
//! | `Abs` | wraps: of the least number the result is the number itself | clears the sign |
//! | `Div` | towards zero; `a / 0` is 0; the least number divided by -1 is itself | IEEE 754, rounded to nearest even |
//! | `Rem` | sign of the dividend; `a % 0` is `a`; the least number modulo -1 is 0 | invalid |
//! | `Min`, `Max` | as expected | the number if the other is a NaN; of two zeros the second |
//! | `And`, `Or`, `Xor`, `Not` | bit by bit; of bools, logical | invalid |
//! | `Shl`, `Shr` | by the second operand modulo the width; `Shr` keeps the sign of signed numbers | invalid |
//! | comparisons | as expected | IEEE 754: with a NaN only `Ne` holds |
//! | casts | as Rust's `as`: integers wrap, floats saturate to integers and NaN becomes 0 | rounded to nearest even |
//! | `Sqrt`, `Fma` | invalid | IEEE 754, rounded once to nearest even |
//! | `Floor`, `Ceil`, `Trunc`, `RoundEven` | invalid | exact |
//! | `FromF16`, `FromBf16` | the operand is the bits as `U16`; exact | invalid |
//! | `ToF16`, `ToBf16` | invalid | of `F32`: the bits, rounded to nearest even, to infinity if too large |
//! | `CountOnes`, `LeadingZeros`, `TrailingZeros`, `ReverseBits` | the middle two return the width for 0 | invalid |
//!
//! A program can [call](Instruction::Call) [functions](crate::kernel::ScalarFunction), which follow the table
//! of [kernels](crate::kernel#arithmetic). A function's access outside of its arrays and tables reads 0 or
//! writes nothing, without a report.
//!
//! The operations in [`Unary::APPROXIMATE`] use the device's own instructions. They have the stated accuracy,
//! but their bits can differ between devices.
//!
//! Operations do not flush subnormal numbers to zero. The exception are OpenCL devices whose driver reports
//! that it flushes subnormal `f32` to zero, or that it always rounds towards zero. See
//! `vmarray-backend-opencl`.
//!
//! ```
//! use backend_api::expr::{Instruction, Program, Type, evaluate_all};
//! let program = Program::new(vec![Instruction::Field { source: 0, offset: 1, of: Type::U16 }, Instruction::Index])?;
//! let field = u16::from_ne_bytes([1, 2]).into();
//! assert_eq!(evaluate_all(&program, 77, &[&[9, 1, 2]]), [field, 77]);
//! # Ok::<_, backend_api::Error>(())
//! ```

mod check;
mod compute;
mod dispatch;
mod geometry;
mod number;
mod operators;
mod owned;
mod program;
mod search;
mod specialization;
mod types;

pub(crate) use check::check;
pub use compute::{Action, Compute, FieldStore, Partial};
pub use geometry::Geometry;
pub use number::{Integer, Number};
pub use operators::{Binary, Unary};
pub use owned::OwnedCompute;
pub use program::{Instruction, Program, Value, evaluate_all};
pub use specialization::{ProgramCache, Specialization, Task};
pub use types::Type;
