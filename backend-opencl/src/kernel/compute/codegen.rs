//! Code generator: translates expression programs to OpenCL C. The module [`text`](crate::kernel::text)
//! writes the arithmetic.

use std::fmt::Write;

use backend_api::Compute;
use backend_api::expr::{FieldStore, Specialization, Task, Type};
use backend_api::kernel::{Op, Reg, ScalarFunction};

use crate::kernel::launch::codegen::{called, function};
use crate::kernel::text::{from_bits, index, name, unsigned_name, value_of};

/// Maximum number of literals that are kernel parameters: programs that differ only in them share kernels.
pub(super) const LITERALS_MAX: usize = 16;

/// A program, specialised for one task and one layout of its sources.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct SpecializedProgram {
    program: Specialization,
    literals_used: usize,
    pub comparison: Option<Comparison>,
    /// For each source, its stride, and the greatest common divisor of its elements' addresses: at most 8.
    layouts: Vec<(u64, u64)>,
    /// For each distinct function, true if its loops read a clock.
    is_limited: Vec<bool>,
}

/// The comparison of a field with a value. The field's location, its length and the value are parameters. So
/// all searches for fields of one alignment share their code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Comparison {
    /// Index of the comparison in the program's list of operations.
    at: usize,
    pub source: usize,
    /// Length in bytes of the words that the kernel compares.
    word: u64,
    /// True if the compared field is longer than one word.
    pub is_long: bool,
    /// Length of the field in bytes, if the search compares whole elements only. Kernels then load several
    /// elements as a vector.
    pub packed: Option<u64>,
}

