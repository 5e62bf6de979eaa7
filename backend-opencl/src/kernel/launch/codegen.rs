//! Code generator: translates kernels of the program to OpenCL C.
//!
//! Registers become variables, and loops become `for (;;)`. A jump out of more than the innermost loop
//! becomes a forward `goto`. The module [`text`](crate::kernel::text) writes the arithmetic.
//!
//! OpenCL 1.2 kernels cannot store addresses of buffers in memory. So the pieces (buffers) of each view are
//! kernel arguments, and an access selects its piece by comparisons. A field that may cross two pieces is
//! accessed byte by byte.
//!
//! For a kernel with groups, an OpenCL work-group has the group's length, and runs several groups in a loop.
//! Subgroup operations use local memory, because sub-groups are an OpenCL extension with a length that
//! depends on the device. On processors one work-item runs a whole group: see [`split`].

mod division;
mod split;

use std::fmt::Write;

use backend_api::kernel::{
    Access, ArrayDecl, Binary, Body, Builtin, Memory, Op, Place, Reg, Rmw, ScalarFunction, Space, SubgroupOp,
    Type, VerifiedKernel,
};

use self::division::{Region, Split};
use crate::kernel::text::{binary, from_bits, index, name, to_bits, unsigned_name, value_of};

/// Cache key of a kernel's code; all other properties of a launch are kernel arguments.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct LaunchKey {
    pub kernel: VerifiedKernel,
    pub views: Vec<ViewShape>,
    /// Page length in elements, and (`channels`) number of memory ranges to which pages go in turn. Both are
    /// 1 if the kernel does not read the indices of its elements.
    pub page_len: u64,
    pub channels: u64,
    pub has_budget: bool,
    /// True if loops read a clock, because of a time limit.
    pub has_time_limit: bool,
    /// True if the device has 64-bit atomic minimum, maximum and bit operations; else the kernel emulates
    /// them by compare-and-swap.
    pub has_wide_atomics: bool,
    /// True if one OpenCL work-item runs all work-items of a group of the kernel.
    pub is_split: bool,
}

/// Layout of a view's elements in memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ViewShape {
    pub stride: u64,
    /// Alignment of the view's elements in bytes: the greatest common divisor of their offsets, at most 8.
    pub align: u64,
    pub page_len: u64,
    /// For each memory range of the view: the number of OpenCL buffers with accessed elements, and log2 of
    /// the buffers' length in bytes.
    pub bases: Vec<(usize, u32)>,
}

impl LaunchKey {
    /// Returns true if the kernel reads the indices of its work-items.
    pub fn needs_index(body: &Body) -> bool {
        let mut needs = false;
        body.operations(|_, op| needs |= matches!(op, Op::Builtin { what: Builtin::Index, .. }));
        needs
    }

    /// Bytes of OpenCL local memory that a work-group uses.
    pub fn local_bytes(&self) -> u64 {
        let body = self.kernel.body();
        // In arrays of a work-group, a bool takes 4 bytes.
        let arrays = body.arrays.iter().filter(|array| array.space == Space::Group);
        let arrays: u64 = arrays.map(|array| u64::from(array.len) * u64::from(array.of.bytes().max(4))).sum();
        let lanes = if self.is_split { None } else { lanes_bytes(body) };
        arrays + lanes.map_or(0, |bytes| u64::from(bytes) * u64::from(body.group_len.unwrap_or(0)))
    }

    /// Returns the OpenCL C text of the kernel, with the name `called`. Also returns the bytes of device
    /// memory that a work-item needs to save the registers of its group's items.
    pub fn text(&self, called: &str) -> (String, u64) {
        let split = self.is_split.then(|| Split::new(self.kernel.body(), self.has_budget));
        let mut writer = Writer { split: split.as_ref(), ..Writer::new(self) };
        writer.kernel(called);
        (writer.text, split.map_or(0, |split| split.bytes()))
    }
}

