//! Code generator: translates kernels of the program to PTX.
//!
//! Each GPU thread runs several work-items at a constant stride. Each register of the kernel becomes a PTX
//! register. The code predicates memory accesses instead of branching around them, which lets many loads be
//! in flight. An index out of bounds reads nothing, and the kernel records the work-item's first such index.
//! Accesses that are provably in bounds are not checked. For a kernel with groups, a block has the group's
//! length, and runs several groups in a loop.

pub(super) mod affine;
mod bounds;
mod group_ops;
pub(super) mod known;
mod lanes;
mod private_heap;
mod unroll;
pub(super) mod warps;
mod wide;
mod windows;

use std::collections::HashMap;
use std::rc::Rc;

use backend_api::Error;
use backend_api::kernel::{
    Access, ArrayDecl, Body, Builtin, Memory, Op, Reg, ScalarFunction, Space, Type, VerifiedKernel,
};

use self::known::{KnownValue, known, writes};
use crate::driver::objects::THREADS;
use crate::kernel::text::{LoadSource, Text, emit, memory_suffix, register};

/// Maximum length in bytes of a kernel's parameters on all GPUs.
const PARAMETER_BYTES_MAX: u64 = 4096;
/// Maximum offset of an address in an instruction: 31 bits, minus the bytes of a field.
const OFFSET_MAX: u64 = i32::MAX as u64 - 8;
/// Value in place of a site (the number of an operation) for work-items without a failure.
const NO_SITE: &str = "0xFFFFFFFF";

/// Key of a generated kernel in the cache; all other properties of a launch are kernel parameters.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct KernelKey {
    pub kernel: VerifiedKernel,
    pub views: Vec<ViewLayout>,
    /// Page length in elements, and (`channels`) number of memory ranges to which pages go in turn. Both are
    /// 1 if the kernel does not read the indices of its elements.
    pub page_len: u64,
    pub channels: u64,
    pub has_budget: bool,
    /// True if the launch passes the contents of the kernel's tables as kernel parameters.
    pub gives_tables: bool,
    /// Number of consecutive work-items that a thread processes at once.
    pub lanes: u32,
    /// True for stencils: each work-item also reads elements next to its own.
    pub is_around: bool,
}

/// Layout of a view's elements in memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ViewLayout {
    pub stride: u64,
    /// Alignment of the view's elements in bytes: the greatest common divisor of their addresses, at most 16.
    pub align: u64,
    /// Page length of the view in elements if its pages are in several memory ranges (`bases`); else 1.
    pub page_len: u64,
    pub bases: usize,
    /// True if all accesses to the view at positions known before the launch are in bounds.
    pub is_inside: bool,
    /// If a thread processes several work-items: alignment in bytes, at most 16, of the element of a thread's
    /// first work-item.
    pub ahead: u64,
}

/// The leading kernel parameters, in words of 64 bits. After them follow for each view its number of elements
/// and its addresses, then the launch's parameters, then tables.
#[derive(Clone, Copy, Debug)]
pub(super) enum LeadingParameters {
    /// Number of work-items; if a thread processes several items at once, number of threads.
    Items,
    /// Index of the first item, and channel, if the kernel reads indices.
    First,
    Channel,
    Budget,
    /// Address in GPU memory at which work-items record failures.
    State,
    /// Address of the launch's report of failures.
    Report,
    /// Address of the tables, if they are not among the parameters.
    Tables,
    /// If threads process several items at once: number of leading items that run singly, and number of
    /// threads that process several.
    Head,
    Pieces,
    /// If items read neighbouring elements: number of blocks for a row of items, and number of blocks that
    /// run whole rows.
    Pitch,
    /// Reciprocal of the number of blocks for a row of items.
    Reciprocal,
    Striped,
    /// Start of the items' private heaps, and length in bytes for each thread.
    Slabs,
    SlabBytes,
}

impl LeadingParameters {
    pub const COUNT: usize = 14;
}

/// Bytes of the state: a [report](backend_api::kernel::Report), and the number of finished blocks.
pub(super) const STATE_BYTES: u64 = 40;

impl KernelKey {
    /// Returns the key of the simplest launch: one channel, no loop limit, no tables, one work-item a thread.
    pub fn plain(kernel: VerifiedKernel, views: Vec<ViewLayout>) -> Self {
        Self {
            kernel,
            views,
            page_len: 1,
            channels: 1,
            has_budget: false,
            gives_tables: false,
            lanes: 1,
            is_around: false,
        }
    }

    /// Offset in bytes of a view's parameters.
    fn view_at(&self, view: usize) -> u64 {
        let before: usize = self.views[..view].iter().map(|view| 1 + view.bases).sum();
        8 * (LeadingParameters::COUNT + before) as u64
    }

    fn param_at(&self, number: u64) -> u64 {
        self.view_at(self.views.len()) + 8 * number
    }

    fn tables_at(&self) -> u64 {
        self.param_at(self.kernel.body().params.len() as u64)
    }

