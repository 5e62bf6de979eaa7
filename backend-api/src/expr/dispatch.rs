//! Macros that run code for the type of a value, or for the operation of an instruction.

/// Runs code generically: names the Rust type of an integer [`Type`](crate::expr::Type), and `u8` for a bool.
/// Runs the other branch for floats.
///
/// ```
/// use backend_api::{by_integer, expr::Type};
/// let largest = |of| by_integer!(of, T => Some(T::MAX as u64), _ => None);
/// assert_eq!((largest(Type::I16), largest(Type::F32)), (Some(32_767), None));
/// ```
#[macro_export]
macro_rules! by_integer {
    ($of:expr, $T:ident => $body:expr, _ => $else:expr) => {
        match $of {
            $crate::expr::Type::U8 | $crate::expr::Type::Bool => $crate::by_integer!(@ $T = u8 => $body),
            $crate::expr::Type::U16 => $crate::by_integer!(@ $T = u16 => $body),
            $crate::expr::Type::U32 => $crate::by_integer!(@ $T = u32 => $body),
            $crate::expr::Type::U64 => $crate::by_integer!(@ $T = u64 => $body),
            $crate::expr::Type::I8 => $crate::by_integer!(@ $T = i8 => $body),
            $crate::expr::Type::I16 => $crate::by_integer!(@ $T = i16 => $body),
            $crate::expr::Type::I32 => $crate::by_integer!(@ $T = i32 => $body),
            $crate::expr::Type::I64 => $crate::by_integer!(@ $T = i64 => $body),
            $crate::expr::Type::F32 | $crate::expr::Type::F64 => $else,
        }
    };
    (@ $T:ident = $Rust:ty => $body:expr) => {{
        type $T = $Rust;
        $body
    }};
}

/// Runs code generically: names the Rust type of a [`Type`](crate::expr::Type), and `u8` for a bool. For
/// kernels on the CPU.
///
/// ```
/// use backend_api::{by_type, expr::{Number, Type}};
/// let double = |of, bits| by_type!(of, T => T::from_value(bits).plus(T::from_value(bits)).to_value());
/// assert_eq!((double(Type::U8, 200), double(Type::F64, 1.5_f64.to_bits())), (144, 3_f64.to_bits()));
/// ```
#[macro_export]
macro_rules! by_type {
    ($of:expr, $T:ident => $body:expr) => {{
        let of: $crate::expr::Type = $of;
        $crate::by_integer!(of, $T => $body, _ => if of == $crate::expr::Type::F32 {
            $crate::by_integer!(@ $T = f32 => $body)
        } else {
            $crate::by_integer!(@ $T = f64 => $body)
        })
    }};
}

/// Runs code for an operation on two values. One of three macros generates the code: from the method of
/// [`Number`](crate::expr::Number) or of [`Integer`](crate::expr::Integer), or from the operator of a
/// comparison.
///
/// ```
/// use backend_api::{by_binary, expr::{Binary, Integer, Number}};
/// fn evaluate(op: Binary, a: i32, b: i32) -> i32 {
///     macro_rules! method { ($name:ident) => { a.$name(b) } }
///     macro_rules! comparison { ($operator:tt) => { i32::from(a $operator b) } }
///     by_binary!(op, method, method, comparison)
/// }
/// assert_eq!((evaluate(Binary::Rem, 7, 4), evaluate(Binary::Max, 7, 4), evaluate(Binary::Lt, 7, 4)), (3, 7, 0));
/// ```
#[macro_export]
macro_rules! by_binary {
    ($operation:expr, $number:ident, $integer:ident, $comparison:ident) => {
        match $operation {
            $crate::expr::Binary::Add => $number!(plus),
            $crate::expr::Binary::Sub => $number!(minus),
            $crate::expr::Binary::Mul => $number!(times),
            $crate::expr::Binary::Div => $number!(divide),
            $crate::expr::Binary::Min => $number!(least),
            $crate::expr::Binary::Max => $number!(greatest),
            $crate::expr::Binary::Rem => $integer!(remainder),
            $crate::expr::Binary::And => $integer!(both),
            $crate::expr::Binary::Or => $integer!(either),
            $crate::expr::Binary::Xor => $integer!(differing),
            $crate::expr::Binary::Shl => $integer!(shift_left),
            $crate::expr::Binary::Shr => $integer!(shift_right),
            $crate::expr::Binary::Eq => $comparison!(==),
            $crate::expr::Binary::Ne => $comparison!(!=),
            $crate::expr::Binary::Lt => $comparison!(<),
            $crate::expr::Binary::Le => $comparison!(<=),
        }
    };
}

