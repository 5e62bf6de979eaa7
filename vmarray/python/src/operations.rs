//! Translates NumPy's operations that devices support to instructions of the library.

use vmarray::device::expr::{Binary, Instruction, Program, Type, Unary, Value};
use vmarray::expr::{Expr, Number, Scalar};
use vmarray::kernel::Float;

use crate::element::Kind;
use crate::fault::Result;

macro_rules! operations {
    ($($Name:ident $name:literal)*) => {
        /// Element-wise operation, with the name of its NumPy function.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Operation {
            $($Name,)*
        }

        impl Operation {
            /// Returns the operation with this name in NumPy; `None` if devices do not support it.
            pub fn named(name: &str) -> Option<Self> {
                match name {
                    $($name => Some(Self::$Name),)*
                    _ => None,
                }
            }

            fn name(self) -> &'static str {
                match self {
                    $(Self::$Name => $name,)*
                }
            }
        }
    };
}
operations! {
    Add "add" Subtract "subtract" Multiply "multiply" Divide "divide" FloorDivide "floor_divide"
    Remainder "remainder" Negative "negative" Positive "positive" Absolute "absolute" Fabs "fabs"
    Invert "invert" BitwiseAnd "bitwise_and" BitwiseOr "bitwise_or" BitwiseXor "bitwise_xor"
    LogicalAnd "logical_and" LogicalOr "logical_or" LogicalXor "logical_xor" LogicalNot "logical_not"
    LeftShift "left_shift" RightShift "right_shift" Equal "equal" NotEqual "not_equal" Less "less"
    LessEqual "less_equal" Greater "greater" GreaterEqual "greater_equal" Maximum "maximum" Minimum "minimum"
    Fmax "fmax" Fmin "fmin" Sqrt "sqrt" Floor "floor" Ceil "ceil" Trunc "trunc" Rint "rint" Square "square"
    Reciprocal "reciprocal" Sign "sign" Isnan "isnan" Isinf "isinf" Isfinite "isfinite" Where "where"
    BitwiseCount "bitwise_count"
    Exp "exp" Exp2 "exp2" Expm1 "expm1" Log "log" Log1p "log1p" Log2 "log2" Log10 "log10" Sin "sin" Cos "cos"
    Tan "tan" Arcsin "arcsin" Arccos "arccos" Arctan "arctan" Sinh "sinh" Cosh "cosh" Tanh "tanh"
    Arcsinh "arcsinh" Arccosh "arccosh" Arctanh "arctanh" Cbrt "cbrt" Hypot "hypot" Arctan2 "arctan2"
    Power "power"
}

impl Operation {
    /// Returns true if devices support the operation for operands of this kind.
    pub fn takes(self, of: Kind) -> bool {
        use Operation as O;
        let is_bool = of == Kind::Bool;
        let is_float = matches!(of, Kind::Half | Kind::Number(Type::F32 | Type::F64));
        let is_int = matches!(of, Kind::Number(_)) && !is_float;
        match self {
            _ if of == Kind::Bytes => false,
            O::Add
            | O::Multiply
            | O::Positive
            | O::Absolute
            | O::Equal
            | O::NotEqual
            | O::Less
            | O::LessEqual => true,
            O::Greater | O::GreaterEqual | O::Maximum | O::Minimum | O::Fmax | O::Fmin | O::Where => true,
            O::LogicalAnd | O::LogicalOr | O::LogicalXor | O::LogicalNot => is_bool,
            O::Invert | O::BitwiseAnd | O::BitwiseOr | O::BitwiseXor => is_bool || is_int,
            O::Subtract | O::Negative | O::Square | O::Sign => is_int || is_float,
            O::FloorDivide | O::Remainder | O::LeftShift | O::RightShift | O::BitwiseCount => is_int,
            O::Floor | O::Ceil | O::Trunc | O::Isnan | O::Isinf | O::Isfinite => true,
            _ => is_float,
        }
    }
}

