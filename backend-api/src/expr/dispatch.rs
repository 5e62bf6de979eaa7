//! Code for whatever type a value has.

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

#[cfg(test)]
mod tests {
    use crate::expr::{Number, Type};

    #[test]
    fn code_runs_with_the_type_of_the_value() {
        for of in Type::NUMBERS {
            assert_eq!(by_type!(of, T => <T as Number>::TYPE), of);
            assert_eq!(
                by_integer!(of, T => Some(<T as Number>::TYPE), _ => None),
                (!of.is_float()).then_some(of)
            );
        }
        assert_eq!(by_type!(Type::Bool, T => <T as Number>::TYPE), Type::U8);
        assert_eq!(by_integer!(Type::Bool, T => <T as Number>::TYPE, _ => Type::F32), Type::U8);
    }
}