    /// Checks that the kernel's parameters fit into the maximum length of CUDA kernel parameters.
    ///
    /// # Errors
    /// `Unsupported`.
    pub fn check(&self, operation: &'static str) -> Result<(), Error> {
        let tables = if self.gives_tables { self.kernel.body().table_bytes() } else { 0 };
        let bytes = self.tables_at() + tables;
        if bytes <= PARAMETER_BYTES_MAX {
            return Ok(());
        }
        let places: usize = self.views.iter().map(|view| view.bases).sum();
        let detail = format!(
            "the arguments of a kernel with {places} memory ranges need {bytes} bytes, \
             but at most {PARAMETER_BYTES_MAX} are supported"
        );
        Err(Error::new(backend_api::ErrorKind::Unsupported, operation).with_detail(detail))
    }

    pub fn threads(&self) -> u32 {
        self.kernel.body().group_len.unwrap_or(THREADS)
    }

    /// Returns the kernel's PTX text for GPUs of this compute capability, and true if its items can fail.
    fn text(&self, called: &str, capability: (u32, u32)) -> (String, bool) {
        let body = self.kernel.body();
        let mut writer = Writer::new(self, called, capability);
        if writer.leaves_loops() {
            // A budget (maximum number of iterations) can end loops early, so later code may read registers
            // that no code wrote. Assume nothing about the registers' values.
            writer.known = vec![None; body.registers.len()];
            writer.bounds = bounds::IntegerBounds::unknown(body.registers.len());
            // The initialisation to zero also writes each bool. So all bools have several writes, and are
            // kept in words (see `words`).
            writer.words = body.registers.iter().map(|of| *of == Type::Bool).collect();
        }
        writer.kernel();
        let can_fail = writer.can_fail;
        let Text { declarations, body, .. } = writer.text;
        let tables = if self.gives_tables { self.kernel.body().table_bytes() } else { 0 };
        let (bytes, threads) = (self.tables_at() + tables, self.threads());
        // Limit the registers so that two blocks of 257 to 512 threads fit on a multiprocessor, to hide
        // latency. Shorter blocks need no limit; longer ones would get fewer than 64 registers per thread.
        let by_default = if (257..=512).contains(&threads) { 2 } else { 1 };
        let together = self.kernel.body().resident_groups.map_or(by_default, |groups| groups.clamp(1, 32));
        let text = format!(
            ".visible .entry {called}(\n\t.param .align 8 .b8 {called}_p[{bytes}]\n)\n.maxntid {threads}, 1, 1\n\
             .minnctapersm {together}\n{{\n{declarations}{body}}}\n"
        );
        (text, can_fail)
    }
}

/// Returns the PTX text of a function that kernels call, with its tables. Accesses out of bounds in it are
/// not reported.
pub(in crate::kernel) fn function(called: &str, function: &ScalarFunction) -> String {
    let shape = KernelKey::plain(function.kernel().clone(), Vec::new());
    let mut writer = Writer { is_function: true, ..Writer::new(&shape, called, (5, 0)) };
    writer.registers();
    writer.item();
    let (of, result) = (function.gives(), r(function.result()));
    let result = writer.text.given_on(of, &result);
    emit!(writer.text, "st.param.{} [{called}_result], {result}", parameter_kind(of));
    emit!(writer.text, "ret");
    let Text { declarations, body, .. } = writer.text;
    let parameter =
        |(number, of): (usize, &Type)| format!("\t.param .{} {called}_a{number}", parameter_kind(*of));
    let parameters: Vec<String> = function.params().iter().enumerate().map(parameter).collect();
    let mut tables = String::new();
    if !function.table().is_empty() {
        let bytes: Vec<String> = function.table().iter().map(u8::to_string).collect();
        tables =
            format!(".global .align 8 .b8 {called}_tables[{}] = {{{}}};\n", bytes.len(), bytes.join(", "));
    }
    let kind = parameter_kind(of);
    let parameters = parameters.join(",\n");
    format!(
        "{tables}.func (.param .{kind} {called}_result) {called}(\n{parameters}\n)\n{{\n{declarations}{body}}}\n"
    )
}

/// PTX type of parameters and results of a function: the type of the register, or a word for a bool.
fn parameter_kind(of: Type) -> &'static str {
    if of.bytes() == 8 { "b64" } else { "b32" }
}

/// Name of a kernel in its module.
pub(super) fn name(number: usize) -> String {
    format!("launch_{number}")
}

/// Returns a PTX module of kernels for GPUs of this compute capability, as a C string, and for each kernel
/// true if its items can fail.
pub(super) fn module(shapes: &[KernelKey], capability: (u32, u32)) -> (String, Vec<bool>) {
    // Use old PTX versions for old GPUs, whose drivers may not know newer versions.
    let (version, target) = match capability {
        (8.., _) => ("7.0", "80"),
        (7, _) => ("6.0", "70"),
        (6, _) => ("6.0", "60"),
        _ => ("6.0", "50"),
    };
    let mut text = format!(".version {version}\n.target sm_{target}\n.address_size 64\n\n");
    let mut can_fail = Vec::new();
    for (number, shape) in shapes.iter().enumerate() {
        let (kernel, fails) = shape.text(&name(number), capability);
        text.push_str(&kernel);
        can_fail.push(fails);
    }
    text.push('\0');
    (text, can_fail)
}

fn bools_in_words(body: &Body) -> Vec<bool> {
    let of = body.registers.iter().zip(writes(body));
    of.map(|(of, writes)| *of == Type::Bool && writes > 1).collect()
}

