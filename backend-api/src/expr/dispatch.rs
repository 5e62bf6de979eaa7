//! Macros that run code for the type of a value, or for the operation of an instruction.

/// Runs code with a name for the Rust type of an integer; bools are bytes. Floats run the other branch.
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

/// Runs code with a name for the Rust type of a value; bools are bytes. For kernels on the processor.
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

/// Runs code for an operation on two values. One of three macros makes the code: from the method of
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
