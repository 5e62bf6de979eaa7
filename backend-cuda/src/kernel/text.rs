//! PTX text of single operations: arithmetic, loads and stores. Both code generators use it.
//!
//! Integers of up to 32 bits are in 32-bit registers, sign- or zero-extended; bools are in predicates. The
//! suffix `.rn` prevents the assembler from fusing operations.
//!
//! The register of a result must not be an operand of the same operation: an operation may need several PTX
//! instructions, and the first one may already write the result.

use std::fmt::Write;

use backend_api::expr::{Binary, Type};
use backend_api::kernel::{Op, Reg, Unary};

/// Appends one instruction.
macro_rules! emit {
    ($code:expr, $($format:tt)*) => {{
        let line = format!($($format)*);
        $code.instruction(&line);
    }};
}
pub(super) use emit;

/// The PTX names of a type: its kind of register, its type in arithmetic, and its type in loads and stores.
fn names(of: Type) -> [&'static str; 3] {
    match of {
        Type::Bool => ["pred", "pred", "u8"],
        Type::U8 => ["b32", "u32", "u8"],
        Type::U16 => ["b32", "u32", "u16"],
        Type::U32 => ["b32", "u32", "u32"],
        Type::U64 => ["b64", "u64", "u64"],
        Type::I8 => ["b32", "s32", "s8"],
        Type::I16 => ["b32", "s32", "s16"],
        Type::I32 => ["b32", "s32", "s32"],
        Type::I64 => ["b64", "s64", "s64"],
        Type::F32 => ["f32"; 3],
        Type::F64 => ["f64"; 3],
    }
}

/// The kind of register of a type.
pub(super) fn register(of: Type) -> &'static str {
    names(of)[0]
}

/// The type of arithmetic on a value.
pub(super) fn suffix(of: Type) -> &'static str {
    names(of)[1]
}

/// The type of loads and stores of a value.
pub(super) fn memory_suffix(of: Type) -> &'static str {
    names(of)[2]
}

pub(super) fn is_wide(of: Type) -> bool {
    of.bytes() == 8
}

/// PTX text under construction: declarations and instructions.
#[derive(Debug, Default)]
pub(super) struct Text {
    pub declarations: String,
    pub body: String,
    pub temporaries: usize,
    /// True if the threads of a warp may have diverged at a branch since their last synchronisation.
    pub lanes_may_be_apart: bool,
}

/// The source of a load: an address plus `from` bytes; the sum must be a multiple of `align`.
#[derive(Clone, Copy)]
pub(super) struct LoadSource<'a> {
    /// The instruction without its type, such as `ld.global`.
    pub way: &'a str,
    pub at: &'a str,
    pub from: u64,
    pub align: u64,
}

impl Text {
    pub fn declare(&mut self, kind: &str, name: &str) {
        // Writing to a string never fails.
        let _ = writeln!(self.declarations, "\t.reg .{kind} {name};");
    }

    pub fn temporary(&mut self, kind: &str) -> String {
        self.temporaries += 1;
        let name = format!("t{}", self.temporaries);
        self.declare(kind, &name);
        name
    }

    pub fn instruction(&mut self, words: &str) {
        self.body.push('\t');
        self.body.push_str(words);
        self.body.push_str(";\n");
    }

    /// Appends the label `name`. If a branch to this label directly precedes the label, removes the branch:
    /// NVIDIA's assembler (CUDA 12.9, 13.0) crashes on some branches that skip nothing.
    pub fn label(&mut self, name: &str) {
        let before = self.body.trim_end_matches(|c| c != ';').len();
        let line = self.body[..before].rfind('\n').map_or(0, |end| end + 1);
        let labels_follow = self.body[before..].lines().all(|line| line.is_empty() || line.ends_with(':'));
        if labels_follow && self.body[line..before].ends_with(&format!("bra {name};")) {
            self.body.replace_range(line..(before + 1).min(self.body.len()), "");
        }
        self.lanes_may_be_apart = true;
        // Writing to a string never fails.
        let _ = writeln!(self.body, "{name}:");
    }