struct Writer<'a> {
    shape: &'a KernelKey,
    body: &'a Body,
    called: &'a str,
    capability: (u32, u32),
    /// True if the items of a group synchronise. `common` has the loops that the group runs together.
    meets: bool,
    common: Vec<u32>,
    known: Vec<Option<KnownValue>>,
    bounds: bounds::IntegerBounds,
    /// For each register: true for a bool that several operations write.
    ///
    /// Some assemblers (CUDA 12.9 and 13.0) assume that a predicate that a branch has tested stays known
    /// inside a loop that changes it. So the value of such a bool is in a word.
    words: Vec<bool>,
    text: Text,
    site: u32,
    /// Numbers (sites) of the enclosing blocks and loops.
    labels: Vec<u32>,
    /// If a thread processes several items: the item whose code is being written.
    lane: Option<u32>,
    /// If items read neighbouring elements: their analysis, and the end of the warp that is being tested.
    around: Option<Rc<affine::LaneAnalysis>>,
    end: Option<warps::WarpEnd>,
    /// Array elements loaded for several iterations of a loop: by read, the register of this iteration.
    ahead: HashMap<u32, String>,
    /// True if a work-item can fail.
    can_fail: bool,
    /// True for a function that kernels call.
    is_function: bool,
}

/// The place of an element in a view.
struct ViewElement {
    /// A register whose sum with the literal `plus` is the element's index.
    index: String,
    plus: u64,
    /// The predicate that the element exists; `None` if it always does.
    inside: Option<String>,
}

fn r(register: Reg) -> String {
    format!("r{}", register.0)
}

/// Bytes of all arrays in a memory space, each aligned to 8.
fn bytes_of(arrays: &[ArrayDecl], space: Space) -> u64 {
    let arrays = arrays.iter().filter(|array| array.space == space);
    arrays.map(|array| array.bytes().next_multiple_of(8)).sum()
}

/// PTX state space of arrays.
fn space_of(space: Space) -> &'static str {
    if space == Space::Item { "local" } else { "shared" }
}

/// Type of a value in memory that only generated code accesses: a word for a bool.
fn kept_as(of: Type) -> Type {
    if of == Type::Bool { Type::U8 } else { of }
}

impl<'a> Writer<'a> {
    fn new(shape: &'a KernelKey, called: &'a str, capability: (u32, u32)) -> Self {
        let body = shape.kernel.body();
        Self {
            shape,
            body,
            called,
            capability,
            common: body.common_loops(),
            meets: body.meets(),
            known: known(body),
            bounds: bounds::bounds(body),
            words: bools_in_words(body),
            text: Text::default(),
            site: 0,
            labels: Vec::new(),
            lane: None,
            around: None,
            end: None,
            ahead: HashMap::new(),
            can_fail: false,
            is_function: false,
        }
    }

    fn of(&self, register: Reg) -> Type {
        self.body.registers[register.at()]
    }

    /// Returns the PTX operand of the kernel parameter at byte `at`.
    fn place(&self, at: u64) -> String {
        format!("{}_p+{at}", self.called)
    }

    /// Loads one of the leading parameters into a register.
    fn given(&mut self, what: LeadingParameters) -> String {
        let (word, place) = (self.text.temporary("b64"), self.place(8 * what as u64));
        emit!(self.text, "ld.param.u64 {word}, [{place}]");
        word
    }

    /// Returns true if an exhausted budget ends loops instead of the item.
    fn leaves_loops(&self) -> bool {
        self.meets && self.shape.has_budget
    }

    fn has_groups(&self) -> bool {
        self.body.group_len.is_some()
    }

    fn registers(&mut self) {
        for (number, of) in self.body.registers.iter().enumerate() {
            self.text.declare(register(*of), &format!("r{number}"));
            if self.words[number] {
                self.text.declare("b32", &format!("w{number}"));
            }
        }
    }

    fn kernel(&mut self) {
        self.registers();
        for name in ["thread", "block", "blocks"] {
            self.text.declare("b32", name);
        }
        emit!(self.text, "mov.u32 thread, %tid.x");
        emit!(self.text, "mov.u32 block, %ctaid.x");
        emit!(self.text, "mov.u32 blocks, %nctaid.x");
        self.text.declare("b64", "item");
        if self.shape.kernel.needs().private_heap {
            self.find_slab();
        }
        let (more, items) = (self.text.temporary("pred"), self.given(LeadingParameters::Items));
        if let Some(len) = self.body.group_len {
            // A zero that the assembler cannot predict, because it miscompiles votes on known values.
            self.text.declare("b32", "zero");
            emit!(self.text, "mov.u32 zero, %nctaid.y");
            emit!(self.text, "sub.u32 zero, zero, 1");
            self.groups(len, &more, &items);
        } else {
            self.text.declare("b64", "step");
            let begin = self.text.temporary("b64");
            let number = if self.shape.lanes > 1 { "number" } else { "item" };
            if self.shape.lanes > 1 {
                self.text.declare("b64", number);
            }
            emit!(self.text, "cvt.u64.u32 {number}, thread");
            emit!(self.text, "mul.wide.u32 {begin}, block, {THREADS}");
            emit!(self.text, "add.u64 {number}, {number}, {begin}");
            emit!(self.text, "mul.wide.u32 step, blocks, {THREADS}");
            emit!(self.text, "setp.ge.u64 {more}, {number}, {items}");
            emit!(self.text, "@{more} bra finish");
            self.text.label("next");
            if self.shape.lanes > 1 {
                self.side_by_side();
            } else {
                self.item();
            }
            emit!(self.text, "add.u64 {number}, {number}, step");
            emit!(self.text, "setp.lt.u64 {more}, {number}, {items}");
            emit!(self.text, "@{more} bra next");
        }
        self.text.label("finish");
        self.finish();
    }