/// Runs code for an operation on one value of a type. The macro `$one` generates the code, given the Rust
/// types of operand and result, and a function. If the type does not have the operation, runs `$other`.
///
/// ```
/// use backend_api::{by_unary, expr::{Number, Type, Unary}};
/// fn evaluate(op: Unary, of: Type, a: u64) -> u64 {
///     macro_rules! one {
///         ($A:ty, $R:ty, $function:expr) => {{
///             let result: $R = $function(<$A>::from_value(a));
///             result.to_value()
///         }};
///     }
///     by_unary!(op, of, one, 0)
/// }
/// assert_eq!((evaluate(Unary::Neg, Type::I8, 1), evaluate(Unary::CountOnes, Type::U16, 7)), (255, 3));
/// ```
#[macro_export]
macro_rules! by_unary {
    ($operation:expr, $of:expr, $one:ident, $other:expr) => {{
        use $crate::expr::{Integer, Number, Type, Unary};
        let (operation, of): (Unary, Type) = ($operation, $of);
        match operation {
            Unary::Neg => $crate::by_type!(of, T => $one!(T, T, Number::negative)),
            Unary::Abs => $crate::by_type!(of, T => $one!(T, T, Number::absolute)),
            Unary::Not if of == Type::Bool => $one!(u8, u8, |a: u8| a ^ 1),
            Unary::Not => $crate::by_integer!(of, T => $one!(T, T, Integer::complement), _ => $other),
            Unary::Sqrt => $crate::by_unary!(@ of, $one, sqrt),
            Unary::Floor => $crate::by_unary!(@ of, $one, floor),
            Unary::Ceil => $crate::by_unary!(@ of, $one, ceil),
            Unary::Trunc => $crate::by_unary!(@ of, $one, trunc),
            Unary::RoundEven => $crate::by_unary!(@ of, $one, round_ties_even),
            Unary::CountOnes => {
                $crate::by_integer!(of, T => $one!(T, T, |a: T| a.count_ones() as T), _ => $other)
            }
            Unary::LeadingZeros => {
                $crate::by_integer!(of, T => $one!(T, T, |a: T| a.leading_zeros() as T), _ => $other)
            }
            Unary::TrailingZeros => {
                $crate::by_integer!(of, T => $one!(T, T, |a: T| a.trailing_zeros() as T), _ => $other)
            }
            Unary::ReverseBits => $crate::by_integer!(of, T => $one!(T, T, T::reverse_bits), _ => $other),
            Unary::ApproxExp2 => $one!(f32, f32, f32::exp2),
            Unary::ApproxLog2 => $one!(f32, f32, f32::log2),
            Unary::ApproxSin => $one!(f32, f32, f32::sin),
            Unary::ApproxCos => $one!(f32, f32, f32::cos),
            Unary::ApproxRsqrt => $one!(f32, f32, |a: f32| a.sqrt().recip()),
            Unary::FromF16 => $one!(u16, f32, $crate::kernel::f16_to_f32),
            Unary::ToF16 => $one!(f32, u16, $crate::kernel::f32_to_f16),
            Unary::FromBf16 => $one!(u16, f32, $crate::kernel::bf16_to_f32),
            Unary::ToBf16 => $one!(f32, u16, $crate::kernel::f32_to_bf16),
        }
    }};
    (@ $of:ident, $one:ident, $function:ident) => {
        if $of == Type::F32 { $one!(f32, f32, f32::$function) } else { $one!(f64, f64, f64::$function) }
    };
}

#[cfg(test)]
mod tests {
    use crate::expr::{Number, Type};

    #[test]
    fn code_runs_with_the_type_of_the_value() {
        for of in Type::NUMBERS {
            assert_eq!(by_type!(of, T => T::NUMBER_TYPE), of);
            assert_eq!(by_integer!(of, T => Some(T::NUMBER_TYPE), _ => None), (!of.is_float()).then_some(of));
        }
        assert_eq!(by_type!(Type::Bool, T => T::NUMBER_TYPE), Type::U8);
        assert_eq!(by_integer!(Type::Bool, T => T::NUMBER_TYPE, _ => Type::F32), Type::U8);
    }
}