impl Operation {
    /// Returns about the maximum number of instructions for operands of `kind`, with their conversion.
    pub fn instructions(self, kind: Kind) -> usize {
        use Operation as O;
        match self {
            O::Add
            | O::Subtract
            | O::Multiply
            | O::Divide
            | O::Negative
            | O::Positive
            | O::Absolute
            | O::BitwiseAnd
            | O::BitwiseOr
            | O::BitwiseXor
            | O::LogicalAnd
            | O::LogicalOr
            | O::LogicalXor
            | O::LogicalNot
            | O::Equal
            | O::NotEqual
            | O::Less
            | O::LessEqual
            | O::Greater
            | O::GreaterEqual
            | O::Square
            | O::Sqrt
            | O::Where => {
                if kind == Kind::Half {
                    9
                } else {
                    5
                }
            }
            _ => 18,
        }
    }
}

/// Increment of SplitMix64's state for each number (Steele, Lea and Flood, 2014).
const SPLIT_MIX_STEP: u64 = 0x9e37_79b9_7f4a_7c15;
/// Steps of SplitMix64's mixing function: the shift of each, and the factor after it.
const SPLIT_MIX: [(u64, u64); 3] = [(30, 0xbf58_476d_1ce4_e5b9), (27, 0x94d0_49bb_1331_11eb), (31, 1)];

/// Builder of a device program: a list of distinct instructions.
#[derive(Default)]
pub struct Code {
    instructions: Vec<Instruction>,
}

impl Code {
    pub fn push(&mut self, instruction: Instruction) -> Value {
        let list = &mut self.instructions;
        let at = list.iter().position(|known| *known == instruction).unwrap_or_else(|| {
            list.push(instruction);
            list.len() - 1
        });
        Value(at as u16)
    }

    /// Returns the program of these instructions.
    ///
    /// # Errors
    /// If there are too many instructions.
    pub fn program(&self) -> Result<Program> {
        Ok(Program::new(self.instructions.clone())?)
    }

    fn unary(&mut self, op: Unary, of: Value) -> Value {
        self.push(Instruction::Unary { op, of })
    }

    pub fn binary(&mut self, op: Binary, left: Value, right: Value) -> Value {
        self.push(Instruction::Binary { op, left, right })
    }

    pub fn select(&mut self, condition: Value, yes: Value, no: Value) -> Value {
        self.push(Instruction::Select { condition, yes, no })
    }

    pub fn literal(&mut self, of: Type, bits: u64) -> Value {
        self.push(Instruction::Literal { of, bits })
    }

    /// Adds a small constant integer of a type.
    fn number(&mut self, of: Type, value: i8) -> Value {
        let bits = match of {
            Type::F32 => f32::from(value).to_bits().into(),
            Type::F64 => f64::from(value).to_bits(),
            _ => i64::from(value) as u64 & of.mask(),
        };
        self.literal(of, bits)
    }

    pub fn cast_type(&mut self, of: Value, from: Type, to: Type) -> Value {
        if from == to { of } else { self.push(Instruction::Cast { of, to }) }
    }

    /// Adds the rounding of a value to a 16-bit float.
    fn half(&mut self, of: Value) -> Value {
        let bits = self.unary(Unary::ToF16, of);
        self.unary(Unary::FromF16, bits)
    }

    /// Adds the load of an item of `kind`, at the byte `offset` in an element of the input number `source`.
    pub fn loaded(&mut self, source: u8, offset: u32, kind: Kind) -> Value {
        let of = match kind {
            Kind::Bool | Kind::Bytes => Type::U8,
            Kind::Half => Type::U16,
            Kind::Number(of) => of,
        };
        let field = self.push(Instruction::Field { source, offset, of });
        match kind {
            Kind::Bool => {
                let zero = self.literal(Type::U8, 0);
                self.binary(Binary::Ne, field, zero)
            }
            Kind::Half => self.unary(Unary::FromF16, field),
            _ => field,
        }
    }

    /// Adds the conversion of a value to the representation in which items of this kind are stored.
    pub fn stored(&mut self, of: Value, kind: Kind) -> Value {
        match kind {
            Kind::Bool => self.push(Instruction::Cast { of, to: Type::U8 }),
            Kind::Half => self.unary(Unary::ToF16, of),
            _ => of,
        }
    }

    /// Converts a value from one kind to another, as NumPy's `astype` does.
    pub fn cast(&mut self, of: Value, from: Kind, to: Kind) -> Value {
        let (Some(own), Some(wanted)) = (from.value_type(), to.value_type()) else { return of };
        match (from, to) {
            _ if from == to => of,
            (_, Kind::Bool) => {
                let zero = self.number(own, 0);
                self.binary(Binary::Ne, of, zero)
            }
            (_, Kind::Half) => {
                let single = self.cast_type(of, own, Type::F32);
                self.half(single)
            }
            _ => self.cast_type(of, own, wanted),
        }
    }