/// Returns the OpenCL C text of a function that kernels call, with its tables. Accesses out of bounds in it
/// are not reported. With a time limit it has additional parameters: `late`, `ticks`, `limit` and `item`.
pub(in crate::kernel) fn function(number: usize, function: &ScalarFunction, has_time_limit: bool) -> String {
    let called = &called(number);
    let shape = LaunchKey {
        kernel: function.kernel().clone(),
        views: Vec::new(),
        page_len: 1,
        channels: 1,
        has_budget: false,
        has_time_limit,
        has_wide_atomics: false,
        is_split: false,
    };
    let mut writer = Writer { function: Some(number), indent: 0, ..Writer::new(&shape) };
    if !function.table().is_empty() {
        let bytes: Vec<String> = function.table().iter().map(u8::to_string).collect();
        let (len, bytes) = (bytes.len(), bytes.join(", "));
        writer.line(&format!(
            "__constant uchar {called}_tables[{len}] __attribute__((aligned(8))) = {{{bytes}}};"
        ));
    }
    let parameter = |(number, of): (usize, &Type)| format!("{} p{number}", name(*of));
    let mut parameters: Vec<String> = function.params().iter().enumerate().map(parameter).collect();
    if has_time_limit {
        let of_clock =
            "__global volatile uint *late, __global const volatile uint *ticks, uint limit, ulong item";
        parameters.push(of_clock.into());
    }
    let parameters = if parameters.is_empty() { "void".into() } else { parameters.join(", ") };
    writer.line(&format!("static inline {} {called}({parameters}) {{", name(function.gives())));
    writer.indent = 1;
    if has_time_limit {
        writer.line("if (late[2] >> 31)");
        writer.line("    return 0;");
        writer.line("uint left = 65536u, since = 0u;");
    }
    writer.variables();
    writer.code(&function.kernel().body().code);
    writer.line(&format!("return {};", r(function.result())));
    writer.indent = 0;
    writer.line("}");
    writer.text
}

/// Returns the OpenCL C name of function `number`.
pub(in crate::kernel) fn called(number: usize) -> String {
    format!("call_{number}")
}

const BARRIER: &str = "barrier(CLK_LOCAL_MEM_FENCE);";
const FENCE: &str = "mem_fence(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);";

/// A block or loop that encloses the code being written.
struct Label {
    site: u32,
    is_loop: bool,
    /// True if a jump leads to its end or its next iteration by a C label.
    leaves: bool,
    continues: bool,
}

struct Writer<'a> {
    shape: &'a LaunchKey,
    body: &'a Body,
    /// True if the items of a group synchronise. `common` has the loops that the group runs together.
    meets: bool,
    common: Vec<u32>,
    text: String,
    indent: usize,
    site: u32,
    labels: Vec<Label>,
    /// If one work-item runs a group: the division of the code, and the current loop over the group's items.
    split: Option<&'a Split>,
    region: Option<Region>,
    /// Number of the function, if the code is not a kernel.
    function: Option<usize>,
}

/// Length in bytes of the values that lanes exchange; `None` if they exchange none.
fn lanes_bytes(body: &Body) -> Option<u32> {
    let mut bytes = None;
    body.operations(|_, op| {
        if let Op::Subgroup { of, .. } = op {
            let of = body.registers[of.at()];
            bytes = bytes.max(Some(of.bytes().max(4)));
        }
    });
    bytes
}

/// Returns the value that an atomic operation stores in place of `old`.
fn changed(op: Rmw, of: Type, value: &str) -> String {
    let how = match op {
        Rmw::Add => Binary::Add,
        Rmw::Min => Binary::Min,
        Rmw::Max => Binary::Max,
        Rmw::And => Binary::And,
        Rmw::Or => Binary::Or,
        Rmw::Xor => Binary::Xor,
        Rmw::Exchange | Rmw::Release => return value.to_owned(),
        Rmw::Acquire => return "old".into(),
        Rmw::CompareExchange { expected } => return format!("old == {} ? {value} : old", r(expected)),
    };
    binary(how, of, "old", value)
}

/// Returns the name of an OpenCL atomic function with one operand.
fn named(op: Rmw) -> &'static str {
    match op {
        Rmw::Add => "add",
        Rmw::Min => "min",
        Rmw::Max => "max",
        Rmw::And => "and",
        Rmw::Or => "or",
        Rmw::Xor => "xor",
        Rmw::Exchange | Rmw::CompareExchange { .. } | Rmw::Acquire | Rmw::Release => "",
    }
}

/// Returns the test that a number is in the allocated part of the private heap, and aligned.
fn in_private_heap(of: Type, at: &str) -> String {
    let bytes = of.bytes();
    format!("{at} % {bytes}ul == 0ul && {at} < top && top - {at} >= {bytes}ul")
}