    /// Writes the code of one work-item.
    fn item(&mut self) {
        for (kind, name) in [("b32", "site"), ("b64", "detail"), ("b64", "turns"), ("b64", "common_turns")] {
            self.text.declare(kind, name);
        }
        emit!(self.text, "mov.u32 site, {NO_SITE}");
        emit!(self.text, "mov.b64 detail, 0");
        if self.shape.has_budget {
            emit!(self.text, "mov.b64 turns, 0");
            emit!(self.text, "mov.b64 common_turns, 0");
        }
        if self.leaves_loops() {
            for (number, of) in self.body.registers.iter().enumerate() {
                let (of, name) = if self.words[number] { (Type::U32, "w") } else { (*of, "r") };
                self.text.literal(of, &format!("{name}{number}"), 0);
            }
        }
        if self.shape.kernel.needs().private_heap {
            emit!(self.text, "mov.b64 taken, 0");
        }
        self.clear_arrays();
        let body = self.body;
        self.code(&body.code);
        self.text.label("over");
        if self.can_fail && !self.is_function {
            let (fine, old, wide) =
                (self.text.temporary("pred"), self.text.temporary("b64"), self.text.temporary("b64"));
            emit!(self.text, "setp.eq.u32 {fine}, site, {NO_SITE}");
            emit!(self.text, "@{fine} bra counted");
            if self.has_groups() {
                emit!(self.text, "@!live bra counted");
            }
            let state = self.given(LeadingParameters::State);
            emit!(self.text, "atom.global.add.u64 {old}, [{state}], 1");
            emit!(self.text, "setp.ne.u64 {fine}, {old}, 0");
            emit!(self.text, "@{fine} bra counted");
            emit!(self.text, "cvt.u64.u32 {wide}, site");
            for (at, value) in [(8, wide.as_str()), (16, "detail"), (24, "item")] {
                emit!(self.text, "st.global.u64 [{state}+{at}], {value}");
            }
            self.text.label("counted");
        }
    }

    /// Writes code by which the last thread writes the report, and resets the state for the next launch.
    fn finish(&mut self) {
        let skip = self.text.temporary("pred");
        if !self.can_fail {
            let thread = self.text.temporary("b32");
            emit!(self.text, "or.b32 {thread}, thread, block");
            emit!(self.text, "setp.ne.u32 {skip}, {thread}, 0");
            emit!(self.text, "@{skip} bra end");
            let report = self.given(LeadingParameters::Report);
            // Launches on streams of the program have no report.
            emit!(self.text, "setp.eq.u64 {skip}, {report}, 0");
            emit!(self.text, "@{skip} bra end");
            for at in [0, 8, 16, 24] {
                emit!(self.text, "st.global.u64 [{report}+{at}], 0");
            }
        } else {
            let [last, done] = ["b32"; 2].map(|kind| self.text.temporary(kind));
            emit!(self.text, "barrier.sync 0");
            emit!(self.text, "setp.ne.u32 {skip}, thread, 0");
            emit!(self.text, "@{skip} bra end");
            let [state, report] =
                [LeadingParameters::State, LeadingParameters::Report].map(|what| self.given(what));
            // Make the failures that the block recorded visible before the block counts as done.
            emit!(self.text, "membar.gl");
            emit!(self.text, "sub.u32 {last}, blocks, 1");
            // The operation of the last block wraps the counter around to 0, ready for the next launch.
            emit!(self.text, "atom.global.inc.u32 {done}, [{state}+32], {last}");
            emit!(self.text, "setp.ne.u32 {skip}, {done}, {last}");
            emit!(self.text, "@{skip} bra end");
            emit!(self.text, "membar.gl");
            for at in [0, 8, 16, 24] {
                let word = self.text.temporary("b64");
                emit!(self.text, "ld.volatile.global.u64 {word}, [{state}+{at}]");
                emit!(self.text, "st.global.u64 [{report}+{at}], {word}");
                emit!(self.text, "st.global.u64 [{state}+{at}], 0");
            }
        }
        self.text.label("end");
        emit!(self.text, "ret");
    }

    /// Offset of an array in its memory space; all arrays of a space are contiguous.
    fn array_at(&self, array: usize) -> u64 {
        let space = self.body.arrays[array].space;
        bytes_of(&self.body.arrays[..array], space)
    }