    /// Adds 64 random bits for each element, computed from its index: the sequence of SplitMix64 whose
    /// initial state is `start`.
    pub fn random(&mut self, start: u64) -> Value {
        let (index, step) = (self.push(Instruction::Index), self.literal(Type::U64, SPLIT_MIX_STEP));
        let (steps, start) = (self.binary(Binary::Mul, index, step), self.literal(Type::U64, start));
        let mut bits = self.binary(Binary::Add, steps, start);
        for (places, factor) in SPLIT_MIX {
            let places = self.literal(Type::U64, places);
            let high = self.binary(Binary::Shr, bits, places);
            bits = self.binary(Binary::Xor, bits, high);
            if factor != 1 {
                let factor = self.literal(Type::U64, factor);
                bits = self.binary(Binary::Mul, bits, factor);
            }
        }
        bits
    }

    /// Adds a test whether a value is NaN; the test is false for integers.
    pub fn is_nan(&mut self, of: Value) -> Value {
        self.binary(Binary::Ne, of, of)
    }

    fn not(&mut self, of: Value) -> Value {
        self.unary(Unary::Not, of)
    }

    /// Adds an operation on values of one kind, and returns its result.
    pub fn operation(&mut self, operation: Operation, kind: Kind, operands: &[Value]) -> Result<Value> {
        let Some(of) = kind.value_type() else { unreachable!("operations are defined for numbers only") };
        if operation == Operation::Where {
            return Ok(self.select(operands[0], operands[1], operands[2]));
        }
        let (a, b) = (operands[0], operands.get(1).copied().unwrap_or(operands[0]));
        let is_exact = {
            use Operation as O;
            matches!(
                operation,
                O::Positive
                    | O::Absolute
                    | O::Fabs
                    | O::Negative
                    | O::Maximum
                    | O::Minimum
                    | O::Fmax
                    | O::Fmin
                    | O::Sign
                    | O::Floor
                    | O::Ceil
                    | O::Trunc
                    | O::Rint
            )
        };
        let value = match of {
            Type::Bool => self.of_bools(operation, a, b),
            Type::F32 | Type::F64 => self.of_floats(operation, of, a, b)?,
            _ => self.of_integers(operation, of, a, b),
        };
        Ok(if kind == Kind::Half && !is_exact && !is_truth(operation) { self.half(value) } else { value })
    }

    fn of_bools(&mut self, operation: Operation, a: Value, b: Value) -> Value {
        use Operation as O;
        match operation {
            O::Add | O::BitwiseOr | O::LogicalOr | O::Maximum | O::Fmax => self.binary(Binary::Or, a, b),
            O::Multiply | O::BitwiseAnd | O::LogicalAnd | O::Minimum | O::Fmin => {
                self.binary(Binary::And, a, b)
            }
            O::BitwiseXor | O::LogicalXor | O::NotEqual => self.binary(Binary::Xor, a, b),
            O::Equal => self.binary(Binary::Eq, a, b),
            O::Invert | O::LogicalNot => self.not(a),
            O::Less => {
                let not = self.not(a);
                self.binary(Binary::And, not, b)
            }
            O::Greater => self.of_bools(O::Less, b, a),
            O::LessEqual => {
                let not = self.not(a);
                self.binary(Binary::Or, not, b)
            }
            O::GreaterEqual => self.of_bools(O::LessEqual, b, a),
            O::Isnan | O::Isinf => self.literal(Type::Bool, 0),
            O::Isfinite => self.literal(Type::Bool, 1),
            _ => a,
        }
    }

    fn compared(&mut self, operation: Operation, a: Value, b: Value) -> Option<Value> {
        use Operation as O;
        Some(match operation {
            O::Equal => self.binary(Binary::Eq, a, b),
            O::NotEqual => self.binary(Binary::Ne, a, b),
            O::Less => self.binary(Binary::Lt, a, b),
            O::LessEqual => self.binary(Binary::Le, a, b),
            O::Greater => self.binary(Binary::Lt, b, a),
            O::GreaterEqual => self.binary(Binary::Le, b, a),
            _ => return None,
        })
    }