fn r(register: Reg) -> String {
    format!("r{}", register.0)
}

impl<'a> Writer<'a> {
    fn new(shape: &'a LaunchKey) -> Self {
        let body = shape.kernel.body();
        Self {
            shape,
            body,
            common: body.common_loops(),
            meets: body.meets(),
            text: String::new(),
            indent: 2,
            site: 0,
            labels: Vec::new(),
            split: None,
            region: None,
            function: None,
        }
    }

    fn line(&mut self, words: &str) {
        let indent = 4 * self.indent.min(20);
        // Writing to a string never fails.
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
        if self.shape.kernel.needs().private_heap {
            parameters.extend(["Bytes arena", "ulong slabs", "ulong arena_bytes"].map(String::from));
        }
        if self.split.is_some() {
            parameters.extend(["__global uchar *restrict kept", "ulong width"].map(String::from));
        }
        parameters.extend(["items", "first", "channel", "budget"].map(|name| format!("ulong {name}")));
        parameters.push("__global volatile uint *report".into());
        if self.shape.has_time_limit {
            parameters.extend(["__global const volatile uint *ticks", "uint limit"].map(String::from));
        }
        for (view, shape) in self.shape.views.iter().enumerate() {
            self.places(view, shape);
        }
        self.indent = 0;
        let head = match self.body.group_len {
            Some(_) if self.split.is_some() => {
                "__kernel __attribute__((reqd_work_group_size(1, 1, 1)))".into()
            }
            Some(len) => format!("__kernel __attribute__((reqd_work_group_size({len}, 1, 1)))"),
            None => "KERNEL".into(),
        };
        self.line(&format!("{head} void {called}({}) {{", parameters.join(", ")));
        self.indent = 1;
        if self.shape.has_time_limit {
            self.line("uint left = 65536u, since = 0u;");
        }
        if self.split.is_some() {
            self.groups_by_one();
        } else {
            self.items();
        }
        self.indent = 0;
        self.line("}");
        for view in 0..self.shape.views.len() {
            self.line(&format!("#undef PLACE_{view}"));
        }
    }

    /// Writes the loop of a work-item over the items of the launch.
    fn items(&mut self) {
        match self.body.group_len {
            Some(len) => self.begin_group(len),
            None if self.shape.kernel.needs().private_heap => {
                // With a private heap, each OpenCL work-item owns one slab (part of the heap's memory). In
                // this slab the OpenCL work-item runs several work-items of the launch, one after the other.
                self.line("const ulong slab = get_global_id(0);");
                self.line("for (ulong item = slab; slab < slabs && item < items; item += slabs) {");
            }
            None => {
                self.line("for (ulong item = get_global_id(0); item < items; item += get_global_size(0)) {");
            }
        }
        self.indent = 2;
        self.begin_time();
        if self.shape.kernel.needs().private_heap {
            self.line("ulong top = 0ul;");
        }
        self.variables();
        // Write the label only if a jump uses it, because drivers warn about unused labels.
        let body = self.body;
        self.code(&body.code);
        if self.text.contains("goto over;") {
            self.line("over:;");
        }
        let failed = if self.body.group_len.is_some() { "failed && live" } else { "failed" };
        self.line(&format!("if ({failed})"));
        self.line("    report_failure(report, site, detail, item);");
        if self.body.group_len.is_some() {
            // Wait for all work-items of the group, because the next group uses the same local memory.
            self.line(BARRIER);
        }
        self.indent = 1;
        self.line("}");
    }

    /// Declares the variables of an item of the launch.
    fn variables(&mut self) {
        self.line("uint failed = 0u, site = 0u;");
        self.line("ulong detail = 0ul;");
        if self.shape.has_budget {
            self.line("ulong turns = 0ul, common_turns = 0ul;");
        }
        for (number, of) in self.body.registers.iter().enumerate() {
            self.line(&format!("{} r{number} = 0;", name(*of)));
        }
        for (number, array) in self.body.arrays.iter().enumerate() {
            if array.space == Space::Item {
                self.line(&format!("{} a{number}[{}] = {{0}};", name(array.of), array.len));
            }
        }
    }

