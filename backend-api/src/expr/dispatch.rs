//! Code for whatever type a value has, and for whatever an operation does.

/// Runs code with a name for the Rust type of an integer; bools are bytes. There is other code for floats.
#[doc(hidden)]
#[macro_export]
macro_rules! by_integer {
    ($of:expr, $T:ident => $body:expr, _ => $else:expr) => {
        match $of {
            $crate::expr::Type::U8 | $crate::expr::Type::Bool => {
                type $T = u8;
                $body
            }
            $crate::expr::Type::U16 => {
                type $T = u16;
                $body
            }
            $crate::expr::Type::U32 => {
                type $T = u32;
                $body
            }
            $crate::expr::Type::U64 => {
                type $T = u64;
                $body
            }
            $crate::expr::Type::I8 => {
                type $T = i8;
                $body
            }
            $crate::expr::Type::I16 => {
                type $T = i16;
                $body
            }
            $crate::expr::Type::I32 => {
                type $T = i32;
                $body
            }
            $crate::expr::Type::I64 => {
                type $T = i64;
                $body
            }
            $crate::expr::Type::F32 | $crate::expr::Type::F64 => $else,
        }
    };
}

/// Runs code with a name for the Rust type of a value; bools are bytes.
#[doc(hidden)]
#[macro_export]
macro_rules! by_type {
    ($of:expr, $T:ident => $body:expr) => {{
        let of: $crate::expr::Type = $of;
        $crate::by_integer!(of, $T => $body, _ => if of == $crate::expr::Type::F32 {
            type $T = f32;
            $body
        } else {
            type $T = f64;
            $body
        })
    }};
}

/// Runs code for an operation on two values, made by one of three macros: of the method of `Number` or of
/// `Integer` that it is, or of the operator of a comparison.
#[doc(hidden)]
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
