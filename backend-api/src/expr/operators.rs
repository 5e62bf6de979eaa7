//! The unary and binary operations of expressions and kernels.

use super::Type;

/// An operation on one value. The result has the operand's type, except for
/// [conversions](Unary::CONVERSIONS).
///
/// ```
/// use backend_api::expr::{Instruction, Program, Type, Unary, Value, evaluate_all};
/// let byte = Instruction::Field { source: 0, offset: 0, of: Type::I8 };
/// let result = |op| {
///     let program = Program::new(vec![byte.clone(), Instruction::Unary { op, of: Value(0) }])?;
///     Ok::<_, backend_api::Error>(evaluate_all(&program, 0, &[&[0xFE]])[1])
/// };
/// // The results for the operand -2 are 2, 2, 1 and 7.
/// let all = [Unary::Neg, Unary::Abs, Unary::Not, Unary::CountOnes];
/// assert_eq!(all.map(|op| result(op).unwrap()), [2, 2, 1, 7]);
/// assert!(Unary::Sqrt.takes(Type::F32) && !Unary::Sqrt.takes(Type::U8));
/// assert!(Unary::Not.takes(Type::Bool) && !Unary::CountOnes.takes(Type::Bool));
/// assert_eq!((Unary::FromF16.gives(Type::U16), Unary::Neg.gives(Type::I8)), (Type::F32, Type::I8));
/// assert!(Unary::CONVERSIONS.iter().all(|op| op.takes(Type::F32) != op.takes(Type::U16)));
/// assert!(Unary::APPROXIMATE.iter().all(|op| op.takes(Type::F32) && !op.takes(Type::F64)));
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unary {
    /// The negative of a signed integer or a float.
    Neg,
    /// The absolute value of a number.
    Abs,
    /// The complement of an integer's bits; the opposite of a bool.
    Not,
    /// The square root of a float.
    Sqrt,
    /// The largest whole number that is not larger than a float.
    Floor,
    /// The smallest whole number that is not smaller than a float.
    Ceil,
    /// A float without its fraction.
    Trunc,
    /// The nearest whole number; in a tie, the even one.
    RoundEven,
    /// The number of set bits of an integer.
    CountOnes,
    /// The number of zero bits of an integer above its highest set bit.
    LeadingZeros,
    /// The number of zero bits of an integer below its lowest set bit.
    TrailingZeros,
    /// The bits of an integer in the opposite order.
    ReverseBits,
    /// 2 to the power of an `F32`, approximated within 3 units in the last place.
    ApproxExp2,
    /// The logarithm to base 2 of an `F32`, approximated within 3 units in the last place; between 0.5 and 2,
    /// within 2^-21.
    ApproxLog2,
    /// The sine of an `F32`, approximated within 2^-20 from -π to π, and less accurately outside.
    ApproxSin,
    /// The cosine of an `F32`, approximated as accurately as the sine.
    ApproxCos,
    /// One divided by the square root of an `F32`, approximated within 2 units in the last place.
    ApproxRsqrt,
    /// The conversion to `F32` from a float of 16 bits (IEEE 754 binary16), whose bits a `U16` holds.
    FromF16,
    /// The bits, a `U16`, of the binary16 that is nearest to an `F32`; in a tie, the even one.
    ToF16,
    /// The conversion to `F32` from a bfloat16, whose bits a `U16` holds.
    FromBf16,
    /// The bits, a `U16`, of the bfloat16 that is nearest to an `F32`; in a tie, the even one.
    ToBf16,
}

impl Unary {
    /// The operations whose results can differ in some bits between devices.
    pub const APPROXIMATE: [Self; 5] =
        [Self::ApproxExp2, Self::ApproxLog2, Self::ApproxSin, Self::ApproxCos, Self::ApproxRsqrt];

    /// The conversions between `F32` and 16-bit floats. A program represents a 16-bit float by its bits, a
    /// `U16`.
    pub const CONVERSIONS: [Self; 4] = [Self::FromF16, Self::ToF16, Self::FromBf16, Self::ToBf16];