    /// Writes code that sets the register `name` to `yes` if the predicate `condition` is true, else to `no`.
    pub fn select(&mut self, of: Type, name: &str, [condition, yes, no]: [&str; 3]) {
        if of == Type::Bool {
            let [first, second] = ["pred"; 2].map(|kind| self.temporary(kind));
            emit!(self, "and.pred {first}, {condition}, {yes}");
            emit!(self, "not.pred {second}, {condition}");
            emit!(self, "and.pred {second}, {second}, {no}");
            emit!(self, "or.pred {name}, {first}, {second}");
        } else {
            emit!(self, "selp.{} {name}, {yes}, {no}, {condition}", register(of));
        }
    }

    /// Writes code for an [operation on values](Op::is_value), with its result in the register `to`. For a
    /// register of the kernel, `of` returns the type, and `name` the name of its PTX register. Returns false
    /// if `op` is another operation.
    pub fn value(
        &mut self,
        op: &Op,
        to: &str,
        of: impl Fn(Reg) -> Type,
        name: impl Fn(Reg) -> String,
    ) -> bool {
        match *op {
            Op::Copy { to: result, of: a } => emit!(self, "mov.{} {to}, {}", register(of(result)), name(a)),
            Op::Unary { op, of: a, .. } => self.unary(op, of(a), to, &name(a)),
            Op::Binary { op, left, right, .. } => self.binary(op, of(left), to, &name(left), &name(right)),
            Op::MulHigh { left, right, .. } => self.mul_high(of(left), to, &name(left), &name(right)),
            Op::Fma { a, b, c, .. } => {
                emit!(self, "fma.rn.{} {to}, {}, {}, {}", suffix(of(a)), name(a), name(b), name(c));
            }
            Op::Select { when, yes, no, .. } => {
                self.select(of(yes), to, [&name(when), &name(yes), &name(no)]);
            }
            Op::Cast { to: result, of: a } => self.cast(of(a), of(result), to, &name(a)),
            Op::Bits { to: result, of: a } => self.as_bits(of(result), to, &name(a)),
            _ => return false,
        }
        true
    }

    /// Writes code that loads a constant of the type `of`, with the bits `bits`, into the register `name`.
    pub fn literal(&mut self, of: Type, name: &str, bits: u64) {
        match of {
            Type::Bool => emit!(self, "setp.ne.u32 {name}, {bits}, 0"),
            Type::F32 => emit!(self, "mov.f32 {name}, 0f{bits:08X}"),
            Type::F64 => emit!(self, "mov.f64 {name}, 0d{bits:016X}"),
            _ if is_wide(of) => emit!(self, "mov.b64 {name}, 0x{bits:X}"),
            _ => {
                let unused = 32 - 8 * of.bytes();
                let extended = if of.is_signed() { (bits as u32) << unused } else { bits as u32 };
                let extended = if of.is_signed() { (extended as i32 >> unused) as u32 } else { extended };
                emit!(self, "mov.b32 {name}, 0x{extended:X}");
            }
        }
    }

    /// Writes code that loads the low bits of the 64-bit kernel parameter at `place` into `name`.
    pub fn parameter(&mut self, of: Type, name: &str, place: &str) {
        if of == Type::Bool {
            let word = self.temporary("b32");
            emit!(self, "ld.param.u32 {word}, [{place}]");
            emit!(self, "setp.ne.u32 {name}, {word}, 0");
        } else {
            emit!(self, "ld.param.{} {name}, [{place}]", memory_suffix(of));
        }
    }

    /// Returns the register that passes the value of the register `name` as an argument of a function call. A
    /// bool becomes a 32-bit word.
    pub fn given_on(&mut self, of: Type, name: &str) -> String {
        if of != Type::Bool {
            return name.to_owned();
        }
        let word = self.temporary("b32");
        emit!(self, "selp.b32 {word}, 1, 0, {name}");
        word
    }

