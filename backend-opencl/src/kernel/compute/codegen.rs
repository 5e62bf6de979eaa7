//! Translation of programs to OpenCL C.
//!
//! The text leaves no arithmetic to the compiler's choice. Integers are computed unsigned and reinterpreted,
//! because a conversion of an out-of-range number to a signed type is implementation-defined (C99, 6.3.1.3).
//! Division is guarded. Multiplication and addition are never fused. Conversions name their rounding, and
//! conversions of floats to integers saturate. Minimum and maximum are comparisons, because `fmin` leaves
//! zeros and signalling NaNs unspecified. Quotients of `f32` are rounded correctly: see
//! `crate::kernel::Division`.
//!
//! Two properties depend on the device, as the documentation of the crate says: subnormal `f32`
//! (`CL_FP_DENORM`), and rounding in the embedded profile (`CL_FP_ROUND_TO_NEAREST`).

use std::fmt::Write;

use backend_api::Compute;
use backend_api::expr::{Binary, Instruction, Specialization, Store, Task, Type, Unary, Value};
use backend_api::kernel::Function;

use crate::kernel::launch::codegen::{called, function};

/// Maximal number of literals as parameters, so that programs with other literals share their kernels.
pub(super) const LITERALS_MAX: usize = 16;

/// A program, specialised for one task and one layout of its sources.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Shape {
    program: Specialization,
    literals_used: usize,
    /// Stride, and common divisor of the addresses of all elements: at most 8.
    layouts: Vec<(u64, u64)>,
    /// For each distinct function, true if its loops read a clock.
    is_limited: Vec<bool>,
}

/// Name of a type in OpenCL C.
pub(in crate::kernel) fn name(of: Type) -> &'static str {
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
pub(in crate::kernel) fn unsigned_name(bytes: u32) -> &'static str {
    match bytes {
        1 => "uchar",
        2 => "ushort",
        4 => "uint",
        _ => "ulong",
    }
}

/// Unsigned type for computations with integers of a type.
fn unsigned(of: Type) -> &'static str {
    if of.bytes() == 8 { "ulong" } else { "uint" }
}

/// Converts an unsigned number to an integer type: its low bits.
pub(in crate::kernel) fn whole(of: Type, unsigned: &str) -> String {
    let name = name(of);
    if of.is_signed() { format!("as_{name}((u{name})({unsigned}))") } else { format!("({name})({unsigned})") }
}