    fn clear_arrays(&mut self) {
        /// Maximum number of words that are cleared without a loop.
        const UNROLLED: u64 = 32;
        let bytes = bytes_of(&self.body.arrays, Space::Item);
        if bytes == 0 {
            return;
        }
        self.text.declarations.push_str(&format!("\t.local .align 8 .b8 arrays[{bytes}];\n"));
        if bytes <= 8 * UNROLLED {
            for at in (0..bytes).step_by(8) {
                emit!(self.text, "st.local.u64 [arrays+{at}], 0");
            }
            return;
        }
        let (at, begin, more) =
            (self.text.temporary("b64"), self.text.temporary("b64"), self.text.temporary("pred"));
        emit!(self.text, "mov.u64 {begin}, arrays");
        emit!(self.text, "add.u64 {at}, {begin}, {bytes}");
        self.text.label("clear");
        emit!(self.text, "sub.u64 {at}, {at}, 8");
        emit!(self.text, "st.local.u64 [{at}], 0");
        emit!(self.text, "setp.gt.u64 {more}, {at}, {begin}");
        emit!(self.text, "@{more} bra clear");
    }

    fn code(&mut self, code: &[Op]) {
        let mut done = 0;
        for (number, op) in code.iter().enumerate() {
            let site = self.site;
            self.site += 1;
            if number < done {
                continue;
            }
            op.each_read(|register| {
                if self.words[register.at()] {
                    // Test for 1, because NVIDIA's assembler crashes on a test for 0 in some loops.
                    emit!(self.text, "setp.eq.u32 r{0}, w{0}, 1", register.0);
                }
            });
            if self.step_around(site, op) {
                continue;
            }
            done = number + self.access_wide(site, &code[number..]);
            if number < done {
                continue;
            }
            match op {
                Op::If { when, then, otherwise } => {
                    let to = if otherwise.is_empty() { "end" } else { "else" };
                    emit!(self.text, "@!{} bra {to}_{site}", r(*when));
                    self.code(then);
                    if !otherwise.is_empty() {
                        emit!(self.text, "bra end_{site}");
                        self.text.label(&format!("else_{site}"));
                        self.code(otherwise);
                    }
                    self.text.label(&format!("end_{site}"));
                }
                Op::Block { body } => {
                    self.labels.push(site);
                    self.code(body);
                    self.labels.pop();
                    self.text.label(&format!("end_{site}"));
                }
                Op::Loop { body } if self.several_turns(site, body) => {}
                Op::Loop { body } => {
                    self.text.label(&format!("loop_{site}"));
                    self.labels.push(site);
                    self.code(body);
                    self.labels.pop();
                    self.text.label(&format!("again_{site}"));
                    if self.shape.has_budget {
                        let (left, budget) =
                            (self.text.temporary("pred"), self.given(LeadingParameters::Budget));
                        let turns = if self.common.contains(&site) { "common_turns" } else { "turns" };
                        emit!(self.text, "setp.lt.u64 {left}, {turns}, {budget}");
                        self.check(site, &left, &budget);
                        // A work-item that exceeds its budget of iterations jumps only to the end of the
                        // loop, because other work-items may wait for this work-item at a later barrier.
                        let to = if self.meets { format!("end_{site}") } else { "over".into() };
                        emit!(self.text, "@!{left} bra {to}");
                        emit!(self.text, "add.u64 {turns}, {turns}, 1");
                    }
                    emit!(self.text, "bra loop_{site}");
                    self.text.label(&format!("end_{site}"));
                }
                Op::Break { out } => emit!(self.text, "bra end_{}", self.target(*out)),
                Op::Continue { out } => emit!(self.text, "bra again_{}", self.target(*out)),
                _ => self.aside(site, op),
            }
            if let Some(to) = op.written() {
                self.keep_word(to);
            }
        }
    }

    /// Copies a bool to its word, if it has one.
    fn keep_word(&mut self, to: Reg) {
        if self.words[to.at()] {
            emit!(self.text, "selp.b32 w{0}, 1, 0, r{0}", to.0);
        }
    }

    fn target(&self, out: u16) -> u32 {
        self.labels[self.labels.len() - 1 - usize::from(out)]
    }

    /// Writes an operation. If it also reads its target register, uses another register for the result.
    fn aside(&mut self, site: u32, op: &Op) {
        let Some(to) = op.written() else { return self.step(site, op, "") };
        let mut reads_it = false;
        op.each_read(|register| reads_it |= register == to);
        if !reads_it {
            return self.step(site, op, &r(to));
        }
        let kind = register(self.of(to));
        let aside = self.text.temporary(kind);
        self.step(site, op, &aside);
        emit!(self.text, "mov.{kind} {}, {aside}", r(to));
    }