    fn of_integers(&mut self, operation: Operation, of: Type, a: Value, b: Value) -> Value {
        use Operation as O;
        if let Some(truth) = self.compared(operation, a, b) {
            return truth;
        }
        let zero = self.number(of, 0);
        match operation {
            O::Add => self.binary(Binary::Add, a, b),
            O::Subtract => self.binary(Binary::Sub, a, b),
            O::Multiply => self.binary(Binary::Mul, a, b),
            O::Square => self.binary(Binary::Mul, a, a),
            O::Negative => self.binary(Binary::Sub, zero, a),
            O::Absolute => self.unary(Unary::Abs, a),
            O::Invert => self.not(a),
            O::BitwiseAnd => self.binary(Binary::And, a, b),
            O::BitwiseOr => self.binary(Binary::Or, a, b),
            O::BitwiseXor => self.binary(Binary::Xor, a, b),
            O::Maximum | O::Fmax => self.binary(Binary::Max, a, b),
            O::Minimum | O::Fmin => self.binary(Binary::Min, a, b),
            O::BitwiseCount => {
                let size = if of.is_signed() { self.unary(Unary::Abs, a) } else { a };
                let ones = self.unary(Unary::CountOnes, size);
                self.cast_type(ones, of, Type::U8)
            }
            O::Sign => {
                let (one, minus) = (self.number(of, 1), self.number(of, -1));
                let is_positive = self.binary(Binary::Lt, zero, a);
                let is_negative = self.binary(Binary::Lt, a, zero);
                let rest = self.select(is_negative, minus, zero);
                self.select(is_positive, one, rest)
            }
            O::FloorDivide => {
                let (quotient, is_below) = (self.binary(Binary::Div, a, b), self.is_below(of, a, b));
                let one = self.number(of, 1);
                let less = self.binary(Binary::Sub, quotient, one);
                self.select(is_below, less, quotient)
            }
            O::Remainder => {
                let (rest, is_below) = (self.binary(Binary::Rem, a, b), self.is_below(of, a, b));
                let more = self.binary(Binary::Add, rest, b);
                let value = self.select(is_below, more, rest);
                let is_zero = self.binary(Binary::Eq, b, zero);
                self.select(is_zero, zero, value)
            }
            O::LeftShift | O::RightShift => {
                let is_left = operation == O::LeftShift;
                let shifted = self.binary(if is_left { Binary::Shl } else { Binary::Shr }, a, b);
                // Compare shifts as unsigned numbers, so that a negative shift is a large one.
                let width = self.number(of, (of.bytes() * 8) as i8);
                let is_small = self.binary(Binary::Lt, b, width);
                let is_not_negative = self.binary(Binary::Le, zero, b);
                let is_within = self.binary(Binary::And, is_small, is_not_negative);
                let out = if is_left || !of.is_signed() {
                    zero
                } else {
                    let (minus, is_negative) = (self.number(of, -1), self.binary(Binary::Lt, a, zero));
                    self.select(is_negative, minus, zero)
                };
                self.select(is_within, shifted, out)
            }
            O::Isnan | O::Isinf => self.literal(Type::Bool, 0),
            O::Isfinite => self.literal(Type::Bool, 1),
            _ => a,
        }
    }

    /// Adds a test whether the floor of `a / b` is one less than the quotient rounded towards zero.
    fn is_below(&mut self, of: Type, a: Value, b: Value) -> Value {
        if !of.is_signed() {
            return self.literal(Type::Bool, 0);
        }
        let zero = self.number(of, 0);
        let rest = self.binary(Binary::Rem, a, b);
        let (is_inexact, is_divided) =
            (self.binary(Binary::Ne, rest, zero), self.binary(Binary::Ne, b, zero));
        let (first, second) = (self.binary(Binary::Lt, rest, zero), self.binary(Binary::Lt, b, zero));
        let differ = self.binary(Binary::Xor, first, second);
        let both = self.binary(Binary::And, is_inexact, is_divided);
        self.binary(Binary::And, both, differ)
    }