    /// Writes a call of a PTX function with a result of the type `of` in the register `name`.
    pub fn call(&mut self, function: &str, of: Type, name: &str, arguments: &[(Type, String)]) {
        let kind = |of: Type| if is_wide(of) { "b64" } else { "b32" };
        let given: Vec<String> =
            arguments.iter().map(|(of, argument)| self.given_on(*of, argument)).collect();
        self.body.push_str("\t{\n");
        emit!(self, ".param .{} result", kind(of));
        let mut list = Vec::new();
        for (number, ((of, _), given)) in arguments.iter().zip(given).enumerate() {
            emit!(self, ".param .{} a{number}", kind(*of));
            emit!(self, "st.param.{} [a{number}], {given}", kind(*of));
            list.push(format!("a{number}"));
        }
        emit!(self, "call (result), {function}, ({})", list.join(", "));
        self.parameter(of, name, "result");
        self.body.push_str("\t}\n");
    }

    /// Writes code that sets the register `name` to `element * stride + base`.
    pub fn scaled(&mut self, name: &str, element: &str, stride: u64, base: &str) {
        if stride.is_power_of_two() {
            let far = self.temporary("b64");
            emit!(self, "shl.b64 {far}, {element}, {}", stride.trailing_zeros());
            emit!(self, "add.u64 {name}, {base}, {far}");
        } else {
            emit!(self, "mad.lo.u64 {name}, {element}, 0x{stride:X}, {base}");
        }
    }

    /// Writes code that divides the unsigned `value` by a constant, by a shift or a reciprocal, into `name`.
    pub fn quotient(&mut self, name: &str, value: &str, divisor: u64) {
        if divisor.is_power_of_two() {
            return emit!(self, "shr.u64 {name}, {value}, {}", divisor.trailing_zeros());
        }
        // 2^64 + factor is 2^(65 + shift) / divisor, rounded up. The error of the rounding is too small to
        // change the quotient of any 64-bit value (Granlund and Montgomery, "Division by invariant integers
        // using multiplication").
        let shift = divisor.ilog2();
        let power = 1_u128 << (65 + shift);
        let factor = (power.div_ceil(divisor.into()) - (1 << 64)) as u64;
        let half = self.temporary("b64");
        emit!(self, "mul.hi.u64 {name}, {value}, 0x{factor:X}");
        // Average of `value` and `name`: halve the difference first, because the sum may need 65 bits.
        emit!(self, "sub.u64 {half}, {value}, {name}");
        emit!(self, "shr.u64 {half}, {half}, 1");
        emit!(self, "add.u64 {name}, {name}, {half}");
        emit!(self, "shr.u64 {name}, {name}, {shift}");
    }

    /// Writes code that sets `name` to an element's index in the array. The register `number` is the
    /// element's index in its `channel` (the share of the array's pages on one device).
    pub fn index(&mut self, name: &str, number: &str, channel: &str, page_len: u64, channels: u64) {
        let [page, others] = ["b64"; 2].map(|kind| self.temporary(kind));
        // The pages of an array go to its channels (shares of devices) in turn, so the index is `number +
        // (page * (channels - 1) + channel) * page_len`.
        if channels == 1 {
            emit!(self, "mad.lo.u64 {name}, {channel}, 0x{page_len:X}, {number}");
            return;
        }
        self.quotient(&page, number, page_len);
        emit!(self, "mad.lo.u64 {others}, {page}, 0x{:X}, {channel}", channels.wrapping_sub(1));
        emit!(self, "mad.lo.u64 {name}, {others}, 0x{page_len:X}, {number}");
    }

    /// Writes code that sets the number in register `name` to 0 if the predicate `condition` is false.
    pub fn select_or_zero(&mut self, of: Type, name: &str, condition: &str) {
        match of {
            Type::F32 => emit!(self, "selp.f32 {name}, {name}, 0f00000000, {condition}"),
            Type::F64 => emit!(self, "selp.f64 {name}, {name}, 0d0000000000000000, {condition}"),
            _ => emit!(self, "selp.{} {name}, {name}, 0, {condition}", register(of)),
        }
    }