    /// Writes an operation whose result goes to the register `name`.
    fn step(&mut self, site: u32, op: &Op, name: &str) {
        let body = self.body;
        if self.text.value(op, name, |register| body.registers[register.at()], r) {
            return;
        }
        match *op {
            Op::Literal { to, bits } => self.text.literal(self.of(to), name, bits),
            Op::Param { to, number } => {
                let place = if self.is_function {
                    format!("{}_a{number}", self.called)
                } else {
                    self.place(self.shape.param_at(number.into()))
                };
                self.text.parameter(self.of(to), name, &place);
            }
            Op::Builtin { what, .. } => self.place_of_item(what, name),
            Op::Load { view, at, offset, of, .. } => self.load(site, name, (view, at), offset, of),
            Op::Store { view, at, offset, of, value } => self.store(site, (view, at), offset, of, value),
            Op::Lookup { table, at, .. } => self.lookup(site, name, usize::from(table), at),
            Op::Get { array, at, .. } => self.get(site, name, usize::from(array), at),
            Op::Put { array, at, value } => self.put(site, usize::from(array), at, value),
            Op::Fail { detail, .. } => {
                let never = self.text.temporary("pred");
                self.text.literal(Type::Bool, &never, 0);
                self.check(site, &never, &r(detail));
            }
            Op::Atomic { op, place, value, scope, to } => {
                self.atomic(site, to.map(|_| name), (op, scope), place, value);
            }
            Op::Barrier => emit!(self.text, "barrier.sync 0"),
            Op::Subgroup { how, of, .. } => self.subgroup_op(how, name, of),
            Op::PrivateAlloc { bytes, .. } => self.take(site, name, bytes),
            Op::PrivateLoad { to, at } => self.load_taken(site, name, at, self.of(to)),
            Op::PrivateStore { at, value } => self.store_taken(site, at, value),
            // Unreachable: `Text::value` writes operations on values, `code` writes operations with nested
            // code, and kernels have no calls.
            _ => {}
        }
    }

    fn place_of_item(&mut self, what: Builtin, name: &str) {
        match what {
            Builtin::Index => {
                let (first, channel) =
                    (self.given(LeadingParameters::First), self.given(LeadingParameters::Channel));
                emit!(self.text, "add.u64 {first}, {first}, item");
                self.text.index(name, &first, &channel, self.shape.page_len, self.shape.channels);
            }
            Builtin::Item => emit!(self.text, "mov.b64 {name}, item"),
            Builtin::Live if self.has_groups() => emit!(self.text, "mov.pred {name}, live"),
            Builtin::Live => self.text.literal(Type::Bool, name, 1),
            Builtin::InGroup => emit!(self.text, "cvt.u64.u32 {name}, thread"),
            Builtin::Group => emit!(self.text, "mov.b64 {name}, group"),
            Builtin::Groups => emit!(self.text, "mov.b64 {name}, groups"),
        }
    }

    /// Writes code that records a failure, if it is the item's first one, unless `is_fine` is true.
    fn check(&mut self, site: u32, is_fine: &str, detail: &str) {
        self.can_fail = true;
        let first = self.text.temporary("pred");
        emit!(self.text, "setp.eq.and.u32 {first}, site, {NO_SITE}, !{is_fine}");
        emit!(self.text, "@{first} mov.u32 site, {site}");
        emit!(self.text, "@{first} mov.b64 detail, {detail}");
    }

    /// Compares an index with a known length. Returns no predicate if the index is a literal in bounds.
    fn below(&mut self, at: Reg, len: u64) -> Option<String> {
        if matches!(self.known[at.at()], Some(KnownValue::Literal(at)) if at < len) {
            return None;
        }
        let inside = self.text.temporary("pred");
        emit!(self.text, "setp.lt.u64 {inside}, {}, {len}", r(at));
        Some(inside)
    }

    fn is_unchecked(&self) -> bool {
        self.shape.kernel.is_unchecked()
    }

    /// Returns the place of an element in the view, with the predicate that it exists unless it always does.
    fn element(&mut self, view: usize, at: Reg) -> ViewElement {
        let mut element = self.element_of_live(view, at);
        if self.is_unchecked() {
            element.inside = None;
        } else if self.has_groups() {
            // Work-items past the launch's end (not `live`) access no element, and must not report a failure.
            match &element.inside {
                None => element.inside = Some("live".into()),
                Some(inside) => emit!(self.text, "and.pred {inside}, {inside}, live"),
            }
        }
        element
    }

    fn element_of_live(&mut self, view: usize, at: Reg) -> ViewElement {
        let (count, known) = (self.shape.view_at(view), self.known[at.at()]);
        let is_inside = self.shape.views[view].is_inside && known.is_some();
        let read_count = |text: &mut Text, place: String| {
            let count = text.temporary("b64");
            emit!(text, "ld.param.u64 {count}, [{place}]");
            count
        };
        // A literal summand goes to the offset of the address, whose register other accesses then share.
        let (summand, literal) = self.bounds.sums[at.at()].unwrap_or((at, 0));
        let part = ViewElement { index: r(summand), plus: literal, inside: None };
        match self.body.views[view].access {
            Access::Write { tile } => {
                let element = self.text.temporary("b64");
                let inside = self.below(at, tile.into());
                if tile == 1 {
                    // The view has an element for each work-item, so the access needs no check.
                    emit!(self.text, "add.u64 {element}, item, {}", r(at));
                    return ViewElement { index: element, plus: 0, inside };
                }
                emit!(self.text, "mad.lo.u64 {element}, item, {tile}, {}", r(at));
                if is_inside || self.is_unchecked() || known == Some(KnownValue::Literal(0)) {
                    return ViewElement { index: element, plus: 0, inside: None };
                }
                let (place, is_there) = (self.place(count), self.text.temporary("pred"));
                let count = read_count(&mut self.text, place);
                match inside {
                    None => emit!(self.text, "setp.lt.u64 {is_there}, {element}, {count}"),
                    Some(inside) => {
                        emit!(self.text, "setp.lt.and.u64 {is_there}, {element}, {count}, {inside}");
                    }
                }
                ViewElement { index: element, plus: 0, inside: Some(is_there) }
            }
            Access::Read if is_inside => part,
            _ if self.is_unchecked() => part,
            Access::Read | Access::Atomic | Access::Append => {
                let (place, inside) = (self.place(count), self.text.temporary("pred"));
                let count = read_count(&mut self.text, place);
                emit!(self.text, "setp.lt.u64 {inside}, {}, {count}", r(at));
                ViewElement { inside: Some(inside), ..part }
            }
        }
    }

