//! Programs: checked lists of instructions, evaluated once for each element.

use super::Type;
use crate::kernel::Function;
use crate::{Error, ErrorKind, Result};

/// The value of an instruction, given by the index of the instruction in the program.
///
/// ```
/// use backend_api::expr::{Instruction, Program, Type, Unary, Value};
/// // The negative of the literal, which is value 0, is value 1.
/// let literal = Instruction::Literal { of: Type::I32, bits: 7 };
/// let program = Program::new(vec![literal.clone(), Instruction::Unary { op: Unary::Neg, of: Value(0) }])?;
/// assert_eq!(program.instructions()[Value(0).at()], literal);
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Value(pub u16);

impl Value {
    /// Returns the index of the instruction.
    #[must_use]
    pub const fn at(self) -> usize {
        self.0 as usize
    }
}

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
/// // Of -2: 2, 2, 1 and 7.
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

    /// All operations except the approximate ones and the conversions. They give the same bits on all
    /// devices, and results of the operand's type.
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

/// One step of a program. Its operands must be values of instructions before it.
///
/// ```
/// use backend_api::expr::{Instruction, Program, Type, Value, evaluate_all};
/// let index_as_byte = Instruction::Cast { of: Value(0), to: Type::U8 };
/// let program = Program::new(vec![Instruction::Index, index_as_byte])?;
/// assert_eq!(evaluate_all(&program, 0x1234, &[]), [0x1234, 0x34]);
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Instruction {
    /// A field of the element, of any type except bool.
    Field {
        /// Index of the source.
        source: u8,
        /// Offset of the field in the element, in bytes.
        offset: u32,
        /// The field's type.
        of: Type,
    },
    /// A constant.
    Literal {
        /// Type of the constant.
        of: Type,
        /// Bits of the constant, in the form of [`Type`].
        bits: u64,
    },
    /// The index of the element, a `U64`; see [`Geometry`](super::Geometry).
    Index,
    /// An operation on one value.
    Unary {
        /// The operation.
        op: Unary,
        /// The operand.
        of: Value,
    },
    /// An operation on two values of the same type.
    Binary {
        /// The operation.
        op: Binary,
        /// The first operand.
        left: Value,
        /// The second operand.
        right: Value,
    },
    /// One of two values of the same type.
    Select {
        /// A bool.
        condition: Value,
        /// The result if the condition is true.
        yes: Value,
        /// The result if the condition is false.
        no: Value,
    },
    /// A value converted to another type of number. Bools become 0 and 1; no value becomes a bool.
    Cast {
        /// The value to convert.
        of: Value,
        /// The type to convert to.
        to: Type,
    },
    /// `a * b + c` of floats of one type, rounded once.
    Fma {
        /// The first factor.
        a: Value,
        /// The second factor.
        b: Value,
        /// The summand.
        c: Value,
    },
    /// The result of a function. The device calls it for all elements, including elements that a filter
    /// excludes.
    Call {
        /// The function.
        function: Function,
        /// Arguments, with the types of the function's parameters.
        arguments: Vec<Value>,
    },
}

/// A program: a list of instructions to evaluate for each element. It is checked: types fit, and instructions
/// refer only to earlier values.
///
/// ```
/// use backend_api::{ErrorKind, expr::{Binary, Instruction, Program, Type, Unary, Value}};
/// let instructions = vec![
///     Instruction::Field { source: 0, offset: 4, of: Type::F32 },
///     Instruction::Literal { of: Type::F32, bits: 0 },
///     Instruction::Binary { op: Binary::Lt, left: Value(0), right: Value(1) },
/// ];
/// let program = Program::new(instructions.clone())?;
/// assert_eq!(program.instructions(), instructions);
/// assert_eq!((program.types(), program.type_of(Value(3))), (&[Type::F32, Type::F32, Type::Bool][..], None));
/// assert_eq!(program.needed(&[Value(1)]), [false, true, false]);
/// let not = Instruction::Unary { op: Unary::Not, of: Value(0) };
/// assert_eq!(Program::new(vec![instructions[0].clone(), not]).unwrap_err().kind(), ErrorKind::InvalidArgument);
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Program {
    instructions: Box<[Instruction]>,
    types: Box<[Type]>,
}

impl Program {
    /// Maximum number of instructions of a program.
    pub const INSTRUCTIONS_MAX: usize = 256;