    /// Writes code that loads a number into `name`. `guard` is empty or a predicate such as `@valid`.
    pub fn load(&mut self, of: Type, name: &str, guard: &str, source: LoadSource<'_>) {
        let LoadSource { way, at, from, align } = source;
        let width = u64::from(of.bytes());
        let unit = width.min(align);
        if unit == width {
            emit!(self, "{guard}{way}.{} {name}, [{at}+{from}]", memory_suffix(of));
            return;
        }
        // Append the parts of the number, lowest part first.
        let (kind, bits) = if is_wide(of) { ("b64", 64) } else { ("b32", 32) };
        let whole = self.temporary(kind);
        emit!(self, "mov.{kind} {whole}, 0");
        for piece in 0..width / unit {
            let part = self.temporary(kind);
            emit!(self, "{guard}{way}.u{} {part}, [{at}+{}]", 8 * unit, from + piece * unit);
            emit!(self, "shl.{kind} {part}, {part}, {}", 8 * unit * piece);
            emit!(self, "or.{kind} {whole}, {whole}, {part}");
        }
        match of {
            Type::I16 => emit!(self, "bfe.s32 {name}, {whole}, 0, 16"),
            _ => emit!(self, "mov.b{bits} {name}, {whole}"),
        }
    }

    /// Writes code that stores the register `name` at `at` plus `to` bytes, an address divisible by `align`.
    pub fn store(&mut self, of: Type, name: &str, guard: &str, (at, to): (&str, u64), align: u64) {
        let width = u64::from(of.bytes());
        let unit = width.min(align);
        if unit == width {
            let suffix = memory_suffix(of).replace('s', "u");
            emit!(self, "{guard}st.global.{suffix} [{at}+{to}], {name}");
            return;
        }
        let kind = if is_wide(of) { "b64" } else { "b32" };
        let whole = self.temporary(kind);
        emit!(self, "mov.{kind} {whole}, {name}");
        for piece in 0..width / unit {
            emit!(self, "{guard}st.global.u{} [{at}+{}], {whole}", 8 * unit, to + piece * unit);
            emit!(self, "shr.u{} {whole}, {whole}, {}", &kind[1..], 8 * unit);
        }
    }

    /// Writes code that truncates the 32-bit register `name` to a shorter type `of`.
    pub fn narrow(&mut self, of: Type, name: &str) {
        match of {
            Type::U8 => emit!(self, "and.b32 {name}, {name}, 0xFF"),
            Type::U16 => emit!(self, "and.b32 {name}, {name}, 0xFFFF"),
            Type::I8 => emit!(self, "bfe.s32 {name}, {name}, 0, 8"),
            Type::I16 => emit!(self, "bfe.s32 {name}, {name}, 0, 16"),
            _ => {}
        }
    }

    pub fn unary(&mut self, op: Unary, of: Type, name: &str, a: &str) {
        let (s, r) = (suffix(of), register(of));
        match op {
            Unary::Not if of == Type::Bool => emit!(self, "not.pred {name}, {a}"),
            Unary::Not => emit!(self, "not.{r} {name}, {a}"),
            Unary::Abs if of.is_integer() && !of.is_signed() => emit!(self, "mov.{r} {name}, {a}"),
            Unary::Abs => emit!(self, "abs.{s} {name}, {a}"),
            Unary::Neg => emit!(self, "neg.{s} {name}, {a}"),
            Unary::Sqrt => emit!(self, "sqrt.rn.{s} {name}, {a}"),
            Unary::Floor => emit!(self, "cvt.rmi.{s}.{s} {name}, {a}"),
            Unary::Ceil => emit!(self, "cvt.rpi.{s}.{s} {name}, {a}"),
            Unary::Trunc => emit!(self, "cvt.rzi.{s}.{s} {name}, {a}"),
            Unary::RoundEven => emit!(self, "cvt.rni.{s}.{s} {name}, {a}"),
            Unary::ApproxExp2 => emit!(self, "ex2.approx.f32 {name}, {a}"),
            Unary::ApproxLog2 => emit!(self, "lg2.approx.f32 {name}, {a}"),
            Unary::ApproxSin => emit!(self, "sin.approx.f32 {name}, {a}"),
            Unary::ApproxCos => emit!(self, "cos.approx.f32 {name}, {a}"),
            Unary::ApproxRsqrt => emit!(self, "rsqrt.approx.f32 {name}, {a}"),
            Unary::CountOnes | Unary::LeadingZeros | Unary::TrailingZeros | Unary::ReverseBits => {
                self.bits(op, of, name, a);
            }
            Unary::FromF16 | Unary::ToF16 | Unary::FromBf16 | Unary::ToBf16 => {
                return self.convert_half(op, name, a);
            }
        }
        self.narrow(of, name);
    }