    /// Starts the time limit of an item or a group, unless another one has exceeded its limit.
    fn begin_time(&mut self) {
        if self.shape.has_time_limit {
            self.line("if (report[2] >> 31)");
            self.line("    return;");
            self.line("since = 0u;");
        }
    }

    /// Declares the variables of a group, and starts the loop over groups.
    fn begin_group(&mut self, len: u32) {
        let arrays = self.group_arrays();
        if let Some(bytes) = lanes_bytes(self.body) {
            self.line(&format!("__local {} lanes[{len}];", unsigned_name(bytes)));
        }
        self.line("const uint own = (uint)get_local_id(0), first_lane = own & ~31u;");
        self.line(&format!("const ulong groups = items / {len}ul + (items % {len}ul != 0ul);"));
        if self.shape.kernel.needs().private_heap {
            self.line("const ulong slab = get_global_id(0);");
            self.line(&format!("const ulong width = slabs / {len}ul;"));
            self.line("for (ulong group = get_group_id(0); get_group_id(0) < width && group < groups; group += width) {");
        } else {
            self.line("for (ulong group = get_group_id(0); group < groups; group += get_num_groups(0)) {");
        }
        self.indent = 2;
        self.line(&format!("const ulong item = group * {len}ul + own;"));
        self.line("const uint live = item < items;");
        for (number, array_len) in
            arrays.iter().filter(|(number, _)| self.shape.kernel.starts_zeroed(*number))
        {
            self.line(&format!("for (uint at = own; at < {array_len}u; at += {len}u)"));
            self.line(&format!("    a{number}[at] = 0;"));
        }
        if !arrays.is_empty() {
            self.line(BARRIER);
        }
    }

    /// Declares the arrays of a group; returns the number and length of each.
    fn group_arrays(&mut self) -> Vec<(usize, u32)> {
        let body = self.body;
        let of_group = (0..).zip(&body.arrays).filter(|(_, array)| array.space == Space::Group);
        let declare = |(number, array): (usize, &ArrayDecl)| {
            self.line(&format!("__local {} a{number}[{}];", name(array.of), array.len));
            (number, array.len)
        };
        of_group.map(declare).collect()
    }

