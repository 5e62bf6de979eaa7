//! Kernels of the program as OpenCL C.
//!
//! Registers are variables, loops are `for (;;)`, and what leaves more than the innermost loop is a `goto`
//! forwards. Arithmetic is that of expressions: see `compute::codegen`.
//!
//! Buffers have no addresses that could lie in memory: the pieces that a view touches are arguments, and an
//! access selects its piece by comparisons. A field that may lie across two pieces is read and written byte
//! by byte.

use std::fmt::Write;

use backend_api::kernel::{Access, Body, Kernel, Memory, Op, Reg, Type, Unary, Where};

use crate::kernel::compute::codegen::{binary, cast, name, unary, whole};

/// What decides the code of a kernel; all else are its arguments.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Shape {
    pub kernel: Kernel,
    pub views: Vec<ViewShape>,
    /// Of the geometry, if the kernel asks for indices; else 1.
    pub page_len: u64,
    pub channels: u64,
    pub has_budget: bool,
}

/// The form of a view.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ViewShape {
    pub stride: u64,
    /// What divides the place of every element: at most 8.
    pub align: u64,
    pub page_len: u64,
    /// Of each base, how many pieces it touches, and log2 of their length.
    pub bases: Vec<(usize, u32)>,
}

impl Shape {
    /// Whether the kernel asks for its items' indices.
    pub fn needs_index(body: &Body) -> bool {
        let mut needs = false;
        body.operations(|_, op| needs |= matches!(op, Op::Where { what: Where::Index, .. }));
        needs
    }

    /// The kernel under a name.
    pub fn text(&self, called: &str) -> String {
        let mut writer = Writer {
            shape: self,
            body: self.kernel.body(),
            text: String::new(),
            indent: 2,
            site: 0,
            labels: Vec::new(),
        };
        writer.kernel(called);
        writer.text
    }
}

/// A block or loop around the code that is written.
struct Label {
    site: u32,
    is_loop: bool,
    /// Whether something goes to its end, or to its back edge, by name.
    leaves: bool,
    continues: bool,
}

struct Writer<'a> {
    shape: &'a Shape,
    body: &'a Body,
    text: String,
    indent: usize,
    site: u32,
    labels: Vec<Label>,
}

/// A value of a type from its bits, an expression without a sign.
fn from_bits(of: Type, bits: &str) -> String {
    match of {
        Type::F32 => format!("as_float((uint)({bits}))"),
        Type::F64 => format!("as_double((ulong)({bits}))"),
        of => whole(of, bits),
    }
}

/// The bits of a value, without a sign and as wide as the type.
fn to_bits(of: Type, value: &str) -> String {
    format!("as_{}({value})", unsigned_name(of.bytes()))
}

fn unsigned_name(bytes: u32) -> &'static str {
    match bytes {
        1 => "uchar",
        2 => "ushort",
        4 => "uint",
        _ => "ulong",
    }
}

fn r(register: Reg) -> String {
    format!("r{}", register.0)
}

fn more_unary(op: Unary, of: Type, a: &str) -> String {
    let (name, unsigned) = (name(of), unsigned_name(of.bytes()));
    // `ctz` came with OpenCL 2.0: below the lowest bit there are as many as in `~a & (a - 1)`.
    let count = |bits: String| whole(of, &format!("(uint){bits}"));
    match op {
        Unary::Neg => unary(backend_api::expr::Unary::Neg, of, a),
        Unary::Abs => unary(backend_api::expr::Unary::Abs, of, a),
        Unary::Not => unary(backend_api::expr::Unary::Not, of, a),
        Unary::Sqrt if of == Type::F32 => format!("root({a})"),
        Unary::Sqrt => format!("sqrt({a})"),
        Unary::Floor => format!("floor({a})"),
        Unary::Ceil => format!("ceil({a})"),
        Unary::Trunc => format!("trunc({a})"),
        Unary::RoundEven => format!("rint({a})"),
        Unary::CountOnes => count(format!("popcount(({unsigned}){a})")),
        Unary::LeadingZeros => count(format!("clz(({unsigned}){a})")),
        Unary::TrailingZeros => {
            count(format!("popcount(({unsigned})(~({unsigned}){a} & (({unsigned}){a} - 1)))"))
        }
        Unary::ReverseBits => {
            let up = 64 - 8 * of.bytes();
            format!("as_{name}(({unsigned})(reversed((ulong)({unsigned}){a}) >> {up}))")
        }
    }
}