    /// Writes a conversion between `f32` and the bits of a 16-bit float.
    fn convert_half(&mut self, op: Unary, name: &str, a: &str) {
        let (bits, half) = (self.temporary("b32"), self.temporary("b16"));
        match op {
            Unary::FromF16 => {
                emit!(self, "cvt.u16.u32 {half}, {a}");
                emit!(self, "cvt.f32.f16 {name}, {half}");
            }
            Unary::ToF16 => {
                emit!(self, "cvt.rn.f16.f32 {half}, {a}");
                emit!(self, "cvt.u32.u16 {name}, {half}");
            }
            Unary::FromBf16 => {
                emit!(self, "shl.b32 {bits}, {a}, 16");
                emit!(self, "mov.b32 {name}, {bits}");
            }
            // Convert to bf16 by integer operations, because GPUs before compute capability 8.0 have no
            // instruction for this conversion.
            _ => {
                let (odd, is_nan) = (self.temporary("b32"), self.temporary("pred"));
                emit!(self, "mov.b32 {bits}, {a}");
                emit!(self, "bfe.u32 {odd}, {bits}, 16, 1");
                emit!(self, "add.u32 {odd}, {odd}, 0x7FFF");
                emit!(self, "add.u32 {odd}, {odd}, {bits}");
                emit!(self, "shr.u32 {name}, {odd}, 16");
                emit!(self, "and.b32 {bits}, {bits}, 0x7FFFFFFF");
                emit!(self, "setp.gt.u32 {is_nan}, {bits}, 0x7F800000");
                emit!(self, "selp.b32 {name}, 0x7FC0, {name}, {is_nan}");
            }
        }
    }

    /// Writes an operation on the bits of an integer, whose register may have more bits than the type.
    fn bits(&mut self, op: Unary, of: Type, name: &str, a: &str) {
        let (bits, unused, kind) = (8 * of.bytes(), (32_u32).saturating_sub(8 * of.bytes()), register(of));
        let own = self.temporary(kind);
        emit!(self, "mov.{kind} {own}, {a}");
        if unused > 0 {
            emit!(self, "and.b32 {own}, {own}, 0x{:X}", of.mask());
        }
        if op == Unary::ReverseBits {
            emit!(self, "brev.{kind} {name}, {own}");
            if unused > 0 {
                emit!(self, "shr.u32 {name}, {name}, {unused}");
            }
            return;
        }
        let count = self.temporary("b32");
        match op {
            Unary::CountOnes => emit!(self, "popc.{kind} {count}, {own}"),
            Unary::LeadingZeros => {
                emit!(self, "clz.{kind} {count}, {own}");
                emit!(self, "sub.u32 {count}, {count}, {unused}");
            }
            _ => {
                if unused > 0 {
                    // Set the bit above the number, so the count of trailing zeros of 0 is the number of
                    // bits.
                    emit!(self, "or.b32 {own}, {own}, 0x{:X}", 1_u32 << bits);
                }
                emit!(self, "brev.{kind} {own}, {own}");
                emit!(self, "clz.{kind} {count}, {own}");
            }
        }
        self.cast(Type::U32, of, name, &count);
    }