    /// Defines the macro `PLACE_view(base, at)`: the address of byte `at` of a memory range.
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
            // A view without memory has no element to access, so return a null pointer.
            all = "((Bytes)0)".into();
        }
        self.indent = 0;
        self.line(&format!("#define PLACE_{view}(base, at) {all}"));
    }

    fn code(&mut self, mut code: &[Op]) {
        while let Some(op) = code.first() {
            let items = self.items_alone(code);
            if items > 0 {
                let (run, after) = code.split_at(items);
                self.each_item(run);
                code = after;
                continue;
            }
            code = &code[1..];
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
        if is_loop {
            self.arrived(site);
        }
        self.within(body);
        let Some(label) = self.labels.pop() else { return };
        if label.continues {
            self.line(&format!("    again_{site}:;"));
        }
        if is_loop && self.shape.has_budget && self.is_of_group() {
            self.group_turns(site);
        } else if is_loop && self.shape.has_budget {
            let turns = if self.common.contains(&site) { "common_turns" } else { "turns" };
            // A work-item that exceeds its budget of iterations leaves only the loop, because other
            // work-items may wait for this work-item at a later barrier.
            let leave = if self.meets { "break;" } else { "goto over;" };
            self.line(&format!("    if ({turns}++ >= budget) {{"));
            self.line(&format!("        FAIL({site}u, budget)"));
            self.line(&format!("        {leave}"));
            self.line("    }");
        }
        if is_loop && self.shape.has_time_limit {
            let item = if self.is_of_group() {
                format!("group * {}ul", self.body.group_len.unwrap_or(1))
            } else {
                "item".into()
            };
            self.line(&match self.function {
                Some(number) => format!("    TURN_OF_CALL({site}u, {number}u)"),
                None => format!("    TURN({site}u, {item})"),
            });
        }
        self.line("}");
        if label.leaves {
            self.line(&format!("after_{site}:;"));
        }
        // Work-items that exceeded their budget of iterations continue here.
        self.arrived(site);
    }

    fn jump(&mut self, out: u16, again: bool) {
        let target = self.labels.len() - 1 - usize::from(out);
        if self.leaves_region(target) {
            return;
        }
        // Count only loops, because in C `break` and `continue` do not apply to blocks.
        let is_innermost = self.labels[target..].iter().filter(|label| label.is_loop).count() == 1;
        let label = &mut self.labels[target];
        let by_name = !(label.is_loop && is_innermost)
            || (again && (self.shape.has_budget || self.shape.has_time_limit));
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
            Op::Param { number, .. } if self.function.is_some() => format!("p{number}"),
            Op::Param { to, number } => from_bits(self.of(to), &format!("p{number}")),
            Op::Builtin { what, .. } => match what {
                Builtin::Index => index("item", self.shape.page_len, self.shape.channels),
                Builtin::Live if self.body.group_len.is_none() => "1u".into(),
                Builtin::Live => "live".into(),
                Builtin::Item => "item".into(),
                Builtin::InGroup => "own".into(),
                Builtin::Group => "group".into(),
                Builtin::Groups => "groups".into(),
            },
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
            Op::Atomic { op, to, place, value, .. } => return self.atomic(site, op, to, place, value),
            // If one work-item runs the whole group, a barrier has no effect.
            Op::Barrier if self.split.is_some() => return,
            Op::Barrier => return self.line(BARRIER),
            Op::Subgroup { how, to, of } if self.split.is_some() => {
                return self.subgroup_op_in_items(how, to, of);
            }
            Op::Subgroup { how, to, of } => return self.subgroup_op(how, to, of),
            Op::PrivateAlloc { to, bytes } => return self.take(site, &r(to), &r(bytes)),
            Op::PrivateLoad { to, at } => {
                let (of, at) = (self.of(to), r(at));
                let bits = format!("*(__global const {} *)ARENA({at})", unsigned_name(of.bytes()));
                let value = format!("as_{}({bits})", name(of));
                let then = [format!("{} = {value};", r(to))];
                return self.checked(&in_private_heap(of, &at), &then, (site, &at, Some(&r(to))));
            }
            Op::PrivateStore { at, value } => {
                let (of, at) = (self.of(value), r(at));
                let place = format!("*(__global {} *)ARENA({at})", unsigned_name(of.bytes()));
                let then = [format!("{place} = {};", to_bits(of, &r(value)))];
                return self.checked(&in_private_heap(of, &at), &then, (site, &at, None));
            }
            // Other operations do not reach this line: `code` translates nested code; kernels have no calls.
            _ => match value_of(op, |register| self.of(register), r) {
                Some(value) => value,
                None => return,
            },
        };
        if let Some(to) = op.written() {
            self.line(&format!("{} = {value};", r(to)));
        }
    }

    /// Writes code for an access in bounds. If the index is out of bounds, the code records a failure, and
    /// the register gets 0.
    fn checked(&mut self, inside: &str, then: &[String], (site, at, to): (u32, &str, Option<&str>)) {
        let is_unchecked = self.shape.kernel.is_unchecked();
        self.line(&if is_unchecked { "{".to_owned() } else { format!("if ({inside}) {{") });
        for line in then {
            self.line(&format!("    {line}"));
        }
        if is_unchecked {
            return self.line("}");
        }
        self.line("} else {");
        self.line(&format!("    FAIL({site}u, {at})"));
        if let Some(to) = to {
            self.line(&format!("    {to} = 0;"));
        }
        self.line("}");
    }

    /// Writes code that allocates memory of the private heap.
    fn take(&mut self, site: u32, to: &str, bytes: &str) {
        for line in [
            "{".into(),
            format!("    const ulong wanted = {bytes}, taken = (wanted + 7ul) & ~7ul;"),
            "    if (wanted <= arena_bytes && taken <= arena_bytes - top) {".into(),
            "        for (ulong word = 0ul; word < taken; word += 8ul)".into(),
            "            *(__global ulong *)ARENA(top + word) = 0ul;".into(),
            format!("        {to} = top;"),
            "        top += taken;".into(),
            "    } else {".into(),
            format!("        FAIL({site}u, wanted)"),
            format!("        {to} = ~0ul;"),
            "    }".into(),
            "}".into(),
        ] {
            self.line(&line);
        }
    }

    /// Returns the test that an element exists, and code that computes the field's `base` and `byte`.
    fn field(&self, view: u16, at: &str, offset: u32) -> (String, Vec<String>) {
        let shape = &self.shape.views[usize::from(view)];
        let (inside, element) = match self.body.views[usize::from(view)].access {
            Access::Write { tile } => {
                let element = format!("(item * {tile}ul + {at})");
                (format!("{at} < {tile}ul && {element} < v{view}n"), element)
            }
            Access::Read | Access::Atomic | Access::Append => (format!("{at} < v{view}n"), at.to_owned()),
        };
        // Work-items past the launch's end (not `live`) access no element, and must not report a failure.
        let inside = if self.body.group_len.is_some() { format!("live && {inside}") } else { inside };
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

    /// Returns two bools: true if a field is aligned to its length, and true if it may span two OpenCL
    /// buffers.
    fn lies(&self, view: u16, offset: u32, bytes: u32) -> (bool, bool) {
        let shape = &self.shape.views[usize::from(view)];
        let is_aligned = (shape.align | u64::from(offset)).is_multiple_of(bytes.into());
        (is_aligned, !is_aligned && shape.bases.iter().any(|(pieces, _)| *pieces > 1))
    }

    fn atomic(&mut self, site: u32, op: Rmw, to: Option<Reg>, place: Place, value: Reg) {
        let (of, at, value) = (self.of(value), r(place.at()), r(value));
        if let Place::Array { array, .. } = place
            && self.split.is_some()
        {
            return self.change(site, (op, of), to, (array, &at), &value);
        }
        let (inside, mut then, space, pointer) = match place {
            Place::View { view, offset, .. } => {
                let (inside, find) = self.field(view, &at, offset);
                (inside, find, "__global", format!("PLACE_{view}(base, byte)"))
            }
            Place::Array { array, .. } => {
                let len = self.body.arrays[usize::from(array)].len;
                (format!("{at} < {len}ul"), Vec::new(), "__local", format!("(a{array} + {at})"))
            }
        };
        let (wide, unsigned) = (of.bytes() == 8, unsigned_name(of.bytes()));
        // Use a typed atomic if the device has it as a single instruction, else compare-and-swap on the bits.
        let at_once = !of.is_float() && (!wide || self.shape.has_wide_atomics || matches!(op, Rmw::Add));
        let word = if at_once { name(of) } else { unsigned };
        then.push(format!("volatile {space} {word} *const word = (volatile {space} {word} *){pointer};"));
        let call = |name: &str, operands: &str| {
            format!("{}_{name}(word, {operands})", if wide { "atom" } else { "atomic" })
        };
        let bits = |value: &str| to_bits(of, value);
        if op == Rmw::Release {
            then.push(FENCE.into());
        }
        let old = match op {
            Rmw::Acquire => from_bits(of, &format!("({unsigned}){}", call("add", "0"))),
            Rmw::Exchange | Rmw::Release if at_once => call("xchg", &value),
            Rmw::CompareExchange { expected } if at_once => {
                call("cmpxchg", &format!("{}, {value}", r(expected)))
            }
            Rmw::Exchange | Rmw::Release => from_bits(of, &call("xchg", &bits(&value))),
            Rmw::CompareExchange { expected } => {
                from_bits(of, &call("cmpxchg", &format!("{}, {}", bits(&r(expected)), bits(&value))))
            }
            _ if at_once => call(named(op), &value),
            _ => {
                then.extend([
                    format!("{unsigned} seen = *word, before;"),
                    "do {".into(),
                    "    before = seen;".into(),
                    format!("    const {} old = {};", name(of), from_bits(of, "before")),
                    format!("    const {} changed = {};", name(of), changed(op, of, &value)),
                    format!("    seen = {};", call("cmpxchg", &format!("before, {}", bits("changed")))),
                    "} while (seen != before);".into(),
                ]);
                from_bits(of, "before")
            }
        };
        let to = to.map(r);
        match &to {
            Some(to) => then.push(format!("{to} = {old};")),
            None if old.contains("(word") => then.push(format!("{old};")),
            None => {}
        }
        if op == Rmw::Acquire {
            then.push(FENCE.into());
        }
        self.checked(&inside, &then, (site, &at, to.as_deref()));
    }

    /// Writes a subgroup operation: values pass through local memory, with a barrier before the reads.
    fn subgroup_op(&mut self, how: SubgroupOp, to: Reg, of: Reg) {
        let (found, value, to_name) = (self.of(of), r(of), r(to));
        let leave = |value: &str| {
            let bits = if found == Type::Bool { value.to_owned() } else { to_bits(found, value) };
            format!("lanes[own] = {bits};")
        };
        let lane = |at: &str| from_bits(found, &format!("lanes[{at}]"));
        let mut lines = Vec::new();
        match how {
            SubgroupOp::Shuffle { .. } | SubgroupOp::ShuffleXor(_) => {
                let at = match how {
                    SubgroupOp::Shuffle { lane } => format!("first_lane | ({} & 31u)", r(lane)),
                    SubgroupOp::ShuffleXor(mask) => format!("own ^ {mask}u"),
                    _ => String::new(),
                };
                lines.extend([leave(&value), BARRIER.into(), format!("{to_name} = {};", lane(&at))]);
                lines.push(BARRIER.into());
            }
            SubgroupOp::Sync => lines.extend([format!("{to_name} = {value};"), BARRIER.into()]),
            SubgroupOp::Ballot | SubgroupOp::Any | SubgroupOp::All => {
                let result = match how {
                    SubgroupOp::Any => "bits != 0u",
                    SubgroupOp::All => "bits == 0xFFFFFFFFu",
                    _ => "bits",
                };
                let bit = |lane: u32| format!("(uint)lanes[first_lane + {lane}u] << {lane}");
                let bits: Vec<String> = (0..32).map(bit).collect();
                lines.extend([
                    leave(&value),
                    BARRIER.into(),
                    format!("const uint bits = {};", bits.join(" | ")),
                    BARRIER.into(),
                    format!("{to_name} = {result};"),
                ]);
            }
            SubgroupOp::Alike { bits } => {
                let mask = u32::MAX >> (32 - bits);
                lines.extend([
                    leave(&value),
                    BARRIER.into(),
                    "uint alike = 0u;".into(),
                    "for (uint lane = 0u; lane < 32u; lane++)".into(),
                    format!("    alike |= (uint)((((uint)lanes[first_lane + lane] ^ {value}) & {mask}u) == 0u) << lane;"),
                    BARRIER.into(),
                    format!("{to_name} = alike;"),
                ]);
            }
            SubgroupOp::Reduce(op) | SubgroupOp::Scan(op) => {
                let is_scan = matches!(how, SubgroupOp::Scan(_));
                lines.push(format!("{} value = {value};", name(found)));
                for apart in if is_scan { [1, 2, 4, 8, 16] } else { [16, 8, 4, 2, 1] } {
                    lines.extend([leave("value"), BARRIER.into()]);
                    lines.extend(combining_step(op, found, apart, is_scan));
                    lines.push(BARRIER.into());
                }
                lines.push(format!("{to_name} = value;"));
            }
        }
        self.line("{");
        for line in lines {
            self.line(&format!("    {line}"));
        }
        self.line("}");
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
        let (space, tables) = match self.function {
            Some(number) => ("__constant", format!("{}_tables", called(number))),
            None => ("__global const", "tables".into()),
        };
        let bits = format!("(({space} {unsigned} *)({tables} + {begin}))[{at}]");
        let then = match decl.of {
            Memory::F16 => format!("{} = half_to_float({bits});", r(to)),
            Memory::Value(of) => format!("{} = as_{}({bits});", r(to), name(of)),
        };
        self.checked(&format!("{at} < {}ul", decl.len), &[then], (site, &at, Some(&r(to))));
    }
}

/// Returns lines that combine the value of a lane with another lane's value: the lane `apart` below it (a
/// scan), or its partner `apart` away (a reduction).
fn combining_step(op: Binary, of: Type, apart: u32, is_scan: bool) -> Vec<String> {
    let lane = |at: String| from_bits(of, &format!("lanes[{at}]"));
    let of_type = name(of);
    if is_scan {
        return vec![
            format!("if ((own & 31u) >= {apart}u) {{"),
            format!("    const {of_type} below = {};", lane(format!("own - {apart}u"))),
            format!("    value = {};", binary(op, of, "below", "value")),
            "}".into(),
        ];
    }
    vec![
        "{".into(),
        format!("    const {of_type} low = {};", lane(format!("own & ~{apart}u"))),
        format!("    const {of_type} high = {};", lane(format!("own | {apart}u"))),
        format!("    value = {};", binary(op, of, "low", "high")),
        "}".into(),
    ]
}