impl SpecializedProgram {
    /// Returns the cache key of the kernel for a request, and the request's literals. `has_clock` is true if
    /// kernels of the device can read a clock.
    pub fn new(compute: &Compute<'_>, has_clock: bool) -> (Self, Vec<u64>) {
        let (mut program, literals) = Specialization::new(compute, LITERALS_MAX);
        if let Task::Extremes { least, greatest, .. } = &mut program.task {
            // One kernel finds both the minimum and the maximum, so both requests have the same cache key.
            (*least, *greatest) = (true, true);
        }
        let layout = |source: &backend_api::Elements<'_>| {
            (source.stride, 1 << (source.start.offset() | source.stride | 8).trailing_zeros())
        };
        let mut layouts: Vec<_> = compute.sources.iter().map(layout).collect();
        let comparison = compute.program.field_equals().filter(|(at, ..)| program.needed[*at]);
        let comparison = comparison.map(|(at, source, offset, value)| {
            let (elements, bytes) = (&compute.sources[source], value.len() as u64);
            let is_find = matches!(program.task, Task::Find { .. });
            let is_alone = matches!(program.task, Task::Find { predicate } if predicate.at() == at);
            let start = elements.start.offset();
            let fits = matches!(bytes, 1 | 2 | 4 | 8 | 16) && elements.stride == bytes;
            let is_packed = is_alone && fits && start.is_multiple_of(bytes);
            let aligned = 1 << (start | u64::from(offset) | elements.stride | 8).trailing_zeros();
            let word = u64::min(aligned, 1 << bytes.ilog2());
            let reads = |op: &Op| matches!(op, Op::Load { view, .. } if usize::from(*view) == source);
            if is_find && !program.ops.iter().any(reads) {
                // The code for this comparison does not depend on the layout, so all layouts share one key.
                layouts[source] = (0, 1);
            }
            Comparison { at, source, word, is_long: bytes > word, packed: is_packed.then_some(bytes) }
        });
        let mut shape =
            Self { program, literals_used: literals.len(), comparison, layouts, is_limited: Vec::new() };
        let is_limited = |function: &&ScalarFunction| has_clock && function.time_limit().is_some();
        shape.is_limited = shape.program.functions().iter().map(is_limited).collect();
        (shape, literals)
    }

    /// Returns true if the code needs the type `double`, which some devices lack.
    pub fn needs_doubles(&self) -> bool {
        let Specialization { types, needed, task, .. } = &self.program;
        let sums_floats =
            |task: &Task| matches!(*task, Task::Sum { value, .. } if self.program.of(value).is_float());
        types.iter().zip(needed).any(|(of, needed)| *needed && *of == Type::F64)
            || sums_floats(task)
            || self.program.functions().iter().any(|function| function.kernel().needs().f64)
    }

    /// Returns the functions with a time limit, whose loops read a clock, each with its index.
    pub fn limited(&self) -> Vec<(usize, &ScalarFunction)> {
        let functions = self.program.functions().into_iter().enumerate();
        functions.filter(|(number, _)| self.is_limited[*number]).collect()
    }

    /// Returns the generated OpenCL C code, which is compiled before the text of `kernels/compute.cl`.
    pub fn text(&self) -> String {
        let mut text = String::from("#pragma OPENCL FP_CONTRACT OFF\n");
        let functions = self.program.functions();
        for (number, of) in functions.iter().enumerate() {
            text.push_str(&function(number, of, self.is_limited[number]));
        }
        let mut line = |words: String| {
            // Writing to a string never fails.
            let _ = writeln!(text, "{words}");
        };
        let (parameters, list) = self.parameters();
        line(format!("#define SOURCES {parameters}ulong first, ulong channel"));
        line(format!("#define SOURCE_LIST {list}first, channel"));
        line(format!("#define BINS_MAX {}", Compute::BINS_MAX));
        if let Some(Comparison { at, source, word, packed, .. }) = self.comparison {
            line(field_equals(word));
            let [low, high] = [0, 1].map(|part| self.program.literals[at].unwrap_or(0) + part);
            if let Some(bytes) = packed {
                line(format!("#define PACKED {bytes}\n#define PACKED_SOURCE (s{source} + o{source})"));
                line(format!("#define PACKED_VALUE as_uint4((ulong2)(l{low}, l{high}))"));
            }
        }
        let (task, filter) = (&self.program.task, self.program.task.filter());
        let value = task.value().map(|value| self.program.of(value));
        line(format!("#define VALUE {}", value.map_or("uint", name)));
        line(task_macros(task, value).into());
        let is_extremes = matches!(task, Task::Extremes { .. });
        if let (true, Some(of)) = (is_extremes, value) {
            line(key_function(of));
        }
        let stores = if let Task::Store { stores, .. } = task { Some(stores) } else { None };
        line(match stores {
            Some(_) => "static inline void store(SOURCES, ulong i) {".into(),
            None => "static inline bool evaluate(SOURCES, ulong i, VALUE *value) {".into(),
        });
        let Specialization { ops, types, needed, .. } = &self.program;
        for (at, op) in ops.iter().enumerate().filter(|(at, _)| needed[*at]) {
            let expression = self.expression(at, op, &functions);
            line(format!("    {} v{at} = {expression};", name(types[at])));
        }
        let kept = filter.map_or("1".into(), |filter| format!("v{}", filter.0));
        if let Some(stores) = stores {
            if !self.limited().is_empty() {
                // If a function call exceeded its time limit, store nothing: the element keeps its old value.
                line("    if (late[2] >> 31) return;".into());
            }
            line(format!("    if (!{kept}) return;"));
            for store in stores {
                line(self.store(store));
            }
        } else {
            let name = task.value().map_or("0".into(), |value| format!("v{}", value.0));
            line(format!("    *value = {name};"));
            // Exclude NaNs, because a NaN is never a minimum or maximum.
            if is_extremes && value.is_some_and(Type::is_float) {
                line(format!("    return {kept} && {name} == {name};"));
            } else {
                line(format!("    return {kept};"));
            }
        }
        line("}".into());
        text
    }

    /// Returns the parameters of the functions as a list of declarations, and as a list of names.
    fn parameters(&self) -> (String, String) {
        let (mut parameters, mut list) = (String::new(), String::new());
        for source in 0..self.layouts.len() {
            let _ = write!(parameters, "Bytes s{source}, ulong o{source}, ");
            let _ = write!(list, "s{source}, o{source}, ");
        }
        for literal in 0..self.literals_used {
            let _ = write!(parameters, "ulong l{literal}, ");
            let _ = write!(list, "l{literal}, ");
        }
        if let Some(comparison) = self.comparison {
            parameters.push_str("ulong field_offset, ulong field_stride, uint field_bytes, ");
            list.push_str("field_offset, field_stride, field_bytes, ");
            if comparison.is_long {
                parameters.push_str("ConstBytes value_bytes, ");
                list.push_str("value_bytes, ");
            }
        }
        for (at, (number, _)) in self.limited().into_iter().enumerate() {
            if at == 0 {
                parameters.push_str("__global volatile uint *late, __global const volatile uint *ticks, ");
                list.push_str("late, ticks, ");
            }
            let _ = write!(parameters, "uint limit{number}, ");
            let _ = write!(list, "limit{number}, ");
        }
        (parameters, list)
    }

    fn expression(&self, at: usize, op: &Op, functions: &[&ScalarFunction]) -> String {
        let Specialization { types, literals, page_len, channels, .. } = &self.program;
        let v = |value: Reg| format!("v{}", value.0);
        match *op {
            Op::Load { view, offset, of, .. } => self.load(usize::from(view), offset, of.value()),
            Op::FieldEquals { view, .. } => {
                let value = self.comparison.filter(|comparison| comparison.is_long);
                let (value, first) = (value.map_or("0", |_| "value_bytes"), literals[at].unwrap_or(0));
                let place = format!("s{view} + o{view} + field_offset + i * field_stride");
                format!("field_equals({place}, l{first}, {value}, field_bytes)")
            }
            Op::Literal { bits, .. } => {
                let bits = literals[at].map_or_else(|| format!("0x{bits:X}ul"), |place| format!("l{place}"));
                from_bits(types[at], &bits)
            }
            Op::Call { ref function, ref arguments, .. } => {
                let number = functions.iter().position(|known| *known == function).unwrap_or(0);
                let mut arguments: Vec<String> = arguments.iter().map(|value| v(*value)).collect();
                if self.is_limited.get(number) == Some(&true) {
                    arguments.push(format!("late, ticks, limit{number}, first + i"));
                }
                format!("{}({})", called(number), arguments.join(", "))
            }
            _ => {
                value_of(op, |value| types[value.at()], v).unwrap_or_else(|| index("i", *page_len, *channels))
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

    fn store(&self, store: &FieldStore) -> String {
        let (of, source) = (self.program.of(store.value), usize::from(store.source));
        let (place, name, value) = (self.place(source, store.offset), name(of), store.value.0);
        if self.is_aligned(source, store.offset, of) {
            return format!("    *(__global {name} *){place} = v{value};");
        }
        let bytes = of.bytes();
        format!("    vstore{bytes}(as_uchar{bytes}(v{value}), 0, {place});")
    }
}

/// Returns the OpenCL C function that compares a field word by word, up to the first difference.
fn field_equals(word: u64) -> String {
    let of = unsigned_name(word as u32);
    format!(
        "static inline bool field_equals(ConstBytes at, ulong first, ConstBytes value, uint bytes) {{
    if (*(__global const {of} *)at != ({of})first) return false;
    uint j = {word};
    for (; j + {word} <= bytes; j += {word})
        if (*(__global const {of} *)(at + j) != *(__global const {of} *)(value + j)) return false;
    for (; j < bytes; j++)
        if (at[j] != value[j]) return false;
    return true;
}}"
    )
}

/// Returns the OpenCL C function for [`Type::key`]. It uses only the bits of floats, because some devices
/// flush subnormal operands to zero.
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

/// Returns the macros that select a task's kernels, given the type of its value.
fn task_macros(task: &Task, value: Option<Type>) -> &'static str {
    match task {
        Task::Find { .. } => "#define TASK_FIND",
        Task::Sum { .. } if value.is_some_and(Type::is_float) => "#define TASK_SUM\n#define SUM_OF_FLOATS",
        Task::Sum { .. } if value.is_some_and(|of| of.bytes() == 8) => "#define TASK_SUM\n#define WIDE",
        Task::Sum { .. } => "#define TASK_SUM",
        Task::Extremes { .. } => "#define TASK_EXTREMES",
        Task::Histogram { .. } => "#define TASK_HISTOGRAM",
        Task::Store { .. } => "#define TASK_STORE",
    }
}