    /// Writes code that sets `name` to the upper half of the product of the integers `a` and `b`.
    pub fn mul_high(&mut self, of: Type, name: &str, a: &str, b: &str) {
        let (s, bits) = (suffix(of), 8 * of.bytes());
        if bits >= 32 {
            return emit!(self, "mul.hi.{s} {name}, {a}, {b}");
        }
        emit!(self, "mul.lo.{s} {name}, {a}, {b}");
        emit!(self, "shr.{s} {name}, {name}, {bits}");
    }

    /// Writes code that sets `name` to the bits of `a`, as a number of the type `to` with the same length.
    pub fn as_bits(&mut self, to: Type, name: &str, a: &str) {
        emit!(self, "mov.{} {name}, {a}", if is_wide(to) { "b64" } else { "b32" });
        self.narrow(to, name);
    }

    pub fn binary(&mut self, op: Binary, of: Type, name: &str, a: &str, b: &str) {
        let (s, r) = (suffix(of), register(of));
        let arithmetic = |op: &str| if of.is_float() { format!("{op}.rn.{s}") } else { format!("{op}.{s}") };
        match op {
            Binary::Add => emit!(self, "{} {name}, {a}, {b}", arithmetic("add")),
            Binary::Sub => emit!(self, "{} {name}, {a}, {b}", arithmetic("sub")),
            Binary::Mul if of.is_float() => emit!(self, "mul.rn.{s} {name}, {a}, {b}"),
            Binary::Mul => emit!(self, "mul.lo.{s} {name}, {a}, {b}"),
            Binary::Div if of.is_float() => emit!(self, "div.rn.{s} {name}, {a}, {b}"),
            Binary::Div | Binary::Rem => self.divide(op, of, name, a, b),
            Binary::Min | Binary::Max if of.is_float() => {
                let [p, nan] = ["pred"; 2].map(|kind| self.temporary(kind));
                let compare = if op == Binary::Min { "lt" } else { "gt" };
                emit!(self, "setp.{compare}.{s} {p}, {a}, {b}");
                emit!(self, "setp.nan.{s} {nan}, {b}, {b}");
                emit!(self, "or.pred {p}, {p}, {nan}");
                emit!(self, "selp.{s} {name}, {a}, {b}, {p}");
            }
            Binary::Min => emit!(self, "min.{s} {name}, {a}, {b}"),
            Binary::Max => emit!(self, "max.{s} {name}, {a}, {b}"),
            Binary::And => emit!(self, "and.{r} {name}, {a}, {b}"),
            Binary::Or => emit!(self, "or.{r} {name}, {a}, {b}"),
            Binary::Xor => emit!(self, "xor.{r} {name}, {a}, {b}"),
            Binary::Shl | Binary::Shr => {
                let by = self.temporary("b32");
                if is_wide(of) {
                    emit!(self, "cvt.u32.u64 {by}, {b}");
                } else {
                    emit!(self, "mov.b32 {by}, {b}");
                }
                emit!(self, "and.b32 {by}, {by}, {}", 8 * of.bytes() - 1);
                if op == Binary::Shl {
                    emit!(self, "shl.{r} {name}, {a}, {by}");
                } else {
                    emit!(self, "shr.{s} {name}, {a}, {by}");
                }
            }
            Binary::Eq if of == Type::Bool => {
                emit!(self, "xor.pred {name}, {a}, {b}");
                emit!(self, "not.pred {name}, {name}");
            }
            Binary::Ne if of == Type::Bool => emit!(self, "xor.pred {name}, {a}, {b}"),
            Binary::Eq => emit!(self, "setp.eq.{s} {name}, {a}, {b}"),
            // `setp.neu` is also true for a NaN.
            Binary::Ne if of.is_float() => emit!(self, "setp.neu.{s} {name}, {a}, {b}"),
            Binary::Ne => emit!(self, "setp.ne.{s} {name}, {a}, {b}"),
            Binary::Lt => emit!(self, "setp.lt.{s} {name}, {a}, {b}"),
            Binary::Le => emit!(self, "setp.le.{s} {name}, {a}, {b}"),
        }
        if !op.is_comparison() {
            self.narrow(of, name);
        }
    }