    /// Returns the address of an element's field: a register and an offset, and a divisor of both.
    fn address(&mut self, view: usize, element: &ViewElement, offset: u32) -> (String, u64, u64) {
        let shape = &self.shape.views[view];
        let mut index = element.index.clone();
        let mut offset = u64::from(offset);
        if shape.bases == 1 && element.plus <= OFFSET_MAX / shape.stride {
            offset += element.plus * shape.stride;
        } else if element.plus > 0 {
            index = self.text.temporary("b64");
            emit!(self.text, "add.u64 {index}, {}, 0x{:X}", element.index, element.plus);
        }
        let (base, address) = (self.text.temporary("b64"), self.text.temporary("b64"));
        let first = self.shape.view_at(view) + 8;
        if shape.bases == 1 {
            emit!(self.text, "ld.param.u64 {base}, [{}]", self.place(first));
            self.text.scaled(&address, &index, shape.stride, &base);
        } else {
            let (page_len, bases) = (shape.page_len, shape.bases as u64);
            let [page, before, place, own] = ["b64"; 4].map(|kind| self.text.temporary(kind));
            self.text.quotient(&page, &index, page_len);
            self.text.quotient(&before, &page, bases);
            // Compute the index of the memory range that contains the page.
            emit!(self.text, "mul.lo.u64 {place}, {before}, {bases}");
            emit!(self.text, "sub.u64 {place}, {page}, {place}");
            emit!(self.text, "mov.b64 {base}, {}_p", self.called);
            self.text.scaled(&address, &place, 8, &base);
            emit!(self.text, "ld.param.u64 {base}, [{address}+{first}]");
            // The index of the element in its memory range is `element - page * page_len + before *
            // page_len`, if `before` pages of the range precede the element's page.
            emit!(self.text, "sub.u64 {own}, {before}, {page}");
            emit!(self.text, "mad.lo.u64 {own}, {own}, {page_len}, {index}");
            self.text.scaled(&address, &own, shape.stride, &base);
        }
        let align = 1 << (shape.align | offset).trailing_zeros();
        if offset <= OFFSET_MAX {
            return (address, offset, align);
        }
        emit!(self.text, "add.u64 {address}, {address}, 0x{offset:X}");
        (address, 0, align)
    }

    /// Returns the guard of an instruction with a predicate.
    fn guard(inside: &Option<String>) -> String {
        inside.as_ref().map_or_else(String::new, |inside| format!("@{inside} "))
    }

    fn load(&mut self, site: u32, name: &str, (view, at): (u16, Reg), offset: u32, of: Memory) {
        let view = usize::from(view);
        if self.read_around(site, name, of) || self.read_cell(name, (view, at), of) {
            return;
        }
        let element = self.element(view, at);
        let (address, from, align) = self.address(view, &element, offset);
        let way = match self.body.views[view].access {
            // Another group may store the element meanwhile. A plain load could return an old value from L1.
            Access::Atomic if self.capability >= (7, 0) => "ld.relaxed.gpu.global",
            access if access.is_written() => "ld.global",
            _ => "ld.global.nc",
        };
        let source = LoadSource { way, at: &address, from, align };
        self.fetch(of, name, element.inside.as_deref(), source);
        if let Some(inside) = element.inside {
            self.check(site, &inside, &r(at));
        }
    }

    /// Loads a value if a predicate is true, else 0.
    fn fetch(&mut self, of: Memory, name: &str, inside: Option<&str>, source: LoadSource<'_>) {
        let (lies_as, to) = match of {
            Memory::Value(of) => (of, name.to_owned()),
            Memory::F16 => (Type::U16, self.text.temporary("b32")),
        };
        match inside {
            None => self.text.load(lies_as, &to, "", source),
            Some(inside) => {
                let guard = format!("@{inside} ");
                if source.align >= lies_as.bytes().into() {
                    self.text.literal(lies_as, &to, 0);
                    self.text.load(lies_as, &to, &guard, source);
                } else {
                    self.text.load(lies_as, &to, &guard, source);
                    self.text.select_or_zero(lies_as, &to, inside);
                }
            }
        }
        if of == Memory::F16 {
            let half = self.text.temporary("b16");
            emit!(self.text, "cvt.u16.u32 {half}, {to}");
            emit!(self.text, "cvt.f32.f16 {name}, {half}");
        }
    }