impl Shape {
    /// Returns the shape of a request for a device whose kernels read a clock or not, and its literals.
    pub fn new(compute: &Compute<'_>, has_clock: bool) -> (Self, Vec<u64>) {
        let (mut program, literals) = Specialization::new(compute, LITERALS_MAX);
        if let Task::Extremes { least, greatest, .. } = &mut program.task {
            // One kernel finds both extremes.
            (*least, *greatest) = (true, true);
        }
        let layout = |source: &backend_api::Elements<'_>| {
            (source.stride, 1 << (source.start.offset() | source.stride | 8).trailing_zeros())
        };
        let layouts = compute.sources.iter().map(layout).collect();
        let mut shape = Self { program, literals_used: literals.len(), layouts, is_limited: Vec::new() };
        let is_limited = |function: &&Function| has_clock && function.time_limit().is_some();
        shape.is_limited = shape.functions().iter().map(is_limited).collect();
        (shape, literals)
    }

    /// Returns true if the code needs `double`, which some devices lack.
    pub fn needs_doubles(&self) -> bool {
        let Specialization { instructions, types, needed, task, .. } = &self.program;
        let calls_doubles = |one: &Instruction| matches!(one, Instruction::Call { function, .. } if function.kernel().needs().f64);
        let sums_floats =
            |task: &Task| matches!(*task, Task::Sum { value, .. } if self.program.of(value).is_float());
        types.iter().zip(needed).any(|(of, needed)| *needed && *of == Type::F64)
            || sums_floats(task)
            || instructions.iter().any(calls_doubles)
    }

    /// The functions whose loops read a clock, each with its index.
    pub fn limited(&self) -> Vec<(usize, &Function)> {
        let functions = self.functions().into_iter().enumerate();
        functions.filter(|(number, _)| self.is_limited[*number]).collect()
    }

    /// Distinct functions that it calls.
    fn functions(&self) -> Vec<&Function> {
        let mut functions: Vec<&Function> = Vec::new();
        for instruction in &self.program.instructions {
            if let Instruction::Call { function, .. } = instruction
                && !functions.contains(&function)
            {
                functions.push(function);
            }
        }
        functions
    }

    /// The generated OpenCL C, which comes before the text of `kernels/compute.cl`.
    pub fn text(&self) -> String {
        let mut text = String::from("#pragma OPENCL FP_CONTRACT OFF\n");
        let functions = self.functions();
        for (number, of) in functions.iter().enumerate() {
            text.push_str(&function(number, of, self.is_limited[number]));
        }
        let mut line = |words: String| {
            // Writing to a string never fails.
            let _ = writeln!(text, "{words}");
        };
        let (mut parameters, mut list) = (String::new(), String::new());
        for source in 0..self.layouts.len() {
            let _ = write!(parameters, "Bytes s{source}, ulong o{source}, ");
            let _ = write!(list, "s{source}, o{source}, ");
        }
        for literal in 0..self.literals_used {
            let _ = write!(parameters, "ulong l{literal}, ");
            let _ = write!(list, "l{literal}, ");
        }
        for (at, (number, _)) in self.limited().into_iter().enumerate() {
            if at == 0 {
                parameters.push_str("__global volatile uint *late, __global const volatile uint *ticks, ");
                list.push_str("late, ticks, ");
            }
            let _ = write!(parameters, "uint limit{number}, ");
            let _ = write!(list, "limit{number}, ");
        }
        line(format!("#define SOURCES {parameters}ulong first, ulong channel"));
        line(format!("#define SOURCE_LIST {list}first, channel"));
        line(format!("#define BINS_MAX {}", Compute::BINS_MAX));
        let (task, filter) = (&self.program.task, self.program.task.filter());
        let value = task.value().map(|value| self.program.of(value));
        line(format!("#define VALUE {}", value.map_or("uint", name)));
        line(
            match task {
                Task::Find { .. } => "#define TASK_FIND",
                Task::Sum { .. } if value.is_some_and(Type::is_float) => {
                    "#define TASK_SUM\n#define SUM_OF_FLOATS"
                }
                Task::Sum { .. } if value.is_some_and(|of| of.bytes() == 8) => {
                    "#define TASK_SUM\n#define WIDE"
                }
                Task::Sum { .. } => "#define TASK_SUM",
                Task::Extremes { .. } => "#define TASK_EXTREMES",
                Task::Histogram { .. } => "#define TASK_HISTOGRAM",
                Task::Store { .. } => "#define TASK_STORE",
            }
            .into(),
        );
        let is_extremes = matches!(task, Task::Extremes { .. });
        if let (true, Some(of)) = (is_extremes, value) {
            line(key_function(of));
        }
        let stores = if let Task::Store { stores, .. } = task { Some(stores) } else { None };
        line(match stores {
            Some(_) => "static inline void store(SOURCES, ulong i) {".into(),
            None => "static inline bool evaluate(SOURCES, ulong i, VALUE *value) {".into(),
        });
        let Specialization { instructions, types, needed, .. } = &self.program;
        for (at, instruction) in instructions.iter().enumerate().filter(|(at, _)| needed[*at]) {
            let expression = self.expression(at, instruction, &functions);
            line(format!("    {} v{at} = {expression};", name(types[at])));
        }
        let kept = filter.map_or("1".into(), |filter| format!("v{}", filter.0));
        if let Some(stores) = stores {
            if !self.limited().is_empty() {
                // Calls have returned early, so elements keep their old values.
                line("    if (late[2] >> 31) return;".into());
            }
            line(format!("    if (!{kept}) return;"));
            for store in stores {
                line(self.store(store));
            }
        } else {
            let name = task.value().map_or("0".into(), |value| format!("v{}", value.0));
            line(format!("    *value = {name};"));
            // A NaN never is an extreme.
            if is_extremes && value.is_some_and(Type::is_float) {
                line(format!("    return {kept} && {name} == {name};"));
            } else {
                line(format!("    return {kept};"));
            }
        }
        line("}".into());
        text
    }

    fn expression(&self, at: usize, instruction: &Instruction, functions: &[&Function]) -> String {
        let v = |value: Value| format!("v{}", value.0);
        match *instruction {
            Instruction::Field { source, offset, of } => self.load(usize::from(source), offset, of),
            Instruction::Literal { of, bits } => {
                let bits = self.program.literals[at]
                    .map_or_else(|| format!("0x{bits:X}ul"), |place| format!("l{place}"));
                match of {
                    Type::F32 => format!("as_float((uint){bits})"),
                    Type::F64 => format!("as_double({bits})"),
                    of => whole(of, &bits),
                }
            }
            Instruction::Index => {
                let Specialization { page_len, channels, .. } = self.program;
                format!(
                    "((first + i) / {page_len}ul * {channels}ul + channel) * {page_len}ul + (first + i) % {page_len}ul"
                )
            }
            Instruction::Unary { op, of: a } => unary(op, self.program.of(a), &v(a)),
            Instruction::Binary { op, left, right } => binary(op, self.program.of(left), &v(left), &v(right)),
            Instruction::Select { condition, yes, no } => {
                format!("{} ? {} : {}", v(condition), v(yes), v(no))
            }
            Instruction::Cast { of: a, to } => cast(self.program.of(a), to, &v(a)),
            Instruction::Fma { a, b, c } => format!("fma({}, {}, {})", v(a), v(b), v(c)),
            Instruction::Call { ref function, ref arguments } => {
                let number = functions.iter().position(|known| *known == function).unwrap_or(0);
                let mut arguments: Vec<String> = arguments.iter().map(|value| v(*value)).collect();
                if self.is_limited.get(number) == Some(&true) {
                    arguments.push(format!("late, ticks, limit{number}, first + i"));
                }
                format!("{}({})", called(number), arguments.join(", "))
            }
        }
    }

    fn place(&self, source: usize, offset: u32) -> String {
        let (stride, _) = self.layouts[source];
        format!("(s{source} + o{source} + i * {stride}ul + {offset})")
    }

    fn is_aligned(&self, source: usize, offset: u32, of: Type) -> bool {
        let (_, align) = self.layouts[source];
        (align | u64::from(offset)).is_multiple_of(of.bytes().into())
    }

    fn load(&self, source: usize, offset: u32, of: Type) -> String {
        let (place, name) = (self.place(source, offset), name(of));
        if self.is_aligned(source, offset, of) {
            return format!("*(__global const {name} *){place}");
        }
        format!("as_{name}(vload{}(0, (__global const uchar *){place}))", of.bytes())
    }

    fn store(&self, store: &Store) -> String {
        let (of, source) = (self.program.of(store.value), usize::from(store.source));
        let (place, name, value) = (self.place(source, store.offset), name(of), store.value.0);
        if self.is_aligned(source, store.offset, of) {
            return format!("    *(__global {name} *){place} = v{value};");
        }
        let bytes = of.bytes();
        format!("    vstore{bytes}(as_uchar{bytes}(v{value}), 0, {place});")
    }
}