    /// Writes a division of integers that never divides by 0 or -1.
    fn divide(&mut self, op: Binary, of: Type, name: &str, a: &str, b: &str) {
        let (s, r) = (suffix(of), register(of));
        let (zero, divisor) = (self.temporary("pred"), self.temporary(r));
        emit!(self, "setp.eq.{s} {zero}, {b}, 0");
        emit!(self, "selp.{r} {divisor}, 1, {b}, {zero}");
        let minus = of.is_signed().then(|| {
            let minus = self.temporary("pred");
            emit!(self, "setp.eq.{s} {minus}, {b}, -1");
            emit!(self, "selp.{r} {divisor}, 1, {divisor}, {minus}");
            minus
        });
        if op == Binary::Rem {
            // `divisor` is 1 instead of 0 and -1, so `rem` gives 0: right for -1; for 0, the result is `a`.
            emit!(self, "rem.{s} {name}, {a}, {divisor}");
            emit!(self, "selp.{r} {name}, {a}, {name}, {zero}");
            return;
        }
        emit!(self, "div.{s} {name}, {a}, {divisor}");
        if let Some(minus) = minus {
            let negative = self.temporary(r);
            emit!(self, "neg.{s} {negative}, {a}");
            emit!(self, "selp.{r} {name}, {negative}, {name}, {minus}");
        }
        emit!(self, "selp.{r} {name}, 0, {name}, {zero}");
    }

    pub fn cast(&mut self, from: Type, to: Type, name: &str, a: &str) {
        match (from, to) {
            (Type::Bool, Type::F32) => emit!(self, "selp.f32 {name}, 0f3F800000, 0f00000000, {a}"),
            (Type::Bool, Type::F64) => {
                emit!(self, "selp.f64 {name}, 0d3FF0000000000000, 0d0000000000000000, {a}")
            }
            (Type::Bool, _) => emit!(self, "selp.{} {name}, 1, 0, {a}", register(to)),
            (Type::F32, Type::F64) => emit!(self, "cvt.f64.f32 {name}, {a}"),
            (Type::F64, Type::F32) => emit!(self, "cvt.rn.f32.f64 {name}, {a}"),
            _ if from == to => emit!(self, "mov.{} {name}, {a}", register(to)),
            _ if to.is_float() => emit!(self, "cvt.rn.{}.{} {name}, {a}", suffix(to), suffix(from)),
            _ if from.is_float() => {
                let nan = self.temporary("pred");
                emit!(self, "cvt.rzi.{}.{} {name}, {a}", suffix(to), suffix(from));
                match to {
                    Type::U8 | Type::U16 => emit!(self, "min.u32 {name}, {name}, {}", to.mask()),
                    Type::I8 | Type::I16 => {
                        let most = (to.mask() >> 1) as i32;
                        emit!(self, "min.s32 {name}, {name}, {most}");
                        emit!(self, "max.s32 {name}, {name}, {}", -most - 1);
                    }
                    _ => {}
                }
                emit!(self, "setp.nan.{} {nan}, {a}, {a}", suffix(from));
                emit!(self, "selp.{} {name}, 0, {name}, {nan}", register(to));
            }
            _ => {
                match (is_wide(from), is_wide(to)) {
                    (false, true) if from.is_signed() => emit!(self, "cvt.s64.s32 {name}, {a}"),
                    (false, true) => emit!(self, "cvt.u64.u32 {name}, {a}"),
                    (true, false) => emit!(self, "cvt.u32.u64 {name}, {a}"),
                    (wide, _) => emit!(self, "mov.b{} {name}, {a}", if wide { 64 } else { 32 }),
                }
                self.narrow(to, name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn branches_over_nothing_are_left_out() {
        let mut text = Text::default();
        emit!(text, "@!condition bra end");
        text.label("inner");
        text.label("end");
        assert_eq!(text.body, "inner:\nend:\n");
        emit!(text, "bra the_end");
        text.label("end_2");
        emit!(text, "ret");
        text.label("the_end");
        assert_eq!(text.body, "inner:\nend:\n\tbra the_end;\nend_2:\n\tret;\nthe_end:\n");
    }
}