impl Writer<'_> {
    fn line(&mut self, words: &str) {
        let indent = 4 * self.indent.min(20);
        // To a string: never fails.
        let _ = writeln!(self.text, "{:indent$}{words}", "");
    }

    fn of(&self, register: Reg) -> Type {
        self.body.registers[register.at()]
    }

    fn kernel(&mut self, called: &str) {
        let mut parameters = Vec::new();
        for (view, shape) in self.shape.views.iter().enumerate() {
            for (base, (pieces, _)) in shape.bases.iter().enumerate() {
                parameters.extend((0..*pieces).map(|piece| format!("Bytes v{view}b{base}p{piece}")));
                parameters.push(format!("ulong v{view}b{base}o"));
            }
            parameters.push(format!("ulong v{view}n"));
        }
        parameters.extend((0..self.body.params.len()).map(|number| format!("ulong p{number}")));
        if !self.body.tables.is_empty() {
            parameters.push("ConstBytes tables".into());
        }
        parameters.extend(["items", "first", "channel", "budget"].map(|name| format!("ulong {name}")));
        parameters.push("__global volatile uint *report".into());
        for (view, shape) in self.shape.views.iter().enumerate() {
            self.places(view, shape);
        }
        self.indent = 0;
        self.line(&format!("KERNEL void {called}({}) {{", parameters.join(", ")));
        self.indent = 1;
        self.line("for (ulong item = get_global_id(0); item < items; item += get_global_size(0)) {");
        self.indent = 2;
        self.line("uint failed = 0u, site = 0u;");
        self.line("ulong detail = 0ul;");
        if self.shape.has_budget {
            self.line("ulong turns = 0ul;");
        }
        for (number, of) in self.body.registers.iter().enumerate() {
            self.line(&format!("{} r{number} = 0;", name(*of)));
        }
        for (number, array) in self.body.arrays.iter().enumerate() {
            self.line(&format!("{} a{number}[{}] = {{0}};", name(array.of), array.len));
        }
        // Else drivers say that it is not used.
        let body = self.body;
        self.code(&body.code);
        if self.text.contains("goto over;") {
            self.line("over:;");
        }
        self.line("if (failed)");
        self.line("    report_failure(report, site, detail, item);");
        self.indent = 1;
        self.line("}");
        self.indent = 0;
        self.line("}");
        for view in 0..self.shape.views.len() {
            self.line(&format!("#undef PLACE_{view}"));
        }
    }

    /// `PLACE_view(base, at)`: where byte `at` of a base is.
    fn places(&mut self, view: usize, shape: &ViewShape) {
        let mut all = String::new();
        for (base, (pieces, shift)) in shape.bases.iter().enumerate() {
            let at = format!("((at) + v{view}b{base}o)");
            let piece = |piece: usize| format!("v{view}b{base}p{piece}");
            let place = match pieces {
                0 => continue,
                1 => format!("({} + {at})", piece(0)),
                _ => {
                    let mut selected = String::new();
                    for number in 0..pieces - 1 {
                        let _ = write!(selected, "{at} >> {shift} == {number} ? {} : ", piece(number));
                    }
                    format!("(({selected}{}) + ({at} & ((1ul << {shift}) - 1)))", piece(pieces - 1))
                }
            };
            if all.is_empty() {
                all = place;
            } else {
                all = format!("((base) == {base} ? {place} : {all})");
            }
        }
        if all.is_empty() {
            // No element is there to be reached.
            all = "((Bytes)0)".into();
        }
        self.indent = 0;
        self.line(&format!("#define PLACE_{view}(base, at) {all}"));
    }

    fn code(&mut self, code: &[Op]) {
        for op in code {
            let site = self.site;
            self.site += 1;
            match op {
                Op::If { when, then, otherwise } => {
                    self.line(&format!("if ({}) {{", r(*when)));
                    self.within(then);
                    if !otherwise.is_empty() {
                        self.line("} else {");
                        self.within(otherwise);
                    }
                    self.line("}");
                }
                Op::Block { body } => {
                    self.line("{");
                    self.labelled(site, false, body);
                }
                Op::Loop { body } => {
                    self.line("for (;;) {");
                    self.labelled(site, true, body);
                }
                Op::Break { out } => self.jump(*out, false),
                Op::Continue { out } => self.jump(*out, true),
                _ => self.step(site, op),
            }
        }
    }

    fn within(&mut self, code: &[Op]) {
        self.indent += 1;
        self.code(code);
        self.indent -= 1;
    }

    fn labelled(&mut self, site: u32, is_loop: bool, body: &[Op]) {
        self.labels.push(Label { site, is_loop, leaves: false, continues: false });
        self.within(body);
        let Some(label) = self.labels.pop() else { return };
        if label.continues {
            self.line(&format!("    again_{site}:;"));
        }
        if is_loop && self.shape.has_budget {
            self.line("    if (turns++ >= budget) {");
            self.line(&format!("        FAIL({site}u, budget)"));
            self.line("        goto over;");
            self.line("    }");
        }
        self.line("}");
        if label.leaves {
            self.line(&format!("after_{site}:;"));
        }
    }

    fn jump(&mut self, out: u16, again: bool) {
        let target = self.labels.len() - 1 - usize::from(out);
        // The innermost loop of C: blocks are none.
        let is_innermost = self.labels[target..].iter().filter(|label| label.is_loop).count() == 1;
        let label = &mut self.labels[target];
        let by_name = !(label.is_loop && is_innermost) || (again && self.shape.has_budget);
        let site = label.site;
        let words = match (by_name, again) {
            (false, false) => "break;".into(),
            (false, true) => "continue;".into(),
            (true, false) => {
                label.leaves = true;
                format!("goto after_{site};")
            }
            (true, true) => {
                label.continues = true;
                format!("goto again_{site};")
            }
        };
        self.line(&words);
    }

    fn step(&mut self, site: u32, op: &Op) {
        let value = match *op {
            Op::Literal { to, bits } => from_bits(self.of(to), &format!("0x{bits:X}ul")),
            Op::Param { to, number } => from_bits(self.of(to), &format!("p{number}")),
            Op::Where { what, .. } => match what {
                Where::Index => {
                    let Shape { page_len, channels, .. } = self.shape;
                    format!(
                        "((first + item) / {page_len}ul * {channels}ul + channel) * {page_len}ul + (first + item) % {page_len}ul"
                    )
                }
                Where::Live => "1u".into(),
                // Those of groups are refused.
                _ => "item".into(),
            },
            Op::Copy { of, .. } => r(of),
            Op::Unary { op, of, .. } => more_unary(op, self.of(of), &r(of)),
            Op::Binary { op, left, right, .. } => binary(op, self.of(left), &r(left), &r(right)),
            Op::MulHigh { left, right, .. } => format!("mul_hi({}, {})", r(left), r(right)),
            Op::Fma { a, b, c, .. } => format!("fma({}, {}, {})", r(a), r(b), r(c)),
            Op::Select { when, yes, no, .. } => format!("{} ? {} : {}", r(when), r(yes), r(no)),
            Op::Cast { to, of } => cast(self.of(of), self.of(to), &r(of)),
            Op::Bits { to, of } => format!("as_{}({})", name(self.of(to)), r(of)),
            Op::Load { to, view, at, offset, of } => {
                return self.load(site, to, (view, at), offset, of);
            }
            Op::Store { view, at, offset, of, value } => {
                return self.store(site, (view, at), offset, of, value);
            }
            Op::Lookup { to, table, at } => return self.lookup(site, to, usize::from(table), at),
            Op::Get { to, array, at } => {
                let (len, to) = (self.body.arrays[usize::from(array)].len, r(to));
                let at = r(at);
                return self.checked(
                    &format!("{at} < {len}ul"),
                    &[format!("{to} = a{array}[{at}];")],
                    (site, &at, Some(&to)),
                );
            }
            Op::Put { array, at, value } => {
                let (len, at) = (self.body.arrays[usize::from(array)].len, r(at));
                let put = format!("a{array}[{at}] = {};", r(value));
                return self.checked(&format!("{at} < {len}ul"), &[put], (site, &at, None));
            }
            Op::Fail { detail, .. } => return self.line(&format!("FAIL({site}u, {})", r(detail))),
            // Refused before, or written by `code`.
            Op::Atomic { .. }
            | Op::Reserve { .. }
            | Op::Arena { .. }
            | Op::ArenaLoad { .. }
            | Op::ArenaStore { .. }
            | Op::If { .. }
            | Op::Block { .. }
            | Op::Loop { .. }
            | Op::Break { .. }
            | Op::Continue { .. }
            | Op::Barrier
            | Op::Across { .. } => return,
        };
        if let Some(to) = op.written() {
            self.line(&format!("{} = {value};", r(to)));
        }
    }

    /// What is done if an index is inside; else it is a failure, and a register gets 0.
    fn checked(&mut self, inside: &str, then: &[String], (site, at, to): (u32, &str, Option<&str>)) {
        self.line(&format!("if ({inside}) {{"));
        for line in then {
            self.line(&format!("    {line}"));
        }
        self.line("} else {");
        self.line(&format!("    FAIL({site}u, {at})"));
        if let Some(to) = to {
            self.line(&format!("    {to} = 0;"));
        }
        self.line("}");
    }

    /// Whether an element is there, and code that finds the field: `base` and `byte`.
    fn field(&self, view: u16, at: &str, offset: u32) -> (String, Vec<String>) {
        let shape = &self.shape.views[usize::from(view)];
        let (inside, element) = match self.body.views[usize::from(view)].access {
            Access::Write { tile } => {
                let element = format!("(item * {tile}ul + {at})");
                (format!("{at} < {tile}ul && {element} < v{view}n"), element)
            }
            Access::Read | Access::Atomic => (format!("{at} < v{view}n"), at.to_owned()),
        };
        let (stride, bases, page_len) = (shape.stride, shape.bases.len(), shape.page_len);
        let find = if bases == 1 && page_len == 1 << 63 {
            vec![format!("const uint base = 0u; const ulong byte = {element} * {stride}ul + {offset}ul;")]
        } else {
            vec![
                format!("const ulong element = {element}, page = element / {page_len}ul;"),
                format!("const uint base = (uint)(page % {bases}ul);"),
                format!(
                    "const ulong byte = (page / {bases}ul * {page_len}ul + element % {page_len}ul) * {stride}ul + {offset}ul;"
                ),
            ]
        };
        (inside, find)
    }

    /// Whether a field begins at a multiple of its length, and whether it may lie across two pieces.
    fn lies(&self, view: u16, offset: u32, bytes: u32) -> (bool, bool) {
        let shape = &self.shape.views[usize::from(view)];
        let is_aligned = (shape.align | u64::from(offset)).is_multiple_of(bytes.into());
        (is_aligned, !is_aligned && shape.bases.iter().any(|(pieces, _)| *pieces > 1))
    }

    fn load(&mut self, site: u32, to: Reg, (view, at): (u16, Reg), offset: u32, of: Memory) {
        let (at, bytes, place) = (r(at), of.bytes(), format!("PLACE_{view}(base, byte)"));
        let unsigned = unsigned_name(bytes);
        let (inside, mut then) = self.field(view, &at, offset);
        let bits = match self.lies(view, offset, bytes) {
            (true, _) => format!("*(__global const {unsigned} *){place}"),
            (false, false) => format!("as_{unsigned}(vload{bytes}(0, (ConstBytes){place}))"),
            (false, true) => {
                let byte = |k: u32| format!("(ulong)*PLACE_{view}(base, byte + {k}) << {}", 8 * k);
                let all: Vec<String> = (0..bytes).map(byte).collect();
                format!("({unsigned})({})", all.join(" | "))
            }
        };
        then.push(format!("const {unsigned} bits = {bits};"));
        then.push(match of {
            Memory::F16 => format!("{} = half_to_float(bits);", r(to)),
            Memory::Value(of) => format!("{} = as_{}(bits);", r(to), name(of)),
        });
        self.checked(&inside, &then, (site, &at, Some(&r(to))));
    }

    fn store(&mut self, site: u32, (view, at): (u16, Reg), offset: u32, of: Memory, value: Reg) {
        let (at, bytes, place) = (r(at), of.bytes(), format!("PLACE_{view}(base, byte)"));
        let unsigned = unsigned_name(bytes);
        let (inside, mut then) = self.field(view, &at, offset);
        let bits = match of {
            Memory::F16 => format!("float_to_half({})", r(value)),
            Memory::Value(of) => to_bits(of, &r(value)),
        };
        then.push(format!("const {unsigned} bits = {bits};"));
        match self.lies(view, offset, bytes) {
            (true, _) => then.push(format!("*(__global {unsigned} *){place} = bits;")),
            (false, false) => then.push(format!("vstore{bytes}(as_uchar{bytes}(bits), 0, {place});")),
            (false, true) => then.extend(
                (0..bytes).map(|k| format!("*PLACE_{view}(base, byte + {k}) = (uchar)(bits >> {});", 8 * k)),
            ),
        }
        self.checked(&inside, &then, (site, &at, None));
    }

    fn lookup(&mut self, site: u32, to: Reg, table: usize, at: Reg) {
        let decl = self.body.tables[table];
        let (at, begin, unsigned) = (r(at), self.body.table_offset(table), unsigned_name(decl.of.bytes()));
        let bits = format!("((__global const {unsigned} *)(tables + {begin}))[{at}]");
        let then = match decl.of {
            Memory::F16 => format!("{} = half_to_float({bits});", r(to)),
            Memory::Value(of) => format!("{} = as_{}({bits});", r(to), name(of)),
        };
        self.checked(&format!("{at} < {}ul", decl.len), &[then], (site, &at, Some(&r(to))));
    }
}
