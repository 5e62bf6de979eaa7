//! OpenCL C text of arithmetic operations. Both code generators use it.
//!
//! The text leaves no arithmetic to the compiler's choice. Integers are computed unsigned and reinterpreted,
//! because a conversion of an out-of-range number to a signed type is implementation-defined (C99, 6.3.1.3).
//! Division by zero is guarded. Multiplication and addition are never fused. Conversions name their rounding,
//! and conversions of floats to integers saturate. Minimum and maximum are comparisons, because `fmin` leaves
//! zeros and signalling NaNs unspecified. Quotients of `f32` are rounded correctly: see
//! `crate::kernel::Division`.
//!
//! Two properties depend on the device, as the documentation of the crate says: subnormal `f32`
//! (`CL_FP_DENORM`), and rounding in the embedded profile (`CL_FP_ROUND_TO_NEAREST`).

use backend_api::expr::{Binary, Type, Unary};
use backend_api::kernel::{Op, Reg};

/// Name of a type in OpenCL C.
pub(super) fn name(of: Type) -> &'static str {
    match of {
        Type::Bool | Type::U32 => "uint",
        Type::U8 => "uchar",
        Type::U16 => "ushort",
        Type::U64 => "ulong",
        Type::I8 => "char",
        Type::I16 => "short",
        Type::I32 => "int",
        Type::I64 => "long",
        Type::F32 => "float",
        Type::F64 => "double",
    }
}

/// Unsigned type of a length.
pub(super) fn unsigned_name(bytes: u32) -> &'static str {
    match bytes {
        1 => "uchar",
        2 => "ushort",
        4 => "uint",
        _ => "ulong",
    }
}

/// Unsigned type for computations with integers of a type: at least 32 bits.
fn unsigned(of: Type) -> &'static str {
    if of.bytes() == 8 { "ulong" } else { "uint" }
}

/// Converts an unsigned number to an integer type, which keeps its low bits.
pub(super) fn whole(of: Type, unsigned: &str) -> String {
    let name = name(of);
    if of.is_signed() { format!("as_{name}((u{name})({unsigned}))") } else { format!("({name})({unsigned})") }
}

/// Converts bits (an unsigned primary expression) to a value of a type.
pub(super) fn from_bits(of: Type, bits: &str) -> String {
    match of {
        Type::F32 => format!("as_float((uint){bits})"),
        Type::F64 => format!("as_double({bits})"),
        of => whole(of, bits),
    }
}

/// Converts a value to unsigned bits of the same width.
pub(super) fn to_bits(of: Type, value: &str) -> String {
    format!("as_{}({value})", unsigned_name(of.bytes()))
}

/// Returns the expression for the index of the element whose number is in the variable `number`.
pub(super) fn index(number: &str, page_len: u64, channels: u64) -> String {
    let at = format!("(first + {number})");
    format!("({at} / {page_len}ul * {channels}ul + channel) * {page_len}ul + {at} % {page_len}ul")
}

/// Returns the expression of an [operation on values](Op::is_value); `None` for any other operation. `of`
/// returns the type of a register, and `r` the name of its variable.
pub(super) fn value_of(op: &Op, of: impl Fn(Reg) -> Type, r: impl Fn(Reg) -> String) -> Option<String> {
    Some(match *op {
        Op::Copy { of: a, .. } => r(a),
        Op::Unary { op, of: a, .. } => unary(op, of(a), &r(a)),
        Op::Binary { op, left, right, .. } => binary(op, of(left), &r(left), &r(right)),
        Op::MulHigh { left, right, .. } => format!("mul_hi({}, {})", r(left), r(right)),
        Op::Fma { a, b, c, .. } => format!("fma({}, {}, {})", r(a), r(b), r(c)),
        Op::Select { when, yes, no, .. } => format!("{} ? {} : {}", r(when), r(yes), r(no)),
        Op::Cast { to, of: a } => cast(of(a), of(to), &r(a)),
        Op::Bits { to, of: a } => format!("as_{}({})", name(of(to)), r(a)),
        _ => return None,
    })
}