pub(in crate::kernel) fn unary(op: Unary, of: Type, a: &str) -> String {
    let (name, unsigned) = (name(of), unsigned(of));
    let own = unsigned_name(of.bytes());
    // `ctz` needs OpenCL 2.0; the number of trailing zeros equals the number of bits in `~a & (a - 1)`.
    let count = |bits: String| whole(of, &format!("(uint){bits}"));
    // PoCL (3.1) converts to an integer and back, which is undefined for a constant NaN or a large constant.
    // Larger numbers than this are whole.
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
        // Standard functions, whose error OpenCL bounds; the errors of native ones are unspecified.
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

pub(in crate::kernel) fn binary(op: Binary, of: Type, a: &str, b: &str) -> String {
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

pub(in crate::kernel) fn cast(from: Type, to: Type, a: &str) -> String {
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

/// As [`Type::key`], from the bits of floats alone, because some devices flush subnormal operands to zero.
fn key_function(of: Type) -> String {
    let body = match of {
        Type::F32 => {
            "uint bits = as_uint(value); bits = bits << 1 ? bits : 0u; return bits >> 31 ? (uint)~bits : bits | 0x80000000u;".into()
        }
        Type::F64 => {
            "ulong bits = as_ulong(value); bits = bits << 1 ? bits : 0ul; return bits >> 63 ? ~bits : bits | 0x8000000000000000ul;"
                .into()
        }
        of if of.is_signed() => {
            let (mask, top) = (of.mask(), 1_u64 << (8 * of.bytes() - 1));
            format!("return ((ulong)value & 0x{mask:X}ul) ^ 0x{top:X}ul;")
        }
        _ => "return (ulong)value;".to_owned(),
    };
    format!("static inline ulong key_of(VALUE value) {{ {body} }}")
}
