//! Expressions over the fields of elements, and what a device can be asked to do with them.
//!
//! A [`Program`] is a list of [`Instruction`]s, each of which gives one value of one [`Type`] and refers to
//! values before it. It is evaluated once for each element of one or several [sources](crate::Elements) of
//! the same length; a [`Compute`] request says what becomes of the values: indices of matches, sums,
//! extremes, a histogram, or fields written back.
//!
//! # Arithmetic
//!
//! All backends give the same results, bit by bit, except for the bits of a NaN:
//!
//! | operation | integers | floating point |
//! |---|---|---|
//! | `Add`, `Sub`, `Mul`, `Neg` | wrap | rounded to nearest even; never fused |
//! | `Abs` | wraps: the least number stays | clears the sign |
//! | `Div` | towards zero; `a / 0` is 0; the least number divided by -1 is itself | IEEE 754, rounded to nearest even |
//! | `Rem` | sign of the dividend; `a % 0` is `a`; the least number modulo -1 is 0 | refused |
//! | `Min`, `Max` | as expected | of a NaN and a number the number; of zeros the second |
//! | `And`, `Or`, `Xor`, `Not` | bit by bit; of bools, logical | refused |
//! | `Shl`, `Shr` | by the second operand modulo the width; `Shr` keeps the sign of signed numbers | refused |
//! | comparisons | as expected | IEEE 754: with a NaN only `Ne` holds |
//! | casts | as Rust's `as`: integers wrap, floats saturate to integers and NaN becomes 0 | rounded to nearest even |
//! | `Sqrt`, `Fma` | refused | IEEE 754, rounded once to nearest even |
//! | `Floor`, `Ceil`, `Trunc`, `RoundEven` | refused | exact |
//! | `FromF16`, `FromBf16` | of the bits, `U16`: exact | refused |
//! | `ToF16`, `ToBf16` | refused | of `F32`: the bits, rounded to nearest even, to infinity if too large |
//! | `CountOnes`, `LeadingZeros`, `TrailingZeros`, `ReverseBits` | of 0, the middle two give the width | refused |
//!
//! [Functions](crate::kernel::Function) are [called](Instruction::Call), and follow the table of
//! [kernels](crate::kernel#arithmetic). What they access outside of their arrays and tables reads 0 and
//! writes nothing; nobody is told.
//!
//! The operations in [`Unary::APPROXIMATE`] are what a device has at hand: they are as close as is said
//! there, and no two devices need to give the same bits.
//!
//! Subnormal numbers are kept. The one exception are OpenCL devices whose driver says that it takes subnormal
//! `f32` for zeroes, or always rounds towards zero; see `vmarray-backend-opencl`.
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
mod naive;
mod number;
mod owned;
mod program;
mod specialization;
mod types;

pub(crate) use check::check;
pub use compute::{Action, Compute, Geometry, Partial, Store};
pub use naive::evaluate_all;
pub(crate) use naive::{binary, cast, to_bits};
pub use number::{Integer, Number};
pub use owned::OwnedCompute;
pub use program::{Binary, Instruction, Program, Unary, Value};
pub use specialization::{ProgramCache, Specialization, Task};
pub use types::Type;