fn unary(op: Unary, of: Type, a: &str) -> String {
    let (name, unsigned) = (name(of), unsigned(of));
    let own = unsigned_name(of.bytes());
    // OpenCL 1.2 lacks `ctz`; the number of trailing zeros equals the number of bits in `~a & (a - 1)`.
    let count = |bits: String| whole(of, &format!("(uint){bits}"));
    // Round only numbers that can have a fraction. PoCL (3.1) rounds by a conversion to an integer and back,
    // which is undefined for a constant NaN or a large constant.
    let whole_from = if of == Type::F32 { "8388608.0f" } else { "4503599627370496.0" };
    let round = |how: &str| format!("fabs({a}) < {whole_from} ? {how}({a}) : {a}");
    match op {
        Unary::Not if of == Type::Bool => format!("!{a}"),
        Unary::Not => format!("({name})~{a}"),
        Unary::Neg if of.is_float() => format!("-{a}"),
        Unary::Neg => whole(of, &format!("0 - ({unsigned}){a}")),
        Unary::Abs if of.is_float() => format!("fabs({a})"),
        Unary::Abs if of.is_signed() => {
            format!("{a} < 0 ? {} : {a}", whole(of, &format!("0 - ({unsigned}){a}")))
        }
        Unary::Abs => a.into(),
        Unary::Sqrt if of == Type::F32 => format!("root({a})"),
        Unary::Sqrt => format!("sqrt({a})"),
        Unary::Floor => round("floor"),
        Unary::Ceil => round("ceil"),
        Unary::Trunc => round("trunc"),
        Unary::RoundEven => round("rint"),
        Unary::CountOnes => count(format!("popcount(({own}){a})")),
        Unary::LeadingZeros => count(format!("clz(({own}){a})")),
        Unary::TrailingZeros => count(format!("popcount(({own})(~({own}){a} & (({own}){a} - 1)))")),
        // Use the standard functions, because OpenCL bounds their errors, unlike those of native functions.
        Unary::ApproxExp2 => format!("exp2({a})"),
        Unary::ApproxLog2 => format!("log2({a})"),
        Unary::ApproxSin => format!("sin({a})"),
        Unary::ApproxCos => format!("cos({a})"),
        Unary::ApproxRsqrt => format!("rsqrt({a})"),
        Unary::FromF16 => format!("half_to_float({a})"),
        Unary::ToF16 => format!("float_to_half({a})"),
        Unary::FromBf16 => format!("as_float((uint){a} << 16)"),
        Unary::ToBf16 => format!("float_to_bfloat({a})"),
        Unary::ReverseBits => {
            let up = 64 - 8 * of.bytes();
            format!("as_{name}(({own})(reversed((ulong)({own}){a}) >> {up}))")
        }
    }
}

pub(super) fn binary(op: Binary, of: Type, a: &str, b: &str) -> String {
    let (name, unsigned) = (name(of), unsigned(of));
    let bits = 8 * of.bytes() - 1;
    let integers = |operator: &str| whole(of, &format!("({unsigned}){a} {operator} ({unsigned}){b}"));
    match op {
        Binary::Add if of.is_float() => format!("{a} + {b}"),
        Binary::Sub if of.is_float() => format!("{a} - {b}"),
        Binary::Mul if of.is_float() => format!("{a} * {b}"),
        Binary::Div if of == Type::F32 => format!("quotient({a}, {b})"),
        Binary::Div if of == Type::F64 => format!("{a} / {b}"),
        Binary::Add => integers("+"),
        Binary::Sub => integers("-"),
        Binary::Mul => integers("*"),
        Binary::Div if of.is_signed() => {
            let negative = whole(of, &format!("0 - ({unsigned}){a}"));
            format!("{b} == 0 ? ({name})0 : {b} == -1 ? {negative} : ({name})({a} / {b})")
        }
        Binary::Div => format!("{b} == 0 ? ({name})0 : ({name})({a} / {b})"),
        Binary::Rem if of.is_signed() => {
            format!("{b} == 0 ? {a} : {b} == -1 ? ({name})0 : ({name})({a} % {b})")
        }
        Binary::Rem => format!("{b} == 0 ? {a} : ({name})({a} % {b})"),
        Binary::Min if of.is_float() => format!("({a} < {b} || {b} != {b}) ? {a} : {b}"),
        Binary::Max if of.is_float() => format!("({a} > {b} || {b} != {b}) ? {a} : {b}"),
        Binary::Min => format!("{a} < {b} ? {a} : {b}"),
        Binary::Max => format!("{a} > {b} ? {a} : {b}"),
        Binary::And => format!("({name})({a} & {b})"),
        Binary::Or => format!("({name})({a} | {b})"),
        Binary::Xor => format!("({name})({a} ^ {b})"),
        Binary::Shl => whole(of, &format!("({unsigned}){a} << (({unsigned}){b} & {bits})")),
        Binary::Shr => format!("({name})({a} >> (({unsigned}){b} & {bits}))"),
        Binary::Eq => format!("{a} == {b}"),
        Binary::Ne => format!("{a} != {b}"),
        Binary::Lt => format!("{a} < {b}"),
        Binary::Le => format!("{a} <= {b}"),
    }
}

fn cast(from: Type, to: Type, a: &str) -> String {
    let name = name(to);
    if from == to || (from == Type::F32 && to == Type::F64) {
        format!("({name}){a}")
    } else if to.is_float() {
        format!("convert_{name}_rte({a})")
    } else if from.is_float() {
        format!("{a} != {a} ? ({name})0 : convert_{name}_sat({a})")
    } else {
        whole(to, a)
    }
}