    /// All operations except the approximate ones and the conversions. Their results have the same bits on
    /// all devices, and the operand's type.
    pub const ALL: [Self; 12] = {
        use Unary::{Abs, Ceil, CountOnes, Floor, LeadingZeros, Neg, Not, ReverseBits, RoundEven, Sqrt};
        use Unary::{TrailingZeros, Trunc};
        [
            Neg,
            Abs,
            Not,
            Sqrt,
            Floor,
            Ceil,
            Trunc,
            RoundEven,
            CountOnes,
            LeadingZeros,
            TrailingZeros,
            ReverseBits,
        ]
    };

    /// Returns true if the operation exists for values of this type.
    #[must_use]
    pub const fn takes(self, of: Type) -> bool {
        match self {
            Self::Neg => of.is_signed() || of.is_float(),
            Self::Abs => !matches!(of, Type::Bool),
            Self::Not => !of.is_float(),
            Self::Sqrt | Self::Floor | Self::Ceil | Self::Trunc | Self::RoundEven => of.is_float(),
            Self::CountOnes | Self::LeadingZeros | Self::TrailingZeros | Self::ReverseBits => of.is_integer(),
            Self::ApproxExp2 | Self::ApproxLog2 | Self::ApproxSin | Self::ApproxCos | Self::ApproxRsqrt => {
                matches!(of, Type::F32)
            }
            Self::FromF16 | Self::FromBf16 => matches!(of, Type::U16),
            Self::ToF16 | Self::ToBf16 => matches!(of, Type::F32),
        }
    }

    /// Returns the type of the result for an operand of this type.
    #[must_use]
    pub const fn gives(self, of: Type) -> Type {
        match self {
            Self::FromF16 | Self::FromBf16 => Type::F32,
            Self::ToF16 | Self::ToBf16 => Type::U16,
            _ => of,
        }
    }
}

/// An operation on two values of one type.
///
/// ```
/// use backend_api::expr::{Binary, Instruction, Program, Type, Value, evaluate_all};
/// let literal = |bits| Instruction::Literal { of: Type::U8, bits };
/// let result = |op| {
///     let last = Instruction::Binary { op, left: Value(0), right: Value(1) };
///     Program::new(vec![literal(200), literal(100), last]).map(|program| evaluate_all(&program, 0, &[])[2])
/// };
/// assert_eq!((result(Binary::Add)?, result(Binary::Max)?, result(Binary::Lt)?), (44, 200, 0), "sums wrap");
/// assert!(Binary::Lt.is_comparison() && !Binary::Min.is_comparison());
/// assert!(Binary::Rem.takes(Type::I8) && !Binary::Rem.takes(Type::F32));
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Binary {
    /// The sum of numbers.
    Add,
    /// The difference of numbers.
    Sub,
    /// The product of numbers.
    Mul,
    /// The quotient of numbers.
    Div,
    /// The remainder of integers.
    Rem,
    /// The smaller number.
    Min,
    /// The larger number.
    Max,
    /// The bitwise and of integers or bools.
    And,
    /// The bitwise or of integers or bools.
    Or,
    /// The bitwise exclusive or of integers or bools.
    Xor,
    /// An integer shifted left.
    Shl,
    /// An integer shifted right.
    Shr,
    /// True if numbers or bools are equal.
    Eq,
    /// True if numbers or bools differ.
    Ne,
    /// True if the first number is less.
    Lt,
    /// True if the first number is less or equal.
    Le,
}

impl Binary {
    /// All operations.
    pub const ALL: [Self; 16] = {
        use Binary::{Add, And, Div, Eq, Le, Lt, Max, Min, Mul, Ne, Or, Rem, Shl, Shr, Sub, Xor};
        [Add, Sub, Mul, Div, Rem, Min, Max, And, Or, Xor, Shl, Shr, Eq, Ne, Lt, Le]
    };

    /// Returns true if the result is a bool for operands of any type.
    #[must_use]
    pub const fn is_comparison(self) -> bool {
        matches!(self, Self::Eq | Self::Ne | Self::Lt | Self::Le)
    }

    /// Returns true if the operation exists for two values of this type.
    #[must_use]
    pub const fn takes(self, of: Type) -> bool {
        match self {
            Self::Add | Self::Sub | Self::Mul | Self::Div | Self::Min | Self::Max | Self::Lt | Self::Le => {
                !matches!(of, Type::Bool)
            }
            Self::Rem | Self::Shl | Self::Shr => of.is_integer(),
            Self::And | Self::Or | Self::Xor => !of.is_float(),
            Self::Eq | Self::Ne => true,
        }
    }
}