    /// Checks instructions, and creates a program from them.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) if the list is too long, if a type does not fit, or
    /// if an instruction refers to a later value.
    pub fn new(instructions: Vec<Instruction>) -> Result<Self> {
        if instructions.len() > Self::INSTRUCTIONS_MAX {
            let (number, most) = (instructions.len(), Self::INSTRUCTIONS_MAX);
            return Err(invalid(format!("{number} instructions exceed the limit of {most}")));
        }
        let mut types: Vec<Type> = Vec::with_capacity(instructions.len());
        for (at, instruction) in instructions.iter().enumerate() {
            let found = type_of(&types, instruction).ok_or_else(|| {
                invalid(format!("instruction {at} has operands of a wrong type: {instruction:?}"))
            })?;
            types.push(found);
        }
        Ok(Self { instructions: instructions.into(), types: types.into() })
    }

    /// The instructions of the program.
    #[must_use]
    pub fn instructions(&self) -> &[Instruction] {
        &self.instructions
    }

    /// The types of all values.
    #[must_use]
    pub fn types(&self) -> &[Type] {
        &self.types
    }

    /// Returns the type of a value; `None` if the program does not have the value.
    #[must_use]
    pub fn type_of(&self, value: Value) -> Option<Type> {
        self.types.get(value.at()).copied()
    }

    /// Returns, for each instruction, true if one of `values` is its result or is computed from its result.
    #[must_use]
    pub fn needed(&self, values: &[Value]) -> Vec<bool> {
        let mut needed = vec![false; self.instructions.len()];
        for value in values {
            if let Some(place) = needed.get_mut(value.at()) {
                *place = true;
            }
        }
        for at in (0..needed.len()).rev() {
            if needed[at] {
                self.instructions[at].each_operand(|value| needed[value.at()] = true);
            }
        }
        needed
    }
}

impl Instruction {
    /// Calls `visit` for each operand.
    fn each_operand(&self, mut visit: impl FnMut(Value)) {
        match *self {
            Self::Field { .. } | Self::Literal { .. } | Self::Index => {}
            Self::Unary { of, .. } | Self::Cast { of, .. } => visit(of),
            Self::Binary { left, right, .. } => [left, right].into_iter().for_each(visit),
            Self::Select { condition, yes, no } => [condition, yes, no].into_iter().for_each(visit),
            Self::Fma { a, b, c } => [a, b, c].into_iter().for_each(visit),
            Self::Call { ref arguments, .. } => arguments.iter().copied().for_each(visit),
        }
    }
}

fn type_of(types: &[Type], instruction: &Instruction) -> Option<Type> {
    let known = |value: Value| types.get(value.at()).copied();
    match *instruction {
        Instruction::Field { of, .. } => (of != Type::Bool).then_some(of),
        Instruction::Literal { of, bits } => (bits & !of.mask() == 0).then_some(of),
        Instruction::Index => Some(Type::U64),
        Instruction::Unary { op, of } => known(of).filter(|of| op.takes(*of)).map(|of| op.gives(of)),
        Instruction::Binary { op, left, right } => {
            let of = known(left)?;
            let fits = known(right)? == of && op.takes(of);
            fits.then_some(if op.is_comparison() { Type::Bool } else { of })
        }
        Instruction::Select { condition, yes, no } => {
            let of = known(yes)?;
            (known(condition)? == Type::Bool && known(no)? == of).then_some(of)
        }
        Instruction::Cast { of, to } => known(of).filter(|_| to != Type::Bool).map(|_| to),
        Instruction::Fma { a, b, c } => {
            let of = known(a)?;
            (of.is_float() && known(b)? == of && known(c)? == of).then_some(of)
        }
        Instruction::Call { ref function, ref arguments } => {
            let given = arguments.iter().map(|argument| known(*argument));
            given.eq(function.params().iter().map(|of| Some(*of))).then(|| function.gives())
        }
    }
}

fn invalid(detail: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, "program").with_detail(detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistyped_instructions_are_refused() {
        let literal = |of| Instruction::Literal { of, bits: 1 };
        let pair = |a, b, op| {
            let last = Instruction::Binary { op, left: Value(0), right: Value(1) };
            Program::new(vec![literal(a), literal(b), last])
        };
        assert!(pair(Type::U8, Type::U8, Binary::Add).is_ok());
        assert!(pair(Type::U8, Type::I8, Binary::Add).is_err());
        assert!(pair(Type::Bool, Type::Bool, Binary::Add).is_err());
        assert!(pair(Type::Bool, Type::Bool, Binary::And).is_ok());
        assert!(pair(Type::F32, Type::F32, Binary::Rem).is_err());
        assert!(pair(Type::F64, Type::F64, Binary::Xor).is_err());
        assert!(Program::new(vec![Instruction::Unary { op: Unary::Not, of: Value(0) }]).is_err());
        assert!(Program::new(vec![Instruction::Field { source: 0, offset: 0, of: Type::Bool }]).is_err());
        assert!(Program::new(vec![Instruction::Literal { of: Type::U8, bits: 256 }]).is_err());
        assert!(Program::new(vec![Instruction::Index; 257]).is_err());
    }
}