    fn store(&mut self, site: u32, (view, at): (u16, Reg), offset: u32, of: Memory, value: Reg) {
        let view = usize::from(view);
        if self.write_cell(view, &r(value), of) {
            return;
        }
        let element = self.element(view, at);
        let (address, to, align) = self.address(view, &element, offset);
        let guard = Self::guard(&element.inside);
        match of {
            Memory::Value(of) => self.text.store(of, &r(value), &guard, (&address, to), align),
            Memory::F16 => {
                let (half, bits) = (self.text.temporary("b16"), self.text.temporary("b32"));
                emit!(self.text, "cvt.rn.f16.f32 {half}, {}", r(value));
                emit!(self.text, "cvt.u32.u16 {bits}, {half}");
                self.text.store(Type::U16, &bits, &guard, (&address, to), align);
            }
        }
        if let Some(inside) = element.inside {
            self.check(site, &inside, &r(at));
        }
    }

    fn lookup(&mut self, site: u32, name: &str, table: usize, at: Reg) {
        let decl = self.body.tables[table];
        let (inside, begin, bytes) =
            (self.below(at, decl.len.into()), self.body.table_offset(table), u64::from(decl.of.bytes()));
        let among_params = self.shape.gives_tables;
        let start = if among_params { self.shape.tables_at() + begin } else { begin };
        let way = if among_params { "ld.param" } else { "ld.global.nc" };
        let place = match self.known[at.at()] {
            Some(KnownValue::Literal(index)) if among_params => {
                let index = index.min(u64::from(decl.len) - 1);
                (format!("{}_p", self.called), start + index * bytes)
            }
            _ => {
                let address = self.text.temporary("b64");
                let tables = if among_params {
                    let tables = self.text.temporary("b64");
                    emit!(self.text, "mov.b64 {tables}, {}_p", self.called);
                    tables
                } else if self.is_function {
                    let tables = self.text.temporary("b64");
                    emit!(self.text, "mov.u64 {tables}, {}_tables", self.called);
                    tables
                } else {
                    self.given(LeadingParameters::Tables)
                };
                self.text.scaled(&address, &r(at), bytes, &tables);
                (address, start)
            }
        };
        let source = LoadSource { way, at: &place.0, from: place.1, align: bytes };
        self.fetch(decl.of, name, inside.as_deref(), source);
        if let Some(inside) = inside {
            self.check(site, &inside, &r(at));
        }
    }

    /// Returns the address of an array's element, and the predicate that the element exists.
    fn element_of_array(&mut self, array: usize, at: Reg) -> (String, Option<String>) {
        let (decl, begin) = (self.body.arrays[array], self.array_at(array));
        // If a known upper bound shows that the index is inside of the private or shared array, write no
        // check.
        let is_inside = self.is_unchecked() || self.bounds.most[at.at()] < u64::from(decl.len);
        let inside = if is_inside { None } else { self.below(at, decl.len.into()) };
        let arrays = if decl.space == Space::Item { "arrays" } else { "shared" };
        if let (None, Some(KnownValue::Literal(index))) = (&inside, self.known[at.at()]) {
            return (format!("{arrays}+{}", begin + index * u64::from(decl.of.bytes())), None);
        }
        // If the index is a sum with a literal, add the literal to the address, which several accesses then
        // share.
        let sum = self.bounds.sums[at.at()].filter(|_| inside.is_none());
        let (at, begin) =
            sum.map_or((at, begin), |(part, literal)| (part, begin + literal * u64::from(decl.of.bytes())));
        // Truncation to 32 bits is safe, because the check has excluded longer indices.
        let [base, index, address] = ["b32"; 3].map(|kind| self.text.temporary(kind));
        emit!(self.text, "mov.u32 {base}, {arrays}");
        emit!(self.text, "cvt.u32.u64 {index}, {}", r(at));
        emit!(self.text, "mad.lo.u32 {address}, {index}, {}, {base}", decl.of.bytes());
        (format!("{address}+{begin}"), inside)
    }

    fn get(&mut self, site: u32, name: &str, array: usize, at: Reg) {
        let of = self.body.arrays[array].of;
        if let Some(loaded) = self.ahead.get(&site) {
            return emit!(self.text, "mov.{} {name}, {loaded}", register(of));
        }
        let (place, inside) = self.element_of_array(array, at);
        let word = if of == Type::Bool { self.text.temporary("b32") } else { name.to_owned() };
        let lies_as = kept_as(of);
        if inside.is_some() {
            self.text.literal(lies_as, &word, 0);
        }
        let guard = Self::guard(&inside);
        let space = space_of(self.body.arrays[array].space);
        emit!(self.text, "{guard}ld.{space}.{} {word}, [{place}]", memory_suffix(lies_as));
        if of == Type::Bool {
            emit!(self.text, "setp.ne.u32 {name}, {word}, 0");
        }
        if let Some(inside) = inside {
            self.check(site, &inside, &r(at));
        }
    }

    fn put(&mut self, site: u32, array: usize, at: Reg, value: Reg) {
        let of = self.body.arrays[array].of;
        let (place, inside) = self.element_of_array(array, at);
        let (guard, lies_as) = (Self::guard(&inside), kept_as(of));
        let mut word = r(value);
        if of == Type::Bool {
            word = self.text.temporary("b32");
            self.text.cast(of, lies_as, &word, &r(value));
        }
        let (space, suffix) =
            (space_of(self.body.arrays[array].space), memory_suffix(lies_as).replace('s', "u"));
        emit!(self.text, "{guard}st.{space}.{suffix} [{place}], {word}");
        if let Some(inside) = inside {
            self.check(site, &inside, &r(at));
        }
    }
}