    fn of_floats(&mut self, operation: Operation, of: Type, a: Value, b: Value) -> Result<Value> {
        use Operation as O;
        if let Some(truth) = self.compared(operation, a, b) {
            return Ok(truth);
        }
        Ok(match operation {
            O::Positive => a,
            O::Add => self.binary(Binary::Add, a, b),
            O::Subtract => self.binary(Binary::Sub, a, b),
            O::Multiply => self.binary(Binary::Mul, a, b),
            O::Divide => self.binary(Binary::Div, a, b),
            O::Square => self.binary(Binary::Mul, a, a),
            O::Negative => self.unary(Unary::Neg, a),
            O::Absolute | O::Fabs => self.unary(Unary::Abs, a),
            O::Sqrt => self.unary(Unary::Sqrt, a),
            O::Floor => self.unary(Unary::Floor, a),
            O::Ceil => self.unary(Unary::Ceil, a),
            O::Trunc => self.unary(Unary::Trunc, a),
            O::Rint => self.unary(Unary::RoundEven, a),
            O::Fmax => self.binary(Binary::Max, a, b),
            O::Fmin => self.binary(Binary::Min, a, b),
            O::Maximum | O::Minimum => {
                let op = if operation == O::Maximum { Binary::Max } else { Binary::Min };
                let (value, first, second) = (self.binary(op, a, b), self.is_nan(a), self.is_nan(b));
                let rest = self.select(second, b, value);
                self.select(first, a, rest)
            }
            O::Reciprocal => {
                let one = self.number(of, 1);
                self.binary(Binary::Div, one, a)
            }
            O::Sign => {
                let (zero, one, minus) = (self.number(of, 0), self.number(of, 1), self.number(of, -1));
                let (is_positive, is_negative) =
                    (self.binary(Binary::Lt, zero, a), self.binary(Binary::Lt, a, zero));
                let is_zero = self.binary(Binary::Eq, a, zero);
                let rest = self.select(is_zero, zero, a);
                let rest = self.select(is_negative, minus, rest);
                self.select(is_positive, one, rest)
            }
            O::Isnan => self.is_nan(a),
            O::Isinf | O::Isfinite => {
                let infinity = match of {
                    Type::F32 => self.literal(of, f32::INFINITY.to_bits().into()),
                    _ => self.literal(of, f64::INFINITY.to_bits()),
                };
                let size = self.unary(Unary::Abs, a);
                self.binary(if operation == O::Isinf { Binary::Eq } else { Binary::Lt }, size, infinity)
            }
            _ if of == Type::F32 => self.function::<f32>(operation, a, b)?,
            _ => self.function::<f64>(operation, a, b)?,
        })
    }

    /// Adds the instructions of a mathematical function of the library.
    fn function<F: Scalar + Number + Float>(
        &mut self,
        operation: Operation,
        a: Value,
        b: Value,
    ) -> Result<Value> {
        use Operation as O;
        let program = self.program()?;
        let value = |value| Expr::<(), F>::from_program(&program, value);
        let (x, y) = (value(a)?, value(b)?);
        let result = match operation {
            O::Exp => x.exp(),
            O::Exp2 => x.exp2(),
            O::Expm1 => x.exp_m1(),
            O::Log => x.ln(),
            O::Log1p => x.ln_1p(),
            O::Log2 => x.log2(),
            O::Log10 => x.log10(),
            O::Sin => x.sin(),
            O::Cos => x.cos(),
            O::Tan => x.tan(),
            O::Arcsin => x.asin(),
            O::Arccos => x.acos(),
            O::Arctan => x.atan(),
            O::Sinh => x.sinh(),
            O::Cosh => x.cosh(),
            O::Tanh => x.tanh(),
            O::Arcsinh => x.asinh(),
            O::Arccosh => x.acosh(),
            O::Arctanh => x.atanh(),
            O::Cbrt => x.cbrt(),
            O::Hypot => x.hypot(y),
            O::Arctan2 => x.atan2(y),
            O::Power => x.powf(y),
            other => unreachable!("{} is not a function of floats", other.name()),
        };
        // The new program begins with the present instructions, so that earlier values stay valid.
        let (program, value) = result.to_program()?;
        self.instructions = program.instructions();
        Ok(value)
    }
}

/// True if the result of an operation is a bool for operands of every kind.
fn is_truth(operation: Operation) -> bool {
    use Operation as O;
    matches!(
        operation,
        O::Equal
            | O::NotEqual
            | O::Less
            | O::LessEqual
            | O::Greater
            | O::GreaterEqual
            | O::Isnan
            | O::Isinf
            | O::Isfinite
    )
}
